"""NVMe host driver: brings a controller up, creates queues, reads and writes namespaces."""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hdl.config import SECTOR_BYTES
from sw.driver.commands import (
    BLOCK_BYTES,
    FEATURE_NUMBER_OF_QUEUES,
    FEATURE_WRITE_CACHE,
    IDENTIFY_BYTES,
    Admin,
    Command,
    Completion,
    IdentifyController,
    IdentifyNamespace,
    Io,
    NvmeError,
    Register,
    number,
    read_write,
)
from sw.driver.queue import MOST_TRANSFER_PAGES, QueuePair
from sw.driver.transport import Transport

ADMIN_DEPTH = 32
POLL_NS = 1_000
LONG_NS = 10_000_000
"""What is waited for so long is asked for less often: each time after a tenth of the time."""
MOST_POLL_NS = 100_000_000
TIMEOUT_UNIT_NS = 500_000_000
"""Of CAP.TO (NVMe 1.4 section 3.1.1)."""
CC_ENABLE = 1 | (6 << 16) | (4 << 20)
"""EN, 64-byte submission and 16-byte completion entries (NVMe 1.4 section 3.1.5)."""
CC_NORMAL, CC_ABRUPT = 1 << 14, 2 << 14
ACTIVE_LIST, ALLOCATED_LIST = 0x02, 0x10
"""CNS of lists of namespaces (NVMe 1.4 section 5.15.1)."""
CONTROLLER_LIST = struct.pack("<HH", 1, 0).ljust(IDENTIFY_BYTES, b"\0")
"""One controller, whose identifier is 0 (NVMe 1.4 section 4.9)."""
CSTS_READY = 1
CSTS_FATAL = 2
CSTS_SHUTDOWN, CSTS_SHUT_DOWN = 3 << 2, 2 << 2


