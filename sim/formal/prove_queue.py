"""Queues: payloads leave in the order in which they came, and the outputs of a queue are right.

The proof follows one payload that the solver chose, from the moment when it is taken in.
"""

from amaranth.hdl import Assert, Assume, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.kit.queue import Queue
from sim.formal.runner import Proof
from sim.formal.stream_rules import StreamRules

PAYLOAD_BITS = 2
DEPTH = 5
"""One more than the words of its memory, which are a power of two, so that every address is one of
them."""


class QueueSpecification(wiring.Component):
    """First in, first out. ``level``, ``filling`` and ``busy`` are as `Queue` promises.

    ``chosen``: the payload that comes in is followed, unless another one is.
    """

    chosen: In(1)
    input: In(stream.Signature(PAYLOAD_BITS))
    output: Out(stream.Signature(PAYLOAD_BITS))

    def __init__(self, queue: Queue):
        self._queue = queue
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.queue = queue = self._queue
        connect(m, flipped(self.input), queue.input)
        connect(m, queue.output, flipped(self.output))
        m.submodules.input_rules = entering = StreamRules(queue.input, role=Assume)
        m.submodules.output_rules = leaving = StreamRules(queue.output, role=Assert)
        inside = Signal(range(DEPTH + 1))
        following = Signal()
        payload = Signal(PAYLOAD_BITS)
        before = Signal(range(DEPTH + 1))  # payloads that leave earlier than the one followed
        was_filling = Signal()
        offers = queue.output.valid
        m.d.comb += [
            Assert(queue.level == inside),
            Assert(queue.input.ready | (inside >= DEPTH - 1)),
            Assert(~offers | (inside != 0)),
            Assert(queue.filling == ((inside != 0) & ~offers)),
            Assert(~was_filling | offers),
            Assert(queue.busy == ((inside != 0) & (queue.output.ready | ~offers))),
            Assert(~following | (before < inside)),
        ]
        m.d.sync += [
            inside.eq(inside + entering.transfer - leaving.transfer),
            was_filling.eq(queue.filling),
        ]
        with m.If(following & leaving.transfer):
            m.d.sync += before.eq(before - 1)
            with m.If(before == 0):
                m.d.comb += Assert(queue.output.payload == payload)
                m.d.sync += following.eq(0)
        with m.If(~following & entering.transfer & self.chosen):
            m.d.sync += [
                following.eq(1),
                payload.eq(queue.input.payload),
                before.eq(inside - leaving.transfer),
            ]
        return m


class RepeatingQueue(Queue):
    """Mutant: the offered payload stays when another comes in as it is taken."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += m.submodules.fifo.r_en.eq(self.output.ready & ~self.input.valid)
        return m


class OverflowingQueue(Queue):
    """Mutant: it is always ready."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.input.ready.eq(1)
        return m


class RestlessQueue(Queue):
    """Mutant: it is busy while its offer is not taken."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.busy.eq(self.level != 0)
        return m


def _queue(kind: type[Queue]) -> QueueSpecification:
    return QueueSpecification(kind(PAYLOAD_BITS, DEPTH))


PROOFS = [
    Proof(
        name="queue",
        build=lambda: _queue(Queue),
        mutants=[
            lambda: _queue(RepeatingQueue),
            lambda: _queue(OverflowingQueue),
            lambda: _queue(RestlessQueue),
        ],
    )
]
