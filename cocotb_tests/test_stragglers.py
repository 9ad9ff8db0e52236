"""Rows that were launched before a turn are waited for, and no others."""

import os
import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import start
from hdl.config import Config
from hdl.stripe.stragglers import Stragglers

CONFIG = Config(rows=16)
CYCLES = 4000
DELAY = 2
"""Cycles after which an end counts."""


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def rows_are_waited_for(dut):
    seed = int(os.environ["SEED"])
    print(f"seed {seed}")
    generator = random.Random(seed)
    for name in ("launched", "ended", "turn"):
        getattr(dut, name).value = 0
    await start(dut)
    current: set[int] = set()
    last: set[int] = set()
    held, turned = [False] * (DELAY + 1), [False] * (DELAY + 1)
    lingers = False
    turns = 0
    for _ in range(CYCLES):
        unused = sorted({*range(CONFIG.rows)} - current - last)
        launches = bool(unused) and generator.random() < 0.4
        ends = bool(current | last) and generator.random() < 0.4
        turns_now = not lingers and generator.random() < 0.2
        dut.launched.value, dut.ended.value, dut.turn.value = launches, ends, turns_now
        if launches:
            slot = generator.choice(unused)
            dut.launched_slot.value = slot
        if ends:
            leaver = generator.choice(sorted(current | last))
            dut.ended_slot.value = leaver
            current.discard(leaver)
            last.discard(leaver)
        if launches:
            current.add(slot)
        if turns_now:
            current, last = last, current
            turns += 1
        # Rows that have just ended may be taken for old ones at a turn.
        held = [*held[1:], bool(last)]
        turned = [*turned[1:], turns_now]
        await RisingEdge(dut.clk)
        await FallingEdge(dut.clk)
        lingers = bool(int(dut.lingers.value))
        assert lingers or not last, "a row is forgotten"
        assert any(held) or any(turned) or not lingers, "nothing lingers"
    assert turns > 20


class CountsTheNewOnes(Stragglers):
    """Planted bug: rows that are launched later are waited for, and others are not."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.epochs.write_ports[0].data.eq(0)
        return m


def test_stragglers():
    simulate(Stragglers(config=CONFIG), name="stragglers", module=__name__)


def test_planted_bug_is_found():
    with pytest.raises(SimulationError, match="rows_are_waited_for"):
        simulate(CountsTheNewOnes(config=CONFIG), name="stragglers_new", module=__name__)
