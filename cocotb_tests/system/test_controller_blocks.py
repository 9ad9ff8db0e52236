"""The whole controller at other data widths, and behind the other hard block."""

import os
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.pcie.pcie_host import PcieHost
from cocotb_tests.pcie.series7_model import Series7Host
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.system.controller_bench import CONFIG, Bench, ObservedController
from cocotb_tests.system.controller_situations import busy_host
from hdl.config import Config
from hdl.flow.geometry import Level
from hdl.pcie.phy.series7 import RawStripper, Series7Shim
from hdl.pcie.phy.ultrascale import UltrascaleShim

BLOCKS = {"ultrascale": (UltrascaleShim, PcieHost), "series7": (Series7Shim, Series7Host)}
LANES = {64: 2, 128: 4, 256: 8, 512: 16}


def config_of(block: str, width: int) -> Config:
    """The bench's sizes at another width; the 7-series block's completion buffer is smaller."""
    config = replace(CONFIG, data_width=width)
    if block == "ultrascale":
        return config
    return replace(
        config, completion_address_bits=7, completion_headers=36, completion_bytes=461 * 16
    )


@cocotb.test(timeout_time=60, timeout_unit="ms")
async def serves_commands(dut):
    """Random accesses, a controller reset in the middle, a drive pulled, and all data right."""
    block, width = os.environ["BLOCK"], int(os.environ["WIDTH"])
    _, host = BLOCKS[block]
    bench = Bench(dut, config=config_of(block, width), rows=20, host=host, lanes=LANES[width])
    await bench.start()
    busy_host(bench)
    volume = await bench.create(Level.RAID6, range(5))
    workers = [cocotb.start_soon(bench.load(volume, 100, workers=12))]
    await ClockCycles(dut.clk, bench.random.randint(2000, 8000))
    await bench.nvme.stop()
    bench.abandon(volume, workers)
    await bench.nvme.start(bench.config.queue_pairs, bench.config.queue_depth)
    load = cocotb.start_soon(bench.load(volume, 30))
    await ClockCycles(dut.clk, bench.random.randint(500, 3000))
    bench.pull(2)
    await load
    await bench.finish(volume)


def run(block: str, width: int) -> None:
    shim, _ = BLOCKS[block]
    simulate(
        ObservedController(config=config_of(block, width), shim=shim),
        name=f"controller_{block}_{width}",
        module=__name__,
        testcase="serves_commands",
        parameters={"BLOCK": block, "WIDTH": str(width)},
    )


@pytest.mark.slow
def test_series7():
    run("series7", 128)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "width"),
    [("ultrascale", 64), ("ultrascale", 128), ("ultrascale", 512), ("series7", 64)],
)
def test_widths(block, width):
    run(block, width)


class SwapsNothing(RawStripper):
    """A planted bug: what the host's memory holds arrives in the byte order of the link."""

    def _payload(self, words):
        return words


@pytest.mark.slow
def test_planted_bug_is_found(monkeypatch):
    monkeypatch.setattr("hdl.pcie.phy.series7.RawStripper", SwapsNothing)
    with pytest.raises(SimulationError):
        run("series7", 128)
