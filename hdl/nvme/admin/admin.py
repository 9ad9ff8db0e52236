"""Admin commands (NVMe 1.4 section 5)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import DWORDS_PER_BLOCK, Config
from hdl.flow.host_memory import read_request
from hdl.flow.manage import manage_request, manage_response
from hdl.nvme.admin.events import LOGS as EVENT_LOGS
from hdl.nvme.admin.events import PLACES, Events, report
from hdl.nvme.admin.features import BURST_BITS, Features
from hdl.nvme.admin.manage import Manage, opcodes
from hdl.nvme.admin.namespaces import Namespaces
from hdl.nvme.codes import (
    BROADCAST_NSID,
    PAGE_SHIFT,
    STATUS_BITS,
    AdminOpcode,
    StatusCode,
    StructureCode,
    status_field,
)
from hdl.nvme.pages.catalogue import LISTS, STRUCTURES, log_dwords, logs
from hdl.nvme.pages.facts import WARNING_BITS
from hdl.nvme.pages.health import note
from hdl.nvme.pages.sender import send_request
from hdl.nvme.records import (
    QueueOperation,
    assign,
    change,
    finish,
    sqe,
    target,
)

NOT_ABORTED = 1
"""DW0 of Abort: the command was not aborted."""

RETAIN_BIT = 15
"""RAE in CDW10 of Get Log Page: the events of the log's type stay masked."""

