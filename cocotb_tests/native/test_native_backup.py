"""A card with a backup unit loses its power at chosen moments (`Config.backup_blocks`)."""

import os
from collections.abc import Callable
from functools import partial

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from cocotb_tests.native.native_lives import job_ends, made
from hdl.background.jobs import JobState
from hdl.controller import Controller
from hdl.flow.geometry import Level
from hdl.redo.replay import Replay
from powercut.backup import BACKUP, FLASH, LEAST, OVERHEAD, BackupLives
from powercut.lives import POLL_NS
from sim.golden.redo import read
from sw.driver import background
from sw.driver.card import SimulatedCard
from sw.driver.commands import Admin, Command

SEED = int(os.environ.get("SEED") or "1")
WRITERS = 12
WORK_NS = 150_000
HEALTH_LOG = 0x02
BACKUP_FAILED = 1 << 4
"""Bit 4 of Critical Warning in the SMART log (NVMe 1.4 section 5.14.1.2)."""
REDUNDANT = (Level.RAID1, Level.RAID5, Level.RAID6, Level.RAID10)
WARNED = {"warning", "drives first", "cache off"}


class Chosen(BackupLives):
    """Lives in which just what is ``wanted`` happens."""

    def __init__(self, seed: int, *, component: Callable[[], wiring.Component] | None = None):
        super().__init__(seed, component=component)
        self.wanted: set[str] = set(WARNED)

    def _has(self, what: str) -> bool:
        return what in self.wanted

    async def begin(self, card: SimulatedCard, level: Level) -> None:
        """An array that has been shut down."""
        await self._wake(card)
        ports = {Level.RAID1: 2, Level.RAID10: 3}.get(level, 4)
        array = await made(card, self, level, list(range(ports)))
        await job_ends(card, array)
        await self.shut_down(card)

    async def work(self, card: SimulatedCard) -> None:
        """The host writes."""
        await self._wake(card)
        (array,) = self.arrays
        job = await background.job(card.nvme, array.number)
        assert job.state == JobState.NONE, job
        for _ in range(WRITERS):
            card.transport.spawn(self.write(card, array))
        await card.transport.sleep(WORK_NS + self.random.uniform(0, 30_000))

    async def start_and_write(self, card: SimulatedCard) -> None:
        """The host writes, whatever else goes on."""
        await self._wake(card)
        for array in self.arrays:
            for _ in range(WRITERS):
                card.transport.spawn(self.write(card, array))
        await card.transport.sleep(WORK_NS + self.random.uniform(0, 30_000))

    def live_once(self, life: Callable) -> None:
        """A life."""
        with self.power() as card:
            card.run(life(card))

    async def critical(self, card: SimulatedCard) -> int:
        """The critical warning."""
        dwords = (HEALTH_LOG | 127 << 16,)
        page = await card.nvme.admin_page(Command(Admin.GET_LOG_PAGE, 0xFFFF_FFFF, dwords=dwords))
        return page[0]


def saved(lives: Chosen) -> int:
    """How many blocks the flash holds."""
    record = read(lives.images[FLASH], overhead=OVERHEAD)
    assert record is not None, "there is no record"
    return len(record.blocks)


def worked(level: Level, *, component=None, seed: int = SEED) -> Chosen:
    """A card whose power has gone as it wrote, after a warning, with what is on its way saved."""
    lives = Chosen(seed, component=component)
    lives.live_once(partial(lives.begin, level=level))
    for _ in range(20):
        lives.live_once(lives.work)
        if saved(lives) > 3:
            return lives
    raise AssertionError("nothing was on its way")


@pytest.mark.parametrize(
    "level",
    [pytest.param(level, marks=[] if level is Level.RAID5 else pytest.mark.slow)
     for level in REDUNDANT],
)  # fmt: skip
@pytest.mark.parametrize("lost", [False, True], ids=["all drives", "a drive lost"])
def test_what_was_on_its_way_is_there(level, lost):
    """The array comes up without a RESYNC. If a drive is lost with the power the host can import
    it. All that was acknowledged is there, and rows are consistent."""
    lives = worked(level)
    covered = lives.seen["arrays that were covered"]
    if lost:
        lives.wanted.add("lost drive")
    lives.wake()
    assert lives.seen["arrays that were covered"] == covered + 1, dict(lives.seen)
    assert lives.seen["arrays imported without a drive that were covered"] == lost
    what = "blocks replayed" if lost else "blocks that drives lacked"
    assert lives.seen[what], dict(lives.seen)


