"""The machine that the driver runs on: registers, host memory, interrupts, time.

The driver awaits only objects that the machine returns. So the same coroutines run under any event
loop that implements them: cocotb's, the native harness's, later one over VFIO.
"""

from collections.abc import Coroutine
from typing import Any, Protocol

PAGE_BYTES = 4096


class Event(Protocol):
    """A level that coroutines wait for."""

    def set(self) -> None:
        """Wakes every waiter. Later waits return at once."""
        ...

    def clear(self) -> None:
        """Later waits block again."""
        ...

    async def wait(self) -> None:
        """Returns once the event is set."""
        ...


class HostMemory(Protocol):
    """Memory that the device can reach, by bus address."""

    def allocate(self, length: int, align: int = PAGE_BYTES) -> int:
        """Reserves ``length`` bytes for good. Returns the bus address."""
        ...

    def read(self, address: int, length: int) -> bytes:
        """Copies bytes out."""
        ...

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copies bytes in."""
        ...


class Transport(Protocol):
    """One NVMe device as the driver sees it. Register offsets are byte offsets in BAR 0."""

    @property
    def memory(self) -> HostMemory:
        """Memory for queues and data."""
        ...

    async def read32(self, offset: int) -> int:
        """Reads a 32-bit register."""
        ...

    async def write32(self, offset: int, value: int) -> None:
        """Writes a 32-bit register (posted)."""
        ...

    async def enable_interrupts(self, vectors: int) -> int:
        """Sets up MSI-X vectors 0 .. ``vectors`` - 1, or fewer if the device has fewer. Returns how
        many there are."""
        ...

    def interrupt(self, vector: int) -> Event:
        """The event that an interrupt on ``vector`` sets."""
        ...

    def event(self) -> Event:
        """A new event, clear."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside the caller."""
        ...

    async def sleep(self, nanoseconds: float) -> None:
        """Returns after that much simulated or real time."""
        ...

    @property
    def now_ns(self) -> float:
        """Time in nanoseconds since some fixed moment."""
        ...
