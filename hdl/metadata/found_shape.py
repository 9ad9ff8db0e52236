"""What an array of md is to the card."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.array.tables.level_rules import MAX_STRIP_SHIFT
from hdl.config import BLOCK_NUMBER_BITS, MAX_DRIVES, SECTOR_BITS, SECTORS_PER_BLOCK
from hdl.flow.geometry import WIDTH_BITS, Level, Rotation
from hdl.metadata.superblock import PLACE_BITS, WORD_BITS
from hdl.metadata.superblock_facts import NEAR, ROTATIONS

COPY_BITS = 8
"""Of the layout of a RAID 10: the number of copies. What is above says how they lie."""

DDF_CODE = 8
"""md's layouts from here on are those of DDF, for level 6 only."""


class FoundShape(wiring.Component):
    """The level, strips, copies and rows of an array by what its superblocks say. Combinational.

    Members have whole strips, or blocks if there are none. Only a RAID 0 does not say how much it
    uses. A RAID 4 is a RAID 5 with its parity on the last drive. A RAID 1 of one drive is a JBOD.
    Level 7 is the card's own, with triple parity.

    Ports
    -----
    md_level, md_layout
        As md has them.
    chunk
        Sectors of a strip.
    disks
        How many drives the array has.
    sectors
        How many of each drive are used.
    level, strip_shift, copies, rotation, rows
        As `hdl.flow.geometry.geometry` has them. ``rows`` are whole strips.
    supported
        The card has such arrays.
    """

    md_level: In(WORD_BITS)
    md_layout: In(WORD_BITS)
    chunk: In(WORD_BITS)
    disks: In(WORD_BITS)
    sectors: In(PLACE_BITS)
    level: Out(Level)
    strip_shift: Out(4)
    copies: Out(WIDTH_BITS)
    rotation: Out(4)
    rows: Out(BLOCK_NUMBER_BITS)
    supported: Out(1)

    def elaborate(self, platform) -> Module:
        m = Module()
        fits, whole = Signal(), Signal()
        self._find_level(m, fits)
        strip_fits = self._find_strip(m)
        blocks = self.sectors[SECTOR_BITS:]
        m.d.comb += [
            self.rows.eq(blocks & ~((1 << self.strip_shift) - 1)),
            whole.eq((self.md_level == 0) | (self.sectors == self.rows << SECTOR_BITS)),
            fits.eq(strip_fits & whole & (self.rows != 0) & (self.disks <= MAX_DRIVES)),
        ]
        return m

    def _find_strip(self, m: Module) -> Signal:
        """The strip, and whether the card has such strips. A RAID 1 needs none."""
        fits = Signal(name="strip_fits")
        with m.If(self.md_level == 1):
            m.d.comb += fits.eq(1)
        with m.Else(), m.Switch(self.chunk):
            for shift in range(MAX_STRIP_SHIFT + 1):
                with m.Case(SECTORS_PER_BLOCK << shift):
                    m.d.comb += [self.strip_shift.eq(shift), fits.eq(1)]
        return fits

    def _find_rotation(self, m: Module, fits: Value) -> None:
        """How parity moves, which must be a way that ``fits``."""
        with m.Switch(self.md_layout):
            for rotation, code in ROTATIONS.items():
                with m.Case(code):
                    m.d.comb += [self.rotation.eq(rotation.value), self.supported.eq(fits)]

    def _find_level(self, m: Module, fits: Signal) -> None:
        """Level, copies and rotation, and whether the card has them."""
        layout, disks = self.md_layout, self.disks
        near, copies = layout[COPY_BITS:] == NEAR >> COPY_BITS, layout[:COPY_BITS]
        m.d.comb += self.copies.eq(1)
        with m.Switch(self.md_level):
            with m.Case(0):
                m.d.comb += [self.level.eq(Level.RAID0), self.supported.eq(fits & (disks > 1))]
            with m.Case(1):
                m.d.comb += [
                    self.level.eq(Mux(disks == 1, Level.JBOD.value, Level.RAID1.value)),
                    self.copies.eq(disks),
                    self.supported.eq(fits & (disks > 0)),
                ]
            with m.Case(4):
                m.d.comb += [
                    self.level.eq(Level.RAID5),
                    self.rotation.eq(Rotation.PARITY_LAST.value),
                    self.supported.eq(fits & (disks > 2)),
                ]
            with m.Case(5):
                self._find_rotation(m, fits & (disks > 2) & (layout < DDF_CODE))
                m.d.comb += self.level.eq(Level.RAID5)
            with m.Case(6):
                self._find_rotation(m, fits & (disks > 3))
                m.d.comb += self.level.eq(Level.RAID6)
            with m.Case(Level.RAIDTP.value):
                self._find_rotation(m, fits & (disks > 4) & (layout < DDF_CODE))
                m.d.comb += self.level.eq(Level.RAIDTP)
            with m.Case(10):
                enough = (copies > 1) & (copies <= disks)
                m.d.comb += [
                    self.level.eq(Level.RAID10),
                    self.copies.eq(copies),
                    self.supported.eq(fits & near & enough),
                ]
