"""Jobs: what is done with the rows of each array, how far it has come, and what it found."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.background.job_orders import JobControl, JobOrder, Sync
from hdl.background.rows import array_row, stretch
from hdl.background.walker import SliceEnd, finding, slice_request
from hdl.config import BLOCK_NUMBER_BITS, TIME_BITS, Config
from hdl.flow.array_state import ArrayVerdicts
from hdl.flow.manage import MigrationEnd
from hdl.flow.walk import WalkKind, WalkResult
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table, TableRead

SLICE_ROWS = 256
"""Rows of an array after which another array's job has its turn."""

MOST_FAILURES = 31
"""Writes that drives may refuse before a job is given up. Each gives up a drive."""

VERDICT_CYCLES = 31
"""Most cycles from the report of a drive until its array is being judged for that."""


class JobState(enum.Enum, shape=3):
    """What became of the last job of an array."""

    NONE = 0
    RUNNING = 1
    DONE = 2
    STOPPED = 3
    """The host stopped it. It can go on where it was."""
    FAILED = 4
    """The drives that it rebuilt, or the migration target, were lost. Or too many writes failed, or
    a drive did not flush what was written, or the array has FAILED."""


def job() -> data.StructLayout:
    """The job of an array.

    All rows before ``row`` are done. ``mended``, ``mismatched`` and ``lost`` count rows that ended
    so, and ``failures`` writes that drives refused. ``began`` and ``ended`` are times in cycles.
    ``whole``: the job began with row 0.
    """
    return data.StructLayout(
        {
            "state": JobState,
            "kind": WalkKind,
            "failures": 5,
            "row": BLOCK_NUMBER_BITS,
            "mended": 32,
            "mismatched": 32,
            "lost": 32,
            "began": TIME_BITS,
            "ended": TIME_BITS,
            "whole": 1,
        }
    )


