"""Order on the way out: what the host reads of a register does not pass what was written before."""


from typing import Any

import cocotb
import pytest
from amaranth.hdl import Mux
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests.pcie.pcie_bench import CONFIG, PAGE_BYTES, SHIM, Bench, run_endpoint
from cocotb_tests.pcie.pcie_host import DRAIN_CYCLES
from cocotb_tests.runner import SimulationError, simulate
from cocotb_tests.streams import cycles_pass, sample, start, wait_until
from hdl.pcie.endpoint import Endpoint
from hdl.pcie.ordering import ReadCredits, SequenceNumbers, WritesAhead
from hdl.pcie.tlp import CREDITS_MOST

LIMIT = {"timeout_time": 4, "timeout_unit": "ms"}
LETTER_BYTES = 16
STANDS_STILL = 0.8
"""Share of the cycles in which the stream of requests does."""

GIVEN_UP = 4096
"""Cycles after which writes count as gone, if the block has taken nothing and given nothing back
since (docs/host-side.md)."""

AROUND = 200
"""Cycles by which this may be off, as seen from where a write is handed over."""

HELD_CYCLES = 1500
"""Longer than a completion takes that waits for nothing."""


class OrderBench(Bench):
    """Blocks and posts that are told apart; a register that says how many have been sent."""

    def __init__(self, dut, **options):
        super().__init__(dut, register_activity=0.5, **options)
        self.letters = 0
        self.letter_base = self.block_base = 0
        self.letter_memory: Any = None
        self.block_memory: Any = None
        self.seen: list[tuple[int, int]] = []

    async def start(self):
        await super().start()
        self.letter_base, self.letter_memory = self.host.allocate(256 * PAGE_BYTES)
        self.block_base, self.block_memory = self.host.allocate(CONFIG.lines * PAGE_BYTES)

    def _access(self, access):
        assert (access.address, access.write, access.enable) == (0, 0, 0x0F)
        # What has been reported done at this moment.
        self.seen.append((self.post.sent, len(self.written)))
        self.register_response.send(len(self.seen))

    def send_letter(self) -> None:
        self.letters += 1
        words = self.rng.randint(1, 4)
        value = self.letters.to_bytes(4, "little") * words
        self.post.send(
            address=self.letter_base + LETTER_BYTES * self.letters,
            dwords=words,
            data=int.from_bytes(value, "little"),
        )

    def send_block(self, line: int) -> None:
        self.deliver(line, self.pieces(self.block_base + line * PAGE_BYTES, line))

    def check(self, letters: int, lines: list[int]) -> None:
        """The first ``letters`` posts and these lines are in host memory."""
        for number in range(1, letters + 1):
            at = LETTER_BYTES * number
            found = int.from_bytes(self.letter_memory[at : at + 4], "little")
            assert found == number, f"post {number} of {letters} is not in memory"
        for line in lines:
            data = self.block_memory[line * PAGE_BYTES : (line + 1) * PAGE_BYTES]
            assert b"\xff" * 64 not in bytes(data), f"line {line} is not in memory"

    async def ask(self) -> int:
        """Reads the register, and checks that what it told has arrived; cycles taken."""
        began = self.host.cycle
        number = await self.host.read_register(0)
        letters, blocks = self.seen[number - 1]
        self.check(letters, self.written[:blocks])
        return self.host.cycle - began


async def bench(dut, **options) -> OrderBench:
    order = OrderBench(dut, **options)
    await order.start()
    order.block_memory[:] = b"\xff" * (CONFIG.lines * PAGE_BYTES)
    order.letter_memory[:] = bytes(256 * PAGE_BYTES)
    return order


