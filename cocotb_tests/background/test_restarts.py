"""Drives that begin anew by themselves: brought up to date where that can be, told of where not."""

import os
import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.background.background_bench import ROWS, Assembly, Bench
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import pack, sample, unpack
from hdl.array.states import ArrayStates
from hdl.array.tables.tables import ArrayTables
from hdl.background.jobs import Jobs, JobState
from hdl.background.supervisor import Supervisor
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode, ManageStatus
from hdl.flow.reference import answer, command_begin, telling
from hdl.flow.walk import WalkKind, WalkResult


def rows_of(host: Bench, kind: WalkKind) -> list[int]:
    return [row.row for row in host.log if row.kind == kind]


async def begin(dut) -> Bench:
    host = Bench(dut, random.Random(int(os.environ["SEED"])))
    await host.begin(8)
    return host


async def restart(dut, *ports: int) -> None:
    """Drives begin anew, and say so."""
    dut.restarted.value = sum(1 << port for port in ports)
    await RisingEdge(dut.clk)
    dut.restarted.value = 0
    await ClockCycles(dut.clk, 2)


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
        await restart(dut, ports[1])
        drive = 1 << ports[1]
        suspect, failed = sample(dut.drives__suspect), sample(dut.drives__failed)
        assert suspect == drive or failed & drive
        await host.until(lambda bit=drive: sample(dut.drives__stale) == bit, "a stale drive")
        await host.rest()
        job = await host.job(array)
        assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.REBUILD)
        rebuilt = {*rows_of(host, WalkKind.REBUILD)}
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
    await host.flush_now(array, restart(dut, 1))
    host.paused = False
    await host.rest()
    assert 3 in rows_of(host, WalkKind.REBUILD)
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
        await restart(dut, *ports)
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
        await restart(dut, *ports[:2])
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
        await restart(dut, *ports[:2])
        await host.rest()
        walked = rows_of(host, WalkKind.RESYNC)
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
    await restart(dut, 0, 1)
    await host.rest()
    assert rows_of(host, WalkKind.RESYNC)[-ROWS:] == [*range(ROWS)]
    assert (await host.job(array))["in_sync"]
    # The card's own one is stopped, and another ordered.
    for row in range(0, ROWS, 8):
        await host.write(array, row)
    host.paused = True
    await restart(dut, 0, 1)
    await stop_in_the_middle(host, array)
    await host.good(ManageOpcode.START_JOB, **resync)
    await host.rest()
    assert rows_of(host, WalkKind.RESYNC) == [*range(ROWS)]
    assert (await host.job(array))["in_sync"]
    # The host's is stopped, and the card's own one comes in its place.
    host.paused = True
    await host.good(ManageOpcode.START_JOB, **resync)
    await stop_in_the_middle(host, array)
    await restart(dut, 0, 1)
    await host.rest()
    assert rows_of(host, WalkKind.RESYNC) == [*range(ROWS)]
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
    await restart(dut, 0, 1)
    host.paused = False
    await host.until(lambda: bool(rows_of(host, WalkKind.RESYNC)), "a resync")
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
    assert job["in_sync"] and rows_of(host, WalkKind.RESYNC)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def torn_rows_and_other_jobs(dut):
    """A resync that has not ended begins with row 0; a migration goes on; others give way."""
    host = await begin(dut)
    # Never in sync so far: all rows, whether they are marked or not.
    array = await host.create(Level.RAID5, 0, 1, 2, assumed=0)
    await host.until(lambda: len(host.log) > ROWS // 2, "rows")
    await restart(dut, 0, 1)
    await host.until(lambda: not sample(dut.busy) or not host.out, "rows that have ended")
    host.log.clear()
    await host.rest()
    assert {*rows_of(host, WalkKind.RESYNC)} == {*range(ROWS)}
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
    await restart(dut, 0, 1)
    await host.rest()
    job = await host.job(array)
    assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.RESYNC) and job["in_sync"]
    assert {*rows_of(host, WalkKind.MIGRATE)} == {*range(ROWS)}
    assert 9 in rows_of(host, WalkKind.RESYNC)
    assert sample(dut.drives__used) == 0b1000011
    # While it is checked.
    await host.write(array, 10)
    host.log.clear()
    await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.CHECK.value)
    await host.until(lambda: len(host.log) > 2, "rows")
    await restart(dut, 0, 6)
    await host.rest()
    assert 10 in rows_of(host, WalkKind.RESYNC) and (await host.job(array))["in_sync"]
    # Nothing is torn any more, so a resync that the host asks for is of all rows.
    host.log.clear()
    await host.good(ManageOpcode.START_JOB, array=array, kind=WalkKind.RESYNC.value)
    await host.rest()
    assert {*rows_of(host, WalkKind.RESYNC)} == {*range(ROWS)}
    # Where there is nothing to be in sync.
    plain = await host.create(Level.RAID0, 3, 4)
    host.log.clear()
    await restart(dut, 3, 4)
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
    await restart(dut, 1, 4)
    await host.rest()
    assert sample(dut.drives__used) == 0b10000101
    assert host.state(array) == ArrayState.OPTIMAL and not sample(dut.drives__suspect)
    assert len(set(rows_of(host, WalkKind.REBUILD))) == ROWS
    # Half rebuilt, it begins again; so it does as a migration target.
    host.log.clear()
    await host.good(ManageOpcode.MIGRATE, array=array, position=1, port=3)
    await host.until(lambda: len(host.log) > 4, "rows")
    await restart(dut, 3)
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
    await restart(dut, 6)
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
        await restart(dut, 1)
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
        assert 3 in rows_of(host, WalkKind.REBUILD), number
        assert host.state(array) == ArrayState.OPTIMAL
        dut.occupied.value = 1
    # If another drive is there by then, nobody takes that for the old one.
    await restart(dut, 1)
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
            await restart(dut, 1)
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
            assert 3 in rows_of(host, WalkKind.REBUILD), f"not rebuilt after {delay} cycles"
            assert host.state(array) == ArrayState.OPTIMAL
    assert failed and rebuilt


