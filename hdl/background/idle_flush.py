"""Flushes of arrays that nobody writes any more, so that no mark stays for ever."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.background.epochs import IdleEpoch
from hdl.config import MAX_DRIVES, TIME_BITS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.table_read import geometry_read, member_read
from hdl.kit.clock import NEVER, passed
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse


class IdleFlush(wiring.Component):
    """Flushes each array that has marks and has not been written for a while.

    A host that never sends a FLUSH would leave everything marked that it has written, and a power
    cut would cost a RESYNC of all of that. So an array that is OPTIMAL, has marks, and of which no
    row has begun or ceased to be written for ``marks_idle_us`` is flushed, at most twice that time
    after the last one. It is an epoch of `hdl.background.epochs`, like the FLUSH of a host. If a
    drive does not store what it has, or the tables change meanwhile, the marks stay. The array is
    flushed again once it has been written, or has not been OPTIMAL for a moment.

    All drives of the array are asked. Arrays are flushed one after the other. A drive that hangs
    delays those behind it by what `hdl.drive.recovery.ladder` takes, and nothing else.

    A flush takes 2 cycles a member and 10, and what the drives and `hdl.drive.flusher.Flusher`
    take.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    written
        A pulse. A row of this array is marked, as it is about to be written or as it retires. Or
        marks come that its drives have: whoever brings it up is not through yet.
    marked
        One bit per array. It has marks.
    optimal
        One bit per array. It is OPTIMAL, and marks may be dropped.
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
                "written": In(Pulse(config.array_bits)),
                "marked": In(config.arrays),
                "optimal": In(config.arrays),
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
        # A bit an array. It has been written since arrays were last looked at; it is to be flushed;
        # it has been, and has not been written since.
        self._recent = Signal(config.arrays)
        self._due = Signal(config.arrays)
        self._tried = Signal(config.arrays)
        # Arrays are looked at then.
        self._times = Signal()
        self._look_at = Signal(TIME_BITS)

        # The array at hand, its member, and the ports of the members before that.
        self._array = Signal(config.array_bits)
        self._role = Signal(WIDTH_BITS)
        self._ports = Signal(MAX_DRIVES)
        self._changed = Signal()  # the tables have, since the epoch began

    @property
    def _waiting(self) -> Value:
        """Arrays that will be flushed once they have been idle for long enough."""
        return self.marked & self.optimal & ~self._tried

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
        ]
        m.d.sync += self._tried.eq(self._tried & self.optimal)
        with m.FSM(name="flush_idle") as fsm:
            self._rest(m)
            self._begin(m)
            self._find_members(m)
            self._flush(m)
            waits = (
                (fsm.ongoing("REST") & ~self._due.any())
                | (fsm.ongoing("BEGIN") & self._due.bit_select(array, 1) & ~self.epoch.begun)
                | (fsm.ongoing("ASK") & ~self.ask.ready)
                | (fsm.ongoing("LISTEN") & ~self.told.valid)
            )
            begun = ~fsm.ongoing("REST") & ~fsm.ongoing("BEGIN")
        with m.If(begun & self.changing):
            m.d.sync += self._changed.eq(1)
        self._watch(m)
        starts = self._waiting.any() & ~self._times
        m.d.comb += self.busy.eq(~waits | starts | self._ticks | self.written.valid)
        return m

    def _watch(self, m: Module) -> None:
        """Which arrays are written, and which have not been for long enough."""
        self._ticks = Signal()
        m.d.comb += [
            self._ticks.eq(self._times & passed(self.now, self._look_at)),
            self.deadline.eq(Mux(self._times, self._look_at, NEVER)),
        ]
        with m.If(self._ticks):
            m.d.sync += [
                self._times.eq(0),
                self._due.eq(self._due | (self._waiting & ~self._recent)),
                self._recent.eq(0),
            ]
        with m.Elif(self._waiting.any() & ~self._times):
            m.d.sync += [self._times.eq(1), self._look_at.eq(self.now + self._idle_cycles)]
        # Last, so that nothing undoes it.
        with m.If(self.written.valid):
            m.d.sync += [
                self._recent.bit_select(self.written.payload, 1).eq(1),
                self._tried.bit_select(self.written.payload, 1).eq(0),
            ]

    def _rest(self, m: Module) -> None:
        """The state REST: an array is chosen."""
        with m.State("REST"):
            m.d.sync += [
                self._array.eq(lowest_bit(m, self._due, "due")),
                self._role.eq(0),
                self._ports.eq(0),
                self._changed.eq(0),
            ]
            with m.If(self._due.any()):
                m.next = "BEGIN"

    def _begin(self, m: Module) -> None:
        """The state BEGIN: the epoch begins, before a drive is asked."""
        array = self._array
        with m.State("BEGIN"):
            m.d.comb += self.epoch.begins.eq(~self.changing)
            with m.If(self.epoch.begun):
                m.d.sync += self._tried.bit_select(array, 1).eq(1)
                m.next = "FIND"
            with m.Elif(~(self.marked & self.optimal).bit_select(array, 1)):
                m.next = "REST"
            with m.If(self.epoch.begun | ~(self.marked & self.optimal).bit_select(array, 1)):
                m.d.sync += self._due.bit_select(array, 1).eq(0)

    def _find_members(self, m: Module) -> None:
        """The states FIND and NOTE: which drives the array has."""
        role, shape = self._role, self.geometry_read.data
        with m.State("FIND"):
            m.next = "NOTE"

        with m.State("NOTE"):
            m.d.sync += [
                self._ports.bit_select(self.member_read.data, 1).eq(1),
                role.eq(role + 1),
            ]
            m.next = "FIND"
            with m.If(role == (shape.width * shape.spans)[:WIDTH_BITS] - 1):
                m.next = "ASK"

    def _flush(self, m: Module) -> None:
        """The states ASK and LISTEN: the drives are flushed."""
        stored = (self._ports & ~self.told.payload) == 0
        with m.State("ASK"):
            m.d.comb += self.ask.valid.eq(1)
            with m.If(self.ask.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            m.d.comb += self.told.ready.eq(1)
            with m.If(self.told.valid):
                m.d.comb += [
                    self.epoch.ended.eq(1),
                    self.epoch.good.eq(stored & ~self._changed & ~self.changing),
                ]
                m.next = "REST"
