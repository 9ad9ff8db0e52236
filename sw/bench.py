"""How fast the controller is, as ratios to what bounds it.

    python -m sw.bench [NAME ...] [--list] [--quick]

Each row runs load on the simulated card: 256 bits, 250 MHz, PCIe 3.0 x8, MPS 256, MRRS 512, ideal
drives, 64 KiB strips, 4 MiB of lines on chip. The mirrored pairs (``raid1-2``) are of SATA SSDs,
and their limit is twice what one of them does alone. So are the drives of the rows on rebuilds: the
limits are what one drive writes alone, and the 99th percentile without a rebuild over 1 - share.
Prints a table, writes build/bench.json.
"""

import json
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hdl.array.interface import Level
from hdl.config import board
from sim.native.build import build_controller
from sim.native.parameters import (
    MICROSECOND,
    NANOSECOND,
    DriveParameters,
    Ideal,
    LinkParameters,
)
from sim.native.presets import SATA_6G_SSD as SSD
from sw.bench_rebuild import latency_during_rebuild, rebuild_rate
from sw.characterise.limits import (
    duplex_limit,
    read_limit,
    read_stream_limit,
    write_limit,
    write_stream_limit,
)
from sw.cli import Parser, positive
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import BLOCK_BYTES, CQE_BYTES, SQE_BYTES
from sw.driver.queue import PRP_ENTRY_BYTES
from sw.workload.generator import Generator, Load
from sw.workload.profiles import KIB, Profile
from sw.workload.statistics import MIB, Result

RESULTS = Path("build/bench.json")
LINK = LinkParameters()
STRIP_KIB = 64
DRIVE_BLOCKS = 1 << 20
WARM_UP_NS = 600_000
MEASURE_NS = 1_200_000
QUICK_SHARE = 0.5
READ_IOPS_LIMIT = 1_680_000
WRITE_IOPS_LIMIT = 400_000
ADDED_LATENCY_LIMIT_US = 2.0
OWN_LATENCY_LIMIT_NS = 600
DRIVE_LATENCY_NS = 20_000
SPEED_LIMITS = {8: 150_000, 24: 100_000}
PORTS = (8, 24)
MSI_BYTES = 4
DRIVE_COUNTERS = ("latency_sum_ps", "reads")


Figure = tuple[float, str, float, float]
"""Value, unit, limit and ratio of a row."""


@dataclass(frozen=True)
class Row:
    """One figure: ``ratio`` is value over limit (limit over value where less is better)."""

    name: str
    value: float
    unit: str
    limit: float
    ratio: float
    command: str


@dataclass(frozen=True)
class Measurement:
    """What a run gave, and how fast it was simulated.

    ``counted`` is of the measured time, ``drained`` of the whole run, in which every command that
    a drive was sent has ended.
    """

    result: Result
    counted: dict[str, int]
    drained: dict[str, int]
    cycles: int
    cpu_seconds: float


def _cpu_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def load_card(
    ports: int,
    level: Level,
    profile: Profile,
    outstanding: int,
    share: float,
    *,
    latency_ns: int = 0,
    drive: DriveParameters | None = None,
    members: int = 0,
) -> Measurement:
    """Runs a profile on an array over the first ``members`` ports (0: all) of a fresh card.

    ``drive`` is at every port; by default an ideal one.
    """
    drive = drive or Ideal(capacity=DRIVE_BLOCKS, latency_ps=latency_ns * NANOSECOND)
    drives = [drive] * ports
    load = Load(
        profile,
        outstanding,
        warm_up_ns=WARM_UP_NS * share,
        measure_ns=MEASURE_NS * share,
    )
    with SimulatedCard(board(ports), drives, link=LINK) as card:

        def count() -> dict[str, int]:
            totals = card.harness.statistics()
            drives = [card.harness.drive_statistics(port) for port in range(ports)]
            for name in DRIVE_COUNTERS:
                totals[name] = sum(drive[name] for drive in drives)
            return totals

        async def main() -> tuple[Result, dict[str, int], dict[str, int], int, float]:
            nvme = card.nvme
            await nvme.start(queue_pairs=4 if profile.random else 1)
            array = await raid.create_array(
                nvme, level, range(members or ports), strip_kib=STRIP_KIB
            )
            namespace = await raid.create_volume(nvme, array)
            blocks = (await nvme.namespace(namespace)).blocks
            before, cpu = count(), _cpu_seconds()
            generator = Generator(nvme, namespace, blocks, load, count)
            result = await generator.run()
            cpu = _cpu_seconds() - cpu
            drained = {name: value - before[name] for name, value in count().items()}
            return result, generator.probed, drained, drained["cycles_evaluated"], cpu

        return Measurement(*card.run(main()))


SEQUENTIAL_READ = Profile("sequential read 64 KiB", False, 1.0, 64 * KIB)
SEQUENTIAL_WRITE = Profile("sequential write 64 KiB", False, 0.0, 64 * KIB)
RANDOM_READ = Profile("random read 4 KiB", True, 1.0, 4 * KIB)
MIXED = Profile("random mixed 64 KiB", True, 0.5, 64 * KIB)
RANDOM_WRITE = Profile("random write 4 KiB", True, 0.0, 4 * KIB)
OUTSTANDING = {8: 128, 24: 256}
PAIR_OUTSTANDING = 64
PAIR_TIME = 4
"""Times as long as other rows: a drive does one access where an ideal one does many."""


