"""Array management over the vendor admin commands (docs/host-interface.md)."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from hdl.config import BLOCK_BYTES, BLOCK_NUMBER_BITS, DATA_OFFSET_BLOCKS, SECTOR_BYTES
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level, Rotation
from hdl.flow.manage import Emulation
from hdl.metadata.found_set import Hindrance
from hdl.metadata.superblock import Finding
from sw.driver.commands import (
    DRIVE_UNAVAILABLE,
    IN_USE,
    INVALID_FIELD,
    INVALID_OPCODE,
    NO_ENTRY,
    Command,
    NvmeError,
    number,
)
from sw.driver.nvme import Nvme

CREATE_ARRAY = 0xC0
LIST = 0xC2
DELETE_ARRAY = 0xC4
CREATE_VOLUME = 0xC8
DELETE_VOLUME = 0xCC
IMPORT = 0xF0
CLEAR_DRIVE = 0xF4

ASSUMED, IDLE, DEGRADED, ZERO = (1 << bit for bit in (4, 5, 6, 31))
"""Flags of create array. The first and the third are flags of import array as well."""

PREVIEW = 1 << 5
"""Flag of import array."""

LEAST = {
    Level.RAID0: 2,
    Level.RAID1: 2,
    Level.RAID5: 3,
    Level.RAID6: 4,
    Level.RAIDTP: 5,
    Level.RAID10: 2,
    Level.JBOD: 1,
}
"""Fewest drives of a span."""

WHY_NOT = {
    Hindrance.UNSUPPORTED: "the card has no such arrays (docs/metadata.md, Which drives make an "
    "array), or the drive is a hot spare of another card, which `clear_drive` makes a blank one",
    Hindrance.DIFFERENT: "its drives do not agree on what the array is: clear those that are wrong",
    Hindrance.INCOMPLETE: "plug the drives that are missing: those that are there do not hold all "
    "data",
    Hindrance.DOUBTFUL: "plug the drive that is missing, or import with degraded=True and "
    "assumed=True: power went while the array was being written",
    Hindrance.AWAITED: "plug the drive that is missing, or import with degraded=True",
    Hindrance.NO_PLACE: "delete an array first: the card has as many as it can",
    Hindrance.RENUMBERED: "Linux has to make its drives alike: assemble the array there, write to "
    "it, stop it",
}
"""What helps against what hinders an array."""

LIST_ARRAYS = 0
LIST_VOLUMES = 1
LIST_DRIVES = 2

ARRAY_ENTRY_BYTES = 256
ENTRY_BYTES = 32
MOST_ENTRIES = 256
"""Most entries of a list. The number of the first entry of a page is an 8-bit field of the command.
"""
MEMBERS = 32
KIB = 1024
LARGEST_STRIP_KIB = 1024


def rotation_named(name: str) -> Rotation:
    """The rotation with mdadm's name ``name``, such as left-symmetric or ddf-N-restart."""
    names = {rotation.name.replace("_", "-").lower(): rotation for rotation in Rotation}
    try:
        return names[name.lower()]
    except KeyError:
        raise ValueError(f"rotation must be one of {', '.join(names)}, not {name}") from None


@dataclass(frozen=True)
class Member:
    """A member of an array: its port, and whether its drive is failed, present, or being rebuilt.
    """

    port: int
    failed: bool
    present: bool
    stale: bool = False


@dataclass(frozen=True)
class Array:
    """An array as the card reports it. Sizes are blocks of 4 KiB.

    ``in_sync``: every row satisfies its parity equations, and copies are alike. ``assumed``:
    ``in_sync`` is true only because the host said so when it created the array. ``data_offset``:
    the block of each member at which its rows begin.
    """

    number: int
    level: Level
    state: ArrayState
    degraded: bool
    missing: int
    width: int
    data: int
    parities: int
    copies: int
    spans: int
    rotation: Rotation
    strip_blocks: int
    blocks: int
    members: tuple[Member, ...]
    in_sync: bool = True
    assumed: bool = False
    data_offset: int = DATA_OFFSET_BLOCKS


