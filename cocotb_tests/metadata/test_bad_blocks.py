"""md's log of bad blocks: what is written is read, and Linux reads it."""

import os
import random
import re
from pathlib import Path

import pytest

from cocotb_tests.metadata.mdadm import mdadm, needs_mdadm, write_drive
from sim.golden.bad_blocks import MOST_ENTRIES, MOST_SECTORS, pack_bad_blocks, unpack_bad_blocks
from sim.golden.superblock import PAGE_BYTES, SECTOR, Feature, Superblock

SEED = int(os.environ.get("SEED") or "1")


def random_ranges(generator: random.Random, count: int) -> list[range]:
    """So many ranges in order, apart from each other."""
    ranges, start = [], 0
    for _ in range(count):
        start += generator.randint(1, 1 << 20)
        length = generator.choice((1, 8, generator.randint(1, MOST_SECTORS), MOST_SECTORS))
        ranges.append(range(start, start + length))
        start += length
    return ranges


def test_what_is_written_is_read():
    """None, some, and as many as there is room for."""
    generator = random.Random(f"{SEED}/bad")
    for count in (0, 1, 7, MOST_ENTRIES - 1, MOST_ENTRIES):
        ranges = random_ranges(generator, count)
        page = pack_bad_blocks(ranges)
        assert len(page) == PAGE_BYTES
        assert unpack_bad_blocks(page) == ranges
        wide = [range(8 * one.start, 8 * one.stop) for one in ranges]
        assert unpack_bad_blocks(page, shift=3) == wide


@pytest.mark.parametrize(
    "ranges",
    [
        random_ranges(random.Random(1), MOST_ENTRIES + 1),
        [range(8, 8)],
        [range(8, 8 + MOST_SECTORS + 1)],
        [range(8, 24, 2)],
    ],
    ids=["many", "empty", "long", "gaps"],
)
def test_what_cannot_be_told_is_refused(ranges):
    """An error, rather than a page that says something else."""
    with pytest.raises(ValueError, match="range"):
        pack_bad_blocks(ranges)


@pytest.mark.slow
@needs_mdadm
def test_mdadm_reads_what_is_written(tmp_path: Path):
    """`--examine-badblocks` lists the same ranges."""
    ranges = random_ranges(random.Random(f"{SEED}/mdadm"), 60)
    member = Superblock(
        set_uuid=bytes(range(16)),
        set_name=b"striata:vol0",
        level=1,
        size=1 << 19,
        raid_disks=2,
        features=Feature.BAD_BLOCKS,
        data_offset=2048,
        data_size=1 << 19,
        device_number=0,
        device_uuid=bytes(16),
        bad_blocks_size=8,
        bad_blocks_offset=16,
        events=1,
        roles=(0, 1),
    )
    image = tmp_path / "drive.img"
    log = SECTOR + member.bad_blocks_offset
    write_drive(image, 1 << 20, {SECTOR: member.pack(), log: pack_bad_blocks(ranges)})
    told = mdadm("--examine-badblocks", str(image))
    found = re.findall(r"^ *(\d+) for (\d+) sectors$", told, re.MULTILINE)
    assert [range(int(first), int(first) + int(length)) for first, length in found] == ranges
