"""A round-robin choice between request bits."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import bits_for_count


class RoundRobin(wiring.Component):
    """Chooses the lowest request above the last one served, or else the lowest of all.

    Combinational; between two services of a request every other standing request is served.

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
    chosen, index
        The choice, one-hot and as a number; 0 without requests.
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
        count = self._count
        above = Signal(count)
        later = Signal(count)
        pool = Signal(count)
        m.d.comb += [
            later.eq(self.requests & above),
            pool.eq(Mux(later.any(), later, self.requests)),
            self.chosen.eq(pool & -pool),
            self.any.eq(self.requests.any()),
            self.index.eq(
                Cat(
                    (self.chosen & sum(1 << n for n in range(count) if n >> bit & 1)).any()
                    for bit in range(bits_for_count(count))
                )
            ),
        ]
        with m.If(self.advance):
            # Every bit above the chosen one.
            m.d.sync += above.eq(~(self.chosen | (self.chosen - 1)))
        return m
