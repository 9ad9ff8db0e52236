"""Arrays and volumes that are created and deleted under load.

A command to a volume that is being deleted has happened before the deletion, or ends with Invalid
Field (as of an inactive namespace) or Command Abort Requested. This holds even if another volume
exists by then. Writes of a deleted array reach nothing that is made in its place. The new array
holds the contents that the drives have when the deletion returns.
"""

import random
from contextlib import suppress

from campaign.array import POLL_NS, Array
from campaign.faults import FAULT_TIME_NS, Faults
from campaign.shapes import layout_for
from campaign.volume import Volume
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.config import BLOCK_BYTES, SECTOR_BYTES
from hdl.flow.array_state import ArrayState
from hdl.flow.walk import WalkKind
from sim.card.volume_model import ANYTHING
from sim.golden.nvme import JOB_RUNNING, UNRECOVERED_READ
from sw.driver import background, raid
from sw.driver.commands import NvmeError

WRITE_FAULT = 0x280
FAILING = (0, WRITE_FAULT, UNRECOVERED_READ)
"""Statuses of an array that has lost data."""

ZERO, GARBAGE, EARLY, STOPPED, DELETED, WHOLE, WIPED = 0.15, 0.45, 0.5, 0.7, 0.25, 0.6, 0.2
CROWDED = 0.8
HIT, SLOW_RATE = 0.6, 2
"""Share of arrays that have faults as they initialise, and the rate of some of these."""


