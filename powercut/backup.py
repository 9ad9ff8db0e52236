"""A card with a backup unit loses its power again and again, with a warning or without one."""

import random
from collections.abc import Callable
from dataclasses import replace

from amaranth.lib import wiring

from hdl.config import BLOCK_BYTES, Config
from powercut.lives import (
    CONFIG,
    DRIVE,
    DRIVE_UNAVAILABLE,
    PARITY,
    POLL_NS,
    START_NS,
    TOLERATED,
    Known,
    Lives,
)
from powercut.marks import REDUNDANT, sets, torn_rows
from sim.golden.redo import Record, named, read, replayed
from sw.driver import raid
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError

BACKUP = replace(CONFIG, ports=7, lines=128, backup_blocks=160, backup_wait_ms=1)
"""The card: the same with a flash at one port more."""

FLASH = BACKUP.backup_port
OVERHEAD = BACKUP.backup_overhead
LEAST = BACKUP.least_backup_blocks

SAVE_NS = 300_000
"""How long a save takes at most that is cut."""

DRIVES_NS = 4_000
"""How long drives have power at most that lose it before the flash."""

SAVED_NS = 20_000_000
"""After that the record must be saved."""

STEP_NS = 500
RETURN_NS = 10_000_000
"""How long the host waits at most for an array whose last drive is there again."""

FEW = {
    "warning": 0.8,
    "cache off": 0.7,
    "cut save": 0.25,
    "drives first": 0.5,
    "little energy": 0.2,
    "no energy": 0.05,
    "no flash": 0.08,
    "late flash": 0.1,
    "lost drive": 0.35,
}
"""How likely these things are in a life."""


