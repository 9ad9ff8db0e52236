"""The record of what has been done to read a block that could not be read at once."""

from amaranth.lib import data

from hdl.config import ERA_BITS, Config, bits_for_count
from hdl.kit.optional import optional

ROUNDS = 2
"""How many times each copy of a block is read at most."""


def tried_bits(config: Config) -> int:
    """Width of the number of tries of a block, and of the number of restarts of a drive."""
    return bits_for_count(ROUNDS * config.ports + config.drive_resets + 4)


def recovery(config: Config) -> data.StructLayout:
    """What has been done to read a block. All fields are 0 in a command from the host.

    Fields
    ------
    again
        The block is read alone, by a drive command that covers nothing else.
    tried
        How many times a drive could not give the block. Drives that were passed over count. Of a
        flush (with ``background``): how often the drive had restarted before.
    copy
        The copy that was asked last.
    medium
        The drive of the block cannot read it. Only with ``background``.
    ordered
        The copy was asked because it is the only one, or because those before it could not be read.
        This order is used where copies may differ. Only with ``background``.
    era
        The era of the array when the copy was asked. In another era the result says nothing. Only
        with ``background``.
    """
    background = optional(config.background, {"medium": 1, "ordered": 1, "era": ERA_BITS})
    return data.StructLayout(
        {
            "again": 1,
            "tried": tried_bits(config),
            "copy": bits_for_count(config.ports),
            **background,
        }
    )
