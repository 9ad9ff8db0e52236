"""Endpoint and shims: the link goes down at any moment, and what was under way ends once."""

import cocotb
import pytest

from cocotb_tests.pcie.hard_block import PAGE_BYTES
from cocotb_tests.pcie.pcie_bench import (
    CONFIG,
    SHIM_WIDTH,
    TIMEOUT,
    Bench,
    EndpointTop,
    copy,
    run_endpoint,
)
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import cycles_pass, sample, wait_until
from hdl.flow.host_memory import Kind


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def link_resets(dut):
    """The link goes down at any moment: what was under way ends, and then all works again."""
    bench = Bench(dut)
    await bench.start()
    host, rng = bench.host, bench.rng
    host.rc.reads.latency_ns = (200, 1500)
    host.rc.reads.shuffle = True
    base, _ = host.allocate(32 * PAGE_BYTES)
    # What is discarded passes at a beat a cycle, and may take less than a timeout.
    blocks = 16 * CONFIG.data_width // 256
    for turn in range(8):
        bench.read.clear()
        bench.written.clear()
        for line in range(blocks):
            bench.fetch(line, bench.pieces(base + 4 + line * PAGE_BYTES, line))
            bench.deliver(line + blocks, bench.pieces(base + 4 + line * PAGE_BYTES, line + blocks))
        await cycles_pass(dut.clk, rng.randrange(50, 1500))
        if turn % 2:
            host.stall_requests(True)
        await cycles_pass(dut.clk, rng.randrange(100))
        await host.reset_link(cycles=rng.choice((1, 2, 100)), discard=dut.host__discard)
        await wait_until(
            dut,
            lambda: (
                len(bench.read) == blocks
                and len(bench.written) == blocks
                and sample(dut.host__idle)
            ),
            cycles=TIMEOUT // 2,
            what="everything ended without a timeout",
        )
        dut.host__discard.value = 0
        host.stall_requests(False)
        await host.restore_bus_master()
        await copy(bench, range(6))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def link_resets_of_unsent_reads(dut):
    """The link goes down while a read that has a tag stands behind a write that the block does not
    take, and another transfer waits for a tag: each ends, and once, however slowly it is taken."""
    bench = Bench(dut, max_payload=1024)
    await bench.start()
    host, rng = bench.host, bench.rng
    base, _ = host.allocate(64 * PAGE_BYTES)
    tags, last = CONFIG.read_tags, CONFIG.lines - 1
    host.rc.reads.shuffle = True
    lists: list[bool] = []

    def ends(done):
        if done.kind is Kind.LIST:
            assert done.index == 5
            lists.append(bool(done.error))
            return
        assert done.index not in bench.read, f"line {done.index} ends twice"
        bench.read[done.index] = bool(done.error)

    bench.read_done._callback = ends

    def fetch(line: int) -> None:
        bench.fetch(line, [(base + line % 60 * PAGE_BYTES, 32, line % 60 * 1024)])

    host.rc.reads.latency_ns = (3000, 3500)
    fetch(0)
    await cycles_pass(dut.clk, 100)
    host.rc.reads.latency_ns = (50_000, 60_000)
    for line in range(1, tags):
        fetch(line)
    await wait_until(dut, lambda: 0 in bench.read, cycles=3000, what="the first read")
    await cycles_pass(dut.clk, 600)
    bench.read.clear()
    host.stall_requests(True)
    await cycles_pass(dut.clk, 10)
    bench.deliver(last, [(base + 60 * PAGE_BYTES, rng.randrange(60, 257), last * 1024)])
    await cycles_pass(dut.clk, 150)
    # Takes the tag that is left, and stands behind the write. The next one waits for a tag.
    fetch(0)
    await cycles_pass(dut.clk, 60)
    bench.read_done.active = rng.choice((0.06, 0.12, 0.2, 0.3))
    bench.read_request.send(
        kind=Kind.LIST, index=5, last=1, address=base, dwords=16, target=0
    )
    await cycles_pass(dut.clk, rng.randrange(40))
    await host.reset_link(cycles=rng.choice((1, 2, 100)), discard=dut.host__discard)
    await wait_until(
        dut,
        lambda: len(bench.read) == tags and len(lists) == 1 and sample(dut.host__idle),
        cycles=TIMEOUT,
        what="every read has ended",
    )


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def link_resets_of_short_reads(dut):
    """The link goes down while many blocks of a read or two each wait, and their ends are taken
    slowly, as what has failed is: each ends, and once."""
    bench = Bench(dut)
    await bench.start()
    host, rng = bench.host, bench.rng
    host.rc.reads.latency_ns = (20_000, 30_000)
    base, _ = host.allocate(32 * PAGE_BYTES)
    lines = min(48, CONFIG.lines)
    for _ in range(6):
        bench.read.clear()
        for line in range(lines):
            # More of them than have tags: some ask for one as the link goes down.
            bench.fetch(line, [(base + (line % 32) * PAGE_BYTES, 128, line * 1024)])
        await cycles_pass(dut.clk, rng.randrange(400, 600))
        bench.read_done.active = 0.12
        await host.reset_link(cycles=rng.choice((1, 2, 100)), discard=dut.host__discard)
        await wait_until(
            dut,
            lambda: len(bench.read) == lines and sample(dut.host__idle),
            cycles=TIMEOUT,
            what="every read has ended",
        )
        bench.read_done.active = 1.0
        dut.host__discard.value = 0
        await host.restore_bus_master()


def run(testcase, shim, **options):
    run_endpoint(testcase, module=__name__, width=SHIM_WIDTH[shim], shim=shim, **options)


@pytest.mark.parametrize("shim", ["ultrascale", pytest.param("series7", marks=pytest.mark.slow)])
def test_link_resets(shim):
    run("link_resets", shim)


@pytest.mark.parametrize("shim", ["ultrascale", "series7"])
@pytest.mark.parametrize("seed", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5))])
def test_link_resets_of_unsent_reads(shim, seed):
    run("link_resets_of_unsent_reads", shim, mps=1024, seed=seed)


@pytest.mark.parametrize("shim", ["ultrascale", pytest.param("series7", marks=pytest.mark.slow)])
def test_link_resets_of_short_reads(shim):
    run("link_resets_of_short_reads", shim, mrrs=512)


class WaitsForTheLost(EndpointTop):
    """Planted bug: reads that were under way at a link reset wait for their completions."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.endpoint.status.link_reset.eq(0)
        return m


@pytest.mark.slow
def test_waiting_for_the_lost_is_found():
    with pytest.raises(SimulationError):
        run("link_resets", "ultrascale", component=WaitsForTheLost())
