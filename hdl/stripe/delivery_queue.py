"""Blocks of rows that wait for the way to the host."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.operation import landed


class DeliveryQueue(wiring.Component):
    """Keeps the sequencer from waiting for the host's link.

    A gathered row gives the host all its blocks at once, and the link takes some 150 cycles for
    each; meanwhile other rows can go on. Each block in the queue has a line of its own, so it is
    never full.

    ``input``, ``output``: as `hdl.stripe.rows.sequencer.Sequencer` says ``recovered``. Latency 2
    cycles, one block a cycle.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "input": In(stream.Signature(landed(config))),
                "output": Out(stream.Signature(landed(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        m.submodules.blocks = blocks = SyncFIFOBuffered(
            width=landed(config).size, depth=config.lines
        )
        m.d.comb += [
            blocks.w_data.eq(self.input.payload),
            blocks.w_en.eq(self.input.valid),
            self.input.ready.eq(blocks.w_rdy),
            self.output.payload.eq(blocks.r_data),
            self.output.valid.eq(blocks.r_rdy),
            blocks.r_en.eq(self.output.ready),
            self.busy.eq((blocks.level != 0) & (self.output.ready | ~blocks.r_rdy)),
        ]
        return m
