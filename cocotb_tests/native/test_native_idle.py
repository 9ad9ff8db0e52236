"""An array that nobody writes is clean on its drives, and dirty before the next row is written."""

import os
from collections.abc import Callable
from functools import partial

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from cocotb_tests.native.native_lives import job_ends, made, write
from hdl.background.jobs import JobState
from hdl.controller import Controller
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.metadata.found_set import Hindrance
from hdl.metadata.keeper import Keeper
from hdl.metadata.stored_marks import StoredMarks
from powercut.lives import CONFIG, DRIVE, POLL_NS, Known, Lives
from powercut.marks import sets
from sim.native.parameters import MICROSECOND
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
IDLE_NS = 4 * CONFIG.marks_idle_us * 1000
"""After that an array that nobody writes is clean."""
WRITTEN_NS = 160_000
"""How long the first write to an idle array takes at most, and how long it is until power goes."""
CUTS = 5

Component = Callable[[], wiring.Component] | None


def is_clean(lives: Lives) -> bool:
    """Whether the only array says so, while there is no power."""
    (found,) = sets(lives.images, DRIVE.capacity)
    return not found.dirty


async def idle(card: SimulatedCard, lives: Lives, level: Level, ports: list[int]) -> Known:
    """An array of these drives is there, full of data, and has been left alone."""
    await card.nvme.start()
    array = await made(card, lives, level, ports)
    await job_ends(card, array)
    await card.transport.sleep(IDLE_NS)
    return array


