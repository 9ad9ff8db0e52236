"""A drive of no array erased, on the native tier."""

import os

import pytest

from campaign.sizes import USUAL
from cocotb_tests.native.native_card import PORTS, Card
from cocotb_tests.native.native_jobs import FAST, ROWS
from hdl.config import DATA_OFFSET_BLOCKS
from hdl.flow.geometry import Level
from sim.golden.nvme import DRIVE_UNAVAILABLE
from sw.driver import background, raid
from sw.driver.commands import NvmeError

SEED = int(os.environ.get("SEED") or "1")
HEAD = 100
"""A block before the data area that nothing is kept in."""


def test_a_drive_is_erased():
    """Every block from the first one of the data area to the last of the drive, and none before it
    but those of metadata."""
    with Card([FAST] * PORTS, seed=SEED) as card:
        volume = card.run(card.create(Level.RAID5, range(4)))
        head = card.random.randbytes(4096)
        card.harness.write_drive(5, HEAD, head)
        for row in range(ROWS):
            card.store(5, row, card.random.randbytes(4096))
        card.harness.medium_error(5, DATA_OFFSET_BLOCKS + 7)

        async def scenario() -> None:
            card.card.transport.spawn(card.load(volume, 60))
            for port in (0, PORTS):
                with pytest.raises(NvmeError) as refused:
                    await background.erase_drive(card.nvme, port)
                if port == 0:
                    assert refused.value.status & 0x7FF == DRIVE_UNAVAILABLE
            await background.erase_drive(card.nvme, 5, poll_ns=20_000)
            assert (await raid.drives(card.nvme))[5].array is None
            assert len(await raid.arrays(card.nvme)) == 1

        card.run(scenario())
        card.finish(volume)
        assert not any(any(card.stored(5, row)) for row in range(ROWS))
        assert card.harness.read_drive(5, HEAD) == head


@pytest.mark.parametrize("trouble", ["hangs", "pulled"])
def test_a_drive_that_does_not_store_its_zeros_is_not_erased(trouble):
    """It is given up in its last flush, or gone."""
    port = 5
    with Card([FAST.changed(volatile_cache=True)] * PORTS, seed=SEED, config=USUAL) as card:
        for row in range(ROWS):
            card.store(port, row, card.random.randbytes(4096))

        def count(name: str) -> int:
            return card.harness.drive_statistics(port)[name]

        async def spoil() -> None:
            while count("written_blocks") < ROWS:
                await card.card.transport.sleep(200)
            if trouble == "hangs":
                card.harness.drive_fault(port, -1, deaf=True, lasting=True)
            else:
                card.harness.remove(port)

        async def scenario() -> None:
            card.card.transport.spawn(spoil())
            with pytest.raises(RuntimeError, match="could not be erased"):
                await background.erase_drive(card.nvme, port, poll_ns=20_000)

        card.run(scenario())
        assert count("flushes") == 0 and count("written_blocks") == ROWS