class Lifetimes:
    """Creates and deletes arrays and volumes.

    Parameters
    ----------
    features, choose, faults
        Features of the campaign, random choices, and faults.
    """

    def __init__(self, features: frozenset[str], choose: random.Random, faults: Faults):
        self._features = features
        self._choose = choose
        self._faults = faults

    async def begin(self, array: Array) -> None:
        """Creates the first array of its drives: consistent, over their contents, or with zeros."""
        card, draw = array.card, self._choose.random()
        initialises = card.config.background
        if initialises and "zero" in self._features and draw < ZERO:
            for port in array.ports:
                card.scribble(port, array.rows)
            await self._begin_with_zeros(array)
        elif initialises and array.redundant and "garbage" in self._features and draw < GARBAGE:
            for port in array.ports:
                card.scribble(port, array.rows)
            await self._begin_with_garbage(array)
        else:
            array.store_consistent()
            await array.create()
            await array.create_volumes(array.snapshot())

    async def _begin_with_zeros(self, array: Array) -> None:
        await array.create(zero=True)
        job = await array.job_ends()
        assert (job.state, job.lost) == (JobState.DONE, 0), f"{array}: {job}"
        zeros: list[set[bytes]] = [{bytes(BLOCK_BYTES)} for _ in range(array.blocks)]
        await array.create_volumes(zeros)
        array.card.outcome.seen["arrays begun with zeros"] += 1

    async def _begin_with_garbage(self, array: Array) -> None:
        """The array is used while it initialises, and has its redundancy after that."""
        contents = array.snapshot()
        await array.create(initialise=True)
        if "early" in self._features and self._choose.random() < EARLY:
            await self._lose_early(array)
        elif "mid-job" in self._features and self._choose.random() < HIT:
            await self._hit_early(array)
        else:
            await array.create_volumes(contents)
            if self._choose.random() < 0.5:
                await self._interrupt_job(array)
            await array.load(share=0.5)
            await array.initialised()
        array.card.outcome.seen["arrays begun with garbage"] += 1

    async def _interrupt_job(self, array: Array) -> None:
        """Stops the job for a while, in which the array is used as it is."""
        card = array.card
        await card.sleep(self._choose.uniform(0, FAULT_TIME_NS / 4))
        if (await array.job()).state != JobState.RUNNING:
            return
        job = await array.stop_job()
        if job.state != JobState.STOPPED:
            return
        await array.load(share=0.5)
        try:
            await background.start_job(card.nvme, array.number, job.kind, resume=True)
        except NvmeError as error:
            # A drive that has begun anew is to be had again, and the card has resumed it for that.
            if error.status != JOB_RUNNING or not array.restarted | array.forgot:
                raise
        card.outcome.seen["jobs resumed"] += 1

    async def _hit_early(self, array: Array) -> None:
        """Drives have faults that the array tolerates before it has its redundancy. Then the RESYNC
        ends well, and all rows agree. Data that was written is right all the time.

        Drives that the array cannot do without do not restart here. `campaign.torn` restarts them
        once it is in sync.
        """
        card, choose = array.card, self._choose
        await array.create_volumes([{ANYTHING}] * array.blocks)
        await background.set_rate(card.nvme, choose.choice((SLOW_RATE, DEFAULT_RATE)))
        await array.load(share=0.3)
        before = card.outcome.faults.total()
        self._faults.plant([array], choose.randint(1, 4))
        load = card.spawn([array.load(share=0.5)])
        if choose.random() < 0.5:
            await self._interrupt_job(array)
        await card.sleep(FAULT_TIME_NS)
        job = await array.job()
        early = job.kind == WalkKind.RESYNC and not job.in_sync
        await load.join()
        await background.set_rate(card.nvme, DEFAULT_RATE)
        await array.rest()
        state = await array.state()
        assert state.in_sync, f"{array}: it is not in sync: {await array.job()}"
        array.consistent = True
        array.check()
        for volume in array.volumes:
            await volume.write_all()
            assert await volume.flush() == 0
        hit = card.outcome.faults.total() - before
        card.outcome.seen["faults before the first RESYNC had ended"] += early * hit
        card.outcome.seen["arrays hit as they initialised"] += 1

    async def _lose_early(self, array: Array) -> None:
        """A drive goes before the array has its redundancy. Data that was written must be right.

        Blocks that nobody has written are worked out from parities that have no meaning yet.
        """
        card = array.card
        stopped = False
        if self._choose.random() < STOPPED:
            # At once: few rows are soon done.
            stopped = (await array.stop_job()).state == JobState.STOPPED
        card.outcome.seen["initialisations stopped"] += stopped
        await array.create_volumes([{ANYTHING}] * array.blocks)
        if stopped:
            await array.load()
        array.troubled.update(array.ports)
        load = card.spawn([array.load(share=0.5, allowed=FAILING)])
        await card.sleep(self._choose.uniform(0, FAULT_TIME_NS))
        port = self._choose.choice(array.ports)
        card.harness.remove(port)
        await load.join()
        for volume in array.volumes:
            await volume.read_all(allowed=FAILING)
        card.outcome.faults["pull of an array that initialises"] += 1
        await self.delete(array)
        array.volumes.clear()
        card.harness.insert(port)
        array.take_shape(array.layout, array.ports, array.rows)
        contents = array.snapshot()
        await array.create(initialise=True)
        await array.create_volumes(contents)
        await array.initialised()

    # Deletions

    async def work(self, array: Array) -> None:
        """Sometimes deletes a volume, or the whole array, under load, and creates another in its
        place."""
        deletes = "delete" in self._features and self._choose.random() < DELETED
        wipes = "wipe" in self._features and self._choose.random() < WIPED
        if not array.healthy or array.budget.bad:
            return
        if deletes and self._choose.random() < WHOLE:
            await self._recreate_array(array)
        elif deletes:
            await self._recreate_volume(array)
        if wipes and array.card.config.background:
            await self._wipe(array)

    async def _recreate_volume(self, array: Array) -> None:
        card = array.card
        volume = self._choose.choice(array.volumes)
        crowded = self._choose.random() < CROWDED
        hung = self._hang_another(array) if crowded else None
        crowd = crowded / (1 if hung is None else 2)
        loads = [one.load(share=0.5, crowd=crowd) for one in (array, hung) if one is not None]
        load = card.spawn(loads)
        await card.sleep(self._choose.uniform(0, FAULT_TIME_NS))
        volume.deleted = True
        await raid.delete_volume(card.nvme, volume.namespace)
        contents = array.snapshot()[volume.start : volume.start + volume.blocks]
        array.volumes.remove(volume)
        # At once: commands to the one that was deleted may wait in the queues, and find none.
        again = await array.create_volume(
            volume.start, volume.blocks, self._sector_bytes(array, volume), contents
        )
        assert await again.flush() == 0
        card.outcome.seen["crowds at a deletion"] += crowded and not load.ended
        await load.join()
        after = array.snapshot()[volume.start : volume.start + volume.blocks]
        for block, (now, before) in enumerate(zip(after, contents, strict=True)):
            assert now <= before, f"{volume}: block {block} was written after it was deleted"
        if hung is not None:
            await hung.rest()
            array.troubled.clear()
        await again.read_all()
        card.outcome.seen["volumes deleted"] += 1

    def _hang_another(self, array: Array) -> Array | None:
        """Makes a drive of another array hang from now on, if there is another array without a
        fault.

        The commands of that array may have all command slots, and those of ``array`` then wait for
        them.
        """
        others = [a for a in array.card.arrays if a is not array and a.healthy and not a.budget.bad]
        if not others:
            return None
        other = self._choose.choice(others)
        self._faults.hang_one(other)
        array.troubled.update(other.troubled)
        return other

    def _sector_bytes(self, array: Array, volume: Volume) -> int:
        """Bytes of a logical block of the volume that replaces another one."""
        if "sectors" in self._features and array.card.config.sector_emulation:
            return self._choose.choice((BLOCK_BYTES, SECTOR_BYTES))
        return volume.sector_bytes

    async def _recreate_array(self, array: Array) -> None:
        card = array.card
        before = set(card.troubled)
        if self._choose.random() < 0.5:
            self._faults.hang_one(array)
        crowded = self._choose.random() < CROWDED
        load = card.spawn([array.load(share=0.5, crowd=float(crowded))])
        await card.sleep(self._choose.uniform(0, FAULT_TIME_NS))
        await self.delete(array)
        for port in array.ports:
            card.harness.drive_fault(port, 0)
            card.harness.insert(port)
            card.unusable.discard(port)
        array.cure()
        if array.troubled & before or (array.troubled and card.drive.reset_loses_cache):
            # A drive may still have a command that hangs. It would be given up, or forget what it
            # has, in the middle of the new array's first RESYNC.
            await card.rests(array.ports)
            await card.sleep(POLL_NS)
        old = array.layout
        layout = layout_for(self._choose, card.config, old.drives, old.strip_blocks, array.rows)
        array.take_shape(layout, sorted(array.ports), array.rows)
        # Commands of the old array in a drive that hung may hold up the new one.
        array.troubled.update(array.ports)
        contents = array.snapshot()
        await array.create(initialise=array.redundant and card.config.background)
        array.volumes.clear()
        await array.create_volumes(contents)
        card.outcome.seen["crowds at a deletion"] += crowded and not load.ended
        await load.join()
        for block, choices in enumerate(contents):
            assert array.held(block) <= choices, f"{array}: block {block} is an old array's"
        await card.rests(array.ports)
        array.troubled.clear()
        await array.load(share=0.5)
        if not array.consistent:
            await array.initialised()
        state = (await array.state()).state
        assert state == ArrayState.OPTIMAL, f"{array}: {state} after it was made anew"
        card.outcome.seen["arrays deleted"] += 1

    async def _wipe(self, array: Array) -> None:
        """A job zeroes the array, once it has no volumes.

        Sometimes drives fail meanwhile, and sometimes the job is stopped and resumed.
        """
        card, choose = array.card, self._choose
        zero = background.start_job(card.nvme, array.number, WalkKind.ZERO)
        with suppress(NvmeError):
            await zero
            raise AssertionError(f"{array}: blocks of volumes are zeroed")
        load = card.spawn([array.load(share=0.5)])
        await card.sleep(choose.uniform(0, FAULT_TIME_NS / 4))
        for volume in array.volumes:
            volume.deleted = True
            await raid.delete_volume(card.nvme, volume.namespace)
        await load.join()
        array.volumes.clear()
        await background.start_job(card.nvme, array.number, WalkKind.ZERO)
        if "mid-job" in self._features and choose.random() < 0.6:
            self._faults.plant_one(array)
            card.outcome.seen["faults planted in a wipe"] += 1
        stopped = False
        if choose.random() < 0.5:
            await card.sleep(choose.uniform(0, FAULT_TIME_NS / 4))
            job = await array.stop_job()
            # Or a job of the card's own has taken its place at once.
            stopped = job.state == JobState.STOPPED or job.kind != WalkKind.ZERO
            with suppress(NvmeError):
                if job.state == JobState.STOPPED:
                    await background.start_job(card.nvme, array.number, job.kind, resume=True)
                    stopped = job.kind != WalkKind.ZERO
                    card.outcome.seen["jobs resumed"] += 1
        job = await array.job_ends()
        if stopped and array.redundant:
            # A job of the card's own came before it could go on, and has taken its place.
            await background.start_job(card.nvme, array.number, WalkKind.ZERO)
            job = await array.job_ends()
        assert not (array.redundant and job.lost), f"{array}: {job}"
        if job.kind == WalkKind.ZERO:
            assert job.state == JobState.DONE, f"{array}: {job}"
        zeros: list[set[bytes]] = [{bytes(BLOCK_BYTES)} for _ in range(array.blocks)]
        if array.redundant:
            await array.create_volumes(zeros)
        else:
            await array.create_volumes([{ANYTHING}] * array.blocks)
        for volume in array.volumes:
            await volume.read_all(allowed=array.allowed())
        await array.rest()
        card.outcome.seen["arrays wiped"] += 1

    async def delete(self, array: Array) -> None:
        """Deletes the array with its volumes."""
        nvme = array.card.nvme
        for volume in array.volumes:
            volume.deleted = True
            await raid.delete_volume(nvme, volume.namespace)
        if array.card.config.background:
            await array.stop_job()
            await array.job_ends()
        await raid.delete_array(nvme, array.number)
