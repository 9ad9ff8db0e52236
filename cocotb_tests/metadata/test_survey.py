"""`hdl.metadata.survey.Survey` on drive ports: what is on drives that come, go, and fail."""

import random

import cocotb
import pytest
from amaranth.hdl import Array

from cocotb_tests.metadata.page_bench import PageBench
from cocotb_tests.metadata.page_room import SIZES, SurveyRoom
from cocotb_tests.metadata.superblock_pages import (
    hostile,
    random_superblock,
)
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, every_cycle, sample, start, wait_until
from hdl.config import BLOCK_BYTES
from hdl.flow.operation import DriveStatus
from hdl.metadata.superblock import BLOCK, Finding
from hdl.metadata.survey import Survey


class Bench(PageBench):
    """Drives that hold pages, and what the survey says of them."""

    def __init__(self, dut, *, seed: int):
        super().__init__(dut, seed=seed, name="survey")
        every_cycle(dut.clk, self._watch())

    def _watch(self):
        ports = range(SIZES.ports)
        handles = [getattr(self.dut, f"drives__{port}__present") for port in ports]
        present = 0
        while True:
            yield
            known = sample(self.dut.known)
            assert not known & ~present, "a drive that was away is known"
            present = sum(sample(handle) << port for port, handle in enumerate(handles))

    def fill(self, port: int) -> None:
        """Another page for a drive."""
        maker = self.random.choice((hostile, good, good, lambda it: it.randbytes(BLOCK_BYTES)))
        drive = self.drives[port]
        drive.storage[BLOCK] = maker(self.random)
        drive.bad_reads = {BLOCK} if self.random.random() < 0.2 else set()
        drive.error = self.random.choice((DriveStatus.MEDIUM_ERROR, DriveStatus.ABORTED))

    async def check(self) -> list[Finding]:
        """Beside that nothing has been written."""
        found = await super().check()
        assert not any(drive.counts.blocks_written for drive in self.drives)
        return found


def good(generator: random.Random) -> bytes:
    """A page of a member."""
    return random_superblock(generator).pack()


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def finds_what_is_there(dut):
    """Drives with any page that come and go, also while they are read."""
    bench = Bench(dut, seed=cocotb.RANDOM_SEED)
    for port in range(SIZES.ports):
        bench.fill(port)
    await start(dut)
    found = await bench.check()
    for _ in range(12):
        for _ in range(bench.random.randint(1, 4)):
            port = bench.random.randrange(SIZES.ports)
            drive = bench.drives[port]
            if drive.present:
                drive.remove()
                await cycles_pass(dut.clk, bench.random.randint(1, 4))
                await wait_until(dut, lambda it=drive: it.idle, cycles=1000, what="its commands")
            bench.fill(port)
            if bench.random.random() < 0.8:
                drive.insert()
            await cycles_pass(dut.clk, bench.random.randrange(2_000))
        found += await bench.check()
    assert {Finding.VALID, Finding.NONE, Finding.UNREADABLE, Finding.IMPOSSIBLE} <= set(found)
    await wait_until(dut, lambda: not sample(dut.busy), cycles=100, what="rest")


class BelievesTheGone(Survey):
    """A planted bug: what was found is believed of the drive that is there by then."""

    def _note(self, m, finding):
        port = self._port
        with m.If(self.present.bit_select(port, 1)):
            m.d.sync += [
                Array(self.findings)[port].eq(finding),
                self.known.bit_select(port, 1).eq(1),
            ]


class NeverForgets(Survey):
    """A planted bug: a drive that has gone is still known."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        for port in range(SIZES.ports):
            with m.If(self.known[port]):
                m.d.sync += self.known[port].eq(1)
        return m


def test_survey():
    simulate(SurveyRoom(config=SIZES), name="survey", module=__name__)


@pytest.mark.parametrize(
    "bug", [pytest.param(BelievesTheGone, marks=pytest.mark.slow), NeverForgets]
)
def test_survey_planted_bugs_are_found(bug):
    room = SurveyRoom(config=SIZES, survey=bug)
    with pytest.raises(SimulationError, match="failed: finds_what_is_there"):
        simulate(room, name=f"survey_{bug.__name__}", module=__name__)
