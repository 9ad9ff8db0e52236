"""Pieces of blocks, reported while the rest of the block is still landing."""

from amaranth.hdl import Shape, unsigned
from amaranth.lib import data

from hdl.config import PIECES, Config, bits_for_count
from hdl.kit.optional import optional


def early_seat(config: Config) -> Shape:
    """Number of a seat of `hdl.stripe.rows.early.Early`."""
    return unsigned(bits_for_count(config.early_rows))


def early(config: Config) -> data.StructLayout:
    """If ``any``, each piece is reported to the row in seat ``seat`` of `Config.early_rows`."""
    return data.StructLayout({"any": 1, "seat": early_seat(config)})


def early_field(config: Config) -> dict:
    """A field ``early``, only with ``Config.early_rows``."""
    return optional(config.early_rows, {"early": early(config)})


PIECE_CYCLES = 12
"""Cycles after the end of its operation in which a piece may still be reported."""


def piece(config: Config) -> data.StructLayout:
    """Piece ``number`` of one of the blocks that the row in seat ``seat`` reads is in its line.

    It is reported at most `PIECE_CYCLES` after the end of its operation.
    """
    return data.StructLayout({"seat": early_seat(config), "number": bits_for_count(PIECES)})
