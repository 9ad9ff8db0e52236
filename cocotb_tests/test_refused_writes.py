"""Writes that drives refuse: who is given up, which commands fail, and what can be read after."""

from functools import partial

import cocotb
import pytest

from cocotb_tests.row_runs import must_catch, run_rows
from cocotb_tests.sequencer_bench import ARRAYS, ROW_STEP, Row, some_rows
from cocotb_tests.walk_bench import WalkBench
from hdl.drive.interface import Opcode
from hdl.nvme.interface import Status
from hdl.stripe.interface import RowKind
from hdl.stripe.judgement import Judgement
from hdl.stripe.sequencer import Sequencer

SPAN = 6
ROWS = some_rows(SPAN)

ROUNDS = 24
"""Rows that are written with blocks that refuse."""


async def begin(dut) -> WalkBench:
    """Rows with contents."""
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    return bench


async def write(bench: WalkBench, row: int, joined: list[int]) -> Row:
    entry = await bench.begin(row, joined=joined)
    await bench.settle()
    return entry


def joined_of(bench: WalkBench, row: int) -> list[int]:
    """Strips to write: of mirrors one, as the gatherer has them."""
    strips = range(bench.strips(row))
    most = 1 if bench.array.mirrored else len(strips)
    return bench.random.sample(strips, bench.random.randint(1, most))


def lose_drives(bench: WalkBench, count: int) -> None:
    """Some drives of one span, or copies of strip 0 of row 0, fail."""
    ports = [place[0] for place in bench.role_places(0)]
    for port in bench.random.sample(ports, count):
        bench.fail(port)


