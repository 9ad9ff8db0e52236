"""A component with the controller's ports that keeps every one of them busy, with as little logic
as possible: what is left of a run's time is the harness's own.

Even ports read, odd ports write, 64 blocks a command, one command at a time. RQ repeats two writes
of 256 bytes and a read of 512 bytes, at most `READS` reads outstanding.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from cocotb_tests.native.native_stand_in import REQUEST_WRITE, WIDTH, axi_members
from hdl.config import BLOCK_BYTES, TIME_BITS, Config
from hdl.flow.drive_port import MERGE_BLOCKS, DrivePort
from hdl.flow.operation import Opcode
from hdl.flow.pcie_status import PcieStatus

READS = 48
WRITE_DWORDS = 64
READ_DWORDS = 128
WRITE_BEATS = 9
HOST = 1 << 32
REQUEST_COMPLETED = 30
START_OF_FRAME = 32


class Saturate(wiring.Component):
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
        beats = BLOCK_BYTES * 8 // WIDTH
        for index, drive in enumerate(self.drives):
            waiting = Signal(name=f"waiting_{index}")
            block = Signal(16, name=f"block_{index}")
            granted = Signal(8, name=f"granted_{index}")
            beat = Signal(range(beats), name=f"beat_{index}")
            last = beat == beats - 1
            sent = drive.write_data.valid & drive.write_data.ready
            m.d.comb += [
                drive.command.valid.eq(~waiting),
                drive.command.payload.opcode.eq(Opcode.WRITE if index & 1 else Opcode.READ),
                drive.command.payload.block.eq(block),
                drive.command.payload.blocks.eq(MERGE_BLOCKS - 1),
                drive.grant.ready.eq(1),
                drive.read_data.ready.eq(1),
                drive.completion.ready.eq(1),
                drive.write_data.valid.eq(granted != 0),
                drive.write_data.payload.data.eq(Cat(block, beat)),
                drive.write_data.payload.last.eq(last),
            ]
            m.d.sync += granted.eq(granted + drive.grant.valid - (sent & last))
            with m.If(~waiting & drive.command.ready):
                m.d.sync += [waiting.eq(1), block.eq(block + MERGE_BLOCKS)]
            with m.Elif(drive.completion.valid):
                m.d.sync += waiting.eq(0)
            with m.If(sent):
                m.d.sync += beat.eq(beat + 1)

        m.d.comb += [self.deadline.eq((1 << TIME_BITS) - 1), self.rc_tready.eq(1)]
        outstanding = Signal(8)
        tag = Signal(8)
        count = Signal(range(2 * WRITE_BEATS + 1))
        page = Signal(12)
        reading = count == 2 * WRITE_BEATS
        ended = (self.rc_tvalid & self.rc_tuser[START_OF_FRAME]
                 & self.rc_tdata[REQUEST_COMPLETED])
        asked = Signal()
        head = (count == 0) | (count == WRITE_BEATS)

        def descriptor(dwords, kind):
            return Cat(Const(0, 12), page, Const(0, 8), Const(HOST >> 32, 32), Const(dwords, 11),
                       Const(kind, 4), Const(0, 17), tag)

        m.d.comb += [
            asked.eq(reading & self.rq_tvalid & self.rq_tready),
            self.rq_tvalid.eq(~reading | (outstanding != READS)),
            self.rq_tuser.eq(0xFF),
            self.rq_tkeep.eq(Mux(self.rq_tlast, 0xF, (1 << WIDTH // 32) - 1)),
            self.rq_tlast.eq(reading | (count == WRITE_BEATS - 1) | (count == 2 * WRITE_BEATS - 1)),
        ]
        with m.If(reading):
            m.d.comb += self.rq_tdata.eq(descriptor(READ_DWORDS, 0))
        with m.Elif(head):
            m.d.comb += self.rq_tdata.eq(descriptor(WRITE_DWORDS, REQUEST_WRITE))
        m.d.sync += outstanding.eq(outstanding + asked - ended)
        with m.If(self.rq_tvalid & self.rq_tready):
            m.d.sync += count.eq(count + 1)
            with m.If(reading):
                m.d.sync += [count.eq(0), tag.eq(tag + 1), page.eq(page + 1)]
        return m
