"""Arrays that md can express, and what their superblocks say."""

import random
from dataclasses import dataclass, replace

from cocotb_tests.metadata.superblock_pages import SECTORS
from cocotb_tests.streams import pack
from hdl.config import DATA_OFFSET_BLOCKS, SECTORS_PER_BLOCK, Config
from hdl.flow.geometry import Level, Rotation, geometry
from hdl.metadata.superblock_facts import SuperblockFacts
from sim.golden.spans import made_as, of_span
from sim.golden.superblock import CLEAN, FAULTY, SPARE, Feature, Superblock

MOST_ROWS = SECTORS // SECTORS_PER_BLOCK - DATA_OFFSET_BLOCKS
DEVICES = 128
BITMAP_OFFSET = 8
"""Sectors from the superblock."""
CODES = {
    Rotation.LEFT_ASYMMETRIC: 0,
    Rotation.RIGHT_ASYMMETRIC: 1,
    Rotation.LEFT_SYMMETRIC: 2,
    Rotation.RIGHT_SYMMETRIC: 3,
    Rotation.PARITY_FIRST: 4,
    Rotation.PARITY_LAST: 5,
    Rotation.DDF_ZERO_RESTART: 8,
    Rotation.DDF_N_RESTART: 9,
    Rotation.DDF_N_CONTINUE: 10,
}
"""md's layouts with parity (`drivers/md/raid5.h`)."""

DDF = (Rotation.DDF_ZERO_RESTART, Rotation.DDF_N_RESTART, Rotation.DDF_N_CONTINUE)
NAMES = {one: one.name.lower().replace("_", "-") for one in Rotation} | {
    Rotation.DDF_ZERO_RESTART: "ddf-zero-restart",
    Rotation.DDF_N_RESTART: "ddf-N-restart",
    Rotation.DDF_N_CONTINUE: "ddf-N-continue",
}
"""What mdadm calls them."""


EXPRESSIBLE = (
    Level.JBOD,
    Level.RAID0,
    Level.RAID1,
    Level.RAID5,
    Level.RAID6,
    Level.RAIDTP,
    Level.RAID10,
)
"""Levels that a superblock can tell."""


@dataclass(kw_only=True)
class Array:
    """An array, and what its superblocks say."""

    level: Level
    width: int
    spans: int
    span: int
    """That of the member whose superblock it is."""
    copies: int
    rotation: Rotation
    strip_shift: int
    rows: int
    data_offset: int
    """In blocks."""
    set_uuid: bytes
    events: int
    dirty: bool
    alive: int
    rebuilding: int
    rebuilt: int
    marked: bool = False
    """It has a bitmap that md can use."""

    @property
    def md(self) -> tuple[int, int]:
        """md's level and layout."""
        if self.level is Level.RAID0:
            return 0, 1
        mirrors = self.level is Level.RAID1 and self.copies == self.width
        if self.level is Level.JBOD or mirrors:
            return 1, 0
        if self.level in (Level.RAID1, Level.RAID10):
            return 10, 0x100 | self.copies
        return self.level.value, CODES[self.rotation]

    def happens(self, generator: random.Random) -> None:
        """Members come and go, and what they hold changes."""
        self.events += generator.choice((1, 2, 1 << 32))
        self.dirty = generator.random() < 0.5
        everybody = (1 << self.width) - 1
        self.alive = everybody & ~(generator.getrandbits(32) & generator.getrandbits(32))
        self.rebuilding = self.alive & generator.getrandbits(32) & generator.getrandbits(32)
        self.rebuilt = generator.randrange(self.rows)
        self.marked = self.spans == 1 and self.md[0] in (1, 5, 6) and self.rebuilt % 2 == 1

    def roles(self) -> tuple[int, ...]:
        """By device numbers."""
        own = [role if self.alive >> role & 1 else FAULTY for role in range(self.width)]
        return (*own, *[SPARE] * (DEVICES - self.width))

    def changed(self, one: Superblock) -> Superblock:
        """What the superblock becomes when it is changed."""
        rebuilds = self.rebuilding >> one.device_number & 1
        features = Feature.RAID0_LAYOUT if self.level is Level.RAID0 else Feature(0)
        features |= Feature.BITMAP if self.marked else Feature(0)
        return replace(
            one,
            features=features | (Feature.RECOVERY_OFFSET if rebuilds else Feature(0)),
            bitmap_offset=BITMAP_OFFSET if self.marked else 0,
            recovery_offset=self.rebuilt * SECTORS_PER_BLOCK if rebuilds else 0,
            events=self.events,
            resync_offset=0 if self.dirty else CLEAN,
            roles=self.roles(),
        )

    def made(self, role: int) -> Superblock:
        """The superblock of a new member. The identity of its drive is not said here."""
        level, layout = self.md
        sectors = self.rows * SECTORS_PER_BLOCK
        one = Superblock(
            set_uuid=of_span(self.set_uuid, self.span),
            set_name=b"striata",
            ctime=made_as(self.span, self.spans - 1),
            level=level,
            layout=layout,
            size=0 if level == 0 else sectors,
            chunk=0 if level == 1 else SECTORS_PER_BLOCK << self.strip_shift,
            raid_disks=self.width,
            data_offset=self.data_offset * SECTORS_PER_BLOCK,
            data_size=sectors,
            device_number=role,
            device_uuid=b"",
            events=self.events,
        )
        return self.changed(one)


