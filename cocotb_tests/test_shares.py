"""Who may have how much (`hdl.array.shares`), and the commands and rows that wait for it."""

import os
import random
from collections import deque
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, pack, start, wait_until
from hdl.array.command_shares import CommandShares
from hdl.array.interface import geometry, volume
from hdl.array.shares import Shares
from hdl.config import Config
from hdl.nvme.interface import HostOpcode, command
from hdl.stripe.row_shares import RowShares

CONFIG = Config(
    ports=4, lines=256, commands=64, rows=64, operations=512, arrays=4, volumes=4, walk_window=2,
    transfer_blocks=8, sector_emulation=False, early_rows=0, array_shares=True,
)  # fmt: skip
TOTAL = 46
"""Of 64 row slots 2 are for walks, and 16 for rows to be mended."""
LEAST = 8
COMMANDS = 400


class Bench:
    """Tables with a volume an array, a mapper that takes commands, and who has how many blocks."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        self.exists = {0, 1, 2}
        self.copies = {0: 1, 1: 2, 2: 5}
        self.source = StreamSource(dut, "command", layout=command(CONFIG), active=0.8)
        self.sink = StreamSink(
            dut, "passed", layout=command(CONFIG), active=0.6, callback=self._passed
        )
        self.sent: dict[int, deque] = {array: deque() for array in range(3)}
        self.has: dict[int, int] = dict.fromkeys(range(3), 0)
        self.inside: dict[int, tuple[int, int]] = {}
        self.slots = deque(range(CONFIG.commands))
        self.retries = 0
        self.hung: set[int] = set()
        self.due: deque[int] = deque()
        dut.exists.value = sum(1 << array for array in self.exists)
        dut.ended.value = 0
        dut.volume_read__data.value = 0
        dut.geometry_read__data.value = 0
        cocotb.start_soon(self._tables())
        cocotb.start_soon(self._end())

    async def _tables(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            array = int(dut.volume_read__address.value) % 4
            dut.volume_read__data.value = pack(
                volume(CONFIG), valid=int(array in self.exists), array=array, start=0, blocks=99
            )
            copies = self.copies.get(int(dut.geometry_read__address.value), 1)
            dut.geometry_read__data.value = pack(geometry(CONFIG), copies=copies)

    def counts_for(self, array: int, opcode: HostOpcode, blocks: int) -> int:
        """In fours of operations: one of 4 ports a FLUSH, five copies count twice."""
        if opcode is HostOpcode.FLUSH:
            return 1
        return blocks * (2 if opcode is HostOpcode.WRITE and self.copies[array] > 4 else 1)

    def send(self, array: int) -> None:
        """A command for an array."""
        opcode = self.random.choice((HostOpcode.READ, HostOpcode.WRITE, HostOpcode.FLUSH))
        blocks = 1 if opcode is HostOpcode.FLUSH else self.random.randint(1, 8)
        slot = self.slots.popleft()
        self.sent[array].append((slot, self.counts_for(array, opcode, blocks)))
        self._give(slot, array, opcode, blocks)

    def _give(self, slot: int, array: int, opcode: HostOpcode, blocks: int) -> None:
        self.source.send(slot=slot, opcode=opcode, blocks=blocks - 1, volume=array)

    def _passed(self, payload) -> None:
        slot, array = payload.slot, payload.volume
        if slot in self.inside:
            self.retries += 1
            return
        expected, counts = self.sent[array].popleft()
        assert slot == expected, "commands of an array out of order"
        self.inside[slot] = array, counts
        before, self.has[array] = self.has[array], self.has[array] + counts
        if len(self.exists) == 1:
            return
        rest = TOTAL - LEAST * len(self.exists)
        beyond = [max(0, count - LEAST) for count in self.has.values()]
        if before and beyond[array]:
            assert beyond[array] <= rest // 2, f"array {array} has {self.has[array]}"
            first = max(0, 2 * LEAST - LEAST)  # of one with five copies
            assert sum(beyond) <= rest + first, f"too much: {self.has}"
        if array not in self.hung:
            self.due.append(slot)

    async def _end(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            dut.ended.value = 0
            if self.due and self.random.random() < 0.1:
                slot = self.due.popleft()
                array, counts = self.inside[slot]
                if self.random.random() < 0.3:
                    # First a block of it is read once more; that never waits.
                    before = self.retries
                    self._give(slot, array, HostOpcode.READ, 1)
                    await wait_until(
                        dut, lambda n=before: self.retries > n, cycles=2000, what="retry"
                    )
                del self.inside[slot]
                self.has[array] -= counts
                dut.ended.value = 1
                dut.ended_slot.value = slot
                await RisingEdge(dut.clk)
                dut.ended.value = 0
                for _ in range(4):
                    await RisingEdge(dut.clk)
                self.slots.append(slot)

    def rests(self) -> bool:
        return not self.inside and not any(self.sent.values())


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def shares_out(dut):
    """Nobody has more than its share, nothing is lost or overtakes, and nobody starves."""
    bench = Bench(dut)
    await start(dut)
    busy = 0
    for _ in range(COMMANDS):
        if bench.slots:
            bench.send(bench.random.choice((0, 0, 1, 2)))
        for _ in range(bench.random.randrange(20)):
            await RisingEdge(dut.clk)
            busy += int(dut.busy.value)
    assert busy > COMMANDS, "busy while commands pass"
    await wait_until(dut, bench.rests, cycles=100_000, what="the end")
    await wait_until(dut, lambda: not int(dut.busy.value), cycles=100, what="rest")
    assert not int(dut.waiting.value)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def hangs(dut):
    """While an array gives nothing back the others go on, with what they had before."""
    bench = Bench(dut)
    await start(dut)
    bench.hung.add(0)
    while bench.has[0] < LEAST + (TOTAL - 3 * LEAST) // 2 - 8 or len(bench.sent[0]) < 8:
        bench.send(0)
        await RisingEdge(dut.clk)
        for _ in range(20):
            await RisingEdge(dut.clk)
    assert int(dut.waiting.value) == 1
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
    for _ in range(10):
        await RisingEdge(dut.clk)
    bench.send(0)
    bench.send(1)
    await wait_until(dut, lambda: not bench.sent[1], cycles=200, what="the new array")
    for _ in range(200):
        await RisingEdge(dut.clk)
    assert bench.sent[0], "the old one has more than its share already"
    bench.hung.clear()
    bench.due.extend(slot for slot, (array, _) in bench.inside.items() if array == 0)
    await wait_until(dut, bench.rests, cycles=20_000, what="the end")


LINES = 116
"""Of 256 lines half are for data, and 12 are never shared."""


class Rows:
    """An admission that asks for rows of three arrays, one at a time; array 0 may be hung."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        self.launched: deque[int] = deque()
        self.waiting: dict[int, deque] = {array: deque() for array in range(3)}
        self.granted: dict[int, tuple[int, int]] = {}
        self.has: dict[int, int] = dict.fromkeys(range(3), 0)
        self.rows: dict[int, tuple[int, int, int]] = {}
        self.free = deque(range(CONFIG.rows))
        self.hung: set[int] = set()
        self.done = dict.fromkeys(range(3), 0)
        dut.exists.value = 7
        dut.ask.value = dut.ended.value = dut.woken__ready.value = 0
        cocotb.start_soon(self._admit())
        cocotb.start_soon(self._end())

    def launch(self, array: int) -> None:
        """A row, with what it needs and whether it has been tried before."""
        row = array, self.random.randint(0, CONFIG.ports), self.random.randrange(2)
        slot = self.free.popleft()
        self.rows[slot] = row
        self.launched.append(slot)

    async def _admit(self) -> None:
        dut = self.dut
        while True:
            dut.woken__ready.value = 1
            await RisingEdge(dut.clk)
            slot = None
            woken = False
            if int(dut.woken__valid.value):
                slot, woken = int(dut.woken__payload.value) % CONFIG.rows, True
                array, _, retried = self.rows[slot]
                assert slot == self.waiting[array][0], "rows of an array out of order"
                assert int(dut.woken__payload.value) // CONFIG.rows == retried
            elif self.launched and not int(dut.calls.value):
                slot = self.launched.popleft()
            if slot is None:
                continue
            dut.woken__ready.value = 0
            for _ in range(self.random.randrange(20)):
                await RisingEdge(dut.clk)
            await self._ask(slot, woken)

    async def _ask(self, slot: int, woken: bool) -> None:
        dut = self.dut
        array, lines, retried = self.rows[slot]
        dut.slot.value, dut.array.value, dut.retried.value = slot, array, retried
        dut.lines.value = lines
        dut.ask.value = 1
        while True:
            await RisingEdge(dut.clk)
            assert int(dut.busy.value), "not busy while it is asked"
            if int(dut.granted.value) or int(dut.refused.value):
                break
        dut.ask.value = 0
        if int(dut.refused.value):
            assert lines, "a row that needs nothing waits"
            assert self.has[array], "an array that has nothing waits"
            if not woken:
                self.waiting[array].append(slot)
            return
        if woken:
            self.waiting[array].popleft()
        before, self.has[array] = self.has[array], self.has[array] + lines
        beyond = [max(0, count - CONFIG.ports) for count in self.has.values()]
        rest = LINES - 3 * CONFIG.ports
        assert not before or beyond[array] <= rest // 2, f"array {array} has {self.has[array]}"
        assert sum(beyond) <= rest, f"too much: {self.has}"
        self.granted[slot] = array, lines

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
                dut.ended_slot.value = slot
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
        lambda: not any(array for array, *_ in bench.rows.values()),
        cycles=50_000,
        what="the other arrays",
    )
    assert bench.waiting[0], "nothing waited"
    assert bench.done[1] > 100 and bench.done[2] > 100
    bench.hung.clear()
    await wait_until(dut, lambda: not bench.rows, cycles=50_000, what="the end")
    await wait_until(dut, lambda: not int(dut.busy.value), cycles=100, what="rest")


def run(testcase: str, name: str = "command_shares", kind: type = CommandShares) -> None:
    simulate(kind(config=CONFIG), name=name, module=__name__, testcase=testcase)


def test_row_shares():
    run("rows_share", "row_shares", RowShares)


@pytest.mark.parametrize("testcase", ["shares_out", "hangs", "alone"])
def test_command_shares(testcase):
    run(testcase)


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
        m.d.comb += m.submodules.ends.w_en.eq(0)
        return m

    return elaborate


FAULTS = {
    "greedy": ("shares_out", Shares, "elaborate", greedy(Shares.elaborate)),
    "forgets": ("shares_out", CommandShares, "elaborate", forgets(CommandShares.elaborate)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(fault, monkeypatch):
    testcase, owner, name, value = FAULTS[fault]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(SimulationError):
        run(testcase, name=f"command_shares_{fault}")


def test_sizes():
    """What is shared leaves room for walks and for lines of rows; small controllers have none."""
    assert CONFIG.shared_blocks == TOTAL
    assert replace(CONFIG, rows=32).shared_blocks == 0
    with pytest.raises(ValueError, match=r"least must be 1\.\.4, not 5"):
        Shares(config=CONFIG, total=4, least=5, most=9)
