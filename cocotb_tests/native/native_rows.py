"""What tests of rows that are written with FUA have in common.

Small drives whose caches forget what was not flushed, refusals, and losses of power.
"""

from collections.abc import Callable
from contextlib import suppress

from cocotb_tests.native.native_card import Card, Volume
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from sim.card.layouts import rotation_of
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import background, raid
from sw.driver.commands import NvmeError

ROWS = 32
DRIVE = Ideal(
    capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=20 * MICROSECOND, volatile_cache=True
)
POLL_NS = 40
"""Shorter than a drive takes to refuse a block again."""


async def until(card: Card, true: Callable[[], bool]) -> None:
    deadline = card.harness.now_ns + 5_000_000
    while not true():
        assert card.harness.now_ns < deadline, "it does not happen"
        await card.card.transport.sleep(POLL_NS)


def blocks_by_row(volume: Volume) -> dict[int, dict[int, int]]:
    """Of each row, the block at each position."""
    rows: dict[int, dict[int, int]] = {}
    for block in range(volume.layout.blocks(volume.rows)):
        (place,) = volume.layout.copies_of(block)
        rows.setdefault(place.row, {})[place.position] = block
    return rows


async def refuse_once(
    card: Card, volume: Volume, block: int, port: int, row: int, *, fua: bool = True
) -> int:
    """Writes a block that its drive refuses, as often as it is sent, but it lets the block
    be made unreadable. Returns the status."""
    statuses: list[int] = []
    before = card.harness.drive_statistics(port)["refused"]
    card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row, 1)

    async def write() -> None:
        statuses.append(await card.write(volume, block, 1, card.buffer(1), 0, fua=fua))

    async def accept() -> None:
        await until(card, lambda: card.harness.drive_statistics(port)["refused"] >= before + 2)
        card.harness.accept_writes(port, DATA_OFFSET_BLOCKS + row, 1)

    await card.together([write(), accept()])
    (status,) = statuses
    return status


async def lose_power(card: Card, volume: Volume, level: Level, *, copies: int = 0) -> None:
    """All drives lose their power. Then the array is made of them once more, as by a card that
    knows nothing of it."""
    nvme, layout = card.nvme, volume.layout
    card.harness.power_loss(off_ns=10_000)
    await card.card.transport.sleep(300_000)
    await raid.delete_volume(nvme, volume.namespace)
    with suppress(NvmeError):
        await background.stop_job(nvme, volume.array)
    await raid.delete_array(nvme, volume.array)
    volume.array = await raid.create_array(
        nvme,
        level,
        volume.ports,
        strip_kib=layout.strip_blocks * 4,
        rotation=rotation_of(layout),
        copies=copies,
        assume_consistent=True,
        degraded=bool(card.gone),
    )
    volume.namespace = await raid.create_volume(nvme, volume.array)
