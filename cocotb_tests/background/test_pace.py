"""The pace of background work: how long it is held, also as the clock wraps."""

import os
import random
from unittest.mock import patch

import cocotb
import pytest
from amaranth.hdl import C, Module, Value
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample, start
from hdl.background.pace import TIME_WIDTH, WHOLE, Pace
from hdl.config import TIME_BITS, Config
from hdl.kit.clock import NEVER, passed

BATCH_ROWS = 16
"""Rows of a batch (docs/background.md)."""

CONFIG = Config(data_width=64, ports=8, walk_window=32, background=True)

HANG = 1 << 28
"""Cycles for which a drive hangs: a second."""

DIVISION = 60
"""Cycles that the division takes at most."""


class Bench:
    """A walker that asks for rows as long as it is not held, and a clock."""

    def __init__(self, dut):
        self.dut = dut
        self.time = 0
        dut.active.value = 1
        dut.walking.value = 1
        dut.issued.value = 0
        dut.outstanding.value = 0
        dut.now.value = 0

    async def tick(self) -> None:
        await RisingEdge(self.dut.clk)
        self.jump(self.time + 1)

    def jump(self, time: int) -> None:
        self.time = time
        self.dut.now.value = time & ((1 << TIME_BITS) - 1)

    async def walk(self, rate: int, cycles: int) -> int:
        """Walks a batch that takes about ``cycles``; returns when it began."""
        dut = self.dut
        dut.rate.value = rate
        dut.outstanding.value = 1
        dut.issued.value = 1
        await self.tick()
        began = self.time
        for _ in range(BATCH_ROWS - 1):
            await self.tick()
        dut.issued.value = 0
        while self.time < began + cycles:
            await self.tick()
        dut.outstanding.value = 0
        await self.tick()
        await self.tick()
        return began

    async def batch(self, rate: int, cycles: int) -> int:
        """Walks a batch; returns cycles from its first row until the walker may go on."""
        dut = self.dut
        began = await self.walk(rate, cycles)
        if rate == WHOLE:
            assert not sample(dut.hold)
        waited = 0
        while sample(dut.hold):
            waited += 1
            assert waited < 40 * cycles * WHOLE // rate, "held for ever"
            await self.tick()
        assert sample(dut.deadline) == NEVER
        return self.time - began


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def keeps_to_its_rate(dut):
    chance = random.Random(f"{os.environ['SEED']}/pace")
    bench = Bench(dut)
    await start(dut)
    for wraps in [None] * 10 + list(range(-8, 9)) + [400, 1500]:
        rate = chance.choice((5, 30, 50, 99))
        cycles = chance.randrange(BATCH_ROWS + 2, 300)
        until = cycles * WHOLE // rate
        if wraps is not None:
            # The hold ends as the clock wraps, or not long before or after.
            bench.jump((1 << TIME_BITS) - until + wraps)
        took = await bench.batch(rate, cycles)
        late = 16 + 4 * WHOLE // rate  # four cycles more of a batch are held for so long
        assert until <= took + 4 and took <= max(until, cycles + DIVISION) + late, (
            f"{took} cycles instead of {until}, the clock wraps {wraps} cycles before the end"
        )
    await bench.batch(WHOLE, 40)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def ends_with_silence(dut):
    """Once there has been no host command for as long as the batch took, the rest is over."""
    chance = random.Random(f"{os.environ['SEED']}/silence")
    bench = Bench(dut)
    await start(dut)
    for _ in range(20):
        cycles = chance.randrange(DIVISION, 200)
        if chance.random() < 0.7:
            # The clock wraps in the rest, or not long before or after.
            bench.jump((1 << TIME_BITS) - chance.randrange(3 * cycles))
        dut.active.value = 1
        began = await bench.walk(1, cycles)
        took = bench.time - began
        last = bench.time
        for _ in range(chance.randrange(4)):
            # Not silent for long enough.
            dut.active.value = 0
            for _ in range(chance.randrange(1, took - 4)):
                await bench.tick()
            assert sample(dut.hold), "the host has hardly been silent"
            dut.active.value = 1
            for _ in range(chance.randrange(1, 20)):
                await bench.tick()
            last = bench.time
        dut.active.value = 0
        await bench.tick()
        await bench.tick()
        while sample(dut.hold):
            deadline = sample(dut.deadline)
            ahead = (deadline - last) % (1 << TIME_BITS)
            assert deadline == NEVER or ahead <= took + DIVISION
            await bench.tick()
            assert bench.time < last + took + DIVISION, "rests though the host is silent"
        assert bench.time >= last + took - 4, "goes on though the host has hardly been silent"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def takes_another_rate(dut):
    """A rate that is set in a rest counts for that rest."""
    chance = random.Random(f"{os.environ['SEED']}/rate")
    bench = Bench(dut)
    await start(dut)
    for rate in (WHOLE, 50, 20, WHOLE, 10):
        cycles = chance.randrange(DIVISION, 200)
        began = await bench.walk(1, cycles)
        took = bench.time - began
        for _ in range(chance.randrange(3 * DIVISION)):
            await bench.tick()
        set_at, until = bench.time, began + took * WHOLE // rate
        dut.rate.value = rate
        await bench.tick()
        while sample(dut.hold):
            await bench.tick()
            assert bench.time < max(until, set_at + DIVISION) + 5 * WHOLE // rate, "the old rate"
        assert bench.time >= until - 5 * WHOLE // rate, f"rests too shortly for {rate} %"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_hanging_drive_is_no_work(dut):
    """A batch that has lasted for longer than any work does causes no longer rest than work."""
    bench = Bench(dut)
    await start(dut)
    dut.rate.value = 30
    dut.issued.value = dut.outstanding.value = 1
    for _ in range(BATCH_ROWS):
        await bench.tick()
    dut.issued.value = 0
    for _ in range(8):
        await bench.tick()
    bench.jump(HANG)
    await bench.tick()
    dut.outstanding.value = 0
    for _ in range(DIVISION):
        await bench.tick()
    assert not sample(dut.hold), "rests for as long as a drive has hung"


class ComparesNumbers(Pace):
    """A time after the clock has wrapped is taken for one that has passed."""

    def elaborate(self, platform) -> Module:
        with patch("hdl.background.pace.passed", lambda now, time: now >= time):
            return super().elaborate(platform)


def test_pace():
    simulate(Pace(config=CONFIG), name="pace", module=__name__)


class WaitsForItsTime(Pace):
    """Planted bug: a rest ends by its own time only."""

    @property
    def _rested(self) -> Value:
        return passed(self.now, self._wake)


class KeepsItsRate(Pace):
    """Planted bug: a rest keeps the rate with which it began."""

    @property
    def _outdated(self) -> Value:
        return C(0)


class CountsAll(Pace):
    """Planted bug: all the time that a batch took counts."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self._elapsed[TIME_WIDTH:].any()):
            m.d.sync += self._began.eq(self.now - (1 << TIME_WIDTH))
        return m


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (ComparesNumbers, "keeps_to_its_rate"),
        pytest.param(WaitsForItsTime, "ends_with_silence", marks=pytest.mark.slow),
        pytest.param(KeepsItsRate, "takes_another_rate", marks=pytest.mark.slow),
        pytest.param(CountsAll, "a_hanging_drive_is_no_work", marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_caught(broken, test):
    with pytest.raises(SimulationError, match=f"failed: .*{test}"):
        simulate(broken(config=CONFIG), name=f"pace_{broken.__name__}", module=__name__)
