"""Jobs of the host: started, stopped and resumed under load."""

import random

from campaign.array import POLL_NS, Array
from campaign.card import Card, Stuck
from campaign.faults import FAULT_TIME_NS, Faults
from hdl.background.jobs import JobState
from hdl.background.pace import WHOLE
from hdl.background.supervisor import DEFAULT_RATE
from hdl.flow.walk import WalkKind
from sim.golden.nvme import IN_USE, JOB_RUNNING, NOT_REDUNDANT
from sw.driver import background
from sw.driver.commands import NvmeError

KINDS = (WalkKind.RESYNC, WalkKind.CHECK, WalkKind.REPAIR, WalkKind.PATROL)
REFUSALS = (JOB_RUNNING, NOT_REDUNDANT, IN_USE)
SHARE = 0.3

RATED, RATES = 0.5, (1, 5, 100)
"""Share of jobs that are walked at another rate under load, and the rates in percent."""


class Jobs:
    """Starts jobs.

    Parameters
    ----------
    card
        The card.
    features, choose, faults
        Features of the campaign, random choices, and faults.
    """

    def __init__(self, card: Card, features: frozenset[str], choose: random.Random, faults: Faults):
        self._card = card
        self._features = features
        self._choose = choose
        self._faults = faults

    async def work(self, array: Array) -> None:
        """Sometimes runs a job under load. It must find only faults that were planted."""
        choose, card = self._choose, self._card
        if not card.config.background or "jobs" not in self._features or choose.random() >= SHARE:
            return
        kind = choose.choice(KINDS)
        sound = array.redundant and array.budget.tolerated() and not array.budget.drives
        if not await self._start(array, kind):
            return
        card.outcome.seen[f"jobs {kind.name}"] += 1
        if "mid-job" in self._features and choose.random() < 0.5:
            self._faults.plant_one(array)
            card.outcome.seen["faults planted in a job"] += 1
            sound = False
        rated = choose.random() < RATED
        if rated:
            await background.set_rate(card.nvme, choose.choice(RATES))
        stops = choose.randint(0, 2)

        async def stop_and_resume() -> None:
            for _ in range(stops):
                await card.sleep(choose.uniform(0, FAULT_TIME_NS))
                if await self._refused(background.stop_job(card.nvme, array.number)):
                    return
                job = await array.job()
                if job.state != JobState.STOPPED:
                    return
                await card.sleep(choose.uniform(0, FAULT_TIME_NS))
                # Perhaps one of the card's own: what is stopped stays so until it is resumed.
                if not await self._start(array, job.kind, resume=True):
                    return
                card.outcome.seen["jobs resumed"] += 1

        await card.together([array.load(share=0.5), stop_and_resume()])
        if rated:
            await self._moves(array)
        job = await array.job_ends()
        if job.kind == kind and sound:
            assert job.state == JobState.DONE, f"{array}: {job}"
            assert (job.mismatched, job.lost) == (0, 0), f"{array}: {job}"
        await array.rest()

    async def _moves(self, array: Array) -> None:
        """The host allows all of the time, and from then on the job goes on or ends."""
        card = self._card
        await background.set_rate(card.nvme, WHOLE)
        before = job = await array.job()
        until = card.harness.now_ns + array.job_ns()
        while job.state == JobState.RUNNING and (job.kind, job.row) == (before.kind, before.row):
            if card.harness.now_ns > until:
                raise Stuck(f"{array}: a job rests at the rate of 100 %: {job}")
            await card.sleep(POLL_NS)
            job = await array.job()
        card.outcome.seen["jobs at other rates"] += 1
        card.outcome.seen["jobs that went on at once"] += before.state == JobState.RUNNING
        await background.set_rate(card.nvme, DEFAULT_RATE)

    async def _start(self, array: Array, kind: WalkKind, *, resume: bool = False) -> bool:
        command = background.start_job(self._card.nvme, array.number, kind, resume=resume)
        return not await self._refused(command)

    async def _refused(self, command) -> bool:
        """Whether the card refuses the job, since the array is busy with something else."""
        try:
            await command
        except NvmeError as error:
            if error.status not in REFUSALS and error.status != 0x1C1:
                raise
            self._card.outcome.seen["jobs refused"] += 1
            return True
        return False
