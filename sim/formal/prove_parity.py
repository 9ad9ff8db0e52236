"""The parity engine: products are those of the field, and drained blocks are the sums that they
must be."""

from dataclasses import dataclass
from functools import reduce
from operator import xor
from unittest import mock

from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, connect, flipped

from hdl.parity import engine as engine_module
from hdl.parity.engine import ParityEngine
from hdl.parity.field import ELEMENT_BITS, RAID_FIELD, Field
from hdl.parity.galois import bit_matrix, multiply, multiply_word
from sim.formal.runner import Proof
from sim.formal.stream_rules import StreamRules
from sim.golden.gf import RAID

WORD_ELEMENTS = 3


def golden_product(a: Value, b: Value) -> Value:
    """The product of every pair of powers of x, by the golden model's tables."""
    terms = [
        (a[i] & b[j]).replicate(ELEMENT_BITS) & RAID.mul(1 << i, 1 << j)
        for i in range(ELEMENT_BITS)
        for j in range(ELEMENT_BITS)
    ]
    return reduce(xor, terms)


class MatrixSpecification(wiring.Component):
    """Bit matrices hold the golden products of a coefficient, and words are multiplied by matrices.

    The proof has two parts, so that each is easy: the columns for all coefficients, and the product
    of a word by any matrix, also one that belongs to no coefficient. Everything is combinational,
    so one cycle proves it.
    """

    coefficient: In(ELEMENT_BITS)
    word: In(ELEMENT_BITS * WORD_ELEMENTS)
    columns: In(ELEMENT_BITS * ELEMENT_BITS)

    def __init__(self, *, polynomial: int = RAID_FIELD.polynomial, lane_step: int = ELEMENT_BITS):
        self._field = Field(polynomial=polynomial, generator=RAID_FIELD.generator)
        self._lane_step = lane_step
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        for place, column in enumerate(bit_matrix(self._field, self.coefficient)):
            wanted = golden_product(self.coefficient, Const(1 << place, ELEMENT_BITS))
            m.d.comb += Assert(column == wanted)
        matrix = [self.columns.word_select(k, ELEMENT_BITS) for k in range(ELEMENT_BITS)]
        (product,) = multiply_word(m, self._field, self.word, [matrix], name="word")
        for place in range(WORD_ELEMENTS):
            element = self.word[place * self._lane_step :][:ELEMENT_BITS]
            chosen = [
                column & bit.replicate(ELEMENT_BITS)
                for column, bit in zip(matrix, element, strict=False)
            ]
            m.d.comb += Assert(product.word_select(place, ELEMENT_BITS) == reduce(xor, chosen))
        return m


class MultiplierSpecification(wiring.Component):
    """The multiplier of two elements agrees with the golden tables. Combinational."""

    a: In(ELEMENT_BITS)
    b: In(ELEMENT_BITS)

    def __init__(self, *, polynomial: int = RAID_FIELD.polynomial):
        self._field = Field(polynomial=polynomial, generator=RAID_FIELD.generator)
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        product = multiply(self._field, self.a, self.b)
        m.d.comb += Assert(product == golden_product(self.a, self.b))
        return m


TINY_FIELD = Field(polynomial=0b111, generator=0b10)
"""GF(4): the engine is the same for every field, and the products have their own proof."""


@dataclass(frozen=True, kw_only=True)
class TinySizes:
    """The sizes that the engine needs of a configuration, as small as it works."""

    data_width: int = TINY_FIELD.width
    beats: int = 2
    parities: int = 1
    early_rows: int = 0


class TinyEngine(ParityEngine):
    """The engine over `TINY_FIELD`. ``replaced`` plants a bug, by names that the module uses."""

    def __init__(self, **replaced):
        self._names = {
            "RAID_FIELD": TINY_FIELD,
            "ELEMENT_BITS": TINY_FIELD.width,
            **replaced,
        }
        with mock.patch.multiple(engine_module, **self._names):
            super().__init__(config=TinySizes())

    def elaborate(self, platform) -> Module:
        with mock.patch.multiple(engine_module, **self._names):
            return super().elaborate(platform)


