"""Volumes of 512-byte sectors at the NVMe front end: formats, and any sectors of any block."""

import os

import cocotb
import pytest

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.nvme.nvme_model import contents
from cocotb_tests.runner import SimulationError
from hdl.flow.manage import ManageStatus
from hdl.nvme.commands import sector_span
from hdl.nvme.prp import prp_lists
from sim.golden import nvme, nvme_logs
from sim.golden.nvme import PAGE, SECTOR, Namespace

VOLUME_BLOCKS = 5000
PER_BLOCK = PAGE // SECTOR
VOLUME_SECTORS = VOLUME_BLOCKS * PER_BLOCK
GUARD = b"\xee"


def config():
    return bench_config(int(os.environ["DATA_WIDTH"]))


async def create(host, volume: int, array: int = 0, **fields) -> None:
    """Creates ``volume``; the namespace is ``volume`` + 1."""
    host.manage_answer = (ManageStatus.DONE, volume)
    await host.good(**nvme.create_volume(array, **fields))
    host.volumes[volume] = {"valid": 1, "array": array, "start": 0, "blocks": VOLUME_BLOCKS}


async def bench(dut, **options) -> Bench:
    """Namespace 1 has 4096-byte blocks, namespace 3 has sectors."""
    host = Bench(dut, config(), int(os.environ["SEED"]), **options)
    await host.reset()
    await host.enable()
    await create(host, 0)
    await create(host, 2, sectors=True)
    await host.create_pair(1, 16)
    return host


