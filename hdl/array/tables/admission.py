"""Which numbers of drives, spans and copies, and which rotations a RAID level allows."""

from amaranth.hdl import Const, Module, Mux, Signal
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


class Admission(wiring.Component):
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

    ``copies`` 0 is the default in brackets, ``spans`` 0 counts as 1. An odd number of drives at
    level 10 is RAID 1E. Spans must divide the drives. ``rotation`` is 0 without parity, and of
    DDF's only at level 6.

    Parameters
    ----------
    config
        Sizes; a level with more parities than ``config.parities`` is refused.

    Ports
    -----
    start
        Pulse: begin; the inputs stay stable until ``done``.
    level, strip_shift, copies, spans, rotation, drives
        As asked for; ``drives`` over all spans.
    done, allowed
        ``done`` at most 34 cycles after ``start``; ``allowed`` and the outputs below hold with it.
    width, data, parities, shape_copies, shape_spans, rotate
        As in `hdl.flow.geometry.geometry`.
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
        mirrors = Signal()
        known = Signal()
        least = Signal(WIDTH_BITS)
        default = Signal(WIDTH_BITS)
        rest = Signal(WIDTH_BITS)
        rotation = data.View(RotationBits, self.rotation)
        rotates = Signal()

        m.d.comb += [known.eq(1), default.eq(1)]
        with m.Switch(self.level):
            with m.Case(Level.RAID0.value):
                m.d.comb += least.eq(2)
            with m.Case(Level.RAID1.value):
                m.d.comb += [least.eq(2), mirrors.eq(1), default.eq(self.drives)]
            with m.Case(Level.RAID5.value):
                m.d.comb += [least.eq(3), self.parities.eq(1)]
            with m.Case(Level.RAID6.value):
                m.d.comb += [least.eq(4), self.parities.eq(2)]
            with m.Case(Level.RAIDTP.value):
                m.d.comb += [least.eq(5), self.parities.eq(3)]
            with m.Case(Level.RAID10.value):
                m.d.comb += [least.eq(2), mirrors.eq(1), default.eq(Const(2))]
            with m.Case(Level.JBOD.value):
                m.d.comb += least.eq(1)
            with m.Default():
                m.d.comb += known.eq(0)

        m.d.comb += [
            self.shape_copies.eq(Mux(self.copies == 0, default, self.copies)),
            self.shape_spans.eq(Mux(self.spans == 0, 1, self.spans)),
            self.data.eq(self.width - self.parities),
            self.strips.eq(
                self.drives
                - Mux(self.parities[0], self.shape_spans, 0)
                - Mux(self.parities[1], self.shape_spans << 1, 0)
            ),
            self.rotate.eq((self.parities > 0) & ~rotation.fixed),
        ]
        with m.Switch(self.rotation):
            with m.Case(Rotation.LEFT_SYMMETRIC.value):
                m.d.comb += rotates.eq(1)
            with m.Case(*DDF):
                m.d.comb += rotates.eq(self.level == Level.RAID6.value)
            with m.Case(*(one.value for one in Rotation if one.value not in DDF)):
                m.d.comb += rotates.eq(self.parities > 0)
        copies_fit = Mux(
            mirrors,
            (self.shape_copies >= 2) & (self.shape_copies <= self.drives),
            self.shape_copies == 1,
        )
        fits = (
            known
            & (self.parities <= self._config.parities)
            & (self.strip_shift <= MAX_STRIP_SHIFT)
            & (self.width >= least)
            & ((self.level != Level.JBOD.value) | (self.drives == 1))
            & ((self.parities > 0) | (self.shape_spans == 1))
            & copies_fit
            & rotates
        )

        # Drives / spans by repeated subtraction.
        with m.FSM(name="admit"):
            with m.State("REST"):
                m.d.sync += [rest.eq(self.drives), self.width.eq(0)]
                with m.If(self.start):
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                with m.If(rest >= self.shape_spans):
                    m.d.sync += [rest.eq(rest - self.shape_spans), self.width.eq(self.width + 1)]
                with m.Else():
                    m.d.comb += [self.done.eq(1), self.allowed.eq(fits & (rest == 0))]
                    m.next = "HOLD"
            with m.State("HOLD"):
                with m.If(self.start):
                    m.d.sync += [rest.eq(self.drives), self.width.eq(0)]
                    m.next = "DIVIDE"
        return m