async def begins(host: Bench, slot: int, volume: int, *, late: bool = False) -> None:
    """A command of a volume gets a slot."""
    dut, layout = host.dut, command_begin(host.config)
    dut.slots__begun__payload.value = pack(layout, slot=slot, volume=volume, late=late)
    dut.slots__begun__valid.value = 1
    await RisingEdge(dut.clk)
    dut.slots__begun__valid.value = 0
    await ClockCycles(dut.clk, 2)


async def ends(
    host: Bench, slot: int, *, posted: bool = True, cycles: int = 0, queue: int = 0
) -> None:
    """Its command leaves a slot; if that is to tell, the answer comes ``cycles`` later, in the
    completion queue ``queue``."""
    dut = host.dut
    dut.slots__ended__payload.value, dut.slots__ended__valid.value = slot, 1
    await RisingEdge(dut.clk)
    told = unpack(telling(host.config), sample(dut.tellings__tells))
    dut.slots__ended__valid.value = 0
    await ClockCycles(dut.clk, 2 + cycles)
    if told.any:
        layout = answer(host.config)
        fields = {"volume": told.volume, "posted": posted, "queue": queue}
        dut.tellings__hearing__answered__payload.value = pack(layout, **fields)
        dut.tellings__hearing__answered__valid.value = 1
        await RisingEdge(dut.clk)
        dut.tellings__hearing__answered__valid.value = 0
        await ClockCycles(dut.clk, 2)


