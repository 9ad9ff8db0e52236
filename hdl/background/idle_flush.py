"""Flushes of arrays that nobody writes any more, so that no mark stays for ever."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.background.epochs import SETTLE_CYCLES, IdleEpoch
from hdl.background.intent import flight, marking
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, TIME_BITS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.table_read import geometry_read, member_read
from hdl.kit.clock import NEVER, earlier, passed
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.table import TableRead


class IdleFlush(wiring.Component):
    """Flushes each array that has marks and has not been written for a while.

    A host that never sends a FLUSH would leave everything marked that it has written, and a power
    cut would cost a RESYNC of all of that. So an array that is OPTIMAL, has marks, and of which no
    row has begun or ceased to be written for ``marks_idle_us`` is flushed, at most twice that time
    after the last one. It is an epoch of `hdl.background.epochs`, like the FLUSH of a host. If a
    drive does not store what it has, or the tables change meanwhile, the marks stay.

    Any array that is ``able`` is flushed as well, so that it is ``idle``: all that was written is
    stored, and no row is being written. That is so until the next row is marked. Its superblocks
    may say that it is clean then. Rows that a walk writes do not count: it leaves them as
    consistent as it has found them. They are marked all the same, so the marks of an array that is
    walked are flushed again and again.

    So is an array of which no member has failed and some are being rebuilt (``partial``), every
    ``checkpoint_us`` and whether it is being written or not. Marks of chunks that have been rebuilt
    are needless then. So the marks are a checkpoint of the rebuild, once they are on the drives.

    An array whose drives do not store what they have is flushed again once it has been written, or
    has not been OPTIMAL or ``able`` for a moment. If anything changes meanwhile it is flushed again
    after ``marks_idle_us``.

    All drives of the array that have not failed are asked. Arrays are flushed one after the other.
    A drive that hangs delays those behind it by what `hdl.drive.recovery.ladder` takes, and nothing
    else.

    A flush takes 2 cycles a member, 2 a row slot and 80, and what the drives and
    `hdl.drive.flusher.Flusher` take.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    written
        A pulse. A row of this array is marked, as it is about to be written or as it retires. Or
        marks come that its drives have: whoever brings it up is not through yet.
    made
        A pulse. This array is new.
    marked
        One bit per array. It has marks.
    optimal
        One bit per array. It is OPTIMAL, and marks may be dropped.
    partial
        One bit per array. No member has failed, some are being rebuilt, and marks may be dropped.
    able
        One bit per array. It is there and has not failed, its rows are in sync, and none of its
        drives may have lost anything.
    unsynced
        One bit per array. Its rows are not in sync.
    failed
        One bit per port. Its drive has failed.
    idle
        One bit per array.
    flight_read
        What each row slot writes.
    boundary_read
        The first row of each array that has not been rebuilt.
    changing
        The tables are being changed, or are about to be.
    epoch
        Epochs of the arrays that are flushed.
    geometry_read
        Table of the arrays.
    member_read
        Table of the members.
    ask, told
        Those of a user of `hdl.drive.flusher.Flusher`.
    now, deadline
        Time in cycles. When arrays are looked at, or `hdl.kit.clock.NEVER`.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "written": In(Pulse(marking(config))),
                "made": In(Pulse(config.array_bits)),
                "marked": In(config.arrays),
                "optimal": In(config.arrays),
                "partial": In(config.arrays),
                "able": In(config.arrays),
                "unsynced": In(config.arrays),
                "failed": In(MAX_DRIVES),
                "idle": Out(config.arrays),
                "flight_read": Out(TableRead(config.row_slot_bits, flight(config))),
                "boundary_read": Out(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "changing": In(1),
                "epoch": Out(IdleEpoch(config)),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "ask": Out(stream.Signature(MAX_DRIVES)),
                "told": In(stream.Signature(MAX_DRIVES)),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=NEVER),
                "busy": Out(1),
            }
        )
        self._idle_cycles = config.marks_idle_us * config.clock_hz // 1_000_000
        self._checkpoint_cycles = config.checkpoint_us * config.clock_hz // 1_000_000
        # A bit an array. It has been written since arrays were last looked at; it is to be flushed;
        # it has been, and has not been written since. It was OPTIMAL, or able, a cycle ago.
        self._recent = Signal(config.arrays)
        self._due = Signal(config.arrays)
        self._tried = Signal(config.arrays)
        self._was_optimal = Signal(config.arrays)
        self._was_able = Signal(config.arrays)
        # Arrays are looked at then, and those that are being rebuilt then.
        self._times = Signal()
        self._look_at = Signal(TIME_BITS)
        self._rebuilds = Signal()
        self._checkpoint_at = Signal(TIME_BITS)

        # The array at hand, its member, and the ports of the members before that.
        self._array = Signal(config.array_bits)
        self._role = Signal(WIDTH_BITS)
        self._ports = Signal(MAX_DRIVES)
        # The flush is an epoch. Since it began the tables have changed, or the array has not been
        # able all the time. A row of it is or was being written. Its drives have been heard since.
        self._of_epoch = Signal()
        self._changed = Signal()
        self._unable = Signal()
        self._moves = Signal()
        self._slot = Signal(range(config.rows))
        self._pause = Signal(range(SETTLE_CYCLES + 1))

    @property
    def _has_needless(self) -> Value:
        """Arrays whose marks a flush would make needless."""
        return self.marked & (self.optimal | self.partial)

    @property
    def _waiting(self) -> Value:
        """Arrays that will be flushed once they have been idle for long enough."""
        needless = self.marked & self.optimal
        return (needless | (self.able & ~self.idle)) & ~self._tried

    @property
    def _rebuilt(self) -> Value:
        """Arrays that will be flushed while they are being rebuilt. Rebuilt rows are not told."""
        return self.marked & self.partial

    def elaborate(self, platform) -> Module:
        m = Module()
        array, role = self._array, self._role
        member = self.member_read.address
        m.d.comb += [
            self.epoch.array.eq(array),
            self.geometry_read.address.eq(array),
            member.array.eq(array),
            member.position.eq(role),
            self.ask.payload.eq(self._ports),
            self.flight_read.address.eq(self._slot),
            self.boundary_read.address.eq(array),
            self.epoch.rows.eq(self.boundary_read.data),
        ]
        anew = (self.optimal & ~self._was_optimal) | (self.able & ~self._was_able)
        m.d.sync += [
            self._tried.eq(self._tried & ~anew),
            self._was_optimal.eq(self.optimal),
            self._was_able.eq(self.able),
        ]
        with m.FSM(name="flush_idle") as fsm:
            self._rest(m)
            self._begin(m)
            self._find_members(m)
            self._find_rows(m)
            self._flush(m)
            self._settle(m)
            waits = (
                (fsm.ongoing("REST") & ~self._due.any())
                | (fsm.ongoing("BEGIN") & self._wants & ~self._begins)
                | (fsm.ongoing("ASK") & ~self.ask.ready)
                | (fsm.ongoing("LISTEN") & ~self.told.valid)
            )
            begun = ~(fsm.ongoing("REST") | fsm.ongoing("LOOK") | fsm.ongoing("BEGIN"))
        with m.If(begun & self.changing):
            m.d.sync += self._changed.eq(1)
        with m.If(begun & ~self.able.bit_select(array, 1)):
            m.d.sync += self._unable.eq(1)
        self._watch(m)
        starts = (self._waiting.any() & ~self._times) | (self._rebuilt.any() & ~self._rebuilds)
        falls = (self.idle & self.unsynced).any() | self.written.valid | self.made.valid
        moves = starts | self._ticks | self._checks | falls | (anew & self._tried).any()
        m.d.comb += self.busy.eq(~waits | moves)
        return m

    def _watch(self, m: Module) -> None:
        """Which arrays are written, and which have not been for long enough."""
        self._ticks = Signal()
        looks_at = Mux(self._times, self._look_at, NEVER)
        checkpoint_at = Mux(self._rebuilds, self._checkpoint_at, NEVER)
        first = earlier(self.now, looks_at, checkpoint_at)
        self._checks = checks = Signal()
        m.d.comb += [
            self._ticks.eq(self._times & passed(self.now, self._look_at)),
            checks.eq(self._rebuilds & passed(self.now, self._checkpoint_at)),
            self.deadline.eq(Mux(first, looks_at, checkpoint_at)),
        ]
        with m.If(checks):
            m.d.sync += self._rebuilds.eq(0)
        with m.Elif(self._rebuilt.any() & ~self._rebuilds):
            m.d.sync += [
                self._rebuilds.eq(1),
                self._checkpoint_at.eq(self.now + self._checkpoint_cycles),
            ]
        due = Mux(self._ticks, self._waiting & ~self._recent, 0) | Mux(checks, self._rebuilt, 0)
        with m.If(self._ticks | checks):
            m.d.sync += self._due.eq(self._due | due)
        with m.If(self._ticks):
            m.d.sync += [
                self._times.eq(0),
                self._recent.eq(0),
            ]
        with m.Elif(self._waiting.any() & ~self._times):
            m.d.sync += [self._times.eq(1), self._look_at.eq(self.now + self._idle_cycles)]
        # Last, so that nothing undoes it.
        written = self.written.payload
        with m.If(self.written.valid):
            m.d.sync += self._tried.bit_select(written.array, 1).eq(0)
            with m.If(~written.walk):
                m.d.sync += [
                    self._recent.bit_select(written.array, 1).eq(1),
                    self.idle.bit_select(written.array, 1).eq(0),
                ]
                with m.If(written.array == self._array):
                    m.d.sync += self._moves.eq(1)
        with m.If(self.made.valid):
            m.d.sync += [
                self.idle.bit_select(self.made.payload, 1).eq(0),
                self._tried.bit_select(self.made.payload, 1).eq(0),
            ]
        for number, unsynced in enumerate(self.unsynced):
            with m.If(unsynced):
                m.d.sync += self.idle[number].eq(0)

    def _rest(self, m: Module) -> None:
        """The states REST, an array is chosen, and LOOK, up to where it has been rebuilt."""
        with m.State("REST"):
            m.d.sync += [
                self._array.eq(lowest_bit(m, self._due, "due")),
                self._role.eq(0),
                self._ports.eq(0),
                self._slot.eq(0),
                self._changed.eq(0),
                self._unable.eq(0),
                self._moves.eq(0),
                self._pause.eq(0),
            ]
            with m.If(self._due.any()):
                m.next = "LOOK"

        with m.State("LOOK"):
            m.next = "BEGIN"

    @property
    def _wants(self) -> Value:
        """The array at hand is to be flushed."""
        array = self._array
        return (self._has_needless | (self.able & ~self.idle)).bit_select(array, 1)

    @property
    def _begins(self) -> Value:
        """Its flush begins."""
        needs_epoch = self._has_needless.bit_select(self._array, 1)
        return ~self.changing & Mux(needs_epoch, self.epoch.begun, self._wants)

    def _begin(self, m: Module) -> None:
        """The state BEGIN: if there are marks the epoch begins, before a drive is asked."""
        array, needs_epoch = self._array, self._has_needless.bit_select(self._array, 1)
        with m.State("BEGIN"):
            m.d.comb += self.epoch.begins.eq(~self.changing & needs_epoch)
            m.d.sync += self._of_epoch.eq(needs_epoch)
            with m.If(self._begins):
                m.d.sync += self._tried.bit_select(array, 1).eq(1)
                m.next = "FIND"
            with m.Elif(~self._wants):
                m.next = "REST"
            with m.If(self._begins | ~self._wants):
                m.d.sync += self._due.bit_select(array, 1).eq(0)

    def _find_members(self, m: Module) -> None:
        """The states FIND and NOTE: which drives the array has."""
        role, shape = self._role, self.geometry_read.data
        with m.State("FIND"):
            m.next = "NOTE"

        with m.State("NOTE"):
            port = self.member_read.data
            m.d.sync += [
                self._ports.bit_select(port, 1).eq(~self.failed.bit_select(port, 1)),
                role.eq(role + 1),
            ]
            m.next = "FIND"
            with m.If(role == (shape.width * shape.spans)[:WIDTH_BITS] - 1):
                m.next = "SEEK"

    def _find_rows(self, m: Module) -> None:
        """The states SEEK and SEE: whether a row of the array is being written."""
        found, slot = self.flight_read.data, self._slot
        with m.State("SEEK"):
            m.next = "SEE"

        with m.State("SEE"):
            with m.If(found.any & ~found.walk & (found.array == self._array)):
                m.d.sync += self._moves.eq(1)
            m.d.sync += slot.eq(slot + 1)
            m.next = "SEEK"
            with m.If(slot == self._config.rows - 1):
                m.next = "ASK"

    def _flush(self, m: Module) -> None:
        """The states ASK and LISTEN: the drives are flushed."""
        array, changed = self._array, self._changed | self.changing
        stored = (self._ports & ~self.told.payload) == 0
        with m.State("ASK"):
            m.d.comb += self.ask.valid.eq(1)
            with m.If(self.ask.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            m.d.comb += self.told.ready.eq(1)
            with m.If(self.told.valid):
                m.d.comb += [
                    self.epoch.ended.eq(self._of_epoch),
                    self.epoch.good.eq(stored & ~changed),
                ]
                m.next = "REST"
                with m.If(stored):
                    m.next = "SETTLE"
                with m.If(changed):
                    m.d.sync += self._tried.bit_select(array, 1).eq(0)

    def _settle(self, m: Module) -> None:
        """The state SETTLE: until a drive that may have lost something meanwhile is known."""
        array, pause = self._array, self._pause
        with m.State("SETTLE"):
            m.d.sync += pause.eq(pause + 1)
            with m.If(pause == SETTLE_CYCLES):
                unable = self._unable | ~self.able.bit_select(array, 1)
                changed = self._changed | self.changing
                with m.If(~(unable | changed | self._moves)):
                    m.d.sync += self.idle.bit_select(array, 1).eq(1)
                with m.If(changed):
                    m.d.sync += self._tried.bit_select(array, 1).eq(0)
                m.next = "REST"
