"""Gatherer: collects blocks by row, fetches the data of writes, and launches rows."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import LINE_USERS, TIME_BITS, Config
from hdl.flow.extent import extent
from hdl.flow.host_command import HostOpcode, Status
from hdl.flow.host_data import fetched, transfer
from hdl.flow.line import line_stream
from hdl.flow.reference import row_begin
from hdl.flow.row import RowKind, committed, row_state, strip_state
from hdl.flow.table_read import geometry_read
from hdl.flow.walk import MEND_TAG, walk
from hdl.kit.free_list import FreeList
from hdl.kit.pick import lowest_bit
from hdl.kit.queue import Queue
from hdl.kit.table import Table, TableRead, clear
from hdl.stripe.gather.fill import fill, flight
from hdl.stripe.gather.intake import Intake
from hdl.stripe.gather.open_rows import OpenRows
from hdl.stripe.gather.parking import Parking, parked
from hdl.stripe.gather.patience import Patience
from hdl.stripe.gather.row_index import RowIndex
from hdl.stripe.gather.row_tables import RowTables
from hdl.stripe.gather.stream_detector import StreamDetector


class AfterClose(enum.Enum, shape=1):
    """What follows the closing of a row."""

    REST = 0
    ADVANCE = 1


class Gather(wiring.Component):
    """Turns extents into rows and launches each row once, with all the blocks it could get.

    A row slot owns its row (without parity: its block) from the first block until ``retired``. A
    block of a WRITE extent joins its row unless the row is launched or the block is taken; then
    the rest of the extent parks until that row retires, and is tried again before any new extent
    (other extents pass it). A block that joins gets a line and a ``fetch``; a row launches when it
    is closed and all its blocks are ``fetched``. A row closes:

    - when all its data strips have joined, or its array has no parity;
    - when a command touches it with its last extent, unless the command continues an earlier one
      (`StreamDetector`): then the row stays open for what follows;
    - when another command needs a block it already has;
    - an idle time after the last of the array's rows that were on their way when its newest block
      joined (their completion would make the host send more) and after the newest block of the
      array's streams, and a limit after its first block at most (`Patience`);
    - oldest first when a block waits for a line or a row slot, and either no closed row is on its
      way to free some or open rows hold more than half.

    A block whose data cannot be fetched leaves its row and ends on ``fetch_failed``; the others go
    on. A block that is written in part (``head``, ``tail``) is alone in its row, which is launched
    to be filled with its old contents; when ``filled`` its sectors are fetched over these and the
    row is launched as any other. A READ extent takes a row slot of kind RECOVER for each block and
    launches at once, and so does a ``walk`` (with ``background``) as a row without blocks; extents
    go before it (`Intake`). A READ extent that is ``gathered`` joins rows like a write that
    continues an earlier one, but takes no lines, and never joins a row that is closed.

    ``row_read`` (address row slot) and ``strip_read`` (row slot * 32 + data strip) are what the
    sequencer reads of a launched row. ``available`` counts free lines. ``deadline`` is the
    next time at which a row closes by itself (all ones: none). ``takes`` and ``taken``, ``gives``
    and ``given`` pulse when a row slot is given to a row and when it is free again
    (`hdl.array.references`).

    About 16 cycles to join a block, 6 to note its data and 8 to retire a row: 22 a block in long
    commands, 28 in commands of one block, all included. ``retired`` and
    ``fetched`` are taken whatever ``fetch``, ``launch`` and ``allocate`` do; ``fetch_failed`` and
    ``free`` must be taken in the end.

    Parameters
    ----------
    config
        Sizes.
    idle_cycles, limit_cycles
        As for `hdl.stripe.gather.patience.Patience`.
    """

    def __init__(
        self,
        *,
        config: Config,
        idle_cycles: int | None = None,
        limit_cycles: int | None = None,
    ):
        self._config = config
        self._patience = Patience(
            config=config, idle_cycles=idle_cycles, limit_cycles=limit_cycles
        )
        slot = config.row_slot_bits
        super().__init__(
            {
                "extent": In(stream.Signature(extent(config))),
                "walk": In(stream.Signature(walk(config))),
                "allocate": In(line_stream(config)),
                "free": Out(line_stream(config)),
                "available": In(config.line_bits + 1),
                "fetch": Out(stream.Signature(transfer(config))),
                "fetched": In(stream.Signature(fetched(config))),
                "fetch_failed": Out(stream.Signature(committed(config))),
                "launch": Out(stream.Signature(slot)),
                "retired": In(stream.Signature(slot)),
                "row_read": In(TableRead(slot, row_state(config))),
                "strip_read": In(TableRead(slot + 5, strip_state(config))),
                "geometry_read": Out(geometry_read(config)),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "takes": Out(1),
                "taken": Out(row_begin(config)),
                "gives": Out(1),
                "given": Out(slot),
                "busy": Out(1),
                "filled": In(stream.Signature(slot)),
            }
        )

        # The extent of which one block after the other joins; its ``row``, ``index`` and
        # ``offset`` are those of the next block.
        self._item = Signal(parked(config))
        self._extent, self._sequential = self._item.extent, self._item.sequential
        self._walking = self._item.walk.any
        self._gathered = self._extent.gathered
        self._writes = self._extent.opcode == HostOpcode.WRITE
        self._partial = self._extent.head | (self._extent.tail & (self._extent.blocks == 0))
        self._holding = Signal()
        self._starved = Signal()  # its next block waits for a row slot

        # A row slot: its row, how full it is, one of its data strips.
        self._slot = Signal(slot)
        self._row = Signal(row_state(config))
        self._level = Signal(fill(config))
        self._strip = Signal(5)
        self._walks = self._row.walk.any
        self._after = Signal(AfterClose)

        self._event = Signal(fetched(config))
        self._closed_rows = Signal(slot + 1)  # that have not retired
        self._open_lines = Signal(config.line_bits + 1)  # of rows that are not closed

        self._intake = Intake(config=config)
        self._index = RowIndex(config=config)
        self._parking = Parking(config=config)
        self._open_rows = OpenRows(config=config)
        self._detector = StreamDetector(config=config)
        self._launches = Queue(slot, config.rows)
        self._unused = FreeList(count=config.rows)
        self._tables = RowTables(config=config)
        # The rows of each array that are on their way; of the array of the row slot at hand.
        self._flights = Table(flight(config), config.arrays)
        self._flight = self._flights.reads[0].data

    def elaborate(self, platform) -> Module:
        m = Module()
        self._add_parts(m)
        self._connect_parts(m)
        with m.If(self.fetch.valid & self.fetch.ready):
            m.d.sync += self.fetch.valid.eq(0)
        with m.FSM(name="gather") as fsm:
            self._clear(m)
            moves = self._rest(m)
            self._take_extent(m)
            self._find_row(m)
            self._try_row(m)
            self._insert(m)
            self._join(m)
            self._record(m)
            self._advance(m)
            self._close(m)
            self._note_fetched(m)
            if self._config.sector_emulation:
                self._refill(m)
            self._retire(m)
            self._look_at_open_rows(m)
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("REST")
            | moves
            | self._parking.busy
            | self._launches.busy
            | (self.fetch.valid & self.fetch.ready)
        )
        return m

    def _add_parts(self, m: Module) -> None:
        m.submodules.intake = self._intake
        m.submodules.index = self._index
        m.submodules.parking = self._parking
        m.submodules.open_rows = self._open_rows
        m.submodules.detector = self._detector
        m.submodules.launches = self._launches
        m.submodules.unused = self._unused
        m.submodules.tables = self._tables
        m.submodules.patience = self._patience
        m.submodules.flights = self._flights

    def _connect_parts(self, m: Module) -> None:
        """What the parts see: the extent, the row slot, and what the sequencer asks."""
        slot, row, level, item = self._slot, self._row, self._level, self._item
        tables, patience, open_rows = self._tables, self._patience, self._open_rows
        detector, parking, index = self._detector, self._parking, self._index
        connect(m, flipped(self.extent), self._intake.extent)
        connect(m, flipped(self.walk), self._intake.walk)
        m.d.comb += self.taken.mends.eq(self._walks & (row.walk.tag == MEND_TAG))
        connect(m, flipped(self.row_read), tables.row_read)
        connect(m, flipped(self.strip_read), tables.strip_read)
        connect(m, self._launches.output, flipped(self.launch))
        m.d.comb += [
            self.geometry_read.address.eq(item.extent.array),
            detector.extent.eq(item.extent),
            detector.geometry.eq(self.geometry_read.data),
            parking.slot.eq(slot),
            parking.extent.eq(item),
            open_rows.slot.eq(slot),
            tables.slot.eq(slot),
            tables.row.eq(row),
            tables.level.eq(level),
            tables.extent.eq(item.extent),
            tables.line.eq(self.allocate.payload),
            tables.arrived.eq(self._event.line),
            tables.strip.eq(self._strip),
            self._flights.reads[0].address.eq(row.array),
            self._flights.write.address.eq(row.array),
            self._flights.write.data.eq(self._flight),
            index.slot.eq(slot),
            index.key.array.eq(row.array),
            index.key.base.eq(row.base),
            index.key.shift.eq(row.shift),
            index.key.row.eq(row.row),
            self._launches.input.payload.eq(slot),
            self._unused.give.payload.eq(slot),
            self.takes.eq(index.insert),
            self.taken.slot.eq(slot),
            self.taken.array.eq(row.array),
            self.gives.eq(self._unused.give.valid),
            self.given.eq(slot),
            self.free.payload.eq(self._event.line),
            self.fetch_failed.payload.slot.eq(tables.found_strip.slot),
            self.fetch_failed.payload.status.eq(Status.DATA_TRANSFER_ERROR),
            patience.now.eq(self.now),
            patience.any.eq(open_rows.count != 0),
            patience.head.eq(open_rows.head),
            patience.tail.eq(open_rows.tail),
            patience.newer.eq(open_rows.newer),
            patience.slot.eq(slot),
            patience.level.eq(level),
            patience.flight.eq(self._flight),
            self.deadline.eq(patience.deadline),
        ]

    def _clear(self, m: Module) -> None:
        """The state CLEAR, after a reset: no array has rows on their way."""
        with m.State("CLEAR"):
            with m.If(clear(m, self._flights)):
                m.next = "REST"

    def _rest(self, m: Module):
        """The state REST: what can be done next, most urgent first; whether anything can."""
        config, slot = self._config, self._slot
        holding, writes = self._holding, self._writes
        index, parking, intake = self._index, self._parking, self._intake
        open_rows, patience = self._open_rows, self._patience
        # Lines on offer to somebody count as available, but cannot be had.
        short = self.available <= config.line_reserve + LINE_USERS
        wants_line = holding & writes & short
        many_lines = (self._closed_rows == 0) | (self._open_lines > config.lines // 2)
        many_rows = (self._closed_rows == 0) | (open_rows.count > config.rows // 2)
        has_line = self.allocate.valid & ~self.fetch.valid
        can_place = holding & ~self._starved & (~writes | has_line)
        can_retry = ~holding & parking.retry.valid
        can_begin = ~holding & intake.arrival.valid & parking.room & ~parking.busy
        can_refill = Const(0, 1)
        if config.sector_emulation:
            can_refill = self.filled.valid & ~self.fetch.valid
        squeezed = (open_rows.count != 0) & (
            (wants_line & many_lines) | (holding & self._starved & many_rows)
        )
        with m.State("REST"):
            with m.If(~index.ready):
                m.next = "REST"
            with m.Elif(self.retired.valid):
                m.d.comb += self.retired.ready.eq(1)
                m.d.sync += slot.eq(self.retired.payload)
                m.next = "READ-RETIRED"
            with m.Elif(self.fetched.valid):
                m.d.comb += self.fetched.ready.eq(1)
                m.d.sync += self._event.eq(self.fetched.payload)
                m.next = "READ-PLACE"
            if config.sector_emulation:
                with m.Elif(can_refill):
                    m.d.comb += self.filled.ready.eq(1)
                    m.d.sync += slot.eq(self.filled.payload)
                    m.next = "READ-FILLED"
            with m.Elif(can_place):
                self._begin_block(m)
                m.next = "LOOK-UP"
            with m.Elif(can_retry):
                m.d.comb += parking.retry.ready.eq(1)
                m.d.sync += [self._item.eq(parking.retry.payload), holding.eq(1)]
                m.next = "READ-GEOMETRY"
            with m.Elif(can_begin):
                m.d.comb += intake.arrival.ready.eq(1)
                m.d.sync += [self._item.eq(intake.arrival.payload), holding.eq(1)]
                m.next = "DETECT"
            with m.Elif(squeezed):
                m.d.sync += slot.eq(open_rows.head)
                m.next = "READ-OLDEST"
            with m.Elif(patience.calls):
                m.d.comb += patience.visit.eq(1)
                m.d.sync += slot.eq(patience.visiting)
                m.next = "READ-OPEN"
            with m.Elif(patience.idle):
                m.d.comb += patience.forget.eq(1)
        return Cat(
            *(self.retired.valid, self.fetched.valid, can_place, can_retry, can_begin),
            *(squeezed, patience.calls, patience.idle, ~index.ready, can_refill),
        ).any()

    def _begin_block(self, m: Module) -> None:
        """The row of the next block of the extent."""
        row, extent = self._row, self._extent
        m.d.sync += [
            row.eq(0),
            row.array.eq(extent.array),
            row.base.eq(extent.base),
            row.shift.eq(extent.shift),
            row.row.eq(extent.row),
            row.walk.eq(self._item.walk),
        ]

    def _take_extent(self, m: Module) -> None:
        """The states DETECT, of a new extent, and READ-GEOMETRY, of one that was parked, and those
        that follow, up to REST."""
        extent, geometry, detector = self._extent, self.geometry_read.data, self._detector
        writes, gathered, sequential = self._writes, self._gathered, self._sequential
        with m.State("DETECT"):
            m.next = "NOTE"
        with m.State("NOTE"):
            m.d.comb += detector.note.eq(writes)
            m.next = "KEEP-NOTE"
        with m.State("KEEP-NOTE"):
            m.d.sync += sequential.eq(Mux(writes, detector.sequential, gathered))
            with m.If(geometry.parities == 0):
                # Each strip is a row of its own: strip 0 of a stripe that begins at its place.
                m.d.sync += [
                    extent.shift.eq(extent.shift + extent.index * geometry.copies),
                    extent.index.eq(0),
                ]
            m.next = "REST"
        with m.State("READ-GEOMETRY"):
            m.next = "REST"

    def _find_row(self, m: Module) -> None:
        """The states from LOOK-UP, of the next block of the extent, up to TRY, of a row that has a
        row slot, or INSERT; or the extent is ``starved`` of row slots."""
        index, unused, tables, slot = self._index, self._unused, self._tables, self._slot
        with m.State("LOOK-UP"):
            m.d.comb += index.find.eq(1)
            m.next = "FIND"
        with m.State("FIND"):
            with m.If(index.done):
                m.next = "JUDGE"
        with m.State("JUDGE"):
            m.d.sync += slot.eq(unused.take.payload)
            with m.If(index.hit):
                m.d.sync += slot.eq(index.found)
                m.next = "READ-ROW"
            with m.Elif(unused.take.valid):
                m.d.comb += unused.take.ready.eq(1)
                m.next = "INSERT"
            with m.Else():
                m.d.sync += self._starved.eq(1)
                m.next = "REST"
        with m.State("READ-ROW"):
            m.next = "LOAD-ROW"
        with m.State("LOAD-ROW"):
            m.d.sync += [self._row.eq(tables.found_row), self._level.eq(tables.found_level)]
            m.next = "TRY"

    def _try_row(self, m: Module) -> None:
        """The state TRY: the block joins the row that it has found, or the extent is parked."""
        extent, row, level = self._extent, self._row, self._level
        with m.State("TRY"):
            fits = (row.shift == extent.shift) & ~row.joined.bit_select(extent.index, 1)
            is_write = row.kind == RowKind.WRITE
            with m.If(~self._partial & self._writes & is_write & ~level.launched & fits):
                m.next = "JOIN"
            with m.Elif(self._gathered & row.gathered & ~level.closed & fits):
                m.next = "JOIN"
            with m.Else():
                m.d.comb += self._parking.park.eq(1)
                m.d.sync += self._holding.eq(0)
                m.next = "REST"
                with m.If(~level.closed):
                    self._begin_close(m, then=AfterClose.REST)

    def _insert(self, m: Module) -> None:
        """The state INSERT: the row gets a row slot."""
        row, level = self._row, self._level
        with m.State("INSERT"):
            m.d.sync += Assert(self.geometry_read.data.valid, "a row of no array gets a row slot")
            m.d.comb += [self._index.insert.eq(1), self._parking.clear.eq(1)]
            m.d.sync += [level.eq(0), level.first.eq(self.now)]
            m.next = "JOIN"
            with m.If(self._walking):
                m.d.sync += row.more.eq(self._extent.last)
                self._begin_close(m, then=AfterClose.ADVANCE)

    def _join(self, m: Module) -> None:
        """The state JOIN: the block joins the row. One that is read and not gathered closes it, and
        so does one that is written in part."""
        extent, row, level = self._extent, self._row, self._level
        writes, gathered = self._writes, self._gathered
        flight = self._flight
        with m.State("JOIN"):
            m.d.comb += self._tables.write_strip.eq(1)
            m.d.sync += [
                row.joined.eq(row.joined | (1 << extent.index)),
                row.fua.eq(row.fua | extent.fua),
                row.more.eq(row.more | ((writes | gathered) & (extent.blocks != 0))),
                level.settled.eq(0),
                level.awaited.eq(flight.retired + flight.flying),
                level.count.eq(level.count + 1),
            ]
            with m.If(writes):
                self._fetch_block(m)
                m.next = "RECORD"
            with m.Else():
                m.d.sync += row.kind.eq(RowKind.RECOVER)
                self._begin_close(m, then=AfterClose.ADVANCE)
                m.d.sync += row.gathered.eq(gathered)
                with m.If(gathered):
                    m.next = "RECORD"
            with m.If(writes & self._partial):
                m.d.sync += [
                    row.kind.eq(RowKind.RECOVER),
                    row.fills.eq(1),
                    level.missing.eq(0),
                    self.fetch.valid.eq(0),
                    self._open_lines.eq(self._open_lines),
                ]
                self._begin_close(m, then=AfterClose.ADVANCE)

    def _fetch_block(self, m: Module) -> None:
        """The block that joins gets a line, and its data is fetched."""
        extent, level = self._extent, self._level
        m.d.comb += [self.allocate.ready.eq(1), self._tables.write_place.eq(1)]
        m.d.sync += [
            level.missing.eq(level.missing + 1),
            self.fetch.valid.eq(1),
            self.fetch.payload.slot.eq(extent.slot),
            self.fetch.payload.offset.eq(extent.offset),
            self.fetch.payload.line.eq(self.allocate.payload),
        ]
        with m.If(~level.closed):
            m.d.sync += self._open_lines.eq(self._open_lines + 1)

    def _record(self, m: Module) -> None:
        """The state RECORD: the row with its new block is stored. It closes if it is complete."""
        extent, level, geometry = self._extent, self._level, self.geometry_read.data
        tables, flight_write = self._tables, self._flights.write
        with m.State("RECORD"):
            enough = (level.count == geometry.data) | (geometry.parities == 0)
            complete = extent.final & ~self._sequential
            m.d.comb += [
                tables.write_row.eq(1),
                flight_write.data.latest.eq(self.now),
                flight_write.enable.eq(self._sequential),
            ]
            with m.If(level.closed):
                m.d.comb += tables.write_level.eq(1)
                m.next = "ADVANCE"
            with m.Elif(enough | complete):
                self._begin_close(m, then=AfterClose.ADVANCE)
            with m.Else():
                m.d.comb += tables.write_level.eq(1)
                m.next = "ADVANCE"
                with m.If(~level.listed):
                    m.d.comb += [
                        self._open_rows.append.eq(1),
                        self._patience.appended.eq(1),
                        tables.level.listed.eq(1),
                    ]

    def _advance(self, m: Module) -> None:
        """The state ADVANCE, to the next block of the extent."""
        extent = self._extent
        with m.State("ADVANCE"):
            m.d.sync += [
                extent.row.eq(extent.row + 1),
                extent.offset.eq(extent.offset + 1),
                extent.blocks.eq(extent.blocks - 1),
                extent.head.eq(0),
                self._holding.eq(extent.blocks != 0),
            ]
            m.next = "REST"

    def _begin_close(self, m: Module, *, then: AfterClose) -> None:
        """Ends a state: ``row`` and ``level`` are loaded, and get no more partners."""
        m.d.sync += self._after.eq(then)
        m.next = "CLOSE"

    def _close(self, m: Module) -> None:
        """The state CLOSE, of a row that gets no more partners, and those that follow: it is
        launched if its data is there. ``row`` and ``level`` are loaded; ``slot`` has held for a
        cycle."""
        row, level, walks, after = self._row, self._level, self._walks, self._after
        tables, open_rows, patience = self._tables, self._open_rows, self._patience
        launches, flight_write = self._launches, self._flights.write
        closed_rows, open_lines = self._closed_rows, self._open_lines
        with m.State("CLOSE"):
            m.d.comb += tables.write_row.eq(1)
            m.d.sync += [level.closed.eq(1), level.listed.eq(0)]
            with m.If(row.kind == RowKind.WRITE):
                m.d.sync += open_lines.eq(open_lines - level.count)
            with m.If(level.listed):
                m.d.comb += [open_rows.remove.eq(1), patience.removed.eq(1)]
            m.d.sync += closed_rows.eq(closed_rows + 1)
            m.next = "COUNT"
        with m.State("COUNT"):
            m.d.comb += [
                flight_write.data.flying.eq(self._flight.flying + 1),
                flight_write.enable.eq(~walks),
            ]
            m.next = "LAUNCH"
        with m.State("LAUNCH"):
            m.d.comb += tables.write_level.eq(1)
            m.next = "REST"
            with m.If(after == AfterClose.ADVANCE):
                m.next = "ADVANCE"
            with m.If((level.missing == 0) & (row.joined.any() | walks)):
                m.d.comb += [tables.level.launched.eq(1), launches.input.valid.eq(1)]
            with m.Elif(level.missing == 0):
                m.next = "REMOVE"

    def _note_fetched(self, m: Module) -> None:
        """The state READ-PLACE, of a block that has been fetched, and those that follow: its row is
        launched if it waited for that block only."""
        slot, row, level, strip = self._slot, self._row, self._level, self._strip
        after, event, tables, open_lines = self._after, self._event, self._tables, self._open_lines
        with m.State("READ-PLACE"):
            m.next = "LOAD-PLACE"
        with m.State("LOAD-PLACE"):
            m.d.sync += [slot.eq(tables.place.slot), strip.eq(tables.place.index)]
            m.next = "READ-ARRIVED"
        with m.State("READ-ARRIVED"):
            m.next = "LOAD-ARRIVED"
        with m.State("LOAD-ARRIVED"):
            m.d.sync += [
                row.eq(tables.found_row),
                level.eq(tables.found_level),
                level.missing.eq(tables.found_level.missing - 1),
                after.eq(AfterClose.REST),
            ]
            m.next = "ARRIVE"
            with m.If(event.error):
                m.next = "DROP"
        with m.State("ARRIVE"):
            m.d.comb += tables.write_level.eq(1)
            m.next = "REST"
            with m.If(level.closed & (level.missing == 0)):
                m.next = "LAUNCH"
        with m.State("DROP"):
            m.d.comb += self.free.valid.eq(1)
            with m.If(self.free.ready):
                m.d.sync += [
                    row.joined.eq(row.joined & ~(1 << strip)),
                    level.count.eq(level.count - 1),
                ]
                with m.If(~level.closed):
                    m.d.sync += open_lines.eq(open_lines - 1)
                m.next = "REPORT"
        with m.State("REPORT"):
            m.d.comb += self.fetch_failed.valid.eq(1)
            with m.If(self.fetch_failed.ready):
                m.d.comb += tables.write_row.eq(1)
                m.next = "ARRIVE"

    def _refill(self, m: Module) -> None:
        """The state READ-FILLED, of a row whose only block is written in part and has its old
        contents now, and those that follow, up to the fetch of its sectors."""
        config, row, level, strip = self._config, self._row, self._level, self._strip
        tables = self._tables
        only = lowest_bit(m, row.joined[: config.ports], "only")

        with m.State("READ-FILLED"):
            m.next = "LOAD-FILLED"
        with m.State("LOAD-FILLED"):
            m.d.sync += [
                row.eq(tables.found_row),
                row.kind.eq(RowKind.WRITE),
                row.fills.eq(0),
                level.eq(tables.found_level),
                level.missing.eq(1),
            ]
            m.next = "FIND-FILLED"
        with m.State("FIND-FILLED"):
            m.d.comb += tables.write_row.eq(1)
            m.d.sync += strip.eq(only)
            m.next = "READ-OLD"
        with m.State("READ-OLD"):
            m.next = "REFILL"
        with m.State("REFILL"):
            m.d.sync += [
                self.fetch.valid.eq(1),
                self.fetch.payload.slot.eq(tables.found_strip.slot),
                self.fetch.payload.offset.eq(tables.found_strip.offset),
                self.fetch.payload.line.eq(tables.found_strip.line),
            ]
            m.next = "ARRIVE"

    def _retire(self, m: Module) -> None:
        """The states READ-RETIRED, of a row that has retired, and REMOVE, of one that has nothing
        left, and those that follow: its row slot is unused. What is parked behind it may be tried
        again, and so may what is starved of row slots."""
        starved, row, walks, tables = self._starved, self._row, self._walks, self._tables
        index, unused, parking, patience = self._index, self._unused, self._parking, self._patience
        flight_write = self._flights.write
        closed_rows = self._closed_rows
        with m.State("READ-RETIRED"):
            m.next = "LOAD-RETIRED"
        with m.State("LOAD-RETIRED"):
            m.d.sync += row.eq(tables.found_row)
            m.next = "REMOVE"
        with m.State("REMOVE"):
            m.d.comb += [index.remove.eq(1), parking.release.eq(1)]
            m.d.sync += [closed_rows.eq(closed_rows - 1), starved.eq(0)]
            m.next = "UNCOUNT"
        with m.State("UNCOUNT"):
            with m.If(index.done):
                m.d.comb += [
                    flight_write.data.flying.eq(self._flight.flying - 1),
                    flight_write.data.retired.eq(self._flight.retired + 1),
                    flight_write.enable.eq(~walks),
                    unused.give.valid.eq(1),
                    patience.retired.eq(1),
                ]
                m.next = "REST"

    def _look_at_open_rows(self, m: Module) -> None:
        """The states READ-OLDEST, of the oldest open row, which gives way, and READ-OPEN, of one
        that `Patience` weighs, and those that follow: it is closed or left open."""
        row, level, tables, patience = self._row, self._level, self._tables, self._patience
        with m.State("READ-OLDEST"):
            m.next = "LOAD-OLDEST"
        with m.State("LOAD-OLDEST"):
            m.d.sync += [row.eq(tables.found_row), level.eq(tables.found_level)]
            self._begin_close(m, then=AfterClose.REST)

        # One step of the walk over open rows.
        with m.State("READ-OPEN"):
            m.next = "LOAD-OPEN"
        with m.State("LOAD-OPEN"):
            m.d.comb += self._flights.reads[0].address.eq(tables.found_row.array)
            m.d.sync += [row.eq(tables.found_row), level.eq(tables.found_level)]
            m.next = "WEIGH"
        with m.State("WEIGH"):
            m.d.comb += patience.weigh.eq(1)
            m.next = "EXPECT"
        with m.State("EXPECT"):
            m.d.comb += patience.expect.eq(1)
            m.next = "WATCH"
        with m.State("WATCH"):
            m.d.comb += patience.watch.eq(1)
            with m.If(patience.due):
                self._begin_close(m, then=AfterClose.REST)
            with m.Else():
                m.d.comb += [
                    tables.write_level.eq(patience.settles),
                    tables.level.settled.eq(1),
                    tables.level.since.eq(patience.weighed),
                ]
                m.next = "REST"
