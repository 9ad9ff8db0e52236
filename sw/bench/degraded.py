"""Rows of arrays that have lost a drive, and of spans against one set of as many data drives.

Drives have SAS links of 12 Gbit/s and answer at once. So the limit of eight of them is near that of
the host link.
"""

import random
from collections.abc import Callable

from hdl.config import board
from hdl.flow.geometry import Level
from sim.golden.layout import Layout
from sim.native.parameters import MICROSECOND, Ideal, link_rate
from sw.bench.healthy import (
    OUTSTANDING,
    SEQUENTIAL_READ,
    SEQUENTIAL_WRITE,
    Figure,
    data_rate,
    host_limit,
)
from sw.bench.run import DRIVE_BLOCKS, LINK, STRIP_KIB, load_card
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import BLOCK_BYTES
from sw.workload.profiles import KIB, Profile
from sw.workload.statistics import MIB

PORTS = 8
DRIVE = Ideal(capacity=DRIVE_BLOCKS, rate=link_rate(12), latency_ps=20 * MICROSECOND)
LONGER = 6
"""How many times longer than other rows. The lines take 4 MiB of writes before the drives are the
limit."""
RECONSTRUCT_LIMIT_US = 4.0
RECONSTRUCTED_READS = 200
SETTLE_NS = 10_000_000
"""Longer than the card takes to give a drive up that has gone."""
SEED = 1


def _degraded_read(level: Level, share: float) -> Figure:
    """Each block that is left of a row is needed once, whichever block is lost."""
    profile = SEQUENTIAL_READ
    measured = load_card(
        PORTS, level, profile, OUTSTANDING[PORTS], share * LONGER, drive=DRIVE, pulled=1
    )
    value = data_rate(profile, measured)
    limit = min(host_limit(profile, PORTS), (PORTS - 1) * DRIVE.rate / MIB)
    return value, "MB/s", limit, value / limit


def _spans(level: Level, profile: Profile, members: int, share: float) -> Figure:
    """Two spans over all ports against one set of ``members`` drives with as many data drives."""
    rates = [
        data_rate(
            profile,
            load_card(
                PORTS,
                level,
                profile,
                OUTSTANDING[PORTS],
                share * LONGER,
                drive=DRIVE,
                members=number,
                spans=spans,
            ),
        )
        for number, spans in ((PORTS, 2), (members, 1))
    ]
    return rates[0], "MB/s", rates[1], rates[0] / rates[1]


def _reconstruct_latency(share: float) -> Figure:
    """Host latency of 4 KiB reads of the lost drive, less the mean time that the drives took."""
    layout = Layout("RAID5", PORTS, STRIP_KIB * KIB // BLOCK_BYTES)
    rng = random.Random(SEED)
    before: list[dict[str, int]] = []
    with SimulatedCard(board(PORTS), [DRIVE] * PORTS, link=LINK) as card:

        def count() -> list[dict[str, int]]:
            return [card.harness.drive_statistics(port) for port in range(1, PORTS)]

        async def main() -> float:
            nvme, transport = card.nvme, card.transport
            await nvme.start(queue_pairs=1)
            array = await raid.create_array(
                nvme, Level.RAID5, range(PORTS), strip_kib=STRIP_KIB, assume_consistent=True
            )
            namespace = await raid.create_volume(nvme, array)
            blocks = (await nvme.namespace(namespace)).blocks
            card.harness.remove(0)
            await transport.sleep(SETTLE_NS)
            # The card has written its drives by then.
            before.extend(count())
            address = transport.memory.allocate(BLOCK_BYTES)
            spent = 0.0
            reads = max(1, int(RECONSTRUCTED_READS * share))
            for _ in range(reads):
                block = rng.randrange(blocks)
                while layout.map(block).position:
                    block = rng.randrange(blocks)
                begin = transport.now_ns
                await nvme.read(namespace, block, 1, address)
                spent += transport.now_ns - begin
            return spent / reads

        host_us = card.run(main()) / 1000
        drive_us = max(
            (after["latency_sum_ps"] - was["latency_sum_ps"])
            / ((after["reads"] - was["reads"]) * MICROSECOND)
            for after, was in zip(count(), before, strict=True)
        )
    added = host_us - drive_us
    return added, "us", RECONSTRUCT_LIMIT_US, RECONSTRUCT_LIMIT_US / added


def rows() -> dict[str, Callable[[float], Figure]]:
    """The rows by name."""
    return {
        "read-seq-degraded-raid5-8": lambda share: _degraded_read(Level.RAID5, share),
        "read-seq-degraded-raid6-8": lambda share: _degraded_read(Level.RAID6, share),
        "reconstruct-read-added-latency": _reconstruct_latency,
        "read-seq-raid50-8": lambda share: _spans(Level.RAID5, SEQUENTIAL_READ, 7, share),
        "write-seq-raid50-8": lambda share: _spans(Level.RAID5, SEQUENTIAL_WRITE, 7, share),
        "read-seq-raid60-8": lambda share: _spans(Level.RAID6, SEQUENTIAL_READ, 6, share),
        "write-seq-raid60-8": lambda share: _spans(Level.RAID6, SEQUENTIAL_WRITE, 6, share),
    }
