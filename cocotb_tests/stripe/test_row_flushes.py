"""Flushes for rows: every row is told, by a flush of its array that began after it had come and has
all that it needs, however many rows of several arrays come and when. A drive that hangs holds up
its own array only."""

import os
import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import RisingEdge

from cocotb_tests.array.array_models import FLUSH_IGNORES, flush_operation
from cocotb_tests.busy import BusyWatch
from cocotb_tests.fields import check_fields
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    check_busy_after,
    cycles_pass,
    every_cycle,
    pack,
    sample,
    start,
    unpack,
)
from hdl.config import Config
from hdl.flow.operation import DriveStatus, Owner, finished, operation
from hdl.flow.recovery import tried_bits
from hdl.stripe.rows.row_flushes import RowFlushes, flush_for_row, flushed_row

CONFIGS = {
    "usual": Config(ports=8, rows=16, arrays=4, drive_resets=1),
    "two_ports": Config(ports=2, rows=8, arrays=2, drive_resets=1),
    # More arrays than there are rows or commands.
    "many_arrays": Config(ports=16, rows=8, commands=8, arrays=16, drive_resets=1),
}
CONFIG = CONFIGS[os.environ.get("CONFIG", "usual")]
FLUSH_ROUNDS = CONFIG.ports * (CONFIG.drive_resets + 2) + 1
"""Each drive is aborted, reset, and given up at last (docs/guarantees.md)."""
ROUNDS = 60
TOLD_CYCLES = 4_000
"""Cycles in which the last rows of a round are told."""
BESIDE_CYCLES = 120
"""Most cycles from a row that comes to its answer, with drives that answer at once. It may come as
a flush of its array has begun, and those of the other arrays take turns with it."""
TURN_CYCLES = 200
"""Twice as long as an array takes at most that has four rows at once, with such drives."""


@dataclass
class Flush:
    """A flush of an array: when it began, drives that have not answered, how each of the others did
    last, and how often it was asked. A row has been told of it."""

    began: int
    told: bool = False
    out: set[int] = field(default_factory=set)
    ends: dict[int, DriveStatus] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)
    restarts: dict[int, int] = field(default_factory=dict)
    """What operations have said."""
    needed: int = 0
    since: int = 0
    """Drives of the rows that it is for, and when the first of them came."""

    @property
    def stored(self) -> int:
        """Drives that have stored all, a bit a port."""
        good = (port for port, status in self.ends.items() if status == DriveStatus.GOOD)
        return sum(1 << port for port in good)


