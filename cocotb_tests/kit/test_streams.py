"""The test bench, tried on `hdl.kit.merge.Merge`, catches streams that break the rules."""

import os
import random
from itertools import repeat

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ClockCycles, RisingEdge, Timer
from cocotb.utils import get_sim_time

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import (
    CLOCK_PERIOD_NS,
    SINK_IDLE_CYCLES,
    Packing,
    StreamSink,
    StreamSource,
    cycles_pass,
    every_cycle,
    pack,
    sample,
    start,
    unpack,
)
from hdl.kit.cut import Relay, Skid
from hdl.kit.merge import Merge

COUNT = 200
PAYLOAD_BITS = 16


class Colour(enum.Enum, shape=2):
    RED = 0
    GREEN = 2


LAYOUT = data.StructLayout(
    {"colour": Colour, "pair": data.ArrayLayout(3, 2), "inner": data.StructLayout({"x": 5})}
)


class Register(wiring.Component):
    """A register between two streams; ``withdraws`` breaks the rule that valid stays."""

    def __init__(self, *, withdraws: bool):
        self._withdraws = withdraws
        super().__init__(
            {
                "input": In(stream.Signature(PAYLOAD_BITS)),
                "output": Out(stream.Signature(PAYLOAD_BITS)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        room = self.output.ready | ~self.output.valid
        m.d.comb += self.input.ready.eq(room)
        with m.If(room | self._withdraws):
            m.d.sync += [
                self.output.valid.eq(self.input.valid & room),
                self.output.payload.eq(self.input.payload),
            ]
        m.d.comb += self.busy.eq(self.output.valid)
        return m


@cocotb.test(timeout_time=100, timeout_unit="us")
async def merges_everything_in_order(dut):
    await start(dut)
    inputs = int(os.environ["INPUTS"])
    generator = random.Random(int(os.environ["SEED"]))
    sources = [StreamSource(dut, f"inputs__{i}", active=0.6) for i in range(inputs)]
    sink = StreamSink(dut, "output", active=0.7)
    expected = []
    for index, source in enumerate(sources):
        values = [index << 12 | generator.randrange(1 << 12) for _ in range(COUNT)]
        source.send_all(values)
        expected.append(values)
    received = await sink.receive_all(inputs * COUNT)
    assert [[v for v in received if v >> 12 == i] for i in range(inputs)] == expected
    assert sink.idle
    assert all(source.idle for source in sources)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def merges_one_payload_a_cycle(dut):
    await start(dut)
    inputs = int(os.environ["INPUTS"])
    sources = [StreamSource(dut, f"inputs__{i}") for i in range(inputs)]
    sink = StreamSink(dut, "output")
    for source in sources:
        source.send_all(range(COUNT))
    await sink.receive()
    begin = get_sim_time("ns")
    await sink.receive_all(inputs * COUNT - 1)
    assert round((get_sim_time("ns") - begin) / CLOCK_PERIOD_NS) == inputs * COUNT - 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def relays(dut):
    await start(dut)
    source = StreamSource(dut, "input", active=0.6)
    sink = StreamSink(dut, "output", active=0.5)
    source.send_all(range(COUNT))
    assert await sink.receive_all(COUNT) == list(range(COUNT))


@pytest.mark.parametrize("inputs", [1, 3])
def test_merge(inputs):
    simulate(
        Merge(PAYLOAD_BITS, inputs=inputs),
        name=f"merge_{inputs}",
        module=__name__,
        parameters={"INPUTS": str(inputs)},
        testcase=["merges_everything_in_order", "merges_one_payload_a_cycle"],
    )


@cocotb.test(timeout_time=100, timeout_unit="us")
async def sinks_wake_in_time(dut):
    """A sink that rests misses no payload, however long the pause before it, nor that it is told to
    pause."""
    await start(dut)
    source = StreamSource(dut, "input")
    sink = StreamSink(dut, "output")
    gaps = [*range(2 * SINK_IDLE_CYCLES), *range(2 * SINK_IDLE_CYCLES)]
    for number, gap in enumerate(gaps):
        source.send(number)
        await ClockCycles(dut.clk, 1 + gap)
    await source.drained()
    await ClockCycles(dut.clk, 3 * SINK_IDLE_CYCLES)
    assert [sink.receive_now() for _ in range(len(sink))] == list(range(len(gaps)))
    sink.paused = True
    source.send(1)
    await ClockCycles(dut.clk, 3 * SINK_IDLE_CYCLES)
    assert not len(sink), "paused, and it takes"
    sink.paused = False
    assert await sink.receive(cycles=10) == 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def waits_for_whole_cycles(dut):
    """The edge at which a wait begins does not count, also if it has not been counted yet."""
    every_cycle(dut.clk, repeat(None))
    await start(dut)  # which waits for edges from before the count does
    for number in (1, 2, 7, 1, 2, 7):
        begin = get_sim_time("ns")
        await cycles_pass(dut.clk, number)
        assert round((get_sim_time("ns") - begin) / CLOCK_PERIOD_NS) == number


@cocotb.test(timeout_time=100, timeout_unit="us")
async def relays_one_payload_a_cycle(dut):
    await start(dut)
    source = StreamSource(dut, "input")
    sink = StreamSink(dut, "output")
    source.send_all(range(COUNT))
    await sink.receive()
    begin = get_sim_time("ns")
    await sink.receive_all(COUNT - 1)
    assert round((get_sim_time("ns") - begin) / CLOCK_PERIOD_NS) == COUNT - 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def cuts_ready(dut):
    """``ready`` at the input does not follow ``ready`` at the output within a cycle."""
    await start(dut)
    generator = random.Random(int(os.environ["SEED"]))
    for _ in range(COUNT):
        dut.input__valid.value = generator.randrange(2)
        await RisingEdge(dut.clk)
        seen = set()
        for ready in (0, 1):
            dut.output__ready.value = ready
            await Timer(1, "ns")
            seen.add(sample(dut.input__ready))
        assert len(seen) == 1, "ready is combinational"


class Leaky(wiring.Component):
    """`Skid` that claims to have room when it has none."""

    def __init__(self):
        self._inner = Skid(PAYLOAD_BITS)
        super().__init__(self._inner.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        wiring.connect(m, wiring.flipped(self.input), inner.input)
        wiring.connect(m, inner.output, wiring.flipped(self.output))
        m.d.comb += [self.input.ready.eq(1), self.busy.eq(inner.busy)]
        return m


@pytest.mark.parametrize("kind", [Skid, Relay])
def test_relay(kind):
    simulate(
        kind(PAYLOAD_BITS),
        name=kind.__name__.lower(),
        module=__name__,
        testcase=[
            "relays",
            "relays_one_payload_a_cycle",
            "sinks_wake_in_time",
            "waits_for_whole_cycles",
            "cuts_ready",
        ],
    )


def test_relay_faults_are_caught():
    with pytest.raises(SimulationError, match="SimTimeoutError"):
        simulate(Leaky(), name="skid_leaky", module=__name__, testcase="relays")
    with pytest.raises(SimulationError, match="ready is combinational"):
        simulate(
            Register(withdraws=False), name="register", module=__name__, testcase="cuts_ready"
        )


def test_bench_on_register():
    simulate(Register(withdraws=False), name="register", module=__name__, testcase="relays")


def test_withdrawn_valid_is_caught():
    with pytest.raises(SimulationError, match=r"withdrawn before ready|payload changed"):
        simulate(
            Register(withdraws=True), name="register_mutant", module=__name__, testcase="relays"
        )


def test_missing_testcase_is_an_error():
    with pytest.raises(SimulationError, match="no test ran"):
        simulate(Register(withdraws=False), name="register", module=__name__, testcase="absent")


def test_pack_agrees_with_amaranth():
    fields = {"colour": Colour.GREEN, "pair": [5, 2], "inner": {"x": 17}}
    value = pack(LAYOUT, **fields)
    assert value == LAYOUT.const(fields).as_value().value
    assert unpack(LAYOUT, value) == fields
    assert unpack(LAYOUT, value).inner.x == 17


def test_packing_packs_each_entry_as_it_is():
    """Also one that comes again, and one that differs in a nested field only."""
    packing = Packing(LAYOUT)
    for colour, x in ((Colour.GREEN, 1), (Colour.GREEN, 2), (Colour.RED, 1), (Colour.GREEN, 1)):
        fields = {"colour": colour, "inner": {"x": x}}
        assert packing(**fields) == pack(LAYOUT, **fields)
    assert packing(colour=Colour.GREEN) == pack(LAYOUT, colour=Colour.GREEN)


def test_pack_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="does not fit"):
        pack(LAYOUT, inner={"x": 32})
