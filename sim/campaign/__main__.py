"""``python -m sim.campaign [--runs N] [--seed N]``: random loads with random faults of drives.

Every run is an array of a random level, size and rotation on a simulated card of its own. Run
number k uses seed + k. Ends with the counts, and status 1 after the first run that fails.
"""

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from sim.campaign.run import Outcome, Run
from sim.campaign.sizes import SIZES
from sim.native.build import build_controller
from sw.cli import Parser, positive

LINE_EVERY = 25


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that has ended; ``error`` says why it failed, ``trace`` where (both empty: well)."""

    seed: int
    outcome: Outcome
    error: str = ""
    trace: str = ""


def attempt(seed: int) -> Ended:
    """A run, whatever becomes of it."""
    run = Run(seed)
    try:
        return Ended(seed=seed, outcome=run.run())
    except Exception as error:
        return Ended(
            seed=seed,
            outcome=run.outcome,
            error=f"{type(error).__name__}: {error}",
            trace=traceback.format_exc(),
        )


@contextmanager
def attempts(seeds: Iterable[int], processes: int) -> Iterator[Iterator[Ended]]:
    """Runs with these seeds, in this order, so many at once; those not begun are dropped."""
    if processes == 1:
        yield map(attempt, seeds)
        return
    build_controller(SIZES)  # Once, before there are several.
    with ProcessPoolExecutor(processes) as executor:
        try:
            yield executor.map(attempt, seeds)
        finally:
            executor.shutdown(cancel_futures=True)


def main() -> int:
    """Runs the campaign; 0 when nothing was lost."""
    parser = Parser(prog="python -m sim.campaign", description=__doc__)
    parser.add_argument("--runs", metavar="N", type=positive, default=100, help="default: 100")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="default: 1")
    parser.add_argument(
        "--processes",
        metavar="N",
        type=positive,
        default=os.cpu_count() or 1,
        help="runs at once (default: as many as processors)",
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every run")
    arguments = parser.parse_args()
    faults: Counter = Counter()
    seen: Counter = Counter()
    commands = 0
    began = time.monotonic()
    print(f"SEED={arguments.seed}", flush=True)
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    with attempts(seeds, arguments.processes) as ended:
        for number, one in enumerate(ended, 1):
            outcome = one.outcome
            if one.error:
                print(one.trace if arguments.verbose else one.error, file=sys.stderr)
                print(f"{outcome.title}: {dict(outcome.faults)}", file=sys.stderr)
                print(f"repeat with: make campaign RUNS=1 SEED={one.seed}", file=sys.stderr)
                return 1
            faults += outcome.faults
            seen += outcome.seen
            commands += outcome.commands
            if arguments.verbose:
                print(f"{one.seed}: {outcome.title}: {dict(outcome.faults)} {dict(outcome.seen)}")
            elif number % LINE_EVERY == 0:
                print(f"{number} runs, {sum(faults.values())} faults", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{arguments.runs} runs, {commands} commands, {sum(faults.values())} fault events in"
        f" {seconds:.0f} s ({arguments.runs / seconds:.1f} runs/s); nothing lost, nothing stuck"
    )
    print("faults: " + ", ".join(f"{count} {name}" for name, count in sorted(faults.items())))
    print("seen: " + ", ".join(f"{count} {name}" for name, count in sorted(seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
