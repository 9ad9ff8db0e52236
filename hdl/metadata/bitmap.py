"""The write-intent bitmap on a drive: its words, and which arrays have one that md can use.

The source is `drivers/md/md-bitmap.h` (Linux 6.1). The words are those of `bitmap_super_t`, and
after them there is a bit a chunk, the lowest one first.

md looks at a bitmap if its count of events is not below that of the superblock. The card writes a
bitmap before everything that it is needed for, and never beside a superblock that it is too old
for. So it says the greatest count, and the page need not change as superblocks do. It says the same
of the count at which marks were last dropped, so that md takes back no old member by it.

The bitmap of a RAID 10 has chunks of the array to md, and those of the card are chunks of rows.
Such an array has a page with another magic number, which is the card's alone, and so has one whose
chunks are too large for md, or whose level md does not know.
"""

from enum import IntEnum

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hdl.config import BLOCK_BYTES, SECTOR_BITS, SECTORS_PER_BLOCK, Config
from hdl.flow.geometry import Level
from hdl.flow.marks import WORD_BITS, chunk_shift
from hdl.metadata import superblock

BLOCK = superblock.BLOCK + 1
"""The block that holds it."""

OFFSET = (BLOCK - superblock.BLOCK) * SECTORS_PER_BLOCK
"""Sectors from the superblock to it."""

MAGIC, VERSION = 0x6D746962, 4
OWN_MAGIC = 0x6D727473
"""Of a page that md is not told of: "strm"."""

SLEEP_S = 5
"""Seconds between two clean-ups, for md."""

EVENTS = (1 << 63) - 1
"""The greatest count of events."""

MOST_SHIFT = 19
"""md has chunks of 2 GiB at most. This is their log2 in blocks."""


class BitmapWord(IntEnum):
    """Where fields begin. Those of 64 bits have the lower word first."""

    MAGIC = 0
    VERSION = 1
    SET_UUID = 2
    EVENTS = 6
    EVENTS_CLEARED = 8
    SYNC_SIZE = 10
    STATE = 12
    CHUNK_BYTES = 13
    SLEEP = 14
    WRITE_BEHIND = 15
    SECTORS_RESERVED = 16
    NODES = 17
    BITS = 64


def md_uses(m: Module, config: Config, geometry) -> Value:
    """Whether md can use the bitmap of an array. Combinational."""
    return _is_md(geometry, chunk_shift(m, geometry.rows - 1, config, "md_shift"))


def _is_md(geometry, shift: Value) -> Value:
    """The same of an array whose chunks have 1 << ``shift`` rows."""
    mirrors = (geometry.level == Level.RAID1) & (geometry.copies == geometry.width)
    parity = (geometry.level == Level.RAID5) | (geometry.level == Level.RAID6)
    return (mirrors | parity) & (geometry.spans == 1) & (shift <= MOST_SHIFT)


def head_words(m: Module, config: Config, set_uuid: Value, geometry) -> dict[int, Value | int]:
    """The words of the head of the bitmap of an array, by their places. Words that are not there
    are 0. Combinational.
    """
    shift = chunk_shift(m, geometry.rows - 1, config, "chunk_shift")
    is_md = _is_md(geometry, shift)
    # 1 << shift blocks; of a page of the card's own the shift itself.
    chunk_bytes = Signal(WORD_BITS)
    with m.Switch(shift):
        for number in range(MOST_SHIFT + 1):
            with m.Case(number):
                m.d.comb += chunk_bytes.eq(BLOCK_BYTES << number)
    sectors = Cat(Const(0, SECTOR_BITS), geometry.rows)
    words: dict[int, Value | int] = {
        BitmapWord.MAGIC: Mux(is_md, MAGIC, OWN_MAGIC),
        BitmapWord.VERSION: VERSION,
        BitmapWord.CHUNK_BYTES: Mux(is_md, chunk_bytes, shift),
        BitmapWord.SLEEP: SLEEP_S,
    }
    for half in range(2):
        part = slice(WORD_BITS * half, WORD_BITS * (half + 1))
        events = Const(EVENTS, 2 * WORD_BITS)[part]
        words[BitmapWord.EVENTS + half] = events
        words[BitmapWord.EVENTS_CLEARED + half] = events
        words[BitmapWord.SYNC_SIZE + half] = sectors[part]
    for place in range(4):
        words[BitmapWord.SET_UUID + place] = set_uuid.word_select(place, WORD_BITS)
    return words
