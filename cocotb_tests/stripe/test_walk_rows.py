"""Rows walked in the background, against the golden model, while the host writes others."""

import os
from functools import partial

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.streams import CLOCK_PERIOD_NS, sample, start, wait_until
from cocotb_tests.stripe.row_runs import TrustsStaleDrives, must_catch, run_rows
from cocotb_tests.stripe.sequencer_bench import (
    ARRAY,
    ARRAYS,
    PATIENCE,
    ROW_STEP,
    random_rows,
    some_rows,
)
from cocotb_tests.stripe.stripe_models import BLOCK
from cocotb_tests.stripe.walk_bench import WalkBench
from hdl.config import ERA_BITS
from hdl.flow.operation import DriveStatus, Opcode
from hdl.flow.walk import WalkKind, WalkResult
from hdl.stripe.rows.sequencer import Sequencer
from hdl.stripe.walks.walk_plan import WalkPlan

SPAN = 6
"""Rows that have contents, unless a test says otherwise."""

KINDS = (
    WalkKind.RESYNC, WalkKind.REBUILD, WalkKind.PATROL, WalkKind.CHECK, WalkKind.REPAIR,
)  # fmt: skip


def some_strip(bench: WalkBench, row: int) -> int:
    return 0 if bench.array.parities else bench.random.randrange(bench.strips(row))


