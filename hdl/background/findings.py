"""Logs of what was found in the background: defects, and rows with lost blocks."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.background.walker import finding
from hdl.config import Config
from hdl.flow.report import FINDINGS
from hdl.flow.walk import WalkResult

INDEX_BITS = FINDINGS.bit_length() - 1


class Findings(wiring.Component):
    """Keeps the last `FINDINGS` rows that were mended or disagreed, and as many with lost blocks.

    Both logs hold over a controller reset, and are emptied by a reset of the card.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    finding
        Rows. FAILED is in neither log.
    showing
        A page of entries is being made: none comes meanwhile (back-pressure on ``finding``), so
        that the page is of one moment.
    lost, number, word
        Which log, which entry (0 is the newest), which of its words; stable for two cycles.
    data
        The word, two cycles later; 0 where there is none. Word 0: bit 31 the entry exists, 2:0
        `WalkResult`, 6:4 `WalkKind`, 15:8 array; 1: roles; 2, 3: row; 4: base 7:0, shift 15:8;
        5: findings of this log so far.
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

    def elaborate(self, platform) -> Module:
        m = Module()
        shape = data.StructLayout({"count": 32, "found": finding(self._config)})
        m.submodules.entries = entries = Memory(shape=shape, depth=2 * FINDINGS, init=[])
        read, write = entries.read_port(), entries.write_port()
        counts = [Signal(32, name=f"count_{name}") for name in ("defects", "lost")]
        found = self.finding.payload
        loses = found.result == WalkResult.LOST
        kept = self.finding.valid & self.finding.ready & (found.result != WalkResult.FAILED)
        m.d.comb += [
            self.finding.ready.eq(~self.showing),
            write.en.eq(kept),
            write.data.found.eq(found),
        ]
        for log, count in enumerate(counts):
            with m.If(loses == log):
                m.d.comb += [
                    write.addr.eq(Cat(count[:INDEX_BITS], loses)),
                    write.data.count.eq(count + 1),
                ]
                with m.If(kept):
                    m.d.sync += count.eq(count + 1)

        exists = Signal()
        newest = Signal(32)
        with m.If(self.lost):
            m.d.comb += newest.eq(counts[1])
        with m.Else():
            m.d.comb += newest.eq(counts[0])
        m.d.comb += read.addr.eq(Cat((newest - 1 - self.number)[:INDEX_BITS], self.lost))
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
        return m
