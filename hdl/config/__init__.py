"""Every size of a controller, in one validated record, and the presets that the project builds.

Values that several blocks must agree on are derived here once. This page gathers the definitions of
the files of the folder.
"""

from hdl.config.controller import Config
from hdl.config.presets import board, small
from hdl.config.sizes import (
    BLOCK_BYTES,
    BLOCK_NUMBER_BITS,
    DATA_OFFSET_BITS,
    DATA_OFFSET_BLOCKS,
    DWORDS_PER_BLOCK,
    ERA_BITS,
    LEAVING,
    LINE_RETURNS,
    LINE_USERS,
    LINE_WRITERS,
    MAX_DRIVES,
    MENDED,
    MENDS,
    MOST_STORED_VOLUMES,
    OPERATIONS_PER_BLOCK,
    PIECES,
    SECTOR_BITS,
    SECTOR_BYTES,
    SECTORS_PER_BLOCK,
    STRADDLE_WIDTH,
    TIME_BITS,
    UNSTRADDLED_COMPLETIONS,
    bits_for_count,
)

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_NUMBER_BITS",
    "DATA_OFFSET_BITS",
    "DATA_OFFSET_BLOCKS",
    "DWORDS_PER_BLOCK",
    "ERA_BITS",
    "LEAVING",
    "LINE_RETURNS",
    "LINE_USERS",
    "LINE_WRITERS",
    "MAX_DRIVES",
    "MENDED",
    "MENDS",
    "MOST_STORED_VOLUMES",
    "OPERATIONS_PER_BLOCK",
    "PIECES",
    "SECTORS_PER_BLOCK",
    "SECTOR_BITS",
    "SECTOR_BYTES",
    "STRADDLE_WIDTH",
    "TIME_BITS",
    "UNSTRADDLED_COMPLETIONS",
    "Config",
    "bits_for_count",
    "board",
    "small",
]
