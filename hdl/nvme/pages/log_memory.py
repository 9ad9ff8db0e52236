"""The memory of the SMART and error logs: what lies where, and what it is at power-up."""

from amaranth.hdl import Cat, Const
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, SECTOR_BITS, Config, bits_for_count
from hdl.nvme.pages.layout import WORD_BYTES, Layout, field

UNIT_BYTES = 1000 * 512
"""Bytes of a data unit."""

SMART_WORDS = 64
"""Words of the memory before the first error log entry."""

ENTRY_WORDS = 16
"""Words of an error log entry; those from `USED_WORDS` on are 0."""

USED_WORDS = 7

STORED_WORDS = 8
"""Words of an entry in the memory."""

COUNTER_WORDS = 4
"""Words of a counter."""

LOW, HIGH, REST = (Const(word, 2) for word in (0, 1, 3))
"""Words of a counter: 64 bits of value, and what is short of the next count. One is unused."""


class Counter(enum.Enum, shape=4):
    """Counters; the number is that of the 16-byte field of the SMART log (figure 194).

    A counter has four words: 64 bits of value, one unused, and what is short of the next count.
    """

    UNITS_READ = 2
    UNITS_WRITTEN = 3
    READS = 4
    WRITES = 5
    BUSY_MINUTES = 6
    POWER_CYCLES = 7
    POWER_ON_HOURS = 8
    UNSAFE_SHUTDOWNS = 9
    MEDIA_ERRORS = 10
    ERRORS = 11
    WARM_MINUTES = 12
    HOT_MINUTES = 13


def kept_entries(config: Config) -> int:
    """Entries in the memory: those that a page shows, and as many that come meanwhile."""
    return 2 * config.error_log_entries


def memory_words(config: Config) -> int:
    """Words of the memory."""
    return SMART_WORDS + STORED_WORDS * kept_entries(config)


def count_shift(config: Config) -> int:
    """log2 of what a block is in data units: 1, or its sectors where there may be any."""
    return SECTOR_BITS if config.sector_emulation else 0


def unit(config: Config) -> int:
    """What a data unit is counted in: its blocks, or its sectors where there may be any."""
    return UNIT_BYTES // (BLOCK_BYTES >> count_shift(config))


def log_init(config: Config) -> list[int]:
    """Contents at power-up: this power cycle; the first block of a data unit counts as a unit."""
    words = [0] * memory_words(config)
    for counter in (Counter.UNITS_READ, Counter.UNITS_WRITTEN):
        words[COUNTER_WORDS * counter.value + REST.value] = unit(config) - 1
    words[COUNTER_WORDS * Counter.POWER_CYCLES.value] = 1
    return words


class LogRead(wiring.Signature):
    """A read of the logs, seen from the reader: ``data`` follows ``address`` by one cycle."""

    def __init__(self, config: Config):
        words = memory_words(config)
        super().__init__({"address": Out(bits_for_count(words)), "data": In(32)})


class LogAccess(wiring.Signature):
    """The logs, seen from the pages that are made of them.

    Ports
    -----
    read
        The memory: words of the SMART log where that has them (but see `Counter`), then entries of
        `STORED_WORDS`.
    refresh
        Held until ``fresh``: times up to now are wanted in their counters.
    fresh
        They are there.
    hold
        No counter may change, as both words of one are being read.
    held
        From this cycle on, and while ``hold`` is asserted, no counter changes. It takes what is
        under way, some 24 cycles.
    showing
        A page is being made of entry ``shown`` and those before it: none of them is overwritten.
    shown
        The newest entry of that page.
    newest
        The entry written last. The one before it has the number below.
    """

    def __init__(self, config: Config):
        entries = range(kept_entries(config))
        super().__init__(
            {
                "read": Out(LogRead(config)),
                "refresh": Out(1),
                "fresh": In(1),
                "hold": Out(1),
                "held": In(1),
                "showing": Out(1),
                "shown": Out(entries),
                "newest": In(entries),
            }
        )


def error_entry(*, count, queue, command, status, location, block, nsid) -> Layout:
    """An Error Information Log Entry (NVMe 1.4 section 5.14.1.1, figure 193), as it is stored.

    ``count``: the two words of how many errors there have been. All others are a field each.
    """
    return Layout(
        # name, byte, bytes, source
        field("Error Count", 0, 8, count),
        field("Submission Queue ID", 8, 2, queue),
        field("Command ID", 10, 2, command),
        field("Status Field, above the phase tag", 12, 2, Cat(Const(0, 1), status)),
        field("Parameter Error Location", 14, 2, location),
        field("LBA", 16, 8, block),
        field("Namespace", 24, 4, nsid),
        size=WORD_BYTES * STORED_WORDS,
    )
