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

    Every kind writes anew what is ``bad`` and whose drive lives. CHECK, REPAIR and PATROL read
    every block once. What they cannot read is mended when the row is planned ``again``. Then the
    row is not compared, and it is not compared either if a data role is lost. Each copy of a row of
    copies is a role. One of them, ``source``, is read and written to the others. A row without
    redundancy is only read. MIGRATE reads what is ``migrated``, or works it out, and leaves the
    member as it is. ZERO reads nothing, and its one line is that of ``source``. Combinational.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    kind
        That of the walk.
    again
        The row has been planned before.
    mirrored
        The row's roles are copies.
    every
        All its roles.
    data
        How many of them are data.
    parities
        How many of them are parities.
    dead
        Roles whose drive is gone.
    bad
        Roles that must not be read.
    stale
        Those of them that are on stale drives.
    migrated
        The role whose member migrates, if any. The migration target is written beside this plan.
    plan
        With parities: `RowKind.RECOVER` of nothing joined, with ``dead`` and ``bad`` lost.
    possible, read, erased, use_parity, generate, write
        As in `hdl.stripe.planning.program.program`. A REBUILD or MIGRATE that is not possible makes
        unreadable what is on stale drives, so that what they hold is never taken for the row's. A
        RESYNC that is not possible does so with the live parities, which may never have been the
        row's.
    too_many
        More drives of the row are gone or stale than the level tolerates.
    withheld
        A walk is not possible because of that, and does nothing, as what is gone may come back, and
        what stale drives have may be right. Only SALVAGE goes on.
    checks
        Parities, or copies, are compared before anything is written.
    single
        Everything is written from the line of role ``source``.
    source
        That role.
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
                "migrated": In(ports),
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

        kind = self.kind
        self._resyncs = kind == WalkKind.RESYNC
        self._salvages = kind == WalkKind.SALVAGE
        self._rebuilds = (kind == WalkKind.REBUILD) | self._salvages
        self._zeroes = kind == WalkKind.ZERO
        self._migrates = kind == WalkKind.MIGRATE
        others = self._resyncs | self._rebuilds | self._zeroes | self._migrates
        self._looks = ~others & ~self.again
        compares = (kind == WalkKind.CHECK) | (kind == WalkKind.REPAIR)
        self._compares = compares & self._looks
        self._data_roles = (1 << self.data) - 1

        self._live = Signal(ports)
        self._good = Signal(ports)
        self._mend = Signal(ports)
        # Of a MIGRATE: the role that it is about, which is not written there; whether it can be
        # read.
        self._spared = Signal(ports)
        self._migratable = Signal()
        self._anew = Signal(ports)  # roles that are written anew

    def elaborate(self, platform) -> Module:
        m = Module()
        self._sort_roles(m)
        with m.If(self._zeroes):
            m.d.comb += [self.possible.eq(self._live.any()), self._anew.eq(self._live)]
        with m.Elif(self._migratable):
            m.d.comb += [self.possible.eq(1), self.read.eq(self._spared)]
        with m.Elif(self.mirrored):
            self._plan_copies(m)
        with m.Elif(self.parities == 0):
            whole = ~self._migrates & (self._good == self.every)
            m.d.comb += [
                self.possible.eq(
                    self._resyncs | Mux(self._rebuilds, ~self.stale.any(), whole)
                ),
                self.read.eq(Mux(self._looks, self._good, 0)),
            ]
        with m.Else():
            self._plan_parities(m)
        self._write(m)
        return m

    def _sort_roles(self, m: Module) -> None:
        """Which roles can be used for what."""
        live, good, spared, migrates = self._live, self._good, self._spared, self._migrates
        sources = Mux(self._zeroes, live, Mux(self._migratable, spared, good))
        m.d.comb += [
            spared.eq(Mux(migrates, self.migrated, 0)),
            self._migratable.eq(migrates & ~(self.bad & (self.stale | spared)).any()),
            live.eq(self.every & ~self.dead),
            good.eq(live & ~self.bad),
            self._mend.eq(live & self.bad),
            self.single.eq(self.mirrored | self._zeroes),
            self.source.eq(lowest_bit(m, sources, "source_role")),
        ]

    def _plan_copies(self, m: Module) -> None:
        """What is done with a row of copies."""
        live, good, mend, anew = self._live, self._good, self._mend, self._anew
        first = Signal.like(good)
        m.d.comb += [
            first.eq(good & -good),
            self.possible.eq(good.any()),
            self.checks.eq(self._compares & (mend == 0)),
            anew.eq(Mux(self._resyncs, live & ~first, mend)),
            self.read.eq(Mux(self._looks, good, Mux(anew.any(), first, 0))),
        ]

    def _plan_parities(self, m: Module) -> None:
        """What is done with a row that has parities."""
        live, mend, anew = self._live, self._mend, self._anew
        lost = self.bad | (self.dead & self._data_roles)
        m.d.comb += [
            self.possible.eq(self.plan.kind != PlanKind.IMPOSSIBLE),
            self.checks.eq(self._compares & (lost == 0)),
            self.generate.eq(Mux(self._resyncs | self.checks, live, mend) >> self.data),
            anew.eq(mend | Mux(self.checks, 0, self.generate << self.data)),
        ]
        with m.If(anew.any()):
            m.d.comb += [
                self.erased.eq(self.plan.erased),
                self.use_parity.eq(self.plan.use_parity),
                self.read.eq(self.plan.read_data | (self.plan.read_parity << self.data)),
            ]
        with m.If(self._looks):
            m.d.comb += self.read.eq(self._good)

    def _write(self, m: Module) -> None:
        """What is written, and what is made unreadable of a row that is past repair."""
        resyncs, rebuilds, migrates = self._resyncs, self._rebuilds, self._migrates
        # More are missing than there are parities, or other copies.
        missing = self.every & (self.dead | self.stale)
        m.d.comb += [
            self.too_many.eq(
                Mux(self.mirrored, missing == self.every, ones(missing) > self.parities)
            ),
            self.withheld.eq(
                ~self.possible
                & self.too_many
                & (resyncs | (rebuilds & ~self._salvages) | (migrates & self.stale.any()))
            ),
            self.write.eq(self._anew & ~self._spared),
        ]
        with m.If(~self.possible):
            m.d.comb += self.write.eq(Mux(rebuilds | migrates, self._live & self.stale, 0))
            with m.If(resyncs & ~self.mirrored):
                m.d.comb += self.write.eq(self._live & ~self._data_roles)
            with m.If(self.withheld):
                m.d.comb += self.write.eq(0)
