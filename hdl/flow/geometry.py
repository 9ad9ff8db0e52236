"""RAID levels, and the shape of an array for the data path."""

from amaranth.hdl import Const, Value
from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BITS, DATA_OFFSET_BLOCKS, Config
from hdl.kit.optional import optional

WIDTH_BITS = 6
"""Width of a number of drives, 1..32."""


class Level(enum.Enum, shape=4):
    """RAID level as the host names it (SNIA CRDS). The hardware looks only at `geometry`."""

    RAID0 = 0
    RAID1 = 1
    RAID5 = 5
    RAID6 = 6
    RAIDTP = 7
    RAID10 = 10
    JBOD = 15


class Rotation(enum.Enum, shape=4):
    """How parity moves from stripe to stripe, by mdadm's names. The value is a `RotationBits`.

    With n drives in a span, P of stripe s is at place n - 1 - s mod n (LEFT) or at place s mod n
    (RIGHT). Q and R follow P. The host's blocks begin after the last parity and go round
    (SYMMETRIC), or ascend from place 0 (ASYMMETRIC).

    DDF_N_CONTINUE has Q before P. DDF_N_RESTART begins a stripe later than LEFT_ASYMMETRIC, so that
    P and Q are last in stripe 0. In all three DDF layouts (SNIA DDF, PRL 6 with RLQ 1 to 3, RAID 6
    only) the weight in Q of a block at place x is g**x.
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
    """A `Rotation` as the hardware uses it.

    Fields
    ------
    right
        Data role 0 moves a drive to the right each stripe, else to the left.
    ascending
        The host's blocks ascend from place 0.
    fixed
        Nothing moves.
    ddf
        A block is weighted by its place.
    """

    right: 1
    ascending: 1
    fixed: 1
    ddf: 1


def geometry(config: Config) -> data.StructLayout:
    """The shape of an array for the data path.

    Fields
    ------
    valid, level
        The array exists. Its level.
    width
        Drives in a span, 1..32.
    data
        Data strips of a stripe before mirroring: ``width`` - ``parities``, or ``width``.
    parities
        0..4.
    copies
        Copies of each strip. 1 without mirroring.
    spans
        Parity sets over which the data is striped.
    strip_shift
        log2 of the blocks of a strip, 0..8.
    rotate, rotation
        Parity moves by a drive each stripe, or is fixed. How it moves.
    rows
        Rows of a span.
    blocks
        Blocks that the array offers.
    data_offset
        The block of each member at which its rows begin. Only with `Config.metadata`: other arrays
        have `DATA_OFFSET_BLOCKS`, and `data_offset` knows.
    assumed
        Rows were taken to be consistent when the array was made. Only without `Config.background`,
        where nothing else can make them consistent. Otherwise `hdl.background.jobs.Jobs` knows.
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
            **optional(config.metadata, {"data_offset": DATA_OFFSET_BITS}),
            **assumed,
        }
    )


def data_offset(config: Config, shape: data.View) -> Value:
    """The block of each member at which the rows of an array begin.

    ``shape`` is its geometry, or the program of a row."""
    return shape.data_offset if config.metadata else Const(DATA_OFFSET_BLOCKS)
