"""The whole controller while the host errs, fails or resets it."""

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import ClockCycles

from cocotb_tests.drive.drive_model import RANDOM, Timing
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import sample
from cocotb_tests.system.controller_bench import CONFIG, LIMIT, Bench, run_controller
from cocotb_tests.system.controller_situations import PAUSES, busy_host, plant
from cocotb_tests.system.transport import MSIX_ENTRY_BYTES, MSIX_TABLE
from hdl.config import BLOCK_BYTES
from hdl.flow.geometry import Level
from hdl.nvme.registers.function_reset import FunctionReset
from hdl.pcie.ordering import GIVEN_UP
from hdl.stripe.gather.gather import Gather
from sim.golden import nvme
from sw.driver.commands import Admin, Command, Io, Register, read_write
from sw.driver.queue import PRP_ENTRY_BYTES
from sw.driver.transport import PAGE_BYTES

ADMIN_CYCLES = 6000
"""Bound for an admin command that waits for no drive."""


@cocotb.test(**LIMIT)
async def judges_ranges_and_compares(dut):
    """Dataset Management and Compare look at what the host has just sent, whatever else moves."""
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    volume = await bench.create(Level.RAID5, (0, 1, 2, 3))
    other = await bench.create(Level.RAID0, (4, 5))
    load = cocotb.start_soon(bench.load(other, 60))
    memory, size = bench.transport.memory, len(volume.model)
    places = [bench.buffer(1) for _ in range(4)]
    data = bench.buffer(2)
    first = bench.random.randrange(size - 1)
    assert await bench.write(volume, first, 2, data) == 0
    for turn in range(24):
        # Each list is of another length and lies where an older one was, so that what is left of
        # that one would be judged otherwise.
        good = turn % 2 == 0
        count = bench.random.choice((1, 2, 3, 40))
        ranges = [(bench.random.randrange(size), 1) for _ in range(count)]
        if not good:
            ranges[bench.random.randrange(count)] = (size, 1 + bench.random.randrange(9))
        fields, content = nvme.dataset(volume.namespace, ranges)
        address = bench.random.choice(places)
        memory.write(address, content)
        command = Command(
            fields["opcode"], volume.namespace, prp1=address, dwords=fields["dwords"]
        )
        done = await bench.nvme.queues[turn % 2].submit(command)
        expected = nvme.SUCCESS if good else nvme.LBA_OUT_OF_RANGE
        assert done.code == expected, f"{done.code:#x}, not {expected:#x}, of {count} ranges"
        compared = data
        if not good:
            compared = address
            memory.write(address, bench.random.randbytes(BLOCK_BYTES))
        command = read_write(nvme.COMPARE, volume.namespace, first, 1, compared, 0)
        done = await bench.nvme.queues[turn % 2].submit(command)
        assert done.code | done.code_type << 8 == (nvme.SUCCESS if good else nvme.COMPARE_FAILURE)
    await load
    await bench.finish(volume, other)


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


