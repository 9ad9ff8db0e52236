"""A stock Linux uses the simulated card.

    .venv/bin/python -m sw.guest [--quick] [--steps NAME ..] [--seed N] [--out DIR]

It boots Debian's kernel in Debian's QEMU, with the simulated controller as an NVMe device on its
PCI bus. Debian's programs use the card: inbox driver, nvme-cli, ext4, fio. The exit status is 1
after the first step that fails, and 2 when the run cannot begin.
"""

import sys
import time
from pathlib import Path

from sim import isal
from sim.checkout import BUILD
from sim.cli import Parser, program, reader_has_gone, reason, seed
from sim.native.harness import HarnessError
from sw.guest import packages
from sw.guest.machine import MachineError
from sw.guest.scenario import Reporter, StepError, started
from sw.guest.steps import FULL_SCALE, QUICK, STEPS


def _arguments():
    names = [step.name for step in STEPS]
    parser = Parser(
        prog="guest",
        description="A stock Linux in QEMU uses the simulated card as its NVMe device.",
        epilog=f"Steps: {', '.join(names)}. Missing Debian packages are installed when run as "
        "root, otherwise named.",
    )
    parser.add_argument("--quick", action="store_true", help="the short form")
    parser.add_argument("--steps", nargs="+", choices=names, metavar="NAME",
                        help="only these, and what they need")
    parser.add_argument("--seed", type=seed, default=1, help="of everything that is drawn (1)")
    parser.add_argument("--out", type=Path, default=BUILD / "guest",
                        help="directory for kernel and logs (build/guest)")
    return parser.parse_args()


def run(arguments) -> int:
    """Runs the steps and returns the exit status."""
    begin = time.monotonic()
    chosen = arguments.steps or (QUICK if arguments.quick else [step.name for step in STEPS])
    wanted = {"boot", *chosen}.union(*(step.needs for step in STEPS if step.name in chosen))
    steps = [step for step in STEPS if step.name in wanted]
    directory = arguments.out.resolve()
    installed, kernel = packages.prepare(directory)
    if installed:
        print(f"installed {' '.join(installed)}", flush=True)
    print(f"{kernel.image.name}, seed {arguments.seed}; building the card may take minutes",
          flush=True)
    scale = 1 if arguments.quick else FULL_SCALE
    with started(kernel, directory, arguments.seed, scale=scale) as guest:
        report = Reporter()
        for step in steps:
            try:
                report("PASS", step, guest.perform(step))
            except (StepError, HarnessError) as error:
                report("FAIL", step, str(error))
                print(f"guest: {step.name} failed, see {directory / 'console.log'}",
                      file=sys.stderr)
                return 1
    print(f"all {len(steps)} steps passed in {time.monotonic() - begin:.0f} s")
    return 0


def main() -> int:
    """Command line."""
    try:
        return run(_arguments())
    except (OSError, ValueError, packages.MissingPackagesError, isal.MissingLibraryError,
            MachineError) as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone():
            raise
        print(f"guest: {reason(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(program("guest", main))
