"""What is read, worked out and written of a row that is walked in the background."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.background.interface import WalkKind
from hdl.config import Config
from hdl.stripe.interface import PlanKind, plan
from hdl.stripe.program import lowest_bit, role_bits


class WalkPlan(wiring.Component):
    """Turns a plan that recovers all that is lost into what the kind of walk asks for.

    What is in ``bad`` and whose drive lives is written anew by every kind. CHECK, REPAIR and PATROL
    read every block once, and what they cannot read is mended when the row is planned ``again``;
    then the row is not compared, nor is it if a data role is lost. Of a row of copies each is a
    role, and one of them, ``source``, is read and written to the others. A row without redundancy
    is only read. ZERO reads nothing; its one line is that of ``source``. Combinational.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    kind, again
        Of the walk; the row has been planned before.
    mirrored, every, data, parities
        The row's roles are copies; all its roles; how many are data, the others being parities, of
        which there are so many.
    dead, bad, stale
        Roles whose drive is gone, those that must not be read, and those of them on stale drives.
    plan
        With parities: `RowKind.RECOVER` of nothing joined, with ``dead`` and ``bad`` lost.
    possible, read, erased, use_parity, generate, write
        As in `hdl.stripe.program.program`. A REBUILD that is not possible makes unreadable what is
        on stale drives, so that what they hold is never taken for the row's.
    checks
        Parities, or copies, are compared before anything is written.
    single, source
        Everything is written from the line of role ``source``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        ports = config.ports
        super().__init__(
            {
                "kind": In(WalkKind),
                "again": In(1),
                "mirrored": In(1),
                "every": In(ports),
                "data": In(range(ports + 1)),
                "parities": In(3),
                "dead": In(ports),
                "bad": In(ports),
                "stale": In(ports),
                "plan": In(plan(config)),
                "possible": Out(1),
                "read": Out(ports),
                "erased": Out(ports),
                "use_parity": Out(4),
                "generate": Out(4),
                "write": Out(ports),
                "checks": Out(1),
                "single": Out(1),
                "source": Out(role_bits(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        ports = self._config.ports
        resyncs = self.kind == WalkKind.RESYNC
        rebuilds = self.kind == WalkKind.REBUILD
        zeroes = self.kind == WalkKind.ZERO
        looks = ~(resyncs | rebuilds | zeroes) & ~self.again
        compares = (self.kind == WalkKind.CHECK) | (self.kind == WalkKind.REPAIR)
        data_roles = (1 << self.data) - 1

        live = Signal(ports)
        good = Signal(ports)
        mend = Signal(ports)
        m.d.comb += [
            live.eq(self.every & ~self.dead),
            good.eq(live & ~self.bad),
            mend.eq(live & self.bad),
            self.single.eq(self.mirrored),
        ]
        with m.If(zeroes):
            m.d.comb += [
                self.possible.eq(live.any()),
                self.single.eq(1),
                self.source.eq(lowest_bit(m, live, "live_role")),
                self.write.eq(live),
            ]
        with m.Elif(self.mirrored):
            first = Signal(ports)
            m.d.comb += [
                first.eq(good & -good),
                self.possible.eq(good.any()),
                self.source.eq(lowest_bit(m, good, "good_role")),
                self.checks.eq(compares & looks & (mend == 0)),
                self.write.eq(Mux(resyncs, live & ~first, mend)),
                self.read.eq(Mux(looks, good, Mux(self.write.any(), first, 0))),
            ]
        with m.Elif(self.parities == 0):
            m.d.comb += [
                self.possible.eq(resyncs | rebuilds | (good == self.every)),
                self.read.eq(Mux(looks, good, 0)),
            ]
        with m.Else():
            m.d.comb += [
                self.possible.eq(self.plan.kind != PlanKind.IMPOSSIBLE),
                self.checks.eq(compares & looks & ((self.bad | (self.dead & data_roles)) == 0)),
                self.generate.eq(Mux(resyncs | self.checks, live, mend) >> self.data),
                self.write.eq(mend | Mux(self.checks, 0, self.generate << self.data)),
            ]
            with m.If(self.write.any()):
                m.d.comb += [
                    self.erased.eq(self.plan.erased),
                    self.use_parity.eq(self.plan.use_parity),
                    self.read.eq(self.plan.read_data | (self.plan.read_parity << self.data)),
                ]
            with m.If(looks):
                m.d.comb += self.read.eq(good)
        with m.If(~self.possible):
            m.d.comb += self.write.eq(Mux(rebuilds, live & self.stale, 0))
        return m
