"""Superblocks: whatever a drive holds, its page ends with one finding, and one that is found valid
lies within the drive.

The words of the page, and the size of the drive, are the solver's. What the page says is noted
beside the design, in full width.
"""

from amaranth.hdl import Assert, Assume, Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.metadata.superblock import (
    FEATURES,
    KEPT_WORDS,
    LEAST_SECTORS,
    MAGIC,
    MOST_DEVICES,
    PLACE_BITS,
    SECTOR,
    WORD_BITS,
    Finding,
    Word,
)
from hdl.metadata.superblock_check import SuperblockCheck
from sim.formal.runner import Proof
from sim.formal.stream_rules import StreamRules

SOON = 2
"""Cycles from the last word of a page to its finding."""


class SuperblockSpecification(wiring.Component):
    """`KEPT_WORDS` words have one finding, soon. VALID keeps all bounds."""

    words: In(stream.Signature(WORD_BITS))
    sectors: In(PLACE_BITS)
    finding: Out(stream.Signature(Finding))

    def __init__(self, check: SuperblockCheck):
        self._check = check
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.check = check = self._check
        connect(m, flipped(self.words), check.words)
        connect(m, check.finding, flipped(self.finding))
        m.submodules.word_rules = entering = StreamRules(check.words, role=Assume)
        m.submodules.finding_rules = leaving = StreamRules(check.finding, role=Assert)
        size_before, begun = Signal(PLACE_BITS), Signal()
        m.d.sync += [size_before.eq(self.sectors), begun.eq(1)]
        m.d.comb += [
            check.sectors.eq(self.sectors),
            Assume(~begun | (self.sectors == size_before)),
        ]

        taken = Signal(range(KEPT_WORDS + 1))
        waited = Signal(range(SOON + 1))
        said = {
            place: Signal(WORD_BITS, name=f"said_{place}")
            for place in (
                *range(Word.DATA_OFFSET, Word.DATA_SIZE + 2),
                Word.MAGIC,
                Word.FEATURES,
                Word.MAX_DEVICES,
            )
        }
        with m.If(entering.transfer):
            m.d.sync += taken.eq(taken + 1)
            for place, value in said.items():
                with m.If(taken == place):
                    m.d.sync += value.eq(check.words.payload)
        with m.If(leaving.transfer):
            m.d.sync += taken.eq(0)
        whole = taken == KEPT_WORDS
        with m.If(whole & ~check.finding.valid):
            m.d.sync += waited.eq(waited + 1)
        with m.Else():
            m.d.sync += waited.eq(0)
        offset = Cat(said[Word.DATA_OFFSET], said[Word.DATA_OFFSET + 1])
        size = Cat(said[Word.DATA_SIZE], said[Word.DATA_SIZE + 1])
        m.d.comb += [
            Assert(check.words.ready == ~whole),
            Assert(~check.finding.valid | whole),
            Assert(taken <= KEPT_WORDS),
            Assert(waited < SOON),
            Assert(check.kept.valid == entering.transfer),
            Assert(~check.kept.valid | (check.kept.payload.number == taken)),
        ]
        self._compare(m, taken, said)
        with m.If(check.finding.valid & (check.finding.payload == Finding.VALID)):
            m.d.comb += [
                Assert(said[Word.MAGIC] == MAGIC),
                Assert(said[Word.FEATURES][FEATURES:] == 0),
                Assert(said[Word.MAX_DEVICES] <= MOST_DEVICES),
                Assert(offset > SECTOR),
                Assert(size >= LEAST_SECTORS),
                Assert(offset + size <= check.sectors),
            ]
        return m

    def _compare(self, m: Module, taken: Signal, said: dict[int, Signal]) -> None:
        """What the design has noted of the words is what they said. The prover needs that."""
        check = self._check
        m.d.comb += Assert(check._number == taken[: len(check._number)])
        for place, value in (
            (Word.DATA_OFFSET, check._offset),
            (Word.DATA_SIZE, check._size),
        ):
            upper = said[place + 1]
            beyond = upper[PLACE_BITS - WORD_BITS :].any()
            with m.If(taken > place):
                m.d.comb += Assert(value[:WORD_BITS] == said[place])
            with m.If(taken > place + 1):
                m.d.comb += [
                    Assert(value[WORD_BITS:] == upper[: PLACE_BITS - WORD_BITS]),
                    Assert(~beyond | check._impossible),
                ]
        with m.If(taken > Word.MAGIC):
            m.d.comb += Assert((said[Word.MAGIC] == MAGIC) | check._foreign)
        with m.If(taken > Word.FEATURES):
            m.d.comb += Assert(check._strange == said[Word.FEATURES][FEATURES:].any())
        with m.If(taken > Word.MAX_DEVICES):
            m.d.comb += Assert(check._many == (said[Word.MAX_DEVICES] > MOST_DEVICES))


class TrustsTheUpperWord(SuperblockCheck):
    """Mutant: what does not fit into the number of a sector is dropped."""

    def _lengths(self, m: Module, number, word) -> None:
        super()._lengths(m, number, word[: PLACE_BITS - WORD_BITS])
        for field, value in ((Word.DATA_OFFSET, self._offset), (Word.DATA_SIZE, self._size)):
            with m.If(number == field):
                m.d.sync += value[:WORD_BITS].eq(word)


class StopsShort(SuperblockCheck):
    """Mutant: the last word is not waited for."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self._number == KEPT_WORDS - 2):
            m.d.sync += self._number.eq(KEPT_WORDS - 1)
        return m


PROOFS = [
    Proof(
        name="superblock_check",
        build=lambda: SuperblockSpecification(SuperblockCheck()),
        depth=6,
        engine="smtbmc yices",
        mutant_depth=KEPT_WORDS + SOON + 4,
        mutants=[
            lambda: SuperblockSpecification(TrustsTheUpperWord()),
            lambda: SuperblockSpecification(StopsShort()),
        ],
    )
]
