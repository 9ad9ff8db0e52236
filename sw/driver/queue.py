"""One NVMe submission and completion queue pair."""

from collections import deque

from sw.driver.commands import CQE_BYTES, SQE_BYTES, Command, Completion, Register
from sw.driver.transport import PAGE_BYTES, Event, Transport

PRP_ENTRY_BYTES = 8


class QueuePair:
    """Submission queue ``identifier`` and its completion queue, on interrupt vector ``identifier``.

    Parameters
    ----------
    transport
        The device.
    identifier
        Queue identifier; 0 is the admin queue.
    depth
        Entries of each queue; at most ``depth`` - 1 commands are outstanding.
    list_pages
        Pages that the longest transfer of a command spans: room for its PRP list.
    """

    def __init__(self, transport: Transport, identifier: int, depth: int, list_pages: int = 0):
        self._transport = transport
        self.identifier = identifier
        self.depth = depth
        self.sq_address = transport.memory.allocate(depth * SQE_BYTES)
        self.cq_address = transport.memory.allocate(depth * CQE_BYTES)
        transport.memory.write(self.cq_address, bytes(depth * CQE_BYTES))
        list_bytes = list_pages * PRP_ENTRY_BYTES
        self._list_stride = 1 << max(list_bytes - 1, 0).bit_length()
        self._lists = transport.memory.allocate(depth * self._list_stride) if list_pages > 2 else 0
        self._list_bytes = list_bytes
        self._sq_tail = 0
        self._cq_head = 0
        self._phase = 1
        self._free = deque(range(depth - 1))
        self._waiting: dict[int, Event] = {}
        self._done: dict[int, Completion] = {}
        self._room = transport.event()
        self._stopped = False

    def start(self) -> None:
        """Begins to take completions."""
        self._transport.spawn(self._complete())

    def stop(self) -> None:
        """Takes no more completions."""
        self._stopped = True
        self._transport.interrupt(self.identifier).set()

    @property
    def outstanding(self) -> int:
        """Commands submitted and not completed."""
        return len(self._waiting)

    async def submit(self, command: Command) -> Completion:
        """Sends a command, with its PRPs in place, and returns its completion."""
        identifier = await self._take_identifier()
        return await self._send(command, identifier)

    async def transfer(self, command: Command, address: int, length: int) -> Completion:
        """Sends a command whose data is ``length`` bytes at bus address ``address``.

        ``address`` is a multiple of 4; the PRPs are built here (NVMe 1.4 section 4.3).
        """
        identifier = await self._take_identifier()
        first = PAGE_BYTES - address % PAGE_BYTES
        page = address - address % PAGE_BYTES
        pages = [
            page + PAGE_BYTES * (n + 1) for n in range(-(-max(length - first, 0) // PAGE_BYTES))
        ]
        prp2 = 0
        if len(pages) == 1:
            prp2 = pages[0]
        elif pages:
            if len(pages) * PRP_ENTRY_BYTES > self._list_bytes:
                raise ValueError(
                    f"{length} bytes at {address:#x} span more pages than the queue allows"
                )
            prp2 = self._lists + identifier * self._list_stride
            entries = b"".join(entry.to_bytes(PRP_ENTRY_BYTES, "little") for entry in pages)
            self._transport.memory.write(prp2, entries)
        full = Command(
            command.opcode, command.namespace, address, prp2, command.dwords, command.flags
        )
        return await self._send(full, identifier)

    async def _take_identifier(self) -> int:
        while not self._free:
            self._room.clear()
            await self._room.wait()
        return self._free.popleft()

    async def _send(self, command: Command, identifier: int) -> Completion:
        event = self._transport.event()
        self._waiting[identifier] = event
        entry = self.sq_address + self._sq_tail * SQE_BYTES
        self._transport.memory.write(entry, command.pack(identifier))
        self._sq_tail = (self._sq_tail + 1) % self.depth
        await self._transport.write32(self._doorbell(0), self._sq_tail)
        await event.wait()
        return self._done.pop(identifier)

    def _doorbell(self, completion: int) -> int:
        return Register.DOORBELLS + 4 * (2 * self.identifier + completion)

    async def _complete(self) -> None:
        interrupt = self._transport.interrupt(self.identifier)
        memory = self._transport.memory
        while True:
            await interrupt.wait()
            interrupt.clear()
            if self._stopped:
                return
            taken = 0
            while True:
                raw = memory.read(self.cq_address + self._cq_head * CQE_BYTES, CQE_BYTES)
                if raw[14] & 1 != self._phase:
                    break
                self._take(Completion.unpack(raw))
                taken += 1
                self._cq_head += 1
                if self._cq_head == self.depth:
                    self._cq_head = 0
                    self._phase ^= 1
            if taken:
                await self._transport.write32(self._doorbell(1), self._cq_head)

    def _take(self, completion: Completion) -> None:
        event = self._waiting.pop(completion.identifier, None)
        if event is None:
            raise RuntimeError(
                f"queue {self.identifier}: completion for command {completion.identifier}, "
                "which is not outstanding"
            )
        self._done[completion.identifier] = completion
        self._free.append(completion.identifier)
        self._room.set()
        event.set()
