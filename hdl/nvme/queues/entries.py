"""Submission entries of I/O queues on their way: places of the inbox and reads in flight."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.host_memory import sqe_slots
from hdl.kit.table import Table
from hdl.nvme.admin.features import BURST_BITS
from hdl.nvme.commands.lifetimes import AGE_BITS
from hdl.nvme.records import (
    FETCH_ENTRIES,
    FETCHES,
    assign,
    entry,
    position_bits,
    queue_bits,
)


def entries_read(config: Config) -> data.StructLayout:
    """A read of entries of ``queue``. ``head`` is that of the queue after it."""
    return data.StructLayout(
        {
            "queue": queue_bits(config),
            "count": range(FETCH_ENTRIES + 1),
            "head": position_bits(config),
            "age": AGE_BITS,
            "mixed": 1,
        }
    )


class EntryRing(wiring.Component):
    """Hands out places for entries in ring order, and offers the entries in the same order.

    Parameters
    ----------
    config
        Sizes: `sqe_slots` places, `FETCHES` reads in flight.

    Ports
    -----
    begin
        A pulse: a read of ``count`` entries begins. They go to ``inbox_place`` and those behind.
        Only with ``room`` at least ``count``.
    queue
        With ``begin``: the queue of the entries.
    count
        With ``begin``: how many entries are read.
    head
        With ``begin``: the head of the queue after the read.
    age
        With ``begin``: goes with the entries (`hdl.nvme.records.entry`).
    mixed
        With ``begin``: goes with the entries (`hdl.nvme.records.entry`).
    inbox_place
        Where in the inbox the next read goes.
    transfer
        Transfer index of the next read.
    room
        How many entries the next read may have.
    burst
        Arbitration Burst (NVMe 1.4 section 5.21.1.1): log2 of the most entries of a read.
    any_room
        The next read may have entries.
    done
        A pulse: a read has ended.
    done_index
        With ``done``: its transfer index.
    done_error
        With ``done``: its entries could not be read.
    arrived
        A pulse: a read has ended, and all before it.
    arrived_queue
        With ``arrived``: its queue.
    arrived_head
        With ``arrived``: ``head`` as it came with the read. The host may use the slots before it
        again.
    entry
        The entries, in the order of the reads, not before their read has ``arrived``. Taking one
        gives its place back.
    busy
        Something moves without anybody else being waited for.

    Latency: 3 cycles from ``done`` to ``entry``. One entry a cycle within a read.
    """

    def __init__(self, *, config: Config):
        self._places = sqe_slots(config)
        transfer_bits, place_bits = bits_for_count(FETCHES), bits_for_count(self._places)
        super().__init__(
            {
                "begin": In(1),
                "queue": In(queue_bits(config)),
                "count": In(range(FETCH_ENTRIES + 1)),
                "head": In(position_bits(config)),
                "age": In(AGE_BITS),
                "mixed": In(1),
                "inbox_place": Out(place_bits),
                "transfer": Out(transfer_bits),
                "room": Out(range(FETCH_ENTRIES + 1)),
                "burst": In(BURST_BITS),
                "any_room": Out(1),
                "done": In(1),
                "done_index": In(transfer_bits),
                "done_error": In(1),
                "arrived": Out(1),
                "arrived_queue": Out(queue_bits(config)),
                "arrived_head": Out(position_bits(config)),
                "entry": Out(stream.Signature(entry(config))),
                "busy": Out(1),
            }
        )

        # Reads in flight: the oldest of them, how many there are, places that they use. A bit each:
        # it has ended, it has failed.
        self._reads = Table(entries_read(config), FETCHES)
        self._read = self._reads.reads[0].data
        self._oldest = Signal(transfer_bits)
        self._in_flight = Signal(range(FETCHES + 1))
        self._used = Signal(range(self._places + 1))
        self._ended = Signal(FETCHES)
        self._failed = Signal(FETCHES)

        # Entries of the oldest read: how many are left, and where the next one is.
        self._left = Signal(range(FETCH_ENTRIES + 1))
        self._read_place = Signal(place_bits)
        self._retired = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.reads = self._reads
        self._measure_room(m)
        self._describe(m)
        self._follow_reads(m)
        ready = (self._in_flight != 0) & self._ended.bit_select(self._oldest, 1)
        with m.FSM(name="entries") as fsm:
            with m.State("WAIT"):
                with m.If(ready):
                    m.next = "LOAD"

            with m.State("LOAD"):
                m.d.comb += self.arrived.eq(1)
                m.d.sync += self._left.eq(self._read.count)
                m.next = "OFFER"

            self._offer(m)
            waits = (fsm.ongoing("WAIT") & ~ready) | (fsm.ongoing("OFFER") & ~self.entry.ready)
            m.d.comb += self.busy.eq(~waits | self.done | self.begin)
        return m

    def _measure_room(self, m: Module) -> None:
        """Free places up to the end of the ring, at most those of a read."""
        free, to_end, least = (
            Signal(range(self._places + 1), name=name) for name in ("free", "to_end", "least")
        )
        most = Signal(range(FETCH_ENTRIES + 1), init=FETCH_ENTRIES)
        m.d.comb += [
            free.eq(self._places - self._used),
            to_end.eq(self._places - self.inbox_place),
            least.eq(Mux(free < to_end, free, to_end)),
            self.any_room.eq((self._in_flight != FETCHES) & (self._used != self._places)),
        ]
        m.d.sync += most.eq(FETCH_ENTRIES)
        for exponent in range(FETCH_ENTRIES.bit_length() - 1):
            with m.If(self.burst == exponent):
                m.d.sync += most.eq(1 << exponent)
        with m.If(self._in_flight != FETCHES):
            m.d.comb += self.room.eq(Mux(least < most, least, most))

    def _describe(self, m: Module) -> None:
        """What is kept of a read, and what of the oldest one is offered."""
        m.d.comb += [
            self._reads.write.address.eq(self.transfer),
            *assign(
                self._reads.write.data,
                queue=self.queue,
                count=self.count,
                head=self.head,
                age=self.age,
                mixed=self.mixed,
            ),
            self._reads.write.enable.eq(self.begin),
            self._reads.reads[0].address.eq(self._oldest),
            *assign(
                self.entry.payload,
                queue=self._read.queue,
                place=self._read_place,
                error=self._failed.bit_select(self._oldest, 1),
                age=self._read.age,
                mixed=self._read.mixed,
            ),
            self.arrived_queue.eq(self._read.queue),
            self.arrived_head.eq(self._read.head),
        ]

    def _follow_reads(self, m: Module) -> None:
        """Reads that begin, end, and go once all their entries have been taken."""
        taken = Signal()
        m.d.comb += taken.eq(self.entry.valid & self.entry.ready)
        m.d.sync += [
            self._in_flight.eq(self._in_flight + self.begin - self._retired),
            self._used.eq(self._used + Mux(self.begin, self.count, 0) - taken),
        ]
        with m.If(self.begin):
            m.d.sync += [
                self.transfer.eq(self.transfer + 1),
                self.inbox_place.eq(self.inbox_place + self.count),
                self._ended.bit_select(self.transfer, 1).eq(0),
            ]
        with m.If(self.done):
            m.d.sync += [
                self._ended.bit_select(self.done_index, 1).eq(1),
                self._failed.bit_select(self.done_index, 1).eq(self.done_error),
            ]

    def _offer(self, m: Module) -> None:
        """The state OFFER: the entries of the oldest read, one after the other."""
        left, read_place = self._left, self._read_place
        with m.State("OFFER"):
            m.d.comb += self.entry.valid.eq(1)
            with m.If(self.entry.ready):
                m.d.sync += [left.eq(left - 1), read_place.eq(read_place + 1)]
                with m.If(left == 1):
                    m.d.comb += self._retired.eq(1)
                    m.d.sync += self._oldest.eq(self._oldest + 1)
                    m.next = "WAIT"
