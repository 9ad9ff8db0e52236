"""Drives that hang under load, with the whole controller on the native tier: nothing is lost."""

import os
from dataclasses import replace

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card, Volume
from hdl.config import DATA_OFFSET_BLOCKS, small
from hdl.flow.geometry import Level
from sim.native.parameters import MICROSECOND, Ideal, link_rate
from sw.driver import raid

SEED = int(os.environ.get("SEED") or "1")
FAST = Ideal(capacity=DATA_OFFSET_BLOCKS + 32, latency_ps=5 * MICROSECOND)
COMMANDS = 60
TICK_NS = (1 << 16) * 4
"""The greatest power of two cycles in half of 1 ms."""
SLOW_NS = 5 * TICK_NS
"""What a slow read takes at most: 1 ms, to the next tick but one."""
LONGEST_NS = (13 + 5 + 5) * TICK_NS
"""What a command does: 3 ms, 1 ms, and 1 ms more if it was detached before, each to such a tick."""


def hang(level: Level, drives: int, port: int, commands: int, **fault) -> tuple[dict, bool, float]:
    """A load while drive ``port`` does not end its commands: the drive's counters, whether it was
    given up, and the longest time between ends of commands."""
    with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(drives))
            await card.load(volume, COMMANDS // 2)
            card.harness.drive_fault(port, commands, **fault)
            await card.load(volume, COMMANDS)
            await card.read_all(volume)
            (array,) = await raid.arrays(card.nvme)
            card.gone |= {member.port for member in array.members if member.failed}
            return volume

        card.finish(card.run(main()))
        gaps = [b - a for a, b in zip(card.ends_ns, card.ends_ns[1:], strict=False)]
        return card.harness.drive_statistics(port), port in card.gone, max(gaps)


@pytest.mark.parametrize("at_end", [False, True], ids=["at_once", "data_moved"])
def test_aborts_end_what_hangs(at_end):
    # One: the next to hang within the window has the port reset.
    counters, failed, gap = hang(Level.RAID5, 5, 2, 1, at_end=at_end)
    assert counters["faults"] == 1 and counters["aborts"] >= 1
    assert not counters["resets"] and not failed
    assert gap < 2 * LONGEST_NS


@pytest.mark.parametrize("level", [Level.RAID6, Level.RAID10], ids=["RAID6", "RAID10"])
@pytest.mark.parametrize("at_end", [False, True], ids=["at_once", "data_moved"])
def test_a_reset_cures(level, at_end):
    counters, failed, gap = hang(level, 6, 1, -1, at_end=at_end, deaf=True)
    assert counters["resets"] == 1 and not failed
    assert gap < 2 * LONGEST_NS


@pytest.mark.parametrize("level", [Level.RAID5, Level.RAID1], ids=["RAID5", "RAID1"])
def test_a_drive_is_given_up(level):
    counters, failed, gap = hang(level, 3, 0, -1, deaf=True, lasting=True)
    assert counters["resets"] == USUAL.drive_resets + 1 and failed
    assert gap < (USUAL.drive_resets + 2) * LONGEST_NS


@pytest.mark.parametrize("level", [Level.RAID0, Level.RAID5], ids=["RAID0", "RAID5"])
def test_a_flush_outlasts_drives_that_hang_in_turn(level):
    """Each drive hangs once in every round of the Flush, as often as it is not given up for it."""
    volatile = FAST.changed(volatile_cache=True)
    with Card([volatile] * PORTS, seed=SEED, config=USUAL) as card:
        flushed = False

        async def hang_in_turn() -> None:
            for port in [*range(PORTS)] * (USUAL.drive_resets + 1):
                faults = card.harness.drive_statistics(port)["faults"]
                card.harness.drive_fault(port, 1)
                while card.harness.drive_statistics(port)["faults"] == faults:
                    assert not flushed, f"the Flush has ended before port {port} hung"
                    await card.card.transport.sleep(TICK_NS // 4)

        async def flush(volume: Volume) -> None:
            nonlocal flushed
            assert await card.flush(volume) == 0
            flushed = True

        async def main() -> None:
            volume = await card.create(level, range(PORTS))
            assert await card.write(volume, 0, 8, card.buffer(8), 0, fua=False) == 0
            await card.together([hang_in_turn(), flush(volume)])

        card.run(main())
        assert not card.gone
        for port in range(PORTS):
            assert not card.harness.drive_statistics(port)["unflushed"]


def test_late_is_not_lost():
    counters, failed, _ = hang(Level.RAID5, 4, 3, 20, delay_ns=LONGEST_NS / 3)
    assert counters["faults"] == 20 and not counters["aborts"] and not failed
    counters, failed, _ = hang(Level.RAID5, 4, 3, 2, delay_ns=LONGEST_NS * 0.98, deaf=True)
    assert counters["aborts"] and not failed


@pytest.mark.parametrize("level", [Level.RAID5, Level.RAID1], ids=["RAID5", "RAID1"])
def test_slow_reads_are_had_elsewhere(level):
    """A drive that takes nearly until it is aborted costs reads no more than ``slow_read_ms``."""
    port, latency_ns = 1, 2_700_000
    slow = FAST.changed(latency_ps=latency_ns * 1000)
    drives = [slow if number == port else FAST for number in range(PORTS)]
    spent: list[float] = []
    with Card(drives, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(2 if level is Level.RAID1 else 4))
            memory = card.buffer(4)
            transport = card.card.transport
            for first in range(24):
                begin = transport.now_ns
                assert await card.read(volume, first, 1 + first % 3, memory) == 0
                spent.append(transport.now_ns - begin)
            return volume

        card.finish(card.run(main()))
        counters = card.harness.drive_statistics(port)
    print(f"longest read {max(spent) / 1e6:.2f} ms of {SLOW_NS / 1e6:.2f}, {counters}")
    assert not counters["aborts"] and not counters["resets"] and not card.gone
    assert USUAL.slow_read_ms * 1e6 < max(spent) < SLOW_NS + 100_000 < latency_ns


@pytest.mark.parametrize("workers", [1, 8], ids=["alone", "stream"])
def test_slow_reads_of_an_array_without_a_drive(workers):
    """Blocks that are worked out, one after the other or in a gathered stream, do not wait for a
    slow drive either."""
    pulled, port, latency_ns = 3, 1, 2_700_000
    slow = FAST.changed(latency_ps=latency_ns * 1000)
    drives = [slow if number == port else FAST for number in range(PORTS)]
    spent: list[float] = []
    with Card(drives, seed=SEED, config=USUAL) as card:

        async def main() -> Volume:
            volume = await card.create(Level.RAID6, range(6))
            card.pull(pulled)
            transport = card.card.transport
            blocks = 8
            starts = iter(range(0, len(volume.model) - blocks + 1, blocks))

            async def work() -> None:
                memory = card.buffer(blocks)
                for first in starts:
                    begin = transport.now_ns
                    assert await card.read(volume, first, blocks, memory) == 0
                    spent.append(transport.now_ns - begin)

            await card.together([work() for _ in range(workers)])
            return volume

        card.finish(card.run(main()))
        counters = card.harness.drive_statistics(port)
    print(f"longest read {max(spent) / 1e6:.2f} ms of {SLOW_NS / 1e6:.2f}, {counters}")
    assert not counters["aborts"] and not counters["resets"] and card.gone == {pulled}
    assert USUAL.slow_read_ms * 1e6 < max(spent) < SLOW_NS + 200_000
    assert max(spent) < latency_ns


def test_pulled_while_it_hangs():
    """The drive goes away with commands that hang, and while the port is being reset."""
    for delay in (0.5, 1.0, 1.4):
        with Card([FAST] * PORTS, seed=SEED, config=USUAL) as card:

            async def pull(card: Card = card, delay: float = delay) -> None:
                await card.card.transport.sleep(delay * LONGEST_NS)
                card.pull(4)

            async def main(card: Card = card, pull=pull) -> Volume:
                volume = await card.create(Level.RAID6, range(6))
                card.harness.drive_fault(4, deaf=True, lasting=True)
                card.card.transport.spawn(pull())
                await card.load(volume, COMMANDS)
                while not card.gone:
                    await card.card.transport.sleep(LONGEST_NS / 4)
                await card.read_all(volume)
                return volume

            card.finish(card.run(main()))


@pytest.mark.slow
def test_a_block_that_breaks_off_costs_no_line():
    """A drive is given up amid the blocks that it sends; then the smallest card still has lines for
    what the host writes to others, which needs all that it has."""
    config = replace(
        small(), command_timeout_ms=1, abort_timeout_ms=1, drive_resets=0, clock_hz=250_000_000
    )
    drives = [FAST.changed(rate=link_rate(6))] * config.ports
    port, blocks = 0, config.transfer_blocks
    with Card(drives, seed=SEED, config=config) as card:

        async def main() -> Volume:
            other = await card.create(Level.JBOD, [3])
            memory = card.buffer(blocks)
            for _ in range(config.lines):
                volume = await card.create(Level.JBOD, [port])

                async def read(first: int, volume=volume) -> None:
                    memory = card.buffer(blocks)
                    while await card.read(volume, first, blocks, memory, 0) == 0:
                        pass

                card.harness.drive_fault(port, 1, deaf=True)
                await card.together(read(first) for first in range(0, 16, blocks))
                assert await card.write(other, 0, blocks, memory, 0, fua=False) == 0
                await raid.delete_volume(card.nvme, volume.namespace)
                await raid.delete_array(card.nvme, volume.array)
            return other

        card.finish(card.run(main()))
