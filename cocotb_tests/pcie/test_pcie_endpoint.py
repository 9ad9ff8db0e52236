"""Endpoint and UltraScale+ shim under cocotbext-pcie: registers, DMA both ways, errors, rates."""

import os
from itertools import product

import cocotb
import pytest
from amaranth.hdl import Signal
from cocotb.triggers import RisingEdge
from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpAttr, TlpType

from cocotb_tests.pcie.hard_block import FAULTS, HARMLESS, PAGE_BYTES
from cocotb_tests.pcie.pcie_bench import (
    CONFIG,
    PACKET_BEATS,
    SHIM,
    SHIM_WIDTH,
    SHIMS,
    TIMEOUT,
    Bench,
    EndpointTop,
    copy,
    run_endpoint,
)
from cocotb_tests.pcie.series7_model import Series7Host
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import cycles_pass, sample, wait_until
from hdl.pcie.dma.reader import HostReader
from hdl.pcie.dma.writer import ChunkReader
from hdl.pcie.phy.series7 import Series7Shim
from hdl.pcie.phy.straddle import StraddledStripper
from hdl.pcie.phy.tlp_receiver import STRADDLING, TlpReceiver
from hdl.pcie.phy.ultrascale import CompletionStripper, RequestInserter
from hdl.pcie.tlp import RequestKind

LINK_BYTES = {256: 8e9 * 8 * 128 / 130 / 8 / 250e6, 512: 8e9 * 16 * 128 / 130 / 8 / 250e6}
"""Of a PCIe 3.0 link in a cycle, by the width of the hard block that goes with it."""

LINK_OVERHEAD = 20
"""Bytes around the payload of a completion."""

