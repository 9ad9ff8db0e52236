"""Row walker against the reference layout: every row once and in order, ends in any order."""

import os
import random
from collections.abc import Iterator

import cocotb
import pytest
from amaranth.hdl import Module

from cocotb_tests.array.array_models import Table, pack_geometry
from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    every_cycle,
    sample,
    start,
    wait_until,
)
from hdl.background.row_order import RowOrder
from hdl.background.walker import SliceEnd, Walker, finding, slice_request
from hdl.config import BLOCK_NUMBER_BITS, Config, small
from hdl.flow.walk import MEND_TAG, WalkKind, WalkResult, walk, walked
from sim.card.layouts import random_layout
from sim.golden.layout import Layout

CONFIGS = {"board": Config(walk_window=32, intent_chunks=32), "small": small()}
SLICES = 100
MOST_ROWS = 60
"""Rows of most arrays; the others begin far up, near their last row."""
START_CYCLES = 700
CYCLES_PER_ROW = 4


class Bench:
    """Arrays, an engine that ends rows in any order, and what must have been walked."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut = dut
        self.config = config
        self.generator = generator
        self.geometries = Table(dut, "geometry_read")
        self.slices = StreamSource(dut, "slice", layout=slice_request(config))
        self.slice_ends = StreamSink(dut, "slice_end", layout=SliceEnd)
        self.walks = StreamSink(
            dut,
            "walk",
            layout=walk(config),
            callback=self._ask,
            ignores={"era": "of a source but 0"},
        )
        self.ends = StreamSource(dut, "walked", layout=walked(config))
        self.findings = StreamSink(dut, "finding", layout=finding(config), callback=self._find)
        self.expected: list[tuple[int, int, int]] = []
        self.out: dict[int, tuple[int, int, int]] = {}
        self.found: list[dict] = []
        self.rows_out: list[int] = []
        self.most_out = 0
        self.limit = 0
        self.followed = 0
        """Rows of which it was said that the next one follows."""
        self.fails = False
        self.fault_rate = 0.1
        self.late = 0.3
        self.kind = WalkKind.CHECK
        self.array = 0
        dut.stop.value = 0
        dut.hold.value = 0
        every_cycle(dut.clk, self._engine())

    def _ask(self, seen) -> None:
        assert self.expected, f"nothing expected, got {seen}"
        key = (seen.base, seen.shift, seen.row)
        assert key == self.expected.pop(0), f"{seen}: out of order"
        assert seen.tag not in self.out, f"tag {seen.tag} is out twice"
        assert (seen.kind, seen.array, seen.source) == (self.kind, self.array, 0)
        assert not seen.more or seen.row + 1 < self.limit, "no row follows"
        self.followed += seen.more
        self.out[seen.tag] = key
        self.most_out = max(self.most_out, len(self.out))

    def _find(self, seen) -> None:
        wanted = self.found.pop(0)
        assert {name: seen[name] for name in wanted} == wanted
        assert (seen.kind, seen.array) == (self.kind, self.array)

    def _engine(self) -> Iterator[None]:
        generator = self.generator
        while True:
            yield
            boundary = sample(self.dut.boundary)
            if sample(self.dut.walking):
                assert all(row >= boundary for _, _, row in self.out.values()), "passed a row"
            if not self.ends.idle or generator.random() < self.late:
                continue
            if self.expected and generator.random() < 0.05:
                result = generator.choice(list(WalkResult))
                self.ends.send(tag=MEND_TAG, result=result, roles=1)
            if not self.out:
                continue
            tag = generator.choice(list(self.out))
            base, shift, row = self.out.pop(tag)
            result = WalkResult.GOOD
            if generator.random() < self.fault_rate:
                result = generator.choice((WalkResult.MENDED, WalkResult.MISMATCH, WalkResult.LOST))
            if self.fails and generator.random() < 0.1:
                result = WalkResult.FAILED
                self.rows_out.append(row)
            roles = generator.getrandbits(32)
            if result != WalkResult.GOOD:
                fields = {"base": base, "shift": shift, "row": row}
                self.found.append({**fields, "result": result, "roles": roles})
            self.ends.send(tag=tag, result=result, roles=roles)

    def create(self, array: int, layout: Layout, rows: int) -> None:
        self.array = array
        self.geometries.entries[array] = pack_geometry(self.config, layout, rows)

    async def walk(
        self,
        layout: Layout,
        first: int,
        rows: int,
        *,
        stop_after: int | None = None,
        end_row: int = 0,
    ):
        """Walks one slice, up to ``end_row`` if it is not 0; its end."""
        dut = self.dut
        self.rows_out = []
        self.limit = limit = min(end_row, rows) if end_row else rows
        self.expected = [
            (base, shift, row)
            for row in range(first, limit)
            for base, shift in layout.rows_at(row, rows)
        ]
        fields = {"end": end_row} if self.config.intent_chunks else {}
        self.slices.send(kind=self.kind, array=self.array, first=first, **fields)
        if stop_after is not None:
            await cycles_pass(dut.clk, stop_after)
            dut.stop.value = 1
        cycles = START_CYCLES + 40 * CYCLES_PER_ROW * (len(self.expected) + rows - first + 1)
        end = await self.slice_ends.receive(cycles=cycles)
        dut.stop.value = 0
        assert not self.out, "ended with rows on their way"
        if end.complete:
            assert not self.expected and end.row == rows == limit
        elif end.row == limit and not end.failed:
            # Its part is done. The last rows of an array may begin no strip.
            assert not self.expected
        else:
            assert stop_after is not None or end.failed
            assert first <= end.row <= rows
            # Nothing below the row was left out, and but for a failure nothing above was begun
            # without having ended.
            assert all(row >= end.row for _, _, row in self.expected)
        if end.failed:
            assert self.rows_out and end.row <= min(self.rows_out)
        else:
            assert not self.rows_out
        if not end.complete and not end.failed and self.expected:
            left = self.expected[0][2]
            between = range(end.row, left)
            assert not any(layout.rows_at(row, rows) for row in between), "a row was forgotten"
        return end

    async def at_rest(self) -> None:
        self.expected = []
        await self.ends.drained()
        await cycles_pass(self.dut.clk, 4)
        assert not self.found and self.findings.idle, "findings are left over"
        assert not sample(self.dut.outstanding)
        assert sample(self.dut.busy) == 0, "busy at rest"


def random_rows(generator: random.Random, layout: Layout) -> tuple[int, int]:
    """First row and rows of an array."""
    most = ((1 << BLOCK_NUMBER_BITS) - 1) // layout.drives // layout.strip_blocks
    least = MOST_ROWS // layout.strip_blocks + 1
    stripes = generator.randint(1, min(most, generator.choice((least, least, 1 << 40))))
    rows = stripes * layout.strip_blocks
    near = generator.randint(max(0, rows - MOST_ROWS), rows - 1)
    return (0 if rows <= MOST_ROWS and generator.random() < 0.4 else near), rows


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def walks_like_the_reference(dut):
    generator = random.Random(int(os.environ["SEED"]))
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, generator)
    watch = BusyWatch(
        dut,
        ["slice", "walked"],
        ["walk", "slice_end", "finding"],
        others=lambda: (sample(dut.stop), sample(dut.hold)),
    )
    await start(dut)
    ends = {"complete": 0, "stopped": 0, "failed": 0}
    parts = 0
    for number in range(SLICES):
        layout = random_layout(generator, drives=generator.choice((6, 32)))
        first, rows = random_rows(generator, layout)
        bench.create(number % config.arrays, layout, rows)
        bench.kind = generator.choice(list(WalkKind))
        bench.fails = generator.random() < 0.2
        bench.late = generator.choice((0.0, 0.3, 0.97))
        bench.walks.active = generator.choice((1.0, 0.2))
        bench.findings.active = generator.choice((1.0, 0.2))
        stop_after = generator.choice((None, None, generator.randrange(400)))
        while True:
            end_row = 0
            if config.intent_chunks and generator.random() < 0.3:
                end_row = generator.randint(first + 1, rows + 3)
            end = await bench.walk(layout, first, rows, stop_after=stop_after, end_row=end_row)
            ends["complete" if end.complete else "failed" if end.failed else "stopped"] += 1
            parts += not end.complete and end.row == end_row
            await bench.at_rest()
            if end.complete:
                break
            assert not end.failed or bench.fails
            assert first < end.row or end_row == 0 or stop_after is not None or end.failed
            first, stop_after, bench.fails = end.row, None, False
    dut._log.info("%s, %d parts, at most %d rows at once", ends, parts, bench.most_out)
    assert parts > 5 or not config.intent_chunks
    assert all(ends.values()) and bench.most_out >= config.walk_window - 2
    assert bench.followed
    watch.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def holds_and_keeps_its_rate(dut):
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    bench.late, bench.fault_rate = 0.0, 0.0
    await start(dut)
    layout = Layout("RAID6", 8, 16)
    bench.create(1, layout, 96)
    walk_task = cocotb.start_soon(bench.walk(layout, 0, 96))
    await wait_until(dut, lambda: bench.walks.received > 4, cycles=START_CYCLES, what="rows")
    dut.hold.value = 1
    await cycles_pass(dut.clk, 200)
    held = bench.walks.received
    assert not bench.out and sample(dut.busy) == 0, "a held walker is at rest"
    await cycles_pass(dut.clk, 20)
    assert bench.walks.received == held
    dut.hold.value = 0
    cycles = await wait_until(dut, lambda: not bench.expected, cycles=1000, what="rows")
    each = cycles / (96 - held)
    dut._log.info("%.1f cycles a row", each)
    assert each <= CYCLES_PER_ROW
    await walk_task
    await bench.at_rest()


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=[] if config == "board" else [pytest.mark.slow])
        for config in CONFIGS
    ],
)
def test_walker(config):
    simulate(
        Walker(config=CONFIGS[config]),
        name=f"walker_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


class EndsEveryRow(RowOrder):
    """Planted bug: the first span of a row, or its first strip, counts as its last."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self.places.payload.ends.eq(1)
        return m


class NeverTurns(RowOrder):
    """Planted bug: parity stays where it is in stripe 0."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.geometry.parities == 1):
            m.d.sync += self.places.payload.shift.eq(0)
        return m


class PassesRows(Walker):
    """Planted bug: the boundary passes rows that are on their way."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.issued):
            m.d.sync += self.boundary.eq(self.boundary + 1)
        return m


@pytest.mark.parametrize(
    "bug",
    [
        EndsEveryRow,
        *(pytest.param(bug, marks=pytest.mark.slow) for bug in (NeverTurns, PassesRows)),
    ],
)
def test_planted_bugs_are_found(bug, monkeypatch):
    if issubclass(bug, RowOrder):
        monkeypatch.setattr("hdl.background.walker.RowOrder", bug)
    with pytest.raises(SimulationError, match="walks_like_the_reference"):
        simulate(
            (Walker if issubclass(bug, RowOrder) else bug)(config=CONFIGS["board"]),
            name=f"walker_{bug.__name__}",
            module=__name__,
            testcase="walks_like_the_reference",
            parameters={"CONFIG": "board"},
        )
