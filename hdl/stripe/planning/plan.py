"""What is asked of the planner of a row, and what it answers."""

from amaranth.lib import data, enum

from hdl.config import MAX_DRIVES, Config
from hdl.flow.row import RowKind


class PlanKind(enum.Enum, shape=3):
    """How a row is brought to its new contents."""

    WRITE_ONLY = 0
    """No live parity to keep: write the joined blocks."""
    FULL = 1
    """All data strips are joined: generate, no reads."""
    UPDATE = 2
    """Read-modify-write: old joined data and old parity are read."""
    RECONSTRUCT = 3
    """Reconstruct-write: the data strips that are not joined are read."""
    RECOVER_RECONSTRUCT = 4
    """As RECONSTRUCT after recovering the lost data strips that are not joined."""
    RECOVER = 5
    """Only recover the joined block (`RowKind.RECOVER`)."""
    IMPOSSIBLE = 6
    """More drives are gone than the level tolerates."""


def plan_request(config: Config) -> data.StructLayout:
    """Plan one row. Bit per role (data 0.., then P, Q, ..): ``dead``: its drive cannot be used;
    ``bad``: its drive lives, but the block cannot be read; ``stale``: of these, on a drive that is
    being rebuilt, which may be written but holds nothing for the row yet. ``unsynced``: unless the
    host has written the row, its parities may be anything."""
    return data.StructLayout(
        {
            "kind": RowKind,
            "data": 6,
            "parities": 3,
            "joined": MAX_DRIVES,
            "dead": MAX_DRIVES,
            "bad": MAX_DRIVES,
            "stale": MAX_DRIVES,
            "unsynced": 1,
        }
    )


def plan(config: Config) -> data.StructLayout:
    """What to read, recover, and write.

    ``read_data``, ``read_parity``: old blocks to read, by data strip and by parity number.
    ``erased``: lost data strips to recover first, with the parities in ``use_parity`` (as many).
    ``write_data``: joined strips that can be written; ``write_parity``: parities to write.
    """
    return data.StructLayout(
        {
            "kind": PlanKind,
            "read_data": MAX_DRIVES,
            "read_parity": 4,
            "erased": MAX_DRIVES,
            "use_parity": 4,
            "write_data": MAX_DRIVES,
            "write_parity": 4,
        }
    )
