"""Load profiles, addresses, throughput and percentiles of the load generator."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sw.driver.loop import Loop
from sw.workload.generator import Generator, Load
from sw.workload.profiles import KIB, OUTSTANDING, PROFILES, Profile
from sw.workload.statistics import MIB, Latency, Result

BLOCKS = 100_000
BLOCK = 4096


class Clock:
    """A machine in which only time passes."""

    now_ns = 0.0

    def advance(self, until_ns: float | None) -> list[int]:
        assert until_ns is not None
        self.now_ns = max(self.now_ns, until_ns)
        return []


class Transport:
    """What loads use of a driver's transport."""

    def __init__(self, clock: Clock, loop: Loop, allocate: Callable[[int], int]):
        self._clock = clock
        self.memory = SimpleNamespace(allocate=allocate)
        self.event = loop.event
        self.spawn = loop.spawn
        self.sleep = loop.sleep

    @property
    def now_ns(self) -> float:
        return self._clock.now_ns


class Volume:
    """Stands in for a started controller; accesses take ``latency`` in turn, and are noted."""

    def __init__(self, latency_ns: list[float], queues: int = 1):
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.queues = [None] * queues
        self.buffers: list[int] = []
        self.accesses: list[tuple[str, int, int, int, int]] = []
        self.outstanding = self.most_outstanding = 0
        self._latency = latency_ns
        self.transport = Transport(self.clock, self.loop, self._allocate)

    def _allocate(self, length: int) -> int:
        self.buffers.append(length)
        return len(self.buffers) << 20

    async def _access(self, kind: str, block: int, blocks: int, address: int, queue: int) -> None:
        self.accesses.append((kind, block, blocks, address, queue))
        self.outstanding += 1
        self.most_outstanding = max(self.most_outstanding, self.outstanding)
        await self.loop.sleep(self._latency[len(self.accesses) % len(self._latency)])
        self.outstanding -= 1

    async def read(self, namespace: int, block: int, blocks: int, address: int, queue: int):
        assert namespace == 1
        await self._access("read", block, blocks, address, queue)

    async def write(self, namespace: int, block: int, blocks: int, address: int, queue: int):
        assert namespace == 1
        await self._access("write", block, blocks, address, queue)

    def run(self, load: Load, blocks: int = BLOCKS, **options: Any) -> Result:
        nvme: Any = self
        self.generator = Generator(nvme, 1, blocks, load, **options)
        return self.loop.run(self.generator.run())


def load(profile: Profile, outstanding: int = 4, **options: Any) -> Load:
    return Load(profile, outstanding, **({"warm_up_ns": 1_000, "measure_ns": 20_000} | options))


# Profiles


