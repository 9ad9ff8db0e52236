"""`hdl.drive.drives.Drives` against drive models, a model of the line store, and a scoreboard."""

import os

import cocotb
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped
from cocotb.triggers import ClockCycles

from cocotb_tests.drive.drive_model import IDEAL, RANDOM, Timing
from cocotb_tests.drive.drives_bench import Bench, environment, run_traffic, sizes
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import cycles_pass, sample, start, wait_until
from hdl.config import PIECES, Config
from hdl.drive.drives import Drives
from hdl.drive.records import BURST_BEATS
from hdl.flow.operation import DriveStatus, Opcode, Owner

LONGEST = 64
"""Blocks of the longest command to a drive: 256 KiB."""

CUTS = 100
"""Reads that break off while the line store is busy."""


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def random_traffic(dut):
    """Random operations, timing and back-pressure everywhere; no errors."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=RANDOM, active=0.5, stall=0.3)
    await start(dut)
    count = int(os.environ.get("COUNT", "300"))
    await run_traffic(bench, count)
    await bench.settle()
    assert not bench.lent, "lines leaked"
    assert bench.statuses[DriveStatus.GOOD] > count // 3
    assert bench.landed_blocks and bench.pieces
    longest = max(drive.counts.longest for drive in bench.drives)
    assert longest > 8, f"nothing merged: longest command {longest}"
    assert longest <= LONGEST


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def errors(dut):
    """Media errors, also inside blocks, and drives that go away and come back."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=RANDOM, active=0.7, stall=0.1)
    bench.may_fail = set(range(config.ports))
    for drive in bench.drives:
        drive.bad_reads = {bench.random.randrange(4000) for _ in range(300)}
        drive.bad_writes = {bench.random.randrange(4000) for _ in range(100)}
    await start(dut)
    traffic_task = cocotb.start_soon(run_traffic(bench, 300))
    removed = bench.drives[bench.random.randrange(config.ports)]
    await cycles_pass(dut.clk, 3000)
    removed.remove()
    await cycles_pass(dut.clk, 1000)
    dut.failed.value = 1 << removed.index
    await traffic_task
    await bench.drain()
    dut.failed.value = 0
    for drive in bench.drives:
        drive.bad_reads.clear()
        drive.bad_writes.clear()
    removed.insert()
    bench.may_fail = set()
    before = bench.done
    await run_traffic(bench, 100)
    await bench.settle()
    assert bench.done - before >= 100
    assert bench.statuses[DriveStatus.GONE] and bench.statuses[DriveStatus.MEDIUM_ERROR]
    assert sum(drive.counts.cut for drive in bench.drives), "no read broke off inside a block"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def failed_port(dut):
    """Operations for a failed port end with GONE and never reach the drive."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=RANDOM)
    await start(dut)
    dut.failed.value = 1
    bench.may_fail = {0}
    for n in range(4):
        bench.submit(port=0, opcode=Opcode.WRITE, owner=Owner.ROW, block=n, place=n, more=1)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=100, blocks=5, place=3)
    bench.submit(port=0, opcode=Opcode.FLUSH, owner=Owner.COMMAND)
    bench.submit(port=1, opcode=Opcode.READ, owner=Owner.COMMAND, block=100, blocks=5, place=3)
    await bench.drain(cycles=3000)
    assert bench.drives[0].counts.commands == 0
    assert bench.statuses[DriveStatus.GONE] == 4 + 5 + 1
    dut.failed.value = 0
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def without_lines(dut):
    """A port without a line waits alone; reads of rows, writes and flushes go on."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=IDEAL)
    bench.lines_offered = False
    await start(dut)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=0, blocks=4)
    for port in range(1, config.ports):
        for n in range(4):
            bench.submit(port=port, opcode=Opcode.READ, owner=Owner.ROW, block=n, place=n)
            bench.submit(port=port, opcode=Opcode.WRITE, owner=Owner.ROW, block=100 + n, place=n)
    await wait_until(dut, lambda: len(bench.pending) == 1, cycles=12_000, what="other ports")
    await cycles_pass(dut.clk, 100)
    assert not sample(dut.busy), "busy while waiting for a line"
    bench.lines_offered = True
    await bench.settle()
    assert bench.landed_blocks == 4 and not bench.lent


