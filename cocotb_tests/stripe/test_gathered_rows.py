"""Rows of gathered reads in the sequencer: each block once, the lost ones from the others."""

from collections import Counter
from functools import partial

import cocotb
import pytest

from cocotb_tests.streams import start
from cocotb_tests.stripe.row_runs import KeepsLines, TrustsStaleDrives, must_catch, run_rows
from cocotb_tests.stripe.sequencer_bench import ARRAYS, ROW_STEP, Bench, random_rows, some_rows
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.host_command import Status
from hdl.flow.operation import Opcode
from hdl.flow.row import RowKind
from hdl.stripe.rows.sequencer import Sequencer

SPAN = 8
"""Rows that are written, and then read again and again."""


class ReadBench(Bench):
    """Also knows which blocks of a row are lost, and for which the host was told so."""

    def __init__(self, dut, config, array, *, seed: int, active: float):
        super().__init__(dut, config, array, seed=seed, active=active)
        self.refused: Counter[tuple[int, int]] = Counter()

    def _cannot_be_read(self, place: tuple[int, int]) -> bool:
        return place[0] in self.failed or place in self.drives.unreadable

    def lost(self, row: int) -> set[int]:
        """Data strips that their drives cannot give."""
        strips = range(self.array.data)
        return {one for one in strips if self._cannot_be_read(self.strip_places(row, one)[0])}

    def parities_lost(self, row: int) -> int:
        return sum(self._cannot_be_read(place) for place in self.parity_places(row))

    def _recover_failed(self, event) -> None:
        row, index = self.by_command[event.slot]
        self.refused[row.row, index] += 1
        super()._recover_failed(event)

    async def write_all(self) -> None:
        for row in some_rows(SPAN):
            await self.begin(row, joined=list(range(self.strips(row))))
        await self.settle()

    async def read_some(self, rows: int) -> Counter[tuple[int, int]]:
        """Gathers random blocks of random rows; which ones, by row and strip."""
        asked: Counter[tuple[int, int]] = Counter()
        for _ in range(rows):
            row = ROW_STEP * self.random.randrange(SPAN)
            strips = range(self.strips(row))
            joined = sorted(self.random.sample(strips, self.random.randint(1, len(strips))))
            asked.update((row, index) for index in joined)
            await self.begin(row, joined=joined, kind=RowKind.RECOVER, gathered=True)
        return asked


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reads_only_what_joined(dut):
    """With all drives, or with parities lost only, nothing else is read and nothing computed."""
    bench = ReadBench.from_environment(dut)
    await start(dut)
    await bench.write_all()
    for row in some_rows(SPAN):
        bench.drives.unreadable.add(bench.parity_places(row)[0])
    bench.drives.counts.clear()
    passes = bench.parity.passes
    asked = await bench.read_some(40)
    await bench.settle()
    assert bench.recovered == asked.total() and not bench.refused
    assert bench.drives.counts[Opcode.READ] == asked.total()
    assert bench.parity.passes == passes


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def works_out_what_is_lost(dut):
    """Drives go, down to none to spare: each row costs as many reads as it has live roles."""
    bench = ReadBench.from_environment(dut)
    await start(dut)
    await bench.write_all()
    for port in bench.random.sample(bench.array.ports[: bench.array.width], bench.array.parities):
        bench.fail(port)
        bench.drives.counts.clear()
        before = bench.recovered
        asked = await bench.read_some(40)
        await bench.settle()
        assert bench.recovered - before == asked.total() and not bench.refused
        assert bench.drives.counts[Opcode.READ] <= 40 * bench.array.data
    assert bench.parity.passes


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def keeps_every_block_that_can_be_read(dut):
    """Unreadable blocks up to one more than tolerated, drives that abort: only what is lost fails,
    and the others of its row are delivered."""
    bench = ReadBench.from_environment(dut)
    array = bench.array
    await start(dut)
    await bench.write_all()
    bench.drives.aborts = 0.02
    bench.drives.unreached = 0.1
    refusals = 0
    for _ in range(4):
        for row in some_rows(SPAN):
            bench.erase_unreadable(row, bench.random.randint(0, array.parities + 1))
        hopeless = set()
        for row in some_rows(SPAN):
            lost = bench.lost(row)
            if len(lost) + bench.parities_lost(row) > array.parities:
                hopeless |= {(row, index) for index in lost}
        bench.refused.clear()
        asked = await bench.read_some(40)
        await bench.settle()
        expected = {key: count for key, count in asked.items() if key in hopeless}
        assert bench.refused == expected, f"{bench.refused}, expected {expected}"
        refusals += bench.refused.total()
        bench.drives.unreadable.clear()
    assert refusals and not bench.failed


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reads_beside_writes(dut):
    """Gathered reads and writes of the same rows, while drives go."""
    bench = ReadBench.from_environment(dut)
    await start(dut)
    await bench.write_all()
    ports = bench.random.sample(bench.array.ports[: bench.array.width], bench.array.parities)
    for port in (None, *ports):
        if port is not None:
            bench.drives.gone.add(port)
        for _ in range(12):
            await random_rows(bench, rows=3, span=SPAN, recover=0)
            await bench.read_some(3)
    await bench.settle()
    bench.failed |= bench.drives.gone
    bench.check_drives()
    assert not bench.refused and bench.write_faults == 0


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def leaves_stale_drives_alone(dut):
    """What a drive that is being rebuilt should have is worked out as if it had failed."""
    bench = ReadBench.from_environment(dut)
    await start(dut)
    await bench.write_all()
    for port in bench.random.sample(bench.array.ports[: bench.array.width], 2):
        dut.drives__stale.value = 1 << port
        bench.drives.distrusted = {(port, DATA_OFFSET_BLOCKS + row) for row in some_rows(SPAN)}
        await bench.read_some(20)
        await bench.settle()
    assert bench.recovered and not bench.refused


WORK = (
    "reads_only_what_joined",
    "leaves_stale_drives_alone",
    "works_out_what_is_lost",
    "keeps_every_block_that_can_be_read",
    "reads_beside_writes",
)


class DeliversNeighbour(Sequencer):
    """A planted bug: of an odd data strip the line of another is delivered."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.planning.line_read.address[0].eq(0)
        return m


class DistrustsDrives(Sequencer):
    """A planted bug: all that joined is taken for lost."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.planning.row_read.data.gathered.eq(0)
        return m


class HidesLosses(Sequencer):
    """A planted bug: a block that is lost for good ends as a success."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.recover_failed.payload.status.eq(Status.SUCCESS)
        return m


MUTANTS = {
    DeliversNeighbour: "reads_only_what_joined",
    DistrustsDrives: "reads_only_what_joined",
    HidesLosses: "keeps_every_block_that_can_be_read",
    KeepsLines: "works_out_what_is_lost",
    TrustsStaleDrives: "leaves_stale_drives_alone",
}


sequence = partial(run_rows, module=__name__)

FEW = ("raid5", "triple")
"""Arrays of the default suite."""


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[] if array in FEW else [pytest.mark.slow])
        for array, model in ARRAYS.items()
        if model.parities
    ],
)
def test_gathered_rows(array):
    sequence(Sequencer, array=array, testcase=WORK)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.slow
def test_planted_bug_is_caught(mutant):
    must_catch(mutant, module=__name__, array="raid5", testcase=MUTANTS[mutant])
