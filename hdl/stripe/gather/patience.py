"""How long rows wait for partners: a walk over the open rows finds what is due, and when next."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
from hdl.kit.clock import NEVER, before, passed
from hdl.stripe.gather.fill import fill, flight, flight_bits

IDLE_NS = 10_000
"""How long a row waits for partners once nothing that could bring them is on its way.

A host answers a completion with the next write after an interrupt, a doorbell and two reads of its
memory: 2 us in simulation, a few more with an operating system.
"""

LIMIT_NS = 20_000_000
"""How long a row waits for partners at most, from its first block."""


def cycles_of(config: Config, nanoseconds: int) -> int:
    """Clock cycles, at least one."""
    return max(1, nanoseconds * config.clock_hz // 1_000_000_000)


class Patience(wiring.Component):
    """Says which open row to look at next, and whether its time is up.

    Parameters
    ----------
    config
        Sizes.
    idle_cycles, limit_cycles
        Instead of `IDLE_NS` and `LIMIT_NS`, for tests.

    Ports
    -----
    now
        Time in cycles. It wraps.
    any
        There are open rows (`hdl.stripe.gather.open_rows.OpenRows`).
    head, tail
        The row slots of the oldest open row and of the newest one.
    newer
        The row slot of the open row after that of ``slot``.
    slot
        The row slot at hand.
    level
        How full it is.
    flight
        The rows of its array.
    calls
        A row slot wants to be looked at.
    visiting
        That row slot, with ``calls``.
    visit
        A pulse. The row slot ``visiting`` is looked at: ``weigh``, ``expect`` and ``watch`` follow.
    weigh, expect, watch
        One cycle each, in order, with ``slot``, ``level`` and ``flight`` at hand.
    due
        In the cycle of ``watch``: the row shall close. Otherwise it is left open.
    settles
        In the cycle of ``watch``: the rows before it have retired, at ``weighed``.
    weighed
        Time of the last ``weigh``.
    appended
        A pulse. ``slot`` is the newest open row now.
    removed
        A pulse. ``slot`` is an open row no longer.
    retired
        A pulse. A row has retired.
    idle
        A deadline is set, and there is no open row.
    forget
        A pulse. Clears the deadline.
    deadline
        When a row has to be looked at next; `NEVER` if none.
    """

    def __init__(
        self,
        *,
        config: Config,
        idle_cycles: int | None = None,
        limit_cycles: int | None = None,
    ):
        self._config = config
        self._idle = idle_cycles or cycles_of(config, IDLE_NS)
        self._limit = limit_cycles or cycles_of(config, LIMIT_NS)
        slot = config.row_slot_bits
        strobes = ("visit", "weigh", "expect", "watch", "appended", "removed", "retired", "forget")
        super().__init__(
            {
                "now": In(TIME_BITS),
                "any": In(1),
                **{name: In(slot) for name in ("head", "tail", "newer", "slot")},
                "level": In(fill(config)),
                "flight": In(flight(config)),
                **{name: In(1) for name in strobes},
                "calls": Out(1),
                "visiting": Out(slot),
                "due": Out(1),
                "settles": Out(1),
                "weighed": Out(TIME_BITS),
                "idle": Out(1),
                "deadline": Out(TIME_BITS, init=NEVER),
            }
        )

        slot_bits = self._config.row_slot_bits
        # A walk over the open rows, and another one after it.
        self._walking = Signal()
        self._again = Signal()
        self._begins = Signal()
        self._cursor = Signal(slot_bits)
        # A row is to be looked at, at `deadline`.
        self._timed = Signal()
        # When the row at hand is due, and the first of those that the walk has seen.
        self._due = Signal(TIME_BITS)
        self._earliest = Signal(TIME_BITS)
        self._seen = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.comb += [
            self.calls.eq(
                self.any
                & (
                    self._walking
                    | self._again
                    | (self._timed & passed(self.now, self.deadline))
                )
            ),
            self.visiting.eq(Mux(self._walking, self._cursor, self.head)),
            self.due.eq(passed(self.now, self._due)),
            self.idle.eq(~self.any & self._timed),
        ]
        self._visit(m)
        self._weigh(m)
        self._watch(m)
        self._follow_rows(m)
        return m

    def _visit(self, m: Module) -> None:
        """Begins a walk at the oldest row, or goes on with one."""
        with m.If(self.visit):
            m.d.sync += self._walking.eq(1)
            with m.If(~self._walking):
                m.d.sync += [self._again.eq(0), self._cursor.eq(self.head)]
        m.d.sync += self._begins.eq(self.visit & ~self._walking)
        with m.If(self._begins):
            m.d.sync += self._seen.eq(0)

    def _weigh(self, m: Module) -> None:
        """Works out when the row at hand is due."""
        level, due = self.level, self._due
        ahead = Signal(flight_bits(self._config))
        limit = Signal(TIME_BITS)
        since = Signal(TIME_BITS)
        since_most = Signal(TIME_BITS)
        # How long ago. The last write of an array may be older than half of the clock's range.
        age_of_latest = Signal(TIME_BITS)
        age_of_since = Signal(TIME_BITS)
        latest = self.flight.latest
        m.d.comb += [
            # Rows still awaited; once there are none it wraps below zero.
            ahead.eq(level.awaited - self.flight.retired),
            age_of_latest.eq(self.now - latest),
            age_of_since.eq(self.now - level.since),
        ]
        with m.If(self.weigh):
            m.d.sync += [
                self.weighed.eq(self.now),
                self.settles.eq(~level.settled & ((ahead == 0) | ahead[-1])),
                since.eq(Mux(age_of_latest < age_of_since, latest, level.since)),
                since_most.eq(level.first + max(0, self._limit - self._idle)),
                limit.eq(level.first + self._limit),
            ]
        with m.If(self.expect):
            m.d.sync += due.eq(limit)
            with m.If(self.settles):
                m.d.sync += due.eq(self.weighed + self._idle)
            with m.Elif(level.settled & before(since, since_most)):
                m.d.sync += due.eq(since + self._idle)

    def _watch(self, m: Module) -> None:
        """Closes the row at hand if it is due. The walk goes on with the next row, and ends at the
        newest one."""
        first = Signal()
        m.d.comb += first.eq(~self._seen | before(self._due, self._earliest))
        with m.If(self.watch):
            with m.If(self.due):
                # What is left of the walk, or another, follows the removal.
                m.d.sync += self._again.eq(1)
            with m.Else():
                m.d.sync += [self._cursor.eq(self.newer), self._seen.eq(1)]
                with m.If(first):
                    m.d.sync += self._earliest.eq(self._due)
                with m.If(self.slot == self.tail):
                    m.d.sync += [
                        self._walking.eq(0),
                        self._timed.eq(1),
                        self.deadline.eq(Mux(first, self._due, self._earliest)),
                    ]

    def _follow_rows(self, m: Module) -> None:
        """Rows that open, close and retire."""
        soon = Signal(TIME_BITS)
        m.d.comb += soon.eq(self.now + self._idle)
        with m.If(self.appended):
            with m.If(self._walking):
                m.d.sync += self._again.eq(1)
            with m.If(~self._timed | before(soon, self.deadline)):
                m.d.sync += [self.deadline.eq(soon), self._timed.eq(1)]
        with m.If(self.removed & (self.slot == self._cursor)):
            m.d.sync += self._cursor.eq(self.newer)
            with m.If(self.slot == self.tail):
                m.d.sync += [self._walking.eq(0), self._again.eq(self._walking)]
        with m.If(self.retired):
            m.d.sync += self._again.eq(1)
        with m.If(self.forget):
            m.d.sync += [self.deadline.eq(NEVER), self._timed.eq(0)]
