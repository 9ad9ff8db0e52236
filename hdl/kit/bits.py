"""Counting and finding bits of a mask."""

from amaranth.hdl import Module, Signal, Value


def lowest_bit(m: Module, mask: Value, name: str) -> Signal:
    """The number of the lowest bit set in ``mask`` (0 when none is), combinational."""
    width = len(mask)
    single = Signal(width, name=f"{name}_single")
    index = Signal(range(width), name=name)
    m.d.comb += single.eq(mask & -mask)
    for bit in range(len(index)):
        choose = sum(1 << number for number in range(width) if number >> bit & 1)
        m.d.comb += index[bit].eq((single & choose).any())
    return index


def ones(mask: Value) -> Value:
    """How many bits of ``mask`` are set, as a balanced tree of adders."""
    counts = list(mask)
    while len(counts) > 1:
        pairs = [a + b for a, b in zip(counts[::2], counts[1::2], strict=False)]
        counts = [*pairs, *counts[2 * len(pairs) :]]
    return counts[0]
