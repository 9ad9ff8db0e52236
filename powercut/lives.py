"""A card that loses its power again and again, and what its drives must still hold."""

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

from amaranth.lib import wiring

from campaign.links import placed
from hdl.background.jobs import JobState
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, Config
from hdl.flow.array_state import ArrayState
from hdl.flow.geometry import Level
from hdl.metadata.superblock import BLOCK as SUPERBLOCK
from powercut.marks import check_marks
from sim.native.parameters import MICROSECOND, Ideal, LinkParameters
from sw.driver import background, raid
from sw.driver.card import MEMORY_BYTES, SimulatedCard
from sw.driver.commands import JOB_RUNNING, NvmeError
from sw.driver.nvme import Register

ROWS = 16
CONFIG = Config(
    data_width=128,
    ports=6,
    lines=64,
    banks=4,
    commands=32,
    rows=32,
    operations=128,
    drive_tags=8,
    read_tags=16,
    queue_pairs=1,
    queue_depth=32,
    arrays=2,
    volumes=4,
    transfer_blocks=8,
    walk_window=4,
    intent_chunks=32,
    marks_kept_us=30,
    marks_idle_us=60,
    checkpoint_us=60,
    command_timeout_ms=3,
    abort_timeout_ms=1,
    metadata=True,
)
"""The card: small, so that it is built and runs quickly."""

DRIVE = Ideal(capacity=DATA_OFFSET_BLOCKS + ROWS, latency_ps=5 * MICROSECOND, volatile_cache=True)
IDENTITY = 0x5354_5249_4154_4101

IN_USE, DRIVE_UNAVAILABLE = 0x1C2, 0x1C0
"""Status of a change that is refused: the member has not failed, or the array is there; the drive
is not there, or is used."""

ENABLED = 0x0046_0001
SHUT_DOWN = 1 << 14
COMPLETE = 2
LATENCIES = 1 * MICROSECOND, 10 * MICROSECOND
"""How long a drive takes in a random life. So pages that are sent to all drives get there in any
order."""

LIFE_NS = 600_000
"""How long power is there at most, after the arrays have been looked at."""

LEVELS = {
    Level.JBOD: 1,
    Level.RAID0: 2,
    Level.RAID1: 2,
    Level.RAID5: 3,
    Level.RAID6: 4,
    Level.RAID10: 3,
}
"""Levels, and the fewest drives of each."""

TOLERATED = {Level.RAID1: 1, Level.RAID5: 1, Level.RAID6: 2, Level.RAID10: 1}
"""How many drives those with redundancy can lose for sure."""

MOST = {Level.JBOD: 1, Level.RAID10: 3}
"""Most drives of a level, if that is less than the card has."""

PARITY = (Level.RAID5, Level.RAID6)

TWO_SPANS = 6
"""Drives of a RAID 50 of two spans."""

TAIL = 4
"""Blocks at the end of an array, in which volumes come and go. The first volume has the others."""

IDENTIFY_ALLOCATED, NGUID = 0x11, slice(104, 120)
"""CNS of Identify Namespace, also of one that is not attached, and where its name stands there."""

TURNED = 0.6
"""How often a volume is attached or detached before it is deleted."""

FLUSH_NS = 150_000
"""How long a host that flushes waits at most until it does so again."""

POLL_NS = 20_000
"""How often the host looks whether something has ended."""

START_NS = 300_000
"""How long the card takes at most until it is ready, and the host has looked at it."""

STEPS_IN = 5
"""How often the host looks whether a spare has become a member."""

SOON_NS, STEP_NS = 60_000, 5_000
"""How soon power goes after a drive at most, and how often it is looked whether it goes."""

LEAST_NS = 0.001
"""Less time than that, a picosecond, never passes."""

FEW = {
    "write": 12,
    "refuse": 0.1,
    "pull": 0.4,
    "cut at once": 0.6,
    "cut at start": 0.15,
    "restart": 0.2,
    "spans": 0.5,
    "spare": 0.4,
    "other spare": 0.5,
    "free": 0.6,
    "no spare": 0.3,
    "move": 0.2,
    "replace": 0.4,
    "shutdown": 0.3,
    "delete": 0.1,
    "divide": 0.5,
    "flush": 0.6,
    "cache": 0.4,
    "pause": 0.4,
}
"""How many writes are under way, and how likely the other things are in a life, or of a write."""


