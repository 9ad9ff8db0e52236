"""All sizes of a controller in one validated record."""

from dataclasses import dataclass

from hdl.config.pcie import Pcie
from hdl.config.shares import Shares
from hdl.config.sizes import MOST_STORED_VOLUMES, REPLAY_LINES


@dataclass(frozen=True, kw_only=True)
class Config(Pcie, Shares):
    """All sizes of one controller.

    They are those of `hdl.config.data_path.DataPath`, `hdl.config.pcie.Pcie`,
    `hdl.config.nvme.Nvme`, `hdl.config.arrays.Arrays`, `hdl.config.drives.Drives`,
    `hdl.config.background.Background` and `hdl.config.backup.Backup`.

    Raises
    ------
    ValueError
        A size is out of range, or does not fit another one. The message says which.
    """

    def __post_init__(self) -> None:
        self.check_data_path()
        self.check_pcie()
        self.check_nvme()
        self.check_arrays()
        self.check_drives()
        self.check_background()
        self.check_backup()
        if self.slow_read_ms and not self.background:
            raise ValueError("slow_read_ms needs background, which knows what arrays have left")
        if self.gather_reads and not self.background:
            raise ValueError("gather_reads needs background, which knows what arrays have left")
        if self.metadata and self.volumes > MOST_STORED_VOLUMES:
            raise ValueError(
                f"metadata has room for {MOST_STORED_VOLUMES} volumes, not for {self.volumes}"
            )
        if self.backup_blocks and self.free_lines < REPLAY_LINES:
            raise ValueError(
                f"backup_blocks needs {REPLAY_LINES} lines beside those of metadata: {self.lines}"
                f" lines leave {self.free_lines}"
            )
        self.check_shares()
