"""What all arrays use: how much of it there is, and how much is kept for whom."""

from dataclasses import dataclass

from hdl.config.arrays import Arrays
from hdl.config.background import Background
from hdl.config.data_path import DataPath
from hdl.config.drives import Drives
from hdl.config.nvme import Nvme
from hdl.config.sizes import LEAVING, LINE_USERS, MENDED, OPERATIONS_PER_BLOCK


@dataclass(frozen=True, kw_only=True)
class Shares(DataPath, Nvme, Arrays, Drives, Background):
    """Part of `hdl.config.Config`: what follows from the sizes of several others."""

    def check_shares(self) -> None:
        """Whether there is enough for the reserves of all arrays, if they have shares."""
        if not self.array_shares:
            return
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
        """Lines that each of the `LINE_USERS` leaves to those before it and to the drives.

        The last line is the drives': a port can be held by what it has read for the host, and the
        launched rows, that have all others, by the port.
        """
        return 0, 1, 0, self.line_reserve

    @property
    def line_reserve(self) -> int:
        """Lines that only rows already launched may take, so that the widest row can finish.

        Such a row takes at most a line a drive; as many may hold blocks that drives have not sent
        whole, and one is on offer to each user. Fewer than that in tables too small for a whole
        controller.
        """
        return min(2 * self.ports + LINE_USERS, self.lines - LINE_USERS)

    @property
    def least_lines(self) -> int:
        """Lines that a whole controller needs, so that the host's blocks get some beside
        `line_reserve`: one on offer to each user."""
        return 2 * self.ports + 2 * LINE_USERS

    @property
    def command_cost(self) -> int:
        """What a host command counts for at most as to what an array may have, in blocks.

        A FLUSH counts for its drive operations, in blocks of `OPERATIONS_PER_BLOCK`.
        """
        return max(self.command_blocks, -(-self.ports // OPERATIONS_PER_BLOCK))

    def blocks_found(self) -> dict[str, int]:
        """For how many blocks of host commands each of these is enough, whatever else there is.

        A block needs a row slot, a place to be parked, a line, and `OPERATIONS_PER_BLOCK` drive
        operations. Walks need row slots and places as well. Rows have no more operations beyond
        those of their blocks than `shared_lines`, and a drive has one of the controller's flushes.
        """
        walks = self.walk_window + MENDED + LEAVING if self.background else 0
        operations = self.operations - self.shared_lines - self.ports
        return {
            "rows": self.rows - walks,
            "commands": self.commands - walks,
            "lines": self.lines // 2,
            "operations": operations // OPERATIONS_PER_BLOCK,
        }

    @property
    def shared_blocks(self) -> int:
        """Blocks of host commands on their way at once, while there are several arrays; 0 without
        ``array_shares``."""
        return min(self.blocks_found().values()) if self.array_shares else 0

    @property
    def shared_lines(self) -> int:
        """Lines that rows work with, beside those of the host's blocks, while there are several
        arrays."""
        return self.lines - self.lines // 2 - self.line_reserve
