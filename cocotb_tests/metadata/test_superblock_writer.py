"""`hdl.metadata.superblock_writer.SuperblockWriter` on drive ports, against the model and mdadm."""

import os
import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import cocotb
import pytest

from cocotb_tests.drive.drive_model import RANDOM, DriveModel
from cocotb_tests.metadata.mdadm import MDADM, examined
from cocotb_tests.metadata.page_room import SIZES, WriterRoom
from cocotb_tests.metadata.superblock_pages import SECTORS, kept_words
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    pack,
    sample,
    start,
    wait_until,
)
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, SECTORS_PER_BLOCK
from hdl.flow.geometry import Level, Rotation, geometry
from hdl.flow.operation import DriveStatus
from hdl.metadata.superblock import BLOCK, KEPT_WORDS
from hdl.metadata.superblock_facts import SuperblockFacts
from hdl.metadata.superblock_writer import Edit, SuperblockWriter, superblock_edit
from sim.golden.superblock import (
    CLEAN,
    FAULTY,
    SECTOR,
    SPARE,
    Feature,
    RefusedSuperblockError,
    Superblock,
)

MOST_ROWS = SECTORS // SECTORS_PER_BLOCK - DATA_OFFSET_BLOCKS
DEVICES = 128
CODES = {
    Rotation.LEFT_ASYMMETRIC: 0,
    Rotation.RIGHT_ASYMMETRIC: 1,
    Rotation.LEFT_SYMMETRIC: 2,
    Rotation.RIGHT_SYMMETRIC: 3,
    Rotation.PARITY_FIRST: 4,
    Rotation.PARITY_LAST: 5,
    Rotation.DDF_ZERO_RESTART: 8,
    Rotation.DDF_N_RESTART: 9,
    Rotation.DDF_N_CONTINUE: 10,
}
"""md's layouts with parity (`drivers/md/raid5.h`)."""

DDF = (Rotation.DDF_ZERO_RESTART, Rotation.DDF_N_RESTART, Rotation.DDF_N_CONTINUE)
NAMES = {one: one.name.lower().replace("_", "-") for one in Rotation} | {
    Rotation.DDF_ZERO_RESTART: "ddf-zero-restart",
    Rotation.DDF_N_RESTART: "ddf-N-restart",
    Rotation.DDF_N_CONTINUE: "ddf-N-continue",
}
"""What mdadm calls them."""


@dataclass(kw_only=True)
class Array:
    """An array, and what its superblocks say."""

    level: Level
    width: int
    copies: int
    rotation: Rotation
    strip_shift: int
    rows: int
    set_uuid: bytes
    events: int
    dirty: bool
    alive: int
    rebuilding: int
    rebuilt: int

    @property
    def md(self) -> tuple[int, int]:
        """md's level and layout."""
        if self.level is Level.RAID0:
            return 0, 1
        if self.level is Level.RAID1 and self.copies == self.width:
            return 1, 0
        if self.level in (Level.RAID1, Level.RAID10):
            return 10, 0x100 | self.copies
        return self.level.value, CODES[self.rotation]

    def happens(self, generator: random.Random) -> None:
        """Members come and go, and what they hold changes."""
        self.events += generator.choice((1, 2, 1 << 32))
        self.dirty = generator.random() < 0.5
        everybody = (1 << self.width) - 1
        self.alive = everybody & ~(generator.getrandbits(32) & generator.getrandbits(32))
        self.rebuilding = self.alive & generator.getrandbits(32) & generator.getrandbits(32)
        self.rebuilt = generator.randrange(self.rows)

    def roles(self) -> tuple[int, ...]:
        """By device numbers."""
        own = [role if self.alive >> role & 1 else FAULTY for role in range(self.width)]
        return (*own, *[SPARE] * (DEVICES - self.width))

    def changed(self, one: Superblock) -> Superblock:
        """What the superblock becomes when it is changed."""
        rebuilds = self.rebuilding >> one.device_number & 1
        features = Feature.RAID0_LAYOUT if self.level is Level.RAID0 else Feature(0)
        return replace(
            one,
            features=features | (Feature.RECOVERY_OFFSET if rebuilds else Feature(0)),
            recovery_offset=self.rebuilt * SECTORS_PER_BLOCK if rebuilds else 0,
            events=self.events,
            resync_offset=0 if self.dirty else CLEAN,
            roles=self.roles(),
        )

    def made(self, role: int) -> Superblock:
        """The superblock of a new member. The identity of its drive is not said here."""
        level, layout = self.md
        sectors = self.rows * SECTORS_PER_BLOCK
        one = Superblock(
            set_uuid=self.set_uuid,
            set_name=b"striata",
            level=level,
            layout=layout,
            size=0 if level == 0 else sectors,
            chunk=0 if level == 1 else SECTORS_PER_BLOCK << self.strip_shift,
            raid_disks=self.width,
            data_offset=DATA_OFFSET_BLOCKS * SECTORS_PER_BLOCK,
            data_size=sectors,
            device_number=role,
            device_uuid=b"",
            events=self.events,
        )
        return self.changed(one)