ANSWER_CYCLES = 120
"""From a register's answer to its completion at the block: two TLPs of 256 bytes at 64 bits."""


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def registers(dut):
    """Accesses of every size and alignment; zero-length reads; what must be refused or dropped."""
    bench = Bench(dut)
    await bench.start()
    host, rng = bench.host, bench.rng
    model = {}
    for _ in range(60):
        size = rng.choice((1, 2, 4, 8))
        address = rng.randrange(0, 256, size)
        if rng.random() < 0.5:
            value = rng.getrandbits(8 * size)
            await host.write_register(address, value, size)
            model.update({address + k: value >> 8 * k & 0xFF for k in range(size)})
        else:
            expected = sum(model.get(address + k, 0) << 8 * k for k in range(size))
            assert await host.read_register(address, size) == expected
    # Eight bytes at a multiple of 4.
    await host.write_register(0x104, 0x1122334455667788, 8)
    assert await host.read_register(0x104, 8) == 0x1122334455667788
    assert await host.read_register(0x108, 4) == 0x11223344
    # A read of no bytes: answered after the write before it, without an access.
    await host.write_register(0x200, 0x5A)
    count = len(bench.accesses)
    (answer,) = await host.request(
        TlpType.MEM_READ_64, 0x200, length=1, first_be=0, last_be=0, tc=3, attr=2
    )
    assert (answer.status, answer.byte_count, answer.length) == (CplStatus.SC, 1, 1)
    assert (answer.tc, answer.attr) == (3, 2)
    assert len(bench.accesses) == count + 1
    assert bench.accesses[-1][1]
    # Long reads are refused, long writes dropped.
    count = len(bench.accesses)
    (answer,) = await host.request(
        TlpType.MEM_READ_64, 0x43C, length=4, first_be=0xC, last_be=0x3
    )
    assert answer.status is CplStatus.CA
    assert (answer.byte_count, answer.lower_address) == (12, 0x3E)
    await host.request(
        TlpType.MEM_WRITE_64, 0x400, length=16, first_be=15, last_be=15, data=bytes(64)
    )
    assert await host.read_register(0x200) == 0x5A
    assert len(bench.accesses) == count + 1
    for first, count in ((0xF, 4), (0x7, 3), (0xE, 3), (0x6, 2), (0x8, 1), (0x9, 4), (0x1, 1)):
        (answer,) = await host.request(
            TlpType.MEM_READ_64, 0x200, length=1, first_be=first, last_be=0
        )
        skip = (first & -first).bit_length() - 1
        assert (answer.byte_count, answer.lower_address) == (count, skip), f"{first:04b}"
    await bench.settle()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def copies(dut):
    """Blocks in and out at random alignment, completions late, shuffled and split."""
    bench = Bench(
        dut,
        max_payload=int(os.environ["MPS"]),
        max_read_request=int(os.environ["MRRS"]),
        rcb=int(os.environ["RCB"]),
    )
    await bench.start()
    reads = bench.host.rc.reads
    reads.latency_ns = (200, 1500)
    reads.shuffle = True
    for split in ("random", "smallest", "largest"):
        reads.split = split
        await copy(bench, range(int(os.environ["BLOCKS"])))
    if isinstance(bench.host, Series7Host) and CONFIG.data_width == STRADDLING:
        assert bench.host.streams.straddled >= 2 * len(bench.read), "hardly a TLP straddled"


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def crowded_copies(dut):
    """Others read the line store all the time: no TLP begins that could be left without data.

    `cocotb_tests.pcie.axis_rules` holds the stream to its rules. The hard block's buffer is full
    now and then.
    """
    bench = Bench(
        dut,
        max_payload=int(os.environ["MPS"]),
        max_read_request=int(os.environ["MRRS"]),
    )
    await bench.start()

    async def crowd():
        while True:
            dut.crowd.value = bench.rng.choice((0, 1, 3, 7, 7))
            await cycles_pass(dut.clk, bench.rng.randrange(200))

    def pauses():
        while True:
            stands = bench.rng.random() < 0.5
            for _ in range(bench.rng.randrange(1, 40)):
                yield stands and bench.rng.random() < 0.7

    if SHIM == "ultrascale":
        bench.host.device.rq_sink.set_pause_generator(pauses())
    others = cocotb.start_soon(crowd())
    for _ in range(2):
        await copy(bench, range(int(os.environ["BLOCKS"])))
    others.cancel()
    dut.crowd.value = 0
    await bench.settle()


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def read_faults(dut):
    """Each kind of fault ends only its own transfer, and everything works afterwards."""
    bench = Bench(dut)
    await bench.start()
    reads = bench.host.rc.reads
    reads.latency_ns = (100, 600)
    reads.shuffle = True
    reads.split = "random"
    base, memory = bench.host.allocate(16 * PAGE_BYTES)
    memory[:] = bench.rng.randbytes(16 * PAGE_BYTES)
    for fault in FAULTS:
        if fault in ("mismatched", "discontinued") and SHIM == "series7":
            continue  # only the UltraScale+ block compares attributes, and only it discontinues
        victim = base + 3 * PAGE_BYTES + 512
        reads.fault = (
            lambda tlp, fault=fault, victim=victim: fault if tlp.address == victim else None
        )
        bench.read.clear()
        reads.planted.clear()
        for line in range(8):
            bench.fetch(line, [(base + line * PAGE_BYTES, 1024, line * 1024)])
        await wait_until(
            dut, lambda: len(bench.read) == 8, cycles=4 * TIMEOUT, what=f"{fault}: all done"
        )
        ((kind, _),) = reads.planted
        fails = kind != HARMLESS
        assert bench.read == {line: fails and line == 3 for line in range(8)}, fault
        await bench.settle()
    reads.fault = None
    await copy(bench, range(8))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def write_rate(dut):
    """256-byte writes take the fewest beats on RQ, with no idle beat while it is ready.

    Below 256 bits data that is rotated takes one idle beat more a TLP.
    """
    bench = Bench(dut)
    await bench.start()
    base, _ = bench.host.allocate(16 * PAGE_BYTES)
    offset = int(os.environ["OFFSET"])
    blocks = 8
    for line in range(blocks):
        address = base + line * PAGE_BYTES
        bench.deliver(line, [(address, 1024 - offset, line * 1024 + offset)])
    stalls = 0
    gaps = 0
    beats = 0
    packets = 0
    began = None
    while len(bench.written) < blocks or sample(dut.busy):
        await RisingEdge(dut.clk)
        valid, ready = sample(dut.rq_tvalid), sample(dut.rq_tready)
        if valid and ready:
            began = began or bench.host.cycle
            beats += 1
            packets += sample(dut.rq_tlast)
        elif valid:
            stalls += 1
        elif began and packets < blocks * 16:
            gaps += 1
    dut._log.info(
        "offset %d: %d TLPs, %d beats, %d idle cycles, %d cycles the link was not ready",
        offset, packets, beats, gaps, stalls,
    )
    assert packets == blocks * 16
    assert gaps <= (packets if offset and CONFIG.data_width < 256 else 0)
    if offset == 0:
        assert beats == PACKET_BEATS * packets
    await bench.settle()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def short_completions(dut):
    """Completions of 64 bytes: RC keeps up with the link where they straddle."""
    bench = Bench(dut)
    await bench.start()
    host = bench.host
    host.rc.reads.split = "smallest"
    blocks = 32
    base, memory = host.allocate(blocks * PAGE_BYTES)
    memory[:] = bench.rng.randbytes(blocks * PAGE_BYTES)
    for line in range(blocks):
        bench.fetch(line, [(base + line * PAGE_BYTES, 1024, line * 1024)])
    most = 0
    first = last = 0
    while len(bench.read) < blocks:
        await RisingEdge(dut.clk)
        assert host.cycle < 20_000, "the blocks do not come"
        most = max(most, host.device.rx_buf_cplh_fc_count)
        if sample(dut.rc_tvalid) and sample(dut.rc_tready):
            first, last = first or host.cycle, host.cycle
    rate = blocks * PAGE_BYTES / (last - first + 1)
    link = LINK_BYTES[CONFIG.data_width] * 64 / (64 + LINK_OVERHEAD)
    dut._log.info(
        "%.1f bytes a cycle of %.1f, at most %d completions in the block", rate, link, most
    )
    assert most <= CONFIG.completion_headers
    if not CONFIG.straddles and CONFIG.data_width >= 256:
        assert most < 64, "as PG213 asks"
    if CONFIG.straddles:
        assert rate > 0.97 * link
        assert most < 32, "the block's buffer fills"
    await bench.settle()
    for line in range(blocks):
        bench.deliver(line, [(base + line * PAGE_BYTES, 1024, line * 1024)])
    expected = bytes(memory[:])
    memory[:] = bytes(blocks * PAGE_BYTES)
    await wait_until(
        dut, lambda: len(bench.written) == blocks, cycles=20_000, what="the blocks back"
    )
    await bench.settle()
    assert bytes(memory[:]) == expected


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def both_directions(dut):
    """Reads and writes at once, with posts: nothing starves and everything arrives."""
    bench = Bench(dut)
    await bench.start()
    bench.host.rc.reads.latency_ns = (300, 700)
    incoming, memory_in = bench.host.allocate(24 * PAGE_BYTES)
    outgoing, memory_out = bench.host.allocate(24 * PAGE_BYTES)
    letters, memory_letters = bench.host.allocate(PAGE_BYTES)
    memory_in[:] = bench.rng.randbytes(24 * PAGE_BYTES)
    for line in range(24):  # fill lines 0..23
        bench.fetch(line, [(incoming + line * PAGE_BYTES, 1024, line * 1024)])
    await wait_until(dut, lambda: len(bench.read) == 24, cycles=20_000, what="lines filled")
    bench.read.clear()
    began = bench.host.cycle
    for line in range(24):
        bench.deliver(line, [(outgoing + line * PAGE_BYTES, 1024, line * 1024)])
        bench.fetch(
            line + 24, [(incoming + line * PAGE_BYTES, 1024, (line + 24) * 1024)]
        )
        words = bench.rng.getrandbits(128)
        bench.post.send(address=letters + 64 * line, dwords=4, data=words)
    await wait_until(
        dut,
        lambda: len(bench.read) == 24 and len(bench.written) == 24,
        cycles=40_000,
        what="both done",
    )
    dut._log.info("24 blocks each way in %d cycles", bench.host.cycle - began)
    await bench.settle()
    assert bytes(memory_out[:]) == bytes(memory_in[:])
    assert any(memory_letters[: 64 * 24])


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def bus_master_withdrawn(dut):
    """Without bus mastering everything waits, for long, and then goes on where it was."""
    bench = Bench(dut)
    await bench.start()
    host = bench.host
    host.rc.reads.latency_ns = (200, 1500)
    host.rc.reads.shuffle = True

    async def interrupt():
        for pause in (3, 300, 3 * TIMEOUT):
            await cycles_pass(dut.clk, bench.rng.randrange(200, 900))
            await host.withdraw_bus_master()
            await cycles_pass(dut.clk, pause)
            assert not host.request_beats, "a request left without bus mastering"
            dut._log.info("bus mastering was off, %d reads out", host.outstanding)
            await host.restore_bus_master()

    interruption = cocotb.start_soon(interrupt())
    await copy(bench, range(32))
    assert interruption.done(), "the load ended before the last interruption"


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def attributes(dut):
    """Relaxed and ID-based ordering as configured; never for what others rely on."""
    bench = Bench(dut)
    await bench.start()
    host = bench.host
    control = host.function.pcie_cap
    base, _ = host.allocate(4 * PAGE_BYTES)
    sent: list[Tlp] = []
    send = host.device.send

    async def record(tlp: Tlp) -> None:
        sent.append(tlp)
        await send(tlp)

    host.device.send = record
    for relaxed, by_id, of_completions in product((False, True), repeat=3):
        control.enable_relaxed_ordering = relaxed
        control.ido_request_enable = by_id
        control.ido_completion_enable = of_completions
        await cycles_pass(dut.clk, 16)
        sent.clear()
        bench.read.clear()
        bench.written.clear()
        bench.fetch(1, [(base, 1024, 1024)])
        bench.deliver(2, [(base + PAGE_BYTES, 1024, 2048)])
        bench.post.send(address=base + 2 * PAGE_BYTES, dwords=4, data=5)
        await host.read_register(0x14)
        await wait_until(
            dut, lambda: bench.read and bench.written, cycles=4000, what="transfers done"
        )
        await bench.settle()
        ido = TlpAttr.IDO if by_id else TlpAttr(0)
        data = ido | (TlpAttr.RO if relaxed else TlpAttr(0))
        found = {"data": set(), "post": set(), "completion": set()}
        for tlp in sent:
            is_request = tlp.is_posted() or tlp.is_nonposted()
            is_post = is_request and tlp.address >= base + 2 * PAGE_BYTES
            found["post" if is_post else "data" if is_request else "completion"].add(tlp.attr)
        answer = TlpAttr.IDO if of_completions else TlpAttr(0)
        assert found == {"data": {data}, "post": {ido}, "completion": {answer}}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def discarded(dut):
    """What is discarded does not reach the link: writes are taken, reads end with an error."""
    bench = Bench(dut)
    await bench.start()
    host = bench.host
    await host.withdraw_bus_master()
    base, memory = host.allocate(4 * PAGE_BYTES)
    memory[:] = bytes(4 * PAGE_BYTES)
    for line in range(4):
        bench.fetch(line, [(base, 1024, 1024 * line)])
        bench.deliver(line + 4, [(base, 1024, 1024 * line)])
        bench.post.send(address=base, dwords=4, data=5)
    await cycles_pass(dut.clk, 200)
    assert not bench.read
    assert not sample(dut.host__idle)
    dut.host__discard.value = 1
    await host.restore_bus_master()
    await wait_until(
        dut,
        lambda: len(bench.read) == 4 and len(bench.written) == 4,
        cycles=10_000,
        what="transfers answered",
    )
    assert all(bench.read.values())
    await bench.settle()
    assert sample(dut.host__idle)
    assert not host.request_beats
    assert not any(memory[:])
    dut.host__discard.value = 0
    await copy(bench, range(8))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def stalled_requests(dut):
    """The block takes no request for longer than the completion timeout: no read fails for it."""
    bench = Bench(dut)
    await bench.start()
    host = bench.host

    async def stall():
        for _ in range(2):
            await cycles_pass(dut.clk, bench.rng.randrange(100, 400))
            host.stall_requests(True)
            await cycles_pass(dut.clk, 3 * TIMEOUT)
            host.stall_requests(False)

    stalling = cocotb.start_soon(stall())
    await copy(bench, range(24))
    assert stalling.done(), "the load ended before the last stall"


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def register_latency(dut):
    """Under DMA both ways an answer to the host waits for no more than a few TLPs."""
    bench = Bench(dut)
    await bench.start()
    host = bench.host
    base, _ = host.allocate(4 * PAGE_BYTES)

    async def load():
        while True:
            for line in range(4):
                bench.deliver(line, [(base + PAGE_BYTES * line, 1024, 1024 * line)])
                bench.fetch(line + 8, [(base + PAGE_BYTES * line, 1024, 1024 * (line + 8))])
            await wait_until(
                dut,
                lambda: len(bench.read) == 4 and len(bench.written) == 4,
                cycles=20_000,
                what="four blocks each way",
            )
            bench.read.clear()
            bench.written.clear()

    loads = cocotb.start_soon(load())
    await cycles_pass(dut.clk, 300)
    # From the access inside to the first beat of the answer at the block.
    waits = []
    answers = host.rules.answers

    async def measure():
        while True:
            await RisingEdge(dut.clk)
            if sample(dut.register__response__valid) and int(
                dut.register__response__ready.value
            ):
                began, before = host.cycle, answers()
                while answers() == before:
                    await RisingEdge(dut.clk)
                waits.append(host.cycle - began)

    measuring = cocotb.start_soon(measure())
    for _ in range(20):
        await host.read_register(8 * bench.rng.randrange(32))
    measuring.cancel()
    loads.cancel()
    dut._log.info("answers to the host: %d to %d cycles under load", min(waits), max(waits))
    assert len(waits) == 20
    assert max(waits) <= ANSWER_CYCLES
    await bench.settle()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def messages_withheld(dut):
    """A message that is withheld while it waits to leave never does; any other leaves once."""
    bench = Bench(dut)
    await bench.start()
    host, rng = bench.host, bench.rng
    base, memory = host.allocate(PAGE_BYTES)
    memory[:] = bytes(PAGE_BYTES)
    ends = {"left": 0, "dropped": 0}

    async def count():
        while True:
            await RisingEdge(dut.clk)
            for name in ends:
                ends[name] += sample(getattr(dut, f"host__messages__{name}"))

    cocotb.start_soon(count())
    left = 0
    for number in range(1, 41):
        withheld = rng.random() < 0.5
        host.stall_requests(True)
        await cycles_pass(dut.clk, 20)
        # Something that stands at the block's edge, then the message.
        bench.post.send(address=base + 1024, dwords=4, data=number)
        bench.post.send(address=base + 2048, dwords=4, data=number)
        bench.post.send(address=base + 8 * number, dwords=1, message=1, data=number)
        await cycles_pass(dut.clk, rng.randrange(30, 60))
        dut.host__messages__withhold.value = int(withheld)
        await cycles_pass(dut.clk, 2)
        host.stall_requests(False)
        await wait_until(
            dut, lambda number=number: sum(ends.values()) == number, cycles=500, what="an end"
        )
        dut.host__messages__withhold.value = 0
        await bench.settle()
        left += not withheld
        assert ends == {"left": left, "dropped": number - left}, f"message {number}"
        found = int.from_bytes(memory[8 * number : 8 * number + 4], "little")
        assert found == (0 if withheld else number), f"message {number}, withheld: {withheld}"
    assert 0 < left < 40


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def messages_behind_tails(dut):
    """A message is withheld at any moment behind a TLP whose last words take a beat of their own:
    it leaves only if it was the next to leave by then."""
    bench = Bench(dut)
    await bench.start()
    host, rng = bench.host, bench.rng
    base, _ = host.allocate(4 * PAGE_BYTES)
    while base >> 32:  # a 7-series header of three words leaves a tail, one of four does not
        base, _ = host.allocate(4 * PAGE_BYTES)
    stream = "rq" if SHIM == "ultrascale" else "tx"
    valid, ready, last, keep = (
        getattr(dut, f"{stream}_{part}") for part in ("tvalid", "tready", "tlast", "tkeep")
    )
    kept = 1 if SHIM == "ultrascale" else 4  # bits of tkeep for a word
    ends = {"left": 0, "dropped": 0}
    packets = words = late = 0
    next_to_leave = None
    moved, stopped = False, False  # in this cycle; not in this one, but in the one before

    async def cycle() -> None:
        """One clock cycle, in which a packet may have left."""
        nonlocal packets, words, moved, stopped
        await RisingEdge(dut.clk)
        for name in ends:
            ends[name] += sample(getattr(dut, f"host__messages__{name}"))
        stopped = moved and bool(sample(valid)) and not sample(ready)
        moved = bool(sample(valid) and sample(ready))
        if not moved:
            return
        words += sample(keep).bit_count() // kept
        if sample(last):
            packets += 1
            is_message = words < 64
            assert not is_message or next_to_leave in (None, packets), (
                "a message left that was withheld"
            )
            words = 0

    for _ in range(150):
        bench.written.clear()
        behind = rng.randrange(2, 40)
        withheld = behind + rng.randrange(20)
        before = sum(ends.values())
        bench.deliver(1, [(base, 64, 1024), (base + 1024, 64, 1024)])
        for number in range(5000):
            if rng.random() < 0.3:
                host.stall_requests(rng.random() < 0.7)
            if number == behind:
                bench.post.send(address=base + 8192, dwords=1, message=1, data=5)
            await cycle()
            if sum(ends.values()) > before and bench.written:
                break
            if number >= withheld and stopped and sum(ends.values()) == before:
                dut.host__messages__withhold.value = 1
                next_to_leave = packets + 1
                late += 1
        else:
            raise AssertionError("the message has no end")
        host.stall_requests(False)
        for _ in range(60):
            await cycle()
        dut.host__messages__withhold.value = 0
        next_to_leave = None
    assert ends["dropped"] > 10 and ends["left"] > 10 and late > 30, f"{ends}, {late} late"
    await bench.settle()


