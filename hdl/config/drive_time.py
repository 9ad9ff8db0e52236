"""The longest time of a drive command, and the time after which a drive is given up."""

from math import ceil

from hdl.config.controller import Config

MILLISECONDS = 1000


def tick_shift(config: Config) -> int:
    """log2 of the clock cycles of a tick, which is the unit of all deadlines.

    A tick is at most half of the shortest time limit.
    """
    least = min(config.abort_timeout_ms, config.slow_read_ms or config.abort_timeout_ms)
    cycles = least * config.clock_hz // MILLISECONDS
    return max(0, (max(2, cycles) // 2).bit_length() - 1)


def ticks(config: Config, milliseconds: int) -> int:
    """Ticks that last at least so long, wherever in a tick they begin."""
    return ceil(milliseconds * config.clock_hz / MILLISECONDS / (1 << tick_shift(config))) + 1


def longest_ms(config: Config) -> float:
    """Longest time of a command in a drive port, in milliseconds.

    Some microseconds of work are not counted.
    """
    count = ticks(config, config.command_timeout_ms) + ticks(config, config.abort_timeout_ms)
    if config.slow_read_ms:
        count += ticks(config, config.slow_read_ms)
    return count * (1 << tick_shift(config)) * MILLISECONDS / config.clock_hz


def given_up_ms(config: Config) -> float:
    """Longest time until a drive that ends nothing is given up, in milliseconds.

    It is the longer of two times: of a drive whose commands can be aborted, and of one whose
    commands cannot. It is 0 where drives have no time limit.
    """
    if not config.command_timeout_ms:
        return 0
    count = ticks(config, config.command_timeout_ms)
    if config.slow_read_ms:
        count += ticks(config, config.slow_read_ms)
    tick_ms = (1 << tick_shift(config)) * MILLISECONDS / config.clock_hz
    # The commands are aborted once. They end with each forgiven reset, and with the last one.
    count = (config.drive_resets + 2) * count + ticks(config, config.abort_timeout_ms)
    aborted = count * tick_ms
    return max((config.drive_resets + 1) * longest_ms(config), aborted)


def row_given_up_ms(config: Config) -> float:
    """Longest time until a row with parity ends although its drives end nothing, in milliseconds.

    A row is planned again when a drive has been given up, and may ask the next drive that hangs
    only then. After one more drive than parities the array has failed. It is 0 where drives have
    no time limit.
    """
    return (config.parities + 1) * given_up_ms(config)
