"""A job is done when its drives have stored what it has written."""

from itertools import product

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.background.background_bench import ROWS, Assembly, Bench, begin
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample
from hdl.background.jobs import Jobs, JobState
from hdl.background.supervisor import Supervisor
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode
from hdl.flow.walk import WalkKind, WalkResult


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def zeros_are_stored(dut):
    """ZERO is done when all drives have flushed what it wrote: if one begins anew before that, and
    is kept, so does ZERO. A drive that does not flush makes it fail."""
    host = await begin(dut)
    for level, ports in ((Level.JBOD, (3,)), (Level.RAID0, (4, 5)), (Level.RAID5, (0, 1, 2))):
        array = await host.create(level, *ports)
        stripes = len(ports) if level == Level.RAID0 else 1
        zero = {"array": array, "kind": WalkKind.ZERO.value}
        # In the middle.
        host.log.clear()
        await host.good(ManageOpcode.START_JOB, **zero)
        await host.until(lambda: len(host.log) > 10, "rows")
        before = len(host.log)
        await host.restart(*ports)
        await host.rest()
        job = await host.job(array)
        assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.ZERO)
        rows = host.rows_of(WalkKind.ZERO)
        assert len(rows) >= stripes * ROWS + before, f"{level}: rows are not written again"
        assert {*rows[-stripes * ROWS :]} == {*range(ROWS)}
        # Stopped when a drive begins anew, it does not go on where it was.
        await host.good(ManageOpcode.START_JOB, **zero)
        host.log.clear()
        await host.until(lambda: len(host.log) > 10, "rows")
        await host.good(ManageOpcode.STOP_JOB, array=array)
        await host.rest()
        assert (await host.job(array))["row"] > 2
        await host.restart(*ports)
        await host.rest()
        if level != Level.RAID5:
            # There a RESYNC has taken its place.
            host.log.clear()
            await host.good(ManageOpcode.START_JOB, **zero, resume=1)
            await host.rest()
            assert len(host.rows_of(WalkKind.ZERO)) == stripes * ROWS
        # All is written, and nothing is flushed yet.
        host.log.clear()
        dut.flush_waits.value = 1
        await host.good(ManageOpcode.START_JOB, **zero)
        await host.until(lambda full=stripes * ROWS: len(host.log) == full and not host.out, "rows")
        await ClockCycles(dut.clk, 300)
        assert (await host.job(array))["state"] == JobState.RUNNING, f"{level}: not flushed"
        await host.restart(*ports)
        await ClockCycles(dut.clk, 300)
        dut.flush_waits.value = 0
        await host.rest()
        assert (await host.job(array))["state"] == JobState.DONE
        assert len(host.rows_of(WalkKind.ZERO)) == 2 * stripes * ROWS
        # Nobody is to be told of it.
        assert not sample(dut.drives__suspect) and not sample(dut.drives__failed) & 0xFF
        dut.refusing.value = 1 << ports[0]
        await host.good(ManageOpcode.START_JOB, **zero)
        await host.rest()
        assert (await host.job(array))["state"] == JobState.FAILED
        assert not sample(dut.drives__failed) & 0xFF
        dut.refusing.value = 0


async def through(host: Bench, array: int, kind: WalkKind, **fields) -> None:
    """A job is through its rows, and its drives do not end their flush."""
    dut = host.dut
    dut.flush_waits.value = 1
    host.log.clear()
    await host.good(ManageOpcode.START_JOB, array=array, kind=kind.value, **fields)
    await host.rest()


