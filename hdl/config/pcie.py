"""The capacity of the PCIe hard block."""

from dataclasses import dataclass

from hdl.config.checks import power_of_two
from hdl.config.data_path import DataPath
from hdl.config.sizes import STRADDLE_WIDTH, UNSTRADDLED_COMPLETIONS


@dataclass(frozen=True, kw_only=True)
class Pcie(DataPath):
    """Part of `hdl.config.Config`.

    Parameters
    ----------
    read_tags
        PCIe memory read requests outstanding, a power of two up to 256.
    completion_headers
        Completion headers that the PCIe hard block buffers. Space is reserved before a request.
        `completions_outstanding` says how many of them are used.
    completion_straddle
        The RC interface of a block of 256 or 512 bits is configured with its straddle option. A
        completion may then begin in the beat in which another one ends (`hdl.pcie.phy.straddle`).
        Narrower blocks have no such option, and this has no effect on them.
    completion_address_bits
        Bits of a completion's lower address that the PCIe block reports: 12 (UltraScale+) or 7 (as
        many as the link carries).
    completion_bytes
        Completion payload that the block buffers. A 16-byte credit for each header is kept from it
        as well. With 0 it has at least 64 bytes a header, and the read completion boundary does not
        matter.
    """

    read_tags: int = 64
    completion_headers: int = 256
    completion_straddle: bool = True
    completion_address_bits: int = 12
    completion_bytes: int = 32768

    def check_pcie(self) -> None:
        """Raises `ValueError` if no hard block can be like this."""
        power_of_two("read_tags", self.read_tags, 2, 256)
        if self.completion_address_bits not in (7, 12):
            raise ValueError(
                f"completion_address_bits must be 7 or 12, not {self.completion_address_bits}"
            )
        if self.completion_headers < 8:
            raise ValueError(
                f"completion_headers must be at least 8, not {self.completion_headers}"
            )
        if self.completion_bytes and self.completion_bytes < 2048:
            raise ValueError(
                f"completion_bytes must be 0 or at least 2048, not {self.completion_bytes}"
            )

    @property
    def straddles(self) -> bool:
        """Whether completions straddle. Two may share a beat of 256 bits, four may share one of
        512."""
        return self.completion_straddle and self.data_width >= STRADDLE_WIDTH

    @property
    def completions_outstanding(self) -> int:
        """Most completions that may be on their way at once.

        These are as many as the hard block has headers for. From 256 bits on without straddling
        they are fewer than 64, since RC then takes short completions slower than the link brings
        them (PG213, "Straddle Option on RC Interface"). Data on its way is then at most 4032 bytes
        where completions may end every 64.
        """
        if self.data_width >= STRADDLE_WIDTH and not self.straddles:
            return min(self.completion_headers, UNSTRADDLED_COMPLETIONS)
        return self.completion_headers
