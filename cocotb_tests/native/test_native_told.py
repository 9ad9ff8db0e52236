"""A Flush tells the host that a drive has restarted, whatever becomes of the Flush."""

import os
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace

import pytest

from campaign.card import Group
from campaign.sizes import USUAL
from cocotb_tests.native.native_card import Card
from cocotb_tests.native.native_forgetful import FORGETFUL, SLOWER
from hdl.flow.geometry import Level
from sim.golden.nvme import INTERNAL_ERROR, SET_FEATURES, WRITE_FAULT
from sim.native.harness import Flow
from sim.native.parameters import MICROSECOND
from sw.driver import raid
from sw.driver.commands import Command, NvmeError, Register
from sw.driver.native import MSIX_ENTRY_BYTES, MSIX_TABLE
from sw.driver.nvme import CSTS_READY
from sw.driver.queue import QueueStoppedError

SEED = int(os.environ.get("SEED") or "1")
VECTOR_CONTROL = 12
"""In an entry of the MSI-X table (PCIe 4.0, 7.7.2)."""
VOLATILE_WRITE_CACHE = 6


async def written(card: Card, blocks: int) -> int:
    """A RAID 0 with a volume that has blocks in its caches; its namespace."""
    await raid.create_array(card.nvme, Level.RAID0, range(3), strip_kib=4)
    volume = await raid.create_volume(card.nvme, 0, 0, 256)
    address = card.buffer(1)
    for block in range(blocks):
        card.card.transport.memory.write(address, bytes([block + 1]) * 4096)
        await card.nvme.write(volume, block, 1, address, 0)
    return volume


async def missing(card: Card, volume: int, blocks: int) -> int:
    """How many of them are not what was `written`."""
    address, lost = card.buffer(1), 0
    for block in range(blocks):
        await card.nvme.read(volume, block, 1, address, 0)
        lost += card.card.transport.memory.read(address, 4096) != bytes([block + 1]) * 4096
    return lost


async def flush(card: Card, volume: int, queue: int, statuses: list[int]) -> None:
    try:
        await card.nvme.flush(volume, queue)
    except NvmeError as error:
        statuses.append(error.status)
    else:
        statuses.append(0)


async def flush_over_a_restart(card: Card, *, wait: int, other_volume: bool) -> tuple[int, int]:
    """Status of a Flush that waits in the port of a drive as that restarts, while another Flush, of
    the same volume or another one, is told what is lost; and how many blocks are."""
    nvme, transport = card.nvme, card.card.transport
    blocks = 48
    statuses: list[int] = []

    async def read(volume: int, block: int, buffer: int) -> None:
        with suppress(NvmeError):
            await nvme.read(volume, block, 1, buffer, 1)

    volume = await written(card, blocks)
    other = await raid.create_volume(nvme, 0, 256)
    for number in range(32):
        transport.spawn(read(volume, 100 + 3 * number, card.buffer(1)))
    await transport.sleep(2_000)
    transport.spawn(flush(card, volume, 0, statuses))
    await transport.sleep(wait)
    card.harness.restart_drive(1)
    await transport.sleep(1_000)
    await flush(card, other if other_volume else volume, 1, [])
    while not statuses:
        await transport.sleep(10_000)
    return statuses[0], await missing(card, volume, blocks)


@pytest.mark.parametrize("other_volume", [False, True])
def test_a_flush_that_waited_over_a_restart_has_not_stored(other_volume):
    """The drive is believed again once somebody has been told. That Flush is not: what it was meant
    for may be lost."""
    seen = 0
    for wait in range(1_000, 9_000, 2_000):
        with Card([SLOWER] * 8, seed=SEED, config=USUAL) as card:
            scenario = flush_over_a_restart(card, wait=wait, other_volume=other_volume)
            status, lost = card.run(scenario)
            assert not lost or status, f"{wait}: {lost} blocks"
            seen += lost
    assert seen, "nothing was lost, so nothing is shown"


SLOW_MIDDLE = [
    replace(SLOWER, latency_ps=us * MICROSECOND) for us in (5, 60, 5, 20, 20, 20, 20, 20)
]
"""A Flush waits for the second drive only."""


@pytest.mark.parametrize("before_ns", [0, 400])
def test_a_flush_that_was_rung_before_a_restart_has_not_stored(before_ns):
    """The card fetches it after the drive has restarted, while another Flush is told of that. Its
    host does not know by then; one that is submitted after that succeeds."""
    blocks = 48
    with Card(SLOW_MIDDLE, seed=SEED, config=USUAL) as card:

        async def scenario() -> None:
            transport = card.card.transport
            volume = await written(card, blocks)
            statuses: list[int] = []
            transport.spawn(flush(card, volume, 0, statuses))
            await transport.sleep(30_000)
            transport.spawn(flush(card, volume, 1, statuses))
            await transport.sleep(before_ns)
            assert not statuses
            card.harness.restart_drive(1)
            while len(statuses) < 2:
                await transport.sleep(5_000)
            assert await missing(card, volume, blocks), "nothing was lost, so nothing is shown"
            await flush(card, volume, 0, statuses)
            assert statuses == [WRITE_FAULT, WRITE_FAULT, 0], [hex(s) for s in statuses]

        card.run(scenario())


