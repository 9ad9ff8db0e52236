"""Queue state: doorbells, fetch of submission entries, completion entries, create and delete."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.host_memory import read_request
from hdl.flow.post import post
from hdl.flow.reference import answer
from hdl.kit.pick import choose, following
from hdl.nvme.admin.events import report
from hdl.nvme.admin.features import BURST_BITS
from hdl.nvme.codes import STATUS_BITS, StatusCode, status_field
from hdl.nvme.commands.lifetimes import AGE_BITS
from hdl.nvme.queues import queue_state
from hdl.nvme.queues.entries import EntryRing
from hdl.nvme.queues.queue_at_hand import QueueAtHand
from hdl.nvme.queues.queue_change import QueueChange, change_states, open_states
from hdl.nvme.queues.queue_doorbells import doorbell_checks, doorbell_states
from hdl.nvme.queues.queue_fetch import ADMIN_FETCH, FetchPlan, fetch_states
from hdl.nvme.queues.queue_finish import finish_states
from hdl.nvme.records import (
    QueueOperation,
    assign,
    change,
    doorbell,
    entry,
    finish,
    position_bits,
    queue_bits,
)
from hdl.nvme.registers.registers import AdminQueues


class Event(enum.Enum, shape=3):
    """What the engine is serving."""

    DOORBELL = 0
    FINISH = 1
    CHANGE = 2
    FETCH = 3
    REPORT = 4


class QueueEngine(wiring.Component):
    """Owns every queue's state and serves one event at a time.

    A completion queue entry is reserved when a command is fetched, so a completion never waits for
    a full queue; a submission queue whose completion queue has no room is not fetched from. Of the
    admin queue an entry is fetched at a time. Queues with work take turns.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    admin, enable, running
        Admin queues; work is wanted; the queues work. When ``enable`` goes low, nothing more is
        fetched or posted, and ``running`` follows once no command is inside and ``settled``.
    settled
        What has been posted, and every other write of theirs, has left for the host.
    drained
        No command is inside, nor being fetched.
    fetch_enable
        Commands are wanted: the function may send requests (bus master), and is not being shut
        down.
    shutting
        The host shuts the function down: no event is told any more while it runs.
    doorbell
        Doorbells. A value that the queue cannot have is ignored, as is a queue that does not exist.
    read_request, done, done_index, done_error
        Reads of entries into the inbox, kind ENTRIES, and a pulse when one has ended. Those of the
        admin queue are `ADMIN_FETCH`, one at a time; they wait for no place in the inbox.
    admin_taken
        A pulse: the admin queue's entry has been taken, so that the next one can be fetched.
    entry
        Entries of I/O queues to decode.
    burst
        Arbitration Burst: log2 of the most entries fetched at once.
    age
        Of commands that are submitted now (`hdl.nvme.commands.lifetimes.Lifetimes`).
    finish
        Ended commands.
    report, report_posted
        Ended Asynchronous Event Requests: their fetch has been finished without an entry, so that
        none is reserved; they wait for room in the admin completion queue, and hold nothing. Once
        the host shuts down or disables the controller they are dropped; so are aborted ones for
        which there is no room. ``report_posted``: the one that is being taken is not.
    report_waits
        One waits for room.
    misuse, misuse_value
        A pulse: a doorbell's value is not one that the queue can have, or has already, or would
        make it hold more than it can (``misuse_value``); or there is no such queue.
    change, changed
        Create and delete, and the 15-bit status that answers each. A DELETE_SQ is answered once
        the queue's fetched commands have ended.
    io_queues
        An I/O completion queue exists.
    post
        Completion queue entries.
    raised, vector
        A pulse after the post of an entry: raise this vector.
    answers, answer
        With ``background``, a pulse: the end of a command that was to tell a volume is taken.
    heard, unheard
        With ``background``, pulses, a bit a completion queue: the host has taken all its entries
        that tell a volume something; the queue has gone.

    Rate: an event in 5 cycles (a fetch in 6), four events a command and fewer under load.
    Back-pressure: a stalled ``post`` holds ``finish``, a stalled ``read_request`` holds fetches;
    neither holds doorbells. A queue that is being deleted holds only ``change``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        index = queue_bits(config)
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
                "done": In(1),
                "done_index": In(range(ADMIN_FETCH + 1)),
                "done_error": In(1),
                "admin_taken": In(1),
                "entry": Out(stream.Signature(entry(config))),
                "burst": In(BURST_BITS),
                "age": In(AGE_BITS),
                "finish": In(stream.Signature(finish(config))),
                "report": In(stream.Signature(report())),
                "report_posted": Out(1),
                "report_waits": Out(1),
                "misuse": Out(1),
                "misuse_value": Out(1),
                "change": In(stream.Signature(change(config))),
                "changed": Out(stream.Signature(STATUS_BITS)),
                "io_queues": Out(1),
                "post": Out(stream.Signature(post())),
                "raised": Out(1),
                "vector": Out(index),
                "busy": Out(1),
            }
            | (
                {
                    "answers": Out(1),
                    "answer": Out(answer(config)),
                    "heard": Out(count),
                    "unheard": Out(count),
                }
                if config.background
                else {}
            )
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
            ring.done.eq(self.done & (self.done_index != ADMIN_FETCH)),
            ring.done_index.eq(self.done_index),
            ring.done_error.eq(self.done_error),
            ring.burst.eq(self.burst),
        ]

        # What SQHD may tell. A command that ends has arrived, so no entry of another life is seen.
        m.submodules.heads = heads = memory.Memory(shape=position, depth=count, init=[])
        heads_write, heads_read = heads.write_port(), heads.read_port()
        admin_head, admin_asked = Signal(position), Signal(position)
        arrived = Signal(position)

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
            heads_write.addr.eq(ring.arrived_queue),
            heads_write.data.eq(ring.arrived_head),
            heads_write.en.eq(ring.arrived),
            heads_read.addr.eq(queue),
            arrived.eq(Mux(queue == 0, admin_head, heads_read.data)),
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
        with m.If(self.done & (self.done_index == ADMIN_FETCH)):
            m.d.sync += admin_head.eq(admin_asked)
        with m.If(self.admin_taken):
            m.d.sync += admin_inside.eq(0)

        # Choice of the next queue to fetch from.
        ready = Signal(count)
        m.d.comb += ready.eq(work & Cat(~admin_inside, ring.any_room.replicate(count - 1)))
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

        reporting = event == Event.REPORT
        report_waits = self.report_waits
        finish_in = Signal(finish(config))
        m.d.comb += finish_in.eq(self.finish.payload)
        with m.If(reporting):
            reported = self.report.payload
            m.d.comb += assign(
                finish_in,
                queue=0,
                identifier=reported.identifier,
                status=Mux(
                    reported.aborted, status_field(StatusCode.ABORT_REQUESTED, more=False), 0
                ),
                result=reported.result,
                post=1,
            )
        # No event is told any more: those that come are taken, and nobody waits for them.
        silent = ~self.enable | (self.shutting & self.running)
        posts = finish_in.post & self.enable & self.running & ~(reporting & silent)
        can_fetch = (
            self.running
            & self.enable
            & self.fetch_enable
            & ready.any()
            & ~self.read_request.valid
        )
        can_change = self.change.valid & ~change_waits & ~self.changed.valid
        can_finish = self.finish.valid & ~self.post.valid
        waits_for_room = report_waits & ~silent & ~self.report.payload.aborted
        can_report = self.report.valid & ~self.post.valid & ~waits_for_room
        can_open = self.enable & ~self.running
        can_close = (
            self.running & ~self.enable & (total == 0) & ~self.post.valid & self.settled
        )
        others = can_finish | can_report | can_change | can_fetch

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

        at_hand = QueueAtHand(
            config=config,
            queue=queue,
            cq_queue=cq_queue,
            sq=sq,
            cq=cq,
            sq_base=sq_base,
            cq_base=cq_base,
            sq_write=sq_write,
            cq_write=cq_write,
            sq_base_write=sq_base_write,
            cq_base_write=cq_base_write,
            sq_valid=sq_valid,
            cq_valid=cq_valid,
            work=work,
            stalled=stalled,
            total=total,
            admin_inside=admin_inside,
            admin_asked=admin_asked,
            change_waits=change_waits,
            report_waits=report_waits,
        )
        doorbells = doorbell_checks(m, at_hand, ports=self)

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
                    m.d.sync += [event.eq(Event.FINISH), queue.eq(self.finish.payload.queue)]
                    m.next = "LOAD"
                with m.Elif(can_report):
                    m.d.sync += [event.eq(Event.REPORT), queue.eq(0)]
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
                    with m.Case(Event.FINISH, Event.REPORT):
                        m.next = "FINISH"
                    with m.Case(Event.CHANGE):
                        m.next = "CHANGE"
                    with m.Case(Event.FETCH):
                        m.next = "MEASURE"

            open_states(m, at_hand, ports=self)
            doorbell_states(m, at_hand, doorbells, ports=self)
            finish_states(
                m,
                at_hand,
                config=config,
                ports=self,
                finish_in=finish_in,
                posts=posts,
                arrived=arrived,
                reporting=reporting,
                post_interrupt=post_interrupt,
                post_vector=post_vector,
            )
            fetch_states(m, at_hand, ports=self, plan=plan, ring=ring)
            change_states(m, at_hand, ports=self, judge=judge)

            arrives = can_open | can_close | self.doorbell.valid | others
            waits = ~(arrives | doorbells.frees)
            m.d.comb += self.drained.eq((total == 0) & fsm.ongoing("CHOOSE"))
            idle = fsm.ongoing("CHOOSE") & waits
        m.d.comb += self.busy.eq(~idle | ring.busy | (self.post.valid & self.post.ready))
        return m
