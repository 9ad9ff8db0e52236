"""Commands that a drive does not end: abort, port reset, and at last the drive is given up."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, TIME_BITS, Config
from hdl.config.drive_time import tick_shift, ticks
from hdl.drive.records import command_tag
from hdl.drive.recovery.leniency import Leniency
from hdl.flow.drive_port import drive_completion
from hdl.flow.operation import DriveStatus
from hdl.kit.clock import NEVER, passed
from hdl.kit.optional import optional
from hdl.kit.table import Table

RESET_CYCLES = 4
"""From a port's reset to the first command that is ended: what the block control had begun for the
port is over by then."""


class Ladder(wiring.Component):
    """Gives every drive command a deadline, and sees to it that it ends.

    If a command has not ended ``command_timeout_ms`` after it was offered to its drive, it is
    aborted. If it has still not ended ``abort_timeout_ms`` later, the port is reset. All commands
    of the port then end as ABORTED, and whoever sent them sends them again. Nothing is sent
    meanwhile. The reset lasts until the last beat of their write data has been dropped. Otherwise
    that beat would be the first of the next block that the port is granted.

    Commands of a port are aborted once. The next time within ``drive_reset_window_s`` the port is
    reset at once. A drive that ends every abort but nothing else is no use, and has to be given up
    before anybody runs out of attempts.

    A port that has been reset ``drive_resets`` times within the last ``drive_reset_window_s`` is
    not forgiven another time. Its drive is reported on ``fail``, its commands end with GONE, and
    the port stays in reset until ``failed`` is taken back. `hdl.drive.recovery.leniency.Leniency`
    says when aborts and resets are forgiven.

    A read of blocks that can be had ``elsewhere`` may take ``slow_read_ms``. If it has not ended by
    then, it is detached from its port (`hdl.drive.recovery.detach`): it has ended as SLOW. What is
    left of it in the drive is a command like any other from then on. Without ``slow_read_ms`` no
    read is detached.

    So a command is in a port for `longest_ms` at most, and a drive that ends nothing any more is
    given up within `given_up_ms`. A tick is at most half of the shortest time. Times are kept to a
    tick, and never too short.

    Each tick there is one walk over all tags of all ports, 2 cycles a tag, only while one is in
    use. Each command that a reset ends takes 8 cycles, as soon as none of its data is on the way.

    Parameters
    ----------
    config
        Sizes, ``command_timeout_ms`` (not 0), ``abort_timeout_ms``, ``drive_resets``,
        ``drive_reset_window_s``, ``slow_read_ms``.

    Ports
    -----
    now
        Time in clock cycles.
    deadline
        When something is due, in clock cycles; all ones if nothing is.
    busy
        Something is being done.
    began
        A pulse: a command has been offered to its port.
    begun
        That command.
    elsewhere
        Its blocks can be had from other drives.
    orphans
        ``drive_tags`` bits a port: reads that have been detached, and that the drive has not ended.
    detaches
        A bit a port: detach the read that ``ending`` names.
    ended
        A pulse: a command has ended and its data has been moved. Never with ``began``.
    over
        That command.
    failed
        A bit a port: the array tables have given it up.
    filled
        A bit a port: write data is on its way to it. What comes while it is ``shut`` is dropped.
    held
        A bit a port: nothing must be sent.
    abort
        A pulse to a port: try to end a command. Whether the drive does so does not matter.
    abort_tag
        That command.
    shut
        A bit a port: it is in reset (`hdl.drive.recovery.fence.Fence`).
    ends
        A bit a port: one of its commands has ended.
    ending
        How that command has ended.
    fail
        Ports that are given up.
    """

    def __init__(self, *, config: Config):
        self._config = config
        ports = config.ports
        super().__init__(
            {
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "began": In(1),
                "begun": In(command_tag(config)),
                "elsewhere": In(1),
                "orphans": In(config.ports * config.drive_tags),
                "detaches": Out(config.ports),
                "ended": In(1),
                "over": In(command_tag(config)),
                "failed": In(MAX_DRIVES),
                "filled": In(config.ports),
                "held": Out(config.ports),
                "abort": Out(config.ports),
                "abort_tag": Out(config.tag_bits),
                "shut": Out(config.ports),
                "ends": Out(config.ports),
                "ending": Out(drive_completion(config)),
                "fail": Out(stream.Signature(config.port_bits)),
                "busy": Out(1),
            }
        )

        # Deadlines, in ticks, wrap at more than twice the longest of them.
        self._command_ticks = ticks(config, config.command_timeout_ms)
        self._abort_ticks = ticks(config, config.abort_timeout_ms)
        self._slow_ticks = ticks(config, config.slow_read_ms or config.command_timeout_ms)
        longest = max(self._command_ticks, self._abort_ticks)
        self._due_bits = due_bits = (2 * longest + 2).bit_length()

        # What is known of each command. What differs from port to port is in `Leniency`.
        entry = data.StructLayout(
            {"used": 1, "aborted": 1, "warned": 1, "due": due_bits}
            | optional(config.slow_read_ms, {"elsewhere": 1, "detached": 1})
        )
        self._commands = Table(entry, 1 << command_tag(config).size)
        self._leniency = Leniency(config=config)

        self._tick = Signal(due_bits)
        self._seen = Signal(due_bits)  # the tick of this walk
        self._any_used = Signal()  # a tag is in use

        # The command at hand, its entry, and its port as a bit.
        self._command = Signal(command_tag(config))
        self._found = self._commands.reads[0].data
        self._port = Signal(ports)
        self._changes = Signal()  # an entry changes
        self._changed = Signal()  # one has changed in the cycle before
        self._void = self._changes | self._changed  # what was read may be of an older entry
        self._late = Signal()
        self._orphan = Signal()  # the drive still has it, and has been taken off it
        self._slow = Signal()  # it is late, and has to be detached
        self._forgotten = Signal()  # it was detached, and the drive has ended it
        self._hopeless = Signal()  # an abort has been tried on its port since before it was sent
        self._is_over = self.ended & (self.over == self._command)

        self._resets = Signal(ports)  # the port that is in reset
        self._off = Signal(ports)  # ports that have been given up
        self._dropped = Signal(ports)  # the port that is being given up
        self._gives_up = Signal()
        self._again = Signal()  # a command has ended in this pass over the tags of a port
        self._settle = Signal(range(RESET_CYCLES))
        self._cleared = Signal()
        self._detaching = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.commands = self._commands
        m.submodules.leniency = self._leniency
        self._follow_time(m)
        self._look_at_command(m)
        self._connect_ports(m)
        with m.FSM(name="ladder") as fsm:
            self._clear(m)
            begins = self._wait(m)
            self._judge(m)
            stuck = (fsm.ongoing("END") | self._detaching) & ~self.ended
            if self._config.slow_read_ms:
                self._detach(m)
            self._reset_port(m)
            self._end_commands(m)
            waits = fsm.ongoing("WAIT") & ~begins
        self._note_changes(m)
        m.d.comb += self.busy.eq(
            ~(waits | stuck) | self._changes | self.abort.any() | self._leniency.returns.any()
        )
        return m

    def _follow_time(self, m: Module) -> None:
        """Ticks, and the next of them if there is anything to wait for."""
        shift = tick_shift(self._config)
        next_tick = Cat(Const(0, shift), (self.now >> shift) + 1)
        m.d.comb += [
            self._tick.eq(self.now[shift:]),
            self.deadline.eq(Mux(self._any_used, next_tick, NEVER)),
        ]

    def _look_at_command(self, m: Module) -> None:
        """What the entry of the command at hand says of it."""
        command, found, leniency = self._command, self._found, self._leniency
        tags = self.orphans.word_select(command.port, self._config.drive_tags)
        m.d.comb += [
            self._changes.eq(self.began | self.ended),
            self._commands.reads[0].address.eq(command),
            self._late.eq(found.used & passed(self._seen, found.due)),
            self._port.eq(1 << command.port),
            self._orphan.eq(tags.bit_select(command.tag, 1)),
            self._slow.eq(self._late & found.elsewhere),
            # Of a read that has been detached the controller knows nothing any more, so nobody
            # says that it has ended.
            self._forgotten.eq(found.used & found.detached & ~self._orphan),
            # A command that was offered before its port was warned hangs with the one that hung
            # first.
            self._hopeless.eq((leniency.warned & self._port).any() & found.warned),
        ]
        m.d.sync += self._changed.eq(self._changes)

    def _connect_ports(self, m: Module) -> None:
        """What the drive ports are told."""
        leniency, failed = self._leniency, self.failed[: self._config.ports]
        m.d.comb += [
            self.held.eq(self._resets | (~self._cleared).replicate(self._config.ports)),
            self.shut.eq(self._resets | self._off),
            self.ending.tag.eq(self._command.tag),
            self.ending.status.eq(Mux(self._gives_up, DriveStatus.GONE, DriveStatus.ABORTED)),
            self.fail.payload.eq(self._command.port),
            leniency.now.eq(self.now),
            leniency.port.eq(self._port),
            leniency.returns.eq(self._off & ~failed),
        ]
        m.d.sync += [
            self._off.eq((self._off | self._dropped) & failed),
            self.abort.eq(0),
            self.abort_tag.eq(self._command.tag),
        ]

    def _note_changes(self, m: Module) -> None:
        """Commands that begin or end. They go before what the walk notes of the command at hand."""
        command, found, entries = self._command, self._found, self._commands
        write = entries.write
        standing = self._leniency.standing.bit_select(self.begun.port, 1)
        m.d.comb += write.address.eq(command)
        with m.If(self._changes):
            m.d.comb += entries.store(
                address=Mux(self.began, self.begun.as_value(), self.over.as_value()),
                used=self.began,
                aborted=0,
                # A read that is detached keeps what it was offered with.
                warned=Mux(self.began, standing, found.warned),
                due=self._tick + self._command_ticks,
            )
            with m.If(self.began & self.elsewhere):
                m.d.comb += [
                    write.data.elsewhere.eq(1),
                    write.data.due.eq(self._tick + self._slow_ticks),
                ]
            with m.If(self._detaching & self._is_over & self._orphan):
                m.d.comb += [write.data.used.eq(1), write.data.detached.eq(1)]
        with m.If(self.began):
            m.d.sync += self._any_used.eq(1)

    # States. Each method has those of one step, and says which they are.

    def _clear(self, m: Module) -> None:
        """The state CLEAR: no tag is in use. Memories keep their contents over a reset."""
        command = self._command.as_value()
        with m.State("CLEAR"):
            m.d.comb += self._commands.store()
            m.d.sync += self._command.eq(command + 1)
            with m.If(command.all()):
                m.d.sync += self._cleared.eq(1)
                m.next = "WAIT"

    def _wait(self, m: Module) -> Value:
        """The state WAIT, for the next tick. Returns whether a walk can begin."""
        begins = self._any_used & (self._tick != self._seen)
        with m.State("WAIT"):
            with m.If(begins):
                m.d.comb += self._leniency.walk.eq(1)
                m.d.sync += [
                    self._seen.eq(self._tick),
                    self._any_used.eq(0),
                    self._command.eq(0),
                ]
                m.next = "READ"
        return begins

    def _go_on(self, m: Module) -> None:
        """Ends a state: look at the next command, or wait if this was the last one."""
        command = self._command.as_value()
        m.d.sync += self._command.eq(command + 1)
        m.next = "READ"
        with m.If(command.all()):
            m.next = "WAIT"

    def _judge(self, m: Module) -> None:
        """The states READ and JUDGE: what becomes of the command at hand."""
        found, entries, leniency = self._found, self._commands, self._leniency
        with m.State("READ"):
            m.next = "JUDGE"
        with m.State("JUDGE"):
            with m.If(found.used):
                m.d.sync += self._any_used.eq(1)
            with m.If(self._void):
                m.next = "READ"
            with m.Elif(self._forgotten):
                m.d.comb += entries.store()
                self._go_on(m)
            with m.Elif(~self._late):
                # What has been forgiven meanwhile is not held against those that are there.
                with m.If(found.used & found.warned & ~(leniency.warned & self._port).any()):
                    m.d.comb += entries.store(data=found, warned=0)
                self._go_on(m)
            if self._config.slow_read_ms:
                with m.Elif(self._slow):
                    m.next = "DETACH"
            with m.Elif(~found.aborted & ~self._hopeless):
                m.d.comb += leniency.abort.eq(1)
                m.d.comb += entries.store(
                    used=1,
                    aborted=1,
                    warned=found.warned,
                    due=self._seen + self._abort_ticks,
                    detached=found.detached,
                )
                m.d.sync += self.abort.eq(self._port)
                self._go_on(m)
            with m.Else():
                m.d.comb += leniency.reset.eq(1)
                m.d.sync += [
                    self._resets.eq(self._port),
                    self._gives_up.eq(leniency.used_up),
                    self._again.eq(0),
                    self._settle.eq(0),
                    self._command.tag.eq(0),
                ]
                m.next = "SETTLE"

    def _detach(self, m: Module) -> None:
        """The state DETACH: a slow read ends for the controller."""
        with m.State("DETACH"):
            m.d.comb += [self._detaching.eq(1), self.detaches.eq(self._port)]
            with m.If(self._is_over):
                self._go_on(m)

    def _reset_port(self, m: Module) -> None:
        """The states SETTLE and REPORT: the port is in reset, and its drive may be given up."""
        with m.State("SETTLE"):
            m.d.sync += self._settle.eq(self._settle + 1)
            with m.If(self._settle == RESET_CYCLES - 1):
                m.next = "READ-TAG"
                with m.If(self._gives_up):
                    m.next = "REPORT"
        with m.State("REPORT"):
            m.d.comb += self.fail.valid.eq(1)
            with m.If(self.fail.ready):
                m.next = "READ-TAG"

    def _end_commands(self, m: Module) -> None:
        """The states from READ-TAG to TURN: what the port had is ended, command by command."""
        command, again = self._command, self._again
        last_tag = command.tag == (1 << self._config.tag_bits) - 1
        with m.State("READ-TAG"):
            m.next = "JUDGE-TAG"
        with m.State("JUDGE-TAG"):
            with m.If(self._void):
                m.next = "READ-TAG"
            with m.Elif(self._forgotten):
                m.d.comb += self._commands.store()
                m.next = "TURN"
            with m.Elif(self._found.used):
                m.next = "END"
            with m.Else():
                m.next = "TURN"
        with m.State("END"):
            m.d.comb += self.ends.eq(self._port)
            with m.If(self._is_over):
                m.d.sync += again.eq(1)
                m.next = "TURN"
        with m.State("TURN"):
            m.next = "READ-TAG"
            with m.If(last_tag & ~again & (self.filled & self._port).any()):
                m.next = "TURN"
            with m.Elif(~last_tag):
                m.d.sync += command.tag.eq(command.tag + 1)
            with m.Elif(again):
                # Until none was found: one may have been offered as the port was shut.
                m.d.sync += [command.tag.eq(0), again.eq(0)]
            with m.Else():
                m.d.comb += self._dropped.eq(Mux(self._gives_up, self._port, 0))
                m.d.sync += self._resets.eq(0)
                self._go_on(m)
