"""Fields that a configuration may leave out."""

from typing import Any

from amaranth.hdl import Const, Format, Shape, ShapeCastable, Signal, Value, ValueCastable, unsigned


class Absent(ShapeCastable):
    """A field without a bit, used as if it had the shape ``stands_for``.

    It reads as 0, and takes whatever is assigned to it.
    """

    def __init__(self, stands_for: Any):
        self._stands_for = stands_for

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Absent) and self._stands_for == other._stands_for

    def __hash__(self) -> int:
        return hash(Absent)

    def as_shape(self) -> Shape:
        return unsigned(0)

    def const(self, init: Any) -> Const:
        return Const(0, 0)

    def from_bits(self, raw: int) -> int:
        return 0

    def __call__(self, value: Value) -> Value | ValueCastable:
        # Nothing drives a new signal, and nothing else reads it.
        return Signal(self._stands_for, name="absent")

    def format(self, value: Any, format_spec: str) -> Any:
        return Format("-")


def optional(exists, fields: dict) -> dict:
    """``fields`` of a layout if ``exists``, else the same ones, each `Absent`.

    So those that use a field need not ask whether it exists, and the netlist has no trace of it.
    """
    return fields if exists else {name: Absent(shape) for name, shape in fields.items()}
