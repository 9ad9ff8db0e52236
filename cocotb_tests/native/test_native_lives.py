"""Arrays live on their drives: a card with `Config.metadata` loses its power at any time."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Const, Module, Value
from amaranth.lib import wiring

from cocotb_tests.array.md_arrays import needs_linux
from cocotb_tests.metadata.mdadm import write_drive
from cocotb_tests.native.native_lives import NUMBERS, job_ends, made, write
from hdl.background.idle_flush import IdleFlush
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, SECTORS_PER_BLOCK
from hdl.controller import Controller
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from hdl.metadata.found_set import Hindrance
from hdl.metadata.keeper import Keeper
from hdl.metadata.withheld import Withheld
from hdl.stripe.planning.row_planning import RowPlanning
from powercut.lives import (
    CONFIG,
    DRIVE,
    DRIVE_UNAVAILABLE,
    LEVELS,
    POLL_NS,
    Known,
    Lives,
    contents,
)
from powercut.marks import BITMAP, marked_rows, sets
from sim.golden.intent_bitmap import HEAD_BYTES
from sim.golden.superblock import CLEAN, FAULTY, SPARE, Superblock
from sim.md.machine import Assembly, assembled, drive, run
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import Command, NvmeError

SEED = int(os.environ.get("SEED") or "1")
SECTORS = 8 * (1 << 20)
MD_LEVELS = (1, 5, 6)
"""md's levels of arrays whose bitmaps it uses."""
DROPPED_NS = 100_000
"""After that nothing is marked on the drives that is not marked on the card."""
IDLE_NS = 3 * CONFIG.marks_idle_us * 1000
"""After that an array that nobody writes has been flushed."""
PAGES_READ = 4
"""Pages of a drive that are read when power comes: superblock, bitmap, and two lists."""
NO_ENTRY = 0x1C1
"""Status of a change that is refused."""
SET_FEATURES, WRITE_CACHE = 0x09, 6


SIZES = {Level.JBOD: 1, Level.RAID10: 3}
"""Drives of a level, if not five."""

CUTS, MEMBER_NS = 4, 20_000
"""Cuts as arrays are brought up, and how long the superblock of a member takes at least."""

UNPROTECTED = (Level.JBOD, Level.RAID0)
SELDOM = (Level.RAID0, Level.RAID6)
"""Levels of the long suite only, where others stand for them."""


