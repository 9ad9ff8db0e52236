"""I/O commands of the NVMe front end that move no host memory: Write Zeroes and Verify."""

import os

import cocotb
import pytest

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.nvme.nvme_model import contents
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import wait_until
from hdl.flow.host_command import HostOpcode, Status
from hdl.nvme.prp import prp
from sim.golden import nvme, nvme_logs
from sim.golden.nvme import PAGE

VOLUME_BLOCKS = 5000


def config():
    return bench_config(int(os.environ["DATA_WIDTH"]))


async def bench(dut, **options) -> Bench:
    host = Bench(dut, config(), int(os.environ["SEED"]), **options)
    entry = {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}
    host.volumes = {0: entry, 2: entry}
    await host.reset()
    await host.enable()
    await host.create_pair(1, 16)
    return host


def fields(host, opcode: int, nsid: int, block: int, blocks: int, **extra) -> dict:
    """A command whose PRPs are nonsense: nobody may look at them."""
    nonsense = {"prp1": host.random.getrandbits(64), "prp2": host.random.getrandbits(64)}
    return nvme.read_write(opcode, nsid, block, blocks, **extra) | nonsense


def watch(host) -> None:
    """Counts requests that move blocks."""
    host.moved = 0
    reads = next(sink for sink in host.sinks if sink.name == "host__read_request")
    writes = next(sink for sink in host.sinks if sink.name == "host__write_request")
    read, write = reads._callback, writes._callback

    def count_read(request):
        host.moved += request.kind.value != 1
        read(request)

    def count_write(request):
        host.moved += 1
        write(request)

    reads._callback, writes._callback = count_read, count_write


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def zeros_and_verifies_of_any_length(dut):
    host = await bench(dut)
    watch(host)
    most = host.config.transfer_blocks
    for blocks in (1, most - 1, most, most + 1, 2 * most + 3):
        block = host.random.randrange(VOLUME_BLOCKS - blocks)
        for opcode, inner in (
            (nvme.VERIFY, HostOpcode.READ),
            (nvme.WRITE_ZEROES, HostOpcode.WRITE),
        ):
            fua = host.random.random() < 0.5
            host.commands.clear()
            await host.good(1, **fields(host, opcode, 3, block, blocks, fua=fua))
            # Parts that together cover each block once, none beyond a transfer.
            covered = []
            for part in host.commands:
                assert part.opcode == inner and part.volume == 2 and part.fua == fua
                covered += range(part.block, part.block + part.blocks + 1)
            assert sorted(covered) == list(range(block, block + blocks))
            assert max(part.blocks for part in host.commands) < most
        for number in range(block, block + blocks):
            assert host.written[2, number] == bytes(PAGE), f"block {number} of {blocks}"
        for outside in (block - 1, block + blocks):
            assert (2, outside) not in host.written or host.written[2, outside] == bytes(PAGE)
    assert host.moved == 0
    # Zeros among ordinary accesses of the same lines, and admin pages that need the same writer.
    tasks = []
    for which in range(4):
        tasks.append(cocotb.start_soon(mix(host, which)))
    for _ in range(4):
        page = await host.page_of(opcode=nvme.IDENTIFY, dwords=(1,))
        assert page[4:24].strip()
    for task in tasks:
        await task
    await host.settle()


