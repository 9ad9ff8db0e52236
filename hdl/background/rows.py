"""Rows and stretches of rows as the parts of background work name them."""

from amaranth.lib import data

from hdl.config import BLOCK_NUMBER_BITS, Config


def array_row(config: Config) -> data.StructLayout:
    """Row ``row`` of ``array``."""
    return data.StructLayout({"array": config.array_bits, "row": BLOCK_NUMBER_BITS})


def stretch() -> data.StructLayout:
    """Rows from ``first`` up to the one before ``end``, or to the last one if ``end`` is 0."""
    return data.StructLayout({"first": BLOCK_NUMBER_BITS, "end": BLOCK_NUMBER_BITS})
