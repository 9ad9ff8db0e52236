"""Transfers in flight: how many reads of each still wait, and when the last has landed."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.host_memory import Kind, read_done, read_index_bits


def read_begun(config: Config) -> data.StructLayout:
    """A read of transfer (``kind``, ``index``) is about to be sent; ``last``: no more follow."""
    return data.StructLayout({"kind": Kind, "index": read_index_bits(config), "last": 1})


def read_ended(config: Config) -> data.StructLayout:
    """Every byte of a read has landed or never will. ``quarantine``: completions may still come."""
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

    One `read_done` for each transfer, after the read marked ``last`` has begun and all its reads
    have ended; ``error`` if one of them had an error. Transfers may interleave in any way. The tag
    of each read that ends is passed on in the same cycle.

    Ports
    -----
    begun, ended, done
        See `read_begun`, `read_ended`, `hdl.flow.host_memory.read_done`.
    retire_valid, retire_tag, retire_quarantine
        A read has ended: to the tag table. A pulse.
    cleared
        The table has been cleared after reset; nothing is taken before (one cycle an entry).

    Throughput one event a cycle, ``begun`` first: an end may queue behind others that wait for
    ``done``, but its read has begun before, and must have been counted. Reads begin every fourth
    cycle at most. Latency of ``done`` one cycle; waits for it.
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
                "retire_valid": Out(1),
                "retire_tag": Out(bits_for_count(config.read_tags)),
                "retire_quarantine": Out(1),
                "cleared": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.table = table = memory.Memory(shape=self._entry, depth=self._depth, init=[])
        store = table.write_port()
        fetch = table.read_port(transparent_for=(store,))

        s1_valid = Signal()
        s1_is_end = Signal()
        s1_ended = Signal(self.ended.payload.shape())
        s1_last = Signal()
        finished = Signal()
        moves = Signal()
        takes = Signal()
        place = Signal(range(self._depth))  # entries cleared so far

        m.d.comb += [
            takes.eq(self.cleared & (~s1_valid | moves)),
            self.ended.ready.eq(takes & ~self.begun.valid),
            self.begun.ready.eq(takes),
            fetch.addr.eq(
                Mux(
                    ~self.begun.valid,
                    Cat(self.ended.payload.index, self.ended.payload.kind),
                    Cat(self.begun.payload.index, self.begun.payload.kind),
                )
            ),
            fetch.en.eq(takes),
        ]
        with m.If(takes):
            m.d.sync += [
                s1_valid.eq(self.ended.valid | self.begun.valid),
                s1_is_end.eq(~self.begun.valid),
                s1_ended.eq(self.ended.payload),
                s1_last.eq(self.begun.payload.last),
            ]
            with m.If(self.begun.valid):
                m.d.sync += [
                    s1_ended.kind.eq(self.begun.payload.kind),
                    s1_ended.index.eq(self.begun.payload.index),
                ]

        m.d.comb += [
            finished.eq(s1_is_end & fetch.data.last & (fetch.data.count == 1)),
            self.done.valid.eq(s1_valid & finished),
            self.done.payload.kind.eq(s1_ended.kind),
            self.done.payload.index.eq(s1_ended.index),
            self.done.payload.error.eq(fetch.data.error | s1_ended.error),
            moves.eq(s1_valid & (~finished | self.done.ready)),
            self.retire_valid.eq(moves & s1_is_end),
            self.retire_tag.eq(s1_ended.tag),
            self.retire_quarantine.eq(s1_ended.quarantine),
            self.busy.eq(
                ~self.cleared | s1_valid | self.begun.valid | self.ended.valid
            ),
        ]

        m.d.sync += Assert(
            ~(moves & s1_is_end) | (fetch.data.count != 0),
            "a read ends that has not begun",
        )

        with m.If(~self.cleared):
            m.d.comb += [store.addr.eq(place), store.en.eq(1)]
            m.d.sync += place.eq(place + 1)
            with m.If(place == self._depth - 1):
                m.d.sync += self.cleared.eq(1)
        with m.Else():
            m.d.comb += [
                store.addr.eq(Cat(s1_ended.index, s1_ended.kind)),
                store.en.eq(moves),
            ]
            with m.If(s1_is_end & ~finished):
                m.d.comb += [
                    store.data.count.eq(fetch.data.count - 1),
                    store.data.last.eq(fetch.data.last),
                    store.data.error.eq(fetch.data.error | s1_ended.error),
                ]
            with m.Elif(~s1_is_end):
                m.d.comb += [
                    store.data.count.eq(fetch.data.count + 1),
                    store.data.last.eq(fetch.data.last | s1_last),
                    store.data.error.eq(fetch.data.error),
                ]
        return m
