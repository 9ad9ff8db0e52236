"""A member changes places with its migration target, and then the power goes.

Everything is durable before. The new drive has all blocks, and is late to flush. Meanwhile the host
writes blocks of the member without FUA. Then it reads them with FUA, or the array is without
another member, and the host writes blocks of that one with FUA. As soon as the migration is done
all drives of the array lose their power. What was stored must be there, whichever of the two drives
had it: what was written with FUA, and without redundancy what was read with FUA. In an array
without a member the rest of the blocks may be wrong, by the write hole.
"""

import random

from campaign.array import Array
from campaign.card import Card
from campaign.power import POLL_NS, Power, Work
from campaign.volume import Volume
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.flow.walk import WalkKind
from sim.card.volume_model import ANYTHING
from sim.golden.layout import Place
from sw.driver import background

SHARE, ROWS = 0.15, 12
"""Share of arrays to which it happens, and of how many rows at most blocks are written."""
LATE_NS = 300_000
QUICK_RATE = 100


class Places:
    """Migrates a member, and cuts the power.

    Parameters
    ----------
    card, power
        The card, and who cuts its power.
    features, choose
        Features of the campaign and random choices.
    """

    def __init__(
        self, card: Card, power: Power, features: frozenset[str], choose: random.Random
    ):
        self._card = card
        self._power = power
        self._happens = "places" in features
        self._choose = choose

    async def work(self, array: Array) -> None:
        """Does it, sometimes."""
        card, choose, layout = self._card, self._choose, array.layout
        if not self._happens or choose.random() >= SHARE:
            return
        if not card.config.background or not self._power.possible(array):
            return
        fit = self._power.fitting(array)
        if not fit:
            return
        position, port = choose.choice(fit)
        others = [one for one in range(layout.drives) if one != position]
        away = choose.choice(others) if layout.parities and choose.random() < 0.8 else None
        await self._power.settled(array)
        array.troubled.update((*array.ports, port))
        await self._migrate(array, position, port, away)
        stored = await self._write(array, position, away)
        running = (await array.job()).state == JobState.RUNNING
        card.outcome.seen["writes before a change of places"] += running
        job = await array.job_ends()
        assert (job.kind, job.state) == (WalkKind.MIGRATE, JobState.DONE), f"{array}: {job}"
        array.ports[position] = port
        await background.set_rate(card.nvme, DEFAULT_RATE)
        work = Work()
        if away is not None:
            work = Work(WalkKind.REBUILD, away)
            for volume in array.volumes:
                for block in {*range(len(volume.model))} - stored.get(volume, set()):
                    volume.model.settle(block, {ANYTHING})
        self._power.lose_power(array, [] if away is None else [away])
        await self._power.again(array, work)
        card.outcome.faults["power loss after a change of places"] += 1
        array.troubled.clear()

    async def _migrate(self, array: Array, position: int, port: int, away: int | None) -> None:
        """Returns when the new drive, which is at ``port``, has all blocks, and has begun to flush
        them. The member that is ``away`` goes meanwhile."""
        card = self._card
        await background.set_rate(card.nvme, QUICK_RATE)
        card.scribble(port, array.rows)
        flushes = card.harness.drive_statistics(port)["flushes"]
        card.harness.drive_fault(port, -1, at_end=True, delay_ns=LATE_NS)
        await background.migrate_member(card.nvme, array.number, position, port, spare=False)
        if away is not None:
            card.harness.remove(array.ports[away])
        while card.harness.drive_statistics(port)["flushes"] == flushes:
            job = await array.job()
            assert job.state == JobState.RUNNING, f"{array}: {job}"
            await card.sleep(POLL_NS)
        card.harness.drive_fault(port, 0)

    async def _write(
        self, array: Array, position: int, away: int | None
    ) -> dict[Volume, set[int]]:
        """Has blocks of the member in caches, and what is worked out from them stored. Returns the
        logical blocks that were written with FUA."""
        card = self._card
        stored: dict[Volume, set[int]] = {}

        async def one(row: int) -> None:
            buffer = card.take_buffer()
            cached = self._logical(array, position, row)
            if cached is not None:
                volume, first, count = cached
                assert await volume.write(first, count, buffer, 0, fua=False) == 0
                if not array.redundant:
                    assert await volume.read(first, count, buffer, fua=True) == 0
            missing = None if away is None else self._logical(array, away, row)
            if missing is not None:
                volume, first, count = missing
                assert await volume.write(first, count, buffer, 0, fua=True) == 0
                stored.setdefault(volume, set()).update(range(first, first + count))
            card.give_buffer(buffer)

        rows = self._choose.sample(range(array.rows), min(array.rows, ROWS))
        for first in range(0, len(rows), 4):
            await card.together(one(row) for row in rows[first : first + 4])
        return stored

    def _logical(
        self, array: Array, position: int, row: int
    ) -> tuple[Volume, int, int] | None:
        """The logical blocks of a volume that a member has in a row, if it has some."""
        block = array.layout.inverse(Place(position, row))
        return None if block is None else array.logical(block)
