"""How fast a member is rebuilt, and how much that slows the host."""

from collections.abc import Callable
from dataclasses import replace

from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, board
from hdl.flow.geometry import Level
from sim.native.parameters import DriveParameters
from sim.native.presets import SATA_6G_SSD
from sw.bench.healthy import Figure
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.workload.generator import Generator, Load
from sw.workload.profiles import KIB, Profile
from sw.workload.statistics import MIB

PORTS = 8
MEMBERS = 7
PULLED = 3
"""The member that is pulled. The drive at the last port replaces it."""

STRIP_KIB = 64
RATE_ROWS = 16384
"""Rows of the array that is rebuilt alone. There are many more than a drive buffers."""

RATE_PERCENT = 30
OUTSTANDING = 16
WARM_UP_NS = 4_000_000
MEASURE_NS = 40_000_000
FILL_NS = 60_000_000
SETTLE_NS = 200_000
POLL_NS = 500_000
WRITE_COMMANDS = 32
RANDOM_READ = Profile("random read 4 KiB", True, 1.0, 4 * KIB)
STREAM = Profile("sequential write 64 KiB", False, 0.0, 64 * KIB)


def _drive(rows: int) -> DriveParameters:
    return replace(SATA_6G_SSD, capacity=DATA_OFFSET_BLOCKS + rows)


async def _begin(card: SimulatedCard) -> None:
    """A RAID 5 that has lost a member, which another drive replaces."""
    await background.replace_member(card.nvme, 0, PULLED, PORTS - 1)


async def _degrade(card: SimulatedCard) -> None:
    await card.nvme.start(queue_pairs=4)
    await raid.create_array(
        card.nvme, Level.RAID5, range(MEMBERS), strip_kib=STRIP_KIB, assume_consistent=True
    )
    card.harness.remove(PULLED)
    await card.transport.sleep(SETTLE_NS)


def _write_rate(share: float) -> float:
    """Bytes a second that one drive alone takes from the host."""
    rows = int(RATE_ROWS * share)
    with SimulatedCard(board(PORTS), [_drive(rows)] * PORTS) as card:

        async def main() -> float:
            await card.nvme.start(queue_pairs=1)
            array = await raid.create_array(card.nvme, Level.JBOD, [0], strip_kib=STRIP_KIB)
            namespace = await raid.create_volume(card.nvme, array)
            blocks = (await card.nvme.namespace(namespace)).blocks
            # The warm-up fills the drive's buffer.
            load = Load(STREAM, WRITE_COMMANDS, warm_up_ns=FILL_NS, measure_ns=MEASURE_NS * share)
            result = await Generator(card.nvme, namespace, blocks, load).run()
            return result.mb_s * MIB

        return card.run(main())


def rebuild_rate(share: float) -> Figure:
    """The rebuild rate of a member of a RAID 5 of `MEMBERS` drives, against the write rate of its
    drive alone."""
    rows = int(RATE_ROWS * share)
    with SimulatedCard(board(PORTS), [_drive(rows)] * PORTS) as card:

        async def main() -> float:
            await _degrade(card)
            await _begin(card)
            while True:
                await card.transport.sleep(POLL_NS)
                job = await background.job(card.nvme, 0)
                if job.state != JobState.RUNNING:
                    assert job.state == JobState.DONE, job
                    assert not job.lost, job
                    return (job.cycles[1] - job.cycles[0]) / card.config.clock_hz

        value = rows * BLOCK_BYTES / card.run(main()) / MIB
    limit = _write_rate(share) / MIB
    return value, "MB/s", limit, value / limit


def _p99(share: float, *, rebuilds: bool) -> float:
    with SimulatedCard(board(PORTS), [_drive(1 << 20)] * PORTS) as card:

        async def main() -> float:
            await _degrade(card)
            namespace = await raid.create_volume(card.nvme, 0)
            blocks = (await card.nvme.namespace(namespace)).blocks
            await background.set_rate(card.nvme, RATE_PERCENT)
            if rebuilds:
                await _begin(card)
            load = Load(
                RANDOM_READ,
                OUTSTANDING,
                warm_up_ns=WARM_UP_NS,
                measure_ns=MEASURE_NS * share,
            )
            result = await Generator(card.nvme, namespace, blocks, load).run()
            return result.latency.p99

        return card.run(main())


def latency_during_rebuild(share: float) -> Figure:
    """99th percentile of random reads of a degraded array while it is rebuilt at `RATE_PERCENT`.

    The limit is that without a rebuild, over the rest of the time.
    """
    value = _p99(share, rebuilds=True)
    limit = _p99(share, rebuilds=False) / (1 - RATE_PERCENT / 100)
    return value, "us", limit, limit / value


def rows() -> dict[str, Callable[[float], Figure]]:
    """The rows by name."""
    return {"rebuild-raid5-8": rebuild_rate, "read-4k-p99-in-rebuild": latency_during_rebuild}