async def check_recovery(bench: WalkBench) -> None:
    """The bench checks what is worked out of each data strip, if it can be."""
    for row in ROWS:
        for index in range(bench.array.data):
            await bench.begin(row, joined=[index], kind=RowKind.RECOVER)
    await bench.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def keeps_the_last_that_hold_something(dut):
    """With as many drives failed as the level tolerates, blocks of the others refuse."""
    bench = await begin(dut)
    lose_drives(bench, bench.tolerated)
    failed = set(bench.failed)
    refused = 0
    for _ in range(ROUNDS):
        # A row of the span, or the strip, that has nothing to spare.
        row = ROW_STEP * bench.random.randrange(SPAN // bench.array.spans) * bench.array.spans
        joined = [0] if bench.array.mirrored else joined_of(bench, row)
        places = [place for place in bench.role_places(row) if place[0] not in failed]
        bench.drives.refusing = set(
            bench.random.sample(places, bench.random.randint(1, len(places)))
        )
        bench.drives.spoils_refused = bench.random.random() < 0.5
        faults = bench.write_faults
        entry = await write(bench, row, joined)
        refused += bench.write_faults != faults
        assert set(bench.failed) == failed, "a drive was given up for one block"
        assert len(set(entry.statuses)) == 1, entry.statuses
        bench.drives.refusing.clear()
        bench.check_drives()
        if bench.array.parities:
            await check_recovery(bench)
        if bench.random.random() < 0.5:
            await write(bench, row, [0] if bench.array.mirrored else [*range(bench.strips(row))])
    assert refused > ROUNDS // 4
    bench.check_drives()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def gives_up_what_a_row_does_without(dut):
    """More and more blocks of a row refuse, with all drives there."""
    bench = await begin(dut)
    row = 0
    strip = 0
    for count in range(1, len(bench.role_places(row, strip)) + 1):
        joined = [strip] if bench.array.mirrored else [*range(bench.strips(row))]
        places = bench.role_places(row, strip)
        refusing = set(bench.random.sample(places, count))
        bench.drives.refusing = refusing
        entry = await write(bench, row, joined)
        tolerated = count <= bench.tolerated
        ports = {place[0] for place in refusing} if tolerated else set()
        assert bench.failed == ports
        wanted = {Status.SUCCESS if tolerated else Status.WRITE_FAULT}
        assert set(entry.statuses) == wanted, entry.statuses
        bench.drives.refusing.clear()
        bench.check_drives()
        # All drives are as new.
        bench.failed.clear()
        bench.drives.gone.clear()
        dut.failed.value = 0
        await write(bench, row, joined)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def a_stale_copy_is_no_copy(dut):
    """The only copy in sync does not store the block, and the one that is rebuilt does."""
    bench = await begin(dut)
    assert bench.array.mirrored
    for gone in (False, True):
        copies = bench.role_places(0)
        synced = bench.random.randrange(len(copies))
        for index, place in enumerate(copies):
            if index != synced:
                bench.make_stale(place[0])
        bench.distrust(ROWS)
        if gone:
            bench.drives.gone.add(copies[synced][0])
        else:
            bench.drives.refusing = {copies[synced]}
        entry = await write(bench, 0, [0])
        assert entry.statuses == [Status.WRITE_FAULT]
        assert bench.failed == ({copies[synced][0]} if gone else set())
        bench.drives.refusing.clear()
        bench.trust()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def a_second_try_is_each_blocks_own(dut):
    """Every write is aborted once, or not reached, or refused once: all are stored in the end."""
    bench = await begin(dut)
    for _ in range(ROUNDS):
        row = ROW_STEP * bench.random.randrange(SPAN)
        for place in bench.role_places(row):
            bench.random.choice((bench.drives.aborted_once, bench.drives.stubborn)).add(place)
        bench.drives.unreached = 0.2
        await write(bench, row, joined_of(bench, row))
        assert not bench.failed and not bench.write_faults
        bench.drives.aborted_once.clear()
        bench.drives.stubborn.clear()
    bench.check_drives()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def never_gives_a_mixture(dut):
    """Drives fail, blocks refuse and cannot be read, at random: what is read is right or old."""
    bench = await begin(dut)
    for _ in range(3 * ROUNDS):
        row = ROW_STEP * bench.random.randrange(SPAN)
        places = [place for other in ROWS for place in bench.role_places(other)]
        bench.drives.refusing = set(bench.random.sample(places, bench.random.randint(0, 6)))
        bench.drives.spoils_refused = bench.random.random() < 0.5
        if bench.random.random() < 0.1 and len(bench.failed) < bench.tolerated:
            bench.fail(bench.random.choice(places)[0])
        await bench.begin(row, joined=joined_of(bench, row))
        if bench.random.random() < 0.5:
            await bench.settle()
            bench.check_drives()
    await bench.settle()
    bench.drives.refusing.clear()
    bench.check_drives()
    if bench.array.parities:
        await check_recovery(bench)


class GivesUpEveryDrive(Judgement):
    """A planted bug: a drive that refuses a block is given up, whatever is left."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.after.lost != self.before.lost):
            m.d.comb += self.report.eq(1)
        return m


class CountsStaleCopies(Judgement):
    """A planted bug: a copy that is not in sync counts."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        stored = self.written & (self.after.lost == self.before.lost)
        with m.If(stored):
            m.d.comb += self.after.good.eq(self.before.good | (1 << self.index))
        return m


class SharesSecondTries(Sequencer):
    """A planted bug: once any operation of the row was aborted, what is refused is not sent again.
    """

    def elaborate(self, platform):
        m = super().elaborate(platform)
        before = m.submodules.judgement.before
        with m.If(before.attempts != 0):
            m.d.comb += before.refused.eq(-1)
        return m


class LeavesMixtures(Sequencer):
    """A planted bug: what a write that failed has stored stays."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.operation.payload.opcode == Opcode.WRITE_UNCORRECTABLE):
            m.d.comb += self.operation.payload.block.eq(0)
        return m


LAST = "keeps_the_last_that_hold_something"
STALE = "a_stale_copy_is_no_copy"
WORK = (
    LAST,
    "gives_up_what_a_row_does_without",
    "a_second_try_is_each_blocks_own",
    "never_gives_a_mixture",
)

CASES = ("raid1", "raid10", "raid1e", "raid5", "raid50", "raid6", "raid6_ddf_continue", "triple")
LESS_OFTEN = ("raid50", "raid6_ddf_continue", "triple")
"""Arrays of the long suite only."""

refuse = partial(run_rows, module=__name__)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[pytest.mark.slow] if array in LESS_OFTEN else [])
        for array in CASES
    ],
)
def test_refused_writes(array):
    work = (*WORK, STALE) if ARRAYS[array].mirrored else WORK
    refuse(Sequencer, array=array, testcase=work)


@pytest.mark.parametrize(
    ("mutant", "array", "testcase"),
    [
        (GivesUpEveryDrive, "raid5", LAST),
        (CountsStaleCopies, "raid1", STALE),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_planted_bug_is_caught(mutant, array, testcase):
    must_catch(
        mutant, module=__name__, array=array, testcase=testcase, place="sequencer.Judgement"
    )


@pytest.mark.parametrize(
    ("mutant", "testcase"),
    [(LeavesMixtures, LAST), (SharesSecondTries, "a_second_try_is_each_blocks_own")],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_planted_bug_in_rows_is_caught(mutant, testcase):
    must_catch(mutant, module=__name__, array="raid5", testcase=testcase)
