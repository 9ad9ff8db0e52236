"""Dispatch against the reference layout: healthy, degraded and dead arrays of every level."""

import os
import random
from collections import Counter
from itertools import pairwise

import cocotb
import pytest
from amaranth.hdl import Const
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample, start, wait_until
from cocotb_tests.stripe.dispatch_bench import CONFIGS, ROWS, Bench
from hdl.config import ERA_BITS, MAX_DRIVES
from hdl.flow.host_command import HostOpcode
from hdl.flow.operation import Opcode
from hdl.stripe.dispatch import Dispatch
from sim.golden.layout import Layout

BATCHES = 30
COMMANDS = 12
DIRECT_CYCLES = 8
MIRRORED_CYCLES = 13
DRIVE_CYCLES = 60
IN_ORDER = "copies_that_may_differ_are_read_in_order"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def sends_every_extent_where_it_belongs(dut):
    generator = random.Random(int(os.environ["SEED"]))
    bench = Bench(dut, CONFIGS[os.environ["CONFIG"]], generator)
    watch = BusyWatch(dut, ["extent"], list(bench.sinks))
    await start(dut)
    for _ in range(BATCHES):
        bench.rebuild()
        bench.fail(generator.choice((0, 0.03, 0.1, 0.5, 0.97)))
        if bench.config.background:
            bench.make_stale(generator.choice((0, 0.1, 0.5)))
            bench.differ(generator.choice((0, 0.3, 1)))
        bench.leave()
        for sink in bench.sinks.values():
            sink.active = generator.choice((1.0, 1.0, 0.3))
        bench.extents.active = generator.choice((1.0, 0.2))
        config = bench.config
        most = generator.choice((0, 1, 40, config.operations * config.transfer_blocks))
        bench.loads.entries = {
            port: generator.randint(0, most)
            for port in range(MAX_DRIVES)
        }
        for _ in range(COMMANDS):
            bench.request()
        await bench.settled()
    assert bool(bench.mended) == bench.config.background
    watch.check()


