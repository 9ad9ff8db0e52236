"""The mapper's arithmetic: digits of a division, the step to the next strip, a whole mapping.

A strip number and its coordinates determine each other when the coordinates are digits of a number.
Let S = (stripe * spans + span) * data + index, index < data and span < spans. There is one S for
every (stripe, span, index) and one (stripe, span, index) for every S. So no two blocks meet and
none is lost. For mirrors S * copies = stripe * width + place, and place = index * copies + shift.
The specifications use this form, with multiplication, where the design divides and steps. They
describe rotations in the same way, by multiples of the width and by counting the parities before a
place.
"""

from unittest.mock import patch

from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Cat,
    Const,
    Elaboratable,
    Module,
    Mux,
    Signal,
    Value,
    signed,
)
from amaranth.lib import data
from amaranth.lib.wiring import connect, flipped

from hdl.array.mapping.division import DIGIT_BITS, REMAINDER_BITS, DivideDigit
from hdl.array.mapping.mapper import Mapper
from hdl.array.mapping.strip import NextStrip, strip
from hdl.config import MAX_DRIVES, small
from hdl.flow.geometry import WIDTH_BITS, Rotation, geometry
from hdl.flow.host_command import HostOpcode, Status, command
from hdl.flow.table_read import volume
from sim.formal.runner import Proof, any_constant, any_sequence

CONFIG = small()
MOST_DRIVES = 8
MOST_SHIFT = 2
STRIPE_BITS = 4
BLOCK_BITS = 6
MAPPING_CYCLES = 34
MAPPING_DRIVES = 4
MOST_PARITIES = 3


def assume_shape(m: Module, shape: data.View, most_drives: int) -> None:
    """``shape`` is a geometry that the tables can hold, with few drives and short strips."""
    mirrored = shape.copies > 1
    known_rotation = Value.cast(shape.rotation)
    m.d.comb += [
        Assume(shape.valid),
        Assume((shape.width >= 1) & (shape.width <= most_drives)),
        Assume(shape.parities <= MOST_PARITIES),
        Assume(shape.parities < shape.width),
        Assume(shape.data == shape.width - shape.parities),
        Assume((shape.copies >= 1) & (shape.copies <= shape.width)),
        Assume((shape.spans >= 1) & (shape.spans <= 2)),
        Assume(~mirrored | ((shape.parities == 0) & (shape.spans == 1))),
        Assume(Cat(known_rotation == code.value for code in Rotation).any()),
        Assume(~shape.rotation.ddf | (shape.parities == 2)),
        Assume((shape.parities > 0) | (known_rotation == Rotation.LEFT_SYMMETRIC.value)),
        Assume(shape.rotate == ((shape.parities > 0) & ~shape.rotation.fixed)),
        Assume(shape.strip_shift <= MOST_SHIFT),
    ]


def turned(shape: data.View, shift: Value, stripe: Value) -> Value:
    """A multiple of the width if data role 0 is at place ``shift`` in ``stripe``.

    In stripe 0 data role 0 follows parities that are first (right), or parities of which the last
    has gone round to place 0 (left), or is at place 0 itself (DDF).
    """
    follows_some = Mux(shape.rotation.ddf, 0, shape.parities - 1)
    return Mux(
        shape.rotation.right, stripe + shape.parities - shift, stripe + shift - follows_some
    )


def fixed_shift(shape: data.View) -> Value:
    """The place of data role 0 when parity does not rotate."""
    return Mux(shape.rotation.fixed & shape.rotation.right, shape.parities, 0)


class DivisionSpecification(Elaboratable):
    """quotient * divisor + rest = 16 * remainder + digit, rest < divisor, at full size."""

    def __init__(self, divide: DivideDigit):
        self._divide = divide

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.divide = divide = self._divide
        number = Signal(REMAINDER_BITS + DIGIT_BITS)
        m.d.comb += [
            divide.remainder.eq(any_sequence(REMAINDER_BITS)),
            divide.digit.eq(any_sequence(DIGIT_BITS)),
            divide.divisor.eq(any_sequence(WIDTH_BITS)),
            number.eq((divide.remainder << DIGIT_BITS) + divide.digit),
            Assume(divide.remainder < divide.divisor),
            Assume(divide.divisor <= MAX_DRIVES),
            Assert(divide.quotient * divide.divisor + divide.rest == number),
            Assert(divide.rest < divide.divisor),
        ]
        return m