class Nvme:
    """One NVMe controller.

    Parameters
    ----------
    transport
        The way to reach it.
    """

    def __init__(self, transport: Transport):
        self.transport = transport
        self._admin: QueuePair | None = None
        self.queues: list[QueuePair] = []
        self.identity: IdentifyController | None = None
        self._pages: list[int] = []
        self._shape = 0, 0
        """Entries of an I/O queue, and pages of a transfer."""

    async def start(self, queue_pairs: int = 1, depth: int = 1024) -> IdentifyController:
        """Resets and enables the controller, and creates up to ``queue_pairs`` I/O queue pairs.

        ``depth`` is reduced to the controller's limit (CAP.MQES). Raises `NvmeError` when a command
        fails, and `TimeoutError` when the controller takes longer than it says that it may
        (CAP.TO).
        """
        if queue_pairs < 1:
            raise ValueError(f"queue_pairs must be at least 1, not {queue_pairs}")
        if depth < 2:
            raise ValueError(f"depth must be at least 2, not {depth}")
        transport = self.transport
        await self.stop()
        depth = min(depth, (await transport.read32(Register.CAP) & 0xFFFF) + 1)
        vectors = await transport.enable_interrupts(queue_pairs + 1)
        admin = self._admin = QueuePair(transport, 0, ADMIN_DEPTH)
        await transport.write32(Register.AQA, (ADMIN_DEPTH - 1) | ((ADMIN_DEPTH - 1) << 16))
        for register, address in (
            (Register.ASQ, admin.sq_address),
            (Register.ACQ, admin.cq_address),
        ):
            await transport.write32(register, address & 0xFFFF_FFFF)
            await transport.write32(register + 4, address >> 32)
        await transport.write32(Register.CC, CC_ENABLE)
        await self._wait_ready(CSTS_READY)
        admin.start()
        identity = IdentifyController.unpack(await self.identify(1))
        self.identity = identity
        granted = await self.admin(
            Command(
                Admin.SET_FEATURES,
                dwords=(
                    FEATURE_NUMBER_OF_QUEUES,
                    (queue_pairs - 1) | ((queue_pairs - 1) << 16),
                ),
            )
        )
        allowed = min(granted.result & 0xFFFF, granted.result >> 16) + 1
        pages = min(identity.max_transfer_pages or MOST_TRANSFER_PAGES, MOST_TRANSFER_PAGES)
        self._shape = depth, pages
        for identifier in range(1, min(queue_pairs, allowed, vectors - 1) + 1):
            self.queues.append(await self._create_queue(identifier))
        return identity

    async def stop(self) -> None:
        """Disables the controller. Its queues are gone, and every coroutine that waits on one gets
        an exception. So it is if the controller takes longer than CAP.TO (`TimeoutError`)."""
        await self.transport.write32(Register.CC, 0)
        try:
            await self._wait_ready(0)
        finally:
            for queue in [*self.queues, *([self._admin] if self._admin else [])]:
                queue.stop()
            self.queues = []
            self._admin = None

    async def shut_down(self, *, abrupt: bool = False) -> None:
        """Tells the controller that power will go (NVMe 1.4 section 7.6.2), and waits until it may.

        The drives have stored all that has been acknowledged then. Commands that have not ended may
        never do so, and none may be sent before `start`. Raises `TimeoutError` if the controller
        takes longer than it says that it may (RTD3E, or CAP.TO).
        """
        identity = self.identity
        if identity is None or self._admin is None:
            raise RuntimeError("the controller is not started: call start() first")
        await self.transport.write32(Register.CC, CC_ENABLE | (CC_ABRUPT if abrupt else CC_NORMAL))
        await self._wait_status(
            CSTS_SHUTDOWN, CSTS_SHUT_DOWN, "CSTS.SHST did not become 2", 1e3 * identity.shutdown_us
        )

    async def set_write_cache(self, *, on: bool) -> None:
        """Switches the volatile write cache on or off (NVMe 1.4 section 5.21.1.6).

        Once it is off, all that has been written is stored, and each write is stored before it
        ends. So it is until the controller is reset.
        """
        command = Command(Admin.SET_FEATURES, dwords=(FEATURE_WRITE_CACHE, int(on)))
        await self.admin(command, f"switch the write cache {'on' if on else 'off'}")

    async def admin(
        self,
        command: Command,
        what: str = "admin command",
        hints: Mapping[int, str] | None = None,
    ) -> Completion:
        """Runs an admin command. Raises `NvmeError` unless it succeeds. ``hints``: what to do about
        a status of this command."""
        return self._check(what, await self._admin_queue().submit(command), hints)

    async def admin_page(self, command: Command, what: str = "admin command") -> bytes:
        """Runs an admin command that returns one 4096-byte page."""
        queue = self._admin_queue()
        with self._page() as page:
            self._check(what, await queue.transfer(command, page, IDENTIFY_BYTES))
            return self.transport.memory.read(page, IDENTIFY_BYTES)

    @contextmanager
    def _page(self) -> Iterator[int]:
        """A page of host memory for a while."""
        page = self._pages.pop() if self._pages else self.transport.memory.allocate(IDENTIFY_BYTES)
        try:
            yield page
        finally:
            self._pages.append(page)

    async def identify(self, structure: int, namespace: int = 0) -> bytes:
        """Identify with CNS ``structure`` (NVMe 1.4 section 5.15)."""
        command = Command(Admin.IDENTIFY, namespace, dwords=(structure,))
        return await self.admin_page(command, f"Identify, CNS {structure:#x}")

    async def namespace(self, namespace: int) -> IdentifyNamespace:
        """Size and block size of a namespace."""
        return IdentifyNamespace.unpack(await self.identify(0, namespace))

    async def namespaces(self, *, allocated: bool = False) -> list[int]:
        """The namespaces that are attached, or all that there are (``allocated``)."""
        page = await self.identify(ALLOCATED_LIST if allocated else ACTIVE_LIST)
        return [one for one in struct.unpack(f"<{IDENTIFY_BYTES // 4}I", page) if one]

    async def attach(self, namespace: int, *, detach: bool = False) -> None:
        """Attaches a namespace, or detaches it (NVMe 1.4 section 5.19).

        One that is detached keeps its data, and takes no commands.
        """
        command = Command(Admin.NAMESPACE_ATTACHMENT, namespace, dwords=(int(detach),))
        what = f"{'detach' if detach else 'attach'} namespace {namespace}"
        with self._page() as page:
            self.transport.memory.write(page, CONTROLLER_LIST)
            self._check(what, await self._admin_queue().transfer(command, page, IDENTIFY_BYTES))

    async def read(
        self,
        namespace: int,
        block: int,
        blocks: int,
        address: int,
        queue: int = 0,
        block_bytes: int = BLOCK_BYTES,
        fua: bool = False,
    ) -> None:
        """Reads ``blocks`` blocks into bus address ``address``. Raises `NvmeError`.

        ``queue`` is an index in ``queues``. ``block_bytes`` is the size of a logical block of the
        namespace (`IdentifyNamespace`).
        """
        command = read_write(Io.READ, namespace, block, blocks, 0, 0, fua)
        length = blocks * _checked(block_bytes)
        await self._data(command, address, length, queue, f"Read of block {block}")

    async def write(
        self,
        namespace: int,
        block: int,
        blocks: int,
        address: int,
        queue: int = 0,
        fua: bool = False,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Writes ``blocks`` blocks from bus address ``address``. Raises `NvmeError`."""
        command = read_write(Io.WRITE, namespace, block, blocks, 0, 0, fua)
        length = blocks * _checked(block_bytes)
        await self._data(command, address, length, queue, f"Write of block {block}")

    async def abort(self, queue: int, identifier: int) -> bool:
        """Asks for the end of a command of an I/O queue (NVMe 1.4 section 5.1). Returns whether the
        card has aborted it.

        ``queue`` is an index in ``queues``. The identifiers of commands that have not ended are the
        keys of its ``commands``.
        """
        dword = number("identifier", identifier, 16) << 16 | self._io_queue(queue).identifier
        completion = await self.admin(Command(Admin.ABORT, dwords=(dword,)), "Abort")
        return not completion.result & 1

    async def renew_queue(self, queue: int, *, deaf: bool = False) -> None:
        """Deletes an I/O queue pair and creates it again (NVMe 1.4 sections 5.3 to 5.6).

        Commands that the card has fetched end first. A coroutine that waits for a command that the
        card has not fetched gets a `QueueStoppedError`. With ``deaf`` every waiting coroutine gets
        one, since no completion is taken from now on.
        """
        old = self._io_queue(queue)
        dwords = (old.identifier,)
        old.close(deaf=deaf)
        await self.admin(Command(Admin.DELETE_SQ, dwords=dwords), "Delete I/O Submission Queue")
        if not deaf:
            await old.take()
        await self.admin(Command(Admin.DELETE_CQ, dwords=dwords), "Delete I/O Completion Queue")
        old.stop()
        self.queues[queue] = await self._create_queue(old.identifier)

    async def flush(self, namespace: int, queue: int = 0) -> None:
        """Makes completed writes durable. Raises `NvmeError`."""
        self._check("Flush", await self._io_queue(queue).submit(Command(Io.FLUSH, namespace)))

    async def _data(
        self, command: Command, address: int, length: int, queue: int, what: str
    ) -> None:
        self._check(what, await self._io_queue(queue).transfer(command, address, length))

    @property
    def admin_outstanding(self) -> int:
        """Admin commands submitted and not completed."""
        return self._admin.outstanding if self._admin else 0

    def _admin_queue(self) -> QueuePair:
        if self._admin is None:
            raise RuntimeError("the controller is not started: call start() first")
        return self._admin

    def _io_queue(self, index: int) -> QueuePair:
        if self._admin is None:
            raise RuntimeError("the controller is not started: call start() first")
        if not 0 <= index < len(self.queues):
            raise ValueError(f"queue must be 0..{len(self.queues) - 1}, not {index}")
        return self.queues[index]

    @staticmethod
    def _check(
        what: str, completion: Completion, hints: Mapping[int, str] | None = None
    ) -> Completion:
        if not completion.ok:
            raise NvmeError(what, completion, (hints or {}).get(completion.status))
        return completion

    async def _create_queue(self, identifier: int) -> QueuePair:
        depth, pages = self._shape
        queue = QueuePair(self.transport, identifier, depth, pages)
        size = ((depth - 1) << 16) | identifier
        contiguous, interrupts = 1, 2
        await self.admin(
            Command(
                Admin.CREATE_CQ,
                prp1=queue.cq_address,
                dwords=(size, contiguous | interrupts | (identifier << 16)),
            ),
            "Create I/O Completion Queue",
        )
        await self.admin(
            Command(
                Admin.CREATE_SQ,
                prp1=queue.sq_address,
                dwords=(size, contiguous | (identifier << 16)),
            ),
            "Create I/O Submission Queue",
        )
        queue.start()
        return queue

    async def _wait_ready(self, wanted: int) -> None:
        await self._wait_status(CSTS_READY, wanted, f"CSTS.RDY did not become {wanted}")

    async def _wait_status(self, mask: int, wanted: int, what: str, least_ns: float = 0) -> None:
        """Waits for bits of CSTS for CAP.TO, and for ``least_ns`` at least."""
        transport = self.transport
        began = transport.now_ns
        longest = 0.0
        while True:
            status = await transport.read32(Register.CSTS)
            if status & CSTS_FATAL:
                raise RuntimeError("the controller reports a fatal status (CSTS.CFS)")
            if status & mask == wanted:
                return
            waited = transport.now_ns - began
            if waited < LONG_NS:
                await transport.sleep(POLL_NS)
                continue
            if not longest:
                units = await transport.read32(Register.CAP) >> 24
                longest = max(units * TIMEOUT_UNIT_NS, least_ns, LONG_NS)
            if waited >= longest:
                limit = f"in {longest / 1e9:g} s"
                raise TimeoutError(f"{what} {limit}; a drive that hangs may be the cause")
            await transport.sleep(min(waited / 10, MOST_POLL_NS))


def _checked(block_bytes: int) -> int:
    """The size of a logical block."""
    if block_bytes not in (BLOCK_BYTES, SECTOR_BYTES):
        raise ValueError(
            f"block_bytes must be {BLOCK_BYTES} or {SECTOR_BYTES}, not {block_bytes}"
        )
    return block_bytes
