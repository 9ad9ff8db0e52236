"""What every array has left: optimal, partially degraded, degraded, failed."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, Config
from hdl.flow.array_state import ArrayState, judgement
from hdl.flow.geometry import WIDTH_BITS, geometry
from hdl.flow.table_read import copy_read, geometry_read, member_read


class ArrayStates(wiring.Component):
    """Judges every array again whenever a drive or a table has changed.

    Members that can replace each other are a group: the drives of a span with as many to lose as
    there are parities; without parity the drives that hold copies of one strip, all but one. Strips
    begin ``copies`` places apart and wrap (RAID 1E), so groups are looked at from each place where
    one begins until that is place 0 again. An array is as bad off as its worst group.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    changed
        A pulse: judge again.
    failed, stale, suspect, kept, returns
        Bit a port, as in `hdl.array.tables.tables.ArrayTables`.
    yields, keeps
        Bit a port, a pulse with ``judged``: suspect members without which no group of the array has
        lost data, were all suspect drives failed, a suspect drive that a member is copied to, and
        with the last array those that are in none of them (a drive that leaves one); other suspect
        members.
    essential
        Bit a port, while ``settled``: good members of groups that have nothing to spare but them,
        suspect members counting as bad; and a drive that such a member, which has failed, is copied
        to.
    judged, judgement
        A pulse with each array that has been judged, also if nothing is new.
    states, valid
        What was last found, 2 bits an array, `ArrayState`; whether the array exists.
    rows
        Of the array that has been judged, if it exists.
    news
        A pulse: a state is another than before. An array appears as OPTIMAL, and that is no news.
    settled
        ``states`` is up to date.
    geometry_read, member_read, copy_read
        Tables.

    Latency: 5 cycles an array, and 2 for each member of each group: at most some 1000.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "changed": In(1),
                "failed": In(MAX_DRIVES),
                "stale": In(MAX_DRIVES),
                "suspect": In(MAX_DRIVES),
                "kept": In(MAX_DRIVES),
                "returns": In(MAX_DRIVES),
                "yields": Out(MAX_DRIVES),
                "keeps": Out(MAX_DRIVES),
                "essential": Out(MAX_DRIVES),
                "judged": Out(1),
                "judgement": Out(judgement(config)),
                "rows": Out(BLOCK_NUMBER_BITS),
                "states": Out(2 * config.arrays),
                "valid": Out(config.arrays),
                "news": Out(1),
                "settled": Out(1),
                "geometry_read": Out(geometry_read(config)),
                "member_read": Out(member_read(config)),
                "copy_read": Out(copy_read(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        shape = Signal(geometry(config))
        array = Signal(config.array_bits)
        found = Signal(judgement(config))
        again = Signal()
        # A group: where it begins, how much of it has been seen, and how many were bad.
        first, place = Signal(WIDTH_BITS), Signal(WIDTH_BITS)
        seen, bad = Signal(WIDTH_BITS), Signal(WIDTH_BITS)
        parity = shape.parities != 0
        size, tolerance = Signal(WIDTH_BITS), Signal(WIDTH_BITS)
        by_copies = Mux(shape.copies > 1, shape.copies, shape.width)
        m.d.sync += [
            size.eq(Mux(parity, shape.width, by_copies)),
            tolerance.eq(Mux(parity, shape.parities, shape.copies - 1)),
        ]
        after = Signal(WIDTH_BITS + 1)
        next_place = Signal(WIDTH_BITS + 1)
        m.d.comb += [
            self.geometry_read.address.eq(array),
            self.member_read.address.array.eq(array),
            self.member_read.address.position.eq(place),
            self.copy_read.address.eq(array),
            after.eq(first + size),
            next_place.eq(place + 1),
            self.judgement.eq(found),
            self.rows.eq(shape.rows),
        ]
        port = self.member_read.data
        is_failed = self.failed.bit_select(port, 1)
        copy = self.copy_read.data
        is_copied = copy.valid & (copy.position == place)
        copy_failed = copy.valid & self.failed.bit_select(copy.port, 1)
        is_stale = self.stale.bit_select(port, 1) & ~is_failed
        state_bits = self.states.word_select(array, 2)

        # Suspect drives of the array, of the group, and of groups that cannot do without them.
        suspects, in_group, needed = (
            Signal(MAX_DRIVES, name=name) for name in ("suspects", "in_group", "needed")
        )
        suspect_copied = Signal(MAX_DRIVES)
        doubtful = Signal(WIDTH_BITS)
        # Those that have been suspect since array 0 and are in none of the arrays seen so far.
        homeless = Signal(MAX_DRIVES)
        is_suspect = self.suspect.bit_select(port, 1) & ~is_failed
        this_one = Signal(MAX_DRIVES)
        target = Signal(MAX_DRIVES)
        m.d.comb += [
            this_one.eq(is_suspect << port),
            target.eq((copy.valid << copy.port) & self.suspect),
        ]

        # Members of the group that are not to be lost, should it have nothing to spare.
        held, holds = Signal(MAX_DRIVES), Signal(MAX_DRIVES)
        follows = is_copied & ~copy_failed
        with m.If(~is_failed & ~is_stale):
            m.d.comb += holds.eq(1 << port)
        with m.Elif(is_failed & follows):
            m.d.comb += holds.eq(1 << copy.port)

        with m.If(self.changed):
            m.d.sync += again.eq(1)

        with m.FSM(name="judge") as fsm:
            with m.State("REST"):
                with m.If(again):
                    m.d.sync += [
                        again.eq(self.changed),
                        array.eq(0),
                        self.essential.eq(0),
                        homeless.eq(self.suspect),
                    ]
                    m.next = "READ"

            with m.State("READ"):
                m.next = "LOAD"

            with m.State("LOAD"):
                m.d.sync += [
                    shape.eq(self.geometry_read.data),
                    found.eq(0),
                    found.array.eq(array),
                    found.valid.eq(self.geometry_read.data.valid),
                    first.eq(0),
                    place.eq(0),
                    seen.eq(0),
                    bad.eq(0),
                    suspects.eq(0),
                    in_group.eq(0),
                    held.eq(0),
                    needed.eq(0),
                    suspect_copied.eq(0),
                    doubtful.eq(0),
                ]
                m.next = "ASK"
                with m.If(~self.geometry_read.data.valid):
                    m.next = "JUDGE"

            with m.State("ASK"):
                m.next = "COUNT"

            with m.State("COUNT"):
                m.d.sync += [seen.eq(seen + 1), bad.eq(bad + (is_failed | is_stale))]
                m.d.sync += [
                    found.rebuilding.eq(found.rebuilding | is_stale),
                    found.halted.eq(found.halted | copy_failed | (is_copied & is_failed)),
                ]
                with m.If(is_failed & ~found.missing):
                    m.d.sync += [found.missing.eq(1), found.position.eq(place)]
                m.d.sync += [
                    doubtful.eq(doubtful + (is_failed | is_stale | is_suspect)),
                    # What a stale drive has lost, the others have.
                    in_group.eq(in_group | Mux(is_stale, 0, this_one)),
                    suspects.eq(suspects | this_one | target),
                    suspect_copied.eq(suspect_copied | Mux(is_copied, this_one, 0)),
                    held.eq(held | holds),
                    homeless.eq(homeless & ~(this_one | target)),
                ]
                with m.If(is_failed & self.returns.bit_select(port, 1) & ~found.returns):
                    m.d.sync += [
                        found.returns.eq(1),
                        found.place.eq(place),
                        found.port.eq(port),
                    ]
                m.d.sync += place.eq(Mux(~parity & (next_place == shape.width), 0, next_place))
                m.next = "ASK"
                with m.If(seen + 1 == size):
                    m.next = "WEIGH"

            with m.State("WEIGH"):
                worse = Signal(ArrayState)
                with m.If(bad > tolerance):
                    m.d.comb += worse.eq(ArrayState.FAILED)
                with m.Elif(bad == 0):
                    m.d.comb += worse.eq(ArrayState.OPTIMAL)
                with m.Elif(bad == tolerance):
                    m.d.comb += worse.eq(ArrayState.DEGRADED)
                with m.Else():
                    m.d.comb += worse.eq(ArrayState.PARTIALLY_DEGRADED)
                with m.If(worse.as_value() > found.state.as_value()):
                    m.d.sync += found.state.eq(worse)
                m.d.sync += [seen.eq(0), bad.eq(0), doubtful.eq(0), in_group.eq(0), held.eq(0)]
                with m.If(doubtful >= tolerance):
                    m.d.sync += self.essential.eq(self.essential | held)
                with m.If(doubtful > tolerance):
                    m.d.sync += needed.eq(needed | in_group)
                m.next = "ASK"
                with m.If(parity):
                    m.d.sync += [first.eq(after), place.eq(after)]
                    with m.If(after == shape.width * shape.spans):
                        m.next = "JUDGE"
                with m.Else():
                    wrapped = Mux(after >= shape.width, after - shape.width, after)
                    m.d.sync += [first.eq(wrapped), place.eq(wrapped)]
                    with m.If(wrapped == 0):
                        m.next = "JUDGE"

            with m.State("JUDGE"):
                before = Mux(self.valid.bit_select(array, 1), state_bits, ArrayState.OPTIMAL.value)
                m.d.comb += [
                    self.judgement.loses.eq((needed & ~self.kept).any()),
                    self.judgement.recopies.eq((suspect_copied & needed & ~self.kept).any()),
                    self.judgement.redundant.eq(tolerance != 0),
                    self.judged.eq(1),
                    self.yields.eq(
                        Mux(found.valid, suspects & ~needed, 0)
                        | Mux(array == config.arrays - 1, homeless, 0)
                    ),
                    self.keeps.eq(Mux(found.valid, needed, 0)),
                    self.news.eq(found.valid & (found.state.as_value() != before)),
                ]
                m.d.sync += [
                    state_bits.eq(found.state),
                    self.valid.bit_select(array, 1).eq(found.valid),
                    array.eq(array + 1),
                ]
                m.next = "READ"
                with m.If(array == config.arrays - 1):
                    m.next = "REST"

        m.d.comb += [
            self.settled.eq(fsm.ongoing("REST") & ~again & ~self.changed),
            self.busy.eq(~self.settled),
        ]
        return m
