"""Two writers of the line store at one of its ports."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.line import write_port


class SharedWrite(wiring.Component):
    """Lets two users take turns at a write port, beat by beat; one alone has all of it.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    users
        Write ports, as the line store offers them.
    line_write
        The line store's port.

    Latency 0. Back-pressure of ``line_write`` goes to the user whose turn it is.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {"users": In(write_port(config)).array(2), "line_write": Out(write_port(config))}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        first, second = self.users
        last = Signal()
        held = Signal()
        chosen = Signal()
        m.d.comb += [
            # A beat that was refused stays.
            chosen.eq(Mux(held, last, second.valid & ~(first.valid & last))),
            self.line_write.valid.eq(Mux(chosen, second.valid, first.valid)),
            self.line_write.payload.eq(Mux(chosen, second.payload, first.payload)),
            first.ready.eq(self.line_write.ready & ~chosen),
            second.ready.eq(self.line_write.ready & chosen),
        ]
        m.d.sync += held.eq(self.line_write.valid & ~self.line_write.ready)
        with m.If(self.line_write.valid):
            m.d.sync += last.eq(chosen)
        return m
