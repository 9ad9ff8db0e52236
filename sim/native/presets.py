"""Drives of the published measurements (Fujitsu, "RAID Controller Performance 2016", "Measurement
environment"), with the drive's own cache on.

``python -m sim.native.fit`` prints how the models compare with the publication. The numbers below
each "fitted" come from its ``--search``. The other numbers are from data sheets, or typical of the
class.
"""

from sim.native.parameters import (
    MEBIBYTE,
    MICROSECOND,
    MILLISECOND,
    DriveParameters,
    Hdd,
    Ssd,
    link_rate,
)

GIGABYTE = 1_000_000_000


def _blocks(gigabytes: int) -> int:
    return gigabytes * GIGABYTE // 4096


SATA_6G_HDD = Hdd(
    capacity=_blocks(1000),
    rate=link_rate(6),
    half_duplex=True,
    command_ps=50 * MICROSECOND,
    status_ps=1 * MICROSECOND,
    cache_blocks=64 * MEBIBYTE // 4096,
    revolution_ps=60_000 * MILLISECOND // 7200,
    seek_linear_ps=9 * MILLISECOND,
    read_ahead_blocks=8 * MEBIBYTE // 4096,
    # fitted
    settle_ps=1_076_480_000,
    seek_root_ps=10_764_800_000,
    write_settle_ps=287_742_182,
    read_window=32,
    write_window=23,
    media_rate=108 * MEBIBYTE,
)
"""7200 rpm, 1000 GB."""

SAS_12G_HDD = Hdd(
    capacity=_blocks(450),
    rate=link_rate(12),
    command_ps=20 * MICROSECOND,
    status_ps=500_000,
    revolution_ps=60_000 * MILLISECOND // 15_000,
    seek_linear_ps=3 * MILLISECOND,
    read_ahead_blocks=16 * MEBIBYTE // 4096,
    # fitted
    settle_ps=312_179_200,
    seek_root_ps=4_036_800_000,
    write_settle_ps=348_000_000,
    read_window=19,
    write_window=77,
    cache_blocks=751,
    media_rate=237 * MEBIBYTE,
)
"""15000 rpm, 450 GB."""

SATA_6G_SSD = Ssd(
    capacity=_blocks(400),
    rate=link_rate(6),
    half_duplex=True,
    status_ps=500_000,
    cache_blocks=1024,
    dies=32,
    # fitted
    read_ps=267_182_604,
    program_ps=286_917_646,
    random_read_ps=103_565_787,
    random_program_ps=106_961_614,
    command_ps=21_690_562,
)
"""400 GB."""

SAS_12G_SSD = Ssd(
    capacity=_blocks(400),
    rate=link_rate(12),
    status_ps=200_000,
    cache_blocks=1024,
    dies=32,
    command_ps=2 * MICROSECOND,
    # fitted
    read_ps=131_500_000,
    program_ps=297_500_000,
    random_read_ps=62_151_198,
    random_program_ps=98_014_561,
    lookup_ps=70_300_101,
)
"""400 GB."""

PRESETS: dict[str, DriveParameters] = {
    "SATA-6G-HDD": SATA_6G_HDD,
    "SAS-12G-HDD": SAS_12G_HDD,
    "SATA-6G-SSD": SATA_6G_SSD,
    "SAS-12G-SSD": SAS_12G_SSD,
}
