"""How far a row is in its program."""

from amaranth.lib import data, enum

from hdl.config import Config
from hdl.flow.piece import early_field
from hdl.kit.optional import optional
from hdl.stripe.planning.program import role_bits, target_bits, targets


def attempts(config: Config) -> int:
    """Times that an operation which its drive aborts is sent at least before it counts as failed.
    It is as often as a drive that hangs takes until it is given up (`hdl.drive.recovery.ladder`),
    after one that restarted."""
    return max(4, config.drive_resets + 3)


def rounds(config: Config) -> int:
    """Rounds of a phase in which drives may abort operations of a row.

    They are counted for the row. Beside its own `attempts` an operation may spend one round on
    ending as UNREACHED and one on being refused, while others of the row are aborted.
    """
    return attempts(config) + 2


class Phase(enum.Enum, shape=3):
    """What a row waits for."""

    READ = 0
    RECOVER = 1
    GENERATE = 2
    WRITE = 3
    ABANDON = 4
    COMPARE = 5
    SPOIL = 6
    """What a write that failed has stored is being made unreadable."""
    BLANK = 7
    """What drives that stay did not store is being made unreadable there; the row does without."""


class Next(enum.Enum, shape=2):
    """What follows once a row's own lines have been given back."""

    PLAN = 0
    WRITE = 1
    CLOSE = 2
    RETIRE = 3


def slow_field(config: Config) -> dict:
    """A field ``slow``, roles, with ``Config.slow_read_ms`` only."""
    return optional(config.slow_read_ms, {"slow": config.ports})


def progress(config: Config) -> data.StructLayout:
    """How far a row is.

    ``remaining``: operations outstanding. ``bad``: roles that could not be read. ``lost``: targets
    that could not be written, and, once one could not, all whose drive has failed meanwhile;
    ``left``: those of them whose drive has gone away. ``good``: data
    strips of which a copy that is in sync is written. ``retry``: targets to ask again;
    ``aborted``: at least one of them because a drive aborted it, which counts as one of ``rounds``.
    ``refused``: targets that their drive could not store once.

    ``slow`` (with ``Config.slow_read_ms``): those of ``bad`` whose drive takes too long.

    ``early``: the row's lost block is being worked out as others land (`hdl.stripe.rows.early`).

    With ``background``: ``nonzero``: of the last parity pass, by parity role; ``found``: parities
    or copies do not agree, ``wrong`` being the roles at fault if they are known; ``suspect``: the
    data role, or copy, that the pass under way looks into; ``half``: of a block that is written to
    two drives one has ended; ``old``: targets that hold what they held before the row was written,
    for certain; ``blank``: those that stay without a block which the row does without.

    With ``backup_blocks``: ``unwritten``: targets whose block is in its line, and on its way to the
    drive.
    """
    background = {
        "nonzero": config.parities,
        "found": 1,
        "wrong": config.ports,
        "suspect": role_bits(config),
        "half": 1,
        "old": targets(config),
        "blank": targets(config),
    }
    backup = {"unwritten": targets(config)}
    return data.StructLayout(
        {
            "phase": Phase,
            "remaining": target_bits(config) + 1,
            "rounds": range(rounds(config)),
            "aborted": 1,
            "bad": config.ports,
            "lost": targets(config),
            "left": targets(config),
            "good": config.ports,
            "retry": targets(config),
            "refused": targets(config),
            **optional(config.background, background),
            **optional(config.backup_blocks, backup),
            **slow_field(config),
            **early_field(config),
        }
    )


def unread(config: Config) -> data.StructLayout:
    """Of `progress`, what a row is planned again for."""
    return data.StructLayout({"bad": config.ports, **slow_field(config)})
