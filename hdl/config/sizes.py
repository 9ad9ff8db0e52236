"""Sizes that every controller has, and the widths that follow from a count."""

BLOCK_BYTES = 4096
"""Bytes of a block: cache line, parity unit, host page and drive unit."""

DWORDS_PER_BLOCK = BLOCK_BYTES // 4

SECTOR_BYTES = 512
"""Bytes of a host sector of a volume with sector emulation."""

SECTORS_PER_BLOCK = BLOCK_BYTES // SECTOR_BYTES

SECTOR_BITS = SECTORS_PER_BLOCK.bit_length() - 1
"""Width of a sector's number in its block."""

BLOCK_NUMBER_BITS = 40
"""Width of a block number. 2**40 blocks of 4 KiB are 4 EiB."""

TIME_BITS = 48
"""Width of `now`, in clock cycles. At 250 MHz it wraps after 13 days."""

MAX_DRIVES = 32
"""Most drives in an array, and most drive ports of a controller."""

DATA_OFFSET_BLOCKS = 256
"""Blocks at the start of a member that are kept free for metadata: 1 MiB, as Linux md leaves at
least. With `Config.metadata` an array that Linux has made may have more.
"""

DATA_OFFSET_BITS = 24
"""Width of their number: 64 GiB. Linux leaves 128 MiB on drives of 1 TB."""

MOST_STORED_VOLUMES = 64
"""Volumes of a controller whose arrays live on their drives: so many have room in a list."""

MOST_STORED_CHUNKS = 1 << 14
"""Chunks of the write-intent bitmap of an array that lives on its drives: so many have room in a
page."""

PIECES = 8
"""Pieces of a block that can be worked out one by one while the rest of it is still landing."""

LINE_WRITERS = 5
"""Users that write lines: endpoint, parity engine, both paths of the drives, front end."""

MENDS = 4
"""Rows with an unreadable block that each block which finds such rows remembers."""

MENDED = 8
"""Rows with an unreadable block that are being mended at once."""

ERA_BITS = 8
"""Width of the era, which counts how often an array has lost data that was not flushed. It wraps,
but not while a row or a command of the host is inside. In that time the drives would have to
restart, and be judged, 256 times."""

LEAVING = 8
"""Walks that have ended and whose row slots are not free yet. There are one or two, and some to
spare."""

SUPERBLOCK_LINES = 8
"""Superblocks that are written at once: a drive takes some eight times as long as making one."""

LIST_RECORDS = 255
"""Blocks that a list on the backup flash names: four words each, and a CRC."""

MOST_LISTS = 128
"""Lists that the head on the backup flash has room for."""

REPLAY_LINES = 32
"""Blocks that are replayed at once, each in a line. Nobody else uses lines then."""

BACKUP_OPERATIONS = 16
"""Drive operations that are kept for the backup flash."""

OPERATIONS_PER_BLOCK = 4
"""Drive operations that a block of a host command counts for against the share of its array."""

STRADDLE_WIDTH = 256
"""Width in bits from which on an UltraScale+ block can straddle completions."""

UNSTRADDLED_COMPLETIONS = 63
"""Most completions outstanding without straddling at `STRADDLE_WIDTH` and above (PG213)."""

LINE_USERS = 4
"""Blocks that take lines: front end, sequencer, drives, gatherer."""

LINE_RETURNS = 5
"""Blocks that give lines back: front end, sequencer, tracker, gatherer, drives."""


def bits_for_count(count: int) -> int:
    """Bits of an index into ``count`` entries (at least one)."""
    return max(1, (count - 1).bit_length())
