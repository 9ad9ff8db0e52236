"""Drives that come from elsewhere, and arrays that are imported (`Config.metadata`)."""

import os
from dataclasses import replace
from functools import partial

import pytest
from amaranth.hdl import Const, Module, Value

from cocotb_tests.native.native_lives import job_ends, made, write
from hdl.array.tables.tables import ArrayTables
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, SECTORS_PER_BLOCK
from hdl.controller import Controller
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from hdl.metadata.bring_up import BringUp
from hdl.metadata.found_set import Hindrance
from hdl.metadata.superblock import BLOCK, Finding
from powercut.lives import CONFIG, DRIVE, IDENTITY, IN_USE, POLL_NS, Known, Lives, contents
from sim.golden.superblock import Superblock
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
INVALID_FIELD, DRIVE_UNAVAILABLE, NO_ENTRY = 0x002, 0x1C0, 0x1C1
"""Status of changes that are refused."""

OTHER = IDENTITY + 1
"""Another card."""


async def hindrances(card: SimulatedCard) -> dict[int, Hindrance]:
    """Of each foreign drive: why its array is not there."""
    drives = await raid.drives(card.nvme)
    assert all(drive.foreign == (drive.hindrance != Hindrance.NOTHING) for drive in drives)
    assert all(drive.superblock == Finding.VALID for drive in drives if drive.foreign)
    return {drive.port: drive.hindrance for drive in drives if drive.foreign}


