"""Row sequencer: runs each launched row's program on the drives and through the parity engine."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.flow.array_state import ArrayStatus
from hdl.flow.drive_states import DriveStates
from hdl.flow.host_command import Status
from hdl.flow.intention import intention
from hdl.flow.line import line_stream
from hdl.flow.operation import DriveStatus, Opcode, finished, landed, operation
from hdl.flow.parity_pass import pass_done, step
from hdl.flow.piece import piece
from hdl.flow.recalled import recalled
from hdl.flow.recovery import tried_bits
from hdl.flow.row import RowKind, committed, row_state, strip_state
from hdl.flow.table_read import ArrayReads
from hdl.flow.walk import MendRequest, WalkKind, walked
from hdl.kit.bits import ones
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue
from hdl.kit.table import TableRead
from hdl.stripe.mends import Mends
from hdl.stripe.planning.pass_steps import PassSteps
from hdl.stripe.planning.program import (
    always_synced,
    migration_mask,
    migration_target,
    role_bits,
    target_bits,
    targets,
)
from hdl.stripe.planning.row_planning import RowPlanning
from hdl.stripe.rows.early import Early
from hdl.stripe.rows.operation_result import OperationResult
from hdl.stripe.rows.phase_queues import PhaseQueues
from hdl.stripe.rows.progress import Next, Phase, progress
from hdl.stripe.rows.refusals import Refusals
from hdl.stripe.rows.row_flushes import RowFlushes
from hdl.stripe.rows.row_operation import RowOperation
from hdl.stripe.walks.suspicion import Suspicion
from hdl.stripe.walks.walk_outcome import WalkOutcome

REFUSAL_CYCLES = 4096
"""Cycles that the sequencer waits for the states of arrays at most, each time that a row is judged.
"""

MAKE_RIGHT = (WalkKind.RESYNC, WalkKind.ZERO, WalkKind.REPAIR, WalkKind.SALVAGE)
"""Walks that make rows consistent. What they write must be stored before that is believed. Others
that write do so to drives that are not believed before these have been flushed."""


def unwritten_bits(config: Config) -> int:
    """Width of the number of blocks that are on their way to drives."""
    return bits_for_count(config.rows * targets(config) + 1)


class Sequencer(wiring.Component):
    """Brings launched rows to their new contents, or recovers a block; many rows at once.

    A WRITE row ends in one ``committed`` for each joined block, after all its drives have answered,
    and gives back all its lines. A RECOVER row ends in ``recovered`` (the line belongs to the
    receiver) or ``recover_failed``. If it is ``gathered``, it ends so for each joined block, and
    only those fail that cannot be worked out. Then ``retired`` gives the row slot back. A row that
    ``fills`` ends in ``filled``: the joined block's line has its old contents, and the row slot is
    to be launched again. If that fails, it ends as any RECOVER row, and its line is given back.

    A role that cannot be read is planned around and, if its drive is alive and it belongs to the
    row's new contents, written anew. A write that fails loses its role. If row and array do without
    it, the drive is reported on ``fail`` (before any ``committed`` of the row), and the row
    succeeds. If the row does not, its blocks end with WRITE_FAULT, and the drive stays: what is
    live and in sync when the row ends decides, not the level (`hdl.stripe.rows.refusals`). A copy
    that is not in sync does not make a write succeed. What is written with FUA, and has no drive in
    the end, is there only with all that it is worked out from. So drives that may have cached some
    of that are flushed when the row has been judged, and drives on which a row with FUA has made
    anything unreadable. Commands that need one that did not store it fail. ABORTED operations are
    sent `hdl.stripe.rows.progress.attempts` times at least, UNREACHED ones and writes that end with
    MEDIUM_ERROR once more. Operations that are sent again go alone. GONE is always reported.

    What was read before drives restarted that are kept, and what is read after it, may be of
    different times: a row that makes something of it, and has not begun to write, is planned again.
    What a walk writes of what it has read is `dated <hdl.flow.operation.operation>`: it is planned
    anew in another era.

    With ``slow_read_ms``, a host's read that has redundancy left is one that may end as SLOW. Then
    the row goes on as with a block that cannot be read, until it needs that block after all. If
    recovery is impossible, the block is read from its own drive.

    With ``background``, a write to a row that is past repair because of blocks that cannot be read
    succeeds. The row's parities are made unreadable until all of its data can be read again. A row
    that is walked ends in one ``walked``, before ``retired``. While a member migrates, what
    it gets is written to the migration target as well. If the target does not store that, it is
    reported on ``fail``, and nothing else comes of it.

    With ``backup_blocks``, a row's redo record is what it has sent to its drives and has not seen
    end: ``unwritten`` of `hdl.stripe.rows.progress.progress`, and their lines. No row begins unless
    what it may write has room among ``most_unwritten`` blocks, and it keeps that until it ends, or
    is planned again. Once power fails the sequencer ends what it does for the row at hand, begins
    nothing else, and tells the records of all rows.

    About 5 cycles to send and 6 to finish an operation, 3 a parity step, 30 + width more a row.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    launch
        Row slots to run.
    row_read
        Their rows.
    strip_read
        Joined blocks, at address row slot * 32 + data strip.
    reads
        Tables of the row's array, as for `RowPlanning`.
    drives
        What the tables know of the drives.
    arrays
        As for `RowPlanning`. Drives that are ``essential`` are not given up for a block. The
        sequencer, and all rows with it, waits for ``settled`` for `REFUSAL_CYCLES` at most for a
        row, each time that it is judged. After that the drive stays. After a shorter wait all of
        the row's drives are looked at again.
    allocate
        Lines of the rows' own.
    free
        Lines given back.
    operation
        What the drives do, for owner ROW. ``index`` is the row slot. ``place`` is the target's
        number, which without mirroring is the role (data 0.., then P, Q, ..).
    finished
        How that ended, with the same ``index`` and ``place``.
    step
        What the parity engine does.
    pass_done
        How a pass ended.
    piece
        With ``early_rows``: pieces of blocks that have landed.
    committed, recovered, recover_failed, filled, retired
        How a row ends. ``filled`` with ``sector_emulation``.
    fail
        Ports whose drive is to be given up.
    flush, flushed
        ``operation`` and ``finished`` of `hdl.stripe.rows.row_flushes.RowFlushes`.
    busy
        Something moves.
    restarts
        With ``background``: as for `hdl.stripe.dispatch.Dispatch`.
    walked
        With ``background``: how a row ended that was walked.
    mends
        With ``background``: rows that are to be mended. Those of the first are of reads. Those of
        the second are rows that a host has written, of which blocks were made unreadable.
    begun, lets
        With ``intent_chunks``, and with ``durable_marks``: as for `RowPlanning`.
    exists
        With ``array_shares``: bit an array, as for `RowPlanning`.
    recalls
        With ``backup_blocks``, a level: power fails. No end of an operation is of interest.
    recalled
        With ``backup_blocks``: blocks that are on their way to drives, and a last entry that is
        none. Then they come once more, in the same order. 3 cycles a row slot, and 5 a block.
    most_unwritten
        With ``backup_blocks``, a level: so many blocks may be on their way. It is 2 * ``targets``
        at least.
    exposes
        With ``backup_blocks``: what a host writes to this array may not be stored, or a drive has
        not stored what it was sent.
    unflushed
        With ``backup_blocks``: so with what a walk writes that makes rows right.

    ``finished`` and ``pass_done`` are taken whatever ``operation``, ``step`` and ``allocate`` do:
    the operations of a row are queued inside, and a row begins a phase only when all of them fit.
    ``committed``, ``recovered``, ``recover_failed``, ``fail``, ``free`` and ``retired`` must be
    taken in the end without waiting for anything of the sequencer.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        super().__init__(
            {
                "launch": In(stream.Signature(slot)),
                "row_read": Out(TableRead(slot, row_state(config))),
                "strip_read": Out(TableRead(slot + 5, strip_state(config))),
                "reads": Out(ArrayReads(config)),
                "drives": In(DriveStates()),
                "arrays": In(ArrayStatus(config)),
                "allocate": In(line_stream(config)),
                "free": Out(line_stream(config)),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "step": Out(stream.Signature(step(config))),
                "pass_done": In(stream.Signature(pass_done(config))),
                "committed": Out(stream.Signature(committed(config))),
                "recovered": Out(stream.Signature(landed(config))),
                "recover_failed": Out(stream.Signature(committed(config))),
                "fail": Out(stream.Signature(config.port_bits)),
                "flush": Out(stream.Signature(operation(config))),
                "flushed": In(stream.Signature(finished(config))),
                "retired": Out(stream.Signature(slot)),
                "filled": Out(stream.Signature(slot)),
                "piece": In(stream.Signature(piece(config))),
                "restarts": In(tried_bits(config)).array(config.ports),
                "walked": Out(stream.Signature(walked(config))),
                "mends": Out(MendRequest(config)).array(2),
                "begun": Out(stream.Signature(intention(config))),
                "lets": In(stream.Signature(slot)),
                "exists": In(config.arrays),
                "recalls": In(1),
                "recalled": Out(stream.Signature(recalled(config))),
                "most_unwritten": In(unwritten_bits(config)),
                "exposes": Out(Pulse(config.array_bits)),
                "unflushed": Out(Pulse(config.array_bits)),
                "busy": Out(1),
            }
        )

        self._planning = RowPlanning(config=config)
        self._queues = PhaseQueues(config=config)
        self._todo = Queue(slot, config.rows)  # rows whose phase has ended
        self._states = Memory(shape=progress(config), depth=config.rows, init=[])
        self._state_read = self._states.read_port()
        self._state_write = self._states.write_port()
        self._unread_read = self._states.read_port()
        self._operation = RowOperation(config=config)
        self._steps = PassSteps(config=config)
        self._operation_result = OperationResult(config=config)
        self._refusals = Refusals(config=config)
        self._flushes = RowFlushes(config=config)
        self._early = Early(config=config)
        self._mends = Mends(config=config)
        self._suspicion = Suspicion(config=config)
        self._walk_outcome = WalkOutcome(config=config)

        # Options as constants. Blocks can be made unreadable. A row may give the host several
        # blocks.
        self._blanks = Const(config.background, 1)
        self._gathers = Const(config.gather_reads, 1)

        # The row at hand: its program and progress follow `slot` by one cycle. What belongs to
        # target `number`, or to role `index`, follows that by one.
        self._slot = Signal(slot)
        self._number = Signal(target_bits(config))
        self._index = Signal(role_bits(config))
        self._now = Signal(progress(config))
        self._program = program = self._planning.program_read.data
        self._target = self._planning.target_read.data
        self._own_line = self._planning.line_read.data
        self._strip = self.strip_read.data

        # Of the row's program.
        self._recover = program.kind == RowKind.RECOVER
        self._protected = program.parities != 0
        self._redundant = self._protected | program.mirrored
        self._unprotected = program.mirrored | ~self._protected  # by parity
        self._walks = program.walk.any
        # The migration target as a bit, and the target whose block goes there as well.
        self._migration_bit = migration_mask(config)
        self._migrates = (program.write & self._migration_bit).any()
        self._migrated = Mux(self._migrates, 1 << program.migrated, 0)
        self._data_roles = Signal(config.ports)
        self._synced = Signal(targets(config))
        self._kept_lines = Signal(config.ports)  # roles whose own line the writes need
        self._delivers = Signal(config.ports)  # joined blocks that the host gets
        self._restarted = Signal()  # drives have, that are kept, since it was planned
        self._mixed = Signal()  # what was read may be of different times

        # What is left to go through: targets or roles; roles whose own line goes back, and what
        # follows that.
        self._pending = Signal(targets(config))
        self._lowest = Signal(target_bits(config))
        self._freed = Signal(config.ports)
        self._next_freed = Signal(role_bits(config))
        self._afterwards = Signal(Next)

        # The operations that are sent, and the one that has ended.
        self._writing = Signal()
        self._resending = Signal()
        self._sends_step = Signal()
        self._event = Signal(finished(config))
        self._answer = Signal(pass_done(config))  # of the parity engine
        self._release = Signal()  # its line goes back
        self._report = Signal()  # its drive has gone away
        self._ended = Signal()  # the row's phase has ended

        # A bit a port: drives that have other blocks of the row, maybe in their caches, or one that
        # was made unreadable; those that were flushed for it, if any were. Whether one of the
        # former was not. Whether what was written with FUA may not be stored after all.
        self._holders = Signal(MAX_DRIVES)
        self._stored = Signal(MAX_DRIVES)
        self._flushed = Signal()
        self._unstored = Signal()
        self._unproven = Signal()

        # Of drives that did not store a block: whether one stays that the row does not do without;
        # those that stay and that it does without; cycles that the row has waited for one.
        self._torn = Signal()
        self._kept = Signal(targets(config))
        self._delayed = Signal()  # this one has been waited for
        self._waited = Signal(range(REFUSAL_CYCLES + 1))

        # Blocks that rows which have begun may write, and whether those of another row have room.
        self._reserved = Signal(unwritten_bits(config))
        self._reserves = Signal()
        self._releases = Signal()
        self._has_room = Signal(init=1)
        self._recalled_all = Signal()

        # How the row ends.
        self._abandoned = Signal()  # its erasures cannot be solved
        self._filled = Signal()  # it goes back to the gatherer
        self._fault = Signal()  # its commands fail
        self._rebuilt = Signal(config.ports)  # roles with parity whose drives are being rebuilt
        self._blank = self._now.blank  # made unreadable on drives that stay
        self._gone = Signal(config.ports)  # joined blocks that had a drive as the row was planned

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        self._add_parts(m)
        self._connect_planning(m)
        self._connect_row(m)
        self._connect_sending(m)
        self._connect_ends(m)
        self._connect_walks(m)
        if config.backup_blocks:
            self._reserve(m)
        with m.FSM(name="sequence") as fsm:
            if config.backup_blocks:
                self._forget(m)
            moves = self._rest(m)
            if config.backup_blocks:
                self._recall(m)
            self._end_operation(m)
            self._end_pass(m)
            self._begin(m)
            self._resume(m)
            if config.background:
                self._compare(m)
            self._send_operations(m)
            self._send_steps(m)
            self._free_lines(m)
            self._note_drives(m)
            self._close(m)
            self._judge_refusals(m)
            self._judge_refusal(m)
            self._commit(m)
            self._deliver(m)
            if config.background:
                self._end_walk(m)
            self._retire(m)
            offers = fsm.ongoing("RECALLED") if config.backup_blocks else 0
        waits = fsm.ongoing("IDLE") | (offers & ~self.recalled.ready)
        m.d.comb += self.busy.eq(
            ~waits | moves | self._queues.busy | self._planning.busy
        )
        return m

    def _add_parts(self, m: Module) -> None:
        m.submodules.planning = self._planning
        m.submodules.queues = self._queues
        m.submodules.todo = self._todo
        m.submodules.states = self._states
        m.submodules.row_operation = self._operation
        m.submodules.steps = self._steps
        m.submodules.operation_result = self._operation_result
        m.submodules.refusals = self._refusals
        m.submodules.flushes = self._flushes
        m.submodules.early = self._early
        m.submodules.mends = self._mends
        m.submodules.suspicion = self._suspicion
        m.submodules.walk_outcome = self._walk_outcome

    def _connect_planning(self, m: Module) -> None:
        """What `RowPlanning` sees, and what it tells."""
        planning, unread = self._planning, self._unread_read
        retired = self.retired.valid & self.retired.ready
        connect(m, flipped(self.launch), planning.launch)
        connect(m, planning.row_read, flipped(self.row_read))
        connect(m, planning.reads, flipped(self.reads))
        connect(m, flipped(self.drives), planning.drives)
        connect(m, flipped(self.arrays), planning.arrays)
        connect(m, planning.mend, flipped(self.mends[0]))
        connect(m, planning.begun, flipped(self.begun))
        connect(m, flipped(self.lets), planning.lets)
        connect(m, flipped(self.allocate), planning.allocate)
        m.d.comb += [
            planning.again.payload.eq(self._slot),
            planning.program_read.address.eq(self._slot),
            planning.target_read.address.eq(Cat(self._number, self._slot)),
            planning.line_read.address.eq(Cat(self._index, self._slot)),
            unread.addr.eq(planning.unread_read.address),
            planning.unread_read.data.bad.eq(unread.data.bad),
            planning.unread_read.data.slow.eq(unread.data.slow),
            planning.exists.eq(self.exists),
            planning.ended.valid.eq(retired | (self.filled.valid & self.filled.ready)),
            planning.ended.payload.eq(self.retired.payload),
        ]

    def _connect_row(self, m: Module) -> None:
        """What is known of the row at hand."""
        config, program, now = self._config, self._program, self._now
        uses = Mux(self._recover, program.erased.any(), program.read.any())
        without = now.lost[: config.ports] | self._blank[: config.ports] | self._rebuilt
        m.d.comb += [
            # Blocks that were planned without their drives have been worked out with FUA already.
            self._gone.eq(without & program.joined & ~(program.dead | program.stale)),
            self._restarted.eq(program.era != self.arrays.eras[program.array]),
            self.strip_read.address.eq((self._slot << bits_for_count(MAX_DRIVES)) | self._index),
            self._state_read.addr.eq(self._slot),
            self._state_write.addr.eq(self._slot),
            self._state_write.data.eq(now),
            self._todo.input.payload.eq(self._slot),
            self._lowest.eq(lowest_bit(m, self._pending, "lowest_pending")),
            self._next_freed.eq(lowest_bit(m, self._freed, "lowest_freed")),
            self._data_roles.eq((1 << program.data) - 1),
            self._synced.eq(program.synced | always_synced(config)),
            self._kept_lines.eq(program.generate << program.data),
            self._delivers.eq(program.joined),
            self._mixed.eq(uses & self._restarted),
        ]
        with m.If(self._walks):
            lines = Mux(program.single, program.aux, program.write | self._migrated)
            m.d.comb += self._kept_lines.eq(lines)
        # Of reads gathered, those that were not lost for good.
        unsolvable = Mux(self._abandoned, program.erased, 0)
        with m.If(program.gathered):
            m.d.comb += self._delivers.eq(program.joined & program.aux & ~unsolvable)

    def _connect_sending(self, m: Module) -> None:
        """How operations and parity steps leave, and how those of passes come back."""
        program, now = self._program, self._now
        queues, steps, sent, early = self._queues, self._steps, self._operation, self._early
        connect(m, queues.operation, flipped(self.operation))
        m.d.comb += [
            sent.program.eq(program),
            sent.progress.eq(now),
            sent.slot.eq(self._slot),
            sent.number.eq(self._number),
            sent.target.eq(self._target),
            sent.role.eq(self._index),
            sent.joined_line.eq(self._strip.line),
            sent.own_line.eq(self._own_line),
            sent.writing.eq(self._writing),
            sent.resending.eq(self._resending),
            queues.next_operation.eq(sent.operation),
            steps.program.eq(program),
            steps.slot.eq(self._slot),
            queues.next_step.eq(steps.step),
            queues.next_step.line.eq(Mux(steps.own, self._own_line, self._strip.line)),
            sent.eras.eq(self.arrays.eras),
        ]
        for restarts, given in zip(sent.restarts, self.restarts, strict=True):
            m.d.comb += restarts.eq(given)

        # Passes of whole blocks are queued; one for pieces is recorded in the row's seat.
        connect(m, flipped(self.piece), early.piece)
        connect(m, queues.step, early.whole)
        connect(m, early.step, flipped(self.step))
        connect(m, flipped(self.pass_done), early.pass_done)
        m.d.comb += [
            queues.send_step.eq(self._sends_step & ~now.early.any),
            early.slot.eq(self._slot),
            early.reads.eq(program.read),
            early.record.eq(self._sends_step & now.early.any),
            early.recorded.eq(queues.next_step),
            early.record_seat.eq(now.early.seat),
            early.settle_seat.eq(now.early.seat),
            early.good.eq(~now.retry.any() & (now.bad == program.bad)),
            early.array.eq(program.array),
        ]
        m.d.sync += early.several.eq((self.exists & (self.exists - 1)).any())

    def _connect_ends(self, m: Module) -> None:
        """How operations, and rows, are judged, and what is told of them."""
        program, now = self._program, self._now
        result, refusals, strip = self._operation_result, self._refusals, self._strip
        stored = now.good.bit_select(self._index, 1)
        needs_others = (self._gone | self._absent()).bit_select(self._index, 1)
        unproven = self._unproven & (needs_others | program.salvage | self._unprotected)
        fails = self._fault | unproven | (self._unprotected & ~stored)
        flushes = self._flushes
        migrates = ((1 << self._number) & self._migration_bit).any()
        m.d.comb += [
            result.event.eq(self._event),
            result.number.eq(self._number),
            # Targets of a row of mirrors that is filled are told apart by number.
            result.index.eq(
                Mux(program.fills & program.mirrored, self._number, self._index)
            ),
            result.synced.eq(self._synced.bit_select(self._number, 1)),
            result.before.eq(now),
            refusals.program.eq(program),
            refusals.progress.eq(now),
            refusals.synced.eq(self._synced),
            refusals.migrated.eq(self._migrated),
            refusals.number.eq(self._number),
            refusals.target.eq(self._target),
            refusals.fault.eq(self._fault),
            refusals.essential.eq(self.arrays.essential),
            refusals.settled.eq(self.arrays.settled),
            result.paired.eq(
                self._migrates
                & program.write.bit_select(program.migrated, 1)
                & (migrates | (self._number == program.migrated))
            ),
            self.retired.payload.eq(self._slot),
            self.committed.payload.slot.eq(strip.slot),
            self.committed.payload.status.eq(Mux(fails, Status.WRITE_FAULT, Status.SUCCESS)),
            self.recovered.payload.slot.eq(strip.slot),
            self.recovered.payload.offset.eq(strip.offset),
            self.recovered.payload.line.eq(self._own_line),
            self.recover_failed.payload.slot.eq(strip.slot),
            self.recover_failed.payload.status.eq(Status.UNRECOVERED_READ),
            self.filled.payload.eq(self._slot),
            flushes.request.payload.slot.eq(self._slot),
            flushes.request.payload.array.eq(program.array),
            flushes.request.payload.ports.eq(self._holders),
        ]
        connect(m, flushes.operation, flipped(self.flush))
        connect(m, flipped(self.flushed), flushes.finished)
        for inner, count in zip(flushes.restarts, self.restarts, strict=True):
            m.d.comb += inner.eq(count)

    def _absent(self) -> Value:
        """Blocks that had no drive as the row was planned, and need others' caches all the same.

        What they are worked out from is stored, but for a mark that some of it is not to be read.
        The row has made that mark, or has found it as it read.
        """
        program = self._program
        unread = program.bad & ~(program.write | program.dead | program.stale)
        found = self._protected & unread.any()
        return Mux(self._blank.any() | found, program.dead | program.stale, 0)

    def _connect_walks(self, m: Module) -> None:
        """What walks see of the row, and rows that are to be mended."""
        program, now, mends = self._program, self._now, self._mends
        connect(m, mends.mend, flipped(self.mends[1]))
        m.d.comb += [
            self._suspicion.program.eq(program),
            self._suspicion.before.eq(now),
            self._steps.suspect.eq(now.suspect),
            self._walk_outcome.program.eq(program),
            self._walk_outcome.progress.eq(now),
            self._walk_outcome.abandoned.eq(self._abandoned),
            mends.row.array.eq(program.array),
            mends.row.base.eq(program.base),
            mends.row.shift.eq(program.place),
            mends.row.row.eq(program.row),
        ]

    # States. Each method has those of one step, and says which they are.

    def _rest(self, m: Module) -> Value:
        """The state IDLE: what can be done next, most urgent first; whether anything moves."""
        planning, todo, pass_done = self._planning, self._todo, self._early.done
        flushed, room = self._flushes.done, self._queues.room
        recalls = self.recalls
        with m.State("IDLE"):
            m.d.sync += [
                self._ended.eq(0),
                self._abandoned.eq(0),
                self._report.eq(0),
                self._release.eq(0),
                self._filled.eq(0),
                self._flushed.eq(0),
                self._rebuilt.eq(0),
                self._holders.eq(0),
                self._unstored.eq(0),
                self._waited.eq(0),
            ]
            with m.If(recalls):
                if self._config.backup_blocks:
                    m.next = "RECALL"
            with m.Elif(self.finished.valid):
                m.d.comb += self.finished.ready.eq(1)
                m.d.sync += [
                    self._event.eq(self.finished.payload),
                    self._slot.eq(self.finished.payload.index),
                    self._number.eq(self.finished.payload.place),
                ]
                m.next = "LOAD-EVENT"
            with m.Elif(pass_done.valid):
                m.d.comb += pass_done.ready.eq(1)
                m.d.sync += [
                    self._answer.eq(pass_done.payload),
                    self._slot.eq(pass_done.payload.index),
                ]
                m.next = "LOAD-PASS"
            with m.Elif(flushed.valid & room):
                m.d.comb += flushed.ready.eq(1)
                m.d.sync += [
                    self._slot.eq(flushed.payload.slot),
                    self._stored.eq(flushed.payload.ports),
                    self._flushed.eq(1),
                ]
                m.next = "LOAD-ROW"
            with m.Elif(todo.output.valid & room):
                m.d.comb += todo.output.ready.eq(1)
                m.d.sync += self._slot.eq(todo.output.payload)
                m.next = "LOAD-ROW"
            with m.Elif(planning.ready.valid & room & self._has_room):
                m.d.comb += planning.ready.ready.eq(1)
                m.d.sync += self._slot.eq(planning.ready.payload)
                m.next = "LOAD-PROGRAM"
        # At rest, only what arrives, or room for what is queued, moves anything.
        moves = self.finished.valid | pass_done.valid | todo.filling | recalls
        moves |= room & (todo.output.valid | (planning.ready.valid & self._has_room))
        moves |= self._flushes.busy
        moves |= self._mends.busy | (self.mends[1].walk.valid & self.mends[1].walk.ready)
        return moves | self._early.busy

    def _end_operation(self, m: Module) -> None:
        """The state LOAD-EVENT, when an operation has ended, and those that follow, up to STORE."""
        program, now, result = self._program, self._now, self._operation_result
        own_line = program.mirrored | program.single
        with m.State("LOAD-EVENT"):
            m.next = "COPY-EVENT"
        with m.State("COPY-EVENT"):
            m.d.sync += [now.eq(self._state_read.data), self._index.eq(self._target.strip)]
            m.next = "JUDGE-EVENT"
        with m.State("JUDGE-EVENT"):
            m.d.sync += [
                now.eq(result.after),
                self._ended.eq(result.ended),
                self._report.eq(result.report),
                self._release.eq(result.written & ~own_line & self._operation.has_line),
            ]
            if self._config.backup_blocks:
                self._note_end(m)
            m.next = "SETTLE-EVENT"
        with m.State("SETTLE-EVENT"):
            m.d.comb += [
                self.fail.valid.eq(self._report),
                self.fail.payload.eq(self._event.port),
                self.free.valid.eq(self._release & ~self._report),
                self.free.payload.eq(
                    Mux(self._operation.has_joined, self._strip.line, self._own_line)
                ),
            ]
            with m.If(self._report):
                with m.If(self.fail.ready):
                    m.d.sync += self._report.eq(0)
            with m.Elif(~self._release | self.free.ready):
                m.next = "STORE"

    def _end_pass(self, m: Module) -> None:
        """The state LOAD-PASS, when a parity pass has ended, and those that follow; STORE, which
        ends the work on a row until its phase has ended."""
        now, program, answer = self._now, self._program, self._answer
        with m.State("LOAD-PASS"):
            m.next = "COPY-PASS"
        with m.State("COPY-PASS"):
            m.d.sync += [now.eq(self._state_read.data), self._ended.eq(1)]
            # By syndrome, and by the role of the parity: Q is the first one in one DDF layout.
            m.d.sync += now.nonzero.eq(answer.nonzero)
            with m.If(program.rotation.ddf & ~program.rotation.ascending):
                m.d.sync += now.nonzero.eq(Cat(answer.nonzero[1:2], answer.nonzero[0]))
            with m.If(answer.error):
                m.d.sync += now.phase.eq(Phase.ABANDON)
            m.next = "STORE"
        with m.State("STORE"):
            m.d.comb += [self._state_write.en.eq(1), self._todo.input.valid.eq(self._ended)]
            m.next = "IDLE"

    def _begin(self, m: Module) -> None:
        """The state LOAD-PROGRAM, when a row begins, and BEGIN; WRITE, where its writes begin."""
        config, program, now = self._config, self._program, self._now
        planning, early, stored = self._planning, self._early, self._state_read.data
        with m.State("LOAD-PROGRAM"):
            m.next = "BEGIN"
        with m.State("BEGIN"):
            m.d.comb += self._reserves.eq(1)
            m.d.sync += [now.eq(0), now.bad.eq(program.bad)]
            with m.If(program.again):
                m.d.sync += [
                    now.found.eq(stored.found),
                    now.wrong.eq(stored.wrong),
                    now.slow.eq(stored.slow & program.bad),
                ]
            with m.If(~program.possible):
                m.next = "CLOSE"
                if config.background:
                    with m.If(program.write.any()):
                        m.next = "WRITE"
            with m.Elif(program.read.any()):
                self._begin_operations(m, targets=program.read, phase=Phase.READ)
                # With other rows at its heels the next reads matter more.
                alone = early.free & ~planning.busy
                one = (program.joined & (program.joined - 1)) == 0
                lost = self._recover & one & ~program.fills & program.erased.any()
                with m.If(lost & alone):
                    m.d.comb += early.claim.eq(1)
                    m.d.sync += [now.early.any.eq(1), now.early.seat.eq(early.seat)]
            with m.Elif(program.generate.any()):
                self._begin_generation(m)
            with m.Else():
                m.d.sync += now.suspect.eq(program.source)
                m.next = "WRITE"
                if config.background:
                    with m.If(self._walks & (program.walk.kind == WalkKind.ZERO)):
                        m.next = "COMPARE"
        with m.State("WRITE"):
            m.d.sync += now.rounds.eq(0)
            self._begin_operations(m, targets=program.write, phase=Phase.WRITE)
            with m.If(~program.write.any()):
                m.next = "CLOSE"

    def _resume(self, m: Module) -> None:
        """The state LOAD-ROW, when a row's phase has ended, and those that follow, up to the begin
        of its next phase, or its end."""
        config, program, now = self._config, self._program, self._now
        stored, early = self._state_read.data, self._early
        with m.State("LOAD-ROW"):
            m.next = "COPY-ROW"
        with m.State("COPY-ROW"):
            m.d.sync += now.eq(stored)
            m.next = "RESUME"
            if config.early_rows:
                with m.If(stored.early.any):
                    m.next = "SETTLE"
        if config.early_rows:
            with m.State("SETTLE"):
                # Reads have ended; passes that are under way end before anything else.
                m.d.comb += early.settle.eq(1)
                m.d.sync += now.early.any.eq(0)
                with m.If(early.good & ~self._mixed):
                    m.d.sync += now.phase.eq(Phase.RECOVER)
                m.next = "STORE"
        with m.State("RESUME"):
            with m.Switch(now.phase):
                with m.Case(Phase.READ):
                    self._after_reads(m)
                with m.Case(Phase.RECOVER):
                    self._after_recovery(m)
                with m.Case(Phase.GENERATE):
                    self._give_back(m, program.aux & ~self._kept_lines, then=Next.WRITE)
                    with m.If(self._mixed):
                        self._plan_again(m)
                    if config.background:
                        with m.Elif(program.checks):
                            m.next = "SUSPECT"
                with m.Case(Phase.WRITE):
                    self._after_writes(m)
                if config.background:
                    with m.Case(Phase.COMPARE):
                        m.next = "SUSPECT"
                        with m.If(self._mixed):
                            self._plan_again(m)
                    for phase in (Phase.SPOIL, Phase.BLANK):
                        with m.Case(phase):
                            m.next = "FIND-REFUSALS"
                            if phase == Phase.BLANK:
                                with m.If(~self._walks):
                                    self._judge_again(m)
                            else:
                                with m.If(program.fua & ~self._walks):
                                    self._walk_places(m)
                            with m.If(now.retry.any()):
                                self._try_again(m, phase=phase)
                with m.Default():  # its erasures cannot be solved
                    m.d.sync += self._abandoned.eq(1)
                    self._give_back(m, program.aux, then=Next.CLOSE)
                    with m.If(program.gathered):
                        self._deliver_joined(m)

    def _after_reads(self, m: Module) -> None:
        """What follows the reads of a row."""
        config, program, now = self._config, self._program, self._now
        with m.If(now.retry.any()):
            self._try_again(m, phase=Phase.READ)
        with m.Elif((now.bad != program.bad) | self._mixed):
            self._plan_again(m)
        with m.Elif(program.erased.any()):
            m.d.comb += self._steps.recover.eq(1)
            m.d.sync += now.phase.eq(Phase.RECOVER)
            m.next = "BEGIN-PASS"
        if config.gather_reads or config.slow_read_ms or config.background:
            with m.Elif(self._recover & ~program.fills):
                self._deliver_joined(m)
        with m.Elif(program.fills):
            self._end_filling(m)
        if config.background:
            with m.Elif(program.checks & program.single):
                m.next = "SUSPECT"
        with m.Elif(self._walks & ~program.generate.any()):
            self._give_back(m, program.aux & ~self._kept_lines, then=Next.WRITE)
        with m.Else():
            self._begin_generation(m)

    def _after_recovery(self, m: Module) -> None:
        """What follows once what was erased has been worked out."""
        program = self._program
        with m.If(self._recover & ~program.fills):
            self._deliver_joined(m)
        with m.Elif(program.fills):
            self._end_filling(m)
        with m.Elif(self._walks & self._mixed):
            self._plan_again(m)
        with m.Elif(self._walks & ~program.generate.any()):
            self._give_back(m, program.aux & ~self._kept_lines, then=Next.WRITE)
        with m.Else():
            self._begin_generation(m)

    def _after_writes(self, m: Module) -> None:
        """What follows the writes of a row."""
        config, program, now = self._config, self._program, self._now
        m.next = "CLOSE"
        # A drive that stored a block with FUA, or the only copy in sync, may have gone by now.
        away = self.drives.used & (self.drives.failed | self.drives.stale)
        forced = (program.fua | program.mirrored) & ~self._walks & away.any()
        forced |= program.fua & program.salvage
        with m.If(now.lost.any() | forced | self._flushed):
            self._walk_places(m)
        with m.If(now.retry.any()):
            self._try_again(m, phase=Phase.WRITE)
            # What a walk writes may not be the row's any more.
            again = now.retry[: config.ports] | Mux(
                now.retry[migration_target(config)], 1 << program.migrated, 0
            )
            unwritten = program.aux & (again | program.single.replicate(config.ports))
            with m.If(self._walks & self._mixed):
                self._give_back(m, unwritten, then=Next.PLAN)
                if config.backup_blocks:
                    m.d.sync += now.unwritten.eq(0)

    def _compare(self, m: Module) -> None:
        """The states SUSPECT, when parities or copies have been compared, and COMPARE, which begins
        the next such pass."""
        program, now, suspicion = self._program, self._now, self._suspicion
        with m.State("SUSPECT"):
            m.d.sync += now.eq(suspicion.after)
            with m.If(suspicion.compare):
                m.next = "COMPARE"
            with m.Elif(suspicion.again):
                self._plan_again(m)
            with m.Else():
                self._give_back(m, program.aux & ~self._kept_lines, then=Next.WRITE)
        with m.State("COMPARE"):
            m.d.comb += self._steps.compare.eq(1)
            m.d.sync += now.phase.eq(Phase.COMPARE)
            m.next = "BEGIN-PASS"

    def _begin_generation(self, m: Module) -> None:
        """Ends a state: generate parities."""
        m.d.comb += self._steps.generate.eq(1)
        m.d.sync += self._now.phase.eq(Phase.GENERATE)
        m.next = "BEGIN-PASS"

    def _begin_operations(
        self, m: Module, *, targets: Value, phase: Phase, again: int = 0
    ) -> None:
        """Ends a state: read or write ``targets``, ``again`` or for the first time."""
        m.d.sync += [
            self._resending.eq(again),
            self._now.phase.eq(phase),
            self._pending.eq(targets),
            self._writing.eq(phase != Phase.READ),
        ]
        m.next = "SELECT-TARGET"

    def _make_unreadable(self, m: Module, *, targets: Value, phase: Phase) -> None:
        """Ends a state: make ``targets`` unreadable, which their drives may refuse, too."""
        now = self._now
        m.d.sync += [now.lost.eq(0), now.refused.eq(0), now.rounds.eq(0)]
        self._begin_operations(m, targets=targets, phase=phase)

    def _try_again(self, m: Module, *, phase: Phase) -> None:
        """Ends a state: send once more what did not come to an end."""
        now = self._now
        m.d.sync += [
            now.retry.eq(0),
            now.aborted.eq(0),
            now.rounds.eq(now.rounds + now.aborted),
        ]
        self._begin_operations(m, targets=now.retry, phase=phase, again=1)

    def _give_back(self, m: Module, roles: Value, *, then: Next) -> None:
        """Ends a state: free the own lines of ``roles``."""
        m.d.sync += [self._freed.eq(roles), self._afterwards.eq(then)]
        m.next = "SELECT-LINE"

    def _plan_again(self, m: Module) -> None:
        """Ends a state: free the row's own lines and have it planned again."""
        self._give_back(m, self._program.aux, then=Next.PLAN)

    def _end_filling(self, m: Module) -> None:
        """Ends a state: give the row back to the gatherer."""
        m.d.sync += self._filled.eq(1)
        self._give_back(m, self._program.aux, then=Next.RETIRE)

    def _deliver_joined(self, m: Module) -> None:
        """Ends a state: give the host the joined blocks."""
        m.d.sync += self._pending.eq(self._program.joined)
        m.next = "FIND-RECOVERED"

    def _send_operations(self, m: Module) -> None:
        """The states from SELECT-TARGET, which send an operation to each ``pending`` target, up to
        STORE, or to the pass that is recorded for a row whose blocks are worked out in pieces."""
        program, now, pending = self._program, self._now, self._pending
        with m.State("SELECT-TARGET"):
            m.d.sync += [self._number.eq(self._lowest), pending.eq(pending & (pending - 1))]
            m.next = "FIND-TARGET"
            with m.If(~pending.any()):
                m.next = "STORE"
                with m.If(now.early.any):
                    m.d.comb += self._steps.recover.eq(1)
                    m.next = "BEGIN-PASS"
        with m.State("FIND-TARGET"):
            m.next = "FIND-ROLE"
        with m.State("FIND-ROLE"):
            m.d.sync += [
                self._index.eq(self._target.strip),
                now.remaining.eq(now.remaining + 1),
            ]
            with m.If(self._writing & program.single):
                m.d.sync += self._index.eq(program.source)
            m.next = "FIND-LINE"
        with m.State("FIND-LINE"):
            m.next = "SEND"
        with m.State("SEND"):
            m.d.comb += self._queues.send_operation.eq(1)
            m.next = "SELECT-TARGET"
            # Until then its era is not known.
            with m.If(self._operation.dated & self.drives.undecided):
                m.d.comb += self._queues.send_operation.eq(0)
                m.next = "SEND"
                if self._config.backup_blocks:
                    # Nobody decides that once the power fails.
                    with m.If(self.recalls):
                        m.next = "SELECT-TARGET"
            if self._config.backup_blocks:
                with m.Elif(self._writing):
                    self._note_sent(m)

    def _reserve(self, m: Module) -> None:
        """How many blocks may be on their way to drives."""
        most, blocks = targets(self._config), ones(self._program.write)
        more, fewer = Mux(self._reserves, blocks, 0), Mux(self._releases, blocks, 0)
        m.d.sync += [
            self._reserved.eq(self._reserved + more - fewer),
            self._has_room.eq(self._reserved + most <= self.most_unwritten),
        ]
        m.d.comb += [
            self.exposes.payload.eq(self._program.array),
            self.unflushed.payload.eq(self._program.array),
        ]

    def _note_sent(self, m: Module) -> None:
        """Ends a state: a block is sent to a drive, for the first time or again."""
        program, sent = self._program, self._operation
        own = self._now.unwritten.bit_select(self._number, 1)
        right = Cat(program.walk.kind == kind for kind in MAKE_RIGHT).any()
        stored = sent.operation.fua | (self._walks & ~right)
        walked = self._walks & sent.has_line
        m.d.comb += [
            self.exposes.valid.eq(~((sent.has_line & stored) | walked)),
            self.unflushed.valid.eq(walked & ~stored),
        ]
        with m.If(sent.has_line):
            m.d.sync += own.eq(1)

    def _note_end(self, m: Module) -> None:
        """In a state: an operation has ended, well or for good, or it will be sent again."""
        event, result, now = self._event, self._operation_result, self._now
        again = result.after.retry.bit_select(self._number, 1)
        ends = (event.opcode == Opcode.WRITE) & ~again
        m.d.comb += self.exposes.valid.eq(ends & (event.status != DriveStatus.GOOD))
        with m.If(ends):
            m.d.sync += now.unwritten.bit_select(self._number, 1).eq(0)

    def _forget(self, m: Module) -> None:
        """The state FORGET, after a reset: no row has written anything yet."""
        with m.State("FORGET"):
            m.d.comb += self._state_write.en.eq(1)
            m.d.sync += self._slot.eq(self._slot + 1)
            with m.If(self._slot == self._config.rows - 1):
                m.next = "IDLE"

    def _unless_power_fails(self, m: Module) -> None:
        """In a state of a row whose writes have ended, which waits for somebody who may never be
        ready once the power fails."""
        if self._config.backup_blocks:
            with m.If(self.recalls):
                m.next = "RECALL"

    def _recall(self, m: Module) -> None:
        """The states from RECALL, of a card whose power fails: blocks that are on their way, of one
        row slot after the other."""
        program, pending, told = self._program, self._pending, self.recalled.payload
        sent = self._operation.operation
        last = self._slot == self._config.rows - 1
        with m.State("RECALL"):
            m.d.sync += [self._slot.eq(0), self._writing.eq(1), self._recalled_all.eq(0)]
            m.next = "RECALL-ROW"
        with m.State("RECALL-ROW"):
            m.next = "RECALL-COPY"
        with m.State("RECALL-COPY"):
            m.d.sync += [
                self._now.eq(self._state_read.data),
                pending.eq(self._state_read.data.unwritten),
            ]
            m.next = "RECALL-SELECT"
        with m.State("RECALL-SELECT"):
            m.d.sync += [self._number.eq(self._lowest), pending.eq(pending & (pending - 1))]
            m.next = "RECALL-TARGET"
            with m.If(~pending.any()):
                m.d.sync += [self._slot.eq(self._slot + 1), self._recalled_all.eq(last)]
                m.next = "RECALL-ROW"
                with m.If(last):
                    m.next = "RECALLED"
        with m.State("RECALL-TARGET"):
            m.next = "RECALL-ROLE"
        with m.State("RECALL-ROLE"):
            m.d.sync += self._index.eq(Mux(program.single, program.source, self._target.strip))
            m.next = "RECALL-LINE"
        with m.State("RECALL-LINE"):
            m.next = "RECALLED"
        with m.State("RECALLED"):
            m.d.comb += [self.recalled.valid.eq(1), told.last.eq(self._recalled_all)]
            with m.If(~self._recalled_all):
                m.d.comb += [
                    told.array.eq(program.array),
                    told.port.eq(sent.port),
                    told.block.eq(sent.block),
                    told.line.eq(sent.line),
                ]
            with m.If(self.recalled.ready):
                m.next = "RECALL-SELECT"
                with m.If(self._recalled_all):
                    m.next = "RECALL"

    def _send_steps(self, m: Module) -> None:
        """The states from BEGIN-PASS, which send the steps of a pass, up to STORE."""
        steps = self._steps
        with m.State("BEGIN-PASS"):
            m.d.comb += [steps.begin.eq(1), self._sends_step.eq(1)]
            m.next = "SELECT-STEP"
        with m.State("SELECT-STEP"):
            m.d.comb += steps.select.eq(1)
            m.d.sync += self._index.eq(steps.role)
            m.next = "FIND-STEP"
            with m.If(steps.skips):
                m.next = "SELECT-STEP"
            with m.If(~steps.more):
                m.next = "STORE"
        with m.State("FIND-STEP"):
            m.next = "SEND-STEP"
        with m.State("SEND-STEP"):
            m.d.comb += self._sends_step.eq(1)
            m.next = "SELECT-STEP"

    def _free_lines(self, m: Module) -> None:
        """The states from SELECT-LINE, which give back the own lines of the ``freed`` roles, up to
        what follows ``afterwards``; PLAN, which has the row planned again."""
        freed = self._freed
        with m.State("SELECT-LINE"):
            m.d.sync += [self._index.eq(self._next_freed), freed.eq(freed & (freed - 1))]
            m.next = "FIND-FREED"
            with m.If(~freed.any()):
                with m.Switch(self._afterwards):
                    with m.Case(Next.PLAN):
                        m.next = "PLAN"
                    with m.Case(Next.WRITE):
                        m.next = "WRITE"
                    with m.Case(Next.CLOSE):
                        m.next = "CLOSE"
                    with m.Case(Next.RETIRE):
                        m.next = "RETIRE"
        with m.State("FIND-FREED"):
            m.next = "FREE"
        with m.State("FREE"):
            m.d.comb += [self.free.valid.eq(1), self.free.payload.eq(self._own_line)]
            with m.If(self.free.ready):
                m.next = "SELECT-LINE"
        with m.State("PLAN"):
            m.d.comb += [self._planning.again.valid.eq(1), self._state_write.en.eq(1)]
            with m.If(self._planning.again.ready):
                m.d.comb += self._releases.eq(1)
                m.next = "IDLE"

    def _is_stale(self, port: Value) -> Value:
        """Whether the drive at ``port`` is being rebuilt now."""
        return self.drives.stale.bit_select(port, 1)

    def _walk_places(self, m: Module) -> None:
        """Ends a state: go through every role, but of mirrors what was written; and both drives of
        a migration."""
        program = self._program
        every_role = (1 << (program.data + program.parities)) - 1
        places = Mux(self._protected, every_role, program.write | program.read)
        places |= (program.write & self._migration_bit) | self._migrated
        m.d.sync += [
            self._pending.eq(places),
            self._rebuilt.eq(0),
            self._holders.eq(0),
            self._unstored.eq(0),
        ]
        # Once the row has failed, only who has marks is of interest.
        with m.If(self._now.phase != Phase.SPOIL):
            m.d.sync += self._now.good.eq(0)
        m.next = "SELECT-PLACE"

    def _marked(self) -> Value:
        """Targets that the row has made unreadable: no mark is written with FUA."""
        program = self._program
        parities = self._migrated & ~self._data_roles
        parities = Mux(parities.any(), self._migration_bit, 0) | ~(
            self._data_roles | self._migration_bit
        )
        past_repair = Mux(program.salvage, program.write & parities, 0)
        return past_repair | Mux(self._now.phase == Phase.SPOIL, program.write, self._blank)

    def _judge_again(self, m: Module) -> None:
        """Ends a state, after something was waited for: a drive that has another block of the row
        may have gone meanwhile."""
        self._walk_places(m)

    def _note_drives(self, m: Module) -> None:
        """The states from SELECT-PLACE, of a row of which a drive did not store a block, up to
        CLOSE, or FIND-REFUSALS: what has become of the drives since the row began."""
        program, now = self._program, self._now
        pending, port = self._pending, self._target.port
        own = Signal.like(now.lost)
        m.d.comb += own.eq(1 << self._number)
        counts = own & program.write & self._synced & ~now.lost & ~self._migration_bit
        # The drive in its place has all that it has, if it has not missed this block.
        target_missed = (now.lost & self._migration_bit).any()
        missed = Mux((own & self._migrated).any(), target_missed, (own & now.lost).any())
        replaced = self.drives.replaced.bit_select(port, 1) & ~missed
        # What is not written with FUA is stored only once it has been flushed: marks, and other
        # blocks of the row, unless nothing can be worked out from them.
        lost = program.salvage | (now.phase == Phase.SPOIL)
        holds = self._protected & ~lost & (own & ~program.write).any()
        holds |= (own & self._marked()).any()
        with m.State("SELECT-PLACE"):
            m.d.sync += [self._number.eq(self._lowest), pending.eq(pending & (pending - 1))]
            m.next = "FIND-PLACE"
            with m.If(~pending.any()):
                m.next = "CLOSE"
                with m.If(now.phase == Phase.SPOIL):
                    m.next = "FIND-REFUSALS"
        with m.State("FIND-PLACE"):
            m.next = "NOTE-PLACE"
        with m.State("NOTE-PLACE"):
            with m.If(self.drives.failed.bit_select(port, 1) & replaced):
                m.d.sync += [now.lost.eq(now.lost & ~own), now.left.eq(now.left & ~own)]
                with m.If((own & program.write & self._synced & ~self._migration_bit).any()):
                    m.d.sync += now.good.eq(now.good | (1 << self._target.strip))
            with m.Elif(self.drives.failed.bit_select(port, 1)):
                m.d.sync += [now.lost.eq(now.lost | own), now.left.eq(now.left | own)]
            with m.Else():
                # A drive that is being rebuilt may be trusted by the time that it has been flushed.
                with m.If(holds):
                    m.d.sync += self._holders.bit_select(port, 1).eq(1)
                with m.If(~self._walks & self._is_stale(port)):
                    m.d.sync += self._rebuilt.eq(self._rebuilt | own)
                with m.Elif(counts.any() & ~holds):
                    m.d.sync += now.good.eq(now.good | (1 << self._target.strip))
                with m.Elif(holds & ~self._stored.bit_select(port, 1)):
                    m.d.sync += self._unstored.eq(1)
            m.next = "SELECT-PLACE"

    def _close(self, m: Module) -> None:
        """The state CLOSE, of any row that ends with statuses, and COUNT, which counts what has no
        redundancy left."""
        config, program, now = self._config, self._program, self._now
        refusals, fault = self._refusals.refusals, self._fault
        missing = Signal(config.ports)
        tolerance = Signal(3)
        with m.State("CLOSE"):
            lost = now.lost[: config.ports]
            replaced = Mux(self._walks, program.write[: config.ports], program.joined)
            unread = now.bad & self._data_roles & ~replaced
            lost |= self._blank[: config.ports]
            # A drive under rebuild counts as missing if the row has lost a block since its plan.
            rebuilt = Mux((lost & ~program.dead).any() | self._gone.any(), self._rebuilt, 0)
            m.d.sync += [
                missing.eq(lost | program.dead | program.stale | rebuilt | unread),
                tolerance.eq(program.parities),
                fault.eq(self._abandoned | ~program.possible),
            ]
            m.next = "COUNT"
            with m.If(program.salvage):
                # What joined is on its drives, or nowhere; the rest is lost already.
                m.d.sync += [
                    missing.eq(lost | program.dead | program.stale),
                    fault.eq((lost & program.joined).any() | self._refusals.needed.any()),
                ]
            if config.background:
                with m.If(self._walks & ~refusals.any()):
                    m.next = "JUDGE-WALK"
        with m.State("COUNT"):
            m.d.sync += [missing.eq(missing & (missing - 1)), tolerance.eq(tolerance - 1)]
            with m.If(self._unprotected | fault | (tolerance == 0)):
                m.next = "CONFIRM"
                with m.If(refusals.any()):
                    m.next = "FIND-REFUSALS"
                with m.If(~self._unprotected & missing.any()):
                    m.d.sync += fault.eq(1)

    def _judge_refusals(self, m: Module) -> None:
        """The states FIND-REFUSALS and SELECT-REFUSAL, over the drives that did not store a block,
        and a migration target that must not stay as it is, up to CONFIRM; or a phase begins that
        makes blocks unreadable."""
        config, program, now = self._config, self._program, self._now
        refusals, pending, fault = self._refusals, self._pending, self._fault
        torn, kept = self._torn, self._kept
        with m.State("FIND-REFUSALS"):
            m.d.sync += [pending.eq(refusals.refusals), torn.eq(0), kept.eq(0)]
            with m.If(program.mirrored & (program.joined & ~now.good).any()):
                m.d.sync += fault.eq(1)
            with m.If(self._blanks):
                with m.Switch(now.phase):
                    with m.Case(Phase.BLANK):
                        m.d.sync += fault.eq((fault & ~self._walks) | refusals.needed.any())
                    with m.Case(Phase.SPOIL):
                        m.d.sync += fault.eq(self._redundant)
                    with m.Default():
                        m.d.sync += now.old.eq(now.lost & now.refused)
            m.next = "SELECT-REFUSAL"
        with m.State("SELECT-REFUSAL"):
            m.d.sync += [
                self._number.eq(self._lowest),
                pending.eq(pending & (pending - 1)),
                self._delayed.eq(0),
            ]
            m.next = "FIND-REFUSAL"
            with m.If(~pending.any()):
                m.next = "CONFIRM"
                if config.background:
                    spoils = torn & (now.phase != Phase.SPOIL) & refusals.spoilt.any()
                    with m.If((now.phase == Phase.WRITE) & kept.any()):
                        m.d.sync += now.blank.eq(kept)
                        self._make_unreadable(m, targets=kept, phase=Phase.BLANK)
                    with m.Elif(self._walks):
                        m.next = "JUDGE-WALK"
                    with m.Elif(spoils & refusals.differs):
                        m.d.sync += pending.eq(self._migration_bit)
                        m.next = "SELECT-REFUSAL"
                    with m.Elif(spoils):
                        self._make_unreadable(m, targets=refusals.spoilt, phase=Phase.SPOIL)

    def _judge_refusal(self, m: Module) -> None:
        """The states from FIND-REFUSAL, of one such drive, to GIVE-UP, which gives it up."""
        now, refusals = self._now, self._refusals
        torn, kept, waited = self._torn, self._kept, self._waited
        own = Signal.like(now.lost)
        m.d.comb += own.eq(1 << self._number)
        with m.State("FIND-REFUSAL"):
            m.next = "REPORT"
        with m.State("REPORT"):
            m.next = "SELECT-REFUSAL"
            m.d.comb += refusals.impatient.eq(waited == REFUSAL_CYCLES)
            with m.If(refusals.waits):
                m.d.sync += [waited.eq(waited + 1), self._delayed.eq(1)]
                m.next = "REPORT"
            with m.Elif(self._delayed & ~refusals.impatient & (now.phase == Phase.WRITE)):
                self._judge_again(m)
            with m.Elif(refusals.dismissed):
                m.next = "GIVE-UP"
            with m.Elif(~refusals.kept):
                m.d.sync += torn.eq(1)
            with m.Else():
                m.d.sync += kept.eq(kept | own)
            self._unless_power_fails(m)
        with m.State("GIVE-UP"):
            m.d.comb += [self.fail.valid.eq(1), self.fail.payload.eq(self._target.port)]
            with m.If(self.fail.ready):
                m.next = "SELECT-REFUSAL"
                with m.If(self._blanks):
                    m.d.sync += now.left.eq(now.left | own)

    def _commit(self, m: Module) -> None:
        """The state CONFIRM, of a row that has been judged, and FLUSH, if what others have cached
        is needed for what is written with FUA. The row is judged again once they have been
        flushed. The states from SELECT-STRIP, which end the joined blocks, up to RETIRE."""
        program, now = self._program, self._now
        pending, recover = self._pending, self._recover
        with m.State("CONFIRM"):
            # A drive that restarted may have lost what it was to store before it was flushed.
            m.d.sync += [
                pending.eq(program.joined),
                self._unproven.eq(self._flushed & (self._unstored | self._restarted)),
            ]
            m.next = "SELECT-STRIP"
            away = self._gone | (self._absent() & program.joined)
            worked_out = self._protected & away.any() & ~self._fault
            marked = self._blank.any() | program.salvage | (now.phase == Phase.SPOIL)
            needs = program.fua & ~recover & (worked_out | marked)
            with m.If(needs & self._holders.any() & ~self._flushed):
                m.next = "FLUSH"
        with m.State("FLUSH"):
            m.d.comb += self._flushes.request.valid.eq(1)
            with m.If(self._flushes.request.ready):
                m.next = "IDLE"
            self._unless_power_fails(m)
        with m.State("SELECT-STRIP"):
            m.d.sync += [self._index.eq(self._lowest), pending.eq(pending & (pending - 1))]
            m.next = "FIND-STRIP"
            with m.If(~pending.any()):
                m.next = "RETIRE"
        with m.State("FIND-STRIP"):
            m.next = "COMMIT"
        with m.State("COMMIT"):
            m.d.comb += [
                self.committed.valid.eq(~recover),
                self.recover_failed.valid.eq(recover),
            ]
            with m.If(Mux(recover, self.recover_failed.ready, self.committed.ready)):
                m.next = "SELECT-STRIP"
                # What can be worked out has its redundancy again without anyone's reading it.
                unreadable = (now.phase == Phase.SPOIL) | (now.phase == Phase.BLANK)
                m.d.comb += self._mends.note.eq(
                    self._redundant & ~recover & unreadable & ~pending.any()
                )
                # Lines written have been freed one by one, but not those of mirrors.
                written = program.write.bit_select(self._index, 1)
                holds = program.mirrored | self._abandoned | ~written
                with m.If((~recover | program.fills) & holds):
                    m.next = "FREE-STRIP"
            self._unless_power_fails(m)
        with m.State("FREE-STRIP"):
            m.d.comb += [self.free.valid.eq(1), self.free.payload.eq(self._strip.line)]
            with m.If(self.free.ready):
                m.next = "SELECT-STRIP"

    def _deliver(self, m: Module) -> None:
        """The states from FIND-RECOVERED, of a row that ends with blocks for the host, the
        ``pending`` ones, up to RETIRE."""
        program, pending = self._program, self._pending
        with m.State("FIND-RECOVERED"):
            m.d.sync += [self._index.eq(self._lowest), pending.eq(pending & (pending - 1))]
            m.next = "FETCH-RECOVERED"
        with m.State("FETCH-RECOVERED"):
            m.next = "DELIVER"
        with m.State("DELIVER"):
            delivered = self._delivers.bit_select(self._index, 1) | ~self._gathers
            m.d.comb += [
                self.recovered.valid.eq(delivered),
                self.recover_failed.valid.eq(~delivered),
            ]
            with m.If(Mux(delivered, self.recovered.ready, self.recover_failed.ready)):
                self._give_back(m, program.aux & ~self._delivers, then=Next.RETIRE)
                with m.If(self._gathers & pending.any()):
                    m.next = "FIND-RECOVERED"
            self._unless_power_fails(m)

    def _end_walk(self, m: Module) -> None:
        """The states JUDGE-WALK and END-WALK, of a row that was walked, up to RETIRE."""
        with m.State("JUDGE-WALK"):
            m.d.sync += self.walked.payload.eq(self._walk_outcome.walked)
            m.next = "END-WALK"
        with m.State("END-WALK"):
            m.d.comb += self.walked.valid.eq(1)
            with m.If(self.walked.ready):
                m.next = "RETIRE"
                with m.If(self._program.single):
                    self._give_back(m, self._program.aux, then=Next.RETIRE)
            self._unless_power_fails(m)

    def _retire(self, m: Module) -> None:
        """The state RETIRE: the row slot goes back."""
        with m.State("RETIRE"):
            m.d.comb += self.retired.valid.eq(~self._filled)
            with m.If(self.retired.valid & self.retired.ready):
                m.d.comb += self._releases.eq(1)
                m.next = "IDLE"
            m.d.comb += self.filled.valid.eq(self._filled)
            with m.If(self.filled.valid & self.filled.ready):
                m.d.comb += self._releases.eq(1)
                m.next = "IDLE"
            self._unless_power_fails(m)
