"""Theoretical and practical throughput of storage and host interfaces.

Theoretical throughput is line rate times lanes less the line code. Practical throughput is 90 % of
that. Source of the method and of the published column: Fujitsu, "RAID Controller Performance 2016",
section "Controller interfaces and their throughput limits". 1 MB/s is 2**20 bytes/s.
"""

from dataclasses import dataclass

MIB = 1 << 20
PRACTICAL_SHARE = 0.90
CODE_8B10B = 8 / 10
CODE_128B130B = 128 / 130


@dataclass(frozen=True)
class Interface:
    """One interface.

    Parameters
    ----------
    name
        As published.
    line_gbit
        Line rate of a lane, Gbit/s.
    lanes
        Lanes.
    code
        Share of the line rate left by the line code.
    published
        Theoretical and practical MB/s as printed.
    """

    name: str
    line_gbit: float
    lanes: int
    code: float
    published: tuple[int, int]

    @property
    def theoretical(self) -> float:
        """Throughput after the line code, in MB/s."""
        return self.line_gbit * 1e9 * self.lanes * self.code / 8 / MIB

    @property
    def practical(self) -> float:
        """Throughput that the published method counts on, in MB/s."""
        return self.theoretical * PRACTICAL_SHARE


INTERFACES = (
    Interface("SAS/SATA 3G", 3, 1, CODE_8B10B, (286, 257)),
    Interface("SAS/SATA 6G", 6, 1, CODE_8B10B, (572, 515)),
    Interface("SAS 12G", 12, 1, CODE_8B10B, (1144, 1030)),
    Interface("SAS/SATA 3G x4", 3, 4, CODE_8B10B, (1144, 1030)),
    Interface("SAS/SATA 3G 2 x4", 3, 8, CODE_8B10B, (2289, 2060)),
    Interface("SAS/SATA 6G x4", 6, 4, CODE_8B10B, (2289, 2060)),
    Interface("SAS/SATA 6G 2 x4", 6, 8, CODE_8B10B, (4578, 4120)),
    Interface("SAS 12G x4", 12, 4, CODE_8B10B, (4578, 4120)),
    Interface("SAS 12G 2 x4", 12, 8, CODE_8B10B, (9155, 8240)),
    Interface("PCIe 1.0 x4", 2.5, 4, CODE_8B10B, (954, 858)),
    Interface("PCIe 1.0 x8", 2.5, 8, CODE_8B10B, (1907, 1716)),
    Interface("PCIe 2.0 x4", 5, 4, CODE_8B10B, (1907, 1716)),
    Interface("PCIe 2.0 x8", 5, 8, CODE_8B10B, (3815, 3433)),
    Interface("PCIe 3.0 x4", 8, 4, CODE_128B130B, (3756, 3380)),
    Interface("PCIe 3.0 x8", 8, 8, CODE_128B130B, (7512, 6761)),
)
