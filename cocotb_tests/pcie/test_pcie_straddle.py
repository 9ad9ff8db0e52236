"""`hdl.pcie.phy.straddle.StraddledStripper` behind the straddled RC interface of cocotbext-pcie."""

import logging
import os
import random
from collections import deque
from itertools import cycle
from typing import Any

import cocotb
import pytest
from amaranth.hdl import Const, Mux, Signal
from amaranth.lib import data
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiStreamBus
from cocotbext.pcie.xilinx.us.interface import RcSource, UsPcieFrame

from cocotb_tests.pcie.axis_rules import StraddleRules
from cocotb_tests.pcie.hard_block import straddle_strictly
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import StreamSink, cycles_pass, pack, sample, start, unpack, wait_until
from hdl.config import Config
from hdl.pcie.dma.tags import headers_within
from hdl.pcie.phy.descriptors import ErrorCode, RequesterCompletion
from hdl.pcie.phy.sideband import user_shape
from hdl.pcie.phy.straddle import SEGMENT_DWORDS, StraddledStripper
from hdl.pcie.tlp import CompletionStatus, completion_beat

DESCRIPTOR_DWORDS = 3
RCB_DWORDS = 16
LONGEST_DWORDS = 64
COMPLETIONS = 1500
SILENT = (ErrorCode.MISMATCH, ErrorCode.BAD_TAG)
GIVEN_UP = (ErrorCode.TIMEOUT, ErrorCode.FUNCTION_RESET)
SPOILED = (ErrorCode.POISONED, ErrorCode.BAD_LENGTH, ErrorCode.BAD_ADDRESS)
WITHOUT_DATA = (ErrorCode.BAD_STATUS, *GIVEN_UP)


def config_of(width: int) -> Config:
    return Config(data_width=width, lines=64, banks=8, read_tags=64)


