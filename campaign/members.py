"""Members that are replaced, taken back or migrated; hot spares."""

import random
from contextlib import suppress

from campaign.array import POLL_NS, Array
from campaign.card import Card
from campaign.faults import FAULT_TIME_NS, Faults
from campaign.refusals import Refusals
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.walk import WalkKind
from sim.golden.layout import Place
from sw.driver import background, raid
from sw.driver.commands import NvmeError

REPLACED, MIGRATED, SPARED, ERASED, RENEWED = 0.5, 0.3, 0.3, 0.2, 0.6
INTERRUPTED = 0.3
HIT, SLOW, SLOW_RATE = 0.7, 0.5, 2
"""Share of migrations with faults, share of these that are slow, and the rate of those."""
MOST_FAULT_NS = 2 * FAULT_TIME_NS
"""Faults have happened after so long, and drives that were pulled are back."""


class Members:
    """Changes members between rounds.

    Parameters
    ----------
    card, arrays
        The card and all its arrays.
    features, choose, faults, refusals
        Features of the campaign, random choices, faults, and refused writes.
    """

    def __init__(
        self,
        card: Card,
        arrays: list[Array],
        features: frozenset[str],
        choose: random.Random,
        faults: Faults,
        refusals: Refusals,
    ):
        self._card = card
        self._arrays = arrays
        self._features = features
        self._choose = choose
        self._faults = faults
        self._refusals = refusals

    def free(self) -> list[int]:
        """Ports whose drives are good and belong to no array."""
        used = {port for array in self._arrays for port in (*array.ports, *array.spares)}
        return [p for p in range(self._card.config.ports) if p not in used | self._card.unusable]

    async def work(self, array: Array) -> None:
        """Sometimes replaces a failed member, and migrates a live one."""
        config, choose = self._card.config, self._choose
        gone = sorted(array.failed & set(array.ports))
        if config.background and array.redundant and gone and "replace" in self._features:
            if choose.random() < REPLACED:
                position = array.ports.index(choose.choice(gone))
                if config.intent_chunks and choose.random() < 0.5:
                    await self._take_back(array, position)
                else:
                    await self._replace(array, position)
        if config.background and "migrations" in self._features and choose.random() < MIGRATED:
            await self._migrate(array)

    async def erase(self) -> None:
        """Sometimes erases a free drive, which may begin anew meanwhile. It then holds zeros,
        durably."""
        card, choose = self._card, self._choose
        if not {"wipe", "restart"} <= self._features or not card.config.background:
            return
        free = self.free()
        if not free or len(self._arrays) == card.config.arrays or choose.random() >= ERASED:
            return
        port, rows = choose.choice(free), self._arrays[0].rows
        card.scribble(port, rows)

        async def restart() -> None:
            await card.sleep(choose.uniform(0, 200_000))
            if not ended:
                card.harness.restart_drive(port)

        ended = False
        card.transport.spawn(restart())
        await background.erase_drive(card.nvme, port, poll_ns=20_000)
        ended = True
        card.harness.restart_drive(port)
        left = [row for row in range(rows) if any(card.stored(port, row))]
        assert not left, f"drive {port} was erased, and rows {left} are not"
        card.outcome.seen["drives erased"] += 1

    # Spares

    async def offer_spares(self) -> None:
        """Sometimes makes a free drive a spare, of all arrays or of one."""
        if "spares" not in self._features or not self._card.config.background:
            return
        free = self.free()
        if not free or self._choose.random() >= SPARED:
            return
        port = self._choose.choice(free)
        array = self._choose.choice(self._arrays)
        if len(self._arrays) > 1 or self._choose.random() < 0.5:
            await background.add_spare(self._card.nvme, port, array.number)
        else:
            await background.add_spare(self._card.nvme, port)
        array.spares.add(port)
        self._card.scribble(port, array.rows)

    async def withdraw_spares(self) -> None:
        """Drives that have not stepped in are no spares any more."""
        for array in self._arrays:
            for port in sorted(array.spares):
                await background.remove_spare(self._card.nvme, port)
            array.spares.clear()

    # Rebuilds

    async def _replace(self, array: Array, position: int) -> None:
        """Another drive, or a new one at the same port, takes the place of a failed drive."""
        card, old = self._card, array.ports[position]
        free = self.free()
        if not free or self._choose.random() < 0.5:
            port = old
            card.harness.insert(port)
        else:
            port = self._choose.choice(free)
        card.scribble(port, array.rows)
        renewed = port != old and self._choose.random() < RENEWED
        before = self._choose.random() < 0.5
        if renewed and before:
            await self._renew(old)
        await background.replace_member(card.nvme, array.number, position, port)
        if renewed and not before:
            await self._renew(old)
        array.failed.discard(old)
        array.ports[position] = port
        if renewed:
            drive = (await raid.drives(card.nvme))[old]
            assert not drive.failed, drive
            assert drive.present, drive
            assert drive.array is None, drive
            card.unusable.discard(old)
            card.outcome.seen["new drives in old places"] += 1
        card.unusable.discard(port)
        await self._rebuilt(array, position, "drives rebuilt")
        array.budget.bad = {bad for bad in array.budget.bad if bad[0] != position}

    async def _renew(self, port: int) -> None:
        """Plugs a new drive at a port whose drive has failed."""
        card = self._card
        card.harness.remove(port)
        await card.sleep(20_000)
        card.harness.insert(port, blank=True)
        await card.sleep(20_000)

    async def _take_back(self, array: Array, position: int) -> None:
        """A failed drive is there again, and is rebuilt where it missed writes."""
        card, port = self._card, array.ports[position]
        card.harness.insert(port)
        array.failed.discard(port)
        await background.re_add(card.nvme, array.number, position)
        card.unusable.discard(port)
        await self._rebuilt(array, position, "drives taken back")

    async def _rebuilt(self, array: Array, position: int, what: str) -> None:
        """The rebuild ends well under load, although other faults that are tolerated happen
        meanwhile."""
        budget = array.budget
        budget.drives.add(position)
        array.troubled.add(array.ports[position])
        if "mid-job" in self._features and self._choose.random() < 0.5:
            self._faults.plant_one(array)
            self._card.outcome.seen["faults planted in a rebuild"] += 1
        refused = self._refusals.draw()
        if refused and not array.refused:
            await self._refusals.in_rebuild(array, position)
        load = self._card.spawn([array.load(share=0.5)])
        if "jobs" in self._features and self._choose.random() < INTERRUPTED:
            await self._interrupt(array)
        await load.join()
        await self._judge(array, position)
        budget.drives.discard(position)
        self._card.outcome.seen[what] += 1
        await array.rest()

    async def _judge(self, array: Array, position: int) -> None:
        """The member is up to date and nothing is lost. Another job may have begun since: the card
        takes back a drive that was reset and has forgotten, and gives it up if it hangs again."""
        job = await array.job_ends()
        members = (await array.state()).members
        assert not members[position].failed, f"{array}: {members}"
        assert not members[position].stale, f"{array}: {members}"
        assert not job.lost, f"{array}: {job}"
        if job.state != JobState.DONE:
            given_up = {member.port for member in members if member.failed}
            assert job.state == JobState.FAILED, f"{array}: {job}"
            assert given_up & array.forgot, f"{array}: {job}"
            self._card.outcome.seen["drives given up as they were taken back"] += 1

    async def _interrupt(self, array: Array) -> None:
        """Stops the rebuild. It goes on where it was, although writes have been refused meanwhile.
        """
        nvme = self._card.nvme
        await self._card.sleep(self._choose.uniform(0, 100_000))
        stopped = await array.stop_job()
        if stopped.state != JobState.STOPPED:
            return
        for other, member in enumerate((await array.state()).members):
            if not member.failed and not member.stale and member.port not in array.troubled:
                with suppress(NvmeError):
                    await background.replace_member(nvme, array.number, other, member.port)
                    raise AssertionError(f"{array}: {member} is replaced, and has not failed")
        with suppress(NvmeError):
            # Refused if the card has begun another one.
            await background.start_job(nvme, array.number, stopped.kind, resume=True)
        resumed = await array.job()
        # A drive that begins anew meanwhile, or forgets as it is reset, is rebuilt with the other,
        # from the first row on.
        if resumed.kind == stopped.kind and not array.restarted | array.forgot:
            assert resumed.row >= stopped.row, f"{array}: {stopped}, then {resumed}"
            self._card.outcome.seen["rebuilds resumed"] += stopped.row > 0

    # Migrations

    async def _migrate(self, array: Array) -> None:
        """Migrates a live member to a free drive under load, perhaps with faults meanwhile."""
        card, choose = self._card, self._choose
        free = self.free()
        live = [p for p in range(array.layout.drives) if p not in array.budget.drives]
        if not free or not live or not array.consistent:
            return
        position, port = choose.choice(live), choose.choice(free)
        if not array.redundant:
            # Blocks that are lost in the migration must not read as old contents of the new drive.
            array.cure()
        card.scribble(port, array.rows)
        refused = self._refusals.draw()
        hit = not refused and "mid-job" in self._features and choose.random() < HIT
        if hit and choose.random() < SLOW:
            # So that the faults happen before the migration has ended.
            await background.set_rate(card.nvme, SLOW_RATE)
        await background.migrate_member(card.nvme, array.number, position, port, spare=False)
        if refused:
            await self._refuse(array, position, port)
            return
        if hit:
            self._faults.plant_in_migration(array, position, port)
            card.transport.spawn(self._look(array))
        await array.load(share=0.5)
        await background.set_rate(card.nvme, DEFAULT_RATE)
        await self._migrated(array, position, port)

    async def _look(self, array: Array) -> None:
        """Whether the migration is under way when faults have happened."""
        await self._card.sleep(FAULT_TIME_NS)
        job = await array.job()
        under_way = job.kind == WalkKind.MIGRATE and job.state == JobState.RUNNING
        self._card.outcome.seen["migrations under way as faults had happened"] += under_way

    async def _migrated(self, array: Array, position: int, port: int) -> None:
        """The migration ends as it must. It has failed only if the new drive had a fault, and the
        member has failed only if its drive had one.

        The drive that is no member has been given up if it is failed.
        """
        card, old = self._card, array.ports[position]
        await card.sleep(MOST_FAULT_NS)
        await array.job_ends()
        for one in (old, port):
            card.harness.drive_fault(one, 0)
        await card.rests((*array.ports, port))
        await card.sleep(POLL_NS)
        # A drive that was given up in the end may have begun another job.
        job = await array.job_ends()
        member = (await array.state()).members[position]
        text = f"{array}: {old} to {port}: {job}, {member}"
        assert member.port in (old, port), text
        moved = member.port == port
        assert moved or port in array.troubled, text
        assert job.kind == WalkKind.MIGRATE or array.troubled, text
        assert job.kind != WalkKind.MIGRATE or (job.state == JobState.DONE) == moved, text
        assert not (array.redundant and job.lost), text
        assert not member.failed or member.port in array.troubled, text
        assert member.failed or member.port not in card.unusable, text
        card.outcome.seen["members moved"] += moved
        card.outcome.seen["migrations failed"] += not moved
        card.outcome.seen["migrations that went on as a rebuild"] += (
            moved and job.kind == WalkKind.REBUILD
        )
        array.ports[position] = member.port
        other = old if moved else port
        if (await raid.drives(card.nvme))[other].failed:
            card.unusable.add(other)
        if moved:
            await self._mend(array, position)
        await array.rest()

    async def _mend(self, array: Array, position: int) -> None:
        """A member has moved. The new drive has what it could not read, but for blocks that could
        not be worked out. The host writes these."""
        card, budget = self._card, array.budget
        bad = {place for place in budget.bad if place[0] == position}
        budget.bad -= bad
        if array.redundant:
            return
        buffer = card.take_buffer()
        for _, row in sorted(bad):
            card.harness.clear_medium_error(array.ports[position], DATA_OFFSET_BLOCKS + row)
            block = array.layout.inverse(Place(position, row))
            where = None if block is None else array.logical(block)
            if where is not None:
                volume, first, count = where
                status = await volume.write(first, count, buffer, 0, fua=True)
                assert status == 0, f"{volume}: write of block {first}: status {status:#x}"
                card.outcome.seen["blocks lost in a migration"] += 1
        card.give_buffer(buffer)

    async def _refuse(self, array: Array, position: int, port: int) -> None:
        """The migration under way ends while the new drive refuses writes. The new drive may be
        given up."""
        card, old = self._card, array.ports[position]
        spared = array.redundant and array.budget.admits(drives=[position])
        if array.redundant and not spared:
            # The card knows which drives are left, but not which blocks they cannot read.
            array.cure()
            spared = array.budget.admits(drives=[position])
        await self._refusals.as_migration_ends(array, old, port)
        job = await array.job()
        member = (await array.state()).members[position]
        assert member.port in (old, port), f"{array}: {job}"
        assert not member.failed or (spared and member.port == port), f"{array}: {member}"
        if member.port == port:
            array.ports[position] = port
            array.budget.bad = {bad for bad in array.budget.bad if bad[0] != position}
            card.outcome.seen["members moved"] += 1
        else:
            assert job.state == JobState.FAILED, f"{array}: {job}"
            card.unusable.add(port)
        if spared and not member.failed:
            array.budget.drives.discard(position)
        await array.rest()