async def mix(host, which: int) -> None:
    """Writes, zeros, verifies and reads in a region of its own."""
    begin, generator = 700 * which, host.random
    for turn in range(2):
        pages, prp1, prp2 = host.buffer(8)
        written = [generator.randbytes(64) * (PAGE // 64) for _ in pages]
        for page, data in zip(pages, written, strict=True):
            host.memory[page : page + PAGE] = data
        block = begin + 20 * turn
        await host.good(
            1, **nvme.read_write(nvme.WRITE, 1, block, 8), prp1=prp1, prp2=prp2
        )
        first, count = generator.randrange(4), generator.randint(1, 12)
        await host.good(1, **fields(host, nvme.WRITE_ZEROES, 1, block + first, count))
        await host.good(1, **fields(host, nvme.VERIFY, 1, block, 12))
        for page in pages:
            host.memory[page : page + PAGE] = b"\xee" * PAGE
        await host.good(
            1, **nvme.read_write(nvme.READ, 1, block, 8), prp1=prp1, prp2=prp2
        )
        for number in range(8):
            zero = first <= number < first + count
            expected = bytes(PAGE) if zero else written[number]
            assert host.host_block(pages, 0, number) == expected
        host._pages = [page // PAGE for page in pages] + host._pages


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def errors_are_told(dut):
    host = await bench(dut)
    watch(host)

    async def bad(code, opcode, block=0, blocks=1, nsid=1, **extra):
        await host.bad(code, 1, **(fields(host, opcode, nsid, block, blocks) | extra))

    for opcode in (nvme.VERIFY, nvme.WRITE_ZEROES):
        for block, blocks in (
            (VOLUME_BLOCKS, 1),
            (VOLUME_BLOCKS - 40, 41),
            (0, 1 << 16),
            ((1 << 40) - 1, 1 << 16),
            (1 << 40, 1),
            (1 << 63, 9),
        ):
            await bad(nvme.LBA_OUT_OF_RANGE, opcode, block, blocks)
        await bad(nvme.INVALID_NAMESPACE, opcode, nsid=9)
        await bad(nvme.INVALID_FIELD, opcode, nsid=2)
        await bad(nvme.INVALID_FIELD, opcode, psdt=1)
    assert not host.written, "something was written before the range was known to be bad"
    # An error of any part ends the command.
    for status, code, opcode in (
        (Status.UNRECOVERED_READ, nvme.UNRECOVERED_READ, nvme.VERIFY),
        (Status.WRITE_FAULT, nvme.WRITE_FAULT, nvme.WRITE_ZEROES),
    ):
        for at in (100, 108):
            host.statuses = {(0, at): status}
            await bad(code, opcode, 100, 12)
        host.statuses = {}
        await host.good(1, **fields(host, opcode, 1, 100, 12))
    assert host.moved == 0
    # Verify counts as reads, Write Zeroes as nothing.
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.enable()
    await host.create_pair(1, 8)

    async def smart() -> nvme_logs.Smart:
        dwords = (2 | (nvme_logs.SMART_BYTES // 4 - 1) << 16,)
        raw = await host.page_of(opcode=nvme.GET_LOG, dwords=dwords, length=512)
        return nvme_logs.Smart.unpack(raw)

    before = await smart()
    for _ in range(2):
        await host.good(1, **fields(host, nvme.VERIFY, 1, 0, 125))
        await host.good(1, **fields(host, nvme.WRITE_ZEROES, 1, 0, 30))
    after = await smart()
    assert after.units_read == before.units_read + 2 and after.reads == before.reads + 2
    assert (after.units_written, after.writes) == (before.units_written, before.writes)
    assert contents(0, 0) != bytes(PAGE)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_reset_ends_long_commands(dut):
    """A disabled controller waits for the part that is inside, not for all of them."""
    host = await bench(dut)
    host.volumes[0] = {"valid": 1, "array": 0, "start": 0, "blocks": 1 << 20}
    pair = host.queues[1]
    for opcode in (nvme.WRITE_ZEROES, nvme.VERIFY):
        host.place(pair, **fields(host, opcode, 1, 0, 1 << 16))
    await host.ring(pair)
    await wait_until(dut, lambda: len(host.commands) > 6, cycles=20_000, what="parts")
    await host.write32(nvme.CC, 0)
    inside = len(host.commands)
    await host.wait_status(0, polls=3000)
    assert len(host.commands) <= inside + 2 and not pair.done
    await host.enable()
    await host.create_pair(1, 8)
    await host.good(1, opcode=nvme.FLUSH, nsid=1)
    await host.settle()


@pytest.mark.parametrize("data_width", [pytest.param(64, marks=pytest.mark.slow), 256])
def test_nvme_hostless(data_width):
    run_front_end(__name__, data_width=data_width)


@pytest.mark.slow
def test_parts_that_overlap_are_caught(monkeypatch):
    monkeypatch.setattr(prp, "PART_STEP", 0)
    with pytest.raises(SimulationError, match="zeros_and_verifies_of_any_length"):
        run_front_end(
            __name__, name="nvme_mutant_parts", testcase="zeros_and_verifies_of_any_length"
        )
