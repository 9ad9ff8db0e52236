"""Who is inside for volumes and arrays: random comings and goings, and every answer in time."""

import os
import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from cocotb_tests.array.array_models import Table
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSource, pack, sample, start
from hdl.array.references import References
from hdl.config import Config, small
from hdl.flow.reference import command_begin, reference, row_begin
from hdl.flow.table_read import volume

CONFIGS = {"board": Config(commands=64, rows=32, arrays=4, volumes=8), "small": small()}
CYCLES = 30_000
GRACE = 40
"""Cycles within which it may be too late for who comes not to be waited for."""
LATENCY = 60
"""Most cycles from the last end to the answer."""
MOST_MENDS = 20
"""Rows of an array that are to be mended and have no row slot yet: three queues of four, and eight
on their way."""


class Bench:
    """Commands and rows that come and go, and those that an answer must wait for."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut, self.config, self.random = dut, config, generator
        self.volumes = Table(dut, "volume_read")
        self.requests = StreamSource(dut, "quiesce", layout=reference(config))
        self.commands: dict[int, int] = {}
        self.rows: dict[int, tuple[int, bool]] = {}
        self.mends = [0] * config.arrays
        self.array_of: dict[int, int] = {}
        for name in ("slots__begun__valid", "slots__ended__valid", "takes", "gives"):
            getattr(dut, name).value = 0
        dut.exists.value = (1 << config.arrays) - 1
        if config.background:
            dut.notes.value = 0

    def own(self) -> None:
        """Volumes of arrays, some of none."""
        self.array_of = {
            number: self.random.randrange(self.config.arrays)
            for number in range(self.config.volumes)
            if self.random.random() < 0.8
        }
        self.volumes.entries = {
            number: pack(volume(self.config), valid=1, array=array)
            for number, array in self.array_of.items()
        }

    def delete_volumes(self, gone: int) -> None:
        """An array has no volumes any more."""
        self.array_of = {n: array for n, array in self.array_of.items() if array != gone}
        self.volumes.entries = {
            n: value for n, value in self.volumes.entries.items() if n in self.array_of
        }

    def step(self, pace: float, *, but: int | None) -> tuple[set, set]:
        """What goes in this cycle and what comes, of any array ``but`` one that is deleted."""
        dut, config, generator = self.dut, self.config, self.random
        left, came = set(), set()
        for name in ("slots__begun__valid", "slots__ended__valid", "takes", "gives"):
            getattr(dut, name).value = 0
        taken = set(self.commands)
        if self.commands and generator.random() < pace * generator.random() * 2:
            slot = generator.choice(list(self.commands))
            del self.commands[slot]
            dut.slots__ended__valid.value, dut.slots__ended__payload.value = 1, slot
            left.add(("command", slot))
        free = sorted({*range(config.commands)} - taken)
        if free and generator.random() < pace:
            slot, number = generator.choice(free), generator.randrange(config.volumes)
            dut.slots__begun__valid.value = 1
            dut.slots__begun__payload.value = pack(command_begin(config), slot=slot, volume=number)
            self.commands[slot] = number
            came.add(("command", slot))
        if self.rows and generator.random() < pace * generator.random() * 2:
            slot = generator.choice(list(self.rows))
            del self.rows[slot]
            dut.gives.value, dut.given.value = 1, slot
            left.add(("row", slot))
        elif generator.random() < pace:
            free = sorted({*range(config.rows)} - self.rows.keys())
            arrays = [array for array in range(config.arrays) if array != but]
            row = generator.choice(arrays), False
            waiting = [array for array, count in enumerate(self.mends) if count]
            if waiting and generator.random() < 0.5:
                row = generator.choice(waiting), True
            if free:
                slot = generator.choice(free)
                self.mends[row[0]] -= row[1]
                dut.takes.value = 1
                dut.taken.value = pack(
                    row_begin(config), slot=slot, array=row[0], mends=int(row[1])
                )
                self.rows[slot] = row
                came.add(("row", slot))
        if config.background:
            self.note(pace, but=but)
        return left, came

    def note(self, pace: float, *, but: int | None) -> None:
        """Rows are to be mended, and may be taken from the next cycle on."""
        notes = 0
        for index in range(len(self.dut.notes)):
            array = self.random.randrange(self.config.arrays)
            getattr(self.dut, f"noted__{index}").value = array
            rows = [row for row in self.rows.values() if row[0] == array and not row[1]]
            has_room = self.mends[array] < MOST_MENDS
            if self.random.random() < pace / 8 and (array != but or rows) and has_room:
                notes |= 1 << index
                self.mends[array] += 1
        self.dut.notes.value = notes


class Wait:
    """A request that has not been answered, and whom it must or may wait for."""

    def __init__(self, bench: Bench, *, of_array: int, goes: int, number: int):
        self.bench = bench
        self.fields = {"of_array": of_array, "goes": goes, "number": number}
        self.number, self.goes = number, goes
        self.array = number if of_array else None
        owned = {n for n, array in bench.array_of.items() if array == number}
        self.volumes = owned if of_array else {number}
        self.due = set(self.inside())
        self.maybe: set[tuple[str, int]] = set()
        self.age = self.idle = 0

    def inside(self) -> set[tuple[str, int]]:
        """Commands and rows of what is asked about that are inside, whenever they came."""
        commands, rows = self.bench.commands.items(), self.bench.rows.items()
        return {("command", slot) for slot, volume in commands if volume in self.volumes} | {
            ("row", slot) for slot, row in rows if row[0] == self.array
        }

    def follow(self, left: set[tuple[str, int]], came: set[tuple[str, int]]) -> None:
        """A cycle has passed, in which some ``left`` and then some ``came``."""
        self.due -= left
        self.maybe -= left
        if self.age < GRACE:
            self.maybe |= came & self.inside()
        self.age += 1
        self.idle = 0 if self.due or self.maybe or self.leftovers else self.idle + 1

    @property
    def leftovers(self) -> bool:
        """Rows of an array that goes for good."""
        return bool(self.goes and (self.bench.mends[self.number] or self.inside()))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def waits_for_all_that_was_inside(dut):
    """And for nobody else; who is of another volume or array, or comes later, holds up nothing."""
    config = CONFIGS[os.environ["CONFIG"]]
    generator = random.Random(int(os.environ["SEED"]))
    bench = Bench(dut, config, generator)
    await start(dut)
    asked: Wait | None = None
    answers = held = 0
    pace = 0.3
    bench.own()
    for cycle in range(CYCLES):
        if cycle % 500 == 0:
            pace = generator.choice((0.02, 0.3, 0.9))
        if asked is None and generator.random() < 0.05:
            of_array = generator.getrandbits(1)
            objects = config.arrays if of_array else config.volumes
            number = generator.randrange(objects)
            goes = int(of_array and generator.random() < 0.4)
            if goes:
                bench.delete_volumes(number)
            asked = Wait(bench, of_array=of_array, goes=goes, number=number)
            bench.requests.send(**asked.fields)
        left, came = bench.step(pace, but=asked.number if asked and asked.goes else None)
        if asked:
            asked.follow(left, came)
            held += bool(asked.due)
        await RisingEdge(dut.clk)
        if sample(dut.quiesce__valid) and sample(dut.quiesce__ready):
            assert asked, "an answer that nobody asked for"
            assert not asked.due and not asked.leftovers, f"{asked.fields}: too early"
            asked = None
            answers += 1
            if generator.random() < 0.3:
                bench.own()
        assert not asked or asked.idle < LATENCY, f"{asked.fields} is not answered"
        await FallingEdge(dut.clk)
    assert answers > 50 and held > CYCLES // 50


@cocotb.test(timeout_time=4, timeout_unit="us")
async def a_row_outlives_its_array(dut):
    """Planted bug of the tables: nobody has asked who is inside."""
    config = CONFIGS[os.environ["CONFIG"]]
    await start(dut)
    bench = Bench(dut, config, random.Random(1))
    bench.step(0, but=None)
    dut.takes.value, dut.taken.value = 1, pack(row_begin(config), slot=3, array=1, mends=0)
    await RisingEdge(dut.clk)
    dut.takes.value, dut.exists.value = 0, 1
    await ClockCycles(dut.clk, 4)


@pytest.mark.parametrize("config", CONFIGS)
def test_references(config):
    simulate(
        References(config=CONFIGS[config]),
        name=f"references_{config}",
        module=__name__,
        testcase="waits_for_all_that_was_inside",
        parameters={"CONFIG": config},
    )


def test_rows_of_no_array_are_found():
    with pytest.raises(SimulationError, match="a row has an array that is not there"):
        simulate(
            References(config=CONFIGS["board"]),
            name="references_board",
            module=__name__,
            testcase="a_row_outlives_its_array",
            parameters={"CONFIG": "board"},
        )


class WaitsForAll(References):
    """Planted bug: epochs of arrays do not turn."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.rows.epochs.eq(0)
        return m


def test_planted_bugs_are_found(monkeypatch):
    def refuses(name: str, bug: type[References]) -> None:
        with pytest.raises(SimulationError, match="waits_for_all_that_was_inside"):
            simulate(
                bug(config=CONFIGS["board"]),
                name=f"references_{name}",
                module=__name__,
                testcase="waits_for_all_that_was_inside",
                parameters={"CONFIG": "board"},
            )

    refuses("waits_for_all", WaitsForAll)