@dataclass(eq=False)
class Known:
    """An array that the host has made, and what it has been told about it.

    ``volumes`` are those that the host knows to be there, with their NGUIDs. ``coming`` is what a
    volume is like for which it has asked, and ``going`` are the numbers of those whose end it has
    asked for. ``namespace`` is the one that has the data.

    ``stored`` is the number that each block holds for sure, and ``begun`` are those that it may
    hold instead. ``cached`` is the number of the last write without FUA that has been acknowledged,
    and not been flushed. Blocks that are ``flying`` are being written.

    ``detached`` are the numbers of volumes that the host has detached, and ``turning`` those of
    which it has not been told yet that they are, or that they are not any more.

    ``lost`` are the roles of drives that were pulled. ``missed`` are those of them that do not have
    a write which the host knows to be stored, and ``healing`` those that may have been rebuilt
    since. ``others`` are ports whose drives may have become members.

    ``failed``: more drives have gone than it can lose. ``refused`` counts writes that ended badly.
    ``pauses``: nobody writes.

    ``clean``: the last life ended with a shutdown, and all rows were in sync. ``created``: the host
    knows that it is there. ``deleted``: the host has asked for its end. ``erased``: the host knows
    that it is gone.
    """

    level: Level
    ports: list[int]
    spans: int = 1
    blocks: int = 0
    number: int = 0
    namespace: int = 0
    volumes: dict[raid.Volume, bytes] = field(default_factory=dict)
    coming: set[tuple] = field(default_factory=set)
    going: set[int] = field(default_factory=set)
    detached: set[int] = field(default_factory=set)
    turning: set[int] = field(default_factory=set)
    stored: dict[int, int] = field(default_factory=dict)
    begun: dict[int, set[int]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    flying: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)
    healing: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)
    refused: int = 0
    pauses: bool = False
    failed: bool = False
    clean: bool = False
    created: bool = False
    deleted: bool = False
    erased: bool = False


