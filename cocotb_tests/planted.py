"""Bugs that are planted in methods of a design."""

import inspect
import sys
import textwrap


def planted(kind: type, method: str, old: str, new: str) -> type:
    """A subclass of ``kind`` whose ``method`` has ``new`` where it has ``old``, which it has once.

    So a bug can be planted in the middle of a state machine. If the design has become another one
    this fails, instead of planting nothing.
    """
    source = textwrap.dedent(inspect.getsource(getattr(kind, method)))
    found = source.count(old)
    assert found == 1, f"{kind.__name__}.{method} has {old!r} {found} times"
    names = dict(vars(sys.modules[kind.__module__]))
    exec(source.replace(old, new), names)
    return type(f"Planted{kind.__name__}", (kind,), {method: names[method]})
