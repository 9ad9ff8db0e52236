"""The synthesis flow counts cells and refuses memories that an FPGA does not have."""

import fnmatch
import re
from dataclasses import replace

import pytest
from amaranth.hdl import Module
from amaranth.lib import memory, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.config import small
from hdl.kit.disjoint import DISJOINT
from sim.verilog import FIFO_STORAGE, to_rtlil, to_verilog
from synth.blocks import BLOCKS, WHOLE
from synth.count import count, main
from synth.flow import (
    BLOCK_RAMS,
    LOG,
    STALLED,
    TARGET_HZ,
    asynchronous_memories,
    stalls,
    synthesise,
)

WIDTH = 36


class Table(wiring.Component):
    """A memory with one read port.

    Parameters
    ----------
    depth
        Words.
    domain
        Of the read port; ``comb`` is asynchronous.
    writers
        Write ports, which write to neighbouring words; no RAM has more than two ports.
    attributes
        Of the memory.
    """

    write_address: In(10)
    write_data: In(WIDTH)
    write_enable: In(1)
    read_address: In(10)
    read_data: Out(WIDTH)

    def __init__(
        self, *, depth: int, domain: str = "sync", writers: int = 1, attributes=None
    ):
        self._depth = depth
        self._attributes = attributes
        self._domain = domain
        self._writers = writers
        super().__init__()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.table = table = memory.Memory(
            shape=WIDTH, depth=self._depth, init=[], attrs=self._attributes
        )
        for index in range(self._writers):
            write = table.write_port()
            m.d.comb += [
                write.addr.eq(self.write_address + index),
                write.data.eq(self.write_data),
                write.en.eq(self.write_enable),
            ]
        read = table.read_port(domain=self._domain)
        m.d.comb += [
            read.addr.eq(self.read_address),
            self.read_data.eq(read.data),
        ]
        return m


class Queue(wiring.Component):
    """A FIFO of Amaranth."""

    write_data: In(WIDTH)
    write_enable: In(1)
    read_enable: In(1)
    read_data: Out(WIDTH)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=WIDTH, depth=16)
        m.d.comb += [
            fifo.w_data.eq(self.write_data),
            fifo.w_en.eq(self.write_enable),
            fifo.r_en.eq(self.read_enable),
            self.read_data.eq(fifo.r_data),
        ]
        return m


class Slow(wiring.Component):
    """Eight additions in a row in one cycle."""

    terms: In(8 * WIDTH)
    total: Out(WIDTH)

    def elaborate(self, platform) -> Module:
        m = Module()
        total = self.terms[:WIDTH]
        for low in range(WIDTH, 8 * WIDTH, WIDTH):
            total = ((total + self.terms[low : low + WIDTH]) * 3)[:WIDTH]
        m.d.comb += self.total.eq(total)
        return m


def test_block_memory():
    result = synthesise("table", Table(depth=1024))
    assert (result.rams, result.multipliers) == (2, 0)
    # Reading the old word while it is written takes some logic beside the RAM.
    assert result.luts < 100
    assert result.registers < 100
    assert result.hertz > 100e6
    assert not result.faults
    # A second call is answered from the cache, and says so; a fresh run finds the same.
    assert replace(result, kept=True) == synthesise("table", Table(depth=1024))
    fresh = synthesise("table", Table(depth=1024), fresh=True)
    assert not fresh.kept
    assert replace(result, kept=False, seconds=0) == replace(fresh, seconds=0)


def test_disjoint_memory():
    """Nothing is spent on what is read where it is written."""
    result = synthesise("table", Table(depth=1024, attributes=DISJOINT))
    assert (result.rams, result.luts, result.registers) == (2, 0, 0)


@pytest.mark.parametrize(
    ("table", "undefined"),
    [
        (Table(depth=16), False),
        (Table(depth=16, attributes=DISJOINT), True),
        (Queue(), True),
    ],
)
def test_collisions(table, undefined):
    """In simulation what is read of a disjoint memory where it is written is of no use."""
    assert (f"{WIDTH}'hxxxxxxxxx" in to_verilog(table).text) == undefined