async def flushed(host: Bench, array: int) -> dict:
    """They end it; the job then."""
    host.dut.flush_waits.value = 0
    await host.rest()
    return await host.job(array)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_jobs_have_written_is_stored(dut):
    """A job is done when all live drives of its array have flushed, even if it found nothing."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.create(Level.RAID1, 3, 4)
    good, mended = WalkResult.GOOD, WalkResult.MENDED
    for kind, result, start in (
        (WalkKind.CHECK, good, 0),
        (WalkKind.PATROL, good, 0),
        (WalkKind.REPAIR, good, 0),
        (WalkKind.CHECK, mended, 0),
        (WalkKind.PATROL, WalkResult.LOST, 0),
        (WalkKind.REPAIR, WalkResult.MISMATCH, 0),
        (WalkKind.CHECK, WalkResult.FAILED, 0),
        (WalkKind.REPAIR, good, 5),
        (WalkKind.RESYNC, good, 0),
        (WalkKind.RESYNC, good, 5),
    ):
        what = f"{kind.name} from row {start} with {result.name}"
        seen: list[int] = []

        def judge(row, seen=seen, result=result):
            seen.append(row.row)
            return (result if row.row == 7 and seen.count(7) == 1 else good), 0

        host.judge = judge
        await through(host, array, kind, start=start)
        assert {*seen} == {*range(start, ROWS)}
        state = (await host.job(array))["state"]
        assert state == JobState.RUNNING, what
        assert (await flushed(host, array))["state"] == JobState.DONE, what
        # Whichever of them does not flush.
        for refusing in (0b001, 0b010, 0b100, 0b11000):
            seen.clear()
            dut.refusing.value = refusing
            await through(host, array, kind, start=start)
            fails = refusing & 0b111
            state = (await flushed(host, array))["state"]
            assert state == (JobState.FAILED if fails else JobState.DONE), f"{what}, {refusing:#b}"
        dut.refusing.value = 0
    assert not sample(dut.drives__failed) & 0xFF


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def rows_are_in_sync_when_they_are_stored(dut):
    """A first RESYNC makes no row count as in sync before all drives have flushed. If drives that
    are needed begin anew before that, so does the RESYNC."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1)
    every = [*range(ROWS)]

    async def resynced(state: JobState, *, walked: list[int], in_sync: bool) -> None:
        job = await flushed(host, array)
        assert (job["kind"], job["state"]) == (WalkKind.RESYNC, state), job
        assert host.rows_of(WalkKind.RESYNC) == walked and job["in_sync"] == in_sync, job

    # Not flushed, and then refused. What is resumed is the flush.
    await through(host, array, WalkKind.RESYNC)
    job = await host.job(array)
    assert job["state"] == JobState.RUNNING and not job["in_sync"] and job["synced"] == ROWS
    dut.refusing.value = 2
    await resynced(JobState.FAILED, walked=every, in_sync=False)
    dut.refusing.value = 0
    await through(host, array, WalkKind.RESYNC, resume=1)
    await resynced(JobState.DONE, walked=[], in_sync=True)
    # Drives begin anew in the middle of the flush, twice.
    await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1) == array
    await through(host, array, WalkKind.RESYNC)
    await host.restart(0, 1)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=300)
    await host.restart(0, 2)
    await ClockCycles(dut.clk, 300)
    assert not (await host.job(array))["in_sync"]
    await resynced(JobState.DONE, walked=every + every, in_sync=True)
    # The host stops it as its last rows are on their way.
    await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1) == array
    host.log.clear()
    await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.RESYNC.value)
    await host.until(lambda: len(host.log) == ROWS, "rows")
    host.paused = True
    host.requests.send(opcode=ManageOpcode.STOP_JOB, array=array)
    await ClockCycles(dut.clk, 100)
    host.paused = False
    await resynced(JobState.STOPPED, walked=every, in_sync=False)
    assert (await host.job(array))["row"] == ROWS
    await through(host, array, WalkKind.RESYNC, resume=1)
    # One restarts, and the array does without it; it is taken back after that.
    await host.restart(1)
    await host.until(lambda: sample(dut.drives__failed) & 2, "a failed drive", cycles=300)
    dut.flush_waits.value = 0
    await host.rest()
    job = await host.job(array)
    assert (job["kind"], job["state"]) == (WalkKind.REBUILD, JobState.DONE) and job["in_sync"]
    assert host.state(array) == ArrayState.OPTIMAL and not host.rows_of(WalkKind.RESYNC)
    # One goes as it is flushed, then all but one.
    for gone, state in (((1,), JobState.DONE), ((1, 2), JobState.FAILED)):
        host.plug(0, 1, 2)
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)
        assert await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1) == array
        await through(host, array, WalkKind.RESYNC)
        host.pull(*gone)
        await ClockCycles(dut.clk, 300)
        await resynced(state, walked=every, in_sync=state == JobState.DONE)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def drives_restart_while_they_flush_for_a_job(dut):
    """At any moment about the end of that flush. What was not stored by then is made right again,
    and the job is not done before."""
    host = await begin(dut)
    every = [*range(ROWS)]
    for needed in (False, True):
        for early in (200, *range(6, -7, -1)):
            array = await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1)
            dut.flush_lasts.value = 1
            host.log.clear()
            await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.RESYNC.value)
            await host.rest()
            job = await host.job(array)
            assert job["state"] == JobState.RUNNING and not job["in_sync"]
            ports = (0, 1) if needed else (1,)
            if early <= 0:
                dut.flush_lasts.value = 0
                await ClockCycles(dut.clk, 1 - early)
            await host.restart(*ports)
            if early > 0:
                # `restart` itself takes three cycles.
                await ClockCycles(dut.clk, max(0, early - 3))
                job = await host.job(array) if early == 200 else job
                assert job["state"] == JobState.RUNNING and not job["in_sync"]
                dut.flush_lasts.value = 0
            for _ in range(40):
                # A failed drive is taken back once the job has ended, and not within that time.
                state = (await host.job(array))["state"]
                assert state != JobState.FAILED, f"{ports} restart {early} cycles before the end"
            await host.rest()
            job = await host.job(array)
            what = f"{ports} restart {early} cycles before the end: {job}"
            assert job["state"] == JobState.DONE and job["in_sync"], what
            assert host.state(array) == ArrayState.OPTIMAL, what
            walked = host.rows_of(WalkKind.RESYNC)
            if needed:
                assert walked == every + every or (early <= 0 and walked == every), what
            else:
                assert walked == every, what
                assert job["kind"] == WalkKind.REBUILD, what
            await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def drives_restart_as_they_are_to_be_flushed(dut):
    """The flush begins before it is known what becomes of them. It does not make them good: one is
    brought up to date, and if they are needed the job begins anew."""
    host = await begin(dut)
    every = [*range(ROWS)]
    for needed in (False, True):
        for later in range(0, 30, 3):
            array = await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1)
            await through(host, array, WalkKind.RESYNC)
            ports = (0, 1) if needed else (1,)
            await host.restart(*ports)
            await ClockCycles(dut.clk, later)
            job = await flushed(host, array)
            what = f"{ports} restart {later} cycles before the flush: {job}"
            assert job["state"] == JobState.DONE and job["in_sync"], what
            assert host.state(array) == ArrayState.OPTIMAL, what
            assert host.rows_of(WalkKind.RESYNC) == (every + every if needed else every), what
            assert (job["kind"] == WalkKind.RESYNC) == needed, what
            await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def jobs_fail_with_their_array(dut):
    """Too many drives go as they are flushed: what the others have is not all that was written."""
    host = await begin(dut)
    kinds = (WalkKind.CHECK, WalkKind.REPAIR, WalkKind.PATROL, WalkKind.RESYNC)
    # As the flush ends the array may not have been judged yet.
    for kind, before in product(kinds, (300, 20, 0)):
        for gone in ((1,), (1, 2), (0, 1, 2)):
            array = await host.create(Level.RAID5, 0, 1, 2)
            await through(host, array, kind)
            host.pull(*gone)
            await ClockCycles(dut.clk, before)
            job = await flushed(host, array)
            state = JobState.FAILED if len(gone) > 1 else JobState.DONE
            assert job["state"] == state, f"{kind.name}, {gone} go {before} before: {job}"
            host.plug(*gone)
            await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_check_proves_what_is_stored(dut):
    """An array that is taken to be in sync is known to be when a CHECK has found nothing, and the
    drives have stored what it has read."""
    host = await begin(dut)
    for refusing, state in ((0b10, JobState.FAILED), (0, JobState.DONE)):
        array = await host.create(Level.RAID5, 0, 1, 2)
        await through(host, array, WalkKind.CHECK)
        dut.refusing.value = refusing
        assert (await host.job(array))["assumed"], "before it is stored"
        job = await flushed(host, array)
        assert (job["state"], job["assumed"]) == (state, bool(refusing)), job
        dut.refusing.value = 0
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_zero_fails_with_its_array(dut):
    """Drives go as they are flushed, more than the array can do without."""
    host = await begin(dut)
    for level, ports, gone in (
        (Level.RAID0, (4, 5), (4,)),
        (Level.RAID5, (0, 1, 2), (1, 2)),
        (Level.RAID5, (0, 1, 2), (1,)),
    ):
        redundant = level == Level.RAID5
        array = await host.create(level, *ports, assumed=0, idle=int(redundant))
        await through(host, array, WalkKind.ZERO)
        host.pull(*gone)
        await ClockCycles(dut.clk, 300)
        fails = len(gone) > redundant
        job = await flushed(host, array)
        assert job["state"] == (JobState.FAILED if fails else JobState.DONE), f"{level}: {job}"
        assert job["in_sync"] == (not redundant or not fails), f"{level}: {job}"
        host.plug(*gone)
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_rebuild_stores_what_the_resync_has_written(dut):
    """A RESYNC goes on as REBUILD: all live drives are flushed at its end. One that is needed does
    not do that: the job has failed, and the drive that was rebuilt is trusted all the same."""
    host = await begin(dut)
    for trouble in ("none", "refuses", "restarts"):
        array = await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1)
        host.pull(2)
        await host.rest()
        dut.flush_waits.value = 1
        host.log.clear()
        await host.good(ManageOpcode.REPLACE, array=array, position=2, port=6)
        await host.rest()
        assert {*host.rows_of(WalkKind.RESYNC)} == {*host.rows_of(WalkKind.REBUILD)}
        job = await host.job(array)
        assert (job["kind"], job["state"]) == (WalkKind.REBUILD, JobState.RUNNING)
        host.log.clear()
        if trouble == "refuses":
            dut.refusing.value = 1
        if trouble == "restarts":
            await host.restart(1)
            await ClockCycles(dut.clk, 300)
        job = await flushed(host, array)
        assert job["state"] == (JobState.FAILED if trouble == "refuses" else JobState.DONE), job
        # What the drive has lost is made right.
        assert (job["kind"] == WalkKind.RESYNC) == (trouble == "restarts"), job
        assert host.state(array) == ArrayState.OPTIMAL and not sample(dut.drives__stale)
        dut.refusing.value = 0
        host.plug(2)
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_resync_whose_array_fails_with_its_last_row_comes_back(dut):
    """A REBUILD would follow. It does not, and no row counts as in sync."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1)
    host.pull(2)
    await host.rest()

    def judge(row):
        if row.row == ROWS - 1:
            host.pull(1)
        return WalkResult.GOOD, 0

    host.judge = judge
    await host.good(ManageOpcode.REPLACE, array=array, position=2, port=6)
    await host.rest()
    assert {*host.rows_of(WalkKind.RESYNC)} == {*range(ROWS)}
    job = await host.job(array)
    assert host.state(array) == ArrayState.FAILED
    assert (job["kind"], job["state"]) == (WalkKind.RESYNC, JobState.FAILED), job
    assert not job["in_sync"], job


def test_stored():
    simulate(Assembly(), name="stored", module=__name__)


class EndsAtOnce(Jobs):
    """Planted bug: a job is done with its last row."""

    def _hand_over(self, m):
        with m.State("HAND-OVER"):
            self._end(m, JobState.DONE)
            m.d.comb += self._is_through.eq(1)


class SyncsTooSoon(Jobs):
    """Planted bug: rows are in sync before they are stored."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        end = self.slice_end
        with m.If(end.valid & end.ready & end.payload.complete & self._syncs_rows):
            m.d.sync += self._is_unsynced.eq(0)
        return m


class HandsOverInDoubt(Supervisor):
    """Planted bug: a job is done although drives have restarted before they had flushed."""

    def _hand_over(self, m):
        with m.State("HAND-OVER"):
            m.d.comb += self.jobs.handed.eq(self.verdicts.settled)
            with m.If(self.verdicts.settled):
                m.next = "REST"


@pytest.mark.parametrize(
    ("bug", "testcase"),
    [
        (EndsAtOnce, "what_jobs_have_written_is_stored"),
        (SyncsTooSoon, "rows_are_in_sync_when_they_are_stored"),
        (HandsOverInDoubt, "rows_are_in_sync_when_they_are_stored"),
        (HandsOverInDoubt, "drives_restart_while_they_flush_for_a_job"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_found(bug, testcase, monkeypatch):
    monkeypatch.setattr(f"hdl.background.background.{bug.__base__.__name__}", bug)
    with pytest.raises(SimulationError, match=testcase):
        simulate(Assembly(), name=f"stored_{bug.__name__}", module=__name__, testcase=testcase)
