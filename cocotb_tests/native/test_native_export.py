"""`sw.raidctl`: what Linux needs to have the volumes of drives that the card has written."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import needs_linux
from cocotb_tests.metadata.mdadm import mdadm, needs_mdadm, write_drive
from cocotb_tests.native.native_lives import job_ends
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, SECTORS_PER_BLOCK
from hdl.flow.geometry import Level
from powercut.lives import DRIVE, Known, Lives, contents
from sim.golden.layout import Layout
from sim.golden.superblock import Superblock
from sim.md.guest import MOUNT
from sim.md.machine import Assembly, assembled, drive, run
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.raidctl.__main__ import main

SEED = int(os.environ.get("SEED") or "1")
SECTOR_BYTES = 512
STRIP_BLOCKS, STRIP_KIB = 2, 8
SPARE = 5

Cards = list[tuple[Level, list[int], int, list[tuple[int, int, int]]]]
"""Arrays of a card: level, ports, spans, and volumes by start, blocks and bytes of a sector."""

TWO: Cards = [
    (Level.RAID5, [0, 1, 2], 1, [(0, 11, 4096), (11, 5, 512), (20, 8, 4096)]),
    (Level.RAID1, [3, 4], 1, [(3, 9, 512)]),
]
SPANS: Cards = [(Level.RAID5, [*range(6)], 2, [(0, 30, 4096), (31, 7, 512)])]


def written(work: Path, cards: Cards, *, spare: bool = False) -> tuple[Lives, list[str]]:
    """Drives of a card whose volumes are full, as files."""
    lives = Lives(SEED)

    async def live(card: SimulatedCard) -> None:
        await card.nvme.start()
        address = card.transport.memory.allocate(BLOCK_BYTES)
        for level, ports, spans, volumes in cards:
            array = Known(level=level, ports=ports, spans=spans)
            lives.arrays.append(array)
            array.number = await raid.create_array(
                card.nvme, level, ports, strip_kib=STRIP_KIB, spans=spans
            )
            for start, blocks, sector_bytes in volumes:
                one = await lives.create_volume(card, array, start, blocks, sector_bytes)
                sectors = BLOCK_BYTES // sector_bytes
                for block in range(blocks):
                    card.transport.memory.write(address, contents(start + block, block + 1))
                    await card.nvme.write(
                        one.namespace, block * sectors, sectors, address, 0, True, sector_bytes
                    )
            await job_ends(card, array)
        if spare:
            await background.add_spare(card.nvme, SPARE)
        await lives.shut_down(card)

    with lives.power() as card:
        card.run(live(card))
    names = []
    for port, image in enumerate(lives.images):
        areas = {SECTORS_PER_BLOCK * block: data for block, data in image.items()}
        names.append(str(work / f"drive.{port}.img"))
        write_drive(Path(names[-1]), SECTORS_PER_BLOCK * DRIVE.capacity, areas)
    return lives, names


def exported(capsys, monkeypatch, *arguments: str) -> tuple[int, list[str], list[str]]:
    """How the program ended, and the lines that it printed, and those to standard error."""
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["raidctl", "export", *arguments])
    status = main()
    told = capsys.readouterr()
    return status, told.out.splitlines(), told.err.splitlines()


def again(name: str, events: int, **values: int) -> None:
    """The array has been used with this drive, so often."""
    page = bytearray(Path(name).read_bytes())
    one = Superblock.unpack(page[4096:8192], sectors=len(page) // SECTOR_BYTES)
    page[4096:8192] = replace(one, events=one.events + events, **values).pack()
    Path(name).write_bytes(page)


def tables_of(lines: list[str]) -> dict[str, list[str]]:
    """Tables by the names of their devices, in words."""
    return {name: table.split() for name, _, table in (line.partition(": ") for line in lines)}


def read_mapped(
    tables: dict[str, list[str]], device: str, sector: int, read: Callable[[str, int], bytes]
) -> bytes:
    """A sector of a device as device-mapper has it. ``read`` reads those that it does not make."""
    name = device.removeprefix("/dev/mapper/")
    if name not in tables:
        return read(device, sector)
    first, length, target, *rest = tables[name]
    assert first == "0" and sector < int(length), f"{name} has no sector {sector}"
    if target == "linear":
        below, offset = rest
        return read_mapped(tables, below, int(offset) + sector, read)
    assert target == "striped"
    stripes, chunk, *places = rest
    piece, within = divmod(sector, int(chunk))
    row, stripe = divmod(piece, int(stripes))
    below, offset = places[2 * stripe : 2 * stripe + 2]
    assert offset == "0"
    return read_mapped(tables, below, row * int(chunk) + within, read)


@needs_mdadm
@pytest.mark.parametrize("cards", [TWO, SPANS], ids=["volumes", "spans"])
def test_what_linux_needs(cards, tmp_path, capsys, monkeypatch):
    """The lines are those of arrays that mdadm finds. By the tables each volume has its data."""
    lives, names = written(tmp_path, cards, spare=cards is TWO)
    status, lines, remarks = exported(capsys, monkeypatch, *names)
    assert status == 0
    arrays = [line for line in lines if line.startswith("ARRAY")]
    tables = tables_of(lines[len(arrays) :])
    assert exported(capsys, monkeypatch, "--mdadm", *names)[1] == arrays
    assert tables_of(exported(capsys, monkeypatch, "--dm", *reversed(names))[1]) == tables
    # Which drives each of them is made of, by mdadm's word.
    found = {port: mdadm("--examine", "--brief", name) for port, name in enumerate(names)}
    layouts: dict[str, tuple[Layout, list[int]]] = {}
    devices = []
    for level, ports, spans, _ in cards:
        width = len(ports) // spans
        for span in range(spans):
            own = ports[span * width : (span + 1) * width]
            (uuid,) = {one for port in own for one in re.findall(r"UUID=(\S+)", found[port])}
            (line,) = [line for line in arrays if line.endswith(f" metadata=1.2 UUID={uuid}")]
            devices += re.findall(r"^ARRAY (\S+) metadata", line)
            layouts[devices[-1]] = Layout(level.name, width, STRIP_BLOCKS), own
    assert len(set(devices)) == len(arrays) == sum(spans for _, _, spans, _ in cards)

    def read(device: str, sector: int) -> bytes:
        layout, ports = layouts[device]
        block, within = divmod(sector, SECTORS_PER_BLOCK)
        place = layout.map(block)
        data = lives.images[ports[place.position]][DATA_OFFSET_BLOCKS + place.row]
        return data[SECTOR_BYTES * within : SECTOR_BYTES * (within + 1)]

    numbers = 0
    for _, _, _, volumes in cards:
        for start, blocks, sector_bytes in volumes:
            numbers += 1
            (name,) = [name for name in tables if name.endswith(f"-n{numbers}")]
            assert int(tables[name][1]) == blocks * SECTORS_PER_BLOCK
            for block in range(blocks):
                data = b"".join(
                    read_mapped(tables, name, block * SECTORS_PER_BLOCK + sector, read)
                    for sector in range(SECTORS_PER_BLOCK)
                )
                assert data == contents(start + block, block + 1), (name, block)
            assert (sector_bytes == BLOCK_BYTES) == any(name in remark for remark in remarks)
    assert sum("hot spare" in remark for remark in remarks) == (cards is TWO)


@needs_mdadm
def test_a_wrong_table_is_found(tmp_path, capsys, monkeypatch):
    """A planted bug: spans are joined strip by strip."""
    monkeypatch.setattr("sw.raidctl.export._shape", lambda one: (one.size // one.chunk, one.chunk))
    with pytest.raises(AssertionError):
        test_what_linux_needs(SPANS, tmp_path, capsys, monkeypatch)


def test_what_hinders_linux_is_told(tmp_path, capsys, monkeypatch):
    """Drives that are missing, in no array, or cannot be read."""
    _, names = written(tmp_path, TWO)

    def remarks(*chosen: str) -> tuple[int, str]:
        status, _, told = exported(capsys, monkeypatch, *chosen)
        return status, "\n".join(told)

    status, told = remarks(*names[1:])
    assert status == 0 and "lacks member 0, and Linux starts it without" in told
    assert "no superblock" in told
    status, told = remarks(names[0])
    assert status == 1 and "lacks members 1, 2, and cannot be started" in told
    # A drive twice, one that the others were used without, one that is not whole.
    copy = tmp_path / "copy"
    shutil.copy(names[0], copy)
    status, told = remarks(*names[:3], str(copy))
    assert status == 0 and f"{copy}: left out, since another drive is member 0" in told
    for name in names[1:3]:
        again(name, 7)
    status, told = remarks(*names[:3])
    assert status == 0 and "lacks member 0" in told
    assert f"{names[0]}: left out, since the others have been used without it" in told
    # Power went as it was being written.
    for name in names[1:3]:
        again(name, 0, resync_offset=0)
    status, told = remarks(*names[1:3])
    assert status == 0 and "lacks member 0, and was in use as power went" in told
    status, told = remarks(names[1])
    assert status == 1 and "lacks members 0, 2, and cannot be started" in told
    copy.write_bytes(copy.read_bytes()[:20_000])
    status, told = remarks(str(copy))
    assert status == 1 and "data ends beyond the drive" in told
    status, told = remarks(names[SPARE])
    assert status == 1 and "no drive belongs to an array" in told
    with pytest.raises(SystemExit) as ended:
        remarks(names[0], str(tmp_path / "none"))
    assert ended.value.code == 2


def test_half_an_array_is_told(tmp_path, capsys, monkeypatch):
    """All drives of a span are missing: the other one is an array to md, and no volume is there."""
    _, names = written(tmp_path, SPANS)
    status, lines, remarks = exported(capsys, monkeypatch, *names[:3])
    assert status == 1 and len(lines) == 1 and lines[0].startswith("ARRAY /dev/md/striata-")
    assert any("no drive of span 1 is there" in remark for remark in remarks)


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize(
    ("cards", "first"), [(TWO, 0), (TWO, 1), (SPANS, 0), (SPANS, 1)],
    ids=["volumes", "volumes-without-a-drive", "spans", "spans-without-a-drive"],
)  # fmt: skip
def test_linux_has_the_volumes(cards, first, tmp_path, capsys, monkeypatch):
    """Linux assembles the arrays by these lines, makes the devices by these tables, and reads what
    the host has written, also if a drive is missing."""
    _, names = written(tmp_path, cards)
    names = names[first:]
    _, lines, _ = exported(capsys, monkeypatch, "--mdadm", *names)
    _, tables, _ = exported(capsys, monkeypatch, "--dm", *names)
    devices = " ".join(drive(number) for number in range(len(names)))
    (tmp_path / "mdadm.conf").write_text("\n".join([f"DEVICE {devices}", *lines, ""]))
    job = Assembly(
        name="exported",
        given=[Path(name).name for name in names],
        attempts=[["--assemble", "--scan", f"--config={MOUNT}/mdadm.conf"]],
        bytes=BLOCK_BYTES * DRIVE.capacity,
        tables=[(name, table) for name, _, table in (line.partition(": ") for line in tables)],
    )
    run(tmp_path, [job])
    print(assembled(tmp_path, job).said)
    numbers = 0
    for _, _, _, volumes in cards:
        for start, blocks, _ in volumes:
            numbers += 1
            (data,) = [
                path.read_bytes() for path in tmp_path.glob(f"exported.*-n{numbers}.data")
            ]
            assert len(data) == blocks * BLOCK_BYTES
            for block in range(blocks):
                found = data[BLOCK_BYTES * block : BLOCK_BYTES * (block + 1)]
                assert found == contents(start + block, block + 1), (numbers, block)
