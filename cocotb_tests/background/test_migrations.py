"""Migrations on the tables: begun, ended in each way there is, refused; spares."""


import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.background.background_bench import CONFIG, ROWS, Assembly, Bench, begin
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample
from hdl.background.jobs import JobState
from hdl.background.supervisor import Supervisor
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode, ManageStatus, MigrationEnd
from hdl.flow.walk import WalkKind, WalkResult


async def begin_raid5(dut, *, drives: int = 7) -> tuple[Bench, int]:
    """A RAID 5 of ports 0 to 2."""
    host = await begin(dut, drives=drives)
    return host, await host.create(Level.RAID5, 0, 1, 2)


def migrate(array: int, position: int, port: int, **fields) -> dict:
    return {
        "opcode": ManageOpcode.MIGRATE, "array": array, "position": position, "port": port, **fields
    }  # fmt: skip


async def half_way(host: Bench, array: int, **fields) -> None:
    """A migration of member 1 to port 5 that has come to the middle, with rows on their way."""
    host.log.clear()
    host.paused = True
    await host.good(**migrate(array, 1, 5, **fields))
    await host.until(lambda: len(host.out) == CONFIG.walk_window, "rows")
    host.paused = False
    await host.until(lambda: len(host.log) > ROWS // 2, "rows")
    host.paused = True
    await ClockCycles(host.dut.clk, 200)


def used(dut) -> int:
    return sample(dut.drives__used)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def moves_members(dut):
    """The array is optimal all the time; then the old drive is free, or a spare."""
    host, array = await begin_raid5(dut)
    for spare in (0, 1):
        host.log.clear()
        old, new = (1, 5) if not spare else (5, 1)
        await host.good(**migrate(array, 1, new, spare=spare))
        assert used(dut) == 0b100111 and not sample(dut.drives__stale)
        assert (await host.job(array))["state"] == JobState.RUNNING
        refused = migrate(array, 0, 4)
        assert await host.change(**refused) == ManageStatus.JOB_RUNNING
        assert await host.change(ManageOpcode.DELETE_ARRAY, array=array) == ManageStatus.JOB_RUNNING
        await host.rest()
        job = await host.job(array)
        assert (job["state"], job["kind"], job["row"]) == (JobState.DONE, WalkKind.MIGRATE, ROWS)
        assert host.rows_of(WalkKind.MIGRATE) == list(range(ROWS))
        assert used(dut) == 0b101 | 1 << new and not sample(dut.drives__stale)
        assert host.state(array) == ArrayState.OPTIMAL and not host.news
        # What was the member is nothing to the array any more, the new one is.
        host.pull(old)
        await host.rest()
        assert host.state(array) == ArrayState.OPTIMAL
        host.plug(old)
        await host.rest()
    # It is a spare: for no new array, and it steps in.
    taken = {"opcode": ManageOpcode.CREATE_ARRAY, "level": Level.JBOD.value, "drives": 1 << 5}
    assert await host.change(**taken) == ManageStatus.DRIVE_UNAVAILABLE
    host.pull(1)
    await host.rest()
    assert used(dut) == 0b100101 and host.state(array) == ArrayState.OPTIMAL
    assert host.rows_of(WalkKind.REBUILD) == list(range(ROWS))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def ends_badly(dut):
    """The migration target fails, or the host ends it: nothing of it is left."""
    host, array = await begin_raid5(dut)
    for way in ("pull", "refuse", "stop"):
        await half_way(host, array)
        if way == "pull":
            host.pull(5)
        elif way == "refuse":
            host.fails.send(5)
        host.paused = False
        if way == "stop":
            await host.good(ManageOpcode.STOP_JOB, array=array)
        await host.rest()
        job = await host.job(array)
        wanted = JobState.STOPPED if way == "stop" else JobState.FAILED
        assert (job["state"], job["kind"]) == (wanted, WalkKind.MIGRATE), way
        assert used(dut) == 0b111 and not sample(dut.drives__stale), way
        assert host.state(array) == ArrayState.OPTIMAL and not host.news
        host.plug(5)
        await host.rest()
        if way == "stop":
            resume = {"opcode": ManageOpcode.START_JOB, "kind": WalkKind.MIGRATE.value, "resume": 1}
            assert await host.change(**resume, array=array) == ManageStatus.INVALID_FIELD
    # The next one begins from row 0.
    host.log.clear()
    await host.good(**migrate(array, 1, 5))
    await host.rest()
    assert host.rows_of(WalkKind.MIGRATE) == list(range(ROWS))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def the_member_fails(dut):
    """The migration target is the member at once, and the rest of it is rebuilt."""
    host, array = await begin_raid5(dut)
    await host.good(ManageOpcode.ADD_SPARE, port=6)
    await half_way(host, array)
    boundary = await host.boundary(array)
    assert 0 < boundary < ROWS
    host.pull(1)
    host.paused = False
    await host.until(lambda: bool(sample(dut.drives__stale)), "a stale drive")
    await ClockCycles(dut.clk, 6)
    assert sample(dut.drives__stale) == 1 << 5 and used(dut) == 0b100101
    while sample(dut.drives__stale):
        assert await host.boundary(array) >= boundary
        await RisingEdge(dut.clk)
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"], job["row"]) == (JobState.DONE, WalkKind.REBUILD, ROWS)
    migrated, rebuilt = host.rows_of(WalkKind.MIGRATE), host.rows_of(WalkKind.REBUILD)
    assert sorted({*migrated, *rebuilt}) == list(range(ROWS)) and rebuilt[0] >= boundary
    assert host.state(array) == ArrayState.OPTIMAL and host.news == 2
    assert used(dut) == 0b100101, "a spare has stepped in"
    # Both at once: the array has lost a member, and a spare takes its place.
    host.plug(1)
    host.log.clear()
    host.paused = True
    await host.good(**migrate(array, 1, 1))
    await host.until(lambda: len(host.out) > 2, "rows")
    host.pull(1, 5)
    host.paused = False
    await host.rest()
    assert used(dut) == 0b1000101 and host.state(array) == ArrayState.OPTIMAL
    assert host.rows_of(WalkKind.REBUILD) == list(range(ROWS))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def another_member_fails(dut):
    """A spare waits for the end of a migration."""
    host, array = await begin_raid5(dut)
    await host.good(ManageOpcode.ADD_SPARE, port=6)
    await half_way(host, array)
    host.pull(2)
    await ClockCycles(dut.clk, 500)
    assert not sample(dut.drives__stale) and host.state(array) == ArrayState.DEGRADED
    host.paused = False
    await host.rest()
    assert host.rows_of(WalkKind.MIGRATE) == list(range(ROWS))
    assert host.rows_of(WalkKind.REBUILD) == list(range(ROWS))
    assert used(dut) == 0b1100001 and host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def nobody_gets_a_drive_that_is_written(dut):
    """What a migration leaves is anybody's, a spare too, once nobody is inside for its array."""
    host, array = await begin_raid5(dut)
    host.log.clear()
    dut.occupied.value = 1
    await host.good(**migrate(array, 1, 5, spare=1))
    await host.until(lambda: len(host.log) == ROWS, "rows")
    host.pull(2)
    await ClockCycles(dut.clk, 1000)
    assert not sample(dut.drives__stale) and used(dut) == 0b100111
    assert (await host.job(array))["state"] == JobState.RUNNING
    dut.occupied.value = 0
    await host.rest()
    assert used(dut) == 0b100011 and host.state(array) == ArrayState.OPTIMAL
    # Stopped by the host.
    dut.occupied.value = 1
    await host.good(**migrate(array, 0, 4))
    await host.until(lambda: bool(host.out), "rows")
    host.requests.send(opcode=ManageOpcode.STOP_JOB, array=array)
    host.expect(ManageOpcode.CREATE_ARRAY)
    host.requests.send(opcode=ManageOpcode.CREATE_ARRAY, level=Level.JBOD.value, drives=1 << 4)
    await ClockCycles(dut.clk, 1000)
    assert used(dut) == 0b110011
    dut.occupied.value = 0
    for _ in range(2):
        assert (await host.responses.receive(cycles=2000)).status == ManageStatus.DONE
    assert used(dut) == 0b110011
    await host.rest()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_last_writes_count(dut):
    """Rows that began before the end of a migration are refused, or not, by the new member.
    Or it may have lost them, as it restarts."""
    host, _ = await begin_raid5(dut)
    array = await host.create(Level.JBOD, 3)
    new = 5
    for delay in (*range(0, 60, 2), 200, 400, 199, 401, None):
        host.log.clear()
        dut.occupied.value = 1
        await host.good(**migrate(array, 0, new))
        await host.until(lambda: len(host.rows_of(WalkKind.MIGRATE)) == ROWS, "rows")
        await host.until(lambda: not host.out, "the last rows")
        if delay is not None:
            await ClockCycles(dut.clk, delay)
            if delay % 4 == 0:
                await host.fail(new)
            else:
                dut.restarted.value = 1 << new
                await ClockCycles(dut.clk, 1)
                dut.restarted.value = 0
        await ClockCycles(dut.clk, 600)
        assert used(dut) == 0b101111, "a drive has left with writes on their way"
        # What waits for the last ones finds a member that has everything.
        assert host.state(array) == ArrayState.OPTIMAL, delay
        dut.occupied.value = 0
        await host.rest()
        assert host.state(array) == ArrayState.OPTIMAL, delay
        assert not sample(dut.drives__failed) & used(dut), delay
        job = await host.job(array)
        if delay is None:
            assert job["state"] == JobState.DONE and used(dut) == 0b100111
            break
        assert job["state"] == JobState.FAILED and used(dut) == 0b001111, delay
        # It is as new.
        host.pull(new)
        await ClockCycles(dut.clk, 4)
        host.plug(new)
        await host.rest()


async def change_places(dut, host) -> int:
    """A JBOD whose member at port 3 and the new drive at port 5 have changed places, while rows are
    under way that began before."""
    array = await host.create(Level.JBOD, 3)
    dut.flush_waits.value = 1
    await host.good(**migrate(array, 0, 5))
    await host.until(lambda: len(host.log) == ROWS and not host.out, "all rows")
    await ClockCycles(dut.clk, 300)
    dut.occupied.value, dut.flush_waits.value = 1, 0
    await host.until(lambda: sample(dut.drives__replaced) == 1 << 3, "other places", cycles=300)
    return array


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def the_last_of_the_two_drives_restarts(dut):
    """They have changed places, and the old one has gone. The new one begins anew, and is kept,
    since it has all that there is."""
    host, _ = await begin_raid5(dut)
    array = await change_places(dut, host)
    host.pull(3)
    await ClockCycles(dut.clk, 300)
    await host.restart(5)
    await ClockCycles(dut.clk, 300)
    dut.occupied.value = 0
    await host.rest()
    assert used(dut) == 0b100111 and not sample(dut.drives__failed) & 1 << 5
    assert host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def the_new_drive_restarts_in_its_place(dut):
    """They have changed places, and rows of before are under way. The new drive begins anew, and
    goes: the old one has all that it has."""
    host, _ = await begin_raid5(dut)
    array = await change_places(dut, host)
    await host.restart(5)
    await ClockCycles(dut.clk, 300)
    dut.occupied.value = 0
    await host.rest()
    assert used(dut) == 0b001111 and host.state(array) == ArrayState.OPTIMAL
    assert (await host.job(array))["state"] == JobState.FAILED
    assert not sample(dut.arrays__indebted)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_member_restarts(dut):
    """It may have lost what the other drive has, so all is migrated anew. But that is not so
    once the other one is the member."""
    host, _ = await begin_raid5(dut)
    array = await host.create(Level.JBOD, 3)
    old, new = 3, 5
    walked = []
    for delay in ("migrating", "flushing", *range(0, 60, 2)):
        host.log.clear()
        dut.flush_waits.value = 1
        await host.good(**migrate(array, 0, new))
        if delay == "migrating":
            await host.until(lambda: len(host.log) > ROWS // 2, "rows")
        else:
            await host.until(lambda: len(host.log) == ROWS and not host.out, "rows")
            await ClockCycles(dut.clk, 300)
        assert (await host.job(array))["state"] == JobState.RUNNING, delay
        if isinstance(delay, int):
            dut.flush_waits.value = 0
            await ClockCycles(dut.clk, delay)
        before = len(host.log)
        dut.restarted.value = 1 << old
        await ClockCycles(dut.clk, 1)
        dut.restarted.value = 0
        await ClockCycles(dut.clk, 300)
        dut.flush_waits.value = 0
        await host.rest()
        job = await host.job(array)
        assert job["state"] == JobState.DONE and used(dut) == 0b111 | 1 << new, delay
        rows = host.rows_of(WalkKind.MIGRATE)
        walked.append(len(rows) - before)
        assert rows[-ROWS:] == list(range(ROWS)), delay
        old, new = new, old
    assert walked[:2] == [ROWS, ROWS], "not all is migrated anew"
    assert walked[2] == ROWS and walked[-1] == 0 and {*walked} == {0, ROWS}, walked


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def the_member_restarts_and_another_does(dut):
    """Before the rows on their way have ended, so before the job knows. All is migrated anew."""
    host, _ = await begin_raid5(dut)
    for ports in ((3, 4), (4, 3)):
        array = await host.create(Level.RAID0, 3, 4)
        host.log.clear()
        host.paused = False
        await host.good(**migrate(array, 0, 5))
        await host.until(lambda: len(host.log) > ROWS // 2, "rows")
        host.paused = True
        for port in ports:
            await host.restart(port)
            await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=300)
        before = len(host.log)
        host.paused = False
        await host.rest()
        assert (await host.job(array))["state"] == JobState.DONE
        # A row of two strips is walked twice.
        wanted = sorted([*range(ROWS)] * 2)
        assert host.rows_of(WalkKind.MIGRATE)[before:] == wanted, ports
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def migrations_are_refused(dut):
    host, array = await begin_raid5(dut)
    other = await host.create(Level.JBOD, 3)
    await host.good(ManageOpcode.ADD_SPARE, port=6)
    dut.capacity__4.value = 200
    for fields, status in (
        ((3, 0, 5), "NO_ENTRY"),
        ((200, 0, 5), "NO_ENTRY"),
        ((array, 3, 5), "INVALID_FIELD"),
        ((array, 40, 5), "INVALID_FIELD"),
        ((array, 0, 0), "DRIVE_UNAVAILABLE"),
        ((array, 0, 3), "DRIVE_UNAVAILABLE"),
        ((array, 0, 6), "DRIVE_UNAVAILABLE"),
        ((array, 0, 7), "DRIVE_UNAVAILABLE"),
        ((array, 0, 8), "DRIVE_UNAVAILABLE"),
        ((array, 0, 255), "DRIVE_UNAVAILABLE"),
        ((array, 0, 4), "NO_SPACE"),
    ):
        assert await host.change(**migrate(*fields)) == ManageStatus[status], fields
    assert await host.change(ManageOpcode.END_MIGRATION, array=array) == ManageStatus.INVALID_FIELD
    # Neither a failed member nor while one is rebuilt.
    host.pull(0)
    await host.until(lambda: bool(host.out), "rows")
    assert await host.change(**migrate(array, 1, 5)) == ManageStatus.JOB_RUNNING
    await host.good(ManageOpcode.STOP_JOB, array=array)
    assert await host.change(**migrate(array, 1, 5)) == ManageStatus.JOB_RUNNING
    host.pull(3)
    await host.rest()
    assert await host.change(**migrate(other, 0, 5)) == ManageStatus.IN_USE


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def members_without_redundancy(dut):
    """A JBOD is moved; lost half-way, what was migrated is kept. The rest is given up and told
    as lost when the host says so."""
    host, _ = await begin_raid5(dut)
    array = await host.create(Level.JBOD, 3)
    await host.good(**migrate(array, 0, 5))
    await host.rest()
    assert used(dut) == 0b100111 and host.rows_of(WalkKind.MIGRATE) == list(range(ROWS))
    host.log.clear()
    host.judge = lambda row: (
        (WalkResult.LOST, 1) if row.kind == WalkKind.SALVAGE else (WalkResult.GOOD, 0)
    )
    host.paused = True
    await host.good(**migrate(array, 0, 3))
    await host.until(lambda: len(host.out) > 2, "rows")
    host.pull(5)
    host.paused = False
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.FAILED, WalkKind.REBUILD)
    assert host.state(array) == ArrayState.FAILED and used(dut) == 0b001111
    assert not host.rows_of(WalkKind.REBUILD) and sample(dut.drives__stale) == 1 << 3
    salvage = {"opcode": ManageOpcode.START_JOB, "kind": WalkKind.SALVAGE.value}
    await host.good(**salvage, array=array)
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.SALVAGE)
    assert job["found"][2] == len(host.rows_of(WalkKind.SALVAGE)) > 0
    assert used(dut) == 0b001111 and host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def drives_that_do_not_flush_are_not_trusted(dut):
    """A migration that its drive does not store is given up, and so is a rebuild."""
    host, array = await begin_raid5(dut)
    dut.refusing.value = 1 << 5
    await host.good(**migrate(array, 1, 5))
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.FAILED, WalkKind.MIGRATE)
    assert used(dut) == 0b111 and host.state(array) == ArrayState.OPTIMAL
    assert not sample(dut.drives__stale)
    host.pull(1)
    await host.rest()
    await host.good(ManageOpcode.REPLACE, array=array, position=1, port=5)
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.FAILED, WalkKind.REBUILD)
    assert used(dut) == 0b100101 and host.state(array) == ArrayState.DEGRADED
    assert sample(dut.drives__failed) >> 5 & 1 and not sample(dut.drives__stale)
    dut.refusing.value = 0
    await host.good(ManageOpcode.REPLACE, array=array, position=1, port=4)
    await host.rest()
    assert (await host.job(array))["state"] == JobState.DONE
    assert host.state(array) == ArrayState.OPTIMAL


def test_migrations():
    simulate(Assembly(), name="migrations", module=__name__)


class TakesAllRows(Supervisor):
    """Planted bug: a migration that ends is complete."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.table_changes.request.payload.opcode == ManageOpcode.END_MIGRATION):
            m.d.comb += self.table_changes.request.payload.complete.eq(1)
        return m


class NamesNobody(Supervisor):
    """Planted bug: the job is not told that the drive it migrated to is to be rebuilt."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.jobs.outcome.eq(MigrationEnd.JOINED)
        return m


@pytest.mark.parametrize(
    ("bug", "testcase"), [(TakesAllRows, "ends_badly"), (NamesNobody, "the_member_fails")]
)
@pytest.mark.slow
def test_planted_bugs_are_found(bug, testcase, monkeypatch):
    monkeypatch.setattr("hdl.background.background.Supervisor", bug)
    with pytest.raises(SimulationError, match=testcase):
        simulate(
            Assembly(), name=f"migrations_{bug.__name__}", module=__name__, testcase=testcase
        )
