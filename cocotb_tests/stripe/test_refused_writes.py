"""Writes that drives refuse: who is given up, which commands fail, and what can be read after."""

from functools import partial

import cocotb
import pytest
from amaranth.hdl import Const, Mux
from cocotb.triggers import Event
from cocotb.utils import get_sim_time

from cocotb_tests.streams import sample, wait_until
from cocotb_tests.stripe.row_runs import must_catch, run_rows
from cocotb_tests.stripe.sequencer_bench import ARRAYS, ROW_STEP, Row, some_rows
from cocotb_tests.stripe.walk_bench import WalkBench
from hdl.flow.host_command import Status
from hdl.flow.operation import Opcode
from hdl.flow.row import RowKind
from hdl.flow.walk import WalkKind, WalkResult
from hdl.stripe.rows.dismissal import Dismissal
from hdl.stripe.rows.operation_result import OperationResult
from hdl.stripe.rows.progress import Phase, attempts
from hdl.stripe.rows.sequencer import Sequencer

SPAN = 6
ROWS = some_rows(SPAN)

ROUNDS = 24
"""Rows that are written with blocks that refuse."""

ABORTS = 3
"""Times that a write may be aborted before it counts as failed."""

WAIT_CYCLES = 4096
"""A row waits so long at most until it is known what its array has left."""


async def begin(dut) -> WalkBench:
    """Rows with contents."""
    bench = WalkBench.from_environment(dut)
    await bench.fill(rows=20, span=SPAN)
    return bench


async def write(bench: WalkBench, row: int, joined: list[int]) -> Row:
    """Writes a row; if blocks of it are made unreadable for that, it is to be mended."""
    places = bench.places_of([row])
    before = bench.drives.unreadable & places
    bench.mended.clear()
    entry = await bench.begin(row, joined=joined)
    await bench.settle()
    asked = (row, joined[0] if bench.array.mirrored else 0) in bench.mended
    if bench.tolerated and not before and bench.drives.unreadable & places:
        assert asked, f"row {row} stays without its redundancy"
    assert bench.mended <= {(row, joined[0] if bench.array.mirrored else 0)}
    return entry


async def mend(bench: WalkBench) -> None:
    """Walks what is to be mended, while nothing refuses: it is, if the level can do it."""
    bench.drives.refusing.clear()
    for row, strip in bench.mended:
        places = bench.role_places(row, strip)
        away = {place for place in places if place[0] in bench.failed}
        possible = len(away | (bench.drives.unreadable & {*places})) <= bench.tolerated
        await bench.end_of(await bench.walk(row, WalkKind.PATROL, strip=strip))
        left = (bench.drives.unreadable & {*places}) - away
        assert not (possible and left), f"row {row} is not mended: {left}"
    bench.mended.clear()


def joined_of(bench: WalkBench, row: int) -> list[int]:
    """Strips to write: of mirrors one, as the gatherer has them."""
    strips = range(bench.strips(row))
    most = 1 if bench.array.mirrored else len(strips)
    return bench.random.sample(strips, bench.random.randint(1, most))


def lose_drives(bench: WalkBench, count: int) -> None:
    """Some drives of one span, or copies of strip 0 of row 0, fail."""
    ports = [place[0] for place in bench.role_places(0)]
    for port in bench.random.sample(ports, count):
        bench.fail(port)


