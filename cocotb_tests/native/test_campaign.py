"""The campaign of random faults: a few runs, and what its checks must find."""

import os
import random
import re
import sys
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

import campaign.__main__ as command
from campaign import ranges
from campaign.array import Array
from campaign.budget import Budget
from campaign.durable import DurableModel
from campaign.faults import Faults
from campaign.features import ALL, selected
from campaign.links import placed
from campaign.masks import PENDING_BITS, Masks
from campaign.run import Run
from campaign.salvage import Salvage
from campaign.sizes import DRAWN, SIZES, drawn, size_of
from campaign.volume import Volume
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.walk import WalkKind
from sim.golden.layout import Layout
from sim.golden.nvme import (
    DATASET_MANAGEMENT,
    LBA_OUT_OF_RANGE,
    UNRECOVERED_READ,
    WRITE_FAULT,
    WRITE_ZEROES,
)
from sim.native.harness import Harness
from sim.native.parameters import LinkParameters
from sw.driver import background
from sw.driver.commands import Io, NvmeError
from sw.driver.native import NativeTransport
from sw.driver.nvme import Nvme

SEED = int(os.environ.get("SEED") or "1")
USUAL = ALL - {"sizes"}
"""Other controllers take minutes to build."""


# The runs of the first seeds are long.
@pytest.mark.parametrize("seed", [SEED + 2, pytest.param(SEED + 3, marks=pytest.mark.slow)])
def test_nothing_is_lost(seed):
    outcome = Run(seed, features=USUAL).run()
    print(f"SEED={seed}: {outcome}")
    assert outcome.commands >= 50
    assert sum(outcome.faults.values())


@pytest.mark.slow
@pytest.mark.parametrize("size", [*SIZES, DRAWN])
def test_every_controller(size):
    """A run on each."""
    seed = next(seed for seed in range(SEED, SEED + 1000) if size_of(seed, others=True) == size)
    outcome = Run(seed, features=ALL).run()
    print(f"SEED={seed}: {outcome}")
    assert size in outcome.title


@pytest.mark.parametrize("memory_bytes", [1 << 26, 1 << 30])
def test_memory_is_anywhere(memory_bytes):
    """Below 4 GiB, above, and across, in pages, and never where BAR 0 or messages are."""
    places = set()
    for seed in range(SEED, SEED + 200):
        link = placed(LinkParameters(), random.Random(seed), memory_bytes)
        first, end = link.memory_base, link.memory_base + memory_bytes
        assert first > 0 and end <= 1 << 63 and first % 4096 == 0
        for window in (link.bar_base, link.msi_base):
            assert end <= window or first >= window + (1 << 20), f"{link}"
        places.add((first >> 32 > 0, end - 1 >> 32 > 0, link.msi_base >> 32 > 0))
        assert not first < 1 << 32 < end or (1 << 32) - first <= 16 << 20
    assert places == {(*where, far) for where in ((0, 0), (1, 1), (0, 1)) for far in (0, 1)}


def test_drawn_controllers_differ():
    """In sizes and in options, and the same number gives the same one."""
    configs = [drawn(number) for number in range(20)]
    assert configs == [drawn(number) for number in range(20)]
    assert len(set(configs)) == len(configs)
    assert {config.data_width for config in configs} == {64, 128, 256}, "what the tier can build"
    for name in ("ports", "lines", "rows", "drive_tags", "parities", "background", "array_shares"):
        assert len({getattr(config, name) for config in configs}) > 1, name


@pytest.mark.parametrize(
    ("level", "drives", "options", "tolerates"),
    [
        ("RAID0", 4, {}, 0),
        ("RAID1", 3, {}, 2),
        ("RAID5", 4, {}, 1),
        ("RAID6", 6, {}, 2),
        ("RAIDTP", 6, {}, 3),
    ],
)
def test_budget(level, drives, options, tolerates):
    """As many drives as the level says, or one bad block less in a row."""
    layout = Layout(level, drives, 2, **options)
    for bad in (0, 1):
        budget = Budget(layout, 4)
        if bad and not budget.admits(bad=[(drives - 1, 2)]):
            assert not tolerates
            continue
        admitted = sum(budget.admits(drives=[position]) for position in range(drives - 1))
        assert admitted == max(0, tolerates - bad)
        lost = [block for block in range(layout.blocks(4)) if not budget.readable(block)]
        assert not lost and budget.tolerated()


