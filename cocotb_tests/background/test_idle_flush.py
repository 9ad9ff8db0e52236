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
from hdl.background.epochs import SETTLE_CYCLES
from hdl.background.idle_flush import IdleFlush
from hdl.background.intent import flight, marking
from hdl.config import TIME_BITS, Config
from hdl.flow.geometry import geometry
from hdl.flow.table_read import member_address

CONFIG = Config(
    ports=16, rows=16, arrays=4, lines=64, intent_chunks=32, metadata=True, marks_idle_us=1,
    checkpoint_us=2,
    clock_hz=100_000_000,
)  # fmt: skip
IDLE = CONFIG.clock_hz // 1_000_000
CHECKPOINT = CONFIG.checkpoint_us * CONFIG.clock_hz // 1_000_000
FINDS = 2 * 6 + 2 * CONFIG.rows + 30
"""Most cycles from the beginning of a flush until drives are asked: two for a member and two for a
row slot, and some until the bench takes it."""
SLACK = CONFIG.arrays * (FINDS + SETTLE_CYCLES)
"""Cycles beyond twice the idle time until a flush begins, but for those in which drives are
flushed."""

ROUNDS = 300
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
        self.marked, self.optimal, self.able, self.changing = every, every, every, 0
        self.partial = 0
        self.boundaries = [0] * CONFIG.arrays
        self.unsynced = self.failed = self.failed_before = self.failed_at = 0
        self.settled = True
        self.cycle = 0
        # Of each array: when it was written last, since when it could be flushed, the longest time
        # without a write since its last flush, and whether it is to be flushed at all.
        self.written = [0] * CONFIG.arrays
        self.since = [0] * CONFIG.arrays
        self.longest = [0] * CONFIG.arrays
        self.fresh = [True] * CONFIG.arrays
        self.freshened = [0] * CONFIG.arrays
        # The epoch: its array, drives that were asked, how they answered, whether tables changed.
        self.epoch: int | None = None
        self.asked: int | None = None
        self.stored = 0
        self.changed = False
        self.flushes = self.good = 0
        # What row slots write: an array, and whether it is a walk; those whose row is marked. Of
        # each array: when a row of it was marked last, it was not able, or tables changed. When its
        # drives were asked last, if no row was being written and they have stored what they had.
        self.flights: dict[int, tuple[int, bool]] = {}
        self.begun: set[int] = set()
        self.flew = False
        self.calm = [0] * CONFIG.arrays
        self.was_asked = [0] * CONFIG.arrays
        self.idle = 0
        self.times_idle = self.answered = self.checkpoints = 0
        self.flushed_times = [0] * CONFIG.arrays
        self.asks_of, self.asked_at = 0, 0
        self.pulsing = False

    async def begin(self) -> None:
        dut = self.dut
        for name in ("written__valid", "written__payload", "changing", "now", "epoch__begun"):
            getattr(dut, name).value = 0
        for name in ("marked", "optimal", "partial", "able", "unsynced", "failed", "made__valid"):
            getattr(dut, name).value = 0
        await start(dut)
        cocotb.start_soon(self._tables())
        cocotb.start_soon(self._run())

    def show(self) -> None:
        """How arrays are."""
        for name in ("marked", "optimal", "partial", "able", "unsynced", "failed", "changing"):
            getattr(self.dut, name).value = getattr(self, name)

    def _asked(self, ports: int) -> None:
        assert self.asked is None, "drives are asked twice"
        number = self.epoch
        if number is None:  # an array without marks, or that is not OPTIMAL
            number = next(
                number for number, members in enumerate(self.members)
                if any(ports >> port & 1 for port in members)
            )  # fmt: skip
        wanted = sum(1 << port for port in self.members[number])
        known = [self.failed]
        if self.cycle - self.failed_at < FINDS:
            known.append(self.failed_before)
        asked = f"array {number} has {wanted:b} but {self.failed:b}, asked are {ports:b}"
        assert ports in [wanted & ~failed for failed in known], asked
        if self.epoch is None:
            self._weigh_flush(number)
            # Perhaps that was since it began.
            self.fresh[number] = self.cycle - self.freshened[number] < FINDS
        self.asked, self.asks_of, self.asked_at = ports, number, self.cycle
        self.flushed_times[number] += 1
        self.flew = any(self.flights[slot] == (number, False) for slot in self.begun)

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
            dut.boundary_read__data.value = self.boundaries[sample(dut.boundary_read__address)]
            array, walk = self.flights.get(slot := sample(dut.flight_read__address), (0, 0))
            dut.flight_read__data.value = pack(
                flight(CONFIG), any=slot in self.flights, array=array, walk=walk
            )

    async def _run(self) -> None:
        """Time passes; epochs begin and end."""
        dut = self.dut
        while True:
            await FallingEdge(dut.clk)
            wants = sample(dut.epoch__begins)
            number = sample(dut.epoch__array)
            may = (self.optimal | self.partial) >> number & 1
            grants = wants and self.settled and self.epoch is None and may
            dut.epoch__begun.value = bool(grants)
            if grants:
                self._begin_epoch(number)
            if self.epoch is not None and not grants:
                self.changed |= bool(self.changing)
            if sample(dut.epoch__ended):
                self._end_epoch(sample(dut.epoch__good))
            self._look_at_idle(sample(dut.idle))
            await RisingEdge(dut.clk)
            self.cycle += 1
            dut.now.value = self.cycle % (1 << TIME_BITS)
            for array in range(CONFIG.arrays):
                if not (self.marked & self.optimal) >> array & 1:
                    self.since[array] = self.cycle

    def _look_at_idle(self, idle: int) -> None:
        """An array is idle as all its drives have stored what they had, and until then nothing has
        happened since before they were asked."""
        for number in range(CONFIG.arrays):
            if (idle & ~self.idle) >> number & 1:
                asked = self.was_asked[number]
                assert asked, f"array {number} is idle, and was not flushed"
                assert asked >= self.calm[number], f"array {number} is idle, and was not calm"
                self.times_idle += 1
                self.was_asked[number] = 0
            if self.changing or not self.able >> number & 1:
                self.freshen(number)
                self.calm[number] = self.cycle
        self.idle = idle

    def freshen(self, number: int) -> None:
        """The array may be flushed once more."""
        self.fresh[number], self.freshened[number] = True, self.cycle

    def _weigh_flush(self, number: int) -> None:
        """The array has not been written for long enough, unless it is being rebuilt."""
        again = (self.marked & self.partial) >> number & 1 or self.fresh[number]
        assert again, f"array {number} is flushed again, and was not written"
        idle = max(self.longest[number], self.cycle - self.written[number])
        rebuilt = (self.marked & self.partial) >> number & 1
        assert idle >= IDLE or rebuilt, f"array {number} was written {idle} cycles ago"
        self.checkpoints += bool(rebuilt)
        self.fresh[number] = False
        self.longest[number] = 0
        self.flushes += 1

    def _begin_epoch(self, number: int) -> None:
        assert not self.changing, "an epoch begins while the tables change"
        assert self.marked >> number & 1, f"array {number} has no marks"
        self._weigh_flush(number)
        rows, boundary = sample(self.dut.epoch__rows), self.boundaries[number]
        assert rows == boundary, f"array {number} has been rebuilt up to {boundary}, not {rows}"
        self.epoch, self.changed = number, False

    def _end_epoch(self, good: int) -> None:
        assert self.asked is not None, "an epoch ends, and no drive was asked"
        stored = self.stored & self.asked == self.asked
        assert good == (stored and not self.changed), f"counts as {good}: {self.stored:b} stored"
        self.good += good
        self.epoch = None

    async def write(self, number: int, *, walk: bool = False, cycles: int = 3) -> None:
        """A row is written, by a host or a walk."""
        free = [slot for slot in range(CONFIG.rows) if slot not in self.flights]
        if not free:
            return
        slot = self.random.choice(free)
        self.flights[slot] = number, walk
        await self._pulse(number, walk)
        self.begun.add(slot)
        for _ in range(cycles):
            await RisingEdge(self.dut.clk)
        self.begun.remove(slot)
        del self.flights[slot]
        await self._pulse(number, walk)

    async def _pulse(self, number: int, walk: bool) -> None:
        while self.pulsing:
            await RisingEdge(self.dut.clk)
        self.pulsing = True
        self.dut.written__valid.value = 1
        self.dut.written__payload.value = pack(marking(CONFIG), array=number, walk=walk)
        await RisingEdge(self.dut.clk)
        self.dut.written__valid.value = 0
        self.pulsing = False
        self.freshen(number)
        if walk:
            return
        self.longest[number] = max(self.longest[number], self.cycle - self.written[number])
        self.written[number] = self.calm[number] = self.cycle
        self.idle &= ~(1 << number)

    async def answer(self) -> None:
        """What has been asked is told, or a part of it."""
        while self.asked is None:
            await RisingEdge(self.dut.clk)
        for _ in range(self.random.choice((0, 0, 5, 100))):
            await RisingEdge(self.dut.clk)
        self.stored = self.asked
        if self.random.random() < 0.3:
            self.stored &= self.random.getrandbits(CONFIG.ports)
        good = self.stored == self.asked and not self.flew
        self.was_asked[self.asks_of] = self.asked_at if good else 0
        self.tells.send(self.stored)
        await self.tells.drained()
        self.answered += 1
        while self.epoch is not None:
            await RisingEdge(self.dut.clk)
        self.asked = None

    async def answers(self) -> None:
        """All flushes are answered."""
        while True:
            await self.answer()

    async def loses_idleness(self, number: int) -> None:
        """Rows of the array are not in sync."""
        await self.until(lambda: not sample(self.dut.idle) >> number & 1, 3, "it is not idle")

    async def until(self, done: Callable[[], bool], cycles: int, what: str) -> None:
        for _ in range(cycles):
            if done():
                return
            await RisingEdge(self.dut.clk)
        raise AssertionError(f"{what} not after {cycles} cycles")


