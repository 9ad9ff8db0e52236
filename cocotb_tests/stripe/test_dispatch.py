"""Dispatch against the reference layout: healthy, degraded and dead arrays of every level."""

import os
import random
from collections import Counter
from itertools import pairwise

import cocotb
import pytest
from amaranth.hdl import Const
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from cocotb_tests.array.array_models import (
    FLUSH_IGNORES,
    Table,
    flush_operation,
    pack_geometry,
    random_recovery,
)
from cocotb_tests.busy import BusyWatch
from cocotb_tests.fields import ANY, check_fields
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, pack, sample, start, wait_until
from hdl.config import DATA_OFFSET_BLOCKS, ERA_BITS, MAX_DRIVES, Config, board, small
from hdl.flow.array_state import ArrayState
from hdl.flow.extent import expected, extent
from hdl.flow.host_command import HostOpcode, Status, completion
from hdl.flow.operation import Opcode, Owner, operation
from hdl.flow.row import committed
from hdl.flow.table_read import member_address, migration
from hdl.flow.walk import MEND_TAG, WalkKind, walk
from hdl.stripe.dispatch import FOLLOW_BITS, Dispatch
from sim.card.layouts import random_layout
from sim.golden.layout import Layout

CONFIGS = {"board": board(MAX_DRIVES), "small": small()}
BATCHES = 30
COMMANDS = 12
ROWS = 1 << 24
DIRECT_CYCLES = 8
MIRRORED_CYCLES = 13
DRIVE_CYCLES = 60
ROUNDS = 2
"""Times that every copy of a block is asked or passed over, before it is given up."""
RUN_BLOCKS = 32
"""Blocks more than another port that a port may have to do and still be asked to read on."""
NO_MEANING = {
    **FLUSH_IGNORES,
    "READ:line": "lines are allocated as data arrives",
    "READ:early.seat": "of the read of a row",
}
"""Fields of operations."""
IN_ORDER = "copies_that_may_differ_are_read_in_order"


def preferred_copy(layout: Layout, stripe: int, index: int) -> int:
    """The copy that a strip prefers: turns are counted in bit-reversed order."""
    turn = (stripe + index) % 32
    return int(f"{turn:05b}"[::-1], 2) * layout.copies // 32


