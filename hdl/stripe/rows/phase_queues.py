"""Operations and parity steps on their way out of the sequencer, whole phases at a time."""

from amaranth.hdl import Assert, Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.operation import operation
from hdl.flow.parity_pass import step
from hdl.kit.queue import Queue
from hdl.stripe.planning.program import targets


class PhaseQueues(wiring.Component):
    """Keeps what a row sends, so that a row that has begun a phase never waits for a consumer.

    ``room``: every operation and every step of the longest phase fits. ``send_operation`` and
    ``send_step`` queue ``next_operation`` and ``next_step``; only after ``room`` was seen at the
    beginning of the phase. Latency 2 cycles.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "next_operation": In(operation(config)),
                "send_operation": In(1),
                "next_step": In(step(config)),
                "send_step": In(1),
                "room": Out(1),
                "operation": Out(stream.Signature(operation(config))),
                "step": Out(stream.Signature(step(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        # Longest phase: every target of a mirrored row; old and new data and the parities.
        most_operations = targets(config)
        most_steps = 2 * config.ports + 2 * config.parities + 2
        moves = []
        rooms = []
        for name, payload, send, output, most in (
            ("operations", self.next_operation, self.send_operation, self.operation,
             most_operations),
            ("steps", self.next_step, self.send_step, self.step, most_steps),
        ):  # fmt: skip
            depth = 1 << (2 * most - 1).bit_length()
            m.submodules[name] = fifo = Queue(payload.shape(), depth)
            connect(m, fifo.output, flipped(output))
            m.d.comb += [
                fifo.input.payload.eq(payload),
                fifo.input.valid.eq(send),
            ]
            rooms.append(fifo.level <= depth - most)
            m.d.sync += Assert(~send | fifo.input.ready, f"{name}: a phase had no room")
            moves.append(fifo.busy)
        m.d.comb += [self.room.eq(Cat(rooms).all()), self.busy.eq(Cat(moves).any())]
        return m
