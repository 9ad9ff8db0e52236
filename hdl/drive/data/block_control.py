"""Blocks of commands under way: which line each block moves to or from, and when it has moved."""

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import LINE_WRITERS, Config, bits_for_count
from hdl.drive.records import (
    BLOCK_COUNT_BITS,
    PATHS,
    PathControl,
    ReadControl,
    command_end,
    command_start,
    command_tag,
    operation_bits,
    path_ports,
    queued_operation,
)
from hdl.flow.drive_port import drive_completion
from hdl.flow.line import line_stream
from hdl.flow.operation import DriveStatus, Owner, landed
from hdl.kit.queue import Queue
from hdl.kit.round_robin import RoundRobin
from hdl.kit.table import TableRead
from hdl.memory.store import write_delay


class Event(enum.Enum, shape=3):
    """What a port needs, in order of precedence."""

    READ_ENDED = 0
    READ_BEGUN = 1
    WRITE_ENDED = 2
    GRANT = 3
    COMPLETION = 4


def progress(config: Config) -> data.StructLayout:
    """A command under way: the next block is block ``block`` of ``operation``.

    ``begun`` blocks have a slot of a path or had one, ``ended`` blocks have been moved.
    """
    return data.StructLayout(
        {
            "operation": operation_bits(config),
            "block": config.offset_bits,
            "begun": BLOCK_COUNT_BITS,
            "ended": BLOCK_COUNT_BITS,
        }
    )


def block_state(config: Config) -> data.StructLayout:
    """A block in a slot of a path."""
    return data.StructLayout(
        {
            "tag": config.tag_bits,
            "owner": Owner,
            "slot": config.slot_bits,
            "offset": config.offset_bits,
            "line": config.line_bits,
        }
    )


