"""Two readers of the line store at one of its ports."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.line import ReadPort
from hdl.kit.merge import Interleave
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
        request = self.line_read.request
        m.submodules.turns = turns = Interleave(request.payload.shape())
        for user, port in zip(self.users, turns.inputs, strict=True):
            connect(m, flipped(user.request), port)
        connect(m, turns.output, flipped(request))

        owners = Signal(READ_LATENCY)
        m.d.sync += owners.eq(Cat(turns.chosen, owners))
        for number, user in enumerate(self.users):
            m.d.comb += [
                user.response.eq(self.line_read.response),
                user.response_valid.eq(self.line_read.response_valid & (owners[-1] == number)),
            ]
        return m
