"""`hdl.kit.queue.Queue`: first in, first out, whatever both sides do, and as many as it holds."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start
from hdl.kit.queue import Queue

DEPTH = 6


@cocotb.test(timeout_time=100, timeout_unit="us")
async def keeps_the_order(dut):
    await start(dut)
    source = StreamSource(dut, "input", active=0.6)
    sink = StreamSink(dut, "output", active=0.5)
    watch = BusyWatch(dut, ["input"], ["output"])
    values = [random.randrange(1 << 16) for _ in range(400)]
    source.send_all(values)
    assert await sink.receive_all(len(values)) == values
    await RisingEdge(dut.clk)
    watch.check()


@cocotb.test(timeout_time=100, timeout_unit="us")
async def holds_so_many(dut):
    """While nobody takes anything it fills; then a payload leaves in every cycle."""
    await start(dut)
    source = StreamSource(dut, "input")
    sink = StreamSink(dut, "output", active=0.0)
    source.send_all(range(2 * DEPTH))
    await cycles_pass(dut.clk, 2 * DEPTH)
    assert sample(dut.level) == DEPTH and not sample(dut.input__ready)
    assert not sample(dut.filling) and not sample(dut.busy)
    sink.active = 1.0
    assert await sink.receive_all(2 * DEPTH) == list(range(2 * DEPTH))


class SkipsOne(Queue):
    """A planted bug: what comes in while it is full is lost."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.input.ready.eq(1)
        return m


def test_queue():
    simulate(Queue(16, DEPTH), name="queue", module=__name__)


def test_planted_bug_is_found():
    with pytest.raises(SimulationError, match="failed: keeps_the_order"):
        simulate(
            SkipsOne(16, DEPTH), name="queue_mutant", module=__name__, testcase="keeps_the_order"
        )
