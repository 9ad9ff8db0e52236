"""Rows of arrays with all their drives: rates, latencies, speed of the simulation."""

from collections.abc import Callable

from hdl.config import board
from hdl.flow.geometry import Level
from sim.native.parameters import MICROSECOND, NANOSECOND
from sim.native.presets import SATA_6G_SSD as SSD
from sw.bench.run import LINK, Measurement, load_card
from sw.characterise.limits import (
    duplex_limit,
    read_limit,
    read_stream_limit,
    write_limit,
    write_stream_limit,
)
from sw.driver.commands import BLOCK_BYTES, CQE_BYTES, SQE_BYTES
from sw.driver.queue import PRP_ENTRY_BYTES
from sw.workload.profiles import KIB, Profile
from sw.workload.statistics import MIB

READ_IOPS_LIMIT = 1_680_000
WRITE_IOPS_LIMIT = 400_000
ADDED_LATENCY_LIMIT_US = 2.03
OWN_LATENCY_LIMIT_NS = 600
DRIVE_LATENCY_NS = 20_000
SPEED_LIMITS = {8: 150_000, 24: 100_000}
PORTS = (8, 24)
MSI_BYTES = 4

Figure = tuple[float, str, float, float]
"""Value, unit, limit and ratio of a row."""

SEQUENTIAL_READ = Profile("sequential read 64 KiB", False, 1.0, 64 * KIB)
SEQUENTIAL_WRITE = Profile("sequential write 64 KiB", False, 0.0, 64 * KIB)
RANDOM_READ = Profile("random read 4 KiB", True, 1.0, 4 * KIB)
MIXED = Profile("random mixed 64 KiB", True, 0.5, 64 * KIB)
RANDOM_WRITE = Profile("random write 4 KiB", True, 0.0, 4 * KIB)
OUTSTANDING = {8: 128, 24: 256}
RANDOM_OUTSTANDING = 256
PAIR_OUTSTANDING = 64
PAIR_TIME = 4
"""How many times longer than other rows. A drive does one access where an ideal drive does many."""


def data_rate(profile: Profile, measured: Measurement) -> float:
    """User data over the link in the measured time, in MB/s.

    Whole stripes complete at once. So a count of completions would depend on where the interval
    begins, and the link's payload counter does not. Queue entries and PRP lists are subtracted.
    """
    reads = profile.read_share == 1
    pages = profile.block_bytes // BLOCK_BYTES
    entries = CQE_BYTES + MSI_BYTES if reads else SQE_BYTES + PRP_ENTRY_BYTES * (pages - 1)
    payload = measured.counted["up_payload_bytes" if reads else "down_payload_bytes"]
    data = payload * profile.block_bytes / (profile.block_bytes + entries)
    return data / measured.result.seconds / MIB


def host_limit(profile: Profile, ports: int) -> float:
    """The lower of the limits of the link and of its stream, in MB/s."""
    of_link, of_stream = (
        (read_limit, read_stream_limit)
        if profile.read_share == 1
        else (write_limit, write_stream_limit)
    )
    return min(of_link(LINK), of_stream(LINK, board(ports))) / MIB


def _throughput(ports: int, level: Level, profile: Profile, share: float) -> Figure:
    value = data_rate(profile, load_card(ports, level, profile, OUTSTANDING[ports], share))
    limit = host_limit(profile, ports)
    return value, "MB/s", limit, value / limit


def _duplex(ports: int, share: float) -> Figure:
    """Reads and writes at once, against the rate that fits both ways in the measured shares."""
    measured = load_card(ports, Level.RAID0, MIXED, OUTSTANDING[ports], share)
    up, down = (measured.counted[f"{way}_payload_bytes"] for way in ("up", "down"))
    pages = MIXED.block_bytes // BLOCK_BYTES
    # Each access also brings its queue entry and PRP list down.
    entries = (up + down) / MIXED.block_bytes * (SQE_BYTES + PRP_ENTRY_BYTES * (pages - 1))
    data = up + down - entries
    value = data / measured.result.seconds / MIB
    limit = duplex_limit(LINK, board(ports), up / (up + down)) / MIB
    return value, "MB/s", limit, value / limit


def _iops(ports: int, profile: Profile, limit: float, share: float) -> Figure:
    value = load_card(ports, Level.RAID5, profile, RANDOM_OUTSTANDING, share).result.io_s
    return value, "IO/s", limit, value / limit


