"""md's write-intent bitmap: against those that Linux writes, and against damage."""

import os
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import needs_linux
from sim.golden.intent_bitmap import (
    FIELDS,
    HEAD,
    HEAD_BYTES,
    LEAST_CHUNK_BYTES,
    IntentBitmap,
    RefusedBitmapError,
)
from sim.golden.superblock import PAGE_BYTES, SECTOR, SECTOR_BYTES, Feature, Superblock
from sim.md.machine import Job, drive, run

SEED = int(os.environ.get("SEED") or "1")
UUID = bytes(range(16))
MIB = 1 << 20
GOOD = IntentBitmap(
    set_uuid=UUID,
    events=7,
    events_cleared=7,
    sync_size=16384,
    chunk_bytes=1 << 16,
    marked=frozenset((3, 40, 127)),
)


def changed(**values) -> bytes:
    """`GOOD` with other values in fields."""
    page = GOOD.pack()
    fields = dict(zip(FIELDS, HEAD.unpack_from(page), strict=True))
    return HEAD.pack(*{**fields, **values}.values()) + page[HEAD.size :]


def test_what_is_written_is_read():
    """Any bitmap. Only bits that mean something are read."""
    generator = random.Random(f"{SEED}/bitmap")
    for _ in range(200):
        size = generator.randint(1, 1 << 24)
        one = replace(
            GOOD,
            events=generator.getrandbits(64),
            events_cleared=generator.getrandbits(64),
            sync_size=size,
            chunk_bytes=1 << generator.randint(20, 26),
        )
        marked = (generator.randrange(one.chunks) for _ in range(generator.randint(0, 40)))
        one = replace(one, marked=frozenset(marked))
        area = one.pack()
        assert len(area) == one.length and one.length % SECTOR_BYTES == 0
        assert one.length - HEAD_BYTES >= one.chunks / 8 > one.length - HEAD_BYTES - SECTOR_BYTES
        assert IntentBitmap.unpack(area, set_uuid=UUID) == one
        assert IntentBitmap.unpack(area + bytes(PAGE_BYTES), set_uuid=UUID) == one


@pytest.mark.parametrize(
    ("area", "why"),
    [
        (bytes(PAGE_BYTES), "no bitmap"),
        (changed(version=3), "another version"),
        (changed(version=5), "another version"),
        (changed(chunk_bytes=LEAST_CHUNK_BYTES // 2), "shorter than a sector"),
        (changed(chunk_bytes=3 << 16), "power of two"),
        (changed(sleep_s=0), "no time"),
        (changed(write_behind=1 << 14), "writes behind"),
        (changed(set_uuid=bytes(16)), "another array"),
        (changed(sync_size=1 << 24), "longer than its area"),
        (changed(sync_size=(1 << 64) - 1), "longer than its area"),
    ],
)
def test_what_md_does_not_use_is_refused(area, why):
    """Each for its reason."""
    with pytest.raises(RefusedBitmapError, match=why):
        IntentBitmap.unpack(area, set_uuid=UUID)


def test_hostile_areas_are_refused_or_read():
    """Random fields and sizes: nothing else is raised, and nothing beyond the area is read."""
    generator = random.Random(f"{SEED}/hostile")
    taken = 0
    for _ in range(2000):
        area = bytearray(GOOD.pack().ljust(PAGE_BYTES, b"\xff"))
        for _ in range(generator.randint(1, 2)):
            start = generator.choice((4, 24, 32, 40, 48, 52, 56, 60, 64, 68))
            area[start : start + 4] = generator.choice(
                (generator.randbytes(4), bytes(4), b"\xff" * 4, struct.pack("<I", 1 << 20))
            )
        try:
            one = IntentBitmap.unpack(bytes(area), set_uuid=UUID)
        except RefusedBitmapError:
            continue
        taken += 1
        assert one.length <= PAGE_BYTES
        assert one.pack()[: HEAD.size] == area[: HEAD.size]
    assert 100 < taken < 1900


SIZE_KIB = 8192
ARRAYS = {
    "raid1": (1, 2, []),
    "raid5": (5, 4, ["--chunk=4"]),
    "raid6": (6, 5, ["--chunk=64"]),
    "raid10": (10, 4, ["--chunk=8"]),
}


@pytest.mark.slow
@needs_linux
def test_what_linux_writes_is_read(tmp_path: Path):
    """Of arrays that md has created, written and stopped: read, and written the same again."""
    (tmp_path / "data").write_bytes(random.Random(SEED).randbytes(8 * PAGE_BYTES))
    jobs = []
    for name, (level, count, options) in ARRAYS.items():
        create = [
            "--create", "/dev/md0", "--run", "--assume-clean", "--metadata=1.2",
            "--data-offset=1M", f"--level={level}", f"--raid-devices={count}",
            "--bitmap=internal", "--bitmap-chunk=64K", f"--size={SIZE_KIB}", *options,
        ]
        jobs.append(
            Job(
                name=name,
                arrays=[[*create, *(drive(number) for number in range(count))]],
                device="/dev/md0",
                data=[("data", 0), ("data", 3 * MIB)],
                bytes=12 * MIB,
                images=[f"{name}.{number}.img" for number in range(count)],
            )
        )
    run(tmp_path, jobs)
    for job in jobs:
        level, count, _ = ARRAYS[job.name]
        for image in job.images:
            held = (tmp_path / image).read_bytes()
            start = SECTOR * SECTOR_BYTES
            member = Superblock.unpack(
                held[start : start + PAGE_BYTES], sectors=len(held) // SECTOR_BYTES
            )
            assert member.features == Feature.BITMAP
            start += member.bitmap_offset * SECTOR_BYTES
            area = held[start : start + PAGE_BYTES]
            bitmap = IntentBitmap.unpack(area, set_uuid=member.set_uuid)
            assert bitmap.pack() == area[: bitmap.length]
            assert bitmap.marked == frozenset()
            assert bitmap.events == member.events
            assert 1 <= bitmap.events_cleared <= bitmap.events
            data = count // 2 if level == 10 else 1
            assert bitmap.sync_size == data * member.size == data * SIZE_KIB * 2
