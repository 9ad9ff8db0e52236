"""Hot spares that live on their drives (`Config.metadata`)."""

import os
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import needs_linux
from cocotb_tests.metadata.mdadm import write_drive
from cocotb_tests.native.native_lives import job_ends, made
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, SECTORS_PER_BLOCK
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.metadata.superblock import SPARE
from powercut.lives import CONFIG, DRIVE, IDENTITY, POLL_NS, Known, Lives
from sim.golden.superblock import Superblock
from sim.md.machine import Assembly, assembled, drive, run
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
DRIVE_UNAVAILABLE = 0x1C0
"""Status of a change that is refused."""

SOON_NS = 100_000
"""After that a spare has been written, or has stepped in."""

OTHER = IDENTITY + 1
"""Another card."""

DEDICATED, GLOBAL, PLAIN = 3, 4, 5
"""Ports of a spare for the array on ports 0 to 2, of one for all arrays, and of an ordinary drive.
"""


def superblock(page: bytes) -> Superblock:
    """What a page says."""
    return Superblock.unpack(page, sectors=DRIVE.capacity * SECTORS_PER_BLOCK)


async def spares(card: SimulatedCard) -> list[int]:
    """Ports of the hot spares."""
    return [drive.port for drive in await raid.drives(card.nvme) if drive.spare]


async def foreign(card: SimulatedCard) -> list[int]:
    """Ports of drives that say that they belong to an array, which is not there."""
    return [drive.port for drive in await raid.drives(card.nvme) if drive.foreign]


async def both(card: SimulatedCard, lives: Lives) -> Known:
    """An array with a spare of its own, and one for all arrays."""
    await card.nvme.start()
    array = await made(card, lives, Level.RAID5, [0, 1, 2])
    await job_ends(card, array)
    await background.add_spare(card.nvme, DEDICATED, array.number)
    await background.add_spare(card.nvme, GLOBAL)
    assert await spares(card) == [DEDICATED, GLOBAL]
    return array


async def lost(card: SimulatedCard, array: Known, role: int) -> int:
    """Pulls the drive of a member. Returns the port of the one that has taken its place and been
    rebuilt."""
    card.harness.remove(array.ports[role])
    while True:
        (one,) = [one for one in await raid.arrays(card.nvme) if one.number == array.number]
        if one.members[role].port != array.ports[role] and one.state == ArrayState.OPTIMAL:
            break
        await card.transport.sleep(POLL_NS)
    await job_ends(card, array)
    return one.members[role].port


def test_spares_come_back():
    """After a power cut both are spares, and step in: the dedicated one first, whose superblock is
    then that of a member. A spare of another card is none here."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await both(card, lives)

    async def elsewhere(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        assert await spares(card) == []
        assert await foreign(card) == [0, 1, 2, DEDICATED, GLOBAL]

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == [DEDICATED, GLOBAL]
        assert await foreign(card) == []

    async def steps_in(card: SimulatedCard) -> None:
        await again(card)
        (array,) = lives.arrays
        assert await lost(card, array, 1) == DEDICATED
        array.ports[1] = DEDICATED
        assert await spares(card) == [GLOBAL]

    async def and_again(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == [GLOBAL]
        (array,) = lives.arrays
        await lives.look(card)
        assert await lost(card, array, 2) == GLOBAL
        assert await spares(card) == []
        await lives.check(card, array)

    with lives.power() as card:
        card.run(begin(card))
    pages = [lives.page(port) for port in range(CONFIG.ports)]
    member, dedicated, anywhere = (superblock(pages[port]) for port in (0, DEDICATED, GLOBAL))
    assert dedicated.set_uuid == member.set_uuid != anywhere.set_uuid
    for one in (dedicated, anywhere):
        assert one.role == SPARE and one.device_number >= one.raid_disks
    for life in (elsewhere, again, steps_in):
        with lives.power(identity=OTHER if life is elsewhere else IDENTITY) as card:
            card.run(life(card))
        if life is not steps_in:
            assert [lives.page(port) for port in (DEDICATED, GLOBAL, PLAIN)] == pages[DEDICATED:]
    with lives.power() as card:
        card.run(and_again(card))


def test_what_is_no_spare_any_more():
    """A spare that is removed, and one whose array is deleted, say so before the command ends. They
    are ordinary drives from then on."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        array = await both(card, lives)
        await background.remove_spare(card.nvme, GLOBAL)
        (volume,) = array.volumes
        await lives.delete_volume(card, array, volume)
        await raid.delete_array(card.nvme, array.number)
        assert await spares(card) == []

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == [] == await foreign(card)
        await raid.create_array(card.nvme, Level.RAID1, (DEDICATED, GLOBAL))

    with lives.power() as card:
        card.run(begin(card))
    assert not any(any(lives.page(port)) for port in range(CONFIG.ports))
    with lives.power() as card:
        card.run(again(card))


