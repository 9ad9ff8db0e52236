"""What is on the backup flash, as a model of its own: pages are made, and read."""

import struct
import zlib
from dataclasses import dataclass, field

PAGE = 4096
LIST_RECORDS = 255
SUMS_AT, MEMBERS_AT, MEMBER_WORDS = 8, 256, 8
NAMED = (4, 5, 6, 7, 50, 51, 40)
"""Words of a superblock of version 1.2 by which a drive is known: identity of its array, events,
number of the device."""


def page(words: dict[int, int]) -> bytes:
    """A page with these words, and its CRC behind them."""
    body = b"".join(struct.pack("<I", words.get(number, 0)) for number in range(1023))
    return body + struct.pack("<I", zlib.crc32(body))


def words_of(block: bytes) -> tuple[int, ...]:
    """All words of a page."""
    return struct.unpack("<1024I", block)


def adds_up(block: bytes) -> bool:
    """The CRC of a page is right."""
    return zlib.crc32(block[:-4]) == words_of(block)[-1]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A block of the record."""

    array: int
    port: int
    block: int
    sum: int


@dataclass(frozen=True, kw_only=True)
class Member:
    """A drive of the head."""

    array: int
    trusted: bool
    named: tuple[int, ...]

    def words(self) -> list[int]:
        return [1 | self.trusted << 1 | self.array << 8, *self.named]


@dataclass(kw_only=True)
class Head:
    """The head of a record."""

    records: int
    sums: list[int]
    members: dict[int, Member] = field(default_factory=dict)

    def pack(self) -> bytes:
        magic = int.from_bytes(b"SRED", "little")
        words = {0: magic, 1: 1, 2: self.records, 3: len(self.sums)}
        words |= {SUMS_AT + number: one for number, one in enumerate(self.sums)}
        for port, member in self.members.items():
            first = MEMBERS_AT + MEMBER_WORDS * port
            words |= {first + number: word for number, word in enumerate(member.words())}
        return page(words)

    @classmethod
    def unpack(cls, block: bytes, *, most_records: int, most_lists: int) -> "Head | None":
        """What a page says, if it is a head."""
        words = words_of(block)
        magic = int.from_bytes(b"SRED", "little")
        if not adds_up(block) or words[0] != magic or words[1] != 1:
            return None
        if words[2] > most_records or words[3] > most_lists:
            return None
        members = {}
        for port in range(32):
            first = MEMBERS_AT + MEMBER_WORDS * port
            state, *named = words[first : first + MEMBER_WORDS]
            if state & 1:
                members[port] = Member(
                    array=state >> 8 & 0xFF, trusted=bool(state & 2), named=tuple(named)
                )
        return cls(records=words[2], sums=[*words[SUMS_AT : SUMS_AT + words[3]]], members=members)


def pack_list(entries: list[Saved]) -> bytes:
    """A page that lists up to `LIST_RECORDS` blocks."""
    words = {}
    for number, one in enumerate(entries):
        place = one.block >> 32 | one.port << 8 | one.array << 16
        words |= {4 * number: one.block & 0xFFFF_FFFF, 4 * number + 1: place}
        words[4 * number + 2] = one.sum
    return page(words)


def unpack_list(block: bytes) -> list[Saved]:
    """All entries that a list has room for."""
    words = words_of(block)
    found = []
    for first in range(0, 4 * LIST_RECORDS, 4):
        low, place, total, _ = words[first : first + 4]
        number = low | (place & 0xFF) << 32
        found.append(
            Saved(array=place >> 16 & 0xFF, port=place >> 8 & 0xFF, block=number, sum=total)
        )
    return found


def record_pages(
    blocks: list[tuple[int, int, int, bytes]], members: dict[int, Member], *, first_block: int
) -> dict[int, bytes]:
    """The whole record of blocks: array, port, number, contents. By blocks of the flash."""
    entries = [
        Saved(array=array, port=port, block=block, sum=zlib.crc32(content))
        for array, port, block, content in blocks
    ]
    lists = [
        pack_list(entries[first : first + LIST_RECORDS])
        for first in range(0, len(entries), LIST_RECORDS)
    ]
    head = Head(records=len(blocks), sums=[words_of(one)[-1] for one in lists], members=members)
    pages = {0: head.pack()} | {1 + number: one for number, one in enumerate(lists)}
    return pages | {first_block + number: one[3] for number, one in enumerate(blocks)}
