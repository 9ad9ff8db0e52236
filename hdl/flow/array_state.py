"""How much redundancy an array has left."""

from amaranth.hdl import Cat, Value
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import Out

from hdl.config import BLOCK_NUMBER_BITS, ERA_BITS, MAX_DRIVES, Config


class ArrayState(enum.Enum, shape=2):
    """How much redundancy an array has left. A drive that is being rebuilt counts as lost until the
    rebuild has ended."""

    OPTIMAL = 0
    PARTIALLY_DEGRADED = 1
    """Drives are lost. Every span, or set of copies, that has lost a drive tolerates one more loss.
    """
    DEGRADED = 2
    """A span, or a set of copies, tolerates no other loss."""
    FAILED = 3
    """A span, or a set of copies, has lost more drives than the level tolerates."""


def eras(config: Config) -> data.ArrayLayout:
    """How often each array has lost data that was not flushed, since it kept drives that restarted.

    The count steps before any read ends that began after the drive restarted.
    """
    return data.ArrayLayout(ERA_BITS, config.arrays)


class ArrayStatus(wiring.Signature):
    """The states of all arrays, seen from background work. Without that ``settled`` is 1, and all
    else is 0.

    Ports
    -----
    states
        Two bits per array (`ArrayState`).
    news
        A pulse. A state is another than before, or rows may be torn.
    settled
        ``states`` and ``essential`` are up to date.
    essential
        One bit per port, as in `hdl.array.states.ArrayStates`.
    unsynced
        One bit per array. It is not in sync.
    assumed
        One bit per array. It is assumed to be in sync.
    doubts
        One bit per array. A drive of it is kept, and its jobs have not been told yet that it may
        have lost something.
    indebted
        One bit per volume. A drive of its array that has restarted was kept, and the host has not
        been told yet (`hdl.background.debts.Debts`).
    untaken
        One bit per volume. The host has been told of that, and has not taken the entry yet.
    eras
        How often each array has lost something.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "states": Out(2 * config.arrays),
                "news": Out(1),
                "settled": Out(1, init=1),
                "essential": Out(MAX_DRIVES),
                "unsynced": Out(config.arrays),
                "assumed": Out(config.arrays),
                "doubts": Out(config.arrays),
                "indebted": Out(config.volumes),
                "untaken": Out(config.volumes),
                "eras": Out(eras(config)),
            }
        )


def redundant(arrays: wiring.PureInterface) -> Value:
    """Of an `ArrayStatus`, one bit per array: it is OPTIMAL or PARTIALLY_DEGRADED."""
    return ~Cat(arrays.states[1::2])


def impaired(arrays: wiring.PureInterface) -> Value:
    """Of an `ArrayStatus`, one bit per array: it has lost drives, but no data."""
    return Cat(arrays.states[::2]) ^ Cat(arrays.states[1::2])


def array_verdict(config: Config) -> data.StructLayout:
    """What ``array`` has left, as `hdl.array.states.ArrayStates` finds it.

    Fields
    ------
    valid, array, state
        The array exists. Its number and state.
    missing, position
        A member is failed. ``position`` is the index of the first of them.
    rebuilding
        A member is stale.
    halted
        A member is being migrated, but one of the two drives is failed.
    returns, place, port
        The failed member with index ``place`` has only restarted. Its drive is at ``port``.
    loses
        The array keeps suspect drives that it did not keep before. Data that was written since
        their last flush may be lost.
    redundant
        With ``loses``: the array has redundancy, so rows with such data may be inconsistent.
    migrates_anew
        With ``loses``: one of these drives is a member that migrates. The migration target may hold
        other data than the member, so the migration begins anew.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "array": config.array_bits,
            "state": ArrayState,
            "missing": 1,
            "position": 5,
            "rebuilding": 1,
            "halted": 1,
            "returns": 1,
            "place": 5,
            "port": config.port_bits,
            "loses": 1,
            "migrates_anew": 1,
            "redundant": 1,
        }
    )


class ArrayVerdicts(wiring.Signature):
    """What all arrays have left, seen from `hdl.array.states.ArrayStates`.

    Ports
    -----
    judged
        A pulse with each array that has been judged, also if nothing is new.
    verdict
        With ``judged``: what was found.
    rows
        With ``judged``: rows of the array, if it exists.
    states
        What was last found, 2 bits per array (`ArrayState`).
    valid
        One bit per array. It exists.
    optimal
        One bit per array. It exists and is OPTIMAL.
    hopeless
        One bit per array. It exists and has FAILED.
    rebuilding
        One bit per array. It has stale drives. Follows ``judged`` by a cycle.
    halted
        One bit per array. Its migration cannot go on. Follows ``judged`` by a cycle.
    news
        A pulse. A state is another than before. An array appears as OPTIMAL, and that is no news.
    settled
        All this is up to date.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "judged": Out(1),
                "verdict": Out(array_verdict(config)),
                "rows": Out(BLOCK_NUMBER_BITS),
                "states": Out(2 * config.arrays),
                "valid": Out(config.arrays),
                "optimal": Out(config.arrays),
                "hopeless": Out(config.arrays),
                "rebuilding": Out(config.arrays),
                "halted": Out(config.arrays),
                "news": Out(1),
                "settled": Out(1),
            }
        )
