"""When the gatherer closes rows that wait for partners, and how a closed row is launched."""

from typing import Any

from amaranth.hdl import Module

from hdl.flow.row import RowKind
from hdl.stripe.gather.gather_hand import After, RowInHand


def close_states(m: Module, in_hand: RowInHand, *, launches: Any) -> None:
    """The state CLOSE, of a row that gets no more partners, and those that follow, up to its being
    in ``launches`` if its data is there.

    ``row`` and ``level`` are loaded, and ``slot`` has held for a cycle.
    """
    row, level, tables, walks = in_hand.row, in_hand.level, in_hand.tables, in_hand.walks
    flight_read, flight_write = in_hand.flight_read, in_hand.flight_write
    open_rows, patience, after = in_hand.open_rows, in_hand.patience, in_hand.after
    closed_rows, open_lines = in_hand.closed_rows, in_hand.open_lines

    with m.State("CLOSE"):
        m.d.comb += tables.write_row.eq(1)
        m.d.sync += [level.closed.eq(1), level.listed.eq(0)]
        with m.If(row.kind == RowKind.WRITE):
            m.d.sync += open_lines.eq(open_lines - level.count)
        with m.If(level.listed):
            m.d.comb += [open_rows.remove.eq(1), patience.removed.eq(1)]
        m.d.sync += closed_rows.eq(closed_rows + 1)
        m.next = "COUNT"
    with m.State("COUNT"):
        m.d.comb += [
            flight_write.data.flying.eq(flight_read.data.flying + 1),
            flight_write.en.eq(~walks),
        ]
        m.next = "LAUNCH"
    with m.State("LAUNCH"):
        m.d.comb += tables.write_level.eq(1)
        m.next = "REST"
        with m.If(after == After.ADVANCE):
            m.next = "ADVANCE"
        with m.If((level.missing == 0) & (row.joined.any() | walks)):
            m.d.comb += [tables.level.launched.eq(1), launches.w_en.eq(1)]
        with m.Elif(level.missing == 0):
            m.next = "REMOVE"


def open_row_states(m: Module, in_hand: RowInHand) -> None:
    """The states READ-OLDEST, of the oldest open row, which gives way, and READ-OPEN, of one that
    is weighed by `Patience`, and those that follow, up to its being closed or left open."""
    row, level, tables = in_hand.row, in_hand.level, in_hand.tables
    flight_read, patience = in_hand.flight_read, in_hand.patience

    with m.State("READ-OLDEST"):
        m.next = "LOAD-OLDEST"
    with m.State("LOAD-OLDEST"):
        m.d.sync += [row.eq(tables.found_row), level.eq(tables.found_level)]
        in_hand.close(m, then=After.REST)

    # One step of the walk over open rows.
    with m.State("READ-OPEN"):
        m.next = "LOAD-OPEN"
    with m.State("LOAD-OPEN"):
        m.d.comb += flight_read.addr.eq(tables.found_row.array)
        m.d.sync += [row.eq(tables.found_row), level.eq(tables.found_level)]
        m.next = "WEIGH"
    with m.State("WEIGH"):
        m.d.comb += patience.weigh.eq(1)
        m.next = "EXPECT"
    with m.State("EXPECT"):
        m.d.comb += patience.expect.eq(1)
        m.next = "WATCH"
    with m.State("WATCH"):
        m.d.comb += patience.watch.eq(1)
        with m.If(patience.due):
            in_hand.close(m, then=After.REST)
        with m.Else():
            m.d.comb += [
                tables.write_level.eq(patience.settles),
                tables.level.settled.eq(1),
                tables.level.since.eq(patience.weighed),
            ]
            m.next = "REST"
