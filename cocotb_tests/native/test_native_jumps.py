"""Runs of the whole controller with and without jumps over time: they must be the same."""

import hashlib
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from amaranth.hdl import Module

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import Card, Volume
from cocotb_tests.native.native_drives import CAPACITY, FAST
from cocotb_tests.native.native_jobs import POLL_NS, replaced
from cocotb_tests.native.native_planted import plant
from hdl.background.jobs import JobState
from hdl.background.pace import Pace
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, Config
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from hdl.kit.clock import NEVER
from powercut.lives import CONFIG as METADATA
from sim.native.parameters import MICROSECOND, DriveParameters, Hdd, Ssd, link_rate
from sw.driver import background, raid
from sw.driver.commands import Register
from sw.driver.nvme import CC_ENABLE
from sw.driver.queue import QueueStoppedError

SEED = int(os.environ.get("SEED") or "1")
SLOW_HDD = Hdd(
    capacity=CAPACITY,
    rate=link_rate(6),
    half_duplex=True,
    revolution_ps=400 * MICROSECOND,
    settle_ps=50 * MICROSECOND,
    seek_root_ps=200 * MICROSECOND,
    seek_linear_ps=50 * MICROSECOND,
    write_settle_ps=20 * MICROSECOND,
    cache_blocks=64,
    read_ahead_blocks=16,
)
SLOW_SSD = Ssd(capacity=CAPACITY, rate=link_rate(12), dies=4)
DOWN_NS = 3_000
"""How long the link is down."""

SHUT_DOWN = 1 << 14
"""CC.SHN: normal (NVMe 1.4, 3.1.5)."""

SHUTDOWN_STATUS, SHUTDOWN_DONE = 3 << 2, 2 << 2
"""CSTS.SHST."""

RATE = 10
"""Percent of its time that a rebuild may take."""


def jumps_change_nothing(
    main: Callable[[Card], Coroutine[Any, Any, Volume]],
    *,
    drives: Sequence[DriveParameters],
    config: Config | None = None,
    idle: bool = False,
) -> None:
    """Runs ``main`` with and without jumps, and with ``idle`` on until no timer runs any more."""
    outcomes = []
    for jumping in (True, False):
        with Card([*drives], seed=SEED, jumping=jumping, config=config) as card:
            volume = card.run(main(card))
            if idle:
                card.finish(volume)
            else:
                card.check(volume)
            outcomes.append(outcome(card, jumping=jumping))
    assert outcomes[0] == outcomes[1], "jumps have changed something"


def outcome(card: Card, *, jumping: bool) -> tuple:
    """All that two runs must have in common: times, counters, and what the drives hold."""
    statistics = card.harness.statistics()
    skipped = statistics.pop("cycles_skipped")
    evaluated = statistics.pop("cycles_evaluated")
    assert (statistics.pop("jumps") > 0) == jumping == (skipped > 0)
    print(f"jumping {jumping}: {evaluated} cycles evaluated, {skipped} skipped")
    ports = range(card.card.config.ports)
    data = hashlib.sha256()
    for port in ports:
        for block in card.harness.written_blocks(port):
            if block >= DATA_OFFSET_BLOCKS:  # superblocks name the card, which is another one
                data.update(card.harness.read_drive(port, block))
    return (
        card.ends_ns,
        card.harness.now_ns,
        statistics,
        [card.harness.drive_statistics(port) for port in ports],
        [card.harness.drive_latencies(port) for port in ports],
        [card.harness.written_blocks(port) for port in ports],
        data.hexdigest(),
    )


@pytest.mark.parametrize("until", ["done", pytest.param("idle", marks=pytest.mark.slow)])
def test_jumps_change_nothing(until):
    """Without time jumps: the same data, completion times and counters, in slow drives' time.

    The slow one goes on until no timer runs any more, a few hundred milliseconds of nothing.
    """

    async def main(card: Card) -> Volume:
        volume = await card.create(Level.RAID5, range(5))
        await card.load(volume, 40, workers=6, longest=12)
        return volume

    drives = [SLOW_HDD, SLOW_SSD, FAST, SLOW_HDD, SLOW_SSD]
    jumps_change_nothing(main, drives=drives, idle=until == "idle")


# Runs with trouble. Each appends to `Card.ends_ns` when it learns something.


async def hang(card: Card) -> Volume:
    """A drive hangs, and its commands are aborted; then its port is reset."""
    volume = await card.create(Level.RAID5, range(4))
    card.harness.drive_fault(2, 1)
    await card.load(volume, 20, workers=6, longest=4)
    card.harness.drive_fault(2, -1, deaf=True)
    await card.load(volume, 20, workers=6, longest=4)
    counted = card.harness.drive_statistics(2)
    assert counted["aborts"] and counted["resets"]
    return volume


