"""Reads lists of volumes, and keeps the newest one of an array."""

from amaranth.hdl import Array, Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import DWORDS_PER_BLOCK, Config
from hdl.flow.line import ReadPort
from hdl.flow.operation import DriveStatus
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.metadata.page_mover import page_move
from hdl.metadata.superblock import WORD_BITS
from hdl.metadata.superblock_facts import EVENT_BITS, UUID_BITS
from hdl.metadata.volume_list import (
    BLOCK,
    COPIES,
    CRC,
    ENTRY_WORDS,
    MAGIC,
    MOST_VOLUMES,
    VERSION,
    EntryWord,
    ListWord,
    listed_volume,
)
from hdl.metadata.words import NUMBER_BITS, WordReader
from hdl.nvme.admin.names import IDENTITY_BITS

LIST_WORDS = ENTRY_WORDS * MOST_VOLUMES

USED_WORDS = max(EntryWord) + 2
"""Words of an entry that say something. The last field has two."""


def newest_copy(config: Config) -> data.StructLayout:
    """Which copy of the drive at ``port`` holds its newest list."""
    return data.StructLayout({"port": config.port_bits, "copy": 1})


class VolumeListReader(wiring.Component):
    """Looks at the lists that drives of one array hold, and gives the entries of the newest.

    A list counts if its magic, version, identity and CRC are right, and its generation is below
    2**63. Any other page is passed over.
    Nothing in a page is used as an address, and every page takes the same time.

    A drive takes 4,700 cycles with beats of 128 bits, and what it takes to read two pages. An entry
    takes 14 cycles, and an empty one 3.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begin
        A pulse, while nothing else is asked: nothing has been looked at.
    set_uuid
        A level. The identity of the array.
    look
        A drive, by its port. The next one is taken when this one has been looked at.
    give
        A pulse, while no drive is being looked at: the entries are asked for.
    entries
        The entries of the newest list that has been seen, and at the end one that is not valid. If
        none has been seen that is all.
    seen, owner
        Levels, while no drive is being looked at. A list has been seen; the card that has the array
        by the newest one.
    generation
        A level, alike: that of the newest one, or 0.
    missed
        A level, alike: no list has been seen, but a page could not be read.
    known
        A bit a port. A drive is there, and has been since it was looked for superblocks.
    wants, reads
        It is to read a drive, or waits for ``may`` to do so; it reads one.
    may
        A level. Nobody else moves pages, and nobody will while it ``reads``.
    page_line
        A level. A line that nobody else uses meanwhile.
    move, moved, gone
        Those of a user of `hdl.metadata.page_mover.PageMover`.
    line_read
        A port of the line store.
    newest
        Of a drive that has been looked at.
    busy
        It works, and does not wait for a drive.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "begin": In(1),
                "set_uuid": In(UUID_BITS),
                "look": In(stream.Signature(config.port_bits)),
                "give": In(1),
                "entries": Out(stream.Signature(listed_volume())),
                "seen": Out(1),
                "owner": Out(IDENTITY_BITS),
                "missed": Out(1),
                "generation": Out(EVENT_BITS),
                "known": In(config.ports),
                "wants": Out(1),
                "reads": Out(1),
                "may": In(1),
                "page_line": In(config.line_bits),
                "move": Out(stream.Signature(page_move(config))),
                "moved": In(stream.Signature(DriveStatus)),
                "gone": Out(1),
                "line_read": Out(ReadPort(config)),
                "newest": Out(Pulse(newest_copy(config))),
                "busy": Out(1),
            }
        )
        self._reader = WordReader(config=config, words=DWORDS_PER_BLOCK)
        self._crc = CRC.create()
        self._port = Signal(config.port_bits)
        self._copy = Signal(range(COPIES))
        self._number = Signal(NUMBER_BITS)

        # Two lists: the newest one in one half, and the page that is read goes to the other.
        self._lists = Table(WORD_BITS, 2 * LIST_WORDS)
        self._half = Signal()
        self._seen = Signal()
        self._unread = Signal()
        # Of the page that is read, and of the drive's first copy.
        self._fits = Signal()
        self._read_generation = Signal(EVENT_BITS)
        self._read_owner = Signal(IDENTITY_BITS)
        self._first_fits = Signal()
        self._first_generation = Signal(EVENT_BITS)

        # Of the entry that is given: its number, a word of it, and its words. There is none left.
        self._entry = Signal(range(MOST_VOLUMES + 1))
        self._place = Signal(range(ENTRY_WORDS))
        self._words = [Signal(WORD_BITS, name=f"word{word}") for word in range(USED_WORDS)]
        self._ends = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.reader = reader = self._reader
        m.submodules.crc = self._crc
        m.submodules.lists = self._lists
        connect(m, reader.line_read, flipped(self.line_read))
        m.d.comb += [
            reader.line.payload.eq(self.page_line),
            self.move.payload.port.eq(self._port),
            self.move.payload.block.eq(BLOCK + self._copy),
            self._lists.reads[0].address.eq(
                Cat(self._place, self._entry[:-1], self._half)
            ),
            self.newest.payload.port.eq(self._port),
            self.seen.eq(self._seen),
            self.missed.eq(self._unread & ~self._seen),
        ]
        self._make_entry(m)
        with m.If(self._leaves):
            m.d.sync += self.gone.eq(1)
        with m.FSM(name="look") as fsm:
            self._rest(m)
            self._read_page(m)
            self._judge(m)
            self._give(m)
            waits = (
                (fsm.ongoing("REST") & ~(self.look.valid | self.give | self.begin))
                | (fsm.ongoing("WAIT") & ~self.may)
                | (fsm.ongoing("ASK") & ~self.move.ready)
                | (fsm.ongoing("LISTEN") & ~self.moved.valid)
                | (fsm.ongoing("GIVE") & ~self.entries.ready)
            )
            m.d.comb += [
                self.busy.eq(~waits),
                self.reads.eq(
                    ~Cat(
                        fsm.ongoing(state)
                        for state in ("REST", "WAIT", "FIND", "FETCH", "NOTE", "GIVE")
                    ).any()
                ),
                self.wants.eq(fsm.ongoing("WAIT") | self.reads),
            ]
        return m

    def _rest(self, m: Module) -> None:
        """The states REST and WAIT: a drive is named, and nobody else uses the line."""
        with m.State("REST"):
            m.d.comb += self.look.ready.eq(1)
            m.d.sync += [
                self._port.eq(self.look.payload),
                self._copy.eq(0),
                self._entry.eq(0),
                self.gone.eq(0),
            ]
            with m.If(self.begin):
                m.d.sync += [self._seen.eq(0), self._unread.eq(0), self.generation.eq(0)]
            with m.If(self.look.valid):
                m.next = "WAIT"
            with m.Elif(self.give):
                m.next = "FIND"

        with m.State("WAIT"):
            with m.If(self.may):
                m.next = "ASK"

    def _read_page(self, m: Module) -> None:
        """The states ASK to TAKE: a copy is read, and its words are looked at as they come."""
        reader, number, word = self._reader, self._number, self._reader.words.payload
        crc, takes = self._crc, Signal()
        m.d.comb += [crc.data.eq(word), crc.valid.eq(takes)]
        with m.State("ASK"):
            m.d.comb += [self.move.valid.eq(1), crc.start.eq(1)]
            m.d.sync += [self._fits.eq(1), number.eq(0)]
            with m.If(self.move.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            m.d.comb += self.moved.ready.eq(1)
            with m.If(self.moved.valid):
                m.next = "READ"
                with m.If(self.moved.payload != DriveStatus.GOOD):
                    m.d.sync += [self._fits.eq(0), self._unread.eq(1)]
                    m.next = "JUDGE"

        with m.State("READ"):
            m.d.comb += reader.line.valid.eq(1)
            with m.If(reader.line.ready):
                m.next = "TAKE"

        entries = (number >= ListWord.ENTRIES) & (number < ListWord.END)
        with m.State("TAKE"):
            m.d.comb += [reader.words.ready.eq(1), takes.eq(reader.words.valid)]
            with m.If(takes):
                m.d.sync += number.eq(number + 1)
                with m.If(entries):
                    place = (number - ListWord.ENTRIES)[: (LIST_WORDS - 1).bit_length()]
                    m.d.comb += self._lists.store(address=Cat(place, ~self._half), data=word)
                with m.Switch(number):
                    for place, value in self._wanted.items():
                        with m.Case(place):
                            with m.If(word != value):
                                m.d.sync += self._fits.eq(0)
                    for half in range(2):
                        with m.Case(ListWord.GENERATION + half):
                            m.d.sync += self._read_generation.word_select(half, WORD_BITS).eq(word)
                        with m.Case(ListWord.OWNER + half):
                            m.d.sync += self._read_owner.word_select(half, WORD_BITS).eq(word)
                    with m.Case(ListWord.CRC):
                        m.next = "SUM"

        with m.State("SUM"):
            with m.If(~self._sums_up):
                m.d.sync += self._fits.eq(0)
            m.next = "JUDGE"

    @property
    def _leaves(self) -> Value:
        """The drive that is looked at is not there."""
        return ~self.known.bit_select(self._port, 1)

    @property
    def _wanted(self) -> dict[int, Value | int]:
        """Words that must be so."""
        words: dict[int, Value | int] = {ListWord.MAGIC: MAGIC, ListWord.VERSION: VERSION}
        for place in range(4):
            words[ListWord.SET_UUID + place] = self.set_uuid.word_select(place, WORD_BITS)
        return words

    @property
    def _sums_up(self) -> Value:
        """The last word is the CRC of the others."""
        return Value.cast(self._crc.match_detected)

    @property
    def _is_newer(self) -> Value:
        """The list that has been read is newer than the newest so far."""
        return self._read_generation > self.generation

    def _judge(self, m: Module) -> None:
        """The state JUDGE: whether the list counts, and is the newest."""
        # No list has had so many before it.
        fits = self._fits & ~self.gone & ~self._read_generation[-1]
        generation, first = self._read_generation, self._first_generation
        newer = ~self._first_fits | (generation > first)
        with m.State("JUDGE"):
            m.d.sync += [
                self._first_fits.eq(fits),
                first.eq(generation),
                self._copy.eq(1),
            ]
            with m.If(fits & (~self._seen | self._is_newer)):
                m.d.sync += [
                    self._seen.eq(1),
                    self.generation.eq(generation),
                    self.owner.eq(self._read_owner),
                    self._half.eq(~self._half),
                ]
            m.next = "ASK"
            with m.If(self._copy == COPIES - 1):
                m.d.comb += [
                    self.newest.valid.eq(~self.gone),
                    self.newest.payload.copy.eq(fits & newer),
                ]
                m.next = "REST"

    def _make_entry(self, m: Module) -> None:
        """The entry whose words have been read."""
        words, given = self._words, self.entries.payload
        state, facts = words[EntryWord.STATE], given.facts
        m.d.comb += [
            given.valid.eq(~self._ends),
            given.number.eq(self._entry),
            given.start.eq(Cat(words[EntryWord.START], state[8:16])),
            given.blocks.eq(Cat(words[EntryWord.BLOCKS], state[16:24])),
            given.detached.eq(state[3]),
            facts.sectors.eq(state[1]),
            facts.coarse.eq(state[2]),
            facts.name.count.eq(Cat(words[EntryWord.COUNT], state[24:32])),
            facts.name.own.eq(Cat(words[EntryWord.OWN], words[EntryWord.OWN + 1])),
        ]

    def _give(self, m: Module) -> None:
        """The states FIND to NOTE, in turn for each word, and GIVE, in turn for each entry."""
        entry, place, stored = self._entry, self._place, self._lists.reads[0].data
        none_left = ~self._seen | (entry == MOST_VOLUMES)
        with m.State("FIND"):
            m.d.sync += [self._ends.eq(none_left), place.eq(0)]
            m.next = "FETCH"
            with m.If(none_left):
                m.next = "GIVE"

        with m.State("FETCH"):
            m.next = "NOTE"

        with m.State("NOTE"):
            m.d.sync += [Array(self._words)[place].eq(stored), place.eq(place + 1)]
            m.next = "FETCH"
            with m.If(place == len(self._words) - 1):
                m.next = "GIVE"
            with m.If((place == EntryWord.STATE) & ~stored[0]):
                m.d.sync += entry.eq(entry + 1)
                m.next = "FIND"

        with m.State("GIVE"):
            m.d.comb += self.entries.valid.eq(1)
            with m.If(self.entries.ready):
                m.d.sync += entry.eq(entry + 1)
                m.next = "FIND"
                with m.If(self._ends):
                    m.next = "REST"