async def begun(dut, config: Config) -> None:
    """Returns when the tables are empty: nothing is sent before."""
    await cycles_pass(dut.clk, 2 * config.ports * config.drive_tags)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def merging(dut):
    """Nagle: an idle port sends at once; a busy one waits for the neighbours of what it has."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=Timing(latency=(900, 900)))
    await start(dut)
    await begun(dut, config)
    drive = bench.drives[0]
    for n in range(100):
        bench.submit(
            port=0, opcode=Opcode.WRITE, owner=Owner.ROW, block=n, place=n % 64, more=int(n < 99)
        )
    await bench.drain()
    lengths = [entry[2] for entry in drive.counts.history]
    assert lengths[0] == 1 and lengths[1] == LONGEST and sum(lengths) == 100, lengths
    # Not merged: another fua, a gap, another opcode, a flush between.
    drive.counts.history.clear()
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.ROW, block=3000)
    for fua, block in ((0, 200), (0, 201), (1, 202), (1, 204)):
        bench.submit(port=0, opcode=Opcode.WRITE, owner=Owner.ROW, block=block, fua=fua, more=1)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=205, blocks=2)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.ROW, block=207)
    bench.submit(port=0, opcode=Opcode.FLUSH, owner=Owner.ROW)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.ROW, block=208)
    await bench.settle()
    blocks = [(entry[1], entry[2]) for entry in drive.counts.history]
    assert (200, 2) in blocks and (202, 1) in blocks and (204, 1) in blocks, blocks
    assert (205, 3) in blocks and (208, 1) in blocks, blocks


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def one_block_is_blamed(dut):
    """Of commands that fail, the bad blocks have their status, all others their data."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=Timing(latency=(900, 900)))
    await start(dut)
    bench.may_fail = {0}
    drive = bench.drives[0]
    bad = {Opcode.READ: {102, 103, 107, 112}, Opcode.WRITE: {200, 205}}
    drive.bad_reads, drive.bad_writes = set(bad[Opcode.READ]), set(bad[Opcode.WRITE])
    for opcode, first in ((Opcode.READ, 100), (Opcode.WRITE, 200)):
        bench.submit(port=0, opcode=Opcode.READ, owner=Owner.ROW, block=3000)
        for n in range(10):
            bench.submit(
                port=0, opcode=opcode, owner=Owner.ROW, block=first + n, place=n, more=1
            )
        if opcode is Opcode.READ:
            bench.submit(port=0, opcode=opcode, owner=Owner.COMMAND, block=110, blocks=5, place=2)
        bench.statuses = dict.fromkeys(DriveStatus, 0)
        await bench.drain()
        assert drive.counts.longest >= 10, "nothing was merged"
        blamed = [block for kind, block in bench.blamed if kind is opcode]
        assert sorted(blamed) == sorted(bad[opcode])
        # Of a read, what came before the first bad block is good at once.
        unreached = 15 - 3 if opcode is Opcode.READ else 10
        assert bench.statuses[DriveStatus.UNREACHED] == unreached, bench.statuses
    assert bench.landed_blocks == 4
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def breaks_off_behind_an_end(dut):
    """A read ends while the next one's first beat comes, and that one breaks off in its block:
    both end, however many cycles are between them."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=IDEAL)
    await start(dut)
    await begun(dut, config)
    bench.may_fail = {0}
    drive = bench.drives[0]
    for gap in range(40):
        drive.cut_beats = 3 + BURST_BEATS * (gap % 3)
        drive.timing = Timing(gap=(gap, gap))
        drive.bad_reads = {2 * gap + 1001}
        for block in (2 * gap, 2 * gap + 1001):
            bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=block, alone=1)
        await bench.drain(cycles=1000)
        assert drive.counts.cut == gap + 1, "the read did not break off in its block"
    assert bench.landed_blocks == 40 and bench.statuses[DriveStatus.MEDIUM_ERROR] == 40
    await bench.settle()
    assert bench.cut_lines == 40


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def breaks_off_while_the_store_is_busy(dut):
    """Reads break off in their blocks, and beats wait for the line store. No line is given back
    before its last beat has been written."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=IDEAL, stall=0.75)
    await start(dut)
    await begun(dut, config)
    bench.may_fail = {0}
    drive = bench.drives[0]
    for turn in range(CUTS):
        drive.cut_beats = turn % 3 + BURST_BEATS * (1 + turn % 4)
        drive.timing = Timing(gap=(turn % 40, turn % 40))
        drive.bad_reads = {2 * turn + 1001}
        for block in (2 * turn, 2 * turn + 1001):
            bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=block, alone=1)
        await bench.drain(cycles=8000)
    await bench.settle()
    assert bench.cut_lines > CUTS // 2


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def ends_what_is_dated_from_before_a_restart(dut):
    """Operations that are dated wait while their drive restarts, and end as those do that it had;
    merged ones too, but nothing else of their port, nor what is asked for after that, though it
    is the neighbour of what was decided before and comes late. What they would have written is
    not."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=Timing(latency=(2000, 2000)))
    await start(dut)
    await begun(dut, config)
    port = 1
    bench.may_fail = {port}
    for n in range(config.drive_tags):
        bench.submit(port=port, opcode=Opcode.READ, owner=Owner.ROW, block=100 * n)
    await ClockCycles(dut.clk, 200)
    for turn in range(3):
        block = 2000 + 100 * turn
        host = {"port": port, "opcode": Opcode.READ, "owner": Owner.COMMAND}
        row = {"port": port, "owner": Owner.ROW}
        bench.submit(**host, block=block, blocks=2, dated=1)
        bench.submit(**host, block=block + 2, blocks=2)
        bench.submit(**row, opcode=Opcode.READ, block=block + 4)
        bench.submit(**host, block=block + 5, dated=1)
        bench.submit(**row, opcode=Opcode.WRITE, block=block + 10, dated=1)
        bench.submit(**row, opcode=Opcode.WRITE, block=block + 11)
    await ClockCycles(dut.clk, 200)
    drive = bench.drives[port]
    before = [drive.read_block(2010 + 100 * turn) for turn in range(3)]
    bench.restarts[port] = 1
    dut.restarts__1.value = 1
    for turn in range(3):
        block = 3000 + 100 * turn
        bench.submit(**host, block=block, blocks=2, dated=1)
        bench.submit(**host, block=block + 2, blocks=2, dated=1, restarts=0)
        bench.submit(**host, block=block + 4, blocks=2, dated=1)
    counts = dict(bench.statuses)
    await wait_until(dut, lambda: bench.operations.idle, cycles=1000, what="taken")
    await bench.drain()
    ended = {status: bench.statuses[status] - counts[status] for status in DriveStatus}
    # Of each turn four commands' first blocks; the second block of two was not reached.
    assert ended[DriveStatus.ABORTED] == 12 and ended[DriveStatus.UNREACHED] == 6, ended
    assert before == [drive.read_block(2010 + 100 * turn) for turn in range(3)]
    await bench.settle()


async def rate(dut, config, seed, *, ports, reads: bool, blocks: int) -> float:
    """Beats a cycle and path with ideal drives at ``ports``, in the middle of the run."""
    bench = Bench(dut, config, seed=seed, timing=IDEAL)
    await start(dut)
    for n in range(blocks):
        for port in ports:
            bench.submit(
                port=port,
                opcode=Opcode.READ if reads else Opcode.WRITE,
                owner=Owner.ROW,
                block=n,
                place=n % 64,
                more=int(n % 8 != 7),
            )
    total = blocks * len(ports) * config.beats
    base = 2 if reads else 0
    paths = len({port % 2 for port in ports})
    moved = lambda: sum(bench.store.moved[base : base + 2])  # noqa: E731
    await wait_until(dut, lambda: moved() >= total // 4, cycles=100_000, what="first quarter")
    cycle, beats = bench.store.cycle, moved()
    await wait_until(dut, lambda: moved() >= total * 3 // 4, cycles=100_000, what="third quarter")
    result = (moved() - beats) / (bench.store.cycle - cycle) / paths
    await bench.drain()
    return result


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def rates(dut):
    """No idle beats on the paths: beats a cycle for one port and for all, each direction."""
    config, seed = environment()
    wanted = os.environ["RATE"]
    reads = "read" in wanted
    ports = [0] if "one" in wanted else list(range(config.ports))
    blocks = 24 if len(ports) == 1 else 60 // config.ports
    measured = await rate(dut, config, seed, ports=ports, reads=reads, blocks=blocks)
    print(f"{wanted}: {measured:.3f} beats a cycle and path at {len(ports)} ports")
    assert measured >= 0.95, measured


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def latencies(dut):
    """Idle: operation to command, and last read beat to `landed`."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=IDEAL)
    await start(dut)
    await begun(dut, config)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=9)
    await wait_until(dut, lambda: bench.operations.idle, cycles=20, what="operation")
    command = await wait_until(
        dut, lambda: bool(sample(dut.drives__0__command__valid)), cycles=20, what="command"
    )
    await bench.drain()
    delay = bench.last_landed_cycle - bench.store.last_write_cycle
    print(f"command after {command} cycles, landed {delay} cycles after the last beat was stored")
    assert command <= 12 and delay <= 12
    await bench.settle()


