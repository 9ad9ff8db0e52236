"""RAID levels, and what the data path needs to know of an array."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.kit.optional import optional

WIDTH_BITS = 6
"""Width of a number of drives, 1..32."""


class Level(enum.Enum, shape=4):
    """RAID level as the host names it (SNIA CRDS); the hardware only looks at `geometry`."""

    RAID0 = 0
    RAID1 = 1
    RAID5 = 5
    RAID6 = 6
    RAIDTP = 7
    RAID10 = 10
    JBOD = 15


class Rotation(enum.Enum, shape=4):
    """How parity moves from stripe to stripe, by mdadm's names; `RotationBits` in one number.

    With n drives in a span, in stripe s: LEFT: P at place n - 1 - s mod n, RIGHT: at s mod n.
    SYMMETRIC: the host's blocks begin after the last parity and go round; ASYMMETRIC: they
    ascend from place 0. Q and R follow P. DDF_N_CONTINUE: Q precedes P; DDF_N_RESTART begins a
    stripe later than LEFT_ASYMMETRIC, so that P and Q are last in stripe 0; in all three DDF
    layouts (SNIA DDF, PRL 6 with RLQ 1 to 3; RAID 6 only) a block at place x weighs g**x in Q.
    """

    LEFT_SYMMETRIC = 0
    RIGHT_SYMMETRIC = 1
    LEFT_ASYMMETRIC = 2
    RIGHT_ASYMMETRIC = 3
    PARITY_LAST = 4
    PARITY_FIRST = 5
    DDF_N_CONTINUE = 8
    DDF_N_RESTART = 10
    DDF_ZERO_RESTART = 11


class RotationBits(data.Struct):
    """A `Rotation` as hardware uses it.

    ``right``: data role 0 moves a drive to the right each stripe, else to the left. ``ascending``:
    the host's blocks ascend from place 0. ``fixed``: nothing moves. ``ddf``: weights by place.
    """

    right: 1
    ascending: 1
    fixed: 1
    ddf: 1


def geometry(config: Config) -> data.StructLayout:
    """Everything the data path needs of an array.

    ``width``: drives in a span (1..32). ``data``: data strips of a stripe before mirroring
    (``width`` - ``parities`` or ``width``). ``parities``: 0..4. ``copies``: 1, or the copies of
    each strip. ``spans``: parity sets striped over. ``strip_shift``: log2 of the blocks of a strip,
    0..8. ``rows``: rows of a span. ``blocks``: blocks the array offers.
    ``rotate``: parity moves by a drive each stripe, else fixed. ``rotation``: how. ``assumed``:
    rows were taken to be consistent when the array was made (only without `Config.background`,
    where nothing else can make them so; else `hdl.background.jobs.Jobs` knows).
    """
    assumed = optional(not config.background, {"assumed": 1})
    return data.StructLayout(
        {
            "valid": 1,
            "level": Level,
            "width": WIDTH_BITS,
            "data": WIDTH_BITS,
            "parities": 3,
            "copies": WIDTH_BITS,
            "spans": WIDTH_BITS,
            "strip_shift": 4,
            "rotate": 1,
            "rotation": RotationBits,
            "rows": BLOCK_NUMBER_BITS,
            "blocks": BLOCK_NUMBER_BITS,
            **assumed,
        }
    )
