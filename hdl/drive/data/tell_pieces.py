"""When pieces of blocks that a read path writes can be read from their lines."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import LINE_WRITERS, Config
from hdl.flow.piece import early, piece
from hdl.memory.store import write_delay


class TellPieces(wiring.Component):
    """Tells of each piece when its last beat is certain to be read, `write_delay` cycles after it
    was written.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    written
        A pulse: the line store takes the last beat of a piece of a block.
    number
        The number of that piece.
    early
        That of its operation.
    told
        A pulse: a piece can be read.
    piece
        That piece.
    busy
        A piece is still to be told of.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "written": In(1),
                "number": In(piece(config)["number"].shape),
                "early": In(early(config)),
                "told": Out(1),
                "piece": Out(piece(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        layout = piece(self._config)
        now = Signal(layout)
        m.d.comb += [now.seat.eq(self.early.seat), now.number.eq(self.number)]
        delay = write_delay(LINE_WRITERS)
        # A written piece is told of in the cycle in which a read may be taken.
        valid = Signal(delay)
        m.d.sync += valid.eq(Cat(self.written & self.early.any, valid))
        item = now
        for stage in range(delay):
            kept = Signal(layout, name=f"piece_{stage}", reset_less=True)
            m.d.sync += kept.eq(item)
            item = kept
        m.d.comb += [self.told.eq(valid[-1]), self.piece.eq(item), self.busy.eq(valid.any())]
        return m
