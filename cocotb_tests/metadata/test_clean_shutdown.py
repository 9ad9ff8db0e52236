"""`hdl.metadata.clean_shutdown.CleanShutdown`: what is clean, how long, and who is told when."""

import random
from collections import Counter
from os import environ

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, sample, start
from hdl.metadata.clean_shutdown import CleanShutdown

SHUTDOWNS = 800
MOST_CYCLES = 400
"""For a shutdown."""


class Bench:
    """A host that may give a shutdown up, drives that are flushed, and superblocks.

    The host is as `hdl.nvme.registers.registers` shows it. A flush stays until it is answered, also
    if the host has gone on meanwhile. The answer is as that of `hdl.drive.flusher.FlushAll`.
    """

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(environ["SEED"])
        self.outcomes: Counter[tuple[bool, ...]] = Counter()
        """Shutdowns: the host went on, it still does, all is stored, clean before, and after."""
        self.clean = True
        """Nothing has happened yet. Then: all has been stored, and the host has not gone on."""
        self.went_on = False
        """The host has gone on since the flush began, so something may have been written."""
        self.fell = 0
        """Times that something was lost as soon as all had been stored."""
        for name in ("asked__watches", "asked__flush", "request__flushed", "request__stored"):
            getattr(dut, name).value = 0
        dut.stored.value = 0
        dut.wanted.value = 0
        dut.rests.value = 1

    def begin(self) -> None:
        """Everything runs, from the end of the reset on."""
        cocotb.start_soon(self._write_superblocks())
        cocotb.start_soon(self._look())

    async def _write_superblocks(self) -> None:
        """They are written as ``clean`` changes, and now and then for another reason."""
        dut, written, cycles = self.dut, 0, 0
        while True:
            await FallingEdge(dut.clk)
            clean = sample(dut.clean)
            if clean != written:
                written, cycles = clean, self.random.randint(1, 20)
            elif self.random.random() < 0.02:
                cycles = self.random.randint(1, 10)
            dut.rests.value = int(cycles == 0)
            cycles = max(0, cycles - 1)

    async def _look(self) -> None:
        """Each cycle is what it must be."""
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            flush, wanted, rests = (
                bool(sample(one)) for one in (dut.asked__flush, dut.wanted, dut.rests)
            )
            answered = bool(sample(dut.request__flushed))
            stored = bool(sample(dut.stored))
            assert sample(dut.request__flush) == flush
            assert sample(dut.request__watches) == sample(dut.asked__watches)
            assert sample(dut.asked__stored) == sample(dut.request__stored)
            assert bool(sample(dut.clean)) == self.clean, f"clean is not {self.clean}"
            becomes = answered and stored and not wanted and not self.went_on
            told = bool(sample(dut.asked__flushed))
            assert answered or not told, "told before the drives have answered"
            if not wanted:
                assert not (told and self.clean and not rests), "told before the superblocks rest"
                assert not (told and becomes and not self.clean), "told before it is clean"
            if answered and not self.clean and not becomes:
                assert told, "not told at once, and nothing is clean"
            if answered and self.clean and rests:
                assert told, "not told, and the superblocks rest"
            after = (self.clean or becomes) and not wanted
            assert bool(sample(dut.busy)) == (after != self.clean), "busy is wrong"
            self.clean = after
            self.went_on = flush and (self.went_on or wanted)

    async def _answer(self) -> None:
        """The drives are flushed. Until that ends ``stored`` has no meaning."""
        dut, chance = self.dut, self.random
        for _ in range(chance.choice((0, 1, 10, chance.randrange(60)))):
            dut.stored.value = chance.getrandbits(1)
            dut.request__stored.value = chance.getrandbits(1)
            await RisingEdge(dut.clk)
        stored = chance.random() < 0.7
        dut.stored.value = int(stored)
        dut.request__flushed.value = 1
        # What an array loses from now on counts as well.
        if stored and chance.random() < 0.2:
            await cycles_pass(dut.clk, chance.randint(1, 6))
            if sample(dut.asked__flush) and not sample(dut.asked__flushed):
                self.fell += 1
                dut.stored.value = 0

    async def works(self, cycles: int) -> None:
        """The host wants the controller to work, for so long."""
        self.dut.wanted.value = 1
        await cycles_pass(self.dut.clk, cycles)
        self.dut.wanted.value = 0

    async def shut_down(self, gives_up: float) -> None:
        """A shutdown, until its flush is answered. The host may go on meanwhile, and stop again."""
        dut, chance = self.dut, self.random
        before = self.clean
        dut.asked__watches.value = 1
        await cycles_pass(dut.clk, chance.choice((0, 0, 1, 5)))
        dut.asked__flush.value = 1
        answering = cocotb.start_soon(self._answer())
        wanted, went_on = False, False
        for _ in range(MOST_CYCLES):
            await RisingEdge(dut.clk)
            if sample(dut.asked__flushed):
                break
            wanted = chance.random() < 0.5 if wanted else chance.random() < gives_up
            went_on |= wanted
            dut.wanted.value = int(wanted)
        else:
            raise AssertionError("a shutdown has no end")
        stored = bool(sample(dut.stored))
        answering.cancel()
        dut.asked__flush.value = dut.asked__watches.value = dut.request__flushed.value = 0
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        self.outcomes[went_on, wanted, stored, before, bool(sample(dut.clean))] += 1
        dut.wanted.value = 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(gives_up=[0.0, 0.05])
