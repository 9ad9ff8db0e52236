"""Decides on changes: the host's, hot spares that step in, drives that have been rebuilt."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.background.jobs import JobOrder, Sync, job_order
from hdl.background.pace import SHARE_BITS, WHOLE
from hdl.config import MAX_DRIVES, Config
from hdl.flow.array_state import ArrayState, judgement
from hdl.flow.geometry import Level
from hdl.flow.manage import CopyEnd, ManageOpcode, ManageStatus, manage_request, manage_response
from hdl.flow.walk import WalkKind
from hdl.kit.pick import lowest_set

DEFAULT_SHARE = 30
"""Percent of the time that background work may take from a host that is there."""


class Supervisor(wiring.Component):
    """Stands between the host's commands and the tables, and orders jobs.

    One change at a time. A member is replaced only while its array has something to rebuild it
    from; then REBUILD starts; so it is when a member's drive is had again (RE_ADD). A failed member
    is replaced by itself when there is a hot spare that is as large: dedicated ones first, then
    those of all arrays, by port; a job of the array other than REBUILD, ZERO or COPY gives way, but
    not a RESYNC of one that is not in sync yet. But before that, a member whose drive has only
    restarted is taken back, and brought up to date. An array that no spare fits is passed over
    until something changes, so that others have theirs. With an array those spares go that are for
    it alone: they are drives as any other.

    Nothing is rebuilt by itself of an array that has FAILED; the host may order SALVAGE.

    Where drives have restarted that an array cannot do without, a ZERO of it begins anew. If it has
    redundancy, its marked rows are not in sync any more, and a RESYNC makes them right: at once, or
    when a copy of a member has ended. Other jobs give way. When a ZERO has come to the last row,
    the drives of its array are flushed before it is done.

    A new array without redundancy has nothing to be in sync. Any other is taken to be so only if
    the host says it is; else it begins with a RESYNC, or with ZERO, or waits for one (``idle``).

    A live member is copied while no other member of its array is being rebuilt. The tables end a
    copy, when its job asks for it or the host stops that: the job never outlives it. They answer
    when nobody refers any more to the drive that leaves the array.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request, response
        The host's changes (`ManageOpcode`).
    table_request, table_response
        Changes to `hdl.array.tables.tables.ArrayTables`.
    order, running, rebuilds, zeroes, copies, resyncs, unsynced, rebuilt, rebuilt_array, complete,
    handed, outcome
        Of `hdl.background.jobs.Jobs`.
    judged, judgement, states, valid, settled
        Of `hdl.array.states.ArrayStates`.
    rebuilding
        Bit an array: it has stale drives.
    given_up
        Bit a port, a pulse: a drive that has restarted could not be taken back.
    doubts, doubted
        Bit an array: what was written may be lost, and rows that are marked be torn, and `Jobs`
        does not know yet; a pulse: rows may be torn, and now it does.
    recopies
        Bit an array: among its ``doubts`` is the member that is copied.
    unfinished
        As `hdl.background.jobs.Jobs` has it: a RESYNC is needed once the array has not FAILED.
    usable
        Bit a port: there is a drive that is not failed and belongs to no array.
    spares
        Bit a port: hot spares, which no new array may have.
    changed
        A pulse: drives or tables are others than before.
    rescan
        A pulse: judge the arrays again, a spare may have come of use.
    share
        Percent, as in `hdl.background.pace.Pace`.

    Errors: JOB_RUNNING while a job works on an array that is to be deleted, to get a member or
    another job, or (ZERO) a volume, or a member to be copied while one is rebuilt; NOT_REDUNDANT to
    replace a member of a failed array, or for a REBUILD of it; INVALID_FIELD for COPY, REBUILD or
    SALVAGE without a stale drive, SALVAGE of an array that has not failed, a share of 0 or beyond
    100, a new array that is assumed to be in sync or has no job but is to have one; NO_ENTRY for an
    array, job or spare that is not there; DRIVE_UNAVAILABLE for a spare that is absent or in use;
    IN_USE for ZERO of an array with volumes. Others are the tables'.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(manage_request(config))),
                "response": Out(stream.Signature(manage_response(config))),
                "table_request": Out(stream.Signature(manage_request(config))),
                "table_response": In(stream.Signature(manage_response(config))),
                "order": Out(stream.Signature(job_order(config))),
                "running": In(config.arrays),
                "rebuilds": In(config.arrays),
                "zeroes": In(config.arrays),
                "copies": In(config.arrays),
                "resyncs": In(config.arrays),
                "unsynced": In(config.arrays),
                "doubts": Out(config.arrays),
                "recopies": Out(config.arrays),
                "unfinished": In(config.arrays),
                "doubted": Out(1),
                "complete": In(1),
                "rebuilt": In(1),
                "rebuilt_array": In(config.array_bits),
                "handed": Out(1),
                "outcome": Out(CopyEnd),
                "judged": In(1),
                "judgement": In(judgement(config)),
                "states": In(2 * config.arrays),
                "valid": In(config.arrays),
                "settled": In(1),
                "rebuilding": In(config.arrays),
                "changed": In(1),
                "given_up": Out(MAX_DRIVES),
                "usable": In(MAX_DRIVES),
                "spares": Out(MAX_DRIVES),
                "rescan": Out(1),
                "share": Out(SHARE_BITS, init=DEFAULT_SHARE),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        # Dedicated spares: a bit a port for each array; `spares` has those of no array as well.
        m.submodules.dedications = dedications = Memory(
            shape=MAX_DRIVES, depth=config.arrays, init=[]
        )
        dedicated_read, dedicated_write = dedications.read_port(), dedications.write_port()
        everywhere = Signal(MAX_DRIVES)
        place = Signal(config.array_bits)

        request = Signal(manage_request(config))
        response = self.response.payload
        order = self.order.payload
        by_host, by_spare = Signal(), Signal()
        array = Signal(config.array_bits)
        exists, runs, rebuilds, zeroes, copies, has_stale = (
            Signal(name=name)
            for name in ("exists", "runs", "rebuilds", "zeroes", "copies", "has_stale")
        )
        state = Signal(ArrayState)
        port = request.port[: config.port_bits]
        port_bit = Signal(MAX_DRIVES)
        m.d.comb += [
            array.eq(request.array),
            exists.eq(self.valid.bit_select(array, 1) & (request.array < config.arrays)),
            runs.eq(self.running.bit_select(array, 1)),
            rebuilds.eq(self.rebuilds.bit_select(array, 1)),
            zeroes.eq(self.zeroes.bit_select(array, 1)),
            copies.eq(self.copies.bit_select(array, 1)),
            has_stale.eq(self.rebuilding.bit_select(array, 1)),
            state.eq(self.states.word_select(array, 2)),
            port_bit.eq(1 << port),
            self.table_request.payload.eq(request),
            self.outcome.eq(response.index[5:7]),
            order.array.eq(array),
            dedicated_read.addr.eq(array),
            dedicated_write.data.eq(dedicated_read.data & ~port_bit),
            dedicated_write.addr.eq(place),
        ]

        # Arrays of which marked rows may be torn, and those that need a RESYNC for that.
        due = Signal(config.arrays)
        redundant = Signal(config.arrays)
        startable = Signal(config.arrays)
        # Of an array that has FAILED it would end at once, and take the place of a SALVAGE.
        has_failed = self.states[::2] & self.states[1::2]
        m.d.comb += startable.eq(due & ~self.copies & ~has_failed)
        doubtful = lowest_set(m, self.doubts, "doubtful")
        startable_array = lowest_set(m, startable, "startable_array")

        # A failed member that a spare may replace.
        wanted = Signal()
        want = Signal(judgement(config))
        tried = Signal(MAX_DRIVES)
        # Arrays that no spare was of use to; whether nothing has changed since one is looked at.
        passed = Signal(config.arrays)
        as_judged = Signal()
        found = self.judgement
        helps = (found.state == ArrayState.DEGRADED) | (
            found.state == ArrayState.PARTIALLY_DEGRADED
        )
        keeps = self.rebuilds | self.zeroes | self.copies | (self.resyncs & self.unsynced)
        kept = keeps.bit_select(found.array, 1)
        want_kept = keeps.bit_select(want.array, 1)
        offered = found.returns | (self.spares.any() & ~passed.bit_select(found.array, 1))
        seeks = found.valid & found.missing & helps & offered & ~kept
        with m.If(self.judged & seeks & ~wanted):
            m.d.sync += [
                wanted.eq(1),
                as_judged.eq(1),
                want.eq(found),
                tried.eq(0),
            ]
        candidates = Signal(MAX_DRIVES)
        by_dedication = Signal(MAX_DRIVES)
        fit = Signal(MAX_DRIVES)
        m.d.comb += [
            fit.eq(self.spares & self.usable & ~tried),
            by_dedication.eq(dedicated_read.data & fit),
            candidates.eq(Mux(by_dedication.any(), by_dedication, everywhere & fit)),
        ]
        candidate = lowest_set(m, candidates, "candidate")
        chosen = Signal(MAX_DRIVES)

        def answer(status):
            m.d.sync += [response.status.eq(status), response.index.eq(0)]
            m.next = "RESPOND"

        def command(kind):
            m.d.sync += order.order.eq(kind)
            m.next = "ORDER"

        def run(kind, first=0, resume=0):
            m.d.sync += [order.kind.eq(kind), order.first.eq(first), order.resume.eq(resume)]
            m.d.sync += order.every.eq(by_host)
            command(JobOrder.START)

        # A new array: there is nothing to be in sync, and a job is wanted.
        plain, jobless = Signal(), Signal()
        m.d.comb += [
            plain.eq((request.level == Level.RAID0.value) | (request.level == Level.JBOD.value)),
            jobless.eq(request.assumed | request.idle),
        ]
        takes_member = [ManageOpcode.REPLACE]
        if config.intent_chunks:
            takes_member.append(ManageOpcode.RE_ADD)
        busy_array = Signal()
        with m.FSM(name="supervise") as fsm:
            with m.State("CLEAR"):
                m.d.comb += [dedicated_write.data.eq(0), dedicated_write.en.eq(1)]
                m.d.sync += place.eq(place + 1)
                with m.If(place == config.arrays - 1):
                    m.next = "REST"

            with m.State("REST"):
                m.d.comb += [
                    self.request.ready.eq(
                        ~self.rebuilt & ~wanted & ~self.doubts.any() & ~startable.any()
                    ),
                    dedicated_read.addr.eq(want.array),
                ]
                m.d.sync += [
                    request.eq(self.request.payload),
                    by_host.eq(1),
                    by_spare.eq(0),
                    place.eq(0),
                ]
                # A ZERO begins anew before anybody thinks that it has ended.
                with m.If(self.doubts.any()):
                    m.d.sync += [request.array.eq(doubtful), by_host.eq(0)]
                    m.d.sync += order.sync.eq(
                        Mux(redundant.bit_select(doubtful, 1), Sync.NONE, Sync.PROVEN)
                    )
                    command(JobOrder.DOUBT)
                with m.Elif(self.rebuilt):
                    m.d.sync += [
                        request.opcode.eq(
                            Mux(
                                self.copies.bit_select(self.rebuilt_array, 1),
                                ManageOpcode.END_COPY,
                                ManageOpcode.SETTLE,
                            )
                        ),
                        request.complete.eq(self.complete),
                        request.zero.eq(self.zeroes.bit_select(self.rebuilt_array, 1)),
                        request.array.eq(self.rebuilt_array),
                        by_host.eq(0),
                    ]
                    m.next = "ASK"
                with m.Elif(startable.any()):
                    m.d.sync += [request.array.eq(startable_array), by_host.eq(0)]
                    m.next = "RESYNC"
                with m.Elif(wanted):
                    m.next = "CHOOSE"
                with m.Elif(self.request.valid):
                    m.next = "SETTLE"

            # Rows may be torn. What makes them right already has begun anew.
            with m.State("RESYNC"):
                m.d.sync += due.bit_select(array, 1).eq(0)
                run(WalkKind.RESYNC)
                with m.If(~exists | zeroes | self.resyncs.bit_select(array, 1)):
                    m.next = "REST"

            # A drive that has restarted, or a hot spare.
            with m.State("CHOOSE"):
                m.d.comb += dedicated_read.addr.eq(want.array)
                m.d.sync += [
                    request.opcode.eq(ManageOpcode.REPLACE),
                    request.array.eq(want.array),
                    request.position.eq(want.position),
                    request.port.eq(candidate),
                    by_host.eq(0),
                    by_spare.eq(1),
                    chosen.eq(1 << candidate),
                ]
                m.next = "TRY"
                with m.If(want_kept | ~(candidates.any() | want.returns)):
                    # Others may have been judged meanwhile.
                    m.d.comb += self.rescan.eq(1)
                    m.d.sync += wanted.eq(0)
                    m.d.sync += passed.bit_select(want.array, 1).eq(as_judged & ~want_kept)
                    m.next = "REST"
                with m.Elif(want.returns):
                    m.d.sync += [
                        request.opcode.eq(
                            ManageOpcode.RE_ADD if config.intent_chunks else ManageOpcode.REPLACE
                        ),
                        request.position.eq(want.place),
                        request.port.eq(want.port),
                        by_spare.eq(0),
                    ]
                    m.next = "ASK"

            with m.State("TRY"):
                m.d.sync += [
                    tried.eq(tried | chosen),
                    # The tables take no reserved drive.
                    self.spares.eq(self.spares & ~chosen),
                ]
                m.next = "ASK"

            # The host.
            with m.State("SETTLE"):
                with m.If(self.settled):
                    m.next = "DECIDE"

            with m.State("DECIDE"):
                m.d.comb += busy_array.eq(runs & (request.array < config.arrays))
                m.d.sync += [response.status.eq(ManageStatus.DONE), response.index.eq(0)]
                with m.Switch(request.opcode):
                    with m.Case(ManageOpcode.DELETE_ARRAY):
                        m.next = "ASK"
                        with m.If(busy_array):
                            answer(ManageStatus.JOB_RUNNING)
                    with m.Case(ManageOpcode.CREATE_VOLUME):
                        m.next = "ASK"
                        with m.If(busy_array & zeroes):
                            answer(ManageStatus.JOB_RUNNING)
                    with m.Case(*takes_member):
                        m.next = "ASK"
                        with m.If(~exists):
                            answer(ManageStatus.NO_ENTRY)
                        with m.Elif(busy_array):
                            answer(ManageStatus.JOB_RUNNING)
                        with m.Elif(state == ArrayState.FAILED):
                            answer(ManageStatus.NOT_REDUNDANT)
                    with m.Case(ManageOpcode.COPY):
                        m.next = "ASK"
                        with m.If(~exists):
                            answer(ManageStatus.NO_ENTRY)
                        with m.Elif(busy_array | has_stale):
                            answer(ManageStatus.JOB_RUNNING)
                    with m.Case(ManageOpcode.START_JOB):
                        run(request.kind, request.start, request.resume)
                        with m.If(request.kind == WalkKind.ZERO.value):
                            m.d.sync += request.opcode.eq(ManageOpcode.CHECK_EMPTY)
                            m.next = "ASK"
                        with m.If(~exists):
                            answer(ManageStatus.NO_ENTRY)
                        with m.Elif(busy_array):
                            answer(ManageStatus.JOB_RUNNING)
                        of_rebuild = request.kind == WalkKind.REBUILD.value
                        salvages = request.kind == WalkKind.SALVAGE.value
                        with m.Elif(
                            (request.kind == WalkKind.COPY.value)
                            | ((of_rebuild | salvages) & ~has_stale)
                            | (salvages & (state != ArrayState.FAILED))
                        ):
                            answer(ManageStatus.INVALID_FIELD)
                        with m.Elif(of_rebuild & (state == ArrayState.FAILED)):
                            answer(ManageStatus.NOT_REDUNDANT)
                    with m.Case(ManageOpcode.STOP_JOB):
                        command(JobOrder.STOP)
                        with m.If(copies):
                            m.d.sync += [
                                request.opcode.eq(ManageOpcode.END_COPY),
                                request.complete.eq(0),
                            ]
                            m.next = "ASK"
                        with m.If(~exists | ~busy_array):
                            answer(ManageStatus.NO_ENTRY)
                    with m.Case(ManageOpcode.SET_SHARE):
                        m.d.sync += self.share.eq(request.share)
                        answer(ManageStatus.DONE)
                        with m.If((request.share == 0) | (request.share > WHOLE)):
                            m.d.sync += self.share.eq(self.share)
                            answer(ManageStatus.INVALID_FIELD)
                    with m.Case(ManageOpcode.ADD_SPARE):
                        m.next = "READ-SPARE"
                        with m.If(
                            (request.port >= config.ports)
                            | ~(self.usable & ~self.spares).bit_select(port, 1)
                        ):
                            answer(ManageStatus.DRIVE_UNAVAILABLE)
                        with m.Elif(request.dedicated & ~exists):
                            answer(ManageStatus.NO_ENTRY)
                    with m.Case(ManageOpcode.REMOVE_SPARE):
                        m.next = "READ-SPARE"
                        with m.If(
                            (request.port >= MAX_DRIVES) | ~self.spares.bit_select(port, 1)
                        ):
                            answer(ManageStatus.NO_ENTRY)
                    with m.Case(ManageOpcode.CREATE_ARRAY):
                        m.next = "ASK"
                        with m.If(
                            (jobless & (request.initialise | request.zero))
                            | (request.assumed & request.idle)
                        ):
                            answer(ManageStatus.INVALID_FIELD)
                    with m.Case(ManageOpcode.DELETE_VOLUME):
                        m.next = "ASK"
                    with m.Default():
                        answer(ManageStatus.INVALID_FIELD)

            # A spare is dedicated to one array or to none.
            with m.State("READ-SPARE"):
                m.d.comb += dedicated_read.addr.eq(place)
                m.next = "WRITE-SPARE"

            with m.State("WRITE-SPARE"):
                adds = request.opcode == ManageOpcode.ADD_SPARE
                m.d.comb += dedicated_write.en.eq(1)
                with m.If(adds & request.dedicated & (place == array)):
                    m.d.comb += dedicated_write.data.eq(dedicated_read.data | port_bit)
                m.d.sync += place.eq(place + 1)
                m.next = "READ-SPARE"
                with m.If(place == config.arrays - 1):
                    m.d.sync += [
                        self.spares.eq(Mux(adds, self.spares | port_bit, self.spares & ~port_bit)),
                        everywhere.eq(
                            Mux(
                                adds & ~request.dedicated,
                                everywhere | port_bit,
                                everywhere & ~port_bit,
                            )
                        ),
                    ]
                    m.d.comb += self.rescan.eq(1)
                    answer(ManageStatus.DONE)

            # The tables.
            with m.State("ASK"):
                m.d.comb += self.table_request.valid.eq(1)
                with m.If(self.table_request.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                told = self.table_response.payload
                done = told.status == ManageStatus.DONE
                m.d.comb += self.table_response.ready.eq(1)
                with m.If(self.table_response.valid):
                    m.d.sync += [response.status.eq(told.status), response.index.eq(told.index)]
                    m.next = "RESPOND"
                    with m.Switch(request.opcode):
                        with m.Case(ManageOpcode.CREATE_ARRAY):
                            with m.If(done):
                                m.d.sync += [
                                    request.array.eq(told.index),
                                    order.sync.eq(
                                        Mux(
                                            plain,
                                            Sync.PROVEN,
                                            Mux(request.assumed, Sync.ASSUMED, Sync.NONE),
                                        )
                                    ),
                                ]
                                command(JobOrder.BEGIN)
                        with m.Case(ManageOpcode.DELETE_ARRAY):
                            with m.If(done):
                                m.d.sync += [
                                    self.doubts.bit_select(array, 1).eq(0),
                                    self.recopies.bit_select(array, 1).eq(0),
                                    due.bit_select(array, 1).eq(0),
                                ]
                                m.next = "READ-DEDICATED"
                        with m.Case(*takes_member):
                            with m.If(done):
                                m.d.sync += wanted.eq(0)
                                run(WalkKind.REBUILD)
                                with m.If(by_spare):
                                    # From now on it is a member, whatever it is after that.
                                    m.d.comb += [
                                        dedicated_write.addr.eq(array),
                                        dedicated_write.en.eq(1),
                                    ]
                                    m.d.sync += everywhere.eq(everywhere & ~port_bit)
                            with m.Elif(by_spare):
                                m.d.sync += self.spares.eq(self.spares | chosen)
                                m.next = "REST"
                            with m.Elif(~by_host):
                                # A spare may do; the array is judged again.
                                m.d.comb += [
                                    self.given_up.eq(1 << want.port),
                                    self.rescan.eq(1),
                                ]
                                m.d.sync += wanted.eq(0)
                                m.next = "REST"
                        with m.Case(ManageOpcode.CHECK_EMPTY):
                            with m.If(done):
                                run(request.kind, request.start, request.resume)
                        with m.Case(ManageOpcode.COPY):
                            with m.If(done):
                                run(WalkKind.COPY)
                        with m.Case(ManageOpcode.END_COPY):
                            m.next = "PART"
                        with m.Case(ManageOpcode.SETTLE):
                            m.next = "HAND-OVER"

            # The spares of an array that is gone.
            with m.State("READ-DEDICATED"):
                m.next = "FREE-DEDICATED"

            with m.State("FREE-DEDICATED"):
                m.d.comb += [
                    dedicated_write.addr.eq(array),
                    dedicated_write.data.eq(0),
                    dedicated_write.en.eq(1),
                ]
                m.d.sync += self.spares.eq(self.spares & ~dedicated_read.data)
                command(JobOrder.FORGET)

            # A new array is judged before its rows are walked: others ask what was found of it.
            with m.State("AWAIT"):
                with m.If(self.settled):
                    m.next = "ORDER"

            # The stale drives of an array are trusted, or have failed; its state says so before
            # the job has ended. A ZERO has not ended if a drive has restarted meanwhile.
            with m.State("HAND-OVER"):
                anew = zeroes & self.doubts.bit_select(array, 1)
                m.d.comb += self.handed.eq(self.settled & ~anew)
                with m.If(self.settled):
                    m.next = "REST"

            # A copy has ended: the leaver is free.
            with m.State("PART"):
                leaver = (1 << response.index[: config.port_bits])[:MAX_DRIVES]
                with m.If(by_host):
                    m.d.sync += response.index.eq(0)
                    command(JobOrder.STOP)
                with m.Else():
                    # To be copied anew: the job learns that by an order, if it has not ended.
                    m.d.comb += self.handed.eq(self.outcome != CopyEnd.AGAIN)
                    m.next = "REST"
                with m.If(response.index[7] & (self.outcome == CopyEnd.JOINED)):
                    m.d.comb += self.rescan.eq(1)
                    m.d.sync += [
                        self.spares.eq(self.spares | leaver),
                        everywhere.eq(everywhere | leaver),
                    ]

            with m.State("ORDER"):
                m.d.comb += self.order.valid.eq(1)
                with m.If(self.order.ready):
                    m.next = "RESPOND"
                    with m.If(order.order == JobOrder.DOUBT):
                        tears = order.sync == Sync.NONE
                        m.d.comb += self.doubted.eq(tears)
                        m.d.sync += [
                            self.doubts.bit_select(array, 1).eq(0),
                            self.recopies.bit_select(array, 1).eq(0),
                            due.bit_select(array, 1).eq(tears),
                        ]
                        m.next = "REST"
                    with m.Elif(
                        (order.order == JobOrder.BEGIN) & (request.zero | ~(plain | jobless))
                    ):
                        run(Mux(request.zero, WalkKind.ZERO.value, WalkKind.RESYNC.value))
                        m.next = "AWAIT"
                    with m.Elif(~by_host):
                        m.next = "REST"

            with m.State("RESPOND"):
                m.d.comb += self.response.valid.eq(1)
                with m.If(self.response.ready):
                    m.next = "REST"

            waits = (
                (
                    fsm.ongoing("REST")
                    & ~self.request.valid
                    & ~self.rebuilt
                    & ~wanted
                    & ~self.doubts.any()
                    & ~startable.any()
                )
                | (fsm.ongoing("SETTLE") & ~self.settled)
                | (fsm.ongoing("HAND-OVER") & ~self.settled)
                | (fsm.ongoing("AWAIT") & ~self.settled)
                | (self.order.valid & ~self.order.ready)
                | (fsm.ongoing("LISTEN") & ~self.table_response.valid)
                | (self.response.valid & ~self.response.ready)
            )
            m.d.comb += self.busy.eq(~waits)
        with m.If(self.changed | (self.rescan & ~fsm.ongoing("CHOOSE"))):
            m.d.sync += [passed.eq(0), as_judged.eq(0)]
        # After the states: what is new is not forgotten.
        for number in range(config.arrays):
            with m.If(self.unfinished[number]):
                m.d.sync += due[number].eq(1)
        with m.If(self.judged & found.valid & found.loses):
            m.d.sync += [
                self.doubts.bit_select(found.array, 1).eq(1),
                redundant.bit_select(found.array, 1).eq(found.redundant),
            ]
            with m.If(found.recopies):
                m.d.sync += self.recopies.bit_select(found.array, 1).eq(1)
        return m
