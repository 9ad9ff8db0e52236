"""cocotb model of a drive and its link core, at one port of `hdl.flow.drive_port.DrivePort`.

Sparse storage, commands served out of order, random latency and data timing, errors on demand,
removal. It checks the controller's side of the port: stream rules, tags used once, requests within
the drive, and exactly the beats that were granted.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.streams import every_cycle, pack, sample, unpack
from hdl.config import BLOCK_BYTES, Config
from hdl.flow.drive_port import drive_command, drive_completion, read_data, write_data
from hdl.flow.operation import DriveStatus, Opcode

FIRST_IDENTITY = 0x0255_5300_0000_0001
"""Of the drive at port 0: an EUI-64, locally administered."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How a drive behaves in time, in clock cycles and chances per cycle.

    Parameters
    ----------
    latency
        Least and most cycles from a command to its first data, or to its end without data.
    ending
        Least and most cycles from the last data to the completion.
    gap
        Least and most cycles from the last beat of a block to the next one's first.
    command, read, write, grant
        Chance of taking a command, offering a read beat, taking a write beat, giving a grant.
    """

    latency: tuple[int, int] = (0, 0)
    ending: tuple[int, int] = (0, 0)
    gap: tuple[int, int] = (0, 0)
    command: float = 1.0
    read: float = 1.0
    write: float = 1.0
    grant: float = 1.0


IDEAL = Timing()
"""Never waits: measures the controller."""

RANDOM = Timing(
    latency=(0, 400), ending=(0, 50), gap=(0, 50), command=0.5, read=0.6, write=0.6, grant=0.3
)
"""Everything happens at random times."""


NEVER = 1 << 62
"""A cycle that does not come."""


@dataclass(kw_only=True)
class Command:
    """A command inside the drive."""

    tag: int
    opcode: Opcode
    fua: bool
    block: int
    blocks: int
    ready: int
    granted: int = 0
    moved: int = 0
    failed: bool = False
    stuck: bool = False
    aborted: bool = False


@dataclass(kw_only=True)
class Counts:
    """What a drive has done; ``cut`` and ``halves``: reads and writes that broke off in a block;
    ``forgotten``: blocks that were not flushed, and are as before."""

    commands: int = 0
    blocks_read: int = 0
    blocks_written: int = 0
    flushes: int = 0
    longest: int = 0
    cut: int = 0
    halves: int = 0
    stuck: int = 0
    aborts: int = 0
    resets: int = 0
    forgotten: int = 0
    history: list = field(default_factory=list)


class DriveModel:
    """The drive at port ``index`` of ``dut``; starts by itself.

    ``storage`` maps block numbers to 4096 bytes; blocks not there read as ``fill(block)``.
    ``spoiled`` blocks are those made unreadable by WRITE_UNCORRECTABLE, until they are written;
    ``bad_reads`` and ``bad_writes`` are sets of blocks that end their command with the status in
    ``error``; with ``cut`` a bad read may break off inside the block, after ``cut_beats`` beats if
    that is given. ``hang`` commands that begin
    (-1: all) never end; ``deaf``: aborts do not end them, else they do ``abort_cycles`` later;
    ``lasting``: a reset does not cure that.
    ``freeze``: beats of write data after which the drive takes no more until its port is reset.
    ``forgets``: as it restarts it may lose what it has not flushed.

    Parameters
    ----------
    config
        Sizes.
    timing
        May be replaced at any time.
    capacity
        Blocks.
    prefix
        Name of the port array in the design.
    seed
        Of all random choices.
    """

    def __init__(
        self,
        dut,
        index: int,
        *,
        config: Config,
        timing: Timing = IDEAL,
        capacity: int = 1 << 20,
        prefix: str = "drives",
        seed: int = 1,
    ):
        self.index = index
        self.timing = timing
        self.capacity = capacity
        self.storage: dict[int, bytes] = {}
        self.stored_fua: dict[int, bool] = {}
        self.counts = Counts()
        self.bad_reads: set[int] = set()
        self.spoiled: set[int] = set()
        self.bad_writes: set[int] = set()
        self.error = DriveStatus.MEDIUM_ERROR
        self.cut = True
        self.cut_beats: int | None = None
        self.hang = 0
        self.deaf = False
        self.abort_cycles = 0
        self.lasting = False
        self.freeze: int | None = None
        self.present = True
        self.forgets = True
        self._config = config
        self._random = random.Random(f"{seed}/drive/{index}")
        self._clock = dut.clk
        self._reset = dut.rst

        def port(name: str):
            return getattr(dut, f"{prefix}__{index}__{name}")

        self._present, self._capacity = port("present"), port("capacity")
        self._command = [port(f"command__{part}") for part in ("valid", "ready", "payload")]
        self._grant = [port(f"grant__{part}") for part in ("valid", "ready", "payload")]
        self._write = [port(f"write_data__{part}") for part in ("valid", "ready", "payload")]
        self._read = [port(f"read_data__{part}") for part in ("valid", "ready", "payload")]
        self._end = [port(f"completion__{part}") for part in ("valid", "ready", "payload")]
        self._abort = [port(part) for part in ("abort", "abort_tag")]
        self._port_reset = port("reset")
        for valid, _, payload in (self._grant, self._read, self._end):
            valid.value = 0
            payload.value = 0
        for _, ready, _ in (self._command, self._write):
            ready.value = 0
        self._present.value = 1
        self._restarted = port("restarted")
        self._restarted.value = 0
        self._capacity.value = capacity
        if config.intent_chunks:
            port("identity").value = FIRST_IDENTITY + index

        self._commands: dict[int, Command] = {}
        self._unflushed: dict[int, bytes | None] = {}
        """What blocks held that were written since, and may be lost."""
        self._granted: deque[Command] = deque()
        self._incoming: list[int] = []
        self._ends: deque[tuple[int, Command, DriveStatus]] = deque()
        self._reading: Command | None = None
        self._beats: deque[int] = deque()
        self._cutting: Command | None = None
        self._granting: Command | None = None
        self._cycle = 0
        self._next_block = 0
        self._layouts = (
            drive_command(config),
            write_data(config),
            read_data(config),
            drive_completion(config),
        )
        every_cycle(self._clock, self._run())

    @property
    def idle(self) -> bool:
        """No command is inside."""
        return not self._commands and not self._granted and not self._ends

    def state(self) -> str:
        """What is inside, for messages."""
        return (
            f"{list(self._commands.values())} granting {self._granting} granted "
            f"{len(self._granted)} reading {self._reading} beats {len(self._beats)} "
            f"cutting {self._cutting} ends {list(self._ends)}"
        )

    def fill(self, block: int) -> bytes:
        """Contents of a block never written."""
        return (block * 0x9E3779B1 + self.index).to_bytes(8, "little") * (BLOCK_BYTES // 8)

    def read_block(self, block: int) -> bytes:
        """Contents of a block."""
        return self.storage.get(block) or self.fill(block)

    def remove(self) -> None:
        """The drive goes away: every command inside, and every later one, ends with GONE."""
        self.present = False
        self._present.value = 0
        self._end_all(DriveStatus.GONE)

    def _end_all(self, status: DriveStatus) -> None:
        """Ends every command for which no write data is on its way."""
        if self._reading is not None:
            self._break_off(self._reading)
        for command in list(self._commands.values()):
            stored = command.opcode is not Opcode.WRITE or command.granted == command.moved
            if stored and command is not self._granting:
                self._complete(command, status, delay=0)

    async def restart(self) -> None:
        """The drive begins anew and says so: every command inside ends as aborted, and so does what
        is offered to it then. What it has not flushed is gone, or not."""
        for block, before in self._unflushed.items():
            if self.forgets and self._random.random() < 0.5:
                self.counts.forgotten += 1
                self.storage.pop(block, None)
                if before is not None:
                    self.storage[block] = before
        self._unflushed.clear()
        self._abort_all()
        self._restarted.value = 1
        await RisingEdge(self._clock)
        self._restarted.value = 0

    def _abort_all(self) -> None:
        for command in self._commands.values():
            command.aborted = True
        self._end_all(DriveStatus.ABORTED)

    def insert(self) -> None:
        """A drive, empty of commands, is there again."""
        assert self.idle, "commands of the removed drive have not ended"
        self.present = True
        self._present.value = 1

    def _complete(self, command: Command, status: DriveStatus, *, delay: int | None = None) -> None:
        if self._commands.pop(command.tag, None) is None:
            return
        if delay is None:
            delay = self._random.randint(*self.timing.ending)
        self._ends.append((self._cycle + delay, command, status))

    def _break_off(self, command: Command) -> None:
        """No more beats of the block under way."""
        if self._beats and len(self._beats) < self._config.beats:
            self.counts.cut += 1
        self._beats.clear()
        self._reading = None
        self._cutting = command

    def _chance(self, value: float) -> bool:
        return value >= 1.0 or self._random.random() < value

    def _take_command(self, bits: int) -> None:
        fields = unpack(self._layouts[0], bits)
        name = f"drive {self.index} tag {fields.tag}"
        assert fields.tag not in self._commands, f"{name}: tag already in use"
        assert all(end[1].tag != fields.tag for end in self._ends), f"{name}: tag not yet retired"
        blocks = fields.blocks + 1
        opcode = Opcode(fields.opcode)
        assert opcode is Opcode.FLUSH or fields.block + blocks <= self.capacity, f"{name}: too far"
        command = Command(
            tag=fields.tag,
            opcode=opcode,
            fua=bool(fields.fua),
            block=fields.block,
            blocks=blocks if opcode in (Opcode.READ, Opcode.WRITE) else 0,
            ready=self._cycle + self._random.randint(*self.timing.latency),
        )
        self._commands[command.tag] = command
        self.counts.commands += 1
        self.counts.longest = max(self.counts.longest, command.blocks)
        self.counts.history.append((opcode.name, command.block, command.blocks, command.fua))
        if not self.present:
            self._complete(command, DriveStatus.GONE)
        elif self.hang:
            self.hang -= self.hang > 0
            self.counts.stuck += 1
            command.stuck = True
            command.ready = NEVER

    def _abort_newest(self) -> None:
        """The command taken last was offered as the drive began anew."""
        if self._commands:
            command = list(self._commands.values())[-1]
            command.aborted = True
            self._complete(command, DriveStatus.ABORTED)

    def _take_abort(self, tag: int) -> None:
        self.counts.aborts += 1
        command = self._commands.get(tag)
        if command is not None and command.stuck and not self.deaf:
            if self.abort_cycles:
                cocotb.start_soon(self._abort_late(command, tag))
            else:
                self._complete(command, DriveStatus.ABORTED)

    async def _abort_late(self, command, tag: int) -> None:
        await ClockCycles(self._clock, self.abort_cycles)
        if self._commands.get(tag) is command:
            self._complete(command, DriveStatus.ABORTED)

    def _forget(self) -> None:
        """The port is reset: the core has no commands, and offers nothing."""
        self.counts.resets += 1
        if self._beats and len(self._beats) < self._config.beats:
            self.counts.cut += 1
        self.counts.halves += bool(self._incoming)
        for inside in (
            self._commands, self._granted, self._incoming, self._ends, self._beats,
        ):  # fmt: skip
            inside.clear()
        self._reading = self._cutting = self._granting = None
        self.freeze = None
        if not self.lasting:
            self.hang = 0
        for valid in (self._grant[0], self._read[0], self._end[0]):
            valid.value = 0

    def _take_beat(self, bits: int) -> None:
        assert self._granted, f"drive {self.index}: write data without a grant"
        fields = unpack(self._layouts[1], bits)
        if self.freeze:
            self.freeze -= 1
        self._incoming.append(fields.data)
        ended = len(self._incoming) == self._config.beats
        assert bool(fields.last) == ended, f"drive {self.index}: last on beat {len(self._incoming)}"
        if not ended:
            return
        command = self._granted.popleft()
        content = b"".join(
            beat.to_bytes(self._config.beat_bytes, "little") for beat in self._incoming
        )
        self._incoming.clear()
        block = command.block + command.moved
        command.moved += 1
        if not self.present or command.aborted:
            if command.moved == command.granted:
                status = DriveStatus.ABORTED if self.present else DriveStatus.GONE
                self._complete(command, status)
            return
        if block in self.bad_writes:
            command.failed = True
            command.blocks = command.granted + (command is self._granting)
        else:
            if command.fua:
                self._unflushed.pop(block, None)
            else:
                self._unflushed.setdefault(block, self.storage.get(block))
            self.storage[block] = content
            self.stored_fua[block] = command.fua
            if block in self.spoiled:
                self.spoiled.discard(block)
                self.bad_reads.discard(block)
            self.counts.blocks_written += 1
        if command.moved == command.blocks:
            self._complete(command, self.error if command.failed else DriveStatus.GOOD)

    def _ready_commands(self, opcode: Opcode) -> list[Command]:
        return [
            command
            for command in self._commands.values()
            if command.opcode is opcode and command.ready <= self._cycle
        ]

    def _next_read(self) -> None:
        """Chooses the next block to send, if any."""
        if self._cutting is not None or not self._commands or self._cycle < self._next_block:
            return
        ready = self._ready_commands(Opcode.READ)
        if not ready:
            return
        command = self._random.choice(ready)
        block = command.block + command.moved
        content = self.read_block(block)
        size = self._config.beat_bytes
        last = self._config.beats - 1
        beats = [
            pack(
                self._layouts[2],
                data=int.from_bytes(content[n * size : (n + 1) * size], "little"),
                tag=command.tag,
                last=int(n == last),
            )
            for n in range(self._config.beats)
        ]
        if block in self.bad_reads:
            count = self._random.randrange(self._config.beats) if self.cut else 0
            if self._random.random() < 0.3:
                count = 0
            if self.cut_beats is not None:
                count = self.cut_beats
            if count == 0:
                self._complete(command, self.error, delay=0)
                self._cutting = command
                return
            self.counts.cut += 1
            self._beats.extend(beats[:count])
        else:
            self._beats.extend(beats)
        self._reading = command

    def _sent_beat(self) -> None:
        command = self._reading
        assert command is not None
        last = self._beats.popleft()
        if self._beats:
            return
        self._reading = None
        self._next_block = self._cycle + self._random.randint(*self.timing.gap)
        if not last >> self._last_bit & 1:
            self._complete(command, self.error, delay=0)
            self._cutting = command
            return
        command.moved += 1
        self.counts.blocks_read += 1
        if command.moved == command.blocks:
            self._complete(command, DriveStatus.GOOD)

    def _run(self) -> Iterator[None]:
        layout = self._layouts[2]
        self._last_bit = layout["last"].offset
        command_ready = write_ready = grant_valid = read_valid = end_valid = False
        refused_command: int | None = None
        refused_beat: int | None = None
        late = False  # What is offered was so as the drive began anew.
        shut = False
        while True:
            # Drive this cycle.
            timing = self.timing
            want = self._chance(timing.command)
            if want != command_ready:
                command_ready = want
                self._command[1].value = int(want)
            want = bool(self._granted) and self.freeze != 0 and self._chance(timing.write)
            if want != write_ready:
                write_ready = want
                self._write[1].value = int(want)
            if self._granting is None and self._commands and self._chance(timing.grant):
                ready = [
                    command
                    for command in self._ready_commands(Opcode.WRITE)
                    if command.granted < command.blocks and self.present and not command.aborted
                ]
                if ready:
                    self._granting = self._random.choice(ready)
            if (self._granting is not None) != grant_valid:
                grant_valid = self._granting is not None
                self._grant[0].value = int(grant_valid)
            if self._granting is not None:
                self._grant[2].value = self._granting.tag
            for command in self._ready_commands(Opcode.FLUSH) if self._commands else ():
                self.counts.flushes += 1
                self._unflushed.clear()
                self._complete(command, DriveStatus.GOOD)
            for command in self._ready_commands(Opcode.WRITE_UNCORRECTABLE):
                self.spoiled.add(command.block)
                self.bad_reads.add(command.block)
                self._complete(command, DriveStatus.GOOD)
            if self._ends and self._cutting is not None and self._ends[0][1] is not self._cutting:
                # A broken-off command ends before anything else.
                self._ends = deque(sorted(self._ends, key=lambda end: end[1] is not self._cutting))
            # The end of a command follows its last beat.
            broken = bool(self._ends) and read_valid and self._ends[0][1] is self._cutting
            if not end_valid and self._ends and self._ends[0][0] <= self._cycle and not broken:
                _, command, status = self._ends[0]
                self._end[2].value = pack(self._layouts[3], tag=command.tag, status=status)
                self._end[0].value = 1
                end_valid = True
                self._ends.popleft()
                if command is self._cutting:
                    self._cutting = None
            if not read_valid:
                if not self._beats:
                    self._next_read()
                if self._beats and self._chance(timing.read):
                    self._read[2].value = self._beats[0]
                    self._read[0].value = 1
                    read_valid = True

            yield
            if sample(self._reset):
                continue
            self._cycle += 1
            if sample(self._port_reset):
                if not shut:
                    self._forget()
                shut = True
                grant_valid = read_valid = end_valid = False
                refused_command = refused_beat = None
                late = False
                continue
            shut = False
            if sample(self._abort[0]):
                self._take_abort(sample(self._abort[1]))

            # What happened in it.
            offered = sample(self._command[0])
            assert offered or refused_command is None, f"drive {self.index}: command withdrawn"
            bits = sample(self._command[2]) if offered else 0
            if refused_command is not None:
                assert bits == refused_command, f"drive {self.index}: command changed"
            refused_command = None
            if offered:
                restarts = bool(sample(self._restarted))
                if command_ready:
                    self._take_command(bits)
                    if late and not restarts:
                        self._abort_newest()
                    late = False
                else:
                    refused_command = bits
                    late |= restarts
            if self._granted or refused_beat is not None:
                offered = sample(self._write[0])
                assert offered or refused_beat is None, f"drive {self.index}: data withdrawn"
                bits = sample(self._write[2]) if offered else 0
                if refused_beat is not None:
                    assert bits == refused_beat, f"drive {self.index}: data changed"
                refused_beat = None
                if offered:
                    if write_ready:
                        self._take_beat(bits)
                    else:
                        refused_beat = bits
            if grant_valid and sample(self._grant[1]):
                assert self._granting is not None
                self._granting.granted += 1
                self._granted.append(self._granting)
                self._granting = None
            if read_valid and sample(self._read[1]):
                read_valid = False
                if self._beats:
                    self._sent_beat()
                if self._beats and self._chance(timing.read):
                    self._read[2].value = self._beats[0]
                    read_valid = True
                elif not self._beats:
                    self._next_read()
                    if self._beats and self._chance(timing.read):
                        self._read[2].value = self._beats[0]
                        read_valid = True
                if not read_valid:
                    self._read[0].value = 0
            if end_valid and sample(self._end[1]):
                self._end[0].value = 0
                end_valid = False
            if sample(self._restarted):
                self._abort_all()
