"""The rules of `amaranth.lib.stream`, to be assumed of a design's inputs and proved of its outputs.

    m.submodules.input_rules = StreamRules(dut.input, role=Assume)
    m.submodules.output_rules = StreamRules(dut.output, role=Assert)
"""

from collections.abc import Callable

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out


class StreamRules(wiring.Component):
    """A payload that is offered and not taken is offered again, unchanged, in the next cycle.

    Parameters
    ----------
    stream
        The stream to watch. Nothing is driven.
    role
        ``Assert``: the stream must keep the rule. ``Assume``: it keeps the rule, because it is an
        input.
    """

    transfer: Out(1)
    """A payload moves in this cycle."""

    def __init__(self, stream, *, role: Callable):
        self._stream = stream
        self._role = role
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        payload = self._stream.p
        bits = payload if not hasattr(payload, "as_value") else payload.as_value()
        refused = Signal()
        before = Signal(len(bits))
        m.d.comb += self.transfer.eq(self._stream.valid & self._stream.ready)
        m.d.sync += [
            refused.eq(self._stream.valid & ~self._stream.ready),
            before.eq(bits),
        ]
        with m.If(refused):
            m.d.comb += [self._role(self._stream.valid), self._role(bits == before)]
        return m
