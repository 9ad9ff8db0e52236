"""`hdl.metadata.stored_marks.StoredMarks`: rows that wait until the drives have their marks.

At any time the drives have the last page that was stored, or the one that is being stored, or parts
of both. Whichever it is, it marks every row that may be written.
"""

import random
from collections import Counter
from collections.abc import Iterator
from os import environ

import cocotb
import pytest
from amaranth.hdl import Const, Module
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    TableServer,
    cycles_pass,
    every_cycle,
    sample,
    start,
    unpack,
    wait_until,
)
from hdl.background.epochs import SETTLE_CYCLES
from hdl.config import Config
from hdl.flow.intention import marked_row
from hdl.flow.marks import marks_address
from hdl.metadata.stored_marks import StoredMarks

CONFIG = Config(
    ports=8, lines=256, commands=16, rows=32, arrays=4, volumes=8, transfer_blocks=8,
    intent_chunks=128, metadata=True, clock_hz=200, marks_kept_us=2_000_000,
)  # fmt: skip
WORDS = CONFIG.intent_chunks // 32
CYCLES = 20_000
SLEEP_CYCLES = 2 * CONFIG.clock_hz
HELD_CYCLES = 400
"""A row of a clean array has been told to wait by then: others are looked at before it, some 5
cycles each, and words of pages."""
LET_CYCLES = 1_200
"""Most cycles from a row that asks to its answer, beside pages that are held up: the rest of a page
of its array, then one with its mark, each some 5 cycles a word and what a page takes here, and
others' rows and pages by turns."""


