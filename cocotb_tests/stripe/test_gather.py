"""Gatherer against models of the host, the sequencer and the line allocator."""

import os
import random
from collections import Counter, deque
from collections.abc import Iterator

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    check_busy_after,
    cycles_pass,
    every_cycle,
    sample,
    start,
    unpack,
    wait_until,
)
from cocotb_tests.stripe.stripe_extents import split
from cocotb_tests.stripe.stripe_models import BLOCK, Allocator, ArrayModel, Lines, Tables
from hdl.config import TIME_BITS, Config
from hdl.flow.extent import extent
from hdl.flow.host_command import HostOpcode, Status
from hdl.flow.host_data import fetched, transfer
from hdl.flow.row import RowKind, committed, row_state, strip_state
from hdl.kit.clock import NEVER
from hdl.stripe.gather.gather import Gather

CONFIG = Config(
    data_width=64, ports=8, lines=64, banks=4, commands=32, rows=16, operations=64, arrays=2
)

ROW, STRIP = row_state(CONFIG), strip_state(CONFIG)
IDLE_CYCLES = 300
LIMIT_CYCLES = 4000

PATIENCE = 60_000
"""Cycles within which something must happen."""

ARRAYS = {
    "raid0": ArrayModel(width=4, ports=(0, 1, 2, 3)),
    "raid10": ArrayModel(width=4, copies=2, ports=(3, 1, 7, 5)),
    "raid5": ArrayModel(width=5, parities=1, ports=(7, 2, 5, 0, 1)),
    "raid50": ArrayModel(width=4, parities=1, spans=2, ports=tuple(range(8))),
    "raid6": ArrayModel(width=8, parities=2, ports=tuple(range(8))),
}


