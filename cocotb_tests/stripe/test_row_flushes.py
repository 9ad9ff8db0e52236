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
    cycles_pass,
    every_cycle,
    sample,
    start,
    unpack,
)
from hdl.config import Config
from hdl.flow.operation import DriveStatus, Owner, finished, operation
from hdl.flow.recovery import tried_bits
from hdl.stripe.rows.row_flushes import RowFlushes, flush_for_row, flushed_row

CONFIG = Config(ports=8, rows=16, arrays=4, drive_resets=1)
FLUSH_ROUNDS = CONFIG.ports * (CONFIG.drive_resets + 2) + 1
"""Each drive is aborted, reset, and given up at last (docs/guarantees.md)."""
ROUNDS = 60
TOLD_CYCLES = 4_000
"""Cycles in which the last rows of a round are told."""
BESIDE_CYCLES = 120
"""Most cycles from a row that comes to its answer, with drives that answer at once. It may come as
a flush of its array has begun, and those of the other arrays take turns with it."""


@dataclass
class Flush:
    """A flush of an array: when it began, drives that have not answered, how each of the others did
    last, and how often it was asked. A row has been told of it."""

    began: int
    told: bool = False
    out: set[int] = field(default_factory=set)
    ends: dict[int, DriveStatus] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)

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
            if sample(valid):
                assert sample(ready), "there is always room"
                row = unpack(layout, sample(payload))
                self.rows[row.array].append((row.slot, row.ports, self.cycle))
                self.array_of[row.slot] = row.array

    def _ask(self, one) -> None:
        array, port = one.index, one.port
        wanted = flush_operation(
            port=port, owner=Owner.FLUSHER, index=array, place=1, restarts=self.restarts[port]
        )
        check_fields(one, wanted | {"alone": 1}, "operation")
        assert port in self.ports_of(array), f"port {port} is not of array {array}"
        if array not in self.flushes or self.flushes[array].told:
            self.flushes[array] = Flush(self.cycle)
            self.begun += 1
            under_way = sum(not flush.told for flush in self.flushes.values())
            self.most_at_once = max(self.most_at_once, under_way)
        flush = self.flushes[array]
        assert port not in flush.out, f"port {port} is asked again"
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
    assert bench.most_at_once == CONFIG.arrays and bench.again and bench.given_up


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_drive_that_hangs_holds_up_its_array_only(dut):
    """Rows of three arrays are told while a drive of the fourth ends nothing, and many of its rows
    wait."""
    bench = Bench(dut)
    await start(dut)
    bench.aborts = 0.0
    bench.asked.active = bench.done.active = 1.0
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


TESTS = ["every_row_is_told", "a_drive_that_hangs_holds_up_its_array_only"]


def test_row_flushes():
    simulate(RowFlushes(config=CONFIG), name="row_flushes", module=__name__, testcase=TESTS)


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
        (OneAtATime, TESTS[1]),
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
