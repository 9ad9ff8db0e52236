"""Parameters of the native models: PCIe link and host memory, drives, expanders.

Frozen, keyword-only, validated. Times are picoseconds, rates bytes a second, sizes bytes unless the
name says otherwise; ``blocks`` are 4096 bytes.
"""

from dataclasses import dataclass, fields, replace

from hdl.config import BLOCK_BYTES

NANOSECOND = 1_000
MICROSECOND = 1_000_000
MILLISECOND = 1_000_000_000
SECOND = 1_000_000_000_000
MEBIBYTE = 1 << 20

UNLIMITED = 0
"""A rate of 0 means no limit."""


def check(name: str, value: int, least: int, most: int) -> None:
    """Raises an error for a parameter out of its range."""
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least}..{most}, not {value}")


def _check_power(name: str, value: int, least: int, most: int) -> None:
    if value & (value - 1) or not least <= value <= most:
        raise ValueError(f"{name} must be a power of two in {least}..{most}, not {value}")


@dataclass(frozen=True, kw_only=True)
class LinkParameters:
    """PCIe link, hard block and host memory.

    Parameters
    ----------
    generation, lanes
        1..5; 1, 2, 4, 8 or 16. They set line rate, encoding and framing.
    max_payload, max_read_request, rcb
        Initial settings of Device Control and Link Control, in bytes. ``status`` shows them to the
        card. `Harness.set_status` changes both.
    completion_bytes
        Completions are cut at multiples of this (0: ``max_payload``), and never longer than that.
    random_splits
        Each completion may end at any earlier multiple of ``rcb``.
    propagation_ps
        One way from hard block to host bridge, both pipelines included.
    memory_read_ps, read_jitter_ps
        From a read's arrival to its first completion, plus a random time up to the jitter.
    shuffle
        Completions of different requests are sent in random order.
    ack_every, update_every
        One ACK, or one UpdateFC DLLP, for so many received TLPs (0: none).
    skip
        SKP ordered sets take their share of the line rate.
    posted_headers, posted_data, non_posted_headers
        Credits that the host grants (data in 16-byte units).
    device_posted_headers, device_non_posted_headers
        Credits that the hard block grants to the host.
    credit_return_ps
        From a TLP's consumption until the credit can be used again.
    completion_headers, completion_data
        The hard block's completion buffer, entries and bytes. An overflow ends the run with an
        error.
    transmit_tlps
        Requests that the hard block buffers before it deasserts ``rq_tready``.
    memory_base, bar_base, msi_base
        Bus addresses of host memory, of BAR 0 and of the 1 MiB interrupt window.
    seed
        Of the random generator for jitter, shuffle, splits, holds and ``ready_percent``.
    hold_every, hold_ps
        One in so many packets (0: none) waits for credits, at random, up to ``hold_ps``. Packets
        that may not pass it wait as well. See `Harness.hold`.
    ready_percent
        Percent of the cycles in which RQ or CC offers a beat and ``tready`` is 1, at random.
    np_req_ps
        ``pcie_cq_np_req`` gives a credit for a register read each so long. Writes pass reads that
        wait (0: it is tied to 1).
    straddle_percent
        Percent of the completions that could begin in the beat in which another one ends, and do,
        at random. Only where the card's `Config.straddles`.
    in_order
        The hard block holds the packets that RQ has given it behind a read that waits for a credit
        (PG213, "Avoiding Head-of-Line Blocking for Posted Requests"). Otherwise writes pass it.
    late_credits
        The host returns the credit of a read once its last completion has left, and not when the
        read arrives. A root complex whose queue of completions is full does so.
    check_vectors
        Interrupt messages are checked against the MSI-X table that the host has written. Off: for a
        device that has no table.
    """

    generation: int = 3
    lanes: int = 8
    max_payload: int = 256
    max_read_request: int = 512
    rcb: int = 64
    completion_bytes: int = 0
    propagation_ps: int = 150 * NANOSECOND
    memory_read_ps: int = 250 * NANOSECOND
    read_jitter_ps: int = 0
    shuffle: bool = False
    ack_every: int = 4
    update_every: int = 4
    skip: bool = True
    posted_headers: int = 96
    posted_data: int = 1024
    non_posted_headers: int = 96
    device_posted_headers: int = 64
    device_non_posted_headers: int = 16
    credit_return_ps: int = 100 * NANOSECOND
    completion_headers: int = 256
    completion_data: int = 32768
    transmit_tlps: int = 32
    memory_base: int = 1 << 32
    bar_base: int = 0xE000_0000
    msi_base: int = 0xFEE0_0000
    seed: int = 1
    random_splits: bool = False
    hold_every: int = 0
    hold_ps: int = 0
    ready_percent: int = 100
    np_req_ps: int = 0
    straddle_percent: int = 100
    in_order: bool = False
    late_credits: bool = False
    check_vectors: bool = True

    def __post_init__(self) -> None:
        check("generation", self.generation, 1, 5)
        _check_power("lanes", self.lanes, 1, 16)
        _check_power("max_payload", self.max_payload, 128, 4096)
        _check_power("max_read_request", self.max_read_request, 128, 4096)
        _check_power("rcb", self.rcb, 64, 128)
        if self.completion_bytes:
            _check_power("completion_bytes", self.completion_bytes, self.rcb, self.max_payload)
        for name in ("posted_headers", "non_posted_headers", "device_posted_headers",
                     "device_non_posted_headers", "completion_headers", "transmit_tlps"):
            check(name, getattr(self, name), 1, 1 << 12)
        if self.posted_data * 16 < self.max_payload:
            raise ValueError("posted_data must hold one TLP of max_payload")
        for name in ("propagation_ps", "memory_read_ps", "read_jitter_ps", "credit_return_ps",
                     "ack_every", "update_every", "np_req_ps", "hold_ps"):
            check(name, getattr(self, name), 0, SECOND)
        check("hold_every", self.hold_every, 0, 1 << 40)
        if bool(self.hold_every) != bool(self.hold_ps):
            raise ValueError("hold_every and hold_ps go together")
        check("ready_percent", self.ready_percent, 1, 100)
        check("straddle_percent", self.straddle_percent, 0, 100)


