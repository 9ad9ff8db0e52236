"""While torn rows are made right, nothing is worked out from them that a drive still has."""

import os

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import Card
from cocotb_tests.native.native_forgetful import SLOWER
from cocotb_tests.native.native_jobs import POLL_NS, finished
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from sim.golden.nvme import WRITE_FAULT
from sw.driver import background, raid
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
TORN = 24
"""Blocks that are written as all drives restart."""


@pytest.mark.parametrize(
    ("level", "members", "trouble"),
    [
        pytest.param(Level.RAID5, 4, "restarts", marks=pytest.mark.slow),
        pytest.param(Level.RAID5, 4, "refuses", marks=pytest.mark.slow),
        pytest.param(Level.RAID5, 4, "hangs", marks=pytest.mark.slow),
        (Level.RAID1, 2, "restarts"),
        pytest.param(Level.RAID6, 5, "restarts", marks=pytest.mark.slow),
        pytest.param(Level.RAID10, 4, "restarts", marks=pytest.mark.slow),
        pytest.param(Level.RAID1, 2, "hangs", marks=pytest.mark.slow),
        pytest.param(Level.RAID6, 5, "hangs", marks=pytest.mark.slow),
    ],
)
def test_what_is_stored_stays_while_rows_are_torn(level, members, trouble):
    """All drives of an array restart in the middle of writes, and the host is told. Then one of
    them restarts alone, does not store a block, or hangs until its port is reset. It has all that
    was flushed, and what was read since."""
    kind = SLOWER.changed(reset_loses_cache=trouble == "hangs")
    with Card([kind] * 8, seed=SEED, config=USUAL) as card:
        harness, nvme = card.harness, card.nvme
        memory, sleep = card.card.transport.memory, card.card.transport.sleep

        async def scenario() -> None:
            volume = await card.create(level, range(members), strip_blocks=1)
            layout, blocks = volume.layout, len(volume.model)
            ports = [{volume.ports[p.position] for p in layout.copies_of(b)} for b in range(blocks)]
            address = card.buffer(1)

            async def read(block: int) -> bytes:
                await nvme.read(volume.namespace, block, 1, address, 0)
                return memory.read(address, BLOCK_BYTES)

            async def write(block: int) -> bytes:
                data = card.random.randbytes(BLOCK_BYTES)
                memory.write(address, data)
                await nvme.write(volume.namespace, block, 1, address, 0)
                return data

            await background.set_rate(nvme, 1)
            stored = {block: await write(block) for block in range(blocks)}
            assert await card.flush(volume) == 0
            # With parity only blocks of the first drive are written, so those of others are stored.
            torn = [block for block in range(blocks) if 0 in ports[block]][:TORN]
            for block in torn:
                await write(block)
            for port in range(members):
                harness.restart_drive(port)
            await sleep(POLL_NS)
            assert await card.flush(volume) == WRITE_FAULT
            stored |= {block: await read(block) for block in torn}
            assert await card.flush(volume) == 0
            job = await background.job(nvme, 0)
            assert job.state == JobState.RUNNING and job.row < layout.copies_of(torn[-1])[0].row

            victim = 0 if layout.copies > 1 else 1
            rows = {place.row for block in torn for place in layout.copies_of(block)}
            if trouble == "restarts":
                harness.restart_drive(victim)
            elif trouble == "hangs":
                harness.drive_fault(victim, 1, deaf=True)
                await read(next(block for block in range(blocks) if victim in ports[block]))
                # The RESYNC rests only while the host is there.
                while not harness.drive_statistics(victim)["resets"]:
                    await read(next(block for block in range(blocks) if ports[block] != {victim}))
                    await sleep(POLL_NS)
            else:
                places = {b: layout.copies_of(b)[0] for b in range(blocks) if victim in ports[b]}
                refused = next(b for b, place in places.items() if place.row not in rows)
                refused_row = DATA_OFFSET_BLOCKS + places[refused].row
                harness.refuse_writes(victim, refused_row)
                # No other drive makes up for the block.
                with pytest.raises(NvmeError, match="Write Fault"):
                    await write(refused)
                del stored[refused]
                harness.accept_writes(victim, refused_row)
            await sleep(POLL_NS)
            # It is suspect from then on, so the host is told again.
            status = await card.flush(volume)
            assert status == (0 if trouble == "refuses" else WRITE_FAULT)
            assert await card.flush(volume) == 0
            for turn in range(2):
                wrong = [block for block in stored if await read(block) != stored[block]]
                assert not wrong, f"{len(wrong)} of {len(stored)} blocks, turn {turn}"
                await background.set_rate(nvme, 100)
                assert (await finished(card)).state == JobState.DONE
            [array] = await raid.arrays(nvme)
            assert array.state == ArrayState.OPTIMAL
            # From then on the others are enough again.
            harness.restart_drive(victim)
            await sleep(POLL_NS)
            assert await card.flush(volume) == 0

        card.run(scenario())
