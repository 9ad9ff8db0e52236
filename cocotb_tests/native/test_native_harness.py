"""The native harness around a stand-in: data, time, jumps, errors, drives that come and go."""

import ctypes
import random
from functools import partial

import pytest

from cocotb_tests.native.native_bench import (
    CYCLE_NS,
    DRIVES,
    GONE,
    LINK,
    MEDIUM_ERROR,
    bench,
    do,
    random_jobs,
    start,
)
from cocotb_tests.native.native_saturate import Saturate
from cocotb_tests.native.native_stand_in import (
    BLOCK,
    BLOCKS,
    BUG,
    HOST_HIGH,
    HOST_LOW,
    JOB,
    JOB_FLUSH,
    JOB_READ,
    JOB_SLEEP,
    JOB_WRITE,
    PORT,
    Bug,
)
from hdl.config import BLOCK_BYTES, Config
from sim.native.harness import Harness, HarnessError
from sim.native.parameters import (
    MICROSECOND,
    Expander,
    Ideal,
    LinkParameters,
    Ssd,
    link_rate,
)


@pytest.mark.parametrize("seed", [1, 2])
def test_data_and_jumps(seed):
    """Every byte is right, and a run without jumps gives the same times and counters."""
    print(f"seed {seed}")
    outcomes = []
    for jumping in (True, False):
        with bench(jumping=jumping) as harness:
            times = random_jobs(harness, seed=seed, count=24)
            statistics = harness.statistics()
            outcomes.append((times, [harness.drive_statistics(port) for port in range(3)],
                             [harness.drive_latencies(port) for port in range(3)],
                             {name: value for name, value in statistics.items()
                              if "cycles" not in name and name != "jumps"}))
            if jumping:
                assert statistics["cycles_skipped"] > statistics["cycles_evaluated"]
            else:
                assert statistics["cycles_skipped"] == 0
    assert outcomes[0] == outcomes[1]


def test_host_memory_goes_at_the_end():
    """A campaign has hundreds of harnesses in one process."""
    with bench() as harness:
        harness.memory[0] = 1
    with pytest.raises(ValueError, match="released"):
        harness.memory[0] = 1
    harness.close()


def test_scoreboard_catches_torn_data():
    """The check of read data fails on a planted bug."""
    with bench() as harness:
        harness.mmio_write32(BUG, Bug.TORN.value)
        with pytest.raises(AssertionError):
            random_jobs(harness, seed=1, count=24)


def test_registers():
    """Reads answer with what was written, after a round trip over the link."""
    with bench() as harness:
        for value in (0, 0x1234_5678, 0xFFFF_FFFF):
            harness.mmio_write32(BLOCK, value)
            before = harness.now_ns
            assert harness.mmio_read32(BLOCK) == value
            assert harness.now_ns - before >= 2 * LINK.propagation_ps / 1000


def test_deadline_ends_a_jump():
    """A timer in the design expires in its cycle although nothing else happens."""
    with bench() as harness:
        start(harness, JOB_SLEEP, block=1_000_000)
        assert harness.run() == [("interrupt", 0)]
        late = harness.now_ns - 1_000_000 * CYCLE_NS - LINK.propagation_ps / 1000
        assert 0 <= late < 30
        assert harness.statistics()["cycles_evaluated"] < 1000
        assert harness.run(until_ns=9_000_000) == [("time",)]
        assert harness.now_ns == 9_000_000
        assert harness.run() == [("idle",)]


def test_medium_error_and_cure():
    """A bad block fails until it is written."""
    with bench() as harness:
        for port in range(3):
            harness.medium_error(port, 6)
            assert do(harness, JOB_READ, port=port, block=4, blocks=4) == MEDIUM_ERROR
            assert do(harness, JOB_READ, port=port, block=4, blocks=2) == 0
            assert do(harness, JOB_WRITE, port=port, block=6) == 0
            assert do(harness, JOB_READ, port=port, block=4, blocks=4) == 0
            assert harness.drive_statistics(port)["errors"] == 1


