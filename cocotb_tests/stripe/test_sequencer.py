"""Row sequencer against models of the drives, the parity engine and the line allocator."""

import os
from collections import Counter
from functools import partial
from operator import eq

import cocotb
import pytest
from amaranth.hdl import Const, Module
from amaranth.lib.wiring import connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import CLOCK_PERIOD_NS, TableServer, cycles_pass, start, wait_until
from cocotb_tests.stripe.row_runs import KeepsLines, must_catch, run_rows
from cocotb_tests.stripe.sequencer_bench import (
    ARRAYS,
    CONFIG,
    JUDGED_IN,
    PATIENCE,
    ROW_STEP,
    Bench,
    Row,
    bench_of,
    random_rows,
    some_rows,
)
from cocotb_tests.stripe.stripe_models import BLOCK
from hdl.config import PIECES
from hdl.flow.host_command import Status
from hdl.flow.operation import Opcode
from hdl.flow.parity_pass import StepKind
from hdl.flow.row import RowKind
from hdl.kit.queue import Queue
from hdl.stripe.rows.phase_queues import PhaseQueues
from hdl.stripe.rows.progress import attempts
from hdl.stripe.rows.row_flushes import RowFlushes
from hdl.stripe.rows.row_operation import RowOperation
from hdl.stripe.rows.sequencer import Sequencer


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def writes_and_recovers_with_all_drives(dut):
    bench = bench_of(dut)
    await start(dut)
    await random_rows(bench, rows=80, span=12)
    await bench.settle()
    bench.check_drives()
    assert bench.write_faults == bench.read_faults == 0
    assert not bench.failed
    assert bench.committed and bench.retired == 80


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def keeps_rows_with_drives_failing_in_between(dut):
    bench = bench_of(dut)
    tolerated = bench.array.parities or bench.array.copies - 1
    await start(dut)
    bench.drives.aborts = 0.02
    bench.drives.unreached = 0.1
    for port in bench.random.sample(bench.array.ports[: bench.array.width], tolerated):
        await random_rows(bench, rows=30, span=8)
        bench.drives.gone.add(port)
        await cycles_pass(dut.clk, bench.random.randrange(60))
        if bench.random.random() < 0.5:
            bench.fail(port)
        await random_rows(bench, rows=30, span=8)
    await bench.settle()
    bench.failed |= bench.drives.gone
    bench.check_drives()
    assert bench.write_faults == 0


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def begins_a_phase_only_with_room(dut):
    """The drives, or the parity engine, take nothing until all rows wait. Then all goes on."""
    bench = bench_of(dut)
    await start(dut)
    for row in some_rows(16):
        await bench.begin(row, joined=[*range(bench.array.data)])
    await bench.settle()
    bench.fail(bench.random.choice(bench.array.ports))
    for _ in range(4):
        for sink in (bench.drives.asked, bench.parity.asked):
            sink.paused = True
            # Many operations each, and few lines.
            for row in bench.random.sample(some_rows(16), CONFIG.rows):
                index = bench.random.randrange(bench.array.data)
                await bench.begin(row, joined=[index], kind=RowKind.RECOVER)
            await cycles_pass(dut.clk, 4_000)
            # Without the parity engine only those rows wait that need it.
            assert len(bench.slots) == CONFIG.rows or sink is bench.parity.asked
            sink.paused = False
            await bench.settle()
    assert bench.recovered == 8 * CONFIG.rows and not bench.read_faults


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def plans_around_unreadable_blocks(dut):
    bench = bench_of(dut)
    await start(dut)
    await random_rows(bench, rows=30, span=6, recover=0)
    await bench.settle()
    for _ in range(6):
        for row in range(0, 48, 8):
            bench.erase_unreadable(row, bench.random.randint(0, bench.array.parities))
        for row in range(0, 48, 8):
            strips = bench.strips(row)
            joined = bench.random.sample(range(strips), bench.random.randint(1, strips))
            await bench.begin(row, joined=joined)
        await bench.settle()
        bench.drives.unreadable.clear()
        bench.check_drives()
    assert bench.write_faults == 0 and not bench.failed


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def recovers_early_whatever_fails(dut):
    """Blocks land at different speeds; reads are aborted, not reached, unreadable, or gone."""
    bench = bench_of(dut)
    await start(dut)
    await random_rows(bench, rows=20, span=8, recover=0)
    await bench.settle()
    for _ in range(8):
        await random_rows(bench, rows=1, span=8, recover=1)
        await bench.settle()
    assert bench.recovered == 8 and bench.parity.early == 8 * PIECES
    bench.drives.aborts = 0.02
    bench.drives.unreached = 0.03
    for _ in range(4):
        for row in range(0, 64, 8):
            bench.erase_unreadable(row, bench.random.randrange(bench.array.parities))
        await random_rows(bench, rows=12, span=8, recover=0.9, pause=120)
        await bench.settle()
        bench.drives.unreadable.clear()
    assert not bench.read_faults and not bench.failed
    task = cocotb.start_soon(random_rows(bench, rows=40, span=8, recover=0.9, pause=120))
    await cycles_pass(dut.clk, bench.random.randrange(400))
    bench.drives.gone.add(bench.random.choice(bench.array.ports[: bench.array.width]))
    await task
    # How many rows find a seat is chance: enough of them.
    while bench.parity.early <= 40 * PIECES and bench.retired < 600:
        await random_rows(bench, rows=20, span=8, recover=0.9, pause=120)
    await bench.settle()
    bench.failed |= bench.drives.gone
    bench.check_drives()
    assert bench.array.parities == 1 or not bench.read_faults
    assert bench.parity.early > 40 * PIECES


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def writes_twice_what_a_drive_refuses_once(dut):
    bench = bench_of(dut)
    await start(dut)
    for row in range(0, 48, 8):
        bench.erase_unreadable(row, 1)
    bench.drives.stubborn = bench.drives.unreadable
    bench.drives.unreadable = set()
    await random_rows(bench, rows=20, span=6, recover=0)
    await bench.settle()
    bench.check_drives()
    assert bench.write_faults == 0 and not bench.failed and len(bench.drives.stubborn) < 6


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def writes_rows_past_repair(dut):
    """What is written is stored, what is lost stays lost, and parity comes back with the last."""
    bench = bench_of(dut)
    array = bench.array
    await start(dut)
    await random_rows(bench, rows=30, span=6, recover=0)
    await bench.settle()
    strips = range(array.data)

    def place(row: int, index: int) -> tuple[int, int]:
        base, shift = bench.place(row)
        return array.places(base=base, shift=shift, index=index, row=row)[0]

    for row in list(bench.rows):
        lost = bench.random.sample(strips, min(array.parities + 1, array.data))
        if len(lost) <= array.parities:
            continue
        bench.drives.unreadable |= {place(row, index) for index in lost}
        first = lost.pop()
        await bench.begin(row, joined=[first])
        await bench.settle()
        assert place(row, first) not in bench.drives.unreadable
        assert {place(row, index) for index in lost} <= bench.drives.unreadable
        for index in lost:
            # Before its drive has it again nothing may pass for it.
            faults = bench.read_faults
            await bench.begin(row, joined=[index], kind=RowKind.RECOVER)
            await bench.settle()
            assert bench.read_faults == faults + 1
            await bench.begin(row, joined=[index])
            await bench.settle()
        assert {place(row, index) for index in strips}.isdisjoint(bench.drives.unreadable)
        for index in (first, first):
            await bench.begin(row, joined=[index])
            await bench.settle()
        bench.check_drives()
        assert not bench.drives.unreadable, "parity has not come back"
    assert bench.write_faults == 0 and not bench.failed


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def protects_rows_of_which_all_data_is_readable(dut):
    """Blocks that are written need not be read; parities that cannot be read are made anew."""
    bench = bench_of(dut)
    array = bench.array
    await start(dut)
    await random_rows(bench, rows=30, span=6, recover=0)
    await bench.settle()
    for row in 3 * list(bench.rows):
        # With one or two strips the row would be updated, were they readable.
        count = bench.random.choice((1, 1, 2, array.data))
        lost = bench.random.sample(range(array.data), count)
        bench.drives.unreadable |= {bench.strip_places(row, index)[0] for index in lost}
        bench.drives.unreadable |= set(bench.parity_places(row))
        await bench.begin(row, joined=lost)
        await bench.settle()
        assert not bench.drives.unreadable, f"row {row} is not protected"
    bench.check_drives()
    assert bench.write_faults == 0 and not bench.failed


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def updates_no_row_that_is_not_in_sync(dut):
    """From the sync boundary on parities are anybody's guess; what is written is safe all the
    same, and before the boundary rows are updated as ever."""
    bench = bench_of(dut)
    boundary = 3 * ROW_STEP
    dut.arrays__unsynced.value = 0b10
    TableServer(dut, "reads__sync", lambda number: boundary if number == 1 else 0)
    await start(dut)
    await write_unsynced(bench, boundary)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def updates_no_row_of_an_array_in_doubt(dut):
    """The same of all rows, also if the array is still called in sync."""
    bench = bench_of(dut)
    dut.arrays__unsynced.value = 0
    dut.arrays__doubts.value = 0b10
    await start(dut)
    await write_unsynced(bench, 0)


