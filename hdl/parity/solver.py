"""Coefficients for the inputs of a pass: powers of the generator, or the inverse of an erasure."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.flow.parity_pass import StepKind
from hdl.parity.engine import coefficients
from hdl.parity.field import ELEMENT_BITS, MAX_PARITIES, RAID_FIELD
from hdl.parity.galois import inverse_table, multiply, power_table

ROLE_BITS = bits_for_count(MAX_DRIVES)


def solver_request(config: Config) -> data.StructLayout:
    """A begin or an input, as in `hdl.flow.parity_pass.step`."""
    return data.StructLayout(
        {"kind": StepKind, "role": ROLE_BITS, "erased": MAX_DRIVES, "parities": MAX_PARITIES}
    )


def solver_answer(config: Config) -> data.StructLayout:
    """To a begin: whether it can be solved. To an input: its weight in each output."""
    return data.StructLayout({"unsolvable": 1, "coefficients": coefficients(config)})


class Solver(wiring.Component):
    """Answers what weight each input of a pass has in each output.

    GENERATE: data role r has g**(j * r) in output j, parity j has 1 in output j. RECOVER: with A
    the matrix of the erased roles' weights in the syndromes used, output b is row b of the inverse
    of A times the syndromes; so parity J[a] has inverse[b][a], and data role r the sum over a of
    inverse[b][a] * g**(J[a] * r). The inverse of the last pattern is kept, also over GENERATE.

    A RECOVER is unsolvable when ``erased`` is empty or has not as many bits as ``parities``, names
    a parity that the engine does not compute, or when the matrix has no inverse. With up to three
    syndromes every pattern of the right size has one; `sim.golden.parity.singular_patterns` lists
    the exceptions with four.

    The matrix is held transposed, row b for erased role b, and inverted in place by Gauss-Jordan
    elimination without looking for pivots: rows and columns ascend, and then a leading minor is
    zero only when it is that of the whole matrix, which has no inverse. One row operation a cycle,
    a scalar times a row plus a row, in ``config.parities`` multipliers; the same weigh the inputs.

    Latency from request to answer, in cycles: GENERATE and a kept RECOVER 1, a new RECOVER of e
    roles e * e + 5 * e + 1, an input of GENERATE 2, of RECOVER 2 + e. One request at a time; the
    answer waits to be taken.

    Parameters
    ----------
    config
        Uses ``parities``.

    Source: H. P. Anvin, The mathematics of RAID-6; J. S. Plank, A tutorial on Reed-Solomon coding.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(solver_request(config))),
                "answer": Out(stream.Signature(solver_answer(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        parities = self._config.parities
        index_bits = bits_for_count(parities)
        vector_bits = parities * ELEMENT_BITS

        powers = power_table(RAID_FIELD, roles=MAX_DRIVES, parities=parities)
        m.submodules.powers = power_rom = Memory(
            shape=vector_bits, depth=MAX_DRIVES, init=[_pack(row) for row in powers]
        )
        table = inverse_table(RAID_FIELD)
        m.submodules.inverses = inverse_rom = Memory(
            shape=ELEMENT_BITS, depth=len(table), init=table, attrs={"rom_style": "block"}
        )
        power_read = power_rom.read_port()
        inverse_read = inverse_rom.read_port()

        # The pattern at hand, and whether it is that of a pass which recovers.
        erased = Signal(MAX_DRIVES)
        used = Signal(MAX_PARITIES)
        kept = Signal()
        recovering = Signal()
        count = Signal(range(MAX_PARITIES + 1))
        selected = [Signal(index_bits, name=f"selected_{a}") for a in range(parities)]
        with m.Switch(used[:parities]):
            for mask in range(1 << parities):
                members = [j for j in range(parities) if mask >> j & 1]
                with m.Case(mask):
                    m.d.comb += count.eq(len(members))
                    m.d.comb += [selected[a].eq(j) for a, j in enumerate(members)]

        def chosen(vector: Value) -> list[Value]:
            """The elements of ``vector`` that belong to the syndromes used, then zeros."""
            elements = Array(_elements(vector))
            return [Mux(a < count, elements[selected[a]], 0) for a in range(parities)]

        # One row operation: base + scalar * source.
        rows = [Signal(vector_bits, name=f"row_{b}") for b in range(parities)]
        pivot = Signal(index_bits)
        other = Signal(index_bits)
        total = Signal(vector_bits)
        vector = Signal(vector_bits)
        scalar = Signal(ELEMENT_BITS)
        inverse = Signal(ELEMENT_BITS)
        source = Signal(vector_bits)
        base = Signal(vector_bits)
        result = Signal(vector_bits)
        m.d.comb += result.eq(
            base ^ Cat(multiply(RAID_FIELD, scalar, lane) for lane in _elements(source))
        )
        pivot_row = Signal(vector_bits)
        other_row = Signal(vector_bits)
        pivot_lane = Signal(vector_bits)
        m.d.comb += [
            pivot_row.eq(Array(rows)[pivot]),
            other_row.eq(Array(rows)[other]),
            pivot_lane.eq(Cat((pivot == a).replicate(ELEMENT_BITS) for a in range(parities))),
        ]

        # The lowest erased role not yet loaded.
        todo = Signal(MAX_DRIVES)
        lowest = Signal(MAX_DRIVES)
        lowest_role = Signal(ROLE_BITS)
        m.d.comb += lowest.eq(todo & -todo)
        for bit in range(ROLE_BITS):
            choose = sum(1 << role for role in range(MAX_DRIVES) if role >> bit & 1)
            m.d.comb += lowest_role[bit].eq((lowest & choose).any())

        request = self.request.payload
        answer = self.answer.payload
        same = kept & (request.erased == erased) & (request.parities == used)
        from_rom = Signal()
        ones = Const(_pack([1] * parities), vector_bits)
        unit = Cat(Mux(request.role == j, Const(1, ELEMENT_BITS), 0) for j in range(parities))
        m.d.comb += [
            power_read.addr.eq(request.role),
            inverse_read.addr.eq(Array(_elements(pivot_row))[pivot]),
        ]

        with m.FSM(name="solve") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(1)
                with m.If(self.request.valid):
                    m.d.sync += [
                        answer.unsolvable.eq(0),
                        answer.coefficients.eq(0),
                        pivot.eq(0),
                    ]
                    with m.Switch(request.kind):
                        with m.Case(StepKind.GENERATE):
                            m.d.sync += recovering.eq(0)
                            m.next = "ANSWER"
                        with m.Case(StepKind.RECOVER):
                            m.d.sync += recovering.eq(1)
                            with m.If(same):
                                m.next = "ANSWER"
                            with m.Else():
                                m.d.sync += [
                                    kept.eq(0),
                                    erased.eq(request.erased),
                                    used.eq(request.parities),
                                    todo.eq(request.erased),
                                ]
                                m.d.sync += [row.eq(0) for row in rows]
                                m.next = "PICK"
                        with m.Default():
                            m.d.sync += [
                                from_rom.eq(request.kind == StepKind.DATA),
                                vector.eq(unit),
                            ]
                            m.next = "WEIGH"

            with m.State("PICK"):
                # Row `pivot` is loaded next, until there are as many as syndromes.
                with m.If((todo == 0) | (count == 0)):
                    m.next = "REFUSE"
                with m.Else():
                    m.d.comb += power_read.addr.eq(lowest_role)
                    m.d.sync += todo.eq(todo & (todo - 1))
                    m.next = "LOAD"
            with m.State("LOAD"):
                with m.Switch(pivot):
                    for b in range(parities):
                        with m.Case(b):
                            m.d.sync += rows[b].eq(Cat(*chosen(power_read.data)))
                with m.If(pivot + 1 == count):
                    m.d.sync += pivot.eq(0)
                    m.next = "REFUSE"
                    with m.If((todo == 0) & (used < 1 << parities)):
                        m.next = "INVERT"
                with m.Else():
                    m.d.sync += pivot.eq(pivot + 1)
                    m.next = "PICK"
            with m.State("INVERT"):
                # The inverse of the pivot is being looked up.
                m.d.sync += other.eq(0)
                m.next = "HOLD"
            with m.State("HOLD"):
                m.d.sync += inverse.eq(inverse_read.data)
                m.next = "SCALE"
            with m.State("SCALE"):
                m.d.comb += [
                    scalar.eq(inverse),
                    source.eq((pivot_row & ~pivot_lane) | (pivot_lane & ones)),
                ]
                with m.Switch(pivot):
                    for b in range(parities):
                        with m.Case(b):
                            m.d.sync += rows[b].eq(result)
                m.next = "ELIMINATE"
                with m.If(inverse == 0):
                    m.next = "REFUSE"
            with m.State("ELIMINATE"):
                m.d.comb += [
                    scalar.eq(Array(_elements(other_row))[pivot]),
                    source.eq(pivot_row),
                    base.eq(other_row & ~pivot_lane),
                ]
                with m.If(other != pivot):
                    with m.Switch(other):
                        for b in range(parities):
                            with m.Case(b):
                                m.d.sync += rows[b].eq(result)
                m.d.sync += other.eq(other + 1)
                with m.If(other + 1 == count):
                    m.d.sync += pivot.eq(pivot + 1)
                    m.next = "INVERT"
                    with m.If(pivot + 1 == count):
                        m.d.sync += kept.eq(1)
                        m.next = "ANSWER"
            with m.State("REFUSE"):
                m.d.sync += answer.unsolvable.eq(1)
                m.next = "ANSWER"

            with m.State("WEIGH"):
                weights = Mux(from_rom, power_read.data, vector)
                m.d.sync += [total.eq(0), other.eq(0)]
                with m.If(recovering):
                    m.d.sync += vector.eq(Cat(*chosen(weights)))
                    m.next = "ADD"
                with m.Else():
                    m.d.sync += answer.coefficients.eq(weights)
                    m.next = "ANSWER"
            with m.State("ADD"):
                m.d.comb += [
                    scalar.eq(Array(_elements(vector))[other]),
                    source.eq(other_row),
                    base.eq(total),
                ]
                m.d.sync += [
                    total.eq(result),
                    answer.coefficients.eq(result),
                    other.eq(other + 1),
                ]
                with m.If(other + 1 == count):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.answer.valid.eq(1)
                with m.If(self.answer.ready):
                    m.next = "TAKE"

        m.d.comb += self.busy.eq(~fsm.ongoing("TAKE") | self.request.valid)
        return m


def _elements(vector: Value) -> list[Value]:
    return [vector[start : start + ELEMENT_BITS] for start in range(0, len(vector), ELEMENT_BITS)]


def _pack(elements: list[int]) -> int:
    return sum(element << (place * ELEMENT_BITS) for place, element in enumerate(elements))
