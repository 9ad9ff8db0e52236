"""The whole controller: host driver, cocotbext-pcie, drive models and golden volumes."""

import os
from functools import partial

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.controller_bench import CONFIG, Bench, ObservedController
from cocotb_tests.controller_situations import ALL_PORTS, PAUSES, busy_host, plant, refusal, setting
from cocotb_tests.drive_model import IDEAL, RANDOM, Timing
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.transport import MSIX_ENTRY_BYTES, MSIX_TABLE
from cocotb_tests.volume_model import DataError, VolumeModel
from hdl.array.interface import Level
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS
from hdl.core import Core
from hdl.drive.interface import DriveStatus
from hdl.nvme.function_reset import FunctionReset
from hdl.parity.interface import StepKind
from hdl.stripe.gather import Gather
from hdl.stripe.sequencer import Sequencer
from sim.golden import nvme
from sw.driver import raid
from sw.driver.commands import Command, Io, Register, read_write
from sw.driver.queue import PRP_ENTRY_BYTES
from sw.driver.transport import PAGE_BYTES

LIMIT = {"timeout_time": 60, "timeout_unit": "ms"}
LESS_OFTEN = ("RAID0", "RAID1", "RAID10", "JBOD")
"""Levels whose random accesses are only in the long suite; the throughput tier has them all."""


@cocotb.test(**LIMIT)
async def brings_up_and_manages(dut):
    bench = await Bench(dut, timing=IDEAL, pauses=PAUSES).start()
    identity = bench.nvme.identity
    assert identity is not None
    assert identity.max_transfer_pages == CONFIG.transfer_blocks
    assert identity.namespaces == CONFIG.volumes
    assert len(bench.nvme.queues) == CONFIG.queue_pairs
    drives = await raid.drives(bench.nvme)
    assert [drive.port for drive in drives] == list(ALL_PORTS)
    assert all(drive.present and not drive.failed and drive.array is None for drive in drives)
    assert {drive.blocks for drive in drives} == {bench.drives[0].capacity}
    assert await raid.arrays(bench.nvme) == [] == await raid.volumes(bench.nvme)

    create = partial(raid.create_array, bench.nvme)
    volume = partial(raid.create_volume, bench.nvme)
    assert await refusal(create(Level.RAID5, (0, 1))) == nvme.INVALID_FIELD
    assert await refusal(create(Level.RAID6, (0, 1, 2))) == nvme.INVALID_FIELD
    assert await refusal(create(Level.JBOD, (0, 1))) == nvme.INVALID_FIELD
    assert await refusal(create(Level.RAID0, (0, 7))) == nvme.DRIVE_UNAVAILABLE
    raid6 = await create(Level.RAID6, (0, 1, 2, 3), strip_kib=8)
    mirror = await create(Level.RAID1, (4, 5), strip_kib=4)
    assert await refusal(create(Level.RAID1, (3, 4))) == nvme.DRIVE_UNAVAILABLE
    assert await refusal(volume(7)) == nvme.NO_ENTRY
    assert await refusal(volume(raid6, 0, 101)) == nvme.NO_SPACE
    first = await volume(raid6, 0, 40)
    second = await volume(raid6, 60)
    assert await refusal(volume(raid6, 39, 2)) == nvme.NO_SPACE
    third = await volume(mirror)

    found = await raid.arrays(bench.nvme)
    assert [(array.number, array.level, array.blocks) for array in found] == [
        (raid6, Level.RAID6, 100),
        (mirror, Level.RAID1, 50),
    ]
    assert [member.port for member in found[0].members] == [0, 1, 2, 3]
    assert not any(array.degraded or array.missing for array in found)
    listed = await raid.volumes(bench.nvme)
    assert [(v.namespace, v.array, v.start, v.blocks) for v in listed] == [
        (first, raid6, 0, 40),
        (second, raid6, 60, 40),
        (third, mirror, 0, 50),
    ]
    active = await bench.nvme.identify(2)
    numbers = [int.from_bytes(active[4 * n : 4 * n + 4], "little") for n in range(4)]
    assert numbers == [first, second, third, 0]

    assert await refusal(raid.delete_array(bench.nvme, mirror)) == nvme.IN_USE
    await raid.delete_volume(bench.nvme, third)
    assert await refusal(raid.delete_volume(bench.nvme, third)) == nvme.NO_ENTRY
    await raid.delete_array(bench.nvme, mirror)
    assert await refusal(raid.delete_array(bench.nvme, mirror)) == nvme.NO_ENTRY
    again = await bench.create(Level.RAID0, (4, 5))
    await bench.load(again, 8)
    await bench.finish(again)


