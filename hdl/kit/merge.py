"""Several streams become one, and one becomes several."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import bits_for_count
from hdl.kit.pick import choose, following


class Merge(wiring.Component):
    """Takes turns between ``inputs`` streams of one shape.

    After an input was served, every other waiting input is served before it again. The latency is
    one cycle, the throughput one payload a cycle. The output is registered, so it is stable under
    back-pressure whatever arrives meanwhile.

    Parameters
    ----------
    shape
        Payload shape of every input and of the output.
    inputs
        Number of inputs, at least 1.

    Ports
    -----
    inputs
        Streams that come in.
    output
        The stream that goes out.
    busy
        Something moves.
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
        inputs, output = self.inputs, self.output
        valids = Cat(port.valid for port in inputs)
        turn = Signal(bits_for_count(self._count))
        chosen = choose(m, valids, turn)
        room = Signal()
        m.d.comb += room.eq(~output.valid | output.ready)
        with m.If(room):
            m.d.sync += output.valid.eq(valids.any())
            with m.If(valids.any()):
                m.d.sync += [
                    output.payload.eq(Array(port.payload for port in inputs)[chosen]),
                    turn.eq(following(chosen, self._count - 1)),
                ]
        for index, port in enumerate(inputs):
            m.d.comb += port.ready.eq(room & (chosen == index))
        m.d.comb += self.busy.eq(room & (valids.any() | output.valid))
        return m


class Interleave(wiring.Component):
    """Two streams take turns without latency. One alone has every cycle. Combinational.

    A payload that was refused stays the one that is offered.

    Parameters
    ----------
    shape
        Payload shape of both inputs and of the output.

    Ports
    -----
    inputs
        Streams that come in. Back-pressure goes to the one whose turn it is.
    output
        The stream that goes out.
    chosen
        Which of the two is on offer.
    """

    def __init__(self, shape):
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(2),
                "output": Out(stream.Signature(shape)),
                "chosen": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        first, second = self.inputs
        output, chosen = self.output, self.chosen
        last = Signal()
        held = Signal()
        m.d.comb += [
            chosen.eq(Mux(held, last, second.valid & ~(first.valid & last))),
            output.valid.eq(Mux(chosen, second.valid, first.valid)),
            output.payload.eq(Mux(chosen, second.payload, first.payload)),
            first.ready.eq(output.ready & ~chosen),
            second.ready.eq(output.ready & chosen),
        ]
        m.d.sync += held.eq(output.valid & ~output.ready)
        with m.If(output.valid):
            m.d.sync += last.eq(chosen)
        return m


class FirstOf(wiring.Component):
    """The first input that offers a payload has the output. Combinational, without latency.

    For streams that seldom have anything and need not be served by turns. If the output may be
    refused, an earlier input can come in between, so its receiver must not mind that a payload is
    exchanged for another one.

    Parameters
    ----------
    shape
        Payload shape of every input and of the output.
    inputs
        Number of inputs, at least 1.

    Ports
    -----
    inputs
        Streams that come in, the most urgent first.
    output
        The stream that goes out.
    """

    def __init__(self, shape, *, inputs: int):
        if inputs < 1:
            raise ValueError(f"inputs must be at least 1, not {inputs}")
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        output = self.output
        taken = Const(0)
        for source in self.inputs:
            m.d.comb += source.ready.eq(output.ready & ~taken)
            with m.If(source.valid & ~taken):
                m.d.comb += [output.valid.eq(1), output.payload.eq(source.payload)]
            taken |= source.valid
        return m


def split(m: Module, source, routes) -> None:
    """Sends each payload of stream ``source`` to the one stream whose condition holds.

    ``routes`` is a list of (condition on ``source.payload``, destination stream). Exactly one
    condition must hold for every payload. Combinational, without latency, one payload a cycle.
    """
    for condition, destination in routes:
        m.d.comb += [
            destination.payload.eq(source.payload),
            destination.valid.eq(source.valid & condition),
        ]
        with m.If(condition):
            m.d.comb += source.ready.eq(destination.ready)