class Volume:
    """The bytes of namespace 3, as they should be."""

    def __init__(self, host: Bench):
        self._host = host
        self._blocks: dict[int, bytearray] = {}

    def _block(self, number: int) -> bytearray:
        return self._blocks.setdefault(number, bytearray(contents(2, number)))

    def read(self, sector: int, count: int) -> bytes:
        """``count`` sectors from ``sector``."""
        data = bytearray()
        for number in range(sector, sector + count):
            begin = number % PER_BLOCK * SECTOR
            data += self._block(number // PER_BLOCK)[begin : begin + SECTOR]
        return bytes(data)

    def write(self, sector: int, data: bytes) -> None:
        """Stores whole sectors from ``sector``."""
        for place in range(0, len(data), SECTOR):
            number = sector + place // SECTOR
            begin = number % PER_BLOCK * SECTOR
            block = self._block(number // PER_BLOCK)
            block[begin : begin + SECTOR] = data[place : place + SECTOR]

    def check(self) -> None:
        """Every block touched so far holds what it should, its other sectors too."""
        for number, block in self._blocks.items():
            stored = self._host.written.get((2, number)) or contents(2, number)
            assert stored == block, f"block {number}"


def put(host, pages, offset: int, data: bytes) -> None:
    position = 0
    for address, length in nvme.pieces(pages, offset, len(data)):
        host.memory[address : address + length] = data[position : position + length]
        position += length


def got(host, pages, offset: int, length: int) -> bytes:
    pieces = nvme.pieces(pages, offset, length)
    return b"".join(bytes(host.memory[a : a + n]) for a, n in pieces)


async def run(host, volume, opcode, sector, count, *, offset=0, list_room=512, wrong=None) -> int:
    """One command on namespace 3, checked in every byte of host memory; its status."""
    length = count * SECTOR
    hostless = opcode in (nvme.VERIFY, nvme.WRITE_ZEROES)
    pages, prp1, prp2 = host.sector_buffer(
        SECTOR if hostless else length, offset=offset, list_room=list_room
    )
    for page in pages:
        host.memory[page : page + PAGE] = GUARD * PAGE
    data = host.random.randbytes(length)
    if opcode == nvme.COMPARE:
        changed = bytearray(volume.read(sector, count))
        if wrong is not None:
            changed[wrong // 8] ^= 1 << wrong % 8
        data = bytes(changed)
    if opcode in (nvme.WRITE, nvme.COMPARE):
        put(host, pages, offset, data)
    before = [bytes(host.memory[page : page + PAGE]) for page in pages]
    if opcode == nvme.WRITE_ZEROES:
        volume.write(sector, bytes(length))
    elif opcode == nvme.WRITE:
        volume.write(sector, data)
    pair = host.queues[1]
    fields = nvme.read_write(opcode, 3, sector, count)
    identifier = host.place(pair, **fields, prp1=prp1, prp2=prp2)
    await host.ring(pair)
    code = (await host.result(pair, identifier)).code
    if opcode == nvme.READ:
        assert got(host, pages, offset, length) == volume.read(sector, count), f"{sector} {count}"
        put(host, pages, offset, GUARD * length)
    for page, expected in zip(pages, before, strict=True):
        assert host.memory[page : page + PAGE] == expected, "host memory beyond the transfer"
    host._pages = [page // PAGE for page in pages] + host._pages
    return code


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def data_units_count_sectors(dut):
    """First of all: the counters outlive a reset."""
    host = await bench(dut)
    volume = Volume(host)
    moved = 0

    async def units() -> int:
        dwords = (2 | (nvme_logs.SMART_BYTES // 4 - 1) << 16,)
        raw = await host.page_of(opcode=nvme.GET_LOG, dwords=dwords, length=512)
        return nvme_logs.Smart.unpack(raw).units_read

    for count in (1, 63, 64, 60, 33, *(64,) * 16):
        assert await run(host, volume, nvme.VERIFY, 5, count) == nvme.SUCCESS
        moved += count * SECTOR
        assert await units() == -(-moved // nvme_logs.UNIT_BYTES)
    await host.good(1, **nvme.read_write(nvme.VERIFY, 1, 0, 200))
    moved += 200 * PAGE
    assert await units() == -(-moved // nvme_logs.UNIT_BYTES)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def formats_and_settings(dut):
    host = await bench(dut)
    dut.drive_emulated.value = 0b0100

    async def identified(nsid: int) -> Namespace:
        raw = await host.page_of(opcode=nvme.IDENTIFY, nsid=nsid, dwords=(0,))
        found = Namespace.unpack(raw)
        assert found.formats == (PAGE, SECTOR)
        return found

    for array, drives in enumerate((0b0011, 0b1100)):
        host.manage_answer = (ManageStatus.DONE, array)
        await host.good(opcode=nvme.CREATE_ARRAY, dwords=(0, drives))
    for array in (0, 1):
        for emulation, physical in (
            (nvme.DEFAULT, PAGE if array == 1 else SECTOR),
            (nvme.NONE, SECTOR),
            (nvme.FORCE, PAGE),
        ):
            await create(host, 1, array, sectors=True, emulation=emulation)
            found = await identified(2)
            assert (found.size, found.format) == (VOLUME_SECTORS, 1)
            assert found.physical == physical, f"array {array}, setting {emulation}"
            raw = await host.page_of(opcode=nvme.LIST, dwords=(1,))
            assert raw[32 + 2] == 1 | (physical == PAGE) << 1
            # With 4096-byte blocks there is nothing to set.
            await create(host, 1, array, emulation=emulation)
            found = await identified(2)
            assert found == Namespace(
                size=VOLUME_BLOCKS, formats=(PAGE, SECTOR), format=0, physical=PAGE
            )
            raw = await host.page_of(opcode=nvme.LIST, dwords=(1,))
            assert raw[32 + 2] == 0
    assert (await identified(1)).format == 0 and (await identified(3)).format == 1
    common = await host.page_of(opcode=nvme.IDENTIFY, nsid=0xFFFF_FFFF, dwords=(0,))
    assert common[25] == 1 and common[130] == 12 and common[134] == 9
    drives = await host.page_of(opcode=nvme.LIST, dwords=(2,))
    assert [drives[32 * port] >> 4 & 1 for port in range(4)] == [0, 0, 1, 0]
    # A volume that could not be created changes no format, nor does one that is deleted.
    host.manage_answer = (ManageStatus.NO_SPACE, 2)
    await host.bad(nvme.NO_SPACE, **nvme.create_volume(0))
    assert (await identified(3)).format == 1
    for wrong in (0x200, 0x100 | 3 << 12, 0x800):
        await host.bad(nvme.INVALID_FIELD, opcode=nvme.CREATE_VOLUME, dwords=(wrong,))
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def every_sector_of_every_shape(dut):
    """Sweeps first sector, length, place in the page and list place, for reads and writes."""
    host = await bench(dut)
    volume = Volume(host)
    most = host.config.transfer_blocks * PER_BLOCK
    shapes = [
        (opcode, first, count, offset)
        for opcode in (nvme.READ, nvme.WRITE)
        for first in (0, 1, 7)
        for count in (1, 7, 8, 9, 17, most - 1, most)
        for offset in (0, 4, 1024, PAGE - SECTOR, PAGE - 4)
    ]
    for opcode, first, count, offset in host.random.sample(shapes, len(shapes) // 2):
        sector = host.random.randrange(VOLUME_BLOCKS - 20) * PER_BLOCK + first
        code = await run(
            host, volume, opcode, sector, count,
            offset=offset, list_room=host.random.choice((512, 1, 2, 3)),
        )  # fmt: skip
        assert code == nvme.SUCCESS, (opcode, first, count, offset)
    volume.check()
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def any_command_at_random(dut):
    host = await bench(dut, active=0.5)
    volume = Volume(host)
    most = host.config.transfer_blocks * PER_BLOCK
    region = VOLUME_SECTORS // 8
    opcodes = (nvme.READ, nvme.WRITE, nvme.WRITE_ZEROES, nvme.VERIFY, nvme.COMPARE)

    async def worker(which: int) -> None:
        generator = host.random
        for _ in range(10):
            opcode = generator.choice(opcodes)
            count = generator.choice((1, generator.randint(1, 20), generator.randint(1, most)))
            if opcode in (nvme.WRITE_ZEROES, nvme.VERIFY):
                count += generator.choice((0, 0, most, 2 * most))
            sector = which * region + generator.randrange(region - count)
            wrong = None
            if opcode == nvme.COMPARE and generator.random() < 0.5:
                wrong = generator.randrange(8 * SECTOR * count)
            code = await run(
                host, volume, opcode, sector, count,
                offset=generator.choice((0, 0, 4 * generator.randrange(1024))),
                list_room=generator.choice((512, 3, 1)),
                wrong=wrong,
            )  # fmt: skip
            expected = nvme.SUCCESS if wrong is None else nvme.COMPARE_FAILURE
            assert code == expected, (opcode, sector, count, wrong)

    for task in [cocotb.start_soon(worker(which)) for which in range(6)]:
        await task
    volume.check()
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def limits_count_sectors(dut):
    host = await bench(dut)
    most = host.config.transfer_blocks * PER_BLOCK
    page = host.page()

    async def bad(code, sector, count, opcode=nvme.READ, nsid=3):
        fields = nvme.read_write(opcode, nsid, sector, count)
        await host.bad(code, 1, **fields, prp1=page, prp2=host.page())

    for first in (0, 5):
        await bad(nvme.INVALID_FIELD, first, most + 1)
        await bad(nvme.INVALID_FIELD, first, 1 << 16)
    for opcode in (nvme.READ, nvme.WRITE, nvme.VERIFY, nvme.WRITE_ZEROES, nvme.COMPARE):
        for sector, count in (
            (VOLUME_SECTORS, 1), (VOLUME_SECTORS - 1, 2), (VOLUME_SECTORS - 3, 4), (1 << 43, 1),
            ((1 << 64) - 1, 1), ((1 << 64) - 4, 8), (1 << 63, 3),
        ):  # fmt: skip
            await bad(nvme.LBA_OUT_OF_RANGE, sector, count, opcode)
        fields = nvme.read_write(opcode, 3, VOLUME_SECTORS - 1, 1)
        if opcode != nvme.COMPARE:
            await host.good(1, **fields, prp1=page)
    # A namespace of blocks beside it has its own limits.
    await bad(nvme.LBA_OUT_OF_RANGE, VOLUME_BLOCKS, 1, nsid=1)
    assert not any(key[0] == 0 for key in host.written)
    # The error log names the sector.
    length = 2 * nvme_logs.ERROR_ENTRY_BYTES
    dwords = (1 | (length // 4 - 1) << 16,)
    raw = await host.page_of(opcode=nvme.GET_LOG, dwords=dwords, length=length)
    newest, before = nvme_logs.error_entries(raw)
    assert (newest.nsid, newest.block) == (1, VOLUME_BLOCKS)
    assert (before.nsid, before.block) == (3, 1 << 63)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def ranges_count_sectors(dut):
    host = await bench(dut)
    page = host.page()

    async def deallocate(code: int, nsid: int, *ranges) -> None:
        fields, data = nvme.dataset(nsid, ranges)
        host.memory[page : page + len(data)] = data
        answer = await host.run(1, **fields, prp1=page)
        assert answer.code == code, (nsid, ranges, answer)

    await deallocate(nvme.SUCCESS, 3, (VOLUME_SECTORS - 3, 3), (1, 9))
    await deallocate(nvme.LBA_OUT_OF_RANGE, 3, (0, 1), (VOLUME_SECTORS - 3, 4))
    await deallocate(nvme.LBA_OUT_OF_RANGE, 3, (1 << 43, 1))
    await deallocate(nvme.LBA_OUT_OF_RANGE, 3, ((1 << 64) - 1, 2))
    await deallocate(nvme.SUCCESS, 1, (VOLUME_BLOCKS - 3, 3))
    await deallocate(nvme.LBA_OUT_OF_RANGE, 1, (VOLUME_BLOCKS - 3, 4))
    await host.settle()


def test_nvme_sectors():
    run_front_end(__name__)


@pytest.mark.slow
def test_nvme_sectors_narrow():
    run_front_end(__name__, data_width=128)


@pytest.mark.slow
def test_pages_of_whole_blocks_are_caught(monkeypatch):
    """The list of an unaligned command is measured as if its blocks were whole."""
    monkeypatch.setattr(prp_lists, "SECTOR_SHIFT", prp_lists.PAGE_SHIFT)
    with pytest.raises(SimulationError, match="every_sector_of_every_shape"):
        run_front_end(
            __name__, name="nvme_mutant_measure", testcase="every_sector_of_every_shape"
        )


@pytest.mark.slow
def test_sectors_at_a_wrong_place_are_caught(monkeypatch):
    """Sectors lie half as far into their block."""
    monkeypatch.setattr(sector_span, "DWORD_SHIFT", sector_span.DWORD_SHIFT - 1)
    with pytest.raises(SimulationError, match="any_command_at_random"):
        run_front_end(__name__, name="nvme_mutant_place", testcase="any_command_at_random")