def random_array(generator: random.Random) -> Array:
    """Any that md can express."""
    level = generator.choice((Level.RAID0, Level.RAID1, Level.RAID5, Level.RAID6, Level.RAID10))
    least = {Level.RAID5: 3, Level.RAID6: 4}.get(level, 2)
    width = generator.randint(least, generator.choice((least, 8, 32)))
    copies, rotation = 1, Rotation.LEFT_SYMMETRIC
    if level in (Level.RAID1, Level.RAID10):
        copies = generator.choice((2, width, generator.randint(2, width)))
    if level in (Level.RAID5, Level.RAID6):
        rotation = generator.choice([*Rotation])
        if level is Level.RAID5 and rotation in DDF:
            rotation = Rotation.RIGHT_SYMMETRIC
    array = Array(
        level=level,
        width=width,
        copies=copies,
        rotation=rotation,
        strip_shift=generator.randrange(9),
        rows=generator.randint(2, MOST_ROWS),
        set_uuid=generator.randbytes(16),
        events=generator.choice((1, 2, (1 << 32) - 1, generator.getrandbits(60))),
        dirty=False,
        alive=0,
        rebuilding=0,
        rebuilt=0,
    )
    array.happens(generator)
    return array


class Bench:
    """Has superblocks written, and looks at what is on the drives."""

    def __init__(self, dut, *, seed: int):
        self.dut = dut
        self.random = random.Random(f"{seed}/writer")
        blocks = SECTORS // SECTORS_PER_BLOCK
        self.drives = [
            DriveModel(dut, port, config=SIZES, timing=RANDOM, capacity=blocks, seed=seed)
            for port in range(SIZES.ports)
        ]
        self.edits = StreamSource(dut, "edit", layout=superblock_edit(SIZES))
        self.done = StreamSink(dut, "done", layout=DriveStatus, active=0.3)
        self.identities: set[bytes] = set()
        dut.kept_read__address.value = 0

    def show(self, array: Array) -> None:
        """What the array is from now on."""
        self.dut.geometry.value = pack(
            geometry(SIZES),
            valid=1,
            level=array.level,
            width=array.width,
            copies=array.copies,
            spans=1,
            strip_shift=array.strip_shift,
            rotation=array.rotation.value,
            rows=array.rows,
        )
        self.dut.facts.value = pack(
            SuperblockFacts,
            set_uuid=int.from_bytes(array.set_uuid, "little"),
            strip_shift=array.strip_shift,
            rows=array.rows,
            width=array.width,
            alive=array.alive,
            rebuilding=array.rebuilding,
            rebuilt=array.rebuilt,
            events=array.events,
            dirty=array.dirty,
        )

    async def write(self, edit: Edit, port: int, role: int) -> tuple[DriveStatus, bytes]:
        """How it ended, and the page that the drive holds then."""
        drive = self.drives[port]
        commands = drive.counts.commands
        self.edits.send(edit=edit, port=port, role=role)
        status = await self.done.receive(cycles=20_000)
        assert drive.counts.commands > commands
        written = set(drive.storage) - {BLOCK}
        assert not written, f"blocks {written} are no superblock"
        return status, drive.read_block(BLOCK)

    async def kept(self, port: int) -> list[int]:
        """What is kept of the drive at a port."""
        words = []
        for number in range(KEPT_WORDS):
            self.dut.kept_read__address.value = port * KEPT_WORDS + number
            await cycles_pass(self.dut.clk, 2)
            words.append(sample(self.dut.kept_read__data))
        return words


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def writes_what_md_reads(dut):
    """Members of arrays of all kinds are made, changed, exchanged, and erased."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    await start(dut)
    levels = Counter()
    for _ in range(int(os.environ["ARRAYS"])):
        array = random_array(bench.random)
        bench.show(array)
        await cycles_pass(dut.clk, 1)
        assert sample(dut.expressible)
        port, role = bench.random.randrange(SIZES.ports), bench.random.randrange(array.width)
        status, page = await bench.write(Edit.MAKE, port, role)
        assert status == DriveStatus.GOOD
        found = Superblock.unpack(page, sectors=SECTORS)
        identity = found.device_uuid
        assert identity not in bench.identities, "two drives have one identity"
        bench.identities.add(identity)
        assert replace(found, device_uuid=b"") == array.made(role)
        assert await bench.kept(port) == kept_words(page)
        check_with_mdadm(page, array, role)
        levels[array.md[0]] += 1

        for _ in range(bench.random.randint(0, 2)):
            array.happens(bench.random)
            bench.show(array)
            status, page = await bench.write(Edit.CHANGE, port, role)
            assert status == DriveStatus.GOOD
            found = array.changed(found)
            assert Superblock.unpack(page, sectors=SECTORS) == found
            assert await bench.kept(port) == kept_words(page)
            check_with_mdadm(page, array, role)

        if bench.random.random() < 0.3:
            status, page = await bench.write(Edit.ERASE, port, role)
            assert status == DriveStatus.GOOD and page == bytes(BLOCK_BYTES)
            assert not any(await bench.kept(port))
    assert set(levels) == {0, 1, 5, 6, 10}
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")


def check_with_mdadm(page: bytes, array: Array, role: int) -> None:
    """mdadm, if it is there, reads what the array is."""
    if MDADM is None:
        return
    told = examined(Path.cwd(), SECTORS, {SECTOR: page})
    level, layout = array.md
    assert told["Checksum"].endswith("correct"), told
    assert told["Raid Level"] == f"raid{level}" and int(told["Raid Devices"]) == array.width
    assert int(told["Events"]) == array.events
    assert told["State"].split()[0] == ("active" if array.dirty else "clean")
    if level in (5, 6):
        assert told["Layout"] == NAMES[array.rotation], told
    if level == 10:
        assert told["Layout"] == f"near={layout & 0xFF}", told
    if array.alive >> role & 1:
        assert told["Device Role"] == f"Active device {role}"
    assert told["Array State"].split()[0] == "".join(
        "A" if array.alive >> number & 1 else "." for number in range(array.width)
    )


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def tells_of_drives_that_fail(dut):
    """A page that a drive refuses, or that finds no drive, is not told to be there."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    await start(dut)
    bench.show(random_array(bench.random))
    for status in (DriveStatus.MEDIUM_ERROR, DriveStatus.ABORTED):
        bench.drives[1].bad_writes, bench.drives[1].error = {BLOCK}, status
        found, _ = await bench.write(Edit.MAKE, 1, 0)
        assert found == status
    bench.drives[2].remove()
    found, page = await bench.write(Edit.MAKE, 2, 0)
    assert found == DriveStatus.GONE
    with pytest.raises(RefusedSuperblockError):
        Superblock.unpack(page, sectors=SECTORS)
    # A drive that restarts once has it in the end.
    bench.edits.send(edit=Edit.MAKE, port=3, role=0)
    await wait_until(
        dut, lambda: bench.drives[3].counts.commands, cycles=20_000, what="the write"
    )
    await bench.drives[3].restart()
    assert await bench.done.receive(cycles=20_000) == DriveStatus.GOOD
    assert Superblock.unpack(bench.drives[3].read_block(BLOCK), sectors=SECTORS).role in (0, FAULTY)


