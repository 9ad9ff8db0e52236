"""Behavioural models around the stripe engine: tables, lines, drives and the parity engine.

Blocks are short byte strings: the stripe engine never sees data, so what matters is which block
went where, and through which sums.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.triggers import Event, RisingEdge
from cocotb.utils import get_sim_time

from cocotb_tests.array.array_models import FLUSH_IGNORES, flush_operation
from cocotb_tests.fields import check_fields
from cocotb_tests.streams import (
    Packing,
    StreamSink,
    StreamSource,
    TableServer,
    cycles_pass,
    every_cycle,
    sample,
    unpack,
)
from hdl.config import DATA_OFFSET_BLOCKS, PIECES, Config
from hdl.flow.geometry import Rotation, geometry
from hdl.flow.intention import intention
from hdl.flow.operation import DriveStatus, Opcode, Owner, finished, operation
from hdl.flow.parity_pass import StepKind, pass_done, step
from hdl.flow.piece import piece
from hdl.flow.table_read import member_address

BLOCK = 8
"""Bytes that stand for a block, one for each of its pieces."""

assert BLOCK == PIECES

_EXP = [1]
for _ in range(254):
    _value = _EXP[-1] << 1
    _EXP.append(_value ^ 0x11D if _value & 0x100 else _value)
_LOG = {value: power for power, value in enumerate(_EXP)}


def multiply(a: int, b: int) -> int:
    """Product in GF(2^8)."""
    return _EXP[(_LOG[a] + _LOG[b]) % 255] if a and b else 0


def scale(coefficient: int, block: bytes) -> bytes:
    """A block times a constant."""
    return bytes(multiply(coefficient, byte) for byte in block)


def add(a: bytes, b: bytes) -> bytes:
    """The sum of two blocks."""
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def syndromes(blocks: dict[int, bytes], count: int) -> list[bytes]:
    """Sums of g**(j * role) times each block, for j in 0..``count`` - 1."""
    sums = [bytes(BLOCK)] * count
    for role, block in blocks.items():
        for j in range(count):
            sums[j] = add(sums[j], scale(_EXP[j * role % 255], block))
    return sums


def solve(
    known: dict[int, bytes], parities: dict[int, bytes], erased: list[int]
) -> dict[int, bytes] | None:
    """The blocks of roles ``erased`` from the known ones and as many parities, or None."""
    rows = []
    for j, value in sorted(parities.items())[: len(erased)]:
        rest = add(value, syndromes(known, j + 1)[j])
        rows.append(([_EXP[j * role % 255] for role in erased], rest))
    if len(rows) < len(erased):
        return None
    for column in range(len(erased)):
        pivot = next((r for r in range(column, len(rows)) if rows[r][0][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        factors, value = rows[column]
        inverse = _EXP[-_LOG[factors[column]] % 255]
        factors, value = [multiply(inverse, f) for f in factors], scale(inverse, value)
        rows[column] = factors, value
        for other, (others, rest) in enumerate(rows):
            if other != column and others[column]:
                ratio = others[column]
                rows[other] = (
                    [x ^ multiply(ratio, f) for x, f in zip(others, factors, strict=True)],
                    add(rest, scale(ratio, value)),
                )
    return {role: rows[i][1] for i, role in enumerate(erased)}


@dataclass(frozen=True, kw_only=True)
class ArrayModel:
    """One array: its geometry and the ports of its members."""

    width: int
    parities: int = 0
    copies: int = 1
    spans: int = 1
    strip_shift: int = 2
    rotation: Rotation = Rotation.LEFT_SYMMETRIC
    ports: tuple[int, ...] = field(default=())

    @property
    def data(self) -> int:
        return self.width - self.parities

    @property
    def mirrored(self) -> bool:
        return self.copies > 1

    def geometry(self, config: Config) -> dict[str, int]:
        """Fields of `hdl.flow.geometry.geometry`."""
        # Nothing but this allows updates where rows are not walked.
        assumed = {} if config.background else {"assumed": 1}
        if config.metadata:
            assumed["data_offset"] = DATA_OFFSET_BLOCKS
        return assumed | {
            "valid": 1,
            "width": self.width,
            "data": self.data,
            "parities": self.parities,
            "copies": self.copies,
            "spans": self.spans,
            "strip_shift": self.strip_shift,
            "rotate": int(self.parities != 0),
            "rotation": self.rotation.value,
            "rows": 1 << 20,
            "blocks": 1 << 20,
        }

    def port(self, position: int) -> int:
        return self.ports[position]

    def places(self, *, base: int, shift: int, index: int, row: int) -> list[tuple[int, int]]:
        """(port, drive block) of each copy of data strip ``index`` of a row."""
        found = []
        for copy in range(self.copies):
            place = shift + (index * self.copies if self.mirrored else index) + copy
            if self.mirrored:
                wraps, place = divmod(place, self.width)
            else:
                wraps, place = 0, place % self.width
            block = DATA_OFFSET_BLOCKS + row + (wraps << self.strip_shift)
            found.append((self.port(base + place), block))
        return found

    def parity_place(self, *, base: int, shift: int, parity: int, row: int) -> tuple[int, int]:
        """(port, drive block) of a parity of a row, P being 0."""
        if self.rotation == Rotation.DDF_N_CONTINUE:
            parity = self.parities - 1 - parity
        place = (shift + self.data + parity) % self.width
        return self.port(base + place), DATA_OFFSET_BLOCKS + row

    def exponent(self, role: int, *, shift: int) -> int:
        """x such that a data role weighs g**x in Q."""
        ddf = self.rotation in (
            Rotation.DDF_N_CONTINUE,
            Rotation.DDF_N_RESTART,
            Rotation.DDF_ZERO_RESTART,
        )
        return (shift + role) % self.width if ddf else role

    def sums(self, known: dict[int, bytes], *, shift: int) -> list[bytes]:
        """The parities of a row from its data roles."""
        weighed = {self.exponent(role, shift=shift): block for role, block in known.items()}
        return syndromes(weighed, self.parities)

    def solve(
        self, known: dict[int, bytes], parities: dict[int, bytes], lost: list[int], *, shift: int
    ) -> dict[int, bytes] | None:
        """The lost data roles of a row, or None."""
        weighed = {self.exponent(role, shift=shift): block for role, block in known.items()}
        erased = {self.exponent(role, shift=shift): role for role in lost}
        found = solve(weighed, parities, list(erased))
        return None if found is None else {erased[x]: block for x, block in found.items()}


class Tables:
    """Geometry and member tables of some arrays, read by ``reads``, or geometries alone by
    ``geometry_read``."""

    def __init__(self, dut, config: Config, arrays: list[ArrayModel], *, members: bool = True):
        self._config = config
        self._arrays = arrays
        self._geometry = Packing(geometry(config))
        self._address = member_address(config)
        self._geometries: dict[int, tuple[ArrayModel, int]] = {}
        self._members: dict[int, tuple[int, int]] = {}
        TableServer(dut, "reads__geometry" if members else "geometry_read", self.geometry_of)
        if members:
            TableServer(dut, "reads__member", self._member)

    def replace(self, number: int, array: ArrayModel) -> None:
        """An array whose members have changed."""
        self._arrays[number] = array

    def geometry_of(self, address: int) -> int:
        """The packed geometry of an array."""
        if address >= len(self._arrays):
            return 0
        array = self._arrays[address]
        packed = self._geometries.get(address)
        if packed is None or packed[0] is not array:
            bits = self._geometry(**array.geometry(self._config))
            packed = self._geometries[address] = array, bits
        return packed[1]

    def _member(self, address: int) -> int:
        if address not in self._members:
            fields = unpack(self._address, address)
            self._members[address] = fields.array, fields.position
        array, position = self._members[address]
        if array >= len(self._arrays):
            return 0
        ports = self._arrays[array].ports
        return ports[position] if position < len(ports) else 0


class Lines:
    """Who owns which line, and what is in it; every misuse is an error."""

    def __init__(self, count: int):
        self.count = count
        self.free = deque(range(count))
        self.taken: dict[int, str] = {}
        self.contents: dict[int, bytes] = {}

    def take(self, owner: str) -> int:
        line = self.free.popleft()
        self.taken[line] = owner
        return line

    def give_back(self, line: int) -> None:
        assert line in self.taken, f"line {line} given back twice"
        del self.taken[line]
        self.contents.pop(line, None)
        self.free.append(line)

    def read(self, line: int) -> bytes:
        assert line in self.taken, f"line {line} is read but free"
        assert line in self.contents, f"line {line} is read but was never written"
        return self.contents[line]

    def write(self, line: int, block: bytes) -> None:
        assert line in self.taken, f"line {line} is written but free"
        self.contents[line] = block


class Allocator:
    """Offers lines on ``name`` of ``dut`` while more than ``reserve`` are free."""

    def __init__(self, dut, lines: Lines, *, name: str, reserve: int = 0, active: float, seed):
        self._lines = lines
        self._reserve = reserve
        self._name = name
        self._random = random.Random(f"{seed}/{name}")
        self._active = active
        self._valid = getattr(dut, f"{name}__valid")
        self._payload = getattr(dut, f"{name}__payload")
        self._ready = getattr(dut, f"{name}__ready")
        self._valid.value = 0
        every_cycle(dut.clk, self._run())

    def _run(self) -> Iterator[None]:
        offered = None
        while True:
            if offered is None and len(self._lines.free) > self._reserve:
                if self._random.random() < self._active:
                    offered = self._lines.take(f"offered by {self._name}")
                    self._payload.value = offered
                    self._valid.value = 1
            yield
            if offered is not None and sample(self._ready):
                self._lines.taken[offered] = self._name
                offered = None
                self._valid.value = 0

    def offered(self) -> int:
        """Lines on offer, which count as free."""
        return sum(owner == f"offered by {self._name}" for owner in self._lines.taken.values())


OPERATION_IGNORES = {
    "restarts": "of what is dated",
    "READ:early.seat": "of what is early",
    **{
        f"{opcode}:{field}": "of a read"
        for opcode in ("WRITE", "WRITE_UNCORRECTABLE")
        for field in ("elsewhere", "early.seat")
    },
    "WRITE_UNCORRECTABLE:line": "no block is moved",
}
"""Fields without a meaning in an operation of a row."""

STEP_IGNORES = {
    **{
        f"{kind}:{field}": "of RECOVER"
        for kind in ("GENERATE", "DATA", "PARITY", "OUTPUT")
        for field in ("erased", "parities")
    },
    **{
        f"{kind}:{field}": "of the last OUTPUT"
        for kind in ("GENERATE", "RECOVER", "DATA", "PARITY")
        for field in ("last", "index")
    },
    **{
        f"{kind}:{field}": "a begin has no block"
        for kind in ("GENERATE", "RECOVER")
        for field in ("role", "line")
    },
    **{f"{kind}:piece": "that of the begin counts" for kind in ("DATA", "PARITY", "OUTPUT")},
    "piece.number": "of a pass for a piece",
}
"""Fields without a meaning in a step of a pass."""


class DrivesModel:
    """Drives that answer operations in any order, fail, and lose blocks.

    ``blocks`` is what is stored; ``unreadable`` blocks give MEDIUM_ERROR until written; ``aborts``,
    ``write_errors``: chance of ABORTED, and of MEDIUM_ERROR on a write to a port that
    ``may_fail`` allows. ``unreached``: chance that an operation that was not sent alone ends with
    UNREACHED; the next one for that block must be alone. Ports in ``gone`` answer GONE. To read a
    block in ``distrusted`` is an error. Reads of ports in ``slow`` that may be had elsewhere end as
    SLOW, others are counted in ``waited``. The first write to each block in ``stubborn`` gives
    MEDIUM_ERROR, as many to each as ``aborted`` counts give ABORTED, and as many reads as
    ``aborted_reads`` counts. Every one to those in
    ``refusing`` gives MEDIUM_ERROR, and to those in ``aborting`` ABORTED; these cannot be made
    unreadable unless ``spoils_refused``. A write that is aborted may have been stored. An operation
    at a block in ``held`` waits for the event there. With ``intent_chunks`` no row slot may write
    that is not in ``begun``, which maps those announced to what was said of them, unless
    ``needs_no_mark`` is true of it and the port. ``lets`` is told of slots that ask. ``wants_fua``
    says of an operation whether it is to be FUA, or None, and ``wants_more`` whether it is to say
    that more follows, or None.
    ``stored`` is what outlives a power cut: what was written or read with FUA, and what drives held
    as they were flushed. What the controller has made unreadable is in ``marked``. What of that was
    not flushed since is in ``spoilt``: a power cut makes it readable again. ``flush_errors``:
    chance that a drive ends a FLUSH with an error. One in ``gone`` is reported on ``gives_up``
    then, as the tables find out by themselves. ``flushing`` is called in each FLUSH, with its
    number. ``may_flush`` says of a port whether a row of ``array`` may need its FLUSH.
    ``redundant``: reads may be had elsewhere. One that is dated otherwise than its port's
    ``restarts`` ends with ABORTED and is not done.
    """

    def __init__(
        self, dut, config: Config, lines: Lines, *, active: float, seed, latency: int = 40
    ):
        self.config = config
        self.lines = lines
        self.blocks: dict[tuple[int, int], bytes] = {}
        self.stored: dict[tuple[int, int], bytes] = {}
        self.unreadable: set[tuple[int, int]] = set()
        self.marked: set[tuple[int, int]] = set()
        self.spoilt: set[tuple[int, int]] = set()
        self.flush_errors = 0.0
        self.flushes = 0
        self.array = 0
        self.ended_at: dict[int, float] = {}  # the last operation of each row slot
        self.flushing: Callable[[int], None] = lambda number: None
        self.gives_up: Callable[[int], None] = lambda port: None
        self.may_flush: Callable[[int], bool] = lambda port: True
        self.distrusted: set[tuple[int, int]] = set()
        self.gone: set[int] = set()
        self.slow: set[int] = set()
        self.waited: Counter[int] = Counter()
        self.aborts = 0.0
        self.unreached = 0.0
        self.left_alone: set[tuple[int, int]] = set()
        self.write_errors = 0.0
        self.stubborn: set[tuple[int, int]] = set()
        self.aborted: Counter[tuple[int, int]] = Counter()
        self.aborted_reads: Counter[tuple[int, int]] = Counter()
        self.refusing: set[tuple[int, int]] = set()
        self.aborting: set[tuple[int, int]] = set()
        self.held: dict[tuple[int, int], Event] = {}
        self.spoils_refused = False
        self.may_fail = lambda port: False
        self.begun: dict[int, tuple[int, int]] = {}
        self.lets: Callable[[int], None] | None = None
        self.needs_no_mark = lambda slot, port: False
        self.wants_fua: Callable[[Any], bool | None] = lambda one: False
        self.wants_more: Callable[[Any], bool | None] = lambda one: None
        self.redundant = True
        self.restarts: Counter[int] = Counter()
        self.counts: Counter = Counter()
        self.outstanding = 0
        self.flushed_now: set[int] = set()
        self.latency = latency
        self._random = random.Random(f"{seed}/drives")
        self._clock = dut.clk
        self._finished = StreamSource(
            dut, "finished", layout=finished(config), active=active, seed=seed
        )
        self.pieces = 0
        if config.early_rows:
            self._piece = StreamSource(dut, "piece", layout=piece(config), active=1.0, seed=seed)
        self._marks = hasattr(dut, "begun__valid")
        if self._marks:
            StreamSink(
                dut,
                "begun",
                layout=intention(config),
                active=active,
                seed=seed,
                callback=self._begin,
            )
        self.asked = StreamSink(
            dut,
            "operation",
            layout=operation(config),
            active=active,
            seed=seed,
            callback=self._take,
            ignores=OPERATION_IGNORES,
        )
        self._told = StreamSource(
            dut, "flushed", layout=finished(config), active=active, seed=seed
        )
        self.flush_sink = StreamSink(
            dut,
            "flush",
            layout=operation(config),
            active=0.05,  # others ask as well
            seed=seed,
            callback=lambda one: cocotb.start_soon(self._flush(one)),
            ignores=FLUSH_IGNORES,
        )

    def answers(self, answers: bool) -> None:
        """Whether ends of operations are told, or kept for later."""
        self._finished.paused = not answers

    def _begin(self, one) -> None:
        self.begun[one.slot] = one.array, one.row
        if self.lets is not None and one.asks:
            self.lets(one.slot)

    async def _flush(self, one) -> None:
        """A FLUSH of a drive for rows of an array. It ends at any time."""
        port = one.port
        wanted = flush_operation(
            port=port,
            owner=Owner.FLUSHER,
            index=self.array,
            place=1,
            restarts=self.restarts[port],
        )
        check_fields(one, {**wanted, "alone": 1}, "the FLUSH of a drive for rows")
        assert port not in self.flushed_now, f"port {port} is asked again"
        assert self.may_flush(port), f"no row needs port {port}"
        self.flushed_now.add(port)
        self.flushes += 1
        number, status = self.flushes, DriveStatus.GOOD
        held, before, spoilt = dict(self.blocks), dict(self.stored), set(self.spoilt)
        await cycles_pass(self._clock, self._random.randrange(1, 2 * self.latency))
        self.flushing(number)
        if port in self.gone:
            self.gives_up(port)
            status = DriveStatus.GONE
        elif self._random.random() < self.flush_errors:
            status = DriveStatus.MEDIUM_ERROR
        else:
            for key, block in held.items():
                if key[0] == port and self.stored.get(key) == before.get(key):
                    self.stored[key] = block
            self.spoilt -= {key for key in spoilt if key[0] == port}
        self.flushed_now.discard(port)
        self._told.send(
            port=port,
            opcode=one.opcode,
            owner=one.owner,
            index=one.index,
            place=one.place,
            status=status,
        )

    def store(self, port: int) -> None:
        """The drive has been flushed."""
        self.stored |= {key: block for key, block in self.blocks.items() if key[0] == port}
        self.spoilt = {key for key in self.spoilt if key[0] != port}

    def is_cached(self, key: tuple[int, int]) -> bool:
        """A power cut now takes what the block holds."""
        empty = bytes(BLOCK)
        return self.stored.get(key, empty) != self.blocks.get(key, empty)

    def _take(self, one) -> None:
        assert one.owner == Owner.ROW and one.blocks == 0
        assert not any(one.recover.values()), "the record of a host's read"
        more = self.wants_more(one)
        assert not (one.more and one.alone), f"nothing follows {one}, which is alone"
        assert more is None or one.more == more, f"{one} should{' not' * one.more} say more"
        if self.config.slow_read_ms and one.opcode == Opcode.READ:
            assert not one.elsewhere or self.redundant, f"nobody else has what {one} reads"
        if self.config.early_rows and one.opcode != Opcode.READ:
            assert not one.early.any, f"{one} is no read"
        cocotb.start_soon(self._serve(one))

    async def _serve(self, one) -> None:
        self.outstanding += 1
        self.counts[one.opcode] += 1
        key = one.port, one.block
        writes = one.opcode != Opcode.READ
        assert self.wants_fua(one) in (None, one.fua), f"{one} should{' not' * one.fua} be FUA"
        if self._marks and writes and not self.needs_no_mark(one.index, one.port):
            assert one.index in self.begun, f"slot {one.index} writes unannounced"
        await cycles_pass(self._clock, self._random.randrange(1, self.latency))
        if key in self.held:
            await self.held[key].wait()
        status = DriveStatus.GOOD
        if one.port in self.gone:
            status = DriveStatus.GONE
        elif key in self.left_alone and not one.alone:
            raise AssertionError(f"{key} was not reached, and is not asked alone")
        elif self.config.background and one.dated and one.restarts != self.restarts[one.port]:
            status = DriveStatus.ABORTED
            self.counts[DriveStatus.ABORTED] += 1
        elif not one.alone and self._random.random() < self.unreached:
            status = DriveStatus.UNREACHED
            if one.opcode == Opcode.WRITE and self._random.random() < 0.5:
                self.blocks[key] = self.lines.read(one.line)
        elif self._random.random() < self.aborts or self._is_aborted(one.opcode, key):
            status = DriveStatus.ABORTED
            if writes:
                self.aborted -= Counter([key])
            else:
                self.aborted_reads -= Counter([key])
            if one.opcode == Opcode.WRITE and self._random.random() < 0.5:
                self.blocks[key] = self.lines.read(one.line)
        elif one.port in self.slow and one.elsewhere:
            assert one.opcode == Opcode.READ
            status = DriveStatus.SLOW
            self.counts[DriveStatus.SLOW] += 1
        elif one.opcode == Opcode.READ:
            assert key not in self.distrusted, f"{key} is read, but has not been rebuilt"
            self.waited.update({one.port} & self.slow)
            if key in self.unreadable:
                status = DriveStatus.MEDIUM_ERROR
            else:
                await self._land(one, self.blocks.get(key, bytes(BLOCK)), count=BLOCK)
                self.lines.write(one.line, self.blocks.get(key, bytes(BLOCK)))
        elif one.opcode == Opcode.WRITE_UNCORRECTABLE:
            if key in self.refusing and not self.spoils_refused:
                status = DriveStatus.MEDIUM_ERROR
            else:
                self.unreadable.add(key)
                self.marked.add(key)
                self.spoilt.add(key)
        else:
            if key in self.refusing:
                status = DriveStatus.MEDIUM_ERROR
            elif key in self.stubborn:
                self.stubborn.discard(key)
                status = DriveStatus.MEDIUM_ERROR
            elif self._random.random() < self.write_errors and self.may_fail(one.port):
                status = DriveStatus.MEDIUM_ERROR
            else:
                self.blocks[key] = self.lines.read(one.line)
                self.unreadable.discard(key)
                self.marked.discard(key)
                self.spoilt.discard(key)
        if one.opcode == Opcode.WRITE:
            self.lines.read(one.line)
        if one.fua and status == DriveStatus.GOOD:
            self.stored[key] = self.blocks.get(key, bytes(BLOCK))
        if one.opcode == Opcode.READ and status != DriveStatus.GOOD:
            block = self.blocks.get(key, bytes(BLOCK))
            await self._land(one, block, count=self._random.randrange(BLOCK + 1))
        if status == DriveStatus.UNREACHED:
            self.left_alone.add(key)
        else:
            self.left_alone.discard(key)
        self.outstanding -= 1
        self.ended_at[one.index] = get_sim_time("ns")
        self._finished.send(
            port=one.port,
            opcode=one.opcode,
            owner=Owner.ROW,
            index=one.index,
            place=one.place,
            status=status,
        )

    def _is_aborted(self, opcode: Opcode, key: tuple[int, int]) -> bool:
        if opcode == Opcode.READ:
            return self.aborted_reads[key] > 0
        spoils = opcode == Opcode.WRITE_UNCORRECTABLE and self.spoils_refused
        return self.aborted[key] > 0 or (key in self.aborting and not spoils)

    async def _land(self, one, block: bytes, *, count: int) -> None:
        """The first ``count`` pieces of an early read, each told of once it is in its line."""
        if not self.config.early_rows or not one.early.any:
            return
        pause = self._random.choice((0, 1, 8, 40))
        landed = self._random.randbytes(BLOCK)
        self.lines.write(one.line, landed)
        for number in range(count):
            await cycles_pass(self._clock, self._random.randint(0, pause))
            landed = block[: number + 1] + landed[number + 1 :]
            self.lines.write(one.line, landed)
            self._piece.send(seat=one.early.seat, number=number)
            self.pieces += 1
        while not self._piece.idle:
            await RisingEdge(self._clock)


class ParityModel:
    """The parity engine: passes in order, real sums. Lines that were never written may be read if
    ``dirty``."""

    def __init__(self, dut, config: Config, lines: Lines, *, active: float, seed):
        self.lines = lines
        self.passes = 0
        self.dirty = False
        self._background = config.background
        self._early = bool(config.early_rows)
        self.early = 0
        self._random = random.Random(f"{seed}/parity")
        self._clock = dut.clk
        self._steps: deque = deque()
        self._taken = Event()
        self._done = StreamSource(
            dut, "pass_done", layout=pass_done(config), active=active, seed=seed
        )
        self.asked = StreamSink(
            dut,
            "step",
            layout=step(config),
            active=active,
            seed=seed,
            callback=self._take,
            ignores=STEP_IGNORES,
        )
        cocotb.start_soon(self._run())

    @property
    def idle(self) -> bool:
        return not self._steps

    def _take(self, one) -> None:
        self._steps.append(one)
        self._taken.set()

    async def _next(self):
        while not self._steps:
            self._taken.clear()
            await self._taken.wait()
        await cycles_pass(self._clock, self._random.randrange(4))
        return self._steps.popleft()

    async def _run(self) -> None:
        while True:
            begin = await self._next()
            assert begin.kind in (StepKind.GENERATE, StepKind.RECOVER), begin
            known: list[tuple[int, bytes]] = []
            parities: dict[int, bytes] = {}
            results: dict[int, bytes] | None = None
            solved = True
            nonzero = 0
            while True:
                one = await self._next()
                if one.kind == StepKind.DATA:
                    assert results is None, "input after an output"
                    if self.dirty:
                        content = self._random.randbytes(BLOCK)
                        self.lines.contents.setdefault(one.line, content)
                    known.append((one.role, self.lines.read(one.line)))
                elif one.kind == StepKind.PARITY:
                    assert results is None, "input after an output"
                    assert one.role not in parities
                    parities[one.role] = self.lines.read(one.line)
                else:
                    assert one.kind == StepKind.OUTPUT, one
                    if results is None:
                        results = self._compute(begin, known, parities)
                        solved = results is not None
                        results = results or {}
                    if solved:
                        old = self.lines.contents.get(one.line, bytes(BLOCK))
                        place = slice(0, BLOCK)
                        if self._early and begin.piece.any:
                            place = slice(begin.piece.number, begin.piece.number + 1)
                        new = old[: place.start] + results[one.role][place] + old[place.stop :]
                        self.lines.write(one.line, new)
                        nonzero |= any(results[one.role]) << one.role
                    if one.last:
                        break
            self.passes += 1
            done = {"nonzero": nonzero} if self._background else {}
            if self._early:
                done["piece"] = begin.piece
                self.early += begin.piece.any
            self._done.send(index=one.index, error=int(not solved), **done)

    def _compute(self, begin, known, parities) -> dict[int, bytes] | None:
        if begin.kind == StepKind.GENERATE:
            results = {}
            for j in range(4):
                total = parities.get(j, bytes(BLOCK))
                for role, block in known:
                    total = add(total, scale(_EXP[j * role % 255], block))
                results[j] = total
            return results
        erased = [role for role in range(32) if begin.erased >> role & 1]
        assert {j for j in range(4) if begin.parities >> j & 1} == set(parities)
        assert len(parities) == len(erased)
        solution = solve(dict(known), parities, erased)
        return None if solution is None else {b: solution[r] for b, r in enumerate(erased)}