async def walk_with_faults(bench: WalkBench, *, kinds, rounds: int) -> set[WalkResult]:
    """Walks rows with random unreadable blocks, two more than tolerated at most."""
    seen = set()
    for _ in range(rounds):
        row = ROW_STEP * bench.random.randrange(SPAN)
        strip = some_strip(bench, row)
        places = [
            place
            for place in bench.role_places(row, strip)
            if place[0] not in bench.failed
            and not (place[0] in bench.stale and row >= bench.boundary)
        ]
        most = bench.tolerated
        count = min(bench.random.choice((0, 0, 1, 1, most, most + 1)), len(places))
        bench.drives.unreadable |= set(bench.random.sample(places, count))
        kind = bench.random.choice(kinds)
        seen.add(await bench.check_walk(row, kind, strip=strip))
        bench.drives.unreadable.clear()
    return seen


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def mends_what_cannot_be_read(dut):
    bench = WalkBench.from_environment(dut)
    bench.drives.aborts = 0.01
    bench.drives.unreached = 0.1
    await bench.fill(rows=20, span=SPAN)
    seen = await walk_with_faults(bench, kinds=KINDS, rounds=40)
    assert {WalkResult.GOOD, WalkResult.LOST} <= seen
    assert (WalkResult.MENDED in seen) == bool(bench.array.parities or bench.array.mirrored)
    port = bench.random.choice(bench.array.ports[: bench.array.width])
    bench.fail(port)
    await walk_with_faults(bench, kinds=KINDS, rounds=20)
    if bench.array.parities or bench.array.mirrored:
        bench.make_stale(port)
        bench.boundary = ROW_STEP * 3
        bench.distrust(range(bench.boundary, SPAN * ROW_STEP, ROW_STEP))
        for row in range(0, bench.boundary, ROW_STEP):
            for strip in bench.walked_strips(row):
                bench.drives.blocks |= dict(bench.contents(row, strip))
        await walk_with_faults(bench, kinds=KINDS, rounds=30)
    await bench.settle()
    assert bench.failed <= {port}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def makes_parities_and_copies_anew(dut):
    """RESYNC takes the data, or the first copy, as it is."""
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    for row in some_rows(SPAN):
        for strip in bench.walked_strips(row):
            places = bench.role_places(row, strip)
            redundant = places[bench.array.data :] if bench.array.parities else places[1:]
            for place in redundant:
                bench.drives.blocks[place] = bench.random.randbytes(8)
            assert await bench.check_walk(row, WalkKind.RESYNC, strip=strip) == WalkResult.GOOD
    await bench.settle()
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def takes_what_the_host_has_been_given(dut):
    """A row is mended from the copy that the host has read, whatever those before it have. It is
    marked before."""
    bench = WalkBench.from_environment(dut)
    if not bench.array.mirrored:
        return
    drives, copies = bench.drives, bench.array.copies
    await bench.fill(rows=20, span=SPAN)
    before = dict(drives.blocks)
    for source, row in enumerate(some_rows(SPAN)):
        source %= copies
        strip = bench.random.choice(bench.walked_strips(row))
        places = bench.role_places(row, strip)
        blocks = [bench.random.randbytes(8) for _ in places]
        drives.blocks.update(zip(places, blocks, strict=True))
        tag = await bench.walk(row, WalkKind.PATROL, strip=strip, source=source)
        result, roles = await bench.end_of(tag)
        assert result == (WalkResult.MENDED if source else WalkResult.GOOD)
        assert roles == frozenset(range(source))
        found = [drives.blocks[place] for place in places]
        assert found == [blocks[max(role, source)] for role in range(copies)]
    await bench.settle()
    drives.blocks.update(before)
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def finds_blocks_that_are_wrong(dut):
    """CHECK says so, and which if the level can tell; REPAIR makes them right."""
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    seen = set()

    async def check(row: int, strip: int, count: int) -> None:
        places = bench.role_places(row, strip)
        live = [place for place in places if place[0] not in bench.failed]
        truth = dict(bench.contents(row, strip))
        for place in bench.random.sample(live, min(count, len(live))):
            bench.drives.blocks[place] = bench.random.randbytes(8)
        seen.add(await bench.check_walk(row, WalkKind.CHECK, strip=strip))
        await bench.check_walk(row, WalkKind.REPAIR, strip=strip)
        if (bench.array.parities and not bench.failed) or bench.array.mirrored:
            # Consistent, although with what was not known to be wrong.
            again = await bench.end_of(await bench.walk(row, WalkKind.CHECK, strip=strip))
            assert again == (WalkResult.GOOD, frozenset())
        for place in live:
            bench.drives.blocks[place] = truth[place]

    for count in (0, 1, 1, 1, 1, 1, 2, 3):
        row = ROW_STEP * bench.random.randrange(SPAN)
        await check(row, some_strip(bench, row), count)
    # Each role of a row by itself, so that none of them is taken for another.
    row = ROW_STEP * bench.random.randrange(SPAN)
    if bench.array.parities > 1:
        for place, block in bench.contents(row):
            bench.drives.blocks[place] = bench.random.randbytes(8)
            assert await bench.check_walk(row, WalkKind.CHECK) == WalkResult.MISMATCH
            bench.drives.blocks[place] = block
    assert seen == {WalkResult.GOOD, WalkResult.MISMATCH}
    bench.fail(bench.random.choice(bench.array.ports[: bench.array.width]))
    for count in (0, 1, 1, 2):
        row = ROW_STEP * bench.random.randrange(SPAN)
        await check(row, some_strip(bench, row), count)
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def zeroes_rows(dut):
    """Whatever was there, and whatever line it takes."""
    bench = WalkBench.from_environment(dut)
    bench.parity.dirty = True
    await bench.fill(rows=20, span=SPAN)
    for place in bench.array.ports[: bench.array.width][:2]:
        await walk_with_faults(bench, kinds=(WalkKind.ZERO,), rounds=8)
        if bench.array.parities or bench.array.mirrored:
            bench.fail(place)
    await bench.settle()
    bench.drives.unreadable.clear()
    bench.check_drives()
    assert any(not contents for contents in bench.rows.values()) or not bench.array.parities


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def plans_again_what_was_read_before_a_restart(dut):
    """Drives restart, and one of them has old contents again, while parities are worked out of what
    was read before that. They would not be those of what the drives have now."""
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    for era, row in enumerate(some_rows(SPAN), 1):
        written, other = bench.random.sample(range(bench.array.data), 2)
        await bench.begin(row, joined=[written])
        await wait_until(dut, lambda: sample(dut.step__valid), cycles=PATIENCE, what="a pass")
        (place,) = bench.strip_places(row, other)
        bench.drives.blocks[place] = bench.rows[row][other] = bench.random.randbytes(BLOCK)
        dut.arrays__doubts.value = 1 << ARRAY
        dut.arrays__eras.value = era << (ERA_BITS * ARRAY)
        await bench.settle()
        dut.arrays__doubts.value = 0
        bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def mends_nothing_as_it_was_before_a_restart(dut):
    """All drives begin anew at any moment of a walk that mends a block, and it can be read again,
    as it was long ago: so it stays. Nor does it become what a host was given before that."""
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    moments: set[str] = set()
    for delay in range(0, 600, 6):
        row = ROW_STEP * bench.random.randrange(SPAN)
        strip = some_strip(bench, row)
        place, *others = bench.role_places(row, strip)
        bench.drives.unreadable.add(place)
        kind = bench.random.choice((WalkKind.PATROL, WalkKind.CHECK))
        tag = await bench.walk(row, kind, strip=strip)
        before = bench.drives.counts[Opcode.WRITE]
        await ClockCycles(dut.clk, delay)
        block = bench.random.randbytes(BLOCK)
        wrote = bench.drives.counts[Opcode.WRITE] - before
        moments.add("ended" if tag in bench.results else "writes" if wrote else "reads")
        aborted = bench.drives.counts[DriveStatus.ABORTED]
        await bench.restart({place: block})
        await bench.end_of(tag)
        await bench.settle()
        if bench.drives.counts[DriveStatus.ABORTED] != aborted:
            moments.add("aborted")
        assert bench.drives.blocks[place] == block, f"{kind.name}, restart after {delay}"
        if bench.array.mirrored:
            # What was named then.
            kind = WalkKind.PATROL
            last = len(others)
            await bench.end_of(await bench.walk(row, kind, strip=strip, source=last, age=1))
            assert bench.drives.blocks[place] == block, "an old source"
            await bench.end_of(await bench.walk(row, kind, strip=strip, source=last))
            assert bench.drives.blocks[place] == bench.drives.blocks[others[-1]]
        bench.drives.blocks |= dict(bench.contents(row, strip))
    assert moments == {"reads", "writes", "aborted", "ended"}, moments


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def rebuilds_under_load(dut):
    """A drive is replaced and rebuilt while the host writes; then it holds what it should."""
    bench = WalkBench.from_environment(dut)
    span = 10
    rows = some_rows(span)
    await start(dut)
    await random_rows(bench, rows=20, span=span)
    for port in bench.random.sample(bench.array.ports[: bench.array.width], bench.tolerated):
        await bench.settle()
        bench.fail(port)
        await random_rows(bench, rows=20, span=span)
        await bench.settle()
        bench.boundary = 0
        bench.make_stale(port)
        bench.distrust(rows)

        async def rebuild():
            # Rows end in any order; what the boundary says is that all below it have.
            ends = []
            for row in rows:
                for strip in bench.walked_strips(row):
                    ends.append((row, await bench.walk(row, WalkKind.REBUILD, strip=strip)))
                if len(ends) > 3 or row == rows[-1]:
                    for ended, tag in ends:
                        result, roles = await bench.end_of(tag)
                        assert result == WalkResult.GOOD and not roles, f"row {ended}"
                    ends.clear()
                    bench.drives.distrusted -= bench.places_of(range(0, row + 1, ROW_STEP))
                    bench.boundary = row + 1

        rebuilding = cocotb.start_soon(rebuild())
        await random_rows(bench, rows=40, span=span)
        await rebuilding
        bench.trust()
        await random_rows(bench, rows=10, span=span)
    await bench.settle()
    bench.check_drives()
    assert not bench.failed and not bench.write_faults


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reports_drives_that_refuse_to_be_rebuilt(dut):
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    port = bench.array.ports[1]
    bench.fail(port)
    bench.make_stale(port)
    bench.distrust(some_rows(SPAN))
    bench.drives.write_errors = 1.0
    bench.drives.may_fail = lambda one: one == port
    row, strip = next(
        (row, strip)
        for row in some_rows(SPAN)
        for strip in bench.walked_strips(row)
        if port in {place[0] for place in bench.role_places(row, strip)}
    )
    places = bench.role_places(row, strip)
    role = [place[0] for place in places].index(port)
    tag = await bench.walk(row, WalkKind.REBUILD, strip=strip)
    assert await bench.end_of(tag) == (WalkResult.FAILED, {role})
    assert bench.failed == {port}
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def leaves_rows_of_which_too_much_is_missing(dut):
    """What is gone may come back, and what a stale drive has may be right: nothing is written, not
    by a host either, but by SALVAGE."""
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    row = ROW_STEP * bench.random.randrange(SPAN)
    strip = some_strip(bench, row)
    places = bench.role_places(row, strip)
    stale, *others = bench.random.sample(places, len(places))
    tolerated = bench.array.parities or bench.array.copies - 1
    gone = [place[0] for place in others[:tolerated]]
    for port in (stale[0], *gone):
        bench.fail(port)
    bench.make_stale(stale[0])
    bench.distrust([row])
    for kind in (WalkKind.RESYNC, WalkKind.REBUILD):
        assert await bench.check_walk(row, kind, strip=strip) == WalkResult.FAILED
    if bench.array.parities:
        live = {place[0] for place in others[tolerated:]}
        joined = [
            index
            for index in range(bench.array.data)
            if {place[0] for place in bench.strip_places(row, index)} <= live
        ][:1]
        before = dict(bench.drives.blocks)
        if joined and len(live) > 1:
            faults = bench.write_faults
            await bench.begin(row, joined=joined)
            await bench.settle()
            assert bench.write_faults == faults + 1
        assert bench.drives.blocks == before and not bench.drives.unreadable
        # A block more that cannot be read changes nothing.
        bench.drives.unreadable |= {others[-1]} if others[tolerated:] else set()
        assert await bench.check_walk(row, WalkKind.REBUILD, strip=strip) == WalkResult.FAILED
    assert await bench.check_walk(row, WalkKind.SALVAGE, strip=strip) == WalkResult.LOST
    assert stale in bench.drives.unreadable
    await bench.settle()
    assert bench.failed == {*gone}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reports_cycles_per_walk(dut):
    bench = WalkBench.from_environment(dut)
    await start(dut)
    await bench.pause(40)
    port = bench.array.ports[1]
    bench.fail(port)
    bench.make_stale(port)
    for kind in KINDS:
        bench.drives.counts.clear()
        rows = 64
        begun = cocotb.simtime.get_sim_time("ns")
        tags = [await bench.walk(ROW_STEP * row, kind) for row in range(rows)]
        for tag in tags:
            await bench.end_of(tag)
        cycles = (cocotb.simtime.get_sim_time("ns") - begun) / CLOCK_PERIOD_NS / rows
        operations = bench.drives.counts[Opcode.READ] + bench.drives.counts[Opcode.WRITE]
        print(
            f"{os.environ['ARRAY']}: {kind.name} in {cycles:.0f} cycles a row, "
            f"{operations / rows:.1f} operations a row"
        )
        await bench.settle()


