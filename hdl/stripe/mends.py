"""Rows in which a host's read came upon a block that its drive cannot read."""

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.background.interface import MEND_TAG, WalkKind, walk
from hdl.config import BLOCK_NUMBER_BITS, MENDS, Config


def row_place(config: Config) -> data.StructLayout:
    """Where a row lies, as `hdl.background.interface.walk` says it."""
    return data.StructLayout(
        {"array": config.array_bits, "base": 5, "shift": 5, "row": BLOCK_NUMBER_BITS}
    )


class Mends(wiring.Component):
    """Asks for a PATROL of a row, which writes the block anew, after the host's read has gone on.

    ``note``: the read has gone on to other drives; ``row`` is where its row lies, and as for any
    walk without parity its ``shift`` that of the strip. Dropped while `MENDS` wait; ``noted``: it
    was not.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "row": In(row_place(config)),
                "note": In(1),
                "noted": Out(1),
                "walk": Out(stream.Signature(walk(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        layout = walk(self._config)
        m.submodules.queue = queue = SyncFIFOBuffered(width=layout.size, depth=MENDS)
        noted = self.walk.payload.shape()(queue.w_data)
        m.d.comb += [
            noted.kind.eq(WalkKind.PATROL),
            noted.array.eq(self.row.array),
            noted.base.eq(self.row.base),
            noted.shift.eq(self.row.shift),
            noted.row.eq(self.row.row),
            noted.tag.eq(MEND_TAG),
            queue.w_en.eq(self.note),
            self.noted.eq(self.note & queue.w_rdy),
            self.walk.payload.eq(queue.r_data),
            self.walk.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.walk.ready),
            self.busy.eq((queue.level != 0) & ~queue.r_rdy),
        ]
        return m
