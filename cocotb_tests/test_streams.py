"""The test bench tried on `hdl.streams.Merge`, and shown to catch streams that break the rules."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, pack, start, unpack
from hdl.streams import Merge

COUNT = 200
PAYLOAD_BITS = 16


class Colour(enum.Enum, shape=2):
    RED = 0
    GREEN = 2


LAYOUT = data.StructLayout(
    {"colour": Colour, "pair": data.ArrayLayout(3, 2), "inner": data.StructLayout({"x": 5})}
)


class Relay(wiring.Component):
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
    begin = cocotb.utils.get_sim_time("ns")
    await sink.receive_all(inputs * COUNT - 1)
    assert round((cocotb.utils.get_sim_time("ns") - begin) / 4) == inputs * COUNT - 1


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


def test_relay():
    simulate(Relay(withdraws=False), name="relay", module=__name__, testcase="relays")


def test_withdrawn_valid_is_caught():
    with pytest.raises(SimulationError, match=r"withdrawn before ready|payload changed"):
        simulate(Relay(withdraws=True), name="relay_mutant", module=__name__, testcase="relays")


def test_missing_testcase_is_an_error():
    with pytest.raises(SimulationError, match="no test ran"):
        simulate(Relay(withdraws=False), name="relay", module=__name__, testcase="absent")


def test_pack_agrees_with_amaranth():
    fields = {"colour": Colour.GREEN, "pair": [5, 2], "inner": {"x": 17}}
    value = pack(LAYOUT, **fields)
    assert value == LAYOUT.const(fields).as_value().value
    assert unpack(LAYOUT, value) == fields
    assert unpack(LAYOUT, value).inner.x == 17


def test_pack_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="does not fit"):
        pack(LAYOUT, inner={"x": 32})
