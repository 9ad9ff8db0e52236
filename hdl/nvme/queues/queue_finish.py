"""How a completion queue entry is made of a command that has ended."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value

from hdl.config import Config
from hdl.kit.pick import following
from hdl.nvme.codes import CQ_ENTRY_EXPONENT, CQE_DWORDS, PAGE_SHIFT
from hdl.nvme.queues.queue_at_hand import QueueAtHand
from hdl.nvme.records import assign


def finish_states(
    m: Module,
    at_hand: QueueAtHand,
    *,
    config: Config,
    ports: Any,
    finish_in: Any,
    posts: Value,
    arrived: Value,
    reporting: Value,
    post_interrupt: Signal,
    post_vector: Signal,
) -> None:
    """The state FINISH, of the command ``finish_in``.

    ``ports`` are the engine's. ``posts``: it gets an entry, with ``arrived`` as the head of its
    submission queue: slots before it have been read (NVMe 1.4, 4.6). ``reporting``: nothing is
    reserved for it, and it is not inside. ``post_interrupt``, ``post_vector``: of the entry in
    ``ports.post``.
    """
    sq, cq, cq_base = at_hand.sq, at_hand.cq, at_hand.cq_base
    sq_write, cq_write, total = at_hand.sq_write, at_hand.cq_write, at_hand.total
    change_waits, report_waits = at_hand.change_waits, at_hand.report_waits

    with m.State("FINISH"):
        aborted = ports.report.payload.aborted
        no_room = reporting & posts & (cq.used == cq_base.last)
        m.d.comb += [
            ports.finish.ready.eq(~reporting),
            ports.report.ready.eq(reporting & (~no_room | aborted)),
            ports.report_posted.eq(reporting & posts & ~no_room),
            sq_write.data.inside.eq(sq.inside - 1),
            sq_write.en.eq(~reporting),
            cq_write.en.eq(~reporting | posts),
        ]
        if config.background:
            m.d.comb += [
                ports.answers.eq(~reporting & finish_in.tells.any),
                ports.answer.volume.eq(finish_in.tells.volume),
                ports.answer.posted.eq(posts),
                ports.answer.queue.eq(at_hand.cq_queue),
            ]
            with m.If(ports.answers & posts):
                m.d.comb += assign(
                    cq_write.data, news=following(cq.tail, cq_base.last), tells=1
                )
        with m.If(~reporting):
            m.d.sync += [total.eq(total - 1), change_waits.eq(0)]
        with m.If(no_room):
            m.d.comb += cq_write.en.eq(0)
            m.d.sync += report_waits.eq(~aborted)
        with m.Elif(posts):
            with m.If(reporting):
                m.d.comb += cq_write.data.used.eq(cq.used + 1)
            m.d.comb += [
                cq_write.data.tail.eq(following(cq.tail, cq_base.last)),
                cq_write.data.phase.eq(cq.phase ^ (cq.tail == cq_base.last)),
            ]
            m.d.sync += [
                ports.post.valid.eq(1),
                *assign(
                    ports.post.payload,
                    address=Cat(Const(0, PAGE_SHIFT), cq_base.page)
                    + Cat(Const(0, CQ_ENTRY_EXPONENT), cq.tail),
                    dwords=CQE_DWORDS,
                    data=Cat(
                        finish_in.result,
                        Const(0, 32),
                        arrived | Const(0, 16),
                        finish_in.queue | Const(0, 16),
                        finish_in.identifier,
                        cq.phase,
                        finish_in.status,
                    ),
                ),
                post_interrupt.eq(cq_base.interrupt),
                post_vector.eq(cq_base.vector),
            ]
        with m.Elif(~reporting):
            m.d.comb += cq_write.data.used.eq(cq.used - 1)
            at_hand.try_again(m)
        m.next = "CHOOSE"
