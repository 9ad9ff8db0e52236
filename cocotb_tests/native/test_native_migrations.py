"""A member migrates to another drive on the whole controller, on the native tier, under load."""

import os

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_jobs import FAST, POLL_NS, POLLS, ROWS, finished, replaced
from cocotb_tests.native.native_planted import WaitsForNobody, plant
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from sim.card.volume_model import VolumeModel
from sim.golden.layout import Layout, Place
from sim.golden.nvme import IN_USE, JOB_RUNNING, UNRECOVERED_READ
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import background, raid
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
OLD, NEW = 2, 6


def foreign(card: Card, port: int) -> None:
    """The drive holds something else."""
    for row in range(ROWS):
        card.store(port, row, card.random.randbytes(4096))


async def half_way(card: Card) -> background.Job:
    """Until some rows are migrated, and not all."""
    for _ in range(POLLS):
        job = await background.job(card.nvme, 0)
        if job.row:
            break
        await card.card.transport.sleep(POLL_NS // 20)
    assert job.kind == WalkKind.MIGRATE and 0 < job.row < ROWS, job
    return job


async def begin(card: Card, volume: Volume, *, rate: int = 10, spare: bool = False) -> None:
    """Member 2 migrates to drive 6 while the host is at work."""
    foreign(card, NEW)
    await background.set_rate(card.nvme, rate)
    card.card.transport.spawn(card.load(volume, 60))
    await background.migrate_member(card.nvme, 0, OLD, NEW, spare=spare)


@pytest.mark.parametrize(
    ("level", "members", "then"),
    [
        pytest.param(Level.RAID5, 6, (0,), id="RAID5"),
        pytest.param(Level.RAID6, 6, (0, 1), id="RAID6", marks=pytest.mark.slow),
        pytest.param(Level.RAID10, 6, (3,), id="RAID10", marks=pytest.mark.slow),
        pytest.param(Level.RAID10, 5, (1,), id="RAID1E", marks=pytest.mark.slow),
        pytest.param(Level.RAID0, 4, (), id="RAID0", marks=pytest.mark.slow),
    ],
)
def test_migrations_under_load(level, members, then):
    """Optimal all the time; then the redundancy goes, and the old drive with it."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(members)))

        async def scenario() -> None:
            nvme = card.nvme
            await begin(card, volume, spare=True)
            with pytest.raises(NvmeError) as refused:
                await background.migrate_member(nvme, 0, 0, 7)
            assert refused.value.status & 0x7FF == JOB_RUNNING
            drives = await raid.drives(nvme)
            assert drives[OLD].array == drives[NEW].array == 0
            await card.load(volume, 120)
            job = await finished(card)
            assert (job.state, job.kind, job.row) == (JobState.DONE, WalkKind.MIGRATE, ROWS), job
            assert job.array_state == ArrayState.OPTIMAL and not (job.mended or job.lost)
            (array,) = await raid.arrays(nvme)
            assert array.members[OLD].port == NEW and not array.members[OLD].stale
            replaced(card, volume, OLD, NEW)
            assert (await raid.drives(nvme))[OLD].array is None
            with pytest.raises(NvmeError):
                await raid.create_array(nvme, Level.JBOD, [OLD])
            await background.remove_spare(nvme, OLD)
            card.pull(OLD)
            await card.load(volume, 60)

        card.run(scenario())
        card.finish(volume)

        async def after() -> None:
            for port in then:
                card.pull(port)
            await card.load(volume, 40)
            await card.read_all(volume)

        card.run(after())
        card.finish(volume)


@pytest.mark.parametrize(
    "level", [Level.RAID5, pytest.param(Level.RAID10, marks=pytest.mark.slow)]
)
def test_the_member_is_pulled(level):
    """The migration target takes over in the middle and is rebuilt from there on."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(6)))

        async def scenario() -> None:
            await begin(card, volume)
            job = await half_way(card)
            card.pull(OLD)
            await card.load(volume, 60)
            migrated = job.row
            job = await finished(card)
            assert (job.state, job.kind, job.lost) == (JobState.DONE, WalkKind.REBUILD, 0), job
            assert job.array_state == ArrayState.OPTIMAL and migrated < job.row == ROWS
            (array,) = await raid.arrays(card.nvme)
            assert array.members[OLD].port == NEW
            replaced(card, volume, OLD, NEW)
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)

        async def after() -> None:
            card.pull(5)
            await card.load(volume, 40)
            await card.read_all(volume)

        card.run(after())
        card.finish(volume)


