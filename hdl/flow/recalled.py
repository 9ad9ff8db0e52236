"""Blocks that are on their way to drives, as the redo record gets them."""

from amaranth.lib import data

from hdl.config import BLOCK_NUMBER_BITS, Config


def recalled(config: Config) -> data.StructLayout:
    """Block ``block`` of the drive at ``port``, for ``array``, is in ``line``.

    If ``last``, it is none, and there is no other.
    """
    return data.StructLayout(
        {
            "last": 1,
            "array": config.array_bits,
            "port": config.port_bits,
            "block": BLOCK_NUMBER_BITS,
            "line": config.line_bits,
        }
    )
