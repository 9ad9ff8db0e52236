"""Rows that are written with FUA and lose a drive, or are refused a block: how they end, and what
happens while they wait for the flush of the other drives."""

import os
from contextlib import suppress

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_rows import (
    DRIVE,
    ROWS,
    blocks_by_row,
    lose_power,
    refuse_once,
    until,
)
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from sim.card.row_check import checked_row
from sim.golden.nvme import UNRECOVERED_READ, WRITE_FAULT
from sw.driver import background, raid
from sw.driver.queue import QueueStoppedError

SEED = int(os.environ.get("SEED") or "1")
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


async def wait_for_flush(card: Card, volume: Volume) -> None:
    """A member that the row of the refused block needs hangs in the FLUSH for it."""
    refusing, hanging = volume.ports[0], volume.ports[1]
    await until(card, lambda: card.harness.drive_statistics(refusing)["refused"] > 0)
    # All that the row reads has been read.
    card.harness.drive_fault(hanging, 1)
    await until(card, lambda: card.harness.drive_statistics(hanging)["faults"] == 1)


def check_stored(card: Card, volume: Volume, block: int, row: int) -> None:
    """The block is there without the cache of any drive, and without the member that refused it."""
    assert card.harness.drive_statistics(volume.ports[1])["flushes"], "something else hung"
    card.harness.power_loss(volume.ports[1:])
    held = [None, *(card.stored(port, row) for port in volume.ports[1:])]
    volume.check(block, dict(checked_row(volume.layout, 0, row, held))[block], f"row {row}")


async def rebuild_some(card: Card, volume: Volume) -> None:
    """A new drive takes the place of the one that was pulled. Its rebuild is stopped past the first
    rows."""
    (port,) = card.gone & {*volume.ports}
    card.harness.insert(port, blank=True)
    await card.card.transport.sleep(100_000)
    await background.set_rate(card.nvme, 1)
    await background.replace_member(card.nvme, volume.array, volume.ports.index(port), port)
    card.gone.discard(port)
    while (await background.job(card.nvme, volume.array)).row < 8:
        await card.card.transport.sleep(20_000)
    await background.stop_job(card.nvme, volume.array)


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

            await card.together([write(), wait_for_flush(card, volume), load(other)])
            return volume, block, row

        volume, block, row = card.run(main())
        assert spent[0] > 1_000_000 > 4 * max(others)
        check_stored(card, volume, block, row)


def test_a_row_of_another_array_does_not_wait_for_the_flush():
    """It needs one as well, since its array has lost a drive too."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> list[tuple[Volume, int, int]]:
            first = await refused(card)
            second = await refused(card, MEMBERS)
            ended: list[int] = []

            async def write(queue: int, volume: Volume, block: int, row: int) -> None:
                if queue:
                    await wait_for_flush(card, first[0])
                memory = card.buffer(1)
                assert await card.write(volume, block, 1, memory, queue, fua=True) == 0
                ended.append(queue)

            await card.together([write(0, *first), write(1, *second)])
            assert ended == [1, 0]
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
                await wait_for_flush(card, volume)
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
                await wait_for_flush(card, volume)
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


async def rebuilt_mirror(card: Card) -> Volume:
    """A mirror whose copy on port 1 is new, and whole in the first rows only."""
    volume = await card.create(Level.RAID1, range(2))
    await fill(card, volume)
    card.pull(1)
    assert await card.write(volume, 0, 1, card.buffer(1), 0, fua=False) == 0
    await rebuild_some(card, volume)
    return volume


def test_a_mirror_whose_only_whole_copy_refuses_says_so():
    """The new copy has the block as well, but is not trusted before its rebuild ends. A write with
    FUA of which only that has the block fails."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await rebuilt_mirror(card)
            card.harness.refuse_writes(0, DATA_OFFSET_BLOCKS, 1)
            assert await card.write(volume, 0, 1, card.buffer(1), 0, fua=True) == WRITE_FAULT
            assert await card.write(volume, 1, 1, card.buffer(1), 0, fua=True) == 0
            await card.read_all(volume)

        card.run(main())


