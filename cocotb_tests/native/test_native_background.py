"""Background work on the whole 8-port controller, on the native tier, with the host at work."""

import os
from dataclasses import replace

import pytest

from campaign.bounds import ladder_ns
from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from cocotb_tests.native.native_jobs import FAST, POLL_NS, POLLS, ROWS, finished, replaced
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from sim.golden.layout import Place
from sim.golden.nvme import ASYNC_EVENT, JOB_RUNNING, UNRECOVERED_READ
from sim.golden.nvme_logs import ARRAYS_LOG, VENDOR_EVENT
from sw.driver import background, raid
from sw.driver.commands import Command, NvmeError

SEED = int(os.environ.get("SEED") or "1")


@pytest.mark.parametrize(
    ("level", "members", "then"),
    [
        pytest.param(Level.RAID5, 6, (0,), id="RAID5", marks=pytest.mark.slow),
        pytest.param(Level.RAID6, 6, (0, 1), id="RAID6", marks=pytest.mark.slow),
        pytest.param(Level.RAID10, 6, (3,), id="RAID10"),
        pytest.param(Level.RAID10, 5, (1,), id="RAID1E"),
    ],
)
def test_rebuilds_under_load(level, members, then):
    """A drive goes, another takes its place under load; then the rest of the redundancy goes."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(members)))

        async def scenario() -> None:
            spawn = card.card.transport.spawn
            nvme = card.nvme
            spawn(card.load(volume, 60))
            card.pull(2)
            await card.load(volume, 60)
            (array,) = await raid.arrays(nvme)
            degraded = ArrayState.DEGRADED
            if level == Level.RAID6:
                degraded = ArrayState.PARTIALLY_DEGRADED
            assert array.state == degraded and array.members[2].failed
            # The host is at work before, during and after.
            for row in range(ROWS):
                card.store(6, row, card.random.randbytes(4096))
            await background.replace_member(nvme, 0, 2, 6)
            replaced(card, volume, 2, 6)
            await card.load(volume, 120)
            job = await finished(card)
            assert job.state == JobState.DONE and job.kind == WalkKind.REBUILD, job
            assert job.row == ROWS and not job.lost
            (array,) = await raid.arrays(nvme)
            assert array.state == ArrayState.OPTIMAL and array.members[2].port == 6
            assert not array.members[2].stale
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)

        async def after() -> None:
            for port in then:
                card.pull(port)
            await card.load(volume, 60)
            await card.read_all(volume)

        card.run(after())
        card.finish(volume)


def test_hot_spares_step_in():
    """Two drives of a RAID 6 go under load; two spares take their places by themselves."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(Level.RAID6, range(6)))

        async def scenario() -> None:
            nvme = card.nvme
            for port in (6, 7):
                await background.add_spare(nvme, port)
            card.card.transport.spawn(card.load(volume, 100))
            card.pull(1)
            await card.load(volume, 10)
            card.pull(4)
            await card.load(volume, 40)
            for _ in range(POLLS):
                (array,) = await raid.arrays(nvme)
                if array.state == ArrayState.OPTIMAL:
                    break
                await card.card.transport.sleep(POLL_NS)
            assert array.state == ArrayState.OPTIMAL
            assert {array.members[1].port, array.members[4].port} == {6, 7}
            for place in (1, 4):
                replaced(card, volume, volume.ports[place], array.members[place].port)
            drives = await raid.drives(nvme)
            assert drives[1].array is None and drives[7].array == 0
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


