"""Longest times of commands, as docs/guarantees.md promises them (Drives that hang), and of jobs,
as docs/background.md does (Who does it)."""

import math

from campaign.sizes import USUAL
from hdl.background.pace import BATCH_ROWS
from hdl.config import BLOCK_BYTES, Config
from sim.golden.layout import Layout
from sim.native.parameters import DriveParameters, Ideal, Ssd

WORK_NS = 2_000_000
"""Longest time of a command when no drive has a fault: the work of other commands."""

SSD_WORK_NS = 20_000_000
"""The same on drives that take hundreds of microseconds a block."""
SSD_BLOCKS_A_ROW = 16
"""Blocks under way for each row of the array, so that it takes no longer."""

BLOCKS_AT_ONCE = 12 * 32
"""Blocks of all commands that are outstanding, but for a crowd."""
CROWD = 24
"""Commands outstanding beyond the command slots, where the slots are to be crowded."""
CROWDED_BLOCKS = 4
"""Blocks of each of these commands, at most."""

PASSES = 4
"""Passes over the drives of a row: unreadable blocks, blocks to work them out from, data, parity.
"""

COPY_PASSES = 2
"""The same without parity: copies are read, then written."""

RESTED = 2
"""A batch and the rest after it, in batches, once there is no host command any more."""

JOBS_A_DRIVE = 2
"""Jobs of an array that may begin, or begin anew, for each drive with a fault: as it begins anew by
itself, and as another drive takes its place. Each reset that is forgiven may be another one, if the
drive has lost its cache by that."""


def work_ns(config: Config, drive: DriveParameters, rows: int) -> float:
    """Longest time of a command when no drive has a fault: the work of other commands.

    Where few rows can wait at once, or the array has only a few ``rows``, it may be the drives'
    time of all blocks under way, of which those of a row wait for each other.
    """
    blocks = max(BLOCKS_AT_ONCE, (config.commands + CROWD) * CROWDED_BLOCKS)
    if not isinstance(drive, Ideal):
        crowding = max(1, blocks / rows / SSD_BLOCKS_A_ROW)
        return SSD_WORK_NS * USUAL.clock_hz / config.clock_hz * crowding
    rows_ns = blocks / min(config.rows, rows) * PASSES * drive.latency_ps / 1000
    return max(WORK_NS * USUAL.clock_hz / config.clock_hz, rows_ns)


def _timeout_ns(config: Config, milliseconds: float) -> float:
    """A timeout as the hardware measures it: to the next tick but one, of at most half an abort
    timeout."""
    half_ns = config.abort_timeout_ms * 1e6 / 2
    cycle_ns = 1e9 / config.clock_hz
    tick_ns = cycle_ns * 2 ** math.floor(math.log2(half_ns / cycle_ns))
    return (math.ceil(milliseconds * 1e6 / tick_ns) + 1) * tick_ns


def ladder_ns(config: Config) -> float:
    """T: the longest time of a command in a drive port. Some microseconds of work are not counted.
    """
    slow = _timeout_ns(config, config.slow_read_ms) if config.slow_read_ms else 0
    return (
        slow
        + _timeout_ns(config, config.command_timeout_ms)
        + _timeout_ns(config, config.abort_timeout_ms)
    )


def given_up_ns(config: Config) -> float:
    """Longest time that a drive can hold up a command that is tried again, until the drive is given
    up.

    There are two cases. The drive ends nothing, and is given up at the first reset that is not
    forgiven. Or its commands can be aborted. Then they are aborted once, as late as an abort may
    come. Its port is reset as often as is forgiven, and then it is given up.
    """
    slow = _timeout_ns(config, config.slow_read_ms) if config.slow_read_ms else 0
    aborted = (config.drive_resets + 2) * (slow + _timeout_ns(config, config.command_timeout_ms))
    aborted += _timeout_ns(config, config.abort_timeout_ms)
    return max((config.drive_resets + 1) * ladder_ns(config), aborted)


def rows_ns(config: Config, drive: DriveParameters, layout: Layout, rows: int) -> float:
    """Longest time in which a job is through all rows of an array, if no drive has a fault and
    there is no host command any more. The batch under way before may be followed by a rest."""
    lines = config.shared_lines if config.array_shares else config.lines - config.line_reserve
    at_once = min(BATCH_ROWS, config.walk_window, config.drive_tags, config.rows)
    at_once = max(1, min(at_once, lines // layout.width))
    if isinstance(drive, Ideal):
        block_ps = drive.latency_ps
    else:
        assert isinstance(drive, Ssd), drive
        at_once = min(at_once, drive.dies)
        block_ps = max(drive.read_ps, drive.program_ps)
    # Without parity each strip of a row is walked by itself.
    walks = layout.spans * rows if layout.parities else layout.blocks(rows)
    moved_ns = layout.width * BLOCK_BYTES * 8 / config.data_width * 1e9 / config.clock_hz
    passes = PASSES if layout.parities else COPY_PASSES
    batches = math.ceil(walks / at_once) + 1
    return passes * (batches * block_ps / 1000 + (walks + at_once) * moved_ns)


def jobs(config: Config, faults: int) -> int:
    """How many jobs of an array may follow each other, if so many of its drives have a fault."""
    return 1 + faults * (JOBS_A_DRIVE + config.drive_resets)
