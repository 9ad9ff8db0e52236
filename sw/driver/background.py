"""Background work over the vendor admin commands and log pages (docs/host-interface.md)."""

import struct
from dataclasses import dataclass

from hdl.background.jobs import JobState
from hdl.config import BLOCK_NUMBER_BITS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind, WalkResult
from sw.driver import raid
from sw.driver.commands import (
    BLOCK_BYTES,
    DRIVE_UNAVAILABLE,
    IN_USE,
    NO_ENTRY,
    Command,
    NvmeError,
    number,
)
from sw.driver.nvme import Nvme

START_JOB = 0xD0
STOP_JOB = 0xD4
SET_RATE = 0xD8
REPLACE_MEMBER = 0xDC
ADD_SPARE = 0xE0
REMOVE_SPARE = 0xE4
RE_ADD = 0xE8
MIGRATE = 0xEC
GET_LOG_PAGE = 0x02

ARRAY_STATES, DEFECTS, LOST_BLOCKS = 0xC0, 0xC1, 0xC2
ENTRY_BYTES = 64
FINDINGS = 32
MOST_ARRAYS = BLOCK_BYTES // ENTRY_BYTES
RESUME = 1 << 12
DEDICATED = 1 << 8
BECOMES_SPARE = 1 << 8


@dataclass(frozen=True)
class Job:
    """An array's state and the last job on it. All rows before ``row`` are done."""

    array: int
    array_state: ArrayState
    state: JobState
    kind: WalkKind
    rate: int
    row: int
    mended: int
    mismatched: int
    lost: int
    cycles: tuple[int, int]
    """Times when the job began and ended, in clock cycles of the card."""
    marked: int = 0
    """Chunks in which a member would miss writes if it went away now, or in which a member has
    missed some."""
    chunk_rows: int = 0
    """Rows of a chunk. 0: the card has no write-intent bitmap."""
    in_sync: bool = True
    """Every row satisfies its parity equations, and copies are alike."""
    assumed: bool = False
    """``in_sync`` is true only because the host said so when it created the array."""
    sync_row: int = 0
    """All rows before this one are in sync. It has a meaning only if the array is not in sync."""


@dataclass(frozen=True)
class Finding:
    """Blocks of a row. ``blocks`` are pairs of port and block of the drive."""

    kind: WalkKind
    result: WalkResult
    array: int
    row: int
    blocks: tuple[tuple[int, int], ...]


async def start_job(
    nvme: Nvme, array: int, kind: WalkKind, *, first: int = 0, resume: bool = False
) -> None:
    """Starts ``kind`` on all rows of an array from ``first`` on.

    With ``resume`` it goes on where the last job was.
    """
    if not isinstance(kind, WalkKind):
        raise ValueError(f"kind must be a WalkKind, not {kind!r}")
    number("array", array, 8)
    number("first", first, BLOCK_NUMBER_BITS)
    fields = array | kind.value << 8 | RESUME * resume
    dwords = (fields, first & 0xFFFF_FFFF, first >> 32)
    hints = {IN_USE: "delete its volumes first: all blocks of the array would be zeroed"}
    await nvme.admin(Command(START_JOB, dwords=dwords), f"start job on array {array}", hints)


async def stop_job(nvme: Nvme, array: int) -> None:
    """Stops the job of an array. The job can be resumed."""
    command = Command(STOP_JOB, dwords=(number("array", array, 8),))
    hints = {NO_ENTRY: "there is no such array, or it has no job"}
    await nvme.admin(command, f"stop job on array {array}", hints)


async def set_rate(nvme: Nvme, percent: int) -> None:
    """Sets how much of the time background work takes while host commands are inside."""
    if not 1 <= percent <= 100:
        raise ValueError(f"rate must be 1..100 percent, not {percent}")
    await nvme.admin(Command(SET_RATE, dwords=(percent,)), "set rate")


async def replace_member(nvme: Nvme, array: int, position: int, port: int) -> None:
    """The drive at ``port`` takes the place of a failed member, and is rebuilt.

    It may be the same drive. ``position`` is the index in `sw.driver.raid.Array.members`.
    """
    fields = number("array", array, 8) | number("position", position, 8) << 8
    command = Command(REPLACE_MEMBER, dwords=(fields, number("port", port, 8)))
    hints = {IN_USE: "the member is not failed: migrate it instead"}
    await nvme.admin(command, f"replace member {position} of array {array}", hints)


async def re_add(nvme: Nvme, array: int, position: int) -> None:
    """Takes back the drive of a failed member. Only chunks in which it may have missed writes are
    rebuilt.

    These are at most ``marked * chunk_rows`` rows of `Job`.
    """
    fields = number("array", array, 8) | number("position", position, 8) << 8
    command = Command(RE_ADD, dwords=(fields,))
    hints = {
        DRIVE_UNAVAILABLE: "plug the drive at the port of the member, or replace the member",
        IN_USE: "the member is not failed",
    }
    await nvme.admin(command, f"re-add member {position} of array {array}", hints)


