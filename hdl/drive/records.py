"""What the parts of `hdl.drive.drives.Drives` tell each other."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.drive_port import MERGE_BLOCKS
from hdl.flow.operation import DriveStatus, operation
from hdl.flow.piece import early

PATHS = 2
"""Paths each way between the line store and the ports; port p is on path p mod 2."""

BURST_BEATS = 8
"""Beats that a path moves for one port before it may turn to another; divides a block."""

BURST_BITS = bits_for_count(BURST_BEATS)

FIFO_BURSTS = 4
"""Bursts that a port holds each way."""

FIFO_BITS = bits_for_count(FIFO_BURSTS)

BLOCK_COUNT_BITS = bits_for_count(MERGE_BLOCKS + 1)
"""Width of a number of blocks, 0..MERGE_BLOCKS."""


def operation_bits(config: Config) -> int:
    """Width of the number of a queued operation."""
    return bits_for_count(config.operations)


def path_ports(config: Config, path: int) -> int:
    """Ports on a path."""
    return len(range(path, config.ports, PATHS))


def place_bits(config: Config) -> int:
    """Width of a port's place on its path."""
    return bits_for_count(path_ports(config, 0))


def bursts(config: Config) -> int:
    """Bursts of a block."""
    return config.beats // BURST_BEATS


def piece_bursts(config: Config) -> int:
    """Bursts of a piece of a block."""
    return config.piece_beats // BURST_BEATS


def queued_operation(config: Config) -> data.StructLayout:
    """An operation as it is kept until it ends."""
    forgotten = ("port", "more", "alone")
    members = {name: field.shape for name, field in operation(config) if name not in forgotten}
    return data.StructLayout(members)


def command_tag(config: Config) -> data.StructLayout:
    """A tag of a port, also the address of its command."""
    return data.StructLayout({"tag": config.tag_bits, "port": bits_for_count(config.ports)})


def command_start(config: Config) -> data.StructLayout:
    """A command is about to be sent; its first operation is ``operation``."""
    return data.StructLayout({"command": command_tag(config), "operation": operation_bits(config)})


def command_end(config: Config) -> data.StructLayout:
    """A command has ended and none of its data is on the way; ``moved`` blocks went through."""
    return data.StructLayout(
        {"command": command_tag(config), "status": DriveStatus, "moved": BLOCK_COUNT_BITS}
    )


class PathControl(wiring.Signature):
    """Blocks that a path shall move, seen from the block control. Vectors have a bit per port.

    A port has two slots, so that its next block is ready when the current one ends. ``load``: the
    block in ``line`` goes to slot ``load_slot`` of port ``place``, which must be ``free``.
    ``ended``: every beat of the block in slot ``end_slot`` has been moved; ``unload`` frees it.
    ``early``: that of the operation, for a read.
    """

    def __init__(self, config: Config, ports: int):
        super().__init__(
            {
                "place": Out(place_bits(config)),
                "load": Out(1),
                "line": Out(config.line_bits),
                "unload": Out(1),
                "free": In(ports),
                "load_slot": In(ports),
                "ended": In(ports),
                "end_slot": In(ports),
                "early": Out(early(config)),
            }
        )


class ReadControl(wiring.Signature):
    """What a read path needs beyond `PathControl`.

    ``want``: a block of tag ``tag`` (of port ``peek``, a cycle later) has begun to arrive and waits
    for its line; ``load`` answers. ``inside``: a block has begun, its last beat is still to come.
    ``hold``: take no data from these ports. ``quiet``: nothing of port ``place`` but less than a
    burst of the block that is arriving; only then, ``discard`` forgets that block.
    """

    def __init__(self, config: Config, ports: int):
        super().__init__(
            {
                "peek": Out(place_bits(config)),
                "tag": In(config.tag_bits),
                "want": In(ports),
                "inside": In(ports),
                "hold": Out(ports),
                "quiet": In(1),
                "discard": Out(1),
            }
        )
