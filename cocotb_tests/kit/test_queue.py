"""`hdl.kit.queue.Queue`: first in, first out, whatever both sides do, and as many as it holds."""

import os
import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start
from hdl.kit.queue import Queue

DEPTH = int(os.environ.get("DEPTH", "6"))


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
    if DEPTH > 1:  # else nothing is on its way to the output
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


@cocotb.test(timeout_time=100, timeout_unit="us")
async def takes_while_there_is_room(dut):
    """Who knows that there is room need not look."""
    await start(dut)
    held = 0
    for _ in range(600):
        dut.input__valid.value = gives = held < DEPTH and random.random() < 0.8
        dut.output__ready.value = takes = random.random() < random.choice((0, 0.3, 1))
        await RisingEdge(dut.clk)
        assert sample(dut.input__ready) == (held < DEPTH), f"{held} are in it"
        assert sample(dut.level) == held
        held += gives - (takes and sample(dut.output__valid))


class SkipsOne(Queue):
    """A planted bug: what comes in while it is full is lost."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.input.ready.eq(1)
        return m


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_queue(depth):
    simulate(
        Queue(16, depth),
        name=f"queue_{depth}",
        module=__name__,
        parameters={"DEPTH": str(depth)},
    )


def test_planted_bug_is_found():
    with pytest.raises(SimulationError, match="failed: keeps_the_order"):
        simulate(
            SkipsOne(16, DEPTH), name="queue_mutant", module=__name__, testcase="keeps_the_order"
        )