@cocotb.test(**LIMIT)
async def resets_the_link(dut):
    """A warm reboot amid accesses: the host's side begins anew, arrays stay as they are."""
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    volume = await bench.create(Level.RAID6, range(5))
    for drive in bench.drives[:2]:
        drive.timing = Timing(latency=(100, 10_000))
    for _ in range(3):
        workers = [cocotb.start_soon(bench.load(volume, 100, workers=20))]
        await ClockCycles(dut.clk, bench.random.randint(2000, 4000))
        await bench.host.reset_link(cycles=bench.random.choice((2, 100, 2000)))
        bench.abandon(volume, workers)
        await bench.host.restore_bus_master()
        for register in (Register.CC, Register.CSTS, Register.AQA, Register.ASQ, Register.ACQ):
            assert await bench.transport.read32(register) == 0, register
        bench.host.request_beats = 0
        await ClockCycles(dut.clk, 2000)
        assert not bench.host.request_beats, "the card wrote or read after the link's reset"
        await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
        assert (await bench.nvme.namespace(volume.namespace)).blocks == len(volume.model)
        await bench.load(volume, 6)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def requests_stall(dut):
    """The block takes no request while the controller's state changes: nothing is lost."""
    bench = await Bench(dut).start()
    busy_host(bench)
    host = bench.host
    volume = await bench.create(Level.RAID5, range(5))

    async def disable() -> None:
        await bench.transport.write32(Register.CC, 0)

    async def shut_down() -> None:
        control = await bench.transport.read32(Register.CC)
        await bench.transport.write32(Register.CC, control | 1 << 14)

    async def function_reset() -> None:
        dut.status__function_reset.value = 1
        while stalled:
            await ClockCycles(dut.clk, 10)
        await host.reset_function(terminate=True)
        await host.restore_bus_master()

    async def link_reset() -> None:
        await host.reset_link(cycles=100)
        await host.restore_bus_master()

    for change in (disable, shut_down, function_reset, link_reset):
        workers = [cocotb.start_soon(bench.load(volume, 100, workers=20, longest=8))]
        await ClockCycles(dut.clk, bench.random.randint(1000, 3000))
        host.stall_requests(True)
        stalled = True
        await ClockCycles(dut.clk, bench.random.randint(1, 400))
        changing = cocotb.start_soon(change())
        await ClockCycles(dut.clk, bench.random.randint(500, 3000))
        host.stall_requests(False)
        stalled = False
        await changing
        if change is shut_down:
            for _ in range(500):
                if await bench.transport.read32(Register.CSTS) >> 2 & 3 == 2:
                    break
                await ClockCycles(dut.clk, 100)
            else:
                raise AssertionError("the shutdown does not end")
        if change in (disable, shut_down):
            await bench.nvme.stop()
        bench.abandon(volume, workers)
        await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
        await bench.load(volume, 8)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def goes_on_after_a_stall(dut):
    """While the block takes no request, vectors are masked, bus mastering goes, queues are deleted:
    registers can be read, and everything goes on afterwards."""
    bench = await Bench(dut).start()
    busy_host(bench)
    host, transport = bench.host, bench.transport
    volume = await bench.create(Level.RAID5, range(5))

    async def mask(masked: int) -> None:
        for vector in range(1, CONFIG.queue_pairs + 1):
            control = MSIX_TABLE + MSIX_ENTRY_BYTES * vector + 12
            await transport.write32(control, masked)

    for name in ("mask", "bus mastering", "deletion"):
        load = cocotb.start_soon(bench.load(volume, 40, workers=20, longest=8))
        await ClockCycles(dut.clk, bench.random.randint(1000, 3000))
        deletion = None
        if name == "deletion":
            command = Command(Admin.DELETE_SQ, dwords=(1,))
            deletion = cocotb.start_soon(bench.nvme.admin(command, "delete"))
            await ClockCycles(dut.clk, bench.random.randint(1, 200))
        host.stall_requests(True)
        await ClockCycles(dut.clk, bench.random.randint(1, 400))
        if name == "mask":
            await mask(1)
        elif name == "bus mastering":
            host.hide_bus_master(True)
            reading = cocotb.start_soon(transport.read32(Register.CSTS))
            await ClockCycles(dut.clk, 2 * GIVEN_UP)
            assert reading.done(), "a register cannot be read while requests stall"
        await ClockCycles(dut.clk, bench.random.randint(500, 3000))
        host.hide_bus_master(False)
        host.stall_requests(False)
        if name == "mask":
            await ClockCycles(dut.clk, 3000)
            await mask(0)
        if deletion is None:
            await load
            continue
        await deletion
        await ClockCycles(dut.clk, 3000)
        await bench.nvme.stop()
        bench.abandon(volume, [load])
        await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
        await bench.load(volume, 8)
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def stands_at_the_block(dut):
    """Disabled without bus mastering while the block takes nothing: the controller is ready until
    the block has taken what it has been offered, and writes nothing afterwards."""
    bench = await Bench(dut).start()
    busy_host(bench)
    host, transport = bench.host, bench.transport
    volume = await bench.create(Level.RAID5, (0, 1, 2, 3))
    stood = 0

    async def is_ready() -> int:
        return await transport.read32(Register.CSTS) & nvme.CSTS_READY

    for _ in range(4):
        workers = [cocotb.start_soon(bench.load(volume, 400, workers=8, writes=0.1, longest=8))]
        await ClockCycles(dut.clk, bench.random.randint(2000, 3000))
        host.stall_requests(True)
        await ClockCycles(dut.clk, 200)
        host.hide_bus_master(True)
        await ClockCycles(dut.clk, 200)
        stands = sample(dut.rq_tvalid)
        stood += stands
        await transport.write32(Register.CC, 0)
        await ClockCycles(dut.clk, 3 * GIVEN_UP)
        if stands:
            assert await is_ready(), "it is not ready, and what stands at the block can still leave"
        host.stall_requests(False)
        while await is_ready():
            await ClockCycles(dut.clk, 100)
        before = host_memory(bench)
        await ClockCycles(dut.clk, 2000)
        host.hide_bus_master(False)
        await ClockCycles(dut.clk, 2000)
        assert host_memory(bench) == before, "written after the end"
        bench.abandon(volume, workers)
        await bench.nvme.stop()
        await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
        await bench.load(volume, 6, workers=2, longest=4)
    assert stood, "nothing stood at the block"
    await bench.finish(volume)


