"""The simulated card of the native tier with golden volumes, for tests of the whole controller."""

import random
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, replace

from campaign.links import placed
from cocotb_tests.system.controller_bench import CONFIG
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, Config, board
from hdl.flow.geometry import Level
from sim.card.layouts import rotation_of
from sim.card.row_check import checked_row
from sim.card.volume_model import VolumeModel
from sim.golden.image import members
from sim.golden.layout import LEFT_SYMMETRIC, Layout, Place
from sim.native.parameters import DriveParameters, LinkParameters
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError
from sw.driver.transport import PAGE_BYTES

PORTS = 8
MEMORY_BYTES = 64 << 20
GUARD = b"\xa5"

WITHOUT_SHARES = CONFIG
"""One array can take all command slots, and the queues hold more commands than there are. The
comparison of the tiers uses the same controller, so it is built once."""


@dataclass(kw_only=True)
class Volume:
    """A volume over the whole of an array of its own, and its golden contents."""

    array: int
    namespace: int
    layout: Layout
    ports: list[int]
    rows: int
    model: VolumeModel
    """Of its logical blocks."""
    sector_bytes: int = BLOCK_BYTES
    """Bytes of a logical block."""

    def check(self, block: int, data: bytes, where: str) -> None:
        """Checks what a drive holds of a block of 4096 bytes."""
        sectors = _pieces(data, self.sector_bytes)
        for number, sector in enumerate(sectors, block * len(sectors)):
            self.model.check(number, sector, where)


