"""Gatherer: collects written blocks by row, fetches their data, and launches rows."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.array.interface import TableRead, extent, geometry_read
from hdl.config import LINE_USERS, TIME_BITS, Config
from hdl.memory.interface import line_stream
from hdl.nvme.interface import HostOpcode, Status, fetched, transfer
from hdl.stripe.interface import RowKind, committed, row_state, strip_state
from hdl.stripe.open_rows import OpenRows
from hdl.stripe.parking import Parking
from hdl.stripe.row_index import RowIndex
from hdl.stripe.stream_detector import StreamDetector

IDLE_NS = 10_000
"""How long a row waits for partners once nothing that could bring them is on its way.

A host answers a completion with the next write after an interrupt, a doorbell and two reads of its
memory: 2 us in simulation, a few more with an operating system.
"""

LIMIT_NS = 20_000_000
"""How long a row waits for partners at most, from its first block."""

NEVER = (1 << TIME_BITS) - 1


def cycles_of(config: Config, nanoseconds: int) -> int:
    """Clock cycles, at least one."""
    return max(1, nanoseconds * config.clock_hz // 1_000_000_000)


class After(enum.Enum, shape=1):
    """What follows the closing of a row."""

    REST = 0
    ADVANCE = 1


def fill(config: Config) -> data.StructLayout:
    """How full a row slot is.

    ``count``: blocks joined; ``missing``: those not fetched yet. ``listed``: among the open rows.
    ``closed``: waits for no partner. ``launched``: the sequencer has it. ``first``: when its first
    block joined. ``awaited``: the count of retired rows of its array at which those that were on
    their way when its newest block joined have retired; ``settled``: they had, at ``since``.
    """
    return data.StructLayout(
        {
            "count": 6,
            "missing": 6,
            "listed": 1,
            "closed": 1,
            "launched": 1,
            "settled": 1,
            "awaited": flight_bits(config),
            "first": TIME_BITS,
            "since": TIME_BITS,
        }
    )


def flight_bits(config: Config) -> int:
    """Width of a count of rows that wraps, in which earlier and later can be told apart."""
    return config.row_slot_bits + 2


def flight(config: Config) -> data.StructLayout:
    """The rows of an array: how many closed ones are on their way, a count of those retired, and
    when a write that continues another last joined one."""
    return data.StructLayout(
        {"flying": flight_bits(config), "retired": flight_bits(config), "latest": TIME_BITS}
    )


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
    - when another write needs a block it already has;
    - `IDLE_NS` after the last of the array's rows that were on their way when its newest block
      joined (their completion would make the host send more) and after the newest block of the
      array's streams, and `LIMIT_NS` after its first block at most;
    - oldest first when a block waits for a line or a row slot, and either no closed row is on its
      way to free some or open rows hold more than half.

    A block whose data cannot be fetched leaves its row and ends on ``fetch_failed``; the others go
    on. A READ extent takes a row slot of kind RECOVER for each block and launches at once.

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
        Instead of `IDLE_NS` and `LIMIT_NS`, for tests.
    """

    def __init__(
        self,
        *,
        config: Config,
        idle_cycles: int | None = None,
        limit_cycles: int | None = None,
    ):
        self._config = config
        self._idle = idle_cycles or cycles_of(config, IDLE_NS)
        self._limit = limit_cycles or cycles_of(config, LIMIT_NS)
        slot = config.row_slot_bits
        super().__init__(
            {
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
                "deadline": Out(TIME_BITS, init=NEVER),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        slot_bits = config.row_slot_bits
        m.submodules.index = index = RowIndex(config=config)
        m.submodules.parking = parking = Parking(config=config)
        m.submodules.open_rows = open_rows = OpenRows(config=config)
        m.submodules.detector = detector = StreamDetector(config=config)
        m.submodules.launches = launches = SyncFIFOBuffered(width=slot_bits, depth=config.rows)
        m.submodules.unused = unused = SyncFIFOBuffered(width=slot_bits, depth=config.rows)

        place = data.StructLayout({"index": 5, "slot": slot_bits})
        m.submodules.states = states = Memory(shape=row_state(config), depth=config.rows, init=[])
        m.submodules.fills = fills = Memory(shape=fill(config), depth=config.rows, init=[])
        m.submodules.strips = strips = Memory(
            shape=strip_state(config), depth=config.rows * 32, init=[]
        )
        m.submodules.places = places = Memory(shape=place, depth=config.lines, init=[])
        m.submodules.flights = flights = Memory(
            shape=flight(config), depth=config.arrays, init=[]
        )
        for memory, port in ((states, self.row_read), (strips, self.strip_read)):
            read = memory.read_port()
            m.d.comb += [read.addr.eq(port.address), port.data.eq(read.data)]
        state_read, state_write = states.read_port(), states.write_port()
        fill_read, fill_write = fills.read_port(), fills.write_port()
        strip_read, strip_write = strips.read_port(), strips.write_port()
        place_read, place_write = places.read_port(), places.write_port()
        flight_read, flight_write = flights.read_port(), flights.write_port()

        # The extent in hand, of which one block after the other joins.
        hand = Signal(extent(config))
        holding = Signal()
        sequential = Signal()
        writes = hand.opcode == HostOpcode.WRITE
        geometry = self.geometry_read.data

        # The row slot in hand and what is known of it.
        slot = Signal(slot_bits)
        row = Signal(row_state(config))
        level = Signal(fill(config))
        strip = Signal(5)
        event = Signal(fetched(config))
        fresh = Signal(range(config.rows + 1))
        closed_rows = Signal(slot_bits + 1)
        open_lines = Signal(config.line_bits + 1)
        starved = Signal()
        after = Signal(After)
        m.d.comb += [
            self.geometry_read.address.eq(hand.array),
            detector.extent.eq(hand),
            detector.geometry.eq(geometry),
            parking.slot.eq(slot),
            parking.extent.extent.eq(hand),
            parking.extent.sequential.eq(sequential),
            open_rows.slot.eq(slot),
            state_read.addr.eq(slot),
            state_write.addr.eq(slot),
            state_write.data.eq(row),
            fill_read.addr.eq(slot),
            fill_write.addr.eq(slot),
            fill_write.data.eq(level),
            strip_read.addr.eq((slot << 5) | strip),
            strip_write.addr.eq((slot << 5) | hand.index),
            strip_write.data.slot.eq(hand.slot),
            strip_write.data.offset.eq(hand.offset),
            strip_write.data.line.eq(self.allocate.payload),
            place_read.addr.eq(event.line),
            place_write.addr.eq(self.allocate.payload),
            place_write.data.slot.eq(slot),
            place_write.data.index.eq(hand.index),
            flight_read.addr.eq(row.array),
            flight_write.addr.eq(row.array),
            flight_write.data.eq(flight_read.data),
            index.slot.eq(slot),
            index.key.array.eq(row.array),
            index.key.base.eq(row.base),
            index.key.shift.eq(row.shift),
            index.key.row.eq(row.row),
            launches.w_data.eq(slot),
            unused.w_data.eq(slot),
            self.launch.valid.eq(launches.r_rdy),
            self.launch.payload.eq(launches.r_data),
            launches.r_en.eq(self.launch.ready),
            self.free.payload.eq(event.line),
            self.fetch_failed.payload.slot.eq(strip_read.data.slot),
            self.fetch_failed.payload.status.eq(Status.DATA_TRANSFER_ERROR),
        ]
        with m.If(self.fetch.valid & self.fetch.ready):
            m.d.sync += self.fetch.valid.eq(0)

        # When open rows close by themselves: a walk over them finds what is due, and when next.
        walking = Signal()
        again = Signal()
        cursor = Signal(slot_bits)
        earliest = Signal(TIME_BITS)
        soon = Signal(TIME_BITS)
        ahead = Signal(flight_bits(config))
        limit = Signal(TIME_BITS)
        since = Signal(TIME_BITS)
        since_most = Signal(TIME_BITS)
        weighed = Signal(TIME_BITS)
        settles = Signal()
        due = Signal(TIME_BITS)
        m.d.comb += [
            # Rows still awaited; once there are none it wraps below zero.
            ahead.eq(level.awaited - flight_read.data.retired),
            soon.eq(self.now + self._idle),
        ]

        # What can be done next, most urgent first.
        # Lines on offer to somebody count as available, but cannot be had.
        short = self.available <= config.line_reserve + LINE_USERS
        wants_line = holding & writes & short
        many_lines = (closed_rows == 0) | (open_lines > config.lines // 2)
        many_rows = (closed_rows == 0) | (open_rows.count > config.rows // 2)
        can_place = holding & ~starved & (~writes | (self.allocate.valid & ~self.fetch.valid))
        can_retry = ~holding & parking.retry.valid
        can_begin = ~holding & self.extent.valid & parking.room & ~parking.busy
        squeezed = (open_rows.count != 0) & (
            (wants_line & many_lines) | (holding & starved & many_rows)
        )
        can_walk = (open_rows.count != 0) & (walking | again | (self.now >= self.deadline))
        can_forget = (open_rows.count == 0) & (self.deadline != NEVER)

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
                with m.Elif(can_place):
                    m.d.sync += [
                        row.eq(0),
                        row.array.eq(hand.array),
                        row.base.eq(hand.base),
                        row.shift.eq(hand.shift),
                        row.row.eq(hand.row),
                    ]
                    m.next = "LOOK-UP"
                with m.Elif(can_retry):
                    m.d.comb += parking.retry.ready.eq(1)
                    m.d.sync += [
                        hand.eq(parking.retry.payload.extent),
                        sequential.eq(parking.retry.payload.sequential),
                        holding.eq(1),
                    ]
                    m.next = "READ-GEOMETRY"
                with m.Elif(can_begin):
                    m.d.comb += self.extent.ready.eq(1)
                    m.d.sync += [hand.eq(self.extent.payload), holding.eq(1)]
                    m.next = "DETECT"
                with m.Elif(squeezed):
                    m.d.sync += slot.eq(open_rows.head)
                    m.next = "READ-OLDEST"
                with m.Elif(can_walk):
                    m.d.sync += [walking.eq(1), slot.eq(cursor)]
                    with m.If(~walking):
                        m.d.sync += [
                            again.eq(0),
                            earliest.eq(NEVER),
                            cursor.eq(open_rows.head),
                            slot.eq(open_rows.head),
                        ]
                    m.next = "READ-OPEN"
                with m.Elif(can_forget):
                    m.d.sync += self.deadline.eq(NEVER)

            # A new extent.
            with m.State("DETECT"):
                m.next = "NOTE"
            with m.State("NOTE"):
                m.d.comb += detector.note.eq(writes)
                m.next = "KEEP-NOTE"
            with m.State("KEEP-NOTE"):
                m.d.sync += sequential.eq(detector.sequential)
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
                m.d.sync += slot.eq(Mux(fresh != config.rows, fresh, unused.r_data))
                with m.If(index.hit):
                    m.d.sync += slot.eq(index.found)
                    m.next = "READ-ROW"
                with m.Elif(fresh != config.rows):
                    m.d.sync += fresh.eq(fresh + 1)
                    m.next = "INSERT"
                with m.Elif(unused.r_rdy):
                    m.d.comb += unused.r_en.eq(1)
                    m.next = "INSERT"
                with m.Else():
                    m.d.sync += starved.eq(1)
                    m.next = "REST"
            with m.State("READ-ROW"):
                m.next = "LOAD-ROW"
            with m.State("LOAD-ROW"):
                m.d.sync += [row.eq(state_read.data), level.eq(fill_read.data)]
                m.next = "TRY"
            with m.State("TRY"):
                fits = (row.shift == hand.shift) & ~row.joined.bit_select(hand.index, 1)
                with m.If(writes & (row.kind == RowKind.WRITE) & ~level.launched & fits):
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
            with m.State("JOIN"):
                m.d.sync += [
                    row.joined.eq(row.joined | (1 << hand.index)),
                    row.fua.eq(row.fua | hand.fua),
                    row.more.eq(row.more | (writes & (hand.blocks != 0))),
                    level.settled.eq(0),
                    level.awaited.eq(flight_read.data.retired + flight_read.data.flying),
                    level.count.eq(level.count + 1),
                ]
                with m.If(writes):
                    m.d.comb += [
                        self.allocate.ready.eq(1),
                        strip_write.en.eq(1),
                        place_write.en.eq(1),
                    ]
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
                    m.d.comb += strip_write.en.eq(1)
                    m.d.sync += row.kind.eq(RowKind.RECOVER)
                    close(then=After.ADVANCE)
            with m.State("RECORD"):
                enough = (level.count == geometry.data) | (geometry.parities == 0)
                complete = hand.final & ~sequential
                m.d.comb += [
                    state_write.en.eq(1),
                    flight_write.data.latest.eq(self.now),
                    flight_write.en.eq(sequential),
                ]
                with m.If(level.closed):
                    m.d.comb += fill_write.en.eq(1)
                    m.next = "ADVANCE"
                with m.Elif(enough | complete):
                    close(then=After.ADVANCE)
                with m.Else():
                    m.d.comb += fill_write.en.eq(1)
                    m.next = "ADVANCE"
                    with m.If(~level.listed):
                        m.d.comb += [open_rows.append.eq(1), fill_write.data.listed.eq(1)]
                        with m.If(walking):
                            m.d.sync += again.eq(1)
                        with m.If(soon < self.deadline):
                            m.d.sync += self.deadline.eq(soon)
            with m.State("ADVANCE"):
                m.d.sync += [
                    hand.row.eq(hand.row + 1),
                    hand.offset.eq(hand.offset + 1),
                    hand.blocks.eq(hand.blocks - 1),
                    holding.eq(hand.blocks != 0),
                ]
                m.next = "REST"

            # `row` and `level` are loaded, and `slot` has held for a cycle: no more partners.
            with m.State("CLOSE"):
                m.d.comb += state_write.en.eq(1)
                m.d.sync += [level.closed.eq(1), level.listed.eq(0)]
                with m.If(row.kind == RowKind.WRITE):
                    m.d.sync += open_lines.eq(open_lines - level.count)
                with m.If(level.listed):
                    m.d.comb += open_rows.remove.eq(1)
                    with m.If(slot == cursor):
                        m.d.sync += cursor.eq(open_rows.newer)
                        with m.If(slot == open_rows.tail):
                            m.d.sync += [walking.eq(0), again.eq(walking)]
                m.d.sync += closed_rows.eq(closed_rows + 1)
                m.next = "COUNT"
            with m.State("COUNT"):
                m.d.comb += [
                    flight_write.data.flying.eq(flight_read.data.flying + 1),
                    flight_write.en.eq(1),
                ]
                m.next = "LAUNCH"
            with m.State("LAUNCH"):
                m.d.comb += fill_write.en.eq(1)
                m.next = "REST"
                with m.If(after == After.ADVANCE):
                    m.next = "ADVANCE"
                with m.If((level.missing == 0) & row.joined.any()):
                    m.d.comb += [fill_write.data.launched.eq(1), launches.w_en.eq(1)]
                with m.Elif(level.missing == 0):
                    m.next = "REMOVE"

            # A block has been fetched.
            with m.State("READ-PLACE"):
                m.next = "LOAD-PLACE"
            with m.State("LOAD-PLACE"):
                m.d.sync += [slot.eq(place_read.data.slot), strip.eq(place_read.data.index)]
                m.next = "READ-ARRIVED"
            with m.State("READ-ARRIVED"):
                m.next = "LOAD-ARRIVED"
            with m.State("LOAD-ARRIVED"):
                m.d.sync += [
                    row.eq(state_read.data),
                    level.eq(fill_read.data),
                    level.missing.eq(fill_read.data.missing - 1),
                    after.eq(After.REST),
                ]
                m.next = "ARRIVE"
                with m.If(event.error):
                    m.next = "DROP"
            with m.State("ARRIVE"):
                m.d.comb += fill_write.en.eq(1)
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
                    m.d.comb += state_write.en.eq(1)
                    m.next = "ARRIVE"

            # A row has retired, or has nothing left.
            with m.State("READ-RETIRED"):
                m.next = "LOAD-RETIRED"
            with m.State("LOAD-RETIRED"):
                m.d.sync += row.eq(state_read.data)
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
                        flight_write.en.eq(1),
                        unused.w_en.eq(1),
                    ]
                    m.d.sync += again.eq(1)
                    m.next = "REST"

            # The oldest open row gives way.
            with m.State("READ-OLDEST"):
                m.next = "LOAD-OLDEST"
            with m.State("LOAD-OLDEST"):
                m.d.sync += [row.eq(state_read.data), level.eq(fill_read.data)]
                close(then=After.REST)

            # One step of the walk over open rows.
            with m.State("READ-OPEN"):
                m.next = "LOAD-OPEN"
            with m.State("LOAD-OPEN"):
                m.d.comb += flight_read.addr.eq(state_read.data.array)
                m.d.sync += [row.eq(state_read.data), level.eq(fill_read.data)]
                m.next = "WEIGH"
            with m.State("WEIGH"):
                latest = flight_read.data.latest
                m.d.sync += [
                    weighed.eq(self.now),
                    settles.eq(~level.settled & ((ahead == 0) | ahead[-1])),
                    since.eq(Mux(latest > level.since, latest, level.since)),
                    since_most.eq(level.first + max(0, self._limit - self._idle)),
                    limit.eq(level.first + self._limit),
                ]
                m.next = "EXPECT"
            with m.State("EXPECT"):
                m.d.sync += due.eq(limit)
                with m.If(settles):
                    m.d.sync += due.eq(weighed + self._idle)
                with m.Elif(level.settled & (since < since_most)):
                    m.d.sync += due.eq(since + self._idle)
                m.next = "WATCH"
            with m.State("WATCH"):
                with m.If(self.now >= due):
                    # What is left of the walk, or another, follows the removal.
                    m.d.sync += again.eq(1)
                    close(then=After.REST)
                with m.Else():
                    m.next = "REST"
                    m.d.comb += [
                        fill_write.en.eq(settles),
                        fill_write.data.settled.eq(1),
                        fill_write.data.since.eq(weighed),
                    ]
                    m.d.sync += cursor.eq(open_rows.newer)
                    with m.If(due < earliest):
                        m.d.sync += earliest.eq(due)
                    with m.If(slot == open_rows.tail):
                        m.d.sync += [
                            walking.eq(0),
                            self.deadline.eq(Mux(due < earliest, due, earliest)),
                        ]

        moves = (
            self.retired.valid
            | self.fetched.valid
            | can_place
            | can_retry
            | can_begin
            | squeezed
            | can_walk
            | can_forget
            | ~index.ready
        )
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("REST")
            | moves
            | parking.busy
            | ((launches.level != 0) & (~launches.r_rdy | self.launch.ready))
            | (self.fetch.valid & self.fetch.ready)
        )
        return m
