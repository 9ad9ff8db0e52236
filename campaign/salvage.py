"""An array fails in the middle of a REBUILD, or without redundancy of a MIGRATE, and the host
salvages it.

Nothing is given up by itself: the job fails, and no REBUILD begins. SALVAGE goes on where the job
was (docs/background.md, Past tolerance). What no drive has is unreadable from then on, and never
wrong. The array has no drive that is being rebuilt any more, so the host can replace the others,
and write every block.
"""

import random

from campaign.array import POLL_NS, Array
from campaign.budget import Budget
from campaign.lifetimes import FAILING
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.flow.array_state import ArrayState
from hdl.flow.walk import WalkKind
from sim.golden.layout import Place
from sim.golden.nvme import NOT_REDUNDANT
from sw.driver import background
from sw.driver.commands import NvmeError

SHARE, HEALED = 0.3, 0.7
LEAST_RATE = 1
GOING_NS = 300_000
"""How long a drive has been rebuilt at most as the next one goes."""


class Salvage:
    """Lets arrays fail in the middle of a job, and salvages them.

    Parameters
    ----------
    choose
        Random choices.
    """

    def __init__(self, choose: random.Random):
        self._choose = choose

    async def work(self, array: Array) -> None:
        """Does it, sometimes."""
        card, choose, budget = array.card, self._choose, array.budget
        if "salvage" not in array.features or choose.random() >= SHARE:
            return
        if not card.config.background or not array.healthy:
            return
        array.cure()
        await background.set_rate(card.nvme, LEAST_RATE)
        begun = await (self._rebuild(array) if array.redundant else self._migrate(array))
        if begun is None:
            await background.set_rate(card.nvme, DEFAULT_RATE)
            return
        position, last = begun
        allowed = [0]
        load = card.spawn([array.load(share=0.5, allowed=allowed)])
        await card.sleep(choose.uniform(0, GOING_NS))
        allowed += FAILING
        array.troubled.add(last)
        card.pull(last)
        what = "rebuild" if array.redundant else "migration"
        card.outcome.faults[f"pull past tolerance in a {what}"] += 1
        await load.join()
        await background.set_rate(card.nvme, DEFAULT_RATE)
        job, state = await array.job_ends(), await array.state()
        array.ports = [member.port for member in state.members]
        lost = {p for p, member in enumerate(state.members) if member.failed or member.stale}
        budget.drives = lost
        if state.members[position].stale:
            assert state.state == ArrayState.FAILED, f"{array}: {state}"
            assert job.state == JobState.FAILED, f"{array}: {job}"
            await self._salvage(array, position, job.row)
        # The host can write all blocks of each row anew.
        whole = all(map(array.logical, range(array.blocks)))
        if whole and budget.drives_suffice() and choose.random() < HEALED:
            await self._heal(array)

    async def _rebuild(self, array: Array) -> tuple[int, int]:
        """As many members go as may, and one of them is rebuilt. Returns the position of that, and
        the port of a drive that is needed for it."""
        card, choose = array.card, self._choose
        positions = list(range(array.layout.drives))
        choose.shuffle(positions)
        away = [position for position in positions if array.budget.admits(drives=[position])]
        for position in away:
            array.troubled.add(array.ports[position])
            card.pull(array.ports[position])
        await card.sleep(POLL_NS)
        rebuilt = choose.choice(away)
        await self._replace(array, rebuilt)
        last = next(position for position in positions if position not in away)
        return rebuilt, array.ports[last]

    async def _migrate(self, array: Array) -> tuple[int, int] | None:
        """A member of an array without redundancy migrates. Returns its position, and its port."""
        card = array.card
        used = {port for one in card.arrays for port in one.ports} | card.unusable
        free = [port for port in range(card.config.ports) if port not in used]
        if not free:
            return None
        position, port = self._choose.randrange(array.layout.drives), self._choose.choice(free)
        card.scribble(port, array.rows)
        await background.migrate_member(card.nvme, array.number, position, port, spare=False)
        return position, array.ports[position]

    async def _replace(self, array: Array, position: int) -> None:
        """A blank drive takes the place of a member that has gone."""
        card, port = array.card, array.ports[position]
        card.harness.insert(port)
        card.scribble(port, array.rows)
        await background.replace_member(card.nvme, array.number, position, port)
        card.unusable.discard(port)

    async def _salvage(self, array: Array, rebuilt: int, row: int) -> None:
        """Salvages the array of which a member is rebuilt up to this row."""
        card, budget, layout = array.card, array.budget, array.layout
        for volume in array.volumes:
            await volume.read_all(allowed=FAILING)
        try:
            await background.start_job(card.nvme, array.number, WalkKind.REBUILD)
        except NvmeError as error:
            if error.status != NOT_REDUNDANT:
                raise
        else:
            raise AssertionError(f"{array}: a REBUILD begins of an array that has failed")
        await background.start_job(card.nvme, array.number, WalkKind.SALVAGE)
        await array.load(share=0.3, allowed=FAILING)
        job = await array.job_ends()
        assert (job.kind, job.state) == (WalkKind.SALVAGE, JobState.DONE), f"{array}: {job}"
        member = (await array.state()).members[rebuilt]
        assert not member.failed, f"{array}: {member} is salvaged"
        assert not member.stale, f"{array}: {member} is salvaged"
        failed = Budget.of(layout, array.rows, budget.drives)
        for one in range(row, array.rows):
            block = layout.inverse(Place(rebuilt, one))
            if block is None or not failed.readable(block):
                budget.bad.add((rebuilt, one))
        budget.drives.discard(rebuilt)
        card.outcome.seen["arrays salvaged"] += 1
        card.outcome.seen["rows lost in a salvage"] += job.lost
        card.outcome.seen["rows rebuilt before a salvage"] += row

    async def _heal(self, array: Array) -> None:
        """Replaces who is away, and writes every block. Then the array is as any other."""
        card = array.card
        for position in sorted(array.budget.drives):
            await self._replace(array, position)
            job = await array.job_ends()
            assert (job.kind, job.state) == (WalkKind.REBUILD, JobState.DONE), f"{array}: {job}"
        for volume in array.volumes:
            await volume.write_all()
            await volume.read_all()
            assert await volume.flush() == 0
        if array.redundant:
            await background.start_job(card.nvme, array.number, WalkKind.CHECK)
            job = await array.job_ends()
            assert (job.kind, job.state) == (WalkKind.CHECK, JobState.DONE), f"{array}: {job}"
            assert (job.mismatched, job.lost) == (0, 0), f"{array}: {job}"
        await card.rests(array.ports)
        array.take_shape(array.layout, array.ports, array.rows)
        array.check()
        card.outcome.seen["arrays healed after a salvage"] += 1
