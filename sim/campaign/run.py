"""One run of a campaign: a random array under random load, while its drives fail at random times.

The load is checked against the golden model as it goes. Faults are chosen so that the level
tolerates all of them at once; at the end of a run some go past that. In the end every row's parity
and every copy must be right on the drives, and every block what was written.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from cocotb_tests.array_models import random_layout
from cocotb_tests.native_card import PORTS, Card, Volume
from hdl.array.interface import ArrayState, Level
from hdl.background.interface import WalkKind
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, SECTOR_BYTES
from hdl.drive.ladder import longest_ms
from sim.campaign.budget import Budget
from sim.campaign.sizes import SIZES
from sim.golden.nvme import UNRECOVERED_READ
from sim.native.parameters import MICROSECOND, Ideal, Ssd, link_rate
from sw.driver import background, raid

LONGEST_STRIP = 8
ROUNDS = 5
COMMANDS = (20, 50)
"""Of a round, least and most."""

FAULTS = (4, 8)
MOST_MEMBERS = 8
FAULT_TIME_NS = 120_000
"""Faults happen at any time of the first so many nanoseconds of a round."""

STUCK_NS = 24 * longest_ms(SIZES) * 1_000_000
"""Longer than any command may take: every attempt at an operation of every phase of a row."""


class Stuck(AssertionError):
    """No command has ended for a time in which all should have."""


@dataclass(kw_only=True)
class Outcome:
    """What has happened in a run: faults by kind, and what the drives have seen of them."""

    title: str
    faults: Counter = field(default_factory=Counter)
    seen: Counter = field(default_factory=Counter)
    commands: int = 0


class Run:
    """A run on a card of its own.

    Parameters
    ----------
    seed
        Of everything.
    tamper
        Changes a block of a drive before the last check, which must find it.
    """

    def __init__(self, seed: int, *, tamper: bool = False):
        self._random = random.Random(f"{seed}/campaign")
        self._tamper = tamper
        choose = self._random
        layout = random_layout(choose, drives=MOST_MEMBERS)
        while layout.strip_blocks > LONGEST_STRIP:
            layout = random_layout(choose, drives=MOST_MEMBERS)
        self._layout = layout
        self._ports = sorted(choose.sample(range(PORTS), layout.drives))
        rows = layout.strip_blocks * choose.randint(1, 24 // layout.strip_blocks)
        capacity = DATA_OFFSET_BLOCKS + rows
        kind = choose.choice(
            (
                Ideal(capacity=capacity, latency_ps=choose.choice((1, 5, 20)) * MICROSECOND),
                Ssd(capacity=capacity, rate=link_rate(12), dies=4),
            )
        ).changed(volatile_cache=True)
        self._card = Card([kind] * PORTS, seed=seed, config=SIZES, quiet=True)
        rows = layout.rows([capacity] * layout.drives)
        self._budget = Budget(layout, rows)
        # A volume of 512-byte sectors is as good as any.
        self._sector_bytes = random.Random(f"{seed}/sectors").choice((BLOCK_BYTES, SECTOR_BYTES))
        self._redundant = layout.parities > 0 or layout.copies > 1
        self._copies = random.Random(f"{seed}/copies")
        self._touched: set[int] = set()
        self._failed: set[int] = set()
        title = f"{layout.level} {layout.drives} drives"
        if layout.spans > 1:
            title += f", {layout.spans} spans"
        if layout.parities:
            title += f", {layout.rotation}"
        if layout.copies > 1:
            title += f", {layout.copies} copies"
        if self._sector_bytes == SECTOR_BYTES:
            title += ", sectors"
        self.outcome = Outcome(title=f"{title}, strips of {layout.strip_blocks}, {rows} rows")
        self._done = False

    def run(self) -> Outcome:
        """The whole run; raises `AssertionError` when anything is lost, stuck or wrong."""
        with self._card as card:
            volume = card.run(self._main())
            if self._tamper:
                self._change_a_block(volume)
            card.finish(volume)
            if self._random.random() < 0.5:
                card.run(self._past_tolerance(volume))
                card.finish()
            for port in range(PORTS):
                counters = card.harness.drive_statistics(port)
                for name in ("faults", "errors", "aborts", "resets"):
                    self.outcome.seen[name] += counters[name]
        return self.outcome

    async def _main(self) -> Volume:
        card, layout = self._card, self._layout
        card.card.transport.spawn(self._watch())
        options = {"spans": layout.spans} if layout.spans > 1 else {}
        if layout.copies > 1:
            options["copies"] = layout.copies
        volume = await card.create(
            Level[layout.level],
            self._ports,
            strip_blocks=layout.strip_blocks,
            rotation=layout.rotation,
            sector_bytes=self._sector_bytes,
            **options,
        )
        for _ in range(ROUNDS):
            await self._round(volume)
        await card.read_all(volume, allowed=self._allowed())
        self._done = True
        return volume

    def _allowed(self) -> tuple[int, ...]:
        """Statuses that commands may end with."""
        return (0,) if self._budget.tolerated() else (0, UNRECOVERED_READ)

    async def _round(self, volume: Volume) -> None:
        card, choose = self._card, self._random
        for _ in range(choose.randint(*FAULTS)):
            self._choose_fault(volume)
        longest = choose.choice((4, 16, 32))
        count = choose.randint(*COMMANDS)
        statuses = await card.load(
            volume,
            count,
            workers=choose.choice((1, 4, 12)),
            writes=choose.choice((0.2, 0.5, 0.9)),
            longest=min(longest, len(volume.model) * self._sector_bytes // BLOCK_BYTES),
            allowed=self._allowed(),
        )
        self.outcome.commands += len(statuses)
        # Every fault has happened, and what it does is over.
        await card.card.transport.sleep(2 * FAULT_TIME_NS)
        for port in self._ports:
            card.harness.drive_fault(port, 0)
        await self._rests()
        if choose.random() < 0.6:
            self._cure()
        (array,) = await raid.arrays(card.nvme)
        failed = {member.port for member in array.members if member.failed}
        self.outcome.seen["drives failed"] += len(failed - self._failed)
        self._failed = failed
        card.gone |= failed
        gone = {self._ports.index(port) for port in card.gone & {*self._ports}}
        assert gone <= self._budget.drives, f"failed without a fault: {gone - self._budget.drives}"
        self._budget.drives = gone
        if self._redundant and gone and choose.random() < 0.5:
            position = choose.choice(sorted(gone))
            back = choose.random() < 0.5
            await (self._take_back if back else self._replace)(volume, position)
        if self._copies.random() < 0.4:
            await self._copy(volume)

    async def _rests(self) -> None:
        """Returns when the drives have ended every command, those too that no host waits for."""
        statistics, sleep = self._card.harness.drive_statistics, self._card.card.transport.sleep
        for _ in range(int(STUCK_NS / FAULT_TIME_NS)):
            if not any(statistics(port)["outstanding"] for port in self._ports):
                return
            await sleep(FAULT_TIME_NS)
        raise Stuck(f"a drive has had a command for {STUCK_NS / 1e6:.0f} ms")

    async def _copy(self, volume: Volume) -> None:
        """A live member moves to a free drive under load; one of the two may go meanwhile."""
        card, choose, budget = self._card, self._copies, self._budget
        free = [port for port in range(PORTS) if port not in self._ports and port not in card.gone]
        live = [p for p in range(self._layout.drives) if p not in budget.drives]
        if not free or not live:
            return
        position, port = choose.choice(live), choose.choice(free)
        old = self._ports[position]
        if not self._redundant:
            # What is lost in the copying must not come back as what the new drive had before.
            self._cure()
        for row in range(volume.rows):
            card.store(port, row, choose.randbytes(BLOCK_BYTES))
        await background.copy_member(card.nvme, 0, position, port, spare=False)
        pulled = choose.choice((None, None, old, port))
        if pulled is not None and self._redundant and budget.admits(drives=[position]):
            card.card.transport.spawn(self._fault(pulled, "leave"))
            self.outcome.faults["pull of a copy"] += 1
        else:
            pulled = None
        blocks = len(volume.model) * self._sector_bytes // BLOCK_BYTES
        statuses = await card.load(
            volume, COMMANDS[0], longest=min(16, blocks), allowed=self._allowed()
        )
        self.outcome.commands += len(statuses)
        await card.card.transport.sleep(2 * FAULT_TIME_NS)
        job = await background.job(card.nvme, 0)
        while job.state == JobState.RUNNING:
            await card.card.transport.sleep(FAULT_TIME_NS)
            job = await background.job(card.nvme, 0)
        assert job.state == JobState.DONE or (job.kind == WalkKind.COPY and pulled == port), job
        assert not (self._redundant and job.lost), job
        (array,) = await raid.arrays(card.nvme)
        member = array.members[position]
        moved = job.state == JobState.DONE
        assert member.port == (port if moved else old), (job, member)
        assert member.failed == (member.port == pulled), (job, member)
        self._ports[position] = volume.ports[position] = member.port
        if moved:
            self._failed.discard(old)
            self.outcome.seen["members moved"] += 1
        if moved and self._redundant:
            budget.bad = {bad for bad in budget.bad if bad[0] != position}
        if not member.failed:
            budget.drives.discard(position)

    async def _replace(self, volume: Volume, position: int) -> None:
        """A drive of no array takes the place of a failed one, and is rebuilt under load."""
        card = self._card
        free = [port for port in range(PORTS) if port not in self._ports and port not in card.gone]
        if not free:
            return
        if await self._past_help():
            return
        old, port = self._ports[position], free[0]
        for row in range(volume.rows):
            card.store(port, row, self._random.randbytes(BLOCK_BYTES))
        await background.replace_member(card.nvme, 0, position, port)
        await self._rebuilt(volume)
        self._ports[position] = volume.ports[position] = port
        self._failed.discard(old)
        self._budget.drives.discard(position)
        self._budget.bad = {bad for bad in self._budget.bad if bad[0] != position}
        self.outcome.seen["drives rebuilt"] += 1

    async def _take_back(self, volume: Volume, position: int) -> None:
        """A failed drive is there again, and rebuilt under load where it missed something."""
        card, port = self._card, self._ports[position]
        if await self._past_help():
            return
        card.harness.insert(port)
        await background.re_add(card.nvme, 0, position)
        await self._rebuilt(volume)
        card.gone.discard(port)
        self._failed.discard(port)
        self._budget.drives.discard(position)
        self.outcome.seen["drives taken back"] += 1

    async def _past_help(self) -> bool:
        """Whether the card says that the array has failed."""
        (array,) = await raid.arrays(self._card.nvme)
        if array.state != ArrayState.FAILED:
            return False
        # Of mirrors that are a single stripe: the card counts strips that have no room in it.
        assert self._layout.copies > 1, array
        return True

    async def _rebuilt(self, volume: Volume) -> None:
        """The rebuild ends well under load."""
        card = self._card
        blocks = len(volume.model) * self._sector_bytes // BLOCK_BYTES
        statuses = await card.load(volume, COMMANDS[0], longest=min(16, blocks))
        self.outcome.commands += len(statuses)
        job = await background.job(card.nvme, 0)
        while job.state == JobState.RUNNING:
            await card.card.transport.sleep(FAULT_TIME_NS)
            job = await background.job(card.nvme, 0)
        assert (job.state, job.lost) == (JobState.DONE, 0), job

    # Faults

    def _choose_fault(self, volume: Volume) -> None:
        kind = self._random.choice(
            ("medium", "medium", "hang", "hang at end", "deaf", "late", "pull", "lasting")
        )
        if kind == "medium":
            self._choose_medium(volume)
            return
        position = self._random.randrange(self._layout.drives)
        if position in self._budget.drives:
            return
        if not self._redundant:
            # What passes, once a drive: a second attempt must do.
            if position in self._touched or kind not in ("hang", "deaf"):
                return
        elif not self._budget.admits(drives=[position]):
            return
        self._touched.add(position)
        self.outcome.faults[kind] += 1
        self._card.card.transport.spawn(self._fault(self._ports[position], kind))

    def _choose_medium(self, volume: Volume) -> None:
        """Unreadable blocks, until they are written, each in a row that tolerates it."""
        for _ in range(self._random.randint(2, 6)):
            position = self._random.randrange(self._layout.drives)
            row = self._random.randrange(volume.rows)
            if (position, row) in self._budget.bad or position in self._budget.drives:
                continue
            if not self._redundant:
                self._budget.bad.add((position, row))
            elif not self._budget.admits(bad=[(position, row)]):
                continue
            self.outcome.faults["medium"] += 1
            self._card.card.transport.spawn(self._spoil(self._ports[position], row))

    def _cure(self) -> None:
        """The drives have found other places for what they could not read."""
        for position, row in sorted(self._budget.bad):
            port = self._ports[position]
            self._card.harness.clear_medium_error(port, DATA_OFFSET_BLOCKS + row)
        self._budget.bad = set()

    async def _later(self) -> None:
        await self._card.card.transport.sleep(self._random.uniform(0, FAULT_TIME_NS))

    async def _spoil(self, port: int, row: int) -> None:
        await self._later()
        self._card.harness.medium_error(port, DATA_OFFSET_BLOCKS + row)

    async def _fault(self, port: int, kind: str) -> None:
        await self._later()
        harness = self._card.harness
        few = self._random.randint(1, 3) if self._redundant else 1
        if kind == "hang":
            harness.drive_fault(port, few)
        elif kind == "hang at end":
            harness.drive_fault(port, few, at_end=True, deaf=self._random.random() < 0.3)
        elif kind == "deaf":
            harness.drive_fault(port, deaf=True)
        elif kind == "late":
            delay = self._random.uniform(10_000, 1.2 * longest_ms(SIZES) * 1_000_000)
            harness.drive_fault(port, few, delay_ns=delay)
        elif kind == "lasting":
            harness.drive_fault(port, deaf=self._random.random() < 0.5, lasting=True)
        else:
            self._card.pull(port)
            if kind == "pull" and self._random.random() < 0.5:
                # It comes back, with what it held: its array must not use it.
                await self._later()
                harness.insert(port)
                self.outcome.faults["return"] += 1

    # Past what the level tolerates

    async def _past_tolerance(self, volume: Volume) -> None:
        """One drive after the other goes, until some blocks are lost: exactly those fail."""
        card, budget = self._card, self._budget
        left = [p for p in range(self._layout.drives) if p not in budget.drives]
        self._random.shuffle(left)
        while budget.tolerated() and len(left) > 1:
            position = left.pop()
            budget.drives.add(position)
            card.pull(self._ports[position])
            self.outcome.faults["past tolerance"] += 1
        address = card.buffer(1)
        for block in self._random.sample(
            range(len(volume.model)), min(40, len(volume.model))
        ):
            status = await card.read(volume, block, 1, address)
            if budget.readable(block * self._sector_bytes // BLOCK_BYTES):
                assert status == 0, f"block {block} can be read, but ends with {status:#x}"
            else:
                assert status in (0, UNRECOVERED_READ), f"block {block}: status {status:#x}"
                self.outcome.seen["lost blocks refused"] += status != 0

    # The whole

    async def _watch(self) -> None:
        while not self._done:
            before = len(self._card.ends_ns)
            await self._card.card.transport.sleep(STUCK_NS)
            if len(self._card.ends_ns) == before and not self._done:
                raise Stuck(f"no command has ended for {STUCK_NS / 1e6:.0f} ms")

    def _change_a_block(self, volume: Volume) -> None:
        port = next(port for port in volume.ports if port not in self._card.gone)
        row = self._random.randrange(volume.rows)
        data = bytearray(self._card.stored(port, row))
        data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        self._card.store(port, row, bytes(data))