class Bench:
    """Arrays on random ports, and what must come of each extent."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut = dut
        self.config = config
        self.generator = generator
        self.geometries = Table(dut, "reads__geometry")
        self.members = Table(dut, "reads__member")
        self.loads = Table(dut, "load_read")
        self.follows: Counter[int] = Counter()
        self.extents = StreamSource(dut, "extent", layout=extent(config))
        self.expected: dict[str, list[dict]] = {}
        self.sinks = {}
        self.used: Counter[int] = Counter()
        self.order: list[int] = []
        for name, layout in (
            ("operation", operation(config)),
            ("gather", extent(config)),
            ("rejected", completion(config)),
            ("unreadable", committed(config)),
            ("expected", expected(config)),
        ):
            self.expected[name] = []
            self.sinks[name] = StreamSink(
                dut,
                name,
                layout=layout,
                callback=lambda seen, to=name: self._check(to, seen),
                ignores=NO_MEANING if name == "operation" else None,
            )
        self.partly = False
        """What is expected names the fields of interest only."""
        self.layouts: dict[int, Layout] = {}
        self.ports: dict[int, list[int]] = {}
        self.failed = 0
        self.announced = 0
        self.mended = 0
        self.suspect = 0
        self.indebted = 0
        self.late: dict[int, int] = {}
        self.blamed: list[tuple[int, int]] = []
        """Arrays of which a flush was refused, with their suspect drives."""
        self.to_blame: list[tuple[int, int]] = []
        self.stale = 0
        self.boundaries: dict[int, int] = {}
        self.mends: list[dict] = []
        self.migrating: dict[int, int] = {}
        self.redundant = 0
        self.undecided = self.unsynced = self.doubts = 0
        self.syncs: dict[int, int] = {}
        dut.drives__failed.value = 0
        if config.background:
            # None has redundancy left.
            dut.arrays__states.value = (1 << 2 * config.arrays) - 1
            dut.drives__stale.value = dut.drives__suspect.value = 0
            dut.drives__undecided.value = dut.arrays__indebted.value = 0
            self.late = Table(dut, "late").entries
            dut.arrays__unsynced.value = dut.arrays__doubts.value = 0
            self.eras = [generator.getrandbits(ERA_BITS) for _ in range(config.arrays)]
            eras = sum(era << ERA_BITS * array for array, era in enumerate(self.eras))
            dut.arrays__eras.value = eras
            self.restarts = [generator.randrange(16) for _ in range(config.ports)]
            for port, count in enumerate(self.restarts):
                getattr(dut, f"restarts__{port}").value = count
            self.syncs = Table(dut, "reads__sync").entries
            cocotb.start_soon(self._hear())
            table = Table(dut, "reads__boundary")
            self.boundaries = table.entries
            self.migrations = Table(dut, "reads__migration")
            sink = StreamSink(dut, "mend__walk", layout=walk(config), callback=self._mended)
            self.sinks["mend__walk"] = sink

    async def _hear(self) -> None:
        """Suspect drives of which a flush was refused."""
        while True:
            await RisingEdge(self.dut.clk)
            if sample(self.dut.blame__blames):
                self.blamed.append((sample(self.dut.blame__volume), sample(self.dut.blamed)))
            else:
                assert not sample(self.dut.blamed)

    def _mended(self, seen) -> None:
        """Walks may be dropped, but those that come are in order, and each has a reason."""
        assert seen.kind == WalkKind.PATROL and seen.tag == MEND_TAG and not seen.more
        names = ("array", "base", "shift", "row", "source", "era")
        wanted = {name: seen[name] for name in names}
        assert wanted in self.mends, f"nothing to mend at {wanted}"
        del self.mends[: self.mends.index(wanted) + 1]
        self.mended += 1

    def _check(self, name: str, seen) -> None:
        assert self.expected[name], f"{name}: nothing expected, got {seen}"
        wanted = self.expected[name].pop(0)
        check_fields(seen, wanted, name, rest=ANY if self.partly else None)
        if name == "operation":
            self.used[seen.port] += 1
            self.order.append(seen.port)
            if seen.opcode == Opcode.FLUSH:
                self.announced -= 1
                assert self.announced >= 0, "a flush came before its count was taken"
        elif name == "expected":
            self.announced += seen.count

    def rebuild(self, layouts: list[Layout] | None = None) -> None:
        generator, config = self.generator, self.config
        self.geometries.entries.clear()
        self.members.entries.clear()
        for array in range(config.arrays):
            layout = random_layout(generator, drives=config.ports)
            if layouts:
                layout = layouts[array % len(layouts)]
            ports = generator.sample(range(MAX_DRIVES), layout.drives)
            self.layouts[array], self.ports[array] = layout, ports
            self.geometries.entries[array] = pack_geometry(config, layout, ROWS)
            for position, port in enumerate(ports):
                address = pack(member_address(config), array=array, position=position)
                self.members.entries[address] = port
            self.migrating.pop(array, None)
            if config.background:
                self.migrate(array, sorted({*range(MAX_DRIVES)} - {*ports}))

    def migrate(self, array: int, targets: list[int]) -> None:
        """Half of the arrays have a member that migrates, to a drive that is not theirs."""
        self.migrations.entries.pop(array, None)
        if targets and self.generator.random() < 0.5:
            position = self.generator.randrange(self.layouts[array].drives)
            self.migrating[array] = target = self.generator.choice(targets)
            fields = {"valid": 1, "position": position, "port": target}
            self.migrations.entries[array] = pack(migration(self.config), **fields)

    def make_stale(self, chance: float) -> None:
        """Makes each port stale with ``chance``, from random rows on."""
        self.stale = sum(
            1 << port for port in range(MAX_DRIVES) if self.generator.random() < chance
        )
        self.dut.drives__stale.value = self.stale
        self.suspect = sum(
            1 << port for port in range(MAX_DRIVES) if self.generator.random() < chance / 4
        )
        self.dut.drives__suspect.value = self.suspect
        self.indebted = sum(
            1 << one for one in range(self.config.volumes) if self.generator.random() < chance
        )
        self.dut.arrays__indebted.value = self.indebted
        for slot in range(self.config.commands):
            self.late[slot] = self.generator.random() < chance / 2
        for array in range(self.config.arrays):
            self.boundaries[array] = self.generator.randrange(ROWS)

    def differ(self, chance: float) -> None:
        """Copies may differ, and parities be wrong: of an array from a random row on, or
        anywhere."""
        arrays = range(self.config.arrays)
        bits = [[self.generator.random() < chance for _ in arrays] for _ in range(2)]
        self.unsynced, self.doubts = (
            sum(bit << array for array, bit in enumerate(some)) for some in bits
        )
        self.dut.arrays__unsynced.value, self.dut.arrays__doubts.value = self.unsynced, self.doubts
        for array in arrays:
            self.syncs[array] = self.generator.choice((0, self.generator.randrange(ROWS)))

    def in_order(self, array: int, last_row: int) -> bool:
        """Copies may differ, or parities be wrong, in rows up to this one."""
        torn = self.unsynced >> array & 1 and last_row >= self.syncs[array]
        return bool(self.undecided or self.doubts >> array & 1 or torn)

    def leave(self) -> None:
        """Any array may have redundancy left or not."""
        if self.config.slow_read_ms:
            self.redundant = self.generator.getrandbits(self.config.arrays)
            # Of one that is degraded, reads may be gathered: `test_read_streams`.
            numbers = range(self.config.arrays)
            lost = [n for n in numbers if not self.redundant >> n & 1]
            self.dut.arrays__states.value = sum(ArrayState.FAILED.value << 2 * n for n in lost)

    def fail(self, chance: float) -> None:
        """Fails each port with ``chance``."""
        self.failed = sum(
            1 << port for port in range(MAX_DRIVES) if self.generator.random() < chance
        )
        self.dut.drives__failed.value = self.failed

    def live(self, port: int) -> bool:
        return not self.failed >> port & 1

    def has_lost_data(self, array: int) -> bool:
        """Some block of the array can neither be read nor worked out, as far as drives go."""
        layout, ports = self.layouts[array], self.ports[array]
        bad = {
            place
            for place, port in enumerate(ports)
            if not self.live(port) or (self.stale | self.suspect) >> port & 1
        }
        if layout.copies > 1:
            strips = layout.drives
            return any(
                all(copy.position in bad for copy in layout.copies_of(strip * layout.strip_blocks))
                for strip in range(strips)
            )
        return any(
            len(bad & {*range(at, at + layout.width)}) > layout.parities
            for at in range(0, layout.drives, layout.width)
        )

    def flush(self, fields: dict, array: int) -> None:
        ports = self.ports[array]
        alive = [port for port in ports if self.live(port) and not self.suspect >> port & 1]
        volume = 0
        if self.config.background:
            volume = fields.get("volume", self.generator.randrange(self.config.volumes))
            fields = {**fields, "volume": volume}
        self.extents.send(**fields, opcode=HostOpcode.FLUSH, array=array, last=1)
        fields = {name: fields[name] for name in fields if name != "volume"}
        suspects = self.suspect & sum(1 << port for port in ports)
        owes = self.indebted >> volume & 1 or self.late.get(fields["slot"])
        if self.has_lost_data(array) or owes or suspects:
            if self.config.background:
                self.to_blame.append((volume, suspects))
            self.expected["rejected"].append({**fields, "status": Status.WRITE_FAULT})
            return
        target = self.migrating.get(array)
        if target is not None and self.live(target) and not self.suspect >> target & 1:
            alive.append(target)
        alive.sort()
        counted = {"array": array} if self.config.intent_chunks else {}
        self.expected["expected"].append({**fields, **counted, "count": len(alive)})
        for port in alive:
            restarts = self.restarts[port] if self.config.background else 0
            self.expected["operation"].append(
                flush_operation(
                    port=port, owner=Owner.COMMAND, index=fields["slot"], restarts=restarts
                )
            )

    def expect_flush(self) -> None:
        """What must come of the FLUSH in slot 1, of volume 1 of array 0, which has been sent."""
        send, self.extents.send = self.extents.send, lambda **_: None
        self.flush({"slot": 1, "volume": 1}, 0)
        self.extents.send = send

    def read(self, fields: dict, array: int, block: int, piece: dict) -> None:
        """What a read extent must give; ``block`` is the array block it begins with."""
        layout, ports = self.layouts[array], self.ports[array]
        places = layout.copies_of(block)
        recover = piece["recover"]
        tried, again = recover["tried"], recover["again"]
        copies = len(places)
        slow = self.config.slow_read_ms
        spare = layout.parities > 0 or copies > 1
        live = {copy for copy in range(copies) if self.live(ports[places[copy].position])}
        if piece["row"] + piece["blocks"] >= self.boundaries.get(array, 0):
            live -= {
                copy for copy in live if self.stale >> ports[places[copy].position] & 1
            }

        def weight(copy: int) -> int:
            """Blocks that the port of a copy has to do; less where it would read on."""
            port, begin = ports[places[copy].position], DATA_OFFSET_BLOCKS + places[copy].row
            reads_on = self.follows[port] == begin % (1 << FOLLOW_BITS)
            return self.loads.entries.get(port, 0) + (0 if reads_on else RUN_BLOCKS)

        unproven = self.in_order(array, piece["row"] + piece["blocks"])
        in_order = copies > 1 and unproven
        in_place = layout.parities > 0 and unproven
        fresh, medium = {}, 0
        if self.config.background:
            era = self.eras[array]
            fresh = {"medium": 0, "ordered": int(in_order or copies == 1), "era": era}
            # What it was unable to read before it restarted says nothing.
            medium = recover["medium"] and recover["era"] == era and not self.undecided
        first_read = not recover["tried"] and not in_order and not in_place
        left = self.redundant >> array & 1
        exhausted = tried and (
            medium
            if in_place
            else not slow or left or recover["medium"] or tried >= ROUNDS
        )
        attempts = self.config.drive_resets + 3
        most = ROUNDS * copies + (attempts if copies > 1 and self.config.background else 0)
        given_up = bool(live) and in_place and tried >= attempts and not exhausted
        chosen = None
        if in_order:
            # Whatever is busy: the first that is live, or the next if that cannot be read.
            follows = tried and medium and recover["ordered"]
            copy = (recover["copy"] + 1) % copies if follows else 0
            while tried < most and chosen is None:
                if copy in live:
                    chosen = copy
                else:
                    tried, copy = tried + 1, (copy + 1) % copies
        elif copies > 1 and not tried:
            first = preferred_copy(layout, piece["row"] // layout.strip_blocks, piece["index"])
            order = [(first + step) % copies for step in range(copies)]
            chosen = min((copy for copy in order if copy in live), key=weight, default=None)
        elif not layout.parities:
            copy = (recover["copy"] + 1) % copies
            while tried < most and chosen is None:
                if copy in live:
                    chosen = copy
                else:
                    tried, copy = tried + 1, (copy + 1) % copies
        elif live and not exhausted and not given_up:
            chosen = 0
        if medium and (layout.parities or (chosen is not None and copies > 1)):
            step = piece["index"] * copies if copies > 1 else 0
            self.mends.append(
                {
                    "array": array,
                    "base": piece["base"],
                    "shift": (piece["shift"] + step) % 32,
                    "row": piece["row"],
                    "source": chosen if in_order else 0,
                    "era": era,
                }
            )
        if layout.parities and chosen is None and not given_up:
            self.expected["gather"].append(piece)
        elif chosen is not None:
            place = places[chosen]
            port, begin = ports[place.position], DATA_OFFSET_BLOCKS + place.row
            self.follows[port] = (begin + piece["blocks"] + 1) % (1 << FOLLOW_BITS)
            self.expected["operation"].append(
                {
                    "port": port,
                    "opcode": Opcode.READ,
                    "fua": piece["fua"],
                    "recover": recover | {"again": again, "tried": tried, "copy": chosen, **fresh},
                    "alone": again,
                    "block": begin,
                    "blocks": piece["blocks"],
                    "owner": Owner.COMMAND,
                    "index": fields["slot"],
                    "place": piece["offset"],
                    "line": ANY,
                    "early": {"seat": ANY},
                    **({"elsewhere": left & spare & first_read} if slow else {}),
                    **(
                        {"dated": int(copies > 1), "restarts": self.restarts[port]}
                        if self.config.background
                        else {}
                    ),
                }
            )
        else:
            self.expected["unreadable"] += [{**fields, "status": Status.UNRECOVERED_READ}] * (
                piece["blocks"] + 1
            )

    def request(self) -> None:
        """Sends the extents of a random command."""
        config, generator = self.config, self.generator
        array = generator.randrange(config.arrays)
        layout = self.layouts[array]
        fields = {"slot": generator.randrange(config.commands)}
        opcode = generator.choice(
            (HostOpcode.READ, HostOpcode.READ, HostOpcode.READ, HostOpcode.WRITE, HostOpcode.FLUSH)
        )
        if generator.random() < 0.05:
            status = generator.choice((Status.INVALID_NAMESPACE, Status.LBA_OUT_OF_RANGE))
            self.extents.send(**fields, opcode=opcode, status=status, last=1)
            self.expected["rejected"].append({**fields, "status": status})
            return
        if opcode == HostOpcode.FLUSH:
            self.flush(fields, array)
            return
        count = generator.choice((1, generator.randint(1, config.transfer_blocks)))
        block = generator.randrange(layout.blocks(ROWS) - count)
        recover = {"again": 0, "tried": 0, "copy": 0}
        if config.background:
            recover |= {"medium": 0, "ordered": 0, "era": 0}
        if opcode == HostOpcode.READ and generator.random() < 0.3:
            # A drive of a row that may be torn is asked more often.
            copies = 4 if layout.parities else layout.copies
            recover = random_recovery(generator, config, copies=copies)
            recover["copy"] *= layout.copies > 1
            if config.background and generator.random() < 0.7:
                recover["era"] = self.eras[array]
        fua = generator.getrandbits(1)
        for found in layout.extents(block, count, write=opcode == HostOpcode.WRITE):
            piece = {
                **fields,
                "opcode": opcode,
                "fua": fua,
                "recover": recover,
                "status": Status.SUCCESS,
                "array": array,
                "base": found.base,
                "shift": found.shift,
                "index": found.index,
                "row": found.row,
                "blocks": found.blocks - 1,
                "offset": found.offset,
                "final": int(found.final),
                "last": int(found.last),
                # What says nothing here is passed on.
                "ordinal": generator.randrange(32),
            }
            if config.sector_emulation:
                piece |= {"head": generator.getrandbits(1), "tail": generator.getrandbits(1)}
            if config.background:
                piece["volume"] = generator.randrange(config.volumes)
            self.extents.send(**piece)
            if opcode == HostOpcode.WRITE:
                self.expected["gather"].append(piece)
            else:
                self.read(fields, array, block + found.offset, piece)

    async def settled(self) -> None:
        await wait_until(
            self.dut,
            lambda: self.extents.idle and not any(self.expected.values()),
            cycles=100_000,
            what="rest",
        )
        if self.config.background:
            # Walks to mend rows may still be on their way.
            parts = (self.dut.busy, self.dut.mend__walk__valid)
            await wait_until(
                self.dut, lambda: not any(sample(p) for p in parts), cycles=200, what="mended"
            )
        for _ in range(4):
            await RisingEdge(self.dut.clk)
        assert sample(self.dut.busy) == 0, "busy at rest"
        assert self.announced == 0, "flushes are missing"
        assert self.blamed == self.to_blame, "suspect drives of which a flush was refused"
        for name in self.sinks:
            assert not sample(getattr(self.dut, f"{name}__valid")), f"{name} left over"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def sends_every_extent_where_it_belongs(dut):
    generator = random.Random(int(os.environ["SEED"]))
    bench = Bench(dut, CONFIGS[os.environ["CONFIG"]], generator)
    watch = BusyWatch(dut, ["extent"], list(bench.sinks))
    await start(dut)
    for _ in range(BATCHES):
        bench.rebuild()
        bench.fail(generator.choice((0, 0.03, 0.1, 0.5, 0.97)))
        if bench.config.background:
            bench.make_stale(generator.choice((0, 0.1, 0.5)))
            bench.differ(generator.choice((0, 0.3, 1)))
        bench.leave()
        for sink in bench.sinks.values():
            sink.active = generator.choice((1.0, 1.0, 0.3))
        bench.extents.active = generator.choice((1.0, 0.2))
        config = bench.config
        most = generator.choice((0, 1, 40, config.operations * config.transfer_blocks))
        bench.loads.entries = {
            port: generator.randint(0, most)
            for port in range(MAX_DRIVES)
        }
        for _ in range(COMMANDS):
            bench.request()
        await bench.settled()
    assert bool(bench.mended) == bench.config.background
    watch.check()


async def flushed_bench(dut) -> Bench | None:
    """A bench with a RAID 5, of a controller with background work; else none."""
    config = CONFIGS[os.environ["CONFIG"]]
    if not config.background:
        return None
    bench = Bench(dut, config, random.Random(int(os.environ["SEED"])))
    await start(dut)
    bench.rebuild([Layout("RAID5", 4, 1)])
    return bench


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flush_waits_for_what_becomes_of_drives(dut):
    """It is judged once that is known, and refused by an array that may have lost something."""
    bench = await flushed_bench(dut)
    if bench is None:
        return
    for suspects, debt in ((1, 0), (2, 0), (1, 2), (0, 2), (0, 1), (0, 0)):
        dut.drives__undecided.value = 1
        dut.drives__suspect.value = dut.arrays__indebted.value = 0
        bench.extents.send(slot=1, opcode=HostOpcode.FLUSH, array=0, volume=1, last=1)
        await ClockCycles(dut.clk, 100)
        assert not any(sink.received for sink in bench.sinks.values()), "it has not waited"
        bench.suspect = sum(1 << port for port in bench.ports[0][:suspects])
        bench.indebted = debt
        dut.drives__suspect.value, dut.arrays__indebted.value = bench.suspect, debt
        dut.drives__undecided.value = 0
        # What is expected of it now; it has been sent.
        bench.expect_flush()
        await bench.settled()
        assert len(bench.blamed) == (suspects > 0 or debt == 2)
        for sink in bench.sinks.values():
            sink.received = 0
        bench.blamed.clear()
        bench.to_blame.clear()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flush_is_judged_again_if_a_drive_restarts_meanwhile(dut):
    """What becomes of that drive decides, whenever it restarts: it is done without, or kept."""
    bench = await flushed_bench(dut)
    if bench is None:
        return
    refused = 0
    for wait in range(2, 24):
        for kept in (False, True):
            port = bench.ports[0][wait % 4]
            bench.suspect = bench.failed = 0
            dut.drives__failed.value = dut.drives__suspect.value = 0
            for name in ("expected", "rejected"):
                bench.sinks[name].active = 0
            bench.extents.send(slot=1, opcode=HostOpcode.FLUSH, array=0, volume=1, last=1)
            await ClockCycles(dut.clk, wait)
            await FallingEdge(dut.clk)
            if not sample(dut.expected__valid):
                dut.drives__suspect.value, dut.drives__undecided.value = 1 << port, 1
                await ClockCycles(dut.clk, 20)
                bench.suspect, bench.failed = (1 << port, 0) if kept else (0, 1 << port)
                dut.drives__suspect.value, dut.drives__failed.value = bench.suspect, bench.failed
                dut.drives__undecided.value = 0
                refused += kept
            bench.expect_flush()
            for name in ("expected", "rejected"):
                bench.sinks[name].active = 1.0
            await bench.settled()
    assert refused > 8
    assert len(bench.blamed) == refused


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flush_is_of_what_drives_had_as_it_was_judged(dut):
    """Its operations say how often each drive had restarted by then, however late they are sent."""
    bench = await flushed_bench(dut)
    if bench is None:
        return
    bench.sinks["operation"].active = 0
    bench.extents.send(slot=1, opcode=HostOpcode.FLUSH, array=0, volume=1, last=1)
    bench.expect_flush()
    await wait_until(
        dut, lambda: sample(dut.operation__valid), cycles=200, what="the first operation"
    )
    for port, count in enumerate(bench.restarts):
        getattr(dut, f"restarts__{port}").value = (count + 1) % 16
    await ClockCycles(dut.clk, 4)
    bench.sinks["operation"].active = 1.0
    await bench.settled()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def copies_that_may_differ_are_read_in_order(dut):
    """All reads are of one copy, from when a drive has restarted: of the first that can be read,
    which is what a RESYNC copies to the others. Rows before are read from all."""
    config = CONFIGS[os.environ["CONFIG"]]
    if not config.background:
        return
    generator = random.Random(int(os.environ["SEED"]))
    bench = Bench(dut, config, generator)
    await start(dut)
    layout = Layout("RAID1", 3, 4)
    bench.rebuild([layout])
    bench.partly = True
    first, second, third = bench.ports[0]
    middle = ROWS // 2

    async def ask(rows: range, source: int = 0, *, later: bool = False, **recover) -> set[int]:
        recover["era"] = (bench.eras[0] - later) % (1 << ERA_BITS)
        bench.order.clear()
        bench.loads.entries = {first: 1000, second: 1000, third: 0}
        for row in generator.sample(rows, 30):
            base, shift, index, row = layout.key(row)
            piece = {"base": base, "shift": shift, "index": index, "row": row}
            bench.extents.send(opcode=HostOpcode.READ, recover=recover, **piece)
            bench.expected["operation"].append({"opcode": Opcode.READ, "elsewhere": 0})
            if recover.get("medium") and not later:
                where = {"array": 0, "base": base, "shift": shift + 3 * index, "row": row}
                bench.mends.append(where | {"source": source, "era": bench.eras[0]})
        await bench.settled()
        bench.mends.clear()
        return {*bench.order}

    before, behind, every = range(middle), range(middle, ROWS), range(ROWS)
    bench.syncs[0] = middle
    assert await ask(every) == {third}
    dut.drives__undecided.value = 1
    assert await ask(every) == {first}
    dut.arrays__doubts.value = 1
    dut.drives__undecided.value = 0
    assert await ask(every) == {first}
    dut.arrays__unsynced.value = 1
    dut.arrays__doubts.value = 0
    assert await ask(behind) == {first}
    assert await ask(before) == {third}
    # It hangs up, or did not come so far: it is asked again.
    assert await ask(behind, tried=1, copy=0, again=1) == {first}
    assert await ask(behind, tried=0, copy=0, again=1) == {first}
    # It cannot read the block: the next one can; but not if another was asked before they differed.
    medium = {"tried": 1, "again": 1, "medium": 1}
    assert await ask(behind, 1, copy=0, ordered=1, **medium) == {second}
    assert await ask(behind, 2, copy=1, ordered=1, **medium) == {third}
    assert await ask(behind, copy=1, ordered=0, **medium) == {first}
    assert await ask(before, copy=1, ordered=0, **medium) == {third}
    # Nor if its drive has restarted since.
    assert await ask(behind, copy=0, ordered=1, later=True, **medium) == {first}
    dut.drives__undecided.value = 1
    assert await ask(behind, copy=0, ordered=1, later=True, **medium) == {first}
    dut.drives__undecided.value = 0
    dut.drives__failed.value = 1 << first
    assert await ask(behind) == {second}
    dut.drives__failed.value = 0
    dut.drives__stale.value = 1 << first
    bench.boundaries[0] = middle
    assert await ask(behind) == {second}
    dut.drives__failed.value = 1 << second
    assert await ask(behind) == {third}


async def timed_reads(dut, layout: Layout, blocks: list[int]) -> tuple[Bench, float]:
    """Reads of one block each, by drives that take `DRIVE_CYCLES` for each; cycles a read."""
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    bench.rebuild([layout])
    bench.partly = True
    for block in blocks:
        base, shift, index, row = layout.key(block)
        piece = {"base": base, "shift": shift, "index": index, "row": row}
        bench.extents.send(opcode=HostOpcode.READ, **piece)
        bench.expected["operation"].append({"opcode": Opcode.READ})
    done: Counter[int] = Counter()

    async def drive(port: int) -> None:
        while True:
            bench.loads.entries[port] = bench.used[port] - done[port]
            await RisingEdge(dut.clk)
            if bench.used[port] > done[port]:
                for _ in range(DRIVE_CYCLES):
                    bench.loads.entries[port] = bench.used[port] - done[port]
                    await RisingEdge(dut.clk)
                done[port] += 1

    for port in bench.ports[0]:
        cocotb.start_soon(drive(port))
    cycles = await wait_until(
        dut, lambda: bench.sinks["operation"].received == len(blocks), cycles=20_000, what="reads"
    )
    await bench.settled()
    return bench, cycles / len(blocks)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_of_one_copy_at_rate(dut):
    """Where there is nothing to choose."""
    bench, cycles = await timed_reads(dut, Layout("RAID0", 4, 1), list(range(600)))
    dut._log.info("%.1f cycles a direct read", cycles)
    assert cycles <= DIRECT_CYCLES
    assert set(bench.used.values()) == {600 // 4}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_ahead_on_every_mirror(dut):
    """A sequential stream keeps every drive of a RAID 10 busy, in long runs; and the rate."""
    layout = Layout("RAID10", 4, 2)
    bench, cycles = await timed_reads(dut, layout, list(range(600)))
    dut._log.info("%.1f cycles a mirrored read", cycles)
    assert cycles <= MIRRORED_CYCLES
    assert len(bench.used) == 4 and min(bench.used.values()) >= 600 // 4 // 2, bench.used
    pairs = [bench.ports[0][:2], bench.ports[0][2:]]
    for pair in pairs:
        order = [port for port in bench.order if port in pair]
        turns = sum(one != other for one, other in pairwise(order))
        assert turns <= len(order) / 16, f"{turns} changes of drive in {len(order)} reads"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def random_reads_go_to_the_less_busy_drive(dut):
    """A pair does its random reads evenly at every moment."""
    layout = Layout("RAID1", 2, 4)
    generator = random.Random(2)
    blocks = [generator.randrange(layout.blocks(ROWS)) for _ in range(200)]
    bench, _ = await timed_reads(dut, layout, blocks)
    one, _ = bench.ports[0]
    for end in range(20, len(bench.order)):
        share = bench.order[:end].count(one)
        assert abs(2 * share - end) <= 4, f"{share} of the first {end} reads at one drive"


@pytest.mark.parametrize("config", CONFIGS)
def test_dispatch(config):
    simulate(
        Dispatch(config=CONFIGS[config]),
        name=f"dispatch_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


class IgnoresLoads(Dispatch):
    """Planted bug: every port seems idle."""

    def elaborate(self, platform):
        idle = self.load_read.data
        self.load_read.data = type(idle)(len(idle), name="ignored")
        try:
            return super().elaborate(platform)
        finally:
            self.load_read.data = idle


class IgnoresFailures(Dispatch):
    """Planted bug: every drive counts as live."""

    def elaborate(self, platform):
        outer = self.drives.failed
        self.drives.failed = type(outer)(len(outer), name="ignored")
        try:
            return super().elaborate(platform)
        finally:
            self.drives.failed = outer


class SharesReadsOfDifferentCopies(Dispatch):
    """Planted bug: copies never differ, and parities are always right."""

    def elaborate(self, platform):
        names = [(self.arrays, "unsynced"), (self.arrays, "doubts"), (self.drives, "undecided")]
        outer = [(port, name, getattr(port, name)) for port, name in names]
        for port, name, signal in outer:
            setattr(port, name, Const(0, len(signal)))
        try:
            return super().elaborate(platform)
        finally:
            for port, name, signal in outer:
                setattr(port, name, signal)


@pytest.mark.slow
def test_planted_bugs_are_found(monkeypatch):
    for testcase in ("sends_every_extent_where_it_belongs", IN_ORDER):
        with pytest.raises(SimulationError, match=testcase):
            simulate(
                SharesReadsOfDifferentCopies(config=CONFIGS["board"]),
                name="dispatch_shares_reads_of_different_copies",
                module=__name__,
                testcase=testcase,
                parameters={"CONFIG": "board"},
            )
    with pytest.raises(SimulationError, match="sends_every_extent"):
        simulate(
            IgnoresFailures(config=CONFIGS["board"]),
            name="dispatch_ignores_failures",
            module=__name__,
            testcase="sends_every_extent_where_it_belongs",
            parameters={"CONFIG": "board"},
        )
    for testcase in ("reads_ahead_on_every_mirror", "random_reads_go_to_the_less_busy_drive"):
        with pytest.raises(SimulationError, match=testcase):
            simulate(
                IgnoresLoads(config=CONFIGS["small"]),
                name="dispatch_ignores_loads",
                module=__name__,
                testcase=testcase,
                parameters={"CONFIG": "small"},
            )
    with monkeypatch.context() as patch:
        # Half of the copies are never asked again.
        patch.setattr("hdl.stripe.dispatch.ROUNDS", 1)
        with pytest.raises(SimulationError, match="sends_every_extent"):
            simulate(
                Dispatch(config=CONFIGS["board"]),
                name="dispatch_gives_up_early",
                module=__name__,
                testcase="sends_every_extent_where_it_belongs",
                parameters={"CONFIG": "board"},
            )
    monkeypatch.setattr("hdl.stripe.dispatch.DATA_OFFSET_BLOCKS", 0)
    with pytest.raises(SimulationError, match="sends_every_extent"):
        simulate(
            Dispatch(config=CONFIGS["board"]),
            name="dispatch_forgets_the_offset",
            module=__name__,
            testcase="sends_every_extent_where_it_belongs",
            parameters={"CONFIG": "board"},
        )
