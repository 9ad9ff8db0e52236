"""Recognises commands that continue an earlier one."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.extent import extent
from hdl.flow.geometry import geometry
from hdl.kit.disjoint import DISJOINT

STREAMS_BITS = 6
"""log2 of the streams remembered, if not said otherwise."""


class StreamDetector(wiring.Component):
    """Remembers which block would follow each recent command, and knows it when it comes.

    A table of 2**``streams_bits`` expected blocks, each named by array, base, row and ordinal,
    placed by a hash; a collision forgets the older, and an entry that stays too long only makes one
    unrelated command wait a little for partners.

    ``extent`` and ``geometry`` (of its array) must hold for a cycle before ``note`` and one after:
    with a command's first extent ``sequential`` then tells whether it was expected, and is kept for
    the command's others; the end of its last one is remembered.

    With ``keeps``, the layout of something to be remembered of a stream: ``kept`` is what was kept
    with the entry, in the cycle of ``note`` and if it is ``met`` then; ``keep`` is taken one cycle
    later.
    """

    def __init__(
        self,
        *,
        config: Config,
        keeps: data.StructLayout | None = None,
        streams_bits: int = STREAMS_BITS,
    ):
        self._config = config
        self._streams_bits = streams_bits
        self._keeps = keeps
        keeping = {"met": Out(1), "kept": Out(keeps), "keep": In(keeps)} if keeps else {}
        super().__init__(
            {
                "extent": In(extent(config)),
                "geometry": In(geometry(config)),
                "note": In(1),
                "sequential": Out(1),
                **keeping,
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        bits = self._streams_bits
        place = data.StructLayout(
            {"array": config.array_bits, "base": 5, "ordinal": 5, "row": BLOCK_NUMBER_BITS}
        )
        keeping = {"kept": self._keeps} if self._keeps else {}
        entry = data.StructLayout({"any": 1, "place": place, **keeping})
        m.submodules.expected = expected = Memory(
            shape=entry, depth=1 << bits, init=[], attrs=DISJOINT
        )
        read = expected.read_port()
        write = expected.write_port()

        def hashed(value):
            result = Const(0, bits)
            for low in range(0, 3 * bits, bits):
                result = result ^ value.row[low : low + bits]
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
        if self._keeps:
            m.d.comb += [
                self.met.eq(met),
                self.kept.eq(read.data.kept),
                write.data.kept.eq(self.keep),
            ]
        with m.If(self.note & (this.offset == 0)):
            m.d.sync += self.sequential.eq(met)
        return m
