"""Blocks of a host command on their way between host memory and lines."""

from amaranth.lib import data

from hdl.config import Config
from hdl.flow.host_command import Status


def transfer(config: Config) -> data.StructLayout:
    """Move block ``offset`` of the command in ``slot`` between host memory and ``line``.

    Of a block that the command touches in part, only its sectors, to and from their places.
    """
    return data.StructLayout(
        {"slot": config.slot_bits, "offset": config.offset_bits, "line": config.line_bits}
    )


def fetched(config: Config) -> data.StructLayout:
    """A block of host write data is in its line, or (``error``) never will be."""
    return data.StructLayout({"line": config.line_bits, "error": 1})


def delivered(config: Config) -> data.StructLayout:
    """A block was sent to the host from ``line``, or compared with the host's, and ``status`` says
    how that ended; the line now belongs to the receiver."""
    return data.StructLayout(
        {"slot": config.slot_bits, "line": config.line_bits, "status": Status}
    )
