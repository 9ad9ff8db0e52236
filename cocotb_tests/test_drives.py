"""`hdl.drive.drives.Drives` against drive models, a model of the line store, and a scoreboard."""

import os
import random
from collections import deque
from dataclasses import dataclass, field

import cocotb
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.drive_model import IDEAL, RANDOM, DriveModel, Timing
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, start, unpack, wait_until
from hdl.config import BLOCK_BYTES, Config
from hdl.drive.drives import Drives
from hdl.drive.interface import (
    MERGE_BLOCKS,
    DriveStatus,
    Opcode,
    Owner,
    finished,
    landed,
    operation,
)
from hdl.memory.interface import write_beat
from hdl.memory.store import READ_LATENCY


def sizes(ports: int, width: int = 256) -> Config:
    """Few operations and tags, so that both run out."""
    return Config(
        data_width=width,
        ports=ports,
        lines=256,
        commands=128,
        rows=128,
        transfer_blocks=8,
        operations=128,
        drive_tags=8,
    )


class StoreModel:
    """Lines as bytes, behind the ports that `Drives` sees; ``stall`` is a chance per cycle."""

    def __init__(self, dut, config: Config, *, stall: float, seed: int):
        self.config = config
        self.lines = [bytes(BLOCK_BYTES)] * config.lines
        self.beats: dict[int, list[int]] = {}
        self.moved = [0, 0, 0, 0]
        self.last_write_cycle = 0
        self.writable: set[int] = set()
        self.readable: set[int] = set()
        self.stall = stall
        self.cycle = 0
        self._random = random.Random(f"{seed}/store")
        self._dut = dut
        cocotb.start_soon(self._run())

    def fill(self, line: int, content: bytes) -> None:
        """Sets the contents of a line."""
        size = self.config.beat_bytes
        self.beats[line] = [
            int.from_bytes(content[n * size : (n + 1) * size], "little")
            for n in range(self.config.beats)
        ]

    def content(self, line: int) -> bytes:
        """The contents of a line."""
        return b"".join(
            beat.to_bytes(self.config.beat_bytes, "little") for beat in self.beats[line]
        )

    async def _run(self) -> None:
        dut, count = self._dut, self.config.beats
        layout = write_beat(self.config)
        reads = [
            [
                getattr(dut, f"line_read__{path}__{part}")
                for part in (
                    "request__valid",
                    "request__ready",
                    "request__payload",
                    "response_valid",
                    "response",
                )
            ]
            for path in range(2)
        ]
        writes = [
            [getattr(dut, f"line_write__{path}__{part}") for part in ("valid", "ready", "payload")]
            for path in range(2)
        ]
        answers = [deque([None] * (READ_LATENCY - 1)) for _ in range(2)]
        while True:
            ready = [self._random.random() >= self.stall for _ in range(4)]
            for path in range(2):
                reads[path][1].value = int(ready[path])
                writes[path][1].value = int(ready[2 + path])
            await RisingEdge(dut.clk)
            self.cycle += 1
            for path in range(2):
                taken = None
                if ready[path] and int(reads[path][0].value):
                    line, beat = divmod(int(reads[path][2].value), count)
                    assert line in self.readable, f"line {line} is read but not being written out"
                    taken = self.beats[line][beat]
                    self.moved[path] += 1
                answers[path].append(taken)
                answer = answers[path].popleft()
                reads[path][3].value = int(answer is not None)
                if answer is not None:
                    reads[path][4].value = answer
                if ready[2 + path] and int(writes[path][0].value):
                    beat = unpack(layout, int(writes[path][2].value))
                    line, place = divmod(beat.address, count)
                    assert line in self.writable, f"line {line} is written without an owner"
                    assert beat.mask == (1 << self.config.beat_dwords) - 1, "partial beat"
                    self.beats.setdefault(line, [0] * count)[place] = beat.data
                    self.moved[2 + path] += 1
                    self.last_write_cycle = self.cycle


@dataclass(kw_only=True)
class Pending:
    """An operation that has been sent."""

    port: int
    opcode: Opcode
    owner: Owner
    recover: int
    block: int
    blocks: int
    place: int
    line: int | None
    content: bytes | None = field(repr=False)
    open: set[int]