@pytest.mark.slow
def test_arrays_come_back_without_a_bitmap(monkeypatch):
    """All rows are made consistent after a power cut."""
    monkeypatch.setattr("powercut.lives.CONFIG", replace(CONFIG, intent_chunks=0))
    test_arrays_come_back(Level.RAID5)


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=[pytest.mark.slow] if level in SELDOM else [], id=level.name)
        for level in LEVELS
    ],
)
def test_arrays_come_back(level):
    """After a shutdown an array is clean. After a power cut its rows are made consistent, if it has
    just been written."""
    lives = Lives(SEED)
    ports = list(range(SIZES.get(level, 5)))
    redundant = level not in UNPROTECTED

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, level, ports)
        await job_ends(card, array)
        await lives.shut_down(card)

    async def after_shutdown(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (one,) = await raid.arrays(card.nvme)
        assert one.in_sync and one.assumed == redundant, one
        assert (await background.job(card.nvme, 0)).state == JobState.NONE
        await write(card, lives, lives.arrays[0], 1)

    async def after_cut(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (one,) = await raid.arrays(card.nvme)
        assert not one.assumed, one
        job = await job_ends(card, lives.arrays[0])
        assert (job.kind, job.lost) == (WalkKind.RESYNC, 0), job
        assert job.state == (JobState.DONE if redundant else JobState.NONE), job
        await lives.look_again(card)
        await write(card, lives, lives.arrays[0], 1)

    for life, dirty in ((begin, False), (after_shutdown, redundant), (after_cut, redundant)):
        with lives.power() as card:
            card.run(life(card))
        for role, port in enumerate(ports):
            page = Superblock.unpack(lives.page(port), sectors=SECTORS)
            assert (page.role, page.raid_disks) == (role, len(ports)), page
            assert page.resync_offset == (0 if dirty else CLEAN), page
    assert lives.seen["arrays brought up"] == 2


@pytest.mark.parametrize(
    "level",
    [pytest.param(Level.RAID1, marks=pytest.mark.slow), Level.RAID5, Level.RAID10],
    ids=lambda level: level.name,
)
def test_only_what_was_being_written_is_made_consistent(level):
    """Power goes as a few rows may be torn. The drives say which, and the card looks at no other
    one. Before that nothing was marked, once the array had been flushed for a while: by the host,
    or the RAID 5 by the card, as nobody had written it."""
    lives = Lives(SEED)
    ports = list(range(SIZES.get(level, 5)))

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, level, ports)
        await job_ends(card, array)
        if level == Level.RAID5:
            assert any(card.harness.read_drive(0, BITMAP)[HEAD_BYTES:])
            await card.transport.sleep(IDLE_NS)
        else:
            await card.nvme.flush(array.namespace)
        await card.transport.sleep(DROPPED_NS)
        for port in ports:
            assert not any(card.harness.read_drive(port, BITMAP)[HEAD_BYTES:]), port
        address = card.transport.memory.allocate(BLOCK_BYTES)
        for block in (3, 4):
            card.transport.memory.write(address, contents(block, 100 + block))
            await card.nvme.write(array.namespace, block, 1, address, fua=True)
            array.stored[block] = 100 + block

    async def back(card: SimulatedCard) -> None:
        reads = [card.harness.drive_statistics(port)["reads"] for port in ports]
        await card.nvme.start()
        (array,) = lives.arrays
        job = await job_ends(card, array)
        assert (job.kind, job.state, job.lost) == (WalkKind.RESYNC, JobState.DONE, 0), job
        (one,) = await raid.arrays(card.nvme)
        assert one.in_sync and not one.assumed, one
        for port, before in zip(ports, reads, strict=True):
            walked = card.harness.drive_statistics(port)["reads"] - before - PAGES_READ
            assert 0 <= walked <= len(marked), (port, walked)
        await lives.look(card)
        await lives.look_again(card)

    with lives.power() as card:
        card.run(begin(card))
    (found,) = sets(lives.images, DRIVE.capacity)
    marked = marked_rows(found.freshest, lives.images[0][BITMAP])
    assert 1 <= len(marked) <= 2, marked
    assert len({lives.images[port][BITMAP] for port in ports}) == 1
    with lives.power() as card:
        card.run(back(card))


def test_the_marks_of_a_row_that_hung_go():
    """A row is still being written as its array is flushed, since a drive hangs. Its mark goes
    later."""
    lives = Lives(SEED)
    ports = [0, 1]

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID1, ports)
        await job_ends(card, array)
        card.harness.drive_fault(ports[1], 1)
        began = card.harness.now_ns
        address = card.transport.memory.allocate(BLOCK_BYTES)
        await card.nvme.write(array.namespace, 0, 1, address, fua=True)
        assert card.harness.now_ns - began > 10 * IDLE_NS, "nothing has hung"
        await card.transport.sleep(IDLE_NS + DROPPED_NS)
        for port in ports:
            assert not any(card.harness.read_drive(port, BITMAP)[HEAD_BYTES:]), port

    with lives.power() as card:
        card.run(life(card))


