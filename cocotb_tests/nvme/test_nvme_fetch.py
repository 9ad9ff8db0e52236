"""Submission queue entries on their way: what SQHD says of them, and who may wait for whom."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.nvme.nvme_heads import TellsWhatWasAskedFor
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import wait_until
from hdl.nvme.queues.fetch_plan import FetchPlan
from hdl.nvme.queues.queues import QueueEngine
from sim.golden import nvme, nvme_logs

VOLUME_BLOCKS = 5000
ABORTED, NOT_ABORTED = 0, 1

EACH = 30
"""Commands a queue: both together take all slots and places of the inbox, and more wait."""

ADMIN_CYCLES = 6000
"""Bound for an admin command that waits for no drive; the longest builds a page."""


async def bench(dut, **options) -> Bench:
    config = bench_config(int(os.environ["DATA_WIDTH"]))
    host = Bench(dut, config, int(os.environ["SEED"]), **options)
    host.volumes = {0: {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}}
    await host.reset()
    await host.enable()
    for number in (1, 2):
        await host.create_pair(number, 64)
    return host


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def heads_tell_what_has_arrived(dut):
    """A command ends while entries behind it are being read: SQHD does not cover these."""
    host = await bench(dut)
    pair = host.queues[1]
    for count in (1, 3, 20):
        host.hold = True
        first = host.place(pair, opcode=nvme.FLUSH, nsid=1)
        begin = len(host.commands)
        await host.ring(pair)
        await wait_until(
            dut, lambda n=begin: len(host.commands) > n, cycles=2000, what="the first command"
        )
        head = pair.sq_tail
        host.hold_entries = True
        reads = host.entry_reads
        others = [host.place(pair, opcode=nvme.FLUSH, nsid=1) for _ in range(count)]
        await host.ring(pair)
        await wait_until(
            dut, lambda n=reads: host.entry_reads > n, cycles=2000, what="the read of the others"
        )
        host.hold = False
        answer = await host.result(pair, first)
        assert answer.sq_head == head, f"SQHD {answer.sq_head}, but {head} has arrived"
        host.hold_entries = False
        for identifier in others:
            assert (await host.result(pair, identifier)).code == nvme.SUCCESS
        assert pair.sq_head == pair.sq_tail, "the host was not given its slots back"
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_head_of_the_admin_queue_tells_what_has_arrived(dut):
    """An event is reported while the next admin command is being read: SQHD does not cover that."""
    host = await bench(dut)
    admin = host.queues[0]
    event = host.place(admin, opcode=nvme.ASYNC_EVENT)
    await host.ring(admin)
    await host.settle()
    head = admin.sq_tail
    host.hold_admin_entries = True
    reads = host.entry_reads
    other = host.place(admin, opcode=nvme.GET_FEATURES, dwords=(4,))
    await host.ring(admin)
    await wait_until(dut, lambda: host.entry_reads > reads, cycles=2000, what="the read")
    await host.write32(nvme.DOORBELLS + 8, 0xFFFF)  # no such entry: an event
    answer = await host.result(admin, event)
    assert answer.sq_head == head, f"SQHD {answer.sq_head}, but {head} has arrived"
    host.hold_admin_entries = False
    assert (await host.result(admin, other)).code == nvme.SUCCESS
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def slots_are_used_again_at_once(dut):
    """Queues always as full as SQHD allows, entries that come late, slots overwritten at once."""
    host = await bench(dut, active=1.0)
    host.latency = 200
    pairs = [host.queues[number] for number in (1, 2)]
    count = left = 300

    def take() -> bool:
        nonlocal left
        for pair in pairs:
            assert all(answer.code == nvme.SUCCESS for answer in pair.done.values())
            left -= len(pair.done)
            pair.done.clear()
        return not left

    unplaced = count
    while unplaced:
        for pair in pairs:
            more = (pair.sq_head - pair.sq_tail - 1) % pair.entries
            more = min(more, unplaced, host.random.randint(0, 6))
            more = min(more, pair.entries - 1 - len(pair.waiting))
            for _ in range(more):
                host.place(pair, opcode=nvme.FLUSH, nsid=1)
            unplaced -= more
            if more:
                await host.ring(pair)
        await ClockCycles(dut.clk, host.random.randint(1, 60))
        take()
    await wait_until(dut, take, cycles=20_000, what="the last commands")
    assert len(host.commands) == count, "a command was lost, or executed twice"
    await host.settle()


async def fill(host: Bench, opcode: int, blocks: int) -> list[tuple]:
    """Both I/O queues as full as can be of commands that do not end."""
    host.hold = True
    placed = []
    for number in (1, 2):
        pair = host.queues[number]
        _, prp1, prp2 = host.buffer(min(blocks, host.config.transfer_blocks))
        for _ in range(EACH):
            fields = {"opcode": nvme.FLUSH, "nsid": 1}
            if opcode != nvme.FLUSH:
                fields = nvme.read_write(opcode, 1, host.random.randrange(1000), blocks)
                fields |= {"prp1": prp1, "prp2": prp2}
            placed.append((number, host.place(pair, **fields)))
        await host.ring(pair)
    await ClockCycles(host.dut.clk, 4000)
    return placed


async def admin_works(host: Bench, placed: list[tuple]) -> tuple[int, list[int]]:
    """Every kind of admin command that waits for no drive, behind Aborts that may wait for what
    they have aborted. The cycles of the slowest, and the Aborts."""
    admin = host.queues[0]
    slowest = 0
    aborts = []
    for number, identifier in (placed[0], placed[-1], host.random.choice(placed)):
        aborts.append(host.place(admin, opcode=nvme.ABORT, dwords=(identifier << 16 | number,)))
        await host.ring(admin)

    async def ends(code: int = nvme.SUCCESS, **fields):
        nonlocal slowest
        identifier = host.place(admin, **fields)
        began = host.cycle
        await host.ring(admin)
        answer = await host.result(admin, identifier, cycles=ADMIN_CYCLES)
        slowest = max(slowest, host.cycle - began)
        assert answer.code == code, f"{fields}: {answer}"
        return answer

    await ends(opcode=nvme.SET_FEATURES, dwords=(4, 400))
    assert (await ends(opcode=nvme.GET_FEATURES, dwords=(4,))).result == 400
    for page in (nvme_logs.SMART_LOG, nvme_logs.ERROR_LOG):
        await ends(opcode=nvme.GET_LOG, dwords=(page | 127 << 16,), prp1=host.page())
    await ends(opcode=nvme.IDENTIFY, dwords=(1,), prp1=host.page())
    await ends(nvme.INVALID_OPCODE, opcode=0x7F)
    request = host.place(admin, opcode=nvme.ASYNC_EVENT)
    await host.ring(admin)
    answer = await ends(opcode=nvme.ABORT, dwords=(request << 16,))
    assert answer.result == ABORTED
    assert (await host.result(admin, request)).code == nvme.ABORT_REQUESTED
    return slowest, aborts


async def aborts_end(host: Bench, aborts: list[int]) -> None:
    """What has been aborted has ended."""
    for identifier in aborts:
        answer = await host.result(host.queues[0], identifier, cycles=ADMIN_CYCLES)
        assert answer.code == nvme.SUCCESS and answer.result in (ABORTED, NOT_ABORTED)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def admin_waits_for_no_io(dut):
    """Nothing ends, every slot and every place of the inbox is taken: admin commands go on."""
    host = await bench(dut)
    for opcode, blocks in (
        (nvme.FLUSH, 1),
        (nvme.WRITE, 4),
        (nvme.VERIFY, 16),
    ):
        host.hold_lists = opcode == nvme.WRITE
        placed = await fill(host, opcode, blocks)
        took, aborts = await admin_works(host, placed)
        print(f"{opcode:#x}: the slowest admin command took {took} cycles")
        host.hold = host.hold_lists = False
        for number, identifier in placed:
            answer = await host.result(host.queues[number], identifier, cycles=100_000)
            assert answer.code in (nvme.SUCCESS, nvme.ABORT_REQUESTED), answer
        await aborts_end(host, aborts)
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def admin_waits_for_no_data_path(dut):
    """The same while the data path takes no command at all, in the midst of long ones."""
    host = await bench(dut)
    host.latency = 400
    for blocks in (1, 16):
        filling = cocotb.start_soon(fill(host, nvme.VERIFY, blocks))
        await ClockCycles(dut.clk, 1000)
        host.command_sink.paused = True
        placed = await filling
        host.hold = False  # commands that have begun end; parts and commands behind them cannot go
        await ClockCycles(dut.clk, 2000)
        _, aborts = await admin_works(host, placed)
        host.command_sink.paused = False
        for number, identifier in placed:
            answer = await host.result(host.queues[number], identifier, cycles=400_000)
            assert answer.code in (nvme.SUCCESS, nvme.ABORT_REQUESTED), answer
        await aborts_end(host, aborts)
    await host.settle()


@pytest.mark.parametrize("data_width", [pytest.param(64, marks=pytest.mark.slow), 256])
def test_nvme_fetch(data_width):
    run_front_end(__name__, data_width=data_width)


class SharesRoom(FetchPlan):
    """A planted bug: admin entries need a place in the inbox that others can have taken."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.admin & (self.room == 0)):
            m.d.sync += self.empty.eq(1)
        return m


class TellsWhatAdminAskedFor(QueueEngine):
    """A planted bug: SQHD of the admin queue covers what is being read."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self._admin_head.eq(self._admin_asked)
        return m


@pytest.mark.parametrize(
    ("place", "mutant", "testcase", "message"),
    [
        (
            "hdl.nvme.front_end.QueueEngine",
            TellsWhatAdminAskedFor,
            "the_head_of_the_admin_queue_tells_what_has_arrived",
            "has not arrived|has arrived",
        ),
        (
            "hdl.nvme.queues.queues.EntryRing",
            TellsWhatWasAskedFor,
            "heads_tell_what_has_arrived",
            "has not arrived|has arrived",
        ),
        (
            "hdl.nvme.queues.queues.FetchPlan",
            SharesRoom,
            "admin_waits_for_no_io",
            "of queue 0: not within",
        ),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_caught(monkeypatch, place, mutant, testcase, message):
    monkeypatch.setattr(place, mutant)
    with pytest.raises(SimulationError, match=message):
        run_front_end(__name__, name=f"nvme_{mutant.__name__}", testcase=testcase)