class Bench:
    """Owns the models and the scoreboard. `submit` sends operations, `settle` checks the end."""

    def __init__(
        self,
        dut,
        config: Config,
        *,
        seed: int,
        timing: Timing,
        active: float = 1.0,
        stall: float = 0.0,
        unreported: bool = False,
    ):
        self.dut = dut
        self.config = config
        self.random = random.Random(f"{seed}/bench")
        self.store = StoreModel(dut, config, stall=stall, seed=seed)
        self.drives = [
            DriveModel(dut, port, config=config, timing=timing, seed=seed)
            for port in range(config.ports)
        ]
        self.operations = StreamSource(dut, "operation", layout=operation(config), active=active)
        self.finished = StreamSink(
            dut, "finished", layout=finished(config), active=active, callback=self._on_finished
        )
        self.landed = StreamSink(
            dut, "landed", layout=landed(config), active=active, callback=self._on_landed
        )
        self.free = set(range(config.lines))
        self.lent: set[int] = set()
        self.pending: dict[tuple[Owner, int], Pending] = {}
        self.indices = {
            Owner.ROW: deque(range(config.rows)),
            Owner.COMMAND: deque(range(config.commands)),
        }
        self.in_use: list[set[int]] = [set() for _ in range(config.ports)]
        self.statuses: dict[DriveStatus, int] = dict.fromkeys(DriveStatus, 0)
        self.landed_blocks = 0
        self.last_landed_cycle = 0
        self.done = 0
        self.lines_offered = True
        self.may_fail: set[int] = set()
        dut.failed.value = 0
        dut.allocate__valid.value = 0
        cocotb.start_soon(self._lend())

    async def _lend(self) -> None:
        valid, ready = self.dut.allocate__valid, self.dut.allocate__ready
        offered = None
        while True:
            if offered is None and self.lines_offered and self.free:
                offered = self.random.choice(sorted(self.free)[:4])
                self.free.discard(offered)
                self.dut.allocate__payload.value = offered
            valid.value = int(offered is not None)
            await RisingEdge(self.dut.clk)
            if offered is not None and int(ready.value):
                self.lent.add(offered)
                self.store.writable.add(offered)
                offered = None
            elif offered is not None and not self.lines_offered:
                continue
            self._offered = offered

    def submit(
        self,
        *,
        port: int,
        opcode: Opcode,
        owner: Owner,
        block: int = 0,
        blocks: int = 1,
        place: int = 0,
        more: int = 0,
        fua: int = 0,
    ) -> bool:
        """Sends an operation unless its blocks, an index or a line are in use."""
        span = set(range(block, block + blocks)) if opcode is not Opcode.FLUSH else set()
        if span & self.in_use[port] or not self.indices[owner]:
            return False
        line = content = None
        if owner is Owner.ROW and opcode is not Opcode.FLUSH:
            if not self.free:
                return False
            line = self.free.pop()
            if opcode is Opcode.WRITE:
                content = self.random.randbytes(BLOCK_BYTES)
                self.store.fill(line, content)
                self.store.readable.add(line)
            else:
                self.store.fill(line, bytes(BLOCK_BYTES))
                self.store.writable.add(line)
        index = self.indices[owner].popleft()
        recover = self.random.getrandbits(1)
        self.in_use[port] |= span
        is_read_command = owner is Owner.COMMAND and opcode is Opcode.READ
        self.pending[owner, index] = Pending(
            port=port,
            opcode=opcode,
            owner=owner,
            recover=recover,
            block=block,
            blocks=blocks,
            place=place,
            line=line,
            content=content,
            open=set(range(place, place + blocks)) if is_read_command else {place},
        )
        self.operations.send(
            port=port,
            opcode=opcode,
            fua=fua,
            recover=recover,
            more=more,
            block=block,
            blocks=blocks - 1,
            owner=owner,
            index=index,
            place=place,
            line=line or 0,
        )
        return True

    def _close(self, owner: Owner, index: int, place: int) -> Pending:
        """One expected answer of a pending operation has come."""
        pending = self.pending.get((owner, index))
        assert pending is not None, f"answer for {owner.name} {index}, which is not pending"
        assert place in pending.open, f"answer for place {place}, not one of {pending.open}"
        pending.open.discard(place)
        if not pending.open:
            del self.pending[owner, index]
            self.indices[owner].append(index)
            if pending.opcode is not Opcode.FLUSH:
                self.in_use[pending.port] -= set(
                    range(pending.block, pending.block + pending.blocks)
                )
            if pending.line is not None:
                self.store.readable.discard(pending.line)
                self.store.writable.discard(pending.line)
                self.free.add(pending.line)
        self.done += 1
        return pending

    def _on_finished(self, payload) -> None:
        owner = payload.owner
        pending = self._close(owner, payload.index, payload.place)
        assert payload.port == pending.port, "wrong port"
        assert payload.opcode is pending.opcode, "wrong opcode"
        assert payload.recover == pending.recover, "recover not echoed"
        status = payload.status
        self.statuses[status] += 1
        drive = self.drives[pending.port]
        if status is not DriveStatus.GOOD:
            assert pending.port in self.may_fail, f"unexpected {status} at port {pending.port}"
            return
        assert owner is Owner.ROW or pending.opcode is Opcode.FLUSH, "GOOD block not landed"
        if pending.opcode is Opcode.WRITE:
            assert drive.read_block(pending.block) == pending.content, "wrong data on the drive"
        elif pending.opcode is Opcode.READ:
            assert pending.line is not None
            content = self.store.content(pending.line)
            assert content == drive.read_block(pending.block), "wrong data in the line"

    def _on_landed(self, payload) -> None:
        pending = self._close(Owner.COMMAND, payload.slot, payload.offset)
        assert pending.opcode is Opcode.READ
        assert payload.line in self.lent, f"line {payload.line} was not lent"
        block = pending.block + payload.offset - pending.place
        expected = self.drives[pending.port].read_block(block)
        assert self.store.content(payload.line) == expected, f"wrong data of block {block}"
        self.lent.discard(payload.line)
        self.store.writable.discard(payload.line)
        self.free.add(payload.line)
        self.landed_blocks += 1
        self.last_landed_cycle = self.store.cycle

    async def drain(self, *, cycles: int = 200_000) -> None:
        """Returns when every operation has been answered."""
        try:
            await wait_until(self.dut, self._rests, cycles=cycles, what="drain")
        except AssertionError as error:
            stuck = [str(pending) for pending in list(self.pending.values())[:5]]
            inside = [f"drive {d.index}: {d.state()}" for d in self.drives if not d.idle]
            raise AssertionError("\n".join([str(error), *stuck, *inside])) from None

    def _rests(self) -> bool:
        return (
            not self.pending and self.operations.idle and all(drive.idle for drive in self.drives)
        )

    async def settle(self, *, cycles: int = 200_000) -> None:
        """Everything is answered, and no operation, tag, or line is left anywhere."""
        await self.drain(cycles=cycles)
        for _ in range(20):
            await RisingEdge(self.dut.clk)
        assert not int(self.dut.busy.value), "busy at rest"
        assert all(drive.idle for drive in self.drives), "a drive still has a command"
        cut = sum(drive.counts.cut for drive in self.drives)
        assert len(self.lent) <= min(cut, self.config.ports), f"lines leaked: {self.lent}"
        # As many operations and commands as there can be, at once: nothing has been lost.
        for drive in self.drives:
            drive.bad_reads.clear()
            drive.bad_writes.clear()
        per_port = self.config.operations // self.config.ports
        for port in range(self.config.ports):
            for n in range(per_port):
                owner = Owner.ROW if n % 2 else Owner.COMMAND
                self.submit(port=port, opcode=Opcode.FLUSH, owner=owner, place=n % 64)
        self.may_fail = set()
        await self.drain(cycles=cycles)


