"""Builds the 4 KiB pages that Identify, Get Log Page and LIST return."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import (
    MAX_DRIVES,
    SECTORS_PER_BLOCK,
    Config,
    bits_for_count,
)
from hdl.flow.array_state import ArrayStatus
from hdl.flow.drive_standing import drive_standing
from hdl.flow.drive_states import DriveStates
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.line import line_stream, write_port
from hdl.flow.report import REPORT_SHIFT, ReportAccess
from hdl.flow.table_read import TableReads
from hdl.nvme.admin.names import NameRead
from hdl.nvme.admin.namespaces import NamespaceStates, VolumeProbe
from hdl.nvme.admin.tally import Tally
from hdl.nvme.commands.formats import formats
from hdl.nvme.pages.facts import NUMBERS, PAGE_WORDS, drive_state, health_facts
from hdl.nvme.pages.identify import Identity
from hdl.nvme.pages.log_memory import (
    COUNTER_WORDS,
    ENTRY_WORDS,
    SMART_WORDS,
    STORED_WORDS,
    Counter,
    LogAccess,
)
from hdl.nvme.pages.logs import HOT_WORD
from hdl.nvme.pages.page import IMAGE_WORDS, IMAGES, Numbered, Page
from hdl.nvme.pages.page_words import PageWords
from hdl.nvme.records import IMAGE_BITS, SKIP_BITS, PageKind, assign, page_request, zeros

SECTOR_WORDS_SHIFT = bits_for_count(PAGE_WORDS // SECTORS_PER_BLOCK)
"""log2 of the 32-bit words of a sector."""

NO_PAGE = 14
"""Stands in the place of a `PageKind` while a line is filled with zeros."""


class PageGenerator(wiring.Component):
    """Writes a page, word by word, from its image in ROM and from the tables.

    `PageWords` says what stands in a word. This machine counts words and entries, reads the tables
    for them, and fills the line. A list leaves out what does not emit, and the host may ask for a
    part of a page, so the words that are looked at and those that are written are counted apart.

    It also fills lines with zeros for Write Zeroes. That is no page. It goes through the states of
    a page of which no word exists, as a machine of its own would need a beat and counters of its
    own. `_begin_zeros` begins it, and `_report` ends it.

    Parameters
    ----------
    config
        Sizes.
    identity
        Fixed contents.

    Ports
    -----
    request
        The page to build.
    response
        1: the page is in its line. 0: DESCRIPTORS of an inactive namespace, nothing written.
    line_write
        Beats of the line.
    zero
        Lines to fill with zeros, or some sectors of them. Pages go first.
    zeroed
        Lines of ``zero`` that have been filled.
    reads
        The tables that are listed.
    drives
        What the tables know of the drives.
    arrays
        The states of all arrays. Without `Config.background` their geometry says whether they are
        in sync.
    report
        Array states, jobs and findings. Not used without `Config.background`.
    log
        The SMART and error logs (`hdl.nvme.pages.health.Health`).
    health
        What the SMART log says of the moment.
    namespaces
        Which are not attached, and which have changed.
    probe
        Whether a volume exists. It is looked up between requests.
    names
        What names the card and a volume (`hdl.nvme.admin.names.Names`).
    formats
        Of the volumes (`hdl.nvme.commands.formats`); all 0 without `Config.sector_emulation`.
    drive_emulated
        A bit per drive port: it emulates 512-byte sectors; 0 without `Config.sector_emulation`.
    drive_foreign, drive_spare
        A bit per drive port: it says that it belongs to an array, which is not there; it is a hot
        spare. 0 without `Config.metadata`.
    drive_standing
        With `Config.metadata`: of the superblock at each drive port.
    busy
        Something is done without waiting for another block.

    One page at a time: 4 cycles for each word that has contents, and one for each beat.
    Back-pressure on ``line_write`` holds it.
    """

    def __init__(self, *, config: Config, identity: Identity):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(page_request(config))),
                "response": Out(stream.Signature(1)),
                "zero": In(stream.Signature(zeros(config))),
                "zeroed": Out(line_stream(config)),
                "line_write": Out(write_port(config)),
                "reads": Out(TableReads(config)),
                "drives": In(DriveStates()),
                "arrays": In(ArrayStatus(config)),
                "report": Out(ReportAccess()),
                "log": Out(LogAccess(config)),
                "health": In(health_facts()),
                "namespaces": In(NamespaceStates(config)),
                "probe": In(VolumeProbe(config)),
                "names": Out(NameRead(config)),
                "formats": In(formats(config)),
                "drive_emulated": In(config.ports),
                "drive_foreign": In(config.ports),
                "drive_spare": In(config.ports),
                "drive_standing": In(drive_standing()).array(config.ports),
                "busy": Out(1),
            }
        )
        self._words = PageWords(config=config, identity=identity)
        self._tally = Tally(config=config) if config.report_capacity else None
        self._rom = memory.Memory(
            shape=32, depth=IMAGES * IMAGE_WORDS, init=self._words.images()
        )
        self._image = self._rom.read_port()

        # The page; `index` counts what is looked at, `word` what has been written, up to `end`.
        self._page = Signal(page_request(config))
        self._index = Signal(range(PAGE_WORDS + 1))
        self._word = Signal(range(PAGE_WORDS + 1))
        self._end: Any = PAGE_WORDS
        if config.sector_emulation:
            self._end = Signal(range(PAGE_WORDS + 1))
        self._skip = Signal(SKIP_BITS)  # words that are not wanted any more
        self._beat = Signal(config.data_width)
        # The entry, one cycle after `index`. `exists` once false stays so: only zeros follow.
        self._number = Signal(range(NUMBERS))
        self._exists = Signal()
        # What has been found for the word; members of the array that have failed.
        self._found = Signal(
            data.StructLayout({"value": 32, "emits": 1, "exists": 1, "failed": 1})
        )
        self._missing = Signal(WIDTH_BITS)
        self._of_volumes = Signal()  # volumes are weighed, not arrays
        # States: between requests; what has been made is told.
        self._idle = Signal()
        self._reports = Signal()
        kind = self._page.kind.as_value()
        self._fills_zeros = kind == NO_PAGE
        self._making = ~self._idle & ~self._reports

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.rom = self._rom
        m.submodules.words = self._words
        self._count_entries(m)
        self._read_tables(m)
        self._read_logs(m)
        self._read_reports(m)
        self._tell_facts(m)
        self._tell_of_array(m)
        self._tell_of_volume(m)
        self._tell_of_drive(m)
        if self._tally is not None:
            self._connect_tally(m, self._tally)
        with m.FSM(name="page") as fsm:
            self._take(m)
            if self._tally is not None:
                self._weigh(m, self._tally)
            self._prepare(m)
            self._copy(m)
            self._write(m)
            self._report(m)
        waits = (
            (fsm.ongoing("TAKE") & ~self.request.valid & ~self.zero.valid)
            | (self.zeroed.valid & ~self.zeroed.ready)
            | (self.log.refresh & ~self.log.fresh)
            | (fsm.ongoing("LOCATE") & self.log.hold & ~self.log.held)
            | (fsm.ongoing("WRITE") & ~self.line_write.ready)
            | (self.response.valid & ~self.response.ready)
        )
        m.d.comb += self.busy.eq(~waits)
        return m

    def _count_entries(self, m: Module) -> None:
        """The entry that word ``index`` is in, and whether there is one."""
        number, exists = Signal.like(self._number), Signal()
        m.d.sync += [self._number.eq(number), self._exists.eq(exists)]
        listed = [page for page in self._words.pages if page.numbered != Numbered.NAMESPACE]
        with m.Switch(self._page.kind.as_value()):
            with m.Case(NO_PAGE):
                pass
            for page in listed:
                with m.Case(*(kind.value for kind in page.kinds)):
                    self._count_entries_of(m, page, number, exists)
            with m.Default():
                m.d.comb += [
                    number.eq(self._page.nsid - 1),
                    exists.eq(self._index < IMAGE_WORDS),
                ]
        with m.If(self._index == PAGE_WORDS):
            m.d.comb += exists.eq(0)

    def _count_entries_of(self, m: Module, page: Page, number: Signal, exists: Signal) -> None:
        """The same for a page that is not about a namespace."""
        entry = self._index >> page.entry_shift
        start = self._page.nsid[:8]
        match page.numbered:
            case Numbered.FROM_START:
                # The page may begin at an entry that does not exist.
                m.d.comb += [number.eq(start + entry), exists.eq(number < page.entries)]
                return
            case Numbered.FROM_ZERO:
                m.d.comb += number.eq(entry)
            case Numbered.WORD:
                m.d.comb += number.eq(self._index)
        m.d.comb += exists.eq(self._index < page.words)

    def _read_tables(self, m: Module) -> None:
        """Asks the tables, and the ROM, for what entry ``number`` and word ``index`` need."""
        number = self._number
        place = self._index[: bits_for_count(IMAGE_WORDS)]
        m.d.comb += [
            self._image.addr.eq(Cat(place, self._page.kind.as_value()[:IMAGE_BITS])),
            self.reads.geometry.address.eq(number),
            self.reads.volume.address.eq(Mux(self._idle, self.probe.volume, number)),
            self.reads.member.address.position.eq(self._index[: bits_for_count(MAX_DRIVES)]),
            self.reads.member.address.array.eq(number),
            self.reads.port.address.eq(number),
            self.reads.capacity.address.eq(number),
            self.probe.allocated.eq(self.reads.volume.data.valid),
        ]

    def _read_logs(self, m: Module) -> None:
        """Asks for the word of the SMART log or of the error log.

        Counters lie in the memory as in the page, but for the last one. Entries of the error log
        are shown newest first.
        """
        index = self._index
        older = Signal.like(self.log.newest)
        of_errors = self._page.kind == PageKind.ERROR
        # Words that counters begin and end with. Of each, LOW and HIGH are read as one.
        first = COUNTER_WORDS * Counter.UNITS_READ.value
        last = COUNTER_WORDS * Counter.ERRORS.value + COUNTER_WORDS - 1
        counts = (index >= first) & (index <= last) & ~index[1]
        m.d.comb += [
            older.eq(self.log.shown - (index >> bits_for_count(ENTRY_WORDS))),
            self.log.showing.eq(of_errors & self._making),
            self.log.hold.eq((self._page.kind == PageKind.SMART) & counts),
        ]
        with m.If(of_errors):
            stored = index[: bits_for_count(STORED_WORDS)]
            m.d.comb += self.log.read.address.eq(Cat(stored, older) + SMART_WORDS)
        with m.Elif(index == HOT_WORD):
            m.d.comb += self.log.read.address.eq(COUNTER_WORDS * Counter.HOT_MINUTES.value)
        with m.Else():
            m.d.comb += self.log.read.address.eq(index)

    def _read_reports(self, m: Module) -> None:
        """Asks for the word of a log of background work."""
        kind, address = self._page.kind, self.report.read.address
        m.d.comb += [
            address.section.eq(kind.as_value()[:2]),
            address.number.eq(self._number),
            address.word.eq(self._index[:REPORT_SHIFT]),
            self.report.shows.eq(
                ((kind == PageKind.DEFECTS) | (kind == PageKind.LOST_BLOCKS)) & self._making
            ),
        ]

    # What `PageWords` is told, once the tables have answered.

    def _tell_facts(self, m: Module) -> None:
        """Which word it is, and what does not depend on the entry."""
        facts: Any = self._words.facts
        connect(m, facts.names, flipped(self.names))
        m.d.comb += [
            facts.kind.eq(self._page.kind),
            facts.nsid.eq(self._page.nsid),
            facts.index.eq(self._index),
            facts.number.eq(self._number),
            facts.exists.eq(self._exists),
            facts.image.eq(self._image.data),
            facts.log.eq(self.log.read.data),
            facts.report.eq(self.report.read.data),
            facts.health.eq(self.health),
        ]

    def _tell_of_array(self, m: Module) -> None:
        """Of array ``number``, and of the member that the word is of."""
        config = self._config
        array, of_member = self._words.facts.array, self._words.facts.member
        number = self._number[: config.array_bits]
        shape, member = self.reads.geometry.data, self.reads.member.data
        place = self._index[: bits_for_count(MAX_DRIVES)]
        members = Signal(2 * WIDTH_BITS)
        unsynced = self.arrays.unsynced.bit_select(number, 1)
        assumed = self.arrays.assumed.bit_select(number, 1)
        if not config.background:
            assumed = shape.assumed
            unsynced = ~assumed & ((shape.parities != 0) | (shape.copies > 1))
        # An entry has words for the members, and as many for the rest. Words are made in order. So
        # ``members`` is that of the array from the second word on, and every array has a first.
        is_member = (place == 0) | (place < members)
        in_members = ~self._index[bits_for_count(MAX_DRIVES)] & is_member
        of_arrays = self._page.kind == PageKind.ARRAYS
        m.d.sync += members.eq(shape.width * shape.spans)
        m.d.comb += [
            array.geometry.eq(shape),
            array.missing.eq(self._missing),
            array.state.eq(self.arrays.states.word_select(number, 2)),
            array.unsynced.eq(unsynced),
            array.assumed.eq(assumed),
            of_member.exists.eq(of_arrays & self._exists & shape.valid & in_members),
            of_member.port.eq(member),
            of_member.drive.eq(self._state_of(m, member)),
        ]

    def _tell_of_volume(self, m: Module) -> None:
        """Of volume ``number``."""
        volume, found = self._words.facts.volume, self.reads.volume.data
        number = self._number[: self._config.volume_bits]
        m.d.comb += [
            volume.range.eq(found),
            volume.active.eq(found.valid & ~self.namespaces.detached.bit_select(number, 1)),
            volume.changed.eq(self.namespaces.changed.bit_select(number, 1)),
            volume.sectors.eq(self.formats.sectors.bit_select(number, 1)),
            volume.coarse.eq(self.formats.coarse.bit_select(number, 1)),
        ]

    def _tell_of_drive(self, m: Module) -> None:
        """Of drive port ``number``."""
        drive = self._words.facts.drive
        number = self._number[: self._config.port_bits]
        m.d.comb += [
            drive.use.eq(self.reads.port.data),
            drive.capacity.eq(self.reads.capacity.data),
            drive.state.eq(self._state_of(m, number)),
            drive.emulated.eq(self.drive_emulated.bit_select(number, 1)),
            drive.foreign.eq(self.drive_foreign.bit_select(number, 1)),
            drive.spare.eq(self.drive_spare.bit_select(number, 1)),
        ]
        if self._config.metadata:
            m.d.comb += drive.standing.eq(Array(self.drive_standing)[number])

    def _state_of(self, m: Module, port: Value) -> data.View:
        """Of the drive at ``port``."""
        drives, ports = self.drives, self._config.ports
        state, failed = Signal(drive_state()), Signal()
        m.d.comb += [
            failed.eq(drives.failed.bit_select(port, 1)),
            state.present.eq(drives.present[:ports].bit_select(port, 1)),
            state.failed.eq(failed),
            state.stale.eq(drives.stale.bit_select(port, 1) & ~failed),
        ]
        return state

    def _connect_tally(self, m: Module, tally: Tally) -> None:
        """The capacity of all arrays, and what volumes leave of it."""
        space = self._words.facts.space
        volume, shape = self.reads.volume.data, self.reads.geometry.data
        m.submodules.tally = tally
        m.d.comb += [
            tally.of_volume.eq(self._of_volumes),
            tally.blocks.eq(Mux(self._of_volumes, volume.blocks, shape.blocks)),
            space.total.eq(tally.total),
            space.free.eq(tally.free),
        ]

    # States. Each method has those of one step, and says which they are.

    def _take(self, m: Module) -> None:
        """The state TAKE: a page, else a line to fill with zeros."""
        asked = self.request
        with m.State("TAKE"):
            m.d.comb += [
                self._idle.eq(1),
                self.log.hold.eq(0),
                asked.ready.eq(1),
                self.zero.ready.eq(~asked.valid),
            ]
            m.d.sync += [
                self._page.eq(asked.payload),
                self._index.eq(0),
                self._word.eq(0),
                self._skip.eq(asked.payload.skip),
                self._of_volumes.eq(0),
                self._missing.eq(0),
                self.log.shown.eq(self.log.newest),
            ]
            with m.If(~asked.valid):
                self._begin_zeros(m)
            with m.Else():
                self._begin_page(m)

    def _begin_zeros(self, m: Module) -> None:
        """A line is filled with zeros, or the words of some sectors of it are."""
        span = self.zero.payload
        m.d.sync += [
            self._page.kind.as_value().eq(NO_PAGE),
            self._page.line.eq(span.line),
            self._skip.eq(0),
        ]
        if self._config.sector_emulation:
            m.d.sync += [
                self._word.eq(span.first << SECTOR_WORDS_SHIFT),
                self._end.eq((span.last + 1) << SECTOR_WORDS_SHIFT),
            ]
        with m.If(self.zero.valid):
            m.next = "LOCATE"

    def _begin_page(self, m: Module) -> None:
        """A page is made. First come the times of the SMART log, or the capacity of the arrays."""
        kind = self.request.payload.kind
        if self._config.sector_emulation:
            m.d.sync += self._end.eq(PAGE_WORDS)
        m.next = "LOCATE"
        with m.If(kind == PageKind.SMART):
            m.next = "REFRESH"
        if self._tally is not None:
            m.d.comb += self._tally.clear.eq(1)
            with m.If(kind == PageKind.CONTROLLER):
                m.next = "WEIGH"

    def _weigh(self, m: Module, tally: Tally) -> None:
        """The states WEIGH, FETCH and TALLY: the capacity that all arrays offer, without what
        volumes take."""
        config, of_volumes, index = self._config, self._of_volumes, self._index
        with m.State("WEIGH"):
            m.next = "FETCH"
        with m.State("FETCH"):
            m.next = "TALLY"
        with m.State("TALLY"):
            exists = Mux(of_volumes, self.reads.volume.data.valid, self.reads.geometry.data.valid)
            m.d.comb += tally.count.eq(exists)
            m.d.sync += index.eq(index + 1)
            m.next = "WEIGH"
            with m.If(index == Mux(of_volumes, config.volumes - 1, config.arrays - 1)):
                m.d.sync += [index.eq(0), of_volumes.eq(1)]
                with m.If(of_volumes):
                    m.next = "LOCATE"

    def _prepare(self, m: Module) -> None:
        """The state REFRESH, then for each word LOCATE and PRESENT: the entry is known, and the
        tables answer."""
        with m.State("REFRESH"):
            m.d.comb += [self.log.refresh.eq(1), self.log.hold.eq(0)]
            with m.If(self.log.fresh):
                m.next = "LOCATE"
        with m.State("LOCATE"):
            with m.If(~self.log.hold | self.log.held):
                m.next = "PRESENT"
        with m.State("PRESENT"):
            m.next = "DERIVE"

    def _copy(self, m: Module) -> None:
        """The states DERIVE, which looks the word up, and COPY, which puts it into the beat."""
        config, found, facts = self._config, self._found, self._words.facts
        index, word, skip, missing = self._index, self._word, self._skip, self._missing
        with m.State("DERIVE"):
            m.d.sync += [
                found.value.eq(self._words.value),
                found.emits.eq(self._words.emits),
                found.exists.eq(self._exists),
                found.failed.eq(facts.member.exists & facts.member.drive.failed),
            ]
            m.next = "COPY"
            with m.If((self._page.kind == PageKind.DESCRIPTORS) & ~facts.volume.active):
                m.next = "REFUSE"
        with m.State("COPY"):
            with m.If(found.exists):
                m.d.sync += index.eq(index + 1)
            m.d.sync += missing.eq(missing + found.failed)
            with m.If(self._ends_array()):
                m.d.sync += missing.eq(0)
            m.next = "LOCATE"
            with m.If(found.emits & (skip != 0)):
                m.d.sync += skip.eq(skip - 1)
            with m.Elif(found.emits):
                m.d.sync += [
                    self._beat.eq(Cat(self._beat, found.value)[32:]),
                    word.eq(word + 1),
                ]
                with m.If(word[: bits_for_count(config.beat_dwords)] == config.beat_dwords - 1):
                    m.next = "WRITE"

    def _ends_array(self):
        """The word is the last one of an array's entry."""
        page = next(page for page in self._words.pages if PageKind.ARRAYS in page.kinds)
        within = self._index[: page.entry_shift]
        return (self._page.kind == PageKind.ARRAYS) & (within == page.entry_words - 1)

    def _write(self, m: Module) -> None:
        """The state WRITE: a beat goes into the line."""
        config, word = self._config, self._word
        beat_shift = bits_for_count(config.beat_dwords)
        place = ((word - 1) >> beat_shift)[: bits_for_count(config.beats)]
        m.d.comb += assign(
            self.line_write.payload,
            address=Cat(place, self._page.line),
            data=self._beat,
            mask=~0,
        )
        with m.State("WRITE"):
            m.d.comb += self.line_write.valid.eq(1)
            with m.If(self.line_write.ready):
                m.next = "LOCATE"
                with m.If(word == self._end):
                    m.next = "REPORT"
                with m.Elif(~self._found.exists):
                    # Nothing follows: whole beats of zeros.
                    m.d.sync += [self._beat.eq(0), word.eq(word + config.beat_dwords)]
                    m.next = "WRITE"

    def _report(self, m: Module) -> None:
        """The states REPORT and REFUSE: the line is there, or there is nothing to say."""
        fills_zeros = self._fills_zeros
        m.d.comb += self.zeroed.payload.eq(self._page.line)
        with m.State("REPORT"):
            m.d.comb += [
                self.log.hold.eq(0),
                self._reports.eq(1),
                self.response.valid.eq(~fills_zeros),
                self.response.payload.eq(1),
                self.zeroed.valid.eq(fills_zeros),
            ]
            with m.If(Mux(fills_zeros, self.zeroed.ready, self.response.ready)):
                m.next = "TAKE"
        with m.State("REFUSE"):
            m.d.comb += self.response.valid.eq(1)
            with m.If(self.response.ready):
                m.next = "TAKE"
