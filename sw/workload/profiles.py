"""The load profiles of the published measurements.

Source: Fujitsu, "RAID Controller Performance 2016", section "Measurement method".
"""

from dataclasses import dataclass

from sw.driver.commands import BLOCK_BYTES

KIB = 1024


@dataclass(frozen=True)
class Profile:
    """The accesses that a load generator sends.

    Parameters
    ----------
    name
        As published.
    random
        Random addresses, otherwise sequential.
    read_share
        Fraction of reads, 0..1.
    block_bytes
        Bytes of each access.
    """

    name: str
    random: bool
    read_share: float
    block_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.read_share <= 1:
            raise ValueError(f"read_share must be 0..1, not {self.read_share}")
        if self.block_bytes <= 0 or self.block_bytes % BLOCK_BYTES:
            raise ValueError(
                f"block_bytes must be a multiple of {BLOCK_BYTES}, not {self.block_bytes}"
            )


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("File copy", True, 0.50, 64 * KIB),
        Profile("File server", True, 0.67, 64 * KIB),
        Profile("Database", True, 0.67, 8 * KIB),
        Profile("Streaming", False, 1.00, 64 * KIB),
        Profile("Restore", False, 0.00, 64 * KIB),
    )
}

OUTSTANDING = tuple(1 << n for n in range(10))
"""Outstanding I/Os of the published method: 1..512 in powers of two."""

SEQUENTIAL_SHARE = 0.10
"""Sequential accesses use the first 10 % of the volume."""

RANDOM_SHARE = 0.25
"""Random accesses use the next 25 % of the volume."""
