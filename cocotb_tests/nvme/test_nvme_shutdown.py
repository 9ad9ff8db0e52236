"""The end of a controller: CSTS.RDY and CSTS.SHST say what has left, and what has been flushed."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample, wait_until
from hdl.nvme.front_end import NvmeFrontEnd
from sim.golden import nvme

VOLUME_BLOCKS = 5000
LIMIT = {"timeout_time": 8, "timeout_unit": "ms"}
OCCURRING, COMPLETE = 1 << 2, 2 << 2
CC_SHUTDOWN_ABRUPT = 2 << 14
COALESCING = 8
LONGEST_TIME, LARGEST_COUNT = 0xFF << 8, 0xFF
SOON = 1500
STALLED = ("host__read_request", "host__write_request", "host__post")
"""What leaves for the host."""
"""Cycles in which something happens that waits for nothing."""


async def bench(dut, **options) -> Bench:
    config = bench_config(int(os.environ["DATA_WIDTH"]))
    host = Bench(dut, config, int(os.environ["SEED"]), **options)
    host.volumes = {0: {"valid": 1, "array": 0, "start": 0, "blocks": VOLUME_BLOCKS}}
    await host.reset()
    return host


async def bring_up(host: Bench) -> None:
    await host.enable()
    for number in (1, 2):
        await host.create_pair(number, 32)


async def load(host: Bench, commands: int = 24) -> None:
    """Reads and writes in both queues, not waited for."""
    for number in (1, 2):
        pair = host.queues[number]
        for _ in range(commands // 2):
            opcode = host.random.choice((nvme.READ, nvme.WRITE))
            fields = nvme.read_write(opcode, 1, host.random.randrange(VOLUME_BLOCKS), 1)
            host.place(pair, **fields, prp1=host.page())
        await host.ring(pair)


def written(host: Bench) -> tuple[int, bytes]:
    """What has been written to the host's memory and how many messages were sent."""
    return host.posts, bytes(host.memory)


@cocotb.test(**LIMIT)
async def ready_falls_when_all_has_left(dut):
    """Disabled amid commands, at any moment: after CSTS.RDY is 0 nothing is written."""
    host = await bench(dut)
    for round_number in range(12):
        await bring_up(host)
        await load(host)
        await ClockCycles(dut.clk, host.random.randint(1, 400))
        host.holds_posted = round_number % 3 == 0
        await host.write32(nvme.CC, 0)
        if host.holds_posted:
            await ClockCycles(dut.clk, SOON)
            status = await host.read32(nvme.CSTS)
            assert status & nvme.CSTS_READY or not sample(dut.host__posted), "RDY passed writes"
            host.holds_posted = False
        await host.wait_status(0, mask=nvme.CSTS_READY)
        assert not sample(dut.host__posted), "RDY is 0 while writes are on their way"
        before = written(host)
        await ClockCycles(dut.clk, SOON)
        assert written(host) == before, "written after RDY was 0"
        for queue in host.queues.values():
            queue.done.clear()
    await host.settle()


@cocotb.test(**LIMIT)
async def a_message_is_a_write(dut):
    """The last message waits to leave: CSTS.RDY waits for it, or it never leaves."""
    host = await bench(dut)
    for delay in range(0, 60, 3):
        await bring_up(host)
        pair = host.queues[1]
        posts = next(sink for sink in host.sinks if sink.name == "host__post")
        host.place(pair, opcode=nvme.FLUSH, nsid=1)
        count = len(host.interrupts)
        await host.ring(pair)
        await wait_until(dut, lambda queue=pair: bool(queue.done), cycles=SOON, what="its end")
        posts.paused = True
        await ClockCycles(dut.clk, delay)
        await host.write32(nvme.CC, 0)
        await ClockCycles(dut.clk, 200)
        ready = await host.read32(nvme.CSTS) & nvme.CSTS_READY
        if not ready:
            count = len(host.interrupts)
        posts.paused = False
        await host.wait_status(0)
        after = len(host.interrupts)
        await ClockCycles(dut.clk, 200)
        assert len(host.interrupts) == after, "a message left after RDY was 0"
        assert ready or after == count, "a message left after RDY was 0"
        pair.done.clear()
    await host.settle()


