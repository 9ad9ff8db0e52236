"""A member changes places with its migration target.

What FUA has stored stays, and a drive that has left is missed by nobody.
"""

import os
from collections.abc import Iterable

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_jobs import finished
from cocotb_tests.native.native_rows import DRIVE, ROWS, blocks_by_row, lose_power, until
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from sim.golden.nvme import WRITE_FAULT
from sw.driver import background, raid

SEED = int(os.environ.get("SEED") or "1")
LATE_NS = 800_000


async def begin(card: Card, level: Level, members: int) -> Volume:
    """A volume of which all is stored."""
    volume = await card.create(level, range(members))
    for first in range(0, volume.layout.blocks(volume.rows), 8):
        assert await card.write(volume, first, 8, card.buffer(8), 0, fua=True) == 0
    assert await card.flush(volume) == 0
    return volume


async def flushes_late(card: Card, volume: Volume, *, lost: Iterable[int] = ()) -> int:
    """The last member migrates to the next port, and drives go meanwhile. Returns as the new drive
    flushes what has been migrated, which takes it ``LATE_NS``."""
    old, new = len(volume.ports) - 1, len(volume.ports)
    statistics = card.harness.drive_statistics
    written = statistics(new)["written_blocks"]
    await background.set_rate(card.nvme, 100)
    await background.migrate_member(card.nvme, volume.array, old, new)
    await until(card, lambda: statistics(new)["written_blocks"] > written)
    for port in lost:
        card.pull(port)
    await until(card, lambda: statistics(new)["written_blocks"] >= written + ROWS)
    flushes = statistics(new)["flushes"]
    card.harness.drive_fault(new, 1, at_end=True, delay_ns=LATE_NS)
    await until(card, lambda: statistics(new)["flushes"] > flushes)
    return new


async def changed_places(card: Card, volume: Volume, new: int) -> None:
    """Waits until the new drive is the member."""
    deadline = card.harness.now_ns + 5 * LATE_NS
    while (await raid.arrays(card.nvme))[0].members[-1].port != new:
        assert card.harness.now_ns < deadline, "they do not change places"
        await card.card.transport.sleep(1_000)
    volume.ports[-1] = new


def at_position(volume: Volume, position: int) -> list[tuple[int, int]]:
    """The blocks at this position, each with its row."""
    return [
        (block, place.row)
        for block in range(volume.layout.blocks(volume.rows))
        for place in volume.layout.copies_of(block)
        if place.position == position
    ]


def row_of(volume: Volume, *positions: int) -> tuple[int, dict[int, int]]:
    """A row with blocks at these positions, and its block at each position."""
    return next(
        (row, at) for row, at in blocks_by_row(volume).items() if {*positions} <= at.keys()
    )