def test_what_is_made_unreadable_stays_so_without_power():
    """A neighbour in RAID 1E has gone, so the drive stays that refuses one of two copies. The old
    copy does not come back when all drives lose their power."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID10, range(5), copies=2)
            layout = volume.layout
            card.pull(2)
            await card.card.transport.sleep(50_000)
            blocks: list[int] = []
            for block in range(layout.blocks(volume.rows)):
                first, second = layout.copies_of(block)
                if (first.position, second.position) == (0, 1) and len(blocks) < 6:
                    blocks.append(block)
                    assert await card.write(volume, block, 1, card.buffer(1), 0, fua=False) == 0
            for block in blocks:
                row = layout.copies_of(block)[1].row
                assert await refuse_once(card, volume, block, 1, row) == 0
            await lose_power(card, volume, Level.RAID10, copies=2)
            for block in blocks * 4:
                # Two at once are read from either copy.
                memory = card.buffer(1), card.buffer(1)
                await card.together(read(card, volume, block, one) for one in memory)

        card.run(main())


async def read(card: Card, volume: Volume, block: int, memory: int) -> None:
    assert await card.read(volume, block, 1, memory) == 0


def test_a_flush_that_fails_costs_no_other_block():
    """One drive is away and two have restarted, and are kept: nobody believes their flush. So a
    block that another drive refuses is not stored, but what is away can still be worked out. A
    block that is written to the same row meanwhile is on its own drive."""
    members = 6
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID6, range(members))
            blocks = range(0, volume.layout.blocks(volume.rows), 8)
            refusing, away, *kept = volume.layout.roles(0, 0)[:4]
            places = {block: volume.layout.copies_of(block)[0] for block in range(16)}
            of = {place.position: block for block, place in places.items() if place.row == 0}
            for first in blocks:
                assert await card.write(volume, first, 8, card.buffer(8), 0, fua=True) == 0
            card.pull(away)
            for first in blocks:
                assert await card.write(volume, first, 8, card.buffer(8), 0, fua=True) == 0
            await background.set_rate(card.nvme, 1)
            for port in kept:
                card.harness.restart_drive(port)
            await card.card.transport.sleep(3_000)
            await background.stop_job(card.nvme, volume.array)
            others: list[int] = []

            async def refuse() -> None:
                status = await refuse_once(card, volume, of[refusing], refusing, 0)
                assert status == WRITE_FAULT

            async def write() -> None:
                memory = card.buffer(1)
                others.append(await card.write(volume, of[kept[0]], 1, memory, 1, fua=True))

            await card.together([refuse(), write()])
            assert others == [0]
            for block in of.values():
                assert await card.read(volume, block, 1, card.buffer(1)) == 0

        card.run(main())


@pytest.mark.parametrize("fua", [False, True])
def test_a_rebuilt_row_with_a_block_that_cannot_be_read_is_written(fua):
    """To a third drive, which is healthy: with FUA as without."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID5, range(MEMBERS))
            card.pull(0)
            await fill(card, volume)
            await rebuild_some(card, volume)
            written = 0
            for row in range(1, 8):
                at = {
                    place.position: (block, place)
                    for block in range(volume.layout.blocks(volume.rows))
                    for place in volume.layout.copies_of(block)
                    if place.row == row and place.position
                }
                if len(at) < 2:
                    continue
                (_, bad), (block, _) = [*at.values()][:2]
                card.spoil(volume, bad)
                assert await card.write(volume, block, 1, card.buffer(1), 0, fua=fua) == 0
                written += 1
            assert written

        card.run(main())


