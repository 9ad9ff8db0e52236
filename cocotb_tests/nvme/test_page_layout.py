"""Layouts of pages: tables that contradict themselves are refused, and look-ups are exact."""

import random
from fnmatch import fnmatchcase

import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from hdl.config import board, small
from hdl.nvme.pages.identify import Identity
from hdl.nvme.pages.layout import Asked, Layout, bits, field, patterns
from hdl.nvme.pages.page_words import PageWords
from hdl.nvme.records import PageKind


def test_fields_that_overlap_are_refused():
    with pytest.raises(ValueError, match="LATER begins before"):
        Layout(field("EARLY", 0, 4, 0), field("LATER", 3, 2, 0), size=8)


def test_fields_beyond_the_end_are_refused():
    with pytest.raises(ValueError, match="LAST is not within 8 bytes"):
        Layout(field("LAST", 4, 8, 0), size=8)


@pytest.mark.parametrize(
    "source",
    [256, -1, b"ab", Signal(9), (Signal(32),)],
    ids=["number", "sign", "text", "value", "word"],
)
def test_sources_that_do_not_fit_are_refused(source):
    with pytest.raises(ValueError, match="WIDE does not fit"):
        field("WIDE", 0, 1, source)


def test_patterns_match_their_words_alone():
    rng = random.Random(1)
    for _ in range(200):
        words = set(rng.sample(range(64), rng.randint(1, 64)))
        found = patterns(words, 6)
        matched = [
            sum(fnmatchcase(f"{word:06b}", pattern.replace("-", "?")) for pattern in found)
            for word in range(64)
        ]
        assert matched == [int(word in words) for word in range(64)]


def test_every_kind_of_page_is_in_one_table():
    for config in (board(), small()):
        pages = PageWords(config=config, identity=Identity()).pages
        kinds = [kind for page in pages for kind in page.kinds]
        assert sorted(kind.value for kind in kinds) == sorted(kind.value for kind in PageKind)


def test_look_up_gives_each_byte():
    """Constants, values across words, bits, and answers, with a ROM and without."""
    wide, narrow, text, chunk = Signal(40), Signal(3), Signal(32), Signal(2)
    layout = Layout(
        field("number", 0, 1, 0xA5),
        bits("narrow", 1, 2, 5, narrow),
        field("wide", 4, 12, wide),
        field("text", 16, 8, [Asked(text, chunk, 2), Asked(text, chunk, 1)]),
        field("constant", 24, 4, b"abcd"),
        size=32,
    )
    index, image = Signal(3), Signal(32)
    from_rom, alone = Signal(32), Signal(32)
    m = Module()
    m.d.comb += from_rom.eq(image)
    layout.look_up(m, index, from_rom, image)
    layout.look_up(m, index, alone)
    m.d.comb += text.eq(chunk * 0x11)

    async def check(context):
        context.set(wide, 0x89_0123_4567)
        context.set(narrow, 0b101)
        expected = [0x14A5, 0x0123_4567, 0x89, 0, 0x22, 0x11, 0x6463_6261, 0]
        for word, value in enumerate(expected):
            fixed = layout.image()[4 * word :][:4]
            context.set(index, word)
            context.set(image, int.from_bytes(fixed, "little"))
            await context.delay(1e-9)
            assert context.get(from_rom) == context.get(alone) == value, f"word {word}"

    simulator = Simulator(m)
    simulator.add_testbench(check)
    simulator.run()
