"""All drives of an array begin anew at once. Data that the host then reads and flushes must stay.

Copies differ after that, or rows are torn, until a RESYNC has mended them. Blocks that had been
flushed, and have not been written since, are on their drives, and are read all the time. The host
has been told. It reads the rest of the blocks as they are and flushes them. From then on every
block must keep that value, whichever copy is read: before the RESYNC, in the middle of it and after
it. Of mirrors this holds also if a drive cannot read its copy meanwhile. It holds if one of the
drives begins anew once more. A read of mirrors that is under way as the drives begin anew gives
data of before, or the data that stays.
"""

import random
from collections.abc import Collection

from campaign.array import Array
from campaign.card import STOPPED, Card, Group
from campaign.lifetimes import WRITE_FAULT
from campaign.queues import Queues
from campaign.resets import UNEXPECTED
from campaign.volume import Volume, pieces
from hdl.background.supervisor import DEFAULT_RATE
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS
from sim.native.harness import Flow
from sw.driver import background

SHARE = 0.25
LEAST_RATE = 1
WRITES = 200
"""Writes of a volume, at most."""

READS, READING_NS = 32, 20_000
"""Reads of a volume as the drives restart, at most, and how long before that they begin."""
GLIMPSES = 48
"""Reads of the blocks that were written last, likewise. There are more than the drives of small
mirrors have at once. They fill half of the queues at most, so that there is room for Flushes."""
FLUSHES, FLUSHING_NS = 3, 3_000
"""Flushes, likewise. Those that have ended well must have stored all data that was written before.
"""
RESETS, RESET_NS = 0.4, (2_000, 20_000)
"""Share of restarts after which the controller is reset, and how long after that at most."""
TOLD, HELD = 0.7, 0.5
"""Share of such resets that find volumes being told, and share that find a link which takes
nothing."""
STALLS, STALL_NS = 0.5, 2_000_000
"""Share of restarts before which the drives do not answer, and for how long at most."""

TWICE = 0.3
"""Share of restarts that are followed by another one."""

UNREADABLE = 4
MENDED_NS = 300_000

ALONE, ALONE_NS = 0.5, 100_000
"""Share of times in which one drive restarts once more, and how long after all that at most."""


