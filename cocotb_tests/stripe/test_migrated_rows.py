"""Rows of an array of which a member migrates to another drive: both get every write."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import cocotb
import pytest
from amaranth.hdl import Signal
from cocotb.triggers import Event

from cocotb_tests.streams import Packing, TableServer, start
from cocotb_tests.stripe.row_runs import must_catch, run_rows
from cocotb_tests.stripe.sequencer_bench import (
    ARRAYS,
    CONFIG,
    ROW_STEP,
    Row,
    random_rows,
    some_rows,
)
from cocotb_tests.stripe.stripe_models import BLOCK, ArrayModel
from cocotb_tests.stripe.walk_bench import WalkBench
from hdl.flow.host_command import Status
from hdl.flow.operation import DriveStatus, Opcode
from hdl.flow.table_read import migration
from hdl.flow.walk import WalkKind, WalkResult
from hdl.stripe.planning.duplicate import Duplicate
from hdl.stripe.planning.plan import PlanKind
from hdl.stripe.planning.program import migration_target
from hdl.stripe.planning.row_planning import RowPlanning
from hdl.stripe.rows.refusals import Refusals
from hdl.stripe.rows.row_operation import RowOperation
from hdl.stripe.rows.sequencer import Sequencer
from hdl.stripe.walks.walk_plan import WalkPlan
from sim.golden.walks import Walk, outcome

SPAN = 6
ROWS = some_rows(SPAN)
REFUSALS = 8
"""Rows that are refused as a migration ends."""

MIGRATED = {
    **{name: array for name, array in ARRAYS.items() if len(array.ports) < CONFIG.ports},
    # Wide enough for rows that are read, modified and written.
    "raid5": ArrayModel(width=6, parities=1, ports=(7, 2, 5, 0, 3, 6)),
}


class MigrationBench(WalkBench):
    """A `WalkBench` with a migration of the member at ``position``, from ``old`` to ``target``.

    What ``target`` has of a row is distrusted until the row has been migrated.
    """

    def __init__(self, dut, config, array, *, seed: int, active: float):
        super().__init__(dut, config, array, seed=seed, active=active)
        self.migrating = False
        self.position = self.random.randrange(array.width * array.spans)
        self.old = array.ports[self.position]
        self.target = self.random.choice(sorted({*range(config.ports)} - {*array.ports}))
        self.moved_to = self.target
        self.settles = False
        """Only changed while there are no rows."""
        self._pack = Packing(migration(config))
        TableServer(dut, "reads__migration", self._entry)

    def _entry(self, array: int) -> int:
        valid = array == 1 and self.migrating
        port = self.moved_to
        return self._pack(valid=valid, position=self.position, port=port, settles=self.settles)

    def _wants_fua(self, operation) -> bool | None:
        """Once the migration settles, what both drives get has FUA."""
        wanted = super()._wants_fua(operation)
        if self.settles and operation.port in (self.old, self.target):
            if operation.opcode == Opcode.WRITE_UNCORRECTABLE:
                return None
            return wanted if operation.opcode == Opcode.READ else True
        return wanted

    def begin_migration(self) -> None:
        """Whatever the target had before."""
        self.migrating = True
        self.boundary = 0
        for key in [*self.drives.blocks]:
            if key[0] == self.old:
                self.drives.blocks[self.target, key[1]] = self.random.randbytes(BLOCK)
        self.before = dict(self.drives.blocks)

    def hand_over(self, *, stale: bool = False) -> None:
        """The target becomes the member."""
        ports = tuple(self.target if one == self.old else one for one in self.array.ports)
        self.array = replace(self.array, ports=ports)
        self.tables.replace(1, self.array)
        self.migrating = False
        if stale:
            self.stale.add(self.target)
            self.dut.drives__stale.value = 1 << self.target

    def change_places(self) -> None:
        """The target becomes the member, and the member becomes the target; or the other way."""
        member, self.moved_to = self.moved_to, self.array.ports[self.position]
        ports = tuple(member if one == self.moved_to else one for one in self.array.ports)
        self.array = replace(self.array, ports=ports)
        self.tables.replace(1, self.array)

    def essential(self) -> set[int]:
        """The target as well, once it stands for a member that has failed."""
        member = self.array.ports[self.position]
        if not self.migrating or member not in self.failed or self.moved_to in self.failed:
            return super().essential()
        bad = self.failed | self.stale
        groups = [group for group in self.groups() if member in group]
        needed = any(len(bad.intersection(group)) >= self.tolerated for group in groups)
        return super().essential() | ({self.moved_to} if needed else set())

    def migrated_place(self) -> tuple[int, int, tuple[int, int]]:
        """A row with a block of the member, a strip of it, and where the target has that block."""
        places = [
            (row, strip, (self.target, block))
            for row in ROWS
            for strip in self.walked_strips(row)
            for port, block in self.role_places(row, strip)
            if port == self.old
        ]
        return self.random.choice(places)

    async def is_refused(self, place: tuple[int, int], begun: Awaitable, then: Callable) -> Any:
        """Only ``place`` is still to be stored of what is ``begun`` when ``then`` happens; it is
        refused."""
        drives = self.drives
        drives.refusing = {place}
        drives.spoils_refused = self.random.random() < 0.5
        held = drives.held[place] = Event()
        result = await begun
        await self.pause(2000)
        assert drives.outstanding == 1, "there is more to store"
        then()
        if self.random.random() < 0.5:
            await self.pause(1000)
        del drives.held[place]
        held.set()
        await self.settle()
        drives.refusing.clear()
        return result

    async def write(self, row: int, strip: int) -> Row:
        """Begins to write all of a row; of mirrors the strip."""
        every = [strip] if self.array.mirrored else [*range(self.strips(row))]
        return await self.begin(row, joined=every)

    def lose_others(self, count: int) -> tuple[int, int, tuple[int, int]]:
        """A `migrated_place`, of which so many other drives that could stand in have failed."""
        row, strip, place = self.migrated_place()
        others = sorted({port for port, _ in self.role_places(row, strip)} - {self.old})
        for port in self.random.sample(others, max(count, 0)):
            self.fail(port)
        return row, strip, place

    def failed_beside(self, row: int, strip: int) -> int:
        """How many failed drives have something of a row, or a copy of a strip."""
        return len({port for port, _ in self.role_places(row, strip)} & self.failed)

    def faults_of(self, entry: Row) -> int:
        """How many commands of a row fail when one block is not stored and cannot be spared."""
        return len(entry.joined) if self.array.parities else 1

    async def random_rows(self, *, rows: int) -> None:
        """Host writes, half of them of one strip; of mirrors all, as the gatherer has them."""
        for _ in range(rows):
            if self.array.mirrored or self.random.random() < 0.5:
                row = ROW_STEP * self.random.randrange(SPAN)
                await self.begin(row, joined=[self.random.randrange(self.strips(row))])
            else:
                await random_rows(self, rows=1, span=SPAN)

    async def walk_all(self, kind: WalkKind, *, first: int = 0, rows=ROWS) -> None:
        """Walks all strips of rows; the boundary follows."""
        for row in rows:
            if row < first:
                continue
            strips = self.walked_strips(row)
            for tag in [await self.walk(row, kind, strip=strip) for strip in strips]:
                result, _ = await self.end_of(tag)
                assert result in (WalkResult.GOOD, WalkResult.MENDED), f"row {row}: {result}"
            self.boundary = row + 1
            places = self.places_of([row])
            self.drives.distrusted -= places | {(self.target, block) for _, block in places}

    def check_written(self) -> None:
        """What has been written to the member since the migration began is on the target too."""
        drives, seen = self.drives, 0
        for (port, block), data in drives.blocks.items():
            key = port, block
            if port == self.old and (self.before.get(key) != data and key not in drives.unreadable):
                assert drives.blocks.get((self.target, block)) == data, f"{key} is not on both"
                seen += 1
        assert seen, "the member was never written"

    def check_migrated(self) -> None:
        """The target has all that the member has, as far as it can be read."""
        for row in self.rows:
            for strip in self.walked_strips(row):
                for (port, block), truth in self.contents(row, strip):
                    if port == self.old and not any(torn[0] == row for torn in self.torn):
                        there = self.drives.blocks.get((self.target, block), bytes(BLOCK))
                        assert there == truth, f"row {row}: {there!r}, not {truth!r}"

    def golden(self, row: int, strip: int, kind: WalkKind) -> Walk:
        walk = super().golden(row, strip, kind)
        if not self.migrating or {self.old, self.target} & self.failed:
            return walk
        places = self.role_places(row, strip)
        migrated = frozenset(role for role, place in enumerate(places) if place[0] == self.old)
        return replace(walk, migrated=migrated)

    async def check_migration(self, row: int, *, strip: int = 0) -> WalkResult:
        """Migrates a row; result, the row itself and the block of the target must be golden."""
        walk = self.golden(row, strip, WalkKind.MIGRATE)
        truth = self.truth(row, strip)
        block = next(
            (place[1] for place in self.role_places(row, strip) if place[0] == self.old), None
        )
        lost = outcome(walk).result == "LOST"
        result = await self.check_walk(row, WalkKind.MIGRATE, strip=strip)
        for role in walk.migrated:
            key = self.target, block
            assert (key in self.drives.unreadable) == lost, f"{walk}: {key}"
            if not lost:
                assert self.drives.blocks.get(key, bytes(BLOCK)) == truth[role], f"{walk}"
        return result


async def begin(dut) -> MigrationBench:
    """Rows with contents, and a migration that begins."""
    bench = MigrationBench.from_environment(dut, MIGRATED)
    await start(dut)
    await bench.random_rows(rows=20)
    await bench.settle()
    bench.begin_migration()
    return bench


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def migrates_under_load(dut):
    """Whatever the drives do short of failing; then the target is the member."""
    bench = await begin(dut)
    bench.drives.aborts = 0.02
    bench.drives.unreached = 0.1
    for _ in range(6):
        await bench.random_rows(rows=5)
        await bench.settle()
        bench.check_written()
    loading = cocotb.start_soon(bench.random_rows(rows=25))
    await bench.walk_all(WalkKind.MIGRATE)
    await loading
    await bench.settle()
    bench.check_migrated()
    bench.settles = True
    await bench.random_rows(rows=20)
    bench.change_places()
    await bench.random_rows(rows=20)
    bench.change_places()
    await bench.settle()
    bench.settles = False
    loading = cocotb.start_soon(bench.random_rows(rows=20))
    bench.hand_over()
    await loading
    await bench.random_rows(rows=20)
    await bench.settle()
    bench.check_drives()
    assert not bench.failed and not bench.write_faults and not bench.read_faults


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_target_fails(dut):
    """No command fails for it, and the array is as it was."""
    bench = await begin(dut)
    await end_badly(bench, lambda: bench.drives.gone.add(bench.target))
    bench.failed.discard(bench.target)
    bench.drives.gone.discard(bench.target)
    dut.drives__failed.value = 0
    bench.drives.may_fail = lambda port: port == bench.target

    def refuse() -> None:
        bench.drives.write_errors = 0.7

    await end_badly(bench, refuse)


async def end_badly(bench: MigrationBench, happens) -> None:
    """``happens`` after some rows, and the target is given up."""
    loading = cocotb.start_soon(bench.random_rows(rows=25))
    await bench.walk_all(WalkKind.MIGRATE, rows=ROWS[:2])
    happens()
    await bench.walk_all(WalkKind.MIGRATE)
    await loading
    await bench.settle()
    assert bench.failed == {bench.target} and not bench.write_faults
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_member_fails(dut):
    """The target takes over at once: what has been migrated is good, the rest is worked out."""
    bench = await begin(dut)
    bench.drives.distrusted = {
        (bench.target, block) for port, block in bench.places_of(ROWS) if port == bench.old
    }
    loading = cocotb.start_soon(bench.random_rows(rows=40))
    await bench.walk_all(WalkKind.MIGRATE, rows=ROWS[:3])
    # Those that were under way when it failed may still be told that it has.
    bench.fail(bench.old)
    await bench.walk_all(WalkKind.MIGRATE, first=bench.boundary, rows=ROWS[:4])
    await loading
    await bench.random_rows(rows=20)
    await bench.settle()
    bench.hand_over(stale=True)
    loading = cocotb.start_soon(bench.random_rows(rows=30))
    await bench.walk_all(WalkKind.REBUILD, first=bench.boundary)
    await loading
    bench.trust()
    await bench.random_rows(rows=20)
    await bench.settle()
    assert bench.failed == {bench.old} and not bench.write_faults
    bench.check_drives()
    # With no more redundancy than the level has, the target holds what it should.
    for port in bench.random.sample(
        sorted({*bench.array.ports[: bench.array.width]} - {bench.target}),
        bench.tolerated,
    ):
        bench.fail(port)
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def migrates_what_cannot_be_read(dut):
    """Worked out from the others, or unreadable on the target too."""
    bench = await begin(dut)
    bench.drives.aborts = 0.01
    bench.drives.unreached = 0.1
    seen = set()
    for turn in range(40):
        if turn == 25:
            other = bench.random.choice(sorted({*bench.array.ports} - {bench.old}))
            bench.fail(other)
        row = ROW_STEP * bench.random.randrange(SPAN)
        strip = 0 if bench.array.parities else bench.random.randrange(bench.strips(row))
        places = [one for one in bench.role_places(row, strip) if one[0] not in bench.failed]
        mine = [one for one in places if one[0] == bench.old and bench.random.random() < 0.7]
        count = bench.random.choice((0, 1, bench.tolerated))
        rest = [one for one in places if one[0] != bench.old]
        bench.drives.unreadable |= {*mine, *bench.random.sample(rest, min(count, len(rest)))}
        seen.add(await bench.check_migration(row, strip=strip))
        bench.drives.unreadable.clear()
    assert {WalkResult.GOOD, WalkResult.LOST} <= seen
    assert (WalkResult.MENDED in seen) == bool(bench.tolerated)
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_no_drive_has_is_unreadable(dut):
    """Without redundancy, and the member failed, what was not migrated is lost. It says so once
    the host gives it up."""
    bench = await begin(dut)
    await bench.walk_all(WalkKind.MIGRATE, rows=ROWS[:3])
    bench.fail(bench.old)

    async def stops(kind: WalkKind, member: int) -> None:
        for row in ROWS:
            for strip in range(bench.strips(row)):
                ((port, _),) = bench.role_places(row, strip)
                result, _ = await bench.end_of(await bench.walk(row, kind, strip=strip))
                left = row >= bench.boundary and port == member
                assert result == (WalkResult.FAILED if left else WalkResult.GOOD), f"row {row}"
        assert not bench.drives.unreadable

    await stops(WalkKind.MIGRATE, bench.old)
    bench.hand_over(stale=True)
    await stops(WalkKind.REBUILD, bench.target)
    for row in ROWS:
        for strip in range(bench.strips(row)):
            ((port, block),) = bench.role_places(row, strip)
            result, roles = await bench.end_of(
                await bench.walk(row, WalkKind.SALVAGE, strip=strip)
            )
            lost = row >= bench.boundary and port == bench.target
            assert result == (WalkResult.LOST if lost else WalkResult.GOOD), f"row {row}"
            assert ((port, block) in bench.drives.unreadable) == lost
            assert bool(roles) == lost
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_target_refuses_as_the_migration_ends(dut):
    """It is the member by then, and nothing can be spared: it goes, as the old one has the block.
    """
    bench = await begin(dut)
    await bench.walk_all(WalkKind.MIGRATE)
    bench.lose_others(bench.tolerated)
    failed = set(bench.failed)
    for _ in range(REFUSALS):
        row, strip, place = bench.migrated_place()
        faults = bench.write_faults
        entry = await bench.is_refused(place, bench.write(row, strip), bench.change_places)
        assert set(entry.statuses) == {Status.SUCCESS} and bench.write_faults == faults
        assert bench.failed == failed | {bench.target}, "what it has is old, and it stays"
        assert not bench.drives.unreadable
        # The old one is the member again.
        bench.change_places()
        bench.check_drives()
        # The next migration.
        bench.failed.discard(bench.target)
        bench.drives.gone.discard(bench.target)
        dut.drives__failed.value = sum(1 << port for port in bench.failed)
        await bench.write(row, strip)
        await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_target_refuses_as_the_member_fails(dut):
    """Then it is the member, which cannot be spared: what it did not store is unreadable there, or
    the write fails. The row may have been migrated, or not."""
    bench = await begin(dut)
    bench.drives.distrusted = {
        (bench.target, block) for port, block in bench.places_of(ROWS) if port == bench.old
    }
    await bench.walk_all(WalkKind.MIGRATE, rows=ROWS[: SPAN // 2])
    row, strip, place = bench.lose_others(bench.tolerated - 1)
    failed = bench.failed | {bench.old}
    before = bench.drives.blocks.get(place)
    entry = await bench.is_refused(
        place, bench.write(row, strip), lambda: bench.fail(bench.old)
    )
    assert bench.failed == failed, "nothing is left of the member"
    stays = bench.tolerated and bench.drives.spoils_refused
    faults = 0 if stays else bench.faults_of(entry)
    assert bench.write_faults == faults, entry.statuses
    assert place in bench.drives.unreadable or bench.drives.blocks.get(place) == before
    assert not stays or place in bench.drives.unreadable
    bench.hand_over(stale=True)
    bench.check_drives()
    await bench.write(row, strip)
    await bench.settle()
    if bench.tolerated:
        await bench.walk_all(WalkKind.REBUILD, first=bench.boundary)
        bench.trust()
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_target_refuses_a_migrated_row_as_the_member_fails(dut):
    """A row is not passed of which the target, which is the member then, has something else."""
    bench = await begin(dut)
    row, strip, place = bench.lose_others(bench.tolerated - 1)
    failed = bench.failed | {bench.old}
    tag = await bench.is_refused(
        place, bench.walk(row, WalkKind.MIGRATE, strip=strip), lambda: bench.fail(bench.old)
    )
    result, _ = await bench.end_of(tag)
    assert bench.failed == failed
    assert result == WalkResult.FAILED or place in bench.drives.unreadable, result


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_member_refuses(dut):
    """It cannot be spared, and the writes fail. What it has can still be read. So the target, which
    has stored something else, is given up."""
    bench = await begin(dut)
    await bench.walk_all(WalkKind.MIGRATE)
    drives = bench.drives
    bench.lose_others(bench.tolerated)
    await bench.pause(500)
    row, strip, place = bench.migrated_place()
    while bench.failed_beside(row, strip) < bench.tolerated:
        row, strip, place = bench.migrated_place()
    old = bench.old, place[1]
    before = drives.blocks.get(old)
    drives.refusing = {old}
    drives.spoils_refused = bench.random.random() < 0.5
    entry = await bench.write(row, strip)
    await bench.settle()
    assert bench.write_faults == bench.faults_of(entry)
    assert bench.old not in bench.failed and bench.target in bench.failed
    assert old not in drives.unreadable and drives.blocks.get(old) == before
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_parities_refuse(dut):
    """They cannot be spared, and the writes fail. What the member and the target have stored is
    made unreadable on both. Once the migration settles the target is given up instead, since no
    mark is stored at once."""
    bench = await begin(dut)
    if not bench.array.parities:
        return
    await bench.walk_all(WalkKind.MIGRATE)
    drives, data = bench.drives, bench.array.data
    places = {row: bench.role_places(row) for row in ROWS}
    rows = [row for row in ROWS if bench.old in {port for port, _ in places[row][:data]}]
    others = [port for port, _ in places[bench.random.choice(rows)][:data] if port != bench.old]
    for port in bench.random.sample(others, min(len(others), bench.tolerated)):
        bench.fail(port)
    rows = [row for row in rows if not {port for port, _ in places[row][data:]} & bench.failed]
    await bench.pause(500)
    drives.spoils_refused = True
    for settles in (False, True):
        await bench.settle()
        bench.settles = settles
        row = bench.random.choice(rows)
        (old,) = (place for place in places[row] if place[0] == bench.old)
        drives.refusing = {*places[row][data:]}
        faults = bench.write_faults
        entry = await bench.write(row, 0)
        await bench.settle()
        assert bench.write_faults == faults + len(entry.joined)
        assert old in drives.unreadable and bench.old not in bench.failed
        assert (bench.target in bench.failed) == settles
        assert settles or (bench.target, old[1]) in drives.unreadable
        drives.refusing.clear()
        bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_is_marked_on_both_is_stored(dut):
    """A row past repair is written with FUA, and the member that migrates has a parity of it. That
    is made unreadable on the target as well, and stays so without power."""
    bench = await begin(dut)
    if not bench.array.parities:
        return
    data, marked = bench.array.data, 0
    bench.wishes.random = lambda: 0.0
    for shift in range(bench.array.width):
        row = ROW_STEP * (SPAN + shift)
        bench.places[row] = 0, shift
        places = bench.role_places(row)
        block = next((block for port, block in places[data:] if port == bench.old), None)
        bench.drives.unreadable |= {*places[: bench.tolerated + 1]}
        first = min(bench.tolerated + 1, data - 1)  # in a narrow row one of the lost is written
        await bench.begin(row, joined=[*range(first, data)])
        await bench.settle()
        if block is not None:
            assert (bench.target, block) in bench.drives.unreadable
            marked += 1
    assert marked and not bench.write_faults


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def is_migrated_again_after_a_restart(dut):
    """All members begin anew at any moment of a walk that migrates a row. What it has read before
    is not written, and the walk keeps no line."""
    bench = await begin(dut)
    counts = bench.drives.counts
    for delay in range(0, 480, 8):
        row, strip, place = bench.migrated_place()
        tag = await bench.walk(row, WalkKind.MIGRATE, strip=strip)
        await bench.pause(delay)
        await bench.restart({})
        result, _ = await bench.end_of(tag)
        await bench.settle()
        assert result == WalkResult.GOOD
        wanted = bench.drives.blocks.get((bench.old, place[1]), bytes(BLOCK))
        assert bench.drives.blocks.get(place, bytes(BLOCK)) == wanted
    assert counts[DriveStatus.ABORTED], "nothing was written as they did"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_target_refuses_when_nothing_is_known(dut):
    """Nobody waits for the states of arrays to rest: the target goes at once."""
    bench = await begin(dut)
    bench.unsettled = True
    row, strip, place = bench.migrated_place()
    bench.drives.refusing = {place}
    bench.drives.spoils_refused = True
    entry = await bench.write(row, strip)
    await bench.settle()
    assert set(entry.statuses) == {Status.SUCCESS} and bench.failed == {bench.target}
    assert not bench.drives.unreadable
    bench.check_drives()


LOAD = ("migrates_under_load", "the_target_fails", "migrates_what_cannot_be_read")


class ForgetsUpdates(RowPlanning):
    """A planted bug: rows that are read, modified and written go to the member only."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        plan = m.submodules.planner.plan
        updates = Signal()
        with m.If(plan.valid):
            m.d.sync += updates.eq(plan.payload.kind == PlanKind.UPDATE)
        with m.If(updates):
            written = m.submodules.programs.write.data.write
            m.d.comb += written[migration_target(CONFIG)].eq(0)
        return m


