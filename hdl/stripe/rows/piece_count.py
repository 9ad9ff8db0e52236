"""How many of the blocks that a row reads have each of their pieces in their lines."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import PIECES, Config, bits_for_count
from hdl.flow.piece import early_seat, piece
from hdl.kit.bits import ones
from hdl.kit.table import Table


class PieceCount(wiring.Component):
    """Counts pieces as they land, and says of which no more is to come.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begin
        A strobe: a row begins. At most one in 4 cycles, and before any of its pieces.
    seat
        The seat that it takes.
    reads
        It reads as many blocks as this has bits.
    piece
        Pieces of rows that have begun, each block's once (`hdl.flow.piece.piece`).
    whole
        A pulse: a piece of all blocks is there. A seat's pieces come in the order of their
        numbers if those of each block do.
    completed
        That piece.
    busy
        A piece is being counted.

    It takes a piece in 2 cycles, one to read and one to write back, and in 3 after ``begin``.
    ``whole`` comes 1 cycle after the piece was offered.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "begin": In(1),
                "seat": In(early_seat(config)),
                "reads": In(config.ports),
                "piece": In(stream.Signature(piece(config))),
                "whole": Out(1),
                "completed": Out(piece(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        number = bits_for_count(config.ports + 1)
        layout = data.StructLayout({"blocks": number, "landed": data.ArrayLayout(number, PIECES)})
        m.submodules.counts = counts = Table(layout, config.early_rows)
        read, write = counts.reads[0], counts.write

        begun = Signal()
        begun_seat = Signal(early_seat(config))
        begun_reads = Signal(config.ports)
        one = self.piece.payload
        landed = Signal(number)
        m.d.comb += [
            read.address.eq(one.seat),
            write.address.eq(one.seat),
            write.data.eq(read.data),
            landed.eq(read.data.landed[one.number] + 1),
            self.completed.eq(one),
        ]
        with m.If(self.begin):
            m.d.sync += [begun.eq(1), begun_seat.eq(self.seat), begun_reads.eq(self.reads)]
        with m.FSM(name="count") as fsm:
            with m.State("READ"):
                with m.If(begun):
                    m.d.comb += counts.store(
                        address=begun_seat, data=0, blocks=ones(begun_reads)
                    )
                    m.d.sync += begun.eq(0)
                with m.Elif(self.piece.valid):
                    m.next = "ADD"
            with m.State("ADD"):
                m.d.comb += counts.store()
                m.d.comb += [
                    write.data.landed[one.number].eq(landed),
                    self.piece.ready.eq(1),
                    self.whole.eq(landed == read.data.blocks),
                ]
                m.next = "READ"
            m.d.comb += self.busy.eq(Cat(begun, self.piece.valid, fsm.ongoing("ADD")).any())
        return m
