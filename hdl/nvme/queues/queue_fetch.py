"""How submission queue entries are fetched, and how many by one read."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.host_memory import Kind, inbox_dwords, sqe_slots
from hdl.nvme.codes import PAGE_SHIFT, SQ_ENTRY_EXPONENT, SQE_DWORDS
from hdl.nvme.queues import queue_state
from hdl.nvme.queues.entries import EntryRing
from hdl.nvme.queues.queue_at_hand import QueueAtHand
from hdl.nvme.records import FETCH_ENTRIES, FETCHES, assign, position_bits

ADMIN_FETCH = FETCHES
"""Transfer index of reads from the admin queue; those below are `EntryRing`'s."""


class FetchPlan(wiring.Component):
    """Sizes a read so that it wraps neither in the queue nor in the inbox, and is of one age.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    sq, cq, sq_last, cq_last
        State of the submission queue and of its completion queue, and their entries - 1.
    admin
        The admin queue: an entry at a time, which has a place of its own.
    room
        Entries of I/O queues that the inbox can take.
    empty, full
        The submission queue has no entry; the completion queue has no room for one.
    count, head
        Entries to fetch, and the queue's head after them; meaningless when ``empty`` or ``full``.

    Latency 2 cycles from the inputs, which are constant meanwhile, to the outputs.
    """

    def __init__(self, *, config: Config):
        self._position = position = position_bits(config)
        super().__init__(
            {
                "sq": In(queue_state.sq_state(config)),
                "cq": In(queue_state.cq_state(config)),
                "sq_last": In(position),
                "cq_last": In(position),
                "admin": In(1),
                "room": In(range(FETCH_ENTRIES + 1)),
                "empty": Out(1),
                "full": Out(1),
                "count": Out(range(FETCH_ENTRIES + 1)),
                "head": Out(position),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        # Stage 1: the four limits.
        s1_available = Signal(self._position + 1)
        end = Signal(self._position)
        m.d.comb += end.eq(Mux(self.sq.marked, self.sq.mark, self.sq.tail))
        s1_cq_room = Signal(self._position + 1)
        s1_most = Signal.like(self.count)
        m.d.sync += [
            s1_available.eq(
                Mux(
                    end >= self.sq.head,
                    end - self.sq.head,
                    self.sq_last + 1 - self.sq.head,
                )
            ),
            s1_cq_room.eq(self.cq_last - self.cq.used),
            s1_most.eq(Mux(self.admin, 1, self.room)),
        ]
        # Stage 2: the least of them.
        nearest = Mux(s1_available < s1_cq_room, s1_available, s1_cq_room)
        m.d.sync += [
            self.empty.eq(s1_available == 0),
            self.full.eq(s1_cq_room == 0),
            self.count.eq(Mux(nearest < s1_most, nearest, s1_most)),
        ]
        after = Signal(self._position + 1)
        m.d.comb += [
            after.eq(self.sq.head + self.count),
            self.head.eq(Mux(after > self.sq_last, 0, after)),
        ]
        return m


def fetch_states(
    m: Module, at_hand: QueueAtHand, *, ports: Any, plan: FetchPlan, ring: EntryRing
) -> None:
    """The state MEASURE, in which ``plan`` begins, and those that follow, up to the read's being in
    ``ports.read_request``. ``ports`` are the engine's; ``ring`` is where the entries go, but for
    those of the admin queue, which come one at a time."""
    config, queue, sq, cq = at_hand.config, at_hand.queue, at_hand.sq, at_hand.cq
    sq_base, sq_write, cq_write = at_hand.sq_base, at_hand.sq_write, at_hand.cq_write
    work, stalled, total = at_hand.work, at_hand.stalled, at_hand.total
    admin_inside = at_hand.admin_inside
    of_admin = queue == 0
    place = Mux(of_admin, sqe_slots(config), ring.place)

    with m.State("MEASURE"):
        m.next = "LIMIT"

    with m.State("LIMIT"):
        m.next = "FETCH"

    with m.State("FETCH"):
        with m.If(plan.empty):
            m.d.sync += work.bit_select(queue, 1).eq(0)
        with m.Elif(plan.full):
            m.d.sync += [
                work.bit_select(queue, 1).eq(0),
                stalled.bit_select(queue, 1).eq(1),
            ]
        with m.Else():
            m.d.comb += [
                *assign(sq_write.data, head=plan.head, inside=sq.inside + plan.count),
                sq_write.data.marked.eq(sq.marked & (plan.head != sq.mark)),
                cq_write.data.used.eq(cq.used + plan.count),
                sq_write.en.eq(1),
                cq_write.en.eq(1),
                ring.begin.eq(~of_admin),
            ]
            with m.If(of_admin):
                m.d.sync += [admin_inside.eq(1), at_hand.admin_asked.eq(plan.head)]
            with m.If(plan.head == sq.tail):
                m.d.sync += work.bit_select(queue, 1).eq(0)
            m.d.sync += [
                total.eq(total + plan.count),
                ports.read_request.valid.eq(1),
                *assign(
                    ports.read_request.payload,
                    kind=Kind.ENTRIES,
                    index=Mux(of_admin, ADMIN_FETCH, ring.index),
                    last=1,
                    address=Cat(Const(0, PAGE_SHIFT), sq_base.page)
                    + Cat(Const(0, SQ_ENTRY_EXPONENT), sq.head),
                    dwords=plan.count * SQE_DWORDS,
                    target=inbox_dwords(config)
                    - (sqe_slots(config) + 1) * SQE_DWORDS
                    + place * SQE_DWORDS,
                ),
            ]
        m.next = "CHOOSE"
    m.d.comb += [
        ring.queue.eq(queue),
        ring.count.eq(plan.count),
        ring.head.eq(plan.head),
        ring.age.eq(Mux(sq.marked, sq.older, sq.age)),
        ring.mixed.eq(sq.marked & sq.mixed),
    ]
