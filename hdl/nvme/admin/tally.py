"""Capacity of the whole controller: what arrays offer, and what volumes have left of it."""

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config


class Tally(wiring.Component):
    """Adds up arrays, then takes volumes off (TNVMCAP and UNVMCAP, NVMe 1.4 figure 247).

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    clear
        A pulse: the count begins anew, with arrays.
    count
        A pulse: ``blocks`` are counted. Arrays come first.
    of_volume
        With ``count``: they are those of a volume, else those of an array.
    blocks
        With ``count``: how many.
    total
        What arrays offer, in blocks.
    free
        What volumes have left of it, in blocks.

    Throughput: one count a cycle.
    """

    def __init__(self, *, config: Config):
        bits = BLOCK_NUMBER_BITS + config.array_bits
        super().__init__(
            {
                "clear": In(1),
                "count": In(1),
                "of_volume": In(1),
                "blocks": In(BLOCK_NUMBER_BITS),
                "total": Out(bits),
                "free": Out(bits),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        bits = len(self.free)
        tally = Signal(bits)
        blocks = self.blocks | Const(0, bits)
        m.d.comb += tally.eq(self.free + (blocks ^ self.of_volume.replicate(bits)) + self.of_volume)
        with m.If(self.clear):
            m.d.sync += self.free.eq(0)
        with m.Elif(self.count):
            m.d.sync += self.free.eq(tally)
            with m.If(~self.of_volume):
                m.d.sync += self.total.eq(tally)
        return m