def test_a_copy_under_rebuild_is_not_enough_when_the_other_goes():
    """It goes when it has stored the block, before the copy under rebuild has."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await rebuilt_mirror(card)
            block = volume.rows - 1
            before = card.harness.drive_statistics(0)["fua_blocks"]
            statuses: list[int] = []

            async def write() -> None:
                card.harness.drive_fault(1, 1, delay_ns=400_000)
                memory = card.buffer(1)
                statuses.append(await card.write(volume, block, 1, memory, 0, fua=True))

            async def go() -> None:
                await until(card, lambda: card.harness.drive_statistics(0)["fua_blocks"] > before)
                await card.card.transport.sleep(60_000)
                card.pull(0)
                assert not statuses

            await card.together([write(), go()])
            assert statuses == [WRITE_FAULT]

        card.run(main())


@pytest.mark.parametrize(("level", "members"), [(Level.RAID5, 4), (Level.RAID6, 6)])
def test_what_cannot_be_worked_out_stays_so_without_power(level, members):
    """A row has lost a block more than the level tolerates, and all others are written with FUA.
    The block that is not written is lost for good, whatever the parities were."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(level, range(members))
            memory = card.buffer(1)
            assert await card.flush(volume) == 0
            victims: list[int] = []
            for row, at in blocks_by_row(volume).items():
                victim, *others = card.random.sample([*at.items()], volume.layout.parities + 1)
                for position, _ in (victim, *others):
                    card.harness.medium_error(volume.ports[position], DATA_OFFSET_BLOCKS + row)
                # Once it has been read, it is known that the row is past repair.
                assert await card.read(volume, victim[1], 1, memory) == UNRECOVERED_READ
                for _, block in others:
                    assert await card.write(volume, block, 1, memory, 0, fua=True) == 0
                victims.append(victim[1])
            await lose_power(card, volume, level)
            for block in victims:
                assert await card.read(volume, block, 1, memory) == UNRECOVERED_READ

        card.run(main())


@pytest.mark.parametrize(("level", "members"), [(Level.RAID5, 4), (Level.RAID6, 6)])
def test_what_a_failed_write_leaves_stays_so_without_power(level, members):
    """As many members are away as may be, and the parities refuse what is written with FUA. So the
    write fails, and what it wrote is made unreadable. What is away is never worked out from that
    after a loss of power."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(level, range(members))
            layout, memory = volume.layout, card.buffer(1)
            for block in range(layout.blocks(volume.rows)):
                assert await card.write(volume, block, 1, memory, 0, fua=True) == 0
            away = range(layout.parities)
            for port in away:
                card.pull(port)
            await card.card.transport.sleep(100_000)
            victims: list[int] = []
            for row, at in blocks_by_row(volume).items():
                parities = layout.parity_places(row)
                if {*parities} & {*away}:
                    continue
                for port in parities:
                    card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row, 1)
                block = next(block for position, block in at.items() if position not in away)
                assert await card.write(volume, block, 1, memory, 0, fua=True) == WRITE_FAULT
                for port in parities:
                    card.harness.accept_writes(port, DATA_OFFSET_BLOCKS + row, 1)
                victims += [at[position] for position in away]
            await lose_power(card, volume, level)
            for block in victims:
                assert await card.read(volume, block, 1, memory) == UNRECOVERED_READ

        card.run(main())


def test_a_mark_that_is_forgotten_in_the_flush_fails_the_row():
    """A block has no drive, two drives are kept, and P's drive refuses P, which is made unreadable
    there. As that is to be flushed, the drive restarts, and may have the old P again. A write that
    succeeds can be read, at once and without power."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:
        harness, statistics = card.harness, card.harness.drive_statistics

        async def main() -> None:
            volume = await card.create(Level.RAID6, range(6))
            away, sleep = 0, card.card.transport.sleep
            card.pull(away)
            await sleep(60_000)
            for first in range(0, volume.layout.blocks(volume.rows), 8):
                assert await card.write(volume, first, 8, card.buffer(8), 0, fua=True) == 0
            assert await card.flush(volume) == 0
            row, block = next(
                (row, at[away]) for row, at in blocks_by_row(volume).items() if away in at
            )
            parity = volume.layout.parity_places(row)[0]
            await background.set_rate(card.nvme, 1)
            for port in [port for port in range(1, 6) if port != parity][:2]:
                harness.restart_drive(port)
            await sleep(3_000)
            await background.stop_job(card.nvme, volume.array)
            before, faults = statistics(parity)["refused"], statistics(parity)["faults"]
            statuses: list[int] = []

            async def write() -> None:
                statuses.append(await card.write(volume, block, 1, card.buffer(1), 0, fua=True))

            async def forget() -> None:
                await until(card, lambda: statistics(parity)["refused"] >= before + 2)
                harness.accept_writes(parity, DATA_OFFSET_BLOCKS + row)
                # The mark and the FLUSH are late.
                harness.drive_fault(parity, 2, delay_ns=600_000)
                await until(card, lambda: statistics(parity)["faults"] >= faults + 2)
                assert not statuses
                harness.restart_drive(parity)

            harness.refuse_writes(parity, DATA_OFFSET_BLOCKS + row)
            await card.together([write(), forget()])
            assert statuses == [WRITE_FAULT]

        card.run(main())