WORK = ("mends_what_cannot_be_read", "makes_parities_and_copies_anew", "zeroes_rows")

REBUILD = (
    "mends_nothing_as_it_was_before_a_restart",
    "takes_what_the_host_has_been_given",
    "finds_blocks_that_are_wrong",
    "rebuilds_under_load",
    "reports_drives_that_refuse_to_be_rebuilt",
    "leaves_rows_of_which_too_much_is_missing",
)


FEW = ("raid0", "raid1e", "raid6_ddf_continue")
"""Arrays of the default suite."""


class WritesOtherLine(Sequencer):
    """A planted bug: what was worked out is written from the line of role 0."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        program = m.submodules.planning.program_read.data
        with m.If(m.submodules.walk_outcome.program.walk.any):
            m.d.comb += m.submodules.planning.line_read.address.eq(
                m.submodules.steps.slot << len(program.source)
            )
        return m


class AcceptsQ(Sequencer):
    """A planted bug: Q is taken for right."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.suspicion.before.nonzero[1].eq(0)
        return m


class AccusesNeighbour(Sequencer):
    """A planted bug: the role that is found is the one before the one that is wrong."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.steps.suspect.eq(m.submodules.suspicion.before.suspect + 1)
        return m


class SaysGood(Sequencer):
    """A planted bug: nothing was ever wrong with a row."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self.walked.payload.result.eq(WalkResult.GOOD)
        return m


