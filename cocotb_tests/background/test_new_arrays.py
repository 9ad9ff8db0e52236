"""An array that is made in the place of another: nothing of the one before is left in it."""

import os
import random
from dataclasses import replace

import cocotb
from cocotb.triggers import ClockCycles

from cocotb_tests.background.background_bench import CONFIG, Assembly, Bench
from cocotb_tests.runner import simulate
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode
from hdl.flow.walk import WalkKind

MANY = replace(CONFIG, ports=16)
WIDTH = 13
"""Drives of an array that takes long to be judged: each place begins a group of its own."""


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def early_rows_are_marked_by_the_new_size(dut):
    """Rows walked as soon as the array is there, before it could be judged, are not forgotten."""
    host = Bench(dut, random.Random(int(os.environ["SEED"])), MANY)
    rows = {WIDTH: 1 << 20, WIDTH + 1: 24, WIDTH + 2: 1 << 20}
    for port, count in rows.items():
        getattr(dut, f"capacity__{port}").value = DATA_OFFSET_BLOCKS + count
    await host.begin()
    await host.create(Level.RAID10, *range(WIDTH), copies=WIDTH - 1)
    large = await host.create(Level.JBOD, WIDTH)
    await host.rest()
    await host.good(ManageOpcode.DELETE_ARRAY, array=large)
    host.marks = True
    small = await host.create(Level.RAID1, WIDTH + 1, WIDTH + 2, assumed=0)
    assert small == large
    await host.rest()
    job = await host.job(small)
    assert (job["marked"], job["chunk"]) == (24, 1)
    host.marks = False
    host.log.clear()
    host.pull(WIDTH + 2)
    await ClockCycles(dut.clk, 20)
    host.plug(WIDTH + 2)
    await host.rest()
    await host.good(ManageOpcode.RE_ADD, array=small, position=1)
    await host.rest()
    rebuilt = {row.row for row in host.log if row.kind == WalkKind.REBUILD}
    assert rebuilt == set(range(24)) and host.state(small) == ArrayState.OPTIMAL


def test_new_arrays():
    simulate(Assembly(config=MANY), name="new_arrays", module=__name__)
