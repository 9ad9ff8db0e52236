"""Interrupt coalescing: completions wait for others, or for a time (NVMe 1.4 section 7.5.1)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
from hdl.kit.clock import NEVER, passed
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.nvme.records import queue_bits

DELAYS_PER_SECOND = 10_000
"""The aggregation time counts 100 us."""

COUNT_BITS = 8


class Coalesce(wiring.Component):
    """Holds raised vectors back until enough completions share them or their time is over.

    Vector 0, which is the admin queue's, and vectors that are ``uncoalesced`` pass. Any other
    passes with completion ``threshold`` + 1 since the last message. It also passes once ``delay``
    has passed since the first completion that any vector holds back. One clock serves all vectors,
    so none waits longer than asked for. With a threshold or a delay of 0 all pass.

    Parameters
    ----------
    config
        Sizes, and the clock frequency.

    Ports
    -----
    raised
        A vector that is raised, at most every other cycle.
    threshold
        As in `hdl.nvme.admin.features.Features`.
    delay
        As in `hdl.nvme.admin.features.Features`, in 100 us.
    uncoalesced
        As in `hdl.nvme.admin.features.Features`.
    clear
        What is held back is forgotten.
    hurry
        Nothing is held back.
    now
        Time in clock cycles.
    deadline
        Time in clock cycles at which what is held back passes. All ones while nothing is.
    passed
        Bit a vector, pulses: it is raised.
    busy
        Something moves without anybody else being waited for.

    Latency: 2 cycles when nothing is held back.
    """

    def __init__(self, *, config: Config):
        self._config = config
        count = config.queue_pairs + 1
        super().__init__(
            {
                "raised": In(Pulse(queue_bits(config))),
                "threshold": In(COUNT_BITS),
                "delay": In(8),
                "uncoalesced": In(count),
                "clear": In(1),
                "hurry": In(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "passed": Out(count),
                "busy": Out(1),
            }
        )

        # What is held back.
        self._counts = Table(COUNT_BITS, max(2, count))  # completions of each vector
        self._held_vectors = Signal(count)  # a bit a vector
        self._until = Signal(TIME_BITS)  # when its time is over
        self._over = Signal()  # its time is over

        # The vector that was raised in the last cycle.
        self._judging = Signal()  # there is one
        self._vector = Signal(queue_bits(config))
        self._waited = Signal(COUNT_BITS)  # completions that it has held back

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.counts = self._counts
        held, vector, over = self._held_vectors, self._vector, self._over
        self._count_completions(m)
        m.d.comb += [
            over.eq(held.any() & (self.hurry | passed(self.now, self._until))),
            self.deadline.eq(Mux(held.any(), self._until, NEVER)),
            self.busy.eq(self.raised.valid | self._judging | over),
        ]
        wait = Signal(TIME_BITS)
        m.d.sync += wait.eq(self.delay * (self._config.clock_hz // DELAYS_PER_SECOND))
        with m.If(over):
            m.d.comb += self.passed.eq(held)
            m.d.sync += held.eq(0)
        with m.If(self._judging):
            with m.If(self._passes()):
                m.d.comb += self.passed.bit_select(vector, 1).eq(1)
                m.d.sync += held.bit_select(vector, 1).eq(0)
            with m.Else():
                m.d.sync += held.bit_select(vector, 1).eq(1)
                with m.If(~held.any() | over):
                    m.d.sync += self._until.eq(self.now + wait)
        with m.If(self.clear):
            m.d.sync += held.eq(0)
        return m

    def _count_completions(self, m: Module) -> None:
        """How many completions the vector has held back, with this one."""
        counts, vector, waited = self._counts, self._vector, self._waited
        m.d.sync += [self._judging.eq(self.raised.valid), vector.eq(self.raised.payload)]
        m.d.comb += [
            counts.reads[0].address.eq(self.raised.payload),
            waited.eq(Mux(self._held_vectors.bit_select(vector, 1), counts.reads[0].data, 0)),
            counts.write.address.eq(vector),
            counts.write.data.eq(waited + 1),
            counts.write.enable.eq(self._judging),
        ]

    def _passes(self) -> Value:
        """The vector is raised at once."""
        return (
            (self._vector == 0)
            | self.uncoalesced.bit_select(self._vector, 1)
            | (self.delay == 0)
            | self.hurry
            | (self._waited >= self.threshold)
        )
