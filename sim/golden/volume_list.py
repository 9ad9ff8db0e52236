"""The card's list of the volumes of an array: what it says, and its bytes.

It shares nothing with the hardware (`hdl/metadata/volume_list.py`).
"""

import struct
import zlib
from dataclasses import dataclass, field

PAGE_BYTES = 4096
MAGIC, VERSION = b"SVOL", 1
BLOCKS = (254, 255)
"""Where the two copies lie on a member."""

MOST_VOLUMES = 64
MOST_GENERATIONS = 1 << 63
_HEAD = struct.Struct("<4sIQ16sQ24x")
_ENTRY = struct.Struct("<BBBBIIIQ8x")
_TAIL = PAGE_BYTES - _HEAD.size - MOST_VOLUMES * _ENTRY.size - 4


@dataclass(frozen=True)
class Volume:
    """A volume of an array: its blocks, what its NGUID is made of, its format, and whether it is
    attached."""

    start: int
    blocks: int
    own: int
    count: int
    sectors: bool = False
    coarse: bool = False
    detached: bool = False


class RefusedListError(Exception):
    """The page is no list."""


@dataclass
class VolumeList:
    """The volumes of the array ``set_uuid``, by their numbers. The card ``owner`` has it."""

    set_uuid: bytes
    generation: int
    owner: int
    volumes: dict[int, Volume] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The page."""
        page = _HEAD.pack(MAGIC, VERSION, self.generation, self.set_uuid, self.owner)
        for number in range(MOST_VOLUMES):
            page += self._entry(self.volumes.get(number))
        page += bytes(_TAIL)
        return page + struct.pack("<I", zlib.crc32(page))

    @staticmethod
    def _entry(volume: Volume | None) -> bytes:
        if volume is None:
            return bytes(_ENTRY.size)
        wide = (volume.start, volume.blocks, volume.count)
        state = 1 | volume.sectors << 1 | volume.coarse << 2 | volume.detached << 3
        low, high = [one & 0xFFFF_FFFF for one in wide], [one >> 32 for one in wide]
        return _ENTRY.pack(state, *high, *low, volume.own)

    @classmethod
    def unpack(cls, page: bytes) -> "VolumeList":
        """What a page says. Refuses one that is no list."""
        magic, version, generation, set_uuid, owner = _HEAD.unpack_from(page)
        if (magic, version) != (MAGIC, VERSION):
            raise RefusedListError("another magic or version")
        if generation >= MOST_GENERATIONS:
            raise RefusedListError("no list has had so many before it")
        if zlib.crc32(page[:-4]) != struct.unpack("<I", page[-4:])[0]:
            raise RefusedListError("a wrong CRC")
        volumes = {}
        for number in range(MOST_VOLUMES):
            state, *words = _ENTRY.unpack_from(page, _HEAD.size + number * _ENTRY.size)
            if state & 1:
                *halves, own = words
                start, blocks, count = (
                    low | high << 32
                    for high, low in zip(halves[:3], halves[3:], strict=True)
                )
                flags = (bool(state >> bit & 1) for bit in (1, 2, 3))
                volumes[number] = Volume(start, blocks, own, count, *flags)
        return cls(set_uuid, generation, owner, volumes)


def newest(pages: list[bytes], set_uuid: bytes) -> VolumeList | None:
    """The newest list of an array among pages. The first of those that are equally new."""
    found = None
    for page in pages:
        try:
            one = VolumeList.unpack(page)
        except RefusedListError:
            continue
        if one.set_uuid == set_uuid and (found is None or one.generation > found.generation):
            found = one
    return found
