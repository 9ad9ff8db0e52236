"""The events of a campaign beside random load, by name, so that each can be left out or run alone.
"""

import argparse
from collections.abc import Iterable

FEATURES = {
    "medium": "blocks that cannot be read until they are written",
    "hang": "commands of a drive never end, or only aborts, a reset or nothing at all end them",
    "late": "commands of a drive end late, up to more than the ladder allows",
    "restart": "drives begin anew by themselves, and have forgotten what they had not flushed",
    "torn": "all drives of an array begin anew at once; what is read and flushed then stays",
    "told": "drives that an array needs begin anew under writes; the host is told of it",
    "pull": "drives are pulled; some come back with old data",
    "refused": "drives refuse to write some blocks",
    "bursts": "faults of several drives, and of several arrays, at the same moment",
    "replace": "failed drives are replaced or taken back, and rebuilt under load",
    "migrations": "live members move to other drives under load",
    "spares": "hot spares step in by themselves",
    "jobs": "the host starts, stops and resumes jobs of every kind under load",
    "mid-job": "faults while a rebuild, a migration, a job of the host or a first RESYNC goes on",
    "several": "several arrays at once; no hang of one is felt by another",
    "volumes": "several volumes an array",
    "sectors": "volumes of 512-byte sectors",
    "garbage": "arrays are created over whatever the drives hold, and used while they initialise",
    "unfinished": "a drive is replaced before its array's first RESYNC has ended",
    "early": "a drive goes before such an array has its redundancy: data is right, or fails",
    "zero": "arrays are begun with zeros in every block",
    "delete": "volumes and arrays are deleted and created under load",
    "wipe": "a job zeroes an array that has been used, while its drives fail",
    "resets": "the controller is disabled, shut down or reset under load, or its link is",
    "power": "all drives lose power at once; what was flushed must be there again",
    "mid-power": "that happens in the middle of a rebuild, a migration or a resync",
    "done": "that happens once more, right after the resync or rebuild that follows is done",
    "mended": "that happens right after a REPAIR, or a CHECK that follows one that was stopped",
    "degraded": "that happens to an array without a member, after or amid writes with FUA",
    "ruined": "that happens to rows past repair, or with writes that failed, written with FUA",
    "places": "that happens as a migration is done, after reads and writes with FUA",
    "past": "reads, writes and flushes past what the level tolerates",
    "failing": "drives go under load until blocks are lost; what ends well is right and stored",
    "salvage": "an array fails amid a rebuild or a migration; the host salvages what is left",
    "fetch": "the host cannot give some data of a write: it fails, and each block is whole",
    "others": "Write Zeroes, Verify, Compare and Dataset Management among the load",
    "ranges": "Dataset Management with up to 256 ranges, of which some end beyond the volume",
    "aborts": "the host aborts commands under load",
    "queues": "queues are deleted and created again under load, and as drives restart",
    "master": "bus mastering goes off and on under load: nothing leaves, and nothing is lost",
    "masks": "MSI-X, its function mask and its vectors are switched under load",
    "link": "some runs on a link that makes trouble: few credits, waits, completions in any order",
    "memory": "runs whose host memory lies below 4 GiB, far above, or across",
    "wrap": "some runs in which the card's clock wraps, as it does every 13 days",
    "forget": "some runs on drives that have lost their cache when their port is reset",
    "sizes": "some runs on other controllers: narrow, starved, wide, deep, kept, plain, random",
}
"""Names and their meanings."""

ALL = frozenset(FEATURES)


def help_text() -> str:
    """The names with their meanings, one on each line."""
    width = max(map(len, FEATURES))
    return "\n".join(f"  {name:{width}}  {text}" for name, text in FEATURES.items())


def names(text: str) -> frozenset[str]:
    """Type of an argument: names with commas between."""
    chosen = frozenset(filter(None, text.split(",")))
    if not chosen or not chosen <= ALL:
        unknown = ", ".join(sorted(chosen - ALL)) or "no name"
        raise argparse.ArgumentTypeError(
            f"{unknown}: take some of these, with commas between: {','.join(FEATURES)}"
        )
    return chosen


def selected(only: Iterable[str], without: Iterable[str]) -> frozenset[str]:
    """The features that are left: ``only`` these (all if there are none), but not ``without``
    those.

    Raises `ValueError` if none is left.
    """
    features = (frozenset(only) or ALL) - frozenset(without)
    if not features:
        raise ValueError("no feature is left: without a feature there is no fault to survive")
    return features
