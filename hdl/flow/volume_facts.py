"""What a volume keeps as long as it lives, besides where it lies."""

from amaranth.lib import data

from hdl.config import Config
from hdl.kit.table import TableRead

OWN_BITS = 64

COUNT_BITS = 40
"""Volumes since power-up are counted as wide as the last part of an NGUID is."""


def volume_name() -> data.StructLayout:
    """What makes the NGUID of a volume: 64 bits of the card and a power-up of it, and how many
    volumes had been created since that (`hdl.nvme.admin.names`)."""
    return data.StructLayout({"own": OWN_BITS, "count": COUNT_BITS})


def volume_facts() -> data.StructLayout:
    """A volume's name, and its format: ``sectors`` and ``coarse`` of
    `hdl.nvme.commands.formats.formats`."""
    return data.StructLayout({"name": volume_name(), "sectors": 1, "coarse": 1})


def volume_facts_read(config: Config) -> TableRead:
    """Reads the facts of a volume."""
    return TableRead(config.volume_bits, volume_facts())