@pytest.mark.parametrize("cured", [False, True])
def test_bad_blocks_and_a_loss_of_power(cured):
    """Blocks that were bad have been written, and the drive forgets some of these writes. The
    blocks of these are bad again, unless they have been cured."""
    drives = [Ideal(latency_ps=2 * MICROSECOND, volatile_cache=True)] * 3
    blocks = range(4, 20)
    with bench(drives) as harness:
        for block in blocks:
            harness.medium_error(0, block)
            assert do(harness, JOB_WRITE, block=block) == 0
            if cured:
                harness.clear_medium_error(0, block)
        harness.remove(0)
        harness.insert(0)
        bad = sum(do(harness, JOB_READ, block=block) == MEDIUM_ERROR for block in blocks)
        assert not bad if cured else 0 < bad < len(blocks)


@pytest.mark.parametrize("port", [0, 1, 2])
@pytest.mark.parametrize("job", [JOB_READ, JOB_WRITE, JOB_FLUSH])
def test_removal_ends_every_command(port, job):
    """Pulled at any moment, a drive ends its command once, and later ones with GONE."""
    with bench() as harness:
        for delay in (0, 300, 900, 2_000, 6_000, 40_000):
            harness.insert(port, blank=True)
            start(harness, job, port=port, blocks=8)
            for event in harness.run(until_ns=harness.now_ns + delay + 1):
                assert event == ("time",) or event[0] == "interrupt"
                ended = event[0] == "interrupt"
            harness.remove(port)
            if not ended:
                assert harness.run() in ([("interrupt", port)],
                                         [("interrupt", port | GONE << 8)])
            assert do(harness, job, port=port, blocks=2) == GONE
            assert harness.run() == [("idle",)]
        harness.insert(port)
        assert do(harness, JOB_WRITE, port=port) == 0


def test_images(tmp_path):
    """A drive goes to a file and back."""
    data = random.Random(3).randbytes(2 * BLOCK_BYTES)
    with bench() as harness:
        harness.write_drive(1, 5, data)
        harness.write_drive(1, 9, bytes(BLOCK_BYTES))
        assert harness.written_blocks(1) == [5, 6]
        harness.export_drive(1, str(tmp_path / "image"))
        harness.import_drive(0, str(tmp_path / "image"))
        assert harness.read_drive(0, 5, 2) == data
        assert harness.written_blocks(0) == [5, 6]


def job_at(harness: Harness, job: int, address: int) -> list[tuple]:
    """Runs a job of one block on port 0 at a bus address; the events that it ends with."""
    for register, value in ((BLOCK, 7), (BLOCKS, 0), (HOST_LOW, address & 0xFFFF_FFFF),
                            (HOST_HIGH, address >> 32), (PORT, 0), (JOB, job)):
        harness.mmio_write32(register, value)
    return harness.run()


def test_memory_of_another_owner():
    """Mapped memory is reached without a copy, and no more once it is unmapped."""
    data = random.Random(5).randbytes(BLOCK_BYTES)
    memory = (ctypes.c_char * (3 * BLOCK_BYTES)).from_buffer(bytearray(3 * BLOCK_BYTES))
    low = (ctypes.c_char * BLOCK_BYTES).from_buffer(memory, 2 * BLOCK_BYTES)
    high = (ctypes.c_char * BLOCK_BYTES).from_buffer(memory)
    with bench() as harness:
        harness.map_memory(0x10_0000, low)
        harness.map_memory(1 << 40, high)
        low[:] = data
        assert job_at(harness, JOB_WRITE, 0x10_0000) == [("interrupt", 0)]
        assert job_at(harness, JOB_READ, 1 << 40) == [("interrupt", 0)]
        assert memory[:] == data + bytes(BLOCK_BYTES) + data
        for address in (0x10_0000 - 4096 + 4, (1 << 40) + 4092, harness.memory_base, -4096):
            with pytest.raises(ValueError, match="overlaps other host memory"):
                harness.map_memory(address, low)
        before = harness.statistics()
        assert before["stray_writes"] == before["stray_reads"] == 0
        harness.unmap_memory()
        high[:] = bytes(BLOCK_BYTES)
        assert job_at(harness, JOB_READ, 1 << 40) == [("interrupt", 0)]
        assert harness.statistics()["stray_writes"] == 1
        assert high[:] == bytes(BLOCK_BYTES)


