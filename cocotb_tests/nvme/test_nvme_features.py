"""Get and Set Features of the NVMe front end, and what the features do."""

import os

import cocotb
import pytest
from cocotb.triggers import ClockCycles

from cocotb_tests.nvme.nvme_bench import Bench, bench_config, run_front_end
from cocotb_tests.runner import SimulationError
from cocotb_tests.streams import sample, wait_until
from hdl.nvme.admin import features
from hdl.nvme.commands.slots import SlotTable
from sim.golden import nvme

CONFIG = bench_config()
QUEUES = (CONFIG.queue_pairs - 1) * 0x10001
DEFAULTS = {
    1: 3, 2: 0, 4: 343, 4 | 1 << 28: 0, 5: 0, 6: 1, 7: QUEUES, 8: 0, 9: 0, 10: 0, 11: 0,
}  # fmt: skip
"""Values after reset; the under temperature threshold is FID 4 with THSEL 1."""

RESERVED = {2: 1 << 5, 4: 1 << 22, 6: 2, 8: 1 << 16, 9: 1 << 17, 10: 2, 11: 1 << 9}
"""For each feature the lowest bit from which on all are reserved (02h: workload hint below)."""

CURRENT, DEFAULT, SAVED, SUPPORTED = 0, 1, 2, 3


async def bench(dut) -> Bench:
    host = Bench(dut, CONFIG, int(os.environ["SEED"]))
    entry = {"valid": 1, "array": 0, "start": 0, "blocks": 5000}
    host.volumes = {0: entry, 2: entry}
    await host.reset()
    await host.enable()
    return host


async def get(host, feature: int, value: int = 0, select: int = CURRENT) -> int:
    """Get Features; bits 31:28 of ``feature`` are THSEL."""
    value |= feature >> 28 << 20
    return await host.good(
        opcode=nvme.GET_FEATURES, dwords=(feature & 0xFF | select << 8, value), nsid=0
    )


