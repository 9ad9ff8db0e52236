"""Flushes that the controller asks for itself: once each, again if aborted, and the truth."""

import os
import random
from collections import Counter

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.array.array_models import FLUSH_IGNORES, flush_operation
from cocotb_tests.busy import BusyWatch
from cocotb_tests.fields import check_fields
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start, wait_until
from hdl.config import MAX_DRIVES, Config
from hdl.drive.flusher import FlushAll, Flusher
from hdl.flow.flush_request import FlushRequest
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.recovery import tried_bits

CONFIG = Config(ports=24)
REQUESTS = 150
FLUSH_ROUNDS = CONFIG.ports * (CONFIG.drive_resets + 2) + 1
"""Each drive is aborted, reset, and given up at last (docs/guarantees.md)."""
MOST_RESTARTS = 1 << tried_bits(CONFIG)


class Assembly(wiring.Component):
    """`FlushAll` as user 0 of a `Flusher`."""

    def __init__(self):
        super().__init__(
            {
                "request": In(FlushRequest()),
                "used": In(MAX_DRIVES),
                "failed": In(MAX_DRIVES),
                "lost": In(1),
                "owes": In(1),
                "settled": In(1),
                "ask": In(stream.Signature(MAX_DRIVES)),
                "told": Out(stream.Signature(MAX_DRIVES)),
                "operation": Out(stream.Signature(operation(CONFIG))),
                "finished": In(stream.Signature(finished(CONFIG))),
                "restarts": In(tried_bits(CONFIG)).array(CONFIG.ports),
                "complete": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.flusher = flusher = Flusher(config=CONFIG, users=2)
        m.submodules.flush_all = flush_all = FlushAll()
        for mine, its in zip(self.restarts, flusher.restarts, strict=True):
            m.d.comb += its.eq(mine)
        connect(m, flipped(self.request), flush_all.request)
        connect(m, flush_all.ask, flusher.ask[0])
        connect(m, flusher.told[0], flush_all.told)
        connect(m, flipped(self.ask), flusher.ask[1])
        connect(m, flusher.told[1], flipped(self.told))
        connect(m, flusher.operation, flipped(self.operation))
        connect(m, flipped(self.finished), flusher.finished)
        m.d.comb += [
            flush_all.lost.eq(self.lost),
            flush_all.owes.eq(self.owes),
            flush_all.settled.eq(self.settled),
            flush_all.used.eq(self.used),
            flush_all.failed.eq(self.failed),
            self.complete.eq(flush_all.complete),
            self.busy.eq(flusher.busy | flush_all.busy),
        ]
        return m


class Drives:
    """Drives that end their flushes in any order, each as ``fate`` of its port says."""

    def __init__(self, dut, generator: random.Random):
        self.random = generator
        self.operations = StreamSink(
            dut,
            "operation",
            layout=operation(CONFIG),
            callback=self._begin,
            active=0.5,
            ignores=FLUSH_IGNORES,
        )
        self.ends = StreamSource(dut, "finished", layout=finished(CONFIG))
        self.out: list[int] = []
        self.begun: Counter[int] = Counter()
        self.aborts: dict[int, int] = {}
        self.fate: dict[int, DriveStatus] = {}
        self.held = False
        self.dut = dut
        self.restarts = [0] * CONFIG.ports
        """How often each drive had restarted when the request was taken."""
        self.restart()
        self._clock = dut.clk
        for name in ("request__flush", "request__watches", "used", "failed", "lost", "owes"):
            getattr(dut, name).value = 0
        dut.settled.value = 1
        cocotb.start_soon(self._run())

    def _begin(self, seen) -> None:
        wanted = flush_operation(
            port=seen.port, owner=Owner.FLUSHER, restarts=self.restarts[seen.port]
        )
        check_fields(seen, wanted | {"alone": 1}, "operation")
        assert seen.port not in self.out, "two flushes of a drive at once"
        self.out.append(seen.port)
        self.begun[seen.port] += 1

    def restart(self) -> None:
        """Before a request: drives have restarted so often."""
        self.restarts = [self.random.randrange(MOST_RESTARTS) for _ in range(CONFIG.ports)]
        for port, count in enumerate(self.restarts):
            getattr(self.dut, f"restarts__{port}").value = count

    def reset(self) -> None:
        """Some drives will abort, go away or refuse."""
        self.restart()
        self.begun.clear()
        bad = (DriveStatus.GONE, DriveStatus.MEDIUM_ERROR)
        self.fate = {
            port: self.random.choice(bad) if self.random.random() < 0.1 else DriveStatus.GOOD
            for port in range(CONFIG.ports)
        }
        most = (0, 0, 0, 1, 3, FLUSH_ROUNDS - 1, FLUSH_ROUNDS)
        self.aborts = {port: self.random.choice(most) for port in range(CONFIG.ports)}

    def stored(self, asked: int) -> int:
        """What a request must be told, once it has ended."""
        assert not self.out, "told before all have answered"
        wanted = 0
        for port in range(CONFIG.ports):
            if not asked >> port & 1:
                continue
            rounds = min(self.aborts[port] + 1, FLUSH_ROUNDS)
            assert self.begun[port] == rounds, f"port {port}: {self.begun[port]} flushes"
            good = self.fate[port] == DriveStatus.GOOD and self.aborts[port] < FLUSH_ROUNDS
            wanted |= good << port
        assert sum(self.begun.values()) == sum(
            self.begun[port] for port in range(CONFIG.ports) if asked >> port & 1
        ), "others were flushed"
        return wanted

    async def rest(self, dut) -> None:
        """Until nobody has asked for anything for a while."""
        calm = 0
        for _ in range(50_000):
            await RisingEdge(dut.clk)
            moves = self.out or sample(dut.busy) or not self.ends.idle
            calm = 0 if moves or sample(dut.operation__valid) else calm + 1
            if calm == 10:
                return
        raise AssertionError("no rest")

    async def _run(self) -> None:
        while True:
            await RisingEdge(self._clock)
            if self.held or not self.out or not self.ends.idle or self.random.random() < 0.5:
                continue
            port = self.out.pop(self.random.randrange(len(self.out)))
            status = self.fate[port]
            if self.begun[port] <= self.aborts[port]:
                status = DriveStatus.ABORTED
            self.ends.send(
                port=port, opcode=Opcode.FLUSH, owner=Owner.FLUSHER, status=status
            )


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def says_which_drives_have_flushed(dut):
    generator = random.Random(int(os.environ["SEED"]))
    drives = Drives(dut, generator)
    asks = StreamSource(dut, "ask")
    told = StreamSink(dut, "told", active=0.5)
    watch = BusyWatch(dut, ["ask", "finished"], ["operation", "told"])
    await start(dut)
    for _ in range(REQUESTS):
        drives.reset()
        asked = generator.getrandbits(CONFIG.ports) & generator.getrandbits(CONFIG.ports)
        asked = generator.choice((asked, 0, 1 << generator.randrange(CONFIG.ports)))
        asks.send(asked)
        assert await told.receive(cycles=50_000) == drives.stored(asked)
    await wait_until(dut, lambda: not sample(dut.busy), cycles=20, what="rest")
    watch.check()


async def owe(dut, owes: bool) -> bool:
    """Something is owed for a cycle, if ``owes``."""
    dut.owes.value = owes
    await RisingEdge(dut.clk)
    dut.owes.value = 0
    await RisingEdge(dut.clk)
    return owes


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def all_drives_are_flushed_before_power_goes(dut):
    """Those that arrays have and that work; the answer stays until the request goes."""
    generator = random.Random(int(os.environ["SEED"]))
    drives = Drives(dut, generator)
    asks = StreamSource(dut, "ask")
    told = StreamSink(dut, "told")
    answers: Counter[tuple[bool, bool]] = Counter()
    await start(dut)
    for number in range(100):
        drives.reset()
        if generator.random() < 0.5:
            drives.fate, drives.aborts = dict.fromkeys(drives.fate, DriveStatus.GOOD), Counter()
        used, failed = (generator.getrandbits(CONFIG.ports) for _ in range(2))
        dut.used.value, dut.failed.value = used, failed
        drives.held = True
        # What was owed, and was told, before anybody watched is nobody's business.
        await owe(dut, generator.random() < 0.5)
        dut.request__watches.value = 1
        owed = await owe(dut, generator.random() < 0.2)
        dut.request__flush.value = 1
        for _ in range(300):
            await RisingEdge(dut.clk)
            assert not sample(dut.request__flushed), "answered before a drive has"
        owed |= await owe(dut, generator.random() < 0.2)
        # A drive that goes in the meantime, or restarts, changes nothing for the others.
        for port in range(CONFIG.ports):
            getattr(dut, f"restarts__{port}").value = generator.randrange(MOST_RESTARTS)
        gone, lost = generator.getrandbits(CONFIG.ports), generator.random() < 0.3
        dut.failed.value = gone
        dut.settled.value = 0
        drives.held = False
        await drives.rest(dut)
        assert not sample(dut.request__flushed), "answered before it is known what is lost"
        dut.lost.value = lost
        dut.settled.value = 1
        await wait_until(dut, lambda: sample(dut.request__flushed), cycles=10, what="an answer")
        asked = used & ~failed
        missed = asked & ~drives.stored(asked) & ~gone
        answers[not missed, lost, owed] += 1
        for _ in range(10):
            assert sample(dut.request__flushed)
            assert bool(sample(dut.complete)) == (not missed)
            assert bool(sample(dut.request__stored)) == (not missed and not lost and not owed)
            await RisingEdge(dut.clk)
        dut.lost.value = dut.request__watches.value = 0
        dut.request__flush.value = 0
        await cycles_pass(dut.clk, 2)
        assert not sample(dut.request__flushed)
        if number % 4 == 0:
            # Another user, at once; and a request that is given up.
            drives.reset()
            dut.used.value, dut.failed.value = 3, 0
            dut.request__flush.value = 1
            asks.send(1 << 7)
            await RisingEdge(dut.clk)
            dut.request__flush.value = 0
            await told.receive(cycles=50_000)
            await drives.rest(dut)
    assert len(answers) == 8, answers


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def what_is_asked_stays(dut):
    """While another is served, drives fail and are exchanged: those of the request are flushed."""
    generator = random.Random(int(os.environ["SEED"]))
    drives = Drives(dut, generator)
    asks = StreamSource(dut, "ask")
    told = StreamSink(dut, "told")
    await start(dut)
    for _ in range(20):
        drives.reset()
        drives.fate, drives.aborts = dict.fromkeys(drives.fate, DriveStatus.GOOD), Counter()
        drives.held = True
        asks.send(1)
        await wait_until(dut, lambda: drives.out, cycles=200, what="another's flush")
        used, failed = (generator.getrandbits(CONFIG.ports) & ~1 for _ in range(2))
        dut.used.value, dut.failed.value = used, failed
        await cycles_pass(dut.clk, 2)
        dut.request__flush.value = 1
        await cycles_pass(dut.clk, generator.randint(2, 20))
        dut.used.value, dut.failed.value = (generator.getrandbits(CONFIG.ports) for _ in range(2))
        drives.held = False
        await told.receive(cycles=50_000)
        await wait_until(
            dut, lambda: sample(dut.request__flushed), cycles=50_000, what="an answer"
        )
        assert sum(1 << port for port in drives.begun) == used & ~failed | 1
        dut.request__flush.value = 0
        await drives.rest(dut)


def test_flusher():
    simulate(Assembly(), name="flusher", module=__name__)


class Trusting:
    """Planted bug: a drive that refuses has flushed."""

    GOOD = DriveStatus.MEDIUM_ERROR
    ABORTED = DriveStatus.ABORTED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("flush_rounds", lambda _: 2, id="rounds"),
        pytest.param("DriveStatus", Trusting, id="status", marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_found(name, value, monkeypatch):
    monkeypatch.setattr(f"hdl.drive.flusher.{name}", value)
    with pytest.raises(SimulationError, match="says_which_drives_have_flushed"):
        simulate(
            Assembly(),
            name=f"flusher_{name.lower()}",
            module=__name__,
            testcase="says_which_drives_have_flushed",
        )
