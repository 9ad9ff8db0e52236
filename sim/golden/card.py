"""A functional NVMe controller in plain Python, to test a host driver without the hardware.

It reads and writes host memory, doorbells and registers as NVMe 1.4 says (sections 3.1, 4), and
checks the host. A tail beyond the queue, a PRP that is not allowed, a command identifier in use or
a completion queue that overflows is a `HostError`. The test has commands carried out (`step`), in
any order, so it decides what happens when.
"""

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sim.golden import nvme

PAGE = nvme.PAGE
DOORBELL_BYTES = 4
STATUS_BIT = 1
BLOCK_SHIFT = 12
VENDOR = 0x1234


class HostError(AssertionError):
    """The host broke a rule of the specification."""


@dataclass
class Entry:
    """A submission queue entry as fetched."""

    opcode: int
    identifier: int
    nsid: int
    prp1: int
    prp2: int
    dwords: tuple[int, ...]

    @classmethod
    def unpack(cls, raw: bytes) -> "Entry":
        """Reads the 64 bytes."""
        opcode, flags, identifier, nsid, low, metadata, prp1, prp2, *dwords = struct.unpack(
            "<BBHIQQQQ6I", raw
        )
        if flags or low or metadata:
            raise HostError(f"command {identifier}: reserved fields are not 0")
        return cls(opcode, identifier, nsid, prp1, prp2, tuple(dwords))


@dataclass
class Queue:
    """A submission queue with the completion queue of the same number."""

    sq: int = 0
    cq: int = 0
    depth: int = 0
    tail: int = 0
    head: int = 0
    cq_tail: int = 0
    cq_head: int = 0
    phase: int = 1
    inside: dict[int, Entry] = field(default_factory=dict)

    @property
    def cq_full(self) -> bool:
        """Whether no completion fits."""
        return (self.cq_tail + 1) % self.depth == self.cq_head


