"""A queue of payloads between two streams."""

from amaranth.hdl import Const, Module, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out


class Queue(wiring.Component):
    """First in, first out.

    The latency is two cycles, and the throughput one payload a cycle. With depth 1 they are one
    cycle and half a payload a cycle. Its memory is a block RAM where the FPGA has one of that
    depth.

    Parameters
    ----------
    shape
        Payload shape of both streams.
    depth
        Most payloads that it holds, at least 1.

    Ports
    -----
    input
        Payloads that come in. It is ready while there is room. Whoever knows that there is room
        need not look.
    output
        The payload that has been in it longest, once it has come out of the memory.
    level
        Payloads that it holds, offered or not.
    filling
        It holds something and offers nothing yet. That changes by itself.
    busy
        It is filling, or what it offers is taken.
    """

    def __init__(self, shape, depth: int):
        self._shape = shape
        self._depth = depth
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
                "filling": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        payload, offered = Value.cast(self.input.payload), Value.cast(self.output.payload)
        # With a depth of two the memory has one place, and a payload is in it for a cycle before it
        # is at the output. So one more place is needed to have room for the second.
        two = self._depth == 2
        depth = self._depth + two
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=len(payload), depth=depth)
        room = fifo.level != self._depth if two else Const(1)
        m.d.comb += [
            fifo.w_data.eq(payload),
            fifo.w_en.eq(self.input.valid & room),
            self.input.ready.eq(fifo.w_rdy & room),
            offered.eq(fifo.r_data),
            self.output.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.output.ready),
            self.level.eq(fifo.level),
            self.filling.eq((fifo.level != 0) & ~fifo.r_rdy),
            self.busy.eq(self.filling | (self.output.valid & self.output.ready)),
        ]
        return m