def test_published_profiles():
    """Shares, sizes and order of Fujitsu's "RAID Controller Performance 2016"."""
    assert {
        name: (p.random, p.read_share, p.block_bytes // KIB) for name, p in PROFILES.items()
    } == {
        "File copy": (True, 0.50, 64),
        "File server": (True, 0.67, 64),
        "Database": (True, 0.67, 8),
        "Streaming": (False, 1.0, 64),
        "Restore": (False, 0.0, 64),
    }
    assert OUTSTANDING == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Profile("p", True, 1.1, BLOCK), r"read_share must be 0\.\.1, not 1\.1"),
        (lambda: Profile("p", True, -0.1, BLOCK), "read_share"),
        (lambda: Profile("p", True, 0.5, 512), "block_bytes must be a multiple of 4096, not 512"),
        (lambda: Profile("p", True, 0.5, 0), "block_bytes"),
        (lambda: load(PROFILES["Restore"], 0), "outstanding must be at least 1, not 0"),
        (lambda: load(PROFILES["Restore"], warm_up_ns=-1), "warm_up_ns must not be negative"),
        (lambda: load(PROFILES["Restore"], measure_ns=0), "measure_ns must be positive"),
        (lambda: Volume([1]).run(load(PROFILES["Streaming"]), 159), "10% of 159 blocks"),
        (lambda: Volume([1]).run(load(PROFILES["Database"]), 7), "25% of 7 blocks"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Addresses


@pytest.mark.parametrize("blocks", [161, 1000, 4097])
@pytest.mark.parametrize("name", ["Streaming", "Restore"])
def test_sequential_addresses(name, blocks):
    """One access after the other, round and round within the first tenth."""
    volume = Volume([100])
    volume.run(load(PROFILES[name], outstanding=3), blocks)
    accesses = blocks // 10 // 16
    assert len(volume.accesses) > 2 * accesses
    for index, (kind, block, count, _, _) in enumerate(volume.accesses):
        assert kind == ("read" if name == "Streaming" else "write")
        assert (block, count) == (index % accesses * 16, 16)
        assert block + count <= blocks / 10


@pytest.mark.parametrize("blocks", [64, 1000, 4097])
@pytest.mark.parametrize("name", ["Database", "File copy"])
def test_random_addresses(name, blocks):
    """Multiples of 4096, all of the quarter after the first tenth, and nothing else."""
    volume = Volume([10])
    volume.run(load(PROFILES[name], measure_ns=60_000), blocks)
    length = PROFILES[name].block_bytes // BLOCK
    begin, end = int(blocks * 0.10), int(blocks * 0.10) + int(blocks * 0.25)
    starts = {block for _, block, _, _, _ in volume.accesses}
    assert all(count == length for _, _, count, _, _ in volume.accesses)
    assert min(starts) >= begin and max(starts) + length <= end
    assert len(starts) > 0.95 * (end - begin - length + 1)


@pytest.mark.parametrize("name", ["File server", "File copy"])
def test_read_share(name):
    volume = Volume([10])
    volume.run(load(PROFILES[name], measure_ns=50_000))
    reads = sum(kind == "read" for kind, *_ in volume.accesses)
    assert reads / len(volume.accesses) == pytest.approx(PROFILES[name].read_share, abs=0.02)


def test_seed():
    """The same seed gives the same accesses, another one others."""
    runs = []
    for seed in (1, 1, 2):
        volume = Volume([10, 30, 20])
        volume.run(load(PROFILES["Database"], seed=seed))
        runs.append(volume.accesses)
    assert runs[0] == runs[1] != runs[2]


def test_outstanding():
    """As many accesses as asked for, each with a buffer of its own, shared out over the queues."""
    volume = Volume([10, 25], queues=3)
    volume.run(load(PROFILES["File copy"], outstanding=7))
    assert volume.most_outstanding == 7
    assert volume.outstanding == 0
    assert volume.buffers == [64 * KIB] * 7
    queue_of = {address: queue for _, _, _, address, queue in volume.accesses}
    assert sorted(queue_of.values()) == [0, 0, 0, 1, 1, 2, 2]


# What is measured


def test_throughput_and_latency():
    """Accesses of 100 ns, 5 at once, for 20 us: 1000 in the measurement, none of the warm-up."""
    volume = Volume([100])
    result = volume.run(load(PROFILES["Streaming"], outstanding=5))
    assert result.seconds == pytest.approx(20e-6)
    assert result.accesses == pytest.approx(1000, abs=5)
    assert result.bytes == result.accesses * 64 * KIB
    assert result.io_s == pytest.approx(result.accesses / 20e-6)
    assert result.mb_s == pytest.approx(result.io_s * 64 * KIB / MIB)
    assert result.latency == Latency(0.1, 0.1, 0.1, 0.1)


def test_measurement_is_prolonged():
    """Until there are enough accesses, or there is no more time."""
    slow = load(PROFILES["Streaming"], 1, measure_ns=1_000, least_accesses=10)
    assert Volume([700]).run(slow).accesses >= 10
    short = load(PROFILES["Streaming"], 1, measure_ns=1_000, least_accesses=10, most_ns=3_000)
    result = Volume([700]).run(short)
    assert result.accesses < 10
    assert result.seconds == pytest.approx(3e-6)


def test_probe():
    """The probe's growth is that of the measurement alone."""
    volume = Volume([100])
    counter = lambda: {"time": round(volume.clock.now_ns), "accesses": len(volume.accesses)}  # noqa: E731
    result = volume.run(load(PROFILES["Restore"]), probe=counter)
    assert volume.generator.probed["time"] == 20_000
    assert volume.generator.probed["accesses"] == pytest.approx(result.accesses, abs=8)


def test_nothing_measured():
    """An interval in which nothing ends has no throughput and no latency."""
    result = Volume([1_000_000]).run(load(PROFILES["Restore"]))
    assert (result.accesses, result.mb_s, result.io_s) == (0, 0.0, 0.0)
    assert result.latency == Latency(0.0, 0.0, 0.0, 0.0)
    assert Result(0, 0, 0.0, Latency.of([])).mb_s == 0.0


def nearest_rank(samples: list[int], permille: int) -> float:
    """The smallest sample that at least ``permille`` of all do not exceed, by counting."""
    for value in sorted(samples):
        if 1000 * sum(other <= value for other in samples) >= permille * len(samples):
            return value / 1000
    raise AssertionError


@given(samples=st.lists(st.integers(0, 10_000), min_size=1, max_size=200))
def test_percentiles(samples):
    latency = Latency.of([float(sample) for sample in samples])
    assert latency.mean == pytest.approx(sum(samples) / len(samples) / 1000)
    assert latency.p50 == nearest_rank(samples, 500)
    assert latency.p99 == nearest_rank(samples, 990)
    assert latency.p99_9 == nearest_rank(samples, 999)


@pytest.mark.parametrize("count", [999, 1000, 1001, 2000])
def test_percentiles_of_many(count):
    """Where the nearest rank changes, and whatever the order of the samples."""
    samples = [1000.0 * n for n in range(1, count + 1)]
    random.Random(1).shuffle(samples)
    latency = Latency.of(samples)
    assert latency.p50 == -(-count // 2)
    assert latency.p99 == -(-count * 99 // 100)
    assert latency.p99_9 == -(-count * 999 // 1000)