QUEUE_OPERATIONS = {
    AdminOpcode.CREATE_CQ: QueueOperation.CREATE_CQ,
    AdminOpcode.CREATE_SQ: QueueOperation.CREATE_SQ,
    AdminOpcode.DELETE_CQ: QueueOperation.DELETE_CQ,
    AdminOpcode.DELETE_SQ: QueueOperation.DELETE_SQ,
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
        Admin submission queue entries; each is taken when its command has ended, or when an Abort
        waits for the command that it has aborted.
    finish
        How they ended. An Asynchronous Event Request ends without a completion queue entry.
    note
        Those that failed, for the error log, before they end.
    report, report_posted, report_waits
        Ended Asynchronous Event Requests (`hdl.nvme.admin.events.Events`), that the one that is
        being taken gets an entry, and that one waits for room.
    abort, aborted, found
        I/O commands that are to be aborted, a pulse when that has been tried, and whether it will
        end so: then `SlotTable` ends the Abort behind it, and the next command is taken here
        meanwhile. Not used without `Config.abort_commands`.
    change, changed
        Create and delete of I/O queues (`QueueEngine`).
    send, sent
        Pages for the host (`hdl.nvme.pages.sender.PageSender`).
    manage_request, manage_response
        Changes to the tables.
    entry_sizes_good
        CC has the queue entry sizes that I/O queues need.
    io_queues
        There are I/O queues.
    clear
        The controller is being reset: features, events and held requests are forgotten.
    misuse, misuse_value, warning, news, changes
        As in `hdl.nvme.admin.events.Events`.
    detached, probe, allocated, read_request, read_done, read_error, parameter
        As in `hdl.nvme.admin.namespaces.Namespaces`.
    over, under, burst, threshold, delay, uncoalesced
        As in `hdl.nvme.admin.features.Features`.
    write_through
        The host has switched the volatile write cache off.
    caching, flush, flushed, stored
        Writes that began before are inside. A level, then: the drives are to be flushed; it stays
        until answered, and whether all of them have stored what they had.
    stop
        The host disables the controller, or shuts it down: nobody waits for drives any more.

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
                "note": Out(stream.Signature(note(config))),
                "report": Out(stream.Signature(report())),
                "report_posted": In(1),
                "report_waits": In(1),
                "misuse": In(1),
                "misuse_value": In(1),
                "warning": In(WARNING_BITS),
                "news": In(1),
                "changes": Out(config.volumes),
                "detached": Out(config.volumes),
                "probe": Out(config.volume_bits),
                "allocated": In(1),
                "read_request": Out(stream.Signature(read_request(config))),
                "read_done": In(1),
                "read_error": In(1),
                "parameter": In(32),
                "over": Out(16),
                "under": Out(16),
                "burst": Out(BURST_BITS),
                "threshold": Out(8),
                "delay": Out(8),
                "uncoalesced": Out(config.queue_pairs + 1),
                "abort": Out(stream.Signature(target(config))),
                "aborted": In(1),
                "found": In(1),
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
                "caching": In(1),
                "flush": Out(1),
                "flushed": In(1),
                "stored": In(1),
                "stop": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.features = features = Features(config=config)
        m.submodules.manage = manage = Manage(config=config)
        m.submodules.events = events = Events(config=config)
        m.submodules.namespaces = namespaces = Namespaces(config=config)
        wiring.connect(m, wiring.flipped(self.read_request), namespaces.read_request)
        m.d.comb += [
            namespaces.allocated.eq(self.allocated),
            namespaces.read_done.eq(self.read_done),
            namespaces.read_error.eq(self.read_error),
            namespaces.parameter.eq(self.parameter),
            self.probe.eq(namespaces.probe),
            self.detached.eq(namespaces.detached),
        ]
        wiring.connect(m, wiring.flipped(self.report), events.report)
        for name in ("over", "under", "burst", "threshold", "delay", "uncoalesced"):
            m.d.comb += getattr(self, name).eq(getattr(features, name))
        m.d.comb += [
            events.misuse.eq(self.misuse),
            events.misuse_value.eq(self.misuse_value),
            events.warning.eq(self.warning),
            events.posted.eq(self.report_posted),
            events.stalled.eq(self.report_waits),
            events.news.eq(self.news),
            events.configuration.eq(features.events),
            events.clear.eq(self.clear),
            self.changes.eq(events.changes),
        ]
        wiring.connect(m, wiring.flipped(self.manage_request), manage.manage_request)
        wiring.connect(m, wiring.flipped(self.manage_response), manage.manage_response)

        entry = self.entry.payload
        status = Signal(STATUS_BITS)
        result = Signal(32)
        posts = Signal()

        of_one, may_be_every, of_some, lists_controllers = (
            Signal(name=name) for name in ("of_one", "may_be_every", "of_some", "of_controllers")
        )
        with m.Switch(entry.cdw10[:8]):
            with m.Case(StructureCode.NAMESPACE.value):
                m.d.comb += [of_one.eq(1), may_be_every.eq(1)]
            with m.Case(StructureCode.DESCRIPTORS.value, StructureCode.ALLOCATED_NAMESPACE.value):
                m.d.comb += of_one.eq(1)
            with m.Case(StructureCode.NAMESPACE_CONTROLLERS.value):
                m.d.comb += [of_one.eq(1), lists_controllers.eq(1)]
            with m.Case(StructureCode.CONTROLLERS.value):
                m.d.comb += lists_controllers.eq(1)
            with m.Case(
                StructureCode.ACTIVE_NAMESPACES.value, StructureCode.ALLOCATED_NAMESPACES.value
            ):
                m.d.comb += of_some.eq(1)
        queue_number = entry.cdw10[:16]
        queue_last = entry.cdw10[16:]
        upper = entry.cdw11[16:]
        structure = entry.cdw10[:8]
        log_page = entry.cdw10[:8]
        log_length = Cat(entry.cdw10[16:], entry.cdw11[:16])
        log_offset = Cat(entry.cdw12, entry.cdw13)
        of_namespace = (entry.nsid != 0) & (entry.nsid != BROADCAST_NSID)

        m.d.comb += [
            features.feature.eq(entry.cdw10[:8]),
            features.saves.eq(entry.cdw10[31]),
            features.select.eq(entry.cdw10[8:11]),
            features.nsid.eq(entry.nsid),
            events.identifier.eq(entry.identifier),
            events.anew.eq(log_offset == 0),
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
                self.abort.payload,
                queue=queue_number,
                identifier=entry.cdw10[16:],
                by=entry.identifier,
            ),
            *assign(
                self.note.payload,
                identifier=entry.identifier,
                status=status,
                nsid=entry.nsid,
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
        m.d.comb += [
            namespaces.nsid.eq(entry.nsid),
            namespaces.select.eq(entry.cdw10),
            namespaces.prp1.eq(entry.prp1),
            namespaces.created.eq(manage.created),
            namespaces.created_volume.eq(manage.volume),
            events.changed.eq(manage.changed | namespaces.changed),
            events.namespace.eq(Mux(manage.changed, manage.volume, namespaces.volume)),
        ]
        with m.Switch(entry.opcode):
            for opcode, operation in QUEUE_OPERATIONS.items():
                with m.Case(opcode.value):
                    m.d.comb += self.change.payload.operation.eq(operation)
        log_size = Signal(range(DWORDS_PER_BLOCK + 1))
        known_log = Signal()
        with m.Switch(log_page):
            for page, dwords in log_dwords(config).items():
                with m.Case(page.value):
                    m.d.comb += [known_log.eq(1), log_size.eq(dwords)]

        def end(code: StatusCode):
            m.d.sync += status.eq(status_field(code))
            m.next = "NOTE"

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

        def send_page(kinds: dict, code, otherwise: StatusCode, dwords, nsid, skip=0):
            m.d.sync += assign(
                send, dwords=dwords, nsid=nsid, skip=skip, prp1=entry.prp1, prp2=entry.prp2
            )
            with m.Switch(code):
                for value, kind in kinds.items():
                    with m.Case(value.value):
                        m.d.sync += send.kind.eq(kind)
                        m.next = "SEND"
                with m.Default():
                    end(otherwise)

        with m.If(self.flush & self.flushed):
            m.d.sync += self.flush.eq(0)

        with m.FSM(name="admin") as fsm:
            with m.State("TAKE"):
                m.d.sync += [
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
                            Mux(structure == StructureCode.CONTROLLERS.value, 0, entry.nsid),
                            # No controller has an identifier beyond 0.
                            lists_controllers & entry.cdw10[16:].any(),
                        )
                        unknown = (entry.nsid == 0) | (entry.nsid > config.volumes)
                        every = entry.nsid == BROADCAST_NSID
                        after_all = entry.nsid[1:] == (1 << 31) - 1
                        with m.If(
                            (of_one & unknown & ~(may_be_every & every)) | (of_some & after_all)
                        ):
                            end(StatusCode.INVALID_NAMESPACE)
                    with m.Case(AdminOpcode.GET_LOG_PAGE.value):
                        send_page(
                            logs(config),
                            log_page,
                            StatusCode.INVALID_LOG_PAGE,
                            log_length + 1,
                            0,
                            log_offset[2:],
                        )
                        with m.If(
                            known_log
                            & (
                                (log_length >= DWORDS_PER_BLOCK)
                                | of_namespace
                                | log_offset[:2].any()
                                | (log_offset[2:] > log_size)
                            )
                        ):
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
                        with m.If(queue_number == 0):
                            m.next = "ABORT"
                        if config.abort_commands:
                            with m.Elif(queue_number <= config.queue_pairs):
                                m.next = "ABORT_IO"
                    with m.Case(AdminOpcode.ASYNC_EVENT_REQUEST.value):
                        m.next = "HOLD"
                        with m.If(events.full):
                            end(StatusCode.ASYNC_EVENT_LIMIT)
                    with m.Case(AdminOpcode.NAMESPACE_ATTACHMENT.value):
                        m.d.comb += namespaces.start.eq((entry.fuse == 0) & (entry.psdt == 0))
                        m.next = "ATTACH"
                    for opcode in opcodes(config):
                        with m.Case(opcode.value):
                            m.d.comb += manage.start.eq((entry.fuse == 0) & (entry.psdt == 0))
                            m.next = "MANAGE"
                    with m.Default():
                        end(StatusCode.INVALID_OPCODE)
                with m.If((entry.fuse != 0) | (entry.psdt != 0)):
                    m.d.comb += features.look.eq(0)
                    end(StatusCode.INVALID_FIELD)

            with m.State("HOLD"):
                m.d.comb += events.hold.eq(1)
                m.d.sync += posts.eq(0)
                m.next = "FINISH"

            if config.abort_commands:
                with m.State("ABORT_IO"):
                    m.d.comb += self.abort.valid.eq(1)
                    with m.If(self.abort.ready):
                        m.next = "ABORTED"

                with m.State("ABORTED"):
                    with m.If(self.aborted):
                        m.next = "FINISH"
                        with m.If(self.found):
                            m.d.comb += self.entry.ready.eq(1)
                            m.next = "TAKE"

            # Requests that are held are the only admin commands that wait.
            with m.State("ABORT"):
                m.d.comb += [
                    events.abort.eq(1),
                    events.identifier.eq(entry.cdw10[16:]),
                ]
                with m.If(events.aborted):
                    m.d.sync += result.eq(Mux(events.found, 0, NOT_ABORTED))
                    m.next = "FINISH"

            with m.State("CHANGE"):
                m.d.comb += self.change.valid.eq(1)
                with m.If(self.change.ready):
                    m.next = "CHANGED"

            with m.State("CHANGED"):
                m.d.comb += self.changed.ready.eq(1)
                m.d.sync += status.eq(self.changed.payload)
                with m.If(self.changed.valid):
                    m.next = "JUDGE"

            with m.State("SEND"):
                m.d.comb += self.send.valid.eq(1)
                with m.If(entry.opcode == AdminOpcode.GET_LOG_PAGE.value):
                    for event, page in EVENT_LOGS.items():
                        m.d.comb += events.begun[PLACES[event]].eq(log_page == page.value)
                with m.If(self.send.ready):
                    m.next = "SENT"

            with m.State("SENT"):
                m.d.comb += self.sent.ready.eq(1)
                m.d.sync += status.eq(self.sent.payload)
                with m.If(self.sent.valid):
                    m.next = "JUDGE"
                    with m.If(
                        (entry.opcode == AdminOpcode.GET_LOG_PAGE.value)
                        & ~entry.cdw10[RETAIN_BIT]
                        & (self.sent.payload == 0)
                    ):
                        for event, page in EVENT_LOGS.items():
                            m.d.comb += events.cleared[PLACES[event]].eq(log_page == page.value)

            with m.State("FEATURE"):
                m.d.sync += [status.eq(features.status), result.eq(features.result)]
                m.next = "JUDGE"
                with m.If(features.stores):
                    m.next = "DRAIN"

            # The cache is off, so all that has been written must be stored as from now on each
            # write is before it completes. A flush that nobody waits for goes on.
            with m.State("DRAIN"):
                with m.If(self.stop):
                    m.next = "GIVE-UP"
                with m.Elif(~self.caching & ~self.flush):
                    m.d.sync += self.flush.eq(1)
                    m.next = "STORE"

            with m.State("STORE"):
                with m.If(self.flushed):
                    m.next = "JUDGE"
                    with m.If(~self.stored):
                        m.d.sync += status.eq(status_field(StatusCode.INTERNAL_ERROR))
                with m.Elif(self.stop):
                    m.next = "GIVE-UP"

            with m.State("GIVE-UP"):
                m.d.sync += status.eq(status_field(StatusCode.COMMAND_INTERRUPTED))
                m.next = "JUDGE"

            with m.State("MANAGE"):
                m.d.sync += [status.eq(manage.status), result.eq(manage.result)]
                with m.If(manage.done):
                    m.next = "JUDGE"

            with m.State("ATTACH"):
                m.d.sync += status.eq(namespaces.status)
                with m.If(namespaces.done):
                    m.next = "JUDGE"

            with m.State("JUDGE"):
                m.next = "FINISH"
                with m.If(status != 0):
                    m.next = "NOTE"

            with m.State("NOTE"):
                m.d.comb += self.note.valid.eq(1)
                with m.If(self.note.ready):
                    m.next = "FINISH"

            with m.State("FINISH"):
                m.d.comb += self.finish.valid.eq(1)
                with m.If(self.finish.ready):
                    m.d.comb += self.entry.ready.eq(1)
                    m.next = "TAKE"

            waits = (
                (fsm.ongoing("TAKE") & ~self.entry.valid)
                | (self.change.valid & ~self.change.ready)
                | (self.abort.valid & ~self.abort.ready)
                | (fsm.ongoing("CHANGED") & ~self.changed.valid)
                | (self.send.valid & ~self.send.ready)
                | (fsm.ongoing("SENT") & ~self.sent.valid)
                | (fsm.ongoing("MANAGE") & ~manage.done)
                | (fsm.ongoing("DRAIN") & ~self.stop & (self.caching | self.flush))
                | (fsm.ongoing("STORE") & ~self.stop & ~self.flushed)
                | (fsm.ongoing("ATTACH") & ~namespaces.done)
                | (self.note.valid & ~self.note.ready)
                | (self.finish.valid & ~self.finish.ready)
            )
            parts = (features, manage, events, namespaces)
            m.d.comb += self.busy.eq(
                ~waits | (self.flush & self.flushed) | Cat(part.busy for part in parts).any()
            )
        return m
