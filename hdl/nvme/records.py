"""Streams between the parts of the NVMe front end."""

from amaranth.hdl import Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import SECTOR_BITS, Config, bits_for_count
from hdl.flow.host_command import HostOpcode, Status, command
from hdl.flow.host_data import transfer
from hdl.flow.host_memory import read_request, sqe_slots
from hdl.flow.reference import telling
from hdl.kit.optional import optional
from hdl.nvme.codes import SQE_BITS, STATUS_BITS
from hdl.nvme.commands.lifetimes import AGE_BITS

BLOCK_COUNT_BITS = 16
"""NLB in CDW12 of I/O commands: blocks - 1."""

FETCH_ENTRIES = 8
"""Most submission queue entries of one read."""

FETCHES = 8
"""Reads of submission queue entries in flight."""

ADMIN_INDEX_BITS = 12
"""Admin queues have at most 4096 entries (AQA)."""

PAGE_NUMBER_BITS = 52
"""A 64-bit address without the offset in its 4 KiB page."""


def assign(view: data.View, **fields) -> list:
    """Assigns ``fields`` to the fields of ``view`` that have the same names."""
    return [Value.cast(getattr(view, name)).eq(value) for name, value in fields.items()]


def queue_bits(config: Config) -> int:
    """Width of a queue number. The admin pair has number 0."""
    return bits_for_count(config.queue_pairs + 1)


def position_bits(config: Config) -> int:
    """Width of a position in a queue."""
    return max(ADMIN_INDEX_BITS, bits_for_count(config.queue_depth))


def doorbell(config: Config) -> data.StructLayout:
    """A write of ``value`` to a doorbell of queue pair ``queue``.

    With ``head`` it is the head of the completion queue, else the tail of the submission queue.
    """
    return data.StructLayout({"queue": queue_bits(config), "head": 1, "value": 16})


def entry(config: Config) -> data.StructLayout:
    """A submission queue entry of ``queue`` is at ``place`` of the inbox.

    With ``error`` it could not be read and never will be there. ``age`` says when the entry was
    submitted (`hdl.nvme.commands.lifetimes`). With ``mixed`` it was submitted then or later.
    """
    return data.StructLayout(
        {
            "queue": queue_bits(config),
            "place": bits_for_count(sqe_slots(config)),
            "error": 1,
            "age": AGE_BITS,
            "mixed": 1,
        }
    )


def finish(config: Config) -> data.StructLayout:
    """The end of a command of submission queue ``queue``.

    Without ``post`` no completion queue entry is sent. ``tells`` says which volume learns from it
    that it has lost something. Without `Config.background` ``tells`` reads as 0.
    """
    return data.StructLayout(
        {
            "queue": queue_bits(config),
            "identifier": 16,
            "status": STATUS_BITS,
            "result": 32,
            "post": 1,
        }
        | optional(config.background, {"tells": telling(config)})
    )


class QueueOperation(enum.Enum, shape=2):
    """Changes to the I/O queues."""

    CREATE_CQ = 0
    CREATE_SQ = 1
    DELETE_CQ = 2
    DELETE_SQ = 3


def change(config: Config) -> data.StructLayout:
    """A change to I/O queue ``queue``, 1 or more.

    ``page`` is its page number in host memory, and ``last`` its number of entries minus 1. Of a
    submission queue ``completion`` is its completion queue. Of a completion queue ``vector`` is its
    interrupt vector, and ``interrupt`` says that it raises it.
    """
    return data.StructLayout(
        {
            "operation": QueueOperation,
            "queue": queue_bits(config),
            "page": PAGE_NUMBER_BITS,
            "last": position_bits(config),
            "completion": queue_bits(config),
            "vector": queue_bits(config),
            "interrupt": 1,
        }
    )


