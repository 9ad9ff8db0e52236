"""Judges the superblock of a drive word by word, as md does before it looks at other drives."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.kit.pulse import Pulse
from hdl.metadata.superblock import (
    FEATURES,
    HEAD_WORDS,
    JOURNAL,
    KEPT_BITS,
    KEPT_WORDS,
    LEAST_SECTORS,
    MAGIC,
    MAJOR_VERSION,
    MOST_DEVICES,
    PLACE_BITS,
    SECTOR,
    SPARE,
    WORD_BITS,
    Feature,
    Finding,
    Word,
)

HEAD_ENDS = SECTOR + 1
"""The first sector behind a superblock with `MOST_DEVICES` roles or less."""

MOST_MD_DEVICES = 1920
"""Roles that the page has room for. md refuses more."""

MOST_BAD_BLOCK_SECTORS = 8
"""Most sectors of a bad-block log that md takes."""


class KeptWord(data.Struct):
    """A word of a superblock, and its number."""

    number: KEPT_BITS
    word: WORD_BITS


class SuperblockCheck(wiring.Component):
    """Takes the first `KEPT_WORDS` words of superblocks, and says what each of them is.

    It refuses what `super_1_load` and the head of `super_1_validate` refuse (Linux 6.1,
    `drivers/md/md.c`), and more devices than `MOST_DEVICES`. A checksum that covers more than is
    read is not looked at.

    Ports
    -----
    words
        The words of the page in order, one a cycle.
    sectors
        A level. Size of the drive.
    kept
        Each word as it is taken. Roles beyond the number of devices are `SPARE`.
    finding
        What the superblock is, 2 cycles after its last word. The next page waits for it.

    Latency 2 cycles, throughput a word a cycle. Any `KEPT_WORDS` words have one answer.
    """

    words: In(stream.Signature(WORD_BITS))
    sectors: In(PLACE_BITS)
    kept: Out(Pulse(KeptWord))
    finding: Out(stream.Signature(Finding))

    def __init__(self):
        super().__init__()
        self._number = Signal(KEPT_BITS)  # of the word that comes
        self._features = Signal(FEATURES)
        self._offset = Signal(PLACE_BITS)
        self._size = Signal(PLACE_BITS)
        self._new_offset = Signal(signed(WORD_BITS))
        self._stored = Signal(WORD_BITS)
        self._sum = Signal(WORD_BITS + KEPT_BITS)
        self._devices = Signal(range(MOST_DEVICES + 1))
        self._device = Signal(range(MOST_DEVICES))  # the drive's own number
        self._numbered = Signal()  # it has one
        self._role = Signal(16)

        # What is wrong with the words that have come.
        self._foreign = Signal()
        self._elsewhere = Signal()
        self._crowded = Signal()  # more devices than md takes
        self._many = Signal()  # more than the card takes
        self._strange = Signal()
        self._reserved = Signal()
        self._impossible = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        number, word = self._number, self.words.payload
        takes = Signal()
        m.d.comb += takes.eq(self.words.valid & self.words.ready)
        self._add(m, takes)
        with m.FSM(name="check"):
            with m.State("TAKE"):
                m.d.comb += self.words.ready.eq(1)
                with m.If(takes):
                    with m.If(number == 0):
                        self._begin(m)
                    self._frame(m, number, word)
                    self._lengths(m, number, word)
                    self._own_role(m, number, word)
                    m.d.sync += number.eq(number + 1)
                    with m.If(number == KEPT_WORDS - 1):
                        m.next = "JUDGE"

            with m.State("JUDGE"):
                m.d.sync += self.finding.payload.eq(self._judgement(m))
                m.next = "TELL"

            with m.State("TELL"):
                m.d.comb += self.finding.valid.eq(1)
                with m.If(self.finding.ready):
                    m.next = "TAKE"
        return m

    def _add(self, m: Module, takes: Value) -> None:
        """The word is kept, and added up."""
        number, word = self._number, self.words.payload
        is_role = number >= HEAD_WORDS
        first = Cat(0, number[: KEPT_BITS - 1])  # the first of its two devices
        known = [first + half < self._devices for half in range(2)]
        added = Signal(WORD_BITS)
        m.d.comb += [
            self.kept.valid.eq(takes),
            self.kept.payload.number.eq(number),
            self.kept.payload.word.eq(word),
            added.eq(word),
        ]
        with m.If(is_role):
            for half, exists in enumerate(known):
                role = slice(16 * half, 16 * half + 16)
                m.d.comb += [
                    self.kept.payload.word[role].eq(Mux(exists, word[role], SPARE)),
                    added[role].eq(Mux(exists, word[role], 0)),
                ]
        with m.Elif(number == Word.CHECKSUM):
            m.d.comb += added.eq(0)
        with m.If(takes):
            m.d.sync += self._sum.eq(Mux(number == 0, 0, self._sum) + added)

    def _begin(self, m: Module) -> None:
        """A page begins: nothing is wrong."""
        m.d.sync += [
            self._crowded.eq(0),
            self._many.eq(0),
            self._strange.eq(0),
            self._reserved.eq(0),
            self._impossible.eq(0),
            self._role.eq(SPARE),
        ]

    def _frame(self, m: Module, number: Value, word: Value) -> None:
        """Words that say whether this is a superblock that can be read."""
        with m.Switch(number):
            with m.Case(Word.MAGIC):
                m.d.sync += self._foreign.eq(word != MAGIC)
            with m.Case(Word.MAJOR_VERSION):
                with m.If(word != MAJOR_VERSION):
                    m.d.sync += self._foreign.eq(1)
            with m.Case(Word.SUPER_OFFSET):
                m.d.sync += self._elsewhere.eq(word != SECTOR)
            with m.Case(Word.SUPER_OFFSET + 1):
                with m.If(word != 0):
                    m.d.sync += self._elsewhere.eq(1)
            with m.Case(Word.FEATURES):
                m.d.sync += [self._features.eq(word), self._strange.eq(word[FEATURES:].any())]
            with m.Case(Word.PAD0, *range(Word.PAD3, Word.ROLES)):
                with m.If(word != 0):
                    m.d.sync += self._reserved.eq(1)
            with m.Case(Word.CHECKSUM):
                m.d.sync += self._stored.eq(word)
            with m.Case(Word.MAX_DEVICES):
                m.d.sync += [
                    self._devices.eq(word),
                    self._many.eq(word > MOST_DEVICES),
                    self._crowded.eq(word > MOST_MD_DEVICES),
                ]

    def _lengths(self, m: Module, number: Value, word: Value) -> None:
        """Words that say where things lie."""
        high = slice(WORD_BITS, PLACE_BITS)
        with m.Switch(number):
            for field, value in ((Word.DATA_OFFSET, self._offset), (Word.DATA_SIZE, self._size)):
                with m.Case(field):
                    m.d.sync += value[:WORD_BITS].eq(word)
                with m.Case(field + 1):
                    m.d.sync += value[high].eq(word)
                    with m.If(word[PLACE_BITS - WORD_BITS :].any()):
                        m.d.sync += self._impossible.eq(1)
            with m.Case(Word.NEW_OFFSET):
                m.d.sync += self._new_offset.eq(word)
            with m.Case(Word.BAD_BLOCKS):
                with m.If(self._has(Feature.BAD_BLOCKS) & (word[16:] > MOST_BAD_BLOCK_SECTORS)):
                    m.d.sync += self._impossible.eq(1)
            with m.Case(Word.BAD_BLOCKS_OFFSET):
                with m.If(self._has(Feature.BAD_BLOCKS) & (word == 0)):
                    m.d.sync += self._impossible.eq(1)

    def _own_role(self, m: Module, number: Value, word: Value) -> None:
        """The drive's own number, and what stands at its place."""
        with m.If(number == Word.DEVICE_NUMBER):
            m.d.sync += [self._device.eq(word), self._numbered.eq(word < MOST_DEVICES)]
        with m.If((number >= HEAD_WORDS) & (number[: KEPT_BITS - 1] == self._device[1:])):
            with m.If(self._numbered & (self._device < self._devices)):
                m.d.sync += self._role.eq(word.word_select(self._device[0], 16))

    def _has(self, feature: Feature) -> Value:
        return self._features[feature]

    def _judgement(self, m: Module) -> "enum.EnumView[Finding]":
        """What the superblock is, once all words have come."""
        features = self._has
        begin = Signal(signed(PLACE_BITS + 2))
        wrong = Signal()
        ppl = features(Feature.PPL) | features(Feature.MULTIPLE_PPLS)
        logs = Cat(features(Feature.BITMAP), features(Feature.JOURNAL)).any()
        moves = features(Feature.RESHAPE) & features(Feature.NEW_OFFSET)
        m.d.comb += [
            begin.eq(self._offset + self._new_offset),
            wrong.eq(
                self._impossible
                | (self._offset < HEAD_ENDS)
                | (moves & (begin < HEAD_ENDS))
                | (self._size < LEAST_SECTORS)
                | (self._offset + self._size > self.sectors)
                | (ppl & logs)
                | (features(Feature.PPL) & features(Feature.MULTIPLE_PPLS))
                | ((self._role == JOURNAL) & ~features(Feature.JOURNAL))
            ),
        ]
        total = Signal(WORD_BITS)
        m.d.comb += total.eq(self._sum[:WORD_BITS] + self._sum[WORD_BITS:])
        finding = Signal(Finding)
        with m.If(self._foreign):
            m.d.comb += finding.eq(Finding.NONE)
        with m.Elif(self._crowded):
            m.d.comb += finding.eq(Finding.IMPOSSIBLE)
        with m.Elif(self._elsewhere):
            m.d.comb += finding.eq(Finding.NONE)
        with m.Elif(self._strange):
            m.d.comb += finding.eq(Finding.UNKNOWN)
        with m.Elif(self._many):
            m.d.comb += finding.eq(Finding.TOO_MANY)
        with m.Elif(total != self._stored):
            m.d.comb += finding.eq(Finding.DAMAGED)
        with m.Elif(self._reserved):
            m.d.comb += finding.eq(Finding.UNKNOWN)
        with m.Elif(wrong):
            m.d.comb += finding.eq(Finding.IMPOSSIBLE)
        with m.Else():
            m.d.comb += finding.eq(Finding.VALID)
        return finding
