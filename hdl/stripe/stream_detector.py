"""Recognises writes that continue an earlier write."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.array.interface import extent, geometry
from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.memory.disjoint import DISJOINT

STREAMS_BITS = 6
"""log2 of the streams remembered."""


class StreamDetector(wiring.Component):
    """Remembers which block would follow each recent write, and knows it when it comes.

    A table of 2**`STREAMS_BITS` expected blocks, each named by array, base, row and ordinal, placed
    by a hash; a collision forgets the older, and an entry that stays too long only makes one
    unrelated write wait a little for partners.

    ``extent`` and ``geometry`` (of its array) must hold for a cycle before ``note`` and one after:
    with a command's first extent ``sequential`` then tells whether it was expected, and is kept for
    the command's others; the end of its last one is remembered.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "extent": In(extent(config)),
                "geometry": In(geometry(config)),
                "note": In(1),
                "sequential": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        place = data.StructLayout(
            {"array": config.array_bits, "base": 5, "ordinal": 5, "row": BLOCK_NUMBER_BITS}
        )
        entry = data.StructLayout({"any": 1, "place": place})
        m.submodules.expected = expected = Memory(
            shape=entry, depth=1 << STREAMS_BITS, init=[], attrs=DISJOINT
        )
        read = expected.read_port()
        write = expected.write_port()

        def hashed(value):
            result = Const(0, STREAMS_BITS)
            for low in range(0, 3 * STREAMS_BITS, STREAMS_BITS):
                result = result ^ value.row[low : low + STREAMS_BITS]
            return result ^ value.ordinal ^ (value.base << 1) ^ (value.array << 3)

        this = self.extent
        shape = self.geometry
        begin = Signal(place)
        follow = Signal(place)
        s1_row = Signal(BLOCK_NUMBER_BITS)
        s1_last_strip = Signal()
        s1_last_span = Signal()
        s1_note = Signal()
        strip_mask = Signal(9)
        first_of_strip = Signal()
        m.d.comb += [
            begin.array.eq(this.array),
            begin.base.eq(this.base),
            begin.ordinal.eq(this.ordinal),
            begin.row.eq(this.row),
            # Down the strip, then the next strip of the stripe, the next span, the next stripe.
            strip_mask.eq((1 << shape.strip_shift) - 1),
            first_of_strip.eq((s1_row & strip_mask) == 0),
            follow.array.eq(this.array),
            follow.base.eq(this.base),
            follow.ordinal.eq(this.ordinal),
            follow.row.eq(s1_row),
        ]
        m.d.sync += [
            s1_row.eq(this.row + this.blocks + 1),
            s1_last_strip.eq(this.ordinal + 1 == shape.data),
            s1_last_span.eq(this.base + shape.width >= shape.width * shape.spans),
            s1_note.eq(self.note & this.last),
        ]
        with m.If(first_of_strip):
            m.d.comb += follow.ordinal.eq(Mux(s1_last_strip, 0, this.ordinal + 1))
            with m.If(s1_last_strip):
                m.d.comb += follow.base.eq(Mux(s1_last_span, 0, this.base + shape.width))
            with m.If(~(s1_last_strip & s1_last_span)):
                m.d.comb += follow.row.eq(s1_row - strip_mask - 1)
        m.d.comb += [
            read.addr.eq(hashed(begin)),
            write.addr.eq(hashed(follow)),
            write.data.any.eq(1),
            write.data.place.eq(follow),
            write.en.eq(s1_note),
        ]
        met = read.data.any & (read.data.place.as_value() == begin.as_value())
        with m.If(self.note & (this.offset == 0)):
            m.d.sync += self.sequential.eq(met)
        return m