async def give_up(card: Card) -> Volume:
    """A drive hangs until it is given up."""
    volume = await card.create(Level.RAID6, range(5))
    card.harness.drive_fault(1, deaf=True, lasting=True)
    await card.load(volume, 30, workers=6, longest=4)
    (array,) = await raid.arrays(card.nvme)
    card.gone = {member.port for member in array.members if member.failed}
    assert card.gone == {1}
    return volume


async def rebuild(card: Card) -> Volume:
    """A drive is replaced, and rebuilt in a part of the time, since the host is never silent."""
    port, nvme = 1, card.nvme
    volume = await card.create(Level.RAID5, range(4))
    card.pull(port)
    await card.load(volume, 10)
    card.harness.insert(port, blank=True)
    await card.card.transport.sleep(100_000)
    await background.set_rate(nvme, RATE)
    await background.replace_member(nvme, volume.array, port, port)
    began, rows = card.harness.now_ns, []
    while (job := await background.job(nvme, volume.array)).state == JobState.RUNNING:
        rows.append(job.row)
        card.ends_ns += (card.harness.now_ns, job.row)
        await card.load(volume, 4, workers=2, longest=4)
    print(f"rebuilt in {(card.harness.now_ns - began) / 1000:.0f} us: {rows}")
    assert (job.kind, job.state) == (WalkKind.REBUILD, JobState.DONE), job
    replaced(card, volume, port, port)
    return volume


async def reset(card: Card) -> Volume:
    """The host disables the controller under load, then the link is reset, and goes on."""
    volume = await card.create(Level.RAID5, range(4))
    harness, nvme, transport = card.harness, card.nvme, card.card.transport

    async def write(block: int) -> None:
        address = card.buffer(1)
        data = card.random.randbytes(BLOCK_BYTES)
        transport.memory.write(address, data)
        begun = volume.model.begin_write(block, [data])
        try:
            await nvme.write(volume.namespace, block, 1, address, block % len(nvme.queues))
        except QueueStoppedError:
            volume.model.end_write(begun, done=False)
        else:
            volume.model.end_write(begun)
            card.ends_ns.append(harness.now_ns)

    stopped = False
    for way in ("disable", "link", "disable"):
        for block in range(24):
            transport.spawn(write(block))
        await transport.sleep(20_000)
        if way == "link":
            harness.reset_link(DOWN_NS)
            harness.set_status("bus_master", 1)
        stopped |= any(queue.outstanding for queue in nvme.queues)
        await nvme.stop()
        card.ends_ns.append(harness.now_ns)
        await nvme.start(queue_pairs=card.card.config.queue_pairs)
        card.ends_ns.append(harness.now_ns)
        await card.load(volume, 10)
    assert stopped, "nothing was under way"
    return volume


async def shut_down(card: Card) -> Volume:
    """An array loses a drive, has it replaced, and is clean in the end."""
    volume = await rebuild(card)
    transport = card.card.transport
    await transport.write32(Register.CC, CC_ENABLE | SHUT_DOWN)
    while await transport.read32(Register.CSTS) & SHUTDOWN_STATUS != SHUTDOWN_DONE:
        await transport.sleep(POLL_NS)
    card.ends_ns.append(card.harness.now_ns)
    return volume


@pytest.mark.parametrize(
    ("main", "config"),
    [
        pytest.param(hang, USUAL, id="hang", marks=pytest.mark.slow),
        pytest.param(give_up, USUAL, id="give_up", marks=pytest.mark.slow),
        pytest.param(rebuild, USUAL, id="rebuild"),
        pytest.param(reset, USUAL, id="reset"),
        pytest.param(hang, METADATA, id="metadata-hang", marks=pytest.mark.slow),
        pytest.param(give_up, METADATA, id="metadata-give_up", marks=pytest.mark.slow),
        pytest.param(reset, METADATA, id="metadata-reset", marks=pytest.mark.slow),
        pytest.param(shut_down, METADATA, id="metadata-shut_down", marks=pytest.mark.slow),
    ],
)
def test_jumps_change_no_trouble(main, config):
    """The recovery ladder, a job that rests, resets and superblocks, too."""
    jumps_change_nothing(main, drives=[FAST] * config.ports, config=config)


class NeverWakes(Pace):
    """Planted bug: nothing is said of when the rest of a job ends."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.deadline.eq(NEVER)
        return m


@pytest.mark.slow
def test_a_deadline_that_is_missing_is_found(monkeypatch):
    plant(monkeypatch, "hdl.background.background.Pace", NeverWakes)
    with pytest.raises(AssertionError, match="jumps have changed something"):
        jumps_change_nothing(rebuild, drives=[FAST] * USUAL.ports, config=USUAL)
