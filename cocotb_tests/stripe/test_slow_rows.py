"""Reads of rows in the sequencer when drives are slow, or cannot read a block that is needed."""

from functools import partial

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.streams import start
from cocotb_tests.stripe.row_runs import must_catch, run_rows
from cocotb_tests.stripe.sequencer_bench import (
    ARRAY,
    ARRAYS,
    ROW_STEP,
    Bench,
    bench_of,
    random_rows,
    some_rows,
)
from cocotb_tests.stripe.stripe_models import BLOCK
from hdl.flow.operation import DriveStatus
from hdl.flow.row import RowKind
from hdl.stripe.planning.row_planning import RowPlanning
from hdl.stripe.rows.operation_result import OperationResult
from hdl.stripe.rows.sequencer import Sequencer

SPAN = 8
"""Rows that are written, and then read again and again."""

ROUND_ROWS = 24


async def filled(dut) -> Bench:
    """A bench whose rows have been written."""
    bench = bench_of(dut)
    await start(dut)
    for row in some_rows(SPAN):
        await bench.begin(row, joined=list(range(bench.strips(row))))
    await bench.settle()
    return bench


def members(bench: Bench, count: int) -> list[int]:
    """Random drives of the array."""
    return bench.random.sample(bench.array.ports[: bench.array.width], count)


async def read_rows(bench: Bench, *, gathered: bool, rows: int = ROUND_ROWS) -> int:
    """Reads random blocks of random rows; how many blocks."""
    blocks = 0
    for _ in range(rows):
        row = ROW_STEP * bench.random.randrange(SPAN)
        strips = range(bench.strips(row))
        count = bench.random.randint(1, len(strips)) if gathered else 1
        blocks += count
        await bench.begin(
            row,
            joined=sorted(bench.random.sample(strips, count)),
            kind=RowKind.RECOVER,
            gathered=gathered,
        )
    return blocks


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reads_around_slow_drives(dut):
    """As many drives are slow as there is redundancy left: no read waits for any of them."""
    bench = await filled(dut)
    parities = bench.array.parities
    for gone in range(parities):
        for gathered in (False, True):
            # A block that is worked out although its drive is there counts as lost.
            spare = parities - gone - (not gathered)
            bench.drives.slow = set(members(bench, spare))
            bench.drives.waited.clear()
            before = bench.recovered
            asked = await read_rows(bench, gathered=gathered)
            await bench.settle()
            assert bench.recovered - before == asked
            assert not bench.drives.waited, f"{gone} gone: waited for {bench.drives.waited}"
        left = set(bench.array.ports[: bench.array.width]) - bench.failed
        bench.fail(bench.random.choice(sorted(left)))
    assert bench.drives.counts[DriveStatus.SLOW]
    assert not (bench.read_faults or bench.mended)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def waits_for_slow_drives_it_needs(dut):
    """All drives are slow, some gone, some blocks unreadable: what can be had is had."""
    bench = await filled(dut)
    array = bench.array
    bench.drives.slow = set(array.ports)
    bench.drives.aborts = 0.02
    bench.drives.unreached = 0.1
    for port in (None, *members(bench, array.parities)):
        if port is not None:
            bench.fail(port)
        for gathered in (False, True):
            before = bench.recovered
            for row in some_rows(SPAN):
                bench.erase_unreadable(row, array.parities - len(bench.failed))
            asked = await read_rows(bench, gathered=gathered)
            await bench.settle()
            assert bench.recovered - before == asked and not bench.read_faults
            bench.drives.unreadable.clear()
    await random_rows(bench, rows=ROUND_ROWS, span=SPAN)
    await bench.settle()
    bench.check_drives()
    assert bench.drives.counts[DriveStatus.SLOW] and len(bench.failed) == array.parities


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def waits_for_drives_of_rows_in_doubt(dut):
    """Drives have restarted, and parities may be anything: what drives have is read there."""
    bench = await filled(dut)
    dut.arrays__doubts.value = 1 << ARRAY
    for row in some_rows(SPAN):
        for place in bench.parity_places(row):
            bench.drives.blocks[place] = bench.random.randbytes(BLOCK)
    slow, waited = set(), set()
    for gathered in (False, True, False, True):
        bench.drives.slow = set(members(bench, 1))
        bench.drives.waited.clear()
        before = bench.recovered
        asked = await read_rows(bench, gathered=gathered)
        await bench.settle()
        assert bench.recovered - before == asked and not bench.read_faults
        slow |= bench.drives.slow
        waited |= set(bench.drives.waited)
    dut.arrays__doubts.value = 0
    assert waited and waited <= slow
    assert not bench.drives.counts[DriveStatus.SLOW]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def asks_no_drive_that_took_the_place_of_a_slow_one(dut):
    """More drives are slow than can be done without; as that is told, one of them is replaced."""
    bench = await filled(dut)
    drives, array = bench.drives, bench.array
    for row in some_rows(SPAN):
        strips = list(range(array.data))
        slow = [
            bench.strip_places(row, index)[0]
            for index in bench.random.sample(strips, array.parities + 1)
        ]
        drives.slow = {port for port, _ in slow}
        drives.counts[DriveStatus.SLOW] = 0
        before = bench.recovered
        await bench.begin(row, joined=strips, kind=RowKind.RECOVER, gathered=True)
        while drives.counts[DriveStatus.SLOW] < len(slow):
            await RisingEdge(dut.clk)
        dut.drives__stale.value = 1 << slow[0][0]
        drives.distrusted = {slow[0]}
        await bench.settle()
        assert bench.recovered - before == len(strips) and not bench.read_faults
        dut.drives__stale.value = 0
        drives.distrusted.clear()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reads_the_block_itself_at_last(dut):
    """A block that was to be had from others, which have lost too much, is read where it lies."""
    bench = await filled(dut)
    array = bench.array
    bench.drives.slow = set(array.ports)
    for row in some_rows(SPAN):
        for index in range(array.data):
            (own,) = bench.strip_places(row, index)
            bench.erase_unreadable(row, array.width)
            bench.drives.unreadable.discard(own)
            before = bench.recovered
            await bench.begin(row, joined=[index], kind=RowKind.RECOVER)
            await bench.settle()
            assert bench.recovered == before + 1 and not bench.read_faults
            bench.drives.unreadable.add(own)
            await bench.begin(row, joined=[index], kind=RowKind.RECOVER)
            await bench.settle()
            assert bench.read_faults == 1
            bench.read_faults = 0
            bench.drives.unreadable.clear()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def asks_for_rows_to_be_mended(dut):
    """A row in which a read came upon an unreadable block, and no other, is to be mended."""
    bench = await filled(dut)
    array = bench.array
    failed = members(bench, array.parities - 1)
    for port in failed:
        bench.fail(port)
    for _ in range(4):
        bench.mended.clear()
        spoiled = set()
        for row in bench.random.sample(some_rows(SPAN), 4):
            places = [bench.strip_places(row, index)[0] for index in range(array.data)]
            live = [place for place in places if place[0] not in bench.failed]
            bench.drives.unreadable.add(bench.random.choice(live))
            spoiled.add(row)
        for row in some_rows(SPAN):
            await bench.begin(
                row,
                joined=list(range(array.data)),
                kind=RowKind.RECOVER,
                gathered=True,
            )
            await bench.settle()
        assert {row for row, _ in bench.mended} == spoiled
        bench.drives.unreadable.clear()
    assert not bench.read_faults


