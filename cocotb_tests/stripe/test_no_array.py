"""Blocks that get something of an array that is not there, or has no members, stop the simulation.

Nobody sends such a thing. A row of width 0 would be walked for ever, and all other rows with it.
"""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import pack, start
from hdl.array.mapping.mapper import Mapper
from hdl.config import Config
from hdl.flow.geometry import geometry
from hdl.flow.table_read import volume
from hdl.stripe.dispatch import Dispatch
from hdl.stripe.gather.gather import Gather
from hdl.stripe.planning.row_planning import RowPlanning

CONFIG = Config(commands=64, rows=32, arrays=4, volumes=8)
CYCLES = 200
BLOCKS = {
    "mapper": (Mapper, "command", "geometry_read"),
    "dispatch": (Dispatch, "extent", "reads__geometry"),
    "gather": (Gather, "extent", "geometry_read"),
    "planning": (RowPlanning, "launch", "reads__geometry"),
}
"""Each block, the stream by which it gets the array, and the port by which it reads it."""

NO_ARRAY, NO_WIDTH = {"valid": 0, "width": 3}, {"valid": 1, "width": 0}
CASES = {
    "mapper-width": ("mapper", NO_WIDTH, "a command of an array of width 0"),
    "dispatch-array": ("dispatch", NO_ARRAY, "an extent of no array"),
    "dispatch-width": ("dispatch", NO_WIDTH, "an extent of an array of width 0"),
    "gather-array": ("gather", NO_ARRAY, "a row of no array gets a row slot"),
    "planning-array": ("planning", NO_ARRAY, "a row of no array is planned"),
    "planning-width": ("planning", NO_WIDTH, "a row of width 0 is planned"),
}


@cocotb.test(timeout_time=10, timeout_unit="us")
async def gets_one(dut):
    """All that the block is told is 0, but what it gets, and the array."""
    block, fields, _ = CASES[os.environ["CASE"]]
    _, given, read = BLOCKS[block]
    await start(dut)
    for name in (f"{given}__valid", "fetch__ready"):
        if hasattr(dut, name):
            getattr(dut, name).value = 1
    if block == "mapper":
        dut.volume_read__data.value = pack(volume(CONFIG), valid=1, blocks=1 << 20)
    data = getattr(dut, f"{read}__data")
    for _ in range(CYCLES):
        data.value = pack(geometry(CONFIG), **fields)
        await ClockCycles(dut.clk, 1)


@pytest.mark.parametrize("case", CASES)
def test_what_nobody_sends_is_found(case):
    block, _, message = CASES[case]
    with pytest.raises(SimulationError, match=message):
        simulate(
            BLOCKS[block][0](config=CONFIG),
            name=f"no_array_{block}",
            module=__name__,
            testcase="gets_one",
            parameters={"CASE": case},
        )
