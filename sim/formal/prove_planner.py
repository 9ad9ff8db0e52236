"""Every plan is one that works with the drives that are left, and no other way reads less.

Rows have up to eight drives. The masks have their full width.
"""

from unittest import mock

from amaranth.hdl import Assert, Assume, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped

from hdl.config import small
from hdl.flow.row import RowKind
from hdl.stripe.planning import planner as planner_module
from hdl.stripe.planning.plan import PlanKind, plan_request
from hdl.stripe.planning.planner import Planner
from sim.formal.runner import Proof
from sim.formal.stream_rules import StreamRules

WIDTH = 8
PARITIES = 4


class PlannerSpecification(wiring.Component):
    """The conditions on a plan, from the request alone."""

    def __init__(self, planner: Planner):
        self._planner = planner
        super().__init__(planner.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.planner = planner = self._planner
        connect(m, flipped(self.request), planner.request)
        connect(m, planner.plan, flipped(self.plan))
        m.submodules.request_rules = asked = StreamRules(planner.request, role=Assume)
        m.submodules.plan_rules = answered = StreamRules(planner.plan, role=Assert)

        asking = planner.request.payload
        m.d.comb += [
            Assume(asking.data + asking.parities <= WIDTH),
            Assume(asking.parities <= PARITIES),
            Assume(asking.data != 0),
            Assume(asking.joined < 1 << WIDTH),
            Assume((asking.dead | asking.bad) < 1 << WIDTH),
            Assume((asking.bad & asking.dead) == 0),
            Assume((asking.stale & ~asking.bad) == 0),
        ]
        request = Signal(plan_request(small()))
        waiting = Signal()
        with m.If(asked.transfer):
            m.d.comb += Assert(~waiting)
            m.d.sync += [request.eq(asking), waiting.eq(1)]
        with m.If(answered.transfer):
            m.d.comb += Assert(waiting)
            m.d.sync += waiting.eq(0)

        plan = planner.plan.payload
        strips = Signal(WIDTH)
        parities, live, usable = Signal(PARITIES), Signal(PARITIES), Signal(PARITIES)
        joined = Signal(WIDTH)
        dead = Signal(WIDTH)
        unreadable = Signal(WIDTH)
        lost = Signal(WIDTH)
        owed, held = Signal(WIDTH), Signal(PARITIES)
        recover = request.kind == RowKind.RECOVER
        m.d.comb += [
            strips.eq((1 << request.data) - 1),
            parities.eq((1 << request.parities) - 1),
            live.eq(parities & ~(request.dead >> request.data)),
            usable.eq(live & ~(request.bad >> request.data)),
            joined.eq(request.joined & strips),
            dead.eq(request.dead & strips),
            unreadable.eq((request.dead | request.bad) & strips),
            lost.eq(Mux(recover, joined | unreadable, unreadable)),
            # What no drive has of the data once the write is done, and the parities that have it.
            owed.eq(((request.dead | request.stale) & strips) | (unreadable & ~joined)),
            held.eq(live & ~(request.stale >> request.data)),
        ]
        reads = _count(plan.read_data[:WIDTH]) + _count(plan.read_parity)
        unsolvable = _count(lost) > _count(usable)
        complete = (unreadable & ~joined) == 0
        refused = (_count(owed) > _count(held)) | (~complete & unsolvable)
        is_kind = {kind: plan.kind == kind for kind in PlanKind}
        impossible = is_kind[PlanKind.IMPOSSIBLE]
        solves = is_kind[PlanKind.RECOVER] | is_kind[PlanKind.RECOVER_RECONSTRUCT]
        with m.If(planner.plan.valid):
            m.d.comb += [
                # Only drives that are there, and only what can be read.
                Assert((plan.write_data & ~(strips & ~dead)) == 0),
                Assert((plan.read_data & ~(strips & ~unreadable)) == 0),
                Assert((plan.write_parity & ~live) == 0),
                Assert((plan.read_parity & ~usable) == 0),
                # Refused exactly when the level does not tolerate it.
                Assert(impossible == Mux(recover, unsolvable, refused & (request.parities != 0))),
                Assert(is_kind[PlanKind.RECOVER] == (recover & ~unsolvable)),
            ]
            with m.If(~recover & ~impossible):
                m.d.comb += [
                    Assert(plan.write_data == joined & ~dead),
                    Assert(plan.write_parity == live),
                ]
            with m.Else():
                m.d.comb += [Assert(plan.write_data == 0), Assert(plan.write_parity == 0)]
            with m.If(solves):
                m.d.comb += [
                    Assert(plan.erased == lost),
                    Assert(plan.read_data == strips & ~lost),
                    Assert(recover | ~complete),
                    Assert(plan.read_parity == plan.use_parity),
                    Assert(_count(plan.use_parity) == _count(lost)),
                ]
            with m.Else():
                m.d.comb += [Assert(plan.erased == 0), Assert(plan.use_parity == 0)]
            with m.Switch(plan.kind):
                with m.Case(PlanKind.WRITE_ONLY):
                    m.d.comb += Assert(live == 0)
                with m.Case(PlanKind.FULL):
                    m.d.comb += Assert(joined == strips)
                with m.Case(PlanKind.UPDATE):
                    m.d.comb += [
                        Assert(plan.read_data == joined),
                        Assert(plan.read_parity == live),
                        Assert(~request.unsynced),
                    ]
                with m.Case(PlanKind.RECONSTRUCT):
                    m.d.comb += Assert(plan.read_data | joined == strips)
            with m.If(~recover & ~impossible & (live != 0)):
                with m.If(((joined & unreadable) == 0) & (usable == live) & ~request.unsynced):
                    m.d.comb += Assert(reads <= _count(joined) + _count(live))
                with m.If(complete):
                    m.d.comb += Assert(reads <= request.data - _count(joined))
                m.d.comb += Assert(reads <= request.data)
        return m


def _count(mask):
    return sum(mask[1:], start=mask[0])


class PatchedPlanner(Planner):
    """A mutant: the lowest bit of a mask is not counted."""

    def elaborate(self, platform) -> Module:
        count = planner_module.ones
        with mock.patch.object(planner_module, "ones", lambda mask: count(mask[1:])):
            return super().elaborate(platform)


class TrustingPlanner(Planner):
    """A mutant: every row is taken for consistent."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.planner = planner = Planner(config=self._config)
        connect(m, flipped(self.request), planner.request)
        connect(m, planner.plan, flipped(self.plan))
        m.d.comb += [planner.request.payload.unsynced.eq(0), self.busy.eq(planner.busy)]
        return m


PROOFS = [
    Proof(
        name="planner",
        build=lambda: PlannerSpecification(Planner(config=small())),
        # A request takes 5 cycles and leaves nothing behind that the next one does not overwrite.
        mode="bmc",
        depth=8,
        mutants=[
            lambda: PlannerSpecification(PatchedPlanner(config=small())),
            lambda: PlannerSpecification(TrustingPlanner(config=small())),
        ],
    )
]