class Bench:
    """Marks that come and go, rows that ask, and pages that are stored."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(environ["SEED"])
        arrays = range(CONFIG.arrays)
        self.planes = [0] * CONFIG.arrays
        self.turned = [-SETTLE_CYCLES] * CONFIG.arrays
        """When a flush of each array has begun or ended."""
        self.marks = [[set(), set()] for _ in arrays]
        """Of each array, the chunks that are marked in each plane."""
        self.free = list(range(CONFIG.rows))
        self.asked: dict[int, tuple[int, int, int]] = {}
        """Rows that wait: array, chunk, and since when."""
        self.written: dict[int, tuple[int, int]] = {}
        """Rows that may be written: array and chunk."""
        self.stored: list[set[int] | None] = [None] * CONFIG.arrays
        """Of each array, the page that was stored last."""
        self.coming: list[list[int] | None] = [None] * CONFIG.arrays
        """Of each array, the words of the page that is being stored, as far as they have come."""
        self.collecting: int | None = None
        self.whole = self.exempt = self.clean = self.was_clean = 0
        self.awaited: set[int] = set()
        """Arrays that are clean, of which a row has been told to wait."""
        self.held: set[int] = set()
        """Arrays whose drives hang."""
        self.wanted = [0] * CONFIG.arrays
        """Refreshes that no page has begun after."""
        self.cycle = 0
        self.longest = 0
        self.seen: Counter = Counter()
        TableServer(dut, "marks__read", self._marked)
        self.asks = StreamSource(dut, "marks__marked", layout=marked_row(CONFIG))
        self.lets = StreamSink(dut, "lets", callback=self._let)
        self.words = StreamSink(dut, "words", callback=self._take)
        self.ends = StreamSource(dut, "stored")
        dut.page__ready.value = 0
        for name in ("forget", "refresh", "marks__dropped"):
            getattr(dut, f"{name}__valid").value = 0
        dut.whole.value = dut.exempt.value = dut.now.value = dut.marks__planes.value = 0
        dut.clean.value = 0
        others = (
            dut.whole, dut.exempt, dut.clean, dut.page__ready, dut.refresh__valid,
            dut.forget__valid, dut.marks__dropped__valid,
        )  # fmt: skip
        self.watch = BusyWatch(
            dut,
            ["marks__marked", "stored"],
            ["lets", "words", "page"],
            others=lambda: tuple(sample(other) for other in others),
        )
        every_cycle(dut.clk, self._watch())

    def _marked(self, address: int) -> int:
        at = unpack(marks_address(CONFIG), address)
        chunks = self.marks[at.array][at.plane]
        return sum(1 << chunk % 32 for chunk in chunks if chunk // 32 == at.word)

    def chunks(self, array: int) -> set[int]:
        """All that is marked."""
        return self.marks[array][0] | self.marks[array][1]

    def _watch(self) -> Iterator[None]:
        """Takes pages while none is being collected, and looks whether all that may be written is
        marked."""
        dut = self.dut
        ready = 0
        while True:
            yield
            self.cycle += 1
            dut.now.value = self.cycle
            if ready and sample(dut.page__valid):
                self._begin(sample(dut.page__payload))
            if sample(dut.held__valid):
                waits = sample(dut.held__payload)
                clean = (self.clean | self.was_clean) >> waits & 1
                assert clean, f"a row of array {waits} waits, which is not clean"
                self.awaited.add(waits)
            self.was_clean = self.clean
            now_ready = int(self.collecting is None and self.random.random() < 0.3)
            if now_ready != ready:
                dut.page__ready.value = ready = now_ready
            for array, chunk in self.written.values():
                if self.exempt >> array & 1:
                    continue
                stored = self.stored[array]
                assert stored is not None, f"array {array} has no page yet"
                assert chunk in stored, f"{array}: chunk {chunk} is not stored"
                words = self.coming[array]
                if words is not None and self.collecting != array:
                    marked = words[chunk // 32] >> chunk % 32 & 1
                    assert marked, f"{array}: chunk {chunk} is being dropped"

    def _begin(self, array: int) -> None:
        assert self.coming[array] is None, f"two pages of array {array}"
        assert not self.exempt >> array & 1, f"array {array} needs none"
        self.coming[array], self.collecting = [], array
        self.wanted[array] = 0
        self.seen["pages"] += 1
        others = sum(words is not None for words in self.coming)
        self.seen["pages at once"] = max(self.seen["pages at once"], others)

    def _take(self, word: int) -> None:
        array = self.collecting
        assert array is not None, "a word of no page"
        words = self.coming[array]
        assert words is not None
        words.append(word)
        if len(words) == WORDS:
            self.collecting = None
            cocotb.start_soon(self._store(array))

    async def _store(self, array: int) -> None:
        await cycles_pass(self.dut.clk, self.random.randint(1, 60))
        while array in self.held:
            await cycles_pass(self.dut.clk, 10)
        words, self.coming[array] = self.coming[array] or [], None
        before = self.stored[array] or set()
        self.stored[array] = after = {
            chunk for chunk in range(CONFIG.intent_chunks) if words[chunk // 32] >> chunk % 32 & 1
        }
        self.seen["pages that drop"] += bool(before - after)
        self.ends.send(array)

    def ask(self, array: int) -> None:
        """A row asks, often of a chunk that others have written, or wait to write."""
        choose = self.random
        pool = sorted(self.chunks(array))
        if choose.random() < 0.3:
            pool = sorted(chunk for other, chunk, _ in self.asked.values() if other == array)
        near = pool and choose.random() < 0.6
        chunk = choose.choice(pool) if near else choose.randrange(CONFIG.intent_chunks)
        slot = self.free.pop(choose.randrange(len(self.free)))
        self.marks[array][self.planes[array]].add(chunk)
        self.asked[slot] = array, chunk, self.cycle
        self.asks.send(slot=slot, array=array, chunk=chunk)

    def _let(self, slot: int) -> None:
        array, chunk, since = self.asked.pop(slot)
        assert not self.clean >> array & 1, f"a row of array {array} is let go, which is clean"
        self.written[slot] = array, chunk
        self.seen["rows"] += 1
        if not self.held:
            self.longest = max(self.longest, self.cycle - since)
        self.seen["rows let at once"] += self.cycle - since < 20

    def end(self) -> None:
        """A row has been written. Its mark stays for now."""
        slot = self.random.choice(sorted(self.written))
        del self.written[slot]
        self.free.append(slot)

    def pulse(self, name: str, array: int) -> None:
        """A pulse in the next cycle."""
        getattr(self.dut, f"{name}__payload").value = array
        getattr(self.dut, f"{name}__valid").value = 1

    def drop(self, array: int) -> None:
        """Marks of rows that are not being written go, or move to the newer plane."""
        choose, needed = self.random, set()
        for other, chunk in (*self.written.values(), *((a, c) for a, c, _ in self.asked.values())):
            if other == array:
                needed.add(chunk)
        newer = self.planes[array]
        marks = self.marks[array]
        kept = {chunk for chunk in self.chunks(array) if chunk in needed or choose.random() < 0.3}
        marks[newer], marks[1 - newer] = kept, set()
        self.pulse("marks__dropped", array)

    def turn(self, array: int) -> None:
        """A flush begins: marks go to the other plane from now on, which is empty. Or it ends, and
        drops nothing."""
        newer, marks = self.planes[array], self.marks[array]
        if self.cycle - self.turned[array] < SETTLE_CYCLES:
            return
        self.turned[array] = self.cycle
        if marks[1 - newer]:
            marks[newer] |= marks[1 - newer]
            marks[1 - newer] = set()
            return
        self.planes[array] = 1 - newer
        self.dut.marks__planes.value = sum(bit << n for n, bit in enumerate(self.planes))
        self.seen["turns"] += 1

    def refresh(self, array: int) -> None:
        """Members have changed."""
        self.wanted[array] += 1
        self.pulse("refresh", array)

    def turn_clean(self, array: int) -> None:
        """The array is clean, if nobody writes it. Or it is not any more, once a row has been
        waiting for long enough."""
        waiting = [slot for slot, row in self.asked.items() if row[0] == array]
        if self.clean >> array & 1:
            if not waiting or self.cycle - self.asked[waiting[0]][2] < HELD_CYCLES:
                return
            assert array in self.awaited, f"nobody is told that a row of array {array} waits"
            self.awaited.discard(array)
            for slot in waiting:
                self.asked[slot] = array, self.asked[slot][1], self.cycle
            self.seen["rows held"] += len(waiting)
        elif waiting or any(row[0] == array for row in self.written.values()):
            return
        self.clean ^= 1 << array
        self.dut.clean.value = self.clean

    async def run(self, cycles: int) -> None:
        """Everything happens at random."""
        dut, choose = self.dut, self.random
        for _ in range(cycles):
            for name in ("refresh", "marks__dropped"):
                getattr(dut, f"{name}__valid").value = 0
            if self.free and choose.random() < 0.05:
                self.ask(choose.randrange(CONFIG.arrays))
            if self.written and choose.random() < 0.05:
                self.end()
            if choose.random() < 0.003:
                self.drop(choose.randrange(CONFIG.arrays))
            if choose.random() < 0.01:
                self.turn(choose.randrange(CONFIG.arrays))
            if self.collecting is not None and choose.random() < 0.2:
                self.turn(self.collecting)
            if choose.random() < 0.001:
                self.refresh(choose.randrange(CONFIG.arrays))
            if choose.random() < 0.02:
                self.turn_clean(choose.randrange(CONFIG.arrays))
            if choose.random() < 0.0005:
                self.whole ^= 1 << choose.randrange(CONFIG.arrays)
                dut.whole.value = self.whole
            await RisingEdge(dut.clk)
        for name in ("refresh", "marks__dropped"):
            getattr(dut, f"{name}__valid").value = 0

    async def settle(self) -> None:
        """Nobody waits any more."""
        for _ in range(4 * LET_CYCLES):
            for array in range(CONFIG.arrays):
                if self.clean >> array & 1:
                    self.turn_clean(array)
            if not self.asked and not any(self.coming) and not sample(self.dut.busy):
                break
            await RisingEdge(self.dut.clk)
        assert not self.asked, f"{self.asked} wait for ever"


async def begin(dut) -> Bench:
    """Every array has its first page."""
    bench = Bench(dut)
    await start(dut)
    for array in range(CONFIG.arrays):
        for name in ("forget", "refresh"):
            bench.pulse(name, array)
            await RisingEdge(dut.clk)
            getattr(dut, f"{name}__valid").value = 0
            await RisingEdge(dut.clk)
    await wait_until(
        dut, lambda: sample(dut.fresh) == (1 << CONFIG.arrays) - 1, cycles=2000, what="the pages"
    )
    await bench.settle()
    return bench


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def what_may_be_written_is_marked(dut):
    bench = await begin(dut)
    await bench.run(CYCLES)
    await bench.settle()
    bench.watch.check()
    dut._log.info("%s, longest %d", dict(bench.seen), bench.longest)
    assert bench.longest < LET_CYCLES
    seen = bench.seen
    assert seen["pages that drop"] and seen["pages at once"] > 1
    assert seen["rows let at once"] > seen["rows"] // 4 > 50
    assert seen["rows held"] > 20
    assert seen["pages"] < seen["rows"]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_drive_that_hangs_holds_up_its_array_only(dut):
    bench = await begin(dut)
    bench.held.add(2)
    for _ in range(8):
        bench.ask(2)
    await cycles_pass(dut.clk, 300)
    assert len(bench.asked) == 8 and not sample(dut.busy)
    since = bench.cycle
    told = []
    for _ in range(60):
        array = bench.random.choice((0, 1, 3))
        bench.ask(array)
        await cycles_pass(dut.clk, 200)
        told.append(len(bench.asked))
        while bench.written:
            bench.end()
    assert set(told) == {8}, told
    assert bench.cycle - since > 10_000
    bench.held.clear()
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_is_dropped_goes_from_the_drives(dut):
    """After a while, and with nobody asking for it. A new array's rows wait for its first page."""
    bench = await begin(dut)
    for _ in range(10):
        bench.ask(1)
    await bench.settle()
    while bench.written:
        bench.end()
    assert bench.stored[1]
    bench.marks[1] = [set(), set()]
    bench.pulse("marks__dropped", 1)
    await RisingEdge(dut.clk)
    dut.marks__dropped__valid.value = 0
    await cycles_pass(dut.clk, 4)
    due = sample(dut.deadline) - bench.cycle
    assert SLEEP_CYCLES - 10 < due <= SLEEP_CYCLES, due
    await cycles_pass(dut.clk, SLEEP_CYCLES // 2)
    assert bench.stored[1]
    await cycles_pass(dut.clk, SLEEP_CYCLES // 2 + 200)
    assert bench.stored[1] == set()
    assert sample(dut.deadline) == (1 << len(dut.deadline)) - 1
    # An array that takes the place of another one.
    bench.stored[1] = None
    bench.pulse("forget", 1)
    await RisingEdge(dut.clk)
    dut.forget__valid.value = 0
    bench.whole = 2
    dut.whole.value = bench.whole
    bench.ask(1)
    await cycles_pass(dut.clk, 300)
    assert not bench.written or bench.stored[1] is not None
    bench.refresh(1)
    await RisingEdge(dut.clk)
    dut.refresh__valid.value = 0
    await bench.settle()
    assert bench.stored[1] == set(range(CONFIG.intent_chunks))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def members_that_come_get_a_page(dut):
    """Fresh means a page that was begun after they have come."""
    bench = await begin(dut)
    for _ in range(40):
        array = bench.random.randrange(CONFIG.arrays)
        if bench.random.random() < 0.7:
            bench.ask(array)
        await cycles_pass(dut.clk, bench.random.randrange(60))
        bench.refresh(array)
        await RisingEdge(dut.clk)
        dut.refresh__valid.value = 0
        await RisingEdge(dut.clk)
        for _ in range(LET_CYCLES):
            await RisingEdge(dut.clk)
            if sample(dut.fresh) >> array & 1:
                break
        assert sample(dut.fresh) >> array & 1, "it is not told"
        assert not bench.wanted[array], "no page has begun since"
        while bench.written:
            bench.end()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def some_arrays_need_no_marks(dut):
    """Their rows never wait, and those that have do not any more."""
    bench = Bench(dut)
    await start(dut)
    bench.held.add(3)
    for _ in range(6):
        bench.ask(3)
    await cycles_pass(dut.clk, 200)
    assert len(bench.asked) == 6 and bench.seen["pages"] == 1
    bench.exempt = 8
    dut.exempt.value = bench.exempt
    await cycles_pass(dut.clk, 200)
    assert not bench.asked
    bench.held.clear()
    for _ in range(6):
        bench.ask(3)
        await cycles_pass(dut.clk, 30)
        assert not bench.asked
    assert bench.seen["pages"] == 1


TESTS = [
    "what_may_be_written_is_marked",
    "a_drive_that_hangs_holds_up_its_array_only",
    "what_is_dropped_goes_from_the_drives",
    "members_that_come_get_a_page",
    "some_arrays_need_no_marks",
]


def test_stored_marks():
    simulate(
        StoredMarks(config=CONFIG), name="stored_marks", module=__name__, testcase=TESTS
    )


class LetsAtOnce(StoredMarks):
    """Planted bug: a row is let go as its page has been collected, not as it has been stored."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        stored = self._halves.bit_select(self.stored.payload, 1)
        collected = self._halves.bit_select(self._array, 1)
        with m.If(self.stored.valid & self.stored.ready):
            m.d.sync += stored.eq(stored)
        with m.If(self.words.valid & self.words.ready & (self._word == self._last_word)):
            m.d.sync += collected.eq(~collected)
        return m


class LowestFirst(StoredMarks):
    """Planted bug: arrays do not take turns."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._turn.eq(0)
        return m


class ForgetsTheComing(StoredMarks):
    """Planted bug: what a page drops that is being stored counts as stored."""

    def _is_coming(self, array, word):
        return Const(0)


class OneArray(StoredMarks):
    """Planted bug: no page is begun while one is under way."""

    @property
    def _due(self):
        return super()._due & ~self.under_way.any().replicate(self._config.arrays)


class FreshTooSoon(StoredMarks):
    """Planted bug: the page under way counts for those that come."""

    def _is_fresh(self, array):
        return Const(1)


class LetsOld(StoredMarks):
    """Planted bug: rows of a clean array wait only for their marks."""

    def elaborate(self, platform) -> Module:
        self.clean = Const(0, self._config.arrays)
        return super().elaborate(platform)


class NeverWakes(StoredMarks):
    """Planted bug: rows are not looked at again as their array is not clean any more."""

    def _note(self, m: Module) -> None:
        super()._note(m)
        m.d.sync += self._was_clean.eq(0)


@pytest.mark.parametrize(
    ("broken", "testcase"),
    [
        pytest.param(LetsOld, TESTS[0], marks=pytest.mark.slow),
        pytest.param(NeverWakes, TESTS[0], marks=pytest.mark.slow),
        (LetsAtOnce, TESTS[0]),
        (LowestFirst, TESTS[0]),
        pytest.param(ForgetsTheComing, TESTS[0], marks=pytest.mark.slow),
        pytest.param(OneArray, TESTS[1], marks=pytest.mark.slow),
        pytest.param(FreshTooSoon, TESTS[3], marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_found(broken, testcase):
    with pytest.raises(SimulationError, match=f"failed: .*{testcase}"):
        simulate(
            broken(config=CONFIG),
            name=f"stored_marks_{broken.__name__}",
            module=__name__,
            testcase=TESTS,
        )
