"""Mapper against the reference layout: every level, random geometry, commands and back-pressure."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module

from cocotb_tests.array.array_models import Table, pack_geometry, pack_volume, random_recovery
from cocotb_tests.busy import BusyWatch
from cocotb_tests.fields import ANY, check_fields
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start, wait_until
from hdl.array.mapping.mapper import Mapper
from hdl.array.mapping.strip import NextStrip
from hdl.config import BLOCK_NUMBER_BITS, Config, small
from hdl.flow.extent import extent
from hdl.flow.host_command import HostOpcode, Status, command
from sim.card.layouts import random_layout
from sim.golden.layout import Layout

CONFIGS = {"board": Config(), "small": small(), "wide": Config(transfer_blocks=64)}
BATCHES = 24
COMMANDS = 24
FIRST_EXTENT_CYCLES = 32
NEXT_EXTENT_CYCLES = 4

NO_MEANING = {
    **{f"{one.name}:*": "the command fails as a whole" for one in Status if one != Status.SUCCESS},
    **{
        f"FLUSH:{name}": "a FLUSH has no blocks"
        for name in ("fua", "recover", "base", "shift", "index", "ordinal", "row", "blocks",
                     "offset", "final", "head", "tail", "gathered")
    },
    "READ:volume": "only a FLUSH has one",
    "WRITE:volume": "only a FLUSH has one",
}  # fmt: skip


class Bench:
    """Tables with random arrays and volumes, and what each command must give."""

    def __init__(self, dut, config: Config, generator: random.Random):
        self.dut = dut
        self.config = config
        self.generator = generator
        self.geometries = Table(dut, "geometry_read")
        self.volumes = Table(dut, "volume_read")
        self.commands = StreamSource(dut, "command", layout=command(config))
        self.extents = StreamSink(
            dut, "extent", layout=extent(config), callback=self._check, ignores=NO_MEANING
        )
        self.layouts: dict[int, Layout] = {}
        self.ranges: dict[int, tuple[int, int, int]] = {}
        self.expected: list[dict] = []

    def _check(self, seen) -> None:
        assert self.expected, f"nothing expected, got {seen}"
        wanted = self.expected.pop(0)
        check_fields(seen, wanted, "extent", rest=None if "base" in wanted else ANY)

    def rebuild(self, layouts: list[Layout] | None = None) -> None:
        """New arrays (``layouts`` or random ones) and volumes. One array and one volume are bad."""
        config, generator = self.config, self.generator
        self.geometries.entries.clear()
        self.volumes.entries.clear()
        self.layouts.clear()
        self.ranges.clear()
        good = list(range(config.arrays - 1))
        for number in good:
            layout = layouts.pop() if layouts else random_layout(generator)
            most = ((1 << BLOCK_NUMBER_BITS) - 1) // layout.drives // layout.strip_blocks
            stripes = generator.randint(1, min(most, 1 << generator.choice((4, 16, 40))))
            rows = stripes * layout.strip_blocks
            self.layouts[number] = layout
            self.geometries.entries[number] = pack_geometry(config, layout, rows)
            blocks = layout.blocks(rows)
            assert blocks < 1 << BLOCK_NUMBER_BITS
            volume = number % (config.volumes - 2)
            first = generator.randrange(blocks)
            first = generator.choice((0, first))
            length = generator.choice((blocks - first, generator.randint(1, blocks - first)))
            self.ranges[volume] = (number, first, length)
            self.volumes.entries[volume] = pack_volume(config, number, first, length)
        self.orphan = config.volumes - 2
        self.missing = config.volumes - 1
        self.volumes.entries[self.orphan] = pack_volume(config, config.arrays - 1, 0, 1 << 20)

    def request(self) -> None:
        """Sends a random command and notes what must come of it."""
        config, generator = self.config, self.generator
        opcode = generator.choice(
            (HostOpcode.READ, HostOpcode.WRITE, HostOpcode.WRITE, HostOpcode.FLUSH)
        )
        fields = {
            "slot": generator.randrange(config.commands),
            "opcode": opcode,
            "fua": generator.getrandbits(1),
            "recover": random_recovery(generator, config, copies=config.ports),
        }
        odd = generator.random()
        volume = generator.choice(list(self.ranges))
        if odd < 0.03:
            volume = self.missing
        elif odd < 0.06:
            volume = self.orphan
        array, first, length = self.ranges.get(volume, (0, 0, 1 << 20))
        most = min(config.transfer_blocks, length)
        count = generator.choice((1, most, generator.randint(1, most)))
        block = generator.choice((0, length - count, generator.randint(0, length - count)))
        if 0.06 < odd < 0.12:
            block = length - count + generator.choice((1, 2, count, 1 << 30))
            block = min(block, (1 << BLOCK_NUMBER_BITS) - 1)
        offset = generator.randint(0, config.transfer_blocks - count)
        sectors = dict.fromkeys(("head", "tail"), 0)
        if config.sector_emulation:
            sectors = {name: generator.choice((0, generator.randrange(8))) for name in sectors}
            fields |= sectors
        self.commands.send(**fields, volume=volume, block=block, blocks=count - 1, offset=offset)
        status = Status.SUCCESS
        if volume == self.missing:
            status = Status.INVALID_NAMESPACE
        elif opcode != HostOpcode.FLUSH and block + count > length:
            status = Status.LBA_OUT_OF_RANGE
        elif volume == self.orphan:
            status = Status.INTERNAL_ERROR
        whole = {"slot": fields["slot"], "opcode": opcode, "status": status, "last": 1}
        if status != Status.SUCCESS:
            self.expected.append(whole)
        elif opcode == HostOpcode.FLUSH:
            volumes = {"volume": volume} if config.background else {}
            self.expected.append({**whole, "array": array, **volumes})
        else:
            pieces = self.layouts[array].extents(
                first + block, count, write=opcode == HostOpcode.WRITE
            )
            for piece in pieces:
                if config.sector_emulation:
                    # Of a block that is written in part, in the first extent or the last.
                    fields["head"] = int(sectors["head"] > 0 and not piece.offset)
                    fields["tail"] = int(sectors["tail"] > 0 and piece.last)
                self.expected.append(
                    {
                        **fields,
                        "volume": ANY,
                        "status": status,
                        "array": array,
                        "base": piece.base,
                        "shift": piece.shift,
                        "index": piece.index,
                        "row": piece.row,
                        "ordinal": piece.ordinal,
                        "blocks": piece.blocks - 1,
                        "offset": offset + piece.offset,
                        "final": int(piece.final),
                        "last": int(piece.last),
                    }
                )

    async def settled(self) -> None:
        """Waits until every command was answered; then the mapper must be at rest."""
        await wait_until(
            self.dut, lambda: not self.expected and self.commands.idle, cycles=100_000, what="rest"
        )
        await cycles_pass(self.dut.clk, 4)
        assert sample(self.dut.busy) == 0, "busy at rest"
        assert not sample(self.dut.extent__valid), "an extent is left over"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def maps_like_the_reference(dut):
    generator = random.Random(int(os.environ["SEED"]))
    bench = Bench(dut, CONFIGS[os.environ["CONFIG"]], generator)
    watch = BusyWatch(dut, ["command"], ["extent"])
    await start(dut)
    for _ in range(BATCHES):
        bench.rebuild()
        bench.commands.active = generator.choice((1.0, 0.1))
        bench.extents.active = generator.choice((1.0, 1.0, 0.3))
        for _ in range(COMMANDS):
            bench.request()
        await bench.settled()
    watch.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_its_rate(dut):
    """Cycles to the first extent and between extents, with nothing in the way."""
    config = CONFIGS[os.environ["CONFIG"]]
    bench = Bench(dut, config, random.Random(1))
    await start(dut)
    for layout in (Layout("RAID5", 8, 1), Layout("RAID6", 16, 4, 0, 2), Layout("RAID1", 31, 1)):
        bench.rebuild([layout] * (config.arrays - 1))
        array = bench.ranges[0][0]
        count = config.transfer_blocks
        bench.volumes.entries[0] = pack_volume(config, array, 0, 1 << 20)
        pieces = layout.extents(0, count, write=False)
        bench.expected = [{"row": piece.row} for piece in pieces]
        bench.commands.send(opcode=HostOpcode.READ, volume=0, block=0, blocks=count - 1)
        await wait_until(dut, lambda: sample(dut.command__valid), cycles=10, what="command")
        before = bench.extents.received
        taken = await wait_until(
            dut, lambda seen=before: bench.extents.received > seen, cycles=100, what="extent"
        )
        rest = await wait_until(dut, lambda: not bench.expected, cycles=1000, what="extents")
        each = rest / max(1, len(pieces) - 1)
        dut._log.info("%s: first extent %d cycles, then %.1f each", layout.level, taken, each)
        assert taken <= FIRST_EXTENT_CYCLES
        assert each <= NEXT_EXTENT_CYCLES
        await bench.settled()


@pytest.mark.parametrize("config", CONFIGS)
def test_mapper(config):
    simulate(
        Mapper(config=CONFIGS[config]),
        name=f"mapper_{config}",
        module=__name__,
        parameters={"CONFIG": config},
    )


class NeverRotates(NextStrip):
    """Planted bug: parity stays where it is when a command goes on in the next stripe."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.geometry.copies == 1):
            m.d.comb += self.after.shift.eq(self.at.shift)
        return m


class NeverTurns(NextStrip):
    """Planted bug: the last data strip of a stripe looks as if others followed in it."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += self.turns.eq(0)
        return m


@pytest.mark.parametrize(
    "bug", [NeverRotates, pytest.param(NeverTurns, marks=pytest.mark.slow)]
)
def test_planted_bugs_are_found(bug, monkeypatch):
    monkeypatch.setattr("hdl.array.mapping.mapper.NextStrip", bug)
    with pytest.raises(SimulationError, match="maps_like_the_reference"):
        simulate(
            Mapper(config=CONFIGS["board"]),
            name=f"mapper_{bug.__name__}",
            module=__name__,
            testcase="maps_like_the_reference",
            parameters={"CONFIG": "board"},
        )
