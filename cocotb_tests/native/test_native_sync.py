"""Arrays over drives full of anything, on the whole 8-port controller, on the native tier: what is
written is safe before the rows are in sync, and afterwards everything is."""

import os
from dataclasses import replace

import pytest

from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_jobs import FAST, POLL_NS, POLLS, ROWS, finished, replaced
from hdl.background.jobs import JobState
from hdl.config import small
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from sim.golden.nvme import DRIVE_UNAVAILABLE, INVALID_FIELD
from sw.driver import background, raid
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")


async def write_every_row(card: Card, volume: Volume) -> None:
    """Writes one block of each row: so little that the rest of the row would be left unread."""
    layout = volume.layout
    held = {}
    for block in range(len(volume.model)):
        (place,) = layout.copies_of(block)
        held.setdefault((place.position // layout.width, place.row), []).append(block)
    address = card.buffer(1)
    for blocks in held.values():
        assert not await card.write(volume, card.random.choice(blocks), 1, address, 0, fua=False)


@pytest.mark.parametrize(
    ("level", "members", "pulled"),
    [
        pytest.param(Level.RAID5, 7, (3,), id="RAID5"),
        pytest.param(Level.RAID6, 8, (2, 5), id="RAID6", marks=pytest.mark.slow),
    ],
)
def test_what_is_written_is_safe_before_rows_are_in_sync(level, members, pulled):
    """No job has begun; drives go one by one, and every row that was written has all its blocks."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def scenario() -> Volume:
            volume = await card.create(level, range(members), in_sync=False, start_job=False)
            (array,) = await raid.arrays(card.nvme)
            assert not array.in_sync and not array.assumed
            await write_every_row(card, volume)
            for port in pulled:
                card.pull(port)
                await card.load(volume, 20, longest=4)
                await card.read_all(volume)
            job = await background.job(card.nvme, 0)
            assert (job.state, job.sync_row, job.in_sync) == (JobState.NONE, 0, False)
            return volume

        card.finish(card.run(scenario()))


@pytest.mark.slow
def test_without_background_work():
    """A controller that cannot bring rows in sync updates none, unless the host says that they are.

    It is `small` with a port more: on four drives no row would be updated anyway.
    """
    members = 5
    config = replace(small(), ports=members, lines=32)
    with Card([FAST] * members, seed=SEED, config=config) as card:

        def read() -> int:
            statistics = card.harness.drive_statistics
            return sum(statistics(port)["read_blocks"] for port in range(members))

        async def scenario(*, in_sync: bool) -> Volume:
            volume = await card.create(Level.RAID5, range(members), in_sync=in_sync)
            before = read()
            await write_every_row(card, volume)
            # The others of the row, or the old block and its parity.
            assert read() - before == volume.rows * (2 if in_sync else members - 2)
            await card.load(volume, 30, longest=4)
            card.pull(card.random.randrange(members))
            await card.read_all(volume, 4)
            await card.load(volume, 30, longest=4)
            await card.read_all(volume, 4)
            return volume

        volume = card.run(scenario(in_sync=False))
        card.finish(volume)
        card.run(raid.delete_volume(card.nvme, volume.namespace))
        card.run(raid.delete_array(card.nvme, volume.array))
        for port in card.gone:
            card.harness.insert(port)
        card.gone.clear()
        card.finish(card.run(scenario(in_sync=True)))


def test_a_spare_rebuilds_what_was_made_right():
    """A drive goes in the middle of the first resync; a spare waits for its end. Then two more
    go."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def scenario() -> Volume:
            nvme = card.nvme
            volume = await card.create(Level.RAID6, range(6), in_sync=False, start_job=False)
            await background.add_spare(nvme, 7)
            await write_every_row(card, volume)
            # Between rows the resync leaves the drives to the host for long.
            await background.set_rate(nvme, 1)
            card.card.transport.spawn(card.load(volume, 60, longest=4))
            await background.start_job(nvme, 0, WalkKind.RESYNC)
            job = await background.job(nvme, 0)
            assert (job.state, job.kind) == (JobState.RUNNING, WalkKind.RESYNC)
            assert job.sync_row < ROWS and not job.in_sync
            card.pull(1)
            await background.set_rate(nvme, 100)
            for _ in range(POLLS):
                (array,) = await raid.arrays(nvme)
                if array.state == ArrayState.OPTIMAL:
                    break
                await card.card.transport.sleep(POLL_NS)
            job = await finished(card)
            assert (job.state, job.kind) == (JobState.DONE, WalkKind.REBUILD)
            assert array.state == ArrayState.OPTIMAL and array.in_sync and not array.assumed
            assert array.members[1].port == 7
            replaced(card, volume, 1, 7)
            await card.read_all(volume)
            card.check(volume)
            for port in (0, 4):
                card.pull(port)
            await card.load(volume, 40)
            await card.read_all(volume)
            return volume

        card.finish(card.run(scenario()))


def test_members_that_are_missing_from_the_beginning():
    """A RAID 5 is made without one of its drives; it comes later."""
    with Card([FAST] * 5, seed=SEED) as card:

        async def scenario() -> None:
            nvme = card.nvme
            for ports, degraded in (((0, 1, 2, 6), False), ((0, 1, 6, 7), True)):
                with pytest.raises(NvmeError) as refused:
                    await raid.create_array(nvme, Level.RAID5, ports, degraded=degraded)
                assert refused.value.status & 0x7FF == DRIVE_UNAVAILABLE
            with pytest.raises(NvmeError) as refused:
                await raid.create_array(
                    nvme, Level.RAID5, range(3), zero=True, assume_consistent=True
                )
            assert refused.value.status & 0x7FF == INVALID_FIELD
            array = await raid.create_array(
                nvme, Level.RAID5, (0, 1, 2, 6), strip_kib=4, degraded=True
            )
            (found,) = await raid.arrays(nvme)
            assert found.state == ArrayState.DEGRADED and found.members[3].failed
            assert found.blocks == 3 * ROWS
            namespace = await raid.create_volume(nvme, array)
            address = card.buffer(1)
            memory = card.card.transport.memory
            data = [card.random.randbytes(4096) for _ in range(found.blocks)]
            for block, content in enumerate(data):
                memory.write(address, content)
                await nvme.write(namespace, block, 1, address)
            job = await finished(card, array)
            assert (job.state, job.in_sync) == (JobState.DONE, True)
            await background.replace_member(nvme, array, 3, 4)
            job = await finished(card, array)
            assert (job.state, job.kind) == (JobState.DONE, WalkKind.REBUILD)
            card.pull(1)
            for block, content in enumerate(data):
                memory.write(address, bytes(4096))
                await nvme.read(namespace, block, 1, address)
                assert memory.read(address, 4096) == content, f"block {block}"

        card.run(scenario())