@cocotb.test(timeout_time=90, timeout_unit="ms")
async def flushes_what_is_idle(dut):
    """Writes, marks, states and changes of the tables at random."""
    bench = Bench(dut)
    await bench.begin()
    choose = bench.random
    bench.show()
    cocotb.start_soon(bench.answers())
    watch = BusyWatch(
        dut, ["told"], ["ask"],
        others=lambda: (
            bench.marked, bench.optimal, bench.able, bench.unsynced, bench.changing, bench.epoch,
            sample(dut.written__valid),
        ),
    )  # fmt: skip
    for _ in range(ROUNDS):
        number = choose.randrange(CONFIG.arrays)
        match choose.randrange(9):
            case 0 | 1 | 2:
                for _ in range(choose.randrange(10)):
                    cycles, walk = choose.choice((3, 3, 3, 100, 5 * IDLE)), choose.random() < 0.3
                    array = choose.randrange(CONFIG.arrays)
                    cocotb.start_soon(bench.write(array, walk=walk, cycles=cycles))
                    for _ in range(choose.randrange(10)):
                        await RisingEdge(dut.clk)
            case 3:
                bench.marked ^= 1 << number
            case 4:
                bench.optimal ^= 1 << number
                bench.partial &= ~bench.optimal
                bench.freshen(number)
            case 8:
                bench.partial ^= ~bench.optimal & (1 << number)
                bench.freshen(number)
                bench.boundaries[number] = choose.getrandbits(32)
            case 5:
                # That ends a flush badly, so none is under way.
                fails = bench.failed ^ 1 << choose.choice(bench.members[number])
                some = any(not fails >> port & 1 for port in bench.members[number])
                if some and bench.asked is None:
                    bench.failed_before, bench.failed_at = bench.failed, bench.cycle
                    bench.failed = fails
            case 6:
                bench.able ^= 1 << number
                if choose.random() < 0.5:
                    bench.unsynced |= (1 << number) & ~bench.able
                bench.unsynced &= ~bench.able
            case 7:
                for _ in range(2 * IDLE):
                    await RisingEdge(dut.clk)
                    if bench.asked is not None:  # more often than not in the middle of a flush
                        break
                dips = (1 << bench.asks_of) & bench.able
                bench.changing = choose.random() < 0.5 or not dips
                bench.able ^= 0 if bench.changing else dips
                bench.show()
                for _ in range(choose.choice((1, 5, 50))):
                    await RisingEdge(dut.clk)
                bench.able ^= 0 if bench.changing else dips
                bench.changing = 0
        bench.show()
        if bench.unsynced >> number & 1:
            await bench.loses_idleness(number)
        for _ in range(choose.choice((1, 30, IDLE // 2, 3 * IDLE))):
            await RisingEdge(dut.clk)
    watch.check()
    print(f"{bench.flushes} flushes, {bench.good} good epochs, {bench.times_idle} times idle")
    assert bench.flushes > 30 and 10 < bench.good < bench.flushes, (bench.flushes, bench.good)
    assert bench.times_idle > 20, bench.times_idle
    assert bench.checkpoints > 5, bench.checkpoints


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def flushes_in_time(dut):
    """Whatever array has been idle for twice the time is flushed by then, while others are
    written, whether it has marks or not. All are idle at the end, and a new array is not. Nothing
    moves, and no time is waited for."""
    bench = Bench(dut)
    await bench.begin()
    cocotb.start_soon(bench.answers())
    for _ in range(20):
        number = bench.random.randrange(CONFIG.arrays)
        others = [array for array in range(CONFIG.arrays) if array != number]
        bench.optimal = bench.random.getrandbits(CONFIG.arrays)
        bench.show()
        await bench.write(number)
        cycles, before = 0, bench.flushed_times[number]
        while bench.flushed_times[number] == before:
            assert cycles <= 2 * IDLE + SLACK, f"array {number} is not flushed"
            began = bench.cycle
            await bench.write(bench.random.choice(others))
            cycles += (bench.cycle - began) * (bench.asked is None)
        await bench.until(lambda: bench.asked is None, 400, "the end of a flush")
    for _ in range(100 * IDLE):
        if sample(dut.idle) == (1 << CONFIG.arrays) - 1:
            break
        if bench.random.random() < 1 / (4 * IDLE):  # a drive has not stored what it had
            for array in range(CONFIG.arrays):
                if not sample(dut.idle) >> array & 1:
                    await bench.write(array)
        await RisingEdge(dut.clk)
    assert sample(dut.idle) == (1 << CONFIG.arrays) - 1, "an array is not idle"
    for _ in range(4 * IDLE):
        await RisingEdge(dut.clk)
    assert not sample(dut.busy)
    assert sample(dut.deadline) == (1 << TIME_BITS) - 1
    dut.made__valid.value, dut.made__payload.value = 1, 2
    await RisingEdge(dut.clk)
    dut.made__valid.value = 0
    bench.freshen(2)
    bench.idle &= ~4
    await bench.until(lambda: not sample(dut.idle) >> 2 & 1, 3, "the new array is in use")
    before = bench.flushed_times[2]
    flushed = 2 * IDLE + SLACK
    await bench.until(lambda: bench.flushed_times[2] > before, flushed, "a flush of the new array")
    # Nobody writes an array that is being rebuilt, and it is flushed again and again.
    bench.optimal, bench.partial = bench.optimal & ~1, 1
    bench.show()
    began, first = bench.cycle, bench.flushed_times[0]
    several = 4 * (CHECKPOINT + 2 * SLACK)
    await bench.until(lambda: bench.flushed_times[0] == first + 4, several, "four checkpoints")
    assert bench.cycle - began > 2 * CHECKPOINT, "checkpoints come too fast"


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


class OverlooksRows(IdleFlush):
    """Planted bug: an array is idle though rows are being written as its drives are flushed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._moves.eq(0)
        return m


class OverlooksStates(IdleFlush):
    """Planted bug: an array is idle though its drives were not good all the time."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._unable.eq(0)
        return m


class BelievesDrives(IdleFlush):
    """Planted bug: it does not matter what drives have stored."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.ask.valid & self.ask.ready):
            m.d.sync += self._ports.eq(0)
        return m


class WaitsForMarks(IdleFlush):
    """Planted bug: an array that is being rebuilt is not flushed again before a row is marked."""

    @property
    def _rebuilt(self):
        return super()._rebuilt & ~self._tried


class AsksFailedDrives(IdleFlush):
    """Planted bug: drives are asked that have failed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.ask.payload.eq(self._ports | self.failed)
        return m


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        (OverlooksRows, "is idle, and was not"),
        pytest.param(OverlooksStates, "is idle, and was not", marks=pytest.mark.slow),
        pytest.param(AsksFailedDrives, "asked are", marks=pytest.mark.slow),
        pytest.param(WaitsForMarks, "four checkpoints", marks=pytest.mark.slow),
        pytest.param(BelievesDrives, "counts as 1|is idle, and was not", marks=pytest.mark.slow),
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
