"""Random layouts of arrays, and the hardware's names of their rotations."""

from hdl.config import MAX_DRIVES
from hdl.flow.geometry import Rotation
from sim.golden.layout import (
    LEAST_DRIVES,
    MIRRORED,
    PARITIES,
    PARITY_FIRST,
    PARITY_LAST,
    Layout,
    rotations,
)

STRIP_SHIFTS = 9


def random_layout(generator, *, drives: int = MAX_DRIVES) -> Layout:
    """A layout of at most ``drives`` members, of any level and shape."""
    levels = [level for level in PARITIES if level == "JBOD" or LEAST_DRIVES[level] <= drives]
    while True:
        level = generator.choice(levels)
        count = 1 if level == "JBOD" else generator.randint(LEAST_DRIVES[level], drives)
        copies = generator.randint(2, count) if level in MIRRORED and count > 1 else 0
        if level == "RAID10" and generator.random() < 0.7:
            copies = 2
        spans = generator.choice((1, 1, 2, 3, 4, 6, 8)) if PARITIES[level] else 1
        strip_shift = generator.randrange(STRIP_SHIFTS)
        rotation = generator.choice(rotations(level))
        try:
            return Layout(level, count, 1 << strip_shift, copies, spans, rotation)
        except ValueError:
            continue


def rotation_fields(layout: Layout) -> dict[str, int]:
    """The fields of a geometry for the rotation."""
    fixed = layout.rotation in (PARITY_FIRST, PARITY_LAST)
    rotate = int(layout.parities > 0 and not fixed)
    return {"rotate": rotate, "rotation": rotation_of(layout).value}


def rotation_of(layout: Layout) -> Rotation:
    """The hardware's name of a layout's rotation."""
    return rotation_of_name(layout.rotation)


def rotation_of_name(name: str) -> Rotation:
    """The hardware's name of the rotation with mdadm's name ``name``."""
    return Rotation[name.upper().replace("-", "_")]
