"""A member changes places with its migration target, and then the power goes.

Everything is durable before. The new drive has all blocks, and is late to flush. Meanwhile the host
writes blocks of the member without FUA. Then it reads them with FUA, or the array is without
another member, and the host writes blocks of that one with FUA. The member may refuse a write that
the new drive stores. Then the migration may fail, and no other block is lost. As soon as the
migration has ended all drives of the array lose their power. A write may be under way as the two
change places. Then the old drive goes, and without redundancy the new one may refuse what is
written. What was stored must be there, whichever of the two drives had it: what was written with
FUA, and without redundancy what was read with FUA. In an array without a member the rest of the
blocks may be wrong, by the write hole.
"""

import random

from campaign.array import Array
from campaign.card import Card
from campaign.power import POLL_NS, Power, Work
from campaign.volume import Volume
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.walk import WalkKind
from sim.card.volume_model import ANYTHING
from sim.golden.layout import Place
from sim.golden.nvme import WRITE_FAULT
from sw.driver import background

SHARE, ROWS = 0.15, 12
"""Share of arrays to which it happens, and of how many rows at most blocks are written."""
REFUSED = 0.1
"""Share of the member's blocks that it refuses, if the array does not do without it."""
UNDER_WAY = 0.3
"""Share of changes of places with a write under way."""
LATE_NS = 300_000
DRAIN_POLL_NS = 2_000
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
        self._refused = False

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
        self._refused = False
        array.troubled.update((*array.ports, port))
        await self._migrate(array, position, port, away)
        stored: dict[Volume, set[int]] = {}
        gone = None
        if choose.random() < UNDER_WAY:
            refuses = not array.redundant and choose.random() < 0.5
            gone = await self._lose_the_old(array, position, port, stored, refuses=refuses)
        else:
            stored = await self._write(array, position, away)
            running = (await array.job()).state == JobState.RUNNING
            card.outcome.seen["writes before a change of places"] += running
        job = await array.job_ends()
        if gone is not None:
            card.harness.insert(gone)
        assert job.kind == WalkKind.MIGRATE, f"{array}: {job}"
        if job.state == JobState.DONE:
            array.ports[position] = port
        else:
            assert job.state == JobState.FAILED, f"{array}: {job}"
            assert self._refused, f"{array}: {job}"
            card.outcome.seen["changes of places given up"] += 1
            card.harness.remove(port)
            await card.sleep(POLL_NS)
            card.harness.insert(port)
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
        card, layout, old = self._card, array.layout, array.ports[position]
        stored: dict[Volume, set[int]] = {}

        async def one(row: int) -> None:
            buffer = card.take_buffer()
            cached = self._logical(array, position, row)
            missing = None if away is None else self._logical(array, away, row)
            # Only if the array does not do without the member.
            alone = not array.redundant or (layout.drives == layout.data + 1 and missing)
            refuses = bool(alone) and self._choose.random() < REFUSED
            if cached is not None:
                volume, first, count = cached
                if refuses:
                    card.harness.refuse_writes(old, DATA_OFFSET_BLOCKS + row)
                status = await volume.write(first, count, buffer, 0, fua=False)
                if refuses:
                    card.harness.accept_writes(old, DATA_OFFSET_BLOCKS + row)
                assert status == 0 or (refuses and status == WRITE_FAULT), hex(status)
                self._refused |= status == WRITE_FAULT
                if not array.redundant:
                    assert await volume.read(first, count, buffer, fua=True) == 0
            if missing is not None:
                volume, first, count = missing
                assert await volume.write(first, count, buffer, 0, fua=True) == 0
                stored.setdefault(volume, set()).update(range(first, first + count))
            card.give_buffer(buffer)

        rows = self._choose.sample(range(array.rows), min(array.rows, ROWS))
        for first in range(0, len(rows), 4):
            await card.together(one(row) for row in rows[first : first + 4])
        return stored

    async def _lose_the_old(
        self,
        array: Array,
        position: int,
        new: int,
        stored: dict[Volume, set[int]],
        *,
        refuses: bool,
    ) -> int | None:
        """A write is under way as the drives change places, and the old one goes. The new one may
        refuse what is written. Returns the port of the old drive, if it has gone."""
        card, choose, old = self._card, self._choose, array.ports[position]
        gone: list[int] = []
        found = ((row, self._logical(array, position, row)) for row in range(array.rows))
        rows = [(row, logical) for row, logical in found if logical is not None]
        if not rows:
            return None
        row, (volume, first, count) = choose.choice(rows)
        statuses: list[int] = []

        async def write() -> None:
            buffer = card.take_buffer()
            if refuses:
                card.harness.refuse_writes(new, DATA_OFFSET_BLOCKS + row)
            card.harness.drive_fault(new, 1, delay_ns=3 * LATE_NS)
            status = await volume.write(first, count, buffer, 0, fua=True)
            if refuses:
                card.harness.accept_writes(new, DATA_OFFSET_BLOCKS + row)
            assert status == 0 or (refuses and status == WRITE_FAULT), hex(status)
            if status == 0:
                stored.setdefault(volume, set()).update(range(first, first + count))
            statuses.append(status)
            card.give_buffer(buffer)

        async def lose() -> None:
            while not statuses and (await array.state()).members[position].port != new:
                await card.sleep(DRAIN_POLL_NS)
            if statuses:
                self._refused = refuses
                return
            card.harness.remove(old)
            gone.append(old)
            await card.sleep(POLL_NS)
            card.outcome.faults["drives that went as they were replaced"] += 1

        await card.together([write(), lose()])
        return gone[0] if gone else None

    def _logical(
        self, array: Array, position: int, row: int
    ) -> tuple[Volume, int, int] | None:
        """The logical blocks of a volume that a member has in a row, if it has some."""
        block = array.layout.inverse(Place(position, row))
        return None if block is None else array.logical(block)
