"""Whether a queue may be created or deleted, and what becomes of it."""


from amaranth.hdl import Module
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.nvme.codes import STATUS_BITS, StatusCode, status_field
from hdl.nvme.records import QueueOperation


class Effect(enum.Enum, shape=3):
    """What becomes of the queue."""

    NONE = 0
    ADD_CQ = 1
    ADD_SQ = 2
    REMOVE_CQ = 3
    REMOVE_SQ = 4
    DRAIN_SQ = 5
    """Nothing more is fetched. The change is judged again when what is inside has ended."""


class QueueChange(wiring.Component):
    """Judges a change. Combinational.

    Ports
    -----
    operation
        The change.
    sq_exists
        The submission queue exists.
    cq_exists
        The completion queue exists. If a submission queue is created, it is that one's.
    shared
        Submission queues complete to the completion queue.
    inside
        Commands fetched from the submission queue have not ended.
    effect
        What to do.
    status
        Status field that answers the change. `Effect.DRAIN_SQ` is not answered.

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