class Card:
    """A card with its driver, and what every volume on it should hold; a context manager.

    Parameters
    ----------
    drives
        One a port; shorter lists leave the last ports empty.
    seed
        Of contents and accesses, and of what drives forget. Seed and drives say where host memory
        lies.
    jumping
        As for `Harness`.
    queue_pairs
        I/O queue pairs.
    parities
        Syndromes that the controller computes.
    config
        Sizes, if not those of `board`.
    link
        Of the card.
    quiet
        Does not print the seed.
    """

    def __init__(
        self,
        drives: list[DriveParameters],
        *,
        seed: int,
        jumping: bool = True,
        queue_pairs: int = 2,
        parities: int = 2,
        config: Config | None = None,
        link: LinkParameters | None = None,
        quiet: bool = False,
    ):
        if not quiet:
            print(f"SEED={seed}")
        self.random = random.Random(f"{seed}/card")
        config = config or replace(board(PORTS), parities=parities)
        padded = [*drives, *[None] * (config.ports - len(drives))]
        link = placed(
            link or LinkParameters(), random.Random(f"{seed}/{drives}/memory"), MEMORY_BYTES
        )
        self.card = SimulatedCard(
            config, padded, link=link, memory_bytes=MEMORY_BYTES, jumping=jumping, seed=seed
        )
        self.harness = self.card.harness
        self.nvme = self.card.nvme
        self.run = self.card.run
        self._drives = drives
        self.gone: set[int] = set()
        self.ends_ns: list[float] = []
        self.run(self.nvme.start(queue_pairs=queue_pairs))

    def __enter__(self) -> "Card":
        return self

    def __exit__(self, *_) -> None:
        self.card.close()

    async def create(
        self,
        level: Level,
        ports: Iterable[int],
        *,
        strip_blocks: int = 4,
        rotation: str = LEFT_SYMMETRIC,
        sector_bytes: int = BLOCK_BYTES,
        in_sync: bool = True,
        start_job: bool = True,
        **options: int,
    ) -> Volume:
        """An array over drives full of random but consistent data, which the card is told, and a
        volume over all of it.

        With ``in_sync`` false parities are random, and the card makes them right in the background;
        or not yet, with ``start_job`` false.
        """
        ports = sorted(ports)
        layout = Layout(level.name, len(ports), strip_blocks, rotation=rotation, **options)
        rows = layout.rows([self._drives[port].capacity for port in ports])
        contents = [self.random.randbytes(BLOCK_BYTES) for _ in range(layout.blocks(rows))]
        for port, area in zip(ports, members(layout, rows, contents), strict=True):
            for row, data in enumerate(_pieces(area)):
                self.store(port, row, data)
        if not in_sync:
            for span in range(layout.spans):
                for row in range(rows):
                    for position in layout.roles(span, row)[layout.data :]:
                        self.store(ports[position], row, self.random.randbytes(BLOCK_BYTES))
        strip_kib = strip_blocks * BLOCK_BYTES // 1024
        array = await raid.create_array(
            self.nvme,
            level,
            ports,
            strip_kib=strip_kib,
            rotation=rotation_of(layout),
            assume_consistent=in_sync,
            start_job=start_job,
            **options,
        )
        namespace = await raid.create_volume(self.nvme, array, sector_bytes=sector_bytes)
        size = await self.nvme.namespace(namespace)
        sectors = _pieces(b"".join(contents), sector_bytes)
        assert (size.blocks, size.block_bytes) == (len(sectors), sector_bytes), f"{level}: {size}"
        return Volume(
            array=array,
            namespace=namespace,
            layout=layout,
            ports=ports,
            rows=rows,
            model=VolumeModel(sectors),
            sector_bytes=sector_bytes,
        )

    # Drives, past the controller

    def store(self, port: int, row: int, data: bytes) -> None:
        """Stores a block of a member."""
        self.harness.write_drive(port, DATA_OFFSET_BLOCKS + row, data)

    def stored(self, port: int, row: int) -> bytes:
        """Reads a block of a member."""
        return self.harness.read_drive(port, DATA_OFFSET_BLOCKS + row)

    def spoil(self, volume: Volume, place: Place) -> None:
        """Makes a block of a member unreadable until it is written."""
        self.harness.medium_error(volume.ports[place.position], DATA_OFFSET_BLOCKS + place.row)

    def pull(self, port: int) -> None:
        """Removes a drive."""
        self.harness.remove(port)
        self.gone.add(port)

    # Accesses

    async def write(
        self, volume: Volume, first: int, blocks: int, address: int, queue: int, *, fua: bool
    ) -> int:
        """Writes random data; the status (0: success). The golden model follows."""
        size = volume.sector_bytes
        data = self.random.randbytes(blocks * size)
        self.card.transport.memory.write(address, data)
        write = volume.model.begin_write(first, _pieces(data, size))
        try:
            await self.nvme.write(volume.namespace, first, blocks, address, queue, fua, size)
        except NvmeError as error:
            volume.model.end_write(write, done=False)
            return error.status
        volume.model.end_write(write)
        return 0

    async def read(
        self, volume: Volume, first: int, blocks: int, address: int, queue: int = 0
    ) -> int:
        """Reads, and checks the data and that nothing around it changed; the status."""
        memory = self.card.transport.memory
        size = volume.sector_bytes
        length = blocks * size
        page = address - address % PAGE_BYTES
        end = -(-(address + length) // PAGE_BYTES) * PAGE_BYTES
        memory.write(page, GUARD * (end - page))
        read = volume.model.begin_read(first, blocks)
        try:
            await self.nvme.read(volume.namespace, first, blocks, address, queue, size)
        except NvmeError as error:
            volume.model.end_read(read, None)
            return error.status
        around = memory.read(page, address - page)
        around += memory.read(address + length, end - address - length)
        assert not around.strip(GUARD), f"bytes around a read at {address:#x} changed"
        volume.model.end_read(read, _pieces(memory.read(address, length), size))
        return 0

    async def flush(self, volume: Volume, queue: int = 0) -> int:
        """Flushes; the status."""
        try:
            await self.nvme.flush(volume.namespace, queue)
        except NvmeError as error:
            return error.status
        return 0

    def buffer(self, blocks: int) -> int:
        """Host memory for a transfer of ``blocks`` blocks at any offset in a page."""
        return self.card.transport.memory.allocate((blocks + 1) * BLOCK_BYTES)

    async def load(
        self,
        volume: Volume,
        commands: int,
        *,
        workers: int = 12,
        writes: float = 0.5,
        longest: int = 32,
        allowed: Iterable[int] = (0,),
    ) -> list[int]:
        """Random reads, writes and flushes over all queues, ``workers`` at once; their statuses.

        Half of them are short; some begin inside a page; writes may overlap anything. ``longest``
        is in blocks of 4096 bytes, of which a command has as many as the card takes at most.
        """
        longest = min(longest, self.card.config.transfer_blocks)
        most = longest * BLOCK_BYTES // volume.sector_bytes
        left = commands
        statuses: list[int] = []

        async def access(memory: int) -> int:
            short = self.random.random() < 0.5
            blocks = self.random.randint(1, min(4, most) if short else most)
            first = self.random.randint(0, len(volume.model) - blocks)
            address = memory
            if self.random.random() < 0.5:
                address += 4 * self.random.randrange(PAGE_BYTES // 4)
            queue = self.random.randrange(len(self.nvme.queues))
            if self.random.random() < 0.05:
                return await self.flush(volume, queue)
            if self.random.random() < writes:
                fua = self.random.random() < 0.2
                return await self.write(volume, first, blocks, address, queue, fua=fua)
            return await self.read(volume, first, blocks, address, queue)

        async def work() -> None:
            nonlocal left
            memory = self.buffer(longest)
            while left > 0:
                left -= 1
                statuses.append(await access(memory))
                self.ends_ns.append(self.harness.now_ns)
                assert statuses[-1] in allowed, f"status {statuses[-1]:#x}"

        await self.together(work() for _ in range(workers))
        return statuses

    async def together(self, tasks: Iterable[Coroutine]) -> None:
        """Runs them at once, until all have ended."""
        done = self.card.transport.event()
        running = 0

        async def watched(task: Coroutine) -> None:
            nonlocal running
            await task
            running -= 1
            if not running:
                done.set()

        for task in tasks:
            running += 1
            self.card.transport.spawn(watched(task))
        await done.wait()

    async def read_all(
        self, volume: Volume, blocks: int = 8, allowed: Iterable[int] = (0,)
    ) -> None:
        """Reads and checks every block of a volume."""
        address = self.buffer(blocks)
        for first in range(0, len(volume.model), blocks):
            count = min(blocks, len(volume.model) - first)
            status = await self.read(volume, first, count, address)
            assert status in allowed, f"read of block {first}: status {status:#x}"

    # The end

    def finish(self, *volumes: Volume) -> None:
        """Checks that nothing is left over, then what the drives hold."""
        events = self.harness.run()
        while events != [("idle",)]:
            assert all(event[0] == "interrupt" for event in events), events
            events = self.harness.run()
        for queue in self.nvme.queues:
            assert not queue.outstanding, f"queue {queue.identifier}: commands are outstanding"
        for volume in volumes:
            self.check(volume)

    def check(self, volume: Volume) -> None:
        """Every block where the layout says, every row's parity as ISA-L computes it.

        Blocks of drives that are gone are recovered from the others.
        """
        assert volume.model.idle
        layout = volume.layout
        if layout.parities:
            for span in range(layout.spans):
                for row in range(volume.rows):
                    self._check_row(volume, span, row)
            return
        for block in range(len(volume.model) * volume.sector_bytes // BLOCK_BYTES):
            held = {
                self.stored(volume.ports[place.position], place.row)
                for place in layout.copies_of(block)
                if volume.ports[place.position] not in self.gone
            }
            assert len(held) <= 1, f"copies of block {block} differ"
            for data in held:
                volume.check(block, data, layout.level)

    def _check_row(self, volume: Volume, span: int, row: int) -> None:
        layout = volume.layout
        ports = volume.ports[span * layout.width : (span + 1) * layout.width]
        held = [None if port in self.gone else self.stored(port, row) for port in ports]
        for block, data in checked_row(layout, span, row, held):
            volume.check(block, data, f"{layout.level} row {row}")


def _pieces(data: bytes, size: int = BLOCK_BYTES) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]
