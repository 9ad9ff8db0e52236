"""The NVMe front end with the most queues that it can have: 64 pairs of up to 1024 entries."""

from dataclasses import replace
from os import environ

import cocotb
import pytest

from cocotb_tests.nvme.nvme_bench import Bench, bench_config
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import wait_until
from hdl.kit.pick import lowest_bit
from hdl.nvme.front_end import NvmeFrontEnd
from sim.golden import nvme

PAIRS, DEPTH = 64, 1024
CONFIG = replace(bench_config(), queue_pairs=PAIRS, queue_depth=DEPTH)
LONG = (1, 31, 64)
"""Pairs that are as long as can be."""


async def bench(dut) -> Bench:
    host = Bench(dut, CONFIG, int(environ["SEED"]), active=1.0)
    host.volumes = {0: {"valid": 1, "array": 0, "start": 0, "blocks": 5000}}
    await host.reset()
    await host.enable()
    order = list(range(1, PAIRS + 1))
    host.random.shuffle(order)
    for number in order:
        await host.create_pair(number, DEPTH if number in LONG else host.random.randint(3, 60))
    return host


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def every_pair_works(dut):
    host = await bench(dut)
    assert (await host.read64(nvme.CAP)) & 0xFFFF == DEPTH - 1
    for beyond in (PAIRS + 1, 0x7FFF, 0xFFFF):
        await host.bad(
            nvme.INVALID_QUEUE, opcode=nvme.CREATE_CQ, prp1=0x5000, dwords=(7 << 16 | beyond, 1)
        )
    # All at once, several rounds, in every pair's own queues and with its own interrupt.
    for _ in range(2):
        await host.settle()
        host.interrupts.clear()
        placed = []
        for number in range(1, PAIRS + 1):
            for _ in range(host.random.randint(1, 2)):
                block = host.random.randrange(5000)
                fields = nvme.read_write(nvme.READ, 1, block, 1)
                placed.append((number, host.place(host.queues[number], **fields, prp1=host.page())))
        for number in host.random.sample(range(1, PAIRS + 1), PAIRS):
            await host.ring(host.queues[number])
        for number, identifier in placed:
            answer = await host.result(host.queues[number], identifier)
            assert answer.code == nvme.SUCCESS and answer.queue == number
        await host.settle()
        assert set(host.interrupts) == set(range(1, PAIRS + 1))
    await pairs_take_turns(dut, host)


async def pairs_take_turns(dut, host: Bench) -> None:
    """A pair with hundreds of commands holds none that has one: each is served in one round."""
    greedy, count = host.queues[LONG[0]], DEPTH - 1
    host.commands.clear()
    host.hold = True
    many = [host.place(greedy, opcode=nvme.FLUSH, nsid=1) for _ in range(count)]
    await host.ring(greedy)
    inside = host.config.commands
    await wait_until(dut, lambda: len(host.commands) == inside, cycles=4000, what="full")
    others = [number for number in range(1, PAIRS + 1) if host.queues[number] is not greedy]
    fields = nvme.read_write(nvme.VERIFY, 1, 0, 1)
    ones = {number: host.place(host.queues[number], **fields) for number in others}
    for number in others:
        await host.ring(host.queues[number])
    host.hold = False
    for number, identifier in ones.items():
        await host.result(host.queues[number], identifier)
    # The greedy pair had a burst of 8 fetched before each of the others at most once around.
    served = count - len(greedy.waiting)
    print(f"{served} of {count} commands of one pair before the last of {len(others)} others")
    assert served < 2 * inside + 32 + 3 * 8, f"{served} commands went before"
    # Up to the end of the queue and around it.
    for identifier in many:
        await host.result(greedy, identifier)
    again = [host.place(greedy, opcode=nvme.FLUSH, nsid=1) for _ in range(20)]
    await host.ring(greedy)
    for identifier in again:
        assert (await host.result(greedy, identifier)).code == nvme.SUCCESS
    await host.settle()


def test_nvme_queues():
    simulate(NvmeFrontEnd(config=CONFIG), name="nvme_q64", module=__name__)


@pytest.mark.slow
def test_wrong_turn_is_caught(monkeypatch):
    """Planted bug: the pair with the lowest number always goes first."""
    monkeypatch.setattr(
        "hdl.nvme.queues.queues.choose", lambda m, waiting, turn: lowest_bit(m, waiting, "first")
    )
    with pytest.raises(SimulationError, match="commands went before"):
        simulate(NvmeFrontEnd(config=CONFIG), name="nvme_q64_mutant", module=__name__)
