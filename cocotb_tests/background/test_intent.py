"""Write-intent bitmap: no row is forgotten that a drive may have missed, and flushes clear it."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import cocotb
import pytest
from amaranth.hdl import Const, Module
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    every_cycle,
    pack,
    sample,
    start,
    unpack,
    wait_until,
)
from hdl.background.epochs import Epochs
from hdl.background.intent import EVENTS, Intent, flight, marking, tally
from hdl.background.rows import array_row, stretch
from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.host_command import Status, completion
from hdl.flow.intention import flushing, intention, marked_row
from hdl.flow.marks import marks_address, marks_word

CONFIG = Config(rows=16, commands=16, arrays=4, intent_chunks=64)
DURABLE = replace(CONFIG, metadata=True, lines=64)
ROWS = (20, 64, 1000, (1 << 39) + 12345)
"""Of each array: fewer than chunks, as many, more, very many."""

ROUNDS = 150
SETTLE_CYCLES = 63
"""Until then a drive that a flush has found gone is being judged (`hdl.background.epochs`)."""

OWN = -1
"""What stands for a command slot where the controller flushes by itself."""

NONE = (1 << BLOCK_NUMBER_BITS) - 1
ANSWER_CYCLES = 400
EVENT_CYCLES = 8


def rows_of_a_chunk(rows: int) -> int:
    """The least power of two of which as many as there are chunks hold all rows."""
    size = 1
    while size * CONFIG.intent_chunks < rows:
        size *= 2
    return size


@dataclass
class Array:
    """An array of the model: what a drive that goes away now may miss."""

    rows: int
    needed: set[int] = field(default_factory=set)
    flying: dict[int, int] = field(default_factory=dict)
    """Rows being written, by slot."""
    all_needed: bool = False
    optimal: bool = True
    flushes: dict[int, tuple[set[int], bool]] = field(default_factory=dict)
    """By command slot: what was on the drives as it began, and whether that was everything."""

    @property
    def chunk(self) -> int:
        return rows_of_a_chunk(self.rows)

    def chunks(self) -> set[int]:
        """Chunks that must be marked."""
        if self.all_needed:
            return set(range(-(-self.rows // self.chunk)))
        return {row // self.chunk for row in (*self.needed, *self.flying.values())}

    def begin(self, slot: int, row: int) -> None:
        self.flying[slot] = row
        self.needed.add(row)
        for covered, _ in self.flushes.values():
            covered.discard(row)

    def degrade(self) -> None:
        self.optimal = False
        self.flushes = {slot: (set(), False) for slot in self.flushes}

    def flush(self, slot: int) -> None:
        covered = self.needed - set(self.flying.values()) if self.optimal else set()
        self.flushes[slot] = covered, self.all_needed and self.optimal

    def flushed(self, slot: int, good: bool) -> None:
        covered, every = self.flushes.pop(slot)
        if good:
            self.needed -= covered
            self.all_needed &= not every


class Bench:
    """Rows, flushes and the states of arrays at random, and the model."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        self.arrays = [Array(rows) for rows in ROWS]
        durable = hasattr(dut, "idle__begins")
        config = DURABLE if durable else CONFIG
        self.begun = StreamSource(dut, "writes__begun", layout=intention(config), active=0.7)
        self.retired = StreamSource(dut, "writes__retired", active=0.7)
        self.asks = StreamSource(dut, "ask", layout=array_row(CONFIG))
        self.answers = StreamSink(dut, "answer", layout=stretch(), active=0.5)
        self.slots = set(range(CONFIG.rows))
        self.commands = set(range(CONFIG.commands))
        pulses = ("writes__flushes__flush", "writes__flushes__completed", "judged", "wipe", "fill")
        flushes = ("writes__flushes__flushing", "writes__flushes__completion")
        values = (*flushes, "judged_array", "judged_rows", "named")
        for name in (*pulses, *values, "tally_read__address"):
            getattr(dut, name).value = 0
        dut.settled.value = 1
        dut.optimal.value = (1 << CONFIG.arrays) - 1

    async def begin(self) -> None:
        await start(self.dut)
        for number, array in enumerate(self.arrays):
            self.dut.judged_array.value = number
            self.dut.judged_rows.value = array.rows
            await self.pulse("judged")
        await self.rest()

    async def pulse(self, name: str) -> None:
        getattr(self.dut, name).value = 1
        await RisingEdge(self.dut.clk)
        getattr(self.dut, name).value = 0

    async def rest(self) -> None:
        """Until nothing moves."""
        dut = self.dut
        await self.begun.drained()
        await self.retired.drained()
        quiet = 0
        for _ in range(5000):
            await RisingEdge(dut.clk)
            quiet = 0 if sample(dut.busy) else quiet + 1
            if quiet == 4:
                return
        raise AssertionError("no rest")

    # What happens

    async def write(self) -> None:
        """A row begins to be written; rows of an array keep near each other."""
        number = self.random.randrange(CONFIG.arrays)
        array = self.arrays[number]
        near = self.random.choice((0, array.rows // 2, array.rows - 1))
        row = max(0, min(array.rows - 1, near + self.random.randint(-3, 3) * array.chunk))
        if not self.slots or row in array.flying.values():
            return
        slot = self.random.choice(sorted(self.slots))
        self.slots.discard(slot)
        self.begun.send(slot=slot, array=number, row=row)
        await self.begun.drained()
        array.begin(slot, row)

    async def retire(self) -> None:
        flying = [(array, slot) for array in self.arrays for slot in array.flying]
        if flying:
            array, slot = self.random.choice(flying)
            if self.random.random() < 0.2:
                number = self.arrays.index(array)
                self.begun.send(slot=slot, array=number, row=array.flying[slot])
                await self.begun.drained()
            self.retired.send(slot)
            await self.retired.drained()
            del array.flying[slot]
            self.slots.add(slot)

    async def flush(self, number: int | None = None) -> None:
        if self.commands:
            number = self.random.randrange(CONFIG.arrays) if number is None else number
            slot = self.random.choice(sorted(self.commands))
            self.commands.discard(slot)
            begins = pack(flushing(CONFIG), slot=slot, array=number)
            self.dut.writes__flushes__flushing.value = begins
            self.arrays[number].flush(slot)
            await self.pulse("writes__flushes__flush")

    async def end_flush(self, good: bool | None = None, array: Array | None = None) -> None:
        arrays = self.arrays if array is None else [array]
        ended = [(array, slot) for array in arrays for slot in array.flushes if slot != OWN]
        if ended:
            array, slot = self.random.choice(ended)
            if good is None:
                good = self.random.random() < 0.8
            status = Status.SUCCESS if good else Status.WRITE_FAULT
            ends = pack(completion(CONFIG), slot=slot, status=status)
            self.dut.writes__flushes__completion.value = ends
            await self.pulse("writes__flushes__completed")
            array.flushed(slot, good)
            self.commands.add(slot)

    async def flush_itself(self) -> None:
        """The controller flushes an idle array. No other flush begins in that cycle."""
        number = self.random.randrange(CONFIG.arrays)
        if any(OWN in array.flushes for array in self.arrays):
            return
        self.dut.idle__array.value, self.dut.idle__begins.value = number, 1
        await FallingEdge(self.dut.clk)
        begun = sample(self.dut.idle__begun)
        await RisingEdge(self.dut.clk)
        self.dut.idle__begins.value = 0
        if begun:
            self.arrays[number].flush(OWN)

    async def end_own_flush(self) -> None:
        for array in self.arrays:
            if OWN in array.flushes:
                good = self.random.random() < 0.8
                self.dut.idle__good.value = good
                await self.pulse("idle__ended")
                array.flushed(OWN, good)

    async def change_state(self) -> None:
        """An array loses a drive, which is told late, or is whole again."""
        dut = self.dut
        number = self.random.randrange(CONFIG.arrays)
        flushed = [n for n, array in enumerate(self.arrays) if array.flushes and array.optimal]
        if flushed and self.random.random() < 0.5:
            number = self.random.choice(flushed)
        array = self.arrays[number]
        if array.optimal:
            array.degrade()
            if array.flushes.keys() - {OWN} and self.random.random() < 0.5:
                # The flush has found the drive gone, and it is excused: nobody knows yet.
                await self.end_flush(good=True, array=array)
            await ClockCycles(dut.clk, self.random.randrange(SETTLE_CYCLES - 4))
        dut.settled.value = 0
        await ClockCycles(dut.clk, self.random.randint(1, 200))
        array.optimal = bool(sample(dut.optimal) >> number & 1 == 0)
        dut.optimal.value = sample(dut.optimal) ^ 1 << number
        await RisingEdge(dut.clk)
        dut.settled.value = 1

    async def renew(self) -> None:
        """An array is new, or one of its members."""
        await self.rest()
        number = self.random.randrange(CONFIG.arrays)
        array = self.arrays[number]
        self.dut.named.value = number
        if self.random.random() < 0.5 and not array.flying:
            await self.pulse("wipe")
            array.needed, array.all_needed = set(), False
            array.flushes = {slot: (set(), False) for slot in array.flushes}
        else:
            await self.pulse("fill")
            array.all_needed = True
            array.flushes = {slot: (rows, False) for slot, (rows, _) in array.flushes.items()}
        await wait_until(
            self.dut, lambda: not sample(self.dut.sweeping), cycles=600, what="a sweep"
        )

    # What is marked

    async def marked(self, number: int) -> set[int]:
        """The chunks that a rebuild would walk, and the count of them is told."""
        array = self.arrays[number]
        found, row = set(), 0
        while row < array.rows:
            self.asks.send(array=number, row=row)
            answer = await self.answers.receive(cycles=ANSWER_CYCLES)
            if answer.first == NONE:
                break
            end = answer.end or array.rows
            assert row <= answer.first < end, answer
            assert answer.first == row or answer.first % array.chunk == 0
            assert end % array.chunk == 0 or answer.end == 0
            found |= set(range(answer.first // array.chunk, -(-end // array.chunk)))
            # From inside a stretch it is the same one.
            if self.random.random() < 0.3:
                row = self.random.randrange(answer.first, min(end, array.rows))
                self.asks.send(array=number, row=row)
                again = await self.answers.receive(cycles=ANSWER_CYCLES)
                assert (again.first, again.end) == (row, answer.end)
            row = end
        dut = self.dut
        dut.tally_read__address.value = number
        await ClockCycles(dut.clk, 2)
        await FallingEdge(dut.clk)
        told = unpack(tally(CONFIG), sample(dut.tally_read__data))
        assert (told.marked, 1 << told.shift) == (len(found), array.chunk), f"array {number}"
        await RisingEdge(dut.clk)
        return found

    async def check(self, *, exact: bool = False) -> None:
        await self.rest()
        for number, array in enumerate(self.arrays):
            found, needed = await self.marked(number), array.chunks()
            assert needed <= found, f"array {number} forgets chunks {sorted(needed - found)}"
            if exact:
                assert found == needed, f"array {number} keeps chunks {sorted(found - needed)}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def forgets_nothing(dut):
    """Rows, flushes that succeed and fail, arrays that lose drives, all at once."""
    bench = Bench(dut)
    watch = BusyWatch(dut, ["writes__begun", "writes__retired", "ask"], ["answer"])
    await bench.begin()
    actions = [bench.write] * 6 + [bench.retire] * 5 + [bench.flush] * 2 + [bench.end_flush] * 3
    actions += [bench.change_state]
    if hasattr(dut, "idle__begins"):
        dut.idle__begins.value = dut.idle__ended.value = 0
        actions += [bench.flush_itself] * 2 + [bench.end_own_flush] * 3
    for round_number in range(ROUNDS):
        for _ in range(bench.random.randint(5, 40)):
            await bench.random.choice(actions)()
            if bench.random.random() < 0.3:
                await ClockCycles(dut.clk, bench.random.randrange(3 * SETTLE_CYCLES))
        if round_number % 4 == 3:
            await bench.renew()
        await bench.check()
    watch.check()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def drops_what_is_flushed(dut):
    """With one flush at a time, and drives that stay, exactly what must be marked is."""
    bench = Bench(dut)
    await bench.begin()
    for round_number in range(ROUNDS):
        for _ in range(bench.random.randint(1, 30)):
            await bench.random.choice([bench.write, bench.write, bench.retire])()
        if round_number % 5 == 4:
            await bench.renew()
        await bench.rest()
        await bench.flush()
        for _ in range(bench.random.randint(0, 20)):
            await bench.random.choice([bench.write, bench.retire])()
        await bench.end_flush()
        while bench.slots != set(range(CONFIG.rows)):
            await bench.retire()
        await ClockCycles(dut.clk, 2 * SETTLE_CYCLES)
        await bench.check(exact=True)
    for number in range(CONFIG.arrays):
        await bench.flush(number)
        await bench.end_flush(True)
        await ClockCycles(dut.clk, 2 * SETTLE_CYCLES)
        await bench.rest()
        assert not await bench.marked(number)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def marks_what_begins_after_a_sweep(dut):
    """Rows begin right after an array is said to be new, while those of another array are still
    being marked. They are not forgotten, and nothing else of the array is marked."""
    bench = Bench(dut)
    await bench.begin()
    bench.begun.active = 1.0
    number, other = 2, 1
    chunk = bench.arrays[number].chunk
    for wait in range(24):
        for slot in range(3):
            bench.begun.send(slot=slot, array=other, row=slot)
        await bench.begun.drained()
        dut.named.value = number
        await bench.pulse("wipe")
        await cycles_pass(dut.clk, wait)
        row = (wait + 1) * chunk
        bench.begun.send(slot=3, array=number, row=row)
        await bench.rest()
        found = await bench.marked(number)
        assert found == {row // chunk}, f"{wait} cycles later: {sorted(found)}"
        for slot in range(4):
            bench.retired.send(slot)
        await bench.rest()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_its_rate(dut):
    """Rows come and go faster than the stripe engine can write them."""
    bench = Bench(dut)
    await bench.begin()
    bench.begun.active = bench.retired.active = 1.0
    events = 200
    for number in range(events // 2):
        bench.begun.send(slot=number % CONFIG.rows, array=2, row=number)
    await bench.begun.drained()
    cycles = 0
    for number in range(events // 2):
        bench.retired.send(number % CONFIG.rows)
    while not bench.retired.idle:
        await RisingEdge(dut.clk)
        cycles += 1
    dut._log.info("%.1f cycles an event", cycles / (events / 2))
    assert cycles <= EVENT_CYCLES * events / 2


def hear_marking(dut, told: list[tuple[int, int]]) -> Iterator[None]:
    """Notes the arrays of which it is told that they are marked, and whether a walk does it."""
    while True:
        yield
        if sample(dut.marking__valid):
            one = unpack(marking(DURABLE), sample(dut.marking__payload))
            told.append((one.array, one.walk))


async def begin_durable(dut) -> None:
    """Array 1 has 8 rows a chunk."""
    await start(dut)
    await cycles_pass(dut.clk, 300)
    dut.optimal.value = 0
    dut.judged_array.value, dut.judged_rows.value = 1, 8 * DURABLE.intent_chunks
    dut.judged.value = 1
    await RisingEdge(dut.clk)
    dut.judged.value = 0


async def is_marked(dut, array: int, chunk: int) -> bool:
    """As those see it who keep the marks on the drives: the older plane first."""
    found = 0
    newer = sample(dut.marks__planes) >> array & 1
    for plane in (1 - newer, newer):
        dut.marks__read__address.value = pack(
            marks_address(DURABLE), word=chunk // 32, array=array, plane=plane
        )
        await cycles_pass(dut.clk, 2)
        found |= sample(dut.marks__read__data)
    return bool(found >> chunk % 32 & 1)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def tells_who_asks(dut):
    """Whoever asks is told, in their order, once the row is marked. Nobody else is. Rows of walks
    are told from others, as they begin and as they retire."""
    generator = random.Random(int(os.environ["SEED"]))
    begun = StreamSource(dut, "writes__begun", layout=intention(DURABLE), active=0.7)
    retired = StreamSource(dut, "writes__retired", active=0.7)
    told = StreamSink(dut, "marks__marked", layout=marked_row(DURABLE), active=0.5)
    await begin_durable(dut)
    marks: list[tuple[int, int]] = []
    every_cycle(dut.clk, hear_marking(dut, marks))
    walks = []
    expected = []
    for slot in range(DURABLE.rows):
        row = generator.randrange(8 * DURABLE.intent_chunks)
        # A row that is noted already is told as well.
        chosen = generator.choice(((0,), (1,), (0, 0), (1, 0), (1, 1)))
        walks.append((1, int(not chosen[0])))
        for asks in chosen:
            begun.send(slot=slot, array=1, row=row, asks=asks)
            if asks:
                expected.append((slot, row // 8))
    for slot, chunk in expected:
        one = await told.receive()
        assert (one.slot, one.array, one.chunk) == (slot, 1, chunk)
        assert await is_marked(dut, 1, chunk), f"chunk {chunk} is not marked"
    await cycles_pass(dut.clk, 200)
    assert not sample(dut.marks__marked__valid) and not sample(dut.busy)
    assert marks == walks
    for slot, (array, walk) in enumerate(walks):
        dut.flight_read__address.value = slot
        await cycles_pass(dut.clk, 2)
        one = unpack(flight(DURABLE), sample(dut.flight_read__data))
        assert (one.any, one.array, one.walk) == (1, array, walk), slot
    slots = [*range(DURABLE.rows)]
    generator.shuffle(slots)
    marks.clear()
    for slot in slots:
        retired.send(slot)
    await retired.drained()
    await cycles_pass(dut.clk, 10 * EVENTS)
    assert marks == [walks[slot] for slot in slots]
    dut.flight_read__address.value = slots[0]
    await cycles_pass(dut.clk, 2)
    assert not unpack(flight(DURABLE), sample(dut.flight_read__data)).any


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def adds_what_is_loaded(dut):
    """Marks that the drives have are added to those that there are, and counted once."""
    generator = random.Random(int(os.environ["SEED"]))
    begun = StreamSource(dut, "writes__begun", layout=intention(DURABLE))
    load = StreamSource(dut, "load", layout=marks_word(DURABLE))
    await begin_durable(dut)
    wanted = set()
    for slot in range(8):
        chunk = generator.randrange(DURABLE.intent_chunks)
        begun.send(slot=slot, array=1, row=8 * chunk, asks=0)
        wanted.add(chunk)
    await begun.drained()
    await cycles_pass(dut.clk, 60)
    told: list[tuple[int, int]] = []
    every_cycle(dut.clk, hear_marking(dut, told))
    for word in range(DURABLE.intent_chunks // 32):
        marks = generator.getrandbits(32) & generator.getrandbits(32)
        load.send(word=word, array=1, marks=marks)
        wanted |= {32 * word + bit for bit in range(32) if marks >> bit & 1}
    await load.drained()
    await cycles_pass(dut.clk, 60)
    assert told == [(1, 0)] * (DURABLE.intent_chunks // 32), "it is not told that marks come"
    for chunk in range(DURABLE.intent_chunks):
        assert await is_marked(dut, 1, chunk) == (chunk in wanted), chunk
    dut.tally_read__address.value = 1
    await cycles_pass(dut.clk, 3)
    assert unpack(tally(DURABLE), sample(dut.tally_read__data)).marked == len(wanted)


DURABLE_TESTS = ["tells_who_asks", "adds_what_is_loaded"]
OWN_TESTS = ["drops_what_it_flushes_itself", "drops_what_was_rebuilt"]
TESTS = [
    "forgets_nothing", "drops_what_is_flushed", "marks_what_begins_after_a_sweep", "keeps_its_rate"
]  # fmt: skip


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def drops_what_it_flushes_itself(dut):
    """After a flush of an idle array nothing of it is marked, and that is told. So are rows that
    are marked as they retire."""
    bench = Bench(dut)
    dut.idle__begins.value = dut.idle__ended.value = 0
    await bench.begin()
    told: list[tuple[int, int]] = []
    every_cycle(dut.clk, hear_marking(dut, told))
    for _ in range(ROUNDS):
        for _ in range(bench.random.randint(1, 30)):
            await bench.random.choice([bench.write, bench.write, bench.retire])()
        await bench.rest()
        told.clear()
        flying = {n for n, array in enumerate(bench.arrays) if array.flying}
        while bench.slots != set(range(CONFIG.rows)):
            await bench.retire()
        await bench.rest()
        assert {array for array, _ in told} == flying, "rows that retire are not told"
        for number, array in enumerate(bench.arrays):
            assert sample(dut.marked) >> number & 1 == bool(array.chunks()), f"array {number}"
        await bench.flush_itself()
        await ClockCycles(dut.clk, bench.random.randrange(100))
        await bench.end_own_flush()
        await ClockCycles(dut.clk, 2 * SETTLE_CYCLES)
        await bench.check(exact=True)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def drops_what_was_rebuilt(dut):
    """Of an array that is being rebuilt only marks of chunks are dropped that had been rebuilt as
    its flush began, and none if a member has failed meanwhile. Rows that are written go on being
    marked. That all rows are marked of an array with a new member is told."""
    bench = Bench(dut)
    choose = bench.random
    dut.idle__begins.value = dut.idle__ended.value = dut.partial.value = 0
    await bench.begin()
    filled: list[int] = []

    def hear() -> Iterator[None]:
        while True:
            yield
            if sample(dut.filled__valid):
                filled.append(sample(dut.filled__payload))

    every_cycle(dut.clk, hear())
    dropped = 0
    for _ in range(ROUNDS):
        number = choose.randrange(CONFIG.arrays)
        array = bench.arrays[number]
        one, every = 1 << number, (1 << CONFIG.arrays) - 1
        dut.optimal.value, dut.partial.value = every ^ one, one
        dut.named.value = number
        await bench.pulse("fill")
        await bench.rest()
        assert filled == [number]
        filled.clear()
        for _ in range(choose.randrange(10)):
            await choose.choice([bench.write, bench.write, bench.retire])()
        await bench.rest()
        rows = choose.choice((0, choose.randrange(array.rows), array.rows, NONE))
        flying = set(array.flying.values())
        dut.idle__rows.value = rows
        dut.idle__array.value, dut.idle__begins.value = number, 1
        await wait_until(dut, lambda: sample(dut.idle__begun), cycles=1000, what="the epoch")
        dut.idle__begins.value = 0
        dut.idle__rows.value = NONE
        for _ in range(choose.randrange(10)):
            await choose.choice([bench.write, bench.write, bench.retire])()
            flying |= set(array.flying.values())
        end = choose.randrange(4)
        if end == 0:  # a member fails, and is back at once
            dut.partial.value = 0
            await ClockCycles(dut.clk, 2)
            dut.partial.value = one
        if end == 1:  # the rebuild ends
            dut.optimal.value, dut.partial.value = every, 0
        dut.idle__good.value = good = int(choose.random() < 0.8)
        await bench.pulse("idle__ended")
        while bench.slots != set(range(CONFIG.rows)):
            await bench.retire()
        await ClockCycles(dut.clk, 2 * SETTLE_CYCLES)
        await bench.rest()
        size = array.chunk
        chunks = set(range(-(-array.rows // size)))
        kept = {chunk for chunk in chunks if (chunk + 1) * size > rows and rows < array.rows}
        kept |= {row // size for row in flying}
        expected = kept if good and end else chunks
        found = await bench.marked(number)
        assert found == expected, (number, rows, sorted(found ^ expected))
        dropped += len(chunks - expected)
        array.needed.clear()
    assert dropped > 100, dropped


def test_marks_for_drives():
    simulate(
        Intent(config=DURABLE),
        name="intent_durable",
        module=__name__,
        testcase=[*DURABLE_TESTS, "forgets_nothing", *OWN_TESTS],
        parameters={"SEED": "1"},
    )


class BelievesItself(Intent):
    """Planted bug: an own flush counts though some drive did not store what it had."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self._epochs.idle.good.eq(1)
        return m


@pytest.mark.slow
def test_own_flushes_that_always_count_are_found():
    with pytest.raises(SimulationError, match="failed: forgets_nothing"):
        simulate(
            BelievesItself(config=DURABLE),
            name="intent_durable_BelievesItself",
            module=__name__,
            testcase="forgets_nothing",
        )


class TellsTooSoon(Intent):
    """Planted bug: who asks is told before the row is marked."""

    def _store(self, m, plane, word, marks) -> None:
        with m.If(~self._asks):
            super()._store(m, plane, word, marks)


@pytest.mark.slow
def test_who_is_told_too_soon_is_found():
    with pytest.raises(SimulationError, match="failed: tells_who_asks"):
        simulate(
            TellsTooSoon(config=DURABLE),
            name="intent_durable_TellsTooSoon",
            module=__name__,
            testcase=DURABLE_TESTS,
        )


def test_intent():
    simulate(Intent(config=CONFIG), name="intent", module=__name__, testcase=TESTS)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="intent_chunks must be 0 or a power of two"):
        Config(intent_chunks=16)
    with pytest.raises(ValueError, match="intent_chunks needs background"):
        Config(background=False, gather_reads=False, intent_chunks=32)


class ForgetsTheSecondMark(Intent):
    """Planted bug: a row that was being written as a flush began is not marked as it retires."""

    def _marks_again(self, written):
        return Const(0)


class ClearsWhileDegraded(Epochs):
    """Planted bug: a flush is as good without some of the drives."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.drops.eq(1)
        return m


class ForgetsRowsUnderWay(Epochs):
    """Planted bug: an epoch does not wait for rows that began before it."""

    def _drained(self, written):
        return Const(1)


def test_an_epoch_over_too_soon_is_found(monkeypatch):
    """Planted bug: what a flush has found of a drive is not waited for."""
    monkeypatch.setattr("hdl.background.epochs.SETTLE_CYCLES", 0)
    with pytest.raises(SimulationError, match="forgets_nothing"):
        simulate(
            Intent(config=CONFIG), name="intent_soon", module=__name__, testcase="forgets_nothing"
        )


@pytest.mark.parametrize(
    "bug",
    [
        ForgetsTheSecondMark,
        *(
            pytest.param(bug, marks=pytest.mark.slow)
            for bug in (ClearsWhileDegraded, ForgetsRowsUnderWay)
        ),
    ],
)
def test_planted_bugs_are_found(bug, monkeypatch):
    if issubclass(bug, Epochs):
        monkeypatch.setattr("hdl.background.intent.Epochs", bug)
    with pytest.raises(SimulationError, match="forgets_nothing"):
        simulate(
            (Intent if issubclass(bug, Epochs) else bug)(config=CONFIG),
            name=f"intent_{bug.__name__}",
            module=__name__,
            testcase="forgets_nothing",
        )


class DropsAll(Intent):
    """Planted bug: the marks of rows are dropped that have not been rebuilt."""

    @property
    def _rebuilt_chunks(self):
        return ~Const(0, 32)


class GoesOn(Epochs):
    """Planted bug: a member that fails meanwhile is nothing to an array that is being rebuilt."""

    def elaborate(self, platform) -> Module:
        self.partial = Const((1 << CONFIG.arrays) - 1, CONFIG.arrays)
        return super().elaborate(platform)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["intent", "epochs"])
def test_marks_that_go_too_soon_are_found(place, monkeypatch):
    component = DropsAll if place == "intent" else Intent
    if place == "epochs":
        monkeypatch.setattr("hdl.background.intent.Epochs", GoesOn)
    with pytest.raises(SimulationError, match="failed: drops_what_was_rebuilt"):
        simulate(
            component(config=DURABLE),
            name=f"intent_{place}",
            module=__name__,
            testcase="drops_what_was_rebuilt",
        )
