"""Arrays that Linux has made are imported (`Config.metadata`)."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import needs_linux
from cocotb_tests.metadata.mdadm import write_drive
from cocotb_tests.native.native_lives import job_ends, write
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, SECTORS_PER_BLOCK
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.metadata.found_set import Hindrance
from hdl.metadata.superblock import BLOCK
from powercut import lives as powercut_lives
from powercut.lives import POLL_NS, ROWS, Known, Lives, contents
from sim.golden.image import members
from sim.golden.layout import Layout
from sim.golden.superblock import FAULTY, SPARE, Feature, Superblock
from sim.md.machine import Assembly, Job, assembled, drive, run
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
DATA_OFFSET = 300
"""Blocks before the data of a member."""

DRIVE = replace(powercut_lives.DRIVE, capacity=DATA_OFFSET + ROWS)
SECTORS = DRIVE.capacity * SECTORS_PER_BLOCK
STRIP = 2
FREE = powercut_lives.CONFIG.ports - 1
"""A port whose drive Linux has not used."""

DEVICES = 64
INVALID_FIELD = 0x2
CUTS, IMPORT_NS = 12, 900_000
"""Cuts as an array is imported, and how long that takes at most."""

IDLE_NS = 3000 * powercut_lives.CONFIG.marks_idle_us
"""Nobody has written an array for so long: it is clean on its drives."""

LAYOUTS = {
    "RAID0": (Layout("RAID0", 3, STRIP), 0, 1),
    "RAID1": (Layout("RAID1", 2, 1), 1, 0),
    "RAID5": (Layout("RAID5", 3, STRIP), 5, 2),
    "RAID6": (Layout("RAID6", 4, STRIP), 6, 2),
    "RAID10": (Layout("RAID10", 4, STRIP), 10, 0x102),
}
"""Layouts, with what md calls them."""

ALL_LEVELS = [
    pytest.param(name, marks=() if name in ("RAID1", "RAID5") else pytest.mark.slow)
    for name in LAYOUTS
]


OF_POWER = [
    pytest.param(name, marks=() if name == "RAID5" else pytest.mark.slow) for name in LAYOUTS
]


@pytest.fixture(autouse=True)
def _larger_drives(monkeypatch) -> None:
    print(f"SEED={SEED}")
    monkeypatch.setattr(powercut_lives, "DRIVE", DRIVE)


def made_by_linux(lives: Lives, name: str) -> Known:
    """The drives of an array of Linux with data, while there is no power. Numbers of its devices
    are no roles, as after members have been replaced."""
    layout, level, code = LAYOUTS[name]
    chosen = lives.random
    ports = chosen.sample(range(FREE), layout.drives)
    array = Known(level=Level[name], ports=ports, created=True)
    array.blocks = layout.blocks(ROWS)
    array.stored = {block: block + 1 for block in range(array.blocks)}
    areas = members(layout, ROWS, [contents(block, n) for block, n in array.stored.items()])
    numbers = [*range(layout.drives)]
    while numbers == [*range(layout.drives)]:
        numbers = chosen.sample(range(layout.drives + 2), layout.drives)
    roles = [SPARE] * DEVICES
    for role, number in enumerate(numbers):
        roles[number] = role
    size = ROWS * SECTORS_PER_BLOCK
    common = Superblock(
        set_uuid=chosen.randbytes(16),
        set_name=b"host:0",
        ctime=1_700_000_000,
        level=level,
        layout=code,
        size=size if level else 0,
        chunk=0 if level == 1 else STRIP * SECTORS_PER_BLOCK,
        raid_disks=layout.drives,
        features=Feature(0) if level else Feature.RAID0_LAYOUT,
        data_offset=DATA_OFFSET * SECTORS_PER_BLOCK,
        data_size=size,
        device_number=0,
        device_uuid=b"",
        bad_blocks_size=8,
        bad_blocks_offset=24,
        utime=1_700_000_001,
        events=17,
        roles=tuple(roles),
    )
    for role, port in enumerate(ports):
        one = replace(common, device_number=numbers[role], device_uuid=chosen.randbytes(16))
        lives.images[port] = {BLOCK: one.pack().ljust(BLOCK_BYTES, b"\0")} | {
            DATA_OFFSET + row: areas[role][row * BLOCK_BYTES : (row + 1) * BLOCK_BYTES]
            for row in range(ROWS)
        }
    lives.arrays.append(array)
    return array


def superblock(lives: Lives, port: int) -> Superblock:
    """What a drive says, while there is no power."""
    return Superblock.unpack(lives.page(port), sectors=SECTORS)


def common(one: Superblock) -> tuple:
    """What all members have in common, whoever has written them last."""
    return (
        one.set_uuid, one.set_name, one.ctime, one.level, one.layout, one.size, one.chunk,
        one.raid_disks, one.data_offset,
    )  # fmt: skip


async def hindrances(card: SimulatedCard, ports: Iterable[int]) -> set[Hindrance]:
    """Why the array of these drives is not there."""
    drives = await raid.drives(card.nvme)
    return {drives[port].hindrance for port in ports}


async def imported(card: SimulatedCard, lives: Lives, array: Known) -> None:
    """The host imports it, and makes a volume of all of it, whose data is what Linux wrote."""
    array.number = await raid.import_array(card.nvme, array.ports[0])
    (one,) = await raid.arrays(card.nvme)
    assert (one.level, one.blocks, one.missing) == (array.level, array.blocks, 0)
    assert [member.port for member in one.members] == array.ports
    assert await raid.volumes(card.nvme) == []
    array.namespace = (await lives.create_volume(card, array, 0, array.blocks)).namespace
    await lives.check(card, array)


@pytest.mark.parametrize("name", ALL_LEVELS)
def test_an_array_of_linux(name):
    """It stays where it is until the host imports it. Then it is the card's own: it is written, a
    member is replaced and rebuilt, and it is there when power is back. Its superblocks stay those
    of one array, also that of the new member, and of a hot spare before that."""
    lives = Lives(SEED)
    array = made_by_linux(lives, name)
    has_spare = array.level in (Level.RAID5, Level.RAID6)
    before = [lives.page(port) for port in array.ports]
    theirs = common(superblock(lives, array.ports[0]))

    async def looks(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await raid.arrays(card.nvme) == []
        assert await hindrances(card, array.ports) == {Hindrance.ELSEWHERE}

    async def imports(card: SimulatedCard) -> None:
        await card.nvme.start()
        await imported(card, lives, array)
        for block in lives.random.sample(range(array.blocks), 4):
            await write(card, lives, array, block)
        if has_spare:
            await background.add_spare(card.nvme, FREE, array.number)

    async def exchanges(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)
        if array.level != Level.RAID0:
            card.harness.remove(array.ports[1])
            array.lost = array.missed = {1}
            await write(card, lives, array, 0)
            if not has_spare:
                await background.replace_member(card.nvme, array.number, 1, FREE)
            while (await raid.arrays(card.nvme))[0].members[1].port != FREE:
                await card.transport.sleep(POLL_NS)
            array.ports[1] = FREE
            assert (await job_ends(card, array)).state == JobState.DONE
            array.lost = array.missed = set()
            await lives.check(card, array)
        await lives.shut_down(card)

    async def is_there(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)

    with lives.power() as card:
        card.run(looks(card))
    assert [lives.page(port) for port in array.ports] == before
    for life in (imports, exchanges):
        with lives.power() as card:
            card.run(life(card))
        pages = [superblock(lives, port) for port in array.ports]
        assert {common(page) for page in pages} == {theirs}
        assert len({page.device_uuid for page in pages}) == len(pages)
        assert {page.role for page in pages} == {*range(len(pages))}
        if has_spare and life is imports:
            spare = superblock(lives, FREE)
            assert common(spare) == theirs and spare.role == SPARE and not spare.events
    with lives.power() as card:
        card.run(is_there(card))


@pytest.mark.parametrize("name", OF_POWER)
def test_power_goes_as_an_array_of_linux_is_imported(name):
    """Whenever that is: the drives make one array, this card's or nobody's yet, with all data."""
    lives = Lives(SEED)
    array = made_by_linux(lives, name)
    ours = 0

    async def imports(card: SimulatedCard, cut: int) -> None:
        await card.nvme.start()
        card.transport.spawn(imported(card, lives, array))
        await card.transport.sleep((cut + lives.random.random()) / CUTS * IMPORT_NS)

    async def is_whole(card: SimulatedCard, array: Known) -> bool:
        await card.nvme.start()
        there = await raid.arrays(card.nvme)
        if not there:
            assert await hindrances(card, array.ports) == {Hindrance.ELSEWHERE}
            array.volumes.clear()
            await imported(card, lives, array)
            return False
        array.number = there[0].number
        assert not there[0].missing
        if not await raid.volumes(card.nvme):
            array.volumes.clear()
            array.namespace = (await lives.create_volume(card, array, 0, array.blocks)).namespace
        else:
            array.namespace = (await raid.volumes(card.nvme))[0].namespace
        await lives.check(card, array)
        return True

    for cut in lives.branches(CUTS):
        (array,) = lives.arrays
        with lives.power() as card:
            card.run(imports(card, cut))
        with lives.power() as card:
            ours += card.run(is_whole(card, array))
    print(f"{ours} of {CUTS} are the card's")
    assert 0 < ours < CUTS


def test_one_that_linux_did_not_leave_in_order():
    """A member is an event behind: the numbers of devices in the superblock of another one say
    which role it has, and these change. So Linux has to make them alike before."""
    lives = Lives(SEED)
    array = made_by_linux(lives, "RAID1")
    late = array.ports[1]
    one = superblock(lives, late)
    lives.images[late][BLOCK] = replace(one, events=one.events - 1).pack().ljust(BLOCK_BYTES, b"\0")
    before = [lives.page(port) for port in array.ports]

    async def refused(card: SimulatedCard) -> None:
        await card.nvme.start()
        assert await hindrances(card, array.ports) == {Hindrance.RENUMBERED}
        with pytest.raises(NvmeError) as caught:
            await raid.import_array(card.nvme, late)
        assert caught.value.status == INVALID_FIELD
        await card.transport.sleep(POLL_NS)

    with lives.power() as card:
        card.run(refused(card))
    assert [lives.page(port) for port in array.ports] == before


def test_a_member_that_has_failed_in_linux():
    """The array comes without it, and it has nothing to say any more."""
    lives = Lives(SEED)
    array = made_by_linux(lives, "RAID5")
    failed = array.ports[2]
    number = superblock(lives, failed).device_number
    for port in array.ports[:2]:
        one = superblock(lives, port)
        roles = list(one.roles)
        roles[number] = FAULTY
        newer = replace(one, events=one.events + 3, roles=tuple(roles))
        lives.images[port][BLOCK] = newer.pack().ljust(BLOCK_BYTES, b"\0")
    array.lost = array.missed = {2}

    async def imports(card: SimulatedCard) -> None:
        await card.nvme.start()
        array.number = await raid.import_array(card.nvme, array.ports[0])
        (one,) = await raid.arrays(card.nvme)
        assert one.missing == 1 and one.members[2].failed
        array.namespace = (await lives.create_volume(card, array, 0, array.blocks)).namespace
        await lives.check(card, array)
        assert await hindrances(card, [failed]) == {Hindrance.LEFT_OUT}
        await background.replace_member(card.nvme, array.number, 2, failed)
        assert (await job_ends(card, array)).state == JobState.DONE
        await lives.check(card, array)

    with lives.power() as card:
        card.run(imports(card))
    pages = [superblock(lives, port) for port in array.ports]
    assert len({common(page) for page in pages}) == 1


def test_the_last_drive_refuses_its_superblock():
    """It stays, also the next time, and its superblock is written once it takes it."""
    lives = Lives(SEED)
    array = made_by_linux(lives, "RAID1")
    left = array.ports[0]
    theirs = common(superblock(lives, left))

    async def life(card: SimulatedCard) -> None:
        await card.nvme.start()
        await imported(card, lives, array)
        card.harness.remove(array.ports[1])
        array.lost = array.missed = {1}
        await write(card, lives, array, 0)
        card.harness.refuse_writes(left, BLOCK)
        for block in range(1, 4):
            await card.transport.sleep(IDLE_NS)
            await write(card, lives, array, block)
        card.harness.accept_writes(left, BLOCK)
        await card.transport.sleep(IDLE_NS)
        await write(card, lives, array, 4)
        (one,) = await raid.arrays(card.nvme)
        assert one.state == ArrayState.DEGRADED and not one.members[0].failed, one
        await lives.check(card, array)

    async def is_there(card: SimulatedCard) -> None:
        await card.nvme.start()
        await lives.look(card)

    with lives.power() as card:
        card.run(life(card))
    assert common(superblock(lives, left)) == theirs
    with lives.power() as card:
        card.run(is_there(card))


MD_ARRAYS = {
    "RAID0": (3, ["--chunk=8"]),
    "RAID1": (2, []),
    "RAID5": (3, ["--chunk=8"]),
    "RAID6": (4, ["--chunk=4"]),
    "RAID10": (4, ["--chunk=16"]),
}
"""Drives and options of arrays that mdadm makes."""

MD_DRIVE = replace(powercut_lives.DRIVE, capacity=1024)
MD_SECTORS = MD_DRIVE.capacity * SECTORS_PER_BLOCK
MD_SIZE_KIB = 256


def filled(blocks: int) -> bytes:
    """What an array holds at first."""
    return b"".join(contents(block, block + 1) for block in range(blocks))


@pytest.mark.slow
@needs_linux
def test_linux_imports(tmp_path, monkeypatch):
    """mdadm makes arrays, and Linux writes them. The card imports them, writes them, and rebuilds a
    member. Linux has them back, and reads what the card has written."""
    monkeypatch.setattr(powercut_lives, "DRIVE", MD_DRIVE)
    drive_bytes = MD_DRIVE.capacity * BLOCK_BYTES
    rows = MD_SIZE_KIB * 1024 // BLOCK_BYTES
    jobs, blocks = [], {}
    for name, (count, options) in MD_ARRAYS.items():
        level = name.removeprefix("RAID")
        size = [] if level == "0" else [f"--size={MD_SIZE_KIB}"]
        layout = Layout(name, count, 1)
        blocks[name] = layout.blocks(rows)
        (tmp_path / f"{name}.in").write_bytes(filled(blocks[name]))
        create = [
            "--create", "/dev/md0", "--run", "--metadata=1.2", "--data-offset=2M",
            f"--level={level}", f"--raid-devices={count}", *size, *options,
        ]  # fmt: skip
        jobs.append(
            Job(
                name=name,
                arrays=[[*create, *(drive(number) for number in range(count))]],
                device="/dev/md0",
                data=[(f"{name}.in", 0)],
                bytes=drive_bytes,
                images=[f"{name}.{number}.img" for number in range(count)],
            )
        )
    run(tmp_path, jobs)
    back: list[tuple[Assembly, Known]] = []
    for job in jobs:
        array = adopted(tmp_path, job, blocks[job.name])
        given = [image.replace(".img", ".back") for image in job.images]
        drives = [drive(number) for number in range(len(given))]
        attempts = [["--assemble", "/dev/md0", *drives], ["--detail", "/dev/md0"]]
        back.append(
            (Assembly(name=job.name, given=given, attempts=attempts, bytes=drive_bytes), array)
        )
    run(tmp_path, [job for job, _ in back])
    for job, array in back:
        after = assembled(tmp_path, job)
        assert "degraded" not in after.said, after.said
        assert len(after.roles) == len(job.given), after.said
        assert after.data is not None, after.said
        for block, number in array.stored.items():
            data = after.data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            assert data == contents(block, number), (job.name, block)


def adopted(folder: Path, job: Job, blocks: int) -> Known:
    """What the card has made of an array of mdadm, whose drives it leaves in ``.back`` files."""
    lives = Lives(SEED)
    ports = lives.random.sample(range(powercut_lives.CONFIG.ports - 1), len(job.images))
    for port, image in zip(ports, job.images, strict=True):
        held = (folder / image).read_bytes()
        parts = {n: held[n * BLOCK_BYTES : (n + 1) * BLOCK_BYTES] for n in range(MD_DRIVE.capacity)}
        lives.images[port] = {n: part for n, part in parts.items() if any(part)}
    pages = [Superblock.unpack(lives.page(port), sectors=MD_SECTORS) for port in ports]
    places = {page.role: port for page, port in zip(pages, ports, strict=True)}
    array = Known(level=Level[job.name], ports=[places[role] for role in range(len(ports))])
    array.stored = {block: block + 1 for block in range(blocks)}

    async def imports(card: SimulatedCard) -> None:
        await card.nvme.start()
        array.number = await raid.import_array(card.nvme, ports[0])
        (one,) = await raid.arrays(card.nvme)
        assert one.blocks >= blocks and not one.missing, one
        array.namespace = (await lives.create_volume(card, array, 0, one.blocks)).namespace
        assert (await job_ends(card, array)).state in (JobState.NONE, JobState.DONE)
        await lives.check(card, array)
        for block in lives.random.sample(range(blocks), 20):
            await write(card, lives, array, block)
        if array.level != Level.RAID0:
            port = array.ports[1]
            card.harness.remove(port)
            await write(card, lives, array, 0)
            card.harness.insert(port, blank=True)
            await card.transport.sleep(POLL_NS)
            await background.replace_member(card.nvme, array.number, 1, port)
            assert (await job_ends(card, array)).state == JobState.DONE
        await lives.check(card, array)
        await lives.shut_down(card)

    with lives.power() as card:
        card.run(imports(card))
    for port, image in zip(ports, job.images, strict=True):
        areas = {block * SECTORS_PER_BLOCK: data for block, data in lives.images[port].items()}
        write_drive(folder / image.replace(".img", ".back"), MD_SECTORS, areas)
    return array
