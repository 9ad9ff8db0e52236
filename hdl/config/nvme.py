"""The NVMe controller that the host sees."""

from dataclasses import dataclass

from hdl.config.checks import in_range, power_of_two
from hdl.config.sizes import bits_for_count


@dataclass(frozen=True, kw_only=True)
class Nvme:
    """Part of `hdl.config.Config`.

    Parameters
    ----------
    commands
        Host I/O commands inside the controller at once, a power of two.
    queue_pairs
        NVMe I/O queue pairs.
    queue_depth
        Most entries of an NVMe I/O queue (CAP.MQES + 1), a power of two.
    transfer_blocks
        Longest host transfer in blocks, a power of two (NVMe MDTS).
    error_log_entries
        Entries of the NVMe error log (ELPE + 1), a power of two.
    async_event_limit
        NVMe Asynchronous Event Requests held at once (AERL + 1), 1..16.
    report_capacity
        Identify Controller reports the capacity of all arrays and the part that is free (TNVMCAP,
        UNVMCAP). It takes some 400 LUTs. Without it both are 0.
    abort_commands
        Abort ends I/O commands that have not started or have parts left. It takes some 150 LUTs.
        Without it Abort ends only Asynchronous Event Requests.
    compare_and_deallocate
        NVMe commands Compare and Dataset Management. They take some 500 LUTs, a line and a 4th
        table reader. Without it they are unknown opcodes.
    sector_emulation
        Volumes may have 512-byte sectors for the host (512e). Without it all have 4096-byte ones.
    temperature_kelvin
        Composite temperature that a board without a sensor reports.
    """

    commands: int = 512
    queue_pairs: int = 8
    queue_depth: int = 1024
    transfer_blocks: int = 32
    error_log_entries: int = 16
    async_event_limit: int = 4
    report_capacity: bool = True
    abort_commands: bool = True
    compare_and_deallocate: bool = True
    sector_emulation: bool = True
    temperature_kelvin: int = 308

    def check_nvme(self) -> None:
        """Raises `ValueError` if NVMe does not allow a size, or the tables cannot be built."""
        in_range("queue_pairs", self.queue_pairs, 1, 64)
        in_range("async_event_limit", self.async_event_limit, 1, 16)
        in_range("temperature_kelvin", self.temperature_kelvin, 1, 65535)
        power_of_two("commands", self.commands, 2, 4096)
        power_of_two("queue_depth", self.queue_depth, 4, 1 << 15)
        power_of_two("transfer_blocks", self.transfer_blocks, 2, 64)
        power_of_two("error_log_entries", self.error_log_entries, 2, 64)

    @property
    def fetched_commands(self) -> int:
        """Host I/O commands inside the controller at most. Each has an entry of its completion
        queue reserved, and a queue of n entries has room for n - 1."""
        return self.queue_pairs * (self.queue_depth - 1)

    @property
    def slot_bits(self) -> int:
        """Width of a host command slot number."""
        return bits_for_count(self.commands)

    @property
    def command_blocks(self) -> int:
        """Most blocks that a host command touches. It is one more where sectors need not be
        aligned."""
        return self.transfer_blocks + self.sector_emulation

    @property
    def offset_bits(self) -> int:
        """Width of a block's index in its host command."""
        return bits_for_count(self.command_blocks)

    @property
    def transfer_bits(self) -> int:
        """Width of a block's index in a transfer of ``transfer_blocks``."""
        return bits_for_count(self.transfer_blocks)
