"""Keeps the superblocks of the members as their arrays are."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, Config
from hdl.flow.array_state import ArrayState
from hdl.flow.drive_states import DriveStates
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.manage import Changes, ManageOpcode, ManageStatus, MigrationEnd
from hdl.flow.operation import DriveStatus
from hdl.flow.table_read import geometry_read, member_read
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table, TableRead
from hdl.metadata.bitmap import md_uses
from hdl.metadata.records import listed, model_read, record, record_read, span_read
from hdl.metadata.spans import SPAN_BITS
from hdl.metadata.superblock_facts import EVENT_BITS, MdShape, SuperblockFacts
from hdl.metadata.superblock_writer import PAGES, Edit
from hdl.metadata.superblocks import edited, member_edit
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

OF_VOLUMES = (ManageOpcode.CREATE_VOLUME, ManageOpcode.DELETE_VOLUME)
"""Changes after which its lists of volumes are written as well."""

WEIGHED = (*OF_VOLUMES, ManageOpcode.DELETE_ARRAY, ManageOpcode.MIGRATE)
"""Changes that an array must be ``listed`` for."""


def home(config: Config) -> data.StructLayout:
    """The array that the superblock of a drive is of, and its role there."""
    return data.StructLayout({"role": ROLE_BITS, "array": config.array_bits})


class Keeper(wiring.Component):
    """Writes the superblocks of all members when their array changes.

    Changes of the tables pass through. An answer passes once the superblocks say what the change
    has made.

    A drive's superblock **claims** that it is a member from the first attempt to write that. The
    claim is false (``lost``) once the drive fails, goes away, is exchanged, leaves its array, or
    must be rebuilt while its superblock says that it is whole. If power went then, the drive would
    be as good as the others, and has missed what was written since. So nothing of that array is
    acknowledged to the host (``withholds``) until the claim is refuted: all members that it has now
    are written twice, each time with one more event. Then the false one is two events behind. md
    takes a drive that is one event behind for a member. New members are written before the others.
    If power goes in between, the new one is fresher than they are and is found. The other way round
    they would speak of a member that nobody finds. Only then the superblock of a drive that has
    left becomes zeros.

    Drives take their superblocks side by side: the new members, and then the others. If a drive or
    a member changes, or one does not store its superblock, the round breaks off, once all drives
    that have been sent theirs have answered. It begins anew with what is so by then and the same
    number of events. So no good member is ever more than one event behind. The one that failed may
    have what the round wrote, so it takes a round more to refute it. A member that does not store
    its superblock is failed. One that its array needs stays. If a loss had to be written it falls
    behind, and may be missed when power comes the next time.

    Of an array that has FAILED no loss is written down, unless it is a RAID 10. What other drives
    hold is not acknowledged for the drive that is lost. The array may be whole when its drives come
    back. In a RAID 10 copies that are left are acknowledged, so the loss of one counts. An array
    with redundancy whose drives went one after the other is ``forsaken``: what was written to the
    last ones alone is not acknowledged. It is so no longer once it has not FAILED any more, and the
    losses have been written down.

    While the card is ``clean`` there is no host, and no loss is written down either. Drives of a
    card that was shut down may lose their power one after the other.

    A superblock is ``dirty`` while the array is in use and has redundancy, since power may go in
    the middle of a row, and while its rows are not in sync. With `Config.durable_marks` an array
    that is ``idle`` is not in use. Rows of it wait (``says_clean``) from the first superblock that
    says so on, until all members say that it is dirty again. Of an array that has FAILED this is
    written once a row waits (``waits``), to the drives that are left. It costs one event, and the
    others keep their roles, so they are as good as these when they come back.

    A drive that is to take the place of a member may hold another superblock. It becomes zeros
    (``wipe``) before anything else is written to the drive. So do its lists, to see whether the
    drive stores them.

    To md each span of a RAID 50 or 60 is an array of its own, with roles of its own. All spans are
    written as one. Linux may have used one of them alone. So one may have more events than another,
    and keeps them: members of a span that got far more than the others would be alone if power went
    before they had them as well.

    The superblock of a new member of an array that Linux has made is like that of another member
    (``has_model``), as it says more that all have in common: the time at which it was made, a name.
    If there is none, a drive gets no superblock, as if it had refused that. The other members of an
    array that is brought up keep what does not change.

    Each member has the list of the array's volumes as well. It is written to a drive that becomes a
    member, and to all members after each change of a volume. A list is newer than another one if
    its ``generation`` is greater. Each round has its own, greater than any that has been read.
    Of an array that is brought up no list is written until the volumes are there that its drives
    list (``listed``). Until then the host changes none of its volumes, which is refused as
    NO_ENTRY, and neither deletes the array nor migrates a member, which is refused as IN_USE. If
    nobody has stored the list after a change of a volume, that ends as DRIVE_UNAVAILABLE. Then it
    is so until power goes, or until a later list has been stored. A volume that is attached or
    detached is like one that has changed (``store``).

    With `Config.durable_marks` all members get the bitmap of the array before each round, so that
    none of them says that it is a member and has an old one. In it all is marked that stale members
    may lack. A drive is only zeroed once no bitmap
    is on its way to it.

    The members of an array take 700 cycles each, and together what the slowest of each
    ``config.superblock_lines`` drives takes. If the list is written they take 5,100 more and what
    their drives take, one after the other.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    changes
        Changes of the tables.
    store, stored
        Those of `hdl.flow.attachments.Attachments`.
    table_changes
        These changes, for `hdl.array.tables.tables.ArrayTables`.
    brought_up
        A level. With a CREATE_ARRAY that is ``placed``: what the superblocks of the array say.
    span_read
        How often each span of that array has changed.
    card
        What identities of arrays are made of. The lower half of one is the card's identity.
    drives
        What the tables know of the drives.
    parting
        One bit per port. It has left its array, in which rows of before may still use it.
    states
        Two bits per array (`ArrayState`).
    unsynced
        One bit per array. Not all its rows are in sync.
    doubts
        One bit per array. Rows may be torn, which ``unsynced`` does not say yet.
    essential
        One bit per port. Its array needs its drive.
    settled
        ``states`` and ``essential`` are up to date.
    clean
        A level. The host writes nothing, and all that it wrote is stored.
    idle
        With `Config.durable_marks`: one bit per array. All that was written to it is stored.
    says_clean
        One bit per array. If it has redundancy a superblock may say that it is clean.
    waits
        With `Config.durable_marks`, a pulse: a row of this array waits, as it ``says_clean``.
    geometry_read
        Table of the arrays.
    member_read
        Table of the members.
    known, valid
        One bit per port. What its drive holds is known; a superblock is kept of it.
    edit, facts, done
        Those of a user of `hdl.metadata.superblocks.Superblocks`.
    wipe, wiped
        Drives that are about to become members, see `hdl.array.tables.tables.ArrayTables`.
    opens
        One bit per port. Operations go to this port though it has failed. Nobody has others for it.
    fail
        Ports whose drive does not store its superblock.
    record_read
        What the superblocks of an array say. Only of one that is ``kept``.
    kept
        One bit per array. It is there, and its members are written.
    claimed
        One bit per port. Its superblock is not what it should be, or belongs to an array that is
        there. No array may be brought up from it.
    owned
        One bit per port. It is the keeper's: it has been written, or is to become zeros.
    sound
        One bit per port. Its superblock is what was written last.
    steady
        One bit per array. Its superblocks say what is so, and its rows are in sync.
    home_read
        The array that the superblock at a port belongs to.
    has_model, model_read
        One bit per array. A superblock of one of its members is kept. The port of that drive.
    listed
        The volumes of an array are there that its drives list.
    newest
        A level. With a CREATE_ARRAY that is ``placed``: the greatest generation of its lists.
    generation
        A level. With ``edit``: that of the list.
    exempt, forget, refresh, fresh, under_way
        With `Config.durable_marks`: those of `hdl.metadata.stored_marks.StoredMarks`.
    writing
        With `Config.durable_marks`: bitmaps that are being written, one bit per port.
    whole
        One bit per array. Rows of it that are not marked may be out of sync as well.
    raw
        One bit per array. It is new, and ``whole`` does not say so yet.
    filled, loaded
        With `Config.durable_marks`, pulses: all rows of this array are marked, or those that its
        drives have marked.
    unmarked
        One bit per array. Its stale members may lack more than is marked yet.
    yields, pauses
        It has nothing to do; it does nothing, and passes no change on, from the cycle of ``yields``
        on.
    withholds
        One bit per array. Nothing of it may be acknowledged to the host.
    forsaken
        One bit per array. No write to it may be acknowledged.
    rests
        Every superblock says what is so, and every list of an array that is ``listed``.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "changes": In(Changes(config)),
                "store": In(stream.Signature(config.volume_bits)),
                "stored": Out(stream.Signature(1)),
                "table_changes": Out(Changes(config)),
                "brought_up": In(record()),
                "span_read": Out(span_read()),
                "card": In(Card()),
                "drives": In(DriveStates()),
                "parting": In(MAX_DRIVES),
                "states": In(2 * config.arrays),
                "unsynced": In(config.arrays),
                "doubts": In(config.arrays),
                "essential": In(MAX_DRIVES),
                "settled": In(1),
                "known": In(config.ports),
                "valid": In(config.ports),
                "clean": In(1),
                "idle": In(config.arrays),
                "says_clean": Out(config.arrays),
                "waits": In(Pulse(config.array_bits)),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "edit": Out(stream.Signature(member_edit(config))),
                "facts": Out(SuperblockFacts),
                "done": In(stream.Signature(edited(config))),
                "wipe": In(stream.Signature(config.port_bits)),
                "wiped": Out(stream.Signature(1)),
                "opens": Out(MAX_DRIVES),
                "fail": Out(stream.Signature(config.port_bits)),
                "record_read": In(record_read(config)).array(3),
                "kept": Out(config.arrays),
                "claimed": Out(config.ports),
                "owned": Out(MAX_DRIVES),
                "sound": Out(MAX_DRIVES),
                "steady": Out(config.arrays),
                "home_read": In(TableRead(config.port_bits, config.array_bits)),
                "has_model": Out(config.arrays),
                "model_read": In(model_read(config)),
                "listed": In(Pulse(listed(config))),
                "newest": In(EVENT_BITS),
                "generation": Out(EVENT_BITS),
                "exempt": Out(config.arrays),
                "whole": In(config.arrays),
                "raw": Out(config.arrays),
                "filled": In(Pulse(config.array_bits)),
                "loaded": In(Pulse(config.array_bits)),
                "unmarked": Out(config.arrays),
                "forget": Out(Pulse(config.array_bits)),
                "refresh": Out(Pulse(config.array_bits)),
                "fresh": In(config.arrays),
                "under_way": In(config.arrays),
                "writing": In(MAX_DRIVES),
                "yields": Out(1),
                "pauses": In(1),
                "withholds": Out(config.arrays),
                "forsaken": Out(config.arrays),
                "rests": Out(1),
                "busy": Out(1),
            }
        )
        self._records = Table(record(), config.arrays, reads=4)
        # By span and array: how many more events its superblocks have than those of the first.
        self._more = Table(EVENT_BITS, 1 << (SPAN_BITS + config.array_bits))
        self._homes = Table(home(config), MAX_DRIVES, reads=2)
        self._models = Table(config.port_bits, config.arrays, reads=2)
        self._owners = Table(config.array_bits, config.volumes)  # the array of each volume
        self._shape = MdShape(config=config)

        # A bit a port. Its superblock claims that its drive is a member. It is what was written
        # last. It says that the drive is not whole. The drive has failed or been away since.
        self._claims = Signal(MAX_DRIVES)
        # The same of each array: the drives whose superblocks were written for it.
        self._of = tuple(Signal(MAX_DRIVES, name=f"of_{n}") for n in range(config.arrays))
        self._known = Signal(MAX_DRIVES)
        self._partial = Signal(MAX_DRIVES)
        self._away = Signal(MAX_DRIVES)
        # A bit a port. Its array has failed, and the claim may stand. It is to become zeros once
        # the drive has left. It has not become zeros.
        self._excused = Signal(MAX_DRIVES)
        self._erases = Signal(MAX_DRIVES)
        self._refuses = Signal(MAX_DRIVES)
        self._lost = Signal(MAX_DRIVES)
        self._leavers = Signal(MAX_DRIVES)

        # A bit an array. Its superblocks must be written. That must be done twice, since drives
        # with old ones may be among its members. A round has not come to its end. It was made with
        # rows that are not in sync, which nobody else knows yet.
        self._due = Signal(config.arrays)
        self._twice = Signal(config.arrays)
        self._torn = Signal(config.arrays)
        self._inconsistent = Signal(config.arrays)
        self._doubted = Signal(config.arrays)
        # A bit an array. It is a RAID 10 or 1E: of some drives others have what these held.
        self._striped_copies = Signal(config.arrays)
        # A bit an array. The volumes that its drives list are there. Its lists must be written.
        self._listed = Signal(config.arrays)
        self._relists = Signal(config.arrays)
        self._was_clean = Signal(init=1)
        self._was_idle = Signal(config.arrays)
        self._was_forsaken = Signal(config.arrays)
        self._awaited = Signal(config.arrays)  # a row waits, if it still says that it is clean
        self._awaits_load = Signal(config.arrays)  # what its stale members may lack is loaded
        self._has_work = Signal()

        self._reads_again = Signal()  # the member at hand is being read

        # The array at hand: what it is, how many members it has, and what its superblocks say.
        self._array = Signal(config.array_bits)
        self._geometry = Signal(geometry(config))
        self._members = Signal(WIDTH_BITS)
        # A bit a role, of all spans: its member is written. What superblocks say of each role
        # (`SuperblockFacts`). The first role of the span at hand.
        self._alive = Signal(MAX_DRIVES)
        self._named_alive = Signal(MAX_DRIVES)
        self._rebuilding = Signal(MAX_DRIVES)
        self._base = Signal(ROLE_BITS)
        self._record = Signal(record())
        self._has_failed = Signal()
        self._has_changed = Signal()  # a drive, or a member of an array, since it was looked at
        # A round over its members starts. It is one of several, and so many follow. The claim of a
        # drive is refuted by that. Only new members are written. The drive has been written itself.
        # The record is stored.
        self._starts_round = Signal()
        self._several = Signal()
        self._first = Signal()
        self._rounds = Signal(2)
        self._refutes = Signal()
        self._cause = Signal(config.port_bits)
        self._makes = Signal()
        self._rewritten = Signal()
        self._lists = Signal()  # the lists of all members are written in this round
        self._list_stored = Signal()  # one of them has stored it
        self._unstored = Signal()  # nobody has stored the list of the change
        self._stores = Signal()
        # One that its array needs has refused what was to be written.
        self._held_back = Signal()
        # A bit a port: it has stored a superblock for the role that it claims.
        self._stored = Signal(MAX_DRIVES)
        # A bit a port, in this round. A superblock is under way to it. It has stored its superblock
        # or need not, or it has refused it. It had one before. What it is sent: that it is being
        # rebuilt, a list.
        self._out = Signal(MAX_DRIVES)
        self._written = Signal(MAX_DRIVES)
        self._refused = Signal(MAX_DRIVES)
        self._was_member = Signal(MAX_DRIVES)
        self._sent_partial = Signal(MAX_DRIVES)
        self._sent_list = Signal(MAX_DRIVES)
        # The drive at hand is no member any more, or is not one yet.
        self._leaves = Signal()
        self._wipes = Signal()
        self._good = Signal()
        self._role = Signal(WIDTH_BITS)
        self._port = Signal(config.port_bits)

        # Changes: the one that the tables make, and what arrays that are new are called.
        self._opcode = Signal(ManageOpcode)
        self._owner = Signal(config.array_bits)  # the array of the volume that is changed
        self._weighed = Signal()  # it may be changed
        self._of_volume = Signal()  # the change is of a volume
        self._changed = Signal(config.array_bits)
        self._placed = Signal()
        self._span = Signal(SPAN_BITS)  # whose events are noted
        self._complete = Signal()
        self._marked = Signal()
        self._assumed = Signal()
        self._count = Signal(COUNT_BITS)
        self._nonce = Signal(len(self.card.nonce))
        self._named = Signal()  # the nonce has been taken
        self._deletes = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.records = self._records
        m.submodules.more = self._more
        m.submodules.homes = self._homes
        m.submodules.models = self._models
        m.submodules.owners = self._owners
        m.submodules.shape = self._shape
        self._connect_tables(m)
        self._say_dirty(m)
        self._watch_drives(m)
        with m.FSM(name="change") as change:
            self._pass_change(m)
            m.d.comb += self._deletes.eq(
                ~change.ongoing("PASS") & (self._opcode == ManageOpcode.DELETE_ARRAY)
            )
        with m.FSM(name="keep") as keep:
            self._rest(m)
            self._load(m)
            self._look_at_members(m)
            self._write_member(m)
            self._drain(m)
            self._end(m)
            asked = keep.ongoing("SEND") | keep.ongoing("LISTEN")
            m.d.comb += self.opens.eq(Mux(self._wipes & asked, 1 << self._port, 0))
            self._say_steady(m, keep.ongoing("REST"), change.ongoing("PASS"))
            if self._config.durable_marks:
                self._refresh(m)
        self._hear_listed(m)
        self._hear_ends(m)
        waits = (
            (keep.ongoing("REST") & (~self._has_work | self.pauses))
            | (keep.ongoing("SEND") & ~self.edit.ready)
            | (keep.ongoing("LISTEN") & ~self.done.valid)
            | self._reads_again
            | (keep.ongoing("DRAIN") & ~self._all_have_ended)
            | (keep.ongoing("BREAK_OFF") & ~self._all_have_ended)
            | (keep.ongoing("REFUSED") & ~self.settled)
            | (keep.ongoing("AWAIT_MARKS") & ~self._is_fresh & ~self._is_outdated)
            | (keep.ongoing("FAIL") & ~self.fail.ready)
            | (keep.ongoing("WIPED") & ~self.wiped.ready)
        ) & (
            (change.ongoing("PASS") & (~self._is_asked | self.pauses))
            | (self.table_changes.request.valid & ~self.table_changes.request.ready)
            | (change.ongoing("AWAIT") & ~self.table_changes.response.valid)
            | ((change.ongoing("HOLD") | change.ongoing("HOLD_LIST")) & ~self.rests)
            | (change.ongoing("NOTE") & self._is_overtaken)
            | (change.ongoing("ANSWER") & ~self.changes.response.ready)
            | (change.ongoing("STORED") & ~self.stored.ready)
        )
        rests = keep.ongoing("REST") & change.ongoing("PASS") & (self.clean == self._was_clean)
        has_work = self._has_work | self.wipe.valid | self._is_asked
        m.d.comb += [
            self.yields.eq(rests & ~has_work & ~self.listed.valid),
            self.busy.eq(
                ~waits
                | self.listed.valid
                | self.waits.valid
                | self.done.valid
                | (self.idle != self._was_idle)
                | (self.forsaken != self._was_forsaken)
            ),
        ]
        return m

    def _connect_tables(self, m: Module) -> None:
        """Which entries are read, and what is written of a superblock."""
        records, shape, facts = self._records, self._geometry, self.facts
        for outer, inner in zip(self.record_read, list(records.reads)[1:], strict=True):
            connect(m, flipped(outer), inner)
        connect(m, flipped(self.model_read), self._models.reads[1])
        m.d.comb += [
            records.reads[0].address.eq(self._array),
            self.geometry_read.address.eq(self._array),
            self.member_read.address.eq(Cat(self._role[:ROLE_BITS], self._array)),
            self._homes.reads[0].address.eq(self._port),
            self._models.reads[0].address.eq(self._array),
            self.edit.payload.superblock.like.eq(self._record.made_by_md),
            self.edit.payload.superblock.model.eq(self._models.reads[0].data),
            self._homes.write.address.eq(self._port),
            self._homes.write.data.role.eq(self._role),
            self._homes.write.data.array.eq(self._array),
            self._owners.reads[0].address.eq(
                Mux(
                    self.changes.request.valid,
                    self.changes.request.payload.volume,
                    self.store.payload,
                )
            ),
            self._owners.write.address.eq(self.changes.response.payload.index),
            self._owners.write.data.eq(self._changed),
            self._shape.geometry.eq(shape),
            facts.set_uuid.eq(self._record.set_uuid),
            facts.place.last.eq(shape.spans - 1),
            facts.alive.eq(self._named_alive >> self._base),
            facts.rebuilding.eq(self._rebuilding >> self._base),
            facts.level.eq(self._shape.level),
            facts.layout.eq(self._shape.layout),
            facts.strip_shift.eq(shape.strip_shift),
            facts.rows.eq(shape.rows),
            facts.data_offset.eq(shape.data_offset),
            facts.width.eq(shape.width),
            facts.events.eq(self._record.events + self._more.reads[0].data),
            self._more.reads[0].address.eq(Cat(facts.place.span, self._array)),
            self.span_read.address.eq(self._span),
            facts.marked.eq(self._config.durable_marks & md_uses(m, self._config, shape)),
        ]

    def _say_dirty(self, m: Module) -> None:
        """Whether superblocks say that rows may be inconsistent."""
        doubtful = (self.unsynced | self._inconsistent).bit_select(self._array, 1)
        m.d.sync += [
            self._inconsistent.eq((self._inconsistent & ~self.unsynced) | self.doubts),
            self._doubted.eq(self.doubts),
        ]
        m.d.sync += self.raw.eq(self.raw & ~self.whole)
        with m.If(self.filled.valid):
            m.d.sync += self.unmarked.bit_select(self.filled.payload, 1).eq(0)
        loaded = self.loaded.payload
        with m.If(self.loaded.valid & self._awaits_load.bit_select(loaded, 1)):
            m.d.sync += self.unmarked.bit_select(loaded, 1).eq(0)
        dirty = (self._is_in_use | doubtful) & self._has_redundancy
        says_clean = self.says_clean.bit_select(self._array, 1)
        with m.If(self._starts_round):
            m.d.sync += [self.facts.dirty.eq(dirty), says_clean.eq(says_clean | ~dirty)]
        with m.If(self._stores & self.facts.dirty):
            self._release(m)

    def _say_steady(self, m: Module, rests: Value, unchanged: Value) -> None:
        """Whose superblocks say what is so."""
        homes = self._homes.reads[1]
        m.d.comb += [
            homes.address.eq(self.home_read.address),
            self.home_read.data.eq(homes.data.array),
        ]
        at_hand = Mux(rests, 0, 1 << self._array)
        in_sync = ~(self.unsynced | self._inconsistent | self.doubts)
        for array, of in enumerate(self._of):
            false = ((self._lost | self._excused) & of).any()
            steady = self.kept & ~self._due & ~at_hand & in_sync
            m.d.comb += self.steady[array].eq(steady[array] & self.settled & unchanged & ~false)

    def _release(self, m: Module) -> None:
        """Rows of the array at hand wait no longer."""
        m.d.sync += [
            self.says_clean.bit_select(self._array, 1).eq(0),
            self._awaited.bit_select(self._array, 1).eq(0),
        ]

    @property
    def _is_in_use(self) -> Value:
        """Rows of the array at hand may be written."""
        return ~(self.clean | self.idle.bit_select(self._array, 1))

    @property
    def _has_redundancy(self) -> Value:
        """The array at hand can lose a drive."""
        return (self._geometry.parities != 0) | (self._geometry.copies > 1)

    def _watch_drives(self, m: Module) -> None:
        """Whose claim is false, and who is to be erased."""
        drives, claims, used = self.drives, self._claims, self.drives.used
        gone = drives.failed | self._away | self.parting
        half = drives.stale & ~self._partial
        false = ((gone & ~self.clean.replicate(MAX_DRIVES)) | half) & ~self._excused
        m.d.comb += [
            self._lost.eq(claims & ((~used & ~self._excused) | false)),
            self._leavers.eq(self._erases & ~used),
            self._has_work.eq(
                self.settled
                & (self._lost | (self._leavers & ~self.writing)).any()
                | (self.settled & (self._due & self.kept).any())
                | (self.wipe.valid & ~self._wipes_later)
            ),
            self.claimed.eq(claims | self._erases | self._refuses),
            self.owned.eq(claims | self._erases),
            self.sound.eq(claims & self._known & ~self._away),
        ]
        m.d.sync += [
            self._away.eq((self._away | drives.failed) & claims),
            self._erases.eq(self._erases & ~drives.failed),
            self._refuses.eq(self._refuses & drives.present),
            self._was_clean.eq(self.clean),
            self._was_idle.eq(self.idle),
            self._was_forsaken.eq(self.forsaken),
        ]
        self._withhold(m)
        # An array may not have failed any more.
        with m.If(~self.settled):
            m.d.sync += self._excused.eq(0)
        with m.If(self.clean != self._was_clean):
            m.d.sync += self._due.eq(self.kept)
        with m.Elif(self.clean):
            m.d.sync += self._due.eq(self._due | (self.doubts & ~self._doubted))
        with m.Else():
            begins, ends = self.idle & ~self._was_idle, self._was_idle & ~self.idle
            turns = begins | (ends & self.says_clean)
            m.d.sync += self._due.eq(self._due | (turns & self.kept))
        with m.If(self.waits.valid):
            awaited = self.waits.payload
            m.d.sync += self._awaited.bit_select(awaited, 1).eq(1)
            with m.If(self.states.word_select(awaited, 2) == ArrayState.FAILED):
                m.d.sync += self._due.bit_select(awaited, 1).eq(1)
        m.d.sync += self._has_changed.eq(self._has_changed | drives.changed)

    def _withhold(self, m: Module) -> None:
        """The arrays of which nothing is acknowledged, and those whose writes do not end well."""
        used = self.drives.used
        told = self._lost & ~(self._deletes.replicate(MAX_DRIVES) & ~used)
        for array, of in enumerate(self._of):
            failed = self.states.word_select(array, 2) == ArrayState.FAILED
            false = (self._lost | self._excused) & self._claims & of
            counts = (false & (~used | ~self.exempt[array].replicate(MAX_DRIVES))).any()
            forsakes = failed & counts & ~self._striped_copies[array]
            m.d.comb += self.withholds[array].eq((told & of).any())
            with m.If(~self.kept[array]):
                m.d.sync += self.forsaken[array].eq(0)
            with m.Elif(self.settled & forsakes):
                m.d.sync += self.forsaken[array].eq(1)
            with m.Elif(self.settled & ~failed & ~false.any()):
                m.d.sync += self.forsaken[array].eq(0)

    def _hear_listed(self, m: Module) -> None:
        """An array has got its volumes. Whatever else happens in this cycle, that is not missed."""
        heard = self.listed.payload
        with m.If(self.listed.valid):
            m.d.sync += self._listed.bit_select(heard.array, 1).eq(1)
            with m.If(heard.anew):
                self._relist(m, heard.array)

    def _relist(self, m: Module, array: Value) -> None:
        """The lists of all members of an array must be written."""
        m.d.sync += [
            self._due.bit_select(array, 1).eq(1),
            self._relists.bit_select(array, 1).eq(1),
        ]

    @property
    def _is_asked(self) -> Value:
        """There is a change, or a volume has been attached or detached."""
        return self.changes.request.valid | self.store.valid

    def _pass_change(self, m: Module) -> None:
        """The states PASS to STORED: a change is made, and what follows from it is written."""
        request, response = self.changes.request, self.changes.response
        asked, told = self.table_changes.request, self.table_changes.response
        creates = self._opcode == ManageOpcode.CREATE_ARRAY
        done = response.payload.status == ManageStatus.DONE
        of_volume = Cat(request.payload.opcode == opcode for opcode in OF_VOLUMES).any()
        weighs = Cat(request.payload.opcode == opcode for opcode in WEIGHED).any()
        passes = (~weighs | self._weighed) & ~self.pauses
        with m.State("PASS"):
            m.d.comb += [
                asked.payload.eq(request.payload),
                asked.valid.eq(request.valid & passes),
                request.ready.eq(asked.ready & passes),
            ]
            m.d.sync += [
                self._opcode.eq(request.payload.opcode),
                self._changed.eq(Mux(of_volume, self._owner, request.payload.array)),
                self._of_volume.eq(of_volume),
                self._unstored.eq(0),
                self._placed.eq(request.payload.placed),
                self._complete.eq(request.payload.complete),
                self._marked.eq(request.payload.marked),
                self._assumed.eq(request.payload.assumed),
            ]
            with m.If(asked.valid & asked.ready):
                m.d.sync += self._weighed.eq(0)
                m.next = "AWAIT"
            with m.Elif(request.valid & ~passes & ~self.pauses):
                m.next = "WEIGH"
            with m.Elif(self.store.valid & ~request.valid & ~self.pauses):
                m.d.sync += self._opcode.eq(ManageOpcode.CREATE_VOLUME)
                m.next = "ASK_OWNER"

        with m.State("WEIGH"):
            deletes = request.payload.opcode == ManageOpcode.DELETE_VOLUME
            owner = Mux(deletes, self._owners.reads[0].data, request.payload.array)
            m.d.sync += [self._owner.eq(owner), self._weighed.eq(1)]
            m.next = "PASS"
            # An array that is not there is the tables' business.
            unlisted = self.kept & ~self._listed
            of_unlisted = unlisted.bit_select(owner[: self._config.array_bits], 1)
            with m.If(of_unlisted & ~request.payload.placed):
                m.next = "REFUSE"

        with m.State("REFUSE"):
            m.d.comb += request.ready.eq(1)
            m.d.sync += [
                self._weighed.eq(0),
                response.payload.status.eq(
                    Mux(of_volume, ManageStatus.NO_ENTRY, ManageStatus.IN_USE)
                ),
                response.payload.index.eq(0),
            ]
            m.next = "ANSWER"

        with m.State("AWAIT"):
            m.d.comb += told.ready.eq(1)
            m.d.sync += response.payload.eq(told.payload)
            with m.If(told.valid):
                m.next = "NOTE"
                with m.If(creates):
                    m.d.sync += self._changed.eq(told.payload.index)
                    with m.If(told.payload.status == ManageStatus.DONE):
                        m.next = "ASK_SPAN"

        with m.State("ASK_SPAN"):
            m.next = "NOTE_SPAN"

        with m.State("NOTE_SPAN"):
            more = Mux(self._placed, self.span_read.data - self.brought_up.events, 0)
            m.d.comb += self._more.store(address=Cat(self._span, self._changed), data=more)
            m.d.sync += self._span.eq(self._span + 1)
            m.next = "ASK_SPAN"
            with m.If(self._span.all()):
                m.next = "NOTE"

        # The record of a new array is written as no other is. A bitmap may be on its way to drives
        # of the array that had its number before.
        with m.State("NOTE"):
            with m.If(~(self._stores | self._starts_round | self._is_overtaken)):
                m.next = "HOLD"
                with m.If(done):
                    self._note_change(m)

        # What is written of a volume is a level, which has changed already.
        with m.State("ASK_OWNER"):
            m.d.sync += self._changed.eq(self._owners.reads[0].data)
            m.next = "RELIST"

        with m.State("RELIST"):
            with m.If(~(self._stores | self._starts_round)):
                m.d.comb += self.store.ready.eq(1)
                self._relist(m, self._changed)
                m.next = "HOLD_LIST"

        with m.State("HOLD_LIST"):
            with m.If(self.rests):
                m.next = "STORED"

        with m.State("STORED"):
            # Once it rests nobody else will write the list.
            unstored = self._relists.bit_select(self._changed, 1)
            m.d.comb += [self.stored.valid.eq(1), self.stored.payload.eq(~unstored)]
            with m.If(self.stored.ready):
                m.next = "PASS"

        with m.State("HOLD"):
            with m.If(self.rests):
                m.next = "ANSWER"
                with m.If(self._of_volume & self._unstored):
                    m.d.sync += response.payload.status.eq(ManageStatus.DRIVE_UNAVAILABLE)

        with m.State("ANSWER"):
            m.d.comb += response.valid.eq(1)
            with m.If(response.ready):
                m.next = "PASS"

    def _note_change(self, m: Module) -> None:
        """What is to be written after a change that has been made."""
        changed = self._changed
        kept = self.kept.bit_select(changed, 1)
        with m.Switch(self._opcode):
            with m.Case(*FOLLOWED):
                m.d.sync += self._due.bit_select(changed, 1).eq(1)
            with m.Case(*OF_VOLUMES):
                with m.If(~self._placed):
                    self._relist(m, changed)
        half_migrated = (self._opcode == ManageOpcode.END_MIGRATION) & (
            self.changes.response.payload.index[5:7] == MigrationEnd.STALE
        )
        with m.If((self._opcode == ManageOpcode.REPLACE) | half_migrated):
            m.d.sync += self.unmarked.bit_select(changed, 1).eq(1)
        with m.If(self._opcode == ManageOpcode.CREATE_VOLUME):
            m.d.comb += self._owners.store()
        with m.If(self._opcode == ManageOpcode.DELETE_ARRAY):
            m.d.sync += kept.eq(0)
        with m.If(self._opcode == ManageOpcode.CREATE_ARRAY):
            self._name_array(m)
            m.d.comb += [self.forget.valid.eq(1), self.forget.payload.eq(changed)]
            m.d.sync += [
                kept.eq(1),
                self.exempt.bit_select(changed, 1).eq(0),
                self.has_model.bit_select(changed, 1).eq(0),
                self.raw.bit_select(changed, 1).eq(~self._assumed),
                self.says_clean.bit_select(changed, 1).eq(self._placed),
                self.unmarked.bit_select(changed, 1).eq(self._placed & ~self._complete),
                self._awaits_load.bit_select(changed, 1).eq(self._marked),
                self._awaited.bit_select(changed, 1).eq(0),
                self._named.eq(1),
                self._twice.bit_select(changed, 1).eq(self._placed),
                self._inconsistent.bit_select(changed, 1).eq(~self._assumed),
                self._listed.bit_select(changed, 1).eq(~self._placed),
                self._relists.bit_select(changed, 1).eq(0),
            ]

    def _name_array(self, m: Module) -> None:
        """The record of a new array, which is not that of any other.

        The bits of the nonce are in reverse, so that it meets the count of another power-up late.
        """
        nonce = Mux(self._named, self._nonce, self.card.nonce)
        own = Cat(self.card.identity, nonce[::-1] ^ self._count)
        m.d.sync += [self._nonce.eq(nonce), self._count.eq(self._count + ~self._placed)]
        m.d.comb += self._records.store(address=self._changed)
        with m.If(self._placed):
            # Some members may be an event behind. The first round writes what the others have.
            m.d.comb += [
                self._records.write.data.set_uuid.eq(self.brought_up.set_uuid),
                self._records.write.data.events.eq(self.brought_up.events - 1),
                self._records.write.data.made_by_md.eq(self.brought_up.made_by_md),
            ]
            with m.If(self.newest > self.generation):
                m.d.sync += self.generation.eq(self.newest)
        with m.Else():
            m.d.comb += self._records.write.data.set_uuid.eq(own)

    # What is written. A false claim comes first, then drives that have left, then arrays.

    def _rest(self, m: Module) -> None:
        """The states REST to WIPED: what is to be done next."""
        lost, due = self._lost, self._due & self.kept
        # Bitmaps are not written by turns with superblocks.
        leavers = self._leavers & ~self.writing
        port = self._port
        with m.State("REST"):
            m.d.comb += self.rests.eq(
                ~((lost | self._leavers).any() | due.any()) & (self.clean == self._was_clean)
            )
            m.d.sync += [
                self._refutes.eq(lost.any()),
                self._several.eq(lost.any()),
                self._first.eq(1),
                self._leaves.eq(0),
                self._wipes.eq(0),
                self._rewritten.eq(0),
                self._held_back.eq(0),
                port.eq(lowest_bit(m, Mux(lost.any(), lost, leavers), "first_port")),
                self._array.eq(lowest_bit(m, due, "first_array")),
            ]
            with m.If(self.pauses):
                m.next = "REST"
            with m.Elif(self.settled & lost.any()):
                m.next = "FIND"
            with m.Elif(self.settled & leavers.any()):
                m.next = "LEAVE"
            with m.Elif(self.wipe.valid & ~self._wipes_later):
                m.next = "WIPE"
            with m.Elif(self.settled & due.any()):
                m.next = "LOAD"

        with m.State("FIND"):
            m.next = "FOUND"

        with m.State("FOUND"):
            m.d.sync += [self._array.eq(self._homes.reads[0].data.array), self._cause.eq(port)]
            m.next = "LOAD"

        # A drive that goes as this is asked for may be another one by now.
        with m.State("LEAVE"):
            m.d.sync += [
                self._leaves.eq(1),
                self._erases.bit_select(port, 1).eq(0),
                self.edit.payload.superblock.edit.eq(Edit.ERASE),
                self.edit.payload.superblock.port.eq(port),
                self.edit.payload.superblock.page.eq(0),
                self.edit.payload.lists.eq(0),
            ]
            m.next = "SEND"
            with m.If(self.drives.failed.bit_select(port, 1) | ~leavers.bit_select(port, 1)):
                m.next = "REST"

        with m.State("WIPE"):
            m.d.comb += self.wipe.ready.eq(1)
            m.d.sync += [
                port.eq(self.wipe.payload),
                self._leaves.eq(1),
                self._wipes.eq(1),
                self._erases.bit_select(self.wipe.payload, 1).eq(0),
                self.edit.payload.superblock.edit.eq(Edit.ERASE),
                self.edit.payload.superblock.port.eq(self.wipe.payload),
                self.edit.payload.superblock.page.eq(0),
                self.edit.payload.lists.eq(0),
            ]
            m.next = "SEND"

        with m.State("WIPED"):
            m.d.comb += [self.wiped.valid.eq(1), self.wiped.payload.eq(self._good)]
            with m.If(self.wiped.ready):
                m.next = "REST"

    def _load(self, m: Module) -> None:
        """The states LOAD to KNOW: what the array at hand is, and whether it is written at all."""
        array = self._array
        twice = self._twice.bit_select(array, 1)
        torn = self._torn.bit_select(array, 1)
        with m.State("LOAD"):
            m.d.sync += self._role.eq(0)
            m.next = "LOADED"

        with m.State("LOADED"):
            m.d.sync += [
                self._geometry.eq(self.geometry_read.data),
                self._record.eq(self._records.reads[0].data),
                self._has_failed.eq(self.states.word_select(array, 2) == ArrayState.FAILED),
                self._alive.eq(0),
                self._named_alive.eq(0),
                self._rebuilding.eq(0),
                self._has_changed.eq(self.drives.changed),
            ]
            m.next = "KNOW"
            with m.If(~self.settled):
                m.next = "REST"

        with m.State("KNOW"):
            shape = self._geometry
            waits = self.waits.valid & (self.waits.payload == array)
            some_copies = (shape.copies > 1) & (shape.copies != shape.width)
            m.d.sync += [
                # A row that waits from this very moment on is not forgotten.
                self._due.bit_select(array, 1).eq(waits),
                self._members.eq(shape.width * shape.spans),
                self._several.eq(self._several | twice),
                self._rounds.eq(Mux(twice | self._several, torn + twice + 1, 0)),
                self.exempt.bit_select(array, 1).eq(~self._has_redundancy),
                self._striped_copies.bit_select(array, 1).eq(some_copies),
            ]
            m.next = "REFRESH" if self._config.durable_marks else "ASK_MEMBER"
            with m.If(~shape.valid):
                m.d.sync += self.kept.bit_select(array, 1).eq(0)
                m.next = "REST"
                with m.If(self._refutes):
                    m.next = "REFUTED"
            awaited = self._awaited.bit_select(array, 1)
            with m.Elif(self._has_failed & ~some_copies):
                with m.If(self._refutes):
                    m.d.sync += self._due.bit_select(array, 1).eq(awaited | waits)
                    m.next = "EXCUSE"
                # One that was never written is not begun with.
                with m.Elif(awaited & twice):
                    self._release(m)
                    m.next = "REST"
                with m.Elif(~awaited):
                    m.next = "REST"

        # The same with a drive that has left. It keeps its superblock: the one that has taken its
        # place may have none.
        with m.State("EXCUSE"):
            m.d.sync += self._excused.bit_select(self._cause, 1).eq(self.settled)
            striped_copies = self._striped_copies.bit_select(self._array, 1)
            with m.If(striped_copies & self.settled):
                m.d.sync += self.forsaken.bit_select(self._array, 1).eq(1)
            m.next = "REST"

    @property
    def _wipes_later(self) -> Value:
        """The drive that is to be wiped is still being written."""
        return self.writing.bit_select(self.wipe.payload, 1)

    @property
    def _is_overtaken(self) -> Value:
        """The array at hand of a change is new, and a page of another one is on its way."""
        creates = self._opcode == ManageOpcode.CREATE_ARRAY
        return creates & self.under_way.bit_select(self._changed, 1)

    @property
    def _is_fresh(self) -> Value:
        """The members of the array at hand have its bitmap."""
        return (self.fresh | self.exempt).bit_select(self._array, 1)

    def _refresh(self, m: Module) -> None:
        """The states REFRESH and AWAIT_MARKS: all members have the bitmap before any of them says
        that it is one."""
        m.d.comb += self.refresh.payload.eq(self._array)
        with m.State("REFRESH"):
            m.d.comb += self.refresh.valid.eq(1)
            m.next = "REFRESHED"

        with m.State("REFRESHED"):
            m.next = "AWAIT_MARKS"

        with m.State("AWAIT_MARKS"):
            with m.If(self._is_outdated):
                m.d.sync += self._due.bit_select(self._array, 1).eq(1)
                m.next = "REST"
            with m.Elif(self._is_fresh):
                m.next = "ASK_MEMBER"

    @property
    def _claims_role(self) -> Value:
        """The superblock of the drive at hand was written for the array and the role at hand."""
        found = self._homes.reads[0].data
        at_home = (found.role == self._role) & (found.array == self._array)
        return (self._claims & ~self._away).bit_select(self._port, 1) & at_home

    @property
    def _has_had_superblock(self) -> Value:
        """The drive at hand says so, or may. One of an array that is brought up says so."""
        stored = self._stored.bit_select(self._port, 1)
        return (self._claims_role & stored) | self._twice.bit_select(self._array, 1)

    @property
    def _is_unread(self) -> Value:
        """The drive at hand has had a superblock and is being read again, as it has refused what
        was written last."""
        return self._has_had_superblock & ~self.known.bit_select(self._port, 1)

    @property
    def _has_superblock(self) -> Value:
        """What the drive at hand says is kept."""
        return self._has_had_superblock & self.valid.bit_select(self._port, 1)

    def _look_at_members(self, m: Module) -> None:
        """The states ASK_MEMBER to BEGIN: which roles are held, and whose superblock those of new
        members may be like."""
        role, drives = self._role, self.drives
        last = role == self._members - 1
        array = self._array
        with m.State("ASK_MEMBER"):
            m.next = "NOTE_MEMBER"
            with m.If(role == 0):
                m.d.sync += self.has_model.bit_select(array, 1).eq(0)

        with m.State("NOTE_MEMBER"):
            port = self.member_read.data
            failed, place = drives.failed.bit_select(port, 1), role[:ROLE_BITS]
            # One whose loss is not written down is named as before.
            excused = self._excused.bit_select(port, 1)
            partial = Mux(failed, self._partial, drives.stale).bit_select(port, 1)
            m.d.sync += [
                self._alive.bit_select(place, 1).eq(~failed),
                self._named_alive.bit_select(place, 1).eq(~failed | excused),
                self._rebuilding.bit_select(place, 1).eq((~failed | excused) & partial),
                self._port.eq(port),
            ]
            m.next = "ASK_MODEL"

        with m.State("ASK_MODEL"):
            m.next = "NOTE_MODEL"

        with m.State("NOTE_MODEL"):
            alive = self._alive.bit_select(role[:ROLE_BITS], 1)
            with m.If(alive & self._is_outdated):
                self._break_off(m)
            with m.Elif(alive & self._is_unread):
                m.d.comb += self._reads_again.eq(1)
                m.next = "NOTE_MODEL"
            with m.Else():
                with m.If(alive & self._has_superblock):
                    m.d.comb += self._models.store(address=array, data=self._port)
                    m.d.sync += self.has_model.bit_select(array, 1).eq(1)
                m.d.sync += role.eq(Mux(last, 0, role + 1))
                m.next = "ASK_MEMBER"
                with m.If(last):
                    m.next = "BEGIN"

        with m.State("BEGIN"):
            m.d.comb += self._starts_round.eq(1)
            m.d.sync += [
                self._record.events.eq(self._record.events + 1),
                self._makes.eq(self._first),
                self._lists.eq(0),
                self._list_stored.eq(0),
                self._first.eq(0),
                self._written.eq(0),
                self._refused.eq(0),
                self._base.eq(0),
                self.facts.place.span.eq(0),
                self.generation.eq(self.generation + 1),
            ]
            relists = self._relists.bit_select(self._array, 1)
            m.next = "ASK_PORT"
            with m.If(self._is_outdated):
                self._break_off(m)
            with m.Elif(~self._alive.any()):
                self._release(m)
                m.next = "REST"
                with m.If(self._refutes):
                    m.next = "EXCUSE"
            with m.Else():
                m.d.sync += [self._lists.eq(relists), relists.eq(0)]

    @property
    def _is_outdated(self) -> Value:
        """What was seen of the array may not be so any more."""
        return self._has_changed | self.drives.changed | ~self.settled

    def _hear_ends(self, m: Module) -> None:
        """Drives of the round answer, in any order."""
        end = self.done.payload
        port = end.port
        m.d.comb += self.done.ready.eq(1)
        with m.If(self.done.valid & ~self._leaves):
            m.d.sync += self._out.bit_select(port, 1).eq(0)
            with m.If(end.status == DriveStatus.GOOD):
                m.d.sync += [
                    self._stored.bit_select(port, 1).eq(1),
                    self._known.bit_select(port, 1).eq(1),
                    self._partial.bit_select(port, 1).eq(self._sent_partial.bit_select(port, 1)),
                    self._refuses.bit_select(port, 1).eq(0),
                    self._rewritten.eq(self._rewritten | (port == self._cause)),
                    self._written.bit_select(port, 1).eq(1),
                    self._list_stored.eq(
                        self._list_stored | self._sent_list.bit_select(port, 1)
                    ),
                ]
            with m.Else():
                m.d.sync += self._refused.bit_select(port, 1).eq(1)

    def _write_member(self, m: Module) -> None:
        """The states ASK_PORT to LISTEN: the member at hand is sent its superblock."""
        role, port = self._role, self._port
        place = role[:ROLE_BITS]
        alive = self._alive.bit_select(place, 1)
        failed = self.drives.failed.bit_select(port, 1)
        edit = self.edit.payload.superblock
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
            has, has_model = self._has_superblock, self.has_model.bit_select(self._array, 1)
            lacks_model = self._record.made_by_md & ~has_model
            is_listed = self._listed.bit_select(self._array, 1)
            lists = is_listed & (self._lists | ~has)
            partial = self._rebuilding.bit_select(place, 1)
            m.d.sync += [
                self._was_member.bit_select(port, 1).eq(self._has_had_superblock),
                self._sent_partial.bit_select(port, 1).eq(partial),
                self._sent_list.bit_select(port, 1).eq(lists),
                edit.edit.eq(Mux(has, Edit.CHANGE, Edit.MAKE)),
                edit.role.eq(role - self._base),
                edit.port.eq(port),
                edit.page.eq(0),
                self.edit.payload.array.eq(self._array),
                self.edit.payload.lists.eq(lists),
            ]
            m.next = "CLAIM"
            with m.If(self._written.bit_select(port, 1)):
                m.next = "NEXT"
            # Another drive may be there, or it may be another member.
            with m.Elif(failed | self._is_outdated):
                self._break_off(m)
            with m.Elif(self._is_unread):
                m.d.comb += self._reads_again.eq(1)
                m.next = "CHOOSE"
            with m.Elif(self._makes & has):
                m.next = "NEXT"
            with m.Elif(~has & lacks_model):
                m.d.sync += self._refused.bit_select(port, 1).eq(1)
                m.next = "NEXT"

        # From now on the drive may say so, whatever the answer is.
        with m.State("CLAIM"):
            m.d.comb += self._homes.store()
            for number, of in enumerate(self._of):
                m.d.sync += of.bit_select(port, 1).eq(self._array == number)
            m.d.sync += [
                self._claims.bit_select(port, 1).eq(1),
                self._stored.bit_select(port, 1).eq(self._was_member.bit_select(port, 1)),
                self._known.bit_select(port, 1).eq(0),
                self._away.bit_select(port, 1).eq(0),
            ]
            m.next = "SEND"
            with m.If(failed | self._is_outdated):
                self._break_off(m)

        with m.State("SEND"):
            m.d.comb += self.edit.valid.eq(1)
            with m.If(self.edit.ready):
                m.next = "LISTEN"
                with m.If(~self._leaves):
                    m.d.sync += self._out.bit_select(port, 1).eq(1)
                    m.next = "NEXT"

        with m.State("LISTEN"):
            good = self.done.payload.status == DriveStatus.GOOD
            with m.If(self.done.valid):
                m.d.sync += [self._refuses.bit_select(port, 1).eq(~good), self._good.eq(good)]
                m.next = "REST"
                page = self.edit.payload.superblock.page
                with m.If(self._wipes):
                    m.d.sync += page.eq(page + 1)
                    m.next = "SEND"
                    with m.If(~good | (page == PAGES - 1)):
                        m.next = "WIPED"

    @property
    def _all_have_ended(self) -> Value:
        """All drives have answered that have been sent their superblocks."""
        return ~self._out.any()

    def _drain(self, m: Module) -> None:
        """The states DRAIN to BREAK_OFF: all drives have answered that have been sent theirs."""
        port = self._port
        failed = self.drives.failed.bit_select(port, 1)
        refused = lowest_bit(m, self._refused, "first_refused")
        with m.State("DRAIN"):
            with m.If(self._all_have_ended):
                m.next = "STORE"
                with m.If(self._refused.any()):
                    m.d.sync += port.eq(refused)
                    m.next = "REFUSED"
                with m.Elif(self._makes):
                    m.d.sync += self._makes.eq(0)
                    m.next = "ASK_PORT"

        # If its array needs it, and it has been a member, it is not given up for that alone.
        with m.State("REFUSED"):
            needed = (self.essential & self._was_member).bit_select(port, 1)
            with m.If(failed | self._is_outdated):
                self._break_off(m)
            with m.Elif(self.settled):
                m.next = "FAIL"
                with m.If(needed):
                    m.d.sync += [
                        self._held_back.eq(~self._several),
                        self._written.bit_select(port, 1).eq(1),
                        self._refused.bit_select(port, 1).eq(0),
                    ]
                    m.next = "DRAIN"

        with m.State("FAIL"):
            m.d.comb += [self.fail.valid.eq(1), self.fail.payload.eq(port)]
            with m.If(self.fail.ready):
                self._break_off(m)

        with m.State("BREAK_OFF"):
            with m.If(self._all_have_ended):
                m.next = "REST"

    def _break_off(self, m: Module) -> None:
        """Ends a state: the member at hand has failed, and the array is looked at again."""
        m.d.sync += [
            self._due.bit_select(self._array, 1).eq(1),
            self._torn.bit_select(self._array, 1).eq(1),
        ]
        with m.If(self._lists):
            m.d.sync += self._relists.bit_select(self._array, 1).eq(1)
        m.next = "BREAK_OFF"

    def _end(self, m: Module) -> None:
        """The states NEXT to REFUTED: the next member, or the next round, or the end."""
        role, array, cause = self._role, self._array, self._cause
        store = self._records.store(address=array, data=self._record)
        with m.State("NEXT"):
            m.d.sync += role.eq(role + 1)
            m.next = "ASK_PORT"
            with m.If(role - self._base == self._geometry.width - 1):
                m.d.sync += [
                    self._base.eq(role + 1),
                    self.facts.place.span.eq(self.facts.place.span + 1),
                ]
            with m.If(role == self._members - 1):
                m.d.sync += [role.eq(0), self._base.eq(0), self.facts.place.span.eq(0)]
                m.next = "DRAIN"

        # Nobody gets more than one event ahead of a member that is needed.
        with m.State("STORE"):
            m.d.comb += self._stores.eq(1)
            with m.If(~self._held_back):
                m.d.comb += store
            m.d.sync += self._rounds.eq(self._rounds - 1)
            with m.If(self._lists & ~self._list_stored):
                m.d.sync += self._relists.bit_select(array, 1).eq(1)
                with m.If(array == self._changed):
                    m.d.sync += self._unstored.eq(1)
            m.next = "BEGIN"
            with m.If(self._rounds == 0):
                m.d.sync += [
                    self._twice.bit_select(array, 1).eq(0),
                    self._torn.bit_select(array, 1).eq(self._held_back),
                ]
                m.next = "REST"
                with m.If(self._refutes & ~self._rewritten):
                    m.next = "REFUTED"

        # The claim is known to be false. What is left of it is erased, if the drive is still there.
        with m.State("REFUTED"):
            there = ~(self._away | self.drives.failed).bit_select(cause, 1)
            with m.If(self._lost.bit_select(cause, 1)):
                m.d.sync += [
                    self._claims.bit_select(cause, 1).eq(0),
                    self._erases.bit_select(cause, 1).eq(there),
                ]
            m.next = "REST"
