"""Submission entries of I/O queues on their way: places of the inbox and reads in flight."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.host_memory import sqe_slots
from hdl.nvme.admin.features import BURST_BITS
from hdl.nvme.commands.lifetimes import AGE_BITS
from hdl.nvme.records import FETCH_ENTRIES, FETCHES, entry, position_bits, queue_bits


class EntryRing(wiring.Component):
    """Hands out places for entries in ring order, and offers the entries in the same order.

    Parameters
    ----------
    config
        Sizes: `sqe_slots` places, `FETCHES` reads in flight.

    Ports
    -----
    begin, queue, count, head, age, mixed
        A pulse: a read of ``count`` entries of ``queue`` into ``place`` on, as transfer ``index``.
        Only with ``room`` at least ``count``. ``head`` is that of the queue after it. ``age`` and
        ``mixed`` go with its entries.
    place, index, room, any_room
        Where the next read goes, its transfer index, how many entries it may have, and whether
        that is any.
    burst
        Arbitration Burst (NVMe 1.4 section 5.21.1.1): log2 of the most entries of a read.
    done, done_index, done_error
        A pulse: a read has ended.
    arrived, arrived_queue, arrived_head
        A pulse: a read has ended, and all before it; the queue, and ``head`` as it came with the
        read. The host may use the slots before it again.
    entry
        The entries, in the order of the reads, not before their read has ``arrived``. Taking one
        gives its place back.

    Latency 3 cycles from ``done`` to ``entry``; one entry a cycle within a read.
    """

    def __init__(self, *, config: Config):
        self._config = config
        self._places = sqe_slots(config)
        self._index_bits = bits_for_count(FETCHES)
        self._place_bits = bits_for_count(self._places)
        super().__init__(
            {
                "begin": In(1),
                "queue": In(queue_bits(config)),
                "count": In(range(FETCH_ENTRIES + 1)),
                "head": In(position_bits(config)),
                "age": In(AGE_BITS),
                "mixed": In(1),
                "place": Out(self._place_bits),
                "index": Out(self._index_bits),
                "room": Out(range(FETCH_ENTRIES + 1)),
                "burst": In(BURST_BITS),
                "any_room": Out(1),
                "done": In(1),
                "done_index": In(self._index_bits),
                "done_error": In(1),
                "arrived": Out(1),
                "arrived_queue": Out(queue_bits(config)),
                "arrived_head": Out(position_bits(config)),
                "entry": Out(stream.Signature(entry(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        shape = data.StructLayout(
            {
                "queue": self.queue.shape(),
                "count": range(FETCH_ENTRIES + 1),
                "head": self.head.shape(),
                "age": AGE_BITS,
                "mixed": 1,
            }
        )
        m.submodules.reads = reads = memory.Memory(shape=shape, depth=FETCHES, init=[])
        store, load = reads.write_port(), reads.read_port()

        oldest = Signal(self._index_bits)
        in_flight = Signal(range(FETCHES + 1))
        used = Signal(range(self._places + 1))
        ended = Signal(FETCHES)
        failed = Signal(FETCHES)
        left = Signal(range(FETCH_ENTRIES + 1))
        read_place = Signal(self._place_bits)
        taken = Signal()
        retired = Signal()

        # Room: free places up to the end of the ring, at most a read's worth.
        free = Signal(range(self._places + 1))
        to_end = Signal(range(self._places + 1))
        least = Signal(range(self._places + 1))
        m.d.comb += [
            free.eq(self._places - used),
            to_end.eq(self._places - self.place),
            least.eq(Mux(free < to_end, free, to_end)),
        ]
        most = Signal(range(FETCH_ENTRIES + 1), init=FETCH_ENTRIES)
        m.d.sync += most.eq(FETCH_ENTRIES)
        for exponent in range(FETCH_ENTRIES.bit_length() - 1):
            with m.If(self.burst == exponent):
                m.d.sync += most.eq(1 << exponent)
        m.d.comb += self.any_room.eq((in_flight != FETCHES) & (used != self._places))
        with m.If(in_flight != FETCHES):
            m.d.comb += self.room.eq(Mux(least < most, least, most))

        m.d.comb += [
            store.addr.eq(self.index),
            store.data.queue.eq(self.queue),
            store.data.count.eq(self.count),
            store.data.head.eq(self.head),
            store.data.age.eq(self.age),
            store.data.mixed.eq(self.mixed),
            store.en.eq(self.begin),
            load.addr.eq(oldest),
            taken.eq(self.entry.valid & self.entry.ready),
            self.entry.payload.queue.eq(load.data.queue),
            self.entry.payload.age.eq(load.data.age),
            self.entry.payload.mixed.eq(load.data.mixed),
            self.arrived_queue.eq(load.data.queue),
            self.arrived_head.eq(load.data.head),
            self.entry.payload.place.eq(read_place),
            self.entry.payload.error.eq(failed.bit_select(oldest, 1)),
        ]
        m.d.sync += [
            in_flight.eq(in_flight + self.begin - retired),
            used.eq(used + Mux(self.begin, self.count, 0) - taken),
        ]
        with m.If(self.begin):
            m.d.sync += [
                self.index.eq(self.index + 1),
                self.place.eq(self.place + self.count),
                ended.bit_select(self.index, 1).eq(0),
            ]
        with m.If(self.done):
            m.d.sync += [
                ended.bit_select(self.done_index, 1).eq(1),
                failed.bit_select(self.done_index, 1).eq(self.done_error),
            ]

        ready = (in_flight != 0) & ended.bit_select(oldest, 1)
        with m.FSM(name="entries") as fsm:
            with m.State("WAIT"):
                with m.If(ready):
                    m.next = "LOAD"

            with m.State("LOAD"):
                m.d.comb += self.arrived.eq(1)
                m.d.sync += left.eq(load.data.count)
                m.next = "OFFER"

            with m.State("OFFER"):
                m.d.comb += self.entry.valid.eq(1)
                with m.If(self.entry.ready):
                    m.d.sync += [left.eq(left - 1), read_place.eq(read_place + 1)]
                    with m.If(left == 1):
                        m.d.comb += retired.eq(1)
                        m.d.sync += oldest.eq(oldest + 1)
                        m.next = "WAIT"

            waits = (fsm.ongoing("WAIT") & ~ready) | (fsm.ongoing("OFFER") & ~self.entry.ready)
            m.d.comb += self.busy.eq(~waits | self.done | self.begin)
        return m
