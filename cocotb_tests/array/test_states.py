"""States of arrays against what the reference layout says of every block."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import RisingEdge

from cocotb_tests.array.array_models import Table, pack_geometry
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, pack, sample, start, unpack, wait_until
from hdl.array.states import ArrayStates
from hdl.config import MAX_DRIVES, Config, small
from hdl.flow.array_state import ArrayState, array_verdict
from hdl.flow.table_read import migration
from sim.card.layouts import random_layout
from sim.golden.layout import Layout

CONFIGS = {"board": Config(), "small": small()}
ROUNDS = 60
CYCLES = 12_000


def lost_blocks(layout: Layout, bad: set[int]) -> bool:
    """Whether a block is lost when members ``bad`` are."""
    if layout.parities:
        spans = [position // layout.width for position in bad]
        return any(spans.count(span) > layout.parities for span in set(spans))
    # Copies repeat after as many stripes as there are drives.
    blocks = layout.width * layout.strip_blocks * layout.width
    return any(
        all(place.position in bad for place in layout.copies_of(block))
        for block in range(0, blocks, layout.strip_blocks)
    )


def golden_state(layout: Layout, bad: set[int]) -> ArrayState:
    """By trying: what is lost, and what would be with one more drive."""
    if lost_blocks(layout, bad):
        return ArrayState.FAILED
    if not bad:
        return ArrayState.OPTIMAL
    more = [position for position in range(layout.drives) if position not in bad]
    # One more anywhere near a drive that is lost; elsewhere nothing has changed.
    for position in more:
        if lost_blocks(layout, bad | {position}) and not lost_blocks(layout, {position}):
            return ArrayState.DEGRADED
    return ArrayState.PARTIALLY_DEGRADED


def golden_needed(layout: Layout, lost: set[int], suspects: set[int]) -> set[int]:
    """The suspects without which blocks are lost that some of the other members have."""
    bad = lost | suspects
    if layout.parities:
        spans = [position // layout.width for position in bad]
        return {p for p in suspects - lost if spans.count(p // layout.width) > layout.parities}
    blocks = layout.width * layout.strip_blocks * layout.width
    needed = set()
    for block in range(0, blocks, layout.strip_blocks):
        copies = {place.position for place in layout.copies_of(block)}
        if copies <= bad:
            needed |= copies & suspects - lost
    return needed


def golden_groups(layout: Layout) -> set[frozenset[int]]:
    """Members that can replace each other: of a span, or those with copies of one strip."""
    if layout.parities:
        return {
            frozenset(range(span * layout.width, (span + 1) * layout.width))
            for span in range(layout.spans)
        }
    blocks = layout.width * layout.strip_blocks * layout.width
    return {
        frozenset(place.position for place in layout.copies_of(block))
        for block in range(0, blocks, layout.strip_blocks)
    }


class Bench:
    """Tables, drives, and the states that must follow."""

    def __init__(self, dut, config: Config):
        self.dut = dut
        self.config = config
        self.geometries = Table(dut, "geometry_read")
        self.members = Table(dut, "member_read")
        self.migrations = Table(dut, "migration_read")
        self.migrating: dict[int, tuple[int, int]] = {}
        self.arrays: dict[int, tuple[Layout, list[int]]] = {}
        self.judged: dict[int, dict] = {}
        self.decided: dict[int, tuple[int, int]] = {}
        self.yielded = 0
        self.news = 0
        self.inconsistent = 0
        dut.changed.value = dut.inconsistent.value = 0
        for name in ("failed", "stale", "suspect", "kept", "returns"):
            getattr(dut, f"drives__{name}").value = 0
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        shape = array_verdict(self.config)
        while True:
            await RisingEdge(self.dut.clk)
            self.news += sample(self.dut.verdicts__news)
            if sample(self.dut.verdicts__judged):
                seen = unpack(shape, sample(self.dut.verdicts__verdict))
                self.judged[seen.array] = seen
                self.decided[seen.array] = sample(self.dut.yields), sample(self.dut.keeps)
                self.yielded |= self.decided[seen.array][0]

    def create(self, array: int, layout: Layout, ports: list[int]) -> None:
        self.arrays[array] = layout, ports
        rows = 4 * layout.strip_blocks
        self.geometries.entries[array] = pack_geometry(self.config, layout, rows)
        for position, port in enumerate(ports):
            self.members.entries[array << 5 | position] = port

    def migrate(self, array: int, position: int, port: int) -> None:
        """The member at ``position`` migrates to ``port``."""
        fields = {"valid": 1, "position": position, "port": port}
        self.migrating[array] = position, port
        self.migrations.entries[array] = pack(migration(self.config), **fields)

    def delete(self, array: int) -> None:
        self.migrating.pop(array, None)
        self.migrations.entries.pop(array, None)
        self.arrays.pop(array, None)
        self.geometries.entries.pop(array, None)

    async def judge(self, failed: int, stale: int, suspect: int = 0) -> None:
        """Pulses ``changed``, waits, and compares every array."""
        dut = self.dut
        dut.drives__failed.value, dut.drives__stale.value, dut.changed.value = failed, stale, 1
        dut.drives__suspect.value, dut.inconsistent.value = suspect, self.inconsistent
        await RisingEdge(dut.clk)
        dut.changed.value = 0
        await RisingEdge(dut.clk)
        settled = dut.verdicts__settled
        await wait_until(dut, lambda: sample(settled), cycles=CYCLES, what="states")
        assert sample(dut.busy) == 0
        states, valid = sample(dut.verdicts__states), sample(dut.verdicts__valid)
        essential: set[int] = set()
        for array in range(self.config.arrays):
            assert valid >> array & 1 == (array in self.arrays)
            if array not in self.arrays:
                continue
            layout, ports = self.arrays[array]
            gone = [position for position, port in enumerate(ports) if failed >> port & 1]
            behind = [position for position, port in enumerate(ports) if stale >> port & 1]
            wanted = golden_state(layout, {*gone, *behind})
            where = f"{layout} lost {gone} stale {behind}"
            assert states >> 2 * array & 3 == wanted.value, where
            seen = self.judged[array]
            assert seen.missing == bool(gone) and seen.rebuilding == bool(behind), where
            assert not gone or seen.position in gone, where
            moved = self.migrating.get(array)
            halted = moved and (moved[0] in gone or failed >> moved[1] & 1)
            assert seen.halted == bool(halted), f"{where} migration {moved}"
            doubted = {
                position
                for position, port in enumerate(ports)
                if (suspect & ~failed) >> port & 1
            }
            needed = golden_needed(layout, {*gone, *behind}, doubted)
            inconsistent = self.inconsistent >> array & 1
            if inconsistent:
                needed = doubted - {*gone, *behind}
            kept = sum(1 << ports[position] for position in needed)
            yielded = sum(1 << ports[position] for position in doubted)
            if moved:
                yielded |= suspect & 1 << moved[1]
            where = f"{where} suspect {sorted(doubted)} migration {moved}"
            assert self.decided[array] == (yielded & ~kept, kept), where
            known = sample(self.dut.drives__kept)
            assert seen.loses == bool(kept & ~known), where
            assert seen.redundant == bool(layout.parities or layout.copies > 1), where
            bad = {*gone, *behind}
            tolerated = layout.parities or layout.copies - 1
            for group in golden_groups(layout):
                # Suspect drives may be of no use, and what they have may be needed.
                if inconsistent or len((bad | doubted) & group) >= tolerated:
                    essential |= {ports[position] for position in group - bad}
                    if moved and moved[0] in group & {*gone} and not failed >> moved[1] & 1:
                        essential.add(moved[1])
        said = sample(dut.essential)
        assert said == sum(1 << port for port in essential), f"{said:#x} {sorted(essential)}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def judges_like_the_reference(dut):
    generator = random.Random(int(os.environ["SEED"]))
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config)
    await start(dut)
    seen = dict.fromkeys(ArrayState, 0)
    for _ in range(ROUNDS):
        for array in range(config.arrays):
            bench.delete(array)
            if generator.random() < 0.6:
                layout = random_layout(generator, drives=generator.choice((6, 12, 24)))
                ports = generator.sample(range(MAX_DRIVES), layout.drives)
                bench.create(array, layout, ports)
                if generator.random() < 0.5:
                    position = generator.randrange(layout.drives)
                    bench.migrate(array, position, generator.randrange(MAX_DRIVES))
        count = generator.choice((0, 1, 2, 3, 6))
        bad = generator.sample(range(MAX_DRIVES), count)
        behind = [port for port in bad if generator.random() < 0.3]
        stale = sum(1 << port for port in behind)
        bench.inconsistent = generator.getrandbits(config.arrays) & -generator.getrandbits(1)
        await bench.judge(sum(1 << port for port in bad) & ~stale, stale)
        for array in bench.arrays:
            seen[ArrayState(sample(dut.verdicts__states) >> 2 * array & 3)] += 1
    dut._log.info("seen: %s", {state.name: count for state, count in seen.items()})
    assert all(seen.values())


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def keeps_who_is_needed(dut):
    """Several drives restart at once, some of which were stale already: who is given up?"""
    generator = random.Random(int(os.environ["SEED"]))
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config)
    await start(dut)
    kept = yielded = stale_ones = 0
    for _ in range(ROUNDS):
        layout = random_layout(generator, drives=generator.choice((4, 6, 12)))
        ports = generator.sample(range(MAX_DRIVES), layout.drives)
        bench.delete(0)
        bench.create(0, layout, ports)
        if generator.random() < 0.3:
            others = [port for port in range(MAX_DRIVES) if port not in ports]
            bench.migrate(0, generator.randrange(layout.drives), generator.choice(others))
        masks = []
        for most in (1, 2, 3):
            count = generator.randint(0, min(most, layout.drives))
            masks.append(sum(1 << port for port in generator.sample(ports, count)))
        failed, stale, suspect = masks
        if generator.random() < 0.3:
            suspect |= stale
        dut.drives__kept.value = suspect & generator.getrandbits(MAX_DRIVES)
        bench.inconsistent = generator.random() < 0.3
        await bench.judge(failed, stale & ~failed, suspect)
        yields, keeps = bench.decided[0]
        kept += bool(keeps)
        yielded += bool(yields)
        stale_ones += bool(keeps and yields & stale)
    assert kept > ROUNDS // 10 and yielded > ROUNDS // 10 and stale_ones


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def takes_no_member_for_homeless(dut):
    """The host is told of drives that are needed while they are judged, and then they restart once
    more. They stay members, whatever had been counted at each moment."""
    bench = Bench(dut, CONFIGS[os.environ["CONFIG"]])
    await start(dut)
    ports = [4, 0, 2]
    everyone = sum(1 << port for port in ports)
    bench.create(1, Layout("RAID0", 3, 4), ports)
    dut.drives__kept.value = everyone
    settled = dut.verdicts__settled
    for good in range(1, 40):
        for suspect_again in (1, 2, 9, 30):
            await bench.judge(0, 0, everyone)
            dut.changed.value = 1
            await RisingEdge(dut.clk)
            dut.changed.value = 0
            await cycles_pass(dut.clk, good)
            dut.drives__suspect.value = 0
            await cycles_pass(dut.clk, suspect_again)
            dut.drives__suspect.value = everyone
            await RisingEdge(dut.clk)
            await wait_until(dut, lambda: sample(settled), cycles=CYCLES, what="states")
            assert not bench.yielded, f"{bench.yielded:#x} yield: {good}, {suspect_again}"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def judges_anew_what_gets_inconsistent(dut):
    """An array that gets inconsistent can spare no drive any more, until it is made right. Nothing
    else has changed."""
    bench = Bench(dut, CONFIGS[os.environ["CONFIG"]])
    await start(dut)
    bench.create(1, Layout("RAID6", 6, 4), list(range(6)))
    await bench.judge(0, 0)
    settled = dut.verdicts__settled
    for inconsistent, essential in ((0b01, 0), (0b10, 0x3F), (0b11, 0x3F), (0, 0)):
        dut.inconsistent.value = inconsistent
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        assert not sample(settled)
        await wait_until(dut, lambda: sample(settled), cycles=CYCLES, what="states")
        assert sample(dut.essential) == essential


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def tells_news_once(dut):
    bench = Bench(dut, CONFIGS[os.environ["CONFIG"]])
    await start(dut)
    bench.create(0, Layout("RAID5", 4, 4), [0, 1, 2, 3])
    bench.create(1, Layout("RAID1", 3, 4), [4, 5, 6])
    for failed, stale, news in (
        (0, 0, 0),
        (0b1, 0, 1),
        (0b1, 0, 0),
        (0, 0b1, 0),
        (0b10001, 0, 1),
        (0b100000, 0, 1),
        (0, 0, 1),
        (0, 0, 0),
    ):
        before = bench.news
        await bench.judge(failed, stale)
        assert bench.news - before == news, f"{failed:#b} {stale:#b}"


@pytest.mark.parametrize("config", CONFIGS)
def test_states(config):
    simulate(
        ArrayStates(config=CONFIGS[config]),
        name=f"states_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


class StaleIsGood(ArrayStates):
    """Planted bug: a drive counts as soon as its rebuild has begun."""

    def elaborate(self, platform) -> Module:
        hidden = self.drives.stale
        self.drives.stale = hidden & 0
        try:
            return super().elaborate(platform)
        finally:
            self.drives.stale = hidden


def test_planted_bug_is_found():
    with pytest.raises(SimulationError, match="judges_like_the_reference"):
        simulate(
            StaleIsGood(config=CONFIGS["board"]),
            name="states_stale_is_good",
            module=__name__,
            testcase="judges_like_the_reference",
            parameters={"CONFIG": "board"},
        )
