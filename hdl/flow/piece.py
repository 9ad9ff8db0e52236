"""Pieces of blocks, told of while the rest of the block is still landing."""

from amaranth.hdl import Shape, unsigned
from amaranth.lib import data

from hdl.config import PIECES, Config, bits_for_count
from hdl.kit.optional import optional


def early_seat(config: Config) -> Shape:
    """Number of a seat of `hdl.stripe.rows.early.Early`."""
    return unsigned(bits_for_count(config.early_rows))


def early(config: Config) -> data.StructLayout:
    """If ``any``: the row that has seat ``seat`` of `Config.early_rows` is told of each piece."""
    return data.StructLayout({"any": 1, "seat": early_seat(config)})


def early_field(config: Config) -> dict:
    """A field ``early``, with ``Config.early_rows`` only."""
    return optional(config.early_rows, {"early": early(config)})


PIECE_CYCLES = 12
"""So long after the end of its operation a piece may still be told of."""


def piece(config: Config) -> data.StructLayout:
    """Piece ``number`` of one of the blocks that the row in seat ``seat`` reads is in its line.

    Told of until `PIECE_CYCLES` after the end of its operation, and not later.
    """
    return data.StructLayout({"seat": early_seat(config), "number": bits_for_count(PIECES)})
