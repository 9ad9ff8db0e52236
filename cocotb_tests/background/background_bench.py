"""Tables and background work together, with drives that come and go and a model of the engine."""

import os
import random
from collections.abc import Coroutine

import cocotb
from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    cycles_pass,
    pack,
    sample,
    start,
    wait_until,
)
from hdl.array.tables.tables import ArrayTables
from hdl.background.background import Background
from hdl.background.jobs import JobState
from hdl.config import (
    BLOCK_NUMBER_BITS,
    DATA_OFFSET_BLOCKS,
    MAX_DRIVES,
    TIME_BITS,
    Config,
)
from hdl.flow.array_state import ArrayState, ArrayStatus
from hdl.flow.drive_port import IDENTITY_BITS
from hdl.flow.drive_states import DriveStates
from hdl.flow.geometry import Level
from hdl.flow.host_command import completion
from hdl.flow.intention import WriteEvents, flushing, intention
from hdl.flow.manage import (
    Changes,
    ManageOpcode,
    ManageStatus,
    manage_request,
    manage_response,
)
from hdl.flow.reference import Blame, SlotEvents, Tellings
from hdl.flow.report import ReportAccess, Section, report_address
from hdl.flow.walk import WalkKind, WalkResult, walk, walked
from hdl.kit.table import TableRead

CONFIG = Config(ports=8, rows=16, arrays=4, volumes=4, walk_window=4, intent_chunks=32)
ROWS = 24
CAPACITY = DATA_OFFSET_BLOCKS + ROWS
STARTED = (WalkKind.RESYNC, WalkKind.REBUILD, WalkKind.MIGRATE, WalkKind.ZERO, WalkKind.SALVAGE)
CHANGE_CYCLES = 4000


