"""Which faults a level tolerates at once, and which blocks are lost past that, in plain Python."""

from collections.abc import Iterable

from sim.golden.layout import Layout, Place


class Budget:
    """The members of one array that have faults, by member index.

    ``drives``: members that are failed, or may stop for a while. ``bad``: blocks that cannot be
    read.

    Parameters
    ----------
    layout
        The array.
    rows
        Rows of a span.
    """

    def __init__(self, layout: Layout, rows: int):
        self._layout = layout
        self._rows = rows
        self.drives: set[int] = set()
        self.bad: set[tuple[int, int]] = set()

    def _usable(self, place: Place) -> bool:
        return place.position not in self.drives and (place.position, place.row) not in self.bad

    def _row_lost(self, span: int, row: int) -> bool:
        places = (Place(position, row) for position in self._layout.roles(span, row))
        return sum(not self._usable(place) for place in places) > self._layout.parities

    def readable(self, block: int) -> bool:
        """Whether array block ``block`` can be read or recovered."""
        layout = self._layout
        places = layout.copies_of(block)
        if any(self._usable(place) for place in places):
            return True
        if not layout.parities:
            return False
        (place,) = places
        return not self._row_lost(place.position // layout.width, place.row)

    def tolerated(self) -> bool:
        """Whether every row can be read and written."""
        layout = self._layout
        if layout.parities:
            return not any(
                self._row_lost(span, row)
                for span in range(layout.spans)
                for row in range(self._rows)
            )
        return all(map(self.readable, range(layout.blocks(self._rows))))

    def drives_suffice(self) -> bool:
        """Whether every row could be read and written if no block were bad."""
        return Budget.of(self._layout, self._rows, self.drives).tolerated()

    @classmethod
    def of(cls, layout: Layout, rows: int, drives: Iterable[int]) -> "Budget":
        """The budget of an array without these drives."""
        budget = cls(layout, rows)
        budget.drives = set(drives)
        return budget

    def admits(self, drives: Iterable[int] = (), bad: Iterable[tuple[int, int]] = ()) -> bool:
        """Takes these faults if all of them together are tolerated."""
        before = self.drives, self.bad
        self.drives, self.bad = self.drives | set(drives), self.bad | set(bad)
        if self.tolerated():
            return True
        self.drives, self.bad = before
        return False
