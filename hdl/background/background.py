"""Background work: its parts, and how they are connected."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.states import ArrayStates
from hdl.background.array_report import ArrayReport
from hdl.background.debts import Debts
from hdl.background.findings import Findings
from hdl.background.idle_flush import IdleFlush
from hdl.background.intent import Intent, NoIntent
from hdl.background.jobs import Jobs
from hdl.background.pace import Pace
from hdl.background.supervisor import Supervisor
from hdl.background.walker import Walker
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, TIME_BITS, Config
from hdl.flow.array_state import ArrayStatus
from hdl.flow.drive_states import DriveDecisions, DriveStates
from hdl.flow.intention import WriteEvents
from hdl.flow.manage import Changes, ManageOpcode, ManageStatus, MigrationEnd, manage_request
from hdl.flow.marks import Marks, marks_word
from hdl.flow.reference import Blame, SlotEvents, Tellings
from hdl.flow.report import ReportAccess, Section
from hdl.flow.table_read import geometry_read, member_read, migration_read
from hdl.flow.walk import walk, walked
from hdl.kit.clock import earlier
from hdl.kit.pulse import Pulse
from hdl.kit.table import TableRead


class Background(wiring.Component):
    """States of arrays, hot spares, jobs and their pace, and the row walker.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    changes
        The host's changes, as in `hdl.background.supervisor.Supervisor`.
    table_changes
        Changes for `hdl.array.tables.tables.ArrayTables`.
    present
        One bit per port. A drive is there.
    drives
        What the tables know of the drives.
    decisions
        What becomes of drives.
    clean, tries_spare
        With `Config.metadata`, levels: ``clean`` and ``tries`` of
        `hdl.background.supervisor.Supervisor`.
    arrays
        The states of all arrays.
    slots
        Host commands that get and leave their command slots. This and the next three are for
        `hdl.background.debts.Debts`.
    blame
        A FLUSH that is refused.
    tellings
        Whom the ends of commands tell, and who has been told.
    rewind
        An array of which nothing is rebuilt any more.
    late
        Of a command slot. Its command was submitted before its volume was told.
    walk
        Rows to work on.
    walked
        How they ended.
    stored
        That of `hdl.background.jobs.Jobs`.
    boundary_read
        First row of an array that is not rebuilt, for sequencer and dispatch.
    sync_read
        First row of an array that may not be in sync, for the same.
    writes
        Rows that are written, and flushes. Of no use without `Config.intent_chunks`.
    marks, load, follow
        With `Config.durable_marks`: those of `hdl.background.intent.Intent`, and of `Jobs`.
    whole
        One bit per array. Rows of it that are not marked may be out of sync as well.
    host_active
        There is a host command.
    ask, told
        With `Config.durable_marks`: those of a user of `hdl.drive.flusher.Flusher`.
    geometry_read
        Table of the arrays, for states, walker and idle flushes.
    member_read
        Table of the members, for states and idle flushes.
    migration_read
        Table of the migrations.
    report
        The log pages (`hdl.background.array_report.ArrayReport`,
        `hdl.background.findings.Findings`).
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
                "changes": In(Changes(config)),
                "table_changes": Out(Changes(config)),
                "present": In(MAX_DRIVES),
                "drives": In(DriveStates()),
                "decisions": Out(DriveDecisions()),
                "arrays": Out(ArrayStatus(config)),
                "slots": In(SlotEvents(config)),
                "blame": In(Blame(config)),
                "tellings": In(Tellings(config)),
                "late": In(TableRead(config.slot_bits, 1)),
                "rewind": In(stream.Signature(config.array_bits)),
                "walk": Out(stream.Signature(walk(config))),
                "walked": In(stream.Signature(walked(config))),
                "boundary_read": In(boundary_read).array(2),
                "sync_read": In(boundary_read).array(2),
                "writes": In(WriteEvents(config)),
                "marks": In(Marks(config)),
                "load": In(stream.Signature(marks_word(config))),
                "follow": In(Pulse(config.array_bits)),
                "whole": Out(config.arrays),
                "idle": Out(config.arrays),
                "stored": Out(Pulse(config.array_bits)),
                "filled": Out(Pulse(config.array_bits)),
                "host_active": In(1),
                "ask": Out(stream.Signature(MAX_DRIVES)),
                "told": In(stream.Signature(MAX_DRIVES)),
                "geometry_read": Out(geometry_read(config)).array(2 + config.durable_marks),
                "member_read": Out(member_read(config)).array(1 + config.durable_marks),
                "migration_read": Out(migration_read(config)),
                "report": In(ReportAccess()),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=(1 << TIME_BITS) - 1),
                "busy": Out(1),
            }
            | ({"clean": In(1), "tries_spare": Out(1)} if config.metadata else {})
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
        if config.durable_marks:
            self._idle_flush = IdleFlush(config=config)

        self._made = Signal(manage_request(config))  # the change that the tables make
        self._rescan = Signal()
        # An array has been brought up of which drives must be rebuilt, and its rows are not marked.
        self._unmarked = Signal()
        self._unmarked_array = Signal(config.array_bits)
        self._partial = Signal(config.arrays)  # members are being rebuilt, and none has failed

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
        parts = [
            self._states, self._supervisor, self._jobs, self._walker, self._pace, self._intent
        ]  # fmt: skip
        if self._config.durable_marks:
            self._connect_idle_flush(m)
            parts.append(self._idle_flush)
        works = Cat(part.busy for part in parts).any() | self._rescan | self._unmarked
        m.d.comb += self.busy.eq(works)
        return m

    def _connect_changes(self, m: Module) -> None:
        """The host's changes, and what becomes of them in the tables.

        The tables make no change while a bitmap is swept for the one before.
        """
        supervisor, sweeping = self._supervisor, self._intent.sweeping | self._unmarked
        request, wanted = self.table_changes.request, supervisor.table_changes.request
        connect(m, flipped(self.changes), supervisor.changes)
        connect(m, flipped(self.table_changes.response), supervisor.table_changes.response)
        m.d.comb += [
            request.payload.eq(wanted.payload),
            request.valid.eq(wanted.valid & ~sweeping),
            wanted.ready.eq(request.ready & ~sweeping),
        ]
        with m.If(request.valid & request.ready):
            m.d.sync += self._made.eq(request.payload)

    def _connect_states(self, m: Module) -> None:
        """What arrays have left, by their drives."""
        states, supervisor, drives = self._states, self._supervisor, self.drives
        status, decisions, verdicts = self.arrays, self.decisions, self._states.verdicts
        m.d.sync += self._rescan.eq(supervisor.rescan | self._jobs.ended)
        m.d.comb += [
            states.changed.eq(drives.changed | self._rescan),
            states.inconsistent.eq(supervisor.doubts | self._jobs.inconsistent),
            decisions.yields.eq(states.yields),
            decisions.keeps.eq(states.keeps),
            status.states.eq(verdicts.states),
            status.news.eq(verdicts.news | supervisor.doubted),
            status.essential.eq(states.essential),
            status.settled.eq(verdicts.settled),
        ]
        connect(m, flipped(self.drives), states.drives)
        connect(m, states.geometry_read, flipped(self.geometry_read[0]))
        connect(m, states.member_read, flipped(self.member_read[0]))
        connect(m, states.migration_read, flipped(self.migration_read))

    def _connect_decisions(self, m: Module) -> None:
        """What the supervisor knows of arrays, drives and jobs."""
        supervisor, states, jobs = self._supervisor, self._states, self._jobs
        drives, decisions = self.drives, self.decisions
        connect(m, states.verdicts, supervisor.verdicts, jobs.verdicts)
        connect(m, supervisor.jobs, jobs.control)
        m.d.comb += [
            supervisor.changed.eq(drives.changed),
            supervisor.usable.eq(self.present & ~drives.failed & ~drives.used),
            decisions.reserved.eq(supervisor.spares),
            decisions.given_up.eq(supervisor.given_up),
            self.arrays.doubts.eq(supervisor.doubts),
        ]
        if self._config.metadata:
            m.d.comb += [
                supervisor.present.eq(self.present),
                supervisor.clean.eq(self.clean),
                self.tries_spare.eq(supervisor.tries),
            ]

    def _connect_jobs(self, m: Module) -> None:
        """What jobs are ordered, and what they know of their arrays."""
        jobs = self._jobs
        connect(m, flipped(self.rewind), jobs.rewind)
        connect(m, jobs.stored, flipped(self.stored))
        for outer, inner in zip(self.boundary_read, list(jobs.boundary_read)[:2], strict=True):
            connect(m, flipped(outer), inner)
        # The first is the report's.
        for outer, inner in zip(self.sync_read, list(jobs.sync_read)[1:], strict=True):
            connect(m, flipped(outer), inner)
        m.d.comb += [
            jobs.now.eq(self.now),
            self.arrays.unsynced.eq(jobs.control.unsynced),
            self.arrays.assumed.eq(jobs.assumed),
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
            pace.rate.eq(self._supervisor.rate),
            pace.issued.eq(walker.issued),
            pace.outstanding.eq(walker.outstanding),
            pace.walking.eq(walker.walking),
            pace.active.eq(self.host_active),
            pace.now.eq(self.now),
            self.deadline.eq(pace.deadline),
        ]

    def _connect_idle_flush(self, m: Module) -> None:
        """Arrays that nobody writes are flushed, so that their marks go."""
        idle, intent, pace = self._idle_flush, self._intent, self._pace
        m.submodules.idle_flush = idle
        request, response = self.table_changes.request, self.table_changes.response
        changing = Signal()
        with m.If(request.valid & request.ready):
            m.d.sync += changing.eq(1)
        with m.Elif(response.valid & response.ready):
            m.d.sync += changing.eq(0)
        connect(m, idle.epoch, intent.idle)
        connect(m, intent.marking, idle.written)
        connect(m, intent.filled, flipped(self.filled))
        connect(m, idle.flight_read, intent.flight_read)
        connect(m, idle.boundary_read, self._jobs.boundary_read[-1])
        connect(m, idle.ask, flipped(self.ask))
        connect(m, flipped(self.told), idle.told)
        connect(m, idle.geometry_read, flipped(self.geometry_read[2]))
        connect(m, idle.member_read, flipped(self.member_read[1]))
        jobs, verdicts, drives = self._jobs, self._states.verdicts, self.drives
        unsynced = self._supervisor.doubts | jobs.torn | jobs.control.unsynced
        with m.If(verdicts.settled & ~drives.undecided):
            m.d.comb += idle.able.eq(verdicts.valid & ~(verdicts.hopeless | unsynced))
        found = verdicts.verdict
        with m.If(verdicts.judged):
            m.d.sync += self._partial.bit_select(found.array, 1).eq(
                found.valid & found.rebuilding & ~found.missing
            )
        with m.If(~drives.undecided):
            held_up = self._supervisor.doubts | jobs.torn
            m.d.comb += intent.partial.eq(self._partial & ~(verdicts.optimal | held_up))
        m.d.comb += [
            idle.made.valid.eq(intent.wipe),
            idle.made.payload.eq(intent.named),
            idle.marked.eq(intent.marked),
            idle.optimal.eq(intent.optimal),
            idle.partial.eq(intent.partial),
            idle.unsynced.eq(unsynced),
            idle.failed.eq(drives.failed),
            self.idle.eq(idle.idle),
            idle.changing.eq(changing | request.valid),
            idle.now.eq(self.now),
            self.deadline.eq(
                Mux(earlier(self.now, idle.deadline, pace.deadline), idle.deadline, pace.deadline)
            ),
        ]

    def _connect_debts(self, m: Module) -> None:
        """What the host is to be told that arrays have lost.

        What an array may have lost, it has lost. The host is told, whatever becomes of the drive.
        """
        debts, states, drives = self._debts, self._states, self.drives
        response, verdicts = self.table_changes.response, states.verdicts
        connect(m, flipped(self.late), debts.late)
        connect(m, flipped(self.slots), debts.slots)
        connect(m, flipped(self.blame), debts.blame)
        connect(m, flipped(self.tellings), debts.tellings)
        done = response.payload.status == ManageStatus.DONE
        m.d.comb += [
            debts.opcode.eq(self._made.opcode),
            debts.array.eq(self._made.array),
            debts.made.eq(response.valid & response.ready & done),
            debts.volume.eq(response.payload.index),
            debts.loses.eq(verdicts.judged & (states.keeps & drives.suspect & ~drives.kept).any()),
            debts.loser.eq(verdicts.verdict.array),
            self.arrays.indebted.eq(debts.indebted),
            self.arrays.untaken.eq(debts.untaken),
            self.arrays.eras.eq(debts.eras),
        ]

    def _connect_marks(self, m: Module) -> None:
        """The write-intent bitmap: rows that are written, flushes, and jobs that follow marks."""
        intent, states, jobs = self._intent, self._states, self._jobs
        connect(m, flipped(self.writes), intent.writes)
        connect(m, jobs.ask, intent.ask)
        connect(m, intent.answer, jobs.answer)
        if self._config.durable_marks:
            connect(m, flipped(self.marks), intent.marks)
            connect(m, flipped(self.load), intent.load)
            connect(m, flipped(self.follow), jobs.follow)
        m.d.comb += [
            self.whole.eq(jobs.control.unsynced & ~jobs.torn),
            # Nothing is dropped while a drive may have lost what it was thought to have, and none
            # of what a RESYNC will follow.
            intent.optimal.eq(
                Mux(
                    self.drives.undecided,
                    0,
                    states.verdicts.optimal & ~(self._supervisor.doubts | jobs.torn),
                )
            ),
            intent.settled.eq(states.verdicts.settled),
            intent.judged.eq(states.verdicts.judged & states.verdicts.verdict.valid),
            intent.judged_array.eq(states.verdicts.verdict.array),
            intent.judged_rows.eq(states.verdicts.rows),
        ]

    def _connect_new_marks(self, m: Module) -> None:
        """Nothing of a new array is marked, and all of an array that has a new member.

        So it is with an array that is brought up with members that must be rebuilt. How many rows
        it has is known once it has been judged.
        """
        intent, made, response = self._intent, self._made, self.table_changes.response
        done = response.valid & response.ready & (response.payload.status == ManageStatus.DONE)
        creates = made.opcode == ManageOpcode.CREATE_ARRAY
        half_migrated = (made.opcode == ManageOpcode.END_MIGRATION) & (
            response.payload.index[5:7] == MigrationEnd.STALE
        )
        m.d.comb += [
            intent.wipe.eq(done & creates),
            intent.fill.eq(done & ((made.opcode == ManageOpcode.REPLACE) | half_migrated)),
            intent.named.eq(Mux(creates, response.payload.index, made.array)),
        ]
        if self._config.metadata and self._config.intent_chunks:
            with m.If(done & creates & made.placed & ~(made.complete | made.marked)):
                m.d.sync += [
                    self._unmarked.eq(1),
                    self._unmarked_array.eq(response.payload.index),
                ]
            with m.If(self._unmarked & self._states.verdicts.settled & ~intent.sweeping):
                m.d.comb += [intent.fill.eq(1), intent.named.eq(self._unmarked_array)]
                m.d.sync += self._unmarked.eq(0)

    def _connect_report(self, m: Module) -> None:
        """What the host reads: arrays and their jobs, and findings."""
        report, findings, jobs, states = self._report, self._findings, self._jobs, self._states
        asked = self.report.read.address
        connect(m, flipped(self.report.read), report.report_read)
        connect(m, report.job_read, jobs.job_read)
        connect(m, report.sync_read, jobs.sync_read[0])
        connect(m, report.tally_read, self._intent.tally_read)
        m.d.comb += [
            report.states.eq(states.verdicts.states),
            report.valid.eq(states.verdicts.valid),
            report.unsynced.eq(jobs.control.unsynced),
            report.assumed.eq(jobs.assumed),
            report.rate.eq(self._supervisor.rate),
            report.findings.eq(findings.data),
            findings.showing.eq(self.report.shows),
            findings.lost.eq(asked.section == Section.LOST),
            findings.number.eq(asked.number),
            findings.word.eq(asked.word),
        ]
