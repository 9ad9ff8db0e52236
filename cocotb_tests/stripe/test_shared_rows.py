"""Lines and operations of two arrays with shares (`hdl.stripe.planning.row_planning`)."""

import os
from collections import Counter
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import StreamSink
from cocotb_tests.stripe import sequencer_bench
from cocotb_tests.stripe.sequencer_bench import random_rows, some_rows
from cocotb_tests.stripe.stripe_models import ArrayModel
from cocotb_tests.stripe.walk_bench import WalkBench
from hdl.config import Config
from hdl.flow.row import RowKind
from hdl.flow.walk import WalkKind
from hdl.stripe.planning.row_planning import RowPlanning
from hdl.stripe.rows.sequencer import Sequencer

CONFIG = replace(
    sequencer_bench.CONFIG, lines=128, rows=128, commands=128, operations=512, walk_window=2,
    queue_pairs=1, queue_depth=128, sector_emulation=False, array_shares=True,
)  # fmt: skip
SHARE = 22
"""Of 128 lines half are for data, and 20 are never shared; 8 are kept for each of two arrays, and
half of the other 28 may be one's."""

ARRAYS = {
    "raid6": sequencer_bench.ARRAYS["raid6_wide"],
    "mirrors": ArrayModel(width=8, copies=8, ports=(3, 1, 7, 5, 0, 2, 4, 6)),
}
SPAN = 24
SECTORS = replace(CONFIG, sector_emulation=True, transfer_blocks=16)


