"""`hdl.metadata.withheld.Withheld`: completions that wait, and writes that must not end well."""

import random
from collections import Counter, deque
from os import environ

import cocotb
import pytest
from amaranth.hdl import Const
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, TableServer, pack, sample, start
from hdl.config import Config
from hdl.flow.host_command import HostOpcode, Status, command, completion
from hdl.flow.table_read import volume
from hdl.metadata.withheld import Withheld

CONFIG = Config(
    ports=8, lines=256, commands=16, rows=32, arrays=4, volumes=8, transfer_blocks=8, metadata=True
)
COMMAND, VOLUME = command(CONFIG), volume(CONFIG)
CYCLES = 12_000


class Bench:
    """Commands that begin and end, and what the host is told."""

    def __init__(self, dut, active: float):
        self.dut = dut
        self.random = random.Random(environ["SEED"])
        self.arrays = [self.random.randrange(CONFIG.arrays) for _ in range(CONFIG.volumes)]
        self.free = list(range(CONFIG.commands))
        self.inside: deque[int] = deque()
        """Slots whose commands have not ended."""
        self.of: dict[int, tuple[HostOpcode, int]] = {}
        self.waiting: deque[tuple[int, Status]] = deque()
        """Completions that the host has not been told."""
        self.forsaken = [0] * CONFIG.arrays
        """Cycles since when each array is; 0 if it is not."""
        self.exists = (1 << CONFIG.arrays) - 1
        self.held = 0
        self.seen: Counter = Counter()
        self.cycle = 1
        self.offered_at = 0
        TableServer(dut, "volume_read", lambda number: pack(VOLUME, array=self.arrays[number]))
        self.ended = StreamSource(dut, "ended", layout=completion(CONFIG), active=active)
        self.told = StreamSink(
            dut, "told", layout=completion(CONFIG), active=active, callback=self._tell
        )
        others = dut.begun__valid, dut.forsaken__valid, dut.holds
        self.watch = BusyWatch(
            dut, ["ended"], ["told"], others=lambda: tuple(sample(other) for other in others)
        )

    def _tell(self, told) -> None:
        """The host is told of the command that has ended first."""
        slot, status = self.waiting.popleft()
        opcode, array = self.of.pop(slot)
        assert told.slot == slot, f"{told.slot}, not {slot}"
        since = self.forsaken[array]
        counts = opcode != HostOpcode.READ and status == Status.SUCCESS
        allowed = {Status.WRITE_FAULT if counts and since else status}
        # What is offered by then stays so.
        if counts and since and self.offered_at <= since + 2:
            allowed.add(status)
        assert told.status in allowed, f"{opcode} of {array} ends with {told.status}"
        self.seen["writes that must not end well"] += allowed == {Status.WRITE_FAULT} != {status}
        self.seen["reads of forsaken arrays"] += bool(since) and opcode == HostOpcode.READ
        self.free.append(slot)

    async def run(self) -> None:
        """Everything happens at random."""
        dut, choose = self.dut, self.random
        was_valid = 0
        for _ in range(CYCLES):
            dut.begun__valid.value = 0
            dut.forsaken__valid.value = 0
            if self.free and choose.random() < 0.1:
                slot = self.free.pop(choose.randrange(len(self.free)))
                number, opcode = choose.randrange(CONFIG.volumes), choose.choice([*HostOpcode])
                self.of[slot] = opcode, self.arrays[number]
                self.inside.append(slot)
                dut.begun__valid.value = 1
                dut.begun__payload.value = pack(
                    COMMAND, slot=slot, opcode=opcode, volume=number, block=choose.getrandbits(40)
                )
            elif self.inside and choose.random() < 0.15:
                self.inside.rotate(choose.randrange(4))
                slot = self.inside.popleft()
                status = choose.choice((Status.SUCCESS, Status.SUCCESS, *Status))
                self.waiting.append((slot, status))
                self.ended.send(slot=slot, status=status)
            array, what = choose.randrange(CONFIG.arrays), choose.random()
            if what < 0.01 and self.exists >> array & 1:
                dut.forsaken__valid.value = 1
                dut.forsaken__payload.value = array
                self.forsaken[array] = self.forsaken[array] or self.cycle
            elif what < 0.02 and not self._has_commands(array):
                self.exists ^= 1 << array
                self.forsaken[array] = 0
            dut.exists.value = self.exists
            if choose.random() < 0.02:
                self.held = 0 if self.held else self.cycle
            dut.holds.value = bool(self.held)
            await RisingEdge(dut.clk)
            valid = sample(dut.told__valid)
            if valid and not was_valid:
                self.offered_at = self.cycle
                assert not self.held or self.cycle <= self.held + 1, "it must wait"
                self.seen["told"] += 1
            was_valid = valid and not sample(dut.told__ready)
            self.cycle += 1
        dut.begun__valid.value = 0
        dut.forsaken__valid.value = 0
        dut.holds.value = 0

    def _has_commands(self, array: int) -> bool:
        return any(of == array for _, of in self.of.values())


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(active=[1.0, 0.3])
async def tells_what_may_be_told(dut, active):
    dut.holds.value = 0
    dut.exists.value = 0
    dut.begun__valid.value = 0
    dut.forsaken__valid.value = 0
    bench = Bench(dut, active)
    await start(dut)
    await bench.run()
    for _ in range(400):
        await RisingEdge(dut.clk)
    assert not bench.waiting, f"never told: {bench.waiting}"
    for what in ("told", "writes that must not end well", "reads of forsaken arrays"):
        assert bench.seen[what] > 5, bench.seen
    bench.watch.check()


class TellsAtOnce(Withheld):
    """A planted bug: nothing waits."""

    def elaborate(self, platform):
        self.holds = Const(0)
        return super().elaborate(platform)


class TellsOfSuccess(Withheld):
    """A planted bug: writes of a forsaken array end well."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self._forsaken.eq(0)
        return m


class ForsakesForGood(Withheld):
    """A planted bug: a new array in the place of a forsaken one is forsaken as well."""

    def elaborate(self, platform):
        self.exists = Const(-1, CONFIG.arrays)
        return super().elaborate(platform)


class ForsakesOne(Withheld):
    """A planted bug: reads count as well."""

    def _note(self, m):
        super()._note(m)
        m.d.comb += self._commands.write.data.writes.eq(1)


def run(component, name: str) -> None:
    simulate(component, name=name, module=__name__)


def test_withheld():
    run(Withheld(config=CONFIG), "withheld")


SLOW = (TellsAtOnce, ForsakesForGood, ForsakesOne)


@pytest.mark.parametrize(
    "bug", [TellsOfSuccess, *(pytest.param(bug, marks=pytest.mark.slow) for bug in SLOW)]
)
def test_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="failed: tells_what_may_be_told"):
        run(bug(config=CONFIG), f"withheld_{bug.__name__}")
