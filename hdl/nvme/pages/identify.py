"""What the controller says of itself: fixed contents of Identify and log pages (NVMe 1.4)."""

import struct
from dataclasses import dataclass
from math import ceil

from hdl.config import BLOCK_BYTES, SECTOR_BYTES, Config
from hdl.config.drive_time import given_up_ms
from hdl.nvme.codes import (
    CQ_ENTRY_EXPONENT,
    CRITICAL_KELVIN,
    SQ_ENTRY_EXPONENT,
    VERSION,
    WARNING_KELVIN,
)
from hdl.nvme.records import PageKind

IMAGE_WORDS = 256
"""Words of an image; what follows in a page is 0."""

PAGE_WORDS = BLOCK_BYTES // 4

SMART_SPARE_PERCENT = 100
SMART_SPARE_THRESHOLD = 10
ABORT_LIMIT = 4
"""Abort commands outstanding; they run one at a time, the rest waits in the queue."""

SHUTDOWN_STAGES = 2
"""Commands end; drives are flushed."""

IO_CONTROLLER = 1
NGUID_DESCRIPTOR, NGUID_BYTES = 2, 16
NGUID_OUI = 8
"""Where in an NGUID the OUI is."""

LOCAL_OUI = bytes((0x02, 0x00, 0x00))
"""A locally administered OUI: the project has none of its own."""

SERIAL = b"STRI" + bytes(16)
"""Serial number, but for the 16 hexadecimal digits of the identity (`hdl.nvme.admin.names`)."""

SUBSYSTEM_NAME = b"nqn.2014-08.org.nvmexpress:uuid:" + bytes(8) + b"-ad49-81c2-89cb-8830" + bytes(8)
"""NQN of the subsystem (NVMe 1.4 section 7.9): a UUID of version 8 (RFC 9562 section 5.8), whose
first and last eight digits are those of the identity."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What all cards of a kind say of themselves; the rest is an input (`hdl.nvme.admin.names`).

    Parameters
    ----------
    model
        Model, up to 40 characters.
    firmware
        Revision, up to 8 characters.
    vendor
        PCI vendor and subsystem vendor, as in the configuration space of the hard block.
    """

    model: str = "Striata"
    firmware: str = "1.0"
    vendor: int = 0x10EE

    def __post_init__(self) -> None:
        for name, most in (("model", 40), ("firmware", 8)):
            value = getattr(self, name)
            if not value.isascii() or not value.isprintable() or not 1 <= len(value) <= most:
                raise ValueError(f"{name} must be 1..{most} printable ASCII characters")
        if not 0 <= self.vendor < 1 << 16:
            raise ValueError(f"vendor must have 16 bits, not {self.vendor:#x}")


NAMELESS = bytes(NGUID_OUI) + LOCAL_OUI + bytes(NGUID_BYTES - NGUID_OUI - len(LOCAL_OUI))
"""An NGUID without what tells it from others."""


def shutdown_us(config: Config) -> int:
    """RTD3 Entry Latency: microseconds that a shutdown may take (NVMe 1.4 sections 7.6.2, 8.4.4).

    A drive that ends nothing may have to be given up before the last commands have ended, and
    another one before all drives are flushed (`hdl.drive.recovery.ladder`). 0, not reported, where
    drives have no time limit.
    """
    return min(ceil(SHUTDOWN_STAGES * given_up_ms(config) * 1000), (1 << 32) - 1)


