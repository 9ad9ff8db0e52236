"""`hdl.memory.allocator.LineAllocator`: no line has two owners, none is lost, reserves hold."""

import os
import random
from dataclasses import replace

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start, wait_until
from hdl.config import Config, small
from hdl.core import Core
from hdl.kit.free_list import FreeList
from hdl.memory.allocator import LineAllocator

LINES = 32
USERS = 4
RETURNS = 3
RESERVES = (0, 0, 3, 8)


def sizes() -> Config:
    return Config(lines=LINES)


class Bench:
    """Users that take and return at random; the scoreboard knows who owns what."""

    def __init__(self, dut, *, seed: int, active: float = 1.0):
        self.dut = dut
        self.random = random.Random(f"{seed}/allocator")
        self.owned: list[list[int]] = [[] for _ in range(USERS)]
        self.returning: set[int] = set()
        self.taken = 0
        self.sinks = [
            StreamSink(
                dut,
                f"allocate__{user}",
                active=active,
                callback=lambda line, user=user: self._on_taken(user, line),
            )
            for user in range(USERS)
        ]
        self.sources = [StreamSource(dut, f"free__{n}", active=active) for n in range(RETURNS)]
        self.busy = BusyWatch(
            dut, [source.name for source in self.sources], [sink.name for sink in self.sinks]
        )

    def _on_taken(self, user: int, line: int) -> None:
        assert line < LINES, f"no such line: {line}"
        for other, lines in enumerate(self.owned):
            assert line not in lines, f"line {line} given to {user}, owned by {other}"
        self.owned[user].append(line)
        self.taken += 1

    @property
    def in_use(self) -> int:
        """Lines that users own, those on their way back included."""
        return sum(map(len, self.owned)) + sum(source.waiting for source in self.sources)

    def give_back(self, user: int) -> None:
        """One random line of ``user``."""
        lines = self.owned[user]
        line = lines.pop(self.random.randrange(len(lines)))
        self.random.choice(self.sources).send(line)

    async def settle(self) -> None:
        """Every line comes back and is available again."""
        for sink in self.sinks:
            sink.paused = True
        await cycles_pass(self.dut.clk, 4)
        for user in range(USERS):
            while self.owned[user]:
                self.give_back(user)
        for source in self.sources:
            await source.drained()
        await wait_until(
            self.dut,
            lambda: sample(self.dut.available) == LINES,
            cycles=10,
            what="all lines available",
        )
        await wait_until(self.dut, lambda: not sample(self.dut.busy), cycles=20, what="rest")
        for sink in self.sinks:
            sink.paused = False
            sink.active = 1.0
        self.sinks[3].paused = True
        self.sinks[2].paused = True
        before = self.taken
        await cycles_pass(self.dut.clk, 3 * LINES)
        assert self.taken - before == LINES - 2, "lines have been lost"
        assert sample(self.dut.available) == 2, "offered lines are available"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def random_users(dut):
    """Random takes and returns by everybody."""
    seed = int(os.environ["SEED"])
    print(f"SEED={seed}")
    bench = Bench(dut, seed=seed, active=0.6)
    await start(dut)
    for _ in range(4000):
        await RisingEdge(dut.clk)
        available = sample(dut.available)
        assert available <= LINES
        assert LINES - bench.in_use - USERS <= available <= LINES - bench.in_use + USERS
        for user in range(USERS):
            if bench.owned[user] and bench.random.random() < 0.2:
                bench.give_back(user)
    assert bench.taken > 1000
    await bench.settle()
    bench.busy.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reserves(dut):
    """A user with a reserve leaves that many lines, whatever it takes."""
    bench = Bench(dut, seed=1)
    await start(dut)
    for user in (0, 1, 2):
        bench.sinks[user].paused = True
    await cycles_pass(dut.clk, 100)
    held = len(bench.owned[3])
    assert LINES - held >= RESERVES[3], f"user 3 got {held} lines"
    assert sample(dut.available) <= RESERVES[3] + USERS, "refused user sees no pressure"
    bench.sinks[1].paused = False
    await cycles_pass(dut.clk, 100)
    assert len(bench.owned[1]) >= RESERVES[3], f"user 1 got only {len(bench.owned[1])}"
    await bench.settle()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def rate(dut):
    """A user alone gets a line every second cycle, two together one a cycle; as many return."""
    bench = Bench(dut, seed=1)
    for user in range(USERS):
        bench.sinks[user].paused = True
    await start(dut)
    for users in (1, 2):
        bench.sinks[users - 1].paused = False
        await cycles_pass(dut.clk, 10)
        before = bench.taken
        cycles = 200
        for _ in range(cycles):
            for user in range(users):
                while len(bench.owned[user]) > 4:
                    bench.sources[user].send(bench.owned[user].pop())
            await RisingEdge(dut.clk)
        print(f"{users} users: {(bench.taken - before) / cycles:.3f} lines a cycle")
        assert bench.taken - before >= cycles * users // 2 - 2
    await bench.settle()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def gives_back_twice(dut):
    """A user gives a line back twice; the scoreboard has nothing against it."""
    bench = Bench(dut, seed=1)
    await start(dut)
    await wait_until(dut, lambda: bench.owned[0], cycles=50, what="a line")
    for sink in bench.sinks:
        sink.paused = True
    line = bench.owned[0].pop()
    for source in bench.sources[:2]:
        source.send(line)
        await source.drained()
    await cycles_pass(dut.clk, 20)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def only_takes(dut):
    """All lines are taken and come back, a few times."""
    bench = Bench(dut, seed=1)
    await start(dut)
    for _ in range(400):
        await RisingEdge(dut.clk)
        for user in range(USERS):
            while len(bench.owned[user]) > 1:
                bench.give_back(user)


