"""Transport over the native harness: verilated controller, PCIe link and drive models."""

from collections.abc import Coroutine
from typing import Any

from sim.native.harness import Harness
from sw.driver.loop import Loop, LoopEvent
from sw.driver.transport import PAGE_BYTES

MSIX_TABLE = 0x2000
MSIX_ENTRY_BYTES = 16


class BufferMemory:
    """Host memory of the harness, handed out from the bottom.

    Parameters
    ----------
    buffer
        The bytes.
    base
        Bus address of the first byte.
    """

    def __init__(self, buffer: memoryview, base: int):
        self._buffer = buffer
        self._base = base
        self._next = base

    def allocate(self, length: int, align: int = PAGE_BYTES) -> int:
        """Reserves bytes for good. Raises `MemoryError` when the buffer is used up."""
        address = -(-self._next // align) * align
        if address + length > self._base + len(self._buffer):
            raise MemoryError(f"host memory of {len(self._buffer)} bytes is used up")
        self._next = address + length
        return address

    def read(self, address: int, length: int) -> bytes:
        """Copies bytes out."""
        start = self._place(address, length)
        return bytes(self._buffer[start : start + length])

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copies bytes in."""
        start = self._place(address, len(data))
        self._buffer[start : start + len(data)] = data

    def _place(self, address: int, length: int) -> int:
        start = address - self._base
        if start < 0 or start + length > len(self._buffer):
            raise ValueError(f"{length} bytes at {address:#x} are outside host memory")
        return start


class HarnessMachine:
    """The harness as an event loop's machine.

    Parameters
    ----------
    harness
        The machine.
    """

    def __init__(self, harness: Harness):
        self._harness = harness

    @property
    def now_ns(self) -> float:
        """Simulated time."""
        return self._harness.now_ns

    def advance(self, until_ns: float | None) -> list[int]:
        """Runs to the next interrupt or to ``until_ns``. Returns the vectors that came."""
        events = self._harness.run(until_ns)
        if ("idle",) in events:
            raise RuntimeError(
                f"the card is idle at {self.now_ns:.0f} ns while the driver waits: "
                "a command is lost"
            )
        return [event[1] for event in events if event[0] == "interrupt"]


class NativeTransport:
    """One simulated card. Run coroutines on it with `run`.

    Parameters
    ----------
    harness
        The machine. It must outlive the transport.
    vectors
        MSI-X vectors of the card (queue pairs + 1).
    """

    def __init__(self, harness: Harness, vectors: int):
        self.harness = harness
        self._vectors = vectors
        self.memory = BufferMemory(harness.memory, harness.memory_base)
        self._loop = Loop(HarnessMachine(harness))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs ``main`` to its end in simulated time and returns its result."""
        return self._loop.run(main)

    def close(self) -> None:
        """Ends every coroutine that still runs, at the point where it waits."""
        self._loop.close()

    async def read32(self, offset: int) -> int:
        """Reads a 32-bit register."""
        return self.harness.mmio_read32(offset)

    async def write32(self, offset: int, value: int) -> None:
        """Writes a 32-bit register (posted)."""
        self.harness.mmio_write32(offset, value)

    async def enable_interrupts(self, vectors: int) -> int:
        """Sets up MSI-X vectors 0 .. ``vectors`` - 1. Returns how many there are."""
        granted = min(vectors, self._vectors)
        address = self.harness.msi_address
        for vector in range(granted):
            entry = MSIX_TABLE + MSIX_ENTRY_BYTES * vector
            for index, value in enumerate((address & 0xFFFF_FFFF, address >> 32, vector, 0)):
                self.harness.mmio_write32(entry + 4 * index, value)
        self.harness.set_status("msix_enable", 1)
        return granted

    def interrupt(self, vector: int) -> LoopEvent:
        """The event that an interrupt on ``vector`` sets."""
        return self._loop.interrupt(vector)

    def event(self) -> LoopEvent:
        """A new event, clear."""
        return self._loop.event()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside the caller."""
        self._loop.spawn(coroutine)

    async def sleep(self, nanoseconds: float) -> None:
        """Returns after that much simulated time."""
        await self._loop.sleep(nanoseconds)

    @property
    def now_ns(self) -> float:
        """Simulated time."""
        return self.harness.now_ns
