"""Rows in which a host read came upon a block that its drive cannot read."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.array.interface import extent, geometry
from hdl.background.interface import MEND_TAG, WalkKind, walk
from hdl.config import Config

MENDS = 4
"""Rows remembered. What is forgotten is found again, by a patrol or the next read."""


class Mends(wiring.Component):
    """Asks for a PATROL of a row, which writes the block anew, after the host's read has gone on.

    ``note``: the extent in ``extent``, whose first row is meant, has gone on; of an array of
    ``geometry``. Dropped while `MENDS` wait.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "extent": In(extent(config)),
                "geometry": In(geometry(config)),
                "note": In(1),
                "walk": Out(stream.Signature(walk(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        layout = walk(self._config)
        m.submodules.queue = queue = SyncFIFOBuffered(width=layout.size, depth=MENDS)
        one, shape = self.extent, self.geometry
        noted = self.walk.payload.shape()(queue.w_data)
        m.d.comb += [
            noted.kind.eq(WalkKind.PATROL),
            noted.array.eq(one.array),
            noted.base.eq(one.base),
            noted.shift.eq(one.shift),
            noted.row.eq(one.row),
            noted.tag.eq(MEND_TAG),
            queue.w_en.eq(self.note),
            self.walk.payload.eq(queue.r_data),
            self.walk.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.walk.ready),
            self.busy.eq((queue.level != 0) & ~queue.r_rdy),
        ]
        with m.If(shape.copies > 1):
            m.d.comb += noted.shift.eq(one.shift + one.index * shape.copies)
        return m
