"""`hdl.metadata.change_turns.ChangeTurns`: two users of the tables, one change at a time."""

import random
from os import environ

import cocotb
import pytest
from amaranth.hdl import Module, Shape
from amaranth.lib.wiring import connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start
from hdl.config import Config
from hdl.flow.manage import manage_request, manage_response
from hdl.metadata.change_turns import ChangeTurns

CONFIG = Config(ports=8, metadata=True)
REQUEST_BITS = Shape.cast(manage_request(CONFIG)).width
RESPONSE_BITS = Shape.cast(manage_response(CONFIG)).width
USERS = (0, 1)
CHANGES = 120
MOST_CYCLES = 2000
"""For an answer."""


class Bench:
    """Two users, the tables, and what each of them has been given."""

    def __init__(self, dut, active: float):
        self.random = random.Random(environ["SEED"])
        self.dut = dut
        self.requests, self.answers = [], []
        for user in USERS:
            self.requests.append(StreamSource(dut, f"users__{user}__request", active=active))
            self.answers.append(StreamSink(dut, f"users__{user}__response", active=active))
        self.tables = StreamSink(
            dut, "changes__request", active=active, callback=self._begin
        )
        self.made = StreamSource(dut, "changes__response", active=active)
        names = [f"users__{user}__request" for user in USERS] + ["changes__response"]
        outputs = ["changes__request"] + [f"users__{user}__response" for user in USERS]
        self.watch = BusyWatch(dut, names, outputs)
        self.asked: list[int | None] = [None, None]
        """The change of each user that has not been answered."""
        self.under_way: tuple[int, int] | None = None
        """The user whose change the tables have, and the answer to it."""
        self.passed = [0, 0]
        """Changes of the other that have been passed on while each user waited."""
        self.waited = [0, 0]
        """How often each has waited for one."""
        self._due = False
        self.held = 0
        """Cycles for which the second user has held its turn."""
        self.kept_out = 0
        dut.holds.value = 0
        cocotb.start_soon(self._run())

    def _begin(self, change: int) -> None:
        """The tables get a change."""
        assert self.under_way is None, "two changes are under way"
        assert change in self.asked, f"nobody has asked for {change:#x}"
        user, other = self.asked.index(change), 1 - self.asked.index(change)
        if sample(getattr(self.dut, f"users__{other}__request__valid")):
            self.passed[other] += 1
            self.waited[other] += 1
            assert self.passed[other] <= 1 or self.kept_out, f"user {other} starves"
            self.kept_out += bool(self.held) and user == 1
        self.passed[user] = 0
        assert user == 1 or self.held < 3, "a change comes between"
        assert sample(getattr(self.dut, f"users__{user}__request__ready")), "it is still asked for"
        assert not sample(getattr(self.dut, f"users__{other}__request__ready"))
        self.under_way = user, self.random.getrandbits(RESPONSE_BITS)
        cocotb.start_soon(self._make(self.under_way[1], self.random.choice((0, 0, 1, 40))))

    async def _make(self, answer: int, cycles: int) -> None:
        """The change takes its time."""
        await cycles_pass(self.dut.clk, cycles)
        self.made.send(answer)

    async def _run(self) -> None:
        """A change that is asked for at rest is passed on in the next cycle, and none else is."""
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            offered = sample(dut.changes__request__valid)
            assert offered or not self._due, "a change is not passed on"
            # In the cycle in which it is taken it is under way already, or not yet.
            assert not offered or self.under_way is None or sample(dut.changes__request__ready)
            asks = any(sample(getattr(dut, f"users__{user}__request__valid")) for user in USERS)
            self._due = bool(asks) and self.under_way is None and not offered
            self._due &= not sample(dut.holds)
            self.held = self.held + 1 if sample(dut.holds) else 0

    async def hold(self) -> None:
        """The second user holds its turn at random."""
        while True:
            await cycles_pass(self.dut.clk, self.random.randrange(120))
            self.dut.holds.value = 1
            await cycles_pass(self.dut.clk, self.random.randrange(300))
            self.dut.holds.value = 0

    async def ask(self, user: int, pause: int) -> None:
        """Asks for a change, and gets its own answer."""
        await cycles_pass(self.dut.clk, pause)
        change = self.random.getrandbits(REQUEST_BITS)
        self.asked[user] = change
        self.requests[user].send(change)
        answer = await self.answers[user].receive(cycles=MOST_CYCLES)
        assert self.under_way is not None, f"user {user} is answered twice"
        assert self.under_way == (user, answer), f"user {user} gets {answer:#x}"
        self.under_way = None
        self.asked[user] = None

    async def asks(self, user: int, changes: int, longest: int) -> None:
        """One change after the other."""
        for _ in range(changes):
            await self.ask(user, self.random.randint(0, longest) * self.random.randrange(2))

    def check_rest(self) -> None:
        """Nothing is left over."""
        assert self.under_way is None and self.asked == [None, None]
        assert not any(len(answers) for answers in self.answers)
        assert all(source.idle for source in (*self.requests, self.made))
        assert not sample(self.dut.busy) and not sample(self.dut.changes__request__valid)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(active=[1.0, 0.4], pauses=[(0, 0), (20, 20), (0, 60), (60, 0)])
