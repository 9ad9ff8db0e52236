"""Faults past the tolerance of a level: all blocks that can still be worked out must be read, and
all others fail."""

import random

from campaign.array import Array
from campaign.budget import Budget
from campaign.failing import Failing
from campaign.lifetimes import WRITE_FAULT
from campaign.volume import Volume
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS
from sim.golden.layout import Place
from sim.golden.nvme import UNRECOVERED_READ
from sw.driver import background

READS, WRITES = 40, 20

UNDER_LOAD = 0.4

TOGETHER = 0.5
REFUSED = (1, 4)
"""Drives that refuse a block at once, fewest and most."""

AGAIN = 6
"""How many times a block is read after a write that was refused."""


class Past:
    """Takes drives away until blocks are lost.

    Parameters
    ----------
    choose
        Random choices.
    """

    def __init__(self, choose: random.Random):
        self._choose = choose
        self._failing = Failing(choose)

    async def work(self, array: Array) -> None:
        """One drive after the other goes, until some blocks are lost. Exactly those must fail."""
        card, budget = array.card, array.budget
        if card.config.background and "restart" in array.features and self._choose.random() < 0.5:
            await self._restart_all(array)
        array.troubled.update(array.ports)
        left = [p for p in range(array.layout.drives) if p not in budget.drives]
        self._choose.shuffle(left)
        failure = None
        under_load = "failing" in array.features and self._choose.random() < UNDER_LOAD
        if under_load and budget.tolerated():
            failure = await self._failing.work(array, left)
        elif "refused" in array.features and budget.drives_suffice():
            if self._choose.random() < TOGETHER:
                await self._refuse_together(array, left)
            else:
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
        if failure is not None:
            self._failing.check_stored(array, failure)

    async def _restart_all(self, array: Array) -> None:
        """All drives begin anew at once, with nothing unflushed. Each volume is told by a flush of
        its own, once."""
        card = array.card
        if not array.healthy or array.budget.bad:
            return
        for volume in array.volumes:
            assert await volume.flush() == 0
        card.restart(array.ports)
        await card.sleep(100_000)
        for wanted in (WRITE_FAULT, 0):
            for volume in array.volumes:
                status = await volume.flush()
                assert status == wanted, f"{volume}: a flush ends with {status:#x}, not {wanted:#x}"
        await array.job_ends()
        card.outcome.seen["restarts told to each volume"] += len(array.volumes)

    async def _refuse_where_needed(self, array: Array, left: list[int]) -> None:
        """As many drives go as may. One of the drives that are needed then refuses to write a
        block.

        That write may fail, and the blocks of its row may be lost. But with background work the
        drive stays.
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
        if status:
            # The other copies may have been made unreadable, so that none differs.
            budget.bad |= {(place.position, place.row) for place in places}
        members = (await array.state()).members
        if needed and card.config.background:
            assert not members[position].failed, f"{array}: {port} is given up, and was needed"
        elif members[position].failed:
            left.remove(position)
            budget.drives.add(position)

    async def _refuse_together(self, array: Array, left: list[int]) -> None:
        """Some drives go, sometimes one of them is being rebuilt, and several others refuse a
        block.

        With background work, all blocks outside the rows of these blocks can still be read, whoever
        is given up. Without it nothing can be made unreadable, and a drive that is needed goes too.
        """
        card, budget, layout = array.card, array.budget, array.layout
        choose = self._choose
        pulled = []
        for position in list(left):
            may = len(left) > 1 and array.redundant and choose.random() < 0.6
            if may and budget.admits(drives=[position]):
                left.remove(position)
                pulled.append(position)
                card.pull(array.ports[position])
                card.outcome.faults["pull before refusals"] += 1
        await card.sleep(50_000)
        rebuilt = None
        if pulled and card.config.background:
            rebuilt = choose.choice(pulled)
            port = array.ports[rebuilt]
            card.harness.insert(port)
            card.scribble(port, array.rows)
            await background.replace_member(card.nvme, array.number, rebuilt, port)
            card.unusable.discard(port)
            await card.sleep(choose.uniform(0, 100_000))
        blocks: set[int] = set()
        for position in choose.sample(left, min(len(left), choose.randint(*REFUSED))):
            row = choose.randrange(array.rows)
            card.harness.refuse_writes(array.ports[position], DATA_OFFSET_BLOCKS + row)
            found, places = self._sharing(array, Place(position, row))
            blocks |= found
            budget.bad |= places
        targets = [where for block in sorted(blocks) if (where := array.logical(block))]
        await card.together(self._write_there(*target) for target in targets for _ in range(2))
        for volume, first, count in targets:
            await self._same(volume, first, count)
        if rebuilt is not None:
            await array.job_ends()
        members = (await array.state()).members
        bad = {position for position, one in enumerate(members) if one.failed or one.stale}
        assert not card.config.background or Budget.of(layout, array.rows, bad).tolerated(), (
            f"{array}: positions {bad} are lost, of which {budget.drives} had gone"
        )
        budget.drives = bad
        left[:] = [p for p in range(layout.drives) if p not in bad]
        choose.shuffle(left)
        card.outcome.faults["refused together"] += 1
        card.outcome.seen["rebuilds while blocks were refused"] += rebuilt is not None

    @staticmethod
    def _sharing(array: Array, place: Place) -> tuple[set[int], set[tuple[int, int]]]:
        """The blocks of an array that may suffer when one of them is refused, and where they lie.
        """
        layout = array.layout
        found = set()
        for block in range(array.blocks):
            places = layout.copies_of(block)
            if layout.parities:
                (own,) = places
                same_span = own.position // layout.width == place.position // layout.width
                if same_span and own.row == place.row:
                    found.add(block)
            elif any((own.position, own.row) == (place.position, place.row) for own in places):
                found.add(block)
        taken = {(own.position, own.row) for block in found for own in layout.copies_of(block)}
        return found, taken | {(place.position, place.row)}

    @staticmethod
    async def _write_there(volume: Volume, first: int, count: int) -> None:
        card = volume.array.card
        buffer = card.take_buffer()
        status = await volume.write(first, count, buffer, 0, fua=False)
        card.give_buffer(buffer)
        assert status in (0, WRITE_FAULT, UNRECOVERED_READ), f"{volume}: status {status:#x}"
        card.outcome.seen["writes refused"] += status != 0

    @staticmethod
    async def _same(volume: Volume, first: int, count: int) -> None:
        """A block reads the same, or fails, however often it is read and from whichever copy."""
        card = volume.array.card
        buffer = card.take_buffer()
        seen = set()
        for _ in range(AGAIN):
            status = await volume.read(first, count, buffer)
            assert status in (0, UNRECOVERED_READ), f"{volume}: {first}: status {status:#x}"
            if status == 0:
                seen.add(card.transport.memory.read(buffer, count * volume.sector_bytes))
        card.give_buffer(buffer)
        assert len(seen) <= 1, f"{volume}: {first} differs from read to read"

    def _some(self, volume: Volume, count: int) -> list[int]:
        return self._choose.sample(range(len(volume.model)), min(count, len(volume.model)))

    async def _flush(self, volume: Volume) -> None:
        """A Flush of an array that has lost too many drives may not succeed."""
        status = await volume.flush()
        if not volume.array.budget.drives_suffice():
            assert status, f"{volume}: a flush has succeeded, and data is lost"
            volume.array.card.outcome.seen["flushes past tolerance refused"] += 1

    async def _read(self, volume: Volume, buffer: int) -> None:
        array, seen = volume.array, volume.array.card.outcome.seen
        for block in self._some(volume, READS):
            doubtful = block * volume.sector_bytes // BLOCK_BYTES in volume.doubtful
            status = await volume.read(block, 1, buffer)
            if array.budget.readable(volume.array_block(block)) and not doubtful:
                assert status == 0, f"{volume}: block {block} can be had, but ends with {status:#x}"
            else:
                assert status in (0, UNRECOVERED_READ), f"{volume}: {block}: status {status:#x}"
                seen["lost blocks refused"] += status != 0

    async def _write(self, volume: Volume, buffer: int) -> None:
        """The data of a write that succeeds can be read."""
        card = volume.array.card
        for block in self._some(volume, WRITES):
            status = await volume.write(block, 1, buffer, 0, fua=self._choose.random() < 0.5)
            if status:
                assert status in (WRITE_FAULT, UNRECOVERED_READ), f"{volume}: status {status:#x}"
                card.outcome.seen["writes past tolerance refused"] += 1
                continue
            status = await volume.read(block, 1, buffer)
            assert status == 0, f"{volume}: block {block} was written, but ends with {status:#x}"
