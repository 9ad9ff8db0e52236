"""Arrays are clean once the host has shut the card down."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.flow.flush_request import FlushRequest


class CleanShutdown(wiring.Component):
    """Says that arrays are clean after the flush of a shutdown, until the host wants to go on.

    So they are after power-up, before the host has wanted anything. What an array has lost is not
    the others' concern. The shutdown is complete once the superblocks say that. If not everything
    has been stored nothing is clean. Nor is it if the host went on after the flush had begun,
    because that flush may have missed what was written since.

    Ports
    -----
    asked
        The flush that a shutdown asks for.
    request
        The same, for `hdl.drive.flusher.FlushAll`.
    wanted
        The host wants the controller to work.
    stored
        With ``flushed`` of ``request``: every drive that has not failed has stored what it had.
    rests
        The superblocks say what is so.
    clean
        Nothing is written to arrays, and all that was is stored.
    busy
        ``clean`` changes.
    """

    asked: In(FlushRequest())
    request: Out(FlushRequest())
    wanted: In(1)
    stored: In(1)
    rests: In(1)
    clean: Out(1, init=1)
    busy: Out(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        asked, request = self.asked, self.request
        went_on = Signal()
        becomes = (
            request.flush & request.flushed & self.stored & ~(self.wanted | went_on)
        )
        m.d.sync += went_on.eq(request.flush & (self.wanted | went_on))
        m.d.comb += [
            request.watches.eq(asked.watches),
            request.flush.eq(asked.flush),
            asked.stored.eq(request.stored),
            asked.flushed.eq(request.flushed & Mux(self.clean, self.rests, ~becomes)),
            self.busy.eq((becomes & ~self.clean) | (self.clean & self.wanted)),
        ]
        m.d.sync += self.clean.eq((self.clean | becomes) & ~self.wanted)
        return m
