"""md's superblock: against those that Linux writes, against mdadm, and against damage."""

import os
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import array, needs_linux
from cocotb_tests.metadata.mdadm import examined, needs_mdadm
from cocotb_tests.metadata.superblock_pages import (
    GOOD,
    SECTORS,
    bitmap_of,
    changed,
    hostile,
    random_superblock,
    unsealed,
)
from sim.golden.layout import LEFT_SYMMETRIC, Layout
from sim.golden.superblock import (
    CLEAN,
    EVERY_FEATURE,
    FAULTY,
    HEAD_BYTES,
    JOURNAL,
    MOST_DEVICES,
    PAGE_BYTES,
    SECTOR,
    SECTOR_BYTES,
    SPARE,
    Feature,
    RefusedSuperblockError,
    Superblock,
)
from sim.md.arrays import BLOCK, LEVELS, write_arrays

SEED = int(os.environ.get("SEED") or "1")
PLACE = slice(SECTOR * SECTOR_BYTES, SECTOR * SECTOR_BYTES + PAGE_BYTES)


def test_what_is_written_is_read():
    """Any superblock, and its role in it."""
    generator = random.Random(f"{SEED}/superblock")
    for _ in range(300):
        one = random_superblock(generator)
        page = one.pack()
        assert len(page) == PAGE_BYTES
        assert Superblock.unpack(page, sectors=SECTORS) == one
        assert one.role == one.roles[one.device_number]
    assert replace(one, device_number=len(one.roles)).role == SPARE


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (bytes(PAGE_BYTES), "no superblock"),
        (changed(magic=0x6D746962), "no superblock"),
        (changed(major_version=0), "another version"),
        (changed(super_offset=0), "belongs elsewhere"),
        (changed(features=EVERY_FEATURE + 1), "not known"),
        (changed(pad0=1), "not 0"),
        (changed(pad3=struct.pack("<I", 4096)), "not 0"),
        (changed(pad3=bytes(31) + b"\1"), "not 0"),
        (unsealed(max_devices=MOST_DEVICES + 1), "too many"),
        (unsealed(max_devices=0xFFFFFFFF), "too many"),
        (changed(data_offset=SECTOR), "within the superblock"),
        (changed(data_offset=(1 << 64) - 1), "beyond the drive"),
        (changed(data_size=9), "hardly any data"),
        (changed(data_size=SECTORS - 2047), "beyond the drive"),
        (changed(data_size=(1 << 64) - 1), "beyond the drive"),
        (changed(features=Feature.BAD_BLOCKS, bad_blocks_size=9), "longer than a page"),
        (changed(features=Feature.BAD_BLOCKS, bad_blocks_offset=0), "no place"),
        (changed(features=Feature.PPL | Feature.BITMAP), "partial parity"),
        (changed(features=Feature.PPL | Feature.MULTIPLE_PPLS), "partial parity"),
        (changed(features=Feature.RESHAPE | Feature.NEW_OFFSET, new_offset=-2047), "new data"),
        (replace(GOOD, roles=(JOURNAL,) * 128).pack(), "journal"),
    ],
)
def test_what_md_refuses_is_refused(page, why):
    """Each for its reason."""
    with pytest.raises(RefusedSuperblockError, match=why):
        Superblock.unpack(page, sectors=SECTORS)


def test_what_md_takes_is_taken():
    """At the limits of what it refuses."""
    for page in (
        changed(data_size=10, size=8),
        changed(data_size=SECTORS - 2048),
        changed(features=Feature.BAD_BLOCKS, bad_blocks_size=8),
        changed(features=Feature.RESHAPE | Feature.NEW_OFFSET, new_offset=-2040 + SECTOR),
        changed(features=Feature.JOURNAL),
        replace(GOOD, roles=(SPARE,) * MOST_DEVICES, data_offset=2048).pack(),
        replace(GOOD, roles=(), data_offset=2048).pack(),
    ):
        assert Superblock.unpack(page, sectors=SECTORS).pack() == page


def test_damage_is_found():
    """Any bit that is summed up is a wrong checksum, if it is not worse; others do not matter."""
    page = GOOD.pack()
    summed = HEAD_BYTES + 2 * len(GOOD.roles)
    for bit in range(8 * summed):
        damaged = bytearray(page)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RefusedSuperblockError):
            Superblock.unpack(bytes(damaged), sectors=SECTORS)
    beyond = page[:summed] + bytes(range(1, 256)) + page[summed + 255 :]
    assert Superblock.unpack(beyond, sectors=SECTORS) == GOOD


