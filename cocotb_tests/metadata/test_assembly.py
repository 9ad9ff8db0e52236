"""Which drives make an array: the model against mdadm and Linux."""

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import needs_linux
from cocotb_tests.metadata.mdadm import write_drive
from sim.golden.assembly import Judgement, NoArrayError, judge
from sim.golden.image import members as golden_members
from sim.golden.layout import Layout
from sim.golden.superblock import (
    CLEAN,
    FAULTY,
    SECTOR,
    SECTOR_BYTES,
    SPARE,
    Feature,
    Superblock,
)
from sim.md.machine import Assembly, assembled, drive, run

SEED = int(os.environ.get("SEED") or "1")
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


def drives(number: int, generator: random.Random) -> Drives:
    """An array of which something may be wrong."""
    layout, level, code = generator.choice(LAYOUTS)
    found = dict(enumerate(superblocks(number, layout, level, code)))

    def change(role: int, **values) -> None:
        found[role] = replace(found[role], **values)

    if level and generator.random() < 0.3:
        for role in found:
            change(role, resync_offset=0)
    if level and generator.random() < 0.5:
        # A member has failed, and the others know.
        lost = generator.randrange(layout.drives)
        behind = generator.choice((1, 2, 3))
        for role in found:
            if role != lost:
                roles = list(found[role].roles)
                roles[lost] = FAULTY
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


def run_md(work: Path, cases: Mapping[str, Drives], contents: Mapping[str, list[bytes]]) -> list:
    """What md makes of each."""
    jobs = []
    for name, one in cases.items():
        areas = golden_members(one.layout, ROWS, contents[name])
        given = []
        for role, superblock in one.found.items():
            given.append(f"{name}.{role}.img")
            held = {SECTOR: superblock.pack(), superblock.data_offset: areas[role % CLONE]}
            write_drive(work / given[-1], DRIVE_BYTES // SECTOR_BYTES, held)
        attempt = ["--assemble", "/dev/md0", *(drive(place) for place in range(len(given)))]
        jobs.append(Assembly(name=name, given=given, attempts=[attempt], bytes=DRIVE_BYTES))
    run(work, jobs)
    return [assembled(work, job) for job in jobs]


class StartsInDoubt(Judgement):
    """Planted bug: rows that may be inconsistent are no reason to wait."""

    @property
    def dirty(self) -> bool:
        return False


class MissesNobody(Judgement):
    """Planted bug: a drive that is away without having failed is no reason to wait."""

    @property
    def starts(self) -> bool:
        return Judgement(**{**vars(self), "expected": frozenset()}).starts


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


def test_what_is_complete_starts():
    """Clean or dirty."""
    for level in ("RAID0", "RAID1", "RAID5", "RAID6", "RAID10"):
        found = complete(level)
        for resync in (CLEAN, 0):
            judgement = judge(
                {role: replace(one, resync_offset=resync) for role, one in found.items()}
            )
            assert judgement.starts and not judgement.degraded and not judgement.left_out


def test_who_is_missed():
    """A drive that has failed is not waited for, one that is away is, and one that is too old is
    like it. One write behind is not too old."""
    found = complete("RAID5")
    for behind, starts in ((0, True), (1, True), (2, False)):
        one = {**found, 2: replace(found[2], events=EVENTS - behind)}
        assert judge(one).starts == starts
        assert judge(one).left_out == (frozenset() if starts else {2})
    del found[2]
    assert not judge(found).starts
    assert judge(without(2)).starts
    assert judge(without(2)).degraded == 1
    assert not judge(without(2, resync_offset=0)).starts


def test_what_differs_makes_no_array():
    """Drives of two arrays, or none at all."""
    found = complete("RAID6")
    for name, value in (("set_uuid", bytes(16)), ("ctime", 1), ("chunk", 64), ("size", 8)):
        with pytest.raises(NoArrayError, match=name):
            judge({**found, 3: replace(found[3], **{name: value, "events": EVENTS - 1})})
    with pytest.raises(NoArrayError, match="no drive"):
        judge({})


def test_of_two_for_one_role_the_fresher_is_taken():
    """The other is left out, and so is a spare."""
    found = complete("RAID1")
    for ahead in (-1, 1):
        copy = replace(found[1], events=EVENTS + ahead)
        spare = replace(found[1], device_number=9, events=EVENTS)
        judgement = judge({**found, 8: copy, 9: spare})
        assert judgement.members[1] == (1 if ahead < 0 else 8)
        assert judgement.left_out == {9, 8 if ahead < 0 else 1}


COUNT = 60


@pytest.mark.slow
@needs_linux
def test_linux_judges_alike(tmp_path: Path):
    """Arrays of which something may be wrong: what starts, which drives are in it, and the data. A
    drive that is left out is known by its absence."""
    print(f"SEED={SEED}")
    generator = random.Random(f"{SEED}/assembly")
    cases = {f"case{number}": drives(number, generator) for number in range(COUNT)}
    raid5 = next(layout for layout, *_ in LAYOUTS if layout.level == "RAID5")
    away = complete("RAID5")
    del away[2]
    for name, found in (("doubt", without(2, resync_offset=0)), ("away", away)):
        cases[name] = Drives(layout=raid5, found=found)
    contents = {
        name: [generator.randbytes(BLOCK) for _ in range(one.layout.blocks(ROWS))]
        for name, one in cases.items()
    }
    outcomes = run_md(tmp_path, cases, contents)
    started, bugs = 0, set()
    for (name, one), outcome in zip(cases.items(), outcomes, strict=True):
        judgement = one.judgement
        what = f"{name}: {one.layout} {describe(one)}: {outcome.said}{outcome}"[:1500]
        started_here = outcome.data is not None
        if judgement is not None:
            for bug in (StartsInDoubt, MissesNobody):
                if bug(**vars(judgement)).starts != started_here:
                    bugs.add(bug)
        if judgement is None or not judgement.starts:
            assert not started_here, what
            continue
        started += 1
        assert started_here, what
        places = dict(enumerate(one.found))
        wanted = {**judgement.members, **judgement.rebuilding}
        assert {places[place]: role for place, role in outcome.roles.items()} == {
            number: role for role, number in wanted.items()
        }, what
        assert outcome.data == b"".join(contents[name]), what
    assert COUNT // 4 < started < COUNT * 3 // 4
    assert bugs == {StartsInDoubt, MissesNobody}, "a planted bug was not found"


def describe(one: Drives) -> str:
    """What is there, in short."""
    return ", ".join(
        f"{role}: events {block.events} role {block.role} clean {block.resync_offset == CLEAN}"
        f" features {int(block.features)}"
        for role, block in one.found.items()
    )
