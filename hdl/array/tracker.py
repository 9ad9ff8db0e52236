"""Host commands in flight: every block is accounted for, then the command completes, once."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.extent import expected
from hdl.flow.flush_request import flush_rounds
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.host_command import HostOpcode, Status, command, completion
from hdl.flow.host_data import delivered
from hdl.flow.line import line_stream
from hdl.flow.operation import DriveStatus, finished
from hdl.flow.recovery import recovery
from hdl.flow.row import committed
from hdl.kit.pick import lowest_bit
from hdl.kit.queue import Queue
from hdl.kit.simulation import SIMULATION
from hdl.kit.table import Table


class Action(enum.Enum, shape=3):
    """What an event does to its command."""

    START = 0
    """A new host command."""
    ISSUE = 1
    """Send the next retry."""
    REJECT = 2
    """The command failed as it was mapped."""
    EXPECT = 3
    """A FLUSH learns how many drives will answer."""
    RETRY = 4
    """A block could not be read directly."""
    COUNT = 5
    """A block, or a drive's flush, is done."""


def origin(config: Config) -> data.StructLayout:
    """What a retry needs of the host's command."""
    return data.StructLayout(
        {"flush": 1, "fua": 1, "volume": config.volume_bits, "block": BLOCK_NUMBER_BITS}
    )


def progress(config: Config) -> data.StructLayout:
    """What a command still has to do.

    ``remaining`` counts blocks, or drives of a FLUSH, that have not ended. ``status`` is the first
    error. ``retries`` are blocks to be sent again, and ``retried`` says that there was one. A FLUSH
    with ``again`` is to be sent again, and has been sent ``rounds`` times before.
    """
    return data.StructLayout(
        {
            "remaining": max(config.offset_bits + 1, WIDTH_BITS),
            "status": Status,
            "retried": 1,
            "again": 1,
            "rounds": range(flush_rounds(config)),
            "retries": config.command_blocks,
        }
    )