class Faulty(wiring.Component):
    """`Drives` with one fault at its ports, which the scoreboard must notice."""

    def __init__(self, *, config: Config, fault: str):
        self._inner = Drives(config=config)
        self._fault = fault
        super().__init__(self._inner.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        fault = self._fault
        for name, member in self.signature.members.items():
            if name in ("failed", "doubted", "restarts", "busy", "now", "deadline", "room"):
                continue
            ours, theirs = getattr(self, name), getattr(inner, name)
            if member.is_port or not member.dimensions:
                connect(m, flipped(ours), theirs)
            else:
                for a, b in zip(ours, theirs, strict=True):
                    connect(m, flipped(a), b)
        m.d.comb += [
            inner.failed.eq(self.failed),
            inner.now.eq(self.now),
            self.deadline.eq(inner.deadline),
            self.room.eq(inner.room),
            self.busy.eq(inner.busy),
        ]
        if "doubted" in self.signature.members:
            m.d.comb += inner.doubted.eq(self.doubted)
            for count, outer in zip(inner.restarts, self.restarts, strict=True):
                m.d.comb += count.eq(outer)
        count = Signal(6)
        with m.If(inner.finished.valid & inner.finished.ready):
            m.d.sync += count.eq(count + 1)
        fortieth = count == 40
        landing = Signal(6)
        with m.If(inner.landed.valid & inner.landed.ready):
            m.d.sync += landing.eq(landing + 1)
        if fault == "lost finished":
            with m.If(fortieth):
                m.d.comb += [self.finished.valid.eq(0), inner.finished.ready.eq(1)]
        elif fault == "wrong place":
            with m.If(fortieth):
                m.d.comb += self.finished.payload.place.eq(~inner.finished.payload.place)
        elif fault == "wrong status":
            with m.If(fortieth):
                m.d.comb += self.finished.payload.status.eq(DriveStatus.ABORTED)
        elif fault == "recover":
            m.d.comb += self.finished.payload.recover.eq(0)
        elif fault == "read data":
            with m.If(fortieth):
                m.d.comb += (
                    self.line_write[0].payload.data[0].eq(~inner.line_write[0].payload.data[0])
                )
        elif fault == "write data":
            with m.If(count[5]):
                m.d.comb += (
                    self.drives[0]
                    .write_data.payload.data[7]
                    .eq(~inner.drives[0].write_data.payload.data[7])
                )
        elif fault == "wrong line":
            with m.If(landing == 40):
                m.d.comb += self.landed.payload.line.eq(inner.landed.payload.line ^ 1)
        elif fault == "leaked line":
            with m.If(landing == 40):
                m.d.comb += [self.allocate.ready.eq(1), inner.allocate.valid.eq(0)]
        elif fault == "blames neighbours":
            with m.If(inner.finished.payload.status == DriveStatus.UNREACHED):
                m.d.comb += self.finished.payload.status.eq(DriveStatus.MEDIUM_ERROR)
        elif fault == "merges what is alone":
            m.d.comb += inner.operation.payload.alone.eq(0)
        elif fault == "no fua":
            for drive in self.drives:
                m.d.comb += drive.command.payload.fua.eq(0)
        elif fault == "untold pieces":
            with m.If(inner.piece.payload.number == PIECES - 1):
                m.d.comb += [self.piece.valid.eq(0), inner.piece.ready.eq(1)]
        elif fault == "wrong seat":
            # Not for one operation only: it may have no piece.
            with m.If(count[5]):
                m.d.comb += self.piece.payload.seat.eq(inner.piece.payload.seat + 1)
        elif fault == "tag":
            # Not in one cycle only: port 0 may send nothing in it.
            with m.If(count[5]):
                m.d.comb += self.drives[0].command.payload.tag.eq(0)
        return m


FAULTS = (
    "lost finished",
    "wrong place",
    "wrong status",
    "recover",
    "read data",
    "write data",
    "wrong line",
    "leaked line",
    "tag",
    "no fua",
    "untold pieces",
    "wrong seat",
)
FAULTS_OF_ERRORS = ("blames neighbours", "merges what is alone")
IN_EVERY_RUN = ("read data",)
"""The planted fault that is not of the long suite only."""


def run(ports: int, testcase: str, **more: str) -> None:
    simulate(
        converted(Drives, config=sizes(ports)),
        name=f"drives_p{ports}",
        module=__name__,
        testcase=testcase,
        parameters={"PORTS": str(ports), **more},
    )


@pytest.mark.parametrize("ports", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("testcase", ["random_traffic", "errors"])
def test_traffic(testcase, ports, seed):
    run(ports, testcase, SEED=seed)


@pytest.mark.slow
def test_odd_ports_narrow():
    """Paths with different numbers of ports, blocks of 512 beats."""
    simulate(
        Drives(config=sizes(5, 64)),
        name="drives_p5_w64",
        module=__name__,
        testcase="random_traffic",
        parameters={"PORTS": "5", "WIDTH": "64", "COUNT": "200"},
    )


@pytest.mark.parametrize(
    "testcase",
    [
        "failed_port",
        "without_lines",
        "merging",
        "one_block_is_blamed",
        "breaks_off_behind_an_end",
        "breaks_off_while_the_store_is_busy",
        "ends_what_is_dated_from_before_a_restart",
        "latencies",
    ],
)
def test_directed(testcase):
    run(4, testcase)


@pytest.mark.parametrize("kind", ["one read", "one write", "all read", "all write"])
@pytest.mark.parametrize("ports", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_rates(ports, kind):
    run(ports, "rates", RATE=kind)


@pytest.mark.slow
def test_pieces_told_too_soon_are_caught(monkeypatch):
    monkeypatch.setattr("hdl.drive.data.tell_pieces.write_delay", lambda writers: 2)
    with pytest.raises(SimulationError, match="cycles after it was written"):
        run(4, "random_traffic")


@pytest.mark.slow
def test_lines_given_back_too_soon_are_caught(monkeypatch):
    monkeypatch.setattr("hdl.drive.data.block_control.write_delay", lambda writers: 2)
    with pytest.raises(SimulationError, match="cycles after it was written"):
        run(4, "breaks_off_behind_an_end")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault in IN_EVERY_RUN else [pytest.mark.slow])
        for fault in FAULTS + FAULTS_OF_ERRORS
    ],
)
def test_faults_are_caught(fault):
    with pytest.raises(SimulationError):
        simulate(
            Faulty(config=sizes(4), fault=fault),
            name=f"drives_{fault.replace(' ', '_')}",
            module=__name__,
            testcase="errors" if fault in FAULTS_OF_ERRORS else "random_traffic",
            parameters={"PORTS": "4"},
        )