@pytest.mark.slow
def test_a_replay_that_writes_nothing_is_found():
    """A checker that fails to see it would fail here."""

    class Idle(Replay):
        def elaborate(self, platform) -> Module:
            m = super().elaborate(platform)
            m.d.comb += self.operation.payload.fua.eq(0)
            m.d.comb += self.operation.payload.opcode.eq(0)
            return m

    class Careless(Controller):
        def elaborate(self, platform) -> Module:
            m = super().elaborate(platform)
            m.submodules.core._redo._replay = Idle(config=BACKUP)
            return m

    lives = worked(Level.RAID5, component=partial(Careless, config=BACKUP))
    with pytest.raises(AssertionError, match=" of "):
        lives.wake()


def test_cut_in_the_save():
    """The record does not count. The array is as without a backup unit."""
    lives = worked(Level.RAID5)
    lives.wanted.add("cut save")
    for _ in range(4):
        lives.live_once(lives.start_and_write)
        lives.wake()
    assert lives.seen["saves that were cut"], dict(lives.seen)


@pytest.mark.slow
def test_cut_in_the_replay():
    """Whenever the power goes again, the record is there once more."""
    lives = worked(Level.RAID6)
    covered = lives.seen["arrays that were covered"]
    for number in range(8):
        with lives.power() as card:
            card.transport.spawn(lives._start(card))
            card.run(card.transport.sleep(20_000 + 15_000 * number))
    lives.wake()
    assert lives.seen["arrays that were covered"] >= covered
    print(dict(lives.seen))


def test_an_old_record_is_not_replayed():
    """A card that has been without its flash has moved on."""
    lives = worked(Level.RAID5)
    flash = dict(lives.images[FLASH])
    lives.wanted = {"no flash"}
    lives.live_once(lives.start_and_write)
    assert lives.images[FLASH] == flash
    lives.wanted = set(WARNED)
    covered = lives.seen["arrays that were covered"]
    lives.wake()
    assert lives.seen["arrays that were covered"] == covered


@pytest.mark.parametrize("why", ["no flash", "no energy", "pulled"])
def test_a_unit_that_has_failed(why):
    """It is told in the SMART log, and nothing is saved."""
    lives = Chosen(SEED)
    lives.wanted |= {why}

    async def look(card: SimulatedCard) -> None:
        await lives._wake(card)
        if why == "pulled":
            assert not await lives.critical(card) & BACKUP_FAILED
            card.harness.remove(FLASH)
            await card.transport.sleep(POLL_NS)
            card.harness.insert(FLASH)  # it is not used any more
            lives._has_flash = False
        assert await lives.critical(card) & BACKUP_FAILED

    lives.live_once(look)
    assert lives.seen["cards that could not save"] == 1, dict(lives.seen)
    assert not lives.images[FLASH]


def test_little_energy():
    """What is on its way is never more than the energy can save, and the card goes on."""
    lives = worked(Level.RAID5)
    lives.wanted.add("little energy")
    most = 0
    for _ in range(3):
        lives.live_once(lives.start_and_write)
        most = max(most, saved(lives))
        assert lives._energy < 2 * LEAST
        assert OVERHEAD + saved(lives) <= lives._energy
    assert most, "nothing was on its way"


def test_without_fua_nothing_is_covered():
    """What drives may have in their caches is made consistent."""
    lives = worked(Level.RAID5)
    covered = lives.seen["arrays that were covered"]
    lives.wanted = {"warning"}
    lives.live_once(lives.start_and_write)
    lives.wake()
    assert lives.seen["arrays that were covered"] == covered + 1, "the first of them is"


def test_nothing_is_saved_before_the_host_enables_the_card():
    """The record of before stays, and is replayed the next time."""
    lives = worked(Level.RAID5)
    flash = dict(lives.images[FLASH])
    covered = lives.seen["arrays that were covered"]
    lives._energy = 1 << 20
    with lives.power() as card:
        card.run(card.transport.sleep(50_000))
    assert lives.images[FLASH] == flash
    lives.wake()
    assert lives.seen["arrays that were covered"] == covered + 1
