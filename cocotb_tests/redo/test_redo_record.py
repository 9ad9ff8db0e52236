"""The model of the redo record: what it reads of a flash, and what it takes for none."""

import os
import random
import struct
import zlib

import pytest

from hdl.config import BLOCK_BYTES
from sim.golden.redo import (
    DEVICE_NUMBER,
    ENTRIES,
    EVENTS,
    MAGIC,
    SET_UUID,
    SUPERBLOCK,
    VERSION,
    named,
    read,
    replayed,
)

SEED = int(os.environ.get("SEED") or "1")
OVERHEAD = 4
SIZES = (0, 1, 7, ENTRIES, ENTRIES + 1, 2 * ENTRIES + 3)


def with_sum(page: bytearray) -> bytes:
    """The page with the CRC of all but its last word there."""
    page[-4:] = zlib.crc32(page[:-4]).to_bytes(4, "little")
    return bytes(page)


def superblock(chance: random.Random) -> bytes:
    """As much of one as the record knows."""
    page = bytearray(BLOCK_BYTES)
    for place in (SET_UUID, EVENTS, DEVICE_NUMBER):
        page[place] = chance.randbytes(place.stop - place.start)
    return bytes(page)


class Flash:
    """A record of so many random blocks of random drives, written by what its format says."""

    def __init__(self, chance: random.Random, count: int):
        self.drives = {port: {SUPERBLOCK: superblock(chance)} for port in (0, 3, 17, 31)}
        self.arrays = {port: chance.randrange(3) for port in self.drives}
        self.trusted = {array: chance.random() < 0.7 for array in range(3)}
        self.blocks = [
            (port, chance.getrandbits(40), chance.randbytes(BLOCK_BYTES))
            for port in chance.choices(list(self.drives), k=count)
        ]
        self.image: dict[int, bytes] = {}
        head = bytearray(BLOCK_BYTES)
        lists = -(-count // ENTRIES)
        struct.pack_into("<4sIII", head, 0, MAGIC, VERSION, count, lists)
        for number in range(lists):
            page = bytearray(BLOCK_BYTES)
            for entry, (port, block, data) in enumerate(
                self.blocks[number * ENTRIES : (number + 1) * ENTRIES]
            ):
                struct.pack_into(
                    "<IBBBBI", page, 16 * entry, block & 0xFFFF_FFFF, block >> 32, port,
                    self.arrays[port], 0, zlib.crc32(data),
                )  # fmt: skip
                self.image[OVERHEAD + number * ENTRIES + entry] = data
            self.image[1 + number] = with_sum(page)
            head[32 + 4 * number : 36 + 4 * number] = self.image[1 + number][-4:]
        for port, image in self.drives.items():
            array = self.arrays[port]
            state = struct.pack("<BBH", 1 | self.trusted[array] << 1, array, 0)
            head[1024 + 32 * port : 1056 + 32 * port] = state + named(image[SUPERBLOCK])
        self.image[0] = with_sum(head)

    def covered(self) -> set[int]:
        """Arrays that the record covers while nothing is damaged."""
        return {array for array in self.arrays.values() if self.trusted[array]}


@pytest.mark.parametrize("count", SIZES)
def test_a_record_is_read(count):
    """Each block goes to the drive that it belongs to, wherever that is now."""
    chance = random.Random(f"{SEED}/record {count}")
    flash = Flash(chance, count)
    record = read(flash.image, overhead=OVERHEAD)
    assert record is not None
    assert {array for array in range(3) if record.covered(array)} == flash.covered()
    places = list(flash.drives)
    now = dict(zip(places, chance.sample(range(32), len(places)), strict=True))
    gone = chance.choice(places)
    here = {now[port]: image for port, image in flash.drives.items() if port != gone}
    wanted = {(now[port], block): data for port, block, data in flash.blocks if port != gone}
    found = {place: one.data for place, one in replayed(record, here).items()}
    assert found == wanted
    grown = {port: {SUPERBLOCK: superblock(chance)} for port in here}
    assert not replayed(record, grown)


@pytest.mark.parametrize("what", ["head", "list", "block", "list of another record"])
def test_what_is_damaged_does_not_count(what):
    """A flipped bit anywhere is seen, and a page of an earlier record is none of this one."""
    chance = random.Random(f"{SEED}/damage {what}")
    for _ in range(20):
        flash = Flash(chance, ENTRIES + 40)
        block = {
            "head": 0,
            "list": 1 + chance.randrange(2),
            "block": OVERHEAD + chance.randrange(ENTRIES + 40),
        }.get(what, 1 + chance.randrange(2))
        if what == "list of another record":
            flash.image[block] = Flash(chance, ENTRIES + 40).image[block]
        else:
            page = bytearray(flash.image[block])
            page[chance.randrange(BLOCK_BYTES)] ^= 1 << chance.randrange(8)
            flash.image[block] = bytes(page)
        record = read(flash.image, overhead=OVERHEAD)
        if what == "head":
            assert record is None
            continue
        assert record is not None
        if what == "block":
            port = flash.blocks[block - OVERHEAD][0]
            assert not record.covered(flash.arrays[port])
            assert sum(one.data is None for one in record.blocks) == 1
        else:
            assert not any(record.covered(array) for array in range(3))
