"""Two readers of the line store at one of its ports."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.line import ReadPort
from hdl.memory.store import READ_LATENCY


class SharedRead(wiring.Component):
    """Lets two users take turns at a read port, beat by beat; one alone has all of it.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    users
        Read ports, as the line store offers them: beats answer `READ_LATENCY` cycles after the
        address was taken, in order, and cannot be refused.
    line_read
        The line store's port.

    Latency 0. Back-pressure of ``line_read`` goes to the user whose turn it is.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {"users": In(ReadPort(config)).array(2), "line_read": Out(ReadPort(config))}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        first, second = self.users
        request = self.line_read.request
        last = Signal()
        held = Signal()
        chosen = Signal()
        m.d.comb += [
            # A request that was refused stays.
            chosen.eq(
                Mux(held, last, second.request.valid & ~(first.request.valid & last))
            ),
            request.valid.eq(Mux(chosen, second.request.valid, first.request.valid)),
            request.payload.eq(Mux(chosen, second.request.payload, first.request.payload)),
            first.request.ready.eq(request.ready & ~chosen),
            second.request.ready.eq(request.ready & chosen),
        ]
        m.d.sync += held.eq(request.valid & ~request.ready)
        with m.If(request.valid):
            m.d.sync += last.eq(chosen)

        owners = Signal(READ_LATENCY)
        m.d.sync += owners.eq(Cat(chosen, owners))
        for number, user in enumerate(self.users):
            m.d.comb += [
                user.response.eq(self.line_read.response),
                user.response_valid.eq(self.line_read.response_valid & (owners[-1] == number)),
            ]
        return m
