"""Free numbers 0..count-1: each is handed out, and comes back, once."""

from amaranth.hdl import Assert, Format, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import bits_for_count
from hdl.kit.queue import Queue
from hdl.kit.simulation import SIMULATION


class FreeList(wiring.Component):
    """Hands out the numbers 0..``count`` - 1, first from a counter, then those that came back.

    As it starts from a counter, the memory needs no initial contents, so a reset returns every
    number at once. Simulations assert that what comes back was handed out, and that nothing is
    handed out twice.

    Parameters
    ----------
    count
        Numbers, at least 2.

    Ports
    -----
    take
        Free numbers, one a cycle.
    give
        Numbers that come back, one a cycle, never refused. To give back a number that is free is
        an error of the user.
    level
        Free numbers. A number given back can be taken three cycles later.
    busy
        A number is on its way from ``give`` to ``take``.
    """

    def __init__(self, *, count: int):
        if count < 2:
            raise ValueError(f"count must be at least 2, not {count}")
        self._count = count
        number = bits_for_count(count)
        super().__init__(
            {
                "take": Out(stream.Signature(number)),
                "give": In(stream.Signature(number)),
                "level": Out(range(count + 1), init=count),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        count = self._count
        m.submodules.returned = returned = Queue(bits_for_count(count), count)
        fresh = Signal(range(count + 1))
        counting = Signal()
        given = Signal()
        number = Signal(bits_for_count(count), reset_less=True)
        m.d.comb += [
            counting.eq(fresh != count),
            self.take.valid.eq(counting | returned.output.valid),
            self.take.payload.eq(Mux(counting, fresh, returned.output.payload)),
            returned.output.ready.eq(self.take.ready & ~counting),
            returned.input.valid.eq(given),
            returned.input.payload.eq(number),
            self.give.ready.eq(1),
            self.busy.eq(given | returned.filling),
        ]
        m.d.sync += [
            given.eq(self.give.valid),
            number.eq(self.give.payload),
            self.level.eq(self.level + given - (self.take.valid & self.take.ready)),
        ]
        with m.If(self.take.ready & counting):
            m.d.sync += fresh.eq(fresh + 1)
        if platform == SIMULATION:
            self._watch(m, fresh, counting)
        return m

    def _watch(self, m: Module, fresh: Signal, counting: Signal) -> None:
        """Notes which numbers are out. What is noted outlasts a reset, but nobody looks at it
        before the number has been counted off once more."""
        m.submodules.out = out = Memory(shape=1, depth=self._count, init=[])
        takes = self.take.valid & self.take.ready
        for port, strobe, value in ((self.take, takes, 1), (self.give, self.give.valid, 0)):
            write, read = out.write_port(), out.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(port.payload),
                write.data.eq(value),
                write.en.eq(strobe),
                read.addr.eq(port.payload),
            ]
            if value:
                m.d.sync += Assert(
                    ~strobe | counting | ~read.data,
                    Format("{:d} is handed out to a second owner\n", port.payload),
                )
            else:
                m.d.sync += Assert(
                    ~strobe | (read.data & (port.payload < fresh)),
                    Format("{:d} comes back, and nobody had it\n", port.payload),
                )
