"""Sequential reads of arrays that have lost a drive: whether gathering their rows pays."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.extent import extent
from hdl.flow.geometry import geometry
from hdl.flow.host_command import HostOpcode
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.stripe.gather.stream_detector import StreamDetector

STREAMS_BITS = 9
"""log2 of the entries for streams; one that is lost to a collision costs three stripes."""

AGE_BITS = 4
"""A command is told from one that had its slot before, but for one in 2**`AGE_BITS`."""


class ReadStreams(wiring.Component):
    """Says whether a READ extent shall wait for the other blocks of its rows.

    A row whose data is partly lost is read as a whole for each lost block. If its other blocks are
    asked for as well, each is read once if all are gathered first. But a host that has little
    outstanding would only wait longer. So the stripe of a stream (commands that continue each
    other, `StreamDetector`) is gathered only if the host is at least two stripes ahead of its data.
    It is if the command with which the stream began the stripe before the last is still
    outstanding, and is another than this one. The array must have parity and be ``impaired``, and
    the block must not have been tried otherwise.

    Parameters
    ----------
    config
        Sizes. Without ``gather_reads`` no extent waits.

    Ports
    -----
    extent
        A READ. It must hold from the cycle before ``note`` until the answer has been used.
    geometry
        That of its array. It must hold from ``note`` until the answer has been used.
    impaired
        A bit an array: it has lost drives, but no data.
    ended
        A command has completed, in this slot.
    note
        A pulse: the extent comes.
    gathers
        From two cycles after ``note`` on: the extent shall wait.
    busy
        Something is being counted.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "extent": In(extent(config)),
                "geometry": In(geometry(config)),
                "impaired": In(config.arrays),
                "ended": In(Pulse(config.slot_bits)),
                "note": In(1),
                "gathers": Out(1),
                "busy": Out(1),
            }
        )

        if config.gather_reads:
            self._make_parts(config)

    def _make_parts(self, config: Config) -> None:
        # ``latest``, ``before``: commands with which the stream began its last two stripes.
        mark = data.StructLayout({"any": 1, "slot": config.slot_bits, "age": AGE_BITS})
        self._stream = data.StructLayout({"latest": mark, "before": mark, "gathers": 1})
        self._detector = StreamDetector(
            config=config, keeps=self._stream, streams_bits=STREAMS_BITS
        )
        # How many commands each slot has had: that of the extent, that of a mark, one that ends.
        self._ages = Table(AGE_BITS, config.commands, reads=3)
        self._own_age, self._mark_age, self._old_age = self._ages.reads
        self._first_try = Signal()  # a read that has not been tried otherwise
        self._noted = Signal()
        self._found = Signal(self._stream)  # the stream of the extent

    def elaborate(self, platform) -> Module:
        m = Module()
        if self._config.gather_reads:
            m.submodules.detector = self._detector
            m.submodules.ages = self._ages
            self._follow_ages(m)
            self._detect(m)
            self._judge(m)
        return m

    def _follow_ages(self, m: Module) -> None:
        """Counts the commands of each slot."""
        ended = Signal()
        ended_slot = Signal(self._config.slot_bits)
        m.d.sync += [ended.eq(self.ended.valid), ended_slot.eq(self.ended.payload)]
        m.d.comb += [
            self._ages.write.enable.eq(ended),
            self._ages.write.address.eq(ended_slot),
            self._ages.write.data.eq(self._old_age.data + 1),
            self._own_age.address.eq(self.extent.slot),
            self._mark_age.address.eq(self._found.before.slot),
            self._old_age.address.eq(self.ended.payload),
            self.busy.eq(self.ended.valid | ended),
        ]

    def _detect(self, m: Module) -> None:
        """Reads that are tried for the first time go to the detector."""
        detector = self._detector
        tried = self.extent.recover.as_value().any()
        m.d.comb += [
            self._first_try.eq(~tried & (self.extent.opcode == HostOpcode.READ)),
            self._noted.eq(self.note & self._first_try),
            detector.extent.eq(self.extent),
            detector.geometry.eq(self.geometry),
            detector.note.eq(self._noted),
        ]

    def _judge(self, m: Module) -> None:
        """Follows the stream from stripe to stripe, and says whether gathering pays."""
        detector, extent, found = self._detector, self.extent, self._found
        current = Signal(self._stream)
        helps = Signal()
        strip_mask = Signal(9)
        s1_stream = Signal(self._stream)
        s1_begins = Signal()
        s1_noted = Signal()
        m.d.comb += [
            strip_mask.eq((1 << self.geometry.strip_shift) - 1),
            found.eq(current),
        ]
        with m.If(extent.offset == 0):
            m.d.comb += found.eq(Mux(detector.met, detector.kept, 0))
        m.d.sync += [
            s1_stream.eq(found),
            s1_begins.eq((extent.ordinal == 0) & ((extent.row & strip_mask) == 0)),
            s1_noted.eq(self._noted),
            helps.eq((self.geometry.parities != 0) & self.impaired.bit_select(extent.array, 1)),
        ]

        after = Signal(self._stream)
        before = s1_stream.before
        m.d.comb += [after.eq(s1_stream), detector.keep.eq(after)]
        with m.If(s1_begins):
            is_there = before.any & (before.age == self._mark_age.data)
            m.d.comb += [
                after.before.eq(s1_stream.latest),
                after.latest.any.eq(1),
                after.latest.slot.eq(extent.slot),
                after.latest.age.eq(self._own_age.data),
                after.gathers.eq(is_there & (before.slot != extent.slot)),
            ]
        with m.If(s1_noted):
            m.d.sync += current.eq(after)
        m.d.comb += self.gathers.eq(self._first_try & helps & current.gathers)
