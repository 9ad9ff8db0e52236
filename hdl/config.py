"""Every size of a controller, in one validated record, and the presets that the project builds.

Anything that another block must agree on is derived here once.
"""

from dataclasses import dataclass

BLOCK_BYTES = 4096
"""Bytes of a block: cache line, parity unit, host page and drive unit."""

DWORDS_PER_BLOCK = BLOCK_BYTES // 4

SECTOR_BYTES = 512
"""Bytes of a host sector of a volume with sector emulation."""

SECTORS_PER_BLOCK = BLOCK_BYTES // SECTOR_BYTES

SECTOR_BITS = SECTORS_PER_BLOCK.bit_length() - 1
"""Width of a sector's place in its block."""

BLOCK_NUMBER_BITS = 40
"""Width of a block number: 2**40 blocks of 4 KiB are 4 EiB."""

TIME_BITS = 48
"""Width of `now`, in clock cycles: 13 days at 250 MHz before it wraps."""

MAX_DRIVES = 32
"""Most drives in an array, and most drive ports of a controller."""

DATA_OFFSET_BLOCKS = 256
"""Blocks at the start of every member kept free for metadata: 1 MiB, as Linux md leaves."""

PIECES = 8
"""Pieces of a block that can be worked out one by one while the rest is still landing."""

LINE_WRITERS = 5
"""Users that write lines: endpoint, parity engine, both paths of the drives, front end."""

MENDS = 4
"""Rows with an unreadable block that each of those who find one remembers."""

MENDED = 8
"""Such rows that are being mended at once."""

ERA_BITS = 8
"""Of how often an array has lost what was not flushed. It wraps: not while a row or a command of
the host reads, as in all that time its drives would have to restart, and be judged, 256 times."""

LEAVING = 8
"""Walks that have ended and whose row slots are not free yet: one or two, and some to spare."""

OPERATIONS_PER_BLOCK = 4
"""Drive operations that a block of a host command counts for, as to what an array may have."""

STRADDLE_WIDTH = 256
"""Width in bits from which on an UltraScale+ block can straddle completions."""

UNSTRADDLED_COMPLETIONS = 63
"""Most completions outstanding at such a width without it (PG213)."""

LINE_USERS = 4
"""Blocks that take lines: front end, sequencer, drives, gatherer."""

LINE_RETURNS = 5
"""Blocks that give lines back: front end, sequencer, tracker, gatherer, drives."""


