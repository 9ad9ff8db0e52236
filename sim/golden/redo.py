"""The redo record on a backup flash, read by what `hdl.redo.record` says of it."""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from hdl.config import BLOCK_BYTES

MAGIC, VERSION = b"SRED", 1
ENTRIES = 255
"""Blocks that a list names."""
PORTS = 32
EMPTY = bytes(BLOCK_BYTES)

SUPERBLOCK = 1
"""The block of a drive with its superblock."""
SET_UUID, EVENTS, DEVICE_NUMBER = slice(16, 32), slice(200, 208), slice(160, 164)
"""Where these stand in a superblock of Linux md."""

Image = Mapping[int, bytes]


@dataclass(frozen=True)
class Member:
    """What the record says of the drive that was at a port: the number of its array, whether all
    that was written to that is stored or saved, and what its superblock said."""

    array: int
    trusted: bool
    name: bytes

    @property
    def set_uuid(self) -> bytes:
        """The identity of its array, or of its span."""
        return self.name[:16]


@dataclass(frozen=True)
class Saved:
    """A block that is saved: of which array, of the drive at which port, and which one it is.
    ``data`` is None if it is not what was to be saved."""

    array: int
    port: int
    block: int
    data: bytes | None


@dataclass(frozen=True)
class Record:
    """A redo record. ``members`` are by port. It is ``whole`` if all that it names is there."""

    members: dict[int, Member]
    blocks: tuple[Saved, ...]
    whole: bool

    def covered(self, array: int) -> bool:
        """All that was written to an array is stored, or is in the record."""
        own = [one for one in self.members.values() if one.array == array]
        saved = all(one.data is not None for one in self.blocks if one.array == array)
        return bool(own) and all(one.trusted for one in own) and saved and self.whole


def named(page: bytes) -> bytes:
    """What a superblock says of its drive, as the record has it."""
    return page[SET_UUID] + page[EVENTS] + page[DEVICE_NUMBER]


def sums_up(page: bytes) -> bool:
    """The last word is the CRC of the others."""
    return zlib.crc32(page[:-4]).to_bytes(4, "little") == page[-4:]


def read(flash: Image, *, overhead: int) -> Record | None:
    """The record on a flash, or None if there is no head. Its blocks begin at ``overhead``."""
    head = flash.get(0, EMPTY)
    magic, version, records, lists = struct.unpack_from("<4sIII", head)
    if (magic, version) != (MAGIC, VERSION) or not sums_up(head):
        return None
    members = {}
    for port in range(PORTS):
        words = head[1024 + 32 * port : 1024 + 32 * (port + 1)]
        if words[0] & 1:
            members[port] = Member(words[1], bool(words[0] & 2), words[4:32])
    blocks: list[Saved] = []
    whole = True
    for number in range(lists):
        page = flash.get(1 + number, EMPTY)
        wanted = head[32 + 4 * number : 36 + 4 * number]
        if page[-4:] != wanted or not sums_up(page):
            whole = False
            continue
        for entry in range(min(ENTRIES, records - number * ENTRIES)):
            low, high, port, array, _, crc = struct.unpack_from("<IBBBBI", page, 16 * entry)
            data = flash.get(overhead + number * ENTRIES + entry, EMPTY)
            good = zlib.crc32(data) == crc
            blocks.append(Saved(array, port, low | high << 32, data if good else None))
    return Record(members, tuple(blocks), whole and records <= lists * ENTRIES)


def replayed(record: Record, images: Mapping[int, Image]) -> dict[tuple[int, int], Saved]:
    """What is to be written, by port and block, to the drives that hold ``images``, by port."""
    now = {}
    for port, member in record.members.items():
        for other in sorted(images):
            if named(images[other].get(SUPERBLOCK, EMPTY)) == member.name:
                now[port] = other
                break
    return {
        (now[one.port], one.block): one
        for one in record.blocks
        if one.port in now and one.data is not None
    }
