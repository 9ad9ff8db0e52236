"""`hdl.parity.engine.ParityEngine` against the golden model and Intel ISA-L, bit for bit."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Mux
from cocotb.triggers import RisingEdge

from cocotb_tests.parity.parity_config import config_of
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, pack, sample, start
from hdl.parity import engine as engine_module
from hdl.parity.engine import (
    ParityEngine,
    drain_request,
    drained_beat,
    engine_beat,
)
from hdl.parity.field import Field
from sim import isal
from sim.golden.gf import RAID

TAG_BITS = 8
DRAIN_LATENCY = 5
"""Cycles from the last input beat taken to the first output beat taken."""


class Bench:
    """Feeds rows, drains them, and compares every block with the golden model and ISA-L."""

    def __init__(self, dut, *, active: float):
        self.config = config = config_of(os.environ)
        self.random = random.Random(int(os.environ["SEED"]))
        self.dut = dut
        self.beats = StreamSource(dut, "beats", active=active)
        self.drain = StreamSource(
            dut, "drain", layout=drain_request(config, TAG_BITS), active=active
        )
        self.output = StreamSink(
            dut, "output", layout=drained_beat(config, TAG_BITS), active=active
        )
        self.layout = engine_beat(config)
        self.expected: list[tuple[int, bytes]] = []
        self.beats_sent = 0

    def add_row(self, inputs: int, syndromes: list[int]) -> None:
        """Queues a row of random blocks and coefficients, and which syndromes to drain."""
        size = self.config.beats * self.config.beat_bytes
        blocks = [self.random.randbytes(size) for _ in range(inputs)]
        weights = [
            [self.random.choice([0, 1, self.random.randrange(256)]) for _ in range(inputs)]
            for _ in range(self.config.parities)
        ]
        for index, block in enumerate(blocks):
            self._add_block(
                block,
                coefficients=[row[index] for row in weights],
                first_input=int(index == 0),
                last_input=int(index == inputs - 1),
            )
        by_isal = isal.encode(weights, blocks)
        for place, syndrome in enumerate(syndromes):
            tag = self.random.randrange(1 << TAG_BITS)
            self.drain.send(syndrome=syndrome, release=int(place == len(syndromes) - 1), tag=tag)
            block = RAID.weigh(list(zip(weights[syndrome], blocks, strict=True)))
            assert block == by_isal[syndrome], "the golden model and ISA-L disagree"
            self.expected.append((tag, block))

    def _add_block(self, block: bytes, **fields) -> None:
        constant = pack(self.layout, **fields)
        place = self.layout["data"].offset
        size = self.config.beat_bytes
        for start_byte in range(0, len(block), size):
            beat = int.from_bytes(block[start_byte : start_byte + size], "little")
            self.beats.send(constant | beat << place)
            self.beats_sent += 1

    async def check(self) -> None:
        """Receives and compares everything; nothing may be left over."""
        for tag, block in self.expected:
            for number in range(self.config.beats):
                beat = await self.output.receive(cycles=200_000)
                size = self.config.beat_bytes
                wanted = int.from_bytes(block[number * size : (number + 1) * size], "little")
                assert (beat.tag, beat.beat) == (tag, number)
                assert beat.last == (number == self.config.beats - 1)
                assert beat.data == wanted, f"block with tag {tag}, beat {number}"
        await cycles_pass(self.dut.clk, 2 * DRAIN_LATENCY)
        assert self.beats.idle
        assert self.drain.idle
        assert self.output.idle
        assert not sample(self.dut.busy)


async def _transfers(dut, name: str, cycles: list[int]) -> None:
    """Notes the cycle number of each transfer of a stream."""
    valid, ready = getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")
    now = 0
    while True:
        await RisingEdge(dut.clk)
        now += 1
        if sample(valid) and sample(ready):
            cycles.append(now)


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def sums_are_exact(dut):
    await start(dut)
    bench = Bench(dut, active=float(os.environ.get("ACTIVE", "0.8")))
    parities = bench.config.parities
    for _ in range(int(os.environ["ROWS"])):
        count = bench.random.randrange(1, parities + 2)
        syndromes = [bench.random.randrange(parities) for _ in range(count)]
        bench.add_row(bench.random.randrange(1, 5), syndromes)
    await bench.check()


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def no_cycle_is_lost(dut):
    await start(dut)
    bench = Bench(dut, active=1.0)
    parities = bench.config.parities
    taken: list[int] = []
    sent: list[int] = []
    cocotb.start_soon(_transfers(dut, "beats", taken))
    cocotb.start_soon(_transfers(dut, "output", sent))
    rows = 4
    for _ in range(rows):
        bench.add_row(parities + 1, list(range(parities)))
    await bench.check()
    beats = bench.config.beats
    print(f"input: {len(taken)} beats in {taken[-1] - taken[0] + 1} cycles")
    assert taken[-1] - taken[0] + 1 == bench.beats_sent == len(taken)
    for row in range(rows):
        first, last = row * parities * beats, (row + 1) * parities * beats - 1
        assert sent[last] - sent[first] + 1 == parities * beats
        assert sent[first] - taken[(row + 1) * (parities + 1) * beats - 1] == DRAIN_LATENCY


def _simulate(width: int, parities: int, testcase: str, *, name: str = "engine", **more) -> None:
    parameters = {"DATA_WIDTH": str(width), "PARITIES": str(parities), "ROWS": "4", **more}
    simulate(
        ParityEngine(config=config_of(parameters), tag_bits=TAG_BITS),
        name=f"parity_{name}_w{width}_p{parities}",
        module=__name__,
        testcase=testcase,
        parameters=parameters,
    )


SIZES = [(64, 2), (128, 3), (256, 2), pytest.param(512, 4, marks=pytest.mark.slow), (256, 1)]


@pytest.mark.parametrize(("width", "parities"), SIZES)
def test_sums_are_exact(width, parities):
    _simulate(width, parities, "sums_are_exact", ROWS=str(width // 32))


@pytest.mark.parametrize(("width", "parities"), SIZES)
def test_no_cycle_is_lost(width, parities):
    _simulate(width, parities, "no_cycle_is_lost")


@pytest.mark.slow
def test_wrong_polynomial_is_caught(monkeypatch):
    monkeypatch.setattr(engine_module, "RAID_FIELD", Field(polynomial=0x12D, generator=2))
    with pytest.raises(SimulationError, match="block with tag"):
        _simulate(256, 2, "sums_are_exact", name="mutant_field")


@pytest.mark.slow
def test_stale_accumulator_is_caught(monkeypatch):
    def keep_words(select, then, other):
        return other if len(other) == width else Mux(select, then, other)

    width = 256
    monkeypatch.setattr(engine_module, "Mux", keep_words)
    with pytest.raises(SimulationError, match="failed"):
        _simulate(width, 2, "sums_are_exact", name="mutant_stale")
