"""Several streams become one, and one becomes several."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import bits_for_count


class Merge(wiring.Component):
    """Takes turns between ``inputs`` streams of one shape.

    Round robin: after an input was served every other waiting input is served before it again.
    Latency one cycle, throughput one payload a cycle; the output is registered, so it is stable
    under back-pressure whatever arrives meanwhile.

    Parameters
    ----------
    shape
        Payload shape of every input and of the output.
    inputs
        Number of inputs, at least 1.
    """

    def __init__(self, shape, *, inputs: int):
        if inputs < 1:
            raise ValueError(f"inputs must be at least 1, not {inputs}")
        self._shape = shape
        self._count = inputs
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        count = self._count
        valids = Cat(port.valid for port in self.inputs)
        turn = Signal(bits_for_count(count))
        chosen = Signal(bits_for_count(count))
        room = Signal()

        m.d.comb += room.eq(~self.output.valid | self.output.ready)
        # Lowest waiting input from `turn` on, else the lowest of all.
        m.d.comb += chosen.eq(0)
        for index in reversed(range(count)):
            with m.If(self.inputs[index].valid):
                m.d.comb += chosen.eq(index)
        for index in reversed(range(count)):
            with m.If(self.inputs[index].valid & (turn <= index)):
                m.d.comb += chosen.eq(index)

        with m.If(room):
            m.d.sync += self.output.valid.eq(valids.any())
            with m.If(valids.any()):
                m.d.sync += [
                    self.output.payload.eq(Array(port.payload for port in self.inputs)[chosen]),
                    turn.eq(Mux(chosen == count - 1, 0, chosen + 1)),
                ]
        for index, port in enumerate(self.inputs):
            m.d.comb += port.ready.eq(room & (chosen == index))
        m.d.comb += self.busy.eq(room & (valids.any() | self.output.valid))
        return m


def split(m: Module, source, routes) -> None:
    """Sends each payload of stream ``source`` to the one stream whose condition holds.

    ``routes`` is a list of (condition on ``source.payload``, destination stream); exactly one
    condition must hold for every payload. Combinational: no latency, one payload a cycle.
    """
    for condition, destination in routes:
        m.d.comb += [
            destination.payload.eq(source.payload),
            destination.valid.eq(source.valid & condition),
        ]
        with m.If(condition):
            m.d.comb += source.ready.eq(destination.ready)
