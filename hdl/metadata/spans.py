"""How the superblocks of a RAID 50 or 60 tell its spans from each other.

To md each span is an array of its own. So each is a set with an identity of its own, which is that
of the first one but for four bits. Which span it is, and of how many, stands in the microseconds of
`ctime`, whose seconds are 0: the card has no clock, and md never changes the field.
"""

from amaranth.hdl import Cat, Const, Value
from amaranth.lib import data

from hdl.config import MAX_DRIVES
from hdl.metadata.superblock import WORD_BITS, Word

LEAST_WIDTH = 3
"""Drives of a span that has parity."""

SPAN_BITS = (MAX_DRIVES // LEAST_WIDTH - 1).bit_length()
"""Width of the number of a span."""

UUID_WORD = Word.SET_UUID + 2
"""The word of the identity that differs."""

UUID_BIT = 24
"""Its lowest bit that does. Those below count arrays."""

SECONDS_BITS = 8
"""Of the upper word of `ctime`: bits that belong to its seconds."""


class Place(data.Struct):
    """Which span a set is.

    Fields
    ------
    span
        Its number.
    last
        That of the last span. 0 if there is only one.
    """

    span: SPAN_BITS
    last: SPAN_BITS


def identity(word: Value, span: Value) -> Value:
    """`UUID_WORD` of the first span's identity as that of another one, or the other way round."""
    return (word ^ Cat(Const(0, UUID_BIT), span))[:WORD_BITS]


def created(place) -> Value:
    """The upper word of `ctime` of a span."""
    return Cat(Const(0, SECONDS_BITS), place)


def placed(word: Value) -> Value:
    """A `Place` by the upper word of `ctime`, if the lower one is 0."""
    return word[SECONDS_BITS : SECONDS_BITS + 2 * SPAN_BITS]


def is_placed(word: Value) -> Value:
    """Whether the upper word of `ctime` is that of a span, if the lower one is 0."""
    place = placed(word)
    span, last = place[:SPAN_BITS], place[SPAN_BITS:]
    rest = Cat(word[:SECONDS_BITS], word[SECONDS_BITS + 2 * SPAN_BITS :])
    return (rest == 0) & (last != 0) & (span <= last)