class GivesUpRows(WalkPlan):
    """A planted bug: what cannot be worked out is given up, whoever may come back."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.withheld.eq(0)
        return m


class MendsInSilence(Sequencer):
    """A planted bug: a row that is walked is not marked before it is written."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.row_read.data.walk.any):
            m.d.comb += [self.begun.valid.eq(0), m.submodules.planning.begun.ready.eq(1)]
        return m


class WritesWhatIsOld(Sequencer):
    """A planted bug: what a walk writes is sent whatever its drive has lost since."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.queues.next_operation.dated.eq(0)
        return m


class TakesOldSources(Sequencer):
    """A planted bug: what a host was given once counts in every era."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.planning.row_read.data.walk.era.eq(self.arrays.eras[ARRAY])
        return m


MUTANTS = {
    WritesWhatIsOld: "mends_nothing_as_it_was_before_a_restart",
    MendsInSilence: "mends_what_cannot_be_read",
    TrustsStaleDrives: "rebuilds_under_load",
    WritesOtherLine: "mends_what_cannot_be_read",
    AcceptsQ: "finds_blocks_that_are_wrong",
    AccusesNeighbour: "finds_blocks_that_are_wrong",
    SaysGood: "mends_what_cannot_be_read",
}


walk_rows = partial(run_rows, module=__name__)


