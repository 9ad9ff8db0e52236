"""The words of the three log pages of background work."""

from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import Out

from hdl.kit.table import TableRead

REPORT_SHIFT = 4
REPORT_WORDS = 1 << REPORT_SHIFT
"""Entries have 16 words of 32 bits."""

FINDINGS = 32
"""Entries of the logs of defects and of lost blocks."""


class Section(enum.Enum, shape=2):
    """One of the three logs."""

    ARRAYS = 0
    """The state and job of each array."""
    DEFECTS = 1
    """Blocks that were mended, and rows that disagreed."""
    LOST = 2
    """Rows with blocks that no drive has."""


def report_address() -> data.StructLayout:
    """Word ``word`` of entry ``number``."""
    return data.StructLayout({"word": REPORT_SHIFT, "number": 8, "section": Section})


def report_read() -> TableRead:
    """Reads a word. The word follows its address by at most two cycles.

    The upper word of a row number is of the same moment if it is read right after the lower one.
    """
    return TableRead(report_address(), 32)


class ReportAccess(wiring.Signature):
    """Access to the logs of background work, seen from the page generator.

    Ports
    -----
    read
        Words of the logs.
    shows
        A page of findings is being made, so none may come.
    """

    def __init__(self):
        super().__init__({"read": Out(report_read()), "shows": Out(1)})
