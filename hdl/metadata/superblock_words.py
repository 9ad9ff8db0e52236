"""The words of a superblock that the card writes."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hdl.config import DATA_OFFSET_BLOCKS, SECTOR_BITS, SECTORS_PER_BLOCK
from hdl.metadata import bitmap, spans
from hdl.metadata.superblock import (
    FAULTY,
    HEAD_WORDS,
    KEPT_BITS,
    MAGIC,
    MAJOR_VERSION,
    MOST_DEVICES,
    SECTOR,
    SPARE,
    WORD_BITS,
    Feature,
    Word,
)
from hdl.metadata.superblock_facts import SuperblockFacts

SET_NAME = b"striata"
DATA_OFFSET = DATA_OFFSET_BLOCKS * SECTORS_PER_BLOCK
WORD_BYTES = WORD_BITS // 8
OWN_WORDS = (
    *range(Word.DATA_SIZE, Word.SUPER_OFFSET),
    *range(Word.DEVICE_NUMBER, Word.BAD_BLOCKS),
)
"""Words of the head that are not like those of other members, but for those that change."""


def lasting_words(m: Module, number: Value, facts: SuperblockFacts, role: Value) -> Signal:
    """Word ``number`` of the superblock of a new member, as far as it does not change.

    Combinational. All other words are 0.
    """
    word = Signal(WORD_BITS, name="lasting")
    has_strips = facts.level != 1
    sectors = Cat(Const(0, SECTOR_BITS), facts.rows)
    values: dict[int, Value | int] = {
        Word.MAGIC: MAGIC,
        Word.MAJOR_VERSION: MAJOR_VERSION,
        Word.CTIME + 1: spans.created(facts.place),
        Word.LEVEL: facts.level,
        Word.LAYOUT: facts.layout,
        Word.CHUNK: Mux(has_strips, SECTORS_PER_BLOCK << facts.strip_shift, 0),
        Word.RAID_DISKS: facts.width,
        Word.DATA_OFFSET: Cat(Const(0, SECTOR_BITS), facts.data_offset),
        Word.SUPER_OFFSET: SECTOR,
    }
    for place in range(4):
        uuid = facts.set_uuid.word_select(place, WORD_BITS)
        if Word.SET_UUID + place == spans.UUID_WORD:
            uuid = spans.identity(uuid, facts.place.span)
        values[Word.SET_UUID + place] = uuid
        # No device has it twice, also if a role gets a new drive.
        events = [facts.events.word_select(half, WORD_BITS) for half in range(2)]
        other = {0: role + 1, 1: events[0], 2: events[1]}.get(place, 0)
        values[Word.DEVICE_UUID + place] = uuid ^ other
    name = SET_NAME.ljust(-(-len(SET_NAME) // WORD_BYTES) * WORD_BYTES, b"\0")
    for place in range(len(name) // WORD_BYTES):
        part = name[place * WORD_BYTES : (place + 1) * WORD_BYTES]
        values[Word.SET_NAME + place] = int.from_bytes(part, "little")
    for place in range(2):
        part = sectors[WORD_BITS * place : WORD_BITS * (place + 1)]
        values[Word.SIZE + place] = Mux(facts.level == 0, 0, part)
        values[Word.DATA_SIZE + place] = part
    with m.Switch(number):
        for place, value in values.items():
            with m.Case(place):
                m.d.comb += word.eq(value)
    return word


def changing_words(
    m: Module, number: Value, facts: SuperblockFacts, role: Value
) -> tuple[Signal, Signal]:
    """Word ``number`` of the superblock of a member, and whether it is one of those that change.

    Combinational. The checksum is not among them. Linux may have given the device another number
    than its role, and may have made room for fewer devices.
    """
    word = Signal(WORD_BITS, name="changing")
    changes = Signal()
    rebuilds = facts.rebuilding.bit_select(role, 1)
    features = {
        Feature.BITMAP: facts.marked,
        Feature.RECOVERY_OFFSET: rebuilds,
        Feature.RAID0_LAYOUT: facts.level == 0,
    }
    rebuilt = Cat(Const(0, SECTOR_BITS), facts.rebuilt)
    values: dict[int, Value] = {
        Word.FEATURES: Cat(features.get(bit, Const(0, 1)) for bit in Feature),
        Word.BITMAP_OFFSET: Mux(facts.marked, bitmap.OFFSET, 0),
        # The card has no clock. So it is known that md has not written it since.
        Word.UTIME: Const(0, 1),
        Word.UTIME + 1: Const(0, 1),
        Word.DEVICE_NUMBER: role,
        Word.MAX_DEVICES: Const(MOST_DEVICES),
    }
    for place in range(2):
        part = slice(WORD_BITS * place, WORD_BITS * (place + 1))
        values[Word.EVENTS + place] = facts.events[part]
        values[Word.RESYNC_OFFSET + place] = (~facts.dirty).replicate(WORD_BITS)
        values[Word.RECOVERY_OFFSET + place] = Mux(rebuilds, rebuilt[part], 0)
    with m.Switch(number):
        for place, value in values.items():
            with m.Case(place):
                m.d.comb += [word.eq(value), changes.eq(1)]
    with m.If(number >= HEAD_WORDS):
        m.d.comb += changes.eq(1)
        for half in range(2):
            device = Cat(Const(half, 1), number[: KEPT_BITS - 1])
            alive = facts.alive.bit_select(device[:5], 1)
            holds = Mux(alive, device, FAULTY)
            m.d.comb += word.word_select(half, 16).eq(Mux(device < facts.width, holds, SPARE))
    return word, changes
