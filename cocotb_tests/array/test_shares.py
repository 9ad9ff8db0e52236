"""Who may have how much (`hdl.array.shares.shares`), and who waits for it: commands, and rows."""

import os
import random
from collections import deque
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from campaign.sizes import SIZES
from cocotb_tests.array.array_models import random_recovery
from cocotb_tests.busy import BusyWatch
from cocotb_tests.fields import check_fields
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    pack,
    sample,
    start,
    wait_until,
)
from hdl.array.shares.command_shares import CommandShares
from hdl.array.shares.shares import Shares
from hdl.array.shares.turnstile import Turnstile
from hdl.config import BLOCK_NUMBER_BITS, Config, board
from hdl.flow.host_command import HostOpcode, command
from hdl.flow.table_read import volume
from hdl.stripe.mends import Mending

CONFIG = Config(
    ports=4, lines=256, commands=64, queue_pairs=2, queue_depth=32, rows=64, operations=512,
    arrays=4, volumes=4, walk_window=2, transfer_blocks=8, sector_emulation=False, early_rows=0,
    array_shares=True,
)  # fmt: skip
WIDE = replace(CONFIG, ports=32, lines=512, operations=1024)
CONFIGS = {"narrow": CONFIG, "wide": WIDE}
TOTAL = 46
"""Of 64 row slots 2 are for walks, 8 for rows to be mended, and 8 for those that are leaving."""
LEAST = 8
COMMANDS = 400


def check_shares(has: dict[int, int], array: int, total: int, least: int, arrays: int) -> None:
    """Of what is not kept no array has more than half, and all together no more than there is, but
    for what one had when it was alone."""
    rest = total - least * arrays
    beyond = [max(0, count - least) for count in has.values()]
    assert not beyond[array] or beyond[array] <= rest // 2, f"array {array} has {has[array]}"
    assert sum(beyond) <= rest or max(beyond) > rest // 2, f"too much: {has}"


