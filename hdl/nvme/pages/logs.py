"""The log pages, field by field (NVMe 1.4 section 5.14.1, and those of the vendor)."""

from amaranth.hdl import Const
from amaranth.lib.wiring import PureInterface

from hdl.config import Config
from hdl.flow.report import FINDINGS, REPORT_WORDS
from hdl.nvme.pages.identify import PAGE_BYTES, Identity, namespace_list
from hdl.nvme.pages.layout import WORD_BYTES, Field, Layout, field
from hdl.nvme.pages.log_memory import ENTRY_WORDS, STORED_WORDS, Counter
from hdl.nvme.pages.page import Numbered, Page
from hdl.nvme.records import PageKind

SPARE_PERCENT = 100
SPARE_THRESHOLD = 10

HOT_WORD = 196 // WORD_BYTES
"""Word of Critical Composite Temperature Time; all others lie in the memory as in the page."""


def errors(config: Config, facts: PureInterface) -> Page:
    """Error Information (01h, section 5.14.1.1): entries, newest first.

    `hdl.nvme.pages.log_memory.error_entry` has the fields of an entry.
    """
    return Page(
        kinds=(PageKind.ERROR,),
        numbered=Numbered.NONE,
        entries=config.error_log_entries,
        shows=facts.exists,
        layout=Layout(
            field("as stored", 0, WORD_BYTES * STORED_WORDS, (facts.log,) * STORED_WORDS),
            size=WORD_BYTES * ENTRY_WORDS,
        ),
    )


def smart(facts: PureInterface) -> Page:
    """SMART / Health Information (02h, section 5.14.1.2, figure 194)."""
    zero = Const(0, 32)
    # A counter has 64 bits in the log, of 128.
    counted = (facts.log, facts.log, zero, zero)

    def counter(name: str, byte: int, which: Counter) -> Field:
        assert byte == 16 * which.value  # it lies in the memory as in the page
        return field(name, byte, 16, counted)

    return Page(
        kinds=(PageKind.SMART,),
        layout=Layout(
            # name, byte, bytes, source
            field("Critical Warning", 0, 1, facts.health.warning),
            field("Composite Temperature", 1, 2, facts.health.temperature),
            field("Available Spare", 3, 1, SPARE_PERCENT),
            field("Available Spare Threshold", 4, 1, SPARE_THRESHOLD),
            counter("Data Units Read", 32, Counter.UNITS_READ),
            counter("Data Units Written", 48, Counter.UNITS_WRITTEN),
            counter("Host Read Commands", 64, Counter.READS),
            counter("Host Write Commands", 80, Counter.WRITES),
            counter("Controller Busy Time", 96, Counter.BUSY_MINUTES),
            counter("Power Cycles", 112, Counter.POWER_CYCLES),
            counter("Power On Hours", 128, Counter.POWER_ON_HOURS),
            counter("Unsafe Shutdowns", 144, Counter.UNSAFE_SHUTDOWNS),
            counter("Media and Data Integrity Errors", 160, Counter.MEDIA_ERRORS),
            counter("Number of Error Information Log Entries", 176, Counter.ERRORS),
            # Of the counters WARM_MINUTES and HOT_MINUTES, minutes.
            field("Warning Composite Temperature Time", 192, 4, (facts.log,)),
            field("Critical Composite Temperature Time", 196, 4, (facts.log,)),
            size=PAGE_BYTES,
        ),
    )


def firmware_slots(identity: Identity) -> Page:
    """Firmware Slot Information (03h, section 5.14.1.3, figure 198)."""
    return Page(
        kinds=(PageKind.FIRMWARE_SLOT,),
        layout=Layout(
            field("AFI: slot 1 is active", 0, 1, 1),
            field("FRS1, the only revision", 8, 8, identity.firmware.ljust(8).encode("ascii")),
            size=PAGE_BYTES,
        ),
    )


def report(kinds: tuple[PageKind, ...], entries: int, facts: PureInterface) -> Page:
    """A log of background work (C0h to C2h).

    `hdl.background` makes the words of an entry, and docs/host-interface.md lists them.
    """
    return Page(
        kinds=kinds,
        numbered=Numbered.FROM_ZERO,
        entries=entries,
        shows=facts.exists,
        layout=Layout(
            field("as reported", 0, WORD_BYTES * REPORT_WORDS, (facts.report,) * REPORT_WORDS),
            size=WORD_BYTES * REPORT_WORDS,
        ),
    )


def log_pages(config: Config, identity: Identity, facts: PureInterface) -> list[Page]:
    """All log pages. Those of background work have no entries without `Config.background`."""
    arrays, findings = (config.arrays, FINDINGS) if config.background else (0, 0)
    return [
        smart(facts),
        errors(config, facts),
        firmware_slots(identity),
        namespace_list(PageKind.CHANGED_NAMESPACES, config, facts, facts.volume.changed),
        report((PageKind.ARRAY_STATES,), arrays, facts),
        report((PageKind.DEFECTS, PageKind.LOST_BLOCKS), findings, facts),
    ]
