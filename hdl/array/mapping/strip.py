"""The strip that a command is at, and the one after it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS, geometry

PLACE_BITS = WIDTH_BITS - 1
"""Width of a place in a span, 0..31."""


def strip() -> data.StructLayout:
    """A data strip of an array.

    ``base`` and ``shift`` are those of `hdl.flow.extent.extent`, and ``index`` is its ``ordinal``.
    ``row`` is the first row of the stripe, and ``span`` the strip's span. ``place`` is the place of
    the first copy, for mirrors only.
    """
    return data.StructLayout(
        {
            "base": PLACE_BITS,
            "shift": PLACE_BITS,
            "index": PLACE_BITS,
            "span": PLACE_BITS,
            "place": PLACE_BITS,
            "row": BLOCK_NUMBER_BITS,
        }
    )


class NextStrip(wiring.Component):
    """Names the data strip that follows another one. Combinational.

    With parity, and with plain striping, all data strips of a stripe follow each other. Then comes
    the next span, then the next stripe, where parity has moved by a drive as ``rotation`` says.
    With mirrors, copies fill the places of a stripe and go on in the next one. So the first place
    of a stripe changes if ``copies`` does not divide ``width``.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    geometry
        The array.
    at
        A data strip.
    after
        The data strip that follows it.
    turns
        ``after`` begins another stripe, or the same stripe in another span.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "geometry": In(geometry(config)),
                "at": In(strip()),
                "after": Out(strip()),
                "turns": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        shape, at, after = self.geometry, self.at, self.after
        next_place = Signal(WIDTH_BITS + 1)
        next_stripe = Signal()
        strip_blocks = Signal(BLOCK_NUMBER_BITS)

        m.d.comb += [
            after.eq(at),
            next_place.eq(at.place + shape.copies),
            strip_blocks.eq(1 << shape.strip_shift),
        ]
        with m.If(shape.copies > 1):
            m.d.comb += [
                self.turns.eq(next_place >= shape.width),
                next_stripe.eq(self.turns),
                after.place.eq(Mux(self.turns, next_place - shape.width, next_place)),
            ]
            with m.If(self.turns):
                m.d.comb += after.shift.eq(next_place - shape.width)
        with m.Else():
            m.d.comb += self.turns.eq(at.index + 1 == shape.data)
            with m.If(self.turns):
                with m.If(at.span + 1 == shape.spans):
                    m.d.comb += [next_stripe.eq(1), after.span.eq(0), after.base.eq(0)]
                    with m.If(shape.rotate & shape.rotation.right):
                        m.d.comb += after.shift.eq(
                            Mux(at.shift + 1 == shape.width, 0, at.shift + 1)
                        )
                    with m.Elif(shape.rotate):
                        m.d.comb += after.shift.eq(
                            Mux(at.shift == 0, shape.width - 1, at.shift - 1)
                        )
                with m.Else():
                    m.d.comb += [
                        after.span.eq(at.span + 1),
                        after.base.eq(at.base + shape.width),
                    ]
        m.d.comb += after.index.eq(Mux(self.turns, 0, at.index + 1))
        with m.If(next_stripe):
            m.d.comb += after.row.eq(at.row + strip_blocks)
        return m