class EngineSpecification(wiring.Component):
    """Whatever the streams do, a drained block is the weighted sum of its row's inputs.

    Rows are numbered modulo the two that the engine holds. The number travels in the tag of the
    drain requests. The expected sum of a row is computed beside the engine.
    """

    def __init__(self, engine: ParityEngine):
        self._engine = engine
        super().__init__(engine.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        sizes = TinySizes()
        m.submodules.engine = engine = self._engine
        connect(m, flipped(self.beats), engine.beats)
        connect(m, flipped(self.drain), engine.drain)
        connect(m, engine.output, flipped(self.output))
        for name, port, role in (
            ("beats", engine.beats, Assume),
            ("drain", engine.drain, Assume),
            ("output", engine.output, Assert),
        ):
            m.submodules[f"{name}_rules"] = StreamRules(port, role=role)

        # The environment: blocks are whole, rows begin where rows end, tags number the rows.
        beat = engine.beats.payload
        taken = engine.beats.valid & engine.beats.ready
        number = Signal(range(sizes.beats))
        row_in = Signal()
        row_out = Signal()
        begins_row = Signal(init=1)
        block = Cat(beat.coefficients, beat.first_input, beat.last_input)
        block_before = Signal(len(block))
        with m.If(engine.beats.valid):
            m.d.comb += Assume(beat.first_input == begins_row)
            with m.If(number != 0):
                m.d.comb += Assume(block == block_before)
        ends_block = number == sizes.beats - 1
        with m.If(taken):
            m.d.sync += [number.eq(Mux(ends_block, 0, number + 1)), block_before.eq(block)]
            with m.If(ends_block):
                m.d.sync += begins_row.eq(beat.last_input)
                with m.If(beat.last_input):
                    m.d.sync += row_in.eq(~row_in)
        request = engine.drain.payload
        with m.If(engine.drain.valid):
            m.d.comb += [Assume(request.tag == row_out), Assume(request.syndrome == 0)]
        with m.If(engine.drain.valid & engine.drain.ready & request.release):
            m.d.sync += row_out.eq(~row_out)

        # What is owed, by row and beat, and the check of what comes out.
        product = multiply(TINY_FIELD, beat.coefficients[0], beat.data)
        output = engine.output
        shown = Signal()
        m.d.sync += shown.eq(output.valid & ~output.ready)
        for row in range(2):
            for place in range(sizes.beats):
                owed = Signal(sizes.data_width, name=f"owed_{row}_{place}")
                with m.If(taken & (row_in == row) & (number == place)):
                    m.d.sync += owed.eq(product ^ Mux(beat.first_input, 0, owed))
                here = (output.payload.tag == row) & (output.payload.beat == place)
                with m.If(output.valid & ~shown & here):
                    m.d.comb += [
                        Assert(output.payload.data == owed),
                        Assert(output.payload.last == (place == sizes.beats - 1)),
                    ]
        return m


def _keep_words(select, then, other):
    """Never forgets the row before."""
    return other if len(Value.cast(other)) == TinySizes().data_width else Mux(select, then, other)


def _wrong_matrix(field, coefficient):
    """Two columns of the bit matrix exchanged."""
    columns = bit_matrix(field, coefficient)
    return [columns[1], columns[0], *columns[2:]]


OTHER_POLYNOMIAL = 0x12D
"""Another irreducible polynomial, and so another field. Only for mutants."""

PROOFS = [
    Proof(
        name="galois_matrix",
        build=MatrixSpecification,
        mode="bmc",
        depth=1,
        mutants=[
            lambda: MatrixSpecification(polynomial=OTHER_POLYNOMIAL),
            lambda: MatrixSpecification(lane_step=ELEMENT_BITS - 1),
        ],
    ),
    Proof(
        name="galois_multiplier",
        build=MultiplierSpecification,
        mode="bmc",
        depth=1,
        mutants=[lambda: MultiplierSpecification(polynomial=OTHER_POLYNOMIAL)],
    ),
    Proof(
        name="parity_engine",
        build=lambda: EngineSpecification(TinyEngine()),
        mutants=[
            lambda: EngineSpecification(TinyEngine(Mux=_keep_words)),
            lambda: EngineSpecification(TinyEngine(bit_matrix=_wrong_matrix)),
        ],
    ),
]
