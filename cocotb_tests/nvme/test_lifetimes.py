"""`hdl.nvme.commands.lifetimes.Lifetimes` alone: volumes that come, go and are told in any cycles,
many at once, and commands that are looked at in any cycle after that."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import cocotb
import pytest
from amaranth.hdl import Module

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, every_cycle, sample, start
from hdl.config import Config
from hdl.nvme.commands.lifetimes import Lifetimes

CONFIG = Config(volumes=8)
CYCLES = 20_000
KEPT = 200
"""Commands that wait."""


@dataclass(frozen=True)
class Waiting:
    """A command that has been rung: in which cycle, and the age that it was given. In the cycle
    ``rested``, at that time or before it, nothing was being noted."""

    cycle: int
    age: int
    rested: int
    volume: int


class Model:
    """When each volume came, and was told last; commands that are looked at again and again."""

    def __init__(self, dut, seed: int):
        self.dut = dut
        self.random = random.Random(seed)
        self.cycle = 0
        self.exists = 0
        self.came = [0] * CONFIG.volumes
        self.told = [0] * CONFIG.volumes
        self.commands: list[Waiting] = []
        self.seen: Counter = Counter()
        every_cycle(dut.clk, self._run())

    def _run(self) -> Iterator[None]:
        dut, choose = self.dut, self.random
        rested = 0
        named: Waiting | None = None  # its volume, one cycle before the rest
        asked: Waiting | None = None
        while True:
            yield
            if asked is not None:
                self._check(asked)
            if not sample(dut.busy):
                rested = self.cycle
            if len(self.commands) == KEPT:
                self.commands.pop(choose.randrange(KEPT))
            volume = choose.randrange(CONFIG.volumes)
            self.commands.append(Waiting(self.cycle, sample(dut.age), rested, volume))
            self.cycle += 1
            self._change()
            asked = named
            named = self.commands[-1] if choose.random() < 0.3 else choose.choice(self.commands)
            dut.read__volume.value = named.volume
            dut.read__submitted.value = asked.age if asked else 0

    def _change(self) -> None:
        """Volumes come and go, and those that stay are told."""
        choose, before = self.random, self.exists
        if choose.random() < 0.05:
            self.exists ^= choose.getrandbits(CONFIG.volumes)
        told = choose.getrandbits(CONFIG.volumes) if choose.random() < 0.05 else 0
        told &= self.exists & before
        for volume in range(CONFIG.volumes):
            if (self.exists & ~before) >> volume & 1:
                self.came[volume] = self.cycle
            if told >> volume & 1:
                self.told[volume] = self.cycle
        self.dut.exists.value = self.exists
        self.dut.told.value = told

    def _check(self, command: Waiting) -> None:
        """What is said of a command in this cycle."""
        there, belongs, late = (
            bool(sample(getattr(self.dut, f"read__{name}")))
            for name in ("there", "belongs", "late")
        )
        exists = bool(self.exists >> command.volume & 1)
        came, told = self.came[command.volume], self.told[command.volume]
        assert exists or not there, "a volume that has gone is there"
        assert there or not belongs
        since = f"{command}: its volume came at {came}, was told at {told}"
        if not exists or command.cycle <= came:
            assert not belongs, f"{since}: it is found"
            self.seen["not meant"] += 1
        elif command.rested > came:
            assert belongs, f"{since}: it is not found"
            self.seen["meant"] += 1
        if belongs and command.cycle <= told < self.cycle:
            assert late, f"{since}: it is not late"
            self.seen["late"] += 1
        elif belongs and told < command.rested:
            assert not late, f"{since}: it is late"
            self.seen["in time"] += 1


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def finds_what_was_meant(dut):
    await start(dut)
    model = Model(dut, cocotb.RANDOM_SEED)
    await cycles_pass(dut.clk, CYCLES)
    print(dict(model.seen))
    assert all(model.seen[what] > 500 for what in ("not meant", "meant", "late", "in time"))


class ToldOneByOne(Lifetimes):
    """A planted bug: a volume that waits to be noted has not been told."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        told = m.submodules.tidings.reads[0].data
        m.d.comb += self.read.late.eq(told > self.read.submitted)
        return m


class BornAtOnce(Lifetimes):
    """A planted bug: all volumes that come at once have the age of the first."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self._births.write.data.eq(self.age)
        return m


def test_lifetimes():
    simulate(Lifetimes(config=CONFIG), name="lifetimes", module=__name__)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [ToldOneByOne, BornAtOnce])
def test_lifetimes_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="failed: finds_what_was_meant"):
        simulate(bug(config=CONFIG), name=f"lifetimes_{bug.__name__}", module=__name__)
