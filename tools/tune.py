"""``python -m tools.tune [CONTROLLER ...]``: makes simulations of the native tier faster.

The controller is built with counters in its branches, runs a load, and is built once more by what
was counted. Every program finds that library then, until the design, the models or the tools
change. It does the same in every cycle, and takes less time for it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.sizes import USUAL
from hdl.config import Config, board
from sim import verilator
from sim.checkout import BUILD, ROOT
from sim.cli import BAD_ARGUMENTS, Parser, program
from sim.native.build import build_tuned


@dataclass(frozen=True, kw_only=True)
class Training:
    """A controller, what it is for, and the program whose counts it is built by.

    Parameters
    ----------
    config
        The controller.
    use
        Who runs it.
    command
        Arguments of Python.
    """

    config: Callable[[], Config]
    use: str
    command: Sequence[str]


TRAININGS = {
    "campaign": Training(
        config=lambda: USUAL,
        use="the campaign's usual controller, which many tests have as well",
        command=("-m", "campaign", "--runs", "4", "--seed", "1", "--without", "sizes"),
    ),
    "board": Training(
        config=lambda: board(8),
        use="the controller of 8 ports that make characterise and make bench run",
        command=("-m", "sw.characterise", "--quick", "--out", str(BUILD / "tune"), "P2", "R5"),
    ),
}  # fmt: skip


class TuneError(Exception):
    """It cannot be done. The message is a line that says why, and what to install if that helps."""


def profile_tool() -> str:
    """The program that merges counts. Raises `TuneError` unless the compiler can count."""
    toolchain = verilator.toolchain()
    if not toolchain.is_clang:
        raise TuneError(
            f"{toolchain.compiler} is no clang: install clang, or name one in the variable CXX"
        )
    release = _output([toolchain.compiler, "-dumpversion"]).partition(".")[0]
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "empty.cpp"
        source.write_text("")
        linked = subprocess.run(
            [toolchain.compiler, "-shared", "-fPIC", "-fprofile-instr-generate", str(source), "-o",
             str(source.with_suffix(".so"))],
            capture_output=True, check=False,
        )  # fmt: skip
    if linked.returncode:
        raise TuneError(
            f"{toolchain.compiler} has no run-time for counts: apt-get install "
            f"libclang-rt-{release}-dev"
        )
    tool = _output([toolchain.compiler, "-print-prog-name=llvm-profdata"])
    if shutil.which(tool) is None:
        raise TuneError(f"there is no llvm-profdata: apt-get install llvm-{release}")
    return tool


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(training: Training, *, tool: str, directory: Path) -> Path:
    """Runs the load of ``training`` on a controller that counts. Returns the merged counts, which
    are left in ``directory``. Raises `TuneError` if the load fails."""
    environment = {**os.environ, "PROFILE": "1", "LLVM_PROFILE_FILE": str(directory / "%p.profraw")}
    load = subprocess.run(
        [sys.executable, *training.command], cwd=ROOT, env=environment, check=False,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    if load.returncode:
        raise TuneError(f"the load has failed: python {' '.join(training.command)}")
    counts = sorted(str(path) for path in directory.glob("*.profraw"))
    merged = directory / "merged.profdata"
    subprocess.run([tool, "merge", "-o", str(merged), *counts], check=True)
    return merged


def tune(name: str, tool: str) -> None:
    """Tunes a controller of `TRAININGS`. Another process may do the same at the same time."""
    training = TRAININGS[name]
    begin = time.monotonic()
    print(f"{name}: counting, which takes minutes", flush=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="counts-") as directory:
        counts = measure(training, tool=tool, directory=Path(directory))
        library = build_tuned(training.config(), counts)
    print(f"{name}: {library.relative_to(ROOT)} in {time.monotonic() - begin:.0f} s")


def main() -> int:
    """Command line."""
    parser = Parser(prog="tune", description=__doc__)
    known = ", ".join(f"{name} ({training.use})" for name, training in TRAININGS.items())
    parser.add_argument(
        "controllers", metavar="CONTROLLER", nargs="*", help=f"default: all. There are {known}"
    )
    arguments = parser.parse_args()
    for name in arguments.controllers:
        if name not in TRAININGS:
            parser.error(f"no controller is called {name}; there are {', '.join(TRAININGS)}")
    try:
        tool = profile_tool()
        for name in arguments.controllers or TRAININGS:
            tune(name, tool)
    except TuneError as error:
        print(f"tune: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    return 0


if __name__ == "__main__":
    sys.exit(program("tune", main))