def rows_of(array: str) -> None:
    cases = WORK if array == "raid0" else WORK + REBUILD
    if ARRAYS[array].parities:
        cases += ("plans_again_what_was_read_before_a_restart",)
    walk_rows(Sequencer, array=array, testcase=cases)


@pytest.mark.parametrize("array", FEW)
def test_walks(array):
    rows_of(array)


@pytest.mark.slow
@pytest.mark.parametrize("array", [name for name in ARRAYS if name not in FEW])
def test_more_walks(array):
    rows_of(array)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.slow
def test_planted_bug_is_caught(mutant):
    must_catch(mutant, module=__name__, array="raid6", testcase=MUTANTS[mutant])


@pytest.mark.parametrize("mutant", [WritesWhatIsOld, TakesOldSources])
@pytest.mark.slow
def test_planted_bug_of_mirrors_is_caught(mutant):
    testcase = "mends_nothing_as_it_was_before_a_restart"
    must_catch(mutant, module=__name__, array="raid1e", testcase=testcase)


@pytest.mark.slow
def test_rows_given_up_are_found():
    testcase = "leaves_rows_of_which_too_much_is_missing"
    place = "planning.row_planning.WalkPlan"
    must_catch(GivesUpRows, module=__name__, array="raid6", testcase=testcase, place=place)


@pytest.mark.slow
@pytest.mark.parametrize("array", ["raid5", "raid6_wide", "raid1"])
def test_rate(array):
    walk_rows(Sequencer, array=array, testcase="reports_cycles_per_walk", active=1.0)
