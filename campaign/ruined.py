"""Rows past repair, and rows of which writes fail, lose their power.

Everything is durable before. Then some rows have more blocks that cannot be read than the level
tolerates, or the array is without as many members as it may be, and drives refuse blocks. The host
writes to these rows with FUA only. After a loss of power the host makes the array again of the same
drives, and takes it to be consistent. What was written well must be there, and whatever else is
read must be right: what could not be read before is never worked out from what drives have
forgotten.
"""

import random

from campaign.array import Array
from campaign.card import Card
from campaign.power import LEAST_RATE, POLL_NS, Power
from campaign.volume import Volume
from hdl.background.jobs import JobState
from hdl.background.supervisor import DEFAULT_RATE
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.walk import WalkKind
from sim.golden.layout import Place
from sim.golden.nvme import UNRECOVERED_READ, WRITE_FAULT
from sw.driver import background

SHARE, ROWS = 0.1, 6
"""Share of arrays with parity to which it happens, and of how many rows at most."""
WRITES = 3
"""Blocks of each such row that are written."""


class Ruined:
    """Ruins rows, cuts the power, and writes everything anew.

    Parameters
    ----------
    card, power
        The card, and who cuts its power.
    features, choose
        Features of the campaign and random choices.
    """

    def __init__(
        self, card: Card, power: Power, features: frozenset[str], choose: random.Random
    ):
        self._card = card
        self._power = power
        self._happens = "ruined" in features
        self._choose = choose

    async def work(self, array: Array) -> None:
        """Does it, sometimes."""
        card, choose, layout = self._card, self._choose, array.layout
        if not self._happens or choose.random() >= SHARE:
            return
        if not layout.parities or not card.config.background or not self._power.possible(array):
            return
        # The host can write all blocks of a row anew.
        rows = [
            (span, row)
            for span in range(layout.spans)
            for row in range(array.rows)
            if all(map(array.logical, self._data(array, span, row)))
        ]
        if not rows:
            return
        await self._power.settled(array)
        array.troubled.update(array.ports)
        await background.set_rate(card.nvme, LEAST_RATE)
        rows = choose.sample(rows, min(len(rows), ROWS))
        away: list[int] = []
        if choose.random() < 0.5:
            lost = await self._past_repair(array, rows)
            card.outcome.faults["power loss with rows past repair"] += 1
        else:
            away = choose.sample(range(layout.width), layout.parities)
            away = [rows[0][0] * layout.width + position for position in away]
            lost = await self._refused(array, rows, away)
            # In another span a drive may have been given up, which keeps an old block.
            members = (await array.state()).members
            away = [position for position, one in enumerate(members) if one.failed]
            card.outcome.faults["power loss after writes that failed"] += 1
        self._power.lose_power(array, away)
        await background.set_rate(card.nvme, DEFAULT_RATE)
        volumes = array.volumes
        await self._power.create(array, degraded=bool(away))
        await self._power.take_over(array, volumes, lost)
        await self._heal(array, away)
        array.troubled.clear()

    async def _past_repair(self, array: Array, rows: list[tuple[int, int]]) -> set[int]:
        """Blocks of these rows cannot be read. Returns those that may be lost."""
        card, layout, lost = self._card, array.layout, set()
        for span, row in rows:
            for position in self._choose.sample(layout.roles(span, row), layout.parities + 1):
                card.harness.medium_error(array.ports[position], DATA_OFFSET_BLOCKS + row)
                lost.add(layout.inverse(Place(position, row)))
        lost -= await self._write(array, rows)
        return lost - {None}

    async def _refused(
        self, array: Array, rows: list[tuple[int, int]], away: list[int]
    ) -> set[int]:
        """Some members go, and drives refuse blocks of these rows. Returns the blocks that may be
        lost: those of which a write has failed, and those of its row that are away."""
        card, choose, layout = self._card, self._choose, array.layout
        for position in away:
            card.harness.remove(array.ports[position])
        await card.sleep(POLL_NS)
        refused: list[tuple[int, int]] = []
        for span, row in rows:
            there = [position for position in layout.roles(span, row) if position not in away]
            refused += [
                (array.ports[position], row)
                for position in choose.sample(there, min(len(there), layout.parities))
            ]
        for port, row in refused:
            card.harness.refuse_writes(port, DATA_OFFSET_BLOCKS + row)
        await self._write(array, rows)
        for port, row in refused:
            card.harness.accept_writes(port, DATA_OFFSET_BLOCKS + row)
        failed, lost = self._doubtful(array), set()
        for span, row in rows:
            if failed & {*self._data(array, span, row)}:
                lost |= {layout.inverse(Place(one, row)) for one in away}
        return (lost | failed) - {None}

    def _data(self, array: Array, span: int, row: int) -> list[int]:
        """The blocks of the host in a row."""
        layout = array.layout
        blocks = [layout.inverse(Place(one, row)) for one in layout.roles(span, row)]
        return [block for block in blocks if block is not None]

    def _doubtful(self, array: Array) -> set[int]:
        """Blocks of which a write has failed."""
        return {volume.start + block for volume in array.volumes for block in volume.doubtful}

    async def _write(self, array: Array, rows: list[tuple[int, int]]) -> set[int]:
        """Writes some blocks of each row with FUA. Returns those of which a write has succeeded,
        and none has failed."""
        choose, written = self._choose, set()
        chosen: dict[Volume, list[tuple[int, int, int]]] = {}
        for span, row in rows:
            blocks = self._data(array, span, row)
            for block in choose.sample(blocks, min(len(blocks), WRITES)):
                where = array.logical(block)
                assert where is not None
                chosen.setdefault(where[0], []).append((where[1], where[2], block))

        for volume, items in chosen.items():

            async def write(item: int, buffer: int, volume=volume, items=items) -> None:
                first, count, block = items[item]
                if choose.random() < 0.5:
                    status = await volume.read(first, count, buffer)
                    assert status in (0, UNRECOVERED_READ), f"{volume}: {status:#x}"
                status = await volume.write(first, count, buffer, 0, fua=True)
                assert status in (0, WRITE_FAULT), f"{volume}: {status:#x}"
                self._card.outcome.seen["writes to ruined rows failed"] += status != 0
                if status == 0:
                    written.add(block)

            await volume.each(range(len(items)), write)
        return written - self._doubtful(array)

    async def _heal(self, array: Array, away: list[int]) -> None:
        """Replaces who is away, and writes every block."""
        card = self._card
        for position in away:
            port = array.ports[position]
            card.harness.insert(port)
            card.scribble(port, array.rows)
            await background.replace_member(card.nvme, array.number, position, port)
            job = await array.job_ends()
            assert (job.kind, job.state) == (WalkKind.REBUILD, JobState.DONE), job
        for volume in array.volumes:
            await volume.write_all()
            await volume.read_all()
        job = await self._power.all_rows(array, WalkKind.CHECK)
        assert not job.mismatched, f"{array}: {job}"
        await self._power.settled(array)
