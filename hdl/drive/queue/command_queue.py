"""Operations waiting for their drives: merged into commands, launched, and reported at the end."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.drive.queue.operation_walk import operation_walk, walk_states
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
from hdl.flow.table_read import TableRead
from hdl.kit.disjoint import DISJOINT
from hdl.kit.free_list import FreeList
from hdl.kit.queue import Queue
from hdl.kit.round_robin import RoundRobin


class CommandQueue(wiring.Component):
    """Queues operations for all ports, merges neighbours, sends commands, tells who asked.

    A run grows by an operation with the same opcode and ``fua`` whose block follows, up to
    `MERGE_BLOCKS`; FLUSH and what is ``alone`` stay alone. Runs of a port are sent in order. The
    last run waits for its neighbour while its ``more`` is set, it has room, and the port has a
    command outstanding. Operations for a port in ``failed`` end with GONE and are not sent; nor are
    those for a port in ``slow`` that can be had ``elsewhere``, which end as SLOW, and those that
    are ``dated`` from before their drive restarted last, which end as if they had been sent.

    A command that fails does so at one block. Of a read, blocks that were moved are good, the first
    one that was not has the drive's status, those after it are UNREACHED. Of a write, data that was
    moved need not be stored, so if it has several operations all of them are UNREACHED. A drive
    that is GONE is gone for all of them, and a read that is SLOW in all that has not been moved.

    Cycles: 2 an operation, 3 a command sent, 2 and one an operation (or failed block) for a
    command that ended. An operation is offered to an idle drive 5 cycles after it was taken.
    Back-pressure: an operation waits while all ``config.operations`` are in use; ``end`` waits
    while as many `finished` wait to be taken.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    operation, finished
        As in `hdl.flow.operation`.
    failed
        A bit per port.
    restarts
        With ``background``: how often the drive of each port has restarted.
    held
        A bit per port: nothing is sent, from this cycle on; what is offered stays so.
    began, begun, elsewhere
        A pulse: this command is offered to its port; as of its operations.
    orphans, freed
        Tags that must not be used, `drive_tags` a port, and a bit a port: there are fewer.
    slow
        A bit per port: it has orphans, and may take long for anything else.
    command
        To the drive ports.
    start
        A command is about to be sent.
    end
        A command is over.
    load_read
        How many blocks a port has been asked for and not answered.
    operations, next_operation
        The queued operation, and its successor in the run, for the block control.
    busy
        Something can be done.
    """

    def __init__(self, *, config: Config):
        self._config = config
        number = operation_bits(config)
        restarts = {}
        if config.background:
            restarts = {"restarts": In(tried_bits(config)).array(config.ports)}
        super().__init__(
            {
                "operation": In(stream.Signature(operation(config))),
                "finished": Out(stream.Signature(finished(config))),
                "failed": In(MAX_DRIVES),
                **restarts,
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
                "load_read": In(TableRead(config.port_bits, load_bits(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        ports, number = config.ports, operation_bits(config)
        port_bits = bits_for_count(ports)
        tag_address = command_tag(config).size

        def table(name, shape, depth, readers=1, attrs=None):
            memory = Memory(shape=shape, depth=depth, init=[], attrs=attrs)
            m.submodules[name] = memory
            return memory.write_port(), *(memory.read_port() for _ in range(readers))

        write_operation, read_operation, lookup_operation = table(
            "operation_table", queued_operation(config), config.operations, 2, DISJOINT
        )
        write_next, read_next, lookup_next = table("next_table", number, config.operations, 2)
        write_run, read_run = table("run_table", run(config), config.operations)
        write_next_run, read_next_run = table("next_run_table", number, config.operations)
        write_span, read_span = table("span_table", span(config), 1 << tag_address)
        write_queue, read_queue = table("queue_table", port_queue(config), 1 << port_bits)
        write_load, read_load, show_load = table(
            "load_table", load_bits(config), 1 << config.port_bits, 2
        )
        m.submodules.free = free = FreeList(count=config.operations)
        m.submodules.finished_fifo = fifo = Queue(finished(config), config.operations)
        connect(m, fifo.output, flipped(self.finished))
        m.d.comb += [
            lookup_operation.addr.eq(self.operations.address),
            self.operations.data.eq(lookup_operation.data),
            lookup_next.addr.eq(self.next_operation.address),
            self.next_operation.data.eq(lookup_next.data),
            show_load.addr.eq(self.load_read.address),
            self.load_read.data.eq(show_load.data),
        ]

        # Ports whose queue or tags have changed, and whose command register is empty.
        check = Signal(ports)
        offered = Signal(ports)
        accepted = Signal(ports)
        m.submodules.choose = choose = RoundRobin(count=ports)
        m.d.comb += [
            choose.requests.eq(check & (~offered | self.failed[:ports]) & ~self.held),
            accepted.eq(Cat(port.ready for port in self.command)),
        ]
        sent = Signal(ports)
        m.d.sync += offered.eq((offered & ~accepted) | sent)
        for index, port in enumerate(self.command):
            m.d.comb += port.valid.eq(offered[index])

        incoming = Signal(operation(config))
        new = Signal(number)
        port = Signal(port_bits)
        mask = Signal(ports)
        marked = Signal(ports)
        cleared = Signal(ports)
        m.d.sync += check.eq((check & ~cleared) | marked | self.freed)

        queue = read_queue.data
        updated = Signal(port_queue(config))
        m.d.comb += [
            read_queue.addr.eq(port),
            write_queue.addr.eq(port),
            write_queue.data.eq(updated),
            updated.eq(queue),
            read_load.addr.eq(read_queue.addr),
            write_load.addr.eq(write_queue.addr),
            write_load.en.eq(write_queue.en),
            write_load.data.eq(read_load.data),
        ]

        # The run that a new operation joins or begins.
        length = Signal(BLOCK_COUNT_BITS)
        total = Signal(BLOCK_COUNT_BITS + 1)
        joins = Signal()
        joined = Signal(run(config))
        alike, same_haste = Const(1), Const(1)
        if config.slow_read_ms:
            same_haste = queue.elsewhere == incoming.elsewhere
        if config.background:
            dated = incoming.dated
            alike = (queue.dated == dated) & (~dated | (queue.restarts == incoming.restarts))
        m.d.comb += [
            length.eq(incoming.blocks + 1),
            total.eq(queue.blocks + length),
            joins.eq(
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
            joined.tail.eq(new),
            joined.blocks.eq(Mux(joins, total, length)),
            write_operation.addr.eq(new),
            write_next.addr.eq(queue.tail),
            write_next.data.eq(new),
            write_run.addr.eq(Mux(joins, queue.last, new)),
            write_run.data.eq(joined),
            write_next_run.addr.eq(queue.last),
            write_next_run.data.eq(new),
        ]
        for name, _ in queued_operation(config):
            m.d.comb += write_operation.data[name].eq(incoming[name])

        # A free tag: the lowest.
        tag = Signal(config.tag_bits)
        tag_mask = Signal(config.drive_tags)
        free_tags = Signal(config.drive_tags)
        orphans = self.orphans.word_select(port, config.drive_tags)
        m.d.comb += [free_tags.eq(~(queue.tags | orphans)), tag_mask.eq(free_tags & -free_tags)]
        m.d.comb += tag.eq(
            Cat(
                (tag_mask & sum(1 << t for t in range(config.drive_tags) if t >> bit & 1)).any()
                for bit in range(config.tag_bits)
            )
        )
        port_failed = Signal()
        port_held = Signal()
        waits = Signal()
        s_tag = Signal(config.tag_bits)
        s_tag_mask = Signal(config.drive_tags)
        s_queue = Signal(port_queue(config))
        s_failed = Signal()
        m.d.comb += [
            port_failed.eq((self.failed[:ports] & mask).any()),
            port_held.eq((self.held & mask).any()),
            waits.eq(
                (queue.runs == 1)
                & queue.more
                & has_data(queue.opcode)
                & (queue.blocks < MERGE_BLOCKS)
                & queue.tags.any()
            ),
            read_run.addr.eq(queue.first),
            read_next_run.addr.eq(queue.first),
        ]

        ended = Signal(command_end(config))
        walk = operation_walk(
            m,
            config=config,
            port=port,
            read_operation=read_operation,
            read_next=read_next,
            free=free,
            finished_fifo=fifo,
        )
        slow, at_once = Const(0), s_failed
        if config.slow_read_ms:
            slow = (self.slow & mask).any()
            s_slow = Signal()
            s_sends = Signal()
            at_once |= s_slow & walk.operation.elsewhere
        aged = Const(0)
        if config.background:
            s_restarts = Signal(tried_bits(config))
            aged = walk.operation.dated & (walk.operation.restarts != s_restarts)
            at_once |= aged

        start_payload = Signal(command_start(config))
        start_valid = Signal()
        m.d.comb += [self.start.valid.eq(start_valid), self.start.payload.eq(start_payload)]
        with m.If(self.start.ready):
            m.d.sync += start_valid.eq(0)
        m.d.comb += [
            write_span.addr.eq(Cat(s_tag, port)),
            write_span.data.head.eq(s_queue.first),
            write_span.data.tail.eq(read_run.data.tail),
            write_span.data.blocks.eq(read_run.data.blocks),
            read_span.addr.eq(self.end.payload.command),
        ]
        payload = Signal(drive_command(config))
        if config.slow_read_ms:
            m.d.comb += self.elsewhere.eq(walk.operation.elsewhere)
        m.d.comb += [
            self.begun.tag.eq(s_tag),
            self.begun.port.eq(port),
            payload.tag.eq(s_tag),
            payload.opcode.eq(walk.operation.opcode),
            payload.fua.eq(walk.operation.fua),
            payload.block.eq(walk.operation.block),
            payload.blocks.eq(read_run.data.blocks - 1),
        ]
        for index, drive in enumerate(self.command):
            with m.If(sent[index]):
                m.d.sync += drive.payload.eq(payload)

        cleaning = Signal(port_bits)
        with m.FSM(name="command_queue") as fsm:
            with m.State("CLEAR"):
                m.d.comb += [
                    write_queue.addr.eq(cleaning),
                    write_queue.data.eq(0),
                    write_queue.en.eq(1),
                    write_load.data.eq(0),
                ]
                m.d.sync += cleaning.eq(cleaning + 1)
                with m.If(cleaning == (1 << port_bits) - 1):
                    m.next = "PICK"
            with m.State("PICK"):
                with m.If(self.end.valid):
                    m.d.comb += read_queue.addr.eq(self.end.payload.command.port)
                    m.d.sync += [
                        ended.eq(self.end.payload),
                        port.eq(self.end.payload.command.port),
                        walk.moved.eq(self.end.payload.moved),
                        walk.status.eq(self.end.payload.status),
                    ]
                    m.d.comb += self.end.ready.eq(1)
                    m.next = "RELEASE"
                with m.Elif(choose.any):
                    m.d.comb += [choose.advance.eq(1), read_queue.addr.eq(choose.index)]
                    m.d.sync += [port.eq(choose.index), mask.eq(choose.chosen)]
                    m.next = "INSPECT"
                with m.Elif(self.operation.valid & free.take.valid):
                    m.d.comb += [
                        self.operation.ready.eq(1),
                        free.take.ready.eq(1),
                        read_queue.addr.eq(self.operation.payload.port),
                    ]
                    m.d.sync += [
                        incoming.eq(self.operation.payload),
                        new.eq(free.take.payload),
                        port.eq(self.operation.payload.port),
                    ]
                    m.next = "ENQUEUE"
            with m.State("ENQUEUE"):
                m.d.comb += [
                    write_operation.en.eq(1),
                    write_next.en.eq(joins),
                    write_run.en.eq(1),
                    write_next_run.en.eq(~joins & queue.runs.any()),
                    write_queue.en.eq(1),
                    updated.tail.eq(new),
                    updated.opcode.eq(incoming.opcode),
                    updated.fua.eq(incoming.fua),
                    updated.more.eq(incoming.more & ~incoming.alone),
                    updated.alone.eq(incoming.alone),
                    *([updated.elsewhere.eq(incoming.elsewhere)] if config.slow_read_ms else []),
                    *([updated.dated.eq(incoming.dated)] if config.background else []),
                    *([updated.restarts.eq(incoming.restarts)] if config.background else []),
                    updated.blocks.eq(joined.blocks),
                    updated.follows.eq(incoming.block + length),
                    marked.eq(1 << port),
                    write_load.data.eq(read_load.data + length),
                ]
                with m.If(~joins):
                    m.d.comb += [updated.last.eq(new), updated.runs.eq(queue.runs + 1)]
                    with m.If(~queue.runs.any()):
                        m.d.comb += updated.first.eq(new)
                m.next = "PICK"
            with m.State("INSPECT"):
                m.d.comb += read_operation.addr.eq(queue.first)
                m.d.sync += [
                    s_queue.eq(queue),
                    s_tag.eq(tag),
                    s_tag_mask.eq(tag_mask),
                    s_failed.eq(port_failed),
                ]
                if config.background:
                    m.d.sync += s_restarts.eq(Array(self.restarts)[port])
                sends = free_tags.any() & ~waits & ~(offered & mask).any()
                if config.slow_read_ms:
                    # It stays so until its tags change, but for what need not be sent.
                    m.d.sync += [s_slow.eq(slow), s_sends.eq(sends)]
                    with m.If(slow & ~sends & ~(port_failed | (offered & mask).any())):
                        m.d.comb += cleared.eq(mask)
                # A port that is held from now on is looked at again.
                with m.If(port_held):
                    m.d.comb += cleared.eq(0)
                    m.next = "PICK"
                with m.Elif(queue.runs.any() & (port_failed | slow | sends)):
                    m.next = "LAUNCH"
                with m.Elif((offered & mask).any()):
                    m.next = "PICK"
                with m.Else():
                    m.d.comb += cleared.eq(mask)
                    m.next = "PICK"
            with m.State("LAUNCH"):
                # Hold the addresses: the run and its first operation are at hand.
                m.d.comb += [
                    read_run.addr.eq(s_queue.first),
                    read_next_run.addr.eq(s_queue.first),
                    read_operation.addr.eq(s_queue.first),
                    read_next.addr.eq(s_queue.first),
                    updated.eq(s_queue),
                    updated.first.eq(read_next_run.data),
                    updated.runs.eq(s_queue.runs - 1),
                ]
                with m.If(at_once):
                    m.d.comb += [
                        marked.eq(mask),
                        write_queue.en.eq(1),
                        write_load.data.eq(read_load.data - read_run.data.blocks),
                    ]
                    m.d.sync += [
                        walk.cursor.eq(s_queue.first),
                        walk.tail.eq(read_run.data.tail),
                        walk.moved.eq(0),
                        walk.status.eq(
                            Mux(
                                s_failed,
                                DriveStatus.GONE,
                                Mux(aged, DriveStatus.ABORTED, DriveStatus.SLOW),
                            )
                        ),
                    ]
                    m.next = "WALK"
                if config.slow_read_ms:
                    with m.Elif(~s_sends):
                        m.next = "PICK"
                with m.Elif(port_held):
                    m.next = "PICK"
                with m.Elif(~start_valid):
                    m.d.comb += [
                        write_queue.en.eq(1),
                        updated.tags.eq(s_queue.tags | s_tag_mask),
                        write_span.en.eq(1),
                        sent.eq(mask),
                        self.began.eq(1),
                    ]
                    m.d.sync += [
                        start_valid.eq(1),
                        start_payload.command.tag.eq(s_tag),
                        start_payload.command.port.eq(port),
                        start_payload.operation.eq(s_queue.first),
                    ]
                    m.next = "PICK"
            with m.State("RELEASE"):
                m.d.comb += [
                    updated.tags.eq(queue.tags & ~(1 << ended.command.tag)),
                    write_queue.en.eq(1),
                    marked.eq(1 << port),
                    read_operation.addr.eq(read_span.data.head),
                    read_next.addr.eq(read_span.data.head),
                    write_load.data.eq(read_load.data - read_span.data.blocks),
                ]
                m.d.sync += [
                    walk.cursor.eq(read_span.data.head),
                    walk.tail.eq(read_span.data.tail),
                    walk.several.eq(read_span.data.head != read_span.data.tail),
                ]
                m.next = "WALK"
            walk_states(m, walk)
            m.d.comb += self.busy.eq(
                ~fsm.ongoing("PICK")
                | self.end.valid
                | choose.any
                | (self.operation.valid & free.take.valid)
                | free.busy
                | start_valid
                | fifo.busy
            )
        return m
