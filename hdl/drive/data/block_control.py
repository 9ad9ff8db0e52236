"""Blocks of commands under way: which line each block moves to or from, and when it has moved."""

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
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
from hdl.kit.pick import RoundRobin
from hdl.kit.queue import Queue
from hdl.kit.table import Table, TableRead
from hdl.memory.store import write_delay


class PortEvent(enum.Enum, shape=3):
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

    It serves one event in 4 cycles, the ports taking turns. A block begins to arrive, a block has
    been moved, a write block is granted, or a command completes. A command's completion is passed
    on once none of its data is on the way. If it failed in the middle of a block, the block is
    forgotten. Its line is given back if it was allocated here.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    start
        A command about to be sent; must come before the drive can ask for its data. Taken in at
        most 4 cycles.
    grant
        From the drive ports: a drive asks for the next block of a command.
    completion
        From the drive ports: a command has ended.
    end
        Commands that are over.
    landed
        Complete blocks of host commands, in lines that belong to the receiver. Never blocks the
        rest: there is room for every line.
    allocate
        Lines for host commands' reads; without a line only the port that needs it waits.
    free
        Lines of blocks that were cut off, when nothing is on its way to them any more.
    operations
        Reads of the queued operation.
    next_operation
        Reads of its successor, with the same address.
    read_control_*, read_path_*, write_path_*
        The data movers, those of each path.
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
        self._read_controls = [getattr(self, f"read_control_{path}") for path in range(PATHS)]
        self._read_paths = [getattr(self, f"read_path_{path}") for path in range(PATHS)]
        self._write_paths = [getattr(self, f"write_path_{path}") for path in range(PATHS)]

        # Commands under way, and blocks in the slots of reads and writes.
        port_bits = bits_for_count(config.ports)
        self._progress = Table(progress(config), 1 << command_tag(config).size)
        self._blocks = Table(block_state(config), 1 << (port_bits + 2))
        self._found = self._progress.reads[0].data
        self._block = self._blocks.reads[0].data
        self._operation = self.operations.data
        self._landed = Queue(landed(config), config.lines)
        self._choose = RoundRobin(count=config.ports)

        # What each port needs. Starved: a line; stalled: that one of its blocks ends.
        self._wanted = {
            kind: Signal(config.ports, name=f"wanted_{kind.name.lower()}") for kind in PortEvent
        }
        self._next_kind = Signal(PortEvent)
        self._starved = Signal(config.ports)
        self._stalled = Signal(config.ports)

        # The event at hand, and its command.
        self._kind = Signal(PortEvent)
        self._ends = (self._kind == PortEvent.READ_ENDED) | (self._kind == PortEvent.WRITE_ENDED)
        self._is_write = Signal()
        self._port = Signal(port_bits)
        self._mask = Signal(config.ports)
        self._known_tag = Signal(config.tag_bits)
        self._tag = Signal(config.tag_bits)
        self._begun_tag = Signal(config.tag_bits)
        self._grant_tag = Signal(config.tag_bits)
        self._completion = Signal(drive_completion(config))
        self._state = Signal(progress(config))
        self._allocates = Signal()

        # A command is over when all its blocks have been moved but one that was cut off. The port
        # is inside a block of `newest_tag`: both are of the cycle in which the event was picked,
        # as another command's first beat may come in any later one.
        self._newest_tag = Signal(config.tag_bits)
        self._inside = Signal()
        # The line of the block that was cut off goes back. The line store has taken what came of
        # the block, but has it only `write_delay` later.
        self._returns = Signal()
        self._settling = Signal(range(write_delay(LINE_WRITERS) + 1))

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.progress = self._progress
        m.submodules.blocks = self._blocks
        m.submodules.landed_fifo = self._landed
        m.submodules.choose = self._choose
        self._connect_needs(m)
        self._connect_port(m)
        self._connect_tables(m)
        self._return_line(m)
        with m.If(self.end.ready):
            m.d.sync += self.end.valid.eq(0)
        with m.FSM(name="block_control") as fsm:
            self._pick(m)
            self._name(m)
            self._follow(m)
            self._apply(m)
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("PICK")
            | self._choose.any
            | self.start.valid
            | (self.end.valid & self.end.ready)
            | self._landed.busy
            | (self._returns & ((self._settling != 0) | self.free.ready))
        )
        return m

    def _of_ports(self, controls, name: str) -> Value:
        """A bit a port from a bit a place of each path."""
        return Cat(
            getattr(controls[port % PATHS], name)[port // PATHS]
            for port in range(self._config.ports)
        )

    def _of_port(self, controls, name: str) -> Value:
        """The bit of the port at hand."""
        return (self._of_ports(controls, name) & self._mask).any()

    def _strobe(self, controls, name: str) -> list:
        """Pulses ``name`` on the path of the port at hand."""
        path_of_port = self._port[0]
        return [
            getattr(control, name).eq(path_of_port == path)
            for path, control in enumerate(controls)
        ]

    def _connect_needs(self, m: Module) -> None:
        """What each port needs, and whose turn it is."""
        wanted, choose = self._wanted, self._choose
        has_completion = Cat(port.valid for port in self.completion)
        failing = Cat(port.payload.status != DriveStatus.GOOD for port in self.completion)
        want = self._of_ports(self._read_controls, "want")
        read_ended = self._of_ports(self._read_paths, "ended")
        without_line = Mux(self.allocate.valid, 0, self._starved)
        can_complete = has_completion & ~want & ~read_ended & ~self._stalled
        m.d.comb += [
            wanted[PortEvent.READ_ENDED].eq(read_ended),
            wanted[PortEvent.READ_BEGUN].eq(
                want & self._of_ports(self._read_paths, "free") & ~without_line
            ),
            wanted[PortEvent.WRITE_ENDED].eq(self._of_ports(self._write_paths, "ended")),
            wanted[PortEvent.GRANT].eq(
                Cat(port.valid for port in self.grant)
                & self._of_ports(self._write_paths, "free")
            ),
            wanted[PortEvent.COMPLETION].eq(Mux(self.end.valid, 0, can_complete)),
            choose.requests.eq(
                wanted[PortEvent.READ_ENDED]
                | wanted[PortEvent.READ_BEGUN]
                | wanted[PortEvent.WRITE_ENDED]
                | wanted[PortEvent.GRANT]
                | wanted[PortEvent.COMPLETION]
            ),
            self._next_kind.eq(PortEvent.COMPLETION),
        ]
        for event in reversed(PortEvent):
            with m.If((wanted[event] & choose.chosen).any()):
                m.d.comb += self._next_kind.eq(event)
        for path, control in enumerate(self._read_controls):
            m.d.comb += [
                control.hold.eq((has_completion & failing)[path::PATHS]),
                control.peek.eq(choose.index >> 1),
            ]

    def _connect_port(self, m: Module) -> None:
        """The port at hand: its place on its path, and the tags that it tells."""
        begun_tags = Array(control.tag for control in self._read_controls)
        m.d.comb += self._begun_tag.eq(begun_tags[self._port[0]])
        for control in (*self._read_paths, *self._write_paths):
            m.d.comb += control.place.eq(self._port >> 1)
        with m.Switch(self._port):
            for index in range(self._config.ports):
                with m.Case(index):
                    m.d.comb += [
                        self._grant_tag.eq(self.grant[index].payload.tag),
                        self._completion.eq(self.completion[index].payload),
                    ]

    def _connect_tables(self, m: Module) -> None:
        """Where tables are read and written: commands, and the slots in which blocks begin and end;
        a block's line."""
        config, operation, port = self._config, self._operation, self._port
        progress, blocks, is_write = self._progress, self._blocks, self._is_write
        load_slot = Mux(
            is_write,
            self._of_port(self._write_paths, "load_slot"),
            self._of_port(self._read_paths, "load_slot"),
        )
        end_slot = Mux(
            is_write,
            self._of_port(self._write_paths, "end_slot"),
            self._of_port(self._read_paths, "end_slot"),
        )
        line = Signal(config.line_bits)
        connect(m, self._landed.output, flipped(self.landed))
        m.d.comb += [
            progress.reads[0].address.eq(Cat(self._known_tag, port)),
            progress.write.address.eq(Cat(self._tag, port)),
            self.operations.address.eq(self._found.operation),
            self.next_operation.address.eq(self._found.operation),
            self._allocates.eq(~is_write & (operation.owner == Owner.COMMAND)),
            line.eq(Mux(self._allocates, self.allocate.payload, operation.line)),
            blocks.reads[0].address.eq(Cat(end_slot, is_write, port)),
            blocks.write.address.eq(Cat(load_slot, is_write, port)),
            blocks.write.data.tag.eq(self._tag),
            blocks.write.data.owner.eq(Mux(self._allocates, Owner.COMMAND, Owner.ROW)),
            blocks.write.data.slot.eq(operation.index),
            blocks.write.data.offset.eq(operation.place + self._state.block),
            blocks.write.data.line.eq(line),
            self._landed.input.payload.slot.eq(self._block.slot),
            self._landed.input.payload.offset.eq(self._block.offset),
            self._landed.input.payload.line.eq(self._block.line),
        ]
        for control in (*self._read_paths, *self._write_paths):
            m.d.comb += control.line.eq(line)
        for control in self._read_paths:
            m.d.comb += control.early.eq(operation.early)

    def _return_line(self, m: Module) -> None:
        """Gives back the line of a block that was cut off, once nothing is on its way to it."""
        m.d.comb += self.free.valid.eq(self._returns & (self._settling == 0))
        with m.If(self._settling != 0):
            m.d.sync += self._settling.eq(self._settling - 1)
        with m.If(self.free.valid & self.free.ready):
            m.d.sync += self._returns.eq(0)

    def _pick(self, m: Module) -> None:
        """The state PICK: a command that starts is noted, or an event is chosen."""
        choose, start, next_kind = self._choose, self.start, self._next_kind
        inside = self._of_ports(self._read_controls, "inside")
        with m.State("PICK"):
            m.d.comb += start.ready.eq(1)
            with m.If(start.valid):
                m.d.comb += self._progress.store(
                    address=start.payload.command, operation=start.payload.operation
                )
            with m.Elif(choose.any):
                m.d.comb += choose.advance.eq(1)
                m.d.sync += [
                    self._port.eq(choose.index),
                    self._mask.eq(choose.chosen),
                    self._inside.eq((inside & choose.chosen).any()),
                    self._kind.eq(next_kind),
                    self._is_write.eq(
                        (next_kind == PortEvent.WRITE_ENDED) | (next_kind == PortEvent.GRANT)
                    ),
                ]
                m.next = "NAME"

    def _name(self, m: Module) -> None:
        """The state NAME: which command of the port it is, but for blocks that have ended."""
        with m.State("NAME"):
            with m.Switch(self._kind):
                with m.Case(PortEvent.GRANT):
                    m.d.comb += self._known_tag.eq(self._grant_tag)
                with m.Case(PortEvent.COMPLETION):
                    m.d.comb += self._known_tag.eq(self._completion.tag)
                with m.Default():
                    m.d.comb += self._known_tag.eq(self._begun_tag)
            m.d.sync += [
                self._tag.eq(self._known_tag),
                self._newest_tag.eq(self._begun_tag),
            ]
            m.next = "FOLLOW"

    def _follow(self, m: Module) -> None:
        """The state FOLLOW: the command of a block that has ended is in the block's slot; a command
        that completes is over, or waits until none of its data is on the way."""
        found, block, end = self._found, self._block, self.end
        moving = Signal(BLOCK_COUNT_BITS)
        m.d.comb += moving.eq(found.begun - found.ended)
        cut_off = self._inside & (self._newest_tag == self._tag)
        # Nothing of the port is moving, nor has a block ended since the event was picked.
        quiet = Array(control.quiet for control in self._read_controls)[self._port[0]]
        quiet &= ~self._of_port(self._read_paths, "ended")
        with m.State("FOLLOW"):
            m.d.sync += self._state.eq(found)
            with m.If(self._ends):
                m.d.comb += self._known_tag.eq(block.tag)
                m.d.sync += self._tag.eq(self._known_tag)
            m.next = "APPLY"
            with m.If(self._kind == PortEvent.COMPLETION):
                m.next = "PICK"
                m.d.sync += Assert(
                    ~cut_off | moving.any(), "a block that has no line is cut off"
                )
                with m.If(moving != cut_off):
                    m.d.sync += self._stalled.eq(self._stalled | self._mask)
                with m.Elif(~cut_off | (quiet & ~self._returns)):
                    for port, taken in zip(self.completion, self._mask, strict=True):
                        m.d.comb += port.ready.eq(taken)
                    m.d.sync += [
                        end.valid.eq(1),
                        end.payload.command.tag.eq(self._tag),
                        end.payload.command.port.eq(self._port),
                        end.payload.status.eq(self._completion.status),
                        end.payload.moved.eq(found.ended),
                    ]
                    with m.If(cut_off):
                        m.d.comb += self._strobe(self._read_controls, "discard")
                        m.d.sync += [
                            self._returns.eq(block.owner == Owner.COMMAND),
                            self._settling.eq(write_delay(LINE_WRITERS)),
                            self.free.payload.eq(block.line),
                        ]

    def _apply(self, m: Module) -> None:
        """The state APPLY: a block has ended, or begins if it has a line."""
        state, mask, progress = self._state, self._mask, self._progress
        is_write, allocates = self._is_write, self._allocates
        with m.State("APPLY"):
            m.next = "PICK"
            with m.If(self._ends):
                m.d.comb += [
                    progress.store(data=self._found, ended=self._found.ended + 1),
                    self._landed.input.valid.eq(
                        ~is_write & (self._block.owner == Owner.COMMAND)
                    ),
                ]
                m.d.sync += self._stalled.eq(self._stalled & ~mask)
                with m.If(is_write):
                    m.d.comb += self._strobe(self._write_paths, "unload")
                with m.Else():
                    m.d.comb += self._strobe(self._read_paths, "unload")
            with m.Elif(allocates & ~self.allocate.valid):
                m.d.sync += self._starved.eq(self._starved | mask)
            with m.Else():
                m.d.sync += self._starved.eq(self._starved & ~mask)
                m.d.comb += [
                    progress.store(
                        data=state, begun=state.begun + 1, block=state.block + 1
                    ),
                    self._blocks.store(),
                    self.allocate.ready.eq(allocates),
                ]
                with m.If(state.block == self._operation.blocks):
                    m.d.comb += progress.store(block=0, operation=self.next_operation.data)
                with m.If(is_write):
                    m.d.comb += self._strobe(self._write_paths, "load")
                    for port, taken in zip(self.grant, mask, strict=True):
                        m.d.comb += port.ready.eq(taken)
                with m.Else():
                    m.d.comb += self._strobe(self._read_paths, "load")
