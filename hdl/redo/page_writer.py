"""Writes a page of the redo record on the backup flash."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, LINE_WRITERS, Config
from hdl.flow.line import write_port
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.kit.pulse import Pulse
from hdl.memory.store import write_delay
from hdl.metadata.superblock import WORD_BITS
from hdl.metadata.volume_list import CRC
from hdl.metadata.words import NUMBER_BITS, WordWriter
from hdl.redo.record import CRC_WORD

TRIES = 3
"""Times that something is done which a restart of the flash, or of a drive, may have spoilt."""


class PageWriter(wiring.Component):
    """Puts words into a line, their CRC behind them, and stores the line on the flash.

    A page takes a cycle a word, 20 cycles, and what the flash takes. A write that ends badly is
    tried again, `TRIES` times in all.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    words
        All words of a page but the last, in their order. None is taken while a page is written.
    block
        A level. Where on the flash the page goes.
    page_line
        A level. A line that nobody else uses.
    line_write
        A port of the line store.
    operation
        Operations for the flash, of ``Owner.METADATA``.
    finished
        Their ends, which are always taken.
    done
        The page has been written, if ``payload``. Otherwise it could not be.
    sum
        With ``done``: its last word.
    busy
        It works, and does not wait for the flash, nor for words.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "words": In(stream.Signature(WORD_BITS)),
                "block": In(BLOCK_NUMBER_BITS),
                "page_line": In(config.line_bits),
                "line_write": Out(write_port(config)),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "done": Out(Pulse(1)),
                "sum": Out(WORD_BITS),
                "busy": Out(1),
            }
        )
        self._writer = WordWriter(config=config)
        self._crc = CRC.create()

    def elaborate(self, platform) -> Module:
        config, crc, writer = self._config, self._crc, self._writer
        m = Module()
        m.submodules.writer = writer
        m.submodules.crc = crc
        number, tries = Signal(NUMBER_BITS), Signal(range(TRIES))
        settled = Signal(range(write_delay(LINE_WRITERS) + 1))
        word, sent, ended = writer.words, self.operation.payload, self.finished
        connect(m, writer.line_write, flipped(self.line_write))
        m.d.comb += [
            writer.line.eq(self.page_line),
            word.payload.number.eq(number),
            crc.data.eq(self.words.payload),
            sent.port.eq(config.backup_port),
            sent.opcode.eq(Opcode.WRITE),
            sent.fua.eq(1),
            sent.alone.eq(1),
            sent.block.eq(self.block),
            sent.owner.eq(Owner.METADATA),
            sent.place.eq(1 << 1),
            sent.line.eq(self.page_line),
            ended.ready.eq(1),
        ]
        with m.FSM(name="write_page") as fsm:
            with m.State("TAKE"):
                m.d.comb += [
                    word.valid.eq(self.words.valid),
                    word.payload.word.eq(self.words.payload),
                    self.words.ready.eq(word.ready),
                    crc.valid.eq(self.words.valid & word.ready),
                ]
                m.d.sync += [settled.eq(0), tries.eq(0)]
                with m.If(self.words.valid & word.ready):
                    m.d.sync += number.eq(number + 1)
                    with m.If(number == CRC_WORD - 1):
                        m.next = "SUM"

            with m.State("SUM"):
                m.d.comb += [word.valid.eq(1), word.payload.word.eq(crc.crc)]
                m.d.sync += self.sum.eq(crc.crc)
                with m.If(word.ready):
                    m.next = "SETTLE"

            with m.State("SETTLE"):
                m.d.sync += settled.eq(settled + 1)
                with m.If(settled == write_delay(LINE_WRITERS)):
                    m.next = "SEND"

            with m.State("SEND"):
                m.d.comb += self.operation.valid.eq(1)
                with m.If(self.operation.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                good = ended.payload.status == DriveStatus.GOOD
                m.d.sync += self.done.payload.eq(good)
                with m.If(ended.valid):
                    m.d.sync += tries.eq(Mux(good, 0, tries + 1))
                    m.next = "SEND"
                    with m.If(good | (tries == TRIES - 1)):
                        m.next = "TELL"

            with m.State("TELL"):
                m.d.comb += [self.done.valid.eq(1), crc.start.eq(1)]
                m.d.sync += number.eq(0)
                m.next = "TAKE"

            waits = (
                (fsm.ongoing("TAKE") & ~self.words.valid)
                | (fsm.ongoing("SEND") & ~self.operation.ready)
                | (fsm.ongoing("LISTEN") & ~ended.valid)
            )
        m.d.comb += self.busy.eq(~waits)
        return m
