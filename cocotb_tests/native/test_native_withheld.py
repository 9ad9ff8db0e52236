"""What a card with `Config.metadata` tells the host while the loss of a drive is written down, and
after an array has failed."""

import os
from collections import Counter
from functools import partial
from itertools import count

import pytest
from amaranth.hdl import Module, Signal

from cocotb_tests.native.native_lives import job_ends, made
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES
from hdl.controller import Controller
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.host_command import Status
from hdl.flow.walk import WalkKind
from hdl.metadata.keeper import Keeper
from hdl.metadata.withheld import Withheld
from powercut.lives import CONFIG, POLL_NS, Known, Lives, contents
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
WRITE_FAULT = 0x280
HANGS_NS = 2_800_000
"""How long a drive hangs at most that is not given up."""
SLOW_NS = 200_000
"""How much longer a drive takes for a superblock."""
BEGUN_NS = 20_000
"""By then the superblocks are on their way."""
IDLE_NS = 3 * CONFIG.marks_idle_us * 1000
"""After that an array that nobody writes is clean."""
SOON_NS = 5_000
"""How soon power goes after a write has ended well."""
WRITTEN = 5
"""Blocks that the host writes at the same time."""
SLOWEST, FASTEST = 1, 100
"""Rates of jobs in percent."""


async def put(card: SimulatedCard, array: Known, block: int, number: int) -> float:
    """The host writes a block with FUA. Returns when it was told that this is done."""
    address = card.transport.memory.allocate(BLOCK_BYTES)
    card.transport.memory.write(address, contents(block, number))
    await card.nvme.write(array.namespace, block, 1, address, fua=True)
    return card.harness.now_ns


async def got(card: SimulatedCard, array: Known, block: int) -> bytes:
    """What the host reads."""
    address = card.transport.memory.allocate(BLOCK_BYTES)
    await card.nvme.read(array.namespace, block, 1, address)
    return card.transport.memory.read(address, BLOCK_BYTES)


def test_others_do_not_wait():
    """A drive of an array goes, and another one of it is slow to store that. Its commands wait for
    that. Those of another array do not."""
    lives = Lives(SEED)
    ended: dict[str, float] = {}

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        one = await made(card, lives, Level.RAID1, [0, 1, 2])
        other = await made(card, lives, Level.RAID1, [3, 4])
        for array in (one, other):
            await job_ends(card, array)
            await put(card, array, 0, 7)

        async def writes(array: Known, name: str) -> None:
            ended[name] = await put(card, array, 1, 8)

        card.harness.drive_fault(1, 1, delay_ns=SLOW_NS)
        began = card.harness.now_ns
        card.harness.remove(0)
        await card.transport.sleep(BEGUN_NS)
        for array, name in ((one, "one"), (other, "other")):
            card.transport.spawn(writes(array, name))
        while len(ended) < 2:
            await card.transport.sleep(POLL_NS)
        print({name: at - began for name, at in ended.items()})
        assert ended["one"] > began + SLOW_NS, "nothing was withheld"
        assert ended["other"] < began + SLOW_NS / 4, "the other array waits as well"

    with lives.power() as card:
        card.run(life(card))


def test_writes_end_well_after_salvage():
    """An array fails before the loss of its last drive has been written down. Its writes end badly
    until it has been salvaged. Then they end well, and are there after a power cut."""
    lives = Lives(SEED)
    number = 1_000

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, [0, 1, 2])
        other = await made(card, lives, Level.RAID1, [3, 4])
        for one in (array, other):
            await job_ends(card, one)
        await background.set_rate(card.nvme, SLOWEST)
        card.harness.remove(0)
        await card.transport.sleep(20 * POLL_NS)
        card.harness.insert(0)
        await background.replace_member(card.nvme, array.number, 0, 0)
        card.harness.remove(1)
        await card.transport.sleep(20 * POLL_NS)
        (state,) = [one for one in await raid.arrays(card.nvme) if one.number == array.number]
        assert state.state == ArrayState.FAILED and state.members[0].stale, state
        for block in range(array.blocks):
            with pytest.raises(NvmeError) as caught:
                await put(card, array, block, 1)
            assert caught.value.status == WRITE_FAULT
        await put(card, other, 0, number)
        await background.set_rate(card.nvme, FASTEST)
        await background.start_job(card.nvme, array.number, WalkKind.SALVAGE)
        job = await job_ends(card, array)
        assert (job.kind, job.state) == (WalkKind.SALVAGE, JobState.DONE), job
        for block in range(array.blocks):
            await put(card, array, block, number)
        await card.transport.sleep(IDLE_NS)

    async def back(card: SimulatedCard) -> None:
        """The drive that went is there, and too old."""
        await card.nvme.start()
        states = {state.level: state for state in await raid.arrays(card.nvme)}
        volumes = {volume.array: volume.namespace for volume in await raid.volumes(card.nvme)}
        failed = {
            level: [role for role, member in enumerate(state.members) if member.failed]
            for level, state in states.items()
        }
        assert failed == {Level.RAID5: [1], Level.RAID1: []}, failed
        for array in lives.arrays:
            array.namespace = volumes[states[array.level].number]
            for block in range(array.blocks if array.level == Level.RAID5 else 1):
                assert await got(card, array, block) == contents(block, number), block

    with lives.power() as card:
        card.run(life(card))
        card.harness.insert(1)
    with lives.power() as card:
        card.run(back(card))


