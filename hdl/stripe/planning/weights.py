"""Steps of a parity pass in DDF layouts, where Q weighs a block by its place in the span."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.geometry import WIDTH_BITS, RotationBits
from hdl.flow.parity_pass import StepKind, step

PARITIES = 2
"""DDF's layouts are those of RAID 6."""


class Weights(wiring.Component):
    """Names the roles of a step as the parity engine must weigh them.

    In all layouts but DDF's a block weighs g**role in Q, and a step passes as it is. In DDF's it
    weighs g**place, with place = (``shift`` + role) mod width. So the roles of data, and the mask
    of those lost, are turned by ``shift``. Turning may bring the second of two lost roles before
    the first, and then the outputs of a recovery change places too. In DDF_N_CONTINUE the first
    parity role is Q and the second P. Combinational.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    plain
        A step by roles.
    weighed
        The same step as the engine takes it.
    recovering
        The step belongs to a pass that recovers.
    erased
        The data roles lost.
    shift, data, rotation
        Those of the row (`hdl.stripe.planning.program.program`).
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "plain": In(step(config)),
                "recovering": In(1),
                "erased": In(config.ports),
                "shift": In(5),
                "data": In(range(config.ports + 1)),
                "rotation": In(RotationBits),
                "weighed": Out(step(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        ports = self._config.ports
        plain, weighed = self.plain, self.weighed
        ddf = self.rotation.ddf
        swapped = ddf & ~self.rotation.ascending

        width = Signal(WIDTH_BITS)
        place = Signal(WIDTH_BITS)
        before = Signal(WIDTH_BITS)
        ahead = Signal(ports)
        behind = Signal(ports)
        crossed = Signal()
        m.d.comb += [
            width.eq(self.data + PARITIES),
            place.eq(self.shift + plain.role),
            before.eq(width - self.shift),
            # Lost roles that stay before the end of the span, and those that go round it.
            ahead.eq((self.erased << self.shift[: bits_for_count(ports)]) & ((1 << width) - 1)),
            behind.eq(self.erased >> before),
            crossed.eq(ahead.any() & behind.any()),
            weighed.eq(plain),
        ]
        with m.If(ddf):
            with m.Switch(plain.kind):
                with m.Case(StepKind.RECOVER):
                    m.d.comb += weighed.erased.eq(ahead | behind)
                    with m.If(swapped):
                        m.d.comb += weighed.parities.eq(
                            plain.parities[0] << 1 | plain.parities[1]
                        )
                with m.Case(StepKind.DATA):
                    m.d.comb += weighed.role.eq(Mux(place >= width, place - width, place))
                with m.Case(StepKind.PARITY):
                    m.d.comb += weighed.role.eq(plain.role ^ swapped)
                with m.Case(StepKind.OUTPUT):
                    m.d.comb += weighed.role.eq(
                        plain.role ^ Mux(self.recovering, crossed, swapped)
                    )
        return m
