"""Gatherer and sequencer together, with models of what is around them."""

import os
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import cocotb
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.streams import (
    StreamSink,
    StreamSource,
    TableServer,
    cycles_pass,
    every_cycle,
    sample,
    wait_until,
)
from cocotb_tests.stripe.stripe_extents import split
from cocotb_tests.stripe.stripe_models import (
    BLOCK,
    Allocator,
    ArrayModel,
    DrivesModel,
    Lines,
    ParityModel,
    Tables,
)
from hdl.config import Config
from hdl.flow.extent import extent
from hdl.flow.geometry import Rotation
from hdl.flow.host_command import HostOpcode, Status
from hdl.flow.host_data import fetched, transfer
from hdl.flow.operation import landed
from hdl.flow.row import committed
from hdl.flow.walk import WalkKind, WalkResult, walk, walked
from hdl.stripe.gather.gather import Gather
from hdl.stripe.rows.sequencer import Sequencer

CONFIG = Config(
    data_width=64, ports=8, lines=64, banks=4, commands=32, rows=16, operations=64, arrays=2
)

PATIENCE = 60_000
"""Cycles within which something must happen."""

ARRAYS = {
    "raid0": ArrayModel(width=4, ports=(0, 1, 2, 3)),
    "raid10": ArrayModel(width=4, copies=2, ports=(3, 1, 7, 5)),
    "raid5": ArrayModel(width=5, parities=1, ports=(7, 2, 5, 0, 1)),
    "raid50": ArrayModel(width=4, parities=1, spans=2, ports=tuple(range(8))),
    "raid6": ArrayModel(width=8, parities=2, ports=tuple(range(8))),
    "raid6_ddf": ArrayModel(
        width=8, parities=2, rotation=Rotation.DDF_N_CONTINUE, ports=tuple(range(8))
    ),
}
GATHER_STREAMS = ("extent", "walk", "allocate", "free", "fetch", "fetched", "fetch_failed")
SEQUENCER_STREAMS = (
    "operation",
    "finished",
    "step",
    "pass_done",
    "committed",
    "recovered",
    "recover_failed",
    "fail",
    "flush",
    "flushed",
    "walked",
    "piece",
)


