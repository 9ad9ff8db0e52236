"""Arrays that are brought up: who is which member is said, and the tables hold what the model does.
"""

import os
import random
from collections import Counter

import cocotb
import pytest
from amaranth.hdl import Module, Mux
from cocotb.triggers import RisingEdge

from cocotb_tests.array.tables_bench import METADATA, Bench, run_tables, this_config
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import TableServer, pack, sample, start
from hdl.array.tables.missing import Missing
from hdl.array.tables.tables import ArrayTables
from hdl.config import DATA_OFFSET_BLOCKS, MAX_DRIVES, Config
from hdl.flow.geometry import Level
from hdl.flow.manage import ManageOpcode, ManageStatus
from hdl.flow.table_read import placed_member
from sim.card.layouts import rotation_of_name
from sim.golden.layout import MIRRORED, PARITIES, rotations

CHANGES = 2000
TOLERANT = (Level.RAID1, Level.RAID10, Level.RAID6, Level.RAIDTP)
LEAST = {Level.RAID5: 3, Level.RAID6: 4, Level.RAIDTP: 5}
"""Drives of a span, where two are too few."""
CASES = (
    "failed there",
    "stale",
    "away",
    "no such port",
    "few blocks",
    "data begins late",
    "turned round",
    "small stranger",
)
"""What arrays that are brought up may have, each of which must have been seen."""


class BringUps(Bench):
    """A bench that thinks up arrays that drives hold."""

    def __init__(self, dut, config: Config, generator: random.Random):
        super().__init__(dut, config, generator)
        self.made: Counter[str] = Counter()
        """What the arrays that were made had."""
        self.refused: Counter[str] = Counter()
        TableServer(dut, "placed_read", self._placed)

    def _placed(self, port: int) -> int:
        position, failed, stale = self.model.placed[port]
        return pack(placed_member(self.config), position=position, failed=failed, stale=stale)

    def _places(self, ports: list[int], failed: set[int], stale: set[int]) -> None:
        """Each port has a position. What is said of others means nothing."""
        generator, placed = self.generator, self.model.placed
        for port in range(MAX_DRIVES):
            bits = generator.getrandbits(1), generator.getrandbits(1)
            placed[port] = generator.randrange(MAX_DRIVES), *bits
        for position, port in enumerate(ports):
            placed[port] = position, int(port in failed), int(port in stale)

    def _shape(self, level: Level) -> dict[str, int]:
        generator = self.generator
        mirrors = level.name in MIRRORED
        return {
            "level": level.value,
            "strip_shift": generator.choice((0, 4, 8)),
            "rotation": rotation_of_name(generator.choice(rotations(level.name))).value,
            "copies": generator.choice((0, 2, 3)) if mirrors else 0,
            "spans": generator.choice((0, 1, 2)) if PARITIES[level.name] else 0,
            "assumed": generator.getrandbits(1),
        }

    async def bring_up(self) -> None:
        """An array of drives that are there, of some that are failed, and of some that are not."""
        generator, model, config = self.generator, self.model, self.config
        level = generator.choice((*Level, *TOLERANT, *TOLERANT))
        width = 1 if level == Level.JBOD else generator.randint(LEAST.get(level, 2), 10)
        free = [port for port in range(MAX_DRIVES) if not model.used >> port & 1]
        there = [port for port in free if model.present >> port & 1]
        away = [port for port in free if port < config.ports and port not in there]
        nowhere = [port for port in free if port >= config.ports]
        missing = generator.choice((0, 0, 1, 1, 2, 3, 4))
        lost = generator.sample(away, min(len(away), generator.randint(0, missing)))
        lost += generator.sample(nowhere, generator.randint(0, missing - len(lost)))
        live = generator.sample(there, min(len(there), max(0, width - len(lost))))
        if generator.random() < 0.5:
            live.sort(key=lambda port: model.capacity[port])
        failed = set(live[: max(0, missing - len(lost))])
        stale = {port for port in failed if generator.random() < 0.5}
        failed -= stale
        # Of who is not there it may or may not be said that it is failed.
        said = failed | {port for port in lost if generator.random() < 0.5}
        ports = live + lost
        generator.shuffle(ports)
        # A drive that is failed may have been stale.
        self._places(ports, said, stale | {p for p in said if generator.random() < 0.3})
        least = min([model.capacity[port] for port in live if port not in failed], default=0)
        limits = (least, least + 1, least - 1, 0, DATA_OFFSET_BLOCKS, 5000, (1 << 40) - 1)
        blocks = max(0, generator.choice((*limits, *limits[-2:], generator.randrange(100_000))))
        request = self._shape(level) | {
            "drives": sum(1 << port for port in ports),
            "degraded": int(generator.random() < 0.8),
            "blocks": blocks,
            "start": generator.choice((DATA_OFFSET_BLOCKS, 300, 1 << 16, (1 << 24) - 1)),
            "placed": 1,
        }
        status = await self.change(ManageOpcode.CREATE_ARRAY, **request)
        if status == ManageStatus.DONE:
            small = min([model.capacity[port] for port in failed], default=1 << 40)
            self.made["failed there"] += bool(failed)
            self.made["stale"] += bool(stale)
            self.made["away"] += bool(set(lost) & set(away))
            self.made["no such port"] += bool(set(lost) & set(nowhere))
            self.made["few blocks"] += blocks < least
            self.made["data begins late"] += request["start"] > DATA_OFFSET_BLOCKS
            self.made["turned round"] += ports != sorted(ports)
            self.made["small stranger"] += small < min(blocks, least)
        if status == ManageStatus.DRIVE_UNAVAILABLE:
            missed = bool(failed or lost or stale)
            self.refused["not degraded"] += missed and not request["degraded"]
            self.refused["too many"] += missed and request["degraded"]

    async def create(self) -> None:
        """An array of the host, of which nothing is said to be placed."""
        model, generator = self.model, self.generator
        self._places([], set(), set())
        free = [
            port
            for port in range(self.config.ports)
            if model.present & ~model.used & 1 << port
        ]
        # A port that the card does not have is no member.
        free += [self.config.ports] * (generator.random() < 0.1)
        ports = generator.sample(free, min(len(free), generator.randint(2, 5)))
        request = self._shape(generator.choice(tuple(Level))) | {
            "drives": sum(1 << port for port in ports),
            "degraded": generator.getrandbits(1),
        }
        await self.change(ManageOpcode.CREATE_ARRAY, **request)

    async def mend(self) -> None:
        """A failed member is to be replaced, or to be had again, wherever its port is."""
        model, generator = self.model, self.generator
        broken = [
            (number, position, port)
            for number, array in model.arrays.items()
            for position, port in enumerate(array.members)
            if model.failed >> port & 1
        ]
        if not broken:
            return
        number, position, port = generator.choice(broken)
        member = {"array": number, "position": position}
        if generator.random() < 0.5:
            await self.change(ManageOpcode.RE_ADD, **member)
        free = [at for at in range(self.config.ports) if not model.used >> at & 1]
        by = generator.choice([*free, port])
        await self.change(ManageOpcode.REPLACE, **member, port=by)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def drives_bring_up_their_arrays(dut):
    generator = random.Random(int(os.environ["SEED"]))
    config = this_config()
    bench = BringUps(dut, config, generator)
    await start(dut)
    sizes = (DATA_OFFSET_BLOCKS + 300, 50_000, 100_000, 1 << 32)
    for port in range(config.ports):
        bench.plug(port, generator.choice(sizes[1:]))
    for step in range(CHANGES):
        draw = generator.random()
        if draw < 0.45:
            await bench.bring_up()
        elif draw < 0.5:
            await bench.create()
        elif draw < 0.7 and bench.model.arrays:
            array = generator.choice([*bench.model.arrays])
            await bench.change(ManageOpcode.DELETE_ARRAY, array=array)
        elif draw < 0.8:
            await bench.mend()
        elif draw < 0.97:
            port = generator.randrange(config.ports)
            absent = not bench.model.present >> port & 1
            bench.plug(port, generator.choice(sizes) if absent else None)
        else:
            port = generator.randrange(MAX_DRIVES)
            bench.fail.send(port)
            await bench.fail.drained()
            bench.model.fail(port)
        await RisingEdge(dut.clk)
        if step % 5 == 0 or step == CHANGES - 1:
            await bench.compare()
    assert sample(dut.busy) == 0, "busy at rest"
    dut._log.info("made: %s, refused: %s", bench.made, bench.refused)
    dut._log.info("answers: %s", {status.name: count for status, count in bench.seen.items()})
    assert all(bench.made[name] for name in CASES), bench.made
    assert bench.refused["not degraded"] and bench.refused["too many"], bench.refused


