"""Drive operations inside the controller, and the port to a drive's link core."""

from amaranth.hdl import Shape, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, PIECES, Config, bits_for_count
from hdl.nvme.interface import recovery, tried_bits


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


MERGE_BLOCKS = 64
"""Most blocks of one drive command: 256 KiB."""

MERGE_BITS = 6

IDENTITY_BITS = 64
"""Width of a drive's name, such as an EUI-64 or a World Wide Name."""


def owner_bits(config: Config) -> int:
    """Width of an owner number, a row slot or a command slot."""
    return max(config.row_slot_bits, config.slot_bits)


def early_seat(config: Config) -> Shape:
    """Number of a seat of `hdl.stripe.early.Early`."""
    return unsigned(bits_for_count(config.early_rows))


def early(config: Config) -> data.StructLayout:
    """If ``any``: the row that has seat ``seat`` of `Config.early_rows` is told of each piece."""
    return data.StructLayout({"any": 1, "seat": early_seat(config)})


def early_field(config: Config) -> dict:
    """A field ``early``, with ``Config.early_rows`` only."""
    return {"early": early(config)} if config.early_rows else {}


PIECE_CYCLES = 12
"""So long after the end of its operation a piece may still be told of."""


def piece(config: Config) -> data.StructLayout:
    """Piece ``number`` of one of the blocks that the row in seat ``seat`` reads is in its line.

    Told of until `PIECE_CYCLES` after the end of its operation, and not later.
    """
    return data.StructLayout({"seat": early_seat(config), "number": bits_for_count(PIECES)})


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
    elsewhere = {"elsewhere": 1} if config.slow_read_ms else {}
    restarts = {"dated": 1, "restarts": tried_bits(config)} if config.background else {}
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


def drive_command(config: Config) -> data.StructLayout:
    """A command to a drive: ``blocks`` + 1 blocks of 4 KiB from ``block``; FLUSH and
    WRITE_UNCORRECTABLE move no data."""
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

    The drive decides when data moves (as SAS XFER_RDY and SATA DMA Setup do): a ``grant`` asks for
    the next block of a tag's write data, and read data comes when the drive has it. Contract of the
    link core: a command completes at most once; while it moves granted data is taken in the end;
    when the drive goes away it completes every outstanding and every later command with GONE.
    ``present`` and ``capacity`` (blocks) are levels, and so is ``emulated``: the drive's own
    sectors have 512 bytes, its physical ones 4096 (not there without `Config.sector_emulation`),
    and ``identity``: no other drive's, the same each time that it comes; 0: unknown (not there
    without `Config.intent_chunks`).

    ``abort``: a pulse; the command ``abort_tag`` shall end soon, with ABORTED unless it ends
    otherwise. A tag that is not outstanding is ignored, and an abort may come to nothing.
    ``reset``: a level; the core and the drive's link begin anew. From the cycle after it has risen
    until it falls the core offers nothing, and it has forgotten every command that it had.
    ``present`` stays while a drive that was there is expected to come back.

    ``restarted``: a pulse; the drive has begun anew by itself (it says so: SCSI UNIT ATTENTION 29h,
    the signature of ATA's power-on, NVMe CSTS after a subsystem reset), so what it had not stored
    may be lost. What the drive had until then ends with ABORTED, never with GONE. So does the
    command that is offered in that cycle, without having been done; whatever is done after the
    drive has begun anew was offered later. A ``reset`` that leaves the drive its power and its
    cache is none, nor is one of which the drive says nothing.
    Neither comes without ``Config.command_timeout_ms``.
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
