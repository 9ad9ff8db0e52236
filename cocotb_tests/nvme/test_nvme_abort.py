"""Abort of I/O commands: those that wait for their PRP list, and long ones between their parts."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import wait_until
from hdl.flow.host_command import Status
from hdl.nvme.admin.admin import Admin
from hdl.nvme.commands.slots import SlotTable
from sim.golden import nvme

VOLUME_BLOCKS = 5000
ABORTED, NOT_ABORTED = 0, 1
SOON = 600
"""Cycles in which an admin command that waits for nothing ends."""


async def bench(dut, **options) -> Bench:
    config = bench_config(int(os.environ["DATA_WIDTH"]))
    host = Bench(dut, config, int(os.environ["SEED"]), **options)
    entry = {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}
    host.volumes = {0: entry, 2: entry}
    await host.reset()
    await host.enable()
    for number in (1, 2):
        await host.create_pair(number, 32)
    return host


async def abort(host, queue: int, identifier: int) -> int:
    return await host.good(opcode=nvme.ABORT, dwords=(identifier << 16 | queue,))


def place(host, queue: int, opcode: int, blocks: int) -> int:
    """Puts a command into a queue; where it needs a list, it has one."""
    _, prp1, prp2 = host.buffer(min(blocks, host.config.transfer_blocks))
    block = host.random.randrange(VOLUME_BLOCKS - blocks)
    fields = nvme.read_write(opcode, 1, block, blocks)
    return host.place(host.queues[queue], **fields, prp1=prp1, prp2=prp2)


async def ended(host, queue: int, identifier: int) -> int:
    return (await host.result(host.queues[queue], identifier)).code


async def start_abort(host, queue: int, identifier: int) -> int:
    """An Abort that is not waited for; returns after long enough for it to end, if it can."""
    admin = host.queues[0]
    number = host.place(admin, opcode=nvme.ABORT, dwords=(identifier << 16 | queue,))
    await host.ring(admin)
    await ClockCycles(host.dut.clk, SOON)
    return number


async def said(host, number: int) -> int:
    """What an Abort has said. `Bench` checks that what it has aborted has ended before."""
    answer = await host.result(host.queues[0], number)
    assert answer.code == nvme.SUCCESS
    return answer.result


async def admin_goes_on(host) -> None:
    """Admin commands do not wait for an Abort that waits."""
    await host.good(opcode=nvme.GET_FEATURES, dwords=(7,))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def commands_that_wait_for_lists(dut):
    """An Abort ends after the command: not while its list has not come."""
    host = await bench(dut)
    host.hold_lists = True
    placed = [(queue, place(host, queue, nvme.READ, 4)) for queue in (1, 2, 1, 2, 1)]
    for queue in (1, 2):
        await host.ring(host.queues[queue])
    await ClockCycles(dut.clk, 600)
    # The same identifier in another queue is another command.
    queue, victim = placed[2]
    while any(other == (3 - queue, victim) for other in placed):
        raise AssertionError("choose another seed")
    assert await abort(host, 3 - queue, victim) == NOT_ABORTED
    assert await abort(host, 3, victim) == NOT_ABORTED
    aborts = [await start_abort(host, *placed[number]) for number in (2, 4)]
    # What has been aborted already is not aborted again.
    assert await abort(host, queue, victim) == NOT_ABORTED
    await admin_goes_on(host)
    assert not host.queues[0].done, "an Abort ended before the command"
    # A bad list of an aborted command is of no interest.
    host.hold_lists = False
    for number, (queue, identifier) in enumerate(placed):
        wanted = nvme.ABORT_REQUESTED if number in (2, 4) else nvme.SUCCESS
        assert await ended(host, queue, identifier) == wanted
        assert await abort(host, queue, identifier) == NOT_ABORTED
    assert [await said(host, number) for number in aborts] == [ABORTED, ABORTED]
    assert len(host.commands) == 3
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def long_commands(dut):
    host = await bench(dut)
    most = host.config.transfer_blocks
    for opcode in (nvme.VERIFY, nvme.WRITE_ZEROES):
        for status in (Status.SUCCESS, Status.WRITE_FAULT):
            host.commands.clear()
            host.hold = True
            victim = place(host, 1, opcode, 9 * most)
            other = place(host, 1, opcode, 3 * most)
            await host.ring(host.queues[1])
            await wait_until(dut, lambda: len(host.commands) == 2, cycles=2000, what="first parts")
            first = host.commands[0]
            host.statuses = {(first.volume, first.block): status}
            number = await start_abort(host, 1, victim)
            assert await abort(host, 1, victim) == NOT_ABORTED
            await admin_goes_on(host)
            assert not host.queues[0].done, "an Abort ended before the command"
            host.hold = False
            assert await ended(host, 1, victim) == nvme.ABORT_REQUESTED
            assert await said(host, number) == ABORTED
            assert await ended(host, 1, other) == nvme.SUCCESS
            assert len(host.commands) == 1 + 3, "an aborted command went on"
            assert await abort(host, 1, victim) == NOT_ABORTED
            host.statuses = {}
    # The last part, or the only one, cannot be stopped; nor can one that failed be found.
    for opcode, blocks in ((nvme.VERIFY, most), (nvme.READ, 1), (nvme.FLUSH, 1)):
        host.hold = True
        victim = place(host, 1, opcode, blocks)
        await host.ring(host.queues[1])
        count = len(host.commands)
        await wait_until(dut, lambda n=count: len(host.commands) > n, cycles=2000, what="command")
        assert await abort(host, 1, victim) == NOT_ABORTED
        host.hold = False
        assert await ended(host, 1, victim) == nvme.SUCCESS
    host.commands.clear()
    host.hold = True
    victim = place(host, 1, nvme.VERIFY, 4 * most)
    await host.ring(host.queues[1])
    await wait_until(dut, lambda: bool(host.commands), cycles=2000, what="command")
    first = host.commands[0]
    host.statuses = {(first.volume, first.block): Status.UNRECOVERED_READ}
    host.hold = False
    assert await ended(host, 1, victim) == nvme.UNRECOVERED_READ
    assert await abort(host, 1, victim) == NOT_ABORTED
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def what_abort_says_is_true(dut):
    """Aborts at any moment of any command: each ends as its Abort has said."""
    host = await bench(dut, active=0.6)
    told = {ABORTED: 0, NOT_ABORTED: 0}
    for _ in range(5):
        placed = []
        for _ in range(10):
            queue = host.random.choice((1, 2))
            opcode, most = host.random.choice(
                ((nvme.READ, 6), (nvme.WRITE, 6), (nvme.VERIFY, 60), (nvme.WRITE_ZEROES, 60))
            )
            placed.append((queue, place(host, queue, opcode, host.random.randint(1, most))))
        host.hold_lists = host.random.random() < 0.5
        for queue in (1, 2):
            await host.ring(host.queues[queue])
        await ClockCycles(dut.clk, host.random.randrange(400))
        victims = host.random.sample(placed, 5)
        aborts = {}
        for victim in victims:
            queue, identifier = victim
            aborts[victim] = host.place(
                host.queues[0], opcode=nvme.ABORT, dwords=(identifier << 16 | queue,)
            )
            await host.ring(host.queues[0])
            await ClockCycles(dut.clk, host.random.randrange(200))
        host.hold_lists = False
        answers = {victim: await said(host, number) for victim, number in aborts.items()}
        for queue, identifier in placed:
            code = await ended(host, queue, identifier)
            answer = answers.get((queue, identifier))
            assert (code == nvme.ABORT_REQUESTED) == (answer == ABORTED), (
                f"{code:#x}, said {answer}"
            )
            if answer is not None:
                told[answer] += 1
    assert min(told.values()) > 2, f"one-sided: {told}"
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def an_abort_that_waits_holds_nothing_up(dut):
    """While it waits its queue is deleted, or the controller is shut down or disabled."""
    host = await bench(dut)
    most = host.config.transfer_blocks
    admin = host.queues[0]
    for lists in (False, True):
        for end in ("deleted", "shut down", "disabled"):
            host.hold, host.hold_lists = not lists, lists
            opcode, blocks = (nvme.READ, 4) if lists else (nvme.WRITE_ZEROES, 3 * most)
            victim = place(host, 1, opcode, blocks)
            await host.ring(host.queues[1])
            await ClockCycles(dut.clk, 600)
            number = await start_abort(host, 1, victim)
            deletion = 0
            if end == "deleted":
                deletion = host.place(admin, opcode=nvme.DELETE_SQ, dwords=(1,))
                await host.ring(admin)
            else:
                kind = nvme.CC_SHUTDOWN_NORMAL if end == "shut down" else -nvme.CC_ENABLE
                await host.write32(nvme.CC, nvme.CC_ENABLE + kind)
            await ClockCycles(dut.clk, SOON)
            assert not admin.done, "something ended that had to wait"
            host.hold = host.hold_lists = False
            if end == "disabled":
                await host.wait_status(0)
                assert not admin.done, "an entry was posted after the controller was disabled"
            else:
                assert await ended(host, 1, victim) == nvme.ABORT_REQUESTED
                assert await said(host, number) == ABORTED
            if end == "deleted":
                assert (await host.result(admin, deletion)).code == nvme.SUCCESS
            if end == "shut down":
                await host.wait_status(nvme.CSTS_READY | nvme.CSTS_SHUTDOWN_COMPLETE)
            await host.write32(nvme.CC, 0)
            await host.wait_status(0)
            await host.enable()
            admin = host.queues[0]
            for queue in (1, 2):
                await host.create_pair(queue, 32)
    await host.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def requests_for_events_end_first(dut):
    """Asynchronous Event Requests are aborted while the queues have much to do."""
    host = await bench(dut, active=1.0)
    host.latency = 4
    admin, pair = host.queues[0], host.queues[1]
    _, prp1, _ = host.buffer(1)
    loading = True

    async def load():
        while loading:
            await wait_until(dut, lambda: len(pair.waiting) < 24, cycles=5000, what="an end")
            while len(pair.waiting) < 24:
                block = host.random.randrange(VOLUME_BLOCKS)
                host.place(pair, **nvme.read_write(nvme.READ, 1, block, 1), prp1=prp1)
            await host.ring(pair)
            pair.done.clear()

    task = cocotb.start_soon(load())
    for _ in range(60):
        request = host.place(admin, opcode=nvme.ASYNC_EVENT)
        await host.ring(admin)
        await ClockCycles(dut.clk, 200 + host.random.randrange(20))
        assert await abort(host, 0, request) == ABORTED
        assert (await host.result(admin, request)).code == nvme.ABORT_REQUESTED
    loading = False
    await task
    await wait_until(dut, lambda: not pair.waiting, cycles=20_000, what="the last reads")
    pair.done.clear()
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def requests_without_room_stay(dut):
    """The Abort has the last place in the admin completion queue: the request goes on waiting."""
    host = await bench(dut)
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.enable(cq_entries=2)
    admin = host.queues[0]
    request = host.place(admin, opcode=nvme.ASYNC_EVENT)
    await host.ring(admin)
    await ClockCycles(dut.clk, 400)
    for _ in range(3):
        assert await abort(host, 0, request) == NOT_ABORTED
    await ClockCycles(dut.clk, SOON)
    assert request in admin.waiting, "a request ended although it was not aborted"
    await host.write32(nvme.DOORBELLS + 0xFF0, 1)
    assert (await host.result(admin, request)).code == nvme.SUCCESS
    assert await abort(host, 0, request) == NOT_ABORTED
    await host.settle()


def test_nvme_abort():
    run_front_end(__name__)


class AlwaysFound(SlotTable):
    """A planted bug: whatever an Abort looks for is found, so nobody ends the Abort."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.abort_access.found.eq(1)
        return m


class SaysSoAnyway(Admin):
    """A planted bug: Abort says that a request has been aborted whose entry has no room."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.events.reports.posted.eq(1)
        return m


@pytest.mark.parametrize(
    ("block", "testcase"),
    [(AlwaysFound, "what_abort_says_is_true"), (SaysSoAnyway, "requests_without_room_stay")],
)
@pytest.mark.slow
def test_planted_bug_is_caught(monkeypatch, block, testcase):
    monkeypatch.setattr(f"hdl.nvme.front_end.{block.__bases__[0].__name__}", block)
    with pytest.raises(SimulationError, match=testcase):
        run_front_end(__name__, name=f"nvme_mutant_abort_{block.__name__}", testcase=testcase)
