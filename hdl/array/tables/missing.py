"""Whether an array can do without the members that are not there."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES
from hdl.flow.geometry import WIDTH_BITS


class Missing(wiring.Component):
    """Looks for a group of members that can replace each other, and of which too many are missing.

    Groups are those of `hdl.array.states.ArrayStates`. With parity they are the drives of a span,
    of which as many may be missing as there are parities. Without parity they are the drives that
    hold the copies of one strip, of which all but one may be missing.

    Ports
    -----
    start
        A pulse. Begin. The inputs stay stable until ``done``.
    members
        One bit per position, over all spans. No drive is there.
    width
        Drives of a span. This and the next three are those of `hdl.flow.geometry.geometry`.
    parities
        Parities of a span.
    copies
        Copies of each strip.
    spans
        Spans.
    done
        A pulse, 2 cycles for each member of each group after ``start``. At most some 1000.
    tolerated
        With ``done``: no group misses too many.
    """

    start: In(1)
    members: In(MAX_DRIVES)
    width: In(WIDTH_BITS)
    parities: In(3)
    copies: In(WIDTH_BITS)
    spans: In(WIDTH_BITS)
    done: Out(1)
    tolerated: Out(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        parity = self.parities != 0
        size, tolerance, end = (
            Signal(WIDTH_BITS, name=name) for name in ("size", "tolerance", "end")
        )
        m.d.sync += [
            size.eq(Mux(parity, self.width, self.copies)),
            tolerance.eq(Mux(parity, self.parities, self.copies - 1)),
            # Groups of copies may wrap, and end where one begins at position 0 again.
            end.eq(Mux(parity, self.width * self.spans, self.width)),
        ]
        first = Signal(WIDTH_BITS + 1)
        position = Signal(WIDTH_BITS + 1)
        seen = Signal(WIDTH_BITS)
        gone = Signal(WIDTH_BITS)
        after = Signal(WIDTH_BITS + 1)
        following = Signal(WIDTH_BITS + 1)
        m.d.comb += [
            after.eq(Mux(first + size >= end, first + size - end, first + size)),
            following.eq(Mux(position + 1 == end, 0, position + 1)),
        ]
        with m.FSM(name="tolerate"):
            with m.State("REST"):
                m.d.sync += [first.eq(0), position.eq(0), seen.eq(0), gone.eq(0)]
                with m.If(self.start):
                    m.next = "LOOK"
            with m.State("LOOK"):
                m.d.sync += [
                    seen.eq(seen + 1),
                    gone.eq(gone + self.members.bit_select(position[:5], 1)),
                    position.eq(following),
                ]
                with m.If(seen + 1 == size):
                    m.next = "WEIGH"
            with m.State("WEIGH"):
                m.d.sync += [first.eq(after), position.eq(after), seen.eq(0), gone.eq(0)]
                m.next = "LOOK"
                with m.If(gone > tolerance):
                    m.d.comb += self.done.eq(1)
                    m.next = "REST"
                with m.Elif(after == 0):
                    m.d.comb += [self.done.eq(1), self.tolerated.eq(1)]
                    m.next = "REST"
        return m