WORK = (
    "reads_around_slow_drives",
    "waits_for_slow_drives_it_needs",
    "waits_for_drives_of_rows_in_doubt",
    "asks_no_drive_that_took_the_place_of_a_slow_one",
    "reads_the_block_itself_at_last",
    "asks_for_rows_to_be_mended",
)


class GivesUpSlowDrives(Sequencer):
    """A planted bug: what a slow drive has is lost."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.planning.unread_read.data.slow.eq(0)
        return m


class IsPatient(RowPlanning):
    """A planted bug: every read waits for its drive."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.program_read.data.elsewhere.eq(0)
        return m


class HasNoPatience(RowPlanning):
    """A planted bug: any read may be had elsewhere."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.program_read.data.elsewhere.eq(1)
        return m


class MendsNothing(RowPlanning):
    """A planted bug: no row is asked to be mended."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.mends.note.eq(0)
        return m


class TakesSlowForUnreadable(OperationResult):
    """A planted bug: that a drive was slow is forgotten."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.after.slow.eq(0)
        return m


MUTANTS = {
    GivesUpSlowDrives: ("", "waits_for_slow_drives_it_needs"),
    IsPatient: ("rows.sequencer.RowPlanning", "reads_around_slow_drives"),
    HasNoPatience: ("rows.sequencer.RowPlanning", "waits_for_slow_drives_it_needs"),
    MendsNothing: ("rows.sequencer.RowPlanning", "asks_for_rows_to_be_mended"),
    TakesSlowForUnreadable: ("rows.sequencer.OperationResult", "waits_for_slow_drives_it_needs"),
}


slow_rows = partial(run_rows, module=__name__)

@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[] if array == "raid6" else [pytest.mark.slow])
        for array, model in ARRAYS.items()
        if model.parities
    ],
)
def test_slow_rows(array):
    slow_rows(Sequencer, array=array, testcase=WORK)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_planted_bug_is_caught(mutant):
    place, testcase = MUTANTS[mutant]
    must_catch(mutant, module=__name__, array="raid6", testcase=testcase, place=place)
