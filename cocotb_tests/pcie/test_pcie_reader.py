"""`HostReader`: every byte lands, every transfer is answered once, whatever completions do."""

import os

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Out, connect, flipped
from cocotb.triggers import RisingEdge

from cocotb_tests.pcie.pcie_models import CompletionModel
from cocotb_tests.pcie.pcie_reader_bench import TIMEOUT, Bench, reader_config
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import cycles_pass, sample, wait_until
from hdl.flow.host_memory import Kind
from hdl.pcie.dma.landing import Landing
from hdl.pcie.dma.reader import HostReader

CLEARING = 2000
UNKNOWN_TAG = 255
"""A tag beyond those of the configuration."""


def random_completion(bench: Bench, tag: int) -> list[int]:
    """A completion nobody asked for."""
    model = CompletionModel(bench.config, bench.rng)
    model.take(tag=tag, address=4096, dwords=40)
    return model.next_beats() or []


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


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def many_faulty_completions(dut):
    """Nothing of them lands outside of what their read is for."""
    bench = Bench(dut, active=float(os.environ["ACTIVE"]), fault_rate=0.2, most=512)
    await bench.start()
    while len(bench.model.faults) < 150:
        bench.forget()
        bench.request.send_all(bench.random_transfers(40))
        await bench.finish()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def repeated_completions(dut):
    """What comes twice belongs to nobody, also if its tag is given to a like request meanwhile."""
    bench = Bench(dut, active=float(os.environ["ACTIVE"]), most=512)
    bench.model.repeat_rate = 0.5
    await bench.start()
    for _ in range(4):
        bench.forget()
        for block in range(bench.config.lines):
            places = [block * 1024 + bench.rng.randrange(32) + 160 * part for part in range(6)]
            pages = bench.rng.sample(range(1, 1 << 30), len(places))
            parts = [(4096 * page, 128, place) for page, place in zip(pages, places, strict=True)]
            bench.request.send_all(bench.transfer(Kind.BLOCK, block, parts))
        await bench.finish(errors=False)
        for key in bench.expected:
            bench.check(key)
    assert bench.model.repeated > 100


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
        await cycles_pass(dut.clk, beats)
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
        assert not sample(dut.outstanding)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def held_requests(dut):
    """Requests that cannot be sent, or are answered late meanwhile, do not time out."""
    bench = Bench(dut)
    await bench.start()
    dut.hold.value = 1
    bench.hold = True
    bench.request.send_all(bench.random_transfers(20))
    await cycles_pass(dut.clk, 5 * TIMEOUT)
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
    await cycles_pass(dut.clk, 3000)
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


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def boundary_changes(dut):
    """Software changes the read completion boundary while a request waits for room: all end."""
    bench = Bench(dut, mrrs=5, rcb=128)
    await bench.start()
    for boundary in (0, 1, 0, 1, 0):
        bench.hold = True
        bench.forget()
        for index in range(6):
            parts = [(0x40000 + index * 4096, 1024, index * 1024)]
            bench.request.send_all(bench.transfer(Kind.BLOCK, index, parts))
        await cycles_pass(dut.clk, CLEARING + bench.rng.randrange(60))
        dut.status__rcb.value = boundary
        bench.hold = False
        await bench.finish(errors=False)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def extended_tags(dut):
    """Tags from 32 on are used while extended tags are enabled, and not otherwise."""
    bench = Bench(dut)
    await bench.start()
    tags = bench.config.read_tags
    await cycles_pass(dut.clk, CLEARING)
    for extended in (0, 1, 0, 1, 1, 0):
        dut.status__extended_tag.value = extended
        bench.forget()
        bench.tlps.clear()
        bench.hold = True
        for index in range(64):
            parts = [(0x40000 + 4096 * index, 4, 1024 * index)]
            bench.request.send_all(bench.transfer(Kind.BLOCK, index, parts))
        await cycles_pass(dut.clk, 700)
        assert extended or not sample(dut.busy), "busy with nothing to do but wait"
        bench.hold = False
        used = {tlp["tag"] for tlp in bench.tlps}
        assert used == set(range(tags if extended else 32)), f"{sorted(used)}, {extended}"
        await bench.finish(errors=False)