def contents(block: int, number: int) -> bytes:
    """What the write with this number stores in a block."""
    return struct.pack("<QQ", block, number) * (BLOCK_BYTES // 16)


class Lives:
    """Lets a card live and die by a seed.

    Parameters
    ----------
    seed
        Of everything.
    component
        Another controller than that of ``config``.

    Attributes
    ----------
    images
        What each drive holds, by blocks, while there is no power.
    """

    def __init__(self, seed: int, *, component: Callable[[], wiring.Component] | None = None):
        self.random = random.Random(f"{seed}/lives")
        self._attachments = random.Random(f"{seed}/attachments")
        self.seed = seed
        self._component = component
        self.images: list[dict[int, bytes]] = [{} for _ in range(self.config.ports)]
        self.arrays: list[Known] = []
        self.seen: Counter = Counter()
        # Spares that the host knows of, each with the array that it is for, or None for all of
        # them; those of which it does not know for which; drives that may have been spares since it
        # was looked; those that the host knows to be none.
        self._spares: dict[int, Known | None] = {}
        self._unsure: set[int] = set()
        self._perhaps: set[int] = set()
        self._ordinary: set[int] = set()
        self._numbers = 0
        self._names: set[bytes] = set()  # every NGUID that there has been
        self._until = 0.0  # power is there

    @property
    def config(self) -> Config:
        """The sizes of the card."""
        return CONFIG

    @property
    def ports(self) -> range:
        """Ports that have drives of arrays."""
        return range(self.config.ports)

    @contextmanager
    def power(
        self, *, identity: int = IDENTITY, latencies: Sequence[int] | None = None
    ) -> Iterator[SimulatedCard]:
        """Power is there, and goes at the end without a warning. What drives have not stored may
        be lost then. Drives that were pulled are there the next time, with what they held. Each
        drive takes as long as ``latencies`` says, in picoseconds."""
        self.seen["lives"] += 1
        seed = self.seed + self.seen["lives"]
        latencies = latencies or [DRIVE.latency_ps] * self.config.ports
        with SimulatedCard(
            self.config,
            [replace(DRIVE, latency_ps=one) for one in latencies],
            link=placed(LinkParameters(), random.Random(f"{seed}/memory"), MEMORY_BYTES),
            seed=seed,
            identity=identity,
            component=self._component,
        ) as card:
            harness = card.harness
            for port, image in enumerate(self.images):
                harness.put_image(port, image)
            yield card
            self.lose_power(card)
            self.images = [harness.image(port) for port in range(self.config.ports)]
            self.seen += check_marks(self.images, DRIVE.capacity)

    def lose_power(self, card: SimulatedCard) -> None:
        """The power goes, of everything at once."""
        card.harness.power_loss()

    def branches(self, count: int) -> Iterator[int]:
        """Goes back so often to the drives, and to what the host knows, as they are now."""
        images = self.images
        known = (self.arrays, self._spares, self._unsure, self._perhaps, self._ordinary)
        for number in range(count):
            self.images = [dict(image) for image in images]
            self.arrays, self._spares, self._unsure, self._perhaps, self._ordinary = deepcopy(known)
            yield number

    def page(self, port: int) -> bytes:
        """The superblock's place of a drive, while there is no power."""
        return self.images[port].get(1, bytes(BLOCK_BYTES))

    def live(self) -> None:
        """A life: what must be there is there, then something happens, then power goes."""
        chance = random.Random(f"{self.seed}/drives {self.seen['lives']}")
        latencies = [chance.randint(*LATENCIES) for _ in range(self.config.ports)]
        with self.power(latencies=latencies) as card:
            card.run(self._life(card))

    def wake(self) -> None:
        """What must be there is there, and power goes."""
        with self.power() as card:
            card.run(self._wake(card))

    @staticmethod
    async def _start(card: SimulatedCard) -> None:
        await card.nvme.start(queue_pairs=1)

    async def _wake(self, card: SimulatedCard) -> None:
        await self._start(card)
        await self.look(card)
        for array in self.arrays:
            array.clean = False

    async def _life(self, card: SimulatedCard) -> None:
        if self.random.random() < FEW["cut at start"]:
            for array in self.arrays:
                array.clean = False  # the host may come so far as to enable the card
            card.transport.spawn(self._start(card))
            await card.transport.sleep(self.random.uniform(0, START_NS))
            self.seen["cuts as the card starts"] += 1
            return
        await self._wake(card)
        self._until = card.harness.now_ns + self.random.uniform(0, LIFE_NS)
        card.transport.spawn(self._work(card))
        while (left := self._until - card.harness.now_ns) >= LEAST_NS:
            await card.transport.sleep(min(left, STEP_NS))
        if self.random.random() < FEW["shutdown"]:
            await self.shut_down(card)

    async def _work(self, card: SimulatedCard) -> None:
        await self._make(card)
        for array in self.arrays:
            for _ in range(self.random.randint(1, FEW["write"])):
                card.transport.spawn(self.write(card, array))
            card.transport.spawn(self._trouble(card, array))
            if self.random.random() < FEW["pause"]:
                card.transport.spawn(self._pause(card, array))
            if self.random.random() < FEW["flush"]:
                card.transport.spawn(self._flush(card, array))
            if self.random.random() < FEW["divide"]:
                card.transport.spawn(self._turn_over(card, array))
        card.transport.spawn(self._change_spares(card))

    # What must be there

    async def look(self, card: SimulatedCard) -> None:
        """Finds the arrays that must be there, and what they must hold. There are no others."""
        found = await raid.arrays(card.nvme)
        if any(array.lost for array in self.arrays):
            # A spare was about to become a member as power went, and is neither.
            for port in [port for port in self._spares if not any(self.page(port))]:
                del self._spares[port]
                self.seen["spares that were neither"] += 1
        away: set[int] = set()  # spares that may be members of an array that is not there
        for array in list(self.arrays):
            match = [one for one in found if self._is(array, one)]
            assert len(match) <= 1, (array, match)
            if not match or array.erased:
                assert not match, f"{array} has been deleted, and is there"
                away |= array.others
                self._miss(array)
                continue
            one = match[0]
            found.remove(one)
            self.seen["arrays brought up"] += 1
            self.seen["arrays brought up with spans"] += array.spans > 1
            self.seen["arrays brought up degraded"] += bool(one.missing)
            gone = {n for n, member in enumerate(one.members) if member.failed or member.stale}
            # A loss that was not written down before power went has cost nothing. A spare may have
            # stepped in, also since power came.
            healed = array.lost if self._perhaps & array.others else set()
            assert array.missed - healed <= gone <= array.lost, f"{array} is {one}"
            array.healing = {role for role, member in enumerate(one.members) if member.stale}
            array.lost, array.missed = set(gone), gone - array.healing
            for role, member in enumerate(one.members):
                if member.port in self.ports:
                    array.ports[role] = member.port
            array.others.clear()
            array.number, array.created, array.deleted = one.number, True, False
            await self._look_at_volumes(card, array)
            if not array.namespace:
                await self._divide(card, array, one.blocks)
        assert not found, f"nobody has made {found}"
        await self._look_at_spares(card, away)
        for array in self.arrays:
            await self._settle(card, array)

    async def _look_at_spares(self, card: SimulatedCard, away: set[int]) -> None:
        """Spares are spares, unless they have become members, perhaps of an array that is not there
        (``away``), or theirs is not there. Drives that are none any more are none."""
        before = [*self._spares]
        drives = await raid.drives(card.nvme)
        for _ in range(STEPS_IN):
            # One that is about to become a member is neither for a moment.
            if all(drives[port].spare or drives[port].array is not None for port in self._spares):
                break
            await card.transport.sleep(POLL_NS)
            drives = await raid.drives(card.nvme)
        # The host was not told that they are spares, and they have stepped in since power came.
        stepped_in = {port for port in self._perhaps if drives[port].array is not None}
        for port, array in self._spares.items():
            one = drives[port]
            if array is None or array in self.arrays:
                left_out = one.foreign and port in away
                assert one.spare or one.array is not None or left_out, f"{one} is no spare"
                self.seen["spares that were members of what is not there"] += left_out
                self.seen["spares that were there"] += one.spare
        for port in self._ordinary:
            assert not drives[port].spare, f"{drives[port]} is a spare"
            self.seen["spares that were gone"] += 1
        self._ordinary.clear()
        for one in drives:
            if not one.spare:
                self._spares.pop(one.port, None)
            elif one.port not in self._spares:
                # The host did not know that. It is one for all arrays, to be on the safe side.
                self._spares[one.port] = None
                self._unsure.add(one.port)
                self.seen["spares that were there, and not told"] += 1
        self._unsure &= self._spares.keys()
        self._perhaps.clear()
        # One that has become a member since power came helps as well.
        for port in {*before, *stepped_in, *self._spares}:
            self._may_help(port)

    def _may_help(self, port: int) -> None:
        """The spare may take the place of any member that was lost."""
        self._perhaps.add(port)
        for array in self.arrays:
            array.others.add(port)
            array.healing |= array.lost

    async def _look_at_volumes(self, card: SimulatedCard, array: Known) -> None:
        """The volumes of an array are those that it had, with their numbers, formats and names."""
        listed = [one for one in await raid.volumes(card.nvme) if one.array == array.number]
        found = {one: await self._name(card, one.namespace) for one in listed}
        array.volumes = {
            replace(one, array=array.number): name for one, name in array.volumes.items()
        }
        for one, name in found.items():
            if one in array.volumes:
                assert name == array.volumes[one], f"{one} has another name"
                self.seen["volumes that were there"] += 1
            else:
                assert self._kind(one) in array.coming, f"nobody has made {one}"
                assert name not in self._names, f"{one} has a name that was used"
                self.seen["volumes that were there, and not told"] += 1
            self._names.add(name)
        for one in array.volumes:
            assert one in found or one.namespace in array.going, f"{one} is lost"
        await self._look_at_attachments(card, array, found)
        array.volumes = found
        array.coming.clear()
        array.going.clear()
        array.namespace = next((one.namespace for one in found if one.start == 0), 0)

    async def _look_at_attachments(
        self, card: SimulatedCard, array: Known, found: Iterable[raid.Volume]
    ) -> None:
        """The volumes of an array are attached if they were. A new one is."""
        active = await card.nvme.namespaces()
        for one in found:
            attached = one.namespace in active
            if one in array.volumes and one.namespace in array.turning:
                self.seen["volumes that may be attached"] += 1
            else:
                wanted = one not in array.volumes or one.namespace not in array.detached
                assert attached == wanted, f"{one} is {'' if attached else 'not '}attached"
                self.seen["volumes that stay detached"] += not wanted
        array.turning.clear()
        array.detached = {one.namespace for one in found if one.namespace not in active}

    @staticmethod
    def _kind(one: raid.Volume) -> tuple:
        """What a volume is like, whatever its number."""
        return one.start, one.blocks, one.sector_bytes

    @staticmethod
    async def _name(card: SimulatedCard, namespace: int) -> bytes:
        return (await card.nvme.identify(IDENTIFY_ALLOCATED, namespace))[NGUID]

    async def look_again(self, card: SimulatedCard) -> None:
        """Looks whether the data of all arrays is still there."""
        for array in self.arrays:
            await self.check(card, array)

    def _is(self, array: Known, one: raid.Array) -> bool:
        """Whether an array that the card has is this one: no drive is any other's."""
        others = (each for each in self.arrays if each is not array and not each.erased)
        taken = {port for each in others for port in each.ports}
        ports = [member.port for member in one.members]
        here = {port for port in ports if port in self.ports}
        alike = (one.level, one.spans) == (array.level, array.spans)
        own = {*array.ports, *(array.others - taken)}
        return alike and bool(here) and here <= own

    def _miss(self, array: Known) -> None:
        """The array is not there, which must have a reason."""
        doubtful = array.level in PARITY and array.lost and not array.clean
        reasons = {
            "deleted": array.deleted,
            "not made": not array.created,
            "doubtful": doubtful,
        }
        why = next((why for why, holds in reasons.items() if holds), None)
        assert why, f"{array} is lost"
        self.seen[f"arrays not brought up: {why}"] += 1
        self.arrays.remove(array)

    async def _settle(self, card: SimulatedCard, array: Known) -> None:
        """After that each block holds what it holds."""
        address = card.transport.memory.allocate(BLOCK_BYTES)
        await self.check(card, array)
        for block in array.begun:
            if block in array.stored:
                await card.nvme.read(array.namespace, block, 1, address)
                data = bytes(card.transport.memory.read(address, BLOCK_BYTES))
                array.stored[block] = struct.unpack_from("<QQ", data)[1]
        array.begun.clear()
        array.cached.clear()
        array.flying.clear()
        array.pauses = False

    async def check(self, card: SimulatedCard, array: Known) -> None:
        """Every block holds what was stored last, or what is or was under way."""
        address = card.transport.memory.allocate(BLOCK_BYTES)
        for block in sorted(array.stored):
            number, before = array.stored[block], array.begun.get(block, set())
            await card.nvme.read(array.namespace, block, 1, address)
            if array.deleted:
                return
            data = bytes(card.transport.memory.read(address, BLOCK_BYTES))
            allowed = {number, array.stored[block]} | before | array.begun.get(block, set())
            good = any(data == contents(block, one) for one in allowed)
            assert good, f"{array}: block {block} holds {data[:16].hex()}, not {sorted(allowed)}"
            self.seen["blocks that were there"] += 1

    # What happens

    async def _make(self, card: SimulatedCard) -> None:
        """Makes arrays while there are free drives."""
        choose = self.random
        left = choose.random() < FEW["free"]  # a drive is left that can be a spare
        while len(self.arrays) < self.config.arrays:
            free = self._free()[left:]
            levels = [level for level, least in LEVELS.items() if least <= len(free)]
            if not levels or choose.random() < 0.3:
                return
            level = choose.choice(levels)
            most = min(MOST.get(level, len(free)), len(free))
            ports = sorted(choose.sample(free, choose.randint(LEVELS[level], most)))
            helpers = {port for port, of in self._spares.items() if of is None}
            array = Known(level=level, ports=ports, others=helpers)
            room = level is Level.RAID5 and len(free) >= TWO_SPANS
            if room and choose.random() < FEW["spans"]:
                array.spans, array.ports = 2, sorted(choose.sample(free, TWO_SPANS))
                self.seen["arrays made with spans"] += 1
            if not (self._spares or self._unsure or self._perhaps):
                await self._refuse(card, array)
            self.arrays.append(array)
            await self.make(card, array)

    async def _refuse(self, card: SimulatedCard, wanted: Known) -> None:
        """Perhaps some of the drives refuse their superblocks as an array like this one is made.
        Then they are no good members, however many they are, and the host does not keep it."""
        chance = random.Random(f"{self.seed}/refuse {self.seen['lives']} {len(self.arrays)}")
        if chance.random() >= FEW["refuse"]:
            return
        ports = wanted.ports
        roles = sorted(chance.sample(range(len(ports)), chance.randint(1, len(ports))))
        array = Known(
            level=wanted.level, ports=[*ports], spans=wanted.spans, lost={*roles}, failed=True
        )
        self.arrays.append(array)
        for role in roles:
            card.harness.refuse_writes(ports[role], SUPERBLOCK)
        array.number = await raid.create_array(
            card.nvme, array.level, ports, strip_kib=16, spans=array.spans
        )
        one = await self._state(card, array)
        failed = [role for role, member in enumerate(one.members) if member.failed]
        # Once it has FAILED nobody is asked any more.
        enough = failed == roles or (failed and one.state is ArrayState.FAILED)
        fits = enough and {*failed} <= {*roles}
        assert fits, f"{roles} refused, {failed} have failed: {one}"
        for role in roles:
            card.harness.accept_writes(ports[role], SUPERBLOCK)
        await self.delete(card, array)
        self.arrays.remove(array)
        self.seen["arrays of drives that refused"] += 1

    async def make(self, card: SimulatedCard, array: Known) -> None:
        """The host makes an array, and the volume that has the data."""
        array.number = await raid.create_array(
            card.nvme, array.level, array.ports, strip_kib=16, spans=array.spans
        )
        array.created = True
        self.seen["arrays made"] += 1
        one = await self._state(card, array)
        await self._divide(card, array, one.blocks)

    async def _divide(self, card: SimulatedCard, array: Known, blocks: int) -> None:
        """An array of so many blocks gets the volume that has the data."""
        array.blocks = blocks - TAIL
        one = await self.create_volume(card, array, 0, array.blocks)
        array.namespace = one.namespace

    async def create_volume(
        self, card: SimulatedCard, array: Known, start: int, blocks: int, sector_bytes: int = 4096
    ) -> raid.Volume:
        """A volume, whose name is new."""
        array.coming.add((start, blocks, sector_bytes))
        number = await raid.create_volume(
            card.nvme, array.number, start, blocks, sector_bytes=sector_bytes
        )
        (one,) = [one for one in await raid.volumes(card.nvme) if one.namespace == number]
        name = await self._name(card, number)
        assert name not in self._names, f"{one} has a name that was used"
        self._names.add(name)
        array.volumes[one] = name
        array.coming.clear()
        return one

    async def delete_volume(self, card: SimulatedCard, array: Known, one: raid.Volume) -> None:
        """It goes."""
        array.going.add(one.namespace)
        await raid.delete_volume(card.nvme, one.namespace)
        del array.volumes[one]
        array.going.discard(one.namespace)
        array.detached.discard(one.namespace)

    async def attach(self, card: SimulatedCard, array: Known, one: raid.Volume) -> None:
        """It is detached, or attached again."""
        number, detached = one.namespace, array.detached
        array.turning.add(number)
        await card.nvme.attach(number, detach=number not in detached)
        detached ^= {number}
        array.turning.discard(number)
        self.seen["volumes attached or detached"] += 1

    async def _turn_over(self, card: SimulatedCard, array: Known) -> None:
        """Volumes come and go in the tail of an array. They never have all of it."""
        choose, end = self.random, array.blocks + TAIL
        while not array.deleted:
            await card.transport.sleep(choose.uniform(0, LIFE_NS / 2))
            others = [one for one in array.volumes if one.start]
            if array.deleted:
                return
            if others and self._attachments.random() < TURNED:
                await self.attach(card, array, others[0])
            elif others:
                await self.delete_volume(card, array, others[0])
                self.seen["volumes deleted"] += 1
            else:
                start = choose.randrange(array.blocks, end)
                blocks = choose.randint(1, end - start)
                await self.create_volume(card, array, start, blocks, choose.choice((512, 4096)))
                self.seen["volumes made"] += 1

    def _free(self) -> list[int]:
        """Ports whose drives no array has or gets."""
        used = {port for array in self.arrays for port in (*array.ports, *array.others)}
        used |= self._spares.keys()
        return [port for port in self.ports if port not in used]

    async def _state(self, card: SimulatedCard, array: Known) -> raid.Array:
        return next(a for a in await raid.arrays(card.nvme) if a.number == array.number)

    async def write(self, card: SimulatedCard, array: Known) -> None:
        """Writes blocks one after the other, with FUA or without."""
        address = card.transport.memory.allocate(BLOCK_BYTES)
        choose = self.random
        while not array.deleted:
            block = choose.randrange(array.blocks)
            if array.pauses or block in array.flying:
                await card.transport.sleep(1000)
                continue
            fua = choose.random() >= FEW["cache"]
            if not await self.put(card, array, block, address, fua=fua):
                return

    async def put(
        self, card: SimulatedCard, array: Known, first: int, address: int, *, fua: bool,
        blocks: int = 1,
    ) -> bool:  # fmt: skip
        """Writes blocks with one command. Returns whether it has ended well, which it need not if
        the array is deleted or has failed."""
        self._numbers += 1
        number = self._numbers
        lost = set(array.lost)
        for block in range(first, first + blocks):
            place = address + BLOCK_BYTES * (block - first)
            card.transport.memory.write(place, contents(block, number))
            array.begun.setdefault(block, set()).add(number)
            array.cached.pop(block, None)
            array.flying.add(block)
        try:
            await card.nvme.write(array.namespace, first, blocks, address, fua=fua)
        except NvmeError:
            if not array.deleted and not array.failed:
                raise
            array.refused += 1
            return False
        array.missed |= (lost & array.lost) - array.healing
        for block in range(first, first + blocks):
            array.flying.discard(block)
            if fua:
                array.stored[block] = number
                del array.begun[block]
                self.seen["blocks stored"] += 1
            else:
                array.cached[block] = number
                self.seen["blocks cached"] += 1
        return True

    async def _pause(self, card: SimulatedCard, array: Known) -> None:
        """For a while nobody writes."""
        await card.transport.sleep(self.random.uniform(0, LIFE_NS / 2))
        array.pauses = True
        await card.transport.sleep(self.random.uniform(0, LIFE_NS))
        array.pauses = False

    async def _flush(self, card: SimulatedCard, array: Known) -> None:
        """Flushes now and then. After that nothing needs to be marked but what is written then."""
        while not array.deleted and not array.failed:
            await card.transport.sleep(self.random.uniform(0, FLUSH_NS))
            await self.flush(card, array)

    async def flush(self, card: SimulatedCard, array: Known) -> None:
        """Flushes once.

        A FLUSH that is refused says that something may have been lost that was acknowledged before.
        """
        cached = dict(array.cached)
        try:
            await card.nvme.flush(array.namespace)
        except NvmeError:
            array.cached.clear()
            self.seen["flushes refused"] += 1
            return
        self.seen["flushes"] += 1
        for block, number in cached.items():
            if number > array.stored.get(block, 0) and block in array.begun:
                array.stored[block] = number
                newer = {one for one in array.begun[block] if one > number}
                array.begun[block] = newer
                if array.cached.get(block) == number:
                    del array.cached[block]
                self.seen["blocks flushed"] += 1

    async def _trouble(self, card: SimulatedCard, array: Known) -> None:
        """Perhaps a drive goes or restarts, moves, or another one takes its place; or the array
        goes."""
        choose, harness = self.random, card.harness
        await card.transport.sleep(choose.uniform(0, LIFE_NS))
        what = choose.random()
        roles = [role for role in range(len(array.ports)) if role not in array.lost]
        if choose.random() < FEW["move"] and roles and self._free():
            await self._move(card, array, choose.choice(roles))
        if what < FEW["pull"] and len(array.lost) < TOLERATED.get(array.level, 0):
            role = choose.choice(roles)
            free = self._free()
            if free and choose.random() < FEW["spare"]:
                array.healing.add(role)
                await self._add_spare(card, choose.choice(free), array)
            array.lost.add(role)
            if choose.random() < FEW["restart"]:
                array.healing.add(role)
                harness.restart_drive(array.ports[role])
                self.seen["drives restarted"] += 1
            else:
                harness.remove(array.ports[role])
            if choose.random() < FEW["cut at once"]:
                self._until = harness.now_ns + choose.uniform(0, SOON_NS)
            await self.check(card, array)
        elif what < FEW["pull"] + FEW["replace"] and array.lost:
            role = choose.choice(sorted(array.lost))
            try:
                await self._replace(card, array, role)
            except NvmeError as error:
                # A job is under way, or a drive that restarted has been taken back, or a spare.
                if error.status == DRIVE_UNAVAILABLE:
                    one = await self._state(card, array)
                    assert not one.members[role].failed, one
                elif error.status not in (JOB_RUNNING, IN_USE):
                    raise
        elif what > 1 - FEW["delete"]:
            await self.delete(card, array)

    async def delete(self, card: SimulatedCard, array: Known) -> None:
        """The array goes, with its volumes and its spares."""
        array.deleted = True
        own = [port for port, home in self._spares.items() if home is array]
        for port in {*own, *self._unsure}:
            self._spares.pop(port, None)
        with suppress(NvmeError):
            await background.stop_job(card.nvme, array.number)
        while array.coming or array.going:
            await card.transport.sleep(POLL_NS)
        for one in list(array.volumes):
            await self.delete_volume(card, array, one)
        while True:
            try:
                await raid.delete_array(card.nvme, array.number)
                break
            except NvmeError:
                await card.transport.sleep(POLL_NS)
        array.erased = True
        self._ordinary |= {*own} - {one for each in self.arrays for one in each.ports}
        self.seen["arrays deleted"] += 1

    async def _add_spare(self, card: SimulatedCard, port: int, array: Known | None) -> None:
        """A free drive is a spare from now on, which the host knows once that has been stored."""
        self._ordinary.discard(port)
        self._unsure.discard(port)
        self._may_help(port)
        await background.add_spare(card.nvme, port, array.number if array else None)
        self._spares[port] = array
        self.seen["spares"] += 1

    async def _change_spares(self, card: SimulatedCard) -> None:
        """Perhaps a drive becomes a spare of all arrays, or is none any more."""
        choose = self.random
        await card.transport.sleep(choose.uniform(0, LIFE_NS / 2))
        free = self._free()
        if free and choose.random() < FEW["other spare"]:
            await self._add_spare(card, choose.choice(free), None)
        await card.transport.sleep(choose.uniform(0, LIFE_NS / 2))
        if self._spares and choose.random() < FEW["no spare"]:
            port = choose.choice(sorted(self._spares))
            del self._spares[port]
            with suppress(NvmeError):  # it has become a member, or its array has gone
                await background.remove_spare(card.nvme, port)
                self._ordinary.add(port)
                self.seen["spares removed"] += 1

    async def _move(self, card: SimulatedCard, array: Known, role: int) -> None:
        """A member moves to a free drive. Power may go meanwhile, or a drive."""
        array.others.add(port := self.random.choice(self._free()))
        array.healing.add(role)  # the drive that is pulled then may be a member no more
        with suppress(NvmeError):  # a job is under way
            await background.migrate_member(card.nvme, array.number, role, port, spare=False)
            self.seen["members on the move"] += 1
            await card.transport.sleep(self.random.uniform(0, LIFE_NS / 2))

    async def _replace(self, card: SimulatedCard, array: Known, role: int) -> None:
        """A drive takes the place of one that was pulled, at its port, and is rebuilt."""
        port, nvme = array.ports[role], card.nvme
        array.missed.discard(role)
        array.healing.add(role)
        card.harness.insert(port)
        await card.transport.sleep(POLL_NS)
        await background.replace_member(nvme, array.number, role, port)
        while (job := await background.job(nvme, array.number)).state == JobState.RUNNING:
            await card.transport.sleep(POLL_NS)
        if job.state == JobState.DONE:
            array.lost.discard(role)
            array.missed.discard(role)
            self.seen["drives rebuilt"] += 1

    async def shut_down(self, card: SimulatedCard) -> None:
        """The host says that power will go."""
        states = {one.number: one for one in await raid.arrays(card.nvme)}
        await card.transport.write32(Register.CC, ENABLED | SHUT_DOWN)
        while (await card.transport.read32(Register.CSTS)) >> 2 & 3 != COMPLETE:
            await card.transport.sleep(POLL_NS)
        for array in self.arrays:
            state = states.get(array.number) if array.created else None
            array.clean = state is not None and state.in_sync and not array.deleted
        self.seen["shutdowns"] += 1
