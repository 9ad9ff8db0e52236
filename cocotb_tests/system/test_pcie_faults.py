"""A long random fault campaign at the PCIe edge of the whole controller.

While a load runs, host reads go wrong in every way that `cocotb_tests.pcie.hard_block` knows, and
the host sends requests that the card must refuse. The command that a fault hits fails with Data
Transfer Error, every other one succeeds with the right data, and nothing is left over.
"""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from cocotbext.pcie.core.tlp import CplStatus, TlpType

from cocotb_tests.pcie.hard_block import FAULTS, HARMLESS
from cocotb_tests.system.controller_bench import Bench, run_controller
from cocotb_tests.system.controller_situations import PAUSES, busy_host
from hdl.config import BLOCK_BYTES
from hdl.flow.geometry import Level
from sim.golden import nvme

WORKERS = 8
LONGEST = 16
FAULT_RATE = 0.03


@cocotb.test(timeout_time=2000, timeout_unit="ms")
async def faults_cost_their_commands(dut):
    bench = await Bench(dut, pauses=PAUSES).start()
    busy_host(bench)
    rng, reads = bench.random, bench.host.rc.reads
    volume = await bench.create(Level.RAID5, range(5))
    buffers = [bench.buffer(LONGEST) for _ in range(WORKERS)]
    size = (LONGEST + 1) * BLOCK_BYTES
    left = int(os.environ["COMMANDS"])
    failed = refused = 0

    def is_data(address: int) -> bool:
        return any(start <= address < start + size for start in buffers)

    def fault(tlp) -> str | None:
        return rng.choice(FAULTS) if is_data(tlp.address) and rng.random() < FAULT_RATE else None

    reads.fault = fault

    async def work(memory: int) -> None:
        nonlocal left, failed
        while left > 0:
            left -= 1
            blocks = rng.randint(1, LONGEST)
            first = rng.randint(0, len(volume.model) - blocks)
            address = memory + 4 * rng.randrange(BLOCK_BYTES // 4)
            queue = rng.randrange(len(bench.nvme.queues))
            if rng.random() < 0.3:
                status = await bench.read(volume, first, blocks, address, queue)
                assert status == 0, f"a read ended with {status:#x}"
                continue
            known = len(reads.planted)
            status = await bench.write(volume, first, blocks, address, queue)
            hits = [
                kind
                for kind, place in reads.planted[known:]
                if memory <= place < memory + size and kind != HARMLESS
            ]
            expected = nvme.DATA_TRANSFER_ERROR if hits else 0
            assert status == expected, f"status {status:#x} after {hits}"
            failed += bool(hits)

    async def disturb() -> None:
        nonlocal refused
        while left > 0:
            await ClockCycles(dut.clk, rng.randrange(50, 500))
            length = rng.randint(3, 32)
            (answer,) = await bench.host.request(
                TlpType.MEM_READ_64, 4 * rng.randrange(64), length=length, first_be=15, last_be=15
            )
            assert answer.status is CplStatus.CA
            refused += 1

    await bench.jumping(*(work(memory) for memory in buffers), disturb())
    reads.fault = None
    kinds = [kind for kind, _ in reads.planted]
    counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    dut._log.info("%d commands failed, %d requests refused; faults: %s", failed, refused, counts)
    assert failed
    assert refused
    await bench.load(volume, 8)
    await bench.finish(volume)


def run(*, commands: int, seed: int) -> None:
    run_controller(
        "faults_cost_their_commands", module=__name__, seed=seed, timeout=3000, commands=commands
    )


def test_faults():
    run(commands=24, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_many_faults(seed):
    run(commands=600, seed=seed)
