"""Arrays of a card that lives on drives: how they are made, and until when their jobs run."""

from itertools import count

from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES
from hdl.flow.geometry import Level
from powercut.lives import POLL_NS, Known, Lives, contents
from sw.driver import background, raid
from sw.driver.card import SimulatedCard

NUMBERS = count(1000)
"""Of writes: none that `made` has used."""


async def made(
    card: SimulatedCard,
    lives: Lives,
    level: Level,
    ports: list[int],
    *,
    spans: int = 1,
    tail: int = 0,
) -> Known:
    """An array with a volume, full of data that is stored. ``tail`` blocks behind it are free."""
    array = Known(level=level, ports=ports, spans=spans)
    lives.arrays.append(array)
    array.number = await raid.create_array(card.nvme, level, ports, strip_kib=8, spans=spans)
    array.created = True
    (one,) = [one for one in await raid.arrays(card.nvme) if one.number == array.number]
    array.blocks = one.blocks - tail
    array.namespace = (await lives.create_volume(card, array, 0, array.blocks)).namespace
    address = card.transport.memory.allocate(BLOCK_BYTES)
    for block in range(array.blocks):
        card.transport.memory.write(address, contents(block, block + 1))
        await card.nvme.write(array.namespace, block, 1, address, fua=True)
        array.stored[block] = block + 1
    return array


async def write(card: SimulatedCard, lives: Lives, array: Known, block: int) -> None:
    """The host writes a block, with FUA."""
    address = card.transport.memory.allocate(BLOCK_BYTES)
    number = next(NUMBERS)
    card.transport.memory.write(address, contents(block, number))
    array.begun.setdefault(block, set()).add(number)
    await card.nvme.write(array.namespace, block, 1, address, fua=True)
    array.stored[block] = number
    del array.begun[block]


async def job_ends(card: SimulatedCard, array: Known) -> background.Job:
    """What has become of the job of an array, once it has ended."""
    while (job := await background.job(card.nvme, array.number)).state == JobState.RUNNING:
        await card.transport.sleep(POLL_NS)
    return job
