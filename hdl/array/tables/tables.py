"""The array, member and volume tables: how a change is taken, checked, made and answered."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.array.tables.capacity import Capacity
from hdl.array.tables.drive_health import DriveHealth, FollowedDriveHealth
from hdl.array.tables.identities import Identities, NoIdentities
from hdl.array.tables.level_rules import LevelRules
from hdl.array.tables.migrations import MIGRATION_READERS, Migrations, NoMigrations
from hdl.array.tables.missing import Missing
from hdl.config import (
    BLOCK_NUMBER_BITS,
    DATA_OFFSET_BITS,
    DATA_OFFSET_BLOCKS,
    MAX_DRIVES,
    Config,
)
from hdl.flow.drive_port import IDENTITY_BITS
from hdl.flow.drive_states import DriveDecisions, DriveStates
from hdl.flow.geometry import WIDTH_BITS, data_offset, geometry
from hdl.flow.manage import (
    MIGRATION_END_SHIFT,
    Changes,
    ManageOpcode,
    ManageStatus,
    MigrationEnd,
    manage_request,
)
from hdl.flow.recovery import tried_bits
from hdl.flow.reference import reference
from hdl.flow.table_read import (
    geometry_read,
    member_read,
    migration_read,
    placed_read,
    port_read,
    port_use,
    volume,
    volume_read,
)
from hdl.kit.table import Table

REWIND_CYCLES = 6
"""Cycles until rows and reads that look at members see a boundary that has been written."""


class ArrayTables(wiring.Component):
    """Arrays, their members, volumes, and which drives can be used.

    The tables make one change at a time. They check it completely, then make it, then answer. A
    geometry appears after its members. Entries appear and disappear in one write. A reset empties
    the tables, an entry of each in every cycle that follows.

    Parameters
    ----------
    config
        Sizes.
    geometry_readers
        Read ports of the table of arrays.
    member_readers
        Read ports of the table of members.
    volume_readers
        Read ports of the table of volumes.

    Ports
    -----
    changes
        Changes, and one answer to each.
    geometry_read
        Table of arrays, seen from the table. ``data`` follows ``address`` by a cycle.
    member_read
        Table of members, alike.
    volume_read
        Table of volumes, alike.
    port_read
        Table of the uses of drive ports, alike.
    migration_read
        Table of migrations, alike, for the sequencer, dispatch and the states.
        Entry and member change in the same cycle.
    placed_read
        Which drive is which member of an array that is brought up. Only used with
        ``Config.metadata``.
    present
        One bit per port. A drive is there.
    capacity
        Capacity of the drive at each port, in blocks.
    fail
        Ports whose drive failed to store data. Always taken. No effect on a port without array.
    restarted
        One bit per port, a pulse. Its drive has begun anew and may have lost what it had not stored
        (`hdl.array.tables.drive_health`).
    drives
        Of the drive at each port.
    parting
        One bit per port. Another drive has taken its place in a migration. It is about to leave its
        array, in which commands of before may still use it.
    exists
        One bit per array. It is there.
    volume_exists
        One bit per volume. It is there.
    quiesce
        What must have nothing inside any more before the change goes on
        (`hdl.array.references.References`). There are five cases. A volume is gone, and the change
        is not answered before. A volume is new, and it is not there before. An array goes. A drive
        has left an array, and it is nobody else's before. A member's own drive is to be stale
        instead of failed, and it is not stale before.
    flush
        One bit per port. Drives to be flushed before they are trusted. This port and all that
        follow are of no use without ``Config.background``.
    flushed
        One bit per port. Those that were flushed (`hdl.drive.flusher.Flusher`).
    wipe
        A port, whose drive is about to take the place of a member. What it says of itself must be
        gone before anything else is written to it. This and ``wiped`` are only used with
        ``Config.metadata``.
    wiped
        It is gone.
    rewind
        An array of which nothing is rebuilt any more. A drive that has passed all checks is about
        to be a stale member of it, or a migration target.
    restarts
        How often the drive at each port has restarted, as `hdl.flow.recovery.recovery` has it of a
        flush.
    decisions
        What becomes of drives.
    blamed
        One bit per port, a pulse. A FLUSH has been refused because of its drive.
    doubts
        One bit per array. A drive of it is kept, and its jobs have not been told yet that it may
        have lost something.
    identity
        Of the drives (`hdl.array.tables.identities.NoIdentities`). Only used with
        ``Config.intent_chunks``.
    busy
        It works.

    Latency: a change takes at most 200 cycles and two for each entry of the array or volume table.
    An array that is made with members missing takes up to 1000 more. What ``quiesce``, ``flush``
    and ``wipe`` take comes on top. Reads are never held up.

    Errors, as the status of the answer
        - INVALID_FIELD if the level does not allow the drives, spans, copies, rotation or strip
          (`LevelRules`), or if the capacity exceeds 2**40 blocks.
        - DRIVE_UNAVAILABLE for a drive that is absent or in use, that does not store that it is
          nobody's, or for more absent drives than the level tolerates.
        - NO_SPACE if a drive has no room for a strip, or if a volume does not fit between the
          others.
        - NO_ENTRY for a full table, or for an entry that does not exist.
        - IN_USE for an array with volumes, for a member to replace or to take back that has not
          failed, and for a member to migrate that has failed.
        - OTHER_DRIVE for a member that is to come back and is another drive.
    """

    def __init__(
        self,
        *,
        config: Config,
        geometry_readers: int,
        member_readers: int,
        volume_readers: int,
    ):
        for name, count in (
            ("geometry_readers", geometry_readers),
            ("member_readers", member_readers),
            ("volume_readers", volume_readers),
        ):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, not {count}")
        self._config = config
        super().__init__(
            {
                "changes": In(Changes(config)),
                "geometry_read": In(geometry_read(config)).array(geometry_readers),
                "member_read": In(member_read(config)).array(member_readers),
                "volume_read": In(volume_read(config)).array(volume_readers),
                "port_read": In(port_read(config)),
                "migration_read": In(migration_read(config)).array(MIGRATION_READERS),
                "placed_read": Out(placed_read(config)),
                "present": In(config.ports),
                "restarted": In(config.ports),
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "identity": In(IDENTITY_BITS).array(config.ports),
                "fail": In(stream.Signature(config.port_bits)),
                "drives": Out(DriveStates()),
                "quiesce": Out(stream.Signature(reference(config))),
                "parting": Out(MAX_DRIVES),
                "exists": Out(config.arrays),
                "volume_exists": Out(config.volumes),
                "flush": Out(stream.Signature(MAX_DRIVES)),
                "flushed": In(stream.Signature(MAX_DRIVES)),
                "wipe": Out(stream.Signature(config.port_bits)),
                "wiped": In(stream.Signature(1)),
                "rewind": Out(stream.Signature(config.array_bits)),
                "restarts": Out(tried_bits(config)).array(config.ports),
                "decisions": In(DriveDecisions()),
                "blamed": In(MAX_DRIVES),
                "doubts": In(config.arrays),
                "busy": Out(1),
            }
        )
        # The change at hand, and a pulse as the tables change.
        self._request = Signal(manage_request(config))
        self._migrates = self._request.opcode == ManageOpcode.MIGRATE
        self._returns = self._request.opcode == ManageOpcode.RE_ADD
        self._edited = Signal()

        # The entry of the array or volume table that is read. The one that is written, which is
        # the answer's index as well; a free one has been found for that.
        self._read_entry = Signal(8)
        self._entry = Signal(8)
        self._has_free = Signal()

        # The port whose entry of ``uses`` is read and written, and a member of array ``entry``,
        # which is set to that port if it is written.
        self._at_port = Signal(range(MAX_DRIVES + 1))
        self._port = self._at_port[: config.port_bits]
        self._last_port = self._at_port == MAX_DRIVES - 1
        self._position = Signal(WIDTH_BITS)

        # Of a new array: the port is named; blocks of the drive there, and the least of all named.
        self._named_port = self._request.drives.bit_select(self._at_port, 1)
        self._blocks = Signal(BLOCK_NUMBER_BITS)
        self._smallest = Signal(BLOCK_NUMBER_BITS)
        # Bit a position: no drive is there.
        self._gone = Signal(MAX_DRIVES)

        # The array of the change, and what follows a new volume.
        self._shape = Signal(geometry(config))
        self._volume_end = Signal(BLOCK_NUMBER_BITS + 1)

        # Of a member. RE_ADD knows its port; a drive that was the member has been quiesced; the
        # drive that joins is wiped; it has been absent since it was checked or wiped.
        self._named = Signal()
        self._calm = Signal()
        self._wiped = Signal()
        self._left = Signal()
        self._old_port = Signal(config.port_bits)  # of the member, before the change
        self._pause = Signal(range(REWIND_CYCLES))
        # SETTLE: the live drives of the array; those of them that have been rebuilt.
        self._written = Signal(MAX_DRIVES)
        self._rebuilt = Signal(MAX_DRIVES)
        # END_MIGRATION: the ports of the member before and of the one that takes its place; whether
        # it does, and is stale then.
        self._migrated_from = Signal(config.port_bits)
        self._migrated_to = Signal(config.port_bits)
        self._joined = Signal()
        self._renews = Signal()

        self._rules = LevelRules(config=config)
        self._capacity = Capacity()
        self._arrays = Table(geometry(config), config.arrays, reads=1 + geometry_readers)
        self._volumes = Table(volume(config), config.volumes, reads=1 + volume_readers)
        self._uses = Table(port_use(config), MAX_DRIVES, reads=2)
        members = config.arrays * MAX_DRIVES
        self._members = Table(config.port_bits, members, reads=1 + member_readers)
        self._choose_parts()

    def _choose_parts(self) -> None:
        """The parts, and the kinds of changes, that the configuration has."""
        config = self._config
        self._of_array = [ManageOpcode.DELETE_ARRAY, ManageOpcode.CREATE_VOLUME]
        if config.background:
            self._of_array += [ManageOpcode.REPLACE, ManageOpcode.SETTLE, ManageOpcode.CHECK_EMPTY]
            self._of_array += [ManageOpcode.MIGRATE, ManageOpcode.END_MIGRATION]
        if config.intent_chunks:
            self._of_array.append(ManageOpcode.RE_ADD)
        health = FollowedDriveHealth if config.background else DriveHealth
        self._health = health(config=config)
        self._migrations = (Migrations if config.background else NoMigrations)(config=config)
        self._identities = (Identities if config.intent_chunks else NoIdentities)(config=config)

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        self._add_parts(m)
        self._connect_health(m)
        self._connect_rules(m)
        self._connect_tables(m)
        self._connect_identities(m)
        with m.FSM(name="manage") as fsm:
            self._clear(m)
            self._take(m)
            self._count_drives(m)
            self._admit(m)
            if config.background:
                self._tolerate(m)
            self._measure(m)
            self._find_free(m)
            self._make_array(m)
            self._find_array(m)
            self._look_at_volumes(m)
            self._delete_array(m)
            self._quiesce(m)
            if config.background:
                self._leave(m)
                self._settle(m)
                self._check_member(m)
                if config.metadata:
                    self._wipe_member(m)
                self._rewind_member(m)
                self._join_member(m)
                self._begin_migration(m)
                self._load_migration(m)
                self._settle_migration(m)
                self._flush_migration(m)
                self._judge_migration(m)
                self._erase_migration(m)
                self._drain_migration(m)
                self._part_migration(m)
            self._store_volume(m)
            self._respond(m)
            m.d.comb += self.busy.eq(
                ~self._waits(fsm) | self.fail.valid | self.drives.changed
            )
        absent = self._health.absent.bit_select(self._port, 1)
        if config.metadata:
            with m.If((self._wiped | self.wiped.ready) & absent):
                m.d.sync += self._left.eq(1)
        return m

    def _add_parts(self, m: Module) -> None:
        """The tables with their readers, and what judges a change."""
        m.submodules.rules = self._rules
        m.submodules.capacity = self._capacity
        m.submodules.health = self._health
        m.submodules.identities = self._identities
        m.submodules.migrations = self._migrations
        m.submodules.arrays = self._arrays
        m.submodules.volumes = self._volumes
        m.submodules.uses = self._uses
        m.submodules.members = self._members
        for table, readers in (
            (self._arrays, self.geometry_read),
            (self._volumes, self.volume_read),
            (self._uses, [self.port_read]),
            (self._members, self.member_read),
        ):
            for outer, inner in zip(readers, list(table.reads)[1:], strict=True):
                connect(m, flipped(outer), inner)
        for outer, inner in zip(self.migration_read, self._migrations.read, strict=True):
            connect(m, flipped(outer), inner)

    def _connect_health(self, m: Module) -> None:
        """What is known of the drives."""
        health = self._health
        connect(m, flipped(self.fail), health.fail)
        m.d.comb += health.edited.eq(self._edited)
        connect(m, flipped(self.decisions), health.decisions)
        connect(m, health.states, flipped(self.drives))
        for name in ("present", "restarted", "blamed"):
            m.d.comb += getattr(health, name).eq(getattr(self, name))
        for outer, inner in zip(self.restarts, health.restarts, strict=True):
            m.d.comb += outer.eq(inner)

    def _connect_rules(self, m: Module) -> None:
        """What is asked of a new array, and how large it is."""
        request, rules, capacity = self._request, self._rules, self._capacity
        m.d.comb += [
            rules.level.eq(request.level),
            rules.strip_shift.eq(request.strip_shift),
            rules.copies.eq(request.copies),
            rules.spans.eq(request.spans),
            rules.rotation.eq(request.rotation),
            rules.drives.eq(self._position),
            capacity.member_blocks.eq(self._smallest),
            capacity.data_offset.eq(self._data_offset),
            capacity.strip_shift.eq(request.strip_shift),
            capacity.strips.eq(rules.strips),
            capacity.copies.eq(rules.shape_copies),
        ]

    @property
    def _data_offset(self) -> Value:
        """Where the rows of a new array begin."""
        placed, start = self._request.placed, self._request.start
        return Mux(placed, start[:DATA_OFFSET_BITS], DATA_OFFSET_BLOCKS)

    def _connect_tables(self, m: Module) -> None:
        """Which entries the change reads and writes, and which arrays and volumes there are."""
        config, arrays, volumes = self._config, self._arrays, self._volumes
        uses, members, migrations = self._uses, self._members, self._migrations
        entry, position = self._entry, self._position
        for table, exists in ((arrays, self.exists), (volumes, self.volume_exists)):
            write = table.write
            with m.If(write.enable):
                m.d.sync += exists.bit_select(write.address, 1).eq(write.data.valid)
        member = Cat(position[: config.port_bits], entry[: config.array_bits])
        m.d.comb += [
            arrays.reads[0].address.eq(self._read_entry),
            volumes.reads[0].address.eq(self._read_entry),
            uses.reads[0].address.eq(self._at_port),
            arrays.write.address.eq(entry),
            volumes.write.address.eq(entry),
            uses.write.address.eq(self._at_port),
            members.write.address.eq(member),
            members.write.data.eq(self._at_port),
            members.reads[0].address.eq(members.write.address),
            migrations.array.eq(entry),
            migrations.entry.position.eq(position),
            migrations.entry.port.eq(self._at_port),
            migrations.entry.spare.eq(self._request.spare),
        ]

    def _connect_identities(self, m: Module) -> None:
        """Who the drive at the port is, and that it joins."""
        identities, health = self._identities, self._health
        for outer, inner in zip(self.identity, identities.identity, strict=True):
            m.d.comb += inner.eq(outer)
        m.d.comb += [
            identities.port.eq(self._port),
            identities.note.eq(health.joins.any()),
            # A member that was never there has no identity to come back with.
            identities.absent.eq((health.absent | health.fails).bit_select(self._at_port, 1)),
        ]

    @property
    def _place(self) -> Value:
        """The position of the drive at the port in the array that is made."""
        return Mux(self._request.placed, self.placed_read.data.position, self._position[:5])

    @property
    def _member(self) -> Value:
        """The port of the member whose entry has been read."""
        return self._members.reads[0].data

    def _answer(self, m: Module, status: ManageStatus) -> None:
        """Ends the change. Used inside a state, of which it is the end."""
        response = self.changes.response.payload
        m.d.sync += [response.status.eq(status), response.index.eq(self._entry)]
        m.next = "RESPOND"

    def _respond(self, m: Module) -> None:
        """The state RESPOND: the answer is taken."""
        with m.State("RESPOND"):
            m.d.comb += self.changes.response.valid.eq(1)
            with m.If(self.changes.response.ready):
                m.next = "TAKE"

    def _waits(self, fsm) -> Value:
        """It waits for somebody else."""
        return (
            (fsm.ongoing("TAKE") & ~self.changes.request.valid)
            | (fsm.ongoing("RESPOND") & ~self.changes.response.ready)
            | (self.quiesce.valid & ~self.quiesce.ready)
            | (self.flush.valid & ~self.flush.ready)
            | (self.flushed.ready & ~self.flushed.valid)
            | (self.wipe.valid & ~self.wipe.ready)
            | (self.wiped.ready & ~self.wiped.valid)
            | (self.rewind.valid & ~self.rewind.ready)
        )

    def _clear(self, m: Module) -> None:
        """The state CLEAR, after a reset: the tables begin empty."""
        entry, at_port = self._entry, self._at_port
        with m.State("CLEAR"):
            for table in (self._arrays, self._volumes, self._uses):
                m.d.comb += table.store()
            m.d.comb += self._migrations.write.eq(1)
            m.d.sync += [entry.eq(entry + 1), at_port.eq(at_port + 1)]
            with m.If(entry == max(self._config.arrays, self._config.volumes, MAX_DRIVES) - 1):
                m.next = "TAKE"

    def _take(self, m: Module) -> None:
        """The state TAKE: the next change."""
        asked = self.changes.request
        with m.State("TAKE"):
            m.d.comb += asked.ready.eq(1)
            m.d.sync += [
                self._request.eq(asked.payload),
                self._read_entry.eq(0),
                self._at_port.eq(0),
                self._position.eq(0),
                self._entry.eq(0),
                self._has_free.eq(0),
                self._smallest.eq(Mux(asked.payload.placed, asked.payload.blocks, ~0)),
                self._named.eq(0),
                self._calm.eq(0),
                self._wiped.eq(0),
            ]
            with m.If(asked.valid):
                with m.Switch(asked.payload.opcode):
                    with m.Case(ManageOpcode.CREATE_ARRAY):
                        m.next = "COUNT_DRIVES"
                    with m.Case(*self._of_array):
                        m.d.sync += self._read_entry.eq(asked.payload.array)
                        m.next = "READ_ARRAY"
                    with m.Case(ManageOpcode.DELETE_VOLUME):
                        m.d.sync += self._read_entry.eq(asked.payload.volume)
                        m.next = "READ_VOLUME"
                    with m.Default():
                        self._answer(m, ManageStatus.INVALID_FIELD)

    # CREATE_ARRAY. Every drive named is looked at, then the level, the capacity and the table.
    # ``position`` counts the drives, and once they are known those that have joined. With
    # background work members whose drive is not there are failed from the beginning, as many as the
    # level tolerates. They are failed also if a drive appears before they join, because nobody has
    # looked at it. In an array that is brought up each drive has its position.

    def _count_drives(self, m: Module) -> None:
        """The states COUNT_DRIVES and COMPARE_DRIVE, in turn for each port."""
        config, health, at_port = self._config, self._health, self._at_port
        blocks, smallest, position = self._blocks, self._smallest, self._position
        away = Signal()
        unavailable = Signal()
        counted = Signal()

        with m.State("COUNT_DRIVES"):
            taken = (health.states.used | self.decisions.reserved).bit_select(at_port, 1)
            absent = health.absent.bit_select(at_port, 1)
            known_port = (at_port < config.ports) | self._request.placed
            empty = absent & self._request.degraded & known_port
            m.d.comb += self.placed_read.address.eq(at_port)
            m.d.sync += [
                blocks.eq(Array(self.capacity)[at_port]),
                away.eq(empty),
                unavailable.eq(taken | (absent & ~empty)),
                counted.eq(self._named_port),
            ]
            with m.If(at_port == 0):
                m.d.sync += self._gone.eq(0)
            m.next = "COMPARE_DRIVE"

        with m.State("COMPARE_DRIVE"):
            placed = self.placed_read.data
            lost = away | (self._request.placed & placed.failed)
            missing = lost | (self._request.placed & placed.stale)
            m.d.sync += at_port.eq(at_port + 1)
            m.next = "COUNT_DRIVES"
            with m.If(self._last_port):
                m.next = "ADMIT"
            with m.If(counted):
                m.d.sync += position.eq(position + 1)
                with m.If((blocks < smallest) & ~lost):
                    m.d.sync += smallest.eq(blocks)
                m.d.sync += self._gone.bit_select(self._place, 1).eq(missing)
                asks_too_much = self._request.placed & missing & ~self._request.degraded
                with m.If(unavailable | asks_too_much):
                    self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)

    def _admit(self, m: Module) -> None:
        """The states ADMIT and JUDGE: whether the level allows these drives."""
        rules = self._rules
        with m.State("ADMIT"):
            m.d.comb += rules.start.eq(1)
            m.next = "JUDGE"

        with m.State("JUDGE"):
            with m.If(rules.done):
                m.next = "MEASURE"
                if self._config.background:
                    with m.If(self._gone.any()):
                        m.next = "TOLERATE"
                with m.If(~rules.allowed):
                    self._answer(m, ManageStatus.INVALID_FIELD)

    def _tolerate(self, m: Module) -> None:
        """The states TOLERATE and TOLERATED: whether it allows that these drives are not there."""
        rules = self._rules
        m.submodules.missing = missing = Missing()
        m.d.comb += [
            missing.members.eq(self._gone),
            missing.width.eq(rules.width),
            missing.parities.eq(rules.parities),
            missing.copies.eq(rules.shape_copies),
            missing.spans.eq(rules.shape_spans),
        ]
        with m.State("TOLERATE"):
            m.d.comb += missing.start.eq(1)
            m.next = "TOLERATED"

        with m.State("TOLERATED"):
            with m.If(missing.done):
                m.next = "MEASURE"
                with m.If(~missing.tolerated):
                    self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)

    def _measure(self, m: Module) -> None:
        """The states MEASURE and WEIGH: how large the array is."""
        request, shape, rules, capacity = self._request, self._shape, self._rules, self._capacity
        with m.State("MEASURE"):
            m.d.comb += capacity.start.eq(1)
            m.next = "WEIGH"

        with m.State("WEIGH"):
            m.d.sync += [
                shape.valid.eq(1),
                shape.level.eq(request.level),
                shape.width.eq(rules.width),
                shape.data.eq(rules.data),
                shape.parities.eq(rules.parities),
                shape.copies.eq(rules.shape_copies),
                shape.spans.eq(rules.shape_spans),
                shape.strip_shift.eq(request.strip_shift),
                shape.rotate.eq(rules.rotate),
                shape.rotation.eq(request.rotation),
                shape.rows.eq(capacity.rows),
                shape.blocks.eq(capacity.blocks),
                shape.data_offset.eq(self._data_offset),
                shape.assumed.eq(request.assumed),
            ]
            with m.If(capacity.done):
                m.next = "ASK_ARRAY"
                with m.If(capacity.rows == 0):
                    self._answer(m, ManageStatus.NO_SPACE)
                with m.Elif(capacity.overflow):
                    self._answer(m, ManageStatus.INVALID_FIELD)

    def _find_free(self, m: Module) -> None:
        """The states ASK_ARRAY and FIND_ARRAY, in turn for each entry, until one is free."""
        read_entry = self._read_entry
        with m.State("ASK_ARRAY"):
            m.next = "FIND_ARRAY"

        with m.State("FIND_ARRAY"):
            m.d.comb += self.placed_read.address.eq(0)
            m.d.sync += [
                self._entry.eq(read_entry),
                read_entry.eq(read_entry + 1),
                self._at_port.eq(0),
                self._position.eq(0),
            ]
            with m.If(~self._arrays.reads[0].data.valid):
                m.next = "JOIN_DRIVES"
            with m.Elif(read_entry == self._config.arrays - 1):
                self._answer(m, ManageStatus.NO_ENTRY)
            with m.Else():
                m.next = "ASK_ARRAY"

    def _make_array(self, m: Module) -> None:
        """The states JOIN_DRIVES, one cycle a port, and WRITE_ARRAY."""
        uses, health, position = self._uses, self._health, self._position
        with m.State("JOIN_DRIVES"):
            m.d.comb += [
                uses.write.data.used.eq(1),
                uses.write.data.array.eq(self._entry),
                self.placed_read.address.eq(self._at_port + 1),
            ]
            m.d.sync += self._at_port.eq(self._at_port + 1)
            with m.If(self._named_port):
                place = Cat(self._place, self._entry[: self._config.array_bits])
                m.d.comb += [
                    *uses.store(),
                    *self._members.store(address=place),
                    health.joins.eq(1 << self._port),
                ]
                m.d.sync += position.eq(position + 1)
                placed, port_bit = self.placed_read.data, 1 << self._port
                unseen = self._gone.bit_select(self._place, 1)
                stale = self._request.placed & placed.stale & ~placed.failed
                fails = (unseen & ~stale) | (self._request.placed & placed.failed)
                m.d.comb += [
                    health.fails.eq(Mux(fails, port_bit, 0)),
                    health.renewed.eq(Mux(stale, port_bit, 0)),
                ]
            with m.If(self._last_port):
                m.next = "WRITE_ARRAY"

        with m.State("WRITE_ARRAY"):
            m.d.comb += [*self._arrays.store(data=self._shape), self._edited.eq(1)]
            self._answer(m, ManageStatus.DONE)

    def _find_array(self, m: Module) -> None:
        """The states READ_ARRAY and CHECK_ARRAY: the array of a change must exist.

        So must that of a change of its volumes or members.
        """
        request, read_entry, entry = self._request, self._read_entry, self._entry
        with m.State("READ_ARRAY"):
            m.next = "CHECK_ARRAY"

        with m.State("CHECK_ARRAY"):
            found = self._arrays.reads[0].data
            end = Mux(request.blocks == 0, found.blocks, request.start + request.blocks)
            m.d.sync += [
                self._shape.eq(found),
                read_entry.eq(0),
                entry.eq(0),
                self._volume_end.eq(end),
            ]
            m.next = "READ_VOLUME"
            with m.If((read_entry >= self._config.arrays) | ~found.valid):
                self._answer(m, ManageStatus.NO_ENTRY)
            with m.Elif(request.opcode == ManageOpcode.CREATE_VOLUME):
                m.next = "PLACE_VOLUME"
            if self._config.background:
                with m.Elif(request.opcode == ManageOpcode.SETTLE):
                    m.next = "READ_WRITTEN"
                with m.Elif(request.opcode == ManageOpcode.END_MIGRATION):
                    m.d.sync += entry.eq(request.array)
                    m.next = "READ_MIGRATION"
                with m.Elif(
                    (request.opcode == ManageOpcode.REPLACE) | self._returns | self._migrates
                ):
                    m.d.sync += [
                        self._at_port.eq(request.port),
                        self._position.eq(request.position),
                        entry.eq(request.array),
                    ]
                    m.next = "READ_MEMBER"

    # Volumes. From READ_VOLUME on every volume is looked at for CREATE_VOLUME and CHECK_EMPTY, and
    # for DELETE_ARRAY, which goes on with QUIESCE. For DELETE_VOLUME only that one is.

    def _look_at_volumes(self, m: Module) -> None:
        """The states PLACE_VOLUME, in which CREATE_VOLUME goes on, to CHECK_VOLUME."""
        request, shape, end = self._request, self._shape, self._volume_end
        read_entry, entry = self._read_entry, self._entry

        with m.State("PLACE_VOLUME"):
            m.next = "READ_VOLUME"
            with m.If((request.start >= shape.blocks) | (end > shape.blocks)):
                self._answer(m, ManageStatus.NO_SPACE)

        with m.State("READ_VOLUME"):
            m.next = "CHECK_VOLUME"

        with m.State("CHECK_VOLUME"):
            other = self._volumes.reads[0].data
            same = Signal()
            overlaps = Signal()
            last = Signal()
            m.d.comb += [
                same.eq(other.valid & (other.array == request.array)),
                overlaps.eq((other.start < end) & (request.start < other.start + other.blocks)),
                last.eq(read_entry == self._config.volumes - 1),
            ]
            m.d.sync += read_entry.eq(read_entry + 1)
            named = request.placed & (read_entry == request.volume)
            with m.If(~other.valid & (~self._has_free | named)):
                m.d.sync += [entry.eq(read_entry), self._has_free.eq(1)]
            m.next = "READ_VOLUME"
            with m.If(request.opcode == ManageOpcode.DELETE_VOLUME):
                m.d.sync += entry.eq(read_entry)
                m.next = "ERASE_VOLUME"
                with m.If((read_entry >= self._config.volumes) | ~other.valid):
                    self._answer(m, ManageStatus.NO_ENTRY)
            with m.Elif(request.opcode != ManageOpcode.CREATE_VOLUME):
                with m.If(same):
                    self._answer(m, ManageStatus.IN_USE)
                with m.Elif(last):
                    self._go_on_without_volumes(m)
            with m.Else():
                with m.If(same & overlaps):
                    self._answer(m, ManageStatus.NO_SPACE)
                with m.Elif(last):
                    m.next = "QUIESCE"
                    with m.If(~self._has_free & other.valid):
                        self._answer(m, ManageStatus.NO_ENTRY)

    def _go_on_without_volumes(self, m: Module) -> None:
        """The array has no volumes: CHECK_EMPTY ends, and DELETE_ARRAY goes on."""
        m.d.sync += [self._entry.eq(self._request.array), self._at_port.eq(0)]
        m.next = "QUIESCE"
        if self._config.background:
            with m.If(self._request.opcode == ManageOpcode.CHECK_EMPTY):
                self._answer(m, ManageStatus.DONE)

    def _delete_array(self, m: Module) -> None:
        """The states ERASE_ARRAY to LEAVE_DRIVES.

        DELETE_ARRAY goes on with ERASE_ARRAY when nothing refers to the array any more.
        """
        uses, at_port, use = self._uses, self._at_port, self._uses.reads[0].data

        with m.State("ERASE_ARRAY"):
            m.d.comb += [*self._arrays.store(), self._edited.eq(1)]
            m.d.comb += self._migrations.write.eq(1)
            m.next = "READ_USE"

        with m.State("READ_USE"):
            m.next = "LEAVE_DRIVES"

        with m.State("LEAVE_DRIVES"):
            m.d.sync += at_port.eq(at_port + 1)
            with m.If(use.used & (use.array == self._request.array)):
                m.d.comb += [*uses.store(), self._health.leaves.eq(1 << self._port)]
            m.next = "READ_USE"
            with m.If(self._last_port):
                self._answer(m, ManageStatus.DONE)

    def _quiesce(self, m: Module) -> None:
        """The state QUIESCE: all that refers to volume ``entry``, or to the array, has ended."""
        opcode, asked = self._request.opcode, self.quiesce.payload
        of_volume = (opcode == ManageOpcode.CREATE_VOLUME) | (
            opcode == ManageOpcode.DELETE_VOLUME
        )
        m.d.comb += [
            asked.of_array.eq(~of_volume),
            asked.goes.eq(opcode == ManageOpcode.DELETE_ARRAY),
            asked.number.eq(Mux(of_volume, self._entry, self._request.array)),
        ]

        with m.State("QUIESCE"):
            m.d.comb += self.quiesce.valid.eq(1)
            self._part(m)
            with m.If(self.quiesce.ready):
                with m.Switch(opcode):
                    with m.Case(ManageOpcode.CREATE_VOLUME):
                        m.next = "WRITE_VOLUME"
                    with m.Case(ManageOpcode.DELETE_VOLUME):
                        self._answer(m, ManageStatus.DONE)
                    with m.Case(ManageOpcode.DELETE_ARRAY):
                        m.next = "ERASE_ARRAY"
                    if self._config.background:
                        with m.Default():
                            m.next = "LEAVE"

    def _part(self, m: Module) -> None:
        """In a state: the drive at the port is no member any more, if a migration has ended so."""
        migrated = self._request.opcode == ManageOpcode.END_MIGRATION
        with m.If(migrated & self._joined):
            m.d.comb += self.parting.eq(1 << self._port)

    def _leave(self, m: Module) -> None:
        """The state LEAVE: the drive at the port is the array's no more, and is free now."""
        with m.State("LEAVE"):
            self._part(m)
            m.d.comb += [*self._uses.store(), self._health.leaves.eq(1 << self._port)]
            m.d.sync += self.changes.response.payload.status.eq(ManageStatus.DONE)
            m.next = "RESPOND"

    # SETTLE. A job has written to the array, and all its live drives are flushed. One that has
    # restarted and is kept is flushed as well. What it has lost before that, its volumes are told
    # of (`hdl.background.debts.Debts`), and a RESYNC or ZERO has made its rows right. So it is
    # suspect no longer, or a job could not end before the host has flushed something. If it
    # restarts again before it has flushed, it is suspect again, and its array in doubt.
    #
    # With ``complete`` the stale drives have all their blocks, and are trusted once they have
    # flushed. One that does not do that is failed. Each is judged by its own flush. If another
    # drive does not flush, a stale one that did is trusted all the same: to fail it would take
    # redundancy away as another drive fails to store what it should.
    #
    # The answer's `MigrationEnd` is not JOINED if a drive has not flushed, unless it has failed by
    # then. So it is known first what becomes of those that restart.

    def _settle(self, m: Module) -> None:
        """The states READ_WRITTEN and NOTE_WRITTEN, in turn for each port, to TRUST."""
        request, health, at_port, written, rebuilt = (
            self._request, self._health, self._at_port, self._written, self._rebuilt
        )  # fmt: skip
        states = health.states
        m.d.comb += self.flush.payload.eq(written)

        with m.State("READ_WRITTEN"):
            with m.If(at_port == 0):
                m.d.sync += [written.eq(0), rebuilt.eq(0)]
            m.next = "NOTE_WRITTEN"

        with m.State("NOTE_WRITTEN"):
            use = self._uses.reads[0].data
            with m.If(use.used & (use.array == request.array)):
                port_bit = 1 << self._port
                m.d.sync += written.eq(written | (port_bit & ~states.failed))
                with m.If(request.complete):
                    m.d.sync += rebuilt.eq(rebuilt | (port_bit & states.stale))
            m.d.sync += at_port.eq(at_port + 1)
            m.next = "READ_WRITTEN"
            with m.If(self._last_port):
                m.next = "FLUSH_WRITTEN"

        with m.State("FLUSH_WRITTEN"):
            m.d.comb += self.flush.valid.eq(1)
            with m.If(self.flush.ready):
                m.d.comb += health.absolves.eq(written)
                m.next = "TRUST"

        with m.State("TRUST"):
            m.d.comb += self.flushed.ready.eq(~states.undecided)
            with m.If(self.flushed.valid & ~states.undecided):
                self._trust(m)

    def _trust(self, m: Module) -> None:
        """Ends SETTLE: drives that were rebuilt and have been flushed are trusted."""
        health, rebuilt, stored = self._health, self._rebuilt, self.flushed.payload
        states = health.states
        missed = self._written & ~stored & ~states.failed
        # What has gone meanwhile is stale no longer.
        lost = rebuilt & (~states.stale | states.failed)
        joined = ~(missed | lost).any() & (rebuilt.any() | ~self._request.complete)
        m.d.comb += [
            self._edited.eq(1),
            health.settles.eq(rebuilt & stored),
            health.fails.eq(rebuilt & ~stored),
        ]
        self._answer(m, ManageStatus.DONE)
        end = Mux(joined, MigrationEnd.JOINED.value, MigrationEnd.RELEASED.value)
        m.d.sync += self.changes.response.payload.index.eq(end << MIGRATION_END_SHIFT)

    # REPLACE, RE_ADD and MIGRATE. The member must be failed, or for MIGRATE must not be. The new
    # drive must be free, or the old one that failed, and as large. RE_ADD reads the member's port
    # first, and then it is ``named``.
    #
    # A drive that was the member is stale only once nothing is inside that was planned before it
    # had failed. Otherwise a row, or a read, could go on with it as if it had never been away, and
    # its late reports would be about a drive that is good. So the array is quiesced first, with the
    # drive still failed. Then all is checked once more, as the drive may have gone, and the array
    # is ``calm``. After that the drive is ``wiped``, in the same manner. A port that has failed
    # takes no operations but these, and by then nobody else has any for it.
    #
    # Only then it is said, on ``rewind``, that nothing of the array is rebuilt. `REWIND_CYCLES`
    # later everybody has read that. From then on the change is not refused. A drive that is absent
    # meanwhile has ``left``. It joins, and has failed by that.

    def _check_member(self, m: Module) -> None:
        """The states READ_MEMBER to CALM_MEMBER: whether the drive may join."""
        request, health, position, shape = (
            self._request, self._health, self._position, self._shape
        )  # fmt: skip
        member, port = self._member, self._port
        with m.State("READ_MEMBER"):
            m.d.sync += self._blocks.eq(Array(self.capacity)[port])
            m.next = "CHECK_MEMBER"

        with m.State("CHECK_MEMBER"):
            same_drive = member == port
            kept = health.states.used & (~health.lost | ~same_drive.replicate(MAX_DRIVES))
            taken = kept | health.absent | self.decisions.reserved
            member_failed = health.states.failed.bit_select(member, 1)
            stranger = self._returns & ~self._identities.same
            out_of_range = ~self._returns & (request.port >= self._config.ports)
            m.d.sync += [self._old_port.eq(member), self._pause.eq(0), self._left.eq(0)]
            m.next = "REWIND_MEMBER"
            if self._config.metadata:
                with m.If(~self._wiped):
                    m.next = "WIPE_MEMBER"
            with m.If(~self._migrates & same_drive & ~self._calm):
                m.next = "CALM_MEMBER"
            with m.If((request.position >= MAX_DRIVES) | (position >= shape.width * shape.spans)):
                self._answer(m, ManageStatus.INVALID_FIELD)
            with m.Elif(self._returns & ~self._named):
                m.d.sync += [self._at_port.eq(member), self._named.eq(1)]
                m.next = "READ_MEMBER"
            with m.Elif(self._returns & ~member_failed):
                self._answer(m, ManageStatus.IN_USE)
            with m.Elif(stranger & ~health.absent.bit_select(port, 1)):
                self._answer(m, ManageStatus.OTHER_DRIVE)
            with m.Elif(out_of_range | taken.bit_select(port, 1) | (self._wiped & self._left)):
                self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)
            with m.Elif(member_failed == self._migrates):
                self._answer(m, ManageStatus.IN_USE)
            with m.Elif(self._blocks < shape.rows + data_offset(self._config, shape)):
                self._answer(m, ManageStatus.NO_SPACE)

        with m.State("CALM_MEMBER"):
            m.d.comb += self.quiesce.valid.eq(1)
            with m.If(self.quiesce.ready):
                m.d.sync += self._calm.eq(1)
                m.next = "READ_MEMBER"

    def _wipe_member(self, m: Module) -> None:
        """The states WIPE_MEMBER and WIPED_MEMBER: the drive does not say any more that it belongs
        to somebody. Another one that comes in its place may, so it must not be absent from now on.
        """
        with m.State("WIPE_MEMBER"):
            m.d.comb += [self.wipe.valid.eq(1), self.wipe.payload.eq(self._port)]
            with m.If(self.wipe.ready):
                m.next = "WIPED_MEMBER"

        with m.State("WIPED_MEMBER"):
            m.d.comb += self.wiped.ready.eq(1)
            with m.If(self.wiped.valid):
                m.d.sync += self._wiped.eq(1)
                m.next = "READ_MEMBER"
                with m.If(~self.wiped.payload):
                    self._answer(m, ManageStatus.DRIVE_UNAVAILABLE)

    def _rewind_member(self, m: Module) -> None:
        """The states REWIND_MEMBER and PAUSE_MEMBER.

        Everybody sees that nothing is rebuilt before the drive is stale, or the migration target.
        """
        pause, left = self._pause, self._left
        m.d.comb += self.rewind.payload.eq(self._request.array)
        gone = left | self._health.absent.bit_select(self._port, 1)
        with m.State("REWIND_MEMBER"):
            m.d.comb += self.rewind.valid.eq(1)
            m.d.sync += left.eq(gone)
            with m.If(self.rewind.ready):
                m.next = "PAUSE_MEMBER"

        with m.State("PAUSE_MEMBER"):
            m.d.sync += [pause.eq(pause + 1), left.eq(gone)]
            with m.If(pause == REWIND_CYCLES - 1):
                m.d.sync += pause.eq(0)
                m.next = "JOIN_MEMBER"
                with m.If(self._migrates):
                    m.next = "BEGIN_MIGRATION"

    def _join_member(self, m: Module) -> None:
        """The states JOIN_MEMBER and SWAP_MEMBER.

        The drive is stale before anyone can find it as the member.
        """
        uses, health, port = self._uses, self._health, self._port
        with m.State("JOIN_MEMBER"):
            m.d.comb += [
                *uses.store(used=1, array=self._entry),
                health.joins.eq(1 << port),
                health.renewed.eq(1 << port),
                health.fails.eq(self._left << port),
            ]
            m.next = "SWAP_MEMBER"

        with m.State("SWAP_MEMBER"):
            m.d.comb += [*self._members.store(), self._edited.eq(1)]
            self._answer(m, ManageStatus.DONE)
            with m.If(self._old_port != port):
                # Rows that began before may still write to it.
                m.d.sync += self._at_port.eq(self._old_port)
                m.next = "QUIESCE"

    # MIGRATE and END_MIGRATION. ``at_port`` is the port of the migration target. ``position`` is
    # that of the member, which is read two cycles later.
    #
    # What has been read with FUA, or flushed, is stored on the member, and must be stored on the
    # migration target as they change places. So when all rows are on the target, the migration
    # ``settles``: from then on what is written to either of the two is written with FUA. Once the
    # rows of before have ended, the target is flushed. By then it has stored all that it has, and
    # that stays so until the migration is gone.
    #
    # Then the two drives change places, and the old drive is the target. So rows that began before
    # write both, and so do those that begin after, whatever they take for the member. When those of
    # before have ended, the new member has what they wrote, and the migration is gone. If it fails
    # until then, the old drive is the member again at once. If the old drive fails until then,
    # nobody misses it.

    def _begin_migration(self, m: Module) -> None:
        """The states BEGIN_MIGRATION and WRITE_MIGRATION: a drive that joins has not failed.

        After that it is the migration target.
        """
        uses, health, migrations, port = self._uses, self._health, self._migrations, self._port
        with m.State("BEGIN_MIGRATION"):
            m.d.comb += [
                *uses.store(used=1, array=self._request.array),
                health.joins.eq(1 << port),
                health.fails.eq(self._left << port),
            ]
            m.next = "WRITE_MIGRATION"

        with m.State("WRITE_MIGRATION"):
            m.d.comb += [migrations.entry.valid.eq(1), migrations.write.eq(1), self._edited.eq(1)]
            self._answer(m, ManageStatus.DONE)

    def _load_migration(self, m: Module) -> None:
        """The states READ_MIGRATION, in which END_MIGRATION goes on, to FIND_MIGRATED."""
        current = self._migrations.current
        with m.State("READ_MIGRATION"):
            m.next = "LOAD_MIGRATION"

        with m.State("LOAD_MIGRATION"):
            m.d.sync += [
                self._at_port.eq(current.port),
                self._position.eq(current.position),
            ]
            m.next = "FIND_MIGRATED"
            with m.If(~current.valid):
                self._answer(m, ManageStatus.NO_ENTRY)

        with m.State("FIND_MIGRATED"):
            m.next = "JUDGE_MIGRATION"
            with m.If(self._request.complete):
                m.next = "SETTLE_MIGRATION"

    def _settle_migration(self, m: Module) -> None:
        """The states SETTLE_MIGRATION and CALM_MIGRATION: rows write to both drives with FUA."""
        with m.State("SETTLE_MIGRATION"):
            self._keep_migration(m, self._port, settles=1)
            m.next = "CALM_MIGRATION"

        with m.State("CALM_MIGRATION"):
            m.d.comb += self.quiesce.valid.eq(1)
            with m.If(self.quiesce.ready):
                m.next = "FLUSH_MIGRATION"

    def _keep_migration(self, m: Module, port: Value, *, settles: int) -> None:
        """The migration goes on, and its target is the drive at ``port``."""
        migrations = self._migrations
        m.d.comb += [
            migrations.entry.valid.eq(1),
            migrations.entry.port.eq(port),
            migrations.entry.spare.eq(migrations.current.spare),
            migrations.entry.settles.eq(settles),
            migrations.write.eq(1),
        ]

    def _flush_migration(self, m: Module) -> None:
        """The states FLUSH_MIGRATION to KEEP_MIGRATION.

        What has been migrated may still be in the drive's volatile cache.
        """
        port = self._port
        with m.State("FLUSH_MIGRATION"):
            m.d.comb += [self.flush.valid.eq(1), self.flush.payload.eq(1 << port)]
            with m.If(self.flush.ready):
                m.next = "TRUST_MIGRATION"

        with m.State("TRUST_MIGRATION"):
            m.d.comb += self.flushed.ready.eq(1)
            with m.If(self.flushed.valid):
                m.d.comb += self._health.fails.eq((1 << port) & ~self.flushed.payload)
                m.next = "KEEP_MIGRATION"

        # A drive that fails is seen to be failed a cycle later.
        with m.State("KEEP_MIGRATION"):
            m.next = "JUDGE_MIGRATION"

    def _judge_migration(self, m: Module) -> None:
        """The states JUDGE_MIGRATION and RENEW_MIGRATION.

        They choose which of the two drives goes, as the drives are now.
        """
        health, member, port, complete = (
            self._health, self._member, self._port, self._request.complete
        )  # fmt: skip
        failed = health.states.failed
        joined, renews = self._joined, self._renews
        with m.State("JUDGE_MIGRATION"):
            m.next = "RENEW_MIGRATION"
            m.d.sync += [
                self._migrated_from.eq(member),
                joined.eq(
                    ~failed.bit_select(port, 1) & (failed.bit_select(member, 1) | complete)
                ),
                renews.eq(~complete),
            ]
            # The member may have lost what the other one has, and the host have seen that.
            doubtful = health.states.undecided | self.doubts.bit_select(self._request.array, 1)
            with m.If(complete & doubtful):
                self._keep_migration(m, port, settles=0)
                self._answer(m, ManageStatus.DONE)
                m.d.sync += self.changes.response.payload.index.eq(
                    MigrationEnd.AGAIN.value << MIGRATION_END_SHIFT
                )

        # A drive is stale before anyone can find it as the member.
        with m.State("RENEW_MIGRATION"):
            m.d.comb += health.renewed.eq(Mux(joined & renews, 1 << port, 0))
            m.next = "ERASE_MIGRATION"

    def _end_migration(self, m: Module) -> None:
        """Ends the migration. Rows that began before may still use the drive that leaves."""
        migrations, joined = self._migrations, self._joined
        as_member = Mux(self._renews, MigrationEnd.STALE.value, MigrationEnd.JOINED.value)
        ended = Mux(joined, as_member, MigrationEnd.RELEASED.value)
        m.d.comb += [migrations.entry.valid.eq(0), migrations.write.eq(1), self._edited.eq(1)]
        m.d.sync += [
            self.changes.response.payload.index.eq(
                Cat(self._migrated_from, ended, migrations.current.spare)
            ),
            self._at_port.eq(Mux(joined, self._migrated_from, self._port)),
        ]
        m.next = "QUIESCE"

    def _erase_migration(self, m: Module) -> None:
        """The state ERASE_MIGRATION: member and migration change at once.

        So nobody sees neither or both.
        """
        old, joined = self._migrated_from, self._joined
        with m.State("ERASE_MIGRATION"):
            m.d.comb += self._members.write.enable.eq(joined)
            self._end_migration(m)
            old_lives = ~self._health.states.failed.bit_select(old, 1)
            with m.If(joined & ~self._renews & old_lives):
                self._keep_migration(m, old, settles=1)
                m.d.sync += [self._at_port.eq(old), self._migrated_to.eq(self._port)]
                m.next = "DRAIN_MIGRATION"

    def _drain_migration(self, m: Module) -> None:
        """The states DRAIN_MIGRATION and CONFIRM_MIGRATION: rows of before have ended.

        If the new drive fails, the two change places again at once, so reads and flushes find the
        old one. A new one that restarts may lose what the old one has, so it fails.
        """
        health, joined = self._health, self._joined
        old, new = self._migrated_from, self._migrated_to
        states = health.states
        lost = states.failed.bit_select(new, 1)
        old_lives = ~states.failed.bit_select(old, 1)
        doubted = states.failed | (states.suspect & ~states.kept)
        with m.State("DRAIN_MIGRATION"):
            m.d.comb += self.quiesce.valid.eq(1)
            m.d.comb += health.replaced.eq(Mux(joined & ~lost, 1 << old, 0))
            with m.If(joined & states.suspect.bit_select(new, 1) & ~doubted.bit_select(old, 1)):
                m.d.comb += health.fails.eq(1 << new)
            with m.If(joined & lost & old_lives):
                self._keep_migration(m, new, settles=1)
                m.d.comb += [*self._members.store(), self._edited.eq(1)]
                m.d.sync += joined.eq(0)
            with m.If(self.quiesce.ready):
                m.next = "CONFIRM_MIGRATION"

        with m.State("CONFIRM_MIGRATION"):
            comes_back = lost & (~joined | old_lives)
            m.d.sync += [joined.eq(~comes_back), self._at_port.eq(Mux(comes_back, old, new))]
            m.next = "PART_MIGRATION"

    def _part_migration(self, m: Module) -> None:
        """The state PART_MIGRATION: one of the two is the member, and the other one leaves."""
        with m.State("PART_MIGRATION"):
            m.d.comb += self._members.store()
            self._end_migration(m)
            m.d.sync += self._at_port.eq(
                Mux(self._joined, self._migrated_from, self._migrated_to)
            )

    def _store_volume(self, m: Module) -> None:
        """The states WRITE_VOLUME and ERASE_VOLUME of CREATE_VOLUME and DELETE_VOLUME.

        A command may have got its slot while its namespace did not exist, or was another volume.
        So before a volume is there, commands of its number must have ended. After it is erased,
        those must have ended that may have found it.
        """
        request, volumes = self._request, self._volumes

        with m.State("WRITE_VOLUME"):
            m.d.comb += volumes.store(
                valid=1,
                array=request.array,
                start=request.start,
                blocks=self._volume_end - request.start,
            )
            m.d.comb += self._edited.eq(1)
            self._answer(m, ManageStatus.DONE)

        with m.State("ERASE_VOLUME"):
            m.d.comb += [*volumes.store(), self._edited.eq(1)]
            m.next = "QUIESCE"