def test_brought_up():
    run_tables(METADATA, module=__name__)


class Trusts(ArrayTables):
    """Planted bug: a failed member whose drive is there is a member like any other."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self._health.fails.eq(0)
        return m


class InOrder(ArrayTables):
    """Planted bug: members are in ascending port order."""

    @property
    def _place(self):
        return self._position[:5]


class ToleratesAll(Missing):
    """Planted bug: any number of members may be missing."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.tolerated.eq(1)
        return m


def limitless(condition, one, other):
    """Planted bug, as `Mux`: what the array's members have is not what they may have at most."""
    return other if isinstance(other, int) and other == ~0 else Mux(condition, one, other)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        pytest.param("cocotb_tests.array.tables_bench.ArrayTables", Trusts, id="trusts"),
        *(
            pytest.param(*bug, id=name, marks=pytest.mark.slow)
            for name, bug in {
                "in_order": ("cocotb_tests.array.tables_bench.ArrayTables", InOrder),
                "tolerates_all": ("hdl.array.tables.tables.Missing", ToleratesAll),
                "limitless": ("hdl.array.tables.tables.Mux", limitless),
            }.items()
        ),
    ],
)
def test_brought_up_planted_bugs_are_found(name, bug, monkeypatch):
    monkeypatch.setattr(name, bug)
    with pytest.raises(SimulationError, match="drives_bring_up_their_arrays"):
        run_tables(METADATA, name=f"brought_up_{bug.__name__}", module=__name__)
