"""How a block reads and writes lines, and how it gets and returns them."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config


def write_beat(config: Config) -> data.StructLayout:
    """One beat into the line store; ``mask`` has a bit per 32-bit word."""
    return data.StructLayout(
        {
            "address": config.beat_address_bits,
            "data": config.data_width,
            "mask": config.beat_dwords,
        }
    )


def write_port(config: Config) -> stream.Signature:
    """Seen from the writer: a stream of beats; see `hdl.memory.store.write_delay`."""
    return stream.Signature(write_beat(config))


class ReadPort(wiring.Signature):
    """Seen from the reader: a stream of beat addresses and the beats that answer, in order.

    ``response_valid`` cannot be refused: ask only for what there is room for. Beats answer a
    fixed number of cycles (`hdl.memory.store.READ_LATENCY`) after the address was taken.
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
    """A stream of line numbers: lines handed out, or lines given back."""
    return stream.Signature(config.line_bits)
