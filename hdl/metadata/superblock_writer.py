"""Makes the superblock of a member, as a page that is to be stored."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import DWORDS_PER_BLOCK, LINE_WRITERS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.memory.store import write_delay
from hdl.metadata import volume_list
from hdl.metadata.page_mover import page_move
from hdl.metadata.superblock import (
    BLOCK,
    KEPT_WORDS,
    WORD_BITS,
    Word,
    kept_address,
    kept_read,
    kept_write,
)
from hdl.metadata.superblock_facts import SuperblockFacts
from hdl.metadata.superblock_words import OWN_WORDS, changing_words, lasting_words
from hdl.metadata.words import NUMBER_BITS, PageWord

PAGES = 1 + volume_list.COPIES
"""Pages of a drive: its superblock, and the copies of its list of volumes."""


class Edit(enum.Enum, shape=2):
    """What becomes of the superblock of a drive."""

    MAKE = 0
    """The drive is a new member. Nothing of what it held before counts."""
    CHANGE = 1
    """The drive is a member, whose superblock is kept. Only what may change is changed."""
    ERASE = 2
    """The drive is no member any more. Its page becomes zeros."""


def superblock_edit(config: Config) -> data.StructLayout:
    """A superblock to be written: of the drive at ``port``, which has or gets ``role``.

    ERASE may be of another ``page`` instead: 1 and 2 are the lists of volumes. MAKE may be ``like``
    the superblock that is kept of another member, at port ``model``.
    """
    return data.StructLayout(
        {
            "edit": Edit,
            "port": config.port_bits,
            "role": WIDTH_BITS,
            "page": range(PAGES),
            "like": 1,
            "model": config.port_bits,
        }
    )


class SuperblockWriter(wiring.Component):
    """Makes the superblock of a member, gives it away to be stored, and keeps it.

    What is kept is only as good as the answer of the drive: after another status than GOOD the
    drive may hold the old page, the new one, or parts of both.

    The words that the card does not keep are zeros. They stay zeros in a line that nobody else
    writes, so only the first page of a line has all its words written. A page takes 650 cycles, and
    the first one of a line 3,400.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    edit
        What is to be written. It is taken as the page is given away.
    facts
        A level. What the array's superblocks say, constant while ``edit`` is offered. Of no meaning
        to ERASE.
    line
        A level. The number of a line that nobody uses while ``edit`` is offered.
    words
        Words for that line (`hdl.metadata.words.WordWriter`).
    kept_read, kept_write
        What is kept of superblocks.
    move
        The page. Its line can be read.
    busy
        It works, and does not wait for the user.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "edit": In(stream.Signature(superblock_edit(config))),
                "facts": In(SuperblockFacts),
                "line": In(range(config.superblock_lines)),
                "words": Out(stream.Signature(PageWord)),
                "kept_read": Out(kept_read(config)),
                "kept_write": Out(kept_write(config)),
                "move": Out(stream.Signature(page_move(config))),
                "busy": Out(1),
            }
        )
        self._is_clean = Signal(config.superblock_lines)  # a bit a line: the other words are zeros
        self._number = Signal(NUMBER_BITS)
        self._sum = Signal(WORD_BITS + KEPT_WORDS.bit_length())
        self._word = Signal(WORD_BITS)

    def elaborate(self, platform) -> Module:
        edit, number = self.edit.payload, self._number
        m = Module()
        word, new, last = self._word, Signal(WORD_BITS), Signal()
        is_clean = self._is_clean.bit_select(self.line, 1)
        self._make_word(m, new)
        settled = Signal(range(write_delay(LINE_WRITERS) + 1))
        m.d.comb += [
            last.eq(number == Mux(is_clean, KEPT_WORDS - 1, DWORDS_PER_BLOCK - 1)),
            self.kept_read.address.eq(
                kept_address(Mux(self._is_like, edit.model, edit.port), number)
            ),
            self.kept_write.address.eq(kept_address(edit.port, number)),
            self.kept_write.data.eq(word),
            self.words.payload.number.eq(number),
            self.words.payload.word.eq(word),
            self.move.payload.port.eq(edit.port),
            self.move.payload.writes.eq(1),
            self.move.payload.block.eq(
                Mux(edit.page == 0, BLOCK, volume_list.BLOCK - 1 + edit.page)
            ),
        ]
        with m.FSM(name="write_superblock") as fsm:
            with m.State("REST"):
                m.d.sync += [number.eq(0), self._sum.eq(0)]
                with m.If(self.edit.valid):
                    m.next = "READ"

            # Twice over the words: first they are added up.
            with m.State("READ"):
                m.next = "ADD"

            with m.State("ADD"):
                m.d.sync += [self._sum.eq(self._sum + new), number.eq(number + 1)]
                m.next = "READ"
                with m.If(number == KEPT_WORDS - 1):
                    m.d.sync += number.eq(0)
                    m.next = "READ_AGAIN"

            with m.State("READ_AGAIN"):
                m.next = "CHOOSE"

            with m.State("CHOOSE"):
                total = self._sum[:WORD_BITS] + self._sum[WORD_BITS:]
                is_sum = (number == Word.CHECKSUM) & (edit.edit != Edit.ERASE)
                m.d.sync += word.eq(Mux(is_sum, total, new))
                m.next = "STORE"

            with m.State("STORE"):
                m.d.comb += self.words.valid.eq(1)
                m.d.sync += settled.eq(0)
                with m.If(self.words.ready):
                    m.d.comb += self.kept_write.enable.eq((number < KEPT_WORDS) & (edit.page == 0))
                    m.d.sync += number.eq(number + 1)
                    m.next = "READ_AGAIN"
                    with m.If(last):
                        m.d.sync += is_clean.eq(1)
                        m.next = "SETTLE"

            with m.State("SETTLE"):
                m.d.sync += settled.eq(settled + 1)
                with m.If(settled == write_delay(LINE_WRITERS)):
                    m.next = "MOVE"

            with m.State("MOVE"):
                m.d.comb += [self.move.valid.eq(1), self.edit.ready.eq(self.move.ready)]
                with m.If(self.move.ready):
                    m.next = "REST"

            waits = (fsm.ongoing("REST") & ~self.edit.valid) | (
                fsm.ongoing("MOVE") & ~self.move.ready
            )
        m.d.comb += self.busy.eq(~waits)
        return m

    @property
    def _is_like(self) -> Value:
        """What is made is like what is kept of another drive."""
        edit = self.edit.payload
        return (edit.edit == Edit.MAKE) & edit.like

    def _make_word(self, m: Module, new: Signal) -> None:
        """The word at hand, but for the checksum: what is kept, or made, and what changes."""
        edit, number, facts = self.edit.payload, self._number, self.facts
        lasting = lasting_words(m, number, facts, edit.role)
        changing, changes = changing_words(m, number, facts, edit.role)
        with m.If((number < KEPT_WORDS) & (edit.edit != Edit.ERASE)):
            with m.If(changes):
                m.d.comb += new.eq(changing)
            with m.Elif(self._is_like & ~Cat(number == own for own in OWN_WORDS).any()):
                with m.Switch(number):
                    with m.Case(Word.CHECKSUM):
                        m.d.comb += new.eq(0)
                    with m.Case(Word.BAD_BLOCKS):
                        # Whether Linux avoids reads of a drive, or retries, is the drive's own.
                        m.d.comb += new[8:].eq(self.kept_read.data[8:])
                    with m.Default():
                        m.d.comb += new.eq(self.kept_read.data)
            with m.Elif(edit.edit == Edit.MAKE):
                m.d.comb += new.eq(lasting)
            with m.Elif(number != Word.CHECKSUM):
                m.d.comb += new.eq(self.kept_read.data)
