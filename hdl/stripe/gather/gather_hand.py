"""What the gatherer works on: a row slot, and the extent of which block after block joins."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import enum

from hdl.config import Config
from hdl.stripe.gather.open_rows import OpenRows
from hdl.stripe.gather.patience import Patience
from hdl.stripe.gather.row_tables import RowTables


class After(enum.Enum, shape=1):
    """What follows the closing of a row."""

    REST = 0
    ADVANCE = 1


@dataclass(frozen=True, kw_only=True)
class RowInHand:
    """The row slot at hand, signals of `hdl.stripe.gather.gather.Gather`.

    Parameters
    ----------
    config
        Sizes.
    slot, row, level
        The row slot, its `row_state` and its `fill`.
    walks
        The row stands for a walk; 0 without ``background``.
    strip
        One of its data strips.
    after
        What follows once it is closed.
    tables
        Rows, how full they are, their blocks; they follow ``slot`` and ``strip`` by a cycle.
    flight_read, flight_write
        Ports of the array's `flight`; what is read follows ``row`` by a cycle, and is written back
        but for what a state changes.
    open_rows, patience
        The rows that wait for partners, and for how long.
    closed_rows, open_lines
        Rows that are closed and have not retired; lines of rows that are not closed.
    """

    config: Config
    slot: Signal
    row: Any
    level: Any
    walks: Value
    strip: Signal
    after: Signal
    tables: RowTables
    flight_read: Any
    flight_write: Any
    open_rows: OpenRows
    patience: Patience
    closed_rows: Signal
    open_lines: Signal

    def close(self, m: Module, *, then: After) -> None:
        """Ends a state: ``row`` and ``level`` are loaded, and get no more partners."""
        m.d.sync += self.after.eq(then)
        m.next = "CLOSE"


@dataclass(frozen=True, kw_only=True)
class ExtentInHand:
    """The extent of which blocks join, signals of `hdl.stripe.gather.gather.Gather`.

    Parameters
    ----------
    hand
        What is left of it; its ``row``, ``index`` and ``offset`` are those of the next block.
    holding
        There is one.
    writes, gathered, walking
        It is a write; a read that joins rows; a walk.
    sequential
        Its command continues an earlier one.
    partial
        The next block is written in part.
    geometry
        Of its array, a cycle after ``hand``.
    """

    hand: Any
    holding: Signal
    writes: Value
    gathered: Value
    walking: Value
    sequential: Value
    partial: Value
    geometry: Any
