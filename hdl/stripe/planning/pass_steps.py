"""The parity steps of one pass of a row, in the order in which the engine takes them."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.parity_pass import StepKind, step
from hdl.flow.row import RowKind
from hdl.flow.walk import WalkKind
from hdl.kit.bits import lowest_bit
from hdl.stripe.planning.program import program, role_bits
from hdl.stripe.planning.weights import Weights


class PassSteps(wiring.Component):
    """Walks a pass: a begin, the old data, the new data, the old parities, then the outputs.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    program, slot
        Of the row at hand; must hold during the pass.
    recover, generate
        Choose the pass: solve the program's ``erased`` roles, or generate its parities.
    compare, suspect
        Choose the pass, with ``background``, of a row of parities: is data role ``suspect`` alone
        wrong? Its block takes the place of P's syndrome, and the other syndromes (all in the lines
        of their parities) come out as zeros if so. Of copies: ``suspect`` plus ``source``, zeros if
        they are alike. Of a row to be zeroed: ``source``, which is ``suspect``, plus itself.
    begin
        ``step`` is the begin of the chosen pass.
    select
        Go on to the next step; ``more`` says that there is one. Not found in this cycle when
        ``skips`` (an erased role that nobody wants): select again.
    role
        In the cycle of ``select``: whose line the step is about.
    own
        That line is the row's own, not that of a joined block.
    step
        The selected step but for its line, from the cycle after ``select`` on.
    """

    def __init__(self, *, config: Config):
        self._config = config
        background = {}
        if config.background:
            background = {"compare": In(1), "suspect": In(role_bits(config))}
        super().__init__(
            {
                **background,
                "program": In(program(config)),
                "slot": In(config.row_slot_bits),
                "recover": In(1),
                "generate": In(1),
                "begin": In(1),
                "select": In(1),
                "more": Out(1),
                "skips": Out(1),
                "role": Out(role_bits(config)),
                "own": Out(1),
                "step": Out(step(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        todo = self.program
        data_roles = Signal(config.ports)
        m.d.comb += data_roles.eq((1 << todo.data) - 1)

        # What is left: inputs in the row's own lines, in joined lines, parities; then those of
        # `outputs` that are in `wants`.
        olds = Signal(config.ports)
        news = Signal(config.ports)
        parities = Signal(4)
        outputs = Signal(config.ports)
        wants = Signal(config.ports)
        old = lowest_bit(m, olds, "old")
        new = lowest_bit(m, news, "new")
        parity = lowest_bit(m, parities, "parity")
        output = lowest_bit(m, outputs, "output")
        recovering = Signal()
        erasure = Signal(role_bits(config))
        item = Signal(step(config))
        plain = Signal(step(config))
        m.submodules.weights = weights = Weights(config=config)
        m.d.comb += [
            plain.eq(item),
            weights.plain.eq(plain),
            weights.recovering.eq(recovering),
            weights.erased.eq(todo.erased),
            weights.shift.eq(todo.shift),
            weights.data.eq(todo.data),
            weights.rotation.eq(todo.rotation),
            self.step.eq(weights.weighed),
        ]

        with m.If(self.recover):
            for_host = todo.kind == RowKind.RECOVER
            m.d.sync += [
                recovering.eq(1),
                olds.eq(todo.read & data_roles),
                news.eq(0),
                parities.eq(todo.use_parity),
                outputs.eq(todo.erased),
                wants.eq(todo.erased & Mux(for_host, todo.joined, ~todo.joined)),
            ]
        with m.If(self.generate):
            m.d.sync += [
                recovering.eq(0),
                olds.eq(data_roles & Mux(todo.update, todo.joined, ~todo.joined)),
                news.eq(todo.joined & data_roles),
                parities.eq(Mux(todo.update, todo.generate, 0)),
                outputs.eq(todo.generate),
                wants.eq(todo.generate),
            ]

        # The role in whose line an input or output lies, if not its own.
        moved = Const(0)
        old_line, output_line = Signal(role_bits(config)), Signal(role_bits(config))
        old_role = Signal(role_bits(config))
        m.d.comb += old_role.eq(old)
        if config.background:
            moved = Signal()
            p_role = todo.rotation.ddf & ~todo.rotation.ascending
            others = todo.generate & Mux(p_role, 0b1101, 0b1110)
            with m.If(self.generate | self.recover):
                m.d.sync += moved.eq(0)
            with m.If(self.generate & todo.checks):
                m.d.sync += parities.eq(todo.generate)
            with m.If(self.compare):
                m.d.sync += [
                    recovering.eq(0),
                    moved.eq(1),
                    news.eq(Mux(todo.walk.kind == WalkKind.ZERO, 1 << todo.source, 0)),
                    olds.eq((1 << self.suspect) | Mux(todo.single, 1 << todo.source, 0)),
                    parities.eq(Mux(todo.single, 0, others)),
                    outputs.eq(Mux(todo.single, 1, others)),
                    wants.eq(Mux(todo.single, 1, others)),
                ]
            m.d.comb += [
                old_line.eq(Mux(todo.single, old, todo.data + p_role)),
                output_line.eq(Mux(todo.single, self.suspect, 0)),
            ]
            with m.If(moved & todo.single):
                m.d.comb += old_role.eq(0)

        with m.If(self.begin):
            m.d.comb += [
                plain.kind.eq(Mux(recovering, StepKind.RECOVER, StepKind.GENERATE)),
                plain.erased.eq(todo.erased),
                plain.parities.eq(todo.use_parity),
                plain.role.eq(0),
                plain.last.eq(0),
                plain.index.eq(self.slot),
            ]
            m.d.sync += [item.eq(0), item.index.eq(self.slot), erasure.eq(0), self.own.eq(1)]

        m.d.comb += self.more.eq(olds.any() | news.any() | parities.any() | wants.any())
        with m.If(olds.any()):
            m.d.comb += self.role.eq(Mux(moved, old_line, old))
            with m.If(self.select):
                m.d.sync += [
                    olds.eq(olds & (olds - 1)),
                    item.kind.eq(StepKind.DATA),
                    item.role.eq(old_role),
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
            m.d.comb += self.role.eq(todo.data + parity)
            with m.If(self.select):
                m.d.sync += [
                    parities.eq(parities & (parities - 1)),
                    item.kind.eq(StepKind.PARITY),
                    item.role.eq(parity),
                    self.own.eq(1),
                ]
        with m.Elif(wants.any()):
            left = wants & ~(1 << output)
            m.d.comb += [
                self.role.eq(
                    Mux(moved, output_line, Mux(recovering, output, todo.data + output))
                ),
                self.skips.eq(~wants.bit_select(output, 1)),
            ]
            with m.If(self.select):
                m.d.sync += [
                    outputs.eq(outputs & (outputs - 1)),
                    wants.eq(left),
                    erasure.eq(erasure + 1),
                    item.kind.eq(StepKind.OUTPUT),
                    item.role.eq(Mux(recovering, erasure, output)),
                    item.last.eq(left == 0),
                    self.own.eq(~todo.fills if self._config.sector_emulation else 1),
                ]
        return m