async def put(host, feature: int, value: int, code: int = nvme.SUCCESS, *, save=0, nsid=0):
    """Set Features."""
    value |= feature >> 28 << 20
    fields = {
        "opcode": nvme.SET_FEATURES, "dwords": (feature & 0xFF | save << 31, value), "nsid": nsid,
    }  # fmt: skip
    if code:
        await host.bad(code, **fields)
    else:
        await host.good(**fields)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def values_are_kept_until_reset(dut):
    host = await bench(dut)
    generator = host.random
    changed = {
        1: 0x1234_5600 | generator.randrange(8),
        2: generator.randrange(8) << 5,
        4: generator.randrange(1 << 16),
        4 | 1 << 28: generator.randrange(1 << 16),
        6: 0,
        8: generator.randrange(1 << 16),
        10: 1,
        11: generator.randrange(1 << 9),
    }
    for feature, value in DEFAULTS.items():
        for select in (CURRENT, DEFAULT, SAVED):
            assert await get(host, feature, select=select) == value, hex(feature)
        changeable = 4 if feature != 5 else 0
        assert await get(host, feature, select=SUPPORTED) == changeable
        await host.bad(
            nvme.INVALID_FIELD, opcode=nvme.GET_FEATURES, dwords=(feature & 0xFF | 4 << 8,)
        )
        await put(host, feature, value, nvme.NOT_SAVEABLE, save=1)
        await put(host, feature, value, nvme.NOT_NAMESPACE_SPECIFIC, nsid=1)
        if feature != 7:
            await put(host, feature, value, nsid=generator.choice((0, 0xFFFF_FFFF)))
    for feature, value in changed.items():
        await put(host, feature, value)
    for feature, value in changed.items():
        assert await get(host, feature) == value, hex(feature)
        assert await get(host, feature, select=DEFAULT) == DEFAULTS[feature]
    for vector in range(CONFIG.queue_pairs + 1):
        await put(host, 9, vector | 1 << 16)
        assert await get(host, 9, vector) == vector | 1 << 16
        assert await get(host, 9, vector, select=DEFAULT) == vector
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    await host.enable()
    for feature, value in DEFAULTS.items():
        assert await get(host, feature) == value
    assert await get(host, 9, 2) == 2
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def what_is_cached_is_stored(dut):
    """The volatile write cache goes off: every write without FUA that began before has ended, then
    the drives are flushed, then the command completes. Later writes have FUA and wait for none."""
    host = await bench(dut)
    pair = await host.create_pair(1, 32)
    admin = host.queues[0]

    def write() -> int:
        block = host.random.randrange(4000)
        return host.place(pair, **nvme.read_write(nvme.WRITE, 1, block, 1), prp1=host.page())

    for busy in (False, True):
        for stores in (True, False):
            host.caches_store = stores
            host.hold = busy
            writes = [write() for _ in range(5)]
            await host.ring(pair)
            await ClockCycles(dut.clk, 1500)
            assert all(not request.fua for request in host.commands[-5:])
            begun = host.cache_flushes
            host.holds_flush = True
            off = host.place(admin, opcode=nvme.SET_FEATURES, dwords=(6, 0))
            await host.ring(admin)
            await ClockCycles(dut.clk, 1000)
            later = [write() for _ in range(5)]
            await host.ring(pair)
            await ClockCycles(dut.clk, 1500)
            assert all(request.fua for request in host.commands[-5:])
            if busy:
                assert host.cache_flushes == begun, "flushed before the writes had ended"
                host.hold = False
            await wait_until(
                dut, lambda n=begun: host.cache_flushes > n, cycles=4000, what="the flush"
            )
            await ClockCycles(dut.clk, 1000)
            assert off not in admin.done, "completed before the drives had been flushed"
            host.holds_flush = False
            code = nvme.SUCCESS if stores else nvme.INTERNAL_ERROR
            assert (await host.result(admin, off)).code == code
            assert await get(host, 6) == 0
            for identifier in (*writes, *later):
                assert (await host.result(pair, identifier)).code == nvme.SUCCESS
            # Again, with nothing to wait for.
            host.caches_store = True
            await put(host, 6, 0)
            assert host.cache_flushes == begun + 2
            await put(host, 6, 1)
            assert host.cache_flushes == begun + 2, "the cache was not switched off"
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def the_first_write_counts(dut):
    """The volatile write cache goes off and on. The first write after that is waited for as any
    other, when it goes off again while that write is the only one inside."""
    host = await bench(dut)
    pair = await host.create_pair(1, 32)
    admin = host.queues[0]

    async def write(opcode: int) -> int:
        block = host.random.randrange(4000)
        entry = nvme.read_write(opcode, 1, block, 1)
        identifier = host.place(pair, **entry, prp1=host.page())
        await host.ring(pair)
        await ClockCycles(dut.clk, 1500)
        return identifier

    for opcode in (nvme.WRITE, nvme.WRITE_ZEROES) * 2:
        await put(host, 6, 0)
        through = await write(opcode)
        assert host.commands[-1].fua
        await host.result(pair, through)
        await put(host, 6, 1)
        host.hold = True
        cached = await write(opcode)
        assert not host.commands[-1].fua
        begun = host.cache_flushes
        off = host.place(admin, opcode=nvme.SET_FEATURES, dwords=(6, 0))
        await host.ring(admin)
        await ClockCycles(dut.clk, 1000)
        assert host.cache_flushes == begun, "flushed before the write had ended"
        host.hold = False
        assert (await host.result(pair, cached)).code == nvme.SUCCESS
        assert (await host.result(admin, off)).code == nvme.SUCCESS
        assert host.cache_flushes == begun + 1
        await put(host, 6, 1)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_cache_that_goes_off_waits_for_writes_only(dut):
    """What writes nothing is inside a drive that hangs as the volatile write cache goes off."""
    host = await bench(dut)
    pair = await host.create_pair(1, 32)
    host.hold = True
    placed = [host.place(pair, opcode=nvme.FLUSH, nsid=1)]
    for opcode in (nvme.READ, nvme.VERIFY):
        fields = nvme.read_write(opcode, 1, host.random.randrange(4000), 1)
        placed.append(host.place(pair, **fields, prp1=host.page()))
    await host.ring(pair)
    await wait_until(dut, lambda: len(host.commands) == 3, cycles=2000, what="the commands")
    off = host.place(host.queues[0], opcode=nvme.SET_FEATURES, dwords=(6, 0))
    await host.ring(host.queues[0])
    assert (await host.result(host.queues[0], off, cycles=4000)).code == nvme.SUCCESS
    assert host.cache_flushes == 1 and not pair.done
    host.hold = False
    for identifier in placed:
        assert (await host.result(pair, identifier)).code == nvme.SUCCESS
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def nobody_waits_for_a_flush_that_is_given_up(dut):
    """The controller is disabled, or shut down, while the write cache goes off."""
    host = await bench(dut)
    for round_number in range(8):
        host.holds_flush = True
        begun = host.cache_flushes
        off = host.place(host.queues[0], opcode=nvme.SET_FEATURES, dwords=(6, 0))
        await host.ring(host.queues[0])
        await ClockCycles(dut.clk, host.random.choice((100, 1000)))
        if round_number % 2:
            await host.write32(nvme.CC, nvme.CC_ENABLE | nvme.CC_SHUTDOWN_NORMAL)
            await ClockCycles(dut.clk, 1000)
            answer = host.queues[0].done.get(off)
            assert answer is None or answer.code == nvme.INTERNAL_ERROR
            host.holds_flush = False
            await host.wait_status(nvme.CSTS_READY | 2 << 2)
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        waits = bool(sample(dut.flushes__cache__flush))
        await host.enable()
        off = host.place(host.queues[0], opcode=nvme.SET_FEATURES, dwords=(6, 0))
        await host.ring(host.queues[0])
        await ClockCycles(dut.clk, 1000)
        assert not waits or host.cache_flushes == begun + 1, "two flushes at once"
        host.holds_flush = False
        assert (await host.result(host.queues[0], off)).code == nvme.SUCCESS
        assert not waits or host.cache_flushes == begun + 2, "by the flush of another command"
        await host.write32(nvme.CC, 0)
        await host.wait_status(0)
        await host.enable()
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def bad_values_are_refused(dut):
    host = await bench(dut)
    for feature, bit in RESERVED.items():
        for value in (bit, 1 << 31):
            if not (feature == 2 and value == bit):
                await put(host, feature, value, nvme.INVALID_FIELD)
    await put(host, 2, 1, nvme.INVALID_FIELD)
    await put(host, 1, 8, nvme.INVALID_FIELD)
    await put(host, 5, 1, nvme.NOT_CHANGEABLE)
    await put(host, 9, CONFIG.queue_pairs + 1, nvme.INVALID_FIELD)
    for feature in (0, 3, 0x0C, 0x0D, 0x0F, 0x10, 0x16, 0x80, 0x86):
        await put(host, feature, 0, nvme.INVALID_FIELD)
        await host.bad(nvme.INVALID_FIELD, opcode=nvme.GET_FEATURES, dwords=(feature,))
    # Sensors: the composite temperature only; 15 means all of them in a Set.
    for value in (1 << 16, 8 << 16, 2 << 20):
        await put(host, 4, value | 300, nvme.INVALID_FIELD)
        await host.bad(nvme.INVALID_FIELD, opcode=nvme.GET_FEATURES, dwords=(4, value))
    await put(host, 4, 15 << 16 | 333)
    assert await get(host, 4) == 333
    # Queues: any number before the first one exists.
    await put(host, 7, 0xFFFF, nvme.INVALID_FIELD)
    await put(host, 7, 0xFFFF << 16, nvme.INVALID_FIELD)
    assert await host.good(opcode=nvme.SET_FEATURES, dwords=(7, 0)) == QUEUES
    await host.create_pair(1, 8)
    await put(host, 7, 0, nvme.COMMAND_SEQUENCE)
    assert await get(host, 7) == QUEUES
    # Without the write cache every write is forced to the drives.
    _, prp1, _ = host.buffer(1)
    for enabled in (0, 1):
        await put(host, 6, enabled)
        await host.good(1, **nvme.read_write(nvme.WRITE, 1, 0, 1), prp1=prp1)
        assert host.commands[-1].fua == (not enabled)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def arbitration_burst_limits_fetches(dut):
    host = await bench(dut)
    pair = await host.create_pair(1, 32)
    fetches: list[int] = []
    base, whole = pair.sq, host._read

    def watch(request):
        if base <= request.address < base + 32 * nvme.SQE_BYTES:
            fetches.append(request.dwords // 16)
        whole(request)

    reader = next(sink for sink in host.sinks if sink.name == "host__read_request")
    reader._callback = watch
    for burst, most in ((0, 1), (1, 2), (2, 4), (3, 8), (7, 8)):
        await put(host, 1, burst)
        fetches.clear()
        placed = [host.place(pair, opcode=nvme.FLUSH, nsid=1) for _ in range(20)]
        await host.ring(pair)
        for identifier in placed:
            await host.result(pair, identifier)
        assert sum(fetches) == 20 and max(fetches) == most, (burst, fetches)
    await host.settle()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def interrupts_are_coalesced(dut):
    host = await bench(dut)
    period = CONFIG.clock_hz // 10_000
    never = (1 << 48) - 1
    now = (1 << 48) - 10 * period
    dut.now.value = now
    # The SMART log counts 312 hours, one at a time.
    await ClockCycles(dut.clk, 4000)
    pair = await host.create_pair(1, 32, vector=2)
    other = await host.create_pair(2, 32, vector=3)
    await host.settle()

    async def flush(queue, count: int) -> list[int]:
        """Runs commands and returns the vectors raised meanwhile."""
        await host.settle()
        host.interrupts.clear()
        placed = [host.place(queue, opcode=nvme.FLUSH, nsid=1) for _ in range(count)]
        await host.ring(queue)
        for identifier in placed:
            await host.result(queue, identifier)
        await host.settle()
        return host.interrupts.copy()

    async def pass_time(cycles: int) -> list[int]:
        nonlocal now
        host.interrupts.clear()
        now = (now + cycles) % (1 << 48)
        dut.now.value = now
        await host.settle()
        return host.interrupts.copy()

    # Without a time there is no delay, and without a threshold either.
    for value in (0, 5, 5 << 8):
        await put(host, 8, value)
        assert set(await flush(pair, 3)) == {2}
    await put(host, 8, 3 | 4 << 8)
    await host.settle()
    assert sample(dut.deadline) == never
    assert await flush(pair, 3) == []
    assert sample(dut.deadline) == (now + 4 * period) % (1 << 48)
    assert await flush(pair, 1) == [2], "the fourth completion"
    assert await flush(pair, 2) == [] and await flush(other, 1) == []
    assert await pass_time(4 * period - 1) == []
    assert sorted(await pass_time(1)) == [2, 3] and sample(dut.deadline) == never
    # Across the wrap of the time, and never the admin queue.
    for _ in range(3):
        assert await flush(other, 1) == []
        assert await pass_time(4 * period) == [3]
    host.interrupts.clear()
    await host.good(opcode=nvme.ABORT, dwords=(5,))
    await host.settle()
    assert host.interrupts == [0]
    # A vector that is not coalesced, and a reset that forgets what waits.
    await put(host, 9, 3 | 1 << 16)
    assert await flush(other, 1) == [3] and await flush(pair, 1) == []
    await host.write32(nvme.CC, 0)
    await host.wait_status(0)
    assert await pass_time(9 * period) == [] and sample(dut.deadline) == never
    await host.settle()


def test_nvme_features():
    run_front_end(__name__)


@pytest.mark.slow
def test_features_that_survive_a_reset_are_caught(monkeypatch):
    wrong = features.RULES | {features.Feature.WRITE_ATOMICITY: features.Rule(initial=1)}
    monkeypatch.setattr(features, "RULES", wrong)
    with pytest.raises(SimulationError, match="values_are_kept_until_reset"):
        run_front_end(__name__, name="nvme_mutant_features", testcase="values_are_kept_until_reset")


class ForgetsCaches(features.Features):
    """A planted bug: the write cache goes off at once, and what is in the caches stays there."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.stores.eq(0)
        return m


class ForgetsCommands(SlotTable):
    """A planted bug: nobody waits for the writes inside."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.caching.eq(0)
        return m


@pytest.mark.parametrize(
    ("name", "mutant"),
    [("admin.admin.Features", ForgetsCaches), ("front_end.SlotTable", ForgetsCommands)],
)
@pytest.mark.slow
def test_caches_that_are_not_stored_are_caught(monkeypatch, name, mutant):
    monkeypatch.setattr(f"hdl.nvme.{name}", mutant)
    with pytest.raises(SimulationError, match="what_is_cached_is_stored"):
        run_front_end(
            __name__, name=f"nvme_{mutant.__name__}", testcase="what_is_cached_is_stored"
        )