def test_a_controller_reset_does_not_take_the_answer_away():
    """The controller is disabled while the Flush is inside that would have told of a restart: the
    first one after that tells."""
    blocks = 48
    with Card(SLOW_MIDDLE, seed=SEED, config=USUAL) as card:

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport

            async def gone(submitted: Coroutine) -> None:
                with suppress(QueueStoppedError):
                    await submitted

            volume = await written(card, blocks)
            statuses: list[int] = []
            transport.spawn(gone(flush(card, volume, 0, statuses)))
            await transport.sleep(30_000)
            card.harness.restart_drive(1)
            await transport.write32(Register.CC, 0)
            while await transport.read32(Register.CSTS) & CSTS_READY:
                await transport.sleep(5_000)
            assert not statuses
            await nvme.stop()
            await nvme.start(queue_pairs=2)
            statuses.clear()
            assert await missing(card, volume, blocks), "nothing was lost, so nothing is shown"
            for _ in range(2):
                await flush(card, volume, 0, statuses)
            assert statuses == [WRITE_FAULT, 0], [hex(s) for s in statuses]

        card.run(scenario())


@pytest.mark.parametrize(("others", "posted"), [(4, True), (6, False)])
def test_an_answer_that_is_not_taken_tells_nobody(others, posted):
    """The hard block takes nothing as the Flush ends that tells of a restart, behind other answers,
    and the host disables the controller. Whether its entry is posted meanwhile or not, the host has
    not taken it: the next Flush tells."""
    blocks = 48
    with Card(SLOW_MIDDLE, seed=SEED, config=USUAL) as card:

        async def gone(submitted: Coroutine) -> None:
            with suppress(QueueStoppedError):
                await submitted

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            volume = await written(card, blocks)
            beside = await raid.create_volume(nvme, 0, 256, 256)
            for _ in range(others):
                transport.spawn(gone(flush(card, beside, 0, [])))
            await transport.sleep(10_000)
            transport.spawn(gone(flush(card, volume, 1, [])))
            await transport.sleep(20_000)
            card.harness.hold(Flow.RQ_READY, 40_000)
            card.harness.restart_drive(1)
            await transport.sleep(15_000)
            await transport.write32(Register.CC, 0)
            await transport.sleep(60_000)
            while await transport.read32(Register.CSTS) & CSTS_READY:
                await transport.sleep(5_000)
            phase = transport.memory.read(nvme.queues[1].cq_address, 16)[14] & 1
            assert phase == posted, "the stall is not as long as it must be"
            await nvme.stop()
            await nvme.start(queue_pairs=2)
            assert await missing(card, volume, blocks), "nothing was lost, so nothing is shown"
            statuses: list[int] = []
            for _ in range(2):
                await flush(card, volume, 0, statuses)
            assert statuses == [WRITE_FAULT, 0], [hex(s) for s in statuses]

        card.run(scenario())


