"""Streams and ports to read and write lines, and to get and return them."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config


def write_beat(config: Config) -> data.StructLayout:
    """One beat into the line store. ``mask`` has a bit for each 32-bit word."""
    return data.StructLayout(
        {
            "address": config.beat_address_bits,
            "data": config.data_width,
            "mask": config.beat_dwords,
        }
    )


def write_port(config: Config) -> stream.Signature:
    """A stream of beats, seen from the writer. See `hdl.memory.store.write_delay`."""
    return stream.Signature(write_beat(config))


class ReadPort(wiring.Signature):
    """A stream of beat addresses and the beats that answer them in order, seen from the reader.

    The reader cannot refuse ``response_valid``. It may ask only for beats that it has room for. A
    beat answers a fixed number of cycles (`hdl.memory.store.READ_LATENCY`) after its address was
    taken.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "request": Out(stream.Signature(config.beat_address_bits)),
                "response_valid": In(1),
                "response": In(config.data_width),
            }
        )


def line_stream(config: Config) -> stream.Signature:
    """A stream of line numbers. It hands out lines, or gives them back."""
    return stream.Signature(config.line_bits)


class LineAccess(wiring.Signature):
    """Lines and what stands in them, seen from who uses them.

    Ports
    -----
    allocate
        Lines for the user.
    free
        Lines that it gives back.
    write
        Beats into lines.
    read
        Beats out of lines.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "allocate": In(line_stream(config)),
                "free": Out(line_stream(config)),
                "write": Out(write_port(config)),
                "read": Out(ReadPort(config)),
            }
        )
