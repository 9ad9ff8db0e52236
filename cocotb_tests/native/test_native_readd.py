"""Members that come back on the whole 8-port controller: rebuilt where they missed something."""

import os

import pytest
from amaranth.hdl import Module

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_forgetful import FORGETFUL
from cocotb_tests.native.native_jobs import finished
from cocotb_tests.native.native_planted import plant
from hdl.background.jobs import JobState
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from hdl.stripe.rows.sequencer import Sequencer
from sim.golden.nvme import (
    DRIVE_UNAVAILABLE,
    IN_USE,
    INVALID_FIELD,
    NOT_REDUNDANT,
    OTHER_DRIVE,
)
from sw.driver import background, raid
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
CHUNKS = USUAL.intent_chunks
SETTLE_NS = 100_000
"""Longer than the card thinks about the end of a flush."""


async def write_some(card: Card, volume: Volume, commands: int, *, part: float = 0.1) -> None:
    """Random writes within two small parts of a volume."""
    blocks = len(volume.model)
    address = card.buffer(8)
    for _ in range(commands):
        first = card.random.choice((0, blocks // 2)) + card.random.randrange(int(part * blocks))
        count = card.random.randint(1, min(8, blocks - first))
        fua = card.random.random() < 0.1
        queue = card.random.randrange(len(card.nvme.queues))
        assert await card.write(volume, first, count, address, queue, fua=fua) == 0


async def refused(card: Card, position: int, array: int = 0) -> int:
    """The status with which a member is not taken back."""
    with pytest.raises(NvmeError) as error:
        await background.re_add(card.nvme, array, position)
    return error.value.status & 0x7FF


async def flush_and_rest(card: Card, volume: Volume) -> background.Job:
    assert await card.flush(volume) == 0
    await card.card.transport.sleep(SETTLE_NS)
    return await background.job(card.nvme, volume.array)


async def come_back(card: Card, volume: Volume, position: int) -> int:
    """The drive of a member is plugged again and caught up; blocks written to it for that."""
    port = volume.ports[position]
    card.harness.insert(port)
    before = card.harness.drive_statistics(port)["written_blocks"]
    marked = (await background.job(card.nvme, volume.array)).marked
    await background.re_add(card.nvme, volume.array, position)
    job = await finished(card, volume.array)
    assert (job.state, job.kind, job.row) == (JobState.DONE, WalkKind.REBUILD, volume.rows), job
    assert job.array_state == ArrayState.OPTIMAL and not job.lost
    card.gone.discard(port)
    written = card.harness.drive_statistics(port)["written_blocks"] - before
    assert written <= marked * job.chunk_rows * volume.layout.copies
    return written


LEVELS = [
    pytest.param(Level.RAID5, 5, {}, id="RAID5", marks=pytest.mark.slow),
    pytest.param(Level.RAID6, 6, {}, id="RAID6", marks=pytest.mark.slow),
    pytest.param(Level.RAID10, 4, {}, id="RAID10", marks=pytest.mark.slow),
    pytest.param(Level.RAID10, 5, {}, id="RAID1E"),
    pytest.param(Level.RAID5, 6, {"spans": 2}, id="RAID50", marks=pytest.mark.slow),
]


def catches_up(level: Level, members: int, options: dict) -> None:
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(level, range(members), **options))

        async def scenario() -> None:
            chunk = (await background.job(card.nvme, 0)).chunk_rows
            assert chunk * CHUNKS >= volume.rows > chunk * CHUNKS // 2
            for _ in range(3):
                # What is flushed need not be rebuilt, what is not may be forgotten.
                await card.load(volume, 30)
                assert (await flush_and_rest(card, volume)).marked == 0
                await write_some(card, volume, 20)
                gone = card.random.randrange(members)
                card.pull(volume.ports[gone])
                await write_some(card, volume, 20)
                assert await card.flush(volume) == 0
                job = await background.job(card.nvme, 0)
                assert 0 < job.marked < CHUNKS // 2, job
                written = await come_back(card, volume, gone)
                assert 0 < written < volume.rows // 2
                # Nothing is dropped before all of them have it.
                assert (await background.job(card.nvme, 0)).marked >= job.marked
                await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)

        async def after() -> None:
            card.pull(volume.ports[card.random.randrange(members)])
            await card.read_all(volume)

        card.run(after())
        card.finish(volume)


