"""`hdl.metadata.superblock_writer.SuperblockWriter` on drive ports, against the model and mdadm."""

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cocotb
import pytest
from amaranth.hdl import Signal

from cocotb_tests.metadata.md_array import DEVICES, EXPRESSIBLE, NAMES, Array, random_array, show
from cocotb_tests.metadata.mdadm import MDADM, examined
from cocotb_tests.metadata.page_bench import PageBench
from cocotb_tests.metadata.page_room import FIRST_LINE, SIZES, WriterRoom
from cocotb_tests.metadata.superblock_pages import SECTORS, bitmap_of, kept_words
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    sample,
    start,
    wait_until,
)
from hdl.config import BLOCK_BYTES, SECTORS_PER_BLOCK
from hdl.flow.geometry import Level
from hdl.flow.line import write_beat
from hdl.flow.operation import DriveStatus
from hdl.metadata.page_mover import moved_page
from hdl.metadata.superblock import BLOCK, KEPT_WORDS, Word
from hdl.metadata.superblock_writer import Edit, SuperblockWriter, superblock_edit
from sim.golden.superblock import (
    FAULTY,
    SECTOR,
    SPARE,
    RefusedSuperblockError,
    Superblock,
)


class Bench(PageBench):
    """Has superblocks written, and looks at what is on the drives."""

    def __init__(self, dut, *, seed: int):
        super().__init__(dut, seed=seed, name="writer")
        self.lines = random.Random(f"{seed}/lines")
        dut.line.value = 0
        self.edits = StreamSource(dut, "edit", layout=superblock_edit(SIZES))
        self.done = StreamSink(dut, "done", layout=moved_page(SIZES), active=0.3)
        self.identities: set[bytes] = set()
        self.fouled = StreamSource(dut, "foul", layout=write_beat(SIZES))

    async def foul(self) -> None:
        """Nobody knows what lines hold at first."""
        width, beats = SIZES.data_width, SIZES.beats
        for line in range(SIZES.superblock_lines):
            for beat in range(beats):
                address = (FIRST_LINE + line) * beats + beat
                word = self.lines.getrandbits(width)
                self.fouled.send(address=address, data=word, mask=(1 << SIZES.beat_dwords) - 1)
        await self.fouled.drained()

    async def end(self) -> DriveStatus:
        """How the page has ended that is under way. The next one passes through any line."""
        end = await self.done.receive(cycles=20_000)
        assert end.line == sample(self.dut.line)
        self.dut.line.value = self.lines.randrange(SIZES.superblock_lines)
        return end.status

    async def plant(self, port: int, page: bytes) -> None:
        """This is kept of the drive at a port from now on."""
        dut = self.dut
        for number, word in enumerate(kept_words(page)):
            dut.plant__address.value = port * KEPT_WORDS + number
            dut.plant__data.value = word
            dut.plant__enable.value = 1
            await cycles_pass(dut.clk, 1)
        dut.plant__enable.value = 0

    async def write(
        self, edit: Edit, port: int, role: int, **like: int
    ) -> tuple[DriveStatus, bytes]:
        """How it ended, and the page that the drive holds then."""
        drive = self.drives[port]
        commands = drive.counts.commands
        self.edits.send(edit=edit, port=port, role=role, **like)
        status = await self.end()
        done = drive.counts.history[commands:]
        # Once stored, it is there also after a loss of power.
        assert done and set(done) == {("WRITE", BLOCK, 1, True)}, done
        written = set(drive.storage) - {BLOCK}
        assert not written, f"blocks {written} are no superblock"
        page = drive.read_block(BLOCK)
        if status == DriveStatus.GOOD:
            assert not any(page[4 * KEPT_WORDS :]), "what the line held before"
        return status, page


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def writes_what_md_reads(dut):
    """Members of arrays of all kinds are made, changed, exchanged, and erased."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    await start(dut)
    await bench.foul()
    levels: Counter = Counter()
    spans: set[int] = set()
    for number in range(int(os.environ["ARRAYS"])):
        array = random_array(bench.random, level=EXPRESSIBLE[number % len(EXPRESSIBLE)])
        show(dut, SIZES, array)
        await cycles_pass(dut.clk, 1)
        levels[array.level, array.copies == array.width] += 1
        spans.add(array.spans)
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

        for _ in range(bench.random.randint(0, 2)):
            array.happens(bench.random)
            show(dut, SIZES, array)
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
            # Another drive gets the role.
            array.happens(bench.random)
            show(dut, SIZES, array)
            _, page = await bench.write(Edit.MAKE, port, role)
            identity = Superblock.unpack(page, sectors=SECTORS).device_uuid
            assert identity not in bench.identities, "two drives have one identity"
            bench.identities.add(identity)
    assert {level for level, _ in levels} == {*EXPRESSIBLE}
    assert {True, False} == {whole for level, whole in levels if level is Level.RAID1}
    assert spans > {1, 2}, f"hardly any spans: {spans}"
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")


def check_with_mdadm(page: bytes, array: Array, role: int) -> None:
    """mdadm, if it is there, reads what the array is."""
    if MDADM is None:
        return
    areas = {SECTOR: page}
    if array.marked:
        # Without a bitmap mdadm takes that feature away, and then misses it in the checksum.
        one = Superblock.unpack(page, sectors=SECTORS)
        areas[SECTOR + one.bitmap_offset] = bitmap_of(one).pack()
    told = examined(Path.cwd(), SECTORS, areas)
    level, layout = array.md
    assert told["Checksum"].endswith("correct"), told
    name = "-unknown-" if array.level is Level.RAIDTP else f"raid{level}"
    assert told["Raid Level"] == name and int(told["Raid Devices"]) == array.width
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
    show(dut, SIZES, random_array(bench.random))
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
    assert await bench.end() == DriveStatus.GOOD
    assert Superblock.unpack(bench.drives[3].read_block(BLOCK), sectors=SECTORS).role in (0, FAULTY)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def erases_lists(dut):
    """A list becomes zeros, and the superblock is what it was."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    await start(dut)
    show(dut, SIZES, random_array(bench.random))
    status, page = await bench.write(Edit.MAKE, 1, 0)
    assert status == DriveStatus.GOOD
    kept, drive = await bench.kept(1), bench.drives[1]
    for number, block in ((1, 254), (2, 255)):
        drive.storage[block] = bench.random.randbytes(BLOCK_BYTES)
        bench.edits.send(edit=Edit.ERASE, port=1, page=number)
        assert await bench.end() == DriveStatus.GOOD
        assert drive.counts.history[-1] == ("WRITE", block, 1, True)
        assert drive.storage[block] == bytes(BLOCK_BYTES)
        assert drive.storage[BLOCK] == page and await bench.kept(1) == kept


