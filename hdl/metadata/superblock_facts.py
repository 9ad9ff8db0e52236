"""What the superblocks of an array say, and how md has it."""

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, DATA_OFFSET_BITS, MAX_DRIVES, Config
from hdl.flow.geometry import WIDTH_BITS, Level, Rotation, geometry
from hdl.metadata.spans import Place

UUID_BITS = 128
EVENT_BITS = 64
LAYOUT_BITS = 9
NEAR = 0x100
"""Of a layout of level 10: the copies lie side by side. The lower bits are their number."""

RAID0_LAYOUT = 1
"""md's layout of a RAID 0. It differs from the older one if drives differ in size."""

ROTATIONS = {
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
"""md's layouts of levels 5 and 6 (`ALGORITHM_*` in `drivers/md/raid5.h`)."""


class SuperblockFacts(data.Struct):
    """What the superblocks of all members of an array say, or of one of its spans.

    Fields
    ------
    set_uuid
        The identity of the array, which is that of its first span.
    place
        Which span it is.
    level, layout
        md's level (0, 1, 5, 6 or 10) and layout.
    strip_shift
        log2 of the blocks of a strip. A RAID 1 has no strips.
    rows, data_offset
        Blocks of each member that are used, and the first of them.
    width
        How many roles there are. The device of a role has the same number.
    alive
        A bit a role. A device holds it, perhaps not in full.
    rebuilding, rebuilt
        A bit a role: it is held up to block ``rebuilt`` of the member.
    events
        Counts changes.
    dirty
        Rows may be inconsistent.
    marked
        There is a bitmap of them that md can use (`hdl.metadata.bitmap`).
    """

    set_uuid: UUID_BITS
    place: Place
    level: 4
    layout: LAYOUT_BITS
    strip_shift: 4
    rows: BLOCK_NUMBER_BITS
    data_offset: DATA_OFFSET_BITS
    width: WIDTH_BITS
    alive: MAX_DRIVES
    rebuilding: MAX_DRIVES
    rebuilt: BLOCK_NUMBER_BITS
    events: EVENT_BITS
    dirty: 1
    marked: 1


class MdShape(wiring.Component):
    """md's level and layout of an array. Combinational.

    A RAID 1 that holds fewer copies than it has drives is a RAID 10 to md, which places blocks as
    the card does. A JBOD is a RAID 1 of one drive. md has no triple parity. It is level 7, which md
    does not know and so does not start. A span of several is what an array of its width would be.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    geometry
        The array.
    level, layout
        As md has them.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "geometry": In(geometry(config)),
                "level": Out(4),
                "layout": Out(LAYOUT_BITS),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        shape = self.geometry
        with m.Switch(shape.level):
            with m.Case(Level.RAID0):
                m.d.comb += self.layout.eq(RAID0_LAYOUT)
            with m.Case(Level.RAID1, Level.RAID10):
                mirrors = (shape.level == Level.RAID1) & (shape.copies == shape.width)
                with m.If(mirrors):
                    m.d.comb += self.level.eq(1)
                with m.Else():
                    m.d.comb += [self.level.eq(10), self.layout.eq(NEAR | shape.copies)]
            with m.Case(Level.JBOD):
                m.d.comb += self.level.eq(1)
            with m.Case(Level.RAID5, Level.RAID6, Level.RAIDTP):
                m.d.comb += self.level.eq(shape.level)
                with m.Switch(shape.rotation):
                    for rotation, code in ROTATIONS.items():
                        with m.Case(rotation.value):
                            m.d.comb += self.layout.eq(code)
        return m