def test_copies_that_went_one_after_the_other():
    """The card is busy with a drive of another array as both drives of a mirror go. The host is not
    told that what is on the second one alone is stored."""
    lives = Lives(SEED)
    told: list[int] = []

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID1, [0, 1])
        other = await made(card, lives, Level.RAID1, [3, 4, 5])
        for one in (array, other):
            await job_ends(card, one)
            await put(card, one, 0, 7)

        async def writes() -> None:
            try:
                await put(card, array, 1, 8)
                told.append(0)
            except NvmeError as error:
                told.append(error.status)

        before = card.harness.drive_statistics(4)["writes"]
        card.harness.remove(3)
        while card.harness.drive_statistics(4)["writes"] == before:
            await card.transport.sleep(100)
        card.harness.drive_fault(4, 1, delay_ns=20 * SLOW_NS)
        await card.transport.sleep(BEGUN_NS)
        card.harness.remove(0)
        card.transport.spawn(writes())
        await card.transport.sleep(SLOW_NS)
        assert not told
        card.harness.remove(1)
        await card.transport.sleep(BEGUN_NS)
        assert not told
        while not told:
            await card.transport.sleep(POLL_NS)
        assert told == [WRITE_FAULT], told

    with lives.power() as card:
        card.run(life(card))


def test_writes_that_wait_over_a_salvage():
    """The card is busy with a drive of a mirror as another array loses a drive, fails, and is
    salvaged. Its writes have waited all the time. None is told to be stored that is not there."""
    lives = Lives(SEED)
    told: dict[int, int] = {}
    blocks = range(12)

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID6, [0, 1, 2, 3])
        other = await made(card, lives, Level.RAID1, [4, 5])
        for one in (array, other):
            await job_ends(card, one)

        async def writes(block: int) -> None:
            try:
                await put(card, array, block, 500 + block)
                told[block] = 0
            except NvmeError as error:
                told[block] = error.status

        async def uses() -> None:
            try:
                while True:
                    await put(card, array, array.blocks - 1, 9)
            except NvmeError as error:
                if error.status != WRITE_FAULT:
                    raise

        await background.set_rate(card.nvme, SLOWEST)
        card.transport.spawn(uses())
        card.harness.remove(0)
        await card.transport.sleep(20 * POLL_NS)
        card.harness.insert(0)
        await background.replace_member(card.nvme, array.number, 0, 0)
        before = card.harness.drive_statistics(5)["writes"]
        card.harness.remove(4)
        while card.harness.drive_statistics(5)["writes"] == before:
            await card.transport.sleep(100)
        card.harness.drive_fault(5, 1, delay_ns=HANGS_NS)
        await card.transport.sleep(BEGUN_NS)
        card.harness.remove(1)
        await card.transport.sleep(BEGUN_NS / 2)
        for block in blocks:
            card.transport.spawn(writes(block))
        await card.transport.sleep(3 * BEGUN_NS)
        assert not told
        card.harness.remove(2)
        await card.transport.sleep(2 * POLL_NS)
        (state,) = [one for one in await raid.arrays(card.nvme) if one.number == array.number]
        assert state.state == ArrayState.FAILED, state
        await background.set_rate(card.nvme, FASTEST)
        await job_ends(card, array)
        await background.start_job(card.nvme, array.number, WalkKind.SALVAGE)
        assert (await job_ends(card, array)).state == JobState.DONE
        while len(told) < len(blocks):
            await card.transport.sleep(POLL_NS)
        assert set(told.values()) == {WRITE_FAULT}, told
        for block in blocks:
            await put(card, array, block, 600 + block)
            assert await got(card, array, block) == contents(block, 600 + block)

    with lives.power() as card:
        card.run(life(card))


