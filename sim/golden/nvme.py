"""NVMe 1.4 as a host sees it: entries, PRPs, pages and codes, in plain Python.

It is written from the specification and shares nothing with the hardware. It is the reference for
the hardware's tests.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PAGE = 4096
SECTOR = 512
SQE_BYTES = 64
CQE_BYTES = 16
MSIX_TABLE = 0x2000
MSIX_PENDING = 0x3000
DOORBELLS = 0x1000

CAP, VS, INTMS, INTMC, CC, CSTS, AQA, ASQ, ACQ = (
    0x00, 0x08, 0x0C, 0x10, 0x14, 0x1C, 0x24, 0x28, 0x30,
)  # fmt: skip

CC_ENABLE = 1 | 6 << 16 | 4 << 20
CC_SHUTDOWN, CC_SHUTDOWN_NORMAL = 3 << 14, 1 << 14
CSTS_READY, CSTS_FATAL = 1, 2
CSTS_SHUTDOWN_COMPLETE = 2 << 2

DELETE_SQ, CREATE_SQ, GET_LOG, DELETE_CQ, CREATE_CQ, IDENTIFY, ABORT = 0, 1, 2, 4, 5, 6, 8
SET_FEATURES, GET_FEATURES, ASYNC_EVENT = 9, 10, 12
NAMESPACE_MANAGEMENT, NAMESPACE_ATTACHMENT = 0x0D, 0x15
START_JOB, STOP_JOB, SET_RATE = 0xD0, 0xD4, 0xD8
REPLACE_MEMBER, ADD_SPARE, REMOVE_SPARE, RE_ADD = 0xDC, 0xE0, 0xE4, 0xE8
MIGRATE = 0xEC
CREATE_ARRAY, LIST, DELETE_ARRAY, CREATE_VOLUME, DELETE_VOLUME = 0xC0, 0xC2, 0xC4, 0xC8, 0xCC
FLUSH, WRITE, READ = 0, 1, 2
DEALLOCATE = 1 << 2
COMPARE, WRITE_ZEROES, DATASET_MANAGEMENT, VERIFY = 5, 8, 9, 12

SUCCESS = 0x000
INVALID_OPCODE = 0x001
INVALID_FIELD = 0x002
DATA_TRANSFER_ERROR = 0x004
INTERNAL_ERROR = 0x006
ABORT_REQUESTED = 0x007
INVALID_NAMESPACE = 0x00B
COMMAND_SEQUENCE = 0x00C
INVALID_PRP_OFFSET = 0x013
LBA_OUT_OF_RANGE = 0x080
NAMESPACE_NOT_READY = 0x082
INVALID_CQ = 0x100
INVALID_QUEUE = 0x101
INVALID_QUEUE_SIZE = 0x102
ASYNC_EVENT_LIMIT = 0x105
INVALID_VECTOR = 0x108
INVALID_LOG_PAGE = 0x109
INVALID_QUEUE_DELETION = 0x10C
NOT_SAVEABLE = 0x10D
NOT_CHANGEABLE = 0x10E
NOT_NAMESPACE_SPECIFIC = 0x10F
ALREADY_ATTACHED, NOT_ATTACHED, CONTROLLER_LIST_INVALID = 0x118, 0x11A, 0x11C
DRIVE_UNAVAILABLE, NO_ENTRY, IN_USE, NO_SPACE = 0x1C0, 0x1C1, 0x1C2, 0x1C3
NOT_REDUNDANT, JOB_RUNNING, OTHER_DRIVE = 0x1C4, 0x1C5, 0x1C6
WRITE_FAULT = 0x280
UNRECOVERED_READ = 0x281
COMPARE_FAILURE = 0x285

MAY_RETRY = {
    SUCCESS, DATA_TRANSFER_ERROR, INTERNAL_ERROR, ABORT_REQUESTED, WRITE_FAULT, UNRECOVERED_READ,
    NAMESPACE_NOT_READY,
}  # fmt: skip


NGUID_DESCRIPTOR = 2
"""Type of a Namespace Identification Descriptor."""


def serial_number(identity: int) -> str:
    """Serial number of the card with this identity."""
    return f"STRI{identity:016x}"


def subsystem_name(identity: int) -> str:
    """NQN of the subsystem of the card."""
    digits = f"{identity:016x}"
    middle = "-ad49-81c2-89cb-8830"
    return f"nqn.2014-08.org.nvmexpress:uuid:{digits[:8]}{middle}{digits[8:]}"


def namespace_name(identity: int, nonce: int, count: int) -> bytes:
    """NGUID of the volume that was created as number ``count`` since power-up."""
    reverse = int(f"{nonce:064b}"[::-1], 2)
    name = (identity ^ reverse).to_bytes(8, "big")
    return name + bytes((0x02, 0, 0)) + count.to_bytes(5, "big")


@dataclass(frozen=True, kw_only=True)
class Sqe:
    """A submission queue entry. ``dwords`` are CDW10 and the words after it."""

    opcode: int
    identifier: int = 0
    nsid: int = 0
    prp1: int = 0
    prp2: int = 0
    dwords: tuple[int, ...] = ()
    fuse: int = 0
    psdt: int = 0

    def pack(self) -> bytes:
        """The 64 bytes."""
        dwords = [*self.dwords, 0, 0, 0, 0, 0, 0][:6]
        flags = self.fuse | self.psdt << 6
        head = struct.pack("<BBHIQQ", self.opcode, flags, self.identifier, self.nsid, 0, 0)
        return head + struct.pack("<QQ6I", self.prp1, self.prp2, *dwords)


@dataclass(frozen=True, kw_only=True)
class Cqe:
    """A completion queue entry."""

    result: int
    sq_head: int
    queue: int
    identifier: int
    phase: int
    code: int
    """Status code type and status code, 11 bits."""
    more: bool
    do_not_retry: bool

    @classmethod
    def unpack(cls, raw: bytes) -> "Cqe":
        """Reads the 16 bytes."""
        result, reserved, sq_head, queue, identifier, status = struct.unpack("<IIHHHH", raw)
        if reserved:
            raise ValueError("reserved dword 1 is not 0")
        return cls(
            result=result,
            sq_head=sq_head,
            queue=queue,
            identifier=identifier,
            phase=status & 1,
            code=status >> 1 & 0x7FF,
            more=bool(status >> 14 & 1),
            do_not_retry=bool(status >> 15),
        )


def read_write(opcode: int, nsid: int, block: int, blocks: int, *, fua: bool = False) -> dict:
    """Fields of a Read or Write of ``blocks`` blocks."""
    dwords = (block & 0xFFFF_FFFF, block >> 32, (blocks - 1) | int(fua) << 30)
    return {"opcode": opcode, "nsid": nsid, "dwords": dwords}


def dataset(nsid: int, ranges: Sequence[tuple[int, int]]) -> tuple[dict, bytes]:
    """Fields of a Dataset Management (section 6.7), and its list of (first block, blocks)."""
    data = b"".join(struct.pack("<IIQ", 0, blocks, block) for block, blocks in ranges)
    dwords = (len(ranges) - 1, DEALLOCATE)
    return {"opcode": DATASET_MANAGEMENT, "nsid": nsid, "dwords": dwords}, data


def build_prps(
    pages: Sequence[int], offset: int, write: Callable[[int, bytes], None], lists: Sequence[int]
) -> tuple[int, int]:
    """PRP1 and PRP2 for ``pages`` (page addresses). Data begins ``offset`` bytes into the first
    page.

    ``lists`` are addresses for the PRP list. The first may lie inside its page. The list goes on in
    the others when it reaches the end of a page. ``write`` stores the list.
    """
    prp1 = pages[0] + offset
    rest = list(pages[1:])
    if not rest:
        return prp1, 0
    if len(rest) == 1:
        return prp1, rest[0]
    places = list(lists)
    place = first = places.pop(0)
    while rest:
        room = (PAGE - place % PAGE) // 8
        if len(rest) <= room:
            here, rest, follow = rest, [], None
        else:
            here, rest, follow = rest[: room - 1], rest[room - 1 :], places.pop(0)
        write(place, struct.pack(f"<{len(here)}Q", *here))
        if follow is not None:
            write(place + 8 * len(here), struct.pack("<Q", follow))
            place = follow
    return prp1, first


def pieces(pages: Sequence[int], offset: int, length: int) -> list[tuple[int, int]]:
    """(address, bytes) pieces of host memory of a transfer of ``length`` bytes."""
    found, position = [], offset
    while position < offset + length:
        here = min(PAGE - position % PAGE, offset + length - position)
        found.append((pages[position // PAGE] + position % PAGE, here))
        position += here
    return found


DEFAULT, NONE, FORCE = 0, 1, 2
"""Settings of sector emulation: the physical sectors that a volume reports."""


def create_volume(
    array: int, start: int = 0, blocks: int = 0, *, sectors: bool = False, emulation: int = DEFAULT
) -> dict:
    """Fields of the vendor command that creates a volume. ``sectors``: it has sectors of 512 bytes.
    """
    mask = 0xFFFF_FFFF
    first = array | int(sectors) << 8 | emulation << 12
    dwords = (first, start & mask, start >> 32, blocks & mask, blocks >> 32)
    return {"opcode": CREATE_VOLUME, "dwords": dwords}


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """Identify Namespace (figure 249), as an operating system reads it."""

    size: int
    """In logical blocks."""
    formats: tuple[int, ...]
    """Bytes of the logical blocks of each LBA format."""
    format: int
    physical: int
    """Bytes of a physical sector, as Linux computes it (drivers/nvme/host/core.c)."""

    @classmethod
    def unpack(cls, page: bytes) -> "Namespace":
        """Reads the page. Sizes that contradict each other are errors."""
        size, capacity, use = struct.unpack_from("<QQQ", page)
        features, last, chosen = page[24], page[25], page[26] & 0xF
        formats = tuple(1 << page[128 + 4 * n + 2] for n in range(last + 1))
        if any(page[128 + 4 * (last + 1) : 192]):
            raise ValueError("more LBA formats than NLBAF says")
        block = formats[chosen]
        (total,) = struct.unpack_from("<Q", page, 48)
        if not size == capacity == use == total // block:
            raise ValueError(f"sizes differ: {size}, {capacity}, {use}, {total} bytes")
        nawun, nawupf, _, nabsn, nabo, nabspf = struct.unpack_from("<6H", page, 34)
        npwg, npwa, npdg, npda, nows = struct.unpack_from("<5H", page, 64)
        atomic = 1 + (nawupf if features & 2 else 0)
        preferred = 1 + (npwg if features & 16 else 0)
        if (features & 2 and not nawupf <= nawun <= nabsn == nabspf) or nabo:
            raise ValueError("atomic sizes and boundaries do not fit each other")
        if features & 16 and not npwg == npwa == npdg == npda == nows:
            raise ValueError("preferred sizes differ")
        if not features & 18 and any((*struct.unpack_from("<6H", page, 34), npwg, npwa, nows)):
            raise ValueError("sizes that NSFEAT does not announce")
        return cls(
            size=size, formats=formats, format=chosen, physical=block * min(atomic, preferred)
        )


def segments(pages: Sequence[int], offset: int, block: int) -> list[tuple[int, int]]:
    """(address, bytes) pieces of host memory that hold ``block`` of a transfer."""
    begin = offset + block * PAGE
    first = (pages[begin // PAGE] + begin % PAGE, PAGE - begin % PAGE)
    if first[1] == PAGE:
        return [first]
    return [first, (pages[begin // PAGE + 1], PAGE - first[1])]