class Torn:
    """Restarts all drives of an array.

    Parameters
    ----------
    features, choose, queues
        What the campaign does.
    """

    def __init__(self, features: frozenset[str], choose: random.Random, queues: Queues):
        self._features = features
        self._choose = choose
        self._queues = queues
        self._restarted = False

    async def work(self, array: Array) -> None:
        """Sometimes restarts all drives of an array after some writes."""
        card, choose = array.card, self._choose
        mirrored = array.layout.copies > 1
        possible = card.config.background and array.redundant and array.healthy
        if "torn" not in self._features or not possible or array.budget.bad:
            return
        if choose.random() >= SHARE:
            return
        array.troubled.update(array.ports)
        left: dict[Volume, list[int]] = {}
        glimpses: dict[Volume, dict[int, set[bytes]]] = {}
        for volume in array.volumes:
            assert await volume.flush() == 0
            blocks = range(len(volume.model))
            written = choose.sample(blocks, min(len(blocks) // 2, WRITES))
            await volume.write_each(written, 1)
            others = sorted(set(blocks) - set(written))
            left[volume] = choose.sample(others, min(len(others), READS))
            if mirrored and written:
                some = choose.sample(written, min(len(written), GLIMPSES))
                glimpses[volume] = {block: volume.model.possible(block) for block in some}
        await background.set_rate(card.nvme, LEAST_RATE)
        reading_ns = choose.uniform(0, READING_NS)
        statuses: dict[Volume, list[int]] = {volume: [] for volume in array.volumes}
        inside = [self._read(volume, blocks) for volume, blocks in left.items()]
        given: dict[Volume, list[tuple[int, bytes]]] = {volume: [] for volume in glimpses}
        for volume, before in glimpses.items():
            inside.append(self._glimpse(volume, before, given[volume]))
        spoils = mirrored and "medium" in self._features
        early = choose.random() < 0.5
        unreadable = self._spoil(array) if spoils and early else []
        resets = "resets" in self._features and choose.random() < RESETS
        tells = resets and choose.random() < TOLD
        for volume in array.volumes:
            for _ in range(0 if tells else choose.randint(0, FLUSHES)):
                after = max(0, reading_ns - choose.uniform(0, FLUSHING_NS))
                inside.append(self._flush(volume, after, statuses[volume]))
        self._restarted = False
        group = card.spawn(inside)
        await card.sleep(reading_ns)
        if choose.random() < STALLS:
            for port in array.ports:
                card.harness.drive_fault(port)
            await card.sleep(choose.uniform(0, STALL_NS))
            card.outcome.seen["drives that stopped before they restarted"] += len(array.ports)
        for port in array.ports:
            card.harness.drive_fault(port, 0)
        card.restart(array.ports)
        self._restarted = True
        twice = choose.random() < TWICE
        if twice:
            await card.restart_again(array.ports, choose)
        if resets:
            told = array.volumes if tells else []
            telling = card.spawn(self._tell(volume, statuses[volume]) for volume in told)
            held_ns = choose.choice(RESET_NS)
            if choose.random() < HELD:
                card.harness.hold(Flow.RQ_READY, held_ns)
            await card.sleep(choose.uniform(0, held_ns))
            await self._reset(card, [group, telling])
        await group.join()
        differ = sum(len(array.held(block)) > 1 for block in range(array.blocks))
        card.outcome.seen["blocks of which copies differed"] += differ
        for volume in array.volumes:
            volume.model.lose_power()
        for volume in array.volumes:
            told = any(status > 0 for status in statuses[volume])
            if not told or resets or twice:
                # The host may have been told, and have been reset before the controller knew. Or
                # it was told of the first restart before the second one.
                again = await volume.flush()
                assert told or again, f"{volume}: nobody is told that its drives have begun anew"
                card.outcome.seen["volumes told after a reset"] += resets and not told
        if spoils and not early:
            unreadable = self._spoil(array)
        held = {volume: await self._look(volume) for volume in array.volumes}
        for volume, blocks in given.items():
            for block, data in blocks:
                of_before = data in glimpses[volume][block]
                # No redundancy was left for what a drive cannot read that could a moment ago.
                gone = not early and self._touches(volume, block, unreadable)
                assert of_before or gone or data == held[volume][block], (
                    f"{volume}: what a read gave of block {block} is another block by now"
                )
                card.outcome.seen["blocks first read as drives restarted"] += not of_before
        for volume, blocks in held.items():
            assert await volume.flush() == 0
            for block, data in enumerate(blocks):
                volume.model.settle(block, {data})
        if unreadable:
            # What another copy has given is written there soon; until then it may come back.
            await card.sleep(MENDED_NS)
        for port, block in unreadable:
            card.harness.clear_medium_error(port, block)
        if not unreadable and choose.random() < ALONE:
            await self._restart_one(array)
        for volume in array.volumes:
            await volume.read_all()
        await background.set_rate(card.nvme, DEFAULT_RATE)
        await array.job_ends()
        for volume in array.volumes:
            await volume.read_all()
            assert await volume.flush() == 0
            volume.settle()
        card.outcome.faults["mirrors restarted" if mirrored else "rows torn"] += 1
        array.troubled.clear()

    async def _restart_one(self, array: Array) -> None:
        """A drive restarts that has stored all it should have, perhaps in the middle of the RESYNC.
        """
        card, choose = array.card, self._choose
        await card.sleep(choose.uniform(0, ALONE_NS))
        card.harness.restart_drive(choose.choice(array.ports))
        await card.sleep(FLUSHING_NS)
        for volume in array.volumes:
            told = await volume.flush()
            assert told in (0, WRITE_FAULT)
            assert not await volume.flush()
            card.outcome.seen["volumes told of one drive"] += told != 0
        card.outcome.faults["one drive restarted of a torn array"] += 1

    async def _flush(self, volume: Volume, after: float, statuses: list[int]) -> None:
        """Sends a Flush some time later, unless the drives have restarted by then.

        One that has to wait for room in its queue is not sent. It would be submitted after others
        have told, and then says nothing of the data that was written before.
        """
        card = volume.array.card
        await card.sleep(after)
        queues = card.nvme.queues
        queue = self._choose.randrange(len(queues))
        if not self._restarted and queues[queue].room:
            card.outcome.seen["flushes inside as drives restart"] += 1
            statuses.append(await volume.flush(queue))

    async def _tell(self, volume: Volume, statuses: list[int]) -> None:
        """Sends a Flush right after the drives have restarted."""
        queues = volume.array.card.nvme.queues
        statuses.append(await volume.flush(self._choose.randrange(len(queues))))

    async def _reset(self, card: Card, inside: list[Group]) -> None:
        """Resets the controller, which the host enables again, or only deletes the queues.

        A Flush whose answer does not reach the host has told nobody.
        """
        choose = self._choose
        card.stops = True
        ways = ["disable", *UNEXPECTED]
        ways += ["queues deleted"] if "queues" in self._features else []
        way = choose.choice(ways)
        if way in UNEXPECTED:
            await UNEXPECTED[way](card, choose)
        if way == "queues deleted":
            await self._queues.renew_all()
        else:
            await card.nvme.stop()
        for group in inside:
            await group.join()
        if way != "queues deleted":
            await card.nvme.start(queue_pairs=card.config.queue_pairs)
        card.stops = False
        card.outcome.seen[f"{way} as drives restart"] += 1

    def _spoil(self, array: Array) -> list[tuple[int, int]]:
        """Makes some blocks of one drive unreadable. Each has a copy elsewhere."""
        port = self._choose.choice(array.ports)
        rows = self._choose.sample(range(array.rows), min(array.rows, UNREADABLE))
        places = [(port, DATA_OFFSET_BLOCKS + row) for row in rows]
        for place in places:
            array.card.harness.medium_error(*place)
        return places

    @staticmethod
    def _touches(volume: Volume, block: int, places: list[tuple[int, int]]) -> bool:
        """Whether a copy of a logical block is at one of these places."""
        array = volume.array
        copies = array.layout.copies_of(volume.array_block(block))
        return any((array.ports[c.position], DATA_OFFSET_BLOCKS + c.row) in places for c in copies)

    async def _read(self, volume: Volume, blocks: list[int]) -> None:
        """Reads these blocks. They have their old data, whatever happens to others."""

        async def read(block: int, buffer: int) -> None:
            card = volume.array.card
            status = STOPPED if card.stops else await volume.read(block, 1, buffer)
            stopped = card.stops and status == STOPPED
            assert status == 0 or stopped, f"{volume}: read of block {block}: status {status:#x}"

        await volume.each(blocks, read)

    async def _glimpse(
        self, volume: Volume, blocks: Collection[int], given: list[tuple[int, bytes]]
    ) -> None:
        """Reads these blocks, some of them several times. Returns the data that the host gets."""
        card, size = volume.array.card, volume.sector_bytes

        queues = card.nvme.queues

        async def read(number: int, block: int) -> None:
            buffer, queue = card.take_buffer(), number % len(queues)
            command = card.nvme.read(volume.namespace, block, 1, buffer, queue, size)
            if await card.timed(volume, "a read", command, queue) == 0:
                given.append((block, card.transport.memory.read(buffer, size)))
            card.give_buffer(buffer)

        # All at once, so that some wait for their drives.
        room = len(queues) * (card.config.queue_depth - 1) // (2 * len(volume.array.volumes))
        some = self._choose.choices(sorted(blocks), k=min(GLIMPSES, room))
        await card.together([read(number, block) for number, block in enumerate(some)])

    async def _look(self, volume: Volume) -> list[bytes]:
        """Reads each block. Returns the data that the host gets."""
        memory = volume.array.card.transport.memory
        blocks = [b""] * len(volume.model)
        sectors = BLOCK_BYTES // volume.sector_bytes

        async def look(first: int, buffer: int) -> None:
            assert await volume.read(first, sectors, buffer) == 0
            data = memory.read(buffer, BLOCK_BYTES)
            blocks[first : first + sectors] = pieces(data, volume.sector_bytes)

        await volume.each(range(0, len(blocks), sectors), look)
        return blocks
