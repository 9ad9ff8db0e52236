"""The simulated card as a PCI device of a virtual machine: the bridge to the native harness.

Writes of the guest become register writes. Its memory is host memory of the harness, without a
copy. The card's interrupt messages are handed on. Simulated time runs while the card has work, and
stands still otherwise.
"""

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence

from hdl.nvme.pages.identify import Identity
from sim.native.harness import Harness
from sw.guest.config_space import BAR_BYTES, ConfigSpace
from sw.guest.proxy import ProxyError, Region

OFFSET_SHIFT = 32
ALL_ONES = (1 << 64) - 1


class BridgedCard:
    """A `sw.guest.proxy.Device` over a native harness.

    Parameters
    ----------
    harness
        The card with its surroundings.
    vectors
        MSI-X vectors of the card (queue pairs + 1).
    deliver
        Called with address and data of each interrupt message.
    identity
        The card's names.
    """

    def __init__(
        self,
        harness: Harness,
        *,
        vectors: int,
        deliver: Callable[[int, int], None],
        identity: Identity | None = None,
    ):
        self.harness = harness
        self.config = ConfigSpace(vectors, identity or Identity())
        self._deliver = deliver
        self._maps: dict[tuple[int, int], ctypes.Array] = {}
        self._status: dict[str, int] = {}
        self.interrupts = 0
        self.function_resets = 0
        self.idle = False
        """Nothing will move until the host or a drive does something."""
        self._drive_status()

    # Time

    def advance(self, cycles: int) -> None:
        """Runs for at most ``cycles`` evaluated cycles, or until something happens."""
        self._take(self.harness.run(cycles=cycles))

    def _take(self, events: Sequence[tuple]) -> None:
        for event in events:
            if event[0] == "interrupt":
                self.interrupts += 1
                offset, data = divmod(event[1], 1 << OFFSET_SHIFT)
                self._deliver(self.harness.msi_address + offset, data)
            elif event[0] == "idle":
                self.idle = True

    def remove(self, port: int) -> None:
        """Pulls a drive."""
        self.harness.remove(port)
        self.idle = False

    # Messages

    def config_read(self, offset: int, length: int) -> int:
        """As `ConfigSpace.read`."""
        return self.config.read(offset, length)

    def config_write(self, offset: int, length: int, value: int) -> None:
        """As `ConfigSpace.write`. The card sees its control inputs change.

        A function level reset is over when this returns.
        """
        self.config.write(offset, length, value)
        if self.config.wants_reset:
            self._take(self.harness.reset_function())
            self.config.reset(function=True)
            self._status.clear()
            self.function_resets += 1
        self._drive_status()

    def bar_read(self, address: int, length: int) -> int:
        """Runs the card until it answers. Returns all ones where it does not decode the address."""
        offset = self._offset(address, length)
        if offset is None:
            return ALL_ONES >> 8 * (8 - length)
        self.idle = False
        return self.harness.mmio_read(offset, length)

    def bar_write(self, address: int, length: int, value: int) -> None:
        """Posts the write. It arrives when time runs."""
        offset = self._offset(address, length)
        if offset is not None:
            self.idle = False
            self.harness.mmio_write(offset, value, length)

    def reset(self) -> None:
        """The host's machine, or its bus, has been reset, and so is the link. Arrays stay."""
        self.config.reset()
        self.harness.reset_link()
        self._status.clear()
        self._drive_status()
        self.idle = False

    def map_memory(self, regions: Sequence[Region]) -> None:
        """Maps the guest's memory, each file once. Raises `ProxyError` for regions that cannot be
        mapped."""
        self.harness.unmap_memory()
        for region in regions:
            memory = self._map(region.descriptor)
            if region.offset + region.size > len(memory):
                raise ProxyError(f"memory at {region.address:#x} lies outside its file")
            part = (ctypes.c_char * region.size).from_buffer(memory, region.offset)
            self.harness.map_memory(region.address, part)

    def _map(self, descriptor: int) -> ctypes.Array:
        status = os.fstat(descriptor)
        name = status.st_dev, status.st_ino
        if name not in self._maps:
            mapped = mmap.mmap(descriptor, status.st_size)
            self._maps[name] = (ctypes.c_char * status.st_size).from_buffer(mapped)
        return self._maps[name]

    def _offset(self, address: int, length: int) -> int | None:
        bar = self.config.bar
        if bar is None or not bar <= address <= bar + BAR_BYTES - length:
            return None
        return address - bar

    def _drive_status(self) -> None:
        config = self.config
        for name, value in (
            ("max_payload", config.max_payload),
            ("max_read_request", config.max_read_request),
            ("extended_tag", config.extended_tag),
            ("relaxed_ordering", config.relaxed_ordering),
            ("bus_master", config.bus_master),
            ("msix_enable", config.msix_enable),
            ("msix_mask", config.msix_mask),
        ):
            if self._status.get(name) != value:
                self._status[name] = value
                self.harness.set_status(name, value)
                self.idle = False
