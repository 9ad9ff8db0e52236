"""How queues come and go: the admin queues with the controller, I/O queues when the host asks."""

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.nvme.codes import STATUS_BITS, StatusCode, status_field
from hdl.nvme.queues.queue_at_hand import QueueAtHand
from hdl.nvme.records import QueueOperation, assign


class Effect(enum.Enum, shape=3):
    """What becomes of the queue."""

    NONE = 0
    ADD_CQ = 1
    ADD_SQ = 2
    REMOVE_CQ = 3
    REMOVE_SQ = 4
    DRAIN_SQ = 5
    """Nothing more is fetched; asked again when what is inside has ended."""


class QueueChange(wiring.Component):
    """Judges a change. Combinational.

    Ports
    -----
    operation
        The change.
    sq_exists, cq_exists
        The submission queue, and the completion queue (that of the submission queue, if one is
        created) exist.
    shared
        Submission queues complete to the completion queue.
    inside
        Commands fetched from the submission queue have not ended.
    effect
        What to do; everything but `Effect.DRAIN_SQ` is answered with ``status``.
    status
        15-bit status.

    Source: NVMe 1.4, 5.3 to 5.6.
    """

    operation: In(QueueOperation)
    sq_exists: In(1)
    cq_exists: In(1)
    shared: In(1)
    inside: In(1)
    effect: Out(Effect)
    status: Out(STATUS_BITS)

    def elaborate(self, platform) -> Module:
        m = Module()

        def refuse(code: StatusCode) -> None:
            m.d.comb += self.status.eq(status_field(code))

        def accept(effect: Effect) -> None:
            m.d.comb += self.effect.eq(effect)

        with m.Switch(self.operation):
            with m.Case(QueueOperation.CREATE_CQ):
                with m.If(self.cq_exists):
                    refuse(StatusCode.INVALID_QUEUE)
                with m.Else():
                    accept(Effect.ADD_CQ)
            with m.Case(QueueOperation.CREATE_SQ):
                with m.If(self.sq_exists):
                    refuse(StatusCode.INVALID_QUEUE)
                with m.Elif(~self.cq_exists):
                    refuse(StatusCode.INVALID_CQ)
                with m.Else():
                    accept(Effect.ADD_SQ)
            with m.Case(QueueOperation.DELETE_CQ):
                with m.If(~self.cq_exists):
                    refuse(StatusCode.INVALID_QUEUE)
                with m.Elif(self.shared):
                    refuse(StatusCode.INVALID_QUEUE_DELETION)
                with m.Else():
                    accept(Effect.REMOVE_CQ)
            with m.Case(QueueOperation.DELETE_SQ):
                with m.If(~self.sq_exists):
                    refuse(StatusCode.INVALID_QUEUE)
                with m.Elif(self.inside):
                    accept(Effect.DRAIN_SQ)
                with m.Else():
                    accept(Effect.REMOVE_SQ)
        return m


def open_states(m: Module, at_hand: QueueAtHand, *, ports: Any) -> None:
    """The states OPEN, of the admin queues, and CLOSE, of all. ``ports`` are the engine's."""
    sq_write, cq_write, sq_base_write = at_hand.sq_write, at_hand.cq_write, at_hand.sq_base_write
    cq_base_write, sq_valid, cq_valid = at_hand.cq_base_write, at_hand.sq_valid, at_hand.cq_valid
    work, stalled, change_waits = at_hand.work, at_hand.stalled, at_hand.change_waits
    report_waits = at_hand.report_waits
    silent = {"tells": 0} if at_hand.config.background else {}

    with m.State("OPEN"):
        m.d.comb += [
            *assign(sq_base_write.data, page=ports.admin.sq_page, last=ports.admin.sq_last),
            *assign(cq_base_write.data, page=ports.admin.cq_page, last=ports.admin.cq_last),
            sq_base_write.data.completion.eq(0),
            *assign(cq_base_write.data, vector=0, interrupt=1),
            *assign(sq_write.data, head=0, tail=0, inside=0, marked=0),
            *assign(cq_write.data, head=0, tail=0, phase=1, used=0, queues=1, **silent),
            Cat(p.en for p in (sq_base_write, cq_base_write, sq_write, cq_write)).eq(~0),
        ]
        m.d.sync += [sq_valid.eq(1), cq_valid.eq(1), ports.running.eq(1)]
        m.next = "CHOOSE"

    with m.State("CLOSE"):
        m.d.sync += [
            Cat(sq_valid, cq_valid, work, stalled).eq(0),
            change_waits.eq(0),
            report_waits.eq(0),
            ports.running.eq(0),
        ]
        if at_hand.config.background:
            m.d.comb += ports.unheard.eq(~0)
        m.next = "CHOOSE"


def change_states(m: Module, at_hand: QueueAtHand, *, ports: Any, judge: QueueChange) -> None:
    """The state CHANGE, which does what ``judge`` says of ``ports.change``."""
    queue, cq_queue, sq, cq = at_hand.queue, at_hand.cq_queue, at_hand.sq, at_hand.cq
    sq_write, cq_write, sq_base_write = at_hand.sq_write, at_hand.cq_write, at_hand.sq_base_write
    cq_base_write, sq_valid, cq_valid = at_hand.cq_base_write, at_hand.sq_valid, at_hand.cq_valid
    work, stalled, change_waits = at_hand.work, at_hand.stalled, at_hand.change_waits
    asked = ports.change.payload
    silent = {"tells": 0} if at_hand.config.background else {}

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
                    *assign(cq_write.data, head=0, tail=0, phase=1, used=0, queues=0, **silent),
                    cq_write.en.eq(1),
                    cq_base_write.en.eq(1),
                ]
                m.d.sync += cq_valid.bit_select(cq_queue, 1).eq(1)
            with m.Case(Effect.ADD_SQ):
                m.d.comb += [
                    *assign(sq_write.data, head=0, tail=0, inside=0, marked=0),
                    cq_write.data.queues.eq(cq.queues + 1),
                    sq_write.en.eq(1),
                    cq_write.en.eq(1),
                    sq_base_write.en.eq(1),
                ]
                m.d.sync += sq_valid.bit_select(queue, 1).eq(1)
            with m.Case(Effect.REMOVE_CQ):
                m.d.sync += cq_valid.bit_select(cq_queue, 1).eq(0)
                if at_hand.config.background:
                    m.d.comb += ports.unheard.bit_select(cq_queue, 1).eq(1)
            with m.Case(Effect.DRAIN_SQ, Effect.REMOVE_SQ):
                # No more is fetched.
                m.d.sync += [
                    work.bit_select(queue, 1).eq(0),
                    stalled.bit_select(queue, 1).eq(0),
                ]
                m.d.comb += [*assign(sq_write.data, tail=sq.head, marked=0), sq_write.en.eq(1)]
                with m.If(judge.effect == Effect.REMOVE_SQ):
                    m.d.sync += sq_valid.bit_select(queue, 1).eq(0)
                    m.d.comb += [
                        cq_write.data.queues.eq(cq.queues - 1),
                        cq_write.en.eq(1),
                    ]
        with m.If(judge.effect == Effect.DRAIN_SQ):
            m.d.sync += change_waits.eq(1)
        with m.Else():
            m.d.comb += ports.change.ready.eq(1)
            m.d.sync += [ports.changed.valid.eq(1), ports.changed.payload.eq(judge.status)]
        m.next = "CHOOSE"