def made_by_linux(array: Array, role: int, generator: random.Random) -> Superblock:
    """A member of an array that Linux has made. Numbers of devices are no roles, and there is more
    that members have in common, or not."""
    devices = generator.choice((32, 64, DEVICES))
    numbers = generator.sample(range(devices), array.width)
    roles = [SPARE] * devices
    for other, number in enumerate(numbers):
        roles[number] = other
    return replace(
        array.made(role),
        set_name=b"host:" + str(generator.randrange(100)).encode(),
        ctime=generator.getrandbits(40) | 1,
        data_size=array.rows * SECTORS_PER_BLOCK + generator.choice((0, 1, 7)),
        device_number=numbers[role],
        device_uuid=generator.randbytes(16),
        corrected_reads=generator.getrandbits(8),
        device_flags=generator.choice((0, 1, 2)),
        bad_blocks_size=8,
        bad_blocks_offset=16,
        utime=generator.getrandbits(40),
        roles=tuple(roles),
    )


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def follows_linux(dut):
    """Superblocks of members that Linux has made are changed, and new members are like them."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    await start(dut)
    generator, levels = bench.random, [one for one in EXPRESSIBLE if one is not Level.RAIDTP]
    for number in range(int(os.environ["ARRAYS"])):
        array = random_array(generator, level=levels[number % len(levels)])
        array.spans, array.span = 1, 0
        show(dut, SIZES, array)
        port, new_port = generator.sample(range(SIZES.ports), 2)
        role, new_role = (generator.randrange(array.width) for _ in range(2))
        theirs = made_by_linux(array, role, generator)
        await bench.plant(port, theirs.pack())
        status, page = await bench.write(Edit.MAKE, new_port, new_role, like=1, model=port)
        assert status == DriveStatus.GOOD
        new = replace(
            theirs,
            device_number=new_role,
            corrected_reads=0,
            device_flags=0,
            data_size=array.rows * SECTORS_PER_BLOCK,
            utime=0,
        )
        found = Superblock.unpack(page, sectors=SECTORS)
        assert found.device_uuid not in {theirs.device_uuid, *bench.identities}
        bench.identities.add(found.device_uuid)
        assert found == array.changed(replace(new, device_uuid=found.device_uuid))
        check_with_mdadm(page, array, new_role)
        assert await bench.kept(port) == kept_words(theirs.pack())

        array.happens(generator)
        show(dut, SIZES, array)
        status, page = await bench.write(Edit.CHANGE, port, role)
        assert status == DriveStatus.GOOD
        found = array.changed(replace(theirs, device_number=role, utime=0))
        assert Superblock.unpack(page, sectors=SECTORS) == found
        check_with_mdadm(page, array, role)


class KeepsTheNumber(SuperblockWriter):
    """A planted bug: a device keeps the number that Linux gave it."""

    def _make_word(self, m, new):
        super()._make_word(m, new)
        with m.If((self.edit.payload.edit == Edit.CHANGE) & (self._number == Word.DEVICE_NUMBER)):
            m.d.comb += new.eq(self.kept_read.data)


class IsTheModel(SuperblockWriter):
    """A planted bug: a new member says that it is the drive that it is like."""

    def _make_word(self, m, new):
        super()._make_word(m, new)
        is_identity = (self._number >= Word.DEVICE_UUID) & (self._number < Word.BAD_BLOCKS)
        with m.If(self._is_like & is_identity):
            m.d.comb += new.eq(self.kept_read.data)


class ForgetsTheFailed(SuperblockWriter):
    """A planted bug: roles of members that failed stay as they were."""

    def _make_word(self, m, new):
        super()._make_word(m, new)
        with m.If((self.edit.payload.edit == Edit.CHANGE) & (self._number[6:] == 1)):
            m.d.comb += new.eq(self.kept_read.data)


class TrustsTheLine(SuperblockWriter):
    """A planted bug: a line that has not been used has zeros."""

    def __init__(self, *, config):
        super().__init__(config=config)
        self._is_clean = Signal(config.superblock_lines, init=-1)


class SumsTheOld(SuperblockWriter):
    """A planted bug: the checksum that was there is added up."""

    def _make_word(self, m, new):
        super()._make_word(m, new)
        with m.If((self.edit.payload.edit == Edit.CHANGE) & (self._number == 54)):
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


@pytest.mark.parametrize(
    ("bug", "testcase"),
    [
        (ForgetsTheFailed, "writes_what_md_reads"),
        pytest.param(TrustsTheLine, "writes_what_md_reads", marks=pytest.mark.slow),
        pytest.param(SumsTheOld, "writes_what_md_reads", marks=pytest.mark.slow),
        pytest.param(KeepsTheNumber, "follows_linux", marks=pytest.mark.slow),
        pytest.param(IsTheModel, "follows_linux", marks=pytest.mark.slow),
    ],
)
def test_superblock_writer_planted_bugs_are_found(bug, testcase):
    room = WriterRoom(config=SIZES, writer=bug)
    with pytest.raises(SimulationError, match=f"failed: {testcase}"):
        run(room, f"superblock_writer_{bug.__name__}", arrays=10, testcase=testcase)
