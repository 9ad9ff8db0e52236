"""What a doorbell changes: the tail of a submission queue, the head of a completion queue."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module, Mux, Signal

from hdl.nvme.queues.queue_at_hand import QueueAtHand
from hdl.nvme.records import assign, position_bits


@dataclass(frozen=True, kw_only=True)
class DoorbellChecks:
    """What is found out of a doorbell.

    Of a completion queue, in the cycle after its state. ``checks``: there is one. ``new_cq_head``:
    its value. ``freed``, ``filled``, ``telling``: entries from the head to it, to the tail, and to
    the last that tells what has been lost. ``cq_known``: the queue exists. ``frees``: it has such a
    place. Of a submission queue, at once: ``misuses``: its value is not possible.
    """

    new_cq_head: Signal
    freed: Signal
    filled: Signal
    telling: Signal
    frees: Signal
    checks: Signal
    cq_known: Signal
    misuses: Signal


def doorbell_checks(m: Module, at_hand: QueueAtHand, *, ports: Any) -> DoorbellChecks:
    """Reports a doorbell that is wrong, and gives back the entries that the host has taken, while
    the next event is chosen. ``ports`` are the engine's."""
    queue, cq_queue, cq = at_hand.queue, at_hand.cq_queue, at_hand.cq
    cq_write, sq_valid = at_hand.cq_write, at_hand.sq_valid
    position = position_bits(at_hand.config)
    new_cq_head = Signal(position)
    freed, filled, telling = (Signal(position + 1) for _ in range(3))
    frees = Signal()
    checks, misuses, cq_known = Signal(), Signal(), Signal()
    m.d.sync += [frees.eq(0), checks.eq(0)]
    m.d.comb += [
        ports.misuse.eq(misuses | (checks & ~(frees & (freed <= filled) & (freed != 0)))),
        ports.misuse_value.eq(Mux(misuses, sq_valid.bit_select(queue, 1), cq_known)),
    ]
    with m.If(frees & (freed <= filled)):
        m.d.comb += [
            *assign(cq_write.data, head=new_cq_head, used=cq.used - freed),
            cq_write.en.eq(1),
        ]
        if at_hand.config.background:
            with m.If(cq.tells & (freed >= telling)):
                m.d.comb += [
                    cq_write.data.tells.eq(0),
                    ports.heard.bit_select(cq_queue, 1).eq(1),
                ]
        at_hand.try_again(m)
    return DoorbellChecks(
        new_cq_head=new_cq_head,
        freed=freed,
        filled=filled,
        telling=telling,
        frees=frees,
        checks=checks,
        cq_known=cq_known,
        misuses=misuses,
    )


def doorbell_states(
    m: Module, at_hand: QueueAtHand, doorbells: DoorbellChecks, *, ports: Any
) -> None:
    """The states RING_SQ and RING_CQ. ``ports`` are the engine's."""
    queue, cq_queue, sq, cq = at_hand.queue, at_hand.cq_queue, at_hand.sq, at_hand.cq
    sq_base, cq_base, sq_write = at_hand.sq_base, at_hand.cq_base, at_hand.sq_write
    sq_valid, cq_valid, work = at_hand.sq_valid, at_hand.cq_valid, at_hand.work
    change_waits = at_hand.change_waits

    with m.State("RING_SQ"):
        value = ports.doorbell.payload.value
        m.d.comb += ports.doorbell.ready.eq(1)
        deleting = change_waits & (ports.change.payload.queue == queue)
        # The tail moves forward, and not past entries that have not been fetched.
        after, before = value > sq.tail, value < sq.head
        forward = Mux(sq.tail >= sq.head, after | before, after & before)
        possible = sq_valid.bit_select(queue, 1) & (value <= sq_base.last) & forward
        m.d.comb += doorbells.misuses.eq(ports.running & ~deleting & ~possible)
        with m.If(ports.running & ~deleting & possible):
            m.d.comb += [sq_write.data.tail.eq(value), sq_write.en.eq(1)]
            # What it rings for is as old as the doorbell. Two ages can be told apart; if there are
            # more, what is in the middle counts as older than it is.
            empty, younger = sq.head == sq.tail, sq.age != ports.age
            with m.If(empty | younger):
                m.d.comb += sq_write.data.age.eq(ports.age)
            with m.If(empty):
                m.d.comb += sq_write.data.marked.eq(0)
            with m.Elif(younger):
                m.d.comb += assign(sq_write.data, marked=1, mark=sq.tail, mixed=sq.marked)
                with m.If(~sq.marked):
                    m.d.comb += sq_write.data.older.eq(sq.age)
            m.d.sync += work.bit_select(queue, 1).eq(1)
        m.next = "CHOOSE"

    with m.State("RING_CQ"):
        value = ports.doorbell.payload.value
        m.d.comb += ports.doorbell.ready.eq(1)

        def from_head(to):
            return to - cq.head + Mux(to < cq.head, cq_base.last + 1, 0)

        if at_hand.config.background:
            m.d.sync += doorbells.telling.eq(from_head(cq.news))
        m.d.sync += [
            doorbells.new_cq_head.eq(value),
            doorbells.freed.eq(from_head(value)),
            doorbells.filled.eq(from_head(cq.tail)),
            doorbells.checks.eq(ports.running),
            doorbells.cq_known.eq(cq_valid.bit_select(cq_queue, 1)),
            doorbells.frees.eq(
                ports.running
                & cq_valid.bit_select(cq_queue, 1)
                & (value <= cq_base.last)
            ),
        ]
        m.next = "CHOOSE"