def test_slices_of_cycles():
    """Slices of cycles end in the same events at the same times as one run."""
    outcomes = []
    for cycles in (0, 1, 37):
        with bench() as harness:
            outcome, slices = [], 0
            for port in range(3):
                start(harness, JOB_WRITE, port=port, blocks=3)
                while (events := harness.run(cycles=cycles)) == [("time",)]:
                    slices += 1
                outcome.append((events, harness.now_ns))
            evaluated = harness.statistics()["cycles_evaluated"]
            assert slices >= evaluated // cycles - 3 if cycles else slices == 0
            while harness.run(cycles=cycles) != [("idle",)]:
                pass
            outcomes.append(outcome)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_expander_is_shared():
    """Alone, a drive gets its own link rate, or that of the expander when it is lower."""
    times = {}
    for name, rate in (("wide", link_rate(12, lanes=4)), ("narrow", link_rate(3))):
        drives = [Ideal(rate=link_rate(12), expander=0)] * 3
        with bench(drives, expanders=[Expander(rate=rate)]) as harness:
            harness.run(until_ns=1000)
            before = harness.now_ns
            do(harness, JOB_READ, blocks=8)
            times[name] = harness.now_ns - before
    blocks_ns = 8 * BLOCK_BYTES * 1e9
    assert 0 < times["wide"] - blocks_ns / link_rate(12) < 5000
    assert 0 < times["narrow"] - blocks_ns / link_rate(3) < 5000


def test_design_errors_are_reported():
    """A request that breaks a rule of the link ends the run with one line that says which."""
    with bench(link=LinkParameters(check_vectors=False)) as harness:
        start(harness, JOB_WRITE)
        with pytest.raises(HarnessError, match=r"^cycle \d+: RQ: a read exceeds Max_Read"):
            harness.run()
        for _ in range(2):
            with pytest.raises(HarnessError, match=r"^cycle \d+: RQ: a read exceeds Max_Read"):
                harness.run()


def test_everything_at_once():
    """24 drives and both directions of the link stay full."""
    config = Config(ports=24, completion_straddle=False)
    drives = [Ideal(rate=link_rate(12), keep_data=False)] * config.ports
    duration_ns = 400_000
    expected = pytest.approx(link_rate(12) * duration_ns / 1e9, rel=0.05)
    with Harness(config, drives=drives, component=partial(Saturate, config=config)) as harness:
        harness.run(until_ns=10_000)
        before = harness.statistics()
        at_start = [harness.drive_statistics(port) for port in range(config.ports)]
        harness.run(until_ns=harness.now_ns + duration_ns)
        moved = {name: value - before[name] for name, value in harness.statistics().items()}
        for port in range(config.ports):
            name = "written_blocks" if port & 1 else "read_blocks"
            blocks = harness.drive_statistics(port)[name] - at_start[port][name]
            assert blocks * BLOCK_BYTES == expected
    assert moved["up_busy_ps"] > 0.97 * duration_ns * 1000
    assert moved["up_payload_bytes"] == pytest.approx(moved["down_payload_bytes"], rel=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinkParameters(generation=6), "generation must be 1..5, not 6"),
        (lambda: LinkParameters(lanes=3), "lanes must be a power of two in 1..16, not 3"),
        (lambda: Ideal(capacity=0), "capacity must be 1"),
        (lambda: Ssd(cache_blocks=1), "cache_blocks must be 64"),
        (lambda: link_rate(5), "3, 6 or 12"),
        (lambda: bench(DRIVES[:2]), "one entry for each of the 3 ports"),
        (lambda: bench([Ideal(expander=0)] * 3), "names expander 0 of 0"),
    ],
)
def test_parameters_are_checked(make, message):
    """Bad parameters are refused in one line."""
    with pytest.raises(ValueError, match=message):
        make()