class BlockControl(wiring.Component):
    """Gives every block that a drive asks for, or sends, its line, and reports what has landed.

    One event in 4 cycles, ports round robin: a block begins to arrive, a block has been moved, a
    write block is granted, a command completes. A command's completion is passed on once none of
    its data is on the way. If it failed in the middle of a block, the block is forgotten and its
    line, when it was allocated here, is given back.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    start
        A command about to be sent; must come before the drive can ask for its data. Taken in at
        most 4 cycles.
    grant, completion
        From the drive ports.
    end
        Commands that are over.
    landed
        Complete blocks of host commands, in lines that belong to the receiver. Never blocks the
        rest: there is room for every line.
    allocate
        Lines for host commands' reads; without a line only the port that needs it waits.
    free
        Lines of blocks that were cut off, when nothing is on its way to them any more.
    operations, next_operation
        Reads of the queued operation and of its successor, one address.
    reads, read_paths, write_paths
        The data movers.
    busy
        An event can be served.
    """

    def __init__(self, *, config: Config):
        self._config = config
        number = operation_bits(config)
        members = {
            "start": In(stream.Signature(command_start(config))),
            "grant": In(stream.Signature(data.StructLayout({"tag": config.tag_bits}))).array(
                config.ports
            ),
            "completion": In(stream.Signature(drive_completion(config))).array(config.ports),
            "end": Out(stream.Signature(command_end(config))),
            "landed": Out(stream.Signature(landed(config))),
            "allocate": In(line_stream(config)),
            "free": Out(line_stream(config)),
            "operations": Out(TableRead(number, queued_operation(config))),
            "next_operation": Out(TableRead(number, number)),
            "busy": Out(1),
        }
        for path in range(PATHS):
            ports = path_ports(config, path)
            members[f"read_control_{path}"] = Out(ReadControl(config, ports))
            members[f"read_path_{path}"] = Out(PathControl(config, ports))
            members[f"write_path_{path}"] = Out(PathControl(config, ports))
        super().__init__(members)

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        ports = config.ports
        port_bits = bits_for_count(ports)
        read_controls = [getattr(self, f"read_control_{path}") for path in range(PATHS)]
        read_paths = [getattr(self, f"read_path_{path}") for path in range(PATHS)]
        write_paths = [getattr(self, f"write_path_{path}") for path in range(PATHS)]

        def vector(controls, name):
            """A bit per port from a bit per place of each path."""
            return Cat(getattr(controls[p % PATHS], name)[p // PATHS] for p in range(ports))

        # Memories: commands under way, blocks in the slots of reads and writes.
        m.submodules.progress = progress_memory = Memory(
            shape=progress(config), depth=1 << command_tag(config).size, init=[]
        )
        write_progress, read_progress = progress_memory.write_port(), progress_memory.read_port()
        m.submodules.blocks = blocks = Memory(
            shape=block_state(config), depth=1 << (port_bits + 2), init=[]
        )
        write_block, read_block = blocks.write_port(), blocks.read_port()
        m.submodules.landed_fifo = landed_fifo = Queue(landed(config), config.lines)
        connect(m, landed_fifo.output, flipped(self.landed))

        # What each port needs.
        starved = Signal(ports)
        stalled = Signal(ports)
        wanted = {kind: Signal(ports, name=f"wanted_{kind.name.lower()}") for kind in Event}
        has_completion = Signal(ports)
        failing = Signal(ports)
        want = vector(read_controls, "want")
        m.d.comb += [
            has_completion.eq(Cat(port.valid for port in self.completion)),
            failing.eq(Cat(port.payload.status != DriveStatus.GOOD for port in self.completion)),
            wanted[Event.READ_ENDED].eq(vector(read_paths, "ended")),
            wanted[Event.READ_BEGUN].eq(
                want & vector(read_paths, "free") & ~Mux(self.allocate.valid, 0, starved)
            ),
            wanted[Event.WRITE_ENDED].eq(vector(write_paths, "ended")),
            wanted[Event.GRANT].eq(
                Cat(port.valid for port in self.grant) & vector(write_paths, "free")
            ),
            wanted[Event.COMPLETION].eq(
                Mux(
                    self.end.valid,
                    0,
                    has_completion & ~want & ~vector(read_paths, "ended") & ~stalled,
                )
            ),
        ]
        for path, control in enumerate(read_controls):
            m.d.comb += control.hold.eq((has_completion & failing)[path::PATHS])

        m.submodules.choose = choose = RoundRobin(count=ports)
        any_wanted = Signal(ports)
        m.d.comb += any_wanted.eq(
            wanted[Event.READ_ENDED]
            | wanted[Event.READ_BEGUN]
            | wanted[Event.WRITE_ENDED]
            | wanted[Event.GRANT]
            | wanted[Event.COMPLETION]
        )
        m.d.comb += choose.requests.eq(any_wanted)
        kind = Signal(Event)
        next_kind = Signal(Event)
        m.d.comb += next_kind.eq(Event.COMPLETION)
        for event in reversed(Event):
            with m.If((wanted[event] & choose.chosen).any()):
                m.d.comb += next_kind.eq(event)

        port = Signal(port_bits)
        mask = Signal(ports)
        is_write = Signal()
        tag = Signal(config.tag_bits)
        path_of_port = port[0]
        for path in range(PATHS):
            place = port >> 1
            m.d.comb += [
                read_controls[path].peek.eq(choose.index >> 1),
                read_paths[path].place.eq(place),
                write_paths[path].place.eq(place),
            ]

        def strobe(controls, name):
            """Pulse ``name`` on the path of the port."""
            return [
                getattr(control, name).eq(path_of_port == path)
                for path, control in enumerate(controls)
            ]

        # Tags of the port: of the block that begins, of the grant, of the completion.
        begun_tag = Signal(config.tag_bits)
        grant_tag = Signal(config.tag_bits)
        completion = Signal(drive_completion(config))
        m.d.comb += begun_tag.eq(Array(control.tag for control in read_controls)[path_of_port])
        with m.Switch(port):
            for index in range(ports):
                with m.Case(index):
                    m.d.comb += [
                        grant_tag.eq(self.grant[index].payload.tag),
                        completion.eq(self.completion[index].payload),
                    ]

        # Slots: where the next block goes, which block ends.
        def bit(controls, name):
            return (vector(controls, name) & mask).any()

        load_slot = Mux(is_write, bit(write_paths, "load_slot"), bit(read_paths, "load_slot"))
        end_slot = Mux(is_write, bit(write_paths, "end_slot"), bit(read_paths, "end_slot"))

        ends = (kind == Event.READ_ENDED) | (kind == Event.WRITE_ENDED)
        known_tag = Signal(config.tag_bits)
        newest_tag = Signal(config.tag_bits)
        state = Signal(progress(config))
        updated = Signal(progress(config))
        found = read_progress.data
        block = read_block.data
        operation = self.operations.data
        allocates = Signal()
        line = Signal(config.line_bits)
        arrived = Signal(landed(config))
        m.d.comb += [
            read_block.addr.eq(Cat(end_slot, is_write, port)),
            read_progress.addr.eq(Cat(known_tag, port)),
            self.operations.address.eq(found.operation),
            self.next_operation.address.eq(found.operation),
            allocates.eq(~is_write & (operation.owner == Owner.COMMAND)),
            line.eq(operation.line),
            write_progress.addr.eq(Cat(tag, port)),
            write_progress.data.eq(updated),
            write_block.addr.eq(Cat(load_slot, is_write, port)),
            write_block.data.tag.eq(tag),
            write_block.data.owner.eq(Mux(allocates, Owner.COMMAND, Owner.ROW)),
            write_block.data.slot.eq(operation.index),
            write_block.data.offset.eq(operation.place + state.block),
            write_block.data.line.eq(line),
            arrived.slot.eq(block.slot),
            arrived.offset.eq(block.offset),
            arrived.line.eq(block.line),
            landed_fifo.input.payload.eq(arrived),
        ]
        with m.If(allocates):
            m.d.comb += line.eq(self.allocate.payload)
        for control in (*read_paths, *write_paths):
            m.d.comb += control.line.eq(line)
        if config.early_rows:
            for control in read_paths:
                m.d.comb += control.early.eq(operation.early)

        # A command is over when all its blocks have been moved but one that was cut off. The port
        # is inside a block of `newest_tag`: both are of the cycle in which the event was picked,
        # as another command's first beat may come in any later one.
        inside = Signal()
        cut_off = inside & (newest_tag == tag)
        moving = Signal(BLOCK_COUNT_BITS)
        # Its line. The line store has taken what came of it, but has it only `write_delay` later.
        returns = Signal()
        settling = Signal(range(write_delay(LINE_WRITERS) + 1))
        m.d.comb += self.free.valid.eq(returns & (settling == 0))
        with m.If(settling != 0):
            m.d.sync += settling.eq(settling - 1)
        with m.If(self.free.valid & self.free.ready):
            m.d.sync += returns.eq(0)
        # Nothing of the port is moving, nor has a block ended since the event was picked.
        quiet = Array(control.quiet for control in read_controls)[path_of_port] & ~bit(
            read_paths, "ended"
        )
        m.d.comb += moving.eq(found.begun - found.ended)

        # Pulses to the port's link core.
        completed = Signal(ports)
        granted = Signal(ports)
        for index in range(ports):
            m.d.comb += [
                self.completion[index].ready.eq(completed[index]),
                self.grant[index].ready.eq(granted[index]),
            ]

        with m.If(self.end.ready):
            m.d.sync += self.end.valid.eq(0)
        with m.FSM(name="block_control") as fsm:
            with m.State("PICK"):
                m.d.comb += self.start.ready.eq(1)
                with m.If(self.start.valid):
                    m.d.comb += [
                        write_progress.addr.eq(self.start.payload.command),
                        updated.operation.eq(self.start.payload.operation),
                        write_progress.en.eq(1),
                    ]
                with m.Elif(choose.any):
                    m.d.comb += choose.advance.eq(1)
                    m.d.sync += [
                        port.eq(choose.index),
                        mask.eq(choose.chosen),
                        inside.eq((vector(read_controls, "inside") & choose.chosen).any()),
                        kind.eq(next_kind),
                        is_write.eq((next_kind == Event.WRITE_ENDED) | (next_kind == Event.GRANT)),
                    ]
                    m.next = "NAME"
            with m.State("NAME"):
                with m.Switch(kind):
                    with m.Case(Event.GRANT):
                        m.d.comb += known_tag.eq(grant_tag)
                    with m.Case(Event.COMPLETION):
                        m.d.comb += known_tag.eq(completion.tag)
                    with m.Default():
                        m.d.comb += known_tag.eq(begun_tag)
                m.d.sync += [tag.eq(known_tag), newest_tag.eq(begun_tag)]
                m.next = "FOLLOW"
            with m.State("FOLLOW"):
                m.d.sync += state.eq(found)
                with m.If(ends):
                    m.d.comb += known_tag.eq(block.tag)
                    m.d.sync += tag.eq(known_tag)
                m.next = "APPLY"
                with m.If(kind == Event.COMPLETION):
                    m.next = "PICK"
                    m.d.sync += Assert(
                        ~cut_off | moving.any(), "a block that has no line is cut off"
                    )
                    with m.If(moving != cut_off):
                        m.d.sync += stalled.eq(stalled | mask)
                    with m.Elif(~cut_off | (quiet & ~returns)):
                        m.d.comb += completed.eq(mask)
                        m.d.sync += [
                            self.end.valid.eq(1),
                            self.end.payload.command.tag.eq(tag),
                            self.end.payload.command.port.eq(port),
                            self.end.payload.status.eq(completion.status),
                            self.end.payload.moved.eq(found.ended),
                        ]
                        with m.If(cut_off):
                            m.d.comb += strobe(read_controls, "discard")
                            m.d.sync += [
                                returns.eq(block.owner == Owner.COMMAND),
                                settling.eq(write_delay(LINE_WRITERS)),
                                self.free.payload.eq(block.line),
                            ]
            with m.State("APPLY"):
                m.next = "PICK"
                with m.If(ends):
                    m.d.comb += [
                        updated.eq(found),
                        updated.ended.eq(found.ended + 1),
                        write_progress.en.eq(1),
                        landed_fifo.input.valid.eq(~is_write & (block.owner == Owner.COMMAND)),
                    ]
                    m.d.sync += stalled.eq(stalled & ~mask)
                    with m.If(is_write):
                        m.d.comb += strobe(write_paths, "unload")
                    with m.Else():
                        m.d.comb += strobe(read_paths, "unload")
                with m.Elif(allocates & ~self.allocate.valid):
                    m.d.sync += starved.eq(starved | mask)
                with m.Else():
                    m.d.sync += starved.eq(starved & ~mask)
                    m.d.comb += [
                        updated.eq(state),
                        updated.begun.eq(state.begun + 1),
                        write_progress.en.eq(1),
                        write_block.en.eq(1),
                        self.allocate.ready.eq(allocates),
                    ]
                    with m.If(state.block == operation.blocks):
                        m.d.comb += [
                            updated.block.eq(0),
                            updated.operation.eq(self.next_operation.data),
                        ]
                    with m.Else():
                        m.d.comb += updated.block.eq(state.block + 1)
                    with m.If(is_write):
                        m.d.comb += [*strobe(write_paths, "load"), granted.eq(mask)]
                    with m.Else():
                        m.d.comb += strobe(read_paths, "load")
            m.d.comb += self.busy.eq(
                ~fsm.ongoing("PICK")
                | choose.any
                | self.start.valid
                | (self.end.valid & self.end.ready)
                | landed_fifo.busy
                | (returns & ((settling != 0) | self.free.ready))
            )
        return m