class Faulty(wiring.Component):
    """`LineAllocator` with one fault at its ports."""

    def __init__(self, *, fault: str):
        self._inner = LineAllocator(config=sizes(), users=USERS, returns=RETURNS, reserves=RESERVES)
        self._fault = fault
        super().__init__(self._inner.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        for name in ("allocate", "free"):
            for ours, theirs in zip(getattr(self, name), getattr(inner, name), strict=True):
                connect(m, flipped(ours), theirs)
        m.d.comb += [self.busy.eq(inner.busy), self.available.eq(inner.available)]
        if self._fault == "double":
            with m.If(inner.allocate[1].payload == 9):
                m.d.comb += self.allocate[1].payload.eq(8)
        elif self._fault == "lost":
            with m.If(self.free[0].payload == 5):
                m.d.comb += inner.free[0].valid.eq(0)
        elif self._fault == "miscount":
            m.d.comb += self.available.eq(inner.available - inner.allocate[0].valid)
        return m


def build() -> LineAllocator:
    return LineAllocator(config=sizes(), users=USERS, returns=RETURNS, reserves=RESERVES)


@pytest.mark.parametrize("testcase", ["random_users", "reserves", "rate"])
def test_allocator(testcase):
    simulate(build(), name="allocator", module=__name__, testcase=testcase)


@pytest.mark.parametrize(
    "fault",
    ["lost", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("double", "miscount"))],
)
def test_faults_are_caught(fault):
    with pytest.raises(SimulationError):
        simulate(
            Faulty(fault=fault),
            name=f"allocator_{fault}",
            module=__name__,
            testcase="random_users",
        )


def test_a_line_given_back_twice_is_found():
    """By the allocator itself, in every simulation."""
    with pytest.raises(SimulationError, match="comes back, and nobody had it"):
        simulate(build(), name="allocator", module=__name__, testcase="gives_back_twice")


class HandsOutTwice(FreeList):
    """A planted bug: a number stays at the front after it was taken."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += m.submodules.returned.output.ready.eq(self.take.ready & (self.level == 1))
        return m


def test_a_line_given_to_two_is_found(monkeypatch):
    """By the allocator itself, in every simulation."""
    monkeypatch.setattr("hdl.memory.allocator.FreeList", HandsOutTwice)
    with pytest.raises(SimulationError, match="is handed out to a second owner"):
        simulate(build(), name="allocator_twice", module=__name__, testcase="only_takes")


def test_reserve_is_caught():
    """The reserve check fails on an allocator without reserves."""
    with pytest.raises(SimulationError):
        simulate(
            LineAllocator(config=sizes(), users=USERS, returns=RETURNS, reserves=(0, 0, 0, 0)),
            name="allocator_no_reserve",
            module=__name__,
            testcase="reserves",
        )


def test_arguments():
    with pytest.raises(ValueError, match="reserves must have 2 entries, not 1"):
        LineAllocator(config=sizes(), users=2, returns=1, reserves=(0,))
    with pytest.raises(ValueError, match=r"a reserve must be 0\.\.31, not 32"):
        LineAllocator(config=sizes(), users=1, returns=1, reserves=(LINES,))


def test_too_few_lines_are_refused():
    """As many as a whole controller needs are enough, and one less is not."""
    needed = small().least_lines
    assert needed == small().lines
    Core(config=small())
    with pytest.raises(ValueError, match=r"16 lines are too few for 5 ports, .+ 18"):
        Core(config=replace(small(), ports=5))
