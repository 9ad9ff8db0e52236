"""The NVMe front end's I/O: queues, PRPs, data, errors, and how fast commands go through."""

import dataclasses
import os
from types import SimpleNamespace

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from cocotb.utils import get_sim_time

from cocotb_tests.nvme.nvme_bench import Bench, bench_config
from cocotb_tests.nvme.nvme_model import contents
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import CLOCK_PERIOD_NS, sample
from hdl.flow.host_command import HostOpcode, Status
from hdl.nvme.codes import DATA_PATH_CODES, StatusCode
from hdl.nvme.commands import slots
from hdl.nvme.front_end import NvmeFrontEnd
from hdl.nvme.prp import prp_lists
from sim.golden import nvme
from sim.golden.nvme import PAGE

VOLUME_BLOCKS = 5000
PER_LINK_BLOCK = 147
"""Cycles of a 4 KiB block on PCIe 3.0 x8 at 250 MHz."""


def config():
    return bench_config(int(os.environ["DATA_WIDTH"]))


async def bench(dut, **options) -> Bench:
    host = Bench(dut, config(), int(os.environ["SEED"]), **options)
    entry = {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}
    host.volumes = {0: entry, 2: entry}
    await host.reset()
    await host.enable()
    return host


async def transfer(host, queue, opcode, nsid, block, blocks, *, offset=0, list_room=512, **extra):
    """Runs a read or write and compares every byte."""
    pages, prp1, prp2 = host.buffer(blocks, offset=offset, list_room=list_room)
    data = [host.random.randbytes(64) * (PAGE // 64) for _ in range(blocks)]
    for page in pages:
        host.memory[page : page + PAGE] = b"\xee" * PAGE
    if opcode == nvme.WRITE:
        for number, content in enumerate(data):
            position = 0
            for address, length in nvme.segments(pages, offset, number):
                host.memory[address : address + length] = content[position : position + length]
                position += length
    pair = host.queues[queue]
    fields = nvme.read_write(opcode, nsid, block, blocks, **extra)
    identifier = host.place(pair, **fields, prp1=prp1, prp2=prp2)
    await host.ring(pair)
    answer = await host.result(pair, identifier)
    assert answer.code == nvme.SUCCESS, answer
    for number in range(blocks):
        key = (nsid - 1, block + number)
        if opcode == nvme.WRITE:
            assert host.written[key] == data[number], f"block {number} of {blocks}"
        else:
            expected = host.written.get(key) or contents(*key)
            assert host.host_block(pages, offset, number) == expected, f"block {number}"
    host._pages = [page // PAGE for page in pages] + host._pages


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def every_prp_shape(dut):
    host = await bench(dut)
    await host.create_pair(1, 5)
    most = host.config.transfer_blocks
    block = 0
    for offset in (0, 4, 2048, PAGE - 4):
        for blocks in (1, 2, 3, most):
            for list_room in (512, 2, 1) if blocks > 1 else (512,):
                for opcode in (nvme.WRITE, nvme.READ):
                    await transfer(
                        host, 1, opcode, 3, block, blocks, offset=offset, list_room=list_room
                    )
                block += blocks
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def every_error(dut):
    host = await bench(dut)
    await host.create_pair(1, 8)
    config = host.config
    page = host.page()

    async def bad(code, opcode=nvme.READ, nsid=1, block=0, blocks=1, **fields):
        fields.setdefault("prp1", page)
        await host.bad(code, 1, **(nvme.read_write(opcode, nsid, block, blocks) | fields))

    for opcode in (0x03, 0x04, 0x06, 0x0A, 0x0D, 0x80, 0xFF):
        await bad(nvme.INVALID_OPCODE, opcode=opcode)
    for opcode in (nvme.READ, nvme.WRITE, nvme.FLUSH):
        await bad(nvme.INVALID_FIELD, opcode=opcode, psdt=1)
        await bad(nvme.INVALID_FIELD, opcode=opcode, fuse=1)
        for nsid in (0, config.volumes + 1, 0xFFFF_FFFF):
            await bad(nvme.INVALID_NAMESPACE, opcode=opcode, nsid=nsid)
    for opcode in (nvme.READ, nvme.WRITE):
        await bad(nvme.INVALID_FIELD, opcode=opcode, blocks=config.transfer_blocks + 1)
        await bad(nvme.INVALID_FIELD, opcode=opcode, blocks=1 << 16)
        await bad(nvme.LBA_OUT_OF_RANGE, opcode=opcode, block=1 << 40)
        for low in (1, 2, 3):
            await bad(nvme.INVALID_PRP_OFFSET, opcode=opcode, prp1=page + low)
        await bad(nvme.INVALID_PRP_OFFSET, opcode=opcode, blocks=2, prp2=page + 8)
        await bad(nvme.INVALID_PRP_OFFSET, opcode=opcode, blocks=3, prp2=page + 4)
        # A bad entry in a list, and a bad pointer to its second page.
        for which in (0, 2, 3, 6):
            _, prp1, prp2 = host.buffer(8, list_room=4)
            at = prp2 + 8 * which
            if which > 3:
                follow = int.from_bytes(host.memory[prp2 + 24 : prp2 + 32], "little")
                at = follow + 8 * (which - 3)
            host.memory[at : at + 2] = bytes((8, host.memory[at + 1]))
            await bad(nvme.INVALID_PRP_OFFSET, opcode=opcode, blocks=8, prp1=prp1, prp2=prp2)
    assert not host.commands, "a bad command reached the data path"
    # The data path's own.
    await bad(nvme.INVALID_FIELD, nsid=2)
    await bad(nvme.LBA_OUT_OF_RANGE, block=VOLUME_BLOCKS)
    for status, code in (
        (Status.UNRECOVERED_READ, nvme.UNRECOVERED_READ),
        (Status.WRITE_FAULT, nvme.WRITE_FAULT),
        (Status.INTERNAL_ERROR, nvme.INTERNAL_ERROR),
        (Status.DATA_TRANSFER_ERROR, nvme.DATA_TRANSFER_ERROR),
    ):
        host.statuses[0, 77] = status
        await bad(code, block=77)
    # Host memory that cannot be read: data, and a list.
    host.poisoned = {page // PAGE}
    await bad(nvme.DATA_TRANSFER_ERROR, opcode=nvme.WRITE)
    await bad(nvme.DATA_TRANSFER_ERROR, blocks=8, prp1=host.page(), prp2=page)
    host.poisoned = set()
    # After more errors than there are slots everything still works.
    for opcode in (nvme.WRITE, nvme.READ):
        await transfer(host, 1, opcode, 1, 5, 8, offset=64, fua=opcode == nvme.WRITE)
        assert host.commands[-1].fua == (opcode == nvme.WRITE)
    await host.good(1, opcode=nvme.FLUSH, nsid=3)
    assert host.commands[-1].opcode == HostOpcode.FLUSH and host.commands[-1].volume == 2
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def unreadable_entries_are_fatal(dut):
    host = await bench(dut)
    pair = await host.create_pair(1, 8)
    host.poisoned = {pair.sq // PAGE}
    host.place(pair, opcode=nvme.FLUSH, nsid=1)
    await host.ring(pair)
    await host.wait_status(nvme.CSTS_FATAL, mask=nvme.CSTS_FATAL)
    host.poisoned = set()
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.enable()
    await host.create_pair(1, 8)
    await host.good(1, opcode=nvme.FLUSH, nsid=1)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def doorbells_are_misused(dut):
    host = await bench(dut)
    pair = await host.create_pair(1, 8)
    await host.good(1, opcode=nvme.FLUSH, nsid=1)
    base = nvme.DOORBELLS
    for address, value in (
        (base + 8, 8),
        (base + 8, 0xFFFF),
        (base + 8 + 4, 5),
        (base + 8 + 4, 8),
        (base + 8 + 4, 0),
        (base + 8 * 2, 3),
        (base + 8 * 2 + 4, 1),
        (base + 8 * (host.config.queue_pairs + 1), 1),
        (base + 0xFF8, 1),
        (base, 99),
    ):
        await host.write32(address, value)
    await host.settle()
    for _ in range(20):
        await host.good(1, opcode=nvme.FLUSH, nsid=1)
    # Both doorbells of a pair in one access.
    host.completions[1].automatic = False
    identifier = host.place(pair, opcode=nvme.FLUSH, nsid=1)
    both = pair.sq_tail | host.completions[1].head << 32
    await host.write64(base + 8, both)
    await host.result(pair, identifier)
    await host.ring_head(1)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def full_completion_queues_hold_only_themselves(dut):
    host = await bench(dut)
    pair = await host.create_pair(1, 16, cq_entries=4)
    other = await host.create_pair(2, 8)
    host.completions[1].automatic = False
    placed = [host.place(pair, opcode=nvme.FLUSH, nsid=1) for _ in range(12)]
    await host.ring(pair)
    await ClockCycles(dut.clk, 2000)
    assert len(pair.done) == 3 and not sample(dut.busy)
    for _ in range(10):
        await host.good(2, opcode=nvme.FLUSH, nsid=1)
    while pair.waiting:
        await host.ring_head(1)
        await ClockCycles(dut.clk, 500)
    for identifier in placed:
        assert (await host.result(pair, identifier)).code == nvme.SUCCESS
    assert not other.waiting
    await host.ring_head(1)
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def many_queues_at_random(dut):
    host = await bench(dut, active=0.5)
    sizes = (2, 5, host.config.queue_depth)
    for number, entries in enumerate(sizes, 1):
        await host.create_pair(number, entries, cq_entries=host.random.randint(2, entries))
    region = VOLUME_BLOCKS // 16

    async def worker(number: int, which: int) -> None:
        generator = host.random
        for _ in range(8):
            blocks = generator.randint(1, host.config.transfer_blocks)
            # Workers keep to regions of their own, so that data is predictable.
            block = which * region + generator.randrange(region - blocks)
            offset = generator.choice((0, 0, 4 * generator.randrange(1024)))
            for opcode in generator.choice(((nvme.WRITE, nvme.READ), (nvme.READ,))):
                await transfer(
                    host, number, opcode, generator.choice((1, 3)), block, blocks,
                    offset=offset, list_room=generator.choice((512, 3, 1)),
                )  # fmt: skip

    tasks = []
    for number, entries in enumerate(sizes, 1):
        for _ in range(min(entries - 1, 6)):
            tasks.append(cocotb.start_soon(worker(number, len(tasks))))
    for task in tasks:
        await task
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def wrong_completions_are_caught(dut):
    """The checks of the bench see a wrong address, phase, identifier, and an overrun."""
    host = await bench(dut)
    pair = await host.create_pair(1, 2)
    identifier = host.place(pair, opcode=nvme.FLUSH, nsid=1)

    def entry(address=pair.cq, phase=1, named=identifier):
        data = named << 96 | phase << 112 | 1 << 80
        return SimpleNamespace(address=address, dwords=4, message=0, data=data)

    for wrong in (
        entry(address=pair.cq + 16),
        entry(phase=0),
        entry(named=identifier ^ 1),
        SimpleNamespace(address=pair.cq, dwords=4, message=0, data=entry().data | 7 << 80),
    ):
        saved = dataclasses.replace(host.completions[1])
        with pytest.raises(AssertionError):
            host._post(wrong)
        host.completions[1] = saved
    host.completions[1].automatic = False
    host._post(entry())
    pair.waiting[identifier] = host.queues[0]
    with pytest.raises(AssertionError, match="overrun"):
        host._post(entry(address=pair.cq + 16))


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def commands_per_second(dut):
    """Cycles per 4 KiB command with everything around the front end ideal."""
    host = await bench(dut, active=1.0)
    host.latency = 8
    entries = host.config.queue_depth
    count = 60
    for number in (1, 2):
        await host.create_pair(number, entries)
    _, prp1, _ = host.buffer(1)
    for opcode in (nvme.READ, nvme.WRITE):
        for number in (1, 2):
            pair = host.queues[number]
            for block in range(count):
                host.place(pair, **nvme.read_write(opcode, 1, block, 1), prp1=prp1)
        begin = get_sim_time("ns")
        for number in (1, 2):
            await host.ring(host.queues[number])
        while any(host.queues[n].waiting for n in (1, 2)):
            await ClockCycles(dut.clk, 1)
        cycles = (get_sim_time("ns") - begin) / CLOCK_PERIOD_NS / (2 * count)
        dut._log.info(
            f"{'read' if opcode == nvme.READ else 'write'}: {cycles:.1f} cycles a 4 KiB command, "
            f"{host.config.commands} slots; the link takes {PER_LINK_BLOCK}"
        )
        assert cycles < PER_LINK_BLOCK
        for number in (1, 2):
            host.queues[number].done.clear()
    await host.settle()


@pytest.mark.parametrize("data_width", [64, 256])
def test_nvme_io(data_width):
    simulate(
        converted(NvmeFrontEnd, config=bench_config(data_width)),
        name=f"nvme_w{data_width}",
        module=__name__,
        parameters={"SEED": "1", "DATA_WIDTH": str(data_width)},
    )


@pytest.mark.slow
def test_missing_list_hop_is_caught(monkeypatch):
    monkeypatch.setattr(prp_lists, "ENTRIES_PER_PAGE", 2 * prp_lists.ENTRIES_PER_PAGE)
    with pytest.raises(SimulationError, match="every_prp_shape"):
        simulate(
            NvmeFrontEnd(config=bench_config()),
            name="nvme_mutant_hop",
            module=__name__,
            testcase="every_prp_shape",
            parameters={"SEED": "1", "DATA_WIDTH": "256"},
        )


@pytest.mark.slow
def test_wrong_status_is_caught(monkeypatch):
    wrong = DATA_PATH_CODES | {Status.UNRECOVERED_READ: StatusCode.SUCCESS}
    monkeypatch.setattr(slots, "DATA_PATH_CODES", wrong)
    with pytest.raises(SimulationError, match="every_error"):
        simulate(
            NvmeFrontEnd(config=bench_config()),
            name="nvme_mutant_status",
            module=__name__,
            testcase="every_error",
            parameters={"SEED": "1", "DATA_WIDTH": "256"},
        )
