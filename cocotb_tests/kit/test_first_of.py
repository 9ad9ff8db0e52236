"""`hdl.kit.merge.FirstOf`: each payload goes out once, the first input's before all others."""

from collections import deque

import cocotb
import pytest
from amaranth.hdl import Module, Signal

from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, every_cycle, sample, start
from hdl.kit.merge import FirstOf

INPUTS = 3
BITS = 8
COUNT = 400


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(active=[0.1, 0.7, 1.0])
async def every_payload_goes_out_once(dut, active):
    """A payload says whose it is. The receiver takes all, as that of a controller does."""
    wanted = [deque(range(user, 1 << BITS, INPUTS)) for user in range(INPUTS)]
    for user, payloads in enumerate(wanted):
        source = StreamSource(dut, f"inputs__{user}", active=active)
        payloads.extend(list(payloads) * (COUNT // len(payloads)))
        for payload in payloads:
            source.send(payload)

    def took(payload: int) -> None:
        user = payload % INPUTS
        assert wanted[user] and wanted[user].popleft() == payload, f"{payload} is not next"
        waits = [index for index in range(user) if sample(getattr(dut, f"inputs__{index}__valid"))]
        assert not waits, f"input {user} goes before {waits}"

    StreamSink(dut, "output", callback=took)

    def look():
        while True:
            yield
            offers = [sample(getattr(dut, f"inputs__{user}__valid")) for user in range(INPUTS)]
            assert sample(dut.output__valid) == any(offers), "a cycle is lost"

    await start(dut)
    every_cycle(dut.clk, look())
    for _ in range(100 * COUNT):
        if not any(wanted):
            break
        await cycles_pass(dut.clk, 20)
    assert not any(wanted), "payloads are stuck"


class Clocked(FirstOf):
    """It has no register, and so no clock. Here it has one."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.sync += Signal(name="was_valid").eq(self.output.valid)
        return m


def test_first_of():
    simulate(Clocked(BITS, inputs=INPUTS), name="first_of", module=__name__)


class TakesAll(Clocked):
    """A planted bug: what comes at once is taken at once, and one of it goes out."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        m.d.comb += [source.ready.eq(self.output.ready) for source in self.inputs]
        return m


class SecondOf(Clocked):
    """A planted bug: the second input goes before the first."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        first, second, _ = self.inputs
        with m.If(second.valid):
            m.d.comb += [
                self.output.payload.eq(second.payload),
                second.ready.eq(self.output.ready),
                first.ready.eq(0),
            ]
        return m


@pytest.mark.slow
@pytest.mark.parametrize("bug", [TakesAll, SecondOf])
def test_first_of_planted_bugs_are_found(bug):
    with pytest.raises(SimulationError, match="failed: every_payload_goes_out_once"):
        simulate(bug(BITS, inputs=INPUTS), name=f"first_of_{bug.__name__}", module=__name__)