def test_another_drive_is_no_spare():
    """If the drive of a spare goes it is none any more. Nothing is written to another drive that
    comes in its place, whatever that holds. The first one is a spare again once it is back."""
    lives = Lives(SEED)

    async def exchanges(card: SimulatedCard) -> None:
        await both(card, lives)
        harness, foreign_page = card.harness, bytes(BLOCK_BYTES)
        for port in (DEDICATED, GLOBAL):
            harness.remove(port)
            await card.transport.sleep(POLL_NS)
            assert port not in await spares(card)
            own = harness.read_drive(port, 1)
            for page in (foreign_page, elsewhere):
                harness.write_drive(port, 1, page)
                harness.insert(port)
                await card.transport.sleep(3 * POLL_NS)
                assert port not in await spares(card)
                assert (port in await foreign(card)) == (page == elsewhere)
                harness.remove(port)
                await card.transport.sleep(POLL_NS)
                assert harness.read_drive(port, 1) == page
            harness.write_drive(port, 1, own)
            harness.insert(port)
            while port not in await spares(card):
                await card.transport.sleep(POLL_NS)
            assert harness.read_drive(port, 1) == own
        assert await spares(card) == [DEDICATED, GLOBAL]

    async def others(card: SimulatedCard) -> None:
        await card.nvme.start()
        await background.add_spare(card.nvme, PLAIN)

    with lives.power(identity=OTHER) as card:
        card.run(others(card))
    elsewhere = lives.page(PLAIN)
    lives.images[PLAIN].clear()
    with lives.power() as card:
        card.run(exchanges(card))


@pytest.mark.parametrize(
    "adds", [True, False], ids=["added", "removed"]
)
@pytest.mark.slow
def test_power_goes_as_spares_change(adds):
    """Whenever power goes: what has been acknowledged is so. What has not is so, or is as it was.
    A drive whose superblock is torn is an ordinary one."""
    lives = Lives(SEED)
    told = False

    async def begin(card: SimulatedCard) -> None:
        await both(card, lives)
        if adds:
            await background.remove_spare(card.nvme, GLOBAL)

    async def changes(card: SimulatedCard) -> None:
        nonlocal told
        if adds:
            await background.add_spare(card.nvme, GLOBAL)
        else:
            await background.remove_spare(card.nvme, GLOBAL)
        told = True

    async def cut(card: SimulatedCard) -> None:
        await card.nvme.start()
        card.transport.spawn(changes(card))
        await card.transport.sleep(after_ns)

    async def look(card: SimulatedCard) -> None:
        await card.nvme.start()
        found = await spares(card)
        assert DEDICATED in found
        is_spare = GLOBAL in found
        if told:
            assert is_spare == adds
        lives.seen["told" if told else "changed" if is_spare == adds else "not changed"] += 1

    with lives.power() as card:
        card.run(begin(card))
    for number in lives.branches(5):
        told, after_ns = False, 8_000 * number
        with lives.power() as card:
            card.run(cut(card))
        with lives.power() as card:
            card.run(look(card))
    print(dict(lives.seen))
    assert lives.seen["told"] and lives.seen["not changed"]


