"""Beats of a block, or of a piece of it, by a counter that begins at 0 for each."""

from amaranth.hdl import Cat, Mux, Value

from hdl.config import Config, bits_for_count


def beat_number(config: Config, count: Value, of) -> Value:
    """The beat of a line that ``count`` stands for; ``of`` has the `piece_field`."""
    if not config.early_rows:
        return count
    low = bits_for_count(config.piece_beats)
    return Cat(count[:low], Mux(of.piece.any, of.piece.number, count[low:]))


def is_last(config: Config, count: Value, of) -> Value:
    """Whether ``count`` stands for the last beat of what ``of`` is about."""
    if not config.early_rows:
        return count == config.beats - 1
    low = bits_for_count(config.piece_beats)
    return count[:low].all() & (of.piece.any | count[low:].all())