async def write_unsynced(bench: Bench, boundary: int) -> None:
    """What can be read is read where it lies, and every row is written, most of them in part."""
    array = bench.array
    rows = some_rows(10)
    for row in rows:
        truth = bench.rows[row] = {
            index: bench.random.randbytes(BLOCK) for index in range(array.data)
        }
        sums = array.sums(truth, shift=bench.place(row)[1])
        for index, block in truth.items():
            bench.drives.blocks[bench.strip_places(row, index)[0]] = block
        for place, block in zip(bench.parity_places(row), sums, strict=True):
            right = row < boundary
            bench.drives.blocks[place] = block if right else bench.random.randbytes(BLOCK)
    for row in rows:
        for index in bench.random.sample(range(array.data), 2):
            await bench.begin(row, joined=[index], kind=RowKind.RECOVER)
            await bench.settle()
    assert bench.recovered == 2 * len(rows) and not bench.read_faults
    for row in rows:
        before = bench.drives.counts[Opcode.READ]
        await bench.begin(row, joined=[bench.random.randrange(array.data)])
        await bench.settle()
        reads = bench.drives.counts[Opcode.READ] - before
        wanted = 1 + array.parities if row < boundary else array.data - 1
        assert reads == wanted, f"row {row}: {reads} reads, not {wanted}"
    bench.check_drives()
    for port in bench.random.sample(array.ports[: array.width], array.parities):
        await random_rows(bench, rows=20, span=10)
        await bench.settle()
        bench.fail(port)
        await random_rows(bench, rows=20, span=10)
        await bench.settle()
        bench.check_drives()
    assert not bench.write_faults and not bench.read_faults


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def fails_drives_that_refuse_writes(dut):
    bench = bench_of(dut)
    tolerated = bench.array.parities or bench.array.copies - 1
    refusing: set[int] = set()

    def may_fail(port: int) -> bool:
        if len(refusing | bench.failed) < tolerated:
            refusing.add(port)
        return port in refusing

    bench.drives.write_errors = 0.5
    bench.drives.may_fail = may_fail
    await start(dut)
    await random_rows(bench, rows=80, span=8)
    await bench.settle()
    bench.check_drives()
    assert bench.write_faults == 0
    assert bench.failed == refusing and len(refusing) == tolerated


