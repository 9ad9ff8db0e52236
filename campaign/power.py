"""All drives lose power at once, and come back with the data that was flushed and some of the rest.

The card stays on. Its arrays have lost all their members. So the host creates them again over the
same drives, and RESYNC makes their redundancy. Data that a drive had not flushed may be missing on
that drive alone. Every block must hold the data that the host's flushes promise.

The power may go in the middle of a job. Of a migration the card reports which drive is the member.
A drive that was being rebuilt is not used again. The host creates the array without it, and only
then replaces it. Until the power goes the host only reads, since the write hole may take blocks of
a degraded array.

The drives may lose power once more when the RESYNC or the REBUILD is done, before anything else is
written or flushed. Then the host takes the array to be consistent as it creates it once more. Often
it does so without one of its members, which it replaces after that.

The same holds for an array of which parities were wrong, once a REPAIR is done, or a CHECK of every
row that follows one that was stopped, and finds nothing. An array that is without a member loses
its power as well. Then only what was written with FUA since the member went must be there. It may
also go amid these writes.
"""

import random
from collections.abc import Container
from dataclasses import dataclass
from functools import partial

from campaign.array import POLL_NS, Array
from campaign.card import Card
from campaign.faults import FAULT_TIME_NS
from campaign.lifetimes import FAILING, Lifetimes
from campaign.volume import Volume
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.config import BLOCK_BYTES
from hdl.flow.walk import WalkKind
from sim.card.volume_model import ANYTHING
from sw.driver import background

SHARE, WITHOUT_JOB = 0.25, 0.3
TWICE, WITHOUT_MEMBER = 0.6, 0.6
"""Share of arrays that lose their power once more, and share of these that lose a member by that.
"""
MENDED, WRONG, REPAIRING_NS = 0.1, 4, 400_000
"""Share of arrays of which parities are made wrong, of how many rows at most, and how long they are
repaired at most until that is stopped."""
DEGRADED, WRITES = 0.1, 100
"""Share of arrays that lose their power without a member, and writes of a volume at most, before it
goes and after that."""
AMID = "goes amid writes"
AMID_NS, SOON_NS = 300_000, 100_000
"""How long writes have been under way at most when it goes, and until when they may have ended
before."""
LEAST_RATE = 1


@dataclass
class Work:
    """The job on an array at the moment when the power goes, and the member at ``position``."""

    kind: WalkKind | None = None
    position: int = 0

    @property
    def rebuilds(self) -> bool:
        """Whether the array is without a member."""
        return self.kind == WalkKind.REBUILD