class Bench:
    """The gatherer, a host that sends commands, and a sequencer that retires what is launched."""

    def __init__(self, dut, array: ArrayModel, *, seed: int, active: float, retire: int = 200):
        self.dut = dut
        self.array = array
        self.random = random.Random(f"{seed}/bench")
        self.lines = Lines(CONFIG.lines)
        self.allocator = Allocator(
            dut, self.lines, name="allocate", reserve=CONFIG.line_reserve, active=active, seed=seed
        )
        Tables(dut, CONFIG, [ArrayModel(width=2, ports=(0, 1)), array], members=False)
        self.retire = retire
        self.extent = StreamSource(dut, "extent", layout=extent(CONFIG), active=active, seed=seed)
        self.fetched = StreamSource(
            dut, "fetched", layout=fetched(CONFIG), active=active, seed=seed
        )
        self.retired = StreamSource(dut, "retired", active=active, seed=seed)
        self.owed: Counter = Counter()
        self.blocks: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.fua: dict[int, bool] = {}
        self.fetches: dict[int, tuple[int, int]] = {}
        self.errors = 0.0
        self.failed_blocks = 0
        self.active_rows: dict[tuple[int, int, int], int] = {}
        self.rows: list[Counter] = []
        self.launched: deque[int] = deque()
        self.joined_sizes: Counter = Counter()
        self.fetch_times: list[float] = []
        self.retirements = 0
        self.hold_retirements = False
        self.time = 0
        self.slots = deque(range(CONFIG.commands))

        def sink(name, callback, layout=None):
            return StreamSink(
                dut, name, layout=layout, active=active, seed=seed, callback=callback
            )

        sink("fetch", lambda one: cocotb.start_soon(self._fetch(one)), transfer(CONFIG))
        sink("free", self.lines.give_back)
        sink("fetch_failed", self._fetch_failed, committed(CONFIG))
        sink("launch", self.launched.append)
        every_cycle(dut.clk, self._clock())
        check_busy_after(dut, "extent")
        every_cycle(dut.clk, self._sequence())

    def _clock(self) -> Iterator[None]:
        now, available, shown = self.dut.now, self.dut.available, None
        while True:
            now.value = self.time & ((1 << TIME_BITS) - 1)
            if shown != len(self.lines.free):
                shown = available.value = len(self.lines.free)
            yield
            self.time += 1

    async def _fetch(self, one) -> None:
        self.fetch_times.append(self.time)
        self.fetches[one.line] = one.slot, one.offset
        await cycles_pass(self.dut.clk, self.random.randrange(60))
        error = self.random.random() < self.errors
        if error:
            self.failed_blocks += 1
            self.owed[one.slot, "failed"] += 1
        else:
            self.lines.write(one.line, bytes(BLOCK))
        self.fetched.send(line=one.line, error=int(error))

    def _fetch_failed(self, event) -> None:
        assert event.status == Status.DATA_TRANSFER_ERROR
        assert self.owed[event.slot, "failed"], f"slot {event.slot} reported without an error"
        self.owed[event.slot, "failed"] -= 1
        self._account(event.slot)

    def _account(self, slot: int) -> None:
        assert self.owed[slot], f"slot {slot} answered once too often"
        self.owed[slot] -= 1
        if not self.owed[slot]:
            self.slots.append(slot)

    def _sequence(self) -> Iterator[None]:
        """Reads what is launched as the sequencer would, then retires it after a while."""
        while True:
            while not self.launched:
                yield
            slot = self.launched.popleft()
            self.dut.row_read__address.value = slot
            yield
            yield
            row = unpack(ROW, sample(self.dut.row_read__data))
            assert row.array == 1 and not row.failed
            # Without parity each strip is a row of its own, named by its place.
            first = 0 if self.array.parities else row.shift // self.array.copies
            key = row.base, row.row, first
            assert key not in self.active_rows, f"row {key} is launched twice"
            assert slot not in self.active_rows.values(), f"row slot {slot} is launched twice"
            self.active_rows[key] = slot
            joined = [index for index in range(32) if row.joined >> index & 1]
            assert joined, f"row slot {slot} has nothing to do"
            self.joined_sizes[row.kind, len(joined)] += 1
            strips = []
            for index in joined:
                self.dut.strip_read__address.value = slot * 32 + index
                yield
                yield
                strip = unpack(STRIP, sample(self.dut.strip_read__data))
                expected = self.blocks[strip.slot, strip.offset]
                found = row.base, row.row, first + index
                assert expected == found, f"{expected} is in row {key} as {index}"
                if row.kind == RowKind.WRITE:
                    self.lines.read(strip.line)
                    assert self.fetches.pop(strip.line) == (strip.slot, strip.offset)
                strips.append(strip)
            if row.kind == RowKind.WRITE:
                # What was not fetched has left the row, but may have left its wish.
                wanted = any(self.fua[strip.slot] for strip in strips)
                assert row.fua == wanted or (row.fua and self.errors), f"row {key}: {row.fua}"
            cocotb.start_soon(self._retire(slot, key, row.kind, strips))

    async def _retire(self, slot: int, key, kind, strips) -> None:
        await cycles_pass(self.dut.clk, self.random.randrange(self.retire))
        while self.hold_retirements:
            await RisingEdge(self.dut.clk)
        for strip in strips:
            del self.blocks[strip.slot, strip.offset]
            if kind == RowKind.WRITE:
                self.lines.give_back(strip.line)
            self._account(strip.slot)
        del self.active_rows[key]
        self.retirements += 1
        self.retired.send(slot)

    async def command(
        self, block: int, blocks: int, *, read: bool = False, gathered: bool = False
    ) -> None:
        """Sends a command once a slot is free."""
        await wait_until(
            self.dut, lambda: bool(self.slots), cycles=PATIENCE, what="a command's answer"
        )
        slot = self.slots.popleft()
        self.owed[slot] = blocks
        self.fua[slot] = self.random.random() < 0.3
        opcode = HostOpcode.READ if read else HostOpcode.WRITE
        for one in split(self.array, block, blocks):
            for step in range(one["blocks"] + 1):
                place = one["base"], one["row"] + step, one["index"]
                self.blocks[slot, one["offset"] + step] = place
            self.extent.send(
                slot=slot,
                opcode=opcode,
                array=1,
                gathered=gathered,
                fua=self.fua[slot],
                **one,
            )

    async def settle(self, *, cycles: int = PATIENCE) -> None:
        """Waits until every command has been answered, then checks that nothing is left."""
        for _ in range(cycles):
            if len(self.slots) == CONFIG.commands and not self.active_rows:
                break
            await RisingEdge(self.dut.clk)
        assert len(self.slots) == CONFIG.commands, f"commands without an answer: {+self.owed}"
        await cycles_pass(self.dut.clk, 200)
        # A row that has lost all its blocks, as none could be fetched, stays open for its time.
        for _ in range(LIMIT_CYCLES if self.errors else 0):
            if sample(self.dut.deadline) == NEVER:
                break
            await RisingEdge(self.dut.clk)
        assert not sample(self.dut.busy), "still busy"
        assert sample(self.dut.deadline) == NEVER
        assert len(self.lines.taken) == self.allocator.offered(), f"leaked: {self.lines.taken}"
        assert self.retired.idle and self.fetched.idle and self.extent.idle


