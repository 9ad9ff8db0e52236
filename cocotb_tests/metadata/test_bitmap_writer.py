"""`hdl.metadata.bitmap_writer.BitmapWriter`: pages as md reads them, on every live member, and what
becomes of drives that do not store them."""

import random
from collections import Counter
from dataclasses import dataclass
from os import environ

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    TableServer,
    cycles_pass,
    pack,
    sample,
    start,
    unpack,
)
from hdl.config import BLOCK_BYTES, SECTORS_PER_BLOCK, Config
from hdl.flow.geometry import Level, geometry
from hdl.flow.line import write_beat
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.table_read import member_address
from hdl.metadata.bitmap_writer import BitmapWriter
from hdl.metadata.records import record
from sim.golden.intent_bitmap import HEAD_BYTES, IntentBitmap

CONFIG = Config(
    ports=16, lines=256, commands=16, rows=32, arrays=4, volumes=8, transfer_blocks=8,
    intent_chunks=256, metadata=True, data_width=128, drive_resets=0,
)  # fmt: skip
CHUNKS = CONFIG.intent_chunks
PAGES = 60
FIRST_LINE = 200
BITMAP_BLOCK, OWN_MAGIC, SHIFT_AT = 2, b"strm", 52
MOST_CHUNK_BYTES = 1 << 31
ROUNDS = CONFIG.ports * 2 + 1
"""Each drive is aborted, and given up at last (docs/guarantees.md)."""
IGNORED = (
    "recover.again", "recover.tried", "recover.copy", "recover.medium", "recover.ordered",
    "recover.era", "elsewhere", "dated", "restarts", "early.any", "early.seat", "more", "blocks",
)  # fmt: skip


@dataclass
class Shape:
    """An array."""

    level: Level
    ports: list[int]
    rows: int
    uuid: bytes

    @property
    def shift(self) -> int:
        """log2 of the rows of a chunk."""
        return max(0, (self.rows - 1).bit_length() - (CHUNKS - 1).bit_length())

    @property
    def is_md(self) -> bool:
        """md knows the level, and has chunks of that size."""
        small = BLOCK_BYTES << self.shift <= MOST_CHUNK_BYTES
        return small and self.level in (Level.RAID1, Level.RAID5, Level.RAID6)