def run(testcase, **options):
    run_endpoint(testcase, module=__name__, **options)


def test_registers():
    run("registers")


@pytest.mark.parametrize(
    ("mps", "mrrs", "rcb"),
    [(256, 512, 64), pytest.param(128, 128, 64, marks=pytest.mark.slow), (512, 4096, 128)],
)
def test_copies(mps, mrrs, rcb):
    run("copies", mps=mps, mrrs=mrrs, rcb=rcb)


@pytest.mark.parametrize(
    ("width", "mps", "shim"),
    [
        (256, 256, "ultrascale"),
        (256, 128, "ultrascale"),
        pytest.param(512, 1024, "ultrascale", marks=pytest.mark.slow),
        pytest.param(64, 1024, "ultrascale", marks=pytest.mark.slow),
        pytest.param(64, 128, "ultrascale", marks=pytest.mark.slow),
        pytest.param(128, 512, "ultrascale", marks=pytest.mark.slow),
        pytest.param(256, 1024, "ultrascale", marks=pytest.mark.slow),
        pytest.param(512, 128, "ultrascale", marks=pytest.mark.slow),
        (64, 256, "series7"),
        pytest.param(128, 1024, "series7", marks=pytest.mark.slow),
    ],
)
def test_crowded_copies(width, mps, shim):
    run("crowded_copies", width=width, mps=mps, shim=shim, blocks=8)


