"""Where the sectors of a block lie: in its line, and in the pages of the host's transfer."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import DWORDS_PER_BLOCK, SECTOR_BITS, SECTORS_PER_BLOCK, Config, bits_for_count
from hdl.nvme.codes import PAGE_SHIFT

SECTOR_SHIFT = PAGE_SHIFT - SECTOR_BITS
DWORD_SHIFT = SECTOR_SHIFT - 2
"""log2 of the 32-bit words of a sector."""


class SectorSpan(wiring.Component):
    """Sectors of a block of a command.

    The host's bytes follow each other in its pages, without the sectors before the first one. So
    block k begins (k - 1) * 4096 bytes after the end of what block 0 has of them.

    Latency: a cycle. Without `Config.sector_emulation` there is none, and all but ``within`` is
    fixed.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    block
        Index of the block in its command.
    blocks
        Of the command, as in `hdl.flow.host_command.command`.
    head
        Of the command, as in `hdl.flow.host_command.command`.
    tail
        Of the command, as in `hdl.flow.host_command.command`.
    within
        Bytes of PRP1 from the begin of its page.
    first
        First sector of the block that the host means.
    last
        Last sector of the block that the host means.
    entry
        The PRP entry in whose page the first sector lies.
    offset
        Byte of that page at which the first sector begins.
    source
        The first 32-bit word in the line.
    dwords
        How many 32-bit words lie in that page.
    spans
        There are more words, which begin the next page.
    rest_source
        The first of these in the line.
    rest
        How many there are.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "block": In(config.offset_bits),
                "blocks": In(config.offset_bits),
                "head": In(SECTOR_BITS),
                "tail": In(SECTOR_BITS),
                "within": In(PAGE_SHIFT),
                "first": Out(SECTOR_BITS),
                "last": Out(SECTOR_BITS),
                "entry": Out(config.offset_bits),
                "offset": Out(PAGE_SHIFT),
                "source": Out(bits_for_count(DWORDS_PER_BLOCK)),
                "dwords": Out(PAGE_SHIFT - 1),
                "spans": Out(1),
                "rest_source": Out(bits_for_count(DWORDS_PER_BLOCK)),
                "rest": Out(PAGE_SHIFT - 1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        if self._config.sector_emulation:
            self._span_sectors(m)
        else:
            self._span_blocks(m)
        return m

    def _span_blocks(self, m: Module) -> None:
        """All of every block is meant."""
        room = Signal(PAGE_SHIFT - 1)
        m.d.comb += [
            room.eq(DWORDS_PER_BLOCK - self.within[2:]),
            self.last.eq(SECTORS_PER_BLOCK - 1),
            self.entry.eq(self.block),
            self.offset.eq(self.within),
            self.dwords.eq(room),
            self.spans.eq(self.within != 0),
            self.rest_source.eq(room),
            self.rest.eq(self.within[2:]),
        ]

    def _span_sectors(self, m: Module) -> None:
        """Of the first block the last sectors are meant, of the last block the first ones."""
        begins, ends = self.block == 0, self.block == self.blocks
        room = Signal(PAGE_SHIFT - 1)
        first = Signal(SECTOR_BITS)
        last = Signal(SECTOR_BITS)
        dwords = Signal(PAGE_SHIFT - 1)
        source = Signal(PAGE_SHIFT - 2)
        # Of the first sector, from the begin of PRP1's page. If it is below 0, it is in the page
        # before.
        first_byte = Signal(PAGE_SHIFT + 1)
        m.d.comb += [
            first.eq(Mux(begins, self.head, 0)),
            last.eq(SECTORS_PER_BLOCK - 1 - Mux(ends, self.tail, 0)),
            source.eq(first << DWORD_SHIFT),
            dwords.eq((last - first + 1) << DWORD_SHIFT),
            first_byte.eq(self.within - Mux(begins, 0, self.head << SECTOR_SHIFT)),
            room.eq(DWORDS_PER_BLOCK - first_byte[2:PAGE_SHIFT]),
            self.spans.eq(self.rest != 0),
        ]
        m.d.sync += [
            self.first.eq(first),
            self.last.eq(last),
            self.source.eq(source),
            self.entry.eq(self.block - first_byte[PAGE_SHIFT]),
            self.offset.eq(first_byte),
            self.dwords.eq(Mux(dwords > room, room, dwords)),
            self.rest_source.eq(source + room),
            self.rest.eq(Mux(dwords > room, dwords - room, 0)),
        ]
