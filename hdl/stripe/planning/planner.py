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

    Dead drives are neither read nor written. What is bad cannot be read, but it can be written, and
    is then as good as any. A stale drive is written too, but counts for nothing. Data strips that
    are dead or bad are *lost*. A strip may be joined although it is lost. If its drive is dead or
    stale, only the parities keep its new contents. Of the ways that the remaining drives allow, the
    planner takes the one with the fewest reads:

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
    request
        What is known of a row. One request at a time.
    plan
        The plan for the request, 3 cycles after that was taken.
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

        # What a request says, with everything outside the row masked off.
        self._recover = Signal()
        self._no_parity = Signal()
        self._unsynced = Signal()
        self._data = Signal(6)
        self._strips = Signal(MAX_DRIVES)
        self._joined = Signal(MAX_DRIVES)
        self._dead = Signal(MAX_DRIVES)
        # Data that cannot be read; data that cannot be read after the write either.
        self._lost = Signal(MAX_DRIVES)
        self._open_strips = Signal(MAX_DRIVES)
        # Parities to write; of these, those that can be read, and those that then count.
        self._live = Signal(MAX_PARITIES)
        self._usable = Signal(MAX_PARITIES)
        self._kept = Signal(MAX_PARITIES)

        self._joined_count = Signal(6)
        self._lost_count = Signal(6)
        self._open_count = Signal(6)
        self._usable_count = Signal(3)
        self._kept_count = Signal(3)

        self._lowest_usable = Signal(MAX_PARITIES)  # as many as strips are lost
        self._kind = Signal(PlanKind)

    def elaborate(self, platform) -> Module:
        m = Module()
        self._choose_parities(m)
        self._choose_kind(m)
        with m.FSM(name="plan") as fsm:
            self._take(m)
            self._count(m)
            self._decide(m)
            with m.State("OFFER"):
                m.d.comb += self.plan.valid.eq(1)
                with m.If(self.plan.ready):
                    m.next = "TAKE"
        m.d.comb += self.busy.eq(~fsm.ongoing("TAKE") | self.request.valid)
        return m

    def _choose_parities(self, m: Module) -> None:
        """The parities that recovery reads."""
        usable = self._usable
        for parity in range(MAX_PARITIES):
            before = sum(usable[:parity], start=Value.cast(0))
            m.d.comb += self._lowest_usable[parity].eq(
                usable[parity] & (before < self._lost_count)
            )

    def _choose_kind(self, m: Module) -> None:
        """Which ways there are, and which reads least."""
        joined, lost, live, data = self._joined, self._lost, self._live, self._data
        kind = self._kind
        update_reads = Signal(7)
        reconstruct_reads = Signal(6)
        can_update = Signal()
        can_reconstruct = Signal()
        can_recover = Signal()
        m.d.comb += [
            # It is taken only if all live parities can be read.
            update_reads.eq(self._joined_count + self._usable_count),
            reconstruct_reads.eq(data - self._joined_count),
            can_update.eq(~self._unsynced & ~(joined & lost).any() & (self._usable == live)),
            can_reconstruct.eq(~(lost & ~joined).any()),
            can_recover.eq(self._lost_count <= self._usable_count),
        ]
        with m.If(self._recover):
            m.d.comb += kind.eq(Mux(can_recover, PlanKind.RECOVER, PlanKind.IMPOSSIBLE))
        with m.Elif(self._no_parity):
            m.d.comb += kind.eq(PlanKind.WRITE_ONLY)
        with m.Elif(self._open_count > self._kept_count):
            m.d.comb += kind.eq(PlanKind.IMPOSSIBLE)
        with m.Elif(live == 0):
            m.d.comb += kind.eq(PlanKind.WRITE_ONLY)
        with m.Elif(joined == self._strips):
            m.d.comb += kind.eq(PlanKind.FULL)
        with m.Elif(can_reconstruct & ~(can_update & (update_reads < reconstruct_reads))):
            m.d.comb += kind.eq(PlanKind.RECONSTRUCT)
        with m.Elif(can_update & (can_reconstruct | (update_reads <= data))):
            m.d.comb += kind.eq(PlanKind.UPDATE)
        with m.Elif(can_recover):
            m.d.comb += kind.eq(PlanKind.RECOVER_RECONSTRUCT)
        with m.Else():
            m.d.comb += kind.eq(PlanKind.IMPOSSIBLE)

    def _take(self, m: Module) -> None:
        """The state TAKE: a request."""
        request = self.request.payload
        row_strips = Signal(MAX_DRIVES)
        row_parities = Signal(MAX_PARITIES)
        row_live = Signal(MAX_PARITIES)
        row_lost = Signal(MAX_DRIVES)
        row_joined = Signal(MAX_DRIVES)
        recover = request.kind == RowKind.RECOVER
        m.d.comb += [
            row_strips.eq((1 << request.data) - 1),
            row_parities.eq((1 << request.parities) - 1),
            row_live.eq(row_parities & ~(request.dead >> request.data)),
            row_lost.eq((request.dead | request.bad) & row_strips),
            row_joined.eq(request.joined & row_strips),
        ]
        with m.State("TAKE"):
            m.d.comb += self.request.ready.eq(1)
            with m.If(self.request.valid):
                m.d.sync += [
                    self._recover.eq(recover),
                    self._no_parity.eq(request.parities == 0),
                    self._unsynced.eq(request.unsynced),
                    self._data.eq(request.data),
                    self._strips.eq(row_strips),
                    self._joined.eq(row_joined),
                    self._dead.eq(request.dead & row_strips),
                    self._lost.eq(row_lost | Mux(recover, row_joined, 0)),
                    self._open_strips.eq(
                        ((request.dead | request.stale) & row_strips) | (row_lost & ~row_joined)
                    ),
                    self._live.eq(row_live),
                    self._usable.eq(row_live & ~(request.bad >> request.data)),
                    self._kept.eq(row_live & ~(request.stale >> request.data)),
                ]
                m.next = "COUNT"

    def _count(self, m: Module) -> None:
        """The state COUNT: how many there are of each."""
        with m.State("COUNT"):
            m.d.sync += [
                self._joined_count.eq(ones(self._joined)),
                self._lost_count.eq(ones(self._lost)),
                self._open_count.eq(ones(self._open_strips)),
                self._usable_count.eq(ones(self._usable)),
                self._kept_count.eq(ones(self._kept)),
            ]
            m.next = "DECIDE"

    def _decide(self, m: Module) -> None:
        """The state DECIDE: what the chosen way reads and writes."""
        answer, joined, lost = self.plan.payload, self._joined, self._lost
        writes = [
            answer.write_data.eq(joined & ~self._dead),
            answer.write_parity.eq(self._live),
        ]
        with m.State("DECIDE"):
            m.d.sync += [answer.as_value().eq(0), answer.kind.eq(self._kind)]
            with m.Switch(self._kind):
                with m.Case(PlanKind.WRITE_ONLY, PlanKind.FULL):
                    m.d.sync += writes
                with m.Case(PlanKind.UPDATE):
                    m.d.sync += writes
                    m.d.sync += [answer.read_data.eq(joined), answer.read_parity.eq(self._live)]
                with m.Case(PlanKind.RECONSTRUCT):
                    m.d.sync += writes
                    m.d.sync += answer.read_data.eq(self._strips & ~joined)
                with m.Case(PlanKind.RECOVER_RECONSTRUCT, PlanKind.RECOVER):
                    m.d.sync += [
                        answer.read_data.eq(self._strips & ~lost),
                        answer.read_parity.eq(self._lowest_usable),
                        answer.use_parity.eq(self._lowest_usable),
                        answer.erased.eq(lost),
                    ]
                    with m.If(~self._recover):
                        m.d.sync += writes
            m.next = "OFFER"