class WaitsForTheTables(Duplicate):
    """A planted bug: once the member has failed nothing is written until there is another."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        lost = self.failed.bit_select(self.member, 1)
        m.d.comb += [self.gone.eq(lost), self.port.eq(self.member)]
        return m


class KeepsTheTarget(Refusals):
    """A planted bug: a target stays that has stored what its member has refused."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.differs.eq(0)
        return m


class FreesEarly(Sequencer):
    """A planted bug: a line is given back when the first of two drives has it."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.operation_result.paired.eq(0)
        return m


class StoresTheMember(RowOperation):
    """A planted bug: once the migration settles only the member has what is written stored."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        program = self.program
        with m.If(self.writing & (self.number == migration_target(CONFIG))):
            m.d.comb += self.operation.fua.eq(program.fua)
        return m


class MendsTheMember(WalkPlan):
    """A planted bug: what a migration cannot read is written where it was, and nowhere else."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.write.eq(self.bad & ~self.dead)
        return m


MUTANTS = {
    ForgetsUpdates: ("rows.sequencer.RowPlanning", "raid5", "migrates_under_load"),
    WaitsForTheTables: ("planning.row_planning.Duplicate", "raid5", "the_member_fails"),
    KeepsTheTarget: ("rows.sequencer.Refusals", "raid0", "the_member_refuses"),
    FreesEarly: ("", "raid5", "migrates_under_load"),
    StoresTheMember: ("rows.sequencer.RowOperation", "raid5", "migrates_under_load"),
    MendsTheMember: ("planning.row_planning.WalkPlan", "raid5", "migrates_what_cannot_be_read"),
}


migrated_rows = partial(run_rows, module=__name__)

FEW = {"raid1e": "the_target_fails", "raid5": "the_member_fails"}
"""Arrays of the default suite, and a test of each beside that of a load."""


def cases(array: str) -> tuple[str, ...]:
    if array == "raid0":
        return (*LOAD, "what_no_drive_has_is_unreadable")
    return (*LOAD, "the_member_fails")


@pytest.mark.parametrize("array", FEW)
def test_migrations(array):
    migrated_rows(Sequencer, array=array, testcase=("migrates_under_load", FEW[array]))


REFUSED = (
    "is_migrated_again_after_a_restart",
    "the_target_refuses_as_the_migration_ends",
    "the_target_refuses_as_the_member_fails",
    "the_target_refuses_a_migrated_row_as_the_member_fails",
    "the_member_refuses",
    "the_parities_refuse",
    "what_is_marked_on_both_is_stored",
    "the_target_refuses_when_nothing_is_known",
)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[] if array in ("raid0", "raid5") else pytest.mark.slow)
        for array in MIGRATED
    ],
)
def test_refused_migrations(array):
    migrated_rows(Sequencer, array=array, testcase=REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("active", [0.2, 1.0])
@pytest.mark.parametrize("array", MIGRATED)
def test_more_migrations(array, active):
    migrated_rows(Sequencer, array=array, testcase=cases(array), active=active)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bug_is_caught(mutant):
    place, array, testcase = MUTANTS[mutant]
    must_catch(mutant, module=__name__, array=array, testcase=testcase, place=place)
