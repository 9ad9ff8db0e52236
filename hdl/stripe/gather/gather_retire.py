"""How the gatherer lets go of a row."""

from amaranth.hdl import Module, Signal

from hdl.kit.free_list import FreeList
from hdl.stripe.gather.gather_hand import RowInHand
from hdl.stripe.gather.parking import Parking
from hdl.stripe.gather.row_index import RowIndex


def retire_states(
    m: Module,
    in_hand: RowInHand,
    *,
    index: RowIndex,
    unused: FreeList,
    parking: Parking,
    starved: Signal,
) -> None:
    """The states READ-RETIRED, of a row that has retired, and REMOVE, of one that has nothing left,
    and those that follow, up to its row slot's being ``unused``.

    What is parked behind it may be tried again, and what was ``starved`` of row slots.
    """
    row, tables, walks = in_hand.row, in_hand.tables, in_hand.walks
    flight_read, flight_write = in_hand.flight_read, in_hand.flight_write
    patience, closed_rows = in_hand.patience, in_hand.closed_rows

    with m.State("READ-RETIRED"):
        m.next = "LOAD-RETIRED"
    with m.State("LOAD-RETIRED"):
        m.d.sync += row.eq(tables.found_row)
        m.next = "REMOVE"
    with m.State("REMOVE"):
        m.d.comb += [index.remove.eq(1), parking.release.eq(1)]
        m.d.sync += [closed_rows.eq(closed_rows - 1), starved.eq(0)]
        m.next = "UNCOUNT"
    with m.State("UNCOUNT"):
        with m.If(index.done):
            m.d.comb += [
                flight_write.data.flying.eq(flight_read.data.flying - 1),
                flight_write.data.retired.eq(flight_read.data.retired + 1),
                flight_write.en.eq(~walks),
                unused.give.valid.eq(1),
                patience.retired.eq(1),
            ]
            m.next = "REST"