@pytest.mark.parametrize(
    "width", [64, *(pytest.param(n, marks=pytest.mark.slow) for n in (128, 512))]
)
def test_widths(width):
    run(["copies", "write_rate"], width=width, offset=1, blocks=4)


@pytest.mark.slow
@pytest.mark.parametrize("width", [256, 512])
def test_unstraddled(width):
    run(["copies", "read_faults"], width=width, straddle=False, blocks=6)


@pytest.mark.parametrize(
    ("width", "straddle"),
    [
        pytest.param(256, True, marks=pytest.mark.slow),
        pytest.param(512, True, marks=pytest.mark.slow),
        (256, False),
    ],
)
def test_short_completions(width, straddle):
    run("short_completions", width=width, straddle=straddle)


@pytest.mark.parametrize("width", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_series7(width):
    run(["registers", "copies"], width=width, shim="series7", blocks=6)


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 128])
def test_series7_for_long(width):
    tests = ["copies", "both_directions", "read_faults", "attributes", "discarded"]
    run(tests, width=width, shim="series7")


def test_read_faults():
    run("read_faults")


@pytest.mark.parametrize("offset", [0, 3])
def test_write_rate(offset):
    run("write_rate", offset=offset)


def test_both_directions():
    run("both_directions")


def test_bus_master_withdrawn():
    run("bus_master_withdrawn")


