"""Past what a level tolerates: what can be had must be had, and all else fails truthfully."""

import random

from hdl.config import DATA_OFFSET_BLOCKS
from sim.campaign.array import Array
from sim.campaign.budget import Budget
from sim.campaign.lifetimes import WRITE_FAULT
from sim.campaign.volume import Volume
from sim.golden.layout import Place
from sim.golden.nvme import UNRECOVERED_READ

READS, WRITES = 40, 20


class Past:
    """Takes drives away until blocks are lost.

    Parameters
    ----------
    choose
        Random choices.
    """

    def __init__(self, choose: random.Random):
        self._choose = choose

    async def work(self, array: Array) -> None:
        """One drive after the other goes, until some blocks are lost: exactly those fail."""
        card, budget = array.card, array.budget
        left = [p for p in range(array.layout.drives) if p not in budget.drives]
        self._choose.shuffle(left)
        array.troubled.update(array.ports)
        if "refused" in array.features:
            await self._refuse_where_needed(array, left)
        while budget.drives_suffice() and len(left) > 1:
            position = left.pop()
            budget.drives.add(position)
            card.pull(array.ports[position])
            card.outcome.faults["past tolerance"] += 1
        buffer = card.take_buffer()
        for volume in array.volumes:
            await self._flush(volume)
            await self._read(volume, buffer)
            await self._write(volume, buffer)
            await self._flush(volume)
            await self._read(volume, buffer)
        card.give_buffer(buffer)

    async def _refuse_where_needed(self, array: Array, left: list[int]) -> None:
        """As many drives go as may; one of those that are needed then refuses to write a block.

        That write may fail, and what shares its row be lost; but the drive stays.
        """
        card, budget = array.card, array.budget
        for position in list(left):
            if len(left) > 1 and array.redundant and budget.admits(drives=[position]):
                left.remove(position)
                card.pull(array.ports[position])
                card.outcome.faults["pull to the limit"] += 1
        places = [(position, row) for position in left for row in range(array.rows)]
        self._choose.shuffle(places)
        for position, row in places:
            block = array.layout.inverse(Place(position, row))
            where = None if block is None else array.logical(block)
            if where is not None and (position, row) not in budget.bad:
                break
        else:
            return
        volume, first, count = where
        port = array.ports[position]
        card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row)
        buffer = card.take_buffer()
        status = await volume.write(first, count, buffer, 0, fua=False)
        card.give_buffer(buffer)
        needed = not Budget.of(array.layout, array.rows, budget.drives | {position}).tolerated()
        places = array.layout.copies_of(volume.array_block(first))
        alone = not any(p.position != position and p.position in left for p in places)
        well = (0, WRITE_FAULT) if not (needed and alone) else (WRITE_FAULT,)
        assert status in well, f"{volume}: a write that is refused ends with {status:#x}"
        card.outcome.faults["refused where needed"] += 1
        budget.bad.add((position, row))
        members = (await array.state()).members
        if needed:
            assert not members[position].failed, f"{array}: {port} is given up, and was needed"
        elif members[position].failed:
            left.remove(position)
            budget.drives.add(position)

    def _some(self, volume: Volume, count: int) -> list[int]:
        return self._choose.sample(range(len(volume.model)), min(count, len(volume.model)))

    async def _flush(self, volume: Volume) -> None:
        """An array of which too many drives are gone has lost what it was to keep."""
        status = await volume.flush()
        if not volume.array.budget.drives_suffice():
            assert status, f"{volume}: a flush has succeeded, and data is lost"
            volume.array.card.outcome.seen["flushes past tolerance refused"] += 1

    async def _read(self, volume: Volume, buffer: int) -> None:
        array, seen = volume.array, volume.array.card.outcome.seen
        for block in self._some(volume, READS):
            status = await volume.read(block, 1, buffer)
            if array.budget.readable(volume.array_block(block)):
                assert status == 0, f"{volume}: block {block} can be had, but ends with {status:#x}"
            else:
                assert status in (0, UNRECOVERED_READ), f"{volume}: {block}: status {status:#x}"
                seen["lost blocks refused"] += status != 0

    async def _write(self, volume: Volume, buffer: int) -> None:
        """What a write that succeeds has brought can be read."""
        card = volume.array.card
        for block in self._some(volume, WRITES):
            status = await volume.write(block, 1, buffer, 0, fua=self._choose.random() < 0.5)
            if status:
                assert status in (WRITE_FAULT, UNRECOVERED_READ), f"{volume}: status {status:#x}"
                card.outcome.seen["writes past tolerance refused"] += 1
                continue
            status = await volume.read(block, 1, buffer)
            assert status == 0, f"{volume}: block {block} was written, but ends with {status:#x}"
