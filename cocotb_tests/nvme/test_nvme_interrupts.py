"""MSI-X by itself: no raised vector is lost, none is told while that is not allowed, and all take
turns."""

import os
import random
from dataclasses import replace

import cocotb
import pytest
from amaranth.hdl import Module
from cocotb.triggers import FallingEdge, RisingEdge

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, sample, start, unpack
from hdl.config import small
from hdl.flow.post import post
from hdl.nvme.registers.interrupts import MASK_BYTE, Interrupts

CONFIG = replace(small(), queue_pairs=4)
VECTORS = CONFIG.queue_pairs + 1
ROUNDS = 400
LONGEST = 60
"""Cycles of a round before vectors may not be told, and of the first part of the time after that.
"""
LANDING = 60
"""Cycles in which the message that was under way has left or been dropped."""
TOLD = 400
"""Cycles in which all vectors are told."""

ADDRESS_SHIFT, DATA = 12, 7
"""Of a message, from which its vector is known."""


class Bench:
    """A hard block that takes messages, and the vectors of which the host is still to be told."""

    def __init__(self, dut):
        self.dut = dut
        self.random = random.Random(int(os.environ["SEED"]))
        self.owed = [False] * VECTORS
        self.sent: list[int] = []
        self.dropped = 0
        self.slow = 0.5
        for name in ("raised", "enable", "mask", "clear", "reset", "post__ready", "messages__left",
                     "messages__dropped", "vectors__address", "vectors__pending",
                     "vectors__write_data", "vectors__write_enable"):  # fmt: skip
            getattr(dut, name).value = 0

    async def begin(self) -> None:
        """Leaves reset, fills the table and enables MSI-X."""
        await start(self.dut)
        for vector in range(VECTORS):
            await self._write(2 * vector, vector << ADDRESS_SHIFT)
            await self._write(2 * vector + 1, vector + DATA)
        cocotb.start_soon(self._take())
        self.dut.enable.value = 1

    async def _write(self, address: int, data: int, enable: int = 0xFF) -> None:
        dut = self.dut
        dut.vectors__address.value, dut.vectors__write_data.value = address, data
        dut.vectors__write_enable.value = enable
        await RisingEdge(dut.clk)
        dut.vectors__write_enable.value = 0

    async def mask_vectors(self, masked: int) -> None:
        """Masks all vectors or none."""
        for vector in range(VECTORS):
            await self._write(2 * vector + 1, masked << 8 * MASK_BYTE, 1 << MASK_BYTE)

    async def pending(self) -> int:
        """The pending bits as the host reads them."""
        self.dut.vectors__pending.value, self.dut.vectors__address.value = 1, 0
        await cycles_pass(self.dut.clk, 3)
        bits = sample(self.dut.vectors__read_data)
        self.dut.vectors__pending.value = 0
        return bits

    async def _take(self) -> None:
        """Takes messages. Those that are withheld to the last are dropped."""
        dut = self.dut
        while True:
            dut.post__ready.value = int(self.random.random() > self.slow)
            await FallingEdge(dut.clk)
            taken = sample(dut.post__valid) and sample(dut.post__ready)
            message = unpack(post(), sample(dut.post__payload)) if taken else None
            await RisingEdge(dut.clk)
            if message is None:
                continue
            vector = message.address >> ADDRESS_SHIFT
            assert message.data == vector + DATA and message.message
            dut.post__ready.value = 0
            owed, self.owed[vector] = self.owed[vector], False
            await cycles_pass(dut.clk, self.random.randrange(1 + int(20 * self.slow)))
            await FallingEdge(dut.clk)
            withheld = sample(dut.messages__withhold)
            ends = dut.messages__dropped if withheld else dut.messages__left
            ends.value = 1
            await RisingEdge(dut.clk)
            ends.value = 0
            if withheld:
                self.dropped += 1
                self.owed[vector] = (owed or self.owed[vector]) and not sample(dut.clear)
            else:
                self.sent.append(vector)

    async def raise_for(self, cycles: int) -> None:
        """Raises random vectors."""
        for _ in range(cycles):
            vector = self.random.randrange(VECTORS)
            raises = self.random.random() < 0.2
            self.dut.raised.value = raises << vector
            if raises:
                self.owed[vector] = True
            await RisingEdge(self.dut.clk)
        self.dut.raised.value = 0


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def none_is_lost(dut):
    """Vectors are raised before MSI-X is disabled, or is masked, as that begins, and meanwhile. A
    controller reset forgets them; otherwise each is told later."""
    bench = Bench(dut)
    await bench.begin()
    for _ in range(ROUNDS):
        way = bench.random.choice(("disabled", "function masked", "vectors masked"))
        await bench.raise_for(bench.random.randrange(LONGEST))
        if way == "disabled":
            dut.enable.value = 0
        elif way == "function masked":
            dut.mask.value = 1
        else:
            await bench.mask_vectors(1)
        await bench.raise_for(bench.random.randrange(LONGEST))
        await cycles_pass(dut.clk, LANDING)
        count = len(bench.sent)
        await bench.raise_for(10)
        pending = await bench.pending()
        owed = sum(owes << vector for vector, owes in enumerate(bench.owed))
        assert owed & ~pending == 0, f"{way}: {owed:b} are owed, {pending:b} pending"
        if bench.random.random() < 0.2:
            dut.clear.value = 1
            await cycles_pass(dut.clk, 2)
            dut.clear.value = 0
            bench.owed = [False] * VECTORS
            assert not await bench.pending(), f"{way}: a controller reset leaves pending bits"
        assert len(bench.sent) == count, f"a message while {way}"
        dut.enable.value, dut.mask.value = 1, 0
        await bench.mask_vectors(0)
        await cycles_pass(dut.clk, TOLD)
        assert not any(bench.owed), f"{way}: {bench.owed} are never told"
    dut._log.info("%d messages, %d dropped", len(bench.sent), bench.dropped)
    assert bench.dropped > 20


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def all_take_turns(dut):
    """Each vector is raised all the time."""
    bench = Bench(dut)
    bench.slow = 0
    await bench.begin()
    await bench.mask_vectors(0)
    dut.raised.value = (1 << VECTORS) - 1
    await cycles_pass(dut.clk, 1000)
    last = bench.sent[-5 * VECTORS :]
    assert all(last.count(vector) == 5 for vector in range(VECTORS)), f"not in turn: {last}"


def test_interrupts():
    simulate(Interrupts(config=CONFIG), name="interrupts", module=__name__)


class KeepsPendingBits(Interrupts):
    """Planted bug: a controller reset while MSI-X is disabled forgets nothing."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.clear & ~self.enable):
            m.d.sync += self._pending.eq(self._pending | self.raised)
        return m


class LosesWhatIsDropped(Interrupts):
    """Planted bug: a message that is dropped since MSI-X has been disabled is forgotten."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        with m.If(self.messages.dropped & ~self.enable):
            m.d.sync += self._pending.eq(self._pending | self.raised)
        return m


class PrefersTheFirst(Interrupts):
    """Planted bug: the first vector is chosen whenever it is pending."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += self._turn.eq(0)
        return m


@pytest.mark.parametrize(
    ("bug", "testcase", "message"),
    [
        (KeepsPendingBits, "none_is_lost", "leaves pending bits"),
        pytest.param(LosesWhatIsDropped, "none_is_lost", "are owed", marks=pytest.mark.slow),
        pytest.param(PrefersTheFirst, "all_take_turns", "not in turn", marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_found(bug, testcase, message):
    with pytest.raises(SimulationError, match=message):
        simulate(bug(config=CONFIG), name=bug.__name__, module=__name__, testcase=testcase)
