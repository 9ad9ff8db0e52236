"""Drives that begin anew by themselves: brought up to date where that can be, kept where not."""


import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.background.background_bench import ROWS, Assembly, Bench, begin
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample
from hdl.array.states import ArrayStates
from hdl.array.tables.tables import ArrayTables
from hdl.background.background import Background
from hdl.background.jobs import JobState
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode, ManageStatus
from hdl.flow.walk import WalkKind


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_member_is_brought_up_to_date(dut):
    """It is taken back by itself, before a hot spare is, and only marked rows are rebuilt."""
    host = await begin(dut)
    for level, ports in ((Level.RAID5, (0, 1, 2)), (Level.RAID10, (3, 4, 5))):
        array = await host.create(level, *ports)
        if array == 0:
            await host.good(ManageOpcode.ADD_SPARE, port=7)
        await host.flush(array)
        await host.write(array, 3, 4)
        marked = (await host.job(array))["marked"]
        assert marked
        host.log.clear()
        await host.restart(ports[1])
        drive = 1 << ports[1]
        suspect, failed = sample(dut.drives__suspect), sample(dut.drives__failed)
        assert suspect == drive or failed & drive
        await host.until(lambda bit=drive: sample(dut.drives__stale) == bit, "a stale drive")
        await host.rest()
        job = await host.job(array)
        assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.REBUILD)
        rebuilt = {*host.rows_of(WalkKind.REBUILD)}
        assert {3, 4} <= rebuilt and len(rebuilt) <= marked * job["chunk"] < ROWS
        assert not sample(dut.drives__suspect) and not sample(dut.drives__stale)
        assert host.state(array) == ArrayState.OPTIMAL
        assert not sample(dut.drives__failed) & 0xFF
    assert sample(dut.drives__used) == 0b111111


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def marks_are_kept(dut):
    """A flush that was under way as the drive began anew makes no mark needless."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.write(array, 3)
    host.log.clear()
    host.paused = True
    await host.flush_now(array, host.restart(1))
    host.paused = False
    await host.rest()
    assert 3 in host.rows_of(WalkKind.REBUILD)
    assert (await host.job(array))["marked"]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def the_last_copy_is_kept(dut):
    """Where an array cannot do without them drives stay, until a flush has been refused."""
    host = await begin(dut)
    array = await host.create(Level.RAID0, 3, 4)
    mirror = await host.create(Level.RAID1, 0, 1)
    single = await host.create(Level.RAID5, 5, 6, 7)
    host.pull(7)
    await host.rest()
    host.log.clear()
    # Nor until the drives have been flushed for a job.
    dut.flush_waits.value = 1
    for ports, number in (((3,), array), ((0, 1), mirror), ((5,), single)):
        mask = sum(1 << port for port in ports)
        before = host.state(number)
        await host.restart(*ports)
        await host.rest()
        assert sample(dut.drives__suspect) == mask, "a flush would succeed"
        assert not sample(dut.drives__failed) & mask and not sample(dut.drives__stale)
        assert host.state(number) == before
        # A flush of another array says nothing about them.
        dut.blamed.value = 0x7F & ~mask
        await ClockCycles(dut.clk, 2)
        assert sample(dut.drives__suspect) == mask
        dut.blamed.value = mask
        await RisingEdge(dut.clk)
        dut.blamed.value = 0
        await ClockCycles(dut.clk, 2)
        assert not sample(dut.drives__suspect)
    assert not host.log
    dut.flush_waits.value = 0
    await host.rest()
    assert (await host.job(mirror))["state"] == JobState.DONE


def chunks_of(rows: set[int], chunk: int) -> set[int]:
    """All rows of the chunks that rows lie in."""
    return {row for row in range(ROWS) if row // chunk in {one // chunk for one in rows}}


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def rows_that_may_be_torn_are_made_right(dut):
    """Drives of a group begin anew together: what was marked is not in sync until RESYNC has passed
    it, whatever is flushed meanwhile, and however often they do it."""
    host = await begin(dut)
    for level, ports in ((Level.RAID5, (0, 1, 2)), (Level.RAID10, (3, 4, 5, 6))):
        array = await host.create(level, *ports)
        await host.flush(array)
        assert (await host.job(array))["in_sync"]
        written = {*range(3, 9), *range(17, 20)}
        await host.write(array, *written)
        chunk = (await host.job(array))["chunk"]
        host.log.clear()
        host.paused = True
        news = host.news
        await host.restart(*ports[:2])
        await host.until(lambda: bool(host.out), "rows")
        job = await host.job(array)
        assert (job["state"], job["kind"]) == (JobState.RUNNING, WalkKind.RESYNC)
        assert not job["in_sync"] and job["synced"] <= 3 and host.news == news + 1
        assert host.state(array) == ArrayState.OPTIMAL
        # A flush is refused, the next one is not; what was marked stays so.
        dut.blamed.value = 0xFF
        await ClockCycles(dut.clk, 2)
        dut.blamed.value = 0
        await ClockCycles(dut.clk, 2)
        assert not sample(dut.drives__suspect)
        for _ in range(2):
            await host.flush_now(array)
            await ClockCycles(dut.clk, 200)
        # Once more: it begins anew.
        wanted = chunks_of(written, chunk)
        host.paused = False
        await host.until(lambda: len(host.log) > 5, "rows")
        await host.restart(*ports[:2])
        await host.rest()
        walked = host.rows_of(WalkKind.RESYNC)
        assert {*walked} == wanted and len(walked) > len(wanted)
        job = await host.job(array)
        assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.RESYNC)
        assert job["in_sync"]
        await host.flush(array)


async def stop_in_the_middle(host: Bench, array: int) -> None:
    """The host, which is ``paused``, stops a job that has rows on their way; none is logged."""
    await host.until(lambda: bool(host.out), "rows")
    host.requests.send(opcode=ManageOpcode.STOP_JOB, array=array)
    await ClockCycles(host.dut.clk, 100)
    host.paused = False
    await host.rest()
    assert (await host.job(array))["state"] == JobState.STOPPED
    host.log.clear()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_resync_of_every_row(dut):
    """What the host has ordered follows no marks, also if drives begin anew, or had before."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    resync = {"array": array, "kind": WalkKind.RESYNC.value}
    await host.good(ManageOpcode.START_JOB, **resync)
    await host.until(lambda: len(host.log) > ROWS // 2, "rows")
    await host.restart(0, 1)
    await host.rest()
    assert host.rows_of(WalkKind.RESYNC)[-ROWS:] == [*range(ROWS)]
    assert (await host.job(array))["in_sync"]
    # The card's own one is stopped, and another ordered.
    for row in range(0, ROWS, 8):
        await host.write(array, row)
    host.paused = True
    await host.restart(0, 1)
    await stop_in_the_middle(host, array)
    await host.good(ManageOpcode.START_JOB, **resync)
    await host.rest()
    assert host.rows_of(WalkKind.RESYNC) == [*range(ROWS)]
    assert (await host.job(array))["in_sync"]
    # The host's is stopped, and the card's own one comes in its place.
    host.paused = True
    await host.good(ManageOpcode.START_JOB, **resync)
    await stop_in_the_middle(host, array)
    await host.restart(0, 1)
    await host.rest()
    assert host.rows_of(WalkKind.RESYNC) == [*range(ROWS)]
    assert (await host.job(array))["in_sync"]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def torn_rows_of_an_array_that_fails(dut):
    """The resync ends with it, and begins again by itself once the array is there again."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    host.pull(2)
    await host.rest()
    for row in range(0, ROWS, 4):
        await host.write(array, row)
    await host.good(ManageOpcode.REPLACE, array=array, position=2, port=6)
    await host.until(lambda: len(host.log) > ROWS // 2, "rows")
    host.paused = True
    await host.restart(0, 1)
    host.paused = False
    await host.until(lambda: bool(host.rows_of(WalkKind.RESYNC)), "a resync")
    host.paused = True
    host.pull(1)
    host.paused = False
    await host.rest()
    job = await host.job(array)
    assert (job["kind"], job["state"]) == (WalkKind.RESYNC, JobState.FAILED), job
    assert host.state(array) == ArrayState.FAILED
    host.log.clear()
    await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.SALVAGE.value)
    await host.rest()
    assert host.state(array) == ArrayState.DEGRADED
    job = await host.job(array)
    assert (job["kind"], job["state"]) == (WalkKind.RESYNC, JobState.DONE), job
    assert job["in_sync"] and host.rows_of(WalkKind.RESYNC)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def torn_rows_and_other_jobs(dut):
    """A resync that has not ended begins with row 0; a migration goes on; others give way."""
    host = await begin(dut)
    # Never in sync so far: all rows, whether they are marked or not.
    array = await host.create(Level.RAID5, 0, 1, 2, assumed=0)
    await host.until(lambda: len(host.log) > ROWS // 2, "rows")
    await host.restart(0, 1)
    await host.until(lambda: not sample(dut.busy) or not host.out, "rows that have ended")
    host.log.clear()
    await host.rest()
    assert {*host.rows_of(WalkKind.RESYNC)} == {*range(ROWS)}
    assert (await host.job(array))["in_sync"]
    dut.blamed.value = 0xFF
    await ClockCycles(dut.clk, 2)
    dut.blamed.value = 0
    await host.flush(array)
    # While a member migrates.
    await host.write(array, 9)
    host.log.clear()
    await host.good(ManageOpcode.MIGRATE, array=array, position=2, port=6)
    await host.until(lambda: len(host.log) > 2, "rows")
    await host.restart(0, 1)
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.RESYNC) and job["in_sync"]
    assert {*host.rows_of(WalkKind.MIGRATE)} == {*range(ROWS)}
    assert 9 in host.rows_of(WalkKind.RESYNC)
    assert sample(dut.drives__used) == 0b1000011
    # While it is checked.
    await host.write(array, 10)
    host.log.clear()
    await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.CHECK.value)
    await host.until(lambda: len(host.log) > 2, "rows")
    await host.restart(0, 6)
    await host.rest()
    assert 10 in host.rows_of(WalkKind.RESYNC) and (await host.job(array))["in_sync"]
    # Nothing is torn any more, so a resync that the host asks for is of all rows.
    host.log.clear()
    await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.RESYNC.value)
    await host.rest()
    assert {*host.rows_of(WalkKind.RESYNC)} == {*range(ROWS)}
    # Where there is nothing to be in sync.
    plain = await host.create(Level.RAID0, 3, 4)
    host.log.clear()
    await host.restart(3, 4)
    await host.rest()
    job = await host.job(plain)
    assert job["in_sync"] and job["state"] == JobState.NONE and not host.log


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_drive_that_cannot_return_is_replaced(dut):
    """It does not say who it is: a spare takes its place. A drive of no array is nobody's care."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.good(ManageOpcode.ADD_SPARE, port=7)
    dut.identity__1.value = 99
    await host.restart(1, 4)
    await host.rest()
    assert sample(dut.drives__used) == 0b10000101
    assert host.state(array) == ArrayState.OPTIMAL and not sample(dut.drives__suspect)
    assert len(set(host.rows_of(WalkKind.REBUILD))) == ROWS
    # Half rebuilt, it begins again; so it does as a migration target.
    host.log.clear()
    await host.good(ManageOpcode.MIGRATE, array=array, position=1, port=3)
    await host.until(lambda: len(host.log) > 4, "rows")
    await host.restart(3)
    await host.rest()
    assert (await host.job(array))["state"] == JobState.FAILED
    assert sample(dut.drives__used) == 0b10000101 and host.state(array) == ArrayState.OPTIMAL
    host.pull(2)
    await host.rest()
    host.plug(2)
    host.paused = True
    request = {"array": array, "position": 2, "port": 6}
    assert await host.change(ManageOpcode.REPLACE, **request) == ManageStatus.DONE
    await host.until(lambda: bool(host.out), "rows")
    await host.restart(6)
    host.paused = False
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.REBUILD)
    assert host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def late_reports_say_nothing_new(dut):
    """What was on its way to the drive is reported after it has failed. It is taken back all the
    same, once nothing is inside any more that has known it as it was."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.write(array, 3)
    dut.occupied.value = 1
    for number in range(4):
        host.log.clear()
        await host.restart(1)
        await host.until(lambda: sample(dut.drives__failed) & 2, "a failed drive", cycles=200)
        for _ in range(3 * number):
            await ClockCycles(dut.clk, host.random.randrange(30))
            await host.fail(1)
        await ClockCycles(dut.clk, 300)
        failed = sample(dut.drives__failed)
        assert failed & 2, "the drive is had again while rows may refer to it"
        assert not sample(dut.drives__stale) and not host.log
        dut.occupied.value = 0
        await host.rest()
        assert 3 in host.rows_of(WalkKind.REBUILD), number
        assert host.state(array) == ArrayState.OPTIMAL
        dut.occupied.value = 1
    # If another drive is there by then, nobody takes that for the old one.
    await host.restart(1)
    await ClockCycles(dut.clk, 300)
    host.pull(1)
    await ClockCycles(dut.clk, 3)
    dut.identity__1.value = 99
    host.plug(1)
    dut.occupied.value = 0
    await host.rest()
    assert sample(dut.drives__failed) & 2 and host.state(array) == ArrayState.DEGRADED


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def is_never_trusted_at_once(dut):
    """A report, or an absence, in any cycle around the one in which the drive is had again: it has
    failed, or is rebuilt, but is never just good."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.write(array, 3)
    failed = rebuilt = 0
    for away in (False, True):
        for delay in range(20, 160):
            host.log.clear()
            host.paused = True
            await host.restart(1)
            await ClockCycles(dut.clk, delay)
            if away:
                host.pull(1)
                await ClockCycles(dut.clk, 1)
                host.plug(1)
            else:
                await host.fail(1)
            await host.until(lambda: bool(host.out) or not sample(dut.busy), "rows")
            await ClockCycles(dut.clk, 4)
            failed, stale = sample(dut.drives__failed), sample(dut.drives__stale)
            assert (failed | stale) & 2, f"good after {delay} cycles"
            host.paused = False
            await host.rest()
            if sample(dut.drives__failed) & 2:
                assert host.state(array) == ArrayState.DEGRADED
                failed += 1
                request = {"array": array, "position": 1}
                status = await host.change(ManageOpcode.RE_ADD, **request)
                if status == ManageStatus.OTHER_DRIVE:
                    # Nobody was there as it joined.
                    await host.good(ManageOpcode.REPLACE, **request, port=1)
                await host.rest()
            else:
                rebuilt += 1
            assert 3 in host.rows_of(WalkKind.REBUILD), f"not rebuilt after {delay} cycles"
            assert host.state(array) == ArrayState.OPTIMAL
    assert failed and rebuilt


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def marks_are_kept_until_it_is_known_who_needs_them(dut):
    """The jobs hear of torn rows only as rows on their way have ended, those of other arrays too.
    Flushes that succeed meanwhile make no mark needless."""
    host = await begin(dut)
    other = await host.create(Level.RAID5, 3, 4, 5)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.flush(array)
    await host.write(array, 3, 17)
    host.paused = True
    await host.good(ManageOpcode.START_JOB, array=other, kind=WalkKind.CHECK.value)
    await host.until(lambda: bool(host.out), "rows")
    host.log.clear()
    await host.restart(0, 1)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=200)
    dut.blamed.value = 0xFF
    await ClockCycles(dut.clk, 2)
    dut.blamed.value = 0
    await ClockCycles(dut.clk, 100)
    assert not sample(dut.drives__suspect) and (await host.job(array))["in_sync"]
    # Nor is another drive judged as if the rows were right.
    await host.restart(2)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=200)
    assert not sample(dut.drives__failed) & 4, "thrown out of an inconsistent array"
    for _ in range(2):
        await host.flush_now(array)
        await ClockCycles(dut.clk, 200)
    host.paused = False
    await host.rest()
    assert {3, 17} <= {*host.rows_of(WalkKind.RESYNC)}
    assert (await host.job(array))["in_sync"]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def torn_rows_prove_nothing(dut):
    """An array that is only assumed to be in sync stays so when its marked rows have been made
    right. A resync of all rows proves it."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.write(array, 3)
    await host.restart(0, 1)
    await host.rest()
    job = await host.job(array)
    assert 3 in host.rows_of(WalkKind.RESYNC) and job["state"] == JobState.DONE
    assert job["in_sync"] and job["assumed"]
    await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.RESYNC.value)
    await host.rest()
    assert not (await host.job(array))["assumed"]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def nobody_is_doubted_for_long(dut):
    """A drive that leaves its array, and is in none, is decided on too: others wait for that."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 0)
    dut.occupied.value = 1
    await host.good(ManageOpcode.MIGRATE, array=array, position=0, port=3)
    await host.until(lambda: not host.out and len(host.log) == ROWS, "all rows")
    await ClockCycles(dut.clk, 300)
    assert sample(dut.drives__used) == 0b1001
    await host.restart(0)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=300)
    dut.occupied.value = 0
    await host.rest()
    assert sample(dut.drives__used) == 0b1000 and host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_new_array_is_not_torn(dut):
    """Rows of an array were torn as it was deleted. The next one of that number can do without a
    drive that restarts."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.write(array, 3)
    host.paused = True
    await host.restart(0, 1)
    await stop_in_the_middle(host, array)
    dut.blamed.value = 0xFF
    await ClockCycles(dut.clk, 2)
    dut.blamed.value = 0
    await host.rest()
    await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert await host.create(Level.RAID5, 0, 1, 2) == array
    await host.rest()
    assert not sample(dut.drives__suspect)
    await host.write(array, 5)
    host.paused = True
    await host.restart(1)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=400)
    await ClockCycles(dut.clk, 100)
    assert not sample(dut.drives__suspect) & 2, "kept, though the others have all it has lost"
    host.paused = False
    await host.rest()


def test_restarts():
    simulate(Assembly(), name="restarts", module=__name__)


class TrustsAll(ArrayStates):
    """Planted bug: every drive that restarts is kept."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += [self.yields.eq(0), self.keeps.eq(self.drives.suspect)]
        return m


