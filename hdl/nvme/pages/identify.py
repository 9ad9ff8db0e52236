"""The pages of Identify, field by field (NVMe 1.4 section 5.15)."""

from dataclasses import dataclass
from math import ceil

from amaranth.hdl import Cat, Const, Mux
from amaranth.lib.wiring import PureInterface

from hdl.config import BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK, Config
from hdl.config.drive_time import given_up_ms, row_given_up_ms
from hdl.nvme.admin.names import CHUNKS
from hdl.nvme.codes import (
    CQ_ENTRY_EXPONENT,
    CRITICAL_KELVIN,
    SQ_ENTRY_EXPONENT,
    VERSION,
    WARNING_KELVIN,
)
from hdl.nvme.pages.layout import WORD_BYTES, Asked, Field, Layout, bits, field
from hdl.nvme.pages.page import Numbered, Page
from hdl.nvme.records import PageKind

PAGE_BYTES = BLOCK_BYTES
BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1

ABORT_LIMIT = 4
"""Abort commands outstanding; they run one at a time, the rest waits in the queue."""

IO_CONTROLLER = 1
NGUID_DESCRIPTOR, NGUID_BYTES = 2, 16
LOCAL_OUI = bytes((0x02, 0x00, 0x00))
"""A locally administered OUI: the project has none of its own."""

SUBSYSTEM_NAME = b"nqn.2014-08.org.nvmexpress:uuid:", b"-ad49-81c2-89cb-8830"
"""Parts of the NQN of the subsystem (NVMe 1.4 section 7.9). It ends in a UUID of version 8
(RFC 9562 section 5.8), whose first and last eight digits are those of the identity."""

OPTIMAL_SIZES, ATOMIC_SIZES = 1 << 4, 1 << 1
"""NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS are valid; NAWUN, NAWUPF and NACWU are."""

BETTER_PERFORMANCE = 1
"""Relative Performance of an LBA format that is not the best (figure 250)."""


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


def shutdown_us(config: Config) -> int:
    """RTD3 Entry Latency: microseconds that a shutdown may take (NVMe 1.4 sections 7.6.2, 8.4.4).

    Drives that end nothing may have to be given up before the last commands have ended, and
    another one before all drives are flushed (`hdl.config.drive_time`). 0, not reported, where
    drives have no time limit.
    """
    longest_ms = row_given_up_ms(config) + given_up_ms(config)
    return min(ceil(longest_ms * 1000), (1 << 32) - 1)


def _ascii(text: str, size: int) -> bytes:
    return text.ljust(size).encode("ascii")


def _if(exists: bool, line: Field) -> Field | None:
    """A line of a layout that the configuration may leave out."""
    return line if exists else None


def _in_bytes(blocks):
    """A number of blocks, in bytes."""
    return Cat(Const(0, BLOCK_SHIFT), blocks)


def controller(config: Config, identity: Identity, facts: PureInterface) -> Page:
    """Identify Controller (figure 251)."""
    digits = [Asked(facts.names.digits, facts.names.chunk, chunk) for chunk in range(CHUNKS)]
    # ONCS: Verify, Save and Select fields of features, Write Zeroes; Dataset Management, Compare.
    optional = 1 << 7 | 1 << 4 | 1 << 3
    if config.compare_and_deallocate:
        optional |= 1 << 2 | 1 << 0
    transfer_shift = config.transfer_blocks.bit_length() - 1
    sq_entry = SQ_ENTRY_EXPONENT << 4 | SQ_ENTRY_EXPONENT
    cq_entry = CQ_ENTRY_EXPONENT << 4 | CQ_ENTRY_EXPONENT
    capacity = config.report_capacity
    return Page(
        kinds=(PageKind.CONTROLLER,),
        numbered=Numbered.WORD,
        layout=Layout(
            # name, byte, bytes, source
            field("VID", 0, 2, identity.vendor),
            field("SSVID", 2, 2, identity.vendor),
            field("SN, first characters", 4, 4, b"STRI"),
            field("SN, digits of the identity", 8, 16, digits),
            field("MN", 24, 40, _ascii(identity.model, 40)),
            field("FR", 64, 8, _ascii(identity.firmware, 8)),
            field("IEEE", 73, 3, bytes(reversed(LOCAL_OUI))),
            field("MDTS, log2 of pages", 77, 1, transfer_shift),
            field("VER", 80, 4, VERSION),
            field("RTD3E, microseconds", 88, 4, shutdown_us(config)),
            field("OAES: Namespace Attribute Notices", 92, 4, 1 << 8),
            field("CNTRLTYPE", 111, 1, IO_CONTROLLER),
            field("OACS: Namespace Management and Attachment", 256, 2, 1 << 3),
            field("ACL, less one", 258, 1, ABORT_LIMIT - 1),
            field("AERL, less one", 259, 1, config.async_event_limit - 1),
            field("FRMW: one slot, read only", 260, 1, 0x03),
            field("LPA: NUMDU and offsets in Get Log Page", 261, 1, 0x04),
            field("ELPE, less one", 262, 1, config.error_log_entries - 1),
            field("WCTEMP", 266, 2, WARNING_KELVIN),
            field("CCTEMP", 268, 2, CRITICAL_KELVIN),
            _if(capacity, field("TNVMCAP", 280, 16, _in_bytes(facts.space.total))),
            _if(capacity, field("UNVMCAP", 296, 16, _in_bytes(facts.space.free))),
            field("SQES", 512, 1, sq_entry),
            field("CQES", 513, 1, cq_entry),
            field("NN", 516, 4, config.volumes),
            field("ONCS", 520, 2, optional),
            field("VWC: present; no Flush of FFFFFFFFh", 525, 1, 0x05),
            field("MNAN", 540, 4, config.volumes),
            field("SUBNQN, up to the UUID", 768, 32, SUBSYSTEM_NAME[0]),
            field("SUBNQN, first digits", 800, 8, digits[:2]),
            field("SUBNQN, digits between", 808, 20, SUBSYSTEM_NAME[1]),
            field("SUBNQN, last digits", 828, 8, digits[2:]),
            size=PAGE_BYTES,
        ),
    )