@cocotb.test(**LIMIT)
async def nothing_begins_while_disabled(dut):
    """All slots are taken by commands that hang and others have been fetched as the controller is
    disabled. They are dropped: none of them goes on to wait for another drive."""
    host = await bench(dut)
    for sectors in range(3):
        await host.enable()
        for number in (1, 2):
            await host.create_pair(number, 64)
        host.hold = True
        begun = len(host.commands)
        await load(host, 2 * host.config.commands + 2 * sectors)
        await wait_until(
            dut,
            lambda n=begun: len(host.commands) == n + host.config.commands,
            cycles=5000,
            what="as many commands as there are slots",
        )
        await ClockCycles(dut.clk, SOON)
        await host.write32(nvme.CC, 0)
        await ClockCycles(dut.clk, SOON)
        assert await host.read32(nvme.CSTS) == nvme.CSTS_READY
        count = len(host.commands)
        host.hold = False
        await host.wait_status(0)
        assert len(host.commands) == count, "a command began after the controller was disabled"
    await host.settle()


async def abort_amid_news(host: Bench, delay: int) -> int:
    """Requests for events are held and one is being aborted as an event comes; the Abort."""
    admin = host.queues[0]
    requests = []
    for _ in range(2):
        requests.append(host.place(admin, opcode=nvme.ASYNC_EVENT))
        await host.ring(admin)
        await ClockCycles(host.dut.clk, 200)
    abort = host.place(admin, opcode=nvme.ABORT, dwords=(requests[0] << 16,))
    await host.ring(admin)
    await ClockCycles(host.dut.clk, delay)
    host.dut.arrays__news.value = 1
    await ClockCycles(host.dut.clk, 1)
    host.dut.arrays__news.value = 0
    return abort