class Salvaged:
    """A mirror fails as one of its drives is being rebuilt, and is salvaged. Meanwhile the host
    writes, and at some time power goes.

    ``stored`` is the number that each block holds for sure, ``begun`` are those that it may hold
    instead.
    """

    def __init__(self, lives: Lives):
        self.lives = lives
        self.numbers = count(100)
        self.stored: dict[int, int] = {}
        self.begun: dict[int, set[int]] = {}
        self.failed, self.again = False, 0
        self.seen: Counter = Counter()

    async def begin(self, card: SimulatedCard) -> None:
        """The mirror."""
        await card.nvme.start()
        await job_ends(card, await made(card, self.lives, Level.RAID1, [0, 1]))
        await self.lives.shut_down(card)

    async def write(self, card: SimulatedCard, block: int) -> None:
        """The host writes a block again and again."""
        (array,) = self.lives.arrays
        while True:
            number = next(self.numbers)
            self.begun.setdefault(block, set()).add(number)
            try:
                await put(card, array, block, number)
                self.stored[block], self.begun[block] = number, set()
                self.again += self.failed
                self.seen["again" if self.failed else "before"] += 1
            except NvmeError as error:
                if error.status != WRITE_FAULT:
                    raise
                self.seen["refused"] += 1

    async def life(self, card: SimulatedCard) -> None:
        """What happens until power goes."""
        chosen = self.lives.random
        self.stored, self.begun = {}, {}
        self.failed, self.again = False, 0
        await card.nvme.start()
        (array,) = self.lives.arrays
        (one,) = await raid.arrays(card.nvme)
        array.number = one.number
        await background.set_rate(card.nvme, SLOWEST)
        card.harness.remove(0)
        await card.transport.sleep(20 * POLL_NS)
        card.harness.insert(0)
        await background.replace_member(card.nvme, array.number, 0, 0)
        for block in range(WRITTEN):
            card.transport.spawn(self.write(card, block))
        await card.transport.sleep(chosen.uniform(0, BEGUN_NS))
        card.harness.remove(1)
        card.transport.spawn(self.salvage(card, chosen.uniform(0, SLOW_NS)))
        if chosen.random() < 0.5:
            await card.transport.sleep(chosen.uniform(0, 3 * SLOW_NS))
        else:
            while not self.again:
                await card.transport.sleep(100)
            await card.transport.sleep(chosen.uniform(0, SOON_NS))

    async def salvage(self, card: SimulatedCard, later: float) -> None:
        """The array is salvaged, if it has failed."""
        await card.transport.sleep(later)
        (array,) = self.lives.arrays
        (one,) = await raid.arrays(card.nvme)
        self.failed = True
        if one.state == ArrayState.FAILED:
            self.seen["failed"] += 1
            await background.set_rate(card.nvme, FASTEST)
            await job_ends(card, array)
            await background.start_job(card.nvme, array.number, WalkKind.SALVAGE)
            await job_ends(card, array)

    async def back(self, card: SimulatedCard) -> None:
        """What was acknowledged is there."""
        await card.nvme.start()
        (array,) = self.lives.arrays
        (one,) = await raid.arrays(card.nvme)
        self.seen["drives that are too old"] += one.members[1].failed
        for block, number in self.stored.items():
            page = await got(card, array, block)
            allowed = {number, *self.begun.get(block, ())}
            assert page in [contents(block, one) for one in allowed], (block, page[:16], allowed)


def cuts_after_salvage(lives: Lives, cuts: int) -> Counter:
    """Lets power go so often. Returns what has been seen."""
    salvaged = Salvaged(lives)
    with lives.power() as card:
        card.run(salvaged.begin(card))
    for _ in lives.branches(cuts):
        for life in (salvaged.life, salvaged.back):
            with lives.power() as card:
                card.run(life(card))
    print(dict(salvaged.seen))
    return salvaged.seen


@pytest.mark.slow
def test_power_goes_after_salvage():
    """What is acknowledged before and after an array has failed is there when power comes."""
    seen = cuts_after_salvage(Lives(SEED), 20)
    for what in ("failed", "refused", "again", "drives that are too old"):
        assert seen[what], seen


class TellsOfSuccess(Withheld):
    """A planted bug: the host is told that writes have ended well which nobody has stored."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.told.payload.status.eq(Status.SUCCESS)
        return m


@pytest.mark.slow
def test_writes_that_are_lost_in_a_salvage_are_found(monkeypatch):
    monkeypatch.setattr("hdl.core.Withheld", TellsOfSuccess)
    with pytest.raises((AssertionError, NvmeError)):
        cuts_after_salvage(Lives(SEED, component=partial(Controller, config=CONFIG)), 20)


class WithholdsAll(Keeper):
    """A planted bug: the commands of all arrays wait as the loss of a drive is written down."""

    def elaborate(self, platform) -> Module:
        withholds, self.withholds = self.withholds, Signal(CONFIG.arrays)
        m = super().elaborate(platform)
        m.d.comb += withholds.eq(self.withholds.any().replicate(CONFIG.arrays))
        return m


class ForsakesForGood(Keeper):
    """A planted bug: the writes of an array that has failed never end well again."""

    def elaborate(self, platform) -> Module:
        forsaken, self.forsaken = self.forsaken, Signal(CONFIG.arrays)
        m = super().elaborate(platform)
        m.d.sync += forsaken.eq(forsaken | self.forsaken)
        return m


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "test"),
    [
        (WithholdsAll, test_others_do_not_wait),
        (ForsakesForGood, test_writes_end_well_after_salvage),
    ],
)
def test_planted_bugs_are_found(bug, test, monkeypatch):
    monkeypatch.setattr("hdl.metadata.metadata.Keeper", bug)
    build = Lives.__init__

    def with_bug(lives: Lives, seed: int) -> None:
        build(lives, seed, component=partial(Controller, config=CONFIG))

    monkeypatch.setattr(Lives, "__init__", with_bug)
    with pytest.raises((AssertionError, NvmeError)):
        test()
