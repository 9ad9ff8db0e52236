"""The contents of the members of an array, in plain Python: the reference for whole drives."""

from collections.abc import Sequence

from sim.golden import parity
from sim.golden.layout import Layout

BLOCK = 4096


def members(layout: Layout, rows: int, contents: Sequence[bytes]) -> list[bytes]:
    """``rows`` rows of every member of an array whose blocks are ``contents``, parity included.

    Blocks without a place in the layout (RAID 1E may leave some in its last stripe) are zeros.
    """
    areas = [bytearray(rows * BLOCK) for _ in range(layout.drives)]

    def place(position: int, row: int, block: bytes) -> None:
        areas[position][row * BLOCK : (row + 1) * BLOCK] = block

    for number, block in enumerate(contents):
        for copy in layout.copies_of(number):
            place(copy.position, copy.row, block)
    for span in range(layout.spans if layout.parities else 0):
        for row in range(rows):
            first = span * layout.width
            start = row * BLOCK
            positions = layout.roles(span, row)[: layout.data]
            data = [bytes(areas[position][start : start + BLOCK]) for position in positions]
            syndromes = parity.generate(data, layout.parities, layout.exponents(row))
            for parity_place, block in zip(layout.parity_places(row), syndromes, strict=True):
                place(first + parity_place, row, block)
    return [bytes(area) for area in areas]
