"""How the gatherer takes an extent and lets its blocks join rows, one after the other."""

from typing import Any

from amaranth.hdl import Assert, Module, Mux, Signal

from hdl.flow.row import RowKind
from hdl.kit.free_list import FreeList
from hdl.stripe.gather.gather_hand import After, ExtentInHand, RowInHand
from hdl.stripe.gather.parking import Parking
from hdl.stripe.gather.row_index import RowIndex
from hdl.stripe.gather.stream_detector import StreamDetector


def extent_states(m: Module, extent: ExtentInHand, *, detector: StreamDetector) -> None:
    """The states DETECT, of a new extent, and READ-GEOMETRY, of one that was parked, and those
    that follow, up to its being in hand."""
    hand, geometry = extent.hand, extent.geometry
    writes, gathered, sequential = extent.writes, extent.gathered, extent.sequential

    with m.State("DETECT"):
        m.next = "NOTE"
    with m.State("NOTE"):
        m.d.comb += detector.note.eq(writes)
        m.next = "KEEP-NOTE"
    with m.State("KEEP-NOTE"):
        m.d.sync += sequential.eq(Mux(writes, detector.sequential, gathered))
        with m.If(geometry.parities == 0):
            # Each strip is a row of its own: strip 0 of a stripe that begins at its place.
            m.d.sync += [
                hand.shift.eq(hand.shift + hand.index * geometry.copies),
                hand.index.eq(0),
            ]
        m.next = "REST"
    with m.State("READ-GEOMETRY"):
        m.next = "REST"


def join_states(
    m: Module,
    in_hand: RowInHand,
    extent: ExtentInHand,
    *,
    ports: Any,
    index: RowIndex,
    unused: FreeList,
    parking: Parking,
    starved: Signal,
) -> None:
    """The state LOOK-UP, of the next block of the extent in hand, and those that follow, up to its
    having joined its row, or the extent's being parked, or ``starved`` of row slots.

    ``ports`` are the gatherer's. ``index``: row slots by row, ``unused``: those without a row.
    """
    config, tables = in_hand.config, in_hand.tables
    slot, row, level, open_lines = in_hand.slot, in_hand.row, in_hand.level, in_hand.open_lines
    flight_read, flight_write = in_hand.flight_read, in_hand.flight_write
    open_rows, patience = in_hand.open_rows, in_hand.patience
    hand, holding, geometry = extent.hand, extent.holding, extent.geometry
    writes, gathered, walking = extent.writes, extent.gathered, extent.walking
    sequential, partial = extent.sequential, extent.partial

    with m.State("LOOK-UP"):
        m.d.comb += index.find.eq(1)
        m.next = "FIND"
    with m.State("FIND"):
        with m.If(index.done):
            m.next = "JUDGE"
    with m.State("JUDGE"):
        m.d.sync += slot.eq(unused.take.payload)
        with m.If(index.hit):
            m.d.sync += slot.eq(index.found)
            m.next = "READ-ROW"
        with m.Elif(unused.take.valid):
            m.d.comb += unused.take.ready.eq(1)
            m.next = "INSERT"
        with m.Else():
            m.d.sync += starved.eq(1)
            m.next = "REST"
    with m.State("READ-ROW"):
        m.next = "LOAD-ROW"
    with m.State("LOAD-ROW"):
        m.d.sync += [row.eq(tables.found_row), level.eq(tables.found_level)]
        m.next = "TRY"
    with m.State("TRY"):
        fits = (row.shift == hand.shift) & ~row.joined.bit_select(hand.index, 1)
        with m.If(~partial & writes & (row.kind == RowKind.WRITE) & ~level.launched & fits):
            m.next = "JOIN"
        if config.gather_reads:
            with m.Elif(gathered & row.gathered & ~level.closed & fits):
                m.next = "JOIN"
        with m.Else():
            m.d.comb += parking.park.eq(1)
            m.d.sync += holding.eq(0)
            m.next = "REST"
            with m.If(~level.closed):
                in_hand.close(m, then=After.REST)
    with m.State("INSERT"):
        m.d.sync += Assert(geometry.valid, "a row of no array gets a row slot")
        m.d.comb += [index.insert.eq(1), parking.clear.eq(1)]
        m.d.sync += [level.eq(0), level.first.eq(ports.now)]
        m.next = "JOIN"
        with m.If(walking):
            m.d.sync += row.more.eq(hand.last)
            in_hand.close(m, then=After.ADVANCE)
    with m.State("JOIN"):
        m.d.comb += tables.write_strip.eq(1)
        m.d.sync += [
            row.joined.eq(row.joined | (1 << hand.index)),
            row.fua.eq(row.fua | hand.fua),
            row.more.eq(row.more | ((writes | gathered) & (hand.blocks != 0))),
            level.settled.eq(0),
            level.awaited.eq(flight_read.data.retired + flight_read.data.flying),
            level.count.eq(level.count + 1),
        ]
        with m.If(writes):
            m.d.comb += [ports.allocate.ready.eq(1), tables.write_place.eq(1)]
            m.d.sync += [
                level.missing.eq(level.missing + 1),
                ports.fetch.valid.eq(1),
                ports.fetch.payload.slot.eq(hand.slot),
                ports.fetch.payload.offset.eq(hand.offset),
                ports.fetch.payload.line.eq(ports.allocate.payload),
            ]
            with m.If(~level.closed):
                m.d.sync += open_lines.eq(open_lines + 1)
            m.next = "RECORD"
        with m.Else():
            m.d.sync += row.kind.eq(RowKind.RECOVER)
            in_hand.close(m, then=After.ADVANCE)
            if config.gather_reads:
                m.d.sync += row.gathered.eq(gathered)
                with m.If(gathered):
                    m.next = "RECORD"
        if config.sector_emulation:
            with m.If(writes & partial):
                m.d.sync += [
                    row.kind.eq(RowKind.RECOVER),
                    row.fills.eq(1),
                    level.missing.eq(0),
                    ports.fetch.valid.eq(0),
                    open_lines.eq(open_lines),
                ]
                in_hand.close(m, then=After.ADVANCE)
    with m.State("RECORD"):
        enough = (level.count == geometry.data) | (geometry.parities == 0)
        complete = hand.final & ~sequential
        m.d.comb += [
            tables.write_row.eq(1),
            flight_write.data.latest.eq(ports.now),
            flight_write.en.eq(sequential),
        ]
        with m.If(level.closed):
            m.d.comb += tables.write_level.eq(1)
            m.next = "ADVANCE"
        with m.Elif(enough | complete):
            in_hand.close(m, then=After.ADVANCE)
        with m.Else():
            m.d.comb += tables.write_level.eq(1)
            m.next = "ADVANCE"
            with m.If(~level.listed):
                m.d.comb += [
                    open_rows.append.eq(1),
                    patience.appended.eq(1),
                    tables.level.listed.eq(1),
                ]
    with m.State("ADVANCE"):
        m.d.sync += [
            hand.row.eq(hand.row + 1),
            hand.offset.eq(hand.offset + 1),
            hand.blocks.eq(hand.blocks - 1),
            holding.eq(hand.blocks != 0),
        ]
        if config.sector_emulation:
            m.d.sync += hand.head.eq(0)
        m.next = "REST"
