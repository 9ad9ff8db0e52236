"""Recognises commands that continue an earlier one."""

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.extent import extent
from hdl.flow.geometry import geometry
from hdl.kit.disjoint import DISJOINT
from hdl.kit.table import Table

STREAMS_BITS = 6
"""log2 of the streams remembered, if not said otherwise."""


class StreamDetector(wiring.Component):
    """Remembers which block would follow each recent command, and knows it when it comes.

    A table has 2**``streams_bits`` expected blocks, each named by array, base, row and ordinal, and
    placed by a hash. A collision forgets the older. An entry that stays too long only makes one
    unrelated command wait a little for partners.

    Parameters
    ----------
    config
        Sizes.
    keeps
        The layout of something to be remembered of a stream, or None.
    streams_bits
        log2 of the expected blocks.

    Ports
    -----
    extent
        An extent. It must hold for a cycle before ``note`` and one after.
    geometry
        That of its array. It must hold for as long.
    note
        Strobe: the extent comes. The end of the last one of a command is remembered.
    sequential
        After the first extent of a command: it was expected. This is kept for the command's others.
    met
        With ``keeps``, in the cycle of ``note``: the extent was expected.
    kept
        With ``keeps``, for as long: what was kept with the entry.
    keep
        With ``keeps``: what to keep with the entry of the block that follows, taken in the cycle
        after ``note``.
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

        keeping = {"kept": keeps} if keeps else {}
        place = data.StructLayout(
            {"array": config.array_bits, "base": 5, "ordinal": 5, "row": BLOCK_NUMBER_BITS}
        )
        entry = data.StructLayout({"any": 1, "place": place, **keeping})
        self._expected = Table(entry, 1 << streams_bits, attrs=DISJOINT)
        self._begin = Signal(place)  # where the extent begins
        self._follow = Signal(place)  # the block that follows it

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.expected = self._expected
        this, begin, found = self.extent, self._begin, self._expected.reads[0].data
        self._find_following(m)
        m.d.comb += [
            begin.array.eq(this.array),
            begin.base.eq(this.base),
            begin.ordinal.eq(this.ordinal),
            begin.row.eq(this.row),
            self._expected.reads[0].address.eq(self._hash(begin)),
            self._expected.write.address.eq(self._hash(self._follow)),
            self._expected.write.data.any.eq(1),
            self._expected.write.data.place.eq(self._follow),
        ]
        met = found.any & (found.place.as_value() == begin.as_value())
        if self._keeps:
            m.d.comb += [
                self.met.eq(met),
                self.kept.eq(found.kept),
                self._expected.write.data.kept.eq(self.keep),
            ]
        with m.If(self.note & (this.offset == 0)):
            m.d.sync += self.sequential.eq(met)
        return m

    def _hash(self, place) -> Value:
        """Where a block is in the table."""
        bits = self._streams_bits
        result = Const(0, bits)
        for low in range(0, 3 * bits, bits):
            result = result ^ place.row[low : low + bits]
        return result ^ place.ordinal ^ (place.base << 1) ^ (place.array << 3)

    def _find_following(self, m: Module) -> None:
        """The block that follows: down the strip, then the next strip of the stripe, the next span,
        the next stripe."""
        this, shape, follow = self.extent, self.geometry, self._follow
        s1_row = Signal(BLOCK_NUMBER_BITS)
        s1_last_strip = Signal()
        s1_last_span = Signal()
        s1_note = Signal()
        strip_mask = Signal(9)
        first_of_strip = Signal()
        m.d.comb += [
            strip_mask.eq((1 << shape.strip_shift) - 1),
            first_of_strip.eq((s1_row & strip_mask) == 0),
            follow.array.eq(this.array),
            follow.base.eq(this.base),
            follow.ordinal.eq(this.ordinal),
            follow.row.eq(s1_row),
            self._expected.write.enable.eq(s1_note),
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