def restart_in_flush(bench: Bench, number: int, now: int) -> None:
    """Drives restart in flush ``number``."""
    if now == number:
        bench.step_era()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def stores_what_blocks_are_worked_out_from(dut):
    """Drives refuse what is written with FUA, or go on the way. Their rows succeed when the other
    drives have been flushed, and fail when one of those has not done it, or may have lost data."""
    bench = bench_of(dut)
    array, drives = bench.array, bench.drives
    await start(dut)
    few = partial(bench.random.choice, (0.0, 0.0, 0.0, 1.0))  # are without FUA
    drives.latency = 400
    done, ways, faults = 0, set(), Counter()
    while done < 3 or len(ways) < 5 or len(faults) < 2 or bench.left_behind < 6:
        assert bench.retired < 4000, f"{done} times, {ways}, {faults}, {bench.left_behind}"
        bench.write_faults = 0
        drives.write_errors, drives.flush_errors, drives.flushing = 0.0, 0.0, lambda number: None
        bench.wishes.random = few
        bench.revive()
        for kept in (drives.blocks, drives.unreadable, bench.rows, bench.torn):
            kept.clear()
        await random_rows(bench, rows=10, span=8, recover=0)
        await bench.settle()
        # Blocks that a row does not write are in caches.
        drives.stored.clear()
        port = bench.random.choice(array.ports)
        way = bench.random.choice(("goes", "fails amid", "fails behind", "comes back", "refuses"))
        if way == "goes":
            drives.gone.add(port)
        elif way == "refuses":
            drives.write_errors, drives.may_fail = 1.0, partial(eq, port)
        trouble = bench.random.choice(("", "errors", "restarts")) if done >= 3 else ""
        if trouble == "errors":
            drives.flush_errors = 0.3
        elif trouble:
            drives.flushing = partial(restart_in_flush, bench, drives.flushes + 1)
        before = bench.worked_out
        if way in ("fails amid", "fails behind", "comes back"):
            behind: list[tuple[tuple[int, int], bytes]] = []
            bench.wishes.random = lambda: 0.0
            for row in bench.random.sample(some_rows(8), 5):
                held = [i for i in range(array.data) if bench.strip_places(row, i)[0][0] == port]
                entry = await bench.begin(row, joined=held or [0])
                behind += [(entry.places[i][0], entry.blocks[i]) for i in held]
            if way == "fails amid" or not behind:
                for _ in range(bench.random.randrange(2 * drives.latency)):
                    await RisingEdge(dut.clk)
            else:

                def is_stored(behind=behind) -> bool:
                    return any(drives.stored.get(place) == block for place, block in behind)

                await wait_until(dut, is_stored, cycles=PATIENCE, what="a block on its drive")
            bench.fail(port)
            if way == "comes back":
                # It is to be rebuilt. What was planned before still has its blocks there.
                bench.make_stale(port, foreign=False)
                await bench.settle()
                bench.stale.clear()
                dut.drives__stale.value = 0
                bench.fail(port)
            bench.wishes.random = few
        await random_rows(bench, rows=10, span=8, recover=0)
        await bench.settle()
        assert not bench.write_faults or trouble
        faults[trouble] += bench.write_faults
        faults = +faults
        if not bench.write_faults:
            bench.failed |= drives.gone
            bench.check_drives()
        if bench.worked_out > before:
            done += 1
            ways.add(way)
    assert drives.flushes


