"""``python -m campaign [--runs N] [--seed N]``: random loads with random faults of drives.

Every run has arrays of random levels, sizes and rotations on a simulated card of its own. Run
number k uses seed + k. The program ends with the counts. After the first run that fails it ends
with status 1.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from functools import partial

from campaign.card import Outcome
from campaign.features import help_text, names, selected
from campaign.run import Run
from campaign.sizes import config_of
from sim.cli import (
    INTERRUPTED,
    Heartbeat,
    Parser,
    add_campaign_arguments,
    in_order,
    positive,
    program,
    seeds,
)
from sim.native.build import build_controller, is_built


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that has ended. ``error`` gives the reason of a failure and ``trace`` its place. Both
    are empty after success."""

    seed: int
    outcome: Outcome
    error: str = ""
    trace: str = ""


def attempt(features: frozenset[str], seed: int) -> Ended:
    """A run. Its failure is returned, not raised."""
    run = Run(seed, features=features)
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
    """The counts of all runs so far."""

    def __init__(self):
        self.runs = 0
        self._heartbeat = Heartbeat()
        self._commands = 0
        self._faults: Counter = Counter()
        self._seen: Counter = Counter()
        self._slowest = self._slowest_job = 0.0
        self._began = time.monotonic()

    def add(self, ended: Ended, *, verbose: bool) -> None:
        """Counts a run, and prints it, or now and then how many there are."""
        outcome = ended.outcome
        self.runs += 1
        self._faults += outcome.faults
        self._seen += outcome.seen
        self._commands += outcome.commands
        self._slowest = max(self._slowest, outcome.slowest)
        self._slowest_job = max(self._slowest_job, outcome.slowest_job)
        if verbose:
            print(f"{ended.seed}: {outcome.title}: {dict(outcome.faults)} {dict(outcome.seen)}")
        else:
            self._heartbeat.print(f"{self.runs} runs, {self._faults.total()} fault events")

    def print(self, verdict: str) -> None:
        """Prints the counts."""
        seconds = time.monotonic() - self._began
        print(
            f"{self.runs} runs, {self._commands} commands, {self._faults.total()} fault events in"
            f" {seconds:.0f} s ({60 * self.runs / seconds:.1f} runs/min); {verdict}"
        )
        for name, counts in (("faults", self._faults), ("seen", self._seen)):
            if counts:
                print(f"{name}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
        if not self.runs:
            return
        print(f"slowest command: {self._slowest:.0%} of the time in which it must end")
        print(f"slowest job: {self._slowest_job:.0%} of the time in which it must end")


def build(seeds: range, features: frozenset[str]) -> None:
    """Builds the controllers of these runs, each once, before several processes need it."""
    for config in dict.fromkeys(config_of(number, others="sizes" in features) for number in seeds):
        if not is_built(config):
            print("building a controller, which takes minutes", flush=True)
        build_controller(config)


def main() -> int:
    """Runs the campaign; 0 when nothing was lost."""
    parser = Parser(
        prog="campaign",
        description=__doc__,
        epilog="features:\n" + help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", metavar="N", type=positive, default=100, help="default: 100")
    add_campaign_arguments(parser, "run")
    parser.add_argument(
        "--only", metavar="NAME,..", type=names, default=frozenset(), help="only these features"
    )
    parser.add_argument(
        "--without", metavar="NAME,..", type=names, default=frozenset(), help="all but these"
    )
    arguments = parser.parse_args()
    try:
        features = selected(arguments.only, arguments.without)
    except ValueError as error:
        parser.error(str(error))
    total = Total()
    numbers = seeds(parser, arguments.seed, arguments.runs)
    print(f"SEED={arguments.seed}", flush=True)
    failed = 0
    try:
        build(numbers, features)
        with in_order(partial(attempt, features), numbers, arguments.processes) as ended:
            for one in ended:
                if one.error:
                    failed += 1
                    _explain(one, arguments)
                    if not arguments.keep_going:
                        return 1
                else:
                    total.add(one, verbose=arguments.verbose)
    except KeyboardInterrupt:
        total.print("interrupted")
        print(f"campaign: interrupted after {total.runs} of {arguments.runs} runs", file=sys.stderr)
        return INTERRUPTED
    total.print(f"{failed} more have failed" if failed else "nothing lost, nothing stuck")
    return 1 if failed else 0


def _explain(ended: Ended, arguments: argparse.Namespace) -> None:
    """Prints the failure, and how to repeat it."""
    print(ended.trace if arguments.verbose else ended.error, file=sys.stderr)
    print(f"{ended.outcome.title}: {dict(ended.outcome.faults)}", file=sys.stderr)
    options = [
        f" {option.upper()}={','.join(sorted(chosen))}"
        for option, chosen in (("only", arguments.only), ("without", arguments.without))
        if chosen
    ]
    again = f"make campaign RUNS=1 SEED={ended.seed}{''.join(options)}"
    print(f"repeat with: {again}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(program("campaign", main))
