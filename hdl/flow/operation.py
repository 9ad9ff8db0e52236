"""Operations for a drive port, and their ends."""

from amaranth.hdl import Value
from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, Config, bits_for_count
from hdl.flow.piece import early_field
from hdl.flow.recovery import recovery, tried_bits
from hdl.kit.optional import optional


class Opcode(enum.Enum, shape=2):
    """The operations of a drive."""

    READ = 0
    WRITE = 1
    FLUSH = 2
    WRITE_UNCORRECTABLE = 3
    """Makes one block unreadable, without data. The drive answers every READ of it with
    MEDIUM_ERROR until it is written (NVMe Write Uncorrectable, ATA WRITE UNCORRECTABLE EXT, SCSI
    WRITE LONG). Only with ``Config.background``."""


def has_data(opcode) -> Value:
    """Whether an operation moves blocks."""
    return (opcode == Opcode.READ) | (opcode == Opcode.WRITE)


class DriveStatus(enum.Enum, shape=3):
    """How a drive command, or an operation, ended."""

    GOOD = 0
    MEDIUM_ERROR = 1
    ABORTED = 2
    GONE = 3
    UNREACHED = 4
    """Of an operation only. Its command failed, perhaps at another block, so nothing is known of
    this block. The operation must be sent again, ``alone``, and then ends with another status."""
    SLOW = 5
    """Of a read that can be had ``elsewhere`` only. The drive takes too long."""


class Owner(enum.Enum, shape=2):
    """Who gets the end of an operation: a row of the stripe engine, a host command, or the
    controller itself (`hdl.drive.flusher.Flusher`, `hdl.stripe.rows.row_flushes.RowFlushes`,
    `hdl.metadata.page_mover.PageMover`)."""

    ROW = 0
    COMMAND = 1
    FLUSHER = 2
    METADATA = 3


def owner_bits(config: Config) -> int:
    """Width of the number of an owner, which is a row slot, a command slot, an array, a line of
    `hdl.metadata.page_mover.PageMover`, or a line that is replayed."""
    pages = bits_for_count(config.moved_pages) if config.metadata else 0
    replayed = config.replay_bits if config.backup_blocks else 0
    return max(config.row_slot_bits, config.slot_bits, config.array_bits, pages, replayed)


def operation(config: Config) -> data.StructLayout:
    """One operation for a drive port.

    An operation of ``Owner.ROW`` or ``Owner.METADATA`` is for one block (``blocks`` = 0) in
    ``line``. A READ of ``Owner.COMMAND`` is for ``blocks`` + 1 consecutive blocks. The first of
    them is block ``place`` of the host command. Lines are allocated as the data arrives. A FLUSH of
    ``Owner.COMMAND`` or ``Owner.FLUSHER`` has no data. WRITE_UNCORRECTABLE is of a row, and
    ``line`` has no meaning.

    Fields
    ------
    port, opcode, fua
        The drive port, the operation, and Force Unit Access.
    recover
        Comes back unchanged.
    more
        The next block of this drive will follow at once, so waiting to merge pays.
    alone
        The operation is never merged.
    elsewhere
        Of a read whose data can also be had from other drives. It may end as SLOW. Only with
        ``Config.slow_read_ms``.
    dated
        If the operation waits while its drive restarts, it ends with ABORTED and is not done. Set
        for reads of one of several copies, and for blocks that a walk writes: other drives or data
        may be valid by then. Only with ``Config.background``.
    restarts
        How often the drive had restarted when ``dated`` was decided. Only with
        ``Config.background``.
    early
        Of a row's read: whether its pieces are reported, and to which row.
    block, blocks
        First block of the drive. There are ``blocks`` + 1 blocks.
    owner, index
        The owner, and its row slot or command slot.
    place
        Of a row: comes back unchanged. Of a command: index of the first block in the host command.
        Of ``Owner.FLUSHER``: 1 if rows need it, and then ``index`` is their array, else 0.
    line
        The line of a row's block.
    """
    elsewhere = optional(config.slow_read_ms, {"elsewhere": 1})
    restarts = optional(config.background, {"dated": 1, "restarts": tried_bits(config)})
    return data.StructLayout(
        {
            "port": config.port_bits,
            "opcode": Opcode,
            "fua": 1,
            "recover": recovery(config),
            "more": 1,
            "alone": 1,
            **elsewhere,
            **restarts,
            **early_field(config),
            "block": BLOCK_NUMBER_BITS,
            "blocks": config.offset_bits,
            "owner": Owner,
            "index": owner_bits(config),
            "place": owner_place_bits(config),
            "line": config.line_bits,
        }
    )


def owner_place_bits(config: Config) -> int:
    """Width of a block's index in a host command, or of the number of a target of a row."""
    return max(6, config.offset_bits)


def load_bits(config: Config) -> int:
    """Width of the number of blocks that a port has been asked for and has not answered."""
    return bits_for_count(config.operations * config.command_blocks + 1)


def finished(config: Config) -> data.StructLayout:
    """The end of one operation of a row, of one flush, or of one *failed* block of a command.

    A block of a host command's read that succeeds is reported as `landed`, never here.
    """
    return data.StructLayout(
        {
            "port": config.port_bits,
            "opcode": Opcode,
            "recover": recovery(config),
            "owner": Owner,
            "index": owner_bits(config),
            "place": owner_place_bits(config),
            "status": DriveStatus,
        }
    )


def landed(config: Config) -> data.StructLayout:
    """A block of a host command's read is complete in ``line``. The line now belongs to the
    receiver."""
    return data.StructLayout(
        {"slot": config.slot_bits, "offset": config.offset_bits, "line": config.line_bits}
    )
