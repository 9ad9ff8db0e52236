"""Width and memory of the data path."""

from dataclasses import dataclass

from hdl.config.checks import one_of, power_of_two
from hdl.config.sizes import BLOCK_BYTES, DWORDS_PER_BLOCK, PIECES, bits_for_count


@dataclass(frozen=True, kw_only=True)
class DataPath:
    """Part of `hdl.config.Config`.

    Parameters
    ----------
    data_width
        Bits of every data path, W: 64, 128, 256 or 512.
    lines
        On-chip lines of 4 KiB, a power of two.
    banks
        Banks of the line store, a power of two. Beat b of a line lies in bank b mod ``banks``.
    clock_hz
        Clock frequency. It is used only to turn times into cycles.
    """

    data_width: int = 256
    lines: int = 1024
    banks: int = 8
    clock_hz: int = 250_000_000

    def check_data_path(self) -> None:
        """Raises `ValueError` if the data path cannot be built."""
        one_of("data_width", self.data_width, (64, 128, 256, 512))
        power_of_two("lines", self.lines, 16, 1 << 16)
        power_of_two("banks", self.banks, 2, 64)
        if self.banks > self.beats:
            raise ValueError(f"banks must be at most the {self.beats} beats of a line")

    @property
    def beat_bytes(self) -> int:
        """Bytes of a beat, which is what a data path moves in a cycle."""
        return self.data_width // 8

    @property
    def beat_dwords(self) -> int:
        """32-bit words of a beat."""
        return self.data_width // 32

    @property
    def beats(self) -> int:
        """Beats of a block."""
        return BLOCK_BYTES // self.beat_bytes

    @property
    def piece_beats(self) -> int:
        """Beats of a piece of a block."""
        return self.beats // PIECES

    @property
    def line_bits(self) -> int:
        """Width of a line number."""
        return bits_for_count(self.lines)

    @property
    def beat_address_bits(self) -> int:
        """Width of a beat address in the line store: the line number, then the beat."""
        return self.line_bits + bits_for_count(self.beats)

    @property
    def dword_address_bits(self) -> int:
        """Width of a 32-bit word address in the line store: the line number, then the word."""
        return self.line_bits + bits_for_count(DWORDS_PER_BLOCK)