class Bench:
    """Rows of several arrays that ask, and drives that are flushed."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(os.environ["SEED"])
        self.free = list(range(CONFIG.rows))
        self.rows: list[deque[tuple[int, int, int]]] = [deque() for _ in range(CONFIG.arrays)]
        """Of each array, rows that have come and have not been told: slot, drives, and when."""
        self.array_of: dict[int, int] = {}
        self.flushes: dict[int, Flush] = {}
        self.cycle = self.told = self.begun = self.most = self.most_at_once = 0
        self.again = self.given_up = 0
        self.delay = 1
        self.aborts = 0.2
        self.hangs: set[int] = set()
        """Drives that end nothing."""
        self.longest = 0
        most = 1 << tried_bits(CONFIG)
        self.restarts = [self.random.randrange(most) for _ in range(CONFIG.ports)]
        for port, count in enumerate(self.restarts):
            getattr(dut, f"restarts__{port}").value = count
        self.request = StreamSource(dut, "request", layout=flush_for_row(CONFIG))
        self.ends = StreamSource(dut, "finished", layout=finished(CONFIG))
        self.asked = StreamSink(
            dut, "operation", layout=operation(CONFIG), callback=self._ask, ignores=FLUSH_IGNORES
        )
        self.done = StreamSink(dut, "done", layout=flushed_row(CONFIG), callback=self._done)
        self.restarted = [[(0, count)] for count in self.restarts]
        """Of each drive: since when it has restarted how often."""
        self.restart_rate = 0.0
        every_cycle(dut.clk, self._watch())

    def ports_of(self, array: int) -> list[int]:
        """No drive is of two arrays."""
        return [port for port in range(CONFIG.ports) if port % CONFIG.arrays == array]

    def come(self, array: int | None = None) -> None:
        """Another row needs some drives of its array."""
        array = self.random.randrange(CONFIG.arrays) if array is None else array
        slot = self.free.pop(self.random.randrange(len(self.free)))
        own = self.ports_of(array)
        needed = self.random.sample(own, self.random.randint(1, len(own)))
        self.request.send(slot=slot, array=array, ports=sum(1 << port for port in needed))

    def waiting(self) -> int:
        """Rows that have come and have not been told."""
        return sum(map(len, self.rows))

    def _watch(self) -> Iterator[None]:
        """Notes rows as they are taken."""
        dut, layout = self.dut, flush_for_row(CONFIG)
        valid, ready, payload = dut.request__valid, dut.request__ready, dut.request__payload
        while True:
            yield
            self.cycle += 1
            if sample(dut.finished__valid):
                assert sample(dut.finished__ready), "an end is not taken"
            if self.random.random() < self.restart_rate:
                port = self.random.randrange(CONFIG.ports)
                self.restarts[port] = (self.restarts[port] + 1) % (1 << tried_bits(CONFIG))
                self.restarted[port].append((self.cycle, self.restarts[port]))
                getattr(dut, f"restarts__{port}").value = self.restarts[port]
            if sample(valid):
                assert sample(ready), "there is always room"
                row = unpack(layout, sample(payload))
                self.rows[row.array].append((row.slot, row.ports, self.cycle))
                self.array_of[row.slot] = row.array

    def _ask(self, one) -> None:
        array, port = one.index, one.port
        wanted = flush_operation(
            port=port, owner=Owner.FLUSHER, index=array, place=1, restarts=one.recover.tried
        )
        check_fields(one, wanted | {"alone": 1}, "operation")
        assert port in self.ports_of(array), f"port {port} is not of array {array}"
        if array not in self.flushes or self.flushes[array].told:
            self.flushes[array] = Flush(self.cycle)
            for _, ports, _ in self.rows[array]:
                self.flushes[array].needed |= ports
            self.flushes[array].since = self.rows[array][0][2]
            self.begun += 1
            under_way = sum(not flush.told for flush in self.flushes.values())
            self.most_at_once = max(self.most_at_once, under_way)
        flush = self.flushes[array]
        assert port not in flush.out, f"port {port} is asked again"
        assert flush.needed >> port & 1, f"no row needs port {port}"
        counts = self.restarted[port]
        ends = [at for at, _ in counts[1:]] + [self.cycle + 1]
        possible = {count for (_, count), end in zip(counts, ends, strict=True)
                    if end >= flush.since}  # fmt: skip
        known = flush.restarts.setdefault(port, one.recover.tried)
        assert known in possible, "not how often it had restarted as the flush began"
        assert one.recover.tried == known, "restarts since the flush began are forgotten"
        if port in flush.ends:
            assert flush.ends[port] == DriveStatus.ABORTED, f"{flush.ends[port]} is sent again"
            assert not flush.out - set(flush.asked), "sent again before all have answered"
            self.again += 1
        flush.out.add(port)
        flush.asked[port] += 1
        cocotb.start_soon(self._flush(flush, array, one))

    async def _flush(self, flush: Flush, array: int, one) -> None:
        await cycles_pass(self.dut.clk, self.random.randint(1, self.delay))
        while one.port in self.hangs:
            await cycles_pass(self.dut.clk, 20)
        others = (DriveStatus.GONE, DriveStatus.MEDIUM_ERROR, *[DriveStatus.GOOD] * 4)
        status = self.random.choice(others)
        if self.random.random() < self.aborts:
            status = DriveStatus.ABORTED
        flush.ends[one.port] = status
        flush.out.remove(one.port)
        self.ends.send(
            port=one.port,
            opcode=one.opcode,
            owner=one.owner,
            index=array,
            place=one.place,
            status=status,
        )

    def _done(self, row) -> None:
        array = self.array_of.pop(row.slot)
        slot, ports, came = self.rows[array].popleft()
        flush = self.flushes[array]
        assert row.slot == slot, f"row {row.slot} is told, and {slot} came before it"
        assert came <= flush.began, f"row {slot} is told of a flush that began before it came"
        asked = sum(1 << port for port in flush.asked)
        assert ports & ~asked == 0, f"row {slot} needs {ports:b}, not {asked:b}"
        assert not flush.out, f"row {slot} is told before {flush.out} have answered"
        assert row.ports == flush.stored, f"row {slot} is told of another flush"
        for port, status in flush.ends.items():
            if status == DriveStatus.ABORTED:
                assert max(flush.asked.values()) == FLUSH_ROUNDS, f"port {port} is not asked again"
                self.given_up += 1
        flush.told = True
        self.free.append(slot)
        self.told += 1
        self.longest = max(self.longest, self.cycle - came)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def every_row_is_told(dut):
    """Rows come in any cycle, some as a flush begins, some while others are told."""
    bench = Bench(dut)
    watch = BusyWatch(dut, ["request", "finished"], ["operation", "done"])
    await start(dut)
    sent = 0
    for number in range(ROUNDS):
        bench.delay = bench.random.choice((1, 4, 12, 60))
        bench.restart_rate = 0.05
        bench.aborts = 0.97 if number % 8 == 7 else 0.2
        often = bench.random.choice((0.05, 0.3, 0.9))
        for port in (bench.asked, bench.done):
            port.active = bench.random.choice((1.0, 0.6, 0.2))
        for _ in range(bench.random.randrange(50, 300)):
            if bench.free and bench.random.random() < often:
                bench.come()
                sent += 1
            await RisingEdge(dut.clk)
            bench.most = max(bench.most, bench.waiting())
        for _ in range(TOLD_CYCLES):
            if bench.told == sent:
                break
            await RisingEdge(dut.clk)
        assert bench.told == sent, f"{bench.waiting()} rows wait for ever"
    await cycles_pass(dut.clk, 8)
    assert not sample(dut.busy), "busy though nobody waits"
    watch.check()
    dut._log.info(
        "%d rows, %d flushes, %d at once, %d sent again, %d given up; %d rows at once",
        sent, bench.begun, bench.most_at_once, bench.again, bench.given_up, bench.most,
    )  # fmt: skip
    assert bench.most == CONFIG.rows and bench.begun < sent
    at_once = min(CONFIG.arrays, CONFIG.rows // 2)
    assert bench.most_at_once >= at_once and bench.again and bench.given_up


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_drive_that_hangs_holds_up_its_array_only(dut):
    """Rows of three arrays are told while a drive of the fourth ends nothing, and many of its rows
    wait."""
    bench = Bench(dut)
    await start(dut)
    bench.aborts = 0.0
    bench.asked.active = bench.done.active = 1.0
    check_busy_after(dut, "request")
    check_busy_after(dut, "finished")
    bench.hangs = {*bench.ports_of(1)}
    for _ in range(CONFIG.rows // 2):
        bench.come(1)
    await cycles_pass(dut.clk, 200)
    assert not sample(dut.busy), "busy though only a drive is waited for"
    sent = 0
    for _ in range(200):
        if len(bench.free) > 2:
            bench.come(bench.random.choice((0, 2, 3)))
            sent += 1
        await cycles_pass(dut.clk, 25)
    await cycles_pass(dut.clk, 100)
    assert bench.told == sent > 150 and bench.waiting() == CONFIG.rows // 2
    assert bench.longest < BESIDE_CYCLES, f"{bench.longest} cycles"
    bench.hangs.clear()
    await cycles_pass(dut.clk, 300)
    assert not bench.waiting(), "rows wait for ever"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_reset_forgets_all(dut):
    """Rows of many arrays are inside as the reset comes."""
    for name in ("request__valid", "finished__valid", "operation__ready", "done__ready"):
        getattr(dut, name).value = 0
    await start(dut)
    dut.request__valid.value = dut.operation__ready.value = 1
    for slot in range(CONFIG.rows):
        dut.request__payload.value = pack(
            flush_for_row(CONFIG), slot=slot, array=slot % CONFIG.arrays,
            ports=(1 << CONFIG.ports) - 1,
        )  # fmt: skip
        await RisingEdge(dut.clk)
    dut.request__valid.value = 0
    await cycles_pass(dut.clk, 300)
    dut.rst.value = 1
    await cycles_pass(dut.clk, 4)
    bench = Bench(dut)
    dut.rst.value = 0
    arrays = min(CONFIG.arrays, CONFIG.rows)
    for array in range(arrays):
        bench.come(array)
    await cycles_pass(dut.clk, 2000)
    assert bench.told == arrays


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def arrays_take_turns(dut):
    """Rows of all arrays come as fast as can be, and none of them waits for long."""
    bench = Bench(dut)
    await start(dut)
    bench.aborts = 0.0
    bench.asked.active = bench.done.active = 1.0
    rows = max(1, CONFIG.rows // CONFIG.arrays)
    for _ in range(4000):
        for array in range(CONFIG.arrays):
            if len(bench.rows[array]) < rows and bench.request.idle and bench.free:
                bench.come(array)
        await RisingEdge(dut.clk)
    still = [bench.cycle - came for rows in bench.rows for _, _, came in rows]
    longest = max(bench.longest, *still)
    dut._log.info("%d rows, the slowest in %d cycles", bench.told, longest)
    assert bench.told > 10 * CONFIG.rows
    assert longest < CONFIG.arrays * TURN_CYCLES, f"a row waits {longest} cycles"


TESTS = [
    "every_row_is_told",
    "a_drive_that_hangs_holds_up_its_array_only",
    "a_reset_forgets_all",
    "arrays_take_turns",
]


def test_row_flushes():
    simulate(RowFlushes(config=CONFIG), name="row_flushes", module=__name__, testcase=TESTS)


@pytest.mark.parametrize("config", ["two_ports", "many_arrays"])
def test_sizes(config):
    simulate(
        RowFlushes(config=CONFIGS[config]),
        name=f"row_flushes_{config}",
        module=__name__,
        testcase=["every_row_is_told", "a_reset_forgets_all"],
        parameters={"CONFIG": config},
    )


class LowestFirst(RowFlushes):
    """Planted bug: arrays do not take turns."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._turn.eq(0)
        return m