def test_a_drive_that_refuses():
    """A drive that does not store that it is a spare is one until power goes, and the host knows.
    So it is with one that does not store that it is none any more."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        await background.add_spare(card.nvme, GLOBAL)
        for port in (PLAIN, GLOBAL):
            card.harness.refuse_writes(port, 1)
        for port, change in (
            (PLAIN, background.add_spare), (GLOBAL, background.remove_spare)
        ):
            with pytest.raises(NvmeError) as error:
                await change(card.nvme, port)
            assert error.value.status == DRIVE_UNAVAILABLE
        assert await spares(card) == [PLAIN]
        # Again, and now it stores it.
        card.harness.accept_writes(PLAIN, 1)
        await background.remove_spare(card.nvme, PLAIN)
        assert await spares(card) == []
        await background.add_spare(card.nvme, PLAIN)

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == [GLOBAL, PLAIN]

    with lives.power() as card:
        card.run(begin(card))
    with lives.power() as card:
        card.run(again(card))


def test_the_old_drive_of_a_migration():
    """It is a spare of all arrays, and still is after a power cut. It was a dedicated one before,
    of an array that is gone."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await card.nvme.start()
        first = await raid.create_array(card.nvme, Level.RAID1, (3, 4))
        await background.stop_job(card.nvme, first)
        await background.add_spare(card.nvme, 2, first)
        await raid.delete_array(card.nvme, first)
        array = await made(card, lives, Level.RAID1, [1, 2])
        await job_ends(card, array)
        await background.migrate_member(card.nvme, array.number, 1, 3, spare=True)
        assert (await job_ends(card, array)).state == JobState.DONE
        await card.transport.sleep(SOON_NS)
        assert await spares(card) == [2]

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == [2]
        (array,) = lives.arrays
        array.ports[1] = 3
        await lives.look(card)
        assert await lost(card, array, 0) == 2
        await lives.check(card, array)

    with lives.power() as card:
        card.run(begin(card))
    anywhere, member = (superblock(lives.page(port)) for port in (2, 3))
    assert anywhere.role == SPARE and anywhere.set_uuid != member.set_uuid
    with lives.power() as card:
        card.run(again(card))


def test_spares_wait_for_a_host():
    """Drives of a card that was shut down lose their power one after the other. No spare steps in,
    neither then nor before a host enables the card."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await both(card, lives)
        await lives.shut_down(card)
        card.harness.remove(0)
        await card.transport.sleep(SOON_NS)

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == [DEDICATED, GLOBAL]
        await lives.look(card)
        (array,) = lives.arrays
        assert await lost(card, array, 0) == DEDICATED
        await lives.check(card, array)

    with lives.power() as card:
        card.run(begin(card))
    assert superblock(lives.page(DEDICATED)).role == SPARE
    with lives.power() as card:
        card.run(again(card))


def test_an_import_brings_spares():
    """Those that are dedicated to the array. Global ones are the other card's."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await both(card, lives)

    async def imports(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == []
        await raid.import_array(card.nvme, 0)
        assert await spares(card) == [DEDICATED]
        assert await foreign(card) == [GLOBAL]

    async def again(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await spares(card) == [DEDICATED]

    with lives.power() as card:
        card.run(begin(card))
    for life in (imports, again):
        with lives.power(identity=OTHER) as card:
            card.run(life(card))


@pytest.mark.slow
@needs_linux
def test_linux_takes_the_spare(tmp_path: Path):
    """To Linux a dedicated spare is one of its own arrays' spares. A global one is no array."""
    lives = Lives(SEED)

    async def begin(card: SimulatedCard) -> None:
        await both(card, lives)
        await lives.shut_down(card)

    with lives.power() as card:
        card.run(begin(card))
    ports = (0, 1, 2, DEDICATED, GLOBAL)
    given = [f"spares.{port}.img" for port in ports]
    for name, port in zip(given, ports, strict=True):
        areas = {SECTORS_PER_BLOCK * block: data for block, data in lives.images[port].items()}
        write_drive(tmp_path / name, SECTORS_PER_BLOCK * DRIVE.capacity, areas)
    drives = [drive(number) for number in range(len(ports))]
    job = Assembly(
        name="spares",
        given=given,
        attempts=[
            ["--examine", drives[3]],
            ["--assemble", "/dev/md1", drives[4]],
            ["--assemble", "/dev/md0", *drives[:4]],
            ["--wait", "/dev/md0"],
            ["--detail", "/dev/md0"],
        ],
        bytes=BLOCK_BYTES * DRIVE.capacity,
    )
    run(tmp_path, [job])
    after = assembled(tmp_path, job)
    print(after.said)
    assert after.state in ("clean", "active"), after
    assert "Spare Devices : 1" in after.said
