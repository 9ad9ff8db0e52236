"""A bench of Dispatch: what it should send, after the reference layout."""

import random
from collections import Counter

import cocotb
from cocotb.triggers import RisingEdge

from cocotb_tests.array.array_models import (
    FLUSH_IGNORES,
    Table,
    flush_operation,
    pack_geometry,
    random_recovery,
)
from cocotb_tests.fields import ANY, check_fields
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, pack, sample, wait_until
from hdl.config import DATA_OFFSET_BLOCKS, ERA_BITS, MAX_DRIVES, Config, board, small
from hdl.flow.array_state import ArrayState
from hdl.flow.extent import expected, extent
from hdl.flow.host_command import HostOpcode, Status, completion
from hdl.flow.operation import Opcode, Owner, operation
from hdl.flow.row import committed
from hdl.flow.table_read import member_address, migration
from hdl.flow.walk import MEND_TAG, WalkKind, walk
from hdl.stripe.dispatch import FOLLOW_BITS
from sim.card.layouts import random_layout
from sim.golden.layout import Layout

CONFIGS = {"board": board(MAX_DRIVES), "small": small()}
ROWS = 1 << 24
RUN_BLOCKS = 32
"""Blocks more than another port that a port may have to do and still be asked to read on."""
ROUNDS = 2
"""Times that every copy of a block is asked or passed over, before it is given up."""
NO_MEANING = {
    **FLUSH_IGNORES,
    "READ:line": "lines are allocated as data arrives",
    "READ:early.seat": "of the read of a row",
}
"""Fields of operations."""


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
            dut.drives__undecided.value = 0
            dut.arrays__indebted.value = dut.arrays__untaken.value = 0
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
        self.owe(self.indebted)
        for slot in range(self.config.commands):
            self.late[slot] = self.generator.random() < chance / 2
        for array in range(self.config.arrays):
            self.boundaries[array] = self.generator.randrange(ROWS)

    def owe(self, volumes: int) -> None:
        """Makes each of these volumes indebted, or untaken, or both."""
        self.indebted = volumes
        indebted, untaken = (self.generator.getrandbits(self.config.volumes) for _ in range(2))
        self.dut.arrays__indebted.value = volumes & (indebted | ~untaken)
        self.dut.arrays__untaken.value = volumes & untaken

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
        await cycles_pass(self.dut.clk, 4)
        assert sample(self.dut.busy) == 0, "busy at rest"
        assert self.announced == 0, "flushes are missing"
        assert self.blamed == self.to_blame, "suspect drives of which a flush was refused"
        for name in self.sinks:
            assert not sample(getattr(self.dut, f"{name}__valid")), f"{name} left over"
