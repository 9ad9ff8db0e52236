"""Times of a clock that wraps: `Controller.now` does so every 13 days at 250 MHz.

Times that are compared are less than half of that apart. Times in another unit, with fewer bits,
wrap sooner. They are compared in the same way, as long as both have the same number of bits.
"""

from amaranth.hdl import Value

from hdl.config import TIME_BITS

NEVER = (1 << TIME_BITS) - 1
"""What a ``deadline`` port says when nothing waits for a time."""


def before(early: Value, late: Value) -> Value:
    """Whether the time ``early`` is earlier than the time ``late``."""
    if len(early) != len(late):
        raise ValueError(f"times must have the same width, not {len(early)} and {len(late)} bits")
    return (early - late)[len(late) - 1]


def passed(now: Value, time: Value) -> Value:
    """Whether it is ``time``, or later, at ``now``."""
    return ~before(now, time)


def earlier(now: Value, one: Value, other: Value) -> Value:
    """Whether the deadline ``one`` comes before the deadline ``other``; either may be `NEVER`."""
    wait, other_wait = (one - now)[:TIME_BITS], (other - now)[:TIME_BITS]
    return (one != NEVER) & ((other == NEVER) | (wait < other_wait))