async def everybody_gets_a_turn(dut, active, pauses):
    bench = Bench(dut, active)
    await start(dut)
    users = [
        cocotb.start_soon(bench.asks(user, CHANGES, pauses[user])) for user in USERS
    ]
    for user in users:
        await user
    assert all(bench.waited), f"nobody waited: {bench.waited}"
    await cycles_pass(dut.clk, 4)
    bench.watch.check()
    bench.check_rest()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def nobody_comes_between(dut):
    """While the second user holds its turn the first one waits, and gets it after that."""
    bench = Bench(dut, 0.8)
    await start(dut)
    cocotb.start_soon(bench.hold())
    users = [cocotb.start_soon(bench.asks(user, CHANGES, 40)) for user in USERS]
    for user in users:
        await user
    assert bench.kept_out > 10, bench.kept_out
    dut.holds.value = 0


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(user=[0, 1])
async def one_alone_waits_for_nobody(dut, user):
    bench = Bench(dut, 1.0)
    await start(dut)
    await bench.asks(user, CHANGES, 0)
    await cycles_pass(dut.clk, 4)
    assert bench.waited == [0, 0]
    bench.check_rest()


def test_change_turns():
    simulate(ChangeTurns(config=CONFIG), name="change_turns", module=__name__)


class Around(ChangeTurns):
    """Turns that are right, for a planted bug around them."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = self._inner = ChangeTurns(config=CONFIG)
        for mine, its in zip(self.users, self._inner.users, strict=True):
            connect(m, flipped(mine), its)
        connect(m, self._inner.changes, flipped(self.changes))
        m.d.comb += [self.busy.eq(self._inner.busy), self._inner.holds.eq(self.holds)]
        return m


class Confuses(Around):
    """Planted bug: each gets the answer of the other, in its own time."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        for mine, other in zip(self.users, reversed(list(self._inner.users)), strict=True):
            m.d.comb += [
                mine.response.valid.eq(other.response.valid),
                mine.response.payload.eq(other.response.payload),
                other.response.ready.eq(mine.response.ready),
            ]
        return m


class Prefers(Around):
    """Planted bug: the second user waits for as long as the first one asks."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        first, second = (user.request for user in self.users)
        m.d.comb += self._inner.users[1].request.valid.eq(second.valid & ~first.valid)
        return m


class Hurries(Around):
    """Planted bug: it does not wait until an answer has been taken."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += [user.response.ready.eq(1) for user in self._inner.users]
        return m


class Mutilates(Around):
    """Planted bug: the second user does not learn which entry was changed."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.users[1].response.payload.index.eq(0)
        return m


class Sleeps(Around):
    """Planted bug: a change that has waited begins while nobody is said to be busy."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        request, response = self.changes.request, self.changes.response
        m.d.comb += self.busy.eq(
            (request.valid & request.ready) | (response.valid & response.ready)
        )
        return m


@pytest.mark.parametrize(
    "bug",
    [
        Confuses,
        *(
            pytest.param(bug, marks=pytest.mark.slow)
            for bug in (Prefers, Hurries, Mutilates, Sleeps)
        ),
    ],
)
def test_change_turns_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="everybody_gets_a_turn"):
        simulate(bug(config=CONFIG), name=f"change_turns_{bug.__name__}", module=__name__)


class LetsBetween(Around):
    """Planted bug: the second user cannot hold its turn."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self._inner.holds.eq(0)
        return m


def test_who_comes_between_is_found():
    with pytest.raises(SimulationError, match="nobody_comes_between"):
        simulate(LetsBetween(config=CONFIG), name="change_turns_between", module=__name__)
