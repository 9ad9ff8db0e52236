"""Where jobs are (`hdl.background.jobs`): boundaries of several arrays that move at once."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, sample, start, wait_until
from hdl.background.job_orders import JobOrder, job_order
from hdl.background.jobs import Jobs, JobState, job
from hdl.background.walker import SliceEnd, slice_request
from hdl.config import Config
from hdl.flow.walk import WalkKind

CONFIG = Config(rows=16, commands=16, arrays=4)
SLICES = 150
WAITS = 60
"""Longest from an order to its slice, and from an event to what it does."""


class Bench:
    """A walker in plain Python, arrays whose boundaries go back to 0, and what they should be."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        self.boundaries = [0] * CONFIG.arrays
        self.rewound = self.both = 0
        members = ("control__migrates_anew", "control__handed", "control__outcome",
                   "verdicts__rebuilding", "verdicts__halted", "verdicts__optimal",
                   "verdicts__hopeless", "advanced", "boundary", "finding", "found", "now",
                   "job_read__address", "boundary_read__0__address")  # fmt: skip
        for name in members:
            getattr(dut, name).value = 0
        dut.verdicts__settled.value = 1
        self.order = StreamSource(dut, "control__order", layout=job_order(CONFIG))
        self.slice = StreamSink(dut, "slice", layout=slice_request(CONFIG))
        self.slice_end = StreamSource(dut, "slice_end", layout=SliceEnd)
        self.rewind = StreamSource(dut, "rewind", active=0.5)

    async def read(self, array: int) -> int:
        """First row that is not rebuilt."""
        self.dut.boundary_read__0__address.value = array
        await ClockCycles(self.dut.clk, 3)
        return sample(self.dut.boundary_read__0__data)

    async def check(self) -> None:
        await self.rewind.drained()
        found = [await self.read(array) for array in range(CONFIG.arrays)]
        assert found == self.boundaries, f"{found}, not {self.boundaries}"

    async def walk(self, array: int, rows: int, others: list[int]) -> None:
        """A slice of a REBUILD, while nothing is rebuilt any more of ``others``."""
        dut, choose = self.dut, self.random
        dut.verdicts__rebuilding.value = 1 << array
        self.order.send(order=JobOrder.START, array=array, kind=WalkKind.REBUILD)
        asked = await self.slice.receive(cycles=WAITS)
        assert (asked.array, asked.kind) == (array, WalkKind.REBUILD)
        assert asked.first == self.boundaries[array], "it goes on elsewhere"
        for other in others:
            self.rewind.send(other)
            self.boundaries[other] = 0
            self.rewound += 1
        for _ in range(rows):
            await ClockCycles(dut.clk, choose.randrange(3))
            self.boundaries[array] += choose.randint(1, 9)
            dut.boundary.value = self.boundaries[array]
            dut.advanced.value = 1
            await RisingEdge(dut.clk)
            dut.advanced.value = 0
            self.both += sample(dut.rewind__valid) and sample(dut.advanced)
        await self.rewind.drained()
        self.order.send(order=JobOrder.STOP, array=array)
        await wait_until(dut, lambda: sample(dut.stop), cycles=WAITS, what="stop")
        self.slice_end.send(row=self.boundaries[array], complete=0, failed=0)
        await self.order.drained()
        await wait_until(dut, lambda: not sample(dut.busy), cycles=WAITS, what="rest")


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def goes_back(dut):
    """Boundaries go back to 0 while that of another array moves on, in every cycle of it."""
    bench = Bench(dut)
    await start(dut)
    await wait_until(dut, lambda: not sample(dut.busy), cycles=WAITS, what="the beginning")
    for _ in range(SLICES):
        array = bench.random.randrange(CONFIG.arrays)
        others = [n for n in range(CONFIG.arrays) if n != array and bench.random.random() < 0.4]
        await bench.walk(array, bench.random.randrange(12), others)
        await bench.check()
        dut.job_read__address.value = array
        await ClockCycles(dut.clk, 3)
        held = job().from_bits(sample(dut.job_read__data))
        assert JobState(held.state) == JobState.STOPPED and held.row == bench.boundaries[array]
    dut._log.info("%d boundaries went back, %d as another moved", bench.rewound, bench.both)
    assert bench.both > SLICES // 4


def test_jobs():
    simulate(Jobs(config=CONFIG), name="jobs", module=__name__)


class TakesAtOnce(Jobs):
    """Planted bug: an array whose boundary goes back does not wait for one that moves on."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.rewind.ready.eq(1)
        return m


def test_planted_bug_is_caught():
    with pytest.raises(SimulationError, match="not \\["):
        simulate(TakesAtOnce(config=CONFIG), name="jobs_at_once", module=__name__)
