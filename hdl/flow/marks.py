"""Marks of the write-intent bitmap, as those get them who keep them on the drives."""

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.intention import marked_row
from hdl.kit.pulse import Pulse
from hdl.kit.table import TableRead

BIT_BITS = 5
WORD_BITS = 1 << BIT_BITS
"""Chunks of a word of the bitmap."""


def word_number_bits(config: Config) -> int:
    """Width of the number of a word of the bitmap of an array. There may be one only."""
    return max(0, config.chunk_bits - BIT_BITS)


def marks_address(config: Config) -> data.StructLayout:
    """A word of a plane of an array."""
    return data.StructLayout(
        {"word": word_number_bits(config), "array": config.array_bits, "plane": 1}
    )


def marks_word(config: Config) -> data.StructLayout:
    """Chunks of a word of an array, a bit each."""
    return data.StructLayout(
        {"word": word_number_bits(config), "array": config.array_bits, "marks": WORD_BITS}
    )


def chunk_shift(m: Module, last_row: Value, config: Config, name: str) -> Signal:
    """log2 of the rows of a chunk, combinational: the least of which there are enough chunks."""
    found = Signal(range(BLOCK_NUMBER_BITS), name=name)
    for bit in range(config.chunk_bits, BLOCK_NUMBER_BITS):
        with m.If(last_row[bit]):
            m.d.comb += found.eq(bit + 1 - config.chunk_bits)
    return found


class Marks(wiring.Signature):
    """The marks of all arrays, seen from who keeps them on the drives.

    Marks are made in the newer plane, and go from the older one to the newer one. Who reads a word
    of the older plane, and in the next cycle that of the other one, misses none. The planes may
    change places in between: then the first one was empty.

    Ports
    -----
    read
        A word of a plane.
    planes
        One bit per array. Which of its planes has the newer marks.
    dropped
        A pulse. Marks of this array have been dropped.
    marked
        Rows that ask. They are marked.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "read": Out(TableRead(marks_address(config), WORD_BITS)),
                "planes": In(config.arrays),
                "dropped": In(Pulse(config.array_bits)),
                "marked": In(stream.Signature(marked_row(config))),
            }
        )
