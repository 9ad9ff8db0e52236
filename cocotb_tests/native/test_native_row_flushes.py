"""What happens while a row that is written with FUA, and has lost its drive, waits for the flush of
the others."""

import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from sim.card.row_check import checked_row
from sim.golden.nvme import WRITE_FAULT
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import background, raid
from sw.driver.queue import QueueStoppedError

SEED = int(os.environ.get("SEED") or "1")
ROWS = 32
DRIVE = Ideal(
    capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=20 * MICROSECOND, volatile_cache=True
)
MEMBERS = 4


def block_of(volume: Volume, position: int) -> tuple[int, int]:
    """A block of a member's, and its row."""
    for block in range(volume.rows):
        (place,) = volume.layout.copies_of(block)
        if place.position == position:
            return block, place.row
    raise AssertionError(f"no block at {position}")


async def fill(card: Card, volume: Volume) -> None:
    """Every block is in its drive's cache."""
    for first in range(0, volume.layout.blocks(volume.rows), 8):
        assert await card.write(volume, first, 8, card.buffer(8), 0, fua=False) == 0


async def until(card: Card, true: Callable[[], bool]) -> None:
    deadline = card.harness.now_ns + 5_000_000
    while not true():
        assert card.harness.now_ns < deadline, "it does not happen"
        await card.card.transport.sleep(1_000)


async def wait_for_flush(card: Card, volume: Volume, row: int) -> int:
    """A member that the row needs hangs in the FLUSH for it. Returns its port."""
    refusing, hanging = volume.ports[0], volume.ports[1]
    await until(card, lambda: card.harness.drive_statistics(refusing)["refused"] > 0)
    # All that the row reads has been read.
    card.harness.drive_fault(hanging, 1)
    await until(card, lambda: card.harness.drive_statistics(hanging)["faults"] == 1)
    return hanging


def check_stored(card: Card, volume: Volume, block: int, row: int) -> None:
    """The block is there without the cache of any drive, and without the member that refused it."""
    assert card.harness.drive_statistics(volume.ports[1])["flushes"], "something else hung"
    card.harness.power_loss(volume.ports[1:])
    held = [None, *(card.stored(port, row) for port in volume.ports[1:])]
    volume.check(block, dict(checked_row(volume.layout, 0, row, held))[block], f"row {row}")


async def refused(card: Card, first: int = 0) -> tuple[Volume, int, int]:
    """A volume on the ports from ``first`` on, a block that its drive will refuse, and its row, in
    which the others' blocks are in caches."""
    volume = await card.create(Level.RAID5, range(first, first + MEMBERS))
    await fill(card, volume)
    block, row = block_of(volume, 0)
    card.harness.refuse_writes(volume.ports[0], DATA_OFFSET_BLOCKS + row, 1)
    return volume, block, row


def test_a_healthy_array_does_not_wait():
    """The row ends once the ladder has ended the FLUSH, and is stored. An array that has all its
    drives is written with FUA meanwhile, and does not notice."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:
        spent: list[float] = []
        others: list[float] = []

        async def load(volume: Volume) -> None:
            memory = card.buffer(2)
            while not spent:
                began = card.harness.now_ns
                first = card.random.randrange(ROWS - 1)
                assert await card.write(volume, first, 2, memory, 1, fua=True) == 0
                others.append(card.harness.now_ns - began)

        async def main() -> tuple[Volume, int, int]:
            volume, block, row = await refused(card)
            other = await card.create(Level.RAID1, range(MEMBERS, MEMBERS + 2))

            async def write() -> None:
                began = card.harness.now_ns
                assert await card.write(volume, block, 1, card.buffer(1), 0, fua=True) == 0
                spent.append(card.harness.now_ns - began)

            await card.together([write(), wait_for_flush(card, volume, row), load(other)])
            return volume, block, row

        volume, block, row = card.run(main())
        assert spent[0] > 1_000_000 > 4 * max(others)
        check_stored(card, volume, block, row)


def test_another_row_waits_for_the_ladder_at_most():
    """One of another array that has lost a drive as well. There is one FLUSH at a time."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> list[tuple[Volume, int, int]]:
            first = await refused(card)
            second = await refused(card, MEMBERS)
            ended: list[int] = []

            async def write(queue: int, volume: Volume, block: int, row: int) -> None:
                if queue:
                    await wait_for_flush(card, first[0], first[2])
                memory = card.buffer(1)
                assert await card.write(volume, block, 1, memory, queue, fua=True) == 0
                ended.append(queue)

            await card.together([write(0, *first), write(1, *second)])
            assert ended == [0, 1]
            return [first, second]

        for written in card.run(main()):
            check_stored(card, *written)


def test_a_deletion_waits_for_the_row():
    """What it writes never lands in the array that comes after."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume, block, row = await refused(card)
            ended: list[str] = []

            async def write() -> None:
                assert await card.write(volume, block, 1, card.buffer(1), 0, fua=True) == 0
                ended.append("write")

            async def delete() -> None:
                await wait_for_flush(card, volume, row)
                await raid.delete_volume(card.nvme, volume.namespace)
                await raid.delete_array(card.nvme, volume.array)
                ended.append("deletion")

            await card.together([write(), delete()])
            assert ended == ["write", "deletion"]
            card.harness.accept_writes(volume.ports[0], DATA_OFFSET_BLOCKS + row, 1)
            after = await card.create(Level.RAID5, range(MEMBERS))
            assert after.array == volume.array
            await card.read_all(after)
            return after

        card.finish(card.run(main()))


@pytest.mark.parametrize("way", ["disable", "function"])
def test_the_row_outlives_a_reset(way):
    """Its command has no answer then; nothing is lost, and the array goes on."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume, block, row = await refused(card)
            data = card.random.randbytes(4096)
            write = volume.model.begin_write(block, [data])
            memory = card.buffer(1)
            card.card.transport.memory.write(memory, data)

            async def submit() -> None:
                with suppress(QueueStoppedError):
                    await card.nvme.write(volume.namespace, block, 1, memory, 0, True, 4096)

            async def reset() -> None:
                await wait_for_flush(card, volume, row)
                if way == "function":
                    card.harness.reset_function()
                    card.harness.set_status("bus_master", 1)
                await card.nvme.stop()

            await card.together([submit(), reset()])
            volume.model.end_write(write, done=False)
            await card.nvme.start(queue_pairs=2)
            await card.read_all(volume)
            assert await card.write(volume, block, 1, card.buffer(1), 0, fua=True) == 0
            check_stored(card, volume, block, row)
            return volume

        card.run(main())


def test_a_mirror_whose_only_whole_copy_refuses_says_so():
    """The new copy has the block as well, but is not trusted before its rebuild ends. A write with
    FUA of which only that has the block fails."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID1, range(2))
            await fill(card, volume)
            card.pull(1)
            assert await card.write(volume, 0, 1, card.buffer(1), 0, fua=False) == 0
            card.harness.insert(1, blank=True)
            await card.card.transport.sleep(100_000)
            await background.set_rate(card.nvme, 1)
            await background.replace_member(card.nvme, volume.array, 1, 1)
            while (await background.job(card.nvme, volume.array)).row < 4:
                await card.card.transport.sleep(20_000)
            await background.stop_job(card.nvme, volume.array)
            card.harness.refuse_writes(0, DATA_OFFSET_BLOCKS, 1)
            assert await card.write(volume, 0, 1, card.buffer(1), 0, fua=True) == WRITE_FAULT
            assert await card.write(volume, 1, 1, card.buffer(1), 0, fua=True) == 0
            await card.read_all(volume)

        card.run(main())