class Stripe(wiring.Component):
    """`Gather` and `Sequencer` connected, everything else brought out.

    The sequencer's lines are ``row_allocate`` and ``row_free``. Without ``marks`` blocks written in
    part are taken for whole ones.
    """

    def __init__(self, *, config: Config, sequencer=Sequencer, gather=Gather, marks: bool = True):
        self._marks = marks
        self._gather = gather(config=config, idle_cycles=300, limit_cycles=4000)
        self._sequencer = sequencer(config=config)
        ports = {name: self._gather.signature.members[name] for name in GATHER_STREAMS}
        for name in SEQUENCER_STREAMS:
            ports[name] = self._sequencer.signature.members[name]
        gathering, sequencing = self._gather.signature.members, self._sequencer.signature.members
        super().__init__(
            {
                **ports,
                "geometry_read": gathering["geometry_read"],
                "available": gathering["available"],
                "now": gathering["now"],
                "deadline": gathering["deadline"],
                "row_allocate": sequencing["allocate"],
                "row_free": sequencing["free"],
                "reads": sequencing["reads"],
                "drives": sequencing["drives"],
                "launched": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.gather = gather = self._gather
        m.submodules.sequencer = sequencer = self._sequencer
        connect(m, gather.launch, sequencer.launch)
        connect(m, sequencer.retired, gather.retired)
        connect(m, sequencer.filled, gather.filled)
        connect(m, sequencer.row_read, gather.row_read)
        connect(m, sequencer.strip_read, gather.strip_read)

        def bring_out(inner, outer) -> None:
            connect(m, inner, flipped(outer))

        for name in (*GATHER_STREAMS, "geometry_read"):
            bring_out(getattr(gather, name), getattr(self, name))
        for name in (*SEQUENCER_STREAMS, "reads"):
            bring_out(getattr(sequencer, name), getattr(self, name))
        if not self._marks:
            marked = gather.extent.payload
            m.d.comb += [marked.head.eq(0), marked.tail.eq(0)]
        bring_out(sequencer.allocate, self.row_allocate)
        bring_out(sequencer.free, self.row_free)
        connect(m, flipped(self.drives), sequencer.drives)
        m.d.comb += [
            gather.available.eq(self.available),
            gather.now.eq(self.now),
            self.deadline.eq(gather.deadline),
            # No more fail than the level tolerates.
            sequencer.arrays.settled.eq(1),
            self.launched.eq(gather.launch.valid & gather.launch.ready),
            self.busy.eq(gather.busy | sequencer.busy),
        ]
        return m


@dataclass
class Write:
    """One block of a command's write: what, and between which times it happened.

    A byte of a model's block stands for a sector: those in ``sectors`` are written.
    """

    block: bytes
    issued: int
    completed: int | None = None
    sectors: frozenset[int] = frozenset(range(BLOCK))


@dataclass
class Command:
    """A command under way."""

    owed: int
    issued: int
    writes: dict
    reads: dict
    gathered: bool = False


class Bench:
    """The stripe engine between a host with many commands and drives that fail."""

    def __init__(self, dut, array: ArrayModel, *, seed: int, active: float):
        self.dut = dut
        self.array = array
        self.random = random.Random(f"{seed}/bench")
        self.lines = Lines(CONFIG.lines)
        self.drives = DrivesModel(dut, CONFIG, self.lines, active=active, seed=seed, latency=200)
        self.parity = ParityModel(dut, CONFIG, self.lines, active=active, seed=seed)
        self.allocators = [
            Allocator(
                dut,
                self.lines,
                name="allocate",
                reserve=CONFIG.line_reserve,
                active=active,
                seed=seed,
            ),
            Allocator(dut, self.lines, name="row_allocate", active=active, seed=seed),
        ]
        tables = Tables(dut, CONFIG, [ArrayModel(width=2, ports=(0, 1)), array])
        TableServer(dut, "geometry_read", tables.geometry_of)
        self.extent = StreamSource(dut, "extent", layout=extent(CONFIG), active=active, seed=seed)
        self.fetched = StreamSource(
            dut, "fetched", layout=fetched(CONFIG), active=active, seed=seed
        )
        self.slots = deque(range(CONFIG.commands))
        self.commands: dict[int, Command] = {}
        self.history: dict[tuple, list[Write]] = defaultdict(
            lambda: [Write(bytes(BLOCK), -1, -1)]
        )
        self.shifts: dict[tuple, int] = {}
        self.errors = 0.0
        self.may_lose = False
        self.time = 0
        self.failed: set[int] = set()
        self.walks = StreamSource(dut, "walk", layout=walk(CONFIG), active=active, seed=seed)
        self.walking: dict[int, tuple] = {}
        self.walked: dict[WalkResult, int] = defaultdict(int)
        self.rewritten = 0
        """Walks in which copies are written anew that could be read."""
        self.statuses: dict[Status, int] = defaultdict(int)
        dut.drives__failed.value = 0
        dut.drives__stale.value = 0
        dut.reads__boundary__data.value = dut.reads__sync__data.value = 0
        dut.reads__migration__data.value = 0

        def sink(name, callback, layout=None, **more):
            StreamSink(
                dut, name, layout=layout, active=active, seed=seed, callback=callback, **more
            )

        sink("fetch", lambda one: cocotb.start_soon(self._fetch(one)), transfer(CONFIG))
        sink("free", self.lines.give_back)
        sink("row_free", self.lines.give_back)
        for name in ("fetch_failed", "committed"):
            sink(name, self._answered, committed(CONFIG))
        sink("recover_failed", self._recover_failed, committed(CONFIG))
        sink("recovered", self._recovered, landed(CONFIG))
        sink("fail", self.fail)
        roles = {"roles": "test_walk_rows compares them"}
        sink("walked", self._walked, walked(CONFIG), ignores=roles)
        every_cycle(dut.clk, self._clock())

    def _clock(self) -> Iterator[None]:
        now, available, shown = self.dut.now, self.dut.available, None
        while True:
            now.value = self.time
            if shown != len(self.lines.free):
                shown = available.value = len(self.lines.free)
            yield
            self.time += 1

    def fail(self, port: int) -> None:
        """The table's answer to a failed drive: nobody uses it again."""
        self.failed.add(port)
        self.drives.gone.add(port)
        self.dut.drives__failed.value = sum(1 << one for one in self.failed)

    async def _fetch(self, one) -> None:
        await cycles_pass(self.dut.clk, self.random.randrange(60))
        place, write = self.commands[one.slot].writes[one.offset]
        error = self.random.random() < self.errors
        block = write.block
        if len(write.sectors) < BLOCK:
            # The line must have been filled; of a fetch that fails some sectors may arrive.
            old = self.lines.read(one.line)
            block = bytes(new if n in write.sectors else old[n] for n, new in enumerate(block))
            self.lines.write(one.line, block)
        if error:
            self.history[place].remove(write)
        else:
            self.lines.write(one.line, block)
        self.fetched.send(line=one.line, error=int(error))

    def _answered(self, event) -> None:
        self.statuses[event.status] += 1
        self._account(event.slot)

    def _recover_failed(self, event) -> None:
        """Beyond tolerance only if, for the test's sake, a block on a live drive was asked for."""
        assert event.status == Status.UNRECOVERED_READ
        if self.commands[event.slot].writes:
            assert self.may_lose, "a block that could be read was not filled"
            self.statuses[event.status] += 1
            ((place, write),) = self.commands[event.slot].writes.values()
            self.history[place].remove(write)
            self._account(event.slot)
            return
        assert not self.commands[event.slot].gathered, "a block that can be had has failed"
        assert len(self.drives.gone) == self.array.parities
        ports = set()
        for base, row, index in self.commands[event.slot].reads.values():
            shift = self.shifts[base, row]
            ((port, _),) = self.array.places(base=base, shift=shift, row=row, index=index)
            ports.add(port)
        assert ports - self.drives.gone, "a block of a failed drive was not recovered"
        self._account(event.slot)

    def _account(self, slot: int) -> None:
        command = self.commands[slot]
        command.owed -= 1
        if not command.owed:
            for _, write in command.writes.values():
                write.completed = self.time
            del self.commands[slot]
            self.slots.append(slot)

    def _check(self, place: tuple, block: bytes, *, issued: int) -> None:
        """Checks what a read issued then has returned: a block that was written as a whole, or
        each sector of a write that no other has surely replaced."""
        writes = self.history[place]
        assert any(len(write.sectors) < BLOCK for write in writes) or block in self._possible(
            writes, issued=issued
        ), f"{place}: {block!r}"
        for sector, found in enumerate(block):
            there = [write for write in writes if sector in write.sectors]
            possible = {one[sector] for one in self._possible(there, issued=issued)}
            assert found in possible, f"{place}: sector {sector} is {found}, not of {possible}"

    @staticmethod
    def _possible(writes: list[Write], *, issued: int) -> set[bytes]:
        """Blocks of the writes that none of the others has surely replaced."""

        def replaced(write: Write) -> bool:
            return write.completed is not None and any(
                other.issued > write.completed
                and other.completed is not None
                and other.completed < issued
                for other in writes
            )

        return {write.block for write in writes if not replaced(write)}

    def _recovered(self, event) -> None:
        command = self.commands[event.slot]
        place = command.reads[event.offset]
        self._check(place, self.lines.read(event.line), issued=command.issued)
        self.lines.give_back(event.line)
        self._account(event.slot)

    async def command(
        self, block: int, blocks: int, *, read=False, gathered=False, head: int = 0, tail: int = 0
    ) -> None:
        """Sends a command once a slot is free; ``head`` and ``tail`` sectors are not written."""
        await wait_until(
            self.dut, lambda: bool(self.slots), cycles=PATIENCE, what="a command's answer"
        )
        slot = self.slots.popleft()
        command = Command(blocks, self.time, {}, {}, gathered)
        self.commands[slot] = command
        for one in split(self.array, block, blocks):
            for step in range(one["blocks"] + 1):
                offset = one["offset"] + step
                place = one["base"], one["row"] + step, one["index"]
                self.shifts[place[:2]] = one["shift"]
                if read:
                    command.reads[offset] = place
                else:
                    sectors = range(
                        head if offset == 0 else 0, BLOCK - (tail if offset == blocks - 1 else 0)
                    )
                    write = Write(
                        self.random.randbytes(BLOCK), self.time, sectors=frozenset(sectors)
                    )
                    self.history[place].append(write)
                    command.writes[offset] = place, write
            opcode = HostOpcode.READ if read else HostOpcode.WRITE
            first, final = one["offset"], one["offset"] + one["blocks"]
            partial = {
                "head": int(head > 0 and first == 0), "gathered": int(gathered),
                "tail": int(tail > 0 and final == blocks - 1),
            }
            self.extent.send(slot=slot, opcode=opcode, array=1, **one, **partial)

    def _walked(self, event) -> None:
        del self.walking[event.tag]
        self.walked[event.result] += 1

    async def walk_rows(self, count: int) -> None:
        """Walks rows that the host has written or is writing, up to four at once."""
        for tag in range(count):
            await wait_until(
                self.dut, lambda: len(self.walking) < 4, cycles=PATIENCE, what="the end of a walk"
            )
            (base, row), shift = self.random.choice(list(self.shifts.items()))
            if self.array.mirrored:
                shift += self.array.copies * self.random.randrange(
                    self.array.data // self.array.copies
                )
            kind = self.random.choice((WalkKind.RESYNC, WalkKind.REBUILD, WalkKind.PATROL))
            source = 0
            if self.array.mirrored and kind == WalkKind.PATROL:
                source = self.random.randrange(self.array.copies)
            self.rewritten += source != 0
            self.walking[tag] = base, row
            self.walks.send(
                kind=kind,
                array=1,
                base=base,
                shift=shift,
                row=row,
                more=tag & 1,
                tag=tag,
                source=source,
            )

    async def settle(self) -> None:
        """Waits until every command has been answered, then checks that nothing is left."""
        for _ in range(PATIENCE):
            if not self.commands and not self.walking and not sample(self.dut.busy):
                break
            await RisingEdge(self.dut.clk)
        assert not self.commands, f"commands without an answer: {self.commands}"
        assert not self.walking, f"walks without an end: {self.walking}"
        await cycles_pass(self.dut.clk, 500)
        assert not sample(self.dut.busy), "still busy"
        offered = sum(one.offered() for one in self.allocators)
        assert len(self.lines.taken) == offered, f"leaked: {self.lines.taken}"
        assert not self.drives.outstanding and self.parity.idle

    def check_drives(self) -> None:
        """What is on the drives is what was written last, and its parity."""
        for (base, row), shift in self.shifts.items():
            where = {"base": base, "shift": shift, "row": row}
            known: dict[int, bytes] = {}
            lost = []
            for index in range(self.array.data // self.array.copies):
                found = {
                    self.drives.blocks.get(place, bytes(BLOCK))
                    for place in self.array.places(index=index, **where)
                    if place[0] not in self.failed
                }
                assert len(found) <= 1, f"{where} strip {index}: copies differ"
                if found:
                    known[index] = found.pop()
                else:
                    lost.append(index)
            parities = {}
            for parity in range(self.array.parities):
                place = self.array.parity_place(parity=parity, **where)
                if place[0] not in self.failed:
                    parities[parity] = self.drives.blocks.get(place, bytes(BLOCK))
            solved = self.array.solve(known, parities, lost, shift=shift)
            assert solved is not None, f"{where}: lost"
            known |= solved
            sums = self.array.sums(known, shift=shift)
            for parity, block in parities.items():
                assert block == sums[parity], f"{where}: parity {parity} is wrong"
            for index, block in known.items():
                self._check((base, row, index), block, issued=self.time)


def bench_of(dut) -> Bench:
    seed = int(os.environ["SEED"])
    print(f"seed {seed}")
    return Bench(dut, ARRAYS[os.environ["ARRAY"]], seed=seed, active=0.7)