class BackupLives(Lives):
    """Lets a card with a backup unit live and die by a seed.

    Most times the card is warned before the power goes. Then it saves the redo record, unless the
    power of the flash goes as well before it has. Drives may lose their power as soon as the card
    is warned. When power comes a drive may be gone, or the flash.

    What the record promises is held against what the card makes of it. If a record covers an array,
    the array comes up without a RESYNC. If a drive is gone by then, the host can import it as it
    is. In any case rows are consistent if the card says so, whatever the record promised.
    """

    def __init__(self, seed: int, *, component: Callable[[], wiring.Component] | None = None):
        super().__init__(seed, component=component)
        self._chance = random.Random(f"{seed}/backup")
        self._energy = 0
        self._has_flash = True

    @property
    def config(self) -> Config:
        """The sizes of the card."""
        return BACKUP

    @property
    def ports(self) -> range:
        """Ports that have drives of arrays."""
        return range(FLASH)

    def _has(self, what: str) -> bool:
        return self._chance.random() < FEW[what]

    # The power goes

    def lose_power(self, card: SimulatedCard) -> None:
        """The power goes, perhaps after a warning."""
        harness = card.harness
        before = harness.image(FLASH)
        if self._has("warning"):
            self._warn(card)
            after = harness.image(FLASH)
            if harness.saved and after != before:
                self._check_energy(after)
        else:
            self.seen["cuts without a warning"] += 1
        if self._energy < LEAST:
            assert harness.image(FLASH) == before, "a record was saved without energy"
        harness.power_loss()

    def _warn(self, card: SimulatedCard) -> None:
        """The card saves what it must, or the power goes before. The host has no power any more."""
        harness, chance = card.harness, self._chance
        harness.fail_power()
        now = harness.now_ns
        cut = self._has("cut save")
        ends = now + (chance.uniform(0, SAVE_NS) if cut else SAVED_NS)
        drives_end = now + chance.uniform(0, DRIVES_NS) if self._has("drives first") else ends
        works = self._has_flash and self._energy >= LEAST
        if not works:
            ends = min(ends, now + SAVE_NS)
        gone = False
        while harness.now_ns < ends and not harness.saved:
            if not gone and harness.now_ns >= drives_end:
                harness.power_loss(self.ports)
                gone = True
            harness.run(harness.now_ns + STEP_NS)
        if harness.saved:
            self.seen["saves"] += 1
            self.seen["saves while drives had no power"] += gone
        else:
            assert cut or not works, "the record has not been saved"
            self.seen["saves that were cut" if works else "cards that could not save"] += 1

    def _check_energy(self, flash: dict[int, bytes]) -> None:
        """The record is no larger than the energy allows."""
        record = read(flash, overhead=OVERHEAD)
        if record is not None:
            blocks = len(record.blocks)
            assert OVERHEAD + blocks <= self._energy, f"{blocks} with {self._energy}"
            self.seen["blocks saved"] += blocks

    # The power comes

    def _record(self) -> Record | None:
        """What the flash holds, while there is no power."""
        return read(self.images[FLASH], overhead=OVERHEAD) if self._has_flash else None

    def _is_covered(self, record: Record | None, array: Known) -> bool:
        """The record covers an array, and its drives are as they were."""
        if record is None or not array.created or array.deleted:
            return False
        members = [record.members.get(port) for port in array.ports]
        known = [one for one in members if one is not None]
        if len(known) < len(members) - len(array.lost) or not known:
            return False
        as_they_were = all(
            one is None or one.name == named(self.page(port))
            for port, one in zip(array.ports, members, strict=True)
        )
        numbers = {one.array for one in known}
        return as_they_were and len(numbers) == 1 and record.covered(numbers.pop())

    def _victim(self) -> tuple[Known, int] | None:
        """An array and the role of a drive that is gone when power comes, if one is."""
        chance = self._chance
        fit = [
            array
            for array in self.arrays
            if array.created
            and not (array.deleted or array.lost or array.others or array.healing)
            and TOLERATED.get(array.level)
        ]
        if not self._has("lost drive") or not fit:
            return None
        array = chance.choice(fit)
        return array, chance.randrange(len(array.ports))

    async def _start(self, card: SimulatedCard) -> None:
        """The host enables the card, which may have a flash and energy, or not."""
        harness, chance = card.harness, self._chance
        self._energy, self._has_flash = 1 << 20, True
        if self._has("no energy"):
            self._energy = LEAST - 1
        elif self._has("little energy"):
            self._energy = LEAST + chance.randrange(LEAST)
        harness.set_energy(self._energy)
        if self._has("no flash"):
            harness.remove(FLASH)
            self._has_flash = False
            self.seen["cards without a flash"] += 1
        elif self._has("late flash"):
            harness.remove(FLASH)
            late = chance.choice((chance.uniform(0, 0.9), chance.uniform(1.1, 1.5)))
            card.transport.spawn(self._insert_flash(card, late * BACKUP.backup_wait_ms * 1e6))
        await card.nvme.start(queue_pairs=1)

    async def _insert_flash(self, card: SimulatedCard, late_ns: float) -> None:
        self._has_flash = late_ns < BACKUP.backup_wait_ms * 1e6
        await card.transport.sleep(late_ns)
        card.harness.insert(FLASH)
        self.seen["flashes that came late"] += 1

    async def _wake(self, card: SimulatedCard) -> None:
        """What must be there is there, and consistent where the card says so."""
        victim = self._victim()
        if victim:
            array, role = victim
            card.harness.remove(array.ports[role])
        await self._start(card)
        record = self._record()
        covered = {id(one) for one in self.arrays if self._is_covered(record, one)}
        self.seen["arrays that were covered"] += len(covered)
        if record and covered:
            gone = victim[0].ports[victim[1]] if victim else None
            self._check_replay(card, record, gone)
        if victim:
            await self._import(card, *victim, id(victim[0]) in covered)
        await self.look(card)
        for one in await raid.arrays(card.nvme):
            for array in self.arrays:
                if array.number == one.number and id(array) in covered:
                    assert one.in_sync, f"{array} is covered, and is made consistent"
        await self._check_rows(card)
        for array in self.arrays:
            array.clean = False
        if self._has("cache off"):
            await card.nvme.set_write_cache(on=False)
            self.seen["lives without a write cache"] += 1

    def _check_replay(self, card: SimulatedCard, record: Record, gone: int | None) -> None:
        """Blocks of the record are on the drives that they belong to, if their array is covered.
        Others may have been worked out anew."""
        here = {port: self.images[port] for port in self.ports if port != gone}
        for (port, block), one in replayed(record, here).items():
            if record.covered(one.array):
                assert card.harness.read_drive(port, block) == one.data, f"{block} of {port}"
                self.seen["blocks replayed"] += 1
                lacked = here[port].get(block, bytes(BLOCK_BYTES)) != one.data
                self.seen["blocks that drives lacked"] += lacked

    async def _import(
        self, card: SimulatedCard, array: Known, role: int, covered: bool
    ) -> None:
        """The host wants an array that lacks a drive. If it cannot have it, the drive comes."""
        other = next(port for port in array.ports if port != array.ports[role])
        try:
            await raid.import_array(card.nvme, other, degraded=True)
        except NvmeError as error:
            if error.status != DRIVE_UNAVAILABLE or covered:
                raise
            if array.level not in PARITY or array.clean:
                raise
            self.seen["arrays that were doubtful"] += 1
            card.harness.insert(array.ports[role])
            until = card.harness.now_ns + RETURN_NS
            while not any(self._is(array, one) for one in await raid.arrays(card.nvme)):
                assert card.harness.now_ns < until, f"{array} does not come back"
                await card.transport.sleep(POLL_NS)
            await card.transport.sleep(START_NS)  # its volumes come after it
            return
        array.lost = {role}
        self.seen["arrays imported without a drive"] += 1
        self.seen["arrays imported without a drive that were covered"] += covered

    async def _check_rows(self, card: SimulatedCard) -> None:
        """Rows of arrays that are in sync are consistent."""
        for one in await raid.arrays(card.nvme):
            if not one.in_sync:
                continue
            images = [card.harness.image(port) for port in self.ports]
            own = {member.port for member in one.members}
            for found in sets(images, DRIVE.capacity):
                ports = set(found.members.values())
                if found.freshest.level in REDUNDANT and ports and ports <= own:
                    torn = torn_rows(found, images)
                    assert not torn, f"{one}: rows {sorted(torn)} are torn"
                    self.seen["arrays whose rows were consistent"] += 1
