"""Brings up the arrays that the drives hold."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import MAX_DRIVES, Config
from hdl.flow.drive_states import DriveStates
from hdl.flow.geometry import WIDTH_BITS, Level
from hdl.flow.manage import Changes, Emulation, ManageOpcode, ManageStatus
from hdl.flow.table_read import placed_member, placed_read
from hdl.flow.walk import WalkKind
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.metadata.assembler import Assembler
from hdl.metadata.bitmap import OFFSET
from hdl.metadata.bitmap_reader import BitmapReads
from hdl.metadata.found_set import Hindrance
from hdl.metadata.host_changes import Import, Imports
from hdl.metadata.records import listed, record, record_read, span_read
from hdl.metadata.spans import SPAN_BITS, UUID_WORD, created, identity
from hdl.metadata.spare_keeper import global_set, known_spare
from hdl.metadata.superblock import WORD_BITS, Feature, Word, kept_address, kept_read
from hdl.metadata.superblock_facts import EVENT_BITS
from hdl.metadata.superblock_words import SET_NAME
from hdl.metadata.superblocks import ListReads
from hdl.metadata.volume_list import MOST_VOLUMES
from hdl.nvme.admin.names import IDENTITY_BITS

SETTLE_CYCLES = 255
"""A drive that is there so many cycles after power-up is waited for before the card is ready."""

NAMED = (*range(Word.SET_UUID, Word.SET_NAME), Word.EVENTS, Word.EVENTS + 1)
"""Words that a record is made of, in its order."""

MADE_SO = {
    Word.SET_NAME: int.from_bytes(SET_NAME[:4], "little"),
    Word.SET_NAME + 1: int.from_bytes(SET_NAME[4:], "little"),
    Word.CTIME: 0,
}
"""Words as a card of this kind writes them. The next one says which span it is."""

USED_WORDS = (Word.FEATURES, Word.BITMAP_OFFSET, Word.UTIME, Word.UTIME + 1)
"""Words that say whether the bitmap is in use."""

READ_WORDS = (*NAMED, *MADE_SO, Word.CTIME + 1, *USED_WORDS)

FREE = ("REST", "STORED", "ANSWER")
"""States in which the host's changes are made."""


