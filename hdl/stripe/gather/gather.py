"""Gatherer: collects blocks by row, fetches the data of writes, and launches rows."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import LINE_USERS, TIME_BITS, Config
from hdl.flow.extent import extent
from hdl.flow.host_command import HostOpcode, Status
from hdl.flow.host_data import fetched, transfer
from hdl.flow.line import line_stream
from hdl.flow.reference import row_begin
from hdl.flow.row import committed, row_state, strip_state
from hdl.flow.table_read import TableRead, geometry_read
from hdl.flow.walk import MEND_TAG, walk
from hdl.kit.free_list import FreeList
from hdl.stripe.gather.fill import fill, flight
from hdl.stripe.gather.gather_close import close_states, open_row_states
from hdl.stripe.gather.gather_fetch import fetched_states, filled_states
from hdl.stripe.gather.gather_hand import After, ExtentInHand, RowInHand
from hdl.stripe.gather.gather_join import extent_states, join_states
from hdl.stripe.gather.gather_retire import retire_states
from hdl.stripe.gather.intake import Intake
from hdl.stripe.gather.open_rows import OpenRows
from hdl.stripe.gather.parking import Parking, parked
from hdl.stripe.gather.patience import Patience
from hdl.stripe.gather.row_index import RowIndex
from hdl.stripe.gather.row_tables import RowTables
from hdl.stripe.gather.stream_detector import StreamDetector


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
                "takes": Out(1),
                "taken": Out(row_begin(config)),
                "gives": Out(1),
                "given": Out(slot),
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
        if config.background:
            m.d.comb += self.taken.mends.eq(walks & (row.walk.tag == MEND_TAG))
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
            self.takes.eq(index.insert),
            self.taken.slot.eq(slot),
            self.taken.array.eq(row.array),
            self.gives.eq(unused.give.valid),
            self.given.eq(slot),
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

        extent = ExtentInHand(
            hand=hand,
            holding=holding,
            writes=writes,
            gathered=gathered,
            walking=walking,
            sequential=sequential,
            partial=partial,
            geometry=geometry,
        )
        in_hand = RowInHand(
            config=config,
            slot=slot,
            row=row,
            level=level,
            walks=walks,
            strip=strip,
            after=after,
            tables=tables,
            flight_read=flight_read,
            flight_write=flight_write,
            open_rows=open_rows,
            patience=patience,
            closed_rows=closed_rows,
            open_lines=open_lines,
        )

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

            extent_states(m, extent, detector=detector)
            join_states(
                m,
                in_hand,
                extent,
                ports=self,
                index=index,
                unused=unused,
                parking=parking,
                starved=starved,
            )
            close_states(m, in_hand, launches=launches)
            fetched_states(m, in_hand, ports=self, event=event)
            if config.sector_emulation:
                filled_states(m, in_hand, ports=self)
            retire_states(
                m, in_hand, index=index, unused=unused, parking=parking, starved=starved
            )
            open_row_states(m, in_hand)

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
