"""``python -m tools.lint_hdl``: Verilator's warnings on the controller's Verilog are errors.

``hdl/lint.vlt`` holds the reviewed exceptions.
"""

import subprocess
import sys
from dataclasses import replace

from hdl.config import Config, board, small
from hdl.controller import Controller
from hdl.core import Core
from sim import verilator
from sim.checkout import BUILD, ROOT
from sim.cli import program
from sim.verilog import Netlist, to_verilog

WAIVERS = ROOT / "hdl" / "lint.vlt"


def lint(netlist: Netlist, name: str) -> bool:
    """Prints what Verilator has to say about ``netlist``; whether that is nothing."""
    source = BUILD / "lint" / name / f"{netlist.top}.v"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(netlist.text)
    result = subprocess.run(
        [
            verilator.executable(),
            *("--lint-only", "-Wall", "--top-module", netlist.top),
            *(str(WAIVERS), str(source)),
        ],
        env=verilator.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    print(result.stdout + result.stderr, end="")
    return result.returncode == 0


def main() -> int:
    """Returns the number of designs with warnings."""
    designs: list[tuple[str, type, Config]] = [
        ("controller", Controller, board()),
        ("core_small", Core, small()),
        ("core_without_metadata", Core, replace(board(), metadata=False)),
        ("core_with_backup", Core, replace(board(), backup_blocks=1024)),
    ]
    failed = 0
    for name, kind, config in designs:
        failed += not lint(to_verilog(kind(config=config), top="top"), name)
    return failed


if __name__ == "__main__":
    sys.exit(program("lint_hdl", main))
