"""How much each array has of something that all of them use, and whether it may have more."""

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.kit.bits import ones


class Shares(wiring.Component):
    """Counts what arrays have, and keeps a reserve for each array there is.

    With n arrays, n * ``least`` of ``total`` is kept, so an array may always have ``least``. The
    rest is anybody's, but one array may have no more than half of it. So if one of two arrays gives
    nothing back, the other one can still have what it could have without it, up to half of the
    rest. A single array may have as much as it likes. If another array appears then, what the
    first one has is counted, and it gets nothing more until it fits. Apart from that, what is
    granted never adds up to more than ``total``.

    Parameters
    ----------
    config
        Sizes.
    total
        How much there is while there are several arrays.
    least
        What each of them can always have. For all arrays together that is ``total`` at most.
    most
        No array ever has more than that.

    Ports
    -----
    exists
        One bit per array. It is there.
    alone
        There are not several arrays.
    array
        Whose share is looked at. It must have held for a cycle before ``fits``, ``take`` or
        ``give``. Nothing must be looked at in the cycle after ``take`` or ``give``.
    amount
        How much, ``least`` at most.
    fits
        The array may have so much more.
    take
        A pulse. It has so much more.
    give
        A pulse. It has so much less.
    ready
        0 for ``config.arrays`` cycles after reset.
    """

    def __init__(self, *, config: Config, total: int, least: int, most: int):
        if not 0 < least <= total // config.arrays:
            raise ValueError(f"least must be 1..{total // config.arrays}, not {least}")
        self._config = config
        self._total = total
        self._least = least
        self._most = most
        self._bits = bits_for_count(most + 1)
        super().__init__(
            {
                "exists": In(config.arrays),
                "alone": Out(1),
                "array": In(config.array_bits),
                "amount": In(self._bits),
                "fits": Out(1),
                "take": In(1),
                "give": In(1),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config, total, least = self._config, self._total, self._least
        m.submodules.counts = counts = Memory(shape=self._bits, depth=config.arrays, init=[])
        read, write = counts.read_port(), counts.write_port()
        number = Signal(range(config.arrays + 1))
        rest = Signal(range(total + 1))
        shared = Signal(self._bits + config.array_bits)
        m.d.sync += [number.eq(ones(self.exists)), rest.eq(total - number * least)]

        def beyond(count):
            """How much of ``count`` is not of the array's reserve."""
            return Mux(count > least, count - least, 0)

        count = read.data
        more = Signal(self._bits + 1)
        less = Signal(self._bits)
        present = Signal(self._bits)
        grown = Signal(self._bits + 1)
        shrunk = Signal(self._bits)
        sweep = Signal(config.array_bits)
        m.d.comb += [
            read.addr.eq(self.array),
            write.addr.eq(self.array),
            more.eq(count + self.amount),
            less.eq(count - self.amount),
            present.eq(beyond(count)),
            grown.eq(beyond(more)),
            shrunk.eq(beyond(less)),
            self.alone.eq(number <= 1),
            self.fits.eq(
                self.alone
                | (grown == 0)
                | ((grown <= rest[1:]) & (shared + grown <= rest + present))
            ),
        ]
        m.d.sync += [
            Assert(~self.give | (count >= self.amount), "an array gives back more than it has"),
            Assert(~self.take | (more <= self._most), "an array has more than it ever can"),
            Assert(~(self.give & self.take), "one thing at a time"),
        ]
        with m.If(~self.ready):
            m.d.comb += [write.addr.eq(sweep), write.en.eq(1)]
            m.d.sync += [sweep.eq(sweep + 1), self.ready.eq(sweep == config.arrays - 1)]
        with m.Elif(self.take):
            m.d.comb += [write.data.eq(more), write.en.eq(1)]
            m.d.sync += shared.eq(shared + grown - present)
        with m.Elif(self.give):
            m.d.comb += [write.data.eq(less), write.en.eq(1)]
            m.d.sync += shared.eq(shared + shrunk - present)
        return m
