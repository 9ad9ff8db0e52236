"""What follows when parities or copies of a row have been compared."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.walk import WalkKind
from hdl.kit.pick import lowest_bit
from hdl.stripe.planning.program import program, role_bits
from hdl.stripe.rows.progress import Phase, progress


class Suspicion(wiring.Component):
    """Finds out which role is wrong, a parity pass after the other. Combinational.

    This takes at least two parities, all of them live. If one syndrome is not zero, that parity is
    at fault itself. If more are not, each data role in turn is the ``suspect`` of a pass
    (`PassSteps`) until one explains all syndromes. A fault that no single role explains is
    nobody's, and so is every fault with one parity. Copies are compared with the first one in turn,
    which is taken for right. REPAIR then makes anew what is wrong. The row is planned again with
    the wrong role in ``bad``, or with all live parities if the fault is nobody's.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    program
        The row's program.
    before
        The row's progress after the pass or, for copies, after the reads.
    after
        What becomes of that progress.
    compare
        Another pass follows, about ``after.suspect``.
    again
        The row is to be planned again. If no pass follows either, it is done.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "program": In(program(config)),
                "before": In(progress(config)),
                "after": Out(progress(config)),
                "compare": Out(1),
                "again": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        ports = self._config.ports
        todo, before, after = self.program, self.before, self.after
        nonzero = before.nonzero.any()
        first = before.phase != Phase.COMPARE
        suspect = Signal(role_bits(self._config))
        rest = Signal(ports)
        more = Signal()
        found = Signal()
        wrong = Signal(ports)
        m.d.comb += [
            found.eq(before.found),
            wrong.eq(before.wrong),
            after.eq(before),
            after.found.eq(found),
            after.wrong.eq(wrong),
            after.suspect.eq(suspect),
        ]

        with m.If(todo.single):
            last = Mux(first, todo.source, before.suspect)
            m.d.comb += [
                rest.eq(todo.read & ~((2 << last) - 1)),
                suspect.eq(lowest_bit(m, rest, "next_copy")),
                self.compare.eq(rest.any()),
            ]
            with m.If(~first & nonzero):
                m.d.comb += [
                    found.eq(1),
                    wrong.eq(before.wrong | (1 << before.suspect)),
                ]
        with m.Else():
            alone = (before.nonzero & (before.nonzero - 1)) == 0
            locates = (todo.parities > 1) & (todo.generate == (1 << todo.parities) - 1)
            m.d.comb += [
                suspect.eq(Mux(first, 0, before.suspect + 1)),
                more.eq(first | (before.suspect + 1 != todo.data)),
            ]
            with m.If(first):
                m.d.comb += [
                    found.eq(nonzero),
                    self.compare.eq(nonzero & locates & ~alone),
                ]
                with m.If(locates & alone):
                    m.d.comb += wrong.eq(before.nonzero << todo.data)
            with m.Elif(nonzero):
                m.d.comb += self.compare.eq(more)
            with m.Else():
                m.d.comb += wrong.eq(1 << before.suspect)

        repairs = todo.walk.kind == WalkKind.REPAIR
        with m.If(~self.compare & found & repairs):
            m.d.comb += [
                self.again.eq(1),
                after.bad.eq(
                    before.bad | Mux(wrong.any(), wrong, todo.generate << todo.data)
                ),
            ]
        return m
