"""From a host command to the strips that it touches."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.array.mapping.division import DIGIT_BITS, DivideDigit
from hdl.array.mapping.strip import PLACE_BITS, NextStrip, strip
from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.extent import extent
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.host_command import HostOpcode, Status, command
from hdl.flow.table_read import geometry_read, volume_read

STRIP_BITS = 8
"""A strip has at most 2**8 blocks."""

PLACE_NUMBER_BITS = BLOCK_NUMBER_BITS + WIDTH_BITS
"""Width of strip number times copies."""

DIGITS = -(-PLACE_NUMBER_BITS // DIGIT_BITS)
CHAIN = 3
"""Divisions in a chain: by data strips, by spans, by drives."""


class Mapper(wiring.Component):
    """Turns each command into extents, in order, each within one strip.

    A strip number is divided by the data strips of a stripe, and the remainder is the index. The
    quotient is divided by the spans, and the remainder is the span. The stripe is divided by the
    drives, and the remainder is how far parity has moved. Data role 0 begins at the place that the
    rotation gives it in stripe 0, and moves by a drive each stripe. Where data ascends, the strip
    at place 0 is the first of a stripe. For mirrors the strip number is multiplied by the copies
    first, then divided by the drives. The remainder is the place of the first copy. Later extents
    of a command follow by stepping (`NextStrip`).

    An extent of a write is cut where later extents of the command stop touching its rows, so that
    ``final`` is exact. Extents of a read are not cut and have ``final`` = 1. For mirrors ``index``
    counts the strips whose first copy begins in the stripe of ``row``, and ``shift`` is the place
    of the first of them. So (array, base, row, index) names one data block at every level.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    command
        Host commands, and retries of single blocks.
    extent
        What they touch. A FLUSH is one extent. So is a command that fails, with its ``status``.
    volume_read
        Table of the volumes.
    geometry_read
        Table of the arrays.
    busy
        It works, and waits for nobody.

    Latency: 21 cycles from command to first extent. Mirrors take 3 more, and one for each bit of
    the number of copies. Each later extent takes 3 cycles. One command at a time. Back-pressure on
    ``extent`` holds everything.

    Errors: INVALID_NAMESPACE for a volume that does not exist, LBA_OUT_OF_RANGE for blocks beyond
    its end, INTERNAL_ERROR for a volume on an array that does not exist.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "command": In(stream.Signature(command(config))),
                "extent": Out(stream.Signature(extent(config))),
                "volume_read": Out(volume_read(config)),
                "geometry_read": Out(geometry_read(config)),
                "busy": Out(1),
            }
        )

        # The command, its array, and how far it is, in blocks.
        self._request = Signal(command(config))
        self._array = Signal(config.array_bits)
        self._shape = Signal(geometry(config))
        self._status = Signal(Status)
        self._block = Signal(BLOCK_NUMBER_BITS)
        self._remaining = Signal(config.offset_bits + 1)
        self._offset = Signal(config.offset_bits)

        # The strip at hand, and the block in it; the strip after it.
        self._next_strip = NextStrip(config=config)
        self._at = Signal(strip())
        self._within = Signal(STRIP_BITS)
        self._strip_blocks = Signal(STRIP_BITS + 1)

        # Chain of divisions, most significant digit first; a digit moves one stage a cycle.
        self._by_data, self._by_spans, self._by_width = (DivideDigit() for _ in range(CHAIN))
        self._number = Signal(DIGITS * DIGIT_BITS)
        self._step = Signal(range(DIGITS + CHAIN))
        self._index = Signal(PLACE_BITS)
        self._data_digit = Signal(DIGIT_BITS)
        self._span = Signal(PLACE_BITS)
        self._spans_digit = Signal(DIGIT_BITS)
        self._spans_or_copies = Signal(WIDTH_BITS)
        self._turn = Signal(PLACE_BITS)
        self._stripe = Signal(BLOCK_NUMBER_BITS)

        # Multiplication of the strip number by the copies.
        self._addend = Signal(PLACE_NUMBER_BITS)
        self._multiplier = Signal(WIDTH_BITS)

        # Rotation: where data role 0 begins in stripe 0, and in this one; the data role.
        self._begins = Signal(3)
        self._rotated = Signal(WIDTH_BITS + 1)
        self._role = Signal(WIDTH_BITS + 1)

        # The extent: what the command has left in this strip, and beyond it; what of that is cut.
        self._room = Signal(STRIP_BITS + 1)
        self._length = Signal(config.offset_bits + 1)
        self._beyond = Signal(config.offset_bits + 1)
        self._piece = Signal(config.offset_bits + 1)
        self._final = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        self._connect_divisions(m)
        self._rotate(m)
        after = self._measure(m)
        with m.FSM(name="map") as fsm:
            self._take(m)
            self._load(m)
            self._divide(m)
            self._locate(m)
            self._cut(m, after)
            self._report(m)
            self._emit(m)
        waits = (fsm.ongoing("TAKE") & ~self.command.valid) | (
            fsm.ongoing("EMIT") & ~self.extent.ready
        )
        m.d.comb += self.busy.eq(~waits)
        return m

    def _connect_divisions(self, m: Module) -> None:
        """What is divided by what: by data strips, by spans or copies, by drives."""
        m.submodules.divide_data = by_data = self._by_data
        m.submodules.divide_spans = by_spans = self._by_spans
        m.submodules.divide_width = by_width = self._by_width
        m.d.comb += [
            by_data.digit.eq(self._number[-DIGIT_BITS:]),
            by_data.remainder.eq(self._index),
            by_data.divisor.eq(self._shape.data),
            by_spans.digit.eq(self._data_digit),
            by_spans.remainder.eq(self._span),
            by_spans.divisor.eq(self._spans_or_copies),
            by_width.digit.eq(self._spans_digit),
            by_width.remainder.eq(self._turn),
            by_width.divisor.eq(self._shape.width),
        ]

    def _rotate(self, m: Module) -> None:
        """Where data begins in the stripe, and which data role has the strip."""
        shape, at, begins = self._shape, self._at, self._begins
        rotation = shape.rotation
        # Data role 0 follows the parities.
        with m.If(rotation.right):
            m.d.sync += begins.eq(shape.parities)
            m.d.comb += self._rotated.eq(begins + self._turn)
        with m.Else():
            m.d.sync += begins.eq(
                Mux(rotation.fixed | rotation.ddf | ~shape.rotate, 0, shape.parities - 1)
            )
            m.d.comb += self._rotated.eq(begins + shape.width - self._turn)
        # Where data ascends, the role at place 0, if that is data, begins the stripe.
        ascends = Signal(PLACE_BITS)
        m.d.sync += ascends.eq(0)
        with m.If(rotation.ascending & (shape.width - at.shift < shape.data)):
            m.d.sync += ascends.eq(shape.width - at.shift)
        m.d.comb += self._role.eq(at.index + ascends)

    def _measure(self, m: Module):
        """How much of the command is in this strip, and which of its rows, from 0 on, later extents
        touch as well. Returns the strip after it."""
        within, strip_blocks = self._within, self._strip_blocks
        m.submodules.next_strip = next_strip = self._next_strip
        # These are read two cycles or more after what they depend on has changed.
        turns = Signal()
        after = Signal.like(self._at)
        m.d.sync += [
            strip_blocks.eq(1 << self._shape.strip_shift),
            turns.eq(next_strip.turns),
            after.eq(next_strip.after),
        ]
        shared = Signal(STRIP_BITS + 1)
        writes = self._request.opcode == HostOpcode.WRITE
        touched = Mux(self._beyond < strip_blocks, self._beyond, strip_blocks)
        reaches = within + self._length > shared
        m.d.comb += [
            next_strip.geometry.eq(self._shape),
            next_strip.at.eq(self._at),
            self._room.eq(strip_blocks - within),
            shared.eq(Mux(turns | ~writes, 0, touched)),
            self._final.eq(within >= shared),
            self._piece.eq(Mux(~self._final & reaches, shared - within, self._length)),
        ]
        return after

    def _take(self, m: Module) -> None:
        """The states TAKE and CHECK: a command, and its volume."""
        request, arriving, volume = self._request, self.command.payload, self.volume_read.data
        with m.State("TAKE"):
            m.d.comb += [
                self.command.ready.eq(1),
                self.volume_read.address.eq(arriving.volume),
            ]
            m.d.sync += [
                request.eq(arriving),
                self._remaining.eq(arriving.blocks + 1),
                self._offset.eq(arriving.offset),
            ]
            with m.If(self.command.valid):
                m.next = "CHECK"
        with m.State("CHECK"):
            flush = request.opcode == HostOpcode.FLUSH
            beyond_end = request.block + request.blocks >= volume.blocks
            m.d.comb += self.geometry_read.address.eq(volume.array)
            m.d.sync += [
                self._array.eq(volume.array),
                self._block.eq(volume.start + request.block),
                self._status.eq(Status.SUCCESS),
            ]
            m.next = "LOAD"
            with m.If(~volume.valid):
                m.d.sync += self._status.eq(Status.INVALID_NAMESPACE)
                m.next = "REPORT"
            with m.Elif(~flush & beyond_end):
                m.d.sync += self._status.eq(Status.LBA_OUT_OF_RANGE)
                m.next = "REPORT"

    def _load(self, m: Module) -> None:
        """The states LOAD, which begins with the strip number, and MULTIPLY, of mirrors."""
        loaded, block, number = self.geometry_read.data, self._block, self._number
        addend, multiplier = self._addend, self._multiplier
        with m.State("LOAD"):
            strip_number = Signal(BLOCK_NUMBER_BITS)
            m.d.comb += strip_number.eq(block >> loaded.strip_shift)
            m.d.sync += [
                self._shape.eq(loaded),
                self._within.eq(block & ((1 << loaded.strip_shift) - 1)),
                addend.eq(strip_number),
                number.eq(Mux(loaded.copies > 1, 0, strip_number)),
                multiplier.eq(loaded.copies),
                self._spans_or_copies.eq(loaded.spans),
                self._step.eq(0),
                self._index.eq(0),
                self._span.eq(0),
                self._turn.eq(0),
                self._data_digit.eq(0),
                self._spans_digit.eq(0),
                self._stripe.eq(0),
            ]
            with m.If(~loaded.valid):
                m.d.sync += self._status.eq(Status.INTERNAL_ERROR)
                m.next = "REPORT"
            with m.Elif(self._request.opcode == HostOpcode.FLUSH):
                m.next = "REPORT"
            with m.Elif(loaded.copies > 1):
                m.next = "MULTIPLY"
            with m.Else():
                m.next = "DIVIDE"
            m.d.sync += Assert(
                ~loaded.valid | (loaded.width != 0), "a command of an array of width 0"
            )
        with m.State("MULTIPLY"):
            m.d.sync += [addend.eq(addend << 1), multiplier.eq(multiplier >> 1)]
            with m.If(multiplier[0]):
                m.d.sync += number.eq(number + addend)
            with m.If(multiplier == 0):
                m.next = "DIVIDE"

    def _divide(self, m: Module) -> None:
        """The state DIVIDE, a digit a cycle, and for mirrors SPLIT_HIGH and SPLIT_LOW: the
        remainder is a place, and its index counts in steps of the copies."""
        index, by_spans, step = self._index, self._by_spans, self._step
        with m.State("DIVIDE"):
            m.d.sync += step.eq(step + 1)
            with m.If(step < DIGITS):
                m.d.sync += [
                    self._number.eq(self._number << DIGIT_BITS),
                    self._data_digit.eq(self._by_data.quotient),
                    index.eq(self._by_data.rest),
                ]
            with m.If(step < DIGITS + 1):
                m.d.sync += [
                    self._spans_digit.eq(by_spans.quotient),
                    self._span.eq(by_spans.rest),
                ]
            m.d.sync += [
                self._turn.eq(self._by_width.rest),
                self._stripe.eq(Cat(self._spans_digit, self._stripe)),
            ]
            with m.If(step == DIGITS + CHAIN - 2):
                m.next = "LOCATE"
                with m.If(self._shape.copies > 1):
                    m.d.sync += [
                        self._data_digit.eq(index[DIGIT_BITS:]),
                        self._spans_or_copies.eq(self._shape.copies),
                    ]
                    m.next = "SPLIT_HIGH"
        with m.State("SPLIT_HIGH"):
            m.d.sync += [
                self._spans_digit.eq(by_spans.quotient),
                self._span.eq(by_spans.rest),
                self._data_digit.eq(index[:DIGIT_BITS]),
            ]
            m.next = "SPLIT_LOW"
        with m.State("SPLIT_LOW"):
            m.d.sync += [
                self._at.place.eq(index),
                index.eq(Cat(by_spans.quotient, self._spans_digit)),
                self._turn.eq(by_spans.rest),
                self._span.eq(0),
            ]
            m.next = "LOCATE"

    def _locate(self, m: Module) -> None:
        """The state LOCATE: the strip is known."""
        shape, at, rotated = self._shape, self._at, self._rotated
        with m.State("LOCATE"):
            m.d.sync += [
                at.index.eq(self._index),
                at.span.eq(self._span),
                at.base.eq(self._span * shape.width),
                at.row.eq(self._stripe << shape.strip_shift),
                at.shift.eq(0),
            ]
            with m.If(shape.copies > 1):
                m.d.sync += at.shift.eq(self._turn)
            with m.Elif(shape.rotate):
                m.d.sync += at.shift.eq(
                    Mux(rotated >= shape.width, rotated - shape.width, rotated)
                )
            with m.Else():
                m.d.sync += at.shift.eq(self._begins)
            m.next = "MEASURE"

    def _cut(self, m: Module, after) -> None:
        """The states MEASURE and CUT: the next extent. ``after``: the strip after this one."""
        config, request, out, at = self._config, self._request, self.extent.payload, self._at
        remaining, room, within, offset = self._remaining, self._room, self._within, self._offset
        role, data, piece = self._role, self._shape.data, self._piece
        with m.State("MEASURE"):
            m.d.sync += [
                self._length.eq(Mux(remaining < room, remaining, room)),
                self._beyond.eq(Mux(remaining < room, 0, remaining - room)),
            ]
            m.next = "CUT"
        with m.State("CUT"):
            m.d.sync += [
                out.slot.eq(request.slot),
                out.opcode.eq(request.opcode),
                out.fua.eq(request.fua),
                out.recover.eq(request.recover),
                out.status.eq(self._status),
                out.array.eq(self._array),
                out.base.eq(at.base),
                out.shift.eq(at.shift),
                out.index.eq(Mux(role >= data, role - data, role)),
                out.ordinal.eq(at.index),
                out.row.eq(at.row | within),
                out.blocks.eq(piece - 1),
                out.offset.eq(offset),
                out.final.eq(self._final),
                out.last.eq(piece == remaining),
                offset.eq(offset + piece),
                remaining.eq(remaining - piece),
                within.eq(within + piece),
            ]
            if config.sector_emulation:
                m.d.sync += [
                    out.head.eq((offset == request.offset) & request.head.any()),
                    out.tail.eq((piece == remaining) & request.tail.any()),
                ]
            with m.If(piece == self._length):
                m.d.sync += [at.eq(after), within.eq(0)]
            m.next = "EMIT"

    def _report(self, m: Module) -> None:
        """The state REPORT: one extent for a FLUSH, or for a command that fails."""
        out = self.extent.payload
        with m.State("REPORT"):
            m.d.sync += [
                out.eq(Const(0, extent(self._config).size)),
                out.slot.eq(self._request.slot),
                out.opcode.eq(self._request.opcode),
                out.status.eq(self._status),
                out.array.eq(self._array),
                out.final.eq(1),
                out.last.eq(1),
                out.volume.eq(self._request.volume),
            ]
            m.next = "EMIT"

    def _emit(self, m: Module) -> None:
        """The state EMIT: the extent is offered."""
        with m.State("EMIT"):
            m.d.comb += self.extent.valid.eq(1)
            with m.If(self.extent.ready):
                m.next = "MEASURE"
                with m.If(self.extent.payload.last):
                    m.next = "TAKE"
