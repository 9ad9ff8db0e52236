"""Reads the superblock of each drive when it comes, and keeps it."""

from amaranth.hdl import Array, Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, SECTOR_BITS, Config
from hdl.flow.line import ReadPort
from hdl.flow.operation import DriveStatus
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.metadata.page_mover import page_move
from hdl.metadata.superblock import (
    BLOCK,
    KEPT_WORDS,
    Finding,
    kept_address,
    kept_write,
)
from hdl.metadata.superblock_check import SuperblockCheck
from hdl.metadata.words import WordReader


def outcome(config: Config) -> data.StructLayout:
    """What the drive at ``port`` holds now. It is not known unless ``known``."""
    return data.StructLayout({"port": config.port_bits, "known": 1, "finding": Finding})


class Survey(wiring.Component):
    """Finds out what the superblock's place of each drive holds, one drive after the other.

    A drive is read once it is there, and again when it comes back. A drive that goes away is
    unknown again in the next cycle, also while it is read. Nothing is ever written to a drive.

    A drive takes some 300 cycles with beats of 128 bits, and what it takes to read a page.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    present
        A bit a port. A drive is there.
    capacity
        Blocks of the drive at each port. It is constant while the drive is there.
    pause
        A level. No drive is begun.
    rests
        No drive is being read.
    written
        While it rests: what a drive holds since it has been written. Unless that is ``known`` the
        drive is read.
    page_line
        A level. A line that nobody else uses while a drive is read.
    move, moved, gone
        Those of a user of `hdl.metadata.page_mover.PageMover`.
    line_read
        A port of the line store.
    kept_write
        What is kept of superblocks (`hdl.metadata.superblock.kept_table`).
    findings
        Of each port. It says something only while ``known``.
    known
        A bit a port. What its drive holds is known, and kept if it is `Finding.VALID`.
    busy
        It works, and does not wait for a drive.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "present": In(config.ports),
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "pause": In(1),
                "rests": Out(1),
                "written": In(Pulse(outcome(config))),
                "page_line": In(config.line_bits),
                "move": Out(stream.Signature(page_move(config))),
                "moved": In(stream.Signature(DriveStatus)),
                "gone": Out(1),
                "line_read": Out(ReadPort(config)),
                "kept_write": Out(kept_write(config)),
                "findings": Out(Finding).array(config.ports),
                "known": Out(config.ports),
                "busy": Out(1),
            }
        )
        self._reader = WordReader(config=config, words=KEPT_WORDS)
        self._check = SuperblockCheck()
        self._port = Signal(config.port_bits)

    def elaborate(self, platform) -> Module:
        config, port, check, reader = self._config, self._port, self._check, self._reader
        m = Module()
        m.submodules.reader = reader
        m.submodules.check = check
        connect(m, reader.words, check.words)
        connect(m, reader.line_read, flipped(self.line_read))
        is_there = self.present.bit_select(port, 1)
        unknown = Signal(config.ports)
        m.d.comb += [
            unknown.eq(self.present & ~self.known),
            check.sectors.eq(Cat(Signal(SECTOR_BITS), Array(self.capacity)[port])),
            reader.line.payload.eq(self.page_line),
            self.move.payload.port.eq(port),
            self.move.payload.block.eq(BLOCK),
        ]
        self._keep(m)
        m.d.sync += self.known.eq(self.known & self.present)
        written = self.written.payload
        with m.If(self.written.valid):
            m.d.sync += [
                Array(self.findings)[written.port].eq(written.finding),
                self.known.bit_select(written.port, 1).eq(
                    written.known & self.present.bit_select(written.port, 1)
                ),
            ]
        with m.If(~is_there):
            m.d.sync += self.gone.eq(1)
        with m.FSM(name="survey") as fsm:
            with m.State("REST"):
                m.d.sync += [port.eq(lowest_bit(m, unknown, "first")), self.gone.eq(0)]
                begins = unknown.any() & ~self.pause
                with m.If(begins):
                    m.next = "ASK"

            with m.State("ASK"):
                m.d.comb += self.move.valid.eq(1)
                with m.If(self.move.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                m.d.comb += self.moved.ready.eq(1)
                with m.If(self.moved.valid):
                    with m.If(self.moved.payload == DriveStatus.GOOD):
                        m.next = "READ"
                    with m.Else():
                        self._note(m, Finding.UNREADABLE)
                        m.next = "REST"

            with m.State("READ"):
                m.d.comb += reader.line.valid.eq(1)
                with m.If(reader.line.ready):
                    m.next = "CHECK"

            with m.State("CHECK"):
                m.d.comb += check.finding.ready.eq(1)
                with m.If(check.finding.valid):
                    self._note(m, check.finding.payload)
                    m.next = "REST"

            waits = (
                (fsm.ongoing("REST") & ~begins)
                | (fsm.ongoing("ASK") & ~self.move.ready)
                | (fsm.ongoing("LISTEN") & ~self.moved.valid)
            )
            m.d.comb += self.rests.eq(fsm.ongoing("REST"))
        m.d.comb += self.busy.eq(~waits | self.written.valid)
        return m

    def _keep(self, m: Module) -> None:
        """Words go to their place as they are checked."""
        kept = self._check.kept
        m.d.comb += [
            self.kept_write.address.eq(kept_address(self._port, kept.payload.number)),
            self.kept_write.data.eq(kept.payload.word),
            self.kept_write.enable.eq(kept.valid),
        ]

    def _note(self, m: Module, finding: Value | Finding) -> None:
        """What has been found is known, unless the drive has gone meanwhile."""
        port = self._port
        with m.If(~self.gone & self.present.bit_select(port, 1)):
            m.d.sync += [
                Array(self.findings)[port].eq(finding),
                self.known.bit_select(port, 1).eq(1),
            ]