class Jobs(wiring.Component):
    """Gives the walker to one array's job after the other.

    Jobs of several arrays take turns of `SLICE_ROWS` rows. A RESYNC that has ended is followed by a
    REBUILD if there are stale drives. RESYNC and REBUILD fail once the array has FAILED, a REBUILD
    unless its last row has ended by then. What they would make unreadable may yet be of use. The
    boundaries stay where they are. A SALVAGE goes on, and begins only by order.

    A job is DONE only once every live drive of its array has been flushed (HAND-OVER). That holds
    for one that has written nothing too, since what it has found may be what a job before it has
    written. Rows that a RESYNC or ZERO has made right count as in sync with DONE, or when the job
    goes on as a REBUILD. If a drive does not flush, or the array has FAILED by then, the job has
    FAILED, and what was not in sync before is not in sync. (A REBUILD is DONE with its array
    FAILED, if the drives that are left have flushed.) The job can be resumed. Then it is through
    its rows at once, and the drives are flushed again. A REBUILD cannot if the drive that it
    rebuilt is trusted, as nothing is left to rebuild.

    An array that was in sync and is not any more (DOUBT) is ``torn``. So is one that is brought up
    with the marks of what was being written (``follow``). A RESYNC of it follows the marks, as a
    REBUILD does. So its marks must not be dropped.

    A CHECK of every row that is DONE proves an array that was ASSUMED if it found nothing and all
    drives are there. A RESYNC or ZERO of every row proves it as well, once it counts as in sync.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    control
        Orders, and what becomes of them.
    verdicts
        What the arrays have left.
    assumed
        One bit per array. Its `Sync` is ASSUMED.
    torn
        One bit per array. Its `Sync` is NONE, but rows that are not marked are in sync.
    inconsistent
        One bit per array. It has been in DOUBT, and no RESYNC or ZERO has ended since.
    ended
        A pulse when a job has ended.
    stored
        A job of this array is DONE, and the drives have stored what it has written.
    slice
        Rows that `hdl.background.walker.Walker` is to walk.
    slice_end
        How they ended.
    stop
        To the walker: end the slice.
    advanced
        Of the walker, a pulse: ``boundary`` has moved.
    boundary
        Of the walker: the first row that has not ended.
    finding
        Of the walker: a row that did not end well.
    found
        A pulse. ``finding`` is taken.
    rewind
        Arrays without a job that moves the boundary. From the cycle after it is taken, nothing of
        the array's stale drives counts as rebuilt. It waits only while boundaries of other arrays
        move.
    boundary_read
        First row of an array that is not rebuilt. Only stale drives need it.
    sync_read
        First row of an array that may not be in sync. Only arrays that are ``unsynced`` need it.
        For the report to the host, admission and reads. RESYNC and ZERO move it on, BEGIN and DOUBT
        move it back.
    job_read
        Jobs, for the host.
    ask
        Asks `hdl.background.intent.Intent` for the rows to be rebuilt next. Without
        `Config.intent_chunks` nothing is asked and all rows are walked.
    answer
        These rows.
    follow
        With `Config.durable_marks`, a pulse: this array is ``torn``, if it is not in sync.
    now
        Time in cycles.
    busy
        It works.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "control": In(JobControl(config)),
                "verdicts": In(ArrayVerdicts(config)),
                "assumed": Out(config.arrays),
                "torn": Out(config.arrays),
                "inconsistent": Out(config.arrays),
                "ended": Out(1),
                "stored": Out(Pulse(config.array_bits)),
                "slice": Out(stream.Signature(slice_request(config))),
                "slice_end": In(stream.Signature(SliceEnd)),
                "stop": Out(1),
                "advanced": In(1),
                "boundary": In(BLOCK_NUMBER_BITS),
                "finding": In(finding(config)),
                "found": In(1),
                "rewind": In(stream.Signature(config.array_bits)),
                "boundary_read": In(TableRead(config.array_bits, BLOCK_NUMBER_BITS)).array(
                    2 + config.durable_marks
                ),
                "sync_read": In(TableRead(config.array_bits, BLOCK_NUMBER_BITS)).array(3),
                "job_read": In(TableRead(config.array_bits, job())),
                "now": In(TIME_BITS),
                "ask": Out(stream.Signature(array_row(config))),
                "answer": In(stream.Signature(stretch())),
                "follow": In(Pulse(config.array_bits)),
                "busy": Out(1),
            }
        )

        self._jobs = Table(job(), config.arrays, reads=2)
        self._boundaries = Table(
            BLOCK_NUMBER_BITS, config.arrays, reads=3 + config.durable_marks
        )
        self._syncs = Table(BLOCK_NUMBER_BITS, config.arrays, reads=4)

        # The array at hand and its job; others have one too.
        self._array = array = Signal(config.array_bits)
        self._current = current = Signal(job())
        self._runs = self.control.running.bit_select(array, 1)
        self._others = Signal()

        # How that array is. Of one that has failed nothing can be made consistent any more.
        self._is_unsynced = self.control.unsynced.bit_select(array, 1)
        self._is_assumed = self.assumed.bit_select(array, 1)
        self._is_torn = self.torn.bit_select(array, 1)
        self._is_inconsistent = self.inconsistent.bit_select(array, 1)
        self._has_stale = self.verdicts.rebuilding.bit_select(array, 1)
        self._has_failed = self.verdicts.hopeless.bit_select(array, 1)
        self._resyncs_first = self._is_unsynced & ~self._has_failed

        # What its job is.
        self._resync = current.kind == WalkKind.RESYNC
        self._zero = current.kind == WalkKind.ZERO
        self._migration = current.kind == WalkKind.MIGRATE
        self._rebuild = Signal()  # or SALVAGE
        self._syncs_rows = Signal()  # it leaves rows that are in sync, whatever they were
        # Its array has failed, and it with that; the drives are no longer those it is about.
        self._fails = (self._resync | (current.kind == WalkKind.REBUILD)) & self._has_failed
        self._pointless = Signal()
        # It has failed; it is done, or goes on as a REBUILD.
        self._has_lost = Signal()
        self._is_through = Signal()

        self._asked = Signal(BLOCK_NUMBER_BITS)  # the row that START names

        # Rows of this turn; something of the job has changed; cycles since the turn has ended.
        self._rows = Signal(range(SLICE_ROWS + 1))
        self._dirty = Signal()
        self._pause = Signal(range(VERDICT_CYCLES + 1))

        self._looks_again = Signal()  # what is to be walked has changed

        # The boundary of the array at hand moves, or goes back to its first row.
        self._moves = Signal()
        self._restarts = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.jobs = self._jobs
        m.submodules.boundaries = self._boundaries
        m.submodules.syncs = self._syncs
        self._connect_tables(m)
        self._connect_boundaries(m)
        self._connect_job(m)
        with m.FSM(name="jobs") as fsm:
            self._clear(m)
            self._rest(m)
            self._load_ordered(m)
            self._carry_out(m)
            self._store(m)
            self._load(m)
            if self._config.intent_chunks:
                self._follow_marks(m)
            self._begin(m)
            self._walk(m)
            self._settle(m)
            self._hand_over(m)
            m.d.comb += self.busy.eq(~self._waits(fsm) | self.rewind.valid)
        if self._config.durable_marks:
            followed = self.follow.payload
            with m.If(self.follow.valid & self.control.unsynced.bit_select(followed, 1)):
                m.d.sync += self.torn.bit_select(followed, 1).eq(1)
                # Its RESYNC may have begun to walk all rows.
                with m.If(followed == self._array):
                    m.d.sync += self._looks_again.eq(1)
        self._conclude(m)
        return m

    def _connect_tables(self, m: Module) -> None:
        """The job and the sync boundary of the array at hand, and what others read."""
        jobs, syncs, array = self._jobs, self._syncs, self._array
        for readers, table in (
            (self.boundary_read, self._boundaries),
            (self.sync_read, syncs),
            ((self.job_read,), jobs),
        ):
            for outer, inner in zip(readers, list(table.reads)[1:], strict=True):
                connect(m, flipped(outer), inner)
        m.d.comb += [
            syncs.reads[0].address.eq(array),
            syncs.write.address.eq(array),
            syncs.write.data.eq(self.boundary),
            jobs.reads[0].address.eq(array),
            jobs.write.address.eq(array),
            jobs.write.data.eq(self._current),
        ]

    def _connect_boundaries(self, m: Module) -> None:
        """How far drives are rebuilt: the array at hand moves on, or another one goes back."""
        boundaries, moves = self._boundaries, self._moves
        m.d.comb += [
            boundaries.reads[0].address.eq(self._array),
            self.rewind.ready.eq(~moves),
            boundaries.write.address.eq(Mux(moves, self._array, self.rewind.payload)),
            boundaries.write.data.eq(Mux(moves & ~self._restarts, self.boundary, 0)),
            boundaries.write.enable.eq(moves | self.rewind.valid),
        ]

    def _connect_job(self, m: Module) -> None:
        """What the job at hand is, and what it asks of the walker."""
        array, current, request = self._array, self._current, self.slice.payload
        order = self.control.order.payload
        halted = self.verdicts.halted.bit_select(array, 1)
        m.d.comb += [
            self._pointless.eq(
                self.verdicts.settled
                & ((self._rebuild & ~self._has_stale) | (self._migration & halted) | self._fails)
            ),
            self._asked.eq(Mux(order.resume, self._stored.row, order.first)),
            self._syncs_rows.eq(self._resync | self._zero),
            self._rebuild.eq(
                (current.kind == WalkKind.REBUILD) | (current.kind == WalkKind.SALVAGE)
            ),
            request.kind.eq(current.kind),
            request.array.eq(array),
            request.first.eq(current.row),
            self.control.rebuilt_array.eq(array),
        ]
        m.d.sync += self._others.eq((self.control.running & ~(1 << array)).any())

    @property
    def _stored(self) -> data.View:
        """The job of the array at hand, as it was stored."""
        return self._jobs.reads[0].data

    @property
    def _rebuilt_rows(self) -> Value:
        """The boundary of the array at hand."""
        return self._boundaries.reads[0].data

    @property
    def _synced_rows(self) -> Value:
        """The sync boundary of the array at hand."""
        return self._syncs.reads[0].data

    def _mark(self, m: Module, state: JobState) -> None:
        """Sets the bits of the array at hand, whose job will be in ``state``."""
        array, starts = self._array, state == JobState.RUNNING
        m.d.sync += [
            self._current.state.eq(state),
            self._runs.eq(starts),
            self.control.rebuilds.bit_select(array, 1).eq(starts & self._rebuild),
            self.control.zeroes.bit_select(array, 1).eq(starts & self._zero),
            self.control.migrates.bit_select(array, 1).eq(starts & self._migration),
            self.control.resyncs.bit_select(array, 1).eq(starts & self._resync),
        ]

    def _end(self, m: Module, state: JobState) -> None:
        """Ends the job, and the machine's state: ``state`` is what became of it."""
        self._mark(m, state)
        m.d.comb += self.ended.eq(1)
        m.d.sync += self._current.ended.eq(self.now)
        m.next = "STORE"

    def _fail(self, m: Module) -> None:
        """Ends the job, which has failed."""
        self._end(m, JobState.FAILED)
        m.d.comb += self._has_lost.eq(1)

    def _conclude(self, m: Module) -> None:
        """What follows for the array from the end of its job.

        The rows that a RESYNC or ZERO has made right are in sync. A RESYNC of an array that has
        FAILED comes back once it can be read.
        """
        m.d.comb += self.control.unfinished.eq(
            (self._has_lost & self._resync & self._has_failed) << self._array
        )
        with m.If(self._is_through & self._syncs_rows):
            m.d.sync += [
                self._is_unsynced.eq(0), self._is_torn.eq(0), self._is_inconsistent.eq(0)
            ]
            with m.If(self._current.whole & ~(self._resync & self._is_torn)):
                m.d.sync += self._is_assumed.eq(0)
        with m.If(self._is_through & (self._current.kind == WalkKind.CHECK)):
            # A row that a drive has refused is walked again, and may be found good then.
            counts = ("failures", "mended", "mismatched", "lost")
            found = Cat(self._current[name] for name in counts).any()
            optimal = self.verdicts.optimal.bit_select(self._array, 1)
            with m.If(self._current.whole & ~found & optimal):
                m.d.sync += self._is_assumed.eq(0)

    def _go_on_as_rebuild(self, m: Module) -> None:
        """The job goes on as a REBUILD.

        If it was a MIGRATE and the array is not in sync, it goes on as RESYNC at first.
        """
        array, current = self._array, self._current
        self._mark(m, JobState.RUNNING)
        first = self._migration & self._resyncs_first
        m.d.sync += [
            current.kind.eq(Mux(first, WalkKind.RESYNC, WalkKind.REBUILD)),
            current.row.eq(Mux(first, self._synced_rows, self._rebuilt_rows)),
            current.whole.eq(0),
            self.control.rebuilds.bit_select(array, 1).eq(~first),
            self.control.resyncs.bit_select(array, 1).eq(first),
            self.control.migrates.bit_select(array, 1).eq(0),
        ]
        m.d.comb += self.ended.eq(0)
        m.next = "STORE"

    def _clear(self, m: Module) -> None:
        """The state CLEAR, after a reset: no array has a job."""
        with m.State("CLEAR"):
            m.d.comb += self._jobs.store(data=0)
            m.d.sync += self._array.eq(self._array + 1)
            with m.If(self._array == self._config.arrays - 1):
                m.next = "REST"

    def _rest(self, m: Module) -> None:
        """The states REST, of an order or the next array, and READ-ORDERED."""
        array = self._array
        with m.State("REST"):
            with m.If(self.control.order.valid):
                m.d.sync += array.eq(self.control.order.payload.array)
                m.next = "READ-ORDERED"
            with m.Elif(self.control.running.any()):
                m.d.sync += array.eq(array + 1)
                with m.If(array == self._config.arrays - 1):
                    m.d.sync += array.eq(0)
                m.next = "SEEK"

        with m.State("READ-ORDERED"):
            m.next = "LOAD-ORDERED"

    def _load_ordered(self, m: Module) -> None:
        """The state LOAD-ORDERED: what the order makes of the job that the array has."""
        order, current = self.control.order.payload, self._current
        with m.State("LOAD-ORDERED"):
            m.d.sync += current.eq(self._stored)
            m.next = "STOP"
            with m.Switch(order.order):
                with m.Case(JobOrder.START):
                    self._load_new_job(m)
                    m.next = "START"
                with m.Case(JobOrder.FORGET):
                    m.d.sync += current.eq(0)
                    m.next = "FORGET"
                with m.Case(JobOrder.BEGIN):
                    m.d.comb += self._syncs.store(data=0)
                    m.d.sync += [
                        current.eq(0),
                        self._is_unsynced.eq(order.sync == Sync.NONE),
                        self._is_assumed.eq(order.sync == Sync.ASSUMED),
                        self._is_torn.eq(0),
                        self._is_inconsistent.eq(0),
                    ]
                    m.next = "FORGET"
                with m.Case(JobOrder.DOUBT):
                    self._load_doubted_job(m)
                    m.next = "DOUBT"

    def _load_new_job(self, m: Module) -> None:
        """START: the job and its first row."""
        order, current, synced = self.control.order.payload, self._current, self._synced_rows
        asked = self._asked
        m.d.sync += [
            current.eq(0),
            current.kind.eq(order.kind),
            current.began.eq(self.now),
            current.row.eq(asked),
            current.whole.eq(asked == 0),
        ]
        rebuilds = order.kind == WalkKind.REBUILD
        with m.If(rebuilds | (order.kind == WalkKind.SALVAGE)):
            m.d.sync += current.row.eq(self._rebuilt_rows)
        syncs_rows = (order.kind == WalkKind.RESYNC) | (order.kind == WalkKind.ZERO)
        late = asked >= synced
        first_resync = rebuilds & self._resyncs_first
        with m.If(first_resync | (self._is_unsynced & syncs_rows & late)):
            m.d.sync += [current.row.eq(synced), current.whole.eq(synced == 0)]
        with m.If(first_resync):
            m.d.sync += current.kind.eq(WalkKind.RESYNC)
        fresh = order.every & ~order.resume
        with m.If((order.kind == WalkKind.RESYNC) & fresh):
            m.d.sync += self._is_torn.eq(0)

    def _load_doubted_job(self, m: Module) -> None:
        """DOUBT: rows may not be in sync any more, and a job that makes them so begins anew."""
        stored, current = self._stored, self._current
        with m.If(self.control.order.payload.sync == Sync.NONE):
            m.d.comb += self._syncs.store(data=0)
            # Of an array that was never in sync all rows may be wrong. So may those that a RESYNC
            # of all rows has not made right yet.
            stopped = stored.state == JobState.STOPPED
            walks_all = (self._runs | stopped) & (stored.kind == WalkKind.RESYNC)
            m.d.sync += [
                self._is_torn.eq(self._is_torn | ~(self._is_unsynced | walks_all)),
                self._is_unsynced.eq(1),
                self._is_inconsistent.eq(1),
            ]
        with m.If((stored.kind == WalkKind.RESYNC) | (stored.kind == WalkKind.ZERO)):
            m.d.sync += [current.row.eq(0), current.whole.eq(1)]

    def _carry_out(self, m: Module) -> None:
        """The states START, STOP, FORGET and DOUBT, in which an order is taken."""
        with m.State("START"):
            m.d.comb += self.control.order.ready.eq(1)
            self._mark(m, JobState.RUNNING)
            m.next = "STORE"

        with m.State("STOP"):
            m.d.comb += self.control.order.ready.eq(1)
            m.next = "REST"
            with m.If(self._current.state == JobState.RUNNING):
                self._end(m, JobState.STOPPED)

        with m.State("FORGET"):
            m.d.comb += self.control.order.ready.eq(1)
            self._mark(m, JobState.NONE)
            m.next = "STORE"

        with m.State("DOUBT"):
            m.d.comb += self.control.order.ready.eq(1)
            # The member that migrates may have lost what the migration target has.
            anew = self.control.migrates_anew.bit_select(self._array, 1)
            again = self._migration & self._runs & anew
            m.d.comb += [self._restarts.eq(again), self._moves.eq(self._restarts)]
            with m.If(again):
                m.d.sync += self._current.row.eq(0)
            m.next = "STORE"

    def _store(self, m: Module) -> None:
        """The state STORE: the job of the array at hand is put back."""
        with m.State("STORE"):
            m.d.comb += self._jobs.store()
            m.next = "REST"

    def _load(self, m: Module) -> None:
        """The states SEEK and LOAD: the turn of an array that has a job."""
        with m.State("SEEK"):
            m.next = "LOAD"
            with m.If(~self._runs):
                m.next = "REST"

        with m.State("LOAD"):
            m.d.sync += [self._current.eq(self._stored), self._rows.eq(0)]
            m.next = "FIND" if self._config.intent_chunks else "BEGIN"

    def _follow_marks(self, m: Module) -> None:
        """The states FIND and FOLLOW: the next rows that are marked, if the job follows marks."""
        current, request, found = self._current, self.slice.payload, self.answer.payload
        m.d.comb += [
            self.ask.payload.array.eq(self._array),
            self.ask.payload.row.eq(current.row),
        ]
        follows = self._rebuild | (self._resync & self._is_torn)
        with m.State("FIND"):
            m.d.comb += self.ask.valid.eq(follows)
            m.d.sync += request.end.eq(0)
            with m.If(~follows):
                m.next = "BEGIN"
            with m.Elif(self.ask.ready):
                m.next = "FOLLOW"
            m.d.sync += self._looks_again.eq(0)

        with m.State("FOLLOW"):
            m.d.comb += self.answer.ready.eq(1)
            with m.If(self.answer.valid):
                m.d.sync += [current.row.eq(found.first), request.end.eq(found.end)]
                m.next = "BEGIN"

    def _begin(self, m: Module) -> None:
        """The state BEGIN: the walker takes the rows."""
        with m.State("BEGIN"):
            m.d.comb += self.slice.valid.eq(1)
            with m.If(self.slice.ready):
                m.next = "WALK"

    def _walk(self, m: Module) -> None:
        """The state WALK, until the walker has ended."""
        current, advanced, rows = self._current, self.advanced, self._rows
        rebuilds, end = self._rebuild | self._migration, self.slice_end.payload
        with m.State("WALK"):
            m.d.comb += [
                self.stop.eq(
                    self.control.order.valid
                    | (self._others & (rows == SLICE_ROWS))
                    | self._pointless
                    | self._looks_again
                ),
                self._jobs.write.enable.eq(self._dirty),
                self._moves.eq(rebuilds & advanced),
                self._syncs.write.enable.eq(
                    self._syncs_rows & advanced & (self.boundary > self._synced_rows)
                ),
                self.slice_end.ready.eq(1),
            ]
            m.d.sync += [self._dirty.eq(advanced | self.found), current.row.eq(self.boundary)]
            with m.If(advanced & (rows != SLICE_ROWS)):
                m.d.sync += rows.eq(rows + 1)
            with m.If(self.found):
                self._count_finding(m)
            with m.If(self.slice_end.valid):
                m.d.sync += [
                    current.row.eq(end.row),
                    self.control.complete.eq(end.complete),
                    self._pause.eq(0),
                ]
                m.next = "STORE"
                with m.If(end.failed):
                    m.d.sync += current.failures.eq(current.failures + 1)
                with m.If(end.complete | end.failed | self._pointless):
                    m.next = "SETTLE"
                with m.If(end.complete):
                    m.d.comb += self._moves.eq(rebuilds)

    def _count_finding(self, m: Module) -> None:
        """Counts a row that was not as it should be."""
        for name, result in (
            ("mended", WalkResult.MENDED),
            ("mismatched", WalkResult.MISMATCH),
            ("lost", WalkResult.LOST),
        ):
            counter = self._current[name]
            with m.If(self.finding.result == result):
                m.d.sync += counter.eq(counter + 1)

    def _settle(self, m: Module) -> None:
        """The states SETTLE and JUDGE: what has become of the drives, and of the job by that."""
        current, complete, pause = self._current, self.control.complete, self._pause
        with m.State("SETTLE"):
            m.d.sync += pause.eq(pause + 1)
            with m.If(pause == VERDICT_CYCLES):
                m.next = "JUDGE"

        with m.State("JUDGE"):
            m.d.sync += pause.eq(VERDICT_CYCLES)
            exhausted = current.failures == MOST_FAILURES
            with m.If(self.verdicts.settled):
                with m.If(self._migration & (self._pointless | complete | exhausted)):
                    m.next = "HAND-OVER"
                with m.Elif(
                    (self._rebuild & ~self._has_stale)
                    | (self._fails & (self._resync | ~complete))
                    | exhausted
                ):
                    self._fail(m)
                with m.Elif(~complete):
                    m.next = "STORE"
                with m.Elif(self._resync & self._has_stale):
                    # What it has written is flushed at the end of the REBUILD.
                    m.d.comb += self._is_through.eq(1)
                    self._go_on_as_rebuild(m)
                with m.Else():
                    m.next = "HAND-OVER"

    def _hand_over(self, m: Module) -> None:
        """The state HAND-OVER: the tables flush the drives, and trust those that were rebuilt.

        Drives that have failed meanwhile have not flushed. An array that has FAILED by that is not
        in sync.
        """
        outcome = self.control.outcome
        m.d.comb += self.stored.payload.eq(self._array)
        with m.State("HAND-OVER"):
            m.d.comb += self.control.rebuilt.eq(~self.control.order.valid)
            with m.If(self.control.handed):
                self._end(m, JobState.DONE)
                m.d.comb += [self._is_through.eq(1), self.stored.valid.eq(1)]
                released = outcome == MigrationEnd.RELEASED
                rebuilds = self._rebuild | self._migration
                with m.If(released | (~rebuilds & self._has_failed)):
                    self._fail(m)
                    m.d.comb += [self._is_through.eq(0), self.stored.valid.eq(0)]
                with m.If(self._migration & (outcome == MigrationEnd.STALE)):
                    self._go_on_as_rebuild(m)
            with m.Elif(self.control.order.valid):
                m.next = "STORE"

    def _waits(self, fsm) -> Value:
        """It waits for somebody else."""
        return (
            (fsm.ongoing("REST") & ~self.control.order.valid & ~self.control.running.any())
            | (fsm.ongoing("BEGIN") & ~self.slice.ready)
            | (fsm.ongoing("HAND-OVER") & ~self.control.handed & ~self.control.order.valid)
            | (
                fsm.ongoing("WALK")
                & ~self.slice_end.valid
                & ~self.advanced
                & ~self.found
                & ~self._dirty
            )
        )