def controller_image(config: Config, identity: Identity) -> bytes:
    """Identify Controller (figure 251)."""
    page = bytearray(4 * IMAGE_WORDS)
    identity_format = "<HH20s40s8s"
    struct.pack_into(
        identity_format,
        page,
        0,
        identity.vendor,
        identity.vendor,
        SERIAL,
        identity.model.ljust(40).encode("ascii"),
        identity.firmware.ljust(8).encode("ascii"),
    )
    page[73:76] = bytes(reversed(LOCAL_OUI))
    page[77] = config.transfer_blocks.bit_length() - 1  # MDTS
    struct.pack_into("<I", page, 80, VERSION)
    struct.pack_into("<I", page, 88, shutdown_us(config))  # RTD3E
    page[111] = IO_CONTROLLER  # CNTRLTYPE
    struct.pack_into("<H", page, 256, 1 << 3)  # OACS: Namespace Management and Attachment
    struct.pack_into("<I", page, 92, 1 << 8)  # OAES: Namespace Attribute Notices
    page[258] = ABORT_LIMIT - 1  # ACL
    page[259] = config.async_event_limit - 1  # AERL
    page[260] = 0x03  # FRMW: one slot, read only
    page[261] = 0x04  # LPA: NUMDU and offsets in Get Log Page
    page[262] = config.error_log_entries - 1  # ELPE
    struct.pack_into("<HH", page, 266, WARNING_KELVIN, CRITICAL_KELVIN)  # WCTEMP, CCTEMP
    page[512] = SQ_ENTRY_EXPONENT << 4 | SQ_ENTRY_EXPONENT  # SQES
    page[513] = CQ_ENTRY_EXPONENT << 4 | CQ_ENTRY_EXPONENT  # CQES
    struct.pack_into("<I", page, 516, config.volumes)  # NN
    # ONCS: Verify, Save and Select fields of features, Write Zeroes; Dataset Management, Compare.
    optional = 1 << 7 | 1 << 4 | 1 << 3
    if config.compare_and_deallocate:
        optional |= 1 << 2 | 1 << 0
    struct.pack_into("<H", page, 520, optional)
    struct.pack_into("<I", page, 540, config.volumes)  # MNAN
    page[525] = 0x05  # VWC: present; no Flush of FFFFFFFFh
    page[768 : 768 + len(SUBSYSTEM_NAME)] = SUBSYSTEM_NAME
    return bytes(page)


BETTER_PERFORMANCE = 1
"""Relative Performance of an LBA format that is not the best (figure 250)."""


def namespace_image(config: Config) -> bytes:
    """Identify Namespace (figure 249) without sizes and name: 4096-byte blocks, perhaps sectors.

    There is no EUI-64: its 40 bits behind the OUI are too few to be never used twice.
    """
    page = bytearray(4 * IMAGE_WORDS)
    page[104:120] = NAMELESS
    page[128 + 2] = BLOCK_BYTES.bit_length() - 1  # LBAF0.LBADS
    if config.sector_emulation:
        page[25] = 1  # NLBAF, less one
        page[132 + 2] = SECTOR_BYTES.bit_length() - 1  # LBAF1.LBADS
        page[132 + 3] = BETTER_PERFORMANCE
    return bytes(page)


def descriptors_image() -> bytes:
    """Namespace Identification Descriptors (figure 253): the NGUID."""
    return bytes((NGUID_DESCRIPTOR, NGUID_BYTES, 0, 0)) + NAMELESS


def smart_image() -> bytes:
    """SMART / Health Information (figure 194) without warnings, temperature and counters."""
    return bytes((0, 0, 0, SMART_SPARE_PERCENT, SMART_SPARE_THRESHOLD))


def firmware_image(identity: Identity) -> bytes:
    """Firmware Slot Information (figure 198): slot 1 is active and holds the only revision."""
    return b"\x01" + bytes(7) + identity.firmware.ljust(8).encode("ascii")


def images(config: Config, identity: Identity) -> list[int]:
    """Words of the ROM: `IMAGE_WORDS` for each page kind that has an image."""
    contents = {
        PageKind.CONTROLLER: controller_image(config, identity),
        PageKind.NAMESPACE: namespace_image(config),
        PageKind.DESCRIPTORS: descriptors_image(),
        PageKind.SMART: smart_image(),
        PageKind.FIRMWARE_SLOT: firmware_image(identity),
    }
    words: list[int] = []
    for kind, content in sorted(contents.items(), key=lambda item: item[0].value):
        if kind.value * IMAGE_WORDS != len(words):
            raise ValueError("page kinds with an image must be numbered from 0")
        words += struct.unpack(f"<{IMAGE_WORDS}I", content.ljust(4 * IMAGE_WORDS, b"\0"))
    return words
