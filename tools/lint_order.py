"""``python -m tools.lint_order``: whether imports only run down the house.

A file may import from its own room and from the rooms below it. No file may import a test.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sim.checkout import ROOT
from sim.cli import program

ROOMS = (
    "hdl/config",
    "hdl/kit",
    "hdl/flow",
    "hdl/memory",
    "hdl/parity",
    "hdl/pcie",
    "hdl/nvme",
    "hdl/array",
    "hdl/drive",
    "hdl/stripe",
    "hdl/cache",
    "hdl/background",
    "hdl/metadata",
    "hdl/redo",
    "hdl",
    "sim",
    "sw",
    "campaign",
    "powercut",
    "synth",
    "tools",
    "cocotb_tests",
)
"""From the bottom to the top. A room may still be to come."""


def room(parts: Sequence[str]) -> int | None:
    """The place in `ROOMS` of a path or a module, given as its parts; None if it is not ours."""
    for length in (2, 1):
        name = "/".join(parts[:length])
        if name in ROOMS:
            return ROOMS.index(name)
    return None


def imports(text: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each import in a file with contents ``text``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:  # which may be a module
                yield node.lineno, f"{node.module}.{name.name}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name


def is_test(parts: Sequence[str]) -> bool:
    """Whether a module is a file of tests, or something in it."""
    return parts[0] == "cocotb_tests" and any(part.startswith("test_") for part in parts)


def complaints(root: Path) -> list[str]:
    """What is wrong with the imports of the checkout ``root``: a line each."""
    found = []
    for top in sorted({name.partition("/")[0] for name in ROOMS}):
        for file in sorted((root / top).rglob("*.py")):
            path = file.relative_to(root)
            own = room(path.with_suffix("").parts)
            assert own is not None
            said = set()
            for line, module in imports(file.read_text()):
                parts = module.split(".")
                other = room(parts)
                if other is not None and other > own and (line, other) not in said:
                    said.add((line, other))
                    found.append(
                        f"{path}:{line}: {ROOMS[own]} must not import from {ROOMS[other]},"
                        " which is above it"
                    )
                if is_test(parts) and (line, -1) not in said:
                    said.add((line, -1))
                    found.append(
                        f"{path}:{line}: a test must not be imported; put what several need into a"
                        " file of its own"
                    )
    return found


def main() -> int:
    """Returns the exit status."""
    found = complaints(ROOT)
    print("\n".join(found) or "imports run down the house only")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(program("lint_order", main))
