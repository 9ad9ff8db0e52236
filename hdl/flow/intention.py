"""A row that is about to be written, as the write-intent bitmap gets it."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.host_command import completion
from hdl.kit.optional import optional


def intention(config: Config) -> data.StructLayout:
    """Row ``row`` of ``array`` is about to be written, in row slot ``slot``, until the slot
    retires.

    With ``asks`` it is written once the drives of the array say so as well
    (`hdl.metadata.stored_marks`). Only with `Config.durable_marks`.
    """
    return data.StructLayout(
        {"slot": config.row_slot_bits, "array": config.array_bits, "row": BLOCK_NUMBER_BITS}
        | optional(config.durable_marks, {"asks": 1})
    )


def marked_row(config: Config) -> data.StructLayout:
    """The row in row slot ``slot`` is marked, in ``chunk`` of ``array``."""
    return data.StructLayout(
        {"slot": config.row_slot_bits, "array": config.array_bits, "chunk": config.chunk_bits}
    )


def flushing(config: Config) -> data.StructLayout:
    """The host command in command slot ``slot`` is a FLUSH of ``array``.

    The drives of the array have not been asked yet.
    """
    return data.StructLayout({"slot": config.slot_bits, "array": config.array_bits})


class FlushEvents(wiring.Signature):
    """Flushes that begin, and host commands that end, seen from the engine.

    Ports
    -----
    flush
        A pulse. ``flushing`` begins.
    flushing
        A FLUSH of an array.
    completed
        A pulse. ``completion`` ends.
    completion
        A host command, and how it ended.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "flush": Out(1),
                "flushing": Out(flushing(config)),
                "completed": Out(1),
                "completion": Out(completion(config)),
            }
        )


class WriteEvents(wiring.Signature):
    """What the write-intent bitmap hears of writes and flushes, seen from the engine.

    Ports
    -----
    begun
        A row is about to be written.
    retired
        A row slot has been given back.
    flushes
        Flushes, and how they ended.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "begun": Out(stream.Signature(intention(config))),
                "retired": Out(stream.Signature(config.row_slot_bits)),
                "flushes": Out(FlushEvents(config)),
            }
        )
