"""All drives of mirrors begin anew at once: what the host then reads, and flushes, stays so.

Copies differ then until a RESYNC has made them alike. The host has been told, reads what is left,
and flushes it. From then on every block must be that, whichever copy it is read from: before the
RESYNC, in the middle of it and after it, also if a drive cannot read its copy meanwhile.
"""

import random

from hdl.background.supervisor import DEFAULT_SHARE
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS
from sim.campaign.array import Array
from sim.campaign.volume import Volume, pieces
from sw.driver import background

SHARE = 0.25
LEAST_SHARE = 1
WRITES = 200
"""Of a volume, at most."""

UNREADABLE = 4


class Torn:
    """Restarts all drives of an array.

    Parameters
    ----------
    features, choose
        What the campaign does.
    """

    def __init__(self, features: frozenset[str], choose: random.Random):
        self._features = features
        self._choose = choose

    async def work(self, array: Array) -> None:
        """Perhaps all drives of a mirror restart after some writes."""
        card, choose = array.card, self._choose
        possible = card.config.background and array.layout.copies > 1 and array.healthy
        if "torn" not in self._features or not possible or array.budget.bad:
            return
        if choose.random() >= SHARE:
            return
        array.troubled.update(array.ports)
        for volume in array.volumes:
            blocks = len(volume.model)
            await volume.write_each(choose.sample(range(blocks), min(blocks, WRITES)), 1)
        await background.set_share(card.nvme, LEAST_SHARE)
        for port in array.ports:
            card.harness.restart_drive(port)
        differ = sum(len(array.held(block)) > 1 for block in range(array.blocks))
        card.outcome.seen["blocks of which copies differed"] += differ
        for volume in array.volumes:
            volume.model.lose_power()
        refused = [await volume.flush() for volume in array.volumes]
        assert all(refused), f"{array}: who is told that its drives have begun anew: {refused}"
        unreadable = self._spoil(array) if "medium" in self._features else []
        held = {volume: await self._look(volume) for volume in array.volumes}
        for volume, blocks in held.items():
            assert await volume.flush() == 0
            for block, data in enumerate(blocks):
                volume.model.settle(block, {data})
        for port, block in unreadable:
            card.harness.clear_medium_error(port, block)
        for volume in array.volumes:
            await volume.read_all()
        await background.set_share(card.nvme, DEFAULT_SHARE)
        await array.job_ends()
        for volume in array.volumes:
            await volume.read_all()
            assert await volume.flush() == 0
            volume.settle()
        card.outcome.faults["mirrors restarted"] += 1
        array.troubled.clear()

    def _spoil(self, array: Array) -> list[tuple[int, int]]:
        """One drive cannot read some blocks; each has a copy elsewhere."""
        port = self._choose.choice(array.ports)
        rows = self._choose.sample(range(array.rows), min(array.rows, UNREADABLE))
        places = [(port, DATA_OFFSET_BLOCKS + row) for row in rows]
        for place in places:
            array.card.harness.medium_error(*place)
        return places

    async def _look(self, volume: Volume) -> list[bytes]:
        """What the host reads of each block."""
        memory = volume.array.card.transport.memory
        blocks = [b""] * len(volume.model)
        sectors = BLOCK_BYTES // volume.sector_bytes

        async def look(first: int, buffer: int) -> None:
            assert await volume.read(first, sectors, buffer) == 0
            data = memory.read(buffer, BLOCK_BYTES)
            blocks[first : first + sectors] = pieces(data, volume.sector_bytes)

        await volume.each(range(0, len(blocks), sectors), look)
        return blocks
