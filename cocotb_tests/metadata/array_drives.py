"""Drives of arrays of which something may be wrong."""

import random
from dataclasses import dataclass, replace

from sim.golden.assembly import Judgement, NoArrayError, judge
from sim.golden.layout import Layout
from sim.golden.superblock import FAULTY, SECTOR_BYTES, SPARE, Feature, Superblock

BLOCK = 4096
ROWS = 256
DATA_OFFSET = 2048
SIZE = ROWS * BLOCK // SECTOR_BYTES
DRIVE_BYTES = 4 << 20
DEVICES = 128
EVENTS = 20
CLONE = 100
"""Numbers of drives that are copies of others."""

LAYOUTS = (
    (Layout("RAID0", 3, 1), 0, 1),
    (Layout("RAID1", 3, 1), 1, 0),
    (Layout("RAID5", 4, 1), 5, 2),
    (Layout("RAID6", 5, 2), 6, 2),
    (Layout("RAID10", 4, 1), 10, 0x102),
    (Layout("RAID10", 5, 1), 10, 0x102),
)
"""Layouts with md's level and layout."""

ALL_LAYOUTS = (*LAYOUTS, (Layout("JBOD", 1, 1), 1, 0), (Layout("RAIDTP", 7, 1), 7, 2))
"""Those that md has no name for as well."""


@dataclass(frozen=True, kw_only=True)
class Drives:
    """Drives of which some are there, and what they hold."""

    layout: Layout
    found: dict[int, Superblock]

    @property
    def judgement(self) -> Judgement | None:
        """What the model makes of them, if they make an array."""
        try:
            return judge(self.found)
        except NoArrayError:
            return None


def superblocks(number: int, layout: Layout, level: int, code: int) -> list[Superblock]:
    """Of a clean array that is complete, without a bitmap."""
    roles = (*range(layout.drives), *[SPARE] * (DEVICES - layout.drives))
    common = Superblock(
        set_uuid=(number + 1).to_bytes(4, "big") * 4,
        set_name=b"striata:vol0",
        ctime=1_700_000_000,
        level=level,
        layout=code,
        size=0 if level == 0 else SIZE,
        chunk=0 if level == 1 else layout.strip_blocks * BLOCK // SECTOR_BYTES,
        raid_disks=layout.drives,
        features=Feature.RAID0_LAYOUT if level == 0 else Feature(0),
        data_offset=DATA_OFFSET,
        data_size=SIZE,
        device_number=0,
        device_uuid=b"",
        events=EVENTS,
        roles=roles,
    )
    return [
        replace(common, device_number=role, device_uuid=bytes([role + 1]) * 16)
        for role in range(layout.drives)
    ]


def renumbered(found: dict[int, Superblock], generator: random.Random) -> dict[int, Superblock]:
    """The same members, whose devices have other numbers than their roles. That is so where members
    have been replaced."""
    numbers = generator.sample(range(len(found) + 2), len(found))
    roles = [SPARE] * DEVICES
    for role, device in zip(found, numbers, strict=True):
        roles[device] = role
    return {
        role: replace(one, device_number=device, roles=tuple(roles))
        for (role, one), device in zip(found.items(), numbers, strict=True)
    }


def drives(number: int, generator: random.Random, *, layouts=LAYOUTS) -> Drives:
    """An array of which something may be wrong."""
    layout, level, code = generator.choice(layouts)
    found = dict(enumerate(superblocks(number, layout, level, code)))
    if generator.random() < 0.3:
        found = renumbered(found, generator)

    def change(role: int, **values) -> None:
        found[role] = replace(found[role], **values)

    if level and generator.random() < 0.3:
        for role in found:
            change(role, resync_offset=0)
    if level and layout.drives > 1 and generator.random() < 0.5:
        # A member has failed, and the others know.
        lost = generator.randrange(layout.drives)
        behind = generator.choice((1, 2, 3))
        for role in found:
            if role != lost:
                roles = list(found[role].roles)
                roles[found[lost].device_number] = FAULTY
                change(role, roles=tuple(roles), events=EVENTS + behind)
        if generator.random() < 0.5:
            del found[lost]
    elif level and generator.random() < 0.4:
        # One is behind, and nobody says that it has failed.
        change(generator.randrange(layout.drives), events=EVENTS - generator.randint(1, 3))
    if level and generator.random() < 0.2:
        role = generator.choice([*found])
        change(role, features=Feature.RECOVERY_OFFSET, recovery_offset=SIZE // 2)
    if generator.random() < 0.3 and len(found) > 1:
        del found[generator.choice([*found])]
    if generator.random() < 0.2:
        name, value = generator.choice(
            (("ctime", 1_700_000_001), ("set_uuid", bytes(16)), ("chunk", 64), ("raid_disks", 9))
        )
        change(generator.choice([*found]), **{name: value})
    if level and generator.random() < 0.2:
        # A copy of a drive, made some time ago or used since.
        role = generator.choice([*found])
        events = found[role].events + generator.choice((-2, -1, 0, 1, 2))
        found[role + CLONE] = replace(found[role], device_uuid=bytes(15) + b"c", events=events)
    return Drives(layout=layout, found=found)


def complete(level: str) -> dict[int, Superblock]:
    """The superblocks of a clean array of that level that is complete."""
    layout, number, code = next(one for one in LAYOUTS if one[0].level == level)
    return dict(enumerate(superblocks(1, layout, number, code)))


def without(role: int, **values) -> dict[int, Superblock]:
    """A RAID 5 of which that member has failed, and the others know."""
    found = complete("RAID5")
    del found[role]
    roles = tuple(FAULTY if part == role else part for part in found[0].roles)
    return {number: replace(one, roles=roles, **values) for number, one in found.items()}