def test_range_lists():
    """As many as a command may have, and both kinds. A volume has exactly the blocks below its end.
    """
    choose = random.Random(SEED)
    for blocks in (1, 7, 24 * 8):
        lists = [ranges.draw(choose, blocks) for _ in range(400)]
        lengths = {len(wanted) for wanted in lists}
        assert min(lengths) == 1 and max(lengths) == ranges.MOST_RANGES
        assert all(len(ranges.packed(choose, wanted)) == 16 * len(wanted) for wanted in lists)
        refused = sum(bool(ranges.beyond(wanted, blocks)) for wanted in lists)
        assert 100 < refused < 300
        assert all(ranges.beyond([ranges.bad(choose, blocks)], blocks) for _ in range(400))
    assert ranges.beyond([(0, 8), (7, 1), (8, 0), (8, 1), (0, 9)], 8) == [(8, 1), (0, 9)]


# What survives a loss of power

OLD, A, B, C = (bytes([n]) * 512 for n in range(4))


def durable() -> DurableModel:
    return DurableModel([{OLD}, {OLD}])


def put(model: DurableModel, data: bytes, *, fua: bool = False, done: bool = True) -> None:
    model.end_write(model.begin_write(0, [data]), done=done, fua=fua)


def flush(model: DurableModel) -> None:
    model.end_flush(model.begin_flush())


def after_loss(model: DurableModel) -> set[bytes]:
    model.lose_power()
    assert model.possible(1) == {OLD}
    return model.possible(0)


def test_what_was_not_flushed_may_come_or_not():
    model = durable()
    put(model, A)
    put(model, B)
    assert model.possible(0) == {B}
    assert after_loss(model) == {OLD, A, B}


def test_what_was_flushed_is_there():
    model = durable()
    put(model, A)
    flush(model)
    put(model, B, done=False)
    assert after_loss(model) == {A, B}


def test_what_was_forced_is_there():
    model = durable()
    put(model, A)
    put(model, B, fua=True)
    put(model, C, fua=True, done=False)
    assert after_loss(model) == {B, C}


def test_what_a_read_has_stored_is_there():
    model = durable()
    put(model, A)
    put(model, B)
    model.stored(0, [B])
    put(model, C)
    model.stored(1, [A])  # a write that has not ended is not known yet
    assert after_loss(model) == {B, C}


def test_a_flush_is_about_what_had_ended():
    model = durable()
    put(model, A)
    late = model.begin_write(0, [B])
    begun = model.begin_flush()
    model.end_write(late)
    put(model, C)
    model.end_flush(begun)
    assert after_loss(model) == {A, B, C}


def test_writes_at_once_may_be_in_any_order():
    model = durable()
    first, second = model.begin_write(0, [A]), model.begin_write(0, [B])
    model.end_write(first)
    model.end_write(second)
    flush(model)
    assert after_loss(model) == {A, B}
    flush(model)
    assert after_loss(model) == {A, B}


def test_what_a_failed_array_has_kept():
    """A write that has failed since then may have happened. Of one that ended well nothing is
    known."""
    model = durable()
    put(model, A)
    flush(model)
    moment = model.moment
    assert model.kept(0, moment) == {A}
    put(model, B, done=False)
    assert model.kept(0, moment) == {A, B}
    put(model, C)
    assert model.kept(0, moment) is None and model.kept(1, moment) == {OLD}


# Checks that find something


def failure(seed: int, features: set[str]) -> str:
    """How a run fails."""
    try:
        Run(seed, features=frozenset(features)).run()
    except AssertionError as error:
        return str(error)
    return ""


def find(monkeypatch, features: set[str], message: str, runs: int = 12) -> None:
    """A few short runs, of which the first that fails must do so like this."""
    monkeypatch.setattr("campaign.run.PAST", 1)
    monkeypatch.setattr("campaign.power.SHARE", 1)
    monkeypatch.setattr("campaign.lifetimes.DELETED", 1)
    failures = filter(None, (failure(seed, features) for seed in range(SEED, SEED + runs)))
    assert re.search(message, next(failures, "nothing"))


