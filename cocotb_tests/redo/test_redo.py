"""The backup unit on drive ports: what it saves as the power fails, and replays as it comes."""

import os
from collections.abc import Sequence
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.planted import planted
from cocotb_tests.redo.redo_bench import (
    BACKUP_BLOCKS,
    LEAST,
    MOST_RECORDS,
    OVERHEAD,
    PORTS,
    WAIT_CYCLES,
    Bench,
    damage,
    shuffle_disks,
    trouble_drive,
    trouble_flash,
)
from cocotb_tests.redo.redo_room import SIZES, RedoRoom
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, sample, start
from hdl.redo.page_writer import PageWriter
from hdl.redo.redo import Redo
from hdl.redo.replay import Replay
from hdl.redo.saver import Saver
from sim.golden import redo as golden

DAMAGES = (
    "head", "list", "data", "data", "unreadable", "unreadable", "other list", "odd head",
    "few lists", "many records",
)  # fmt: skip


async def replay(bench: Bench, kind: str) -> None:
    """The power comes. ``kind``: what happens meanwhile."""
    dut, choose, flash = bench.dut, bench.random, bench.flash
    await bench.power_comes()
    shuffle_disks(bench)
    await bench.plant_all(bench.at)
    if kind == "damaged":
        damage(bench, choose.choice(DAMAGES))
    for drive in bench.drives:
        drive.counts.history.clear()
    wanted = bench.judge()
    if kind == "refuses":
        due = [(port, block) for port, blocks in wanted.writes.items() for block in blocks]
        if due:
            port, block = choose.choice(due)
            bench.drives[port].bad_writes = {block}
            wanted = bench.judge()
            bench.seen["refused"] += 1
    away: set[int] = set()
    exact = True
    if kind in ("late", "absent", "small"):
        if kind == "small":
            dut.drives__3__capacity.value = choose.randrange(BACKUP_BLOCKS)
        else:
            flash.remove()
    energy = choose.choice((0, LEAST - 1, LEAST, choose.randrange(LEAST, 900), 1 << 31))
    dut.pins__energy_blocks.value = energy
    dut.rst.value = 0
    dut.wanted.value = choose.randrange(2)
    surveys = cocotb.start_soon(bench.survey())
    if kind in ("late", "absent", "small"):
        await cycles_pass(dut.clk, 1000)
        bench.now += WAIT_CYCLES - 2000 - choose.randrange(10)
        await cycles_pass(dut.clk, 400)
        assert not sample(dut.done) and not sample(dut.gives_up), "the flash is not waited for"
        if kind == "late":
            flash.insert()
        else:
            wanted = type(wanted)()
            await cycles_pass(dut.clk, 1000)
            assert sample(dut.gives_up), "it still waits for the flash"
        bench.seen[f"the flash is {kind}"] += 1
    trouble = None
    if kind == "power fails":
        trouble = cocotb.start_soon(fail_early(bench))
    elif kind.startswith("flash "):
        exact = kind == "flash restarts"
        trouble = cocotb.start_soon(trouble_flash(bench, kind.removeprefix("flash ")))
    elif kind.startswith("drive "):
        exact = kind == "drive restarts"
        trouble = cocotb.start_soon(trouble_drive(bench, kind.removeprefix("drive "), away))
    await surveys
    await bench.end_of_replay()
    if trouble is not None:
        await trouble
    bench.check_replay(wanted, exact=exact, away=frozenset(away))
    bench.seen["covered"] += bool(sample(dut.covered))
    bench.seen["blocks replayed"] += sum(len(drive.storage) for drive in bench.drives)
    there = not sample(dut.gives_up)
    assert there == (kind not in ("absent", "small", "flash goes", "flash hangs")) or (
        kind.startswith("flash ")
    )
    await bench.check_limit(energy, there=there)
    # Drives are covered until they are used, or go.
    before = sample(dut.covered)
    port = choose.choice(PORTS)
    if choose.random() < 0.3 and kind != "drive exchanged":
        if choose.random() < 0.5:
            dut.used.value = 1 << port
        else:
            bench.know(bench.known & ~(1 << port))
        await cycles_pass(dut.clk, 3)
        dut.used.value = 0
        await cycles_pass(dut.clk, 3)
        assert sample(dut.covered) == before & ~(1 << port), "covered, though used or gone"


