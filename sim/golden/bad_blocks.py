"""Linux md's log of bad blocks: ranges of a member that cannot be read, in one page.

It is written from `super_1_load` and `super_1_sync` in `drivers/md/md.c` (Linux 6.1), and shares
nothing with the hardware. Numbers are little-endian.
"""

import struct
from collections.abc import Sequence

from sim.golden.superblock import PAGE_BYTES

ENTRY = struct.Struct("<Q")
MOST_ENTRIES = PAGE_BYTES // ENTRY.size
MOST_SECTORS = 512
"""An entry has ten bits for a length, and md makes no range longer than this."""

LENGTH_BITS = 10
END = (1 << 64) - 1


def pack_bad_blocks(ranges: Sequence[range]) -> bytes:
    """The page. ``ranges`` are sectors of the member's data, in order, apart from each other, of at
    most 512 sectors. There is room for 512."""
    if len(ranges) > MOST_ENTRIES:
        raise ValueError(f"{len(ranges)} ranges are more than the {MOST_ENTRIES} of a page")
    page = b""
    for one in ranges:
        if not 1 <= len(one) <= MOST_SECTORS or one.step != 1:
            raise ValueError(f"{one} is no range of 1 to {MOST_SECTORS} sectors")
        page += ENTRY.pack(one.start << LENGTH_BITS | len(one))
    return page.ljust(PAGE_BYTES, b"\xff")


def unpack_bad_blocks(page: bytes, *, shift: int = 0) -> list[range]:
    """The ranges up to the end of the log, or of the page, in sectors. ``shift`` is the
    superblock's ``bad_blocks_shift``."""
    found = []
    for (entry,) in ENTRY.iter_unpack(page):
        if entry == END:
            break
        first = entry >> LENGTH_BITS << shift
        length = (entry & (1 << LENGTH_BITS) - 1) << shift
        found.append(range(first, first + length))
    return found