def test_attributes():
    run("attributes")


def test_discarded():
    run("discarded")


@pytest.mark.parametrize("shim", ["ultrascale", pytest.param("series7", marks=pytest.mark.slow)])
def test_stalled_requests(shim):
    run("stalled_requests", width=SHIM_WIDTH[shim], shim=shim)


@pytest.mark.parametrize("shim", [pytest.param("ultrascale", marks=pytest.mark.slow), "series7"])
def test_register_latency(shim):
    run("register_latency", width=SHIM_WIDTH[shim], shim=shim)


@pytest.mark.parametrize("shim", ["ultrascale", pytest.param("series7", marks=pytest.mark.slow)])
def test_messages_withheld(shim):
    run("messages_withheld", width=SHIM_WIDTH[shim], shim=shim)


@pytest.mark.parametrize(
    ("shim", "width"),
    [
        ("ultrascale", 256),
        ("series7", 128),
        pytest.param("series7", 64, marks=pytest.mark.slow),
    ],
)
def test_messages_behind_tails(shim, width):
    run("messages_behind_tails", width=width, shim=shim)


class ShortInserter(RequestInserter):
    """Planted bug: a beat is lost where payload runs over the descriptor's shift."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.request.ready.eq(~self.rq_tvalid | self.rq_tready)
        return m


@pytest.mark.slow
def test_mutant_inserter(monkeypatch):
    monkeypatch.setattr("hdl.pcie.phy.ultrascale.RequestInserter", ShortInserter)
    with pytest.raises(SimulationError):
        run("copies")


class MovesNothing(TlpReceiver):
    """Planted bug: a TLP that begins in an upper half stays there."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.relay.input.payload.data.eq(self.rx_tdata)
        return m


