"""The backup unit: a flash with a supply of its own, which outlives the power."""

from dataclasses import dataclass

from hdl.config.background import Background
from hdl.config.checks import in_range
from hdl.config.drives import Drives
from hdl.config.sizes import LIST_RECORDS, MOST_LISTS, REPLAY_LINES, bits_for_count


@dataclass(frozen=True, kw_only=True)
class Backup(Drives, Background):
    """Part of `hdl.config.Config`.

    Parameters
    ----------
    backup_blocks
        Blocks of the backup flash that the card uses, at the last drive port. With 0, which is the
        default, there is no backup unit, and all ports are for drives. It needs ``metadata`` and
        ``intent_chunks``.
    backup_wait_ms
        How long the flash is waited for when power comes.
    """

    backup_blocks: int = 0
    backup_wait_ms: int = 1000

    def check_backup(self) -> None:
        """Raises `ValueError` if there is no such backup unit."""
        in_range("backup_wait_ms", self.backup_wait_ms, 1, 60_000)
        if not self.backup_blocks:
            return
        if not self.durable_marks:
            raise ValueError("backup_blocks needs metadata and intent_chunks")
        if self.ports < 3:
            raise ValueError(
                f"backup_blocks takes the last of {self.ports} ports, and leaves fewer than 2"
            )
        least = self.least_backup_blocks
        most = LIST_RECORDS * MOST_LISTS
        if not least <= self.backup_blocks <= most:
            raise ValueError(
                f"backup_blocks must be 0 or {least}..{most}, not {self.backup_blocks}"
            )

    @property
    def backup_lists(self) -> int:
        """Blocks of the flash that are kept for lists of what is saved."""
        return -(-self.backup_blocks // LIST_RECORDS)

    @property
    def backup_overhead(self) -> int:
        """Blocks of the flash before the first one with data: a head and the lists."""
        return 1 + self.backup_lists

    @property
    def least_backup_blocks(self) -> int:
        """Blocks that a backup unit must be able to save: whatever a row writes, twice."""
        return self.backup_overhead + 4 * self.ports

    @property
    def backup_port(self) -> int:
        """The port of the flash."""
        return self.ports - 1

    @property
    def arrays_ports(self) -> int:
        """A bit for each port that may have a drive of arrays."""
        ports = self.ports - bool(self.backup_blocks)
        return (1 << ports) - 1

    @property
    def replay_bits(self) -> int:
        """Width of the number of a line that what is replayed passes through."""
        return bits_for_count(REPLAY_LINES)
