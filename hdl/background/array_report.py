"""What the host reads of arrays and their jobs."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.background.intent import tally
from hdl.background.jobs import job
from hdl.background.pace import RATE_BITS
from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.report import Section, report_address, report_read
from hdl.kit.table import TableRead

LOW_BITS = 32
"""A row number, or a time, has two words."""


def _padded(*parts):
    """Fields of given widths, low bits first."""
    return Cat(*(Cat(part, Const(0, width - len(part))) for part, width in parts))


class ArrayReport(wiring.Component):
    """Answers reads of the log pages: makes entries of ARRAYS itself, and passes findings on.

    ===== ==================================================================================
    word  of an entry of ARRAYS
    ===== ==================================================================================
    0     bit 31 the array exists, 1:0 `ArrayState`, 2 it is not in sync, 3 it is assumed to be,
          6:4 `hdl.background.jobs.JobState`, 10:8 `WalkKind`, 23:16 array
    1     rate in percent
    2, 3  first row that is not done
    4     rows mended
    5     rows mismatched
    6     rows lost
    7     bit 31 there is a write-intent bitmap, 15:0 chunks that are marked, 21:16 log2 of the
          rows of a chunk
    8, 9  when the job began, in cycles
    10,11 when it ended
    12,13 first row that may not be in sync, if the array is not
    ===== ==================================================================================

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    report_read
        The log pages (`hdl.flow.report`).
    findings
        The word of the logs of findings, for sections other than ARRAYS.
    job_read
        Jobs.
    sync_read
        First rows that may not be in sync.
    tally_read
        Marks of the write-intent bitmap.
    states
        Two bits per array (`ArrayState`).
    valid
        One bit per array. It exists.
    unsynced
        One bit per array. It is not in sync.
    assumed
        One bit per array. It is assumed to be in sync.
    rate
        Percent.

    Latency: a word follows its address by one cycle. The upper word of two that is read right after
    the lower one is of the same moment.
    """

    def __init__(self, *, config: Config):
        self._config = config
        array = config.array_bits
        super().__init__(
            {
                "report_read": In(report_read()),
                "findings": In(32),
                "job_read": Out(TableRead(array, job())),
                "sync_read": Out(TableRead(array, BLOCK_NUMBER_BITS)),
                "tally_read": Out(TableRead(array, tally(config))),
                "states": In(2 * config.arrays),
                "valid": In(config.arrays),
                "unsynced": In(config.arrays),
                "assumed": In(config.arrays),
                "rate": In(RATE_BITS),
            }
        )
        self._latched = Signal(report_address())
        self._previous = Signal(report_address())
        self._upper = Signal(BLOCK_NUMBER_BITS - LOW_BITS)

    def elaborate(self, platform) -> Module:
        m = Module()
        asked, latched, word = self.report_read.address, self._latched, Signal(32)
        m.d.sync += latched.eq(asked)
        m.d.comb += [
            self.job_read.address.eq(asked.number),
            self.sync_read.address.eq(asked.number),
            self.tally_read.address.eq(asked.number),
            self.report_read.data.eq(word),
        ]
        with m.If(asked != latched):
            m.d.sync += self._previous.eq(latched)
        words = self._marks() | self._words() | self._long_words(m)
        with m.If(latched.section == Section.ARRAYS):
            with m.Switch(latched.word):
                for number, content in words.items():
                    with m.Case(number):
                        m.d.comb += word.eq(content)
        with m.Else():
            m.d.comb += word.eq(self.findings)
        return m

    def _marks(self) -> dict:
        """The word of the write-intent bitmap."""
        marks = self.tally_read.data
        exists = Const(int(self._config.intent_chunks > 0), 1)
        return {7: _padded((marks.marked, 16), (marks.shift, 15), (exists, 1))}

    def _words(self) -> dict:
        """What else fits into a word, by its number."""
        job = self.job_read.data
        array = self._latched.number[: self._config.array_bits]
        return {
            0: _padded(
                (self.states.word_select(array, 2), 2),
                (self.unsynced.bit_select(array, 1), 1),
                (self.assumed.bit_select(array, 1), 1),
                (job.state.as_value(), 4),
                (job.kind.as_value(), 8),
                (self._latched.number, 15),
                (self.valid.bit_select(array, 1), 1),
            ),
            1: self.rate,
            4: job.mended,
            5: job.mismatched,
            6: job.lost,
        }

    def _long_words(self, m: Module) -> dict:
        """What needs two words. Once the lower one was read, the upper one is that of then."""
        job, latched = self.job_read.data, self._latched
        follows = (self._previous.as_value() | 1) == latched.as_value()
        values = {2: job.row, 8: job.began, 10: job.ended, 12: self.sync_read.data}
        words = {}
        for number, value in values.items():
            low, high = value[:LOW_BITS], value[LOW_BITS:]
            words |= {number: low, number + 1: Mux(follows, self._upper, high)}
            with m.If(latched.word == number):
                m.d.sync += self._upper.eq(high)
        return words
