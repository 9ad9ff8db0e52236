"""Linux md's write-intent bitmap beside its superblock: what it says, and its bytes.

It is written from `drivers/md/md-bitmap.h` and the checks of `md_bitmap_read_sb` in
`drivers/md/md-bitmap.c` (Linux 6.1), and shares nothing with the hardware. All numbers are
little-endian.
"""

import struct
from dataclasses import dataclass, replace

from sim.golden.superblock import SECTOR_BYTES

MAGIC, VERSION = 0x6D746962, 4
FIELDS = {
    "magic": "I",
    "version": "I",
    "set_uuid": "16s",
    "events": "Q",
    "events_cleared": "Q",
    "sync_size": "Q",
    "state": "I",
    "chunk_bytes": "I",
    "sleep_s": "I",
    "write_behind": "I",
    "sectors_reserved": "I",
    "nodes": "I",
}
"""Every field of the head in order, with its code for `struct`. Zeros follow."""

HEAD = struct.Struct("<" + "".join(FIELDS.values()))
HEAD_BYTES = 256
LEAST_CHUNK_BYTES = 512
MOST_WRITE_BEHIND = (1 << 14) - 1
BEYOND = 0xFF
"""mdadm sets all bits up to the end of the bitmap's area, and md leaves those that mean nothing."""


class RefusedBitmapError(ValueError):
    """md does not use the bitmap. The text says why."""


@dataclass(frozen=True, kw_only=True)
class IntentBitmap:
    """What the bitmap of a member says.

    ``marked`` are the chunks that may not be in sync, of ``chunk_bytes`` each. Of a RAID 10 they
    are chunks of the array, and ``sync_size`` is its size in sectors. Else both are of a member.
    ``events_cleared`` is the count of events of the superblock when a mark was last taken away with
    all members there.
    """

    set_uuid: bytes
    events: int
    events_cleared: int
    sync_size: int
    state: int = 0
    chunk_bytes: int
    sleep_s: int = 5
    write_behind: int = 0
    sectors_reserved: int = 0
    nodes: int = 0
    marked: frozenset[int] = frozenset()

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-self.sync_size * SECTOR_BYTES // self.chunk_bytes)

    @property
    def length(self) -> int:
        """How many bytes of a drive it takes, in whole sectors."""
        used = HEAD_BYTES + -(-self.chunks // 8)
        return -(-used // SECTOR_BYTES) * SECTOR_BYTES

    def pack(self) -> bytes:
        """The whole bitmap, its head first."""
        values = {**vars(self), "magic": MAGIC, "version": VERSION}
        head = HEAD.pack(*(values[name] for name in FIELDS))
        bits = bytearray([BEYOND]) * (self.length - HEAD_BYTES)
        for chunk in range(self.chunks):
            if chunk not in self.marked:
                bits[chunk // 8] &= ~(1 << chunk % 8)
        return head.ljust(HEAD_BYTES, b"\0") + bits

    @classmethod
    def unpack(cls, area: bytes, *, set_uuid: bytes) -> "IntentBitmap":
        """What ``area`` says, which begins with the head, of a member of that array.

        Raises `RefusedBitmapError` where md does not use it.
        """
        found = dict(zip(FIELDS, HEAD.unpack_from(area), strict=True))
        magic, version, chunk = found.pop("magic"), found.pop("version"), found["chunk_bytes"]
        _refuse_if(magic != MAGIC, "no bitmap")
        _refuse_if(version != VERSION, "the bitmap has another version")
        _refuse_if(chunk < LEAST_CHUNK_BYTES, "a chunk is shorter than a sector")
        _refuse_if(chunk & (chunk - 1) != 0, "a chunk is no power of two")
        _refuse_if(found["sleep_s"] == 0, "no time is left between two clean-ups")
        _refuse_if(found["write_behind"] > MOST_WRITE_BEHIND, "there are too many writes behind")
        _refuse_if(found["set_uuid"] != set_uuid, "the bitmap is of another array")
        one = cls(**found)
        _refuse_if(one.length > len(area), "the bitmap is longer than its area")
        bits = area[HEAD_BYTES:]
        marked = (number for number in range(one.chunks) if bits[number // 8] >> number % 8 & 1)
        return replace(one, marked=frozenset(marked))


def _refuse_if(wrong: bool, why: str) -> None:
    if wrong:
        raise RefusedBitmapError(why)
