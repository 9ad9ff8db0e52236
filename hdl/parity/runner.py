"""Parity passes from line store to line store."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.line import ReadPort, write_port
from hdl.flow.parity_pass import pass_done, piece_field, step
from hdl.kit.optional import optional
from hdl.kit.queue import Queue
from hdl.parity.decoder import StepDecoder, input_block, output_block
from hdl.parity.engine import ParityEngine, syndrome_bits
from hdl.parity.fetcher import BlockFetcher

INPUT_BLOCKS = 8
"""Input blocks decoded ahead: their transfer covers the decoding of the pass after them."""

OUTPUT_BLOCKS = 8
"""Output blocks decoded ahead: those of two passes of the widest kind."""


class ParityPass(wiring.Component):
    """Executes parity passes: reads blocks, computes their weighted sums, writes the results.

    A pass may be about a piece of its lines only; all that is said of blocks then holds for these
    pieces. A pass reads all its inputs before it writes its first output, so an output line may be
    one of its inputs. Outputs are written while the next pass reads; a pass that needs the result
    of another must be sent after that one is done.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    step
        Passes as `hdl.flow.parity_pass.step` defines them, whole and in order. Steps of the next
        passes may be sent at any time; they wait while eight blocks to read are ahead.
    done
        One answer a pass, in order, after the last beat of its last output was taken; with
        ``error`` when the erasures cannot be solved, and then nothing was read or written.
        Output of later passes stops while it waits.
    line_read
        One beat a cycle. No idle cycle between the blocks of a pass or between passes as long as
        the steps are there, except that a pass waits until the outputs of the pass two before it
        have left the engine: never while the pass in between has more inputs than that one
        outputs, 3 cycles when as many.
    line_write
        One beat a cycle, every word enabled; the first output beat is offered 5 cycles after the
        last input beat arrived.
    busy
        Something moves; waiting for steps is not busy.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "step": In(stream.Signature(step(config))),
                "done": Out(stream.Signature(pass_done(config))),
                "line_read": Out(ReadPort(config)),
                "line_write": Out(write_port(config)),
                "busy": Out(1),
            }
        )

        self._tag = data.StructLayout(
            {
                "line": config.line_bits,
                "index": config.row_slot_bits,
                "last": 1,
                **optional(config.background, {"syndrome": syndrome_bits(config)}),
                **piece_field(config),
            }
        )
        self._decoder = StepDecoder(config=config)
        self._fetcher = BlockFetcher(config=config)
        self._engine = ParityEngine(config=config, tag_bits=self._tag.size)
        self._inputs = Queue(input_block(config), INPUT_BLOCKS)
        self._outputs = Queue(output_block(config), OUTPUT_BLOCKS)
        self._refused = Signal()  # a pass without any output is answered
        # The beat that goes to a line, and what the engine was told of its block.
        self._beat = self._engine.output.payload
        self._drained = data.View(self._tag, self._beat.tag)
        self._ends = self._beat.last & self._drained.last  # the last beat of its pass

    def elaborate(self, platform) -> Module:
        m = Module()
        decoder, fetcher, engine = self._decoder, self._fetcher, self._engine
        inputs, outputs = self._inputs, self._outputs
        m.submodules.decoder = decoder
        m.submodules.fetcher = fetcher
        m.submodules.engine = engine
        m.submodules.inputs = inputs
        m.submodules.outputs = outputs
        connect(m, flipped(self.step), decoder.step)
        connect(m, fetcher.line_read, flipped(self.line_read))
        connect(m, fetcher.beats, engine.beats)
        connect(m, decoder.inputs, inputs.input)
        connect(m, decoder.outputs, outputs.input)
        connect(m, inputs.output, fetcher.inputs)
        m.d.comb += fetcher.released.eq(engine.released)
        self._drain(m)
        self._store(m)
        self._look_for_nonzero(m)
        self._refuse(m)
        waiting = inputs.output.valid | (inputs.level != 0) | (outputs.level != 0)
        m.d.comb += self.busy.eq(
            decoder.busy | fetcher.busy | engine.busy | waiting | self.done.valid
        )
        return m

    def _drain(self, m: Module) -> None:
        """Outputs go to the engine, or, for a pass without any, straight to the answer."""
        engine, outputs = self._engine, self._outputs
        block, drain = outputs.output.payload, engine.drain
        tag = data.View(self._tag, drain.payload.tag)
        m.d.comb += [
            drain.valid.eq(outputs.output.valid & ~block.error),
            drain.payload.syndrome.eq(block.syndrome),
            drain.payload.release.eq(block.last),
            tag.line.eq(block.line),
            tag.index.eq(block.index),
            tag.last.eq(block.last),
            tag.syndrome.eq(block.syndrome),
            tag.piece.eq(block.piece),
            drain.payload.piece.eq(block.piece),
            self._refused.eq(
                outputs.output.valid & block.error & ~engine.draining & ~self.done.valid
            ),
            outputs.output.ready.eq(drain.ready | self._refused),
        ]

    def _store(self, m: Module) -> None:
        """Beats go to lines. The last beat of a pass waits until its answer has a place."""
        beat, drained, write = self._beat, self._drained, self.line_write
        output = self._engine.output
        allowed = ~(self._ends & self.done.valid)
        m.d.comb += [
            write.valid.eq(output.valid & allowed),
            output.ready.eq(write.ready & allowed),
            write.payload.address.eq(Cat(beat.beat, drained.line)),
            write.payload.data.eq(beat.data),
            write.payload.mask.eq(~0),
        ]
        with m.If(self.done.valid & self.done.ready):
            m.d.sync += self.done.valid.eq(0)
        with m.If(write.valid & write.ready & self._ends):
            m.d.sync += [
                self.done.valid.eq(1),
                self.done.payload.index.eq(drained.index),
                self.done.payload.error.eq(0),
                self.done.payload.piece.eq(drained.piece),
            ]

    def _look_for_nonzero(self, m: Module) -> None:
        """Syndromes that are not all zeros."""
        write = self.line_write
        seen = Signal(self._config.parities)
        seen_now = Signal(self._config.parities)
        m.d.comb += seen_now.eq(seen | (self._beat.data.any() << self._drained.syndrome))
        with m.If(write.valid & write.ready):
            m.d.sync += seen.eq(seen_now)
            with m.If(self._ends):
                m.d.sync += [seen.eq(0), self.done.payload.nonzero.eq(seen_now)]

    def _refuse(self, m: Module) -> None:
        """A pass without any output is answered with an error."""
        block = self._outputs.output.payload
        with m.If(self._refused):
            m.d.sync += [
                self.done.valid.eq(1),
                self.done.payload.index.eq(block.index),
                self.done.payload.error.eq(1),
                self.done.payload.piece.eq(block.piece),
            ]
