"""Rotation of the words of a beat: how data moves between two alignments."""

from amaranth.hdl import Cat, Mux, Value


def rotate_left(words: list[Value], amount: Value) -> list[Value]:
    """Word i moves to place (i + ``amount``) mod n. Combinational, log2(n) multiplexers deep."""
    for level in range(len(amount)):
        step = 1 << level
        words = [
            Mux(amount[level], words[(place - step) % len(words)], words[place])
            for place in range(len(words))
        ]
    return words


def rotate_right(words: list[Value], amount: Value) -> list[Value]:
    """Word (i + ``amount``) mod n moves to place i."""
    for level in range(len(amount)):
        step = 1 << level
        words = [
            Mux(amount[level], words[(place + step) % len(words)], words[place])
            for place in range(len(words))
        ]
    return words


def words_of(beat: Value, width: int = 32) -> list[Value]:
    """The words of a beat, lowest first."""
    return [beat[low : low + width] for low in range(0, len(beat), width)]


def below(count: Value, places: int) -> Value:
    """A mask of ``places`` bits with the lowest ``count`` set (all, if ``count`` is larger)."""
    return Cat(count > place for place in range(places))
