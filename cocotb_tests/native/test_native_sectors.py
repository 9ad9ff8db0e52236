"""Volumes of 512-byte sectors on the whole controller: any sectors, many at once, drives lost."""

import os

import pytest

from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_drives import FAST
from hdl.config import BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK
from hdl.flow.geometry import Level
from hdl.flow.manage import Emulation
from sim.card.volume_model import DataError
from sim.golden.nvme import COMPARE_FAILURE, UNRECOVERED_READ
from sw.driver import raid
from sw.driver.commands import Command, Io, read_write

SEED = int(os.environ.get("SEED") or "1")
COMMANDS = 150
WRITE_ZEROES, VERIFY = 0x08, 0x0C

LEVELS = [
    pytest.param(Level.RAID0, 4, 0, {}, id="RAID0", marks=pytest.mark.slow),
    pytest.param(Level.RAID1, 3, 2, {}, id="RAID1"),
    pytest.param(Level.RAID10, 5, 1, {}, id="RAID1E"),
    pytest.param(Level.RAID5, 5, 1, {}, id="RAID5", marks=pytest.mark.slow),
    pytest.param(Level.RAID6, 8, 2, {}, id="RAID6", marks=pytest.mark.slow),
    pytest.param(Level.RAID5, 8, 1, {"spans": 2}, id="RAID50", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("level", "drives", "losses", "options"), LEVELS)
def test_random_sectors(level, drives, losses, options):
    """Each sector is as some order of the commands leaves it, also while drives go away."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(
                level, range(drives), sector_bytes=SECTOR_BYTES, **options
            )
            await card.load(volume, COMMANDS)
            for port in card.random.sample(range(drives // options.get("spans", 1)), losses):
                card.pull(port)
                await card.load(volume, COMMANDS // 2)
            await card.read_all(volume, 32 * SECTORS_PER_BLOCK - 3)
            return volume

        card.finish(card.run(main()))


def test_writers_in_one_block():
    """Commands on sectors of the same few blocks, beside writes of the whole blocks."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID5, range(4), sector_bytes=SECTOR_BYTES)
            done, running = card.card.transport.event(), 16

            async def work() -> None:
                nonlocal running
                address = card.buffer(2)
                for _ in range(20):
                    first = card.random.randrange(3 * SECTORS_PER_BLOCK)
                    count = card.random.choice((1, 1, 2, SECTORS_PER_BLOCK))
                    if count == SECTORS_PER_BLOCK:
                        first &= -SECTORS_PER_BLOCK
                    status = await card.write(volume, first, count, address, 0, fua=False)
                    assert status == 0
                running -= 1
                if not running:
                    done.set()

            for _ in range(running):
                card.card.transport.spawn(work())
            await done.wait()
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


@pytest.mark.slow
def test_other_commands():
    """Compare, Write Zeroes and Verify mean the sectors that they name, and no others."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID6, range(6), sector_bytes=SECTOR_BYTES)
            queue, memory = card.nvme.queues[0], card.card.transport.memory
            address = card.buffer(40)
            for _ in range(12):
                first = card.random.randrange(len(volume.model) - 700)
                count = card.random.randint(1, 600)
                zeros = [bytes(SECTOR_BYTES)] * count
                write = volume.model.begin_write(first, zeros)
                for opcode in (WRITE_ZEROES, VERIFY):
                    one = read_write(Io.READ, volume.namespace, first, count, 0, 0)
                    done = await queue.submit(Command(opcode, volume.namespace, dwords=one.dwords))
                    assert done.ok, done
                volume.model.end_write(write)
                count = min(count, 255)
                for wrong in (None, card.random.randrange(count * SECTOR_BYTES)):
                    data = bytearray(count * SECTOR_BYTES)
                    if wrong is not None:
                        data[wrong] ^= 1
                    memory.write(address + 4, bytes(data))
                    one = read_write(Io.COMPARE, volume.namespace, first, count, 0, 0)
                    done = await queue.transfer(one, address + 4, len(data))
                    assert done.status == (0 if wrong is None else COMPARE_FAILURE)
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


def test_block_that_cannot_be_read():
    """Sectors of a lost block cannot be written alone; the block as a whole can."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID0, range(2), sector_bytes=SECTOR_BYTES)
            card.spoil(volume, volume.layout.copies_of(5)[0])
            address, first = card.buffer(2), 5 * SECTORS_PER_BLOCK
            for sector, count, status in (
                (first + 3, 2, UNRECOVERED_READ),
                (first - 1, 1, 0),
                (first, SECTORS_PER_BLOCK, 0),
                (first + 3, 2, 0),
            ):
                found = await card.write(volume, sector, count, address, 0, fua=False)
                assert found == status, f"{count} sectors from {sector}: {found:#x}"
            await card.read_all(volume)
            return volume

        card.finish(card.run(main()))


def test_formats_are_listed():
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> None:
            array = await raid.create_array(card.nvme, Level.RAID1, (0, 1))
            for sector_bytes, emulation, physical in (
                (BLOCK_BYTES, Emulation.NONE, BLOCK_BYTES),
                (SECTOR_BYTES, Emulation.DEFAULT, SECTOR_BYTES),
                (SECTOR_BYTES, Emulation.FORCE, BLOCK_BYTES),
                (SECTOR_BYTES, Emulation.NONE, SECTOR_BYTES),
            ):
                namespace = await raid.create_volume(
                    card.nvme, array, sector_bytes=sector_bytes, emulation=emulation
                )
                found = await card.nvme.namespace(namespace)
                assert (found.block_bytes, found.physical_bytes) == (sector_bytes, physical)
                (listed,) = await raid.volumes(card.nvme)
                assert (listed.sector_bytes, listed.physical_bytes) == (sector_bytes, physical)
                assert listed.blocks * BLOCK_BYTES == found.blocks * sector_bytes
                await raid.delete_volume(card.nvme, namespace)
            for drive in await raid.drives(card.nvme):
                assert not drive.emulated

        card.run(main())
        card.finish()


def test_other_sectors_are_checked():
    """The golden volume sees a sector beside those that were written."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID0, range(2), sector_bytes=SECTOR_BYTES)
            place = volume.layout.copies_of(3)[0]
            port = volume.ports[place.position]
            data = bytearray(card.stored(port, place.row))
            data[-1] ^= 1
            card.store(port, place.row, bytes(data))
            with pytest.raises(DataError, match="block 31"):
                await card.read_all(volume)
            return volume

        volume = card.run(main())
        with pytest.raises(DataError, match="block 31"):
            card.check(volume)
