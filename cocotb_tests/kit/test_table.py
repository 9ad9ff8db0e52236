"""`hdl.kit.table.Table`: what was stored last is read; a reset clears it where it is asked to."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import FallingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import pack, sample, start, unpack, wait_until
from hdl.kit.table import Table, TableRead, clear

DEPTH = 6
ENTRY = data.StructLayout({"kind": 3, "count": 5})
CYCLES = 600


class Bench(wiring.Component):
    """A table that is cleared first. Then ``entry`` is stored at ``place``; with ``counts`` only
    its ``count`` is, beside the ``kind`` that the first reader has before it."""

    def __init__(self, *, forwards: bool):
        self._table = Table(ENTRY, DEPTH, reads=2, forwards=forwards)
        super().__init__(
            {
                "reads": In(TableRead(3, ENTRY)).array(2),
                "place": In(3),
                "entry": In(ENTRY),
                "stores": In(1),
                "counts": In(1),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = self._table
        for ours, theirs in zip(self.reads, table.reads, strict=True):
            connect(m, flipped(ours), theirs)
        with m.FSM():
            with m.State("CLEAR"), m.If(self._clears(m, table)):
                m.next = "WORK"
            with m.State("WORK"):
                m.d.comb += self.ready.eq(1)
                with m.If(self.stores & self.counts):
                    m.d.comb += table.store(
                        address=self.place, data=table.reads[0].data, count=self.entry.count
                    )
                with m.Elif(self.stores):
                    m.d.comb += table.store(address=self.place, data=self.entry)
        return m

    def _clears(self, m, table):
        return clear(m, table)


class ClearsTooFew(Bench):
    """A planted bug: the last entry is not cleared."""

    def _clears(self, m, table):
        return clear(m, table) | (table.write.address == DEPTH - 2)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def reads_what_was_stored_last(dut):
    forwards = bool(int(os.environ["FORWARDS"]))
    await start(dut)
    for _ in range(3):
        await _follows_a_list(dut, forwards=forwards)
        dut.stores.value = 0
        dut.rst.value = 1
        await FallingEdge(dut.clk)
        dut.rst.value = 0


async def _follows_a_list(dut, *, forwards: bool) -> None:
    """After a reset: random reads and writes in every cycle."""
    await wait_until(dut, lambda: sample(dut.ready), cycles=DEPTH + 2, what="cleared")
    await FallingEdge(dut.clk)
    entries = [{"kind": 0, "count": 0} for _ in range(DEPTH)]
    expected: list[dict] = []
    for _ in range(CYCLES):
        # What is seen now was asked for before the last edge.
        seen = [unpack(ENTRY, sample(dut[f"reads__{port}__data"])) for port in range(2)]
        assert not expected or seen == expected, f"{seen}, not {expected}"
        places = [random.randrange(DEPTH) for _ in range(2)]
        place, stores = random.randrange(DEPTH), random.random() < 0.7
        counts = random.random() < 0.5
        entry = {"kind": random.randrange(8), "count": random.randrange(32)}
        for port in range(2):
            dut[f"reads__{port}__address"].value = places[port]
        dut.place.value, dut.stores.value, dut.counts.value = place, stores, counts
        dut.entry.value = pack(ENTRY, **entry)
        old = list(entries)
        if stores:
            entries[place] = {**(seen[0] if counts else entry), "count": entry["count"]}
        expected = [(entries if forwards else old)[each] for each in places]
        await FallingEdge(dut.clk)


def follow(bench: type[Bench], *, forwards: bool = False, asked: bool | None = None) -> None:
    """``asked``: what the test is told, if not what is true."""
    told = forwards if asked is None else asked
    simulate(
        bench(forwards=forwards),
        name=f"table_{bench.__name__}_{forwards}",
        module=__name__,
        parameters={"FORWARDS": str(int(told))},
    )


@pytest.mark.parametrize("forwards", [False, True])
def test_table(forwards):
    follow(Bench, forwards=forwards)


def test_an_entry_that_is_not_cleared_is_found():
    with pytest.raises(SimulationError, match="failed: reads_what_was_stored_last"):
        follow(ClearsTooFew)


def test_an_old_entry_is_told_from_a_new_one():
    with pytest.raises(SimulationError, match="failed: reads_what_was_stored_last"):
        follow(Bench, forwards=True, asked=False)