def test_hostile_pages_are_refused_or_read():
    """Random fields and lengths behind a checksum that is right: nothing else is raised."""
    generator = random.Random(f"{SEED}/hostile")
    taken = 0
    for _ in range(3000):
        whole = hostile(generator)
        try:
            one = Superblock.unpack(whole, sectors=SECTORS)
        except RefusedSuperblockError:
            continue
        taken += 1
        assert one.data_offset + one.data_size <= SECTORS
        assert one.pack()[:HEAD_BYTES] == whole[:HEAD_BYTES]
    assert 100 < taken < 2900


ARRAYS = (
    Layout("RAID0", 3, 4),
    Layout("RAID1", 2, 1),
    Layout("RAID5", 5, 16, rotation=LEFT_SYMMETRIC),
    Layout("RAID6", 6, 2),
    Layout("RAID10", 5, 2),
)
CODES = {LEFT_SYMMETRIC: 2}


@pytest.mark.slow
@needs_linux
def test_what_linux_writes_is_read(tmp_path: Path):
    """Superblocks of arrays that md has created and written: read, and written the same again. md
    has had them on drives that were longer than what is kept of them."""
    generator = random.Random(f"{SEED}/md")
    arrays = [array(generator, number, layout) for number, layout in enumerate(ARRAYS)]
    write_arrays(tmp_path, arrays)
    for one in arrays:
        layout, found = one.layout, []
        for number in range(layout.drives):
            page = (tmp_path / f"{one.name}.{number}.img").read_bytes()[PLACE]
            member = Superblock.unpack(page, sectors=SECTORS)
            assert member.pack() == page, one.name
            assert member.role == number
            found.append(member)
        assert len({member.device_uuid for member in found}) == layout.drives
        first = found[0]
        for member in found:
            alike = ("set_uuid", "set_name", "ctime", "level", "layout", "size", "chunk", "events")
            assert all(getattr(member, name) == getattr(first, name) for name in alike), one.name
        strip = layout.strip_blocks * BLOCK // SECTOR_BYTES
        assert first.level == LEVELS[layout.level]
        assert first.raid_disks == layout.drives
        assert first.chunk == (0 if layout.level == "RAID1" else strip)
        assert first.resync_offset == CLEAN
        assert first.data_offset == 2048
        assert first.data_size >= one.rows * BLOCK // SECTOR_BYTES
        if layout.parities:
            assert first.layout == CODES[layout.rotation]
        if layout.level == "RAID10":
            assert first.layout == 0x100 + layout.copies


@pytest.mark.slow
@needs_mdadm
def test_mdadm_reads_what_is_written(tmp_path: Path):
    """Field by field, of arrays of all kinds; and it tells a wrong checksum."""
    generator = random.Random(f"{SEED}/examine")
    for _ in range(60):
        one = random_superblock(generator)
        areas = {SECTOR: one.pack()}
        if one.features & Feature.BITMAP:
            # Without a bitmap mdadm takes that feature away, and then misses it in the checksum.
            areas[SECTOR + one.bitmap_offset] = bitmap_of(one).pack()
        told = examined(tmp_path, SECTORS, areas)
        assert told["Magic"] == "a92b4efc"
        assert told["Version"] == "1.2"
        assert told["Array UUID"].replace(":", "") == one.set_uuid.hex()
        assert told["Device UUID"].replace(":", "") == one.device_uuid.hex()
        assert told["Name"].split()[0] == one.set_name.decode()
        assert told["Raid Level"] == f"raid{one.level}"
        assert int(told["Raid Devices"]) == one.raid_disks
        assert told["Data Offset"] == f"{one.data_offset} sectors"
        assert int(told["Avail Dev Size"].split()[0]) == one.data_size
        assert int(told["Events"]) == one.events
        assert told["State"].split()[0] == ("clean" if one.resync_offset == CLEAN else "active")
        assert told["Checksum"].endswith("correct")
        assert int(told["Feature Map"], 16) == one.features
        if one.features & Feature.RECOVERY_OFFSET:
            assert told["Recovery Offset"] == f"{one.recovery_offset} sectors"
        role = told["Device Role"]
        assert role == {SPARE: "spare", FAULTY: "spare"}.get(one.role, f"Active device {one.role}")
    damaged = bytearray(GOOD.pack())
    damaged[100] ^= 1
    assert "expected" in examined(tmp_path, SECTORS, {SECTOR: bytes(damaged)})["Checksum"]