async def late_ones(host: Bench, *slots: int) -> set[int]:
    """Those whose command was submitted before its volume was told."""
    found = set()
    for slot in slots:
        host.dut.late__address.value = slot
        await ClockCycles(host.dut.clk, 2)
        if sample(host.dut.late__data):
            found.add(slot)
    return found


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_is_lost_is_told(dut):
    """A drive restarts while the array needs it, as another one is rebuilt: the loss stays to be
    told, though the array is optimal by then, and though the drive goes."""
    host = await begin(dut)
    other = await host.create(Level.JBOD, 7)
    for gone in (False, True):
        array = await host.create(Level.RAID5, 0, 1, 2)
        volumes = [
            await host.good(ManageOpcode.CREATE_VOLUME, array=number, start=start, blocks=4)
            for number, start in ((array, 0), (other, 0), (array, 4), (array, 8))
        ]
        await host.good(ManageOpcode.DELETE_VOLUME, volume=volumes[3])
        indebted = 1 << volumes[0] | 1 << volumes[2]
        await host.write(array, 3)
        host.paused = True
        await restart(dut, 1)
        await host.until(lambda: bool(host.out), "rows")
        assert not sample(dut.arrays__indebted)
        await restart(dut, 2)
        await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=200)
        assert sample(dut.drives__suspect) == 4
        # If it does so again, it is looked at again.
        await restart(dut, 2)
        assert sample(dut.drives__suspect) == sample(dut.doubted) == 4
        await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=200)
        assert sample(dut.drives__suspect) == 4
        host.paused = False
        lost, rests = [], cocotb.start_soon(host.rest())
        while not rests.done():
            lost.append((sample(dut.drives__failed) | sample(dut.drives__stale)) & 4)
            await RisingEdge(dut.clk)
        assert host.state(array) == ArrayState.OPTIMAL
        # It was flushed for the jobs, so it is suspect no longer.
        assert not sample(dut.drives__suspect)
        assert not any(lost), "the drive is brought up to date from what it lost"
        assert sample(dut.arrays__indebted) == indebted
        if gone:
            host.pull(2)
            await host.rest()
            assert not sample(dut.drives__suspect)
            assert sample(dut.arrays__indebted) == indebted
        # Each volume is told by its own flush; one that is new has nothing to be told.
        late = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=8, blocks=4)
        await begins(host, 1, volumes[2])
        await begins(host, 2, volumes[0])
        owed = indebted
        for slot, volume in enumerate((volumes[2], volumes[0]), 3):
            await begins(host, slot, volume)
            dut.blamed.value, dut.blame__volume.value, dut.blame__blames.value = 4, volume, 1
            dut.blame__slot.value = slot
            await RisingEdge(dut.clk)
            dut.blamed.value = dut.blame__blames.value = 0
            await ClockCycles(dut.clk, 2)
            assert not sample(dut.drives__suspect) and sample(dut.arrays__indebted) == owed
            # The host does not know until that has ended, whatever ends before.
            await begins(host, 5, volume)
            await ends(host, 2)
            assert sample(dut.arrays__indebted) == owed and not await late_ones(host, 2, slot, 5)
            # Nor if it gets no completion: then the next Flush tells.
            await ends(host, slot, posted=False)
            await begins(host, slot, volume)
            await ends(host, slot)
            assert sample(dut.arrays__indebted) == owed and not await late_ones(host, 2, slot, 5)
            await begins(host, slot, volume)
            dut.blame__volume.value, dut.blame__blames.value = volume, 1
            await RisingEdge(dut.clk)
            dut.blame__blames.value = 0
            cocotb.start_soon(ends(host, slot))
            await host.until(lambda: bool(sample(dut.tellings__told)), "the news", cycles=10)
            assert sample(dut.tellings__told) == 1 << volume
            await ClockCycles(dut.clk, 3)
            owed &= ~(1 << volume)
            assert sample(dut.arrays__indebted) == owed
            await begins(host, 6, volume)
            await begins(host, 7, volume, late=True)
            assert await late_ones(host, 5, 6, 7) == {5, 7}
        assert await late_ones(host, 1, 2, 6, 7) == {1, 2, 7}
        await host.rest()
        assert not sample(dut.drives__suspect) and not sample(dut.arrays__indebted)
        # The next array in its place owes nothing for it.
        if not gone:
            await restart(dut, 0)
            await restart(dut, 1)
            await host.rest()
            assert sample(dut.arrays__indebted) == 1 << volumes[0] | 1 << volumes[2] | 1 << late
        host.plug(2)
        for volume in (*volumes[:3], late):
            await host.good(ManageOpcode.DELETE_VOLUME, volume=volume)
        assert not sample(dut.arrays__indebted), "volumes are gone"
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)
    assert await host.create(Level.RAID1, 0, 1) == 1
    assert not sample(dut.arrays__indebted) and not sample(dut.drives__suspect)


