"""Steps of parity passes to blocks to read, with their weights, and blocks to write."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.parity_pass import StepKind, piece_field, step
from hdl.parity.engine import coefficients, syndrome_bits
from hdl.parity.solver import Solver


def input_block(config: Config) -> data.StructLayout:
    """A block to read and accumulate; ``first`` and ``last`` of its pass."""
    return data.StructLayout(
        {
            "line": config.line_bits,
            "coefficients": coefficients(config),
            "first": 1,
            "last": 1,
            **piece_field(config),
        }
    )


def output_block(config: Config) -> data.StructLayout:
    """A block to write; ``last`` ends the pass ``index``. ``error``: only answer, write nothing."""
    return data.StructLayout(
        {
            "syndrome": syndrome_bits(config),
            "line": config.line_bits,
            "last": 1,
            "index": config.row_slot_bits,
            "error": 1,
            **piece_field(config),
        }
    )


class StepDecoder(wiring.Component):
    """Turns steps into input and output blocks, each with everything that reading and writing need.

    An input is passed on when the step after it is known, which says whether it is the last.
    A pass that cannot be solved has no inputs, and one output with ``error``.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    step
        Steps of passes, whole passes in order (`hdl.flow.parity_pass.step`).
    inputs, outputs
        Blocks to read and to write. Outputs of a pass follow its last input.
    busy
        Something moves. Waiting for the next step is not busy.

    Rate: a step in 1 (OUTPUT) to 4 cycles, an input of RECOVER 4 + its erasures, a new pattern as
    `Solver` says; less than the beats of a block in each case.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "step": In(stream.Signature(step(config))),
                "inputs": Out(stream.Signature(input_block(config))),
                "outputs": Out(stream.Signature(output_block(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.solver = solver = Solver(config=self._config)

        now = self.step.payload
        answer = solver.answer.payload
        held = Signal()
        held_block = Signal(input_block(self._config))
        first = Signal()
        unsolvable = Signal()
        is_begin = (now.kind == StepKind.GENERATE) | (now.kind == StepKind.RECOVER)
        is_output = now.kind == StepKind.OUTPUT

        m.d.comb += [
            solver.request.payload.kind.eq(now.kind),
            solver.request.payload.role.eq(now.role),
            solver.request.payload.erased.eq(now.erased),
            solver.request.payload.parities.eq(now.parities),
            self.inputs.payload.eq(held_block),
            self.inputs.payload.last.eq(is_output),
            self.outputs.payload.syndrome.eq(now.role),
            self.outputs.payload.line.eq(now.line),
            self.outputs.payload.last.eq(now.last),
            self.outputs.payload.index.eq(now.index),
            self.outputs.payload.error.eq(unsolvable),
        ]
        m.d.comb += self.outputs.payload.piece.eq(held_block.piece)
        with m.FSM(name="decode") as fsm:
            with m.State("TAKE"):
                with m.If(self.step.valid):
                    with m.If(held & ~is_begin):
                        # This step shows whether the input before it was the last of its pass.
                        m.d.comb += self.inputs.valid.eq(1)
                        with m.If(self.inputs.ready):
                            m.d.sync += held.eq(0)
                    with m.Elif(is_output):
                        with m.If(unsolvable & ~now.last):
                            m.d.comb += self.step.ready.eq(1)
                        with m.Else():
                            m.d.comb += [
                                self.outputs.valid.eq(1),
                                self.step.ready.eq(self.outputs.ready),
                            ]
                    with m.Elif(unsolvable & ~is_begin):
                        m.d.comb += self.step.ready.eq(1)
                    with m.Else():
                        m.d.comb += [
                            solver.request.valid.eq(1),
                            self.step.ready.eq(solver.request.ready),
                        ]
                        with m.If(solver.request.ready):
                            m.d.sync += held_block.line.eq(now.line)
                            m.next = "HOLD"
                            with m.If(is_begin):
                                m.next = "BEGIN"
                                m.d.sync += held_block.piece.eq(now.piece)
            with m.State("BEGIN"):
                m.d.comb += solver.answer.ready.eq(1)
                with m.If(solver.answer.valid):
                    m.d.sync += [first.eq(1), unsolvable.eq(answer.unsolvable)]
                    m.next = "TAKE"
            with m.State("HOLD"):
                m.d.comb += solver.answer.ready.eq(1)
                with m.If(solver.answer.valid):
                    m.d.sync += [
                        held.eq(1),
                        held_block.coefficients.eq(answer.coefficients),
                        held_block.first.eq(first),
                        first.eq(0),
                    ]
                    m.next = "TAKE"

        m.d.comb += self.busy.eq(self.step.valid | ~fsm.ongoing("TAKE"))
        return m
