"""Arrays that tests have Linux md write: which layouts, which data, what to compare."""

import random

import pytest

from sim.golden.layout import DDF_N_CONTINUE, RIGHT_SYMMETRIC, Layout, rotations
from sim.md import machine
from sim.md.arrays import BLOCK, Write, Written

STRIPES = 3
"""Stripes beyond a whole turn of the parity."""

LAYOUTS = [
    *(Layout("RAID5", 5, 1, rotation=rotation) for rotation in rotations("RAID5")),
    *(Layout("RAID6", 6, 2, rotation=rotation) for rotation in rotations("RAID6")),
    *(Layout("RAID6", 4, 1, rotation=rotation) for rotation in rotations("RAID6")),
    Layout("RAID5", 3, 16, rotation=RIGHT_SYMMETRIC),
    Layout("RAID5", 4, 256),
    Layout("RAID6", 16, 1, rotation=DDF_N_CONTINUE),
    Layout("RAID0", 3, 4),
    Layout("RAID1", 2, 1),
    Layout("RAID1", 4, 1),
    Layout("RAID10", 4, 4),
    Layout("RAID10", 5, 2),
    Layout("RAID10", 7, 1, 3),
    Layout("RAID5", 6, 2, spans=2),
    Layout("RAID5", 12, 1, spans=4),
    Layout("RAID6", 8, 2, spans=2, rotation=DDF_N_CONTINUE),
    Layout("RAID6", 16, 1, spans=4),
]
needs_linux = pytest.mark.skipif(bool(machine.missing()), reason=f"md: {machine.missing()}")


def array(generator: random.Random, number: int, layout: Layout) -> Written:
    """Random data over all of an array, then some short writes over it."""
    rows = (layout.width + STRIPES if layout.strip_blocks < 64 else 2) * layout.strip_blocks
    blocks = layout.blocks(rows)
    writes = [Write(block=0, data=generator.randbytes(blocks * BLOCK))]
    for _ in range(8):
        length = generator.randint(1, min(4, blocks))
        first = generator.randint(0, blocks - length)
        writes.append(Write(block=first, data=generator.randbytes(length * BLOCK)))
    name = f"{layout.level}-{layout.drives}-{layout.rotation}-{number}"
    return Written(name=name, layout=layout, rows=rows, writes=tuple(writes))


def contents(one: Written) -> list[bytes]:
    """The blocks of an array after its writes."""
    blocks = [bytes(BLOCK)] * one.layout.blocks(one.rows)
    for write in one.writes:
        for offset in range(0, len(write.data), BLOCK):
            blocks[write.block + offset // BLOCK] = write.data[offset : offset + BLOCK]
    return blocks


def differences(one: Written, found: list[bytes], wanted: list[bytes]) -> list[tuple[int, int]]:
    """(member, row) of every block that differs."""
    return [
        (position, row)
        for position in range(one.layout.drives)
        for row in range(one.rows)
        if found[position][row * BLOCK : (row + 1) * BLOCK]
        != wanted[position][row * BLOCK : (row + 1) * BLOCK]
    ]
