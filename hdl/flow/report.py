"""What the host can read of background work: the words of three log pages."""

from amaranth.lib import data, enum

from hdl.kit.table import TableRead

REPORT_SHIFT = 4
REPORT_WORDS = 1 << REPORT_SHIFT
"""Entries have 16 words of 32 bits."""

FINDINGS = 32
"""Entries of the logs of defects and of lost blocks."""


class Section(enum.Enum, shape=2):
    """The log."""

    ARRAYS = 0
    """State and job of each array."""
    DEFECTS = 1
    """Blocks that were mended, and rows that disagreed."""
    LOST = 2
    """Rows with blocks that no drive has."""


def report_address() -> data.StructLayout:
    """Word ``word`` of entry ``number``."""
    return data.StructLayout({"word": REPORT_SHIFT, "number": 8, "section": Section})


def report_read() -> TableRead:
    """Reads a word; it follows the address by two cycles at most.

    The upper word of a row, read right after the lower one, is of the same moment.
    """
    return TableRead(report_address(), 32)
