"""Host commands in flight: every block is accounted for, then the command completes, once."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.extent import expected
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.host_command import HostOpcode, Status, command, completion
from hdl.flow.host_data import delivered
from hdl.flow.line import line_stream
from hdl.flow.operation import DriveStatus, finished
from hdl.flow.recovery import recovery
from hdl.flow.row import committed
from hdl.kit.queue import Queue
from hdl.kit.simulation import SIMULATION

FLUSH_ROUNDS = 16
"""Times that a FLUSH is sent to its drives while one of them aborts it or goes away: four drives
may do so until they are given up."""


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


class Tracker(wiring.Component):
    """Owns the state of every host command slot.

    Each block of a READ ends by `delivered`, `committed` (no drive is left to ask) or
    `recover_failed`; each block of a WRITE by `committed`; a FLUSH by as many `flushed` as
    `expected` said. The command completes when the last one has ended, with the first error that
    was seen. A block whose direct read failed is sent again on ``command`` as a one-block READ,
    same slot, ``offset`` its index in the host's command. Its ``recover`` is that of the read that
    failed, one more ``tried`` unless the drive did not come so far (UNREACHED), ``again`` set, and
    ``medium`` if that was it: who maps it says when nothing is left to be tried. A FLUSH that a
    drive aborted, or that found a drive gone, is sent again once all have answered, `FLUSH_ROUNDS`
    times at most: the array is then judged as it is by then, and rejects it if data is lost.

    No event ever waits for ``command`` or ``completion``: blocks to be retried are a bit each of
    their slot's state, slots with retries queue up once each, and so do completions. Hence the
    stripe engine and the drives can always report, and what holds up ``command`` gets done.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    host_command
        From the NVMe front end, in a slot that is not in use.
    command
        To the mapper; retries and host commands take turns, so that an array of which many reads
        fail at once does not keep others out.
    completion
        One for each host command; its slot may be used again from then on.
    rejected
        The command (or the retry) failed as it was mapped; no other event will come for it.
    expected, flushed
        How many drives take part in a FLUSH, and the end of each.
    read_failed
        A failed block of a direct read.
    committed
        A block written, or failed for good.
    recover_failed
        A block that could not be reconstructed.
    delivered, free
        A block sent to the host, or compared with the host's; its line goes back.

    Rate: 3 cycles an event, 4 a block sent again. Events take turns.
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()

        # What a retry needs of the host's command, and what is still due.
        origin = data.StructLayout(
            {"flush": 1, "volume": config.volume_bits, "block": BLOCK_NUMBER_BITS}
        )
        progress = data.StructLayout(
            {
                "remaining": max(config.offset_bits + 1, WIDTH_BITS),
                "status": Status,
                "retried": 1,
                "again": 1,
                "rounds": range(FLUSH_ROUNDS),
                "retries": config.command_blocks,
            }
        )
        m.submodules.origins = origins = Memory(shape=origin, depth=config.commands, init=[])
        m.submodules.progresses = progresses = Memory(
            shape=progress, depth=config.commands, init=[]
        )
        origin_read, origin_write = origins.read_port(), origins.write_port()
        read, write = progresses.read_port(), progresses.write_port()
        m.submodules.attempts = attempts = Memory(
            shape=recovery(config), depth=config.commands << config.offset_bits, init=[]
        )
        attempt_read, attempt_write = attempts.read_port(), attempts.write_port()

        # Each slot is in either queue at most once, so they cannot overflow.
        m.submodules.retries = retries = Queue(config.slot_bits, config.commands)
        completion_shape = completion(config)
        m.submodules.completions = completions = Queue(completion_shape, config.commands)
        ending = Signal(completion_shape)
        connect(m, completions.output, flipped(self.completion))
        m.d.comb += [
            completions.input.payload.eq(ending),
        ]

        with m.If(self.command.ready):
            m.d.sync += self.command.valid.eq(0)
        with m.If(self.free.ready):
            m.d.sync += self.free.valid.eq(0)

        # The event being served.
        action = Signal(Action)
        slot = Signal(config.slot_bits)
        status = Signal(Status)
        # Of a flush: nothing is known of what the drive has stored.
        undone = Signal()
        count = Signal(WIDTH_BITS)
        place = Signal(config.offset_bits)
        attempt = Signal(recovery(config))

        def good_or(failed, error):
            return Mux(failed, error, Status.SUCCESS)

        def decode_read_failed(event):
            reached = event.status != DriveStatus.UNREACHED
            m.d.sync += [
                action.eq(Action.RETRY),
                slot.eq(event.index),
                place.eq(event.place),
                attempt.again.eq(1),
                attempt.tried.eq(event.recover.tried + reached),
                attempt.copy.eq(event.recover.copy),
            ]
            if config.background:
                m.d.sync += [
                    attempt.medium.eq(event.status == DriveStatus.MEDIUM_ERROR),
                    attempt.ordered.eq(event.recover.ordered),
                    attempt.era.eq(event.recover.era),
                ]

        def decode_flushed(event):
            m.d.sync += [
                action.eq(Action.COUNT),
                status.eq(good_or(event.status != DriveStatus.GOOD, Status.WRITE_FAULT)),
                undone.eq(
                    (event.status == DriveStatus.GONE) | (event.status == DriveStatus.ABORTED)
                ),
                slot.eq(event.index),
            ]

        def decode_status(event):
            m.d.sync += [action.eq(Action.COUNT), status.eq(event.status), slot.eq(event.slot)]

        def decode_delivered(event):
            m.d.sync += [
                action.eq(Action.COUNT),
                status.eq(event.status),
                slot.eq(event.slot),
                self.free.payload.eq(event.line),
                self.free.valid.eq(1),
            ]

        def decode_rejected(event):
            m.d.sync += [action.eq(Action.REJECT), status.eq(event.status), slot.eq(event.slot)]

        def decode_expected(event):
            m.d.sync += [
                action.eq(Action.EXPECT),
                status.eq(Status.SUCCESS),
                slot.eq(event.slot),
                count.eq(event.count),
            ]

        def decode_start(event):
            m.d.sync += [
                action.eq(Action.START),
                slot.eq(event.slot),
                self.command.payload.eq(event),
            ]

        command_free = ~self.command.valid
        inputs = [
            (self.host_command, decode_start, command_free),
            (self.rejected, decode_rejected, 1),
            (self.expected, decode_expected, 1),
            (self.flushed, decode_flushed, 1),
            (self.read_failed, decode_read_failed, 1),
            (self.committed, decode_status, 1),
            (self.recover_failed, decode_status, 1),
            (self.delivered, decode_delivered, ~self.free.valid),
        ]
        sources = len(inputs) + 1
        issue = len(inputs)
        waiting = Signal(sources)
        m.d.comb += waiting.eq(
            Cat(
                *(port.valid & allowed for port, _, allowed in inputs),
                retries.output.valid & command_free,
            )
        )
        turn = Signal(range(sources))
        chosen = Signal(range(sources))
        # Lowest waiting source from `turn` on, else the lowest of all.
        for first in (0, turn):
            for index in reversed(range(sources)):
                with m.If(waiting[index] & (first <= index)):
                    m.d.comb += chosen.eq(index)

        m.d.comb += [read.addr.eq(slot), origin_read.addr.eq(slot), write.addr.eq(slot)]
        before, after = Signal(progress), Signal(progress)
        m.d.comb += [before.eq(read.data), after.eq(before), write.data.eq(after)]
        m.d.comb += [
            origin_write.addr.eq(slot),
            origin_write.data.volume.eq(self.command.payload.volume),
            origin_write.data.block.eq(self.command.payload.block),
            origin_write.data.flush.eq(self.command.payload.opcode == HostOpcode.FLUSH),
            ending.slot.eq(slot),
            ending.status.eq(after.status),
        ]

        # The lowest block to be retried.
        retry = Signal(config.offset_bits)
        for index in reversed(range(config.command_blocks)):
            with m.If(before.retries[index]):
                m.d.comb += retry.eq(index)

        m.d.comb += [
            attempt_read.addr.eq(Cat(retry, slot)),
            attempt_write.addr.eq(Cat(place, slot)),
            attempt_write.data.eq(attempt),
        ]

        error = Signal(Status)
        again = Signal()
        once_more = Signal()
        first_error = Signal(Status)
        m.d.comb += [
            again.eq(undone & (before.rounds != FLUSH_ROUNDS - 1)),
            once_more.eq(before.again | again),
            error.eq(Mux(again, Status.SUCCESS, status)),
            first_error.eq(Mux(before.status == Status.SUCCESS, error, before.status)),
        ]

        def end_blocks(remaining):
            """Notes the first error; completes when nothing is left."""
            m.d.comb += [
                after.remaining.eq(remaining),
                after.again.eq(once_more),
                after.status.eq(first_error),
            ]
            with m.If(remaining == 0):
                with m.If(once_more & (first_error == Status.SUCCESS)):
                    m.d.comb += [
                        after.again.eq(0),
                        after.rounds.eq(before.rounds + 1),
                        after.retries.eq(1),
                        retries.input.payload.eq(slot),
                        retries.input.valid.eq(1),
                    ]
                with m.Else():
                    m.d.comb += completions.input.valid.eq(1)

        with m.FSM(name="track") as fsm:
            with m.State("TAKE"):
                m.d.sync += undone.eq(0)
                for index, (port, decode, allowed) in enumerate(inputs):
                    with m.If((chosen == index) & port.valid & allowed):
                        m.d.comb += port.ready.eq(1)
                        decode(port.payload)
                with m.If((chosen == issue) & waiting[issue]):
                    m.d.sync += [action.eq(Action.ISSUE), slot.eq(retries.output.payload)]
                with m.If(waiting.any()):
                    m.d.sync += turn.eq(Mux(chosen == sources - 1, 0, chosen + 1))
                    m.next = "LOOK"

            with m.State("LOOK"):
                m.next = "UPDATE"

            with m.State("UPDATE"):
                m.d.comb += write.en.eq(1)
                m.next = "TAKE"
                if platform == SIMULATION:
                    completes = completions.input.valid
                    self._check(m, slot, action, completes=completes, due=before.remaining)
                with m.Switch(action):
                    with m.Case(Action.START):
                        m.d.comb += [
                            origin_write.en.eq(1),
                            after.eq(0),
                            after.remaining.eq(self.command.payload.blocks + 1),
                        ]
                        m.d.sync += self.command.valid.eq(1)
                    with m.Case(Action.ISSUE):
                        m.d.comb += after.retries.eq(before.retries & (before.retries - 1))
                        with m.If(after.retries == 0):
                            m.d.comb += retries.output.ready.eq(1)
                        request = self.command.payload
                        m.next = "RECALL"
                        m.d.sync += [
                            request.slot.eq(slot),
                            request.opcode.eq(
                                Mux(origin_read.data.flush, HostOpcode.FLUSH, HostOpcode.READ)
                            ),
                            request.fua.eq(0),
                            request.volume.eq(origin_read.data.volume),
                            request.block.eq(origin_read.data.block + retry),
                            request.blocks.eq(0),
                            request.offset.eq(retry),
                        ]
                    with m.Case(Action.REJECT):
                        # Once a block was retried, the command as a whole has been mapped.
                        end_blocks(Mux(before.retried, before.remaining - 1, 0))
                    with m.Case(Action.EXPECT):
                        end_blocks(count)
                    with m.Case(Action.RETRY):
                        m.d.comb += [
                            attempt_write.en.eq(1),
                            after.retried.eq(1),
                            after.retries.bit_select(place, 1).eq(1),
                            retries.input.payload.eq(slot),
                            retries.input.valid.eq(before.retries == 0),
                        ]
                    with m.Case(Action.COUNT):
                        end_blocks(before.remaining - 1)

            with m.State("RECALL"):
                m.d.sync += [
                    self.command.valid.eq(1),
                    self.command.payload.recover.eq(attempt_read.data),
                ]
                with m.If(self.command.payload.opcode == HostOpcode.FLUSH):
                    m.d.sync += self.command.payload.recover.eq(0)
                m.next = "TAKE"

            completing = (completions.level > 0) & (~self.completion.valid | self.completion.ready)
            m.d.comb += self.busy.eq(
                ~fsm.ongoing("TAKE")
                | waiting.any()
                | completing
                | (self.command.valid & self.command.ready)
                | (self.free.valid & self.free.ready)
            )
        return m
