"""Fits the drive presets to published measurements, and shows how close they are.

    python -m sim.native.fit              # table: model, published, error
    python -m sim.native.fit --search     # coordinate search; prints the values for presets.py

The drive model runs alone, without a controller, under the publication's method: sequential on the
first 10 % of the LBA range, random on the next 25 %, the best over the outstanding commands (of
which a drive port carries at most 32). 1 MB is 2**20 bytes.
"""

import math
import sys
from dataclasses import dataclass

from sim.cli import Parser, program
from sim.native.models import Load, run_load
from sim.native.parameters import SECOND, DriveParameters, Hdd
from sim.native.presets import PRESETS

DEPTHS = (1, 2, 4, 8, 16, 32)
SEARCH_DEPTHS = (32,)
BLOCKS_PER_MEGABYTE = 256
TOLERANCE_PERCENT = 3.0
FIRST_STEP = 0.16
LAST_STEP = 0.002


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One published column."""

    name: str
    read_percent: int
    blocks: int
    sequential: bool
    in_megabytes: bool

    def load(self, drive: DriveParameters, depth: int) -> Load:
        """The profile on a drive. It lasts long enough for a stable rate."""
        part = drive.capacity // 100
        mechanical = isinstance(drive, Hdd)
        random_seconds = (60, 200) if mechanical else (1, 2)
        warm_up, measure = (3, 6) if self.sequential and mechanical else random_seconds
        return Load(
            depth=depth,
            read_percent=self.read_percent,
            blocks=self.blocks,
            sequential=self.sequential,
            first=0 if self.sequential else 10 * part,
            range=10 * part if self.sequential else 25 * part,
            warm_up_ps=warm_up * SECOND,
            measure_ps=measure * SECOND,
        )

    def measure(self, drive: DriveParameters, depths: tuple[int, ...] = DEPTHS) -> float:
        """The best rate over ``depths``, in the column's unit."""
        best = max(run_load(drive, self.load(drive, depth)).iops for depth in depths)
        return best * self.blocks / BLOCKS_PER_MEGABYTE if self.in_megabytes else best


PROFILES = (
    Profile(name="seq. read 64 kB", read_percent=100, blocks=16, sequential=True,
            in_megabytes=True),
    Profile(name="seq. write 64 kB", read_percent=0, blocks=16, sequential=True,
            in_megabytes=True),
    Profile(name="8 kB, 67 % read", read_percent=67, blocks=2, sequential=False,
            in_megabytes=False),
    Profile(name="64 kB, 67 % read", read_percent=67, blocks=16, sequential=False,
            in_megabytes=False),
    Profile(name="64 kB, 50 % read", read_percent=50, blocks=16, sequential=False,
            in_megabytes=False),
)  # fmt: skip

PUBLISHED = {
    "SATA-6G-HDD": (108, 108, 302, 258, 243),
    "SAS-12G-HDD": (237, 237, 744, 608, 631),
    "SATA-6G-SSD": (468, 436, 41005, 5268, 5206),
    "SAS-12G-SSD": (950, 420, 55865, 7599, 6715),
}
"""Fujitsu, "RAID Controller Performance 2016", single drives, disk cache on: `PROFILES`' order."""

HDD_KNOBS = ("settle_ps", "seek_root_ps", "write_settle_ps", "read_window", "write_window",
             "cache_blocks", "media_rate")
SSD_KNOBS = ("read_ps", "program_ps", "random_read_ps", "random_program_ps", "lookup_ps",
             "command_ps")


def errors(drive: DriveParameters, name: str, depths: tuple[int, ...] = DEPTHS) -> list[float]:
    """Percent by which the model is above the publication, profile by profile."""
    return [
        100 * (profile.measure(drive, depths) / published - 1)
        for profile, published in zip(PROFILES, PUBLISHED[name], strict=True)
    ]


def search(drive: DriveParameters, name: str) -> DriveParameters:
    """Coordinate search: moves one parameter at a time while the squared errors shrink."""
    knobs = HDD_KNOBS if isinstance(drive, Hdd) else SSD_KNOBS

    def cost(candidate: DriveParameters) -> float:
        return sum(error**2 for error in errors(candidate, name, SEARCH_DEPTHS))

    best, step = cost(drive), FIRST_STEP
    while step >= LAST_STEP:
        improved = False
        for knob in knobs:
            for factor in (1 + step, 1 / (1 + step)):
                value = getattr(drive, knob)
                moved = math.ceil(value * factor) if factor > 1 else math.floor(value * factor)
                candidate = drive.changed(**{knob: max(1, moved)})
                result = cost(candidate)
                if result < best:
                    drive, best, improved = candidate, result, True
                    break
        print(f"  {name}: step {step:.4f}, root mean square error "
              f"{math.sqrt(best / len(PROFILES)):.2f} %", flush=True)
        if not improved:
            step /= 2
    for knob in knobs:
        print(f"    {knob}={getattr(drive, knob):_},")
    return drive


def table(drives: dict[str, DriveParameters]) -> bool:
    """Prints model, publication and error. Returns whether every error is within the tolerance."""
    good = True
    print(f"{'drive':12} {'profile':18} {'model':>9} {'published':>9} {'error':>8}")
    for name, drive in drives.items():
        for profile, published in zip(PROFILES, PUBLISHED[name], strict=True):
            value = profile.measure(drive)
            error = 100 * (value / published - 1)
            good &= abs(error) <= TOLERANCE_PERCENT
            print(f"{name:12} {profile.name:18} {value:9.1f} {published:9} {error:+7.2f} %")
    return good


def main() -> int:
    """The command line. Returns the exit status."""
    parser = Parser(prog="fit", description="Fit the drive presets.")
    parser.add_argument("--search", action="store_true", help="search for better parameters")
    parser.add_argument("drives", nargs="*", help=f"of {', '.join(PRESETS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.drives) - set(PRESETS)
    if unknown:
        names, known = ", ".join(sorted(unknown)), ", ".join(PRESETS)
        parser.error(f"no drive is called {names}; there are {known}")
    drives = {name: PRESETS[name] for name in arguments.drives or PRESETS}
    if arguments.search:
        drives = {name: search(drive, name) for name, drive in drives.items()}
    if table(drives):
        return 0
    print(f"fit: an error is above {TOLERANCE_PERCENT} %", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(program("fit", main))
