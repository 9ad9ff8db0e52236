"""Reads that are slow are taken off their ports (`hdl.drive.recovery.detach`)."""

from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import RisingEdge

import hdl.drive.recovery.ladder
from cocotb_tests.drive.drive_model import IDEAL, Timing
from cocotb_tests.drive.ladder_bench import CONFIG as LADDER
from cocotb_tests.drive.ladder_bench import PORTS, QUICK, SLACK, TICK, Ladders
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import start, wait_until
from hdl.config import Config
from hdl.drive.drives import Drives
from hdl.drive.recovery.detach import Detach
from hdl.flow.operation import DriveStatus, Opcode, Owner

CONFIG = replace(LADDER, slow_read_ms=2)
CONFIG_1 = replace(CONFIG, drive_tags=1)
SOON = 9 * 256 + SLACK
"""Cycles after which a slow read has ended at the latest: 2 ms, to the next tick but one."""

SLOW = Timing(latency=(3500, 5000), ending=(0, 20), read=0.8, write=0.8, grant=0.5)
TRICKLE = Timing(latency=(0, 50), ending=(0, 20), read=0.05, write=0.8, grant=0.5)
"""A block takes some 2500 cycles."""


class Slow(Ladders):
    """A bench with reads whose blocks can be had elsewhere."""

    def __init__(self, dut, config: Config = CONFIG):
        super().__init__(dut, config=config)
        self.began: dict[int, int] = {}

    def read(self, port: int, blocks: int = 1, *, elsewhere: int = 1) -> bool:
        """A host's read, a command by itself."""
        return self.submit(
            port=port,
            opcode=Opcode.READ,
            owner=Owner.COMMAND,
            block=10 * self.random.randrange(2000),
            blocks=blocks,
            elsewhere=elsewhere,
        )


