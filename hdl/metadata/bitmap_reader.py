"""Reads the write-intent bitmaps of an array that is brought up."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import WIDTH_BITS, Level
from hdl.flow.line import ReadPort
from hdl.flow.marks import WORD_BITS, marks_word, word_number_bits
from hdl.flow.operation import DriveStatus
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.metadata.bitmap import BLOCK, BitmapWord, head_words, md_uses
from hdl.metadata.page_mover import page_move
from hdl.metadata.superblock_facts import EVENT_BITS, UUID_BITS
from hdl.metadata.words import NUMBER_BITS, WordReader

COMPARED = (
    BitmapWord.MAGIC,
    BitmapWord.VERSION,
    *(BitmapWord.SET_UUID + place for place in range(4)),
    BitmapWord.SYNC_SIZE,
    BitmapWord.SYNC_SIZE + 1,
    BitmapWord.CHUNK_BYTES,
)
"""Words that must be as the card writes them. Others may be md's."""


def marked_shape() -> data.StructLayout:
    """What of an array its bitmap depends on, as in `hdl.flow.geometry.geometry`."""
    return data.StructLayout(
        {
            "level": Level,
            "width": WIDTH_BITS,
            "copies": WIDTH_BITS,
            "spans": WIDTH_BITS,
            "rows": BLOCK_NUMBER_BITS,
        }
    )


class BitmapReads(wiring.Signature):
    """The bitmaps of one array, seen from who wants them. See `BitmapReader`."""

    def __init__(self, config: Config):
        super().__init__(
            {
                "begin": Out(1),
                "set_uuid": Out(UUID_BITS),
                "events": Out(EVENT_BITS),
                "shape": Out(marked_shape()),
                "look": Out(stream.Signature(config.port_bits)),
                "fits": In(1),
                "is_md": In(1),
                "give": Out(stream.Signature(config.array_bits)),
            }
        )


