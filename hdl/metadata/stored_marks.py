"""Lets rows be written once the drives of their array say that they may be."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import TIME_BITS, Config
from hdl.flow.marks import BIT_BITS, WORD_BITS, Marks, word_number_bits
from hdl.kit.clock import NEVER, passed
from hdl.kit.pick import choose, following, lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue
from hdl.kit.table import Table


def asked_row(config: Config) -> data.StructLayout:
    """The chunk of a row that has asked."""
    return data.StructLayout({"array": config.array_bits, "chunk": config.chunk_bits})


class StoredMarks(wiring.Component):
    """Holds back each row until its chunk is marked on the drives of its array.

    `hdl.background.intent.Intent` marks the row first, and then it asks here. If the drives have
    the mark it is let go at once. If they have not, the marks of the array are stored anew, and the
    row waits for that. All rows that have come until then share it. So a chunk that is written
    again and again costs one page, and rows of other arrays never wait.

    A page is written in two steps. Its words are collected one by one, while rows are let go in
    between. A row is let go by what the drives have had for sure: what was stored, and, where the
    page under way drops marks and this word of it has been collected, what that page has too. With
    ``stored`` that page is what the drives have.

    Marks that are dropped in `Intent` stay on the drives for ``marks_kept_us`` from the first one
    on. Then the marks of all arrays of which some have been dropped are stored anew, without the
    old ones. So a chunk whose marks come and go costs two pages in that time at most.

    Pages of arrays are begun by turns. With ``refresh`` the page is written anew, whatever it is,
    because there are new members. Until the first one of a new array has been stored, all its rows
    wait. So do all rows of an array while its superblocks may say that it is ``clean``.

    A row takes 5 cycles, a word of a page 5.

    Parameters
    ----------
    config
        Sizes, with `Config.durable_marks`.

    Ports
    -----
    marks
        Those of `hdl.background.intent.Intent`, but for ``load``.
    lets
        Row slots that may be written.
    whole
        One bit per array. All its rows count as marked. As this rises the page is written anew.
    exempt
        One bit per array. Its rows need no marks.
    clean
        One bit per array. Its rows wait, unless they need no marks.
    held
        A pulse: a row of this array waits, as it is ``clean``.
    forget
        A pulse: this array is new. None of its pages is under way.
    refresh
        A pulse: the members of this array have changed.
    fresh
        One bit per array. A page has been stored that was begun after its last ``refresh``.
    now, deadline
        Time in cycles. When marks are to be dropped on the drives, or `hdl.kit.clock.NEVER`.
    page
        The page of this array is written. As it is taken its words follow.
    words
        Its words, in their order.
    stored
        It has been, on all members that are left.
    under_way
        One bit per array. A page of it has been begun and not been ``stored``.
    busy
        It works, and does not wait for anybody.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "marks": Out(Marks(config)),
                "lets": Out(stream.Signature(config.row_slot_bits)),
                "whole": In(config.arrays),
                "exempt": In(config.arrays),
                "clean": In(config.arrays),
                "held": Out(Pulse(config.array_bits)),
                "forget": In(Pulse(config.array_bits)),
                "refresh": In(Pulse(config.array_bits)),
                "fresh": Out(config.arrays),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=NEVER),
                "page": Out(stream.Signature(config.array_bits)),
                "words": Out(stream.Signature(WORD_BITS)),
                "stored": In(stream.Signature(config.array_bits)),
                "under_way": Out(config.arrays),
                "busy": Out(1),
            }
        )
        words = 1 << word_number_bits(config)
        self._kept_cycles = config.marks_kept_us * config.clock_hz // 1_000_000
        self._last_word = words - 1
        # What the drives of each array have, and what they will have. Which of both is which.
        self._pages = Table(WORD_BITS, 2 * config.arrays * words)
        self._halves = Signal(config.arrays)
        self._asked = Table(asked_row(config), config.rows)
        # A bit a row slot. Its row has asked, and waits; it is to be looked at again.
        self._waits = Signal(config.rows)
        self._again = Signal(config.rows)
        self._wakes = Signal()  # all that wait are to be looked at again
        self._lets = Queue(config.row_slot_bits, config.rows)

        # A bit an array. It has a page; marks are to be added, or anything else; marks have been
        # dropped; they are to be dropped on the drives. The page under way drops some.
        self._known = Signal(config.arrays)
        self._grows = Signal(config.arrays)
        self._excess = Signal(config.arrays)
        self._shrinks = Signal(config.arrays)
        self._drops = Signal(config.arrays)
        # One that was asked to be refreshed; one whose page under way was begun after that.
        self._stale = Signal(config.arrays)
        self._refreshes = Signal(config.arrays)
        self._ticks = Signal()  # now
        self._due_at = Signal(TIME_BITS)
        self._times = Signal()  # until then
        self._was_whole = Signal(config.arrays)
        self._was_exempt = Signal(config.arrays)
        self._was_clean = Signal(config.arrays)

        # The row at hand.
        self._slot = Signal(config.row_slot_bits)
        self._row = Signal(asked_row(config))
        self._bits = Signal(WORD_BITS)

        # Whose page is begun next, of those that are due; they take turns.
        self._turn = Signal(config.array_bits)
        self._next_due = Signal(config.array_bits)

        # The page whose words are being collected: of which array, which word.
        self._collects = Signal()
        self._array = Signal(config.array_bits)
        self._word = Signal(max(1, word_number_bits(config)))
        self._anew = Signal()  # what the drives have is not in it
        self._plane = Signal()  # the one that is read second

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.pages = self._pages
        m.submodules.asked = self._asked
        m.submodules.lets = self._lets
        connect(m, self._lets.output, flipped(self.lets))
        self._note(m)
        self._connect_tables(m)
        with m.FSM(name="store_marks") as fsm:
            self._rest(m)
            self._look(m)
            self._collect(m)
            waits = (
                (fsm.ongoing("REST") & ~self._has_work)
                | (fsm.ongoing("BEGIN") & ~self.page.ready)
                | (fsm.ongoing("GIVE") & ~self.words.ready)
            )
        self._hear(m)
        pulses = self.forget.valid | self.refresh.valid | self.marks.dropped.valid
        pulses |= self._ticks | (self._excess.any() & ~self._times)
        changes = (self._was_whole != self.whole) | (self._was_exempt != self.exempt)
        changes |= self._was_clean != self.clean
        m.d.comb += self.busy.eq(~waits | pulses | changes | self._lets.busy)
        return m

    @property
    def _due(self) -> Value:
        """Arrays of which a page is to be begun."""
        return (self._grows | self._stale | self._shrinks) & ~self.under_way & ~self.exempt

    @property
    def _has_work(self) -> Value:
        """Something can be done."""
        events = self.stored.valid | self._wakes | self._again.any() | self.marks.marked.valid
        return events | self._collects | (self._due.any() & self.page.ready)

    def _note(self, m: Module) -> None:
        """What is to be stored, and why."""
        was_whole, was_exempt = self._was_whole, self._was_exempt
        risen, fallen = self.whole & ~was_whole, was_whole & ~self.whole
        ticks = self._ticks.replicate(self._config.arrays)
        m.d.comb += [
            self._ticks.eq(self._times & passed(self.now, self._due_at)),
            self.deadline.eq(Mux(self._times, self._due_at, NEVER)),
        ]
        with m.If(self._ticks):
            m.d.sync += self._times.eq(0)
        with m.Elif(self._excess.any() & ~self._times):
            m.d.sync += [
                self._times.eq(1),
                self._due_at.eq(self.now + self._kept_cycles),
            ]
        m.d.sync += [
            was_whole.eq(self.whole),
            was_exempt.eq(self.exempt),
            self._was_clean.eq(self.clean),
            self._grows.eq(self._grows | (risen & self._known)),
            self._shrinks.eq(self._shrinks | (self._excess & self._known & ticks)),
            self._excess.eq((self._excess & ~ticks) | fallen),
        ]

    def _hear(self, m: Module) -> None:
        """What others tell. Nothing of the same cycle undoes it."""
        dropped, forgotten, refreshed = self.marks.dropped, self.forget, self.refresh
        with m.If(dropped.valid):
            m.d.sync += self._excess.bit_select(dropped.payload, 1).eq(1)
        # Rows may wait of an array that needs no marks, or is not clean any more.
        with m.If(((self.exempt & ~self._was_exempt) | (self._was_clean & ~self.clean)).any()):
            m.d.sync += self._wakes.eq(1)
        with m.If(refreshed.valid):
            m.d.sync += [
                self._stale.bit_select(refreshed.payload, 1).eq(1),
                self.fresh.bit_select(refreshed.payload, 1).eq(0),
            ]
        with m.If(forgotten.valid):
            for mask in (self._known, self.fresh, self._grows, self._shrinks, self._excess):
                m.d.sync += mask.bit_select(forgotten.payload, 1).eq(0)

    def _connect_tables(self, m: Module) -> None:
        """Words that are read and written, and rows that have asked."""
        marked = self.marks.marked.payload
        m.d.comb += [
            self._next_due.eq(choose(m, self._due, self._turn)),
            self._asked.write.address.eq(marked.slot),
            self._asked.write.data.array.eq(marked.array),
            self._asked.write.data.chunk.eq(marked.chunk),
            self._asked.reads[0].address.eq(self._slot),
            self.marks.read.address.array.eq(self._array),
            self.marks.read.address.word.eq(self._word),
            self._lets.input.payload.eq(self._slot),
            self.page.payload.eq(self._array),
            self.held.payload.eq(self._row.array),
        ]

    def _place(self, array: Value, word: Value, half: Value) -> Value:
        """The address of a word of what the drives of an array have, or with ``half`` will have."""
        number = word[: word_number_bits(self._config)]
        other = self._halves.bit_select(array, 1) ^ half
        return Cat(number, array[: self._config.array_bits], other)

    def _rest(self, m: Module) -> None:
        """The states REST, of what comes next, most urgent first, and FIND, of a row that waits."""
        stored, marked = self.stored, self.marks.marked
        first = lowest_bit(m, self._again, "first_again")
        under = self.under_way.bit_select(stored.payload, 1)
        with m.State("REST"):
            with m.If(stored.valid):
                m.d.comb += stored.ready.eq(1)
                array = stored.payload
                m.d.sync += [
                    Assert(under, "a page is stored that nobody has begun"),
                    under.eq(0),
                    self._halves.bit_select(array, 1).eq(~self._halves.bit_select(array, 1)),
                    self._known.bit_select(array, 1).eq(1),
                    self._drops.bit_select(array, 1).eq(0),
                    self._wakes.eq(1),
                    self.fresh.bit_select(array, 1).eq(
                        self.fresh.bit_select(array, 1) | self._is_fresh(array)
                    ),
                ]
            with m.Elif(self._wakes):
                m.d.sync += [self._wakes.eq(0), self._again.eq(self._again | self._waits)]
            with m.Elif(self._again.any()):
                m.d.sync += [self._slot.eq(first), self._again.eq(self._again & (self._again - 1))]
                m.next = "FIND"
            with m.Elif(marked.valid):
                m.d.comb += [marked.ready.eq(1), self._asked.write.enable.eq(1)]
                m.d.sync += [
                    self._slot.eq(marked.payload.slot),
                    self._row.array.eq(marked.payload.array),
                    self._row.chunk.eq(marked.payload.chunk),
                ]
                m.next = "LOOK"
            with m.Elif(self._collects):
                m.next = "READ"
            with m.Elif(self._due.any() & self.page.ready):
                m.d.sync += self._array.eq(self._next_due)
                m.next = "BEGIN"

        with m.State("FIND"):
            m.next = "FOUND"

        with m.State("FOUND"):
            m.d.sync += self._row.eq(self._asked.reads[0].data)
            m.next = "LOOK"

    def _is_coming(self, array: Value, word: Value) -> Value:
        """A page is under way that drops marks, and this word of it has been collected."""
        collected = ~(self._collects & (self._array == array)) | (word < self._word)
        return self._drops.bit_select(array, 1) & collected

    def _is_fresh(self, array: Value) -> Value:
        """The page under way was begun after the members have changed last."""
        return self._refreshes.bit_select(array, 1) & ~self._stale.bit_select(array, 1)

    def _look(self, m: Module) -> None:
        """The states LOOK to WEIGH, whether the drives have the mark of the row, and LET."""
        row, pages, waits = self._row, self._pages, self._waits.bit_select(self._slot, 1)
        array, word = row.array, row.chunk[BIT_BITS:]
        own = Signal()
        m.d.comb += own.eq(pages.reads[0].data.bit_select(row.chunk[:BIT_BITS], 1))
        with m.State("LOOK"):
            m.d.comb += pages.reads[0].address.eq(self._place(array, word, Value.cast(0)))
            m.next = "LOOK-AHEAD"
            with m.If(self.exempt.bit_select(array, 1)):
                m.next = "LET"

        with m.State("LOOK-AHEAD"):
            m.d.comb += pages.reads[0].address.eq(self._place(array, word, Value.cast(1)))
            m.d.sync += self._bits[0].eq(own)
            m.next = "WEIGH"

        with m.State("WEIGH"):
            known = self._known.bit_select(array, 1)
            good = self._bits[0] & known & (own | ~self._is_coming(array, word))
            m.next = "LET"
            held = self.clean.bit_select(array, 1)
            m.d.comb += self.held.valid.eq(held)
            with m.If(~good | held):
                m.d.sync += waits.eq(1)
                with m.If(~good & ~self.under_way.bit_select(array, 1)):
                    m.d.sync += self._grows.bit_select(array, 1).eq(1)
                m.next = "REST"

        with m.State("LET"):
            m.d.comb += self._lets.input.valid.eq(1)
            m.d.sync += waits.eq(0)
            m.next = "REST"

    def _collect(self, m: Module) -> None:
        """The states BEGIN, of a page, and READ to GIVE, of a word of it."""
        array, word, marks, pages = self._array, self._word, self.marks, self._pages
        plane, other = marks.planes.bit_select(array, 1), self._plane
        with m.State("BEGIN"):
            m.d.comb += self.page.valid.eq(1)
            grows = self._grows.bit_select(array, 1) | ~self._shrinks.bit_select(array, 1)
            m.d.sync += self._word.eq(0)
            with m.If(self.page.ready):
                m.d.sync += [
                    self._turn.eq(following(array, self._config.arrays - 1)),
                    self._collects.eq(1),
                    self.under_way.bit_select(array, 1).eq(1),
                    self._drops.bit_select(array, 1).eq(~grows),
                    self._anew.eq(~grows | ~self._known.bit_select(array, 1)),
                    self._refreshes.bit_select(array, 1).eq(self._stale.bit_select(array, 1)),
                    self._stale.bit_select(array, 1).eq(0),
                    self._grows.bit_select(array, 1).eq(0),
                ]
                with m.If(~grows):
                    m.d.sync += self._shrinks.bit_select(array, 1).eq(0)
                m.next = "REST"

        # The older marks first: they may go over to the newer ones. The planes may change places
        # before the second one is read.
        with m.State("READ"):
            m.d.sync += other.eq(plane)
            m.d.comb += [
                marks.read.address.plane.eq(~plane),
                pages.reads[0].address.eq(self._place(array, word, Value.cast(0))),
            ]
            m.next = "READ-NEWER"

        with m.State("READ-NEWER"):
            m.d.comb += marks.read.address.plane.eq(other)
            had = Mux(self._anew, 0, pages.reads[0].data)
            m.d.sync += self._bits.eq(marks.read.data | had)
            m.next = "JOIN"

        with m.State("JOIN"):
            all_of_it = self.whole.bit_select(array, 1).replicate(WORD_BITS)
            m.d.sync += self._bits.eq(self._bits | marks.read.data | all_of_it)
            m.next = "KEEP"

        with m.State("KEEP"):
            m.d.comb += pages.store(
                address=self._place(array, word, Value.cast(1)), data=self._bits
            )
            m.next = "GIVE"

        with m.State("GIVE"):
            m.d.comb += [self.words.valid.eq(1), self.words.payload.eq(self._bits)]
            with m.If(self.words.ready):
                m.d.sync += word.eq(word + 1)
                with m.If(word == self._last_word):
                    m.d.sync += self._collects.eq(0)
                m.next = "REST"
