"""`hdl.metadata.superblocks.Superblocks` on drive ports: edits while drives come, go and fail."""

import os
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace

import cocotb
import pytest
from amaranth.hdl import Const, Module, Mux, Signal
from cocotb.task import Task

from cocotb_tests.drive.drive_model import RANDOM, DriveModel
from cocotb_tests.metadata.md_array import Array, random_array, show
from cocotb_tests.metadata.page_bench import PageBench
from cocotb_tests.metadata.page_room import SIZES, SuperblocksRoom
from cocotb_tests.metadata.superblock_pages import SECTORS, expected, hostile
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    every_cycle,
    sample,
    start,
    wait_until,
)
from hdl.config import BLOCK_BYTES, Config
from hdl.flow.operation import DriveStatus
from hdl.metadata.superblock import BLOCK, Finding
from hdl.metadata.superblock_writer import Edit
from hdl.metadata.superblocks import Superblocks, edited, member_edit
from sim.golden.spans import of_span
from sim.golden.superblock import Superblock
from sim.golden.volume_list import BLOCKS, newest


@dataclass
class Wanted:
    """An edit that is under way, of a drive that had this superblock. Its drive may go."""

    edit: Edit
    own: Superblock | None
    role: int
    array: Array
    generation: int
    """Of its list. 0: none is written."""
    trouble: Task[bytes] | None = None


SLOW = replace(RANDOM, ending=(0, 5000))
"""Several superblocks are made while a drive takes one."""

LINES = int(os.environ.get("LINES", SIZES.superblock_lines))


