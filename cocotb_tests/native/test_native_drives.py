"""The drive models alone: closed forms of rotation, seek, link, dies, caches; the presets."""

import pytest

from sim.native.fit import TOLERANCE_PERCENT, errors
from sim.native.models import Load, run_load
from sim.native.parameters import (
    MEBIBYTE,
    MICROSECOND,
    MILLISECOND,
    SECOND,
    Hdd,
    Ideal,
    Ssd,
    link_rate,
)
from sim.native.presets import PRESETS

BLOCK = 4096
CAPACITY = 100_000_000

HDD = Hdd(
    capacity=CAPACITY,
    rate=link_rate(12),
    revolution_ps=8 * MILLISECOND,
    media_rate=100 * MEBIBYTE,
    settle_ps=1 * MILLISECOND,
    seek_root_ps=0,
    seek_linear_ps=0,
    write_settle_ps=0,
    read_ahead_blocks=0,
)
SSD = Ssd(
    capacity=CAPACITY,
    rate=link_rate(12, lanes=4),
    dies=16,
    read_ps=100 * MICROSECOND,
    program_ps=400 * MICROSECOND,
)


def load(drive, *, depth=1, read_percent=100, blocks=1, sequential=False, seconds=4, warm_up=1,
         seed=1):
    """Runs a load over the whole drive."""
    return run_load(drive, Load(depth=depth, read_percent=read_percent, blocks=blocks,
                                sequential=sequential, first=0, range=drive.capacity, seed=seed,
                                warm_up_ps=warm_up * SECOND // 1, measure_ps=seconds * SECOND))


def test_ideal_latency_and_link():
    """Latency plus the block's time on the link; with depth the link is full."""
    drive = Ideal(capacity=CAPACITY, rate=link_rate(6), latency_ps=50 * MICROSECOND)
    block_ps = BLOCK * SECOND / link_rate(6)
    assert load(drive, seconds=1).latency_ps == pytest.approx(50 * MICROSECOND + block_ps, rel=1e-3)
    full = load(drive, depth=32, seconds=1)
    assert full.iops * BLOCK == pytest.approx(link_rate(6), rel=1e-3)


def test_half_duplex_shares_one_link():
    """Half reads, half writes: a full-duplex link carries twice as much."""
    rates = [
        load(Ideal(capacity=CAPACITY, rate=link_rate(6), half_duplex=half), depth=32,
             read_percent=50, blocks=16, seconds=1).iops
        for half in (True, False)
    ]
    assert rates[0] * 16 * BLOCK == pytest.approx(link_rate(6), rel=0.02)
    assert 1.6 < rates[1] / rates[0] <= 2.0


def test_hdd_random_access_time():
    """One at a time: settle, half a turn on average, the transfer."""
    result = load(HDD, seconds=40)
    media_ps = BLOCK * SECOND / HDD.media_rate
    link_ps = BLOCK * SECOND / HDD.rate
    expected = 1 * MILLISECOND + 4 * MILLISECOND + media_ps + link_ps
    assert result.latency_ps == pytest.approx(expected, rel=0.02)


def test_hdd_seek_curve():
    """Random seeks over the whole stroke: the mean of the square root of the distance is 8/15."""
    drive = HDD.changed(seek_root_ps=6 * MILLISECOND, seek_linear_ps=3 * MILLISECOND)
    extra = load(drive, seconds=40).latency_ps - load(HDD, seconds=40).latency_ps
    assert extra == pytest.approx(6 * MILLISECOND * 8 / 15 + 3 * MILLISECOND / 3, rel=0.04)


def test_hdd_queueing_shortens_positioning():
    """Shortest access time first gains with depth, monotonically, and not with a window of one."""
    rates = [load(HDD, depth=depth, seconds=20).iops for depth in (1, 4, 16, 32)]
    assert rates == sorted(rates)
    assert rates[-1] > 2 * rates[0]
    blind = load(HDD.changed(read_window=1), depth=32, seconds=20).iops
    assert blind == pytest.approx(rates[0], rel=0.05)


@pytest.mark.parametrize("read_percent", [0, 100])
@pytest.mark.parametrize("depth", [1, 8, 32])
def test_hdd_streams_at_media_rate(read_percent, depth):
    """Read-ahead and the write cache hide the turnaround of one command at a time."""
    drive = HDD.changed(read_ahead_blocks=2048, cache_blocks=16384)
    result = load(drive, depth=depth, blocks=16, read_percent=read_percent, sequential=True)
    assert result.iops * 16 * BLOCK == pytest.approx(drive.media_rate, rel=0.005)
    if read_percent:
        assert result.read_ahead_hits > 0.9 * result.iops


def test_hdd_without_caches_loses_turns():
    """Sequential writes one at a time, cache off: each comes too late and waits a revolution."""
    drive = HDD.changed(cache_blocks=0)
    result = load(drive, blocks=16, read_percent=0, sequential=True)
    media_ps = 16 * BLOCK * SECOND / drive.media_rate
    assert result.latency_ps == pytest.approx(drive.revolution_ps + media_ps, rel=0.001)


def test_hdd_write_cache_absorbs_a_burst():
    """Writes complete at link speed until the cache is full, then at the medium's."""
    drive = HDD.changed(cache_blocks=4096)
    burst = run_load(drive, Load(depth=1, read_percent=0, blocks=1, sequential=False, first=0,
                                 range=CAPACITY, warm_up_ps=0, measure_ps=10 * MILLISECOND))
    assert burst.latency_ps == pytest.approx(BLOCK * SECOND / drive.rate, rel=0.01)
    steady = load(drive, read_percent=0, warm_up=60, seconds=20)
    assert steady.latency_ps > 100 * burst.latency_ps


def test_ssd_parallel_dies():
    """Reads: one at a time the page time, in a stream every die; writes at the program rate."""
    link_ps = BLOCK * SECOND / SSD.rate
    single = load(SSD, seconds=1)
    assert single.latency_ps == pytest.approx(SSD.read_ps + link_ps, rel=1e-3)
    stream = load(SSD, depth=32, blocks=16, sequential=True, seconds=1)
    assert stream.iops * 16 == pytest.approx(SSD.dies * SECOND / SSD.read_ps, rel=0.01)
    written = load(SSD, depth=32, blocks=16, read_percent=0, sequential=True, seconds=1)
    assert written.iops * 16 == pytest.approx(SSD.dies * SECOND / SSD.program_ps, rel=0.01)


def test_ssd_random_costs_more():
    """Outside a stream a page keeps its die longer."""
    drive = SSD.changed(random_read_ps=50 * MICROSECOND)
    assert (load(drive, seconds=1).latency_ps - load(SSD, seconds=1).latency_ps
            == pytest.approx(50 * MICROSECOND, rel=1e-3))


def test_same_seed_same_result():
    """Models are deterministic."""
    results = [load(HDD, depth=8, read_percent=60, blocks=4, seed=seed) for seed in (5, 5, 6)]
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_match_the_publication(name):
    """Every published figure of a single drive, within the tolerance."""
    assert max(map(abs, errors(PRESETS[name], name))) <= TOLERANCE_PERCENT


def test_presets_check_is_sensitive():
    """The comparison fails for a drive that is 10 % slower."""
    name = "SAS-12G-SSD"
    slow = PRESETS[name].changed(read_ps=PRESETS[name].read_ps * 11 // 10)
    assert max(map(abs, errors(slow, name))) > TOLERANCE_PERCENT
