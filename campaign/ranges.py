"""Range lists of Dataset Management commands, and whether a volume has all their blocks.

A command has 1 to 256 ranges (NVMe 1.4 section 6.7). The controller refuses it with LBA Out of
Range if one of them ends beyond the volume. It changes nothing in either case.
"""

import random
import struct

MOST_RANGES = 256
FEW = 3
BOUND = 1 << 64
"""Numbers of blocks are below it."""
LONGEST = (1 << 32) - 1

BEYOND = 0.5
"""Share of lists with a range beyond the volume."""

ATTRIBUTES = 1 << 3
"""Values of the attributes of a command: integral read, integral write, deallocate."""

Range = tuple[int, int]
"""First block and blocks."""


def beyond(ranges: list[Range], blocks: int) -> list[Range]:
    """The ranges that end beyond a volume of so many blocks."""
    return [(first, count) for first, count in ranges if first + count > blocks]


def good(choose: random.Random, blocks: int) -> Range:
    """A range that the volume has. It is often at an edge, and sometimes empty."""
    count = choose.choice((0, 1, choose.randint(0, blocks), blocks))
    last = blocks - count
    return choose.choice((0, last, choose.randint(0, last))), count


def bad(choose: random.Random, blocks: int) -> Range:
    """A range that ends beyond the volume: by a block, by far, or so far that a sum wraps."""
    count = choose.randint(1, blocks)
    return choose.choice(
        (
            (blocks, 1),
            (blocks - count, count + 1),
            (choose.randrange(blocks), LONGEST),
            ((1 << choose.randint(blocks.bit_length(), 63)) + choose.randrange(blocks), 1),
            (BOUND - count, count),
        )
    )


def draw(choose: random.Random, blocks: int) -> list[Range]:
    """A list for a volume of so many blocks. Of some lists one range, or a few, are beyond it."""
    most = choose.choice((1, FEW, MOST_RANGES))
    count = choose.choice((most, choose.randint(1, most)))
    ranges = [good(choose, blocks) for _ in range(count)]
    if choose.random() < BEYOND:
        for _ in range(choose.choice((1, 1, FEW))):
            at = choose.choice((0, count - 1, choose.randrange(count)))
            ranges[at] = bad(choose, blocks)
    return ranges


def packed(choose: random.Random, ranges: list[Range]) -> bytes:
    """The list in host memory. Its context attributes are hints, and are anything."""
    return b"".join(
        struct.pack("<IIQ", choose.getrandbits(32), count, first) for first, count in ranges
    )


def dwords(choose: random.Random, ranges: list[Range]) -> tuple[int, int]:
    """CDW10 and CDW11 of the command: how many ranges, and any attributes."""
    return len(ranges) - 1, choose.randrange(ATTRIBUTES)
