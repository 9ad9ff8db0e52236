"""Lost blocks worked out while others land, on the whole controller of the native tier: drives of
different speeds, of which some fail half way."""

import os
import random

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.config.drive_time import longest_ms
from hdl.flow.geometry import Level
from sim.native.parameters import MICROSECOND, Ideal, link_rate
from sw.driver import raid

SEED = int(os.environ.get("SEED") or "1")
COMMANDS = 80
LONGEST_NS = longest_ms(USUAL) * 1_000_000


def drives(seed: int) -> list[Ideal]:
    """Links from 3 to 12 Gbit/s; a block takes 3.5 to 14 us, after up to 9 us."""
    chance = random.Random(f"{seed}/speeds")
    return [
        Ideal(
            capacity=DATA_OFFSET_BLOCKS + 32,
            rate=link_rate(chance.choice((3, 6, 12))),
            latency_ps=chance.randrange(9) * MICROSECOND,
        )
        for _ in range(PORTS)
    ]


LESS_OFTEN = {
    (Level.RAID5, "hang"),
    (Level.RAID5, "data_moved"),
    (Level.RAID6, "late"),
    (Level.RAID6, "medium"),
}
"""Of the long suite only."""

SITUATIONS = [
    pytest.param(
        level,
        members,
        fault,
        marks=[pytest.mark.slow] if (level, fault) in LESS_OFTEN else [],
        id=f"{level.name}-{fault}",
    )
    for level, members, faults in (
        (Level.RAID5, 8, ("none", "hang", "data_moved")),
        (Level.RAID6, 7, ("medium", "hang", "data_moved", "late", "pull")),
    )
    for fault in faults
]


@pytest.mark.parametrize(("level", "members", "fault"), SITUATIONS)
def test_drives_of_different_speeds(level, members, fault):
    """Reads of a drive that is gone, of which others hang, are late, or go away as well."""
    with Card(drives(SEED), seed=SEED, config=USUAL) as card:

        async def strike() -> None:
            """Something happens to one more drive while reads are under way."""
            for _ in range(4):
                await card.card.transport.sleep(60_000)
                if fault in ("hang", "data_moved"):
                    card.harness.drive_fault(4, 1, at_end=fault == "data_moved")
                elif fault == "late":
                    card.harness.drive_fault(4, 2, delay_ns=LONGEST_NS / 8)
            if fault == "pull":
                card.pull(5)

        async def main() -> Volume:
            volume = await card.create(level, range(members))
            if fault == "medium":
                # In each row at most one block of drives that stay.
                for row in range(0, volume.rows, 3):
                    roles = [place for place in volume.layout.roles(0, row) if place != 2]
                    position = card.random.choice(roles)
                    place = volume.layout.map(0)
                    card.spoil(volume, type(place)(position, row))
            card.pull(2)
            card.card.transport.spawn(strike())
            await card.load(volume, COMMANDS, workers=4, writes=0.15, longest=1)
            await card.read_all(volume, blocks=1)
            (array,) = await raid.arrays(card.nvme)
            assert {member.port for member in array.members if member.failed} == card.gone
            return volume

        card.finish(card.run(main()))
