"""Redo records of rows: what is on its way to drives as the power fails, and how much that is."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import cocotb
import pytest

from cocotb_tests.planted import planted
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    every_cycle,
    sample,
    start,
    unpack,
    wait_until,
)
from cocotb_tests.stripe import sequencer_bench
from cocotb_tests.stripe.sequencer_bench import (
    ARRAY,
    ARRAYS,
    PATIENCE,
    ROW_STEP,
    Row,
    random_rows,
    some_rows,
)
from cocotb_tests.stripe.walk_bench import WalkBench
from hdl.flow.operation import DriveStatus, Opcode, finished, operation
from hdl.flow.recalled import recalled
from hdl.flow.walk import WalkKind
from hdl.stripe.rows.sequencer import Sequencer

CONFIG = replace(
    sequencer_bench.CONFIG, ports=9, rows=16, lines=256, operations=128, commands=128,
    metadata=True, backup_blocks=100,
)  # fmt: skip

SPAN = 24
"""Rows that the host writes. Those that are walked follow."""

WALKED = range(SPAN * ROW_STEP, (SPAN + 6) * ROW_STEP, ROW_STEP)

WALKERS = 3

KINDS = (
    WalkKind.RESYNC, WalkKind.PATROL, WalkKind.PATROL, WalkKind.REPAIR, WalkKind.CHECK,
    WalkKind.ZERO,
)  # fmt: skip
MAKE_RIGHT = (WalkKind.RESYNC, WalkKind.ZERO, WalkKind.REPAIR, WalkKind.SALVAGE)

LEAST_LIMIT = 4 * CONFIG.ports
"""Blocks that may be on their way at least: what a row can write, twice."""

NO_LIMIT = 511

ABORTED_ROUNDS = 6
"""Rounds in which writes of a row may be aborted before that counts as a failure."""

NOBODY_THERE = ("committed", "recovered", "recover_failed", "retired", "walked", "flush")
"""Streams that nobody takes once the power fails."""

TOLD_CYCLES = 5 * CONFIG.rows * CONFIG.ports + 8 * CONFIG.rows + 5000
"""All blocks are told in so many cycles, once the row at hand has been dealt with."""


@dataclass
class Block:
    """A block on its way, or to be sent again."""

    port: int
    block: int
    line: int
    content: bytes


@dataclass
class Phase:
    """What a row writes at present: blocks by the numbers of their targets."""

    row: Row
    blocks: dict[int, Block] = field(default_factory=dict)
    out: int = 0
    refused: set[int] = field(default_factory=set)
    rounds: int = 0
    aborted: bool = False


class RecordBench(WalkBench):
    """A `WalkBench` that knows what is on its way, from operations and their ends."""

    def __init__(self, dut, array, *, seed: int, active: float):
        super().__init__(dut, CONFIG, array, seed=seed, active=active)
        self.phases: dict[int, Phase] = {}
        self.exposed = 0
        self.walked = self.to_walk = 0
        self.to_expose = 0
        self.limit = NO_LIMIT
        self.parity.dirty = True  # rows of zeros
        self.most = 0
        self.seen: Counter = Counter()
        dut.recalls.value = 0
        self.set_limit(NO_LIMIT)
        self.drives.lets = StreamSource(dut, "lets", active=active, seed=seed).send
        self.told = StreamSink(dut, "recalled", layout=recalled(CONFIG), active=active, seed=seed)
        self._operation, self._end = operation(CONFIG), finished(CONFIG)
        every_cycle(dut.clk, self._watch())

    def set_limit(self, limit: int) -> None:
        self.limit = self.dut.most_unwritten.value = limit

    def _watch(self) -> Iterator[None]:
        dut = self.dut

        def taken(name: str) -> int | None:
            valid, ready = getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")
            if sample(valid) and sample(ready):
                return sample(getattr(dut, f"{name}__payload"))
            return None

        while True:
            yield
            if sample(dut.rst):
                continue
            for name in ("exposes", "unflushed"):
                if sample(getattr(dut, f"{name}__valid")):
                    assert sample(getattr(dut, f"{name}__payload")) == ARRAY
                    self.exposed += 1
                    self.walked += name == "unflushed"
            ended = taken("finished")
            if ended is not None:
                self._ends(unpack(self._end, ended))
            sent = taken("operation")
            if sent is not None:
                self._sent(unpack(self._operation, sent))

    def _sent(self, one) -> None:
        if one.opcode == Opcode.READ:
            return
        row, phase = self.slots[one.index], self.phases.get(one.index)
        # Blocks are made unreadable once no other is on its way.
        marks = one.opcode != Opcode.WRITE and not one.alone
        if phase is None or phase.row is not row or (marks and not phase.blocks and not phase.out):
            phase = self.phases[one.index] = Phase(row)
        if one.alone and not phase.out:
            phase.rounds += phase.aborted
            phase.aborted = False
        phase.out += 1
        exempt = row.walk and row.walk["kind"] not in MAKE_RIGHT
        stored = one.opcode == Opcode.WRITE and (one.fua or exempt)
        self.to_expose += not stored
        self.to_walk += bool(row.walk and not stored and one.opcode == Opcode.WRITE)
        self.seen["exempt"] += bool(exempt)
        if one.opcode != Opcode.WRITE:
            self.seen["marks"] += 1
            self.seen["marks of FUA"] += one.fua
            return
        content = self.lines.read(one.line)
        phase.blocks[one.place] = Block(one.port, one.block, one.line, content)
        self.most = max(self.most, len(self.on_their_way()))
        assert len(self.on_their_way()) <= self.limit, "more than there is room for"
        assert self.exposed >= self.to_expose - self.seen["failed"], "not exposed"

    def _ends(self, one) -> None:
        if one.opcode == Opcode.READ:
            return
        phase, status = self.phases[one.index], one.status
        phase.out -= 1
        again = status == DriveStatus.UNREACHED
        if status == DriveStatus.ABORTED and phase.rounds != ABORTED_ROUNDS - 1:
            again = phase.aborted = True
        if status == DriveStatus.MEDIUM_ERROR:
            again = one.place not in phase.refused
            phase.refused.add(one.place)
        if again:
            self.seen["again"] += 1
        elif one.opcode == Opcode.WRITE:
            del phase.blocks[one.place]
            if status != DriveStatus.GOOD:
                self.to_expose += 1
                self.seen["failed"] += 1

    def on_their_way(self) -> set[tuple[int, int, int]]:
        """Port, block and line."""
        return {
            (one.port, one.block, one.line)
            for phase in self.phases.values()
            for one in phase.blocks.values()
        }

    async def walk_around(self) -> None:
        """Walks rows that nobody writes, with blocks that cannot be read."""
        while True:
            await cycles_pass(self.dut.clk, self.random.randrange(300))
            row = self.random.choice(WALKED)
            kind = self.random.choice(KINDS)
            strip = self.random.choice(self.walked_strips(row))
            source = 0
            if self.array.mirrored and kind == WalkKind.PATROL:
                source = self.random.randrange(self.array.copies)
            places = self.role_places(row, strip)
            if self.random.random() < 0.7 and kind != WalkKind.ZERO:
                self.drives.unreadable.add(self.random.choice(places))
            tag = await self.walk(row, kind, strip=strip, source=source)
            await self.end_of(tag)
            self.seen["walks"] += 1

    async def write_rows(self, *, recover: float = 0.1) -> None:
        while True:
            pause = self.wishes.choice((0, 200))
            await random_rows(self, rows=4, span=SPAN, recover=recover, pause=pause)

    def lose_drive(self) -> None:
        """A drive goes. The sequencer finds out, or is told."""
        port = self.random.choice(self.array.ports[: self.array.width])
        self.drives.gone.add(port)
        if self.random.random() < 0.5:
            self.fail(port)
        self.seen["lost"] += 1

    def nobody_is_there(self) -> None:
        """The host has gone, and what else ends as the power does."""
        for name in NOBODY_THERE:
            self.sinks[name].stop()

    async def recall(self) -> None:
        """The power fails. What is told must be what is on its way, twice."""
        dut = self.dut
        self.nobody_is_there()
        pause = self.random.choice((0, 200, 3000))
        if pause:
            self.drives.answers(True)
        await cycles_pass(dut.clk, pause)
        dut.recalls.value = 1
        passes: list[list[tuple[int, int, int]]] = [[], []]
        for found in passes:
            for _ in range(len(self.slots) * 40 + 1):
                one = await self.told.receive(cycles=TOLD_CYCLES)
                array, place = one.array, (one.port, one.block, one.line)
                if one.last:
                    break
                assert array == ARRAY
                found.append(place)
            else:
                raise AssertionError("it never ends")
        assert passes[0] == passes[1], "something else is told the second time"
        # What had been sent by then has left the queues by now.
        await cycles_pass(dut.clk, 2000)
        wanted = self.on_their_way()
        assert len(set(passes[0])) == len(passes[0]), "a block is told twice"
        assert {*passes[0]} == wanted, f"{passes[0]}, not {wanted}"
        for phase in self.phases.values():
            for one in phase.blocks.values():
                held = self.lines.read(one.line)
                assert held == one.content, f"line {one.line} holds another block"
        assert len(wanted) <= self.limit
        self.check_exposed()
        self.seen["told"] += len(wanted)

    def check_exposed(self) -> None:
        assert self.exposed == self.to_expose, f"exposed {self.exposed} times, not {self.to_expose}"
        assert self.walked == self.to_walk, f"by walks {self.walked} times, not {self.to_walk}"


def bench_of(dut) -> RecordBench:
    seed = int(os.environ["SEED"])
    print(f"seed {seed}")
    active = float(os.environ["ACTIVE"])
    return RecordBench(dut, ARRAYS[os.environ["ARRAY"]], seed=seed, active=active)


def make_trouble(bench: RecordBench) -> None:
    """Drives abort, do not reach, and refuse; as many as may be are given up for that."""
    drives, choose = bench.drives, bench.random
    drives.latency = choose.choice((40, 400, 2000, 2000))
    drives.aborts = choose.choice((0, 0.02))
    drives.unreached = choose.choice((0, 0.1, 0.3))
    chance = choose.random()
    if chance < 0.3 and bench.array.parities:
        # Nothing is to spare, and some blocks are refused: they are made unreadable.
        for port in choose.sample(bench.array.ports[: bench.array.width], bench.tolerated):
            bench.fail(port)
        refuse_some(bench)
        bench.seen["refusing"] += 1
    elif chance < 0.7 and bench.tolerated:
        drives.write_errors = 0.3
        port = choose.choice(bench.array.ports[: bench.array.width])
        drives.may_fail = lambda one: one == port
        bench.seen["refusing"] += 1
    if not bench.tolerated:
        refuse_some(bench)


def refuse_some(bench: RecordBench) -> None:
    """Drives cannot store some blocks."""
    places = [*bench.places_of(some_rows(SPAN))]
    bench.drives.refusing = {*bench.random.sample(places, len(places) // 8)}
    bench.drives.spoils_refused = bench.random.random() < 0.7


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def tells_what_is_on_its_way(dut):
    """At any time while rows are written and walked."""
    bench = bench_of(dut)
    choose = bench.random
    await start(dut)
    make_trouble(bench)
    bench.set_limit(choose.choice((LEAST_LIMIT, LEAST_LIMIT, 60, NO_LIMIT)))
    only_walks = bench.array.mirrored and choose.random() < 0.5
    tasks = [] if only_walks else [cocotb.start_soon(bench.write_rows())]
    tasks += [cocotb.start_soon(bench.walk_around()) for _ in range(WALKERS + 3 * only_walks)]
    await cycles_pass(dut.clk, 4000 + choose.randrange(12_000))
    if bench.tolerated and not bench.seen["refusing"] and choose.random() < 0.5:
        bench.lose_drive()
        await cycles_pass(dut.clk, choose.randrange(2000))
    if choose.random() < 0.5:  # many rows are in the middle of their writes
        bench.drives.answers(False)
        await cycles_pass(dut.clk, choose.randrange(4000))
    enough = choose.randint(1, 18)
    for _ in range(3000):  # that there is something to tell
        if len(bench.on_their_way()) >= enough:
            break
        await cycles_pass(dut.clk, 1)
    await bench.recall()
    for task in tasks:
        task.cancel()
    dut._log.info("%s, most %d of %d", dict(bench.seen), bench.most, bench.limit)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def goes_on_within_any_limit(dut):
    """The limit changes, and is the least in most cases. All rows end."""
    bench = bench_of(dut)
    choose = bench.random
    await start(dut)
    make_trouble(bench)
    for _ in range(6):
        bench.set_limit(choose.choice((LEAST_LIMIT, LEAST_LIMIT, 60, NO_LIMIT)))
        walks = [cocotb.start_soon(bench.walk_around()) for _ in range(WALKERS)]
        await random_rows(bench, rows=25, span=SPAN)
        # Rows that need no reads, while no drive answers.
        bench.drives.answers(False)
        rows = choose.sample(some_rows(SPAN), 6)
        free = [row for row in rows if all(one.row != row for one in bench.slots.values())]
        for row in free[: CONFIG.rows - len(bench.slots)]:
            await bench.begin(row, joined=[*range(bench.strips(row))])
        await cycles_pass(dut.clk, 4000)
        bench.drives.answers(True)
        for walk in walks:
            walk.cancel()
        await wait_until(dut, lambda: not bench.slots, cycles=2 * PATIENCE, what="their ends")
    await bench.settle()
    bench.check_exposed()
    dut._log.info("%s, most %d", dict(bench.seen), bench.most)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def forgets_what_was_before_a_reset(dut):
    """After a reset nothing is on its way, whatever the memories hold."""
    bench = bench_of(dut)
    await start(dut)
    bench.drives.latency = 400
    task = cocotb.start_soon(bench.write_rows(recover=0))
    await wait_until(
        dut,
        lambda: bench.retired > 1 and len(bench.on_their_way()) > 6,
        cycles=PATIENCE,
        what="some blocks",
    )
    task.cancel()
    bench.nobody_is_there()
    bench.launch.paused = True
    dut.rst.value = dut.recalls.value = 1
    await cycles_pass(dut.clk, 3)
    dut.rst.value = 0
    for _ in range(2):
        one = await bench.told.receive(cycles=TOLD_CYCLES)
        found = one.array, one.port, one.block, one.line
        assert one.last, f"{found} is told"


def run(component: type, array: str, testcase: str, *, seed: int = 1) -> None:
    simulate(
        converted(component, config=CONFIG),
        name=f"{component.__name__}_{seed}",
        module=__name__,
        testcase=testcase,
        seed=seed,
        parameters={"ARRAY": array, "ACTIVE": "0.6"},
    )


TELLS, GOES_ON, FORGETS = (
    "tells_what_is_on_its_way",
    "goes_on_within_any_limit",
    "forgets_what_was_before_a_reset",
)
USUAL = ("raid0", "raid5", "raid10", "raid6_wide")
SLOW = ("raid1", "raid1e", "raid50", "triple")


@pytest.mark.parametrize("array", USUAL)
def test_row_records(array):
    for testcase in (TELLS, GOES_ON, FORGETS):
        run(Sequencer, array, testcase)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("array", [*USUAL, *SLOW])
def test_row_records_of_more_arrays(array, seed):
    for testcase in (TELLS, GOES_ON):
        run(Sequencer, array, testcase, seed=seed)


BUGS = {
    "what has ended is told": (
        "_note_end", "now.unwritten.bit_select(self._number, 1).eq(0)", "[]", "raid5", TELLS,
    ),
    "what will be sent again is not told": (
        "_note_end", "(event.opcode == Opcode.WRITE) & ~again", "event.opcode == Opcode.WRITE",
        "raid5", TELLS,
    ),
    "reads are told": ("_send_operations", "m.Elif(self._writing)", "m.Elif(1)", "raid5", TELLS),
    "lines of the row in the place of joined ones": (
        "_recall", "self._writing.eq(1)", "self._writing.eq(0)", "raid5", TELLS,
    ),
    "the last row slot is left out": (
        "_recall", "self._config.rows - 1", "self._config.rows - 2", "raid5", TELLS,
    ),
    "a copy of another line": (
        "_recall", "Mux(program.single, program.source, self._target.strip)",
        "self._target.strip", "raid10", TELLS,
    ),
    "it waits for the host": (
        "_unless_power_fails", "m.If(self.recalls)", "m.If(0)", "raid5", TELLS,
    ),
    "what a reset has left is told": (
        "_forget", "self._state_write.en.eq(1)", "self._state_write.en.eq(0)", "raid5", FORGETS,
    ),
    "the limit is passed over": (
        "_rest", "room & self._has_room):", "room):", "raid6_wide", GOES_ON,
    ),
    "room is lost": ("_reserve", "more - fewer", "more", "raid5", GOES_ON),
    "a block that is not stored does not expose": (
        "_note_end", "ends & (event.status != DriveStatus.GOOD)", "0", "raid0", GOES_ON,
    ),
    "a mark does not expose": (
        "_note_sent", "~((sent.has_line & stored) | walked)", "~(stored | walked)",
        "raid6_wide", GOES_ON,
    ),
    "FUA exposes": ("_note_sent", "sent.operation.fua | ", "", "raid5", GOES_ON),
    "no walk exposes": ("_note_sent", "self._walks & ~right", "self._walks", "raid5", GOES_ON),
    "all walks expose": ("_note_sent", "self._walks & ~right", "0", "raid5", GOES_ON),
}  # fmt: skip
"""What is planted: a method, what it has, and what it has then; the array, and the test."""

TRIES = 16
"""Seeds with which a bug must be found."""


def must_find(bug: str) -> None:
    """A bug is found with one of a few seeds."""
    method, old, new, array, testcase = BUGS[bug]
    mutant = planted(Sequencer, method, old, new)
    for seed in range(1, 1 + TRIES):
        try:
            run(mutant, array, testcase, seed=seed)
        except SimulationError as error:
            found = str(error)
            break
    else:
        found = "nothing"
    assert f"failed: {testcase}" in found, f"{bug}: {found}"


@pytest.mark.parametrize("bug", [*BUGS][:1])
def test_a_planted_bug_is_found(bug):
    must_find(bug)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [*BUGS][1:])
def test_planted_bugs_are_found(bug):
    must_find(bug)
