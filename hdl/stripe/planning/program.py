"""What `RowPlanning` works out for a row once, so that the sequencer only follows it."""

from amaranth.lib import data

from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BITS, ERA_BITS, Config, bits_for_count
from hdl.flow.geometry import RotationBits
from hdl.flow.row import RowKind, row_walk
from hdl.kit.optional import optional


def targets(config: Config) -> int:
    """Most operations of one phase of a row; a copy may wrap past the last drive, so more than
    drives."""
    return 2 * config.ports


def migration_target(config: Config) -> int:
    """The number of the migration target. No other target of a row has it."""
    return targets(config) - 1


def migration_mask(config: Config) -> int:
    """The bit of `migration_target` among targets, or 0 if no member ever migrates."""
    return 1 << migration_target(config) if config.background else 0


def always_synced(config: Config) -> int:
    """A bit for each target without background work, as every drive then holds all that it should
    of any row. 0 with background work."""
    return 0 if config.background else (1 << targets(config)) - 1


def target_bits(config: Config) -> int:
    """Width of a target number."""
    return bits_for_count(targets(config))


def role_bits(config: Config) -> int:
    """Width of a role, which is less than the drives there are."""
    return bits_for_count(config.ports)


def program(config: Config) -> data.StructLayout:
    """Everything the sequencer does for a row slot.

    Roles are counted as in a row: data 0.., then P, Q, .. from ``data`` on; there are no more than
    drive ports. ``shift``, ``rotation``: where they lie, which `hdl.stripe.planning.weights` needs.
    ``possible``: 0 when too many drives are gone. ``read``: roles to read. ``erased``,
    ``use_parity``: data roles to recover, from which parities (none: no such pass). ``update``:
    generate from old and new data and old parity, else from all data. ``generate``: parities to
    generate. ``write``: bit per target to write. ``aux``: roles with a line of the row's own.
    ``dead``: roles whose drive cannot be used; ``bad``: roles that could not be read, or must not
    be because their drive is ``stale`` and the row not rebuilt. What is written with FUA counts as
    not rebuilt.
    ``fills``: as in `hdl.flow.row.row_state`; with mirrors ``read`` and ``bad`` are then
    targets, which have a number whether their drive is live or not. ``gathered``: as there; each
    joined role that is in ``aux`` is then for the host, and no other joined one can be had.
    ``elsewhere`` (with ``Config.slow_read_ms``): any one block of ``read`` can be done without.
    ``array`` (with ``Config.array_shares`` or ``background``): whose it is.

    With ``background``: ``synced``: a bit per target that has a drive, which holds all that it
    should of this row. ``salvage``: the row is past repair, so what joined is written, and the
    live parities, which are no longer known, are made unreadable. ``walk``: of a row that is walked
    (``any``), ``kind`` being WRITE with nothing joined. Targets are then roles, with copies too,
    and ``mirrored`` is 0. ``again``: it has been planned before. ``checks``: parities (those in
    ``generate``) or copies (those in ``read``) are compared. ``single``: everything is written from
    the line of role ``source``, else each role from its own. If not ``possible``, ``write`` says
    what is to be made unreadable; with ``withheld`` the walk leaves the row as it is. ``migrated``:
    if `migration_target` is in ``write``, the target (without mirroring the role) whose block goes
    there as well, with FUA if the migration ``settles``. ``base``, ``place``: where the members of
    the row are, and the first of its copies, as in a `hdl.flow.walk.walk`. ``era``: that of its
    array as it was planned.
    """
    background = {
        "stale": config.ports,
        "synced": targets(config),
        "salvage": 1,
        "again": 1,
        "checks": 1,
        "withheld": 1,
        "single": 1,
        "source": role_bits(config),
        "migrated": target_bits(config),
        "settles": 1,
        "base": 5,
        "place": 5,
        "era": ERA_BITS,
    }
    named = config.array_shares or config.background
    return data.StructLayout(
        {
            "kind": RowKind,
            "fua": 1,
            "more": 1,
            "possible": 1,
            "mirrored": 1,
            "update": 1,
            "data": range(config.ports + 1),
            "parities": 3,
            "shift": 5,
            "rotation": RotationBits,
            "strip_shift": 4,
            "row": BLOCK_NUMBER_BITS,
            **optional(config.metadata, {"data_offset": DATA_OFFSET_BITS}),
            "joined": config.ports,
            "read": config.ports,
            "erased": config.ports,
            "use_parity": 4,
            "generate": 4,
            "write": targets(config),
            "aux": config.ports,
            "dead": config.ports,
            "bad": config.ports,
            **optional(config.background, background),
            **row_walk(config),
            **optional(config.sector_emulation, {"fills": 1}),
            **optional(config.gather_reads, {"gathered": 1}),
            **optional(config.slow_read_ms, {"elsewhere": 1}),
            **optional(named, {"array": config.array_bits}),
        }
    )


def target(config: Config) -> data.StructLayout:
    """Where one block goes: port, data strip, and whether it lies in the next stripe.

    Without mirroring, and when walked, the target's number is the role; else targets are numbered
    in the order of strips and copies, live ones only.
    """
    return data.StructLayout({"port": config.port_bits, "strip": role_bits(config), "wrapped": 1})
