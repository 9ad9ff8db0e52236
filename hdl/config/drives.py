"""Drive ports, and time limits of drives."""

from dataclasses import dataclass

from hdl.config.checks import in_range, power_of_two
from hdl.config.sizes import MAX_DRIVES, bits_for_count


@dataclass(frozen=True, kw_only=True)
class Drives:
    """Part of `hdl.config.Config`.

    Parameters
    ----------
    ports
        Drive ports, 2..32.
    operations
        Drive operations queued or running at once over all ports, a power of two.
    drive_tags
        Commands outstanding per drive, 1..32.
    command_timeout_ms
        A drive command that takes longer is aborted. With 0 it never is, and the logic for it is
        left out.
    abort_timeout_ms
        If an aborted command takes longer to end, its port is reset.
    slow_read_ms
        If a host's read of one drive takes longer, the data is read from the other drives, as long
        as the array has redundancy left. Only with ``background``. With 0 this never happens, and
        the logic is left out.
    drive_resets
        Port resets, 0..3, that are forgiven. A drive is given up at the next one.
    drive_reset_window_s
        Port resets are forgotten each time that this many seconds, rounded up to a power of two
        clock cycles, have passed.
    """

    ports: int = 8
    operations: int = 2048
    drive_tags: int = 32
    command_timeout_ms: int = 8000
    abort_timeout_ms: int = 500
    slow_read_ms: int = 0
    drive_resets: int = 1
    drive_reset_window_s: int = 3600

    def check_drives(self) -> None:
        """Raises `ValueError` if such ports or time limits are impossible."""
        in_range("ports", self.ports, 2, MAX_DRIVES)
        in_range("drive_tags", self.drive_tags, 1, 32)
        in_range("command_timeout_ms", self.command_timeout_ms, 0, 60_000)
        in_range("abort_timeout_ms", self.abort_timeout_ms, 1, 60_000)
        in_range("slow_read_ms", self.slow_read_ms, 0, self.command_timeout_ms)
        in_range("drive_resets", self.drive_resets, 0, 3)
        in_range("drive_reset_window_s", self.drive_reset_window_s, 1, 1 << 20)
        power_of_two("operations", self.operations, 16, 1 << 16)

    @property
    def port_bits(self) -> int:
        """Width of a drive port number. It is fixed, so that tables have one shape."""
        return bits_for_count(MAX_DRIVES)

    @property
    def tag_bits(self) -> int:
        """Width of a drive tag."""
        return bits_for_count(self.drive_tags)
