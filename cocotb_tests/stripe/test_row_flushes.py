"""Flushes for rows: every row is told, by a flush that began after it had come and has all that it
needs, however many rows come and when."""

import os
import random
from collections import deque
from collections.abc import Iterator

import cocotb
import pytest
from amaranth.hdl import Module, Signal
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    every_cycle,
    sample,
    start,
    unpack,
)
from hdl.config import MAX_DRIVES, small
from hdl.stripe.rows.row_flushes import RowFlushes, flush_for_row

CONFIG = small()
ROUNDS = 60
TOLD_CYCLES = 2_000
"""Cycles in which the last rows of a round are told."""


class Bench:
    """Rows that ask, and drives that are flushed."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(os.environ["SEED"])
        self.free = list(range(CONFIG.rows))
        self.rows: deque[tuple[int, int, int]] = deque()
        """Rows that have come and have not been told: slot, drives, and when they came."""
        self.cycle = self.told = self.flushes = self.most = 0
        self.delay = 1
        self.began = self.asked = self.stored = 0
        self.flushing = False
        self.request = StreamSource(dut, "request", layout=flush_for_row(CONFIG))
        self.answer = StreamSource(dut, "told")
        self.ask = StreamSink(dut, "ask", callback=self._ask)
        self.done = StreamSink(dut, "done", layout=flush_for_row(CONFIG), callback=self._done)
        every_cycle(dut.clk, self._watch())

    def come(self) -> None:
        """Another row needs some drives."""
        slot = self.free.pop(self.random.randrange(len(self.free)))
        self.request.send(slot=slot, ports=self.random.randrange(1, 1 << CONFIG.ports))

    def _watch(self) -> Iterator[None]:
        """Notes rows as they are taken."""
        dut, layout = self.dut, flush_for_row(CONFIG)
        valid, ready, payload = dut.request__valid, dut.request__ready, dut.request__payload
        while True:
            yield
            self.cycle += 1
            if sample(valid) and sample(ready):
                row = unpack(layout, sample(payload))
                self.rows.append((row.slot, row.ports, self.cycle))

    def _ask(self, ports: int) -> None:
        assert not self.flushing, "a flush begins before the one before it has ended"
        self.asked, self.began, self.flushing = ports, self.cycle, True
        self.flushes += 1
        cocotb.start_soon(self._flush())

    async def _flush(self) -> None:
        await cycles_pass(self.dut.clk, self.random.randint(1, self.delay))
        self.stored = self.random.getrandbits(CONFIG.ports) & self.asked
        self.flushing = False
        self.answer.send(self.stored)

    def _done(self, row) -> None:
        slot, ports, came = self.rows.popleft()
        assert row.slot == slot, f"row {row.slot} is told, and {slot} came before it"
        assert came <= self.began, f"row {slot} is told of a flush that began before it came"
        assert ports & ~self.asked == 0, f"row {slot} needs {ports:b}, not {self.asked:b}"
        assert row.ports == self.stored, f"row {slot} is told of another flush"
        self.free.append(slot)
        self.told += 1


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def every_row_is_told(dut):
    """Rows come in any cycle, some as a flush begins, some while others are told."""
    bench = Bench(dut)
    await start(dut)
    sent = 0
    for _ in range(ROUNDS):
        bench.delay = bench.random.choice((1, 4, 12, 60))
        often = bench.random.choice((0.05, 0.3, 0.9))
        for port in (bench.request, bench.ask, bench.done):
            port.active = bench.random.choice((1.0, 0.6, 0.2))
        for _ in range(bench.random.randrange(50, 300)):
            if bench.free and bench.random.random() < often:
                bench.come()
                sent += 1
            await RisingEdge(dut.clk)
            bench.most = max(bench.most, len(bench.rows))
        for _ in range(TOLD_CYCLES):
            if bench.told == sent:
                break
            await RisingEdge(dut.clk)
        assert bench.told == sent, f"{len(bench.rows)} rows wait for ever"
    await cycles_pass(dut.clk, 4)
    assert not sample(dut.busy), "busy though nobody waits"
    dut._log.info("%d rows, %d flushes, %d at once", sent, bench.flushes, bench.most)
    assert bench.most == CONFIG.rows and bench.flushes < sent


def test_row_flushes():
    simulate(RowFlushes(config=CONFIG), name="row_flushes", module=__name__)


class TakesAlways(RowFlushes):
    """Planted bug: a row that comes as a flush begins is not counted."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.request.ready.eq(1)
        return m


class AsksForTheLast(RowFlushes):
    """Planted bug: only what the last row needs is flushed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        last = Signal(MAX_DRIVES)
        with m.If(self.request.valid & self.request.ready):
            m.d.sync += last.eq(self.request.payload.ports)
        m.d.comb += self.ask.payload.eq(last)
        return m


@pytest.mark.parametrize(
    "broken", [TakesAlways, pytest.param(AsksForTheLast, marks=pytest.mark.slow)]
)
def test_planted_bugs_are_found(broken):
    with pytest.raises(SimulationError, match="failed: every_row_is_told"):
        simulate(broken(config=CONFIG), name=f"row_flushes_{broken.__name__}", module=__name__)
