"""What the gatherer does when a block has its data: the host's, or the old one under a part."""

from typing import Any

from amaranth.hdl import Module

from hdl.flow.row import RowKind
from hdl.kit.bits import lowest_bit
from hdl.stripe.gather.gather_hand import After, RowInHand


def fetched_states(m: Module, in_hand: RowInHand, *, ports: Any, event: Any) -> None:
    """The state READ-PLACE, of a block that has been fetched, and those that follow, up to its
    row's being launched if it waited for that block only.

    ``ports`` are the gatherer's; ``event``: which line, and whether it has failed.
    """
    slot, row, level, tables = in_hand.slot, in_hand.row, in_hand.level, in_hand.tables
    strip, after, open_lines = in_hand.strip, in_hand.after, in_hand.open_lines

    with m.State("READ-PLACE"):
        m.next = "LOAD-PLACE"
    with m.State("LOAD-PLACE"):
        m.d.sync += [slot.eq(tables.place.slot), strip.eq(tables.place.index)]
        m.next = "READ-ARRIVED"
    with m.State("READ-ARRIVED"):
        m.next = "LOAD-ARRIVED"
    with m.State("LOAD-ARRIVED"):
        m.d.sync += [
            row.eq(tables.found_row),
            level.eq(tables.found_level),
            level.missing.eq(tables.found_level.missing - 1),
            after.eq(After.REST),
        ]
        m.next = "ARRIVE"
        with m.If(event.error):
            m.next = "DROP"
    with m.State("ARRIVE"):
        m.d.comb += tables.write_level.eq(1)
        m.next = "REST"
        with m.If(level.closed & (level.missing == 0)):
            m.next = "LAUNCH"
    with m.State("DROP"):
        m.d.comb += ports.free.valid.eq(1)
        with m.If(ports.free.ready):
            m.d.sync += [
                row.joined.eq(row.joined & ~(1 << strip)),
                level.count.eq(level.count - 1),
            ]
            with m.If(~level.closed):
                m.d.sync += open_lines.eq(open_lines - 1)
            m.next = "REPORT"
    with m.State("REPORT"):
        m.d.comb += ports.fetch_failed.valid.eq(1)
        with m.If(ports.fetch_failed.ready):
            m.d.comb += tables.write_row.eq(1)
            m.next = "ARRIVE"


def filled_states(m: Module, in_hand: RowInHand, *, ports: Any) -> None:
    """The state READ-FILLED, of a row whose only block is written in part and has its old contents
    now, and those that follow, up to the fetch of its sectors."""
    config, tables = in_hand.config, in_hand.tables
    row, level, strip = in_hand.row, in_hand.level, in_hand.strip
    only = lowest_bit(m, row.joined[: config.ports], "only")

    with m.State("READ-FILLED"):
        m.next = "LOAD-FILLED"
    with m.State("LOAD-FILLED"):
        m.d.sync += [
            row.eq(tables.found_row),
            row.kind.eq(RowKind.WRITE),
            row.fills.eq(0),
            level.eq(tables.found_level),
            level.missing.eq(1),
        ]
        m.next = "FIND-FILLED"
    with m.State("FIND-FILLED"):
        m.d.comb += tables.write_row.eq(1)
        m.d.sync += strip.eq(only)
        m.next = "READ-OLD"
    with m.State("READ-OLD"):
        m.next = "REFILL"
    with m.State("REFILL"):
        m.d.sync += [
            ports.fetch.valid.eq(1),
            ports.fetch.payload.slot.eq(tables.found_strip.slot),
            ports.fetch.payload.offset.eq(tables.found_strip.offset),
            ports.fetch.payload.line.eq(tables.found_strip.line),
        ]
        m.next = "ARRIVE"
