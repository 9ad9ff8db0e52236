"""What is on the backup flash: the redo record, as words of 32 bits.

Block 0 is the head. It says which drives were members, by what their superblocks said, and has the
CRC of each list. Lists begin at block 1. Each says of up to `LIST_RECORDS` blocks where they
belong, and has the CRC of each. These blocks follow from block `Config.backup_overhead` on, in the
order of the lists.

So a head that is good names the lists that are, and a list that is good the blocks that are. What
an earlier record has left is never taken for a part of this one. All numbers are little-endian.
Each CRC is the CRC-32 of IEEE 802.3. The last word of the head, and of each list, is the CRC of all
its others.
"""

from enum import IntEnum

from hdl.config import (
    BLOCK_NUMBER_BITS,
    DWORDS_PER_BLOCK,
    LIST_RECORDS,
    MAX_DRIVES,
    MOST_LISTS,
)
from hdl.metadata.superblock import WORD_BITS, Word

MAGIC, VERSION = int.from_bytes(b"SRED", "little"), 1

HEAD_BLOCK = 0
FIRST_LIST = 1

CRC_WORD = DWORDS_PER_BLOCK - 1

MEMBER_WORDS = 8
RECORD_WORDS = 4


class HeadWord(IntEnum):
    """Where fields of the head begin."""

    MAGIC = 0
    VERSION = 1
    RECORDS = 2
    """How many blocks are saved."""
    LISTS = 3
    RESERVED = 4
    """All words are 0 that are not named, but for the last one."""
    SUMS = 8
    """The last word of each list."""
    MEMBERS = 256
    """The drive at each port, `MEMBER_WORDS` words each."""
    END = MEMBERS + MEMBER_WORDS * MAX_DRIVES


assert HeadWord.SUMS + MOST_LISTS <= HeadWord.MEMBERS


class MemberWord(IntEnum):
    """The words of a drive."""

    STATE = 0
    """Bit 0: it is a member, and the other words are those of its superblock. Bit 1: all that has
    been written to its array is on its drives, or in this record. Bits 15:8: the array's number.
    Without bit 0 all is 0."""
    SET_UUID = 1
    EVENTS = 5
    DEVICE_NUMBER = 7


NAMED = (
    *range(Word.SET_UUID, Word.SET_UUID + 4),
    *range(Word.EVENTS, Word.EVENTS + 2),
    Word.DEVICE_NUMBER,
)
"""Words of a superblock that are in the head, in the order of `MemberWord`. They say which drive it
is, and that nothing has been written to its array since."""


class RecordWord(IntEnum):
    """The words of a block that is saved, four for each from the first word of a list on."""

    BLOCK = 0
    """Bits 31:0 of the block of its drive."""
    PLACE = 1
    """Bits 7:0: bits 39:32 of it. Bits 15:8: the port of the drive as it was saved. Bits 23:16: the
    number of its array."""
    SUM = 2
    """The CRC of the block."""
    RESERVED = 3


assert LIST_RECORDS * RECORD_WORDS <= CRC_WORD

HIGH_BITS = BLOCK_NUMBER_BITS - WORD_BITS
