"""Linux md's version 1.2 superblock: what it says, its bytes, and which ones md refuses.

It is written from the kernel's `include/uapi/linux/raid/md_p.h`, and the checks from
`super_1_load` and `super_1_validate` in `drivers/md/md.c` (Linux 6.1), and shares nothing with the
hardware. All numbers are little-endian, and lengths and places are sectors of 512 bytes.
"""

import struct
from dataclasses import dataclass
from enum import IntFlag

PAGE_BYTES = 4096
SECTOR_BYTES = 512
MAGIC, MAJOR_VERSION = 0xA92B4EFC, 1
SECTOR = 8
"""Where a superblock of version 1.2 lies on its drive."""

HEAD_BYTES = 256
MOST_DEVICES = (PAGE_BYTES - HEAD_BYTES) // 2
CHECKSUM_AT, CHECKSUM_BYTES = 216, 4
LEAST_SECTORS = 10
"""A member has so many sectors of data at least."""

SPARE, FAULTY, JOURNAL = 0xFFFF, 0xFFFE, 0xFFFD
"""What `roles` may hold beside roles: none, failed, a journal."""

CLEAN = (1 << 64) - 1
"""`resync_offset` of an array that is in sync."""


class Feature(IntFlag):
    """Bits of `feature_map`. A superblock with others is refused."""

    BITMAP = 1 << 0
    RECOVERY_OFFSET = 1 << 1
    RESHAPE = 1 << 2
    BAD_BLOCKS = 1 << 3
    REPLACEMENT = 1 << 4
    RESHAPE_BACKWARDS = 1 << 5
    NEW_OFFSET = 1 << 6
    RECOVERY_BITMAP = 1 << 7
    CLUSTERED = 1 << 8
    JOURNAL = 1 << 9
    PPL = 1 << 10
    MULTIPLE_PPLS = 1 << 11
    RAID0_LAYOUT = 1 << 12


NO_FEATURE = Feature(0)
EVERY_FEATURE = sum(Feature)

FIELDS = {
    "magic": "I",
    "major_version": "I",
    "features": "I",
    "pad0": "I",
    "set_uuid": "16s",
    "set_name": "32s",
    "ctime": "Q",
    "level": "i",
    "layout": "I",
    "size": "Q",
    "chunk": "I",
    "raid_disks": "I",
    "bitmap_offset": "i",
    "new_level": "I",
    "reshape_position": "Q",
    "delta_disks": "i",
    "new_layout": "I",
    "new_chunk": "I",
    "new_offset": "i",
    "data_offset": "Q",
    "data_size": "Q",
    "super_offset": "Q",
    "recovery_offset": "Q",
    "device_number": "I",
    "corrected_reads": "I",
    "device_uuid": "16s",
    "device_flags": "B",
    "bad_blocks_shift": "B",
    "bad_blocks_size": "H",
    "bad_blocks_offset": "i",
    "utime": "Q",
    "events": "Q",
    "resync_offset": "Q",
    "checksum": "I",
    "max_devices": "I",
    "pad3": "32s",
}
"""Every field in order, with its code for `struct`."""

HEAD = struct.Struct("<" + "".join(FIELDS.values()))
IMPLIED = ("magic", "major_version", "pad0", "super_offset", "checksum", "max_devices", "pad3")
"""Fields that are not told, since each follows from the others or can have one value only."""


class RefusedSuperblockError(ValueError):
    """md takes the drive for one without a superblock, or refuses it. The text says why."""