class Bench:
    """A stripper between a hard block's RC interface and a sink that checks what comes."""

    def __init__(self, dut, *, active: float = 1.0, source_active: float = 1.0):
        self.dut = dut
        self.seed = int(os.environ["SEED"])
        dut._log.info("SEED=%d", self.seed)
        self.rng = random.Random(self.seed)
        self.config = config_of(int(os.environ["WIDTH"]))
        self.expected: deque[dict[str, Any]] = deque()
        self.sent = 0
        self.came = 0
        self._beats: list[Any] = []
        bus: Any = AxiStreamBus.from_prefix(dut, "rc")
        segments = int(os.environ["SEGMENTS"])
        self.source: Any = RcSource(bus, dut.clk, dut.rst, segments)
        self.source.log.setLevel(logging.WARNING)
        straddle_strictly(self.source, random.Random(f"{self.seed}/rc"))
        if source_active < 1.0:
            self.source.set_pause_generator(
                self.rng.random() >= source_active for _ in cycle((0,))
            )
        self.rules = StraddleRules(dut, unit=self.config.beat_dwords // segments)
        self.sink = StreamSink(
            dut,
            "completion",
            layout=completion_beat(self.config),
            active=active,
            callback=self._beat,
        )
        self.stalls = 0
        self.began = self.ended = 0
        self.now = 0

    async def start(self):
        await start(self.dut)
        cocotb.start_soon(self._watch())

    async def _watch(self):
        valid, ready = self.dut.rc_tvalid, self.dut.rc_tready
        while True:
            await RisingEdge(self.dut.clk)
            self.now += 1
            if sample(valid):
                self.began = self.began or self.now
                self.ended = self.now
                self.stalls += not sample(ready)

    def send(
        self,
        dwords: int,
        *,
        error: ErrorCode = ErrorCode.NONE,
        poisoned: bool = False,
        discontinue: bool = False,
    ) -> None:
        """Queues a completion, and what must come of it."""
        rng = self.rng
        length = dwords if error not in WITHOUT_DATA else 0
        status = CompletionStatus.SC
        if error is ErrorCode.BAD_STATUS:
            status = rng.choice((CompletionStatus.UR, CompletionStatus.CA))
        fields = {
            "tag": rng.randrange(256),
            "byte_count": rng.randint(max(1, 4 * length), 4096),
            "lower_address": rng.randrange(0, 4096, 4),
            "request_completed": rng.randrange(2),
        }
        descriptor = pack(
            RequesterCompletion,
            error=error,
            dwords=length,
            status=status.value,
            poisoned=int(poisoned),
            requester_id=rng.getrandbits(16),
            completer_id=rng.getrandbits(16),
            traffic_class=rng.getrandbits(3),
            attributes=rng.getrandbits(3),
            **fields,
        )
        words = [rng.getrandbits(32) for _ in range(length)]
        frame = UsPcieFrame()
        frame.data = [descriptor >> 32 * place & 0xFFFF_FFFF for place in range(3)] + words
        frame.byte_en = [0] * DESCRIPTOR_DWORDS + [0xF] * length
        frame.discontinue = discontinue
        frame.update_parity()
        self.source.send_nowait(frame)
        self.sent += 1
        if error in SILENT:
            return
        self.expected.append(
            {
                "words": words,
                "bad": poisoned or discontinue or error in SPOILED,
                "status": CompletionStatus.CA if error in GIVEN_UP else status,
                "dwords": length,
                **fields,
            }
        )

    def send_any(self) -> None:
        """Queues a completion of any kind, most of them short and good."""
        rng = self.rng
        length = rng.choice(
            (
                rng.randint(1, 5),
                rng.randint(1, RCB_DWORDS),
                RCB_DWORDS,
                RCB_DWORDS * rng.randint(1, LONGEST_DWORDS // RCB_DWORDS),
                rng.randint(1, LONGEST_DWORDS),
            )
        )
        kind = rng.random()
        if kind < 0.6:
            self.send(length)
        elif kind < 0.7:
            self.send(length, discontinue=True)
        elif kind < 0.75:
            self.send(length, poisoned=True, error=ErrorCode.POISONED)
        else:
            self.send(
                length, error=rng.choice((*SILENT, *GIVEN_UP, *SPOILED, ErrorCode.BAD_STATUS))
            )

    def _beat(self, beat) -> None:
        assert beat.first == (not self._beats), "first"
        self._beats.append(beat)
        if not beat.last:
            return
        beats, self._beats = self._beats, []
        self.came += 1
        expected = self.expected.popleft()
        what = f"completion {self.came}"
        width = self.config.beat_dwords
        assert len(beats) == max(1, -(-expected["dwords"] // width)), f"{what}: beats"
        for beat in beats:
            for name in ("tag", "status", "dwords", "byte_count", "lower_address",
                         "request_completed"):
                assert beat[name] == expected[name], f"{what}: {name}"
        words = [
            beat.data >> 32 * place & 0xFFFF_FFFF for beat in beats for place in range(width)
        ]
        assert words[: expected["dwords"]] == expected["words"], f"{what}: data"
        assert any(beat.poisoned for beat in beats) == expected["bad"], f"{what}: poisoned"

    async def finish(self, cycles: int = 60_000):
        await wait_until(
            self.dut,
            lambda: not self.expected and self.source.idle() and not sample(self.dut.busy),
            cycles=cycles,
            what="every completion",
        )
        assert not self._beats
        assert self.rules.packets == self.sent


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def any_completions(dut):
    """Completions of every length and kind come whole and in order, whatever stalls."""
    source_active, active = (float(part) for part in os.environ["ACTIVE"].split("/"))
    bench = Bench(dut, active=active, source_active=source_active)
    await bench.start()
    for _ in range(COMPLETIONS):
        bench.send_any()
        if bench.rng.random() < 0.02:
            await cycles_pass(dut.clk, bench.rng.randrange(40))
    await bench.finish()
    dut._log.info("%d of %d beats shared", bench.rules.shared, bench.rules.beats)
    assert bench.rules.shared > COMPLETIONS // 8


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def full_rate(dut):
    """Completions of whole beats never make the block wait, whatever their lengths."""
    bench = Bench(dut)
    await bench.start()
    width = bench.config.beat_dwords
    segments = 0
    lengths = [RCB_DWORDS] * 100 + [2 * RCB_DWORDS] * 50 + [4 * RCB_DWORDS] * 50
    lengths += [width * bench.rng.randint(1, LONGEST_DWORDS // width) for _ in range(100)]
    for length in lengths:
        bench.send(length)
        segments += -(-(length + DESCRIPTOR_DWORDS) // SEGMENT_DWORDS)
    await bench.finish()
    took = bench.ended - bench.began + 1
    dut._log.info("%d completions, %d segments in %d cycles", len(lengths), segments, took)
    assert not bench.stalls
    unit = int(os.environ["SEGMENTS"])
    if unit * SEGMENT_DWORDS == width:
        assert took == -(-segments // unit), "the block left segments empty"
    assert took * width < sum(length + DESCRIPTOR_DWORDS for length in lengths) * 1.1


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def single_words(dut):
    """Completions of a word leave one a cycle."""
    bench = Bench(dut)
    await bench.start()
    for _ in range(400):
        bench.send(1)
    await bench.finish()
    assert bench.ended - bench.began + 1 <= 400 + 2


def run(
    testcase, *, width=256, segments=None, active="1/1", seed=1, component=None, parameters=None
):
    simulate(
        component or converted(StraddledStripper, config=config_of(width)),
        name=f"straddle_w{width}",
        module=__name__,
        testcase=testcase,
        parameters={
            "WIDTH": str(width),
            "SEGMENTS": str(segments or width // 128),
            "ACTIVE": active,
            **(parameters or {}),
        },
        seed=seed,
    )


OFTEN = (256, 2, "0.6/0.9"), (512, 4, "1/1"), (512, 2, "1/0.5")
"""Each kind of stream, and each pace, once."""


@pytest.mark.parametrize(
    ("width", "segments", "active"),
    [
        pytest.param(*kind, active, marks=() if (*kind, active) in OFTEN else pytest.mark.slow)
        for kind in ((256, 2), (512, 4), (512, 2))
        for active in ("1/1", "1/0.5", "0.6/0.9")
    ],
)
def test_any_completions(width, segments, active):
    run("any_completions", width=width, segments=segments, active=active)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 10))
@pytest.mark.parametrize("width", [256, 512])
def test_any_completions_for_long(width, seed):
    run("any_completions", width=width, active=f"{0.3 + seed / 15:.2f}/0.7", seed=seed)


@pytest.mark.parametrize("width", [256, 512])
def test_rates(width):
    run(["full_rate", "single_words"], width=width)


def test_completions_outstanding():
    """The option is for 256 and 512 bits. Without it fewer than 64 completions are outstanding, as
    PG213 asks (Requester Completion Interface, straddle)."""
    for width in (64, 128, 256, 512):
        for wanted in (False, True):
            config = Config(data_width=width, banks=8, completion_straddle=wanted)
            assert config.straddles == (wanted and width >= 256)
            bound = width >= 256 and not wanted
            most = 63 if bound else config.completion_headers
            assert config.completions_outstanding == most
            assert headers_within(config, 64) == most
    few = Config(completion_straddle=False, completion_headers=8)
    assert few.completions_outstanding == 8


class LosesTheSecond(StraddledStripper):
    """Planted bug: of two packets that start in a beat only the first is seen."""

    def _read_user(self, m):
        starts = self._starts
        self._starts = found = Signal.like(starts)
        super()._read_user(m)
        m.d.comb += starts.eq(found & -found)
        self._starts = starts


class ReadsTheFirst(StraddledStripper):
    """Planted bug: a descriptor is always looked for in the first segment."""

    def _descriptor_at(self, segment):
        return super()._descriptor_at(segment & 0)


class TurnsTooLittle(StraddledStripper):
    """Planted bug: payload that starts in the last segment is taken from the one before."""

    def _rotated(self, earlier, turn):
        return super()._rotated(earlier, Mux(turn == self._count - 1, self._count - 2, turn))


class EndsEarly(StraddledStripper):
    """Planted bug: the last word of a packet is not looked for in its segment."""

    def _read_user(self, m):
        end_words = self._end_words
        self._end_words = [Signal.like(word) for word in end_words]
        super()._read_user(m)
        self._end_words = end_words


class IgnoresDiscontinue(StraddledStripper):
    """Planted bug: what the block has read wrongly passes for good."""

    def __init__(self, *, config):
        super().__init__(config=config)
        self._discontinue = Const(0)


@pytest.mark.parametrize(
    "mutant", [LosesTheSecond, ReadsTheFirst, TurnsTooLittle, EndsEarly, IgnoresDiscontinue]
)
@pytest.mark.slow
def test_planted_bugs_are_found(mutant):
    with pytest.raises(SimulationError):
        run("any_completions", component=mutant(config=config_of(256)))


BROKEN = {
    "tkeep": "tkeep 0x",
    "end": "where the descriptor says|an end at",
    "enable": "byte enables 0x",
    "start": "without a packet|an empty beat",
    "changed": "a beat changed before tready",
    "discontinue": "discontinue without an end",
}
"""What a hard block could do wrong, and what the rules say of it."""


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def broken_block(dut):
    """A beat that no block would send."""
    bench = Bench(dut, active=0.5)
    await bench.start()
    kind = os.environ["BROKEN"]
    drive = bench.source._drive
    user = data.Layout.cast(user_shape("rc", bench.source.width))
    beats = 0

    def place(name: str) -> int:
        return user[name].offset

    async def spoil(beat):
        nonlocal beats
        beats += 1
        fields = unpack(user_shape("rc", bench.source.width), beat.tuser)
        at_all = beats > 20
        await drive(beat)
        if not at_all:
            return
        if kind == "tkeep":
            beat.tkeep ^= 0x80
        elif kind == "end" and fields.end[0].valid:
            beat.tuser ^= 1 << place("end") + 1
        elif kind == "enable":
            beat.tuser ^= 1 << place("byte_enable") + 20
        elif kind == "start" and fields.start == 1:
            beat.tuser ^= 1 << place("start")
        elif kind == "discontinue" and not fields.end[0].valid:
            beat.tuser |= 1 << place("discontinue")
        elif kind == "changed":
            await RisingEdge(dut.clk)
            while not sample(dut.rc_tvalid) or sample(dut.rc_tready):
                await RisingEdge(dut.clk)
            dut.rc_tdata.value = sample(dut.rc_tdata) ^ 1

    bench.source._drive = spoil
    for _ in range(200):
        bench.send(bench.rng.randint(1, LONGEST_DWORDS))
    await bench.finish()


@pytest.mark.parametrize("kind", BROKEN)
def test_rules_of_the_block(kind):
    with pytest.raises(SimulationError, match=BROKEN[kind]):
        run("broken_block", parameters={"BROKEN": kind})