class BitmapReader(wiring.Component):
    """Reads the bitmaps of the members of an array, and marks what any of them says.

    A row is written once all members that are good then have its mark. So each of them has all
    marks, but for one that did not store its bitmap and was needed. What one of them has and
    another one has not is marked. A bitmap counts if it is of this array and of this size, is not
    stale, and its count of events is not below that of the superblocks. If one does not count, or
    cannot be read, none of them says enough.

    A drive takes 80 cycles, 4 for each word of bits, and a read.

    Parameters
    ----------
    config
        Sizes, with `Config.durable_marks`.

    Ports
    -----
    asked
        Who wants them. ``begin`` is a pulse while no drive is being looked at: no drive has been
        seen yet. ``set_uuid``, ``events`` and ``shape`` are levels: the identity of the array, the
        count of its superblocks, and what it is. ``look`` names a drive by its port; the next one
        is taken when this one has been looked at. ``fits`` says then that all of them counted, and
        ``is_md`` that md uses such a bitmap. ``give`` names the array whose marks they are, and is
        taken when these have been ``load``-ed.
    load
        For `hdl.background.intent.Intent`.
    follow
        A pulse as ``give`` is taken: the marks of this array say what may be out of sync.
    known
        A bit a port. A drive is there, and has been since it was looked for superblocks.
    wants, reads, may
        As for `hdl.metadata.volume_list_reader.VolumeListReader`.
    page_line
        A level. A line that nobody else uses meanwhile.
    move, moved, gone
        Those of a user of `hdl.metadata.page_mover.PageMover`.
    line_read
        A port of the line store.
    busy
        It works, and does not wait for a drive.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "asked": In(BitmapReads(config)),
                "load": Out(stream.Signature(marks_word(config))),
                "follow": Out(Pulse(config.array_bits)),
                "known": In(config.ports),
                "wants": Out(1),
                "reads": Out(1),
                "may": In(1),
                "page_line": In(config.line_bits),
                "move": Out(stream.Signature(page_move(config))),
                "moved": In(stream.Signature(DriveStatus)),
                "gone": Out(1),
                "line_read": Out(ReadPort(config)),
                "busy": Out(1),
            }
        )
        self._bits = 1 << word_number_bits(config)
        used = BitmapWord.BITS + self._bits
        self._read_words = -(-used // config.beat_dwords) * config.beat_dwords
        self._reader = WordReader(config=config, words=self._read_words)
        self._marks = Table(WORD_BITS, self._bits)
        self._port = Signal(config.port_bits)
        self._number = Signal(NUMBER_BITS)
        self._word = Signal(WORD_BITS)
        self._events = Signal(EVENT_BITS)
        self._good = Signal()  # the page at hand counts, as far as it has been read
        self._all = Signal()  # all pages before it did
        self._first = Signal()  # there was none

    def elaborate(self, platform) -> Module:
        config, asked, reader = self._config, self.asked, self._reader
        m = Module()
        m.submodules.reader = reader
        m.submodules.marks = self._marks
        connect(m, reader.line_read, flipped(self.line_read))
        head = head_words(m, config, asked.set_uuid, asked.shape)
        m.d.comb += [
            reader.line.payload.eq(self.page_line),
            self.move.payload.port.eq(self._port),
            self.move.payload.block.eq(BLOCK),
            asked.is_md.eq(md_uses(m, config, asked.shape)),
            asked.fits.eq(self._all & ~self._first),
            self.follow.payload.eq(asked.give.payload),
        ]
        leaves = ~self.known.bit_select(self._port, 1)
        with m.If(leaves):
            m.d.sync += self.gone.eq(1)
        with m.FSM(name="read_bitmap") as fsm:
            self._rest(m)
            self._read_page(m, {place: head[place] for place in COMPARED})
            self._give(m)
            waits = (
                (fsm.ongoing("REST") & ~(asked.look.valid | asked.give.valid | asked.begin))
                | (fsm.ongoing("WAIT") & ~self.may)
                | (fsm.ongoing("ASK") & ~self.move.ready)
                | (fsm.ongoing("LISTEN") & ~self.moved.valid)
                | (fsm.ongoing("GIVE") & ~self.load.ready)
            )
            reads = ("ASK", "LISTEN", "READ", "TAKE", "ADD")
            m.d.comb += [
                self.busy.eq(~waits),
                self.reads.eq(Cat(fsm.ongoing(state) for state in reads).any()),
                self.wants.eq(fsm.ongoing("WAIT") | self.reads),
            ]
        return m

    def _rest(self, m: Module) -> None:
        """The states REST and WAIT: a drive is named, and nobody else uses the line."""
        asked = self.asked
        with m.State("REST"):
            m.d.comb += asked.look.ready.eq(1)
            m.d.sync += [
                self._port.eq(asked.look.payload),
                self._number.eq(0),
                self._good.eq(1),
                self.gone.eq(0),
            ]
            with m.If(asked.begin):
                m.d.sync += [self._all.eq(1), self._first.eq(1)]
            with m.If(asked.look.valid):
                m.next = "WAIT"
            with m.Elif(asked.give.valid):
                m.next = "FETCH"

        with m.State("WAIT"):
            with m.If(self.may):
                m.next = "ASK"

    def _read_page(self, m: Module, head: dict) -> None:
        """The states ASK to ADD: the page is read, and looked at word by word."""
        reader, number, marks = self._reader, self._number, self._marks
        given, end = reader.words, BitmapWord.BITS + self._bits
        is_bits = (number >= BitmapWord.BITS) & (number < end)
        place = (number - BitmapWord.BITS)[: max(1, word_number_bits(self._config))]
        with m.State("ASK"):
            m.d.comb += self.move.valid.eq(1)
            with m.If(self.move.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            m.d.comb += self.moved.ready.eq(1)
            with m.If(self.moved.valid):
                m.next = "READ"
                with m.If(self.moved.payload != DriveStatus.GOOD):
                    m.d.sync += self._all.eq(0)
                    m.next = "REST"

        with m.State("READ"):
            m.d.comb += reader.line.valid.eq(1)
            with m.If(reader.line.ready):
                m.next = "TAKE"

        with m.State("TAKE"):
            m.d.comb += [given.ready.eq(1), marks.reads[0].address.eq(place)]
            m.d.sync += self._word.eq(given.payload)
            with m.If(given.valid):
                m.next = "ADD"
                with m.Switch(number):
                    for word, value in head.items():
                        with m.Case(word):
                            with m.If(given.payload != value):
                                m.d.sync += self._good.eq(0)
                    with m.Case(BitmapWord.STATE):
                        with m.If(given.payload != 0):
                            m.d.sync += self._good.eq(0)
                    for half in range(2):
                        with m.Case(BitmapWord.EVENTS + half):
                            events = self._events.word_select(half, WORD_BITS)
                            m.d.sync += events.eq(given.payload)

        with m.State("ADD"):
            before = marks.reads[0].data & (~self._first).replicate(WORD_BITS)
            with m.If(is_bits):
                m.d.comb += marks.store(address=place, data=self._word | before)
            m.d.sync += number.eq(number + 1)
            m.next = "TAKE"
            with m.If(number == self._read_words - 1):
                fits = self._good & ~self.gone & (self._events >= self.asked.events)
                m.d.sync += [self._all.eq(self._all & fits), self._first.eq(0)]
                m.next = "REST"

    def _give(self, m: Module) -> None:
        """The states FETCH and GIVE, of a word of marks."""
        number, load, give = self._number, self.load.payload, self.asked.give
        m.d.comb += [
            load.array.eq(give.payload),
            load.word.eq(number),
            load.marks.eq(self._marks.reads[0].data),
        ]
        with m.State("FETCH"):
            m.d.comb += self._marks.reads[0].address.eq(number)
            m.next = "GIVE"

        with m.State("GIVE"):
            m.d.comb += [self._marks.reads[0].address.eq(number), self.load.valid.eq(1)]
            with m.If(self.load.ready):
                m.d.sync += number.eq(number + 1)
                m.next = "FETCH"
                with m.If(number == self._bits - 1):
                    m.d.comb += [give.ready.eq(1), self.follow.valid.eq(1)]
                    m.next = "REST"
