"""One row of a parity array as its drives hold it, checked by ISA-L."""

from collections.abc import Sequence

from sim import isal
from sim.golden import parity
from sim.golden.layout import Layout, Place


def checked_row(
    layout: Layout, span: int, row: int, members: Sequence[bytes | None]
) -> list[tuple[int, bytes]]:
    """The (array block, contents) of a row of ``span``, whose ``members`` lie in order of place.

    Blocks of drives that are gone (None) are recovered from the others first. Parity must be what
    ISA-L computes from the layout's weights.
    """
    turned, exponents = layout.turned(row)[: layout.data], layout.exponents(row)
    held = [members[place] for place in (*turned, *layout.parity_places(row))]
    whole = parity.reconstruct(held, layout.parities, exponents) if None in held else held
    blocks = [block for block in whole if block is not None]
    assert len(blocks) == layout.width
    weighed = [bytes(len(blocks[0]))] * layout.width
    for exponent, block in zip(exponents, blocks, strict=False):
        weighed[exponent] = block
    expected = isal.encode(isal.rs_matrix(layout.parities, layout.width), weighed)
    where = f"{layout.level} {layout.rotation} span {span} row {row}"
    assert expected == blocks[layout.data :], f"{where}: parity is wrong"
    found = []
    for place, block in zip(turned, blocks, strict=False):
        number = layout.inverse(Place(span * layout.width + place, row))
        assert number is not None
        found.append((number, block))
    return found