def _nguid(byte: int, facts: PureInterface) -> tuple[Field, ...]:
    """The NGUID of volume ``number``, from ``byte`` on (section 7.11)."""
    high, low, count_high, count_low = facts.names.name
    return (
        field("NGUID, vendor's extension", byte, 8, (high, low), own=True),
        field("NGUID, OUI", byte + 8, 3, LOCAL_OUI, own=True),
        field("NGUID, number of the volume, high", byte + 11, 1, count_high[24:], own=True),
        field("NGUID, number of the volume, low", byte + 12, 4, count_low, own=True),
    )


def namespace(config: Config, facts: PureInterface) -> Page:
    """Identify Namespace (figure 249): of an active one, or of any that is allocated.

    A namespace has blocks of 4096 bytes, or perhaps sectors. That of FFFFFFFFh has what all
    namespaces have in common, which is no size and no name. There is no EUI-64, as its 40 bits
    behind the OUI are too few to be never used twice.
    """
    known, emulates = facts.volume, config.sector_emulation
    volume = known.range
    size = Mux(known.sectors, volume.blocks * SECTORS_PER_BLOCK, volume.blocks)
    features = Mux(known.coarse, OPTIMAL_SIZES | ATOMIC_SIZES, 0)
    # How many sectors a physical one has, less one.
    physical = Mux(known.coarse, SECTORS_PER_BLOCK - 1, 0)
    every = facts.nsid[31]
    shown = known.active | (facts.kind == PageKind.ALLOCATED_NAMESPACE)
    return Page(
        kinds=(PageKind.NAMESPACE, PageKind.ALLOCATED_NAMESPACE),
        shows=volume.valid & shown & facts.exists & ~every,
        shared=every,
        layout=Layout(
            # name, byte, bytes, source
            field("NSZE", 0, 8, size),
            field("NCAP", 8, 8, size),
            field("NUSE", 16, 8, size),
            _if(emulates, field("NSFEAT", 24, 1, features)),
            field("NLBAF, less one", 25, 1, int(emulates)),
            _if(emulates, field("FLBAS", 26, 1, known.sectors)),
            _if(emulates, field("NAWUN", 34, 2, physical)),
            _if(emulates, field("NAWUPF", 36, 2, physical)),
            _if(emulates, field("NABSN", 40, 2, physical)),
            _if(emulates, field("NABSPF", 44, 2, physical)),
            field("NVMCAP", 48, 16, _in_bytes(volume.blocks)),
            _if(emulates, field("NPWG", 64, 2, physical)),
            _if(emulates, field("NPWA", 66, 2, physical)),
            _if(emulates, field("NPDG", 68, 2, physical)),
            _if(emulates, field("NPDA", 70, 2, physical)),
            _if(emulates, field("NOWS", 72, 2, physical)),
            *_nguid(104, facts),
            field("EUI64", 120, 8, 0, own=True),
            field("LBAF0.LBADS", 128 + 2, 1, BLOCK_SHIFT),
            _if(emulates, field("LBAF1.LBADS", 132 + 2, 1, SECTOR_BYTES.bit_length() - 1)),
            _if(emulates, bits("LBAF1.RP", 132 + 3, 0, 2, BETTER_PERFORMANCE)),
            size=PAGE_BYTES,
        ),
    )


def descriptors(facts: PureInterface) -> Page:
    """Namespace Identification Descriptors (figure 253): the NGUID."""
    return Page(
        kinds=(PageKind.DESCRIPTORS,),
        layout=Layout(
            field("NIDT", 0, 1, NGUID_DESCRIPTOR),
            field("NIDL", 1, 1, NGUID_BYTES),
            *_nguid(4, facts),
            size=PAGE_BYTES,
        ),
    )


def namespace_list(kind: PageKind, config: Config, facts: PureInterface, listed) -> Page:
    """Namespaces in ascending order, those that are ``listed``."""
    nsid = (facts.number + 1)[:32]
    return Page(
        kinds=(kind,),
        numbered=Numbered.FROM_ZERO,
        entries=config.volumes,
        shows=facts.exists,
        emits=listed,
        layout=Layout(field("NSID", 0, 4, nsid), size=WORD_BYTES),
    )


def controllers(facts: PureInterface) -> Page:
    """Controllers, all of them or those that a namespace is attached to (section 5.15.2).

    There is one, and its identifier is 0. It is in the list of a namespace if that is attached.
    """
    return Page(
        kinds=(PageKind.CONTROLLERS,),
        layout=Layout(
            field("number of identifiers", 0, 2, facts.volume.active | (facts.nsid == 0)),
            field("CNTLID", 2, 2, 0),
            size=PAGE_BYTES,
        ),
    )


def identify_pages(config: Config, identity: Identity, facts: PureInterface) -> list[Page]:
    """All pages of Identify."""
    # A list begins behind the namespace that is asked about.
    later = facts.number + 1 > facts.nsid
    active, allocated = facts.volume.active, facts.volume.range.valid
    return [
        controller(config, identity, facts),
        namespace(config, facts),
        descriptors(facts),
        namespace_list(PageKind.ACTIVE_NAMESPACES, config, facts, active & later),
        namespace_list(PageKind.ALLOCATED_NAMESPACES, config, facts, allocated & later),
        controllers(facts),
    ]