@cocotb.test(**LIMIT)
async def writes_nothing_after_its_end(dut):
    """Disabled, shut down or reset amid reads, with a hard block that completions overtake.

    From the moment at which the host knows, no byte of its memory changes.
    """
    bench = await Bench(dut).start()
    busy_host(bench)
    host, device = bench.host, bench.host.device
    volume = await bench.create(Level.RAID5, (0, 1, 2, 3))
    for end in ("disable", "shutdown", "reset"):
        device.posted_latency_ns = (0, 400)
        workers = [cocotb.start_soon(bench.load(volume, 400, workers=8, writes=0.1, longest=8))]
        await ClockCycles(dut.clk, bench.random.randint(2000, 3000))
        if end == "disable":
            await bench.transport.write32(Register.CC, 0)
            while await bench.transport.read32(Register.CSTS) & nvme.CSTS_READY:
                pass
        elif end == "shutdown":
            enabled = await bench.transport.read32(Register.CC)
            await bench.transport.write32(Register.CC, enabled | nvme.CC_SHUTDOWN_NORMAL)
            while await bench.transport.read32(Register.CSTS) >> 2 & 3 != 2:
                pass
        else:
            await host.reset_function(terminate=False)
        known = device.posted_in, device.posted_out, host_memory(bench)
        await ClockCycles(dut.clk, 3000)
        assert known[0] == known[1], f"{end}: {known[0] - known[1]} writes were still on their way"
        now = device.posted_in, device.posted_out, host_memory(bench)
        assert now == known, f"{end}: written after the end"
        device.posted_latency_ns = (0, 0)
        bench.abandon(volume, workers)
        if end == "reset":
            await host.restore_bus_master()
        else:
            await bench.nvme.stop()
        await bench.nvme.start(CONFIG.queue_pairs, CONFIG.queue_depth)
        await bench.load(volume, 6, workers=2, longest=4)
    await bench.finish(volume)


def host_memory(bench: Bench) -> list[bytes]:
    """All that the driver has."""
    return bench.transport.memory.everything()


@cocotb.test(**LIMIT)
async def admin_waits_for_no_drive(dut):
    """Drives hang, and all slots are taken by commands that wait for them; admin commands go on."""
    bench = await Bench(dut).start()
    volume = await bench.create(Level.RAID5, (0, 1, 2, 3))
    for drive in bench.drives[:4]:
        drive.hang = -1
    pair = bench.nvme.queues[0]
    waiting = []
    page = bench.buffer(1)
    for number in range(CONFIG.queue_depth - 2):
        opcode = (Io.READ, Io.WRITE)[number % 2]
        command = read_write(opcode, volume.namespace, number % len(volume.model), 1, page, 0)
        waiting.append(cocotb.start_soon(pair.submit(command)))
    await ClockCycles(dut.clk, 6000)
    slowest = 0
    for command in (
        Command(Admin.GET_FEATURES, dwords=(4,)),
        Command(Admin.SET_FEATURES, dwords=(4, 350)),
        Command(Admin.GET_LOG_PAGE, dwords=(2 | 127 << 16,), prp1=bench.buffer(1)),
        Command(Admin.GET_LOG_PAGE, dwords=(1 | 127 << 16,), prp1=bench.buffer(1)),
        Command(Admin.IDENTIFY, dwords=(1,), prp1=bench.buffer(1)),
        Command(Admin.ABORT, dwords=(1 << 16 | 1,)),
    ):
        began = bench.host.cycle
        await bench.nvme.admin(command)
        slowest = max(slowest, bench.host.cycle - began)
    print(f"the slowest admin command took {slowest} cycles")
    assert slowest < ADMIN_CYCLES
    assert not any(task.done() for task in waiting), "a drive did not hang"
    for task in waiting:
        task.cancel()


def run(testcase: str, **parameters) -> None:
    run_controller(testcase, module=__name__, **parameters)


@pytest.mark.slow
def test_bad_commands():
    run("refuses_bad_commands")


@pytest.mark.slow
def test_ranges_and_compares():
    run("judges_ranges_and_compares")


class Hasty(wiring.Component):
    """A planted bug: lines are told complete while their last beats are still being stored."""

    def __init__(self, shape):
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        connect(m, flipped(self.input), flipped(self.output))
        return m


@pytest.mark.slow
def test_reads_too_soon_are_caught(monkeypatch):
    monkeypatch.setattr("hdl.nvme.front_end.Settle", Hasty)
    with pytest.raises(SimulationError, match="too soon after a write"):
        run("judges_ranges_and_compares", mutant=Hasty)


@pytest.mark.slow
def test_host_faults():
    run("host_faults_cost_one_command")


@pytest.mark.parametrize(
    "testcase",
    [
        pytest.param("starts_again", marks=pytest.mark.slow),
        pytest.param("resets_the_function", marks=pytest.mark.slow),
        pytest.param("resets_the_link", marks=pytest.mark.slow),
        pytest.param("requests_stall", marks=pytest.mark.slow),
        pytest.param("goes_on_after_a_stall", marks=pytest.mark.slow),
        pytest.param("writes_nothing_after_its_end", marks=pytest.mark.slow),
        "admin_waits_for_no_drive",
        pytest.param("stands_at_the_block", marks=pytest.mark.slow),
        pytest.param("bus_master_comes_and_goes", marks=pytest.mark.slow),
    ],
)
def test_resets(testcase):
    run(testcase)


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
        pytest.param(
            "hdl.core.Gather",
            KeepsLines,
            "host_faults_cost_one_command",
            "lines are lost",
            marks=pytest.mark.slow,
        ),
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
        run(testcase, mutant=mutant, array="RAID6", commands=20)
