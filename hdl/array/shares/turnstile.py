"""Lets commands or rows pass while their array's share lasts; the others wait in a queue of it."""

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.array.shares.shares import Shares
from hdl.array.shares.waiting import Waiting
from hdl.config import Config, bits_for_count
from hdl.kit.queue import Queue


class Turnstile(wiring.Component):
    """Says of each number whether it may go on with what it asks for; if not, it waits, and is
    called once its array may have that much.

    Nothing is always granted. What a number has been granted counts for its array until its end is
    told. Until then it is granted again at once, and that counts nothing more. Numbers of an array
    that wait are called in the order in which they came, the first of each queue, when somebody has
    given something back. A number that is called asks anew, perhaps for something else.

    Parameters
    ----------
    config
        Sizes.
    count
        Numbers are less than this.
    total, least
        As for `hdl.array.shares.shares.Shares`.
    most
        More than that no array ever has.

    Ports
    -----
    ask, number, array, amount, forced
        Level: this number, which is not waiting, wants so much, ``least`` at most. ``forced``: it
        cannot wait, and may end before it is counted, so it goes before ends that wait. For that
        the number must have come while all was ``settled``.
    granted, refused
        A pulse that ends ``ask``. ``refused``: it waits.
    calls, woken
        ``calls``: nobody but the number that comes in ``woken`` may ask, unless ``calls`` falls
        without one. It has waited, and is what must be asked for next. Only while ``woken.ready``
        is anybody called.
    ended, ended_number
        A pulse: what the number had is given back. Nothing if it has nothing.
    settled
        No end is waiting to be counted.
    exists
        Bit an array.
    alone, waiting
        There are not several arrays; bit an array: somebody waits for its share.
    busy
        Something moves, once ``woken`` can be taken.

    Latency: 4 cycles, and 5 for each end that is told before or meanwhile; from an end to ``woken``
    about 13. Nothing moves for ``count`` cycles after reset.
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

    def _after_count(self) -> str:
        """What follows once the count and the queue have been read: the link of its head is."""
        return "READ-LINK"

    def elaborate(self, platform) -> Module:
        m = Module()
        config, count = self._config, self._count
        m.submodules.shares = shares = self._shares
        m.submodules.queues = queues = Waiting(config=config, count=count)
        m.submodules.ends = ends = Queue(len(self.number), count)
        charge = data.StructLayout(
            {"any": 1, "array": config.array_bits, "amount": self.amount.shape()}
        )
        m.submodules.charges = charges = Memory(shape=charge, depth=count, init=[])
        m.submodules.asked = asked = Memory(shape=self.amount.shape(), depth=count, init=[])
        charge_read, charge_write = charges.read_port(), charges.write_port()
        asked_read, asked_write = asked.read_port(), asked.write_port()

        number = Signal.like(self.number)
        array = Signal(config.array_bits)
        amount = Signal(self.amount.shape())
        forced = Signal()
        expected = Signal()  # the number that asks next has been called
        called = Signal.like(self.number)
        exists = Signal(config.arrays)
        m.d.sync += exists.eq(self.exists)
        m.d.comb += [
            ends.input.valid.eq(self.ended),
            ends.input.payload.eq(self.ended_number),
            shares.exists.eq(self.exists),
            shares.array.eq(array),
            shares.amount.eq(amount),
            queues.array.eq(array),
            queues.number.eq(number),
            queues.retry.eq(shares.give | (exists != self.exists)),
            charge_read.addr.eq(number),
            charge_write.addr.eq(number),
            charge_write.data.array.eq(array),
            charge_write.data.amount.eq(amount),
            asked_read.addr.eq(number),
            asked_write.addr.eq(number),
            asked_write.data.eq(amount),
            self.woken.payload.eq(number),
            self.settled.eq(ends.level == 0),
            self.alone.eq(shares.alone),
            self.waiting.eq(queues.waiting),
        ]
        waits = queues.waiting.bit_select(array, 1)
        m.d.sync += [
            Assert(~self.ask | (self.amount <= self._least), "more than an array can always have"),
            Assert(~self.ended | ends.input.ready, "an end more than there are numbers"),
        ]

        with m.FSM(name="pass") as fsm:
            # Memories keep their contents over a reset.
            with m.State("CLEAR"):
                m.d.comb += [charge_write.en.eq(1), charge_write.data.any.eq(0)]
                m.d.sync += number.eq(number + 1)
                with m.If((number == count - 1) & shares.ready):
                    m.d.sync += number.eq(0)
                    m.next = "REST"
            with m.State("REST"):
                with m.If(ends.output.valid & ~(self.ask & self.forced)):
                    m.d.comb += ends.output.ready.eq(1)
                    m.d.sync += number.eq(ends.output.payload)
                    m.next = "READ-END"
                with m.Elif(self.ask):
                    m.d.sync += [
                        number.eq(self.number),
                        array.eq(self.array),
                        amount.eq(self.amount),
                        forced.eq(self.forced),
                    ]
                    m.next = "READ-COUNT"
                with m.Elif(queues.calls & self.woken.ready):
                    m.d.comb += queues.advance.eq(1)
                    m.d.sync += array.eq(queues.calling)
                    m.next = "READ-HEAD"

            # The count and the queue of `array` are read, then the link of its head.
            with m.State("READ-COUNT"):
                m.next = self._after_count()
            with m.State("READ-LINK"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += expected.eq(0)
                has = charge_read.data.any
                with m.If(has | forced | (amount == 0) | (shares.fits & (expected | ~waits))):
                    m.d.comb += [
                        self.granted.eq(1),
                        shares.take.eq(~has),
                        charge_write.en.eq(~has),
                        charge_write.data.any.eq(1),
                        queues.pop.eq(expected),
                    ]
                with m.Else():
                    m.d.comb += [
                        self.refused.eq(1),
                        asked_write.en.eq(1),
                        queues.append.eq(~expected),
                        queues.refuse.eq(expected),
                    ]
                m.next = "REST"

            with m.State("READ-END"):
                m.next = "LOAD-END"
            with m.State("LOAD-END"):
                m.d.comb += charge_write.en.eq(1)
                m.d.sync += [
                    array.eq(charge_read.data.array),
                    amount.eq(charge_read.data.amount),
                ]
                m.next = "REST"
                with m.If(charge_read.data.any):
                    m.next = "READ-OLD"
            with m.State("READ-OLD"):
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += shares.give.eq(1)
                m.next = "REST"

            # The first of a queue, which has asked for so much.
            with m.State("READ-HEAD"):
                m.next = "LOAD-HEAD"
            with m.State("LOAD-HEAD"):
                m.d.sync += number.eq(queues.head)
                m.next = "READ-ASKED"
            with m.State("READ-ASKED"):
                m.next = "LOAD-ASKED"
            with m.State("LOAD-ASKED"):
                m.d.sync += amount.eq(asked_read.data)
                m.next = "JUDGE-HEAD"
            with m.State("JUDGE-HEAD"):
                m.next = "WAKE"
                with m.If(~shares.fits):
                    m.d.comb += queues.refuse.eq(1)
                    m.next = "REST"
            with m.State("WAKE"):
                m.d.comb += self.woken.valid.eq(1)
                m.d.sync += [expected.eq(1), called.eq(number)]
                with m.If(self.woken.ready):
                    m.next = "REST"

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
                    | (exists != self.exists)
                ),
            ]
            m.d.sync += [
                Assert(~self.ask | ~waking, "somebody asks while another is called"),
                Assert(
                    ~(expected & fsm.ongoing("READ-COUNT")) | (number == called),
                    "another asks than the one that was called",
                ),
            ]
        return m
