"""Decides on changes: the host's, hot spares that step in, drives that have been rebuilt."""

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.background.job_orders import JobControl, JobOrder, Sync
from hdl.background.pace import RATE_BITS, WHOLE
from hdl.config import MAX_DRIVES, Config
from hdl.flow.array_state import ArrayState, ArrayVerdicts, array_verdict
from hdl.flow.geometry import Level
from hdl.flow.manage import (
    Changes,
    ManageOpcode,
    ManageStatus,
    MigrationEnd,
    manage_request,
)
from hdl.flow.walk import WalkKind
from hdl.kit.pick import lowest_bit
from hdl.kit.table import Table

DEFAULT_RATE = 30
"""Percent of the time that background work may take from a host that is there."""


class Supervisor(wiring.Component):
    """Stands between the host's commands and the tables, and orders jobs.

    It makes one change at a time.

    **Failed members.** The supervisor replaces a failed member by itself. If the member's drive
    has only restarted, the supervisor takes that drive back first, and a job brings it up to date.
    Otherwise it looks for a hot spare that is as large as the member. It prefers a spare that is
    dedicated to the array to one for all arrays, and then the one with the lowest port. A member is
    replaced only while its array has something to rebuild it from. A REBUILD starts when the
    new drive has joined. A job of the array that is REBUILD, ZERO or MIGRATE is not disturbed, and
    neither is a RESYNC of an array that is not in sync yet. Any other job gives way. If no spare
    fits an array, the supervisor passes that array over until something changes, so that other
    arrays get their turn. An array that has FAILED is never rebuilt by itself. The host may order a
    SALVAGE. When an array is deleted, its dedicated spares become ordinary drives.

    **Restarted drives.** An array may be unable to do without drives that have restarted. Then a
    ZERO of the array begins anew. If the array has redundancy, its marked rows are no longer in
    sync, and a RESYNC makes them right. The RESYNC starts at once, or when a migration
    has ended. Other jobs give way to it.

    **Jobs that have written.** When such a job has reached the last row, the tables flush the
    drives of its array before the job is done. If an array is in doubt by then, its job is not
    done. Then a RESYNC or ZERO begins anew, and any other job gives way to a RESYNC. Only a REBUILD
    or SALVAGE ends, since its drives are stale no longer: as done if all drives have flushed what
    it wrote.

    **New arrays.** A new array without redundancy has nothing to be in sync. Any other one counts
    as in sync only if the host says so. Otherwise it begins with a RESYNC or a ZERO, or it waits
    for one (``idle``).

    **Migrations.** A live member migrates only while no other member of its array is being rebuilt.
    The tables end a migration when its job asks for that or when the host stops it. So a job never
    outlives its migration. The tables answer when nobody refers any more to the drive that leaves.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    changes
        The host's changes (`ManageOpcode`).
    table_changes
        Changes for `hdl.array.tables.tables.ArrayTables`.
    jobs
        Orders for `hdl.background.jobs.Jobs`, and what becomes of them.
    verdicts
        What the arrays have left.
    doubts
        One bit per array. What was written to it may be lost, its marked rows may be torn, and
        `Jobs` does not know yet.
    doubted
        A pulse. Rows of an array may be torn, and now `Jobs` knows.
    changed
        A pulse. Drives or tables are not what they were before.
    given_up
        One bit per port, a pulse. A drive that has restarted could not be taken back.
    usable
        One bit per port. A drive is there, has not failed and belongs to no array.
    spares
        One bit per port. It is a hot spare, and no new array may have it.
    present, clean, tries
        With `Config.metadata`: one bit per port, a drive is there; no host uses the arrays, so no
        spare steps in; a spare is about to become a member, and counts as none until that is
        refused. If the drive of a spare goes, it is none any more: its superblock says so when it
        comes back.
    rescan
        A pulse. The arrays must be judged again, because a spare may be of use now.
    rate
        Percent, as in `hdl.background.pace.Pace`.
    busy
        It works.

    Errors, as the status of the answer
        - JOB_RUNNING if the array has a job and is to be deleted, to get a member or to get another
          job. Also for a volume on an array with a ZERO, and for a migration while another member
          is rebuilt.
        - NOT_REDUNDANT to replace a member of a failed array, and for a REBUILD of it.
        - INVALID_FIELD for the job MIGRATE, for REBUILD or SALVAGE without a stale drive, for
          SALVAGE of an array that has not failed, and for a rate of 0 or beyond 100. Also for a new
          array that is assumed to be in sync or has no job (``idle``), but is to have a job.
        - NO_ENTRY for an array, job or spare that does not exist.
        - DRIVE_UNAVAILABLE for a spare that is absent or in use.
        - IN_USE for a ZERO of an array with volumes.
        - The tables add others.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "changes": In(Changes(config)),
                "table_changes": Out(Changes(config)),
                "jobs": Out(JobControl(config)),
                "verdicts": In(ArrayVerdicts(config)),
                "doubts": Out(config.arrays),
                "doubted": Out(1),
                "changed": In(1),
                "given_up": Out(MAX_DRIVES),
                "usable": In(MAX_DRIVES),
                "spares": Out(MAX_DRIVES),
                "rescan": Out(1),
                "rate": Out(RATE_BITS, init=DEFAULT_RATE),
                "busy": Out(1),
            }
            | (
                {"present": In(MAX_DRIVES), "clean": In(1), "tries": Out(1)}
                if config.metadata
                else {}
            )
        )
        # How a member's own drive is taken back: brought up to date where there are marks, else
        # rebuilt as any other.
        self._take_back = ManageOpcode.RE_ADD if config.intent_chunks else ManageOpcode.REPLACE
        self._takes_member = tuple(dict.fromkeys((ManageOpcode.REPLACE, self._take_back)))

        # The change at hand, by whom it is made, and its port as a bit.
        self._request = Signal(manage_request(config))
        self._by_host = Signal()
        self._by_spare = Signal()
        self._port_bit = Signal(MAX_DRIVES)

        # The array of the change, and how it is.
        self._array = Signal(config.array_bits)
        self._exists = Signal()
        self._runs = Signal()
        self._zeroes = Signal()
        self._migrates = Signal()
        self._has_stale = Signal()
        self._works = Signal()  # it has a job, and there is an array of that number
        self._state = Signal(ArrayState)

        # The array that the host creates: nothing is to be in sync; it is to have no job.
        self._plain = Signal()
        self._jobless = Signal()

        # Dedicated spares: a bit a port for each array. `spares` has those of all arrays as well,
        # which are `everywhere`. A sweep goes over all arrays.
        self._dedications = Table(MAX_DRIVES, config.arrays)
        self._everywhere = Signal(MAX_DRIVES)
        self._swept_array = Signal(config.array_bits)

        # Arrays of which marked rows may be torn and need a RESYNC, and those of them that have
        # redundancy; those of which the RESYNC can start.
        self._due = Signal(config.arrays)
        self._redundant = Signal(config.arrays)
        self._startable = Signal(config.arrays)

        # A failed member that a drive is wanted for: what was found of its array.
        self._wanted = Signal()
        self._want = Signal(array_verdict(config))
        # Spares that have been tried for it; the one that is being tried.
        self._tried = Signal(MAX_DRIVES)
        self._chosen = Signal(MAX_DRIVES)
        # Spares that may be tried: those of its array, or else those of all arrays.
        self._candidates = Signal(MAX_DRIVES)
        # Drives that have not been away since the change at hand was taken up.
        self._there = Signal(MAX_DRIVES)
        self._was_clean = Signal()
        # Arrays that no spare fits; nothing has changed since the member was found.
        self._passed = Signal(config.arrays)
        self._as_judged = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.dedications = self._dedications
        self._connect(m)
        self._find_torn_arrays(m)
        self._find_members(m)
        self._find_spares(m)
        with m.FSM(name="supervise") as fsm:
            self._clear(m)
            self._rest(m)
            self._resync(m)
            self._choose(m)
            self._settle(m)
            self._decide(m)
            self._change_spare(m)
            self._ask(m)
            self._listen(m)
            self._free_dedicated(m)
            self._await(m)
            self._hand_over(m)
            self._part(m)
            self._order(m)
            self._respond(m)
            m.d.comb += self.busy.eq(~self._waits(fsm))
        with m.If(self.changed | (self.rescan & ~fsm.ongoing("CHOOSE"))):
            m.d.sync += [self._passed.eq(0), self._as_judged.eq(0)]
        # After the states: what is new is not forgotten.
        self._note_torn_arrays(m)
        if self._config.metadata:
            self._forget_spares(m, fsm.ongoing("REST"))
        return m

    def _connect(self, m: Module) -> None:
        """What is known of the change at hand and of its array."""
        request, array, dedications = self._request, self._array, self._dedications
        m.d.comb += [
            array.eq(request.array),
            self._exists.eq(
                self.verdicts.valid.bit_select(array, 1) & (request.array < self._config.arrays)
            ),
            self._runs.eq(self.jobs.running.bit_select(array, 1)),
            self._zeroes.eq(self.jobs.zeroes.bit_select(array, 1)),
            self._migrates.eq(self.jobs.migrates.bit_select(array, 1)),
            self._has_stale.eq(self.verdicts.rebuilding.bit_select(array, 1)),
            self._state.eq(self.verdicts.states.word_select(array, 2)),
            self._port_bit.eq(1 << self._port),
            self._plain.eq(
                (request.level == Level.RAID0.value) | (request.level == Level.JBOD.value)
            ),
            self._jobless.eq(request.assumed | request.idle),
            self.table_changes.request.payload.eq(request),
            self.jobs.outcome.eq(self.changes.response.payload.index[5:7]),
            self.jobs.order.payload.array.eq(array),
            dedications.reads[0].address.eq(array),
            dedications.write.data.eq(self._dedicated & ~self._port_bit),
            dedications.write.address.eq(self._swept_array),
        ]

    @property
    def _port(self) -> Value:
        """The port that the change names."""
        return self._request.port[: self._config.port_bits]

    @property
    def _dedicated(self) -> Value:
        """Spares of the array whose entry has been read. A drive that went may have left a bit."""
        found = self._dedications.reads[0].data
        return found & ~self._everywhere if self._config.metadata else found

    def _find_torn_arrays(self, m: Module) -> None:
        """Arrays that need a RESYNC, and the first of them, and the first one in doubt."""
        # Of an array that has FAILED it would end at once, and take the place of a SALVAGE.
        has_failed = self.verdicts.states[::2] & self.verdicts.states[1::2]
        m.d.comb += self._startable.eq(self._due & ~self.jobs.migrates & ~has_failed)
        self._doubtful_array = lowest_bit(m, self.doubts, "doubtful")
        self._startable_array = lowest_bit(m, self._startable, "startable_array")

    def _kept(self, array: Value) -> Value:
        """The job of ``array`` is not to be disturbed for a failed member."""
        jobs = self.jobs
        resyncs = jobs.resyncs & jobs.unsynced
        keeps = jobs.rebuilds | jobs.zeroes | jobs.migrates | resyncs
        return keeps.bit_select(array, 1)

    def _find_members(self, m: Module) -> None:
        """Notes a failed member as its array is judged, if a drive may take its place."""
        found = self.verdicts.verdict
        helps = (found.state == ArrayState.DEGRADED) | (
            found.state == ArrayState.PARTIALLY_DEGRADED
        )
        spared = self.spares.any() & ~self._passed.bit_select(found.array, 1)
        offered = (found.returns & self._in_use) | spared
        seeks = found.valid & found.missing & helps & offered & ~self._kept(found.array)
        with m.If(self.verdicts.judged & seeks & ~self._wanted):
            m.d.sync += [
                self._wanted.eq(1),
                self._as_judged.eq(1),
                self._want.eq(found),
                self._tried.eq(0),
            ]

    @property
    def _in_use(self) -> Value:
        """A host uses the arrays. Otherwise superblocks say that they are clean, and no loss is
        written down, so none is made good either: a drive would forget what it is, and others would
        say that it is a member."""
        return ~self.clean if self._config.metadata else Const(1)

    @property
    def _ready(self) -> Value:
        """Spares that may step in."""
        return self.spares & self._in_use.replicate(MAX_DRIVES)

    def _find_spares(self, m: Module) -> None:
        """The spares that may take the place of the failed member, and the first of them."""
        fit = Signal(MAX_DRIVES)
        by_dedication = Signal(MAX_DRIVES)
        m.d.comb += [
            fit.eq(self._ready & self.usable & ~self._tried),
            by_dedication.eq(self._dedicated & fit),
            self._candidates.eq(
                Mux(by_dedication.any(), by_dedication, self._everywhere & fit)
            ),
        ]
        self._candidate = lowest_bit(m, self._candidates, "candidate")

    def _forget_spares(self, m: Module, rests: Value) -> None:
        """A drive that goes is no spare. Spares wait until a host uses the arrays."""
        m.d.comb += self.tries.eq(self._by_spare)
        m.d.sync += [
            self._there.eq((self._there | rests.replicate(MAX_DRIVES)) & self.present),
            self._was_clean.eq(self.clean),
        ]
        for port in range(MAX_DRIVES):
            with m.If(~self.present[port]):
                m.d.sync += [self.spares[port].eq(0), self._chosen[port].eq(0)]
        with m.If(self._was_clean & ~self.clean):
            m.d.comb += [self.rescan.eq(1), self.busy.eq(1)]

    def _same(self, ports: Value) -> Value:
        """Those of ``ports`` that have the drives that they had as the change was taken up."""
        return ports & self._there if self._config.metadata else ports

    def _note_torn_arrays(self, m: Module) -> None:
        """Notes arrays of which something may be lost, and those whose RESYNC has not ended."""
        found = self.verdicts.verdict
        for number in range(self._config.arrays):
            with m.If(self.jobs.unfinished[number]):
                m.d.sync += self._due[number].eq(1)
        with m.If(self.verdicts.judged & found.valid & found.loses):
            m.d.sync += [
                self.doubts.bit_select(found.array, 1).eq(1),
                self._redundant.bit_select(found.array, 1).eq(found.redundant),
            ]
            with m.If(found.migrates_anew):
                m.d.sync += self.jobs.migrates_anew.bit_select(found.array, 1).eq(1)

    # Ends of states: what follows a decision.

    def _answer(self, m: Module, status: ManageStatus) -> None:
        """Answers the host with ``status``."""
        response = self.changes.response.payload
        m.d.sync += [response.status.eq(status), response.index.eq(0)]
        m.next = "RESPOND"

    def _give_order(self, m: Module, order: JobOrder) -> None:
        """Gives `Jobs` an order about the array of the change."""
        m.d.sync += self.jobs.order.payload.order.eq(order)
        m.next = "ORDER"

    def _start_job(self, m: Module, kind, first=0, resume=0) -> None:
        """Orders a job of ``kind``, as `job_order` has it."""
        order = self.jobs.order.payload
        m.d.sync += [order.kind.eq(kind), order.first.eq(first), order.resume.eq(resume)]
        m.d.sync += order.every.eq(self._by_host)
        self._give_order(m, JobOrder.START)

    def _clear(self, m: Module) -> None:
        """The state CLEAR, after a reset: no array has spares of its own."""
        with m.State("CLEAR"):
            m.d.comb += self._dedications.store(data=0)
            m.d.sync += self._swept_array.eq(self._swept_array + 1)
            with m.If(self._swept_array == self._config.arrays - 1):
                m.next = "REST"

    def _rest(self, m: Module) -> None:
        """The state REST: what is to be done next, most urgent first."""
        request = self._request
        doubts, startable = self.doubts.any(), self._startable.any()
        with m.State("REST"):
            m.d.comb += [
                self.changes.request.ready.eq(
                    ~self.jobs.rebuilt & ~self._wanted & ~doubts & ~startable
                ),
                self._dedications.reads[0].address.eq(self._want.array),
            ]
            m.d.sync += [
                request.eq(self.changes.request.payload),
                self._by_host.eq(1),
                self._by_spare.eq(0),
                self._swept_array.eq(0),
            ]
            # A RESYNC or ZERO begins anew before anybody thinks that it has ended.
            with m.If(doubts):
                redundant = self._redundant.bit_select(self._doubtful_array, 1)
                m.d.sync += [request.array.eq(self._doubtful_array), self._by_host.eq(0)]
                m.d.sync += self.jobs.order.payload.sync.eq(Mux(redundant, Sync.NONE, Sync.PROVEN))
                self._give_order(m, JobOrder.DOUBT)
            with m.Elif(self.jobs.rebuilt):
                migrated = self.jobs.migrates.bit_select(self.jobs.rebuilt_array, 1)
                rebuilds = self.jobs.rebuilds.bit_select(self.jobs.rebuilt_array, 1)
                m.d.sync += [
                    request.opcode.eq(
                        Mux(migrated, ManageOpcode.END_MIGRATION, ManageOpcode.SETTLE)
                    ),
                    request.complete.eq(self.jobs.complete & (migrated | rebuilds)),
                    request.array.eq(self.jobs.rebuilt_array),
                    self._by_host.eq(0),
                ]
                m.next = "ASK"
            with m.Elif(startable):
                m.d.sync += [request.array.eq(self._startable_array), self._by_host.eq(0)]
                m.next = "RESYNC"
            with m.Elif(self._wanted):
                m.next = "CHOOSE"
            with m.Elif(self.changes.request.valid):
                m.next = "SETTLE"

    def _resync(self, m: Module) -> None:
        """The state RESYNC: rows may be torn. What makes them right already has begun anew."""
        with m.State("RESYNC"):
            m.d.sync += self._due.bit_select(self._array, 1).eq(0)
            self._start_job(m, WalkKind.RESYNC)
            with m.If(
                ~self._exists | self._zeroes | self.jobs.resyncs.bit_select(self._array, 1)
            ):
                m.next = "REST"

    def _choose(self, m: Module) -> None:
        """The states CHOOSE, of a drive for the failed member, and TRY, of a hot spare.

        The drive is the one that was the member and has restarted, or a hot spare.
        """
        request, want, candidate = self._request, self._want, self._candidate
        kept = self._kept(want.array)
        returns = want.returns & self._in_use
        with m.State("CHOOSE"):
            m.d.comb += self._dedications.reads[0].address.eq(want.array)
            m.d.sync += [
                request.opcode.eq(ManageOpcode.REPLACE),
                request.array.eq(want.array),
                request.position.eq(want.position),
                request.port.eq(candidate),
                self._by_host.eq(0),
                self._by_spare.eq(1),
                self._chosen.eq(1 << candidate),
            ]
            m.next = "TRY"
            with m.If(kept | ~(self._candidates.any() | returns)):
                # Others may have been judged meanwhile.
                m.d.comb += self.rescan.eq(1)
                m.d.sync += self._wanted.eq(0)
                m.d.sync += self._passed.bit_select(want.array, 1).eq(self._as_judged & ~kept)
                m.next = "REST"
            with m.Elif(returns):
                m.d.sync += [
                    request.opcode.eq(self._take_back),
                    request.position.eq(want.place),
                    request.port.eq(want.port),
                    self._by_spare.eq(0),
                ]
                m.next = "ASK"

        with m.State("TRY"):
            m.d.sync += [
                self._tried.eq(self._tried | self._chosen),
                # The tables take no reserved drive.
                self.spares.eq(self.spares & ~self._chosen),
            ]
            m.next = "ASK"

    def _settle(self, m: Module) -> None:
        """The state SETTLE: the host's change waits until it is known how the arrays are."""
        with m.State("SETTLE"):
            with m.If(self.verdicts.settled):
                m.next = "DECIDE"

    def _decide(self, m: Module) -> None:
        """The state DECIDE: whether the host's change is allowed, and who carries it out."""
        request, response = self._request, self.changes.response.payload
        with m.State("DECIDE"):
            m.d.comb += self._works.eq(self._runs & (request.array < self._config.arrays))
            m.d.sync += [response.status.eq(ManageStatus.DONE), response.index.eq(0)]
            with m.Switch(request.opcode):
                with m.Case(ManageOpcode.DELETE_ARRAY):
                    m.next = "ASK"
                    with m.If(self._works):
                        self._answer(m, ManageStatus.JOB_RUNNING)
                with m.Case(ManageOpcode.CREATE_VOLUME):
                    m.next = "ASK"
                    with m.If(self._works & self._zeroes):
                        self._answer(m, ManageStatus.JOB_RUNNING)
                with m.Case(*self._takes_member):
                    self._decide_on_member(m)
                with m.Case(ManageOpcode.MIGRATE):
                    self._decide_on_migration(m)
                with m.Case(ManageOpcode.START_JOB):
                    self._decide_on_start(m)
                with m.Case(ManageOpcode.STOP_JOB):
                    self._decide_on_stop(m)
                with m.Case(ManageOpcode.SET_RATE):
                    self._decide_on_rate(m)
                with m.Case(ManageOpcode.ADD_SPARE):
                    self._decide_on_new_spare(m)
                with m.Case(ManageOpcode.REMOVE_SPARE):
                    m.next = "READ-SPARE"
                    is_spare = self.spares.bit_select(self._port, 1)
                    with m.If((request.port >= MAX_DRIVES) | ~is_spare):
                        self._answer(m, ManageStatus.NO_ENTRY)
                with m.Case(ManageOpcode.CREATE_ARRAY):
                    m.next = "ASK"
                    with m.If(
                        (self._jobless & (request.initialise | request.zero))
                        | (request.assumed & request.idle)
                    ):
                        self._answer(m, ManageStatus.INVALID_FIELD)
                with m.Case(ManageOpcode.DELETE_VOLUME):
                    m.next = "ASK"
                with m.Default():
                    self._answer(m, ManageStatus.INVALID_FIELD)

    def _decide_on_member(self, m: Module) -> None:
        """REPLACE or RE_ADD: the array must have something to rebuild the member from."""
        m.next = "ASK"
        with m.If(~self._exists):
            self._answer(m, ManageStatus.NO_ENTRY)
        with m.Elif(self._works):
            self._answer(m, ManageStatus.JOB_RUNNING)
        with m.Elif(self._state == ArrayState.FAILED):
            self._answer(m, ManageStatus.NOT_REDUNDANT)

    def _decide_on_migration(self, m: Module) -> None:
        """MIGRATE: no other job, and no other member that is being rebuilt."""
        m.next = "ASK"
        with m.If(~self._exists):
            self._answer(m, ManageStatus.NO_ENTRY)
        with m.Elif(self._works | self._has_stale):
            self._answer(m, ManageStatus.JOB_RUNNING)

    def _decide_on_start(self, m: Module) -> None:
        """START_JOB: before a ZERO the tables say whether the array has volumes."""
        request = self._request
        self._start_job(m, request.kind, request.start, request.resume)
        with m.If(request.kind == WalkKind.ZERO.value):
            m.d.sync += request.opcode.eq(ManageOpcode.CHECK_EMPTY)
            m.next = "ASK"
        with m.If(~self._exists):
            self._answer(m, ManageStatus.NO_ENTRY)
        with m.Elif(self._works):
            self._answer(m, ManageStatus.JOB_RUNNING)
        rebuilds = request.kind == WalkKind.REBUILD.value
        salvages = request.kind == WalkKind.SALVAGE.value
        with m.Elif(
            (request.kind == WalkKind.MIGRATE.value)
            | ((rebuilds | salvages) & ~self._has_stale)
            | (salvages & (self._state != ArrayState.FAILED))
        ):
            self._answer(m, ManageStatus.INVALID_FIELD)
        with m.Elif(rebuilds & (self._state == ArrayState.FAILED)):
            self._answer(m, ManageStatus.NOT_REDUNDANT)

    def _decide_on_stop(self, m: Module) -> None:
        """STOP_JOB: the tables end a migration first."""
        request = self._request
        self._give_order(m, JobOrder.STOP)
        with m.If(self._migrates):
            m.d.sync += [request.opcode.eq(ManageOpcode.END_MIGRATION), request.complete.eq(0)]
            m.next = "ASK"
        with m.If(~self._exists | ~self._works):
            self._answer(m, ManageStatus.NO_ENTRY)

    def _decide_on_rate(self, m: Module) -> None:
        """SET_RATE."""
        request = self._request
        m.d.sync += self.rate.eq(request.rate)
        self._answer(m, ManageStatus.DONE)
        with m.If((request.rate == 0) | (request.rate > WHOLE)):
            m.d.sync += self.rate.eq(self.rate)
            self._answer(m, ManageStatus.INVALID_FIELD)

    def _decide_on_new_spare(self, m: Module) -> None:
        """ADD_SPARE: the drive is nobody's, and the array that it is for exists."""
        request = self._request
        m.next = "READ-SPARE"
        free = (self.usable & ~self.spares).bit_select(self._port, 1)
        with m.If((request.port >= self._config.ports) | ~free):
            self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)
        with m.Elif(request.dedicated & ~self._exists):
            self._answer(m, ManageStatus.NO_ENTRY)

    def _change_spare(self, m: Module) -> None:
        """The states READ-SPARE and WRITE-SPARE, in turn for each array.

        A spare is dedicated to one array or to none.
        """
        request, swept, port_bit = self._request, self._swept_array, self._port_bit
        everywhere, dedications = self._everywhere, self._dedications
        with m.State("READ-SPARE"):
            m.d.comb += dedications.reads[0].address.eq(swept)
            m.next = "WRITE-SPARE"

        with m.State("WRITE-SPARE"):
            adds = request.opcode == ManageOpcode.ADD_SPARE
            m.d.comb += dedications.store()
            with m.If(adds & request.dedicated & (swept == self._array)):
                m.d.comb += dedications.write.data.eq(self._dedicated | port_bit)
            m.d.sync += swept.eq(swept + 1)
            m.next = "READ-SPARE"
            with m.If(swept == self._config.arrays - 1):
                added = self._same(port_bit)
                m.d.sync += [
                    self.spares.eq(Mux(adds, self.spares | added, self.spares & ~port_bit)),
                    everywhere.eq(
                        Mux(
                            adds & ~request.dedicated,
                            everywhere | port_bit,
                            everywhere & ~port_bit,
                        )
                    ),
                ]
                m.d.comb += self.rescan.eq(1)
                self._answer(m, ManageStatus.DONE)

    def _ask(self, m: Module) -> None:
        """The state ASK: the tables make the change."""
        with m.State("ASK"):
            m.d.comb += self.table_changes.request.valid.eq(1)
            with m.If(self.table_changes.request.ready):
                m.next = "LISTEN"

    def _listen(self, m: Module) -> None:
        """The state LISTEN: what the tables have done, and what follows from it."""
        request, response = self._request, self.changes.response.payload
        told = self.table_changes.response.payload
        done = told.status == ManageStatus.DONE
        with m.State("LISTEN"):
            m.d.comb += self.table_changes.response.ready.eq(1)
            with m.If(self.table_changes.response.valid):
                m.d.sync += [response.status.eq(told.status), response.index.eq(told.index)]
                m.next = "RESPOND"
                with m.Switch(request.opcode):
                    with m.Case(ManageOpcode.CREATE_ARRAY):
                        with m.If(done):
                            self._begin_array(m)
                    with m.Case(ManageOpcode.DELETE_ARRAY):
                        with m.If(done):
                            self._forget_doubts(m)
                            m.d.sync += self._due.bit_select(self._array, 1).eq(0)
                            m.next = "READ-DEDICATED"
                    with m.Case(*self._takes_member):
                        self._take_member(m, done)
                    with m.Case(ManageOpcode.CHECK_EMPTY):
                        with m.If(done):
                            self._start_job(m, request.kind, request.start, request.resume)
                    with m.Case(ManageOpcode.MIGRATE):
                        with m.If(done):
                            self._start_job(m, WalkKind.MIGRATE)
                    with m.Case(ManageOpcode.END_MIGRATION):
                        m.next = "PART"
                    with m.Case(ManageOpcode.SETTLE):
                        m.next = "HAND-OVER"

    def _begin_array(self, m: Module) -> None:
        """Tells `Jobs` of a new array, and whether its rows are in sync."""
        request = self._request
        in_sync = Mux(request.assumed, Sync.ASSUMED, Sync.NONE)
        m.d.sync += [
            request.array.eq(self.table_changes.response.payload.index),
            self.jobs.order.payload.sync.eq(Mux(self._plain, Sync.PROVEN, in_sync)),
        ]
        self._give_order(m, JobOrder.BEGIN)

    def _take_member(self, m: Module, done: Value) -> None:
        """REPLACE or RE_ADD has ended: the drive is rebuilt, or another one is looked for."""
        everywhere, dedications = self._everywhere, self._dedications
        with m.If(done):
            m.d.sync += self._wanted.eq(0)
            self._start_job(m, WalkKind.REBUILD)
            with m.If(self._by_spare):
                # From now on it is a member, whatever it is after that.
                m.d.comb += dedications.store(address=self._array)
                m.d.sync += everywhere.eq(everywhere & ~self._port_bit)
        with m.Elif(self._by_spare):
            m.d.sync += self.spares.eq(self.spares | self._chosen)
            m.next = "REST"
        with m.Elif(~self._by_host):
            # A spare may do; the array is judged again.
            m.d.comb += [self.given_up.eq(1 << self._want.port), self.rescan.eq(1)]
            m.d.sync += self._wanted.eq(0)
            m.next = "REST"

    def _forget_doubts(self, m: Module) -> None:
        """The array of the change is in doubt no more."""
        m.d.sync += [
            self.doubts.bit_select(self._array, 1).eq(0),
            self.jobs.migrates_anew.bit_select(self._array, 1).eq(0),
        ]

    def _free_dedicated(self, m: Module) -> None:
        """The states READ-DEDICATED and FREE-DEDICATED: the spares of an array that is gone."""
        with m.State("READ-DEDICATED"):
            m.next = "FREE-DEDICATED"

        with m.State("FREE-DEDICATED"):
            m.d.comb += self._dedications.store(address=self._array, data=0)
            m.d.sync += self.spares.eq(self.spares & ~self._dedicated)
            self._give_order(m, JobOrder.FORGET)

    def _await(self, m: Module) -> None:
        """The state AWAIT: a new array is judged before its rows are walked.

        Others ask what was found of it.
        """
        with m.State("AWAIT"):
            with m.If(self.verdicts.settled):
                m.next = "ORDER"

    def _hand_over(self, m: Module) -> None:
        """The state HAND-OVER: the drives of an array have been flushed, or have failed.

        The array's state says so before the job has ended. If a drive has restarted meanwhile and
        is kept, what the job wrote may be lost, so the job has not ended.
        """
        with m.State("HAND-OVER"):
            # Of a REBUILD or SALVAGE the change is ``complete``.
            anew = ~self._request.complete & self.doubts.bit_select(self._array, 1)
            m.d.comb += self.jobs.handed.eq(self.verdicts.settled & ~anew)
            with m.If(self.verdicts.settled):
                m.next = "REST"

    def _part(self, m: Module) -> None:
        """The state PART: a migration has ended, and the drive that has left the array is free."""
        response = self.changes.response.payload
        with m.State("PART"):
            leaver = (1 << response.index[: self._config.port_bits])[:MAX_DRIVES]
            with m.If(self._by_host):
                m.d.sync += response.index.eq(0)
                self._give_order(m, JobOrder.STOP)
            with m.Else():
                # If the migration begins anew, an order tells the job, unless the job has ended.
                m.d.comb += self.jobs.handed.eq(self.jobs.outcome != MigrationEnd.AGAIN)
                m.next = "REST"
            with m.If(response.index[7] & (self.jobs.outcome == MigrationEnd.JOINED)):
                m.d.comb += self.rescan.eq(1)
                m.d.sync += [
                    self.spares.eq(self.spares | self._same(leaver)),
                    self._everywhere.eq(self._everywhere | leaver),
                ]

    def _order(self, m: Module) -> None:
        """The state ORDER: `Jobs` takes the order."""
        order, zero = self.jobs.order.payload, self._request.zero
        with m.State("ORDER"):
            m.d.comb += self.jobs.order.valid.eq(1)
            with m.If(self.jobs.order.ready):
                m.next = "RESPOND"
                begins = order.order == JobOrder.BEGIN
                with m.If(order.order == JobOrder.DOUBT):
                    tears = order.sync == Sync.NONE
                    m.d.comb += self.doubted.eq(tears)
                    self._forget_doubts(m)
                    m.d.sync += self._due.bit_select(self._array, 1).eq(tears)
                    m.next = "REST"
                with m.Elif(begins & (zero | ~(self._plain | self._jobless))):
                    self._start_job(m, Mux(zero, WalkKind.ZERO.value, WalkKind.RESYNC.value))
                    m.next = "AWAIT"
                with m.Elif(~self._by_host):
                    m.next = "REST"

    def _respond(self, m: Module) -> None:
        """The state RESPOND: the host takes the answer."""
        with m.State("RESPOND"):
            m.d.comb += self.changes.response.valid.eq(1)
            with m.If(self.changes.response.ready):
                m.next = "REST"

    def _waits(self, fsm) -> Value:
        """It waits for somebody else."""
        rests = (
            fsm.ongoing("REST")
            & ~self.changes.request.valid
            & ~self.jobs.rebuilt
            & ~self._wanted
            & ~self.doubts.any()
            & ~self._startable.any()
        )
        return (
            rests
            | (fsm.ongoing("SETTLE") & ~self.verdicts.settled)
            | (fsm.ongoing("HAND-OVER") & ~self.verdicts.settled)
            | (fsm.ongoing("AWAIT") & ~self.verdicts.settled)
            | (self.jobs.order.valid & ~self.jobs.order.ready)
            | (fsm.ongoing("LISTEN") & ~self.table_changes.response.valid)
            | (self.changes.response.valid & ~self.changes.response.ready)
        )
