"""The planner: how one row is brought to its new contents with the fewest reads."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.parity.field import MAX_PARITIES
from hdl.stripe.interface import PlanKind, RowKind, plan, plan_request
from hdl.stripe.program import ones


class Planner(wiring.Component):
    """Answers each request with a plan that leaves the row consistent, or with IMPOSSIBLE.

    A strip may be joined although its drive is dead: its new contents are then kept by the parities
    alone. Dead drives are neither read nor written. Of the ways that the drives which are left
    allow, the one with the fewest reads is taken:

    - WRITE_ONLY when no parity is live, or the array has none: no reads;
    - FULL when all data strips are joined: no reads;
    - UPDATE when no joined strip is dead: the joined strips and the live parities;
    - RECONSTRUCT when every dead strip is joined: the strips that are not joined;
    - RECOVER_RECONSTRUCT otherwise: every live strip, and as many parities as strips are dead.

    On a tie RECONSTRUCT comes first (it also repairs parity), then UPDATE (one pass through the
    parity engine instead of two). RECOVER_RECONSTRUCT reads every live data strip, the joined ones
    too, because the old parity belongs to the old contents. `RowKind.RECOVER` reads everything that
    lets the joined strips and the dead ones be solved, from the lowest live parities; ``joined``
    may be empty. More lost data strips than live parities are IMPOSSIBLE, except that a row without
    parities is WRITE_ONLY whatever is dead: the caller sees in ``write_data`` what is written.

    Whether four lost blocks can be solved on more than 21 data drives depends on which they are
    (`sim.golden.parity.singular_patterns`); that is for the parity pass to find out.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request, plan
        One request at a time; its plan is offered 3 cycles after the request was taken.
    busy
        A request is being worked on.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(plan_request(config))),
                "plan": Out(stream.Signature(plan(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        request = self.request.payload
        answer = self.plan.payload

        recover = Signal()
        no_parity = Signal()
        data = Signal(6)
        strips = Signal(MAX_DRIVES)
        joined = Signal(MAX_DRIVES)
        dead = Signal(MAX_DRIVES)
        lost = Signal(MAX_DRIVES)
        live = Signal(MAX_PARITIES)

        joined_count = Signal(6)
        lost_count = Signal(6)
        live_count = Signal(3)

        # What a request says, with everything outside the row masked off.
        row_strips = Signal(MAX_DRIVES)
        row_parities = Signal(MAX_PARITIES)
        row_dead = Signal(MAX_DRIVES)
        m.d.comb += [
            row_strips.eq((1 << request.data) - 1),
            row_parities.eq((1 << request.parities) - 1),
            row_dead.eq(request.dead & row_strips),
        ]

        # Which ways there are, and which reads least.
        update_reads = Signal(7)
        reconstruct_reads = Signal(6)
        can_update = Signal()
        can_reconstruct = Signal()
        lowest_live = Signal(MAX_PARITIES)
        m.d.comb += [
            update_reads.eq(joined_count + live_count),
            reconstruct_reads.eq(data - joined_count),
            can_update.eq(~(joined & dead).any()),
            can_reconstruct.eq(~(dead & ~joined).any()),
        ]
        for parity in range(MAX_PARITIES):
            before = sum(live[:parity], start=Value.cast(0))
            m.d.comb += lowest_live[parity].eq(live[parity] & (before < lost_count))

        kind = Signal(PlanKind)
        with m.If(recover):
            m.d.comb += kind.eq(Mux(lost_count > live_count, PlanKind.IMPOSSIBLE, PlanKind.RECOVER))
        with m.Elif(no_parity):
            m.d.comb += kind.eq(PlanKind.WRITE_ONLY)
        with m.Elif(lost_count > live_count):
            m.d.comb += kind.eq(PlanKind.IMPOSSIBLE)
        with m.Elif(live_count == 0):
            m.d.comb += kind.eq(PlanKind.WRITE_ONLY)
        with m.Elif(joined == strips):
            m.d.comb += kind.eq(PlanKind.FULL)
        with m.Elif(can_reconstruct & ~(can_update & (update_reads < reconstruct_reads))):
            m.d.comb += kind.eq(PlanKind.RECONSTRUCT)
        with m.Elif(can_update & (can_reconstruct | (update_reads <= data))):
            m.d.comb += kind.eq(PlanKind.UPDATE)
        with m.Else():
            m.d.comb += kind.eq(PlanKind.RECOVER_RECONSTRUCT)

        with m.FSM(name="plan") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(1)
                with m.If(self.request.valid):
                    m.d.sync += [
                        recover.eq(request.kind == RowKind.RECOVER),
                        no_parity.eq(request.parities == 0),
                        data.eq(request.data),
                        strips.eq(row_strips),
                        joined.eq(request.joined & row_strips),
                        dead.eq(row_dead),
                        lost.eq(
                            row_dead
                            | Mux(request.kind == RowKind.RECOVER, request.joined & row_strips, 0)
                        ),
                        live.eq(row_parities & ~(request.dead >> request.data)),
                    ]
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.sync += [
                    joined_count.eq(ones(joined)),
                    lost_count.eq(ones(lost)),
                    live_count.eq(ones(live)),
                ]
                m.next = "DECIDE"
            with m.State("DECIDE"):
                writes = [
                    answer.write_data.eq(joined & ~dead),
                    answer.write_parity.eq(live),
                ]
                m.d.sync += [answer.as_value().eq(0), answer.kind.eq(kind)]
                with m.Switch(kind):
                    with m.Case(PlanKind.WRITE_ONLY, PlanKind.FULL):
                        m.d.sync += writes
                    with m.Case(PlanKind.UPDATE):
                        m.d.sync += writes
                        m.d.sync += [answer.read_data.eq(joined), answer.read_parity.eq(live)]
                    with m.Case(PlanKind.RECONSTRUCT):
                        m.d.sync += writes
                        m.d.sync += answer.read_data.eq(strips & ~joined)
                    with m.Case(PlanKind.RECOVER_RECONSTRUCT, PlanKind.RECOVER):
                        m.d.sync += [
                            answer.read_data.eq(strips & ~lost),
                            answer.read_parity.eq(lowest_live),
                            answer.use_parity.eq(lowest_live),
                            answer.erased.eq(lost),
                        ]
                        with m.If(~recover):
                            m.d.sync += writes
                m.next = "OFFER"
            with m.State("OFFER"):
                m.d.comb += self.plan.valid.eq(1)
                with m.If(self.plan.ready):
                    m.next = "TAKE"

        m.d.comb += self.busy.eq(~fsm.ongoing("TAKE") | self.request.valid)
        return m
