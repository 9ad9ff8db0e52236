"""The host driver's transport under cocotb, over cocotbext-pcie's root complex."""

import random
from collections.abc import Coroutine, Sequence
from typing import Any

import cocotb
from cocotb.triggers import Event, Timer
from cocotb.utils import get_sim_time
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.caps import PciCapId

MSIX_TABLE = 0x2000
MSIX_ENTRY_BYTES = 16
MSIX_CONTROL_ENABLE = 0x8000


class CocotbEvent:
    """A cocotb event under the names the driver uses."""

    def __init__(self, event: Event | None = None):
        self._event = event or Event()

    def set(self) -> None:
        """Wakes every waiter; later waits return at once."""
        self._event.set()

    def clear(self) -> None:
        """Later waits block again."""
        self._event.clear()

    async def wait(self) -> None:
        """Returns once the event is set."""
        await self._event.wait()


class _Region:
    """A region of a pool, of which bytes are reserved from the lowest on."""

    def __init__(self, pool, size: int):
        self._region = pool.alloc_region(size)
        base = self._region.get_absolute_address(0)
        if base is None:
            raise RuntimeError("the region is not mapped")
        self._base: int = base
        self._size = size
        self._next = 0

    def allocate(self, length: int, align: int) -> int:
        self._next = -(-(self._base + self._next) // align) * align - self._base
        address = self._base + self._next
        self._next += length
        if self._next > self._size:
            raise MemoryError(f"host memory of {self._size} bytes is used up")
        return address

    def holds(self, address: int) -> bool:
        return self._base <= address < self._base + self._size

    def read(self, address: int, length: int) -> bytes:
        start = address - self._base
        return bytes(self._region[start : start + length])

    def everything(self) -> bytes:
        """Copies all of it out."""
        return bytes(self._region[: self._size])

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        start = address - self._base
        self._region[start : start + len(data)] = bytes(data)


class PoolMemory:
    """Regions of the host's memory pools, found again by bus address.

    Parameters
    ----------
    pools
        What to take from, each time one at random: below 4 GiB and above.
    size
        Bytes to take from each.
    seed
        Of the choice.
    """

    def __init__(self, pools: Sequence[Any], size: int, seed: int):
        self._regions = [_Region(pool, size) for pool in pools]
        self._random = random.Random(f"{seed}/memory")

    def allocate(self, length: int, align: int = 4096) -> int:
        """Reserves bytes for good."""
        return self._random.choice(self._regions).allocate(length, align)

    def read(self, address: int, length: int) -> bytes:
        """Copies bytes out."""
        return self._of(address).read(address, length)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copies bytes in."""
        self._of(address).write(address, data)

    def everything(self) -> list[bytes]:
        """Copies all of it out, region by region."""
        return [region.everything() for region in self._regions]

    def _of(self, address: int) -> _Region:
        return next(region for region in self._regions if region.holds(address))


class CocotbTransport:
    """One device behind a root complex that has been enumerated.

    Parameters
    ----------
    rc
        The root complex.
    device
        The enumerated function, as ``rc.find_device`` returns it.
    pools
        Where host memory is, see `PoolMemory`.
    memory_bytes
        Host memory for queues and data, of each pool.
    seed
        Of where it is.
    """

    def __init__(
        self,
        rc: RootComplex,
        device,
        *,
        pools: Sequence[Any],
        memory_bytes: int = 1 << 24,
        seed: int = 1,
    ):
        self._rc = rc
        self._device = device
        self._bar = device.bar_window[0]
        self.memory = PoolMemory(pools, memory_bytes, seed)
        self._interrupts: dict[int, CocotbEvent] = {}

    async def read32(self, offset: int) -> int:
        """Reads a 32-bit register."""
        return await self._bar.read_dword(offset)

    async def write32(self, offset: int, value: int) -> None:
        """Writes a 32-bit register (posted)."""
        await self._bar.write_dword(offset, value)

    async def enable_interrupts(self, vectors: int) -> int:
        """Sets up MSI-X vectors 0 .. ``vectors`` - 1 (fewer if the device has fewer); the count."""
        control = await self._device.capability_read_word(PciCapId.MSIX, 2)
        granted = min(vectors, (control & 0x7FF) + 1)
        for vector, message in enumerate(self._rc.msi_alloc_vectors(granted)):
            entry = MSIX_TABLE + MSIX_ENTRY_BYTES * vector
            words = (message.addr & 0xFFFF_FFFF, message.addr >> 32, message.data, 0)
            for index, value in enumerate(words):
                await self._bar.write_dword(entry + 4 * index, value)
            self._interrupts[vector] = CocotbEvent(message.event)
        await self._device.capability_write_word(PciCapId.MSIX, 2, control | MSIX_CONTROL_ENABLE)
        return granted

    def interrupt(self, vector: int) -> CocotbEvent:
        """The event that an interrupt on ``vector`` sets."""
        return self._interrupts.setdefault(vector, CocotbEvent())

    def event(self) -> CocotbEvent:
        """A new event, clear."""
        return CocotbEvent()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside the caller."""
        cocotb.start_soon(coroutine)

    async def sleep(self, nanoseconds: float) -> None:
        """Returns after that much simulated time."""
        await Timer(max(round(nanoseconds * 1000), 1), unit="ps")

    @property
    def now_ns(self) -> float:
        """Simulated time."""
        return get_sim_time("ns")