class Bench:
    """Tables with a volume an array, a mapper that takes commands, and who has how many blocks."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        config = CONFIGS[os.environ["CONFIG"]]
        self.flush_cost = config.ports // 4  # a block stands for four drive operations
        self.exists = {0, 1, 2}
        self.source = StreamSource(dut, "command", layout=command(config), active=0.8)
        self.sink = StreamSink(
            dut, "passed", layout=command(config), active=0.6, callback=self._passed
        )
        self.sent: dict[int, deque] = {array: deque() for array in range(3)}
        self.has: dict[int, int] = dict.fromkeys(range(3), 0)
        self.given: dict[int, dict] = {}
        """The last command that was sent in each slot."""
        self.inside: dict[int, tuple[int, int]] = {}
        self.slots = deque(range(CONFIG.commands))
        self.retries = 0
        self.retried = 0.3
        """Share of commands of which a block is read once more."""
        self.gone: set[int] = set()
        """Arrays whose volumes have been deleted."""
        self.hung: set[int] = set()
        self.due: deque[int] = deque()
        self.paused = False
        """The test itself ends commands."""
        dut.exists.value = sum(1 << array for array in self.exists)
        dut.ended__valid.value = 0
        dut.volume_read__data.value = 0
        cocotb.start_soon(self._tables())
        cocotb.start_soon(self._end())

    async def _tables(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            array = sample(dut.volume_read__address) % 4
            dut.volume_read__data.value = pack(
                volume(CONFIG),
                valid=int(array in self.exists - self.gone),
                array=array,
                start=0,
                blocks=99,
            )

    def send(self, array: int) -> None:
        """A command for an array."""
        opcode = self.random.choice((HostOpcode.READ, HostOpcode.WRITE, HostOpcode.FLUSH))
        blocks = 1 if opcode is HostOpcode.FLUSH else self.random.randint(1, 8)
        slot = self.slots.popleft()
        counts = self.flush_cost if opcode is HostOpcode.FLUSH else blocks
        self.sent[array].append((slot, counts))
        self._give(slot, array, opcode, blocks)

    def _give(self, slot: int, array: int, opcode: HostOpcode, blocks: int) -> None:
        fields = {
            "slot": slot,
            "opcode": opcode,
            "fua": self.random.getrandbits(1),
            "recover": random_recovery(self.random, CONFIG, copies=2),
            "volume": array,
            "block": self.random.getrandbits(BLOCK_NUMBER_BITS),
            "blocks": blocks - 1,
            "offset": self.random.randrange(8),
        }
        self.source.send(**fields)
        self.given[slot] = fields

    def _passed(self, payload) -> None:
        slot, array = payload.slot, payload.volume
        check_fields(payload, self.given[slot], "passed")
        if slot in self.inside:
            self.retries += 1
            return
        expected, counts = self.sent[array].popleft()
        assert slot == expected, "commands of an array out of order"
        self.inside[slot] = array, counts
        self.has[array] += counts
        if len(self.exists) > 1:
            check_shares(self.has, array, TOTAL, LEAST, len(self.exists))
        if array not in self.hung:
            self.due.append(slot)

    async def _end(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            if self.paused:
                continue
            dut.ended__valid.value = 0
            if self.due and self.random.random() < 0.1:
                slot = self.due.popleft()
                array, counts = self.inside[slot]
                if self.random.random() < self.retried:
                    # First a block of it is read once more; that never waits.
                    before = self.retries
                    self._give(slot, array, HostOpcode.READ, 1)
                    await wait_until(
                        dut, lambda n=before: self.retries > n, cycles=2000, what="retry"
                    )
                del self.inside[slot]
                self.has[array] -= counts
                dut.ended__valid.value = 1
                dut.ended__payload.value = slot
                await RisingEdge(dut.clk)
                dut.ended__valid.value = 0
                await cycles_pass(dut.clk, 4)
                self.slots.append(slot)

    def rests(self) -> bool:
        return not self.inside and not any(self.sent.values())


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def shares_out(dut):
    """Nobody has more than its share, nothing is lost or overtakes, and nobody starves."""
    bench = Bench(dut)
    others = (dut.ended__valid, dut.exists, dut.volume_read__data)
    watch = BusyWatch(
        dut, ["command"], ["passed"], others=lambda: tuple(sample(one) for one in others)
    )
    await start(dut)
    busy = 0
    for _ in range(COMMANDS):
        if bench.slots:
            bench.send(bench.random.choice((0, 0, 1, 2)))
        for _ in range(bench.random.randrange(20)):
            await RisingEdge(dut.clk)
            busy += sample(dut.busy)
    assert busy > COMMANDS, "busy while commands pass"
    await wait_until(dut, bench.rests, cycles=100_000, what="the end")
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")
    assert not sample(dut.waiting)
    watch.check()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def hangs(dut):
    """While an array gives nothing back the others go on, with what they had before."""
    bench = Bench(dut)
    await start(dut)
    bench.hung.add(0)
    while bench.has[0] < LEAST + (TOTAL - 3 * LEAST) // 2 - 8 or len(bench.sent[0]) < 8:
        bench.send(0)
        await RisingEdge(dut.clk)
        await cycles_pass(dut.clk, 20)
    assert sample(dut.waiting) == 1
    most = 0
    for _ in range(200):
        while len(bench.slots) < 4:
            await RisingEdge(dut.clk)
        bench.send(1)
        most = max(most, bench.has[1])
    assert most >= LEAST + (TOTAL - 3 * LEAST) // 2 - 8, most
    await wait_until(dut, lambda: not bench.sent[1], cycles=20_000, what="the other array")
    assert bench.sent[0], "nothing waited"
    bench.hung.clear()
    bench.due.extend(slot for slot, (array, _) in bench.inside.items() if array == 0)
    await wait_until(dut, bench.rests, cycles=100_000, what="the end")


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def volume_goes(dut):
    """Commands that wait while their volume is deleted pass once, and are counted as others."""
    bench = Bench(dut)
    bench.retried = 0
    await start(dut)
    bench.hung.add(0)
    while len(bench.sent[0]) < 8:
        bench.send(0)
        await cycles_pass(dut.clk, 20)
    bench.gone.add(0)
    bench.hung.clear()
    bench.due.extend(slot for slot, (array, _) in bench.inside.items() if array == 0)
    for _ in range(20):
        bench.send(1)
    await wait_until(dut, bench.rests, cycles=100_000, what="the end")
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")
    assert not bench.retries, "a command passes twice"
    assert not sample(dut.waiting)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def alone(dut):
    """A single array has what it likes, at no latency; then another one comes."""
    bench = Bench(dut)
    bench.exists = {0}
    bench.hung.add(0)
    dut.exists.value = 1
    await start(dut)
    for _ in range(40):
        bench.send(0)
    await wait_until(dut, lambda: not bench.sent[0], cycles=4000, what="commands of one array")
    assert bench.has[0] > TOTAL
    bench.exists = {0, 1}
    dut.exists.value = 3
    await cycles_pass(dut.clk, 10)
    bench.send(0)
    bench.send(1)
    await wait_until(dut, lambda: not bench.sent[1], cycles=200, what="the new array")
    await cycles_pass(dut.clk, 200)
    assert bench.sent[0], "the old one has more than its share already"
    bench.hung.clear()
    bench.due.extend(slot for slot, (array, _) in bench.inside.items() if array == 0)
    await wait_until(dut, bench.rests, cycles=20_000, what="the end")


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def slots_are_used_again_at_once(dut):
    """Many commands of a single array end one after the other, and their slots are other commands'
    at once. These count as well when another array comes."""
    bench = Bench(dut)
    bench.exists = {0}
    bench.hung.add(0)
    dut.exists.value = 1
    await start(dut)
    count = 16
    for _ in range(count):
        bench.send(0)
    await wait_until(dut, lambda: not bench.sent[0], cycles=4000, what="commands of one array")
    await cycles_pass(dut.clk, 100)
    assert not sample(dut.busy)
    bench.paused = True
    slots = list(bench.inside)
    for slot in slots:
        array, counts = bench.inside.pop(slot)
        bench.has[array] -= counts
        dut.ended__valid.value, dut.ended__payload.value = 1, slot
        await RisingEdge(dut.clk)
    dut.ended__valid.value = 0
    bench.paused = False
    for slot in reversed(slots):
        bench.sent[0].append((slot, 8))
        bench._give(slot, 0, HostOpcode.WRITE, 8)
    await wait_until(dut, lambda: not bench.sent[0], cycles=4000, what="the slots' next commands")
    assert bench.has[0] == 8 * count > TOTAL
    await cycles_pass(dut.clk, 100)
    bench.exists = {0, 1}
    dut.exists.value = 3
    await cycles_pass(dut.clk, 4)
    bench.send(0)
    await cycles_pass(dut.clk, 200)
    assert bench.sent[0], "what a slot's next command has is not counted"
    bench.hung.clear()
    # Those that came last end first.
    bench.due.extend(reversed(bench.inside))
    await wait_until(dut, bench.rests, cycles=20_000, what="the end")
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")


LINES = 116
"""Of 256 lines half are for data, and 12 are never shared."""


class Rows:
    """An admission that asks for rows of three arrays, one at a time; array 0 may be hung."""

    def __init__(self, dut, *, admits: bool = True):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        self.launched: deque[int] = deque()
        self.waiting: dict[int, deque] = {array: deque() for array in range(3)}
        self.granted: dict[int, tuple[int, int]] = {}
        self.has: dict[int, int] = dict.fromkeys(range(3), 0)
        self.rows: dict[int, tuple[int, int]] = {}
        self.free = deque(range(CONFIG.rows))
        self.hung: set[int] = set()
        self.done = dict.fromkeys(range(3), 0)
        dut.exists.value = 7
        dut.ask.value = dut.ended.value = dut.woken__ready.value = dut.forced.value = 0
        if admits:
            cocotb.start_soon(self._admit())
            cocotb.start_soon(self._end())

    def launch(self, array: int) -> None:
        """A row, with what it needs."""
        slot = self.free.popleft()
        self.rows[slot] = array, self.random.randint(0, CONFIG.ports)
        self.launched.append(slot)

    async def _admit(self) -> None:
        dut = self.dut
        while True:
            dut.woken__ready.value = 1
            await RisingEdge(dut.clk)
            slot = None
            woken = False
            if sample(dut.woken__valid):
                slot, woken = sample(dut.woken__payload), True
                array, _ = self.rows[slot]
                assert slot == self.waiting[array][0], "rows of an array out of order"
            elif self.launched and not sample(dut.calls):
                slot = self.launched.popleft()
            if slot is None:
                continue
            dut.woken__ready.value = 0
            await cycles_pass(dut.clk, self.random.randrange(20))
            await self._ask(slot, woken)

    async def _ask(self, slot: int, woken: bool) -> None:
        array, lines = self.rows[slot]
        if not await self.ask(slot, array, lines):
            assert lines, "a row that needs nothing waits"
            first = woken or not self.waiting[array]
            assert not first or self.has[array] + lines > CONFIG.ports, "its reserve is refused"
            if not woken:
                self.waiting[array].append(slot)
            return
        if woken:
            self.waiting[array].popleft()
        self.has[array] += lines
        check_shares(self.has, array, LINES, CONFIG.ports, 3)
        self.granted[slot] = array, lines

    async def ask(self, slot: int, array: int, lines: int) -> bool:
        """Whether it is granted."""
        dut = self.dut
        dut.number.value, dut.array.value, dut.amount.value = slot, array, lines
        dut.ask.value = 1
        while True:
            await RisingEdge(dut.clk)
            assert sample(dut.busy), "not busy while it is asked"
            if sample(dut.granted) or sample(dut.refused):
                break
        dut.ask.value = 0
        return bool(sample(dut.granted))

    async def end(self, slot: int) -> None:
        """The row has ended, and that has been counted."""
        dut = self.dut
        dut.ended.value, dut.ended_number.value = 1, slot
        await RisingEdge(dut.clk)
        dut.ended.value = 0
        await cycles_pass(dut.clk, 10)

    async def _end(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            dut.ended.value = 0
            slots = [slot for slot, (array, _) in self.granted.items() if array not in self.hung]
            if slots and self.random.random() < 0.04:
                slot = self.random.choice(slots)
                array, lines = self.granted.pop(slot)
                del self.rows[slot]
                self.has[array] -= lines
                self.done[array] += 1
                dut.ended.value = 1
                dut.ended_number.value = slot
                self.free.append(slot)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def rows_share(dut):
    """Rows of an array that gives nothing back wait; those of others go on, and all end at last."""
    bench = Rows(dut)
    await start(dut)
    bench.hung.add(0)
    for number in range(600):
        await wait_until(dut, lambda: len(bench.free) > 8, cycles=10_000, what="a row slot")
        # What waits has row slots as well.
        bench.launch(number % 3 if len(bench.waiting[0]) < 8 else number % 2 + 1)
        await RisingEdge(dut.clk)
    await wait_until(
        dut,
        lambda: not any(array for array, _ in bench.rows.values()),
        cycles=50_000,
        what="the other arrays",
    )
    assert bench.waiting[0], "nothing waited"
    assert bench.done[1] > 100 and bench.done[2] > 100
    bench.hung.clear()
    await wait_until(dut, lambda: not bench.rows, cycles=50_000, what="the end")
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def ends_between(dut):
    """A row that is called leaves its own queue, whoever ends before it asks."""
    bench = Rows(dut, admits=False)
    await start(dut)
    # Arrays 0 and 1 have all that they may have, and four rows of each wait.
    slots = iter(range(CONFIG.rows))
    granted: list[list[int]] = [[], []]
    waiting: list[deque[int]] = [deque(), deque()]
    nothing = [next(slots) for _ in range(4)]
    for slot in nothing:
        assert await bench.ask(slot, 1, 0)
    for _ in range(CONFIG.rows // 2 - 4):
        for array in (0, 1):
            if len(waiting[array]) < 4:
                slot = next(slots)
                fits = await bench.ask(slot, array, CONFIG.ports)
                (granted if fits else waiting)[array].append(slot)
    assert len(waiting[0]) == len(waiting[1]) == 4
    for _ in range(4):
        # One of array 0 ends, the first that waits is called, and then one of array 1 ends that
        # had nothing, so that nobody else is called.
        await bench.end(granted[0].pop())
        dut.woken__ready.value = 1
        await wait_until(dut, lambda: sample(dut.woken__valid), cycles=50, what="a row")
        called = sample(dut.woken__payload)
        assert called == waiting[0].popleft(), "rows of an array out of order"
        dut.woken__ready.value = 0
        await bench.end(nothing.pop())
        assert await bench.ask(called, 0, CONFIG.ports), "it was called, and does not fit"
        granted[0].append(called)
    await RisingEdge(dut.clk)
    assert sample(dut.waiting) == 2, "whose queue is empty"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def ends_before_it_is_counted(dut):
    """One that could not wait ends as it asks, while the ends of others are still to be counted.
    It is counted all the same before its end is, so that its array has nothing of it for good."""
    bench = Rows(dut, admits=False)
    await start(dut)
    fitting = (CONFIG.ports + (LINES - 3 * CONFIG.ports) // 2) // CONFIG.ports
    for others in range(5):
        for slot in range(others):
            assert await bench.ask(slot, 1, CONFIG.ports)
        await RisingEdge(dut.clk)
        assert sample(dut.settled)
        dut.ended.value = int(others != 0)
        for slot in range(others):
            dut.ended_number.value = slot
            await RisingEdge(dut.clk)
        cocotb.start_soon(bench.end(others))
        dut.forced.value = 1
        assert await bench.ask(others, 0, CONFIG.ports), "it cannot wait"
        dut.forced.value = 0
        await wait_until(dut, lambda: not sample(dut.busy), cycles=60, what="rest")
        slots = range(CONFIG.rows - fitting, CONFIG.rows)
        for slot in slots:
            assert await bench.ask(slot, 0, CONFIG.ports), f"{others}: what has ended counts"
        for slot in slots:
            await bench.end(slot)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def changes_its_mind(dut):
    """A row that is called may ask for more than there is, or for nothing; it keeps its place."""
    bench = Rows(dut, admits=False)
    await start(dut)
    slots = iter(range(CONFIG.rows))
    granted: list[int] = []
    waiting: deque[int] = deque()
    while len(waiting) < 3:
        slot = next(slots)
        (granted if await bench.ask(slot, 0, 1) else waiting).append(slot)

    async def call() -> int:
        dut.woken__ready.value = 1
        await wait_until(dut, lambda: sample(dut.woken__valid), cycles=50, what="a row")
        called = sample(dut.woken__payload)
        dut.woken__ready.value = 0
        return called

    await bench.end(granted.pop())
    assert await call() == waiting[0]
    assert not await bench.ask(waiting[0], 0, CONFIG.ports), "more than its share"
    for _ in range(30):
        await RisingEdge(dut.clk)
        assert not sample(dut.calls), "called once more before anybody has ended"
    # From here on the first one waits for four.
    for count in range(3):
        await bench.end(granted.pop())
        dut.woken__ready.value = 1
        for _ in range(30):
            await RisingEdge(dut.clk)
            assert sample(dut.woken__valid) == 0 or count == 2, "called, and cannot have it"
            if sample(dut.woken__valid):
                break
    assert sample(dut.woken__payload) == waiting[0]
    dut.woken__ready.value = 0
    assert await bench.ask(waiting.popleft(), 0, 0), "nothing is always granted"
    assert await call() == waiting[0]
    assert await bench.ask(waiting.popleft(), 0, 1)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def counts_much(dut):
    """What a single array has is counted, however much that is."""
    bench = Rows(dut, admits=False)
    dut.exists.value = 1
    await start(dut)
    for slot in range(WIDE.rows - 2):
        assert await bench.ask(slot, 0, WIDE.ports), "it is alone"
    dut.exists.value = 3
    await cycles_pass(dut.clk, 4)
    assert not await bench.ask(WIDE.rows - 2, 0, WIDE.ports), "it has more than its share"
    assert await bench.ask(WIDE.rows - 1, 1, WIDE.ports), "each has its reserve"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def mends_some(dut):
    """A row to be mended waits while there are eight."""
    sources = [StreamSource(dut, f"inputs__{n}") for n in range(2)]
    taken: list[int] = []
    StreamSink(dut, "walk", active=0.5, callback=taken.append)
    dut.ended.value = 0
    await start(dut)
    for number in range(20):
        sources[number % 2].send(number)
    for ended in range(13):
        await cycles_pass(dut.clk, 60)
        assert len(taken) == min(20, 8 + ended)
        assert not sample(dut.busy)
        dut.ended.value = 1
        await RisingEdge(dut.clk)
        dut.ended.value = 0
    assert sorted(taken) == list(range(20))


def run(
    testcase: str, name: str = "command_shares", kind: type = CommandShares, sizes: str = "narrow"
) -> None:
    simulate(
        converted(kind, config=CONFIGS[sizes]),
        name=name,
        module=__name__,
        testcase=testcase,
        parameters={"CONFIG": sizes},
    )


def run_rows(
    testcase: str, name: str = "row_shares", kind: type[Turnstile] = Turnstile,
    config: Config = CONFIG,
) -> None:
    """As `hdl.stripe.planning.row_planning.RowPlanning` has it."""
    component = kind(
        config=config,
        count=config.rows,
        total=config.shared_lines,
        least=config.ports,
        most=config.rows * config.ports,
    )
    simulate(component, name=name, module=__name__, testcase=testcase)


@pytest.mark.parametrize(
    "testcase", ["rows_share", "ends_between", "ends_before_it_is_counted", "changes_its_mind"]
)
def test_row_shares(testcase):
    run_rows(testcase)


def test_counts_are_wide_enough():
    run_rows("counts_much", "row_shares_wide", config=WIDE)


def test_mending():
    simulate(
        Mending(config=CONFIG, inputs=2), name="mending", module=__name__, testcase="mends_some"
    )


@pytest.mark.parametrize(
    "testcase", ["shares_out", "hangs", "volume_goes", "alone", "slots_are_used_again_at_once"]
)
def test_command_shares(testcase):
    run(testcase)


@pytest.mark.parametrize("testcase", ["shares_out", "hangs"])
def test_flushes_count_for_their_drives(testcase):
    run(testcase, name="command_shares_wide", sizes="wide")


def greedy(inner):
    """An array may have all the rest."""

    def elaborate(self, platform):
        m = inner(self, platform)
        m.d.comb += self.fits.eq(1)
        return m

    return elaborate


def forgets(inner):
    """What has ended still counts."""

    def elaborate(self, platform):
        m = inner(self, platform)
        m.d.comb += m.submodules.ends.input.valid.eq(0)
        return m

    return elaborate


FAULTS = {
    "greedy": ("shares_out", Shares, "elaborate", greedy(Shares.elaborate)),
    "forgets": ("shares_out", Turnstile, "elaborate", forgets(Turnstile.elaborate)),
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault == "greedy" else [pytest.mark.slow])
        for fault in FAULTS
    ],
)
def test_faults_are_caught(fault, monkeypatch):
    testcase, owner, name, value = FAULTS[fault]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(SimulationError):
        run(testcase, name=f"command_shares_{fault}")


class PopsAnother(Turnstile):
    """A planted bug: the link of a queue's head is that of the queue which was looked at before."""

    def _after_count(self) -> str:
        return "JUDGE"


