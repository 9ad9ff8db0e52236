"""The rows that wait for partners, oldest first: a doubly linked list in tables."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.kit.table import Table


class OpenRows(wiring.Component):
    """Appends and removes row slots in one cycle each.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    slot
        The row slot at hand. It must have held for a cycle before ``remove`` and for ``newer``.
    append
        Strobe: the row slot is the newest now.
    remove
        Strobe: the row slot is in the list no more.
    newer
        The row slot that follows the one at hand.
    head
        The oldest row slot.
    tail
        The newest row slot.
    count
        How many there are.
    """

    def __init__(self, *, config: Config):
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
        # What precedes and what follows each row slot.
        self._olders = Table(slot, config.rows)
        self._newers = Table(slot, config.rows)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.olders = olders = self._olders
        m.submodules.newers = newers = self._newers
        older, newer = olders.reads[0].data, newers.reads[0].data
        is_head = Signal()
        is_tail = Signal()
        m.d.comb += [
            olders.reads[0].address.eq(self.slot),
            newers.reads[0].address.eq(self.slot),
            self.newer.eq(newer),
            is_head.eq(self.slot == self.head),
            is_tail.eq(self.slot == self.tail),
        ]
        with m.If(self.append):
            m.d.comb += olders.store(address=self.slot, data=self.tail)
            m.d.comb += [
                newers.write.address.eq(self.tail),
                newers.write.data.eq(self.slot),
                newers.write.enable.eq(self.count != 0),
            ]
            m.d.sync += [self.tail.eq(self.slot), self.count.eq(self.count + 1)]
            with m.If(self.count == 0):
                m.d.sync += self.head.eq(self.slot)
        with m.Elif(self.remove):
            m.d.comb += [
                olders.write.address.eq(newer),
                olders.write.data.eq(older),
                olders.write.enable.eq(~is_tail),
                newers.write.address.eq(older),
                newers.write.data.eq(newer),
                newers.write.enable.eq(~is_head),
            ]
            m.d.sync += self.count.eq(self.count - 1)
            with m.If(is_head):
                m.d.sync += self.head.eq(newer)
            with m.If(is_tail):
                m.d.sync += self.tail.eq(older)
        return m