def test_foreign_drives_are_left_alone():
    """Another card neither brings up an array of this one nor writes to its drives, which the host
    can use for another array. That one is this card's."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await made(card, lives, Level.RAID5, [0, 1, 2])

    async def elsewhere(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []

    async def takes_two(card: SimulatedCard) -> None:
        await card.nvme.start()
        await raid.create_array(card.nvme, Level.RAID1, (1, 2))

    with lives.power() as card:
        card.run(begin(card))
    before = [lives.page(port) for port in range(CONFIG.ports)]
    with lives.power(identity=OTHER) as card:
        card.run(elsewhere(card))
    assert [lives.page(port) for port in range(CONFIG.ports)] == before
    with lives.power(identity=OTHER) as card:
        card.run(takes_two(card))
    assert lives.page(0) == before[0] and lives.page(1) != before[1]
    # Two thirds of it are no array any more.
    with lives.power() as card:
        card.run(elsewhere(card))
        assert card.run(hindrances(card)) == {
            0: Hindrance.INCOMPLETE,
            1: Hindrance.ELSEWHERE,
            2: Hindrance.ELSEWHERE,
        }


@pytest.mark.slow
def test_a_drive_that_was_a_member_elsewhere():
    """A drive of an array that cannot be brought up takes the place of a member of another one.
    From the first block on that is written to it, it does not say any more that it holds what the
    first array had."""
    lives = Lives(SEED)
    chosen = lives.random

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID1, [0, 1])
        await job_ends(card, array)
        await lives.shut_down(card)

    async def other(card: SimulatedCard) -> None:
        card.harness.remove(0)
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        array = await made(card, lives, Level.RAID1, [2, 3])
        await job_ends(card, array)
        if moves:
            change = background.migrate_member(card.nvme, array.number, 1, 1)
        else:
            card.harness.remove(3)
            change = background.replace_member(card.nvme, array.number, 1, 1)
        card.transport.spawn(change)
        card.transport.spawn(writes(card, array))
        await card.transport.sleep(chosen.uniform(2_000, chosen.choice((20_000, 250_000))))

    async def writes(card: SimulatedCard, array: Known) -> None:
        address = card.transport.memory.allocate(BLOCK_BYTES)
        card.transport.memory.write(address, contents(0, 1 << 40))
        while True:
            block = chosen.randrange(array.blocks)
            await card.nvme.write(array.namespace, block, 1, address, fua=True)

    with lives.power() as card:
        card.run(begin(card))
    before = [dict(image) for image in lives.images]
    for cut in range(12):
        moves = bool(cut % 2)
        lives.images = [dict(image) for image in before]
        lives.arrays.clear()
        with lives.power() as card:
            card.run(other(card))
        written = {
            block
            for block, data in lives.images[1].items()
            if block >= DATA_OFFSET_BLOCKS and data != before[1].get(block)
        }
        says_so = lives.page(1) == before[1][1]
        assert not (written and says_so), f"{len(written)} blocks of another array, cut {cut}"
        lives.seen["cut before" if says_so else "cut after" if written else "cut between"] += 1
    print(dict(lives.seen))
    assert lives.seen["cut before"] and lives.seen["cut after"]


async def refused(card: SimulatedCard, port: int) -> int:
    """The status with which an import is refused, and its preview."""
    with pytest.raises(NvmeError) as caught:
        await raid.preview_import(card.nvme, port)
    status = caught.value.status
    with pytest.raises(NvmeError) as caught:
        await raid.import_array(card.nvme, port)
    assert caught.value.status == status
    return status


async def preview(card: SimulatedCard, port: int, **wishes: bool) -> list[int]:
    """What an import would write. The preview changes nothing."""
    drives, there = await raid.drives(card.nvme), await raid.arrays(card.nvme)
    before = [card.harness.written_blocks(port) for port in range(CONFIG.ports)]
    pages = [card.harness.read_drive(port, BLOCK) for port in range(CONFIG.ports)]
    found = await raid.preview_import(card.nvme, port, **wishes)
    assert (await raid.drives(card.nvme), await raid.arrays(card.nvme)) == (drives, there)
    assert before == [card.harness.written_blocks(port) for port in range(CONFIG.ports)]
    assert pages == [card.harness.read_drive(port, BLOCK) for port in range(CONFIG.ports)]
    return found


async def cleared(card: SimulatedCard, port: int) -> int:
    """The status with which a drive is cleared, or not."""
    try:
        await raid.clear_drive(card.nvme, port)
    except NvmeError as error:
        return error.status
    return 0


def test_arrays_move_to_another_card():
    """The drives of an array go to another card, whose host imports it. From then on that card has
    it, and the first one has it again only if its host says so. Volumes are what they were."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, [0, 1, 2])
        await raid.create_array(card.nvme, Level.JBOD, (4,))
        await job_ends(card, array)
        await lives.shut_down(card)

    async def imports(card: SimulatedCard) -> None:
        card.harness.remove(1)
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        assert [drive.foreign for drive in await raid.drives(card.nvme)] == [
            port in (0, 2, 4) for port in range(CONFIG.ports)
        ]
        awaited, elsewhere = Hindrance.AWAITED, Hindrance.ELSEWHERE
        assert await hindrances(card) == {0: awaited, 2: awaited, 4: elsewhere}
        assert await refused(card, 0) == DRIVE_UNAVAILABLE
        assert await preview(card, 0, degraded=True) == [0, 2]
        assert [await refused(card, port) for port in (3, 5, 6, 255)] == [NO_ENTRY] * 4
        card.harness.insert(1)
        await card.transport.sleep(20 * POLL_NS)
        assert await raid.arrays(card.nvme) == []
        assert await hindrances(card) == dict.fromkeys((0, 1, 2, 4), elsewhere)
        assert await preview(card, 1) == [0, 1, 2] and await preview(card, 4) == [4]
        number = await raid.import_array(card.nvme, 1)
        (one,) = await raid.arrays(card.nvme)
        assert one.number == number and not any(
            drive.foreign for drive in (await raid.drives(card.nvme))[:4]
        )
        assert await refused(card, 0) == IN_USE
        await lives.look(card)
        assert await raid.import_array(card.nvme, 4) != number

    async def is_there(card: SimulatedCard) -> None:
        await card.nvme.start()
        found = await raid.arrays(card.nvme)
        assert len(found) == 2, found
        await raid.delete_array(card.nvme, next(a.number for a in found if a.level == Level.JBOD))
        await lives.look(card)

    async def is_not_there(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        await raid.import_array(card.nvme, 0)
        await lives.look(card)

    for card, life in (
        (IDENTITY, begin),
        (OTHER, imports),
        (OTHER, is_there),
        (IDENTITY, is_not_there),
    ):
        with lives.power(identity=card) as simulated:
            simulated.run(life(simulated))
    assert lives.seen["volumes that were there"] == 3


def test_an_array_that_lacks_a_drive():
    """A drive dies while there is no power. The host imports its array without it, of which the
    drive has nothing to say when it comes back. An array with parity that was dirty takes one word
    more."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        for level, ports in ((Level.RAID1, [0, 1]), (Level.RAID5, [2, 3, 4])):
            await job_ends(card, await made(card, lives, level, ports))

    async def without(card: SimulatedCard) -> None:
        for port in (1, 4):
            card.harness.remove(port)
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        awaited, doubtful = Hindrance.AWAITED, Hindrance.DOUBTFUL
        assert await hindrances(card) == {0: awaited, 2: doubtful, 3: doubtful}
        assert await refused(card, 0) == DRIVE_UNAVAILABLE
        assert await preview(card, 0, degraded=True) == [0]
        await raid.import_array(card.nvme, 0, degraded=True)
        assert await hindrances(card) == {2: doubtful, 3: doubtful}
        for change in (raid.preview_import, raid.import_array):
            with pytest.raises(NvmeError):
                await change(card.nvme, 2, degraded=True)
        assert await preview(card, 2, degraded=True, assumed=True) == [2, 3]
        await raid.import_array(card.nvme, 3, degraded=True, assumed=True)
        mirror, parity = lives.arrays
        mirror.lost, parity.lost = {1}, {2}
        await lives.look(card)
        address = card.transport.memory.allocate(BLOCK_BYTES)
        for array in lives.arrays:
            card.transport.memory.write(address, contents(3, 1 << 40))
            await card.nvme.write(array.namespace, 3, 1, address, fua=True)
            array.stored[3] = 1 << 40
        await lives.shut_down(card)

    async def with_it(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert [array.lost for array in lives.arrays] == [{1}, {2}]
        assert await hindrances(card) == dict.fromkeys((1, 4), Hindrance.LEFT_OUT)
        assert [await refused(card, port) for port in (1, 4)] == [IN_USE, IN_USE]

    for life in (begin, without, with_it):
        with lives.power() as card:
            card.run(life(card))
    assert lives.seen["arrays brought up degraded"] == 4, lives.seen


@pytest.mark.parametrize("owner", [IDENTITY, OTHER], ids=["own", "other"])
def test_what_is_wrong_with_drives_is_listed(owner):
    """A superblock that is damaged, none, a drive that does not give it, and more arrays than the
    card has numbers for."""
    lives = Lives(SEED)

    async def two(card: SimulatedCard) -> None:
        card.harness.remove(2)
        await card.nvme.start()
        for port in (0, 1):
            await raid.create_array(card.nvme, Level.JBOD, (port,))

    async def one(card: SimulatedCard) -> None:
        for port in (0, 1):
            card.harness.remove(port)
        await card.nvme.start()
        await raid.create_array(card.nvme, Level.JBOD, (2,))

    async def look(card: SimulatedCard) -> None:
        card.harness.remove(5)
        card.harness.medium_error(4, BLOCK)
        await card.nvme.start()
        assert CONFIG.arrays == len(await raid.arrays(card.nvme)) == 2
        before = Hindrance.NO_PLACE if owner == IDENTITY else Hindrance.ELSEWHERE
        assert await hindrances(card) == {2: before}
        assert await refused(card, 2) == NO_ENTRY
        assert await hindrances(card) == {2: Hindrance.NO_PLACE}
        found = [drive.superblock for drive in await raid.drives(card.nvme)]
        valid, unreadable = Finding.VALID, Finding.UNREADABLE
        assert found == [valid, valid, valid, Finding.DAMAGED, unreadable, Finding.UNREAD]
        # Another drive at the port: what was so of the first is forgotten.
        card.harness.remove(2)
        await card.transport.sleep(POLL_NS)
        card.harness.insert(2, blank=True)
        await card.transport.sleep(20 * POLL_NS)
        assert await hindrances(card) == {}
        assert (await raid.drives(card.nvme))[2].superblock == Finding.NONE

    for life, identity in ((two, IDENTITY), (one, owner)):
        with lives.power(identity=identity) as card:
            card.run(life(card))
    page = bytearray(lives.page(2))
    page[300] ^= 1
    lives.images[3][BLOCK] = bytes(page)
    with lives.power() as card:
        card.run(look(card))


def test_foreign_drives_are_cleared():
    """Whatever is wrong with it, a drive in no array has no superblock afterwards, and no array is
    found by it. Members, spares, drives without a superblock and ports without a drive are left as
    they are."""
    lives = Lives(SEED)
    mirror, spare, damaged, left_out = (0, 1), 2, 3, 4

    async def elsewhere(card: SimulatedCard) -> None:
        await card.nvme.start()
        await raid.create_array(card.nvme, Level.RAID1, (left_out, 5))
        await raid.create_array(card.nvme, Level.JBOD, (damaged,))

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await job_ends(card, await made(card, lives, Level.RAID1, [*mirror]))
        await background.add_spare(card.nvme, spare)
        assert await hindrances(card) == {
            left_out: Hindrance.ELSEWHERE, 5: Hindrance.ELSEWHERE
        }  # fmt: skip
        held = (*mirror, spare)
        assert [await cleared(card, port) for port in held] == [IN_USE] * 3
        assert [await cleared(card, port) for port in (6, 7, 8, 13, 255)] == [DRIVE_UNAVAILABLE] * 5
        assert await cleared(card, damaged) == 0
        # What refuses zeros says what it said, and can be cleared once it takes them.
        before = card.harness.read_drive(left_out, BLOCK)
        card.harness.refuse_writes(left_out, BLOCK)
        assert await cleared(card, left_out) == DRIVE_UNAVAILABLE
        assert card.harness.read_drive(left_out, BLOCK) == before
        await card.transport.sleep(20 * POLL_NS)
        assert await hindrances(card) == dict.fromkeys((left_out, 5), Hindrance.ELSEWHERE)
        card.harness.accept_writes(left_out, BLOCK)
        assert await cleared(card, left_out) == 0
        assert await cleared(card, left_out) == NO_ENTRY
        for port in (damaged, left_out):
            assert not any(card.harness.read_drive(port, BLOCK))
            assert (await raid.drives(card.nvme))[port].superblock == Finding.NONE
        assert await refused(card, left_out) == NO_ENTRY
        # What is left of that array is another card's, which misses a drive.
        await card.transport.sleep(20 * POLL_NS)
        assert await hindrances(card) == {5: Hindrance.AWAITED}
        card.harness.remove(5)
        assert await cleared(card, 5) == DRIVE_UNAVAILABLE
        card.harness.insert(5)
        await card.transport.sleep(20 * POLL_NS)
        await raid.create_array(card.nvme, Level.JBOD, (left_out,))
        await lives.shut_down(card)

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        found = await raid.arrays(card.nvme)
        assert [array.level for array in found] == [Level.RAID1, Level.JBOD]
        await raid.delete_array(card.nvme, found[1].number)
        await lives.look(card)
        assert await cleared(card, 5) == 0 and await hindrances(card) == {}

    with lives.power(identity=OTHER) as card:
        card.run(elsewhere(card))
    page = bytearray(lives.page(damaged))
    page[300] ^= 1
    lives.images[damaged][BLOCK] = bytes(page)
    for life in (begin, again):
        with lives.power() as card:
            card.run(life(card))


@pytest.mark.slow
def test_power_goes_as_a_drive_is_cleared():
    """The drive says what it said, or nothing. Other drives, and its data, are as they were."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await job_ends(card, await made(card, lives, Level.RAID5, [0, 1, 2]))
        await lives.shut_down(card)

    async def clears(card: SimulatedCard) -> None:
        await card.nvme.start()
        card.transport.spawn(raid.clear_drive(card.nvme, 1))
        await card.transport.sleep(lives.random.uniform(0, 60_000))

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        if any(lives.page(1)):
            await lives.look(card)
            assert not (await raid.arrays(card.nvme))[0].degraded
        else:
            assert await hindrances(card) == dict.fromkeys((0, 2), Hindrance.AWAITED)

    with lives.power() as card:
        card.run(begin(card))
    before = [dict(image) for image in lives.images]
    for _ in lives.branches(16):
        with lives.power(identity=OTHER) as card:
            card.run(clears(card))
        is_zero = not any(lives.page(1))
        lives.seen["cleared" if is_zero else "as it was"] += 1
        wanted = [dict(image) for image in before]
        if is_zero:
            del wanted[1][BLOCK]  # images leave zeros out
        assert lives.images == wanted
        with lives.power() as card:
            card.run(back(card))
    print(dict(lives.seen))
    assert lives.seen["cleared"] and lives.seen["as it was"]


def test_an_array_is_there_once_what_hinders_it_is_cleared():
    """Two drives do not agree on what an array is. The host has one of them cleared."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await job_ends(card, await made(card, lives, Level.RAID1, [0, 1]))
        await lives.shut_down(card)

    async def clears(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        assert await hindrances(card) == dict.fromkeys((0, 1, 3), Hindrance.DIFFERENT)
        assert await refused(card, 0) == INVALID_FIELD
        assert await cleared(card, 3) == 0
        await card.transport.sleep(20 * POLL_NS)
        assert await hindrances(card) == {} and await refused(card, 0) == IN_USE
        await lives.look(card)

    with lives.power() as card:
        card.run(begin(card))
    lives.images[3] = dict(lives.images[0])
    one = Superblock.unpack(lives.page(3), sectors=DRIVE.capacity * SECTORS_PER_BLOCK)
    lives.images[3][BLOCK] = replace(one, level=0).pack()
    with lives.power() as card:
        card.run(clears(card))


def test_a_preview_as_the_drive_comes():
    """An array is brought up that lacked a drive, just as the host asks what an import would do."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await made(card, lives, Level.RAID5, [0, 1, 2])

    async def asks(card: SimulatedCard) -> None:
        card.harness.remove(1)
        await card.nvme.start()
        card.harness.insert(1)
        assert await refused(card, 0) == IN_USE
        await lives.look(card)

    for life in (begin, asks):
        with lives.power() as card:
            card.run(life(card))


def test_an_import_without_two_drives():
    """Of a RAID 6 one drive was being rebuilt, and another one dies with the power."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID6, [0, 1, 2, 3])
        await job_ends(card, array)
        card.harness.remove(1)
        await card.transport.sleep(20 * POLL_NS)
        card.harness.insert(1, blank=True)
        await background.set_rate(card.nvme, 1)
        await background.replace_member(card.nvme, array.number, 1, 1)
        array.lost = {1}
        await write(card, lives, array, 5)

    async def imports(card: SimulatedCard) -> None:
        card.harness.remove(3)
        await card.nvme.start()
        assert await hindrances(card) == dict.fromkeys(range(3), Hindrance.DOUBTFUL)
        (array,) = lives.arrays
        assert await preview(card, 1, degraded=True, assumed=True) == [0, 1, 2]
        array.number = await raid.import_array(card.nvme, 2, degraded=True, assumed=True)
        array.lost = {1, 3}
        await lives.look(card)
        job = await job_ends(card, array)
        assert (job.kind, job.state) == (WalkKind.REBUILD, JobState.DONE), job
        (one,) = await raid.arrays(card.nvme)
        assert one.missing == 1 and not any(member.stale for member in one.members), one
        await lives.look_again(card)

    for life in (begin, imports):
        with lives.power() as card:
            card.run(life(card))


@pytest.mark.slow
def test_power_goes_in_an_import():
    """Either card may have the array then, and it is what it was."""
    lives = Lives(SEED)
    chosen = lives.random

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await job_ends(card, await made(card, lives, Level.RAID5, [0, 1, 2]))
        if chosen.random() < 0.5:
            await lives.shut_down(card)

    async def imports(card: SimulatedCard) -> None:
        await card.nvme.start()
        card.transport.spawn(raid.import_array(card.nvme, 1))
        await card.transport.sleep(chosen.uniform(0, 400_000))

    async def look(card: SimulatedCard) -> None:
        await card.nvme.start()
        there = bool(await raid.arrays(card.nvme))
        lives.seen["there" if there else "imported again"] += 1
        if not there:
            await raid.import_array(card.nvme, 2)
        await lives.look(card)

    with lives.power() as card:
        card.run(begin(card))
    for _ in lives.branches(6):
        with lives.power(identity=OTHER) as card:
            card.run(imports(card))
        with lives.power(identity=chosen.choice((IDENTITY, OTHER))) as card:
            card.run(look(card))
    print(dict(lives.seen))
    assert lives.seen["there"] and lives.seen["imported again"]


class KeepsTheOld(ArrayTables):
    """A planted bug: a drive becomes a member and still says that it is one elsewhere."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += [self._wiped.eq(1), self._left.eq(0)]
        return m


@pytest.mark.slow
def test_an_old_superblock_is_found(monkeypatch):
    monkeypatch.setattr("hdl.core.ArrayTables", KeepsTheOld)
    monkeypatch.setattr(
        "cocotb_tests.native.test_native_imports.Lives",
        partial(Lives, component=partial(Controller, config=CONFIG)),
    )
    with pytest.raises(AssertionError, match=r"blocks of another array|torn, and it is clean"):
        test_a_drive_that_was_a_member_elsewhere()


class ImportsAtOnce(BringUp):
    """A planted bug: a preview is an import."""

    @property
    def _previews(self) -> Value:
        return Const(0)


@pytest.mark.slow
def test_an_import_without_a_word_is_found(monkeypatch):
    monkeypatch.setattr("hdl.metadata.metadata.BringUp", ImportsAtOnce)
    monkeypatch.setattr(
        "cocotb_tests.native.test_native_imports.Lives",
        partial(Lives, component=partial(Controller, config=CONFIG)),
    )
    with pytest.raises(AssertionError):
        test_an_array_that_lacks_a_drive()
