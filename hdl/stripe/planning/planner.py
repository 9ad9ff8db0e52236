"""The planner: how one row is brought to its new contents with the fewest reads."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.flow.row import RowKind
from hdl.kit.bits import ones
from hdl.parity.field import MAX_PARITIES
from hdl.stripe.planning.plan import PlanKind, plan, plan_request


class Planner(wiring.Component):
    """Answers each request with a plan that leaves the row consistent, or with IMPOSSIBLE.

    Of the drives that are not as they should be, the dead ones are neither read nor written. What
    is bad cannot be read, but it can be written, and is then as good as any; a stale drive, too, is
    written, but counts for nothing. *Lost* are data strips that are dead or bad. A strip may be
    joined although it is lost; on a dead or stale drive its new contents are then kept by the
    parities alone. Of the ways that the drives which are left allow, the one with the fewest reads
    is taken:

    - WRITE_ONLY when no parity is live, or the array has none: no reads;
    - FULL when all data strips are joined: no reads;
    - UPDATE when no joined strip is lost, no live parity is bad and the row is not ``unsynced``:
      the joined strips and the live parities;
    - RECONSTRUCT when every lost strip is joined: the strips that are not joined;
    - RECOVER_RECONSTRUCT otherwise: every strip that is not lost, and as many parities as strips
      are lost.

    All ways but UPDATE generate every live parity from data, so afterwards the row is consistent
    whatever its parities were before.

    On a tie RECONSTRUCT comes first (it also repairs parity), then UPDATE (one pass through the
    parity engine instead of two). RECOVER_RECONSTRUCT reads every strip that can be read, the
    joined ones too, because the old parity belongs to the old contents. `RowKind.RECOVER` reads
    everything that lets the joined strips and the lost ones be solved, from the lowest parities
    that can be read; ``joined`` may be empty. More strips to solve than such parities are
    IMPOSSIBLE, and so is a write after which more strips could not be read than parities that count
    are live; except that a row without parities is WRITE_ONLY whatever is dead: the caller sees in
    ``write_data`` what is written.

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
        unsynced = Signal()
        data = Signal(6)
        strips = Signal(MAX_DRIVES)
        joined = Signal(MAX_DRIVES)
        dead = Signal(MAX_DRIVES)
        # Data that cannot be read; data that cannot be read after the write either.
        lost = Signal(MAX_DRIVES)
        open_strips = Signal(MAX_DRIVES)
        # Parities to write; of these, those that can be read, and those that then count.
        live = Signal(MAX_PARITIES)
        usable = Signal(MAX_PARITIES)
        kept = Signal(MAX_PARITIES)

        joined_count = Signal(6)
        lost_count = Signal(6)
        open_count = Signal(6)
        usable_count = Signal(3)
        kept_count = Signal(3)

        # What a request says, with everything outside the row masked off.
        row_strips = Signal(MAX_DRIVES)
        row_parities = Signal(MAX_PARITIES)
        row_live = Signal(MAX_PARITIES)
        row_lost = Signal(MAX_DRIVES)
        row_joined = Signal(MAX_DRIVES)
        m.d.comb += [
            row_strips.eq((1 << request.data) - 1),
            row_parities.eq((1 << request.parities) - 1),
            row_live.eq(row_parities & ~(request.dead >> request.data)),
            row_lost.eq((request.dead | request.bad) & row_strips),
            row_joined.eq(request.joined & row_strips),
        ]

        # Which ways there are, and which reads least.
        update_reads = Signal(7)
        reconstruct_reads = Signal(6)
        can_update = Signal()
        can_reconstruct = Signal()
        can_recover = Signal()
        lowest_usable = Signal(MAX_PARITIES)
        m.d.comb += [
            # It is taken only if all live parities can be read.
            update_reads.eq(joined_count + usable_count),
            reconstruct_reads.eq(data - joined_count),
            can_update.eq(~unsynced & ~(joined & lost).any() & (usable == live)),
            can_reconstruct.eq(~(lost & ~joined).any()),
            can_recover.eq(lost_count <= usable_count),
        ]
        for parity in range(MAX_PARITIES):
            before = sum(usable[:parity], start=Value.cast(0))
            m.d.comb += lowest_usable[parity].eq(usable[parity] & (before < lost_count))

        kind = Signal(PlanKind)
        with m.If(recover):
            m.d.comb += kind.eq(Mux(can_recover, PlanKind.RECOVER, PlanKind.IMPOSSIBLE))
        with m.Elif(no_parity):
            m.d.comb += kind.eq(PlanKind.WRITE_ONLY)
        with m.Elif(open_count > kept_count):
            m.d.comb += kind.eq(PlanKind.IMPOSSIBLE)
        with m.Elif(live == 0):
            m.d.comb += kind.eq(PlanKind.WRITE_ONLY)
        with m.Elif(joined == strips):
            m.d.comb += kind.eq(PlanKind.FULL)
        with m.Elif(can_reconstruct & ~(can_update & (update_reads < reconstruct_reads))):
            m.d.comb += kind.eq(PlanKind.RECONSTRUCT)
        with m.Elif(can_update & (can_reconstruct | (update_reads <= data))):
            m.d.comb += kind.eq(PlanKind.UPDATE)
        with m.Elif(can_recover):
            m.d.comb += kind.eq(PlanKind.RECOVER_RECONSTRUCT)
        with m.Else():
            m.d.comb += kind.eq(PlanKind.IMPOSSIBLE)

        with m.FSM(name="plan") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(1)
                with m.If(self.request.valid):
                    m.d.sync += [
                        recover.eq(request.kind == RowKind.RECOVER),
                        no_parity.eq(request.parities == 0),
                        unsynced.eq(request.unsynced),
                        data.eq(request.data),
                        strips.eq(row_strips),
                        joined.eq(row_joined),
                        dead.eq(request.dead & row_strips),
                        lost.eq(
                            row_lost | Mux(request.kind == RowKind.RECOVER, row_joined, 0)
                        ),
                        open_strips.eq(
                            ((request.dead | request.stale) & row_strips)
                            | (row_lost & ~row_joined)
                        ),
                        live.eq(row_live),
                        usable.eq(row_live & ~(request.bad >> request.data)),
                        kept.eq(row_live & ~(request.stale >> request.data)),
                    ]
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.sync += [
                    joined_count.eq(ones(joined)),
                    lost_count.eq(ones(lost)),
                    open_count.eq(ones(open_strips)),
                    usable_count.eq(ones(usable)),
                    kept_count.eq(ones(kept)),
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
                            answer.read_parity.eq(lowest_usable),
                            answer.use_parity.eq(lowest_usable),
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
