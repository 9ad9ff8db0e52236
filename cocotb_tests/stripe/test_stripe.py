"""Gatherer and sequencer together: random commands end up on the drives, with their parity."""



import cocotb
import pytest

from cocotb_tests.runner import converted, simulate
from cocotb_tests.streams import start
from cocotb_tests.stripe.stripe_bench import ARRAYS, CONFIG, Bench, Stripe, bench_of
from hdl.flow.host_command import Status
from hdl.flow.walk import WalkResult


async def random_commands(bench: Bench, *, count: int) -> None:
    head = bench.random.randrange(100)
    for _ in range(count):
        read = bench.array.parities and bench.random.random() < 0.2
        blocks = bench.random.choice((1, 1, 2, 4, 16, 32))
        if bench.random.random() < 0.3:
            await bench.command(head, blocks)
            head = (head + blocks) % 120
        else:
            first, gathered = bench.random.randrange(120), read and bench.random.random() < 0.6
            for begin in (first, first + blocks)[: 1 + gathered]:
                await bench.command(begin, blocks, read=read, gathered=gathered)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def stores_what_the_host_wrote(dut):
    bench = bench_of(dut)
    await start(dut)
    await random_commands(bench, count=60)
    await bench.settle()
    bench.check_drives()
    assert set(bench.statuses) == {Status.SUCCESS}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def keeps_data_through_failures(dut):
    bench = bench_of(dut)
    await start(dut)
    bench.errors = 0.02
    bench.drives.aborts = 0.01
    await random_commands(bench, count=20)
    tolerated = bench.array.parities or bench.array.copies - 1
    for port in bench.random.sample(bench.array.ports[: bench.array.width], tolerated):
        bench.drives.gone.add(port)
        await random_commands(bench, count=20)
    await bench.settle()
    bench.failed |= bench.drives.gone
    bench.check_drives()
    assert set(bench.statuses) <= {Status.SUCCESS, Status.DATA_TRANSFER_ERROR}


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def walks_rows_that_the_host_writes(dut):
    """Parities made anew meanwhile belong to what was written, whoever came first."""
    bench = bench_of(dut)
    await start(dut)
    await random_commands(bench, count=20)
    walking = cocotb.start_soon(bench.walk_rows(40))
    await random_commands(bench, count=20)
    await walking
    await bench.settle()
    bench.check_drives()
    assert set(bench.statuses) == {Status.SUCCESS}
    assert bool(bench.rewritten) == bench.array.mirrored
    assert bench.walked[WalkResult.MENDED] == bench.rewritten
    assert bench.walked[WalkResult.GOOD] == 40 - bench.rewritten


LESS_OFTEN = ("raid5", "raid6")
"""Arrays of the long suite only."""


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[pytest.mark.slow] if array in LESS_OFTEN else [])
        for array in ARRAYS
    ],
)
def test_stripe(array):
    simulate(
        converted(Stripe, config=CONFIG),
        name="stripe",
        module=__name__,
        testcase=("stores_what_the_host_wrote", "keeps_data_through_failures"),
        parameters={"ARRAY": array, "SEED": "1"},
    )


@pytest.mark.parametrize("array", ["raid10", "raid6"])
def test_walks(array):
    simulate(
        converted(Stripe, config=CONFIG),
        name="stripe",
        module=__name__,
        testcase="walks_rows_that_the_host_writes",
        parameters={"ARRAY": array, "SEED": "1"},
    )