class ForgetsRestarts(RowFlushes):
    """Planted bug: a drive may restart between the beginning of a flush and its FLUSH."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        for before, restarts in zip(self._before, self.restarts, strict=True):
            m.d.sync += before.eq(restarts)
        return m


class JoinsTheFlush(RowFlushes):
    """Planted bug: a row that comes while its array is being flushed is told of that flush."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        joins = self._requests.output.ready & self._flies.bit_select(self._array, 1)
        with m.If(joins):
            m.d.sync += [
                self._due.bit_select(self._array, 1).eq(self._lane.waiting != 0),
                self._lane.left.eq(self._lane.left + 1),
                self._lane.waiting.eq(self._lane.waiting),
            ]
        return m


class AsksForTheLast(RowFlushes):
    """Planted bug: only what the last row needs is flushed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self._requests.output.ready):
            m.d.sync += self._lane.needed.eq(self._requests.output.payload.ports)
        return m


class OneAtATime(RowFlushes):
    """Planted bug: no flush begins while that of another array is under way."""

    def _rest(self, m: Module) -> None:
        due = self._due
        self._due = due & ~self._flies.any().replicate(len(due))
        super()._rest(m)
        self._due = due


class ForgetsAborts(RowFlushes):
    """Planted bug: a FLUSH that was aborted is not sent again."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self._ends.output.ready):
            m.d.sync += self._lane.again.eq(0)
        return m


@pytest.mark.parametrize(
    ("broken", "testcase"),
    [
        (JoinsTheFlush, TESTS[0]),
        (LowestFirst, TESTS[3]),
        pytest.param(OneAtATime, TESTS[1], marks=pytest.mark.slow),
        pytest.param(ForgetsRestarts, TESTS[0], marks=pytest.mark.slow),
        pytest.param(AsksForTheLast, TESTS[0], marks=pytest.mark.slow),
        pytest.param(ForgetsAborts, TESTS[0], marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_found(broken, testcase):
    with pytest.raises(SimulationError, match=f"failed: .*{testcase}"):
        simulate(
            broken(config=CONFIG),
            name=f"row_flushes_{broken.__name__}",
            module=__name__,
            testcase=TESTS,
        )
