"""A stand-in for the controller: its ports, and just enough behaviour to test the native harness.

One job at a time, started by a write of `JOB`: move blocks between host memory and a drive (one
4096-byte TLP a block, so the link must allow that), wait until a time, or flush. A job ends with an
interrupt whose vector is port + 256 * status. Registers (BAR 0, 32 bits): `BLOCK`, `BLOCKS` - 1,
`HOST_LOW`, `HOST_HIGH`, `PORT`, `JOB`; reads return what was written.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_BYTES, TIME_BITS, Config
from hdl.drive.interface import DrivePort, Opcode
from hdl.pcie.interface import PcieStatus

BLOCK, BLOCKS, HOST_LOW, HOST_HIGH, PORT, JOB = (4 * index for index in range(6))
JOB_READ, JOB_WRITE, JOB_FLUSH, JOB_SLEEP = range(4)

WIDTH = 256
BEATS = BLOCK_BYTES * 8 // WIDTH
DESCRIPTOR = 128
COMPLETION_DESCRIPTOR = 96
REQUEST_WRITE = 1
USER_BITS = {"rq": 62, "rc": 75, "cq": 88, "cc": 33}
MSI_ADDRESS = 0xFEE0_0000


def axi_members() -> dict:
    """RQ and CC leave, RC and CQ come; sequence numbers, which are not looked at."""
    members = {f"rq_seq_num{place}": In(6) for place in range(2)}
    members |= {f"rq_seq_num_vld{place}": In(1) for place in range(2)}
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
    """See the module. ``torn`` plants a bug: the middle beat of every block read is repeated."""

    def __init__(self, *, config: Config, torn: bool = False):
        self._config = config
        self._torn = torn
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
        registers = [Signal(32, name=f"register_{index}") for index in range(6)]
        block, blocks, host_low, host_high, port, job = registers
        host = Cat(host_low, host_high)
        left = Signal(7)
        beat = Signal(range(BEATS + 1))
        held = Signal(WIDTH)
        status = Signal(3)
        tag = Signal(8)
        word = Signal(3)

        m.d.comb += [
            self.deadline.eq((1 << TIME_BITS) - 1),
            self.quiet.eq(1),
        ]

        def on_port(fill):
            with m.Switch(port):
                for index, drive in enumerate(self.drives):
                    with m.Case(index):
                        fill(drive)

        def send(data, *, keep, last, first_enable=0xF, last_enable=0xF):
            m.d.comb += [
                self.rq_tvalid.eq(1),
                self.rq_tdata.eq(data),
                self.rq_tkeep.eq(keep),
                self.rq_tlast.eq(last),
                self.rq_tuser.eq(first_enable | last_enable << 4),
            ]

        def descriptor(address, dwords, kind):
            return Cat(address, Const(dwords, 11), Const(kind, 4), Const(0, 17), tag, Const(0, 24))

        everything = (1 << WIDTH // 32) - 1
        with m.FSM(name="job"):
            with m.State("WAIT"):
                m.d.comb += self.cq_tready.eq(1)
                with m.If(self.cq_tvalid):
                    m.d.sync += [word.eq(self.cq_tdata[2:5]), tag.eq(self.cq_tdata[96:104])]
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
                m.d.comb += [
                    self.cc_tvalid.eq(1),
                    self.cc_tlast.eq(1),
                    self.cc_tkeep.eq(0xF),
                    self.cc_tdata.eq(
                        Cat(Const(4 << 16, 32), Const(1, 32), tag, Const(0, 24), value)
                    ),
                ]
                with m.If(self.cc_tready):
                    m.next = "WAIT"
            with m.State("BEGIN"):
                m.d.comb += self.quiet.eq(0)
                m.d.sync += [left.eq(blocks + 1), beat.eq(0), tag.eq(0)]
                m.next = "COMMAND"
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
                                Mux(job == JOB_WRITE, Opcode.WRITE, Opcode.FLUSH))
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
                        m.next = "DELIVER"

                on_port(complete)
            with m.State("DELIVER"):
                ending = beat == BEATS

                def deliver(drive):
                    incoming = drive.read_data.payload.data
                    stale = (beat == BEATS // 2) if self._torn else Const(0)
                    with m.If(drive.read_data.valid | ending):
                        send(
                            Mux(beat == 0,
                                Cat(descriptor(host, BLOCK_BYTES // 4, REQUEST_WRITE),
                                    incoming[:DESCRIPTOR]),
                                Cat(held[DESCRIPTOR:], incoming[:DESCRIPTOR])),
                            keep=Mux(ending, 0xF, everything),
                            last=ending,
                        )
                        with m.If(self.rq_tready):
                            m.d.comb += drive.read_data.ready.eq(~ending)
                            with m.If(~stale):
                                m.d.sync += held.eq(incoming)
                            m.d.sync += beat.eq(Mux(ending, 0, beat + 1))
                            with m.If(ending):
                                m.d.sync += host_low.eq(host_low + BLOCK_BYTES)
                                m.next = "COMPLETE"

                on_port(deliver)
            with m.State("FETCH"):
                send(descriptor(host, BLOCK_BYTES // 4, 0), keep=0xF, last=1)
                with m.If(self.rq_tready):
                    m.d.sync += host_low.eq(host_low + BLOCK_BYTES)
                    m.next = "RECEIVE"
            with m.State("RECEIVE"):

                def receive(drive):
                    m.d.comb += [
                        drive.write_data.valid.eq(self.rc_tvalid & (beat != 0)),
                        drive.write_data.payload.data.eq(
                            Cat(held[COMPLETION_DESCRIPTOR:],
                                self.rc_tdata[:COMPLETION_DESCRIPTOR])
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
                send(
                    Cat(descriptor(Const(MSI_ADDRESS, 64), 1, REQUEST_WRITE),
                        port[:8], status),
                    keep=0x1F,
                    last=1,
                    last_enable=0,
                )
                with m.If(self.rq_tready):
                    m.next = "WAIT"
        return m
