"""Streams between the NVMe front end and the data path."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, SECTOR_BITS, Config, bits_for_count


class HostOpcode(enum.Enum, shape=2):
    """I/O commands that reach the data path."""

    READ = 0
    WRITE = 1
    FLUSH = 2


class Status(enum.Enum, shape=4):
    """How a host command ended; the NVMe front end turns it into the specification's status."""

    SUCCESS = 0
    LBA_OUT_OF_RANGE = 1
    INVALID_NAMESPACE = 2
    DATA_TRANSFER_ERROR = 3
    UNRECOVERED_READ = 4
    WRITE_FAULT = 5
    INTERNAL_ERROR = 6
    COMPARE_FAILURE = 7


ROUNDS = 2
"""Times that each copy of a block is asked for it at most."""


def tried_bits(config: Config) -> int:
    """Width of how often a block has been tried, and of how often a drive has restarted."""
    return bits_for_count(ROUNDS * config.ports + config.drive_resets + 4)


def recovery(config: Config) -> data.StructLayout:
    """What has been done to read a block; all 0 in a command from the host.

    ``again``: the block is read alone, by a drive command that covers nothing else. ``tried``: how
    many times a drive could not give it, drives passed over included; of a flush (with
    ``background``), how often the drive had restarted before. ``copy``: the copy that was asked
    last. With ``background``: ``medium``, its drive cannot read the block; ``ordered``, it was
    asked because it is the only one, or those before it could not be read, as is done where copies
    may differ; ``era``, of its array as it was asked: in another one that says nothing.
    """
    background = {"medium": 1, "ordered": 1, "era": ERA_BITS} if config.background else {}
    return data.StructLayout(
        {
            "again": 1,
            "tried": tried_bits(config),
            "copy": bits_for_count(config.ports),
            **background,
        }
    )


def command(config: Config) -> data.StructLayout:
    """A host command, PRPs already at hand. ``blocks`` + 1 blocks from ``block`` of ``volume``.

    ``offset`` is the index in the host's command of the first block (0 from the host).
    ``recover``: what has been tried before, when a block is read again. ``head`` and ``tail``: the
    first sectors of the first block, and the last ones of the last, that the host does not mean
    (not there without `Config.sector_emulation`).
    """
    sectors = {"head": SECTOR_BITS, "tail": SECTOR_BITS} if config.sector_emulation else {}
    return data.StructLayout(
        {
            "slot": config.slot_bits,
            "opcode": HostOpcode,
            "fua": 1,
            "recover": recovery(config),
            "volume": config.volume_bits,
            "block": BLOCK_NUMBER_BITS,
            "blocks": config.offset_bits,
            "offset": config.offset_bits,
        }
        | sectors
    )


def completion(config: Config) -> data.StructLayout:
    """The one completion of a host command."""
    return data.StructLayout({"slot": config.slot_bits, "status": Status})


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
