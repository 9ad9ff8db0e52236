"""What the tables know of the drive at each port."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hdl.config import MAX_DRIVES


class DriveStates(wiring.Signature):
    """The states of all drives, seen from the tables (`hdl.array.tables.tables.ArrayTables`).

    Without ``Config.background`` all but ``present``, ``used``, ``failed`` and ``changed`` are 0.

    Ports
    -----
    present
        One bit per port. A drive is there.
    used
        One bit per port. It belongs to an array.
    failed
        One bit per port. Its drive cannot be used. Set while a drive is absent. Stays set while the
        port belongs to an array. It also stays set after that if the drive was reported and no
        other has come, until an array is created on it.
    stale
        One bit per port. Its drive is being rebuilt, and has not failed.
    suspect
        One bit per port. Its drive has restarted, and must not be believed when it says that it has
        flushed.
    kept
        One bit per port. Its drive is suspect, and its array cannot do without it. A suspect drive
        must not be asked for anything until that is known.
    replaced
        One bit per port. Its array has another drive in its place by now, which has all that it
        has. Rows that began before still use it.
    undecided
        There are suspect drives of which that is not known yet.
    returns
        One bit per port. Its drive has failed only by restarting, and can be taken back.
    changed
        A pulse after each change of ``failed`` or ``stale``, and with each change made to the
        tables.
    """

    def __init__(self):
        super().__init__(
            {
                "present": Out(MAX_DRIVES),
                "used": Out(MAX_DRIVES),
                "failed": Out(MAX_DRIVES),
                "stale": Out(MAX_DRIVES),
                "suspect": Out(MAX_DRIVES),
                "kept": Out(MAX_DRIVES),
                "replaced": Out(MAX_DRIVES),
                "undecided": Out(1),
                "returns": Out(MAX_DRIVES),
                "changed": Out(1),
            }
        )


class DriveDecisions(wiring.Signature):
    """What background work decides on drives, seen from it.

    Ports
    -----
    yields
        One bit per port, a pulse. Its array can do without the suspect drive.
    keeps
        One bit per port, a pulse. Its array cannot do without the suspect drive.
    given_up
        One bit per port, a pulse. Its drive has restarted, and is not taken back.
    reserved
        One bit per port. It is a hot spare. No new array may have it.
    """

    def __init__(self):
        super().__init__(
            {
                "yields": Out(MAX_DRIVES),
                "keeps": Out(MAX_DRIVES),
                "given_up": Out(MAX_DRIVES),
                "reserved": Out(MAX_DRIVES),
            }
        )