@dataclass(frozen=True, kw_only=True)
class Superblock:
    """What the superblock of a member says. Fields have md's names, and what they say in full.

    ``roles`` has the role of each device number. The drive's own is ``device_number``.
    """

    set_uuid: bytes
    set_name: bytes = b""
    ctime: int = 0
    level: int
    layout: int = 0
    size: int
    chunk: int = 0
    raid_disks: int
    features: Feature = NO_FEATURE
    bitmap_offset: int = 0
    new_level: int = 0
    reshape_position: int = 0
    delta_disks: int = 0
    new_layout: int = 0
    new_chunk: int = 0
    new_offset: int = 0
    data_offset: int
    data_size: int
    recovery_offset: int = 0
    device_number: int
    corrected_reads: int = 0
    device_uuid: bytes
    device_flags: int = 0
    bad_blocks_shift: int = 0
    bad_blocks_size: int = 0
    bad_blocks_offset: int = 0
    utime: int = 0
    events: int
    resync_offset: int = CLEAN
    roles: tuple[int, ...] = ()

    @property
    def role(self) -> int:
        """The drive's role in the array, or `SPARE`, `FAULTY` or `JOURNAL`."""
        return self.role_of(self.device_number)

    def role_of(self, number: int) -> int:
        """The role of a device number by the word of this drive, or one of these."""
        return self.roles[number] if number < len(self.roles) else SPARE

    def pack(self) -> bytes:
        """The page, with its checksum."""
        values = {
            **vars(self),
            "magic": MAGIC,
            "major_version": MAJOR_VERSION,
            "pad0": 0,
            "super_offset": SECTOR,
            "checksum": 0,
            "max_devices": len(self.roles),
            "pad3": b"",
        }
        head = HEAD.pack(*(values[name] for name in FIELDS))
        page = (head + struct.pack(f"<{len(self.roles)}H", *self.roles)).ljust(PAGE_BYTES, b"\0")
        return _with_checksum(page, checksum(page))

    @classmethod
    def unpack(cls, page: bytes, *, sectors: int) -> "Superblock":
        """What ``page`` says, which lies at sector 8 of a drive of so many ``sectors``.

        Raises `RefusedSuperblockError` where md refuses the drive by itself, whatever others say.
        """
        values = dict(zip(FIELDS, HEAD.unpack_from(page), strict=True))
        _check_frame(page, values)
        found = {name: value for name, value in values.items() if name not in IMPLIED}
        found["features"] = Feature(values["features"])
        found["set_name"] = values["set_name"].rstrip(b"\0")
        roles = struct.unpack_from(f"<{values['max_devices']}H", page, HEAD_BYTES)
        one = cls(**found, roles=roles)
        one._check(sectors)
        return one

    def _check(self, sectors: int) -> None:
        """Raises an error if what it says cannot be."""
        ends = SECTOR + -(-(HEAD_BYTES + 2 * len(self.roles)) // SECTOR_BYTES)
        offset = self.data_offset
        _refuse_if(offset < ends, "data begins within the superblock")
        if self.features & Feature.RESHAPE and self.features & Feature.NEW_OFFSET:
            _refuse_if(offset + self.new_offset < ends, "new data begins within the superblock")
        _refuse_if(self.data_size < LEAST_SECTORS, "there is hardly any data")
        _refuse_if(offset + self.data_size > sectors, "data ends beyond the drive")
        if self.features & Feature.BAD_BLOCKS:
            most = PAGE_BYTES // SECTOR_BYTES
            _refuse_if(self.bad_blocks_size > most, "the bad-block log is longer than a page")
            _refuse_if(self.bad_blocks_offset == 0, "the bad-block log has no place")
        ppl = self.features & (Feature.PPL | Feature.MULTIPLE_PPLS)
        others = self.features & (Feature.BITMAP | Feature.JOURNAL)
        both = ppl == Feature.PPL | Feature.MULTIPLE_PPLS
        _refuse_if(bool(ppl and others) or both, "a partial parity log and another of its kind")
        no_journal = self.role == JOURNAL and not self.features & Feature.JOURNAL
        _refuse_if(no_journal, "the drive is a journal of an array without one")


def checksum(page: bytes) -> int:
    """The sum of the 32-bit words of a superblock, of which the checksum itself counts as 0, and of
    a 16-bit word if there is one at the end; then its two halves are added."""
    length = HEAD_BYTES + 2 * struct.unpack_from("<I", page, CHECKSUM_AT + CHECKSUM_BYTES)[0]
    summed = page[:CHECKSUM_AT] + bytes(CHECKSUM_BYTES) + page[CHECKSUM_AT + CHECKSUM_BYTES :]
    words = length // 4
    total = sum(struct.unpack_from(f"<{words}I", summed))
    if length % 4:
        total += struct.unpack_from("<H", summed, 4 * words)[0]
    return ((total & 0xFFFFFFFF) + (total >> 32)) & 0xFFFFFFFF


def _with_checksum(page: bytes, value: int) -> bytes:
    return (
        page[:CHECKSUM_AT] + struct.pack("<I", value) + page[CHECKSUM_AT + CHECKSUM_BYTES :]
    )


def _refuse_if(wrong: bool, why: str) -> None:
    if wrong:
        raise RefusedSuperblockError(why)


def _check_frame(page: bytes, values: dict) -> None:
    """Raises an error unless this is a superblock that can be read, and of this version."""
    _refuse_if(values["magic"] != MAGIC, "no superblock")
    _refuse_if(values["major_version"] != MAJOR_VERSION, "the superblock has another version")
    _refuse_if(values["max_devices"] > MOST_DEVICES, "there are too many devices")
    _refuse_if(values["super_offset"] != SECTOR, "the superblock belongs elsewhere")
    _refuse_if(bool(values["features"] & ~EVERY_FEATURE), "a feature is not known")
    _refuse_if(values["checksum"] != checksum(page), "the checksum is wrong")
    _refuse_if(bool(values["pad0"] or any(values["pad3"])), "a reserved field is not 0")
