"""`hdl.metadata.bitmap_reader.BitmapReader`: which bitmaps count, and what is marked by them."""

import random
from collections import Counter
from dataclasses import replace
from os import environ

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
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
from hdl.config import BLOCK_BYTES, SECTORS_PER_BLOCK, Config
from hdl.flow.geometry import Level
from hdl.flow.marks import marks_word
from hdl.flow.operation import DriveStatus
from hdl.metadata import bitmap_reader
from hdl.metadata.bitmap import BitmapWord
from hdl.metadata.bitmap_reader import BitmapReader, marked_shape
from hdl.metadata.page_mover import page_move
from sim.golden.intent_bitmap import HEAD_BYTES, IntentBitmap

CONFIG = Config(
    ports=8, lines=64, commands=16, rows=32, arrays=4, volumes=8, transfer_blocks=8,
    intent_chunks=128, metadata=True, data_width=256,
)  # fmt: skip
CHUNKS = CONFIG.intent_chunks
BEATS = BLOCK_BYTES * 8 // CONFIG.data_width
ARRAYS = 150
LINE, BITMAP_BLOCK = 60, 2
OWN_MAGIC, SHIFT_AT = b"strm", 52


class Bench:
    """Members with bitmaps of all kinds."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(environ["SEED"])
        self.pages: dict[int, bytes] = {}
        self.unreadable: set[int] = set()
        self.line = bytes(BLOCK_BYTES)
        self.loaded: dict[tuple[int, int], int] = {}
        self.followed: list[int] = []
        self.look = StreamSource(dut, "asked__look")
        self.give = StreamSource(dut, "asked__give")
        self.moves = StreamSink(dut, "move", layout=page_move(CONFIG), callback=self._move)
        self.moved = StreamSource(dut, "moved")
        self.load = StreamSink(dut, "load", layout=marks_word(CONFIG), callback=self._load)
        StreamSink(dut, "line_read__request", callback=self._read)
        dut.line_read__response_valid.value = 0
        dut.asked__begin.value = 0
        dut.page_line.value = LINE
        dut.known.value = (1 << CONFIG.ports) - 1
        dut.may.value = 1

    def _move(self, move) -> None:
        assert (move.writes, move.block) == (0, BITMAP_BLOCK), move
        assert sample(self.dut.reads), "it moves pages though others may"
        if move.port in self.unreadable:
            self.moved.send(DriveStatus.MEDIUM_ERROR.value)
            return
        self.line = self.pages[move.port]
        self.moved.send(DriveStatus.GOOD.value)

    def _read(self, address: int) -> None:
        cocotb.start_soon(self._respond(address))

    async def _respond(self, address: int) -> None:
        line, beat = divmod(address, BEATS)
        assert line == LINE
        size = CONFIG.data_width // 8
        await cycles_pass(self.dut.clk, 2)
        data = self.line[beat * size : (beat + 1) * size]
        self.dut.line_read__response.value = int.from_bytes(data, "little")
        self.dut.line_read__response_valid.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.line_read__response_valid.value = 0

    def _load(self, word) -> None:
        assert (word.array, word.word) not in self.loaded, "a word comes twice"
        self.loaded[word.array, word.word] = word.marks

    async def judge(self, shape: dict, uuid: bytes, events: int, ports: list[int]) -> bool:
        """Whether the bitmaps of the members at these ports count."""
        dut = self.dut
        dut.asked__set_uuid.value = int.from_bytes(uuid, "little")
        dut.asked__events.value = events
        dut.asked__shape.value = pack(marked_shape(), spans=1, **shape)
        dut.asked__begin.value = 1
        await RisingEdge(dut.clk)
        dut.asked__begin.value = 0
        for port in ports:
            dut.may.value = self.random.randrange(2)
            self.look.send(port)
            await cycles_pass(dut.clk, 30)
            dut.may.value = 1
            await RisingEdge(dut.clk)
            await RisingEdge(dut.clk)
            ready = dut.asked__look__ready
            await wait_until(dut, lambda r=ready: bool(sample(r)), cycles=4_000, what="a look")
        return bool(sample(dut.asked__fits))

    async def marks(self, array: int) -> set[int]:
        """What is marked as this array gets the marks."""
        dut = self.dut
        self.loaded.clear()
        self.give.send(array)
        await wait_until(dut, lambda: bool(sample(dut.follow__valid)), cycles=4_000, what="marks")
        assert sample(dut.follow__payload) == array
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        assert {number for number, _ in self.loaded} == {array}
        assert len(self.loaded) == CHUNKS // 32
        return {
            32 * word + bit
            for (_, word), marks in self.loaded.items()
            for bit in range(32)
            if marks >> bit & 1
        }


def own_page(uuid: bytes, shift: int, events: int, rows: int, marked: set[int]) -> bytes:
    """A bitmap that md is not told of. Beside magic and chunk it is as md's."""
    one = IntentBitmap(
        set_uuid=uuid, events=events, events_cleared=0, sync_size=rows * SECTORS_PER_BLOCK,
        chunk_bytes=BLOCK_BYTES,
    )  # fmt: skip
    head = bytearray(replace(one, sync_size=0).pack()[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0"))
    head[:4] = OWN_MAGIC
    head[40:48] = (rows * SECTORS_PER_BLOCK).to_bytes(8, "little")
    head[SHIFT_AT : SHIFT_AT + 4] = shift.to_bytes(4, "little")
    return bytes(head) + sum(1 << chunk for chunk in marked).to_bytes(CHUNKS // 8, "little")


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def what_counts_is_marked(dut):
    bench = Bench(dut)
    levels = [dut.may, dut.known, dut.asked__begin]
    watch = BusyWatch(
        dut, ["asked__look", "asked__give", "moved"], ["move", "load", "line_read__request"],
        others=lambda: tuple(map(sample, levels)),
    )  # fmt: skip
    await start(dut)
    choose, seen = bench.random, Counter()
    for _ in range(ARRAYS):
        bench.unreadable.clear()
        is_md = choose.random() < 0.5
        width = choose.randrange(3, 6)
        level = choose.choice((Level.RAID1, Level.RAID5)) if is_md else Level.RAID10
        rows = choose.randrange(1, 1 << choose.choice((7, 9, 20)))
        shift = max(0, (rows - 1).bit_length() - (CHUNKS - 1).bit_length())
        copies = {Level.RAID1: width, Level.RAID10: 2}.get(level, 1)
        shape = {"level": level, "width": width, "copies": copies, "rows": rows}
        uuid, events = choose.randbytes(16), choose.randrange(1, 1 << 60)
        ports = choose.sample(range(CONFIG.ports), width)
        chunks = -(-rows >> shift)
        kinds = ("good", "good", "good", "uuid", "events", "state", "chunk", "size", "magic", "bad")
        wrong = choose.choice(kinds)
        victim = choose.choice(ports)
        wanted: set[int] = set()
        for port in ports:
            marked = {chunk for chunk in range(chunks) if choose.random() < 0.1}
            wanted |= marked
            kind = wrong if port == victim else "good"
            of = choose.randbytes(16) if kind == "uuid" else uuid
            at = events - 1 if kind == "events" else events + choose.choice((0, 0, 1, 1 << 61))
            size = rows + (kind == "size")
            if is_md:
                one = IntentBitmap(
                    set_uuid=of, events=at, events_cleared=3, marked=frozenset(marked),
                    sync_size=size * SECTORS_PER_BLOCK, sleep_s=choose.choice((5, 60)),
                    chunk_bytes=BLOCK_BYTES << shift + (kind == "chunk"),
                    state=2 * (kind == "state"),
                )  # fmt: skip
                page = one.pack()[: HEAD_BYTES + CHUNKS // 8]
            else:
                page = own_page(of, shift + (kind == "chunk"), at, size, marked)
                if kind == "state":
                    page = page[:48] + b"\2" + page[49:]
            if kind == "magic":
                page = b"bitn" + page[4:]
            if kind == "bad":
                bench.unreadable.add(port)
            page = page.ljust(HEAD_BYTES + CHUNKS // 8, b"\0")
            bench.pages[port] = page + choose.randbytes(BLOCK_BYTES - len(page))
        fits = await bench.judge(shape, uuid, events, ports)
        assert fits == (wrong == "good"), f"{wrong}: {fits}"
        assert sample(dut.asked__is_md) == is_md
        seen[wrong] += 1
        if fits:
            array = choose.randrange(CONFIG.arrays)
            # mdadm sets what lies behind the last chunk.
            found = {chunk for chunk in await bench.marks(array) if chunk < chunks}
            assert found == wanted, (sorted(found), sorted(wanted))
    await cycles_pass(dut.clk, 8)
    assert not sample(dut.busy)
    watch.check()
    dut._log.info("%s", dict(seen))
    assert set(seen) == set(kinds)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def nothing_is_nothing(dut):
    """No member has been seen: nothing is known. Nor of one that has gone meanwhile."""
    bench = Bench(dut)
    await start(dut)
    shape = {"level": Level.RAID5, "width": 3, "copies": 1, "rows": 100}
    assert not await bench.judge(shape, bytes(16), 1, [])
    one = IntentBitmap(
        set_uuid=bytes(16), events=9, events_cleared=0, sync_size=800, chunk_bytes=BLOCK_BYTES
    )
    bench.pages[2] = one.pack().ljust(BLOCK_BYTES, b"\0")
    assert await bench.judge(shape, bytes(16), 9, [2])

    async def leave() -> None:
        await cycles_pass(dut.clk, 40)
        dut.known.value = 0
        await RisingEdge(dut.clk)
        dut.known.value = 0xFF

    cocotb.start_soon(leave())
    assert not await bench.judge(shape, bytes(16), 9, [2])


TESTS = ["what_counts_is_marked", "nothing_is_nothing"]


def run(component, name: str) -> None:
    simulate(component, name=name, module=__name__, testcase=TESTS)


def test_bitmap_reader():
    run(BitmapReader(config=CONFIG), "bitmap_reader")


@pytest.mark.slow
def test_a_bitmap_of_another_size_is_found(monkeypatch):
    """Planted bug: chunks may have any size."""
    fewer = tuple(word for word in bitmap_reader.COMPARED if word != BitmapWord.CHUNK_BYTES)
    monkeypatch.setattr("hdl.metadata.bitmap_reader.COMPARED", fewer)
    with pytest.raises(SimulationError, match="failed: what_counts_is_marked"):
        run(BitmapReader(config=CONFIG), "bitmap_reader_any_size")


class TakesTheLast(BitmapReader):
    """Planted bug: what the last member marks counts alone."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.asked.look.valid & self.asked.look.ready):
            m.d.sync += self._first.eq(1)
        return m


@pytest.mark.slow
def test_marks_of_the_last_member_alone_are_found():
    with pytest.raises(SimulationError, match="failed: what_counts_is_marked"):
        run(TakesTheLast(config=CONFIG), "bitmap_reader_TakesTheLast")
