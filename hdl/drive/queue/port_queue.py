"""What the command queue keeps of each port, and of the commands that it makes of operations."""

from amaranth.lib import data

from hdl.config import BLOCK_NUMBER_BITS, Config, bits_for_count
from hdl.drive.records import BLOCK_COUNT_BITS, operation_bits
from hdl.flow.operation import Opcode
from hdl.flow.recovery import tried_bits
from hdl.kit.optional import optional


def port_queue(config: Config) -> data.StructLayout:
    """The queue of a port: runs of operations that will be one command each, and the tags in use.

    A run is named by its first operation. The remaining fields describe the last run, as long as
    there is one. ``tail`` is its last operation, ``follows`` the block after it, ``blocks`` its
    length, and ``more`` whether its neighbour is expected. With ``alone`` it is complete as it is.
    ``elsewhere``, ``dated`` and ``restarts`` are those of its operations.
    """
    number = operation_bits(config)
    restarts = {"dated": 1, "restarts": tried_bits(config)}
    return data.StructLayout(
        {
            "runs": bits_for_count(config.operations + 1),
            "first": number,
            "last": number,
            "tail": number,
            "opcode": Opcode,
            "fua": 1,
            "more": 1,
            "alone": 1,
            **optional(config.slow_read_ms, {"elsewhere": 1}),
            **optional(config.background, restarts),
            "blocks": BLOCK_COUNT_BITS,
            "follows": BLOCK_NUMBER_BITS,
            "tags": config.drive_tags,
        }
    )


def run(config: Config) -> data.StructLayout:
    """A run: its last operation and its length."""
    return data.StructLayout({"tail": operation_bits(config), "blocks": BLOCK_COUNT_BITS})


def span(config: Config) -> data.StructLayout:
    """The operations of a command that has been sent, and its length."""
    number = operation_bits(config)
    return data.StructLayout({"head": number, "tail": number, "blocks": BLOCK_COUNT_BITS})
