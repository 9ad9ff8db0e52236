"""Which rows of an array are in sync: jobs that make them so, spares that wait for it, and arrays
that are made with a member missing, on the tables and background work together."""


import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import FallingEdge

from cocotb_tests.background.background_bench import ROWS, Assembly, Bench, bench
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, sample
from hdl.background.background import Background
from hdl.background.job_orders import Sync
from hdl.background.jobs import JobState
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode, ManageStatus
from hdl.flow.walk import WalkKind, WalkResult

START = {"opcode": ManageOpcode.START_JOB}


def kinds_of(host: Bench) -> list[WalkKind]:
    """Kinds of the rows that were walked, in order, once each."""
    return list(dict.fromkeys(row.kind for row in host.log))


async def boundary(host: Bench, array: int) -> int | None:
    """The sync boundary as admission sees it; None for an array that is in sync."""
    host.dut.sync_read__address.value = array
    await cycles_pass(host.dut.clk, 2)
    await FallingEdge(host.dut.clk)
    if not sample(host.dut.arrays__unsynced) >> array & 1:
        return None
    return sample(host.dut.sync_read__data)


async def stop_after(host: Bench, array: int, rows: int) -> int | None:
    """Stops the job of an array when that many rows have ended; the sync boundary then."""
    await host.until(lambda: len(host.log) - len(host.out) >= rows, "rows")
    await host.good(ManageOpcode.STOP_JOB, array=array)
    await host.rest()
    return await boundary(host, array)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def arrays_begin_with_a_resync(dut):
    """Rows before the boundary have been walked, whenever one looks."""
    host = bench(dut)
    await host.begin(8)
    other = await host.create(Level.RAID5, 5, 6, 7)
    array = await host.create(Level.RAID6, 0, 1, 2, 3, assumed=0)
    seen = set()
    while (low := await boundary(host, array)) is not None:
        out = {one.row for one in host.out.values()}
        walked = {one.row for one in host.log} - out
        assert set(range(low)) <= walked, f"boundary {low}"
        seen.add(low)
    # The last of them is that all rows are right, and not on the drives yet.
    assert len(seen) > 4 and max(seen) == ROWS
    await host.rest()
    assert host.rows_of(WalkKind.RESYNC, array) == list(range(ROWS))
    job = await host.job(array)
    assert job["state"] == JobState.DONE and job["in_sync"] and not job["assumed"]
    job = await host.job(other)
    assert job["state"] == JobState.NONE and job["in_sync"] and job["assumed"]
    # A new array in the old one's place begins anew.
    await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert await host.create(Level.RAID6, 0, 1, 2, 3, assumed=0, idle=1) == array
    await host.rest()
    assert await boundary(host, array) == 0
    job = await host.job(array)
    assert job["state"] == JobState.NONE and not job["in_sync"] and job["synced"] == 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_wrong_array_is_deleted(dut):
    """An array that is being initialised is deleted once its job has been stopped, at once."""
    host = bench(dut)
    await host.begin(8)
    delete = {"opcode": ManageOpcode.DELETE_ARRAY}
    wrong = ((Level.RAID6, (0, 1, 2, 3)), (Level.RAID1, (4, 5)), (Level.RAID5, (1, 6, 7)))
    for level, drives in wrong:
        array = await host.create(level, *drives, assumed=0)
        if level != Level.RAID1:
            await host.until(lambda: host.out, "rows")
        assert await host.change(**delete, array=array) == ManageStatus.JOB_RUNNING
        await host.good(ManageOpcode.STOP_JOB, array=array)
        await host.good(**delete, array=array)
        await host.rest()
        assert not host.out
        host.log.clear()
    # Nothing of them is walked any more, and the drives are free.
    array = await host.create(Level.RAID6, *range(8), assumed=0)
    await host.rest()
    assert host.rows_of(WalkKind.RESYNC, array) == list(range(ROWS))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_is_asked_for_is_what_is_done(dut):
    host = bench(dut)
    await host.begin(8)
    create = {"opcode": ManageOpcode.CREATE_ARRAY, "level": Level.RAID5.value, "drives": 0b111}
    for flags in (
        {"assumed": 1, "zero": 1},
        {"assumed": 1, "initialise": 1},
        {"assumed": 1, "idle": 1},
        {"idle": 1, "zero": 1},
        {"idle": 1, "initialise": 1},
    ):
        assert await host.change(**create, **flags) == ManageStatus.INVALID_FIELD
    plain = await host.create(Level.RAID0, 3, 4, assumed=0)
    await host.rest()
    job = await host.job(plain)
    assert job["state"] == JobState.NONE and job["in_sync"] and not job["assumed"]
    mirror = await host.create(Level.RAID1, 5, 6, assumed=0, initialise=1)
    await host.rest()
    assert host.rows_of(WalkKind.RESYNC, mirror) == list(range(ROWS))
    assert (await host.job(mirror))["in_sync"]
    host.log.clear()
    array = await host.create(Level.RAID5, 0, 1, 2, assumed=0, zero=1)
    await host.rest()
    assert kinds_of(host) == [WalkKind.ZERO]
    assert await boundary(host, array) is None and not (await host.job(array))["assumed"]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def the_boundary_only_rises(dut):
    """Stopped and resumed, begun too late, or with other jobs in between."""
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID6, 0, 1, 2, 3, assumed=0)
    first = await stop_after(host, array, 6)
    assert first is not None and 0 < first < ROWS
    assert (await host.job(array))["synced"] == first
    # Jobs that prove nothing leave it where it is.
    for kind in (WalkKind.CHECK, WalkKind.REPAIR, WalkKind.PATROL):
        await host.good(**START, array=array, kind=kind.value)
        await host.rest()
        assert (await host.job(array))["state"] == JobState.DONE
        assert await boundary(host, array) == first
    # No row is left out: not by a start beyond it, nor by the place where another job stopped.
    for fields in ({"start": first + 5}, {"start": 1 << 39}, {"resume": 1}):
        host.log.clear()
        await host.good(**START, array=array, kind=WalkKind.RESYNC.value, **fields)
        later = await stop_after(host, array, 2)
        assert host.rows_of(WalkKind.RESYNC, array)[0] == first
        assert later is not None and first < later
        first = later
    # From an earlier row on.
    host.log.clear()
    host.paused = True
    await host.good(**START, array=array, kind=WalkKind.RESYNC.value)
    host.paused = False
    assert await stop_after(host, array, 2) == first
    assert host.rows_of(WalkKind.RESYNC, array)[0] == 0
    await host.good(**START, array=array, kind=WalkKind.RESYNC.value, start=first)
    await host.rest()
    assert await boundary(host, array) is None
    await host.good(**START, array=array, kind=WalkKind.RESYNC.value)
    assert await stop_after(host, array, 2) is None


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_is_assumed_is_proven_by_a_check(dut):
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID5, 0, 1, 2)
    check = {**START, "array": array, "kind": WalkKind.CHECK.value}

    async def assumed_after(result=WalkResult.GOOD, **fields) -> bool:
        host.judge = lambda row: (result if row.row == 7 else WalkResult.GOOD, 0)
        await host.good(**(check | fields))
        await host.rest()
        job = await host.job(array)
        assert job["in_sync"] and job["state"] == JobState.DONE
        return bool(job["assumed"])

    # Not by a part of it, or if anything was found, or could not be compared.
    assert await assumed_after(start=1)
    for result in (WalkResult.MISMATCH, WalkResult.MENDED, WalkResult.LOST):
        assert await assumed_after(result)
    assert await assumed_after(kind=WalkKind.PATROL.value)
    assert await assumed_after(kind=WalkKind.RESYNC.value, start=1)
    host.pull(1)
    await host.rest()
    assert await assumed_after()
    await host.good(ManageOpcode.REPLACE, array=array, position=1, port=4)
    await host.rest()
    assert (await host.job(array))["assumed"]
    assert not await assumed_after()
    # A resync of all rows says so as well.
    other = await host.create(Level.RAID1, 5, 6)
    assert (await host.job(other))["assumed"]
    await host.good(**START, array=other, kind=WalkKind.RESYNC.value)
    await host.rest()
    assert not (await host.job(other))["assumed"]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def spares_wait_for_the_resync(dut):
    """A rebuild never takes its place."""
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID6, 0, 1, 2, 3, assumed=0)
    await host.good(ManageOpcode.ADD_SPARE, port=5)
    await host.until(lambda: len(host.log) > 5, "rows")
    host.late = 0.9
    host.pull(1)
    while await boundary(host, array) is not None:
        assert not sample(dut.drives__stale) and not sample(dut.drives__used) >> 5 & 1
    host.late = 0.5
    await host.rest()
    assert kinds_of(host) == [WalkKind.RESYNC, WalkKind.REBUILD]
    assert host.rows_of(WalkKind.RESYNC, array) == list(range(ROWS))
    assert host.rows_of(WalkKind.REBUILD, array) == list(range(ROWS))
    job = await host.job(array)
    assert job["in_sync"] and host.state(array) == ArrayState.OPTIMAL
    # Of an array that is in sync a resync gives way.
    host.log.clear()
    await host.good(ManageOpcode.ADD_SPARE, port=6)
    await host.good(**START, array=array, kind=WalkKind.RESYNC.value)
    await host.until(lambda: len(host.log) > 5, "rows")
    host.pull(0)
    await host.rest()
    assert kinds_of(host) == [WalkKind.RESYNC, WalkKind.REBUILD]
    assert len(host.rows_of(WalkKind.RESYNC, array)) < ROWS
    assert host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def members_are_rebuilt_after_the_rest_is_in_sync(dut):
    """Whether the host replaces one, has it again, or starts the rebuild anew."""
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID6, 0, 1, 2, 3, assumed=0)
    await stop_after(host, array, 6)
    host.pull(2)
    await host.rest()
    host.log.clear()
    await host.good(ManageOpcode.REPLACE, array=array, position=2, port=4)
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.RUNNING, WalkKind.RESYNC)
    first = await stop_after(host, array, 2)
    assert first is not None and sample(dut.drives__stale) == 1 << 4
    assert await host.boundary(array) == 0
    await host.good(**START, array=array, kind=WalkKind.REBUILD.value)
    await host.rest()
    assert kinds_of(host) == [WalkKind.RESYNC, WalkKind.REBUILD]
    assert set(host.rows_of(WalkKind.RESYNC, array)) >= set(range(first, ROWS))
    assert host.rows_of(WalkKind.REBUILD, array) == list(range(ROWS))
    assert (await host.job(array))["in_sync"] and host.state(array) == ArrayState.OPTIMAL
    # Past tolerance it fails, and goes no further.
    second = await host.create(Level.RAID5, 5, 6, 7, assumed=0)
    await host.until(lambda: len(host.rows_of(WalkKind.RESYNC, second)) > 5, "rows")
    host.pull(5, 6)
    await host.rest()
    job = await host.job(second)
    assert job["state"] == JobState.FAILED and not job["in_sync"] and 0 < job["synced"] < ROWS


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def migrations_of_arrays_that_are_not_in_sync(dut):
    """A migration goes as ever; if the member is lost, its place is rebuilt after a resync."""
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID6, 0, 1, 2, 3, assumed=0, idle=1)
    await host.good(ManageOpcode.MIGRATE, array=array, position=1, port=4)
    await host.rest()
    assert kinds_of(host) == [WalkKind.MIGRATE] and await boundary(host, array) == 0
    assert sample(dut.drives__used) == 0b11101
    host.log.clear()
    await host.good(ManageOpcode.MIGRATE, array=array, position=1, port=5)
    await host.until(lambda: len(host.log) > 5, "rows")
    host.pull(4)
    await host.rest()
    assert kinds_of(host) == [WalkKind.MIGRATE, WalkKind.RESYNC, WalkKind.REBUILD]
    assert host.rows_of(WalkKind.RESYNC, array) == list(range(ROWS))
    assert (await host.job(array))["in_sync"] and host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def arrays_are_made_with_members_missing(dut):
    host = bench(dut)
    await host.begin(5)
    create = {"opcode": ManageOpcode.CREATE_ARRAY, "level": Level.RAID6.value}
    assert await host.change(**create, drives=0b101111) == ManageStatus.DRIVE_UNAVAILABLE
    for drives in (0b11100011, 1 << 9 | 0b111):
        status = await host.change(**create, drives=drives, degraded=1)
        assert status == ManageStatus.DRIVE_UNAVAILABLE
    array = await host.create(Level.RAID6, 0, 1, 2, 6, assumed=0, degraded=1)
    await host.rest()
    assert host.state(array) == ArrayState.PARTIALLY_DEGRADED and host.news == 1
    assert kinds_of(host) == [WalkKind.RESYNC] and (await host.job(array))["in_sync"]
    # The drive that is put there is none that the array knows.
    host.plug(6)
    await host.rest()
    back = {"opcode": ManageOpcode.RE_ADD, "array": array, "position": 3}
    assert await host.change(**back) == ManageStatus.OTHER_DRIVE
    assert host.state(array) == ArrayState.PARTIALLY_DEGRADED
    await host.good(ManageOpcode.REPLACE, array=array, position=3, port=6)
    await host.rest()
    assert host.rows_of(WalkKind.REBUILD, array) == list(range(ROWS))
    assert host.state(array) == ArrayState.OPTIMAL
    # A spare does the same by itself.
    host.log.clear()
    await host.good(ManageOpcode.ADD_SPARE, port=4)
    mirror = await host.create(Level.RAID1, 3, 7, assumed=0, degraded=1)
    await host.rest()
    assert kinds_of(host) == [WalkKind.RESYNC, WalkKind.REBUILD]
    assert host.state(mirror) == ArrayState.OPTIMAL


def test_sync():
    simulate(Assembly(), name="sync", module=__name__)


class SparesNeverWait(Background):
    """Planted bug: a spare takes the place of a resync that has not ended."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += m.submodules.supervisor.jobs.unsynced.eq(0)
        return m


class MovesTooSoon(Background):
    """Planted bug: the row that is being walked is said to be in sync."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.sync_read[0].data.eq(m.submodules.jobs.sync_read[1].data + 1)
        return m


class TakesAllForConsistent(Background):
    """Planted bug: every new array is taken to be in sync."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += m.submodules.jobs.control.order.payload.sync.eq(Sync.ASSUMED)
        return m


@pytest.mark.parametrize(
    ("bug", "testcase"),
    [
        (SparesNeverWait, "spares_wait_for_the_resync"),
        (MovesTooSoon, "arrays_begin_with_a_resync"),
        (TakesAllForConsistent, "members_are_rebuilt_after_the_rest_is_in_sync"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_found(bug, testcase):
    with pytest.raises(SimulationError, match=testcase):
        simulate(
            Assembly(background=bug),
            name=f"sync_{bug.__name__}",
            module=__name__,
            testcase=testcase,
        )
