"""Keeps the superblocks of the members as their arrays are."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, Config
from hdl.flow.array_state import ArrayState
from hdl.flow.drive_states import DriveStates
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.manage import Changes, ManageOpcode, ManageStatus
from hdl.flow.operation import DriveStatus
from hdl.flow.table_read import geometry_read, member_read
from hdl.kit.pick import lowest_bit
from hdl.kit.table import Table
from hdl.metadata.records import record, record_read
from hdl.metadata.superblock_facts import MdShape, SuperblockFacts
from hdl.metadata.superblock_writer import Edit, superblock_edit
from hdl.nvme.admin.names import Card

ROLE_BITS = (MAX_DRIVES - 1).bit_length()

COUNT_BITS = 32
"""Arrays are counted from power-up on."""

FOLLOWED = (
    ManageOpcode.CREATE_ARRAY,
    ManageOpcode.REPLACE,
    ManageOpcode.RE_ADD,
    ManageOpcode.SETTLE,
    ManageOpcode.END_MIGRATION,
)
"""Changes after which the superblocks of an array are written."""


def home(config: Config) -> data.StructLayout:
    """The array that the superblock of a drive is of, and its role there."""
    return data.StructLayout({"role": ROLE_BITS, "array": config.array_bits})


class Keeper(wiring.Component):
    """Writes the superblocks of all members when their array changes.

    Changes of the tables pass through. An answer passes once the superblocks say what the change
    has made: those of all members after CREATE_ARRAY, REPLACE, RE_ADD, SETTLE and END_MIGRATION.
    That of a drive that has left its array becomes zeros.

    A drive whose superblock says that it is a member (``noted``) and that fails is a danger until
    the other members say that it is none. If power went it would be as fresh as they are, and has
    missed what was written since. So nothing may be acknowledged while the keeper ``withholds``.
    Then every other member is written twice, each time with one more event, so that the failed one
    is two events behind. md takes a drive that is one event behind for a member. The loss of a
    drive of an array that has FAILED is not written down. Such an array acknowledges nothing that
    only other drives hold, and it may be whole again when the drive comes back.

    md cannot express some arrays. What their members held before becomes zeros, so that no array
    comes back that has been written over. They are forgotten with the power.

    New members are written before the others. If power goes in between, the new one is fresher than
    they are, and is found. The other way round they would speak of a member that nobody finds.

    A member that does not store its superblock is failed, unless its array needs it. Then it stays,
    with what it has, and is tried again with the next change.

    A superblock is ``dirty`` while the array is in use and has redundancy, since power may go in
    the middle of a row. It is clean once the host has shut the card down.

    The members of an array take 3,500 cycles each and what their drives take.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    changes
        Changes of the tables.
    table_changes
        These changes, for `hdl.array.tables.tables.ArrayTables`.
    brought_up
        A level. With a CREATE_ARRAY that is ``placed``: what the superblocks of the array say.
    card
        What identities of arrays are made of. The lower half of one is the card's identity.
    drives
        What the tables know of the drives.
    states
        Two bits per array (`ArrayState`).
    unsynced
        One bit per array. Not all its rows are in sync.
    essential
        One bit per port. Its array needs its drive.
    settled
        ``states`` and ``essential`` are up to date.
    clean
        A level. Nothing is written to arrays, and all that was is stored.
    geometry_read
        Table of the arrays.
    member_read
        Table of the members.
    edit, facts, done
        Those of a user of `hdl.metadata.superblocks.Superblocks`.
    fail
        Ports whose drive does not store its superblock.
    record_read
        What the superblocks of an array say. Only of one that is ``kept``.
    kept
        One bit per array. It is there, and its members are written.
    withholds
        Nothing may be acknowledged to the host.
    rests
        Every superblock says what is so.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "changes": In(Changes(config)),
                "table_changes": Out(Changes(config)),
                "brought_up": In(record()),
                "card": In(Card()),
                "drives": In(DriveStates()),
                "states": In(2 * config.arrays),
                "unsynced": In(config.arrays),
                "essential": In(MAX_DRIVES),
                "settled": In(1),
                "clean": In(1),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "edit": Out(stream.Signature(superblock_edit(config))),
                "facts": Out(SuperblockFacts),
                "done": In(stream.Signature(DriveStatus)),
                "fail": Out(stream.Signature(config.port_bits)),
                "record_read": In(record_read(config)),
                "kept": Out(config.arrays),
                "withholds": Out(1),
                "rests": Out(1),
                "busy": Out(1),
            }
        )
        self._records = Table(record(), config.arrays, reads=2)
        self._homes = Table(home(config), MAX_DRIVES)
        self._shape = MdShape(config=config)

        # A bit a port: its drive has a superblock that says it is a member, or zeros if md cannot
        # express the array. It has been away, or has failed, since.
        self._noted = Signal(MAX_DRIVES)
        self._left = Signal(MAX_DRIVES)
        # A bit an array: its superblocks must be written.
        self._due = Signal(config.arrays)
        self._was_clean = Signal()

        # The array at hand: what it is, how many members it has, and what its superblocks say; which of its drives have
        # failed; whether a loss is being written down, for the second time, and of which drive;
        # whether only new members are written. A round over its members starts. Its record is
        # stored.
        self._array = Signal(config.array_bits)
        self._geometry = Signal(geometry(config))
        self._members = Signal(WIDTH_BITS)
        self._record = Signal(record())
        self._failed = Signal(MAX_DRIVES)
        self._loses = Signal()
        self._again = Signal()
        self._cause = Signal(config.port_bits)
        self._makes = Signal()
        self._starts_round = Signal()
        self._stores = Signal()
        # The member at hand. It is none any more.
        self._leaves = Signal()
        self._role = Signal(WIDTH_BITS)
        self._port = Signal(config.port_bits)

        # Changes: the one that the tables make, and what arrays that are new are called.
        self._opcode = Signal(ManageOpcode)
        self._changed = Signal(config.array_bits)
        self._placed = Signal()
        self._count = Signal(COUNT_BITS)
        self._nonce = Signal(len(self.card.nonce))
        self._named = Signal()  # the nonce has been taken

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.records = self._records
        m.submodules.homes = self._homes
        m.submodules.shape = self._shape
        self._connect_tables(m)
        self._watch_drives(m)
        with m.FSM(name="change") as change:
            self._pass_change(m)
        with m.FSM(name="keep") as keep:
            self._rest(m)
            self._load(m)
            self._look_at_members(m)
            self._write_member(m)
            self._end(m)
        waits = (
            (keep.ongoing("REST") & ~self._has_work)
            | (keep.ongoing("SEND") & ~self.edit.ready)
            | (keep.ongoing("LISTEN") & ~self.done.valid)
            | (keep.ongoing("REFUSED") & ~self.settled)
            | (keep.ongoing("FAIL") & ~self.fail.ready)
        ) & (
            (change.ongoing("PASS") & ~self.changes.request.valid)
            | (change.ongoing("PASS") & ~self.table_changes.request.ready)
            | (change.ongoing("AWAIT") & ~self.table_changes.response.valid)
            | (change.ongoing("HOLD") & ~self.rests)
            | (change.ongoing("ANSWER") & ~self.changes.response.ready)
        )
        m.d.comb += self.busy.eq(~waits)
        return m

    def _connect_tables(self, m: Module) -> None:
        """Which entries are read, and what is written of a superblock."""
        records, geometry, facts = self._records, self._geometry, self.facts
        clean = self.clean & ~self.unsynced.bit_select(self._array, 1)
        has_redundancy = (geometry.parities != 0) | (geometry.copies > 1)
        connect(m, flipped(self.record_read), records.reads[1])
        m.d.comb += [
            records.reads[0].address.eq(self._array),
            self.geometry_read.address.eq(self._array),
            self.member_read.address.eq(Cat(self._role[:ROLE_BITS], self._array)),
            self._homes.reads[0].address.eq(self._port),
            self._homes.write.address.eq(self._port),
            self._homes.write.data.role.eq(self._role),
            self._homes.write.data.array.eq(self._array),
            self._shape.geometry.eq(geometry),
            facts.set_uuid.eq(self._record.set_uuid),
            facts.level.eq(self._shape.level),
            facts.layout.eq(self._shape.layout),
            facts.strip_shift.eq(geometry.strip_shift),
            facts.rows.eq(geometry.rows),
            facts.width.eq(geometry.width),
            facts.events.eq(self._record.events),
        ]
        with m.If(self._starts_round):
            m.d.sync += facts.dirty.eq(has_redundancy & ~clean)

    def _watch_drives(self, m: Module) -> None:
        """Which drives have been lost, and which have left their arrays."""
        drives, noted = self.drives, self._noted
        self._lost = lost = Signal(MAX_DRIVES)
        self._leavers = leavers = Signal(MAX_DRIVES)
        self._has_work = Signal()
        m.d.comb += [
            lost.eq(noted & drives.used & drives.failed),
            leavers.eq(noted & ~drives.used),
            self.withholds.eq(lost.any()),
            self._has_work.eq(
                (lost.any() & self.settled) | leavers.any() | (self._due & self.kept).any()
            ),
        ]
        m.d.sync += [
            self._left.eq((self._left | drives.failed) & noted),
            self._was_clean.eq(self.clean),
        ]
        with m.If(self.clean != self._was_clean):
            m.d.sync += self._due.eq(self.kept)

    def _pass_change(self, m: Module) -> None:
        """The states PASS to ANSWER: a change is made, and what follows from it is written."""
        request, response = self.changes.request, self.changes.response
        asked, told = self.table_changes.request, self.table_changes.response
        creates = self._opcode == ManageOpcode.CREATE_ARRAY
        done = response.payload.status == ManageStatus.DONE
        with m.State("PASS"):
            m.d.comb += [
                asked.payload.eq(request.payload),
                asked.valid.eq(request.valid),
                request.ready.eq(asked.ready),
            ]
            m.d.sync += [
                self._opcode.eq(request.payload.opcode),
                self._changed.eq(request.payload.array),
                self._placed.eq(request.payload.placed),
            ]
            with m.If(asked.valid & asked.ready):
                m.next = "AWAIT"

        with m.State("AWAIT"):
            m.d.comb += told.ready.eq(1)
            m.d.sync += response.payload.eq(told.payload)
            with m.If(told.valid):
                m.next = "NOTE"
                with m.If(creates):
                    m.d.sync += self._changed.eq(told.payload.index)

        # The record of a new array is written as no other is.
        with m.State("NOTE"):
            with m.If(~self._stores):
                m.next = "HOLD"
                with m.If(done):
                    self._note_change(m)

        with m.State("HOLD"):
            with m.If(self.rests):
                m.next = "ANSWER"

        with m.State("ANSWER"):
            m.d.comb += response.valid.eq(1)
            with m.If(response.ready):
                m.next = "PASS"

    def _note_change(self, m: Module) -> None:
        """What is to be written after a change that has been made."""
        kept = self.kept.bit_select(self._changed, 1)
        with m.Switch(self._opcode):
            with m.Case(*FOLLOWED):
                m.d.sync += self._due.bit_select(self._changed, 1).eq(1)
        with m.If(self._opcode == ManageOpcode.DELETE_ARRAY):
            m.d.sync += kept.eq(0)
        with m.If(self._opcode == ManageOpcode.CREATE_ARRAY):
            self._name_array(m)
            m.d.sync += [kept.eq(1), self._named.eq(1)]

    def _name_array(self, m: Module) -> None:
        """The record of a new array, which is not that of any other.

        The bits of the nonce are in reverse, so that it meets the count of another power-up late.
        """
        nonce = Mux(self._named, self._nonce, self.card.nonce)
        own = Cat(self.card.identity, nonce[::-1] ^ self._count)
        m.d.sync += [self._nonce.eq(nonce), self._count.eq(self._count + ~self._placed)]
        m.d.comb += self._records.store(address=self._changed)
        with m.If(self._placed):
            m.d.comb += self._records.write.data.eq(self.brought_up)
        with m.Else():
            m.d.comb += self._records.write.data.set_uuid.eq(own)

    # What is written. A drive that is lost comes first, then those that have left, then arrays.

    def _rest(self, m: Module) -> None:
        """The states REST to LEAVE: what is to be done next."""
        lost, leavers, due = self._lost, self._leavers, self._due & self.kept
        port = self._port
        with m.State("REST"):
            m.d.comb += self.rests.eq(
                ~(lost.any() | self._has_work) & (self.clean == self._was_clean)
            )
            m.d.sync += [
                self._loses.eq(0),
                self._again.eq(0),
                port.eq(lowest_bit(m, Mux(lost.any(), lost, leavers), "first_port")),
                self._array.eq(lowest_bit(m, due, "first_array")),
            ]
            with m.If(lost.any()):
                with m.If(self.settled):
                    m.next = "FIND"
            with m.Elif(leavers.any()):
                m.next = "LEAVE"
            with m.Elif(due.any()):
                m.next = "LOAD"

        with m.State("FIND"):
            m.next = "JUDGE"

        with m.State("JUDGE"):
            found = self._homes.reads[0].data.array
            state = self.states.word_select(found, 2)
            m.d.sync += [self._array.eq(found), self._loses.eq(1), self._cause.eq(port)]
            m.next = "LOAD"
            with m.If(state == ArrayState.FAILED):
                m.d.sync += self._noted.bit_select(port, 1).eq(0)
                m.next = "REST"

        # A drive that has been away may be another one by now.
        with m.State("LEAVE"):
            away = (self._left | self.drives.failed).bit_select(port, 1)
            m.d.sync += [
                self._leaves.eq(1),
                self.edit.payload.edit.eq(Edit.ERASE),
                self.edit.payload.port.eq(port),
            ]
            m.next = "SEND"
            with m.If(away):
                m.d.sync += self._noted.bit_select(port, 1).eq(0)
                m.next = "REST"

    def _load(self, m: Module) -> None:
        """The states LOAD to KNOW: what the array at hand is."""
        with m.State("LOAD"):
            m.d.sync += [self._role.eq(0), self._failed.eq(0), self._leaves.eq(0)]
            m.next = "LOADED"

        with m.State("LOADED"):
            m.d.sync += [
                self._geometry.eq(self.geometry_read.data),
                self._record.eq(self._records.reads[0].data),
                self._due.bit_select(self._array, 1).eq(0),
                self.facts.alive.eq(0),
                self.facts.rebuilding.eq(0),
            ]
            m.next = "KNOW"

        with m.State("KNOW"):
            m.d.sync += self._members.eq(self._geometry.width * self._geometry.spans)
            m.next = "ASK_MEMBER"
            with m.If(~self._geometry.valid):
                m.d.sync += self.kept.bit_select(self._array, 1).eq(0)
                m.next = "REST"

    def _look_at_members(self, m: Module) -> None:
        """The states ASK_MEMBER, NOTE_MEMBER and BEGIN: which roles are held."""
        role, drives, facts = self._role, self.drives, self.facts
        last = role == self._members - 1
        with m.State("ASK_MEMBER"):
            m.next = "NOTE_MEMBER"

        with m.State("NOTE_MEMBER"):
            port = self.member_read.data
            failed = drives.failed.bit_select(port, 1)
            m.d.sync += [
                facts.alive.bit_select(role[:ROLE_BITS], 1).eq(~failed),
                facts.rebuilding.bit_select(role[:ROLE_BITS], 1).eq(
                    ~failed & drives.stale.bit_select(port, 1)
                ),
                self._failed.eq(self._failed | Mux(failed, 1 << port, 0)),
                role.eq(Mux(last, 0, role + 1)),
            ]
            m.next = "ASK_MEMBER"
            with m.If(last):
                m.next = "BEGIN"

        with m.State("BEGIN"):
            m.d.comb += self._starts_round.eq(1)
            m.d.sync += self._makes.eq(~self._again)
            m.d.sync += self._record.events.eq(self._record.events + 1)
            m.next = "ASK_PORT"

    def _write_member(self, m: Module) -> None:
        """The states ASK_PORT to FAIL: the superblock of the member at hand is written."""
        role, port, noted = self._role, self._port, self._noted
        alive = self.facts.alive.bit_select(role[:ROLE_BITS], 1)
        edit, found = self.edit.payload, self._homes.reads[0].data
        with m.State("ASK_PORT"):
            m.next = "NOTE_PORT"

        with m.State("NOTE_PORT"):
            m.d.sync += port.eq(self.member_read.data)
            m.next = "ASK_HOME"
            with m.If(~alive):
                m.next = "NEXT"

        with m.State("ASK_HOME"):
            m.next = "CHOOSE"

        with m.State("CHOOSE"):
            at_home = (found.role == role) & (found.array == self._array)
            has = (noted & ~self._left).bit_select(port, 1) & at_home
            expressible = self._shape.expressible
            m.d.sync += [
                edit.edit.eq(Mux(~expressible, Edit.ERASE, Mux(has, Edit.CHANGE, Edit.MAKE))),
                edit.role.eq(role),
                edit.port.eq(port),
            ]
            m.next = "SEND"
            with m.If((self._makes == has) | (has & ~expressible)):
                m.next = "NEXT"
            # Another drive may be there.
            with m.Elif(self.drives.failed.bit_select(port, 1)):
                self._miss(m)

        with m.State("SEND"):
            m.d.comb += self.edit.valid.eq(1)
            with m.If(self.edit.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            m.d.comb += self.done.ready.eq(1)
            good = self.done.payload == DriveStatus.GOOD
            with m.If(self.done.valid):
                m.d.sync += noted.bit_select(port, 1).eq(good & ~self._leaves)
                m.next = "REFUSED"
                with m.If(self._leaves):
                    m.next = "REST"
                with m.Elif(good):
                    m.d.comb += self._homes.store()
                    m.d.sync += self._left.bit_select(port, 1).eq(0)
                    m.next = "NEXT"

        with m.State("REFUSED"):
            with m.If(self.drives.failed.bit_select(port, 1)):
                self._miss(m)
            with m.Elif(self.settled):
                m.next = "FAIL"
                with m.If(self.essential.bit_select(port, 1)):
                    m.next = "NEXT"

        with m.State("FAIL"):
            m.d.comb += [self.fail.valid.eq(1), self.fail.payload.eq(port)]
            with m.If(self.fail.ready):
                self._miss(m)

    def _miss(self, m: Module) -> None:
        """Ends a state: the member at hand has failed. If it is new the others are not told of it.
        If it is not noted they say that it is there, and nobody else would have that changed."""
        with m.If(~self._noted.bit_select(self._port, 1)):
            m.d.sync += self._due.bit_select(self._array, 1).eq(1)
        m.next = "NEXT"
        with m.If(self._makes):
            m.next = "REST"

    def _end(self, m: Module) -> None:
        """The states NEXT and STORE: the next member, or the second time, or the end."""
        role = self._role
        with m.State("NEXT"):
            m.d.sync += role.eq(role + 1)
            m.next = "ASK_PORT"
            with m.If(role == self._members - 1):
                m.d.sync += [role.eq(0), self._makes.eq(0)]
                with m.If(~self._makes):
                    m.d.sync += self._again.eq(1)
                    m.next = "STORE"
                    with m.If(self._loses & ~self._again):
                        m.next = "BEGIN"

        # What was lost as the members were looked at has been written down.
        with m.State("STORE"):
            recorded = self._failed | Mux(self._loses, 1 << self._cause, 0)
            m.d.comb += [
                self._stores.eq(1),
                *self._records.store(address=self._array, data=self._record),
            ]
            m.d.sync += self._noted.eq(self._noted & ~recorded)
            m.next = "REST"
