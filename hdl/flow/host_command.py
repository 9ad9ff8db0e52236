"""A host command in the data path, and its completion."""

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, SECTOR_BITS, Config
from hdl.flow.recovery import recovery
from hdl.kit.optional import optional


class HostOpcode(enum.Enum, shape=2):
    """I/O commands that reach the data path."""

    READ = 0
    WRITE = 1
    FLUSH = 2


class Status(enum.Enum, shape=4):
    """How a host command ended. The NVMe front end turns it into a status of the specification."""

    SUCCESS = 0
    LBA_OUT_OF_RANGE = 1
    INVALID_NAMESPACE = 2
    DATA_TRANSFER_ERROR = 3
    UNRECOVERED_READ = 4
    WRITE_FAULT = 5
    INTERNAL_ERROR = 6
    COMPARE_FAILURE = 7


def command(config: Config) -> data.StructLayout:
    """A host command for ``blocks`` + 1 blocks from ``block`` of ``volume``. Its PRPs have been
    read.

    Fields
    ------
    slot
        The command slot.
    recover
        What has been tried before, when a block is read again.
    offset
        Index in the host's command of the first block. It is 0 in a command from the host.
    head, tail
        The number of sectors at the start of the first block, and at the end of the last one, that
        are outside the host's range. Only with `Config.sector_emulation`.
    """
    sectors = optional(config.sector_emulation, {"head": SECTOR_BITS, "tail": SECTOR_BITS})
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


class HostCommands(wiring.Signature):
    """I/O commands and their ends, seen from the NVMe front end.

    Ports
    -----
    command
        Commands with their PRPs at hand.
    completion
        How they ended. A command ends only after each of its transfers has been answered.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "command": Out(stream.Signature(command(config))),
                "completion": In(stream.Signature(completion(config))),
            }
        )
