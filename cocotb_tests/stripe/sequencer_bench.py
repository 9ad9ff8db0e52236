"""The row sequencer with everything around it, and the truth about every block."""

import os
import random
from collections.abc import Iterator, Mapping
from math import inf
from typing import Self

from cocotb.triggers import RisingEdge
from cocotb.utils import get_sim_time

from cocotb_tests.streams import (
    CLOCK_PERIOD_NS,
    Packing,
    StreamSink,
    StreamSource,
    TableServer,
    check_busy_after,
    cycles_pass,
    every_cycle,
    sample,
    start,
    wait_until,
)
from cocotb_tests.stripe.stripe_models import (
    BLOCK,
    Allocator,
    ArrayModel,
    DrivesModel,
    Lines,
    ParityModel,
    Tables,
)
from hdl.config import ERA_BITS, MAX_DRIVES, Config
from hdl.flow.geometry import Rotation
from hdl.flow.host_command import Status
from hdl.flow.operation import Opcode, landed
from hdl.flow.row import RowKind, committed, row_state, strip_state
from hdl.flow.walk import MEND_TAG, WalkKind, walk

CONFIG = Config(
    data_width=64, ports=8, lines=64, banks=4, commands=64, rows=8, operations=64, arrays=2,
    parities=3, intent_chunks=32, slow_read_ms=1,
)  # fmt: skip

ARRAY = 1
"""The number of the array under test; 0 is another one."""

ROW_STEP = 8
"""Rows of the benches are so far apart, so that copies which wrap do not meet."""

PATIENCE = 20_000
"""Cycles within which something must happen."""

JUST_NOW_NS = 200 * CLOCK_PERIOD_NS
"""A drive that has failed for so long at most may have been there as a row was judged."""

JUDGED_IN = 400
"""Cycles at most until the states of arrays follow a drive that has failed."""

ARRAYS = {
    "raid0": ArrayModel(width=4, ports=(0, 1, 2, 3)),
    "raid1": ArrayModel(width=3, copies=3, ports=(6, 1, 4)),
    "raid10": ArrayModel(width=4, copies=2, ports=(3, 1, 7, 5)),
    "raid1e": ArrayModel(width=3, copies=2, ports=(2, 4, 6)),
    "raid5": ArrayModel(width=4, parities=1, ports=(7, 2, 5, 0)),
    "raid5_wide": ArrayModel(width=8, parities=1, ports=tuple(range(8))),
    "raid50": ArrayModel(width=3, parities=1, spans=2, ports=(0, 5, 1, 3, 6, 2)),
    "raid6": ArrayModel(width=5, parities=2, ports=(1, 3, 5, 7, 0)),
    "raid6_wide": ArrayModel(width=8, parities=2, ports=(7, 6, 5, 4, 3, 2, 1, 0)),
    "raid6_ddf_continue": ArrayModel(
        width=6, parities=2, rotation=Rotation.DDF_N_CONTINUE, ports=(1, 3, 5, 7, 0, 2)
    ),
    "raid6_ddf_restart": ArrayModel(
        width=8, parities=2, rotation=Rotation.DDF_N_RESTART, ports=(7, 6, 5, 4, 3, 2, 1, 0)
    ),
    "triple": ArrayModel(width=7, parities=3, ports=(1, 3, 5, 7, 0, 2, 4)),
}


def some_rows(span: int) -> range:
    """The first ``span`` rows of the benches."""
    return range(0, span * ROW_STEP, ROW_STEP)


class Row:
    """One row that the test launches."""

    def __init__(self, *, kind, base, shift, row, joined, gathered=False, fua=False, more=False):
        self.kind = kind
        self.gathered = gathered
        self.fua = fua
        self.more = more
        self.base = base
        self.shift = shift
        self.row = row
        self.joined = joined
        self.misses_blocks = False
        self.strips: dict[int, tuple[int, int, int]] = {}
        self.blocks: dict[int, bytes] = {}
        self.statuses: list[Status] = []
        self.marked: set[tuple[int, int]] = set()  # places that it has made unreadable
        self.walk: dict = {}
        # Once it is being written: the era, and whether drives were away by then.
        self.era: int | None = None
        self.planned_without = False
        # As the row began: of each joined block, the places of its copies; those of all roles.
        self.places: dict[int, list[tuple[int, int]]] = {}
        self.roles: list[tuple[int, int]] = []


    def used_places(self) -> list[tuple[int, int]]:
        """Those of all roles; without parity, of all copies of what is joined."""
        return self.roles or [place for places in self.places.values() for place in places]


