"""How fast the controller is, as ratios to its limits.

    .venv/bin/python -m sw.bench [NAME ...] [--list] [--quick]

Each row runs load on the simulated card: 256 bits, 250 MHz, PCIe 3.0 x8, MPS 256, MRRS 512, ideal
drives, 64 KiB strips, 4 MiB of lines on chip. The mirrored pairs (``raid1-2``) have SATA SSDs.
Their limit is twice the rate of one of them alone. The rows on rebuilds have SATA SSDs as well.
Their limits are the write rate of one drive alone, and the 99th percentile without a rebuild over
(1 - share). The drives of degraded arrays, and of arrays with spans, have SAS links of 12 Gbit/s.
Rows that begin with ``durable`` have arrays that live on their drives (`Config.metadata`).
The program prints a table and writes build/bench.json.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hdl.config import board
from sim.cli import Parser, positive, processes, program, terminal
from sim.native.build import build_controller
from sw.bench import degraded, durable, healthy, rebuild
from sw.bench.healthy import PORTS

RESULTS = Path("build/bench.json")
QUICK_SHARE = 0.5


@dataclass(frozen=True)
class Row:
    """One figure. ``ratio`` is value over limit, or limit over value where less is better."""

    name: str
    value: float
    unit: str
    limit: float
    ratio: float
    command: str


ROWS = healthy.rows() | degraded.rows() | rebuild.rows() | durable.rows()


def _ports_of(name: str) -> int:
    """Drive ports of the controller that a row runs on. It is the number at the end of the row's
    name if that is one of `PORTS`, else the least of them."""
    number = name.rpartition("-")[2]
    return next((ports for ports in PORTS if number == str(ports)), PORTS[0])


def measure(name: str, share: float) -> Row:
    """Runs the row ``name``. ``share`` shortens the simulated time."""
    value, unit, limit, ratio = ROWS[name](share)
    return Row(name, value, unit, limit, ratio, f"make bench BENCH={name}")


def print_rows(console: Console, rows: list[Row]) -> None:
    """Prints the rows as a table."""
    table = Table(title="Figures and what bounds them")
    table.add_column("name")
    for heading in ("value", "limit", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for row in rows:
        decimals = 3 if row.value < 100 else 0
        table.add_row(
            row.name,
            f"{row.value:.{decimals}f}",
            f"{row.limit:.{decimals}f}",
            f"{row.ratio:.3f}",
            row.unit,
        )
    console.print(table)


def main() -> int:
    """Command line."""
    parser = Parser(prog="bench", description="How fast the controller is, as ratios to limits.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to run (all)")
    parser.add_argument("--list", action="store_true", help="list the names of the rows")
    parser.add_argument("--quick", action="store_true", help="shorter runs, rougher figures")
    parser.add_argument(
        "--processes", metavar="N", type=positive, default=2, help="rows at once (2)"
    )
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(ROWS))
        return 0
    names = arguments.names or list(ROWS)
    for name in names:
        if name not in ROWS:
            parser.error(f"no row is called {name}: take some of {', '.join(ROWS)}")
    share = QUICK_SHARE if arguments.quick else 1.0
    console = terminal()
    for ports in sorted({_ports_of(name) for name in names}):
        console.print(f"building the {ports}-port controller")
        build_controller(board(ports))
    for ports in sorted({_ports_of(name) for name in names if name.startswith("durable")}):
        console.print(f"building the {ports}-port controller without metadata")
        build_controller(durable.forgetful(ports))
    rows = []
    # Speeds are measured one at a time, so that nothing else runs on the machine meanwhile.
    alone = [name for name in names if name.startswith("simulation-speed")]
    shared = [name for name in names if name not in alone]
    with processes(arguments.processes) as pool:
        for row in pool.map(measure, shared, [share] * len(shared)):
            console.print(f"{row.name}: {row.value:.6g} {row.unit}, ratio {row.ratio:.3f}")
            rows.append(row)
    rows += [measure(name, share) for name in alone]
    print_rows(console, rows)
    RESULTS.parent.mkdir(exist_ok=True)
    kept = []
    if RESULTS.exists() and arguments.names:
        kept = [row for row in json.loads(RESULTS.read_text()) if row["name"] not in names]
    RESULTS.write_text(json.dumps(kept + [asdict(row) for row in rows], indent=1) + "\n")
    console.print(f"written to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(program("bench", main))