@cocotb.test(**LIMIT)
async def an_event_and_an_abort_amid_a_shutdown(dut):
    """A request for events is being aborted as an event comes and the host shuts down, or disables
    the controller, with room in the admin completion queue for the Abort only or for more."""
    host = await bench(dut)
    shut = 0
    for round_number in range(70):
        await host.enable(cq_entries=(2, 8)[round_number // 2 % 2])
        await abort_amid_news(host, host.random.randrange(70))
        if round_number % 2:
            await ClockCycles(dut.clk, host.random.randrange(12))
            await host.write32(nvme.CC, nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL)
            await host.wait_status(nvme.CSTS_READY | COMPLETE)
            shut += 1
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        host.queues[0].done.clear()
    assert shut == 35
    await host.settle()


@cocotb.test(**LIMIT)
async def an_abort_ends_without_room_for_events(dut):
    """An Abort has the only place in the admin completion queue as an event comes: it ends."""
    host = await bench(dut)
    for _ in range(40):
        await host.enable(cq_entries=2)
        abort = await abort_amid_news(host, host.random.randrange(70))
        assert (await host.result(host.queues[0], abort, cycles=SOON)).code == nvme.SUCCESS
        await ClockCycles(dut.clk, SOON // 4)
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        host.queues[0].done.clear()
    await host.settle()


@cocotb.test(**LIMIT)
async def shutdown_flushes(dut):
    """CSTS.SHST is complete once the drives have been flushed, after every command has ended."""
    host = await bench(dut)
    for kind in (nvme.CC_SHUTDOWN_NORMAL, CC_SHUTDOWN_ABRUPT):
        for busy in (False, True):
            await bring_up(host)
            begun = host.flushes
            host.hold = busy
            if busy:
                await load(host)
                await ClockCycles(dut.clk, 300)
            host.holds_flush = True
            await host.write32(nvme.CC, nvme.CC_ENABLE | kind)
            await host.wait_status(nvme.CSTS_READY | OCCURRING)
            if busy:
                await ClockCycles(dut.clk, SOON)
                assert host.flushes == begun, "flushed before the commands had ended"
                await host.wait_status(nvme.CSTS_READY | OCCURRING)
                host.hold = False
            await wait_until(
                dut, lambda n=begun: host.flushes > n, cycles=20_000, what="the flush"
            )
            commands = len(host.commands)
            if busy:
                await load(host, 4)  # after the host has said that it would send no more
            await ClockCycles(dut.clk, SOON)
            assert len(host.commands) == commands, "a command began after the flush"
            await host.wait_status(nvme.CSTS_READY | OCCURRING)
            host.holds_flush = False
            await host.wait_status(nvme.CSTS_READY | COMPLETE)
            assert host.flushes == begun + 1
            await ClockCycles(dut.clk, SOON)
            await host.wait_status(nvme.CSTS_READY | COMPLETE)
            await host.write32(nvme.CC, 0)
            await host.wait_status(0)
            for queue in host.queues.values():
                queue.done.clear()
    assert host.flushes == 4
    # Also of a controller that is not enabled.
    await host.write32(nvme.CC, nvme.CC_SHUTDOWN_NORMAL)
    await host.wait_status(COMPLETE)
    assert host.flushes == 5
    await host.settle()


@cocotb.test(**LIMIT)
async def a_flush_is_for_one_shutdown(dut):
    """A reset ends a shutdown; the flush that goes on counts for none that comes later."""
    host = await bench(dut)
    for round_number in range(6):
        await bring_up(host)
        begun = host.flushes
        host.holds_flush = True
        await host.write32(nvme.CC, nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL)
        await wait_until(dut, lambda n=begun: host.flushes > n, cycles=4000, what="the flush")
        if round_number % 2:
            await host.write32(nvme.CC, 0)
            await host.wait_status(0)
        else:
            dut.status__function_reset.value = 1
            await ClockCycles(dut.clk, 20)
            dut.host__idle.value = 1
            await wait_until(dut, lambda: sample(dut.reset_done), cycles=SOON, what="reset")
            dut.status__function_reset.value = 0
            await ClockCycles(dut.clk, 200)
        assert sample(dut.flushes__shutdown__flush), "a flush was taken back"
        await host.enable()
        await host.write32(nvme.CC, nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL)
        await ClockCycles(dut.clk, SOON)
        assert host.flushes == begun + 1, "two flushes at once"
        await host.wait_status(nvme.CSTS_READY | OCCURRING)
        host.holds_flush = False
        await host.wait_status(nvme.CSTS_READY | COMPLETE)
        assert host.flushes == begun + 2, "complete by the flush of another shutdown"
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
    await host.settle()


@cocotb.test(**LIMIT)
async def nothing_is_told_after_a_shutdown(dut):
    """Interrupts that are held back leave before CSTS.SHST is complete. What happens while or after
    the controller is shut down is not told, although requests for events are held."""
    host = await bench(dut)
    for kind in (nvme.CC_SHUTDOWN_NORMAL, CC_SHUTDOWN_ABRUPT):
        for early in (False, True):
            await bring_up(host)
            admin, pair = host.queues[0], host.queues[1]
            held = [host.place(admin, opcode=nvme.ASYNC_EVENT) for _ in range(2)]
            await host.good(
                opcode=nvme.SET_FEATURES, dwords=(COALESCING, LONGEST_TIME | LARGEST_COUNT)
            )
            host.interrupts.clear()
            for _ in range(3):
                await host.good(1, opcode=nvme.FLUSH, nsid=1)
            await ClockCycles(dut.clk, SOON)
            assert pair.number not in host.interrupts, "not held back"
            host.holds_flush = True
            await host.write32(nvme.CC, nvme.CC_ENABLE | kind)
            if early:
                await host.wait_status(nvme.CSTS_READY | OCCURRING)
                await happen(host)
            host.holds_flush = False
            await host.wait_status(nvme.CSTS_READY | COMPLETE)
            assert host.interrupts.count(pair.number) == 1, "a completion's interrupt was held back"
            before = written(host)
            await happen(host)
            await ClockCycles(dut.clk, SOON)
            assert written(host) == before, "something was written after the shutdown"
            assert not any(identifier in admin.done for identifier in held), "an event was told"
            await host.wait_status(nvme.CSTS_READY | COMPLETE)
            await host.write32(nvme.CC, 0)
            await host.wait_status(0)
            assert written(host) == before, "something was written after the shutdown"
    await host.settle()


async def happen(host: Bench) -> None:
    """Events: a doorbell that does not exist, and the news of an array."""
    host.dut.arrays__news.value = 1
    await ClockCycles(host.dut.clk, 1)
    host.dut.arrays__news.value = 0
    await host.write32(nvme.DOORBELLS + 0xFF0, 1)
    await ClockCycles(host.dut.clk, SOON)


@cocotb.test(**LIMIT)
async def a_reset_meets_the_end_of_a_shutdown(dut):
    """CC is written in each of the cycles around the one in which CSTS.SHST becomes complete."""
    host = await bench(dut)
    ended = 0
    for round_number in range(64):
        await host.enable()
        begun = host.flushes
        host.holds_flush = True
        await host.write32(nvme.CC, nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL)
        await wait_until(dut, lambda n=begun: host.flushes > n, cycles=SOON, what="the flush")
        host.holds_flush = False
        await ClockCycles(dut.clk, host.random.randrange(4))
        if round_number % 4:
            await host.write32(nvme.CC, 0)
            await host.wait_status(0)
        else:
            # Written, but not changed: the shutdown goes on, and ends.
            await host.write32(nvme.CC, nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL)
            await host.wait_status(nvme.CSTS_READY | COMPLETE)
            ended += 1
            await host.write32(nvme.CC, 0)
            await host.wait_status(0)
    assert ended == 16
    await host.settle()


@cocotb.test(**LIMIT)
async def states_change_while_requests_stall(dut):
    """The hard block takes nothing for long, amid commands, while the controller is disabled or
    shut down, or a queue of either kind is deleted: none of it is said to be done before what waits
    has left, and afterwards nothing is written."""
    host = await bench(dut)
    stalls = [s for s in host.sinks if s.name in STALLED]
    assert len(stalls) == 3
    waited = 0

    async def stall(change) -> bool:
        """``change`` is asked for while nothing leaves; whether something waited to leave."""
        for sink in stalls:
            sink.paused = True
        await ClockCycles(dut.clk, host.random.randint(1, 100))
        await change()
        await ClockCycles(dut.clk, SOON)
        names = ("host__write_request", "host__post")
        return any(sample(getattr(dut, f"{name}__valid")) for name in names)

    for round_number in range(16):
        kind = round_number % 4
        await bring_up(host)
        await load(host)
        await ClockCycles(dut.clk, host.random.randint(1, 600))
        if kind == 0:
            waits = await stall(lambda: host.write32(nvme.CC, 0))
            assert not (waits and await host.read32(nvme.CSTS) & nvme.CSTS_READY == 0)
        elif kind == 1:
            control = nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL
            waits = await stall(lambda control=control: host.write32(nvme.CC, control))
            assert not (waits and await host.read32(nvme.CSTS) & COMPLETE)
        else:
            pair = host.queues[1]
            opcode = nvme.DELETE_SQ
            if kind == 3:
                # Commands of the other queue go on meanwhile.
                await host.good(opcode=opcode, dwords=(1,))
                opcode = nvme.DELETE_CQ
            # The entry has been read already, or has not.
            deletion = host.place(host.queues[0], opcode=opcode, dwords=(1,))
            await host.ring(host.queues[0])
            told = False

            async def look(answers=host.queues[0].done, deletion=deletion) -> None:
                """It may have been told before everything stalled."""
                nonlocal told
                await ClockCycles(dut.clk, 1)
                told = deletion in answers

            waits = await stall(look)
            assert told or deletion not in host.queues[0].done, "told before what waits"
            for sink in stalls:
                sink.paused = False
            answer = await host.result(host.queues[0], deletion)
            assert answer.code == nvme.SUCCESS
            ended = len(pair.done)
            await ClockCycles(dut.clk, SOON)
            assert len(pair.done) == ended, "a command ended after its queue had been deleted"
            await host.bad(nvme.INVALID_QUEUE, opcode=opcode, dwords=(1,))
            await host.write32(nvme.CC, 0)
        waited += waits
        for sink in stalls:
            sink.paused = False
        if kind == 1:
            await host.wait_status(nvme.CSTS_READY | COMPLETE)
            before = written(host)
            await ClockCycles(dut.clk, SOON)
            assert written(host) == before, "something was written after the shutdown"
            await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        before = written(host)
        await ClockCycles(dut.clk, SOON)
        assert written(host) == before, "written after RDY was 0"
        for queue in host.queues.values():
            queue.done.clear()
    assert waited > 6, "hardly anything waited"
    await host.settle()


@pytest.mark.parametrize("data_width", [256])
def test_nvme_shutdown(data_width):
    run_front_end(__name__, data_width=data_width)


class ClosesEarly(NvmeFrontEnd):
    """A planted bug: CSTS.RDY falls when the last command has ended."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.queues.settled.eq(1)
        return m


class AnswersItself(NvmeFrontEnd):
    """A planted bug: a shutdown is complete without the drives' having been flushed."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        request = m.submodules.registers.shutdown_flush
        m.d.comb += request.flushed.eq(request.flush)
        return m


@pytest.mark.parametrize(
    ("mutant", "testcase"),
    [
        (ClosesEarly, "ready_falls_when_all_has_left"),
        (AnswersItself, "shutdown_flushes"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_caught(mutant, testcase):
    with pytest.raises(SimulationError, match=testcase):
        simulate(
            mutant(config=bench_config()),
            name=f"nvme_{mutant.__name__}",
            module=__name__,
            testcase=testcase,
            parameters={"DATA_WIDTH": "256"},
        )
