"""Commands that a drive does not end: abort, port reset, and at last the drive is given up."""

from math import ceil

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, TIME_BITS, Config
from hdl.config.drive_time import MILLISECONDS, longest_ms, tick_shift, ticks
from hdl.drive.records import command_tag
from hdl.flow.drive_port import drive_completion
from hdl.flow.operation import DriveStatus

SETTLE_CYCLES = 4
"""From a port's reset to the first command that is ended: what the block control had begun for the
port is over by then."""


class Ladder(wiring.Component):
    """Gives every drive command a deadline, and sees to it that it ends.

    A command that has not ended ``command_timeout_ms`` after it was offered to its drive is
    aborted. If it still has not ended ``abort_timeout_ms`` later, the port is reset: all commands
    of the port end as ABORTED (whoever sent them sends them again), and nothing is sent meanwhile.
    The reset lasts until the last beat of their write data has been dropped, which would else be
    the first of the next block that the port is granted.
    Commands of a port are aborted once. The next time within ``drive_reset_window_s`` the port is
    reset at once: a drive that ends every abort but nothing else is no use, and has to be given up
    before anybody runs out of attempts.
    A port that has been reset ``drive_resets`` times within the last ``drive_reset_window_s`` is
    not forgiven another time: its drive is reported on ``fail``, its commands end with GONE, and
    the port stays in reset until ``failed`` is taken back.
    Windows follow each other without a gap. At the end of one, all is forgiven but to ports that
    have had an abort or a reset within `longest_ms`: a drive that hangs is given up in time
    whenever that begins.

    A read of blocks that can be had ``elsewhere`` and that has not ended after ``slow_read_ms`` is
    detached from its port (`hdl.drive.recovery.detach`): it has ended as SLOW, and what is left of
    it in the drive is a command like any other from then on.

    So a command is in a port for `longest_ms` at most, and a drive that ends nothing any more is
    given up within `given_up_ms`. A tick is at most half of the shortest time;
    times are kept to a tick, and never too short.

    One walk over all tags of all ports each tick, 2 cycles a tag, only while one is in use; 8
    cycles for each command that a reset ends, as soon as none of its data is on the way.

    Parameters
    ----------
    config
        Sizes, ``command_timeout_ms`` (not 0), ``abort_timeout_ms``, ``drive_resets``,
        ``drive_reset_window_s``, ``slow_read_ms``.

    Ports
    -----
    now, deadline, busy
        Time in clock cycles, when something is due, and whether something is being done.
    began, begun, elsewhere
        A pulse: the command has been offered to its port; its blocks can be had from other drives.
    orphans
        ``drive_tags`` a port: detached, and not ended by the drive.
    detaches
        A bit a port: detach the read that ``ending`` names.
    ended, over
        A pulse: the command has ended and its data has been moved. Never with ``began``.
    failed
        A bit a port: the array tables have given it up.
    held
        A bit a port: nothing must be sent.
    abort, abort_tag
        A pulse to a port: try to end this command. Whether the drive does so does not matter.
    filled
        A bit a port: write data is on its way to it; what comes while it is ``shut`` is dropped.
    shut
        A bit a port: it is in reset (`hdl.drive.recovery.fence.Fence`).
    ends, ending
        A bit a port, and how its command has ended.
    fail
        Ports that are given up.
    """

    def __init__(self, *, config: Config):
        self._config = config
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        ports = config.ports
        shift = tick_shift(config)
        command_ticks = ticks(config, config.command_timeout_ms)
        abort_ticks = ticks(config, config.abort_timeout_ms)
        # Deadlines wrap at more than twice the longest of them.
        slow_ticks = ticks(config, config.slow_read_ms)
        due_bits = (2 * max(command_ticks, abort_ticks) + 2).bit_length()
        entry = data.StructLayout(
            {"used": 1, "aborted": 1, "warned": 1, "due": due_bits}
            | ({"elsewhere": 1, "detached": 1} if config.slow_read_ms else {})
        )
        m.submodules.entries = entries = Memory(
            shape=entry, depth=1 << command_tag(config).size, init=[]
        )
        read, write = entries.read_port(), entries.write_port()

        # Ticks: `seen` is the one that is being walked.
        tick = Signal(due_bits)
        seen = Signal(due_bits)
        any_used = Signal()
        later = Const(-1, TIME_BITS)
        m.d.comb += [
            tick.eq(self.now[shift:]),
            self.deadline.eq(
                Mux(any_used, Cat(Const(0, shift), (self.now >> shift) + 1), later)
            ),
        ]

        # The entry at hand. What was read is void if an entry has changed since it was asked for.
        place = Signal(command_tag(config))
        changes = Signal()
        changed = Signal()
        found = read.data
        late = Signal()
        mask = Signal(ports)
        last_tag = place.tag == (1 << config.tag_bits) - 1
        m.d.comb += [
            changes.eq(self.began | self.ended),
            read.addr.eq(place),
            late.eq(found.used & ~(seen - found.due)[due_bits - 1]),
            mask.eq(1 << place.port),
        ]
        m.d.sync += changed.eq(changes)

        # Reads that are slow. Of one that has been detached the controller knows nothing any more,
        # so nobody says that it has ended.
        orphan = Signal()
        slow = Signal()
        forgotten = Signal()
        if config.slow_read_ms:
            tags = self.orphans.word_select(place.port, config.drive_tags)
            m.d.comb += [
                orphan.eq(tags.bit_select(place.tag, 1)),
                slow.eq(late & found.elsewhere),
                forgotten.eq(found.used & found.detached & ~orphan),
            ]

        # Aborts and resets, forgiven when the window changes, unless there was one lately: in this
        # span of time or the one before, each as long as a command can stay in a port.
        window_shift = min(
            TIME_BITS - 1, (config.drive_reset_window_s * config.clock_hz - 1).bit_length()
        )
        window = Signal(TIME_BITS - window_shift)
        spent = [Signal(ports, name=f"spent_{number}") for number in range(config.drive_resets)]
        used_up = Signal()
        m.d.comb += used_up.eq((spent[-1] & mask).any() if spent else 1)
        # A command that was offered before its port was warned hangs with the one that hung first.
        warned = Signal(ports)
        hopeless = Signal()
        m.d.comb += hopeless.eq((warned & mask).any() & found.warned)
        longest = ceil(longest_ms(config) * config.clock_hz / MILLISECONDS)
        span_shift = longest.bit_length()
        span = Signal(TIME_BITS - span_shift)
        now_span = self.now[span_shift:]
        in_span, before = Signal(ports), Signal(ports)
        lately = Signal(ports)
        still, follows = span == now_span, span + 1 == now_span
        m.d.comb += lately.eq(Mux(still | follows, in_span, 0) | Mux(still, before, 0))

        # What the next walk will forgive is not held against a command that is offered before it.
        standing, turns = Signal(ports), Signal()
        m.d.comb += [
            turns.eq(window != self.now[window_shift:]),
            standing.eq(warned & Mux(turns, lately, -1)),
        ]

        resets = Signal(ports)
        off = Signal(ports)
        dropped = Signal(ports)
        cleared = Signal()
        gives_up = Signal()
        again = Signal()
        settle = Signal(range(SETTLE_CYCLES))
        m.d.sync += off.eq((off | dropped) & self.failed[:ports])
        m.d.comb += [
            self.held.eq(resets | (~cleared).replicate(ports)),
            self.shut.eq(resets | off),
            self.ending.tag.eq(place.tag),
            self.ending.status.eq(Mux(gives_up, DriveStatus.GONE, DriveStatus.ABORTED)),
            self.fail.payload.eq(place.port),
        ]
        m.d.sync += [self.abort.eq(0), self.abort_tag.eq(place.tag)]

        def go_on() -> None:
            m.d.sync += place.eq(place.as_value() + 1)
            m.next = "READ"
            with m.If(place.as_value().all()):
                m.next = "WAIT"

        with m.FSM(name="ladder") as fsm:
            # Memories keep their contents over a reset.
            with m.State("CLEAR"):
                m.d.comb += write.en.eq(1)
                m.d.sync += place.eq(place.as_value() + 1)
                with m.If(place.as_value().all()):
                    m.d.sync += cleared.eq(1)
                    m.next = "WAIT"
            with m.State("WAIT"):
                with m.If(any_used & (tick != seen)):
                    m.d.sync += [
                        seen.eq(tick),
                        any_used.eq(0),
                        place.eq(0),
                        window.eq(self.now[window_shift:]),
                    ]
                    with m.If(turns):
                        m.d.sync += [flags.eq(flags & lately) for flags in (*spent, warned)]
                    m.d.sync += span.eq(now_span)
                    with m.If(~still):
                        m.d.sync += [before.eq(lately), in_span.eq(0)]
                    m.next = "READ"
            with m.State("READ"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                with m.If(found.used):
                    m.d.sync += any_used.eq(1)
                with m.If(changes | changed):
                    m.next = "READ"
                if config.slow_read_ms:
                    with m.Elif(forgotten):
                        m.d.comb += write.en.eq(1)
                        go_on()
                with m.Elif(~late):
                    # What has been forgiven meanwhile is not held against those that are there.
                    with m.If(found.used & found.warned & ~(warned & mask).any()):
                        m.d.comb += [
                            write.data.eq(found),
                            write.data.warned.eq(0),
                            write.en.eq(1),
                        ]
                    go_on()
                if config.slow_read_ms:
                    with m.Elif(slow):
                        m.next = "DETACH"
                with m.Elif(~found.aborted & ~hopeless):
                    m.d.comb += [
                        write.en.eq(1),
                        write.data.used.eq(1),
                        write.data.aborted.eq(1),
                        write.data.warned.eq(found.warned),
                        write.data.due.eq(seen + abort_ticks),
                        *([write.data.detached.eq(found.detached)] if config.slow_read_ms else []),
                    ]
                    m.d.sync += [
                        self.abort.eq(mask),
                        warned.eq(warned | mask),
                        in_span.eq(in_span | mask),
                    ]
                    go_on()
                with m.Else():
                    m.d.sync += [
                        resets.eq(mask),
                        gives_up.eq(used_up),
                        again.eq(0),
                        settle.eq(0),
                        place.tag.eq(0),
                        in_span.eq(in_span | mask),
                    ]
                    for flags, fewer in zip(spent, [mask, *spent], strict=False):
                        m.d.sync += flags.eq(flags | (fewer & mask))
                    m.next = "SETTLE"

            stuck = fsm.ongoing("END")
            if config.slow_read_ms:
                stuck |= fsm.ongoing("DETACH")
                with m.State("DETACH"):
                    m.d.comb += self.detaches.eq(mask)
                    with m.If(self.ended & (self.over == place)):
                        go_on()

            # The port is in reset, and what it had is ended, command by command.
            with m.State("SETTLE"):
                m.d.sync += settle.eq(settle + 1)
                with m.If(settle == SETTLE_CYCLES - 1):
                    m.next = "READ-TAG"
                    with m.If(gives_up):
                        m.next = "REPORT"
            with m.State("REPORT"):
                m.d.comb += self.fail.valid.eq(1)
                with m.If(self.fail.ready):
                    m.next = "READ-TAG"
            with m.State("READ-TAG"):
                m.next = "JUDGE-TAG"
            with m.State("JUDGE-TAG"):
                with m.If(changes | changed):
                    m.next = "READ-TAG"
                if config.slow_read_ms:
                    with m.Elif(forgotten):
                        m.d.comb += write.en.eq(1)
                        m.next = "TURN"
                with m.Elif(found.used):
                    m.next = "END"
                with m.Else():
                    m.next = "TURN"
            with m.State("END"):
                m.d.comb += self.ends.eq(mask)
                with m.If(self.ended & (self.over == place)):
                    m.d.sync += again.eq(1)
                    m.next = "TURN"
            with m.State("TURN"):
                m.next = "READ-TAG"
                with m.If(last_tag & ~again & (self.filled & mask).any()):
                    m.next = "TURN"
                with m.Elif(~last_tag):
                    m.d.sync += place.tag.eq(place.tag + 1)
                with m.Elif(again):
                    # Until none was found: one may have been offered as the port was shut.
                    m.d.sync += [place.tag.eq(0), again.eq(0)]
                with m.Else():
                    m.d.comb += dropped.eq(Mux(gives_up, mask, 0))
                    m.d.sync += resets.eq(0)
                    go_on()

            waits = fsm.ongoing("WAIT") & ~(any_used & (tick != seen))
            m.d.comb += self.busy.eq(
                ~(waits | (stuck & ~self.ended))
                | changes
                | self.abort.any()
                | (off & ~self.failed[:ports]).any()
            )

        m.d.comb += write.addr.eq(place)
        with m.If(changes):
            m.d.comb += [
                write.addr.eq(Mux(self.began, self.begun.as_value(), self.over.as_value())),
                write.en.eq(1),
                write.data.used.eq(self.began),
                write.data.aborted.eq(0),
                # A read that is detached keeps what it was offered with.
                write.data.warned.eq(
                    Mux(self.began, standing.bit_select(self.begun.port, 1), found.warned)
                ),
                write.data.due.eq(tick + command_ticks),
            ]
            if config.slow_read_ms:
                with m.If(self.began & self.elsewhere):
                    m.d.comb += [
                        write.data.elsewhere.eq(1),
                        write.data.due.eq(tick + slow_ticks),
                    ]
                with m.If(fsm.ongoing("DETACH") & self.ended & (self.over == place) & orphan):
                    m.d.comb += [write.data.used.eq(1), write.data.detached.eq(1)]
        with m.If(self.began):
            m.d.sync += any_used.eq(1)
        # Another drive, or the same one for the host's asking: nothing is held against it.
        returns = off & ~self.failed[:ports]
        for port in range(ports):
            with m.If(returns[port]):
                m.d.sync += [flags[port].eq(0) for flags in (*spent, warned)]
        return m
