"""Python binding of the native throughput tier: verilated controller, link, host memory, drives.

    with Harness(config, link=LinkParameters(), drives=[preset] * config.ports) as harness:
        harness.memory[0:4] = b"data"             # bus address harness.memory_base + 0
        harness.mmio_write32(0x14, 0x460001)      # posted
        status = harness.mmio_read32(0x1C)        # runs until the answer is there
        for event in harness.run():               # runs until something happens
            ...

Time stands still outside `run` and `mmio_read32`/`mmio_read64`.
"""

import ctypes
import mmap
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, NoReturn

from amaranth.lib import wiring

from hdl.config import BLOCK_BYTES, TIME_BITS, Config
from sim.native.build import build_controller
from sim.native.parameters import DriveParameters, Expander, Ideal, LinkParameters

DEFAULT_MEMORY_BYTES = 64 << 20
ENERGY_BLOCKS = 1 << 20
"""What a backup unit has energy for unless it is told."""
EVENTS_AT_ONCE = 256
ERROR_BYTES = 512
PICOSECONDS_PER_NANOSECOND = 1000
MMIO_TIMEOUT_NS = 50_000_000
"""Longest completion timeout of a root port (PCIe base specification 2.8)."""
FUNCTION_RESET_NS = 100_000_000
"""Longest function level reset (PCIe base specification 6.6.2)."""
RESET_POLL_CYCLES = 64
RESET_POLL_NS = 1000
"""Time between two looks at a function level reset while nothing moves."""
AFTER_POWER_UP = {
    "max_payload": 0,
    "max_read_request": 2,
    "rcb": 0,
    "bus_master": 0,
    "msix_enable": 0,
    "msix_mask": 0,
    "function_reset": 0,
    "extended_tag": 0,
    "relaxed_ordering": 0,
    "id_ordering": 0,
    "id_completion": 0,
    "completion_timeout": 0,
    "timeout_disable": 0,
}
"""Values of ``status`` after a reset of the link (PCIe base specification 7.5.3)."""

FIRST_IDENTITY = 0x0255_5300_0000_0000
"""First identity of simulated drives. They are EUI-64s, locally administered."""


class HarnessError(RuntimeError):
    """The design broke a rule of one of its ports, or does not answer."""


class Flow(IntEnum):
    """A flow that `Harness.hold` can make wait. The values are those of ``Flow`` in ``holds.hpp``.

    They are the card's writes to the host and its reads (for credits); register writes, register
    reads, and the completions of the card's reads on their way down; and the hard block's
    ``tready`` on RQ and CC.
    """

    POSTED = 0
    READS = 1
    REGISTER_WRITES = 2
    REGISTER_READS = 3
    COMPLETIONS = 4
    RQ_READY = 5
    CC_READY = 6


class ReadEnd(IntEnum):
    """Ways in which a read of host memory can fail. The values are those of ``ReadEnd`` in
    ``pcie.hpp``."""

    UNSUPPORTED = 1
    """Unsupported Request."""
    ABORTED = 2
    """Completer Abort."""
    POISONED = 3
    """The data is marked as corrupt, and it is."""
    LOST = 4
    """No completion comes, and the hard block's own timer reports that 45 ms later."""
    TIMEOUT = 5
    """The hard block ends it 10 ms later."""
    DISCONTINUED = 6
    """The data comes, and the hard block finds that its own memory has lost it."""


class EventKind(IntEnum):
    """The reason for the end of a run. The values are those of ``EventKind`` in ``harness.hpp``."""

    TIME = 0
    INTERRUPT = 1
    MMIO = 2
    IDLE = 3
    ERROR = 4


class _Event(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("kind", "value", "time", "tag"))