def traffic(bench: Bench, count: int):
    """Random operations, in runs that can be merged; yields after each."""
    chooser = bench.random
    ports = bench.config.ports
    while count > 0:
        port = chooser.randrange(ports)
        kind = chooser.random()
        block = chooser.randrange(4000)
        if kind < 0.05:
            owner = chooser.choice(list(Owner))
            count -= bench.submit(
                port=port, opcode=Opcode.FLUSH, owner=owner, place=chooser.randrange(64)
            )
        elif kind < 0.4:
            blocks = chooser.choice((1, 1, 2, 5, bench.config.transfer_blocks))
            place = chooser.randrange(bench.config.transfer_blocks - blocks + 1)
            count -= bench.submit(
                port=port,
                opcode=Opcode.READ,
                owner=Owner.COMMAND,
                block=block,
                blocks=blocks,
                place=place,
            )
        else:
            opcode = Opcode.WRITE if kind < 0.75 else Opcode.READ
            length = chooser.choice((1, 2, 3, 10, 70))
            fua = chooser.getrandbits(1)
            for n in range(length):
                count -= bench.submit(
                    port=port,
                    opcode=opcode,
                    owner=Owner.ROW,
                    block=block + n,
                    place=chooser.randrange(64),
                    more=int(n + 1 < length),
                    fua=fua,
                )
                yield
        yield


