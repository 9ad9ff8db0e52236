"""A stand-in for the controller: its ports, and just enough behaviour to test the native harness.

One job at a time, started by a write of `JOB`: move blocks between host memory and a drive (one
4096-byte TLP a block, so the link must allow that), wait until a time, flush, or read `BLOCKS` + 1
words of host memory and keep the descriptor of the last completion in the first three registers and
the number of completions in `HOST_HIGH`. A job ends with an interrupt whose vector is port + 256 *
status. Registers (BAR 0, 32 bits): `BLOCK`, `BLOCKS` - 1, `HOST_LOW`, `HOST_HIGH`, `PORT`, `JOB`;
reads return what was written. A seventh register, `BUG`, plants one of `Bug`.
"""

from enum import Enum

from amaranth.hdl import Assert, Cat, Const, Format, Module, Mux, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, TIME_BITS, Config
from hdl.flow.drive_port import DrivePort
from hdl.flow.operation import Opcode
from hdl.flow.pcie_status import PcieStatus

BLOCK, BLOCKS, HOST_LOW, HOST_HIGH, PORT, JOB, BUG = (4 * index for index in range(7))
JOB_READ, JOB_WRITE, JOB_FLUSH, JOB_SLEEP, JOB_FETCH, JOB_SPOIL = range(6)

WIDTH = 256
BEATS = BLOCK_BYTES * 8 // WIDTH
DESCRIPTOR = 128
COMPLETION_DESCRIPTOR = 96
REQUEST_WRITE = 1
USER_BITS = {"rq": 62, "rc": 75, "cq": 88, "cc": 33}
MSI_ADDRESS = 0xFEE0_0000
LONG_TAG = 40
DISCONTINUE = 1 << 11


class Bug(Enum):
    """A rule of the hard block, or of a drive port, that the stand-in can break."""

    NONE = 0
    TORN = 1
    """The middle beat of every block read is repeated."""
    GAP = 2
    WITHDRAWN = 3
    CHANGED = 4
    KEEP_IN_THE_MIDDLE = 5
    KEEP_AT_THE_END = 6
    TOO_SHORT = 7
    DISCONTINUED = 8
    LONG_TAG = 9
    NO_SNOOP = 10
    RELAXED = 11
    LONG_MESSAGE = 12
    TAG = 13
    LENGTH = 14
    BYTE_COUNT = 15
    LOWER_ADDRESS = 16
    STATUS = 17
    REQUESTER = 18
    TWICE = 19
    REPLY_WITHDRAWN = 20
    DATA_WITHDRAWN = 21
    DATA_CHANGED = 22
    ASSERTED = 23
    """An assertion fails that says which bug this is."""


