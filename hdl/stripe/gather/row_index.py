"""Which row slot owns a row: a hash table of chains in memories."""

from amaranth.hdl import Const, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.kit.table import Table, clear


def row_key(config: Config) -> data.StructLayout:
    """What names a row.

    With parity, ``shift`` follows from ``row``. Without, it tells the strips of a row apart, which
    do not depend on each other.
    """
    return data.StructLayout(
        {"array": config.array_bits, "base": 5, "shift": 5, "row": BLOCK_NUMBER_BITS}
    )


class RowIndex(wiring.Component):
    """Finds, inserts and removes row slots by row.

    Strobe one of ``find``, ``insert``, ``remove`` while ``ready``. A row must be inserted at most
    once, and only what was inserted may be removed. After a reset the table is cleared, and
    ``ready`` is 0 for as long.

    To find a row takes 3 cycles, and 2 for each further entry of the chain. To insert one takes 3,
    and to remove one takes 2 more than to find it. There are twice as many chains as row slots, so
    nearly all have one entry.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    key
        The row. It must hold until ``done``.
    slot
        The row slot to insert or to remove. It must hold until ``done``.
    find
        Strobe: find the row slot of the row.
    insert
        Strobe: the row has that row slot.
    remove
        Strobe: the row has that row slot no more.
    ready
        A strobe is taken.
    done
        A pulse: what was asked for has been done.
    hit
        After ``find`` until the next strobe: the row has a row slot.
    found
        That row slot, for as long.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        super().__init__(
            {
                "key": In(row_key(config)),
                "slot": In(slot),
                "find": In(1),
                "insert": In(1),
                "remove": In(1),
                "ready": Out(1),
                "done": Out(1),
                "hit": Out(1),
                "found": Out(slot),
            }
        )

        # A chain begins at a row slot, and each row slot says which is the next.
        self._hash_bits = slot + 1
        link = data.StructLayout({"any": 1, "slot": slot})
        entry = data.StructLayout({"key": row_key(config), "next": link})
        self._chains = Table(link, 1 << self._hash_bits)
        self._rows = Table(entry, config.rows)
        self._begin = self._chains.reads[0].data
        self._seen = self._rows.reads[0].data

        self._probe = Signal(slot)  # the row slot that is looked at
        self._unlinked = Signal(link)  # what follows the row slot that is removed
        self._inserting = Signal()
        self._removing = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.chains = self._chains
        m.submodules.rows = self._rows
        chain = Signal(self._hash_bits)
        m.d.comb += [
            chain.eq(self._hash()),
            self._chains.reads[0].address.eq(chain),
            self._chains.write.address.eq(chain),
            self._rows.reads[0].address.eq(self._probe),
            self._rows.write.address.eq(self.slot),
            self._rows.write.data.key.eq(self.key),
            self.found.eq(self._probe),
        ]
        with m.FSM(name="index"):
            with m.State("CLEAR"):
                with m.If(clear(m, self._chains)):
                    m.next = "WAIT"
            self._wait(m)
            self._enter(m)
            self._follow(m)
        return m

    def _hash(self) -> Value:
        """The chain of the row. Consecutive rows get different ones; higher bits, span and array
        move them apart."""
        bits, key = self._hash_bits, self.key
        folded = Const(0, bits)
        for low in range(0, BLOCK_NUMBER_BITS, bits):
            folded = folded ^ key.row[low : low + bits]
        folded = folded ^ (key.base << (bits - 5 if bits > 5 else 0))
        folded = folded ^ (key.array << (bits // 2))
        return folded ^ (key.shift << 1)

    def _finish(self, m: Module) -> None:
        """Ends a state: what was asked for has been done."""
        m.d.comb += self.done.eq(1)
        m.next = "WAIT"

    def _wait(self, m: Module) -> None:
        """The states WAIT, for a strobe, and HASH."""
        with m.State("WAIT"):
            m.d.comb += self.ready.eq(1)
            m.d.sync += [self._inserting.eq(self.insert), self._removing.eq(self.remove)]
            with m.If(self.find | self.insert):
                m.next = "HASH"
            with m.Elif(self.remove):
                m.d.sync += self._probe.eq(self.slot)
                m.next = "HASH"
        with m.State("HASH"):
            # The begin of the chain is being read, and of a removal the entry to unlink.
            m.next = "ENTER"

    def _enter(self, m: Module) -> None:
        """The state ENTER: the begin of the chain is there, and what can be done with it is."""
        chains, begin = self._chains, self._begin
        with m.State("ENTER"):
            m.d.sync += [self._unlinked.eq(self._seen.next), self._probe.eq(begin.slot)]
            with m.If(self._inserting):
                m.d.comb += self._rows.store(next=begin)
                m.d.comb += chains.store(any=1, slot=self.slot)
                self._finish(m)
            with m.Elif(self._removing & (begin.slot == self.slot)):
                m.d.comb += chains.store(data=self._seen.next)
                self._finish(m)
            with m.Elif(begin.any):
                m.next = "PROBE"
            with m.Else():
                m.d.sync += self.hit.eq(0)
                self._finish(m)

    def _follow(self, m: Module) -> None:
        """The states PROBE and COMPARE, for each entry of the chain."""
        seen, probe = self._seen, self._probe
        with m.State("PROBE"):
            m.next = "COMPARE"
        with m.State("COMPARE"):
            m.next = "PROBE"
            m.d.sync += probe.eq(seen.next.slot)
            with m.If(self._removing):
                with m.If(seen.next.slot == self.slot):
                    # The predecessor takes over what follows; its key stays.
                    m.d.comb += self._rows.store(address=probe, key=seen.key, next=self._unlinked)
                    self._finish(m)
            with m.Elif(seen.key.as_value() == self.key.as_value()):
                m.d.sync += [probe.eq(probe), self.hit.eq(1)]
                self._finish(m)
            with m.Elif(~seen.next.any):
                m.d.sync += self.hit.eq(0)
                self._finish(m)
