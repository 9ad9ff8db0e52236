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

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        tag_layout = data.StructLayout(
            {
                "line": config.line_bits,
                "index": config.row_slot_bits,
                "last": 1,
                **optional(config.background, {"syndrome": syndrome_bits(config)}),
                **piece_field(config),
            }
        )

        m.submodules.decoder = decoder = StepDecoder(config=config)
        m.submodules.fetcher = fetcher = BlockFetcher(config=config)
        m.submodules.engine = engine = ParityEngine(config=config, tag_bits=tag_layout.size)
        m.submodules.inputs = inputs = Queue(input_block(config), INPUT_BLOCKS)
        m.submodules.outputs = outputs = Queue(output_block(config), OUTPUT_BLOCKS)

        connect(m, flipped(self.step), decoder.step)
        connect(m, fetcher.line_read, flipped(self.line_read))
        connect(m, fetcher.beats, engine.beats)
        m.d.comb += fetcher.released.eq(engine.released)
        for source, fifo in ((decoder.inputs, inputs), (decoder.outputs, outputs)):
            connect(m, source, fifo.input)
        connect(m, inputs.output, fetcher.inputs)

        # Outputs: to the engine, or, for a pass without any, straight to the answer.
        block = outputs.output.payload
        refused = Signal()
        tag = data.View(tag_layout, engine.drain.payload.tag)
        m.d.comb += [
            engine.drain.valid.eq(outputs.output.valid & ~block.error),
            engine.drain.payload.syndrome.eq(block.syndrome),
            engine.drain.payload.release.eq(block.last),
            tag.line.eq(block.line),
            tag.index.eq(block.index),
            tag.last.eq(block.last),
            tag.syndrome.eq(block.syndrome),
            tag.piece.eq(block.piece),
            engine.drain.payload.piece.eq(block.piece),
            refused.eq(outputs.output.valid & block.error & ~engine.draining & ~self.done.valid),
            outputs.output.ready.eq(engine.drain.ready | refused),
        ]

        # Beats to lines. The last beat of a pass waits until its answer has a place.
        beat = engine.output.payload
        drained_tag = data.View(tag_layout, beat.tag)
        ends = beat.last & drained_tag.last
        allowed = ~(ends & self.done.valid)
        write = self.line_write
        m.d.comb += [
            write.valid.eq(engine.output.valid & allowed),
            engine.output.ready.eq(write.ready & allowed),
            write.payload.address.eq(Cat(beat.beat, drained_tag.line)),
            write.payload.data.eq(beat.data),
            write.payload.mask.eq(~0),
        ]
        with m.If(self.done.valid & self.done.ready):
            m.d.sync += self.done.valid.eq(0)
        with m.If(write.valid & write.ready & ends):
            m.d.sync += [
                self.done.valid.eq(1),
                self.done.payload.index.eq(drained_tag.index),
                self.done.payload.error.eq(0),
                self.done.payload.piece.eq(drained_tag.piece),
            ]
        # Syndromes that are not all zeros.
        seen = Signal(config.parities)
        seen_now = Signal(config.parities)
        m.d.comb += seen_now.eq(seen | (beat.data.any() << drained_tag.syndrome))
        with m.If(write.valid & write.ready):
            m.d.sync += seen.eq(seen_now)
            with m.If(ends):
                m.d.sync += [seen.eq(0), self.done.payload.nonzero.eq(seen_now)]
        with m.If(refused):
            m.d.sync += [
                self.done.valid.eq(1),
                self.done.payload.index.eq(block.index),
                self.done.payload.error.eq(1),
                self.done.payload.piece.eq(block.piece),
            ]

        waiting = inputs.output.valid | (inputs.level != 0) | (outputs.level != 0)
        m.d.comb += self.busy.eq(
            decoder.busy | fetcher.busy | engine.busy | waiting | self.done.valid
        )
        return m
