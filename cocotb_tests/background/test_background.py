"""Background work on the tables: rebuilds, hot spares, jobs in turn, refusals, the host's rate."""

import itertools

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import ClockCycles, FallingEdge

from cocotb_tests.background.background_bench import CAPACITY, CONFIG, ROWS, Assembly, bench
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import pack, sample
from hdl.array.tables.tables import ArrayTables
from hdl.background.jobs import JobState
from hdl.background.pace import Pace
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode, ManageStatus
from hdl.flow.report import Section, report_address
from hdl.flow.walk import WalkKind, WalkResult

FINDINGS = 32
"""Entries of a log (docs/host-interface.md)."""


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def rebuilds_members(dut):
    host = bench(dut)
    await host.begin(6)
    array = await host.create(Level.RAID6, 0, 1, 2, 3)
    await host.good(ManageOpcode.CREATE_VOLUME, array=array)
    host.pull(1)
    await host.rest()
    assert host.state(array) == ArrayState.PARTIALLY_DEGRADED and host.news == 1
    await host.good(ManageOpcode.REPLACE, array=array, position=1, port=4)
    assert sample(dut.drives__stale) == 1 << 4 and not sample(dut.drives__failed) >> 4 & 1
    # All before the boundary has been walked, whenever one looks.
    boundaries = set()
    while True:
        boundary = await host.boundary(array)
        if not sample(dut.drives__stale):
            break
        ended = {row.row for row in host.log} - {row.row for row in host.out.values()}
        assert boundary <= ROWS and ended >= set(range(boundary)), f"{boundary} of {ended}"
        boundaries.add(boundary)
    assert boundaries > {0} and boundaries & set(range(1, ROWS)), "the boundary did not move"
    await host.rest()
    job = await host.job(array)
    assert job["state"] == JobState.DONE and job["row"] == ROWS and job["kind"] == WalkKind.REBUILD
    assert 0 < job["began"] < job["ended"] <= host.cycle
    assert host.rows_of(WalkKind.REBUILD, array) == list(range(ROWS))
    assert host.state(array) == ArrayState.OPTIMAL and host.news == 2
    assert not sample(dut.drives__used) >> 1 & 1
    # The new drive is lost again while it is rebuilt; then the job has failed.
    host.pull(4)
    host.plug(1)
    await host.rest()
    host.log.clear()
    host.paused = True
    await host.good(ManageOpcode.REPLACE, array=array, position=1, port=1)
    await host.until(lambda: len(host.out) > 2, "rows")
    host.pull(1)
    host.paused = False
    await host.rest()
    assert (await host.job(array))["state"] == JobState.FAILED
    assert len(host.log) < ROWS and host.state(array) == ArrayState.PARTIALLY_DEGRADED
    # A row that a drive refuses: not done, walked again.
    host.plug(1, 4)
    host.log.clear()
    refused = []

    def judge(row):
        if row.row == 7 and not refused:
            refused.append(row)
            return WalkResult.FAILED, 0
        return (WalkResult.LOST, 5) if row.row == 9 else (WalkResult.GOOD, 0)

    host.judge = judge
    await host.good(ManageOpcode.REPLACE, array=array, position=1, port=4)
    await host.rest()
    job = await host.job(array)
    assert job["state"] == JobState.DONE and host.state(array) == ArrayState.OPTIMAL
    assert set(host.rows_of(WalkKind.REBUILD, array)) == set(range(ROWS))
    assert host.rows_of(WalkKind.REBUILD, array).count(7) == 2
    words = await host.words(Section.LOST, 0)
    assert words[0] == 1 << 31 | array << 8 | WalkKind.REBUILD.value << 4 | WalkResult.LOST.value
    assert words[1:4] == [5, 9, 0]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def members_come_back(dut):
    """A drive that was away is rebuilt in the rows written since the last flush before."""
    host = bench(dut)
    await host.begin(7)
    await host.create(Level.RAID1, 5, 6)
    array = await host.create(Level.RAID5, 0, 1, 2, 3)
    back = {"opcode": ManageOpcode.RE_ADD, "array": array, "position": 2}
    assert await host.change(**back) == ManageStatus.IN_USE
    await host.write(array, 1, 5, 20)
    job = await host.job(array)
    assert (job["marked"], job["chunk"]) == (3, 1)
    await host.flush(array)
    await host.write(array, 7)
    host.pull(2)
    await host.rest()
    assert await host.change(**back) == ManageStatus.DRIVE_UNAVAILABLE
    await host.write(array, 8, 23)
    # Nothing is dropped while it is away.
    await host.flush(array)
    assert (await host.job(array))["marked"] == 3
    dut.identity__2.value = 77
    host.plug(2)
    assert await host.change(**back) == ManageStatus.OTHER_DRIVE
    dut.identity__2.value = 3
    await host.good(**back)
    await host.rest()
    assert host.rows_of(WalkKind.REBUILD, array) == [7, 8, 23]
    job = await host.job(array)
    assert job["state"] == JobState.DONE and job["row"] == ROWS and job["marked"] == 3
    assert host.state(array) == ArrayState.OPTIMAL and not sample(dut.drives__stale)
    await host.flush(array)
    assert (await host.job(array))["marked"] == 0
    # Replaced, everything is; the other array has had no part in it.
    host.log.clear()
    host.pull(3)
    await host.rest()
    assert await host.change(**{**back, "array": 0, "position": 0}) == ManageStatus.IN_USE
    host.paused = True
    await host.good(ManageOpcode.REPLACE, array=array, position=3, port=4)
    assert await host.change(**back) == ManageStatus.JOB_RUNNING
    assert (await host.job(array))["marked"] == ROWS
    assert (await host.job(0))["marked"] == 0
    host.paused = False
    await host.rest()
    assert host.rows_of(WalkKind.REBUILD, array) == list(range(ROWS))
    # A new array has nothing marked; with a job that writes, what that has written is.
    await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert await host.create(Level.RAID5, 0, 1, 2) == array
    await host.rest()
    assert (await host.job(array))["marked"] == 0
    host.pull(0, 1)
    await host.rest()
    host.plug(0)
    await host.rest()
    lost = {**back, "position": 0}
    assert await host.change(**lost) == ManageStatus.NOT_REDUNDANT


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def spares_step_in(dut):
    host = bench(dut)
    await host.begin(8)
    first = await host.create(Level.RAID5, 0, 1, 2)
    second = await host.create(Level.RAID1, 3, 4)
    spare = {"opcode": ManageOpcode.ADD_SPARE}
    await host.good(**spare, port=5)
    await host.good(**spare, port=6, array=second, dedicated=1)
    assert await host.change(**spare, port=6) == ManageStatus.DRIVE_UNAVAILABLE
    assert await host.change(**spare, port=0) == ManageStatus.DRIVE_UNAVAILABLE
    assert await host.change(**spare, port=7, array=3, dedicated=1) == ManageStatus.NO_ENTRY
    taken = {"opcode": ManageOpcode.CREATE_ARRAY, "level": Level.JBOD.value}
    assert await host.change(**taken, drives=1 << 5) == ManageStatus.DRIVE_UNAVAILABLE
    # The one of its own goes first; of the others none is dedicated to the first array.
    host.pull(3)
    await host.rest()
    assert sample(dut.drives__used) & 0xFF == 0b01010111, f"{sample(dut.drives__used):#b}"
    assert host.rows_of(WalkKind.REBUILD, second)
    assert host.state(second) == ArrayState.OPTIMAL
    host.pull(1)
    await host.rest()
    assert sample(dut.drives__used) & 0xFF == 0b01110101
    assert host.state(first) == ArrayState.OPTIMAL
    # None is left; the next one steps in when it is named, unless it is too small.
    host.pull(0)
    await host.rest()
    assert host.state(first) == ArrayState.DEGRADED
    dut.capacity__7.value = 100
    await host.good(**spare, port=7)
    await host.rest()
    assert host.state(first) == ArrayState.DEGRADED
    await host.good(ManageOpcode.REMOVE_SPARE, port=7)
    assert await host.change(ManageOpcode.REMOVE_SPARE, port=7) == ManageStatus.NO_ENTRY
    host.plug(1)
    await host.rest()
    assert host.state(first) == ArrayState.DEGRADED


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_spare_that_comes_back_steps_in(dut):
    """In whatever cycle after a member has gone: nothing else need happen."""
    host = bench(dut)
    await host.begin(8)
    spare = {"port": 5}
    for cycles in range(40):
        array = await host.create(Level.RAID1, 0, 1)
        await host.good(ManageOpcode.ADD_SPARE, **spare)
        host.pull(5)
        await host.rest()
        host.pull(0)
        await ClockCycles(dut.clk, 1 + cycles)
        host.plug(5)
        await host.rest()
        assert host.state(array) == ArrayState.OPTIMAL, f"no spare after {cycles} cycles"
        host.plug(0)
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_second_spare_waits_for_the_first(dut):
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID6, 0, 1, 2, 3, 4)
    for port in (5, 6):
        await host.good(ManageOpcode.ADD_SPARE, port=port)
    host.paused = True
    host.pull(0)
    await host.until(lambda: bool(host.out), "rows")
    host.pull(3)
    await ClockCycles(dut.clk, 1500)
    assert sample(dut.drives__stale) == 1 << 5 and host.state(array) == ArrayState.DEGRADED
    host.paused = False
    await host.rest()
    assert host.state(array) == ArrayState.OPTIMAL and not sample(dut.drives__stale)
    assert host.rows_of(WalkKind.REBUILD, array) == [*range(ROWS), *range(ROWS)]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def jobs_take_turns(dut):
    host = bench(dut)
    for port in range(CONFIG.ports):
        getattr(dut, f"capacity__{port}").value = 256 + 700
    await host.begin(8)
    arrays = [
        await host.create(Level.RAID5, 0, 1, 2),
        await host.create(Level.RAID10, 3, 4, 5, 6),
    ]
    host.late = 0.0

    def judge(row):
        if row.array == arrays[0] and row.row % 16 == 3:
            return (WalkResult.MENDED, WalkResult.MISMATCH, WalkResult.LOST)[row.row % 3], row.row
        return WalkResult.GOOD, 0

    host.judge = judge
    start = {"opcode": ManageOpcode.START_JOB}
    await host.good(**start, array=arrays[0], kind=WalkKind.REPAIR.value)
    await host.good(**start, array=arrays[1], kind=WalkKind.PATROL.value, start=100)
    await host.rest(cycles=60_000)
    order = [row.array for row in host.log]
    assert sum(a != b for a, b in itertools.pairwise(order)) >= 4, "no turns"
    assert host.rows_of(WalkKind.REPAIR, arrays[0]) == list(range(700))
    # A mirrored row for each pair; a turn may end between the two, and begins with the first.
    pairs = host.rows_of(WalkKind.PATROL, arrays[1])
    assert pairs == sorted(pairs) and set(pairs) == set(range(100, 700))
    assert 1200 <= len(pairs) <= 1210
    bad = [row for row in range(700) if row % 16 == 3]
    counts = [sum(row % 3 == rest for row in bad) for rest in range(3)]
    job = await host.job(arrays[0])
    assert job["found"] == tuple(counts) and job["state"] == JobState.DONE
    # The logs, newest first: what was found of each kind.
    for section, rests in ((Section.DEFECTS, (0, 1)), (Section.LOST, (2,))):
        wanted = [row for row in bad if row % 3 in rests]
        seen = []
        for number in range(FINDINGS + 1):
            words = await host.words(section, number)
            if not words[0] >> 31:
                break
            assert words[1] == words[2] and words[0] >> 8 & 0xFF == arrays[0]
            seen.append(words[2])
            assert words[5] == len(wanted) - number
        assert sorted(seen) == sorted(wanted)[-FINDINGS:] or len(wanted) <= FINDINGS
        assert set(seen) <= set(wanted) and len(seen) == min(FINDINGS, len(wanted))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def jobs_are_started_stopped_and_refused(dut):
    host = bench(dut)
    await host.begin(6)
    array = await host.create(Level.RAID5, 0, 1, 2)
    plain = await host.create(Level.RAID0, 3, 4)
    start = {"opcode": ManageOpcode.START_JOB}
    check = {**start, "kind": WalkKind.CHECK.value}
    zero = {**start, "kind": WalkKind.ZERO.value}
    assert await host.change(**check, array=3) == ManageStatus.NO_ENTRY
    assert await host.change(**check, array=200) == ManageStatus.NO_ENTRY
    assert await host.change(**start, kind=7, array=array) == ManageStatus.INVALID_FIELD
    rebuild = {**start, "kind": WalkKind.REBUILD.value}
    assert await host.change(**rebuild, array=array) == ManageStatus.INVALID_FIELD
    assert await host.change(ManageOpcode.STOP_JOB, array=array) == ManageStatus.NO_ENTRY
    for rate, status in ((0, "INVALID_FIELD"), (101, "INVALID_FIELD"), (100, "DONE"), (1, "DONE")):
        assert await host.change(ManageOpcode.SET_RATE, rate=rate) == ManageStatus[status]
    assert (await host.words(Section.ARRAYS, 0))[1] == 1
    # Stopped and resumed, every row is walked.
    await host.good(**check, array=array)
    await host.until(lambda: len(host.log) > 8, "rows")
    assert await host.change(**check, array=array) == ManageStatus.JOB_RUNNING
    assert await host.change(ManageOpcode.DELETE_ARRAY, array=array) == ManageStatus.JOB_RUNNING
    await host.good(ManageOpcode.STOP_JOB, array=array)
    await host.rest()
    job = await host.job(array)
    assert job["state"] == JobState.STOPPED and 0 < job["row"] < ROWS
    assert host.rows_of(WalkKind.CHECK, array) == list(range(job["row"]))
    await host.good(**check, array=array, resume=1)
    await host.rest()
    assert host.rows_of(WalkKind.CHECK, array) == list(range(ROWS))
    # Zeros only where there is no volume, and none while they are written.
    volume = await host.good(ManageOpcode.CREATE_VOLUME, array=plain)
    assert await host.change(**zero, array=plain) == ManageStatus.IN_USE
    await host.good(ManageOpcode.DELETE_VOLUME, volume=volume)
    host.paused = True
    await host.good(**zero, array=plain)
    on_zeroes = {"opcode": ManageOpcode.CREATE_VOLUME, "array": plain}
    assert await host.change(**on_zeroes) == ManageStatus.JOB_RUNNING
    host.paused = False
    await host.rest()
    assert len(host.rows_of(WalkKind.ZERO, plain)) == 2 * ROWS
    await host.good(**on_zeroes)
    # A member of an array that has lost too much, or nothing.
    replace = {"opcode": ManageOpcode.REPLACE, "port": 5}
    assert await host.change(**replace, array=3) == ManageStatus.NO_ENTRY
    assert await host.change(**replace, array=array) == ManageStatus.IN_USE
    host.pull(3)
    await host.rest()
    assert await host.change(**replace, array=plain) == ManageStatus.NOT_REDUNDANT
    # Initialised as it is made; deleted, its job is forgotten.
    await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert (await host.job(array))["state"] == JobState.NONE
    host.log.clear()
    array = await host.create(Level.RAID5, 0, 1, 2, assumed=0)
    await host.rest()
    assert host.rows_of(WalkKind.RESYNC, array) == list(range(ROWS))
    assert (await host.job(array))["state"] == JobState.DONE


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_is_refused_undoes_nothing(dut):
    """What has been rebuilt stays so when a drive is refused as a member, whoever asked for it; a
    drive that is taken is rebuilt from row 0, and so is the other one."""
    host = bench(dut)
    for port in range(4):
        getattr(dut, f"capacity__{port}").value = CAPACITY + 8
    dut.capacity__6.value = CAPACITY + 8
    await host.begin(8)
    array = await host.create(Level.RAID6, 0, 1, 2, 3)
    host.pull(3)
    await host.rest()
    await host.good(ManageOpcode.REPLACE, array=array, position=3, port=6)
    await host.until(lambda: len(host.log) > 8, "rows")
    await host.good(ManageOpcode.STOP_JOB, array=array)
    await host.rest()
    rebuilt = await host.boundary(array)
    assert 0 < rebuilt < ROWS and sample(dut.drives__stale) == 1 << 6
    for opcode, fields, status in (
        (ManageOpcode.REPLACE, {"position": 0, "port": 7}, "IN_USE"),
        (ManageOpcode.REPLACE, {"position": 40, "port": 7}, "INVALID_FIELD"),
        (ManageOpcode.REPLACE, {"position": 0, "port": 2}, "DRIVE_UNAVAILABLE"),
        (ManageOpcode.RE_ADD, {"position": 0}, "IN_USE"),
        (ManageOpcode.MIGRATE, {"position": 0, "port": 7}, "JOB_RUNNING"),
    ):
        assert await host.change(opcode, array=array, **fields) == ManageStatus[status]
        assert await host.boundary(array) == rebuilt, f"{opcode} {status}"
    # Another member goes, and the only spare is too small.
    host.pull(1)
    await host.rest()
    await host.good(ManageOpcode.ADD_SPARE, port=7)
    await host.rest()
    assert not sample(dut.drives__used) >> 7 & 1
    await host.good(ManageOpcode.REMOVE_SPARE, port=7)
    replace = {"opcode": ManageOpcode.REPLACE, "array": array, "position": 1}
    assert await host.change(**replace, port=7) == ManageStatus.NO_SPACE
    assert await host.change(ManageOpcode.RE_ADD, array=array, position=1) == (
        ManageStatus.DRIVE_UNAVAILABLE
    )
    assert await host.boundary(array) == rebuilt
    # One that fits.
    dut.capacity__7.value = CAPACITY + 8
    host.log.clear()
    host.paused = True
    await host.good(**replace, port=7)
    assert await host.boundary(array) == 0 and sample(dut.drives__stale) == 0b11000000
    host.paused = False
    await host.rest()
    assert host.rows_of(WalkKind.REBUILD, array) == list(range(ROWS + 8))
    assert host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def rows_are_read_as_one(dut):
    """The two words of a row are of the same moment, while a job passes row 2^32."""
    host = bench(dut)
    middle = 1 << 32
    for port in range(CONFIG.ports):
        getattr(dut, f"capacity__{port}").value = DATA_OFFSET_BLOCKS + middle + 4
    await host.begin(4)
    array = await host.create(Level.RAID1, 0, 1)
    seen = set()

    async def read() -> None:
        while True:
            row = 0
            for place, word in enumerate((2, 3)):
                address = pack(report_address(), section=Section.ARRAYS, number=array, word=word)
                dut.report__read__address.value = address
                await ClockCycles(dut.clk, host.random.randint(2, 9))
                await FallingEdge(dut.clk)
                row |= sample(dut.report__read__data) << 32 * place
            seen.add(row)

    check = {"array": array, "kind": WalkKind.CHECK.value, "start": middle - 4}
    for number in range(40):
        await host.good(ManageOpcode.START_JOB, **check)
        await host.rest()
        if number == 0:
            reader = cocotb.start_soon(read())
    reader.cancel()
    assert {middle - 1, middle} < seen <= set(range(middle - 4, middle + 5)), seen


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def keeps_its_rate(dut):
    host = bench(dut)
    for port in range(CONFIG.ports):
        getattr(dut, f"capacity__{port}").value = 256 + 400
    await host.begin(4)
    array = await host.create(Level.RAID5, 0, 1, 2)
    host.late = 0.95
    durations, worked_of = {}, {}
    for rate, active in ((100, 1), (50, 1), (20, 1), (20, 0)):
        await host.good(ManageOpcode.SET_RATE, rate=rate)
        dut.host_active.value = active
        await host.good(
            ManageOpcode.START_JOB, array=array, kind=WalkKind.CHECK.value, start=300
        )
        await host.until(lambda: bool(host.out), "rows")
        began, worked = host.cycle, host.cycles_out
        while (await host.job(array))["state"] == JobState.RUNNING:
            await ClockCycles(dut.clk, 50)
        durations[rate, active] = host.cycle - began
        seen = 100 * (host.cycles_out - worked) / (host.cycle - began)
        worked_of[rate, active] = seen
        dut._log.info("rate %d, host %d: worked %.0f %% of the time", rate, active, seen)
        await host.rest()
        if active:
            assert abs(seen - rate) <= 0.15 * rate + 2, f"rate {rate}: {seen:.1f}"
        else:
            assert seen > 0.9 * worked_of[100, 1], "held without a host"
    assert durations[20, 1] > 3 * durations[20, 0]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def time_may_jump_while_a_drive_is_handed_over(dut):
    """Nothing moves while the new drive flushes, or while somebody is inside for the old one."""
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID5, 0, 1, 2)
    host.pull(1)
    await host.rest()
    replace = {"array": array, "position": 1, "port": 4}
    migrating = {"array": array, "position": 0, "port": 5}
    for opcode, request, wait in (
        (ManageOpcode.REPLACE, replace, dut.flush_waits),
        (ManageOpcode.MIGRATE, migrating, dut.flush_waits),
        (ManageOpcode.MIGRATE, migrating | {"port": 6}, dut.occupied),
    ):
        wait.value = 1
        host.log.clear()
        await host.good(opcode, **request)
        await host.until(lambda: len(host.log) == ROWS, "rows")
        await host.rest(cycles=1000)
        assert (await host.job(array))["state"] == JobState.RUNNING
        assert not sample(dut.busy)
        wait.value = 0
        await host.rest()
        assert (await host.job(array))["state"] == JobState.DONE
    assert host.state(array) == ArrayState.OPTIMAL


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def rebuilds_stop_past_tolerance(dut):
    """Nothing is walked any more, the boundary stays, and only SALVAGE by name goes on."""
    host = bench(dut)
    await host.begin(8)
    array = await host.create(Level.RAID5, 0, 1, 2, 3)
    start = {"opcode": ManageOpcode.START_JOB, "array": array}
    rebuild = {**start, "kind": WalkKind.REBUILD.value}
    salvage = {**start, "kind": WalkKind.SALVAGE.value}
    assert await host.change(**salvage) == ManageStatus.INVALID_FIELD
    await host.write(array, *range(ROWS))
    host.pull(2)
    await host.rest()
    host.plug(2)
    await host.good(ManageOpcode.RE_ADD, array=array, position=2)
    await host.until(lambda: len(host.log) - len(host.out) >= 6, "rows")
    assert await host.change(**salvage) == ManageStatus.JOB_RUNNING
    host.paused = True
    # From now on the engine can do no row, and says so.
    host.judge = lambda row: (WalkResult.FAILED, 0)
    host.pull(0)
    await ClockCycles(dut.clk, 200)
    reached, boundary = len(host.log), await host.boundary(array)
    assert 0 < boundary < ROWS
    host.paused = False
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"], job["row"]) == (JobState.FAILED, WalkKind.REBUILD, boundary)
    assert host.state(array) == ArrayState.FAILED and sample(dut.drives__stale) == 1 << 2
    assert len(host.log) == reached, "walked on"
    # What comes back changes nothing by itself.
    host.plug(0)
    await host.rest()
    assert await host.boundary(array) == boundary and len(host.log) == reached
    assert await host.change(**rebuild) == ManageStatus.NOT_REDUNDANT
    assert await host.change(**salvage, resume=1) == ManageStatus.DONE
    host.judge = lambda row: (WalkResult.LOST, 5)
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"], job["row"]) == (JobState.DONE, WalkKind.SALVAGE, ROWS)
    assert host.rows_of(WalkKind.SALVAGE, array)[0] == boundary
    assert job["found"][2] >= ROWS - boundary - 4
    # What is left is a member that is missing, and can be replaced.
    assert host.state(array) == ArrayState.DEGRADED and not sample(dut.drives__stale)
    host.judge = lambda row: (WalkResult.GOOD, 0)
    await host.good(ManageOpcode.REPLACE, array=array, position=0, port=4)
    await host.rest()
    assert host.state(array) == ArrayState.OPTIMAL

    # One that has all its rows is trusted, whoever has gone as the last of them ended.
    def pause_at_the_last(row):
        host.paused = len(host.log) == ROWS and len(host.out) == 1
        return WalkResult.GOOD, 0

    host.pull(4)
    await host.rest()
    host.log.clear()
    host.late = 0.95
    host.judge = pause_at_the_last
    await host.good(ManageOpcode.REPLACE, array=array, position=0, port=5)
    await host.until(lambda: host.paused, "the last row")
    host.pull(1)
    await ClockCycles(dut.clk, 200)
    host.paused = False
    await host.rest()
    assert not sample(dut.drives__stale) and (await host.job(array))["state"] == JobState.DONE
    assert host.state(array) == ArrayState.DEGRADED


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_spare_that_one_cannot_use_serves_another(dut):
    host = bench(dut)
    for port in range(3):
        getattr(dut, f"capacity__{port}").value = CAPACITY + 8
    await host.begin(8)
    large = await host.create(Level.RAID5, 0, 1, 2)
    small = await host.create(Level.RAID1, 3, 4)
    await host.good(ManageOpcode.ADD_SPARE, port=7)
    host.pull(1)
    await host.rest()
    assert host.state(large) == ArrayState.DEGRADED
    host.pull(3)
    await host.rest()
    assert host.state(small) == ArrayState.OPTIMAL and sample(dut.drives__used) >> 7 & 1
    # And the one that found none finds the next that fits.
    dut.capacity__6.value = CAPACITY + 8
    await host.good(ManageOpcode.ADD_SPARE, port=6)
    await host.rest()
    assert host.state(large) == ArrayState.OPTIMAL and sample(dut.drives__used) >> 6 & 1


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def dedicated_spares_go_with_their_array(dut):
    host = bench(dut)
    await host.begin(8)
    spare = {"opcode": ManageOpcode.ADD_SPARE}
    array = await host.create(Level.RAID5, 0, 1, 2)
    other = await host.create(Level.RAID1, 3, 4)
    await host.good(**spare, port=5, array=other, dedicated=1)
    await host.good(**spare, port=6, array=array, dedicated=1)
    await host.good(**spare, port=7)
    await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    # The others stay what they were.
    await host.good(ManageOpcode.REMOVE_SPARE, port=7)
    assert await host.create(Level.RAID5, 0, 1, 2) == array
    host.pull(1)
    await host.rest()
    assert host.state(array) == ArrayState.DEGRADED and not host.rows_of(WalkKind.REBUILD, array)
    await host.create(Level.JBOD, 6)
    host.pull(3)
    await host.rest()
    assert host.state(other) == ArrayState.OPTIMAL and sample(dut.drives__used) >> 5 & 1
    # One that has served its array, and is a spare of all arrays later, stays one.
    host.plug(1, 3)
    await host.good(ManageOpcode.REPLACE, array=array, position=1, port=1)
    await host.good(ManageOpcode.MIGRATE, array=other, position=0, port=3, spare=1)
    await host.rest()
    assert not sample(dut.drives__used) >> 5 & 1
    await host.good(ManageOpcode.DELETE_ARRAY, array=other)
    await host.good(ManageOpcode.REMOVE_SPARE, port=5)


def test_background():
    simulate(Assembly(), name="background", module=__name__)


class ForgetsTheBoundary(ArrayTables):
    """Planted bug: a replaced member is taken for rebuilt as far as the last one was."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.rewind.payload.eq(~self.changes.request.payload.array)
        return m


class NeverRests(Pace):
    """Planted bug: what is left is the rate."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.hold.eq(0)
        return m


@pytest.mark.parametrize(
    ("bug", "testcase"),
    [
        (ForgetsTheBoundary, "rebuilds_members"),
        (NeverRests, "keeps_its_rate"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_found(bug, testcase, monkeypatch):
    where = {
        ForgetsTheBoundary: "cocotb_tests.background.background_bench.ArrayTables",
        NeverRests: "hdl.background.background.Pace",
    }
    monkeypatch.setattr(where[bug], bug)
    with pytest.raises(SimulationError, match=testcase):
        simulate(
            Assembly(),
            name=f"background_{bug.__name__}",
            module=__name__,
            testcase=testcase,
        )