@pytest.mark.parametrize(
    ("level", "members"),
    [
        (Level.RAID0, 3),
        (Level.RAID5, 4),
        pytest.param(Level.RAID1, 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("taken", [False, True])
def test_an_answer_that_is_not_seen_tells_nobody(level, members, taken):
    """The host does not look at the queue of the Flush that tells of a restart. Until it does, or
    deletes the queue, each Flush of another queue is refused, and then the next one."""
    with Card([FORGETFUL] * 8, seed=SEED, config=USUAL, quiet=True) as card:

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            volume = await card.create(level, range(members), strip_blocks=1)
            address = card.buffer(8)
            data = card.random.randbytes(8 * 4096)
            transport.memory.write(address, data)
            await nvme.write(volume.namespace, 0, 8, address, 0)
            for port in range(members):
                card.harness.restart_drive(port)
            queue = nvme.queues[1]
            mask = MSIX_TABLE + MSIX_ENTRY_BYTES * queue.identifier + VECTOR_CONTROL
            await transport.write32(mask, 1)
            first: list[int] = []
            teller = Group(transport, [flush_or_stop(card, volume.namespace, 1, first)])
            while not queue.untaken:
                await transport.sleep(500)
            statuses: list[int] = []
            for _ in range(3):
                await flush(card, volume.namespace, 0, statuses)
                await transport.sleep(50_000)
            assert statuses == [WRITE_FAULT] * 3
            if taken:
                await transport.write32(mask, 0)
            else:
                await nvme.renew_queue(1, deaf=True)
            await teller.join()
            assert first == ([WRITE_FAULT] if taken else [])
            await nvme.read(volume.namespace, 0, 8, address, 0)
            assert transport.memory.read(address, len(data)) != data, "nothing was lost"
            for _ in range(2):
                await flush(card, volume.namespace, 0, statuses)
            assert statuses[3:] == ([0, 0] if taken else [WRITE_FAULT, 0])

        card.run(scenario())


async def flush_or_stop(card: Card, volume: int, queue: int, statuses: list[int]) -> None:
    with suppress(QueueStoppedError):
        await flush(card, volume, queue, statuses)


@pytest.mark.parametrize("told", ["not at all", "before", "meanwhile", "unseen"])
def test_the_cache_does_not_go_off_over_a_loss(told):
    """Drives have forgotten writes as the host switches the volatile write cache off, for which
    another write is waited for. Only if a Flush has told the host before that all is stored."""
    with Card([FORGETFUL] * 8, seed=SEED, config=USUAL, quiet=True) as card:

        async def scenario() -> None:
            nvme, transport, harness = card.nvme, card.card.transport, card.harness
            volume = await card.create(Level.RAID0, range(3), strip_blocks=1)
            address = card.buffer(8)
            await nvme.write(volume.namespace, 0, 8, address, 0)
            for port in (0, 1):
                harness.restart_drive(port)
            await transport.sleep(20_000)
            if told == "before":
                assert await card.flush(volume) == WRITE_FAULT
            harness.drive_fault(2, 1, at_end=True, delay_ns=200_000)
            late = Group(transport, [nvme.write(volume.namespace, 11, 1, address, 0)])
            await transport.sleep(10_000)
            statuses: list[int] = []
            switch = Group(transport, [switch_cache_off(card, statuses)])
            await transport.sleep(20_000)
            if told == "meanwhile":
                assert await card.flush(volume, 1) == WRITE_FAULT
            elif told == "unseen":
                queue = nvme.queues[1]
                mask = MSIX_TABLE + MSIX_ENTRY_BYTES * queue.identifier + VECTOR_CONTROL
                await transport.write32(mask, 1)
                teller = Group(transport, [flush_or_stop(card, volume.namespace, 1, [])])
                while not queue.untaken:
                    await transport.sleep(500)
            assert not statuses, "it has not waited for the write"
            await late.join()
            await switch.join()
            assert statuses == [0 if told == "before" else INTERNAL_ERROR]
            if told == "unseen":
                await nvme.renew_queue(1, deaf=True)
                await teller.join()

        card.run(scenario())


async def switch_cache_off(card: Card, statuses: list[int]) -> None:
    try:
        await card.nvme.admin(Command(SET_FEATURES, dwords=(VOLATILE_WRITE_CACHE, 0)))
    except NvmeError as error:
        statuses.append(error.status)
    else:
        statuses.append(0)


RESETS_NS = (600, 2_000, 20)
"""From before the Flush ends that tells of a restart until after its host knows."""


@pytest.mark.parametrize("way", ["link", "function", "disable"])
def test_an_answer_that_does_not_arrive_tells_nobody(way):
    """The controller is reset at any moment about the end of the Flush that tells of a restart. If
    its host has not been told by that, the next one tells; if it has, at most once more."""
    with Card([SLOWER] * 8, seed=SEED, config=USUAL) as card:
        harness = card.harness

        async def gone(submitted: Coroutine) -> None:
            with suppress(QueueStoppedError):
                await submitted

        async def reset() -> None:
            if way == "link":
                harness.reset_link()
            elif way == "function":
                harness.reset_function()
            else:
                harness.set_status("bus_master", 0)
                await card.card.transport.write32(Register.CC, 0)

        async def scenario() -> None:
            nvme, transport = card.nvme, card.card.transport
            volume = await written(card, 1)
            outcomes: set[tuple[bool, bool]] = set()
            for wait in range(*RESETS_NS):
                statuses: list[int] = []
                entries, length = nvme.queues[0].cq_address, 16 * nvme.queues[0].depth
                before = transport.memory.read(entries, length)
                harness.restart_drive(1)
                transport.spawn(gone(flush(card, volume, 0, statuses)))
                await transport.sleep(wait)
                await reset()
                await transport.sleep(2_000)
                arrived = transport.memory.read(entries, length) != before
                harness.set_status("bus_master", 1)
                while await transport.read32(Register.CSTS) & CSTS_READY:
                    await transport.sleep(5_000)
                await nvme.stop()
                told = bool(statuses)
                assert statuses in ([], [WRITE_FAULT])
                outcomes.add((arrived, told))
                await nvme.start(queue_pairs=2)
                again: list[int] = []
                for _ in range(2):
                    await flush(card, volume, 0, again)
                refusals = [[WRITE_FAULT, 0]] + [[0, 0]] * told
                assert again in refusals, f"reset after {wait} ns, told: {told}: {again}"
            assert outcomes == {(False, False), (True, False), (True, True)}

        card.run(scenario())
