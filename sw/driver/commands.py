"""NVMe 1.4 commands, completions and identify pages as the driver builds and reads them."""

import struct
from dataclasses import dataclass, field
from enum import IntEnum

SQE_BYTES = 64
CQE_BYTES = 16
IDENTIFY_BYTES = 4096

BLOCK_BYTES = 4096
"""Bytes of a logical block, except in namespaces with 512-byte sectors."""

MOST_BLOCKS = 1 << 16
"""Most blocks of one Read or Write. The command has a 16-bit field with the number of blocks less
one."""

COMMAND_DWORDS = 6
"""CDW10 .. CDW15, the words that differ between commands."""


class Admin(IntEnum):
    """Admin opcodes (NVMe 1.4 section 5)."""

    DELETE_SQ = 0x00
    CREATE_SQ = 0x01
    GET_LOG_PAGE = 0x02
    DELETE_CQ = 0x04
    CREATE_CQ = 0x05
    IDENTIFY = 0x06
    ABORT = 0x08
    SET_FEATURES = 0x09
    GET_FEATURES = 0x0A
    ASYNC_EVENT = 0x0C
    NAMESPACE_ATTACHMENT = 0x15


class Io(IntEnum):
    """NVM command set opcodes (NVMe 1.4 section 6)."""

    FLUSH = 0x00
    WRITE = 0x01
    READ = 0x02
    COMPARE = 0x05


class Register(IntEnum):
    """Controller register offsets (NVMe 1.4 section 3.1)."""

    CAP = 0x00
    VS = 0x08
    CC = 0x14
    CSTS = 0x1C
    AQA = 0x24
    ASQ = 0x28
    ACQ = 0x30
    DOORBELLS = 0x1000


FEATURE_WRITE_CACHE = 0x06
FEATURE_NUMBER_OF_QUEUES = 0x07


@dataclass(frozen=True)
class Command:
    """A submission queue entry without its command identifier."""

    opcode: int
    namespace: int = 0
    prp1: int = 0
    prp2: int = 0
    dwords: tuple[int, ...] = field(default=())
    """CDW10 and following, up to six."""
    flags: int = 0

    def pack(self, identifier: int) -> bytes:
        """The 64 bytes of the entry (NVMe 1.4 figure 105)."""
        dwords = list(self.dwords) + [0] * (COMMAND_DWORDS - len(self.dwords))
        return struct.pack(
            "<BBHIQQQQ6I",
            self.opcode,
            self.flags,
            identifier,
            self.namespace,
            0,
            0,
            self.prp1,
            self.prp2,
            *dwords,
        )


@dataclass(frozen=True)
class Completion:
    """A completion queue entry (NVMe 1.4 figure 123)."""

    result: int
    sq_head: int
    sq_identifier: int
    identifier: int
    phase: int
    code: int
    """Status code, 8 bits."""
    code_type: int
    """Status code type, 3 bits."""
    do_not_retry: bool

    @classmethod
    def unpack(cls, raw: bytes) -> "Completion":
        """Reads the 16 bytes of an entry."""
        result, _, head, queue, identifier, status = struct.unpack("<IIHHHH", raw)
        return cls(
            result,
            head,
            queue,
            identifier,
            status & 1,
            (status >> 1) & 0xFF,
            (status >> 9) & 0x7,
            bool(status >> 15),
        )

    @property
    def status(self) -> int:
        """Status code type and status code together, 11 bits, as docs/host-interface.md lists."""
        return self.code_type << 8 | self.code

    @property
    def ok(self) -> bool:
        """Whether the command succeeded."""
        return self.status == 0


JOB_RUNNING = 0x1C5

NAMES = {
    0x001: "Invalid Command Opcode",
    0x002: "Invalid Field",
    0x004: "Data Transfer Error",
    0x006: "Internal Error",
    0x007: "Command Abort Requested",
    0x00B: "Invalid Namespace",
    0x00C: "Command Sequence Error",
    0x013: "Invalid PRP Offset",
    0x080: "LBA Out of Range",
    0x082: "Namespace Not Ready",
    0x100: "Completion Queue Invalid",
    0x101: "Invalid Queue Identifier",
    0x102: "Invalid Queue Size",
    0x105: "Asynchronous Event Request Limit Exceeded",
    0x108: "Invalid Interrupt Vector",
    0x109: "Invalid Log Page",
    0x10C: "Invalid Queue Deletion",
    0x10D: "Feature Not Saveable",
    0x10E: "Feature Not Changeable",
    0x10F: "Feature Not Namespace Specific",
    0x118: "Namespace Already Attached",
    0x11A: "Namespace Not Attached",
    0x11C: "Controller List Invalid",
    0x1C0: "Drive Unavailable",
    0x1C1: "No Entry",
    0x1C2: "In Use",
    0x1C3: "No Space",
    0x1C4: "Not Redundant",
    JOB_RUNNING: "Job Running",
    0x1C6: "Other Drive",
    0x280: "Write Fault",
    0x281: "Unrecovered Read Error",
    0x285: "Compare Failure",
}
"""Names of statuses, by `Completion.status`, as docs/host-interface.md lists them."""

