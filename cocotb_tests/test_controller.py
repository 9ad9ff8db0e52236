"""The whole controller under cocotbext-pcie: driver, root complex, drives and golden volumes."""

import cocotb

from cocotb_tests.controller_bench import CONFIG, Bench, ObservedController
from cocotb_tests.runner import simulate
from hdl.array.interface import Level
import os

LIMIT = {"timeout_time": 2, "timeout_unit": "ms"}


@cocotb.test(**LIMIT)
async def random_accesses(dut):
    bench = await Bench(dut, pauses=0.2).start()
    print("started", bench.host.cycle, flush=True)
    bench.host.rc.reads.latency_ns = (0, 1500)
    bench.host.rc.reads.shuffle = True
    bench.host.rc.reads.split = "random"
    volume = await bench.create(Level[os.environ.get("LEVEL", "RAID10")], range(6))
    print("created", bench.host.cycle, flush=True)
    await bench.load(volume, 20)
    print("loaded", bench.host.cycle, flush=True)
    await bench.finish(volume)
    print("cycles", bench.host.cycle)


def test_controller():
    simulate(ObservedController(config=CONFIG), name="controller", module=__name__,
             testcase="random_accesses")
