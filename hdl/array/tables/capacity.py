"""How many blocks an array offers."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.array.tables.level_rules import MAX_STRIP_SHIFT
from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BITS
from hdl.flow.geometry import WIDTH_BITS

PRODUCT_BITS = BLOCK_NUMBER_BITS + WIDTH_BITS


class Capacity(wiring.Component):
    """Works out the blocks of an array: stripes * ``strips`` / ``copies``, in whole strips.

    Stripes are the whole strips of the smallest member after ``data_offset``. The product is made
    by shift and add, then the quotient one bit a cycle.

    Ports
    -----
    start
        A pulse. Begin. The inputs stay stable until ``done``.
    member_blocks
        Blocks of the smallest member.
    data_offset
        The block of a member at which its rows begin.
    strip_shift
        log2 of the blocks of a strip.
    strips
        Strips of a stripe over all spans, before mirroring.
    copies
        Copies of each strip.
    done
        A pulse, at most 60 cycles after ``start``. The ports below hold from then to the next
        ``start``.
    rows
        Rows of a span.
    blocks
        Blocks of the array.
    overflow
        ``blocks`` does not fit into a block number.
    """

    start: In(1)
    member_blocks: In(BLOCK_NUMBER_BITS)
    data_offset: In(DATA_OFFSET_BITS)
    strip_shift: In(4)
    strips: In(WIDTH_BITS)
    copies: In(WIDTH_BITS)
    done: Out(1)
    rows: Out(BLOCK_NUMBER_BITS)
    blocks: Out(BLOCK_NUMBER_BITS)
    overflow: Out(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        stripes = Signal(BLOCK_NUMBER_BITS)
        addend = Signal(PRODUCT_BITS)
        multiplier = Signal(WIDTH_BITS)
        # Dividend above, quotient below: both move up one bit a cycle.
        work = Signal(PRODUCT_BITS)
        remainder = Signal(WIDTH_BITS)
        step = Signal(range(PRODUCT_BITS))
        trial = Signal(WIDTH_BITS + 1)
        fits = Signal()
        scaled = Signal(PRODUCT_BITS + MAX_STRIP_SHIFT + 1)
        m.d.comb += [
            trial.eq(Cat(work[-1], remainder)),
            fits.eq(trial >= self.copies),
            scaled.eq(work << self.strip_shift),
            self.rows.eq(stripes << self.strip_shift),
            self.blocks.eq(scaled),
            self.overflow.eq((scaled >> BLOCK_NUMBER_BITS) != 0),
        ]
        with m.FSM(name="measure"):
            with m.State("START"):
                with m.If(self.start):
                    m.d.sync += stripes.eq(
                        Mux(
                            self.member_blocks > self.data_offset,
                            self.member_blocks - self.data_offset,
                            0,
                        )
                        >> self.strip_shift
                    )
                    m.next = "LOAD"
            with m.State("LOAD"):
                m.d.sync += [
                    addend.eq(stripes),
                    multiplier.eq(self.strips),
                    work.eq(0),
                    remainder.eq(0),
                    step.eq(0),
                ]
                m.next = "MULTIPLY"
            with m.State("MULTIPLY"):
                m.d.sync += [addend.eq(addend << 1), multiplier.eq(multiplier >> 1)]
                with m.If(multiplier[0]):
                    m.d.sync += work.eq(work + addend)
                with m.If(multiplier == 0):
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.d.sync += [
                    work.eq(Cat(fits, work)),
                    remainder.eq(Mux(fits, trial - self.copies, trial)),
                    step.eq(step + 1),
                ]
                with m.If(step == PRODUCT_BITS - 1):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += self.done.eq(1)
                m.next = "START"
        return m