class Assembly(wiring.Component):
    """`ArrayTables` and a `Background`, as in the controller.

    While ``occupied`` somebody is inside whatever the tables quiesce. While ``flush_waits`` no
    flush begins, and while ``flush_lasts`` none ends.
    """

    def __init__(self, *, background: type[Background] = Background, config: Config = CONFIG):
        self._background = background
        self._config = config
        super().__init__(
            {
                "changes": In(Changes(config)),
                "drives": Out(DriveStates()),
                "arrays": Out(ArrayStatus(config)),
                "slots": In(SlotEvents(config)),
                "blame": In(Blame(config)),
                "tellings": In(Tellings(config)),
                "writes": In(WriteEvents(config)),
                "report": In(ReportAccess()),
                "present": In(config.ports),
                "capacity": In(BLOCK_NUMBER_BITS).array(config.ports),
                "identity": In(IDENTITY_BITS).array(config.ports),
                "fail": In(stream.Signature(config.port_bits)),
                "walk": Out(stream.Signature(walk(config))),
                "walked": In(stream.Signature(walked(config))),
                "boundary_read": In(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "sync_read": In(TableRead(config.array_bits, BLOCK_NUMBER_BITS)),
                "host_active": In(1),
                "occupied": In(1),
                "flush_waits": In(1),
                "flush_lasts": In(1),
                "refusing": In(MAX_DRIVES),
                "restarted": In(config.ports),
                "blamed": In(MAX_DRIVES),
                "late": In(TableRead(config.slot_bits, 1)),
                "doubted": Out(MAX_DRIVES),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.tables = tables = ArrayTables(
            config=config, geometry_readers=2, member_readers=1, volume_readers=1
        )
        m.submodules.background = background = self._background(config=config)
        connect(m, flipped(self.changes), background.changes)
        connect(m, background.table_changes, tables.changes)
        connect(m, tables.drives, background.drives, flipped(self.drives))
        connect(m, background.decisions, tables.decisions)
        connect(m, background.arrays, flipped(self.arrays))
        for name in ("slots", "blame", "tellings", "writes", "report"):
            connect(m, flipped(getattr(self, name)), getattr(background, name))
        connect(m, tables.rewind, background.rewind)
        connect(m, flipped(self.fail), tables.fail)
        connect(m, background.walk, flipped(self.walk))
        connect(m, flipped(self.walked), background.walked)
        connect(m, flipped(self.boundary_read), background.boundary_read[0])
        connect(m, flipped(self.sync_read), background.sync_read[0])
        connect(m, flipped(self.late), background.late)
        for outer, inner in zip(self.identity, tables.identity, strict=True):
            m.d.comb += inner.eq(outer)
        for user, port in zip(background.geometry_read, tables.geometry_read, strict=True):
            connect(m, user, port)
        connect(m, background.member_read[0], tables.member_read[0])
        connect(m, background.migration_read, tables.migration_read[0])
        flushing, flushed = Signal(), Signal(MAX_DRIVES)
        states = tables.drives
        stored = flushed & ~(self.refusing | states.failed | states.suspect)
        m.d.comb += [
            tables.flushed.payload.eq(stored),
            tables.flushed.valid.eq(flushing & ~self.flush_lasts),
        ]
        with m.If(tables.flush.valid & tables.flush.ready):
            m.d.sync += [flushing.eq(1), flushed.eq(tables.flush.payload)]
        with m.Elif(tables.flushed.valid & tables.flushed.ready):
            m.d.sync += flushing.eq(0)
        present = Cat(self.present, Const(0, MAX_DRIVES - config.ports))
        for outer, inner in zip(self.capacity, tables.capacity, strict=True):
            m.d.comb += inner.eq(outer)
        m.d.comb += [
            tables.present.eq(self.present),
            background.present.eq(present),
            self.doubted.eq(states.suspect & ~states.kept),
            tables.restarted.eq(self.restarted),
            tables.blamed.eq(self.blamed),
            tables.doubts.eq(background.arrays.doubts),
            background.host_active.eq(self.host_active),
            tables.quiesce.ready.eq(~self.occupied),
            tables.flush.ready.eq(~flushing & ~self.flush_waits),
            background.now.eq(self.now),
            self.deadline.eq(background.deadline),
            self.busy.eq(background.busy | tables.busy),
        ]
        return m


WALK_IGNORES = {
    "base": "test_walker compares it",
    "shift": "test_walker compares it",
    "more": "test_walker compares it",
    "era": "of a source but 0",
}
"""Fields of rows that are walked."""


class Bench:
    """The host's changes, drives, and an engine that ends rows in any order.

    ``judge(key)`` gives the result and roles of a walk; by default every row is good. With
    ``marks`` every row that is walked is announced as one that is written.
    """

    def __init__(self, dut, generator: random.Random, config: Config = CONFIG):
        self.dut = dut
        self.config = config
        self.marks = False
        self.random = generator
        self.requests = StreamSource(dut, "changes__request", layout=manage_request(config))
        self.responses = StreamSink(dut, "changes__response", layout=manage_response(config))
        self.fails = StreamSource(dut, "fail")
        self.begun = StreamSource(dut, "writes__begun", layout=intention(config))
        self.retired = StreamSource(dut, "writes__retired")
        self.walks = StreamSink(
            dut,
            "walk",
            layout=walk(config),
            callback=self._ask,
            active=0.7,
            ignores=WALK_IGNORES,
        )
        self.ends = StreamSource(dut, "walked", layout=walked(config))
        self.out: dict[int, dict] = {}
        self.log: list[dict] = []
        self.arrays: set[int] = set()
        self.made = 0
        self.kinds = {*STARTED}
        """Kinds of jobs that begin by themselves, or that somebody has asked for."""
        self.late = 0.5
        self.paused = False
        self.judge = lambda row: (WalkResult.GOOD, 0)
        self.cycle = 0
        self.cycles_out = 0
        self.news = 0
        self.present = 0
        for name in ("present", "host_active", "occupied", "flush_waits", "flush_lasts",
                     "refusing", "now", "restarted", "blamed", "blame__blames", "blame__volume",
                     "boundary_read__address", "sync_read__address", "slots__begun__valid",
                     "slots__ended__valid", "tellings__hearing__answered__valid",
                     "tellings__hearing__heard", "tellings__hearing__unheard"):  # fmt: skip
            getattr(dut, name).value = 0
        for name in ("flush", "flushing", "completed", "completion"):
            getattr(dut, f"writes__flushes__{name}").value = 0
        dut.report__read__address.value = 0
        dut.boundary_read__address.value = 0
        for port in range(config.ports):
            getattr(dut, f"capacity__{port}").value = CAPACITY
            getattr(dut, f"identity__{port}").value = port + 1
        cocotb.start_soon(self._run())

    def _ask(self, seen) -> None:
        assert seen.tag not in self.out
        assert not seen.source, "a job knows of no copy that the host has been given"
        assert seen.array in self.arrays, f"no array {seen.array}"
        assert seen.kind in self.kinds, f"nobody has asked for {seen.kind}"
        assert DATA_OFFSET_BLOCKS + seen.row < self.capacity(), f"no row {seen.row}"
        self.out[seen.tag] = seen
        self.log.append(seen)
        if self.marks:
            self.begun.send(slot=seen.tag, array=seen.array, row=seen.row)

    def capacity(self) -> int:
        """Of the largest drive."""
        ports = range(self.config.ports)
        return max(sample(getattr(self.dut, f"capacity__{port}")) for port in ports)

    async def _run(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            self.cycle += 1
            dut.now.value = self.cycle
            self.cycles_out += bool(self.out)
            self.news += sample(dut.arrays__news)
            if not self.out or self.paused or not self.ends.idle:
                continue
            if self.random.random() < self.late:
                continue
            # No row ends before it is marked.
            if self.marks and not (self.begun.idle and self.retired.idle):
                continue
            tag = self.random.choice(list(self.out))
            if self.marks:
                self.retired.send(tag)
            result, roles = self.judge(self.out.pop(tag))
            self.ends.send(tag=tag, result=result, roles=roles)

    async def begin(self, drives: int | None = None) -> None:
        """Leaves reset with ``drives`` drives plugged, or one a port."""
        await start(self.dut)
        self.plug(*range(self.config.ports if drives is None else drives))
        await self.rest()

    def plug(self, *ports: int) -> None:
        for port in ports:
            self.present |= 1 << port
        self.dut.present.value = self.present

    def pull(self, *ports: int) -> None:
        for port in ports:
            self.present &= ~(1 << port)
        self.dut.present.value = self.present

    async def fail(self, port: int) -> None:
        """A drive refuses to be written."""
        self.fails.send(port)
        await self.fails.drained()

    async def write(self, array: int, *rows: int) -> None:
        """The engine writes rows, one after the other."""
        for row in rows:
            self.begun.send(slot=row % self.config.rows, array=array, row=row)
            await self.begun.drained()
            self.retired.send(row % self.config.rows)
            await self.retired.drained()
        await self.rest()

    async def flush(self, array: int) -> None:
        """The host flushes an array, with success."""
        await self.flush_now(array)
        await self.rest()

    async def flush_now(self, array: int, between: Coroutine | None = None) -> None:
        """The same, whatever else is going on; ``between`` happens before it ends."""
        dut = self.dut
        dut.writes__flushes__flushing.value = pack(flushing(self.config), slot=1, array=array)
        dut.writes__flushes__completion.value = pack(completion(self.config), slot=1)
        for name in ("writes__flushes__flush", "writes__flushes__completed"):
            getattr(dut, name).value = 1
            await RisingEdge(dut.clk)
            getattr(dut, name).value = 0
            if between is not None:
                await between
                between = None

    def expect(self, opcode: ManageOpcode) -> None:
        """A change will be made. The job of a new array may begin before it is answered."""
        if opcode == ManageOpcode.CREATE_ARRAY:
            free = {*range(self.config.arrays)} - self.arrays
            self.made = min(free, default=self.config.arrays)
            self.arrays.add(self.made)

    async def change(self, opcode: ManageOpcode, **fields) -> ManageStatus:
        """Makes a change; its status. The number made is ``self.index``."""
        if opcode == ManageOpcode.START_JOB:
            self.kinds.add(WalkKind(fields["kind"]))
        self.expect(opcode)
        self.requests.send(opcode=opcode, **fields)
        answer = await self.responses.receive(cycles=CHANGE_CYCLES)
        self.index = answer.index
        if opcode == ManageOpcode.CREATE_ARRAY:
            self.arrays.discard(self.made)
            if answer.status == ManageStatus.DONE:
                self.arrays.add(answer.index)
        if opcode == ManageOpcode.DELETE_ARRAY and answer.status == ManageStatus.DONE:
            self.arrays.discard(fields["array"])
        return answer.status

    async def good(self, opcode: ManageOpcode, **fields) -> int:
        """Makes a change that must succeed; the number made."""
        status = await self.change(opcode, **fields)
        assert status == ManageStatus.DONE, f"{opcode} {fields}: {status}"
        return self.index

    async def create(self, level: Level, *ports: int, assumed: int = 1, **fields) -> int:
        """An array, unless ``assumed`` is 0 one that is taken to be in sync; its number."""
        drives = sum(1 << port for port in ports)
        shape = {"level": level.value, "drives": drives, "strip_shift": 2}
        return await self.good(ManageOpcode.CREATE_ARRAY, assumed=assumed, **shape, **fields)

    def rows_of(self, kind: WalkKind, array: int | None = None) -> list[int]:
        """Rows that were walked, in order, of one array or of all."""
        return [
            row.row for row in self.log if row.kind == kind and array in (None, row.array)
        ]

    async def restart(self, *ports: int) -> None:
        """Drives begin anew by themselves, and say so."""
        self.dut.restarted.value = sum(1 << port for port in ports)
        await RisingEdge(self.dut.clk)
        self.dut.restarted.value = 0
        await ClockCycles(self.dut.clk, 2)

    async def rest(self, *, cycles: int = 20_000) -> None:
        """Until nothing moves any more, and no row is offered or on its way: time may jump."""
        quiet = 0
        for _ in range(cycles):
            await RisingEdge(self.dut.clk)
            engine = self.out or not self.ends.idle or sample(self.dut.walk__valid)
            quiet = 0 if sample(self.dut.busy) or engine else quiet + 1
            if quiet == 8:
                return
        raise AssertionError("no rest")

    async def words(self, section: Section, number: int) -> list[int]:
        """The words of a log's entry."""
        dut = self.dut
        found = []
        for word in range(14):
            address = pack(report_address(), section=section, number=number, word=word)
            dut.report__read__address.value = address
            await cycles_pass(dut.clk, 3)
            await FallingEdge(dut.clk)
            found.append(sample(dut.report__read__data))
        return found

    async def job(self, array: int) -> dict:
        """What the log says of an array and its job."""
        words = await self.words(Section.ARRAYS, array)
        return {
            "exists": words[0] >> 31,
            "array_state": ArrayState(words[0] & 3),
            "state": JobState(words[0] >> 4 & 7),
            "kind": WalkKind(words[0] >> 8 & 7),
            "row": words[2] | words[3] << 32,
            "found": tuple(words[4:7]),
            "in_sync": not words[0] >> 2 & 1,
            "assumed": words[0] >> 3 & 1,
            "synced": words[12] | words[13] << 32,
            "marked": words[7] & 0xFFFF,
            "chunk": (words[7] >> 31) << (words[7] >> 16 & 0x3F),
            "began": words[8] | words[9] << 32,
            "ended": words[10] | words[11] << 32,
        }

    def state(self, array: int) -> ArrayState:
        return ArrayState(sample(self.dut.arrays__states) >> 2 * array & 3)

    async def boundary(self, array: int) -> int:
        self.dut.boundary_read__address.value = array
        await cycles_pass(self.dut.clk, 2)
        await FallingEdge(self.dut.clk)
        return sample(self.dut.boundary_read__data)

    async def until(self, condition, what: str, *, cycles: int = 20_000) -> None:
        await wait_until(self.dut, condition, cycles=cycles, what=what)


def bench(dut) -> Bench:
    """A bench of the run's seed."""
    return Bench(dut, random.Random(int(os.environ["SEED"])))


async def begin(dut, *, drives: int = 8) -> Bench:
    """A bench with drives at the first ports, after the reset."""
    host = bench(dut)
    await host.begin(drives)
    return host
