"""Sizes that every controller has, and the widths that follow from a count."""

BLOCK_BYTES = 4096
"""Bytes of a block: cache line, parity unit, host page and drive unit."""

DWORDS_PER_BLOCK = BLOCK_BYTES // 4

SECTOR_BYTES = 512
"""Bytes of a host sector of a volume with sector emulation."""

SECTORS_PER_BLOCK = BLOCK_BYTES // SECTOR_BYTES

SECTOR_BITS = SECTORS_PER_BLOCK.bit_length() - 1
"""Width of a sector's place in its block."""

BLOCK_NUMBER_BITS = 40
"""Width of a block number: 2**40 blocks of 4 KiB are 4 EiB."""

TIME_BITS = 48
"""Width of `now`, in clock cycles: 13 days at 250 MHz before it wraps."""

MAX_DRIVES = 32
"""Most drives in an array, and most drive ports of a controller."""

DATA_OFFSET_BLOCKS = 256
"""Blocks at the start of every member kept free for metadata: 1 MiB, as Linux md leaves."""

PIECES = 8
"""Pieces of a block that can be worked out one by one while the rest is still landing."""

LINE_WRITERS = 5
"""Users that write lines: endpoint, parity engine, both paths of the drives, front end."""

MENDS = 4
"""Rows with an unreadable block that each of those who find one remembers."""

MENDED = 8
"""Such rows that are being mended at once."""

ERA_BITS = 8
"""Of how often an array has lost what was not flushed. It wraps: not while a row or a command of
the host reads, as in all that time its drives would have to restart, and be judged, 256 times."""

LEAVING = 8
"""Walks that have ended and whose row slots are not free yet: one or two, and some to spare."""

OPERATIONS_PER_BLOCK = 4
"""Drive operations that a block of a host command counts for, as to what an array may have."""

STRADDLE_WIDTH = 256
"""Width in bits from which on an UltraScale+ block can straddle completions."""

UNSTRADDLED_COMPLETIONS = 63
"""Most completions outstanding at such a width without it (PG213)."""

LINE_USERS = 4
"""Blocks that take lines: front end, sequencer, drives, gatherer."""

LINE_RETURNS = 5
"""Blocks that give lines back: front end, sequencer, tracker, gatherer, drives."""


def bits_for_count(count: int) -> int:
    """Bits of an index into ``count`` entries (at least one)."""
    return max(1, (count - 1).bit_length())
