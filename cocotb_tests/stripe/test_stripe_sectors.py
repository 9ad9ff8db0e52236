"""Blocks written in part, gatherer and sequencer together: no sector is lost, whatever fails."""

import os

import cocotb
import pytest
from amaranth.hdl import Const

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import start
from cocotb_tests.stripe.stripe_bench import ARRAYS, CONFIG, Bench, Stripe, bench_of
from cocotb_tests.stripe.stripe_models import BLOCK
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.host_command import Status
from hdl.stripe.gather import gather


async def random_sectors(bench: Bench, *, count: int, room: int = 40) -> None:
    """Few blocks, many writers: whole and in part, in one block and across many."""
    for _ in range(count):
        blocks = bench.random.choice((1, 1, 1, 2, 3, 16))
        head, tail = bench.random.randrange(BLOCK), bench.random.randrange(BLOCK)
        if blocks == 1 and head + tail >= BLOCK:
            head = 0
        if bench.random.random() < 0.3:
            head = tail = 0
        read = bool(bench.array.parities) and bench.random.random() < 0.2
        place = bench.random.randrange(room)
        if read:
            head = tail = 0
        await bench.command(place, blocks, read=read, head=head, tail=tail)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def stores_sectors(dut):
    bench = bench_of(dut)
    await start(dut)
    bench.drives.unreached = 0.05
    await random_sectors(bench, count=80)
    await bench.settle()
    bench.check_drives()
    assert set(bench.statuses) == {Status.SUCCESS}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def stores_sectors_through_failures(dut):
    bench = bench_of(dut)
    await start(dut)
    bench.errors = 0.05
    bench.drives.aborts = 0.01
    await random_sectors(bench, count=25)
    tolerated = bench.array.parities or bench.array.copies - 1
    for port in bench.random.sample(bench.array.ports[: bench.array.width], tolerated):
        bench.drives.gone.add(port)
        await random_sectors(bench, count=25)
    await bench.settle()
    bench.failed |= bench.drives.gone
    bench.check_drives()
    assert set(bench.statuses) <= {Status.SUCCESS, Status.DATA_TRANSFER_ERROR}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def fills_around_unreadable_blocks(dut):
    """Blocks of one drive cannot be read: another copy or parity gives them, or the write fails."""
    bench = bench_of(dut)
    await start(dut)
    for row in range(40):
        bench.drives.unreadable.add((bench.array.port(1), DATA_OFFSET_BLOCKS + row))
    redundant = bench.array.parities or bench.array.mirrored
    bench.may_lose = not redundant
    for _ in range(60):
        head = bench.random.randrange(BLOCK)
        tail = bench.random.randrange(BLOCK - head)
        await bench.command(bench.random.randrange(40), 1, head=head, tail=tail)
    await bench.settle()
    bench.check_drives()
    lost = bench.statuses.pop(Status.UNRECOVERED_READ, 0)
    assert set(bench.statuses) == {Status.SUCCESS}
    assert bool(lost) == (not redundant)


SECTOR_TESTS = (
    "stores_sectors",
    "stores_sectors_through_failures",
    "fills_around_unreadable_blocks",
)


def run_sectors(array: str, design: Stripe, name: str = "stripe") -> None:
    simulate(
        design,
        name=name,
        module=__name__,
        testcase=SECTOR_TESTS,
        parameters={"ARRAY": array, "SEED": os.environ.get("SEED") or "1"},
    )


@pytest.mark.parametrize("array", ["raid10", "raid5"])
def test_stripe_sectors(array):
    run_sectors(array, Stripe(config=CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("array", sorted(ARRAYS.keys() - {"raid10", "raid5"}))
def test_stripe_sectors_elsewhere(array):
    run_sectors(array, Stripe(config=CONFIG))


@pytest.mark.slow
def test_sectors_of_another_strip_are_caught(monkeypatch):
    """The host's sectors are fetched into the line of data strip 0."""
    monkeypatch.setattr(gather, "lowest_bit", lambda m, mask, name: Const(0, 5))
    with pytest.raises(SimulationError, match="stores_sectors"):
        run_sectors("raid5", Stripe(config=CONFIG), "stripe_mutant_strip")


@pytest.mark.slow
def test_blocks_that_are_not_filled_are_caught():
    with pytest.raises(SimulationError, match="stores_sectors"):
        run_sectors("raid5", Stripe(config=CONFIG, marks=False), "stripe_mutant_marks")
