"""PCI configuration space of the card, as its hard block keeps it (PCI 3.0 chapter 6)."""

import struct

from hdl.nvme.identify import Identity

CONFIG_BYTES = 256
BAR_BYTES = 16 << 10
DEVICE = 0x9038
"""What the hard block for PCIe 3.0 x8 calls itself by default."""
CLASS_NVME = 0x010802
"""Mass storage, non-volatile memory, NVM Express I/O controller."""
REVISION = 1

COMMAND, STATUS, BAR0, CAPABILITIES, INTERRUPT_LINE = 0x04, 0x06, 0x10, 0x34, 0x3C
MEMORY_SPACE, BUS_MASTER = 1 << 1, 1 << 2
HAS_CAPABILITIES = 1 << 4
BAR_ADDRESS = 0xFFFF_FFF0

MSIX = 0x40
MSIX_IDENTIFIER = 0x11
MSIX_ENABLE, MSIX_MASK = 1 << 15, 1 << 14
MSIX_TABLE_OFFSET, MSIX_PENDING_OFFSET = 0x2000, 0x3000


class ConfigSpace:
    """A type 0 header with one 32-bit memory BAR and an MSI-X capability.

    Parameters
    ----------
    vectors
        MSI-X vectors, 1..2048.
    identity
        Whose vendor it names.
    """

    def __init__(self, vectors: int, identity: Identity):
        if not 1 <= vectors <= 2048:
            raise ValueError(f"vectors must be 1..2048, not {vectors}")
        self._initial = bytearray(CONFIG_BYTES)
        self._writable = bytearray(CONFIG_BYTES)
        self._vectors = vectors
        self._identity = identity
        self._fill()
        self._values = bytearray(self._initial)

    def _fill(self) -> None:
        vendor = self._identity.vendor
        for offset, form, value, writable in (
            (0x00, "<H", vendor, 0),
            (0x02, "<H", DEVICE, 0),
            (COMMAND, "<H", 0, 0x0547),
            (STATUS, "<H", HAS_CAPABILITIES, 0),
            (0x08, "<I", CLASS_NVME << 8 | REVISION, 0),
            (0x0C, "<B", 0, 0xFF),
            (BAR0, "<I", 0, -BAR_BYTES & BAR_ADDRESS),
            (0x2C, "<H", vendor, 0),
            (0x2E, "<H", DEVICE, 0),
            (CAPABILITIES, "<B", MSIX, 0),
            (INTERRUPT_LINE, "<B", 0, 0xFF),
            (MSIX, "<H", MSIX_IDENTIFIER, 0),
            (MSIX + 2, "<H", self._vectors - 1, MSIX_ENABLE | MSIX_MASK),
            (MSIX + 4, "<I", MSIX_TABLE_OFFSET, 0),
            (MSIX + 8, "<I", MSIX_PENDING_OFFSET, 0),
        ):
            struct.pack_into(form, self._initial, offset, value)
            struct.pack_into(form, self._writable, offset, writable)

    def reset(self) -> None:
        """Back to the values at power-on."""
        self._values[:] = self._initial

    def read(self, offset: int, length: int) -> int:
        """``length`` bytes as a number; all ones beyond the end."""
        if offset + length > CONFIG_BYTES:
            return (1 << 8 * length) - 1
        return int.from_bytes(self._values[offset : offset + length], "little")

    def write(self, offset: int, length: int, value: int) -> None:
        """Changes what of ``length`` bytes is writable."""
        for place in range(offset, min(offset + length, CONFIG_BYTES)):
            mask = self._writable[place]
            byte = value >> 8 * (place - offset) & 0xFF
            self._values[place] = self._values[place] & ~mask & 0xFF | byte & mask

    @property
    def bus_master(self) -> bool:
        """The card may send requests."""
        return bool(self.read(COMMAND, 2) & BUS_MASTER)

    @property
    def bar(self) -> int | None:
        """Bus address of BAR 0, or None while the card answers at none."""
        if not self.read(COMMAND, 2) & MEMORY_SPACE:
            return None
        return self.read(BAR0, 4) & BAR_ADDRESS

    @property
    def msix_enable(self) -> bool:
        """Interrupts are messages."""
        return bool(self.read(MSIX + 2, 2) & MSIX_ENABLE)

    @property
    def msix_mask(self) -> bool:
        """All vectors are masked."""
        return bool(self.read(MSIX + 2, 2) & MSIX_MASK)
