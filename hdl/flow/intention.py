"""A row that is about to be written, as the write-intent bitmap gets it."""

from amaranth.lib import data

from hdl.config import BLOCK_NUMBER_BITS, Config


def intention(config: Config) -> data.StructLayout:
    """Row ``row`` of ``array`` is about to be written, in row slot ``slot``, until the slot
    retires."""
    return data.StructLayout(
        {"slot": config.row_slot_bits, "array": config.array_bits, "row": BLOCK_NUMBER_BITS}
    )