def added_latency_us(measured: Measurement) -> float:
    """What the card adds to the time that drives take for reads, one at a time."""
    drained = measured.drained
    drive_us = drained["latency_sum_ps"] / (drained["reads"] * MICROSECOND)
    return measured.result.latency.mean - drive_us


def _added_latency(share: float) -> Figure:
    added = added_latency_us(
        load_card(8, Level.RAID5, RANDOM_READ, 1, share, latency_ns=DRIVE_LATENCY_NS)
    )
    return added, "us", ADDED_LATENCY_LIMIT_US, ADDED_LATENCY_LIMIT_US / added


def _own_latency(share: float, *parts: str, aside_ns: float = 0.0) -> Figure:
    """Mean time of reads inside the controller: the sum of ``parts`` (`sim/native/phases.hpp`)."""
    measured = load_card(8, Level.RAID5, RANDOM_READ, 1, share, latency_ns=DRIVE_LATENCY_NS)
    drained = measured.drained
    spent = sum(drained[part] for part in parts) / (drained["reads_timed"] * NANOSECOND)
    own = spent - aside_ns
    return own, "ns", OWN_LATENCY_LIMIT_NS, OWN_LATENCY_LIMIT_NS / own


def _data_to_interrupt(share: float) -> Figure:
    """The block's own time on the way to the hard block belongs to the link and is subtracted."""
    block_ns = BLOCK_BYTES / read_stream_limit(LINK, board()) * 1e9
    return _own_latency(share, "send_ps", "interrupt_ps", aside_ns=block_ns)


def _pair(profile: Profile, share: float) -> Figure:
    """Reads of a mirrored pair against twice those of one drive with half as many outstanding."""
    ports = PORTS[0]
    alone = load_card(
        ports, Level.JBOD, profile, PAIR_OUTSTANDING // 2, share * PAIR_TIME, drive=SSD, members=1
    ).result
    pair = load_card(
        ports, Level.RAID1, profile, PAIR_OUTSTANDING, share * PAIR_TIME, drive=SSD, members=2
    ).result
    return pair.io_s, "IO/s", 2 * alone.io_s, pair.io_s / (2 * alone.io_s)


def _speed(ports: int, share: float) -> Figure:
    level, profile = Level.RAID6, SEQUENTIAL_WRITE
    measured = load_card(ports, level, profile, OUTSTANDING[ports], share)
    value = measured.cycles / measured.cpu_seconds
    return value, "cycles/s", SPEED_LIMITS[ports], value / SPEED_LIMITS[ports]


def rows() -> dict[str, Callable[[float], Figure]]:
    """The rows by name."""
    rows: dict[str, Callable[[float], Figure]] = {}
    for ports in PORTS:
        for level in (Level.RAID0, Level.RAID5, Level.RAID6):
            name = f"read-seq-{level.name.lower()}-{ports}"
            rows[name] = lambda share, p=ports, v=level: _throughput(p, v, SEQUENTIAL_READ, share)
        for level in (Level.RAID5, Level.RAID6):
            name = f"write-seq-{level.name.lower()}-{ports}"
            rows[name] = lambda share, p=ports, v=level: _throughput(p, v, SEQUENTIAL_WRITE, share)
        rows[f"read-4k-random-{ports}"] = lambda share, p=ports: _iops(
            p, RANDOM_READ, READ_IOPS_LIMIT, share
        )
        rows[f"write-4k-random-raid5-{ports}"] = lambda share, p=ports: _iops(
            p, RANDOM_WRITE, WRITE_IOPS_LIMIT, share
        )
        rows[f"simulation-speed-{ports}"] = lambda share, p=ports: _speed(p, share)
    rows["read-seq-raid10-8"] = lambda share: _throughput(8, Level.RAID10, SEQUENTIAL_READ, share)
    rows["read-4k-random-raid1-2"] = lambda share: _pair(RANDOM_READ, share)
    rows["read-seq-raid1-2"] = lambda share: _pair(SEQUENTIAL_READ, share)
    rows["duplex-raid0-8"] = lambda share: _duplex(8, share)
    rows["read-4k-added-latency"] = _added_latency
    rows["doorbell-to-drive-command"] = lambda share: _own_latency(share, "fetch_ps", "command_ps")
    rows["last-data-to-interrupt"] = _data_to_interrupt
    return rows