def test_each_run_has_its_own_coins(monkeypatch):
    """What drives forget follows from the seed of the run."""
    seeds = []

    def card(*_, seed: int, **__):
        seeds.append(seed)
        raise AssertionError("no card")

    monkeypatch.setattr("campaign.card.SimulatedCard", card)
    assert all(failure(seed, {"power"}) == "no card" for seed in (SEED, SEED + 1))
    assert seeds == [SEED, SEED + 1]


@pytest.mark.slow
def test_trust_in_half_a_rebuild_is_found(monkeypatch):
    """After a loss of power a host makes an array with the drive that was being rebuilt."""
    monkeypatch.setattr("campaign.power.WITHOUT_JOB", 0)
    monkeypatch.setattr("campaign.power.Work.rebuilds", False)
    find(monkeypatch, {"power", "mid-power"}, "is wrong|parity")


def test_trust_in_half_a_resync_is_found(monkeypatch):
    """A host takes an array to be consistent before its RESYNC is done."""

    async def at_once(*_) -> None:
        pass

    monkeypatch.setattr("campaign.power.TWICE", 1)
    monkeypatch.setattr("campaign.power.Array.initialised", at_once)
    find(monkeypatch, {"power", "done"}, "is wrong|parity|differ")


def test_tampering_is_found():
    """A bit that changes on a drive."""
    found = r"copies of block \d+ differ|block \d+ in .* is wrong|parity is wrong"
    with pytest.raises(AssertionError, match=found):
        Run(1, features=frozenset({"medium"}), tamper=True).run()


def test_a_standstill_is_found(monkeypatch):
    """A command takes longer than it may, if nobody may wait for the ladder."""
    monkeypatch.setattr(Array, "longest_ns", lambda _: 1_000_000)
    find(monkeypatch, {"hang"}, "has taken")


def test_flushes_that_do_nothing_are_found(monkeypatch):
    """What was flushed is missing after a loss of power."""

    async def nothing(*_) -> None:
        pass

    monkeypatch.setattr(Nvme, "flush", nothing)
    find(monkeypatch, {"power"}, "is wrong")


def test_reads_that_store_nothing_are_found(monkeypatch):
    """What was read with FUA is missing after a loss of power."""
    read = Nvme.read

    async def without(nvme: Nvme, *arguments) -> None:
        await read(nvme, *arguments[:6])

    monkeypatch.setattr(Nvme, "read", without)
    monkeypatch.setattr("campaign.volume.FLUSHES", 0)
    monkeypatch.setattr("campaign.volume.FUAS", 0.5)
    find(monkeypatch, {"power"}, "is wrong", runs=24)


def test_writes_that_are_not_forced_are_found(monkeypatch):
    """An array loses power without a member. What was written with FUA is missing."""
    write = Nvme.write

    async def without(nvme: Nvme, *arguments) -> None:
        # The next to the last one is FUA.
        await write(nvme, *arguments[:5], False, *arguments[6:])

    monkeypatch.setattr(Nvme, "write", without)
    monkeypatch.setattr("campaign.power.DEGRADED", 1)
    find(monkeypatch, {"degraded"}, "is wrong")


def test_rows_that_are_not_repaired_are_found(monkeypatch):
    """A REPAIR that only checks."""
    start = background.start_job

    async def checks(nvme: Nvme, array: int, kind: WalkKind, **options) -> None:
        await start(nvme, array, WalkKind.CHECK if kind == WalkKind.REPAIR else kind, **options)

    monkeypatch.setattr(background, "start_job", checks)
    monkeypatch.setattr("campaign.power.MENDED", 1)
    find(monkeypatch, {"mended"}, "CHECK")


def test_flushes_past_tolerance_are_found(monkeypatch):
    """Success, and data is lost."""
    monkeypatch.setattr(Array, "longest_ns", lambda _: 1e9)
    flushed = Nvme.flush

    async def well(*arguments) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Nvme, "_check", staticmethod(lambda _, completion: completion))
            await flushed(*arguments)

    monkeypatch.setattr(Nvme, "flush", well)
    find(monkeypatch, {"past"}, "a flush has succeeded")


@pytest.mark.parametrize(
    ("opcode", "message"), [(WRITE_ZEROES, "is wrong"), (Io.COMPARE, "finds no difference")]
)
def test_commands_that_do_nothing_are_found(monkeypatch, opcode, message):
    """They succeed, and that is all."""
    send = Volume._send

    async def nothing(volume, what, command, *arguments) -> int:
        done = command.opcode == opcode
        return 0 if done else await send(volume, what, command, *arguments)

    monkeypatch.setattr(Volume, "_send", nothing)
    find(monkeypatch, {"others"}, message)


