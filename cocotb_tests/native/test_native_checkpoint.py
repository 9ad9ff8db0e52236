"""A rebuild that power interrupts goes on where its marks on the drives say."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from cocotb_tests.native.native_lives import job_ends, made, write
from hdl.background.idle_flush import IdleFlush
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.controller import Controller
from hdl.flow.geometry import Level
from hdl.metadata.keeper import Keeper
from powercut import lives as powercut_lives
from powercut.lives import CONFIG, DRIVE, POLL_NS, Known, Lives
from powercut.marks import sets
from sim.native.parameters import MICROSECOND
from sw.driver import background, raid
from sw.driver.card import SimulatedCard

Component = Callable[[], wiring.Component] | None

SEED = int(os.environ.get("SEED") or "1")
ROWS = 256
"""More than the lives have, so that a rebuild lasts for many checkpoints."""
SLOW = replace(DRIVE, capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=20 * MICROSECOND)
LIFE_NS = 32 * CONFIG.checkpoint_us * 1000
PAUSE_NS = 200_000
"""Between two writes of the host."""
LIVES = 20
CUTS, REPLACED_NS = 6, 600_000
"""Cuts as a member is replaced, and how long that takes at most."""


@pytest.fixture(autouse=True)
def _slow_drives(monkeypatch) -> None:
    print(f"SEED={SEED}")
    monkeypatch.setattr(powercut_lives, "DRIVE", SLOW)


async def begins(card: SimulatedCard, lives: Lives, level: Level, ports: list[int]) -> Known:
    """Another drive takes the place of a member, and its rebuild begins."""
    await card.nvme.start()
    array = await made(card, lives, level, ports)
    await job_ends(card, array)
    card.harness.remove(1)
    array.lost = array.missed = {1}
    await write(card, lives, array, 3)
    card.harness.insert(1, blank=True)
    await card.transport.sleep(POLL_NS)
    await background.replace_member(card.nvme, array.number, 1, 1)
    array.missed, array.healing = set(), {1}
    return array


def rebuilt_rows(lives: Lives) -> int:
    """Rows of the stale member that nothing marks, while there is no power."""
    return lives.seen["rows of stale members that were rebuilt"]


def is_whole(lives: Lives) -> bool:
    """Whether no member is stale or missing, while there is no power."""
    (found,) = sets(lives.images, SLOW.capacity)
    return not found.degraded


def goes_on(
    level: Level, ports: list[int], *, writes: bool, component: Component = None
) -> None:
    """Power goes again and again. In each life the rebuild gets further than in the one before. In
    the end the drive is a member, and what it has been rebuilt with is right."""
    lives = Lives(SEED, component=component)

    async def work(card: SimulatedCard, array: Known) -> None:
        while True:
            await card.transport.sleep(PAUSE_NS)
            await write(card, lives, array, lives.random.randrange(array.blocks))

    async def rebuild(card: SimulatedCard, array: Known) -> None:
        await background.set_rate(card.nvme, 100)
        if writes:
            card.transport.spawn(work(card, array))
        await card.transport.sleep(LIFE_NS)

    async def first(card: SimulatedCard) -> None:
        await rebuild(card, await begins(card, lives, level, ports))

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        job = await background.job(card.nvme, 0)
        left = ROWS - before
        assert job.marked * job.chunk_rows <= left, f"{left} rows were left, and {job} begins anew"
        await lives.look(card)
        await rebuild(card, lives.arrays[0])

    async def last(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        await job_ends(card, array)
        (one,) = await raid.arrays(card.nvme)
        assert not one.missing and not any(member.stale for member in one.members), one
        card.harness.remove(0)
        array.lost = {0}
        await lives.look_again(card)

    with lives.power() as card:
        card.run(first(card))
    before = counted = rebuilt_rows(lives)
    print(f"{before} of {ROWS} rows rebuilt")
    assert 0 < before < ROWS
    for _ in range(LIVES):
        if is_whole(lives):
            break
        with lives.power() as card:
            card.run(again(card))
        # What is counted is of all lives.
        now, counted = rebuilt_rows(lives) - counted, rebuilt_rows(lives)
        print(f"{now} of {ROWS} rows rebuilt")
        assert now > before or is_whole(lives), "it gets no further"
        before = now
    assert is_whole(lives), "it never ends"
    with lives.power() as card:
        card.run(last(card))


@pytest.mark.parametrize(
    ("level", "ports", "writes"),
    [
        (Level.RAID1, [0, 1], True),
        pytest.param(Level.RAID5, [0, 1, 2], False, marks=pytest.mark.slow),
        pytest.param(Level.RAID10, [0, 1, 2], True, marks=pytest.mark.slow),
    ],
    ids=["RAID1", "RAID5", "RAID1E"],
)
def test_a_rebuild_goes_on(level, ports, writes):
    goes_on(level, ports, writes=writes)


class DropsUnflushed(IdleFlush):
    """Planted bug: marks of rows are dropped that stale members have not stored."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += [self.ask.payload.eq(0), self.epoch.good.eq(1)]
        return m


class RebuildsMore(IdleFlush):
    """Planted bug: more rows count as rebuilt than have been."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.epoch.rows.eq(self.boundary_read.data + ROWS // 4)
        return m


class MarksLate(Keeper):
    """Planted bug: superblocks name a new member before all rows are marked for it."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self.unmarked.eq(0)
        return m


def cuts_the_replacement(component: Component = None) -> None:
    """Power goes as a drive takes the place of a member."""
    lives = Lives(SEED, component=component)

    async def first(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID1, [0, 1])
        await job_ends(card, array)
        card.harness.remove(1)
        array.lost = array.missed = {1}
        await write(card, lives, array, 3)
        array.healing = {1}

    async def cut(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        array.missed, array.healing = set(), {1}
        card.transport.spawn(background.replace_member(card.nvme, array.number, 1, 1))
        array.others.add(1)
        await card.transport.sleep(lives.random.uniform(0, REPLACED_NS))

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        await job_ends(card, array)
        await lives.look_again(card)

    with lives.power() as card:
        card.run(first(card))
    lives.images[1] = {}
    stale = 0
    for _ in lives.branches(CUTS):
        with lives.power() as card:
            card.run(cut(card))
        found = sets(lives.images, SLOW.capacity)
        stale += any(one.rebuilding for one in found)
        with lives.power() as card:
            card.run(back(card))
    assert 0 < stale < CUTS, stale


@pytest.mark.slow
def test_power_goes_as_a_member_is_replaced():
    cuts_the_replacement()


@pytest.mark.slow
@pytest.mark.parametrize("bug", [DropsUnflushed, RebuildsMore])
def test_planted_bugs_are_found(bug, monkeypatch):
    monkeypatch.setattr("hdl.background.background.IdleFlush", bug)
    component = partial(Controller, config=CONFIG)
    with pytest.raises(AssertionError, match="are torn, and not marked"):
        goes_on(Level.RAID1, [0, 1], writes=True, component=component)


@pytest.mark.slow
def test_a_member_that_is_named_too_soon_is_found(monkeypatch):
    monkeypatch.setattr("hdl.metadata.metadata.Keeper", MarksLate)
    with pytest.raises(AssertionError, match="are torn, and not marked"):
        cuts_the_replacement(partial(Controller, config=CONFIG))
