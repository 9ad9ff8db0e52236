"""How many slots refer to each of several objects, by the epoch in which that began."""

from amaranth.hdl import Array, Assert, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import bits_for_count
from hdl.kit.table import Table


def count_references(m: Module, count: Signal, comes: Value, goes: Value, otherwise: str) -> None:
    """Keeps ``count`` of what comes, several at once perhaps, and goes, one a cycle.

    Says ``otherwise`` if something goes that has not come.
    """
    goes_now = Signal(name="goes_now")
    m.d.comb += goes_now.eq(goes)
    m.d.sync += count.eq(count + comes - goes_now)
    m.d.sync += Assert(~goes_now | (count != 0), otherwise)


class EpochCounts(wiring.Component):
    """Counts for each object the slots that refer to it, apart for two epochs of that object.

    Parameters
    ----------
    name
        What has the slots, for the message of a failed assertion.
    slots
        Number of slots.
    objects
        Number of objects.

    Ports
    -----
    epochs
        One bit per object. The epoch that it is in.
    begins
        A pulse. From now on slot ``slot`` refers to object ``owner``, in the epoch of that.
    slot
        That slot.
    owner
        That object.
    ends
        A pulse. Slot ``ended`` refers to its object no longer. Counts two cycles later.
    ended
        That slot.
    looked
        An object that is asked about.
    earlier
        Something refers to it since its other epoch.
    current
        Something refers to it since its epoch.
    any
        One bit per object. Something refers to it.
    """

    def __init__(self, *, name: str, slots: int, objects: int):
        self._name = name
        self._objects = objects
        self._slots = slots
        slot, number = bits_for_count(slots), bits_for_count(objects)
        super().__init__(
            {
                "epochs": In(objects),
                "begins": In(1),
                "slot": In(slot),
                "owner": In(number),
                "ends": In(1),
                "ended": In(slot),
                "looked": In(number),
                "earlier": Out(1),
                "current": Out(1),
                "any": Out(objects),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        objects = self._objects
        # Of each slot, its object and epoch.
        m.submodules.table = table = Table(
            data.StructLayout({"owner": len(self.owner), "epoch": 1}), self._slots
        )
        known = table.reads[0]
        # Those of epoch e of object n are at e * objects + n.
        counts = Array(
            Signal(range(self._slots + 1), name=f"count_{epoch}_{number}")
            for epoch in range(2)
            for number in range(objects)
        )
        leaves = Signal()
        m.d.comb += [
            table.write.address.eq(self.slot),
            table.write.data.owner.eq(self.owner),
            table.write.data.epoch.eq(self.epochs.bit_select(self.owner, 1)),
            table.write.enable.eq(self.begins),
            known.address.eq(self.ended),
        ]
        m.d.sync += leaves.eq(self.ends)
        for epoch in range(2):
            for number in range(objects):
                comes = self.begins & (self.owner == number) & (self.epochs[number] == epoch)
                goes = leaves & (known.data.owner == number) & (known.data.epoch == epoch)
                count = counts[epoch * objects + number]
                count_references(m, count, comes, goes, f"{self._name}: one has ended twice")
        turned = self.epochs.bit_select(self.looked, 1)
        m.d.comb += [
            self.earlier.eq(counts[self.looked + Mux(turned, 0, objects)] != 0),
            self.current.eq(counts[self.looked + Mux(turned, objects, 0)] != 0),
        ]
        for number in range(objects):
            some = (counts[number] != 0) | (counts[objects + number] != 0)
            m.d.comb += self.any[number].eq(some)
        return m
