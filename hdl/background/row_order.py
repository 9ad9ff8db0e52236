"""The rows of an array, in order."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS, geometry

PLACE_BITS = WIDTH_BITS - 1


def place() -> data.StructLayout:
    """A row of one span, or of one strip: ``base``, ``shift``, ``row`` as in `walk`.

    ``ends``: nothing else of the array has this ``row``.
    """
    return data.StructLayout(
        {"base": PLACE_BITS, "shift": PLACE_BITS, "row": BLOCK_NUMBER_BITS, "ends": 1}
    )


class RowOrder(wiring.Component):
    """Names every row of an array from a given one on, each with the place of data role 0.

    A row is what a row slot owns: with parity one of each span; without parity one of each strip
    whose first copy begins in the stripe (plain striping has one copy). All of a ``row`` come
    together, rows ascend. Where stripe s begins repeats: with parity after as many stripes as there
    are drives in a span, else after as many as there are copies. So the first stripe is divided
    by that, a bit a cycle, and the order turned as many times as the remainder says.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    start, first
        A pulse, while not ``active``: begin with row ``first``, less than the array's rows.
    end
        The first row beyond: the array's rows, or fewer; stable like ``geometry``.
    geometry
        The array, stable from ``start`` until the order has ended.
    stop
        Held until not ``active``: end. A place on offer does not count as taken.
    places
        The rows.
    active, complete
        Not ended yet; ended, and not because of ``stop``. The last rows of an array of mirrors may
        begin no strip: they have no place.

    Latency: from ``start`` at most 80 cycles with parity, 50 and one for each strip of as many
    stripes as there are copies without; then a place every third cycle.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "first": In(BLOCK_NUMBER_BITS),
                "end": In(BLOCK_NUMBER_BITS),
                "geometry": In(geometry(config)),
                "stop": In(1),
                "places": Out(stream.Signature(place())),
                "active": Out(1),
                "complete": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        shape = self.geometry
        out = self.places.payload

        parity = Signal()
        divisor = Signal(WIDTH_BITS)
        step = Signal(WIDTH_BITS)
        m.d.sync += [
            parity.eq(shape.parities != 0),
            divisor.eq(Mux(shape.parities != 0, shape.width, shape.copies)),
            # `at` goes by spans, or from first copy to first copy.
            step.eq(Mux(shape.parities != 0, shape.width, shape.copies)),
        ]

        row = Signal(BLOCK_NUMBER_BITS)
        within = Signal(9)
        strip_blocks = Signal(9)
        stripe = Signal(BLOCK_NUMBER_BITS)
        left = Signal(range(BLOCK_NUMBER_BITS + 1))
        rest = Signal(PLACE_BITS)
        trial = Signal(WIDTH_BITS)
        turn = Signal(PLACE_BITS)
        at = Signal(WIDTH_BITS)
        span = Signal(WIDTH_BITS)
        m.d.comb += trial.eq(Cat(stripe[-1], rest))

        # What follows `at` in the row, and where the next stripe begins.
        after = Signal(WIDTH_BITS + 1)
        over = Signal()
        final_stripe = Signal()
        turned = Signal(PLACE_BITS)
        m.d.comb += [
            after.eq(at + step),
            # A strip whose copies would end beyond the array is none.
            over.eq(
                Mux(
                    parity,
                    span + 1 == shape.spans,
                    (after >= shape.width) | (final_stripe & (after + step > shape.width)),
                )
            ),
        ]
        right, moves = shape.rotation.right, shape.rotate
        with m.If(~parity):
            m.d.comb += turned.eq(after - shape.width)
        with m.Elif(~moves):
            m.d.comb += turned.eq(turn)
        with m.Elif(right):
            m.d.comb += turned.eq(Mux(turn + 1 == shape.width, 0, turn + 1))
        with m.Else():
            m.d.comb += turned.eq(Mux(turn == 0, shape.width - 1, turn - 1))

        begins = Signal(3)
        with m.If(right):
            m.d.comb += begins.eq(shape.parities)
        with m.Elif(~shape.rotation.fixed & ~shape.rotation.ddf & moves):
            m.d.comb += begins.eq(shape.parities - 1)

        last_row = Signal()
        m.d.sync += [
            last_row.eq(row + 1 == self.end),
            final_stripe.eq((row | (strip_blocks - 1)) + 1 == shape.rows),
        ]

        def begin_row():
            m.d.sync += [at.eq(Mux(parity, 0, turn)), span.eq(0)]

        with m.FSM(name="order") as fsm:
            with m.State("REST"):
                m.d.sync += [
                    row.eq(self.first),
                    left.eq(BLOCK_NUMBER_BITS),
                    rest.eq(0),
                    strip_blocks.eq(1 << shape.strip_shift),
                ]
                with m.If(self.start):
                    m.d.sync += self.complete.eq(0)
                    m.next = "LOAD"

            with m.State("LOAD"):
                m.d.sync += [
                    stripe.eq(row >> shape.strip_shift),
                    within.eq(row & (strip_blocks - 1)),
                    turn.eq(Mux(parity, begins, 0)),
                    at.eq(0),
                ]
                m.next = "DIVIDE"

            with m.State("DIVIDE"):
                m.d.sync += [stripe.eq(stripe << 1), left.eq(left - 1)]
                m.d.sync += rest.eq(Mux(trial >= divisor, trial - divisor, trial))
                with m.If(left == 1):
                    m.next = "SEEK"

            # Turn to the stripe of the first row.
            with m.State("SEEK"):
                with m.If(rest == 0):
                    begin_row()
                    m.next = "LOOK"
                with m.Elif(parity | (after >= shape.width)):
                    m.d.sync += [rest.eq(rest - 1), turn.eq(turned), at.eq(turned)]
                with m.Else():
                    m.d.sync += at.eq(after)

            # `last_row` and `final_stripe` follow `row` by a cycle.
            with m.State("LOOK"):
                m.next = "NAME"
                with m.If(self.stop):
                    m.next = "REST"

            with m.State("NAME"):
                m.d.sync += [
                    out.base.eq(Mux(parity, at, 0)),
                    out.shift.eq(Mux(parity, turn, at)),
                    out.row.eq(row),
                    out.ends.eq(over),
                ]
                m.next = "OFFER"
                # The last stripe may begin no strip at all.
                with m.If(~parity & final_stripe & (after > shape.width)):
                    m.d.sync += self.complete.eq(1)
                    m.next = "REST"

            with m.State("OFFER"):
                m.d.comb += self.places.valid.eq(1)
                with m.If(self.places.ready):
                    m.d.sync += [at.eq(after), span.eq(span + 1)]
                    m.next = "LOOK"
                    with m.If(out.ends & last_row):
                        m.d.sync += self.complete.eq(~self.stop)
                        m.next = "REST"
                    with m.Elif(out.ends):
                        m.d.sync += [row.eq(row + 1), within.eq(within + 1)]
                        begin_row()
                        with m.If(within + 1 == strip_blocks):
                            m.d.sync += [within.eq(0), turn.eq(turned)]
                            m.d.sync += at.eq(Mux(parity, 0, turned))

        m.d.comb += self.active.eq(~fsm.ongoing("REST"))
        return m
