"""A row that the background asks the stripe engine to work on, and how that ended."""

from amaranth.lib import data, enum

from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, MAX_DRIVES, Config


class WalkKind(enum.Enum, shape=3):
    """What is done with a row when nobody asked for its contents.

    Whatever the kind, a block that its drive cannot read (MEDIUM_ERROR) is worked out from the
    others and written anew where the level allows it, and nothing is said to a host.
    """

    RESYNC = 0
    """Make the row consistent from its data: parities are generated anew, copies made alike."""
    REBUILD = 1
    """Work out what belongs on drives that are stale, and write only that."""
    CHECK = 2
    """Compare parities with data, or copies with each other; change nothing that can be read."""
    REPAIR = 3
    """As CHECK, and mend: the one wrong block if the parities tell which, else as RESYNC."""
    PATROL = 4
    """Only read every block of the row."""
    ZERO = 5
    """Write zeros to every block of the row, whatever was there; nothing is read."""
    COPY = 6
    """Store the block of the member that is being copied on the drive that will replace it: read it
    there, or work it out if it cannot be read. The member itself is left as it is, since to refuse
    a write would give up a drive that is still needed."""
    SALVAGE = 7
    """As REBUILD, of an array that has lost more drives than its level tolerates: what cannot be
    worked out is given up. RESYNC, REBUILD, and COPY of a member that has failed leave such a row
    as it is, since a drive that is missing may come back."""


ROLE_BITS = 5
"""Width of the number of a copy."""

MEND_TAG = 255
"""The tag of rows that a host read asked to be mended: nobody waits for their end."""


def walk(config: Config) -> data.StructLayout:
    """One row to work on; it takes a row slot, so host writes to it wait or are waited for.

    ``base``, ``shift``, ``row`` are those of `hdl.flow.extent.extent`. Without parity ``shift``
    is the place of the first copy of the one strip that is meant, as in a row of the gatherer, and
    a stripe has such a row for each data strip. ``more``: the next row will be asked for at once.
    ``tag`` comes back. ``source``: of mirrors, copies before this one are not read, and are written
    anew: the host has been given that one's block, in ``era``, and in no other does it matter.
    """
    return data.StructLayout(
        {
            "kind": WalkKind,
            "array": config.array_bits,
            "base": 5,
            "shift": 5,
            "row": BLOCK_NUMBER_BITS,
            "more": 1,
            "tag": 8,
            "source": ROLE_BITS,
            "era": ERA_BITS,
        }
    )


class WalkResult(enum.Enum, shape=3):
    """How a row ended."""

    GOOD = 0
    """As it should be."""
    MENDED = 1
    """Blocks that could not be read were written anew; the row is as it should be. Or a drive that
    is still needed refused to be written: the block is unreadable there, and nothing is lost."""
    MISMATCH = 2
    """CHECK found parities or copies that disagree. REPAIR or RESYNC: and mended them."""
    LOST = 3
    """Blocks are lost: no drive has them and the level cannot work them out."""
    FAILED = 4
    """A drive refused to be written. It was reported as failed, unless it is still needed, and then
    it did not even make the block unreadable. Or more drives of the row are missing than the level
    tolerates, and nothing was written: the row is as it was."""


def walked(config: Config) -> data.StructLayout:
    """The end of one `walk`.

    ``roles``: a bit per role (data 0.., then P, Q, ..; with copies, per copy): MENDED and MISMATCH:
    which were wrong, as far as the parities tell (none: they do not); LOST: which are lost. Blocks
    of stale drives, and of one that is copied to, that are lost have been made unreadable there.
    """
    return data.StructLayout({"tag": 8, "result": WalkResult, "roles": MAX_DRIVES})