async def check_recovery(bench: WalkBench) -> None:
    """The bench checks what is worked out of each data strip, if it can be."""
    for row in ROWS:
        for index in range(bench.array.data):
            await bench.begin(row, joined=[index], kind=RowKind.RECOVER)
    await bench.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def keeps_the_last_that_hold_something(dut):
    """With as many drives failed as the level tolerates, blocks of the others refuse."""
    bench = await begin(dut)
    lose_drives(bench, bench.tolerated)
    failed = set(bench.failed)
    refused = 0
    for _ in range(ROUNDS):
        # A row of the span, or the strip, that has nothing to spare.
        row = ROW_STEP * bench.random.randrange(SPAN // bench.array.spans) * bench.array.spans
        joined = [0] if bench.array.mirrored else joined_of(bench, row)
        places = [place for place in bench.role_places(row) if place[0] not in failed]
        bench.drives.refusing = set(
            bench.random.sample(places, bench.random.randint(1, len(places)))
        )
        bench.drives.spoils_refused = bench.random.random() < 0.5
        faults = bench.write_faults
        entry = await write(bench, row, joined)
        refused += bench.write_faults != faults
        assert set(bench.failed) == failed, "a drive was given up for one block"
        assert len(set(entry.statuses)) == 1, entry.statuses
        bench.drives.refusing.clear()
        bench.check_drives()
        if bench.array.parities:
            await check_recovery(bench)
        if bench.random.random() < 0.5:
            await write(bench, row, [0] if bench.array.mirrored else [*range(bench.strips(row))])
    assert refused > ROUNDS // 4
    bench.check_drives()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def gives_up_what_a_row_does_without(dut):
    """More and more blocks of a row refuse, with all drives there."""
    bench = await begin(dut)
    row = 0
    strip = 0
    for count in range(1, len(bench.role_places(row, strip)) + 1):
        joined = [strip] if bench.array.mirrored else [*range(bench.strips(row))]
        places = bench.role_places(row, strip)
        refusing = set(bench.random.sample(places, count))
        bench.drives.refusing = refusing
        entry = await write(bench, row, joined)
        tolerated = count <= bench.tolerated
        ports = {place[0] for place in refusing} if tolerated else set()
        assert bench.failed == ports
        wanted = {Status.SUCCESS if tolerated else Status.WRITE_FAULT}
        assert set(entry.statuses) == wanted, entry.statuses
        bench.drives.refusing.clear()
        bench.check_drives()
        bench.revive()
        await write(bench, row, joined)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def a_stale_copy_is_no_copy(dut):
    """The only copy in sync does not store the block, and the one that is rebuilt does."""
    bench = await begin(dut)
    assert bench.array.mirrored
    for gone in (False, True):
        copies = bench.role_places(0)
        synced = bench.random.randrange(len(copies))
        for index, place in enumerate(copies):
            if index != synced:
                bench.make_stale(place[0])
        bench.distrust(ROWS)
        if gone:
            bench.drives.gone.add(copies[synced][0])
        else:
            bench.drives.refusing = {copies[synced]}
        entry = await write(bench, 0, [0])
        assert entry.statuses == [Status.WRITE_FAULT]
        assert bench.failed == ({copies[synced][0]} if gone else set())
        bench.drives.refusing.clear()
        bench.trust()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def a_stale_copy_is_not_the_old_one(dut):
    """Those that are rebuilt refuse a block, and the only copy in sync aborts it, which may have
    been stored. What the others hold is not the old block, so that one stays as it is."""
    bench = await begin(dut)
    copies = bench.role_places(0)
    synced = bench.random.choice(copies)
    for place in copies:
        if place != synced:
            bench.make_stale(place[0])
    bench.distrust(ROWS)
    bench.drives.aborting = {synced}
    bench.drives.refusing = {*copies} - {synced}
    bench.drives.spoils_refused = True
    entry = await write(bench, 0, [0])
    assert entry.statuses == [Status.WRITE_FAULT]
    assert synced[0] not in bench.failed, "the last copy in sync is given up"
    assert synced not in bench.drives.unreadable, "no copy can be read"
    bench.drives.aborting.clear()
    bench.drives.refusing.clear()
    bench.trust()
    bench.revive()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def a_second_try_is_each_blocks_own(dut):
    """Writes are aborted up to three times, refused once and not reached: all are stored in the
    end, whatever the others of their row meet."""
    bench = await begin(dut)
    for _ in range(ROUNDS):
        row = ROW_STEP * bench.random.randrange(SPAN)
        for place in bench.role_places(row):
            bench.drives.aborted[place] = bench.random.randint(0, ABORTS)
            if bench.random.random() < 0.5:
                bench.drives.stubborn.add(place)
        bench.drives.unreached = 0.3
        await write(bench, row, joined_of(bench, row))
        assert not bench.failed and not bench.write_faults
        bench.drives.aborted.clear()
        bench.drives.stubborn.clear()
    bench.check_drives()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def never_gives_a_mixture(dut):
    """Drives fail, blocks refuse and cannot be read, at random: what is read is right or old."""
    bench = await begin(dut)
    for _ in range(3 * ROUNDS):
        row = ROW_STEP * bench.random.randrange(SPAN)
        places = [place for other in ROWS for place in bench.role_places(other)]
        bench.drives.refusing = set(bench.random.sample(places, bench.random.randint(0, 6)))
        bench.drives.spoils_refused = bench.random.random() < 0.5
        if bench.random.random() < 0.1 and len(bench.failed) < bench.tolerated:
            bench.fail(bench.random.choice(places)[0])
        await bench.begin(row, joined=joined_of(bench, row))
        if bench.random.random() < 0.5:
            await bench.settle()
            bench.check_drives()
    await bench.settle()
    bench.drives.refusing.clear()
    bench.check_drives()
    if bench.array.parities:
        await check_recovery(bench)


def strip_of(bench: WalkBench, row: int, group: list[int]) -> int | None:
    """A strip of the row with all its copies on ``group``; with parity any."""
    if not bench.array.mirrored:
        return 0
    for strip in range(bench.strips(row)):
        if {place[0] for place in bench.role_places(row, strip)} == set(group):
            return strip
    return None


def rows_on(bench: WalkBench, group: list[int], rows=ROWS) -> dict[int, int]:
    """Rows that have blocks on all of ``group``, and a strip of each."""
    found = {}
    for row in rows:
        places = bench.role_places(row, strip_of(bench, row, group) or 0)
        if {place[0] for place in places} == set(group):
            found[row] = strip_of(bench, row, group)
    return found


def joined_with(bench: WalkBench, row: int, strip: int) -> list[int]:
    """Strips to write: of mirrors this one."""
    return [strip] if bench.array.mirrored else joined_of(bench, row)


def check_had(bench: WalkBench, entry: Row) -> None:
    """What was written with success can be had, unless more has failed than the level tolerates."""
    if bench.lost_groups() or Status.WRITE_FAULT in entry.statuses:
        return
    row = entry.row
    away = bench.failed | bench.stale_at(row)

    def lost(place) -> bool:
        return place[0] in away or place in bench.drives.unreadable

    if bench.array.mirrored:
        for strip in entry.joined:
            assert not all(map(lost, bench.role_places(row, strip))), f"row {row} is lost"
    else:
        missing = [place for place in bench.role_places(row) if lost(place)]
        assert len(missing) <= bench.array.parities, f"row {row} is lost: {missing}"


async def settled(bench: WalkBench) -> None:
    """The states of arrays are known."""
    await bench.pause(2)
    signal = bench.dut.arrays__settled
    await wait_until(bench.dut, lambda: sample(signal), cycles=1000, what="states")


async def refuse_one(bench: WalkBench, row: int, strip: int, place: tuple[int, int]) -> None:
    """The row does without the block; the drive stays, and what can be read is right."""
    bench.drives.refusing = {place}
    bench.drives.spoils_refused = bench.random.random() < 0.5
    failed = set(bench.failed)
    joined = joined_with(bench, row, strip)
    if not bench.array.mirrored and place in bench.role_places(row)[: bench.array.data]:
        joined = sorted({*joined, bench.role_places(row).index(place)})
    entry = await write(bench, row, joined)
    assert bench.failed == failed, f"{place[0]} is given up for one block"
    wanted = Status.SUCCESS if bench.drives.spoils_refused else Status.WRITE_FAULT
    assert set(entry.statuses) == {wanted}, entry.statuses
    assert (place in bench.drives.unreadable) == bench.drives.spoils_refused
    check_had(bench, entry)
    bench.check_drives()
    await mend(bench)
    await write(bench, row, [strip] if bench.array.mirrored else [*range(bench.strips(row))])
    assert not {place for place in bench.drives.unreadable if place in bench.places_of([row])}


async def walk_refused(bench: WalkBench, row: int, strip: int, place: tuple[int, int]) -> None:
    """A block that can be neither read nor written costs a walk of its row no drive."""
    bench.drives.refusing = {place}
    bench.drives.unreadable.add(place)
    bench.drives.spoils_refused = bench.random.random() < 0.5
    failed = set(bench.failed)
    walk = await bench.walk(row, WalkKind.PATROL, strip=strip)
    result, roles = await bench.end_of(walk)
    role = bench.role_places(row, strip).index(place)
    mended = bench.drives.spoils_refused
    assert result == (WalkResult.MENDED if mended else WalkResult.FAILED)
    assert roles == {role} and bench.failed == failed and place in bench.drives.unreadable
    bench.drives.refusing.clear()
    result, roles = await bench.end_of(await bench.walk(row, WalkKind.PATROL, strip=strip))
    assert result == WalkResult.MENDED and roles == {role}
    bench.check_drives()


async def refuse_last(
    bench: WalkBench, row: int, strip: int, place: tuple[int, int]
) -> None:
    """The write fails; the drive stays, with what it had."""
    bench.drives.refusing = {place}
    bench.drives.spoils_refused = bench.random.random() < 0.5
    failed, before = set(bench.failed), bench.drives.blocks.get(place)
    every = [strip] if bench.array.mirrored else [*range(bench.strips(row))]
    entry = await write(bench, row, every)
    assert bench.failed == failed, f"{place[0]} is given up for one block"
    assert set(entry.statuses) == {Status.WRITE_FAULT}, entry.statuses
    assert place not in bench.drives.unreadable and bench.drives.blocks.get(place) == before
    bench.check_drives()
    await mend(bench)
    await write(bench, row, every)
    assert not bench.drives.unreadable & bench.places_of([row])


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def keeps_what_a_rebuild_needs(dut):
    """Nobody has the block but drives that are being rebuilt, and have got this row already: the
    write fails, the drive stays, and what it had can be read. A walk does without the block."""
    bench = await begin(dut)
    group = bench.random.choice(bench.groups())
    for port in bench.random.sample(group, bench.tolerated):
        bench.make_stale(port)
    bench.distrust(ROWS)
    done = ROWS[: SPAN // 2]
    for row in done:
        for strip in bench.walked_strips(row):
            await bench.check_walk(row, WalkKind.REBUILD, strip=strip)
    bench.drives.distrusted -= bench.places_of(done)
    bench.boundary = ROWS[SPAN // 2]
    await settled(bench)
    assert bench.essential()
    rows = rows_on(bench, group, done)
    for _ in range(ROUNDS // 2):
        row, strip = bench.random.choice([*rows.items()])
        places = bench.role_places(row, strip)
        place = bench.random.choice([one for one in places if one[0] in bench.essential()])
        await refuse_last(bench, row, strip, place)
        await walk_refused(bench, row, strip, place)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def keeps_a_neighbour(dut):
    """A drive has gone; what is beside it holds the last copies of other strips."""
    bench = await begin(dut)
    bench.fail(bench.random.choice(bench.array.ports))
    await settled(bench)
    tried = 0
    for row in (*ROWS, *ROWS):
        for strip in range(bench.strips(row)):
            places = bench.role_places(row, strip)
            if not bench.failed.intersection(place[0] for place in places):
                tried += 1
                place = bench.random.choice(places)
                await refuse_one(bench, row, strip, place)
                await walk_refused(bench, row, strip, place)
    assert tried


async def nothing_is_lost(bench: WalkBench, entries: list[Row]) -> None:
    """After rows were refused: all that they hold can be had; then drives store again."""
    assert not bench.lost_groups(), f"{bench.failed} are given up for one block each"
    for entry in entries:
        check_had(bench, entry)
    bench.check_drives()
    bench.drives.refusing.clear()
    bench.revive()
    await settled(bench)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def keeps_the_array_when_many_refuse(dut):
    """Several rows at once, each refused by another drive of the same group."""
    bench = await begin(dut)
    for _ in range(ROUNDS // 2):
        group = bench.random.choice(bench.groups())
        rows = [*rows_on(bench, group).items()]
        count = min(bench.tolerated + 1, len(rows))
        chosen = bench.random.sample(rows, count)
        bench.drives.spoils_refused = bench.random.random() < 0.5
        ports = bench.random.sample(group, count)
        for (row, strip), port in zip(chosen, ports, strict=True):
            places = bench.role_places(row, strip)
            bench.drives.refusing |= {place for place in places if place[0] == port}
        every = {row: [*range(bench.strips(row))] for row, _ in chosen}
        for row, strip in chosen:
            every[row] = [strip] if bench.array.mirrored else every[row]
        entries = [await bench.begin(row, joined=joined) for row, joined in every.items()]
        await bench.settle()
        await nothing_is_lost(bench, entries)
        for row, joined in every.items():
            await write(bench, row, joined)
    bench.check_drives()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def keeps_one_of_two_neighbours(dut):
    """Two strips at once, each refused by one drive; together these hold a third strip."""
    bench = await begin(dut)
    for _ in range(ROUNDS // 2):
        chosen = {}
        for row in bench.random.sample(ROWS, 2):
            strip = bench.random.randrange(bench.strips(row))
            places = bench.role_places(row, strip)
            free = [place for place in places if place[0] not in {p[0] for p in chosen.values()}]
            chosen[row, strip] = bench.random.choice(free)
        bench.drives.refusing = {*chosen.values()}
        bench.drives.spoils_refused = bench.random.random() < 0.5
        entries = [await bench.begin(row, joined=[strip]) for row, strip in chosen]
        await bench.settle()
        await nothing_is_lost(bench, entries)
        for row, strip in chosen:
            await write(bench, row, [strip])


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def judges_by_what_is_left(dut):
    """Drives go that have stored the row, before the last one refuses it."""
    bench = await begin(dut)
    for _ in range(ROUNDS // 4):
        group = bench.random.choice(bench.groups())
        row, strip = bench.random.choice([*rows_on(bench, group).items()])
        joined = [strip] if bench.array.mirrored else [*range(bench.strips(row))]
        places = bench.role_places(row, strip)
        refused, *others = bench.random.sample(places, bench.tolerated + 1)
        bench.drives.refusing = {refused}
        bench.drives.spoils_refused = bench.random.random() < 0.5
        held = bench.drives.held[refused] = Event()
        entry = await bench.begin(row, joined=joined)
        await bench.pause(2000)
        assert bench.drives.outstanding == 1, "not all but one have been written"
        for place in others:
            bench.fail(place[0])
        del bench.drives.held[refused]
        held.set()
        await bench.settle()
        assert bench.failed == {place[0] for place in others}, "the last good drive is given up"
        assert set(entry.statuses) == {Status.WRITE_FAULT}, entry.statuses
        bench.check_drives()
        bench.drives.refusing.clear()
        bench.revive()
        await settled(bench)
        await write(bench, row, joined)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def judges_again_after_a_wait(dut):
    """Drives go that have stored the row, while it waits to hear what its array has left, or until
    a block has been made unreadable."""
    bench = await begin(dut)
    drives = bench.drives
    for number in range(ROUNDS // 4):
        group = bench.random.choice(bench.groups())
        row, strip = bench.random.choice([*rows_on(bench, group).items()])
        joined = [strip] if bench.array.mirrored else [*range(bench.strips(row))]
        refused, *others = bench.random.sample(bench.role_places(row, strip), bench.tolerated + 1)
        drives.refusing, drives.spoils_refused = {refused}, True
        bench.unsettled = True
        await bench.pause(2)
        spoilt = drives.counts[Opcode.WRITE_UNCORRECTABLE]
        entry = await bench.begin(row, joined=joined)
        held = Event()
        if number % 2 == 0:

            def spoils(before=spoilt) -> bool:
                return drives.counts[Opcode.WRITE_UNCORRECTABLE] > before

            await wait_until(dut, spoils, cycles=2 * WAIT_CYCLES, what="a block made unreadable")
            drives.held[refused] = held
        else:
            await bench.pause(2000)
            assert not drives.outstanding and not entry.statuses
        for place in others:
            bench.fail(place[0])
        await bench.pause(100)
        bench.unsettled = False
        drives.held.clear()
        held.set()
        await bench.settle()
        assert bench.failed == {place[0] for place in others}, "the last good drive is given up"
        assert set(entry.statuses) == {Status.WRITE_FAULT}, entry.statuses
        bench.check_drives()
        drives.refusing.clear()
        bench.revive()
        await settled(bench)
        await write(bench, row, joined)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def copies_agree_after_a_fault(dut):
    """Some copies refuse a block and some abort it, which may have been stored."""
    bench = await begin(dut)
    for _ in range(ROUNDS):
        row = bench.random.choice(ROWS)
        strip = bench.random.randrange(bench.strips(row))
        places = bench.role_places(row, strip)
        bench.drives.aborting = set(bench.random.sample(places, bench.random.randint(1, 2)))
        bench.drives.refusing = set(places) - bench.drives.aborting
        bench.drives.spoils_refused = bench.random.random() < 0.7
        entry = await write(bench, row, [strip])
        assert entry.statuses == [Status.WRITE_FAULT]
        assert not bench.lost_groups()
        left = [place for place in places if place[0] not in bench.failed]
        assert set(left) - bench.drives.unreadable, "no copy can be read"
        bench.check_drives()
        bench.drives.aborting.clear()
        bench.drives.refusing.clear()
        bench.revive()
        await settled(bench)
        await write(bench, row, [strip])


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def waits_no_longer_than_it_may(dut):
    """The states of arrays never rest: the drive stays, and the row ends all the same."""
    bench = await begin(dut)
    bench.unsettled = True
    await bench.pause(2)
    places = bench.role_places(0)
    joined = [0] if bench.array.mirrored else [*range(bench.strips(0))]
    bench.drives.refusing = {bench.random.choice(places)}
    bench.drives.spoils_refused = True
    began = get_sim_time("step")
    entry = await write(bench, 0, joined)
    period = get_sim_time("step")
    await bench.pause(1)
    period = get_sim_time("step") - period
    cycles = (began - get_sim_time("step")) // -period
    assert not bench.failed and set(entry.statuses) == {Status.SUCCESS}
    assert WAIT_CYCLES < cycles < WAIT_CYCLES + 2000, f"{cycles} cycles"
    assert bench.drives.refusing <= bench.drives.unreadable
    bench.check_drives()


class ForgetsTheArray(Dismissal):
    """A planted bug: what a row does without is given up, whatever other rows need."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.settled & self.synced & self.spared & ~self.spoils):
            m.d.comb += [self.kept.eq(0), self.dismissed.eq(1)]
        return m


class WaitsForNobody(Dismissal):
    """A planted bug: what the states said last counts."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(~self.settled & self.synced & self.spared):
            known = self.essential.bit_select(self.port, 1)
            m.d.comb += [self.waits.eq(0), self.kept.eq(known), self.dismissed.eq(~known)]
        return m


class WaitsForEver(Dismissal):
    """A planted bug: nothing is judged until the states rest."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(~self.settled & self.synced & self.spared):
            m.d.comb += [self.waits.eq(1), self.kept.eq(0)]
        return m


class GivesUpEveryDrive(OperationResult):
    """A planted bug: a drive that refuses a block is given up, whatever is left."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.after.lost != self.before.lost):
            m.d.comb += self.report.eq(1)
        return m


class CountsStaleCopies(Sequencer):
    """A planted bug: what is written to a drive that is being rebuilt counts as stored."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self._synced.eq(-1)
        return m


class CountsRebuiltDrives(Sequencer):
    """A planted bug: what only a drive has that is being rebuilt by now counts as stored."""

    def _is_stale(self, port):
        return Const(0)


class SharesSecondTries(Sequencer):
    """A planted bug: once any operation of the row was aborted, what is refused is not sent again.
    """

    def elaborate(self, platform):
        m = super().elaborate(platform)
        before = m.submodules.operation_result.before
        with m.If(before.rounds != 0):
            m.d.comb += before.refused.eq(-1)
        return m


class CountsForTheRow(OperationResult):
    """A planted bug: an operation has only the attempts that others of its row have left it."""

    def __init__(self, *, config):
        super().__init__(config=config)
        self._rounds = attempts(config)


class LeavesMixtures(Sequencer):
    """A planted bug: what a write that failed has stored stays."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.operation.payload.opcode == Opcode.WRITE_UNCORRECTABLE):
            m.d.comb += self.operation.payload.block.eq(0)
        return m


class JudgesOnce(Sequencer):
    """A planted bug: what goes while a row waits has stored it."""

    def _judge_again(self, m):
        pass


class LeavesBlanksInCaches(Sequencer):
    """A planted bug: what was made unreadable for a write with FUA is not flushed."""

    def __init__(self, *, config):
        super().__init__(config=config)
        self._blank = Const(0, len(self._blank))


class LeavesFailedWritesInCaches(Sequencer):
    """A planted bug: what a write with FUA that failed has made unreadable is not flushed."""

    def _marked(self):
        return Mux(self._now.phase == Phase.SPOIL, 0, super()._marked())


LAST = "keeps_the_last_that_hold_something"
STALE = "a_stale_copy_is_no_copy"
NOT_OLD = "a_stale_copy_is_not_the_old_one"
REBUILD = "keeps_what_a_rebuild_needs"
MANY = "keeps_the_array_when_many_refuse"
LEFT = "judges_by_what_is_left"
AGAIN = "judges_again_after_a_wait"
AGREE = "copies_agree_after_a_fault"
NEIGHBOUR = "keeps_a_neighbour"
NEIGHBOURS = "keeps_one_of_two_neighbours"
WORK = (
    LAST,
    REBUILD,
    MANY,
    LEFT,
    AGAIN,
    "gives_up_what_a_row_does_without",
    "waits_no_longer_than_it_may",
    "a_second_try_is_each_blocks_own",
    "never_gives_a_mixture",
)

CASES = ("raid1", "raid10", "raid1e", "raid5", "raid50", "raid6", "raid6_ddf_continue", "triple")
LESS_OFTEN = ("raid10", "raid5", "raid50", "raid6_ddf_continue", "triple")
"""Arrays of the long suite only."""

refuse = partial(run_rows, module=__name__)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[pytest.mark.slow] if array in LESS_OFTEN else [])
        for array in CASES
    ],
)
def test_refused_writes(array):
    work = (*WORK, STALE, NOT_OLD, AGREE) if ARRAYS[array].mirrored else WORK
    if array == "raid1e":
        work = (*work, NEIGHBOUR, NEIGHBOURS)
    refuse(Sequencer, array=array, testcase=work)


@pytest.mark.parametrize(
    ("mutant", "array", "testcase"),
    [
        (GivesUpEveryDrive, "raid5", LAST),
        (CountsForTheRow, "raid5", "a_second_try_is_each_blocks_own"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.slow
def test_planted_bug_is_caught(mutant, array, testcase):
    place = "rows.sequencer.OperationResult"
    must_catch(mutant, module=__name__, array=array, testcase=testcase, place=place)


@pytest.mark.parametrize(
    ("mutant", "array", "testcase"),
    [
        (ForgetsTheArray, "raid5", REBUILD),
        (ForgetsTheArray, "raid1e", NEIGHBOUR),
        (WaitsForNobody, "raid1e", NEIGHBOURS),
        (WaitsForEver, "raid5", "waits_no_longer_than_it_may"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.slow
def test_planted_bug_in_judging_is_caught(mutant, array, testcase):
    must_catch(
        mutant, module=__name__, array=array, testcase=testcase, place="rows.refusals.Dismissal"
    )


@pytest.mark.parametrize(
    ("mutant", "testcase"),
    [
        (LeavesMixtures, LAST),
        (LeavesMixtures, AGREE),
        (CountsStaleCopies, NOT_OLD),
        (SharesSecondTries, "a_second_try_is_each_blocks_own"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.slow
def test_planted_bug_in_rows_is_caught(mutant, testcase):
    array = "raid1" if testcase in (AGREE, NOT_OLD) else "raid5"
    must_catch(mutant, module=__name__, array=array, testcase=testcase)


@pytest.mark.parametrize(
    ("mutant", "array", "testcase"),
    [
        (CountsRebuiltDrives, "raid1", REBUILD),
        (CountsRebuiltDrives, "raid5", REBUILD),
        (JudgesOnce, "raid5", AGAIN),
        (JudgesOnce, "raid1e", AGAIN),
        (LeavesBlanksInCaches, "raid1e", NEIGHBOUR),
        (LeavesFailedWritesInCaches, "raid5", LAST),
        (LeavesFailedWritesInCaches, "raid1", AGREE),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.slow
def test_planted_bug_in_the_end_is_caught(mutant, array, testcase):
    must_catch(mutant, module=__name__, array=array, testcase=testcase)