def bench_of(dut) -> Bench:
    seed = int(os.environ["SEED"])
    print(f"seed {seed}")
    active = float(os.environ.get("ACTIVE", "0.6"))
    return Bench(dut, ARRAYS[os.environ["ARRAY"]], seed=seed, active=active)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def places_every_block_once(dut):
    bench = bench_of(dut)
    await start(dut)
    for _ in range(100):
        blocks = bench.random.choice((1, 1, 2, 3, 8, 32))
        await bench.command(
            bench.random.randrange(160), blocks, read=bench.random.random() < 0.15
        )
        if bench.array.parities and bench.random.random() < 0.3:
            await bench.command(bench.random.randrange(160), blocks, read=True, gathered=True)
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def drops_only_blocks_that_cannot_be_fetched(dut):
    bench = bench_of(dut)
    bench.errors = 0.2
    await start(dut)
    for _ in range(80):
        await bench.command(bench.random.randrange(100), bench.random.choice((1, 2, 8, 20)))
    await bench.settle()
    assert bench.failed_blocks > 20


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def fills_rows_of_sequential_streams(dut):
    bench = bench_of(dut)
    bench.retire = 2000
    await start(dut)
    stripe = bench.array.data << bench.array.strip_shift
    for block in range(0, 12 * stripe, 2):
        await bench.command(block, 2)
    await bench.settle()
    rows = sum(bench.joined_sizes.values())
    full = bench.joined_sizes[RowKind.WRITE, bench.array.data]
    print(f"{full} of {rows} rows launched full: {dict(bench.joined_sizes)}")
    if bench.array.parities:
        assert full >= rows * 3 // 4


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def fills_rows_of_gathered_reads(dut):
    """Without a line; the last ones do not wait for ever."""
    bench = bench_of(dut)
    bench.retire = 400
    await start(dut)
    if not bench.array.parities:
        return
    stripe = bench.array.data << bench.array.strip_shift
    for block in range(0, 12 * stripe, 2):
        await bench.command(block, 2, read=True, gathered=True)
    await bench.settle()
    rows = sum(bench.joined_sizes.values())
    full = bench.joined_sizes[RowKind.RECOVER, bench.array.data]
    print(f"{full} of {rows} rows launched full: {dict(bench.joined_sizes)}")
    assert full >= rows * 3 // 4 and not bench.fetch_times


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def closes_rows_that_nothing_will_fill(dut):
    bench = bench_of(dut)
    bench.retire = 20
    await start(dut)
    await bench.command(0, 1)
    await bench.settle()
    # The second command continues the first, so its row waits, but not for ever.
    await bench.command(1, 1)
    while len(bench.fetch_times) < 2:
        await RisingEdge(dut.clk)
    begun = bench.fetch_times[1]
    await bench.settle(cycles=2 * IDLE_CYCLES)
    # Now with a write of the array on its way: until the limit.
    bench.hold_retirements = True
    await bench.command(100, 1)
    while not bench.active_rows:
        await RisingEdge(dut.clk)
    await bench.command(2, 1)
    begun = bench.time
    if bench.array.parities:
        while len(bench.active_rows) < 2:
            await RisingEdge(dut.clk)
            assert bench.time < begun + LIMIT_CYCLES + 400
        assert bench.time > begun + LIMIT_CYCLES - 10
    bench.hold_retirements = False
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def closes_rows_as_time_wraps(dut):
    """A row waits no longer because the clock wraps while it does, at any moment of its wait."""
    bench = bench_of(dut)
    bench.retire = 20
    await start(dut)
    block, took = 0, 0
    for after in (None, *range(-4, 16), IDLE_CYCLES // 2, IDLE_CYCLES + 100):
        # The second command continues the first, so its row waits for partners.
        await bench.command(block, 1)
        await bench.settle()
        if after is not None:
            bench.time = (1 << TIME_BITS) - took + after
        begun = bench.time
        await bench.command(block + 1, 1)
        while not bench.active_rows:
            await RisingEdge(dut.clk)
            waited = bench.time - begun
            assert waited < 2 * IDLE_CYCLES, f"the clock wraps {after} cycles before it is due"
        took = took or bench.time - begun
        await bench.settle()
        block += 32


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def lets_others_pass_a_blocked_write(dut):
    bench = bench_of(dut)
    bench.hold_retirements = True
    await start(dut)
    await bench.command(5, 1)
    while not bench.active_rows:
        await RisingEdge(dut.clk)
    await bench.command(5, 1)
    await bench.command(5, 2)
    await bench.command(5, 1, read=True)
    for number in range(1, 6):
        await bench.command(5 + 64 * number, 1)
    while len(bench.active_rows) < 6:
        await RisingEdge(dut.clk)
    assert len(bench.slots) == CONFIG.commands - 9
    bench.hold_retirements = False
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def launches_what_it_has_when_lines_are_short(dut):
    bench = bench_of(dut)
    await start(dut)
    # Streams far apart hold every line in rows that none of them fills.
    heads = [97 * number for number in range(20)]
    for _ in range(5):
        for number, head in enumerate(heads):
            await bench.command(head, 4)
            heads[number] += 4
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reports_cycles_per_block(dut):
    bench = bench_of(dut)
    bench.retire = 2
    await start(dut)
    await cycles_pass(dut.clk, 60)
    for blocks in (1, 32):
        bench.fetch_times.clear()
        for number in range(24):
            block = bench.random.randrange(100 * number, 100 * number + 99)
            await bench.command(blocks * block, blocks)
        await bench.settle()
        spent = bench.fetch_times[-1] - bench.fetch_times[0]
        print(
            f"{os.environ['ARRAY']}: commands of {blocks}: "
            f"{spent / len(bench.fetch_times):.1f} cycles a block"
        )


WORK = (
    "places_every_block_once",
    "drops_only_blocks_that_cannot_be_fetched",
    "fills_rows_of_sequential_streams",
    "fills_rows_of_gathered_reads",
    "closes_rows_that_nothing_will_fill",
    "closes_rows_as_time_wraps",
    "lets_others_pass_a_blocked_write",
    "launches_what_it_has_when_lines_are_short",
    "reports_cycles_per_block",
)


class LosesPartners(Gather):
    """A planted bug: a launched row does not show its block of data strip 1."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.row_read.data.joined[1].eq(0)
        return m


class KeepsLines(Gather):
    """A planted bug: the line of a block that cannot be fetched is not given back."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.free.valid.eq(0)
        return m


class LaunchesAnother(Gather):
    """A planted bug: the row slot before an odd one is launched instead."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.launch.payload[0].eq(0)
        return m


class DropsFua(Gather):
    """A planted bug: no row is FUA."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.row_read.data.fua.eq(0)
        return m


class NeverWaits(Gather):
    """A planted bug: rows wait for their partners for a cycle only."""

    def __init__(self, **parameters):
        super().__init__(**parameters | {"idle_cycles": 1, "limit_cycles": 1})


MUTANTS = {
    LosesPartners: "places_every_block_once",
    KeepsLines: "drops_only_blocks_that_cannot_be_fetched",
    LaunchesAnother: "places_every_block_once",
    DropsFua: "places_every_block_once",
    NeverWaits: "fills_rows_of_sequential_streams",
}


def gather(component, *, array: str, seed: int, testcase) -> None:
    simulate(
        converted(
            component, config=CONFIG, idle_cycles=IDLE_CYCLES, limit_cycles=LIMIT_CYCLES
        ),
        name=component.__name__,
        module=__name__,
        testcase=testcase,
        parameters={"ARRAY": array, "SEED": str(seed)},
    )


LESS_OFTEN = ("raid5", "raid6")
"""Arrays of the long suite only."""


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[pytest.mark.slow] if array in LESS_OFTEN else [])
        for array in ARRAYS
    ],
)
def test_gather(array):
    gather(Gather, array=array, seed=1, testcase=WORK)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.slow
def test_planted_bug_is_caught(mutant):
    with pytest.raises(SimulationError, match=f"failed: {MUTANTS[mutant]}"):
        gather(mutant, array="raid5", seed=1, testcase=MUTANTS[mutant])
