"""An array fails under load: drives go while reads, writes and flushes are outstanding.

Until they go every command succeeds. Then a read gives the right data, or fails. A write that fails
leaves each block old or new, or unreadable. A Flush that is sent from then on may not succeed. One
that was outstanding may, but only if the drives had stored by then what was written before
(docs/guarantees.md, Flush).
"""

import random
from dataclasses import dataclass, field

from campaign.array import Array
from campaign.card import Group
from campaign.lifetimes import WRITE_FAULT
from campaign.volume import Volume
from hdl.config import BLOCK_BYTES
from sim.golden.nvme import UNRECOVERED_READ

TOGETHER, GOING_NS = 0.5, 150_000
"""Share of arrays whose drives go at the same moment, and the longest time until the next one does.
"""
HANG = 0.3
"""Share of arrays whose drives hang for good."""
FLUSHES = 3
"""Flushes of a volume that are outstanding at once."""


@dataclass(kw_only=True)
class Failure:
    """How an array has failed. ``before``: members that had gone before the last ones did.
    ``moments``: when that was, for the model of each volume."""

    before: set[int]
    moments: dict[Volume, int] = field(default_factory=dict)


class Failing:
    """Takes drives away under load.

    Parameters
    ----------
    choose
        Random choices.
    """

    def __init__(self, choose: random.Random):
        self._choose = choose

    async def work(self, array: Array, left: list[int]) -> Failure:
        """Drives of the members that are ``left`` go under load, until blocks are lost or none is
        left. What is checked at the end of the run follows from the result (`check_stored`)."""
        card, choose, budget = array.card, self._choose, array.budget
        allowed = list(array.allowed())
        load = card.spawn([array.load(allowed=allowed, writes=(0.5, 0.9))])
        failure = Failure(before=set(budget.drives))
        flushes = card.spawn(
            self._flush(volume, load, failure) for volume in array.volumes for _ in range(FLUSHES)
        )
        await card.sleep(choose.uniform(0, GOING_NS))
        together = choose.random() < TOGETHER
        hang = "hang" in array.features and choose.random() < HANG
        while budget.drives_suffice() and left:
            if not together:
                failure.before = set(budget.drives)
                await card.sleep(choose.uniform(0, GOING_NS))
            position = left.pop()
            budget.drives.add(position)
            if hang:
                card.harness.drive_fault(array.ports[position], deaf=True, lasting=True)
            else:
                card.pull(array.ports[position])
            card.outcome.faults["past tolerance under load"] += 1
        # What ends from now on may have failed.
        allowed += [WRITE_FAULT, UNRECOVERED_READ]
        failure.moments = {volume: volume.model.moment for volume in array.volumes}
        card.outcome.seen["arrays that failed under load"] += not load.ended
        await load.join()
        await flushes.join()
        return failure

    async def _flush(self, volume: Volume, load: Group, failure: Failure) -> None:
        """Flushes as long as there is load."""
        seen, queues = volume.array.card.outcome.seen, volume.array.card.nvme.queues
        while not load.ended:
            late = bool(failure.moments)
            status = await volume.flush(self._choose.randrange(len(queues)))
            failed = bool(failure.moments)
            assert status in ((0, WRITE_FAULT) if failed else (0,)), f"{volume}: {status:#x}"
            assert status or not late, f"{volume}: a flush has succeeded, and data is lost"
            seen["flushes outstanding as an array failed"] += failed and not late
            seen["of these ended well"] += failed and not late and not status

    def check_stored(self, array: Array, failure: Failure) -> None:
        """What had been flushed or forced as the array failed is on its drives after a loss of
        power. A flush that ended well after that counts as well.

        That is not so for members that had gone before, and for blocks that were written well
        later.
        """
        card, layout = array.card, array.layout
        card.harness.power_loss(array.ports)
        for volume, moment in failure.moments.items():
            for block in range(len(volume.model)):
                kept = volume.model.kept(block, moment)
                first = block * volume.sector_bytes % BLOCK_BYTES
                for place in layout.copies_of(volume.array_block(block)):
                    if kept is None or place.position in failure.before:
                        continue
                    data = card.stored(array.ports[place.position], place.row)
                    assert data[first : first + volume.sector_bytes] in kept, (
                        f"{volume}: block {block} was stored, and {place} has something else"
                    )
                    card.outcome.seen["blocks on drives of failed arrays"] += 1
