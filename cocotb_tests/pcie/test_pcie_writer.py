"""`HostWriter`: every word reaches its host address once, in order with posts, without pauses."""

import os
import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from cocotb_tests.busy import BusyWatch
from cocotb_tests.pcie.pcie_models import LineMemory
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import StreamSink, StreamSource, cycles_pass, sample, start, wait_until
from hdl.config import Config
from hdl.flow.host_memory import write_request
from hdl.flow.post import post
from hdl.pcie.dma.writer import HostWriter
from hdl.pcie.tlp import RequestKind, request_beat

LATENCY = 3
POST_BASE = 1 << 50


def writer_config(width: int) -> Config:
    return Config(data_width=width, lines=64, banks=4)


class Bench:
    """A `HostWriter` between a line memory and a host that collects what it is sent."""

    def __init__(self, dut):
        self.dut = dut
        self.seed = int(os.environ["SEED"])
        self.active = float(os.environ["ACTIVE"])
        self.mps = int(os.environ["MPS"])
        self.config = writer_config(int(os.environ["WIDTH"]))
        self.rng = random.Random(self.seed)
        dut._log.info("SEED=%d", self.seed)
        config, active = self.config, self.active
        self.cycle = 0
        self.host: dict[int, int] = {}
        self.packet: list = []
        self.packets = 0
        self.beat_cycles: list[int] = []
        self.due: dict[int, int] = {}  # line: words of its transfer not yet at the host
        self.finished: list[int] = []
        self.line_of: dict[int, int] = {}
        self.request = StreamSource(dut, "request", layout=write_request(config), active=active)
        self.post = StreamSource(dut, "post", layout=post(), active=active)
        self.done = StreamSink(dut, "done", active=active, callback=self._done)
        self.tlp = StreamSink(
            dut,
            "tlp",
            layout=request_beat(config),
            active=active,
            callback=self._beat,
            ignores={"WRITE:tag": "of a read"},
        )
        self.memory = LineMemory(
            dut, "line_read", config, latency=LATENCY, seed=self.seed, active=active
        )
        self.expected: dict[int, int] = {}
        self.posted: dict[int, int] = {}
        self.messages: set[int] = set()
        self.order: list[str] = []
        dut.status__max_payload.value = self.mps
        for name in ("max_read_request", "rcb", "msix_enable", "msix_mask"):
            getattr(dut, f"status__{name}").value = 0
        dut.status__bus_master.value = 1

    async def start(self):
        await start(self.dut)
        cocotb.start_soon(self._clock())

    async def _clock(self):
        while True:
            await RisingEdge(self.dut.clk)
            self.cycle += 1

    def _beat(self, beat):
        self.beat_cycles.append(self.cycle)
        assert bool(beat.first) == (not self.packet), "first is not the first beat"
        self.packet.append(beat)
        head = self.packet[0]
        for name in ("kind", "address", "dwords", "relaxed", "message"):
            assert beat[name] == head[name], f"{name} changes within a packet"
        width = self.config.beat_dwords
        last = len(self.packet) == -(-head.dwords // width)
        assert bool(beat.last) == last, "last is not the last beat"
        if last:
            self._receive(self.packet)
            self.packet = []

    def _receive(self, packet):
        head = packet[0]
        self.packets += 1
        assert head.kind == RequestKind.WRITE
        limit = 128 << self.mps
        end = head.address + 4 * head.dwords
        assert head.address // limit == (end - 1) // limit, "a packet crosses its limit"
        width = self.config.data_width
        data = sum(beat.data << number * width for number, beat in enumerate(packet))
        for place in range(head.dwords):
            address = head.address + 4 * place
            assert address not in self.host, f"{address:#x} written twice"
            self.host[address] = data >> 32 * place & 0xFFFFFFFF
        # Nothing may pass a post, nor may a post pass anything.
        assert bool(head.relaxed) == (head.address not in self.posted)
        assert bool(head.message) == (head.address in self.messages)
        if head.address in self.posted:
            line = self.posted[head.address]
            assert line < 0 or self.due[line] == 0, "a post passed its data"
            self.order.append("post")
        else:
            line = self.line_of[head.address & ~4095]
            self.due[line] -= head.dwords
            self.order.append("data")

    def _done(self, line):
        assert line in self.due, f"line {line} was not sent"
        assert line not in self.finished, f"line {line} done twice"
        self.finished.append(line)
        if self.rng.random() < 0.7:
            self.send_post(line)

    def send_post(self, line):
        """A post that must arrive after all data of ``line`` (any time, if negative)."""
        dwords = self.rng.choice((1, 4))
        address = POST_BASE + 64 * len(self.posted)
        words = [self.rng.getrandbits(32) for _ in range(dwords)]
        self.posted[address] = line
        message = dwords == 1 and self.rng.random() < 0.5
        if message:
            self.messages.add(address)
        for place, word in enumerate(words):
            self.expected[address + 4 * place] = word
        self.post.send(
            address=address,
            dwords=dwords,
            message=int(message),
            data=sum(word << 32 * place for place, word in enumerate(words)),
        )

    def transfer(self, line: int, parts: list[tuple[int, int, int]]):
        """A transfer of ``line``: (host address, dwords, source word) each."""
        self.due[line] = sum(dwords for _, dwords, _ in parts)
        for number, (address, dwords, source) in enumerate(parts):
            self.line_of[address & ~4095] = line
            for place in range(dwords):
                self.expected[address + 4 * place] = self.memory.word(source + place)
            self.request.send(
                line=line,
                last=number == len(parts) - 1,
                address=address,
                dwords=dwords,
                source=source,
            )

    def random_transfers(self, count: int):
        rng = self.rng
        pages = rng.sample(range(1, 1 << 30), 3 * count)
        for line in rng.sample(range(self.config.lines), count):
            parts, source, rest = [], line * 1024, 1024
            if rng.random() < 0.3:
                source += rng.randrange(1024)
                rest = rng.randint(1, 1024 - source % 1024)
            while rest and len(parts) < 3:
                offset = rng.choice((0, rng.randrange(1024)))
                size = min(rng.choice((rest, rng.randint(1, rest))), 1024 - offset)
                parts.append((pages.pop() * 4096 + 4 * offset, size, source))
                source += size
                rest -= size
            self.transfer(line, parts)

    async def finish(self):
        await wait_until(
            self.dut,
            lambda: (
                len(self.finished) == len(self.due)
                and self.post.idle
                and not sample(self.dut.busy)
            ),
            cycles=60_000,
            what="all transfers done",
        )
        await cycles_pass(self.dut.clk, 5)
        assert self.host == self.expected
        assert not self.packet
        assert all(due == 0 for due in self.due.values())


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def random_writes(dut):
    """Random alignment at both ends, with posts in between and back-pressure."""
    bench = Bench(dut)
    watch = BusyWatch(
        dut,
        ["request", "post"],
        ["done", "tlp", "line_read__request"],
        others=lambda: (sample(dut.line_read__response_valid),),
    )
    await bench.start()
    for _ in range(4):
        bench.send_post(-1)
    bench.random_transfers(40)
    await bench.finish()
    watch.check()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def streaming_rate(dut):
    """Whole blocks leave without an idle beat, between TLPs and between blocks."""
    bench = Bench(dut)
    await bench.start()
    blocks = 8
    offset = int(os.environ["OFFSET"])
    for line in range(blocks):
        bench.transfer(line, [(0x100000 + 4096 * line, 1024 - offset, line * 1024 + offset)])
    await bench.finish()
    data = bench.beat_cycles[: bench.config.beats * blocks]
    cycles = data[-1] - data[0] + 1
    packets = blocks * 4096 // (128 << bench.mps)
    dut._log.info(
        "offset %d: %d blocks, %d TLPs, %d beats in %d cycles",
        offset, blocks, packets, bench.config.beats * blocks, cycles,
    )
    allowed = bench.config.beats * blocks + (packets if offset else 0)
    posts = bench.order.count("post")
    assert cycles <= allowed + posts


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def posts_pass(dut):
    """A post waits for at most two TLPs while data is queued."""
    bench = Bench(dut)
    await bench.start()
    bench.random_transfers(20)
    await cycles_pass(dut.clk, 200)
    for _ in range(10):
        before = len(bench.order)
        bench.send_post(-1)
        await bench.post.drained()
        assert bench.order[before:].count("data") <= 3
    await bench.finish()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def posts_after_short_packets(dut):
    """A line that ends with a TLP of a beat or two is reported when that has left, not before.

    Such a TLP fits whole into the registers before the arbiter, where a post could pass it. The
    stream is stopped for long, so that one that is reported too early is still there.
    """
    bench = Bench(dut)
    await bench.start()
    width = bench.config.beat_dwords
    pages = iter(bench.rng.sample(range(1, 1 << 30), 500))

    def report_and_post(line):
        bench._done(line)
        bench.send_post(line)

    bench.done._callback = report_and_post
    for line in range(bench.config.lines):
        parts, source = [], line * 1024
        for _ in range(bench.rng.randint(1, 3)):
            dwords = bench.rng.randint(1, 2 * width)
            parts.append((next(pages) * 4096, dwords, source))
            source += dwords
        bench.transfer(line, parts)
    for _ in range(150):
        bench.tlp.paused = not bench.tlp.paused
        await cycles_pass(dut.clk, bench.rng.randint(1, 16))
    bench.tlp.paused = False
    await bench.finish()
    assert bench.order.count("post") >= bench.config.lines


def run(testcase, *, width=256, active="1.0", mps=1, offset=0, component=None, seed=1):
    simulate(
        component or converted(HostWriter, config=writer_config(width)),
        name=f"host_writer_w{width}",
        module=__name__,
        testcase=testcase,
        parameters={
            "SEED": str(seed),
            "WIDTH": str(width),
            "ACTIVE": active,
            "MPS": str(mps),
            "OFFSET": str(offset),
        },
    )


@pytest.mark.parametrize(
    ("width", "active", "mps"),
    [
        (256, "0.6", 1),
        (256, "1.0", 0),
        pytest.param(256, "0.8", 3, marks=pytest.mark.slow),
        (256, "1.0", 5),
        (64, "0.7", 1),
    ],
)
def test_random_writes(width, active, mps):
    run("random_writes", width=width, active=active, mps=mps)


@pytest.mark.parametrize("offset", [0, 3])
def test_streaming_rate(offset):
    run("streaming_rate", offset=offset)


def test_posts_pass():
    run("posts_pass")


@pytest.mark.parametrize("width", [64, 256])
def test_posts_after_short_packets(width):
    run("posts_after_short_packets", width=width)


class EarlyReport(HostWriter):
    """Planted bug: a line is reported when its last beat enters the registers, not as it leaves."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        entering = m.submodules.tlp_relay.input
        ends = entering.valid & entering.ready & entering.payload.ends
        m.d.comb += [
            m.submodules.done.input.valid.eq(ends),
            m.submodules.done.input.payload.eq(entering.payload.line),
        ]
        return m


@pytest.mark.slow
def test_mutant_early_report():
    with pytest.raises(SimulationError, match="a post passed its data"):
        run("posts_after_short_packets", component=EarlyReport(config=writer_config(256)))


class WrongLine(HostWriter):
    """Planted bug: the line after the finished one is reported."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.done.input.payload.eq(m.submodules.reader.chunk.payload.line + 1)
        return m


@pytest.mark.slow
def test_mutant_wrong_line():
    with pytest.raises(SimulationError):
        run("random_writes", component=WrongLine(config=writer_config(256)))


@pytest.mark.slow
def test_mutant_source_rotation(monkeypatch):
    """Planted bug: data keeps the alignment of the line store."""
    monkeypatch.setattr("hdl.pcie.dma.writer.rotate_right", lambda words, amount: words)
    with pytest.raises(SimulationError):
        run("random_writes")