async def refused_with_fua(bench: Bench, row: int, *others: int) -> tuple[Row, int]:
    """A row whose lowest strip its drive refuses to write with FUA, while ``others`` are written;
    all else is in caches. The port of that drive."""
    (refused,) = bench.strip_places(row, 0)
    bench.drives.stored.clear()
    bench.drives.refusing = {refused}
    bench.drives.spoils_refused = True
    bench.wishes.random = lambda: 0.0
    return await bench.begin(row, joined=[0, *others]), refused[0]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def fails_only_what_needs_a_flush(dut):
    """A drive refuses a block of two, and no drive is flushed well. The other block is stored."""
    bench = bench_of(dut)
    await bench.fill(rows=30, span=6)
    bench.drives.flush_errors = 1.0
    entry, port = await refused_with_fua(bench, some_rows(6)[3], 1)
    await bench.settle()
    assert bench.drives.flushes == bench.array.data - 2 and bench.failed <= {port}
    assert entry.statuses == [Status.WRITE_FAULT, Status.SUCCESS]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def fails_what_needs_a_mark(dut):
    """A drive is away, and another refuses a block, which is made unreadable there, as the array
    needs every drive. That is not flushed well. Only a block that is on its drive is stored."""
    bench = bench_of(dut)
    await bench.fill(rows=30, span=6)
    bench.essential = lambda: {*bench.array.ports}
    bench.drives.flush_errors = 1.0
    for row in some_rows(6):
        away = bench.strip_places(row, 1)[0][0]
        bench.fail(away)
        await cycles_pass(dut.clk, 2 * JUDGED_IN)
        entry, _ = await refused_with_fua(bench, row, 1, 2)
        await bench.settle()
        assert bench.failed == {away}
        wanted = [Status.WRITE_FAULT, Status.WRITE_FAULT, Status.SUCCESS]
        assert entry.statuses == wanted, entry.statuses
        bench.drives.refusing.clear()
        bench.revive()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def fails_what_is_past_repair(dut):
    """A row past repair is written with FUA. Its parities are made unreadable, and that is not
    flushed well: without power they would be read again."""
    bench = bench_of(dut)
    await bench.fill(rows=30, span=6)
    bench.drives.flush_errors = 1.0
    bench.wishes.random = lambda: 0.0
    for row in some_rows(6):
        lost = range(bench.tolerated + 1)
        bench.drives.unreadable |= {bench.strip_places(row, index)[0] for index in lost}
        others = [*range(len(lost), bench.array.data)]
        entry = await bench.begin(row, joined=others)
        await bench.settle()
        assert entry.statuses == [Status.WRITE_FAULT] * len(others)
    assert not bench.failed


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def judges_while_a_rebuild_ends(dut):
    """A drive that was being rebuilt as the row asked for its flush is trusted once it has been
    flushed. The row needs its block, and succeeds."""
    bench = bench_of(dut)
    await bench.fill(rows=30, span=6)
    assert bench.tolerated > 1
    for row in some_rows(6):
        new = bench.strip_places(row, 1)[0][0]
        # It has been rebuilt; what it has is in its cache.
        bench.make_stale(new, foreign=False)

        def trust(number: int) -> None:
            bench.stale.clear()
            dut.drives__stale.value = 0

        bench.drives.flushing = trust
        entry, port = await refused_with_fua(bench, row)
        await bench.settle()
        assert entry.statuses == [Status.SUCCESS] and bench.failed == {port}
        bench.drives.refusing.clear()
        bench.revive()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reports_what_is_beyond_tolerance(dut):
    bench = bench_of(dut)
    tolerated = bench.array.parities or bench.array.copies - 1
    await start(dut)
    await random_rows(bench, rows=20, span=6)
    await bench.settle()
    for port in bench.array.ports[: tolerated + 1]:
        bench.fail(port)
    bench.drives.unreadable.clear()
    await random_rows(bench, rows=40, span=6)
    await bench.settle()
    assert bench.write_faults
    if bench.array.parities:
        assert bench.read_faults
    if not bench.array.parities:
        bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def counts_attempts_by_phase(dut):
    """Every read of a row is aborted as often as a drive may do so, and then every write is. Each
    is sent once more, the row is written, and no drive is given up."""
    bench = bench_of(dut)
    await start(dut)
    most = attempts(CONFIG) - 1
    for row in some_rows(6):
        (place,) = bench.strip_places(row, 0)
        written = [place, *bench.parity_places(row)]
        data = [bench.strip_places(row, index)[0] for index in range(bench.strips(row))]
        reads = dict.fromkeys((*data, *bench.parity_places(row)), most)
        bench.drives.aborted.update(dict.fromkeys(written, most))
        bench.drives.aborted_reads.update(reads)
        entry = await bench.begin(row, joined=[0])
        await bench.settle()
        assert not bench.failed, f"given up after {most} aborts of each phase: {bench.failed}"
        assert entry.statuses == [Status.SUCCESS]
        assert not +bench.drives.aborted, "not written"
        assert len(bench.drives.aborted_reads) < len(reads), "nothing was read"
        bench.drives.aborted_reads.clear()
    bench.check_drives()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def survives_anything(dut):
    bench = bench_of(dut)
    bench.drives.aborts = 0.1
    bench.drives.write_errors = 0.02
    bench.drives.may_fail = lambda port: True
    await start(dut)
    for _ in range(20):
        await random_rows(bench, rows=8, span=8)
        bench.erase_unreadable(8 * bench.random.randrange(8), 1)
    await bench.settle()
    assert bench.retired == 160


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reports_cycles_per_row(dut):
    bench = bench_of(dut)
    await start(dut)
    await cycles_pass(dut.clk, 40)
    strips = bench.strips(0)
    for count in (1, strips):
        bench.drives.counts.clear()
        rows = 32
        for row in range(rows):
            await bench.begin(8 * row, joined=list(range(count)))
        started = bench.retired
        begun = cocotb.simtime.get_sim_time("ns")
        for row in range(rows, 3 * rows):
            await bench.begin(8 * row, joined=list(range(count)))
        ended = cocotb.simtime.get_sim_time("ns")
        done = bench.retired - started
        operations = bench.drives.counts[Opcode.READ] + bench.drives.counts[Opcode.WRITE]
        cycles = (ended - begun) / CLOCK_PERIOD_NS / done
        print(
            f"{os.environ['ARRAY']}: {count} joined: {cycles:.0f} cycles a row, "
            f"{operations / (3 * rows):.1f} operations a row"
        )
        await bench.settle()


