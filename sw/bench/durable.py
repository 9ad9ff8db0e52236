"""Rows that say what it costs that arrays live on their drives (`Config.metadata`).

Their limits are the same on a card that forgets its arrays, but for the time from power-up, and
that of a save. Rows of a backup unit (`Config.backup_blocks`) begin with ``backup``.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

from hdl.config import BLOCK_BYTES, Config, board
from hdl.flow.geometry import Level
from sim.golden.redo import read
from sim.native.parameters import MICROSECOND, Ideal
from sw.bench.healthy import (
    DRIVE_LATENCY_NS,
    OUTSTANDING,
    RANDOM_OUTSTANDING,
    RANDOM_READ,
    RANDOM_WRITE,
    SEQUENTIAL_WRITE,
    Figure,
    added_latency_us,
    data_rate,
)
from sw.bench.run import DRIVE_BLOCKS, LINK, STRIP_KIB, load_card
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.workload.profiles import Profile

PORTS = 24
DRIVE = Ideal(capacity=DRIVE_BLOCKS, latency_ps=20 * MICROSECOND, volatile_cache=True)
READY_LIMIT_US = 50_000
IDENTITY = 0x5354_5249_4154_4101
IDLE_NS = 5_000_000_000
"""Longer than an array is idle before its superblocks say that it is clean."""

IN_USE = 32
"""Writes of which the mean is taken."""

FLASH_BLOCKS = 2048
"""Blocks of the backup flash, which has room for all lines."""

SAVE_LIMIT_US = 50_000
"""As long as the capacitors of a small supply last."""

DRIVES_LAST_NS = 1000
"""How long drives have power after the warning."""

WRITERS, APART = 256, 4096
"""Hosts that write as the power fails, and how far from each other."""

READERS = 64
LOSS_NS = 10_000_000
"""For how long reads go on after a drive is gone."""


def forgetful(ports: int) -> Config:
    """The usual controller, but for arrays that live on their drives."""
    return replace(board(ports), metadata=False)


def _kept(level: Level, profile: Profile, share: float) -> Figure:
    """The rate with the share of it that is left."""
    outstanding = RANDOM_OUTSTANDING if profile.random else OUTSTANDING[8]
    with_it, without = (
        load_card(8, level, profile, outstanding, share, config=config)
        for config in (board(8), forgetful(8))
    )
    if profile.random:
        value, limit, unit = with_it.result.io_s, without.result.io_s, "IO/s"
    else:
        value, limit, unit = data_rate(profile, with_it), data_rate(profile, without), "MB/s"
    return value, unit, limit, value / limit


def _added_latency(share: float) -> Figure:
    value, limit = (
        added_latency_us(
            load_card(
                8, Level.RAID5, RANDOM_READ, 1, share, latency_ns=DRIVE_LATENCY_NS, config=config
            )
        )
        for config in (board(8), forgetful(8))
    )
    return value, "us", limit, limit / value


async def _make(card: SimulatedCard) -> int:
    """An array of all drives with a volume, whose number is returned."""
    await card.nvme.start(queue_pairs=1)
    array = await raid.create_array(
        card.nvme, Level.RAID6, range(PORTS), strip_kib=STRIP_KIB, assume_consistent=True
    )
    return await raid.create_volume(card.nvme, array)


async def _write(card: SimulatedCard, namespace: int, block: int) -> float:
    """Writes a block. Returns how long that took, in microseconds."""
    address = card.transport.memory.allocate(BLOCK_BYTES)
    began = card.transport.now_ns
    await card.nvme.write(namespace, block, 1, address)
    return (card.transport.now_ns - began) / 1000


def _power_up(_share: float, *, cut: bool) -> Figure:
    """From power-up until the host has its queues, with an array of all drives. With ``cut`` power
    had gone while the host wrote."""

    async def live(card: SimulatedCard) -> None:
        namespace = await _make(card)
        await _write(card, namespace, 0)
        if not cut:
            await card.nvme.shut_down()

    async def wake(card: SimulatedCard) -> float:
        await card.nvme.start(queue_pairs=1)
        spent = card.transport.now_ns / 1000
        (array,) = await raid.arrays(card.nvme)
        if array.width != PORTS or array.degraded or len(await raid.volumes(card.nvme)) != 1:
            raise RuntimeError("the array is not what it was")
        return spent

    power = partial(SimulatedCard, board(PORTS), [DRIVE] * PORTS, link=LINK, identity=IDENTITY)
    with power() as card:
        card.run(live(card))
        harness = card.harness
        harness.power_loss()
        images = [harness.image(port) for port in range(PORTS)]
    with power() as card:
        for port, image in enumerate(images):
            card.harness.put_image(port, image)
        spent = card.run(wake(card))
    return spent, "us", READY_LIMIT_US, READY_LIMIT_US / spent


def backed(ports: int) -> Config:
    """The usual controller for so many drives, and a flash at one port more."""
    return replace(board(ports + 1), backup_blocks=FLASH_BLOCKS)


def _kept_with_backup(level: Level, profile: Profile, share: float) -> Figure:
    """The rate with a backup unit, and the share of it that is left."""
    outstanding = RANDOM_OUTSTANDING if profile.random else OUTSTANDING[8]
    with_it = load_card(8, level, profile, outstanding, share, config=backed(8))
    without = load_card(8, level, profile, outstanding, share, config=forgetful(8))
    if profile.random:
        value, limit, unit = with_it.result.io_s, without.result.io_s, "IO/s"
    else:
        value, limit, unit = data_rate(profile, with_it), data_rate(profile, without), "MB/s"
    return value, unit, limit, value / limit


def _backup(_share: float, *, saves: bool) -> Figure:
    """From the warning that the power goes until the record is saved, or from power-up with that
    record until the host has its queues."""
    config = backed(PORTS)
    drives = [DRIVE] * config.ports

    async def load(card: SimulatedCard) -> None:
        await card.nvme.start(queue_pairs=1)
        await card.nvme.set_write_cache(on=False)
        array = await raid.create_array(
            card.nvme, Level.RAID6, range(PORTS), strip_kib=STRIP_KIB, assume_consistent=True
        )
        namespace = await raid.create_volume(card.nvme, array)
        for number in range(WRITERS):
            card.transport.spawn(_write_on(card, namespace, number))
        await card.transport.sleep(LOSS_NS)

    async def warn(card: SimulatedCard) -> float:
        began = card.transport.now_ns
        card.harness.fail_power()
        await card.transport.sleep(DRIVES_LAST_NS)
        card.harness.power_loss(range(PORTS))
        while not card.harness.saved:
            await card.transport.sleep(1000)
        return (card.transport.now_ns - began) / 1000

    async def wake(card: SimulatedCard) -> float:
        await card.nvme.start(queue_pairs=1)
        spent = card.transport.now_ns / 1000
        (array,) = await raid.arrays(card.nvme)
        if array.width != PORTS or array.degraded or not array.in_sync:
            raise RuntimeError("the array is not what it was")
        return spent

    power = partial(SimulatedCard, config, drives, link=LINK, identity=IDENTITY)
    with power() as card:
        card.run(load(card))
        spent = card.run(warn(card))
        card.harness.power_loss()
        images = [card.harness.image(port) for port in range(config.ports)]
    record = read(images[config.backup_port], overhead=config.backup_overhead)
    if record is None or not record.blocks:
        raise RuntimeError("nothing was on its way")
    if saves:
        return spent, "us", SAVE_LIMIT_US, SAVE_LIMIT_US / spent
    with power() as card:
        for port, image in enumerate(images):
            card.harness.put_image(port, image)
        spent = card.run(wake(card))
    return spent, "us", READY_LIMIT_US, READY_LIMIT_US / spent


async def _write_on(card: SimulatedCard, namespace: int, number: int) -> None:
    """Writes block after block, far from those of other writers."""
    block = number * APART
    while True:
        await _write(card, namespace, block)
        block += 1


def _first_write(_share: float) -> Figure:
    """The first write to an array that was idle. Its limit is a write to one that is in use."""

    async def main(card: SimulatedCard) -> tuple[float, float]:
        namespace = await _make(card)
        await _write(card, namespace, 0)
        in_use = sum([await _write(card, namespace, block) for block in range(IN_USE)]) / IN_USE
        await card.transport.sleep(IDLE_NS)
        return await _write(card, namespace, 0), in_use

    with SimulatedCard(board(PORTS), [DRIVE] * PORTS, link=LINK) as card:
        value, limit = card.run(main(card))
    return value, "us", limit, limit / value


def _longest_silence(config: Config) -> float:
    """The longest time in which no read ends, from the loss of a drive on, in microseconds."""

    async def main(card: SimulatedCard) -> float:
        namespace = await _make(card)
        transport, nvme = card.transport, card.nvme
        ends: list[float] = []
        stops = False

        async def read(number: int) -> None:
            address = transport.memory.allocate(BLOCK_BYTES)
            block = number
            while not stops:
                await nvme.read(namespace, block, 1, address)
                ends.append(transport.now_ns)
                block += READERS

        for number in range(READERS):
            transport.spawn(read(number))
        await transport.sleep(LOSS_NS / 10)
        card.harness.remove(PORTS - 1)
        ends[:] = [transport.now_ns]
        await transport.sleep(LOSS_NS)
        stops = True
        ends.append(transport.now_ns)
        await transport.sleep(LOSS_NS)
        return max(after - before for before, after in pairwise(ends)) / 1000

    with SimulatedCard(config, [DRIVE] * PORTS, link=LINK) as card:
        return card.run(main(card))


def _loss(_share: float) -> Figure:
    """How long nothing is told to the host as a drive is lost."""
    value, limit = (_longest_silence(config) for config in (board(PORTS), forgetful(PORTS)))
    return value, "us", limit, limit / value


def rows() -> dict[str, Callable[[float], Figure]]:
    """The rows by name."""
    return {
        "durable-write-seq-raid5-8": partial(_kept, Level.RAID5, SEQUENTIAL_WRITE),
        "durable-write-seq-raid6-8": partial(_kept, Level.RAID6, SEQUENTIAL_WRITE),
        "durable-write-4k-random-raid5-8": partial(_kept, Level.RAID5, RANDOM_WRITE),
        "durable-read-added-latency-8": _added_latency,
        "durable-power-up-raid6-24": partial(_power_up, cut=False),
        "durable-power-up-after-a-cut-raid6-24": partial(_power_up, cut=True),
        "durable-first-write-raid6-24": _first_write,
        "durable-drive-loss-raid6-24": _loss,
        "backup-write-seq-raid5-8": partial(_kept_with_backup, Level.RAID5, SEQUENTIAL_WRITE),
        "backup-write-seq-raid6-8": partial(_kept_with_backup, Level.RAID6, SEQUENTIAL_WRITE),
        "backup-write-4k-random-raid5-8": partial(
            _kept_with_backup, Level.RAID5, RANDOM_WRITE
        ),
        "backup-save-raid6-24": partial(_backup, saves=True),
        "backup-power-up-raid6-24": partial(_backup, saves=False),
    }
