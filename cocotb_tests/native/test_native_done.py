"""What a job that is DONE has written is on its drives for good: all drives lose their power at
once, and the host creates the array anew, with what the log has said of it."""

import os

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_forgetful import FORGETFUL, ROWS
from cocotb_tests.native.native_jobs import finished, replaced
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from sim.card.layouts import rotation_of
from sim.card.row_check import checked_row
from sim.native.parameters import MICROSECOND
from sw.driver import background, raid

SEED = int(os.environ.get("SEED") or "1")
EVERY = 5
"""Of that many rows one is wrong, where not all are."""


def lose_power(card: Card, volume: Volume) -> None:
    """All drives forget some of what they have not flushed, and come back."""
    card.harness.power_loss()
    for port in volume.ports:
        card.harness.insert(port)


async def create_anew(card: Card, volume: Volume) -> None:
    """The same array over the same drives, which the host takes to be consistent."""
    nvme, layout = card.nvme, volume.layout
    await raid.delete_volume(nvme, volume.namespace)
    await raid.delete_array(nvme, volume.array)
    volume.array = await raid.create_array(
        nvme,
        Level[layout.level],
        volume.ports,
        strip_kib=layout.strip_blocks * 4,
        rotation=rotation_of(layout),
        assume_consistent=True,
    )
    volume.namespace = await raid.create_volume(nvme, volume.array)


async def each_member_can_go(card: Card, volume: Volume) -> None:
    """Every block is read right, whichever drive is away."""
    for port in volume.ports:
        card.pull(port)
        await card.read_all(volume)
        card.gone.discard(port)
        lose_power(card, volume)
        await create_anew(card, volume)


def spoil_rows(card: Card, volume: Volume, rows: range) -> None:
    """Redundancy of these rows that is anything, and that nobody knows of."""
    layout = volume.layout
    for row in rows:
        for position in layout.roles(0, row)[layout.data :] if layout.parities else range(1, 2):
            card.store(volume.ports[position], row, card.random.randbytes(4096))


ARRAYS = [
    pytest.param(Level.RAID5, 4, id="RAID5"),
    pytest.param(Level.RAID1, 2, id="RAID1", marks=pytest.mark.slow),
    pytest.param(Level.RAID6, 5, id="RAID6", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(WalkKind.RESYNC, id="RESYNC"),
        pytest.param(WalkKind.REPAIR, id="REPAIR", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("level", "members"), ARRAYS)
def test_rows_that_were_made_right_stay_right(level, members, kind):
    """By a first RESYNC of all rows, or a REPAIR of some."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        resyncs = kind == WalkKind.RESYNC
        volume = card.run(
            card.create(level, range(members), in_sync=not resyncs, start_job=not resyncs)
        )
        spoil_rows(card, volume, range(0, ROWS, 1 if resyncs else EVERY))

        async def make_right() -> None:
            await background.start_job(card.nvme, 0, kind)
            job = await finished(card)
            assert (job.kind, job.state, job.lost) == (kind, JobState.DONE, 0), job
            assert job.in_sync

        card.run(make_right())
        lose_power(card, volume)
        card.run(create_anew(card, volume))
        card.run(each_member_can_go(card, volume))


def test_blocks_that_were_written_anew_stay_readable():
    """A PATROL finds blocks that cannot be read, and writes them anew."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID5, range(4)))
        for row in range(0, ROWS, EVERY):
            # What the drive forgets is this, or what cannot be read.
            card.store(row % 4, row, card.random.randbytes(4096))
            card.harness.medium_error(row % 4, DATA_OFFSET_BLOCKS + row)

        async def patrol() -> None:
            await background.start_job(card.nvme, 0, WalkKind.PATROL)
            job = await finished(card)
            assert (job.state, job.lost) == (JobState.DONE, 0) and job.mended, job

        card.run(patrol())
        lose_power(card, volume)
        card.check(volume)


def test_a_rebuild_stores_what_the_resync_before_it_has_written():
    """A member comes while the rows of an array are made right: it is rebuilt after that, and all
    drives have stored what both have written."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID6, range(5), in_sync=False, start_job=False))

        async def make_right() -> None:
            card.pull(1)
            await background.replace_member(card.nvme, 0, 1, 6)
            job = await finished(card)
            assert (job.state, job.kind) == (JobState.DONE, WalkKind.REBUILD), job
            assert job.in_sync and job.array_state == ArrayState.OPTIMAL

        card.run(make_right())
        replaced(card, volume, 1, 6)
        lose_power(card, volume)
        for row in range(ROWS):
            held = [card.stored(port, row) for port in volume.ports]
            for block, data in checked_row(volume.layout, 0, row, held):
                # What the member that went had held was worked out from parities without meaning.
                (place,) = volume.layout.copies_of(block)
                if place.position != 1:
                    volume.check(block, data, f"row {row}")


def test_a_check_finds_what_is_stored():
    """A REPAIR is stopped, and a CHECK finds its rows right: they are so after a loss of power."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID5, range(4)))
        spoil_rows(card, volume, range(0, ROWS // 8, 3))

        async def check() -> None:
            await background.start_job(card.nvme, 0, WalkKind.REPAIR)
            while (await background.job(card.nvme, 0)).row < ROWS // 8:
                await card.card.transport.sleep(500)
            await background.stop_job(card.nvme, 0)
            await background.start_job(card.nvme, 0, WalkKind.CHECK)
            job = await finished(card)
            assert (job.state, job.mismatched, job.assumed) == (JobState.DONE, 0, False), job

        card.run(check())
        lose_power(card, volume)
        card.check(volume)


@pytest.mark.parametrize("kind", [WalkKind.REPAIR, WalkKind.RESYNC], ids=lambda kind: kind.name)
@pytest.mark.parametrize("lost", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_a_job_fails_with_its_array(kind, lost):
    """Drives lose their power before they have stored what it has written."""
    slow = FORGETFUL.changed(latency_ps=150 * MICROSECOND)
    with Card([slow] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID5, range(4)))
        spoil_rows(card, volume, range(0, ROWS, EVERY))

        def flushes() -> int:
            return sum(card.harness.drive_statistics(port)["flushes"] for port in volume.ports)

        async def make_right() -> None:
            await background.start_job(card.nvme, 0, kind)
            before = flushes()
            while flushes() == before:
                await card.card.transport.sleep(2000)
            card.harness.power_loss(volume.ports[:lost])
            job = await finished(card)
            assert (job.state, job.array_state) == (JobState.FAILED, ArrayState.FAILED), job

        card.run(make_right())
