"""Submission entries of I/O queues on their way: places of the inbox and reads in flight."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.host_memory import sqe_slots
from hdl.kit.pulse import Pulse
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
    """A read of ``count`` entries of ``queue``. ``head`` is that of the queue after it. ``age`` and
    ``mixed`` go with the entries (`hdl.nvme.records.entry`)."""
    return data.StructLayout(
        {
            "queue": queue_bits(config),
            "count": range(FETCH_ENTRIES + 1),
            "head": position_bits(config),
            "age": AGE_BITS,
            "mixed": 1,
        }
    )


def entries_done(index) -> data.StructLayout:
    """The read of entries with transfer index ``index`` has ended. ``error``: it has failed."""
    return data.StructLayout({"index": index, "error": 1})


def arrived_head(config: Config) -> data.StructLayout:
    """Entries of ``queue`` have been read up to ``head``."""
    return data.StructLayout({"queue": queue_bits(config), "head": position_bits(config)})


class EntryRing(wiring.Component):
    """Hands out places for entries in ring order, and offers the entries in the same order.

    Parameters
    ----------
    config
        Sizes: `sqe_slots` places, `FETCHES` reads in flight.

    Ports
    -----
    begin
        A read begins. Its entries go to ``inbox_place`` and those behind. Only with ``room`` for
        all of them.
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
        A read has ended.
    arrived
        A read has ended, and all before it. The host may use the slots before its head again.
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
                "begin": In(Pulse(entries_read(config))),
                "inbox_place": Out(place_bits),
                "transfer": Out(transfer_bits),
                "room": Out(range(FETCH_ENTRIES + 1)),
                "burst": In(BURST_BITS),
                "any_room": Out(1),
                "done": In(Pulse(entries_done(transfer_bits))),
                "arrived": Out(Pulse(arrived_head(config))),
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
                m.d.comb += self.arrived.valid.eq(1)
                m.d.sync += self._left.eq(self._read.count)
                m.next = "OFFER"

            self._offer(m)
            waits = (fsm.ongoing("WAIT") & ~ready) | (fsm.ongoing("OFFER") & ~self.entry.ready)
            m.d.comb += self.busy.eq(~waits | self.done.valid | self.begin.valid)
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
            self._reads.write.data.eq(self.begin.payload),
            self._reads.write.enable.eq(self.begin.valid),
            self._reads.reads[0].address.eq(self._oldest),
            *assign(
                self.entry.payload,
                queue=self._read.queue,
                place=self._read_place,
                error=self._failed.bit_select(self._oldest, 1),
                age=self._read.age,
                mixed=self._read.mixed,
            ),
            self.arrived.payload.queue.eq(self._read.queue),
            self.arrived.payload.head.eq(self._read.head),
        ]

    def _follow_reads(self, m: Module) -> None:
        """Reads that begin, end, and go once all their entries have been taken."""
        begin, done, taken = self.begin.payload, self.done.payload, Signal()
        m.d.comb += taken.eq(self.entry.valid & self.entry.ready)
        m.d.sync += [
            self._in_flight.eq(self._in_flight + self.begin.valid - self._retired),
            self._used.eq(self._used + Mux(self.begin.valid, begin.count, 0) - taken),
        ]
        with m.If(self.begin.valid):
            m.d.sync += [
                self.transfer.eq(self.transfer + 1),
                self.inbox_place.eq(self.inbox_place + begin.count),
                self._ended.bit_select(self.transfer, 1).eq(0),
            ]
        with m.If(self.done.valid):
            m.d.sync += [
                self._ended.bit_select(done.index, 1).eq(1),
                self._failed.bit_select(done.index, 1).eq(done.error),
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