@dataclass(frozen=True)
class Volume:
    """A volume as the card reports it. Sizes are blocks of 4 KiB."""

    namespace: int
    array: int
    start: int
    blocks: int
    sector_bytes: int = BLOCK_BYTES
    physical_bytes: int = BLOCK_BYTES


@dataclass(frozen=True)
class Drive:
    """A drive port as the card reports it. ``array`` is None for a drive of no array.

    ``rebuilding``: the drive is being rebuilt. ``emulated``: it emulates its 512-byte sectors.
    The rest only with `Config.metadata`. ``foreign``: it says that it belongs to an array, which is
    not there, or has left it out. ``spare``: it is a hot spare. ``superblock``: what is where its
    superblock should be. ``hindrance``: why the array of a foreign drive is not there.
    """

    port: int
    present: bool
    failed: bool
    array: int | None
    blocks: int
    rebuilding: bool = False
    emulated: bool = False
    foreign: bool = False
    spare: bool = False
    superblock: Finding = Finding.UNREAD
    hindrance: Hindrance = Hindrance.NOTHING


async def create_array(
    nvme: Nvme,
    level: Level,
    drives: Iterable[int],
    *,
    strip_kib: int = 64,
    copies: int = 0,
    spans: int = 1,
    rotation: Rotation = Rotation.LEFT_SYMMETRIC,
    zero: bool = False,
    assume_consistent: bool = False,
    start_job: bool = True,
    degraded: bool = False,
) -> int:
    """Creates an array of ``level`` over the drives at ports ``drives``. Returns its number.

    ``copies`` 0 is the level's default. ``rotation`` says how parity moves.

    The card makes rows consistent in the background. With ``zero`` it instead writes zeros to all
    blocks before there can be a volume. If ``start_job`` is false, the host starts RESYNC or ZERO
    later. Until this is done writes are slower. With ``assume_consistent`` the card takes the rows
    to be consistent. That is true of drives that are all zeros. On other drives data is lost when a
    drive fails.

    With ``degraded`` ports without a drive become failed members, as many as the level tolerates.

    Raises `ValueError` for values that no card takes, and `sw.driver.commands.NvmeError` for a
    refusal of this card.
    """
    if level not in LEAST:
        raise ValueError(f"level must be a Level, not {level!r}")
    if strip_kib & (strip_kib - 1) or not BLOCK_BYTES // KIB <= strip_kib <= LARGEST_STRIP_KIB:
        raise ValueError(f"strip_kib must be a power of two in 4..1024, not {strip_kib}")
    if not isinstance(rotation, Rotation):
        raise ValueError(f"rotation must be a Rotation, not {rotation!r} (`rotation_named`)")
    for name, value in (("copies", copies), ("spans", spans)):
        if not 0 <= value <= MEMBERS:
            raise ValueError(f"{name} must be 0..{MEMBERS}, not {value}")
    mask = 0
    for port in drives:
        if not 0 <= port < MEMBERS:
            raise ValueError(f"ports are 0..{MEMBERS - 1}, not {port}")
        if mask >> port & 1:
            raise ValueError(f"port {port} is named twice")
        mask |= 1 << port
    shift = (strip_kib * KIB // BLOCK_BYTES).bit_length() - 1
    fields = level.value | shift << 8 | rotation.value << 12 | copies << 16 | spans << 24
    fields |= ASSUMED * assume_consistent | IDLE * (not start_job) | DEGRADED * degraded
    fields |= ZERO * zero
    hints = {NO_ENTRY: "delete an array first: the card has as many as it can"}
    if (width := mask.bit_count() // max(1, spans)) < LEAST[level]:
        least = f"{LEAST[level]} drives a span or more"
        hints[INVALID_FIELD] = f"{level.name} takes {least}, not {width}"
    elif level is Level.JBOD and width > 1:
        hints[INVALID_FIELD] = f"JBOD takes one drive, not {width}"
    elif zero and assume_consistent:
        hints[INVALID_FIELD] = "zero=True and assume_consistent=True exclude each other"
    done = await nvme.admin(Command(CREATE_ARRAY, dwords=(fields, mask)), "create array", hints)
    return done.result


async def delete_array(nvme: Nvme, array: int) -> None:
    """Deletes an array that has no volumes and no job (`sw.driver.background.stop_job`).

    A new array with redundancy has a job, which makes its rows consistent.
    """
    command = Command(DELETE_ARRAY, dwords=(number("array", array, 8),))
    await nvme.admin(command, f"delete array {array}", {IN_USE: "delete its volumes first"})


async def _import(nvme: Nvme, port: int, flags: int, what: str) -> int:
    """Imports an array, or asks what that would do. Returns DW0."""
    command = Command(IMPORT, dwords=(flags, number("port", port, 8)))
    hints = {
        INVALID_OPCODE: "only a card with `metadata` imports arrays",
        INVALID_FIELD: "the card has no such arrays (docs/metadata.md, Which drives make an array)",
        NO_ENTRY: "the drive belongs to no array, or the card has as many as it can",
        IN_USE: "the drive belongs to an array that is there",
    }
    try:
        done = await nvme.admin(command, f"{what} the array of the drive at port {port}", hints)
    except NvmeError as error:
        there = {one.port: one for one in await drives(nvme)}
        one = there.get(port)
        if one is None or not one.present:
            hint = "there is no drive" if one else "the card has no such port"
        else:
            hint = "the drive is a hot spare" if one.spare else WHY_NOT.get(one.hindrance)
        raise NvmeError(error.what, error.completion, hint or error.hint) from None
    return done.result


async def preview_import(
    nvme: Nvme, port: int, *, degraded: bool = False, assumed: bool = False
) -> list[int]:
    """The ports of the members that `import_array` would write.

    Nothing is written. It ends as the import would, with the same errors. If the array lacks a
    member, a hot spare steps in once it is imported, and is written as well.
    """
    flags = DEGRADED * degraded | ASSUMED * assumed | PREVIEW
    mask = await _import(nvme, port, flags, "preview the import of")
    return [port for port in range(MEMBERS) if mask >> port & 1]


async def import_array(
    nvme: Nvme, port: int, *, degraded: bool = False, assumed: bool = False
) -> int:
    """Brings up the array that the drive at a port belongs to, whoever has had it. Returns its
    number.

    From then on this card has it, and no other brings it up by itself. An array that Linux has made
    has no volume yet. With ``degraded`` drives may be missing that nobody has given up. What they
    hold may be newer. With ``assumed`` as well the array may have lost a drive together with its
    power. Blocks of the missing drive that were being written, or lie beside such blocks, may be
    wrong then.
    """
    return await _import(nvme, port, DEGRADED * degraded | ASSUMED * assumed, "import")


async def clear_drive(nvme: Nvme, port: int) -> None:
    """Clears the superblock of a drive that is in no array, so that it belongs to none any more.

    What the drive holds besides stays, but nobody finds an array on it.
    """
    hints = {
        INVALID_OPCODE: "only a card with `metadata` reads superblocks",
        DRIVE_UNAVAILABLE: "there is no drive, or it does not store zeros",
        NO_ENTRY: "the drive has no superblock",
        IN_USE: "the drive is a member of an array, or a hot spare",
    }
    command = Command(CLEAR_DRIVE, dwords=(0, number("port", port, 8)))
    await nvme.admin(command, f"clear the drive at port {port}", hints)


async def create_volume(
    nvme: Nvme,
    array: int,
    start: int = 0,
    blocks: int = 0,
    *,
    sector_bytes: int = BLOCK_BYTES,
    emulation: Emulation = Emulation.DEFAULT,
) -> int:
    """Creates a volume of ``blocks`` blocks (0: to the end) of an array. Returns its namespace
    number.

    ``start`` and ``blocks`` count blocks of 4096 bytes, whatever the logical blocks are.
    ``sector_bytes`` is 4096 or 512. With 512, ``emulation`` chooses the physical sectors that the
    volume reports.
    """
    if sector_bytes not in (BLOCK_BYTES, SECTOR_BYTES):
        sizes = f"{BLOCK_BYTES} or {SECTOR_BYTES}"
        raise ValueError(f"sector_bytes must be {sizes}, not {sector_bytes}")
    number("start", start, BLOCK_NUMBER_BITS)
    number("blocks", blocks, BLOCK_NUMBER_BITS)
    mask = 0xFFFF_FFFF
    first = number("array", array, 8) | (sector_bytes == SECTOR_BYTES) << 8 | emulation.value << 12
    dwords = (first, start & mask, start >> 32, blocks & mask, blocks >> 32)
    done = await nvme.admin(Command(CREATE_VOLUME, dwords=dwords), "create volume")
    return done.result + 1


async def delete_volume(nvme: Nvme, namespace: int) -> None:
    """Deletes a volume."""
    if not 1 <= namespace < 1 << 32:
        raise ValueError(f"namespace must be 1..{(1 << 32) - 1}, not {namespace}")
    command = Command(DELETE_VOLUME, dwords=(namespace - 1,))
    await nvme.admin(command, f"delete volume {namespace}")


async def _entries(nvme: Nvme, page: int, size: int) -> list[bytes]:
    """The entries of a list, ``size`` bytes each, up to the first page of it that is all zeros."""
    entries: list[bytes] = []
    while len(entries) < MOST_ENTRIES:
        command = Command(LIST, dwords=(page | len(entries) << 8,))
        raw = await nvme.admin_page(command, "list")
        if not any(raw):
            break
        entries += [raw[start : start + size] for start in range(0, len(raw), size)]
    return entries


async def arrays(nvme: Nvme) -> list[Array]:
    """All arrays, in order of their numbers."""
    found = []
    for entry in await _entries(nvme, LIST_ARRAYS, ARRAY_ENTRY_BYTES):
        words = struct.unpack("<64I", entry)
        kind, flags, missing, number = entry[128:132]
        if not kind & 1:
            continue
        width, data, parities, copies, spans, shift, rotation = entry[132:139]
        members = tuple(
            Member(word & 0xFF, *(bool(word >> bit & 1) for bit in (8, 9, 10)))
            for word in words[:MEMBERS]
            if word >> 31
        )
        found.append(
            Array(
                number,
                Level(kind >> 4),
                ArrayState(words[35] & 3),
                bool(flags & 2),
                missing,
                width,
                data,
                parities,
                copies,
                spans,
                Rotation(rotation),
                1 << shift,
                words[38] | words[39] << 32,
                members,
                not words[35] >> 2 & 1,
                bool(words[35] >> 3 & 1),
                # A card without metadata does not say it.
                words[40] or DATA_OFFSET_BLOCKS,
            )
        )
    return found


async def volumes(nvme: Nvme) -> list[Volume]:
    """All volumes, in order of their namespace numbers."""
    found = []
    for entry in await _entries(nvme, LIST_VOLUMES, ENTRY_BYTES):
        flags, array, form, _, namespace, start, blocks = struct.unpack_from("<BBBBIQQ", entry)
        if flags & 1:
            sector_bytes = SECTOR_BYTES if form & 1 else BLOCK_BYTES
            physical = SECTOR_BYTES if form & 3 == 1 else BLOCK_BYTES
            found.append(Volume(namespace, array, start, blocks, sector_bytes, physical))
    return found


async def drives(nvme: Nvme) -> list[Drive]:
    """All drive ports, in order."""
    found = []
    for entry in await _entries(nvme, LIST_DRIVES, ENTRY_BYTES):
        flags, array, standing, port, blocks = struct.unpack_from("<BBHIQ", entry)
        # An entry beyond the last port is all zeros, so its port number is not its index.
        if port == len(found):
            found.append(
                Drive(
                    port,
                    present=bool(flags & 1),
                    failed=bool(flags & 2),
                    array=array if flags & 4 else None,
                    blocks=blocks,
                    rebuilding=bool(flags & 8),
                    emulated=bool(flags & 16),
                    foreign=bool(flags & 32),
                    spare=bool(flags & 64),
                    superblock=Finding(standing & 15),
                    hindrance=Hindrance(standing >> 4 & 15),
                )
            )
    return found