WORK = (
    "writes_and_recovers_with_all_drives",
    "writes_twice_what_a_drive_refuses_once",
    "keeps_rows_with_drives_failing_in_between",
    "fails_drives_that_refuse_writes",
    "reports_what_is_beyond_tolerance",
    "survives_anything",
)


EARLY = "recovers_early_whatever_fails"
ROOM = "begins_a_phase_only_with_room"
STORES = "stores_what_blocks_are_worked_out_from"
NOT_IN_SYNC = "updates_no_row_that_is_not_in_sync"
BY_PHASE = "counts_attempts_by_phase"
IN_DOUBT = "updates_no_row_of_an_array_in_doubt"
NEEDS = "fails_only_what_needs_a_flush"
MARKS = "fails_what_needs_a_mark"
LOST = "fails_what_is_past_repair"
REBUILT = "judges_while_a_rebuild_ends"
PAST_REPAIR = "writes_rows_past_repair"
ALL_READABLE = "protects_rows_of_which_all_data_is_readable"


class BelievesReads(Sequencer):
    """A planted bug: a row whose reads have ended has all its blocks."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.early.good.eq(1)
        return m


class FirstPieceOnly(Sequencer):
    """A planted bug: every piece that is worked out is the first."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.step.payload.piece.number.eq(0)
        return m