@pytest.mark.parametrize(
    ("level", "members", "way"),
    [
        pytest.param(Level.RAID5, 4, "dead", id="RAID5-dead"),
        pytest.param(Level.RAID6, 6, "refused", id="RAID6-refused"),
        pytest.param(Level.RAID5, 4, "refused", id="RAID5-refused", marks=pytest.mark.slow),
        pytest.param(Level.RAID6, 6, "dead", id="RAID6-dead", marks=pytest.mark.slow),
        pytest.param(Level.RAIDTP, 7, "dead", id="RAIDTP-dead", marks=pytest.mark.slow),
    ],
)
def test_what_a_block_is_worked_out_from_outlives_the_power(level, members, way):
    """A block without a drive is written with FUA. The member that it is worked out from has a new
    block in its cache, and so has the drive that takes its place."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await begin(card, level, members)
            new = await flushes_late(card, volume, lost=(0,) if way == "dead" else ())
            written: list[int] = []

            async def write(row: int, block: int, cached: int, queue: int) -> None:
                memory = card.buffer(1)
                assert await card.write(volume, cached, 1, memory, queue, fua=False) == 0
                if way == "refused":
                    card.harness.refuse_writes(0, DATA_OFFSET_BLOCKS + row, 1)
                if await card.write(volume, block, 1, memory, queue, fua=True) == 0:
                    written.append(block)

            rows = blocks_by_row(volume)
            await card.together(
                write(row, at[0], at[members - 1], row % 2)
                for row, at in rows.items()
                if {0, members - 1} <= at.keys()
            )
            await changed_places(card, volume, new)
            if way == "refused":
                card.pull(0)
            await lose_power(card, volume, level)
            assert len(written) > 4, written
            for block in written:
                assert await card.read(volume, block, 1, card.buffer(1)) == 0

        card.run(main())


@pytest.mark.parametrize("level", [Level.RAID0, Level.RAID1])
def test_what_is_read_with_fua_is_on_the_new_drive(level):
    """A block is in the caches of both drives, and is read with FUA before they change places."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            members = 2
            volume = await begin(card, level, members)
            new = await flushes_late(card, volume)
            rows = dict(at_position(volume, members - 1)[:12])
            for block in rows:
                memory = card.buffer(1)
                assert await card.write(volume, block, 1, memory, 0, fua=False) == 0
                await card.nvme.read(volume.namespace, block, 1, memory, 0, 4096, True)
            job = await background.job(card.nvme, volume.array)
            assert job.state == JobState.RUNNING, "too late"
            await changed_places(card, volume, new)
            assert (await finished(card)).state == JobState.DONE
            card.harness.power_loss()
            for block, row in rows.items():
                volume.check(block, card.stored(new, row), f"row {row}")

        card.run(main())


@pytest.mark.parametrize("fua", [False, True])
def test_a_drive_that_has_left_is_not_missed(fua):
    """A row of RAID 6 without a member is under way as another one changes places. Then a drive
    has refused the block that is written, and the drive that has left is pulled. The row needs
    neither: nothing is made unreadable."""
    members = 6
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:
        statistics = card.harness.drive_statistics

        async def main() -> None:
            volume = await begin(card, Level.RAID6, members)
            row, at = row_of(volume, 0, 1, members - 1)
            parity = volume.layout.parity_places(row)[0]
            new = await flushes_late(card, volume, lost=(0,))
            card.harness.refuse_writes(1, DATA_OFFSET_BLOCKS + row, 1)
            card.harness.drive_fault(parity, -1, delay_ns=LATE_NS + 400_000)
            statuses: list[int] = []

            async def write() -> None:
                statuses.append(await card.write(volume, at[1], 1, card.buffer(1), 0, fua=fua))

            async def pull() -> None:
                await until(card, lambda: statistics(1)["refused"] >= 1)
                await changed_places(card, volume, new)
                assert not statuses, "too late"
                card.pull(members - 1)

            await card.together([write(), pull()])
            card.harness.drive_fault(parity, 0)
            assert statuses == [0]
            for position, block in at.items():
                if position != 1:
                    assert await card.read(volume, block, 1, card.buffer(1)) == 0, position

        card.run(main())


def test_a_row_that_is_flushed_does_not_miss_it_either():
    """A block of RAID 5 is refused, and the row waits for its flush as a member that it does not
    write changes places, and the drive that has left is pulled."""
    members = 4
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:
        statistics = card.harness.drive_statistics

        async def main() -> None:
            volume = await begin(card, Level.RAID5, members)
            row, at = row_of(volume, 0, 1, members - 1)
            new = await flushes_late(card, volume)
            card.harness.refuse_writes(0, DATA_OFFSET_BLOCKS + row, 1)
            statuses: list[int] = []

            async def write() -> None:
                statuses.append(await card.write(volume, at[0], 1, card.buffer(1), 0, fua=True))

            async def pull() -> None:
                await until(card, lambda: statistics(0)["refused"] >= 2)
                faults = statistics(1)["faults"]
                card.harness.drive_fault(1, 1, delay_ns=2 * LATE_NS)
                await until(card, lambda: statistics(1)["faults"] > faults)
                await changed_places(card, volume, new)
                assert not statuses, "too late"
                card.pull(members - 1)

            await card.together([write(), pull()])
            assert statuses == [0]
            for block in at.values():
                assert await card.read(volume, block, 1, card.buffer(1)) == 0

        card.run(main())


