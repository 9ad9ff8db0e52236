"""Abort of I/O commands: those that wait for their PRP list, and long ones between their parts."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import wait_until
from hdl.nvme.interface import Status
from hdl.nvme.slots import SlotTable
from sim.golden import nvme

VOLUME_BLOCKS = 5000
ABORTED, NOT_ABORTED = 0, 1


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


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def commands_that_wait_for_lists(dut):
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
    assert await abort(host, queue, victim) == ABORTED
    assert await abort(host, *placed[4]) == ABORTED
    # A bad list of an aborted command is of no interest.
    host.hold_lists = False
    for number, (queue, identifier) in enumerate(placed):
        wanted = nvme.ABORT_REQUESTED if number in (2, 4) else nvme.SUCCESS
        assert await ended(host, queue, identifier) == wanted
        assert await abort(host, queue, identifier) == NOT_ABORTED
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
            assert await abort(host, 1, victim) == ABORTED
            host.hold = False
            assert await ended(host, 1, victim) == nvme.ABORT_REQUESTED
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
        answers = {victim: await abort(host, *victim) for victim in victims}
        host.hold_lists = False
        for queue, identifier in placed:
            code = await ended(host, queue, identifier)
            said = answers.get((queue, identifier))
            assert (code == nvme.ABORT_REQUESTED) == (said == ABORTED), f"{code:#x}, said {said}"
            if said is not None:
                told[said] += 1
    assert min(told.values()) > 2, f"one-sided: {told}"
    await host.settle()


def test_nvme_abort():
    run_front_end(__name__)


class AlwaysFound(SlotTable):
    """A planted bug: Abort says that whatever it looked for has been aborted."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.found.eq(1)
        return m


def test_planted_bug_is_caught(monkeypatch):
    monkeypatch.setattr("hdl.nvme.front_end.SlotTable", AlwaysFound)
    with pytest.raises(SimulationError, match="what_abort_says_is_true"):
        run_front_end(__name__, name="nvme_mutant_abort", testcase="what_abort_says_is_true")