@pytest.mark.slow
def test_mutant_receiver(monkeypatch):
    monkeypatch.setattr("hdl.pcie.phy.series7.TlpReceiver", MovesNothing)
    with pytest.raises(SimulationError):
        run("copies", width=128, shim="series7")


def trusting(stripper):
    """Planted bug: poisoned data, and what the hard block found wrong, pass for good."""

    class TrustsTheBlock(stripper):
        def elaborate(self, platform):
            m = super().elaborate(platform)
            m.d.sync += self.completion.payload.poisoned.eq(0)
            return m

    return TrustsTheBlock


@pytest.mark.slow
@pytest.mark.parametrize("stripper", [CompletionStripper, StraddledStripper])
def test_mutant_stripper(monkeypatch, stripper):
    monkeypatch.setattr(f"hdl.pcie.phy.ultrascale.{stripper.__name__}", trusting(stripper))
    with pytest.raises(SimulationError, match="poisoned"):
        run("read_faults", straddle=stripper is StraddledStripper)


class IgnoresBusMaster(EndpointTop):
    """Planted bug: requests leave without bus mastering."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.endpoint.status.bus_master.eq(1)
        return m


class KeepsRequests(EndpointTop):
    """Planted bug: nothing is discarded."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.endpoint.host.discard.eq(0)
        return m