async def answered(bench: Slow, cycles: int) -> int:
    """Cycles until every operation is answered, whether drives still have commands or not."""
    return await wait_until(
        bench.dut, lambda: not bench.pending and not bench.again, cycles=cycles, what="answers"
    )


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def detaches(dut):
    """Slow reads end early, those that nobody else has do not; the drive goes on undisturbed."""
    bench = Slow(dut)
    await start(dut)
    bench.drives[1].timing = SLOW
    bench.may_fail = {1}
    for port in range(PORTS):
        for _ in range(4):
            # The others are quick if they have little to send.
            bench.read(port, bench.random.randint(1, 4) if port == 1 else 1)
    await answered(bench, SOON)
    assert bench.ended(DriveStatus.SLOW) >= 4
    assert not bench.drives[1].idle and not bench.drives[1].counts.aborts
    before = bench.time
    bench.read(1, 2, elsewhere=0)
    bench.submit(port=1, opcode=Opcode.WRITE, owner=Owner.ROW, block=7)
    await answered(bench, 6000)
    assert bench.time - before > 3500 and not bench.ended(DriveStatus.SLOW)
    # More than the drive has tags: what finds none ends as slow with those that have them.
    for _ in range(3 * CONFIG.drive_tags):
        while not bench.read(1):
            await RisingEdge(dut.clk)
    await bench.drain()
    assert bench.ended(DriveStatus.SLOW) >= CONFIG.drive_tags
    await bench.settle()
    counts = bench.drives[1].counts
    assert not bench.given_up and not counts.aborts and not counts.resets


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def breaks_off(dut):
    """Reads are detached anywhere, inside blocks too, while others of the port go on."""
    bench = Slow(dut)
    await start(dut)
    for _ in range(10):
        port = bench.random.randrange(PORTS)
        drive = bench.drives[port]
        drive.timing = bench.random.choice((TRICKLE, SLOW))
        bench.may_fail = {port}
        for _ in range(2):
            bench.read(port, 1, elsewhere=bench.random.randrange(2))
        if drive.timing is SLOW:
            bench.read(port, 8)
        for other in range(PORTS):
            bench.some(other, 3)
        await bench.passes(bench.random.randrange(2000, 4500))
        drive.timing = QUICK
        bench.read(port, 8)
        await bench.drain()
        drive.counts.cut += bool(bench.statuses[DriveStatus.SLOW])
    assert bench.ended(DriveStatus.SLOW) > 10
    assert not bench.given_up and not any(drive.counts.resets for drive in bench.drives)
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def escalates(dut):
    """A detached read that the drive never ends is aborted, and at last costs a port reset."""
    bench = Slow(dut)
    await start(dut)
    drive = bench.drives[3]
    bench.stop(3, 2, deaf=True)
    for _ in range(2):
        bench.read(3)
    await answered(bench, SOON)
    assert bench.ended(DriveStatus.SLOW) == 2 and not drive.counts.aborts
    await wait_until(dut, lambda: drive.counts.resets == 1, cycles=12_000, what="reset")
    assert drive.counts.aborts == 2
    bench.some(3, 8)
    bench.some(0, 8)
    await bench.drain()
    assert not bench.given_up
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def waits_for_a_tag(dut):
    """What waits for a tag while detached reads have them all is sent after the port's reset."""
    bench = Slow(dut)
    await start(dut)
    drive = bench.drives[3]
    bench.stop(3, CONFIG.drive_tags, deaf=True)
    for _ in range(CONFIG.drive_tags):
        while not bench.read(3):
            await RisingEdge(dut.clk)
    await answered(bench, 2 * SOON)
    assert bench.ended(DriveStatus.SLOW) == CONFIG.drive_tags
    bench.submit(port=3, opcode=Opcode.WRITE, owner=Owner.ROW, block=7)
    await answered(bench, 12_000)
    assert drive.counts.resets == 1
    await bench.drain()
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def takes_the_tag(dut):
    """The drive ends a detached read that has the only tag, in any cycle around that in which there
    is something to send: it is sent soon."""
    bench = Slow(dut, CONFIG_1)
    await start(dut)
    drive = bench.drives[3]
    drive.timing, drive.cut_beats = IDEAL, 0
    bench.operations.active = 1.0
    around = 24
    for after in range(2 * around):
        bench.stop(3, 1, deaf=True)
        bench.read(3)
        await wait_until(dut, lambda: len(drive._commands) == 1, cycles=100, what="hang")
        while bench.pending:
            bench.time = (bench.time // TICK + 1) * TICK - 1
            await bench.passes(TICK // 2)
        assert bench.ended(DriveStatus.SLOW) == 1
        (command,) = drive._commands.values()
        drive.bad_reads = {command.block}
        command.ready = drive._cycle + around
        await bench.passes(after)
        bench.submit(port=3, opcode=Opcode.WRITE, owner=Owner.ROW, block=7)
        await answered(bench, 600)
    assert not drive.counts.aborts and not drive.counts.resets
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def passes_by(dut):
    """Until a drive has ended what it was slow with, only what nobody else has is asked of it."""
    bench = Slow(dut)
    await start(dut)
    drive = bench.drives[2]
    drive.timing = SLOW
    bench.may_fail = {2}
    bench.read(2)
    await answered(bench, SOON)
    assert bench.ended(DriveStatus.SLOW) == 1
    commands = drive.counts.commands
    for _ in range(3 * CONFIG.drive_tags):
        bench.read(2, bench.random.randint(1, 4))
        await answered(bench, 400)
    assert drive.counts.commands == commands and not drive.idle
    # In the queue of the port, behind each other.
    bench.submit(port=2, opcode=Opcode.WRITE, owner=Owner.ROW, block=7)
    for _ in range(CONFIG.drive_tags + 2):
        bench.read(2, elsewhere=0)
    bench.read(2)
    await bench.passes(300)
    assert drive.counts.commands == commands + CONFIG.drive_tags - 1
    drive.timing = QUICK
    await bench.drain()
    await wait_until(dut, lambda: drive.idle, cycles=6000, what="the drive")
    before = bench.statuses[DriveStatus.SLOW]
    for _ in range(CONFIG.drive_tags):
        bench.read(2)
    await bench.drain()
    assert bench.statuses[DriveStatus.SLOW] == before
    await bench.settle()


def run(testcase: str, name: str = "detach") -> None:
    simulate(converted(Drives, config=CONFIG), name=name, module=__name__, testcase=testcase)


TESTS = ("detaches", "breaks_off", "escalates", "waits_for_a_tag", "passes_by")


@pytest.mark.parametrize("testcase", TESTS)
def test_detach(testcase):
    run(testcase)


@pytest.mark.slow
def test_the_only_tag():
    simulate(
        Drives(config=CONFIG_1), name="detach_one", module=__name__, testcase="takes_the_tag"
    )


def free_tags(inner):
    """The tag of a detached read is used again at once."""

    def elaborate(self, platform):
        m = inner(self, platform)
        m.d.sync += self.orphans.eq(0)
        return m

    return elaborate


def tells_nobody(inner):
    """Nobody is told of the tags that a port's reset has freed."""

    def elaborate(self, platform):
        m = inner(self, platform)
        with m.If(self.forget):
            m.d.comb += self.freed.eq(0)
        return m

    return elaborate


def asks_it_again(inner):
    """A drive that is slow is asked for what others have."""

    def elaborate(self, platform):
        m = inner(self, platform)
        m.d.comb += m.submodules.queue.slow.eq(0)
        return m

    return elaborate


FAULTS = {
    "uses tags again": ("detaches", Detach, "elaborate", free_tags(Detach.elaborate)),
    "tells nobody": ("waits_for_a_tag", Detach, "elaborate", tells_nobody(Detach.elaborate)),
    "asks it again": ("passes_by", Drives, "elaborate", asks_it_again(Drives.elaborate)),
    "never": ("detaches", hdl.drive.recovery.ladder, "ticks", lambda config, ms: 4000),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.slow
def test_detach_faults_are_caught(fault, monkeypatch):
    testcase, owner, name, value = FAULTS[fault]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(SimulationError):
        run(testcase, name=f"detach_{fault.replace(' ', '_')}")