@pytest.mark.parametrize(
    ("level", "members", "refusing", "early"),
    [
        pytest.param(Level.RAID5, 4, "X", False, id="RAID5"),
        pytest.param(Level.RAID5, 4, "X", True, id="RAID5-early"),
        pytest.param(Level.RAID6, 6, "XP", False, id="RAID6-XP"),
        pytest.param(Level.RAID6, 6, "PQ", False, id="RAID6-PQ"),
    ],
)
@pytest.mark.parametrize("power", [True, False])
def test_a_write_that_the_member_refuses_costs_no_other_block(
    level, members, refusing, early, power
):
    """An array is without a member. A write to the one that migrates fails, since drives refuse it
    (X is the member), and only the new drive has stored it. Then the block without a drive is
    written with FUA. It stays, whichever of the two drives is the member, without power too."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:
        statistics = card.harness.drive_statistics

        async def main() -> None:
            volume = await begin(card, level, members)
            old, sleep = members - 1, card.card.transport.sleep
            if early:
                card.pull(0)
                await background.set_rate(card.nvme, 1)
                await background.migrate_member(card.nvme, volume.array, old, members)
                job = await background.job(card.nvme, volume.array)
                while job.state == JobState.RUNNING and job.row < 12:
                    await sleep(5_000)
                    job = await background.job(card.nvme, volume.array)
            else:
                await flushes_late(card, volume, lost=(0,))
            row, at = row_of(volume, 0, old)
            parities = volume.layout.parity_places(row)
            ports = [old if one == "X" else parities["PQ".index(one)] for one in refusing]
            refused = {port: statistics(port)["refused"] for port in ports}
            for port in ports:
                card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row, 1)
            statuses: list[int] = []

            async def write() -> None:
                statuses.append(await card.write(volume, at[old], 1, card.buffer(1), 0, fua=False))

            async def accept(port: int) -> None:
                while not statuses and statistics(port)["refused"] < refused[port] + 2:
                    await sleep(1_000)
                card.harness.accept_writes(port, DATA_OFFSET_BLOCKS + row, 1)

            await card.together([write(), *map(accept, ports)])
            assert statuses == [WRITE_FAULT]
            assert await card.write(volume, at[0], 1, card.buffer(1), 0, fua=True) == 0
            await background.set_rate(card.nvme, 100)
            await finished(card)
            (array,) = await raid.arrays(card.nvme)
            volume.ports = [member.port for member in array.members]
            if power:
                await lose_power(card, volume, level)
            for position, block in at.items():
                if position != old:
                    assert await card.read(volume, block, 1, card.buffer(1)) == 0, position

        card.run(main())


@pytest.mark.parametrize("level", [Level.RAID0, Level.JBOD])
def test_what_was_read_after_a_refused_write_stays(level):
    """Without redundancy the member refuses a write that the new drive stores. The host reads the
    old data. It is still there when the migration has ended."""
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:
        members = 1 if level == Level.JBOD else 2

        async def main() -> None:
            volume = await begin(card, level, members)
            await flushes_late(card, volume)
            block, row = at_position(volume, members - 1)[0]
            memory, port = card.buffer(1), volume.ports[-1]
            card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row, 1)
            status = await card.write(volume, block, 1, memory, 0, fua=False)
            assert status == WRITE_FAULT
            card.harness.accept_writes(port, DATA_OFFSET_BLOCKS + row, 1)
            await card.nvme.read(volume.namespace, block, 1, memory, 0, 4096, True)
            data = card.card.transport.memory.read(memory, 4096)
            await finished(card)
            (array,) = await raid.arrays(card.nvme)
            card.harness.power_loss()
            assert card.stored(array.members[-1].port, row) == data

        card.run(main())


WITHOUT_REDUNDANCY = {
    "JBOD": (Level.JBOD, 1, ()),
    "RAID0": (Level.RAID0, 2, ()),
    "RAID1": (Level.RAID1, 2, (0,)),
    "RAID5": (Level.RAID5, 4, (0,)),
    "RAID6": (Level.RAID6, 6, (0, 1)),
}
"""Levels, members, and which go as the last one migrates."""

OFTEN = (("JBOD", "pulled", False), ("RAID5", "restarts", True), ("RAID1", "refused", False))
"""What is not slow: each way once."""


@pytest.mark.parametrize(
    ("array", "way", "fua"),
    [
        pytest.param(array, way, fua, marks=() if (array, way, fua) in OFTEN else pytest.mark.slow)
        for array in WITHOUT_REDUNDANCY
        for way in ("pulled", "restarts", "refused")
        for fua in (False, True)
    ],
)
def test_one_of_the_two_drives_stays(array, way, fua):
    """A row of before is under way as drives change places. The old drive has its block, and goes:
    it is pulled, restarts, or is given up as the new one refuses another write. Then the new drive
    refuses that block. The write has failed, and the array is left with the new drive."""
    level, members, lost = WITHOUT_REDUNDANCY[array]
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:
        harness, sleep = card.harness, card.card.transport.sleep

        async def main() -> None:
            volume = await begin(card, level, members)
            new = await flushes_late(card, volume, lost=lost)
            old = members - 1
            places = at_position(volume, old)
            (block, row), (other, _) = places[0], places[-1]
            first, count = (0, ROWS) if way == "refused" else (row, 1)
            harness.refuse_writes(new, DATA_OFFSET_BLOCKS + first, count)
            statuses: list[int] = []

            async def write() -> None:
                harness.drive_fault(new, 1, delay_ns=2 * LATE_NS)
                statuses.append(await card.write(volume, block, 1, card.buffer(1), 0, fua=fua))

            async def lose() -> None:
                await changed_places(card, volume, new)
                assert not statuses, "too late"
                if way == "pulled":
                    card.pull(old)
                elif way == "restarts":
                    harness.restart_drive(old)
                else:
                    status = await card.write(volume, other, 1, card.buffer(1), 1, fua=False)
                    assert status == WRITE_FAULT
                assert not statuses, "too late"

            await card.together([write(), lose()])
            assert statuses == [WRITE_FAULT]
            await finished(card)
            await sleep(300_000)
            harness.accept_writes(new, DATA_OFFSET_BLOCKS + first, count)
            (found,) = await raid.arrays(card.nvme)
            assert found.state != ArrayState.FAILED and found.members[-1].port == new
            for block, _ in places:
                assert await card.read(volume, block, 1, card.buffer(1)) == 0, block

        card.run(main())


def test_both_drives_of_a_migration_go():
    """A row of before is under way as drives of a RAID 5 change places, and both go. What it has
    written with FUA is there without them: what it is worked out from has been flushed."""
    members = 4
    with Card([DRIVE] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> None:
            volume = await begin(card, Level.RAID5, members)
            new = await flushes_late(card, volume)
            old = members - 1
            row, at = row_of(volume, 0, old)
            for position in at:
                if position != old:
                    status = await card.write(
                        volume, at[position], 1, card.buffer(1), 0, fua=False
                    )
                    assert status == 0
            statuses: list[int] = []

            async def write() -> None:
                card.harness.drive_fault(new, 1, delay_ns=2 * LATE_NS)
                status = await card.write(volume, at[old], 1, card.buffer(1), 0, fua=True)
                statuses.append(status)

            async def lose() -> None:
                await changed_places(card, volume, new)
                assert not statuses, "too late"
                card.pull(old)
                card.pull(new)

            await card.together([write(), lose()])
            assert statuses == [0], row
            await lose_power(card, volume, Level.RAID5)
            assert await card.read(volume, at[old], 1, card.buffer(1)) == 0

        card.run(main())
