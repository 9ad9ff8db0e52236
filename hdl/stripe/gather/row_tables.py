"""What the gatherer keeps of every row slot: its row, how full it is, its blocks."""

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.extent import extent
from hdl.flow.row import row_state, strip_state
from hdl.kit.disjoint import DISJOINT
from hdl.kit.table import TableRead
from hdl.stripe.gather.fill import fill


class RowTables(wiring.Component):
    """Memories of the gatherer; every read follows its address by one cycle.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slot
        The row slot at hand: ``row`` and ``level`` are written to it with ``write_row`` and
        ``write_level``, ``found_row`` and ``found_level`` read from it.
    hand, line
        With ``write_strip`` the next block of ``hand`` joins ``slot``, and with ``write_place`` its
        data will come in ``line``.
    arrived
        A line; ``place`` is the row slot and data strip that it belongs to.
    strip
        A data strip; ``found_strip`` is the block that joined ``slot`` there.
    row_read, strip_read
        For the sequencer: rows by row slot, blocks by row slot * 32 + data strip.
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
                "hand": In(extent(config)),
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.states = states = Memory(shape=row_state(config), depth=config.rows, init=[])
        m.submodules.fills = fills = Memory(shape=fill(config), depth=config.rows, init=[])
        m.submodules.strips = strips = Memory(
            shape=strip_state(config), depth=config.rows * 32, init=[], attrs=DISJOINT
        )
        m.submodules.places = places = Memory(shape=self._place, depth=config.lines, init=[])
        for memory, port in ((states, self.row_read), (strips, self.strip_read)):
            read = memory.read_port()
            m.d.comb += [read.addr.eq(port.address), port.data.eq(read.data)]
        for memory, address, found in (
            (states, self.slot, self.found_row),
            (fills, self.slot, self.found_level),
            (strips, (self.slot << 5) | self.strip, self.found_strip),
            (places, self.arrived, self.place),
        ):
            read = memory.read_port()
            m.d.comb += [read.addr.eq(address), found.eq(read.data)]
        state_write, fill_write = states.write_port(), fills.write_port()
        strip_write, place_write = strips.write_port(), places.write_port()
        m.d.comb += [
            state_write.addr.eq(self.slot),
            state_write.data.eq(self.row),
            state_write.en.eq(self.write_row),
            fill_write.addr.eq(self.slot),
            fill_write.data.eq(self.level),
            fill_write.en.eq(self.write_level),
            strip_write.addr.eq((self.slot << 5) | self.hand.index),
            strip_write.data.slot.eq(self.hand.slot),
            strip_write.data.offset.eq(self.hand.offset),
            strip_write.data.line.eq(self.line),
            strip_write.en.eq(self.write_strip),
            place_write.addr.eq(self.line),
            place_write.data.slot.eq(self.slot),
            place_write.data.index.eq(self.hand.index),
            place_write.en.eq(self.write_place),
        ]
        return m
