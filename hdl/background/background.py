"""Background work: only instances and connections, and the words of its log."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.states import ArrayStates
from hdl.background.debts import Debts
from hdl.background.findings import Findings
from hdl.background.intent import Intent
from hdl.background.jobs import Jobs
from hdl.background.pace import Pace
from hdl.background.rows import flushing
from hdl.background.supervisor import Supervisor
from hdl.background.walker import Walker
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, TIME_BITS, Config
from hdl.flow.array_state import eras
from hdl.flow.host_command import completion
from hdl.flow.intention import intention
from hdl.flow.manage import CopyEnd, ManageOpcode, ManageStatus, manage_request, manage_response
from hdl.flow.reference import answer, command_begin, telling
from hdl.flow.report import Section, report_address, report_read
from hdl.flow.table_read import copy_read, geometry_read, member_read
from hdl.flow.walk import walk, walked
from hdl.kit.table import TableRead


class Background(wiring.Component):
    """States of arrays, hot spares, jobs and their pace, and the row walker.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request, response, table_request, table_response
        As in `hdl.background.supervisor.Supervisor`.
    present, used, failed, stale, changed
        Bit a port, and a pulse when tables or drives have changed (`ArrayTables`).
    suspect, kept, undecided, returns, yields, keeps, given_up
        Of `ArrayTables`: drives that have restarted.
    indebted, blames, blamed_volume
        Bit a volume: a drive of its array that has restarted was kept, and the host has not been
        told yet; a pulse: a FLUSH of a volume is refused, which tells it
        (`hdl.background.debts.Debts`).
    told, tells, answers, answer, heard, unheard, late, eras, blamed_slot, slot_begins, slot_begun,
    slot_ends, slot_ended
        As `hdl.background.debts.Debts` has them.
    reserved, rewind
        Bit a port: hot spares; of `ArrayTables`.
    array_states, news, essential, settled
        As in `hdl.array.states.ArrayStates`. It is news, too, that rows may be torn.
    walk, walked
        Rows to work on, and how they ended.
    boundary_read, sync_read, unsynced, assumed
        As in `hdl.background.jobs.Jobs`.
    doubts
        As in `hdl.background.supervisor.Supervisor`.
    host_active
        There is a host command.
    geometry_read, member_read, copy_read
        Tables.
    begun, retired, flush, flushing, completed, completion
        Of `hdl.background.intent.Intent` (not there without `Config.intent_chunks`).
    report_read, report_shows
        The log pages (`hdl.flow.report`); one of findings is being made.
        Entries of ARRAYS: word 0: bit 31 the array exists, 1:0 `ArrayState`, 2 not in sync, 3
        assumed to be, 6:4 `JobState`, 10:8 `WalkKind`, 23:16 array; 1: share in percent; 2, 3:
        first row that is not done; 4, 5, 6: rows mended, mismatched, lost; 8, 9 and 10, 11: when
        the job began and ended, in cycles; 7: bit 31 there is a write-intent bitmap, 15:0 chunks
        that are marked, 21:16 log2 of the rows of a chunk; 12, 13: first row that may not be in
        sync, if the array is not.
        Others: `hdl.background.findings.Findings`.
    now, deadline
        Time in cycles, and when the walker may go on (all ones: it need not wait for that).
    """

    def __init__(self, *, config: Config):
        self._config = config
        boundary_read = TableRead(config.array_bits, BLOCK_NUMBER_BITS)
        super().__init__(
            {
                "request": In(stream.Signature(manage_request(config))),
                "response": Out(stream.Signature(manage_response(config))),
                "table_request": Out(stream.Signature(manage_request(config))),
                "table_response": In(stream.Signature(manage_response(config))),
                "present": In(MAX_DRIVES),
                "used": In(MAX_DRIVES),
                "failed": In(MAX_DRIVES),
                "stale": In(MAX_DRIVES),
                "suspect": In(MAX_DRIVES),
                "kept": In(MAX_DRIVES),
                "undecided": In(1),
                "indebted": Out(config.volumes),
                "told": Out(config.volumes),
                "late": In(TableRead(config.slot_bits, 1)),
                "eras": Out(eras(config)),
                "blamed_slot": In(config.slot_bits),
                "slot_begins": In(1),
                "slot_begun": In(command_begin(config)),
                "slot_ends": In(1),
                "slot_ended": In(config.slot_bits),
                "tells": Out(telling(config)),
                "answers": In(1),
                "answer": In(answer(config)),
                "heard": In(config.queue_pairs + 1),
                "unheard": In(config.queue_pairs + 1),
                "blames": In(1),
                "blamed_volume": In(config.volume_bits),
                "returns": In(MAX_DRIVES),
                "yields": Out(MAX_DRIVES),
                "keeps": Out(MAX_DRIVES),
                "given_up": Out(MAX_DRIVES),
                "changed": In(1),
                "reserved": Out(MAX_DRIVES),
                "rewind": In(stream.Signature(config.array_bits)),
                "array_states": Out(2 * config.arrays),
                "news": Out(1),
                "essential": Out(MAX_DRIVES),
                "settled": Out(1),
                "walk": Out(stream.Signature(walk(config))),
                "walked": In(stream.Signature(walked(config))),
                "boundary_read": In(boundary_read).array(2),
                "sync_read": In(boundary_read).array(2),
                "unsynced": Out(config.arrays),
                "doubts": Out(config.arrays),
                "assumed": Out(config.arrays),
                "host_active": In(1),
                "geometry_read": Out(geometry_read(config)).array(2),
                "member_read": Out(member_read(config)),
                "copy_read": Out(copy_read(config)),
                "report_read": In(report_read()),
                "report_shows": In(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=(1 << TIME_BITS) - 1),
                "busy": Out(1),
            }
            | (
                {
                    "begun": In(stream.Signature(intention(config))),
                    "retired": In(stream.Signature(config.row_slot_bits)),
                    "flush": In(1),
                    "flushing": In(flushing(config)),
                    "completed": In(1),
                    "completion": In(completion(config)),
                }
                if config.intent_chunks
                else {}
            )
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.states = states = ArrayStates(config=config)
        m.submodules.supervisor = supervisor = Supervisor(config=config)
        m.submodules.jobs = jobs = Jobs(config=config)
        m.submodules.walker = walker = Walker(config=config)
        m.submodules.pace = pace = Pace(config=config)
        m.submodules.findings = findings = Findings(config=config)

        # Changes.
        connect(m, flipped(self.request), supervisor.request)
        connect(m, supervisor.response, flipped(self.response))
        connect(m, flipped(self.table_response), supervisor.table_response)
        parts = (states, supervisor, jobs, walker, pace)
        words = {}
        if config.intent_chunks:
            m.submodules.intent = intent = Intent(config=config)
            self._connect_intent(m, intent, states, supervisor, jobs)
            parts = (*parts, intent)
            told = intent.tally_read.data
            words[7] = Cat(
                told.marked, Const(0, 16 - len(told.marked)), told.shift, Const(0, 9), Const(1, 1)
            )
        else:
            connect(m, supervisor.table_request, flipped(self.table_request))
        connect(m, supervisor.order, jobs.order)
        m.d.comb += [
            jobs.recopies.eq(supervisor.recopies),
            supervisor.unfinished.eq(jobs.unfinished),
        ]
        connect(m, flipped(self.rewind), jobs.rewind)
        rebuilding, halted = Signal(config.arrays), Signal(config.arrays)
        with m.If(states.judged):
            judged = states.judgement
            m.d.sync += [
                rebuilding.bit_select(judged.array, 1).eq(judged.rebuilding),
                halted.bit_select(judged.array, 1).eq(judged.halted),
            ]
        # What the array may have lost, it has lost: whatever becomes of the drive, that is told.
        m.submodules.debts = debts = Debts(config=config)
        connect(m, flipped(self.late), debts.late)
        response, request = self.table_response, self.table_request
        with m.If(request.valid & request.ready):
            m.d.sync += [
                debts.opcode.eq(request.payload.opcode),
                debts.array.eq(request.payload.array),
            ]
        done = response.payload.status == ManageStatus.DONE
        m.d.comb += [
            debts.made.eq(response.valid & response.ready & done),
            debts.volume.eq(response.payload.index),
            debts.loses.eq(states.judged & (states.keeps & self.suspect & ~self.kept).any()),
            debts.loser.eq(states.judgement.array),
            debts.blames.eq(self.blames),
            debts.blamed_volume.eq(self.blamed_volume),
            debts.begins.eq(self.slot_begins),
            debts.begun.eq(self.slot_begun),
            debts.ends.eq(self.slot_ends),
            debts.ended.eq(self.slot_ended),
            debts.answers.eq(self.answers),
            debts.answer.eq(self.answer),
            debts.heard.eq(self.heard),
            debts.unheard.eq(self.unheard),
            self.tells.eq(debts.tells),
            self.indebted.eq(debts.indebted),
            debts.blamed_slot.eq(self.blamed_slot),
            self.eras.eq(debts.eras),
            self.told.eq(debts.told),
        ]
        rescan = Signal()
        m.d.sync += rescan.eq(supervisor.rescan | jobs.ended)
        m.d.comb += [
            states.changed.eq(self.changed | rescan),
            states.failed.eq(self.failed),
            states.stale.eq(self.stale),
            states.suspect.eq(self.suspect),
            states.kept.eq(self.kept),
            states.returns.eq(self.returns),
            self.yields.eq(states.yields),
            self.keeps.eq(states.keeps),
            self.given_up.eq(supervisor.given_up),
            supervisor.judged.eq(states.judged),
            supervisor.judgement.eq(states.judgement),
            supervisor.states.eq(states.states),
            supervisor.valid.eq(states.valid),
            supervisor.settled.eq(states.settled),
            supervisor.rebuilding.eq(rebuilding),
            supervisor.changed.eq(self.changed),
            supervisor.running.eq(jobs.running),
            supervisor.rebuilds.eq(jobs.rebuilds),
            supervisor.zeroes.eq(jobs.zeroes),
            supervisor.copies.eq(jobs.copies),
            supervisor.resyncs.eq(jobs.resyncs),
            supervisor.unsynced.eq(jobs.unsynced),
            self.unsynced.eq(jobs.unsynced),
            self.doubts.eq(supervisor.doubts),
            self.assumed.eq(jobs.assumed),
            supervisor.complete.eq(jobs.complete),
            supervisor.rebuilt.eq(jobs.rebuilt),
            supervisor.rebuilt_array.eq(jobs.rebuilt_array),
            supervisor.usable.eq(self.present & ~self.failed & ~self.used),
            self.reserved.eq(supervisor.spares),
            self.array_states.eq(states.states),
            self.news.eq(states.news | supervisor.doubted),
            self.essential.eq(states.essential),
            self.settled.eq(states.settled),
            jobs.handed.eq(supervisor.handed),
            jobs.rebuilding.eq(rebuilding),
            jobs.halted.eq(halted),
            # `ArrayState`, of arrays that there are.
            jobs.optimal.eq(states.valid & ~(states.states[::2] | states.states[1::2])),
            jobs.hopeless.eq(states.valid & states.states[::2] & states.states[1::2]),
            jobs.outcome.eq(supervisor.outcome),
            jobs.settled.eq(states.settled),
            jobs.now.eq(self.now),
        ]

        # Rows.
        connect(m, jobs.slice, walker.slice)
        connect(m, walker.slice_end, jobs.slice_end)
        connect(m, walker.walk, flipped(self.walk))
        connect(m, flipped(self.walked), walker.walked)
        connect(m, walker.finding, findings.finding)
        for outer, inner in zip(self.boundary_read, jobs.boundary_read, strict=True):
            connect(m, flipped(outer), inner)
        for outer, inner in zip(self.sync_read, jobs.sync_read[1:], strict=True):
            connect(m, flipped(outer), inner)
        m.d.comb += [
            walker.stop.eq(jobs.stop),
            walker.hold.eq(pace.hold),
            jobs.advanced.eq(walker.advanced),
            jobs.boundary.eq(walker.boundary),
            jobs.finding.eq(walker.finding.payload),
            jobs.found.eq(walker.finding.valid & walker.finding.ready),
            pace.share.eq(supervisor.share),
            pace.issued.eq(walker.issued),
            pace.outstanding.eq(walker.outstanding),
            pace.walking.eq(walker.walking),
            pace.active.eq(self.host_active),
            pace.now.eq(self.now),
            self.deadline.eq(pace.deadline),
        ]
        for user, port in zip((states, walker), self.geometry_read, strict=True):
            connect(m, user.geometry_read, flipped(port))
        connect(m, states.member_read, flipped(self.member_read))
        connect(m, states.copy_read, flipped(self.copy_read))

        # What the host reads.
        asked = self.report_read.address
        latched = Signal(report_address())
        job = jobs.job_read.data
        number = latched.number[: config.array_bits]
        word = Signal(32)
        m.d.sync += latched.eq(asked)
        m.d.comb += [
            jobs.job_read.address.eq(asked.number),
            jobs.sync_read[0].address.eq(asked.number),
            findings.showing.eq(self.report_shows),
            findings.lost.eq(asked.section == Section.LOST),
            findings.number.eq(asked.number),
            findings.word.eq(asked.word),
            self.report_read.data.eq(word),
        ]

        # A row has two words: read right after the lower one, the upper one is of the same moment.
        previous, upper = Signal.like(latched), Signal(BLOCK_NUMBER_BITS - 32)
        follows = (previous.as_value() | 1) == latched.as_value()
        with m.If(asked != latched):
            m.d.sync += previous.eq(latched)

        def padded(*parts):
            """Fields of given widths, low bits first."""
            return Cat(*(Cat(part, Const(0, width - len(part))) for part, width in parts))

        words |= {
            0: padded(
                (states.states.word_select(number, 2), 2),
                (jobs.unsynced.bit_select(number, 1), 1),
                (jobs.assumed.bit_select(number, 1), 1),
                (job.state.as_value(), 4),
                (job.kind.as_value(), 8),
                (latched.number, 15),
                (states.valid.bit_select(number, 1), 1),
            ),
            1: supervisor.share,
            4: job.mended,
            5: job.mismatched,
            6: job.lost,
        }
        rows = ((2, job.row), (8, job.began), (10, job.ended), (12, jobs.sync_read[0].data))
        for place, row in rows:
            words |= {place: row[:32], place + 1: Mux(follows, upper, row[32:])}
            with m.If(latched.word == place):
                m.d.sync += upper.eq(row[32:])
        with m.If(latched.section == Section.ARRAYS):
            with m.Switch(latched.word):
                for place, content in words.items():
                    with m.Case(place):
                        m.d.comb += word.eq(content)
        with m.Else():
            m.d.comb += word.eq(findings.data)

        m.d.comb += self.busy.eq(Cat(part.busy for part in parts).any() | rescan)
        return m

    def _connect_intent(self, m: Module, intent, states, supervisor, jobs) -> None:
        """The write-intent bitmap: all of an array is marked with each new member."""
        for name in ("begun", "retired"):
            connect(m, flipped(getattr(self, name)), getattr(intent, name))
        connect(m, jobs.ask, intent.ask)
        connect(m, intent.answer, jobs.answer)
        request, response = self.table_request, self.table_response
        made = Signal.like(request.payload)
        with m.If(request.valid & request.ready):
            m.d.sync += made.eq(request.payload)
        done = response.valid & response.ready & (response.payload.status == ManageStatus.DONE)
        creates = made.opcode == ManageOpcode.CREATE_ARRAY
        half_copied = (made.opcode == ManageOpcode.END_COPY) & (
            response.payload.index[5:7] == CopyEnd.STALE
        )
        m.d.comb += [
            request.payload.eq(supervisor.table_request.payload),
            request.valid.eq(supervisor.table_request.valid & ~intent.sweeping),
            supervisor.table_request.ready.eq(request.ready & ~intent.sweeping),
            intent.wipe.eq(done & creates),
            intent.fill.eq(done & ((made.opcode == ManageOpcode.REPLACE) | half_copied)),
            intent.named.eq(Mux(creates, response.payload.index, made.array)),
            # Nothing is dropped while a drive may have lost what it was thought to have, and none
            # of what a RESYNC will follow.
            intent.optimal.eq(
                Mux(
                    self.undecided,
                    0,
                    states.valid
                    & ~(states.states[::2] | states.states[1::2])
                    & ~(supervisor.doubts | jobs.torn),
                )
            ),
            intent.settled.eq(states.settled),
            intent.judged.eq(states.judged & states.judgement.valid),
            intent.judged_array.eq(states.judgement.array),
            intent.judged_rows.eq(states.rows),
            intent.tally_read.address.eq(self.report_read.address.number),
        ]
        for name in ("flush", "flushing", "completed", "completion"):
            m.d.comb += getattr(intent, name).eq(getattr(self, name))