def test_spans_come_back():
    """To md each span is an array of its own. To the card they are one: all of them or none. Each
    can lose drives, and a hot spare is there for any of them."""
    lives = Lives(SEED)
    width, ports, lost = 3, [*range(6)], (1, 5)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, ports, spans=2)
        await job_ends(card, array)

    async def after_cut(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        job = await job_ends(card, lives.arrays[0])
        assert (job.kind, job.state) == (WalkKind.RESYNC, JobState.DONE), job
        for port in lost:
            card.harness.remove(port)
        await card.transport.sleep(20 * POLL_NS)
        lives.arrays[0].lost = {*lost}
        await lives.look_again(card)
        await lives.shut_down(card)

    async def degraded(card: SimulatedCard) -> None:
        """The drives that went are there, and too old."""
        await card.nvme.start()
        await lives.look(card)
        (one,) = await raid.arrays(card.nvme)
        assert (one.spans, one.missing) == (2, 2), one
        assert [role for role, member in enumerate(one.members) if member.failed] == [*lost]
        for role in lost:
            await background.replace_member(card.nvme, one.number, role, ports[role])
            await job_ends(card, lives.arrays[0])
        (one,) = await raid.arrays(card.nvme)
        assert not one.missing and not any(member.stale for member in one.members), one
        lives.arrays[0].lost.clear()
        lives.arrays[0].missed.clear()
        await lives.shut_down(card)

    async def without(card: SimulatedCard) -> None:
        """A span that lacks too many drives keeps the array away until they come."""
        for port in ports[width:]:
            card.harness.remove(port)
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        for port in ports[width:]:
            card.harness.insert(port)
        await card.transport.sleep(100 * POLL_NS)
        await lives.look(card)
        (array,) = lives.arrays
        await raid.delete_volume(card.nvme, array.namespace)
        await raid.delete_array(card.nvme, array.number)
        array.erased = array.deleted = True

    async def nothing(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert not any(any(lives.page(port)) for port in ports)

    for life in (begin, after_cut, degraded, without, nothing):
        with lives.power() as card:
            card.run(life(card))
        if life is begin:
            for role, port in enumerate(ports):
                page = Superblock.unpack(lives.page(port), sectors=SECTORS)
                assert (page.role, page.raid_disks) == (role % width, width), page
                assert page.level == 5 and page.ctime >> 40 == 16 + role // width, page
    assert lives.seen["arrays brought up with spans"] == 3


@pytest.mark.slow
def test_spans_that_were_used_alone():
    """A Linux has started one span several times, and not the others. Whatever their events, the
    card takes both. If one is dirty and the other lacks a drive, the host has to say so."""
    lives = Lives(SEED)
    ports = range(6)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, [*ports], spans=2)
        await job_ends(card, array)
        await lives.shut_down(card)

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        await job_ends(card, lives.arrays[0])
        await lives.shut_down(card)

    async def cut(card: SimulatedCard) -> None:
        """Power goes as it is brought up, soon after the first superblock has been written."""
        card.transport.spawn(card.nvme.start())
        while card.harness.read_drive(0, 1) == lives.page(0):
            await card.transport.sleep(1_000)
        await card.transport.sleep(lives.random.uniform(0, MEMBER_NS))

    async def doubtful(card: SimulatedCard) -> None:
        """Imported by a drive of either span."""
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        for port in (1, 4):
            with pytest.raises(NvmeError) as caught:
                await raid.import_array(card.nvme, port, degraded=True)
            assert caught.value.status == DRIVE_UNAVAILABLE
        there = await raid.preview_import(card.nvme, 1, degraded=True, assumed=True)
        assert there == [*ports[1:]] and await raid.arrays(card.nvme) == []
        assert (await raid.drives(card.nvme))[1].hindrance == Hindrance.DOUBTFUL
        await raid.import_array(card.nvme, 4, degraded=True, assumed=True)
        lives.arrays[0].lost = {0}
        await lives.look(card)

    def used(ports: Iterable[int], **values: Any) -> None:
        """These have been used meanwhile."""
        for port in ports:
            one = Superblock.unpack(lives.page(port), sectors=SECTORS)
            lives.images[port][1] = replace(one, events=one.events + 7, **values).pack()

    with lives.power() as card:
        card.run(begin(card))
    used(ports[3:])
    for _ in lives.branches(CUTS):
        with lives.power() as card:
            card.run(cut(card))
        with lives.power() as card:
            card.run(back(card))
    used(ports[1:3], roles=(FAULTY, 1, 2, *[SPARE] * 125))
    used(ports[3:], resync_offset=0)
    with lives.power() as card:
        card.run(doubtful(card))
    assert lives.seen["arrays brought up with spans"] == CUTS + 1


def test_drives_that_come_later():
    """An array whose drives come after the card is ready is there once they all are."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await made(card, lives, Level.RAID5, [1, 3, 4])
        await lives.shut_down(card)

    async def late(card: SimulatedCard) -> None:
        for port in (1, 4):
            card.harness.remove(port)
        await card.nvme.start()
        for change in (
            raid.delete_array(card.nvme, 0),
            raid.create_volume(card.nvme, 0),
            background.migrate_member(card.nvme, 0, 0, 5),
        ):
            with pytest.raises(NvmeError) as caught:
                await change
            assert caught.value.status == NO_ENTRY
        for port in (4, 1):
            assert await raid.arrays(card.nvme) == []
            card.harness.insert(port)
            await card.transport.sleep(20 * POLL_NS)
        await lives.look(card)

    with lives.power() as card:
        card.run(begin(card))
    with lives.power() as card:
        card.run(late(card))
    assert lives.seen["blocks that were there"]


def test_a_drive_that_refuses_its_superblock():
    """Such a drive is failed, and the others say so. One that its array needs stays."""
    lives = Lives(SEED)

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        card.harness.refuse_writes(2, 1)
        array = await made(card, lives, Level.RAID5, [0, 1, 2])
        (one,) = await raid.arrays(card.nvme)
        assert [member.failed for member in one.members] == [False, False, True], one
        for port in (0, 1):
            card.harness.refuse_writes(port, 1)
        with pytest.raises(NvmeError):
            await background.replace_member(card.nvme, array.number, 2, 0)
        await background.replace_member(card.nvme, array.number, 2, 5)
        await job_ends(card, array)
        await lives.look_again(card)

    with lives.power() as card:
        card.run(life(card))
    pages = [lives.page(port) for port in (0, 1, 5)]
    roles = [Superblock.unpack(page, sectors=SECTORS).role for page in pages]
    assert roles == [0, 1, 2]


@pytest.mark.parametrize(
    ("level", "ports", "refusing"),
    [
        (Level.RAID1, (0, 1), (0, 1)),
        (Level.RAID5, (0, 1, 2), (1, 2)),
        (Level.RAID6, (0, 1, 2, 3, 4), (0, 2, 3)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_drives_that_refuse_their_first_superblock(level, ports, refusing):
    """None of several becomes a member that stays because the others have failed."""
    lives = Lives(SEED)

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        for port in refusing:
            card.harness.refuse_writes(port, 1)
        await raid.create_array(card.nvme, level, ports)
        (one,) = await raid.arrays(card.nvme)
        assert [member.failed for member in one.members] == [port in refusing for port in ports]

    with lives.power() as card:
        card.run(life(card))
    assert all(lives.page(port) == bytes(BLOCK_BYTES) for port in refusing)


@pytest.mark.parametrize(
    ("level", "refusing"),
    [(Level.RAID0, (0,)), (Level.RAID0, (0, 1)), (Level.RAID1, (0, 1))],
    ids=["one", "both", "mirror"],
)
def test_members_that_refuse_a_superblock_once(level, refusing):
    """One that stays is the member that it was: its superblock is changed, not made anew."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, level, [0, 1])
        await job_ends(card, array)
        await lives.shut_down(card)

    async def refuse(card: SimulatedCard, port: int) -> None:
        card.harness.refuse_writes(port, 1)
        while not card.harness.drive_statistics(port)["refused"]:
            await card.transport.sleep(40)
        card.harness.accept_writes(port, 1)

    async def back(card: SimulatedCard) -> None:
        for port in refusing:
            card.transport.spawn(refuse(card, port))
        await card.nvme.start()
        (one,) = await raid.arrays(card.nvme)
        lost = {0} if level is Level.RAID1 else set()
        assert {role for role, member in enumerate(one.members) if member.failed} == lost
        lives.arrays[0].lost = lost
        await lives.look(card)
        await write(card, lives, lives.arrays[0], 1)

    with lives.power() as card:
        card.run(begin(card))
    before = [Superblock.unpack(lives.page(port), sectors=SECTORS) for port in (0, 1)]
    with lives.power() as card:
        card.run(back(card))
    after = [Superblock.unpack(lives.page(port), sectors=SECTORS) for port in (0, 1)]
    stays = (0, 1) if level is Level.RAID0 else (1,)
    for port in stays:
        assert after[port].device_uuid == before[port].device_uuid, port
        assert after[port].events > before[port].events + 1, port
    lives.wake()


def test_a_degraded_array_stays_clean():
    """A parity array without a member comes back only if it is clean. Neither an array that has
    failed beside it, nor power without a host, nor drives that go one after the other change that.
    """
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, [0, 1, 2])
        await job_ends(card, array)
        other = await raid.create_array(card.nvme, Level.RAID0, (3, 4))
        card.harness.remove(3)
        card.harness.remove(0)
        await card.transport.sleep(20 * POLL_NS)
        array.lost = {0}
        found = {one.number: one for one in await raid.arrays(card.nvme)}
        assert found[other].state == ArrayState.FAILED, found
        await lives.shut_down(card)
        for port in (2, 1):
            card.harness.remove(port)
            await card.transport.sleep(POLL_NS)

    async def nobody(card: SimulatedCard) -> None:
        await card.transport.sleep(50 * POLL_NS)

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        found = {one.level: one for one in await raid.arrays(card.nvme)}
        assert found[Level.RAID5].missing == 1, found
        assert found[Level.RAID0].state == ArrayState.OPTIMAL, found
        await lives.look_again(card)

    for life in (begin, nobody, back):
        with lives.power() as card:
            card.run(life(card))


