"""Log pages of findings that are read while findings come: a page is of one moment."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Const, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme.nvme_bench import bench_config
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, start
from hdl.background.findings import Findings
from hdl.background.walker import finding
from hdl.flow.line import write_beat, write_port
from hdl.flow.report import REPORT_WORDS, Section
from hdl.flow.walk import WalkKind, WalkResult
from hdl.nvme.pages.identify import Identity
from hdl.nvme.pages.pages import PageGenerator
from hdl.nvme.records import PageKind, page_request
from sim.golden.nvme import PAGE

FINDINGS = 32
"""Entries of a log (docs/host-interface.md)."""

CONFIG = bench_config()
RESULTS = (WalkResult.MENDED, WalkResult.MISMATCH, WalkResult.LOST, WalkResult.FAILED)
LINE = 3


class PagesOfFindings(wiring.Component):
    """`PageGenerator` and `Findings`, connected as in the controller."""

    def __init__(self, findings: type[Findings] = Findings):
        self._findings = findings(config=CONFIG)
        super().__init__(
            {
                "request": In(stream.Signature(page_request(CONFIG))),
                "response": Out(stream.Signature(1)),
                "line_write": Out(write_port(CONFIG)),
                "finding": In(stream.Signature(finding(CONFIG))),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.pages = pages = PageGenerator(config=CONFIG, identity=Identity())
        m.submodules.findings = findings = self._findings
        connect(m, flipped(self.request), pages.request)
        connect(m, pages.response, flipped(self.response))
        connect(m, pages.line_write, flipped(self.line_write))
        connect(m, flipped(self.finding), findings.finding)
        asked = pages.report.read.address
        m.d.comb += [
            findings.lost.eq(asked.section == Section.LOST),
            findings.number.eq(asked.number),
            findings.word.eq(asked.word),
            findings.showing.eq(pages.report.shows),
            pages.report.read.data.eq(findings.data),
        ]
        return m


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def pages_are_of_one_moment(dut):
    """Findings come at any rate while pages, or parts of them, are made."""
    rng = random.Random(int(os.environ["SEED"]))
    line = bytearray(PAGE)

    def write(beat) -> None:
        assert beat.mask == (1 << CONFIG.beat_dwords) - 1
        place = beat.address % CONFIG.beats * CONFIG.beat_bytes
        line[place : place + CONFIG.beat_bytes] = beat.data.to_bytes(CONFIG.beat_bytes, "little")

    request = StreamSource(dut, "request", layout=page_request(CONFIG))
    response = StreamSink(dut, "response")
    StreamSink(dut, "line_write", layout=write_beat(CONFIG), callback=write, active=0.8)
    source = StreamSource(dut, "finding", layout=finding(CONFIG), active=0.02)
    logs: dict[Section, list[int]] = {Section.DEFECTS: [], Section.LOST: []}
    sent = 0
    await start(dut)

    def send(count: int) -> None:
        """More findings; row and roles of each are its number."""
        nonlocal sent
        for _ in range(count):
            sent += 1
            result = rng.choice(RESULTS)
            source.send(
                kind=WalkKind.CHECK, array=1, base=0, shift=0, row=sent, result=result, roles=sent
            )
            if result != WalkResult.FAILED:
                lost = result == WalkResult.LOST
                logs[Section.LOST if lost else Section.DEFECTS].append(sent)

    met = 0
    for turn in range(24):
        send(rng.choice((0, 3, 80)) if turn else 0)
        source.active = rng.choice((0.002, 0.02, 1.0))
        await ClockCycles(dut.clk, rng.randrange(300))
        section = rng.choice(list(logs))
        skip = rng.choice((0, 0, REPORT_WORDS, rng.randrange(FINDINGS * REPORT_WORDS)))
        kind = PageKind.DEFECTS if section == Section.DEFECTS else PageKind.LOST_BLOCKS
        request.send(kind=kind, nsid=0, skip=skip, line=LINE)
        assert await response.receive(cycles=20_000) == 1
        met += source.waiting > 0
        words = [0] * skip
        words += [int.from_bytes(line[at : at + 4], "little") for at in range(0, PAGE, 4)]
        first = None
        for number in range(-(-skip // REPORT_WORDS), FINDINGS):
            entry = words[number * REPORT_WORDS : (number + 1) * REPORT_WORDS]
            if not entry[0] >> 31:
                assert not any(words[number * REPORT_WORDS :]), "an entry behind the last"
                break
            newest = number + entry[5]
            first = newest if first is None else first
            assert newest == first, f"entry {number} of another moment than those before it"
            row = logs[section][entry[5] - 1]
            assert entry[1] == entry[2] == row and not entry[3], f"entry {number} is mixed"
    assert met > 6, "hardly a page met findings"


def test_findings():
    simulate(PagesOfFindings(), name="findings", module=__name__)


class GoesOn(Findings):
    """A planted bug: findings come while a page is made."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.finding.ready.eq(Const(1))
        return m


def test_planted_bug_is_caught():
    with pytest.raises(SimulationError, match=r"of another moment|is mixed"):
        simulate(PagesOfFindings(GoesOn), name="findings_mutant", module=__name__)