FAILED = -(1 << 63)
"""The result of a function of the C interface that has refused or failed."""


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declares the types of the C interface (``api.cpp``)."""
    pointer, number, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    numbers = ctypes.POINTER(ctypes.c_int64)
    for name, result, arguments in (
        ("fields", text, [text]),
        ("create", pointer, [numbers, numbers, number, numbers, number, number, pointer, number]),
        ("destroy", None, [pointer]),
        ("error", text, [pointer]),
        ("run", number, [pointer, number, number, ctypes.POINTER(_Event), number]),
        ("map_memory", number, [pointer, number, number, pointer]),
        ("unmap_memory", number, [pointer]),
        ("now", number, [pointer]),
        ("mmio_write", number, [pointer, number, number, number]),
        ("mmio_read", number, [pointer, number, number]),
        ("hold", number, [pointer, number, number]),
        ("fail_reads", number, [pointer, *[number] * 5]),
        ("statistics", number, [pointer, number, numbers, number]),
        ("histogram", number, [pointer, number, numbers, number]),
        ("set_present", number, [pointer, number, number]),
        ("restart_drive", number, [pointer, number]),
        ("lose_power", number, [pointer, number, number]),
        ("set_card", number, [pointer, number, number]),
        ("set_backup", number, [pointer, number, number]),
        ("saved", number, [pointer]),
        ("set_begin", number, [pointer, number]),
        ("set_identity", number, [pointer, number, number]),
        ("replace_drive", number, [pointer, number]),
        ("medium_error", number, [pointer, number, number, number]),
        ("refuse_writes", number, [pointer, *[number] * 4]),
        ("drive_fault", number, [pointer, number, number, number, number]),
        ("set_jumping", number, [pointer, number]),
        ("set_status", number, [pointer, text, number]),
        ("reset_done", number, [pointer]),
        ("drive_read", number, [pointer, number, number, number, pointer]),
        ("drive_write", number, [pointer, number, number, number, pointer]),
        ("drive_blocks", number, [pointer, number, numbers, number]),
    ):
        function = getattr(library, f"striata_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


def field_names(library: ctypes.CDLL, group: str) -> list[str]:
    """The names of the values that the library takes or gives for ``group``, in order."""
    names = library.striata_fields(group.encode()).decode()
    if not names:
        raise ValueError(f"the models know no group {group}")
    return names.split(",")


def field_array(library: ctypes.CDLL, group: str, parameters: object) -> list[int]:
    """The values of ``parameters`` in the order that the library names for ``group``.

    Values that exist only for other kinds of drives are 0. Any other name that one side knows and
    the other does not is refused.
    """
    names = field_names(library, group)
    has = {field.name for field in fields(parameters)} | {"kind"}  # type: ignore[arg-type]
    others = {field.name for kind in DriveParameters.__subclasses__() for field in fields(kind)}
    others = others if "kind" in names else set()
    if unknown := (has - {"kind", *names}) | ({*names} - has - others):
        who = type(parameters).__name__
        raise ValueError(f"{who} and the models disagree about {', '.join(sorted(unknown))}")
    return [int(getattr(parameters, name, 0)) for name in names]


def _blocks_with_data(file: BinaryIO) -> Iterator[int]:
    """The blocks of a file of which a part is there. What a sparse file leaves out is not."""
    end = 0
    while True:
        try:
            begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
        except OSError:  # there is no more
            return
        end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
        first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        yield from range(first, last)
        end = last * BLOCK_BYTES


def int_array(values: Sequence[int]):
    """``values`` as a C array of 64-bit integers (at least one element)."""
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def _signed(value: int) -> int:
    """64 bits as a C integer."""
    return value - (1 << 64) if value >> 63 else value


class Harness:
    """A controller with its surroundings.

    Parameters
    ----------
    config
        Sizes of the controller; ``data_width`` 64, 128 or 256.
    link
        PCIe link and host memory timing.
    drives
        One for each port, or ``None`` for a port with no drive. A drive can still be inserted
        there: an `Ideal` of default size, absent at first.
    expanders
        Links shared by drives that name them.
    memory_bytes
        Host memory from bus address ``link.memory_base``.
    jumping
        Jump over time in which nothing moves. Results are identical without, only slower.
    seed
        Of the data that drives with ``volatile_cache`` forget.
    identity, nonce
        Inputs for the names of the card and its namespaces (`hdl.nvme.admin.names`), 64 bits each.
        By default each harness of a process is another card, always in the same order.
    begin
        Time of the design's clock when it leaves reset, in cycles. It wraps after 2 ** `TIME_BITS`.
    component
        Makes the Amaranth component to verilate instead of ``Controller(config=config)``. It has
        the same ports.

    Attributes
    ----------
    memory
        ``memoryview`` of host memory.
    memory_base
        Bus address of ``memory[0]``.
    identity, nonce
        Of the card.
    msi_address
        Bus address of MSI-X messages. A write of ``vector`` to it is the event ("interrupt",
        vector). For a write elsewhere in the 1 MiB window, bits 32 and up are the offset from it.
    """

    made = 0
    """Harnesses of this process so far."""

    def __init__(
        self,
        config: Config,
        *,
        link: LinkParameters | None = None,
        drives: Sequence[DriveParameters | None] = (),
        expanders: Sequence[Expander] = (),
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        jumping: bool = True,
        seed: int = 1,
        identity: int | None = None,
        nonce: int | None = None,
        begin: int = 0,
        component: Callable[[], wiring.Component] | None = None,
    ):
        self._link = link = link or LinkParameters()
        if len(drives) != config.ports:
            raise ValueError(f"drives must have one entry for each of the {config.ports} ports,"
                             f" not {len(drives)}")
        for drive in drives:
            if drive is not None and not isinstance(drive, DriveParameters):
                raise ValueError(f"a drive must be DriveParameters, not {type(drive).__name__}")
            if drive is not None and drive.expander >= len(expanders):
                raise ValueError(f"drive names expander {drive.expander} of {len(expanders)}")
        if not 0 <= seed < 1 << 63:
            raise ValueError(f"seed must be 0..{(1 << 63) - 1}, not {seed}")
        if not 0 <= begin < 1 << TIME_BITS:
            raise ValueError(f"begin must be 0..{(1 << TIME_BITS) - 1}, not {begin}")
        self._handle = None
        self._config = config
        self._library = declare(ctypes.CDLL(str(build_controller(config, component))))
        self._map = mmap.mmap(-1, memory_bytes)
        self._anchor = (ctypes.c_char * memory_bytes).from_buffer(self._map)
        self.memory = memoryview(self._map)
        self.memory_base = link.memory_base
        self.msi_address = link.msi_base
        self._events = (_Event * EVENTS_AT_ONCE)()
        self._pending: list[tuple] = []
        self._mapped: list[tuple[int, ctypes.Array]] = []
        models = [drive or Ideal() for drive in drives]
        self._capacities = [model.capacity for model in models]
        flat = [
            value
            for model in models
            for value in (*field_array(self._library, "drive", model),)
        ]
        self._handle = self._library.striata_create(
            int_array(field_array(self._library, "link", link)),
            int_array(flat),
            len(models),
            int_array([expander.rate for expander in expanders]),
            len(expanders),
            memory_bytes,
            ctypes.addressof(self._anchor),
            seed,
        )
        if self._handle is None:
            self._raise_error()
        self._call("set_jumping", jumping)
        Harness.made += 1
        chance = random.Random(f"card {Harness.made}")
        self.identity = chance.getrandbits(64) if identity is None else identity
        self.nonce = chance.getrandbits(64) if nonce is None else nonce
        self._call("set_card", _signed(self.identity), _signed(self.nonce))
        self._call("set_begin", begin)
        self._energy, self._fails = ENERGY_BLOCKS, False
        if config.backup_blocks:
            self.set_energy(ENERGY_BLOCKS)
        self._drives_made = 0
        for port in range(config.ports):
            self._name_drive(port)
        for port, drive in enumerate(drives):
            if drive is None:
                self.remove(port)

    def __enter__(self) -> "Harness":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Frees the controller, its drives and host memory."""
        if self._handle is not None:
            self._library.striata_destroy(self._handle)
            self._handle = None
            # Otherwise it goes with the last that refers to it, in a campaign many runs later.
            self._anchor = None
            self.memory.release()
            self._map.close()

    def _raise_error(self) -> NoReturn:
        raise HarnessError(self._library.striata_error(self._handle).decode())

    def _call(self, name: str, *arguments) -> int:
        """Calls a function of the C interface. Raises `HarnessError` with the library's message."""
        result = getattr(self._library, f"striata_{name}")(self._handle, *arguments)
        if result == FAILED:
            self._raise_error()
        return result

    # Time and events

    @property
    def now_ns(self) -> float:
        """Simulated time in nanoseconds since reset ended."""
        return self._call("now") / PICOSECONDS_PER_NANOSECOND

    def run(self, until_ns: float | None = None, cycles: int = 0) -> list[tuple]:
        """Runs until something happens. Returns the events, never an empty list.

        ("interrupt", vector): a message arrived. The run ends with the cycle of its arrival.
        ("time",): ``until_ns`` is reached, or ``cycles`` cycles have been evaluated (0: any
        number), which bounds the real time that the call takes. ("idle",): nothing will ever move
        again (only without ``until_ns``). ("mmio", value, tag): the answer of a read that
        `begin_mmio_read` began.

        Raises `HarnessError`, which names the clock cycle, when the design breaks a rule of a port,
        and again at every later call.
        """
        if self._pending:
            events, self._pending = self._pending, []
            return events
        until = 0 if until_ns is None else int(until_ns * PICOSECONDS_PER_NANOSECOND)
        if until_ns is not None and until <= self._call("now"):
            return [("time",)]
        return self._run(until, cycles)

    def _run(self, until: int, cycles: int = 0) -> list[tuple]:
        count = self._call("run", until, cycles, self._events, EVENTS_AT_ONCE)
        result = []
        for event in self._events[:count]:
            if event.kind == EventKind.INTERRUPT:
                result.append(("interrupt", event.value))
            elif event.kind == EventKind.TIME:
                result.append(("time",))
            elif event.kind == EventKind.IDLE:
                result.append(("idle",))
            else:
                result.append(("mmio", event.value & (1 << 64) - 1, event.tag))
        return result

    # Memory of another owner

    def map_memory(self, address: int, memory: ctypes.Array) -> None:
        """Makes ``memory`` host memory from bus address ``address`` too, without a copy.

        It may not overlap other host memory. It is kept until `unmap_memory`.
        """
        end = address + ctypes.sizeof(memory)
        taken = [(self.memory_base, self.memory_base + len(self.memory)),
                 *((start, start + ctypes.sizeof(array)) for start, array in self._mapped)]
        if address < 0 or end > 1 << 63 or any(address < e and s < end for s, e in taken):
            raise ValueError(f"memory at {address:#x}..{end:#x} overlaps other host memory")
        self._call("map_memory", address, ctypes.sizeof(memory), ctypes.addressof(memory))
        self._mapped.append((address, memory))

    def unmap_memory(self) -> None:
        """Removes all memory that `map_memory` added. The card's requests to it become stray."""
        self._call("unmap_memory")
        self._mapped.clear()

    # Registers

    def mmio_write(self, offset: int, value: int, length: int) -> None:
        """Posts a register write of ``length`` bytes: 1, 2, 4 or 8, aligned (8 bytes to 4)."""
        if not 0 <= value < 1 << 64:
            raise ValueError(f"a register's value must be 0..2**64 - 1, not {value}")
        self._call("mmio_write", offset, _signed(value), length)

    def mmio_read(self, offset: int, length: int) -> int:
        """Reads a register of ``length`` bytes: 1, 2, 4 or 8, aligned (8 bytes to 4).

        Runs until the completion is there. Events wait for `run`.
        """
        tag = self.begin_mmio_read(offset, length)
        limit = (self.now_ns + MMIO_TIMEOUT_NS) * PICOSECONDS_PER_NANOSECOND
        while True:
            value = None
            for event in self._run(int(limit)):
                if event[0] == "mmio" and event[2] == tag:
                    value = event[1] >> 8 * (offset & 3) & (1 << 8 * length) - 1
                elif event[0] == "time":
                    raise HarnessError(f"no completion for a read of offset {offset:#x}")
                else:
                    self._pending.append(event)
            if value is not None:
                return value

    def begin_mmio_read(self, offset: int, length: int) -> int:
        """Sends a register read and returns its tag. The answer is an event of `run`.

        The value is that of the words that hold the register.
        """
        return self._call("mmio_read", offset, length)

    def mmio_write32(self, offset: int, value: int) -> None:
        """Posts a 32-bit register write at byte ``offset`` of BAR 0. It travels when time runs."""
        self.mmio_write(offset, value, 4)

    def mmio_write64(self, offset: int, value: int) -> None:
        """Posts a 64-bit register write (one TLP)."""
        self.mmio_write(offset, value, 8)

    def mmio_read32(self, offset: int) -> int:
        """Reads a 32-bit register. Runs until the completion is there. Events wait for `run`."""
        return self.mmio_read(offset, 4)

    def mmio_read64(self, offset: int) -> int:
        """Reads a 64-bit register (one TLP)."""
        return self.mmio_read(offset, 8)

    # Trouble on the link

    def hold(self, flow: Flow, duration_ns: float) -> None:
        """Makes a flow wait from now on, for so long. Packets that have begun go on.

        Packets behind it follow PCIe's ordering (base specification 2.4.1): writes pass reads, and
        nothing passes writes. ``RQ_READY`` and ``CC_READY`` fall in the middle of a packet, too.
        """
        self._call("hold", Flow(flow), int(duration_ns * PICOSECONDS_PER_NANOSECOND))

    def fail_reads(
        self,
        end: ReadEnd,
        reads: int = 1,
        *,
        address: int = 0,
        length: int = 0,
        late: bool = False,
    ) -> None:
        """Makes the next reads of host memory fail.

        If ``address`` is not 0, these are the reads that touch ``length`` bytes at bus address
        ``address``. ``late``: they fail in their last completion, and the others are good.
        """
        self._call("fail_reads", ReadEnd(end), reads, address, length, late)

    # Drives

    def _name_drive(self, port: int) -> None:
        """The drive at a port gets an identity that no other has had."""
        self._drives_made += 1
        self._call("set_identity", port, FIRST_IDENTITY + self._drives_made)

    def remove(self, port: int) -> None:
        """Pulls a drive. Its commands end with GONE.

        With ``volatile_cache`` it forgets some data that it was not asked to flush.
        """
        self._call("set_present", port, 0)

    def insert(self, port: int, *, blank: bool = False) -> None:
        """Plugs the drive back in. ``blank``: it is a new one of the same make, without faults."""
        if blank:
            self._call("replace_drive", port)
            self._name_drive(port)
        self._call("set_present", port, 1)

    def set_energy(self, blocks: int) -> None:
        """The backup unit has energy for so many blocks from now on."""
        self._energy = blocks
        self._call("set_backup", self._fails, blocks)

    def fail_power(self) -> None:
        """The backup unit says that the power is about to go. It never takes that back."""
        self._fails = True
        self._call("set_backup", True, self._energy)

    @property
    def saved(self) -> bool:
        """Nothing more is to be saved since `fail_power`."""
        return bool(self._call("saved"))

    def power_loss(self, ports: Iterable[int] | None = None, *, off_ns: float = 0) -> None:
        """Drives (all of them) lose power at once, as when each is removed.

        If ``off_ns`` is not 0, they are there again after that time. Otherwise they come back when
        they are inserted. A port whose drive has been removed stays empty.
        """
        time = int(off_ns * PICOSECONDS_PER_NANOSECOND)
        for port in range(self._config.ports) if ports is None else ports:
            self._call("lose_power", port, time)

    def power_cycle(self, port: int, *, off_ns: float = 1000) -> None:
        """A drive loses power, and is there again after ``off_ns``."""
        self.power_loss([port], off_ns=off_ns)

    def restart_drive(self, port: int) -> None:
        """A drive begins anew by itself and reports that (``restarted`` of
        `hdl.flow.drive_port.DrivePort`).

        Its commands end with ABORTED. With ``volatile_cache`` it forgets some data that it was not
        asked to flush.
        """
        self._call("restart_drive", port)

    def medium_error(self, port: int, block: int, *, cure_by_write: bool = True) -> None:
        """Makes reads of a block fail until it is written, or (not cured) for good."""
        self._call("medium_error", port, block, 1 if cure_by_write else 2)

    def clear_medium_error(self, port: int, block: int) -> None:
        """Takes a medium error back, also one that had been written over but not flushed."""
        self._call("medium_error", port, block, 0)

    def refuse_writes(self, port: int, block: int, count: int = 1) -> None:
        """Writes of these blocks fail with MEDIUM_ERROR and leave them as they are.

        Other blocks of the same command are written.
        """
        self._call("refuse_writes", port, block, count, 1)

    def accept_writes(self, port: int, block: int, count: int = 1) -> None:
        """Takes `refuse_writes` back."""
        self._call("refuse_writes", port, block, count, 0)

    def drive_fault(
        self,
        port: int,
        commands: int = -1,
        *,
        at_end: bool = False,
        deaf: bool = False,
        lasting: bool = False,
        delay_ns: float = 0,
    ) -> None:
        """The next commands that a drive begins never end (-1: all of them; 0: the fault is gone).

        ``at_end``: their data moves before. ``deaf``: aborts do not end them. ``lasting``: a reset
        does not cure the drive. ``delay_ns``: they do end, but so much later.
        """
        flags = at_end | deaf << 1 | lasting << 2
        delay = int(delay_ns * PICOSECONDS_PER_NANOSECOND)
        self._call("drive_fault", port, commands, flags, delay)

    def read_drive(self, port: int, block: int, count: int = 1) -> bytes:
        """The contents of a drive, past the controller."""
        data = ctypes.create_string_buffer(count * 4096)
        self._call("drive_read", port, block, count, data)
        return data.raw

    def write_drive(self, port: int, block: int, data: bytes) -> None:
        """Stores whole blocks of data on a drive, past the controller."""
        if len(data) % 4096:
            raise ValueError(f"data must be whole blocks of 4096 bytes, not {len(data)} bytes")
        self._call("drive_write", port, block, len(data) // 4096, bytes(data))

    def written_blocks(self, port: int) -> list[int]:
        """Numbers of the blocks of a drive that are not all zeros, ascending."""
        count = self._call("drive_blocks", port, None, 0)
        numbers = int_array([0] * count)
        self._call("drive_blocks", port, numbers, count)
        return sorted(numbers[:count])

    def image(self, port: int) -> dict[int, bytes]:
        """All blocks of a drive that are not all zeros, by their numbers."""
        return {block: self.read_drive(port, block) for block in self.written_blocks(port)}

    def put_image(self, port: int, image: Mapping[int, bytes]) -> None:
        """Stores these blocks on a drive, past the controller."""
        for block, data in image.items():
            self.write_drive(port, block, data)

    def export_drive(self, port: int, path: str | Path) -> None:
        """Writes a drive to a sparse image file, as long as the drive."""
        blocks = self.written_blocks(port)
        with Path(path).open("wb") as file:
            file.truncate(self._capacities[port] * BLOCK_BYTES)
            for block in blocks:
                file.seek(block * BLOCK_BYTES)
                file.write(self.read_drive(port, block))

    def import_drive(self, port: int, path: str | Path) -> None:
        """Loads an image file, from block 0 on."""
        with Path(path).open("rb") as file:
            for block in _blocks_with_data(file):
                file.seek(block * BLOCK_BYTES)
                data = file.read(BLOCK_BYTES)
                if any(data):
                    self.write_drive(port, block, data.ljust(BLOCK_BYTES, b"\0"))

    # Settings and measurements

    def set_status(self, name: str, value: int) -> None:
        """Drives an input of the controller's ``status`` (`hdl.flow.pcie_status.PcieStatus`).

        The link uses the same value, and checks that the controller follows it.
        """
        self._call("set_status", name.encode(), value)

    def reset_function(self) -> list[tuple]:
        """Does a function level reset. Returns at its end with the events meanwhile, as `run` does.

        Bus mastering and MSI-X are off from its beginning on, until they are enabled again. Raises
        `HarnessError` when the controller does not end it within `FUNCTION_RESET_NS`.
        """
        self.set_status("function_reset", 1)
        for name in ("bus_master", "msix_enable", "msix_mask"):
            self.set_status(name, 0)
        limit = self.now_ns + FUNCTION_RESET_NS
        events: list[tuple] = []
        while not self._call("reset_done"):
            found = self.run(self.now_ns + RESET_POLL_NS, RESET_POLL_CYCLES)
            events += (event for event in found if event != ("time",))
            if self.now_ns >= limit:
                raise HarnessError("a function level reset has no end")
        self.set_status("function_reset", 0)
        return events

    def reset_link(self, duration_ns: float = 0) -> None:
        """Does a link reset (hot reset, PERST#, link down) of so long, but of a clock cycle at
        least.

        No packet on its way arrives, on either side. Configuration space is as after power-up, and
        then has the payload and read sizes of the harness again. Bus mastering and MSI-X are off
        from its beginning on, until they are enabled again. Events wait for `run`.
        """
        for name, value in AFTER_POWER_UP.items():
            self.set_status(name, value)
        self.set_status("link_reset", 1)
        until = self._call("now") + max(1, int(duration_ns * PICOSECONDS_PER_NANOSECOND))
        while ("time",) not in (events := self._run(until)):
            self._pending += events
        self.set_status("link_reset", 0)
        self._enumerate()

    def _enumerate(self) -> None:
        """The host has set the sizes of packets."""
        link = self._link
        for name, size in (
            ("max_payload", link.max_payload),
            ("max_read_request", link.max_read_request),
        ):
            self.set_status(name, (size // 128).bit_length() - 1)
        self.set_status("rcb", link.rcb == 128)
        self.set_status("extended_tag", 1)

    def statistics(self) -> dict[str, int]:
        """Counters since reset of the link and of the simulation, by name (``statistics.hpp``)."""
        return self._counters("run", -1)

    def drive_statistics(self, port: int) -> dict[str, int]:
        """Counters of a drive: commands, bytes, busy times."""
        if port < 0:
            raise HarnessError(f"there is no port {port}")
        return self._counters("drive_counters", port)

    def _counters(self, group: str, index: int) -> dict[str, int]:
        names = field_names(self._library, group)
        values = int_array([0] * len(names))
        self._call("statistics", index, values, len(names))
        return dict(zip(names, values, strict=True))

    def drive_latencies(self, port: int) -> list[int]:
        """Histogram of command times. Entry n counts commands of 2**n .. 2**(n + 1) - 1 ns."""
        values = int_array([0] * 64)
        self._call("histogram", port, values, 64)
        return list(values)
