"""Counting the bits of a mask."""

from amaranth.hdl import Value


def ones(mask: Value) -> Value:
    """How many bits of ``mask`` are set, as a balanced tree of adders."""
    counts = list(mask)
    while len(counts) > 1:
        pairs = [a + b for a, b in zip(counts[::2], counts[1::2], strict=False)]
        counts = [*pairs, *counts[2 * len(pairs) :]]
    return counts[0]
