"""Picking the next of several.

- `lowest_bit`: the lowest one that waits, where the order is fixed or does not matter.
- `RoundRobin`: taking turns. It keeps whose turn it is, and gives the choice one-hot as well. It
  has no chain from bit to bit, so it suits many requests.
- `choose`: taking turns where the user keeps whose turn it is, and says who is next (`following`).
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import bits_for_count


def _number_of(single: Value, bit: int) -> Value:
    """Bit ``bit`` of the number of the one bit that is set in ``single``."""
    return (single & sum(1 << number for number in range(len(single)) if number >> bit & 1)).any()


def lowest_bit(m: Module, mask: Value, name: str) -> Signal:
    """The number of the lowest bit set in ``mask``, 0 when none is; combinational."""
    single = Signal(len(mask), name=f"{name}_single")
    index = Signal(range(len(mask)), name=name)
    m.d.comb += single.eq(mask & -mask)
    for bit in range(len(index)):
        m.d.comb += index[bit].eq(_number_of(single, bit))
    return index


def choose(m: Module, waiting: Value, turn: Signal) -> Signal:
    """The lowest set bit of ``waiting`` from ``turn`` on, else the lowest of all, 0 when none is
    set; combinational.

    Whoever serves the bit chosen sets ``turn`` to the one after it (`following`). Then every other
    bit that stays set is served before it again.
    """
    chosen = Signal(bits_for_count(len(waiting)), name="chosen")
    for index in reversed(range(len(waiting))):
        with m.If(waiting[index]):
            m.d.comb += chosen.eq(index)
    for index in reversed(range(len(waiting))):
        with m.If(waiting[index] & (turn <= index)):
            m.d.comb += chosen.eq(index)
    return chosen


def following(at: Value, last):
    """The place after ``at`` on a ring whose last place is ``last``."""
    return Mux(at == last, 0, at + 1)


class RoundRobin(wiring.Component):
    """Chooses the lowest request above the last one served, or else the lowest of all.

    Combinational. Between two services of a request every other standing request is served.

    Parameters
    ----------
    count
        Number of requests.

    Ports
    -----
    requests
        A bit each.
    advance
        The choice is served in this cycle.
    chosen
        The choice, one-hot; 0 without requests.
    index
        The choice as a number; 0 without requests.
    any
        There is a request.
    """

    def __init__(self, *, count: int):
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        self._count = count
        super().__init__(
            {
                "requests": In(count),
                "advance": In(1),
                "chosen": Out(count),
                "index": Out(bits_for_count(count)),
                "any": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        above = Signal(self._count)  # every bit above the one served last
        later = Signal(self._count)
        pool = Signal(self._count)
        m.d.comb += [
            later.eq(self.requests & above),
            pool.eq(Mux(later.any(), later, self.requests)),
            self.chosen.eq(pool & -pool),
            self.any.eq(self.requests.any()),
            self.index.eq(
                Cat(_number_of(self.chosen, bit) for bit in range(len(self.index)))
            ),
        ]
        with m.If(self.advance):
            m.d.sync += above.eq(~(self.chosen | (self.chosen - 1)))
        return m
