"""The parity steps of one pass of a row, in the order in which the engine takes them."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.parity_pass import StepKind, step
from hdl.flow.row import RowKind
from hdl.flow.walk import WalkKind
from hdl.kit.pick import lowest_bit
from hdl.stripe.planning.program import program, role_bits
from hdl.stripe.planning.weights import Weights


class PassSteps(wiring.Component):
    """Walks a pass. It has a begin, the old data, the new data, the old parities, and the outputs.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    program
        That of the row at hand. It must hold during the pass.
    slot
        The row slot at hand. It must hold during the pass.
    recover
        Chooses the pass that solves the program's ``erased`` roles.
    generate
        Chooses the pass that generates the program's parities.
    compare
        Chooses, with ``background``, the pass that compares. With parities it asks whether data
        role ``suspect`` alone is wrong. The block of that role takes the place of P's syndrome, and
        the other syndromes, all in the lines of their parities, come out as zeros if it is. With
        copies the pass adds ``suspect`` and ``source``, which gives zeros if they are alike. In a
        row to be zeroed it adds ``source``, which is ``suspect``, to itself.
    suspect
        The role that such a pass is about.
    begin
        ``step`` is the begin of the chosen pass.
    select
        Go on to the next step.
    more
        There is a next step.
    skips
        The next step is not found in this cycle, because of an erased role that nobody wants.
        Select again.
    role
        In the cycle of ``select``: whose line the step is about.
    own
        That line is the row's own, not that of a joined block.
    step
        The selected step but for its line, from the cycle after ``select`` on.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "program": In(program(config)),
                "slot": In(config.row_slot_bits),
                "recover": In(1),
                "generate": In(1),
                "compare": In(1),
                "suspect": In(role_bits(config)),
                "begin": In(1),
                "select": In(1),
                "more": Out(1),
                "skips": Out(1),
                "role": Out(role_bits(config)),
                "own": Out(1),
                "step": Out(step(config)),
            }
        )

        # What is left: inputs in the row's own lines, in joined lines, parities; then those of
        # `outputs` that are in `wants`.
        self._olds = Signal(config.ports)
        self._news = Signal(config.ports)
        self._parities = Signal(4)
        self._outputs = Signal(config.ports)
        self._wants = Signal(config.ports)
        # The pass recovers; it compares, and lines are not those of their roles.
        self._recovering = Signal()
        self._moved = Signal()
        self._item = Signal(step(config))
        self._erasure = Signal(role_bits(config))
        self._old_role = Signal(role_bits(config))
        self._old_line = Signal(role_bits(config))
        self._output_line = Signal(role_bits(config))
        self._weights = Weights(config=config)

    def elaborate(self, platform) -> Module:
        m = Module()
        self._choose(m)
        self._find_lines(m)
        self._weigh(m)
        self._select(m)
        return m

    def _choose(self, m: Module) -> None:
        """What the chosen pass consists of."""
        todo = self.program
        data_roles = Signal(self._config.ports)
        m.d.comb += data_roles.eq((1 << todo.data) - 1)
        with m.If(self.recover):
            for_host = todo.kind == RowKind.RECOVER
            m.d.sync += [
                self._recovering.eq(1),
                self._moved.eq(0),
                self._olds.eq(todo.read & data_roles),
                self._news.eq(0),
                self._parities.eq(todo.use_parity),
                self._outputs.eq(todo.erased),
                self._wants.eq(todo.erased & Mux(for_host, todo.joined, ~todo.joined)),
            ]
        with m.If(self.generate):
            olds = Mux(todo.update, todo.joined, ~todo.joined)
            m.d.sync += [
                self._recovering.eq(0),
                self._moved.eq(0),
                self._olds.eq(data_roles & olds),
                self._news.eq(todo.joined & data_roles),
                self._parities.eq(Mux(todo.update | todo.checks, todo.generate, 0)),
                self._outputs.eq(todo.generate),
                self._wants.eq(todo.generate),
            ]
        with m.If(self.compare):
            others = todo.generate & Mux(self._p_role(), 0b1101, 0b1110)
            zeroes = todo.walk.kind == WalkKind.ZERO
            source = Mux(todo.single, 1 << todo.source, 0)
            m.d.sync += [
                self._recovering.eq(0),
                self._moved.eq(1),
                self._news.eq(Mux(zeroes, 1 << todo.source, 0)),
                self._olds.eq((1 << self.suspect) | source),
                self._parities.eq(Mux(todo.single, 0, others)),
                self._outputs.eq(Mux(todo.single, 1, others)),
                self._wants.eq(Mux(todo.single, 1, others)),
            ]

    def _p_role(self) -> Value:
        """The role of the parity with P's syndrome: Q is the first one in one DDF layout."""
        return self.program.rotation.ddf & ~self.program.rotation.ascending

    def _find_lines(self, m: Module) -> None:
        """The roles in whose lines inputs and outputs of a comparison lie."""
        todo = self.program
        old = lowest_bit(m, self._olds, "old")
        m.d.comb += [
            self._old_role.eq(Mux(self._moved & todo.single, 0, old)),
            self._old_line.eq(
                Mux(self._moved & ~todo.single, todo.data + self._p_role(), old)
            ),
            self._output_line.eq(Mux(todo.single, self.suspect, 0)),
        ]

    def _weigh(self, m: Module) -> None:
        """The step gets its weights; that which begins the pass is made on the way."""
        todo, item, weights = self.program, self._item, self._weights
        m.submodules.weights = weights
        plain = Signal(step(self._config))
        m.d.comb += [
            plain.eq(item),
            weights.plain.eq(plain),
            weights.recovering.eq(self._recovering),
            weights.erased.eq(todo.erased),
            weights.shift.eq(todo.shift),
            weights.data.eq(todo.data),
            weights.rotation.eq(todo.rotation),
            self.step.eq(weights.weighed),
        ]
        with m.If(self.begin):
            m.d.comb += [
                plain.kind.eq(Mux(self._recovering, StepKind.RECOVER, StepKind.GENERATE)),
                plain.erased.eq(todo.erased),
                plain.parities.eq(todo.use_parity),
                plain.role.eq(0),
                plain.last.eq(0),
                plain.index.eq(self.slot),
            ]
            m.d.sync += [
                item.eq(0),
                item.index.eq(self.slot),
                self._erasure.eq(0),
                self.own.eq(1),
            ]

    def _select(self, m: Module) -> None:
        """The next step, and the role whose line it is about."""
        item, moved, recovering = self._item, self._moved, self._recovering
        olds, news, parities = self._olds, self._news, self._parities
        outputs, wants = self._outputs, self._wants
        new = lowest_bit(m, news, "new")
        parity = lowest_bit(m, parities, "parity")
        output = lowest_bit(m, outputs, "output")
        m.d.comb += self.more.eq(olds.any() | news.any() | parities.any() | wants.any())
        with m.If(olds.any()):
            m.d.comb += self.role.eq(self._old_line)
            with m.If(self.select):
                m.d.sync += [
                    olds.eq(olds & (olds - 1)),
                    item.kind.eq(StepKind.DATA),
                    item.role.eq(self._old_role),
                ]
        with m.Elif(news.any()):
            m.d.comb += self.role.eq(new)
            with m.If(self.select):
                m.d.sync += [
                    news.eq(news & (news - 1)),
                    item.kind.eq(StepKind.DATA),
                    item.role.eq(Mux(moved, 0, new)),
                    self.own.eq(moved),
                ]
        with m.Elif(parities.any()):
            m.d.comb += self.role.eq(self.program.data + parity)
            with m.If(self.select):
                m.d.sync += [
                    parities.eq(parities & (parities - 1)),
                    item.kind.eq(StepKind.PARITY),
                    item.role.eq(parity),
                    self.own.eq(1),
                ]
        with m.Elif(wants.any()):
            left = wants & ~(1 << output)
            own_line = Mux(recovering, output, self.program.data + output)
            m.d.comb += [
                self.role.eq(Mux(moved, self._output_line, own_line)),
                self.skips.eq(~wants.bit_select(output, 1)),
            ]
            with m.If(self.select):
                m.d.sync += [
                    outputs.eq(outputs & (outputs - 1)),
                    wants.eq(left),
                    self._erasure.eq(self._erasure + 1),
                    item.kind.eq(StepKind.OUTPUT),
                    item.role.eq(Mux(recovering, self._erasure, output)),
                    item.last.eq(left == 0),
                    self.own.eq(~self.program.fills),
                ]
