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
    idle_cycles, limit_cycles
        Instead of `IDLE_NS` and `LIMIT_NS`, for tests.

    Ports
    -----
    now
        Time in cycles.
    any, head, tail, newer
        Of the open rows (`hdl.stripe.gather.open_rows.OpenRows`): ``newer`` follows ``slot``.
    slot, level, flight
        The row slot at hand, how full it is, and its array's rows.
    calls, visit
        With ``calls``, a row slot wants to be looked at: the one in ``visiting``. ``visit``: it is.
    weigh, expect, watch
        One cycle each, in order, with ``slot``, ``level`` and ``flight`` at hand. In the cycle of
        ``watch``, ``due`` says that the row shall close; else it is left, and ``settles`` that the
        rows before it have retired at ``weighed``.
    appended, removed, retired
        ``slot`` is now the newest open row; is no longer one; a row has retired.
    idle, forget
        ``idle``: there is a ``deadline`` but no open row; ``forget`` clears it.
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

    def elaborate(self, platform) -> Module:
        m = Module()
        level = self.level
        walking = Signal()
        begins = Signal()
        again = Signal()
        cursor = Signal(self._config.row_slot_bits)
        earliest = Signal(TIME_BITS)
        soon = Signal(TIME_BITS)
        ahead = Signal(flight_bits(self._config))
        limit = Signal(TIME_BITS)
        since = Signal(TIME_BITS)
        since_most = Signal(TIME_BITS)
        due = Signal(TIME_BITS)
        m.d.comb += [
            # Rows still awaited; once there are none it wraps below zero.
            ahead.eq(level.awaited - self.flight.retired),
            soon.eq(self.now + self._idle),
            self.calls.eq(self.any & (walking | again | (self.now >= self.deadline))),
            self.visiting.eq(Mux(walking, cursor, self.head)),
            self.due.eq(self.now >= due),
            self.idle.eq(~self.any & (self.deadline != NEVER)),
        ]
        with m.If(self.visit):
            m.d.sync += walking.eq(1)
            with m.If(~walking):
                m.d.sync += [again.eq(0), cursor.eq(self.head)]
        m.d.sync += begins.eq(self.visit & ~walking)
        with m.If(begins):
            m.d.sync += earliest.eq(NEVER)
        with m.If(self.weigh):
            latest = self.flight.latest
            m.d.sync += [
                self.weighed.eq(self.now),
                self.settles.eq(~level.settled & ((ahead == 0) | ahead[-1])),
                since.eq(Mux(latest > level.since, latest, level.since)),
                since_most.eq(level.first + max(0, self._limit - self._idle)),
                limit.eq(level.first + self._limit),
            ]
        with m.If(self.expect):
            m.d.sync += due.eq(limit)
            with m.If(self.settles):
                m.d.sync += due.eq(self.weighed + self._idle)
            with m.Elif(level.settled & (since < since_most)):
                m.d.sync += due.eq(since + self._idle)
        with m.If(self.watch):
            with m.If(self.due):
                # What is left of the walk, or another, follows the removal.
                m.d.sync += again.eq(1)
            with m.Else():
                m.d.sync += cursor.eq(self.newer)
                with m.If(due < earliest):
                    m.d.sync += earliest.eq(due)
                with m.If(self.slot == self.tail):
                    m.d.sync += [
                        walking.eq(0),
                        self.deadline.eq(Mux(due < earliest, due, earliest)),
                    ]
        with m.If(self.appended):
            with m.If(walking):
                m.d.sync += again.eq(1)
            with m.If(soon < self.deadline):
                m.d.sync += self.deadline.eq(soon)
        with m.If(self.removed & (self.slot == cursor)):
            m.d.sync += cursor.eq(self.newer)
            with m.If(self.slot == self.tail):
                m.d.sync += [walking.eq(0), again.eq(walking)]
        with m.If(self.retired):
            m.d.sync += again.eq(1)
        with m.If(self.forget):
            m.d.sync += self.deadline.eq(NEVER)
        return m
