"""``python -m tools.same [COMMIT]``: whether the hardware is as it was at COMMIT.

Compares ``board()``, ``board(24)`` and ``small()`` of the working tree with those of COMMIT as
bits without names. Where they are made in another way, a SAT solver proves that they do the same.
Exit status 0 if all are the same, 1 if one is not, 2 for bad arguments.
"""

import argparse
import hashlib
import io
import multiprocessing
import pickle
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

from sim.cli import BAD_ARGUMENTS, Parser, ignore_interrupts, program
from tools.same.compare import Comparison, compare
from tools.same.constants import without_constants
from tools.same.logic import Logic, logic_of

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "build" / "same"

DESIGNS = ("board()", "board(24)", "small()")
MOST_BLOCKS = 12
"""Blocks that are named of each kind of difference."""


def main() -> int:
    """Returns the exit status."""
    parser = Parser(prog="same", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "commit", nargs="?", default="HEAD", help="what to compare with; default: HEAD"
    )
    parser.add_argument(
        "--only", action="append", choices=DESIGNS, help="only this design; may be repeated"
    )
    parser.add_argument(
        "--renamed", action="append", default=[], metavar="OLD=NEW", type=_names,
        help="a register, with modules if need be, and its name now; for the proof, where\n"
             "something is made in another way: stripe/doomed=stripe/freed; or a port of the\n"
             "design: progress__sent_tag=progress__sent__payload",
    )  # fmt: skip
    arguments = parser.parse_args()
    name = f"{arguments.commit}^{{commit}}"
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", name).decode().strip()
    if not commit:
        print(f"same: there is no commit {arguments.commit!r}", file=sys.stderr)
        return BAD_ARGUMENTS
    before = _checked_out(commit)
    worst = 0
    for design in arguments.only or DESIGNS:
        found = compare(_logic(before, design), _logic(ROOT, design), dict(arguments.renamed))
        print(f"{design}: {_verdict(found)}", flush=True)
        worst |= not found.proved
    return worst


def _names(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new or "=" in new:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old.lstrip("_"), new.lstrip("_")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).stdout


def _checked_out(commit: str) -> Path:
    """A directory with ``hdl/`` of ``commit``."""
    place = KEPT / commit
    if not (place / "hdl").exists():
        place.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "hdl"))) as archive:
            archive.extractall(place, filter="data")
    return place


def _logic(root: Path, design: str) -> Logic:
    """The bits of ``design`` in the checkout ``root``, from the cache if its sources are known."""
    state = hashlib.sha256(design.encode())
    own = [Path(__file__).parent / name for name in ("logic.py", "constants.py")]
    for file in (*sorted((root / "hdl").rglob("*.py")), *own):
        name = file.relative_to(root) if file.is_relative_to(root / "hdl") else file.name
        state.update(f"{name}\0".encode() + file.read_bytes())
    path = KEPT / f"{state.hexdigest()[:20]}.pickle"
    if not path.exists():
        # In a process of its own: two checkouts have modules of the same names.
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_read, args=(root, design, path), daemon=True)
        process.start()
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"same: {design} of {root} cannot be elaborated")
    return pickle.loads(path.read_bytes())


def _read(root: Path, design: str, path: Path) -> None:
    ignore_interrupts()  # this process is ended by its parent then
    sys.path.insert(0, str(root))
    if "hdl" in sys.modules:
        raise RuntimeError("the hdl of this checkout has been imported already")
    from hdl.config import board, small
    from hdl.controller import Controller
    from hdl.core import Core

    component = {
        "board()": lambda: Controller(config=board()),
        "board(24)": lambda: Controller(config=board(24)),
        "small()": lambda: Core(config=small()),
    }[design]()
    logic = without_constants(logic_of(component))
    logic.known.clear()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(logic))
    partial.replace(path)


def _verdict(found: Comparison) -> str:
    (gates, states), (gates_now, states_now) = found.sizes
    size = (
        f"{gates_now:,} gates ({gates_now - gates:+,}), "
        f"{states_now:,} bits of state ({states_now - states:+,})"
    )
    if found.alike:
        return f"the same; {size}"
    lines = [f"{'made in another way, proved equal' if found.proved else 'DIFFERENT'}; {size}"]
    for title, blocks in (
        ("not proved equal", found.different),
        ("made in another way", found.changed),
        ("only before", found.only_before),
        ("only now", found.only_after),
    ):
        lines += _table(title, blocks)
    return "\n".join(lines)


def _table(title: str, blocks: Counter[str]) -> list[str]:
    named = (+blocks).most_common(MOST_BLOCKS)
    lines = [f"  {title}: {count} of {block}" for block, count in named]
    left = len(+blocks) - len(lines)
    return [*lines, f"  {title}: and {left} blocks more"] if left > 0 else lines


if __name__ == "__main__":
    sys.exit(program("same", main))
