"""Flip-flops in the paths of a stream."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class Skid(wiring.Component):
    """Cuts the ``ready`` path of a stream without latency.

    ``input.ready`` is a flip-flop. A payload that ``output`` refuses is kept, so it holds one
    payload. The latency is 0, and the throughput one payload a cycle.

    Parameters
    ----------
    shape
        Payload shape.

    Ports
    -----
    input
        Payloads that come in.
    output
        Payloads that go out.
    busy
        A payload moves.
    """

    def __init__(self, shape):
        self._shape = shape
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        kept = Signal(self._shape, reset_less=True)
        full = Signal()
        m.d.comb += [
            self.input.ready.eq(~full),
            self.output.valid.eq(full | self.input.valid),
            self.output.payload.eq(Mux(full, Value.cast(kept), Value.cast(self.input.payload))),
            self.busy.eq(Mux(full, self.output.ready, self.input.valid)),
        ]
        m.d.sync += full.eq(self.output.valid & ~self.output.ready)
        with m.If(~full):
            m.d.sync += kept.eq(self.input.payload)
        return m


class Relay(wiring.Component):
    """Cuts every path of a stream: ``ready``, ``valid`` and payload are flip-flops.

    It holds two payloads. The latency is one cycle, and the throughput one payload a cycle.

    Parameters
    ----------
    shape
        Payload shape.

    Ports
    -----
    input
        Payloads that come in.
    output
        Payloads that go out.
    busy
        A payload moves.
    """

    def __init__(self, shape):
        self._shape = shape
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.skid = skid = Skid(self._shape)
        wiring.connect(m, wiring.flipped(self.input), skid.input)
        output = self.output
        m.d.comb += [
            skid.output.ready.eq(~output.valid | output.ready),
            self.busy.eq(skid.busy | (output.valid & output.ready)),
        ]
        with m.If(skid.output.ready):
            m.d.sync += [
                output.valid.eq(skid.output.valid),
                output.payload.eq(skid.output.payload),
            ]
        return m
