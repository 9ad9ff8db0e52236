"""Arrays as Linux md writes them: mdadm's arguments for a layout, and the contents of its members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.golden.layout import DATA_OFFSET_BLOCKS, Layout
from sim.md.machine import Job, drive, run

BLOCK = 4096
KIB = 1024
SPARE_BLOCKS = 64
"""Blocks of a drive beyond its data."""

LEVELS = {"RAID0": 0, "RAID1": 1, "RAID5": 5, "RAID6": 6, "RAID10": 10}
FIRST_SPAN = 1
"""Number of the first md device that is part of another."""


@dataclass(frozen=True, kw_only=True)
class Write:
    """Data for an array, from a block on."""

    block: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Written:
    """An array that md is to write: its layout, the rows of each member, and the writes in order.
    """

    name: str
    layout: Layout
    rows: int
    writes: tuple[Write, ...]


def _create(layout: Layout, device: str, members: Sequence[str], rows: int) -> list[str]:
    """mdadm's arguments for one span."""
    arguments = [
        "--create", device, "--run", "--assume-clean", "--metadata=1.2",
        "--data-offset=1M", f"--level={LEVELS[layout.level]}", f"--raid-devices={len(members)}",
    ]
    if layout.level != "RAID0":
        arguments += ["--bitmap=none", f"--size={rows * BLOCK // KIB}"]
    if layout.level != "RAID1":
        arguments.append(f"--chunk={layout.strip_blocks * BLOCK // KIB}")
    if layout.parities:
        arguments.append(f"--layout={layout.rotation}")
    if layout.level == "RAID10":
        arguments.append(f"--layout=n{layout.copies}")
    return [*arguments, *members]


def _commands(layout: Layout, rows: int) -> list[list[str]]:
    """Commands for every array of a layout. An array without metadata joins the spans, in whole
    stripes."""
    members = [drive(number) for number in range(layout.drives)]
    if layout.spans == 1:
        return [_create(layout, "/dev/md0", members, rows)]
    spans = [f"/dev/md{FIRST_SPAN + span}" for span in range(layout.spans)]
    commands = [
        _create(layout, device, members[span * layout.width : (span + 1) * layout.width], rows)
        for span, device in enumerate(spans)
    ]
    stripe = layout.data * layout.strip_blocks * BLOCK // KIB
    join = ["--build", "/dev/md0", "--level=0", f"--chunk={stripe}"]
    return [*commands, [*join, f"--raid-devices={layout.spans}", *spans]]


def write_arrays(
    work: Path, arrays: Sequence[Written], *, shim: bool | None = None
) -> dict[str, list[bytes]]:
    """The data area of every member of each array, after md has written it in one run for all."""
    work.mkdir(parents=True, exist_ok=True)
    jobs = []
    for array in arrays:
        names = []
        for number, write in enumerate(array.writes):
            names.append((f"{array.name}.{number}", write.block * BLOCK))
            (work / names[-1][0]).write_bytes(write.data)
        jobs.append(
            Job(
                name=array.name,
                arrays=_commands(array.layout, array.rows),
                device="/dev/md0",
                data=names,
                bytes=(DATA_OFFSET_BLOCKS + array.rows + SPARE_BLOCKS) * BLOCK,
                images=[f"{array.name}.{number}.img" for number in range(array.layout.drives)],
            )
        )
    run(work, jobs, shim=shim)
    return {
        job.name: [_data_area(work / image, array.rows) for image in job.images]
        for array, job in zip(arrays, jobs, strict=True)
    }


def _data_area(image: Path, rows: int) -> bytes:
    start = DATA_OFFSET_BLOCKS * BLOCK
    return image.read_bytes()[start : start + rows * BLOCK]