class WithholdsNothing(EndpointTop):
    """Planted bug: a message leaves that must not leave any more."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.endpoint.host.messages.withhold.eq(0)
        return m


class AgesAtOnce(HostReader):
    """Planted bug: a read's time runs from when it has a tag, before the block has taken it."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        tags = m.submodules.tags
        allocate = tags.allocate
        given, tag = Signal(), Signal.like(allocate.payload)
        m.d.sync += [given.eq(allocate.valid & allocate.ready), tag.eq(allocate.payload)]
        m.d.comb += [tags.sent.valid.eq(given), tags.sent.payload.eq(tag)]
        return m


@pytest.mark.slow
def test_mutant_time_of_a_read(monkeypatch):
    monkeypatch.setattr("hdl.pcie.endpoint.HostReader", AgesAtOnce)
    with pytest.raises(SimulationError):
        run("stalled_requests")


class StartsEarly(ChunkReader):
    """Planted bug: a TLP begins as soon as its first beat is there."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        relay = m.submodules.chunk_relay
        m.d.comb += [
            self.chunk.valid.eq(relay.output.valid & (self.beat.valid)),
            relay.output.ready.eq(self.chunk.ready & self.chunk.valid),
        ]
        return m


@pytest.mark.slow
def test_mutant_early_start(monkeypatch):
    monkeypatch.setattr("hdl.pcie.dma.writer.ChunkReader", StartsEarly)
    with pytest.raises(SimulationError, match=r"(falls|fell) within a packet|is late"):
        run("crowded_copies", blocks=8)


class ShortReads(Series7Shim):
    """Planted bug: reads of host memory have addresses of 32 bits."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.request.payload.kind == RequestKind.READ):
            address = self.request.payload.address[:32]
            m.d.comb += m.submodules.sender.request.payload.address.eq(address)
        return m


