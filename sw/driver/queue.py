"""One NVMe submission and completion queue pair."""

from collections import deque

from sw.driver.commands import CQE_BYTES, SQE_BYTES, Command, Completion, Register
from sw.driver.transport import PAGE_BYTES, Event, Transport

PRP_ENTRY_BYTES = 8
PRP_ALIGNMENT = 4
"""Alignment of data in its first page. Address bits 1:0 are reserved (NVMe 1.4 section 4.3)."""
MOST_TRANSFER_PAGES = PAGE_BYTES // PRP_ENTRY_BYTES
RELEASED_ENTRY = b"\xff" * SQE_BYTES
"""What a slot holds once the card has given it back. Nobody has such an opcode, and no command such
an identifier, so a card that reads it after all is found out."""


class QueueStoppedError(Exception):
    """The queue was stopped before the command could end."""


class QueuePair:
    """Submission queue ``identifier`` and its completion queue, on interrupt vector ``identifier``.

    Parameters
    ----------
    transport
        The device.
    identifier
        Queue identifier. 0 is the admin queue.
    depth
        Entries of each queue, at least 2. At most ``depth`` - 1 commands are outstanding.
    transfer_pages
        Length of a command's longest transfer in pages of 4 KiB, 0..`MOST_TRANSFER_PAGES`. A PRP
        list has at most so many entries, and does not leave its page.
    """

    def __init__(self, transport: Transport, identifier: int, depth: int, transfer_pages: int = 1):
        if depth < 2:
            raise ValueError(f"depth must be at least 2, not {depth}")
        if not 0 <= transfer_pages <= MOST_TRANSFER_PAGES:
            raise ValueError(
                f"transfer_pages must be 0..{MOST_TRANSFER_PAGES}, not {transfer_pages}"
            )
        self._transport = transport
        self.identifier = identifier
        self.depth = depth
        self.sq_address = transport.memory.allocate(depth * SQE_BYTES)
        self.cq_address = transport.memory.allocate(depth * CQE_BYTES)
        transport.memory.write(self.cq_address, bytes(depth * CQE_BYTES))
        self._list_bytes = transfer_pages * PRP_ENTRY_BYTES
        # A power of two, so that no list crosses a page.
        self._list_stride = 1 << max(self._list_bytes - 1, 0).bit_length()
        self._lists = transport.memory.allocate(depth * self._list_stride)
        self._sq_tail = 0
        self._sq_head = 0  # as the card has reported it
        self._cq_head = 0
        self._phase = 1
        self._free = deque(range(depth - 1))
        self._waiting: dict[int, Event] = {}
        self._submitted = self._released = 0  # entries since the queue is there
        self._turns: dict[int, int] = {}  # which entry each outstanding command is
        self._done: dict[int, Completion] = {}
        self._room = transport.event()
        self._closed = self._deaf = self._stopped = False

    def start(self) -> None:
        """Begins to take completions."""
        self._transport.spawn(self._complete())

    def close(self, *, deaf: bool = False) -> None:
        """Sends no more commands. With ``deaf`` it takes no more completions either."""
        self._closed, self._deaf = True, deaf
        self._room.set()

    def stop(self) -> None:
        """Takes no more completions. Every coroutine that waits for one gets a `QueueStoppedError`.
        """
        self._closed = self._stopped = True
        self._transport.interrupt(self.identifier).set()
        self._room.set()
        for event in self._waiting.values():
            event.set()
        self._waiting.clear()

    @property
    def outstanding(self) -> int:
        """Commands submitted and not completed."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Commands that can be submitted without waiting for others to be completed."""
        return len(self._free)

    @property
    def untaken(self) -> bool:
        """Whether there is a completion that has not been taken."""
        return self._next() is not None

    @property
    def commands(self) -> dict[int, Event]:
        """Commands submitted and not completed, by identifier. Each has the event that its
        completion sets."""
        return dict(self._waiting)

    async def submit(self, command: Command) -> Completion:
        """Sends a command, with its PRPs in place, and returns its completion."""
        identifier = await self._take_identifier()
        return await self._send(command, identifier)

    async def transfer(self, command: Command, address: int, length: int) -> Completion:
        """Sends a command whose data is ``length`` bytes at bus address ``address``.

        ``address`` is a multiple of 4. The PRPs are built here (NVMe 1.4 section 4.3).
        """
        if address % PRP_ALIGNMENT:
            raise ValueError(f"address must be a multiple of {PRP_ALIGNMENT}, not {address:#x}")
        if length < 1:
            raise ValueError(f"length must be at least 1, not {length}")
        first = PAGE_BYTES - address % PAGE_BYTES
        page = address - address % PAGE_BYTES
        pages = [
            page + PAGE_BYTES * (n + 1) for n in range(-(-max(length - first, 0) // PAGE_BYTES))
        ]
        if len(pages) > 1 and len(pages) * PRP_ENTRY_BYTES > self._list_bytes:
            most = self._list_bytes // PRP_ENTRY_BYTES
            raise ValueError(
                f"{length} bytes at {address:#x} are {1 + len(pages)} pages; a command of this "
                f"queue takes {most}, and one more if they do not begin with a page"
            )
        identifier = await self._take_identifier()
        prp2 = 0
        if len(pages) == 1:
            prp2 = pages[0]
        elif pages:
            prp2 = self._lists + identifier * self._list_stride
            entries = b"".join(entry.to_bytes(PRP_ENTRY_BYTES, "little") for entry in pages)
            self._transport.memory.write(prp2, entries)
        full = Command(
            command.opcode, command.namespace, address, prp2, command.dwords, command.flags
        )
        return await self._send(full, identifier)

    async def _take_identifier(self) -> int:
        while not self._free and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise QueueStoppedError(f"queue {self.identifier} is stopped")
        return self._free.popleft()

    async def _send(self, command: Command, identifier: int) -> Completion:
        try:
            packed = command.pack(identifier)
        except BaseException:
            self._free.appendleft(identifier)
            self._room.set()
            raise
        event = self._transport.event()
        self._waiting[identifier] = event
        self._turns[identifier] = self._submitted
        self._submitted += 1
        entry = self.sq_address + self._sq_tail * SQE_BYTES
        self._transport.memory.write(entry, packed)
        self._sq_tail = (self._sq_tail + 1) % self.depth
        await self._transport.write32(self._doorbell(0), self._sq_tail)
        await event.wait()
        completion = self._done.pop(identifier, None)
        if completion is None:
            raise QueueStoppedError(f"queue {self.identifier} stopped before command {identifier}")
        return completion

    def _doorbell(self, completion: int) -> int:
        return Register.DOORBELLS + 4 * (2 * self.identifier + completion)

    async def _complete(self) -> None:
        interrupt = self._transport.interrupt(self.identifier)
        while True:
            await interrupt.wait()
            interrupt.clear()
            if self._stopped:
                return
            if not self._deaf:
                await self.take()

    async def take(self) -> None:
        """Takes the completions that are there."""
        taken = 0
        while (raw := self._next()) is not None:
            self._take(Completion.unpack(raw))
            taken += 1
            self._cq_head += 1
            if self._cq_head == self.depth:
                self._cq_head = 0
                self._phase ^= 1
        if taken:
            await self._transport.write32(self._doorbell(1), self._cq_head)

    def _next(self) -> bytes | None:
        """The next completion entry, if it is there."""
        address = self.cq_address + self._cq_head * CQE_BYTES
        raw = self._transport.memory.read(address, CQE_BYTES)
        return raw if raw[14] & 1 == self._phase else None

    def _take(self, completion: Completion) -> None:
        if completion.sq_identifier != self.identifier:
            raise RuntimeError(
                f"queue {self.identifier}: completion for a command of queue "
                f"{completion.sq_identifier}"
            )
        event = self._waiting.pop(completion.identifier, None)
        if event is None:
            raise RuntimeError(
                f"queue {self.identifier}: completion for command {completion.identifier}, "
                "which is not outstanding"
            )
        self._release(completion)
        self._done[completion.identifier] = completion
        self._free.append(completion.identifier)
        self._room.set()
        event.set()

    def _release(self, completion: Completion) -> None:
        """Takes back the slots that a completion releases (NVMe 1.4, section 4.6: SQHD).

        They are overwritten at once, since the card has no reason to read them any more.
        """
        head, old = completion.sq_head, self._sq_head
        count = (head - old) % self.depth
        if head >= self.depth or self._released + count > self._submitted:
            raise RuntimeError(
                f"queue {self.identifier}: the card reports head {head} after {old}, but the tail "
                f"is {self._sq_tail} of {self.depth}"
            )
        self._released += count
        if self._turns.pop(completion.identifier) >= self._released:
            raise RuntimeError(
                f"queue {self.identifier}: command {completion.identifier} has ended, but head "
                f"{head} does not cover its entry"
            )
        self._sq_head = head
        for start, end in ((old, head),) if old <= head else ((old, self.depth), (0, head)):
            address = self.sq_address + start * SQE_BYTES
            self._transport.memory.write(address, RELEASED_ENTRY * (end - start))