class Bench:
    """The sequencer with everything around it, and the truth about every block."""

    def __init__(self, dut, config: Config, array: ArrayModel, *, seed: int, active: float):
        self.dut = dut
        self.config = config
        self.array = array
        self.random = random.Random(f"{seed}/bench")
        self.wishes = random.Random(f"{seed}/fua")
        self.lines = Lines(config.lines)
        self.drives = DrivesModel(dut, config, self.lines, active=active, seed=seed)
        self.drives.wants_fua = self._wants_fua
        self.drives.wants_more = self._wants_more
        self.drives.gives_up = self.fail
        self.drives.may_flush = self._may_flush
        self.drives.array = ARRAY
        self.drives.redundant = array.parities > 0 or array.mirrored
        self.parity = ParityModel(dut, config, self.lines, active=active, seed=seed)
        self.allocator = Allocator(
            dut, self.lines, name="allocate", active=active, seed=seed
        )
        self.tables = Tables(dut, config, [ArrayModel(width=2, ports=(0, 1)), array])
        self.slots: dict[int, Row] = {}
        self.by_command: dict[int, tuple[Row, int]] = {}
        self.rows: dict[int, dict[int, bytes]] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.torn: dict[tuple[int, int], set[bytes]] = {}
        self.failed: set[int] = set()
        self.failed_at: dict[int, float] = {}
        self.stale: set[int] = set()
        self.unsettled = False
        self.write_faults = 0
        self.read_faults = 0
        self.committed = 0
        # Of blocks written with FUA: those that are worked out, and those of them that are on a
        # drive which went before the row's end, while other blocks of the row were not written.
        self.worked_out = 0
        self.left_behind = 0
        self.era = 0
        self.recovered = 0
        self.retired = 0
        self.mended: set[tuple[int, int]] = set()
        self._pack_row = Packing(row_state(config))
        self._pack_strip = Packing(strip_state(config))
        TableServer(dut, "row_read", self._row)
        TableServer(dut, "strip_read", self._strip)
        self.launch = StreamSource(dut, "launch", active=active, seed=seed)
        dut.drives__failed.value = 0
        dut.drives__stale.value = 0
        dut.drives__used.value = (1 << MAX_DRIVES) - 1
        if config.background:
            dut.arrays__settled.value = 0
            every_cycle(dut.clk, self._judge_states())
        check_busy_after(dut, "finished")
        check_busy_after(dut, "flushed", unless="flush")
        if config.array_shares:
            # One of two arrays.
            dut.exists.value = 3

        self.sinks: dict[str, StreamSink] = {"flush": self.drives.flush_sink}

        def sink(name, callback, layout=None, **more):
            self.sinks[name] = StreamSink(
                dut, name, layout=layout, active=active, seed=seed, callback=callback, **more
            )

        sink("free", self.lines.give_back)
        sink("committed", self._committed, committed(config))
        sink("recovered", self._recovered, landed(config))
        sink("recover_failed", self._recover_failed, committed(config))
        sink("fail", self.fail)
        sink("retired", self._retired)
        for number in range(2):
            era = {"era": "of a source but 0"}
            sink(f"mends__{number}__walk", self._mend, walk(config), ignores=era)

    @classmethod
    def from_environment(cls, dut, arrays: Mapping[str, ArrayModel] = ARRAYS) -> Self:
        """As `cocotb_tests.stripe.row_runs.run_rows` says: of ``arrays``, with a seed."""
        seed = int(os.environ["SEED"])
        print(f"seed {seed}")
        array = arrays[os.environ["ARRAY"]]
        active = float(os.environ["ACTIVE"])
        return cls(dut, CONFIG, array, seed=seed, active=active)

    # Tables that the gatherer would hold.

    def _row(self, slot: int) -> int:
        row = self.slots.get(slot)
        if row is None:
            return 0
        return self._pack_row(
            kind=row.kind,
            gathered=row.gathered,
            fua=row.fua,
            more=row.more,
            array=ARRAY,
            base=row.base,
            shift=row.shift,
            row=row.row,
            joined=sum(1 << index for index in row.joined),
            walk=row.walk,
        )

    def _strip(self, address: int) -> int:
        slot, index = divmod(address, 32)
        row = self.slots.get(slot)
        if row is None or index not in row.strips:
            return 0
        command, offset, line = row.strips[index]
        return self._pack_strip(slot=command, offset=offset, line=line)

    # What the sequencer says.

    def _wants_fua(self, operation) -> bool | None:
        """What is written, or read, for a host that asked for it; or what a block that is written,
        and that no trusted drive has, is worked out from. And every write of a row is announced."""
        row = self.slots[operation.index]
        if row.era is None and operation.opcode == Opcode.WRITE:
            row.era = self.era
            row.planned_without = self._misses_blocks(row)
        if operation.opcode == Opcode.WRITE_UNCORRECTABLE:
            row.marked.add((operation.port, operation.block))
        if operation.opcode != Opcode.READ and operation.index in self.drives.begun:
            assert self.drives.begun[operation.index] == (ARRAY, row.row), "another row is marked"
        if not row.fua or operation.opcode != Opcode.READ or row.kind == RowKind.RECOVER:
            return row.fua
        away = self._misses_blocks(row)
        if away != row.misses_blocks:
            return None  # a drive has gone since the row was planned
        own = {place for index in row.joined for place in self.strip_places(row.row, index)}
        ports = self.untrusted() if (operation.port, operation.block) in own else set()
        assert operation.port not in ports, "an update of what no trusted drive has"
        return away

    def untrusted(self) -> set[int]:
        """Ports of members whose blocks are on no drive that is trusted, or not yet."""
        return self.failed | self.stale

    def _misses_blocks(self, row: Row) -> bool:
        """A block that the row writes has no drive that is trusted."""
        away = self.untrusted()
        places = (self.strip_places(row.row, index) for index in row.joined)
        return not self.array.mirrored and any(port in away for ((port, _),) in places)

    def _wants_more(self, operation) -> bool | None:
        """The next row follows at once: what is written first is merged with that of it. Reads
        need not wait for it."""
        row = self.slots[operation.index]
        if operation.opcode == Opcode.READ and not operation.more:
            return None
        return row.more and not operation.alone

    def step_era(self) -> None:
        """The array has lost what was not flushed."""
        self.era = (self.era + 1) % (1 << ERA_BITS)
        self.dut.arrays__eras.value = self.era << (ERA_BITS * ARRAY)

    def fail(self, port: int) -> None:
        new = port not in self.failed
        if new:
            self.failed_at[port] = get_sim_time("ns")
        self.failed.add(port)
        self.drives.gone.add(port)
        self.dut.drives__failed.value = sum(1 << one for one in self.failed)
        if new and self.config.background:
            # As `changed` does it, in the cycle in which the drive is failed.
            self.dut.arrays__settled.value = 0

    def revive(self) -> None:
        """All drives are as new."""
        self.failed.clear()
        self.failed_at.clear()
        self.drives.gone.clear()
        self.dut.drives__failed.value = 0

    def make_stale(self, port: int, *, foreign: bool = True) -> None:
        """A drive with ``foreign`` contents takes the place of one that failed, or that one."""
        self.failed.discard(port)
        self.drives.gone.discard(port)
        self.stale.add(port)
        self.dut.drives__failed.value = sum(1 << one for one in self.failed)
        self.dut.drives__stale.value = sum(1 << one for one in self.stale)
        for key in self.drives.blocks:
            if key[0] == port and foreign:
                self.drives.blocks[key] = self.random.randbytes(BLOCK)

    def _judge_states(self) -> Iterator[None]:
        """What `hdl.array.states.ArrayStates` says, some time after each change."""
        dut = self.dut
        judging = random.Random(f"{self.random.random()}/states")
        seen, left = None, 0
        while True:
            yield
            now = frozenset(self.failed), frozenset(self.stale), self.array.ports
            if now != seen or self.unsettled:
                seen, left = now, judging.randint(1, JUDGED_IN)
                dut.arrays__settled.value = 0
                continue
            left -= 1
            if left == 0:
                dut.arrays__essential.value = sum(1 << port for port in self.essential())
                dut.arrays__settled.value = 1

    def groups(self) -> list[list[int]]:
        """Ports of members that can replace each other."""
        array = self.array
        if not array.mirrored:
            return [
                [array.port(span * array.width + place) for place in range(array.width)]
                for span in range(array.spans)
            ]
        found, first = [], 0
        while not found or first:
            places = [(first + copy) % array.width for copy in range(array.copies)]
            found.append([array.port(place) for place in places])
            first = (first + array.copies) % array.width
        return found

    def essential(self) -> set[int]:
        """Ports of good members without which some group has lost data."""
        bad = self.failed | self.stale
        return {
            port
            for group in self.groups()
            if len(bad.intersection(group)) >= self.tolerated
            for port in group
            if port not in bad
        }

    def lost_groups(self) -> list[list[int]]:
        """Groups that have lost more than the level tolerates."""
        groups = self.groups()
        return [group for group in groups if len(self.failed & {*group}) > self.tolerated]

    def _committed(self, event) -> None:
        row, index = self.by_command.pop(event.slot)
        assert row.kind == RowKind.WRITE
        self.committed += 1
        row.statuses.append(event.status)
        if row.fua:
            self._check_marks(row)
        if event.status == Status.SUCCESS:
            self.rows[row.row][index] = row.blocks[index]
            self._check_held(row, index)
            if row.fua:
                self._check_stored(row, index)
            self.torn.pop((row.row, index), None)
        else:
            assert event.status == Status.WRITE_FAULT
            self.write_faults += 1
            self.torn[row.row, index] = self.allowed(row.row, index) | {row.blocks[index]}

    def _places_of(self, row: Row, index: int) -> set[tuple[int, int]]:
        """Places of a block. A member may have migrated since the row began."""
        return {*row.places[index], *self.strip_places(row.row, index)}

    def _check_held(self, row: Row, index: int) -> None:
        """What was written can be read, or worked out, as drives were a moment ago, unless the
        array has failed."""
        if self.lost_groups():
            return
        drives, now = self.drives, get_sim_time("ns")
        away = self.failed | (self.stale if self.array.mirrored else self.stale_at(row.row))
        away = {port for port in away if now - self.failed_at.get(port, 0) > JUST_NOW_NS}
        gone = {port for port in self.failed | self.stale if port not in away}

        def there(place: tuple[int, int]) -> bool:
            return place[0] not in away and place not in drives.marked

        places = self._places_of(row, index)
        held = any(
            there(place) and (place[0] in gone or drives.blocks.get(place) == row.blocks[index])
            for place in places
        )
        others = sum(there(place) for place in row.roles if place not in places)
        worked_out = self.array.parities and others >= self.array.data
        assert held or worked_out, f"row {row.row} strip {index} is nowhere"

    def _check_marks(self, row: Row) -> None:
        """What a row with FUA has made unreadable is so after a power cut, however the row ends,
        unless a drive was not flushed well."""
        marks = row.marked & self.drives.spoilt
        old = [place for place in marks if place[0] not in self.untrusted()]
        assert not old or self.drives.flush_errors, f"row {row.row}: {old} are readable again"

    def _check_stored(self, row: Row, index: int) -> None:
        """What was written with FUA outlives a power cut: on its drive, or with all that it is
        worked out from."""
        drives = self.drives
        places = self._places_of(row, index)
        (slot,) = (slot for slot, one in self.slots.items() if one is row)
        if any(
            drives.stored.get(place) == row.blocks[index]
            and (place[0] not in self.untrusted() or self.went_after(place[0], slot))
            for place in places
        ):
            return
        assert self.array.parities, f"row {row.row} strip {index} is not stored"
        away = self.untrusted() | drives.gone
        usable = [
            place
            for place in row.roles
            if place not in places and place[0] not in away and place not in drives.unreadable
        ]
        cached = [place for place in usable if drives.is_cached(place)]
        assert not cached, f"row {row.row} strip {index} is lost without {cached}"
        assert len(usable) >= self.array.data, f"row {row.row} strip {index} is on no drive"
        needs_others = len(row.joined) < self.array.data and not row.planned_without
        restarted = row.era != self.era and needs_others
        assert not restarted, f"row {row.row}: drives have lost data since it was planned"
        self.worked_out += 1
        stored = any(drives.stored.get(place) == row.blocks[index] for place in places)
        self.left_behind += stored and len(row.joined) < self.array.data

    def _may_flush(self, port: int) -> bool:
        """A row with FUA that has ended its operations has a block there, or has made one
        unreadable, and found its drive."""
        return any(
            row.fua
            and port in (place[0] for place in (*row.used_places(), *row.marked))
            and (port not in self.failed or self.went_after(port, slot))
            for slot, row in self.slots.items()
            if slot in self.drives.ended_at
        )

    def went_after(self, port: int, slot: int) -> bool:
        """The drive has gone since the last operation of the row has ended."""
        return self.failed_at.get(port, inf) >= self.drives.ended_at[slot]

    def _recovered(self, event) -> None:
        row, index = self.by_command.pop(event.slot)
        assert row.kind == RowKind.RECOVER
        assert event.offset == row.strips[index][1]
        found = self.lines.read(event.line)
        wanted = self.allowed(row.row, index)
        assert found in wanted, f"row {row.row} strip {index}: {found!r}, not of {wanted!r}"
        self.lines.give_back(event.line)
        self.recovered += 1

    def _recover_failed(self, event) -> None:
        row, _ = self.by_command.pop(event.slot)
        assert row.kind == RowKind.RECOVER
        assert event.status == Status.UNRECOVERED_READ
        self.read_faults += 1

    def _retired(self, slot: int) -> None:
        row = self.slots.pop(slot)
        self.drives.begun.pop(slot, None)
        assert not any(row is other for other, _ in self.by_command.values())
        self.retired += 1

    def _mend(self, one) -> None:
        base, shift = self.place(one.row)
        strip = (one.shift - shift) // self.array.copies if self.array.mirrored else 0
        assert strip in range(self.strips(one.row)), one
        wanted = shift + strip * self.array.copies if self.array.mirrored else shift
        asked = one.kind, one.array, one.base, one.shift, one.tag, one.source
        assert asked == (WalkKind.PATROL, 1, base, wanted, MEND_TAG, 0) and not one.more
        self.mended.add((one.row, strip))

    def allowed(self, row: int, index: int) -> set[bytes]:
        """What a block may hold: what was written last with success, or without since then."""
        return self.torn.get((row, index)) or {self.rows[row].get(index, bytes(BLOCK))}

    # What the test asks for.

    @property
    def tolerated(self) -> int:
        """Drives that may fail, whichever they are."""
        return self.array.parities + self.array.copies - 1

    def place(self, row: int) -> tuple[int, int]:
        """Base and shift of a row, the same every time."""
        if row not in self.places:
            base = self.array.width * (row // ROW_STEP % self.array.spans)
            shift = 0
            if self.array.parities or self.array.width % self.array.copies:
                shift = self.random.randrange(self.array.width)
            if self.array.mirrored:
                shift %= self.array.copies
            self.places[row] = base, shift
        return self.places[row]

    def strips(self, row: int) -> int:
        """Data strips of a row (with copies: those whose first copy is in it)."""
        _, shift = self.place(row)
        if not self.array.mirrored:
            return self.array.data
        return -(-(self.array.width - shift) // self.array.copies)

    async def fill(self, *, rows: int, span: int) -> None:
        """Starts the clock and writes ``rows`` random rows of the first ``span``."""
        await start(self.dut)
        await random_rows(self, rows=rows, span=span, recover=0)
        await self.settle()

    def strip_places(self, row: int, index: int) -> list[tuple[int, int]]:
        """Drive and block of each copy of data strip ``index``."""
        base, shift = self.place(row)
        return self.array.places(base=base, shift=shift, index=index, row=row)

    def parity_places(self, row: int) -> list[tuple[int, int]]:
        """Drive and block of each parity, P first."""
        base, shift = self.place(row)
        return [
            self.array.parity_place(base=base, shift=shift, parity=parity, row=row)
            for parity in range(self.array.parities)
        ]

    async def begin(self, row: int, *, joined, kind=RowKind.WRITE, gathered=False) -> Row:
        """Launches a row once a row slot, commands and lines are free."""

        def possible() -> bool:
            return (
                len(self.slots) < self.config.rows
                and all(one.row != row for one in self.slots.values())
                and len(self.lines.free) > self.config.line_reserve + len(joined)
            )

        await wait_until(self.dut, possible, cycles=PATIENCE, what="room for a row")
        base, shift = self.place(row)
        entry = Row(
            kind=kind,
            base=base,
            shift=shift,
            row=row,
            joined=joined,
            gathered=gathered,
            fua=self.wishes.random() < 0.3,
            more=self.wishes.random() < 0.3,
        )
        self.rows.setdefault(row, {})
        for index in joined:
            command = next(
                slot for slot in range(self.config.commands) if slot not in self.by_command
            )
            self.by_command[command] = entry, index
            line = 0
            if kind == RowKind.WRITE:
                line = self.lines.take("joined")
                entry.blocks[index] = self.random.randbytes(BLOCK)
                self.lines.contents[line] = entry.blocks[index]
            entry.places[index] = self.strip_places(row, index)
            entry.strips[index] = command, self.random.randrange(32), line
        slot = next(
            slot
            for slot in self.random.sample(range(self.config.rows), self.config.rows)
            if slot not in self.slots
        )
        entry.roles = self.parity_places(row)
        for index in range(self.array.data if self.array.parities else 0):
            entry.roles += self.strip_places(row, index)
        entry.misses_blocks = self._misses_blocks(entry)
        self.slots[slot] = entry
        self.launch.send(slot)
        return entry

    async def settle(self) -> None:
        """Waits until everything is quiet, then checks that nothing is left over."""
        for _ in range(PATIENCE):
            quiet = not self.slots and not sample(self.dut.busy) and not self.drives.outstanding
            # What waits for its receiver is not busy.
            offers = (self.dut.mends__0__walk__valid, self.dut.mends__1__walk__valid)
            if quiet and not any(sample(offer) for offer in offers):
                break
            await RisingEdge(self.dut.clk)
        assert not self.slots, f"rows {sorted(self.slots)} never retired"
        assert not self.by_command, "commands without an answer"
        assert len(self.lines.taken) == self.allocator.offered(), f"leaked: {self.lines.taken}"
        assert self.parity.idle and not sample(self.dut.busy)

    def check_drives(self) -> None:
        """Every row satisfies its parity equations on the drives left, and holds what it should."""
        for row, contents in self.rows.items():
            if self.array.parities:
                self._check_parity_row(row)
                continue
            for index in contents:
                wanted = self.allowed(row, index)
                found = self._readable_copies(row, index)
                assert found <= wanted, f"row {row} strip {index}: {found!r}, not of {wanted!r}"
                assert len(found) <= 1, f"row {row} strip {index}: copies differ"

    def _readable_copies(self, row: int, index: int) -> set[bytes]:
        """What can be read of a strip."""
        return {
            self.drives.blocks.get(place, bytes(BLOCK))
            for place in self.strip_places(row, index)
            if place[0] not in self.failed | self.stale_at(row)
            and place not in self.drives.unreadable
        }

    def stale_at(self, row: int) -> set[int]:
        """Ports that are not read there."""
        return set()

    def _check_parity_row(self, row: int) -> None:
        _, shift = self.place(row)
        known, lost, parities = {}, [], {}
        away = self.failed | self.stale_at(row)
        for index in range(self.array.data):
            (place,) = self.strip_places(row, index)
            if place[0] in away or place in self.drives.unreadable:
                lost.append(index)
            else:
                known[index] = self.drives.blocks.get(place, bytes(BLOCK))
        for parity, place in enumerate(self.parity_places(row)):
            if place[0] not in away and place not in self.drives.unreadable:
                parities[parity] = self.drives.blocks.get(place, bytes(BLOCK))
        solved = self.array.solve(known, parities, lost, shift=shift)
        if solved is None:
            assert len(lost) > len(parities)
            return
        known |= solved
        for index, block in known.items():
            wanted = self.allowed(row, index)
            assert block in wanted, f"row {row} strip {index}: {block!r}, not of {wanted!r}"
        sums = self.array.sums(known, shift=shift)
        for parity, block in parities.items():
            assert block == sums[parity], f"row {row} parity {parity} is wrong"

    def erase_unreadable(self, row: int, count: int) -> None:
        """Makes ``count`` blocks of a row unreadable."""
        places = self.parity_places(row)
        for index in range(self.array.data):
            places += self.strip_places(row, index)
        for place in self.random.sample(places, count):
            if place[0] not in self.failed:
                self.drives.unreadable.add(place)


def bench_of(dut) -> Bench:
    return Bench.from_environment(dut)


async def random_rows(
    bench: Bench, *, rows: int, span: int, recover: float = 0.2, pause: int = 0
) -> None:
    """Launches random rows of a few row numbers, so that old contents matter, with up to ``pause``
    cycles in between."""
    for _ in range(rows):
        await cycles_pass(bench.dut.clk, bench.random.randint(0, pause))
        row = ROW_STEP * bench.random.randrange(span)
        strips = bench.strips(row)
        kind = RowKind.WRITE
        if bench.array.parities and bench.random.random() < recover:
            kind = RowKind.RECOVER
        count = strips if bench.random.random() < 0.25 else bench.random.randint(1, strips)
        joined = bench.random.sample(range(strips), 1 if kind == RowKind.RECOVER else count)
        await bench.begin(row, joined=joined, kind=kind)