class ForgetsTheFailed(SuperblockWriter):
    """A planted bug: roles of members that failed stay as they were."""

    def _make_word(self, m, new):
        super()._make_word(m, new)
        with m.If((self._edit.edit == Edit.CHANGE) & (self._number[6:] == 1)):
            m.d.comb += new.eq(self.kept_read.data)


class SumsTheOld(SuperblockWriter):
    """A planted bug: the checksum that was there is added up."""

    def _make_word(self, m, new):
        super()._make_word(m, new)
        with m.If((self._edit.edit == Edit.CHANGE) & (self._number == 54)):
            m.d.comb += new.eq(self.kept_read.data)


def run(component, name: str, *, arrays: int, testcase=None) -> None:
    simulate(
        component,
        name=name,
        module=__name__,
        parameters={"ARRAYS": str(arrays)},
        testcase=testcase,
    )


def test_superblock_writer():
    run(WriterRoom(config=SIZES), "superblock_writer", arrays=30)


@pytest.mark.slow
def test_superblock_writer_for_long():
    run(WriterRoom(config=SIZES), "superblock_writer_long", arrays=400)


@pytest.mark.parametrize("bug", [ForgetsTheFailed, SumsTheOld])
def test_superblock_writer_planted_bugs_are_found(bug):
    room = WriterRoom(config=SIZES, writer=bug)
    with pytest.raises(SimulationError, match="failed: writes_what_md_reads"):
        run(room, f"superblock_writer_{bug.__name__}", arrays=10, testcase="writes_what_md_reads")