@pytest.mark.parametrize(
    ("status", "message"),
    [(0, "ranges beyond it are taken"), (LBA_OUT_OF_RANGE, "ranges that it has are refused")],
)
def test_ranges_that_are_judged_wrongly_are_found(monkeypatch, status, message):
    """Every Dataset Management ends alike."""
    send = Volume._send

    async def judge(volume, what, command, *arguments) -> int:
        ended = await send(volume, what, command, *arguments)
        return status if command.opcode == DATASET_MANAGEMENT else ended

    monkeypatch.setattr(Volume, "_send", judge)
    find(monkeypatch, {"others", "ranges"}, message)


def test_a_rebuild_before_rows_are_in_sync_is_found(monkeypatch):
    """The job that goes on when the drive has been replaced is called a REBUILD."""
    found = Array.job

    async def job(array: Array):
        job = await found(array)
        return replace(job, kind=WalkKind.REBUILD) if job.kind == WalkKind.RESYNC else job

    monkeypatch.setattr(Array, "job", job)
    monkeypatch.setattr("campaign.unfinished.SHARE", 1)
    find(monkeypatch, {"unfinished"}, "a REBUILD runs, and rows are not in sync")


def test_migrations_that_fail_for_no_reason_are_found(monkeypatch):
    """The new drive goes, and had no fault."""

    def pull(_, array: Array, position: int, port: int) -> None:
        array.card.harness.remove(port)

    monkeypatch.setattr(Faults, "plant_in_migration", pull)
    monkeypatch.setattr("campaign.members.MIGRATED", 1)
    monkeypatch.setattr("campaign.members.HIT", 1)
    find(monkeypatch, {"migrations", "mid-job"}, r"\d+ to \d+: Job")


def test_a_first_resync_that_does_not_go_on_is_found(monkeypatch):
    """It is stopped, and not resumed."""

    async def nothing(*_, **options) -> None:
        pass

    monkeypatch.setattr(background, "start_job", nothing)
    monkeypatch.setattr("campaign.lifetimes.GARBAGE", 1)
    monkeypatch.setattr("campaign.lifetimes.HIT", 1)
    find(monkeypatch, {"garbage", "mid-job", "hang"}, "it is not in sync")


def test_what_is_written_before_the_first_resync_is_found(monkeypatch):
    """A drive has other data by then."""

    def scribble(_, arrays: list[Array], count: int) -> None:
        for array in arrays:
            array.card.scribble(array.ports[0], array.rows)

    monkeypatch.setattr(Faults, "plant", scribble)
    monkeypatch.setattr("campaign.lifetimes.GARBAGE", 1)
    monkeypatch.setattr("campaign.lifetimes.HIT", 1)
    find(monkeypatch, {"garbage", "mid-job"}, "is wrong")


def test_a_job_without_an_end_is_found(monkeypatch):
    """It may take no time."""
    monkeypatch.setattr(Array, "job_ns", lambda _: 1)
    monkeypatch.setattr("campaign.jobs.SHARE", 1)
    find(monkeypatch, {"jobs"}, "a job has no end|rests at the rate")


def test_flushes_that_store_nothing_as_an_array_fails_are_found(monkeypatch):
    """A drive goes, and has none of what it had flushed."""
    remove = Harness.remove

    def forget(harness: Harness, port: int) -> None:
        remove(harness, port)
        for block in harness.written_blocks(port):
            harness.write_drive(port, block, bytes(4096))

    monkeypatch.setattr(Harness, "remove", forget)
    monkeypatch.setattr("campaign.past.UNDER_LOAD", 1)
    find(monkeypatch, {"failing"}, "was stored, and")


def test_flushes_of_arrays_that_fail_are_found(monkeypatch):
    """Success, and data is lost."""
    flushed = Nvme.flush

    async def well(*arguments) -> None:
        with suppress(NvmeError):
            await flushed(*arguments)

    monkeypatch.setattr(Nvme, "flush", well)
    monkeypatch.setattr("campaign.past.UNDER_LOAD", 1)
    find(monkeypatch, {"failing"}, "a flush has succeeded")


