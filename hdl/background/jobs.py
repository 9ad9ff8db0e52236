"""Jobs: what is done with the rows of each array, how far it has come, and what it found."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.background.rows import array_row, stretch
from hdl.background.walker import SliceEnd, finding, slice_request
from hdl.config import BLOCK_NUMBER_BITS, TIME_BITS, Config
from hdl.flow.manage import CopyEnd
from hdl.flow.walk import WalkKind, WalkResult
from hdl.kit.table import TableRead

SLICE_ROWS = 256
"""Rows of an array after which another array's job has its turn."""

MOST_FAILURES = 31
"""Writes that drives may refuse before a job is given up; each gives up a drive."""

SETTLE_CYCLES = 31
"""Longest from a drive's being reported to the judgement of its array being under way."""


class JobState(enum.Enum, shape=3):
    """What became of the last job of an array."""

    NONE = 0
    RUNNING = 1
    DONE = 2
    STOPPED = 3
    """The host stopped it; it can go on where it was."""
    FAILED = 4
    """The drives that it rebuilt or copied to were lost, or too many writes failed, or the array
    has FAILED."""


class JobOrder(enum.Enum, shape=3):
    """What is to be done with the job of an array."""

    START = 0
    STOP = 1
    FORGET = 2
    """The array is gone: no job."""
    BEGIN = 3
    """The array is new: no job, and no row is in sync, or every one."""
    DOUBT = 4
    """What was written to the array may be lost: a RESYNC or ZERO that has not ended begins anew,
    and a COPY of a drive that may have lost it. Unless there is nothing to be in sync, rows that
    are marked may be so no more."""


class Sync(enum.Enum, shape=2):
    """Whether the rows of an array satisfy their equations, or copies are alike."""

    NONE = 0
    """Rows from the boundary on may not, unless the host has written them since."""
    PROVEN = 1
    """All do: a job has made them so, or has found them so, or there is nothing to satisfy."""
    ASSUMED = 2
    """The host has said so as it created the array."""


def job_order(config: Config) -> data.StructLayout:
    """START: ``kind`` from row ``first`` or, with ``resume``, from where the last job was.

    REBUILD and SALVAGE always go on at the boundary. Of an array that is not in sync RESYNC and
    ZERO begin at its sync boundary at the latest, and instead of a REBUILD there is a RESYNC from
    there on first, unless the array has FAILED. With ``every`` a RESYNC follows no marks, unless it
    goes on. A job that is running is replaced, but a COPY only once the copy has ended. BEGIN:
    ``sync`` is that of the array. DOUBT: it is NONE, or PROVEN if there is nothing to be in sync.
    """
    return data.StructLayout(
        {
            "order": JobOrder,
            "array": config.array_bits,
            "kind": WalkKind,
            "first": BLOCK_NUMBER_BITS,
            "resume": 1,
            "every": 1,
            "sync": Sync,
        }
    )


