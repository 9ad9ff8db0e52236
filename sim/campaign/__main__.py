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
from contextlib import contextmanager
from dataclasses import dataclass

from sim.campaign.run import Outcome, Run
from sim.campaign.sizes import SIZES
from sim.native.build import build_controller
from sw.cli import INTERRUPTED, Parser, positive, processes, program, seed

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


class Total:
    """What all runs so far have had."""

    def __init__(self):
        self.runs = 0
        self._commands = 0
        self._faults: Counter = Counter()
        self._seen: Counter = Counter()
        self._began = time.monotonic()

    def add(self, ended: Ended, *, verbose: bool) -> None:
        """Counts a run, and says so now and then, or always."""
        outcome = ended.outcome
        self.runs += 1
        self._faults += outcome.faults
        self._seen += outcome.seen
        self._commands += outcome.commands
        if verbose:
            print(f"{ended.seed}: {outcome.title}: {dict(outcome.faults)} {dict(outcome.seen)}")
        elif self.runs % LINE_EVERY == 0:
            print(f"{self.runs} runs, {self._faults.total()} faults", flush=True)

    def print(self, verdict: str) -> None:
        """The counts."""
        seconds = time.monotonic() - self._began
        print(
            f"{self.runs} runs, {self._commands} commands, {self._faults.total()} fault events in"
            f" {seconds:.0f} s ({self.runs / seconds:.1f} runs/s); {verdict}"
        )
        for name, counts in (("faults", self._faults), ("seen", self._seen)):
            print(f"{name}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))


@contextmanager
def attempts(seeds: Iterable[int], count: int) -> Iterator[Iterator[Ended]]:
    """Runs with these seeds, in this order, ``count`` at once; those not begun are dropped."""
    if count == 1:
        yield map(attempt, seeds)
        return
    build_controller(SIZES)  # Once, before there are several.
    with processes(count) as executor:
        try:
            yield executor.map(attempt, seeds)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def main() -> int:
    """Runs the campaign; 0 when nothing was lost."""
    parser = Parser(prog="python -m sim.campaign", description=__doc__)
    parser.add_argument("--runs", metavar="N", type=positive, default=100, help="default: 100")
    parser.add_argument("--seed", metavar="N", type=seed, default=1, help="default: 1")
    parser.add_argument(
        "--processes",
        metavar="N",
        type=positive,
        default=os.cpu_count() or 1,
        help="runs at once (default: as many as processors)",
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every run")
    arguments = parser.parse_args()
    total = Total()
    print(f"SEED={arguments.seed}", flush=True)
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    try:
        with attempts(seeds, arguments.processes) as ended:
            for one in ended:
                if one.error:
                    outcome = one.outcome
                    print(one.trace if arguments.verbose else one.error, file=sys.stderr)
                    print(f"{outcome.title}: {dict(outcome.faults)}", file=sys.stderr)
                    print(f"repeat with: make campaign RUNS=1 SEED={one.seed}", file=sys.stderr)
                    return 1
                total.add(one, verbose=arguments.verbose)
    except KeyboardInterrupt:
        total.print("interrupted")
        print(f"campaign: interrupted after {total.runs} of {arguments.runs} runs", file=sys.stderr)
        return INTERRUPTED
    total.print("nothing lost, nothing stuck")
    return 0


if __name__ == "__main__":
    sys.exit(program("campaign", main))
