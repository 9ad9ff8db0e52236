"""Which drives make an array: the model against mdadm and Linux."""

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cocotb_tests.array.md_arrays import needs_linux
from cocotb_tests.metadata.array_drives import (
    BLOCK,
    CLONE,
    DRIVE_BYTES,
    EVENTS,
    LAYOUTS,
    ROWS,
    Drives,
    complete,
    drives,
    without,
)
from cocotb_tests.metadata.mdadm import write_drive
from sim.golden.assembly import Judgement, NoArrayError, judge
from sim.golden.image import members as golden_members
from sim.golden.superblock import (
    CLEAN,
    SECTOR,
    SECTOR_BYTES,
)
from sim.md.machine import Assembly, assembled, drive, run

SEED = int(os.environ.get("SEED") or "1")


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
