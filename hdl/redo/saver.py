"""Saves the redo record on the backup flash while the power goes."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BACKUP_OPERATIONS, DWORDS_PER_BLOCK, LIST_RECORDS, MAX_DRIVES, Config
from hdl.flow.line import ReadPort, write_port
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.recalled import recalled
from hdl.kit.table import Table, TableRead
from hdl.metadata.superblock import WORD_BITS, kept_address, kept_read
from hdl.metadata.volume_list import CRC
from hdl.metadata.words import NUMBER_BITS, WordReader
from hdl.redo.page_writer import TRIES, PageWriter
from hdl.redo.record import (
    CRC_WORD,
    FIRST_LIST,
    HEAD_BLOCK,
    MAGIC,
    MEMBER_WORDS,
    NAMED,
    RECORD_WORDS,
    VERSION,
    HeadWord,
    RecordWord,
)


class Saver(wiring.Component):
    """Writes lists of the blocks that are on their way to drives, then the head, then the blocks.

    `hdl.redo.record` says what they look like. The blocks go from their lines to the flash. At last
    the flash is flushed. If one of them does not store something, all blocks are written again,
    `TRIES` times in all.

    A block takes some 1,700 cycles for its CRC. Each list and the head take 4,000 cycles and a
    write. Then the blocks take 8 cycles each, or what the flash takes.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begins
        A level, which stays: the record is to be saved.
    recalled
        That of `hdl.stripe.rows.sequencer.Sequencer`.
    restarted
        A pulse. The flash may have lost what it had not stored.
    sound
        One bit per port. Its superblock is known, and is what was written last.
    home_read
        The array that the superblock at a port belongs to.
    trusted
        One bit per array. All that has been written to it is stored, or on its way.
    kept_read
        What is kept of superblocks.
    page_line
        A level. A line that nobody else uses.
    line_read, line_write
        Ports of the line store.
    operation, finished
        Operations for the flash, and their ends, which are always taken.
    saved, failed
        Levels. The record is on the flash. It could not be saved.
    busy
        It works, and does not wait for the flash, nor for ``recalled``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "begins": In(1),
                "recalled": In(stream.Signature(recalled(config))),
                "restarted": In(1),
                "sound": In(MAX_DRIVES),
                "home_read": Out(TableRead(config.port_bits, config.array_bits)),
                "trusted": In(config.arrays),
                "kept_read": Out(kept_read(config)),
                "page_line": In(config.line_bits),
                "line_read": Out(ReadPort(config)),
                "line_write": Out(write_port(config)),
                "operation": Out(stream.Signature(operation(config))),
                "finished": In(stream.Signature(finished(config))),
                "saved": Out(1),
                "failed": Out(1),
                "busy": Out(1),
            }
        )
        self._reader = WordReader(config=config, words=DWORDS_PER_BLOCK)
        self._page = PageWriter(config=config)
        self._crc = CRC.create()
        self._sums = Table(WORD_BITS, max(2, config.backup_lists))
        self._number = Signal(NUMBER_BITS)  # of a word of a block, or of a page
        self._entry = Signal(range(LIST_RECORDS + 1))
        self._part = Signal(range(RECORD_WORDS))
        self._records = Signal(range(config.backup_blocks + 1))
        self._lists = Signal(range(config.backup_lists + 1))
        self._word = Signal(WORD_BITS)  # of the head
        self._writes_page = Signal()
        # Of the blocks: the next one, those under way, whether one was not stored.
        self._next = Signal(range(config.backup_blocks + 1))
        self._out = Signal(range(BACKUP_OPERATIONS + 1))
        self._bad = Signal()
        self._tries = Signal(range(TRIES))

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.reader = self._reader
        m.submodules.page = self._page
        m.submodules.crc = self._crc
        m.submodules.sums = self._sums
        self._connect(m)
        with m.FSM(name="save") as fsm:
            with m.State("REST"):
                with m.If(self.begins):
                    m.next = "NEXT"
            self._list(m)
            self._write_head(m)
            self._write_blocks(m)
            m.d.comb += [
                self.saved.eq(fsm.ongoing("SAVED")),
                self.failed.eq(fsm.ongoing("FAILED")),
                self._writes_page.eq(
                    ~Cat(
                        fsm.ongoing(state) for state in ("BLOCKS", "DRAIN", "FLUSH", "FLUSHED")
                    ).any()
                ),
            ]
            ends = self.finished.valid
            waits = (
                (fsm.ongoing("REST") & ~self.begins)
                | ((fsm.ongoing("NEXT") | fsm.ongoing("FULL")) & ~self.recalled.valid)
                | fsm.ongoing("SUM")
                | fsm.ongoing("LISTED")
                | fsm.ongoing("HEADED")
                | (fsm.ongoing("BLOCKS") & ~(self.recalled.valid & self.recalled.ready))
                | (fsm.ongoing("DRAIN") & (self._out != 0))
                | (fsm.ongoing("FLUSH") & ~self.operation.ready)
                | fsm.ongoing("FLUSHED")
                | fsm.ongoing("SAVED")
                | fsm.ongoing("FAILED")
            )
        m.d.comb += self.busy.eq(~waits | ends | self._page.busy | self._reader.busy)
        return m

    def _connect(self, m: Module) -> None:
        """Lines, and operations of pages and of blocks."""
        config, page, sent, ended = self._config, self._page, self.operation, self.finished
        connect(m, self._reader.line_read, flipped(self.line_read))
        connect(m, page.line_write, flipped(self.line_write))
        m.d.comb += [
            self._reader.line.payload.eq(self.recalled.payload.line),
            self._crc.data.eq(self._reader.words.payload),
            page.page_line.eq(self.page_line),
            page.finished.payload.eq(ended.payload),
            page.finished.valid.eq(ended.valid & self._writes_page),
            ended.ready.eq(1),
            self._sums.write.address.eq(self._lists),
            self._sums.write.data.eq(page.sum),
        ]
        with m.If(self._writes_page):
            m.d.comb += [
                sent.payload.eq(page.operation.payload),
                sent.valid.eq(page.operation.valid),
                page.operation.ready.eq(sent.ready),
            ]
        with m.Else():
            m.d.comb += [
                sent.payload.port.eq(config.backup_port),
                sent.payload.opcode.eq(Opcode.WRITE),
                sent.payload.more.eq(1),
                sent.payload.block.eq(config.backup_overhead + self._next),
                sent.payload.owner.eq(Owner.METADATA),
                sent.payload.place.eq(1 << 1),
                sent.payload.line.eq(self.recalled.payload.line),
            ]
        sends = sent.valid & sent.ready & ~self._writes_page
        m.d.sync += self._out.eq(self._out + sends - (ended.valid & ~self._writes_page))
        refused = ended.valid & ~self._writes_page & (ended.payload.status != DriveStatus.GOOD)
        with m.If(refused | self.restarted):
            m.d.sync += self._bad.eq(1)

    def _list(self, m: Module) -> None:
        """The states NEXT to LISTED: what is on its way is listed, each block with its CRC."""
        page, number, entry = self._page, self._number, self._entry
        told, part, high = self.recalled.payload, self._part, slice(WORD_BITS, None)
        overhead = self._config.backup_overhead
        with m.State("NEXT"):
            m.d.sync += [number.eq(0), part.eq(0)]
            m.d.comb += self._crc.start.eq(1)
            with m.If(self.recalled.valid):
                m.next = "READ"
                with m.If(told.last):
                    m.next = "CLOSE"
                    with m.If(entry == 0):
                        m.next = "LOOK"
                        m.d.comb += self.recalled.ready.eq(1)

        with m.State("READ"):
            m.d.comb += self._reader.line.valid.eq(1)
            with m.If(self._reader.line.ready):
                m.next = "SUM"

        with m.State("SUM"):
            words = self._reader.words
            m.d.comb += [words.ready.eq(1), self._crc.valid.eq(words.valid)]
            with m.If(words.valid):
                m.d.sync += number.eq(number + 1)
                with m.If(number.all()):
                    m.next = "ENTRY"

        with m.State("ENTRY"):
            parts = {
                RecordWord.BLOCK: told.block[:WORD_BITS],
                RecordWord.PLACE: Cat(
                    told.block[high], told.port | Const(0, 8), told.array | Const(0, 8)
                ),
                RecordWord.SUM: self._crc.crc,
                RecordWord.RESERVED: Const(0),
            }
            m.d.comb += [
                page.block.eq(FIRST_LIST + self._lists),
                page.words.valid.eq(1),
                page.words.payload.eq(Array(parts[word] for word in RecordWord)[part]),
            ]
            with m.If(page.words.ready):
                m.d.sync += part.eq(part + 1)
                with m.If(part == RECORD_WORDS - 1):
                    m.d.comb += self.recalled.ready.eq(1)
                    m.d.sync += [entry.eq(entry + 1), self._records.eq(self._records + 1)]
                    m.next = "NEXT"
                    with m.If(entry == LIST_RECORDS - 1):
                        m.next = "CLOSE"
                    # There was no limit while there was little energy.
                    with m.If(self._records == self._config.backup_blocks - overhead - 1):
                        m.next = "FULL"

        with m.State("FULL"):
            with m.If(self.recalled.valid):
                m.next = "FAILED"
                with m.If(told.last):
                    m.next = "CLOSE"

        # The page is full of entries, or of zeros.
        with m.State("CLOSE"):
            m.d.sync += [number.eq(entry * RECORD_WORDS), entry.eq(0)]
            m.next = "FILL"

        with m.State("FILL"):
            m.d.comb += [page.block.eq(FIRST_LIST + self._lists), page.words.valid.eq(1)]
            with m.If(page.words.ready):
                m.d.sync += number.eq(number + 1)
                with m.If(number == CRC_WORD - 1):
                    m.next = "LISTED"

        with m.State("LISTED"):
            m.d.comb += page.block.eq(FIRST_LIST + self._lists)
            with m.If(page.done.valid):
                m.d.comb += self._sums.write.enable.eq(1)
                m.d.sync += self._lists.eq(self._lists + 1)
                m.next = "NEXT"
                with m.If(~page.done.payload):
                    m.next = "FAILED"

    def _write_head(self, m: Module) -> None:
        """The states LOOK to HEADED: a word of the head after the other."""
        page, number = self._page, self._number
        member = number - HeadWord.MEMBERS
        place = member[: MEMBER_WORDS.bit_length() - 1]
        port = member[len(place) :][: self._config.port_bits]
        is_member = self.sound.bit_select(port, 1)
        named = Array((0, *NAMED))[place]
        array = self.home_read.data
        m.d.comb += [
            self.home_read.address.eq(port),
            self.kept_read.address.eq(kept_address(port, named)),
            self._sums.reads[0].address.eq(number - HeadWord.SUMS),
        ]
        with m.State("LOOK"):
            m.next = "CHOOSE"

        with m.State("CHOOSE"):
            m.d.sync += self._word.eq(0)
            with m.Switch(number):
                for word, value in (
                    (HeadWord.MAGIC, MAGIC),
                    (HeadWord.VERSION, VERSION),
                    (HeadWord.RECORDS, self._records),
                    (HeadWord.LISTS, self._lists),
                ):
                    with m.Case(word):
                        m.d.sync += self._word.eq(value)
            sums = (number >= HeadWord.SUMS) & (number < HeadWord.SUMS + self._lists)
            with m.If(sums):
                m.d.sync += self._word.eq(self._sums.reads[0].data)
            members = (number >= HeadWord.MEMBERS) & (number < HeadWord.END)
            with m.If(members & is_member):
                state = Cat(Const(1, 1), self.trusted.bit_select(array, 1), Const(0, 6), array)
                m.d.sync += self._word.eq(Mux(place == 0, state, self.kept_read.data))
            m.next = "PUT"

        with m.State("PUT"):
            m.d.comb += [
                page.block.eq(HEAD_BLOCK),
                page.words.valid.eq(1),
                page.words.payload.eq(self._word),
            ]
            with m.If(page.words.ready):
                m.d.sync += number.eq(number + 1)
                m.next = "LOOK"
                with m.If(number == CRC_WORD - 1):
                    m.next = "HEADED"

        with m.State("HEADED"):
            m.d.comb += page.block.eq(HEAD_BLOCK)
            with m.If(page.done.valid):
                # Pages are stored whatever the flash did before.
                m.d.sync += self._bad.eq(0)
                m.next = "BLOCKS"
                with m.If(~page.done.payload):
                    m.next = "FAILED"

    def _write_blocks(self, m: Module) -> None:
        """The states BLOCKS to FAILED: the blocks, from their lines, and a flush."""
        told, sent, ended = self.recalled, self.operation, self.finished
        with m.State("BLOCKS"):
            room = self._out != BACKUP_OPERATIONS
            m.d.comb += [
                sent.valid.eq(told.valid & ~told.payload.last & room),
                told.ready.eq(Mux(told.payload.last, 1, sent.ready & room)),
            ]
            with m.If(told.valid & told.ready):
                m.d.sync += self._next.eq(self._next + 1)
                with m.If(told.payload.last):
                    m.next = "DRAIN"

        with m.State("DRAIN"):
            with m.If(self._out == 0):
                m.next = "FLUSH"
                with m.If(self._bad):
                    self._try_again(m)

        with m.State("FLUSH"):
            m.d.comb += [sent.valid.eq(1), sent.payload.opcode.eq(Opcode.FLUSH)]
            m.d.comb += [sent.payload.more.eq(0), sent.payload.alone.eq(1)]
            with m.If(sent.ready):
                m.next = "FLUSHED"

        # What a restart has spoilt is written once more.
        with m.State("FLUSHED"):
            with m.If(ended.valid):
                m.next = "SAVED"
                stored = ended.payload.status == DriveStatus.GOOD
                with m.If(~stored | self._bad | self.restarted):
                    self._try_again(m)

        for state in ("SAVED", "FAILED"):
            with m.State(state):
                pass

    def _try_again(self, m: Module) -> None:
        """Ends a state: all blocks are written once more, or it has been tried often enough."""
        m.d.sync += [self._tries.eq(self._tries + 1), self._next.eq(0), self._bad.eq(0)]
        m.next = "FAILED"
        with m.If(self._tries != TRIES - 1):
            m.next = "BLOCKS"
