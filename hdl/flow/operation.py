"""Operations for a drive port, and how they end."""

from amaranth.hdl import Value
from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, Config, bits_for_count
from hdl.flow.piece import early_field
from hdl.flow.recovery import recovery, tried_bits
from hdl.kit.optional import optional


class Opcode(enum.Enum, shape=2):
    """What a drive is asked to do."""

    READ = 0
    WRITE = 1
    FLUSH = 2
    WRITE_UNCORRECTABLE = 3
    """One block, without data: the drive answers every READ of it with MEDIUM_ERROR until it is
    written (NVMe Write Uncorrectable, ATA WRITE UNCORRECTABLE EXT, SCSI WRITE LONG). Only with
    ``Config.background``."""


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
    """Of an operation only: its command failed, perhaps at another block. Nothing is known of this
    one; it must be sent again, ``alone``, and then ends otherwise."""
    SLOW = 5
    """Of a read that can be had ``elsewhere``: the drive takes too long."""


class Owner(enum.Enum, shape=2):
    """Who is told when an operation ends: a row of the stripe engine, a host command, or the
    controller itself (`hdl.drive.flusher.Flusher`)."""

    ROW = 0
    COMMAND = 1
    FLUSHER = 2


def owner_bits(config: Config) -> int:
    """Width of an owner number, a row slot or a command slot."""
    return max(config.row_slot_bits, config.slot_bits)


def operation(config: Config) -> data.StructLayout:
    """One operation for a drive port.

    ``Owner.ROW``: one block (``blocks`` = 0) in ``line``; ``place`` comes back unchanged.
    ``Owner.COMMAND``, READ: ``blocks`` + 1 consecutive blocks, the first being block ``place`` of
    the host command; lines are allocated as the data arrives. FLUSH: of ``Owner.COMMAND`` or
    ``Owner.FLUSHER``, no data.
    WRITE_UNCORRECTABLE is of a row, and ``line`` means nothing.
    ``more``: the next block of this drive will follow at once, so waiting to merge pays.
    ``alone``: never merged. ``elsewhere``: of a read that can also be had from other drives, so it
    may end as SLOW (not there without ``Config.slow_read_ms``). ``recover`` comes
    back unchanged. ``early``: of a row's read, whether and whom to tell of its pieces.
    ``dated`` (with ``background``): if it waits while its drive restarts, it ends with ABORTED and
    is not done. Of reads of one of several copies, and of what a walk writes: others may count by
    then. ``restarts``: how often the drive had restarted as that was decided.
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
    """Width of a block's index in a host command, or of a target of a row."""
    return max(6, config.offset_bits)


def load_bits(config: Config) -> int:
    """Width of the number of blocks that a port has been asked for and not answered."""
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
    """A block of a host command's read is complete in ``line``, now owned by the receiver."""
    return data.StructLayout(
        {"slot": config.slot_bits, "offset": config.offset_bits, "line": config.line_bits}
    )