def job() -> data.StructLayout:
    """The job of an array.

    ``row``: all before it are done. ``mended``, ``mismatched``, ``lost``: rows that ended so.
    ``began``, ``ended``: times in cycles. ``whole``: it began with row 0.
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

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    order
        Changes; taken when made, after the rows on their way have ended.
    recopies
        Bit an array: with DOUBT, its COPY is of a drive that may have lost something.
    unfinished
        Bit an array, a pulse: its RESYNC has ended as the array has FAILED.
    running, rebuilds, zeroes, copies, resyncs
        Bit an array: it has a job; that is REBUILD or SALVAGE, ZERO, COPY, RESYNC.
    rebuilding, halted, optimal, hopeless, settled
        Bit an array: it has stale drives; its copy cannot go on; it is OPTIMAL, FAILED; whether
        that is up to date.
    unsynced, assumed, torn
        Bit an array: `Sync` is NONE, is ASSUMED; it is NONE, but rows that are not marked are in
        sync.
    rebuilt, rebuilt_array, handed
        Held: the stale drives of an array have all their blocks, or after a ZERO all drives have;
        withdrawn while there is an ``order``. ``handed`` pulses when they are no longer stale, or
        have been flushed; ``outcome`` then says whether all of them are trusted (JOINED).
        Of a COPY: it ends, with all rows if ``complete``; ``outcome`` says with ``handed``
        what has become of it. If its drive is the member, but stale, it goes on as a REBUILD.
    ended
        A pulse when a job has ended.
    slice, slice_end, stop, advanced, boundary, finding, found
        Of `hdl.background.walker.Walker`; ``found``: a finding is taken.
    rewind
        Arrays without a job that moves the boundary: nothing of their stale drives is rebuilt yet,
        from the cycle after it is taken on. Waits only while boundaries of other arrays move.
    boundary_read
        First row of an array that is not rebuilt; only stale drives need it.
    sync_read
        First row of an array that may not be in sync; only arrays that are ``unsynced`` need it.
        For admission, reads and the host. RESYNC and ZERO move it on, BEGIN and DOUBT back.
    job_read
        Jobs, for the host.
    ask, answer
        Of `hdl.background.intent.Intent`: the rows to be rebuilt next (not there without
        `Config.intent_chunks`: then it walks all).
    now
        Time in cycles.

    An array that was in sync and is so no more (DOUBT) is ``torn``: a RESYNC follows the marks, as
    a REBUILD does. Its marks must not be dropped.

    Jobs of several arrays take turns of `SLICE_ROWS` rows. A RESYNC that has ended is followed by a
    REBUILD if there are stale drives. Either fails once the array has FAILED, before its last row
    has ended: what they would make unreadable may yet be of use. The boundaries stay. SALVAGE goes
    on, and is never begun but by order. A CHECK of every row that finds nothing, with all
    drives there, proves an array that was ASSUMED, and so does a RESYNC or ZERO of every row.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "order": In(stream.Signature(job_order(config))),
                "recopies": In(config.arrays),
                "unfinished": Out(config.arrays),
                "running": Out(config.arrays),
                "rebuilds": Out(config.arrays),
                "zeroes": Out(config.arrays),
                "copies": Out(config.arrays),
                "resyncs": Out(config.arrays),
                "rebuilding": In(config.arrays),
                "halted": In(config.arrays),
                "optimal": In(config.arrays),
                "hopeless": In(config.arrays),
                "unsynced": Out(config.arrays),
                "assumed": Out(config.arrays),
                "torn": Out(config.arrays),
                "settled": In(1),
                "rebuilt": Out(1),
                "rebuilt_array": Out(config.array_bits),
                "handed": In(1),
                "complete": Out(1),
                "outcome": In(CopyEnd),
                "ended": Out(1),
                "slice": Out(stream.Signature(slice_request(config))),
                "slice_end": In(stream.Signature(SliceEnd)),
                "stop": Out(1),
                "advanced": In(1),
                "boundary": In(BLOCK_NUMBER_BITS),
                "finding": In(finding(config)),
                "found": In(1),
                "rewind": In(stream.Signature(config.array_bits)),
                "boundary_read": In(TableRead(config.array_bits, BLOCK_NUMBER_BITS)).array(2),
                "sync_read": In(TableRead(config.array_bits, BLOCK_NUMBER_BITS)).array(3),
                "job_read": In(TableRead(config.array_bits, job())),
                "now": In(TIME_BITS),
                "busy": Out(1),
            }
            | (
                {
                    "ask": Out(stream.Signature(array_row(config))),
                    "answer": In(stream.Signature(stretch())),
                }
                if config.intent_chunks
                else {}
            )
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.jobs = jobs = Memory(shape=job(), depth=config.arrays, init=[])
        m.submodules.boundaries = boundaries = Memory(
            shape=BLOCK_NUMBER_BITS, depth=config.arrays, init=[]
        )
        m.submodules.syncs = syncs = Memory(
            shape=BLOCK_NUMBER_BITS, depth=config.arrays, init=[]
        )
        read, write = jobs.read_port(), jobs.write_port()
        shown = jobs.read_port()
        boundary_read, boundary_write = boundaries.read_port(), boundaries.write_port()
        sync_read, sync_write = syncs.read_port(), syncs.write_port()
        for memory, readers in ((boundaries, self.boundary_read), (syncs, self.sync_read)):
            for reader in readers:
                port = memory.read_port()
                m.d.comb += [port.addr.eq(reader.address), reader.data.eq(port.data)]
        m.d.comb += [shown.addr.eq(self.job_read.address), self.job_read.data.eq(shown.data)]

        order = self.order.payload
        array = Signal(config.array_bits)
        current = Signal(job())
        rows = Signal(range(SLICE_ROWS + 1))
        pause = Signal(range(SETTLE_CYCLES + 1))
        runs = self.running.bit_select(array, 1)
        others = Signal()
        complete = self.complete
        dirty = Signal()
        rebuild = Signal()
        # It leaves rows that are in sync, whatever they were.
        syncs_rows = Signal()
        unsynced = self.unsynced.bit_select(array, 1)
        assumed = self.assumed.bit_select(array, 1)
        torn = self.torn.bit_select(array, 1)
        asked = Signal(BLOCK_NUMBER_BITS)
        resync = current.kind == WalkKind.RESYNC
        past_tolerance = self.hopeless.bit_select(array, 1)
        hopeless = (resync | (current.kind == WalkKind.REBUILD)) & past_tolerance
        # Of an array that has failed nothing can be made consistent any more.
        resyncs_first = unsynced & ~past_tolerance
        has_stale = self.rebuilding.bit_select(array, 1)
        copies = current.kind == WalkKind.COPY
        # The boundary of `array` moves.
        moves, restarts = Signal(), Signal()
        # The drives are no longer those that the job is about.
        pointless = Signal()
        m.d.comb += [
            pointless.eq(
                self.settled
                & (
                    (rebuild & ~has_stale)
                    | (copies & self.halted.bit_select(array, 1))
                    | hopeless
                )
            ),
            syncs_rows.eq(resync | (current.kind == WalkKind.ZERO)),
            asked.eq(Mux(order.resume, read.data.row, order.first)),
            sync_read.addr.eq(array),
            sync_write.addr.eq(array),
            sync_write.data.eq(self.boundary),
            rebuild.eq(
                (current.kind == WalkKind.REBUILD) | (current.kind == WalkKind.SALVAGE)
            ),
            read.addr.eq(array),
            write.addr.eq(array),
            write.data.eq(current),
            boundary_read.addr.eq(array),
            self.rewind.ready.eq(~moves),
            boundary_write.addr.eq(Mux(moves, array, self.rewind.payload)),
            boundary_write.data.eq(Mux(moves & ~restarts, self.boundary, 0)),
            boundary_write.en.eq(moves | self.rewind.valid),
            self.slice.payload.kind.eq(current.kind),
            self.slice.payload.array.eq(array),
            self.slice.payload.first.eq(current.row),
            self.rebuilt_array.eq(array),
        ]
        m.d.sync += others.eq((self.running & ~(1 << array)).any())

        def mark(state):
            """Sets the bits of the job in `array`, whose entry will be ``state``."""
            starts = state == JobState.RUNNING
            m.d.sync += [
                current.state.eq(state),
                runs.eq(starts),
                self.rebuilds.bit_select(array, 1).eq(starts & rebuild),
                self.zeroes.bit_select(array, 1).eq(starts & (current.kind == WalkKind.ZERO)),
                self.copies.bit_select(array, 1).eq(starts & (current.kind == WalkKind.COPY)),
                self.resyncs.bit_select(array, 1).eq(starts & resync),
            ]

        def end(state):
            mark(state)
            m.d.comb += self.ended.eq(1)
            m.d.sync += current.ended.eq(self.now)
            m.next = "STORE"

        def go_on_as_rebuild():
            """After a COPY of an array that is not in sync it goes on as RESYNC at first."""
            mark(JobState.RUNNING)
            first = copies & resyncs_first
            m.d.sync += [
                current.kind.eq(Mux(first, WalkKind.RESYNC, WalkKind.REBUILD)),
                current.row.eq(Mux(first, sync_read.data, boundary_read.data)),
                current.whole.eq(0),
                self.rebuilds.bit_select(array, 1).eq(~first),
                self.resyncs.bit_select(array, 1).eq(first),
                self.copies.bit_select(array, 1).eq(0),
            ]
            m.d.comb += self.ended.eq(0)
            m.next = "STORE"

        with m.FSM(name="jobs") as fsm:
            # Memories keep their contents over a reset.
            with m.State("CLEAR"):
                m.d.comb += [write.data.eq(0), write.en.eq(1)]
                m.d.sync += array.eq(array + 1)
                with m.If(array == config.arrays - 1):
                    m.next = "REST"

            with m.State("REST"):
                with m.If(self.order.valid):
                    m.d.sync += array.eq(order.array)
                    m.next = "READ-ORDERED"
                with m.Elif(self.running.any()):
                    m.d.sync += array.eq(array + 1)
                    with m.If(array == config.arrays - 1):
                        m.d.sync += array.eq(0)
                    m.next = "SEEK"

            # Orders.
            with m.State("READ-ORDERED"):
                m.next = "LOAD-ORDERED"

            with m.State("LOAD-ORDERED"):
                m.d.sync += current.eq(read.data)
                m.next = "STOP"
                with m.Switch(order.order):
                    with m.Case(JobOrder.START):
                        m.d.sync += [
                            current.eq(0),
                            current.kind.eq(order.kind),
                            current.began.eq(self.now),
                            current.row.eq(asked),
                            current.whole.eq(asked == 0),
                        ]
                        of_rebuild = order.kind == WalkKind.REBUILD
                        with m.If(of_rebuild | (order.kind == WalkKind.SALVAGE)):
                            m.d.sync += current.row.eq(boundary_read.data)
                        makes = (order.kind == WalkKind.RESYNC) | (order.kind == WalkKind.ZERO)
                        late = asked >= sync_read.data
                        first_resync = of_rebuild & resyncs_first
                        with m.If(first_resync | (unsynced & makes & late)):
                            m.d.sync += [
                                current.row.eq(sync_read.data),
                                current.whole.eq(sync_read.data == 0),
                            ]
                        with m.If(first_resync):
                            m.d.sync += current.kind.eq(WalkKind.RESYNC)
                        fresh = order.every & ~order.resume
                        with m.If((order.kind == WalkKind.RESYNC) & fresh):
                            m.d.sync += torn.eq(0)
                        m.next = "START"
                    with m.Case(JobOrder.FORGET):
                        m.d.sync += current.eq(0)
                        m.next = "FORGET"
                    with m.Case(JobOrder.BEGIN):
                        m.d.comb += [sync_write.data.eq(0), sync_write.en.eq(1)]
                        m.d.sync += [
                            current.eq(0),
                            unsynced.eq(order.sync == Sync.NONE),
                            assumed.eq(order.sync == Sync.ASSUMED),
                            torn.eq(0),
                        ]
                        m.next = "FORGET"
                    with m.Case(JobOrder.DOUBT):
                        with m.If(order.sync == Sync.NONE):
                            m.d.comb += [sync_write.data.eq(0), sync_write.en.eq(1)]
                            # Of an array that was never in sync all rows may be wrong.
                            # So may those that a RESYNC of all rows has not made right yet.
                            stopped = read.data.state == JobState.STOPPED
                            walks_all = (runs | stopped) & (read.data.kind == WalkKind.RESYNC)
                            m.d.sync += [
                                torn.eq(torn | ~(unsynced | walks_all)),
                                unsynced.eq(1),
                            ]
                        with m.If(
                            (read.data.kind == WalkKind.RESYNC) | (read.data.kind == WalkKind.ZERO)
                        ):
                            m.d.sync += [current.row.eq(0), current.whole.eq(1)]
                        m.next = "DOUBT"

            with m.State("START"):
                m.d.comb += self.order.ready.eq(1)
                mark(JobState.RUNNING)
                m.next = "STORE"

            with m.State("STOP"):
                m.d.comb += self.order.ready.eq(1)
                m.next = "REST"
                with m.If(current.state == JobState.RUNNING):
                    end(JobState.STOPPED)

            with m.State("FORGET"):
                m.d.comb += self.order.ready.eq(1)
                mark(JobState.NONE)
                m.next = "STORE"

            with m.State("DOUBT"):
                m.d.comb += self.order.ready.eq(1)
                # The member of a copy may have lost what the other drive has.
                again = copies & runs & self.recopies.bit_select(array, 1)
                m.d.comb += [restarts.eq(again), moves.eq(restarts)]
                with m.If(again):
                    m.d.sync += current.row.eq(0)
                m.next = "STORE"

            with m.State("STORE"):
                m.d.comb += write.en.eq(1)
                m.next = "REST"

            # A turn.
            with m.State("SEEK"):
                m.next = "LOAD"
                with m.If(~runs):
                    m.next = "REST"

            with m.State("LOAD"):
                m.d.sync += [current.eq(read.data), rows.eq(0)]
                m.next = "FIND" if config.intent_chunks else "BEGIN"

            if config.intent_chunks:
                m.d.comb += [
                    self.ask.payload.array.eq(array),
                    self.ask.payload.row.eq(current.row),
                ]
                follows = rebuild | (resync & torn)
                with m.State("FIND"):
                    m.d.comb += self.ask.valid.eq(follows)
                    m.d.sync += self.slice.payload.end.eq(0)
                    with m.If(~follows):
                        m.next = "BEGIN"
                    with m.Elif(self.ask.ready):
                        m.next = "FOLLOW"

                with m.State("FOLLOW"):
                    m.d.comb += self.answer.ready.eq(1)
                    with m.If(self.answer.valid):
                        m.d.sync += [
                            current.row.eq(self.answer.payload.first),
                            self.slice.payload.end.eq(self.answer.payload.end),
                        ]
                        m.next = "BEGIN"

            with m.State("BEGIN"):
                m.d.comb += self.slice.valid.eq(1)
                with m.If(self.slice.ready):
                    m.next = "WALK"

            with m.State("WALK"):
                m.d.comb += [
                    self.stop.eq(
                        self.order.valid
                        | (others & (rows == SLICE_ROWS))
                        | pointless
                    ),
                    write.en.eq(dirty),
                    moves.eq((rebuild | copies) & self.advanced),
                    sync_write.en.eq(
                        syncs_rows & self.advanced & (self.boundary > sync_read.data)
                    ),
                    self.slice_end.ready.eq(1),
                ]
                m.d.sync += [dirty.eq(self.advanced | self.found), current.row.eq(self.boundary)]
                with m.If(self.advanced & (rows != SLICE_ROWS)):
                    m.d.sync += rows.eq(rows + 1)
                with m.If(self.found):
                    for name, result in (
                        ("mended", WalkResult.MENDED),
                        ("mismatched", WalkResult.MISMATCH),
                        ("lost", WalkResult.LOST),
                    ):
                        counter = current[name]
                        with m.If(self.finding.result == result):
                            m.d.sync += counter.eq(counter + 1)
                with m.If(self.slice_end.valid):
                    m.d.sync += [
                        current.row.eq(self.slice_end.payload.row),
                        complete.eq(self.slice_end.payload.complete),
                        pause.eq(0),
                    ]
                    m.next = "STORE"
                    with m.If(self.slice_end.payload.failed):
                        m.d.sync += current.failures.eq(current.failures + 1)
                    with m.If(
                        self.slice_end.payload.complete
                        | self.slice_end.payload.failed
                        | pointless
                    ):
                        m.next = "SETTLE"
                    with m.If(self.slice_end.payload.complete):
                        m.d.comb += moves.eq(rebuild | copies)
                        with m.If(syncs_rows):
                            m.d.sync += [unsynced.eq(0), torn.eq(0)]
                            with m.If(current.whole & ~(resync & torn)):
                                m.d.sync += assumed.eq(0)

            # What has become of the drives?
            with m.State("SETTLE"):
                m.d.sync += pause.eq(pause + 1)
                with m.If(pause == SETTLE_CYCLES):
                    m.next = "JUDGE"

            with m.State("JUDGE"):
                m.d.sync += pause.eq(SETTLE_CYCLES)
                with m.If(self.settled):
                    with m.If(
                        copies & (pointless | complete | (current.failures == MOST_FAILURES))
                    ):
                        m.next = "HAND-OVER"
                    with m.Elif(
                        (rebuild & ~has_stale)
                        | (hopeless & ~complete)
                        | (current.failures == MOST_FAILURES)
                    ):
                        end(JobState.FAILED)
                        m.d.comb += self.unfinished.eq((resync & past_tolerance) << array)
                    with m.Elif(~complete):
                        m.next = "STORE"
                    with m.Elif(rebuild | (current.kind == WalkKind.ZERO)):
                        m.next = "HAND-OVER"
                    with m.Elif(resync & has_stale):
                        go_on_as_rebuild()
                    with m.Else():
                        end(JobState.DONE)
                        nothing = ~Cat(current.mended, current.mismatched, current.lost).any()
                        checks = (current.kind == WalkKind.CHECK) & current.whole & nothing
                        with m.If(checks & self.optimal.bit_select(array, 1)):
                            m.d.sync += assumed.eq(0)

            with m.State("HAND-OVER"):
                m.d.comb += self.rebuilt.eq(~self.order.valid)
                with m.If(self.handed):
                    end(JobState.DONE)
                    zeroed = current.kind == WalkKind.ZERO
                    with m.If((self.outcome == CopyEnd.RELEASED) | (zeroed & past_tolerance)):
                        end(JobState.FAILED)
                    with m.If(copies & (self.outcome == CopyEnd.STALE)):
                        go_on_as_rebuild()
                with m.Elif(self.order.valid):
                    m.next = "STORE"

            waits = (
                (fsm.ongoing("REST") & ~self.order.valid & ~self.running.any())
                | (fsm.ongoing("BEGIN") & ~self.slice.ready)
                | (fsm.ongoing("HAND-OVER") & ~self.handed & ~self.order.valid)
                | (
                    fsm.ongoing("WALK")
                    & ~self.slice_end.valid
                    & ~self.advanced
                    & ~self.found
                    & ~dirty
                )
            )
            m.d.comb += self.busy.eq(~waits | self.rewind.valid)
        return m