KIND_IDEAL = 0
KIND_HDD = 1
KIND_SSD = 2


def link_rate(gigabits: int, *, lanes: int = 1, efficiency: float = 0.9) -> int:
    """Bytes a second of a SAS or SATA link: 8b/10b, then the protocol's efficiency."""
    if gigabits not in (3, 6, 12):
        raise ValueError(f"a SAS or SATA link runs at 3, 6 or 12 Gbit/s, not {gigabits}")
    return int(gigabits * 1_000_000_000 / 10 * lanes * efficiency)


@dataclass(frozen=True, kw_only=True)
class DriveParameters:
    """Parameters of every drive. Use `Ideal`, `Hdd` or `Ssd`.

    Parameters
    ----------
    capacity
        Blocks.
    rate
        Bytes a second of the link (`link_rate`), or `UNLIMITED`.
    half_duplex
        Data moves one way at a time (SATA).
    expander
        Index into the harness's expanders, or -1: directly attached.
    command_ps
        Serial time of the drive's controller for a command.
    status_ps
        Link time of the frames that end a command.
    cache_blocks
        Write buffer. With 0, writes are on the medium before they complete.
    keep_data
        Store the data that is written. Otherwise reads return zeros.
    volatile_cache
        A drive that is pulled, or loses power, forgets at random data that was neither flushed nor
        written with FUA. Each block then has its newest contents or any that it had since.
    reset_loses_cache
        With ``volatile_cache``: a drive whose port is reset forgets as well, and reports that it
        has restarted (``restarted`` of `hdl.flow.drive_port.DrivePort`).
    """

    capacity: int = 1 << 18
    rate: int = UNLIMITED
    half_duplex: bool = False
    expander: int = -1
    command_ps: int = 0
    status_ps: int = 0
    cache_blocks: int = 4096
    keep_data: bool = True
    volatile_cache: bool = False
    reset_loses_cache: bool = False

    kind = KIND_IDEAL

    def __post_init__(self) -> None:
        check("capacity", self.capacity, 1, (1 << 40) - 1)
        check("rate", self.rate, 0, 1 << 40)
        check("cache_blocks", self.cache_blocks, 0, 1 << 24)
        check("expander", self.expander, -1, 255)
        if self.reset_loses_cache and not self.volatile_cache:
            raise ValueError("reset_loses_cache needs volatile_cache")
        for field in fields(self):
            if field.name.endswith("_ps"):
                check(field.name, getattr(self, field.name), 0, 1000 * SECOND)

    def changed(self, **changes) -> "DriveParameters":
        """A copy with some parameters changed."""
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Ideal(DriveParameters):
    """A drive with a fixed ``latency_ps`` from command to data or status. It does everything in
    parallel."""

    latency_ps: int = 0


