"""Transfers in flight: how many reads of each still wait, and when the last has landed."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.host_memory import Kind, read_done, read_index_bits
from hdl.kit.pulse import Pulse
from hdl.pcie.dma.tags import retired


def read_begun(config: Config) -> data.StructLayout:
    """A read of transfer (``kind``, ``index``) is about to be sent. If ``last``, no more follow."""
    return data.StructLayout({"kind": Kind, "index": read_index_bits(config), "last": 1})


def read_ended(config: Config) -> data.StructLayout:
    """Every byte of a read has landed or never will. If ``quarantine``, completions may still come.
    """
    return data.StructLayout(
        {
            "kind": Kind,
            "index": read_index_bits(config),
            "tag": bits_for_count(config.read_tags),
            "error": 1,
            "quarantine": 1,
        }
    )


class TransferTable(wiring.Component):
    """Counts the reads of every transfer and says when one is done.

    Each transfer gets one `read_done`, after the read marked ``last`` has begun and all its reads
    have ended, with ``error`` if one of them had an error. Transfers may interleave in any way. The
    tag of each read that ends is passed on in the same cycle.

    It takes one event a cycle, ``begun`` first. An end may queue behind others that wait for
    ``done``, but its read has begun before, and must have been counted. Reads begin every fourth
    cycle at most. ``done`` comes one cycle later, and events wait until it is taken.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begun
        Reads that begin (`read_begun`).
    ended
        Reads that have ended (`read_ended`).
    done
        Transfers that are done (`hdl.flow.host_memory.read_done`).
    retire
        To the tag table: a read has ended.
    cleared
        The table has been cleared after reset, one entry a cycle. Nothing is taken before.
    busy
        An event is taken or waits, or the table is being cleared.
    """

    def __init__(self, *, config: Config):
        self._depth = len(Kind) << read_index_bits(config)
        self._entry = data.StructLayout(
            {"count": range(config.read_tags + 1), "last": 1, "error": 1}
        )
        super().__init__(
            {
                "begun": In(stream.Signature(read_begun(config))),
                "ended": In(stream.Signature(read_ended(config))),
                "done": Out(stream.Signature(read_done(config))),
                "retire": Out(Pulse(retired(config))),
                "cleared": Out(1),
                "busy": Out(1),
            }
        )

        # A synchronous read that sees the write of the same cycle, and that can be held, which a
        # `hdl.kit.table.Table` cannot do.
        self._table = Memory(shape=self._entry, depth=self._depth, init=[])
        self._store = self._table.write_port()
        self._fetch = self._table.read_port(transparent_for=(self._store,))
        self._found = self._fetch.data

        # The event whose entry has been read.
        self._s1_valid = Signal()
        self._s1_is_end = Signal()
        self._s1_ended = Signal(read_ended(config))
        self._s1_last = Signal()
        self._finished = Signal()  # it is the last of its transfer
        self._takes = Signal()
        self._moves = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.table = self._table
        self._take(m)
        self._finish(m)
        with m.If(~self.cleared):
            self._clear(m)
        with m.Else():
            self._count(m)
        m.d.comb += self.busy.eq(
            ~self.cleared | self._s1_valid | self.begun.valid | self.ended.valid
        )
        return m

    def _take(self, m: Module) -> None:
        """Takes an event, and reads its entry."""
        begun, ended, takes = self.begun, self.ended, self._takes
        m.d.comb += [
            takes.eq(self.cleared & (~self._s1_valid | self._moves)),
            ended.ready.eq(takes & ~begun.valid),
            begun.ready.eq(takes),
            self._fetch.addr.eq(
                Mux(
                    ~begun.valid,
                    Cat(ended.payload.index, ended.payload.kind),
                    Cat(begun.payload.index, begun.payload.kind),
                )
            ),
            self._fetch.en.eq(takes),
        ]
        with m.If(takes):
            m.d.sync += [
                self._s1_valid.eq(ended.valid | begun.valid),
                self._s1_is_end.eq(~begun.valid),
                self._s1_ended.eq(ended.payload),
                self._s1_last.eq(begun.payload.last),
            ]
            with m.If(begun.valid):
                m.d.sync += [
                    self._s1_ended.kind.eq(begun.payload.kind),
                    self._s1_ended.index.eq(begun.payload.index),
                ]

    def _finish(self, m: Module) -> None:
        """Says which reads have ended, and which transfers are done."""
        found, s1_ended, is_end = self._found, self._s1_ended, self._s1_is_end
        m.d.comb += [
            self._finished.eq(is_end & found.last & (found.count == 1)),
            self.done.valid.eq(self._s1_valid & self._finished),
            self.done.payload.kind.eq(s1_ended.kind),
            self.done.payload.index.eq(s1_ended.index),
            self.done.payload.error.eq(found.error | s1_ended.error),
            self._moves.eq(self._s1_valid & (~self._finished | self.done.ready)),
            self.retire.valid.eq(self._moves & is_end),
            self.retire.payload.tag.eq(s1_ended.tag),
            self.retire.payload.quarantine.eq(s1_ended.quarantine),
        ]
        m.d.sync += Assert(
            ~(self._moves & is_end) | (found.count != 0), "a read ends that has not begun"
        )

    def _clear(self, m: Module) -> None:
        """After a reset no transfer is in flight."""
        place = Signal(range(self._depth))  # entries cleared so far
        m.d.comb += [self._store.addr.eq(place), self._store.en.eq(1)]
        m.d.sync += place.eq(place + 1)
        with m.If(place == self._depth - 1):
            m.d.sync += self.cleared.eq(1)

    def _count(self, m: Module) -> None:
        """Stores the entry with the read that has begun or ended."""
        store, found, s1_ended = self._store, self._found, self._s1_ended
        m.d.comb += [
            store.addr.eq(Cat(s1_ended.index, s1_ended.kind)),
            store.en.eq(self._moves),
        ]
        with m.If(self._s1_is_end & ~self._finished):
            m.d.comb += [
                store.data.count.eq(found.count - 1),
                store.data.last.eq(found.last),
                store.data.error.eq(found.error | s1_ended.error),
            ]
        with m.Elif(~self._s1_is_end):
            m.d.comb += [
                store.data.count.eq(found.count + 1),
                store.data.last.eq(found.last | self._s1_last),
                store.data.error.eq(found.error),
            ]