class Tracker(wiring.Component):
    """Owns the state of every host command slot.

    Each block of a READ ends by `delivered`, by `committed` (no drive is left to ask) or by
    `recover_failed`. Each block of a WRITE ends by `committed`. A FLUSH ends by as many `flushed`
    as `expected` said. The command completes when the last one has ended, with the first error that
    was seen.

    A block whose direct read failed is sent again on ``command`` as a READ of one block. It has the
    same command slot and ``fua``, and ``offset`` is its index in the host's command. Its
    ``recover`` is that of the read that failed, with ``again`` set, and with ``medium`` if the
    drive could not read the block. ``tried`` is one more, unless the drive did not come so far
    (UNREACHED). Who maps the block says when nothing is left to be tried.

    A FLUSH that a drive aborted, or that found a drive gone, is sent again once all drives have
    answered, `flush_rounds` times at most. The array is judged as it is then, and rejects the FLUSH
    if data is lost.

    No event ever waits for ``command`` or ``completion``. Blocks to be retried are a bit each of
    their slot's state. Slots with retries queue up once each, and so do completions. Hence the
    stripe engine and the drives can always report, and what holds up ``command`` gets done.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    host_command
        From the NVMe front end, in a command slot that is not in use.
    command
        To the mapper. Retries and host commands take turns, so that an array of which many reads
        fail at once does not keep others out.
    completion
        One for each host command. Its command slot may be used again from then on.
    rejected
        The command, or the retry, failed as it was mapped. No other event will come for it.
    expected
        How many drives take part in a FLUSH.
    flushed
        The end of a FLUSH on one drive.
    read_failed
        A failed block of a direct read.
    committed
        A block written, or failed for good.
    recover_failed
        A block that could not be reconstructed.
    delivered
        A block sent to the host, or compared with the host's.
    free
        The line of that block goes back.
    busy
        It works, or something waits that it can do.

    Rate: 3 cycles an event, and 4 a block that is sent again. Events take turns.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "host_command": In(stream.Signature(command(config))),
                "command": Out(stream.Signature(command(config))),
                "completion": Out(stream.Signature(completion(config))),
                "rejected": In(stream.Signature(completion(config))),
                "expected": In(stream.Signature(expected(config))),
                "flushed": In(stream.Signature(finished(config))),
                "read_failed": In(stream.Signature(finished(config))),
                "committed": In(stream.Signature(committed(config))),
                "recover_failed": In(stream.Signature(committed(config))),
                "delivered": In(stream.Signature(delivered(config))),
                "free": Out(line_stream(config)),
                "busy": Out(1),
            }
        )

        self._origins = Table(origin(config), config.commands)
        self._progresses = Table(progress(config), config.commands)
        self._attempts = Table(recovery(config), config.commands << config.offset_bits)
        # Each slot is in either queue at most once, so they cannot overflow.
        self._retries = Queue(config.slot_bits, config.commands)
        self._completions = Queue(completion(config), config.commands)

        sources = len(self._events()) + 1
        self._waiting = Signal(sources)
        self._turn = Signal(range(sources))
        self._chosen = Signal(range(sources))

        # The event being served.
        self._action = Signal(Action)
        self._slot = Signal(config.slot_bits)
        self._status = Signal(Status)
        self._undone = Signal()  # of a FLUSH: nothing is known of what the drive has stored
        self._count = Signal(WIDTH_BITS)
        self._place = Signal(config.offset_bits)
        self._attempt = Signal(recovery(config))

        # Its command, before and after; what the event makes of its status.
        self._before = Signal(progress(config))
        self._after = Signal(progress(config))
        self._once_more = Signal()
        self._first_error = Signal(Status)
        self._retry = Signal(config.offset_bits)  # the lowest block to be sent again

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.origins = self._origins
        m.submodules.progresses = self._progresses
        m.submodules.attempts = self._attempts
        m.submodules.retries = self._retries
        m.submodules.completions = self._completions
        self._connect_tables(m)
        self._judge(m)
        self._choose(m)
        with m.If(self.command.ready):
            m.d.sync += self.command.valid.eq(0)
        with m.If(self.free.ready):
            m.d.sync += self.free.valid.eq(0)
        with m.FSM(name="track") as fsm:
            self._take(m)
            self._update(m, platform)
            self._recall(m)
        completing = (self._completions.level > 0) & (
            ~self.completion.valid | self.completion.ready
        )
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("TAKE")
            | self._waiting.any()
            | completing
            | (self.command.valid & self.command.ready)
            | (self.free.valid & self.free.ready)
        )
        return m

    def _connect_tables(self, m: Module) -> None:
        """Where tables are read and written."""
        slot, origins, progresses = self._slot, self._origins, self._progresses
        ending, started = self._completions.input.payload, self.command.payload
        connect(m, self._completions.output, flipped(self.completion))
        m.d.comb += [
            progresses.reads[0].address.eq(slot),
            progresses.write.address.eq(slot),
            progresses.write.data.eq(self._after),
            self._before.eq(progresses.reads[0].data),
            self._after.eq(self._before),
            origins.reads[0].address.eq(slot),
            origins.write.address.eq(slot),
            origins.write.data.volume.eq(started.volume),
            origins.write.data.block.eq(started.block),
            origins.write.data.flush.eq(started.opcode == HostOpcode.FLUSH),
            origins.write.data.fua.eq(started.fua),
            self._retry.eq(lowest_bit(m, self._before.retries, "lowest_retry")),
            self._attempts.reads[0].address.eq(Cat(self._retry, slot)),
            self._attempts.write.address.eq(Cat(self._place, slot)),
            self._attempts.write.data.eq(self._attempt),
            self._retries.input.payload.eq(slot),
            ending.slot.eq(slot),
            ending.status.eq(self._after.status),
        ]

    def _judge(self, m: Module) -> None:
        """What the event's status makes of the command's."""
        before = self._before
        again = Signal()
        error = Signal(Status)
        m.d.comb += [
            again.eq(self._undone & (before.rounds != flush_rounds(self._config) - 1)),
            error.eq(Mux(again, Status.SUCCESS, self._status)),
            self._once_more.eq(before.again | again),
            self._first_error.eq(Mux(before.status == Status.SUCCESS, error, before.status)),
        ]

    # What an event means: each method gives the statements for its payload.

    def _of_start(self, event) -> list:
        return [
            self._action.eq(Action.START),
            self._slot.eq(event.slot),
            self.command.payload.eq(event),
        ]

    def _of_rejected(self, event) -> list:
        return [self._action.eq(Action.REJECT), *self._of_any(event)]

    def _of_expected(self, event) -> list:
        return [
            self._action.eq(Action.EXPECT),
            self._status.eq(Status.SUCCESS),
            self._slot.eq(event.slot),
            self._count.eq(event.count),
        ]

    def _of_flushed(self, event) -> list:
        failed = event.status != DriveStatus.GOOD
        return [
            self._action.eq(Action.COUNT),
            self._status.eq(Mux(failed, Status.WRITE_FAULT, Status.SUCCESS)),
            self._undone.eq(
                (event.status == DriveStatus.GONE) | (event.status == DriveStatus.ABORTED)
            ),
            self._slot.eq(event.index),
        ]

    def _of_read_failed(self, event) -> list:
        attempt = self._attempt
        reached = event.status != DriveStatus.UNREACHED
        return [
            self._action.eq(Action.RETRY),
            self._slot.eq(event.index),
            self._place.eq(event.place),
            attempt.again.eq(1),
            attempt.tried.eq(event.recover.tried + reached),
            attempt.copy.eq(event.recover.copy),
            attempt.medium.eq(event.status == DriveStatus.MEDIUM_ERROR),
            attempt.ordered.eq(event.recover.ordered),
            attempt.era.eq(event.recover.era),
        ]

    def _of_block(self, event) -> list:
        return [self._action.eq(Action.COUNT), *self._of_any(event)]

    def _of_delivered(self, event) -> list:
        return [
            *self._of_block(event),
            self.free.payload.eq(event.line),
            self.free.valid.eq(1),
        ]

    def _of_any(self, event) -> list:
        return [self._status.eq(event.status), self._slot.eq(event.slot)]

    def _events(self) -> list[tuple]:
        """Each input, what its payload means, and when it may be taken."""
        command_free = ~self.command.valid
        return [
            (self.host_command, self._of_start, command_free),
            (self.rejected, self._of_rejected, 1),
            (self.expected, self._of_expected, 1),
            (self.flushed, self._of_flushed, 1),
            (self.read_failed, self._of_read_failed, 1),
            (self.committed, self._of_block, 1),
            (self.recover_failed, self._of_block, 1),
            (self.delivered, self._of_delivered, ~self.free.valid),
        ]

    def _choose(self, m: Module) -> None:
        """Whose turn it is among the inputs, and slots with retries behind them: the lowest that
        waits from ``turn`` on, else the lowest of all."""
        m.d.comb += self._waiting.eq(
            Cat(
                *(port.valid & allowed for port, _, allowed in self._events()),
                self._retries.output.valid & ~self.command.valid,
            )
        )
        for first in (0, self._turn):
            for index in reversed(range(len(self._waiting))):
                with m.If(self._waiting[index] & (first <= index)):
                    m.d.comb += self._chosen.eq(index)

    def _take(self, m: Module) -> None:
        """The state TAKE: an event."""
        waiting, chosen = self._waiting, self._chosen
        events = self._events()
        issue = len(events)
        with m.State("TAKE"):
            m.d.sync += self._undone.eq(0)
            for index, (port, meaning, allowed) in enumerate(events):
                with m.If((chosen == index) & port.valid & allowed):
                    m.d.comb += port.ready.eq(1)
                    m.d.sync += meaning(port.payload)
            with m.If((chosen == issue) & waiting[issue]):
                m.d.sync += [
                    self._action.eq(Action.ISSUE),
                    self._slot.eq(self._retries.output.payload),
                ]
            with m.If(waiting.any()):
                m.d.sync += self._turn.eq(Mux(chosen == issue, 0, chosen + 1))
                m.next = "LOOK"

    def _update(self, m: Module, platform) -> None:
        """The states LOOK and UPDATE: what the event does to its command."""
        before, after, slot = self._before, self._after, self._slot
        retries, command = self._retries, self.command
        with m.State("LOOK"):
            m.next = "UPDATE"
        with m.State("UPDATE"):
            m.d.comb += self._progresses.store()
            m.next = "TAKE"
            if platform == SIMULATION:
                completes = self._completions.input.valid
                self._check(m, slot, self._action, completes=completes, due=before.remaining)
            with m.Switch(self._action):
                with m.Case(Action.START):
                    m.d.comb += [
                        self._origins.store(),
                        after.eq(0),
                        after.remaining.eq(command.payload.blocks + 1),
                    ]
                    m.d.sync += command.valid.eq(1)
                with m.Case(Action.ISSUE):
                    m.d.comb += after.retries.eq(before.retries & (before.retries - 1))
                    with m.If(after.retries == 0):
                        m.d.comb += retries.output.ready.eq(1)
                    self._issue(m)
                with m.Case(Action.REJECT):
                    # Once a block was retried, the command as a whole has been mapped.
                    self._end_blocks(m, Mux(before.retried, before.remaining - 1, 0))
                with m.Case(Action.EXPECT):
                    self._end_blocks(m, self._count)
                with m.Case(Action.RETRY):
                    m.d.comb += [
                        self._attempts.store(),
                        after.retried.eq(1),
                        after.retries.bit_select(self._place, 1).eq(1),
                        retries.input.valid.eq(before.retries == 0),
                    ]
                with m.Case(Action.COUNT):
                    self._end_blocks(m, before.remaining - 1)

    def _issue(self, m: Module) -> None:
        """Ends a state: sends a block, or a FLUSH, again."""
        request, known = self.command.payload, self._origins.reads[0].data
        m.d.sync += [
            request.slot.eq(self._slot),
            request.opcode.eq(Mux(known.flush, HostOpcode.FLUSH, HostOpcode.READ)),
            request.fua.eq(known.fua),
            request.volume.eq(known.volume),
            request.block.eq(known.block + self._retry),
            request.blocks.eq(0),
            request.offset.eq(self._retry),
        ]
        m.next = "RECALL"

    def _end_blocks(self, m: Module, remaining: Value) -> None:
        """Notes the first error, and completes when nothing is left."""
        before, after = self._before, self._after
        m.d.comb += [
            after.remaining.eq(remaining),
            after.again.eq(self._once_more),
            after.status.eq(self._first_error),
        ]
        with m.If(remaining == 0):
            with m.If(self._once_more & (self._first_error == Status.SUCCESS)):
                m.d.comb += [
                    after.again.eq(0),
                    after.rounds.eq(before.rounds + 1),
                    after.retries.eq(1),
                    self._retries.input.valid.eq(1),
                ]
            with m.Else():
                m.d.comb += self._completions.input.valid.eq(1)

    def _check(self, m: Module, slot: Value, action: Value, *, completes: Value, due: Value):
        """Asserts, of the event that is served, that its command is there and has not ended."""
        live = Signal(self._config.commands)
        lives = live.bit_select(slot, 1)
        starts = action == Action.START
        counts = (action == Action.COUNT) | (action == Action.RETRY)
        m.d.sync += [
            Assert(~starts | ~lives, "a command begins in a slot that is in use"),
            Assert(starts | lives, "a command has ended twice"),
            Assert(~counts | (due != 0), "a block of a command has ended twice"),
            lives.eq(starts | ~completes),
        ]

    def _recall(self, m: Module) -> None:
        """The state RECALL: what is sent again knows of its earlier attempts."""
        request = self.command.payload
        with m.State("RECALL"):
            m.d.sync += [
                self.command.valid.eq(1),
                request.recover.eq(self._attempts.reads[0].data),
            ]
            with m.If(request.opcode == HostOpcode.FLUSH):
                m.d.sync += request.recover.eq(0)
            m.next = "TAKE"
