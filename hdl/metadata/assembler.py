"""Which drives make an array, as Linux md judges by their superblocks."""

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import DATA_OFFSET_BITS, MAX_DRIVES, SECTOR_BITS, Config
from hdl.flow.geometry import WIDTH_BITS
from hdl.kit.bits import ones
from hdl.kit.pick import lowest_bit
from hdl.kit.table import Table
from hdl.metadata import spans
from hdl.metadata.found_set import Hindrance, found_member_read, found_set
from hdl.metadata.found_shape import FoundShape
from hdl.metadata.superblock import (
    HEAD_WORDS,
    KEPT_BITS,
    KEPT_WORDS,
    MOST_DEVICES,
    PLACE_BITS,
    SPARE,
    WORD_BITS,
    Feature,
    Word,
    kept_address,
    kept_read,
)
from hdl.metadata.superblock_words import DATA_OFFSET

ALIKE = (*range(Word.SET_UUID, Word.SET_NAME), *range(Word.CTIME, Word.BITMAP_OFFSET))
"""Words that all superblocks of an array have in common: the identity, and from the time at which
it was made to the number of its drives."""

COMPARED = (*ALIKE, Word.EVENTS, Word.EVENTS + 1)
"""Words of a drive that are compared with those of another."""

REFUSED = (
    Feature.BAD_BLOCKS,
    Feature.RESHAPE,
    Feature.REPLACEMENT,
    Feature.RESHAPE_BACKWARDS,
    Feature.NEW_OFFSET,
    Feature.CLUSTERED,
    Feature.JOURNAL,
    Feature.PPL,
    Feature.MULTIPLE_PPLS,
)
"""What the card does not bring up."""

OFFSET_BITS = DATA_OFFSET_BITS + SECTOR_BITS
"""Width of the sector at which the data of a member begins."""

OTHER_BITS = (1 << WORD_BITS) - 1 - (((1 << spans.SPAN_BITS) - 1) << spans.UUID_BIT)
"""Bits of `spans.UUID_WORD` that all spans have in common."""

PARITIES = {4: 1, 5: 1, 6: 2, 7: 3}
"""md's levels with parity, and the card's level 7, and how many drives each can do without."""

CREATED = (Word.CTIME, Word.CTIME + 1)
"""Words of the first drive of a set that say whether it is a span."""

SIFTED = 12
"""Words that are read to find the role of a drive."""