class NextStripSpecification(Elaboratable):
    """From the coordinates of any strip S to those of S + 1."""

    def __init__(self, next_strip: NextStrip):
        self._next_strip = next_strip

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.next_strip = next_strip = self._next_strip
        shape, at, after = next_strip.geometry, next_strip.at, next_strip.after
        m.d.comb += [
            shape.eq(any_sequence(geometry(CONFIG).size)),
            at.eq(any_sequence(strip().size)),
        ]
        assume_shape(m, shape, MOST_DRIVES)
        stripe = Signal(STRIPE_BITS)
        turns = Signal(STRIPE_BITS)
        m.d.comb += [stripe.eq(any_sequence(STRIPE_BITS)), turns.eq(any_sequence(STRIPE_BITS))]
        after_stripe = Signal(STRIPE_BITS + 1)
        m.d.comb += after_stripe.eq(after.row >> shape.strip_shift)

        def number(position, of_stripe):
            plain = (of_stripe * shape.spans + position.span) * shape.data + position.index
            return Mux(shape.copies > 1, of_stripe * shape.width + position.place, plain)

        def valid(position, of_stripe):
            # Width * (whole turns of the parity so far) appears in the place of data strip 0.
            rotation = turned(shape, position.shift, of_stripe)
            rotated = Mux(
                shape.rotate,
                (rotation == turns * shape.width) | (rotation == (turns + 1) * shape.width),
                position.shift == fixed_shift(shape),
            )
            plain = (
                (position.index < shape.data)
                & (position.span < shape.spans)
                & (position.base == position.span * shape.width)
                & (position.shift < shape.width)
                & rotated
            )
            mirrored = (
                (position.place == position.index * shape.copies + position.shift)
                & (position.shift < shape.copies)
                & (position.place < shape.width)
                & (position.base == 0)
            )
            return Mux(shape.copies > 1, mirrored, plain)

        rotation = turned(shape, at.shift, stripe)
        m.d.comb += [
            Assume(at.row == stripe << shape.strip_shift),
            Assume(valid(at, stripe)),
            Assume(~shape.rotate | (rotation == turns * shape.width)),
            Assert(number(after, after_stripe) == number(at, stripe) + shape.copies),
            Assert(valid(after, after_stripe)),
            Assert(after.row == after_stripe << shape.strip_shift),
            # Equal stripe and span: the next index; else the first one.
            Assert(next_strip.turns == (after.index == 0)),
        ]
        return m


class MappingSpecification(Elaboratable):
    """A read of one block of any small array comes back from its coordinates."""

    def __init__(self, mapper: Mapper):
        self._mapper = mapper

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.mapper = mapper = self._mapper
        shape = Signal(geometry(CONFIG))
        where = Signal(volume(CONFIG))
        request = Signal(command(CONFIG))
        m.d.comb += [
            shape.eq(any_constant(geometry(CONFIG).size)),
            where.eq(any_constant(volume(CONFIG).size)),
            request.eq(any_constant(command(CONFIG).size)),
        ]
        assume_shape(m, shape, MAPPING_DRIVES)
        block = Signal(BLOCK_BITS)
        m.d.comb += [
            block.eq(where.start + request.block),
            Assume(where.valid & (where.start + request.block < 1 << BLOCK_BITS)),
            Assume(where.blocks < 1 << BLOCK_BITS),
            Assume(request.opcode == HostOpcode.READ),
            Assume(request.blocks == 0),
            mapper.volume_read.data.eq(where),
            mapper.geometry_read.data.eq(shape),
            mapper.command.valid.eq(1),
            mapper.command.payload.eq(request),
            mapper.extent.ready.eq(1),
        ]

        found = mapper.extent.payload
        stripe = Signal(BLOCK_BITS)
        span = Signal()
        within = Signal(MOST_SHIFT)
        strip_number = Signal(BLOCK_BITS)
        place = Signal(BLOCK_BITS)
        m.d.comb += [
            stripe.eq(found.row >> shape.strip_shift),
            within.eq(found.row & ((1 << shape.strip_shift) - 1)),
            span.eq(found.base != 0),
            strip_number.eq(block >> shape.strip_shift),
            place.eq(found.shift + found.index * shape.copies),
        ]
        inside = request.block < where.blocks
        # Parity lies where the rotation says, and data in the host's order around it.
        rotation = Signal(signed(BLOCK_BITS + 2))
        residues = Array(
            rotation % width if width else Const(0) for width in range(MAPPING_DRIVES + 1)
        )
        m.d.comb += rotation.eq(turned(shape, found.shift, stripe))
        rotated = Mux(
            shape.rotate, residues[shape.width] == 0, found.shift == fixed_shift(shape)
        )

        def place_of(role: Value) -> Value:
            return Mux(
                found.shift + role >= shape.width,
                found.shift + role - shape.width,
                found.shift + role,
            )

        parities_before = sum(
            (
                (shape.parities > j) & (place_of(shape.data + j) < place_of(found.index))
                for j in range(MOST_PARITIES)
            ),
            start=Const(0),
        )
        in_order = Mux(
            shape.rotation.ascending,
            found.ordinal + parities_before == place_of(found.index),
            found.ordinal == found.index,
        )
        plain = (
            ((stripe * shape.spans + span) * shape.data + found.ordinal == strip_number)
            & (found.ordinal < shape.data)
            & (found.index < shape.data)
            & (found.base == Mux(span, shape.width, 0))
            & (span < shape.spans)
            & (found.shift < shape.width)
            & rotated
            & in_order
        )
        mirrored = (
            (stripe * shape.width + place == strip_number * shape.copies)
            & (found.ordinal == found.index)
            & (place < shape.width)
            & (found.shift < shape.copies)
            & (found.base == 0)
        )
        waited = Signal(range(MAPPING_CYCLES + 1))
        m.d.sync += waited.eq(waited + 1)
        with m.If(mapper.extent.valid):
            m.d.sync += waited.eq(0)
            m.d.comb += [
                Assert(found.last & (found.blocks == 0)),
                Assert(~inside | (found.offset == request.offset)),
                Assert((found.status == Status.SUCCESS) == inside),
                Assert(inside | (found.status == Status.LBA_OUT_OF_RANGE)),
                Assert(~inside | Mux(shape.copies > 1, mirrored, plain)),
                Assert(~inside | (within == block & ((1 << shape.strip_shift) - 1))),
            ]
        m.d.comb += Assert(waited < MAPPING_CYCLES)
        return m


