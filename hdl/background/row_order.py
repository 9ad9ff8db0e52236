"""The rows of an array, in order."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS, geometry

PLACE_BITS = WIDTH_BITS - 1


def place() -> data.StructLayout:
    """A row of one span, or of one strip. ``base``, ``shift`` and ``row`` are those of `walk`.

    ``ends``: nothing that follows in the array has the same ``row``.
    """
    return data.StructLayout(
        {"base": PLACE_BITS, "shift": PLACE_BITS, "row": BLOCK_NUMBER_BITS, "ends": 1}
    )


class RowOrder(wiring.Component):
    """Names every row of an array from a given one on, each with the place of data role 0.

    A row is what a row slot owns. With parity there is one for each span. Without parity there is
    one for each strip whose first copy begins in the stripe (plain striping has one copy). All rows
    of the same number come together, and numbers ascend.

    The place where a stripe begins repeats. With parity it repeats after as many stripes as a span
    has drives, and without parity after as many as there are copies. So the number of the first
    stripe is divided by that, a bit a cycle. Then the order is turned as many times as the
    remainder says.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    start
        A pulse, while not ``active``. Begin with row ``first``.
    first
        The first row, less than the number of the array's rows.
    end
        The first row that is not named: the array's rows, or fewer. Stable like ``geometry``.
    geometry
        The array, stable from ``start`` until the order has ended.
    stop
        Held until not ``active``. The order ends. A place on offer does not count as taken.
    places
        The rows.
    active
        The order has not ended yet.
    complete
        The order has ended, and not because of ``stop``. The last rows of an array of mirrors may
        begin no strip, and then they have no place.

    Latency: with parity at most 80 cycles from ``start``. Without parity 50, and one more for each
    strip of as many stripes as there are copies. Then a place every third cycle.
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
        # Whether the array has parity; the stripes after which its order repeats; how far `at`
        # goes in a step: by spans, or from first copy to first copy.
        self._parity = Signal()
        self._divisor = Signal(WIDTH_BITS)
        self._step = Signal(WIDTH_BITS)

        # The row; which one of its stripe it is; blocks of a strip.
        self._row = Signal(BLOCK_NUMBER_BITS)
        self._within = Signal(9)
        self._strip_blocks = Signal(9)
        self._last_row = Signal()
        self._final_stripe = Signal()

        # The division of the first stripe's number.
        self._stripe = Signal(BLOCK_NUMBER_BITS)
        self._left = Signal(range(BLOCK_NUMBER_BITS + 1))
        self._rest = Signal(PLACE_BITS)

        # Where the stripe begins; the place in the row, and the next one; the span, and whether
        # nothing of the row follows.
        self._turn = Signal(PLACE_BITS)
        self._turned = Signal(PLACE_BITS)
        self._at = Signal(WIDTH_BITS)
        self._after = Signal(WIDTH_BITS + 1)
        self._span = Signal(WIDTH_BITS)
        self._over = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        self._measure(m)
        self._find_next(m)
        self._turn_stripe(m)
        with m.FSM(name="order") as fsm:
            self._take(m)
            self._divide(m)
            self._seek(m)
            self._name(m)
            self._offer(m)
        m.d.comb += self.active.eq(~fsm.ongoing("REST"))
        return m

    def _measure(self, m: Module) -> None:
        """What follows from the geometry, a cycle later, and from the row."""
        shape, row = self.geometry, self._row
        m.d.sync += [
            self._parity.eq(shape.parities != 0),
            self._divisor.eq(Mux(shape.parities != 0, shape.width, shape.copies)),
            self._step.eq(Mux(shape.parities != 0, shape.width, shape.copies)),
            self._last_row.eq(row + 1 == self.end),
            self._final_stripe.eq((row | (self._strip_blocks - 1)) + 1 == shape.rows),
        ]

    def _find_next(self, m: Module) -> None:
        """What follows `at` in the row."""
        shape, after, step = self.geometry, self._after, self._step
        m.d.comb += [
            after.eq(self._at + step),
            # A strip whose copies would end beyond the array is none.
            self._over.eq(
                Mux(
                    self._parity,
                    self._span + 1 == shape.spans,
                    (after >= shape.width)
                    | (self._final_stripe & (after + step > shape.width)),
                )
            ),
        ]

    def _turn_stripe(self, m: Module) -> None:
        """Where the next stripe begins, and where stripe 0 does."""
        shape, turn, turned = self.geometry, self._turn, self._turned
        right, moves = shape.rotation.right, shape.rotate
        with m.If(~self._parity):
            m.d.comb += turned.eq(self._after - shape.width)
        with m.Elif(~moves):
            m.d.comb += turned.eq(turn)
        with m.Elif(right):
            m.d.comb += turned.eq(Mux(turn + 1 == shape.width, 0, turn + 1))
        with m.Else():
            m.d.comb += turned.eq(Mux(turn == 0, shape.width - 1, turn - 1))

        self._begins = Signal(3)
        with m.If(right):
            m.d.comb += self._begins.eq(shape.parities)
        with m.Elif(~shape.rotation.fixed & ~shape.rotation.ddf & moves):
            m.d.comb += self._begins.eq(shape.parities - 1)

    def _begin_row(self, m: Module) -> None:
        """The next row begins at its first span, or with its first strip."""
        m.d.sync += [self._at.eq(Mux(self._parity, 0, self._turn)), self._span.eq(0)]

    def _take(self, m: Module) -> None:
        """The states REST and LOAD: the first row, and its stripe."""
        shift, row, strip_blocks = self.geometry.strip_shift, self._row, self._strip_blocks
        with m.State("REST"):
            m.d.sync += [
                row.eq(self.first),
                self._left.eq(BLOCK_NUMBER_BITS),
                self._rest.eq(0),
                strip_blocks.eq(1 << shift),
            ]
            with m.If(self.start):
                m.d.sync += self.complete.eq(0)
                m.next = "LOAD"

        with m.State("LOAD"):
            m.d.sync += [
                self._stripe.eq(row >> shift),
                self._within.eq(row & (strip_blocks - 1)),
                self._turn.eq(Mux(self._parity, self._begins, 0)),
                self._at.eq(0),
            ]
            m.next = "DIVIDE"

    def _divide(self, m: Module) -> None:
        """The state DIVIDE: the remainder of the first stripe's number."""
        stripe, left, rest, divisor = self._stripe, self._left, self._rest, self._divisor
        trial = Signal(WIDTH_BITS)
        m.d.comb += trial.eq(Cat(stripe[-1], rest))
        with m.State("DIVIDE"):
            m.d.sync += [stripe.eq(stripe << 1), left.eq(left - 1)]
            m.d.sync += rest.eq(Mux(trial >= divisor, trial - divisor, trial))
            with m.If(left == 1):
                m.next = "SEEK"

    def _seek(self, m: Module) -> None:
        """The state SEEK: turn to the stripe of the first row."""
        rest, at, after = self._rest, self._at, self._after
        with m.State("SEEK"):
            with m.If(rest == 0):
                self._begin_row(m)
                m.next = "LOOK"
            with m.Elif(self._parity | (after >= self.geometry.width)):
                m.d.sync += [
                    rest.eq(rest - 1),
                    self._turn.eq(self._turned),
                    at.eq(self._turned),
                ]
            with m.Else():
                m.d.sync += at.eq(after)

    def _name(self, m: Module) -> None:
        """The states LOOK and NAME of the next place.

        ``last_row`` and ``final_stripe`` follow ``row`` by a cycle.
        """
        out, parity = self.places.payload, self._parity
        with m.State("LOOK"):
            m.next = "NAME"
            with m.If(self.stop):
                m.next = "REST"

        with m.State("NAME"):
            m.d.sync += [
                out.base.eq(Mux(parity, self._at, 0)),
                out.shift.eq(Mux(parity, self._turn, self._at)),
                out.row.eq(self._row),
                out.ends.eq(self._over),
            ]
            m.next = "OFFER"
            # The last stripe may begin no strip at all.
            no_strip = ~parity & self._final_stripe & (self._after > self.geometry.width)
            with m.If(no_strip):
                m.d.sync += self.complete.eq(1)
                m.next = "REST"

    def _offer(self, m: Module) -> None:
        """The state OFFER: the place is taken, and the next place or row begins."""
        out, row, within, turned = self.places.payload, self._row, self._within, self._turned
        with m.State("OFFER"):
            m.d.comb += self.places.valid.eq(1)
            with m.If(self.places.ready):
                m.d.sync += [self._at.eq(self._after), self._span.eq(self._span + 1)]
                m.next = "LOOK"
                with m.If(out.ends & self._last_row):
                    m.d.sync += self.complete.eq(~self.stop)
                    m.next = "REST"
                with m.Elif(out.ends):
                    m.d.sync += [row.eq(row + 1), within.eq(within + 1)]
                    self._begin_row(m)
                    with m.If(within + 1 == self._strip_blocks):
                        m.d.sync += [within.eq(0), self._turn.eq(turned)]
                        m.d.sync += self._at.eq(Mux(self._parity, 0, turned))