RANGES_US = {
    0b0000: (50, 50_000),
    0b0001: (50, 100),
    0b0010: (1_000, 10_000),
    0b0101: (16_000, 55_000),
    0b0110: (65_000, 210_000),
    0b1001: (260_000, 900_000),
    0b1010: (1_000_000, 3_500_000),
    0b1101: (4_000_000, 13_000_000),
    0b1110: (17_000_000, 64_000_000),
}
"""Completion Timeout Value of Device Control 2 (PCIe base specification 7.8.16)."""


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def completion_timeouts(dut):
    """A read without an answer fails within the range that Device Control 2 says, or never."""
    bench = Bench(dut)
    await bench.start()
    config = bench.config
    await cycles_pass(dut.clk, CLEARING)
    bench.hold = True
    cycles_a_us = config.clock_hz // 1_000_000
    for code, (low, high) in RANGES_US.items():
        dut.status__completion_timeout.value = code
        for patient in (1, 0):
            dut.status__timeout_disable.value = patient
            bench.forget()
            bench.leaves = False
            bench.request.send_all(bench.transfer(Kind.BLOCK, 5, [(0x40000, 4, 5 * 1024)]))
            # Nothing ages that has not left.
            await bench.jump(2 * high * cycles_a_us)
            assert not bench.answers, f"code {code:#x}: a request that has not left timed out"
            bench.leaves = True
            await cycles_pass(dut.clk, 8)
            began = bench.cycle
            await bench.jump(2 * high * cycles_a_us)
            if patient:
                assert not bench.answers, f"code {code:#x}: timed out although that is disabled"
                dut.hurry.value = 1  # a reset of the function does not wait for ever
                await bench.jump(2 * RANGES_US[0][1] * cycles_a_us)
                dut.hurry.value = 0
                assert bench.answers
            else:
                took = (bench.answered - began) / cycles_a_us
                dut._log.info("completion timeout %s: %.0f us", f"{code:04b}", took)
                assert low <= took <= high, f"code {code:#x}: {took:.0f} us"
            await bench.jump(4 * high * cycles_a_us)  # out of quarantine
            bench.model.next_beats()
            assert not sample(dut.outstanding)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def tags_stay_with_the_block(dut):
    """A hard block that waits for completions itself may do so to the end of the range; a tag that
    it has not told of is not free before, and without a timeout never."""
    bench = Bench(dut)
    await bench.start()
    dut.tracks.value = 1
    bench.hold = True
    await cycles_pass(dut.clk, CLEARING)
    a_us = bench.config.clock_hz // 1_000_000

    async def lose() -> int:
        """A read that is not answered in time; the cycle in which it left."""
        bench.forget()
        bench.request.send_all(bench.transfer(Kind.BLOCK, 5, [(0x40000, 4, 5 * 1024)]))
        sent = len(bench.tlps)
        await wait_until(dut, lambda: len(bench.tlps) > sent, cycles=100, what="the request")
        return bench.cycle

    async def pass_time(done, *, us: int, steps: int) -> None:
        for _ in range(steps):
            if done():
                break
            await bench.jump(us * a_us // steps)

    def is_free() -> bool:
        return not sample(dut.outstanding)

    async def tell() -> None:
        """The last completion comes after all."""
        bench.completion.send_all(bench.model.next_beats())
        await cycles_pass(dut.clk, 16)

    for code, (_, high) in RANGES_US.items():
        dut.status__completion_timeout.value = code
        left = await lose()
        await pass_time(lambda: bench.answers, us=2 * high, steps=40)
        assert bench.answers and not is_free()
        assert not sample(dut.unanswered), "a tag in quarantine holds up a reset"
        await pass_time(is_free, us=10 * high, steps=200)
        took = (bench.cycle - left) / a_us
        dut._log.info("code %s: free again after %.0f us", f"{code:04b}", took)
        assert is_free(), f"code {code:#x}: a tag is lost"
        assert took >= high, f"code {code:#x}: free after {took:.0f} us, while the block waits"
        assert bench.model.next_beats()
        await lose()
        await pass_time(lambda: bench.answers, us=2 * high, steps=40)
        await tell()
        await bench.jump(high * a_us // 2)
        assert is_free(), f"code {code:#x}: the block has told of the tag"
    dut.status__completion_timeout.value = 0
    dut.status__timeout_disable.value = 1
    await lose()
    dut.hurry.value = 1
    await pass_time(lambda: bench.answers, us=50_000, steps=40)
    for hurry in (1, 0):
        dut.hurry.value = hurry
        await bench.jump(500_000 * a_us)
        assert bench.answers and not is_free(), "the block waits for ever"
    await tell()
    await bench.jump(50_000 * a_us)
    assert is_free()


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
    timeout=TIMEOUT,
):
    config = reader_config(width, tags=tags, headers=headers, space=space)
    simulate(
        component or converted(HostReader, config=config, timeout=timeout),
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
    [
        (256, "0.6", 2, 64),
        pytest.param(256, "1.0", 0, 64, marks=pytest.mark.slow),
        (256, "0.8", 5, 128),
        (64, "0.7", 2, 64),
    ],
)
def test_random_reads(width, active, mrrs, rcb):
    run("random_reads", width=width, active=active, mrrs=mrrs, rcb=rcb)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_faulty_completions(seed):
    run("faulty_completions", seed=seed)


@pytest.mark.parametrize("active", [pytest.param("1.0", marks=pytest.mark.slow), "0.8"])
def test_many_faulty_completions(active):
    run("many_faulty_completions", active=active)


@pytest.mark.parametrize(
    ("tags", "active"),
    [
        (2, "1.0"),
        pytest.param(4, "0.8", marks=pytest.mark.slow),
        pytest.param(16, "1.0", marks=pytest.mark.slow),
    ],
)
def test_repeated_completions(tags, active):
    run("repeated_completions", tags=tags, active=active)


@pytest.mark.parametrize("offset", [0, 5])
def test_streaming_rate(offset):
    run("streaming_rate", offset=offset)


def test_dropped_requests():
    run("dropped_requests")


def test_held_requests():
    run("held_requests")


@pytest.mark.parametrize(
    ("rcb", "headers", "space"),
    [
        (64, 128, 32768),
        (128, 128, 32768),
        pytest.param(64, 128, 4096, marks=pytest.mark.slow),
        pytest.param(128, 128, 8192, marks=pytest.mark.slow),
        (64, 36, 7376),
    ],
)
def test_space_reserved(rcb, headers, space):
    run("space_reserved", rcb=rcb, headers=headers, space=space)


@pytest.mark.parametrize("space", [2048, pytest.param(8192, marks=pytest.mark.slow)])
def test_boundary_changes(space):
    run("boundary_changes", headers=36, space=space)


def test_extended_tags():
    run("extended_tags", tags=64)


def test_completion_timeouts():
    run("completion_timeouts", timeout=None)


def test_tags_stay_with_the_block():
    run("tags_stay_with_the_block", timeout=None)


class OneTimeout(HostReader):
    """Planted bug: Device Control 2 is not looked at."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += m.submodules.tags.period.eq(self._timeout // 2)
        return m


@pytest.mark.slow
def test_mutant_timeout():
    config = reader_config(256, tags=16, headers=128, space=32768)
    with pytest.raises(SimulationError, match="code"):
        run("completion_timeouts", component=OneTimeout(config=config))


class OwnTimer(HostReader):
    """Planted bug: the hard block's table of tags does not count."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.tags.tracks.eq(0)
        return m


class NeverTold(HostReader):
    """Planted bug: what the hard block tells of a tag is not heard."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.tags.completed.eq(0)
        return m


@pytest.mark.parametrize(
    ("mutant", "message"), [(OwnTimer, "while the block waits"), (NeverTold, "has told")]
)
@pytest.mark.slow
def test_mutant_block_table(mutant, message):
    config = reader_config(256, tags=16, headers=128, space=32768)
    with pytest.raises(SimulationError, match=message):
        run("tags_stay_with_the_block", component=mutant(config=config))


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
@pytest.mark.slow
def test_mutant_landing(monkeypatch, mutant, testcase):
    monkeypatch.setattr("hdl.pcie.dma.reader.Landing", mutant)
    with pytest.raises(SimulationError):
        run(testcase)


@pytest.mark.slow
def test_mutant_rotation(monkeypatch):
    """Planted bug: payload is not moved to its target's alignment."""
    monkeypatch.setattr("hdl.pcie.dma.landing.rotate_left", lambda words, amount: words)
    with pytest.raises(SimulationError):
        run("random_reads")
