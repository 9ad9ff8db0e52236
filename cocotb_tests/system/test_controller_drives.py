"""The whole controller while its drives are pulled, or cannot read some of their blocks."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.drive.drive_model import IDEAL
from cocotb_tests.system.controller_bench import LIMIT, Bench, Volume, code, run_controller
from cocotb_tests.system.controller_situations import ALL_PORTS, PAUSES, busy_host, setting
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.operation import DriveStatus
from hdl.flow.walk import WalkKind
from sim.golden import nvme
from sw.driver import background, raid
from sw.driver.commands import NvmeError


@cocotb.test(**LIMIT)
async def goes_on_degraded(dut):
    """Drives are pulled amid accesses: nobody notices but the list of arrays."""
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    volume = await bench.create(**setting(os.environ["ARRAY"]))
    commands = int(os.environ["COMMANDS"])
    load = cocotb.start_soon(bench.load(volume, commands))
    pulled = [int(port) for port in os.environ["PULLED"].split(",")]
    for port in pulled:
        await ClockCycles(dut.clk, bench.random.randint(500, 5000))
        bench.pull(port)
    await load
    await bench.finish(volume)
    [array] = await raid.arrays(bench.nvme)
    assert array.degraded
    assert array.missing == len(pulled)
    assert [member.port for member in array.members if member.failed] == sorted(pulled)
    await bench.load(volume, commands)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def tells_the_truth_beyond_tolerance(dut):
    """Of an array that lost too much, a block ends with success exactly if its drive is there."""
    bench = await Bench(dut).start()
    for name, pulled in (("RAID0", {2}), ("RAID5", {1, 4})):
        volume = await bench.create(**setting(name))
        other = {nvme.SUCCESS, nvme.UNRECOVERED_READ, nvme.WRITE_FAULT}
        load = cocotb.start_soon(bench.load(volume, 20, allowed=other))
        await ClockCycles(dut.clk, 3000)
        for port in pulled:
            bench.pull(port)
        statuses = await load
        assert set(statuses) - {nvme.SUCCESS}, "no command noticed"
        memory = bench.buffer(1)
        for block in bench.random.sample(range(len(volume.model)), 24):
            gone = volume.ports[volume.layout.map(block).position] in pulled
            status = await bench.read(volume, block, 1, memory)
            assert status == (nvme.UNRECOVERED_READ if gone else nvme.SUCCESS), f"block {block}"
        await bench.finish()
        await raid.delete_volume(bench.nvme, volume.namespace)
        await raid.delete_array(bench.nvme, volume.array)
        for port in pulled:
            bench.drives[port].insert()
            bench.failed.discard(port)


@cocotb.test(**LIMIT)
async def plans_around_bad_blocks(dut):
    """Unreadable blocks, permanent and passing, are recovered and never cost a drive."""
    bench = await Bench(dut).start()
    volume = await bench.create(**setting(os.environ["ARRAY"]))
    scattered = os.environ["SCATTERED"] == "True"
    if volume.layout.parities:
        chosen = bench.random.sample(volume.ports, volume.layout.parities)
    else:
        chosen = volume.ports[1::2]
    for kind in (DriveStatus.MEDIUM_ERROR, DriveStatus.ABORTED):
        for drive in bench.drives:
            drive.error = kind
            drive.bad_reads.clear()
        for row in range(volume.rows):
            if scattered:
                chosen = bench.random.sample(volume.ports, volume.layout.parities)
            for port in chosen:
                if bench.random.random() < 0.5:
                    bench.drives[port].bad_reads.add(DATA_OFFSET_BLOCKS + row)
        await bench.load(volume, 25)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def reads_past_a_bad_block(dut):
    """One bad block a row, each on another drive: together in a command or alone, all is read."""
    bench = await Bench(dut, timing=IDEAL).start()
    volume = await bench.create(Level.RAID5, (0, 1, 2, 3), strip_blocks=4)
    place = volume.layout.map(0)
    other = (place.position + 1) % 4
    for position, row in ((place.position, place.row), (other, place.row + 1)):
        bench.drives[volume.ports[position]].bad_reads.add(DATA_OFFSET_BLOCKS + row)
    memory = bench.buffer(2)
    statuses = [await bench.read(volume, block, 1, memory) for block in range(2)]
    assert statuses == [0, 0], "one block at a time"
    assert await bench.read(volume, 0, 2, memory) == 0, "both blocks at once"
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def tries_every_copy(dut):
    """A block that all drives but one cannot read is read; only what nobody has is an error."""
    bench = await Bench(dut, timing=IDEAL).start()
    copies = int(os.environ["COPIES"])
    level = Level[os.environ["ARRAY"]]
    ports = ALL_PORTS[:copies] if level is Level.RAID1 else ALL_PORTS
    volume = await bench.create(level, ports, copies=copies)
    for drive in bench.drives:
        # A read that broke off inside a block would leave its line in the ports.
        drive.cut = False
    size = min(len(volume.model), 24)
    lost = {5, 6, 17}
    for block in range(size):
        places = volume.layout.copies_of(block)
        good = bench.random.randrange(copies)
        for copy, place in enumerate(places):
            if copy != good or block in lost:
                drive = bench.drives[volume.ports[place.position]]
                drive.bad_reads.add(DATA_OFFSET_BLOCKS + place.row)
    memory = bench.buffer(8)
    for block in range(size):
        wanted = nvme.UNRECOVERED_READ if block in lost else 0
        assert await bench.read(volume, block, 1, memory) == wanted, f"block {block}"
    for first in range(0, size, 8):
        wanted = nvme.UNRECOVERED_READ if lost & set(range(first, first + 8)) else 0
        assert await bench.read(volume, first, 8, memory) == wanted, f"blocks {first}.."
    await bench.finish(volume)


async def flush(bench: Bench, volume: Volume) -> int:
    """Flushes; the status."""
    try:
        await bench.nvme.flush(volume.namespace)
    except NvmeError as error:
        return code(error)
    return nvme.SUCCESS


async def done(bench: Bench, kind: WalkKind) -> background.Job:
    """Waits until the job of array 0 is of this kind, and done."""
    for _ in range(200):
        job = await background.job(bench.nvme, 0)
        if (job.kind, job.state) == (kind, JobState.DONE):
            return job
        await ClockCycles(bench.dut.clk, 500)
    raise AssertionError(f"{kind} is not done: {job}")


@cocotb.test(**LIMIT)
async def drives_restart(dut):
    """A member is brought up to date by itself; where nothing can be had, one flush fails."""
    bench = await Bench(dut).start()
    volume = await bench.create(**setting("RAID5"))
    await bench.load(volume, 20)
    load = cocotb.start_soon(bench.load(volume, 90, workers=64))
    await ClockCycles(dut.clk, 3000)
    await bench.drives[2].restart()
    assert bench.drives[2].counts.forgotten
    await load
    await done(bench, WalkKind.REBUILD)
    [array] = await raid.arrays(bench.nvme)
    assert array.state == ArrayState.OPTIMAL
    assert not array.members[2].stale and not array.members[2].failed
    assert await flush(bench, volume) == nvme.SUCCESS
    # Two at once: none can be done without, and rows that were being written may be torn. Of what
    # has not been flushed a block may be as it was.
    flushed = [volume.model.possible(block) for block in range(len(volume.model))]
    await bench.load(volume, 10)
    for block, contents in enumerate(flushed):
        for content in contents:
            volume.model.end_write(volume.model.begin_write(block, [content]), done=False)
    both = [cocotb.start_soon(bench.drives[port].restart()) for port in (1, 2)]
    for one in both:
        await one
    job = await done(bench, WalkKind.RESYNC)
    assert job.in_sync and job.array_state == ArrayState.OPTIMAL
    assert [await flush(bench, volume) for _ in range(2)] == [nvme.WRITE_FAULT, nvme.SUCCESS]
    await bench.finish(volume)
    await raid.delete_volume(bench.nvme, volume.namespace)
    await raid.delete_array(bench.nvme, volume.array)
    volume = await bench.create(**setting("RAID0"))
    await bench.load(volume, 10)
    assert await flush(bench, volume) == nvme.SUCCESS
    await bench.drives[3].restart()
    assert not bench.drives[3].counts.forgotten
    await ClockCycles(dut.clk, 3000)
    statuses = [await flush(bench, volume) for _ in range(3)]
    assert statuses == [nvme.WRITE_FAULT, nvme.SUCCESS, nvme.SUCCESS]
    await bench.load(volume, 10)
    await bench.finish(volume)


def run(testcase: str, **parameters) -> None:
    run_controller(testcase, module=__name__, **parameters)


@pytest.mark.parametrize(
    ("array", "pulled"),
    [
        pytest.param("RAID6", "0,4", marks=pytest.mark.slow),
        pytest.param("RAID10", "1,2", marks=pytest.mark.slow),
        pytest.param("RAID1", "1,5", marks=pytest.mark.slow),
        pytest.param("RAID5", "2", marks=pytest.mark.slow),
        pytest.param("RAID50", "1,3", marks=pytest.mark.slow),
    ],
)
def test_degraded(array, pulled):
    run("goes_on_degraded", array=array, pulled=pulled, commands=25)


@pytest.mark.slow
def test_beyond_tolerance():
    run("tells_the_truth_beyond_tolerance")


@pytest.mark.slow
def test_restarts():
    run("drives_restart")


@pytest.mark.slow
@pytest.mark.parametrize("array", ["RAID6", "RAID10"])
def test_bad_blocks(array):
    run("plans_around_bad_blocks", array=array, scattered=False)


@pytest.mark.parametrize(
    ("testcase", "array"),
    [
        ("reads_past_a_bad_block", "RAID5"),
        pytest.param("plans_around_bad_blocks", "RAID5", marks=pytest.mark.slow),
        pytest.param("plans_around_bad_blocks", "RAID6", marks=pytest.mark.slow),
    ],
)
def test_scattered_bad_blocks(testcase, array):
    run(testcase, array=array, scattered=True)


@pytest.mark.parametrize(
    ("array", "copies"),
    [
        ("RAID1", 2),
        pytest.param("RAID1", 3, marks=pytest.mark.slow),
        pytest.param("RAID1", 4, marks=pytest.mark.slow),
        pytest.param("RAID10", 3, marks=pytest.mark.slow),
    ],
)
def test_every_copy(array, copies):
    run("tries_every_copy", array=array, copies=copies)
