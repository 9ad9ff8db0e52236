"""`HostReader`: every byte lands, every transfer is answered once, whatever completions do."""

import os
import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Out, connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.pcie_models import CompletionModel, apply_beat, host_word
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import StreamSink, StreamSource, start, wait_until
from hdl.config import Config
from hdl.memory.interface import write_beat
from hdl.pcie.interface import (
    Kind,
    RequestKind,
    completion_beat,
    inbox_beat,
    inbox_dwords,
    read_done,
    read_request,
    request_beat,
)
from hdl.pcie.landing import Landing
from hdl.pcie.reader import HostReader

TIMEOUT = 3000
CLEARING = 2000
UNKNOWN_TAG = 255
"""A tag beyond those of the configuration."""


def reader_config(
    width: int, *, tags: int = 16, headers: int = 128, space: int = 32768
) -> Config:
    return Config(
        data_width=width,
        lines=64,
        banks=4,
        commands=64,
        read_tags=tags,
        completion_headers=headers,
        completion_bytes=space,
        transfer_blocks=8,
    )


class Bench:
    """A `HostReader` between a host that answers and two memories."""

    def __init__(self, dut, *, active=1.0, fault_rate=0.0, mrrs=2, rcb=64, most=256):
        self.dut = dut
        self.seed = int(os.environ["SEED"])
        self.config = reader_config(
            int(os.environ["WIDTH"]),
            tags=int(os.environ["TAGS"]),
            headers=int(os.environ["HEADERS"]),
            space=int(os.environ["SPACE"]),
        )
        self.rng = random.Random(self.seed)
        dut._log.info("SEED=%d", self.seed)
        config = self.config
        self.model = CompletionModel(
            config, self.rng, rcb=rcb, most=most, fault_rate=fault_rate
        )
        self.mrrs = mrrs
        self.active = active
        self.lines: dict[int, int] = {}
        self.inbox: dict[int, int] = {}
        self.cycle = 0
        self.beat_cycles: list[int] = []
        self.completion_cycles: list[int] = []
        self.tlps: list[dict] = []
        self.live: dict[int, int] = {}
        self.expected: dict[tuple[Kind, int], list] = {}
        self.failing: set[tuple[Kind, int]] = set()
        self.answers: dict[tuple[Kind, int], bool] = {}
        self.wanted: list[tuple[Kind, int, int, int, int]] = []
        self.owner: dict[int, tuple[Kind, int]] = {}
        self.hold = False

        def layouts(name, layout, sink=None, **more):
            return StreamSink(dut, name, layout=layout, active=active, callback=sink, **more)

        self.request = StreamSource(dut, "request", layout=read_request(config), active=active)
        self.completion = StreamSource(
            dut, "completion", layout=completion_beat(config), active=active
        )
        self.tlp = layouts("tlp", request_beat(config), self._tlp)
        self.done = layouts("done", read_done(config), self._done)
        self.line_write = layouts("line_write", write_beat(config), self._line)
        self.inbox_write = layouts("inbox_write", inbox_beat(config), self._inbox)
        dut.status__max_read_request.value = mrrs
        dut.status__max_payload.value = 1
        dut.status__rcb.value = int(rcb == 128)
        dut.status__bus_master.value = 1
        dut.status__msix_enable.value = 0
        dut.status__msix_mask.value = 0
        dut.status__function_reset.value = 0
        dut.status__extended_tag.value = 0
        dut.now.value = 0
        dut.hold.value = 0
        dut.drop_valid.value = 0
        self.drop_rate = 0.0
        self.dropped: list[int] = []

    async def start(self):
        await start(self.dut)
        cocotb.start_soon(self._clock())
        cocotb.start_soon(self._complete())
        cocotb.start_soon(self._drop())

    async def _clock(self):
        while True:
            await RisingEdge(self.dut.clk)
            self.cycle += 1
            self.dut.now.value = self.cycle
            if int(self.dut.completion__valid.value) and int(self.dut.completion__ready.value):
                self.completion_cycles.append(self.cycle)

    async def _complete(self):
        while True:
            await RisingEdge(self.dut.clk)
            if self.hold or self.completion.waiting > 4:
                continue
            if self.model.waiting < 6 and self.rng.random() < 0.9 and self.active < 1.0:
                continue
            beats = self.model.next_beats()
            if beats:
                self.completion.send_all(beats)

    async def _drop(self):
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            if not self.dropped:
                continue
            dut.drop_tag.value = self.dropped.pop(0)
            dut.drop_valid.value = 1
            await RisingEdge(dut.clk)
            while not int(dut.drop_taken.value):
                await RisingEdge(dut.clk)
            dut.drop_valid.value = 0

    def _line(self, beat):
        self.beat_cycles.append(self.cycle)
        apply_beat(self.lines, self.config, beat.address, beat.data, beat.mask)

    def _inbox(self, beat):
        apply_beat(self.inbox, self.config, beat.address, beat.data, beat.mask)

    def _tlp(self, beat):
        assert beat.kind == RequestKind.READ
        assert beat.first
        assert beat.last
        limit = 128 << self.mrrs
        end = beat.address + 4 * beat.dwords
        assert beat.address // limit == (end - 1) // limit, "a request crosses its limit"
        owner = next(
            (kind, index)
            for kind, index, address, dwords, _ in self.wanted
            if address <= beat.address < address + 4 * dwords
        )
        assert bool(beat.relaxed) == (owner[0] is Kind.BLOCK), "relaxed ordering is for data"
        if self.drop_rate and self.rng.random() < self.drop_rate:
            self.failing.add(owner)
            self.dropped.append(beat.tag)
            return
        fault = self.model.take(tag=beat.tag, address=beat.address, dwords=beat.dwords)
        if fault:
            self.dut._log.debug("fault %s on tag %d of %s", fault, beat.tag, owner)
            self.failing.add(owner)
        self.tlps.append(dict(beat))

    def _done(self, done):
        key = (done.kind, done.index)
        assert key in self.expected, f"{key} was not asked for"
        assert key not in self.answers, f"{key} answered twice"
        self.answers[key] = bool(done.error)
        # All data must be there now.
        if not done.error:
            self._check(key)

    def _check(self, key):
        for kind, index, address, dwords, target in self.wanted:
            if (kind, index) != key:
                continue
            memory = self.lines if kind is Kind.BLOCK else self.inbox
            for place in range(dwords):
                found = memory.get(target + place)
                assert found == host_word(address + 4 * place), (
                    f"{key}: word {target + place:#x} is {found} at done"
                )

    def transfer(self, kind: Kind, index: int, parts: list[tuple[int, int, int]]) -> list[dict]:
        """A transfer's requests: (address, dwords, target) each."""
        self.expected[(kind, index)] = parts
        requests = []
        for number, (address, dwords, target) in enumerate(parts):
            self.wanted.append((kind, index, address, dwords, target))
            requests.append(
                {
                    "kind": kind,
                    "index": index,
                    "last": number == len(parts) - 1,
                    "address": address,
                    "dwords": dwords,
                    "target": target,
                }
            )
        return requests

    def random_transfers(self, count: int) -> list[dict]:
        """Transfers of all kinds with random alignment, their requests interleaved."""
        rng = self.rng
        pages = rng.sample(range(1, 1 << 30), 4 * count)
        queues = []
        blocks = rng.sample(range(self.config.lines), min(count, self.config.lines))
        entries = rng.sample(range(32), min(count, 32))
        lists = rng.sample(range(self.config.commands), min(count, self.config.commands))
        parameters = [0]
        for _ in range(count):
            kind = rng.choice(list(Kind))
            pool = {
                Kind.BLOCK: blocks,
                Kind.ENTRIES: entries,
                Kind.LIST: lists,
                Kind.PARAMETER: parameters,
            }[kind]
            if not pool:
                continue
            index = pool.pop()
            if kind is Kind.BLOCK:
                # A block in up to three host pieces, each anywhere in a page.
                target, rest = index * 1024, 1024
                if rng.random() < 0.3:
                    target += rng.randrange(1024)
                    rest = rng.randint(1, 1024 - target % 1024)
                parts = []
                while rest:
                    size = rest if len(parts) == 2 else rng.randint(1, rest)
                    offset = rng.choice((0, rng.randrange(1024)))
                    size = min(size, 1024 - offset)
                    parts.append((pages.pop() * 4096 + 4 * offset, size, target))
                    target += size
                    rest -= size
                    if len(parts) == 3:
                        break
            elif kind is Kind.PARAMETER:
                address = pages.pop() * 4096 + 4 * rng.randrange(1024)
                parts = [(address, 1, inbox_dwords(self.config))]
            else:
                base = 0 if kind is Kind.LIST else self.config.commands * 16
                target = base + 16 * index
                size = rng.randint(1, 16)
                parts = [(pages.pop() * 4096 + 4 * rng.randrange(1009), size, target)]
            queues.append(self.transfer(kind, index, parts))
        requests = []
        while queues:
            queue = rng.choice(queues)
            requests.append(queue.pop(0))
            if not queue:
                queues.remove(queue)
        return requests

    def forget(self):
        """Begins a new run: the transfers before it have been checked."""
        for account in (self.expected, self.answers, self.failing, self.wanted):
            account.clear()

    async def finish(self, *, cycles=60_000, errors: bool | None = None):
        """Waits for all answers and checks them, and that nothing is left over."""
        await wait_until(
            self.dut,
            lambda: len(self.answers) == len(self.expected),
            cycles=cycles,
            what="all transfers done",
        )
        for key, failed in self.answers.items():
            assert failed == (key in self.failing if errors is None else errors), key
        assert self.model.waiting == 0 or self.failing
        self.hold = False
        await wait_until(
            self.dut,
            lambda: (
                int(self.dut.deadline.value) == (1 << 48) - 1
                and self.request.idle
                and self.completion.idle
                and not int(self.dut.busy.value)
            ),
            cycles=10 * TIMEOUT,
            what="no tag held",
        )


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def random_reads(dut):
    """Random alignment, all kinds, shuffled and split completions, with back-pressure."""
    bench = Bench(
        dut,
        active=float(os.environ["ACTIVE"]),
        mrrs=int(os.environ["MRRS"]),
        rcb=int(os.environ["RCB"]),
    )
    await bench.start()
    bench.request.send_all(bench.random_transfers(60))
    await bench.finish(errors=False)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def faulty_completions(dut):
    """Every fault ends its transfer with an error, once; the others are not disturbed."""
    bench = Bench(dut, active=0.8, fault_rate=0.08, mrrs=1)
    await bench.start()
    bench.completion.send_all(  # unexpected completions
        beat
        for tag in (3, UNKNOWN_TAG)
        for beat in random_completion(bench, tag)
    )
    bench.request.send_all(bench.random_transfers(60))
    await bench.finish()
    assert bench.failing, "no fault was planted"
    # All tags and all headers must be back: everything works again.
    bench.model.fault_rate = 0
    bench.failing.clear()
    for table in (bench.expected, bench.answers, bench.wanted):
        table.clear()
    bench.request.send_all(bench.random_transfers(40))
    await bench.finish(errors=False)