@pytest.mark.parametrize(
    ("level", "drives"),
    [
        (Level.RAID5, 4),
        pytest.param(Level.RAID1, 2, marks=pytest.mark.slow),
        pytest.param(Level.RAID6, 5, marks=pytest.mark.slow),
        pytest.param(Level.RAID10, 3, marks=pytest.mark.slow),
    ],
    ids=["RAID5", "RAID1", "RAID6", "RAID10"],
)
def test_idle_arrays_are_clean(level, drives):
    """A power cut costs no RESYNC. After that the array is in use, until it is idle again."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await idle(card, lives, level, list(range(drives)))

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (one,) = await raid.arrays(card.nvme)
        assert one.in_sync and one.assumed, one
        assert (await background.job(card.nvme, 0)).state == JobState.NONE
        await write(card, lives, lives.arrays[0], 1)

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert (await job_ends(card, lives.arrays[0])).state == JobState.DONE
        await write(card, lives, lives.arrays[0], 2)
        await card.transport.sleep(IDLE_NS)

    for life, clean in ((begin, True), (back, False), (again, True)):
        with lives.power() as card:
            card.run(life(card))
        assert is_clean(lives) == clean, life
    with lives.power() as card:
        card.run(back(card))


def test_a_degraded_array_comes_back():
    """A parity array that lacks a member comes back if it was idle, and else it is DOUBTFUL."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        array = await idle(card, lives, Level.RAID5, [0, 1, 2])
        card.harness.remove(1)
        array.lost = array.missed = {1}
        for block in range(0, array.blocks, 3):
            await write(card, lives, array, block)
        await card.transport.sleep(IDLE_NS)

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (one,) = await raid.arrays(card.nvme)
        assert one.missing == 1, one
        await write(card, lives, lives.arrays[0], 1)

    async def doubtful(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        drives = await raid.drives(card.nvme)
        assert {drives[port].hindrance for port in (0, 2)} == {Hindrance.DOUBTFUL}, drives

    for life in (begin, back, doubtful):
        with lives.power() as card:
            card.run(life(card))


@pytest.mark.slow
def test_a_member_that_dies_with_the_power():
    """What it held is there, if its array was idle."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await idle(card, lives, Level.RAID5, [0, 1, 2])

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        drives = await raid.drives(card.nvme)
        assert {drives[port].hindrance for port in (0, 1)} == {Hindrance.AWAITED}, drives
        await raid.import_array(card.nvme, 1, degraded=True)
        lives.arrays[0].lost = {2}
        await lives.look(card)

    with lives.power() as card:
        card.run(begin(card))
    lives.images[2] = {}
    with lives.power() as card:
        card.run(back(card))


LATENCIES_US = 1, 5, 15


def cuts_the_first_write(
    cuts: int, *, lost: int | None = None, component: Component = None
) -> tuple[int, int]:
    """Power goes as the first rows of an idle array are written. No array says that it is clean
    while a row is torn. Returns how often a row had been written, and how often the array came
    back."""
    lives = Lives(SEED, component=component)

    async def begin(card: SimulatedCard) -> None:
        array = await idle(card, lives, Level.RAID5, [0, 1, 2, 3])
        if lost is not None:
            card.harness.remove(lost)
            array.lost = array.missed = {lost}
            await write(card, lives, array, 0)
            await card.transport.sleep(IDLE_NS)

    async def cut(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        array = lives.arrays[0]
        await card.transport.sleep(IDLE_NS)
        for block in lives.random.sample(range(array.blocks), 3):
            card.transport.spawn(write(card, lives, array, block))
        await card.transport.sleep(lives.random.uniform(0, WRITTEN_NS))

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)

    with lives.power() as card:
        card.run(begin(card))
    assert is_clean(lives)
    stored = came = 0
    for _ in lives.branches(cuts):
        # The blocks of a row are stored one long after the other.
        latencies = [lives.random.choice(LATENCIES_US) * MICROSECOND for _ in range(CONFIG.ports)]
        with lives.power(latencies=latencies) as card:
            card.run(cut(card))
        stored += len(lives.arrays[0].begun) < 3
        with lives.power() as card:
            card.run(back(card))
        came += bool(lives.arrays)
    return stored, came


def test_power_goes_as_an_idle_array_is_written():
    _, came = cuts_the_first_write(CUTS)
    assert came == CUTS


@pytest.mark.slow
def test_power_goes_as_a_degraded_array_is_written():
    """It is there again, with what it held, or it is DOUBTFUL."""
    stored, came = cuts_the_first_write(6 * CUTS, lost=2)
    assert 0 < came < 6 * CUTS, came
    assert 0 < stored < 6 * CUTS, stored


def writes_what_has_failed(component: Component = None) -> None:
    """Drives go one after the other before there is a host, so nothing is written down. What the
    host writes then is refused, and lands on the drive that is left. Once all are back the array is
    made consistent."""
    lives = Lives(SEED, component=component)

    async def begin(card: SimulatedCard) -> None:
        await idle(card, lives, Level.RAID5, [0, 1, 2])
        await lives.shut_down(card)

    async def failed(card: SimulatedCard) -> None:
        await card.transport.sleep(20 * POLL_NS)
        for port in (0, 1):
            card.harness.remove(port)
            await card.transport.sleep(POLL_NS)
        await card.nvme.start()
        (one,) = await raid.arrays(card.nvme)
        assert one.state == ArrayState.FAILED, one
        array = lives.arrays[0]
        for block in range(array.blocks):
            with pytest.raises(NvmeError):
                await write(card, lives, array, block)
        array.clean = False

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert (await job_ends(card, lives.arrays[0])).state == JobState.DONE
        (one,) = await raid.arrays(card.nvme)
        assert one.state == ArrayState.OPTIMAL, one

    for life in (begin, failed, back):
        with lives.power() as card:
            card.run(life(card))


def test_an_array_that_has_failed_is_written():
    writes_what_has_failed()


class HoldsNobody(StoredMarks):
    """Planted bug: rows do not wait until superblocks say that the array is dirty."""

    def elaborate(self, platform) -> Module:
        self.clean = Signal.like(self.clean)
        return super().elaborate(platform)


class LeavesFailedOnes(Keeper):
    """Planted bug: nothing is written of an array that has failed, and its rows are let go."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._awaited.eq(0)
        for array in range(CONFIG.arrays):
            with m.If(self.states.word_select(array, 2) == ArrayState.FAILED):
                m.d.sync += self.says_clean[array].eq(0)
        return m


@pytest.mark.slow
def test_rows_that_do_not_wait_are_found(monkeypatch):
    monkeypatch.setattr("hdl.metadata.metadata.StoredMarks", HoldsNobody)
    with pytest.raises(AssertionError, match="are torn, and it is clean"):
        cuts_the_first_write(10 * CUTS, component=partial(Controller, config=CONFIG))


@pytest.mark.slow
def test_failed_arrays_that_stay_clean_are_found(monkeypatch):
    monkeypatch.setattr("hdl.metadata.metadata.Keeper", LeavesFailedOnes)
    with pytest.raises(AssertionError, match=r"JobState\.NONE.* == .*JobState\.DONE"):
        writes_what_has_failed(partial(Controller, config=CONFIG))