def environment() -> tuple[Config, int]:
    """Configuration and seed of this simulation."""
    seed = int(os.environ["SEED"])
    print(f"SEED={seed}")
    return sizes(int(os.environ["PORTS"]), int(os.environ.get("WIDTH", "256"))), seed


async def run_traffic(bench: Bench, count: int) -> None:
    """Keeps the controller full of random operations."""
    for _ in traffic(bench, count):
        while bench.operations.waiting > 20 or len(bench.free) < 8:
            await RisingEdge(bench.dut.clk)
        if bench.random.random() < 0.02:
            for _ in range(bench.random.randrange(200)):
                await RisingEdge(bench.dut.clk)
        if not bench.indices[Owner.ROW] or not bench.indices[Owner.COMMAND]:
            await RisingEdge(bench.dut.clk)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def random_traffic(dut):
    """Random operations, timing and back-pressure everywhere; no errors."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=RANDOM, active=0.5, stall=0.3)
    await start(dut)
    count = int(os.environ.get("COUNT", "300"))
    await run_traffic(bench, count)
    await bench.settle()
    assert not bench.lent, "lines leaked"
    assert bench.statuses[DriveStatus.GOOD] > count // 3
    assert bench.landed_blocks
    longest = max(drive.counts.longest for drive in bench.drives)
    assert longest > 8, f"nothing merged: longest command {longest}"
    assert longest <= MERGE_BLOCKS


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def errors(dut):
    """Media errors, also inside blocks, and drives that go away and come back."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=RANDOM, active=0.7, stall=0.1)
    bench.may_fail = set(range(config.ports))
    for drive in bench.drives:
        drive.bad_reads = {bench.random.randrange(4000) for _ in range(300)}
        drive.bad_writes = {bench.random.randrange(4000) for _ in range(100)}
    await start(dut)
    traffic_task = cocotb.start_soon(run_traffic(bench, 300))
    removed = bench.drives[bench.random.randrange(config.ports)]
    for _ in range(3000):
        await RisingEdge(dut.clk)
    removed.remove()
    for _ in range(1000):
        await RisingEdge(dut.clk)
    dut.failed.value = 1 << removed.index
    await traffic_task
    await bench.drain()
    dut.failed.value = 0
    for drive in bench.drives:
        drive.bad_reads.clear()
        drive.bad_writes.clear()
    removed.insert()
    bench.may_fail = set()
    before = bench.done
    await run_traffic(bench, 100)
    await bench.settle()
    assert bench.done - before >= 100
    assert bench.statuses[DriveStatus.GONE] and bench.statuses[DriveStatus.MEDIUM_ERROR]
    assert sum(drive.counts.cut for drive in bench.drives), "no read broke off inside a block"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def failed_port(dut):
    """Operations for a failed port end with GONE and never reach the drive."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=RANDOM)
    await start(dut)
    dut.failed.value = 1
    bench.may_fail = {0}
    for n in range(4):
        bench.submit(port=0, opcode=Opcode.WRITE, owner=Owner.ROW, block=n, place=n, more=1)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=100, blocks=5, place=3)
    bench.submit(port=0, opcode=Opcode.FLUSH, owner=Owner.COMMAND)
    bench.submit(port=1, opcode=Opcode.READ, owner=Owner.COMMAND, block=100, blocks=5, place=3)
    await bench.drain(cycles=3000)
    assert bench.drives[0].counts.commands == 0
    assert bench.statuses[DriveStatus.GONE] == 4 + 5 + 1
    dut.failed.value = 0
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def without_lines(dut):
    """A port without a line waits alone; reads of rows, writes and flushes go on."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=IDEAL)
    bench.lines_offered = False
    await start(dut)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=0, blocks=4)
    for port in range(1, config.ports):
        for n in range(4):
            bench.submit(port=port, opcode=Opcode.READ, owner=Owner.ROW, block=n, place=n)
            bench.submit(port=port, opcode=Opcode.WRITE, owner=Owner.ROW, block=100 + n, place=n)
    await wait_until(dut, lambda: len(bench.pending) == 1, cycles=12_000, what="other ports")
    for _ in range(100):
        await RisingEdge(dut.clk)
    assert not int(dut.busy.value), "busy while waiting for a line"
    bench.lines_offered = True
    await bench.settle()
    assert bench.landed_blocks == 4 and not bench.lent


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def merging(dut):
    """Nagle: an idle port sends at once; a busy one waits for the neighbours of what it has."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=Timing(latency=(900, 900)))
    await start(dut)
    drive = bench.drives[0]
    for n in range(100):
        bench.submit(
            port=0, opcode=Opcode.WRITE, owner=Owner.ROW, block=n, place=n % 64, more=int(n < 99)
        )
    await bench.drain()
    lengths = [entry[2] for entry in drive.counts.history]
    assert lengths[0] == 1 and lengths[1] == MERGE_BLOCKS and sum(lengths) == 100, lengths
    # Not merged: another fua, a gap, another opcode, a flush between.
    drive.counts.history.clear()
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.ROW, block=3000)
    for fua, block in ((0, 200), (0, 201), (1, 202), (1, 204)):
        bench.submit(port=0, opcode=Opcode.WRITE, owner=Owner.ROW, block=block, fua=fua, more=1)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=205, blocks=2)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.ROW, block=207)
    bench.submit(port=0, opcode=Opcode.FLUSH, owner=Owner.ROW)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.ROW, block=208)
    await bench.settle()
    blocks = [(entry[1], entry[2]) for entry in drive.counts.history]
    assert (200, 2) in blocks and (202, 1) in blocks and (204, 1) in blocks, blocks
    assert (205, 3) in blocks and (208, 1) in blocks, blocks


async def rate(dut, config, seed, *, ports, reads: bool, blocks: int) -> float:
    """Beats a cycle and path with ideal drives at ``ports``, in the middle of the run."""
    bench = Bench(dut, config, seed=seed, timing=IDEAL)
    await start(dut)
    for n in range(blocks):
        for port in ports:
            bench.submit(
                port=port,
                opcode=Opcode.READ if reads else Opcode.WRITE,
                owner=Owner.ROW,
                block=n,
                place=n % 64,
                more=int(n % 8 != 7),
            )
    total = blocks * len(ports) * config.beats
    base = 2 if reads else 0
    paths = len({port % 2 for port in ports})
    moved = lambda: sum(bench.store.moved[base : base + 2])  # noqa: E731
    await wait_until(dut, lambda: moved() >= total // 4, cycles=100_000, what="first quarter")
    cycle, beats = bench.store.cycle, moved()
    await wait_until(dut, lambda: moved() >= total * 3 // 4, cycles=100_000, what="third quarter")
    result = (moved() - beats) / (bench.store.cycle - cycle) / paths
    await bench.drain()
    return result


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def rates(dut):
    """No idle beats on the paths: beats a cycle for one port and for all, each direction."""
    config, seed = environment()
    wanted = os.environ["RATE"]
    reads = "read" in wanted
    ports = [0] if "one" in wanted else list(range(config.ports))
    blocks = 24 if len(ports) == 1 else 60 // config.ports
    measured = await rate(dut, config, seed, ports=ports, reads=reads, blocks=blocks)
    print(f"{wanted}: {measured:.3f} beats a cycle and path at {len(ports)} ports")
    assert measured >= 0.95, measured


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def latencies(dut):
    """Idle: operation to command, and last read beat to `landed`."""
    config, seed = environment()
    bench = Bench(dut, config, seed=seed, timing=IDEAL)
    await start(dut)
    for _ in range(2 * config.ports):
        await RisingEdge(dut.clk)
    bench.submit(port=0, opcode=Opcode.READ, owner=Owner.COMMAND, block=9)
    await wait_until(dut, lambda: bench.operations.idle, cycles=20, what="operation")
    command = await wait_until(
        dut, lambda: bool(int(dut.drives__0__command__valid.value)), cycles=20, what="command"
    )
    await bench.drain()
    delay = bench.last_landed_cycle - bench.store.last_write_cycle
    print(f"command after {command} cycles, landed {delay} cycles after the last beat was stored")
    assert command <= 12 and delay <= 12
    await bench.settle()


class Faulty(wiring.Component):
    """`Drives` with one fault at its ports, which the scoreboard must notice."""

    def __init__(self, *, config: Config, fault: str):
        self._inner = Drives(config=config)
        self._fault = fault
        super().__init__(self._inner.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        fault = self._fault
        for name, member in self.signature.members.items():
            if name in ("failed", "busy"):
                continue
            ours, theirs = getattr(self, name), getattr(inner, name)
            if member.is_port or not member.dimensions:
                connect(m, flipped(ours), theirs)
            else:
                for a, b in zip(ours, theirs, strict=True):
                    connect(m, flipped(a), b)
        m.d.comb += [inner.failed.eq(self.failed), self.busy.eq(inner.busy)]
        count = Signal(6)
        with m.If(inner.finished.valid & inner.finished.ready):
            m.d.sync += count.eq(count + 1)
        fortieth = count == 40
        landing = Signal(6)
        with m.If(inner.landed.valid & inner.landed.ready):
            m.d.sync += landing.eq(landing + 1)
        if fault == "lost finished":
            with m.If(fortieth):
                m.d.comb += [self.finished.valid.eq(0), inner.finished.ready.eq(1)]
        elif fault == "wrong place":
            with m.If(fortieth):
                m.d.comb += self.finished.payload.place.eq(~inner.finished.payload.place)
        elif fault == "wrong status":
            with m.If(fortieth):
                m.d.comb += self.finished.payload.status.eq(DriveStatus.ABORTED)
        elif fault == "recover":
            m.d.comb += self.finished.payload.recover.eq(0)
        elif fault == "read data":
            with m.If(fortieth):
                m.d.comb += (
                    self.line_write[0].payload.data[0].eq(~inner.line_write[0].payload.data[0])
                )
        elif fault == "write data":
            with m.If(count[5]):
                m.d.comb += (
                    self.drives[0]
                    .write_data.payload.data[7]
                    .eq(~inner.drives[0].write_data.payload.data[7])
                )
        elif fault == "wrong line":
            with m.If(landing == 40):
                m.d.comb += self.landed.payload.line.eq(inner.landed.payload.line ^ 1)
        elif fault == "leaked line":
            with m.If(landing == 40):
                m.d.comb += [self.allocate.ready.eq(1), inner.allocate.valid.eq(0)]
        elif fault == "tag":
            with m.If(fortieth):
                m.d.comb += self.drives[0].command.payload.tag.eq(0)
        return m


FAULTS = (
    "lost finished",
    "wrong place",
    "wrong status",
    "recover",
    "read data",
    "write data",
    "wrong line",
    "leaked line",
    "tag",
)


def run(ports: int, testcase: str, **more: str) -> None:
    simulate(
        Drives(config=sizes(ports)),
        name=f"drives_p{ports}",
        module=__name__,
        testcase=testcase,
        parameters={"PORTS": str(ports), **more},
    )


@pytest.mark.parametrize("ports", [4, 8])
@pytest.mark.parametrize("seed", ["1", "2"])
@pytest.mark.parametrize("testcase", ["random_traffic", "errors"])
def test_traffic(testcase, ports, seed):
    run(ports, testcase, SEED=seed)


def test_odd_ports_narrow():
    """Paths with different numbers of ports, blocks of 512 beats."""
    simulate(
        Drives(config=sizes(5, 64)),
        name="drives_p5_w64",
        module=__name__,
        testcase="random_traffic",
        parameters={"PORTS": "5", "WIDTH": "64", "COUNT": "60"},
    )


@pytest.mark.parametrize("testcase", ["failed_port", "without_lines", "merging", "latencies"])
def test_directed(testcase):
    run(4, testcase)


@pytest.mark.parametrize("kind", ["one read", "one write", "all read", "all write"])
@pytest.mark.parametrize("ports", [4, 8])
def test_rates(ports, kind):
    run(ports, "rates", RATE=kind)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(fault):
    with pytest.raises(SimulationError):
        simulate(
            Faulty(config=sizes(4), fault=fault),
            name=f"drives_{fault.replace(' ', '_')}",
            module=__name__,
            testcase="random_traffic",
            parameters={"PORTS": "4"},
        )