def test_a_mark_of_an_earlier_row_outlives_the_power():
    """RAID 6 has a block that has no drive, and two drives that are kept. A write without FUA is
    refused by its drive, so its block is made unreadable. After that the block without a drive is
    written with FUA. It must not be worked out from what was there before the mark."""
    away, refusing = 0, 1
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID6, range(6))
            card.pull(away)
            await card.card.transport.sleep(60_000)
            for first in range(0, volume.layout.blocks(volume.rows), 8):
                assert await card.write(volume, first, 8, card.buffer(8), 0, fua=True) == 0
            assert await card.flush(volume) == 0
            await background.set_rate(card.nvme, 1)
            for port in (4, 5):
                card.harness.restart_drive(port)
            await card.card.transport.sleep(3_000)
            await background.stop_job(card.nvme, volume.array)
            written: list[int] = []
            for row, at in blocks_by_row(volume).items():
                if {away, refusing} <= at.keys():
                    status = await refuse_once(card, volume, at[refusing], refusing, row, fua=False)
                    assert status == 0
                    # The block is not mended.
                    card.harness.refuse_writes(refusing, DATA_OFFSET_BLOCKS + row, 1)
                    memory = card.buffer(1)
                    if await card.write(volume, at[away], 1, memory, 0, fua=True) == 0:
                        written.append(at[away])
                    card.harness.accept_writes(refusing, DATA_OFFSET_BLOCKS + row, 1)
            await lose_power(card, volume, Level.RAID6)
            assert len(written) >= 8, written
            for block in written:
                assert await card.read(volume, block, 1, card.buffer(1)) == 0

        card.run(main())


@pytest.mark.parametrize("way", ["refuse", "pull"])
def test_a_row_is_judged_while_a_rebuild_ends(way):
    """It needs the new drive's block, which nobody trusts as the row asks for its flush, and
    everybody does once it has been flushed."""
    members, late, new, port = 7, 6, 0, 1
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID6, range(members))
            sleep, statistics = card.card.transport.sleep, card.harness.drive_statistics
            await fill(card, volume)
            card.pull(new)
            await sleep(50_000)
            await fill(card, volume)
            card.harness.insert(new, blank=True)
            await sleep(100_000)
            rows = blocks_by_row(volume)
            row = next(
                row
                for row in rows
                if not {new, port, late} & {*volume.layout.parity_places(row)}
            )
            before = statistics(2)["flushes"]
            written = statistics(new)["written_blocks"]
            await background.set_rate(card.nvme, 100)
            await background.replace_member(card.nvme, volume.array, new, new)
            card.gone.discard(new)
            await until(card, lambda: statistics(new)["written_blocks"] >= written + ROWS - 2)
            # The FLUSH at the end of the rebuild is late on this drive.
            card.harness.drive_fault(late, -1, at_end=True, delay_ns=600_000)
            await until(card, lambda: statistics(2)["flushes"] > before)

            async def write() -> None:
                memory, block = card.buffer(1), rows[row][port]
                assert await card.write(volume, block, 1, memory, 0, fua=True) == 0

            async def lose() -> None:
                if way == "refuse":
                    return
                reads, faults = statistics(port)["reads"], statistics(port)["faults"]
                await until(card, lambda: statistics(port)["reads"] > reads)
                card.harness.drive_fault(port, 1)
                await until(card, lambda: statistics(port)["faults"] > faults)
                card.pull(port)

            if way == "refuse":
                card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row, 1)
            await card.together([write(), lose()])
            found = (await raid.arrays(card.nvme))[0].members
            assert [one.failed for one in found] == [one == port for one in range(members)]
            assert not any(one.stale for one in found)

        card.run(main())
