"""Logs of what was found in the background: defects, and rows with lost blocks."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.background.walker import finding
from hdl.config import Config
from hdl.flow.report import FINDINGS
from hdl.flow.walk import WalkResult
from hdl.kit.table import Table

INDEX_BITS = FINDINGS.bit_length() - 1


class Findings(wiring.Component):
    """Keeps the last `FINDINGS` rows that were mended or disagreed, and as many with lost blocks.

    Both logs hold over a controller reset. A reset of the card empties them.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    finding
        Rows. One that ended FAILED is in neither log.
    showing
        A page of entries is being made. No entry comes meanwhile (back-pressure on ``finding``), so
        that the page is of one moment.
    lost
        The log of lost blocks is asked for, not that of defects. Stable for two cycles, as are
        ``number`` and ``word``.
    number
        Which entry. 0 is the newest.
    word
        Which word of the entry.
    data
        The word, two cycles later. 0 where there is none. Word 0: bit 31 the entry exists, 2:0
        `WalkResult`, 6:4 `WalkKind`, 15:8 array. Word 1: roles. Words 2 and 3: row. Word 4: base
        7:0, shift 15:8. Word 5: findings of this log so far.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "finding": In(stream.Signature(finding(config))),
                "showing": In(1),
                "lost": In(1),
                "number": In(8),
                "word": In(4),
                "data": Out(32),
            }
        )

        # Findings of each log so far, and those that are kept.
        self._counts = [Signal(32, name=f"count_{name}") for name in ("defects", "lost")]
        entry = data.StructLayout({"count": 32, "found": finding(config)})
        self._entries = Table(entry, 2 * FINDINGS)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.entries = self._entries
        self._keep(m)
        self._show(m)
        return m

    def _keep(self, m: Module) -> None:
        """Writes what is found over the oldest entry of its log."""
        write, found = self._entries.write, self.finding.payload
        loses = found.result == WalkResult.LOST
        kept = self.finding.valid & self.finding.ready & (found.result != WalkResult.FAILED)
        m.d.comb += [
            self.finding.ready.eq(~self.showing),
            write.enable.eq(kept),
            write.data.found.eq(found),
        ]
        for log, count in enumerate(self._counts):
            with m.If(loses == log):
                m.d.comb += [
                    write.address.eq(Cat(count[:INDEX_BITS], loses)),
                    write.data.count.eq(count + 1),
                ]
                with m.If(kept):
                    m.d.sync += count.eq(count + 1)

    def _show(self, m: Module) -> None:
        """Reads the entry that is asked for, and tells a word of it."""
        read = self._entries.reads[0]
        exists = Signal()
        newest = Signal(32)
        with m.If(self.lost):
            m.d.comb += newest.eq(self._counts[1])
        with m.Else():
            m.d.comb += newest.eq(self._counts[0])
        m.d.comb += read.address.eq(Cat((newest - 1 - self.number)[:INDEX_BITS], self.lost))
        m.d.sync += exists.eq((self.number < newest) & (self.number < FINDINGS))
        entry = read.data.found
        with m.If(exists):
            with m.Switch(self.word):
                with m.Case(0):
                    head = Cat(entry.result, Const(0, 1), entry.kind, Const(0, 1), entry.array)
                    m.d.comb += self.data.eq(head | 1 << 31)
                with m.Case(1):
                    m.d.comb += self.data.eq(entry.roles)
                with m.Case(2):
                    m.d.comb += self.data.eq(entry.row[:32])
                with m.Case(3):
                    m.d.comb += self.data.eq(entry.row[32:])
                with m.Case(4):
                    m.d.comb += self.data.eq(Cat(entry.base, Const(0, 3), entry.shift))
                with m.Case(5):
                    m.d.comb += self.data.eq(read.data.count)
