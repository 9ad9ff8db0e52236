"""Whose turn it is among bits of a vector."""

from amaranth.hdl import Module, Mux, Signal, Value


def choose(m: Module, waiting: Value, turn: Signal) -> Signal:
    """The lowest set bit of ``waiting`` from ``turn`` on, else the lowest of all; combinational.

    Whoever serves the bit chosen sets ``turn`` to the one after it (`following`).
    """
    chosen = Signal(range(len(waiting)), name="chosen")
    for index in reversed(range(len(waiting))):
        with m.If(waiting[index]):
            m.d.comb += chosen.eq(index)
    for index in reversed(range(len(waiting))):
        with m.If(waiting[index] & (turn <= index)):
            m.d.comb += chosen.eq(index)
    return chosen


def lowest_set(m: Module, waiting: Value, name: str) -> Signal:
    """The lowest set bit of ``waiting``, 0 if none is; combinational."""
    chosen = Signal(range(len(waiting)), name=name)
    for index in reversed(range(len(waiting))):
        with m.If(waiting[index]):
            m.d.comb += chosen.eq(index)
    return chosen


def following(at: Value, last):
    """The place after ``at`` on a ring whose last place is ``last``."""
    return Mux(at == last, 0, at + 1)
