"""`hdl.metadata.host_changes.HostChanges`: imports go one way, and all other changes another."""

import random
from collections import Counter
from os import environ

import cocotb
import pytest

from cocotb_tests.busy import BusyWatch
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, pack, sample, start
from hdl.config import Config
from hdl.flow.manage import ManageOpcode, ManageStatus, manage_request, manage_response
from hdl.metadata.host_changes import HostChanges, Import

CONFIG = Config(ports=8, metadata=True)
REQUEST, RESPONSE = manage_request(CONFIG), manage_response(CONFIG)
CHANGES = 300


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(active=[1.0, 0.4])
async def everything_goes_its_way(dut, active):
    """Each change reaches the one that it is for, and the answer is that one's."""
    choose = random.Random(environ["SEED"])
    asked: list[int] = []
    sources = {
        name: StreamSource(dut, f"{name}__response", layout=RESPONSE, active=active)
        for name in ("changes", "imports")
    }
    answers: list[tuple[ManageStatus, int, int]] = []

    def answer(name: str, seen: int) -> None:
        asked.append(seen)
        answers.append(
            (choose.choice([*ManageStatus]), choose.randrange(256), choose.getrandbits(32))
        )
        status, index, drives = answers[-1]
        sources[name].send(status=status, index=index, drives=drives)

    StreamSink(
        dut, "changes__request", active=active, callback=lambda seen: answer("changes", seen)
    )
    StreamSink(
        dut, "imports__request", active=active, callback=lambda seen: answer("imports", seen)
    )
    requests = StreamSource(dut, "host__request", active=active)
    told = StreamSink(dut, "host__response", layout=RESPONSE, active=active)
    BusyWatch(
        dut,
        ["host__request", "changes__response", "imports__response"],
        ["changes__request", "imports__request", "host__response"],
    )
    await start(dut)
    seen: Counter = Counter()
    for _ in range(CHANGES):
        opcode = choose.choice([*ManageOpcode, *[ManageOpcode.FOREIGN] * 4])
        port, start_block = choose.randrange(256), choose.getrandbits(40)
        clear = choose.randrange(2)
        wishes = {name: choose.randrange(2) for name in ("degraded", "assumed", "preview")}
        change = pack(
            REQUEST, opcode=opcode, port=port, start=start_block, clear=clear, **wishes
        )
        requests.send(change)
        found = await told.receive(cycles=400)
        assert (found.status, found.index, found.drives) == answers[-1], (found, answers[-1])
        imports = opcode == ManageOpcode.FOREIGN and not clear
        assert asked == [pack(Import, port=port, **wishes) if imports else change], opcode
        seen["imports" if imports else f"changes, {clear}"] += 1
        asked.clear()
        await cycles_pass(dut.clk, choose.choice((1, 1, 6)))
    assert len(seen) == 3 and not sample(dut.busy), seen


class AnswersForOthers(HostChanges):
    """A planted bug: an import is answered by the tables."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.host.response.payload.eq(self.changes.response.payload)
        return m


def test_host_changes():
    simulate(HostChanges(config=CONFIG), name="host_changes", module=__name__)


def test_a_wrong_answer_is_found():
    with pytest.raises(SimulationError, match="failed: everything_goes_its_way"):
        simulate(AnswersForOthers(config=CONFIG), name="host_changes_wrong", module=__name__)
