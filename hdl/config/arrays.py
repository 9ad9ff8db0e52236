"""Arrays, volumes, and the rows that are on their way."""

from dataclasses import dataclass

from hdl.config.checks import in_range, power_of_two
from hdl.config.sizes import bits_for_count


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Part of `hdl.config.Config`.

    Parameters
    ----------
    arrays, volumes
        Entries of the array table and of the volume table, powers of two.
    parities
        Syndromes that the parity engine computes, 1..4.
    rows
        Rows being written or reconstructed at once, a power of two.
    gather_reads
        Sequential reads of an array with parity that has lost a drive are gathered by row, so that
        each block is read once. Otherwise each lost block reads its row. Only with ``background``.
    array_shares
        Each array has a share of the resources that all arrays use, so that an array whose drives
        hang does not make the others wait (`hdl.array.shares.shares`). The controller must have
        enough for ``arrays`` reserves. Without shares, which is the default, an array may have
        everything.
    early_rows
        Rows of host reads whose lost block is worked out piece by piece while the others land, a
        power of two up to 16 and ``rows``. With 0 each row waits for whole blocks, and the logic is
        left out.
    """

    arrays: int = 8
    volumes: int = 16
    parities: int = 2
    rows: int = 512
    gather_reads: bool = True
    array_shares: bool = False
    early_rows: int = 8

    def check_arrays(self) -> None:
        """Raises `ValueError` if the tables cannot be built."""
        in_range("parities", self.parities, 1, 4)
        power_of_two("rows", self.rows, 4, 4096)
        power_of_two("arrays", self.arrays, 2, 256)
        power_of_two("volumes", self.volumes, 2, 256)
        if self.early_rows not in (0, 1, 2, 4, 8, 16):
            raise ValueError(
                f"early_rows must be 0 or a power of two up to 16, not {self.early_rows}"
            )
        if self.early_rows > self.rows:
            raise ValueError(f"early_rows must be at most rows, {self.rows}")

    @property
    def row_slot_bits(self) -> int:
        """Width of a row slot number."""
        return bits_for_count(self.rows)

    @property
    def array_bits(self) -> int:
        """Width of an array number."""
        return bits_for_count(self.arrays)

    @property
    def volume_bits(self) -> int:
        """Width of a volume number."""
        return bits_for_count(self.volumes)
