"""Queue state: doorbells, fetch of submission entries, completion entries, create and delete."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.nvme import queue_state
from hdl.nvme.arbitrate import choose, following
from hdl.nvme.codes import (
    CQ_ENTRY_EXPONENT,
    CQE_DWORDS,
    PAGE_SHIFT,
    SQ_ENTRY_EXPONENT,
    SQE_DWORDS,
    STATUS_BITS,
)
from hdl.nvme.entries import EntryRing
from hdl.nvme.queue_change import Effect, QueueChange
from hdl.nvme.queue_fetch import FetchPlan
from hdl.nvme.records import (
    FETCHES,
    QueueOperation,
    assign,
    change,
    doorbell,
    entry,
    finish,
    position_bits,
    queue_bits,
)
from hdl.nvme.registers import AdminQueues
from hdl.pcie.interface import Kind, inbox_dwords, post, read_request, sqe_slots


class Event(enum.Enum, shape=2):
    """What the engine is serving."""

    DOORBELL = 0
    FINISH = 1
    CHANGE = 2
    FETCH = 3


class QueueEngine(wiring.Component):
    """Owns every queue's state and serves one event at a time.

    A completion queue entry is reserved when a command is fetched, so a completion never waits for
    a full queue; a submission queue whose completion queue has no room is not fetched from. The
    admin queue has one command inside at a time. Queues with work take turns.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    admin, enable, running
        Admin queues; work is wanted; the queues work. When ``enable`` goes low, nothing more is
        fetched or posted, and ``running`` follows once no command is inside.
    drained
        No command is inside.
    fetch_enable
        The function may send requests (bus master).
    doorbell
        Doorbells. A value that the queue cannot have is ignored, as is a queue that does not exist.
    read_request, done, done_index, done_error
        Reads of entries into the inbox, kind ENTRIES, and a pulse when one has ended.
    entry
        Entries to decode.
    finish
        Ended commands.
    change, changed
        Create and delete, and the 15-bit status that answers each. A DELETE_SQ is answered once
        the queue's fetched commands have ended.
    io_queues
        An I/O completion queue exists.
    post
        Completion queue entries.
    raised, vector
        A pulse after the post of an entry: raise this vector.

    Rate: an event in 5 cycles (a fetch in 6), four events a command and fewer under load.
    Back-pressure: a stalled ``post`` holds ``finish``, a stalled ``read_request`` holds fetches;
    neither holds doorbells. A queue that is being deleted holds only ``change``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        index = queue_bits(config)
        super().__init__(
            {
                "admin": In(AdminQueues()),
                "enable": In(1),
                "running": Out(1),
                "drained": Out(1),
                "fetch_enable": In(1),
                "doorbell": In(stream.Signature(doorbell(config))),
                "read_request": Out(stream.Signature(read_request(config))),
                "done": In(1),
                "done_index": In(bits_for_count(FETCHES)),
                "done_error": In(1),
                "entry": Out(stream.Signature(entry(config))),
                "finish": In(stream.Signature(finish(config))),
                "change": In(stream.Signature(change(config))),
                "changed": Out(stream.Signature(STATUS_BITS)),
                "io_queues": Out(1),
                "post": Out(stream.Signature(post())),
                "raised": Out(1),
                "vector": Out(index),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        count = config.queue_pairs + 1
        index = queue_bits(config)
        position = position_bits(config)

        ports = {}
        for name, shape in (
            ("sq_base", queue_state.sq_base(config)),
            ("cq_base", queue_state.cq_base(config)),
            ("sq", queue_state.sq_state(config)),
            ("cq", queue_state.cq_state(config)),
        ):
            table = memory.Memory(shape=shape, depth=count, init=[])
            m.submodules[name] = table
            ports[name] = (table.read_port(), table.write_port())
        (sq_base_read, sq_base_write), (cq_base_read, cq_base_write) = (
            ports["sq_base"],
            ports["cq_base"],
        )
        (sq_read, sq_write), (cq_read, cq_write) = ports["sq"], ports["cq"]

        m.submodules.ring = ring = EntryRing(config=config)
        wiring.connect(m, wiring.flipped(self.entry), ring.entry)
        m.d.comb += [
            ring.done.eq(self.done),
            ring.done_index.eq(self.done_index),
            ring.done_error.eq(self.done_error),
        ]

        sq_valid = Signal(count)
        cq_valid = Signal(count)
        work = Signal(count)
        stalled = Signal(count)
        total = Signal(range(count * ((1 << position) - 1)))
        event = Signal(Event)
        queue = Signal(index)
        cq_queue = Signal(index)
        turn = Signal(range(count))
        rang = Signal()
        change_waits = Signal()
        admin_inside = Signal()
        post_interrupt = Signal()
        post_vector = Signal(index)
        m.d.comb += [
            self.drained.eq(total == 0),
            self.io_queues.eq(cq_valid[1:].any()),
            self.raised.eq(self.post.valid & self.post.ready & post_interrupt),
            self.vector.eq(post_vector),
        ]
        with m.If(self.post.ready):
            m.d.sync += self.post.valid.eq(0)
        with m.If(self.read_request.ready):
            m.d.sync += self.read_request.valid.eq(0)
        with m.If(self.changed.ready):
            m.d.sync += self.changed.valid.eq(0)

        # Choice of the next queue to fetch from.
        ready = Signal(count)
        m.d.comb += ready.eq(work & Cat(~admin_inside, Const(-1, count - 1)))
        lowest = choose(m, ready, turn)

        on_cq = Signal()
        with m.Switch(event):
            with m.Case(Event.DOORBELL):
                m.d.comb += on_cq.eq(self.doorbell.payload.head)
            with m.Case(Event.CHANGE):
                m.d.comb += on_cq.eq(
                    (self.change.payload.operation == QueueOperation.CREATE_CQ)
                    | (self.change.payload.operation == QueueOperation.DELETE_CQ)
                )
        joins = (event == Event.CHANGE) & (
            self.change.payload.operation == QueueOperation.CREATE_SQ
        )
        # cq_queue is chosen in JOIN and then kept.
        chosen_cq = Signal(index)
        m.d.comb += [
            chosen_cq.eq(
                Mux(
                    on_cq,
                    queue,
                    Mux(joins, self.change.payload.completion, sq_base_read.data.completion),
                )
            ),
            sq_base_read.addr.eq(queue),
            sq_read.addr.eq(queue),
            cq_base_read.addr.eq(chosen_cq),
            cq_read.addr.eq(chosen_cq),
            sq_base_write.addr.eq(queue),
            sq_write.addr.eq(queue),
            cq_base_write.addr.eq(cq_queue),
            cq_write.addr.eq(cq_queue),
            sq_write.data.eq(sq_read.data),
            cq_write.data.eq(cq_read.data),
        ]
        sq, cq, sq_base, cq_base = sq_read.data, cq_read.data, sq_base_read.data, cq_base_read.data

        finish_in = self.finish.payload
        posts = finish_in.post & self.enable & self.running
        can_fetch = (
            self.running
            & self.enable
            & self.fetch_enable
            & ready.any()
            & ring.any_room
            & ~self.read_request.valid
        )
        can_change = self.change.valid & ~change_waits & ~self.changed.valid
        can_finish = self.finish.valid & ~self.post.valid
        can_open = self.enable & ~self.running
        can_close = self.running & ~self.enable & (total == 0) & ~self.post.valid
        others = can_finish | can_change | can_fetch

        m.submodules.plan = plan = FetchPlan(config=config)
        m.submodules.judge = judge = QueueChange()
        asked = self.change.payload
        m.d.comb += [
            plan.sq.eq(sq),
            plan.cq.eq(cq),
            plan.sq_last.eq(sq_base.last),
            plan.cq_last.eq(cq_base.last),
            plan.admin.eq(queue == 0),
            plan.room.eq(ring.room),
            judge.operation.eq(asked.operation),
            judge.sq_exists.eq(sq_valid.bit_select(queue, 1)),
            judge.cq_exists.eq(cq_valid.bit_select(cq_queue, 1)),
            judge.shared.eq(cq.queues != 0),
            judge.inside.eq(sq.inside != 0),
        ]

        # Entries that the host has taken are given back while the next event is chosen.
        new_cq_head = Signal(position)
        freed, filled = Signal(position + 1), Signal(position + 1)
        frees = Signal()
        m.d.sync += frees.eq(0)
        with m.If(frees & (freed <= filled)):
            m.d.comb += [
                *assign(cq_write.data, head=new_cq_head, used=cq.used - freed),
                cq_write.en.eq(1),
            ]
            m.d.sync += [work.eq(work | stalled), stalled.eq(0)]

        with m.FSM(name="serve") as fsm:
            with m.State("CHOOSE"):
                m.d.sync += rang.eq(0)
                with m.If(can_open):
                    m.d.sync += [queue.eq(0), cq_queue.eq(0)]
                    m.next = "OPEN"
                with m.Elif(can_close):
                    m.next = "CLOSE"
                with m.Elif(self.doorbell.valid & ~(rang & others)):
                    m.d.sync += [
                        event.eq(Event.DOORBELL),
                        queue.eq(self.doorbell.payload.queue),
                        rang.eq(1),
                    ]
                    m.next = "LOAD"
                with m.Elif(can_finish):
                    m.d.sync += [event.eq(Event.FINISH), queue.eq(finish_in.queue)]
                    m.next = "LOAD"
                with m.Elif(can_change):
                    m.d.sync += [event.eq(Event.CHANGE), queue.eq(self.change.payload.queue)]
                    m.next = "LOAD"
                with m.Elif(can_fetch):
                    m.d.sync += [
                        event.eq(Event.FETCH),
                        queue.eq(lowest),
                        turn.eq(following(lowest, count - 1)),
                    ]
                    m.next = "LOAD"

            with m.State("LOAD"):
                m.next = "JOIN"

            with m.State("JOIN"):
                m.d.sync += cq_queue.eq(chosen_cq)
                with m.Switch(event):
                    with m.Case(Event.DOORBELL):
                        m.next = "RING_SQ"
                        with m.If(on_cq):
                            m.next = "RING_CQ"
                    with m.Case(Event.FINISH):
                        m.next = "FINISH"
                    with m.Case(Event.CHANGE):
                        m.next = "CHANGE"
                    with m.Case(Event.FETCH):
                        m.next = "MEASURE"

            with m.State("OPEN"):
                m.d.comb += [
                    *assign(sq_base_write.data, page=self.admin.sq_page, last=self.admin.sq_last),
                    *assign(cq_base_write.data, page=self.admin.cq_page, last=self.admin.cq_last),
                    sq_base_write.data.completion.eq(0),
                    *assign(cq_base_write.data, vector=0, interrupt=1),
                    *assign(sq_write.data, head=0, tail=0, inside=0),
                    *assign(cq_write.data, head=0, tail=0, phase=1, used=0, queues=1),
                    Cat(p.en for p in (sq_base_write, cq_base_write, sq_write, cq_write)).eq(~0),
                ]
                m.d.sync += [sq_valid.eq(1), cq_valid.eq(1), self.running.eq(1)]
                m.next = "CHOOSE"

            with m.State("CLOSE"):
                m.d.sync += [
                    Cat(sq_valid, cq_valid, work, stalled).eq(0),
                    change_waits.eq(0),
                    self.running.eq(0),
                ]
                m.next = "CHOOSE"

            with m.State("RING_SQ"):
                value = self.doorbell.payload.value
                m.d.comb += self.doorbell.ready.eq(1)
                deleting = change_waits & (self.change.payload.queue == queue)
                with m.If(
                    self.running
                    & sq_valid.bit_select(queue, 1)
                    & ~deleting
                    & (value <= sq_base.last)
                ):
                    m.d.comb += [sq_write.data.tail.eq(value), sq_write.en.eq(1)]
                    m.d.sync += work.bit_select(queue, 1).eq(1)
                m.next = "CHOOSE"

            with m.State("RING_CQ"):
                value = self.doorbell.payload.value
                m.d.comb += self.doorbell.ready.eq(1)
                m.d.sync += [
                    new_cq_head.eq(value),
                    freed.eq(value - cq.head + Mux(value < cq.head, cq_base.last + 1, 0)),
                    filled.eq(cq.tail - cq.head + Mux(cq.tail < cq.head, cq_base.last + 1, 0)),
                    frees.eq(
                        self.running
                        & cq_valid.bit_select(cq_queue, 1)
                        & (value <= cq_base.last)
                    ),
                ]
                m.next = "CHOOSE"

            with m.State("FINISH"):
                m.d.comb += [
                    self.finish.ready.eq(1),
                    sq_write.data.inside.eq(sq.inside - 1),
                    sq_write.en.eq(1),
                    cq_write.en.eq(1),
                ]
                m.d.sync += [total.eq(total - 1), change_waits.eq(0)]
                with m.If(queue == 0):
                    m.d.sync += admin_inside.eq(0)
                with m.If(posts):
                    m.d.comb += [
                        cq_write.data.tail.eq(following(cq.tail, cq_base.last)),
                        cq_write.data.phase.eq(cq.phase ^ (cq.tail == cq_base.last)),
                    ]
                    m.d.sync += [
                        self.post.valid.eq(1),
                        *assign(
                            self.post.payload,
                            address=Cat(Const(0, PAGE_SHIFT), cq_base.page)
                            + Cat(Const(0, CQ_ENTRY_EXPONENT), cq.tail),
                            dwords=CQE_DWORDS,
                            data=Cat(
                                finish_in.result,
                                Const(0, 32),
                                sq.head | Const(0, 16),
                                finish_in.queue | Const(0, 16),
                                finish_in.identifier,
                                cq.phase,
                                finish_in.status,
                            ),
                        ),
                        post_interrupt.eq(cq_base.interrupt),
                        post_vector.eq(cq_base.vector),
                    ]
                with m.Else():
                    m.d.comb += cq_write.data.used.eq(cq.used - 1)
                    m.d.sync += [work.eq(work | stalled), stalled.eq(0)]
                m.next = "CHOOSE"

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
                        cq_write.data.used.eq(cq.used + plan.count),
                        sq_write.en.eq(1),
                        cq_write.en.eq(1),
                        ring.begin.eq(1),
                    ]
                    with m.If(queue == 0):
                        m.d.sync += admin_inside.eq(1)
                    with m.If(plan.head == sq.tail):
                        m.d.sync += work.bit_select(queue, 1).eq(0)
                    m.d.sync += [
                        total.eq(total + plan.count),
                        self.read_request.valid.eq(1),
                        *assign(
                            self.read_request.payload,
                            kind=Kind.ENTRIES,
                            index=ring.index,
                            last=1,
                            address=Cat(Const(0, PAGE_SHIFT), sq_base.page)
                            + Cat(Const(0, SQ_ENTRY_EXPONENT), sq.head),
                            dwords=plan.count * SQE_DWORDS,
                            target=inbox_dwords(config)
                            - sqe_slots(config) * SQE_DWORDS
                            + ring.place * SQE_DWORDS,
                        ),
                    ]
                m.next = "CHOOSE"
            m.d.comb += [ring.queue.eq(queue), ring.count.eq(plan.count)]

            with m.State("CHANGE"):
                m.d.comb += [
                    *assign(cq_base_write.data, page=asked.page, last=asked.last),
                    *assign(cq_base_write.data, vector=asked.vector, interrupt=asked.interrupt),
                    *assign(sq_base_write.data, page=asked.page, last=asked.last),
                    sq_base_write.data.completion.eq(asked.completion),
                ]
                with m.Switch(judge.effect):
                    with m.Case(Effect.ADD_CQ):
                        m.d.comb += [
                            *assign(cq_write.data, head=0, tail=0, phase=1, used=0, queues=0),
                            cq_write.en.eq(1),
                            cq_base_write.en.eq(1),
                        ]
                        m.d.sync += cq_valid.bit_select(cq_queue, 1).eq(1)
                    with m.Case(Effect.ADD_SQ):
                        m.d.comb += [
                            *assign(sq_write.data, head=0, tail=0, inside=0),
                            cq_write.data.queues.eq(cq.queues + 1),
                            sq_write.en.eq(1),
                            cq_write.en.eq(1),
                            sq_base_write.en.eq(1),
                        ]
                        m.d.sync += sq_valid.bit_select(queue, 1).eq(1)
                    with m.Case(Effect.REMOVE_CQ):
                        m.d.sync += cq_valid.bit_select(cq_queue, 1).eq(0)
                    with m.Case(Effect.DRAIN_SQ, Effect.REMOVE_SQ):
                        # No more is fetched.
                        m.d.sync += [
                            work.bit_select(queue, 1).eq(0),
                            stalled.bit_select(queue, 1).eq(0),
                        ]
                        m.d.comb += [sq_write.data.tail.eq(sq.head), sq_write.en.eq(1)]
                        with m.If(judge.effect == Effect.REMOVE_SQ):
                            m.d.sync += sq_valid.bit_select(queue, 1).eq(0)
                            m.d.comb += [
                                cq_write.data.queues.eq(cq.queues - 1),
                                cq_write.en.eq(1),
                            ]
                with m.If(judge.effect == Effect.DRAIN_SQ):
                    m.d.sync += change_waits.eq(1)
                with m.Else():
                    m.d.comb += self.change.ready.eq(1)
                    m.d.sync += [self.changed.valid.eq(1), self.changed.payload.eq(judge.status)]
                m.next = "CHOOSE"

            waits = ~(can_open | can_close | self.doorbell.valid | others | frees)
            idle = fsm.ongoing("CHOOSE") & waits
        m.d.comb += self.busy.eq(~idle | ring.busy | (self.post.valid & self.post.ready))
        return m
