"""How long rows wait for partners: a walk over the open rows finds what is due, and when next."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
from hdl.stripe.gather.fill import fill, flight, flight_bits

IDLE_NS = 10_000
"""How long a row waits for partners once nothing that could bring them is on its way.

A host answers a completion with the next write after an interrupt, a doorbell and two reads of its
memory: 2 us in simulation, a few more with an operating system.
"""

LIMIT_NS = 20_000_000
"""How long a row waits for partners at most, from its first block."""

NEVER = (1 << TIME_BITS) - 1


def cycles_of(config: Config, nanoseconds: int) -> int:
    """Clock cycles, at least one."""
    return max(1, nanoseconds * config.clock_hz // 1_000_000_000)


class Patience(wiring.Component):
    """Says which open row to look at next, and whether its time is up.

    Parameters
    ----------
    config
        Sizes.
    idle_cycles
        Instead of `IDLE_NS`, for tests.
    limit_cycles
        Instead of `LIMIT_NS`, for tests.

    Ports
    -----
    now
        Time in cycles.
    any
        There is an open row.
    head, tail
        The oldest and the newest open row (`hdl.stripe.gather.open_rows.OpenRows`).
    newer
        The open row after the one at hand.
    slot
        The row slot at hand.
    level
        How full it is.
    flight
        The rows of its array.
    calls
        A row slot wants to be looked at.
    visiting
        That row slot.
    visit
        Strobe: it is looked at.
    weigh, expect, watch
        Strobes, one cycle each, in this order, with ``slot``, ``level`` and ``flight`` at hand.
    due
        In the cycle of ``watch``: the row shall close. Otherwise it is left.
    settles
        In the cycle of ``watch``: the rows before it have retired.
    weighed
        When they had.
    appended
        Strobe: the row slot at hand is now the newest open row.
    removed
        Strobe: it is no longer an open row.
    retired
        Strobe: a row has retired.
    idle
        There is a ``deadline`` but no open row.
    forget
        Strobe: clears the deadline.
    deadline
        When a row has to be looked at next, in cycles; `NEVER` if none has.
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

        # The walk over the open rows.
        self._walking = Signal()
        self._again = Signal()  # another walk follows
        self._cursor = Signal(slot)
        self._earliest = Signal(TIME_BITS)
        # The row that is weighed.
        self._ahead = Signal(flight_bits(config))  # rows still awaited
        self._limit_time = Signal(TIME_BITS, name="limit")
        self._since = Signal(TIME_BITS)
        self._since_most = Signal(TIME_BITS)
        self._due_time = Signal(TIME_BITS, name="due_time")

    def elaborate(self, platform) -> Module:
        m = Module()
        walking, again, cursor = self._walking, self._again, self._cursor
        m.d.comb += [
            self.calls.eq(self.any & (walking | again | (self.now >= self.deadline))),
            self.visiting.eq(Mux(walking, cursor, self.head)),
            self.due.eq(self.now >= self._due_time),
            self.idle.eq(~self.any & (self.deadline != NEVER)),
        ]
        self._begin_walk(m)
        self._weigh(m)
        self._go_on(m)
        self._follow_rows(m)
        with m.If(self.forget):
            m.d.sync += self.deadline.eq(NEVER)
        return m

    def _begin_walk(self, m: Module) -> None:
        """A walk begins with the first row that is looked at."""
        begins = Signal()
        with m.If(self.visit):
            m.d.sync += self._walking.eq(1)
            with m.If(~self._walking):
                m.d.sync += [self._again.eq(0), self._cursor.eq(self.head)]
        m.d.sync += begins.eq(self.visit & ~self._walking)
        with m.If(begins):
            m.d.sync += self._earliest.eq(NEVER)

    def _weigh(self, m: Module) -> None:
        """When the row at hand is due."""
        level, latest, ahead = self.level, self.flight.latest, self._ahead
        since, due = self._since, self._due_time
        # Once no row is awaited any more, it wraps below zero.
        m.d.comb += ahead.eq(level.awaited - self.flight.retired)
        with m.If(self.weigh):
            m.d.sync += [
                self.weighed.eq(self.now),
                self.settles.eq(~level.settled & ((ahead == 0) | ahead[-1])),
                since.eq(Mux(latest > level.since, latest, level.since)),
                self._since_most.eq(level.first + max(0, self._limit - self._idle)),
                self._limit_time.eq(level.first + self._limit),
            ]
        with m.If(self.expect):
            m.d.sync += due.eq(self._limit_time)
            with m.If(self.settles):
                m.d.sync += due.eq(self.weighed + self._idle)
            with m.Elif(level.settled & (since < self._since_most)):
                m.d.sync += due.eq(since + self._idle)

    def _go_on(self, m: Module) -> None:
        """The walk goes on to the next row, or ends with the time at which the first one is due."""
        due, earliest = self._due_time, self._earliest
        with m.If(self.watch):
            with m.If(self.due):
                # What is left of the walk, or another, follows the removal.
                m.d.sync += self._again.eq(1)
            with m.Else():
                m.d.sync += self._cursor.eq(self.newer)
                with m.If(due < earliest):
                    m.d.sync += earliest.eq(due)
                with m.If(self.slot == self.tail):
                    m.d.sync += [
                        self._walking.eq(0),
                        self.deadline.eq(Mux(due < earliest, due, earliest)),
                    ]

    def _follow_rows(self, m: Module) -> None:
        """Rows that become open, that are open no longer, or that have retired."""
        walking, again = self._walking, self._again
        soon = Signal(TIME_BITS)
        m.d.comb += soon.eq(self.now + self._idle)
        with m.If(self.appended):
            with m.If(walking):
                m.d.sync += again.eq(1)
            with m.If(soon < self.deadline):
                m.d.sync += self.deadline.eq(soon)
        with m.If(self.removed & (self.slot == self._cursor)):
            m.d.sync += self._cursor.eq(self.newer)
            with m.If(self.slot == self.tail):
                m.d.sync += [walking.eq(0), again.eq(walking)]
        with m.If(self.retired):
            m.d.sync += again.eq(1)
