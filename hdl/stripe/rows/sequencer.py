"""Row sequencer: runs each launched row's program on the drives and through the parity engine."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import (
    BLOCK_NUMBER_BITS,
    DATA_OFFSET_BLOCKS,
    MAX_DRIVES,
    Config,
    bits_for_count,
)
from hdl.flow.array_state import eras
from hdl.flow.host_command import Status
from hdl.flow.intention import intention
from hdl.flow.line import line_stream
from hdl.flow.operation import Opcode, Owner, finished, landed, operation
from hdl.flow.parity_pass import pass_done, step
from hdl.flow.piece import piece
from hdl.flow.recovery import tried_bits
from hdl.flow.row import RowKind, committed, row_state, strip_state
from hdl.flow.table_read import TableRead, copy_read, geometry_read, member_read
from hdl.flow.walk import walk, walked
from hdl.kit.bits import lowest_bit
from hdl.kit.queue import Queue
from hdl.stripe.mends import Mends
from hdl.stripe.planning.admission import Admission
from hdl.stripe.planning.pass_steps import PassSteps
from hdl.stripe.planning.program import copy_target, role_bits, target_bits, targets
from hdl.stripe.rows.early import Early
from hdl.stripe.rows.judgement import Judgement
from hdl.stripe.rows.phase_queues import PhaseQueues
from hdl.stripe.rows.progress import Next, Phase, progress
from hdl.stripe.rows.row_at_hand import RowAtHand
from hdl.stripe.rows.row_end import end_states
from hdl.stripe.rows.row_phases import phase_states
from hdl.stripe.rows.row_sending import sending_states
from hdl.stripe.walks.suspicion import Suspicion
from hdl.stripe.walks.verdict import Verdict


class Sequencer(wiring.Component):
    """Brings launched rows to their new contents, or recovers a block; many rows at once.

    A WRITE row ends in one ``committed`` for each joined block, after all its drives have answered,
    and gives back all its lines; a RECOVER row in ``recovered`` (the line belongs to the receiver)
    or ``recover_failed``, for each joined block if it is ``gathered``: then only those fail that
    cannot be worked out. Then ``retired`` gives the row slot back. A row that ``fills`` ends in
    ``filled``: the joined block's line has its old contents, and the row slot is to be launched
    again; or as any RECOVER row, its line given back.

    A role that cannot be read is planned around and, if its drive is alive and it belongs to the
    row's new contents, written anew. A write that fails loses its role. If row and array do without
    it, the drive is reported on ``fail`` (before any ``committed`` of the row), and the row
    succeeds. If the row does not, its blocks end with WRITE_FAULT, and the drive stays: what is
    live and in sync when the row ends decides, not the level (`hdl.stripe.rows.row_end`). A copy
    that is not in sync does not make a write succeed. ABORTED operations are sent
    `hdl.stripe.rows.progress.attempts` times first, UNREACHED ones and writes that end with
    MEDIUM_ERROR once more; operations that are sent again go alone. GONE is always reported.

    ``restarts``, ``undecided``: as for `hdl.stripe.dispatch.Dispatch`. What a walk writes of what
    it has read is `dated <hdl.flow.operation.operation>`: it is planned anew in another era.
    ``unsynced``, ``sync_read``, ``doubts`` and ``eras`` are as for
    `hdl.stripe.planning.admission.Admission`. What was read before drives restarted that are kept,
    and what is read after it, may be of different times: a row that makes something of it, and has
    not begun to write, is planned again.

    With ``slow_read_ms``, a host's read that has redundancy left is one that may end as SLOW: then
    it goes on as with a block that cannot be read, until it needs that block after all; and a block
    to be recovered that cannot be, but may be read, is read.

    With ``background``, a write to a row that is past repair because of blocks that cannot be read
    succeeds; the row's parities are made unreadable until all of its data can be read again. A row
    that is walked ends in one ``walked``, before ``retired``; ``stale`` and ``boundary_read`` are
    as for `hdl.stripe.planning.admission.Admission`, and with ``intent_chunks`` so is ``begun``.
    ``mend``: that, and rows that a host has written of which blocks were made unreadable;
    ``noted``: bit for each of the two, of ``noted_arrays``. While a member is copied
    (``copy_read``) what it gets is written to another drive as well, which is reported on ``fail``
    if it does not store it, and nothing else comes of that. ``essential`` and ``settled`` are those
    of `hdl.array.states.ArrayStates`: drives that are not given up for a block, and whether that is
    known, for which the sequencer waits `hdl.stripe.rows.row_end.SETTLE_CYCLES` at most.

    ``exists``, with ``Config.array_shares``, is a bit an array, as for `Admission`.

    ``operation`` has owner ROW, index = row slot, place = target number (without mirroring the
    role: data 0.., then P, Q, ..); ``finished`` brings both back. ``finished`` and ``pass_done``
    are taken whatever ``operation``, ``step`` and ``allocate`` do: the operations of a row are
    queued inside, and a row begins a phase only when all of them fit. ``committed``, ``recovered``,
    ``recover_failed``, ``fail``, ``free`` and ``retired`` must be taken in the end without waiting
    for anything of the sequencer.

    About 5 cycles to send and 6 to finish an operation, 3 a parity step, 30 + width more a row.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        background = {}
        if config.background:
            background = {
                "stale": In(MAX_DRIVES),
                "essential": In(MAX_DRIVES),
                "settled": In(1),
                "boundary_read": Out(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "unsynced": In(config.arrays),
                "doubts": In(config.arrays),
                "eras": In(eras(config)),
                "restarts": In(tried_bits(config)).array(config.ports),
                "undecided": In(1),
                "sync_read": Out(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "copy_read": Out(copy_read(config)),
                "walked": Out(stream.Signature(walked(config))),
                "mend": Out(stream.Signature(walk(config))).array(2),
                "noted": Out(2),
                "noted_arrays": Out(config.array_bits).array(2),
            }
        if config.intent_chunks:
            background["begun"] = Out(stream.Signature(intention(config)))
        if config.array_shares:
            background["exists"] = In(config.arrays)
        super().__init__(
            {
                **background,
                "launch": In(stream.Signature(slot)),
                "row_read": Out(TableRead(slot, row_state(config))),
                "strip_read": Out(TableRead(slot + 5, strip_state(config))),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "failed": In(MAX_DRIVES),
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
                "retired": Out(stream.Signature(slot)),
                "busy": Out(1),
            }
            | ({"filled": Out(stream.Signature(slot))} if config.sector_emulation else {})
            | ({"piece": In(stream.Signature(piece(config)))} if config.early_rows else {})
        )

    def _in_sync(self, program: Any) -> Value:
        """Targets of ``program`` that hold all that they should of the row."""
        return program.synced

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.admission = admission = Admission(config=config)
        connect(m, flipped(self.launch), admission.launch)
        connect(m, admission.row_read, flipped(self.row_read))
        connect(m, admission.geometry_read, flipped(self.geometry_read))
        connect(m, admission.member_read, flipped(self.member_read))
        connect(m, flipped(self.allocate), admission.allocate)
        m.d.comb += admission.failed.eq(self.failed)
        if config.background:
            connect(m, admission.boundary_read, flipped(self.boundary_read))
            connect(m, admission.sync_read, flipped(self.sync_read))
            m.d.comb += [
                admission.unsynced.eq(self.unsynced),
                admission.doubts.eq(self.doubts),
                admission.eras.eq(self.eras),
            ]
            connect(m, admission.copy_read, flipped(self.copy_read))
            # Rows to be mended: of reads, and those that end with blocks made unreadable.
            m.submodules.mends = mends = Mends(config=config)
            connect(m, admission.mend, flipped(self.mend[0]))
            connect(m, mends.walk, flipped(self.mend[1]))
            m.d.comb += [
                self.noted.eq(Cat(admission.noted, mends.noted)),
                self.noted_arrays[0].eq(admission.noted_array),
            ]
            m.d.comb += admission.stale.eq(self.stale)
        else:
            mends = None
        if config.intent_chunks:
            connect(m, admission.begun, flipped(self.begun))
        if config.array_shares:
            ended = self.retired.valid & self.retired.ready
            if config.sector_emulation:
                ended |= self.filled.valid & self.filled.ready
            m.d.comb += [
                admission.exists.eq(self.exists),
                admission.ended.eq(ended),
                admission.ended_slot.eq(self.retired.payload),
            ]

        m.submodules.queues = queues = PhaseQueues(config=config)
        connect(m, queues.operation, flipped(self.operation))
        room = queues.room
        todo = Queue(config.row_slot_bits, config.rows)
        m.submodules.todo = todo

        m.submodules.states = states = Memory(shape=progress(config), depth=config.rows, init=[])
        state_read = states.read_port()
        state_write = states.write_port()
        unread_read = states.read_port()
        m.d.comb += [
            unread_read.addr.eq(admission.unread_read.address),
            admission.unread_read.data.bad.eq(unread_read.data.bad),
        ]
        if config.slow_read_ms:
            m.d.comb += admission.unread_read.data.slow.eq(unread_read.data.slow)

        # The row at hand: its program and progress follow `slot` by one cycle, and what belongs to
        # target `number`, or to role `index`, follows that by one.
        slot = Signal(config.row_slot_bits)
        number = Signal(target_bits(config))
        index = Signal(role_bits(config))
        now = Signal(progress(config))
        program = admission.program_read.data
        target = admission.target_read.data
        own_line = admission.line_read.data
        strip = self.strip_read.data
        m.d.comb += [
            admission.program_read.address.eq(slot),
            admission.target_read.address.eq(Cat(number, slot)),
            admission.line_read.address.eq(Cat(index, slot)),
            self.strip_read.address.eq((slot << bits_for_count(MAX_DRIVES)) | index),
            state_read.addr.eq(slot),
            state_write.addr.eq(slot),
            state_write.data.eq(now),
        ]
        if mends is not None:
            m.d.comb += [
                self.noted_arrays[1].eq(program.array),
                mends.row.array.eq(program.array),
                mends.row.base.eq(program.base),
                mends.row.shift.eq(program.place),
                mends.row.row.eq(program.row),
            ]
        data_roles = Signal(config.ports)
        parity_roles = Signal(config.ports)
        held = Signal(config.ports)
        recover = program.kind == RowKind.RECOVER
        fills = program.fills if config.sector_emulation else Const(0, 1)
        gathered = program.gathered if config.gather_reads else Const(0, 1)
        filled = Signal()
        walks, single, checks, copied = Const(0), Const(0), Const(0), Const(0)
        synced = Const(-1, targets(config))
        if config.background:
            walks, single, checks = program.walk.any, program.single, program.checks
            synced = self._in_sync(program)
            copies = program.write[copy_target(config)]
            copied = Mux(copies, 1 << program.copied, 0)
        is_strip = ~walks & (program.mirrored | (index < program.data))
        m.d.comb += [
            data_roles.eq((1 << program.data) - 1),
            parity_roles.eq(program.generate << program.data),
            held.eq(Mux(walks, Mux(single, program.aux, program.write | copied), parity_roles)),
        ]

        # Operations of one phase: `pending` targets.
        pending = Signal(targets(config))
        lowest = lowest_bit(m, pending, "lowest")
        writing = Signal()
        resending = Signal()
        sent = Signal(operation(config))
        wrap = Mux(target.wrapped, 1 << program.strip_shift, 0)
        m.d.comb += [
            queues.next_operation.eq(sent),
            sent.port.eq(target.port),
            sent.opcode.eq(Mux(writing, Opcode.WRITE, Opcode.READ)),
            sent.fua.eq(writing & program.fua),
            sent.more.eq((writing | walks | gathered) & program.more & ~resending),
            sent.alone.eq(resending),
            sent.block.eq(program.row + DATA_OFFSET_BLOCKS + wrap),
            sent.owner.eq(Owner.ROW),
            sent.index.eq(slot),
            sent.place.eq(number),
            sent.line.eq(
                Mux(
                    (writing & is_strip) | (fills & program.joined.bit_select(index, 1)),
                    strip.line,
                    own_line,
                )
            ),
        ]

        if config.slow_read_ms:
            m.d.comb += sent.elsewhere.eq(program.elsewhere)

        has_line, dated = Const(1), Const(0)
        if config.background:
            # What a walk has read is not written once its drives have restarted since.
            writes = walks & writing & (now.phase == Phase.WRITE)
            dated = writes & program.read.any()
            old = program.era != self.eras[program.array]
            m.d.comb += [
                sent.dated.eq(dated),
                sent.restarts.eq(Array(self.restarts)[target.port] - old),
            ]
            unreadable = (now.phase == Phase.SPOIL) | (now.phase == Phase.BLANK)
            has_line = program.possible & (is_strip | ~program.salvage) & ~unreadable
            with m.If(writing & ~has_line):
                m.d.comb += sent.opcode.eq(Opcode.WRITE_UNCORRECTABLE)

        m.submodules.steps = steps = PassSteps(config=config)
        m.d.comb += [
            steps.program.eq(program),
            steps.slot.eq(slot),
            queues.next_step.eq(steps.step),
            queues.next_step.line.eq(Mux(steps.own, own_line, strip.line)),
        ]

        # Passes: those of whole blocks are queued; one for pieces is recorded in the row's seat.
        sends_step, records = Signal(), Const(0)
        pass_done, early = self.pass_done, None
        if config.early_rows:
            m.submodules.early = early = Early(config=config)
            pass_done, records = early.done, now.early.any
            connect(m, flipped(self.piece), early.piece)
            connect(m, queues.step, early.whole)
            connect(m, early.step, flipped(self.step))
            connect(m, flipped(self.pass_done), early.pass_done)
            m.d.comb += [
                early.slot.eq(slot),
                early.reads.eq(program.read),
                early.record.eq(sends_step & records),
                early.recorded.eq(queues.next_step),
                early.record_seat.eq(now.early.seat),
                early.settle_seat.eq(now.early.seat),
                early.good.eq(~now.retry.any() & (now.bad == program.bad)),
                sent.early.any.eq(now.early.any & ~writing),
                sent.early.seat.eq(now.early.seat),
            ]
            if config.array_shares:
                m.d.comb += early.array.eq(program.array)
                m.d.sync += early.several.eq((self.exists & (self.exists - 1)).any())
        else:
            connect(m, queues.step, flipped(self.step))
        m.d.comb += queues.send_step.eq(sends_step & ~records)

        # Lines to give back, and what to do then.
        doomed = Signal(config.ports)
        doomed_role = lowest_bit(m, doomed, "doomed_role")

        afterwards = Signal(Next)

        event = Signal(finished(config))
        unsolved = Signal()
        ended = Signal()
        report = Signal()
        release = Signal()
        abandoned = Signal()
        fault = Signal()
        unprotected = program.mirrored | (program.parities == 0)
        m.submodules.judgement = judgement = Judgement(config=config)
        m.d.comb += [
            judgement.event.eq(event),
            judgement.number.eq(number),
            # Targets of a row of mirrors that is filled are told apart by number.
            judgement.index.eq(Mux(fills & program.mirrored, number, index)),
            judgement.synced.eq(synced.bit_select(number, 1)),
            judgement.before.eq(now),
            self.fail.payload.eq(event.port),
            self.retired.payload.eq(slot),
            admission.again.payload.eq(slot),
            todo.input.payload.eq(slot),
            self.committed.payload.slot.eq(strip.slot),
            self.committed.payload.status.eq(
                Mux(
                    fault | (unprotected & ~now.good.bit_select(index, 1)),
                    Status.WRITE_FAULT,
                    Status.SUCCESS,
                )
            ),
            self.recovered.payload.slot.eq(strip.slot),
            self.recovered.payload.offset.eq(strip.offset),
            self.recovered.payload.line.eq(own_line),
            self.recover_failed.payload.slot.eq(strip.slot),
            self.recover_failed.payload.status.eq(Status.UNRECOVERED_READ),
        ]

        suspicion, verdict = None, None
        if config.background:
            copying = number == copy_target(config)
            both = copies & program.write.bit_select(program.copied, 1)
            m.d.comb += [
                judgement.copying.eq(copying),
                judgement.paired.eq(both & (copying | (number == program.copied))),
            ]
            # By syndrome, and by the role of the parity: Q is the first one in one DDF layout.
            syndromes = Signal(config.parities)
            nonzero = Signal(config.parities)
            m.d.comb += nonzero.eq(syndromes)
            with m.If(program.rotation.ddf & ~program.rotation.ascending):
                m.d.comb += nonzero.eq(Cat(syndromes[1:2], syndromes[0]))
            m.submodules.suspicion = suspicion = Suspicion(config=config)
            m.d.comb += [
                suspicion.program.eq(program),
                suspicion.before.eq(now),
                steps.suspect.eq(now.suspect),
            ]
            m.submodules.verdict = verdict = Verdict(config=config)
            m.d.comb += [
                verdict.program.eq(program),
                verdict.progress.eq(now),
                verdict.abandoned.eq(abandoned),
            ]

        # Joined blocks that the host gets: of reads gathered, those that were not lost for good.
        delivers = Signal(config.ports)
        m.d.comb += delivers.eq(program.joined)
        if config.gather_reads:
            unsolvable = Mux(abandoned, program.erased, 0)
            with m.If(gathered):
                m.d.comb += delivers.eq(program.joined & program.aux & ~unsolvable)

        row = RowAtHand(
            config=config,
            program=program,
            now=now,
            slot=slot,
            number=number,
            index=index,
            strip=strip,
            pending=pending,
            lowest=lowest,
            recover=recover,
            fills=fills,
            gathered=gathered,
            walks=walks,
            single=single,
            checks=checks,
            held=held,
            doomed=doomed,
            doomed_role=doomed_role,
            afterwards=afterwards,
            writing=writing,
            resending=resending,
            abandoned=abandoned,
            filled=filled,
            steps=steps,
        )

        with m.FSM(name="sequence") as fsm:
            with m.State("IDLE"):
                m.d.sync += Cat(ended, abandoned, report, release, filled).eq(0)
                with m.If(self.finished.valid):
                    m.d.comb += self.finished.ready.eq(1)
                    m.d.sync += [
                        event.eq(self.finished.payload),
                        slot.eq(self.finished.payload.index),
                        number.eq(self.finished.payload.place),
                    ]
                    m.next = "LOAD-EVENT"
                with m.Elif(pass_done.valid):
                    m.d.comb += pass_done.ready.eq(1)
                    m.d.sync += [
                        slot.eq(pass_done.payload.index),
                        unsolved.eq(pass_done.payload.error),
                    ]
                    if config.background:
                        m.d.sync += syndromes.eq(pass_done.payload.nonzero)
                    m.next = "LOAD-PASS"
                with m.Elif(todo.output.valid & room):
                    m.d.comb += todo.output.ready.eq(1)
                    m.d.sync += slot.eq(todo.output.payload)
                    m.next = "LOAD-ROW"
                with m.Elif(admission.ready.valid & room):
                    m.d.comb += admission.ready.ready.eq(1)
                    m.d.sync += slot.eq(admission.ready.payload)
                    m.next = "LOAD-PROGRAM"

            # An operation has ended.
            with m.State("LOAD-EVENT"):
                m.next = "COPY-EVENT"
            with m.State("COPY-EVENT"):
                m.d.sync += [now.eq(state_read.data), index.eq(target.strip)]
                m.next = "JUDGE-EVENT"
            with m.State("JUDGE-EVENT"):
                m.d.sync += [
                    now.eq(judgement.after),
                    ended.eq(judgement.ended),
                    report.eq(judgement.report),
                    release.eq(judgement.written & ~program.mirrored & ~single & has_line),
                ]
                m.next = "SETTLE-EVENT"
            with m.State("SETTLE-EVENT"):
                m.d.comb += [
                    self.fail.valid.eq(report),
                    self.free.valid.eq(release & ~report),
                    self.free.payload.eq(Mux(is_strip, strip.line, own_line)),
                ]
                with m.If(report):
                    with m.If(self.fail.ready):
                        m.d.sync += report.eq(0)
                with m.Elif(~release | self.free.ready):
                    m.next = "STORE"

            # A parity pass has ended.
            with m.State("LOAD-PASS"):
                m.next = "COPY-PASS"
            with m.State("COPY-PASS"):
                m.d.sync += [now.eq(state_read.data), ended.eq(1)]
                if config.background:
                    m.d.sync += now.nonzero.eq(nonzero)
                with m.If(unsolved):
                    m.d.sync += now.phase.eq(Phase.ABANDON)
                m.next = "STORE"

            with m.State("STORE"):
                m.d.comb += [state_write.en.eq(1), todo.input.valid.eq(ended)]
                m.next = "IDLE"

            phase_states(
                m,
                row,
                stored=state_read.data,
                admission=admission,
                eras=self.eras if config.background else None,
                early=early,
                suspicion=suspicion,
                copied=copied,
            )

            sending_states(
                m,
                row,
                ports=self,
                target=target,
                queues=queues,
                sends_step=sends_step,
                records=records,
                dated=dated,
                own_line=own_line,
                admission=admission,
                state_write=state_write,
            )

            end_states(
                m,
                row,
                ports=self,
                target=target,
                data_roles=data_roles,
                unprotected=unprotected,
                copied=copied,
                synced=synced,
                fault=fault,
                delivers=delivers,
                verdict=verdict,
                mends=mends,
            )

        # With nothing at hand only what arrives, or room for what is queued, moves anything.
        arriving = self.finished.valid | pass_done.valid
        if early is not None:
            arriving |= early.busy
        begins = room & (todo.output.valid | admission.ready.valid)
        filling = todo.filling
        asks = Const(0)
        if mends is not None:
            asks = mends.busy | (self.mend[1].valid & self.mend[1].ready)
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("IDLE")
            | arriving
            | begins
            | filling
            | queues.busy
            | admission.busy
            | asks
        )
        return m
