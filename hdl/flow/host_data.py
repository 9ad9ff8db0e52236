"""Blocks of a host command on their way between host memory and lines."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

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


class BlockMoves(wiring.Signature):
    """Moves of blocks between host memory and lines, seen from who asks for them.

    Ports
    -----
    fetch
        Blocks to be moved from host memory into lines.
    fetched
        Blocks that have been moved there. It is told when all of the block can be read in its line
        (`hdl.memory.settle.Settle`).
    deliver
        Blocks to be moved from lines to host memory.
    delivered
        Blocks that have been moved there.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "fetch": Out(stream.Signature(transfer(config))),
                "fetched": In(stream.Signature(fetched(config))),
                "deliver": Out(stream.Signature(transfer(config))),
                "delivered": In(stream.Signature(delivered(config))),
            }
        )
