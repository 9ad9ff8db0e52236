"""Streams between the parts of the NVMe front end."""

from amaranth.hdl import Value
from amaranth.lib import data, enum

from hdl.config import SECTOR_BITS, Config, bits_for_count
from hdl.flow.host_command import HostOpcode, Status, command
from hdl.flow.host_data import transfer
from hdl.flow.host_memory import sqe_slots
from hdl.flow.reference import telling
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
    """Assignments of ``fields`` to the fields of ``view`` of the same names."""
    return [Value.cast(getattr(view, name)).eq(value) for name, value in fields.items()]


def queue_bits(config: Config) -> int:
    """Width of a queue number; 0 is the admin pair."""
    return bits_for_count(config.queue_pairs + 1)


def position_bits(config: Config) -> int:
    """Width of a position in a queue."""
    return max(ADMIN_INDEX_BITS, bits_for_count(config.queue_depth))


def doorbell(config: Config) -> data.StructLayout:
    """A doorbell of pair ``queue``: SQ tail, or (``head``) CQ head."""
    return data.StructLayout({"queue": queue_bits(config), "head": 1, "value": 16})


def entry(config: Config) -> data.StructLayout:
    """A submission queue entry is at ``place`` of the inbox, or (``error``) never will be.

    ``age``: when it was submitted (`hdl.nvme.commands.lifetimes`), or (``mixed``) not before that.
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
    """The end of a command of SQ ``queue``; without ``post`` no completion queue entry is sent.

    With `Config.background`: whom it ``tells``.
    """
    return data.StructLayout(
        {
            "queue": queue_bits(config),
            "identifier": 16,
            "status": STATUS_BITS,
            "result": 32,
            "post": 1,
        }
        | ({"tells": telling(config)} if config.background else {})
    )


class QueueOperation(enum.Enum, shape=2):
    """Changes to the I/O queues."""

    CREATE_CQ = 0
    CREATE_SQ = 1
    DELETE_CQ = 2
    DELETE_SQ = 3


def change(config: Config) -> data.StructLayout:
    """A change to queue ``queue`` (1..). ``last``: entries - 1. ``completion``: CQ of an SQ."""
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


def admit(config: Config) -> data.StructLayout:
    """A decoded I/O command with its two PRP entries; ``hostless``: no host memory is moved;
    ``compares``: blocks that were read are compared with the host's (not there without
    `Config.compare_and_deallocate`). ``head``: that of its lowest part, where ``command`` is its
    highest (not there without `Config.sector_emulation`)."""
    return data.StructLayout(
        {
            "command": command(config),
            "hostless": 1,
            "prp1": 64,
            "prp2": 64,
        }
        | ({"compares": 1} if config.compare_and_deallocate else {})
        | ({"head": SECTOR_BITS} if config.sector_emulation else {})
    )


def again(config: Config) -> data.StructLayout:
    """A slot whose command goes on with its next part; ``lowest``: its last one."""
    lowest = {"lowest": 1} if config.sector_emulation else {}
    return data.StructLayout({"slot": config.slot_bits} | lowest)


def _span(config: Config) -> dict:
    """First and last sector of a block that are meant."""
    return {"first": SECTOR_BITS, "last": SECTOR_BITS} if config.sector_emulation else {}


def zeros(config: Config) -> data.StructLayout:
    """A line to be filled with zeros, its sectors ``first`` to ``last`` where there are any."""
    return data.StructLayout({"line": config.line_bits} | _span(config))


def comparison(config: Config) -> data.StructLayout:
    """A block that has been read, to be compared with the host's, as `zeros`."""
    return data.StructLayout(dict(transfer(config).members) | _span(config))


def target(config: Config) -> data.StructLayout:
    """The I/O command that an Abort names, and the Abort's own identifier."""
    return data.StructLayout({"queue": queue_bits(config), "identifier": 16, "by": 16})


def unsent(config: Config) -> data.StructLayout:
    """A line that is not sent to the host, and how its block ended."""
    return data.StructLayout({"line": config.line_bits, "status": Status})


RANGE_COUNT_BITS = 8
"""NR in CDW10 of Dataset Management: ranges - 1."""


def ranges(config: Config) -> data.StructLayout:
    """A Dataset Management of ``count`` + 1 ranges of ``volume``, in the host's memory.

    ``sectors``: of 512 bytes (not there without `Config.sector_emulation`).
    """
    return data.StructLayout(
        {
            "slot": config.slot_bits,
            "volume": config.volume_bits,
            "count": RANGE_COUNT_BITS,
            "prp1": 64,
            "prp2": 64,
        }
        | ({"sectors": 1} if config.sector_emulation else {})
    )


def carried(config: Config) -> data.StructLayout:
    """What is kept of an I/O command until it ends; ``cached``: what it writes may be in a volatile
    cache by then; ``sectors``: ``block`` and ``blocks`` count 512-byte ones (not there without
    `Config.sector_emulation`)."""
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
        | ({"sectors": 1} if config.sector_emulation else {})
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

    The first five have an image in ROM; ALLOCATED_NAMESPACE has that of NAMESPACE, of which it has
    the low `IMAGE_BITS` bits. The low bits of the last three are a `hdl.flow.report.Section`.
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
    """Build a page in ``line``, without its first ``skip`` words.

    ``nsid``: namespace, or first entry of a list.
    """
    return data.StructLayout(
        {"kind": PageKind, "nsid": 32, "skip": SKIP_BITS, "line": config.line_bits}
    )
