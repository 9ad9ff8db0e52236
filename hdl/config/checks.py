"""Checks of a configuration. Each refusal is one line that gives the reason."""

from collections.abc import Sequence


def in_range(name: str, value: int, least: int, most: int) -> None:
    """Raises `ValueError` unless ``value`` lies in ``least``..``most``."""
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least}..{most}, not {value}")


def power_of_two(name: str, value: int, least: int, most: int) -> None:
    """Raises `ValueError` unless ``value`` is a power of two in ``least``..``most``."""
    if value & (value - 1) or not least <= value <= most:
        raise ValueError(f"{name} must be a power of two in {least}..{most}, not {value}")


def one_of(name: str, value: int, allowed: Sequence[int]) -> None:
    """Raises `ValueError` unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        *first, last = allowed
        raise ValueError(f"{name} must be {', '.join(map(str, first))} or {last}, not {value}")