class Bench:
    """Arrays, and drives that store their pages, or do not."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(environ["SEED"])
        self.arrays = [self._shape(array) for array in range(CONFIG.arrays)]
        self.lines: dict[int, int] = {}
        """Bytes of lines, by their addresses in beats."""
        self.pages: dict[int, bytes] = {}
        """By ports, what was written last."""
        self.fates: dict[int, DriveStatus] = {}
        self.held: set[int] = set()
        self.sent: Counter = Counter()
        self.out: set[int] = set()
        self.failed: set[int] = set()
        self.needed: set[int] = set()
        self.reported: set[int] = set()
        self.told: list[int] = []
        self.gone: set[int] = set()
        """Arrays that have been deleted."""
        TableServer(dut, "geometry_read", self._geometry)
        TableServer(dut, "member_read", self._member)
        TableServer(dut, "record_read", self._record)
        self.page = StreamSource(dut, "page")
        self.words = StreamSource(dut, "words")
        self.stored = StreamSink(dut, "stored", callback=self.told.append)
        self.ends = StreamSource(dut, "finished", layout=finished(CONFIG))
        StreamSink(dut, "fail", callback=self._fail)
        StreamSink(dut, "line_write", layout=write_beat(CONFIG), callback=self._write)
        StreamSink(
            dut, "operation", layout=operation(CONFIG), callback=self._take,
            ignores=dict.fromkeys(IGNORED, "of no write of a page"),
        )  # fmt: skip
        dut.first_line.value = FIRST_LINE
        dut.settled.value = 1
        dut.essential.value = dut.drives__failed.value = 0
        dut.drives__used.value = (1 << CONFIG.ports) - 1

    def _shape(self, array: int) -> Shape:
        """A random array on ports of its own."""
        choose = self.random
        level = choose.choice((Level.RAID1, Level.RAID5, Level.RAID6, Level.RAID10, Level.RAIDTP))
        ports = choose.sample(range(4 * array, 4 * array + 4), 4 if level != Level.RAID1 else 3)
        return Shape(level, ports, choose.randrange(1, 1 << choose.choice((7, 12, 27, 32))),
                     choose.randbytes(16))  # fmt: skip

    def _geometry(self, array: int) -> int:
        one = self.arrays[array]
        if array in self.gone:
            return 0
        width = len(one.ports)
        copies = {Level.RAID1: width, Level.RAID10: 2}.get(one.level, 1)
        fields = {"level": one.level, "width": width, "copies": copies, "spans": 1}
        return pack(geometry(CONFIG), valid=1, rows=one.rows, **fields)

    def _member(self, address: int) -> int:
        at = unpack(member_address(CONFIG), address)
        ports = self.arrays[at.array].ports
        return ports[at.position] if at.position < len(ports) else 0

    def _record(self, array: int) -> int:
        uuid = int.from_bytes(self.arrays[array].uuid, "little")
        return pack(record(), set_uuid=uuid, events=self.random.getrandbits(60))

    def _write(self, beat) -> None:
        width = CONFIG.data_width
        mask = sum(0xFFFF_FFFF << 32 * n for n in range(width // 32) if beat.mask >> n & 1)
        before = self.lines.get(beat.address, self.random.getrandbits(width))
        self.lines[beat.address] = before & ~mask | beat.data & mask

    def line(self, number: int) -> bytes:
        """What a line holds."""
        beats = BLOCK_BYTES * 8 // CONFIG.data_width
        size = CONFIG.data_width // 8
        held = (self.lines.get(number * beats + beat, 0) for beat in range(beats))
        return b"".join(beat.to_bytes(size, "little") for beat in held)

    def _take(self, one) -> None:
        array = one.index
        assert one.opcode == Opcode.WRITE and one.owner == Owner.METADATA and one.place == 1
        assert one.fua and one.alone and one.block == BITMAP_BLOCK, one
        assert one.port in self.arrays[array].ports and one.line == FIRST_LINE + array, one
        assert one.port not in self.failed, f"port {one.port} has failed"
        assert one.port not in self.out, f"port {one.port} is written twice at once"
        self.out.add(one.port)
        self.sent[one.port] += 1
        cocotb.start_soon(self._end(one, self.line(one.line)))

    async def _end(self, one, page: bytes) -> None:
        await cycles_pass(self.dut.clk, self.random.randrange(1, 80))
        while one.port in self.held:
            await cycles_pass(self.dut.clk, 5)
        assert self.line(one.line) == page, "the line changes while it is written"
        status = self.fates.get(one.port, DriveStatus.GOOD)
        if status == DriveStatus.ABORTED and self.random.random() < 0.3:
            status = self.fates[one.port] = DriveStatus.GOOD
        if status == DriveStatus.GOOD:
            self.pages[one.port] = page
        self.out.remove(one.port)
        self.ends.send(
            port=one.port, opcode=one.opcode, owner=one.owner, index=one.index, place=1,
            status=status,
        )  # fmt: skip

    def _fail(self, port: int) -> None:
        assert self.fates[port] in (DriveStatus.MEDIUM_ERROR, DriveStatus.ABORTED), port
        assert port not in self.needed, f"port {port} is needed"
        self.reported.add(port)

    def begin(self, array: int) -> set[int]:
        """The page of an array. Returns what it marks."""
        words = [
            self.random.getrandbits(32) & self.random.getrandbits(32) for _ in range(CHUNKS // 32)
        ]
        self.page.send(array)
        for word in words:
            self.words.send(word)
        return {chunk for chunk in range(CHUNKS) if words[chunk // 32] >> chunk % 32 & 1}

    async def wait(self, array: int) -> None:
        """Until it has been stored."""
        for _ in range(60_000):
            if array in self.told:
                break
            await RisingEdge(self.dut.clk)
        assert self.told.count(array) == 1, f"{self.told}: array {array} is not stored"
        self.told.remove(array)

    def check(self, array: int, marked: set[int]) -> None:
        """Every member that has stored its page says the same, as md reads it."""
        one = self.arrays[array]
        good = [
            port
            for port in one.ports
            if self.fates.get(port, DriveStatus.GOOD) == DriveStatus.GOOD
            and port not in self.failed
        ]
        assert good
        (page,) = {self.pages[port] for port in good}
        chunks = -(-one.rows >> one.shift)
        if one.is_md:
            bitmap = IntentBitmap.unpack(page, set_uuid=one.uuid)
            assert bitmap.chunk_bytes == BLOCK_BYTES << one.shift
            assert bitmap.sync_size == one.rows * SECTORS_PER_BLOCK
            assert (bitmap.state, bitmap.sleep_s) == (0, 5)
            assert bitmap.events == bitmap.events_cleared == (1 << 63) - 1
            assert bitmap.marked == {chunk for chunk in marked if chunk < bitmap.chunks}
            assert bitmap.chunks == -(-one.rows // (1 << one.shift))
        else:
            assert page[:4] == OWN_MAGIC and page[8:24] == one.uuid
            assert int.from_bytes(page[SHIFT_AT : SHIFT_AT + 4], "little") == one.shift
        assert chunks <= CHUNKS
        bits = int.from_bytes(page[HEAD_BYTES : HEAD_BYTES + CHUNKS // 8], "little")
        assert bits == sum(1 << chunk for chunk in marked)
        assert not any(page[HEAD_BYTES + CHUNKS // 8 :]), "there is something behind the bits"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def pages_are_stored(dut):
    bench = Bench(dut)
    levels = [dut.drives__failed, dut.essential, dut.settled]
    watch = BusyWatch(
        dut, ["page", "words", "finished"], ["stored", "fail", "line_write", "operation"],
        others=lambda: tuple(map(sample, levels)),
    )  # fmt: skip
    await start(dut)
    choose, seen = bench.random, Counter()
    for _ in range(PAGES):
        array = choose.randrange(CONFIG.arrays)
        if choose.random() < 0.3:
            bench.arrays[array] = bench._shape(array)
        ports = bench.arrays[array].ports
        bench.fates.clear()
        bench.reported.clear()
        bench.sent.clear()
        bench.failed = set(choose.sample(ports, choose.choice((0, 0, 1))))
        left = [port for port in ports if port not in bench.failed]
        for port in choose.sample(left, choose.choice((0, 0, 1, 1, 2))):
            bench.fates[port] = choose.choice(
                (DriveStatus.GONE, DriveStatus.MEDIUM_ERROR, *[DriveStatus.ABORTED] * 2)
            )
        bench.needed = set(choose.sample(left, 1))
        dut.drives__failed.value = sum(1 << port for port in bench.failed)
        dut.essential.value = sum(1 << port for port in bench.needed)
        aborts = [p for p, fate in bench.fates.items() if fate == DriveStatus.ABORTED]
        marked = bench.begin(array)
        await bench.wait(array)
        assert not bench.out and not sample(dut.writing)
        if any(fate == DriveStatus.GOOD for fate in (bench.fates.get(p, 0) for p in left)):
            bench.check(array, marked)
        refused = {
            port for port, fate in bench.fates.items()
            if fate in (DriveStatus.MEDIUM_ERROR, DriveStatus.ABORTED)
        }  # fmt: skip
        assert bench.reported == refused - bench.needed
        seen["refused"] += bool(bench.reported)
        seen["needed"] += bool(refused & bench.needed)
        for port in left:
            assert 1 <= bench.sent[port] <= ROUNDS, bench.sent
        seen["sent again"] += bool(aborts) and max(bench.sent.values()) > 1
        seen["md"] += bench.arrays[array].is_md
    await cycles_pass(dut.clk, 8)
    assert not sample(dut.busy)
    watch.check()
    dut._log.info("%s", dict(seen))
    assert min(seen["refused"], seen["needed"], seen["sent again"]) > 2
    assert PAGES > seen["md"] > 5


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def a_drive_that_hangs_holds_up_its_array_only(dut):
    bench = Bench(dut)
    await start(dut)
    bench.held = {bench.arrays[0].ports[1]}
    first = bench.begin(0)
    await cycles_pass(dut.clk, 3_000)
    assert not sample(dut.busy)
    for _ in range(6):
        array = bench.random.choice((1, 2, 3))
        marked = bench.begin(array)
        await bench.wait(array)
        bench.check(array, marked)
    assert not bench.told and sample(dut.writing)
    bench.held.clear()
    await bench.wait(0)
    bench.check(0, first)


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def nothing_goes_to_who_has_left(dut):
    """An array is deleted as its page is made, or a member leaves."""
    bench = Bench(dut)
    await start(dut)
    bench.begin(0)
    await cycles_pass(dut.clk, 100)
    left = bench.arrays[0].ports[0]
    dut.drives__used.value = ((1 << CONFIG.ports) - 1) & ~(1 << left)
    await bench.wait(0)
    assert set(bench.sent) == {*bench.arrays[0].ports[1:]}
    bench.begin(1)
    await cycles_pass(dut.clk, 100)
    bench.gone.add(1)
    await bench.wait(1)
    assert not {*bench.arrays[1].ports} & {*bench.sent}


TESTS = [
    "pages_are_stored",
    "a_drive_that_hangs_holds_up_its_array_only",
    "nothing_goes_to_who_has_left",
]


def test_bitmap_writer():
    simulate(
        BitmapWriter(config=CONFIG), name="bitmap_writer", module=__name__, testcase=TESTS
    )


class SendsOnce(BitmapWriter):
    """Planted bug: a page that was aborted is not sent again."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.finished.valid):
            m.d.sync += self._again.bit_select(self.finished.payload.index, 1).eq(0)
        return m


class WritesOver(BitmapWriter):
    """Planted bug: the array is done once its page has been sent to all."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self._sent.any()):
            for out in self._out:
                m.d.sync += out.eq(0)
        return m


@pytest.mark.parametrize("broken", [SendsOnce, pytest.param(WritesOver, marks=pytest.mark.slow)])
def test_planted_bugs_are_found(broken):
    with pytest.raises(SimulationError, match="failed: pages_are_stored"):
        simulate(
            broken(config=CONFIG),
            name=f"bitmap_writer_{broken.__name__}",
            module=__name__,
            testcase=TESTS,
        )