async def arrays_are_clean_after_a_shutdown(dut, gives_up):
    bench = Bench(dut)
    await start(dut)
    bench.begin()
    for _ in range(SHUTDOWNS):
        if bench.random.random() < 0.7:
            await bench.works(bench.random.randint(1, 10))
        await cycles_pass(dut.clk, bench.random.choice((0, 1, 20)))
        await bench.shut_down(gives_up)
        await cycles_pass(dut.clk, bench.random.choice((0, 1, 30)))
    await cycles_pass(dut.clk, 30)
    assert not sample(dut.busy), "busy at rest"
    assert bench.fell > 10, "nothing was lost late"
    seen = bench.outcomes
    dut._log.info("outcomes: %s", seen)
    assert seen[False, False, True, False, True] and seen[False, False, True, True, True]
    assert seen[False, False, False, False, False]
    if gives_up:
        assert seen[True, False, True, False, False], "nobody went on and stopped before the answer"
        assert any(seen[True, True, True, before, False] for before in (False, True))


def test_clean_shutdown():
    simulate(CleanShutdown(), name="clean_shutdown", module=__name__)


class Believes(CleanShutdown):
    """Planted bug: a flush that was refused has stored everything."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.request.flush & self.request.flushed & ~self.wanted):
            m.d.sync += self.clean.eq(1)
        return m


class GoesOn(CleanShutdown):
    """Planted bug: the host has gone on and stopped since the flush began, and all is clean."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        flushed = self.request.flush & self.request.flushed
        with m.If(flushed & self.stored & ~self.wanted):
            m.d.sync += self.clean.eq(1)
        return m


class Stays(CleanShutdown):
    """Planted bug: once clean, clean for ever."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.clean):
            m.d.sync += self.clean.eq(1)
        return m


class Hurries(CleanShutdown):
    """Planted bug: a shutdown does not wait for the superblocks."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.clean):
            m.d.comb += self.asked.flushed.eq(self.request.flushed)
        return m


class WaitsForEver(CleanShutdown):
    """Planted bug: a shutdown is complete only if everything has been stored."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(~self.stored):
            m.d.comb += self.asked.flushed.eq(0)
        return m


class Sleeps(CleanShutdown):
    """Planted bug: nobody learns that superblocks are to be written as the host goes on."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.wanted):
            m.d.comb += self.busy.eq(0)
        return m


@pytest.mark.parametrize(
    "bug",
    [
        Believes,
        *(
            pytest.param(bug, marks=pytest.mark.slow)
            for bug in (GoesOn, Stays, Hurries, WaitsForEver, Sleeps)
        ),
    ],
)
def test_clean_shutdown_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="arrays_are_clean_after_a_shutdown"):
        simulate(bug(), name=f"clean_shutdown_{bug.__name__}", module=__name__)
