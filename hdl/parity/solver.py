"""Coefficients for the inputs of a pass: powers of the generator, or the inverse of an erasure."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.flow.parity_pass import StepKind
from hdl.kit.pick import lowest_bit
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

    Ports
    -----
    request, answer
        A begin or an input of a pass, and what follows for it.
    busy
        It works.

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

        parities = config.parities
        vector_bits = parities * ELEMENT_BITS
        index_bits = bits_for_count(parities)
        powers = power_table(RAID_FIELD, roles=MAX_DRIVES, parities=parities)
        inverses = inverse_table(RAID_FIELD)
        self._powers = Memory(
            shape=vector_bits, depth=MAX_DRIVES, init=[_pack(row) for row in powers]
        )
        self._inverses = Memory(
            shape=ELEMENT_BITS,
            depth=len(inverses),
            init=inverses,
            attrs={"rom_style": "block"},
        )
        self._power_read = self._powers.read_port()
        self._inverse_read = self._inverses.read_port()

        # The pattern: roles, parities used, how many and which; its inverse is kept; the pass
        # recovers.
        self._erased = Signal(MAX_DRIVES)
        self._used = Signal(MAX_PARITIES)
        self._count = Signal(range(MAX_PARITIES + 1))
        self._selected = [Signal(index_bits, name=f"selected_{a}") for a in range(parities)]
        self._kept = Signal()
        self._recovering = Signal()

        # The matrix, by rows: only the first ``count`` are ever read. The row and column at hand,
        # and another row.
        self._rows = [Signal(vector_bits, name=f"row_{b}") for b in range(parities)]
        self._pivot = Signal(index_bits)
        self._other = Signal(index_bits)
        self._pivot_row = Signal(vector_bits)
        self._other_row = Signal(vector_bits)
        self._inverse = Signal(ELEMENT_BITS)
        self._todo = Signal(MAX_DRIVES)  # erased roles that are not yet loaded

        # One row operation: result = base + scalar * source.
        self._scalar = Signal(ELEMENT_BITS)
        self._source = Signal(vector_bits)
        self._base = Signal(vector_bits)
        self._result = Signal(vector_bits)

        # An input: its weights in the syndromes, from the table or not, and in the outputs.
        self._from_rom = Signal()
        self._vector = Signal(vector_bits)
        self._total = Signal(vector_bits)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.powers = self._powers
        m.submodules.inverses = self._inverses
        self._connect_rows(m)
        self._count_parities(m)
        with m.FSM(name="solve") as fsm:
            self._take(m)
            self._load(m)
            self._invert(m)
            self._weigh(m)
            with m.State("ANSWER"):
                m.d.comb += self.answer.valid.eq(1)
                with m.If(self.answer.ready):
                    m.next = "TAKE"
        m.d.comb += self.busy.eq(~fsm.ongoing("TAKE") | self.request.valid)
        return m

    def _connect_rows(self, m: Module) -> None:
        """The rows at hand, the row operation, what is looked up, and what has been added up."""
        rows = Array(self._rows)
        products = (
            multiply(RAID_FIELD, self._scalar, lane) for lane in _elements(self._source)
        )
        m.d.comb += [
            self._pivot_row.eq(rows[self._pivot]),
            self._other_row.eq(rows[self._other]),
            self._result.eq(self._base ^ Cat(products)),
            self.answer.payload.coefficients.eq(self._total),
            self._power_read.addr.eq(self.request.payload.role),
            self._inverse_read.addr.eq(Array(_elements(self._pivot_row))[self._pivot]),
        ]

    def _count_parities(self, m: Module) -> None:
        """How many parities are used, and which."""
        parities = self._config.parities
        with m.Switch(self._used[:parities]):
            for mask in range(1 << parities):
                members = [j for j in range(parities) if mask >> j & 1]
                with m.Case(mask):
                    m.d.comb += self._count.eq(len(members))
                    m.d.comb += [self._selected[a].eq(j) for a, j in enumerate(members)]

    def _chosen(self, vector: Value) -> Value:
        """The elements of ``vector`` that belong to the syndromes used, then zeros."""
        elements = Array(_elements(vector))
        return Cat(
            Mux(a < self._count, elements[selected], 0)
            for a, selected in enumerate(self._selected)
        )

    def _replace_row(self, m: Module, number: Value, value: Value) -> None:
        """Row ``number`` of the matrix becomes ``value``."""
        with m.Switch(number):
            for b, row in enumerate(self._rows):
                with m.Case(b):
                    m.d.sync += row.eq(value)

    def _take(self, m: Module) -> None:
        """The state TAKE: a begin, or an input."""
        request, answer = self.request.payload, self.answer.payload
        same = self._kept & (request.erased == self._erased) & (request.parities == self._used)
        unit = Cat(
            Mux(request.role == j, Const(1, ELEMENT_BITS), 0)
            for j in range(self._config.parities)
        )
        with m.State("TAKE"):
            m.d.comb += self.request.ready.eq(1)
            with m.If(self.request.valid):
                m.d.sync += [
                    answer.unsolvable.eq(0),
                    self._total.eq(0),
                    self._pivot.eq(0),
                ]
                with m.Switch(request.kind):
                    with m.Case(StepKind.GENERATE):
                        m.d.sync += self._recovering.eq(0)
                        m.next = "ANSWER"
                    with m.Case(StepKind.RECOVER):
                        m.d.sync += self._recovering.eq(1)
                        with m.If(same):
                            m.next = "ANSWER"
                        with m.Else():
                            m.d.sync += [
                                self._kept.eq(0),
                                self._erased.eq(request.erased),
                                self._used.eq(request.parities),
                                self._todo.eq(request.erased),
                            ]
                            m.next = "PICK"
                    with m.Default():
                        m.d.sync += [
                            self._from_rom.eq(request.kind == StepKind.DATA),
                            self._vector.eq(unit),
                        ]
                        m.next = "WEIGH"

    def _load(self, m: Module) -> None:
        """The states PICK and LOAD: the row of each erased role is loaded, the lowest first, until
        there are as many as syndromes."""
        todo, pivot, count, used = self._todo, self._pivot, self._count, self._used
        lowest = lowest_bit(m, todo, "lowest_role")
        with m.State("PICK"):
            with m.If((todo == 0) | (count == 0)):
                m.next = "REFUSE"
            with m.Else():
                m.d.comb += self._power_read.addr.eq(lowest)
                m.d.sync += todo.eq(todo & (todo - 1))
                m.next = "LOAD"
        with m.State("LOAD"):
            self._replace_row(m, pivot, self._chosen(self._power_read.data))
            with m.If(pivot + 1 == count):
                m.d.sync += pivot.eq(0)
                m.next = "REFUSE"
                with m.If((todo == 0) & (used < 1 << self._config.parities)):
                    m.next = "INVERT"
            with m.Else():
                m.d.sync += pivot.eq(pivot + 1)
                m.next = "PICK"

    def _invert(self, m: Module) -> None:
        """The states from INVERT, which eliminate a column after the other, and REFUSE."""
        pivot, other, count = self._pivot, self._other, self._count
        pivot_row, other_row = self._pivot_row, self._other_row
        parities = self._config.parities
        lane = Signal(parities * ELEMENT_BITS)
        ones = Const(_pack([1] * parities), len(lane))
        m.d.comb += lane.eq(Cat((pivot == a).replicate(ELEMENT_BITS) for a in range(parities)))
        with m.State("INVERT"):
            # The inverse of the pivot is being looked up.
            m.d.sync += other.eq(0)
            m.next = "HOLD"
        with m.State("HOLD"):
            m.d.sync += self._inverse.eq(self._inverse_read.data)
            m.next = "SCALE"
        with m.State("SCALE"):
            m.d.comb += [
                self._scalar.eq(self._inverse),
                self._source.eq((pivot_row & ~lane) | (lane & ones)),
            ]
            self._replace_row(m, pivot, self._result)
            m.next = "ELIMINATE"
            with m.If(self._inverse == 0):
                m.next = "REFUSE"
        with m.State("ELIMINATE"):
            m.d.comb += [
                self._scalar.eq(Array(_elements(other_row))[pivot]),
                self._source.eq(pivot_row),
                self._base.eq(other_row & ~lane),
            ]
            with m.If(other != pivot):
                self._replace_row(m, other, self._result)
            m.d.sync += other.eq(other + 1)
            with m.If(other + 1 == count):
                m.d.sync += pivot.eq(pivot + 1)
                m.next = "INVERT"
                with m.If(pivot + 1 == count):
                    m.d.sync += self._kept.eq(1)
                    m.next = "ANSWER"
        with m.State("REFUSE"):
            m.d.sync += self.answer.payload.unsolvable.eq(1)
            m.next = "ANSWER"

    def _weigh(self, m: Module) -> None:
        """The states WEIGH and ADD: the weights of an input in the outputs."""
        other, vector, total = self._other, self._vector, self._total
        with m.State("WEIGH"):
            weights = Mux(self._from_rom, self._power_read.data, vector)
            m.d.sync += other.eq(0)
            with m.If(self._recovering):
                m.d.sync += vector.eq(self._chosen(weights))
                m.next = "ADD"
            with m.Else():
                m.d.sync += total.eq(weights)
                m.next = "ANSWER"
        with m.State("ADD"):
            m.d.comb += [
                self._scalar.eq(Array(_elements(vector))[other]),
                self._source.eq(self._other_row),
                self._base.eq(total),
            ]
            m.d.sync += [total.eq(self._result), other.eq(other + 1)]
            with m.If(other + 1 == self._count):
                m.next = "ANSWER"


def _elements(vector: Value) -> list[Value]:
    return [vector[start : start + ELEMENT_BITS] for start in range(0, len(vector), ELEMENT_BITS)]


def _pack(elements: list[int]) -> int:
    return sum(element << (place * ELEMENT_BITS) for place, element in enumerate(elements))
