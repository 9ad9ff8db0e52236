"""How many drives, spans and copies a RAID level allows, and which rotations."""

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.geometry import WIDTH_BITS, Level, Rotation, RotationBits

MAX_STRIP_SHIFT = 8
"""Strips are 4 KiB to 1 MiB."""

DDF = (
    Rotation.DDF_N_CONTINUE.value,
    Rotation.DDF_N_RESTART.value,
    Rotation.DDF_ZERO_RESTART.value,
)


class LevelRules(wiring.Component):
    """Checks the shape of a new array and fills in what follows from it.

    ===== ================= ======== ======== ===============
    level drives of a span  parities copies   spans
    ===== ================= ======== ======== ===============
    0     2..32             0        1        1
    1     2..32             0        2..n (n) 1
    5     3..32             1        1        1.. (RAID 50)
    6     4..32             2        1        1.. (RAID 60)
    TP    5..32             3        1        1..
    10    2..32             0        2..n (2) 1
    JBOD  1                 0        1        1
    ===== ================= ======== ======== ===============

    If ``copies`` is 0, the default in brackets counts. If ``spans`` is 0, it counts as 1. Level 10
    on an odd number of drives is RAID 1E. Spans must divide the drives. ``rotation`` is 0 without
    parity. Rotations of DDF are allowed at level 6 only.

    Parameters
    ----------
    config
        Sizes. A level with more parities than ``config.parities`` is refused.

    Ports
    -----
    start
        A pulse. Begin. The inputs stay stable until ``done``.
    level
        The level that is asked for (`Level`).
    strip_shift
        log2 of the blocks of a strip.
    copies
        Copies of each strip, or 0.
    spans
        Spans, or 0.
    rotation
        How parity moves (`Rotation`).
    drives
        Drives over all spans.
    done
        A pulse, at most 35 cycles after ``start``.
    allowed
        With ``done``: the level allows it. The ports below hold from then on.
    width
        Drives of a span. This and the next five are those of `hdl.flow.geometry.geometry`.
    data
        Data strips of a span's stripe.
    parities
        Parities of a span.
    shape_copies
        Copies of each strip.
    shape_spans
        Spans.
    rotate
        Parity moves from stripe to stripe.
    strips
        Data strips of a stripe over all spans, before mirroring.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "level": In(4),
                "strip_shift": In(4),
                "copies": In(WIDTH_BITS),
                "spans": In(WIDTH_BITS),
                "rotation": In(4),
                "drives": In(WIDTH_BITS),
                "done": Out(1),
                "allowed": Out(1),
                "width": Out(WIDTH_BITS),
                "data": Out(WIDTH_BITS),
                "parities": Out(3),
                "shape_copies": Out(WIDTH_BITS),
                "shape_spans": Out(WIDTH_BITS),
                "rotate": Out(1),
                "strips": Out(WIDTH_BITS),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        self._look_up_level(m)
        self._fill_in(m)
        fits = self._fits(m)
        with m.FSM(name="admit"):
            self._divide(m, fits)
        return m

    def _look_up_level(self, m: Module) -> None:
        """What the level asks for: drives, parities and copies."""
        self._known = Signal()
        self._mirrors = Signal()
        self._least = Signal(WIDTH_BITS)
        self._default = Signal(WIDTH_BITS)
        least, default = self._least, self._default
        m.d.comb += [self._known.eq(1), default.eq(1)]
        with m.Switch(self.level):
            with m.Case(Level.RAID0.value):
                m.d.comb += least.eq(2)
            with m.Case(Level.RAID1.value):
                m.d.comb += [least.eq(2), self._mirrors.eq(1), default.eq(self.drives)]
            with m.Case(Level.RAID5.value):
                m.d.comb += [least.eq(3), self.parities.eq(1)]
            with m.Case(Level.RAID6.value):
                m.d.comb += [least.eq(4), self.parities.eq(2)]
            with m.Case(Level.RAIDTP.value):
                m.d.comb += [least.eq(5), self.parities.eq(3)]
            with m.Case(Level.RAID10.value):
                m.d.comb += [least.eq(2), self._mirrors.eq(1), default.eq(Const(2))]
            with m.Case(Level.JBOD.value):
                m.d.comb += least.eq(1)
            with m.Default():
                m.d.comb += self._known.eq(0)

    def _fill_in(self, m: Module) -> None:
        """What follows from the level and the drives of a span."""
        m.d.comb += [
            self.shape_copies.eq(Mux(self.copies == 0, self._default, self.copies)),
            self.shape_spans.eq(Mux(self.spans == 0, 1, self.spans)),
            self.data.eq(self.width - self.parities),
            self.strips.eq(
                self.drives
                - Mux(self.parities[0], self.shape_spans, 0)
                - Mux(self.parities[1], self.shape_spans << 1, 0)
            ),
            self.rotate.eq(
                (self.parities > 0) & ~data.View(RotationBits, self.rotation).fixed
            ),
        ]

    def _fits(self, m: Module) -> Value:
        """Whether the level allows all that, apart from drives left over by the spans."""
        rotates = Signal()
        with m.Switch(self.rotation):
            with m.Case(Rotation.LEFT_SYMMETRIC.value):
                m.d.comb += rotates.eq(1)
            with m.Case(*DDF):
                m.d.comb += rotates.eq(self.level == Level.RAID6.value)
            with m.Case(*(one.value for one in Rotation if one.value not in DDF)):
                m.d.comb += rotates.eq(self.parities > 0)
        copies_fit = Mux(
            self._mirrors,
            (self.shape_copies >= 2) & (self.shape_copies <= self.drives),
            self.shape_copies == 1,
        )
        return (
            self._known
            & (self.parities <= self._config.parities)
            & (self.strip_shift <= MAX_STRIP_SHIFT)
            & (self.width >= self._least)
            & ((self.level != Level.JBOD.value) | (self.drives == 1))
            & ((self.parities > 0) | (self.shape_spans == 1))
            & copies_fit
            & rotates
        )

    def _divide(self, m: Module, fits: Value) -> None:
        """The states REST to HOLD: drives / spans, by repeated subtraction."""
        rest = Signal(WIDTH_BITS)
        m.d.sync += self.done.eq(0)
        with m.State("REST"):
            m.d.sync += [rest.eq(self.drives), self.width.eq(0)]
            with m.If(self.start):
                m.next = "DIVIDE"

        with m.State("DIVIDE"):
            with m.If(rest >= self.shape_spans):
                m.d.sync += [rest.eq(rest - self.shape_spans), self.width.eq(self.width + 1)]
            with m.Else():
                m.d.sync += [self.done.eq(1), self.allowed.eq(fits & (rest == 0))]
                m.next = "HOLD"

        with m.State("HOLD"):
            with m.If(self.start):
                m.d.sync += [rest.eq(self.drives), self.width.eq(0)]
                m.next = "DIVIDE"
