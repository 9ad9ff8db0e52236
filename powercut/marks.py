"""What the drives of an array say was being written as the power went, and what was."""

import struct
from collections import Counter
from collections.abc import Mapping, Sequence

from hdl.config import BLOCK_BYTES, SECTORS_PER_BLOCK
from sim.golden.assembly import Judgement, judge
from sim.golden.intent_bitmap import HEAD_BYTES, IntentBitmap
from sim.golden.layout import Layout
from sim.golden.spans import divided, of_span
from sim.golden.superblock import RefusedSuperblockError, Superblock

EMPTY = bytes(BLOCK_BYTES)
SUPERBLOCK, BITMAP = 1, 2
"""The blocks of a drive that have them."""

OWN_MAGIC = b"strm"
"""Of a bitmap that md is not told of."""
UUID = slice(8, 24)
SHIFT_AT = 52
"""Where such a one has log2 of the rows of a chunk."""

PARITIES = {5: 1, 6: 2}
REDUNDANT = (1, 5, 6, 10)
"""md's levels of arrays that have a bitmap."""

Image = Mapping[int, bytes]


def sets(images: Sequence[Image], capacity: int) -> list[Judgement]:
    """What md would make of the drives, array by array."""
    found: dict[bytes, dict[int, Superblock]] = {}
    for port, image in enumerate(images):
        try:
            one = Superblock.unpack(
                image.get(SUPERBLOCK, EMPTY), sectors=capacity * SECTORS_PER_BLOCK
            )
        except RefusedSuperblockError:
            continue
        found.setdefault(one.set_uuid, {})[port] = one
    return [judge(drives) for drives in found.values()]


def marked_rows(one: Superblock, page: bytes) -> set[int]:
    """Rows that the bitmap of a member marks. It must have one."""
    rows = used(one) // SECTORS_PER_BLOCK
    if page[:4] == OWN_MAGIC:
        shift = struct.unpack_from("<I", page, SHIFT_AT)[0]
        chunks = {
            number
            for number in range(-(-rows >> shift) + 1)
            if page[HEAD_BYTES + number // 8] >> number % 8 & 1
        }
    else:
        bitmap = IntentBitmap.unpack(page, set_uuid=one.set_uuid)
        assert bitmap.events >= one.events, bitmap
        assert not bitmap.state, bitmap
        assert bitmap.sync_size == used(one), bitmap
        shift = (bitmap.chunk_bytes // BLOCK_BYTES).bit_length() - 1
        chunks = set(bitmap.marked)
    return {row for row in range(rows) if row >> shift in chunks}


def used(one: Superblock) -> int:
    """Sectors of each member that have data."""
    return one.size or one.data_size


def torn_rows(found: Judgement, images: Sequence[Image], *, rebuilt: bool = False) -> set[int]:
    """Rows of members that do not satisfy their equation, or whose copies differ. If members are
    missing, those of which that can be told. With ``rebuilt`` those that are being rebuilt are
    members as well."""
    one, members = found.freshest, {**found.members, **(found.rebuilding if rebuilt else {})}
    rows = used(one) // SECTORS_PER_BLOCK
    first = one.data_offset // SECTORS_PER_BLOCK
    blocks = {
        role: [images[port].get(first + row, EMPTY) for row in range(rows)]
        for role, port in members.items()
    }
    if one.level == 1:
        return {row for row in range(rows) if len({held[row] for held in blocks.values()}) > 1}
    disks, strip = one.raid_disks, one.chunk // SECTORS_PER_BLOCK
    if one.level == 10:
        copies = one.layout & 0xFF
        places = [(role, row) for row in range(rows // strip) for role in range(disks)]
        torn = set()
        for group in (places[at : at + copies] for at in range(0, len(places), copies)):
            for offset in range(strip):
                at = [(role, row * strip + offset) for role, row in group if role in members]
                if len({blocks[role][row] for role, row in at}) > 1:
                    # To the card it is the row of the first copy.
                    torn.add(group[0][1] * strip + offset)
        return torn
    if len(members) < disks:
        return set()
    layout = Layout(f"RAID{one.level}", disks, strip)
    torn = set()
    for row in range(rows):
        others = set(layout.parity_places(row)[1:])
        total = 0
        for role, held in blocks.items():
            if role not in others:
                total ^= int.from_bytes(held[row], "little")
        if total:
            torn.add(row)
    return torn


def check_marks(images: Sequence[Image], capacity: int) -> Counter:
    """Every row that is torn, or that a member lacks which is being rebuilt, is marked, in the
    bitmap of some member. No row is torn of an array that says that it is clean. Counts what there
    is.

    An array over whose drives a new one is being made may have bitmaps of that one already. So
    nothing is known of its rows.
    """
    seen: Counter = Counter()
    for found in sets(images, capacity):
        one = found.freshest
        if one.level not in REDUNDANT or not found.members:
            continue
        if not found.dirty and not found.rebuilding:
            torn = torn_rows(found, images)
            assert not torn, f"{one}: rows {sorted(torn)} are torn, and it is clean"
            seen["clean arrays"] += 1
            continue
        marked: set[int] = set()
        pages = [images[port].get(BITMAP, EMPTY) for port in found.members.values()]
        # All spans of an array have the bitmap of the first one.
        first = of_span(one.set_uuid, divided(one.ctime)[0])
        if any(page[UUID] != first for page in pages):
            seen["bitmaps of others"] += 1
            continue
        for page in pages:
            marked |= marked_rows(one, page)
        torn = torn_rows(found, images, rebuilt=True)
        assert torn <= marked, f"{one}: rows {sorted(torn - marked)} are torn, and not marked"
        seen += Counter({"torn rows": len(torn), "marked rows": len(marked)})
        if found.rebuilding:
            rows = used(one) // SECTORS_PER_BLOCK
            seen["rows of stale members that were rebuilt"] += rows - len(marked)
        if not found.dirty:
            torn = torn_rows(found, images)
            assert not torn, f"{one}: rows {sorted(torn)} are torn, and it is clean"
    return seen
