"""Blocks of a host command on their way between host memory and lines."""

from amaranth.lib import data

from hdl.config import Config
from hdl.flow.host_command import Status


def transfer(config: Config) -> data.StructLayout:
    """Move block ``offset`` of the command in ``slot`` between host memory and ``line``.

    If the command touches only part of the block, only these sectors move, from and to their
    positions in the block.
    """
    return data.StructLayout(
        {"slot": config.slot_bits, "offset": config.offset_bits, "line": config.line_bits}
    )


def fetched(config: Config) -> data.StructLayout:
    """A block of host write data is in its line. With ``error`` it never will be."""
    return data.StructLayout({"line": config.line_bits, "error": 1})


def delivered(config: Config) -> data.StructLayout:
    """A block was sent to the host from ``line``, or was compared with the host's block.

    ``status`` says how that ended. The line now belongs to the receiver.
    """
    return data.StructLayout(
        {"slot": config.slot_bits, "line": config.line_bits, "status": Status}
    )