@pytest.mark.parametrize(
    ("level", "cut"),
    [
        (Level.RAID1, True),
        pytest.param(Level.RAID1, False, marks=pytest.mark.slow),
        (Level.RAID5, False),
    ],
    ids=["RAID1-cut", "RAID1-shutdown", "RAID5-shutdown"],
)
def test_a_rebuild_goes_on(level, cut):
    """Power goes in the middle of a rebuild. The drive is rebuilt in the next life, after the rows
    have been made consistent if they may not be. A shutdown leaves them so."""
    lives = Lives(SEED)
    ports = [0, 1] if level == Level.RAID1 else [0, 1, 2]

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, level, ports)
        await job_ends(card, array)
        card.harness.remove(1)
        await card.transport.sleep(20 * POLL_NS)
        card.harness.insert(1, blank=True)
        await background.set_rate(card.nvme, 1)
        await background.replace_member(card.nvme, array.number, 1, 1)
        array.lost = {1}
        if not cut:
            await lives.shut_down(card)

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        job = await job_ends(card, array)
        assert (job.kind, job.state) == (WalkKind.REBUILD, JobState.DONE), job
        (one,) = await raid.arrays(card.nvme)
        assert not one.missing and not any(member.stale for member in one.members), one
        card.harness.remove(0)
        await lives.look_again(card)

    for life in (begin, back):
        with lives.power() as card:
            card.run(life(card))


