"""Rows wait here for their array's share of the lines that rows work with."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.array.shares import Shares
from hdl.array.waiting import Waiting
from hdl.config import Config, bits_for_count


class RowShares(wiring.Component):
    """Says whether a planned row may take its lines; if not, the row waits in a queue of its array
    and comes again, to be planned anew, when rows have given lines back.

    Parameters
    ----------
    config
        Sizes; ``shared_lines`` are shared, and as many as ports are what each array can have.

    Ports
    -----
    ask, slot, array, lines, retried
        Level: this row needs so many lines; ``retried`` is kept for it while it waits.
    granted, refused
        A pulse that ends ``ask``. ``refused``: it waits.
    calls, woken
        ``calls``: no other row must be taken up before the one in ``woken``, which has waited and
        is to be asked for next.
    ended, ended_slot
        A pulse: the row has given back all its lines.
    exists
        Bit an array.
    busy
        Something moves, once ``woken`` can be taken.

    Latency: 3 cycles, and 5 for each row that has ended meanwhile.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        woken = data.StructLayout({"slot": slot, "retried": 1})
        super().__init__(
            {
                "ask": In(1),
                "slot": In(slot),
                "array": In(config.array_bits),
                "lines": In(bits_for_count(config.ports + 1)),
                "retried": In(1),
                "granted": Out(1),
                "refused": Out(1),
                "calls": Out(1),
                "woken": Out(stream.Signature(woken)),
                "ended": In(1),
                "ended_slot": In(slot),
                "exists": In(config.arrays),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        m.submodules.shares = shares = Shares(
            config=config,
            total=config.shared_lines,
            least=config.ports,
            most=config.rows * config.ports,
        )
        m.submodules.queues = queues = Waiting(config=config, count=config.rows)
        m.submodules.ends = ends = SyncFIFOBuffered(width=config.row_slot_bits, depth=config.rows)
        charge = data.StructLayout({"array": config.array_bits, "lines": self.lines.shape()})
        m.submodules.charges = charges = Memory(shape=charge, depth=config.rows, init=[])
        m.submodules.retries = retries = Memory(shape=1, depth=config.rows, init=[])
        charge_read, charge_write = charges.read_port(), charges.write_port()
        retry_read, retry_write = retries.read_port(), retries.write_port()

        slot = Signal(config.row_slot_bits)
        array = Signal(config.array_bits)
        lines = Signal(self.lines.shape())
        expected = Signal()  # the row that is asked for next has waited
        exists = Signal(config.arrays)
        m.d.sync += exists.eq(self.exists)
        m.d.comb += [
            ends.w_en.eq(self.ended),
            ends.w_data.eq(self.ended_slot),
            shares.exists.eq(self.exists),
            shares.array.eq(array),
            shares.amount.eq(lines),
            queues.array.eq(array),
            queues.number.eq(self.slot),
            queues.retry.eq(shares.give | (exists != self.exists)),
            charge_read.addr.eq(slot),
            charge_write.addr.eq(self.slot),
            charge_write.data.array.eq(array),
            charge_write.data.lines.eq(lines),
            charge_write.en.eq(self.granted),
            retry_read.addr.eq(queues.head),
            retry_write.addr.eq(self.slot),
            retry_write.data.eq(self.retried),
            retry_write.en.eq(queues.append),
            self.woken.payload.slot.eq(slot),
            self.woken.payload.retried.eq(retry_read.data),
        ]
        waits = queues.waiting.bit_select(array, 1)

        with m.FSM(name="share_lines") as fsm:
            with m.State("CLEAR"):
                with m.If(shares.ready):
                    m.next = "REST"
            with m.State("REST"):
                with m.If(ends.r_rdy):
                    m.d.comb += ends.r_en.eq(1)
                    m.d.sync += slot.eq(ends.r_data)
                    m.next = "READ-END"
                with m.Elif(self.ask):
                    m.d.sync += [array.eq(self.array), lines.eq(self.lines)]
                    m.next = "READ-COUNT"
                with m.Elif(queues.calls & self.woken.ready):
                    m.d.comb += queues.advance.eq(1)
                    m.d.sync += array.eq(queues.calling)
                    m.next = "READ-HEAD"

            # The queue of `array` is read, then the link of its head.
            with m.State("READ-COUNT"):
                m.next = "READ-LINK"
            with m.State("READ-LINK"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += expected.eq(0)
                with m.If((lines == 0) | (shares.fits & (expected | ~waits))):
                    m.d.comb += [
                        self.granted.eq(1),
                        shares.take.eq(1),
                        queues.pop.eq(expected),
                    ]
                with m.Else():
                    m.d.comb += [
                        self.refused.eq(1),
                        queues.append.eq(~expected),
                        queues.refuse.eq(expected),
                    ]
                m.next = "REST"

            with m.State("READ-END"):
                m.next = "LOAD-END"
            with m.State("LOAD-END"):
                m.d.sync += [array.eq(charge_read.data.array), lines.eq(charge_read.data.lines)]
                m.next = "READ-OLD"
            with m.State("READ-OLD"):
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += shares.give.eq(1)
                m.next = "REST"

            with m.State("READ-HEAD"):
                m.next = "LOAD-HEAD"
            with m.State("LOAD-HEAD"):
                m.d.sync += slot.eq(queues.head)
                m.next = "WAKE"
            with m.State("WAKE"):
                m.d.comb += self.woken.valid.eq(1)
                m.d.sync += expected.eq(1)
                with m.If(self.woken.ready):
                    m.next = "REST"

            waking = (
                fsm.ongoing("READ-HEAD") | fsm.ongoing("LOAD-HEAD") | fsm.ongoing("WAKE")
            )
            m.d.comb += [
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
        return m
