"""Background work: its parts, and how they are connected."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.states import ArrayStates
from hdl.background.array_report import ArrayReport
from hdl.background.debts import Debts
from hdl.background.findings import Findings
from hdl.background.intent import Intent, NoIntent
from hdl.background.jobs import Jobs
from hdl.background.pace import Pace
from hdl.background.rows import flushing
from hdl.background.supervisor import Supervisor
from hdl.background.walker import Walker
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, TIME_BITS, Config
from hdl.flow.array_state import eras
from hdl.flow.host_command import completion
from hdl.flow.intention import intention
from hdl.flow.manage import (
    ManageOpcode,
    ManageStatus,
    MigrationEnd,
    manage_request,
    manage_response,
)
from hdl.flow.reference import answer, command_begin, telling
from hdl.flow.report import Section, report_read
from hdl.flow.table_read import geometry_read, member_read, migration_read
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
    request
        The host's changes, as in `hdl.background.supervisor.Supervisor`.
    response
        The answer to each.
    table_request
        Changes for `hdl.array.tables.tables.ArrayTables`.
    table_response
        What the tables answer.
    present
        One bit per port. A drive is there.
    used
        One bit per port. It belongs to an array. This and the next eight are those of
        `ArrayTables`.
    failed
        One bit per port. Its drive cannot be used.
    stale
        One bit per port. Its drive is being rebuilt.
    suspect
        One bit per port. Its drive has restarted.
    kept
        One bit per port. Its drive is suspect, and its array cannot do without it.
    undecided
        There are suspect drives of which that is not known yet.
    returns
        One bit per port. Its drive has failed only by restarting, and can be taken back.
    changed
        A pulse. Tables or drives have changed.
    rewind
        An array of which nothing is rebuilt any more.
    yields
        One bit per port, a pulse. Its array can do without the suspect drive.
    keeps
        One bit per port, a pulse. Its array cannot.
    given_up
        One bit per port, a pulse. A drive that has restarted could not be taken back.
    reserved
        One bit per port. It is a hot spare.
    indebted
        One bit per volume. A drive of its array that has restarted was kept, and the host has not
        been told yet. This and the ports down to ``unheard`` are those of
        `hdl.background.debts.Debts`.
    told
        One bit per volume, a pulse. Now the host has been told.
    late
        Of a command slot. Its command was submitted before its volume was told.
    eras
        How often each array has lost something.
    blames
        A pulse. A FLUSH of a volume is refused, which tells the host.
    blamed_volume
        That volume.
    blamed_slot
        The command slot of that FLUSH.
    slot_begins
        A pulse. A host command gets a command slot.
    slot_begun
        Which command, in which slot.
    slot_ends
        A pulse. A host command leaves its command slot.
    slot_ended
        That slot.
    tells
        Whom the end of the command in ``slot_ended`` tells.
    answers
        A pulse. The end of a command that was to tell the host has come to its completion queue.
    answer
        Of which volume, in which queue.
    heard
        One bit per completion queue, a pulse. The host has taken all its entries that tell.
    unheard
        One bit per completion queue, a pulse. The queue has gone.
    array_states
        Two bits per array (`ArrayState`).
    news
        A pulse. A state is another than before, or rows may be torn.
    essential
        One bit per port, as in `hdl.array.states.ArrayStates`.
    settled
        ``array_states`` and ``essential`` are up to date.
    walk
        Rows to work on.
    walked
        How they ended.
    boundary_read
        First row of an array that is not rebuilt, for sequencer and dispatch.
    sync_read
        First row of an array that may not be in sync, for the same.
    unsynced
        One bit per array. It is not in sync.
    assumed
        One bit per array. It is assumed to be in sync.
    doubts
        One bit per array, as in `hdl.background.supervisor.Supervisor`.
    host_active
        There is a host command.
    geometry_read
        Table of the arrays, for states and walker.
    member_read
        Table of the members.
    migration_read
        Table of the migrations.
    begun
        A row is about to be written. This and the next five are those of
        `hdl.background.intent.Intent`, and of no use without `Config.intent_chunks`.
    retired
        A row slot has been given back.
    flush
        A pulse. ``flushing`` begins.
    flushing
        A FLUSH of an array.
    completed
        A pulse. ``completion`` ends.
    completion
        A host command, and how it ended.
    report_read
        The log pages (`hdl.background.array_report.ArrayReport`,
        `hdl.background.findings.Findings`).
    report_shows
        A page of findings is being made.
    now
        Time in cycles.
    deadline
        When the walker may go on, in cycles. All ones if it need not wait for that.
    busy
        Something works.
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
                "migration_read": Out(migration_read(config)),
                "report_read": In(report_read()),
                "report_shows": In(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=(1 << TIME_BITS) - 1),
                "begun": In(stream.Signature(intention(config))),
                "retired": In(stream.Signature(config.row_slot_bits)),
                "flush": In(1),
                "flushing": In(flushing(config)),
                "completed": In(1),
                "completion": In(completion(config)),
                "busy": Out(1),
            }
        )
        self._states = ArrayStates(config=config)
        self._supervisor = Supervisor(config=config)
        self._jobs = Jobs(config=config)
        self._walker = Walker(config=config)
        self._pace = Pace(config=config)
        self._findings = Findings(config=config)
        self._debts = Debts(config=config)
        self._intent = (Intent if config.intent_chunks else NoIntent)(config=config)
        self._report = ArrayReport(config=config)

        self._made = Signal(manage_request(config))  # the change that the tables make
        self._rescan = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.states = self._states
        m.submodules.supervisor = self._supervisor
        m.submodules.jobs = self._jobs
        m.submodules.walker = self._walker
        m.submodules.pace = self._pace
        m.submodules.findings = self._findings
        m.submodules.debts = self._debts
        m.submodules.intent = self._intent
        m.submodules.report = self._report
        self._connect_changes(m)
        self._connect_states(m)
        self._connect_decisions(m)
        self._connect_jobs(m)
        self._connect_rows(m)
        self._connect_debts(m)
        self._connect_marks(m)
        self._connect_new_marks(m)
        self._connect_report(m)
        parts = (
            self._states, self._supervisor, self._jobs, self._walker, self._pace, self._intent
        )  # fmt: skip
        m.d.comb += self.busy.eq(Cat(part.busy for part in parts).any() | self._rescan)
        return m

    def _connect_changes(self, m: Module) -> None:
        """The host's changes, and what becomes of them in the tables.

        The tables make no change while a bitmap is swept for the one before.
        """
        supervisor, sweeping = self._supervisor, self._intent.sweeping
        request, wanted = self.table_request, supervisor.table_request
        connect(m, flipped(self.request), supervisor.request)
        connect(m, supervisor.response, flipped(self.response))
        connect(m, flipped(self.table_response), supervisor.table_response)
        m.d.comb += [
            request.payload.eq(wanted.payload),
            request.valid.eq(wanted.valid & ~sweeping),
            wanted.ready.eq(request.ready & ~sweeping),
        ]
        with m.If(request.valid & request.ready):
            m.d.sync += self._made.eq(request.payload)

    def _connect_states(self, m: Module) -> None:
        """What arrays have left, by their drives."""
        states, supervisor = self._states, self._supervisor
        m.d.sync += self._rescan.eq(supervisor.rescan | self._jobs.ended)
        m.d.comb += [
            states.changed.eq(self.changed | self._rescan),
            states.failed.eq(self.failed),
            states.stale.eq(self.stale),
            states.suspect.eq(self.suspect),
            states.kept.eq(self.kept),
            states.returns.eq(self.returns),
            self.yields.eq(states.yields),
            self.keeps.eq(states.keeps),
            self.array_states.eq(states.states),
            self.news.eq(states.news | supervisor.doubted),
            self.essential.eq(states.essential),
            self.settled.eq(states.settled),
        ]
        connect(m, states.geometry_read, flipped(self.geometry_read[0]))
        connect(m, states.member_read, flipped(self.member_read))
        connect(m, states.migration_read, flipped(self.migration_read))

    def _connect_decisions(self, m: Module) -> None:
        """What the supervisor knows of arrays, drives and jobs."""
        supervisor, states, jobs = self._supervisor, self._states, self._jobs
        m.d.comb += [
            supervisor.judged.eq(states.judged),
            supervisor.verdict.eq(states.verdict),
            supervisor.states.eq(states.states),
            supervisor.valid.eq(states.valid),
            supervisor.settled.eq(states.settled),
            supervisor.rebuilding.eq(states.rebuilding),
            supervisor.changed.eq(self.changed),
            supervisor.usable.eq(self.present & ~self.failed & ~self.used),
            supervisor.running.eq(jobs.running),
            supervisor.rebuilds.eq(jobs.rebuilds),
            supervisor.zeroes.eq(jobs.zeroes),
            supervisor.migrates.eq(jobs.migrates),
            supervisor.resyncs.eq(jobs.resyncs),
            supervisor.unsynced.eq(jobs.unsynced),
            supervisor.unfinished.eq(jobs.unfinished),
            supervisor.complete.eq(jobs.complete),
            supervisor.rebuilt.eq(jobs.rebuilt),
            supervisor.rebuilt_array.eq(jobs.rebuilt_array),
            self.reserved.eq(supervisor.spares),
            self.given_up.eq(supervisor.given_up),
            self.doubts.eq(supervisor.doubts),
        ]

    def _connect_jobs(self, m: Module) -> None:
        """What jobs are ordered, and what they know of their arrays."""
        jobs, states, supervisor = self._jobs, self._states, self._supervisor
        connect(m, supervisor.order, jobs.order)
        connect(m, flipped(self.rewind), jobs.rewind)
        for outer, inner in zip(self.boundary_read, jobs.boundary_read, strict=True):
            connect(m, flipped(outer), inner)
        # The first is the report's.
        for outer, inner in zip(self.sync_read, list(jobs.sync_read)[1:], strict=True):
            connect(m, flipped(outer), inner)
        m.d.comb += [
            jobs.migrates_anew.eq(supervisor.migrates_anew),
            jobs.handed.eq(supervisor.handed),
            jobs.outcome.eq(supervisor.outcome),
            jobs.rebuilding.eq(states.rebuilding),
            jobs.halted.eq(states.halted),
            jobs.optimal.eq(states.optimal),
            jobs.hopeless.eq(states.hopeless),
            jobs.settled.eq(states.settled),
            jobs.now.eq(self.now),
            self.unsynced.eq(jobs.unsynced),
            self.assumed.eq(jobs.assumed),
        ]

    def _connect_rows(self, m: Module) -> None:
        """Rows that jobs walk, at which pace, and what is found."""
        jobs, walker, pace, findings = self._jobs, self._walker, self._pace, self._findings
        connect(m, jobs.slice, walker.slice)
        connect(m, walker.slice_end, jobs.slice_end)
        connect(m, walker.walk, flipped(self.walk))
        connect(m, flipped(self.walked), walker.walked)
        connect(m, walker.finding, findings.finding)
        connect(m, walker.geometry_read, flipped(self.geometry_read[1]))
        m.d.comb += [
            walker.stop.eq(jobs.stop),
            walker.hold.eq(pace.hold),
            jobs.advanced.eq(walker.advanced),
            jobs.boundary.eq(walker.boundary),
            jobs.finding.eq(walker.finding.payload),
            jobs.found.eq(walker.finding.valid & walker.finding.ready),
            pace.share.eq(self._supervisor.share),
            pace.issued.eq(walker.issued),
            pace.outstanding.eq(walker.outstanding),
            pace.walking.eq(walker.walking),
            pace.active.eq(self.host_active),
            pace.now.eq(self.now),
            self.deadline.eq(pace.deadline),
        ]

    def _connect_debts(self, m: Module) -> None:
        """What the host is to be told that arrays have lost.

        What an array may have lost, it has lost. The host is told, whatever becomes of the drive.
        """
        debts, states, response = self._debts, self._states, self.table_response
        connect(m, flipped(self.late), debts.late)
        done = response.payload.status == ManageStatus.DONE
        m.d.comb += [
            debts.opcode.eq(self._made.opcode),
            debts.array.eq(self._made.array),
            debts.made.eq(response.valid & response.ready & done),
            debts.volume.eq(response.payload.index),
            debts.loses.eq(states.judged & (states.keeps & self.suspect & ~self.kept).any()),
            debts.loser.eq(states.verdict.array),
            debts.blames.eq(self.blames),
            debts.blamed_volume.eq(self.blamed_volume),
            debts.blamed_slot.eq(self.blamed_slot),
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
            self.eras.eq(debts.eras),
            self.told.eq(debts.told),
        ]

    def _connect_marks(self, m: Module) -> None:
        """The write-intent bitmap: rows that are written, flushes, and jobs that follow marks."""
        intent, states, jobs = self._intent, self._states, self._jobs
        for name in ("begun", "retired"):
            connect(m, flipped(getattr(self, name)), getattr(intent, name))
        for name in ("flush", "flushing", "completed", "completion"):
            m.d.comb += getattr(intent, name).eq(getattr(self, name))
        connect(m, jobs.ask, intent.ask)
        connect(m, intent.answer, jobs.answer)
        m.d.comb += [
            # Nothing is dropped while a drive may have lost what it was thought to have, and none
            # of what a RESYNC will follow.
            intent.optimal.eq(
                Mux(
                    self.undecided,
                    0,
                    states.optimal & ~(self._supervisor.doubts | jobs.torn),
                )
            ),
            intent.settled.eq(states.settled),
            intent.judged.eq(states.judged & states.verdict.valid),
            intent.judged_array.eq(states.verdict.array),
            intent.judged_rows.eq(states.rows),
        ]

    def _connect_new_marks(self, m: Module) -> None:
        """Nothing of a new array is marked, and all of an array that has a new member."""
        intent, made, response = self._intent, self._made, self.table_response
        done = response.valid & response.ready & (response.payload.status == ManageStatus.DONE)
        creates = made.opcode == ManageOpcode.CREATE_ARRAY
        half_migrated = (made.opcode == ManageOpcode.END_COPY) & (
            response.payload.index[5:7] == MigrationEnd.STALE
        )
        m.d.comb += [
            intent.wipe.eq(done & creates),
            intent.fill.eq(done & ((made.opcode == ManageOpcode.REPLACE) | half_migrated)),
            intent.named.eq(Mux(creates, response.payload.index, made.array)),
        ]

    def _connect_report(self, m: Module) -> None:
        """What the host reads: arrays and their jobs, and findings."""
        report, findings, jobs, states = self._report, self._findings, self._jobs, self._states
        asked = self.report_read.address
        connect(m, flipped(self.report_read), report.report_read)
        connect(m, report.job_read, jobs.job_read)
        connect(m, report.sync_read, jobs.sync_read[0])
        connect(m, report.tally_read, self._intent.tally_read)
        m.d.comb += [
            report.states.eq(states.states),
            report.valid.eq(states.valid),
            report.unsynced.eq(jobs.unsynced),
            report.assumed.eq(jobs.assumed),
            report.share.eq(self._supervisor.share),
            report.findings.eq(findings.data),
            findings.showing.eq(self.report_shows),
            findings.lost.eq(asked.section == Section.LOST),
            findings.number.eq(asked.number),
            findings.word.eq(asked.word),
        ]
