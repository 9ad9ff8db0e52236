"""The reference layout: tables published for Linux md, and properties of every shape."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocotb_tests.array_models import random_layout
from sim.golden.layout import DATA_OFFSET_BLOCKS, Layout, Place

LAYOUTS = st.integers(0, 2**32).map(lambda seed: random_layout(random.Random(seed)))
WINDOW = 2000


def drawing(layout: Layout, stripes: int) -> list[list[str]]:
    """A row for each stripe of one-block strips: block numbers, and P, Q for parity."""
    rows = []
    for row in range(stripes):
        names = [""] * layout.drives
        for span in range(layout.spans if layout.parities else 0):
            for role, position in enumerate(layout.roles(span, row)):
                if role >= layout.data:
                    names[position] = "PQ"[role - layout.data]
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
            position = base + (shift + index) % layout.width
            assert Place(position, row) == places[0]
            roles = layout.roles(base // layout.width, row)
            assert sorted(roles) == list(range(base, base + layout.width))
            assert roles == [base + (shift + r) % layout.width for r in range(layout.width)]
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
        offset += piece.blocks
    assert offset == count
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


class Overlapping(Layout):
    """Planted bug: data follows P as in RAID 5, over Q."""

    def roles(self, span: int, row: int) -> list[int]:
        roles = super().roles(span, row)
        base = span * self.width
        return [base + (role - base + self.width - 1) % self.width for role in roles[:-2]] + roles[
            -2:
        ]


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
    ],
)
def test_impossible_layouts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Layout(*arguments)