@pytest.mark.parametrize(
    "level", [Level.RAID0, pytest.param(Level.RAID6, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("way", ["pull", "stop"])
def test_the_migration_is_given_up(level, way):
    """The array is as it was, and no command has failed."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(4)))

        async def scenario() -> None:
            nvme = card.nvme
            await begin(card, volume)
            await half_way(card)
            if way == "pull":
                card.pull(NEW)
            else:
                await background.stop_job(nvme, 0)
            await card.load(volume, 60)
            job = await finished(card)
            wanted = JobState.FAILED if way == "pull" else JobState.STOPPED
            assert (job.state, job.kind) == (wanted, WalkKind.MIGRATE), job
            assert job.array_state == ArrayState.OPTIMAL
            (array,) = await raid.arrays(nvme)
            assert array.members[OLD].port == OLD
            assert (await raid.drives(nvme))[NEW].array is None
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


@pytest.mark.parametrize("level", [Level.RAID5, Level.RAID0])
def test_blocks_that_cannot_be_read(level):
    """Worked out on the way, and the new drive has them; or lost there as they were here."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(5)))
        places = [Place(OLD, row) for row in range(3, ROWS, 13)]
        data = [place for place in places if OLD not in volume.layout.parity_places(place.row)]
        lost = {volume.layout.inverse(place) for place in data} if level == Level.RAID0 else set()

        async def scenario() -> None:
            foreign(card, NEW)
            for place in places:
                card.spoil(volume, place)
            await background.migrate_member(card.nvme, 0, OLD, NEW)
            job = await finished(card)
            wanted = (0, len(places)) if lost else (len(places), 0)
            assert (job.state, job.mended, job.lost) == (JobState.DONE, *wanted), job
            replaced(card, volume, OLD, NEW)
            if lost:
                found = {finding.row for finding in await background.lost_blocks(card.nvme)}
                assert found == {place.row for place in places}
            address = card.buffer(1)
            for block in range(len(volume.model)):
                status = await card.read(volume, block, 1, address)
                assert status == (UNRECOVERED_READ if block in lost else 0), f"block {block}"
            for block in lost:
                assert await card.write(volume, block, 1, address, 0, fua=False) == 0
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.JBOD, 1, id="JBOD"),
        pytest.param(Level.RAID0, 3, id="RAID0", marks=pytest.mark.slow),
    ],
)
def test_the_new_drive_refuses_the_last_writes(level, members):
    """They began before the end of a migration, which then fails. The old drive has everything, and
    nobody gets anything but that meanwhile, however long the last ones take."""
    new, blocks = 6, 4
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(members)))
        states: set[ArrayState] = set()
        statuses: set[int] = set()
        ended: list[int] = []

        async def write(block: int) -> None:
            await card.card.transport.sleep(40_000 * block)
            ended.append(await card.write(volume, block, 1, card.buffer(1), 0, fua=False))

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            await background.set_rate(nvme, 100)
            card.harness.drive_fault(new, -1, at_end=True, delay_ns=400_000)
            await background.migrate_member(nvme, volume.array, 0, new)
            while (job := await background.job(nvme, volume.array)).row < ROWS:
                assert job.state == JobState.RUNNING, job
                await transport.sleep(5_000)
            assert job.state == JobState.RUNNING, "too late"
            card.harness.refuse_writes(new, DATA_OFFSET_BLOCKS, blocks)
            for block in range(2 * blocks):
                transport.spawn(write(block))
            while len(ended) < 2 * blocks:
                address = card.buffer(1)
                statuses.add(await card.read(volume, 10, 1, address, 0))
                statuses.add(await card.flush(volume))
                states.add((await background.job(nvme, volume.array)).array_state)
                await transport.sleep(2_000)
            card.harness.drive_fault(new, 0)
            job = await finished(card)
            assert (job.kind, job.state) == (WalkKind.MIGRATE, JobState.FAILED), job
            (array,) = await raid.arrays(nvme)
            assert array.members[0].port == 0 and not array.members[0].failed
            await card.read_all(volume)

        card.run(scenario())
        assert statuses == {0} and set(ended) == {0}, (statuses, ended)
        assert states == {ArrayState.OPTIMAL}
        card.finish(volume)


