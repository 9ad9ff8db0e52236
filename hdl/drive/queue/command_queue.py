"""Operations waiting for their drives: merged into commands, launched, and reported at the end."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.drive.queue.operation_report import OperationReport
from hdl.drive.queue.port_queue import port_queue, run, span
from hdl.drive.records import (
    BLOCK_COUNT_BITS,
    command_end,
    command_start,
    command_tag,
    operation_bits,
    queued_operation,
)
from hdl.flow.drive_port import MERGE_BLOCKS, drive_command
from hdl.flow.operation import DriveStatus, finished, has_data, load_bits, operation
from hdl.flow.recovery import tried_bits
from hdl.kit.disjoint import DISJOINT
from hdl.kit.free_list import FreeList
from hdl.kit.pick import RoundRobin
from hdl.kit.queue import Queue
from hdl.kit.table import Table, TableRead, clear


class CommandQueue(wiring.Component):
    """Queues operations for all ports, merges neighbours, sends commands, tells who asked.

    A run grows by an operation with the same opcode and ``fua`` whose block follows, up to
    `MERGE_BLOCKS`. FLUSH and what is ``alone`` stay alone. Runs of a port are sent in order. The
    last run waits for its neighbour while its ``more`` is set, it has room, and the port has a
    command outstanding. Three kinds of operations are not sent. Those for a port in ``failed`` end
    with GONE. Those for a port in ``slow`` that can be had ``elsewhere`` end as SLOW. Those that
    are ``dated`` from before their drive restarted last end as if they had been sent.

    A command that fails does so at one block. Of a read, blocks that were moved are good, the first
    one that was not has the drive's status, those after it are UNREACHED. Of a write, data that was
    moved need not be stored, so if it has several operations all of them are UNREACHED. A drive
    that is GONE is gone for all of them, and a read that is SLOW in all that has not been moved.

    An operation takes 2 cycles, and a command that is sent takes 3. A command that ended takes 2,
    and one for each operation or failed block. An operation is offered to an idle drive 5 cycles
    after it was taken. It waits while all ``config.operations`` are in use. ``end`` waits while as
    many ``finished`` wait to be taken.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    operation
        Operations (`hdl.flow.operation.operation`).
    finished
        Their ends (`hdl.flow.operation.finished`).
    failed
        A bit a port: its drive has failed.
    restarts
        With ``background``: how often the drive of each port has restarted.
    held
        A bit a port: nothing is sent, from this cycle on. What is offered stays so.
    began
        A pulse: a command is offered to its port.
    begun
        That command.
    elsewhere
        As its operations say: its blocks can be had elsewhere.
    orphans
        Tags that must not be used, ``drive_tags`` bits a port.
    freed
        A bit a port: it has fewer of them.
    slow
        A bit a port: it has orphans, and may take long for anything else.
    command
        To the drive ports.
    start
        A command is about to be sent.
    end
        A command is over.
    room
        How many operations can be taken.
    load_read
        How many blocks a port has been asked for and not answered.
    operations
        The queued operation, for the block control.
    next_operation
        Its successor in the run, for the block control.
    busy
        Something can be done.
    """

    def __init__(self, *, config: Config):
        self._config = config
        number = operation_bits(config)
        super().__init__(
            {
                "operation": In(stream.Signature(operation(config))),
                "finished": Out(stream.Signature(finished(config))),
                "failed": In(MAX_DRIVES),
                "restarts": In(tried_bits(config)).array(config.ports),
                "held": In(config.ports),
                "began": Out(1),
                "begun": Out(command_tag(config)),
                "elsewhere": Out(1),
                "orphans": In(config.ports * config.drive_tags),
                "freed": In(config.ports),
                "slow": In(config.ports),
                "command": Out(stream.Signature(drive_command(config))).array(config.ports),
                "start": Out(stream.Signature(command_start(config))),
                "end": In(stream.Signature(command_end(config))),
                "operations": In(TableRead(number, queued_operation(config))),
                "next_operation": In(TableRead(number, number)),
                "room": Out(range(config.operations + 1)),
                "load_read": In(TableRead(config.port_bits, load_bits(config))),
                "busy": Out(1),
            }
        )

        # What is kept: operations, and the next one of each in its run; runs, named by their first
        # operation, and the next run of the port; commands; the queue and the load of each port.
        tag_bits = command_tag(config).size
        self._operations = Table(
            queued_operation(config), config.operations, reads=2, attrs=DISJOINT
        )
        self._next = Table(number, config.operations, reads=2)
        self._runs = Table(run(config), config.operations)
        self._next_runs = Table(number, config.operations)
        self._spans = Table(span(config), 1 << tag_bits)
        self._queues = Table(port_queue(config), 1 << bits_for_count(config.ports))
        self._loads = Table(load_bits(config), 1 << config.port_bits, reads=2)
        self._free = FreeList(count=config.operations)
        self._ends = Queue(finished(config), config.operations)
        self._choose = RoundRobin(count=config.ports)

        # A bit a port: its queue or tags have changed; its command register is not empty, and is
        # being filled.
        self._check = Signal(config.ports)
        self._marked = Signal(config.ports)
        self._cleared = Signal(config.ports)
        self._offered = Signal(config.ports)
        self._sent = Signal(config.ports)

        # The port at hand, and its queue, which is read all the time.
        self._port = Signal(bits_for_count(config.ports))
        self._mask = Signal(config.ports)
        self._queue = self._queues.reads[0].data

        # An operation that is taken, and its number; the length of the run that it joins or begins.
        self._incoming = Signal(operation(config))
        self._new = Signal(number)
        self._length = Signal(BLOCK_COUNT_BITS)
        self._joins = Signal()
        self._run = Signal(run(config))

        # The run that is launched: all of its port, a cycle ago.
        self._tag = Signal(config.tag_bits)
        self._tag_mask = Signal(config.drive_tags)
        self._free_tags = Signal(config.drive_tags)
        self._launch_queue = Signal(port_queue(config))
        self._launch_tag = Signal(config.tag_bits)
        self._launch_tag_mask = Signal(config.drive_tags)
        self._launch_failed = Signal()
        self._launch_restarts = Signal(tried_bits(config))
        self._launch_slow = Signal()
        self._launch_sends = Signal()
        self._port_held = Signal()  # nothing must be sent to the port now

        # The command that is over: the operation at hand, and the last one.
        self._ended = Signal(command_end(config))
        self._cursor = Signal(number)
        self._tail = Signal(number)
        self._moved = Signal(BLOCK_COUNT_BITS)
        self._status = Signal(DriveStatus)
        self._several = Signal()
        self._operation = self._operations.reads[0].data
        self._report = OperationReport(config=config)

    def elaborate(self, platform) -> Module:
        m = Module()
        self._add_parts(m)
        self._connect_ports(m)
        self._connect_tables(m)
        self._connect_incoming(m)
        self._connect_launch(m)
        self._connect_report(m)
        with m.FSM(name="command_queue") as fsm:
            with m.State("CLEAR"):
                with m.If(clear(m, self._queues, self._loads)):
                    m.next = "PICK"
            moves = self._pick(m)
            self._enqueue(m)
            self._inspect(m)
            self._launch(m)
            self._release(m)
            self._walk(m)
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("PICK") | moves | self._free.busy | self.start.valid | self._ends.busy
        )
        return m

    def _add_parts(self, m: Module) -> None:
        m.submodules.operation_table = self._operations
        m.submodules.next_table = self._next
        m.submodules.run_table = self._runs
        m.submodules.next_run_table = self._next_runs
        m.submodules.span_table = self._spans
        m.submodules.queue_table = self._queues
        m.submodules.load_table = self._loads
        m.submodules.free = self._free
        m.submodules.ends = self._ends
        m.submodules.choose = self._choose
        m.submodules.report = self._report

    def _connect_ports(self, m: Module) -> None:
        """The command registers of the ports, and which port is looked at next."""
        ports = self._config.ports
        accepted = Cat(port.ready for port in self.command)
        payload = Signal(drive_command(self._config))
        m.d.comb += [
            self._choose.requests.eq(
                self._check & (~self._offered | self.failed[:ports]) & ~self.held
            ),
            payload.tag.eq(self._launch_tag),
            payload.opcode.eq(self._operation.opcode),
            payload.fua.eq(self._operation.fua),
            payload.block.eq(self._operation.block),
            payload.blocks.eq(self._runs.reads[0].data.blocks - 1),
        ]
        m.d.sync += [
            self._offered.eq((self._offered & ~accepted) | self._sent),
            self._check.eq((self._check & ~self._cleared) | self._marked | self.freed),
        ]
        for index, port in enumerate(self.command):
            m.d.comb += port.valid.eq(self._offered[index])
            with m.If(self._sent[index]):
                m.d.sync += port.payload.eq(payload)

    def _connect_tables(self, m: Module) -> None:
        """Where tables are read and written, but for states that say otherwise."""
        queue, queues, loads, runs = self._queue, self._queues, self._loads, self._runs
        connect(m, self._ends.output, flipped(self.finished))
        connect(m, flipped(self.operations), self._operations.reads[1])
        connect(m, flipped(self.next_operation), self._next.reads[1])
        connect(m, flipped(self.load_read), loads.reads[1])
        m.d.comb += [
            queues.reads[0].address.eq(self._port),
            queues.write.address.eq(self._port),
            queues.write.data.eq(queue),
            loads.reads[0].address.eq(queues.reads[0].address),
            loads.write.address.eq(queues.write.address),
            loads.write.enable.eq(queues.write.enable),
            loads.write.data.eq(loads.reads[0].data),
            runs.reads[0].address.eq(queue.first),
            self._next_runs.reads[0].address.eq(queue.first),
            self._operations.reads[0].address.eq(self._cursor),
            self._next.reads[0].address.eq(self._cursor),
        ]

    def _connect_incoming(self, m: Module) -> None:
        """The run that a new operation joins or begins."""
        config, queue, incoming, new = self._config, self._queue, self._incoming, self._new
        total = Signal(BLOCK_COUNT_BITS + 1)
        same_haste = queue.elsewhere == incoming.elsewhere
        dated = incoming.dated
        alike = (queue.dated == dated) & (~dated | (queue.restarts == incoming.restarts))
        m.d.comb += [
            self._length.eq(incoming.blocks + 1),
            total.eq(queue.blocks + self._length),
            self._joins.eq(
                queue.runs.any()
                & (queue.opcode == incoming.opcode)
                & (queue.fua == incoming.fua)
                & (queue.follows == incoming.block)
                & has_data(incoming.opcode)
                & ~incoming.alone
                & ~queue.alone
                & same_haste
                & alike
                & (total <= MERGE_BLOCKS)
            ),
            self._run.tail.eq(new),
            self._run.blocks.eq(Mux(self._joins, total, self._length)),
            self._operations.write.address.eq(new),
            self._next.write.address.eq(queue.tail),
            self._next.write.data.eq(new),
            self._runs.write.address.eq(Mux(self._joins, queue.last, new)),
            self._runs.write.data.eq(self._run),
            self._next_runs.write.address.eq(queue.last),
            self._next_runs.write.data.eq(new),
        ]
        for name, _ in queued_operation(config):
            m.d.comb += self._operations.write.data[name].eq(incoming[name])

    def _connect_launch(self, m: Module) -> None:
        """The lowest tag that is free, and what is told of a command that is sent."""
        config, spans, held, tag = self._config, self._spans, self._launch_queue, self._tag
        tags = config.drive_tags
        orphans = self.orphans.word_select(self._port, tags)
        lowest = self._free_tags & -self._free_tags
        m.d.comb += [
            self._free_tags.eq(~(self._queue.tags | orphans)),
            self._tag_mask.eq(lowest),
            spans.write.address.eq(Cat(self._launch_tag, self._port)),
            spans.write.data.head.eq(held.first),
            spans.write.data.tail.eq(self._runs.reads[0].data.tail),
            spans.write.data.blocks.eq(self._runs.reads[0].data.blocks),
            spans.reads[0].address.eq(self.end.payload.command),
            self.begun.tag.eq(self._launch_tag),
            self.begun.port.eq(self._port),
        ]
        for bit in range(len(tag)):
            chosen = sum(1 << number for number in range(tags) if number >> bit & 1)
            m.d.comb += tag[bit].eq((self._tag_mask & chosen).any())
        m.d.comb += self.elsewhere.eq(self._operation.elsewhere)
        with m.If(self.start.ready):
            m.d.sync += self.start.valid.eq(0)

    def _connect_report(self, m: Module) -> None:
        """The operation at hand of a command that is over."""
        report = self._report
        m.d.comb += [
            report.operation.eq(self._operation),
            report.port.eq(self._port),
            report.status.eq(self._status),
            report.moved.eq(self._moved),
            report.several.eq(self._several),
            self._ends.input.payload.eq(report.report),
            self.room.eq(self._free.level),
            self._free.give.payload.eq(self._cursor),
        ]

    def _pick(self, m: Module) -> Value:
        """The state PICK: what can be done next, most urgent first; whether anything can."""
        choose, free, end, arriving = self._choose, self._free, self.end, self.operation
        queue_read = self._queues.reads[0]
        can_take = arriving.valid & free.take.valid
        with m.State("PICK"):
            with m.If(end.valid):
                m.d.comb += [
                    end.ready.eq(1),
                    queue_read.address.eq(end.payload.command.port),
                ]
                m.d.sync += [
                    self._ended.eq(end.payload),
                    self._port.eq(end.payload.command.port),
                    self._moved.eq(end.payload.moved),
                    self._status.eq(end.payload.status),
                ]
                m.next = "RELEASE"
            with m.Elif(choose.any):
                m.d.comb += [choose.advance.eq(1), queue_read.address.eq(choose.index)]
                m.d.sync += [self._port.eq(choose.index), self._mask.eq(choose.chosen)]
                m.next = "INSPECT"
            with m.Elif(can_take):
                m.d.comb += [
                    arriving.ready.eq(1),
                    free.take.ready.eq(1),
                    queue_read.address.eq(arriving.payload.port),
                ]
                m.d.sync += [
                    self._incoming.eq(arriving.payload),
                    self._new.eq(free.take.payload),
                    self._port.eq(arriving.payload.port),
                ]
                m.next = "ENQUEUE"
        return end.valid | choose.any | can_take

    def _enqueue(self, m: Module) -> None:
        """The state ENQUEUE: the operation joins the last run of its port, or begins one."""
        queue, incoming = self._queue, self._incoming
        queues, joins = self._queues, self._joins
        with m.State("ENQUEUE"):
            m.d.comb += [
                self._operations.store(),
                self._next.write.enable.eq(joins),
                self._runs.store(),
                self._next_runs.write.enable.eq(~joins & queue.runs.any()),
                queues.store(
                    tail=self._new,
                    opcode=incoming.opcode,
                    fua=incoming.fua,
                    more=incoming.more & ~incoming.alone,
                    alone=incoming.alone,
                    elsewhere=incoming.elsewhere,
                    dated=incoming.dated,
                    restarts=incoming.restarts,
                    blocks=self._run.blocks,
                    follows=incoming.block + self._length,
                ),
                self._loads.write.data.eq(self._loads.reads[0].data + self._length),
                self._marked.eq(1 << self._port),
            ]
            with m.If(~joins):
                m.d.comb += queues.store(last=self._new, runs=queue.runs + 1)
                with m.If(~queue.runs.any()):
                    m.d.comb += queues.store(first=self._new)
            m.next = "PICK"

    def _inspect(self, m: Module) -> None:
        """The state INSPECT, of a port whose queue or tags have changed: its first run is launched,
        or the port is looked at again later."""
        config, queue, mask = self._config, self._queue, self._mask
        port_failed = Signal()
        waits = Signal()
        offered = (self._offered & mask).any()
        m.d.comb += [
            port_failed.eq((self.failed[: config.ports] & mask).any()),
            self._port_held.eq((self.held & mask).any()),
            waits.eq(
                (queue.runs == 1)
                & queue.more
                & has_data(queue.opcode)
                & (queue.blocks < MERGE_BLOCKS)
                & queue.tags.any()
            ),
        ]
        slow = (self.slow & mask).any()
        with m.State("INSPECT"):
            sends = self._free_tags.any() & ~waits & ~offered
            m.d.comb += self._operations.reads[0].address.eq(queue.first)
            m.d.sync += [
                self._launch_queue.eq(queue),
                self._launch_tag.eq(self._tag),
                self._launch_tag_mask.eq(self._tag_mask),
                self._launch_failed.eq(port_failed),
                self._launch_slow.eq(slow),
                self._launch_sends.eq(sends),
                self._launch_restarts.eq(Array(self.restarts)[self._port]),
            ]
            # It stays so until its tags change, but for what need not be sent.
            with m.If(slow & ~sends & ~(port_failed | offered)):
                m.d.comb += self._cleared.eq(mask)
            # A port that is held from now on is looked at again.
            with m.If(self._port_held):
                m.d.comb += self._cleared.eq(0)
                m.next = "PICK"
            with m.Elif(queue.runs.any() & (port_failed | slow | sends)):
                m.next = "LAUNCH"
            with m.Elif(offered):
                m.next = "PICK"
            with m.Else():
                m.d.comb += self._cleared.eq(mask)
                m.next = "PICK"

    def _launch(self, m: Module) -> None:
        """The state LAUNCH, of the first run of a port: it is sent, or ended at once."""
        queue, queues, operation = self._launch_queue, self._queues, self._operation
        aged = operation.dated & (operation.restarts != self._launch_restarts)
        at_once = self._launch_failed | (self._launch_slow & operation.elsewhere) | aged
        with m.State("LAUNCH"):
            # Hold the addresses: the run and its first operation are at hand.
            m.d.comb += [
                self._runs.reads[0].address.eq(queue.first),
                self._next_runs.reads[0].address.eq(queue.first),
                self._operations.reads[0].address.eq(queue.first),
                self._next.reads[0].address.eq(queue.first),
                queues.write.data.eq(queue),
                queues.write.data.first.eq(self._next_runs.reads[0].data),
                queues.write.data.runs.eq(queue.runs - 1),
            ]
            with m.If(at_once):
                self._end_at_once(m, aged)
            if self._config.slow_read_ms:
                with m.Elif(~self._launch_sends):
                    m.next = "PICK"
            with m.Elif(self._port_held):
                m.next = "PICK"
            with m.Elif(~self.start.valid):
                m.d.comb += [
                    queues.store(tags=queue.tags | self._launch_tag_mask),
                    self._spans.store(),
                    self._sent.eq(self._mask),
                    self.began.eq(1),
                ]
                m.d.sync += [
                    self.start.valid.eq(1),
                    self.start.payload.command.tag.eq(self._launch_tag),
                    self.start.payload.command.port.eq(self._port),
                    self.start.payload.operation.eq(queue.first),
                ]
                m.next = "PICK"

    def _end_at_once(self, m: Module, aged: Value) -> None:
        """Ends a state: the run ends without having been sent."""
        first, loads, run = self._launch_queue.first, self._loads, self._runs.reads[0].data
        late = Mux(aged, DriveStatus.ABORTED, DriveStatus.SLOW)
        m.d.comb += [
            self._queues.store(),
            loads.write.data.eq(loads.reads[0].data - run.blocks),
            self._marked.eq(self._mask),
        ]
        m.d.sync += [
            self._cursor.eq(first),
            self._tail.eq(run.tail),
            self._moved.eq(0),
            self._status.eq(Mux(self._launch_failed, DriveStatus.GONE, late)),
        ]
        m.next = "WALK"

    def _release(self, m: Module) -> None:
        """The state RELEASE: a command is over, and its tag is free."""
        span, loads = self._spans.reads[0].data, self._loads
        with m.State("RELEASE"):
            m.d.comb += [
                self._queues.store(tags=self._queue.tags & ~(1 << self._ended.command.tag)),
                loads.write.data.eq(loads.reads[0].data - span.blocks),
                self._operations.reads[0].address.eq(span.head),
                self._next.reads[0].address.eq(span.head),
                self._marked.eq(1 << self._port),
            ]
            m.d.sync += [
                self._cursor.eq(span.head),
                self._tail.eq(span.tail),
                self._several.eq(span.head != span.tail),
            ]
            m.next = "WALK"

    def _walk(self, m: Module) -> None:
        """The states WALK, which tells how the operation at ``cursor`` ends, or its next block, and
        FOLLOW, up to the last operation of the command."""
        report, moved, blocks = self._report, self._moved, self._operation.blocks
        advance = Signal()
        with m.State("WALK"):
            with m.If(report.by_block & (moved > blocks)):
                m.d.comb += advance.eq(1)
                m.d.sync += moved.eq(moved - blocks - 1)
            with m.Elif(self._ends.input.ready):
                m.d.comb += self._ends.input.valid.eq(1)
                with m.If(~report.good & ~report.all_alike):
                    m.d.sync += self._status.eq(DriveStatus.UNREACHED)
                with m.If(~report.by_block):
                    m.d.comb += advance.eq(1)
                    m.d.sync += moved.eq(Mux(moved.any(), moved - 1, 0))
                with m.Elif(moved == blocks):
                    m.d.comb += advance.eq(1)
                    m.d.sync += moved.eq(0)
                with m.Else():
                    m.d.sync += moved.eq(moved + 1)
            with m.If(advance):
                m.d.comb += self._free.give.valid.eq(1)
                m.d.sync += self._cursor.eq(self._next.reads[0].data)
                m.next = "PICK"
                with m.If(self._cursor != self._tail):
                    m.next = "FOLLOW"
        with m.State("FOLLOW"):
            m.next = "WALK"
