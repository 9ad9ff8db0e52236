"""Gatherer: collects blocks by row, fetches the data of writes, and launches rows."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.interface import TableRead, extent, geometry_read
from hdl.background.interface import walk
from hdl.config import LINE_USERS, TIME_BITS, Config
from hdl.memory.free_list import FreeList
from hdl.memory.interface import line_stream
from hdl.nvme.interface import HostOpcode, Status, fetched, transfer
from hdl.stripe.fill import fill, flight
from hdl.stripe.intake import Intake
from hdl.stripe.interface import RowKind, committed, row_state, strip_state
from hdl.stripe.open_rows import OpenRows
from hdl.stripe.parking import Parking, parked
from hdl.stripe.patience import Patience
from hdl.stripe.program import lowest_bit
from hdl.stripe.row_index import RowIndex
from hdl.stripe.row_tables import RowTables
from hdl.stripe.stream_detector import StreamDetector


class After(enum.Enum, shape=1):
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
    next time at which a row closes by itself (all ones: none).

    About 16 cycles to join a block, 6 to note its data and 8 to retire a row: 22 a block in long
    commands, 28 in commands of one block, all included. ``retired`` and
    ``fetched`` are taken whatever ``fetch``, ``launch`` and ``allocate`` do; ``fetch_failed`` and
    ``free`` must be taken in the end.

    Parameters
    ----------
    config
        Sizes.
    idle_cycles, limit_cycles
        As for `hdl.stripe.patience.Patience`.
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
        background = {"walk": In(stream.Signature(walk(config)))} if config.background else {}
        super().__init__(
            {
                **background,
                "extent": In(stream.Signature(extent(config))),
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
                "busy": Out(1),
            }
            | ({"filled": In(stream.Signature(slot))} if config.sector_emulation else {})
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        slot_bits = config.row_slot_bits
        m.submodules.intake = intake = Intake(config=config)
        connect(m, flipped(self.extent), intake.extent)
        if config.background:
            connect(m, flipped(self.walk), intake.walk)
        m.submodules.index = index = RowIndex(config=config)
        m.submodules.parking = parking = Parking(config=config)
        m.submodules.open_rows = open_rows = OpenRows(config=config)
        m.submodules.detector = detector = StreamDetector(config=config)
        m.submodules.launches = launches = SyncFIFOBuffered(width=slot_bits, depth=config.rows)
        m.submodules.unused = unused = FreeList(count=config.rows)

        m.submodules.tables = tables = RowTables(config=config)
        m.submodules.patience = patience = self._patience
        connect(m, flipped(self.row_read), tables.row_read)
        connect(m, flipped(self.strip_read), tables.strip_read)
        m.submodules.flights = flights = Memory(
            shape=flight(config), depth=config.arrays, init=[]
        )
        flight_read, flight_write = flights.read_port(), flights.write_port()

        # The extent in hand, of which one block after the other joins.
        item = Signal(parked(config))
        hand, sequential = item.extent, item.sequential
        walking = item.walk.any if config.background else Const(0)
        holding = Signal()
        writes = hand.opcode == HostOpcode.WRITE
        gathered = hand.gathered if config.gather_reads else Const(0, 1)
        geometry = self.geometry_read.data

        # The row slot in hand and what is known of it.
        slot = Signal(slot_bits)
        row = Signal(row_state(config))
        level = Signal(fill(config))
        strip = Signal(5)
        event = Signal(fetched(config))
        closed_rows = Signal(slot_bits + 1)
        open_lines = Signal(config.line_bits + 1)
        starved = Signal()
        after = Signal(After)
        walks = row.walk.any if config.background else Const(0)
        m.d.comb += [
            self.geometry_read.address.eq(hand.array),
            detector.extent.eq(hand),
            detector.geometry.eq(geometry),
            parking.slot.eq(slot),
            parking.extent.eq(item),
            open_rows.slot.eq(slot),
            tables.slot.eq(slot),
            tables.row.eq(row),
            tables.level.eq(level),
            tables.hand.eq(hand),
            tables.line.eq(self.allocate.payload),
            tables.arrived.eq(event.line),
            tables.strip.eq(strip),
            flight_read.addr.eq(row.array),
            flight_write.addr.eq(row.array),
            flight_write.data.eq(flight_read.data),
            index.slot.eq(slot),
            index.key.array.eq(row.array),
            index.key.base.eq(row.base),
            index.key.shift.eq(row.shift),
            index.key.row.eq(row.row),
            launches.w_data.eq(slot),
            unused.give.payload.eq(slot),
            self.launch.valid.eq(launches.r_rdy),
            self.launch.payload.eq(launches.r_data),
            launches.r_en.eq(self.launch.ready),
            self.free.payload.eq(event.line),
            self.fetch_failed.payload.slot.eq(tables.found_strip.slot),
            self.fetch_failed.payload.status.eq(Status.DATA_TRANSFER_ERROR),
        ]
        with m.If(self.fetch.valid & self.fetch.ready):
            m.d.sync += self.fetch.valid.eq(0)

        m.d.comb += [
            patience.now.eq(self.now),
            patience.any.eq(open_rows.count != 0),
            patience.head.eq(open_rows.head),
            patience.tail.eq(open_rows.tail),
            patience.newer.eq(open_rows.newer),
            patience.slot.eq(slot),
            patience.level.eq(level),
            patience.flight.eq(flight_read.data),
            self.deadline.eq(patience.deadline),
        ]

        # What can be done next, most urgent first.
        # Lines on offer to somebody count as available, but cannot be had.
        short = self.available <= config.line_reserve + LINE_USERS
        wants_line = holding & writes & short
        many_lines = (closed_rows == 0) | (open_lines > config.lines // 2)
        many_rows = (closed_rows == 0) | (open_rows.count > config.rows // 2)
        can_place = holding & ~starved & (~writes | (self.allocate.valid & ~self.fetch.valid))
        can_retry = ~holding & parking.retry.valid
        can_begin = ~holding & intake.arrival.valid & parking.room & ~parking.busy
        partial, can_refill = Const(0, 1), Const(0, 1)
        if config.sector_emulation:
            partial = hand.head | (hand.tail & (hand.blocks == 0))
            can_refill = self.filled.valid & ~self.fetch.valid
        squeezed = (open_rows.count != 0) & (
            (wants_line & many_lines) | (holding & starved & many_rows)
        )
        def close(*, then: After) -> None:
            m.d.sync += after.eq(then)
            m.next = "CLOSE"

        sweep = Signal(config.array_bits)
        with m.FSM(name="gather") as fsm:
            with m.State("CLEAR"):
                m.d.comb += [
                    flight_write.addr.eq(sweep),
                    flight_write.data.eq(0),
                    flight_write.en.eq(1),
                ]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == config.arrays - 1):
                    m.next = "REST"
            with m.State("REST"):
                with m.If(~index.ready):
                    m.next = "REST"
                with m.Elif(self.retired.valid):
                    m.d.comb += self.retired.ready.eq(1)
                    m.d.sync += slot.eq(self.retired.payload)
                    m.next = "READ-RETIRED"
                with m.Elif(self.fetched.valid):
                    m.d.comb += self.fetched.ready.eq(1)
                    m.d.sync += event.eq(self.fetched.payload)
                    m.next = "READ-PLACE"
                if config.sector_emulation:
                    with m.Elif(can_refill):
                        m.d.comb += self.filled.ready.eq(1)
                        m.d.sync += slot.eq(self.filled.payload)
                        m.next = "READ-FILLED"
                with m.Elif(can_place):
                    m.d.sync += [
                        row.eq(0),
                        row.array.eq(hand.array),
                        row.base.eq(hand.base),
                        row.shift.eq(hand.shift),
                        row.row.eq(hand.row),
                    ]
                    if config.background:
                        m.d.sync += row.walk.eq(item.walk)
                    m.next = "LOOK-UP"
                with m.Elif(can_retry):
                    m.d.comb += parking.retry.ready.eq(1)
                    m.d.sync += [item.eq(parking.retry.payload), holding.eq(1)]
                    m.next = "READ-GEOMETRY"
                with m.Elif(can_begin):
                    m.d.comb += intake.arrival.ready.eq(1)
                    m.d.sync += [item.eq(intake.arrival.payload), holding.eq(1)]
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

            # A new extent.
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
                        hand.shift.eq(hand.shift + hand.index * geometry.copies),
                        hand.index.eq(0),
                    ]
                m.next = "REST"
            with m.State("READ-GEOMETRY"):
                m.next = "REST"

            # The next block of the extent in hand.
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
                    m.d.sync += starved.eq(1)
                    m.next = "REST"
            with m.State("READ-ROW"):
                m.next = "LOAD-ROW"
            with m.State("LOAD-ROW"):
                m.d.sync += [row.eq(tables.found_row), level.eq(tables.found_level)]
                m.next = "TRY"
            with m.State("TRY"):
                fits = (row.shift == hand.shift) & ~row.joined.bit_select(hand.index, 1)
                with m.If(~partial & writes & (row.kind == RowKind.WRITE) & ~level.launched & fits):
                    m.next = "JOIN"
                if config.gather_reads:
                    with m.Elif(gathered & row.gathered & ~level.closed & fits):
                        m.next = "JOIN"
                with m.Else():
                    m.d.comb += parking.park.eq(1)
                    m.d.sync += holding.eq(0)
                    m.next = "REST"
                    with m.If(~level.closed):
                        close(then=After.REST)
            with m.State("INSERT"):
                m.d.comb += [index.insert.eq(1), parking.clear.eq(1)]
                m.d.sync += [level.eq(0), level.first.eq(self.now)]
                m.next = "JOIN"
                with m.If(walking):
                    m.d.sync += row.more.eq(hand.last)
                    close(then=After.ADVANCE)
            with m.State("JOIN"):
                m.d.comb += tables.write_strip.eq(1)
                m.d.sync += [
                    row.joined.eq(row.joined | (1 << hand.index)),
                    row.fua.eq(row.fua | hand.fua),
                    row.more.eq(row.more | ((writes | gathered) & (hand.blocks != 0))),
                    level.settled.eq(0),
                    level.awaited.eq(flight_read.data.retired + flight_read.data.flying),
                    level.count.eq(level.count + 1),
                ]
                with m.If(writes):
                    m.d.comb += [self.allocate.ready.eq(1), tables.write_place.eq(1)]
                    m.d.sync += [
                        level.missing.eq(level.missing + 1),
                        self.fetch.valid.eq(1),
                        self.fetch.payload.slot.eq(hand.slot),
                        self.fetch.payload.offset.eq(hand.offset),
                        self.fetch.payload.line.eq(self.allocate.payload),
                    ]
                    with m.If(~level.closed):
                        m.d.sync += open_lines.eq(open_lines + 1)
                    m.next = "RECORD"
                with m.Else():
                    m.d.sync += row.kind.eq(RowKind.RECOVER)
                    close(then=After.ADVANCE)
                    if config.gather_reads:
                        m.d.sync += row.gathered.eq(gathered)
                        with m.If(gathered):
                            m.next = "RECORD"
                if config.sector_emulation:
                    with m.If(writes & partial):
                        m.d.sync += [
                            row.kind.eq(RowKind.RECOVER),
                            row.fills.eq(1),
                            level.missing.eq(0),
                            self.fetch.valid.eq(0),
                            open_lines.eq(open_lines),
                        ]
                        close(then=After.ADVANCE)
            with m.State("RECORD"):
                enough = (level.count == geometry.data) | (geometry.parities == 0)
                complete = hand.final & ~sequential
                m.d.comb += [
                    tables.write_row.eq(1),
                    flight_write.data.latest.eq(self.now),
                    flight_write.en.eq(sequential),
                ]
                with m.If(level.closed):
                    m.d.comb += tables.write_level.eq(1)
                    m.next = "ADVANCE"
                with m.Elif(enough | complete):
                    close(then=After.ADVANCE)
                with m.Else():
                    m.d.comb += tables.write_level.eq(1)
                    m.next = "ADVANCE"
                    with m.If(~level.listed):
                        m.d.comb += [
                            open_rows.append.eq(1),
                            patience.appended.eq(1),
                            tables.level.listed.eq(1),
                        ]
            with m.State("ADVANCE"):
                m.d.sync += [
                    hand.row.eq(hand.row + 1),
                    hand.offset.eq(hand.offset + 1),
                    hand.blocks.eq(hand.blocks - 1),
                    holding.eq(hand.blocks != 0),
                ]
                if config.sector_emulation:
                    m.d.sync += hand.head.eq(0)
                m.next = "REST"

            # `row` and `level` are loaded, and `slot` has held for a cycle: no more partners.
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
                    flight_write.data.flying.eq(flight_read.data.flying + 1),
                    flight_write.en.eq(~walks),
                ]
                m.next = "LAUNCH"
            with m.State("LAUNCH"):
                m.d.comb += tables.write_level.eq(1)
                m.next = "REST"
                with m.If(after == After.ADVANCE):
                    m.next = "ADVANCE"
                with m.If((level.missing == 0) & (row.joined.any() | walks)):
                    m.d.comb += [tables.level.launched.eq(1), launches.w_en.eq(1)]
                with m.Elif(level.missing == 0):
                    m.next = "REMOVE"

            # A block has been fetched.
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
                    after.eq(After.REST),
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

            # The line of a block that is written in part has its old contents.
            if config.sector_emulation:
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

            # A row has retired, or has nothing left.
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
                        flight_write.data.flying.eq(flight_read.data.flying - 1),
                        flight_write.data.retired.eq(flight_read.data.retired + 1),
                        flight_write.en.eq(~walks),
                        unused.give.valid.eq(1),
                        patience.retired.eq(1),
                    ]
                    m.next = "REST"

            # The oldest open row gives way.
            with m.State("READ-OLDEST"):
                m.next = "LOAD-OLDEST"
            with m.State("LOAD-OLDEST"):
                m.d.sync += [row.eq(tables.found_row), level.eq(tables.found_level)]
                close(then=After.REST)

            # One step of the walk over open rows.
            with m.State("READ-OPEN"):
                m.next = "LOAD-OPEN"
            with m.State("LOAD-OPEN"):
                m.d.comb += flight_read.addr.eq(tables.found_row.array)
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
                    close(then=After.REST)
                with m.Else():
                    m.d.comb += [
                        tables.write_level.eq(patience.settles),
                        tables.level.settled.eq(1),
                        tables.level.since.eq(patience.weighed),
                    ]
                    m.next = "REST"

        moves = (
            *(self.retired.valid, self.fetched.valid, can_place, can_retry, can_begin),
            *(squeezed, patience.calls, patience.idle, ~index.ready, can_refill),
        )
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("REST")
            | Cat(moves).any()
            | parking.busy
            | ((launches.level != 0) & (~launches.r_rdy | self.launch.ready))
            | (self.fetch.valid & self.fetch.ready)
        )
        return m
