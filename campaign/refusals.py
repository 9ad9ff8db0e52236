"""Blocks that drives refuse at the worst moment of a migration or a rebuild."""

import random

from campaign.array import Array
from campaign.bounds import given_up_ns
from campaign.card import Card, Stuck
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from sim.golden.nvme import JOB_RUNNING, UNRECOVERED_READ, WRITE_FAULT
from sw.driver import background
from sw.driver.commands import NvmeError

SHARE = 0.4
POLL_NS = 2_000
SLOW_NS = 300_000
"""Extra time of a drive command meanwhile, so that the event happens during a command."""

ENDINGS = (0, WRITE_FAULT, UNRECOVERED_READ)


class Refusals:
    """Makes drives refuse writes.

    Parameters
    ----------
    card
        The card.
    features, choose
        Features of the campaign and random choices.
    """

    def __init__(self, card: Card, features: frozenset[str], choose: random.Random):
        self._card = card
        self._choose = choose
        self._happen = "refused" in features

    def draw(self) -> bool:
        """Whether it is to happen now."""
        return self._happen and self._choose.random() < SHARE

    async def as_migration_ends(self, array: Array, old: int, port: int) -> None:
        """The new drive of a migration refuses writes as the migration ends. It is at ``port`` and
        has all blocks of ``old``.

        It refuses every write that began before it is the member. Returns when the migration has
        ended, in any way. The data of a write that succeeded must be there. Other writes may have
        left nothing that can be read, until the block is written again.
        """
        card, harness = self._card, self._card.harness
        array.troubled |= {old, port}
        harness.drive_fault(port, -1, at_end=True, delay_ns=SLOW_NS)
        job = await array.job()
        while job.state == JobState.RUNNING and job.row < array.rows:
            await card.sleep(POLL_NS)
            job = await array.job()
        harness.refuse_writes(port, DATA_OFFSET_BLOCKS, array.rows)
        card.outcome.faults["refused as a migration ends"] += job.state == JobState.RUNNING
        await array.load(share=0.5, writes=(0.9,), allowed=ENDINGS)
        harness.drive_fault(port, 0)
        await array.job_ends()
        await card.rests((old, port))
        harness.accept_writes(port, DATA_OFFSET_BLOCKS, array.rows)
        await self._write_again(array)

    async def in_rebuild(self, array: Array, position: int) -> None:
        """A mirror has a block on one good drive, and on one that is being rebuilt. The good drive
        refuses it.

        It lets the block be made unreadable. Then the other drive begins anew. The data of a write
        that ended well, and was flushed, must be there. The rebuild is stopped meanwhile, and goes
        on by itself.
        """
        card, harness = self._card, self._card.harness
        if array.layout.copies < 2 or not card.config.intent_chunks:
            return
        job = await array.job()
        while job.state == JobState.RUNNING and job.row < array.rows // 2:
            await card.sleep(POLL_NS)
            job = await array.job()
        if job.state != JobState.RUNNING or job.row >= array.rows:
            return
        job = await array.stop_job()
        found = self._last_copy(array, position, job.row) if job.state == JobState.STOPPED else None
        if found is None:
            if job.state == JobState.STOPPED:
                try:
                    await background.start_job(card.nvme, array.number, job.kind, resume=True)
                except NvmeError as error:
                    # A drive has restarted meanwhile, so the rebuild has gone on by itself.
                    if error.status != JOB_RUNNING:
                        raise
            return
        block, good, row = found
        where = array.logical(block)
        assert where is not None
        volume, first, count = where
        port = array.ports[good]
        array.troubled.add(port)
        await self._spare_or_not(array, position, good, block)
        harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row)
        harness.drive_fault(port, -1, at_end=True, delay_ns=SLOW_NS)
        refused = harness.drive_statistics(port)["refused"]

        async def relent() -> None:
            while harness.drive_statistics(port)["refused"] < refused + 2:
                await card.sleep(POLL_NS)
            harness.accept_writes(port, DATA_OFFSET_BLOCKS + row)

        card.transport.spawn(relent())
        buffer = card.take_buffer()
        status = await volume.write(first, count, buffer, 0, fua=False)
        assert status in (0, WRITE_FAULT), f"{volume}: {status:#x}"
        harness.drive_fault(port, 0)
        card.outcome.faults["refused in a rebuild"] += 1
        assert await volume.flush() == 0
        harness.restart_drive(array.ports[position])
        array.restarted.add(array.ports[position])
        until = harness.now_ns + given_up_ns(card.config)
        while (await array.job()).state == JobState.STOPPED:
            if harness.now_ns > until:
                raise Stuck(f"{array}: its rebuild has not gone on by itself")
            await card.sleep(POLL_NS)
        job = await array.job_ends()
        assert (job.state, job.lost) == (JobState.DONE, 0), f"{array}: {job}"
        status = await volume.read(first, count, buffer)
        assert status == 0, f"{volume}: what was flushed reads with {status:#x}"
        card.give_buffer(buffer)

    async def _spare_or_not(self, array: Array, position: int, good: int, block: int) -> None:
        """A fault that was planted before may have cost no drive yet. Then there is another good
        copy, and the drive that refuses the block may be given up."""
        members = (await array.state()).members
        others = {place.position for place in array.layout.copies_of(block)} - {position, good}
        if any(not (members[one].failed or members[one].stale) for one in others):
            array.budget.drives.add(good)
            self._card.outcome.seen["blocks refused in a rebuild with a copy to spare"] += 1

    def _last_copy(self, array: Array, position: int, rows: int) -> tuple[int, int, int] | None:
        """A block and its row there. The copies of the block in the first ``rows`` are at member
        ``position`` and at one good member, which is second."""
        for block in self._choose.sample(range(array.blocks), array.blocks):
            places = array.layout.copies_of(block)
            good = [p for p in places if p.position not in array.budget.drives]
            there = any(p.position == position for p in places)
            passed = all(p.row < rows for p in places)
            if array.logical(block) is None or len(good) != 1 or not there or not passed:
                continue
            if (good[0].position, good[0].row) not in array.budget.bad:
                return block, good[0].position, good[0].row
        return None

    async def _write_again(self, array: Array) -> None:
        """Checks and writes all blocks."""
        for volume in array.volumes:
            await volume.read_all(doubts=True)
            await volume.write_all()