def _throughput(ports: int, level: Level, profile: Profile, share: float) -> Figure:
    """User data over the link in the measured time.

    Whole stripes complete at once, so counting completions would depend on where the interval
    begins; the link's payload counter does not. Queue entries and PRP lists are taken off.
    """
    measured = load_card(ports, level, profile, OUTSTANDING[ports], share)
    reads = profile.read_share == 1
    pages = profile.block_bytes // BLOCK_BYTES
    entries = CQE_BYTES + MSI_BYTES if reads else SQE_BYTES + PRP_ENTRY_BYTES * (pages - 1)
    payload = measured.counted["up_payload_bytes" if reads else "down_payload_bytes"]
    data = payload * profile.block_bytes / (profile.block_bytes + entries)
    value = data / measured.result.seconds / MIB
    of_link, of_stream = (
        (read_limit, read_stream_limit) if reads else (write_limit, write_stream_limit)
    )
    limit = min(of_link(LINK), of_stream(LINK, board(ports))) / MIB
    return value, "MB/s", limit, value / limit


def _duplex(ports: int, share: float) -> Figure:
    """Reads and writes at once against what fits both ways in the shares that were measured."""
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
    value = load_card(ports, Level.RAID5, profile, 256, share).result.io_s
    return value, "IO/s", limit, value / limit


def _added_latency(share: float) -> Figure:
    measured = load_card(8, Level.RAID5, RANDOM_READ, 1, share, latency_ns=DRIVE_LATENCY_NS)
    drained = measured.drained
    drive_us = drained["latency_sum_ps"] / (drained["reads"] * MICROSECOND)
    added = measured.result.latency.mean - drive_us
    return added, "us", ADDED_LATENCY_LIMIT_US, ADDED_LATENCY_LIMIT_US / added


def _own_latency(share: float, *parts: str, aside_ns: float = 0.0) -> Figure:
    """Mean time of reads inside the controller: the sum of ``parts`` (`sim/native/phases.hpp`)."""
    measured = load_card(8, Level.RAID5, RANDOM_READ, 1, share, latency_ns=DRIVE_LATENCY_NS)
    drained = measured.drained
    spent = sum(drained[part] for part in parts) / (drained["reads_timed"] * NANOSECOND)
    own = spent - aside_ns
    return own, "ns", OWN_LATENCY_LIMIT_NS, OWN_LATENCY_LIMIT_NS / own


def _data_to_interrupt(share: float) -> Figure:
    """The block's own time on the way to the hard block is the link's, and left aside."""
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


def _rows() -> dict[str, Callable[[float], Figure]]:
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
    rows["rebuild-raid5-8"] = rebuild_rate
    rows["read-4k-p99-in-rebuild"] = latency_during_rebuild
    rows["read-4k-added-latency"] = _added_latency
    rows["doorbell-to-drive-command"] = lambda share: _own_latency(share, "fetch_ps", "command_ps")
    rows["last-data-to-interrupt"] = _data_to_interrupt
    return rows


ROWS = _rows()


def _ports_of(name: str) -> int:
    """Drive ports of the controller that a row runs on: the number at the end of its name if it is
    one of `PORTS`, else the least."""
    number = name.rpartition("-")[2]
    return next((ports for ports in PORTS if number == str(ports)), PORTS[0])


def measure(name: str, share: float) -> Row:
    """Runs the row ``name``; ``share`` shortens the simulated time."""
    value, unit, limit, ratio = ROWS[name](share)
    return Row(name, value, unit, limit, ratio, f"make bench BENCH={name}")


def print_rows(console: Console, rows: list[Row]) -> None:
    """Prints the rows as a table."""
    table = Table(title="Figures and what bounds them")
    table.add_column("name")
    for heading in ("value", "limit", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for row in rows:
        decimals = 3 if row.value < 100 else 0
        table.add_row(
            row.name,
            f"{row.value:.{decimals}f}",
            f"{row.limit:.{decimals}f}",
            f"{row.ratio:.3f}",
            row.unit,
        )
    console.print(table)


def main() -> int:
    """Command line."""
    parser = Parser(prog="bench", description="How fast the controller is, as ratios to limits.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to run (all)")
    parser.add_argument("--list", action="store_true", help="list the names of the rows")
    parser.add_argument("--quick", action="store_true", help="shorter runs, rougher figures")
    parser.add_argument("--jobs", type=positive, default=2, help="processes (2)")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(ROWS))
        return 0
    names = arguments.names or list(ROWS)
    for name in names:
        if name not in ROWS:
            parser.error(f"no row is called {name}; --list shows them")
    share = QUICK_SHARE if arguments.quick else 1.0
    console = Console()
    for ports in sorted({_ports_of(name) for name in names}):
        console.print(f"building the {ports}-port controller")
        build_controller(board(ports))
    rows = []
    # Speeds are taken one at a time, so that nothing else runs on the machine meanwhile.
    alone = [name for name in names if name.startswith("simulation-speed")]
    shared = [name for name in names if name not in alone]
    with ProcessPoolExecutor(max_workers=arguments.jobs) as pool:
        for row in pool.map(measure, shared, [share] * len(shared)):
            console.print(f"{row.name}: {row.value:.6g} {row.unit}, ratio {row.ratio:.3f}")
            rows.append(row)
    rows += [measure(name, share) for name in alone]
    print_rows(console, rows)
    RESULTS.parent.mkdir(exist_ok=True)
    kept = []
    if RESULTS.exists() and arguments.names:
        kept = [row for row in json.loads(RESULTS.read_text()) if row["name"] not in names]
    RESULTS.write_text(json.dumps(kept + [asdict(row) for row in rows], indent=1) + "\n")
    console.print(f"written to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
