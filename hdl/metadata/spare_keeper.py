"""Keeps hot spares on their drives."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.flow.drive_states import DriveStates
from hdl.flow.geometry import geometry
from hdl.flow.manage import Changes, ManageOpcode, ManageStatus
from hdl.flow.operation import DriveStatus
from hdl.flow.table_read import geometry_read
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.metadata.records import model_read, record, record_read
from hdl.metadata.superblock_facts import UUID_BITS, MdShape, SuperblockFacts
from hdl.metadata.superblock_writer import Edit
from hdl.metadata.superblocks import member_edit
from hdl.nvme.admin.names import IDENTITY_BITS

GLOBAL = int.from_bytes(b" spares ", "little")
"""Upper half of the set of a card's global spares. The lower one is the card's identity."""

GLOBAL_LEVEL = 7
"""Level of that set. md does not know it, and so never starts the set."""

GLOBAL_ROWS = 2
"""Blocks of a member that such a superblock speaks of. A shorter one would be none to md."""

OF_SPARES = (ManageOpcode.ADD_SPARE, ManageOpcode.REMOVE_SPARE, ManageOpcode.DELETE_ARRAY)
"""Changes that are answered once the drives say what has become of the spares."""


def global_set(identity: Value) -> Value:
    """The identity of the set of the global spares of a card."""
    return Cat(identity, Const(GLOBAL, UUID_BITS - IDENTITY_BITS))


def known_spare(config: Config) -> data.StructLayout:
    """The drive at ``port`` is a hot spare, of all arrays or ``dedicated`` to ``array``."""
    return data.StructLayout(
        {"port": config.port_bits, "dedicated": 1, "array": config.array_bits}
    )


def spare_home(config: Config) -> data.StructLayout:
    """The array that a spare is for, if it is ``dedicated``."""
    return data.StructLayout({"dedicated": 1, "array": config.array_bits})


class SpareKeeper(wiring.Component):
    """Writes on the drive of each hot spare that it is one, and zeros once it is none any more.

    A dedicated spare has a superblock of its array, as a spare of md has. A global one belongs to a
    set of its own (`global_set`). The number of its device is beyond those of all roles, and its
    events are 0. So its superblock never counts when sets are judged.

    It goes by what `hdl.background.supervisor.Supervisor` says (``spares``), whoever has changed
    that: the host, the deletion of an array, or a migration whose old drive becomes a spare. If the
    drive goes, it is none any more, and nothing is written to another drive at that port. A spare
    that becomes a member is the business of `hdl.metadata.keeper.Keeper`, which zeros it before.

    The host's changes pass through. The answer to one of `OF_SPARES` waits until the drives say
    what is so. If the drive of an ADD_SPARE or REMOVE_SPARE refuses that, the answer is
    DRIVE_UNAVAILABLE. Then it is so until power goes all the same.

    The host can have the superblock of a drive cleared that is in no array. It is treated as one
    that says that it is a spare, and is none. Nobody else learns of that change. Its answer is DONE
    once the drive has stored zeros. It is IN_USE if the port is that of a member or a spare, or if
    `Keeper` keeps its superblock. It is NO_ENTRY if there is no superblock, and DRIVE_UNAVAILABLE
    if the drive is not there, has been away meanwhile, has been given up, or refuses the zeros.
    One that refuses them says what it says, as before.

    What is written is for the drive that is there. Meanwhile nobody changes the tables: `Keeper`
    rests (``pauses``) from the cycle in which it ``yields``. So no spare becomes a member while it
    is written.

    A dedicated spare that is shorter than a member is forgotten with the power (``exempt``). To md
    one of a RAID 50 or 60 is a spare of the first span.

    A spare takes 8 cycles, what the superblock takes, and what the drive takes.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    changes, passed
        The host's changes, and the same for `hdl.metadata.change_turns.ChangeTurns`, but for drives
        that are cleared.
    found
        A drive has been made a spare because it says that it is one.
    identity
        Of the card.
    capacity
        Blocks of the drive at each port.
    known, blank
        One bit per port. It is known what its drive holds; it holds no superblock.
    drives
        What the tables know of the drives.
    spares
        One bit per port. It is a hot spare.
    tries
        A level. A spare is about to become a member, and counts as none until that has been
        refused.
    wiped
        The drive at this port gets zeros.
    owned
        One bit per port. Its superblock is the business of `hdl.metadata.keeper.Keeper`.
    kept, record_read
        Which arrays have superblocks, and what these say.
    sound, has_model, model_read
        Members that spares of an array may be like, see `hdl.metadata.keeper.Keeper`.
    geometry_read
        Table of the arrays. Nobody else reads it while ``pauses``.
    holds
        A level. Drives are being looked at, which may say that they are spares.
    yields, pauses
        `hdl.metadata.keeper.Keeper` has nothing to do; it does nothing.
    edit, facts, done
        Those of a user of `hdl.metadata.superblocks.Superblocks`, while ``pauses``.
    rests
        Each drive says what is so, or has refused that.
    cleared
        A pulse. The host has had a drive cleared.
    claimed
        One bit per port. Its superblock is that of a spare which is known, or nobody knows what
        it is.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "changes": In(Changes(config)),
                "passed": Out(Changes(config)),
                "found": In(Pulse(known_spare(config))),
                "identity": In(IDENTITY_BITS),
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "known": In(config.ports),
                "blank": In(config.ports),
                "drives": In(DriveStates()),
                "spares": In(MAX_DRIVES),
                "tries": In(1),
                "wiped": In(Pulse(config.port_bits)),
                "owned": In(MAX_DRIVES),
                "kept": In(config.arrays),
                "record_read": Out(record_read(config)),
                "sound": In(MAX_DRIVES),
                "has_model": In(config.arrays),
                "model_read": Out(model_read(config)),
                "geometry_read": Out(geometry_read(config)),
                "holds": In(1),
                "yields": In(1),
                "pauses": Out(1),
                "edit": Out(stream.Signature(member_edit(config))),
                "facts": Out(SuperblockFacts),
                "done": In(stream.Signature(DriveStatus)),
                "rests": Out(1),
                "cleared": Out(1),
                "claimed": Out(MAX_DRIVES),
                "busy": Out(1),
            }
        )
        self._homes = Table(config.array_bits, MAX_DRIVES)
        self._shape = MdShape(config=config)

        # A bit a port. Its spare is for one array. Its superblock may say that it is a spare.
        # It does. It does not have to. The drive has refused what was to be written.
        self._dedicated = Signal(MAX_DRIVES)
        self._says = Signal(MAX_DRIVES)
        self._sure = Signal(MAX_DRIVES)
        self._exempt = Signal(MAX_DRIVES)
        self._refused = Signal(MAX_DRIVES)
        # What is to be written.
        self._makes = Signal(MAX_DRIVES)
        self._erases = Signal(MAX_DRIVES)
        self._todo = Signal(MAX_DRIVES)

        # The spare at hand, its array, and what is known of that; the drive has been away.
        self._port = Signal(config.port_bits)
        self._home = Signal(spare_home(config))
        self._geometry = Signal(geometry(config))
        self._record = Signal(record())
        self._model = Signal(config.port_bits)
        self._away = Signal()

        # The host's change.
        self._opcode = Signal(ManageOpcode)
        self._changed = Signal(known_spare(config))
        self._left = Signal()  # its drive has been away
        self._beyond = Signal()  # there is no such port
        self._said = Signal()  # what it says was of no meaning before it is to be cleared
        self._notes = Signal()  # it is not known yet what the change is about

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.homes = self._homes
        m.submodules.shape = self._shape
        self._connect(m)
        self._watch(m)
        with m.FSM(name="change") as change:
            self._pass_change(m)
            m.d.comb += self._notes.eq(change.ongoing("AWAIT") | change.ongoing("NOTE"))
        with m.FSM(name="write") as write:
            begins = self._rest(m)
            self._load(m)
            self._write(m)
            m.d.comb += [
                self.pauses.eq(begins | ~write.ongoing("REST")),
                self.rests.eq(self._is_written & write.ongoing("REST")),
            ]
        self._hear_wiped(m)
        self._hear_found(m)
        self._forget_drives(m)
        waits = (
            (write.ongoing("REST") & ~begins)
            | (write.ongoing("SEND") & ~self.edit.ready)
            | (write.ongoing("LISTEN") & ~self.done.valid)
        ) & (
            (change.ongoing("PASS") & ~(self.changes.request.valid & self.changes.request.ready))
            | (change.ongoing("AWAIT") & ~self.passed.response.valid)
            | (change.ongoing("CLEAR") & ~self._may_clear)
            | (change.ongoing("HOLD") & self._todo.any())
            | (change.ongoing("ANSWER") & ~self.changes.response.ready)
        )
        m.d.comb += self.busy.eq(~waits | self.found.valid)
        return m

    def _connect(self, m: Module) -> None:
        """What is read, and what superblocks of spares say."""
        facts, shape, home, port = self.facts, self._geometry, self._home, self._port
        homes, edit = self._homes, self.edit.payload
        m.d.comb += [
            homes.reads[0].address.eq(port),
            homes.write.address.eq(self._changed.port),
            homes.write.data.eq(self._changed.array),
            self.geometry_read.address.eq(home.array),
            self.record_read.address.eq(home.array),
            self.model_read.address.eq(home.array),
            self._shape.geometry.eq(shape),
            # All roles are those of members, so this one is none.
            facts.alive.eq(~0),
            facts.dirty.eq(1),
            edit.superblock.port.eq(port),
            edit.superblock.role.eq(facts.width + port),
            edit.superblock.like.eq(self._home.dedicated & self._record.made_by_md),
            edit.superblock.model.eq(self._model),
            edit.array.eq(home.array),
        ]
        with m.If(home.dedicated):
            m.d.comb += [
                facts.set_uuid.eq(self._record.set_uuid),
                facts.place.last.eq(shape.spans - 1),
                facts.level.eq(self._shape.level),
                facts.layout.eq(self._shape.layout),
                facts.strip_shift.eq(shape.strip_shift),
                facts.rows.eq(shape.rows),
                facts.data_offset.eq(shape.data_offset),
                facts.width.eq(shape.width),
            ]
        with m.Else():
            m.d.comb += [
                facts.set_uuid.eq(global_set(self.identity)),
                facts.level.eq(GLOBAL_LEVEL),
                facts.rows.eq(GLOBAL_ROWS),
                facts.data_offset.eq(DATA_OFFSET_BLOCKS),
                facts.width.eq(1),
            ]

    def _watch(self, m: Module) -> None:
        """Which drives do not say what is so. What is known of a drive is not known of another."""
        drives, spares, free = self.drives, self.spares, self._is_free & ~self._refused
        m.d.comb += [
            self._makes.eq(free & spares & ~(self._sure | self._exempt)),
            self._erases.eq(free & ~spares & self._says),
            self._todo.eq(self._makes | self._erases),
            self.claimed.eq(spares | self._says | self._refused),
        ]
        is_spare = spares | self.tries.replicate(MAX_DRIVES)
        m.d.sync += [
            # The old drive of a migration becomes one for all arrays, whatever it was before.
            self._dedicated.eq(self._dedicated & is_spare),
            self._sure.eq(self._sure & is_spare),
            self._exempt.eq(self._exempt & spares),
            self._away.eq(self._away | ~drives.present.bit_select(self._port, 1)),
            self._left.eq(self._left | ~drives.present.bit_select(self._changed.port, 1)),
        ]

    @property
    def _stays(self) -> Value:
        """The drive of each port is the one that it was, and no member."""
        return self.drives.present & ~self.drives.used

    @property
    def _is_free(self) -> Value:
        """The drive of each port may be written."""
        return self.drives.present & ~(self.drives.used | self.owned)

    def _forget_drives(self, m: Module) -> None:
        """Whatever else happens in a cycle: what was known of a drive that goes is not known."""
        stays = self._stays
        for port in range(MAX_DRIVES):
            with m.If(~stays[port]):
                m.d.sync += [
                    self._says[port].eq(0),
                    self._sure[port].eq(0),
                    self._refused[port].eq(0),
                    self._exempt[port].eq(0),
                ]

    def _hear_wiped(self, m: Module) -> None:
        """A drive is about to become a member. It may not be taken in the end."""
        with m.If(self.wiped.valid):
            m.d.sync += self._sure.bit_select(self.wiped.payload, 1).eq(0)

    def _hear_found(self, m: Module) -> None:
        """A drive says that it is a spare, which it is from now on."""
        found = self.found.payload
        with m.If(self.found.valid):
            m.d.comb += self._homes.store(address=found.port, data=found.array)
            m.d.sync += [
                self._dedicated.bit_select(found.port, 1).eq(found.dedicated),
                self._says.bit_select(found.port, 1).eq(1),
                self._sure.bit_select(found.port, 1).eq(1),
            ]

    def _pass_change(self, m: Module) -> None:
        """The states PASS to ANSWER: a change is made, and what follows from it is written."""
        request, response = self.changes.request, self.changes.response
        asked, told = self.passed.request, self.passed.response
        changed = self._changed
        bit = changed.port
        with m.State("PASS"):
            clears = request.payload.opcode == ManageOpcode.FOREIGN
            m.d.comb += [
                asked.payload.eq(request.payload),
                asked.valid.eq(request.valid & ~clears),
                request.ready.eq(asked.ready | clears),
            ]
            m.d.sync += [
                self._left.eq(0),
                self._beyond.eq(request.payload.port >= self._config.ports),
                self._opcode.eq(request.payload.opcode),
                changed.port.eq(request.payload.port),
                changed.dedicated.eq(request.payload.dedicated),
                changed.array.eq(request.payload.array),
            ]
            with m.If(request.valid & clears):
                m.next = "CLEAR"
            with m.Elif(request.valid & asked.ready):
                m.next = "AWAIT"

        with m.State("AWAIT"):
            m.d.comb += told.ready.eq(1)
            m.d.sync += response.payload.eq(told.payload)
            of_spares = Cat(self._opcode == opcode for opcode in OF_SPARES).any()
            with m.If(told.valid):
                m.next = "ANSWER"
                with m.If(of_spares & (told.payload.status == ManageStatus.DONE)):
                    m.next = "NOTE"

        # Nobody finds spares meanwhile: the answer has been taken, but none of that change.
        with m.State("NOTE"):
            with m.If(~self.found.valid):
                m.next = "HOLD"
                with m.If(self._opcode != ManageOpcode.DELETE_ARRAY):
                    m.d.sync += self._refused.bit_select(bit, 1).eq(0)
                with m.If(self._opcode == ManageOpcode.ADD_SPARE):
                    m.d.comb += self._homes.store()
                    m.d.sync += self._dedicated.bit_select(bit, 1).eq(changed.dedicated)

        # From now on what the drive holds is of no meaning to those who look for arrays.
        with m.State("CLEAR"):
            m.d.sync += [
                response.payload.eq(0),
                response.payload.status.eq(ManageStatus.DRIVE_UNAVAILABLE),
            ]
            says = self._says.bit_select(bit, 1)
            with m.If(self._may_clear):
                m.next = "ANSWER"
                with m.If(self._stayed & self._is_kept.bit_select(bit, 1)):
                    m.d.sync += response.payload.status.eq(ManageStatus.IN_USE)
                with m.Elif(self._stayed & self.blank.bit_select(bit, 1)):
                    m.d.sync += response.payload.status.eq(ManageStatus.NO_ENTRY)
                with m.Elif(self._stayed & ~self.drives.failed.bit_select(bit, 1)):
                    m.d.sync += [
                        self._said.eq(says),
                        says.eq(1),
                        self._refused.bit_select(bit, 1).eq(0),
                        response.payload.status.eq(ManageStatus.DONE),
                    ]
                    m.next = "HOLD"

        with m.State("HOLD"):
            # A spare may have become a member by now.
            adds = self._opcode == ManageOpcode.ADD_SPARE
            used = self.drives.used.bit_select(bit, 1)
            has = (self._sure | self._exempt).bit_select(bit, 1) | used
            clears = self._opcode == ManageOpcode.FOREIGN
            removes = (self._opcode == ManageOpcode.REMOVE_SPARE) | clears
            # One that has left may come back and say what it said.
            fails = (adds & ~has) | (removes & (self._says.bit_select(bit, 1) | self._left))
            with m.If(self._is_written):
                m.next = "ANSWER"
                m.d.comb += self.cleared.eq(clears & ~fails)
                with m.If(fails):
                    m.d.sync += response.payload.status.eq(ManageStatus.DRIVE_UNAVAILABLE)
                # It may have become a spare, as a migration has ended.
                with m.If(fails & clears & self._is_kept.bit_select(bit, 1)):
                    m.d.sync += response.payload.status.eq(ManageStatus.IN_USE)
                with m.Elif(fails & clears & ~self._said):
                    m.d.sync += [
                        self._says.bit_select(bit, 1).eq(0),
                        self._refused.bit_select(bit, 1).eq(0),
                    ]

        with m.State("ANSWER"):
            m.d.comb += response.valid.eq(1)
            with m.If(response.ready):
                m.next = "PASS"

    @property
    def _is_kept(self) -> Value:
        """What the drive of each port says is not to be cleared."""
        return self.drives.used | self.spares | self.owned

    @property
    def _may_clear(self) -> Value:
        """It is known what the drive of the change holds, and nobody looks at it."""
        known = self.known.bit_select(self._changed.port, 1)
        return (known | ~self._stayed) & ~self.holds & ~self.tries

    @property
    def _stayed(self) -> Value:
        """The drive of the change is there, and has been since that was asked for."""
        there = self.drives.present.bit_select(self._changed.port, 1)
        return there & ~self._left & ~self._beyond

    @property
    def _is_written(self) -> Value:
        """Each drive says what is so, or has refused that."""
        return ~self._todo.any() & ~self.tries

    @property
    def _is_open(self) -> Value:
        """What is a spare is about to change, or is not known yet."""
        return self.holds | self.tries | self._notes

    def _rest(self, m: Module) -> Value:
        """The state REST: until a drive does not say what is so. Returns whether one does not, and
        can be written."""
        begins = Signal()
        m.d.comb += begins.eq(self._todo.any() & self.yields & ~self._is_open)
        with m.State("REST"):
            m.d.sync += [self._port.eq(lowest_bit(m, self._todo, "first")), self._away.eq(0)]
            with m.If(begins):
                m.next = "ASK"
        return begins

    def _load(self, m: Module) -> None:
        """The states ASK to LOADED: the array that the spare is for."""
        with m.State("ASK"):
            m.next = "ASKED"

        with m.State("ASKED"):
            m.d.sync += [
                self._home.dedicated.eq(self._dedicated.bit_select(self._port, 1)),
                self._home.array.eq(self._homes.reads[0].data),
            ]
            m.next = "LOAD"

        with m.State("LOAD"):
            m.next = "LOADED"

        with m.State("LOADED"):
            m.d.sync += [
                self._geometry.eq(self.geometry_read.data),
                self._record.eq(self.record_read.data),
                self._model.eq(self.model_read.data),
            ]
            m.next = "CHOOSE"

    def _write(self, m: Module) -> None:
        """The states CHOOSE to LISTEN: what is to be written, if that is still so."""
        port, edit = self._port, self.edit.payload
        makes = self._makes.bit_select(port, 1)
        says, sure = self._says.bit_select(port, 1), self._sure.bit_select(port, 1)
        kept = self.kept.bit_select(self._home.array, 1)
        shape, array = self._geometry, self._home.array
        short = Array(self.capacity)[port] < shape.rows + shape.data_offset
        has_model = self.has_model.bit_select(array, 1) & self.sound.bit_select(self._model, 1)
        lacks_model = self._record.made_by_md & ~has_model
        unfit = self._home.dedicated & (~kept | short | lacks_model)
        with m.State("CHOOSE"):
            m.d.sync += edit.superblock.edit.eq(Mux(makes & ~unfit, Edit.MAKE, Edit.ERASE))
            m.next = "SEND"
            with m.If(self._away | ~(makes | self._erases.bit_select(port, 1))):
                m.next = "REST"
            with m.Elif(makes & unfit & ~says):
                m.d.sync += self._exempt.bit_select(port, 1).eq(1)
                m.next = "REST"
            with m.Else():
                # From now on the drive may say so, whatever the answer is.
                m.d.sync += [says.eq(1), sure.eq(0)]

        with m.State("SEND"):
            m.d.comb += self.edit.valid.eq(1)
            with m.If(self.edit.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            m.d.comb += self.done.ready.eq(1)
            good = self.done.payload == DriveStatus.GOOD
            made = edit.superblock.edit == Edit.MAKE
            with m.If(self.done.valid):
                m.next = "REST"
                with m.If(~self._away & good):
                    m.d.sync += [says.eq(made), sure.eq(made)]
                with m.Elif(~self._away):
                    m.d.sync += self._refused.bit_select(port, 1).eq(1)
