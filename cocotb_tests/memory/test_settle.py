"""`hdl.memory.settle.Settle`: every report in order, none before its line can be read."""

import os
import random
from collections import deque

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.memory.store_model import STORE_DELAY
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, sample, start
from hdl.kit.cut import Relay
from hdl.memory.settle import Settle

WIDTH = 9


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reports_wait(dut):
    chance = random.Random(int(os.environ["SEED"]))
    source = StreamSource(dut, "input")
    sink = StreamSink(dut, "output")
    watch = BusyWatch(dut, ["input"], ["output"])
    await start(dut)
    sent: deque[int] = deque()
    begun: deque[int] = deque()
    soonest = None
    for cycle in range(4000):
        calm = cycle % 1000 < 300
        source.active = 0.05 if calm else 0.8
        sink.active = 1.0 if calm else 0.6
        if not source.waiting and cycle < 3900:
            value = chance.getrandbits(WIDTH)
            source.send(value)
            sent.append(value)
        await RisingEdge(dut.clk)
        if sample(dut.input__valid) and sample(dut.input__ready):
            begun.append(cycle)
        if sample(dut.output__valid) and sample(dut.output__ready):
            age = cycle - begun.popleft()
            assert age >= STORE_DELAY, f"told {age} cycles after it was written"
            soonest = age if soonest is None else min(soonest, age)
        while len(sink):
            assert sink.receive_now() == sent.popleft()
    assert not sent and not begun
    assert soonest == STORE_DELAY, "all waited for longer than need be"
    assert not sample(dut.busy)
    watch.check()


class Hasty(wiring.Component):
    """A planted bug: a cycle is enough. ``silent``: it is as late as it must be, and never busy."""

    def __init__(self, *, silent: bool):
        self._silent = silent
        super().__init__(
            {
                "input": In(stream.Signature(WIDTH)),
                "output": Out(stream.Signature(WIDTH)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = Settle(WIDTH) if self._silent else Relay(WIDTH)
        connect(m, flipped(self.input), inner.input)
        connect(m, inner.output, flipped(self.output))
        if not self._silent:
            m.d.comb += self.busy.eq(inner.busy)
        return m


def test_settle():
    simulate(Settle(WIDTH), name="settle", module=__name__)


@pytest.mark.parametrize(
    ("silent", "message"),
    [
        (False, "cycles after it was written"),
        pytest.param(True, "was not busy", marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_caught(silent, message):
    with pytest.raises(SimulationError, match=message):
        simulate(Hasty(silent=silent), name=f"settle_mutant_{silent}", module=__name__)