def test_a_rest_holds_nobody_up():
    """A drive hangs under a PATROL at the lowest rate and under load. Then the host is silent, and
    a spare steps in for a drive of another array: it is rebuilt at once."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:
        patrolled = card.run(card.create(Level.RAID5, range(3)))
        mirror = card.run(card.create(Level.RAID1, (3, 4)))

        async def scenario() -> None:
            nvme, sleep = card.nvme, card.card.transport.sleep
            await background.add_spare(nvme, 7)
            await background.set_rate(nvme, 1)
            card.harness.drive_fault(0, 1)

            async def patrol() -> None:
                await sleep(20_000)
                await background.start_job(nvme, patrolled.array, WalkKind.PATROL)

            await card.together([card.load(mirror, 60, workers=4, writes=0), patrol()])
            await sleep(2 * ladder_ns(USUAL))
            assert card.harness.drive_statistics(0)["aborts"], "no command has hung"
            began = card.harness.now_ns
            card.pull(3)
            job = await background.job(nvme, mirror.array)
            while job.kind != WalkKind.REBUILD or job.state == JobState.RUNNING:
                assert card.harness.now_ns - began < ladder_ns(USUAL), f"rests: {job}"
                await sleep(POLL_NS)
                job = await background.job(nvme, mirror.array)
            assert job.state == JobState.DONE

        card.run(scenario())


def test_a_new_drive_in_the_place_of_one_that_was_replaced():
    """A member is given up, a new drive put in its slot, and a spare elsewhere takes its place: the
    new drive is as good as any, and steps in for the next. The old one, left there, would not."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:
        volume = card.run(card.create(Level.RAID5, range(4)))
        nvme = card.nvme

        async def give_up(port: int) -> None:
            card.harness.drive_fault(port, deaf=True, lasting=True)
            await card.load(volume, 40)
            while not (await raid.drives(nvme))[port].failed:
                await card.load(volume, 10)

        async def replace_by(old: int, new: int) -> None:
            place = volume.ports.index(old)
            await background.replace_member(nvme, 0, place, new)
            replaced(card, volume, old, new)
            assert (await finished(card)).state == JobState.DONE

        async def scenario() -> None:
            await give_up(1)
            card.harness.remove(1)
            await card.card.transport.sleep(POLL_NS)
            card.harness.insert(1, blank=True)
            await replace_by(1, 6)
            drive = (await raid.drives(nvme))[1]
            assert not drive.failed and drive.array is None, drive
            await background.add_spare(nvme, 1)
            await give_up(2)
            assert (await finished(card)).state == JobState.DONE
            [array] = await raid.arrays(nvme)
            assert array.state == ArrayState.OPTIMAL and array.members[2].port == 1
            replaced(card, volume, 2, 1)
            drive = (await raid.drives(nvme))[2]
            assert drive.failed and drive.array is None, drive
            with pytest.raises(NvmeError):
                await background.add_spare(nvme, 2)
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


def test_tells_every_change_of_a_state():
    """A vendor specific event when a drive goes and when it is back, cleared by log C0h."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(Level.RAID1, range(2)))

        async def scenario() -> None:
            nvme = card.nvme
            spawn = card.card.transport.spawn
            told: list[int] = []

            async def listen() -> None:
                done = await nvme.admin(Command(ASYNC_EVENT), "event")
                told.append(done.result)

            for change in ("pull", "return"):
                spawn(listen())
                await card.card.transport.sleep(POLL_NS)
                assert not told
                if change == "pull":
                    card.pull(1)
                else:
                    card.harness.insert(1, blank=True)
                    await background.replace_member(nvme, 0, 1, 1)
                    card.gone.discard(1)
                for _ in range(POLLS):
                    if told:
                        break
                    await card.card.transport.sleep(POLL_NS)
                result = told.pop()
                assert result & 7 == VENDOR_EVENT and result >> 16 == ARRAYS_LOG
                job = await background.job(nvme, 0)
                assert job.array_state == (
                    ArrayState.DEGRADED if change == "pull" else ArrayState.OPTIMAL
                )
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


@pytest.mark.parametrize("level", [Level.RAID5, Level.RAID6])
def test_initialises_and_patrols(level):
    """Parities of drives full of rubbish become right, and unreadable blocks are written anew."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def scenario() -> Volume:
            nvme = card.nvme
            volume = await card.create(level, range(5), in_sync=False)
            card.card.transport.spawn(card.load(volume, 40))
            job = await finished(card)
            assert (job.state, job.row, job.lost) == (JobState.DONE, ROWS, 0), job
            await card.load(volume, 20)
            spoiled = {Place(card.random.randrange(5), row) for row in range(3, ROWS, 7)}
            for place in spoiled:
                card.spoil(volume, place)
            await background.start_job(nvme, 0, WalkKind.PATROL)
            job = await finished(card)
            assert (job.state, job.mended, job.lost) == (JobState.DONE, len(spoiled), 0), job
            found = [finding.blocks for finding in await background.defects(nvme)]
            assert sorted(found) == sorted(
                ((volume.ports[place.position], DATA_OFFSET_BLOCKS + place.row),)
                for place in spoiled
            )
            return volume

        volume = card.run(scenario())
        card.finish(volume)