async def flushed_bench(dut) -> Bench | None:
    """A bench with a RAID 5, of a controller with background work; else none."""
    config = CONFIGS[os.environ["CONFIG"]]
    if not config.background:
        return None
    bench = Bench(dut, config, random.Random(int(os.environ["SEED"])))
    await start(dut)
    bench.rebuild([Layout("RAID5", 4, 1)])
    return bench


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flush_waits_for_what_becomes_of_drives(dut):
    """It is judged once that is known, and refused by an array that may have lost something."""
    bench = await flushed_bench(dut)
    if bench is None:
        return
    for suspects, debt in ((1, 0), (2, 0), (1, 2), (0, 2), (0, 1), (0, 0)):
        dut.drives__undecided.value = 1
        dut.drives__suspect.value = 0
        bench.owe(0)
        bench.extents.send(slot=1, opcode=HostOpcode.FLUSH, array=0, volume=1, last=1)
        await ClockCycles(dut.clk, 100)
        assert not any(sink.received for sink in bench.sinks.values()), "it has not waited"
        bench.suspect = sum(1 << port for port in bench.ports[0][:suspects])
        bench.owe(debt)
        dut.drives__suspect.value = bench.suspect
        dut.drives__undecided.value = 0
        # What is expected of it now; it has been sent.
        bench.expect_flush()
        await bench.settled()
        assert len(bench.blamed) == (suspects > 0 or debt == 2)
        for sink in bench.sinks.values():
            sink.received = 0
        bench.blamed.clear()
        bench.to_blame.clear()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flush_is_judged_again_if_a_drive_restarts_meanwhile(dut):
    """What becomes of that drive decides, whenever it restarts: it is done without, or kept."""
    bench = await flushed_bench(dut)
    if bench is None:
        return
    refused = 0
    for wait in range(2, 24):
        for kept in (False, True):
            port = bench.ports[0][wait % 4]
            bench.suspect = bench.failed = 0
            dut.drives__failed.value = dut.drives__suspect.value = 0
            for name in ("expected", "rejected"):
                bench.sinks[name].active = 0
            bench.extents.send(slot=1, opcode=HostOpcode.FLUSH, array=0, volume=1, last=1)
            await ClockCycles(dut.clk, wait)
            await FallingEdge(dut.clk)
            if not sample(dut.expected__valid):
                dut.drives__suspect.value, dut.drives__undecided.value = 1 << port, 1
                await ClockCycles(dut.clk, 20)
                bench.suspect, bench.failed = (1 << port, 0) if kept else (0, 1 << port)
                dut.drives__suspect.value, dut.drives__failed.value = bench.suspect, bench.failed
                dut.drives__undecided.value = 0
                refused += kept
            bench.expect_flush()
            for name in ("expected", "rejected"):
                bench.sinks[name].active = 1.0
            await bench.settled()
    assert refused > 8
    assert len(bench.blamed) == refused


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flush_is_of_what_drives_had_as_it_was_judged(dut):
    """Its operations say how often each drive had restarted by then, however late they are sent."""
    bench = await flushed_bench(dut)
    if bench is None:
        return
    bench.sinks["operation"].active = 0
    bench.extents.send(slot=1, opcode=HostOpcode.FLUSH, array=0, volume=1, last=1)
    bench.expect_flush()
    await wait_until(
        dut, lambda: sample(dut.operation__valid), cycles=200, what="the first operation"
    )
    for port, count in enumerate(bench.restarts):
        getattr(dut, f"restarts__{port}").value = (count + 1) % 16
    await ClockCycles(dut.clk, 4)
    bench.sinks["operation"].active = 1.0
    await bench.settled()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def copies_that_may_differ_are_read_in_order(dut):
    """All reads are of one copy, from when a drive has restarted: of the first that can be read,
    which is what a RESYNC copies to the others. Rows before are read from all."""
    config = CONFIGS[os.environ["CONFIG"]]
    if not config.background:
        return
    generator = random.Random(int(os.environ["SEED"]))
    bench = Bench(dut, config, generator)
    await start(dut)
    layout = Layout("RAID1", 3, 4)
    bench.rebuild([layout])
    bench.partly = True
    first, second, third = bench.ports[0]
    middle = ROWS // 2

    async def ask(rows: range, source: int = 0, *, later: bool = False, **recover) -> set[int]:
        recover["era"] = (bench.eras[0] - later) % (1 << ERA_BITS)
        bench.order.clear()
        bench.loads.entries = {first: 1000, second: 1000, third: 0}
        for row in generator.sample(rows, 30):
            base, shift, index, row = layout.key(row)
            piece = {"base": base, "shift": shift, "index": index, "row": row}
            bench.extents.send(opcode=HostOpcode.READ, recover=recover, **piece)
            bench.expected["operation"].append({"opcode": Opcode.READ, "elsewhere": 0})
            if recover.get("medium") and not later:
                where = {"array": 0, "base": base, "shift": shift + 3 * index, "row": row}
                bench.mends.append(where | {"source": source, "era": bench.eras[0]})
        await bench.settled()
        bench.mends.clear()
        return {*bench.order}

    before, behind, every = range(middle), range(middle, ROWS), range(ROWS)
    bench.syncs[0] = middle
    assert await ask(every) == {third}
    dut.drives__undecided.value = 1
    assert await ask(every) == {first}
    dut.arrays__doubts.value = 1
    dut.drives__undecided.value = 0
    assert await ask(every) == {first}
    dut.arrays__unsynced.value = 1
    dut.arrays__doubts.value = 0
    assert await ask(behind) == {first}
    assert await ask(before) == {third}
    # It hangs up, or did not come so far: it is asked again.
    assert await ask(behind, tried=1, copy=0, again=1) == {first}
    assert await ask(behind, tried=0, copy=0, again=1) == {first}
    # It cannot read the block: the next one can; but not if another was asked before they differed.
    medium = {"tried": 1, "again": 1, "medium": 1}
    assert await ask(behind, 1, copy=0, ordered=1, **medium) == {second}
    assert await ask(behind, 2, copy=1, ordered=1, **medium) == {third}
    assert await ask(behind, copy=1, ordered=0, **medium) == {first}
    assert await ask(before, copy=1, ordered=0, **medium) == {third}
    # Nor if its drive has restarted since.
    assert await ask(behind, copy=0, ordered=1, later=True, **medium) == {first}
    dut.drives__undecided.value = 1
    assert await ask(behind, copy=0, ordered=1, later=True, **medium) == {first}
    dut.drives__undecided.value = 0
    dut.drives__failed.value = 1 << first
    assert await ask(behind) == {second}
    dut.drives__failed.value = 0
    dut.drives__stale.value = 1 << first
    bench.boundaries[0] = middle
    assert await ask(behind) == {second}
    dut.drives__failed.value = 1 << second
    assert await ask(behind) == {third}


