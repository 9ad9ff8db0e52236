"""What drives say of the arrays that they belong to."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sim.golden.assembly import Judgement, NoArrayError, judge
from sim.golden.spans import divided, of_span
from sim.golden.superblock import (
    PAGE_BYTES,
    SECTOR,
    SECTOR_BYTES,
    SPARE,
    Superblock,
)
from sim.golden.volume_list import BLOCKS, VolumeList, newest

OF_NO_ARRAY = b" spares "
"""The upper half of the identity of a set of hot spares for all arrays."""


@dataclass(frozen=True)
class Drive:
    """A drive: its name, its superblock, and the pages that may be lists of volumes."""

    name: str
    superblock: Superblock
    pages: tuple[bytes, ...]


@dataclass(frozen=True)
class FoundArray:
    """An array that drives belong to: its identity, which is that of its first span, how many spans
    it has, and what is found of each. ``volumes`` is the newest list of its members, if there is
    one. ``left_out`` says of drives why they are no members."""

    identity: bytes
    last: int
    spans: dict[int, Judgement]
    volumes: VolumeList | None
    left_out: tuple[str, ...] = ()


def read_drive(name: str) -> Drive:
    """Reads a block device, or the image of a drive.

    Raises `sim.golden.superblock.RefusedSuperblockError` if it belongs to no array, and `OSError`
    if it cannot be read.
    """
    with Path(name).open("rb") as file:
        sectors = file.seek(0, os.SEEK_END) // SECTOR_BYTES
        page, *pages = (_page(file, at) for at in (SECTOR * SECTOR_BYTES // PAGE_BYTES, *BLOCKS))
    return Drive(name, Superblock.unpack(page, sectors=sectors), tuple(pages))


def _page(file, number: int) -> bytes:
    """A page of 4096 bytes. What lies beyond the end is zeros."""
    file.seek(number * PAGE_BYTES)
    return file.read(PAGE_BYTES).ljust(PAGE_BYTES, b"\0")


def arrays_of(drives: Iterable[Drive]) -> tuple[list[FoundArray], list[str]]:
    """The arrays that drives belong to, in the order of these, and what is wrong with others."""
    sets: dict[bytes, list[Drive]] = {}
    for drive in drives:
        sets.setdefault(drive.superblock.set_uuid, []).append(drive)
    found: dict[bytes, FoundArray] = {}
    wrong: list[str] = []
    for identity, members in sets.items():
        names = ", ".join(drive.name for drive in members)
        if identity[8:] == OF_NO_ARRAY:
            wrong.append(f"{names}: a hot spare for all arrays")
            continue
        try:
            judgement = judge(
                {number: drive.superblock for number, drive in enumerate(members)}
            )
        except NoArrayError as error:
            wrong.append(f"{names}: the drives do not make one array: {error}")
            continue
        span, last = divided(judgement.freshest.ctime)
        first = of_span(identity, span) if last else identity
        array = found.setdefault(first, FoundArray(first, last, {}, None))
        good = [*judgement.members.values(), *judgement.rebuilding.values()]
        pages = [page for number in good for page in members[number].pages]
        if array.volumes is not None:
            pages.append(array.volumes.pack())
        spans = {**array.spans, span: judgement}
        others = tuple(
            f"{members[number].name}: {_why(members[number], judgement)}"
            for number in sorted(judgement.left_out)
        )
        found[first] = FoundArray(
            first, last, spans, newest(pages, first), (*array.left_out, *others)
        )
    return list(found.values()), wrong


def _why(drive: Drive, judgement: Judgement) -> str:
    """Why a drive is no member."""
    one = drive.superblock
    if one.role == SPARE and one.events == 0:
        return "a hot spare of this array"
    if one.events + 1 < judgement.freshest.events:
        return "left out, since the others have been used without it"
    if one.role < one.raid_disks:
        return f"left out, since another drive is member {one.role}"
    return "left out, since the array has given it up"
