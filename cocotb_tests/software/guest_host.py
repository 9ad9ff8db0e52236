"""A stand-in for QEMU: the other end of the device proxy, with guest memory and interrupts.

Its transport runs the project's own driver through the proxy, in one thread: every message is
served before its answer is read.
"""

import mmap
import os
import socket
from array import array
from collections.abc import Coroutine
from typing import Any

from sim.native.harness import Harness
from sw.driver.loop import Loop, LoopEvent
from sw.guest.card import BridgedCard
from sw.guest.config_space import BAR0, COMMAND, MSIX
from sw.guest.proxy import BAR_ACCESS, CONFIG_ACCESS, HEADER, REGIONS, VALUE, DeviceProxy, Message

BAR_ADDRESS = 0xFEB0_0000
MSIX_TABLE = 0x2000
MESSAGE_ADDRESS = 0xFEE0_0000
MIB = 1 << 20
PARTS = ((0, 2 * MIB, 6 * MIB), (2 * MIB, 4 * MIB, MIB))
"""Guest address, size, offset into the file: contiguous for the guest, not so in the file."""
FILE_BYTES = 10 * MIB


def message(command: int, payload: bytes = b"") -> bytes:
    """A message of QEMU's."""
    return HEADER.pack(command, 0, len(payload)) + payload


class GuestMemory:
    """Memory of the guest in a file, as ``parts`` say, handed out from the bottom."""

    def __init__(self, parts=PARTS):
        self.parts = parts
        self.descriptor = os.memfd_create("guest")
        os.ftruncate(self.descriptor, FILE_BYTES)
        self._map = mmap.mmap(self.descriptor, FILE_BYTES)
        self._next = 0

    def close(self) -> None:
        os.close(self.descriptor)

    def allocate(self, length: int, align: int = 4096) -> int:
        address = -(-self._next // align) * align
        self._next = address + length
        return address

    def _pieces(self, address: int, length: int):
        while length:
            start, size, offset = next(
                part for part in self.parts if part[0] <= address < part[0] + part[1]
            )
            count = min(length, start + size - address)
            yield offset + address - start, count
            address, length = address + count, length - count

    def read(self, address: int, length: int) -> bytes:
        return b"".join(self._map[o : o + n] for o, n in self._pieces(address, length))

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        done = 0
        for offset, count in self._pieces(address, len(data)):
            self._map[offset : offset + count] = bytes(data[done : done + count])
            done += count


class GuestHost:
    """A guest with the card at the other end of a socket; a `sw.driver.transport.Transport`.

    Parameters
    ----------
    harness
        The card.
    vectors
        Its MSI-X vectors.
    parts
        Where guest memory lies.
    shift
        Bug: the offsets that the card is told are too high by this.
    """

    def __init__(self, harness: Harness, vectors: int, *, parts=PARTS, shift: int = 0):
        self.harness = harness
        self.memory = GuestMemory(parts)
        self.vectors = vectors
        self.arrived: list[int] = []
        self.connection, theirs = socket.socketpair()
        self._theirs = theirs
        self.card = BridgedCard(harness, vectors=vectors, deliver=self._deliver)
        self.proxy = DeviceProxy(theirs, self.card)
        self._loop = Loop(self)
        self.map(shift)

    def close(self) -> None:
        for end in (self.connection, self._theirs):
            end.close()
        self.memory.close()

    # Messages

    def map(self, shift: int = 0) -> None:
        """Hands the memory over."""
        columns = list(zip(*self.memory.parts, strict=True))
        columns[2] = tuple(offset + shift for offset in columns[2])
        numbers = [value for column in columns for value in (*column, *[0] * (8 - len(column)))]
        descriptors = array("i", [self.memory.descriptor] * len(self.memory.parts))
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
        payload = REGIONS.pack(*numbers)
        self.connection.sendmsg([message(Message.SYNC_SYSMEM, payload)], [rights])
        self.proxy.serve()

    def ask(self, command: int, payload: bytes = b"") -> int:
        """Sends a message; what the card answers."""
        self.connection.sendall(message(command, payload))
        self.proxy.serve()
        answer = self.connection.recv(HEADER.size + VALUE.size)
        assert HEADER.unpack(answer[: HEADER.size]) == (Message.RET, 0, VALUE.size)
        return VALUE.unpack(answer[HEADER.size :])[0]

    def config_read(self, offset: int, length: int) -> int:
        return self.ask(Message.CONFIG_READ, CONFIG_ACCESS.pack(offset, 0, length))

    def config_write(self, offset: int, length: int, value: int) -> None:
        self.ask(Message.CONFIG_WRITE, CONFIG_ACCESS.pack(offset, value, length))

    def bar_read(self, offset: int, length: int) -> int:
        return self.ask(Message.BAR_READ, BAR_ACCESS.pack(BAR_ADDRESS + offset, 0, length, True))

    def bar_write(self, offset: int, length: int, value: int) -> None:
        payload = BAR_ACCESS.pack(BAR_ADDRESS + offset, value, length, True)
        self.ask(Message.BAR_WRITE, payload)

    def plug(self) -> None:
        """Gives the card its address and lets it be bus master."""
        self.config_write(BAR0, 4, BAR_ADDRESS)
        self.config_write(COMMAND, 2, 6)

    def settle(self) -> None:
        """Runs until the card has nothing left to do."""
        while not self.card.idle:
            self.card.advance(1000)

    def _deliver(self, address: int, data: int) -> None:
        vector = data - 0x4000
        assert address == MESSAGE_ADDRESS + (vector << 12), "message to another vector's address"
        self.arrived.append(vector)

    # The machine of the loop

    @property
    def now_ns(self) -> float:
        return self.harness.now_ns

    def advance(self, until_ns: float | None) -> list[int]:
        while not self.arrived:
            if until_ns is not None and self.harness.now_ns >= until_ns:
                break
            if self.card.idle:
                assert until_ns is not None, "the card is idle while the driver waits"
                self.harness.run(until_ns)
                break
            self.card.advance(200)
        arrived, self.arrived = self.arrived, []
        return arrived

    # The transport

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run(main)

    async def read32(self, offset: int) -> int:
        return self.bar_read(offset, 4)

    async def write32(self, offset: int, value: int) -> None:
        self.bar_write(offset, 4, value)

    async def enable_interrupts(self, vectors: int) -> int:
        granted = min(vectors, self.vectors)
        for vector in range(granted):
            words = (MESSAGE_ADDRESS + (vector << 12), 0, 0x4000 + vector, 0)
            for index, value in enumerate(words):
                self.bar_write(MSIX_TABLE + 16 * vector + 4 * index, 4, value)
        self.config_write(MSIX + 2, 2, 1 << 15)
        return granted

    def interrupt(self, vector: int) -> LoopEvent:
        return self._loop.interrupt(vector)

    def event(self) -> LoopEvent:
        return self._loop.event()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._loop.spawn(coroutine)

    async def sleep(self, nanoseconds: float) -> None:
        await self._loop.sleep(nanoseconds)