@cocotb.test(**LIMIT)
async def random_accesses(dut):
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    volume = await bench.create(**setting(os.environ["ARRAY"]))
    await bench.load(volume, int(os.environ["COMMANDS"]))
    await bench.nvme.flush(volume.namespace)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def as_many_as_it_holds(dut):
    """Both queues full of short commands to two volumes, on fast and slow drives."""
    bench = await Bench(dut).start()
    busy_host(bench)
    for port in (1, 4):
        bench.drives[port].timing = IDEAL
    volumes = [
        await bench.create(Level.RAID5, (0, 1, 2), strip_blocks=2),
        await bench.create(Level.RAID10, (3, 4, 5)),
    ]
    for share in (0.9, 0.1):
        loads = [
            cocotb.start_soon(bench.load(volume, 120, workers=60, longest=2, writes=share))
            for volume in volumes
        ]
        for load in loads:
            await load
    await bench.finish(*volumes)


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


@cocotb.test(**LIMIT)
async def refuses_bad_commands(dut):
    """Each with the specification's status, amid accesses that go on."""
    bench = await Bench(dut).start()
    busy_host(bench)
    volume = await bench.create(Level.RAID5, (0, 1, 2, 3))
    size, good = len(volume.model), volume.namespace
    largest = CONFIG.transfer_blocks
    load = cocotb.start_soon(bench.load(volume, 40, workers=6))
    rows: list[tuple[Command, int, int]] = []
    for opcode in (Io.READ, Io.WRITE):
        for block, blocks in ((size, 1), (size - 1, 2), (1 << 39, 1), (1 << 63, 4)):
            rows.append((read_write(opcode, good, block, blocks, 0, 0), blocks, 0x080))
        rows += [
            (read_write(opcode, number, 0, 1, 0, 0), 1, nvme.INVALID_NAMESPACE)
            for number in (0, CONFIG.volumes + 1, 0xFFFF_FFFF)
        ]
        rows.append((read_write(opcode, good + 1, 0, 1, 0, 0), 1, nvme.INVALID_FIELD))
        rows.append((read_write(opcode, good, 0, largest + 1, 0, 0), largest, nvme.INVALID_FIELD))
        fused = read_write(opcode, good, 0, 1, 0, 0)
        rows.append((Command(opcode, good, dwords=fused.dwords, flags=1), 1, nvme.INVALID_FIELD))
    rows.append((Command(Io.FLUSH, good + 1), 1, nvme.INVALID_FIELD))
    rows += [(Command(opcode, good), 1, nvme.INVALID_OPCODE) for opcode in (0x03, 0x55, 0xFF)]
    bench.random.shuffle(rows)
    for command, blocks, expected in rows:
        status = await bench.io(command, blocks, queue=bench.random.randrange(2))
        assert status == expected, f"{command}: {status:#x}, not {expected:#x}"
    page = bench.buffer(3)
    for prp1, prp2, blocks in (
        (page + 2, 0, 1),
        (page, page + PAGE_BYTES + 8, 2),
        (page, page + PAGE_BYTES + 4, 3),
    ):
        command = read_write(Io.READ, good, 0, blocks, prp1, prp2)
        done = await bench.nvme.queues[0].submit(command)
        assert done.code == nvme.INVALID_PRP_OFFSET, f"{prp1:#x}, {prp2:#x}: {done.code:#x}"
    await load
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def host_faults_cost_one_command(dut):
    """A read of the host's memory that fails, or has no end, fails the command it was for."""
    bench = await Bench(dut).start()
    busy_host(bench)
    volume = await bench.create(Level.RAID5, (0, 1, 2, 3))
    memory = bench.buffer(CONFIG.transfer_blocks)
    planted = 0
    for kind in ("poisoned", "unsupported", "abort", "lost", "refused"):
        blocks = bench.random.randint(1, CONFIG.transfer_blocks)
        address = memory + 4 * bench.random.randrange(PAGE_BYTES // 4)
        place = bench.random.randrange(blocks) * BLOCK_BYTES
        plant(bench, kind, address + place, BLOCK_BYTES)
        first = bench.random.randint(0, len(volume.model) - blocks)
        status, _ = await bench.jumping(
            bench.write(volume, first, blocks, address), bench.load(volume, 12, workers=6)
        )
        planted += 1
        assert len(bench.host.rc.reads.planted) == planted, kind
        assert status == nvme.DATA_TRANSFER_ERROR, f"{kind}: {status:#x}"
        # The same, of a PRP list.
        plist = bench.buffer(1)
        entries = [memory + (n + 1) * PAGE_BYTES for n in range(4)]
        raw = b"".join(entry.to_bytes(PRP_ENTRY_BYTES, "little") for entry in entries)
        bench.transport.memory.write(plist, raw)
        plant(bench, kind, plist, PAGE_BYTES)
        command = read_write(Io.READ, volume.namespace, 0, 5, memory, plist)
        done, _ = await bench.jumping(
            bench.nvme.queues[1].submit(command), bench.load(volume, 4, workers=2)
        )
        planted += 1
        assert len(bench.host.rc.reads.planted) == planted, kind
        assert done.code == nvme.DATA_TRANSFER_ERROR, f"PRP list {kind}: {done.code:#x}"
    bench.host.rc.reads.fault = None
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def starts_again(dut):
    """A reset amid accesses, and one after a submission entry that could not be read."""
    bench = await Bench(dut).start()
    busy_host(bench)
    volume = await bench.create(Level.RAID6, range(5))
    for _ in range(2):
        workers = [cocotb.start_soon(bench.load(volume, 100, workers=12))]
        await ClockCycles(dut.clk, bench.random.randint(2000, 8000))
        await bench.nvme.stop()
        bench.abandon(volume, workers)
        await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
        await bench.load(volume, 10)
        await bench.finish(volume)
    pair = bench.nvme.queues[0]
    plant(bench, "poisoned", pair.sq_address, pair.depth * nvme.SQE_BYTES)
    lost = cocotb.start_soon(bench.read(volume, 0, 1, bench.buffer(1)))
    for _ in range(100):
        if await bench.transport.read32(Register.CSTS) & nvme.CSTS_FATAL:
            break
        await ClockCycles(dut.clk, 100)
    else:
        raise AssertionError("no fatal status")
    bench.abandon(volume, [lost])
    await bench.transport.write32(Register.CC, 0)
    await ClockCycles(dut.clk, 1000)
    await bench.nvme.stop()
    await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
    await bench.load(volume, 10)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def resets_the_function(dut):
    """Function level resets amid accesses, with drives that take longer than the reset does."""
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    host = bench.host
    volume = await bench.create(Level.RAID6, range(5))
    outlasted = 0
    for terminate in (True, False):
        for drive in bench.drives[:2]:
            drive.timing = Timing(latency=(100, 10_000))
        workers = [cocotb.start_soon(bench.load(volume, 100, workers=20))]
        await ClockCycles(dut.clk, bench.random.randint(2000, 4000))
        took = await host.reset_function(terminate=terminate)
        outlasted += any(not drive.idle for drive in bench.drives)
        dut._log.info("a function level reset took %d cycles", took)
        bench.abandon(volume, workers)
        await host.restore_bus_master()
        for register in (Register.CC, Register.CSTS, Register.AQA, Register.ASQ, Register.ACQ):
            assert await bench.transport.read32(register) == 0, register
        for vector in range(CONFIG.queue_pairs + 1):
            control = MSIX_TABLE + MSIX_ENTRY_BYTES * vector + 12
            assert await bench.transport.read32(control) == 1, f"vector {vector} is not masked"
        await ClockCycles(dut.clk, 2000)
        assert not host.request_beats, "the card wrote or read after its reset"
        for drive in bench.drives[:2]:
            drive.timing = RANDOM
        await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
        await bench.load(volume, 6)
    await bench.finish(volume)
    assert outlasted, "no reset was done before the drives"


@cocotb.test(**LIMIT)
async def bus_master_comes_and_goes(dut):
    """Without bus mastering commands wait; a controller that is disabled then still stops."""
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    host = bench.host
    volume = await bench.create(Level.RAID5, range(5))
    load = cocotb.start_soon(bench.load(volume, 30, workers=20, longest=8))
    for _ in range(3):
        await ClockCycles(dut.clk, bench.random.randint(300, 1000))
        await host.withdraw_bus_master()
        await ClockCycles(dut.clk, bench.random.randint(1, 1000))
        assert not host.request_beats, "a request left without bus mastering"
        await host.restore_bus_master()
    assert not load.done()
    await load
    await bench.settle()
    workers = [cocotb.start_soon(bench.load(volume, 100, workers=20))]
    await ClockCycles(dut.clk, 3000)
    await host.withdraw_bus_master()
    await bench.nvme.stop()
    bench.abandon(volume, workers)
    await host.restore_bus_master()
    await ClockCycles(dut.clk, 2000)
    assert not host.request_beats, "the card wrote or read after it was disabled"
    await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
    await bench.load(volume, 10)
    await bench.finish(volume)


def run(testcase: str, name: str = "controller", **parameters) -> None:
    simulate(
        ObservedController(config=CONFIG),
        name=name,
        module=__name__,
        testcase=testcase,
        parameters={key.upper(): str(value) for key, value in parameters.items()},
    )


def test_bring_up_and_management():
    run("brings_up_and_manages")


@pytest.mark.parametrize(
    ("array", "commands"),
    [
        ("RAID5", 60),
        ("RAID6", 50),
        ("RAID1E", 40),
        ("RAID50", 50),
        *(pytest.param(level, 50, marks=pytest.mark.slow) for level in LESS_OFTEN),
    ],
)
def test_random_accesses(array, commands):
    run("random_accesses", array=array, commands=commands)


def test_full_queues():
    run("as_many_as_it_holds")


@pytest.mark.parametrize(
    ("array", "pulled"),
    [
        ("RAID6", "0,4"),
        ("RAID10", "1,2"),
        pytest.param("RAID1", "1,5", marks=pytest.mark.slow),
        pytest.param("RAID5", "2", marks=pytest.mark.slow),
        pytest.param("RAID50", "1,3", marks=pytest.mark.slow),
    ],
)
def test_degraded(array, pulled):
    run("goes_on_degraded", array=array, pulled=pulled, commands=25)


def test_beyond_tolerance():
    run("tells_the_truth_beyond_tolerance")


@pytest.mark.parametrize("array", ["RAID6", pytest.param("RAID10", marks=pytest.mark.slow)])
def test_bad_blocks(array):
    run("plans_around_bad_blocks", array=array, scattered=False)


@pytest.mark.parametrize(
    ("testcase", "array"),
    [
        ("reads_past_a_bad_block", "RAID5"),
        ("plans_around_bad_blocks", "RAID5"),
        pytest.param("plans_around_bad_blocks", "RAID6", marks=pytest.mark.slow),
    ],
)
def test_scattered_bad_blocks(testcase, array):
    run(testcase, array=array, scattered=True)


@pytest.mark.parametrize(
    ("array", "copies"), [("RAID1", 2), ("RAID1", 3), ("RAID1", 4), ("RAID10", 3)]
)
def test_every_copy(array, copies):
    run("tries_every_copy", array=array, copies=copies)


def test_bad_commands():
    run("refuses_bad_commands")


def test_host_faults():
    run("host_faults_cost_one_command")


@pytest.mark.parametrize(
    "testcase",
    [
        "starts_again",
        "resets_the_function",
        pytest.param("bus_master_comes_and_goes", marks=pytest.mark.slow),
    ],
)
def test_resets(testcase):
    run(testcase)


class MisplacesReads(Core):
    """A planted bug: every second block of a read goes where the one before it went."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.front_end.deliver.payload.offset[0].eq(0)
        return m


class ConfusesParities(Sequencer):
    """A planted bug: every parity is P."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.step.payload.kind == StepKind.OUTPUT):
            m.d.comb += self.step.payload.role.eq(0)
        return m


class KeepsLines(Gather):
    """A planted bug: the line of a block that cannot be fetched is not given back."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.free.valid.eq(0)
        return m


class ForgetsCommands(FunctionReset):
    """A planted bug: a function level reset ends with commands inside."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self.draining.eq(self.request)
        return m


@pytest.mark.parametrize(
    ("place", "mutant", "testcase", "message"),
    [
        ("hdl.controller.Core", MisplacesReads, "random_accesses", "read, is wrong"),
        ("hdl.core.Sequencer", ConfusesParities, "random_accesses", "parity is wrong"),
        ("hdl.core.Gather", KeepsLines, "host_faults_cost_one_command", "lines are lost"),
        pytest.param(
            "hdl.nvme.front_end.FunctionReset",
            ForgetsCommands,
            "resets_the_function",
            "wrote or read after its reset",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_planted_bugs_are_caught(monkeypatch, place, mutant, testcase, message):
    monkeypatch.setattr(place, mutant)
    with pytest.raises(SimulationError, match=message):
        run(testcase, name=mutant.__name__, array="RAID6", commands=20)


def test_golden_volume_allows_what_can_be():
    """Writes that overlap in time may end in any order, one that began later wins."""
    old, new, newer = (bytes([value]) * BLOCK_BYTES for value in range(3))
    model = VolumeModel([old] * 3)
    read = model.begin_read(0, 3)
    first = model.begin_write(0, [new, new])
    second = model.begin_write(1, [newer])
    assert model.possible(1) == {old, new, newer}
    model.end_write(second)
    model.end_write(first)
    assert [model.possible(block) for block in range(3)] == [{new}, {new, newer}, {old}]
    model.end_read(read, [new, old, old])
    third = model.begin_write(1, [old])
    model.end_write(third)
    assert model.possible(1) == {old}
    failed = model.begin_write(1, [new])
    model.end_write(failed, done=False)
    assert model.possible(1) == {old, new}
    assert model.idle
    with pytest.raises(DataError, match="block 0, number 0 of 2 read"):
        model.end_read(model.begin_read(0, 2), [old, old])
    with pytest.raises(DataError, match="block 2 in drive 1"):
        model.check(2, newer, "drive 1")
