"""RowPlanning of launched rows: where the roles lie, which drives are left, what to do, lines."""

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.shares.turnstile import Turnstile
from hdl.config import ERA_BITS, OPERATIONS_PER_BLOCK, Config
from hdl.flow.array_state import ArrayStatus
from hdl.flow.drive_states import DriveStates
from hdl.flow.intention import intention
from hdl.flow.line import line_stream
from hdl.flow.row import RowKind, row_state
from hdl.flow.table_read import ArrayReads
from hdl.flow.walk import MendRequest, WalkKind
from hdl.kit.bits import ones
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue
from hdl.kit.table import Table, TableRead
from hdl.stripe.mends import Mends
from hdl.stripe.planning.duplicate import Duplicate
from hdl.stripe.planning.plan import PlanKind
from hdl.stripe.planning.planner import Planner
from hdl.stripe.planning.program import migration_target, program, role_bits, target, target_bits
from hdl.stripe.planning.program import targets as target_count
from hdl.stripe.rows.progress import unread
from hdl.stripe.walks.walk_plan import WalkPlan

SELDOM_WRITE = (WalkKind.REBUILD, WalkKind.SALVAGE, WalkKind.CHECK, WalkKind.PATROL)
"""Walks that write only what cannot be read, or is marked as to be written already."""