class TrustsNone(ArrayStates):
    """Planted bug: every drive that restarts is failed."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += [self.keeps.eq(0), self.yields.eq(self.drives.suspect)]
        return m


class ForgetsDoubts(Background):
    """Planted bug: an array counts as inconsistent only once the jobs have heard of it."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self._states.inconsistent.eq(self._jobs.inconsistent)
        return m


class AbsolvesNobody(ArrayTables):
    """Planted bug: drives that are kept are not flushed for jobs."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self._health.absolves.eq(0)
        return m


@pytest.mark.parametrize(
    ("bug", "testcase"),
    [
        (TrustsAll, "a_member_is_brought_up_to_date"),
        (TrustsNone, "the_last_copy_is_kept"),
        (ForgetsDoubts, "marks_are_kept_until_it_is_known_who_needs_them"),
        (AbsolvesNobody, "rows_that_may_be_torn_are_made_right"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_found(bug, testcase, monkeypatch):
    users = {AbsolvesNobody: "cocotb_tests.background.background_bench"}
    if issubclass(bug, Background):
        assembly = Assembly(background=bug)
    else:
        user = users.get(bug, "hdl.background.background")
        monkeypatch.setattr(f"{user}.{bug.__base__.__name__}", bug)
        assembly = Assembly()
    with pytest.raises(SimulationError, match=testcase):
        simulate(assembly, name=f"restarts_{bug.__name__}", module=__name__, testcase=testcase)