@pytest.mark.slow
def test_block_rams():
    """Every memory that synthesis shall make of block RAM is there, and is a FIFO's."""
    modules = re.findall(r"^module \\top\.(\S+)$", to_rtlil(BLOCKS[WHOLE](small())), re.MULTILINE)
    for pattern in BLOCK_RAMS:
        fifo, _, name = pattern.rpartition(".")
        assert name == FIFO_STORAGE
        assert fnmatch.filter(modules, fifo), pattern


@pytest.mark.slow
def test_slow_block():
    result = synthesise("slow", Slow())
    assert 0 < result.hertz < TARGET_HZ
    assert result.faults == [f"{result.hertz / 1e6:.1f} MHz is less than {TARGET_HZ / 1e6:g} MHz"]


@pytest.mark.parametrize(
    ("runs", "hertz", "seed", "fault"),
    [
        ([(0.0, "no way"), (81e6, "")], 81e6, 2, ""),
        ([(78e6, "late"), (0.0, "no way"), (79e6, "late")], 79e6, 3, "79.0 MHz is less than"),
        ([(0.0, "no way"), (0.0, "other"), (0.0, "other")], 0.0, 1, "not placed and routed"),
    ],
)
def test_seeds_are_tried(monkeypatch, runs, hertz, seed, fault):
    """Another placement may be routed, or faster. The first that is fast enough is taken."""
    asked = []

    def place_and_route(_, seed: int) -> tuple[float, str]:
        asked.append(seed)
        return runs[seed - 1]

    monkeypatch.setattr("synth.flow._place_and_route", place_and_route)
    result = synthesise(f"seeds{seed}", Table(depth=16), fresh=True)
    assert asked == list(range(1, len(runs) + 1))
    assert (result.hertz, result.seed) == (hertz, seed)
    assert [one.startswith(fault) for one in result.faults] == [True] * bool(fault)


def test_router_that_makes_no_way(tmp_path):
    """It is given up after some iterations without fewer wires that are used twice."""

    def log(counts: list[int]) -> str:
        lines = [
            f"Info:     iter={number} wires=9 overused={count} overuse={count} archfail=NA\n"
            for number, count in enumerate(counts, start=1)
        ]
        (tmp_path / LOG).write_text("".join(lines))
        return stalls(tmp_path)

    assert not stalls(tmp_path), "before there is a log"
    falls = list(range(3000, 1500, -100))
    assert not log(falls)
    assert not log([*falls, *range(1700, 1700 + STALLED - 1)])
    assert "1600 wires" in log([*falls, *range(1700, 1700 + STALLED)])
    assert not log([*falls, *range(1700, 1700 + STALLED - 1), 1599])


def test_router_that_is_given_up_ends(monkeypatch):
    monkeypatch.setattr("synth.flow.LOOK_S", 0.1)
    monkeypatch.setattr("synth.flow.stalls", lambda _: "nothing moves")
    result = synthesise("given_up", Table(depth=64), fresh=True)
    assert result.faults == ["not placed and routed: ERROR: nothing moves"]


@pytest.mark.slow
def test_memory_of_registers():
    assert synthesise("registers", Table(depth=16, writers=2)).faults == [
        f"memory table of {16 * WIDTH} bits is made of flip-flops"
    ]


@pytest.mark.parametrize(("domain", "found"), [("comb", ["table"]), ("sync", [])])
def test_asynchronous_memory(domain, found):
    assert asynchronous_memories(to_rtlil(Table(depth=16, domain=domain))) == found


def test_counts_of_other_sizes(monkeypatch, capsys):
    few, many = (count("allocator", replace(small(), lines=lines)) for lines in (16, 1024))
    assert 0 < few["flip-flops"] < many["flip-flops"]
    assert few["block RAMs"] < many["block RAMs"]
    for arguments, message in (
        (["allocator", "depth=4"], "no size is called depth"),
        (["allocator", "lines=many"], "lines must be a number"),
        (["allocator", "lines=17"], "lines must be a power of two"),
    ):
        monkeypatch.setattr("sys.argv", ["count", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert message in capsys.readouterr().err.splitlines()[-1]
