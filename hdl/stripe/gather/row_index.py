"""Which row slot owns a row: a hash table of chains in memories."""

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config


def row_key(config: Config) -> data.StructLayout:
    """What names a row. ``shift`` follows from ``row`` where there is parity; else it tells the
    strips of a row apart, which do not depend on each other."""
    return data.StructLayout(
        {"array": config.array_bits, "base": 5, "shift": 5, "row": BLOCK_NUMBER_BITS}
    )


class RowIndex(wiring.Component):
    """Finds, inserts and removes row slots by row.

    Strobe one of ``find``, ``insert``, ``remove`` while ``ready``; ``key`` (and ``slot``, for
    insert and remove) must hold until ``done``, which lasts a cycle. After ``find``, ``hit`` and
    ``found`` hold until the next strobe. A row must be inserted at most once, and only what was
    inserted may be removed. After reset the table is cleared; ``ready`` is 0 for as long.

    Find: 3 cycles and 2 for each further entry of the chain; insert: 3; remove: as find, 2 more.
    There are twice as many chains as row slots, so nearly all have one entry.
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        slot_bits = config.row_slot_bits
        hash_bits = slot_bits + 1
        link = data.StructLayout({"any": 1, "slot": slot_bits})
        entry = data.StructLayout({"key": row_key(config), "next": link})
        m.submodules.chains = chains = Memory(shape=link, depth=1 << hash_bits, init=[])
        m.submodules.entries = entries = Memory(shape=entry, depth=config.rows, init=[])
        chain_read = chains.read_port()
        chain_write = chains.write_port()
        entry_read = entries.read_port()
        entry_write = entries.write_port()

        # Consecutive rows get different chains; higher bits, span and array move them apart.
        folded = Const(0, hash_bits)
        for low in range(0, BLOCK_NUMBER_BITS, hash_bits):
            folded = folded ^ self.key.row[low : low + hash_bits]
        folded = folded ^ (self.key.base << (hash_bits - 5 if hash_bits > 5 else 0))
        folded = folded ^ (self.key.array << (hash_bits // 2))
        folded = folded ^ (self.key.shift << 1)
        chain = Signal(hash_bits)
        sweep = Signal(hash_bits)
        probe = Signal(slot_bits)
        following = Signal(link)
        unlinked = Signal(link)
        inserting = Signal()
        removing = Signal()
        m.d.comb += [
            chain.eq(folded),
            chain_read.addr.eq(chain),
            chain_write.addr.eq(chain),
            entry_read.addr.eq(probe),
            entry_write.addr.eq(self.slot),
            entry_write.data.key.eq(self.key),
            self.found.eq(probe),
        ]

        with m.FSM(name="index"):
            with m.State("CLEAR"):
                m.d.comb += [chain_write.addr.eq(sweep), chain_write.en.eq(1)]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == (1 << hash_bits) - 1):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += self.ready.eq(1)
                m.d.sync += [inserting.eq(self.insert), removing.eq(self.remove)]
                with m.If(self.find | self.insert):
                    m.next = "HASH"
                with m.Elif(self.remove):
                    m.d.sync += probe.eq(self.slot)
                    m.next = "HASH"
            with m.State("HASH"):
                # The chain is being read, and, for a removal, the entry to unlink.
                m.next = "ENTER"
            with m.State("ENTER"):
                m.d.sync += [
                    following.eq(chain_read.data),
                    unlinked.eq(entry_read.data.next),
                    probe.eq(chain_read.data.slot),
                ]
                with m.If(inserting):
                    m.d.comb += [
                        entry_write.en.eq(1),
                        entry_write.data.next.eq(chain_read.data),
                        chain_write.en.eq(1),
                        chain_write.data.any.eq(1),
                        chain_write.data.slot.eq(self.slot),
                        self.done.eq(1),
                    ]
                    m.next = "WAIT"
                with m.Elif(removing & (chain_read.data.slot == self.slot)):
                    m.d.comb += [
                        chain_write.en.eq(1),
                        chain_write.data.eq(entry_read.data.next),
                        self.done.eq(1),
                    ]
                    m.next = "WAIT"
                with m.Elif(chain_read.data.any):
                    m.next = "PROBE"
                with m.Else():
                    m.d.comb += self.done.eq(1)
                    m.d.sync += self.hit.eq(0)
                    m.next = "WAIT"
            with m.State("PROBE"):
                m.next = "COMPARE"
            with m.State("COMPARE"):
                seen = entry_read.data
                m.next = "PROBE"
                m.d.sync += probe.eq(seen.next.slot)
                with m.If(removing):
                    with m.If(seen.next.slot == self.slot):
                        # The predecessor takes over what follows; its key stays.
                        m.d.comb += [
                            entry_write.addr.eq(probe),
                            entry_write.data.key.eq(seen.key),
                            entry_write.data.next.eq(unlinked),
                            entry_write.en.eq(1),
                            self.done.eq(1),
                        ]
                        m.next = "WAIT"
                with m.Elif(seen.key.as_value() == self.key.as_value()):
                    m.d.sync += [probe.eq(probe), self.hit.eq(1)]
                    m.d.comb += self.done.eq(1)
                    m.next = "WAIT"
                with m.Elif(~seen.next.any):
                    m.d.sync += self.hit.eq(0)
                    m.d.comb += self.done.eq(1)
                    m.next = "WAIT"
        return m
