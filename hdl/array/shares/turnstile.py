"""Lets commands or rows pass while their array's share lasts. The others wait in its queue."""

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.array.shares.shares import Shares
from hdl.array.shares.waiting import Waiting
from hdl.config import Config, bits_for_count
from hdl.kit.queue import Queue
from hdl.kit.table import Table


class Turnstile(wiring.Component):
    """Says of each number whether it may go on with what it asks for. If not, it waits, and is
    called once its array may have that much.

    To ask for nothing is always granted. What a number has been granted counts for its array until
    its end is told. Until then it is granted again at once, and that counts nothing more. Numbers
    of an array that wait are called in the order in which they came. When somebody has given
    something back, the first of each queue is called. A number that is called asks anew, perhaps
    for something else.

    Parameters
    ----------
    config
        Sizes.
    count
        Numbers are less than this.
    total
        As for `hdl.array.shares.shares.Shares`.
    least
        As for `Shares`.
    most
        No array ever has more than that.

    Ports
    -----
    ask
        Level. ``number``, which is not waiting, wants ``amount`` for ``array``.
    number
        Who asks.
    array
        Its array.
    amount
        How much it wants, ``least`` at most.
    forced
        With ``ask``. The number cannot wait, and may end before it is counted. So it goes before
        ends that wait. For that it must have come while all was ``settled``.
    granted
        A pulse that ends ``ask``. The number may go on.
    refused
        A pulse that ends ``ask``. The number waits.
    calls
        Level. Nobody may ask but the number that comes in ``woken``, unless ``calls`` falls without
        one.
    woken
        A number that has waited, and must ask next. Somebody is called only while ``woken.ready``.
    ended
        A pulse. What ``ended_number`` had is given back. Nothing happens if it has nothing.
    ended_number
        That number.
    settled
        No end is waiting to be counted.
    exists
        One bit per array.
    alone
        There are not several arrays.
    waiting
        One bit per array. Somebody waits for its share.
    busy
        Something moves, once ``woken`` can be taken.

    Latency: 4 cycles, and 5 more for each end that is told before or meanwhile. About 13 cycles
    from an end to ``woken``. Nothing moves for ``count`` cycles after reset.
    """

    def __init__(self, *, config: Config, count: int, total: int, least: int, most: int):
        self._config = config
        self._count = count
        self._shares = Shares(config=config, total=total, least=least, most=most)
        self._least = least
        number = bits_for_count(count)
        super().__init__(
            {
                "ask": In(1),
                "number": In(number),
                "array": In(config.array_bits),
                "amount": In(bits_for_count(least + 1)),
                "forced": In(1),
                "granted": Out(1),
                "refused": Out(1),
                "calls": Out(1),
                "woken": Out(stream.Signature(number)),
                "ended": In(1),
                "ended_number": In(number),
                "settled": Out(1),
                "exists": In(config.arrays),
                "alone": Out(1),
                "waiting": Out(config.arrays),
                "busy": Out(1),
            }
        )
        self._queues = Waiting(config=config, count=count)
        self._ends = Queue(number, count)
        # What each number has been granted, if ``any``, and what it has asked for if it waits.
        charge = data.StructLayout(
            {"any": 1, "array": config.array_bits, "amount": self.amount.shape()}
        )
        self._charges = Table(charge, count)
        self._asked = Table(self.amount.shape(), count)

        # The number at hand.
        self._number = Signal(number)
        self._array = Signal(config.array_bits)
        self._amount = Signal(self.amount.shape())
        self._forced = Signal()
        self._expected = Signal()  # the number that asks next has been called
        self._called = Signal(number)
        self._exists = Signal(config.arrays)  # a cycle later

    def _after_count(self) -> str:
        """What follows once the count and the queue have been read: the link of its head is."""
        return "READ-LINK"

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.shares = self._shares
        m.submodules.queues = self._queues
        m.submodules.ends = self._ends
        m.submodules.charges = self._charges
        m.submodules.asked = self._asked
        self._connect_parts(m)
        self._connect_tables(m)
        with m.FSM(name="pass") as fsm:
            self._clear(m)
            self._rest(m)
            self._read_count(m)
            self._judge(m)
            self._end(m)
            self._read_head(m)
            self._wake(m)
            self._tell_busy(m, fsm)
        return m

    def _connect_parts(self, m: Module) -> None:
        """What the shares and the queues see of the number, and what is said of them."""
        shares, queues, ends = self._shares, self._queues, self._ends
        m.d.sync += self._exists.eq(self.exists)
        m.d.comb += [
            ends.input.valid.eq(self.ended),
            ends.input.payload.eq(self.ended_number),
            shares.exists.eq(self.exists),
            shares.array.eq(self._array),
            shares.amount.eq(self._amount),
            queues.array.eq(self._array),
            queues.number.eq(self._number),
            queues.retry.eq(shares.give | (self._exists != self.exists)),
            self.woken.payload.eq(self._number),
            self.settled.eq(ends.level == 0),
            self.alone.eq(shares.alone),
            self.waiting.eq(queues.waiting),
        ]
        m.d.sync += [
            Assert(~self.ask | (self.amount <= self._least), "more than an array can always have"),
            Assert(~self.ended | ends.input.ready, "an end more than there are numbers"),
        ]

    def _connect_tables(self, m: Module) -> None:
        """What is read and written of the number."""
        charges, asked, number = self._charges, self._asked, self._number
        m.d.comb += [
            charges.reads[0].address.eq(number),
            charges.write.address.eq(number),
            charges.write.data.array.eq(self._array),
            charges.write.data.amount.eq(self._amount),
            asked.reads[0].address.eq(number),
            asked.write.address.eq(number),
            asked.write.data.eq(self._amount),
        ]

    @property
    def _charge(self) -> data.View:
        """What the number has been granted."""
        return self._charges.reads[0].data

    def _clear(self, m: Module) -> None:
        """The state CLEAR, after a reset: no number has anything."""
        number = self._number
        with m.State("CLEAR"):
            m.d.comb += self._charges.store(any=0)
            m.d.sync += number.eq(number + 1)
            with m.If((number == self._count - 1) & self._shares.ready):
                m.d.sync += number.eq(0)
                m.next = "REST"

    def _rest(self, m: Module) -> None:
        """The state REST: what is to be done next, most urgent first."""
        ends, queues = self._ends, self._queues
        with m.State("REST"):
            with m.If(ends.output.valid & ~(self.ask & self.forced)):
                m.d.comb += ends.output.ready.eq(1)
                m.d.sync += self._number.eq(ends.output.payload)
                m.next = "READ-END"
            with m.Elif(self.ask):
                m.d.sync += [
                    self._number.eq(self.number),
                    self._array.eq(self.array),
                    self._amount.eq(self.amount),
                    self._forced.eq(self.forced),
                ]
                m.next = "READ-COUNT"
            with m.Elif(queues.calls & self.woken.ready):
                m.d.comb += queues.advance.eq(1)
                m.d.sync += self._array.eq(queues.calling)
                m.next = "READ-HEAD"

    def _read_count(self, m: Module) -> None:
        """The states READ-COUNT, of the array's count and queue, and READ-LINK, of its head's."""
        with m.State("READ-COUNT"):
            m.next = self._after_count()

        with m.State("READ-LINK"):
            m.next = "JUDGE"

    def _judge(self, m: Module) -> None:
        """The state JUDGE: whether the number may go on."""
        shares, queues, expected = self._shares, self._queues, self._expected
        waits = queues.waiting.bit_select(self._array, 1)
        with m.State("JUDGE"):
            m.d.sync += expected.eq(0)
            has = self._charge.any
            fits = shares.fits & (expected | ~waits)
            with m.If(has | self._forced | (self._amount == 0) | fits):
                m.d.comb += [
                    self.granted.eq(1),
                    shares.take.eq(~has),
                    self._charges.write.enable.eq(~has),
                    self._charges.write.data.any.eq(1),
                    queues.pop.eq(expected),
                ]
            with m.Else():
                m.d.comb += [
                    self.refused.eq(1),
                    *self._asked.store(),
                    queues.append.eq(~expected),
                    queues.refuse.eq(expected),
                ]
            m.next = "REST"

    def _end(self, m: Module) -> None:
        """The states READ-END to GIVE: what a number had is given back."""
        with m.State("READ-END"):
            m.next = "LOAD-END"

        with m.State("LOAD-END"):
            m.d.comb += self._charges.store()
            m.d.sync += [
                self._array.eq(self._charge.array),
                self._amount.eq(self._charge.amount),
            ]
            m.next = "REST"
            with m.If(self._charge.any):
                m.next = "READ-OLD"

        with m.State("READ-OLD"):
            m.next = "GIVE"

        with m.State("GIVE"):
            m.d.comb += self._shares.give.eq(1)
            m.next = "REST"

    def _read_head(self, m: Module) -> None:
        """The states READ-HEAD to JUDGE-HEAD: the first of a queue, and what it has asked for."""
        with m.State("READ-HEAD"):
            m.next = "LOAD-HEAD"

        with m.State("LOAD-HEAD"):
            m.d.sync += self._number.eq(self._queues.head)
            m.next = "READ-ASKED"

        with m.State("READ-ASKED"):
            m.next = "LOAD-ASKED"

        with m.State("LOAD-ASKED"):
            m.d.sync += self._amount.eq(self._asked.reads[0].data)
            m.next = "JUDGE-HEAD"

        with m.State("JUDGE-HEAD"):
            m.next = "WAKE"
            with m.If(~self._shares.fits):
                m.d.comb += self._queues.refuse.eq(1)
                m.next = "REST"

    def _wake(self, m: Module) -> None:
        """The state WAKE: the first of the queue is called."""
        with m.State("WAKE"):
            m.d.comb += self.woken.valid.eq(1)
            m.d.sync += [self._expected.eq(1), self._called.eq(self._number)]
            with m.If(self.woken.ready):
                m.next = "REST"

    def _tell_busy(self, m: Module, fsm) -> None:
        """Whether somebody is called, and whether something moves."""
        queues, ends = self._queues, self._ends
        waking = Signal()
        m.d.comb += [
            waking.eq(
                fsm.ongoing("READ-HEAD")
                | fsm.ongoing("LOAD-HEAD")
                | fsm.ongoing("READ-ASKED")
                | fsm.ongoing("LOAD-ASKED")
                | fsm.ongoing("JUDGE-HEAD")
                | fsm.ongoing("WAKE")
            ),
            self.calls.eq(queues.calls | waking),
            self.busy.eq(
                ~fsm.ongoing("REST")
                | (ends.level != 0)
                | self.ended
                | self.ask
                | (queues.calls & self.woken.ready)
                | (self._exists != self.exists)
            ),
        ]
        m.d.sync += [
            Assert(~self.ask | ~waking, "somebody asks while another is called"),
            Assert(
                ~(self._expected & fsm.ongoing("READ-COUNT")) | (self._number == self._called),
                "another asks than the one that was called",
            ),
        ]