class Assembler(wiring.Component):
    """Sorts drives into arrays by their superblocks, and judges each set.

    It judges as `mdadm --assemble` (4.2) and `super_1_validate` (Linux 6.1) do, see
    `sim.golden.assembly`. The freshest superblock counts, at the lowest port of those alike. A
    drive that is one event behind is as good as current, but its role is what the freshest says. Of
    two drives for one role the fresher one has it, or the one at the lower port.

    Each span of a RAID 50 or 60 is a set. As soon as one of its drives is found, all spans of that
    array follow, from the first to the last, also those of which no drive is there.

    A set takes some 260 cycles, 95 more for each of its drives, and up to 1,024 for the copies of a
    RAID 10. Nothing is written to a drive.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    start
        A pulse, heard at rest. Sets are found anew.
    valid
        A bit a port. The superblock of its drive is kept. A drive that goes away while a set is
        made up may still be in it.
    covered
        A bit a port. If all members of a set that are there are covered, it is as good as clean,
        whatever its superblocks say (`hdl.redo.replay`).
    kept_read
        What is kept of superblocks.
    found
        The sets, one after the other. Each waits for its user.
    member_read
        The port of each role of the set that is offered.
    done
        It is at rest. It is not in the cycle after ``start``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "valid": In(config.ports),
                "covered": In(config.ports),
                "kept_read": Out(kept_read(config)),
                "found": Out(stream.Signature(found_set(config))),
                "member_read": In(found_member_read(config)),
                "done": Out(1),
            }
        )
        self._places = Table(config.port_bits, MAX_DRIVES)
        self._unseen = Signal(config.ports)
        # The first drive of the set, or of another span, which one that is, and the drive that is
        # looked at.
        self._seed = Signal(config.port_bits)
        self._seed_span = Signal(spans.SPAN_BITS)
        self._clockless = Signal()  # of the time at which it was made the lower word is 0
        self._aside = Signal()  # the drive that is looked at is of another span, so far
        self._port = Signal(config.port_bits)
        self._last_port = self._port == config.ports - 1

        # What is read: step of a list of words, then whether the first of two words has come.
        self._step = Signal(range(max(len(COMPARED), SIFTED)))
        self._second = Signal()
        self._held = Signal(WORD_BITS)
        self._word = Signal(KEPT_BITS)  # of all words of the freshest

        # Of two numbers of events: the lower difference, its borrow, the upper difference.
        self._low = Signal(WORD_BITS)
        self._borrow = Signal()
        self._high = Signal(WORD_BITS)

        # What the freshest says.
        self._level = Signal(WORD_BITS)
        self._layout = Signal(WORD_BITS)
        self._disks = Signal(WORD_BITS)
        self._chunk = Signal(WORD_BITS)
        self._size = Signal(PLACE_BITS)
        self._expected = Signal(MAX_DRIVES)
        self._least = Signal(PLACE_BITS)  # data of the smallest member, and of the largest
        self._most = Signal(PLACE_BITS)
        self._offset = Signal(OFFSET_BITS)  # where the data of the first member begins
        self._shape = FoundShape()

        # Of the drive that is looked at.
        self._number = Signal(range(MOST_DEVICES))
        self._numbered = Signal()
        self._rebuilds = Signal()
        self._place = Signal(OFFSET_BITS)  # where its data begins
        self._misplaced = Signal()  # where that of no array of the card does
        self._sectors = Signal(PLACE_BITS)
        self._own_role = Signal(16)
        self._their_role = Signal(16)

        self._late = Signal()  # drives one event behind are sifted
        self._uncovered = Signal()  # one that has a role is not covered
        self._one_late = Signal()  # one of them has a role
        self._odd = Signal()  # a device has another number than its role
        self._different = Signal()
        self._refused = Signal()
        self._claimed = Signal(MAX_DRIVES)

        # Copies of a RAID 10: the role looked at, which copy it is, and how many strips are done;
        # whether a copy is there; whether all strips have one.
        self._role = Signal(WIDTH_BITS)
        self._copy = Signal(8)
        self._strip = Signal(WIDTH_BITS)
        self._one_there = Signal(2)
        self._all_there = Signal(2, init=3)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.places = self._places
        m.submodules.shape = shape = self._shape
        connect(m, flipped(self.member_read), self._places.reads[0])
        m.d.comb += [
            shape.md_level.eq(self._level),
            shape.md_layout.eq(self._layout),
            shape.chunk.eq(self._chunk),
            shape.disks.eq(self._disks),
            # A RAID 0 does not say how much is used.
            shape.sectors.eq(Mux(self._level == 0, self._least, self._size)),
        ]
        with m.FSM(name="assemble") as fsm:
            self._rest(m)
            self._sow(m)
            self._note_span(m)
            self._match(m)
            self._scan(m)
            self._sift(m)
            self._judge(m)
            self._offer(m)
            m.d.comb += self.done.eq(fsm.ongoing("REST"))
        return m

    def _read(self, m: Module, port: Value, word: Value | int) -> None:
        """Asks for a word, which is there in the next cycle."""
        m.d.comb += self.kept_read.address.eq(kept_address(port, word))

    def _rest(self, m: Module) -> None:
        """The state REST: nothing is asked for."""
        with m.State("REST"):
            m.d.sync += self._unseen.eq(self.valid)
            with m.If(self.start):
                m.next = "SOW"

    def _sow(self, m: Module) -> None:
        """The state SOW: the next span, or else the lowest drive that is in no set begins one."""
        found, first = self.found.payload, lowest_bit(m, self._unseen, "lowest")
        goes_on = found.place.span != found.place.last
        with m.State("SOW"):
            m.d.sync += [
                self._step.eq(0),
                self._second.eq(0),
                self._different.eq(0),
                self._refused.eq(0),
                self._claimed.eq(0),
                self._expected.eq(0),
                found.drives.eq(0),
                found.left_out.eq(0),
                found.spares.eq(0),
                found.members.eq(0),
                found.rebuilding.eq(0),
                self._uncovered.eq(0),
                self._one_late.eq(0),
                self._odd.eq(0),
                self._least.eq(~0),
                self._most.eq(0),
                self._offset.eq(DATA_OFFSET),
            ]
            with m.If(goes_on):
                m.d.sync += [
                    self._port.eq(self._seed),
                    found.freshest.eq(self._seed),
                    found.place.span.eq(found.place.span + 1),
                ]
                m.next = "FIND"
            with m.Else():
                m.d.sync += [
                    self._seed.eq(first),
                    self._port.eq(first),
                    self._seed_span.eq(0),
                    found.freshest.eq(first),
                    found.place.eq(0),
                    found.group.eq(0),
                ]
                m.next = "ASK_TIME"
                with m.If(~self._unseen.any()):
                    m.next = "REST"

    def _note_span(self, m: Module) -> None:
        """The states ASK_TIME and NOTE_TIME: whether the first drive is of a span."""
        step, found, word = self._step, self.found.payload, self.kept_read.data
        with m.State("ASK_TIME"):
            self._read(m, self._seed, Array(CREATED)[step[0]])
            m.next = "NOTE_TIME"

        with m.State("NOTE_TIME"):
            place = data.View(spans.Place, spans.placed(word))
            m.d.sync += [step.eq(1), self._clockless.eq(word == 0)]
            m.next = "ASK_TIME"
            with m.If(step[0]):
                m.next = "FIND"
                with m.If(self._clockless & spans.is_placed(word)):
                    m.d.sync += [self._seed_span.eq(place.span), found.place.last.eq(place.last)]

    def _match(self, m: Module) -> None:
        """The states FIND, COMPARE and MATCH: the drives of the set, and the freshest of them."""
        found, port = self.found.payload, self._port
        step, read = self._step, self.kept_read.data
        word = Array(COMPARED)[step]
        is_events = step >= len(ALIKE)
        last = step == len(COMPARED) - 1
        belongs = step < Word.SET_NAME - Word.SET_UUID
        last_that_belongs = step == Word.SET_NAME - Word.SET_UUID - 1
        is_span = found.place.last != 0
        of_span = spans.identity(read, found.place.span ^ self._seed_span)
        aside = is_span & (word == spans.UUID_WORD) & ~((self._held ^ read) & OTHER_BITS).any()
        fresher = Signal()
        with m.State("FIND"):
            m.d.sync += [step.eq(0), self._second.eq(0), self._aside.eq(0)]
            with m.If(self._unseen.bit_select(port, 1)):
                m.next = "COMPARE"
            with m.Else():
                self._next_port(m, "FIND", "SCAN")

        with m.State("COMPARE"):
            other = Mux(is_events, found.freshest, self._seed)
            self._read(m, Mux(self._second, port, other), word)
            m.next = "MATCH"

        with m.State("MATCH"):
            m.next = "COMPARE"
            m.d.sync += self._second.eq(~self._second)
            with m.If(~self._second):
                # What stands there if the drive is of this span.
                m.d.sync += self._held.eq(read)
                with m.If(word == spans.UUID_WORD):
                    m.d.sync += self._held.eq(of_span)
                with m.If(is_span & (word == Word.CTIME + 1)):
                    m.d.sync += self._held.eq(spans.created(found.place))
            with m.Else():
                m.d.sync += step.eq(step + 1)
                with m.If(is_events):
                    fewer = self._subtract(m, last)
                    m.d.comb += fresher.eq(last & fewer)
                with m.Elif(self._held != read):
                    with m.If(aside):
                        m.d.sync += self._aside.eq(1)
                    with m.Elif(belongs):
                        self._next_port(m, "FIND", "SCAN")
                    with m.Else():
                        m.d.sync += self._different.eq(1)
                with m.Elif(self._aside & last_that_belongs):
                    m.d.sync += found.group.bit_select(port, 1).eq(1)
                    self._next_port(m, "FIND", "SCAN")
                with m.If(last):
                    m.d.sync += [
                        self._unseen.bit_select(port, 1).eq(0),
                        found.drives.bit_select(port, 1).eq(1),
                        found.group.bit_select(port, 1).eq(1),
                    ]
                    with m.If(fresher | ~found.drives.any()):
                        m.d.sync += found.freshest.eq(port)
                    self._next_port(m, "FIND", "SCAN")

    def _next_port(self, m: Module, more: str, end: str) -> None:
        """The next drive in state ``more``, or ``end`` after the last."""
        m.d.sync += self._port.eq(Mux(self._last_port, 0, self._port + 1))
        m.next = more
        with m.If(self._last_port):
            m.next = end

    def _subtract(self, m: Module, upper: Value) -> Signal:
        """Subtracts the events of the drive from those of the freshest, the lower word first.

        Returns, with the ``upper`` word, whether the drive has more.
        """
        difference = Signal(signed(WORD_BITS + 2), name="difference")
        lacks = Signal(name="lacks")
        m.d.comb += [
            difference.eq(self._held - self.kept_read.data - (upper & self._borrow)),
            lacks.eq(difference < 0),
        ]
        m.d.sync += self._borrow.eq(lacks)
        with m.If(upper):
            m.d.sync += self._high.eq(difference)
        with m.Else():
            m.d.sync += self._low.eq(difference)
        return lacks

    def _scan(self, m: Module) -> None:
        """The states SCAN and SHAPE: what the freshest superblock says."""
        found, word = self.found.payload, self._word
        with m.State("SCAN"):
            self._read(m, found.freshest, word)
            m.next = "SHAPE"

        with m.State("SHAPE"):
            m.d.sync += word.eq(word + 1)
            m.next = "SCAN"
            self._note(m, word, self.kept_read.data)
            with m.If(word == KEPT_WORDS - 1):
                m.next = "CHOOSE"

    def _note(self, m: Module, word: Value, data: Value) -> None:
        """A word of the freshest superblock."""
        found = self.found.payload
        with m.Switch(word):
            with m.Case(Word.LEVEL):
                m.d.sync += self._level.eq(data)
            with m.Case(Word.LAYOUT):
                m.d.sync += self._layout.eq(data)
            with m.Case(Word.CHUNK):
                m.d.sync += self._chunk.eq(data)
            with m.Case(Word.SIZE):
                m.d.sync += self._size[:WORD_BITS].eq(data)
            with m.Case(Word.SIZE + 1):
                m.d.sync += self._size[WORD_BITS:].eq(data)
                with m.If(data[PLACE_BITS - WORD_BITS :].any()):
                    m.d.sync += self._refused.eq(1)
            with m.Case(Word.RAID_DISKS):
                m.d.sync += [self._disks.eq(data), found.width.eq(data)]
            with m.Case(Word.RESYNC_OFFSET):
                m.d.sync += found.dirty.eq(~data.all())
            with m.Case(Word.RESYNC_OFFSET + 1):
                with m.If(~data.all()):
                    m.d.sync += found.dirty.eq(1)
        with m.If(word >= HEAD_WORDS):
            roles = [data.word_select(half, 16) for half in range(2)]
            m.d.sync += self._expected.eq(
                self._expected
                | reduce(or_, (Mux(self._is_role(role), self._bit(role), 0) for role in roles))
            )

    def _is_role(self, role: Value) -> Value:
        return (role < self._disks) & (role < MAX_DRIVES)

    def _bit(self, role: Value) -> Value:
        return (1 << role[: (MAX_DRIVES - 1).bit_length()])[:MAX_DRIVES]

    def _sift(self, m: Module) -> None:
        """The states CHOOSE, LOOK, LEARN and SEAT: each drive gets its role, first those that are
        as fresh as the freshest, then those one event behind."""
        found, port, step = self.found.payload, self._port, self._step
        data = self.kept_read.data
        with m.State("CHOOSE"):
            m.d.sync += step.eq(0)
            with m.If(found.drives.bit_select(port, 1)):
                m.next = "LOOK"
            with m.Else():
                self._after_drive(m)

        of_role = (HEAD_WORDS + (self._number >> 1))[:KEPT_BITS]
        words = Array(
            (Word.DEVICE_NUMBER, Word.FEATURES)
            + 2 * (Word.EVENTS,)
            + 2 * (Word.EVENTS + 1,)
            + (Word.DATA_OFFSET, Word.DATA_OFFSET + 1, Word.DATA_SIZE, Word.DATA_SIZE + 1)
            + 2 * (of_role,)
        )
        of_freshest = Array((0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1))
        with m.State("LOOK"):
            self._read(m, Mux(of_freshest[step], found.freshest, port), words[step])
            m.next = "LEARN"

        with m.State("LEARN"):
            m.d.sync += step.eq(step + 1)
            m.next = "LOOK"
            role = Mux(self._numbered, data.word_select(self._number[0], 16), SPARE)
            with m.Switch(step):
                with m.Case(0):
                    m.d.sync += [self._number.eq(data), self._numbered.eq(data < MOST_DEVICES)]
                with m.Case(1):
                    m.d.sync += self._rebuilds.eq(data[Feature.RECOVERY_OFFSET])
                    with m.If(Cat(data[bit] for bit in REFUSED).any()):
                        m.d.sync += self._refused.eq(1)
                with m.Case(2, 4):
                    m.d.sync += self._held.eq(data)
                with m.Case(3, 5):
                    self._subtract(m, step == 5)
                with m.Case(6):
                    whole = ~data[:SECTOR_BITS].any() & ~data[OFFSET_BITS:].any()
                    m.d.sync += [
                        self._place.eq(data),
                        self._misplaced.eq(~whole | (data < DATA_OFFSET)),
                    ]
                with m.Case(7):
                    with m.If(data != 0):
                        m.d.sync += self._misplaced.eq(1)
                with m.Case(8):
                    m.d.sync += self._sectors[:WORD_BITS].eq(data)
                with m.Case(9):
                    m.d.sync += self._sectors[WORD_BITS:].eq(data)
                with m.Case(10):
                    m.d.sync += self._own_role.eq(role)
                with m.Case(SIFTED - 1):
                    m.d.sync += self._their_role.eq(role)
                    m.next = "SEAT"

        with m.State("SEAT"):
            self._seat(m)
            self._after_drive(m)

    def _seat(self, m: Module) -> None:
        """The role of the drive, unless another has it, or it is not its turn."""
        found, port, own = self.found.payload, self._port, self._own_role
        events = Cat(self._low, self._high)
        turn = events == self._late
        role = Mux(self._late, self._their_role, own)
        bit = self._bit(role)
        taken = ((found.members | found.rebuilding) & bit).any()
        places = self._places
        with m.If(self._is_spare):
            m.d.sync += found.spares.bit_select(port, 1).eq(1)
        with m.If(turn):
            with m.If(self._is_role(own) & ~self._rebuilds):
                m.d.sync += self._claimed.eq(self._claimed | self._bit(own))
            with m.If(~self._is_role(role) | taken):
                m.d.sync += found.left_out.bit_select(port, 1).eq(1)
                # It would have a role by its number, if numbers were roles.
                with m.If(self._numbered & (self._number < self._disks) & (own != self._number)):
                    m.d.sync += [self._one_late.eq(1), self._odd.eq(1)]
            with m.Else():
                m.d.comb += places.store(address=role, data=port)
                is_first = ~(found.members | found.rebuilding).any()
                with m.If(is_first):
                    m.d.sync += self._offset.eq(self._place)
                with m.If(self._misplaced | (~is_first & (self._place != self._offset))):
                    m.d.sync += self._refused.eq(1)
                covered = self.covered.bit_select(port, 1)
                m.d.sync += [
                    self._uncovered.eq(self._uncovered | ~covered),
                    self._one_late.eq(self._one_late | self._late),
                    self._odd.eq(self._odd | (self._number != role)),
                ]
                with m.If(self._sectors < self._least):
                    m.d.sync += self._least.eq(self._sectors)
                with m.If(self._sectors > self._most):
                    m.d.sync += self._most.eq(self._sectors)
                with m.If(self._rebuilds):
                    m.d.sync += found.rebuilding.eq(found.rebuilding | bit)
                with m.Else():
                    m.d.sync += found.members.eq(found.members | bit)
        with m.Elif(self._late & (events > 1)):
            m.d.sync += found.left_out.bit_select(port, 1).eq(1)

    @property
    def _is_spare(self) -> Value:
        """The drive says that it is a spare. One that was a member has a number among the roles."""
        beyond = self._numbered & (self._number >= self._disks)
        return beyond & (self._own_role == SPARE)

    def _after_drive(self, m: Module) -> None:
        """The next drive, or the next turn, or the end of both."""
        self._next_port(m, "CHOOSE", "CHOOSE")
        with m.If(self._last_port):
            m.d.sync += self._late.eq(~self._late)
            with m.If(self._late):
                m.next = "WALK"

    def _judge(self, m: Module) -> None:
        """The states WALK and JUDGE: whether the drives are enough."""
        found, role, copy, strip = self.found.payload, self._role, self._copy, self._strip
        copies = self._layout[: len(copy)]
        held = (found.members, self._claimed)
        there = Cat(mask.bit_select(role, 1) for mask in held) | self._one_there
        last_copy = copy + 1 >= copies
        with m.State("WALK"):
            # Other levels do without what is found here.
            m.d.sync += [
                role.eq(Mux(role + 1 >= found.width, 0, role + 1)),
                copy.eq(Mux(last_copy, 0, copy + 1)),
                self._one_there.eq(Mux(last_copy, 0, there)),
            ]
            with m.If(last_copy):
                m.d.sync += [strip.eq(strip + 1), self._all_there.eq(self._all_there & there)]
            with m.If((last_copy & (strip + 1 >= found.width)) | (self._level != 10)):
                m.next = "JUDGE"

        with m.State("JUDGE"):
            shape = self._shape
            m.d.sync += [
                found.hindrance.eq(self._hindrance(m)),
                found.dirty.eq(self._is_dirty),
                found.level.eq(shape.level),
                found.strip_shift.eq(shape.strip_shift),
                found.copies.eq(shape.copies),
                found.rotation.eq(shape.rotation),
                found.rows.eq(shape.rows),
                found.data_offset.eq(self._offset[SECTOR_BITS:]),
            ]
            m.next = "OFFER"

    @property
    def _is_dirty(self) -> Value:
        """Rows of the set may be inconsistent."""
        found = self.found.payload
        if not self._config.backup_blocks:
            return found.dirty
        is_there = (found.members | found.rebuilding).any()
        return found.dirty & (self._uncovered | ~is_there)

    @property
    def _is_renumbered(self) -> Value:
        """A drive may be taken for another while devices get the numbers of their roles."""
        return self._one_late & self._odd

    def _hindrance(self, m: Module) -> "enum.EnumView[Hindrance]":
        """Why the set is not brought up."""
        found = self.found.payload
        width = found.width
        level = Signal(4)
        m.d.comb += level.eq(self._level)
        short = (self._level != 0) & (self._size > self._least)
        # md fills a RAID 0 of unequal drives in another way.
        shift, one_is_there = self._shape.strip_shift, self._most != 0
        strips = [sectors >> SECTOR_BITS >> shift for sectors in (self._least, self._most)]
        unequal = (self._level == 0) & one_is_there & (strips[0] != strips[1])
        place = found.place
        spread = (place.last != 0) & (self._offset != DATA_OFFSET)
        has_parity = Cat(self._level == known for known in PARITIES).any()
        one_fits = (place.last == 0) | (has_parity & (width * (place.last + 1) <= MAX_DRIVES))
        wrong = self._refused | short | unequal | spread
        supported = self._shape.supported & ~wrong & one_fits
        counts = [Signal(WIDTH_BITS, name=f"count_{number}") for number in range(4)]
        masks = (found.members, self._claimed, found.rebuilding, self._expected)
        m.d.comb += [count.eq(ones(mask)) for count, mask in zip(counts, masks, strict=True)]
        enough, certain = Signal(2), Signal(2)
        for which, count in enumerate(counts[:2]):
            m.d.comb += enough[which].eq(count == width)
            m.d.comb += certain[which].eq(enough[which])
            with m.Switch(level):
                for known, parities in PARITIES.items():
                    with m.Case(known):
                        spare = count + parities >= width
                        m.d.comb += enough[which].eq(spare)
                        m.d.comb += certain[which].eq(Mux(self._is_dirty, count == width, spare))
                with m.Case(1):
                    m.d.comb += [enough[which].eq(count != 0), certain[which].eq(count != 0)]
                with m.Case(10):
                    m.d.comb += enough[which].eq(self._all_there[which])
                    m.d.comb += certain[which].eq(self._all_there[which])
        hindrance = Signal(Hindrance)
        with m.If(self._different):
            m.d.comb += hindrance.eq(Hindrance.DIFFERENT)
        with m.Elif(~supported):
            m.d.comb += hindrance.eq(Hindrance.UNSUPPORTED)
        with m.Elif(~enough.all()):
            m.d.comb += hindrance.eq(Hindrance.INCOMPLETE)
        with m.Elif(self._is_renumbered):
            m.d.comb += hindrance.eq(Hindrance.RENUMBERED)
        with m.Elif(~certain.all()):
            m.d.comb += hindrance.eq(Hindrance.DOUBTFUL)
        with m.Elif(counts[1] + counts[2] < counts[3]):
            m.d.comb += hindrance.eq(Hindrance.AWAITED)
        return hindrance

    def _offer(self, m: Module) -> None:
        """The state OFFER: the set is taken."""
        with m.State("OFFER"):
            m.d.comb += self.found.valid.eq(1)
            m.d.sync += [
                self._role.eq(0),
                self._copy.eq(0),
                self._strip.eq(0),
                self._one_there.eq(0),
                self._all_there.eq(3),
            ]
            with m.If(self.found.ready):
                m.next = "SOW"
