"""Interrupt coalescing: completions wait for others, or for a time (NVMe 1.4 section 7.5.1)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
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
        A pulse: ``vector`` is raised, at most every other cycle. It is never refused.
    vector
        The vector.
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
        super().__init__(
            {
                "raised": In(1),
                "vector": In(queue_bits(config)),
                "threshold": In(COUNT_BITS),
                "delay": In(8),
                "uncoalesced": In(config.queue_pairs + 1),
                "clear": In(1),
                "hurry": In(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "passed": Out(config.queue_pairs + 1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        count = config.queue_pairs + 1
        m.submodules.counts = counts = memory.Memory(
            shape=COUNT_BITS, depth=max(2, count), init=[]
        )
        read, write = counts.read_port(), counts.write_port()
        held = Signal(count)
        judging = Signal()
        vector = Signal(queue_bits(config))
        until = Signal(TIME_BITS)
        wait = Signal(TIME_BITS)
        over = Signal()
        waited = Signal(COUNT_BITS)
        passes = Signal()
        m.d.sync += [
            judging.eq(self.raised),
            vector.eq(self.vector),
            wait.eq(self.delay * (config.clock_hz // DELAYS_PER_SECOND)),
        ]
        m.d.comb += [
            read.addr.eq(self.vector),
            waited.eq(Mux(held.bit_select(vector, 1), read.data, 0)),
            passes.eq(
                (vector == 0)
                | self.uncoalesced.bit_select(vector, 1)
                | (self.delay == 0)
                | self.hurry
                | (waited >= self.threshold)
            ),
            write.addr.eq(vector),
            write.data.eq(waited + 1),
            write.en.eq(judging),
            over.eq(held.any() & (self.hurry | ~(self.now - until)[TIME_BITS - 1])),
            self.deadline.eq(Mux(held.any(), until, ~0)),
            self.busy.eq(self.raised | judging | over),
        ]
        with m.If(over):
            m.d.comb += self.passed.eq(held)
            m.d.sync += held.eq(0)
        with m.If(judging):
            with m.If(passes):
                m.d.comb += self.passed.bit_select(vector, 1).eq(1)
                m.d.sync += held.bit_select(vector, 1).eq(0)
            with m.Else():
                m.d.sync += held.bit_select(vector, 1).eq(1)
                with m.If(~held.any() | over):
                    m.d.sync += until.eq(self.now + wait)
        with m.If(self.clear):
            m.d.sync += held.eq(0)
        return m