@pytest.mark.parametrize(("level", "members", "options"), LEVELS)
def test_a_member_catches_up(level, members, options):
    """It forgets what was not flushed, misses more, and comes back; then another one goes."""
    catches_up(level, members, options)


async def write_rows(card: Card, volume: Volume, count: int) -> set[int]:
    """Writes a block in each of so many random rows; the rows."""
    blocks_of: dict[int, list[int]] = {}
    for block in range(len(volume.model)):
        for place in volume.layout.copies_of(block):
            blocks_of.setdefault(place.row, []).append(block)
    rows = set(card.random.sample(sorted(blocks_of), count))
    address = card.buffer(1)
    for row in rows:
        block = card.random.choice(blocks_of[row])
        assert await card.write(volume, block, 1, address, 0, fua=False) == 0
    return rows


def marks_are_those_of_the_array() -> None:
    """A member of any array but the first comes back, while all others are written too."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        number, drives = card.random.randrange(1, USUAL.arrays), iter(range(PORTS))
        members = PORTS - USUAL.arrays + 1
        volumes = []
        for array in range(USUAL.arrays):
            level, count = (Level.RAID5, members) if array == number else (Level.JBOD, 1)
            ports = [next(drives) for _ in range(count)]
            volumes.append(card.run(card.create(level, ports)))
        assert [volume.array for volume in volumes] == list(range(USUAL.arrays))
        volume = volumes.pop(number)
        others = volumes
        print(f"array {number}")

        async def marked(of: Volume) -> int:
            return (await background.job(card.nvme, of.array)).marked

        async def scenario() -> None:
            chunk = (await background.job(card.nvme, number)).chunk_rows
            for _ in range(3):
                # Each array has other marks than the others.
                await card.load(volume, 20)
                for each in (volume, *others):
                    assert (await flush_and_rest(card, each)).marked == 0
                gone = card.random.randrange(members)
                card.pull(volume.ports[gone])
                wanted = {}
                for each in (volume, *others):
                    rows = await write_rows(card, each, card.random.randint(2, 6))
                    wanted[each.array] = {row // chunk for row in rows}
                for each in (volume, *others):
                    assert await marked(each) == len(wanted[each.array]), f"array {each.array}"
                written = await come_back(card, volume, gone)
                chunks = wanted[number]
                assert written == sum(min(chunk, volume.rows - c * chunk) for c in chunks)
                await card.read_all(volume)
            card.check(volume)
            card.pull(card.random.choice(volume.ports))
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume, *others)


@pytest.mark.slow
def test_marks_are_those_of_the_array():
    marks_are_those_of_the_array()


def test_only_the_same_drive_comes_back():
    """A drive that is another one, is away or was never failed; one given up; one replaced."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID6, range(5)))

        async def scenario() -> None:
            harness, nvme = card.harness, card.nvme
            await card.load(volume, 20)
            assert await refused(card, 1) == IN_USE
            assert await refused(card, 5) == INVALID_FIELD
            card.pull(1)
            await card.load(volume, 10)
            assert await refused(card, 1) == DRIVE_UNAVAILABLE
            harness.insert(1, blank=True)
            assert await refused(card, 1) == OTHER_DRIVE
            # The new one replaces it: everything is rebuilt.
            before = harness.drive_statistics(1)["written_blocks"]
            await background.replace_member(nvme, 0, 1, 1)
            assert (await finished(card)).state == JobState.DONE
            card.gone.discard(1)
            assert harness.drive_statistics(1)["written_blocks"] - before >= volume.rows
            job = await background.job(nvme, 0)
            assert job.marked == -(-volume.rows // job.chunk_rows)
            assert (await flush_and_rest(card, volume)).marked == 0
            # And is known from then on.
            card.pull(1)
            await write_some(card, volume, 10)
            assert await come_back(card, volume, 1) < volume.rows // 2
            # A drive that was given up, but is there and well.
            await flush_and_rest(card, volume)
            harness.drive_fault(3, lasting=True, deaf=True)
            await card.load(volume, 20)
            (array,) = await raid.arrays(nvme)
            while not array.members[3].failed:
                await card.load(volume, 5, writes=1.0)
                (array,) = await raid.arrays(nvme)
            harness.drive_fault(3, 0)
            await write_some(card, volume, 10)
            await come_back(card, volume, 3)
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


def test_a_rebuild_of_a_failed_array_destroys_nothing():
    """Another member is pulled while the first catches up. What the first has stays readable; and
    with the other one, which has missed nothing, the array is made again."""
    with Card([FORGETFUL] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID5, range(4)))
        back, gone = 1, 3

        async def scenario() -> None:
            harness, nvme = card.harness, card.nvme
            await card.load(volume, 30)
            assert (await flush_and_rest(card, volume)).marked == 0
            card.pull(back)
            await write_some(card, volume, 60)
            assert await card.flush(volume) == 0
            harness.insert(back)
            kept = [card.stored(back, row) for row in range(volume.rows)]
            await background.re_add(nvme, 0, back)
            card.pull(gone)
            job = await finished(card)
            assert (job.state, job.kind, job.lost) == (JobState.FAILED, WalkKind.REBUILD, 0), job
            assert job.array_state == ArrayState.FAILED and job.row < volume.rows
            with pytest.raises(NvmeError) as error:
                await background.start_job(nvme, 0, WalkKind.REBUILD)
            assert error.value.status & 0x7FF == NOT_REDUNDANT
            await raid.delete_volume(nvme, volume.namespace)
            await raid.delete_array(nvme, 0)
            # Every block of the drive by itself.
            alone = await raid.create_array(nvme, Level.JBOD, [back])
            namespace = await raid.create_volume(nvme, alone)
            address = card.buffer(1)
            for row in range(volume.rows):
                await nvme.read(namespace, row, 1, address)
                data = card.card.transport.memory.read(address, 4096)
                assert row < job.row or data == kept[row], f"row {row}"
            await raid.delete_volume(nvme, namespace)
            await raid.delete_array(nvme, alone)
            # The array with what has missed nothing, without the one that has.
            harness.remove(back)
            harness.insert(gone)
            strip_kib = volume.layout.strip_blocks * 4
            await raid.create_array(
                nvme,
                Level.RAID5,
                volume.ports,
                strip_kib=strip_kib,
                assume_consistent=True,
                degraded=True,
            )
            volume.namespace = await raid.create_volume(nvme, 0)
            await card.read_all(volume)
            harness.insert(back)
            await background.replace_member(nvme, 0, back, back)
            job = await finished(card)
            assert (job.state, job.array_state) == (JobState.DONE, ArrayState.OPTIMAL), job
            card.gone.clear()
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


SEQUENCER = "hdl.core.Sequencer"


class MarksOtherRows(Sequencer):
    """Planted bug: half way to the row that is written is what is marked."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        announced = m.submodules.planning.begun.payload
        m.d.comb += self.begun.payload.row.eq(announced.row >> 1)
        return m


class MarksArray0(Sequencer):
    """Planted bug: what is written is marked for array 0, whatever the array."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.begun.payload.array.eq(0)
        return m


class MarksRow0(Sequencer):
    """Planted bug: row 0 is marked, whatever the row."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.begun.payload.row.eq(0)
        return m


@pytest.mark.slow
@pytest.mark.parametrize("bug", [MarksArray0, MarksRow0])
def test_marks_elsewhere_are_found(bug, monkeypatch):
    plant(monkeypatch, SEQUENCER, bug)
    with pytest.raises(AssertionError):
        marks_are_those_of_the_array()


@pytest.mark.slow
def test_a_chunk_left_out_is_found(monkeypatch):
    plant(monkeypatch, SEQUENCER, MarksOtherRows)
    with pytest.raises(AssertionError):
        catches_up(Level.RAID5, 5, {})