class CountsLines(Turnstile):
    """A planted bug: counters are as wide as there are lines."""

    def __init__(self, *, config: Config, count: int, total: int, least: int, most: int):
        super().__init__(config=config, count=count, total=total, least=least, most=config.lines)


@pytest.mark.parametrize(
    ("mutant", "testcase", "config"),
    [
        (PopsAnother, "ends_between", CONFIG),
        pytest.param(CountsLines, "counts_much", WIDE, marks=pytest.mark.slow),
    ],
)
def test_faults_of_queues_are_caught(mutant, testcase, config):
    with pytest.raises(SimulationError):
        run_rows(testcase, mutant.__name__, mutant, config)


def test_sizes():
    """What is granted is there: for commands, rows, walks and flushes, however many arrays."""
    assert CONFIG.shared_blocks == TOTAL and CONFIG.shared_lines == LINES
    assert replace(CONFIG, array_shares=False, rows=4).shared_blocks == 0
    configs = {**SIZES, "board": board(), "wide board": board(24), "widest board": board(32)}
    shared = {name: config for name, config in configs.items() if config.array_shares}
    assert {"usual", "board", "wide board"} <= set(shared)
    for name, config in shared.items():
        blocks, lines = config.shared_blocks, config.shared_lines
        flush = -(-config.ports // 4)
        assert config.arrays * max(config.command_blocks, flush) <= blocks, name
        assert config.arrays * config.ports <= lines, name
        walks = config.walk_window + 16
        assert blocks + walks <= min(config.rows, config.commands), name
        assert blocks + lines + config.line_reserve <= config.lines, name
        assert 4 * blocks + lines + 2 * config.ports <= config.operations, name


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"queue_pairs": 3}, "each completion that the queues hold, 3 x 31: there are 64"),
        ({"queue_depth": 64}, "2 x 63: there are 64"),
        ({"rows": 32}, "8 blocks on their way for each of 4 arrays, 32: rows are enough for 14"),
        ({"commands": 32, "queue_depth": 16}, "32: commands are enough for 14"),
        ({"operations": 128}, "32: operations are enough for 1"),
        ({"arrays": 8}, "8 arrays, 64: rows are enough for 46"),
        (
            {"lines": 64, "ports": 8},
            "8 lines of rows for each of 4 arrays, 32: 64 lines leave 12",
        ),
    ],
)
def test_sizes_that_are_too_small(sizes, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **sizes)


def test_arguments():
    with pytest.raises(ValueError, match=r"least must be 1\.\.2, not 3"):
        Shares(config=CONFIG, total=11, least=3, most=9)