@cocotb.test(**LIMIT)
async def reads_push_writes(dut):
    """Reads amid blocks and posts, which lie in the hard block for up to a microsecond."""
    order = await bench(dut)
    # The 7-series block has one stream: no completion passes a write there.
    order.host.device.posted_latency_ns = (0, 200) if SHIM == "ultrascale" else (0, 0)
    if SHIM == "ultrascale":
        order.host.device.rq_sink.set_pause_generator(
            order.rng.random() < STANDS_STILL for _ in iter(int, 1)
        )
    # As many as a narrow stream that stands still so often carries in the time.
    count = min(CONFIG.lines, CONFIG.data_width // 8)
    lines = list(range(count))
    slowest = 0
    while lines:
        for _ in range(order.rng.randint(0, 3)):
            if lines:
                order.send_block(lines.pop())
        for _ in range(order.rng.randint(0, 4)):
            order.send_letter()
        # Often the writes are still on their way to the hard block.
        await ClockCycles(dut.clk, order.rng.randint(1, order.rng.choice((10, 40, 300))))
        slowest = max(slowest, await order.ask())
    print(f"the slowest register read took {slowest} cycles")
    device = order.host.device
    await wait_until(
        dut, lambda: not sample(dut.host__posted), cycles=100_000, what="everything written"
    )
    assert device.posted_in == device.posted_out
    await order.ask()
    await order.settle()
    order.check(order.letters, list(range(count)))


@cocotb.test(**LIMIT)
async def posted_says_what_is_on_its_way(dut):
    """The hard block keeps writes: a read waits for those before it, ``posted`` is 1, and ``idle``
    is not, so no reset is said to be over."""
    order = await bench(dut)
    device = order.host.device
    assert not sample(dut.host__posted)
    for count in (1, 2, 20):
        device.holds_posted = True
        for _ in range(count):
            order.send_letter()
        await ClockCycles(dut.clk, HELD_CYCLES)
        reading = cocotb.start_soon(order.ask())
        await ClockCycles(dut.clk, HELD_CYCLES)
        assert order.seen[-1][0] > 0 and not reading.done(), "a completion passed a write"
        assert sample(dut.host__posted) and not sample(dut.host__idle)
        device.holds_posted = False
        await reading
        await wait_until(dut, lambda: not sample(dut.host__posted), cycles=2000, what="sent")
        assert device.posted_in == device.posted_out == order.letters
        await wait_until(dut, lambda: sample(dut.host__idle), cycles=100, what="rest")
        # Nothing is ahead of the next one.
        assert await order.ask() < HELD_CYCLES
    await order.settle()


@cocotb.test(**LIMIT)
async def writes_that_are_dropped_hold_nothing(dut):
    """Without bus mastering the hard block drops a write and says nothing of it."""
    order = await bench(dut)
    order.send_letter()
    await order.ask()
    order.host.device.return_cycles = 0
    order.send_letter()  # it leaves before the controller is told
    await wait_until(dut, lambda: sample(dut.rq_tvalid), cycles=200, what="the write")
    order.host.function.bus_master_enable = False
    reading = cocotb.start_soon(order.host.read_register(0))
    await ClockCycles(dut.clk, GIVEN_UP - AROUND)
    assert sample(dut.host__posted) and not reading.done()
    await ClockCycles(dut.clk, 2 * AROUND)
    assert not sample(dut.host__posted)
    await reading
    order.host.function.bus_master_enable = True
    await cycles_pass(dut.clk, 64)
    # The numbers go on from there.
    for _ in range(40):
        order.send_letter()
    await wait_until(
        dut, lambda: order.post.idle and not sample(dut.host__posted), cycles=4000, what="sent"
    )
    await order.host.read_register(0)
    await order.settle()


@cocotb.test(**LIMIT)
async def reads_wait_for_nothing_that_may_not_leave(dut):
    """Without bus mastering posts, blocks and reads wait; what is read of a register does not."""
    order = await bench(dut)
    host = order.host
    lines = iter(range(CONFIG.lines))
    for turn in range(6):
        await host.withdraw_bus_master()
        if turn % 3 == 2:
            order.fetch(next(lines), [(order.block_base, 256, 0)])
        for _ in range(order.rng.randint(turn % 2, 3)):
            order.send_letter()
        if turn % 2 == 0:
            order.send_block(next(lines))
        await ClockCycles(dut.clk, order.rng.randrange(200))
        for _ in range(2):
            reading = cocotb.start_soon(host.read_register(0))
            await ClockCycles(dut.clk, HELD_CYCLES)
            assert reading.done(), "a read waits for what may not leave"
        assert sample(dut.host__posted), "nothing was held"
        assert not host.request_beats, "a request left without bus mastering"
        await host.restore_bus_master()
        await wait_until(dut, lambda: not sample(dut.host__posted), cycles=4000, what="all sent")
        await order.ask()
        order.check(order.letters, order.written)
    await order.settle()
    order.check(order.letters, order.written)


@cocotb.test(**LIMIT)
async def short_absences(dut):
    """Bus mastering is off for a moment, in which the hard block may drop what it has."""
    order = await bench(dut)
    host = order.host
    host.device.return_cycles = 0
    for absence, count in ((1, 0), (40, 5), (GIVEN_UP // 4, 0)):
        # One write is dropped; others wait in the controller, and leave once each.
        dropped = order.letters + 1
        order.send_letter()
        await wait_until(dut, lambda: sample(dut.rq_tvalid), cycles=200, what="the write")
        host.function.bus_master_enable = False
        await ClockCycles(dut.clk, 64)
        sent = host.device.posted_in
        later = range(order.letters + 1, order.letters + 1 + count)
        for _ in later:
            order.send_letter()
        await ClockCycles(dut.clk, absence)
        reading = cocotb.start_soon(host.read_register(0))
        host.function.bus_master_enable = True
        if not later:
            # Nothing follows that would tell: the write counts as gone some time later.
            await ClockCycles(dut.clk, GIVEN_UP // 2)
            assert sample(dut.host__posted) and not reading.done()
            await ClockCycles(dut.clk, GIVEN_UP // 2)
        await ClockCycles(dut.clk, HELD_CYCLES)
        assert reading.done(), "a read waits for what was dropped"
        assert not sample(dut.host__posted)
        assert host.device.posted_in == sent + len(later), "a write was doubled, or lost"
        for number in (dropped, *later):
            at = LETTER_BYTES * number
            found = int.from_bytes(order.letter_memory[at : at + 4], "little")
            assert found == (number if number in later else 0)
    # One that is not dropped, but lies in the block for long: a read waits for it.
    host.device.holds_posted = True
    order.send_letter()
    await ClockCycles(dut.clk, 100)
    dut.status__bus_master.value = 0
    await ClockCycles(dut.clk, 20)
    reading = cocotb.start_soon(host.read_register(0))
    await ClockCycles(dut.clk, 20)
    dut.status__bus_master.value = 1
    await ClockCycles(dut.clk, GIVEN_UP // 2)
    assert sample(dut.host__posted) and not reading.done()
    host.device.holds_posted = False
    await reading
    assert any(order.letter_memory[LETTER_BYTES * order.letters :])
    await order.settle()


@cocotb.test(**LIMIT)
async def what_stands_at_the_edge_is_on_its_way(dut):
    """The block takes nothing while bus mastering is off: a write that it has been offered cannot
    be taken back, so ``posted`` is 1 until it has left, however long; reads end before."""
    order = await bench(dut)
    host = order.host
    lines = iter(range(CONFIG.lines))
    for turn in range(4):
        if turn % 3:
            order.send_block(next(lines))
        else:
            order.send_letter()
            order.send_letter()
        await wait_until(dut, lambda: sample(dut.rq_tvalid), cycles=200, what="the write")
        await ClockCycles(dut.clk, turn)
        host.stall_requests(True)
        await ClockCycles(dut.clk, order.rng.randrange(4))
        await host.withdraw_bus_master()
        for _ in range(2):
            reading = cocotb.start_soon(host.read_register(0))
            await ClockCycles(dut.clk, GIVEN_UP + HELD_CYCLES)
            assert reading.done(), "a read waits for a block that takes nothing"
        waits = sample(dut.rq_tvalid)
        assert sample(dut.host__posted) or not waits, "what can still leave is said to have left"
        await host.restore_bus_master()
        reading = cocotb.start_soon(order.ask())
        await ClockCycles(dut.clk, GIVEN_UP + HELD_CYCLES)
        assert sample(dut.host__posted) or not waits, "what can still leave is said to have left"
        assert not (waits and reading.done()), "what is read passed what stands at the edge"
        host.stall_requests(False)
        await reading
        await wait_until(dut, lambda: not sample(dut.host__posted), cycles=4000, what="all sent")
        await order.ask()
        order.check(order.letters, order.written)
    await order.settle()
    order.check(order.letters, order.written)


@cocotb.test(**LIMIT)
async def reads_without_credits_keep_nobody_waiting(dut):
    """Without credits no read leaves; writes do, and what the host reads of a register comes."""
    order = await bench(dut)
    device = order.host.device
    lines = iter(range(CONFIG.lines))
    fetched = 0
    for turn in range(4):
        for _ in range(turn):
            order.fetch(next(lines), [(order.block_base, 1024, 0)])
            fetched += 1
        await ClockCycles(dut.clk, order.rng.randrange(60))
        device.lacks_credits = True
        await ClockCycles(dut.clk, DRAIN_CYCLES)  # reads that had one
        sent = device.reads_in
        for _ in range(3):
            order.fetch(next(lines), [(order.block_base, 1024, 0)])
            fetched += 1
        for _ in range(2):
            for _ in range(5):
                order.send_letter()
            order.send_block(next(lines))
            await ClockCycles(dut.clk, order.rng.randrange(100))
            reading = cocotb.start_soon(order.ask())
            await ClockCycles(dut.clk, 2 * HELD_CYCLES)
            assert reading.done(), "a register read waits behind reads without credits"
            assert not sample(dut.host__posted), "writes wait behind reads without credits"
        assert device.reads_in == sent, "a read was offered without a credit"
        device.lacks_credits = False
        await order.settle()
        assert len(order.read) == fetched and not any(order.read.values())
    order.check(order.letters, order.written)


@cocotb.test(**LIMIT)
async def reads_have_credits(dut):
    """The host gives few credits for reads, each anew after a while, and the block tells of it
    late. No read is offered without one, and all end, amid writes."""
    order = await bench(dut)
    device = order.host.device
    lines = iter(range(CONFIG.lines))
    for most in (1, 2, 3, 8):
        await order.settle()
        await ClockCycles(dut.clk, DRAIN_CYCLES)
        device.most_reads = most
        wanted = len(order.read) + 6
        for _ in range(6):
            order.fetch(next(lines), [(order.block_base, 1024, 0)])
            if order.rng.random() < 0.5:
                order.send_letter()
        await wait_until(
            dut, lambda n=wanted: len(order.read) == n, cycles=60_000, what=f"reads, {most} credits"
        )
        assert not any(order.read.values())
        await order.settle()
    order.check(order.letters, order.written)


@cocotb.test(**LIMIT)
async def one_write_at_the_edge_is_not_gone(dut):
    """Of some writes all but the last have been taken, and may have been dropped, as bus mastering
    goes off. They are given up; the one that is still offered stays until it has been taken."""
    for name in ("sent", "unfinished", "offered", "taken", "valid", "returned"):
        getattr(dut, name).value = 0
    dut.bus_master.value = 1
    await start(dut)
    for count in range(1, 5):
        dut.sent.value = dut.offered.value = dut.taken.value = 1
        for number in range(count):
            if number == count - 1:
                dut.taken.value = 0
            await RisingEdge(dut.clk)
            dut.unfinished.value = 1
            if number == count - 1:
                dut.sent.value = 0
        dut.bus_master.value = 0
        for _ in range(2):
            await ClockCycles(dut.clk, GIVEN_UP + 8)
            assert sample(dut.ahead) == 1, f"{sample(dut.ahead)} of {count} are on their way"
            assert sample(dut.stuck)
        dut.taken.value = 1
        await RisingEdge(dut.clk)
        dut.taken.value = dut.offered.value = dut.unfinished.value = 0
        await ClockCycles(dut.clk, GIVEN_UP - 8)
        assert sample(dut.ahead) == 1, "given up too early"
        await ClockCycles(dut.clk, 16)
        assert sample(dut.ahead) == 0 and not sample(dut.stuck)
        dut.bus_master.value = 1
        await ClockCycles(dut.clk, 4)


@pytest.mark.parametrize(
    "width",
    [pytest.param(64, marks=pytest.mark.slow), 256, pytest.param(512, marks=pytest.mark.slow)],
)
def test_order(width):
    run_endpoint(
        [
            "reads_push_writes",
            "posted_says_what_is_on_its_way",
            "writes_that_are_dropped_hold_nothing",
            "reads_wait_for_nothing_that_may_not_leave",
            "short_absences",
            "what_stands_at_the_edge_is_on_its_way",
            "reads_without_credits_keep_nobody_waiting",
            "reads_have_credits",
        ],
        module=__name__,
        width=width,
    )


def test_sequence_numbers():
    simulate(
        SequenceNumbers(),
        name="sequence_numbers",
        module=__name__,
        testcase="one_write_at_the_edge_is_not_gone",
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 128])
def test_order_series7(width):
    tests = [
        "reads_push_writes",
        "reads_wait_for_nothing_that_may_not_leave",
        "reads_without_credits_keep_nobody_waiting",
        "reads_have_credits",
    ]
    run_endpoint(tests, module=__name__, width=width, shim="series7")


class Overtakes(WritesAhead):
    """A planted bug: nothing waits."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.passed.eq(1)
        return m


class LeavesAtOnce(SequenceNumbers):
    """A planted bug: all writes have left when one has."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.valid.any()):
            m.d.comb += self.leave.eq(self.ahead)
        return m


class AlwaysCredits(ReadCredits):
    """A planted bug: every read has a credit."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.credits.eq(CREDITS_MOST)
        return m


class TellsAtOnce(ReadCredits):
    """A planted bug: what the block says of credits is taken to be so at that moment."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        most = Mux(self.available > CREDITS_MOST, CREDITS_MOST, self.available)
        m.d.comb += self.credits.eq(most)
        return m


class RestsBeforeWritesLeave(Endpoint):
    """A planted bug: what the hard block has of writes is nobody's any more."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.host.idle.eq(self._rested)
        return m


UNWRITTEN, UNCREDITED = "is not in memory", "a read was offered without a credit"


@pytest.mark.slow
def test_rest_before_writes_leave_is_found(monkeypatch):
    monkeypatch.setattr("cocotb_tests.pcie.pcie_bench.Endpoint", RestsBeforeWritesLeave)
    testcase = "posted_says_what_is_on_its_way"
    with pytest.raises(SimulationError, match=f"failed: {testcase}"):
        run_endpoint(testcase, module=__name__)


@pytest.mark.parametrize(
    ("place", "mutant", "testcase", "message"),
    [
        ("phy.ultrascale.WritesAhead", Overtakes, "reads_push_writes", UNWRITTEN),
        ("endpoint.WritesAhead", Overtakes, "reads_push_writes", UNWRITTEN),
        ("phy.ultrascale.SequenceNumbers", LeavesAtOnce, "reads_push_writes", UNWRITTEN),
        (
            "phy.ultrascale.ReadCredits",
            AlwaysCredits,
            "reads_without_credits_keep_nobody_waiting",
            UNCREDITED,
        ),
        ("phy.ultrascale.ReadCredits", TellsAtOnce, "reads_have_credits", "2 reads, 1 credits"),
        ("phy.series7.ReadCredits", TellsAtOnce, "reads_have_credits", "2 reads, 1 credits"),
    ],
)
@pytest.mark.slow
def test_planted_bugs_are_caught(monkeypatch, place, mutant, testcase, message):
    monkeypatch.setattr(f"hdl.pcie.{place}", mutant)
    shim = place.split(".")[-2]
    shim = "ultrascale" if shim == "endpoint" else shim
    with pytest.raises(SimulationError, match=message):
        run_endpoint(testcase, module=__name__, shim=shim, width=64 if shim == "series7" else 256)


