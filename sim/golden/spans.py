"""How superblocks of a RAID 50 or 60 tell its spans from each other (docs/metadata.md)."""

UUID_BYTE = 11
"""Of the identity of a set: the byte to which the number of its span is added, without carry."""

MICROSECONDS_BIT = 40
"""Of `ctime`: seconds lie below."""


def of_span(uuid: bytes, span: int) -> bytes:
    """The identity of a span by that of the first one, or the other way round."""
    return bytes(byte ^ span if place == UUID_BYTE else byte for place, byte in enumerate(uuid))


def made_as(span: int, last: int) -> int:
    """`ctime` of a span, if ``last`` is the number of the last one."""
    return (16 * last + span) << MICROSECONDS_BIT


def divided(ctime: int) -> tuple[int, int]:
    """Which span it is by its `ctime`, and which is the last one. (0, 0) if there is only one."""
    last, span = divmod(ctime >> MICROSECONDS_BIT, 16)
    is_span = ctime % (1 << MICROSECONDS_BIT) == 0 and 0 < last < 16 and span <= last
    return (span, last) if is_span else (0, 0)
