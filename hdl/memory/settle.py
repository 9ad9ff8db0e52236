"""Reports that a line is complete, told when the line can be read."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import LINE_WRITERS
from hdl.memory.store import write_delay


class Settle(wiring.Component):
    """Passes payloads on `write_delay` cycles after they were taken, or later.

    A payload says that a line has been written: the line store has accepted the last beat in an
    earlier cycle. When it is offered at ``output``, every beat can be read in that same cycle.

    Parameters
    ----------
    shape
        Payload shape.

    Ports
    -----
    input, output
        Streams, in order. Throughput one payload a cycle. While ``output`` refuses a payload
        nothing behind it moves.
    busy
        A payload moves.
    """

    def __init__(self, shape):
        self._shape = shape
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        delay = write_delay(LINE_WRITERS)
        valid = Signal(delay)
        moves = Signal()
        m.d.comb += [
            moves.eq(~valid[-1] | self.output.ready),
            self.input.ready.eq(moves),
            self.output.valid.eq(valid[-1]),
            self.busy.eq(moves & (valid.any() | self.input.valid)),
        ]
        item = self.input.payload
        with m.If(moves):
            m.d.sync += valid.eq(Cat(self.input.valid, valid))
        for stage in range(delay):
            kept = Signal(self._shape, name=f"kept_{stage}", reset_less=True)
            with m.If(moves):
                m.d.sync += kept.eq(item)
            item = kept
        m.d.comb += self.output.payload.eq(item)
        return m