async def timed_reads(dut, layout: Layout, blocks: list[int]) -> tuple[Bench, float]:
    """Reads of one block each, by drives that take `DRIVE_CYCLES` for each; cycles a read."""
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    bench.rebuild([layout])
    bench.partly = True
    for block in blocks:
        base, shift, index, row = layout.key(block)
        piece = {"base": base, "shift": shift, "index": index, "row": row}
        bench.extents.send(opcode=HostOpcode.READ, **piece)
        bench.expected["operation"].append({"opcode": Opcode.READ})
    done: Counter[int] = Counter()

    async def drive(port: int) -> None:
        while True:
            bench.loads.entries[port] = bench.used[port] - done[port]
            await RisingEdge(dut.clk)
            if bench.used[port] > done[port]:
                for _ in range(DRIVE_CYCLES):
                    bench.loads.entries[port] = bench.used[port] - done[port]
                    await RisingEdge(dut.clk)
                done[port] += 1

    for port in bench.ports[0]:
        cocotb.start_soon(drive(port))
    cycles = await wait_until(
        dut, lambda: bench.sinks["operation"].received == len(blocks), cycles=20_000, what="reads"
    )
    await bench.settled()
    return bench, cycles / len(blocks)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_of_one_copy_at_rate(dut):
    """Where there is nothing to choose."""
    bench, cycles = await timed_reads(dut, Layout("RAID0", 4, 1), list(range(600)))
    dut._log.info("%.1f cycles a direct read", cycles)
    assert cycles <= DIRECT_CYCLES
    assert set(bench.used.values()) == {600 // 4}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_ahead_on_every_mirror(dut):
    """A sequential stream keeps every drive of a RAID 10 busy, in long runs; and the rate."""
    layout = Layout("RAID10", 4, 2)
    bench, cycles = await timed_reads(dut, layout, list(range(600)))
    dut._log.info("%.1f cycles a mirrored read", cycles)
    assert cycles <= MIRRORED_CYCLES
    assert len(bench.used) == 4 and min(bench.used.values()) >= 600 // 4 // 2, bench.used
    pairs = [bench.ports[0][:2], bench.ports[0][2:]]
    for pair in pairs:
        order = [port for port in bench.order if port in pair]
        turns = sum(one != other for one, other in pairwise(order))
        assert turns <= len(order) / 16, f"{turns} changes of drive in {len(order)} reads"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def random_reads_go_to_the_less_busy_drive(dut):
    """A pair does its random reads evenly at every moment."""
    layout = Layout("RAID1", 2, 4)
    generator = random.Random(2)
    blocks = [generator.randrange(layout.blocks(ROWS)) for _ in range(200)]
    bench, _ = await timed_reads(dut, layout, blocks)
    one, _ = bench.ports[0]
    for end in range(20, len(bench.order)):
        share = bench.order[:end].count(one)
        assert abs(2 * share - end) <= 4, f"{share} of the first {end} reads at one drive"


@pytest.mark.parametrize("config", CONFIGS)
def test_dispatch(config):
    simulate(
        Dispatch(config=CONFIGS[config]),
        name=f"dispatch_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


class IgnoresLoads(Dispatch):
    """Planted bug: every port seems idle."""

    def elaborate(self, platform):
        idle = self.load_read.data
        self.load_read.data = type(idle)(len(idle), name="ignored")
        try:
            return super().elaborate(platform)
        finally:
            self.load_read.data = idle


class IgnoresFailures(Dispatch):
    """Planted bug: every drive counts as live."""

    def elaborate(self, platform):
        outer = self.drives.failed
        self.drives.failed = type(outer)(len(outer), name="ignored")
        try:
            return super().elaborate(platform)
        finally:
            self.drives.failed = outer


class SharesReadsOfDifferentCopies(Dispatch):
    """Planted bug: copies never differ, and parities are always right."""

    def elaborate(self, platform):
        names = [(self.arrays, "unsynced"), (self.arrays, "doubts"), (self.drives, "undecided")]
        outer = [(port, name, getattr(port, name)) for port, name in names]
        for port, name, signal in outer:
            setattr(port, name, Const(0, len(signal)))
        try:
            return super().elaborate(platform)
        finally:
            for port, name, signal in outer:
                setattr(port, name, signal)


@pytest.mark.slow
def test_planted_bugs_are_found(monkeypatch):
    for testcase in ("sends_every_extent_where_it_belongs", IN_ORDER):
        with pytest.raises(SimulationError, match=testcase):
            simulate(
                SharesReadsOfDifferentCopies(config=CONFIGS["board"]),
                name="dispatch_shares_reads_of_different_copies",
                module=__name__,
                testcase=testcase,
                parameters={"CONFIG": "board"},
            )
    with pytest.raises(SimulationError, match="sends_every_extent"):
        simulate(
            IgnoresFailures(config=CONFIGS["board"]),
            name="dispatch_ignores_failures",
            module=__name__,
            testcase="sends_every_extent_where_it_belongs",
            parameters={"CONFIG": "board"},
        )
    for testcase in ("reads_ahead_on_every_mirror", "random_reads_go_to_the_less_busy_drive"):
        with pytest.raises(SimulationError, match=testcase):
            simulate(
                IgnoresLoads(config=CONFIGS["small"]),
                name="dispatch_ignores_loads",
                module=__name__,
                testcase=testcase,
                parameters={"CONFIG": "small"},
            )
    with monkeypatch.context() as patch:
        # Half of the copies are never asked again.
        patch.setattr("hdl.stripe.dispatch.ROUNDS", 1)
        with pytest.raises(SimulationError, match="sends_every_extent"):
            simulate(
                Dispatch(config=CONFIGS["board"]),
                name="dispatch_gives_up_early",
                module=__name__,
                testcase="sends_every_extent_where_it_belongs",
                parameters={"CONFIG": "board"},
            )
    monkeypatch.setattr("hdl.stripe.dispatch.DATA_OFFSET_BLOCKS", 0)
    with pytest.raises(SimulationError, match="sends_every_extent"):
        simulate(
            Dispatch(config=CONFIGS["board"]),
            name="dispatch_forgets_the_offset",
            module=__name__,
            testcase="sends_every_extent_where_it_belongs",
            parameters={"CONFIG": "board"},
        )
