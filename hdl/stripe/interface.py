"""Rows on their way: what the gatherer hands to the sequencer, and what comes back."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, Config
from hdl.nvme.interface import Status


class RowKind(enum.Enum, shape=1):
    """What a row slot is for."""

    WRITE = 0
    """Store the joined blocks and keep the row's parity equations."""
    RECOVER = 1
    """Read the one joined block without the drive it lies on."""


def row_state(config: Config) -> data.StructLayout:
    """A row slot, written by the gatherer before launch, read by the sequencer until retirement.

    ``joined`` has a bit per data strip index; ``fua``, ``array``, ``base``, ``shift``, ``row`` are
    those of `hdl.array.interface.extent`. ``more``: the next row of the same drives follows at
    once. ``failed``: a block's data never arrived from the host; the row is not written and its
    commands end with DATA_TRANSFER_ERROR.
    """
    return data.StructLayout(
        {
            "kind": RowKind,
            "fua": 1,
            "more": 1,
            "failed": 1,
            "array": config.array_bits,
            "base": 5,
            "shift": 5,
            "row": BLOCK_NUMBER_BITS,
            "joined": MAX_DRIVES,
        }
    )


def strip_state(config: Config) -> data.StructLayout:
    """A joined block of a row slot, at address row slot * 32 + data strip index."""
    return data.StructLayout(
        {"slot": config.slot_bits, "offset": config.offset_bits, "line": config.line_bits}
    )


def committed(config: Config) -> data.StructLayout:
    """A block of a host command's write is on its drives (or has failed)."""
    return data.StructLayout({"slot": config.slot_bits, "status": Status})
