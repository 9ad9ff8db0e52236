"""The tables of arrays, members, volumes, ports and copies, and how they are read."""

from amaranth.lib import data

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
    """Which member: array, and position 0..31 over all spans (span * width + place in the span)."""
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
    """Which array a drive port belongs to, if any."""
    return data.StructLayout({"used": 1, "array": 8})


def port_read(config: Config) -> TableRead:
    """Reads the use of a drive port."""
    return TableRead(config.port_bits, port_use(config))


def copy_entry(config: Config) -> data.StructLayout:
    """The copy of an array, if ``valid``: the member at ``position`` is being copied to the drive
    at ``port``, which gets every write that the member gets. ``spare``: the drive that it leaves
    becomes a hot spare."""
    return data.StructLayout({"valid": 1, "spare": 1, "position": 5, "port": config.port_bits})


def copy_read(config: Config) -> TableRead:
    """Reads the copy of an array."""
    return TableRead(config.array_bits, copy_entry(config))
