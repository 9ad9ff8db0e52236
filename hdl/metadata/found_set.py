"""Drives that belong together by their superblocks, and whether they make an array."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BITS, MAX_DRIVES, Config
from hdl.flow.geometry import WIDTH_BITS, Level
from hdl.kit.table import TableRead
from hdl.metadata.spans import Place


class Hindrance(enum.Enum, shape=4):
    """Why a set is not brought up, or a drive of it is in no array. `Assembler` says the first six
    and RENUMBERED."""

    NOTHING = 0
    """It can be."""
    UNSUPPORTED = 1
    """The card does not have what the superblocks ask for: the level, the layout, the strip, the
    number of drives, data that does not begin at a block, before `hdl.config.DATA_OFFSET_BLOCKS`,
    or not at the same place on all members, a member that is shorter than the array needs, a RAID 0
    of unequal members, members of no whole strips or blocks, bad blocks, a reshape, a replacement,
    a journal, a cluster, or a partial parity log."""
    DIFFERENT = 2
    """The drives have one identity, and do not agree on what the array is."""
    INCOMPLETE = 3
    """Drives are missing, and there is data that no other holds."""
    DOUBTFUL = 4
    """Drives are missing, and rows may be inconsistent. What a missing drive held could be worked
    out wrongly."""
    AWAITED = 5
    """The data is all there, but a drive is missing that nobody has given up. It may still come."""
    ELSEWHERE = 6
    """The array is another card's, or Linux's."""
    LEFT_OUT = 7
    """The array is there, and has left the drive out."""
    NO_PLACE = 8
    """There is no array number left, or no port for a member that is missing."""
    RENUMBERED = 9
    """The card would give devices the numbers of their roles. But a drive is an event behind, and
    has the role that the freshest superblock gives to its number; or it has no role, and the number
    of one. If power went meanwhile it could be taken for another member."""


def found_set(config: Config) -> data.StructLayout:
    """Drives of one array, or of one of its spans.

    Fields
    ------
    hindrance
        Why it is not brought up.
    freshest
        The port of the drive whose word counts.
    place
        Which span it is.
    group
        A bit a port. Those with the identity of the array, whatever their span.
    drives
        A bit a port. Those of them that are of this span.
    left_out
        Those of them that have no role: too old, given up, or one too many.
    spares
        Those of them that say that they are spares.
    width
        How many roles the array has. Modulo 64 if it is UNSUPPORTED or DIFFERENT.
    members, rebuilding
        A bit a role. A drive holds it in full, or up to its recovery offset. Who that is stands in
        the table of `found_member_read`.
    dirty
        Rows may be inconsistent.
    level, strip_shift, copies, rotation, rows, data_offset
        What the array is (`hdl.flow.geometry.geometry`). Nothing if it is UNSUPPORTED.
    """
    return data.StructLayout(
        {
            "hindrance": Hindrance,
            "freshest": config.port_bits,
            "place": Place,
            "group": config.ports,
            "drives": config.ports,
            "left_out": config.ports,
            "spares": config.ports,
            "width": WIDTH_BITS,
            "members": MAX_DRIVES,
            "rebuilding": MAX_DRIVES,
            "dirty": 1,
            "level": Level,
            "strip_shift": 4,
            "copies": WIDTH_BITS,
            "rotation": 4,
            "rows": BLOCK_NUMBER_BITS,
            "data_offset": DATA_OFFSET_BITS,
        }
    )


def found_member_read(config: Config) -> TableRead:
    """A read port of the table that has the port of the drive in each role."""
    return TableRead((MAX_DRIVES - 1).bit_length(), config.port_bits)