class Power:
    """Cuts the power.

    Parameters
    ----------
    card, arrays, lifetimes
        The card, all its arrays, and their lifetimes.
    features, choose
        Features of the campaign and random choices.
    """

    def __init__(
        self,
        card: Card,
        arrays: list[Array],
        lifetimes: Lifetimes,
        features: frozenset[str],
        choose: random.Random,
    ):
        self._card = card
        self._arrays = arrays
        self._lifetimes = lifetimes
        self._features = features
        self._choose = choose

    def possible(self, array: Array) -> bool:
        """Whether the array can lose its power now, and be made again."""
        # A created array has its members in the order of their ports.
        kept = array.healthy and array.ports == sorted(array.ports) and not array.budget.bad
        return kept and (self._card.config.background or not array.redundant)

    async def work(self) -> None:
        """Sometimes cuts the power."""
        await self._cut()
        for array in self._arrays:
            if not array.redundant or not self.possible(array):
                continue
            if "mended" in self._features and self._choose.random() < MENDED:
                await self._mend(array)
            if "degraded" in self._features and self._choose.random() < DEGRADED:
                await self._degrade(array)

    async def _cut(self) -> None:
        """Sometimes cuts the power of all drives under load."""
        card, arrays = self._card, self._arrays
        if "power" not in self._features or self._choose.random() >= SHARE:
            return
        if not all(map(self.possible, arrays)):
            return
        for array in arrays:
            array.troubled.update(array.ports)
        # So that jobs are still under way when the power goes.
        if card.config.background:
            await background.set_rate(card.nvme, LEAST_RATE)
        works = {array: await self._begin(array) for array in arrays}
        load = card.spawn(
            array.load(share=0.7, writes=(0,), allowed=FAILING)
            if work.rebuilds
            else array.load(share=0.7, allowed=FAILING)
            for array, work in works.items()
        )
        await card.sleep(self._choose.uniform(0, FAULT_TIME_NS))
        running = {array for array, work in works.items() if await self._runs(array, work)}
        card.harness.power_loss()
        await load.join()
        away = {array.ports[work.position] for array, work in works.items() if work.rebuilds}
        for array, work in works.items():
            if array in running and work.kind is not None:
                card.outcome.faults[f"power loss in {work.kind.name}"] += 1
            if work.kind is not None:
                await array.job_ends()
            if work.kind == WalkKind.MIGRATE:
                array.ports = [member.port for member in (await array.state()).members]
        if card.config.background:
            await background.set_rate(card.nvme, DEFAULT_RATE)
        for port in range(card.config.ports):
            if port not in card.unusable | away:
                card.harness.insert(port)
        for array, work in works.items():
            await self.again(array, work)
        card.outcome.faults["power loss"] += 1

    async def _runs(self, array: Array, work: Work) -> bool:
        return work.kind is not None and (await array.job()).state == JobState.RUNNING

    async def _begin(self, array: Array) -> Work:
        """Sometimes begins a job."""
        card, choose = self._card, self._choose
        if "mid-power" not in self._features or not array.redundant:
            return Work()
        if choose.random() < WITHOUT_JOB:
            return Work()
        kind = choose.choice((WalkKind.RESYNC, WalkKind.MIGRATE, WalkKind.REBUILD))
        if kind == WalkKind.RESYNC:
            await background.start_job(card.nvme, array.number, kind)
            return Work(kind)
        position = choose.randrange(array.layout.drives)
        if kind == WalkKind.MIGRATE:
            fit = self._fit(array, position)
            if not fit:
                return Work()
            port = choose.choice(fit)
            card.scribble(port, array.rows)
            await background.migrate_member(card.nvme, array.number, position, port, spare=False)
            return Work(kind, position)
        await self.settled(array)
        port = array.ports[position]
        card.harness.remove(port)
        await card.sleep(POLL_NS)
        card.harness.insert(port)
        card.scribble(port, array.rows)
        await background.replace_member(card.nvme, array.number, position, port)
        return Work(kind, position)

    def _free(self) -> list[int]:
        """Ports of good drives that no array has."""
        used = {port for one in self._arrays for port in one.ports} | self._card.unusable
        return [port for port in range(self._card.config.ports) if port not in used]

    def fitting(self, array: Array) -> list[tuple[int, int]]:
        """Positions of members with ports that they can migrate to, so that their ports stay in
        order."""
        return [
            (position, port)
            for position in range(array.layout.drives)
            for port in self._fit(array, position)
        ]

    def _fit(self, array: Array, position: int) -> list[int]:
        before, after = array.ports[:position], array.ports[position + 1 :]
        ordered = ([*before, port, *after] for port in self._free())
        return [ports[position] for ports in ordered if ports == sorted(ports)]

    def _twice(self) -> bool:
        return "done" in self._features and self._choose.random() < TWICE

    async def _done(self, array: Array, what: str) -> int | None:
        """Takes the power of an array of which all rows are right, and creates it once more.

        ``what`` has made them right. Returns the position of the member that is left out, if one
        is.
        """
        card, choose = self._card, self._choose
        position = choose.randrange(array.layout.drives)
        missing = position if choose.random() < WITHOUT_MEMBER else None
        self.lose_power(array, [] if missing is None else [missing])
        await self.create(array, degraded=missing is not None)
        if missing is None:
            array.check()
        card.outcome.faults[f"power loss after {what}"] += 1
        card.outcome.seen[f"arrays without a member after {what}"] += missing is not None
        return missing

    def lose_power(self, array: Array, missing: Container[int]) -> None:
        """Takes the power of its drives. All are there again but those at ``missing`` positions."""
        self._card.harness.power_loss(array.ports)
        for position, port in enumerate(array.ports):
            if position not in missing:
                self._card.harness.insert(port)

    async def create(self, array: Array, **how: bool) -> None:
        """Creates the array in its place, without volumes."""
        await self._lifetimes.delete(array)
        array.volumes = []
        array.take_shape(array.layout, array.ports, array.rows)
        array.failed.clear()
        await array.create(**how)

    async def again(self, array: Array, work: Work) -> None:
        """Creates the array and its volumes again. They hold the data that was flushed."""
        volumes = array.volumes
        await self.create(array, initialise=array.redundant, degraded=work.rebuilds)
        missing = work.position if work.rebuilds else None
        if array.redundant:
            await array.initialised()
            if missing is None and self._twice():
                missing = await self._done(array, "a resync")
        await self._whole(array, volumes, missing)

    async def _whole(self, array: Array, volumes: list[Volume], missing: int | None) -> None:
        """Creates the volumes of the array again, and replaces the member that is missing."""
        card = self._card
        while missing is not None:
            volumes = await self.take_over(array, volumes)
            port = array.ports[missing]
            card.harness.insert(port)
            card.scribble(port, array.rows)
            await background.replace_member(card.nvme, array.number, missing, port)
            job = await array.job_ends()
            assert (job.kind, job.state, job.lost) == (WalkKind.REBUILD, JobState.DONE, 0), job
            for volume in volumes:
                await volume.read_all()
            if not self._twice():
                break
            missing = await self._done(array, "a rebuild")
        else:
            await self.take_over(array, volumes)
        await self.settled(array)

    async def take_over(
        self, array: Array, volumes: list[Volume], lost: Container[int] = ()
    ) -> list[Volume]:
        """Creates the volumes once more. They hold what the drives have kept of those before.
        Blocks of the array that are ``lost`` need not be readable."""
        taken = []
        for volume in volumes:
            volume.model.lose_power()
            again = await array.create_volume(
                volume.start, volume.blocks, volume.sector_bytes, [{b""}] * volume.blocks
            )
            again.adopt(volume)
            await again.read_all(lost=lost)
            taken.append(again)
        return taken

    # An array that is not what it was

    async def settled(self, array: Array) -> None:
        """What the array holds is durable."""
        for volume in array.volumes:
            assert await volume.flush() == 0
            volume.settle()

    async def _mend(self, array: Array) -> None:
        """Makes parities wrong, repairs them, and takes the power."""
        card, choose, layout = self._card, self._choose, array.layout
        if not layout.parities:
            return
        await self.settled(array)
        rows = choose.sample(range(array.rows), min(array.rows, WRONG))
        if choose.random() < 0.5:
            rows = list(range(len(rows)))  # a REPAIR is soon through these
        for row in rows:
            span = choose.randrange(layout.spans)
            position = choose.choice(layout.roles(span, row)[layout.data :])
            card.store(array.ports[position], row, card.random.randbytes(BLOCK_BYTES))
        await background.set_rate(card.nvme, LEAST_RATE)
        await background.start_job(card.nvme, array.number, WalkKind.REPAIR)
        await card.sleep(choose.uniform(0, REPAIRING_NS))
        job = await array.stop_job()
        await background.set_rate(card.nvme, DEFAULT_RATE)
        repaired = job.mismatched
        if job.state == JobState.STOPPED:
            job = await self.all_rows(array, WalkKind.CHECK)
        if job.kind == WalkKind.CHECK and job.mismatched:
            job = await self.all_rows(array, WalkKind.REPAIR)
            repaired += job.mismatched
        assert repaired == len(rows), f"{array}: {repaired} rows are repaired, of {rows}"
        volumes = array.volumes
        missing = await self._done(array, f"a {job.kind.name.lower()}")
        await self._whole(array, volumes, missing)

    async def all_rows(self, array: Array, kind: WalkKind) -> background.Job:
        """A job of every row, which is done well."""
        await background.start_job(self._card.nvme, array.number, kind)
        job = await array.job_ends()
        assert (job.kind, job.state, job.lost) == (kind, JobState.DONE, 0), f"{array}: {job}"
        return job

    async def _degrade(self, array: Array) -> None:
        """Takes the power of an array that is without a member, or of which another drive is to be
        that member. What was written with FUA since the member went must be there.

        Other drives still hold writes in their caches. So the rest of the blocks may be wrong, by
        the write hole.
        """
        card, choose = self._card, self._choose
        await self.settled(array)
        for volume in array.volumes:
            await volume.write_each(self._some(volume), 1)
        position = choose.randrange(array.layout.drives)
        array.troubled.update(array.ports)
        await background.set_rate(card.nvme, LEAST_RATE)
        ways = {
            "goes": self._leave,
            "restarts": self._restart,
            "is replaced": self._rebuild,
            "goes as it migrates": self._take_over_member,
        }
        way = choose.choice([*ways, AMID])
        if way != AMID:
            await ways[way](array, position)
        for volume, stored in (await self._write(array, position, amid=way == AMID)).items():
            for block in {*range(len(volume.model))} - stored:
                volume.model.settle(block, {ANYTHING})
        job, member = await array.job(), (await array.state()).members[position]
        await background.set_rate(card.nvme, DEFAULT_RATE)
        if member.failed or member.stale or job.state == JobState.RUNNING:
            self.lose_power(array, [position])
            await self.again(array, Work(WalkKind.REBUILD, position))
            card.outcome.faults["power loss without a member"] += 1
            walks = job.state == JobState.RUNNING and job.row > 0
            card.outcome.seen[f"writes with FUA in a {job.kind.name} as a member {way}"] += walks
        else:
            if member.port != array.ports[position]:
                card.harness.insert(array.ports[position])
                array.ports[position] = member.port
            await self.settled(array)
        array.troubled.clear()

    async def _write(self, array: Array, position: int, *, amid: bool) -> dict[Volume, set[int]]:
        """Writes some logical blocks of each volume with FUA. Returns those that must be there.

        ``amid``: the member goes meanwhile. Blocks on it need not be there if their writes had
        ended by then, or soon after: for the card they may have ended before it went.
        """
        card, ended_ns = self._card, {}

        async def write(volume: Volume, first: int, buffer: int) -> None:
            status = await volume.write(first, 1, buffer, 0, fua=True)
            assert status == 0, f"{volume}: write of block {first}: status {status:#x}"
            ended_ns[volume, first] = card.harness.now_ns

        load = card.spawn(
            volume.each(self._some(volume), partial(write, volume)) for volume in array.volumes
        )
        if amid:
            await card.sleep(self._choose.uniform(0, AMID_NS))
        gone_ns = card.harness.now_ns
        if amid:
            await self._leave(array, position)
        await load.join()
        stored: dict[Volume, set[int]] = {volume: set() for volume in array.volumes}
        for (volume, first), at_ns in ended_ns.items():
            block = volume.start + first * volume.sector_bytes // BLOCK_BYTES
            places = {place.position for place in array.layout.copies_of(block)}
            late = at_ns > gone_ns + SOON_NS
            card.outcome.seen["writes with FUA as their drive goes"] += amid and late
            if not amid or late or places != {position}:
                stored[volume].add(first)
        return stored

    async def _leave(self, array: Array, position: int) -> None:
        """The member goes."""
        self._card.harness.remove(array.ports[position])
        await self._card.sleep(POLL_NS)

    async def _restart(self, array: Array, position: int) -> None:
        """The member begins anew, and is brought up to date."""
        self._card.harness.restart_drive(array.ports[position])
        await self._card.sleep(self._choose.uniform(0, REPAIRING_NS))

    async def _rebuild(self, array: Array, position: int) -> None:
        """The member goes, and another drive that takes its place is being rebuilt."""
        card, port = self._card, array.ports[position]
        await self._leave(array, position)
        card.harness.insert(port)
        card.scribble(port, array.rows)
        await background.replace_member(card.nvme, array.number, position, port)
        await card.sleep(self._choose.uniform(0, REPAIRING_NS))

    async def _take_over_member(self, array: Array, position: int) -> None:
        """The member goes while it migrates to another drive, if one is free."""
        card, free = self._card, self._free()
        if free:
            port = self._choose.choice(free)
            card.scribble(port, array.rows)
            await background.migrate_member(card.nvme, array.number, position, port, spare=False)
            await card.sleep(self._choose.uniform(0, REPAIRING_NS))
        await self._leave(array, position)

    def _some(self, volume: Volume) -> list[int]:
        """Some logical blocks of the volume."""
        blocks = range(len(volume.model))
        return self._choose.sample(blocks, min(len(blocks) // 2, WRITES))
