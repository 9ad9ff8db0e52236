"""What has been done to read a block that could not be read at once."""

from amaranth.lib import data

from hdl.config import ERA_BITS, Config, bits_for_count
from hdl.kit.optional import optional

ROUNDS = 2
"""Times that each copy of a block is asked for it at most."""


def tried_bits(config: Config) -> int:
    """Width of how often a block has been tried, and of how often a drive has restarted."""
    return bits_for_count(ROUNDS * config.ports + config.drive_resets + 4)


def recovery(config: Config) -> data.StructLayout:
    """What has been done to read a block; all 0 in a command from the host.

    ``again``: the block is read alone, by a drive command that covers nothing else. ``tried``: how
    many times a drive could not give it, drives passed over included; of a flush (with
    ``background``), how often the drive had restarted before. ``copy``: the copy that was asked
    last. With ``background``: ``medium``, its drive cannot read the block; ``ordered``, it was
    asked because it is the only one, or those before it could not be read, as is done where copies
    may differ; ``era``, of its array as it was asked: in another one that says nothing.
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