class SloppyDigit(DivideDigit):
    """Mutant: a remainder that equals the divisor stays."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If((self.remainder == 0) & (self.digit == self.divisor)):
            m.d.comb += [self.quotient.eq(0), self.rest.eq(self.digit)]
        return m


class FixedParity(NextStrip):
    """Mutant: parity stays where it is."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.geometry.copies == 1):
            m.d.comb += self.after.shift.eq(self.at.shift)
        return m


class AlwaysLeft(NextStrip):
    """Mutant: parity moves to the left whatever the rotation."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.geometry.rotate & (self.after.row != self.at.row)):
            m.d.comb += self.after.shift.eq(
                Mux(self.at.shift == 0, self.geometry.width - 1, self.at.shift - 1)
            )
        return m


class LostCopy(NextStrip):
    """Mutant: mirrors that do not fit in a stripe begin anew in the next one."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If((self.geometry.copies > 1) & self.turns):
            m.d.comb += [self.after.place.eq(0), self.after.shift.eq(0)]
        return m


class SymmetricMapper(Mapper):
    """Mutant: data goes round where it should ascend."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.mapper = mapper = Mapper(config=self._config)
        connect(m, mapper, flipped(self))
        m.d.comb += mapper.geometry_read.data.rotation.ascending.eq(0)
        return m


class SloppyMapper(Mapper):
    """Mutant: the divisions of the mapper are sloppy."""

    def __init__(self, **parameters):
        with patch("hdl.array.mapping.mapper.DivideDigit", SloppyDigit):
            super().__init__(**parameters)


PROOFS = [
    Proof(
        name="mapper_division",
        build=lambda: DivisionSpecification(DivideDigit()),
        mode="bmc",
        depth=1,
        engine="smtbmc yices",
        mutants=[lambda: DivisionSpecification(SloppyDigit())],
    ),
    Proof(
        name="mapper_next_strip",
        build=lambda: NextStripSpecification(NextStrip(config=CONFIG)),
        mode="bmc",
        depth=1,
        engine="smtbmc yices",
        mutants=[
            lambda: NextStripSpecification(FixedParity(config=CONFIG)),
            lambda: NextStripSpecification(AlwaysLeft(config=CONFIG)),
            lambda: NextStripSpecification(LostCopy(config=CONFIG)),
        ],
    ),
    Proof(
        name="mapper_mapping",
        build=lambda: MappingSpecification(Mapper(config=CONFIG)),
        mode="bmc",
        depth=MAPPING_CYCLES,
        engine="smtbmc yices",
        mutants=[
            lambda: MappingSpecification(SloppyMapper(config=CONFIG)),
            lambda: MappingSpecification(SymmetricMapper(config=CONFIG)),
        ],
    ),
]
