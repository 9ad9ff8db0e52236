"""The card's arrays as Linux has them: lines for mdadm.conf, and tables for device-mapper."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sim.golden.assembly import PARITIES, Judgement
from sim.golden.spans import of_span
from sim.golden.superblock import PAGE_BYTES, SECTOR_BYTES, Superblock
from sw.raidctl.drives import Drive, FoundArray, arrays_of

SECTORS = PAGE_BYTES // SECTOR_BYTES
"""Of a block."""

TRIPLE_PARITY = 7
"""The level that md does not have."""

GROUP = 4
"""Bytes of an identity between colons."""


@dataclass
class Export:
    """What Linux needs: lines for mdadm.conf, tables for device-mapper with their names, in the
    order in which they are made, and what the user has to know. An array ``lacks`` what Linux needs
    to start it."""

    lines: list[str] = field(default_factory=list)
    tables: list[tuple[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    lacks: bool = False


def uuid_text(identity: bytes) -> str:
    """An identity as mdadm writes it."""
    digits = identity.hex()
    return ":".join(digits[at : at + 2 * GROUP] for at in range(0, len(digits), 2 * GROUP))


def export(drives: Iterable[Drive]) -> Export:
    """What Linux needs to have the volumes of the arrays that drives belong to.

    An array is ``/dev/md/striata-ID``, and a volume ``/dev/mapper/striata-ID-nN``, where N is its
    namespace on the card. Spans are joined by a table of their own.
    """
    arrays, wrong = arrays_of(drives)
    told = Export(remarks=wrong)
    for array, name in zip(arrays, _names(arrays), strict=True):
        told.remarks += [f"{name}: {remark}" for remark in (*array.left_out, *_hindrances(array))]
        if _level(array) == TRIPLE_PARITY or not _can_start(array):
            told.lacks = True
        if _level(array) != TRIPLE_PARITY:
            _add_array(told, array, name)
    return told


def _names(arrays: Sequence[FoundArray]) -> Iterator[str]:
    """Short names, of the part of identities that differs between the arrays of a card. If two are
    alike they are long."""
    short = [array.identity[2 * GROUP : 3 * GROUP].hex() for array in arrays]
    for array, text in zip(arrays, short, strict=True):
        yield f"striata-{text if short.count(text) == 1 else array.identity.hex()}"


def _level(array: FoundArray) -> int:
    """That of all its spans."""
    return next(iter(array.spans.values())).freshest.level


def _hindrances(array: FoundArray) -> Iterator[str]:
    """Why Linux does not start an array by itself."""
    if _level(array) == TRIPLE_PARITY:
        yield "triple parity, which Linux md does not have"
        return
    for span in range(array.last + 1):
        what = f"span {span}" if array.last else "the array"
        judgement = array.spans.get(span)
        if judgement is None:
            yield f"no drive of {what} is there"
            continue
        yield from (f"member {n} of {what} is not rebuilt yet" for n in judgement.rebuilding)
        lacking = set(range(judgement.freshest.raid_disks)) - set(judgement.members)
        lacking -= set(judgement.rebuilding)
        if lacking or not judgement.enough:
            members = "members" if len(lacking) > 1 else "member"
            numbers = ", ".join(map(str, sorted(lacking))) or "that is whole"
            yield f"{what} lacks {members} {numbers}" + _meaning(judgement)


def _meaning(judgement: Judgement) -> str:
    """What comes of missing members."""
    if judgement.enough:
        return ", and Linux starts it without"
    if _enough_by_force(judgement):
        return ", and was in use as power went: Linux starts it with --force"
    return ", and cannot be started"


def _enough_by_force(judgement: Judgement) -> bool:
    """Whether md would start it, if its rows were consistent."""
    one = judgement.freshest
    tolerated = PARITIES.get(one.level, 0)
    return judgement.enough or (
        one.level in PARITIES and len(judgement.members) >= one.raid_disks - tolerated
    )


def _can_start(array: FoundArray) -> bool:
    """Whether Linux can start all its spans."""
    whole = len(array.spans) == array.last + 1
    return whole and all(_enough_by_force(one) for one in array.spans.values())


def _add_array(told: Export, array: FoundArray, name: str) -> None:
    """The lines and tables of an array."""
    spans = array.last + 1
    devices = [f"/dev/md/{name}" + (f"-{span}" if array.last else "") for span in range(spans)]
    for span, device in enumerate(devices):
        if span in array.spans:
            uuid = uuid_text(of_span(array.identity, span))
            told.lines.append(f"ARRAY {device} metadata=1.2 UUID={uuid}")
    if not _can_start(array):
        return
    if array.last:
        joined = _joined(array, devices)
        if joined is None:
            told.remarks.append(f"{name}: its spans are not alike, and cannot be joined")
            return
        told.tables.append((name, joined))
        device = f"/dev/mapper/{name}"
    else:
        (device,) = devices
    if array.volumes is None or not array.volumes.volumes:
        told.remarks.append(f"{name}: it has no volume")
        return
    for number, volume in sorted(array.volumes.volumes.items()):
        if not volume.blocks:
            continue
        volume_name = f"{name}-n{number + 1}"
        length, start = volume.blocks * SECTORS, volume.start * SECTORS
        told.tables.append((volume_name, f"0 {length} linear {device} {start}"))
        if not volume.sectors:
            told.remarks.append(
                f"{volume_name}: its blocks have 4096 bytes, which partitions count. For these: "
                f"losetup --find --show --partscan --sector-size 4096 /dev/mapper/{volume_name}"
            )


def _joined(array: FoundArray, devices: Sequence[str]) -> str | None:
    """The table that joins spans, stripe by stripe. None if they are not alike."""
    shapes = {_shape(judgement.freshest) for judgement in array.spans.values()}
    if len(shapes) > 1:
        return None
    ((stripes, stripe),) = shapes
    places = " ".join(f"{device} 0" for device in devices)
    return f"0 {len(devices) * stripes * stripe} striped {len(devices)} {stripe} {places}"


def _shape(one: Superblock) -> tuple[int, int]:
    """How many stripes a span has, and the sectors of data in one."""
    stripe = one.chunk * (one.raid_disks - PARITIES.get(one.level, 0))
    return one.size // max(1, one.chunk), stripe
