"""A drive leaves an array whose first RESYNC has not ended, and another one takes its place.

REBUILD never runs before all rows are in sync. The host stops the RESYNC and replaces the drive, or
a hot spare steps in. The RESYNC then goes on, and the REBUILD follows by itself
(docs/background.md, In sync). A spare waits for a RESYNC that runs. Data that the host has written
is right all the time. Afterwards all rows agree, and blocks that nobody has written keep what they
have by then.
"""

import math
import random

from campaign.array import Array
from campaign.bounds import given_up_ns
from campaign.card import Stuck
from campaign.faults import FAULT_TIME_NS
from campaign.members import Members
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.flow.walk import WalkKind
from sim.card.volume_model import ANYTHING
from sim.golden.nvme import JOB_RUNNING
from sw.driver import background
from sw.driver.commands import NvmeError

SHARE = 0.25
STOPPED, SPARED, SAME_PORT = 0.5, 0.5, 0.3
LEAST_RATE = 5
LOOK_NS = 60_000


class Unfinished:
    """Begins arrays that lose a drive at once.

    Parameters
    ----------
    members, features, choose
        Changes of members, features of the campaign, and random choices.
    """

    def __init__(self, members: Members, features: frozenset[str], choose: random.Random):
        self._members = members
        self._features = features
        self._choose = choose

    async def begin(self, array: Array) -> bool:
        """Sometimes creates the array over whatever the drives hold, and takes a drive away before
        the array has its redundancy. Returns whether it did."""
        card, choose = array.card, self._choose
        possible = card.config.background and array.redundant
        if "unfinished" not in self._features or not possible or choose.random() >= SHARE:
            return False
        for port in array.ports:
            card.scribble(port, array.rows)
        # So that it is still under way when the drive is replaced.
        await background.set_rate(card.nvme, LEAST_RATE)
        await array.create(initialise=True)
        stopped = choose.random() < STOPPED and await self._stop(array)
        await array.create_volumes([{ANYTHING}] * array.blocks)
        await array.load(share=0.3)
        load = card.spawn([array.load(share=0.5)])
        await card.sleep(choose.uniform(0, FAULT_TIME_NS / 2))
        position = choose.randrange(array.layout.drives)
        array.troubled.add(array.ports[position])
        free = self._members.free()
        if free and choose.random() < SPARED:
            port = choose.choice(free)
            await self._spare(array, position, port)
        else:
            port = array.ports[position]
            if free and choose.random() >= SAME_PORT:
                port = choose.choice(free)
            await self._replace(array, position, port)
            stopped = True
        await self._watch(array, position, port, stopped=stopped, load=load)
        await load.join()
        await self._settle(array, position, port)
        return True

    async def _stop(self, array: Array) -> bool:
        return (await array.stop_job()).state == JobState.STOPPED

    def _pull(self, array: Array, position: int) -> None:
        array.card.pull(array.ports[position])
        array.card.outcome.faults["pull before the first RESYNC has ended"] += 1

    async def _spare(self, array: Array, position: int, port: int) -> None:
        """A hot spare is there, or comes when the drive has gone."""
        card = array.card
        before = self._choose.random() < 0.5
        if not before:
            self._pull(array, position)
            await card.sleep(self._choose.uniform(0, FAULT_TIME_NS))
        card.scribble(port, array.rows)
        await background.add_spare(card.nvme, port, array.number)
        if before:
            self._pull(array, position)
        array.troubled.add(port)

    async def _replace(self, array: Array, position: int, port: int) -> None:
        """The host replaces the drive, once it has stopped the RESYNC."""
        card, old = array.card, array.ports[position]
        self._pull(array, position)
        until = card.harness.now_ns + given_up_ns(card.config)
        while not (await array.state()).members[position].failed:
            if card.harness.now_ns > until:
                raise Stuck(f"{array}: the drive at {old} has gone, and is not failed")
            await card.sleep(LOOK_NS)
        if port == old:
            card.harness.insert(port)
        card.scribble(port, array.rows)
        array.troubled.add(port)
        while True:
            await array.stop_job()
            try:
                await background.replace_member(card.nvme, array.number, position, port)
            except NvmeError as error:
                if error.status != JOB_RUNNING:
                    raise
            else:
                return

    async def _watch(self, array: Array, position: int, port: int, *, stopped: bool, load) -> None:
        """Returns when the drive has been rebuilt, which begins once all rows are in sync."""
        card = array.card
        until = math.inf
        early = False
        while True:
            member = (await array.state()).members[position]
            job = await array.job()
            joined = member.port == port and not member.failed
            if joined and not job.in_sync:
                early = True
                assert stopped, f"{array}: a spare has not waited for the first RESYNC: {job}"
            if job.kind == WalkKind.REBUILD:
                # What is told of the rows may be older than what is told of the job.
                job = job if job.in_sync else await array.job()
                assert job.in_sync, f"{array}: a REBUILD runs, and rows are not in sync: {job}"
            if joined and job.kind == WalkKind.REBUILD and job.state != JobState.RUNNING:
                break
            if card.harness.now_ns > until:
                raise Stuck(f"{array}: {member} is not rebuilt: {job}")
            if joined or load.ended:
                await background.set_rate(card.nvme, DEFAULT_RATE)
            if load.ended and until == math.inf:
                until = card.harness.now_ns + array.job_ns()
            await card.sleep(LOOK_NS)
        assert (job.state, job.lost) == (JobState.DONE, 0), f"{array}: {job}"
        card.outcome.seen["drives that joined before the first RESYNC had ended"] += early

    async def _settle(self, array: Array, position: int, port: int) -> None:
        """All rows agree. From now on the array is as any other."""
        card = array.card
        await background.set_rate(card.nvme, DEFAULT_RATE)
        state = await array.state()
        assert state.in_sync, f"{array}: it is not in sync"
        assert not state.degraded, f"{array}: {state}"
        ports = list(array.ports)
        ports[position] = port
        card.unusable.discard(port)
        array.take_shape(array.layout, ports, array.rows)
        for volume in array.volumes:
            await volume.read_all()
            assert await volume.flush() == 0
            volume.settle()
        await card.rests(array.ports)
        array.check()
        card.outcome.seen["arrays that lost a drive at once"] += 1
