"""The backup unit: what is on its way to drives as the power goes reaches them when it comes."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, TIME_BITS, Config
from hdl.config.drive_time import MILLISECONDS
from hdl.flow.backup_pins import BackupPins
from hdl.flow.line import ReadPort, write_port
from hdl.flow.operation import finished, operation
from hdl.flow.recalled import recalled
from hdl.kit.clock import NEVER, passed
from hdl.kit.pulse import Pulse
from hdl.kit.table import TableRead
from hdl.metadata.superblock import kept_read
from hdl.redo.replay import Replay
from hdl.redo.saver import Saver
from hdl.stripe.rows.sequencer import unwritten_bits


class Redo(wiring.Component):
    """Saves the redo record once power fails, and replays it before arrays are brought up.

    The flash is waited for when power comes, for `Config.backup_wait_ms`. Once it has been away it
    is not used until the card is reset. What is on its way to drives is never more than the flash
    can store with the energy that there is. If that is less than `Config.least_backup_blocks`, or
    if there is no flash, the unit has failed: then there is no limit, and nothing is saved.

    Nothing is saved before the host has enabled the card. So the record of arrays that could not be
    brought up stays on the flash until then.

    An array is trusted if all that has been written to it is stored, or on its way: its superblocks
    say what is so, its rows are in sync, and it is not *exposed*. It is exposed once something that
    is not written with Force Unit Access has been sent to its drives, or a drive has not stored
    what it was sent. It is not any more once its superblocks say that it is clean, or the drives
    have been flushed as the host switched the volatile write cache off. What walks have written is
    stored as well once their job is DONE.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    pins
        Those of the backup unit.
    present, capacity
        Of the flash.
    restarted
        A pulse. The flash may have lost what it had not stored.
    hangs
        A pulse. The flash does not end its commands.
    now, deadline
        Time in clock cycles; when the flash is not waited for any more.
    surveyed
        A level. It is known of each drive that is there what it holds.
    known, used, kept_read
        Those of `hdl.redo.replay.Replay`.
    reads
        A level. ``kept_read`` is used.
    wanted
        The host wants the controller to work.
    sound, home_read
        Those of `hdl.redo.saver.Saver`.
    steady
        One bit per array. Its superblocks say what is so, and its rows are in sync.
    clean
        One bit per array. Superblocks say that it is clean, and nothing is written to it.
    exposes, unflushed
        Those of `hdl.stripe.rows.sequencer.Sequencer`.
    proven
        ``stored`` of `hdl.background.jobs.Jobs`.
    flushes, stores
        A level: all drives are flushed as the host switches the cache off. With it, all drives that
        have not failed have stored what they had as it rose.
    recalls, recalled, most_unwritten
        Those of the sequencer.
    page_line
        A level. A line that nobody else uses. So are the first ones before ``done``.
    line_read, line_write
        Ports of the line store.
    operation, finished
        Operations of ``Owner.METADATA``, and their ends, which are always taken.
    shuns, covered, done
        Those of `hdl.redo.replay.Replay`.
    gives_up
        A level. Nothing is sent to the flash.
    failed
        The unit could not save what it should.
    busy
        It works, and does not wait for a drive.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "pins": Out(BackupPins()),
                "present": In(1),
                "capacity": In(BLOCK_NUMBER_BITS),
                "restarted": In(1),
                "hangs": In(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=NEVER),
                "surveyed": In(1),
                "known": In(config.ports),
                "used": In(config.ports),
                "kept_read": Out(kept_read(config)),
                "reads": Out(1),
                "wanted": In(1),
                "sound": In(MAX_DRIVES),
                "home_read": Out(TableRead(config.port_bits, config.array_bits)),
                "steady": In(config.arrays),
                "clean": In(config.arrays),
                "exposes": In(Pulse(config.array_bits)),
                "unflushed": In(Pulse(config.array_bits)),
                "proven": In(Pulse(config.array_bits)),
                "flushes": In(1),
                "stores": In(1),
                "recalls": Out(1),
                "recalled": In(stream.Signature(recalled(config))),
                "most_unwritten": Out(unwritten_bits(config), init=-1),
                "page_line": In(config.line_bits),
                "line_read": Out(ReadPort(config)),
                "line_write": Out(write_port(config)),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "shuns": Out(config.ports),
                "covered": Out(config.ports),
                "done": Out(1),
                "gives_up": Out(1),
                "failed": Out(1),
                "busy": Out(1),
            }
        )
        self._saver = Saver(config=config)
        self._replay = Replay(config=config)
        self._enabled = Signal()  # the host has enabled the card
        self._there = Signal()  # the flash is, and always has been since it came
        self._enough = Signal()  # there is energy for what a row may write
        # As the power failed.
        self._sound = Signal(MAX_DRIVES)
        self._steady = Signal(config.arrays)
        self._exposed = Signal(config.arrays)
        self._walked = Signal(config.arrays)  # the same, by walks
        self._flushed = Signal(config.arrays)  # nothing else has been written since it began

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.saver = self._saver
        m.submodules.replay = self._replay
        moves = self._await_flash(m)
        self._limit(m)
        self._watch_arrays(m)
        moves |= self._save(m)
        self._share(m)
        m.d.comb += self.busy.eq(moves | self._saver.busy | self._replay.busy)
        return m

    def _await_flash(self, m: Module) -> Value:
        """The states WAKE to AWAY of the flash. Returns whether something moves."""
        config = self._config
        fits = self.present & (self.capacity >= config.backup_blocks) & ~self.hangs
        wait = config.backup_wait_ms * config.clock_hz // MILLISECONDS
        moves, now = Signal(), self.now
        with m.FSM(name="flash") as fsm:
            with m.State("WAKE"):
                m.d.sync += self.deadline.eq(now + wait)
                m.next = "AWAIT"

            with m.State("AWAIT"):
                with m.If(fits):
                    m.next = "THERE"
                with m.Elif(passed(now, self.deadline)):
                    m.next = "AWAY"

            with m.State("THERE"):
                m.d.sync += self.deadline.eq(NEVER)
                with m.If(~fits):
                    m.next = "AWAY"

            with m.State("AWAY"):
                m.d.sync += self.deadline.eq(NEVER)

            m.d.comb += [
                self._there.eq(fsm.ongoing("THERE")),
                self.gives_up.eq(fsm.ongoing("AWAY")),
                moves.eq(
                    fsm.ongoing("WAKE")
                    | (fsm.ongoing("AWAIT") & (fits | passed(now, self.deadline)))
                    | (fsm.ongoing("THERE") & ~fits)
                    | (~fsm.ongoing("AWAIT") & (self.deadline != NEVER))
                ),
            ]
        return moves

    def _limit(self, m: Module) -> None:
        """How much may be on its way."""
        config, pins = self._config, self.pins
        room, most = Signal(range(config.backup_blocks + 1)), len(self.most_unwritten)
        limited, blocks = Signal(), config.backup_blocks
        least = config.least_backup_blocks
        m.d.comb += self._enough.eq(self._there & (pins.energy_blocks >= least))
        m.d.sync += [
            limited.eq(self._enough),
            room.eq(Mux(pins.energy_blocks < blocks, pins.energy_blocks, blocks)),
        ]
        left = room - config.backup_overhead
        with m.If(limited & (left < (1 << most))):
            m.d.comb += self.most_unwritten.eq(left)
        with m.Else():
            m.d.comb += self.most_unwritten.eq(-1)
        unable = self._there & ~limited
        m.d.comb += self.failed.eq(self.gives_up | unable | self._saver.failed)

    def _watch_arrays(self, m: Module) -> None:
        """Which arrays may be trusted."""
        exposed, walked, flushed = self._exposed, self._walked, self._flushed
        exposes, walks, proven = (
            Mux(pulse.valid, 1 << pulse.payload, 0)
            for pulse in (self.exposes, self.unflushed, self.proven)
        )
        m.d.sync += flushed.eq(Mux(self.flushes, flushed & ~exposes & ~walks, -1))
        stored = Mux(self.flushes & self.stores, flushed, 0) | self.clean
        m.d.sync += [
            exposed.eq((exposed & ~stored) | exposes),
            walked.eq((walked & ~(stored | proven)) | walks),
        ]
        m.d.comb += self._saver.trusted.eq(self._steady & ~exposed & ~walked)

    def _save(self, m: Module) -> Value:
        """The card ends what it does once the power fails, and saves. Returns whether it fails."""
        saver, replay, pins = self._saver, self._replay, self.pins
        failing, saves = Signal(), Signal()
        with m.If(self.wanted & replay.done & ~failing):
            m.d.sync += self._enabled.eq(1)
        with m.If(pins.power_fail & ~failing):
            m.d.sync += [failing.eq(1), saves.eq(self._enabled & self._enough)]
        # Drives may lose their power from now on.
        with m.If(~failing):
            m.d.sync += [self._sound.eq(self.sound), self._steady.eq(self.steady)]
        m.d.comb += [
            self.recalls.eq(failing),
            saver.begins.eq(failing & saves),
            pins.saved.eq(failing & (saver.saved | ~self._enabled)),
        ]
        return pins.power_fail & ~failing

    def _share(self, m: Module) -> None:
        """Only one of the two works at a time."""
        saver, replay = self._saver, self._replay
        connect(m, flipped(self.recalled), saver.recalled)
        connect(m, saver.home_read, flipped(self.home_read))
        connect(m, saver.line_write, flipped(self.line_write))
        m.d.comb += [
            saver.sound.eq(self._sound),
            saver.restarted.eq(self.restarted),
            saver.page_line.eq(self.page_line),
            replay.page_line.eq(self.page_line),
            replay.begins.eq(self._there & self.surveyed),
            replay.gives_up.eq(self.gives_up),
            replay.known.eq(self.known),
            replay.used.eq(self.used),
            self.shuns.eq(replay.shuns),
            self.covered.eq(replay.covered),
            self.done.eq(replay.done),
            self.reads.eq(~replay.done | saver.begins),
        ]
        for user, has in ((replay, ~replay.done), (saver, replay.done)):
            asked, sent, ended = user.line_read, user.operation, user.finished
            with m.If(has):
                m.d.comb += [
                    self.kept_read.address.eq(user.kept_read.address),
                    self.line_read.request.payload.eq(asked.request.payload),
                    self.line_read.request.valid.eq(asked.request.valid),
                    asked.request.ready.eq(self.line_read.request.ready),
                    asked.response_valid.eq(self.line_read.response_valid),
                    self.operation.payload.eq(sent.payload),
                    self.operation.valid.eq(sent.valid),
                    sent.ready.eq(self.operation.ready),
                    ended.valid.eq(self.finished.valid),
                    self.finished.ready.eq(ended.ready),
                ]
            m.d.comb += [
                user.kept_read.data.eq(self.kept_read.data),
                asked.response.eq(self.line_read.response),
                ended.payload.eq(self.finished.payload),
            ]
