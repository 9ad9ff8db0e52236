"""The tables of arrays, members, volumes, ports and migrations, and their read ports."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.geometry import geometry
from hdl.kit.table import TableRead


def volume(config: Config) -> data.StructLayout:
    """A volume: ``blocks`` blocks of array ``array`` from block ``start``."""
    return data.StructLayout(
        {
            "valid": 1,
            "array": config.array_bits,
            "start": BLOCK_NUMBER_BITS,
            "blocks": BLOCK_NUMBER_BITS,
        }
    )


def member_address(config: Config) -> data.StructLayout:
    """A member: its array, and its index 0..31 over all spans (span * width + place in the span).
    """
    return data.StructLayout({"position": 5, "array": config.array_bits})


def geometry_read(config: Config) -> TableRead:
    """Reads the geometry of an array."""
    return TableRead(config.array_bits, geometry(config))


def member_read(config: Config) -> TableRead:
    """Reads the port number of a member."""
    return TableRead(member_address(config), config.port_bits)


def volume_read(config: Config) -> TableRead:
    """Reads a volume."""
    return TableRead(config.volume_bits, volume(config))


def port_use(config: Config) -> data.StructLayout:
    """The array to which a drive port belongs, if ``used``."""
    return data.StructLayout({"used": 1, "array": 8})


def port_read(config: Config) -> TableRead:
    """Reads the use of a drive port."""
    return TableRead(config.port_bits, port_use(config))


def placed_member(config: Config) -> data.StructLayout:
    """What the drive at a port is of the array that is brought up: member ``position``, which is
    ``failed``, or ``stale`` and must be rebuilt, or has all its rows."""
    return data.StructLayout({"position": 5, "failed": 1, "stale": 1})


def placed_read(config: Config) -> TableRead:
    """Reads what the drive at a port is of the array that is brought up."""
    return TableRead(config.port_bits, placed_member(config))


def capacity_read(config: Config) -> TableRead:
    """Reads the capacity of the drive at a port, in blocks."""
    return TableRead(config.port_bits, BLOCK_NUMBER_BITS)


class VolumeAccess(wiring.Signature):
    """What I/O commands need to know of volumes, seen from the NVMe front end.

    Ports
    -----
    exists
        Bit a volume: it is there. A command may find it only if it was there when the command was
        submitted.
    read
        Volumes whose sizes are needed. Not used without `Config.compare_and_deallocate`.
    """

    def __init__(self, config: Config):
        super().__init__({"exists": In(config.volumes), "read": Out(volume_read(config))})


class TableReads(wiring.Signature):
    """Reads of all that pages list, seen from the reader."""

    def __init__(self, config: Config):
        super().__init__(
            {
                "geometry": Out(geometry_read(config)),
                "member": Out(member_read(config)),
                "volume": Out(volume_read(config)),
                "port": Out(port_read(config)),
                "capacity": Out(capacity_read(config)),
            }
        )


def migration(config: Config) -> data.StructLayout:
    """The migration in an array, if ``valid``.

    The member with index ``position`` is moved to the drive at ``port``. That drive gets every
    write that the member gets. With ``spare`` the old drive becomes a hot spare at the end. Once it
    ``settles``, what is written to either drive is written with FUA.
    """
    return data.StructLayout(
        {"valid": 1, "spare": 1, "settles": 1, "position": 5, "port": config.port_bits}
    )


def migration_read(config: Config) -> TableRead:
    """Reads the migration in an array."""
    return TableRead(config.array_bits, migration(config))


class ArrayReads(wiring.Signature):
    """Reads of where the blocks of an array lie, and of which of its rows may be believed, seen
    from the reader. Without ``Config.background`` ``migration``, ``boundary`` and ``sync`` read as
    0.

    Ports
    -----
    geometry
        Its geometry.
    member
        The port of a member.
    migration
        Its migration.
    boundary
        Its first row that has not been rebuilt yet.
    sync
        Its first row that may not be in sync yet.
    """

    def __init__(self, config: Config):
        row = TableRead(config.array_bits, BLOCK_NUMBER_BITS)
        super().__init__(
            {
                "geometry": Out(geometry_read(config)),
                "member": Out(member_read(config)),
                "migration": Out(migration_read(config)),
                "boundary": Out(row),
                "sync": Out(row),
            }
        )