def random_completion(bench: Bench, tag: int) -> list[int]:
    """A completion nobody asked for."""
    model = CompletionModel(bench.config, bench.rng)
    model.take(tag=tag, address=4096, dwords=40)
    return model.next_beats() or []


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def streaming_rate(dut):
    """256-byte completions, 8 beats in 9 cycles at 256 bits, are taken without a bubble."""
    bench = Bench(dut, mrrs=1, most=256)
    bench.model.rcb = 256
    config = bench.config
    await bench.start()
    bench.hold = True
    offset = int(os.environ["OFFSET"])
    requests = []
    for index in range(16):
        parts = [(0x10000 + index * 4096, 64, index * 1024 + offset)]
        requests += bench.transfer(Kind.BLOCK, index, parts)
    bench.request.send_all(requests)
    await wait_until(dut, lambda: len(bench.tlps) == 16, cycles=4000, what="all requests")
    # Completions with one idle cycle each, where the descriptor was.
    beats = 64 // config.beat_dwords
    taken_before = bench.completion.sent
    bench.completion.paused = True
    while packet := bench.model.next_beats():
        bench.completion.send_all(packet)
    bench.completion.paused = False
    for _ in range(16):
        for _ in range(beats):
            await RisingEdge(dut.clk)
        while (bench.completion.sent - taken_before) % beats:
            await RisingEdge(dut.clk)
        bench.completion.paused = True
        await RisingEdge(dut.clk)
        bench.completion.paused = False
    await bench.finish(errors=False)
    cycles = bench.completion_cycles[-1] - bench.completion_cycles[0] + 1
    dut._log.info("16 completions of 256 bytes: %d cycles of input", cycles)
    assert cycles <= 16 * (beats + 1)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def dropped_requests(dut):
    """A request that is not sent costs its transfer, at once: its tag is not quarantined."""
    bench = Bench(dut)
    await bench.start()
    for rate in (0.3, 1.0):
        bench.drop_rate = rate
        bench.forget()
        bench.request.send_all(bench.random_transfers(20))
        await bench.finish(cycles=CLEARING + 12_000)
        assert bench.failing
        assert not int(dut.outstanding.value)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def held_requests(dut):
    """Requests that cannot be sent, or are answered late meanwhile, do not time out."""
    bench = Bench(dut)
    await bench.start()
    dut.hold.value = 1
    bench.hold = True
    bench.request.send_all(bench.random_transfers(20))
    for _ in range(5 * TIMEOUT):
        await RisingEdge(dut.clk)
    assert bench.tlps
    assert not bench.answers
    dut.hold.value = 0
    bench.hold = False
    await bench.finish(errors=False)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def space_reserved(dut):
    """Completions outstanding never need more headers or data credits than there are."""
    rcb = int(os.environ["RCB"])
    bench = Bench(dut, mrrs=5, rcb=rcb)
    config = bench.config
    await bench.start()
    bench.hold = True
    for index in range(12):
        bench.request.send_all(
            bench.transfer(Kind.BLOCK, index, [(0x40000 + index * 4096 + 4, 1023, index * 1024)])
        )
    for _ in range(3000):
        await RisingEdge(dut.clk)
    spans = [
        (tlp["address"] + 4 * tlp["dwords"] - 1) // rcb - tlp["address"] // rcb + 1
        for tlp in bench.tlps
    ]
    headers = sum(spans)
    units = sum(tlp["dwords"] for tlp in bench.tlps) // 4 + headers
    dut._log.info("%d requests: %d headers, %d credits", len(spans), headers, units)
    assert 0 < headers <= config.completion_headers
    assert units <= config.completion_bytes // 16
    # Nothing more would have fitted, had it been as long as the longest.
    more = max(spans)
    full = headers + more > config.completion_headers or (
        units + more * (rcb // 16 + 2) > config.completion_bytes // 16
    )
    assert full or len(spans) == config.read_tags, "space is left unused"
    bench.hold = False
    await bench.finish(errors=False)


def run(
    testcase,
    *,
    width=256,
    active="1.0",
    mrrs=2,
    rcb=64,
    offset=0,
    tags=16,
    headers=128,
    space=32768,
    component=None,
    seed=1,
):
    config = reader_config(width, tags=tags, headers=headers, space=space)
    simulate(
        component or HostReader(config=config, timeout=TIMEOUT),
        name=f"host_reader_w{width}",
        module=__name__,
        testcase=testcase,
        parameters={
            "SEED": str(seed),
            "WIDTH": str(width),
            "TAGS": str(tags),
            "HEADERS": str(headers),
            "SPACE": str(space),
            "ACTIVE": active,
            "MRRS": str(mrrs),
            "RCB": str(rcb),
            "OFFSET": str(offset),
        },
    )


@pytest.mark.parametrize(
    ("width", "active", "mrrs", "rcb"),
    [(256, "0.6", 2, 64), (256, "1.0", 0, 64), (256, "0.8", 5, 128), (64, "0.7", 2, 64)],
)
def test_random_reads(width, active, mrrs, rcb):
    run("random_reads", width=width, active=active, mrrs=mrrs, rcb=rcb)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_faulty_completions(seed):
    run("faulty_completions", seed=seed)


@pytest.mark.parametrize("offset", [0, 5])
def test_streaming_rate(offset):
    run("streaming_rate", offset=offset)


def test_dropped_requests():
    run("dropped_requests")


def test_held_requests():
    run("held_requests")


@pytest.mark.parametrize(
    ("rcb", "headers", "space"),
    [(64, 128, 32768), (128, 128, 32768), (64, 128, 4096), (128, 128, 8192), (64, 36, 7376)],
)
def test_space_reserved(rcb, headers, space):
    run("space_reserved", rcb=rcb, headers=headers, space=space)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def extended_tags(dut):
    """Tags from 32 on are used while extended tags are enabled, and not otherwise."""
    bench = Bench(dut)
    await bench.start()
    tags = bench.config.read_tags
    for _ in range(CLEARING):
        await RisingEdge(dut.clk)
    for extended in (0, 1, 0, 1, 1, 0):
        dut.status__extended_tag.value = extended
        bench.forget()
        bench.tlps.clear()
        bench.hold = True
        for index in range(64):
            parts = [(0x40000 + 4096 * index, 4, 1024 * index)]
            bench.request.send_all(bench.transfer(Kind.BLOCK, index, parts))
        for _ in range(700):
            await RisingEdge(dut.clk)
        assert extended or not int(dut.busy.value), "busy with nothing to do but wait"
        bench.hold = False
        used = {tlp["tag"] for tlp in bench.tlps}
        assert used == set(range(tags if extended else 32)), f"{sorted(used)}, {extended}"
        await bench.finish(errors=False)


def test_extended_tags():
    run("extended_tags", tags=64)


class NoWrites(Landing):
    """Planted bug: reads are reported although nothing has been written."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.line_write.valid.eq(0)
        return m


class EveryTag(Landing):
    """Planted bug: completions of tags that are not in use are believed."""

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = inner = Landing(config=self._config)
        for name, member in self.signature.members.items():
            mine, its = getattr(self, name), getattr(inner, name)
            if member.is_signature:
                if member.flow is Out:
                    connect(m, its, flipped(mine))
                else:
                    connect(m, flipped(mine), its)
            elif member.flow is Out:
                m.d.comb += mine.eq(its)
            else:
                m.d.comb += its.eq(mine)
        m.d.comb += inner.live.eq(1)
        return m


@pytest.mark.parametrize(
    ("mutant", "testcase"), [(NoWrites, "random_reads"), (EveryTag, "faulty_completions")]
)
def test_mutant_landing(monkeypatch, mutant, testcase):
    monkeypatch.setattr("hdl.pcie.reader.Landing", mutant)
    with pytest.raises(SimulationError):
        run(testcase)


def test_mutant_rotation(monkeypatch):
    """Planted bug: payload is not moved to its target's alignment."""
    monkeypatch.setattr("hdl.pcie.landing.rotate_left", lambda words, amount: words)
    with pytest.raises(SimulationError):
        run("random_reads")