class Bench(PageBench):
    """Drives of which some are members of one array."""

    def __init__(self, dut, *, seed: int):
        super().__init__(dut, seed=seed, name="superblocks", timing=SLOW)
        for drive in self.drives:
            drive.storage[BLOCK] = hostile(self.random)
        self.edits = StreamSource(dut, "edit", layout=member_edit(SIZES))
        self.done = StreamSink(dut, "done", layout=edited(SIZES), active=0.3)
        self.array: Array = random_array(self.random)
        self.told: Counter = Counter()
        self.under_way: dict[int, Wanted] = {}
        self.generation = dut.generation.value = 1
        dut.identity.value = 77
        self.seen: Counter = Counter()
        every_cycle(dut.clk, self._watch())

    def _watch(self) -> Iterator[None]:
        """How many drives are written at once, and whether they wait for a line."""
        offered, taken = self.dut.edit__valid, self.dut.edit__ready
        while True:
            yield
            busy = sum(not drive.idle for drive in self.drives)
            self.seen["most"] = max(self.seen["most"], busy)
            if busy == LINES and sample(offered) and not sample(taken):
                self.seen["waits"] += 1

    async def exchange(self, port: int) -> bytes:
        """A drive goes, and perhaps comes back as another one. Returns that one's page."""
        drive = self.drives[port]
        if drive.present:
            drive.remove()
            await cycles_pass(self.dut.clk, self.random.randint(1, 4))
            await wait_until(self.dut, lambda: drive.idle, cycles=9000, what="its commands")
        blank = self.random.random() < 0.3
        page = drive.storage[BLOCK] = bytes(BLOCK_BYTES) if blank else hostile(self.random)
        drive.bad_reads = {BLOCK} if self.random.random() < 0.1 else set()
        drive.bad_writes = {BLOCK} if self.random.random() < 0.2 else set()
        drive.error = DriveStatus.MEDIUM_ERROR
        if self.random.random() < 0.9:
            drive.insert()
        return page

    async def begin(self, port: int) -> None:
        """The array changes, and the superblock of one drive with it."""
        drive = self.drives[port]
        own = self._own(drive)
        edit = self.random.choice((Edit.CHANGE, Edit.ERASE)) if own else Edit.MAKE
        if edit is Edit.MAKE and self.random.random() < 0.3 and not self.under_way:
            self.array = random_array(self.random)
        self.array.happens(self.random)
        show(self.dut, SIZES, self.array)
        role = own.device_number if own else self.random.randrange(self.array.width)
        lists = edit is not Edit.ERASE and self.random.random() < 0.2
        if lists and self.random.random() < 0.3:
            drive.bad_writes = {self.random.choice(BLOCKS)}
            drive.error = DriveStatus.MEDIUM_ERROR
        self.generation += 1
        self.dut.generation.value = self.generation
        array = deepcopy(self.array)
        self.under_way[port] = Wanted(edit, own, role, array, self.generation if lists else 0)
        self.edits.send(superblock={"edit": edit, "port": port, "role": role}, lists=lists)
        if self.random.random() < 0.2:
            self._exchange_later(port)
        await self.edits.drained(cycles=40_000)

    def _exchange_later(self, port: int) -> None:
        """The drive of an edit goes at any time."""

        async def exchanged() -> bytes:
            await cycles_pass(self.dut.clk, 2 + self.random.randrange(6_000))
            return await self.exchange(port)

        wanted = self.under_way.get(port)
        if wanted is not None and wanted.trouble is None:
            wanted.trouble = cocotb.start_soon(exchanged())

    async def change(self) -> None:
        """Superblocks of some drives change, which may go meanwhile. They end in any order."""
        members = [port for port, drive in enumerate(self.drives) if self._own(drive)]
        few = members if members and self.random.random() < 0.3 else range(SIZES.ports)
        ports = self.random.sample(few, self.random.randint(1, len(few)))
        ending = cocotb.start_soon(self._hear(len(ports)))
        for port in ports:
            await self.begin(port)
            await cycles_pass(self.dut.clk, self.random.choice((0, 0, 500)))
        if self.random.random() < 0.2:
            await self._exchange_as_it_is_told()
        await ending
        assert not self.under_way, self.under_way

    async def _exchange_as_it_is_told(self) -> None:
        """The end of an edit is not taken, and its drive goes."""
        self.done.paused = True
        ends = self.dut.done__valid
        for _ in range(20_000):
            if sample(ends) or not self.under_way:
                break
            await cycles_pass(self.dut.clk, 1)
        if self.under_way and sample(ends):
            port = sample(self.dut.done__payload) % SIZES.ports
            wanted = self.under_way[port]
            if wanted.trouble is None:
                wanted.trouble = cocotb.start_soon(self.exchange(port))
            await cycles_pass(self.dut.clk, self.random.randrange(40))
        self.done.paused = False

    async def _hear(self, edits: int) -> None:
        """What has become of each."""
        for _ in range(edits):
            end = await self.done.receive(cycles=80_000)
            self.seen["in another order"] += end.port != next(iter(self.under_way))
            wanted = self.under_way.pop(end.port)
            drive, good = self.drives[end.port], end.status == DriveStatus.GOOD
            self.told[wanted.edit, good] += 1
            if wanted.trouble is not None:
                self.seen["exchanged under way"] += not good
                page = await wanted.trouble
                # Nobody has named the drive that is there now.
                assert drive.storage[BLOCK] == page, "an edit has gone to another drive"
            elif good:
                self.seen["lists"] += bool(wanted.generation)
                assert drive.present and BLOCK not in drive.bad_writes
                drive.bad_reads.clear()  # a block that has been written can be read
                self._check_page(wanted, drive.storage[BLOCK])
                if wanted.generation:
                    lists = [drive.read_block(block) for block in BLOCKS]
                    found = newest(lists, wanted.array.set_uuid)
                    assert found is not None and found.generation == wanted.generation
            else:
                refuses = drive.bad_writes - (set() if wanted.generation else {*BLOCKS})
                assert refuses or not drive.present
                self.seen["lists refused"] += bool(refuses & {*BLOCKS})

    def _own(self, drive: DriveModel) -> Superblock | None:
        """The superblock of a drive that is a member of the array and can be read."""
        if not drive.present or drive.bad_reads or expected(drive.storage[BLOCK]) != Finding.VALID:
            return None
        one = Superblock.unpack(drive.storage[BLOCK], sectors=SECTORS)
        return one if one.set_uuid == of_span(self.array.set_uuid, self.array.span) else None

    def _check_page(self, wanted: "Wanted", page: bytes) -> None:
        if wanted.edit is Edit.ERASE:
            assert page == bytes(BLOCK_BYTES)
            return
        found = Superblock.unpack(page, sectors=SECTORS)
        if wanted.own:
            assert found == wanted.array.changed(wanted.own)
        else:
            assert replace(found, device_uuid=b"") == wanted.array.made(wanted.role)


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def knows_what_is_there(dut):
    """Superblocks are written while other drives come and are read, and while their own goes."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    show(dut, SIZES, bench.array)
    await start(dut)
    found = Counter(await bench.check())
    for _ in range(int(os.environ["ROUNDS"])):
        for _ in range(bench.random.randint(0, 2)):
            await bench.exchange(bench.random.randrange(SIZES.ports))
            await cycles_pass(dut.clk, bench.random.randrange(600))
        await bench.change()
        found.update(await bench.check())
    told = bench.told
    assert all(told[edit, True] for edit in Edit), told
    assert told[Edit.MAKE, False], told
    assert found[Finding.VALID] and found[Finding.NONE]
    seen = bench.seen
    assert seen["most"] == LINES, seen
    for what in ("in another order", "exchanged under way", "lists", "lists refused"):
        assert seen[what], f"never seen: {what}"
    assert seen["waits"] or SIZES.ports == LINES, "no edit has waited for a line"
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")


class WritesAtOnce(Superblocks):
    """A planted bug: an edit begins while a drive is being read."""

    @property
    def _rests(self):
        return Const(1)


class BelievesTheExchanged(Superblocks):
    """A planted bug: a drive that has been exchanged since its edit began is known."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        good = self._mover.moved.payload.status == DriveStatus.GOOD
        with m.If(good & ~self._tells):
            m.d.comb += self._survey.written.payload.known.eq(1)
        return m


