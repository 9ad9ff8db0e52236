"""Jobs of the whole controller on the native tier: small drives, and when a job has ended."""

from cocotb_tests.native.native_card import Card, Volume
from hdl.background.jobs import JobState
from hdl.config import DATA_OFFSET_BLOCKS
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import background

ROWS = 64
FAST = Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=5 * MICROSECOND)
POLL_NS = 20_000
POLLS = 3_000


async def finished(card: Card, array: int = 0) -> background.Job:
    """Waits until the job of an array has ended; what became of it."""
    for _ in range(POLLS):
        job = await background.job(card.nvme, array)
        if job.state != JobState.RUNNING:
            return job
        await card.card.transport.sleep(POLL_NS)
    raise AssertionError(f"the job has not ended: {job}")


def replaced(card: Card, volume: Volume, old: int, new: int) -> None:
    """The golden volume follows: ``new`` holds what ``old`` did."""
    volume.ports[volume.ports.index(old)] = new
    card.gone.discard(new)
