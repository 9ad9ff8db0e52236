"""The rows that wait for partners, oldest first: a doubly linked list in memories."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config


class OpenRows(wiring.Component):
    """Appends and removes row slots in one cycle each.

    ``slot`` names the row slot; it must have held for a cycle before ``remove``, and for ``newer``
    (the row slot after it). ``head`` and ``tail`` are the oldest and the newest of ``count``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        super().__init__(
            {
                "slot": In(slot),
                "append": In(1),
                "remove": In(1),
                "newer": Out(slot),
                "head": Out(slot),
                "tail": Out(slot),
                "count": Out(range(config.rows + 1)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        slot_bits = self._config.row_slot_bits
        rows = self._config.rows
        m.submodules.olders = olders = Memory(shape=slot_bits, depth=rows, init=[])
        m.submodules.newers = newers = Memory(shape=slot_bits, depth=rows, init=[])
        older_read, older_write = olders.read_port(), olders.write_port()
        newer_read, newer_write = newers.read_port(), newers.write_port()
        is_head = Signal()
        is_tail = Signal()
        m.d.comb += [
            older_read.addr.eq(self.slot),
            newer_read.addr.eq(self.slot),
            self.newer.eq(newer_read.data),
            is_head.eq(self.slot == self.head),
            is_tail.eq(self.slot == self.tail),
        ]
        with m.If(self.append):
            m.d.comb += [
                older_write.addr.eq(self.slot),
                older_write.data.eq(self.tail),
                older_write.en.eq(1),
                newer_write.addr.eq(self.tail),
                newer_write.data.eq(self.slot),
                newer_write.en.eq(self.count != 0),
            ]
            m.d.sync += [self.tail.eq(self.slot), self.count.eq(self.count + 1)]
            with m.If(self.count == 0):
                m.d.sync += self.head.eq(self.slot)
        with m.Elif(self.remove):
            m.d.comb += [
                older_write.addr.eq(newer_read.data),
                older_write.data.eq(older_read.data),
                older_write.en.eq(~is_tail),
                newer_write.addr.eq(older_read.data),
                newer_write.data.eq(newer_read.data),
                newer_write.en.eq(~is_head),
            ]
            m.d.sync += self.count.eq(self.count - 1)
            with m.If(is_head):
                m.d.sync += self.head.eq(newer_read.data)
            with m.If(is_tail):
                m.d.sync += self.tail.eq(older_read.data)
        return m