class FollowsThePort(Superblocks):
    """A planted bug: an edit goes to whatever drive is at its port in the end."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self._mover.gone.eq(0)
        return m


class BelievesTheFailed(Superblocks):
    """A planted bug: a drive that refused its superblock is known to have it."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        line = self._mover.moved.payload.line[: len(self._line)]
        gone = (self._gone | self._goes).bit_select(line, 1)
        m.d.comb += self._survey.written.payload.known.eq(~gone)
        return m


class ErasesAll(Superblocks):
    """A planted bug: what becomes of a drive is what becomes of the one that was offered last."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        taken, erases = self.edit.valid & self.edit.ready, Signal()
        with m.If(taken):
            m.d.sync += erases.eq(self.edit.payload.superblock.edit == Edit.ERASE)
        m.d.comb += self._survey.written.payload.finding.eq(
            Mux(erases, Finding.NONE, Finding.VALID)
        )
        return m


class UsesTheLineTwice(Superblocks):
    """A planted bug: a superblock is made in the line of one that a drive has not read yet."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self._under_way.any()):
            m.d.comb += self._words.line.eq(self.first_line)
        return m


def run(component, name: str, *, rounds: int, lines: int = SIZES.superblock_lines) -> None:
    parameters = {"ROUNDS": str(rounds), "LINES": str(lines)}
    simulate(component, name=name, module=__name__, parameters=parameters)


def test_superblocks():
    run(SuperblocksRoom(config=SIZES), "superblocks", rounds=40)


@pytest.mark.slow
def test_superblocks_for_long():
    run(SuperblocksRoom(config=SIZES), "superblocks_long", rounds=400)


class FewLines(Config):
    """There are fewer lines than drives."""

    @property
    def superblock_lines(self) -> int:
        return 2


def test_superblocks_wait_for_a_line():
    few = FewLines(**asdict(SIZES))
    run(SuperblocksRoom(config=few), "superblocks_few_lines", rounds=40, lines=few.superblock_lines)


BUGS = (
    BelievesTheExchanged,
    BelievesTheFailed,
    ErasesAll,
    FollowsThePort,
    UsesTheLineTwice,
    WritesAtOnce,
)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_superblocks_planted_bugs_are_found(bug):
    room = SuperblocksRoom(config=SIZES, superblocks=bug)
    with pytest.raises(SimulationError, match="failed: knows_what_is_there"):
        run(room, f"superblocks_{bug.__name__}", rounds=400)
