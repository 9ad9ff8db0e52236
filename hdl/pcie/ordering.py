"""Who may pass whom on the way out (PCIe base specification 2.4.1).

Completions do not pass posted requests; reads keep nobody waiting.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.pcie.tlp import CREDITS_MOST

AHEAD_BITS = 10
"""Width of a number of memory writes on their way: more than a stage, or the hard block, holds."""

NUMBER_BITS = 5
"""Sequence numbers of memory writes, modulo 2 to this; those of reads have the next bit set."""

RETURNS = 2
"""Sequence numbers that the hard block can give back in a cycle."""

GIVEN_UP = 1 << 12
"""Cycles for which the hard block is waited for that may not, or may not have to, send a write."""


class WritesAhead(wiring.Component):
    """Says when the memory writes that were ahead of something have left.

    Ports
    -----
    ahead, leave
        Memory writes that are on their way, in order; how many of them leave in this cycle.
    waits
        Something that must not pass them is there. Until ``taken``.
    passed
        Those that were ahead of it when it came have left.
    taken
        A pulse: it has gone.

    Latency none if nothing is ahead; else ``passed`` follows the last ``leave`` by one cycle.
    """

    ahead: In(AHEAD_BITS)
    leave: In(AHEAD_BITS)
    waits: In(1)
    passed: Out(1)
    taken: In(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        known = Signal()
        left = Signal(AHEAD_BITS)
        most = Signal(AHEAD_BITS)
        m.d.comb += [
            most.eq(Mux(known, left, self.ahead)),
            self.passed.eq(most == 0),
        ]
        with m.If(self.waits):
            m.d.sync += [known.eq(1), left.eq(Mux(self.leave < most, most - self.leave, 0))]
        with m.If(self.taken):
            m.d.sync += known.eq(0)
        return m


class ReadCredits(wiring.Component):
    """Counts reads on their way to the link against the flow control credits that there are.

    A hard block holds a read for which it has no credit, and with it all that comes behind it on
    the same stream (PG213, "Avoiding Head-of-Line Blocking for Posted Requests"). A host may give a
    credit only once it has sent the completions of a read before. Those do not pass its register
    writes, which wait for the answer of a register, which waits for writes (`WritesAhead`): if one
    of these were behind a read without credit, all would wait for each other for ever (PCIe base
    specification 2.4.1: posted requests pass reads). So no read is offered that lacks a credit.
    What is offered then needs at most credits for writes, and those wait for nothing of this kind.

    Parameters
    ----------
    delay
        Cycles after which ``available`` tells of a read that the block has taken. Longer is safe.

    Ports
    -----
    available
        Credits for headers of non-posted requests, as the block says.
    given, sent
        Pulses: the shim is given a read; the block has taken one.
    credits
        See `hdl.pcie.tlp.RequestProgress`.
    """

    def __init__(self, *, delay: int, bits: int):
        self._delay = delay
        super().__init__(
            {
                "available": In(bits),
                "given": In(1),
                "sent": In(1),
                "credits": Out(range(CREDITS_MOST + 1)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        most = Signal.like(self.credits)
        untold = Signal.like(self.credits)  # given, and ``available`` does not tell of it
        taken = Signal(self._delay)
        told = taken[-1]
        m.d.comb += [
            most.eq(Mux(self.available > CREDITS_MOST, CREDITS_MOST, self.available)),
            self.credits.eq(Mux(most > untold, most - untold, 0)),
        ]
        m.d.sync += [
            taken.eq(Cat(self.sent, taken)),
            untold.eq(untold + self.given - told),
        ]
        return m


class SequenceNumbers(wiring.Component):
    """Counts the memory writes that a completion could still pass inside the hard block.

    Each has a sequence number, which the block gives back when it has reached the point where no
    completion can pass it (PG213, "Maintaining Transaction Order"). Numbers come back in order.
    One that never comes back is made up for by the next. Without bus mastering the block may drop
    what it has taken. So writes that were sent before, or while, bus mastering was off are gone
    once `GIVEN_UP` cycles have passed in which no number came back and the block took nothing.

    What has been offered to the block and not been taken cannot be withdrawn (PG213, "Requester
    Memory Write Operation": nothing changes while ``tready`` is 0), so it is not gone, however long
    it stands there.

    Ports
    -----
    sent, number
        A pulse: a memory write begins; its number is ``number``.
    unfinished
        The last write sent has beats that the block has not taken.
    offered, taken
        The block is offered a beat, of a write or not, and takes it.
    valid, returned
        Numbers that come back, `RETURNS` a cycle at most.
    bus_master
        As in `hdl.flow.pcie_status.PcieStatus`.
    ahead, leave
        Writes that have not come back; how many do in this cycle, or are gone.
    stuck
        Without bus mastering the block has taken nothing of what it is offered for `GIVEN_UP`
        cycles: who would wait until it does might wait for ever.
    """

    sent: In(1)
    number: Out(NUMBER_BITS)
    unfinished: In(1)
    offered: In(1)
    taken: In(1)
    valid: In(RETURNS)
    returned: In(RETURNS * (NUMBER_BITS + 1))
    bus_master: In(1)
    ahead: Out(AHEAD_BITS)
    leave: Out(AHEAD_BITS)
    stuck: Out(1)
    busy: Out(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        last = Signal(NUMBER_BITS, init=(1 << NUMBER_BITS) - 1)  # that has come back
        waited = Signal(range(GIVEN_UP))
        doubtful = Signal(AHEAD_BITS)  # of those ahead, the oldest: they may have been dropped
        steps = []
        for place in range(RETURNS):
            number = self.returned.word_select(place, NUMBER_BITS + 1)
            step = Signal(NUMBER_BITS, name=f"step_{place}")
            is_write = self.valid[place] & ~number[NUMBER_BITS]
            m.d.comb += step.eq(Mux(is_write, number[:NUMBER_BITS] - last, 0))
            steps.append(Mux(step <= self.ahead, step, 0))
        first, second = steps
        came, gone, following = (
            Signal(AHEAD_BITS, name=name) for name in ("came", "gone", "following")
        )
        stands = self.offered & ~self.bus_master
        # With bus mastering a write that the block is about to take tells of those before it.
        waits = stands | ((doubtful != 0) & ~(self.unfinished & self.bus_master))
        given_up = waited == GIVEN_UP - 1
        m.d.comb += [
            came.eq(Mux(first > second, first, second)),
            gone.eq(doubtful - (self.unfinished & (doubtful == self.ahead))),
            self.leave.eq(Mux(given_up & (gone > came), gone, came)),
            following.eq(self.ahead + self.sent - self.leave),
            self.stuck.eq(given_up & stands),
            self.busy.eq(self.ahead != 0),
        ]
        m.d.sync += [
            self.ahead.eq(following),
            self.number.eq(self.number + self.sent),
            last.eq(last + self.leave),
            doubtful.eq(
                Mux(
                    self.bus_master,
                    Mux(doubtful > self.leave, doubtful - self.leave, 0),
                    following,
                )
            ),
            waited.eq(Mux(waits & ~self.taken & (came == 0), waited + ~given_up, 0)),
        ]
        return m