class RowPlanning(wiring.Component):
    """Turns a launched row, or one whose reads failed, into a program with all the lines it needs.

    One row at a time takes lines, and takes all of them before the next, so rows cannot starve
    each other. The sequencer behind it never waits for a line. ``launch`` and ``again`` queue as
    many row slots as there are, so neither is ever refused for long.

    With ``Config.array_shares``, while there are several arrays (``exists``), a row takes its lines
    when they are within its array's share (`hdl.array.shares.turnstile`). Otherwise it waits in a
    queue of its array and is planned anew, and those of other arrays go on. So no row waits for
    lines that the rows of another array's drives have. What is counted is the lines, or as many as
    the row sends operations for which nothing else counts. Those are the operations of a walk, of
    what is made unreadable, and of a mirrored block beyond `OPERATIONS_PER_BLOCK`. A row counts
    until it has ended (``ended``) or is planned again. So operations of its last phase are counted
    although lines may be free by then.

    A row's members are looked up, one a cycle. With ``slow_read_ms``, roles that are only ``slow``
    among those that could not be read are waited for once the others do not do, unless another
    drive, which is to be rebuilt, has taken their place.

    A row takes about 12 + width cycles, and one more for each line. With mirrors it takes one for
    each copy instead of width. It waits for lines and for ``ready``.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    launch
        Row slots to begin.
    row_read
        Their rows.
    again
        Row slots whose reads failed.
    unread_read
        The roles that could not be read.
    ready
        Row slots whose program may be run.
    program_read
        Programs, for the sequencer. The address is the row slot.
    target_read
        Targets, for the sequencer. The address is the row slot, and below it the target.
    line_read
        Rows' own lines, for the sequencer. The address is the row slot, and below it the role.
    reads
        Tables of the row's array. From ``boundary`` on a stale drive is not read, and what is
        written to a row is written to it as well. A block that is written with FUA is treated so
        before ``boundary`` too. From ``sync`` on the parities of an array that is
        ``unsynced`` may be anything, unless the host has written the row since. No such row is
        updated: all its parities are generated from data, and what a host reads is worked out only
        if its drive has nothing. The drive of a ``migration`` gets what its member gets, as target
        `migration_target` (of mirrors in rows of one strip, as the gatherer makes them).
    drives
        What the tables know of the drives.
    arrays
        The parities of each row of an array in ``doubts`` may be anything, and while drives are
        undecided those of every array. Without ``background`` no row of an array that was not taken
        to be consistent is updated. The program says how many ``eras`` the array had when the row
        was planned.
    allocate
        Lines.
    busy
        Something moves.
    mend
        With ``background``: the row of a host's read in which a drive could not read a block.
    begun
        With ``intent_chunks``: a row that may be written, before its drives are judged. A walk that
        only writes what it cannot read is told of once that has happened. What such walks write to
        stale drives, as REBUILD does, is marked already or is there already. With
        ``durable_marks`` a row that ``asks`` waits for ``lets``. Walks but ZERO leave a row as
        consistent as it was, and do not ask.
    lets
        With ``durable_marks``: row slots that may be written, each once for each that has asked.
    exists
        With ``array_shares``, a bit an array: it exists.
    ended
        With ``array_shares``: a row has ended, in this row slot.
    """

    def __init__(self, *, config: Config):
        self._config = config
        slot = config.row_slot_bits
        super().__init__(
            {
                "launch": In(stream.Signature(slot)),
                "again": In(stream.Signature(slot)),
                "ready": Out(stream.Signature(slot)),
                "row_read": Out(TableRead(slot, row_state(config))),
                "unread_read": Out(TableRead(slot, unread(config))),
                "reads": Out(ArrayReads(config)),
                "drives": In(DriveStates()),
                "arrays": In(ArrayStatus(config)),
                "allocate": In(line_stream(config)),
                "program_read": In(TableRead(slot, program(config))),
                "target_read": In(TableRead(slot + target_bits(config), target(config))),
                "line_read": In(TableRead(slot + role_bits(config), config.line_bits)),
                "mend": Out(MendRequest(config)),
                "begun": Out(stream.Signature(intention(config))),
                "lets": In(stream.Signature(slot)),
                "exists": In(config.arrays),
                "ended": In(Pulse(slot)),
                "busy": Out(1),
            }
        )

        self._planner = Planner(config=config)
        self._launches = Queue(slot, config.rows)
        self._retries = Queue(slot, config.rows)
        self._programs = Table(program(config), config.rows)
        self._targets = Table(target(config), config.rows << target_bits(config))
        self._lines = Table(config.line_bits, config.rows << role_bits(config))
        self._duplicate = Duplicate(config=config)
        self._walk_plan = WalkPlan(config=config)
        self._mends = Mends(config=config)
        # What drives could not read in another era they may give now.
        self._planned_eras = Table(ERA_BITS, config.rows)
        self._share = None
        if config.array_shares:
            self._share = Turnstile(
                config=config,
                count=config.rows,
                total=config.shared_lines,
                least=config.ports,
                most=config.rows * config.ports,
            )
            self._refusals = Table(1, config.rows)

        # The row at hand.
        self._slot = Signal(slot)
        self._retried = Signal()  # its reads have failed
        self._waited = Signal()  # for its share
        self._asks = Signal()  # it has not been let write yet
        self._todo = todo = Signal(program(config))
        self._row = row = self.row_read.data
        self._geometry = geometry = self.reads.geometry.data
        self._walks = row.walk.any
        self._mirrored = (geometry.copies > 1) & ~self._walks
        self._recover = row.kind == RowKind.RECOVER
        self._fills = row.fills
        self._gathered = row.gathered
        self._reads = self._recover & ~self._fills
        self._joined = row.joined[: config.ports]
        self._data = Signal(range(config.ports + 1))  # no more than there are drive ports
        self._data_mask = Signal(config.ports)
        self._live_parities = Signal(4)
        # A walk without parity is about one strip: its row slot keeps others from no more.
        one_strip = self._walks & (geometry.parities == 0)
        self._roles = Mux(one_strip, geometry.copies, geometry.width)

        # The lookup of its members. `strips` are those after `strip`; what `following` says of them
        # is a cycle old.
        self._strips = Signal(config.ports)
        self._following = Signal(range(config.ports))
        self._strip = Signal(range(config.ports))
        self._place = Signal(7)
        self._wrapped = Signal()
        self._copy = Signal(6)
        self._role = Signal(6)
        self._number = Signal(target_bits(config))
        self._ask = Signal()  # is answered in the next cycle
        self._got = Signal()
        self._got_role = Signal(5)
        self._got_wrapped = Signal()
        # The row may not satisfy its equations, unless the host has written it; holds from a few
        # cycles after the row is at hand.
        self._unsynced = Signal()
        # Whether a member of the row migrates, and where its block goes.
        self._migrates = Signal()
        self._migration_target = Signal(target(config))

        # A block to be filled is read where it lies, from the first copy that can be. Gathered
        # reads, and others as far as they need not be worked out, are read where they lie, too.
        self._readable = Signal(target_count(config))
        self._in_place = self._fills & (self._readable.any() | (geometry.parities == 0))
        self._in_reach = Signal(config.ports)
        self._doubtful = self._reads & self._unsynced if config.background else Const(0)

        # A host's read of a drive that is slow ends so while the others do; else it waits for it.
        self._slow = Signal(config.ports)
        self._patient = Signal()
        self._unreadable = todo.bad & ~self._slow & ~todo.dead & ~todo.stale

        self._pending = Signal(config.ports)  # roles that still need a line
        self._wanted = Signal(range(config.ports))
        self._planned = "PUBLISH" if self._share is None else "WEIGH"

    def _counted(self, lines: Value, operations: Value) -> Value:
        """What a row counts for: ``operations`` are those that nothing else counts."""
        return Mux(operations > lines, operations, lines)

    def _is_news(self, waited: Signal) -> Value:
        """Whether unreadable blocks are told: not again of a row that has ``waited`` meanwhile."""
        return ~waited

    def elaborate(self, platform) -> Module:
        m = Module()
        self._add_parts(m)
        self._connect_tables(m)
        self._note_roles(m)
        self._connect_members(m)
        self._take_member(m)
        self._connect_planner(m)
        self._judge_reads(m)
        self._connect_background(m)
        if self._share is not None:
            self._connect_share(m, self._share)
        with m.FSM(name="admit") as fsm:
            self._take(m)
            self._locate(m)
            self._look_up(m)
            self._plan(m)
            self._answer(m)
            self._count(m)
            if self._share is not None:
                self._weigh(m, self._share)
            self._allocate(m)
            self._publish(m)

        launches, retries = self._launches, self._retries
        waiting = fsm.ongoing("ALLOCATE") & (self._pending != 0) & ~self.allocate.valid
        calls = Const(0) if self._share is None else self._share.calls
        idle = fsm.ongoing("TAKE") & ~launches.output.valid & ~retries.output.valid & ~calls
        if self._config.durable_marks:
            idle &= ~self.lets.valid
        m.d.comb += self.busy.eq(
            ~(waiting | idle) | (launches.level != 0) & idle | (retries.level != 0) & idle
        )
        if self._share is not None:
            with m.If(self._share.busy):
                m.d.comb += self.busy.eq(1)
        with m.If(self._mends.busy | (self.mend.walk.valid & self.mend.walk.ready)):
            m.d.comb += self.busy.eq(1)
        return m

    def _add_parts(self, m: Module) -> None:
        m.submodules.planner = self._planner
        m.submodules.launches = self._launches
        m.submodules.retries = self._retries
        m.submodules.programs = self._programs
        m.submodules.targets = self._targets
        m.submodules.lines = self._lines
        m.submodules.duplicate = self._duplicate
        m.submodules.walk_plan = self._walk_plan
        m.submodules.mends = self._mends
        m.submodules.planned = self._planned_eras
        if self._share is not None:
            m.submodules.share = self._share
            m.submodules.refusals = self._refusals

    def _connect_tables(self, m: Module) -> None:
        """Row slots that come, tables that are read and written."""
        slot, row = self._slot, self._row
        connect(m, flipped(self.launch), self._launches.input)
        connect(m, flipped(self.again), self._retries.input)
        connect(m, flipped(self.program_read), self._programs.reads[0])
        connect(m, flipped(self.target_read), self._targets.reads[0])
        connect(m, flipped(self.line_read), self._lines.reads[0])
        m.d.comb += [
            self.row_read.address.eq(slot),
            self.unread_read.address.eq(slot),
            self.reads.geometry.address.eq(row.array),
            self._programs.write.address.eq(slot),
            self._programs.write.data.eq(self._todo),
            self._wanted.eq(lowest_bit(m, self._pending, "lowest_pending")),
            self._lines.write.address.eq(Cat(self._wanted, slot)),
            self._lines.write.data.eq(self.allocate.payload),
            self.ready.payload.eq(slot),
            self.begun.payload.slot.eq(slot),
            self.begun.payload.array.eq(row.array),
            self.begun.payload.row.eq(row.row),
        ]

    def _note_roles(self, m: Module) -> None:
        """How many roles have data, and which parities are live."""
        parity_mask = Signal(4)
        dead_parities = Signal(4)
        m.d.comb += [
            self._data.eq(self._geometry.data),
            self._data_mask.eq((1 << self._data) - 1),
            parity_mask.eq((1 << self._geometry.parities) - 1),
            dead_parities.eq(self._todo.dead >> self._data),
            self._live_parities.eq(parity_mask & ~dead_parities),
        ]

    def _connect_members(self, m: Module) -> None:
        """Where members are looked up, and what of their drives may be believed."""
        config, row, number = self._config, self._row, self._number
        write, duplicate = self._targets.write, self._duplicate
        drives, arrays = self.drives, self.arrays
        open_array = arrays.unsynced.bit_select(row.array, 1)
        # While it is not known what becomes of drives, every array is doubted.
        doubted = arrays.doubts.bit_select(row.array, 1) | drives.undecided
        beyond = Signal()
        # A drive that is not trusted cannot keep alone what is written with FUA.
        forced = Signal()
        role = Mux(self._mirrored, self._strip, self._role)
        m.d.sync += [
            self._following.eq(lowest_bit(m, self._strips, "lowest_strip")),
            self._got.eq(self._ask),
            self._got_role.eq(role),
            self._got_wrapped.eq(self._wrapped),
            forced.eq(row.fua & (row.kind == RowKind.WRITE) & row.joined.bit_select(role, 1)),
            beyond.eq(row.row >= self.reads.boundary.data),
        ]
        if config.background:
            open_row = open_array & (row.row >= self.reads.sync.data)
            m.d.sync += self._unsynced.eq(open_row | doubted)
        else:
            m.d.comb += self._unsynced.eq(~self._geometry.assumed)
        m.d.comb += [
            self.reads.member.address.array.eq(row.array),
            self.reads.member.address.position.eq(row.base + self._place),
            self.reads.sync.address.eq(row.array),
            self.reads.boundary.address.eq(row.array),
            self.reads.migration.address.eq(row.array),
            duplicate.entry.eq(self.reads.migration.data),
            duplicate.position.eq(self.reads.member.address.position),
            duplicate.member.eq(self.reads.member.data),
            duplicate.failed.eq(drives.failed),
            duplicate.stale.eq(drives.stale),
            duplicate.beyond.eq(beyond | forced),
            write.address.eq(Cat(number, self._slot)),
            write.data.port.eq(duplicate.port),
            write.data.strip.eq(self._got_role),
            write.data.wrapped.eq(self._got_wrapped),
        ]

    def _take_member(self, m: Module) -> None:
        """A member has been looked up: its target is written, and of the program what follows for
        its role. Of mirrors only live drives are targets, but in rows that are filled."""
        todo, number, fills, duplicate = self._todo, self._number, self._fills, self._duplicate
        role = 1 << self._got_role
        migration_bit = 1 << migration_target(self._config)
        gone, stale = duplicate.gone, duplicate.distrusted
        # The target that migrates (without mirroring its role), and where its block goes.
        with m.If(self._got & duplicate.migrated):
            m.d.sync += [
                self._migrates.eq(1),
                todo.migrated.eq(Mux(self._mirrored, number, self._got_role)),
                todo.settles.eq(duplicate.entry.settles),
                self._migration_target.port.eq(duplicate.entry.port),
                self._migration_target.strip.eq(self._got_role),
                self._migration_target.wrapped.eq(self._got_wrapped),
            ]
        with m.If(self._got):
            m.d.comb += self._targets.store()
            m.d.sync += todo.synced.eq(
                todo.synced
                | Mux(~gone & ~stale, 1 << number, 0)
                | Mux(duplicate.migrated & ~duplicate.beyond, migration_bit, 0)
            )
            with m.If(self._mirrored):
                with m.If(~gone):
                    m.d.sync += todo.write.eq(todo.write | (1 << number))
                with m.If(~gone | fills):
                    m.d.sync += number.eq(number + 1)
                # To fill a block is to read it; else all live copies are only written.
                with m.If(fills & stale):
                    m.d.sync += todo.bad.eq(todo.bad | (1 << number))
            with m.Else():
                m.d.sync += number.eq(number + 1)
                with m.If(gone):
                    m.d.sync += todo.dead.eq(todo.dead | role)
                with m.If(stale & ~gone):
                    m.d.sync += [
                        todo.bad.eq(todo.bad | role),
                        todo.stale.eq(todo.stale | role),
                    ]

    def _connect_planner(self, m: Module) -> None:
        """What the planner is asked, and the plan of walks."""
        row, todo, data, walk_plan = self._row, self._todo, self._data, self._walk_plan
        geometry, request = self._geometry, self._planner.request.payload
        m.d.comb += [
            request.kind.eq(Mux(self._walks, RowKind.RECOVER, row.kind)),
            request.data.eq(data),
            request.parities.eq(geometry.parities),
            request.joined.eq(Mux(self._gathered, 0, row.joined)),
            request.dead.eq(todo.dead),
            request.bad.eq(todo.bad & ~todo.dead),
            request.unsynced.eq(self._unsynced),
            request.stale.eq(todo.stale),
            walk_plan.kind.eq(row.walk.kind),
            walk_plan.again.eq(self._retried),
            walk_plan.mirrored.eq(geometry.copies > 1),
            walk_plan.every.eq((1 << self._roles) - 1),
            walk_plan.data.eq(data),
            walk_plan.parities.eq(geometry.parities),
            walk_plan.dead.eq(todo.dead),
            walk_plan.bad.eq(todo.bad),
            walk_plan.stale.eq(todo.stale),
            walk_plan.migrated.eq(Mux(self._migrates, 1 << todo.migrated, 0)),
            walk_plan.plan.eq(self._planner.plan.payload),
        ]

    def _judge_reads(self, m: Module) -> None:
        """Which blocks can be read where they lie, and whether any one can be done without."""
        row, todo = self._row, self._todo
        live = row.joined & ~todo.dead & self._data_mask
        lost = todo.dead | todo.bad | Mux(self._gathered, 0, self._joined)
        spare = Signal()
        m.d.comb += [
            self._in_reach.eq(live & ~todo.bad),
            self._readable.eq(Mux(self._mirrored, todo.write, live) & ~todo.bad),
            spare.eq(ones(lost) < self._geometry.parities),
        ]
        m.d.sync += [
            todo.fills.eq(self._fills),
            todo.gathered.eq(self._gathered),
            todo.elsewhere.eq(self._reads & spare & ~self._patient & ~self._doubtful),
        ]

    def _connect_background(self, m: Module) -> None:
        """Blocks that a drive could not give to a host, which are written anew; the era; whether
        the migration target is written."""
        row, todo, mends, eras = self._row, self._todo, self._mends, self._planned_eras
        of_migration = self._walks & (row.walk.kind == WalkKind.MIGRATE)
        connect(m, mends.mend, flipped(self.mend))
        m.d.comb += [
            mends.row.array.eq(row.array),
            mends.row.base.eq(row.base),
            mends.row.shift.eq(row.shift),
            mends.row.row.eq(row.row),
            eras.reads[0].address.eq(self._slot),
            eras.write.address.eq(self._slot),
            eras.write.data.eq(todo.era),
        ]
        if self._config.background:
            migrates = self._migrates & (of_migration | todo.write.bit_select(todo.migrated, 1))
            m.d.comb += self._programs.write.data.write[migration_target(self._config)].eq(migrates)

    def _connect_share(self, m: Module, share: Turnstile) -> None:
        """What the row counts for, and what is given back."""
        config, refusals = self._config, self._refusals
        given_back = self.again.valid & self.again.ready
        uncounted = Signal()
        sends = Signal(range(target_count(config) + 1))
        lines = Signal(range(config.ports + 1))
        beyond = Mux(sends > OPERATIONS_PER_BLOCK, sends - OPERATIONS_PER_BLOCK, 0)
        others = Mux(uncounted, sends, Mux(self._mirrored, beyond, 0))
        m.d.sync += [
            lines.eq(ones(self._pending)),
            sends.eq(ones(self._programs.write.data.write)),
        ]
        m.d.comb += [
            uncounted.eq(self._walks | self._todo.salvage),
            share.exists.eq(self.exists),
            # The sequencer does one of them at a time.
            share.ended.eq(self.ended.valid | given_back),
            share.ended_number.eq(Mux(given_back, self.again.payload, self.ended.payload)),
            share.number.eq(self._slot),
            share.array.eq(self._row.array),
            share.amount.eq(self._counted(lines, others)),
            refusals.reads[0].address.eq(share.woken.payload),
            refusals.write.address.eq(self._slot),
            refusals.write.data.eq(self._retried),
            refusals.write.enable.eq(share.refused),
        ]

    # States. Each method has those of one step, and says which they are.

    def _take(self, m: Module) -> None:
        """The states TAKE and READ-ROW: a row slot, the one that was called first."""
        share = self._share
        launches, retries = self._launches.output, self._retries.output
        with m.State("TAKE"):
            m.d.sync += [self._retried.eq(retries.valid), self._waited.eq(0), self._asks.eq(0)]
            first_of = m.If
            if share is not None:
                first_of = m.Elif
                with m.If(share.calls):
                    m.d.comb += share.woken.ready.eq(1)
                    m.d.sync += self._slot.eq(share.woken.payload)
                    with m.If(share.woken.valid):
                        m.d.sync += [
                            self._waited.eq(1),
                            self._retried.eq(self._refusals.reads[0].data),
                        ]
                        m.next = "READ-ROW"
            if self._config.durable_marks:
                with first_of(self.lets.valid):
                    m.d.comb += self.lets.ready.eq(1)
                    m.d.sync += [self._slot.eq(self.lets.payload), self._retried.eq(0)]
                    m.next = "READ-ROW"
                first_of = m.Elif
            with first_of(retries.valid):
                m.d.comb += retries.ready.eq(1)
                m.d.sync += self._slot.eq(retries.payload)
                m.next = "READ-ROW"
            with m.Elif(launches.valid):
                m.d.comb += launches.ready.eq(1)
                m.d.sync += [self._slot.eq(launches.payload), self._asks.eq(1)]
                m.next = "READ-ROW"
        with m.State("READ-ROW"):
            m.next = "READ-GEOMETRY"

    def _locate(self, m: Module) -> None:
        """The states READ-GEOMETRY, which tells that the row may be written, and LOCATE, which
        begins its program."""
        config, row, todo = self._config, self._row, self._todo
        with m.State("READ-GEOMETRY"):
            m.d.sync += [
                self._strips.eq(row.joined),
                self._role.eq(0),
                self._copy.eq(0),
                self._wrapped.eq(0),
                self._number.eq(0),
                todo.eq(0),
                todo.era.eq(self.arrays.eras[row.array]),
            ]
            m.next = "LOCATE"
            if config.intent_chunks:
                looks = Cat(row.walk.kind == kind for kind in SELDOM_WRITE).any()
                named = row.walk.source != 0
                only_looks = self._walks & ~self._retried & looks & ~named
                intends = ~self._recover & ~only_looks
                m.d.comb += self.begun.valid.eq(intends)
                with m.If(intends & ~self.begun.ready):
                    m.next = "READ-GEOMETRY"
                if config.durable_marks:
                    # Other walks leave rows as consistent as they have found them.
                    writes = ~self._walks | (row.walk.kind == WalkKind.ZERO)
                    asks = intends & self._asks & writes
                    m.d.comb += self.begun.payload.asks.eq(asks)
                    with m.If(asks & self.begun.ready):
                        m.next = "TAKE"
        with m.State("LOCATE"):
            self._begin_program(m)
            m.d.sync += [self._wrapped.eq(0), self._place.eq(row.shift), self._migrates.eq(0)]
            m.next = "WALK"
            with m.If(self._mirrored):
                m.next = "STEP"

    def _begin_program(self, m: Module) -> None:
        """What of the program the row and its array say."""
        row, geometry, todo = self._row, self._geometry, self._todo
        # In another era such a row begins anew.
        goes_on = self._retried & (self._planned_eras.reads[0].data == todo.era)
        # Copies that are not read, and are written anew.
        timely = row.walk.any & (row.walk.era == todo.era)
        passed = Mux(timely, (1 << row.walk.source) - 1, 0)
        m.d.sync += [
            Assert(geometry.valid, "a row of no array is planned"),
            Assert(geometry.width != 0, "a row of width 0 is planned"),
            todo.kind.eq(row.kind),
            todo.fua.eq(row.fua),
            todo.more.eq(row.more),
            todo.row.eq(row.row),
            todo.joined.eq(row.joined),
            todo.mirrored.eq(self._mirrored),
            todo.data.eq(self._data),
            todo.parities.eq(geometry.parities),
            todo.shift.eq(row.shift),
            todo.rotation.eq(geometry.rotation),
            todo.strip_shift.eq(geometry.strip_shift),
            todo.data_offset.eq(geometry.data_offset),
            todo.bad.eq(Mux(goes_on, self.unread_read.data.bad, passed)),
            todo.possible.eq(1),
            self._retried.eq(goes_on),
            self._slow.eq(Mux(goes_on, self.unread_read.data.slow, 0)),
            self._patient.eq(0),
            todo.array.eq(row.array),
            todo.walk.eq(row.walk),
            todo.again.eq(goes_on),
            todo.base.eq(row.base),
            todo.place.eq(row.shift),
            todo.settles.eq(0),
        ]

    def _look_up(self, m: Module) -> None:
        """The states WALK, over the copies of a strip or the roles, STEP to the next strip, and
        SETTLE, up to PLAN."""
        geometry, row, mirrored = self._geometry, self._row, self._mirrored
        place, copy, role, strips = self._place, self._copy, self._role, self._strips
        wrapped, following = self._wrapped, self._following
        with m.State("WALK"):
            m.d.comb += self._ask.eq(1)
            m.d.sync += [copy.eq(copy + 1), role.eq(role + 1)]
            with m.If(place + 1 >= geometry.width):
                m.d.sync += [place.eq(0), wrapped.eq(geometry.copies > 1)]
            with m.Else():
                m.d.sync += place.eq(place + 1)
            with m.If(mirrored):
                with m.If(copy + 1 == geometry.copies):
                    m.d.sync += copy.eq(0)
                    m.next = "STEP"
            with m.Elif(role + 1 == self._roles):
                m.next = "SETTLE"
        with m.State("STEP"):
            # The walk of a strip takes two copies at least: `following` holds again by then.
            m.d.sync += [
                wrapped.eq(0),
                self._strip.eq(following),
                strips.eq(strips & (strips - 1)),
                place.eq(row.shift + following * geometry.copies),
            ]
            m.next = "WALK"
            with m.If(strips == 0):
                m.next = "SETTLE"
            # The gatherer makes such rows of one strip.
            with m.Else():
                m.d.sync += self._todo.place.eq(row.shift + following * geometry.copies)
        with m.State("SETTLE"):
            # The last answer is being taken.
            m.next = "PLAN"

    def _plan(self, m: Module) -> None:
        """The state PLAN: what to do, but for rows that the planner is asked about."""
        config, row, todo, recover = self._config, self._row, self._todo, self._recover
        no_parity, readable = self._geometry.parities == 0, self._readable
        with m.State("PLAN"):
            with m.If(self._migrates):
                m.d.comb += self._targets.store(
                    address=Cat(Const(migration_target(config)), self._slot),
                    data=self._migration_target,
                )
            with m.If(self._mirrored & ~self._in_place):
                m.d.sync += todo.possible.eq(~recover)
                m.next = self._planned
            with m.Elif(no_parity & ~self._walks & ~self._in_place):
                m.d.sync += [
                    todo.possible.eq(~recover),
                    todo.write.eq(row.joined & ~todo.dead),
                ]
                m.next = self._planned
            with m.Elif(self._in_place):
                m.d.sync += [
                    todo.possible.eq(readable.any()),
                    todo.read.eq(readable & -readable),
                    todo.write.eq(0),
                ]
                m.next = self._planned
            with m.Elif(self._walks & no_parity):
                self._follow_walk_plan(m)
                m.next = "COUNT"
            with m.Else():
                m.d.comb += self._planner.request.valid.eq(1)
                with m.If(self._planner.request.ready):
                    m.next = "ANSWER"

    def _follow_walk_plan(self, m: Module) -> None:
        """The program is what the plan of walks says."""
        names = ("possible", "read", "erased", "use_parity", "generate", "write")
        for name in (*names, "checks", "withheld", "single", "source"):
            m.d.sync += getattr(self._todo, name).eq(getattr(self._walk_plan, name))

    def _answer(self, m: Module) -> None:
        """The state ANSWER: the program is what the planner says."""
        config, todo, plan = self._config, self._todo, self._planner.plan.payload
        impossible = plan.kind == PlanKind.IMPOSSIBLE
        answered = self._planner.plan.valid
        with m.State("ANSWER"):
            m.d.comb += self._planner.plan.ready.eq(1)
            # A drive that has taken the place of a slow one meanwhile has nothing to wait for.
            waited_for = self._slow & ~todo.stale
            held_up = (impossible | self._doubtful) & waited_for.any()
            with m.If(answered & held_up):
                m.d.sync += [
                    todo.bad.eq(todo.bad & ~waited_for),
                    self._slow.eq(0),
                    self._patient.eq(1),
                ]
                m.next = "PLAN"
            with m.Elif(answered):
                m.d.sync += [
                    todo.possible.eq(~impossible),
                    todo.update.eq(plan.kind == PlanKind.UPDATE),
                    todo.use_parity.eq(plan.use_parity),
                    todo.erased.eq(plan.erased),
                    todo.read.eq(plan.read_data | (plan.read_parity << self._data)),
                ]
                with m.If(~self._recover & (plan.kind != PlanKind.WRITE_ONLY)):
                    m.d.sync += todo.generate.eq(self._live_parities)
                with m.If(self._walks):
                    self._follow_walk_plan(m)
                news = self._unreadable.any() & self._is_news(self._waited)
                m.d.comb += self._mends.note.eq(self._reads & ~impossible & news)
                self._fall_back(m, impossible)
                if config.background:
                    self._salvage(m, impossible)
                m.next = "COUNT"

    def _fall_back(self, m: Module, impossible: Value) -> None:
        """Reads of which no block is lost, or that cannot be worked out, are read where they lie;
        so are all that are gathered."""
        todo = self._todo
        unproven = self._doubtful & ~self._gathered
        none_lost = (self._gathered | unproven) & (self._in_reach == self._joined)
        falls_back = self._reads if self._config.slow_read_ms else self._gathered
        with m.If(none_lost | (falls_back & impossible)):
            m.d.sync += [
                todo.possible.eq(self._in_reach.any()),
                todo.read.eq(self._in_reach),
                todo.erased.eq(0),
                todo.use_parity.eq(0),
            ]

    def _salvage(self, m: Module, impossible: Value) -> None:
        """A write to a row that is past repair because of unreadable blocks is done all the same.
        """
        todo = self._todo
        kept_by_parity = self._row.joined & (todo.dead | todo.stale)
        others = self._walks | self._recover | kept_by_parity.any() | self._walk_plan.too_many
        with m.If(impossible & ~others & todo.bad.any()):
            m.d.sync += [
                todo.possible.eq(1),
                todo.salvage.eq(1),
                todo.generate.eq(0),
            ]

    def _count(self, m: Module) -> None:
        """The state COUNT: which roles need a line of the row's own, and what is written."""
        config, row, todo, recover = self._config, self._row, self._todo, self._recover
        with m.State("COUNT"):
            of_lost = row.joined & (todo.read | todo.erased)
            outputs = Mux(recover, row.joined, todo.erased & ~row.joined)
            outputs = Mux(self._gathered, of_lost, outputs)
            need = Signal(config.ports)
            m.d.comb += need.eq(
                todo.read | Mux(self._fills, 0, outputs) | (todo.generate << self._data)
            )
            with m.If(self._walks & (todo.walk.kind == WalkKind.ZERO)):
                m.d.comb += need.eq(1 << todo.source)
            written = Mux(todo.salvage, self._live_parities, todo.generate)
            with m.If(todo.possible):
                m.d.sync += [todo.aux.eq(need), self._pending.eq(need)]
                with m.If(~recover & ~self._walks):
                    m.d.sync += todo.write.eq(
                        (row.joined & ~todo.dead & self._data_mask) | (written << self._data)
                    )
                m.next = "ALLOCATE" if self._share is None else self._planned
            with m.Else():
                m.next = self._planned

    def _weigh(self, m: Module, share: Turnstile) -> None:
        """The states WEIGH and SHARE: the row has its share of lines and operations, or waits."""
        with m.State("WEIGH"):
            m.next = "SHARE"
        with m.State("SHARE"):
            m.d.comb += share.ask.eq(1)
            with m.If(share.granted):
                m.next = "ALLOCATE"
            with m.If(share.refused):
                m.d.sync += self._pending.eq(0)
                m.next = "TAKE"

    def _allocate(self, m: Module) -> None:
        """The state ALLOCATE: a line for each ``pending`` role."""
        pending = self._pending
        with m.State("ALLOCATE"):
            with m.If(pending == 0):
                m.next = "PUBLISH"
            with m.Else():
                m.d.comb += self.allocate.ready.eq(1)
                with m.If(self.allocate.valid):
                    m.d.comb += self._lines.store()
                    m.d.sync += pending.eq(pending & (pending - 1))

    def _publish(self, m: Module) -> None:
        """The states PUBLISH and OFFER: the program is there."""
        with m.State("PUBLISH"):
            m.d.comb += self._programs.store()
            m.d.comb += self._planned_eras.store()
            m.next = "OFFER"
        with m.State("OFFER"):
            m.d.comb += self.ready.valid.eq(1)
            with m.If(self.ready.ready):
                m.next = "TAKE"