INVALID_OPCODE = 0x001
INVALID_FIELD = 0x002
DRIVE_UNAVAILABLE = 0x1C0
NO_ENTRY = 0x1C1
IN_USE = 0x1C2

HINTS = {
    INVALID_OPCODE: "the card has no such command; some need `background`",
    INVALID_FIELD: "docs/host-interface.md says what the command takes",
    0x109: "the card has no such log; some need `background`",
    DRIVE_UNAVAILABLE: "plug the drive, or name one that is listed, is no spare and belongs to no "
    "array",
    NO_ENTRY: "it is not in the lists; or, if one was to be created, the table is full",
    0x1C3: "take less, or a larger drive",
    0x1C4: "the array has nothing left to work it out from",
    JOB_RUNNING: "the array has a job: stop the job first",
    0x1C6: "replace the member instead: all of it is rebuilt",
}
"""Advice to the user on a status, by `Completion.status`. A command may have better advice."""


class NvmeError(Exception):
    """A command that the device refused or failed. ``status`` is as in `Completion.status`.

    ``hint`` says what to do about it.
    """

    def __init__(self, what: str, completion: Completion, hint: str | None = None):
        # All arguments, or the exception could not be handed from one process to another.
        super().__init__(what, completion, hint)
        self.what = what
        self.completion = completion
        self.status = completion.status
        self.hint = hint or HINTS.get(self.status, "")

    def __str__(self) -> str:
        name = NAMES.get(self.status, "unknown status")
        hint = f": {self.hint}" if self.hint else ""
        return f"{self.what}: {name} ({self.status:03X}h){hint}"


def number(name: str, value: int, bits: int) -> int:
    """The value of a field of ``bits`` bits. Raises `ValueError` if it does not fit."""
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{name} must be 0..{(1 << bits) - 1}, not {value}")
    return value


def read_write(
    opcode: Io, namespace: int, block: int, blocks: int, prp1: int, prp2: int, fua: bool = False
) -> Command:
    """A Read or Write of ``blocks`` logical blocks from ``block`` (NVMe 1.4 sections 6.9, 6.15)."""
    if not 1 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"blocks must be 1..{MOST_BLOCKS}, not {blocks}")
    if not 0 <= block < 1 << 64:
        raise ValueError(f"block must be a 64-bit number, not {block}")
    dwords = (block & 0xFFFF_FFFF, block >> 32, (blocks - 1) | (int(fua) << 30))
    return Command(opcode, namespace, prp1, prp2, dwords)


@dataclass(frozen=True)
class IdentifyController:
    """Identify Controller, the fields that the driver uses (NVMe 1.4 figure 251)."""

    vendor: int
    serial: str
    model: str
    firmware: str
    max_transfer_pages: int
    """Longest transfer in 4 KiB pages (0: no limit)."""
    namespaces: int
    volatile_write_cache: bool
    shutdown_us: int = 0
    """Longest time of a shutdown (RTD3E). 0: the device does not say."""

    @classmethod
    def unpack(cls, page: bytes) -> "IdentifyController":
        """Reads the 4096-byte page."""
        exponent = page[77]
        return cls(
            struct.unpack_from("<H", page, 0)[0],
            page[4:24].decode("ascii").strip(),
            page[24:64].decode("ascii").strip(),
            page[64:72].decode("ascii").strip(),
            1 << exponent if exponent else 0,
            struct.unpack_from("<I", page, 516)[0],
            bool(page[525] & 1),
            struct.unpack_from("<I", page, 88)[0],
        )


@dataclass(frozen=True)
class IdentifyNamespace:
    """Identify Namespace, the fields that the driver uses (NVMe 1.4 figure 249)."""

    blocks: int
    block_bytes: int
    physical_bytes: int
    """Bytes of a physical sector, which is preferred and written atomically (NVMe 1.4 section
    8.25)."""

    @classmethod
    def unpack(cls, page: bytes) -> "IdentifyNamespace":
        """Reads the 4096-byte page."""
        size = struct.unpack_from("<Q", page, 0)[0]
        format_index = page[26] & 0xF
        shift = page[128 + 4 * format_index + 2]
        features, block_bytes = page[24], 1 << shift
        (atomic,) = struct.unpack_from("<H", page, 36)
        (preferred,) = struct.unpack_from("<H", page, 64)
        physical = 1 + min(atomic if features & 2 else 0, preferred if features & 16 else 0)
        return cls(size, block_bytes, physical * block_bytes)