def says_clean(card: SimulatedCard, port: int) -> bool:
    """What the superblock of a drive says now."""
    page = card.harness.read_drive(port, 1)
    return Superblock.unpack(page, sectors=SECTORS).resync_offset == CLEAN


def test_a_drive_restarts_in_a_shutdown():
    """A drive that restarts while arrays are clean takes its place again only once a host uses its
    array. So it says what it is when the power goes, and the array is there the next time."""
    lives = Lives(SEED)
    chosen = lives.random

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, [0, 1, 2, 3])
        await job_ends(card, array)

    async def shuts_down(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        await job_ends(card, array)
        address = card.transport.memory.allocate(BLOCK_BYTES)
        for block in range(8):
            # Old or new, as nobody waits until it is stored.
            number = next(NUMBERS)
            array.begun.setdefault(block, set()).add(number)
            card.transport.memory.write(address, contents(block, number))
            await card.nvme.write(array.namespace, block, 1, address)
        card.transport.spawn(lives.shut_down(card))
        while not says_clean(card, 0):
            await card.transport.sleep(500)
        await card.transport.sleep(chosen.uniform(0, 20_000))
        array.lost = {2}
        card.harness.restart_drive(2)
        await card.transport.sleep(chosen.uniform(0, 200_000))

    async def there(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert await raid.arrays(card.nvme), "the array is not there"

    with lives.power() as card:
        card.run(begin(card))
    for _ in lives.branches(12):
        for life in (shuts_down, there):
            with lives.power() as card:
                card.run(life(card))


@pytest.mark.slow
@pytest.mark.parametrize("level", [Level.RAID0, Level.RAID5], ids=lambda level: level.name)
def test_power_goes_twice(level):
    """Power goes as superblocks are written, and again as they are written when it is back. The
    array and its volumes are there the third time."""
    lives = Lives(SEED)
    chosen = lives.random

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = Known(level=level, ports=[0, 1, 2])
        lives.arrays.append(array)
        await lives.make(card, array)
        await job_ends(card, array)

    async def divides(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        card.transport.spawn(lives.create_volume(card, array, array.blocks, 1))
        await card.transport.sleep(chosen.uniform(0, 300_000))

    async def nobody(card: SimulatedCard) -> None:
        await card.transport.sleep(chosen.uniform(20_000, 600_000))

    async def there(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert lives.arrays, "the array is lost"

    with lives.power() as card:
        card.run(begin(card))
    for _ in lives.branches(6):
        for life in (divides, nobody, there):
            with lives.power() as card:
                card.run(life(card))
    print(dict(lives.seen))


@pytest.mark.parametrize(
    ("creates", "late_ns"),
    [
        pytest.param(True, 0, id="create-0", marks=pytest.mark.slow),
        pytest.param(True, 60_000, id="create-60000", marks=pytest.mark.slow),
        pytest.param(True, 125_000, id="create-125000"),
        pytest.param(False, 0, id="delete-0"),
        pytest.param(False, 60_000, id="delete-60000", marks=pytest.mark.slow),
        pytest.param(False, 125_000, id="delete-125000", marks=pytest.mark.slow),
    ],
)
def test_volumes_of_an_array_that_comes_late(creates, late_ns):
    """The host changes the volumes of an array as soon as it appears, while its superblocks and
    lists are still being written. What it was told is there the next time."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = Known(level=Level.RAID5, ports=[0, 1, 2])
        lives.arrays.append(array)
        await lives.make(card, array)
        await lives.create_volume(card, array, array.blocks, 1)
        await lives.shut_down(card)

    async def late(card: SimulatedCard) -> None:
        card.harness.remove(2)
        await card.nvme.start()
        card.harness.insert(2)
        while len(await raid.volumes(card.nvme)) < 2:
            await card.transport.sleep(500)
        await card.transport.sleep(late_ns)
        (array,) = lives.arrays
        if creates:
            await lives.create_volume(card, array, array.blocks + 1, 1)
        else:
            await lives.delete_volume(card, array, next(one for one in array.volumes if one.start))

    async def there(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert len(lives.arrays[0].volumes) == (3 if creates else 1)

    for life in (begin, late, there):
        with lives.power() as card:
            card.run(life(card))


def test_the_cache_is_off_once_a_loss_is_written_down():
    """What has been acknowledged as the write cache is switched off is there after a power cut,
    also if a drive has just gone that would be taken for good."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID1, [0, 1])
        await job_ends(card, array)
        address = card.transport.memory.allocate(BLOCK_BYTES)
        for block in range(6):
            card.transport.memory.write(address, contents(block, 1000 + block))
            await card.nvme.write(array.namespace, block, 1, address)
            array.stored[block] = 1000 + block
        array.lost = {0}
        card.harness.remove(0)
        await card.nvme.admin(Command(SET_FEATURES, dwords=(WRITE_CACHE, 0)))

    async def there(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)

    for life in (begin, there):
        with lives.power() as card:
            card.run(life(card))
    assert lives.seen["blocks that were there"]


@pytest.mark.slow
def test_nobody_changes_what_is_looked_at():
    """A drive completes an array, and the host makes another one of two of its drives. It has one
    of them in the end, with its own data."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await job_ends(card, await made(card, lives, Level.RAID5, [0, 1, 2]))
        await lives.shut_down(card)

    async def late(card: SimulatedCard) -> None:
        card.harness.remove(2)
        await card.nvme.start()
        card.harness.insert(2)
        await card.transport.sleep(gap)
        try:
            await raid.create_array(card.nvme, Level.RAID0, (0, 1))
        except NvmeError:
            await card.transport.sleep(20 * POLL_NS)
            await lives.look(card)
            lives.seen["the old one"] += 1
        else:
            await card.transport.sleep(20 * POLL_NS)
            (one,) = await raid.arrays(card.nvme)
            assert one.level == Level.RAID0
            lives.seen["the new one"] += 1

    with lives.power() as card:
        card.run(begin(card))
    for number in lives.branches(13):
        gap = 8_000 * number
        with lives.power() as card:
            card.run(late(card))
    assert lives.seen["the old one"] and lives.seen["the new one"], lives.seen


@pytest.mark.parametrize("block", [1, 254, 255])
def test_a_drive_that_does_not_store_what_it_is(block):
    """A drive that refuses its superblock or a list does not take the place of a member, so the one
    that has all keeps what it says of itself."""
    lives = Lives(SEED)

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.JBOD, [0])
        card.harness.refuse_writes(3, block)
        with pytest.raises(NvmeError):
            await background.migrate_member(card.nvme, array.number, 0, 3)
        await background.migrate_member(card.nvme, array.number, 0, 4)
        assert (await job_ends(card, array)).state == JobState.DONE
        array.ports = [4]

    async def there(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        assert lives.arrays

    for each in (life, there):
        with lives.power() as card:
            card.run(each(card))


def test_all_drives_of_striped_copies_go():
    """The drives of a RAID 10 go one soon after the other, and then the power. All of them come
    back, and what was acknowledged is there."""
    lives = Lives(SEED)
    chosen = lives.random
    ports = [0, 1, 2]

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await job_ends(card, await made(card, lives, Level.RAID10, ports))

    async def all_go(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        for _ in range(8):
            card.transport.spawn(lives.write(card, array))
        await card.transport.sleep(chosen.uniform(20_000, 60_000))
        array.failed = True
        for port in chosen.sample(ports, len(ports)):
            card.harness.remove(port)
            await card.transport.sleep(chosen.choice((chosen.uniform(0, 5_000), 40_000)))
        await card.transport.sleep(300_000)

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        lives.arrays[0].lost = set(ports)
        if await raid.arrays(card.nvme):
            await lives.look(card)
        else:
            lives.seen["not brought up"] += 1

    with lives.power() as card:
        card.run(begin(card))
    for _ in lives.branches(5):
        for life in (all_go, back):
            with lives.power() as card:
                card.run(life(card))
    print(dict(lives.seen))
    assert lives.seen["arrays brought up"] > 5, lives.seen


def cuts_both_copies(lives: Lives, cuts: int) -> None:
    """Both drives of a mirror go, one soon after the other, and then the power. What was
    acknowledged since the first one went is on the second one alone."""
    chosen = lives.random

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await job_ends(card, await made(card, lives, Level.RAID1, [0, 1]))

    async def both_go(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        (array,) = lives.arrays
        for _ in range(8):
            card.transport.spawn(lives.write(card, array))
        await card.transport.sleep(chosen.uniform(20_000, 60_000))
        order = chosen.sample((0, 1), 2)
        card.harness.remove(order[0])
        array.lost = {order[0]}
        await card.transport.sleep(chosen.uniform(0, 60_000))
        array.failed = True
        card.harness.remove(order[1])
        await card.transport.sleep(300_000)
        lives.seen["refused"] += array.refused

    async def back(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)

    with lives.power() as card:
        card.run(begin(card))
    for _ in lives.branches(cuts):
        for life in (both_go, back):
            with lives.power() as card:
                card.run(life(card))
    print(dict(lives.seen))


@pytest.mark.slow
def test_both_copies_go():
    """Nobody is told that a write is stored which may be on neither of them tomorrow."""
    lives = Lives(SEED)
    cuts_both_copies(lives, 12)
    assert lives.seen["refused"] and lives.seen["arrays brought up degraded"], lives.seen


def lived(lives: Lives, count: int) -> None:
    """Lives so often, and prints what has happened."""
    print(f"SEED={lives.seed}")
    for _ in range(count):
        lives.live()
    print(dict(lives.seen))


def lived_by_seeds(component: Callable[[], wiring.Component]) -> None:
    """Lives by as many seeds as it takes to find a planted bug."""
    for seed in range(1, 9):
        lived(Lives(seed, component=component), 20)


def test_lives():
    """Whatever happens in a life, what the host was told is there in the next one."""
    lives = Lives(SEED)
    lived(lives, 6)
    assert lives.seen["arrays brought up"] and lives.seen["blocks that were there"]


@pytest.mark.slow
@needs_linux
def test_linux_uses_the_bitmaps(tmp_path: Path):
    """What drives hold as the card loses its power, Linux makes consistent by their bitmaps."""
    jobs: dict[int, Assembly] = {}
    seed = SEED
    while len(jobs) < len(MD_LEVELS):
        lives = Lives(seed)
        for _ in range(5):
            lives.live()
            for found in sets(lives.images, DRIVE.capacity):
                level, width = found.freshest.level, found.freshest.raid_disks
                whole = width == len(found.members) > 1
                if level not in MD_LEVELS or level in jobs or not (found.dirty and whole):
                    continue
                given = [f"raid{level}.{role}.img" for role in range(width)]
                for role, port in found.members.items():
                    areas = {8 * block: data for block, data in lives.images[port].items()}
                    write_drive(tmp_path / given[role], 8 * DRIVE.capacity, areas)
                drives = [drive(number) for number in range(width)]
                jobs[level] = Assembly(
                    name=f"raid{level}",
                    given=given,
                    attempts=[
                        ["--assemble", "/dev/md0", *drives],
                        ["--wait", "/dev/md0"],
                        ["--detail", "/dev/md0"],
                    ],
                    bytes=BLOCK_BYTES * DRIVE.capacity,
                )
        seed += 1
    run(tmp_path, [*jobs.values()])
    for level, job in jobs.items():
        after = assembled(tmp_path, job)
        assert "Consistency Policy : bitmap" in after.said, after.said
        assert after.state in ("clean", "active") and "degraded" not in after.said, after
        assert len(after.roles) == len(job.given), (level, after)


@pytest.mark.slow
@needs_linux
def test_linux_reads_spans(tmp_path: Path):
    """Linux joins the spans, and reads what the host has written."""
    lives = Lives(SEED)
    width, spans = 3, 2

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        array = await made(card, lives, Level.RAID5, [*range(spans * width)], spans=spans)
        await job_ends(card, array)
        await lives.shut_down(card)

    with lives.power() as card:
        card.run(begin(card))
    given = [f"spans.{port}.img" for port in range(spans * width)]
    for name, image in zip(given, lives.images, strict=True):
        areas = {SECTORS_PER_BLOCK * block: data for block, data in image.items()}
        write_drive(tmp_path / name, SECTORS_PER_BLOCK * DRIVE.capacity, areas)
    drives = [drive(number) for number in range(spans * width)]
    devices, first, second = ("/dev/md1", "/dev/md2"), drives[:width], drives[width:]
    job = Assembly(
        name="spans",
        given=given,
        attempts=[
            ["--assemble", "/dev/md1", *first],
            ["--assemble", "/dev/md2", *second],
            ["--build", "/dev/md0", "--level=0", "--chunk=16", "--raid-devices=2", *devices],
            ["--detail", "/dev/md1"],
            ["--detail", "/dev/md2"],
        ],
        bytes=BLOCK_BYTES * DRIVE.capacity,
    )
    run(tmp_path, [job])
    after = assembled(tmp_path, job)
    print(after.said)
    assert after.said.count("State : clean") == spans
    (array,) = lives.arrays
    assert after.data is not None
    for block, number in array.stored.items():
        data = after.data[BLOCK_BYTES * block : BLOCK_BYTES * (block + 1)]
        assert data == contents(block, number), block


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_more_lives(seed):
    lived(Lives(seed), 30)


class Acknowledges(Keeper):
    """A planted bug: writes are acknowledged before the loss of a drive is written down."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.withholds.eq(0)
        return m


class KeepsLeavers(Keeper):
    """A planted bug: drives of an array that has been deleted stay its members."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self._leavers.eq(0)
        return m


class TellsAll(Withheld):
    """A planted bug: what was written to the last drive alone is acknowledged once that has gone as
    well."""

    def elaborate(self, platform) -> Module:
        self.forsaken = Const(0, CONFIG.arrays)
        return super().elaborate(platform)


class ForgetsVolumes(Keeper):
    """A planted bug: the list of volumes is not written as they change."""

    def _relist(self, m: Module, array) -> None:
        pass


class StaysUnwritten(Keeper):
    """A planted bug: a drive that has been sent a superblock counts as one that has had it."""

    @property
    def _has_had_superblock(self) -> Value:
        return self._claims_role | self._twice.bit_select(self._array, 1)


class WaitsForNobody(Keeper):
    """A planted bug: superblocks are as good as stored once they have been sent."""

    @property
    def _all_have_ended(self) -> Value:
        return Const(1)


class AlwaysClean(Keeper):
    """A planted bug: an array is never dirty."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self.facts.dirty.eq(0)
        return m


class NeverAsks(RowPlanning):
    """A planted bug: rows are written whatever the drives have marked."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._asks.eq(0)
        return m


class FlushesNobody(IdleFlush):
    """A planted bug: the marks of idle arrays are dropped, and no drive has been flushed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += [self.ask.payload.eq(0), self.epoch.good.eq(1)]
        return m


@pytest.mark.slow
def test_writes_to_one_copy_are_found(monkeypatch):
    monkeypatch.setattr("hdl.core.Withheld", TellsAll)
    lives = Lives(SEED, component=partial(Controller, config=CONFIG))
    with pytest.raises(AssertionError):
        cuts_both_copies(lives, 160)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", [Acknowledges, KeepsLeavers, ForgetsVolumes, StaysUnwritten, WaitsForNobody]
)
def test_planted_bugs_are_found(bug, monkeypatch):
    monkeypatch.setattr("hdl.metadata.metadata.Keeper", bug)
    with pytest.raises((AssertionError, NvmeError)):
        lived_by_seeds(partial(Controller, config=CONFIG))


@pytest.mark.slow
def test_rows_that_never_wait_for_marks_are_found(monkeypatch):
    monkeypatch.setattr("hdl.stripe.rows.sequencer.RowPlanning", NeverAsks)
    with pytest.raises(AssertionError, match="are torn, and"):
        lived_by_seeds(partial(Controller, config=CONFIG))


@pytest.mark.slow
def test_idle_arrays_that_are_not_flushed_are_found(monkeypatch):
    monkeypatch.setattr("hdl.background.background.IdleFlush", FlushesNobody)
    with pytest.raises(AssertionError, match="are torn, and"):
        lived_by_seeds(partial(Controller, config=CONFIG))


@pytest.mark.slow
def test_never_dirty_is_found(monkeypatch):
    """An array is clean after a cut, or rows that wait until it is dirty wait for ever."""
    monkeypatch.setattr("hdl.metadata.metadata.Keeper", AlwaysClean)
    monkeypatch.setattr(
        "cocotb_tests.native.test_native_lives.Lives",
        partial(Lives, component=partial(Controller, config=CONFIG)),
    )
    with pytest.raises((AssertionError, RuntimeError)):
        test_arrays_come_back(Level.RAID5)
