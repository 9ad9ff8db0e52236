"""Queues of numbers, one per array. They say who waits until the array may have more."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.kit.pick import RoundRobin


class Waiting(wiring.Component):
    """A queue of different numbers for each array, and which of the queues may be looked at.

    Parameters
    ----------
    config
        Sizes.
    count
        Numbers are less than this.

    Ports
    -----
    array
        The array whose queue is meant. It must have held for a cycle before a strobe.
    number
        The number that comes.
    append
        A pulse. ``number`` goes to the end of the queue of ``array``.
    head
        The number at the front of that queue. Follows ``array`` by a cycle.
    pop
        A pulse. ``head`` goes. It must have held for a cycle.
    waiting
        One bit per array. Its queue is not empty.
    retry
        A pulse. All queues may be looked at once more.
    refuse
        A pulse. The queue of ``array`` need not be looked at until the next ``retry``.
    calls
        There is a queue to be looked at.
    calling
        The array of that queue.
    advance
        A pulse. That queue is looked at.
    """

    def __init__(self, *, config: Config, count: int):
        self._config = config
        self._bits = bits_for_count(count)
        super().__init__(
            {
                "array": In(config.array_bits),
                "number": In(self._bits),
                "append": In(1),
                "head": Out(self._bits),
                "pop": In(1),
                "waiting": Out(config.arrays),
                "retry": In(1),
                "refuse": In(1),
                "calls": Out(1),
                "calling": Out(config.array_bits),
                "advance": In(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config, bits = self._config, self._bits
        queue = data.StructLayout({"head": bits, "tail": bits})
        m.submodules.queues = queues = Memory(shape=queue, depth=config.arrays, init=[])
        m.submodules.links = links = Memory(shape=bits, depth=1 << bits, init=[])
        queue_read, queue_write = queues.read_port(), queues.write_port()
        link_read, link_write = links.read_port(), links.write_port()
        due = Signal(config.arrays)
        mask = Signal(config.arrays)
        any_before = (self.waiting & mask).any()
        found = queue_read.data
        m.submodules.choose = choose = RoundRobin(count=config.arrays)
        m.d.comb += [
            mask.eq(1 << self.array),
            queue_read.addr.eq(self.array),
            queue_write.addr.eq(self.array),
            queue_write.data.head.eq(found.head),
            queue_write.data.tail.eq(found.tail),
            queue_write.en.eq(self.append | self.pop),
            self.head.eq(found.head),
            link_read.addr.eq(found.head),
            link_write.addr.eq(found.tail),
            link_write.data.eq(self.number),
            link_write.en.eq(self.append & any_before),
            choose.requests.eq(due & self.waiting),
            choose.advance.eq(self.advance),
            self.calls.eq(choose.any),
            self.calling.eq(choose.index),
        ]
        with m.If(self.append):
            m.d.comb += [
                queue_write.data.head.eq(Mux(any_before, found.head, self.number)),
                queue_write.data.tail.eq(self.number),
            ]
            m.d.sync += self.waiting.eq(self.waiting | mask)
        with m.Elif(self.pop):
            m.d.comb += queue_write.data.head.eq(link_read.data)
            with m.If(found.head == found.tail):
                m.d.sync += self.waiting.eq(self.waiting & ~mask)
        with m.If(self.retry):
            m.d.sync += due.eq(-1)
        with m.Elif(self.refuse):
            m.d.sync += due.eq(due & ~mask)
        return m
