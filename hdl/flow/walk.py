"""A row that the background asks the stripe engine to work on, and its end."""

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import Out

from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, MAX_DRIVES, Config


class WalkKind(enum.Enum, shape=3):
    """What a walk does with a row.

    Whatever the kind, a block that its drive cannot read (MEDIUM_ERROR) is worked out from the
    others and written anew where the level allows it. The host is told nothing.
    """

    RESYNC = 0
    """Make the row consistent from its data. Parities are generated anew, and copies are made
    alike."""
    REBUILD = 1
    """Work out the blocks of stale drives, and write only those."""
    CHECK = 2
    """Compare parities with data, or copies with each other. Change nothing that can be read."""
    REPAIR = 3
    """As CHECK, and mend the one wrong block if the parities tell which, else as RESYNC."""
    PATROL = 4
    """Read every block of the row, and do nothing else."""
    ZERO = 5
    """Write zeros to every block of the row, whatever it held. Nothing is read."""
    MIGRATE = 6
    """Store the block of the member that is migrated on its new drive. Read it from the member, or
    work it out if it cannot be read. The member itself is left as it is, since a refused write
    would give up a drive that is still needed."""
    SALVAGE = 7
    """As REBUILD, of an array that has lost more drives than its level tolerates. Blocks that
    cannot be worked out are given up. RESYNC, REBUILD, and MIGRATE of a member that has failed
    leave such a row as it is, since a missing drive may come back."""


ROLE_BITS = 5
"""Width of the number of a copy."""

MEND_TAG = 255
"""The tag of rows that a host read asked to be mended. Nobody waits for their end."""


def walk(config: Config) -> data.StructLayout:
    """One row to work on. It takes a row slot, so host writes to it wait, or are waited for.

    Fields
    ------
    kind, array
        What is done, and on which array.
    base, shift, row
        As in `hdl.flow.extent.extent`. Without parity ``shift`` is the place of the first copy of
        one strip, as in a row of the gatherer. A stripe then has such a row for each data strip.
    more
        The next row will be asked for at once.
    tag
        Comes back in `walked`.
    source, era
        Of mirrors: copies before ``source`` are not read, and are written anew, since the host has
        been given the block of ``source`` in ``era``. In another era ``source`` has no meaning.
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
    """The row is as it should be."""
    MENDED = 1
    """Blocks that could not be read were written anew, and the row is as it should be. Or a drive
    that is still needed refused a write. The block is then unreadable there, and nothing is lost.
    """
    MISMATCH = 2
    """CHECK found parities or copies that disagree. REPAIR and RESYNC have also mended them."""
    LOST = 3
    """Blocks are lost. No drive has them, and the level cannot work them out."""
    FAILED = 4
    """A drive refused a write. It was reported as failed, unless it is still needed. In that case
    it did not even make the block unreadable. Or more drives of the row are missing than the level
    tolerates. Then nothing was written, and the row is as it was."""


def walked(config: Config) -> data.StructLayout:
    """The end of one `walk`.

    Fields
    ------
    tag, result
        Those of the walk.
    roles
        A bit for each role (data 0.., then P, Q, ..; with copies, for each copy). MENDED and
        MISMATCH: the roles that were wrong, as far as the parities tell. There are none if they do
        not tell. LOST: the roles that are lost. Lost blocks of stale drives, and of the new drive
        of a migration, have been made unreadable there.
    """
    return data.StructLayout({"tag": 8, "result": WalkResult, "roles": MAX_DRIVES})


class MendRequest(wiring.Signature):
    """Rows that are to be mended, seen from who came upon a block that its drive cannot read.
    Without ``Config.background`` nothing is asked for.

    Ports
    -----
    walk
        The rows, with tag `MEND_TAG`. Each is offered some time after it was noted.
    noted
        A pulse. A row has been noted, and refers to its array from now on.
    array
        With ``noted``: that array.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "walk": Out(stream.Signature(walk(config))),
                "noted": Out(1),
                "array": Out(config.array_bits),
            }
        )