class QueueChanges(wiring.Signature):
    """Changes to the I/O queues, seen from the admin commands.

    Ports
    -----
    request
        Create and delete of I/O queues.
    response
        The status field that answers each. A DELETE_SQ is answered once the queue's fetched
        commands have ended.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "request": Out(stream.Signature(change(config))),
                "response": In(stream.Signature(STATUS_BITS)),
            }
        )


def admit(config: Config) -> data.StructLayout:
    """A decoded I/O command with its two PRP entries.

    With ``hostless`` no host memory is moved. With ``compares`` blocks that were read are compared
    with the host's. Without `Config.compare_and_deallocate` it reads as 0. ``command`` is the
    highest part of a long command, and ``head`` is that of its lowest part. Without
    `Config.sector_emulation` ``head`` reads as 0.
    """
    return data.StructLayout(
        {
            "command": command(config),
            "hostless": 1,
            "prp1": 64,
            "prp2": 64,
        }
        | optional(config.compare_and_deallocate, {"compares": 1})
        | optional(config.sector_emulation, {"head": SECTOR_BITS})
    )


def again(config: Config) -> data.StructLayout:
    """A command slot whose command goes on with its next part.

    ``lowest``: that part is the last. Without `Config.sector_emulation` it reads as 0.
    """
    return data.StructLayout(
        {"slot": config.slot_bits} | optional(config.sector_emulation, {"lowest": 1})
    )


def _span(config: Config) -> dict:
    """First and last sector of a block that are meant."""
    return optional(config.sector_emulation, {"first": SECTOR_BITS, "last": SECTOR_BITS})


def zeros(config: Config) -> data.StructLayout:
    """A line whose sectors ``first`` to ``last`` are to be filled with zeros.

    Without `Config.sector_emulation` all of the line is, and both read as 0.
    """
    return data.StructLayout({"line": config.line_bits} | _span(config))


def comparison(config: Config) -> data.StructLayout:
    """A block that has been read. Its sectors ``first`` to ``last`` are to be compared with the
    host's, as in `zeros`."""
    return data.StructLayout(dict(transfer(config).members) | _span(config))


def target(config: Config) -> data.StructLayout:
    """The I/O command that an Abort names. ``by`` is the Abort's own identifier."""
    return data.StructLayout({"queue": queue_bits(config), "identifier": 16, "by": 16})


def sending(config: Config) -> data.StructLayout:
    """A line that is about to be sent to the host, for the command in a slot."""
    return data.StructLayout({"slot": config.slot_bits, "line": config.line_bits})


def list_done(config: Config) -> data.StructLayout:
    """The read of the list of the command in a slot has ended. ``error``: it has failed."""
    return data.StructLayout({"slot": config.slot_bits, "error": 1})


def stored(config: Config) -> data.StructLayout:
    """A command gets ``slot``, which carries it. ``parts``: how many more commands of
    ``transfer_blocks`` blocks it takes. Each is below the one before."""
    return data.StructLayout(
        {"slot": config.slot_bits, "command": carried(config), "parts": part_bits(config)}
    )


class InboxWrite(wiring.Signature):
    """Writes to a part of the inbox, seen from the writer.

    Ports
    -----
    beat
        Which beat of the part is written.
    data
        The beat.
    mask
        A bit for each 32-bit word of it that is written.

    Parameters
    ----------
    config
        Sizes.
    beats
        Of the part.
    """

    def __init__(self, config: Config, beats: int):
        super().__init__(
            {
                "beat": Out(range(max(2, beats))),
                "data": Out(config.data_width),
                "mask": Out(config.beat_dwords),
            }
        )


class AbortAccess(wiring.Signature):
    """Aborts of I/O commands, seen from the admin commands.

    Ports
    -----
    command
        I/O commands that are to be aborted. Not used without `Config.abort_commands`.
    tried
        A pulse. The abort has been tried.
    found
        With ``tried``: the I/O command will end as aborted, and its Abort behind it.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "command": Out(stream.Signature(target(config))),
                "tried": In(1),
                "found": In(1),
            }
        )


class ParameterRead(wiring.Signature):
    """A read of the first word of a command's data, seen from who wants it.

    Ports
    -----
    request
        The read.
    done
        A pulse. The read has ended.
    error
        With ``done``: the word could not be read.
    word
        The word.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "request": Out(stream.Signature(read_request(config))),
                "done": In(1),
                "error": In(1),
                "word": In(32),
            }
        )


