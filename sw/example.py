"""The driver by example: an array on a simulated card loses a drive, is rebuilt, and is deleted.

    .venv/bin/python -m sw.example

docs/driver.md explains it. Every step is checked, and the program reports what it has seen.
"""

import sys

from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, board
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from sim.cli import Parser, program
from sim.native.build import is_built
from sim.native.parameters import MICROSECOND, Ideal
from sw.driver import background, raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import Admin, Command, NvmeError

PORTS, MEMBERS, SPARE_PORT = 8, 4, 4
CAPACITY = 1024
"""Blocks of a drive. There are few, so that a rebuild is short."""
BLOCKS = 16
"""Blocks of the data that is written."""
POLL_NS = 50_000
PULLED = 1


async def example(card: SimulatedCard) -> None:
    """The actions of a host, from the first command to the last."""
    nvme, memory = card.nvme, card.transport.memory
    identity = await nvme.start(queue_pairs=1)
    print(f"{identity.model}: up after {card.harness.now_ns / 1000:.0f} us")

    # An array over ports 0 to 3, and one volume over all of it. The drives are blank.
    array = await raid.create_array(
        nvme, Level.RAID5, range(MEMBERS), strip_kib=64, assume_consistent=True
    )
    volume = await raid.create_volume(nvme, array)

    # Host memory has bus addresses. A write that has been flushed is on the drives.
    data = bytes(range(256)) * (BLOCKS * BLOCK_BYTES // 256)
    address = memory.allocate(len(data))
    memory.write(address, data)
    await nvme.write(volume, 0, BLOCKS, address)
    await nvme.flush(volume)

    # The card reports an event by the completion of a command that waits for it.
    told = card.transport.event()

    async def watch() -> None:
        event = await nvme.admin(Command(Admin.ASYNC_EVENT))
        print(f"event: type {event.result & 7}, log page {event.result >> 16 & 0xFF:02X}h")
        told.set()

    card.transport.spawn(watch())
    card.harness.remove(PULLED)
    await told.wait()
    lost = [m.port for m in await members(card, array) if m.failed]
    print(f"lost: drives {lost}")

    # All blocks can still be read and written.
    memory.write(address, bytes(len(data)))
    await nvme.read(volume, 0, BLOCKS, address)
    assert memory.read(address, len(data)) == data

    # Another drive takes its place. The card rebuilds it by itself.
    await background.replace_member(nvme, array, position=PULLED, port=SPARE_PORT)
    await ended(card, array, WalkKind.REBUILD)
    print(f"members are at ports {[m.port for m in await members(card, array)]}")

    # All blocks are read, and unreadable ones are mended.
    card.harness.medium_error(0, DATA_OFFSET_BLOCKS)
    await background.start_job(nvme, array, WalkKind.PATROL)
    job = await ended(card, array, WalkKind.PATROL)
    print(f"patrol: {job.mended} mended, {job.lost} lost")

    # The card does not delete an array that is in use. The error says what to do.
    try:
        await raid.delete_array(nvme, array)
    except NvmeError as error:
        print(f"refused: {error}")
    await raid.delete_volume(nvme, volume)
    await raid.delete_array(nvme, array)
    assert not await raid.arrays(nvme)


async def members(card: SimulatedCard, array: int) -> tuple[raid.Member, ...]:
    """The members of an array, by member index."""
    (found,) = [a for a in await raid.arrays(card.nvme) if a.number == array]
    return found.members


async def ended(card: SimulatedCard, array: int, kind: WalkKind) -> background.Job:
    """The job of an array, once it has ended."""
    job = await background.job(card.nvme, array)
    while job.state is JobState.RUNNING:
        await card.transport.sleep(POLL_NS)
        job = await background.job(card.nvme, array)
    assert (job.kind, job.state) == (kind, JobState.DONE), job
    return job


def main() -> int:
    """Command line."""
    Parser(prog="example", description="The driver by example (docs/driver.md).").parse_args()
    if not is_built(board(8)):
        print("building the controller, which takes minutes", flush=True)
    drives = [Ideal(capacity=CAPACITY, latency_ps=20 * MICROSECOND)] * PORTS
    with SimulatedCard(board(PORTS), drives) as card:
        card.run(example(card))
    return 0


if __name__ == "__main__":
    sys.exit(program("example", main))