@pytest.mark.slow
def test_lost_blocks_that_are_read_after_a_salvage_are_found(monkeypatch):
    """They are as readable as before."""
    salvage = Salvage._salvage

    async def clear(self: Salvage, array: Array, rebuilt: int, row: int) -> None:
        await salvage(self, array, rebuilt, row)
        for one in range(array.rows):
            array.card.harness.clear_medium_error(array.ports[rebuilt], DATA_OFFSET_BLOCKS + one)

    monkeypatch.setattr(Salvage, "_salvage", clear)
    monkeypatch.setattr("campaign.salvage.SHARE", 1)
    monkeypatch.setattr("campaign.salvage.HEALED", 0)
    find(monkeypatch, {"salvage"}, "is wrong")


def test_requests_without_bus_mastering_are_found(monkeypatch):
    """It is never off."""
    set_status = Harness.set_status

    def ignore(harness: Harness, name: str, value: int) -> None:
        set_status(harness, name, value or name == "bus_master")

    monkeypatch.setattr(Harness, "set_status", ignore)
    monkeypatch.setattr("campaign.mastering.SHARE", 1)
    monkeypatch.setattr("campaign.mastering.OFF_NS", (100_000,))
    find(monkeypatch, {"master"}, r"sends \d+ requests while bus mastering is off")


def test_vectors_that_are_not_pending_are_found(monkeypatch):
    """The card forgets them while they are masked."""
    read32 = NativeTransport.read32

    async def forget(transport: NativeTransport, offset: int) -> int:
        return 0 if offset == PENDING_BITS else await read32(transport, offset)

    monkeypatch.setattr(NativeTransport, "read32", forget)
    monkeypatch.setattr("campaign.masks.SHARE", 1)
    monkeypatch.setattr("campaign.masks.MASKED_NS", (100_000,))
    find(monkeypatch, {"masks"}, "is raised and not told, and not pending")


def test_flushes_are_inside_as_drives_restart(monkeypatch):
    """Without them nothing would be asked of a Flush over a restart."""
    monkeypatch.setattr("campaign.torn.SHARE", 1)
    monkeypatch.setattr("campaign.torn.RESETS", 0)
    runs = (Run(seed, features=frozenset({"torn"})).run() for seed in range(SEED, SEED + 6))
    assert any(outcome.seen["flushes inside as drives restart"] for outcome in runs)


def test_jobs_are_under_way_as_their_rate_changes(monkeypatch):
    """Without them nothing would be asked of a job that may take all of the time."""
    monkeypatch.setattr("campaign.jobs.SHARE", 1)
    monkeypatch.setattr("campaign.jobs.RATED", 1)
    runs = (Run(seed, features=frozenset({"jobs"})).run() for seed in range(SEED, SEED + 6))
    assert any(outcome.seen["jobs that went on at once"] for outcome in runs)


def test_messages_while_the_function_is_masked_are_found(monkeypatch):
    """More messages are counted the later it is."""
    statistics = Harness.statistics

    def count(harness: Harness) -> dict[str, int]:
        return {**statistics(harness), "interrupts": int(harness.now_ns)}

    monkeypatch.setattr(Harness, "statistics", count)
    monkeypatch.setattr("campaign.masks.SHARE", 1)
    monkeypatch.setattr("campaign.masks.MASKED_NS", (100_000,))
    monkeypatch.setattr("campaign.masks.WAYS", ("function masked",))
    find(monkeypatch, {"masks"}, r"\d+ messages, function masked")


def test_messages_that_never_come_are_found(monkeypatch):
    """A vector stays masked."""
    switch = Masks._switch

    async def only_on(masks: Masks, way: str, vectors, *, on: bool) -> None:
        if on:
            await switch(masks, way, vectors, on=True)

    monkeypatch.setattr(Masks, "_switch", only_on)
    monkeypatch.setattr("campaign.masks.WAYS", ("vectors masked",))
    monkeypatch.setattr("campaign.masks.SHARE", 1)
    find(monkeypatch, {"masks"}, "has taken")


def test_aborts_that_lie_are_found(monkeypatch):
    """A command goes on, or ends well, though it has been aborted."""
    abort = Nvme.abort

    async def lie(*arguments) -> bool:
        await abort(*arguments)
        return True

    monkeypatch.setattr(Nvme, "abort", lie)
    find(monkeypatch, {"aborts", "hang"}, "ends before the command|were said to be aborted")


