"""Which reads are gathered, against a model that knows every command that is outstanding."""

import os
import random
from collections import Counter, deque
from dataclasses import dataclass

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, pack, sample, start
from cocotb_tests.stripe.stripe_extents import split
from cocotb_tests.stripe.stripe_models import ArrayModel
from hdl.config import Config
from hdl.flow.extent import extent
from hdl.flow.geometry import geometry
from hdl.flow.host_command import HostOpcode
from hdl.stripe.read_streams import ReadStreams

CONFIG = Config(
    data_width=64, ports=8, lines=64, banks=4, commands=64, rows=16, operations=64, arrays=2
)

ARRAYS = {
    "raid5": ArrayModel(width=5, parities=1, strip_shift=3),
    "raid60": ArrayModel(width=4, parities=2, spans=2, strip_shift=2),
    "narrow": ArrayModel(width=3, parities=1, strip_shift=0),
}
COMMANDS = 400


@dataclass
class Stream:
    """What the model knows of a stream: commands that began its last two stripes."""

    latest: int | None = None
    before: int | None = None
    gathers: bool = False


class Bench:
    """Commands of streams, and which of them are outstanding."""

    def __init__(self, dut, array: ArrayModel, *, seed: int):
        self.dut = dut
        self.array = array
        self.random = random.Random(seed)
        self.slots = deque(range(CONFIG.commands))
        self.outstanding: dict[int, int] = {}
        self.streams: dict[int, Stream] = {}
        self.commands = 0
        self.counts: Counter[tuple[bool, bool]] = Counter()
        dut.impaired.value = 2
        dut.note.value = 0
        dut.ended__valid.value = 0

    async def end(self, command: int) -> None:
        """A command completes."""
        slot = self.outstanding.pop(command)
        self.dut.ended__valid.value = 1
        self.dut.ended__payload.value = slot
        await RisingEdge(self.dut.clk)
        self.dut.ended__valid.value = 0
        self.slots.append(slot)
        await RisingEdge(self.dut.clk)

    async def ask(self, fields: dict) -> bool:
        """What is said of an extent, as soon as it has to be."""
        self.dut.extent.value = pack(extent(CONFIG), array=1, **fields)
        await RisingEdge(self.dut.clk)
        self.dut.geometry.value = pack(geometry(CONFIG), **self.array.geometry(CONFIG))
        self.dut.note.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.note.value = 0
        self.dut.geometry.value = pack(geometry(CONFIG), **self.array.geometry(CONFIG))
        await cycles_pass(self.dut.clk, 2)
        return bool(sample(self.dut.gathers))

    async def read(self, block: int, blocks: int) -> int:
        """A command, whose number is returned; counts what was said against what holds."""
        number, slot = self.commands, self.slots.popleft()
        self.commands += 1
        self.outstanding[number] = slot
        stream = self.streams.pop(block, Stream())
        for one in split(self.array, block, blocks):
            if one["ordinal"] == 0 and one["row"] % (1 << self.array.strip_shift) == 0:
                before = stream.before
                stream.gathers = before in self.outstanding and before != number
                stream.before, stream.latest = stream.latest, number
            said = await self.ask({"slot": slot, "opcode": HostOpcode.READ, **one})
            self.counts[stream.gathers, said] += 1
        self.streams[block + blocks] = stream
        return number


def bench_of(dut) -> Bench:
    seed = int(os.environ["SEED"])
    print(f"seed {seed}")
    return Bench(dut, ARRAYS[os.environ["ARRAY"]], seed=seed)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def knows_how_far_a_stream_is_ahead(dut):
    """One stream with a changing number of commands outstanding: exactly as the model."""
    bench = bench_of(dut)
    await start(dut)
    head, depth = 3, 1
    under_way: deque[int] = deque()
    for _ in range(COMMANDS):
        if bench.random.random() < 0.03:
            depth = bench.random.choice((1, 2, 4, 8, 16, 32))
        while len(under_way) >= depth:
            await bench.end(under_way.popleft())
        blocks = bench.random.choice((1, 4, 8, 8, 8, 16))
        under_way.append(await bench.read(head, blocks))
        head += blocks
    print(f"(should gather, gathers): {dict(bench.counts)}")
    assert not bench.counts[True, False] and not bench.counts[False, True]
    assert bench.counts[True, True] > 50 and bench.counts[False, False] > 50


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def tells_streams_apart(dut):
    """Several streams of their own depths between random reads: none is gathered that should not
    be, and few are forgotten."""
    bench = bench_of(dut)
    await start(dut)
    streams = [(1000 * number, depth, deque()) for number, depth in enumerate((1, 2, 12, 24))]
    for _ in range(COMMANDS // 4):
        for at, (head, depth, under_way) in enumerate(streams):
            while len(under_way) >= depth:
                await bench.end(under_way.popleft())
            blocks = bench.random.choice((4, 8, 8))
            under_way.append(await bench.read(head, blocks))
            streams[at] = head + blocks, depth, under_way
        if bench.random.random() < 0.2:
            await bench.end(await bench.read(10_000 + bench.random.randrange(5000), 2))
    print(f"(should gather, gathers): {dict(bench.counts)}")
    assert not bench.counts[False, True]
    assert bench.counts[True, True] > 4 * bench.counts[True, False]


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def gathers_only_what_it_helps(dut):
    """Neither reads of arrays that have lost nothing, nor what has been tried, nor writes."""
    bench = bench_of(dut)
    await start(dut)
    head = 0
    for _ in range(40):
        await bench.read(head, 8)
        head += 8
    (one,) = split(bench.array, head, 1)
    one["slot"] = bench.slots[0]
    assert await bench.ask({**one, "opcode": HostOpcode.READ})
    for tried in ({"tried": 1}, {"again": 1}, {"medium": 1}):
        assert not await bench.ask({**one, "opcode": HostOpcode.READ, "recover": tried})
    assert not await bench.ask({**one, "opcode": HostOpcode.WRITE})
    dut.impaired.value = 1
    assert not await bench.ask({**one, "opcode": HostOpcode.READ})


WORK = (
    "knows_how_far_a_stream_is_ahead",
    "tells_streams_apart",
    "gathers_only_what_it_helps",
)


class ForgetsNothing(ReadStreams):
    """A planted bug: commands that have completed count as outstanding."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.ages.write.enable.eq(0)
        return m


class GathersAll(ReadStreams):
    """A planted bug: all is gathered."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.gathers.eq(1)
        return m


MUTANTS = {
    ForgetsNothing: "knows_how_far_a_stream_is_ahead",
    GathersAll: "gathers_only_what_it_helps",
}


def decide(component, *, array: str, testcase) -> None:
    simulate(
        component(config=CONFIG),
        name=component.__name__,
        module=__name__,
        testcase=testcase,
        parameters={"ARRAY": array, "SEED": os.environ.get("SEED") or "1"},
    )


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[pytest.mark.slow] if array == "raid5" else [])
        for array in ARRAYS
    ],
)
def test_read_streams(array):
    decide(ReadStreams, array=array, testcase=WORK)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.slow
def test_planted_bug_is_caught(mutant):
    with pytest.raises(SimulationError, match=f"failed: {MUTANTS[mutant]}"):
        decide(mutant, array="raid5", testcase=MUTANTS[mutant])
