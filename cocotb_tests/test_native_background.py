"""Background work on the whole 8-port controller, on the native tier, with the host at work."""

import os
from dataclasses import replace

import pytest

from cocotb_tests.native_card import PORTS, Card, Volume
from hdl.array.interface import ArrayState, Level
from hdl.background.interface import WalkKind
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import background, raid

SEED = int(os.environ.get("SEED") or "1")
ROWS = 64
FAST = Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=5 * MICROSECOND)
POLL_NS = 20_000
POLLS = 3_000


async def finished(card: Card, array: int = 0) -> background.Job:
    """Waits until the job of an array has ended; what became of it."""
    for _ in range(POLLS):
        job = await background.job(card.nvme, array)
        if job.state != JobState.RUNNING:
            return job
        await card.card.transport.sleep(POLL_NS)
    raise AssertionError(f"the job has not ended: {job}")


def replaced(card: Card, volume: Volume, old: int, new: int) -> None:
    """The golden volume follows: ``new`` holds what ``old`` did."""
    volume.ports[volume.ports.index(old)] = new
    card.gone.discard(new)


@pytest.mark.parametrize("level", [Level.RAID5, Level.RAID6])
def test_rebuilds_under_load(level):
    """A drive goes, another takes its place under load; then the rest of the redundancy goes."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(level, range(6)))

        async def scenario() -> None:
            spawn = card.card.transport.spawn
            nvme = card.nvme
            spawn(card.load(volume, 60))
            card.pull(2)
            await card.load(volume, 60)
            (array,) = await raid.arrays(nvme)
            degraded = ArrayState.DEGRADED
            if level == Level.RAID6:
                degraded = ArrayState.PARTIALLY_DEGRADED
            assert array.state == degraded and array.members[2].failed
            # The host is at work before, during and after.
            for row in range(ROWS):
                card.store(6, row, card.random.randbytes(4096))
            await background.replace_member(nvme, 0, 2, 6)
            replaced(card, volume, 2, 6)
            await card.load(volume, 120)
            job = await finished(card)
            assert job.state == JobState.DONE and job.kind == WalkKind.REBUILD, job
            assert job.row == ROWS and not job.lost
            (array,) = await raid.arrays(nvme)
            assert array.state == ArrayState.OPTIMAL and array.members[2].port == 6
            assert not array.members[2].stale
            await card.read_all(volume)

        card.run(scenario())
        card.finish(volume)

        async def after() -> None:
            for port in (0, 1)[: level == Level.RAID6 and 2 or 1]:
                card.pull(port)
            await card.load(volume, 60)
            await card.read_all(volume)

        card.run(after())
        card.finish(volume)
