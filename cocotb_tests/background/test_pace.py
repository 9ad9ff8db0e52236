"""The pace of background work: how long it is held, also as the clock wraps."""

import os
import random
from unittest.mock import patch

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample, start
from hdl.background.pace import BATCH_ROWS, WHOLE, Pace
from hdl.config import TIME_BITS, Config
from hdl.kit.clock import NEVER

CONFIG = Config(data_width=64, ports=8, walk_window=32, background=True)

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

    async def batch(self, rate: int, cycles: int) -> int:
        """Walks a batch that takes about ``cycles``; returns cycles from its first row until the
        walker may go on."""
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


class ComparesNumbers(Pace):
    """A time after the clock has wrapped is taken for one that has passed."""

    def elaborate(self, platform) -> Module:
        with patch("hdl.background.pace.passed", lambda now, time: now >= time):
            return super().elaborate(platform)


def test_pace():
    simulate(Pace(config=CONFIG), name="pace", module=__name__)


def test_planted_bug_is_caught():
    with pytest.raises(SimulationError, match="failed: keeps_to_its_rate"):
        simulate(ComparesNumbers(config=CONFIG), name="pace_compares_numbers", module=__name__)
