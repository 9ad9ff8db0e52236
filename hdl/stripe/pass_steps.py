"""The parity steps of one pass of a row, in the order in which the engine takes them."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.parity.interface import StepKind, step
from hdl.stripe.interface import RowKind
from hdl.stripe.program import lowest_bit, program, role_bits
from hdl.stripe.weights import Weights


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
        super().__init__(
            {
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
            m.d.comb += self.role.eq(old)
            with m.If(self.select):
                m.d.sync += [
                    olds.eq(olds & (olds - 1)),
                    item.kind.eq(StepKind.DATA),
                    item.role.eq(old),
                ]
        with m.Elif(news.any()):
            m.d.comb += self.role.eq(new)
            with m.If(self.select):
                m.d.sync += [
                    news.eq(news & (news - 1)),
                    item.kind.eq(StepKind.DATA),
                    item.role.eq(new),
                    self.own.eq(0),
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
            others = wants & ~(1 << output)
            m.d.comb += [
                self.role.eq(Mux(recovering, output, todo.data + output)),
                self.skips.eq(~wants.bit_select(output, 1)),
            ]
            with m.If(self.select):
                m.d.sync += [
                    outputs.eq(outputs & (outputs - 1)),
                    wants.eq(others),
                    erasure.eq(erasure + 1),
                    item.kind.eq(StepKind.OUTPUT),
                    item.role.eq(Mux(recovering, erasure, output)),
                    item.last.eq(others == 0),
                    self.own.eq(~todo.fills if self._config.sector_emulation else 1),
                ]
        return m