async def fail_early(bench: Bench) -> None:
    """The power fails before all has been replayed. The record stays as it is."""
    dut = bench.dut
    await cycles_pass(dut.clk, bench.random.randrange(6000))
    if sample(dut.done):
        return
    held = dict(bench.flash.storage)
    dut.pins__power_fail.value = 1
    await cycles_pass(dut.clk, 3)
    assert sample(dut.recalls) and sample(dut.pins__saved), "it does not end at once"
    dut.wanted.value = 1
    await cycles_pass(dut.clk, 3000)
    assert sample(dut.pins__saved) and bench.flash.storage == held, "something was saved"
    bench.seen["the power failed early"] += 1


async def save(bench: Bench, kind: str, count: int) -> None:
    """The power fails. ``kind``: what happens meanwhile."""
    dut, choose, flash = bench.dut, bench.random, bench.flash
    for port in PORTS:
        bench.homes[port] = choose.randrange(SIZES.arrays)
    for port in PORTS:  # those that the replay has found gone are new ones
        if not bench.drives[port].present or port not in bench.at:
            bench.at[port] = bench._disk()
            bench.drives[port].insert()
    await bench.plant_all(bench.at)
    enabled = kind != "not enabled"
    there = not sample(dut.gives_up)
    if enabled:
        dut.wanted.value = 1
        await cycles_pass(dut.clk, 3)
        if choose.random() < 0.3:
            dut.wanted.value = 0
    await bench.fill_lines(choose.randint(1, 12))
    energy = choose.randrange(max(LEAST, count + OVERHEAD), BACKUP_BLOCKS + 100)
    if kind == "no energy":
        energy = choose.randrange(LEAST)
    for some in (choose.randrange(1000), 0, 1 << 31, energy):
        dut.pins__energy_blocks.value = some
        await bench.check_limit(some, there=there)
    if kind == "flash away" and there:
        flash.remove()
        await cycles_pass(dut.clk, 3)
        flash.insert()
        there = False
        await bench.check_limit(energy, there=False)
    records = bench.some_records(count)
    sound = choose.getrandbits(3) | choose.getrandbits(3)
    dut.sound.value = sound
    trusted = await bench.trusted()
    members = bench.members(sound, trusted)
    if kind == "refuses":
        lists = -(-count // 255)
        flash.bad_writes = {choose.choice([*range(lists + 1), *range(OVERHEAD, OVERHEAD + count)])}
    before = dict(flash.storage)
    first = len(flash.counts.history)
    await cycles_pass(dut.clk, choose.randrange(20))
    dut.pins__power_fail.value = 1
    tells = cocotb.start_soon(bench.recall(records))
    if choose.random() < 0.5:  # drives lose their power before the card does
        await cycles_pass(dut.clk, choose.randint(1, 4000))
        dut.sound.value = dut.steady.value = 0
        for drive in choose.sample(bench.drives, choose.randrange(4)):
            drive.remove()
        bench.seen["drives went in a save"] += 1
    if choose.random() < 0.3:
        await cycles_pass(dut.clk, 3)
        dut.pins__power_fail.value = 0
    saves = enabled and there and energy >= LEAST
    if not saves:
        await cycles_pass(dut.clk, 4000)
        assert sample(dut.recalls)
        assert sample(dut.pins__saved) == (not enabled)
        assert flash.storage == before, "something was saved"
        assert len(flash.counts.history) == first
        bench.seen[f"nothing saved: {kind}"] += 1
        tells.cancel()
        return
    if kind == "flash restarts":
        for _ in range(choose.choice((1, 1, 2))):
            await restart_flash(bench, first, count)
    fails = kind == "refuses" or count > MOST_RECORDS
    ends = dut.failed if fails else dut.pins__saved
    await bench.until(lambda: bool(sample(ends)), f"{kind}: an end", 20_000 + 12_000 * (count + 8))
    assert not (sample(dut.pins__saved) and sample(dut.failed))
    flash.power_off()
    tells.cancel()
    if fails:
        bench.seen["could not be saved"] += 1
        return
    assert sample(dut.reads)
    for where, content in bench.expected_pages(records, members).items():
        assert flash.storage.get(where) == content, f"block {where} of the flash is wrong"
    record = golden.read(flash.storage, overhead=OVERHEAD)
    assert record is not None and record.whole
    found = [(one.array, one.port, one.block, one.data) for one in record.blocks]
    assert found == [
        (array, port, block, bench.lines[line]) for array, port, block, line in records
    ]
    if kind == "normal":
        check_order(flash.counts.history[first:], count)
    bench.seen["saved"] += 1
    bench.seen["blocks saved"] += count
    bench.seen["several lists"] += count > 255


async def restart_flash(bench: Bench, first: int, count: int) -> None:
    """The flash restarts while something is written to it."""
    dut, choose, flash = bench.dut, bench.random, bench.flash
    lists = -(-count // 255)
    target = first + choose.randint(1, lists + 1 + max(1, count // 4))
    for _ in range(12_000 * (count + 8)):
        busy = len(flash.counts.history) >= target and not flash.idle
        if busy or sample(dut.pins__saved):
            break
        await RisingEdge(dut.clk)
    if choose.random() < 0.3:  # there may be nothing inside
        await cycles_pass(dut.clk, choose.randrange(2000))
    if not sample(dut.pins__saved):
        await flash.restart()
        bench.seen["the flash restarted in a save"] += 1


def check_order(history: list, count: int) -> None:
    """Lists first, then the head, then the blocks, then a flush."""
    lists = -(-count // 255)
    assert history[-1][0] == "FLUSH" and sum(one[0] == "FLUSH" for one in history) == 1
    written = [
        block for _, start, blocks, _ in history[:-1] for block in range(start, start + blocks)
    ]
    assert all(one[0] == "WRITE" for one in history[:-1]), history
    assert written[: lists + 1] == [*range(1, lists + 1), 0], written
    assert sorted(written[lists + 1 :]) == [*range(OVERHEAD, OVERHEAD + count)], written


REPLAYS = (
    "plain", "plain", "damaged", "damaged", "damaged", "damaged", "refuses", "late", "absent",
    "small", "flash goes", "flash hangs", "flash restarts", "drive goes", "drive restarts",
    "drive exchanged", "drive exchanged", "power fails",
)  # fmt: skip
SMALL = replace(SIZES, backup_blocks=24)
SAVES = (
    *["normal"] * 10, "not enabled", "no energy", "flash away", "flash restarts",
    "flash restarts", "refuses",
)  # fmt: skip


@cocotb.test(timeout_time=400, timeout_unit="ms")
async def what_is_saved_is_replayed(dut):
    """The power fails again and again, with whatever is on its way."""
    bench = Bench(dut)
    choose = bench.random
    await start(dut)
    replays, saves = (os.environ[name].split(",") for name in ("REPLAYS", "SAVES"))
    most, many = int(os.environ["MOST"]), int(os.environ["MANY"])
    for number in range(int(os.environ["ROUNDS"])):
        what, kind = choose.choice(replays), choose.choice(saves)
        count = choose.choice((0, 1, 3, choose.randint(1, 13), choose.randint(1, most)))
        if many and number == 0:  # several lists
            what, kind, count = "plain", "normal", many
        if not count and kind == "refuses":
            kind = "normal"
        dut._log.info("%s, %s of %s", what, kind, count)
        await replay(bench, what)
        if not sample(dut.recalls):
            await save(bench, kind, count)
    await replay(bench, "plain")
    dut._log.info("%s", dict(bench.seen))
    bench.watch.check()


@cocotb.test(timeout_time=400, timeout_unit="ms")
async def no_more_is_saved_than_fits(dut):
    """There was no limit for a while, as there was little energy, and then there is enough."""
    bench = Bench(dut)
    await start(dut)
    for count in (MOST_RECORDS + 1, MOST_RECORDS, MOST_RECORDS + 6):
        await replay(bench, "plain")
        await save(bench, "normal", count)
    await replay(bench, "plain")
    assert bench.seen["could not be saved"] == 2


def run(
    name: str,
    redo: type = Redo,
    *,
    rounds: int,
    seed: int = 1,
    many: int = 0,
    most: int = 40,
    replays: Sequence[str] = REPLAYS,
    saves: Sequence[str] = SAVES,
) -> None:
    """``many``: so many blocks are saved at first. ``most``: and so many later."""
    simulate(
        RedoRoom(config=SIZES, redo=redo),
        name=name,
        module=__name__,
        testcase="what_is_saved_is_replayed",
        seed=seed,
        parameters={
            "ROUNDS": str(rounds),
            "MANY": str(many),
            "MOST": str(most),
            "REPLAYS": ",".join(replays),
            "SAVES": ",".join(saves),
        },
    )


def run_small(name: str, redo: type = Redo) -> None:
    """With a flash that has room for few blocks."""
    simulate(
        RedoRoom(config=SMALL, redo=redo),
        name=name,
        module=__name__,
        testcase="no_more_is_saved_than_fits",
        parameters={"BACKUP_BLOCKS": str(SMALL.backup_blocks)},
    )


def with_part(name: str, part: type) -> type:
    """`Redo` with another part."""

    class Other(Redo):
        def __init__(self, *, config):
            super().__init__(config=config)
            setattr(self, name, part(config=config))

    return Other


def replaying(method: str, old: str, new: str) -> type:
    """`Redo` with a bug in its `Replay`."""
    return with_part("_replay", planted(Replay, method, old, new))


def saving(method: str, old: str, new: str) -> type:
    """`Redo` with a bug in its `Saver`."""
    return with_part("_saver", planted(Saver, method, old, new))


class CachesPages(Saver):
    """A planted bug: lists and head are not stored with FUA."""

    def __init__(self, *, config):
        super().__init__(config=config)
        self._page = planted(PageWriter, "elaborate", "sent.fua.eq(1),", "")(config=config)


PLAIN, DAMAGED, DRIVES = ("plain",), ("damaged",), ("drive goes", "drive exchanged")
NORMAL = ("normal",)

BUGS = {
    # What is read of the flash.
    "the sum of a block is not compared": (
        lambda: replaying("_check", "(self._crc.crc != block.sum) | away", "away"),
        DAMAGED, NORMAL,
    ),
    "the sum of a list is not compared": (
        lambda: replaying("_parse_list", "word != self._sums.reads[0].data", "0"),
        DAMAGED, NORMAL,
    ),
    "pages need not add up": (
        lambda: replaying("_end_page", "~self._crc.match_detected", "0"), DAMAGED, NORMAL,
    ),
    "blocks that no list names are not missed": (
        lambda: replaying("_end_page", "self._next < self._records", "0"), DAMAGED, NORMAL,
    ),
    # Which drives there are.
    "a member is found though its events differ": (
        lambda: replaying(
            "_compare", "self.kept_read.data != words.payload",
            "(self.kept_read.data != words.payload) & (place != 5)",
        ),
        PLAIN, NORMAL,
    ),
    "the port of then": (
        lambda: replaying("_start", "data=listed, port=drive.port", "data=listed"),
        PLAIN, NORMAL,
    ),
    "an absent drive spoils its array": (
        lambda: replaying(
            "_start", "m.d.sync += goes_on\n",
            "m.d.sync += [*goes_on, self._spoilt.bit_select(listed.array, 1).eq(1)]\n",
        ),
        PLAIN, NORMAL,
    ),
    "blocks of an absent drive are not passed over": (
        lambda: replaying("_start", "m.d.sync += goes_on\n", "m.d.sync += goes_on[0]\n"),
        PLAIN, NORMAL,
    ),
    "a drive that has been away is as good as ever": (
        lambda: replaying("_watch", "self._away | ~self.known", "self._away"), DRIVES, NORMAL,
    ),
    "what waits for a drive goes to another one": (
        lambda: replaying("_watch", "reduce(or_, targets) & self._away", "0"), DRIVES, NORMAL,
    ),
    # What is written to them.
    "an array that was not trusted is covered": (
        lambda: replaying("_compare", ".eq(self._trusted)", ".eq(1)"), PLAIN, NORMAL,
    ),
    "a block that is refused does not matter": (
        lambda: replaying("_hear", "self._owners[line], 1).eq(1)", "self._owners[line], 1).eq(0)"),
        ("refuses",), NORMAL,
    ),
    "a restart is the end": (
        lambda: replaying("_end", "self._again &", "0 &"),
        ("drive restarts", "flash restarts"), NORMAL,
    ),
    "blocks are cached": (
        lambda: replaying("_check", "sent.fua.eq(1)", "sent.fua.eq(0)"), PLAIN, NORMAL,
    ),
    # What is saved.
    "the flush is left out": (
        lambda: saving("_write_blocks", 'm.next = "FLUSH"', 'm.next = "SAVED"'), PLAIN, NORMAL,
    ),
    "pages are cached": (
        lambda: with_part("_saver", CachesPages), PLAIN, ("flash restarts",),
    ),
    "a block that the flash refuses does not matter": (
        lambda: saving("_connect", "refused | self.restarted", "self.restarted"),
        PLAIN, ("refuses",),
    ),
    "members without their arrays": (
        lambda: saving("_write_head", "Const(0, 6), array)", "Const(0, 6))"), PLAIN, NORMAL,
    ),
    # When, and how much.
    "it saves before it is enabled": (
        lambda: planted(Redo, "_save", "self._enabled & self._enough", "self._enough"),
        PLAIN, ("not enabled",),
    ),
    "it is enabled before all is replayed": (
        lambda: planted(Redo, "_save", "self.wanted & replay.done", "self.wanted"),
        PLAIN, ("normal", "not enabled"),
    ),
    "the limit is not lowered": (
        lambda: planted(
            Redo, "_limit", "Mux(pins.energy_blocks < blocks, pins.energy_blocks, blocks)", "blocks"
        ),
        PLAIN, NORMAL,
    ),
    "the head needs no room": (
        lambda: planted(Redo, "_limit", "room - config.backup_overhead", "room"), PLAIN, NORMAL,
    ),
    "what is written during a flush counts as stored": (
        lambda: planted(Redo, "_watch_arrays", "flushed & ~exposes", "flushed"), PLAIN, NORMAL,
    ),
    "what walks write counts as stored": (
        lambda: planted(Redo, "_watch_arrays", "~exposed & ~walked", "~exposed"), PLAIN, NORMAL,
    ),
    "a job that is done proves what the host has written": (
        lambda: planted(
            Redo, "_watch_arrays", "(exposed & ~stored)", "(exposed & ~(stored | proven))"
        ),
        PLAIN, NORMAL,
    ),
    "drives that lose their power are none": (
        lambda: planted(Redo, "_share", "sound.eq(self._sound)", "sound.eq(self.sound)"),
        PLAIN, NORMAL,
    ),
}  # fmt: skip


TRIES = 4
"""Seeds with which a bug must be found."""


@pytest.mark.parametrize("seed", [1, 2])
def test_redo(seed):
    run(f"redo_{seed}", seed=seed, rounds=12, many=260 if seed == 2 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 9))
def test_redo_for_long(seed):
    run(f"redo_{seed}", seed=seed, rounds=40, many=(0, 255, 256)[seed % 3])


def test_a_small_flash():
    run_small("redo_small")


@pytest.mark.slow
def test_records_that_do_not_fit_are_found():
    """A bug is found: the record is written over its end."""
    redo = saving("_list", "self._config.backup_blocks - overhead - 1", "-1")
    with pytest.raises(SimulationError, match="failed: no_more_is_saved_than_fits"):
        run_small("redo_too_many", redo)


def must_find(bug: str) -> None:
    """A bug is found with one of a few seeds."""
    redo, replays, saves = BUGS[bug]
    found = "nothing"
    for seed in range(1, 1 + TRIES):
        try:
            run(
                f"redo_{bug.replace(' ', '_')}", redo(), rounds=40, most=13, replays=replays,
                saves=saves, seed=seed,
            )  # fmt: skip
        except SimulationError as error:
            found = str(error)
            break
    assert "failed: what_is_saved_is_replayed" in found, f"{bug}: {found}"


@pytest.mark.parametrize("bug", [*BUGS][:1])
def test_a_planted_bug_is_found(bug):
    must_find(bug)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [*BUGS][1:])
def test_planted_bugs_are_found(bug):
    must_find(bug)
