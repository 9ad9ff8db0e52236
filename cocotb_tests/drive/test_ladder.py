"""Drives that end no commands: aborts, port resets, giving up (`hdl.drive.recovery.ladder`)."""

import os
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import RisingEdge

import hdl.drive.drives
import hdl.drive.recovery.ladder
from cocotb_tests.drive.drive_model import RANDOM, Timing
from cocotb_tests.drive.ladder_bench import CONFIG, PORTS, QUICK, SLACK, TICK, Ladders
from cocotb_tests.runner import SimulationError, converted, simulate
from cocotb_tests.streams import sample, start, wait_until
from hdl.config import TIME_BITS, Config
from hdl.config.drive_time import longest_ms
from hdl.drive.data.write_path import WritePath
from hdl.drive.drives import Drives
from hdl.drive.recovery.fence import Fence
from hdl.drive.recovery.ladder import Ladder
from hdl.flow.operation import DriveStatus, Opcode, Owner

CONFIG_1 = replace(CONFIG, drive_tags=1)

LONGEST = 7680
"""Cycles that a command may stay in a port, but for the walk over the tags: 6 ms and 1 ms, each to
the next tick but one. A tick is the greatest power of two in half of 1 ms: 256 cycles."""

GIVEN_UP = {True: 15_360, False: 20_480}
"""Cycles until a drive that ends nothing is failed (docs/guarantees.md): whether it ends no aborts
either. If not, (``drive_resets`` + 1) T = 2 * 7680. Else ``drive_resets`` + 2 = 3 times the 6 ms,
which last 25 ticks of 256 cycles, and once the 1 ms, which lasts 5."""

ABORT = 990
"""Cycles that an abort takes which is still in time."""

WINDOW = 1 << 20
"""Cycles after which resets are forgiven: 1 s, rounded up to a power of two."""