def random_array(generator: random.Random, *, level: Level | None = None) -> Array:
    """Any that md can express, perhaps of one ``level``."""
    level = level or generator.choice(EXPRESSIBLE)
    least = {Level.JBOD: 1, Level.RAID5: 3, Level.RAID6: 4, Level.RAIDTP: 5}.get(level, 2)
    width = 1 if level is Level.JBOD else generator.randint(least, generator.choice((least, 8, 32)))
    copies, rotation = 1, Rotation.LEFT_SYMMETRIC
    if level in (Level.RAID1, Level.RAID10):
        copies = generator.choice((2, max(2, width - 1), width))
    if level in (Level.RAID5, Level.RAID6, Level.RAIDTP):
        rotation = generator.choice([*Rotation])
        if level is not Level.RAID6 and rotation in DDF:
            rotation = Rotation.RIGHT_SYMMETRIC
    spans = 1
    if level in (Level.RAID5, Level.RAID6, Level.RAIDTP):
        spans = generator.choice((1, min(2, 32 // width), 32 // width))
    more = generator.choice((0, generator.randrange(MOST_ROWS - 2))) if spans == 1 else 0
    array = Array(
        level=level,
        width=width,
        spans=spans,
        span=generator.randrange(spans),
        copies=copies,
        rotation=rotation,
        strip_shift=generator.randrange(9),
        rows=generator.randint(2, MOST_ROWS - more),
        data_offset=DATA_OFFSET_BLOCKS + more,
        set_uuid=generator.randbytes(16),
        events=generator.choice((1, 2, (1 << 32) - 1, generator.getrandbits(60))),
        dirty=False,
        alive=0,
        rebuilding=0,
        rebuilt=0,
    )
    array.happens(generator)
    return array


def show(dut, config: Config, array: Array) -> None:
    """What the array is from now on, at the ports ``geometry`` and ``facts``."""
    dut.geometry.value = pack(
        geometry(config),
        valid=1,
        level=array.level,
        width=array.width,
        copies=array.copies,
        spans=array.spans,
        strip_shift=array.strip_shift,
        rotation=array.rotation.value,
        rows=array.rows,
    )
    dut.facts.value = pack(
        SuperblockFacts,
        set_uuid=int.from_bytes(array.set_uuid, "little"),
        place={"span": array.span, "last": array.spans - 1},
        strip_shift=array.strip_shift,
        rows=array.rows,
        data_offset=array.data_offset,
        width=array.width,
        alive=array.alive,
        rebuilding=array.rebuilding,
        rebuilt=array.rebuilt,
        events=array.events,
        dirty=array.dirty,
        marked=array.marked,
    )