class ConfusesParities(Sequencer):
    """A planted bug: every parity output is P."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.step.payload.kind == StepKind.OUTPUT):
            m.d.comb += self.step.payload.role.eq(0)
        return m


class HidesFaults(Sequencer):
    """A planted bug: every write is a success."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.committed.payload.status.eq(Status.SUCCESS)
        return m


class TrustsDrives(Sequencer):
    """A planted bug: a drive that refuses a write stays in use."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.fail.valid.eq(0)
        return m


class GivesUpAtOnce(Sequencer):
    """A planted bug: a write that its drive could not store is not sent again."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.operation_result.before.refused.eq(-1)
        return m


class TrustsOldParity(Sequencer):
    """A planted bug: parities of a row past repair stay readable."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.operation.payload.opcode == Opcode.WRITE_UNCORRECTABLE):
            m.d.comb += self.operation.payload.block.eq(0)
        return m


class BeginsWithoutRoom(PhaseQueues):
    """A planted bug: a row begins a phase whether or not all of it fits."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.room.eq(1)
        return m


class DropsFua(Sequencer):
    """A planted bug: no write is FUA."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.operation.payload.fua.eq(0)
        return m


class ReadsWithoutFua(RowOperation):
    """A planted bug: what is read for a host that asks for FUA is read without."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.operation.fua.eq(self.writing & self.program.fua)
        return m


