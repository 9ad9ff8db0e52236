"""Which volumes are attached outlives the power (NVMe 1.4 section 5.19)."""

import os
from functools import partial

import pytest
from amaranth.hdl import Const

from cocotb_tests.native.native_lives import job_ends, made
from hdl.config import BLOCK_BYTES
from hdl.controller import Controller
from hdl.flow.geometry import Level
from hdl.metadata.keeper import Keeper
from hdl.metadata.volume_list import BLOCK, COPIES
from hdl.metadata.volume_list_reader import VolumeListReader
from hdl.nvme.admin.namespaces import Namespaces
from powercut.lives import CONFIG, DRIVE_UNAVAILABLE, POLL_NS, TAIL, Lives
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
INVALID_FIELD = 0x002


async def begun(card: SimulatedCard, lives: Lives) -> int:
    """A mirror with two volumes. Returns the number of the second one."""
    await card.nvme.start()
    array = await made(card, lives, Level.RAID1, [0, 1], tail=TAIL)
    await job_ends(card, array)
    return (await lives.create_volume(card, array, array.blocks, TAIL)).namespace


def lived(lives: Lives) -> None:
    """Power goes as soon as the host has been told."""
    numbers: list[int] = []

    async def detaches(card: SimulatedCard) -> None:
        numbers.append(await begun(card, lives))
        assert await card.nvme.namespaces() == [1, *numbers]
        await card.nvme.attach(numbers[0], detach=True)

    async def is_detached(card: SimulatedCard) -> None:
        (number,) = numbers
        await card.nvme.start()
        assert await card.nvme.namespaces() == [1]
        assert await card.nvme.namespaces(allocated=True) == [1, number]
        address = card.transport.memory.allocate(BLOCK_BYTES)
        with pytest.raises(NvmeError) as caught:
            await card.nvme.read(number, 0, 1, address)
        assert caught.value.status == INVALID_FIELD
        await card.nvme.attach(number)
        await card.nvme.read(number, 0, 1, address)
        await card.nvme.attach(1, detach=True)

    async def is_another(card: SimulatedCard) -> None:
        """The first one is detached now. A new volume that gets its number is attached."""
        (number,) = numbers
        await card.nvme.start()
        assert await card.nvme.namespaces() == [number]
        (one,) = await raid.arrays(card.nvme)
        (first,) = [one for one in await raid.volumes(card.nvme) if one.namespace == 1]
        await raid.delete_volume(card.nvme, 1)
        again = await raid.create_volume(card.nvme, one.number, first.start, first.blocks)
        assert again == 1

    async def is_attached(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await card.nvme.namespaces() == [1, *numbers]

    for life in (detaches, is_detached, is_another, is_attached):
        with lives.power() as card:
            card.run(life(card))


def test_attachments_come_back():
    """Volumes are attached or detached as they were."""
    lived(Lives(SEED))


def test_nobody_stores_it():
    """If no drive stores it, the host is told so. It holds until power goes."""
    lives = Lives(SEED)

    async def life(card: SimulatedCard) -> None:
        number = await begun(card, lives)
        for port in (0, 1):
            card.harness.refuse_writes(port, BLOCK, COPIES)
        with pytest.raises(NvmeError) as caught:
            await card.nvme.attach(number, detach=True)
        assert caught.value.status == DRIVE_UNAVAILABLE
        assert await card.nvme.namespaces() == [1]
        await card.transport.sleep(POLL_NS)

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert len(await card.nvme.namespaces()) == 2

    for one in (life, back):
        with lives.power() as card:
            card.run(one(card))


def test_an_array_that_has_failed():
    """Nothing is written to its drives, so the host is told that it is not stored."""
    lives = Lives(SEED)

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, [0, 1, 2], tail=TAIL)
        await job_ends(card, array)
        number = (await lives.create_volume(card, array, array.blocks, TAIL)).namespace
        for port in (0, 1):
            card.harness.remove(port)
            await card.transport.sleep(20 * POLL_NS)
        with pytest.raises(NvmeError) as caught:
            await card.nvme.attach(number, detach=True)
        assert caught.value.status == DRIVE_UNAVAILABLE
        assert await card.nvme.namespaces() == [1]

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert len(await card.nvme.namespaces()) == 2

    for one in (life, back):
        with lives.power() as card:
            card.run(one(card))


def test_an_array_that_comes_later():
    """Its detached volume is never attached, and what the host does with it then is so."""
    lives = Lives(SEED)

    async def life(card: SimulatedCard) -> None:
        await card.nvme.attach(await begun(card, lives), detach=True)

    async def later(card: SimulatedCard) -> None:
        for port in (0, 1):
            card.harness.remove(port)
        await card.nvme.start()
        assert await card.nvme.namespaces(allocated=True) == []
        for port in (0, 1):
            card.harness.insert(port)
        while len(await card.nvme.namespaces(allocated=True)) < 2:
            assert await card.nvme.namespaces() in ([], [1])
        await card.nvme.attach(2)
        assert await card.nvme.namespaces() == [1, 2]

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await card.nvme.namespaces() == [1, 2]

    for one in (life, later, back):
        with lives.power() as card:
            card.run(one(card))


class WritesNoList(Keeper):
    """A planted bug: the lists stay as they are."""

    def _relist(self, m, array):
        pass


class AttachesAll(VolumeListReader):
    """A planted bug: a volume that is brought up is attached."""

    def _make_entry(self, m):
        super()._make_entry(m)
        m.d.comb += self.entries.payload.detached.eq(0)


class StaysDetached(Namespaces):
    """A planted bug: a new volume is listed as the one that had its number before."""

    def elaborate(self, platform):
        self.exists = Const(-1, CONFIG.volumes)
        return super().elaborate(platform)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "bug"),
    [
        ("hdl.metadata.metadata.Keeper", WritesNoList),
        ("hdl.metadata.superblocks.VolumeListReader", AttachesAll),
        ("hdl.nvme.admin.admin.Namespaces", StaysDetached),
    ],
)
def test_planted_bugs_are_found(place, bug, monkeypatch):
    monkeypatch.setattr(place, bug)
    with pytest.raises(AssertionError):
        lived(Lives(SEED, component=partial(Controller, config=CONFIG)))