class ShortWrites(Series7Shim):
    """Planted bug: writes to host memory have addresses of 32 bits."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.request.payload.kind == RequestKind.WRITE):
            address = self.request.payload.address[:32]
            m.d.comb += m.submodules.sender.request.payload.address.eq(address)
        return m


class Starves(Series7Shim):
    """Planted bug: an answer to the host begins only when no request waits."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        replies, sender = m.submodules.replies, m.submodules.sender
        begun = Signal()
        with m.If(replies.tlp.valid & replies.tlp.ready):
            m.d.sync += begun.eq(~replies.tlp.payload.last)
        waits = m.submodules.completer.cc_tvalid
        m.d.comb += replies.cc_tvalid.eq(waits & (begun | ~sender.tlp.valid))
        return m


@pytest.mark.parametrize(
    ("mutant", "testcase"),
    [
        pytest.param(ShortReads, "copies", marks=pytest.mark.slow),
        pytest.param(ShortWrites, "copies", marks=pytest.mark.slow),
        pytest.param(Starves, "register_latency", marks=pytest.mark.slow),
    ],
)
def test_series7_planted_bugs_are_found(monkeypatch, mutant, testcase):
    monkeypatch.setitem(SHIMS, "series7", mutant)
    with pytest.raises(SimulationError):
        run(testcase, width=64, shim="series7", blocks=6)


@pytest.mark.parametrize(
    ("component", "testcase"),
    [
        (IgnoresBusMaster, "bus_master_withdrawn"),
        pytest.param(WithholdsNothing, "messages_withheld", marks=pytest.mark.slow),
        pytest.param(KeepsRequests, "discarded", marks=pytest.mark.slow),
    ],
)
def test_planted_bugs_are_found(component, testcase):
    with pytest.raises(SimulationError):
        run(testcase, component=component())
