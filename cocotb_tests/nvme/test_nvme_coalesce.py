"""Interrupt coalescing by itself: none too early, none too late, none lost."""

import os
import random
from dataclasses import dataclass, field, replace

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import connect, flipped
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import sample, start
from hdl.config import TIME_BITS, small
from hdl.nvme.registers.coalesce import DELAYS_PER_SECOND, Coalesce

DELAY_CYCLES = 12
"""Of an aggregation time of 1."""

CONFIG = replace(small(), clock_hz=DELAYS_PER_SECOND * DELAY_CYCLES, queue_pairs=4)
VECTORS = CONFIG.queue_pairs + 1
SETTINGS = 40
CYCLES = 600


@dataclass
class Held:
    """Completions of which the host has not been told, by vector: when each was judged."""

    delay: int
    threshold: int
    uncoalesced: int
    hurry: bool = False
    waiting: list[list[int]] = field(default_factory=lambda: [[] for _ in range(VECTORS)])
    until: int = 0

    def exempt(self, vector: int) -> bool:
        return vector == 0 or self.hurry or not self.delay or bool(self.uncoalesced >> vector & 1)

    def passes(self, now: int, judged: int | None) -> set[int]:
        """Which vectors are to be raised now, ``judged`` being that of a new completion."""
        held = any(self.waiting)
        passed = set()
        if held and (self.hurry or now >= self.until):
            passed = {vector for vector, times in enumerate(self.waiting) if times}
        before = self.waiting[judged] if judged is not None else []
        for vector in passed:
            self.waiting[vector] = []
        if judged is None:
            return passed
        if self.exempt(judged) or len(before) >= self.threshold:
            self.waiting[judged] = []
            return passed | {judged}
        if not any(self.waiting):
            self.until = now + self.delay * DELAY_CYCLES
        # What comes as the time of others is over waits for its own, and counts with them.
        self.waiting[judged] = [*before, now]
        return passed


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def holds_back(dut):
    """Random settings and loads, so that the time is often over just as a completion comes."""
    choose = random.Random(int(os.environ["SEED"]))
    for name in ("raised__valid", "raised__payload", "threshold", "delay", "uncoalesced", "clear",
                 "hurry", "now"):  # fmt: skip
        getattr(dut, name).value = 0
    await start(dut)
    # Time wraps on the way.
    now, judged, over_and_judged, passes = (1 << TIME_BITS) - 2000, None, 0, 0
    for _ in range(SETTINGS):
        held = Held(
            delay=choose.choice((0, 1, 1, 2, 3)),
            threshold=choose.choice((0, 1, 2, 3, 200)),
            uncoalesced=choose.choice((0, 0, choose.getrandbits(VECTORS))),
        )
        dut.delay.value, dut.threshold.value = held.delay, held.threshold
        dut.uncoalesced.value = held.uncoalesced
        dut.raised__valid.value, dut.hurry.value, dut.clear.value = 0, 0, 1
        for _ in range(3):
            now += 1
            dut.now.value = now % (1 << TIME_BITS)
            await RisingEdge(dut.clk)
        dut.clear.value = 0
        often = choose.choice((0.05, 0.3, 0.6))
        judged, raised, least = None, False, now
        for _ in range(CYCLES):
            now += 1
            dut.now.value = now % (1 << TIME_BITS)
            vector = choose.randrange(VECTORS)
            raises = not raised and choose.random() < often
            held.hurry = choose.random() < 0.002
            dut.raised__valid.value, dut.raised__payload.value = int(raises), vector
            dut.hurry.value = int(held.hurry)
            await FallingEdge(dut.clk)
            found = sample(dut.passed)
            over_and_judged += any(held.waiting) and now == held.until and judged is not None
            wanted = held.passes(now, judged)
            assert found == sum(1 << vector for vector in wanted), (
                f"{now - least}: {found:b} passes, {wanted} should, of {held}"
            )
            passes += len(wanted)
            await RisingEdge(dut.clk)
            deadline = sample(dut.deadline)
            if any(held.waiting):
                assert now - held.until < 0 or held.hurry, f"{held} waits for ever"
                assert deadline == held.until % (1 << TIME_BITS) or now <= held.until
            judged, raised = (vector if raises else None), raises
    dut._log.info("%d passes, %d judged as the time was over", passes, over_and_judged)
    assert over_and_judged > 20 and passes > 1000


def test_coalesce():
    simulate(Coalesce(config=CONFIG), name="coalesce", module=__name__)


class LosesWhatComesLast(Coalesce):
    """Planted bug: what comes just as the time of others is over is forgotten."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = Coalesce(config=CONFIG)
        connect(m, flipped(self), inner)
        m.d.comb += inner.raised.valid.eq(self.raised.valid & (inner.deadline != self.now + 1))
        return m


def test_planted_bug_is_caught():
    with pytest.raises(SimulationError, match="should"):
        simulate(LosesWhatComesLast(config=CONFIG), name="coalesce_loses", module=__name__)
