"""Builds the 4 KiB pages that Identify, Get Log Page and LIST return."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, SECTOR_BITS, Config, bits_for_count
from hdl.flow.geometry import WIDTH_BITS
from hdl.flow.line import line_stream, write_port
from hdl.flow.report import FINDINGS, REPORT_SHIFT, report_read
from hdl.flow.table_read import geometry_read, member_read, port_read, volume_read
from hdl.kit.table import TableRead
from hdl.nvme.admin.names import CHUNKS
from hdl.nvme.admin.tally import Tally
from hdl.nvme.commands.formats import formats
from hdl.nvme.pages.health import (
    ENTRY_WORDS,
    HOT_WORD,
    SMART_WORDS,
    STORED_WORDS,
    Counter,
    LogRead,
    kept_entries,
)
from hdl.nvme.pages.identify import IMAGE_WORDS, PAGE_WORDS, Identity, images
from hdl.nvme.pages.page_words import ARRAY_SHIFT, ENTRY_SHIFT, NUMBERS, WARNING_BITS, PageWords
from hdl.nvme.records import IMAGE_BITS, SKIP_BITS, PageKind, assign, page_request, zeros

SECTOR_WORDS_SHIFT = bits_for_count(PAGE_WORDS) - SECTOR_BITS
"""log2 of the 32-bit words of a sector."""

IMAGES = 5
"""Page kinds with an image in ROM."""


def capacity_read(config: Config) -> TableRead:
    """Reads the capacity of the drive at a port, in blocks."""
    return TableRead(config.port_bits, BLOCK_NUMBER_BITS)


class PageGenerator(wiring.Component):
    """Writes a page, word by word, from its image in ROM and from the tables.

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
    zero, zeroed
        Lines to fill with zeros, or some sectors of them, and that have been; pages go first.
    geometry_read, member_read, volume_read, port_read, drive_capacity_read
        Tables.
    drive_present, drive_failed, drive_stale
        A bit per drive port.
    array_states, array_unsynced, array_assumed
        A state for each array, 2 bits; whether it is not in sync, or assumed to be. Without
        `Config.background` the geometry says so.
    report_read, report_shows
        Array states, jobs and findings; a page of findings is being made, so none may come. Not
        there without `Config.background`.
    refresh, fresh
        ``refresh`` is held until ``fresh``: the counters of the SMART log are up to date.
    hold, held, showing, shown
        Both words of a counter are being read; a page is being made of the entries up to the one
        that was the newest when its request was taken: nothing of what is read may change.
    log_read, newest
        The SMART and error logs (`hdl.nvme.pages.health.Health`).
    warning, temperature
        Critical Warning and Composite Temperature of the SMART log.
    changed, detached
        A bit per volume: its namespace has changed, is not attached to the controller.
    formats, drive_emulated
        Of the volumes (`hdl.nvme.commands.formats`); a bit per drive port: it emulates 512-byte
        sectors (not there without `Config.sector_emulation`).
    named, chunk, digits, name
        Which volume, and which part of the identity, `hdl.nvme.admin.names.Names` is asked about;
        its answers one cycle later.
    probe, allocated
        Between requests: ``allocated`` follows ``probe`` by one cycle, the volume exists.

    One page at a time: 4 cycles for each word that has contents, and one for each beat.
    Back-pressure on ``line_write`` holds it.
    """

    def __init__(self, *, config: Config, identity: Identity):
        self._config = config
        self._identity = identity
        super().__init__(
            {
                "request": In(stream.Signature(page_request(config))),
                "response": Out(stream.Signature(1)),
                "zero": In(stream.Signature(zeros(config))),
                "zeroed": Out(line_stream(config)),
                "line_write": Out(write_port(config)),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "volume_read": Out(volume_read(config)),
                "port_read": Out(port_read(config)),
                "drive_capacity_read": Out(capacity_read(config)),
                "drive_present": In(config.ports),
                "drive_failed": In(MAX_DRIVES),
                "refresh": Out(1),
                "fresh": In(1),
                "hold": Out(1),
                "log_read": Out(LogRead(config)),
                "held": In(1),
                "showing": Out(1),
                "shown": Out(range(kept_entries(config))),
                "newest": In(range(kept_entries(config))),
                "warning": In(WARNING_BITS),
                "temperature": In(16),
                "changed": In(config.volumes),
                "detached": In(config.volumes),
                "probe": In(config.volume_bits),
                "allocated": Out(1),
                "drive_stale": In(MAX_DRIVES),
                "named": Out(config.volume_bits),
                "chunk": Out(range(CHUNKS)),
                "digits": In(32),
                "name": In(32).array(4),
                "array_states": In(2 * config.arrays),
                "array_unsynced": In(config.arrays),
                "array_assumed": In(config.arrays),
                "busy": Out(1),
            }
            | (
                {"report_read": Out(report_read()), "report_shows": Out(1)}
                if config.background
                else {}
            )
            | (
                {"formats": In(formats(config)), "drive_emulated": In(config.ports)}
                if config.sector_emulation
                else {}
            )
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.rom = rom = memory.Memory(
            shape=32, depth=IMAGES * IMAGE_WORDS, init=images(config, self._identity)
        )
        image = rom.read_port()

        page = Signal(page_request(config))
        # `index` counts what is looked at, `word` what has been written.
        index = Signal(range(PAGE_WORDS + 1))
        word = Signal(range(PAGE_WORDS + 1))
        beat = Signal(config.data_width)
        skip = Signal(SKIP_BITS)
        missing = Signal(WIDTH_BITS)
        found = Signal(data.StructLayout({"value": 32, "emits": 1, "exists": 1, "failed": 1}))

        # Entry of a list, one cycle after `index`; `exists` once false stays so, only zeros follow.
        start = page.nsid[:8]
        number = Signal(range(NUMBERS))
        exists = Signal()
        next_number = Signal.like(number)
        next_exists = Signal()
        m.d.sync += [number.eq(next_number), exists.eq(next_exists)]
        in_arrays = page.kind == PageKind.ARRAYS
        member = index[: bits_for_count(MAX_DRIVES)]
        with m.Switch(page.kind):
            with m.Case(PageKind.ARRAYS):
                m.d.comb += [
                    next_number.eq(start + (index >> ARRAY_SHIFT)),
                    next_exists.eq(next_number < config.arrays),
                ]
            with m.Case(PageKind.VOLUMES):
                m.d.comb += [
                    next_number.eq(start + (index >> ENTRY_SHIFT)),
                    next_exists.eq(next_number < config.volumes),
                ]
            with m.Case(PageKind.DRIVES):
                m.d.comb += [
                    next_number.eq(start + (index >> ENTRY_SHIFT)),
                    next_exists.eq(next_number < config.ports),
                ]
            with m.Case(
                PageKind.ACTIVE_NAMESPACES,
                PageKind.ALLOCATED_NAMESPACES,
                PageKind.CHANGED_NAMESPACES,
            ):
                m.d.comb += [next_number.eq(index), next_exists.eq(index < config.volumes)]
            with m.Case(PageKind.ZEROS):
                pass
            with m.Case(PageKind.ARRAY_STATES):
                m.d.comb += [
                    next_number.eq(index >> REPORT_SHIFT),
                    next_exists.eq(next_number < (config.arrays if config.background else 0)),
                ]
            with m.Case(PageKind.DEFECTS, PageKind.LOST_BLOCKS):
                m.d.comb += [
                    next_number.eq(index >> REPORT_SHIFT),
                    next_exists.eq(next_number < (FINDINGS if config.background else 0)),
                ]
            with m.Case(PageKind.ERROR):
                m.d.comb += next_exists.eq(index < ENTRY_WORDS * config.error_log_entries)
            with m.Case(PageKind.CONTROLLER):
                m.d.comb += [next_number.eq(index), next_exists.eq(index < IMAGE_WORDS)]
            with m.Default():
                m.d.comb += [next_number.eq(page.nsid - 1), next_exists.eq(index < IMAGE_WORDS)]
        with m.If(index == PAGE_WORDS):
            m.d.comb += next_exists.eq(0)
        entry_shift = bits_for_count(ENTRY_WORDS)
        idle, reports = Signal(), Signal()
        older = Signal.like(self.newest)
        # Words that counters begin and end with; the two of a counter are read as one.
        first_counter, last_counter = 4 * Counter.UNITS_READ.value, 4 * Counter.ERRORS.value + 3
        m.d.comb += [
            older.eq(self.shown - (index >> entry_shift)),
            image.addr.eq(
                Cat(index[: bits_for_count(IMAGE_WORDS)], page.kind.as_value()[:IMAGE_BITS])
            ),
            self.geometry_read.address.eq(number),
            self.volume_read.address.eq(Mux(idle, self.probe, number)),
            self.member_read.address.position.eq(member),
            self.member_read.address.array.eq(number),
            self.port_read.address.eq(number),
            self.drive_capacity_read.address.eq(number),
            self.zeroed.payload.eq(page.line),
            self.showing.eq((page.kind == PageKind.ERROR) & ~idle & ~reports),
            self.hold.eq(
                (page.kind == PageKind.SMART)
                & (index >= first_counter)
                & (index <= last_counter)
                & ~index[1]
            ),
        ]
        # Newest entry first; counters lie in the memory as in the page, but for the last one.
        with m.If(page.kind == PageKind.ERROR):
            stored = index[: bits_for_count(STORED_WORDS)]
            m.d.comb += self.log_read.address.eq(Cat(stored, older) + SMART_WORDS)
        with m.Elif(index == HOT_WORD):
            m.d.comb += self.log_read.address.eq(4 * Counter.HOT_MINUTES.value)
        with m.Else():
            m.d.comb += self.log_read.address.eq(index)

        m.submodules.words = words = PageWords(config=config)
        tally = Tally(config=config) if config.report_capacity else None
        volume = self.volume_read.data
        shape = self.geometry_read.data
        of_volumes = Signal()
        if tally is not None:
            m.submodules.tally = tally
            m.d.comb += [
                tally.of_volume.eq(of_volumes),
                tally.blocks.eq(Mux(of_volumes, volume.blocks, shape.blocks)),
                words.total.eq(tally.total),
                words.free.eq(tally.free),
            ]
        m.d.comb += [
            self.allocated.eq(volume.valid),
            words.kind.eq(page.kind),
            words.nsid.eq(page.nsid),
            words.index.eq(index),
            words.number.eq(number),
            words.exists.eq(exists),
            words.image.eq(image.data),
            words.log.eq(self.log_read.data),
            words.shape.eq(shape),
            words.member_port.eq(self.member_read.data),
            words.volume.eq(volume),
            words.port.eq(self.port_read.data),
            words.capacity.eq(self.drive_capacity_read.data),
            words.missing.eq(missing),
            words.drive_present.eq(self.drive_present),
            words.drive_failed.eq(self.drive_failed),
            words.drive_stale.eq(self.drive_stale),
            words.array_state.eq(self.array_states.word_select(number[: config.array_bits], 2)),
            words.array_unsynced.eq(
                self.array_unsynced.bit_select(number[: config.array_bits], 1)
            ),
            words.array_assumed.eq(self.array_assumed.bit_select(number[: config.array_bits], 1)),
            words.warning.eq(self.warning),
            words.temperature.eq(self.temperature),
            words.changed.eq(self.changed),
            words.detached.eq(self.detached),
            words.digits.eq(self.digits),
            self.chunk.eq(words.chunk),
            self.named.eq(number),
            *(word.eq(part) for word, part in zip(words.name, self.name, strict=True)),
        ]

        if config.background:
            report = self.report_read
            m.d.comb += [
                report.address.section.eq(page.kind.as_value()[:2]),
                report.address.number.eq(number),
                report.address.word.eq(index[:REPORT_SHIFT]),
                words.report.eq(report.data),
                self.report_shows.eq(
                    ((page.kind == PageKind.DEFECTS) | (page.kind == PageKind.LOST_BLOCKS))
                    & ~idle
                    & ~reports
                ),
            ]
        # Where the words of a page, or of the zeros of some sectors, end.
        end = Const(PAGE_WORDS)
        if config.sector_emulation:
            end = Signal(range(PAGE_WORDS + 1))
            m.d.comb += [
                words.formats.eq(self.formats),
                words.drive_emulated.eq(self.drive_emulated),
            ]

        with m.FSM(name="page") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(1)
                m.d.sync += [
                    page.eq(self.request.payload),
                    index.eq(0),
                    word.eq(0),
                    skip.eq(self.request.payload.skip),
                    of_volumes.eq(0),
                    missing.eq(0),
                    self.shown.eq(self.newest),
                ]
                m.d.comb += [
                    self.hold.eq(0),
                    idle.eq(1),
                    self.zero.ready.eq(~self.request.valid),
                ]
                with m.If(~self.request.valid):
                    m.d.sync += [
                        page.kind.eq(PageKind.ZEROS),
                        page.line.eq(self.zero.payload.line),
                        skip.eq(0),
                    ]
                    if config.sector_emulation:
                        span = self.zero.payload
                        m.d.sync += [
                            word.eq(span.first << SECTOR_WORDS_SHIFT),
                            end.eq((span.last + 1) << SECTOR_WORDS_SHIFT),
                        ]
                    with m.If(self.zero.valid):
                        m.next = "LOCATE"
                with m.Else():
                    if config.sector_emulation:
                        m.d.sync += end.eq(PAGE_WORDS)
                    m.next = "LOCATE"
                    with m.If(self.request.payload.kind == PageKind.SMART):
                        m.next = "REFRESH"
                    if tally is not None:
                        m.d.comb += tally.clear.eq(1)
                        with m.If(self.request.payload.kind == PageKind.CONTROLLER):
                            m.next = "WEIGH"

            # Capacity: what all arrays offer, without what volumes take.
            if tally is not None:
                with m.State("WEIGH"):
                    m.next = "FETCH"

                with m.State("FETCH"):
                    m.next = "TALLY"

                with m.State("TALLY"):
                    m.d.comb += tally.count.eq(Mux(of_volumes, volume.valid, shape.valid))
                    m.d.sync += index.eq(index + 1)
                    m.next = "WEIGH"
                    with m.If(index == Mux(of_volumes, config.volumes - 1, config.arrays - 1)):
                        m.d.sync += [index.eq(0), of_volumes.eq(1)]
                        with m.If(of_volumes):
                            m.next = "LOCATE"

            with m.State("REFRESH"):
                m.d.comb += [self.refresh.eq(1), self.hold.eq(0)]
                with m.If(self.fresh):
                    m.next = "LOCATE"

            with m.State("LOCATE"):
                with m.If(~self.hold | self.held):
                    m.next = "PRESENT"

            with m.State("PRESENT"):
                m.next = "DERIVE"

            with m.State("DERIVE"):
                m.d.sync += [
                    found.value.eq(words.value),
                    found.emits.eq(words.emits),
                    found.exists.eq(exists),
                    found.failed.eq(words.failed),
                ]
                m.next = "COPY"
                with m.If((page.kind == PageKind.DESCRIPTORS) & ~words.active):
                    m.next = "REFUSE"

            with m.State("COPY"):
                with m.If(found.exists):
                    m.d.sync += index.eq(index + 1)
                m.d.sync += missing.eq(missing + found.failed)
                with m.If(in_arrays & (index[:ARRAY_SHIFT] == (1 << ARRAY_SHIFT) - 1)):
                    m.d.sync += missing.eq(0)
                m.next = "LOCATE"
                with m.If(found.emits & (skip != 0)):
                    m.d.sync += skip.eq(skip - 1)
                with m.Elif(found.emits):
                    m.d.sync += [beat.eq(Cat(beat, found.value)[32:]), word.eq(word + 1)]
                    with m.If(word[: bits_for_count(config.beat_dwords)] == config.beat_dwords - 1):
                        m.next = "WRITE"

            with m.State("WRITE"):
                m.d.comb += self.line_write.valid.eq(1)
                with m.If(self.line_write.ready):
                    m.next = "LOCATE"
                    with m.If(word == end):
                        m.next = "REPORT"
                    with m.Elif(~found.exists):
                        # Nothing follows: whole beats of zeros.
                        m.d.sync += [beat.eq(0), word.eq(word + config.beat_dwords)]
                        m.next = "WRITE"

            with m.State("REPORT"):
                zeros = page.kind == PageKind.ZEROS
                m.d.comb += [
                    self.hold.eq(0),
                    reports.eq(1),
                    self.response.valid.eq(~zeros),
                    self.response.payload.eq(1),
                    self.zeroed.valid.eq(zeros),
                ]
                with m.If(Mux(zeros, self.zeroed.ready, self.response.ready)):
                    m.next = "TAKE"

            with m.State("REFUSE"):
                m.d.comb += self.response.valid.eq(1)
                with m.If(self.response.ready):
                    m.next = "TAKE"

            beat_shift = bits_for_count(config.beat_dwords)
            m.d.comb += assign(
                self.line_write.payload,
                address=Cat(((word - 1) >> beat_shift)[: bits_for_count(config.beats)], page.line),
                data=beat,
                mask=~0,
            )
            waits = (
                (fsm.ongoing("TAKE") & ~self.request.valid & ~self.zero.valid)
                | (self.zeroed.valid & ~self.zeroed.ready)
                | (self.refresh & ~self.fresh)
                | (fsm.ongoing("LOCATE") & self.hold & ~self.held)
                | (fsm.ongoing("WRITE") & ~self.line_write.ready)
                | (self.response.valid & ~self.response.ready)
            )
            m.d.comb += self.busy.eq(~waits)
        return m
