"""What an array has left."""

from amaranth.lib import data, enum

from hdl.config import ERA_BITS, Config


class ArrayState(enum.Enum, shape=2):
    """What an array has left. A drive that is being rebuilt counts as lost until that has ended."""

    OPTIMAL = 0
    PARTIALLY_DEGRADED = 1
    """Drives are lost, and everywhere one more may be."""
    DEGRADED = 2
    """Somewhere no other drive may be lost."""
    FAILED = 3
    """Somewhere more drives are lost than the level tolerates."""


def eras(config: Config) -> data.ArrayLayout:
    """How often each array has lost what was not flushed, as drives of it that restarted were kept.

    It steps before any read of such a drive ends that has begun after it restarted.
    """
    return data.ArrayLayout(ERA_BITS, config.arrays)


def judgement(config: Config) -> data.StructLayout:
    """What was found of ``array``.

    ``missing``: a member is failed, the first of them at ``position``. ``rebuilding``: one is
    stale. ``halted``: a member is being copied, but one of the two drives is failed.
    ``returns``: the failed member at ``place`` has only restarted; its drive is at ``port``.
    ``loses``: suspect drives are kept that were not yet: what was written since they were flushed
    may be lost, and with ``redundant`` rows of that may be inconsistent. ``recopies``: one of them
    is a member that is being copied, so what has been copied may not be what it has.
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
            "recopies": 1,
            "redundant": 1,
        }
    )
