"""PCI configuration space of the card, as its hard block keeps it (PCI 3.0 chapter 6, PCIe 7.5)."""

import struct

from hdl.nvme.pages.identify import Identity

CONFIG_BYTES = 256
BAR_BYTES = 16 << 10
DEVICE = 0x9038
"""Device identifier that the hard block for PCIe 3.0 x8 has by default."""
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

EXPRESS = 0x60
EXPRESS_IDENTIFIER = 0x10
VERSION_2_INTEGRATED_ENDPOINT = 9 << 4 | 2
"""The guest sees the card on its root complex, without a link of its own."""
DEVICE_CAPABILITIES, DEVICE_CONTROL = EXPRESS + 4, EXPRESS + 8
PAYLOAD_256, EXTENDED_TAG, ROLE_BASED_ERRORS, FUNCTION_RESET = 1, 1 << 5, 1 << 15, 1 << 28
INITIAL_CONTROL = 2 << 12 | 1 << 4 | 1 << 11
"""Read requests of 512 bytes, relaxed ordering, no snoop: Device Control after a reset."""
CAPABLE = PAYLOAD_256 | EXTENDED_TAG | ROLE_BASED_ERRORS | FUNCTION_RESET
CONTROL_WRITABLE = 0x7FFF
RELAXED_ORDERING, PAYLOAD_SHIFT, EXTENDED_TAG_ENABLE, READ_REQUEST_SHIFT = 1 << 4, 5, 1 << 8, 12
SIZE_BITS, LARGEST_SIZE = 7, 5
"""Sizes are 128 << code. Codes above the largest are reserved."""
INITIATE_RESET = 1 << 15
"""Always read as 0."""


class ConfigSpace:
    """A type 0 header with one 32-bit memory BAR, and capabilities for MSI-X and PCI Express.

    Parameters
    ----------
    vectors
        MSI-X vectors, 1..2048.
    identity
        The card's names, of which the vendor is used.
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
        self.wants_reset = False
        """A function level reset was asked for, and `reset` has not followed."""

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
            (MSIX, "<B", MSIX_IDENTIFIER, 0),
            (MSIX + 1, "<B", EXPRESS, 0),
            (MSIX + 2, "<H", self._vectors - 1, MSIX_ENABLE | MSIX_MASK),
            (MSIX + 4, "<I", MSIX_TABLE_OFFSET, 0),
            (MSIX + 8, "<I", MSIX_PENDING_OFFSET, 0),
            (EXPRESS, "<H", EXPRESS_IDENTIFIER, 0),
            (EXPRESS + 2, "<H", VERSION_2_INTEGRATED_ENDPOINT, 0),
            (DEVICE_CAPABILITIES, "<I", CAPABLE, 0),
            (DEVICE_CONTROL, "<H", INITIAL_CONTROL, CONTROL_WRITABLE),
        ):
            struct.pack_into(form, self._initial, offset, value)
            struct.pack_into(form, self._writable, offset, writable)

    def reset(self, *, function: bool = False) -> None:
        """Sets the values of power-on.

        After a function level reset (``function``) Max_Payload_Size stays (PCIe base specification
        6.6.2).
        """
        payload = self._control & SIZE_BITS << PAYLOAD_SHIFT
        self._values[:] = self._initial
        self.wants_reset = False
        if function:
            struct.pack_into("<H", self._values, DEVICE_CONTROL, self._control | payload)

    def read(self, offset: int, length: int) -> int:
        """``length`` bytes as a number. It is all ones beyond the end."""
        if offset + length > CONFIG_BYTES:
            return (1 << 8 * length) - 1
        return int.from_bytes(self._values[offset : offset + length], "little")

    def write(self, offset: int, length: int, value: int) -> None:
        """Changes the writable bits of ``length`` bytes. It may set `wants_reset`."""
        for place in range(offset, min(offset + length, CONFIG_BYTES)):
            mask = self._writable[place]
            byte = value >> 8 * (place - offset) & 0xFF
            self._values[place] = self._values[place] & ~mask & 0xFF | byte & mask
            if place == DEVICE_CONTROL + 1 and byte & INITIATE_RESET >> 8:
                self.wants_reset = True

    @property
    def _control(self) -> int:
        return self.read(DEVICE_CONTROL, 2)

    @property
    def max_payload(self) -> int:
        """Code of Max_Payload_Size."""
        return min(self._control >> PAYLOAD_SHIFT & SIZE_BITS, LARGEST_SIZE)

    @property
    def max_read_request(self) -> int:
        """Code of Max_Read_Request_Size."""
        return min(self._control >> READ_REQUEST_SHIFT & SIZE_BITS, LARGEST_SIZE)

    @property
    def extended_tag(self) -> bool:
        """Tags may have 8 bits."""
        return bool(self._control & EXTENDED_TAG_ENABLE)

    @property
    def relaxed_ordering(self) -> bool:
        """Requests may ask for relaxed ordering."""
        return bool(self._control & RELAXED_ORDERING)

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
