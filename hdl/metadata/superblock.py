"""Linux md's version 1.2 superblock as words of 32 bits, and the part of it that the card keeps.

The source is `include/uapi/linux/raid/md_p.h` (Linux 6.1). All numbers are little-endian. Lengths
and places are sectors of 512 bytes.
"""

from enum import IntEnum

from amaranth.hdl import Cat, Const, Value
from amaranth.lib import enum

from hdl.config import SECTORS_PER_BLOCK, Config, bits_for_count
from hdl.kit.table import Table, TableRead, TableWrite

MAGIC, MAJOR_VERSION = 0xA92B4EFC, 1
SECTOR = 8
"""Where a superblock of version 1.2 lies on its drive."""

BLOCK = SECTOR // SECTORS_PER_BLOCK
"""The block that holds it."""

WORD_BITS = 32
HEAD_WORDS = 64
"""Words before the roles."""

MOST_DEVICES = 128
"""Devices of an array. mdadm writes room for so many roles unless there are more devices."""

KEPT_WORDS = HEAD_WORDS + MOST_DEVICES // 2
"""Words of a superblock that the card reads and keeps: the head, and two roles a word."""

KEPT_BITS = bits_for_count(KEPT_WORDS)

PLACE_BITS = 44
"""Width of a sector's number: drives have 2 ** 40 blocks of 4 KiB at most."""

LEAST_SECTORS = 10
"""A member has so many sectors of data at least."""

SPARE, FAULTY, JOURNAL = 0xFFFF, 0xFFFE, 0xFFFD
"""What stands in the place of a role: there is none, the device has failed, it is a journal."""


class Word(IntEnum):
    """Where fields begin. Those of 64 bits have the lower word first."""

    MAGIC = 0
    MAJOR_VERSION = 1
    FEATURES = 2
    PAD0 = 3
    SET_UUID = 4
    SET_NAME = 8
    CTIME = 16
    LEVEL = 18
    LAYOUT = 19
    SIZE = 20
    CHUNK = 22
    RAID_DISKS = 23
    BITMAP_OFFSET = 24
    NEW_OFFSET = 31
    DATA_OFFSET = 32
    DATA_SIZE = 34
    SUPER_OFFSET = 36
    RECOVERY_OFFSET = 38
    DEVICE_NUMBER = 40
    DEVICE_UUID = 42
    BAD_BLOCKS = 46
    """Bits 31:16 are the size of the bad-block log."""
    BAD_BLOCKS_OFFSET = 47
    UTIME = 48
    EVENTS = 50
    RESYNC_OFFSET = 52
    CHECKSUM = 54
    MAX_DEVICES = 55
    PAD3 = 56
    ROLES = 64


class Feature(IntEnum):
    """Bits of `Word.FEATURES`, by their numbers."""

    BITMAP = 0
    RECOVERY_OFFSET = 1
    RESHAPE = 2
    BAD_BLOCKS = 3
    REPLACEMENT = 4
    RESHAPE_BACKWARDS = 5
    NEW_OFFSET = 6
    RECOVERY_BITMAP = 7
    CLUSTERED = 8
    JOURNAL = 9
    PPL = 10
    MULTIPLE_PPLS = 11
    RAID0_LAYOUT = 12


FEATURES = len(Feature)


class Finding(enum.Enum, shape=3):
    """What the superblock's place of a drive holds."""

    UNREAD = 0
    """Nobody knows yet, or there is no drive."""
    VALID = 1
    """A superblock that md would take."""
    NONE = 2
    """No superblock of this version."""
    DAMAGED = 3
    """A superblock with a wrong checksum."""
    UNKNOWN = 4
    """A feature or a reserved field has a meaning that this version does not know."""
    IMPOSSIBLE = 5
    """What it says cannot be true of this drive."""
    TOO_MANY = 6
    """There are roles for more than `MOST_DEVICES` devices. md would take it."""
    UNREADABLE = 7
    """The drive does not give it."""


def kept_address(port: Value, word: Value | int) -> Value:
    """Where a word of the superblock at a port is kept."""
    number = Const(word, KEPT_BITS) if isinstance(word, int) else word | Const(0, KEPT_BITS)
    return Cat(number[:KEPT_BITS], port)


def kept_bits(config: Config) -> int:
    """Width of that address."""
    return config.port_bits + KEPT_BITS


def kept_table(config: Config, *, reads: int = 1) -> Table:
    """What is kept of the superblock at each port."""
    return Table(WORD_BITS, 1 << kept_bits(config), reads=reads)


def kept_read(config: Config) -> TableRead:
    """A read port of that table."""
    return TableRead(kept_bits(config), WORD_BITS)


def kept_write(config: Config) -> TableWrite:
    """The write port of that table."""
    return TableWrite(kept_bits(config), WORD_BITS)
