"""Runs the characterisation.

    .venv/bin/python -m sw.characterise [--quick] [--processes N] [--seed N] [--out DIR] [ID ...]

It prints tables, and writes results.json and report.html.
"""

import json
import os
import sys
import time
from concurrent.futures import as_completed
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from sim.cli import INTERRUPTED, Parser, positive, processes, program, reason, seed, terminal
from sim.native.build import build_controller, build_models, is_built
from sw.characterise.measure import Point, card_for, measure
from sw.characterise.points import points
from sw.characterise.published import CASES
from sw.characterise.record import Record
from sw.characterise.report import write_report
from sw.characterise.table import print_interfaces, print_results

OUTPUT = Path("build/characterise")


def _run(console: Console, work: list[Point], count: int) -> list[Record]:
    """Measures all points on ``count`` processes, the slowest first. Returns the records in order.

    Ctrl-C ends points that are under way. Finished ones are returned.
    """
    records: dict[int, Record] = {}
    with suppress(KeyboardInterrupt):
        _measure(console, work, count, records)
    return [records[index] for index in sorted(records)]


def _measure(
    console: Console, work: list[Point], count: int, records: dict[int, Record]
) -> None:
    order = sorted(range(len(work)), key=lambda i: -work[i].drives * work[i].load.measure_ns)
    with (
        Progress(
            *Progress.get_default_columns(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress,
        processes(count) as pool,
    ):
        task = progress.add_task("points", total=len(work))
        futures = {pool.submit(measure, work[index]): index for index in order}
        for future in as_completed(futures):
            index = futures[future]
            records[index] = record = future.result()
            progress.advance(task)
            if not console.is_terminal:
                console.print(
                    f"{len(records)}/{len(work)} {record.id} {record.setup}, {record.profile}, "
                    f"{record.outstanding} outstanding: {record.simulated:.0f} {record.unit}"
                )


def main() -> int:
    """Command line."""
    parser = Parser(
        prog="characterise",
        description="Runs published load profiles on the simulated card, beside published figures.",
    )
    known = sorted({case.id for case in CASES})
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"only these of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter points")
    parser.add_argument(
        "--processes",
        metavar="N",
        type=positive,
        default=os.cpu_count() or 1,
        help="points at once (as many as processors)",
    )
    parser.add_argument("--seed", type=seed, default=1, help="of the random accesses (1)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help=f"where to write ({OUTPUT})")
    arguments = parser.parse_args()
    for name in arguments.ids:
        if name not in known:
            parser.error(f"no result is called {name}; take some of {', '.join(known)}")
    results = arguments.out / "results.json"
    report = arguments.out / "report.html"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for path in (results, report):
            existed = path.exists()
            path.open("ab").close()
            if not existed:
                path.unlink()  # no empty results, if this is ended before it has any
    except OSError as error:
        parser.error(f"--out: {reason(error)}")
    console = terminal()
    work = points(quick=arguments.quick, seed=arguments.seed, ids=arguments.ids)
    begin = time.monotonic()
    build_models()
    for ports in sorted({max(point.drives, 8) for point in work}):
        if not is_built(card_for(ports)):
            console.print(f"building the {ports}-port controller, which takes minutes")
        build_controller(card_for(ports))
    if not console.is_terminal:
        count = arguments.processes
        console.print(f"{len(work)} points, {count} at once; a line as each has ended")
    records = _run(console, work, arguments.processes)
    if not records:
        raise KeyboardInterrupt  # it was, and what an earlier run has written stays
    print_interfaces(console)
    print_results(console, records)
    results.write_text(json.dumps([record.as_json() for record in records], indent=1) + "\n")
    write_report(report, records)
    cycles = sum(record.cycles for record in records)
    console.print(
        f"{len(records)} points, {cycles / 1e6:.0f} million clock cycles in "
        f"{time.monotonic() - begin:.0f} s; written to {results} and {report}"
    )
    if len(records) < len(work):
        print(f"characterise: interrupted after {len(records)} of {len(work)} points",
              file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(program("characterise", main))
