"""Idle arrays are flushed, in time, all their drives, and only then."""

import os
import random
from collections.abc import Callable

import cocotb
import pytest
from amaranth.hdl import Const, Module
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, pack, sample, start, unpack
from hdl.background.idle_flush import IdleFlush
from hdl.config import TIME_BITS, Config
from hdl.flow.geometry import geometry
from hdl.flow.table_read import member_address

CONFIG = Config(
    ports=16, rows=16, arrays=4, lines=64, intent_chunks=32, metadata=True, marks_idle_us=1,
    clock_hz=100_000_000,
)  # fmt: skip
IDLE = CONFIG.clock_hz // 1_000_000
SLACK = 100
"""Cycles beyond twice the idle time until a flush begins, if nothing is in its way: two for a
member, some for the arrays before it."""

ROUNDS = 400
SHAPES = ((4, 1), (1, 1), (3, 2), (5, 1))
"""Width and spans of each array."""


class Bench:
    """Arrays that are written now and then, and what is asked of their drives."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        ports = [*range(CONFIG.ports)]
        self.random.shuffle(ports)
        self.members = [[ports.pop() for _ in range(width * spans)] for width, spans in SHAPES]
        self.asks = StreamSink(dut, "ask", active=0.7, callback=self._asked)
        self.tells = StreamSource(dut, "told", active=0.7)
        every = (1 << CONFIG.arrays) - 1
        self.marked, self.optimal, self.changing = every, every, 0
        self.settled = True
        self.cycle = 0
        # Of each array: when it was written last, since when it could be flushed, the longest time
        # without a write since its last flush, and whether it is to be flushed at all.
        self.written = [0] * CONFIG.arrays
        self.since = [0] * CONFIG.arrays
        self.longest = [0] * CONFIG.arrays
        self.fresh = [True] * CONFIG.arrays
        # The epoch: its array, drives that were asked, how they answered, whether tables changed.
        self.epoch: int | None = None
        self.asked: int | None = None
        self.stored = 0
        self.changed = False
        self.flushes = self.good = 0

    async def begin(self) -> None:
        dut = self.dut
        for name in ("written__valid", "written__payload", "changing", "now", "epoch__begun"):
            getattr(dut, name).value = 0
        dut.marked.value = dut.optimal.value = 0
        await start(dut)
        cocotb.start_soon(self._tables())
        cocotb.start_soon(self._run())

    def _asked(self, ports: int) -> None:
        assert self.epoch is not None, "drives are asked without an epoch"
        assert self.asked is None, "drives are asked twice"
        wanted = sum(1 << port for port in self.members[self.epoch])
        assert ports == wanted, f"array {self.epoch} has {wanted:b}, asked are {ports:b}"
        self.asked = ports

    async def _tables(self) -> None:
        """What the tables say, a cycle later."""
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            array = sample(dut.geometry_read__address)
            width, spans = SHAPES[array]
            member = unpack(member_address(CONFIG), sample(dut.member_read__address))
            members = self.members[member.array]
            dut.geometry_read__data.value = pack(
                geometry(CONFIG), valid=1, width=width, spans=spans
            )
            # A position that is no member says anything.
            port = members[member.position] if member.position < len(members) else 15
            dut.member_read__data.value = port

    async def _run(self) -> None:
        """Time passes; epochs begin and end."""
        dut = self.dut
        while True:
            await FallingEdge(dut.clk)
            wants = sample(dut.epoch__begins)
            number = sample(dut.epoch__array)
            grants = wants and self.settled and self.epoch is None and self.optimal >> number & 1
            dut.epoch__begun.value = bool(grants)
            if grants:
                self._begin_epoch(number)
            if self.epoch is not None and not grants:
                self.changed |= bool(self.changing)
            if sample(dut.epoch__ended):
                self._end_epoch(sample(dut.epoch__good))
            await RisingEdge(dut.clk)
            self.cycle += 1
            dut.now.value = self.cycle % (1 << TIME_BITS)
            for array in range(CONFIG.arrays):
                if not (self.marked & self.optimal) >> array & 1:
                    self.since[array] = self.cycle

    def _begin_epoch(self, number: int) -> None:
        assert not self.changing, "an epoch begins while the tables change"
        assert self.marked >> number & 1, f"array {number} has no marks"
        assert self.fresh[number], f"array {number} is flushed again, and was not written"
        idle = max(self.longest[number], self.cycle - self.written[number])
        assert idle >= IDLE, f"array {number} was written {idle} cycles ago"
        self.epoch, self.asked, self.changed = number, None, False
        self.fresh[number] = False
        self.longest[number] = 0
        self.flushes += 1

    def _end_epoch(self, good: int) -> None:
        assert self.asked is not None, "an epoch ends, and no drive was asked"
        stored = self.stored & self.asked == self.asked
        assert good == (stored and not self.changed), f"counts as {good}: {self.stored:b} stored"
        self.good += good
        self.epoch = self.asked = None

    async def write(self, number: int) -> None:
        self.dut.written__valid.value, self.dut.written__payload.value = 1, number
        await RisingEdge(self.dut.clk)
        self.dut.written__valid.value = 0
        self.longest[number] = max(self.longest[number], self.cycle - self.written[number])
        self.written[number] = self.cycle
        self.fresh[number] = True

    async def answer(self) -> None:
        """What has been asked is told, or a part of it."""
        while self.asked is None:
            await RisingEdge(self.dut.clk)
        for _ in range(self.random.choice((0, 0, 5, 100))):
            await RisingEdge(self.dut.clk)
        self.stored = self.asked
        if self.random.random() < 0.3:
            self.stored &= self.random.getrandbits(CONFIG.ports)
        self.tells.send(self.stored)
        await self.tells.drained()

    async def until(self, done: Callable[[], bool], cycles: int, what: str) -> None:
        for _ in range(cycles):
            if done():
                return
            await RisingEdge(self.dut.clk)
        raise AssertionError(f"{what} not after {cycles} cycles")


@cocotb.test(timeout_time=60, timeout_unit="ms")
async def flushes_what_is_idle(dut):
    """Writes, marks, states and changes of the tables at random."""
    bench = Bench(dut)
    await bench.begin()
    dut.marked.value, dut.optimal.value = bench.marked, bench.optimal

    async def answers() -> None:
        while True:
            await bench.answer()
            while bench.epoch is not None:
                await RisingEdge(dut.clk)

    cocotb.start_soon(answers())
    watch = BusyWatch(
        dut, ["told"], ["ask"],
        others=lambda: (
            bench.marked, bench.optimal, bench.changing, bench.epoch, sample(dut.written__valid)
        ),
    )  # fmt: skip
    for _ in range(ROUNDS):
        number = bench.random.randrange(CONFIG.arrays)
        match bench.random.randrange(6):
            case 0 | 1 | 2:
                for _ in range(bench.random.randrange(20)):
                    await bench.write(bench.random.randrange(CONFIG.arrays))
            case 3:
                bench.marked ^= 1 << number
                dut.marked.value = bench.marked
            case 4:
                bench.optimal ^= 1 << number
                dut.optimal.value = bench.optimal
                if not bench.optimal >> number & 1:
                    bench.fresh[number] = True
            case 5:
                for _ in range(2 * IDLE):
                    await RisingEdge(dut.clk)
                    if bench.epoch is not None:  # more often than not in the middle of one
                        break
                bench.changing = 1
                dut.changing.value = 1
                for _ in range(bench.random.choice((1, 5, 50))):
                    await RisingEdge(dut.clk)
                bench.changing = 0
                dut.changing.value = 0
        for _ in range(bench.random.choice((1, 30, IDLE // 2, 3 * IDLE))):
            await RisingEdge(dut.clk)
    watch.check()
    assert bench.flushes > 30 and 10 < bench.good < bench.flushes, (bench.flushes, bench.good)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def flushes_in_time(dut):
    """Whatever array has been idle for twice the time is flushed by then, while others are
    written. Nothing moves, and no time is waited for, once all have been."""
    bench = Bench(dut)
    await bench.begin()
    dut.marked.value, dut.optimal.value = bench.marked, bench.optimal
    for _ in range(20):
        number = bench.random.randrange(CONFIG.arrays)
        others = [array for array in range(CONFIG.arrays) if array != number]
        await bench.write(number)
        began = bench.cycle
        while bench.epoch != number:
            assert bench.cycle - began <= 2 * IDLE + SLACK, f"array {number} is not flushed"
            if bench.epoch is not None:
                await bench.answer()
                await bench.until(lambda: bench.epoch is None, 20, "the end of an epoch")
            else:
                await bench.write(bench.random.choice(others))
        await bench.answer()
        await bench.until(lambda: bench.epoch is None, 20, "the end of an epoch")
    for _ in range(4 * IDLE):
        if bench.epoch is not None:
            await bench.answer()
            await bench.until(lambda: bench.epoch is None, 20, "the end of an epoch")
        await RisingEdge(dut.clk)
    assert not any(bench.fresh), "an array has not been flushed"
    assert not sample(dut.busy)
    assert sample(dut.deadline) == (1 << TIME_BITS) - 1


TESTS = ["flushes_what_is_idle", "flushes_in_time"]


def test_idle_flush():
    simulate(IdleFlush(config=CONFIG), name="idle_flush", module=__name__, testcase=TESTS)


class NeverLooksAgain(IdleFlush):
    """Planted bug: a write does not make an array worth another flush."""

    def _watch(self, m) -> None:
        super()._watch(m)
        m.d.sync += self._tried.eq(self._tried)


class ForgetsWrites(IdleFlush):
    """Planted bug: arrays are flushed though they are being written."""

    def _watch(self, m) -> None:
        super()._watch(m)
        m.d.sync += self._recent.eq(0)


class AsksOneMember(IdleFlush):
    """Planted bug: only the last member is asked."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.ask.payload.eq(Const(1, 32) << self.member_read.data)
        return m


class IgnoresChanges(IdleFlush):
    """Planted bug: it does not matter that members may be others."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._changed.eq(0)
        return m


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        (IgnoresChanges, "counts as 1"),
        pytest.param(NeverLooksAgain, "array . is not flushed", marks=pytest.mark.slow),
        pytest.param(ForgetsWrites, "was written .* cycles ago", marks=pytest.mark.slow),
        pytest.param(AsksOneMember, "asked are", marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_found(bug, found):
    with pytest.raises(SimulationError, match=found):
        simulate(
            bug(config=CONFIG), name=f"idle_flush_{bug.__name__}", module=__name__, testcase=TESTS
        )
