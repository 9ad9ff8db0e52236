"""What is read, worked out and written of a row that is walked in the background."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.walk import WalkKind
from hdl.kit.bits import ones
from hdl.kit.pick import lowest_bit
from hdl.stripe.planning.plan import PlanKind, plan
from hdl.stripe.planning.program import role_bits


class WalkPlan(wiring.Component):
    """Turns a plan that recovers all that is lost into what the kind of walk asks for.

    What is in ``bad`` and whose drive lives is written anew by every kind. CHECK, REPAIR and PATROL
    read every block once, and what they cannot read is mended when the row is planned ``again``;
    then the row is not compared, nor is it if a data role is lost. Of a row of copies each is a
    role, and one of them, ``source``, is read and written to the others. A row without redundancy
    is only read. COPY reads what is ``copied``, or works it out, and leaves the member as it is.
    ZERO reads nothing; its one line is that of ``source``. Combinational.

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
    copied
        The role whose member is being copied, if any. Its copy is written beside this plan.
    plan
        With parities: `RowKind.RECOVER` of nothing joined, with ``dead`` and ``bad`` lost.
    possible, read, erased, use_parity, generate, write
        As in `hdl.stripe.planning.program.program`. A REBUILD or COPY that is not possible makes
        unreadable what is on stale drives, so that what they hold is never taken for the row's; and
        a RESYNC the live parities, which may never have been the row's.
    too_many
        More drives of the row are gone or stale than the level tolerates.
    withheld
        A walk is not possible because of that, and does nothing: what is gone may come back, and
        what stale drives have may be right. Only SALVAGE goes on.
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
                "copied": In(ports),
                "plan": In(plan(config)),
                "possible": Out(1),
                "too_many": Out(1),
                "withheld": Out(1),
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
        salvages = self.kind == WalkKind.SALVAGE
        rebuilds = (self.kind == WalkKind.REBUILD) | salvages
        zeroes = self.kind == WalkKind.ZERO
        copies = self.kind == WalkKind.COPY
        looks = ~(resyncs | rebuilds | zeroes | copies) & ~self.again
        compares = (self.kind == WalkKind.CHECK) | (self.kind == WalkKind.REPAIR)
        data_roles = (1 << self.data) - 1

        live = Signal(ports)
        good = Signal(ports)
        mend = Signal(ports)
        # Of a COPY: the role that it is about, which is not written there; whether it can be read.
        spared = Signal(ports)
        copyable = Signal()
        anew = Signal(ports)
        m.d.comb += [
            spared.eq(Mux(copies, self.copied, 0)),
            copyable.eq(copies & ~(self.bad & (self.stale | spared)).any()),
            live.eq(self.every & ~self.dead),
            good.eq(live & ~self.bad),
            mend.eq(live & self.bad),
            self.single.eq(self.mirrored | zeroes),
            self.source.eq(
                lowest_bit(m, Mux(zeroes, live, Mux(copyable, spared, good)), "source_role")
            ),
        ]
        with m.If(zeroes):
            m.d.comb += [self.possible.eq(live.any()), anew.eq(live)]
        with m.Elif(copyable):
            m.d.comb += [self.possible.eq(1), self.read.eq(spared)]
        with m.Elif(self.mirrored):
            first = Signal(ports)
            m.d.comb += [
                first.eq(good & -good),
                self.possible.eq(good.any()),
                self.checks.eq(compares & looks & (mend == 0)),
                anew.eq(Mux(resyncs, live & ~first, mend)),
                self.read.eq(Mux(looks, good, Mux(anew.any(), first, 0))),
            ]
        with m.Elif(self.parities == 0):
            m.d.comb += [
                self.possible.eq(
                    resyncs | Mux(rebuilds, ~self.stale.any(), ~copies & (good == self.every))
                ),
                self.read.eq(Mux(looks, good, 0)),
            ]
        with m.Else():
            m.d.comb += [
                self.possible.eq(self.plan.kind != PlanKind.IMPOSSIBLE),
                self.checks.eq(compares & looks & ((self.bad | (self.dead & data_roles)) == 0)),
                self.generate.eq(Mux(resyncs | self.checks, live, mend) >> self.data),
                anew.eq(mend | Mux(self.checks, 0, self.generate << self.data)),
            ]
            with m.If(anew.any()):
                m.d.comb += [
                    self.erased.eq(self.plan.erased),
                    self.use_parity.eq(self.plan.use_parity),
                    self.read.eq(self.plan.read_data | (self.plan.read_parity << self.data)),
                ]
            with m.If(looks):
                m.d.comb += self.read.eq(good)
        # More are missing than there are parities, or other copies.
        missing = self.every & (self.dead | self.stale)
        m.d.comb += [
            self.too_many.eq(
                Mux(self.mirrored, missing == self.every, ones(missing) > self.parities)
            ),
            self.withheld.eq(
                ~self.possible
                & self.too_many
                & (resyncs | (rebuilds & ~salvages) | (copies & self.stale.any()))
            ),
            self.write.eq(anew & ~spared),
        ]
        with m.If(~self.possible):
            m.d.comb += self.write.eq(Mux(rebuilds | copies, live & self.stale, 0))
            with m.If(resyncs & ~self.mirrored):
                m.d.comb += self.write.eq(live & ~data_roles)
            with m.If(self.withheld):
                m.d.comb += self.write.eq(0)
        return m