def axi_members() -> dict:
    """RQ and CC leave, RC and CQ come; sequence numbers and credits, which are not looked at."""
    members = {f"rq_seq_num{place}": In(6) for place in range(2)}
    members |= {f"rq_seq_num_vld{place}": In(1) for place in range(2)}
    members["tfc_nph_av"] = In(4)
    for bus, user in USER_BITS.items():
        forth, back = (Out, In) if bus in ("rq", "cc") else (In, Out)
        members |= {
            f"{bus}_tdata": forth(WIDTH),
            f"{bus}_tkeep": forth(WIDTH // 32),
            f"{bus}_tlast": forth(1),
            f"{bus}_tuser": forth(user),
            f"{bus}_tvalid": forth(1),
            f"{bus}_tready": back(1),
        }
    return members


class StandIn(wiring.Component):
    """See the module."""

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                **axi_members(),
                "status": Out(PcieStatus()),
                "reset_done": Out(1),
                "now": In(TIME_BITS),
                "quiet": Out(1),
                "deadline": Out(TIME_BITS),
                "drives": Out(DrivePort(config)).array(config.ports),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        turn = Signal()  # for what changes from cycle to cycle
        m.d.sync += turn.eq(~turn)
        m.submodules.block = block_buffer = memory.Memory(shape=WIDTH, depth=BEATS, init=[])
        fill = block_buffer.write_port()
        drain = block_buffer.read_port(domain="comb")
        registers = [Signal(32, name=f"register_{index}") for index in range(7)]
        block, blocks, host_low, host_high, port, job, planted = registers

        def bug(kind: Bug) -> Value:
            return planted == kind.value

        m.d.sync += Assert(~bug(Bug.ASSERTED), Format("bug {} is planted\n", planted))
        host = Cat(host_low, host_high)
        left = Signal(7)
        beat = Signal(range(BEATS + 1))
        held = Signal(WIDTH)
        status = Signal(3)
        tag = Signal(8)
        word = Signal(3)
        length = Signal(11)  # of a register read
        requester = Signal(16)
        lower = Signal(7)
        again = Signal()
        bytes_read = Signal(13)

        m.d.comb += [
            self.deadline.eq((1 << TIME_BITS) - 1),
            self.quiet.eq(1),
        ]

        def on_port(fill):
            with m.Switch(port):
                for index, drive in enumerate(self.drives):
                    with m.Case(index):
                        fill(drive)

        waits = ~self.rq_tready & turn

        def send(data, *, keep, last, first_enable=0xF, last_enable=0xF):
            m.d.comb += [
                self.rq_tvalid.eq(~(waits & bug(Bug.WITHDRAWN))),
                self.rq_tdata.eq(data ^ ((waits & bug(Bug.CHANGED)) << 200)),
                self.rq_tkeep.eq(keep),
                self.rq_tlast.eq(last),
                self.rq_tuser.eq(
                    first_enable
                    | last_enable << 4
                    | Mux(bug(Bug.DISCONTINUED), DISCONTINUE, 0)
                ),
            ]

        attributes = Cat(bug(Bug.NO_SNOOP), bug(Bug.RELAXED), Const(0, 1))

        def length_of(words: Value) -> Value:
            return (words | Const(0, 11))[:11]

        def descriptor(address, dwords, kind):
            words = Const(dwords, 11) if isinstance(dwords, int) else dwords
            return Cat(address, words, Const(kind, 4), Const(0, 17), tag,
                       Const(0, 20), attributes, Const(0, 1))

        everything = (1 << WIDTH // 32) - 1
        with m.FSM(name="job"):
            with m.State("WAIT"):
                m.d.comb += self.cq_tready.eq(1)
                with m.If(self.cq_tvalid):
                    first_enable = self.cq_tuser[:4]
                    skip = Mux(first_enable[0], 0, Mux(first_enable[1], 1,
                               Mux(first_enable[2], 2, 3)))
                    m.d.sync += [
                        word.eq(self.cq_tdata[2:5]),
                        tag.eq(self.cq_tdata[96:104]),
                        length.eq(self.cq_tdata[64 : 64 + 11]),
                        requester.eq(self.cq_tdata[80:96]),
                        lower.eq(Cat(skip[:2], self.cq_tdata[2:7])),
                        bytes_read.eq(
                            sum(self.cq_tuser[index] for index in range(8))
                        ),
                        again.eq(0),
                    ]
                    with m.If(self.cq_tdata[64 + 11 : 64 + 15] == REQUEST_WRITE):
                        with m.Switch(self.cq_tdata[2:5]):
                            for index, register in enumerate(registers):
                                with m.Case(index):
                                    m.d.sync += register.eq(self.cq_tdata[128:160])
                        with m.If(self.cq_tdata[2:5] == JOB // 4):
                            m.next = "BEGIN"
                    with m.Else():
                        m.next = "ANSWER"
            with m.State("ANSWER"):
                value = Signal(32)
                with m.Switch(word):
                    for index, register in enumerate(registers):
                        with m.Case(index):
                            m.d.comb += value.eq(register)
                def field(value, broken: Bug):
                    return (value + bug(broken))[: len(value)]

                two = length == 2
                m.d.comb += [
                    self.cc_tvalid.eq(
                        ~(bug(Bug.REPLY_WITHDRAWN) & ~self.cc_tready & turn)
                    ),
                    self.cc_tlast.eq(1),
                    self.cc_tkeep.eq(Mux(two, 0x1F, 0xF)),
                    self.cc_tdata.eq(
                        Cat(
                            field(lower, Bug.LOWER_ADDRESS),
                            Const(0, 9),
                            field(bytes_read, Bug.BYTE_COUNT),
                            Const(0, 3),
                            field(length, Bug.LENGTH),
                            bug(Bug.STATUS),
                            Const(0, 2),
                            Const(0, 2),
                            field(requester, Bug.REQUESTER),
                            field(tag, Bug.TAG),
                            Const(0, 24),
                            value,
                            value,
                        )
                    ),
                ]
                with m.If(self.cc_tready & self.cc_tvalid):
                    m.d.sync += again.eq(1)
                    with m.If(again | ~bug(Bug.TWICE)):
                        m.next = "WAIT"
            with m.State("BEGIN"):
                m.d.comb += self.quiet.eq(0)
                m.d.sync += [
                    left.eq(blocks + 1),
                    beat.eq(0),
                    tag.eq(Mux(bug(Bug.LONG_TAG), LONG_TAG, 0)),
                ]
                m.next = "COMMAND"
                with m.If(job == JOB_FETCH):
                    m.d.sync += host_high.eq(0)
                    m.next = "ASK"
                with m.If(job == JOB_SLEEP):
                    m.next = "SLEEP"
            with m.State("SLEEP"):
                m.d.comb += self.deadline.eq(block)
                with m.If(self.now >= block):
                    m.d.comb += self.quiet.eq(0)
                    m.d.sync += status.eq(0)
                    m.next = "NOTIFY"
            with m.State("COMMAND"):

                def command(drive):
                    m.d.comb += [
                        drive.command.valid.eq(1),
                        drive.command.payload.opcode.eq(
                            Mux(job == JOB_READ, Opcode.READ,
                                Mux(job == JOB_WRITE, Opcode.WRITE,
                                    Mux(job == JOB_SPOIL, Opcode.WRITE_UNCORRECTABLE,
                                        Opcode.FLUSH)))
                        ),
                        drive.command.payload.block.eq(block),
                        drive.command.payload.blocks.eq(blocks),
                    ]
                    with m.If(drive.command.ready):
                        m.next = "COMPLETE"

                on_port(command)
            with m.State("COMPLETE"):

                def complete(drive):
                    with m.If(drive.completion.valid):
                        m.d.comb += drive.completion.ready.eq(1)
                        m.d.sync += status.eq(drive.completion.payload.status)
                        m.next = "NOTIFY"
                    with m.Elif(drive.grant.valid):
                        m.d.comb += drive.grant.ready.eq(1)
                        m.next = "FETCH"
                    with m.Elif(drive.read_data.valid):
                        m.next = "COLLECT"

                on_port(complete)
            with m.State("COLLECT"):
                # A packet may have no gap, so all of it is here before it begins.
                def collect(drive):
                    m.d.comb += [drive.read_data.ready.eq(1), fill.en.eq(drive.read_data.valid)]
                    stale = (beat == BEATS // 2) & bug(Bug.TORN)
                    with m.If(~stale):
                        m.d.sync += held.eq(drive.read_data.payload.data)
                    m.d.comb += [
                        fill.addr.eq(beat),
                        fill.data.eq(Mux(stale, held, drive.read_data.payload.data)),
                    ]
                    with m.If(drive.read_data.valid):
                        m.d.sync += beat.eq(beat + 1)
                        with m.If(beat == BEATS - 1):
                            m.d.sync += beat.eq(0)
                            m.next = "DELIVER"

                on_port(collect)
            with m.State("DELIVER"):
                ending = beat == BEATS - bug(Bug.TOO_SHORT)
                middle = beat == BEATS // 2
                m.d.comb += drain.addr.eq(beat)
                gap = middle & ~again & bug(Bug.GAP)
                m.d.sync += again.eq(middle)
                with m.If(~gap):
                    send(
                        Mux(beat == 0,
                            Cat(descriptor(host, BLOCK_BYTES // 4, REQUEST_WRITE),
                                drain.data[:DESCRIPTOR]),
                            Cat(held[DESCRIPTOR:], drain.data[:DESCRIPTOR])),
                        keep=Mux(
                            ending,
                            Mux(bug(Bug.KEEP_AT_THE_END), 0x1F, 0xF),
                            Mux(middle & bug(Bug.KEEP_IN_THE_MIDDLE), 0x7F, everything),
                        ),
                        last=ending,
                    )
                    with m.If(self.rq_tready & self.rq_tvalid):
                        m.d.sync += [held.eq(drain.data), beat.eq(Mux(ending, 0, beat + 1))]
                        with m.If(ending):
                            m.d.sync += host_low.eq(host_low + BLOCK_BYTES)
                            m.next = "COMPLETE"
            with m.State("ASK"):
                send(
                    descriptor(Cat(host_low, Const(1, 32)), length_of(blocks + 1), 0),
                    keep=0xF, last=1, last_enable=Mux(blocks == 0, 0, 0xF),
                )
                with m.If(self.rq_tready & self.rq_tvalid):
                    m.d.sync += again.eq(0)
                    m.next = "ANSWERED"
            with m.State("ANSWERED"):
                completed = Signal()
                m.d.comb += self.rc_tready.eq(1)
                with m.If(self.rc_tvalid):
                    m.d.sync += again.eq(~self.rc_tlast)
                    with m.If(~again):
                        m.d.sync += [
                            *(register.eq(self.rc_tdata.word_select(index, 32))
                              for index, register in enumerate(registers[:3])),
                            host_high.eq(host_high + 1),
                            completed.eq(self.rc_tdata[30]),
                        ]
                    with m.If(self.rc_tlast & Mux(again, completed, self.rc_tdata[30])):
                        m.d.sync += status.eq(0)
                        m.next = "NOTIFY"
            with m.State("FETCH"):
                send(descriptor(host, BLOCK_BYTES // 4, 0), keep=0xF, last=1)
                with m.If(self.rq_tready & self.rq_tvalid):
                    m.d.sync += host_low.eq(host_low + BLOCK_BYTES)
                    m.next = "RECEIVE"
            with m.State("RECEIVE"):

                def receive(drive):
                    waits = ~drive.write_data.ready & turn
                    incoming = Cat(held[COMPLETION_DESCRIPTOR:],
                                   self.rc_tdata[:COMPLETION_DESCRIPTOR])
                    m.d.comb += [
                        drive.write_data.valid.eq(
                            self.rc_tvalid
                            & (beat != 0)
                            & ~(waits & bug(Bug.DATA_WITHDRAWN))
                        ),
                        drive.write_data.payload.data.eq(
                            incoming ^ (waits & bug(Bug.DATA_CHANGED))
                        ),
                        drive.write_data.payload.last.eq(beat == BEATS),
                        self.rc_tready.eq((beat == 0) | drive.write_data.ready),
                    ]
                    with m.If(self.rc_tvalid & self.rc_tready):
                        m.d.sync += [held.eq(self.rc_tdata), beat.eq(beat + 1)]
                        with m.If(beat == BEATS):
                            m.d.sync += beat.eq(0)
                            m.next = "COMPLETE"

                on_port(receive)
            with m.State("NOTIFY"):
                long = bug(Bug.LONG_MESSAGE)
                send(
                    Cat(descriptor(Const(MSI_ADDRESS, 64), length_of(1 + long),
                                   REQUEST_WRITE),
                        port[:8], status),
                    keep=Mux(long, 0x3F, 0x1F),
                    last=1,
                    last_enable=Mux(long, 0xF, 0),
                )
                with m.If(self.rq_tready & self.rq_tvalid):
                    m.next = "WAIT"
        return m