class Bench(WalkBench):
    """Each row that is asked to be mended is counted, and the most that rows ever have."""

    def __init__(self, dut, array: ArrayModel, *, seed: int, config: Config = CONFIG):
        self.mends: Counter[int] = Counter()
        self.most_lines = self.most_operations = 0
        super().__init__(dut, config, array, seed=seed, active=0.6)
        cocotb.start_soon(self._watch())

    def _mend(self, one) -> None:
        super()._mend(one)
        self.mends[one.row] += 1

    async def _watch(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            lines = sum(owner == "allocate" for owner in self.lines.taken.values())
            self.most_lines = max(self.most_lines, lines)
            self.most_operations = max(self.most_operations, self.drives.outstanding)


class SectorBench(Bench):
    """Rows whose first block is written in part: they are filled with what it holds, and launched
    once more as the host's data has come."""

    def __init__(self, dut, array: ArrayModel, *, seed: int):
        self.unfilled: set[int] = set()
        super().__init__(dut, array, seed=seed, config=SECTORS)
        StreamSink(dut, "filled", active=0.6, callback=self._filled)

    def _row(self, slot: int) -> int:
        row = self.slots.get(slot)
        if row is None or row.row not in self.unfilled:
            return super()._row(slot)
        return self._pack_row(
            kind=RowKind.RECOVER,
            fills=1,
            fua=row.fua,
            array=sequencer_bench.ARRAY,
            base=row.base,
            shift=row.shift,
            row=row.row,
            joined=sum(1 << index for index in row.joined),
        )

    def _filled(self, slot: int) -> None:
        row = self.slots[slot]
        self.unfilled.remove(row.row)
        ((_, _, line),) = row.strips.values()
        self.lines.write(line, row.blocks[0])
        self.launch.send(slot)


async def filled(dut, kind: type[Bench] = Bench) -> Bench:
    """Rows with contents; from then on drives are slow, so that many rows are on their way."""
    bench = kind(dut, ARRAYS[os.environ["ARRAY"]], seed=int(os.environ["SEED"]))
    await bench.fill(rows=30, span=SPAN)
    assert bench.most_lines <= SHARE
    bench.drives.latency = 400
    bench.most_lines = bench.most_operations = 0
    return bench


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def random_rows_are_right(dut):
    """Rows that wait for their share end as any others, with faults too."""
    bench = await filled(dut)
    bench.drives.aborts = bench.drives.unreached = 0.05
    for _ in range(4):
        await random_rows(bench, rows=60, span=SPAN, recover=0.4)
        await bench.settle()
        bench.check_drives()
    assert bench.most_lines > SHARE - CONFIG.ports, "nothing waited"
    assert bench.most_lines <= SHARE


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def asks_once(dut):
    """A row that waits for its share asks once to be mended."""
    bench = await filled(dut)
    rows = some_rows(SPAN)
    for row in rows:
        places = [bench.strip_places(row, index)[0] for index in range(1, bench.array.data)]
        bench.drives.unreadable.add(bench.random.choice(places))
    for row in rows:
        await bench.begin(row, joined=[0], kind=RowKind.RECOVER)
    await bench.settle()
    assert bench.most_lines <= SHARE
    assert len(bench.mends) == len(rows), "a row is not to be mended"
    assert set(bench.mends.values()) == {1}, f"asked more than once: {bench.mends}"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def counts_operations_of_walks(dut):
    """Walks that write many blocks from one line have no more operations than the share."""
    bench = await filled(dut)
    bench.parity.dirty = True
    bench.drives.latency = 4000
    tags = [await bench.walk(row, WalkKind.ZERO) for row in some_rows(SPAN)]
    for tag in tags:
        await bench.end_of(tag)
    assert SHARE - CONFIG.ports < bench.most_operations <= SHARE, bench.most_operations


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def counts_operations_of_copies(dut):
    """Of a block with eight copies four operations are counted with its command."""
    bench = await filled(dut)
    bench.drives.latency = 4000
    for row in some_rows(SPAN):
        await bench.begin(row, joined=[0])
    await bench.settle()
    assert 8 * 3 < bench.most_operations <= 8 * (SHARE // 4), bench.most_operations
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def counts_rows_that_were_filled(dut):
    """A block written in part is read in place, for which its row has nothing. Then the row is
    planned anew, and what it needs as a write is within the share."""
    bench = await filled(dut, SectorBench)
    for row in some_rows(SPAN):
        bench.unfilled.add(row)
        await bench.begin(row, joined=[0])
    await bench.settle()
    assert not bench.unfilled, "rows that were never filled"
    assert SHARE - CONFIG.ports < bench.most_lines <= SHARE, bench.most_lines
    bench.check_drives()


TESTS = {
    "random_rows_are_right": "raid6",
    "asks_once": "raid6",
    "counts_operations_of_walks": "raid6",
    "counts_operations_of_copies": "mirrors",
    "counts_rows_that_were_filled": "raid6",
}


def run(testcase: str, kind: type[Sequencer] = Sequencer) -> None:
    sectors = testcase == "counts_rows_that_were_filled"
    simulate(
        converted(kind, config=SECTORS if sectors else CONFIG),
        name=f"shared_{kind.__name__}{'_sectors' * sectors}",
        module=__name__,
        testcase=testcase,
        parameters={"ARRAY": TESTS[testcase]},
    )


LESS_OFTEN = ("counts_operations_of_walks",)
"""Of the long suite only: operations of copies are counted in every run."""


@pytest.mark.parametrize(
    "testcase",
    [
        pytest.param(testcase, marks=[pytest.mark.slow] if testcase in LESS_OFTEN else [])
        for testcase in TESTS
    ],
)
def test_shared_rows(testcase):
    run(testcase)


class AsksAgain(RowPlanning):
    """A planted bug: a row asks to be mended each time that it is planned."""

    def _is_news(self, waited):
        return 1


class CountsLines(RowPlanning):
    """A planted bug: nothing but lines is counted."""

    def _counted(self, lines, operations):
        return lines


@pytest.mark.parametrize(
    ("mutant", "testcase"),
    [
        (AsksAgain, "asks_once"),
        (CountsLines, "counts_operations_of_walks"),
        (CountsLines, "counts_operations_of_copies"),
    ],
)
@pytest.mark.slow
def test_faults_are_caught(mutant, testcase, monkeypatch):
    monkeypatch.setattr("hdl.stripe.rows.sequencer.RowPlanning", mutant)
    with pytest.raises(SimulationError, match=f"failed: {testcase}"):
        run(testcase, type(mutant.__name__, (Sequencer,), {}))
