"""A row on its way: the data that the gatherer hands to the sequencer, and the answer."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, MAX_DRIVES, Config
from hdl.flow.host_command import Status
from hdl.flow.walk import ROLE_BITS, WalkKind
from hdl.kit.optional import optional


class RowKind(enum.Enum, shape=1):
    """The purpose of a row slot."""

    WRITE = 0
    """Store the joined blocks and keep the parity equations of the row."""
    RECOVER = 1
    """Read the one joined block without the drive on which it lies. If ``gathered``, read all
    joined blocks, each from its drive if possible."""


def row_walk(config: Config) -> dict:
    """The walk of a row: a field ``walk``, only with ``Config.background``.

    If ``any``, a row slot or an extent stands for this `hdl.flow.walk.walk`.
    """
    fields = {"any": 1, "kind": WalkKind, "tag": 8, "source": ROLE_BITS, "era": ERA_BITS}
    return optional(config.background, {"walk": data.StructLayout(fields)})


def row_state(config: Config) -> data.StructLayout:
    """A row slot. The gatherer writes it before the launch, and the sequencer reads it until
    retirement.

    Fields
    ------
    kind
        As `RowKind` says.
    fua, array, base, shift, row
        As in `hdl.flow.extent.extent`.
    more
        The next row of the same drives follows at once.
    failed
        The data of a block never arrived from the host. The row is not written, and its commands
        end with DATA_TRANSFER_ERROR.
    joined
        A bit for each data strip index.
    walk
        If ``any``, the row is walked in the background and no block joined it. ``kind`` is WRITE.
    fills
        Of kind RECOVER: the one joined block is read or recovered into its own line, and the row
        stays. Only with `Config.sector_emulation`.
    gathered
        Of kind RECOVER: the joined blocks are those of sequential reads, as many as came. Only with
        `Config.gather_reads`.
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
            **row_walk(config),
        }
        | optional(config.sector_emulation, {"fills": 1})
        | optional(config.gather_reads, {"gathered": 1})
    )


def strip_state(config: Config) -> data.StructLayout:
    """A joined block of a row slot. Its address is row slot * 32 + data strip index."""
    return data.StructLayout(
        {"slot": config.slot_bits, "offset": config.offset_bits, "line": config.line_bits}
    )


def committed(config: Config) -> data.StructLayout:
    """A block of a host command's write is on its drives, or has failed."""
    return data.StructLayout({"slot": config.slot_bits, "status": Status})
