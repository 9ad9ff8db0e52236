"""The expected rate of a setup: the lowest of the limits of host link, drives and load.

Nothing here looks at the controller. Drive rates come from the drive model run alone with the
drive's share of the load. Drive accesses per host write are the textbook's. For random writes they
are 1 without redundancy, one per copy with mirrors, and with parity a read and a write of the block
and of each parity. For sequential writes with parity they are the parities of full stripes.
"""

from dataclasses import dataclass
from functools import cache

from hdl.config import BLOCK_BYTES
from hdl.flow.geometry import Level
from sim.native.models import Load as DriveLoad
from sim.native.models import run_load
from sim.native.parameters import MILLISECOND, SECOND, DriveParameters, Hdd, LinkParameters
from sw.characterise.limits import link_limit
from sw.workload.generator import Load
from sw.workload.profiles import RANDOM_SHARE, SEQUENTIAL_SHARE
from sw.workload.statistics import MIB

PARITIES = {Level.RAID5: 1, Level.RAID6: 2, Level.RAIDTP: 3}
DRIVE_TAGS = 32


@dataclass(frozen=True)
class Prediction:
    """The lowest limit and its name."""

    mb_s: float
    binds: str
    """``host link``, ``drives`` or ``outstanding I/Os``."""


@cache
def _drive_alone(
    drive: DriveParameters, depth: int, read_percent: int, blocks: int, sequential: bool
) -> tuple[float, float]:
    """Accesses a second and mean latency in seconds of one drive."""
    slow = isinstance(drive, Hdd)
    span = drive.capacity
    result = run_load(
        drive,
        DriveLoad(
            depth=depth,
            read_percent=read_percent,
            blocks=blocks,
            sequential=sequential,
            first=0 if sequential else int(span * SEQUENTIAL_SHARE),
            range=int(span * (SEQUENTIAL_SHARE if sequential else RANDOM_SHARE)),
            warm_up_ps=2 * SECOND if slow else 100 * MILLISECOND,
            measure_ps=4 * SECOND if slow else 200 * MILLISECOND,
        ),
    )
    return result.iops, result.latency_ps / SECOND


def _accesses_of_write(level: Level, drives: int, sequential: bool) -> tuple[float, float]:
    """Drive reads and drive writes for one host write."""
    parities = PARITIES.get(level, 0)
    if level == Level.RAID1:
        return 0.0, drives
    if level == Level.RAID10:
        return 0.0, 2.0
    if sequential:
        return 0.0, drives / (drives - parities)
    return (1.0 + parities if parities else 0.0), 1.0 + parities


def predict(
    level: Level, drives: int, drive: DriveParameters, link: LinkParameters, load: Load
) -> Prediction:
    """The limits of ``load`` on an array of ``drives`` drives behind ``link``."""
    profile = load.profile
    sequential = not profile.random
    reads = profile.read_share
    reads_of_write, writes_of_write = _accesses_of_write(level, drives, sequential)
    drive_reads = reads + (1 - reads) * reads_of_write
    accesses = drive_reads + (1 - reads) * writes_of_write
    share = load.outstanding * accesses / drives
    blocks = profile.block_bytes // BLOCK_BYTES
    depth = min(max(round(share), 1), DRIVE_TAGS)
    percent = round(100 * drive_reads / accesses)
    iops, _ = _drive_alone(drive, depth, percent, blocks, sequential)
    _, latency = _drive_alone(drive, 1, percent, blocks, sequential)
    usable = drives
    if sequential and reads and level in PARITIES and isinstance(drive, Hdd):
        usable = drives - PARITIES[level]  # parity passes under the head unread
    limits = {
        "host link": link_limit(link, reads),
        "drives": usable * iops / accesses * profile.block_bytes,
        "outstanding I/Os": load.outstanding * profile.block_bytes / latency,
    }
    binds = min(limits, key=lambda name: limits[name])
    return Prediction(limits[binds] / MIB, binds)