def test_lost_blocks_are_told():
    """RAID 5 loses a drive while a block of another cannot be read: only its host block is lost."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(Level.RAID5, range(5)))
        layout = volume.layout
        # A data block of row 9 at place 1 is unreadable, and the drive at place 3 goes.
        lost_place, gone = Place(1, 9), 3
        while {lost_place.position, gone} & set(layout.parity_places(lost_place.row)):
            lost_place = replace(lost_place, row=lost_place.row + 1)
        lost = {layout.inverse(lost_place), layout.inverse(Place(gone, lost_place.row))}

        async def scenario() -> None:
            nvme = card.nvme
            await background.add_spare(nvme, 7)
            card.spoil(volume, lost_place)
            card.pull(gone)
            for _ in range(POLLS):
                job = await background.job(nvme, 0)
                if job.kind == WalkKind.REBUILD and job.state == JobState.DONE:
                    break
                await card.card.transport.sleep(POLL_NS)
            assert job.lost == 1 and job.array_state == ArrayState.OPTIMAL, job
            (array,) = await raid.arrays(nvme)
            assert array.members[gone].port == 7 and array.state == ArrayState.OPTIMAL
            replaced(card, volume, gone, 7)
            (found,) = await background.lost_blocks(nvme)
            assert found.array == 0 and found.row == lost_place.row
            assert set(found.blocks) == {
                (volume.ports[place], DATA_OFFSET_BLOCKS + lost_place.row)
                for place in (lost_place.position, gone)
            }
            # Every block but those two is there.
            address = card.buffer(1)
            for block in range(len(volume.model)):
                status = await card.read(volume, block, 1, address)
                wanted = UNRECOVERED_READ if block in lost else 0
                assert status == wanted, f"block {block}: status {status:#x}"
            # Written, they are there again.
            for block in lost:
                assert await card.write(volume, block, 1, address, 0, fua=False) == 0
            await card.read_all(volume)
            # The parity is not known until all data can be read and someone asks for it.
            await background.start_job(nvme, 0, WalkKind.REPAIR)
            assert (await finished(card)).lost == 0

        card.run(scenario())
        card.finish(volume)


@pytest.mark.parametrize("level", [Level.RAID5, Level.RAID6])
def test_checks_and_repairs(level):
    """A check counts rows that disagree and changes nothing; a repair mends, RAID 6 even data."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(6)))
        layout = volume.layout
        wrong = {}
        for row in range(2, ROWS, 9):
            # With one parity nothing says that data is wrong, so there it is the parity.
            place = card.random.randrange(6)
            if level == Level.RAID5:
                (place,) = layout.parity_places(row)
            wrong[row] = place
            card.store(volume.ports[place], row, card.random.randbytes(4096))

        async def scenario() -> None:
            nvme = card.nvme
            for kind, expected in (
                (WalkKind.CHECK, len(wrong)),
                (WalkKind.REPAIR, len(wrong)),
                (WalkKind.CHECK, 0),
            ):
                await background.start_job(nvme, 0, kind)
                job = await finished(card)
                assert (job.state, job.mismatched, job.lost) == (JobState.DONE, expected, 0), job
            found = await background.defects(nvme)
            assert {finding.row for finding in found} == set(wrong)
            if level == Level.RAID6:
                assert all(
                    finding.blocks
                    == ((volume.ports[wrong[finding.row]], DATA_OFFSET_BLOCKS + finding.row),)
                    for finding in found
                )
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)


def test_zeroes_before_there_is_a_volume():
    """Every block of every member is zero; only then is there a volume."""
    with Card([FAST] * PORTS, seed=SEED) as card:

        async def scenario() -> None:
            nvme = card.nvme
            for port in range(4):
                for row in range(ROWS):
                    card.store(port, row, card.random.randbytes(4096))
            array = await raid.create_array(nvme, Level.RAID5, range(4), zero=True)
            with pytest.raises(NvmeError) as refused:
                await raid.create_volume(nvme, array)
            assert refused.value.status & 0x7FF == JOB_RUNNING
            job = await finished(card, array)
            assert job.state == JobState.DONE and job.kind == WalkKind.ZERO
            for port in range(4):
                assert not any(any(card.stored(port, row)) for row in range(ROWS))
            assert await raid.create_volume(nvme, array) == 1
            with pytest.raises(NvmeError):
                await background.start_job(nvme, array, WalkKind.ZERO)

        card.run(scenario())
        card.finish()
