"""Sequential reads of arrays that have lost drives, on the native tier: data, faults, reads saved.

The streams are long ones (two stripes outstanding), so that their rows are gathered.
"""

import os

import pytest

from cocotb_tests.native.native_card import PORTS, Card, Volume
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from sim.card.volume_model import DataError
from sim.golden.nvme import UNRECOVERED_READ
from sim.native.parameters import MICROSECOND, Ideal, link_rate
from sw.driver import background
from sw.driver.commands import BLOCK_BYTES

SEED = int(os.environ.get("SEED") or "1")
ROWS = 96
DRIVE = Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS, rate=link_rate(12), latency_ps=20 * MICROSECOND)
LONGEST = 24
DEEP = 24
"""Commands outstanding, of 12 blocks on average: twenty stripes of 4-block strips at most."""


async def stream(
    card: Card, volume: Volume, *, depth: int, blocks: int = 0, first: int = 0, end: int = 0
) -> dict[int, int]:
    """Reads on from ``first`` with ``depth`` commands outstanding, each of ``blocks`` logical
    blocks (0: of any length); the status of each by its first block."""
    statuses: dict[int, int] = {}
    done = card.card.transport.event()
    end = end or len(volume.model)
    most = LONGEST * BLOCK_BYTES // volume.sector_bytes
    head, running = first, depth

    async def work() -> None:
        nonlocal head, running
        memory = card.buffer(LONGEST)
        while head < end:
            begin = head
            length = min(blocks or card.random.randint(1, most), end - begin)
            head += length
            statuses[begin] = await card.read(volume, begin, length, memory)
        running -= 1
        if not running:
            done.set()

    for _ in range(depth):
        card.card.transport.spawn(work())
    await done.wait()
    return statuses


def blocks_read(card: Card) -> int:
    return sum(card.harness.drive_statistics(port)["read_blocks"] for port in range(PORTS))