async def taken_at_once(card: Card, port: int) -> Volume:
    """A new array of a drive, as soon as the card gives it away."""
    nvme = card.nvme
    while True:
        try:
            number = await raid.create_array(nvme, Level.JBOD, [port], assume_consistent=True)
            break
        except NvmeError as error:
            if error.status != IN_USE:
                raise
            await card.card.transport.sleep(1_000)
    namespace = await raid.create_volume(nvme, number)
    return Volume(
        array=number,
        namespace=namespace,
        layout=Layout(Level.JBOD.name, 1, 4),
        ports=[port],
        rows=ROWS,
        model=VolumeModel([card.stored(port, row) for row in range(ROWS)]),
    )


def leaves_with_commands(level: Level, members: int, *, slow: bool) -> bool:
    """Member 0 leaves at the end of its migration while commands wait at its drive, which is late
    to end them, or, if it is ``slow``, to begin. The drive is used again at once. Returns whether
    it still had some of them when a new array had it."""
    old, reads, writes = 0, 20, 0 if slow else 4
    kind = FAST.changed(latency_ps=2_000 * MICROSECOND) if slow else FAST
    with Card([kind, *[FAST] * (PORTS - 1)], seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(level, range(members), strip_blocks=1))
        nvme, transport = card.nvme, card.card.transport
        blocks = [
            block
            for block in range(len(volume.model))
            if volume.layout.copies_of(block)[0].position == 0
        ]
        ended: list[int] = []

        def inside() -> int:
            return card.harness.drive_statistics(old)["outstanding"]

        async def read(block: int) -> None:
            assert await card.read(volume, block, 1, card.buffer(1), block % 2) == 0
            ended.append(block)

        async def write(which: Volume, first: int, count: int) -> None:
            assert await card.write(which, first, count, card.buffer(count), 0, fua=False) == 0
            ended.append(first)

        async def leave() -> tuple[Volume, bool]:
            card.harness.drive_fault(NEW, 0)
            while (await raid.arrays(nvme))[0].members[0].port != NEW:
                await transport.sleep(500)
            assert inside() and len(ended) < reads + writes, "nothing is queued at the old drive"
            other = await taken_at_once(card, old)
            assert len(ended) == reads + writes, "the drive was given away too early"
            late = bool(inside())
            await card.together(write(other, first, 8) for first in range(0, ROWS, 8))
            return other, late

        async def scenario() -> tuple[Volume, bool]:
            await background.set_rate(nvme, 100)
            card.harness.drive_fault(NEW, -1, at_end=True, delay_ns=400_000)
            await background.migrate_member(nvme, volume.array, 0, NEW)
            while (job := await background.job(nvme, volume.array)).row < ROWS:
                await transport.sleep(5 * POLL_NS)
            assert job.state == JobState.RUNNING, "too late"
            if not slow:
                card.harness.drive_fault(old, -1, delay_ns=300_000)
            for block in blocks[:reads]:
                transport.spawn(read(block))
            for block in blocks[reads : reads + writes]:
                transport.spawn(write(volume, block, 1))
            await transport.sleep(20_000)
            other, late = await leave()
            await card.read_all(other)
            card.harness.drive_fault(old, 0)
            job = await finished(card, volume.array)
            assert (job.kind, job.state) == (WalkKind.MIGRATE, JobState.DONE), job
            replaced(card, volume, old, NEW)
            await card.load(volume, 30)
            await card.read_all(volume)
            await card.read_all(other)
            return other, late

        other, late = card.run(scenario())
        card.finish(volume, other)
        return late


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.JBOD, 1, id="JBOD", marks=pytest.mark.slow),
        pytest.param(Level.RAID0, 3, id="RAID0", marks=pytest.mark.slow),
        pytest.param(Level.RAID1, 2, id="RAID1", marks=pytest.mark.slow),
        pytest.param(Level.RAID5, 4, id="RAID5"),
    ],
)
@pytest.mark.parametrize("slow", [False, True], ids=["late", "slow"])
def test_a_member_leaves_with_commands(level, members, slow):
    """Its drive is not given away before they have ended. If it is so slow that the card has reads
    elsewhere, they have ended for the card, but not for the drive: nobody gets what it sends."""
    late = leaves_with_commands(level, members, slow=slow)
    assert late or not slow or level not in (Level.RAID1, Level.RAID5)


