"""Resources that all arrays use: how many there are, and how many are kept for each user."""

from dataclasses import dataclass

from hdl.config.arrays import Arrays
from hdl.config.backup import Backup
from hdl.config.data_path import DataPath
from hdl.config.nvme import Nvme
from hdl.config.sizes import (
    BACKUP_OPERATIONS,
    LEAVING,
    LINE_USERS,
    MENDED,
    OPERATIONS_PER_BLOCK,
    SUPERBLOCK_LINES,
)


@dataclass(frozen=True, kw_only=True)
class Shares(DataPath, Nvme, Arrays, Backup):
    """Part of `hdl.config.Config`: values that follow from the sizes of several other parts."""

    def check_shares(self) -> None:
        """Raises `ValueError` if the arrays have shares, and there is not enough for the reserves
        of all."""
        if not self.array_shares:
            return
        if self.commands < self.fetched_commands:
            raise ValueError(
                f"array_shares needs a command slot for each completion that the queues hold,"
                f" {self.queue_pairs} x {self.queue_depth - 1}: there are {self.commands}"
            )
        found = self.blocks_found()
        scarcest = min(found, key=lambda size: found[size])
        blocks, lines = self.arrays * self.command_cost, self.arrays * self.ports
        if found[scarcest] < blocks:
            raise ValueError(
                f"array_shares needs {self.command_cost} blocks on their way for each of"
                f" {self.arrays} arrays, {blocks}: {scarcest} are enough for"
                f" {max(found[scarcest], 0)}"
            )
        if self.shared_lines < lines:
            raise ValueError(
                f"array_shares needs {self.ports} lines of rows for each of {self.arrays} arrays,"
                f" {lines}: {self.lines} lines leave {max(self.shared_lines, 0)}"
            )

    @property
    def line_reserves(self) -> tuple[int, ...]:
        """Lines that each of the `LINE_USERS` leaves to the users before it and to the drives.

        The last line is for the drives. A port can be held up by blocks that it has read for the
        host, and the launched rows, which hold all other lines, can be held up by the port.
        """
        return 0, 1, 0, self.line_reserve

    @property
    def line_reserve(self) -> int:
        """Lines that only rows already launched may take, so that the widest row can finish.

        Such a row takes at most a line for each drive. As many lines may hold blocks that drives
        have not sent whole. One line is on offer to each user. In tables too small for a whole
        controller the reserve is smaller.
        """
        return min(2 * self.ports + LINE_USERS, self.free_lines - LINE_USERS)

    @property
    def page_lines(self) -> int:
        """Lines, the last ones, that are not handed out, because pages of metadata pass through:
        with a backup unit one of its own, the bitmap of each array, and then `moved_pages`."""
        bitmaps = self.arrays if self.durable_marks else 0
        backup = 1 if self.backup_blocks else 0
        return backup + bitmaps + (self.moved_pages if self.metadata else 0)

    @property
    def superblock_lines(self) -> int:
        """Superblocks that are written at once."""
        return min(SUPERBLOCK_LINES, self.ports)

    @property
    def moved_pages(self) -> int:
        """Lines of a `hdl.metadata.page_mover.PageMover`: those of superblocks that are written,
        and the very last one for all other pages."""
        return self.superblock_lines + 1

    @property
    def free_lines(self) -> int:
        """Lines that are handed out. They are the first ones."""
        return self.lines - self.page_lines

    @property
    def least_lines(self) -> int:
        """Lines that a whole controller needs. The host's blocks then get some beside
        `line_reserve`: one on offer to each user."""
        return 2 * self.ports + 2 * LINE_USERS + self.page_lines

    @property
    def command_cost(self) -> int:
        """Most blocks that a host command counts for against the share of its array.

        A FLUSH counts for its drive operations, in blocks of `OPERATIONS_PER_BLOCK`.
        """
        return max(self.command_blocks, -(-self.ports // OPERATIONS_PER_BLOCK))

    def blocks_found(self) -> dict[str, int]:
        """How many blocks of host commands each resource is enough for, if the others are not
        scarce.

        A block needs a row slot, a place to be parked, a line, and `OPERATIONS_PER_BLOCK` drive
        operations. Walks need row slots and places as well. Beyond the operations of its blocks,
        all rows have at most `shared_lines` operations. Each drive has two flushes of the
        controller itself, one of them for rows, and with `durable_marks` a page. With `metadata`
        there are `moved_pages` as well, and with a backup unit `BACKUP_OPERATIONS`.
        """
        walks = self.walk_window + MENDED + LEAVING if self.background else 0
        operations = self.operations - self.shared_lines
        operations -= (2 + self.durable_marks) * self.ports
        operations -= self.moved_pages if self.metadata else 0
        operations -= BACKUP_OPERATIONS if self.backup_blocks else 0
        return {
            "rows": self.rows - walks,
            "commands": self.commands - walks,
            "lines": self.lines // 2,
            "operations": operations // OPERATIONS_PER_BLOCK,
        }

    @property
    def shared_blocks(self) -> int:
        """Blocks of host commands on their way at once, while there are several arrays. It is 0
        without ``array_shares``."""
        return min(self.blocks_found().values()) if self.array_shares else 0

    @property
    def shared_lines(self) -> int:
        """Lines that rows work with while there are several arrays. Lines of the host's blocks are
        not counted."""
        return self.free_lines - self.lines // 2 - self.line_reserve
