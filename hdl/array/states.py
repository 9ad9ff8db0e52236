"""What every array has left: optimal, partially degraded, degraded, failed."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.flow.array_state import ArrayState, ArrayVerdicts, array_verdict
from hdl.flow.drive_states import DriveStates
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.table_read import geometry_read, member_read, migration_read


class ArrayStates(wiring.Component):
    """Judges every array again whenever a drive or a table has changed.

    Members that can replace each other are a group. With parity the drives of a span are a group,
    and it can lose as many as there are parities. Without parity the drives that hold copies of one
    strip are a group, and it can lose all but one. Strips begin ``copies`` places apart and wrap
    (RAID 1E). So groups are looked at from each place where one begins, until that is place 0
    again. An array is as bad off as its worst group.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    changed
        A pulse. Judge again.
    drives
        What the tables know of the drives.
    inconsistent
        One bit per array. Its copies may differ, and its parities may be wrong, since drives have
        restarted. No suspect drive of it can be replaced by the others, and no good one spared.
    verdicts
        What the arrays have left.
    yields
        One bit per port, a pulse with ``judged``. These suspect drives are not needed. Three kinds
        are among them. No group of the array has lost data without such a member, even if all
        suspect drives fail, and the array is not ``inconsistent``. Or it is a migration target. Or,
        with the last array, it is in none of the arrays, because it leaves one.
    keeps
        One bit per port, a pulse with ``judged``. The other suspect members.
    essential
        One bit per port, while ``settled``. Good members of groups that can spare none of them,
        where suspect members count as bad, or of an array that is ``inconsistent``. Also the
        migration target of such a member, if the member has failed.
    geometry_read
        Table of the arrays.
    member_read
        Table of the members.
    migration_read
        Table of the migrations.
    busy
        It works.

    Latency: 5 cycles an array, and 2 for each member of each group. At most some 1000.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "changed": In(1),
                "drives": In(DriveStates()),
                "inconsistent": In(config.arrays),
                "verdicts": Out(ArrayVerdicts(config)),
                "yields": Out(MAX_DRIVES),
                "keeps": Out(MAX_DRIVES),
                "essential": Out(MAX_DRIVES),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "migration_read": Out(migration_read(config)),
                "busy": Out(1),
            }
        )
        self._changed = Signal()
        self._again = Signal()  # judge once more

        # The array at hand, and what is found of it.
        self._array = Signal(config.array_bits)
        self._shape = Signal(geometry(config))
        self._parity = self._shape.parities != 0
        self._found = Signal(array_verdict(config))

        # A group: drives of it, and how many it can lose; where it begins, and the next one does.
        self._size = Signal(WIDTH_BITS)
        self._tolerance = Signal(WIDTH_BITS)
        self._first = Signal(WIDTH_BITS)
        self._after = Signal(WIDTH_BITS + 1)

        # The member at hand; how much of its group has been seen, how many were bad, and how many
        # would be, were all suspect drives lost.
        self._position = Signal(WIDTH_BITS)
        self._next_position = Signal(WIDTH_BITS + 1)
        self._seen = Signal(WIDTH_BITS)
        self._bad = Signal(WIDTH_BITS)
        self._doubtful = Signal(WIDTH_BITS)

        # Suspect drives: of the array, of the group, and of groups that cannot do without them.
        self._suspects = Signal(MAX_DRIVES)
        self._in_group = Signal(MAX_DRIVES)
        self._needed = Signal(MAX_DRIVES)
        # Those of members that migrate. Those that have been suspect ever since array 0, without a
        # break, and are in none of the arrays seen so far.
        self._suspect_migrated = Signal(MAX_DRIVES)
        self._homeless = Signal(MAX_DRIVES)
        # Good members of the group, and the migration targets of failed ones. If the group has
        # nothing to spare, none of them may be lost.
        self._good = Signal(MAX_DRIVES)

    def elaborate(self, platform) -> Module:
        m = Module()
        self._measure_groups(m)
        self._connect_tables(m)
        self._look_at_member(m)
        self._note_states(m)
        inconsistent = Signal.like(self.inconsistent)
        m.d.sync += [
            inconsistent.eq(self.inconsistent),
            # A member that was not suspect as it was counted may be suspect again.
            self._homeless.eq(self._homeless & self.drives.suspect),
        ]
        m.d.comb += self._changed.eq(self.changed | (inconsistent != self.inconsistent))
        with m.If(self._changed):
            m.d.sync += self._again.eq(1)
        with m.FSM(name="judge") as fsm:
            self._rest(m)
            self._load(m)
            self._count(m)
            self._weigh(m)
            self._judge(m)
        m.d.comb += [
            self.verdicts.settled.eq(fsm.ongoing("REST") & ~self._again & ~self._changed),
            self.busy.eq(~self.verdicts.settled),
        ]
        return m

    def _measure_groups(self, m: Module) -> None:
        """How large groups are, and what they can lose, a cycle after the geometry."""
        shape, parity = self._shape, self._parity
        by_copies = Mux(shape.copies > 1, shape.copies, shape.width)
        m.d.sync += [
            self._size.eq(Mux(parity, shape.width, by_copies)),
            self._tolerance.eq(Mux(parity, shape.parities, shape.copies - 1)),
        ]
        m.d.comb += [
            self._after.eq(self._first + self._size),
            self._next_position.eq(self._position + 1),
        ]

    def _connect_tables(self, m: Module) -> None:
        """What is read of the array at hand, and what is said of it."""
        m.d.comb += [
            self.geometry_read.address.eq(self._array),
            self.member_read.address.array.eq(self._array),
            self.member_read.address.position.eq(self._position),
            self.migration_read.address.eq(self._array),
            self.verdicts.verdict.eq(self._found),
            self.verdicts.rows.eq(self._shape.rows),
        ]

    def _look_at_member(self, m: Module) -> None:
        """How the drive of the member is, and the migration target."""
        port, entry = self.member_read.data, self.migration_read.data
        self._is_failed = self.drives.failed.bit_select(port, 1)
        self._is_migrated = entry.valid & (entry.position == self._position)
        self._target_failed = entry.valid & self.drives.failed.bit_select(entry.port, 1)
        self._is_stale = self.drives.stale.bit_select(port, 1) & ~self._is_failed
        self._is_suspect = self.drives.suspect.bit_select(port, 1) & ~self._is_failed
        # Drives as bits: that of the member if it is suspect, the migration target if it is
        # suspect, and the one that is good.
        self._suspect_one = Signal(MAX_DRIVES)
        self._suspect_target = Signal(MAX_DRIVES)
        self._good_one = Signal(MAX_DRIVES)
        m.d.comb += [
            self._suspect_one.eq(self._is_suspect << port),
            self._suspect_target.eq((entry.valid << entry.port) & self.drives.suspect),
        ]
        with m.If(~self._is_failed & ~self._is_stale):
            m.d.comb += self._good_one.eq(1 << port)
        with m.Elif(self._is_failed & (self._is_migrated & ~self._target_failed)):
            m.d.comb += self._good_one.eq(1 << entry.port)

    def _note_states(self, m: Module) -> None:
        """What others ask of all arrays at once."""
        found = self.verdicts.verdict
        with m.If(self.verdicts.judged):
            m.d.sync += [
                self.verdicts.rebuilding.bit_select(found.array, 1).eq(found.rebuilding),
                self.verdicts.halted.bit_select(found.array, 1).eq(found.halted),
            ]
        # `ArrayState`, of arrays that there are.
        low, high = self.verdicts.states[::2], self.verdicts.states[1::2]
        m.d.comb += [
            self.verdicts.optimal.eq(self.verdicts.valid & ~(low | high)),
            self.verdicts.hopeless.eq(self.verdicts.valid & low & high),
        ]

    def _rest(self, m: Module) -> None:
        """The state REST, until something changes."""
        with m.State("REST"):
            with m.If(self._again):
                m.d.sync += [
                    self._again.eq(self._changed),
                    self._array.eq(0),
                    self.essential.eq(0),
                    self._homeless.eq(self.drives.suspect),
                ]
                m.next = "READ"

    def _load(self, m: Module) -> None:
        """The states READ and LOAD: the next array."""
        found, shape = self._found, self.geometry_read.data
        cleared = (
            self._first, self._position, self._seen, self._bad, self._suspects, self._in_group,
            self._good, self._needed, self._suspect_migrated, self._doubtful,
        )  # fmt: skip
        with m.State("READ"):
            m.next = "LOAD"

        with m.State("LOAD"):
            m.d.sync += [
                self._shape.eq(shape),
                found.eq(0),
                found.array.eq(self._array),
                found.valid.eq(shape.valid),
                *(register.eq(0) for register in cleared),
            ]
            m.next = "ASK"
            with m.If(~shape.valid):
                m.next = "JUDGE"

    def _count(self, m: Module) -> None:
        """The states ASK and COUNT: the next member of a group."""
        found, position, port = self._found, self._position, self.member_read.data
        is_failed, is_stale, is_migrated = self._is_failed, self._is_stale, self._is_migrated
        this_one, target = self._suspect_one, self._suspect_target
        with m.State("ASK"):
            m.next = "COUNT"

        with m.State("COUNT"):
            m.d.sync += [
                self._seen.eq(self._seen + 1),
                self._bad.eq(self._bad + (is_failed | is_stale)),
                found.rebuilding.eq(found.rebuilding | is_stale),
                found.halted.eq(found.halted | self._target_failed | (is_migrated & is_failed)),
            ]
            with m.If(is_failed & ~found.missing):
                m.d.sync += [found.missing.eq(1), found.position.eq(position)]
            m.d.sync += [
                self._doubtful.eq(self._doubtful + (is_failed | is_stale | self._is_suspect)),
                # What a stale drive has lost, the others have.
                self._in_group.eq(self._in_group | Mux(is_stale, 0, this_one)),
                self._suspects.eq(self._suspects | this_one | target),
                self._suspect_migrated.eq(self._suspect_migrated | Mux(is_migrated, this_one, 0)),
                self._good.eq(self._good | self._good_one),
                self._homeless.eq(self._homeless & self.drives.suspect & ~(this_one | target)),
            ]
            with m.If(is_failed & self.drives.returns.bit_select(port, 1) & ~found.returns):
                m.d.sync += [
                    found.returns.eq(1),
                    found.place.eq(position),
                    found.port.eq(port),
                ]
            wraps = ~self._parity & (self._next_position == self._shape.width)
            m.d.sync += position.eq(Mux(wraps, 0, self._next_position))
            m.next = "ASK"
            with m.If(self._seen + 1 == self._size):
                m.next = "WEIGH"

    def _weigh(self, m: Module) -> None:
        """The state WEIGH, of a group: the array is as bad off as its worst one."""
        found, shape, after = self._found, self._shape, self._after
        with m.State("WEIGH"):
            worse = self._state_of_group(m)
            with m.If(worse.as_value() > found.state.as_value()):
                m.d.sync += found.state.eq(worse)
            for register in (self._seen, self._bad, self._doubtful, self._in_group, self._good):
                m.d.sync += register.eq(0)
            inconsistent = self.inconsistent.bit_select(self._array, 1)
            with m.If((self._doubtful >= self._tolerance) | inconsistent):
                m.d.sync += self.essential.eq(self.essential | self._good)
            with m.If((self._doubtful > self._tolerance) | inconsistent):
                m.d.sync += self._needed.eq(self._needed | self._in_group)
            m.next = "ASK"
            with m.If(self._parity):
                m.d.sync += [self._first.eq(after), self._position.eq(after)]
                with m.If(after == shape.width * shape.spans):
                    m.next = "JUDGE"
            with m.Else():
                wrapped = Mux(after >= shape.width, after - shape.width, after)
                m.d.sync += [self._first.eq(wrapped), self._position.eq(wrapped)]
                with m.If(wrapped == 0):
                    m.next = "JUDGE"

    def _state_of_group(self, m: Module):
        """What the group has left."""
        bad, tolerance = self._bad, self._tolerance
        left = Signal(ArrayState)
        with m.If(bad > tolerance):
            m.d.comb += left.eq(ArrayState.FAILED)
        with m.Elif(bad == 0):
            m.d.comb += left.eq(ArrayState.OPTIMAL)
        with m.Elif(bad == tolerance):
            m.d.comb += left.eq(ArrayState.DEGRADED)
        with m.Else():
            m.d.comb += left.eq(ArrayState.PARTIALLY_DEGRADED)
        return left

    def _judge(self, m: Module) -> None:
        """The state JUDGE: what is said of the array."""
        found, array, needed = self._found, self._array, self._needed
        state_bits = self.verdicts.states.word_select(array, 2)
        last = array == self._config.arrays - 1
        with m.State("JUDGE"):
            existed = self.verdicts.valid.bit_select(array, 1)
            before = Mux(existed, state_bits, ArrayState.OPTIMAL.value)
            m.d.comb += [
                self.verdicts.verdict.loses.eq((needed & ~self.drives.kept).any()),
                self.verdicts.verdict.migrates_anew.eq(
                    (self._suspect_migrated & needed & ~self.drives.kept).any()
                ),
                self.verdicts.verdict.redundant.eq(self._tolerance != 0),
                self.verdicts.judged.eq(1),
                self.yields.eq(
                    Mux(found.valid, self._suspects & ~needed, 0) | Mux(last, self._homeless, 0)
                ),
                self.keeps.eq(Mux(found.valid, needed, 0)),
                self.verdicts.news.eq(found.valid & (found.state.as_value() != before)),
            ]
            m.d.sync += [
                state_bits.eq(found.state),
                self.verdicts.valid.bit_select(array, 1).eq(found.valid),
                array.eq(array + 1),
            ]
            m.next = "READ"
            with m.If(last):
                m.next = "REST"
