"""The reference layout: tables published for Linux md, and properties of every shape."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.card.layouts import random_layout, rotation_of_name
from sim.checkout import ROOT
from sim.golden import layouts
from sim.golden.layout import DATA_OFFSET_BLOCKS, DDF, ROTATIONS, Layout, Place, rotations

LAYOUTS = st.integers(0, 2**32).map(lambda seed: random_layout(random.Random(seed)))
WINDOW = 2000


def drawing(layout: Layout, stripes: int) -> list[list[str]]:
    """A row for each stripe of one-block strips: block numbers, and P, Q for parity."""
    rows = []
    for row in range(stripes):
        names = [""] * layout.drives
        for span in range(layout.spans if layout.parities else 0):
            for syndrome, place in enumerate(layout.parity_places(row)):
                names[span * layout.width + place] = "PQR"[syndrome]
        for position in range(layout.drives):
            if not names[position]:
                names[position] = str(layout.inverse(Place(position, row)))
        rows.append(names)
    return rows


def test_raid5_is_left_symmetric():
    assert [" ".join(row) for row in drawing(Layout("RAID5", 5, 1), 6)] == [
        "0 1 2 3 P",
        "5 6 7 P 4",
        "10 11 P 8 9",
        "15 P 12 13 14",
        "P 16 17 18 19",
        "20 21 22 23 P",
    ]


def test_raid6_is_left_symmetric():
    assert [" ".join(row) for row in drawing(Layout("RAID6", 6, 1), 7)] == [
        "Q 0 1 2 3 P",
        "4 5 6 7 P Q",
        "9 10 11 P Q 8",
        "14 15 P Q 12 13",
        "19 P Q 16 17 18",
        "P Q 20 21 22 23",
        "Q 24 25 26 27 P",
    ]


@pytest.mark.parametrize(
    ("rotation", "rows"),
    [
        ("right-symmetric", ["P 0 1 2 3", "7 P 4 5 6", "10 11 P 8 9"]),
        ("left-asymmetric", ["0 1 2 3 P", "4 5 6 P 7", "8 9 P 10 11"]),
        ("right-asymmetric", ["P 0 1 2 3", "4 P 5 6 7", "8 9 P 10 11"]),
        ("parity-first", ["P 0 1 2 3", "P 4 5 6 7"]),
        ("parity-last", ["0 1 2 3 P", "4 5 6 7 P"]),
    ],
)
def test_raid5_rotates(rotation, rows):
    layout = Layout("RAID5", 5, 1, rotation=rotation)
    assert [" ".join(row) for row in drawing(layout, len(rows))] == rows


@pytest.mark.parametrize(
    ("rotation", "rows"),
    [
        ("right-symmetric", ["P Q 0 1 2", "5 P Q 3 4", "7 8 P Q 6", "9 10 11 P Q", "Q 12 13 14 P"]),
        ("left-asymmetric", ["Q 0 1 2 P", "3 4 5 P Q", "6 7 P Q 8", "9 P Q 10 11"]),
        ("right-asymmetric", ["P Q 0 1 2", "3 P Q 4 5", "6 7 P Q 8", "9 10 11 P Q"]),
        ("parity-first", ["P Q 0 1 2", "P Q 3 4 5"]),
        ("parity-last", ["0 1 2 P Q", "3 4 5 P Q"]),
        ("ddf-zero-restart", ["P Q 0 1 2", "3 P Q 4 5", "6 7 P Q 8", "9 10 11 P Q"]),
        ("ddf-N-restart", ["0 1 2 P Q", "3 4 P Q 5", "6 P Q 7 8", "P Q 9 10 11", "Q 12 13 14 P"]),
        ("ddf-N-continue", ["0 1 2 Q P", "4 5 Q P 3", "8 Q P 6 7", "Q P 9 10 11"]),
    ],
)
def test_raid6_rotates(rotation, rows):
    layout = Layout("RAID6", 5, 1, rotation=rotation)
    assert [" ".join(row) for row in drawing(layout, len(rows))] == rows


def test_the_page_of_layouts_is_fresh():
    """docs/layouts.md is what the models draw now."""
    path = ROOT / "docs" / "layouts.md"
    assert path.read_text() == layouts.page(), f"stale; run {layouts.COMMAND}"


def test_the_page_names_the_hardware_s_codes():
    assert {rotation_of_name(name).value: name for name in ROTATIONS} == {
        code: name for name, code in layouts.CODES.items()
    }


def test_every_level_has_its_rotations():
    assert len(rotations("RAID5")) == len(rotations("RAIDTP")) == 6
    assert len(rotations("RAID6")) == 9
    assert len(rotations("RAID10")) == len(rotations("RAID0")) == 1


def test_triple_parity_follows_raid6():
    assert [" ".join(row) for row in drawing(Layout("RAIDTP", 6, 1), 4)] == [
        "Q R 0 1 2 P",
        "R 3 4 5 P Q",
        "6 7 8 P Q R",
        "10 11 P Q R 9",
    ]


def test_mirrors_lie_near():
    assert [" ".join(row) for row in drawing(Layout("RAID10", 4, 1), 2)] == ["0 0 1 1", "2 2 3 3"]
    assert [" ".join(row) for row in drawing(Layout("RAID1", 3, 1), 2)] == ["0 0 0", "1 1 1"]
    # RAID 1E: an odd number of drives.
    assert [" ".join(row) for row in drawing(Layout("RAID10", 3, 1), 4)] == [
        "0 0 1",
        "1 2 2",
        "3 3 4",
        "4 5 5",
    ]


def test_spans_take_stripes_in_turn():
    assert [" ".join(row) for row in drawing(Layout("RAID5", 6, 1, spans=2), 2)] == [
        "0 1 P 2 3 P",
        "5 P 4 7 P 6",
    ]


def check_layout(layout: Layout, first: int) -> None:
    """Blocks and places correspond one to one, copies are on different drives, roles too."""
    taken: dict[Place, int] = {}
    for block in range(first, first + WINDOW):
        places = layout.copies_of(block)
        assert len({place.position for place in places}) == layout.copies
        for place in places:
            assert 0 <= place.position < layout.drives
            assert place not in taken, f"{place} holds blocks {taken[place]} and {block}"
            taken[place] = block
            assert layout.inverse(place) == block
        base, shift, index, row = layout.key(block)
        if layout.copies == 1:
            span = base // layout.width
            stripe = block // layout.strip_blocks // layout.data
            assert (stripe % layout.spans, stripe // layout.spans) == (
                span,
                row // layout.strip_blocks,
            )
            assert layout.data_places(row)[layout.ordinal(block)] + base == places[0].position
            position = base + (shift + index) % layout.width
            assert Place(position, row) == places[0]
            roles = layout.roles(base // layout.width, row)
            assert sorted(roles) == list(range(base, base + layout.width))
            assert roles == [base + (shift + r) % layout.width for r in range(layout.width)]
            syndromes = [base + layout.parity_places(row)[j] for j in layout.syndromes(row)]
            assert roles[layout.data :] == syndromes
            exponents = layout.exponents(row)
            in_place = [role - base for role in roles[: layout.data]]
            in_order = list(range(layout.data))
            assert exponents == (in_place if layout.rotation in DDF else in_order)
        else:
            for copy, place in enumerate(places):
                turns, position = divmod(shift + index * layout.copies + copy, layout.width)
                assert turns in (0, 1)
                assert place == Place(position, row + turns * layout.strip_blocks)


@settings(max_examples=60, deadline=None)
@given(LAYOUTS, st.integers(0, 1 << 34))
def test_blocks_and_places_correspond(layout, first):
    check_layout(layout, first)


@settings(max_examples=60, deadline=None)
@given(LAYOUTS, st.integers(0, 1 << 30))
def test_keys_name_one_block(layout, first):
    keys = {}
    for block in range(first, first + WINDOW):
        base, shift, index, row = layout.key(block)
        assert keys.setdefault((base, row, index), block) == block
        # A row slot has one shift.
        assert keys.setdefault((base, row), shift) == shift


@settings(max_examples=60, deadline=None)
@given(LAYOUTS, st.lists(st.integers(0, 10_000), min_size=32, max_size=32))
def test_capacity_is_used_to_the_last_row(layout, spare):
    capacities = [DATA_OFFSET_BLOCKS + 1000 + more for more in spare[: layout.drives]]
    rows = layout.rows(capacities)
    assert rows % layout.strip_blocks == 0
    assert rows + DATA_OFFSET_BLOCKS <= min(capacities)
    blocks = layout.blocks(rows)
    assert max(place.row for place in layout.copies_of(blocks - 1)) < rows
    assert max(place.row for place in layout.copies_of(blocks + layout.strip_blocks - 1)) >= rows


@settings(max_examples=100, deadline=None)
@given(LAYOUTS, st.integers(0, 1 << 30), st.integers(1, 64), st.booleans())
def test_extents_cover_a_command(layout, first, count, write):
    pieces = layout.extents(first, count, write=write)
    offset = 0
    for piece in pieces:
        assert piece.offset == offset
        for step in range(piece.blocks):
            key = layout.key(first + offset + step)
            assert key == (piece.base, piece.shift, piece.index, piece.row + step)
            assert layout.ordinal(first + offset + step) == piece.ordinal
        offset += piece.blocks
    assert offset == count
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


class Overlapping(Layout):
    """Planted bug: data follows P as in RAID 5, over Q."""

    def data_places(self, row: int) -> list[int]:
        return [(place - 1) % self.width for place in super().data_places(row)]


def test_planted_bug_is_found():
    check_layout(Layout("RAID6", 6, 4), 0)
    with pytest.raises((AssertionError, ValueError)):
        check_layout(Overlapping("RAID6", 6, 4), 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("RAID4", 3, 1), "level must be one of"),
        (("RAID5", 3, 3), "strip_blocks must be a power of two"),
        (("RAID5", 2, 1), "does not fit 2 drives"),
        (("RAID5", 7, 1, 0, 2), "spans do not divide"),
        (("RAID0", 4, 1, 0, 2), "has no spans"),
        (("RAID10", 4, 1, 5), "copies must be"),
        (("RAID6", 4, 1, 2), "one copy"),
        (("JBOD", 2, 1), "one drive"),
        (("RAIDTP", 4, 1), "does not fit 4 drives"),
        (("RAID5", 4, 1, 0, 1, "ddf-N-restart"), "RAID5 has no rotation"),
        (("RAID0", 4, 1, 0, 1, "parity-last"), "RAID0 has no rotation"),
        (("RAID5", 4, 1, 0, 1, "upwards"), "rotation must be one of"),
    ],
)
def test_impossible_layouts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Layout(*arguments)