def sizes_of_environment() -> Config:
    """Of this simulation."""
    tags, resets = int(os.environ["TAGS"]), int(os.environ["RESETS"])
    slow = int(os.environ["SLOW"])
    return replace(CONFIG, drive_tags=tags, drive_resets=resets, slow_read_ms=slow)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def aborts(dut):
    """One command hangs: it is aborted in time and alone; a drive that only is slow is not."""
    bench = Ladders(dut)
    await start(dut)
    bench.stop(1)
    bench.submit(port=1, opcode=Opcode.READ, owner=Owner.ROW, block=9)
    await wait_until(dut, lambda: bench.drives[1].counts.stuck == 1, cycles=200, what="hang")
    since = bench.time
    for port in range(PORTS):
        bench.some(port, 6)
    await wait_until(dut, lambda: len(bench.pending) == 1, cycles=3000, what="the others")
    await bench.drain()
    took = bench.time - since
    assert 6000 <= took <= LONGEST, took
    assert bench.ended(DriveStatus.ABORTED) == 1
    assert [drive.counts.aborts for drive in bench.drives] == [0, 1, 0, 0]
    bench.may_fail.clear()
    bench.drives[2].timing = Timing(latency=(5000, 5500))
    bench.some(2, 5)
    await bench.settle()
    assert sum(drive.counts.aborts for drive in bench.drives) == 1
    assert not bench.given_up and not any(drive.counts.resets for drive in bench.drives)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def resets(dut):
    """Aborts are ignored: the port is reset under load, everything ends once, the drive works on.

    The next time within the window it is given up, and it comes back once it is not failed.
    """
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[0]
    bench.stop(0, 2, deaf=True)
    since = bench.time
    bench.some(0, 6)
    await bench.passes(6800)
    while not drive.counts.resets:
        # More keeps coming, and other ports do not notice.
        bench.some(0, 2)
        bench.some(3, 1)
        await bench.passes(40)
        assert bench.time - since <= LONGEST + SLACK
    bench.some(0, 10)
    await bench.drain()
    assert drive.counts.resets == 1 and not bench.given_up
    aborted = bench.ended(DriveStatus.ABORTED)
    assert aborted >= 2, aborted
    bench.some(0, 10)
    await bench.drain()
    assert not bench.ended(DriveStatus.ABORTED) and not bench.ended(DriveStatus.GONE)

    bench.stop(0, -1, deaf=True, lasting=True)
    since = bench.time
    bench.some(0, 12)
    bench.some(1, 3)
    await bench.drain()
    assert bench.time - since <= LONGEST + SLACK
    assert bench.given_up == [0] and bench.ended(DriveStatus.GONE) == 12
    assert drive.counts.resets == 2
    bench.some(0, 5)
    await bench.drain()
    assert bench.ended(DriveStatus.GONE) == 5
    assert sample(dut.drives__0__reset), "a drive that was given up is not in reset"

    bench.mend(0)
    await bench.settle()
    assert not sample(dut.drives__0__reset)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def doubts(dut):
    """A drive that has restarted is sent nothing, from that cycle on, until it is known what
    becomes of it: what is queued then ends with GONE, or is sent. Other ports do not notice."""
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[1]
    # The scoreboard looks at the drive as an operation ends.
    drive.forgets = False
    bench.may_fail.add(1)
    for number in range(24):
        for port in range(PORTS):
            bench.some(port, 6)
        await bench.passes(bench.random.randrange(60))
        await drive.restart()
        dut.doubted.value = 1 << 1
        begun, others = drive.counts.commands, bench.drives[0].counts.commands
        bench.some(1, 4)
        bench.some(0, 4)
        await wait_until(
            dut,
            lambda: {pending.port for pending in bench.pending.values()} == {1},
            cycles=4000,
            what="the others",
        )
        await bench.passes(200)
        # One may have been offered before; the drive aborts it.
        assert drive.counts.commands - begun <= 1, "a drive in doubt is asked for something"
        assert bench.drives[0].counts.commands > others
        if number % 2:
            dut.failed.value = 1 << 1
        dut.doubted.value = 0
        await bench.drain()
        assert bool(bench.ended(DriveStatus.GONE)) == bool(number % 2)
        dut.failed.value = 0
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def one_hang_is_one(dut):
    """Commands that hang together are aborted, whenever each was offered; the port is not reset."""
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[2]
    for apart in (0, 300, 600, 3000):
        aborts, resets = drive.counts.aborts, drive.counts.resets
        bench.stop(2, 2)
        bench.some(2, 1)
        await bench.passes(1 + apart)
        bench.some(2, 1)
        await bench.drain()
        assert drive.counts.aborts - aborts == 2, apart
        assert drive.counts.resets == resets and not bench.given_up, apart
        bench.mend(2)
        # The next window; nothing has happened lately.
        await bench.reaches((bench.time // WINDOW + 1) * WINDOW + 1000)
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def one_hang_is_one_in_two_windows(dut):
    """A port was aborted early in a window. Commands that hang together around its end are aborted;
    what the window's end forgives is held against none of them."""
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[1]
    for before, apart in ((2000, 1200), (5500, 5000), (300, 600), (1300, 100)):
        window = (bench.time // WINDOW + 1) * WINDOW
        aborts = drive.counts.aborts
        await bench.reaches(window + 2000)
        bench.stop(1, 1)
        bench.some(1, 1)
        await bench.drain()
        await bench.reaches(window + WINDOW - before)
        bench.stop(1, 2)
        bench.some(1, 1)
        await bench.passes(apart)
        bench.some(1, 1)
        await bench.drain()
        assert drive.counts.aborts == aborts + 3, (before, apart)
        assert not drive.counts.resets and not bench.given_up, (before, apart)
        bench.mend(1)
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def ends_as_it_is_judged(dut):
    """A command that is late ends by itself in any cycle of the walk that finds it so: what is over
    is not waited for, and its port is not reset."""
    bench = Ladders(dut, timing=replace(QUICK, latency=(0, 0), ending=(0, 0)), config=CONFIG_1)
    await start(dut)
    drive = bench.drives[1]
    walk = 2 * PORTS + 12

    async def ticks(count: int) -> None:
        for _ in range(count):
            bench.time = (bench.time // TICK + 1) * TICK - 1
            await bench.passes(2 * walk)

    async def hangs() -> None:
        """At the beginning of a tick, long after whatever was before."""
        await bench.drain()
        bench.time = (bench.time // WINDOW + 2) * WINDOW
        bench.stop(1, 1, deaf=True)
        bench.submit(port=1, opcode=Opcode.FLUSH, owner=Owner.ROW)
        stuck = drive.counts.stuck + 1
        await wait_until(dut, lambda: drive.counts.stuck == stuck, cycles=200, what="hang")

    def ends_in(cycles: int) -> None:
        (command,) = drive._commands.values()
        command.ready = drive._cycle + cycles

    # How many ticks it takes to be late.
    await hangs()
    late = 0
    while not drive.counts.aborts:
        await ticks(1)
        late += 1
    assert late == 1 + -(-6000 // TICK), late
    ends_in(0)
    aborted = 0
    for cycles in range(walk):
        await hangs()
        await ticks(late - 1)
        aborts = drive.counts.aborts
        ends_in(cycles)
        await ticks(8)
        aborted += drive.counts.aborts - aborts
        assert not drive.counts.resets and not bench.given_up, f"{cycles}: the port is reset"
    assert 0 < aborted < walk, "not around the moment"
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def asks_nothing_after_a_restart(dut):
    """Whatever is about to be done with an operation as its drive restarts: from the next cycle on
    nothing is offered, as the drive would do that with what it has then."""
    bench = Ladders(dut)
    await start(dut)
    drive, valid = bench.drives[1], dut.drives__1__command__valid
    drive.forgets = False
    bench.may_fail.add(1)
    offered = 0
    for delay in range(48):
        bench.some(1, 1)
        await bench.passes(1 + delay)
        await drive.restart()
        dut.doubted.value = 1 << 1
        before = sample(valid)
        for cycle in range(40):
            await RisingEdge(dut.clk)
            before &= sample(valid)
            assert before == sample(valid), f"offered {cycle + 1} cycles after a restart"
        dut.doubted.value = 0
        begun = drive.counts.commands
        await bench.drain()
        offered += drive.counts.commands > begun
    assert offered > 4, "no operation has waited"
    await bench.settle()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_stall_is_one(dut):
    """Reads that could be had elsewhere hang with others, and end as slow before. They are aborted
    with them, whatever has become of other ports; the port is not reset."""
    bench = Ladders(dut, config=sizes_of_environment())
    await start(dut)
    ports = [0, 2, 1, 3]
    for port, reads in zip(ports, (0, 2, 2, 1), strict=True):
        drive = bench.drives[port]
        bench.stop(port, reads + 1)
        for at in range(reads + 1):
            opcode = Opcode.READ if at < reads else Opcode.WRITE
            bench.submit(
                port=port,
                opcode=opcode,
                owner=Owner.ROW,
                block=2 * bench.random.randrange(2000),
                place=at,
                alone=1,
                **({"elsewhere": 1} if at < reads else {}),
            )
            await bench.passes(40)
        for _ in range(80):
            if port != ports[0]:
                bench.some(ports[0], 1)
            await bench.passes(50)
        await bench.drain()
        assert (drive.counts.aborts, drive.counts.resets) == (reads + 1, 0), port
        bench.mend(port)
    assert bench.ended(DriveStatus.SLOW) == 5 and not bench.given_up
    await bench.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def patience(dut):
    """A drive that ends all it is told to abort, but nothing else, is given up as well."""
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[2]
    bench.stop(2, -1, lasting=True)
    for attempt, status in enumerate(
        (DriveStatus.ABORTED, DriveStatus.ABORTED, DriveStatus.GONE)
    ):
        bench.some(2, 4)
        bench.some(0, 4)
        await bench.drain()
        assert bench.ended(status) == 4, (attempt, bench.statuses)
        assert drive.counts.resets == attempt
    assert bench.given_up == [2] and drive.counts.aborts == 4
    bench.mend(2)
    await bench.settle()


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def gives_up_in_time(dut):
    """A drive that hangs is given up in time, also if a window ends meanwhile, or the clock wraps;
    aborts or not."""
    bench = Ladders(dut)
    await start(dut)
    most = max(GIVEN_UP.values())
    longest = dict.fromkeys(GIVEN_UP, 0)
    ends = [number * WINDOW for number in range(1, 5)]
    ends += [number << TIME_BITS for number in range(1, 7)]
    for number, end in enumerate(ends):
        deaf = bool(number % 2)
        # Longer ago than any command takes: that is forgiven as the window ends.
        await bench.reaches(end - 3 * most)
        await bench.reaches(end - bench.random.randrange(most))
        began = bench.time
        bench.stop(3, -1, deaf=deaf, lasting=True)
        bench.drives[3].abort_cycles = bench.random.choice((0, ABORT))
        while not bench.given_up:
            bench.some(3, 4)
            bench.some(0, 2)
            await bench.drain()
        longest[deaf] = max(longest[deaf], bench.time - began)
        assert bench.time - began <= GIVEN_UP[deaf] + SLACK, f"end {end:#x}, deaf {deaf}"
        bench.mend(3)
        bench.given_up.clear()
        await bench.settle()
    for deaf, most in GIVEN_UP.items():
        assert longest[deaf] >= 0.8 * most, f"{longest} of {GIVEN_UP}"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def forgives(dut):
    """Resets and aborts of an earlier window are forgiven, those of the same one are not."""
    bench = Ladders(dut)
    await start(dut)
    drive = bench.drives[1]
    for window in range(1, 4):
        await bench.reaches(window * WINDOW)
        bench.stop(1, 2, deaf=True)
        bench.some(1, 2)
        bench.some(2, 4)
        await bench.drain()
        assert bench.ended(DriveStatus.ABORTED) >= 2
        assert drive.counts.resets == window and not bench.given_up, f"window {window}"
        assert drive.counts.aborts == 2 * window
    await bench.reaches(4 * WINDOW - 20_000)
    bench.stop(1, 1, deaf=True)
    bench.some(1, 1)
    await bench.drain()
    assert bench.given_up == [1] and drive.counts.resets == 4, "forgiven within the window"
    assert bench.ended(DriveStatus.GONE) == 1
    bench.mend(1)
    await bench.settle()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def cut_writes(dut):
    """A drive stops in the middle of write data: what was on its way is no part of what follows."""
    config = sizes_of_environment()
    bench = Ladders(dut, config=config)
    await start(dut)
    halves = 0
    for number in range(10):
        port = number % PORTS
        drive = bench.drives[port]
        before = drive.counts.resets
        bench.stop(port, 0, deaf=True)
        drive.freeze = bench.random.randrange(config.drive_tags * config.beats)
        for _ in range(config.drive_tags):
            while not bench.write(port):
                pass
        await wait_until(
            dut, lambda d=drive, n=before: d.counts.resets > n, cycles=LONGEST + SLACK, what="reset"
        )
        halves += drive.counts.halves
        drive.counts.halves = 0
        for _ in range(3):
            bench.write(port)
            bench.some(port, 2)
        for other in range(PORTS):
            bench.some(other, 1)
        await bench.drain()
        bench.may_fail.clear()
    assert halves, "no write broke off inside a block"
    assert not bench.given_up
    await bench.settle()


@cocotb.test(timeout_time=6, timeout_unit="ms")
async def storms(dut):
    """Resets at any moment of random traffic, writes and reads in the middle of a block too."""
    config = sizes_of_environment()
    bench = Ladders(dut, timing=RANDOM, config=config)
    await start(dut)
    allowed = config.drive_resets
    expected = [0] * PORTS
    for _ in range(12):
        port = bench.random.randrange(PORTS)
        drive = bench.drives[port]
        if port in bench.given_up:
            continue
        before = drive.counts.resets
        if bench.random.random() < 0.5:
            bench.stop(port, deaf=True)
            bench.some(port, 1)
        else:
            bench.stop(port, 0, deaf=True)
            drive.freeze = bench.random.randrange(config.beats)
            while not bench.write(port):
                pass
        await bench.passes(5500 + bench.random.randrange(300))
        while drive.counts.resets == before:
            # As many as there is room for, on every port.
            for other in range(PORTS):
                if len(bench.pending) < 60:
                    bench.some(other, 2)
            if len(bench.pending) < 60:
                bench.write(port)
            await bench.passes(bench.random.randrange(20, 60))
        expected[port] += 1
        await bench.drain()
        assert drive.counts.resets == before + 1
        # Nobody else noticed, and nobody will before the next drive stops.
        bench.may_fail = set(bench.given_up)
    assert [drive.counts.resets for drive in bench.drives] == expected
    for port, resets in enumerate(expected):
        assert (resets == allowed + 1) == (port in bench.given_up)
    # With few tags there is seldom a read beside the command that hangs.
    assert config.drive_tags < CONFIG.drive_tags or sum(d.counts.cut for d in bench.drives)
    assert sum(drive.counts.halves for drive in bench.drives), "no write broke off inside a block"
    for port in list(bench.given_up):
        bench.mend(port)
    await bench.settle()


def run(testcase: str, name: str = "ladder", seed: int = 1, tags: int = CONFIG.drive_tags) -> None:
    config = replace(CONFIG, drive_tags=tags)
    if testcase == "cut_writes":
        config = replace(config, drive_resets=3)
    if testcase == "a_stall_is_one":
        config = replace(config, slow_read_ms=2)
    simulate(
        converted(Drives, config=config),
        name=f"{name}_t{tags}",
        module=__name__,
        testcase=testcase,
        seed=seed,
        parameters={
            "TAGS": str(tags),
            "RESETS": str(config.drive_resets),
            "SLOW": str(config.slow_read_ms),
        },
    )


@pytest.mark.parametrize(
    "testcase",
    [
        "aborts",
        "one_hang_is_one",
        pytest.param("one_hang_is_one_in_two_windows", marks=pytest.mark.slow),
        "asks_nothing_after_a_restart",
        "a_stall_is_one",
        "resets",
        "doubts",
        "patience",
        "gives_up_in_time",
        "forgives",
        "storms",
    ],
)
def test_ladder(testcase):
    run(testcase)


@pytest.mark.slow
@pytest.mark.parametrize("tags", [1, 2, 4])
def test_few_tags(tags):
    run("cut_writes", tags=tags)


def test_what_ends_as_it_is_judged():
    run("ends_as_it_is_judged", tags=1)


@pytest.mark.slow
@pytest.mark.parametrize("tags", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [1, 2])
def test_storms_with_few_tags(tags, seed):
    run("storms", tags=tags, seed=seed)


def test_times():
    """What the sizes promise: a tick is at most half an abort's time, and nothing is too early."""
    for clock in (1_000_000, 80_000_000, 250_000_000):
        config = replace(CONFIG, clock_hz=clock, command_timeout_ms=8000, abort_timeout_ms=500)
        tick_ms = (1 << hdl.config.drive_time.tick_shift(config)) * 1000 / clock
        assert 100 < tick_ms <= 250
        assert 8500 <= longest_ms(config) <= 8500 + 4 * tick_ms


def stopping_fence(inner):
    """Data that a drive has asked for waits until the drive is back."""

    def elaborate(self, platform):
        m = inner(self, platform)
        m.d.comb += self.inner.write_data.ready.eq(self.outer.write_data.ready & ~self.shut)
        return m

    return elaborate


def hurried(**sizes):
    """A ladder with other sizes."""
    return lambda config: Ladder(config=replace(config, **sizes))


def spilling(inner):
    """A ladder that ends a port's reset while beats are on their way."""

    def elaborate(self, platform):
        m = inner(self, platform)
        m.d.comb += self.filled.eq(0)
        return m

    return elaborate


FAULTS = {
    "keeps beats": ("cut_writes", WritePath, "elaborate", spilling(WritePath.elaborate)),
    "never forgiven": (
        "forgives",
        hdl.drive.drives,
        "Ladder",
        hurried(drive_reset_window_s=1 << 20),
    ),
    "no aborts": ("aborts", hdl.drive.recovery.ladder, "ticks", lambda config, ms: 4000),
    "too early": ("aborts", hdl.drive.recovery.ladder, "ticks", lambda config, ms: 4),
    "keeps data": ("storms", Fence, "elaborate", stopping_fence(Fence.elaborate)),
}
IN_EVERY_RUN = ("keeps beats",)
"""The planted fault that is not of the long suite only."""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault in IN_EVERY_RUN else [pytest.mark.slow])
        for fault in FAULTS
    ],
)
def test_ladder_faults_are_caught(fault, monkeypatch):
    testcase, owner, name, value = FAULTS[fault]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(SimulationError):
        run(
            testcase,
            name=f"ladder_{fault.replace(' ', '_')}",
            tags=1 if testcase == "cut_writes" else CONFIG.drive_tags,
        )
