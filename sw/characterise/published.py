"""Published results, as facts with their source, that the characterisation is compared with.

FJ16: Fujitsu, "RAID Controller Performance 2016", white paper, version 1.0d, 2016-08-29. 1 MB/s is
2**20 bytes/s.
"""

from dataclasses import dataclass

from hdl.flow.geometry import Level


@dataclass(frozen=True)
class Case:
    """One published result and the setup that repeats it.

    Parameters
    ----------
    id
        Name of the result; several cases may share it.
    setup
        One line for people.
    level, drives, drive
        RAID level, number of drives and the drive preset's name.
    profile
        Name of the load profile.
    published
        MB/s, or None for a point that was not published.
    source
        Document and section.
    """

    id: str
    setup: str
    level: Level
    drives: int
    drive: str
    profile: str
    published: float | None
    source: str


SAS_SSD = "SAS-12G-SSD"
SAS_HDD = "SAS-12G-HDD"
SAS_SSD_WRITE = 420
SAS_HDD_SEQUENTIAL = 237
FJ16_RESULTS = "FJ16, results: sequential, random"

CASES = (
    Case("R1", "RAID 0, 8 SAS-12G-SSD", Level.RAID0, 8, SAS_SSD, "Streaming", 5900, FJ16_RESULTS),
    Case("R1", "RAID 10, 8 SAS-12G-SSD", Level.RAID10, 8, SAS_SSD, "Streaming", 5900, FJ16_RESULTS),
    Case("R1", "RAID 5, 8 SAS-12G-SSD", Level.RAID5, 8, SAS_SSD, "Streaming", 5900, FJ16_RESULTS),
    Case("R4", "RAID 5, 24 SAS-12G-SSD", Level.RAID5, 24, SAS_SSD, "Streaming", 5900, FJ16_RESULTS),
    Case(
        "R5",
        "RAID 0, 8 SAS-12G-SSD",
        Level.RAID0,
        8,
        SAS_SSD,
        "Restore",
        8 * SAS_SSD_WRITE,
        FJ16_RESULTS,
    ),
    Case(
        "R6",
        "RAID 5, 8 SAS-12G-HDD",
        Level.RAID5,
        8,
        SAS_HDD,
        "Streaming",
        7 * SAS_HDD_SEQUENTIAL,
        FJ16_RESULTS,
    ),
    Case(
        "R6",
        "RAID 5, 8 SAS-12G-HDD",
        Level.RAID5,
        8,
        SAS_HDD,
        "Restore",
        7 * SAS_HDD_SEQUENTIAL,
        FJ16_RESULTS,
    ),
    Case(
        "R14", "RAID 0, 8 SAS-12G-SSD", Level.RAID0, 8, SAS_SSD, "File server", 2848, FJ16_RESULTS
    ),
    Case("P1", "RAID 5, 8 SAS-12G-SSD", Level.RAID5, 8, SAS_SSD, "File copy", None, ""),
    Case("P2", "RAID 5, 8 SAS-12G-SSD", Level.RAID5, 8, SAS_SSD, "Database", None, ""),
)
