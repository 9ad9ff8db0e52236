"""Orders for jobs, and what becomes of them."""

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.manage import MigrationEnd
from hdl.flow.walk import WalkKind


class JobOrder(enum.Enum, shape=3):
    """What is to be done with the job of an array."""

    START = 0
    STOP = 1
    FORGET = 2
    """The array is gone: no job."""
    BEGIN = 3
    """The array is new. It has no job, and no row is in sync, or every row is."""
    DOUBT = 4
    """What was written to the array may be lost. A RESYNC or ZERO that has not ended begins anew,
    and so does a MIGRATE of a drive that may have lost it. Rows that are marked may not be in sync
    any more, unless there is nothing to be in sync."""


class Sync(enum.Enum, shape=2):
    """Whether the rows of an array satisfy their equations, or copies are alike."""

    NONE = 0
    """Rows from the boundary on may not, unless the host has written them since."""
    PROVEN = 1
    """All rows do. A job has made or found them so, or there is nothing to satisfy."""
    ASSUMED = 2
    """The host has said so as it created the array."""


def job_order(config: Config) -> data.StructLayout:
    """What is to be done with the job of ``array``.

    START begins a job of ``kind`` at row ``first``, or with ``resume`` where the last job was. But
    REBUILD and SALVAGE always begin at the boundary. If the array is not in sync, RESYNC and ZERO
    begin at its sync boundary at the latest, and a REBUILD becomes a RESYNC from there on first,
    unless the array has FAILED. With ``every`` a RESYNC does not follow marks, unless it resumes.
    START replaces a job that is running, but a MIGRATE only once the migration has ended.

    With BEGIN ``sync`` is that of the new array. With DOUBT ``sync`` is NONE, or PROVEN if there is
    nothing to be in sync.
    """
    return data.StructLayout(
        {
            "order": JobOrder,
            "array": config.array_bits,
            "kind": WalkKind,
            "first": BLOCK_NUMBER_BITS,
            "resume": 1,
            "every": 1,
            "sync": Sync,
        }
    )


class JobControl(wiring.Signature):
    """Orders for jobs and what becomes of them, seen from who orders.

    Ports
    -----
    order
        Changes. An order is taken when it has been carried out, after the rows on their way have
        ended.
    migrates_anew
        One bit per array. With DOUBT, the target of its migration may have lost something.
    running
        One bit per array. It has a job.
    rebuilds
        One bit per array. Its job is REBUILD or SALVAGE.
    zeroes
        One bit per array. Its job is ZERO.
    migrates
        One bit per array. Its job is MIGRATE.
    resyncs
        One bit per array. Its job is RESYNC.
    unsynced
        One bit per array. Its `Sync` is NONE: not all its rows are in sync.
    unfinished
        One bit per array, a pulse. Its RESYNC has ended because the array has FAILED. It needs
        another one once it has not FAILED any more.
    rebuilt
        Level. The job of array ``rebuilt_array`` is through its rows, and its drives are to be
        flushed, or its migration ends. It falls while there is an ``order``.
    rebuilt_array
        That array.
    complete
        With ``rebuilt`` of a MIGRATE: all rows are on the new drive.
    handed
        A pulse that answers ``rebuilt``. The drives have been flushed, and those that were rebuilt
        are no longer stale, or the migration has ended.
    outcome
        With ``handed``. JOINED if all the drives have flushed. Of a MIGRATE, what has become of it.
        If its drive is now the member but stale, the job goes on as a REBUILD.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "order": Out(stream.Signature(job_order(config))),
                "migrates_anew": Out(config.arrays),
                "running": In(config.arrays),
                "rebuilds": In(config.arrays),
                "zeroes": In(config.arrays),
                "migrates": In(config.arrays),
                "resyncs": In(config.arrays),
                "unsynced": In(config.arrays),
                "unfinished": In(config.arrays),
                "rebuilt": In(1),
                "rebuilt_array": In(config.array_bits),
                "complete": In(1),
                "handed": Out(1),
                "outcome": Out(MigrationEnd),
            }
        )
