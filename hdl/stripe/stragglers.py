"""Whether rows are still on their way that may have seen the tables as they were."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config


class Stragglers(wiring.Component):
    """Counts rows from launch to end, those of this epoch and those of the last one apart.

    A drive that leaves an array may be anybody's only once no row is left that will write to it.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    launched, launched_slot, ended, ended_slot
        A row slot is taken, or given back, in this cycle.
    turn
        A pulse while nothing ``lingers``: a new epoch begins.
    lingers
        Rows of the last epoch have not ended. Holds from the cycle after ``turn`` on.

    Latency: an end counts 2 cycles later.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        super().__init__(
            {
                "launched": In(1),
                "launched_slot": In(slot),
                "ended": In(1),
                "ended_slot": In(slot),
                "turn": In(1),
                "lingers": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.epochs = epochs = Memory(shape=1, depth=config.rows, init=[])
        read, write = epochs.read_port(), epochs.write_port()
        epoch, ends = Signal(), Signal()
        counts = [Signal(range(config.rows + 1), name=f"rows_{number}") for number in range(2)]
        m.d.comb += [
            write.addr.eq(self.launched_slot),
            write.data.eq(epoch),
            write.en.eq(self.launched),
            read.addr.eq(self.ended_slot),
            self.lingers.eq(Mux(epoch, counts[0], counts[1]) != 0),
        ]
        m.d.sync += [
            epoch.eq(epoch ^ self.turn),
            ends.eq(self.ended),
        ]
        for number, count in enumerate(counts):
            m.d.sync += count.eq(
                count + (self.launched & (epoch == number)) - (ends & (read.data == number))
            )
        return m
