"""A row on its way: what the gatherer hands to the sequencer, and what comes back."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, MAX_DRIVES, Config
from hdl.flow.host_command import Status
from hdl.flow.walk import ROLE_BITS, WalkKind
from hdl.kit.optional import optional


class RowKind(enum.Enum, shape=1):
    """What a row slot is for."""

    WRITE = 0
    """Store the joined blocks and keep the row's parity equations."""
    RECOVER = 1
    """Read the one joined block without the drive it lies on; if ``gathered``, all joined blocks,
    each from its drive if it can be."""


def errand(config: Config) -> dict:
    """A field ``walk``, with ``Config.background`` only: the `hdl.flow.walk.walk` that a
    row slot, or an extent, stands for, if ``any``."""
    fields = {"any": 1, "kind": WalkKind, "tag": 8, "source": ROLE_BITS, "era": ERA_BITS}
    return optional(config.background, {"walk": data.StructLayout(fields)})


def row_state(config: Config) -> data.StructLayout:
    """A row slot, written by the gatherer before launch, read by the sequencer until retirement.

    ``joined`` has a bit per data strip index; ``fua``, ``array``, ``base``, ``shift``, ``row`` are
    those of `hdl.flow.extent.extent`. ``more``: the next row of the same drives follows at
    once. ``failed``: a block's data never arrived from the host; the row is not written and its
    commands end with DATA_TRANSFER_ERROR. ``fills``: of kind RECOVER, the one joined block is read
    or recovered into its own line and the row stays (not there without `Config.sector_emulation`).
    ``walk``: if ``any``, the row is walked in the background and nothing joined it; ``kind`` is
    WRITE. ``gathered``: of kind RECOVER, blocks of sequential reads, as many as came (not there
    without `Config.gather_reads`).
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
            **errand(config),
        }
        | optional(config.sector_emulation, {"fills": 1})
        | optional(config.gather_reads, {"gathered": 1})
    )


def strip_state(config: Config) -> data.StructLayout:
    """A joined block of a row slot, at address row slot * 32 + data strip index."""
    return data.StructLayout(
        {"slot": config.slot_bits, "offset": config.offset_bits, "line": config.line_bits}
    )


def committed(config: Config) -> data.StructLayout:
    """A block of a host command's write is on its drives (or has failed)."""
    return data.StructLayout({"slot": config.slot_bits, "status": Status})