def test_what_an_old_array_writes_is_found(monkeypatch):
    """Blocks change as an array takes the place of another."""
    create = Array.create

    async def spoil(array: Array, **options) -> None:
        await create(array, **options)
        if array.volumes:
            array.card.scribble(array.ports[0], array.rows)

    monkeypatch.setattr(Array, "create", spoil)
    monkeypatch.setattr("campaign.lifetimes.WHOLE", 1)
    find(monkeypatch, {"delete"}, "is an old array's|is wrong")


# Blocks of which a write has failed


class Answers:
    """A card that ends each command as it is told, and whose memory is that of one buffer."""

    def __init__(self, statuses: list[int]):
        self.statuses = statuses
        self.random = random.Random(SEED)
        self.config = SIZES["usual"]
        self.transport = self.nvme = self.memory = self
        self.held = b""

    def write(self, *arguments) -> None:
        """Of the memory, or a command."""
        if len(arguments) == 2:
            self.held = arguments[1]

    def read(self, *arguments) -> bytes:
        return self.held

    def guard(self, *_) -> None:
        pass

    check_guard = guard

    def take_buffer(self) -> int:
        return 0

    def give_buffer(self, _) -> None:
        pass

    async def timed(self, *_) -> int:
        return self.statuses.pop(0)

    async def together(self, work) -> None:
        for one in work:
            await one


@pytest.mark.parametrize(
    ("wrong", "statuses"),
    [
        (False, (0, 0)),
        (False, (WRITE_FAULT, UNRECOVERED_READ)),
        (True, (0, UNRECOVERED_READ)),
        (True, (WRITE_FAULT, 0, UNRECOVERED_READ)),
    ],
)
def test_only_what_was_not_written_well_is_unreadable(wrong, statuses):
    """A write, and reads of all there is, of one block."""
    card = Answers([*statuses])
    volume = Volume(
        array=SimpleNamespace(card=card, lives=True),
        namespace=1,
        start=0,
        blocks=1,
        sector_bytes=4096,
        contents=[{bytes(4096)}],
    )

    async def scenario() -> None:
        await volume.write(0, 1, 0, 0, fua=False)
        while card.statuses:
            await volume.read_all(doubts=True)

    found = pytest.raises(AssertionError, match="0x281") if wrong else pytest.raises(StopIteration)
    with found:
        scenario().send(None)


# The command line


def test_features():
    assert selected([], []) == ALL
    assert selected(["power"], []) == {"power"}
    assert selected([], ["power"]) == ALL - {"power"}
    assert selected(["power", "past"], ["past"]) == {"power"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "must be a number from 1 on, not '0'"),
        (["--only", "power,fire"], "fire: take some of these, with commas between: medium,"),
        (["--only", "power pull"], "power pull: take some of"),
        (["--without", ""], "no name: take some of"),
        (["--only", "power", "--without", "power"], "no feature is left"),
        (["--seed", "abc"], "not 'abc'"),
    ],
)
def test_bad_arguments(monkeypatch, capsys, arguments, message):
    """One line."""
    monkeypatch.setattr(sys, "argv", ["campaign", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1 and message in error


def test_command_line(monkeypatch, capsys):
    """A failing run says how to repeat it."""
    monkeypatch.setattr(Array, "longest_ns", lambda _: 1)
    options = ["--runs", "2", "--seed", "2", "--processes", "1", "--only", "hang,medium"]
    monkeypatch.setattr(sys, "argv", ["campaign", *options])
    assert command.main() == 1
    error = capsys.readouterr().err
    assert "repeat with: make campaign RUNS=1 SEED=2 ONLY=hang,medium\n" in error
    monkeypatch.setattr(sys, "argv", ["campaign", *options, "--keep-going"])
    assert command.main() == 1
    output, error = capsys.readouterr()
    assert error.count("repeat with") == 2 and "2 more have failed" in output


def test_processes(monkeypatch, capsys):
    """Two runs at once have the counts of one after the other."""
    ends = []
    for processes in ("1", "2"):
        options = ["--runs", "2", "--seed", str(SEED + 4), "--processes", processes]
        monkeypatch.setattr(sys, "argv", ["campaign", *options, "--only", "medium,hang,volumes"])
        assert command.main() == 0
        ends.append(re.sub(r"in .* s \(.*\)", "", capsys.readouterr().out))
    assert ends[0] == ends[1] and "nothing lost" in ends[0]
