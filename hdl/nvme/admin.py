"""Admin commands (NVMe 1.4 section 5)."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.array.interface import manage_request, manage_response
from hdl.config import DWORDS_PER_BLOCK, Config
from hdl.nvme.codes import (
    ASYNC_EVENT_LIMIT,
    PAGE_SHIFT,
    STATUS_BITS,
    AdminOpcode,
    ListPage,
    LogPage,
    StatusCode,
    StructureCode,
    status_field,
)
from hdl.nvme.features import Features
from hdl.nvme.manage import OPCODES as MANAGE_OPCODES
from hdl.nvme.manage import Manage
from hdl.nvme.records import (
    PageKind,
    QueueOperation,
    assign,
    change,
    finish,
    sqe,
)
from hdl.nvme.sender import send_request

NOT_ABORTED = 1
"""DW0 of Abort: the command was not aborted."""

LOG_DWORDS_BITS = 12
"""NUMDL; NUMDU and offsets are reserved, since LPA does not offer extended data."""

QUEUE_OPERATIONS = {
    AdminOpcode.CREATE_CQ: QueueOperation.CREATE_CQ,
    AdminOpcode.CREATE_SQ: QueueOperation.CREATE_SQ,
    AdminOpcode.DELETE_CQ: QueueOperation.DELETE_CQ,
    AdminOpcode.DELETE_SQ: QueueOperation.DELETE_SQ,
}

STRUCTURES = {
    StructureCode.NAMESPACE: PageKind.NAMESPACE,
    StructureCode.CONTROLLER: PageKind.CONTROLLER,
    StructureCode.ACTIVE_NAMESPACES: PageKind.ACTIVE_NAMESPACES,
    StructureCode.DESCRIPTORS: PageKind.DESCRIPTORS,
}

LOGS = {
    LogPage.ERROR: PageKind.ERROR,
    LogPage.SMART: PageKind.SMART,
    LogPage.FIRMWARE_SLOT: PageKind.FIRMWARE_SLOT,
}

LISTS = {
    ListPage.ARRAYS: PageKind.ARRAYS,
    ListPage.VOLUMES: PageKind.VOLUMES,
    ListPage.DRIVES: PageKind.DRIVES,
}


class Admin(wiring.Component):
    """Executes one admin command at a time.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    entry
        Admin submission queue entries.
    finish
        How they ended. An Asynchronous Event Request ends without a completion queue entry: it
        is held, and no event is ever reported, until the controller is reset.
    change, changed
        Create and delete of I/O queues (`QueueEngine`).
    send, sent
        Pages for the host (`hdl.nvme.sender.PageSender`).
    manage_request, manage_response
        Changes to the tables.
    entry_sizes_good
        CC has the queue entry sizes that I/O queues need.
    io_queues
        There are I/O queues.
    clear
        The controller is being reset: features and held requests are forgotten.
    write_through
        The host has switched the volatile write cache off.

    Latency: about 10 cycles for a command without data, that of `PageGenerator` for one with.

    Errors: everything that the specification asks for in the commands that are supported; an
    opcode that is not gets Invalid Command Opcode.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "entry": In(stream.Signature(sqe())),
                "finish": Out(stream.Signature(finish(config))),
                "change": Out(stream.Signature(change(config))),
                "changed": In(stream.Signature(STATUS_BITS)),
                "send": Out(stream.Signature(send_request(config))),
                "sent": In(stream.Signature(STATUS_BITS)),
                "manage_request": Out(stream.Signature(manage_request(config))),
                "manage_response": In(stream.Signature(manage_response(config))),
                "entry_sizes_good": In(1),
                "io_queues": In(1),
                "clear": In(1),
                "write_through": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.features = features = Features(config=config)
        m.submodules.manage = manage = Manage(config=config)
        wiring.connect(m, wiring.flipped(self.manage_request), manage.manage_request)
        wiring.connect(m, wiring.flipped(self.manage_response), manage.manage_response)

        entry = Signal(sqe())
        status = Signal(STATUS_BITS)
        result = Signal(32)
        posts = Signal()
        held_events = Signal(range(ASYNC_EVENT_LIMIT + 1))

        queue_number = entry.cdw10[:16]
        queue_last = entry.cdw10[16:]
        upper = entry.cdw11[16:]
        structure = entry.cdw10[:8]
        log_dwords = entry.cdw10[16 : 16 + LOG_DWORDS_BITS]

        m.d.comb += [
            features.feature.eq(entry.cdw10[:8]),
            features.saves.eq(entry.cdw10[31]),
            features.value.eq(entry.cdw11),
            features.set.eq(entry.opcode == AdminOpcode.SET_FEATURES.value),
            features.io_queues.eq(self.io_queues),
            features.clear.eq(self.clear),
            self.write_through.eq(features.write_through),
            manage.entry.eq(entry),
            *assign(
                self.finish.payload,
                queue=0,
                identifier=entry.identifier,
                status=status,
                result=result,
                post=posts,
            ),
            *assign(
                self.change.payload,
                queue=queue_number,
                page=entry.prp1[PAGE_SHIFT:],
                last=queue_last,
                completion=upper,
                vector=upper,
                interrupt=entry.cdw11[1],
            ),
        ]
        with m.Switch(entry.opcode):
            for opcode, operation in QUEUE_OPERATIONS.items():
                with m.Case(opcode.value):
                    m.d.comb += self.change.payload.operation.eq(operation)
        with m.If(self.clear):
            m.d.sync += held_events.eq(0)

        def end(code: StatusCode):
            m.d.sync += status.eq(status_field(code))
            m.next = "FINISH"

        def queue_checks(*, creates: bool, on_cq: bool):
            """Checks that need no queue state, in the order of their importance."""
            bad_queue = (queue_number == 0) | (queue_number > config.queue_pairs)
            checks = [(bad_queue, StatusCode.INVALID_QUEUE)]
            if creates:
                checks += [
                    (
                        (queue_last == 0)
                        | (queue_last >= config.queue_depth)
                        | ~self.entry_sizes_good,
                        StatusCode.INVALID_QUEUE_SIZE,
                    ),
                    (~entry.cdw11[0], StatusCode.INVALID_FIELD),
                    (entry.prp1[:PAGE_SHIFT].any(), StatusCode.INVALID_PRP_OFFSET),
                ]
                if on_cq:
                    checks += [(upper > config.queue_pairs, StatusCode.INVALID_VECTOR)]
                else:
                    checks += [
                        (
                            (upper == 0) | (upper > config.queue_pairs),
                            StatusCode.INVALID_QUEUE,
                        )
                    ]
            m.next = "CHANGE"
            for condition, code in reversed(checks):
                with m.If(condition):
                    end(code)

        send = self.send.payload

        def send_page(kinds: dict, code, otherwise: StatusCode, dwords, nsid):
            m.d.sync += assign(send, dwords=dwords, nsid=nsid, prp1=entry.prp1, prp2=entry.prp2)
            with m.Switch(code):
                for value, kind in kinds.items():
                    with m.Case(value.value):
                        m.d.sync += send.kind.eq(kind)
                        m.next = "SEND"
                with m.Default():
                    end(otherwise)

        with m.FSM(name="admin") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.entry.ready.eq(1)
                m.d.sync += [
                    entry.eq(self.entry.payload),
                    status.eq(0),
                    result.eq(0),
                    posts.eq(1),
                ]
                with m.If(self.entry.valid):
                    m.next = "DISPATCH"

            with m.State("DISPATCH"):
                with m.Switch(entry.opcode):
                    for opcode in QUEUE_OPERATIONS:
                        with m.Case(opcode.value):
                            queue_checks(
                                creates=opcode in (AdminOpcode.CREATE_CQ, AdminOpcode.CREATE_SQ),
                                on_cq=opcode == AdminOpcode.CREATE_CQ,
                            )
                    with m.Case(AdminOpcode.IDENTIFY.value):
                        send_page(
                            STRUCTURES,
                            structure,
                            StatusCode.INVALID_FIELD,
                            DWORDS_PER_BLOCK,
                            entry.nsid,
                        )
                        of_one = (structure == StructureCode.NAMESPACE.value) | (
                            structure == StructureCode.DESCRIPTORS.value
                        )
                        unknown = (entry.nsid == 0) | (entry.nsid > config.volumes)
                        after_all = entry.nsid[1:] == (1 << 31) - 1
                        with m.If(
                            (of_one & unknown)
                            | ((structure == StructureCode.ACTIVE_NAMESPACES.value) & after_all)
                        ):
                            end(StatusCode.INVALID_NAMESPACE)
                    with m.Case(AdminOpcode.GET_LOG_PAGE.value):
                        send_page(
                            LOGS,
                            entry.cdw10[:8],
                            StatusCode.INVALID_LOG_PAGE,
                            log_dwords + 1,
                            0,
                        )
                        with m.If(log_dwords >= DWORDS_PER_BLOCK):
                            end(StatusCode.INVALID_FIELD)
                    with m.Case(AdminOpcode.LIST.value):
                        send_page(
                            LISTS,
                            entry.cdw10[:8],
                            StatusCode.INVALID_FIELD,
                            DWORDS_PER_BLOCK,
                            entry.cdw10[8:16],
                        )
                    with m.Case(AdminOpcode.SET_FEATURES.value, AdminOpcode.GET_FEATURES.value):
                        m.d.comb += features.look.eq(1)
                        m.next = "FEATURE"
                    with m.Case(AdminOpcode.ABORT.value):
                        m.d.sync += result.eq(NOT_ABORTED)
                        m.next = "FINISH"
                    with m.Case(AdminOpcode.ASYNC_EVENT_REQUEST.value):
                        with m.If(held_events == ASYNC_EVENT_LIMIT):
                            end(StatusCode.ASYNC_EVENT_LIMIT)
                        with m.Else():
                            m.d.sync += [held_events.eq(held_events + 1), posts.eq(0)]
                            m.next = "FINISH"
                    for opcode in MANAGE_OPCODES:
                        with m.Case(opcode.value):
                            m.d.comb += manage.start.eq((entry.fuse == 0) & (entry.psdt == 0))
                            m.next = "MANAGE"
                    with m.Default():
                        end(StatusCode.INVALID_OPCODE)
                with m.If((entry.fuse != 0) | (entry.psdt != 0)):
                    m.d.comb += features.look.eq(0)
                    m.d.sync += [held_events.eq(held_events), posts.eq(1)]
                    end(StatusCode.INVALID_FIELD)

            with m.State("CHANGE"):
                m.d.comb += self.change.valid.eq(1)
                with m.If(self.change.ready):
                    m.next = "CHANGED"

            with m.State("CHANGED"):
                m.d.comb += self.changed.ready.eq(1)
                m.d.sync += status.eq(self.changed.payload)
                with m.If(self.changed.valid):
                    m.next = "FINISH"

            with m.State("SEND"):
                m.d.comb += self.send.valid.eq(1)
                with m.If(self.send.ready):
                    m.next = "SENT"

            with m.State("SENT"):
                m.d.comb += self.sent.ready.eq(1)
                m.d.sync += status.eq(self.sent.payload)
                with m.If(self.sent.valid):
                    m.next = "FINISH"

            with m.State("FEATURE"):
                m.d.sync += [status.eq(features.status), result.eq(features.result)]
                m.next = "FINISH"

            with m.State("MANAGE"):
                m.d.sync += [status.eq(manage.status), result.eq(manage.result)]
                with m.If(manage.done):
                    m.next = "FINISH"

            with m.State("FINISH"):
                m.d.comb += self.finish.valid.eq(1)
                with m.If(self.finish.ready):
                    m.next = "TAKE"

            waits = (
                (fsm.ongoing("TAKE") & ~self.entry.valid)
                | (self.change.valid & ~self.change.ready)
                | (fsm.ongoing("CHANGED") & ~self.changed.valid)
                | (self.send.valid & ~self.send.ready)
                | (fsm.ongoing("SENT") & ~self.sent.valid)
                | (fsm.ongoing("MANAGE") & ~manage.done)
                | (self.finish.valid & ~self.finish.ready)
            )
            m.d.comb += self.busy.eq(~waits | features.busy | manage.busy)
        return m
