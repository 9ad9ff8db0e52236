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

    A strip number is divided by the data strips of a stripe (remainder: index), that by the spans
    (remainder: span), and the stripe by the drives (remainder: how far parity has moved). Data role
    0 begins at the place that the rotation gives it in stripe 0 and moves by a drive each stripe;
    where data ascends, the strip at place 0 is the first of a stripe. For mirrors the
    strip number is multiplied by the copies first, then divided by the drives: that is the place of
    the first copy. Later extents of a command follow by stepping (`NextStrip`).

    An extent of a write is cut where later extents of the command stop touching its rows, so that
    ``final`` is exact. Extents of a read are not cut and have ``final`` = 1. For mirrors ``index``
    counts the strips whose first copy begins in the stripe of ``row``, and ``shift`` is the place
    of the first of them: (array, base, row, index) names one data block at every level.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    command
        Host commands, and retries of single blocks.
    extent
        What they touch. A FLUSH is one extent; so is a command that fails, with its ``status``.
    volume_read, geometry_read
        Tables.

    Latency: 21 cycles from command to first extent, mirrors 3 more and one for each bit of the
    number of copies; 3 cycles for each later extent. One command at a time. Back-pressure on
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.next_strip = next_strip = NextStrip(config=config)

        request = Signal(command(config))
        shape = Signal(geometry(config))
        array = Signal(config.array_bits)
        status = Signal(Status)
        block = Signal(BLOCK_NUMBER_BITS)
        at = Signal(strip())
        # Progress in the command, in blocks.
        remaining = Signal(config.offset_bits + 1)
        offset = Signal(config.offset_bits)
        within = Signal(STRIP_BITS)

        # Chain of divisions, most significant digit first; a digit moves one stage a cycle.
        number = Signal(DIGITS * DIGIT_BITS)
        step = Signal(range(DIGITS + CHAIN))
        stages = []
        for stage in ("data", "spans", "width"):
            divide = DivideDigit()
            m.submodules[f"divide_{stage}"] = divide
            remainder = Signal(PLACE_BITS, name=f"remainder_{stage}")
            m.d.comb += divide.remainder.eq(remainder)
            stages.append((divide, remainder))
        (by_data, index), (by_spans, span), (by_width, turn) = stages
        data_digit = Signal(DIGIT_BITS)
        spans_digit = Signal(DIGIT_BITS)
        spans_or_copies = Signal(WIDTH_BITS)
        stripe = Signal(BLOCK_NUMBER_BITS)
        m.d.comb += [
            by_data.digit.eq(number[-DIGIT_BITS:]),
            by_data.divisor.eq(shape.data),
            by_spans.digit.eq(data_digit),
            by_spans.divisor.eq(spans_or_copies),
            by_width.digit.eq(spans_digit),
            by_width.divisor.eq(shape.width),
            next_strip.geometry.eq(shape),
            next_strip.at.eq(at),
        ]

        # Multiplication of the strip number by the copies.
        addend = Signal(PLACE_NUMBER_BITS)
        multiplier = Signal(WIDTH_BITS)

        # Rotation: data role 0 follows the parities, and begins here in stripe 0.
        rotation = shape.rotation
        begins = Signal(3)
        rotated = Signal(WIDTH_BITS + 1)
        with m.If(rotation.right):
            m.d.sync += begins.eq(shape.parities)
            m.d.comb += rotated.eq(begins + turn)
        with m.Else():
            m.d.sync += begins.eq(
                Mux(rotation.fixed | rotation.ddf | ~shape.rotate, 0, shape.parities - 1)
            )
            m.d.comb += rotated.eq(begins + shape.width - turn)

        # Where data ascends, the role at place 0, if that is data, begins the stripe.
        ascends = Signal(PLACE_BITS)
        role = Signal(WIDTH_BITS + 1)
        m.d.sync += ascends.eq(0)
        with m.If(rotation.ascending & (shape.width - at.shift < shape.data)):
            m.d.sync += ascends.eq(shape.width - at.shift)
        m.d.comb += role.eq(at.index + ascends)

        # Blocks in this strip, and the rows from 0 that later extents touch as well.
        strip_blocks = Signal(STRIP_BITS + 1)
        room = Signal(STRIP_BITS + 1)
        m.d.comb += [
            room.eq(strip_blocks - within),
        ]
        # Both are read two cycles or more after what they depend on has changed.
        turns = Signal()
        after = Signal.like(at)
        m.d.sync += [
            strip_blocks.eq(1 << shape.strip_shift),
            turns.eq(next_strip.turns),
            after.eq(next_strip.after),
        ]
        length = Signal(config.offset_bits + 1)
        beyond = Signal(config.offset_bits + 1)
        shared = Signal(STRIP_BITS + 1)
        final = Signal()
        piece = Signal(config.offset_bits + 1)
        writes = request.opcode == HostOpcode.WRITE
        m.d.comb += [
            shared.eq(
                Mux(turns | ~writes, 0, Mux(beyond < strip_blocks, beyond, strip_blocks))
            ),
            final.eq(within >= shared),
            piece.eq(Mux(~final & (within + length > shared), shared - within, length)),
        ]

        out = self.extent.payload
        with m.FSM(name="map") as fsm:
            with m.State("TAKE"):
                m.d.comb += [
                    self.command.ready.eq(1),
                    self.volume_read.address.eq(self.command.payload.volume),
                ]
                m.d.sync += [
                    request.eq(self.command.payload),
                    remaining.eq(self.command.payload.blocks + 1),
                    offset.eq(self.command.payload.offset),
                ]
                with m.If(self.command.valid):
                    m.next = "CHECK"

            with m.State("CHECK"):
                volume = self.volume_read.data
                flush = request.opcode == HostOpcode.FLUSH
                beyond_end = request.block + request.blocks >= volume.blocks
                m.d.comb += self.geometry_read.address.eq(volume.array)
                m.d.sync += [
                    array.eq(volume.array),
                    block.eq(volume.start + request.block),
                    status.eq(Status.SUCCESS),
                ]
                m.next = "LOAD"
                with m.If(~volume.valid):
                    m.d.sync += status.eq(Status.INVALID_NAMESPACE)
                    m.next = "REPORT"
                with m.Elif(~flush & beyond_end):
                    m.d.sync += status.eq(Status.LBA_OUT_OF_RANGE)
                    m.next = "REPORT"

            with m.State("LOAD"):
                loaded = self.geometry_read.data
                strip_number = Signal(BLOCK_NUMBER_BITS)
                m.d.comb += strip_number.eq(block >> loaded.strip_shift)
                m.d.sync += [
                    shape.eq(loaded),
                    within.eq(block & ((1 << loaded.strip_shift) - 1)),
                    addend.eq(strip_number),
                    number.eq(Mux(loaded.copies > 1, 0, strip_number)),
                    multiplier.eq(loaded.copies),
                    spans_or_copies.eq(loaded.spans),
                    step.eq(0),
                    index.eq(0),
                    span.eq(0),
                    turn.eq(0),
                    data_digit.eq(0),
                    spans_digit.eq(0),
                    stripe.eq(0),
                ]
                with m.If(~loaded.valid):
                    m.d.sync += status.eq(Status.INTERNAL_ERROR)
                    m.next = "REPORT"
                with m.Elif(request.opcode == HostOpcode.FLUSH):
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

            with m.State("DIVIDE"):
                m.d.sync += step.eq(step + 1)
                with m.If(step < DIGITS):
                    m.d.sync += [
                        number.eq(number << DIGIT_BITS),
                        data_digit.eq(by_data.quotient),
                        index.eq(by_data.rest),
                    ]
                with m.If(step < DIGITS + 1):
                    m.d.sync += [spans_digit.eq(by_spans.quotient), span.eq(by_spans.rest)]
                m.d.sync += [turn.eq(by_width.rest), stripe.eq(Cat(spans_digit, stripe))]
                with m.If(step == DIGITS + CHAIN - 2):
                    m.next = "LOCATE"
                    with m.If(shape.copies > 1):
                        m.d.sync += [
                            data_digit.eq(index[DIGIT_BITS:]),
                            spans_or_copies.eq(shape.copies),
                        ]
                        m.next = "SPLIT_HIGH"

            # Mirrors: the remainder is a place; its index counts in steps of the copies.
            with m.State("SPLIT_HIGH"):
                m.d.sync += [
                    spans_digit.eq(by_spans.quotient),
                    span.eq(by_spans.rest),
                    data_digit.eq(index[:DIGIT_BITS]),
                ]
                m.next = "SPLIT_LOW"

            with m.State("SPLIT_LOW"):
                m.d.sync += [
                    at.place.eq(index),
                    index.eq(Cat(by_spans.quotient, spans_digit)),
                    turn.eq(by_spans.rest),
                    span.eq(0),
                ]
                m.next = "LOCATE"

            with m.State("LOCATE"):
                m.d.sync += [
                    at.index.eq(index),
                    at.span.eq(span),
                    at.base.eq(span * shape.width),
                    at.row.eq(stripe << shape.strip_shift),
                    at.shift.eq(0),
                ]
                with m.If(shape.copies > 1):
                    m.d.sync += at.shift.eq(turn)
                with m.Elif(shape.rotate):
                    m.d.sync += at.shift.eq(
                        Mux(rotated >= shape.width, rotated - shape.width, rotated)
                    )
                with m.Else():
                    m.d.sync += at.shift.eq(begins)
                m.next = "MEASURE"

            with m.State("MEASURE"):
                m.d.sync += [
                    length.eq(Mux(remaining < room, remaining, room)),
                    beyond.eq(Mux(remaining < room, 0, remaining - room)),
                ]
                m.next = "CUT"

            with m.State("CUT"):
                m.d.sync += [
                    out.slot.eq(request.slot),
                    out.opcode.eq(request.opcode),
                    out.fua.eq(request.fua),
                    out.recover.eq(request.recover),
                    out.status.eq(status),
                    out.array.eq(array),
                    out.base.eq(at.base),
                    out.shift.eq(at.shift),
                    out.index.eq(Mux(role >= shape.data, role - shape.data, role)),
                    out.ordinal.eq(at.index),
                    out.row.eq(at.row | within),
                    out.blocks.eq(piece - 1),
                    out.offset.eq(offset),
                    out.final.eq(final),
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
                with m.If(piece == length):
                    m.d.sync += [at.eq(after), within.eq(0)]
                m.next = "EMIT"

            with m.State("REPORT"):
                m.d.sync += [
                    out.eq(Const(0, extent(config).size)),
                    out.slot.eq(request.slot),
                    out.opcode.eq(request.opcode),
                    out.status.eq(status),
                    out.array.eq(array),
                    out.final.eq(1),
                    out.last.eq(1),
                ]
                if config.background:
                    m.d.sync += out.volume.eq(request.volume)
                m.next = "EMIT"

            with m.State("EMIT"):
                m.d.comb += self.extent.valid.eq(1)
                with m.If(self.extent.ready):
                    m.next = "MEASURE"
                    with m.If(out.last):
                        m.next = "TAKE"

            waits = (fsm.ongoing("TAKE") & ~self.command.valid) | (
                fsm.ongoing("EMIT") & ~self.extent.ready
            )
            m.d.comb += self.busy.eq(~waits)
        return m
