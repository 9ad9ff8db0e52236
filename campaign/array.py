"""An array of a campaign with its volumes: its creation, its faults and its contents."""

import random
from collections.abc import Container
from typing import Any

from campaign.bounds import CROWD, CROWDED_BLOCKS, RESTED, given_up_ns, jobs, rows_ns, work_ns
from campaign.budget import Budget
from campaign.card import Card, Stuck
from campaign.volume import Volume, pieces
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, SECTOR_BYTES
from hdl.flow.geometry import Level
from hdl.flow.walk import WalkKind
from sim.card.layouts import rotation_of
from sim.card.row_check import checked_row
from sim.golden.image import members
from sim.golden.layout import Layout
from sim.golden.nvme import UNRECOVERED_READ
from sw.driver import background, raid
from sw.driver.commands import NvmeError

POLL_NS, POLLS_A_WAIT = 120_000, 16
"""The time between two looks at least, and how many go into the time waited so far at most."""

NO_ENTRY = 0x1C1
"""Status: no job runs."""


class Array:
    """An array, and the model's knowledge of it.

    Parameters
    ----------
    card
        The card.
    layout
        The layout of the array.
    ports
        The port of each member.
    rows
        Rows of a span.
    features
        Features of the campaign.
    choose
        Random choices.
    """

    def __init__(
        self,
        card: Card,
        layout: Layout,
        ports: list[int],
        rows: int,
        features: frozenset[str],
        choose: random.Random,
    ):
        self.card = card
        self.features = features
        self.choose = choose
        self.volumes: list[Volume] = []
        self.number = -1
        self.failed: set[int] = set()
        """Ports of members that the card has failed."""
        self.spares: set[int] = set()
        self.take_shape(layout, ports, rows)

    def take_shape(self, layout: Layout, ports: list[int], rows: int) -> None:
        """From now on the array has this layout, and no faults."""
        self.layout = layout
        self.ports = list(ports)
        self.rows = rows
        self.blocks = layout.blocks(rows)
        self.redundant = layout.parities > 0 or layout.copies > 1
        self.consistent = True
        """Whether every row has its redundancy. Until then only rows that were written have it."""
        self.budget = Budget(layout, rows)
        self.refused: set[tuple[int, int]] = set()
        """Blocks, as (port, row), that a drive refuses to write."""
        self.troubled: set[int] = set()
        """Ports whose drives have had a fault since the array last rested."""
        self.restarted: set[int] = set()
        """Ports whose drives have only begun anew."""
        self.forgot: set[int] = set()
        """Ports that may be reset, and whose drives have lost their caches then."""

    def __str__(self) -> str:
        layout = self.layout
        text = f"{layout.level} of {layout.drives}"
        if layout.spans > 1:
            text += f", {layout.spans} spans"
        if layout.parities:
            text += f", {layout.rotation}"
        if layout.copies > 1:
            text += f", {layout.copies} copies"
        return f"{text}, strips of {layout.strip_blocks}, {self.rows} rows"

    def longest_ns(self) -> float:
        """Time in which each command of the array must end (docs/guarantees.md, Drives that hang).

        A command may meet drives that hang one after the other, and then takes the time of other
        drives. An array whose drives have no fault does not wait for the drives of others, but with
        metadata for the superblocks that tell of their loss.
        """
        card = self.card
        hung = given_up_ns(card.config)
        ports = self.troubled
        if card.config.metadata:
            ports = {port for array in card.arrays for port in array.troubled}
        waits = len(ports) * hung + (card.ladder_ns if ports else 0)
        return waits + work_ns(card.config, card.drive, self.rows)

    def job_ns(self) -> float:
        """Time in which the job of the array must have ended, with all that follow it, if there is
        no host command from now on (docs/background.md, Who does it).

        The walker works for all arrays, and waits for each of their drives that has a fault.
        """
        card = self.card
        walked = sum(
            jobs(card.config, len(array.troubled))
            * rows_ns(card.config, card.drive, array.layout, array.rows)
            for array in card.arrays
        )
        held_up = RESTED * card.held_up_ns() + card.rest_before_ns()
        return walked + held_up + work_ns(card.config, card.drive, self.rows)

    def allowed(self) -> tuple[int, ...]:
        """Statuses that commands may end with."""
        return (0,) if self.budget.tolerated() else (0, UNRECOVERED_READ)

    @property
    def healthy(self) -> bool:
        """Whether the array has no fault."""
        return self.consistent and not self.budget.drives and not self.failed

    # Making

    async def create(
        self, *, initialise: bool = False, zero: bool = False, degraded: bool = False
    ) -> None:
        """Creates the array over the contents of the drives. If ``degraded``, it is created without
        absent drives."""
        layout = self.layout
        options: dict[str, Any] = {"spans": layout.spans} if layout.spans > 1 else {}
        if degraded:
            options["degraded"] = True
        if layout.copies > 1:
            options["copies"] = layout.copies
        self.number = await raid.create_array(
            self.card.nvme,
            Level[layout.level],
            self.ports,
            strip_kib=layout.strip_blocks * BLOCK_BYTES // 1024,
            rotation=rotation_of(layout),
            assume_consistent=not initialise and not zero,
            zero=zero,
            **options,
        )
        self.consistent = not initialise

    def logical(self, block: int) -> tuple[Volume, int, int] | None:
        """The volume of a block of the array, the number of its first logical block there, and how
        many it has."""
        for volume in self.volumes:
            if 0 <= block - volume.start < volume.blocks:
                sectors = BLOCK_BYTES // volume.sector_bytes
                return volume, (block - volume.start) * sectors, sectors
        return None

    def store_consistent(self) -> None:
        """Stores random data with its redundancy on the drives."""
        random_blocks = [self.card.random.randbytes(BLOCK_BYTES) for _ in range(self.blocks)]
        for port, area in zip(
            self.ports, members(self.layout, self.rows, random_blocks), strict=True
        ):
            for row, data in enumerate(pieces(area, BLOCK_BYTES)):
                self.card.store(port, row, data)

    def held(self, block: int) -> set[bytes]:
        """The contents that the drives hold of a block of the array, of each copy."""
        return {
            self.card.stored(self.ports[place.position], place.row)
            for place in self.layout.copies_of(block)
        }

    def snapshot(self) -> list[set[bytes]]:
        """The values that each block of the array may be read as."""
        return [self.held(block) for block in range(self.blocks)]

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges of its future volumes: start and blocks."""
        if "volumes" not in self.features or self.blocks < 4 or self.choose.random() < 0.5:
            return [(0, self.blocks)]
        cut = self.choose.randrange(1, self.blocks)
        gap = self.choose.randrange(min(3, self.blocks - cut))
        return [(0, cut), (cut + gap, self.blocks - cut - gap)]

    async def create_volume(
        self, start: int, blocks: int, sector_bytes: int, contents: list[set[bytes]]
    ) -> Volume:
        """Creates a volume over blocks of which the drives hold one of these contents."""
        namespace = await raid.create_volume(
            self.card.nvme, self.number, start, blocks, sector_bytes=sector_bytes
        )
        size = await self.card.nvme.namespace(namespace)
        assert (size.blocks * size.block_bytes, size.block_bytes) == (
            blocks * BLOCK_BYTES,
            sector_bytes,
        ), f"{self}: {size}"
        volume = Volume(self, namespace, start, blocks, sector_bytes, contents)
        self.volumes.append(volume)
        return volume

    async def create_volumes(self, contents: list[set[bytes]]) -> None:
        """Creates volumes over all of the array, and flushes. Their contents are then durable."""
        config = self.card.config
        for start, blocks in self.ranges():
            sectors = "sectors" in self.features and config.sector_emulation
            size = self.choose.choice((BLOCK_BYTES, SECTOR_BYTES)) if sectors else BLOCK_BYTES
            volume = await self.create_volume(start, blocks, size, contents[start : start + blocks])
            assert await volume.flush() == 0

    async def initialised(self) -> None:
        """Returns when the job that began with the array has ended. It has its redundancy then."""
        job = await self.job_ends()
        assert (job.kind, job.state) == (WalkKind.RESYNC, JobState.DONE), job
        self.consistent = True

    # What the card says

    async def state(self) -> raid.Array:
        """The array as the card lists it."""
        for array in await raid.arrays(self.card.nvme):
            if array.number == self.number:
                return array
        raise AssertionError(f"{self}: the card has no array {self.number}")

    async def job(self) -> background.Job:
        """The last job of the array."""
        return await background.job(self.card.nvme, self.number)

    async def stop_job(self) -> background.Job:
        """Stops the job, unless it has ended by itself before. Returns the job."""
        try:
            await background.stop_job(self.card.nvme, self.number)
        except NvmeError as error:
            if error.status != NO_ENTRY:
                raise
        return await self.job()

    async def job_ends(self) -> background.Job:
        """Waits until the job no longer runs. Returns the job."""
        most, began = self.job_ns(), self.card.harness.now_ns
        job = await self.job()
        while job.state == JobState.RUNNING:
            self._in_time(began, most, f"a job has no end: {job}")
            await self._poll(began, began + most)
            job = await self.job()
        return job

    def _in_time(self, began_ns: float, most_ns: float, text: str) -> None:
        """Fails if background work has taken longer than it may."""
        outcome, took = self.card.outcome, self.card.harness.now_ns - began_ns
        outcome.slowest_job = max(outcome.slowest_job, took / most_ns)
        if took > most_ns:
            raise Stuck(
                f"{self}: {text}: it has taken {took / 1e6:.2f} ms, and may take"
                f" {most_ns / 1e6:.2f} ms, with faults of {len(self.troubled)} of its drives"
            )

    async def _poll(self, began_ns: float, until_ns: float) -> None:
        """Waits before the next look at what is waited for: the longer it has lasted, the longer,
        since each look is some 1,000 cycles to simulate. The last look is right after its end."""
        now = self.card.harness.now_ns
        longest = min((now - began_ns) / POLLS_A_WAIT, until_ns - now)
        await self.card.sleep(max(POLL_NS, longest))

    async def rest(self) -> None:
        """Called when every fault has happened and the array is idle. Then the card must report
        what is true."""
        card = self.card
        await card.sleep(2 * POLL_NS)
        for port in self.ports:
            card.harness.drive_fault(port, 0)
        for port, row in sorted(self.refused):
            card.harness.accept_writes(port, DATA_OFFSET_BLOCKS + row)
        self.refused.clear()
        await card.rests(self.ports)
        await self._had_again()
        await self.reconcile()
        self.troubled.clear()
        if self.choose.random() < 0.5:
            self.cure()

    async def _had_again(self) -> None:
        """Returns when drives that have begun anew have been brought up to date by the card."""
        card, ports, forgot = self.card, self.restarted, self.forgot - self.restarted
        self.restarted, self.forgot = set(), set()
        if not card.config.background:
            return
        most, began = self.job_ns(), card.harness.now_ns
        while ports or forgot:
            members = (await self.state()).members
            ports &= {m.port for m in members if m.failed or m.stale}
            forgot &= {m.port for m in members if m.failed or m.stale}
            if ports or forgot & {m.port for m in members if m.stale}:
                self._in_time(began, most, f"{ports | forgot} are not had again")
            elif card.harness.now_ns > began + most:
                return  # given up
            await self._poll(began, began + most)
            card.outcome.seen["waits for drives that began anew"] += bool(ports)

    async def reconcile(self) -> None:
        """Takes over the changes that the card has made by itself. No member may be failed without
        a fault."""
        card = self.card
        if card.config.background:
            job = await self.job_ends()
            assert not (self.redundant and self.budget.tolerated() and job.lost), f"{self}: {job}"
        array = await self.state()
        gone: set[int] = set()
        for position, member in enumerate(array.members):
            if member.port != self.ports[position]:
                assert member.port in self.spares, f"{self}: {member} has stepped in"
                self.spares.discard(member.port)
                # It was pulled, or given up.
                card.unusable.add(self.ports[position])
                self.ports[position] = member.port
                self.budget.bad = {bad for bad in self.budget.bad if bad[0] != position}
                card.outcome.seen["spares stepped in"] += 1
            if member.failed or member.stale:
                gone.add(position)
        failed = {self.ports[position] for position in gone}
        card.outcome.seen["drives failed"] += len(failed - self.failed)
        self.failed = failed
        card.unusable |= failed
        innocent = gone - self.budget.drives
        assert not innocent, f"{self}: positions {innocent} are failed without a fault"
        # Drives that were pulled are gone, even if the card reports otherwise.
        self.budget.drives = gone | {
            position for position, port in enumerate(self.ports) if port in card.unusable
        }

    def cure(self) -> None:
        """The drives have found other places for the blocks that they could not read."""
        for position, row in sorted(self.budget.bad):
            self.card.harness.clear_medium_error(self.ports[position], DATA_OFFSET_BLOCKS + row)
        self.budget.bad = set()

    # Load

    async def load(
        self,
        *,
        share: float = 1.0,
        writes: tuple[float, ...] = (0.2, 0.5, 0.9),
        allowed: Container[int] | None = None,
        crowd: float = 0.0,
    ) -> None:
        """Random load on all its volumes.

        ``share`` is the share of a round's load. ``writes`` is the share of writes. ``crowd`` is
        how many commands are sent beyond the card's command slots, so that some wait in the inbox
        and in the queues. No command waits for a queue outside the card.
        """
        choose = self.choose
        config = self.card.config
        crowded = crowd > 0
        most = config.queue_pairs * (config.queue_depth - 1)
        each = int(crowd * min(config.commands + CROWD, most)) // max(1, len(self.volumes))
        # As many on each queue: one that waits for room would be sent once its volume is another.
        each -= each % config.queue_pairs
        await self.card.together(
            volume.load(
                random.Random(choose.random()),
                max(2 * each * crowded, 4, int(share * choose.randint(20, 50) / len(self.volumes))),
                workers=each if crowded else choose.choice((1, 4, 12)),
                in_turn=crowded,
                writes=choose.choice(writes),
                longest=min(
                    CROWDED_BLOCKS if crowded else choose.choice((4, 16, 32)),
                    config.transfer_blocks,
                ),
                allowed=self.allowed() if allowed is None else allowed,
            )
            for volume in self.volumes
        )

    # The end

    def check(self) -> None:
        """Checks every block where the layout says, and every row's parity as ISA-L computes it.

        Blocks of drives that are gone are worked out from the others.
        """
        assert all(volume.model.idle for volume in self.volumes)
        layout = self.layout
        if layout.parities:
            for span in range(layout.spans):
                for row in range(self.rows):
                    positions = range(span * layout.width, (span + 1) * layout.width)
                    held = [self._stored(position, row) for position in positions]
                    for block, data in checked_row(layout, span, row, held):
                        self._check_block(block, data)
            return
        for block in range(self.blocks):
            places = layout.copies_of(block)
            copies = {self._stored(place.position, place.row) for place in places} - {None}
            assert len(copies) <= 1, f"{self}: copies of block {block} differ"
            for data in copies:
                assert data is not None
                self._check_block(block, data)

    def _stored(self, position: int, row: int) -> bytes | None:
        port = self.ports[position]
        return None if port in self.card.unusable else self.card.stored(port, row)

    def _check_block(self, block: int, data: bytes) -> None:
        for volume in self.volumes:
            if 0 <= block - volume.start < volume.blocks:
                volume.check(block, data)