async def migrate_member(
    nvme: Nvme, array: int, position: int, port: int, *, spare: bool = False
) -> None:
    """Migrates a live member to the drive at ``port``, which becomes the member at the end.

    The array keeps its redundancy meanwhile. With ``spare`` the old drive becomes a hot spare of
    all arrays at the end.
    """
    fields = number("array", array, 8) | number("position", position, 8) << 8
    drive = number("port", port, 8) | BECOMES_SPARE * spare
    command = Command(MIGRATE, dwords=(fields, drive))
    hints = {IN_USE: "the member is failed: replace it instead"}
    await nvme.admin(command, f"migrate member {position} of array {array}", hints)


async def erase_drive(nvme: Nvme, port: int, *, poll_ns: float = 1e6) -> None:
    """Writes zeros to a drive of no array, from block 256 to its last one.

    The drive is a JBOD of its own meanwhile. Raises `NvmeError` if the card refuses: the drive
    belongs to an array, is a spare, or is too small. Raises `RuntimeError` if a block could not be
    written.
    """
    array = await raid.create_array(nvme, Level.JBOD, [port], strip_kib=4, zero=True)
    try:
        erased = await job(nvme, array)
    except NvmeError:
        # A card without background work has not begun to erase.
        await raid.delete_array(nvme, array)
        raise
    while erased.state == JobState.RUNNING:
        await nvme.transport.sleep(poll_ns)
        erased = await job(nvme, array)
    await raid.delete_array(nvme, array)
    if erased.state != JobState.DONE:
        raise RuntimeError(f"drive {port} could not be erased beyond row {erased.row}")


async def add_spare(nvme: Nvme, port: int, array: int | None = None) -> None:
    """Makes the drive at ``port`` a hot spare of every array, or of ``array`` only."""
    fields = 0 if array is None else number("array", array, 8) | DEDICATED
    command = Command(ADD_SPARE, dwords=(fields, number("port", port, 8)))
    await nvme.admin(command, f"add spare {port}")


async def remove_spare(nvme: Nvme, port: int) -> None:
    """Makes the drive at ``port`` no hot spare any more."""
    command = Command(REMOVE_SPARE, dwords=(0, number("port", port, 8)))
    hints = {
        NO_ENTRY: "the drive is no spare",
        DRIVE_UNAVAILABLE: "the drive did not store it, and is a spare again when power comes back",
    }
    await nvme.admin(command, f"remove spare {port}", hints)


async def _log(nvme: Nvme, page: int, entries: int) -> list[tuple[int, ...]]:
    """The words of each entry of a log."""
    length = entries * ENTRY_BYTES
    dwords = (page | (length // 4 - 1) << 16,)
    raw = await nvme.admin_page(Command(GET_LOG_PAGE, dwords=dwords), f"log {page:#x}")
    return list(struct.iter_unpack("<16I", raw[:length]))


async def jobs(nvme: Nvme) -> list[Job]:
    """The state and last job of each array.

    Reading them clears the event of array states.
    """
    numbers = [array.number for array in await raid.arrays(nvme)]
    found = []
    if not numbers:
        return found
    entries = await _log(nvme, ARRAY_STATES, min(max(numbers) + 1, MOST_ARRAYS))
    for array, words in enumerate(entries):
        head = words[0]
        if head >> 31:
            found.append(
                Job(
                    array,
                    ArrayState(head & 3),
                    JobState(head >> 4 & 7),
                    WalkKind(head >> 8 & 7),
                    words[1],
                    words[2] | words[3] << 32,
                    words[4],
                    words[5],
                    words[6],
                    (words[8] | words[9] << 32, words[10] | words[11] << 32),
                    words[7] & 0xFFFF,
                    (words[7] >> 31) << (words[7] >> 16 & 0x3F),
                    not head >> 2 & 1,
                    bool(head >> 3 & 1),
                    words[12] | words[13] << 32,
                )
            )
    return found


async def job(nvme: Nvme, array: int) -> Job:
    """The state and last job of one array."""
    for found in await jobs(nvme):
        if found.array == array:
            return found
    raise ValueError(f"there is no array {array}")


async def _findings(nvme: Nvme, page: int) -> list[Finding]:
    arrays = {array.number: array for array in await raid.arrays(nvme)}
    found = []
    for words in await _log(nvme, page, FINDINGS):
        array = arrays.get(words[0] >> 8 & 0xFF)
        if not words[0] >> 31 or array is None:
            continue
        row = words[2] | words[3] << 32
        base, shift = words[4] & 0xFF, words[4] >> 8
        blocks = []
        for role in range(array.width):
            if words[1] >> role & 1:
                stripes, place = divmod(shift + role, array.width)
                # Copies that do not fit into a stripe continue in the next one.
                at = row + (stripes * array.strip_blocks if array.copies > 1 else 0)
                blocks.append((array.members[base + place].port, at))
        found.append(
            Finding(
                WalkKind(words[0] >> 4 & 7),
                WalkResult(words[0] & 7),
                array.number,
                row,
                tuple((port, array.data_offset + at) for port, at in blocks),
            )
        )
    return found


async def defects(nvme: Nvme) -> list[Finding]:
    """Rows that were mended or disagreed, newest first."""
    return await _findings(nvme, DEFECTS)


async def lost_blocks(nvme: Nvme) -> list[Finding]:
    """Rows with blocks that are lost, newest first."""
    return await _findings(nvme, LOST_BLOCKS)
