"""The card's own page beside a superblock: the volumes of an array, as words of 32 bits.

Each member has two copies of it, in the last blocks before its data. A new list goes to the copy
that does not hold the last one. All numbers are little-endian, and lengths and places are blocks.
The last word is the CRC-32 (that of IEEE 802.3) of all others.
"""

from enum import IntEnum

from amaranth.lib import data
from amaranth.lib.crc.catalog import CRC32_ETHERNET

from hdl.config import (
    BLOCK_NUMBER_BITS,
    DATA_OFFSET_BLOCKS,
    DWORDS_PER_BLOCK,
    MOST_STORED_VOLUMES,
)
from hdl.flow.volume_facts import volume_facts
from hdl.metadata.superblock import WORD_BITS

MAGIC, VERSION = int.from_bytes(b"SVOL", "little"), 1

COPIES = 2
BLOCK = DATA_OFFSET_BLOCKS - COPIES
"""The block of the first copy."""

MOST_VOLUMES = MOST_STORED_VOLUMES
"""Entries of a list, one for each volume of the card. Those of other arrays are empty."""

ENTRY_WORDS = 8

CRC = CRC32_ETHERNET(data_width=WORD_BITS)


class ListWord(IntEnum):
    """Where fields begin. Those of 64 bits have the lower word first."""

    MAGIC = 0
    VERSION = 1
    GENERATION = 2
    """Of two lists of an array the one with the greater generation is the newer one."""
    SET_UUID = 4
    OWNER = 8
    """The identity of the card that has the array."""
    RESERVED = 10
    ENTRIES = 16
    END = ENTRIES + ENTRY_WORDS * MOST_VOLUMES
    """All words from here on are 0, but for the last one."""
    CRC = DWORDS_PER_BLOCK - 1


class EntryWord(IntEnum):
    """The words of an entry."""

    STATE = 0
    """Bit 0: there is such a volume. Bit 1: `sectors`. Bit 2: `coarse`. Bit 3: ``detached``. Bits
    15:8: bits 39:32 of ``start``. Bits 23:16: those of ``blocks``. Bits 31:24: those of the name's
    count."""
    START = 1
    BLOCKS = 2
    COUNT = 3
    OWN = 4


HIGH_BITS = BLOCK_NUMBER_BITS - WORD_BITS
"""Of numbers that are wider than a word: the bits above it."""


def listed_volume() -> data.StructLayout:
    """An entry of a list: volume ``number`` has ``blocks`` blocks of its array from ``start`` on.
    It may be ``detached``. Only if it is ``valid``."""
    return data.StructLayout(
        {
            "valid": 1,
            "number": (MOST_VOLUMES - 1).bit_length(),
            "start": BLOCK_NUMBER_BITS,
            "blocks": BLOCK_NUMBER_BITS,
            "detached": 1,
            "facts": volume_facts(),
        }
    )
