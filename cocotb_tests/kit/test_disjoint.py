"""What is read of a memory where it is written: of use only where the memory promises the old."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import simulate
from cocotb_tests.streams import sample, start
from hdl.config import Config
from hdl.kit.disjoint import DISJOINT
from hdl.nvme.prp.prp_lists import ListMemory
from sim.verilog import to_rtlil

WIDTH = 12
DEPTH = 8
RUBBISH = (1 << WIDTH) - 1


class Both(wiring.Component):
    """A memory with one port each way, marked ``DISJOINT`` or not."""

    def __init__(self, *, disjoint: bool):
        self._attributes = DISJOINT if disjoint else None
        super().__init__(
            {
                "write": In(1),
                "target": In(range(DEPTH)),
                "data": In(WIDTH),
                "source": In(range(DEPTH)),
                "found": Out(WIDTH),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=WIDTH, depth=DEPTH, init=[], attrs=self._attributes
        )
        into, out = memory.write_port(), memory.read_port()
        m.d.comb += [
            into.en.eq(self.write),
            into.addr.eq(self.target),
            into.data.eq(self.data),
            out.addr.eq(self.source),
            self.found.eq(out.data),
        ]
        return m


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_and_writes(dut):
    chance = random.Random(int(os.environ["SEED"]))
    disjoint = os.environ["DISJOINT"] == "True"
    held = [0] * DEPTH
    await start(dut)
    collisions = 0
    for _ in range(400):
        write, target = chance.random() < 0.7, chance.randrange(DEPTH)
        data, source = chance.randrange(RUBBISH), chance.randrange(DEPTH)
        dut.write.value, dut.target.value = int(write), target
        dut.data.value, dut.source.value = data, source
        await RisingEdge(dut.clk)
        expected = held[source]
        if write and source == target:
            collisions += 1
            expected = RUBBISH if disjoint else expected
        if write:
            held[target] = data
        dut.write.value = 0
        await RisingEdge(dut.clk)
        assert sample(dut.found) == expected
    assert collisions > 10


@pytest.mark.parametrize("disjoint", [True, False])
def test_collisions(disjoint):
    simulate(
        Both(disjoint=disjoint),
        name="collisions",
        module=__name__,
        parameters={"DISJOINT": str(disjoint)},
    )


@pytest.mark.parametrize(("transfer_blocks", "disjoint"), [(4, False), (8, True)])
def test_lists_of_several_slots_in_a_beat(transfer_blocks, disjoint):
    """A beat that is read for one slot is written for another: block RAM may give anything of it.

    The simulator undefines only what is written, so it cannot tell.
    """
    config = Config(data_width=512, commands=16, transfer_blocks=transfer_blocks)
    text = to_rtlil(ListMemory(config=config))
    assert ("no_rw_check" in text) == disjoint
