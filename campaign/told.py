"""Drives that an array needs begin anew under writes, and the host flushes until it is told.

They have some blocks of these writes in their caches, and forget them at random. They may do so
twice, and a Flush may be inside as they do. Another drive may be late, so some of the writes end
after the host has been told. If the next Flush succeeds, the data of these must be there, although
their drives have begun anew in the middle of them. What ended before may be lost, as the host
knows. So may all of it if that Flush is refused as well.
"""

import random

from campaign.array import Array
from campaign.budget import Budget
from campaign.card import Card
from campaign.lifetimes import WRITE_FAULT
from campaign.volume import Volume, pieces

SHARE = 0.15
WRITES, LONGEST = 24, 4
"""Writes of a volume at most, and their logical blocks at most."""
FUAS = 0.2
LATE, LATE_COMMANDS, LATE_NS = 0.8, 8, 300_000
"""Share of times in which a drive is late, with how many commands at most, and how late at most."""
FLUSHING_NS = 1_000
BEFORE, BEFORE_NS = 0.5, 8_000
"""Share of volumes that are being flushed as drives restart, and since when at most."""
TWICE = 0.5
"""Share of restarts that are followed by another one."""
SOON_NS = 5_000
"""A write that ends so soon after the host was told may have ended before for the card."""


class Told:
    """Restarts drives under writes.

    Parameters
    ----------
    features, choose
        Features of the campaign and random choices.
    """

    def __init__(self, features: frozenset[str], choose: random.Random):
        self._happens = "told" in features
        self._choose = choose

    async def work(self, array: Array) -> None:
        """Does it, sometimes."""
        card, choose = array.card, self._choose
        if not self._happens or choose.random() >= SHARE:
            return
        if not card.config.background or not array.healthy or array.budget.bad:
            return
        array.troubled.update(array.ports)
        for volume in array.volumes:
            assert await volume.flush() == 0
            volume.settle()
        restarted = self._more_than_tolerated(array)
        late = choose.choice([port for port in array.ports if port not in restarted] or restarted)
        if choose.random() < LATE:
            delay_ns = choose.uniform(0, LATE_NS)
            commands = choose.randint(1, LATE_COMMANDS)
            card.harness.drive_fault(late, commands, at_end=True, delay_ns=delay_ns)
        ended: dict[Volume, list[tuple[float, int, list[bytes]]]] = {}
        writes = card.spawn(
            self._write(volume, first, count, ended.setdefault(volume, []))
            for volume in array.volumes
            for first, count in self._places(volume)
        )
        await card.sleep(choose.uniform(0, LATE_NS / 2))
        told_ns: dict[Volume, float] = {}
        before = card.spawn(
            self._flush_before(volume, told_ns)
            for volume in array.volumes
            if choose.random() < BEFORE
        )
        await card.sleep(choose.uniform(0, BEFORE_NS))
        card.restart(restarted)
        if choose.random() < TWICE:
            await card.restart_again(restarted, choose)
        while len(told_ns) < len(array.volumes) and not writes.ended:
            for volume in array.volumes:
                if volume not in told_ns and await self._flush(volume):
                    told_ns[volume] = card.harness.now_ns
            await card.sleep(choose.uniform(0, FLUSHING_NS))
        early = bool(told_ns) and not writes.ended
        await writes.join()
        await before.join()
        card.harness.drive_fault(late, 0)
        card.outcome.faults["restarts under writes"] += 1
        for volume in array.volumes:
            await self._judge(card, volume, told_ns.get(volume), ended.get(volume, []))
        card.outcome.seen["hosts told in the middle of writes"] += early
        for volume in array.volumes:
            await volume.read_all()
        await array.job_ends()
        for volume in array.volumes:
            await volume.read_all()
            assert await volume.flush() == 0
            volume.settle()
        array.troubled.clear()

    async def _judge(
        self,
        card: Card,
        volume: Volume,
        told_ns: float | None,
        ended: list[tuple[float, int, list[bytes]]],
    ) -> None:
        """Flushes until that succeeds, which is soon. From then on the volume holds the data of
        the writes that have ended since the host was told last. The rest of the blocks may hold
        what they held before."""
        volume.model.lose_power()
        if await self._flush(volume):
            told_ns = card.harness.now_ns
            assert not await self._flush(volume), f"{volume}: it is told again and again"
        assert told_ns is not None, f"{volume}: nobody is told that its drives have begun anew"
        for end_ns, first, data in ended:
            if end_ns > told_ns + SOON_NS:
                for block, content in enumerate(data, first):
                    volume.model.settle(block, {content})
                card.outcome.seen["writes that ended after the host was told"] += 1

    async def _flush_before(self, volume: Volume, told_ns: dict[Volume, float]) -> None:
        """A Flush that is inside as drives restart. In a full queue it would be submitted late."""
        if volume.array.card.nvme.queues[0].room and await self._flush(volume, 0):
            told_ns[volume] = volume.array.card.harness.now_ns

    async def _flush(self, volume: Volume, queue: int | None = None) -> bool:
        """Whether a Flush is refused."""
        queues = volume.array.card.nvme.queues
        queue = self._choose.randrange(len(queues)) if queue is None else queue
        status = await volume.flush(queue)
        assert status in (0, WRITE_FAULT), f"{volume}: a flush ends with {status:#x}"
        return status != 0

    async def _write(
        self,
        volume: Volume,
        first: int,
        count: int,
        ended: list[tuple[float, int, list[bytes]]],
    ) -> None:
        card, choose = volume.array.card, self._choose
        buffer, queue = card.take_buffer(), choose.randrange(len(card.nvme.queues))
        status = await volume.write(first, count, buffer, queue, fua=choose.random() < FUAS)
        assert status == 0, f"{volume}: write of block {first}: status {status:#x}"
        size = volume.sector_bytes
        data = card.transport.memory.read(buffer, count * size)
        ended.append((card.harness.now_ns, first, pieces(data, size)))
        card.give_buffer(buffer)

    def _more_than_tolerated(self, array: Array) -> list[int]:
        """Some ports of the array, without which it has lost data."""
        positions = list(range(array.layout.drives))
        self._choose.shuffle(positions)
        for count in range(1, len(positions)):
            few = positions[:count]
            if not Budget.of(array.layout, array.rows, set(few)).tolerated():
                return [array.ports[position] for position in few]
        return list(array.ports)

    def _places(self, volume: Volume) -> list[tuple[int, int]]:
        """Logical blocks that are written, each once: the first of them, and how many."""
        blocks = len(volume.model)
        count = self._choose.randint(1, min(LONGEST, blocks))
        firsts = range(0, blocks - count + 1, count)
        return [(first, count) for first in self._choose.sample(firsts, min(len(firsts), WRITES))]
