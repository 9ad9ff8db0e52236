"""A volume of an array under random load, and the data that it must hold."""

import random
from collections.abc import Callable, Container, Coroutine, Iterable
from typing import TYPE_CHECKING

from campaign import ranges
from campaign.card import STOPPED
from campaign.durable import DurableModel
from hdl.config import BLOCK_BYTES
from sim.card.volume_model import ANYTHING, Access, DataError
from sim.golden.nvme import (
    ABORT_REQUESTED,
    COMPARE_FAILURE,
    DATA_TRANSFER_ERROR,
    DATASET_MANAGEMENT,
    INVALID_FIELD,
    INVALID_NAMESPACE,
    LBA_OUT_OF_RANGE,
    NAMESPACE_NOT_READY,
    UNRECOVERED_READ,
    VERIFY,
    WRITE_ZEROES,
)
from sim.native.harness import ReadEnd
from sw.driver.commands import Command, Io, NvmeError, read_write
from sw.driver.transport import PAGE_BYTES

if TYPE_CHECKING:
    from campaign.array import Array

DELETED = (ABORT_REQUESTED, INVALID_FIELD, INVALID_NAMESPACE, NAMESPACE_NOT_READY)
"""Statuses that end commands to a volume that is being deleted (NVMe 1.4 section 6.1.5)."""

FLUSHES, FUAS = 0.05, 0.2
UNFETCHED = 0.06
"""Share of writes whose data the host cannot give completely."""
ENDS = (ReadEnd.UNSUPPORTED, ReadEnd.ABORTED, ReadEnd.POISONED, ReadEnd.DISCONTINUED)
"""Ways in which the read of that data ends. None takes long."""

OTHERS = 0.12
"""Share of commands that are neither Read nor Write nor Flush."""
LONGEST_OTHERS = 40
"""Blocks of 4096 bytes of the longest Write Zeroes or Verify, which then takes several transfers.
"""

STOPPED_NS = 2_000
"""Pause of a worker whose queue has gone."""

AT_ONCE = 8
"""Commands at once in a pass over a volume."""


