"""Drives that do not end their commands: aborts, port resets, giving up (`hdl.drive.ladder`)."""

import os
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import RisingEdge

import hdl.drive.ladder
from cocotb_tests.drive_model import RANDOM, Timing
from cocotb_tests.drives_bench import Bench, sizes
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import start, wait_until
from hdl.config import Config
from hdl.drive.drives import Drives
from hdl.drive.fence import Fence
from hdl.drive.interface import DriveStatus, Opcode, Owner
from hdl.drive.ladder import longest_ms

PORTS = 4
CONFIG = replace(
    sizes(PORTS),
    clock_hz=1_000_000,
    command_timeout_ms=6,
    abort_timeout_ms=1,
    drive_resets=1,
    drive_reset_window_s=1,
)
LONGEST = int(longest_ms(CONFIG) * CONFIG.clock_hz / 1000)
"""Cycles that a command may stay in a port, but for the walk over the tags."""

SLACK = 600
QUICK = Timing(latency=(0, 100), ending=(0, 20), read=0.8, write=0.8, grant=0.5)


class Ladders(Bench):
    """A bench in which time passes, and the ports that are given up are failed."""

    def __init__(self, dut, *, timing: Timing = QUICK, config: Config = CONFIG):
        seed = int(os.environ["SEED"])
        print(f"SEED={seed}")
        super().__init__(dut, config, seed=seed, timing=timing, active=0.7, stall=0.2)
        self.given_up: list[int] = []
        self.may_fail = set(range(PORTS))
        self.time = 0
        cocotb.start_soon(self._pass())

    async def _pass(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            self.time += 1
            dut.now.value = self.time
            if int(dut.fail__valid.value):
                self.given_up.append(int(dut.fail__payload.value))
                dut.failed.value = int(dut.failed.value) | 1 << self.given_up[-1]

    def some(self, port: int, count: int) -> None:
        """Short operations of every kind, each command by itself."""
        for _ in range(count):
            opcode = self.random.choice((Opcode.READ, Opcode.WRITE, Opcode.READ, Opcode.FLUSH))
            owner = self.random.choice((Owner.ROW, Owner.COMMAND))
            if opcode is Opcode.WRITE:
                owner = Owner.ROW
            elif opcode is Opcode.FLUSH:
                owner = self.random.choice(list(Owner))
            self.submit(
                port=port,
                opcode=opcode,
                owner=owner,
                block=2 * self.random.randrange(2000),
                place=self.random.randrange(8),
                alone=1,
            )

    async def passes(self, cycles: int) -> None:
        """That much time."""
        for _ in range(cycles):
            await RisingEdge(self.dut.clk)

    def ended(self, status: DriveStatus) -> int:
        """How many operations have ended so since the last time."""
        count, self.statuses[status] = self.statuses[status], 0
        return count


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def aborts(dut):
    """One command hangs: it is aborted in time and alone; a drive that only is slow is not."""
    bench = Ladders(dut)
    await start(dut)
    bench.drives[1].hang = 1
    bench.submit(port=1, opcode=Opcode.READ, owner=Owner.ROW, block=9)
    await wait_until(dut, lambda: bench.drives[1].counts.stuck == 1, cycles=200, what="hang")
    since = bench.time
    for port in range(PORTS):
        bench.some(port, 6)
    await wait_until(dut, lambda: len(bench.pending) == 1, cycles=3000, what="the others")
    await bench.drain()
    took = bench.time - since
    assert 6000 <= took <= LONGEST, took
    assert bench.ended(DriveStatus.ABORTED) == 1
    assert [drive.counts.aborts for drive in bench.drives] == [0, 1, 0, 0]
    bench.drives[2].timing = Timing(latency=(5000, 5500))
    bench.some(2, 5)
    await bench.settle()
    assert sum(drive.counts.aborts for drive in bench.drives) == 1
    assert not bench.given_up and not any(drive.counts.resets for drive in bench.drives)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def resets(dut):
    """Aborts are ignored: the port is reset under load, everything ends once, the drive works on.

    The next time within the window it is given up, and it comes back when it is forgiven.
    """
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[0]
    drive.hang, drive.deaf = 2, True
    since = bench.time
    bench.some(0, 6)
    await bench.passes(6800)
    while not drive.counts.resets:
        # More keeps coming, and other ports do not notice.
        bench.some(0, 2)
        bench.some(3, 1)
        await bench.passes(40)
        assert bench.time - since <= LONGEST + SLACK
    bench.some(0, 10)
    await bench.drain()
    assert drive.counts.resets == 1 and not bench.given_up
    aborted = bench.ended(DriveStatus.ABORTED)
    assert aborted >= 2, aborted
    bench.some(0, 10)
    await bench.drain()
    assert not bench.ended(DriveStatus.ABORTED) and not bench.ended(DriveStatus.GONE)

    drive.hang, drive.lasting = -1, True
    since = bench.time
    bench.some(0, 12)
    bench.some(1, 3)
    await bench.drain()
    assert bench.time - since <= LONGEST + SLACK
    assert bench.given_up == [0] and bench.ended(DriveStatus.GONE) == 12
    assert drive.counts.resets == 2
    bench.some(0, 5)
    await bench.drain()
    assert bench.ended(DriveStatus.GONE) == 5
    assert int(dut.drives__0__reset.value), "a drive that was given up is not in reset"

    drive.hang, drive.lasting = 0, False
    dut.failed.value = 0
    await bench.settle()
    assert not int(dut.drives__0__reset.value)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def patience(dut):
    """A drive that ends all it is told to abort, but nothing else, is given up as well."""
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[2]
    drive.hang, drive.lasting = -1, True
    for attempt, status in enumerate(
        (DriveStatus.ABORTED, DriveStatus.ABORTED, DriveStatus.ABORTED, DriveStatus.GONE)
    ):
        bench.some(2, 4)
        bench.some(0, 4)
        await bench.drain()
        assert bench.ended(status) == 4, (attempt, bench.statuses)
        assert drive.counts.resets == max(0, attempt - 1)
    assert bench.given_up == [2] and drive.counts.aborts == 8
    drive.hang, drive.lasting = 0, False
    dut.failed.value = 0
    await bench.settle()


@cocotb.test(timeout_time=6, timeout_unit="ms")
async def storms(dut):
    """Resets at any moment of random traffic, writes and reads in the middle of a block too."""
    bench = Ladders(dut, timing=RANDOM)
    await start(dut)
    expected = 0
    for _ in range(12):
        port = bench.random.randrange(PORTS)
        drive = bench.drives[port]
        if port in bench.given_up:
            continue
        drive.hang, drive.deaf = 1, True
        before = drive.counts.resets
        bench.some(port, 1)
        await bench.passes(5500 + bench.random.randrange(300))
        while drive.counts.resets == before:
            # As many as there is room for, on every port.
            for other in range(PORTS):
                if len(bench.pending) < 60:
                    bench.some(other, 2)
            await bench.passes(bench.random.randrange(20, 60))
        expected += 1
        await bench.drain()
        assert drive.counts.resets == before + 1
    given_up = [port for port in range(PORTS) if port in bench.given_up]
    assert sum(drive.counts.resets for drive in bench.drives) == expected
    for port, drive in enumerate(bench.drives):
        assert (drive.counts.resets == 2) == (port in given_up)
    assert sum(drive.counts.cut for drive in bench.drives), "no read broke off inside a block"
    dut.failed.value = 0
    await bench.settle()


def run(testcase: str, name: str = "ladder", seed: int = 1) -> None:
    simulate(
        Drives(config=CONFIG), name=name, module=__name__, testcase=testcase, seed=seed
    )


@pytest.mark.parametrize("testcase", ["aborts", "resets", "patience", "storms"])
def test_ladder(testcase):
    run(testcase)


def test_times():
    """What the sizes promise: a tick is at most half an abort's time, and nothing is too early."""
    for clock in (1_000_000, 80_000_000, 250_000_000):
        config = replace(CONFIG, clock_hz=clock, command_timeout_ms=8000, abort_timeout_ms=500)
        tick_ms = (1 << hdl.drive.ladder.tick_shift(config)) * 1000 / clock
        assert 100 < tick_ms <= 250
        assert 8500 <= longest_ms(config) <= 8500 + 4 * tick_ms


def stopping_fence(inner):
    """Data that a drive has asked for waits until the drive is back."""

    def elaborate(self, platform):
        m = inner(self, platform)
        m.d.comb += self.inner.write_data.ready.eq(self.outer.write_data.ready & ~self.shut)
        return m

    return elaborate


FAULTS = {
    "no aborts": ("aborts", hdl.drive.ladder, "ticks", lambda config, ms: 4000),
    "too early": ("aborts", hdl.drive.ladder, "ticks", lambda config, ms: 4),
    "keeps data": ("storms", Fence, "elaborate", stopping_fence(Fence.elaborate)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_ladder_faults_are_caught(fault, monkeypatch):
    testcase, owner, name, value = FAULTS[fault]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(SimulationError):
        run(testcase, name=f"ladder_{fault.replace(' ', '_')}")