class SkipsFlushes(RowFlushes):
    """A planted bug: no drive is asked."""

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = Queue(self.request.payload.shape(), 8)
        connect(m, flipped(self.request), rows.input)
        m.d.comb += [
            self.done.valid.eq(rows.output.valid),
            self.done.payload.slot.eq(rows.output.payload.slot),
            self.done.payload.ports.eq(rows.output.payload.ports),
            rows.output.ready.eq(self.done.ready),
        ]
        return m


class BelievesFlushes(RowFlushes):
    """A planted bug: every drive that was asked has stored all."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.done.payload.ports.eq(-1)
        return m


class FlushesAtRest(RowFlushes):
    """A planted bug: the sequencer does not say that flushes of its rows move on."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.busy.eq(0)
        return m


class IgnoresRestarts(Sequencer):
    """A planted bug: drives lose nothing as they restart."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self._restarted.eq(0)
        return m


class LeavesMarksInCaches(Sequencer):
    """A planted bug: parities that a row has made unreadable are not flushed."""

    def _marked(self):
        return self._blank


class FailsWholeRows(Sequencer):
    """A planted bug: a flush that fails is the end of all commands of its row."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self._unproven):
            m.d.comb += self.committed.payload.status.eq(Status.WRITE_FAULT)
        return m


class TrustsMarks(Sequencer):
    """A planted bug: what had no drive as its row was planned needs no mark of another."""

    def _absent(self):
        return Const(0, 1)


class AsksTrustedDrives(Sequencer):
    """A planted bug: a drive that is being rebuilt is not flushed for a row."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        ports = self._holders & ~self.drives.stale
        m.d.comb += self._flushes.request.payload.ports.eq(ports)
        return m


class MarksFirstArray(Sequencer):
    """A planted bug: all rows are marked as those of array 0."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.begun.payload.array.eq(0)
        return m


class MarksFirstRow(Sequencer):
    """A planted bug: row 0 is marked whatever is written."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.begun.payload.row.eq(0)
        return m


class MergesAgain(Sequencer):
    """A planted bug: an operation that was not reached may be merged again."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.operation.payload.alone.eq(0)
        return m


class IgnoresTheSyncBoundary(Sequencer):
    """A planted bug: parities of every row are believed."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.planning.arrays.unsynced.eq(0)
        return m


class IgnoresDoubts(Sequencer):
    """A planted bug: an array is in sync until it is said not to be."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.planning.arrays.doubts.eq(0)
        return m


