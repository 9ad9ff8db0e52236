"""Sequential reads of arrays that have lost a drive: whether gathering their rows pays."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.extent import extent
from hdl.flow.geometry import geometry
from hdl.flow.host_command import HostOpcode
from hdl.stripe.gather.stream_detector import StreamDetector

STREAMS_BITS = 9
"""log2 of the entries for streams; one that is lost to a collision costs three stripes."""

AGE_BITS = 4
"""A command is told from one that had its slot before, but for one in 2**`AGE_BITS`."""


class ReadStreams(wiring.Component):
    """Says whether a READ extent shall wait for the other blocks of its rows.

    A row whose data is partly lost is read as a whole for each lost block. When its other blocks
    are asked for as well, each is read once if all are gathered first; but a host that has little
    outstanding would only wait longer. So the stripe of a stream (commands that continue each
    other, `StreamDetector`) is gathered if the command with which the stream began the stripe
    before the last is still outstanding, and is another than this one: then the host is at least
    two stripes ahead of its data. The array must have parity and be ``impaired``, and the block
    not have been tried otherwise.

    Parameters
    ----------
    config
        Sizes; without ``gather_reads`` no extent waits.

    Ports
    -----
    extent, geometry
        A READ and its array; must hold from the cycle before ``note``, the array's from ``note``
        on, until the answer has been used.
    impaired
        Bit an array that has lost drives, but no data.
    ended, ended_slot
        A pulse: the command of this slot has completed.
    note
        A pulse; ``gathers`` is the answer from two cycles after it on.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "extent": In(extent(config)),
                "geometry": In(geometry(config)),
                "impaired": In(config.arrays),
                "ended": In(1),
                "ended_slot": In(config.slot_bits),
                "note": In(1),
                "gathers": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        if not config.gather_reads:
            return m
        # ``latest``, ``before``: commands with which the stream began its last two stripes.
        mark = data.StructLayout({"any": 1, "slot": config.slot_bits, "age": AGE_BITS})
        stream = data.StructLayout({"latest": mark, "before": mark, "gathers": 1})
        m.submodules.detector = detector = StreamDetector(
            config=config, keeps=stream, streams_bits=STREAMS_BITS
        )

        # How many commands each slot has had.
        m.submodules.ages = ages = Memory(shape=AGE_BITS, depth=config.commands, init=[])
        own_age, mark_age, old_age = (ages.read_port() for _ in range(3))
        next_age = ages.write_port()
        ended, ended_slot = Signal(), Signal(config.slot_bits)
        m.d.sync += [ended.eq(self.ended), ended_slot.eq(self.ended_slot)]
        m.d.comb += [
            next_age.en.eq(ended),
            next_age.addr.eq(ended_slot),
            own_age.addr.eq(self.extent.slot),
            old_age.addr.eq(self.ended_slot),
            next_age.data.eq(old_age.data + 1),
            self.busy.eq(self.ended | ended),
        ]

        tried = self.extent.recover.as_value().any()
        first_try = Signal()
        noted = Signal()
        helps = Signal()
        strip_mask = Signal(9)
        m.d.comb += [
            first_try.eq(~tried & (self.extent.opcode == HostOpcode.READ)),
            noted.eq(self.note & first_try),
            strip_mask.eq((1 << self.geometry.strip_shift) - 1),
            detector.extent.eq(self.extent),
            detector.geometry.eq(self.geometry),
            detector.note.eq(noted),
        ]

        current = Signal(stream)
        found = Signal(stream)
        s1_stream = Signal(stream)
        s1_begins = Signal()
        s1_noted = Signal()
        m.d.comb += found.eq(current)
        with m.If(self.extent.offset == 0):
            m.d.comb += found.eq(Mux(detector.met, detector.kept, 0))
        m.d.comb += mark_age.addr.eq(found.before.slot)
        m.d.sync += [
            s1_stream.eq(found),
            s1_begins.eq((self.extent.ordinal == 0) & ((self.extent.row & strip_mask) == 0)),
            s1_noted.eq(noted),
            helps.eq(
                (self.geometry.parities != 0) & self.impaired.bit_select(self.extent.array, 1)
            ),
        ]

        after = Signal(stream)
        before = s1_stream.before
        m.d.comb += [after.eq(s1_stream), detector.keep.eq(after)]
        with m.If(s1_begins):
            m.d.comb += [
                after.before.eq(s1_stream.latest),
                after.latest.any.eq(1),
                after.latest.slot.eq(self.extent.slot),
                after.latest.age.eq(own_age.data),
                after.gathers.eq(
                    before.any & (before.age == mark_age.data) & (before.slot != self.extent.slot)
                ),
            ]
        with m.If(s1_noted):
            m.d.sync += current.eq(after)
        m.d.comb += self.gathers.eq(first_try & helps & current.gathers)
        return m