def bits_for_count(count: int) -> int:
    """Bits of an index into ``count`` entries (at least one)."""
    return max(1, (count - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of one controller.

    Parameters
    ----------
    data_width
        Bits of every data path, W: 64, 128, 256 or 512.
    ports
        Drive ports, 2..32.
    lines
        On-chip 4 KiB lines, a power of two.
    banks
        Banks of the line store, a power of two; beat b of a line lies in bank b mod ``banks``.
    commands
        Host I/O commands inside the controller at once, a power of two.
    rows
        Rows being written or reconstructed at once, a power of two.
    operations
        Drive operations queued or running at once over all ports, a power of two.
    drive_tags
        Commands outstanding per drive, 1..32.
    read_tags
        PCIe memory read requests outstanding, a power of two up to 256.
    completion_headers
        Completion headers that the PCIe hard block buffers; space is reserved before a request.
        See `completions_outstanding` for how many of them are used.
    completion_straddle
        The RC interface of a block of 256 or 512 bits is configured with its straddle option, so
        that a completion may begin in the beat in which another one ends (`hdl.pcie.phy.straddle`).
        Narrower ones have no such option, and this means nothing to them.
    completion_address_bits
        Bits of a completion's lower address that the PCIe block reports: 12 (UltraScale+) or 7
        (what the link carries).
    completion_bytes
        Completion payload that it buffers, from which a 16-byte credit is kept for each header as
        well. 0: 64 bytes a header and no less; then the read completion boundary does not matter.
    queue_pairs
        NVMe I/O queue pairs.
    queue_depth
        Most entries of an NVMe I/O queue (CAP.MQES + 1), a power of two.
    arrays, volumes
        Entries of the array and volume tables, powers of two.
    parities
        Syndromes that the parity engine computes, 1..4.
    transfer_blocks
        Longest host transfer in blocks, a power of two (NVMe MDTS).
    clock_hz
        Clock frequency, only to turn times into cycles.
    error_log_entries
        Entries of the NVMe error log (ELPE + 1), a power of two.
    async_event_limit
        NVMe Asynchronous Event Requests held at once (AERL + 1), 1..16.
    report_capacity
        Identify Controller says what arrays offer and what is left of it (TNVMCAP, UNVMCAP), for
        some 400 LUTs; else both are 0.
    abort_commands
        Abort ends I/O commands that have not started or have parts left, for some 150 LUTs; else
        only Asynchronous Event Requests.
    compare_and_deallocate
        NVMe commands Compare and Dataset Management, for some 500 LUTs, a line and a 4th table
        reader; else they are unknown opcodes.
    sector_emulation
        Volumes may have 512-byte sectors for the host (512e); else all have 4096-byte ones.
    temperature_kelvin
        Composite temperature that a board without a sensor reports.
    walk_window
        Rows that are walked at once, a power of two up to 128.
    background
        Rows are initialised, rebuilt, checked and mended in the background (`hdl.background`), and
        blocks that a drive cannot read are written anew; else none of it is there.
    gather_reads
        Sequential reads of an array with parity that has lost a drive are gathered by row, so that
        each block is read once (so only with ``background``); else each lost block reads its row.
    intent_chunks
        Bits an array of the write-intent bitmap (`hdl.background.intent`), a power of two of 32 and
        up, so that the rebuild of a drive that comes back covers only what it missed; it needs
        ``background``. 0: none, and a drive that comes back is rebuilt from the first row to the
        last.
    command_timeout_ms
        A drive command that takes longer is aborted; 0: never, and the logic for it is left out.
    abort_timeout_ms
        A command that is aborted and takes longer to end has its port reset.
    array_shares
        Each array has a share of what all of them use, so that one whose drives hang does not make
        the others wait (`hdl.array.shares.shares`). It takes a controller that has enough for
        ``arrays`` reserves. Else, which is the default, an array may have everything.
    early_rows
        Rows of host reads whose lost block is worked out piece by piece while the others land, a
        power of two up to 16 and ``rows``; 0: each waits for whole blocks, and the logic is left
        out.
    slow_read_ms
        A host's read of one drive that takes longer is had from the others, if the array has
        redundancy left (so only with ``background``); 0: never, and the logic is left out.
    drive_resets
        Port resets, 0..3, after which a drive is given up the next time.
    drive_reset_window_s
        Port resets are forgotten each time that so long, rounded up to a power of two clock
        cycles, has passed.
    """

    data_width: int = 256
    ports: int = 8
    lines: int = 1024
    banks: int = 8
    commands: int = 512
    rows: int = 512
    operations: int = 2048
    drive_tags: int = 32
    read_tags: int = 64
    completion_headers: int = 256
    completion_straddle: bool = True
    completion_bytes: int = 32768
    completion_address_bits: int = 12
    queue_pairs: int = 8
    queue_depth: int = 1024
    arrays: int = 8
    volumes: int = 16
    parities: int = 2
    transfer_blocks: int = 32
    clock_hz: int = 250_000_000
    error_log_entries: int = 16
    async_event_limit: int = 4
    report_capacity: bool = True
    abort_commands: bool = True
    compare_and_deallocate: bool = True
    sector_emulation: bool = True
    temperature_kelvin: int = 308
    walk_window: int = 128
    background: bool = True
    gather_reads: bool = True
    intent_chunks: int = 0
    command_timeout_ms: int = 8000
    abort_timeout_ms: int = 500
    array_shares: bool = False
    early_rows: int = 8
    slow_read_ms: int = 0
    drive_resets: int = 1
    drive_reset_window_s: int = 3600

    def __post_init__(self) -> None:
        if self.data_width not in (64, 128, 256, 512):
            raise ValueError(f"data_width must be 64, 128, 256 or 512, not {self.data_width}")
        if not 2 <= self.ports <= MAX_DRIVES:
            raise ValueError(f"ports must be 2..{MAX_DRIVES}, not {self.ports}")
        if not 1 <= self.drive_tags <= 32:
            raise ValueError(f"drive_tags must be 1..32, not {self.drive_tags}")
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
        if not 1 <= self.parities <= 4:
            raise ValueError(f"parities must be 1..4, not {self.parities}")
        if not 1 <= self.queue_pairs <= 64:
            raise ValueError(f"queue_pairs must be 1..64, not {self.queue_pairs}")
        if not 1 <= self.async_event_limit <= 16:
            raise ValueError(f"async_event_limit must be 1..16, not {self.async_event_limit}")
        if not 1 <= self.temperature_kelvin < 1 << 16:
            raise ValueError(
                f"temperature_kelvin must be 1..65535, not {self.temperature_kelvin}"
            )
        for name, least, most in (
            ("command_timeout_ms", 0, 60_000),
            ("abort_timeout_ms", 1, 60_000),
            ("slow_read_ms", 0, self.command_timeout_ms),
            ("drive_resets", 0, 3),
            ("drive_reset_window_s", 1, 1 << 20),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be {least}..{most}, not {getattr(self, name)}")
        if self.early_rows not in (0, 1, 2, 4, 8, 16):
            raise ValueError(
                f"early_rows must be 0 or a power of two up to 16, not {self.early_rows}"
            )
        if self.early_rows > self.rows:
            raise ValueError(f"early_rows must be at most rows, {self.rows}")
        if self.slow_read_ms and not self.background:
            raise ValueError("slow_read_ms needs background, which knows what arrays have left")
        if self.gather_reads and not self.background:
            raise ValueError("gather_reads needs background, which knows what arrays have left")
        chunks = self.intent_chunks
        if chunks and (chunks & (chunks - 1) or not 32 <= chunks <= 1 << 15):
            raise ValueError(
                f"intent_chunks must be 0 or a power of two in 32..32768, not {chunks}"
            )
        if chunks and not self.background:
            raise ValueError("intent_chunks needs background, which rebuilds")
        for name, least, most in (
            ("lines", 16, 1 << 16),
            ("banks", 2, 64),
            ("commands", 2, 4096),
            ("rows", 4, 4096),
            ("operations", 16, 1 << 16),
            ("read_tags", 2, 256),
            ("queue_depth", 4, 1 << 15),
            ("arrays", 2, 256),
            ("volumes", 2, 256),
            ("transfer_blocks", 2, 64),
            ("error_log_entries", 2, 64),
            ("walk_window", 2, 128),
        ):
            value = getattr(self, name)
            if value & (value - 1) or not least <= value <= most:
                raise ValueError(f"{name} must be a power of two in {least}..{most}, not {value}")
        if self.banks > self.beats:
            raise ValueError(f"banks must be at most the {self.beats} beats of a line")
        if self.array_shares:
            self._check_shares()

    def _check_shares(self) -> None:
        """Whether there is enough for the reserves of all arrays."""
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
    def straddles(self) -> bool:
        """Completions straddle: two may share a beat of 256 bits, four one of 512."""
        return self.completion_straddle and self.data_width >= STRADDLE_WIDTH

    @property
    def completions_outstanding(self) -> int:
        """Most completions that may be on their way at once.

        As many as the hard block has headers for; but from 256 bits on without straddling fewer
        than 64, since RC then takes short completions slower than the link brings them (PG213,
        "Straddle Option on RC Interface"). That bounds the data on its way to 4032 bytes where
        completions may end every 64.
        """
        if self.data_width >= STRADDLE_WIDTH and not self.straddles:
            return min(self.completion_headers, UNSTRADDLED_COMPLETIONS)
        return self.completion_headers

    @property
    def beat_bytes(self) -> int:
        """Bytes a cycle of a data path."""
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
        """Width of a beat address in the line store: line number, then beat."""
        return self.line_bits + bits_for_count(self.beats)

    @property
    def dword_address_bits(self) -> int:
        """Width of a 32-bit word address in the line store: line number, then word."""
        return self.line_bits + bits_for_count(DWORDS_PER_BLOCK)

    @property
    def slot_bits(self) -> int:
        """Width of a host command slot number."""
        return bits_for_count(self.commands)

    @property
    def row_slot_bits(self) -> int:
        """Width of a row slot number."""
        return bits_for_count(self.rows)

    @property
    def port_bits(self) -> int:
        """Width of a drive port number: fixed, so that tables have one shape."""
        return bits_for_count(MAX_DRIVES)

    @property
    def tag_bits(self) -> int:
        """Width of a drive tag."""
        return bits_for_count(self.drive_tags)

    @property
    def command_blocks(self) -> int:
        """Most blocks that a host command touches: one more where sectors need not be aligned."""
        return self.transfer_blocks + self.sector_emulation

    @property
    def offset_bits(self) -> int:
        """Width of a block's index in its host command."""
        return bits_for_count(self.command_blocks)

    @property
    def transfer_bits(self) -> int:
        """Width of a block's index in a transfer of ``transfer_blocks``."""
        return bits_for_count(self.transfer_blocks)

    @property
    def array_bits(self) -> int:
        """Width of an array number."""
        return bits_for_count(self.arrays)

    @property
    def chunk_bits(self) -> int:
        """Width of a chunk number of the write-intent bitmap."""
        return bits_for_count(self.intent_chunks)

    @property
    def volume_bits(self) -> int:
        """Width of a volume number."""
        return bits_for_count(self.volumes)

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


def board(ports: int = 8) -> Config:
    """The configuration that is simulated and characterised: 256 bits, 4 MiB on chip."""
    return Config(ports=ports, slow_read_ms=1000, intent_chunks=1024, array_shares=True)


def small() -> Config:
    """The configuration that `make synth` places on an ECP5-45: 64 bits, 4 ports."""
    return Config(
        data_width=64,
        ports=4,
        lines=16,
        banks=4,
        commands=16,
        rows=8,
        operations=64,
        drive_tags=8,
        read_tags=16,
        completion_bytes=0,
        queue_pairs=2,
        queue_depth=64,
        arrays=2,
        volumes=4,
        transfer_blocks=4,
        clock_hz=80_000_000,
        error_log_entries=4,
        abort_commands=False,
        compare_and_deallocate=False,
        background=False,
        early_rows=0,
        gather_reads=False,
        walk_window=4,
        sector_emulation=False,
    )
