"""Steps of parity passes to blocks to read, with their weights, and blocks to write."""

from amaranth.hdl import Module, Signal, Value
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
    inputs
        Blocks to read.
    outputs
        Blocks to write. Outputs of a pass follow its last input.
    busy
        Something moves. Waiting for the next step is not busy.

    A step takes 1 (OUTPUT) to 4 cycles, an input of RECOVER 4 + its erasures, and a new pattern as
    many as `Solver` says. Each is less than the beats of a block.
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

        self._solver = Solver(config=config)
        self._held = Signal()  # an input waits for the step after it
        self._held_block = Signal(input_block(config))
        self._first = Signal()  # the next input is the first of its pass
        self._unsolvable = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.solver = solver = self._solver
        now = self.step.payload
        m.d.comb += [
            solver.request.payload.kind.eq(now.kind),
            solver.request.payload.role.eq(now.role),
            solver.request.payload.erased.eq(now.erased),
            solver.request.payload.parities.eq(now.parities),
            self.inputs.payload.eq(self._held_block),
            self.inputs.payload.last.eq(now.kind == StepKind.OUTPUT),
            self.outputs.payload.syndrome.eq(now.role),
            self.outputs.payload.line.eq(now.line),
            self.outputs.payload.last.eq(now.last),
            self.outputs.payload.index.eq(now.index),
            self.outputs.payload.error.eq(self._unsolvable),
            self.outputs.payload.piece.eq(self._held_block.piece),
        ]
        with m.FSM(name="decode") as fsm:
            self._take(m)
            self._begin(m)
            self._hold(m)
        m.d.comb += self.busy.eq(self.step.valid | ~fsm.ongoing("TAKE"))
        return m

    def _take(self, m: Module) -> None:
        """The state TAKE: a step."""
        now, held, unsolvable = self.step.payload, self._held, self._unsolvable
        is_begin = (now.kind == StepKind.GENERATE) | (now.kind == StepKind.RECOVER)
        with m.State("TAKE"):
            with m.If(self.step.valid):
                with m.If(held & ~is_begin):
                    # This step shows whether the input before it was the last of its pass.
                    m.d.comb += self.inputs.valid.eq(1)
                    with m.If(self.inputs.ready):
                        m.d.sync += held.eq(0)
                with m.Elif(now.kind == StepKind.OUTPUT):
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
                    self._ask_solver(m, is_begin)

    def _ask_solver(self, m: Module, is_begin: Value) -> None:
        """Ends a state: the solver gets the step."""
        now, request = self.step.payload, self._solver.request
        m.d.comb += [request.valid.eq(1), self.step.ready.eq(request.ready)]
        with m.If(request.ready):
            m.d.sync += self._held_block.line.eq(now.line)
            m.next = "HOLD"
            with m.If(is_begin):
                m.next = "BEGIN"
                m.d.sync += self._held_block.piece.eq(now.piece)

    def _begin(self, m: Module) -> None:
        """The state BEGIN, of a pass: whether it can be solved."""
        answer = self._solver.answer
        with m.State("BEGIN"):
            m.d.comb += answer.ready.eq(1)
            with m.If(answer.valid):
                m.d.sync += [
                    self._first.eq(1),
                    self._unsolvable.eq(answer.payload.unsolvable),
                ]
                m.next = "TAKE"

    def _hold(self, m: Module) -> None:
        """The state HOLD, of an input: it waits for the step after it."""
        answer = self._solver.answer
        with m.State("HOLD"):
            m.d.comb += answer.ready.eq(1)
            with m.If(answer.valid):
                m.d.sync += [
                    self._held.eq(1),
                    self._held_block.coefficients.eq(answer.payload.coefficients),
                    self._held_block.first.eq(self._first),
                    self._first.eq(0),
                ]
                m.next = "TAKE"