class BringUp(wiring.Component):
    """Brings up the arrays whose drives are there, after power-up and whenever drives have come.

    It looks at drives that belong to no array, once it is known of every drive what it holds, and
    again when drives or ports have become free. A set becomes an array if `Assembler` finds no
    hindrance, if the set is this card's, and if no array has the identity of the set. All others
    are left as they are, and nothing is written to their drives. The newest list of volumes on its
    members says whose a set is. If there is no list, it is that of the card that made it, whose
    identity is part of the set's.

    The host can import another set by one of its drives, whether another card or Linux has made it.
    This card has it from then on. It can also import a set, this card's or another's, that lacks
    drives. If these come back they are old, unless they have been used without the others. And it
    can ask before what an import would write. Then nothing changes, but for what any look at the
    drives changes.

    The first superblocks that are written of an array give its devices the numbers of their roles.
    Linux has to make all drives alike before, if one could be taken for another by its number then
    (RENUMBERED).

    Rows of an array that is dirty may be inconsistent. It begins with a RESYNC. That follows the
    marks of its bitmaps, if these say what was being written: if all of its good members have one,
    and if the card has written their superblocks last, or md and says that it has used them. One
    that is clean
    is assumed to be in sync, as its superblocks say so. A role that nobody holds is a failed member
    at a port without a drive, the highest that is left. It may be a port that the card does not
    have. Drives that were being rebuilt are rebuilt from their first row on. Rows of an array that
    is dirty are made consistent before that.

    The spans of a RAID 50 or 60 are sets that follow each other. They make one array, if nothing
    hinders any of them. If one is dirty and one lacks a drive, what is hindered is the array, as if
    they were one.

    Drives that say that they are spares of an array are its spares once it is there, and again when
    they come back. Those of this card's own set of global ones are spares of all arrays.

    Its volumes are those of the newest list that any of its members holds. They get the numbers
    that they had, or the lowest free ones. An entry that does not fit the array is passed over. If
    there is no number left for a volume, the array is not ``listed``. If no list could be found
    because pages could not be read, the lists are left as they are.

    A set takes what `Assembler`, `VolumeListReader` and the tables take, 16 cycles, and 5 for each
    array and role.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    identity
        Of the card.
    present
        One bit per port. A drive is there.
    known
        One bit per port. It is known what its drive holds.
    valid
        One bit per port. Its drive holds a superblock.
    covered
        One bit per port, see `Assembler`.
    replayed
        The redo record, if there is one, has been written to the drives.
    surveyed
        What the drives hold is known that were there soon after power-up.
    drives
        What the tables know of the drives.
    kept_read
        What is kept of superblocks.
    lists
        The lists of volumes.
    bitmaps
        With `Config.durable_marks`: the bitmaps.
    imports
        Sets that the host wants to have. The answer says what has become of it: DONE, with the
        number of the array; NO_ENTRY if the drive belongs to no set, or if there is no number or
        port for it; DRIVE_UNAVAILABLE if drives are missing; INVALID_FIELD if the card has no such
        arrays, or Linux has to have it once more; IN_USE if an array has the drive, or the identity
        of the set. To a ``preview``: DONE, with a bit for each member that would be written.
    rests
        Superblocks and lists say what is so.
    cleared
        A pulse. A drive that was there does not hold a superblock any more.
    kept, record_read
        Which arrays have superblocks, and what these say (`hdl.metadata.keeper.Keeper`).
    changes
        Changes for `hdl.background.background.Background`.
    holds, held
        Levels. Sets are looked at, and nobody else makes a change before that is done; nobody makes
        one any more.
    exists
        One bit per volume. It is there.
    appeared
        One bit per volume, a pulse. It has been brought up.
    appears_detached
        A volume is brought up now that is not attached.
    listed
        An array has all volumes that its drives list.
    spare
        A drive has become a spare that says so.
    brought_up
        What the superblocks of the array say that is being brought up.
    span_read
        The events of each of its spans. Of no meaning for a span that it does not have.
    placed_read
        Its members, for `hdl.array.tables.tables.ArrayTables`.
    hindrances
        Of each port: why its drive is in no array, as it was last looked at. Of no meaning for a
        drive that is used, or has no superblock.
    ready
        The arrays that were there at power-up have been brought up.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "identity": In(IDENTITY_BITS),
                "present": In(config.ports),
                "known": In(config.ports),
                "valid": In(config.ports),
                "covered": In(config.ports),
                "replayed": In(1),
                "surveyed": Out(1),
                "drives": In(DriveStates()),
                "kept_read": Out(kept_read(config)),
                "lists": Out(ListReads(config)),
                "bitmaps": Out(BitmapReads(config)),
                "imports": In(Imports(config)),
                "rests": In(1),
                "cleared": In(1),
                "kept": In(config.arrays),
                "record_read": Out(record_read(config)),
                "changes": Out(Changes(config)),
                "holds": Out(1),
                "held": In(1),
                "exists": In(config.volumes),
                "appeared": Out(config.volumes),
                "appears_detached": Out(1),
                "listed": Out(Pulse(listed(config))),
                "spare": Out(Pulse(known_spare(config))),
                "brought_up": Out(record()),
                "span_read": In(span_read()),
                "placed_read": In(placed_read(config)),
                "hindrances": Out(Hindrance).array(config.ports),
                "ready": Out(1),
                "busy": Out(1),
            }
        )
        self._assembler = Assembler(config=config)
        self._placed = Table(placed_member(config), MAX_DRIVES)
        self._span_events = Table(EVENT_BITS, 1 << SPAN_BITS)
        self._cycles = Signal(range(SETTLE_CYCLES + 1))
        # Drives that were known as they were last looked at.
        self._seen = Signal(config.ports)
        self._looked = Signal()
        # Ports that were used a cycle before. A port has become free since it was looked.
        self._used = Signal(MAX_DRIVES)
        self._again = Signal()

        # Of the set at hand: the word, array or role that is looked at, the ports of its members,
        # the array that it has become.
        self._step = Signal(range(len(READ_WORDS)))
        self._made = Signal()  # a card of this kind has made it
        self._entry = Signal(config.array_bits)
        self._role = Signal(WIDTH_BITS)
        self._place_in_span = Signal(WIDTH_BITS)  # the same, counted in its span
        self._named = Signal(MAX_DRIVES)
        self._away = Signal(config.ports)  # drives that have gone since the sets are made up
        self._array = Signal(config.array_bits)
        # Of the spans that have been looked at: one cannot be brought up, and why the array is not;
        # one is dirty, is rebuilt, or lacks a drive. The events of the one at hand.
        self._broken = Signal()
        self._why = Signal(Hindrance)
        self._dirty = Signal()
        self._rebuilds = Signal()
        self._lacks = Signal()
        self._events = Signal(EVENT_BITS)
        # A set is imported: the one with the drive at this port, which is at hand.
        self._imports = Signal()
        self._import = Signal(Import)
        self._wanted = Signal()
        self._forced = Signal()  # though drives are missing
        self._complete = Signal()  # it has each volume of the list that fits
        self._second = Signal()  # volumes whose numbers are taken get others
        self._numbered = Signal(MOST_VOLUMES)  # by their numbers: those that have been asked for
        self._makes_volume = Signal()  # such a change is asked for
        self._missed = Signal()  # there may be a list that nobody could read
        # Its spares that have not been looked at, and the one at hand; they are for all arrays; the
        # set is of use for nothing else; a spare is asked for.
        self._spares = Signal(config.ports)
        self._spare = Signal(config.port_bits)
        self._is_global = Signal()
        self._only_spares = Signal()
        self._adds_spare = Signal()
        # md has written superblocks since the card has; it has a bitmap where the card has its own.
        self._by_md = Signal()
        self._has_bitmap = Signal(2)

    def elaborate(self, platform) -> Module:
        assembler, found = self._assembler, self._assembler.found
        m = Module()
        m.submodules.assembler = assembler
        m.submodules.placed = self._placed
        m.submodules.span_events = self._span_events
        connect(m, flipped(self.span_read), self._span_events.reads[0])
        self._tell_places(m)
        self._found = found.payload
        m.d.comb += [
            assembler.valid.eq(self.present & self.known & self.valid & ~self.drives.used),
            assembler.covered.eq(self.covered),
            assembler.kept_read.data.eq(self.kept_read.data),
            assembler.member_read.address.eq(self._place_in_span),
            self.record_read.address.eq(self._entry),
            self.lists.set_uuid.eq(self.brought_up.set_uuid),
            self.lists.look.payload.eq(assembler.member_read.data),
            self.listed.payload.array.eq(self._array),
            self.listed.payload.anew.eq(~self._missed),
            self._is_global.eq(self.brought_up.set_uuid == global_set(self.identity)),
            self.spare.payload.port.eq(self._spare),
            self.spare.payload.array.eq(self._array),
            self.spare.payload.dedicated.eq(~self._is_global),
            self.bitmaps.set_uuid.eq(self.brought_up.set_uuid),
            self.bitmaps.events.eq(self.brought_up.events),
            self.bitmaps.shape.spans.eq(self._found.place.last + 1),
            self.bitmaps.look.payload.eq(assembler.member_read.data),
            self.bitmaps.give.payload.eq(self._array),
            *(
                self.bitmaps.shape[name].eq(self._found[name])
                for name in ("level", "width", "copies", "rows")
            ),
        ]
        self._make_request(m)
        with m.FSM(name="bring_up") as fsm:
            self._rest(m)
            self._take_set(m)
            self._identify(m)
            self._compare(m)
            self._place(m)
            self._create(m)
            self._create_volumes(m)
            self._rebuild(m)
            self._add_spares(m)
            self._answer(m)
            request, response = self.changes.request, self.changes.response
            lists = self.lists
            settles = self._cycles != SETTLE_CYCLES
            looked = lists.look.ready
            looks = Const(0)
            if self._config.durable_marks:
                looked &= self.bitmaps.look.ready
                looks = fsm.ongoing("LOOK_BITMAP")
            waits = (
                (fsm.ongoing("REST") & ~self._begins & ~settles)
                | (fsm.ongoing("HOLD") & ~self.held)
                | (fsm.ongoing("STORED") & ~self.rests)
                | (self.imports.response.valid & ~self.imports.response.ready)
                | (request.valid & ~request.ready)
                | (response.ready & ~response.valid)
                | (lists.look.valid & ~lists.look.ready)
                | (fsm.ongoing("NEXT") & ~looked)
                | (looks & ~lists.look.ready)
                | (self.bitmaps.give.valid & ~self.bitmaps.give.ready)
                | (fsm.ongoing("TAKE_VOLUME") & ~lists.entries.valid)
            )
            m.d.comb += [
                self.busy.eq(~waits),
                self.holds.eq(~Cat(fsm.ongoing(state) for state in FREE).any()),
            ]
        return m

    def _tell_places(self, m: Module) -> None:
        """Who is which member. A drive that has been away since may be another one by now, and
        nothing hinders that yet."""
        inner, asked = self._placed.reads[0], Signal(MAX_DRIVES)
        m.d.comb += [
            inner.address.eq(self.placed_read.address),
            self.placed_read.data.eq(inner.data),
        ]
        m.d.sync += [
            self._away.eq(self._away | ~self.known),
            asked.eq(1 << self.placed_read.address),
        ]
        with m.If((asked & self._away).any()):
            m.d.comb += self.placed_read.data.failed.eq(1)
        for port, hindrance in enumerate(self.hindrances):
            with m.If(~self.known[port]):
                m.d.sync += hindrance.eq(Hindrance.NOTHING)

    def _make_request(self, m: Module) -> None:
        """The changes that are asked for: the array, and the rebuild of its members."""
        found, asked = self._found, self.changes.request.payload
        mirrors = (found.level == Level.RAID1) | (found.level == Level.RAID10)
        m.d.comb += [
            asked.array.eq(self._array),
            asked.level.eq(found.level),
            asked.strip_shift.eq(found.strip_shift),
            asked.copies.eq(found.copies),
            asked.spans.eq(found.place.last + 1),
            asked.rotation.eq(found.rotation),
            asked.drives.eq(self._named),
            asked.blocks.eq(found.rows + found.data_offset),
            asked.placed.eq(1),
            # What a missing drive held could be worked out wrongly.
            asked.degraded.eq(~self._dirty | mirrors | self._forced),
            asked.assumed.eq(~self._dirty | (self._forced & ~mirrors)),
            # The rebuild makes rows consistent as well, unless they are assumed to be.
            asked.idle.eq(self._dirty & self._rebuilds & ~(self._forced & ~mirrors)),
            asked.complete.eq(~self._rebuilds),
            asked.marked.eq(self._knows_stale_rows if self._config.durable_marks else 0),
            asked.kind.eq(WalkKind.REBUILD),
        ]
        with m.If(self._adds_spare):
            m.d.comb += [asked.port.eq(self._spare), asked.dedicated.eq(~self._is_global)]
        entry = self.lists.entries.payload
        emulation = Mux(entry.facts.coarse, Emulation.FORCE, Emulation.NONE)
        with m.If(self._makes_volume):
            m.d.comb += [
                asked.volume.eq(entry.number),
                asked.start.eq(entry.start),
                asked.blocks.eq(entry.blocks),
                asked.name.eq(entry.facts.name),
                asked.sectors.eq(entry.facts.sectors),
                asked.emulation.eq(emulation),
            ]

    def _rest(self, m: Module) -> None:
        """The state REST: until drives have come, and it is known what all of them hold."""
        settled = self._cycles == SETTLE_CYCLES
        known = ~(self.present & ~self.known).any()
        news = (self.known & ~self._seen).any() | ~self._looked | self._again
        asked = self.imports.request
        news |= asked.valid
        port = asked.payload.port
        in_range = port < self._config.ports
        used = in_range & self.drives.used.bit_select(port[: self._config.port_bits], 1)
        m.d.comb += self.surveyed.eq(settled & known)
        self._begins = self.surveyed & self.replayed & news
        self._starts = Signal()
        m.d.sync += [
            self._cycles.eq(self._cycles + ~settled),
            self._seen.eq(self._seen & self.known),
            self._used.eq(self.drives.used),
            self._again.eq(
                (self._again & ~self._assembler.start)
                | (self._used & ~self.drives.used).any()
                | self.cleared
            ),
        ]
        m.d.comb += [self._assembler.start.eq(self._starts), asked.ready.eq(self._starts)]
        with m.State("REST"):
            with m.If(self._begins):
                m.next = "HOLD"

        # Nobody else changes which drives are free until all sets have been looked at.
        with m.State("HOLD"):
            m.d.comb += self._starts.eq(self._begins & self.held)
            m.d.sync += [
                self._away.eq(0),
                self._imports.eq(asked.valid),
                self._import.eq(asked.payload),
                self.imports.response.payload.eq(0),
                self.imports.response.payload.status.eq(
                    Mux(used, ManageStatus.IN_USE, ManageStatus.NO_ENTRY)
                ),
            ]
            with m.If(~self._begins):
                m.next = "REST"
            with m.Elif(self._starts):
                m.d.sync += self._seen.eq(self.known)
                m.next = "TAKE"

    def _take_set(self, m: Module) -> None:
        """The states TAKE, in which the next set is waited for, to PASS."""
        assembler, found = self._assembler, self._assembler.found
        asks = self._assembler.kept_read.address
        with m.State("TAKE"):
            m.d.comb += self.kept_read.address.eq(asks)
            m.d.sync += [self._step.eq(0), self._entry.eq(0), self._only_spares.eq(0)]
            port = self._import.port
            at_port = self._found.group.bit_select(port[: self._config.port_bits], 1)
            in_range = port < self._config.ports
            with m.If(found.valid):
                m.d.sync += self._spares.eq(self._spares | self._found.spares)
                with m.If(self._is_first):
                    m.d.sync += [
                        self._role.eq(0),
                        self._named.eq(0),
                        self._spares.eq(self._found.spares),
                        self._wanted.eq(self._imports & in_range & at_port),
                        self._forced.eq(0),
                        self._made.eq(1),
                        self._by_md.eq(0),
                        self._broken.eq(0),
                        self._why.eq(Hindrance.NOTHING),
                        self._dirty.eq(0),
                        self._rebuilds.eq(0),
                        self._lacks.eq(0),
                    ]
                m.next = "HINDERED"
            with m.Elif(assembler.done):
                m.d.sync += [self._looked.eq(1), self.ready.eq(1)]
                m.next = "REST"
                with m.If(self._imports):
                    m.next = "STORED"

        with m.State("HINDERED"):
            hindrance = self._found.hindrance
            awaited, doubtful = hindrance == Hindrance.AWAITED, hindrance == Hindrance.DOUBTFUL
            forced = (awaited | (doubtful & self._import.assumed)) & self._import.degraded
            m.d.sync += self._place_in_span.eq(0)
            m.next = "ASK_WORD"
            with m.If(self._broken | ((hindrance != Hindrance.NOTHING) & ~(self._wanted & forced))):
                # An array may be there that its spares are for, or that has left its drives out.
                m.d.sync += [self._broken.eq(1), self._only_spares.eq(1)]
                with m.If(~self._broken):
                    m.d.sync += self._why.eq(hindrance)
                    self._tell(m, ManageStatus.DRIVE_UNAVAILABLE)
                    with m.Switch(hindrance):
                        with m.Case(
                            Hindrance.UNSUPPORTED, Hindrance.DIFFERENT, Hindrance.RENUMBERED
                        ):
                            self._tell(m, ManageStatus.INVALID_FIELD)
            with m.Else():
                m.d.sync += self._forced.eq(self._forced | (self._wanted & forced))
                with m.If(self._why == Hindrance.NOTHING):
                    m.d.sync += self._why.eq(hindrance)

        with m.State("PASS"):
            m.d.comb += [found.ready.eq(1), self.kept_read.address.eq(asks)]
            for port, hindrance in enumerate(self.hindrances):
                with m.If(self._found.group[port]):
                    m.d.sync += hindrance.eq(self._why)
            m.next = "TAKE"

    def _identify(self, m: Module) -> None:
        """The states ASK_WORD and NOTE_WORD: which set it is, and by what maker."""
        step = self._step
        with m.State("ASK_WORD"):
            m.d.comb += self.kept_read.address.eq(
                kept_address(self._found.freshest, Array(READ_WORDS)[step])
            )
            m.next = "NOTE_WORD"

        with m.State("NOTE_WORD"):
            data, found = self.kept_read.data, self._found
            uuid, events = self.brought_up.set_uuid, self._events
            m.d.sync += step.eq(step + 1)
            m.next = "ASK_WORD"
            with m.Switch(step):
                for place, word in enumerate(NAMED[:-2]):
                    with m.Case(place):
                        own = identity(data, found.place.span) if word == UUID_WORD else data
                        m.d.sync += uuid.word_select(place, WORD_BITS).eq(own)
                for half in range(2):
                    with m.Case(len(NAMED) - 2 + half):
                        m.d.sync += events.word_select(half, WORD_BITS).eq(data)
            made_so = (*MADE_SO.values(), created(found.place))
            for place, word in enumerate(made_so):
                with m.If((step == len(NAMED) + place) & (data != word)):
                    m.d.sync += self._made.eq(0)
            self._note_use(m, data)
            with m.If(step == len(READ_WORDS) - 1):
                m.d.comb += self._span_events.store(address=found.place.span, data=events)
                with m.If(self._is_first):
                    m.d.sync += self.brought_up.events.eq(events)
                m.next = "ASK_ARRAY"
                with m.If(~(self._is_first | self._only_spares)):
                    m.next = "ASK_ROLE"

    def _note_use(self, m: Module, data: Value) -> None:
        """In the state NOTE_WORD: whether the bitmap is in use."""
        first = len(NAMED) + len(MADE_SO) + 1
        uses = {
            Word.FEATURES: self._has_bitmap[0].eq(data[Feature.BITMAP]),
            Word.BITMAP_OFFSET: self._has_bitmap[1].eq(data == OFFSET),
            Word.UTIME: self._by_md.eq(self._by_md | (data != 0)),
            Word.UTIME + 1: self._by_md.eq(self._by_md | (data != 0)),
        }
        for place, word in enumerate(USED_WORDS):
            with m.If(self._step == first + place):
                m.d.sync += uses[word]

    @property
    def _previews(self) -> Value:
        """The host asks about the set at hand."""
        return self._wanted & self._import.preview

    @property
    def _is_first(self) -> Value:
        """The set at hand is the first of its array, or the only one."""
        return self._found.place.span == 0

    @property
    def _follows_marks(self) -> Value:
        """What was being written is known of the set at hand."""
        bitmaps = self.bitmaps
        in_use = ~self._by_md | (self._has_bitmap.all() & bitmaps.is_md)
        return self._dirty & bitmaps.fits & in_use

    @property
    def _knows_stale_rows(self) -> Value:
        """What the stale members of the set at hand may lack is known."""
        return self._rebuilds & self.bitmaps.fits & ~self._by_md

    def _compare(self, m: Module) -> None:
        """The states ASK_ARRAY and COMPARE: no array may have the identity of the set."""
        entry = self._entry
        with m.State("ASK_ARRAY"):
            m.next = "COMPARE"

        with m.State("COMPARE"):
            same = self.record_read.data.set_uuid == self.brought_up.set_uuid
            m.d.sync += entry.eq(entry + 1)
            m.next = "ASK_ARRAY"
            with m.If(self.kept.bit_select(entry, 1) & same):
                self._tell(m, ManageStatus.IN_USE)
                m.d.sync += [
                    self._array.eq(entry),
                    self._broken.eq(1),
                    self._why.eq(Hindrance.LEFT_OUT),
                ]
                m.next = "NEXT_SPARE"
            with m.Elif((entry == self._config.arrays - 1) & (self._only_spares | self._is_global)):
                m.next = "PASS"
                with m.If(self._is_global):
                    m.next = "NEXT_SPARE"
            with m.Elif(entry == self._config.arrays - 1):
                m.d.comb += [self.lists.begin.eq(1), self.bitmaps.begin.eq(1)]
                m.next = "ASK_ROLE"

    def _place(self, m: Module) -> None:
        """The states ASK_ROLE to JUDGE: each role has a port, the lists of members are looked at,
        and whose the set is."""
        role, named, found = self._role, self._named, self._found
        place = self._place_in_span
        held = (found.members | found.rebuilding).bit_select(place, 1)
        free = ~(self.drives.used | self.drives.present | named)
        highest = Const(MAX_DRIVES - 1) - lowest_bit(m, free[::-1], "from_above")
        with m.State("ASK_ROLE"):
            m.next = "PLACE"

        with m.State("PLACE"):
            port, whole = Signal(self._config.port_bits), found.members.bit_select(place, 1)
            m.d.comb += [
                port.eq(Mux(held, self._assembler.member_read.data, highest)),
                *self._placed.store(
                    address=port,
                    position=role,
                    failed=~held,
                    stale=found.rebuilding.bit_select(place, 1),
                ),
            ]
            m.d.sync += [named.eq(named | (1 << port)), self._lacks.eq(self._lacks | ~whole)]
            m.next = "NEXT"
            with m.If(whole):
                m.next = "LOOK"
            with m.Elif(~held & ~free.any()):
                m.d.sync += [self._broken.eq(1), self._why.eq(Hindrance.NO_PLACE)]
                m.next = "PASS"

        with m.State("LOOK"):
            away = self._away.bit_select(self.lists.look.payload, 1)
            m.d.comb += self.lists.look.valid.eq(~away)
            with m.If(self.lists.look.ready):
                m.next = "LOOK_BITMAP" if self._config.durable_marks else "NEXT"

        # A drive has been looked at once another one could be named.
        if self._config.durable_marks:
            with m.State("LOOK_BITMAP"):
                away = self._away.bit_select(self.bitmaps.look.payload, 1)
                m.d.comb += self.bitmaps.look.valid.eq(self.lists.look.ready & ~away)
                with m.If(self.lists.look.ready & self.bitmaps.look.ready):
                    m.next = "NEXT"

        with m.State("NEXT"):
            looked = self.lists.look.ready
            if self._config.durable_marks:
                looked &= self.bitmaps.look.ready
            with m.If(~looked):
                m.next = "NEXT"
            with m.Else():
                m.d.sync += [role.eq(role + 1), place.eq(place + 1)]
                m.next = "ASK_ROLE"
                with m.If(place == found.width - 1):
                    m.d.sync += [
                        self._dirty.eq(self._dirty | found.dirty),
                        self._rebuilds.eq(self._rebuilds | found.rebuilding.any()),
                    ]
                    m.next = "PASS"
                    with m.If(found.place.span == found.place.last):
                        m.next = "JUDGE"

        # If one span is dirty and another lacks a drive, neither is hindered, and the array is.
        with m.State("JUDGE"):
            owner = Mux(self.lists.seen, self.lists.owner, self.brought_up.set_uuid[:IDENTITY_BITS])
            doubtful = (found.place.last != 0) & self._dirty & self._lacks
            forced = self._wanted & self._import.assumed & self._import.degraded
            is_own, is_forced = owner == self.identity, self._forced | doubtful
            m.d.sync += [
                self._forced.eq(self._forced | (doubtful & forced)),
                self.brought_up.made_by_md.eq(~self._made & (found.place.last == 0)),
            ]
            m.next = "PASS"
            with m.If(doubtful & ~forced):
                m.d.sync += self._why.eq(Hindrance.DOUBTFUL)
                self._tell(m, ManageStatus.DRIVE_UNAVAILABLE)
            # One that nothing hinders any more is brought up whatever is asked.
            with m.Elif(self._previews & (is_forced | ~is_own)):
                with m.If(self.kept.all()):
                    self._tell(m, ManageStatus.NO_ENTRY)
                with m.Else():
                    self._tell(m, ManageStatus.DONE)
                    m.d.sync += self.imports.response.payload.drives.eq(
                        named & self.drives.present
                    )
                with m.If(self._why == Hindrance.NOTHING):
                    m.d.sync += self._why.eq(
                        Mux(doubtful, Hindrance.DOUBTFUL, Hindrance.ELSEWHERE)
                    )
            with m.Elif(is_own | self._wanted):
                m.next = "CREATE"
            with m.Else():
                m.d.sync += self._why.eq(Hindrance.ELSEWHERE)
                self._tell(m, ManageStatus.INVALID_FIELD)

    def _ask(self, m: Module, opcode: ManageOpcode, then: str) -> None:
        """In a state, which ends as the change is taken: asks for it."""
        request = self.changes.request
        m.d.comb += [request.payload.opcode.eq(opcode), request.valid.eq(1)]
        with m.If(request.ready):
            m.next = then

    def _create(self, m: Module) -> None:
        """The states CREATE and CREATED: the tables make the array."""
        response = self.changes.response
        with m.State("CREATE"):
            m.d.comb += self.changes.request.payload.start.eq(self._found.data_offset)
            self._ask(m, ManageOpcode.CREATE_ARRAY, "CREATED")

        with m.State("CREATED"):
            m.d.comb += response.ready.eq(1)
            m.d.sync += [
                self._array.eq(response.payload.index),
                self._complete.eq(1),
                self._second.eq(0),
                self._numbered.eq(0),
                self._why.eq(Hindrance.NO_PLACE),
            ]
            with m.If(response.valid):
                with m.If(self._wanted):
                    m.d.sync += self.imports.response.payload.eq(response.payload)
                m.next = "PASS"
                with m.If(response.payload.status == ManageStatus.DONE):
                    with m.If(self._previews):
                        self._tell(m, ManageStatus.IN_USE)
                        m.d.sync += self.imports.response.payload.index.eq(0)
                    # Its other drives.
                    m.d.sync += self._why.eq(Hindrance.LEFT_OUT)
                    m.next = "GIVE"
                    if self._config.durable_marks:
                        with m.If(self._follows_marks | self._knows_stale_rows):
                            m.next = "GIVE_MARKS"

    def _tell(self, m: Module, status: ManageStatus) -> None:
        """In a state: why the set is not imported, if it is asked for."""
        with m.If(self._wanted):
            m.d.sync += self.imports.response.payload.status.eq(status)

    def _answer(self, m: Module) -> None:
        """The states STORED, until the drives say whose they are, and ANSWER."""
        response = self.imports.response
        with m.State("STORED"):
            with m.If(self.rests):
                m.next = "ANSWER"

        with m.State("ANSWER"):
            m.d.comb += response.valid.eq(1)
            with m.If(response.ready):
                m.next = "REST"

    def _create_volumes(self, m: Module) -> None:
        """The states GIVE to LISTED: the tables make its volumes, one after the other."""
        entries, response = self.lists.entries, self.changes.response
        number = entries.payload.number
        free = Signal()
        m.d.comb += free.eq(
            (number < self._config.volumes)
            & ~self.exists.bit_select(number[: self._config.volume_bits], 1)
        )
        if self._config.durable_marks:
            with m.State("GIVE_MARKS"):
                m.d.comb += self.bitmaps.give.valid.eq(1)
                with m.If(self.bitmaps.give.ready):
                    m.next = "GIVE"

        with m.State("GIVE"):
            m.d.comb += self.lists.give.eq(1)
            m.next = "TAKE_VOLUME"

        # First those whose numbers are free, then the others. An empty one does not fit.
        with m.State("TAKE_VOLUME"):
            skips = Mux(self._second, self._numbered.bit_select(number, 1), ~free)
            empty = entries.payload.blocks == 0
            m.d.sync += self._missed.eq(self.lists.missed)
            with m.If(entries.valid & entries.payload.valid):
                m.next = "CREATE_VOLUME"
                with m.If(skips | empty):
                    m.d.comb += entries.ready.eq(1)
                    m.next = "TAKE_VOLUME"
            with m.Elif(entries.valid):
                m.d.comb += entries.ready.eq(1)
                m.d.sync += self._second.eq(1)
                m.next = "GIVE"
                with m.If(self._second):
                    m.next = "LISTED"

        with m.State("CREATE_VOLUME"):
            m.d.comb += self._makes_volume.eq(1)
            self._ask(m, ManageOpcode.CREATE_VOLUME, "CREATED_VOLUME")

        with m.State("CREATED_VOLUME"):
            m.d.comb += [
                response.ready.eq(1),
                entries.ready.eq(response.valid),
                self.appears_detached.eq(entries.payload.detached),
            ]
            with m.If(response.valid):
                m.next = "TAKE_VOLUME"
                m.d.sync += self._numbered.bit_select(number, 1).eq(1)
                with m.Switch(response.payload.status):
                    with m.Case(ManageStatus.DONE):
                        m.d.comb += self.appeared.eq(1 << response.payload.index)
                    with m.Case(ManageStatus.NO_ENTRY):
                        m.d.sync += self._complete.eq(0)

        with m.State("LISTED"):
            m.d.comb += self.listed.valid.eq(self._complete)
            m.next = "NEXT_SPARE"
            with m.If(self._rebuilds):
                m.next = "REBUILD"

    def _rebuild(self, m: Module) -> None:
        """The states REBUILD and REBUILDING: drives that are not whole are rebuilt."""
        with m.State("REBUILD"):
            self._ask(m, ManageOpcode.START_JOB, "REBUILDING")

        # It is refused if a drive has gone meanwhile.
        with m.State("REBUILDING"):
            m.d.comb += self.changes.response.ready.eq(1)
            with m.If(self.changes.response.valid):
                m.next = "NEXT_SPARE"

    def _add_spares(self, m: Module) -> None:
        """The states NEXT_SPARE to DROPPED: drives that say that they are spares become that."""
        response, spare = self.changes.response, self._spare
        away = self._away.bit_select(spare, 1)
        done = response.payload.status == ManageStatus.DONE
        with m.State("NEXT_SPARE"):
            first = lowest_bit(m, self._spares, "first_spare")
            m.d.sync += [spare.eq(first), self._spares.bit_select(first, 1).eq(0)]
            m.next = "ADD_SPARE"
            with m.If(~self._spares.any()):
                m.next = "PASS"
            with m.Elif(self._away.bit_select(first, 1)):
                m.next = "NEXT_SPARE"

        with m.State("ADD_SPARE"):
            m.d.comb += self._adds_spare.eq(1)
            self._ask(m, ManageOpcode.ADD_SPARE, "ADDED_SPARE")

        # The drive may be another one by now, which does not say so.
        with m.State("ADDED_SPARE"):
            m.d.comb += response.ready.eq(1)
            with m.If(response.valid):
                m.d.comb += self.spare.valid.eq(done & ~away)
                m.next = "NEXT_SPARE"
                with m.If(done & away):
                    m.next = "DROP_SPARE"

        with m.State("DROP_SPARE"):
            m.d.comb += self._adds_spare.eq(1)
            self._ask(m, ManageOpcode.REMOVE_SPARE, "DROPPED")

        with m.State("DROPPED"):
            m.d.comb += response.ready.eq(1)
            with m.If(response.valid):
                m.next = "NEXT_SPARE"