@pytest.mark.parametrize(
    ("level", "drives", "pulled", "options"),
    [
        pytest.param(Level.RAID5, 8, 1, {}, id="RAID5"),
        pytest.param(Level.RAID6, 8, 1, {}, id="RAID6-1"),
        pytest.param(Level.RAID6, 7, 2, {}, id="RAID6-2"),
        pytest.param(Level.RAID5, 8, 1, {"spans": 2}, id="RAID50"),
        pytest.param(Level.RAID5, 6, 1, {"sector_bytes": 512}, id="RAID5-512"),
    ],
)
def test_rows_are_read_once(level, drives, pulled, options):
    """All data is right, and the drives read little more than the host: without gathering a row
    of n data blocks costs nearly twice as many reads, of which each lost one alone n."""
    with Card([DRIVE] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(drives), **options)
            for port in range(pulled):
                card.pull(port)
            before = blocks_read(card)
            statuses = await stream(
                card, volume, depth=DEEP, blocks=8 * (BLOCK_BYTES // volume.sector_bytes)
            )
            assert not any(statuses.values())
            host = len(volume.model) * volume.sector_bytes // BLOCK_BYTES
            ratio = (blocks_read(card) - before) / host
            print(f"{level.name}: {ratio:.2f} blocks read for each of the host's")
            assert ratio < 1.3
            return volume

        card.finish(card.run(main()))


@pytest.mark.parametrize(
    ("level", "drives", "pulled", "options"),
    [
        pytest.param(Level.RAID5, 7, 1, {}, id="RAID5"),
        pytest.param(Level.RAID6, 8, 2, {}, id="RAID6", marks=pytest.mark.slow),
        pytest.param(Level.RAID6, 8, 2, {"spans": 2}, id="RAID60", marks=pytest.mark.slow),
        pytest.param(
            Level.RAID5, 8, 1, {"sector_bytes": 512}, id="RAID5-512", marks=pytest.mark.slow
        ),
    ],
)
def test_streams_beside_writes(level, drives, pulled, options):
    """Streams of every depth, of any lengths, one over the other, and random writes to the same
    rows, while drives are pulled."""
    with Card([DRIVE] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(drives), **options)
            transport = card.card.transport
            left = 5
            done = transport.event()

            async def read(depth: int, share: float) -> None:
                nonlocal left
                statuses = await stream(
                    card, volume, depth=depth, first=int(share * len(volume.model))
                )
                assert not any(statuses.values())
                left -= 1
                if not left:
                    done.set()

            async def write() -> None:
                nonlocal left
                for _ in range(2):
                    await card.load(volume, 20, workers=3, writes=0.8, longest=8)
                left -= 1
                if not left:
                    done.set()

            for depth, share in ((DEEP, 0.0), (32, 0.0), (1, 0.6), (5, 0.3)):
                transport.spawn(read(depth, share))
            transport.spawn(write())
            for port in range(pulled):
                await transport.sleep(150_000)
                card.pull(port)
            await done.wait()
            return volume

        card.finish(card.run(main()))


def test_streams_during_a_rebuild():
    """Streams run over rows that are rebuilt and rows that are not: nothing stale is read."""
    with Card([DRIVE] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(Level.RAID5, range(PORTS - 1)))

        async def main() -> None:
            card.pull(2)
            await stream(card, volume, depth=DEEP, blocks=8)
            for row in range(ROWS):
                card.store(PORTS - 1, row, card.random.randbytes(BLOCK_BYTES))
            await background.replace_member(card.nvme, 0, 2, PORTS - 1)
            volume.ports[2] = PORTS - 1
            running = 0
            while (await background.job(card.nvme, 0)).state == JobState.RUNNING:
                running += 1
                card.card.transport.spawn(card.load(volume, 6, workers=1, longest=8))
                statuses = await stream(card, volume, depth=DEEP, blocks=8)
                assert not any(statuses.values())
            assert running, "the rebuild was over before the first stream"
            while any(queue.outstanding for queue in card.nvme.queues):
                await card.card.transport.sleep(20_000)

        card.run(main())
        card.finish(volume)


@pytest.mark.parametrize(("level", "spoiled"), [(Level.RAID5, 1), (Level.RAID6, 2)])
def test_only_lost_blocks_fail(level, spoiled):
    """A row in which more is lost than tolerated fails for its lost blocks, and for no others."""
    with Card([DRIVE] * PORTS, seed=SEED) as card:

        async def main() -> Volume:
            volume = await card.create(level, range(PORTS))
            layout = volume.layout
            card.pull(0)
            rows: dict[tuple, list[int]] = {}
            for block in range(layout.blocks(volume.rows)):
                place = layout.map(block)
                rows.setdefault(place.row, []).append(block)
            lost: set[int] = set()
            for row in card.random.sample(sorted(rows), 12):
                live = [one for one in rows[row] if layout.map(one).position]
                bad = card.random.sample(live, spoiled)
                for block in bad:
                    card.spoil(volume, layout.map(block))
                gone = [one for one in rows[row] if not layout.map(one).position]
                # With a parity on the drive that was pulled there is one parity less as well.
                lost |= {*bad, *gone}
            statuses = await stream(card, volume, depth=3 * DEEP, blocks=1)
            failed = {block for block, status in statuses.items() if status}
            assert failed == lost, f"failed {failed - lost}, delivered {lost - failed}"
            assert {statuses[block] for block in lost} == {UNRECOVERED_READ}
            return volume

        card.run(main())


def test_scoreboard_catches_a_stale_block():
    """A changed block on a live drive is noticed, by its own reader or in what it is used for."""
    with Card([DRIVE] * PORTS, seed=SEED) as card:

        async def main() -> None:
            volume = await card.create(Level.RAID5, range(PORTS))
            card.pull(0)
            card.store(5, 40, card.random.randbytes(BLOCK_BYTES))
            await stream(card, volume, depth=DEEP, blocks=8)

        with pytest.raises(DataError, match="is wrong"):
            card.run(main())