@pytest.mark.slow
def test_a_drive_that_is_given_away_too_early_is_found(monkeypatch):
    plant(monkeypatch, "hdl.core.References", WaitsForNobody)
    with pytest.raises(AssertionError, match="given away too early"):
        leaves_with_commands(Level.JBOD, 1, slow=True)


@pytest.mark.parametrize("first", [True, False])
def test_the_other_members_restart(first):
    """In the middle of a migration, and the member that migrates fails before or after. What has
    been migrated is on the new drive, and is read there, though the rows of the others are torn."""
    rows, new = 512, 6
    kind = Ideal(
        capacity=DATA_OFFSET_BLOCKS + rows, latency_ps=20 * MICROSECOND, volatile_cache=True
    )
    with Card([kind] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID5, range(4), strip_blocks=1))
        memory = card.card.transport.memory
        address = card.buffer(1)
        places = {block: volume.layout.copies_of(block)[0] for block in range(96)}
        migrated = [block for block, at in places.items() if at.position == 0]
        by_row = {at.row: block for block, at in places.items() if at.position != 0}

        async def write(block: int, byte: int) -> None:
            memory.write(address, bytes([byte]) * 4096)
            await card.nvme.write(volume.namespace, block, 1, address, 0)

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            for block in places:
                await write(block, block)
            assert await card.flush(volume) == 0
            await background.set_rate(nvme, 100)
            await background.migrate_member(nvme, volume.array, 0, new)
            while (await background.job(nvme, volume.array)).row < 64:
                await transport.sleep(POLL_NS // 20)
            await background.set_rate(nvme, 1)
            for block in by_row.values():
                await write(block, 200)
            if first:
                card.harness.remove(0)
            for port in (1, 2, 3):
                card.harness.restart_drive(port)
            await transport.sleep(100_000)
            if not first:
                card.harness.remove(0)
                await transport.sleep(30_000)
            for block in migrated:
                await card.nvme.read(volume.namespace, block, 1, address, 0)
                assert memory.read(address, 4096) == bytes([block]) * 4096, block

        card.run(scenario())


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.JBOD, 1, id="JBOD"),
        pytest.param(Level.RAID1, 2, id="RAID1"),
        pytest.param(Level.RAID0, 2, id="RAID0", marks=pytest.mark.slow),
        pytest.param(Level.RAID5, 3, id="RAID5", marks=pytest.mark.slow),
    ],
)
def test_all_members_restart(level, members):
    """In the middle of a migration, after writes that the new drive has, and they may not have any
    more. Once the host has been told, what it reads and flushes stays so, when the migration ends
    too."""
    blocks, new = 64, 6
    kind = Ideal(
        capacity=DATA_OFFSET_BLOCKS + 4 * blocks, latency_ps=20 * MICROSECOND, volatile_cache=True
    )
    with Card([kind] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(level, range(members)))
        memory = card.card.transport.memory
        address = card.buffer(1)

        async def fill(value: int) -> None:
            for block in range(blocks):
                memory.write(address, bytes([value]) * 4096)
                await card.nvme.write(volume.namespace, block, 1, address, 0)

        async def look() -> list[int]:
            held = []
            for block in range(blocks):
                await card.nvme.read(volume.namespace, block, 1, address, 0)
                held.append(memory.read(address, 1)[0])
            return held

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            await fill(1)
            assert await card.flush(volume) == 0
            await background.set_rate(nvme, 5)
            await background.migrate_member(nvme, volume.array, 0, new)
            while (await background.job(nvme, volume.array)).row < blocks:
                await transport.sleep(POLL_NS // 20)
            await fill(2)
            for port in range(members):
                card.harness.restart_drive(port)
            await transport.sleep(5_000)
            assert await card.flush(volume), "nothing is told"
            held = await look()
            assert set(held) == {1, 2}, "nothing was lost"
            assert await card.flush(volume) == 0
            job = await background.job(nvme, volume.array)
            assert (job.kind, job.state) == (WalkKind.MIGRATE, JobState.RUNNING), job
            await background.set_rate(nvme, 100)
            for _ in range(POLLS):
                (array,) = await raid.arrays(nvme)
                job = await background.job(nvme, volume.array)
                if job.state != JobState.RUNNING and array.members[0].port == new and job.in_sync:
                    break
                assert await look() == held
            assert job.state == JobState.DONE and array.members[0].port == new, (job, array)
            assert await look() == held

        card.run(scenario())


def mended_as_drives_restart(
    level: Level, members: int, *, wait: int
) -> dict[int, list[tuple[bool, int]]]:
    """What reads give of some blocks that a drive cannot read, one a row, as all drives begin anew
    after ``wait``: of each whether it began after that, and a byte, or a status. The last is of
    long after."""
    rows = 12
    kind = Ideal(
        capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=10 * MICROSECOND, volatile_cache=True
    )
    seen: dict[int, list[tuple[bool, int]]] = {}
    restarted: list[bool] = []
    with Card([kind] * PORTS, seed=SEED + wait, config=USUAL) as card:
        volume = card.run(card.create(level, range(members)))
        nvme, memory, transport = card.nvme, card.card.transport.memory, card.card.transport
        firsts = {volume.layout.copies_of(block)[0].row: block for block in range(4 * rows)}
        blocks = [firsts[row] for row in range(rows)]
        seen.update({block: [] for block in blocks})

        async def fill(value: int) -> None:
            address = card.buffer(1)
            memory.write(address, bytes([value]) * 4096)
            for block in blocks:
                await nvme.write(volume.namespace, block, 1, address, 0)

        async def look(block: int, times: int) -> None:
            address = card.buffer(1)
            for _ in range(times):
                after = bool(restarted)
                try:
                    await nvme.read(volume.namespace, block, 1, address, block % 2)
                except NvmeError as error:
                    seen[block].append((after, error.status))
                else:
                    seen[block].append((after, memory.read(address, 1)[0]))

        async def scenario() -> None:
            await fill(1)
            assert await card.flush(volume) == 0
            await fill(2)
            for block in blocks:
                at = volume.layout.copies_of(block)[0]
                port, row = volume.ports[at.position], at.row
                card.harness.medium_error(port, DATA_OFFSET_BLOCKS + row)
                transport.spawn(look(block, 8))
            await transport.sleep(wait)
            restarted.append(True)
            for port in range(members):
                card.harness.restart_drive(port)
            await transport.sleep(1_000_000)
            for block in blocks:
                await look(block, 1)

        card.run(scenario())
    return seen


@pytest.mark.parametrize(
    ("level", "members"),
    [
        pytest.param(Level.RAID1, 2, id="RAID1", marks=pytest.mark.slow),
        pytest.param(Level.RAID1, 3, id="triple", marks=pytest.mark.slow),
        pytest.param(Level.RAID5, 3, id="RAID5", marks=pytest.mark.slow),
    ],
)
def test_what_is_mended_as_drives_restart(level, members):
    """Blocks of which a drive could not read its copy are mended from others, as all drives begin
    anew. What the host reads after that stays so: what is written late is not of before."""
    changed = 0
    for wait in range(0, 80_000, 2_500):
        for block, reads in mended_as_drives_restart(level, members, wait=wait).items():
            *earlier, (_, last) = reads
            assert len(reads) == 9
            for after, value in earlier:
                kept = value == last or (value == 2 and not after)
                assert kept, f"{wait}: block {block} is {last}, and was {reads}"
            changed += last != 2
    assert changed, "nothing was lost, so nothing is shown"
