"""``python -m sim.campaign [--runs N] [--seed N]``: random loads with random faults of drives.

Every run is an array of a random level, size and rotation on a simulated card of its own. Run
number k uses seed + k. Ends with the counts, and status 1 after the first run that fails.
"""

import sys
import time
from collections import Counter

from sim.campaign.run import Run
from sw.cli import Parser, positive

LINE_EVERY = 25


def main() -> int:
    """Runs the campaign; 0 when nothing was lost."""
    parser = Parser(prog="python -m sim.campaign", description=__doc__)
    parser.add_argument("--runs", metavar="N", type=positive, default=100, help="default: 100")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="default: 1")
    parser.add_argument("--verbose", action="store_true", help="a line for every run")
    arguments = parser.parse_args()
    faults: Counter = Counter()
    seen: Counter = Counter()
    commands = 0
    began = time.monotonic()
    print(f"SEED={arguments.seed}", flush=True)
    for number in range(arguments.runs):
        seed = arguments.seed + number
        run = Run(seed)
        try:
            outcome = run.run()
        except Exception as error:
            print(f"{run.outcome.title}: {type(error).__name__}: {error}", file=sys.stderr)
            print(f"{dict(run.outcome.faults)}", file=sys.stderr)
            print(f"repeat with: make campaign RUNS=1 SEED={seed}", file=sys.stderr)
            if arguments.verbose:
                raise
            return 1
        faults += outcome.faults
        seen += outcome.seen
        commands += outcome.commands
        if arguments.verbose:
            print(f"{seed}: {outcome.title}: {dict(outcome.faults)} {dict(outcome.seen)}")
        elif (number + 1) % LINE_EVERY == 0:
            print(f"{number + 1} runs, {sum(faults.values())} faults", flush=True)
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
