"""How full a gathered row is, and how many rows of an array are on their way."""

from amaranth.lib import data

from hdl.config import TIME_BITS, Config


def fill(config: Config) -> data.StructLayout:
    """How full a row slot is.

    ``count``: blocks joined; ``missing``: those not fetched yet. ``listed``: among the open rows.
    ``closed``: waits for no partner. ``launched``: the sequencer has it. ``first``: when its first
    block joined. ``awaited``: the count of retired rows of its array at which those that were on
    their way when its newest block joined have retired; ``settled``: they had, at ``since``.
    """
    return data.StructLayout(
        {
            "count": 6,
            "missing": 6,
            "listed": 1,
            "closed": 1,
            "launched": 1,
            "settled": 1,
            "awaited": flight_bits(config),
            "first": TIME_BITS,
            "since": TIME_BITS,
        }
    )


def flight_bits(config: Config) -> int:
    """Width of a count of rows that wraps, in which earlier and later can be told apart."""
    return config.row_slot_bits + 2


def flight(config: Config) -> data.StructLayout:
    """The rows of an array: how many closed ones are on their way, a count of those retired, and
    when a write that continues another last joined one."""
    return data.StructLayout(
        {"flying": flight_bits(config), "retired": flight_bits(config), "latest": TIME_BITS}
    )
