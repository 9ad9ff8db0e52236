"""Superblocks of members, made at random, with a field changed, or hostile."""

import random
import struct
from dataclasses import replace

from hdl.metadata import superblock as hdl
from hdl.metadata.superblock import Finding
from sim.golden.intent_bitmap import IntentBitmap
from sim.golden.superblock import (
    CHECKSUM_AT,
    CLEAN,
    FAULTY,
    FIELDS,
    HEAD,
    HEAD_BYTES,
    MOST_DEVICES,
    SPARE,
    Feature,
    RefusedSuperblockError,
    Superblock,
    checksum,
)

SECTORS = 1 << 20

LEVEL_LAYOUTS = {
    0: (1,),
    1: (0,),
    4: (0,),
    5: (0, 1, 2, 3, 4, 5),
    6: (2, 8, 9, 10),
    10: (0x102, 0x103),
}
"""md's layouts of each of its levels."""


def random_superblock(generator: random.Random) -> Superblock:
    """A member of an array of any kind, as md would write it."""
    level, layouts = generator.choice([*LEVEL_LAYOUTS.items()])
    drives = generator.randint(1, 40)
    roles = [*range(drives), *[SPARE] * generator.randint(0, 128)]
    if generator.random() < 0.3:
        roles[generator.randrange(drives)] = FAULTY
    size = generator.randrange(8, SECTORS - 4096, 8)
    return Superblock(
        set_uuid=generator.randbytes(16),
        set_name=b"striata:" + str(generator.randrange(1 << 20)).encode(),
        ctime=generator.getrandbits(40),
        level=level,
        layout=generator.choice(layouts),
        size=size,
        chunk=8 << generator.randrange(8),
        raid_disks=drives,
        features=generator.choice((Feature(0), Feature.BITMAP, Feature.RECOVERY_OFFSET)),
        bitmap_offset=8,
        data_offset=2048,
        data_size=size + generator.randrange(16, 2048),
        recovery_offset=generator.randrange(size),
        device_number=generator.randrange(len(roles)),
        device_uuid=generator.randbytes(16),
        bad_blocks_size=8,
        bad_blocks_offset=16,
        utime=generator.getrandbits(40),
        events=generator.getrandbits(generator.choice((3, 40, 64))),
        resync_offset=generator.choice((CLEAN, 0, generator.randrange(size))),
        roles=tuple(roles),
    )


def bitmap_of(one: Superblock) -> IntentBitmap:
    """A bitmap of such an array without a mark."""
    copies = one.layout & 0xFF
    sectors = one.size * one.raid_disks // copies if one.level == 10 else one.size
    return IntentBitmap(
        set_uuid=one.set_uuid,
        events=one.events,
        events_cleared=one.events,
        sync_size=sectors,
        chunk_bytes=1 << 26,
    )


GOOD = replace(random_superblock(random.Random(1)), features=Feature(0), roles=(*range(128),))


def sealed(page: bytes) -> bytes:
    """The page with a checksum that is right."""
    return page[:CHECKSUM_AT] + struct.pack("<I", checksum(page)) + page[CHECKSUM_AT + 4 :]


def unsealed(**values) -> bytes:
    """The page of `GOOD` with other values in fields."""
    page = GOOD.pack()
    fields = dict(zip(FIELDS, HEAD.unpack_from(page), strict=True))
    return HEAD.pack(*{**fields, **values}.values()) + page[HEAD_BYTES:]


def changed(**values) -> bytes:
    """That page with a checksum that is right."""
    return sealed(unsealed(**values))


def hostile(generator: random.Random) -> bytes:
    """A page of which some fields are random or extreme, and whose checksum is right."""
    page = bytearray(random_superblock(generator).pack())
    for _ in range(generator.randint(1, 3)):
        start = generator.choice((72, 80, 96, 128, 136, 152, 160, 184, 208, 220, 256))
        page[start : start + 8] = generator.choice(
            (generator.randbytes(8), bytes(8), b"\xff" * 8, struct.pack("<Q", SECTORS))
        )
    length = struct.unpack_from("<I", page, CHECKSUM_AT + 4)[0]
    return sealed(bytes(page)) if length <= MOST_DEVICES else bytes(page)


FINDINGS = {
    "no superblock": Finding.NONE,
    "another version": Finding.NONE,
    "belongs elsewhere": Finding.NONE,
    "a feature is not known": Finding.UNKNOWN,
    "the checksum is wrong": Finding.DAMAGED,
    "a reserved field": Finding.UNKNOWN,
}
"""What the model's reasons are called. All others are IMPOSSIBLE."""


def expected(page: bytes) -> Finding:
    """What has to be found on a drive of `SECTORS` that holds the page."""
    devices = struct.unpack_from("<I", page, CHECKSUM_AT + 4)[0]
    try:
        Superblock.unpack(page, sectors=SECTORS)
        found = Finding.VALID
    except RefusedSuperblockError as error:
        fits = (finding for why, finding in FINDINGS.items() if why in str(error))
        found = next(fits, Finding.IMPOSSIBLE)
        early = "feature" in str(error) or found == Finding.NONE
        if early or "too many" in str(error):
            return found
    return Finding.TOO_MANY if devices > hdl.MOST_DEVICES else found


def kept_words(page: bytes) -> list[int]:
    """What is kept of a page: its first words, with `SPARE` where it has no role."""
    words = list(struct.unpack_from(f"<{hdl.KEPT_WORDS}I", page))
    devices = struct.unpack_from("<I", page, CHECKSUM_AT + 4)[0]
    roles = list(struct.unpack_from(f"<{hdl.MOST_DEVICES}H", page, HEAD_BYTES))
    roles[devices:] = [SPARE] * len(roles[devices:])
    pairs = zip(roles[::2], roles[1::2], strict=True)
    words[hdl.HEAD_WORDS:] = [low | high << 16 for low, high in pairs]
    return words