@dataclass(frozen=True, kw_only=True)
class Hdd(DriveParameters):
    """One actuator, shortest access time first, read-ahead, write cache that destages.

    Parameters
    ----------
    revolution_ps
        Time of one revolution.
    media_rate
        Bytes a second under the head, constant over the LBA range.
    settle_ps, seek_root_ps, seek_linear_ps
        A seek over fraction d of the stroke takes settle + root * sqrt(d) + linear * d.
    write_settle_ps
        Additional settling time before a write.
    read_window, write_window
        Oldest reads and oldest dirty runs among which the next access is chosen.
    read_ahead_blocks
        How far the head reads on when it has nothing else to do.
    """

    revolution_ps: int = 4 * MILLISECOND
    media_rate: int = 237 * MEBIBYTE
    settle_ps: int = 500 * MICROSECOND
    seek_root_ps: int = 4 * MILLISECOND
    seek_linear_ps: int = 2 * MILLISECOND
    write_settle_ps: int = 200 * MICROSECOND
    read_window: int = 32
    write_window: int = 32
    read_ahead_blocks: int = 512

    kind = KIND_HDD

    def __post_init__(self) -> None:
        super().__post_init__()
        check("revolution_ps", self.revolution_ps, 1, SECOND)
        check("media_rate", self.media_rate, BLOCK_BYTES, 1 << 40)
        check("read_window", self.read_window, 1, 1 << 12)
        check("write_window", self.write_window, 1, 1 << 16)


@dataclass(frozen=True, kw_only=True)
class Ssd(DriveParameters):
    """Parallel dies of 4 KiB pages, reads before programs, a write buffer.

    Parameters
    ----------
    dies
        Pages read or programmed at once. Consecutive pages are on different dies.
    read_ps, program_ps
        Time of a page in a sequential stream.
    random_read_ps, random_program_ps
        Additional time outside a stream (no prefetch; garbage collection).
    lookup_ps
        Additional time for the first page of a read outside a stream (mapping table).
    power_safe
        The write buffer survives power loss. FLUSH and FUA need not wait for the medium.
    dirty_blocks, dirty_random
        Blocks in the write buffer at power-on, and whether they are from random writes or from a
        stream. This is a drive that has been at work.
    """

    dies: int = 32
    read_ps: int = 80 * MICROSECOND
    program_ps: int = 200 * MICROSECOND
    random_read_ps: int = 0
    random_program_ps: int = 0
    lookup_ps: int = 0
    power_safe: bool = True
    dirty_blocks: int = 0
    dirty_random: bool = False

    kind = KIND_SSD

    def __post_init__(self) -> None:
        super().__post_init__()
        check("dies", self.dies, 1, 4096)
        check("cache_blocks", self.cache_blocks, 64, 1 << 24)
        check("dirty_blocks", self.dirty_blocks, 0, self.cache_blocks)


@dataclass(frozen=True, kw_only=True)
class Expander:
    """Drives behind an expander share ``rate`` bytes a second each way."""

    rate: int

    def __post_init__(self) -> None:
        check("rate", self.rate, 1, 1 << 40)
