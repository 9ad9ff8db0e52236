"""How long a command may take: what docs/guarantees.md promises, Drives that hang."""

import math

from campaign.sizes import USUAL
from hdl.config import Config
from sim.native.parameters import DriveParameters, Ideal

WORK_NS = 2_000_000
"""Most of what a command waits for when no drive has a fault: the others' work."""

SSD_WORK_NS = 20_000_000
"""The same on drives that take hundreds of microseconds a block."""

BLOCKS_AT_ONCE = 12 * 32
"""Blocks of all commands that are outstanding."""

PASSES = 4
"""Of a row over its drives: what is unreadable, what it is worked out of, data, parity."""


def work_ns(config: Config, drive: DriveParameters) -> float:
    """Most of what a command waits for when no drive has a fault: the others' work.

    Where there are few seats for rows it may be the drives' time of all blocks that are under way,
    each a row of its own.
    """
    if not isinstance(drive, Ideal):
        return SSD_WORK_NS * USUAL.clock_hz / config.clock_hz
    rows_ns = BLOCKS_AT_ONCE / config.rows * PASSES * drive.latency_ps / 1000
    return max(WORK_NS * USUAL.clock_hz / config.clock_hz, rows_ns)


def _timeout_ns(config: Config, milliseconds: float) -> float:
    """A timeout as it is kept: to the next tick but one of at most half an abort's."""
    half_ns = config.abort_timeout_ms * 1e6 / 2
    cycle_ns = 1e9 / config.clock_hz
    tick_ns = cycle_ns * 2 ** math.floor(math.log2(half_ns / cycle_ns))
    return (math.ceil(milliseconds * 1e6 / tick_ns) + 1) * tick_ns


def ladder_ns(config: Config) -> float:
    """T: most that a command can be in a drive port, but for microseconds of work."""
    slow = _timeout_ns(config, config.slow_read_ms) if config.slow_read_ms else 0
    return (
        slow
        + _timeout_ns(config, config.command_timeout_ms)
        + _timeout_ns(config, config.abort_timeout_ms)
    )


def given_up_ns(config: Config) -> float:
    """Most that a drive can keep a command waiting that is tried again, until it is given up.

    Either it ends nothing, and is given up at the reset that is not forgiven; or its commands can
    be aborted: once, as late as an abort may, then its port is reset as often as is forgiven, then
    it is given up.
    """
    slow = _timeout_ns(config, config.slow_read_ms) if config.slow_read_ms else 0
    aborted = (config.drive_resets + 2) * (slow + _timeout_ns(config, config.command_timeout_ms))
    aborted += _timeout_ns(config, config.abort_timeout_ms)
    return max((config.drive_resets + 1) * ladder_ns(config), aborted)