class Card:
    """One controller with one namespace.

    Parameters
    ----------
    memory
        Host memory, with ``read(address, length)`` and ``write(address, data)``.
    interrupt
        Called with the vector for each completion.
    blocks
        Size of the namespace, in 4 KiB blocks.
    queue_pairs, queue_depth, transfer_shift
        As the controller reports them. ``transfer_shift`` is MDTS.
    seed
        Of the order in which commands are carried out.
    """

    def __init__(
        self,
        memory,
        interrupt: Callable[[int], None],
        *,
        blocks: int = 256,
        queue_pairs: int = 2,
        queue_depth: int = 8,
        transfer_shift: int = 3,
        seed: int = 1,
    ):
        self._memory = memory
        self._interrupt = interrupt
        self._blocks = blocks
        self._pairs = queue_pairs
        self._depth = queue_depth
        self._transfer_shift = transfer_shift
        self._random = random.Random(seed)
        self._registers: dict[int, int] = {}
        self._completion_queues: dict[int, tuple[int, int]] = {}
        self.queues: dict[int, Queue] = {}
        self.storage: dict[int, bytes] = {}
        self.fatal = False
        self.errors: dict[int, int] = {}
        """Statuses of I/O commands that fail, by their first block."""
        self.most_inside = 0
        self.wraps = 0

    # Registers

    def read32(self, offset: int) -> int:
        """A register as the host reads it."""
        enabled = self._registers.get(nvme.CC, 0) & 1
        if offset == nvme.CAP:
            return self._depth - 1 | 1 << 16
        if offset == nvme.CSTS:
            shut_down = bool(self._registers.get(nvme.CC, 0) & nvme.CC_SHUTDOWN)
            status = nvme.CSTS_READY * enabled | nvme.CSTS_FATAL * self.fatal
            return status | nvme.CSTS_SHUTDOWN_COMPLETE * shut_down
        return self._registers.get(offset, 0)

    def write32(self, offset: int, value: int) -> None:
        """A register write of the host."""
        if offset >= nvme.DOORBELLS:
            self._ring(offset - nvme.DOORBELLS, value)
            return
        before = self._registers.get(nvme.CC, 0)
        self._registers[offset] = value
        if offset == nvme.CC and (before ^ value) & 1:
            self.queues.clear()
            self._completion_queues.clear()
            if value & 1:
                self._enable()

    def _enable(self) -> None:
        def address(register: int) -> int:
            return self._registers[register] | self._registers[register + 4] << 32

        sizes = self._registers[nvme.AQA]
        if sizes & 0xFFF != sizes >> 16:
            raise HostError("the admin queues differ in size")
        self.queues[0] = Queue(
            sq=address(nvme.ASQ), cq=address(nvme.ACQ), depth=(sizes & 0xFFF) + 1
        )

    def _ring(self, offset: int, value: int) -> None:
        number, completion = divmod(offset // DOORBELL_BYTES, 2)
        queue = self.queues.get(number)
        if queue is None or value >= queue.depth:
            raise HostError(f"doorbell {value} of queue {number}")
        if completion:
            self._release(queue, value)
        else:
            self._fetch(queue, value)

    def _release(self, queue: Queue, head: int) -> None:
        if (head - queue.cq_head) % queue.depth > (queue.cq_tail - queue.cq_head) % queue.depth:
            raise HostError("the head of a completion queue passes its tail")
        queue.cq_head = head

    def _fetch(self, queue: Queue, tail: int) -> None:
        queue.tail = tail
        while queue.head != tail:
            raw = self._memory.read(queue.sq + queue.head * nvme.SQE_BYTES, nvme.SQE_BYTES)
            entry = Entry.unpack(raw)
            if entry.identifier in queue.inside:
                raise HostError(f"command identifier {entry.identifier} is in use")
            queue.inside[entry.identifier] = entry
            queue.head = (queue.head + 1) % queue.depth
            self.wraps += queue.head == 0
            self.most_inside = max(self.most_inside, len(queue.inside))

    # Commands

    @property
    def pending(self) -> int:
        """Commands inside."""
        return sum(len(queue.inside) for queue in self.queues.values())

    def step(self) -> bool:
        """Carries out any one command. Returns False if there is none."""
        chosen = [
            (number, identifier)
            for number, queue in self.queues.items()
            for identifier in queue.inside
            if not queue.cq_full
        ]
        if not chosen:
            return False
        number, identifier = self._random.choice(chosen)
        entry = self.queues[number].inside.pop(identifier)
        status, result = self._admin(entry) if number == 0 else self._io(entry)
        self.complete(number, identifier, status, result)
        return True

    def complete(self, number: int, identifier: int, status: int, result: int = 0) -> None:
        """Posts a completion, also one that nobody waits for."""
        queue = self.queues[number]
        if queue.cq_full:
            raise HostError("a completion queue overflows")
        status_field = queue.phase | status << STATUS_BIT
        raw = struct.pack("<IIHHHH", result, 0, queue.head, number, identifier, status_field)
        self._memory.write(queue.cq + queue.cq_tail * nvme.CQE_BYTES, raw)
        queue.cq_tail = (queue.cq_tail + 1) % queue.depth
        if queue.cq_tail == 0:
            queue.phase ^= 1
        self._interrupt(number)

    def _admin(self, entry: Entry) -> tuple[int, int]:
        first, second = entry.dwords[:2]
        number, depth = first & 0xFFFF, (first >> 16) + 1
        if entry.opcode == nvme.IDENTIFY:
            page = self._identify(first & 0xFF)
            if page is None:
                return nvme.INVALID_FIELD, 0
            self._transfer(entry, PAGE, page)
        elif entry.opcode == nvme.SET_FEATURES:
            return nvme.SUCCESS, (self._pairs - 1) * 0x10001
        elif entry.opcode == nvme.CREATE_CQ:
            if not 1 <= number <= self._pairs or number in self._completion_queues:
                return nvme.INVALID_QUEUE, 0
            if second & 3 != 3 or depth > self._depth or entry.prp1 % PAGE:
                return nvme.INVALID_FIELD, 0
            self._completion_queues[number] = entry.prp1, depth
        elif entry.opcode == nvme.CREATE_SQ:
            if second >> 16 != number or number not in self._completion_queues:
                return nvme.INVALID_CQ, 0
            address, size = self._completion_queues[number]
            if size != depth or entry.prp1 % PAGE:
                return nvme.INVALID_FIELD, 0
            self.queues[number] = Queue(sq=entry.prp1, cq=address, depth=depth)
        else:
            return nvme.INVALID_OPCODE, 0
        return nvme.SUCCESS, 0

    def _identify(self, structure: int) -> bytes | None:
        page = bytearray(PAGE)
        if structure == 0:
            struct.pack_into("<QQQ", page, 0, *[self._blocks] * 3)
            page[128 + 2] = BLOCK_SHIFT
        elif structure == 1:
            struct.pack_into("<H", page, 0, VENDOR)
            page[4:72] = b"SERIAL".ljust(20) + b"GOLDEN CARD".ljust(40) + b"1.0".ljust(8)
            page[77] = self._transfer_shift
            struct.pack_into("<I", page, 516, 1)
            page[525] = 1
        else:
            return None
        return bytes(page)

    def _io(self, entry: Entry) -> tuple[int, int]:
        if entry.nsid != 1:
            return nvme.INVALID_NAMESPACE, 0
        if entry.opcode == nvme.FLUSH:
            return nvme.SUCCESS, 0
        if entry.opcode not in (nvme.READ, nvme.WRITE):
            return nvme.INVALID_OPCODE, 0
        block = entry.dwords[0] | entry.dwords[1] << 32
        blocks = (entry.dwords[2] & 0xFFFF) + 1
        if block in self.errors:
            return self.errors[block], 0
        if blocks > 1 << self._transfer_shift:
            return nvme.INVALID_FIELD, 0
        if block + blocks > self._blocks:
            return nvme.LBA_OUT_OF_RANGE, 0
        length = blocks * PAGE
        if entry.opcode == nvme.READ:
            data = (self.storage.get(block + n, bytes(PAGE)) for n in range(blocks))
            self._transfer(entry, length, b"".join(data))
        else:
            data = self._transfer(entry, length)
            for n in range(blocks):
                self.storage[block + n] = data[n * PAGE : (n + 1) * PAGE]
        return nvme.SUCCESS, 0

    # PRPs

    def _transfer(self, entry: Entry, length: int, data: bytes | None = None) -> bytes:
        """Moves data to the host, or without ``data`` from it."""
        moved = bytearray()
        for address, count in self._pieces(entry, length):
            if data is None:
                moved += self._memory.read(address, count)
            else:
                self._memory.write(address, data[len(moved) : len(moved) + count])
                moved += bytes(count)
        return bytes(moved)

    def _pieces(self, entry: Entry, length: int) -> Iterator[tuple[int, int]]:
        if entry.prp1 % 4:
            raise HostError(f"PRP1 {entry.prp1:#x} is not a multiple of 4")
        first = min(length, PAGE - entry.prp1 % PAGE)
        yield entry.prp1, first
        left = length - first
        if not left:
            if entry.prp2:
                raise HostError("PRP2 is not needed, and not 0")
            return
        for page in [entry.prp2] if left <= PAGE else self._list(entry.prp2, -(-left // PAGE)):
            if page % PAGE:
                raise HostError(f"a PRP after the first has an offset: {page:#x}")
            count = min(left, PAGE)
            yield page, count
            left -= count

    def _list(self, pointer: int, entries: int) -> list[int]:
        """The entries of a PRP list. The list goes on where the last entry of a page points."""
        if pointer % 8:
            raise HostError(f"a PRP list at {pointer:#x}")
        pages: list[int] = []
        while entries:
            room = (PAGE - pointer % PAGE) // 8
            count = entries if entries <= room else room - 1
            pages += struct.unpack(f"<{count}Q", self._memory.read(pointer, 8 * count))
            entries -= count
            if entries:
                (pointer,) = struct.unpack("<Q", self._memory.read(pointer + 8 * count, 8))
        return pages
