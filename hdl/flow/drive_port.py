"""The port to a drive's link core."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.operation import DriveStatus, Opcode

MERGE_BLOCKS = 64
"""Most blocks of one drive command: 256 KiB."""

MERGE_BITS = 6

IDENTITY_BITS = 64
"""Width of the identity of a drive, such as an EUI-64 or a World Wide Name."""


def drive_command(config: Config) -> data.StructLayout:
    """A command to a drive for ``blocks`` + 1 blocks of 4 KiB from ``block``.

    FLUSH and WRITE_UNCORRECTABLE move no data.
    """
    return data.StructLayout(
        {
            "tag": config.tag_bits,
            "opcode": Opcode,
            "fua": 1,
            "block": BLOCK_NUMBER_BITS,
            "blocks": MERGE_BITS,
        }
    )


def write_data(config: Config) -> data.StructLayout:
    """A beat of write data, in the order of the grants; ``last`` ends a block."""
    return data.StructLayout({"data": config.data_width, "last": 1})


def read_data(config: Config) -> data.StructLayout:
    """A beat of read data. Blocks of one tag come in order; tags change only between blocks."""
    return data.StructLayout({"data": config.data_width, "tag": config.tag_bits, "last": 1})


def drive_completion(config: Config) -> data.StructLayout:
    """The end of a command. A read's completion follows its last beat."""
    return data.StructLayout({"tag": config.tag_bits, "status": DriveStatus})


class DrivePort(wiring.Signature):
    """Between the controller and a drive's link core, seen from the controller.

    The drive decides when data moves, as SAS XFER_RDY and SATA DMA Setup do.

    Contract of the link core: a command completes at most once. While it moves, granted data is
    taken in the end. When the drive goes away, the core completes every outstanding and every later
    command with GONE.

    Ports
    -----
    command
        Commands to the drive.
    grant
        Asks for the next block of write data of a tag.
    write_data, read_data
        Blocks. Read data comes when the drive has it.
    completion
        Ends of commands.
    abort, abort_tag
        A pulse: command ``abort_tag`` shall end soon, with ABORTED unless it ends otherwise. A tag
        that is not outstanding is ignored, and an abort may have no effect. Only with
        ``Config.command_timeout_ms``.
    reset
        A level: the core and the drive's link begin anew. From the cycle after it has risen until
        it falls the core offers nothing, and it has forgotten every command that it had. Only with
        ``Config.command_timeout_ms``.
    present
        A level: there is a drive. It stays high while a drive that was there is expected to come
        back.
    restarted
        A pulse: the drive has begun anew by itself, and has reported that (SCSI UNIT ATTENTION 29h,
        the signature of ATA's power-on, NVMe CSTS after a subsystem reset). Data that it had not
        stored may be lost. Commands that the drive had until then end with ABORTED, never with
        GONE. So does the command that is offered in that cycle, and it has not been done. Every
        command that is done after the drive has begun anew was offered later. A ``reset`` that
        leaves the drive its power and its cache does not count, nor does a restart that the drive
        does not report.
    capacity
        A level, in blocks.
    emulated
        A level: the drive's logical sectors have 512 bytes and its physical ones 4096. Only with
        `Config.sector_emulation`.
    identity
        A level: a number that no other drive has, and that is the same each time the drive comes. 0
        is unknown. Only with `Config.intent_chunks`.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "command": Out(stream.Signature(drive_command(config))),
                "grant": In(stream.Signature(data.StructLayout({"tag": config.tag_bits}))),
                "write_data": Out(stream.Signature(write_data(config))),
                "read_data": In(stream.Signature(read_data(config))),
                "completion": In(stream.Signature(drive_completion(config))),
                "abort": Out(1),
                "abort_tag": Out(config.tag_bits),
                "reset": Out(1),
                "present": In(1),
                "restarted": In(1),
                "capacity": In(BLOCK_NUMBER_BITS),
            }
            | ({"emulated": In(1)} if config.sector_emulation else {})
            | ({"identity": In(IDENTITY_BITS)} if config.intent_chunks else {})
        )
