"""``python -m powercut [--cuts N] [--seed N]``: power goes at random times, again and again.

The card has `Config.metadata`. It writes, flushes, loses drives, rebuilds, moves members, creates
and deletes arrays and volumes until its power goes. Then its drives lose what they have not stored.
When power is back, all that the host was told must be there, and every row that may be torn must be
marked on the drives. Card number k lives up to 20 times and uses seed + k. The program ends with
the counts, which docs/verification.md explains. After the first card that has lost something it
ends with status 1.

With --backup the card has a backup unit. It is warned before the power goes, most times, and saves
what is on its way to its drives. When power is back that reaches them.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from functools import partial

from powercut.backup import BACKUP, BackupLives
from powercut.lives import CONFIG, Lives
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

MOST_CUTS = 20
"""Of a card."""


@dataclass(frozen=True, kw_only=True)
class Died:
    """A card that has lost its power for the last time.

    ``seen`` counts what has happened. ``error`` gives the reason of a failure and ``trace`` its
    place. Both are empty after success.
    """

    seed: int
    seen: Counter
    error: str = ""
    trace: str = ""


def live(task: tuple[int, int], kind: type[Lives] = Lives) -> Died:
    """Lives with a seed, so often. What fails is returned, not raised."""
    number, cuts = task
    lives = kind(number)
    try:
        for _ in range(cuts):
            lives.live()
        lives.wake()
    except Exception as error:
        return Died(
            seed=number,
            seen=lives.seen,
            error=f"{type(error).__name__}: {error}",
            trace=traceback.format_exc(),
        )
    return Died(seed=number, seen=lives.seen)


def tasks(first: int, cuts: int) -> list[tuple[int, int]]:
    """Seeds of cards, and how often each loses its power before it is looked at once more."""
    return [
        (first + number, min(MOST_CUTS, cuts - done))
        for number, done in enumerate(range(0, cuts, MOST_CUTS))
    ]


def report(seen: Counter, cards: int, seconds: float, verdict: str) -> None:
    """Prints the counts. Power also goes as a card has been looked at for the last time; nobody
    sees what that does."""
    cuts = seen["lives"] - cards
    print(f"{cards} cards, {cuts} cuts in {seconds:.0f} s; {verdict}")
    if not cards:
        return
    counts = sorted((what, count) for what, count in seen.items() if what != "lives")
    print("seen: " + ", ".join(f"{count} {what}" for what, count in counts))


def main() -> int:
    """Cuts the power; 0 when nothing was lost."""
    parser = Parser(
        prog="powercut",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cuts", metavar="N", type=positive, default=200, help="default: 200")
    parser.add_argument("--backup", action="store_true", help="the card has a backup unit")
    add_campaign_arguments(parser, "card")
    arguments = parser.parse_args()
    config = BACKUP if arguments.backup else CONFIG
    lives = partial(live, kind=BackupLives) if arguments.backup else live
    todo = tasks(arguments.seed, arguments.cuts)
    seeds(parser, arguments.seed, len(todo))
    print(f"SEED={arguments.seed}", flush=True)
    heartbeat = Heartbeat()
    seen: Counter = Counter()
    cards = failed = 0
    began = time.monotonic()
    try:
        if not is_built(config):
            print("building a controller, which takes minutes", flush=True)
        build_controller(config)  # before several processes need it
        with in_order(lives, todo, arguments.processes) as died:
            for (_, cuts), one in zip(todo, died, strict=True):
                if one.error:
                    failed += 1
                    print(one.trace if arguments.verbose else one.error, file=sys.stderr)
                    again = f"make powercut CUTS={cuts} SEED={one.seed}"
                    again += " BACKUP=1" if arguments.backup else ""
                    print(f"repeat with: {again}", file=sys.stderr, flush=True)
                    if not arguments.keep_going:
                        return 1
                    continue
                cards += 1
                seen += one.seen
                if arguments.verbose:
                    print(f"{one.seed}: {dict(one.seen)}", flush=True)
                else:
                    heartbeat.print(f"{cards} cards, {seen['lives'] - cards} cuts")
    except KeyboardInterrupt:
        report(seen, cards, time.monotonic() - began, "interrupted")
        print(f"powercut: interrupted after {cards} of {len(todo)} cards", file=sys.stderr)
        return INTERRUPTED
    if failed:
        report(seen, cards, time.monotonic() - began, f"{failed} more cards have failed")
        return 1
    bound = 3 / (seen["lives"] - cards)
    report(
        seen,
        cards,
        time.monotonic() - began,
        f"nothing lost: with 95 % confidence a cut loses something in less than {bound:.2%} of all",
    )
    return 0


if __name__ == "__main__":
    sys.exit(program("powercut", main))