def pieces(data: bytes, size: int) -> list[bytes]:
    """``data`` cut into pieces."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def sector_of(data: bytes, number: int, size: int) -> bytes:
    """A sector of a block, or `ANYTHING`."""
    return ANYTHING if data == ANYTHING else data[number * size : (number + 1) * size]


class Volume:
    """A volume.

    Parameters
    ----------
    array
        The array in which it lies.
    namespace
        Its number for the host.
    start, blocks
        Its range of the array, in blocks of 4096 bytes.
    sector_bytes
        Bytes of a logical block.
    contents
        What each of its blocks of 4096 bytes may hold at first.
    """

    def __init__(
        self,
        array: "Array",
        namespace: int,
        start: int,
        blocks: int,
        sector_bytes: int,
        contents: list[set[bytes]],
    ):
        self.array = array
        self.namespace = namespace
        self.start = start
        self.blocks = blocks
        self.sector_bytes = sector_bytes
        self.model = DurableModel(
            [
                {sector_of(data, sector, sector_bytes) for data in choices}
                for choices in contents
                for sector in range(BLOCK_BYTES // sector_bytes)
            ]
        )
        self.doubtful: dict[int, int] = {}
        """Blocks of 4096 bytes of which a write has failed, and when. They have not been written or
        read since, so they may be unreadable."""
        self.deleted = False
        """Its deletion has begun, and no more commands are sent."""

    def __str__(self) -> str:
        return f"volume {self.namespace} of {self.array}"

    def adopt(self, other: "Volume") -> None:
        """It holds the data of another volume that lay in its place."""
        self.model = other.model
        self.doubtful = other.doubtful

    def settle(self) -> None:
        """It holds the data that is on the drives now and that they have been asked to flush."""
        sectors = BLOCK_BYTES // self.sector_bytes
        for block in range(self.blocks):
            held = self.array.held(self.start + block)
            for sector in range(sectors):
                self.model.settle(
                    block * sectors + sector,
                    {pieces(data, self.sector_bytes)[sector] for data in held},
                )

    def array_block(self, logical: int) -> int:
        """The block of the array that holds a logical block."""
        return self.start + logical * self.sector_bytes // BLOCK_BYTES

    def check(self, block: int, data: bytes) -> None:
        """Checks the contents that the drives hold of a block of the array."""
        sectors = pieces(data, self.sector_bytes)
        for number, sector in enumerate(sectors, (block - self.start) * len(sectors)):
            self.model.check(number, sector, str(self))

    async def each(
        self, items: Iterable[int], work: Callable[[int, int], Coroutine]
    ) -> None:
        """Awaits ``work(item, buffer)`` for each item, a few at once."""
        card, left = self.array.card, iter(items)

        async def worker() -> None:
            buffer = card.take_buffer()
            for item in left:
                await work(item, buffer)
            card.give_buffer(buffer)

        await card.together(worker() for _ in range(AT_ONCE))

    # Commands; each returns its status

    async def write(
        self,
        first: int,
        count: int,
        address: int,
        queue: int,
        *,
        fua: bool,
        unfetched: bool = False,
    ) -> int:
        """Writes random data. If ``unfetched``, the host cannot give some of it."""
        card, size = self.array.card, self.sector_bytes
        if unfetched:
            word = address + 4 * card.chance.randrange(count * size // 4)
            late = card.chance.random() < 0.5
            card.harness.fail_reads(card.chance.choice(ENDS), address=word, length=4, late=late)
        data = card.random.randbytes(count * size)
        card.transport.memory.write(address, data)
        write = self.model.begin_write(first, pieces(data, size))
        command = card.nvme.write(self.namespace, first, count, address, queue, fua, size)
        status = await card.timed(self, "a write", command, queue)
        assert status or not unfetched, f"{self}: a write succeeds without its data"
        self._end_write(write, status, fua=fua)
        return status

    def _end_write(self, write: Access, status: int, *, fua: bool) -> None:
        self.model.end_write(write, done=status == 0, fua=fua)
        sectors, first, count = BLOCK_BYTES // self.sector_bytes, write.first, write.blocks
        if status:
            last = (first + count - 1) // sectors
            self.doubtful |= dict.fromkeys(range(first // sectors, last + 1), self.model.moment)
        else:
            self._trust(first, count, write.begin)

    def _trust(self, first: int, count: int, begin: int) -> None:
        """Blocks that have been read or written since then may not be unreadable."""
        sectors = BLOCK_BYTES // self.sector_bytes
        for block in range(-(-first // sectors), (first + count) // sectors):
            if self.doubtful.get(block, begin) < begin:
                del self.doubtful[block]

    async def read(
        self, first: int, count: int, address: int, queue: int = 0, *, fua: bool = False
    ) -> int:
        """Reads, and checks the data and the memory around it.

        What is read with FUA is durable if it can only come from the block's own drive. Where there
        is redundancy, other drives may have been read and asked to store it.
        """
        card, size = self.array.card, self.sector_bytes
        pages = card.guard(address, count * size)
        read = self.model.begin_read(first, count)
        command = card.nvme.read(self.namespace, first, count, address, queue, size, fua)
        status = await card.timed(self, "a read", command, queue)
        if status:
            self.model.end_read(read, None)
            return status
        card.check_guard(address, count * size, pages)
        data = card.transport.memory.read(address, count * size)
        try:
            self.model.end_read(read, pieces(data, size))
        except DataError as error:
            raise DataError(f"{self}: {error}") from None
        if fua and not self.array.redundant:
            self.model.stored(first, pieces(data, size))
        self._trust(first, count, read.begin)
        return 0

    async def flush(self, queue: int = 0) -> int:
        """Flushes."""
        card = self.array.card
        begun = self.model.begin_flush()
        command = card.nvme.flush(self.namespace, queue)
        status = await card.timed(self, "a flush", command, queue)
        if status == 0:
            self.model.end_flush(begun)
        return status

    # Commands that are seldom sent

    async def other(
        self, first: int, count: int, address: int, queue: int, *, writes: bool
    ) -> int:
        """Sends a Verify, a Compare, or a Dataset Management that says which blocks are not needed.
        If it ``writes``, it sends a Write Zeroes."""
        card = self.array.card
        whim, ways = card.whim, [self._verify]
        ways += [self._zero] if writes else []
        ways += [self._compare, self._hint] if card.config.compare_and_deallocate else []
        way = whim.choice(ways)
        if way in (self._zero, self._verify) and whim.random() < 0.5:
            most = LONGEST_OTHERS * BLOCK_BYTES // self.sector_bytes
            count = whim.randint(1, min(most, len(self.model) - first))
        card.outcome.seen["other commands"] += 1
        return await way(first, count, address, queue)

    async def _send(
        self, what: str, command: Command, queue: int, address: int = 0, length: int = 0
    ) -> int:
        """Sends a command with so much data. Returns its status."""
        card = self.array.card

        async def send() -> None:
            pair = card.nvme.queues[queue]
            sent = pair.transfer(command, address, length) if length else pair.submit(command)
            done = await sent
            if not done.ok:
                raise NvmeError(what, done)

        return await card.timed(self, what, send(), queue)

    def _of_blocks(self, opcode: int, first: int, count: int, *, fua: bool = False) -> Command:
        dwords = read_write(Io.WRITE, self.namespace, first, count, 0, 0, fua).dwords
        return Command(opcode, self.namespace, dwords=dwords)

    async def _zero(self, first: int, count: int, address: int, queue: int) -> int:
        fua = self.array.card.whim.random() < FUAS
        write = self.model.begin_write(first, [bytes(self.sector_bytes)] * count)
        command = self._of_blocks(WRITE_ZEROES, first, count, fua=fua)
        status = await self._send("a Write Zeroes", command, queue)
        self._end_write(write, status, fua=fua)
        return status

    async def _verify(self, first: int, count: int, address: int, queue: int) -> int:
        return await self._send("a Verify", self._of_blocks(VERIFY, first, count), queue)

    async def _compare(self, first: int, count: int, address: int, queue: int) -> int:
        """Compares with data that may be there, or with a bit changed."""
        card, size = self.array.card, self.sector_bytes
        held = [self.model.possible(first + place) - {ANYTHING} for place in range(count)]
        if not all(held):
            return await self._verify(first, count, address, queue)
        data = bytearray(b"".join(card.whim.choice(sorted(choices)) for choices in held))
        differs = card.whim.random() < 0.5
        if differs:
            data[card.whim.randrange(len(data))] ^= 1 << card.whim.randrange(8)
        card.transport.memory.write(address, bytes(data))
        read = self.model.begin_read(first, count)
        command = self._of_blocks(Io.COMPARE, first, count)
        status = await self._send("a Compare", command, queue, address, len(data))
        alike = pieces(bytes(data), size)
        if status == 0:
            assert not differs, f"{self}: a Compare finds no difference, though there is one"
            self.model.end_read(read, alike)
            return 0
        self.model.end_read(read, None)
        if status != COMPARE_FAILURE:
            return status
        sure = all(allowed == {held} for allowed, held in zip(read.allowed, alike, strict=True))
        assert differs or not sure, f"{self}: a Compare finds a difference where there is none"
        return 0

    async def _hint(self, first: int, count: int, address: int, queue: int) -> int:
        """Sends a Dataset Management. Data must stay, whatever it says. It is refused exactly if a
        range ends beyond the volume."""
        card, blocks = self.array.card, len(self.model)
        choose, wanted = card.hints, [(first, count)]
        if "ranges" in self.array.features:
            wanted = ranges.draw(choose, blocks)
        data = ranges.packed(choose, wanted)
        card.transport.memory.write(address, data)
        command = Command(
            DATASET_MANAGEMENT, self.namespace, dwords=ranges.dwords(choose, wanted)
        )
        status = await self._send("a Dataset Management", command, queue, address, len(data))
        outside = ranges.beyond(wanted, blocks)
        assert status or not outside, f"{self}: ranges beyond it are taken: {outside}"
        if status != LBA_OUT_OF_RANGE:
            return status
        assert outside, f"{self}: {len(wanted)} ranges that it has are refused"
        card.outcome.seen["ranges refused"] += 1
        return 0

    # Load

    async def load(
        self,
        choose: random.Random,
        commands: int,
        *,
        workers: int,
        writes: float,
        longest: int,
        allowed: Container[int] = (0,),
        in_turn: bool = False,
    ) -> None:
        """Random commands on all queues, ``workers`` at once, which end with allowed statuses.

        Half of them are short, and some begin inside a page. Writes may overlap anything.
        ``longest`` is in blocks of 4096 bytes. ``in_turn``: as many on each queue. No more are sent
        once the volume is being deleted, or the controller is about to be reset.
        """
        card = self.array.card
        most = min(longest, self.blocks) * BLOCK_BYTES // self.sector_bytes
        left = commands
        fetches, others, aborts = (
            name in self.array.features for name in ("fetch", "others", "aborts")
        )

        async def access(number: int, buffer: int) -> tuple[int, bool]:
            """Does one access. Returns its status, and whether some of its data could not be
            fetched."""
            short = choose.random() < 0.5
            count = choose.randint(1, min(4, most) if short else most)
            first = choose.randint(0, len(self.model) - count)
            address = buffer
            if choose.random() < 0.5:
                address += 4 * choose.randrange(PAGE_BYTES // 4)
            queues = len(card.nvme.queues)
            queue = number % queues if in_turn else choose.randrange(queues)
            if others and card.whim.random() < OTHERS:
                writing = writes > 0
                return await self.other(first, count, address, queue, writes=writing), False
            if choose.random() < FLUSHES:
                return await self.flush(queue), False
            if choose.random() < writes:
                fua = choose.random() < FUAS
                unfetched = fetches and card.chance.random() < UNFETCHED
                status = await self.write(
                    first, count, address, queue, fua=fua, unfetched=unfetched
                )
                return status, unfetched
            fua = card.whim.random() < FUAS
            return await self.read(first, count, address, queue, fua=fua), False

        async def work(number: int) -> None:
            nonlocal left
            buffer = card.take_buffer()
            while left > 0 and not self.deleted and not card.stops:
                left -= 1
                status, unfetched = await access(number, buffer)
                if unfetched and status == DATA_TRANSFER_ERROR:
                    card.outcome.seen["writes without their data"] += 1
                    continue
                if unfetched:
                    # It ended before: what reads this buffer next would fail.
                    buffer = card.new_buffer()
                if status == STOPPED and card.renewed:
                    await card.sleep(STOPPED_NS)
                    continue
                if aborts and status == ABORT_REQUESTED and not self.deleted:
                    card.outcome.seen["commands aborted"] += 1
                    continue
                if self.deleted and status in DELETED:
                    card.outcome.seen["commands of deleted volumes refused"] += 1
                    continue
                assert status in allowed, f"{self}: status {status:#x}"
            card.give_buffer(buffer)

        await card.together(work(number) for number in range(workers))

    async def read_all(
        self,
        allowed: Container[int] = (0,),
        *,
        doubts: bool = False,
        lost: Container[int] = (),
    ) -> None:
        """Reads and checks every block. With ``doubts`` a block may be unreadable if a write of it
        has failed, and none that began after that has succeeded. So may blocks of the array that
        are ``lost``."""
        sectors = BLOCK_BYTES // self.sector_bytes
        at_once = min(8, self.array.card.config.transfer_blocks)

        async def read(first: int, count: int, buffer: int) -> None:
            at, length = first * sectors, count * sectors
            status = await self.read(at, min(length, len(self.model) - at), buffer)
            unclear = doubts and self.doubtful.keys() & set(range(first, first + count))
            unclear = unclear or any(self.start + first + one in lost for one in range(count))
            if status == UNRECOVERED_READ and unclear:
                for block in range(first, first + count):
                    if count > 1:
                        await read(block, 1, buffer)
                return
            assert status in allowed, f"{self}: read of block {at}: status {status:#x}"

        async def some(first: int, buffer: int) -> None:
            await read(first, min(at_once, self.blocks - first), buffer)

        await self.each(range(0, self.blocks, at_once), some)

    async def write_each(self, firsts: Iterable[int], count: int) -> None:
        """Writes ``count`` blocks from each of these blocks on."""

        async def write(first: int, buffer: int) -> None:
            status = await self.write(first, count, buffer, 0, fua=False)
            assert status == 0, f"{self}: write of block {first}: status {status:#x}"

        await self.each(firsts, write)

    async def write_all(self) -> None:
        """Writes every block of 4096 bytes."""
        sectors = BLOCK_BYTES // self.sector_bytes
        await self.write_each(range(0, len(self.model), sectors), sectors)
