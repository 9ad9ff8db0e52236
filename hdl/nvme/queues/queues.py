"""Queues: doorbells, fetch of submission entries, completion entries, create and delete."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.host_memory import Kind, inbox_dwords, read_request, sqe_slots
from hdl.flow.post import post
from hdl.flow.reference import Hearing
from hdl.kit.pick import choose, following
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.nvme.admin.events import Reports
from hdl.nvme.admin.features import BURST_BITS
from hdl.nvme.codes import (
    CQ_ENTRY_EXPONENT,
    CQE_DWORDS,
    PAGE_SHIFT,
    SQ_ENTRY_EXPONENT,
    SQE_DWORDS,
    StatusCode,
    status_field,
)
from hdl.nvme.commands.lifetimes import AGE_BITS
from hdl.nvme.queues.entries import EntryRing, entries_done
from hdl.nvme.queues.fetch_plan import ADMIN_FETCH, FetchPlan
from hdl.nvme.queues.queue_change import Effect, QueueChange
from hdl.nvme.queues.queue_state import cq_base, cq_state, sq_base, sq_state
from hdl.nvme.records import (
    QueueChanges,
    QueueOperation,
    assign,
    doorbell,
    entry,
    finish,
    position_bits,
    queue_bits,
)
from hdl.nvme.registers.registers import AdminQueues


class QueueEvent(enum.Enum, shape=3):
    """What `QueueEngine` serves."""

    DOORBELL = 0
    FINISH = 1
    CHANGE = 2
    FETCH = 3
    REPORT = 4


class QueueEngine(wiring.Component):
    """Owns every queue's state and serves one event at a time.

    A completion queue entry is reserved when a command is fetched, so a completion never waits for
    a full queue. A submission queue whose completion queue has no room is not fetched from. Of the
    admin queue one entry is fetched at a time. Queues with work take turns.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    admin
        The admin queues.
    enable
        Work is wanted. When it goes low, nothing more is fetched or posted.
    running
        The queues work. After ``enable`` has gone low, it follows once no command is inside and
        ``settled``.
    settled
        What has been posted, and every other write to the host, has left.
    drained
        No command is inside, nor being fetched.
    fetch_enable
        Commands are wanted: the function may send requests (bus master), and is not being shut
        down.
    shutting
        The host shuts the function down. No event is told any more while it runs.
    doorbell
        Doorbells. A value that the queue cannot have is ignored, as is a queue that does not exist.
    read_request
        Reads of entries into the inbox, kind ENTRIES. Those of the admin queue have the index
        `ADMIN_FETCH`, and there is one at a time. They wait for no place in the inbox.
    done
        Such a read has ended.
    admin_taken
        A pulse: the admin queue's entry has been taken, so the next one can be fetched.
    entry
        Entries of I/O queues to decode.
    burst
        Arbitration Burst: log2 of the most entries fetched at once.
    age
        Of commands that are submitted now (`hdl.nvme.commands.lifetimes.Lifetimes`).
    finish
        Ended commands.
    reports
        Asynchronous Event Requests that end.
    misuse
        A doorbell was misused. It is 1 if the queue cannot have the value, or has it already, or
        would hold more than it can. Else there is no such queue.
    changes
        Changes to the I/O queues.
    io_queues
        An I/O completion queue exists.
    post
        Completion queue entries.
    raised
        The vector that is raised after the post of an entry.
    hearing
        What becomes of the ends of commands that tell volumes something. There are none without
        `Config.background`.
    busy
        Something moves without anybody else being waited for.

    Rate: an event in 5 cycles (a fetch in 6), four events a command and fewer under load.
    Back-pressure: a stalled ``post`` holds ``finish``, and a stalled ``read_request`` holds
    fetches. Neither holds doorbells. A queue that is being deleted holds only ``changes``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        queue_number = queue_bits(config)
        count = config.queue_pairs + 1
        super().__init__(
            {
                "admin": In(AdminQueues()),
                "enable": In(1),
                "running": Out(1),
                "settled": In(1),
                "drained": Out(1),
                "fetch_enable": In(1),
                "shutting": In(1),
                "doorbell": In(stream.Signature(doorbell(config))),
                "read_request": Out(stream.Signature(read_request(config))),
                "done": In(Pulse(entries_done(range(ADMIN_FETCH + 1)))),
                "admin_taken": In(1),
                "entry": Out(stream.Signature(entry(config))),
                "burst": In(BURST_BITS),
                "age": In(AGE_BITS),
                "finish": In(stream.Signature(finish(config))),
                "reports": In(Reports()),
                "misuse": Out(Pulse(1)),
                "changes": In(QueueChanges(config)),
                "io_queues": Out(1),
                "post": Out(stream.Signature(post())),
                "raised": Out(Pulse(queue_number)),
                "hearing": Out(Hearing(config)),
                "busy": Out(1),
            }
        )

        position = position_bits(config)
        # The tables, an entry a queue, and what they have of the queue at hand. ``sq`` and ``cq``
        # are written back but for what a state changes.
        self._sq_bases = Table(sq_base(config), count)
        self._cq_bases = Table(cq_base(config), count)
        self._sqs = Table(sq_state(config), count)
        self._cqs = Table(cq_state(config), count)
        self._sq_base, self._cq_base = self._sq_bases.reads[0].data, self._cq_bases.reads[0].data
        self._sq, self._cq = self._sqs.reads[0].data, self._cqs.reads[0].data
        # Heads that SQHD may tell.
        self._heads = Table(position, count)  # of I/O queues
        self._admin_head = Signal(position)  # of the admin queue
        self._admin_asked = Signal(position)  # after the entry that has been asked for
        self._arrived = Signal(position)  # of the queue at hand

        # A bit a queue.
        self._sq_valid = Signal(count)  # the submission queue exists
        self._cq_valid = Signal(count)  # the completion queue exists
        self._work = Signal(count)  # it may have entries to fetch
        self._stalled = Signal(count)  # its completion queue has no room
        self._ready = Signal(count)  # it may be fetched from
        self._turn = Signal(range(count))
        self._total = Signal(range(count * ((1 << position) - 1)))  # commands inside
        self._admin_inside = Signal()  # the admin queue's entry has not been taken

        # The event, the submission queue, and the completion queue that goes with it.
        self._event = Signal(QueueEvent)
        self._queue = Signal(queue_number)
        self._cq_queue = Signal(queue_number)
        self._chosen_cq = Signal(queue_number)
        self._on_cq = Signal()  # the event is one of a completion queue
        self._reporting = self._event == QueueEvent.REPORT
        self._rang = Signal()  # a doorbell was the last event
        self._rung = Signal(doorbell(config))  # the doorbell that is served
        self._change_waits = Signal()  # for commands to end
        self._finished = Signal(finish(config))  # what ends, a report or a command
        # No event is told any more: those that come are taken, and nobody waits for them.
        self._silent = ~self.enable | (self.shutting & self.running)
        self._posts = (
            self._finished.post & self.enable & self.running & ~(self._reporting & self._silent)
        )
        self._post_interrupt = Signal()
        self._post_vector = Signal(queue_number)

        # The doorbell of a completion queue, in the cycle after its state. Entries are counted from
        # the head on.
        self._checks = Signal()  # there is one
        self._new_cq_head = Signal(position)  # its value
        self._freed = Signal(position + 1)  # entries up to the value
        self._filled = Signal(position + 1)  # entries up to the tail
        self._telling = Signal(position + 1)  # entries up to the last that tells what has been lost
        self._cq_known = Signal()  # the queue exists
        self._frees = Signal()  # it exists and has such a place
        # The doorbell of a submission queue, at once: its value is not possible.
        self._misuses = Signal()

        self._ring = EntryRing(config=config)
        self._plan = FetchPlan(config=config)
        self._judge = QueueChange()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.sq_base = self._sq_bases
        m.submodules.cq_base = self._cq_bases
        m.submodules.sq = self._sqs
        m.submodules.cq = self._cqs
        m.submodules.ring = self._ring
        m.submodules.heads = self._heads
        m.submodules.plan = self._plan
        m.submodules.judge = self._judge
        for port in (self.post, self.read_request, self.changes.response):
            with m.If(port.ready):
                m.d.sync += port.valid.eq(0)
        self._follow_heads(m)
        self._look_up(m)
        self._connect_parts(m)
        self._take_end(m)
        self._check_doorbell(m)
        lowest = self._arbitrate(m)
        with m.FSM(name="serve") as fsm:
            arrives = self._choose(m, lowest)
            self._join(m)
            self._open_and_close(m)
            self._ring_sq(m)
            self._ring_cq(m)
            self._finish(m)
            self._fetch(m)
            self._change(m)
            resting = fsm.ongoing("CHOOSE")
        m.d.comb += [
            self.io_queues.eq(self._cq_valid[1:].any()),
            self.raised.valid.eq(self.post.valid & self.post.ready & self._post_interrupt),
            self.raised.payload.eq(self._post_vector),
            self.drained.eq((self._total == 0) & resting),
            self.busy.eq(
                ~(resting & ~(arrives | self._frees))
                | self._ring.busy
                | (self.post.valid & self.post.ready)
            ),
        ]
        return m

    def _follow_heads(self, m: Module) -> None:
        """Heads that SQHD may tell. A command that ends has arrived, so its queue's head is not
        that of an earlier queue of this number."""
        ring, queue = self._ring, self._queue
        m.d.comb += [
            self._heads.write.address.eq(ring.arrived.payload.queue),
            self._heads.write.data.eq(ring.arrived.payload.head),
            self._heads.write.enable.eq(ring.arrived.valid),
            self._heads.reads[0].address.eq(queue),
            self._arrived.eq(Mux(queue == 0, self._admin_head, self._heads.reads[0].data)),
        ]
        with m.If(self.done.valid & (self.done.payload.index == ADMIN_FETCH)):
            m.d.sync += self._admin_head.eq(self._admin_asked)
        with m.If(self.admin_taken):
            m.d.sync += self._admin_inside.eq(0)

    def _look_up(self, m: Module) -> None:
        """The entries of the queue at hand. ``cq_queue`` is chosen in JOIN and then kept."""
        queue, cq_queue, asked = self._queue, self._cq_queue, self.changes.request.payload
        with m.Switch(self._event):
            with m.Case(QueueEvent.DOORBELL):
                m.d.comb += self._on_cq.eq(self._rung.head)
            with m.Case(QueueEvent.CHANGE):
                m.d.comb += self._on_cq.eq(
                    (asked.operation == QueueOperation.CREATE_CQ)
                    | (asked.operation == QueueOperation.DELETE_CQ)
                )
        joins = (self._event == QueueEvent.CHANGE) & (asked.operation == QueueOperation.CREATE_SQ)
        of_sq = Mux(joins, asked.completion, self._sq_base.completion)
        m.d.comb += [
            self._chosen_cq.eq(Mux(self._on_cq, queue, of_sq)),
            self._sq_bases.reads[0].address.eq(queue),
            self._sqs.reads[0].address.eq(queue),
            self._cq_bases.reads[0].address.eq(self._chosen_cq),
            self._cqs.reads[0].address.eq(self._chosen_cq),
            self._sq_bases.write.address.eq(queue),
            self._sqs.write.address.eq(queue),
            self._cq_bases.write.address.eq(cq_queue),
            self._cqs.write.address.eq(cq_queue),
            self._sqs.write.data.eq(self._sq),
            self._cqs.write.data.eq(self._cq),
        ]

    def _connect_parts(self, m: Module) -> None:
        """Entries on their way, the plan of the next read, and the judge of changes."""
        ring, plan, judge, sq, cq = self._ring, self._plan, self._judge, self._sq, self._cq
        connect(m, flipped(self.entry), ring.entry)
        m.d.comb += [
            ring.done.valid.eq(self.done.valid & (self.done.payload.index != ADMIN_FETCH)),
            ring.done.payload.index.eq(self.done.payload.index),
            ring.done.payload.error.eq(self.done.payload.error),
            ring.burst.eq(self.burst),
            *assign(
                ring.begin.payload,
                queue=self._queue,
                count=plan.count,
                head=plan.head,
                age=Mux(sq.marked, sq.older, sq.age),
                mixed=sq.marked & sq.mixed,
            ),
            plan.sq.eq(sq),
            plan.cq.eq(cq),
            plan.sq_last.eq(self._sq_base.last),
            plan.cq_last.eq(self._cq_base.last),
            plan.admin.eq(self._queue == 0),
            plan.room.eq(ring.room),
            judge.operation.eq(self.changes.request.payload.operation),
            judge.sq_exists.eq(self._sq_valid.bit_select(self._queue, 1)),
            judge.cq_exists.eq(self._cq_valid.bit_select(self._cq_queue, 1)),
            judge.shared.eq(cq.queues != 0),
            judge.inside.eq(sq.inside != 0),
        ]

    def _take_end(self, m: Module) -> None:
        """What ends: a command, or an Asynchronous Event Request of the admin queue."""
        m.d.comb += self._finished.eq(self.finish.payload)
        with m.If(self._reporting):
            reported = self.reports.ended.payload
            aborted = status_field(StatusCode.ABORT_REQUESTED, more=False)
            m.d.comb += assign(
                self._finished,
                queue=0,
                identifier=reported.identifier,
                status=Mux(reported.aborted, aborted, 0),
                result=reported.result,
                post=1,
            )

    def _try_again(self, m: Module) -> None:
        """A completion queue has more room."""
        m.d.sync += [
            self._work.eq(self._work | self._stalled),
            self._stalled.eq(0),
            self.reports.stalled.eq(0),
        ]

    def _check_doorbell(self, m: Module) -> None:
        """Reports a doorbell that is wrong, and gives back the entries that the host has taken,
        while the next event is chosen."""
        cq, freed = self._cq, self._freed
        m.d.sync += [self._frees.eq(0), self._checks.eq(0)]
        fits = self._frees & (freed <= self._filled)
        known = self._sq_valid.bit_select(self._queue, 1)
        m.d.comb += [
            self.misuse.valid.eq(self._misuses | (self._checks & ~(fits & (freed != 0)))),
            self.misuse.payload.eq(Mux(self._misuses, known, self._cq_known)),
        ]
        with m.If(fits):
            m.d.comb += self._cqs.store(head=self._new_cq_head, used=cq.used - freed)
            with m.If(cq.tells & (freed >= self._telling)):
                m.d.comb += [
                    self._cqs.write.data.tells.eq(0),
                    self.hearing.heard.bit_select(self._cq_queue, 1).eq(1),
                ]
            self._try_again(m)

    def _arbitrate(self, m: Module) -> Value:
        """The queue to fetch from next."""
        ready = self._ready
        has_room = Cat(~self._admin_inside, self._ring.any_room.replicate(len(ready) - 1))
        m.d.comb += ready.eq(self._work & has_room)
        return choose(m, ready, self._turn)

    def _choose(self, m: Module, lowest: Value) -> Value:
        """The state CHOOSE: what is served next. Of the queues to fetch from it is ``lowest``.
        Returns whether anything comes."""
        event, queue, ready = self._event, self._queue, self._ready
        can_fetch = (
            self.running
            & self.enable
            & self.fetch_enable
            & ready.any()
            & ~self.read_request.valid
        )
        can_change = self.changes.request.valid & ~self._change_waits & ~self.changes.response.valid
        can_finish = self.finish.valid & ~self.post.valid
        waits_for_room = self.reports.stalled & ~self._silent & ~self.reports.ended.payload.aborted
        can_report = self.reports.ended.valid & ~self.post.valid & ~waits_for_room
        can_open = self.enable & ~self.running
        can_close = (
            self.running
            & ~self.enable
            & (self._total == 0)
            & ~self.post.valid
            & self.settled
        )
        others = can_finish | can_report | can_change | can_fetch
        with m.State("CHOOSE"):
            m.d.sync += [self._rang.eq(0), self._rung.eq(self.doorbell.payload)]
            with m.If(can_open):
                m.d.sync += [queue.eq(0), self._cq_queue.eq(0)]
                m.next = "OPEN"
            with m.Elif(can_close):
                m.next = "CLOSE"
            with m.Elif(self.doorbell.valid & ~(self._rang & others)):
                m.d.sync += [
                    event.eq(QueueEvent.DOORBELL),
                    queue.eq(self.doorbell.payload.queue),
                    self._rang.eq(1),
                ]
                m.next = "LOAD"
            with m.Elif(can_finish):
                m.d.sync += [event.eq(QueueEvent.FINISH), queue.eq(self.finish.payload.queue)]
                m.next = "LOAD"
            with m.Elif(can_report):
                m.d.sync += [event.eq(QueueEvent.REPORT), queue.eq(0)]
                m.next = "LOAD"
            with m.Elif(can_change):
                asked = self.changes.request.payload
                m.d.sync += [event.eq(QueueEvent.CHANGE), queue.eq(asked.queue)]
                m.next = "LOAD"
            with m.Elif(can_fetch):
                m.d.sync += [
                    event.eq(QueueEvent.FETCH),
                    queue.eq(lowest),
                    self._turn.eq(following(lowest, len(ready) - 1)),
                ]
                m.next = "LOAD"
        return can_open | can_close | self.doorbell.valid | others

    def _join(self, m: Module) -> None:
        """The states LOAD and JOIN: the tables are read, and the completion queue is known."""
        with m.State("LOAD"):
            m.next = "JOIN"

        with m.State("JOIN"):
            m.d.sync += self._cq_queue.eq(self._chosen_cq)
            with m.Switch(self._event):
                with m.Case(QueueEvent.DOORBELL):
                    m.next = "RING_SQ"
                    with m.If(self._on_cq):
                        m.next = "RING_CQ"
                with m.Case(QueueEvent.FINISH, QueueEvent.REPORT):
                    m.next = "FINISH"
                with m.Case(QueueEvent.CHANGE):
                    m.next = "CHANGE"
                with m.Case(QueueEvent.FETCH):
                    m.next = "MEASURE"

    def _open_and_close(self, m: Module) -> None:
        """The states OPEN, of the admin queues, and CLOSE, of all."""
        admin, sq_valid, cq_valid = self.admin, self._sq_valid, self._cq_valid
        with m.State("OPEN"):
            m.d.comb += [
                *self._sq_bases.store(page=admin.sq_page, last=admin.sq_last, completion=0),
                *self._cq_bases.store(
                    page=admin.cq_page, last=admin.cq_last, vector=0, interrupt=1
                ),
                *self._sqs.store(head=0, tail=0, inside=0, marked=0),
                *self._cqs.store(head=0, tail=0, phase=1, used=0, queues=1, tells=0),
            ]
            m.d.sync += [sq_valid.eq(1), cq_valid.eq(1), self.running.eq(1)]
            m.next = "CHOOSE"

        with m.State("CLOSE"):
            m.d.sync += [
                Cat(sq_valid, cq_valid, self._work, self._stalled).eq(0),
                self._change_waits.eq(0),
                self.reports.stalled.eq(0),
                self.running.eq(0),
            ]
            m.d.comb += self.hearing.unheard.eq(~0)
            m.next = "CHOOSE"

    def _ring_sq(self, m: Module) -> None:
        """The state RING_SQ: a doorbell moves the tail of a submission queue.

        The tail moves forward, and not past entries that have not been fetched.
        """
        queue, sq, sqs = self._queue, self._sq, self._sqs
        value = self._rung.value
        with m.State("RING_SQ"):
            m.d.comb += self.doorbell.ready.eq(1)
            deleting = self._change_waits & (self.changes.request.payload.queue == queue)
            after, before = value > sq.tail, value < sq.head
            forward = Mux(sq.tail >= sq.head, after | before, after & before)
            exists = self._sq_valid.bit_select(queue, 1)
            possible = exists & (value <= self._sq_base.last) & forward
            m.d.comb += self._misuses.eq(self.running & ~deleting & ~possible)
            with m.If(self.running & ~deleting & possible):
                m.d.comb += sqs.store(tail=value)
                self._mark_age(m)
                m.d.sync += self._work.bit_select(queue, 1).eq(1)
            m.next = "CHOOSE"

    def _mark_age(self, m: Module) -> None:
        """The entries that a doorbell rings for are as old as the doorbell. Two ages can be told
        apart. If there are more, what is in the middle counts as older than it is."""
        sq, sqs = self._sq, self._sqs
        empty, younger = sq.head == sq.tail, sq.age != self.age
        with m.If(empty | younger):
            m.d.comb += sqs.write.data.age.eq(self.age)
        with m.If(empty):
            m.d.comb += sqs.write.data.marked.eq(0)
        with m.Elif(younger):
            m.d.comb += assign(sqs.write.data, marked=1, mark=sq.tail, mixed=sq.marked)
            with m.If(~sq.marked):
                m.d.comb += sqs.write.data.older.eq(sq.age)

    def _ring_cq(self, m: Module) -> None:
        """The state RING_CQ: a doorbell moves the head of a completion queue. It is checked in the
        next cycle."""
        cq, cq_base = self._cq, self._cq_base
        exists = self._cq_valid.bit_select(self._cq_queue, 1)
        value = self._rung.value

        def from_head(to):
            return to - cq.head + Mux(to < cq.head, cq_base.last + 1, 0)

        with m.State("RING_CQ"):
            m.d.comb += self.doorbell.ready.eq(1)
            m.d.sync += [
                self._telling.eq(from_head(cq.news)),
                self._new_cq_head.eq(value),
                self._freed.eq(from_head(value)),
                self._filled.eq(from_head(cq.tail)),
                self._checks.eq(self.running),
                self._cq_known.eq(exists),
                self._frees.eq(self.running & exists & (value <= cq_base.last)),
            ]
            m.next = "CHOOSE"

    def _finish(self, m: Module) -> None:
        """The state FINISH: a command or a report ends. It gets a completion queue entry, if it is
        to have one. For a report none is reserved, and it is not inside."""
        sq, cq, cq_base = self._sq, self._cq, self._cq_base
        cqs, reporting, posts = self._cqs, self._reporting, self._posts
        with m.State("FINISH"):
            aborted = self.reports.ended.payload.aborted
            no_room = reporting & posts & (cq.used == cq_base.last)
            m.d.comb += [
                self.finish.ready.eq(~reporting),
                self.reports.ended.ready.eq(reporting & (~no_room | aborted)),
                self.reports.posted.eq(reporting & posts & ~no_room),
                self._sqs.write.data.inside.eq(sq.inside - 1),
                self._sqs.write.enable.eq(~reporting),
                cqs.write.enable.eq(~reporting | posts),
            ]
            self._answer_telling(m)
            with m.If(~reporting):
                m.d.sync += [self._total.eq(self._total - 1), self._change_waits.eq(0)]
            with m.If(no_room):
                m.d.comb += cqs.write.enable.eq(0)
                m.d.sync += self.reports.stalled.eq(~aborted)
            with m.Elif(posts):
                with m.If(reporting):
                    m.d.comb += cqs.write.data.used.eq(cq.used + 1)
                m.d.comb += [
                    cqs.write.data.tail.eq(following(cq.tail, cq_base.last)),
                    cqs.write.data.phase.eq(cq.phase ^ (cq.tail == cq_base.last)),
                ]
                self._post_entry(m)
            with m.Elif(~reporting):
                m.d.comb += cqs.write.data.used.eq(cq.used - 1)
                self._try_again(m)
            m.next = "CHOOSE"

    def _answer_telling(self, m: Module) -> None:
        """A command that was to tell a volume something ends. Says whether its entry does that."""
        finished = self._finished
        answered = self.hearing.answered
        m.d.comb += [
            answered.valid.eq(~self._reporting & finished.tells.any),
            *assign(
                answered.payload,
                volume=finished.tells.volume,
                posted=self._posts,
                queue=self._cq_queue,
            ),
        ]
        with m.If(answered.valid & self._posts):
            m.d.comb += assign(
                self._cqs.write.data, news=following(self._cq.tail, self._cq_base.last), tells=1
            )

    def _post_entry(self, m: Module) -> None:
        """Sends a completion queue entry. It has the head of its submission queue, which says that
        the slots before it have been read (NVMe 1.4, 4.6)."""
        finished, cq, cq_base = self._finished, self._cq, self._cq_base
        m.d.sync += [
            self.post.valid.eq(1),
            *assign(
                self.post.payload,
                address=Cat(Const(0, PAGE_SHIFT), cq_base.page)
                + Cat(Const(0, CQ_ENTRY_EXPONENT), cq.tail),
                dwords=CQE_DWORDS,
                data=Cat(
                    finished.result,
                    Const(0, 32),
                    self._arrived | Const(0, 16),
                    finished.queue | Const(0, 16),
                    finished.identifier,
                    cq.phase,
                    finished.status,
                ),
            ),
            self._post_interrupt.eq(cq_base.interrupt),
            self._post_vector.eq(cq_base.vector),
        ]

    def _fetch(self, m: Module) -> None:
        """The states MEASURE, in which the plan begins, LIMIT, and FETCH, in which the read is
        asked for."""
        plan, queue, sq, cq = self._plan, self._queue, self._sq, self._cq
        of_admin = queue == 0
        work, stalled = self._work.bit_select(queue, 1), self._stalled.bit_select(queue, 1)
        with m.State("MEASURE"):
            m.next = "LIMIT"

        with m.State("LIMIT"):
            m.next = "FETCH"

        with m.State("FETCH"):
            with m.If(plan.empty):
                m.d.sync += work.eq(0)
            with m.Elif(plan.full):
                m.d.sync += [work.eq(0), stalled.eq(1)]
            with m.Else():
                m.d.comb += [
                    *self._sqs.store(
                        head=plan.head,
                        inside=sq.inside + plan.count,
                        marked=sq.marked & (plan.head != sq.mark),
                    ),
                    *self._cqs.store(used=cq.used + plan.count),
                    self._ring.begin.valid.eq(~of_admin),
                ]
                with m.If(of_admin):
                    m.d.sync += [self._admin_inside.eq(1), self._admin_asked.eq(plan.head)]
                with m.If(plan.head == sq.tail):
                    m.d.sync += work.eq(0)
                m.d.sync += self._total.eq(self._total + plan.count)
                self._read_entries(m, of_admin)
            m.next = "CHOOSE"

    def _read_entries(self, m: Module, of_admin: Value) -> None:
        """Asks for entries. They go to the ring, but for those of the admin queue, which come one
        at a time."""
        ring, slots = self._ring, sqe_slots(self._config)
        inbox_place = Mux(of_admin, slots, ring.inbox_place)
        first_entry = inbox_dwords(self._config) - (slots + 1) * SQE_DWORDS
        m.d.sync += [
            self.read_request.valid.eq(1),
            *assign(
                self.read_request.payload,
                kind=Kind.ENTRIES,
                index=Mux(of_admin, ADMIN_FETCH, ring.transfer),
                last=1,
                address=Cat(Const(0, PAGE_SHIFT), self._sq_base.page)
                + Cat(Const(0, SQ_ENTRY_EXPONENT), self._sq.head),
                dwords=self._plan.count * SQE_DWORDS,
                target=first_entry + inbox_place * SQE_DWORDS,
            ),
        ]

    def _change(self, m: Module) -> None:
        """The state CHANGE, which does what is judged of the change."""
        asked, effect = self.changes.request.payload, self._judge.effect
        with m.State("CHANGE"):
            m.d.comb += [
                *assign(
                    self._cq_bases.write.data,
                    page=asked.page,
                    last=asked.last,
                    vector=asked.vector,
                    interrupt=asked.interrupt,
                ),
                *assign(
                    self._sq_bases.write.data,
                    page=asked.page,
                    last=asked.last,
                    completion=asked.completion,
                ),
            ]
            with m.Switch(effect):
                with m.Case(Effect.ADD_CQ):
                    m.d.comb += [
                        *self._cqs.store(head=0, tail=0, phase=1, used=0, queues=0, tells=0),
                        *self._cq_bases.store(),
                    ]
                    m.d.sync += self._cq_valid.bit_select(self._cq_queue, 1).eq(1)
                with m.Case(Effect.ADD_SQ):
                    m.d.comb += [
                        *self._sqs.store(head=0, tail=0, inside=0, marked=0),
                        *self._cqs.store(queues=self._cq.queues + 1),
                        *self._sq_bases.store(),
                    ]
                    m.d.sync += self._sq_valid.bit_select(self._queue, 1).eq(1)
                with m.Case(Effect.REMOVE_CQ):
                    m.d.sync += self._cq_valid.bit_select(self._cq_queue, 1).eq(0)
                    m.d.comb += self.hearing.unheard.bit_select(self._cq_queue, 1).eq(1)
                with m.Case(Effect.DRAIN_SQ, Effect.REMOVE_SQ):
                    self._drain_sq(m)
            with m.If(effect == Effect.DRAIN_SQ):
                m.d.sync += self._change_waits.eq(1)
            with m.Else():
                m.d.comb += self.changes.request.ready.eq(1)
                m.d.sync += [
                    self.changes.response.valid.eq(1),
                    self.changes.response.payload.eq(self._judge.status),
                ]
            m.next = "CHOOSE"

    def _drain_sq(self, m: Module) -> None:
        """Nothing more is fetched from the submission queue. If nothing is inside, it goes."""
        queue = self._queue
        m.d.sync += [
            self._work.bit_select(queue, 1).eq(0),
            self._stalled.bit_select(queue, 1).eq(0),
        ]
        m.d.comb += self._sqs.store(tail=self._sq.head, marked=0)
        with m.If(self._judge.effect == Effect.REMOVE_SQ):
            m.d.sync += self._sq_valid.bit_select(queue, 1).eq(0)
            m.d.comb += self._cqs.store(queues=self._cq.queues - 1)