class OtherArraysBoundary(Sequencer):
    """A planted bug: the sync boundary is that of the array before."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.reads.sync.address.eq(0)
        m.d.comb += m.submodules.planning.arrays.unsynced.eq(self.arrays.unsynced >> 1)
        return m


LESS_OFTEN = (
    "raid5_wide",
    "raid6_wide",
    "raid6_ddf_restart",
    "raid6_ddf_continue",
    "raid0",
    "raid1",
    "raid50",
    "triple",
)
"""Arrays of the long suite only."""

MUTANTS = {
    BelievesReads: EARLY,
    FirstPieceOnly: EARLY,
    GivesUpAtOnce: "writes_twice_what_a_drive_refuses_once",
    TrustsOldParity: PAST_REPAIR,
    MergesAgain: "keeps_rows_with_drives_failing_in_between",
    DropsFua: "writes_and_recovers_with_all_drives",
    MarksFirstArray: "writes_and_recovers_with_all_drives",
    MarksFirstRow: "writes_and_recovers_with_all_drives",
    ConfusesParities: "writes_and_recovers_with_all_drives",
    KeepsLines: "writes_and_recovers_with_all_drives",
    HidesFaults: "reports_what_is_beyond_tolerance",
    TrustsDrives: "fails_drives_that_refuse_writes",
    IgnoresRestarts: STORES,
    LeavesMarksInCaches: PAST_REPAIR,
    FailsWholeRows: NEEDS,
    AsksTrustedDrives: REBUILT,
    TrustsMarks: MARKS,
}
IN_EVERY_RUN = (DropsFua,)
"""The planted bug that is not of the long suite only."""


sequence = partial(run_rows, module=__name__)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(array, marks=[pytest.mark.slow] if array in LESS_OFTEN else [])
        for array in ARRAYS
    ],
)
def test_rows(array):
    work = WORK
    if ARRAYS[array].parities:
        work += ("plans_around_unreadable_blocks", PAST_REPAIR, EARLY, STORES)
        if ARRAYS[array].data > 2:
            work += (NEEDS,)
    if ARRAYS[array].parities > 1:
        work += (REBUILT, MARKS)
    if ARRAYS[array].parities and ARRAYS[array].data > ARRAYS[array].parities + 1:
        work += (LOST,)
    if array == "raid0":
        work = tuple(name for name in work if "refuse" not in name and "between" not in name)
    sequence(Sequencer, array=array, testcase=work)


@pytest.mark.parametrize(
    "array", ["raid5_wide", pytest.param("raid6_wide", marks=pytest.mark.slow)]
)
def test_rows_wide_enough_to_be_updated(array):
    sequence(
        Sequencer,
        array=array,
        testcase=(ALL_READABLE, NOT_IN_SYNC, IN_DOUBT, BY_PHASE, STORES, ROOM),
    )


@pytest.mark.parametrize(
    "array",
    [
        "raid5",
        *(
            pytest.param(array, marks=pytest.mark.slow)
            for array in ("raid5_wide", "raid6_wide", "raid10")
        ),
    ],
)
def test_rate(array):
    sequence(Sequencer, array=array, testcase="reports_cycles_per_row", active=1.0)


@pytest.mark.slow
def test_pieces_that_begin_too_soon_are_caught(monkeypatch):
    monkeypatch.setattr("hdl.stripe.rows.piece_count.ones", lambda mask: mask.any())
    with pytest.raises(SimulationError, match=r"row \d+ strip|free but|never written"):
        sequence(Sequencer, array="raid6", testcase=EARLY)


@pytest.mark.slow
def test_reads_without_fua_are_caught(monkeypatch):
    monkeypatch.setattr("hdl.stripe.rows.sequencer.RowOperation", ReadsWithoutFua)
    with pytest.raises(SimulationError, match="should be FUA"):
        sequence(Sequencer, array="raid6", testcase="writes_and_recovers_with_all_drives")


@pytest.mark.slow
def test_phases_without_room_are_caught():
    place = "rows.sequencer.PhaseQueues"
    must_catch(
        BeginsWithoutRoom, module=__name__, array="raid6_wide", testcase=ROOM, place=place
    )


@pytest.mark.slow
def test_flushes_at_rest_are_caught():
    place = "rows.sequencer.RowFlushes"
    must_catch(FlushesAtRest, module=__name__, array="raid6", testcase=STORES, place=place)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [SkipsFlushes, BelievesFlushes])
def test_rows_without_flushes_are_caught(mutant, monkeypatch):
    monkeypatch.setattr("hdl.stripe.rows.sequencer.RowFlushes", mutant)
    with pytest.raises(SimulationError, match="is lost without"):
        sequence(Sequencer, array="raid6", testcase=STORES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "testcase"),
    [
        (IgnoresTheSyncBoundary, NOT_IN_SYNC),
        (OtherArraysBoundary, NOT_IN_SYNC),
        (IgnoresDoubts, IN_DOUBT),
    ],
)
def test_planted_bug_of_wide_rows_is_caught(mutant, testcase):
    must_catch(mutant, module=__name__, array="raid6_wide", testcase=testcase)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=[] if mutant in IN_EVERY_RUN else [pytest.mark.slow])
        for mutant in MUTANTS
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_planted_bug_is_caught(mutant):
    must_catch(mutant, module=__name__, array="raid6", testcase=MUTANTS[mutant])
