"""What the tests of the array blocks share: tables behind read ports, and random layouts."""

import cocotb
from cocotb.triggers import RisingEdge

from cocotb_tests.streams import pack
from hdl.config import ERA_BITS, MAX_DRIVES, Config
from hdl.flow.geometry import Level, Rotation, geometry
from hdl.flow.recovery import ROUNDS
from hdl.flow.table_read import volume
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


class Table:
    """Answers table reads from ``entries`` (address to packed data), a cycle later."""

    def __init__(self, dut, name: str):
        self.entries: dict[int, int] = {}
        self._clock = dut.clk
        self._address = getattr(dut, f"{name}__address")
        self._data = getattr(dut, f"{name}__data")
        self._data.value = 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        while True:
            await RisingEdge(self._clock)
            self._data.value = self.entries.get(int(self._address.value), 0)


def random_recovery(generator, config: Config, *, copies: int) -> dict[str, int]:
    """What may have been tried before of a block with so many copies."""
    bits = {"medium": 1, "ordered": 1, "era": ERA_BITS} if config.background else {}
    return {
        **{name: generator.getrandbits(width) for name, width in bits.items()},
        "again": 1,
        "tried": generator.randint(0, ROUNDS * copies + config.drive_resets + 3),
        "copy": generator.randrange(copies),
    }


def random_layout(generator, *, drives: int = MAX_DRIVES) -> Layout:
    """A layout of at most ``drives`` members, every level and shape."""
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
    """What a geometry says of the rotation."""
    fixed = layout.rotation in (PARITY_FIRST, PARITY_LAST)
    rotate = int(layout.parities > 0 and not fixed)
    return {"rotate": rotate, "rotation": rotation_of(layout).value}


def rotation_of(layout: Layout) -> Rotation:
    """The hardware's name of a layout's rotation."""
    return rotation_of_name(layout.rotation)


def rotation_of_name(name: str) -> Rotation:
    """The hardware's name of a rotation that mdadm calls ``name``."""
    return Rotation[name.upper().replace("-", "_")]


def pack_geometry(config, layout: Layout, rows: int) -> int:
    """The entry of the geometry table for ``layout`` with ``rows`` rows."""
    return pack(
        geometry(config),
        valid=1,
        level=Level[layout.level],
        width=layout.width,
        data=layout.data,
        parities=layout.parities,
        copies=layout.copies,
        spans=layout.spans,
        strip_shift=layout.strip_blocks.bit_length() - 1,
        **rotation_fields(layout),
        rows=rows,
        blocks=layout.blocks(rows),
    )


def pack_volume(config, array: int, start: int, blocks: int) -> int:
    """The entry of the volume table."""
    return pack(volume(config), valid=1, array=array, start=start, blocks=blocks)