def unsent(config: Config) -> data.StructLayout:
    """A line that is not sent to the host, and how its block ended."""
    return data.StructLayout({"line": config.line_bits, "status": Status})


RANGE_COUNT_BITS = 8
"""NR in CDW10 of Dataset Management: ranges - 1."""


def ranges(config: Config) -> data.StructLayout:
    """A Dataset Management of ``count`` + 1 ranges of ``volume``, which are in host memory.

    ``sectors``: ranges count sectors of 512 bytes. Without `Config.sector_emulation` it reads as 0.
    """
    return data.StructLayout(
        {
            "slot": config.slot_bits,
            "volume": config.volume_bits,
            "count": RANGE_COUNT_BITS,
            "prp1": 64,
            "prp2": 64,
        }
        | optional(config.sector_emulation, {"sectors": 1})
    )


def carried(config: Config) -> data.StructLayout:
    """What is kept of an I/O command until it ends.

    ``cached``: what it writes may be in a volatile cache when it ends. ``sectors``: ``block`` and
    ``blocks`` count sectors of 512 bytes. Without `Config.sector_emulation` it reads as 0.
    """
    return data.StructLayout(
        {
            "queue": queue_bits(config),
            "identifier": 16,
            "nsid": 32,
            "block": 64,
            "opcode": HostOpcode,
            "blocks": BLOCK_COUNT_BITS,
            "hostless": 1,
            "cached": 1,
        }
        | optional(config.sector_emulation, {"sectors": 1})
    )


def part_bits(config: Config) -> int:
    """Width of the number of transfers that a command takes, minus 1."""
    return BLOCK_COUNT_BITS - config.transfer_bits


def rejected(config: Config) -> data.StructLayout:
    """An I/O command that ends before it reaches the data path."""
    return data.StructLayout({"slot": config.slot_bits, "status": STATUS_BITS})


def sqe() -> data.StructLayout:
    """A submission queue entry (NVMe 1.4 figure 105)."""
    layout = data.StructLayout(
        {
            "opcode": 8,
            "fuse": 2,
            "reserved": 4,
            "psdt": 2,
            "identifier": 16,
            "nsid": 32,
            "cdw2": 32,
            "cdw3": 32,
            "metadata": 64,
            "prp1": 64,
            "prp2": 64,
            "cdw10": 32,
            "cdw11": 32,
            "cdw12": 32,
            "cdw13": 32,
            "cdw14": 32,
            "cdw15": 32,
        }
    )
    assert layout.size == SQE_BITS
    return layout


class PageKind(enum.Enum, shape=5):
    """Pages that `hdl.nvme.pages.pages.PageGenerator` builds.

    The first five have an image in ROM. ALLOCATED_NAMESPACE has the image of NAMESPACE, and the
    same low `IMAGE_BITS` bits. The low bits of the last three are a `hdl.flow.report.Section`.
    14 is no page (`hdl.nvme.pages.pages.NO_PAGE`).
    """

    CONTROLLER = 0
    NAMESPACE = 1
    DESCRIPTORS = 2
    SMART = 3
    FIRMWARE_SLOT = 4
    ERROR = 5
    ACTIVE_NAMESPACES = 6
    ARRAYS = 7
    VOLUMES = 8
    ALLOCATED_NAMESPACE = 9
    CHANGED_NAMESPACES = 10
    ALLOCATED_NAMESPACES = 11
    DRIVES = 12
    CONTROLLERS = 13
    ARRAY_STATES = 16
    DEFECTS = 17
    LOST_BLOCKS = 18


IMAGE_BITS = 3

SKIP_BITS = 11
"""Words of a page before those that are sent."""


def page_request(config: Config) -> data.StructLayout:
    """A page of ``kind`` is to be built in ``line``, without its first ``skip`` words.

    ``nsid`` is the namespace that it is about, or the first entry of a list.
    """
    return data.StructLayout(
        {"kind": PageKind, "nsid": 32, "skip": SKIP_BITS, "line": config.line_bits}
    )