async def refuse(dut, host, slot: int, volume: int) -> None:
    """A command of an indebted volume on port 3 begins, and ends as it is refused."""
    await begins(host, slot, volume)
    dut.blamed.value, dut.blame__volume.value, dut.blame__blames.value = 8, volume, 1
    dut.blame__slot.value = slot
    await RisingEdge(dut.clk)
    dut.blamed.value = dut.blame__blames.value = 0
    await ClockCycles(dut.clk, 2)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_is_lost_later_is_told_later(dut):
    """A drive restarts again before the Flush that tells has ended, or before its completion is
    posted: the host learns nothing of that by it. The next one tells."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 3)
    volume = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)

    await restart(dut, 3)
    await host.rest()
    await refuse(dut, host, 1, volume)
    await restart(dut, 3)
    await host.rest()
    await begins(host, 2, volume)
    await ends(host, 1)
    assert sample(dut.arrays__indebted) == 1 << volume and not await late_ones(host, 2)
    await refuse(dut, host, 3, volume)
    # Its slot may be another's before its completion is posted.
    end = cocotb.start_soon(ends(host, 3, cycles=400))
    await ClockCycles(dut.clk, 20)
    await restart(dut, 3)
    await host.rest()
    await refuse(dut, host, 3, volume)
    await ends(host, 3)
    assert not end.done() and sample(dut.arrays__indebted) == 1 << volume
    await end
    assert sample(dut.arrays__indebted) == 1 << volume and not await late_ones(host, 2)
    await refuse(dut, host, 3, volume)
    await ends(host, 3)
    assert not sample(dut.arrays__indebted) and await late_ones(host, 2) == {2}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_is_lost_as_it_is_told_is_told_too(dut):
    """A drive restarts again, which counts as a loss in any of the cycles around that in which the
    host is told of the loss before. The next Flush tells of this one."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 3)
    volume = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)

    await restart(dut, 3)
    judged = 0
    while not sample(dut.arrays__indebted):
        await RisingEdge(dut.clk)
        judged += 1
        assert judged < 1000, "no verdict"
    await host.rest()
    before = after = 0
    for wait in range(max(0, judged - 40), judged + 10):
        await refuse(dut, host, 1, volume)
        again = cocotb.start_soon(restart(dut, 3))
        await ClockCycles(dut.clk, wait)
        told = cocotb.start_soon(ends(host, 1))
        news = 0
        while not told.done():
            news += bool(sample(dut.tellings__told))
            await RisingEdge(dut.clk)
        await again
        await host.rest()
        # Nothing is told if more has been lost by then.
        before, after = before + (not news), after + (news != 0)
        assert sample(dut.arrays__indebted) == 1 << volume, f"{wait}: the second loss is forgotten"
    assert before and after, f"told {after} times, in vain {before} times"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_is_not_heard_is_told_again(dut):
    """The entry that tells a volume lies in a completion queue. If the queue goes before the host
    has taken the entry, the volume is indebted again; if it goes after that, it is not."""
    host = await begin(dut)
    array = await host.create(Level.JBOD, 3)
    volumes = [
        await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=start, blocks=4)
        for start in (0, 4)
    ]
    last = host.config.queue_pairs
    every = (1 << last + 1) - 1

    async def pulse(name: str, bits: int) -> int:
        getattr(dut, f"tellings__hearing__{name}").value = bits
        await RisingEdge(dut.clk)
        getattr(dut, f"tellings__hearing__{name}").value = 0
        await ClockCycles(dut.clk, 2)
        return sample(dut.arrays__indebted)

    async def tell(volume: int, queue: int) -> None:
        await begins(host, 1, volume)
        dut.blamed.value, dut.blame__volume.value, dut.blame__blames.value = 8, volume, 1
        dut.blame__slot.value = 1
        await RisingEdge(dut.clk)
        dut.blamed.value = dut.blame__blames.value = 0
        await ClockCycles(dut.clk, 2)
        await ends(host, 1, queue=queue)

    first, second = (1 << volume for volume in volumes)
    for _ in range(2):
        await restart(dut, 3)
        await host.rest()
        assert sample(dut.arrays__indebted) == first | second
        await tell(volumes[0], 1)
        await tell(volumes[1], last)
        assert not sample(dut.arrays__indebted)
        # Other queues go, or are read, and nothing follows.
        others = every & ~(1 << 1) & ~(1 << last)
        assert await pulse("heard", others) == await pulse("unheard", others) == 0
        assert await pulse("unheard", 1 << 1) == first
        assert await pulse("unheard", 1 << 1) == first
        # It is told again, in another queue: only that counts from then on.
        await tell(volumes[0], 0)
        assert sample(dut.arrays__indebted) == 0
        assert await pulse("heard", 1 << 1) == await pulse("unheard", 1 << 1) == 0
        assert await pulse("heard", 1 << last) == 0
        assert await pulse("unheard", every) == first
        await tell(volumes[0], 2)
        assert await pulse("heard", 1 << 2) == await pulse("unheard", every) == 0
        # Those that were told hear of nothing else by it.
        assert await pulse("heard", every) == 0
    await restart(dut, 3)
    await host.rest()
    await tell(volumes[0], 1)
    await tell(volumes[1], 1)
    await host.good(ManageOpcode.DELETE_VOLUME, volume=volumes[0])
    again = await host.good(ManageOpcode.CREATE_VOLUME, array=array, start=0, blocks=4)
    assert again == volumes[0] and await pulse("unheard", every) == second, "of another volume"


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
    await restart(dut, 0, 1)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=200)
    dut.blamed.value = 0xFF
    await ClockCycles(dut.clk, 2)
    dut.blamed.value = 0
    await ClockCycles(dut.clk, 100)
    assert not sample(dut.drives__suspect) and (await host.job(array))["in_sync"]
    for _ in range(2):
        await host.flush_now(array)
        await ClockCycles(dut.clk, 200)
    host.paused = False
    await host.rest()
    assert {3, 17} <= {*rows_of(host, WalkKind.RESYNC)}
    assert (await host.job(array))["in_sync"]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def torn_rows_prove_nothing(dut):
    """An array that is only assumed to be in sync stays so when its marked rows have been made
    right. A resync of all rows proves it."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.write(array, 3)
    await restart(dut, 0, 1)
    await host.rest()
    job = await host.job(array)
    assert 3 in rows_of(host, WalkKind.RESYNC) and job["state"] == JobState.DONE
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
    await restart(dut, 0)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=300)
    dut.occupied.value = 0
    await host.rest()
    assert sample(dut.drives__used) == 0b1000 and host.state(array) == ArrayState.OPTIMAL


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
        await restart(dut, *ports)
        await host.rest()
        job = await host.job(array)
        assert (job["state"], job["kind"]) == (JobState.DONE, WalkKind.ZERO)
        rows = rows_of(host, WalkKind.ZERO)
        assert len(rows) >= stripes * ROWS + before, f"{level}: rows are not written again"
        assert {*rows[-stripes * ROWS :]} == {*range(ROWS)}
        # Stopped when a drive begins anew, it does not go on where it was.
        await host.good(ManageOpcode.START_JOB, **zero)
        host.log.clear()
        await host.until(lambda: len(host.log) > 10, "rows")
        await host.good(ManageOpcode.STOP_JOB, array=array)
        await host.rest()
        assert (await host.job(array))["row"] > 2
        await restart(dut, *ports)
        await host.rest()
        if level != Level.RAID5:
            # There a RESYNC has taken its place.
            host.log.clear()
            await host.good(ManageOpcode.START_JOB, **zero, resume=1)
            await host.rest()
            assert len(rows_of(host, WalkKind.ZERO)) == stripes * ROWS
        # All is written, and nothing is flushed yet.
        host.log.clear()
        dut.flush_waits.value = 1
        await host.good(ManageOpcode.START_JOB, **zero)
        await host.until(lambda full=stripes * ROWS: len(host.log) == full and not host.out, "rows")
        await ClockCycles(dut.clk, 300)
        assert (await host.job(array))["state"] == JobState.RUNNING, f"{level}: not flushed"
        await restart(dut, *ports)
        await ClockCycles(dut.clk, 300)
        dut.flush_waits.value = 0
        await host.rest()
        assert (await host.job(array))["state"] == JobState.DONE
        assert len(rows_of(host, WalkKind.ZERO)) == 2 * stripes * ROWS
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
    """A job that may have written is done when all live drives of its array have flushed."""
    host = await begin(dut)
    array = await host.create(Level.RAID5, 0, 1, 2)
    await host.create(Level.RAID1, 3, 4)
    good, mended = WalkResult.GOOD, WalkResult.MENDED
    for kind, result, start, flushes in (
        (WalkKind.CHECK, good, 0, False),
        (WalkKind.PATROL, good, 0, False),
        (WalkKind.REPAIR, good, 0, False),
        (WalkKind.CHECK, mended, 0, True),
        (WalkKind.PATROL, mended, 0, True),
        (WalkKind.PATROL, WalkResult.LOST, 0, True),
        (WalkKind.REPAIR, WalkResult.MISMATCH, 0, True),
        (WalkKind.CHECK, WalkResult.FAILED, 0, True),
        (WalkKind.REPAIR, good, 5, True),
        (WalkKind.RESYNC, good, 0, True),
        (WalkKind.RESYNC, good, 5, True),
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
        assert state == (JobState.RUNNING if flushes else JobState.DONE), what
        assert (await flushed(host, array))["state"] == JobState.DONE, what
        # Whichever of them does not flush.
        for refusing in (0b001, 0b010, 0b100, 0b11000):
            seen.clear()
            dut.refusing.value = refusing
            await through(host, array, kind, start=start)
            fails = flushes and refusing & 0b111
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
        assert rows_of(host, WalkKind.RESYNC) == walked and job["in_sync"] == in_sync, job

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
    await restart(dut, 0, 1)
    await host.until(lambda: not sample(dut.doubted), "a verdict", cycles=300)
    await restart(dut, 0, 2)
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
    await restart(dut, 1)
    await host.until(lambda: sample(dut.drives__failed) & 2, "a failed drive", cycles=300)
    dut.flush_waits.value = 0
    await host.rest()
    job = await host.job(array)
    assert (job["kind"], job["state"]) == (WalkKind.REBUILD, JobState.DONE) and job["in_sync"]
    assert host.state(array) == ArrayState.OPTIMAL and not rows_of(host, WalkKind.RESYNC)
    # One goes as it is flushed, then all but one.
    for gone, state in (((1,), JobState.DONE), ((1, 2), JobState.FAILED)):
        host.plug(0, 1, 2)
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)
        assert await host.create(Level.RAID5, 0, 1, 2, assumed=0, idle=1) == array
        await through(host, array, WalkKind.RESYNC)
        host.pull(*gone)
        await ClockCycles(dut.clk, 300)
        await resynced(state, walked=every, in_sync=state == JobState.DONE)


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
        assert {*rows_of(host, WalkKind.RESYNC)} == {*rows_of(host, WalkKind.REBUILD)}
        job = await host.job(array)
        assert (job["kind"], job["state"]) == (WalkKind.REBUILD, JobState.RUNNING)
        host.log.clear()
        if trouble == "refuses":
            dut.refusing.value = 1
        if trouble == "restarts":
            await restart(dut, 1)
            await ClockCycles(dut.clk, 300)
        job = await flushed(host, array)
        assert job["state"] == (JobState.FAILED if trouble == "refuses" else JobState.DONE), job
        # What the drive has lost is made right.
        assert (job["kind"] == WalkKind.RESYNC) == (trouble == "restarts"), job
        assert host.state(array) == ArrayState.OPTIMAL and not sample(dut.drives__stale)
        dut.refusing.value = 0
        host.plug(2)
        await host.good(ManageOpcode.DELETE_ARRAY, array=array)


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


class EndsAtOnce(Jobs):
    """Planted bug: a RESYNC is done with its last row."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self._syncs_rows.eq(self._zero)
        return m


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
        (EndsAtOnce, "what_jobs_have_written_is_stored"),
        (SyncsTooSoon, "rows_are_in_sync_when_they_are_stored"),
        (HandsOverInDoubt, "rows_are_in_sync_when_they_are_stored"),
        (AbsolvesNobody, "rows_that_may_be_torn_are_made_right"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_found(bug, testcase, monkeypatch):
    users = {AbsolvesNobody: "cocotb_tests.background.background_bench"}
    user = users.get(bug, "hdl.background.background")
    monkeypatch.setattr(f"{user}.{bug.__base__.__name__}", bug)
    with pytest.raises(SimulationError, match=testcase):
        simulate(Assembly(), name=f"restarts_{bug.__name__}", module=__name__, testcase=testcase)
