"""Admin commands (NVMe 1.4 section 5)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import DWORDS_PER_BLOCK, Config
from hdl.flow.attachments import Attachments
from hdl.flow.flush_request import FlushRequest
from hdl.flow.manage import Changes
from hdl.nvme.admin.events import LOGS as EVENT_LOGS
from hdl.nvme.admin.events import PLACES, Events, EventSources, Reports
from hdl.nvme.admin.features import Features, Settings
from hdl.nvme.admin.manage import Manage, opcodes
from hdl.nvme.admin.namespaces import Namespaces, NamespaceStates, VolumeProbe
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
from hdl.nvme.pages.health import note
from hdl.nvme.pages.sender import PageAccess
from hdl.nvme.records import (
    AbortAccess,
    ParameterRead,
    QueueChanges,
    QueueOperation,
    assign,
    finish,
    sqe,
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
        Admin submission queue entries. An entry is taken when its command has ended. The entry of
        an Abort that waits for the command it has aborted is taken before.
    finish
        How commands ended. An Asynchronous Event Request ends without a completion queue entry.
    note
        Commands that failed, for the error log, before they end.
    reports
        Asynchronous Event Requests that end.
    sources
        What may be an event, besides namespaces that change.
    appeared, exists
        Bit a volume, a pulse: it was brought up; a level: it is there.
    attachments
        Volumes that are attached, to be stored.
    namespaces
        Which are not attached, and which have changed.
    probe
        Whether the volume of a Namespace Attachment exists.
    parameter_read
        The read of the controller list of a Namespace Attachment.
    table_changes
        Changes to the array and volume tables.
    settings
        Values of features.
    abort_access
        I/O commands that are to be aborted. If one is found, `SlotTable` ends the Abort behind it,
        and the next command is taken here meanwhile.
    queue_changes
        Changes to the I/O queues (`QueueEngine`).
    pages
        Pages for the host (`hdl.nvme.pages.sender.PageSender`).
    entry_sizes_good
        CC has the queue entry sizes that I/O queues need.
    io_queues
        There are I/O queues.
    clear
        The controller is being reset. Features, events and held requests are forgotten.
    caching
        Writes that began before the volatile write cache was switched off are still inside.
    cache_flush
        The drives are to be flushed.
    stop
        The host disables the controller or shuts it down. Nobody waits for drives any more.
    busy
        Something moves without anybody else being waited for.

    Latency: about 10 cycles for a command without data, that of `PageGenerator` for one with data.

    Errors: everything that the specification asks for in the commands that are supported. An
    opcode that is not supported gets Invalid Command Opcode.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "entry": In(stream.Signature(sqe())),
                "finish": Out(stream.Signature(finish(config))),
                "note": Out(stream.Signature(note(config))),
                "reports": Out(Reports()),
                "sources": In(EventSources()),
                "appeared": In(config.volumes),
                "exists": In(config.volumes),
                "attachments": Out(Attachments(config)),
                "namespaces": Out(NamespaceStates(config)),
                "probe": Out(VolumeProbe(config)),
                "parameter_read": Out(ParameterRead(config)),
                "table_changes": Out(Changes(config)),
                "settings": Out(Settings(config)),
                "abort_access": Out(AbortAccess(config)),
                "queue_changes": Out(QueueChanges(config)),
                "pages": Out(PageAccess(config)),
                "entry_sizes_good": In(1),
                "io_queues": In(1),
                "clear": In(1),
                "caching": In(1),
                "cache_flush": Out(FlushRequest()),
                "stop": In(1),
                "busy": Out(1),
            }
        )

        self._features = Features(config=config)
        self._manage = Manage(config=config)
        self._events = Events(config=config)
        self._namespaces = Namespaces(config=config)

        # How the command ends. ``posts``: it gets a completion queue entry.
        self._status = Signal(STATUS_BITS)
        self._result = Signal(32)
        self._posts = Signal()

        # Fields of its queue entry, as its opcode has them.
        command = self.entry.payload
        self._queue_number = command.cdw10[:16]
        self._queue_last = command.cdw10[16:]
        self._upper = command.cdw11[16:]  # the completion queue, or the vector
        self._structure = command.cdw10[:8]
        self._log_page = command.cdw10[:8]
        self._log_length = Cat(command.cdw10[16:], command.cdw11[:16])
        self._log_offset = Cat(command.cdw12, command.cdw13)
        self._of_namespace = (command.nsid != 0) & (command.nsid != BROADCAST_NSID)
        # No command uses SGLs or is fused.
        self._plain = (command.fuse == 0) & (command.psdt == 0)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.features = self._features
        m.submodules.manage = self._manage
        m.submodules.events = self._events
        m.submodules.namespaces = self._namespaces
        self._connect_features(m)
        self._connect_events(m)
        self._connect_tables(m)
        self._describe_command(m)
        self._describe_change(m)
        flushed = self.cache_flush.flush & self.cache_flush.flushed
        with m.If(flushed):
            m.d.sync += self.cache_flush.flush.eq(0)
        with m.FSM(name="admin") as fsm:
            self._take(m)
            self._dispatch(m)
            self._hold_request(m)
            if self._config.abort_commands:
                self._abort_io(m)
            self._abort_request(m)
            self._change_queue(m)
            self._send_page(m)
            self._answer_feature(m)
            self._store_caches(m)
            self._change_tables(m)
            self._finish(m)
            waits = self._waits(fsm)
        parts = (self._features, self._manage, self._events, self._namespaces)
        m.d.comb += self.busy.eq(~waits | flushed | Cat(part.busy for part in parts).any())
        return m

    def _connect_features(self, m: Module) -> None:
        """`Features` looks at the command, and tells its values to the rest of the front end."""
        features, command = self._features, self.entry.payload
        connect(m, features.settings, flipped(self.settings))
        m.d.comb += [
            features.feature.eq(command.cdw10[:8]),
            features.saves.eq(command.cdw10[31]),
            features.select.eq(command.cdw10[8:11]),
            features.nsid.eq(command.nsid),
            features.value.eq(command.cdw11),
            features.set.eq(command.opcode == AdminOpcode.SET_FEATURES.value),
            features.io_queues.eq(self.io_queues),
            features.clear.eq(self.clear),
        ]

    def _connect_events(self, m: Module) -> None:
        """What `Events` learns, and the requests that it ends."""
        events, manage, namespaces = self._events, self._manage, self._namespaces
        connect(m, events.reports, flipped(self.reports))
        connect(m, flipped(self.sources), events.sources)
        m.d.comb += [
            events.configuration.eq(self._features.events),
            events.clear.eq(self.clear),
            events.identifier.eq(self.entry.payload.identifier),
            events.logs.anew.eq(self._log_offset == 0),
            events.changed.valid.eq(manage.changed | namespaces.changed),
            events.changed.payload.eq(Mux(manage.changed, manage.volume, namespaces.volume)),
            events.appeared.eq(self.appeared),
            self.namespaces.changed.eq(events.changes),
        ]

    def _connect_tables(self, m: Module) -> None:
        """`Manage` creates and deletes volumes, `Namespaces` attaches and detaches them."""
        manage, namespaces, command = self._manage, self._namespaces, self.entry.payload
        connect(m, manage.table_changes, flipped(self.table_changes))
        connect(m, namespaces.parameter_read, flipped(self.parameter_read))
        connect(m, namespaces.probe, flipped(self.probe))
        connect(m, namespaces.attachments, flipped(self.attachments))
        m.d.comb += [
            manage.entry.eq(command),
            namespaces.nsid.eq(command.nsid),
            namespaces.select.eq(command.cdw10),
            namespaces.prp1.eq(command.prp1),
            namespaces.created.eq(manage.created),
            namespaces.created_volume.eq(manage.volume),
            namespaces.exists.eq(self.exists),
            self.namespaces.detached.eq(namespaces.attachments.detached),
        ]

    def _describe_command(self, m: Module) -> None:
        """How the command ends, for the host and for the error log, and what an Abort names."""
        command = self.entry.payload
        m.d.comb += [
            *assign(
                self.finish.payload,
                queue=0,
                identifier=command.identifier,
                status=self._status,
                result=self._result,
                post=self._posts,
            ),
            *assign(
                self.note.payload,
                identifier=command.identifier,
                status=self._status,
                nsid=command.nsid,
            ),
            *assign(
                self.abort_access.command.payload,
                queue=self._queue_number,
                identifier=command.cdw10[16:],
                by=command.identifier,
            ),
        ]

    def _describe_change(self, m: Module) -> None:
        """What a create or a delete asks of the queues."""
        command = self.entry.payload
        m.d.comb += assign(
            self.queue_changes.request.payload,
            queue=self._queue_number,
            page=command.prp1[PAGE_SHIFT:],
            last=self._queue_last,
            completion=self._upper,
            vector=self._upper,
            interrupt=command.cdw11[1],
        )
        with m.Switch(command.opcode):
            for opcode, operation in QUEUE_OPERATIONS.items():
                with m.Case(opcode.value):
                    m.d.comb += self.queue_changes.request.payload.operation.eq(operation)

    def _fail(self, m: Module, code: StatusCode) -> None:
        """Ends a state: the command ends with ``code``."""
        m.d.sync += self._status.eq(status_field(code))
        m.next = "NOTE"

    def _take(self, m: Module) -> None:
        """The state TAKE: waits for a command."""
        with m.State("TAKE"):
            m.d.sync += [
                self._status.eq(0),
                self._result.eq(0),
                self._posts.eq(1),
            ]
            with m.If(self.entry.valid):
                m.next = "DISPATCH"

    def _dispatch(self, m: Module) -> None:
        """The state DISPATCH: the opcode says what follows. Checks that need no table are made."""
        opcode = self.entry.payload.opcode
        with m.State("DISPATCH"):
            with m.Switch(opcode):
                for of_queue in QUEUE_OPERATIONS:
                    with m.Case(of_queue.value):
                        self._check_queue(
                            m,
                            creates=of_queue in (AdminOpcode.CREATE_CQ, AdminOpcode.CREATE_SQ),
                            on_cq=of_queue == AdminOpcode.CREATE_CQ,
                        )
                with m.Case(AdminOpcode.IDENTIFY.value):
                    self._identify(m)
                with m.Case(AdminOpcode.GET_LOG_PAGE.value):
                    self._get_log_page(m)
                with m.Case(AdminOpcode.LIST.value):
                    self._list_tables(m)
                with m.Case(AdminOpcode.SET_FEATURES.value, AdminOpcode.GET_FEATURES.value):
                    m.d.comb += self._features.look.eq(1)
                    m.next = "FEATURE"
                with m.Case(AdminOpcode.ABORT.value):
                    self._choose_abort(m)
                with m.Case(AdminOpcode.ASYNC_EVENT_REQUEST.value):
                    m.next = "HOLD"
                    with m.If(self._events.full):
                        self._fail(m, StatusCode.ASYNC_EVENT_LIMIT)
                with m.Case(AdminOpcode.NAMESPACE_ATTACHMENT.value):
                    m.d.comb += self._namespaces.start.eq(self._plain)
                    m.next = "ATTACH"
                for of_tables in opcodes(self._config):
                    with m.Case(of_tables.value):
                        m.d.comb += self._manage.start.eq(self._plain)
                        m.next = "MANAGE"
                with m.Default():
                    self._fail(m, StatusCode.INVALID_OPCODE)
            with m.If(~self._plain):
                m.d.comb += self._features.look.eq(0)
                self._fail(m, StatusCode.INVALID_FIELD)

    def _check_queue(self, m: Module, *, creates: bool, on_cq: bool) -> None:
        """Checks of a create or a delete that need no queue state, in the order of their
        importance."""
        config, command, upper = self._config, self.entry.payload, self._upper
        queue_number, queue_last = self._queue_number, self._queue_last
        bad_queue = (queue_number == 0) | (queue_number > config.queue_pairs)
        bad_size = (
            (queue_last == 0) | (queue_last >= config.queue_depth) | ~self.entry_sizes_good
        )
        checks = [(bad_queue, StatusCode.INVALID_QUEUE)]
        if creates:
            checks += [
                (bad_size, StatusCode.INVALID_QUEUE_SIZE),
                (~command.cdw11[0], StatusCode.INVALID_FIELD),
                (command.prp1[:PAGE_SHIFT].any(), StatusCode.INVALID_PRP_OFFSET),
                (upper > config.queue_pairs, StatusCode.INVALID_VECTOR)
                if on_cq
                else ((upper == 0) | (upper > config.queue_pairs), StatusCode.INVALID_QUEUE),
            ]
        m.next = "CHANGE"
        for condition, code in reversed(checks):
            with m.If(condition):
                self._fail(m, code)

    def _identify(self, m: Module) -> None:
        """Identify: the page of its CNS, if the namespace can be one that it is about."""
        command, structure = self.entry.payload, self._structure
        of_one = Signal(name="of_one")
        of_some = Signal(name="of_some")
        may_be_every = Signal(name="may_be_every")
        lists_controllers = Signal(name="of_controllers")
        with m.Switch(structure):
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
        self._request_page(
            m,
            STRUCTURES,
            structure,
            otherwise=StatusCode.INVALID_FIELD,
            dwords=DWORDS_PER_BLOCK,
            nsid=Mux(structure == StructureCode.CONTROLLERS.value, 0, command.nsid),
            # No controller has an identifier beyond 0.
            skip=lists_controllers & command.cdw10[16:].any(),
        )
        unknown = (command.nsid == 0) | (command.nsid > self._config.volumes)
        every = command.nsid == BROADCAST_NSID
        after_all = command.nsid[1:] == (1 << 31) - 1
        with m.If((of_one & unknown & ~(may_be_every & every)) | (of_some & after_all)):
            self._fail(m, StatusCode.INVALID_NAMESPACE)

    def _get_log_page(self, m: Module) -> None:
        """Get Log Page: the part of the log that is asked for, if it lies in the log."""
        log_length, log_offset = self._log_length, self._log_offset
        log_size = Signal(range(DWORDS_PER_BLOCK + 1))
        known_log = Signal()
        with m.Switch(self._log_page):
            for page, dwords in log_dwords(self._config).items():
                with m.Case(page.value):
                    m.d.comb += [known_log.eq(1), log_size.eq(dwords)]
        self._request_page(
            m,
            logs(self._config),
            self._log_page,
            otherwise=StatusCode.INVALID_LOG_PAGE,
            dwords=log_length + 1,
            nsid=0,
            skip=log_offset[2:],
        )
        outside = (
            (log_length >= DWORDS_PER_BLOCK)
            | self._of_namespace
            | log_offset[:2].any()
            | (log_offset[2:] > log_size)
        )
        with m.If(known_log & outside):
            self._fail(m, StatusCode.INVALID_FIELD)

    def _list_tables(self, m: Module) -> None:
        """The vendor's LIST: a page of arrays, volumes or drives."""
        command = self.entry.payload
        self._request_page(
            m,
            LISTS,
            command.cdw10[:8],
            otherwise=StatusCode.INVALID_FIELD,
            dwords=DWORDS_PER_BLOCK,
            nsid=command.cdw10[8:16],
        )

    def _request_page(
        self,
        m: Module,
        kinds: dict,
        code: Value,
        *,
        otherwise: StatusCode,
        dwords: ValueLike,
        nsid: ValueLike,
        skip: ValueLike = 0,
    ) -> None:
        """Ends a state: the page that ``code`` names is to be sent.

        ``kinds``: the page of each code. A code that is not there ends the command with
        ``otherwise``. The rest is as in `hdl.nvme.pages.sender.send_request`.
        """
        command, send = self.entry.payload, self.pages.request.payload
        m.d.sync += assign(
            send, dwords=dwords, nsid=nsid, skip=skip, prp1=command.prp1, prp2=command.prp2
        )
        with m.Switch(code):
            for value, kind in kinds.items():
                with m.Case(value.value):
                    m.d.sync += send.kind.eq(kind)
                    m.next = "SEND"
            with m.Default():
                self._fail(m, otherwise)

    def _choose_abort(self, m: Module) -> None:
        """Abort: the queue says which commands are looked at."""
        queue_number = self._queue_number
        m.d.sync += self._result.eq(NOT_ABORTED)
        m.next = "FINISH"
        with m.If(queue_number == 0):
            m.next = "ABORT"
        if self._config.abort_commands:
            with m.Elif(queue_number <= self._config.queue_pairs):
                m.next = "ABORT_IO"

    def _hold_request(self, m: Module) -> None:
        """The state HOLD: `Events` keeps an Asynchronous Event Request."""
        with m.State("HOLD"):
            m.d.comb += self._events.hold.eq(1)
            m.d.sync += self._posts.eq(0)
            m.next = "FINISH"

    def _abort_io(self, m: Module) -> None:
        """The states ABORT_IO and ABORTED: `SlotTable` looks for an I/O command. If it finds the
        command, it ends this Abort as well."""
        with m.State("ABORT_IO"):
            m.d.comb += self.abort_access.command.valid.eq(1)
            with m.If(self.abort_access.command.ready):
                m.next = "ABORTED"

        with m.State("ABORTED"):
            with m.If(self.abort_access.tried):
                m.next = "FINISH"
                with m.If(self.abort_access.found):
                    m.d.comb += self.entry.ready.eq(1)
                    m.next = "TAKE"

    def _abort_request(self, m: Module) -> None:
        """The state ABORT: `Events` looks for a request that it holds. Such requests are the only
        admin commands that wait."""
        events = self._events
        with m.State("ABORT"):
            m.d.comb += [
                events.abort.eq(1),
                events.identifier.eq(self.entry.payload.cdw10[16:]),
            ]
            with m.If(events.aborted):
                m.d.sync += self._result.eq(Mux(events.found, 0, NOT_ABORTED))
                m.next = "FINISH"

    def _change_queue(self, m: Module) -> None:
        """The states CHANGE and CHANGED: the queues create or delete one."""
        with m.State("CHANGE"):
            m.d.comb += self.queue_changes.request.valid.eq(1)
            with m.If(self.queue_changes.request.ready):
                m.next = "CHANGED"

        with m.State("CHANGED"):
            m.d.comb += self.queue_changes.response.ready.eq(1)
            m.d.sync += self._status.eq(self.queue_changes.response.payload)
            with m.If(self.queue_changes.response.valid):
                m.next = "JUDGE"

    def _send_page(self, m: Module) -> None:
        """The states SEND and SENT: the page is made and sent. `Events` learns of the log pages of
        events."""
        command, events, log_page = self.entry.payload, self._events, self._log_page
        gets_log = command.opcode == AdminOpcode.GET_LOG_PAGE.value
        with m.State("SEND"):
            m.d.comb += self.pages.request.valid.eq(1)
            with m.If(gets_log):
                for event, page in EVENT_LOGS.items():
                    m.d.comb += events.logs.begun[PLACES[event]].eq(log_page == page.value)
            with m.If(self.pages.request.ready):
                m.next = "SENT"

        with m.State("SENT"):
            sent = self.pages.response
            m.d.comb += sent.ready.eq(1)
            m.d.sync += self._status.eq(sent.payload)
            with m.If(sent.valid):
                m.next = "JUDGE"
                with m.If(gets_log & ~command.cdw10[RETAIN_BIT] & (sent.payload == 0)):
                    for event, page in EVENT_LOGS.items():
                        m.d.comb += events.logs.cleared[PLACES[event]].eq(log_page == page.value)

    def _answer_feature(self, m: Module) -> None:
        """The state FEATURE: `Features` answers. If the write cache is off now, it is stored."""
        features = self._features
        with m.State("FEATURE"):
            m.d.sync += [self._status.eq(features.status), self._result.eq(features.result)]
            m.next = "JUDGE"
            with m.If(features.stores):
                m.next = "DRAIN"

    def _store_caches(self, m: Module) -> None:
        """The states DRAIN and STORE.

        The cache is off now. From now on each write is stored before it completes, so all that was
        written before must be stored too. A flush goes on although nobody waits for it any more.
        """
        status = self._status
        with m.State("DRAIN"):
            m.d.comb += self.cache_flush.watches.eq(1)
            with m.If(self.stop):
                m.d.sync += status.eq(status_field(StatusCode.INTERNAL_ERROR))
                m.next = "JUDGE"
            with m.Elif(~self.caching & ~self.cache_flush.flush):
                m.d.sync += self.cache_flush.flush.eq(1)
                m.next = "STORE"

        with m.State("STORE"):
            flush = self.cache_flush
            m.d.comb += flush.watches.eq(1)
            with m.If(flush.flushed | self.stop):
                m.next = "JUDGE"
                with m.If(~flush.flushed | ~flush.stored):
                    m.d.sync += status.eq(status_field(StatusCode.INTERNAL_ERROR))

    def _change_tables(self, m: Module) -> None:
        """The states MANAGE and ATTACH: the tables, or what is attached, change."""
        with m.State("MANAGE"):
            m.d.sync += [
                self._status.eq(self._manage.status),
                self._result.eq(self._manage.result),
            ]
            with m.If(self._manage.done):
                m.next = "JUDGE"

        with m.State("ATTACH"):
            m.d.sync += self._status.eq(self._namespaces.status)
            with m.If(self._namespaces.done):
                m.next = "JUDGE"

    def _finish(self, m: Module) -> None:
        """The states JUDGE, NOTE and FINISH: a command that failed goes to the error log first."""
        with m.State("JUDGE"):
            m.next = "FINISH"
            with m.If(self._status != 0):
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

    def _waits(self, fsm) -> Value:
        """Nothing moves in this state until somebody else does something."""
        return (
            (fsm.ongoing("TAKE") & ~self.entry.valid)
            | (self.queue_changes.request.valid & ~self.queue_changes.request.ready)
            | (self.abort_access.command.valid & ~self.abort_access.command.ready)
            | (fsm.ongoing("CHANGED") & ~self.queue_changes.response.valid)
            | (self.pages.request.valid & ~self.pages.request.ready)
            | (fsm.ongoing("SENT") & ~self.pages.response.valid)
            | (fsm.ongoing("MANAGE") & ~self._manage.done)
            | (fsm.ongoing("DRAIN") & ~self.stop & (self.caching | self.cache_flush.flush))
            | (fsm.ongoing("STORE") & ~self.stop & ~self.cache_flush.flushed)
            | (fsm.ongoing("ATTACH") & ~self._namespaces.done)
            | (self.note.valid & ~self.note.ready)
            | (self.finish.valid & ~self.finish.ready)
        )
