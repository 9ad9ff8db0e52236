"""What the gatherer keeps of every row slot: its row, how full it is, its blocks."""

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.extent import extent
from hdl.flow.row import row_state, strip_state
from hdl.kit.disjoint import DISJOINT
from hdl.kit.table import Table, TableRead
from hdl.stripe.gather.fill import fill


class RowTables(wiring.Component):
    """Tables of the gatherer. Every read follows its address by one cycle.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slot
        The row slot at hand.
    row
        Its row.
    write_row
        Strobe: that is its row now.
    found_row
        Its row as it was written.
    level
        How full it is.
    write_level
        Strobe: that is how full it is now.
    found_level
        How full it is, as it was written.
    extent
        The extent whose next block joins.
    line
        The line in which the data of that block will come.
    write_strip
        Strobe: the block joins the row slot.
    write_place
        Strobe: its data will come in that line.
    arrived
        A line whose data has come.
    place
        The row slot and data strip that this line belongs to.
    strip
        A data strip of the row slot.
    found_strip
        The block that joined there.
    row_read
        For the sequencer: rows by row slot.
    strip_read
        For the sequencer: blocks by row slot * 32 + data strip.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        self._place = data.StructLayout({"index": 5, "slot": slot})
        super().__init__(
            {
                "slot": In(slot),
                "row": In(row_state(config)),
                "write_row": In(1),
                "found_row": Out(row_state(config)),
                "level": In(fill(config)),
                "write_level": In(1),
                "found_level": Out(fill(config)),
                "extent": In(extent(config)),
                "line": In(config.line_bits),
                "write_strip": In(1),
                "write_place": In(1),
                "arrived": In(config.line_bits),
                "place": Out(self._place),
                "strip": In(5),
                "found_strip": Out(strip_state(config)),
                "row_read": In(TableRead(slot, row_state(config))),
                "strip_read": In(TableRead(slot + 5, strip_state(config))),
            }
        )

        self._states = Table(row_state(config), config.rows, reads=2)
        self._fills = Table(fill(config), config.rows)
        self._strips = Table(strip_state(config), config.rows * 32, reads=2, attrs=DISJOINT)
        self._places = Table(self._place, config.lines)

    def elaborate(self, platform) -> Module:
        m = Module()
        states, fills, strips, places = self._states, self._fills, self._strips, self._places
        m.submodules.states = states
        m.submodules.fills = fills
        m.submodules.strips = strips
        m.submodules.places = places
        connect(m, flipped(self.row_read), states.reads[0])
        connect(m, flipped(self.strip_read), strips.reads[0])
        m.d.comb += [
            states.reads[1].address.eq(self.slot),
            self.found_row.eq(states.reads[1].data),
            states.write.address.eq(self.slot),
            states.write.data.eq(self.row),
            states.write.enable.eq(self.write_row),
            fills.reads[0].address.eq(self.slot),
            self.found_level.eq(fills.reads[0].data),
            fills.write.address.eq(self.slot),
            fills.write.data.eq(self.level),
            fills.write.enable.eq(self.write_level),
            strips.reads[1].address.eq((self.slot << 5) | self.strip),
            self.found_strip.eq(strips.reads[1].data),
            strips.write.address.eq((self.slot << 5) | self.extent.index),
            strips.write.data.slot.eq(self.extent.slot),
            strips.write.data.offset.eq(self.extent.offset),
            strips.write.data.line.eq(self.line),
            strips.write.enable.eq(self.write_strip),
            places.reads[0].address.eq(self.arrived),
            self.place.eq(places.reads[0].data),
            places.write.address.eq(self.line),
            places.write.data.slot.eq(self.slot),
            places.write.data.index.eq(self.extent.index),
            places.write.enable.eq(self.write_place),
        ]
        return m
