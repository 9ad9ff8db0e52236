"""What the controller itself looks at in host data: Compare and Dataset Management."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import (
    BLOCK_NUMBER_BITS,
    DWORDS_PER_BLOCK,
    SECTOR_BITS,
    Config,
    bits_for_count,
)
from hdl.flow.host_command import Status
from hdl.flow.host_data import fetched, transfer
from hdl.flow.host_memory import Kind, read_request
from hdl.flow.line import ReadPort, line_stream
from hdl.flow.table_read import volume_read
from hdl.kit.queue import Queue
from hdl.nvme.codes import PAGE_SHIFT, STATUS_BITS, StatusCode, status_field
from hdl.nvme.records import assign, comparison, ranges, rejected, unsent

RANGE_DWORDS = 4
"""A range (NVMe 1.4 figure 360): context attributes, length, and 64 bits of starting LBA."""

RANGE_BITS = 32 * RANGE_DWORDS


class Examine(wiring.Component):
    """Fetches host data into a line of its own and looks at it, one block or list at a time.

    Compare (NVMe 1.4 section 6.6): the block that was read lies in its line. The host's block is
    fetched as for a write, and both are read beat by beat. Sectors that the command does not mean
    may differ. Dataset Management (section 6.7): the ranges are fetched, and each must lie in its
    volume. Nothing is deallocated, whatever the attributes say, as all of them are hints. While
    both wait they take turns, a block and a command's ranges.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    compare
        Blocks to be compared. They are never refused for longer than a cycle.
    ranges
        Dataset Management commands. As many wait as there are slots.
    fetch
        The host's block of a Compare, to be moved into the line.
    fetched
        It is there, or what ``read_request`` asked for.
    waits
        A `fetched` of ``line`` is for this block.
    line
        The line.
    read_request
        Ranges into the line.
    line_read
        Reading side of the line store.
    volume_read
        How large a volume is.
    compared
        Lines that have been compared, with SUCCESS, COMPARE_FAILURE or DATA_TRANSFER_ERROR.
    ended
        Dataset Management commands with their status field, 0 for success.
    allocate
        The line. It is taken once and kept.
    busy
        Something moves without anybody else being waited for.

    Latency after the host's data has come: a block in two cycles a beat and 7, ranges in 4 cycles a
    beat and 3 for each range.
    Back-pressure on any output holds what is behind it.

    Errors: Compare Failure, Data Transfer Error, Invalid PRP Offset, LBA Out of Range, and Invalid
    Field for a volume that does not exist.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "compare": In(stream.Signature(comparison(config))),
                "ranges": In(stream.Signature(ranges(config))),
                "fetch": Out(stream.Signature(transfer(config))),
                "fetched": In(stream.Signature(fetched(config))),
                "waits": Out(1),
                "line": Out(config.line_bits),
                "read_request": Out(stream.Signature(read_request(config))),
                "line_read": Out(ReadPort(config)),
                "volume_read": Out(volume_read(config)),
                "compared": Out(stream.Signature(unsent(config))),
                "ended": Out(stream.Signature(rejected(config))),
                "allocate": In(line_stream(config)),
                "busy": Out(1),
            }
        )

        # As many blocks as there are lines can wait, and as many lists as slots. What is at hand is
        # a block if ``comparing``, else a list.
        self._blocks = Queue(comparison(config), config.lines)
        self._lists = Queue(ranges(config), config.commands)
        self._block = Signal(comparison(config))
        self._list = Signal(ranges(config))
        self._takes_list = Signal()
        self._was_block = Signal()  # what was taken last
        self._comparing = Signal()
        self._verdict = Signal(Status)
        self._code = Signal(STATUS_BITS)

        # The list in host memory.
        self._dwords = Signal(11)  # its 32-bit words
        self._room = Signal(11)  # words up to the end of its first page
        self._spans = Signal()  # there are more
        self._unaligned = Signal()  # its addresses cannot be

        # Both lines are read in turn.
        beat_bits = bits_for_count(config.beats)
        self._asked = Signal(beat_bits + 1)  # beats asked for
        self._answered = Signal(beat_bits + 1)  # beats that have come
        self._kept = Signal(config.data_width, reset_less=True)  # the last one
        self._checks = Signal()  # the last two belong together
        self._response = self.line_read.response
        self._arrives = self.line_read.response_valid

        # One range after the other is looked at, at the bottom of a window of whole beats.
        self._width = max(config.data_width, RANGE_BITS)
        self._window = Signal(self._width, reset_less=True)
        self._beats_a_window = self._width // config.data_width
        self._ranges_a_window = self._width // RANGE_BITS
        self._have = Signal(range(self._beats_a_window + 1))  # beats that it has
        self._left = Signal(range(self._ranges_a_window + 1))  # ranges in it
        # Ranges in it and behind it.
        self._ranges_left = Signal(range((1 << len(self._list.count)) + 1))
        self._beat = Signal(beat_bits)  # the next beat
        self._beyond = Signal()  # the range lies beyond its volume

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.blocks = self._blocks
        m.submodules.lists = self._lists
        connect(m, flipped(self.ranges), self._lists.input)
        connect(m, flipped(self.compare), self._blocks.input)
        self._measure_list(m)
        self._compare_beats(m)
        self._measure_range(m)
        m.d.comb += [
            self._takes_list.eq(
                self._lists.output.valid & (~self._blocks.output.valid | self._was_block)
            ),
            *assign(self.compared.payload, line=self._block.line, status=self._verdict),
            *assign(self.ended.payload, slot=self._list.slot, status=self._code),
        ]
        with m.FSM(name="examine") as fsm:
            self._take(m)
            self._fetch_block(m)
            self._fetch_list(m)
            self._wait(m)
            self._compare(m)
            self._load_window(m)
            self._judge_range(m)
            self._end_list(m)
            waits = self._waits(fsm)
        m.d.comb += self.busy.eq(~waits | self.compare.valid | self.ranges.valid)
        return m

    def _measure_list(self, m: Module) -> None:
        """Where the list lies in host memory, in three cycles."""
        asked, dwords, room, spans = self._list, self._dwords, self._room, self._spans
        within = asked.prp1[:PAGE_SHIFT]
        m.d.sync += [
            dwords.eq((asked.count + 1) * RANGE_DWORDS),
            room.eq(DWORDS_PER_BLOCK - within[2:]),
            spans.eq(dwords > room),
            self._unaligned.eq(
                asked.prp1[:2].any() | (spans & asked.prp2[:PAGE_SHIFT].any())
            ),
        ]
        m.d.comb += assign(self.read_request.payload, kind=Kind.BLOCK, index=self.line)

    def _compare_beats(self, m: Module) -> None:
        """Both lines are read in turn. The host's beat is kept until the other one comes."""
        asked, answered, arrives = self._asked, self._answered, self._arrives
        m.d.comb += self.line_read.request.payload.eq(
            Cat(asked[1:], Mux(asked[0], self._block.line, self.line))
        )
        meant = Const(1, 1)
        if self._config.sector_emulation:
            sector = answered[-SECTOR_BITS:]
            meant = (sector >= self._block.first) & (sector <= self._block.last)
        differ = Signal()
        m.d.sync += [
            differ.eq(self._kept != self._response),
            self._checks.eq(arrives & self._comparing & answered[0] & meant),
        ]
        with m.If(arrives):
            m.d.sync += [answered.eq(answered + 1), self._kept.eq(self._response)]
        with m.If(self._checks & differ):
            m.d.sync += self._verdict.eq(Status.COMPARE_FAILURE)

    def _measure_range(self, m: Module) -> None:
        """Whether the range lies beyond its volume, in two cycles. It counts the volume's logical
        blocks, which may be sectors."""
        volume, number_bits = self.volume_read.data, BLOCK_NUMBER_BITS
        if self._config.sector_emulation:
            number_bits += SECTOR_BITS
        length, begin = self._window[32:64], self._window[64:RANGE_BITS]
        blocks = Mux(self._list.sectors, volume.blocks << SECTOR_BITS, volume.blocks)
        far = Signal()
        last_block = Signal(number_bits + 1)
        m.d.comb += self.volume_read.address.eq(self._list.volume)
        m.d.sync += [
            last_block.eq(begin[:number_bits] + length),
            far.eq(begin[number_bits:].any()),
            self._beyond.eq(far | (last_block > blocks)),
        ]

    def _take(self, m: Module) -> None:
        """The states CLAIM, which gets the line, and TAKE, which takes a block or a list."""
        blocks, lists, takes_list = self._blocks.output, self._lists.output, self._takes_list
        with m.State("CLAIM"):
            m.d.comb += self.allocate.ready.eq(1)
            m.d.sync += self.line.eq(self.allocate.payload)
            with m.If(self.allocate.valid):
                m.next = "TAKE"

        with m.State("TAKE"):
            m.d.comb += [blocks.ready.eq(~takes_list), lists.ready.eq(takes_list)]
            m.d.sync += [
                self._comparing.eq(~takes_list),
                self._verdict.eq(Status.SUCCESS),
                self._code.eq(0),
                Cat(self._asked, self._answered).eq(0),
            ]
            with m.If(takes_list):
                m.d.sync += [self._list.eq(lists.payload), self._was_block.eq(0)]
                m.next = "MEASURE"
            with m.Elif(blocks.valid):
                m.d.sync += [self._block.eq(blocks.payload), self._was_block.eq(1)]
                m.next = "FETCH"

    def _fetch_block(self, m: Module) -> None:
        """The state FETCH: asks for the host's block."""
        block = self._block
        with m.State("FETCH"):
            m.d.comb += [
                self.fetch.valid.eq(1),
                *assign(
                    self.fetch.payload, slot=block.slot, offset=block.offset, line=self.line
                ),
            ]
            with m.If(self.fetch.ready):
                m.next = "WAIT"

    def _fetch_list(self, m: Module) -> None:
        """The states MEASURE, SPAN and ALIGN, in which `_measure_list` goes on, and REQUEST and
        REQUEST_REST, which ask for the list and for what of it is in the next page."""
        dwords, room, request = self._dwords, self._room, self.read_request.payload
        for name, following in (("MEASURE", "SPAN"), ("SPAN", "ALIGN"), ("ALIGN", "REQUEST")):
            with m.State(name):
                m.next = following

        with m.State("REQUEST"):
            m.d.comb += [
                self.read_request.valid.eq(~self._unaligned),
                *assign(
                    request,
                    last=~self._spans,
                    address=self._list.prp1,
                    dwords=Mux(self._spans, room, dwords),
                    target=Cat(Const(0, PAGE_SHIFT - 2), self.line),
                ),
            ]
            with m.If(self._unaligned):
                self._fail(m, StatusCode.INVALID_PRP_OFFSET)
            with m.Elif(self.read_request.ready):
                m.next = "WAIT"
                with m.If(self._spans):
                    m.next = "REQUEST_REST"

        with m.State("REQUEST_REST"):
            m.d.comb += [
                self.read_request.valid.eq(1),
                *assign(
                    request,
                    last=1,
                    address=self._list.prp2,
                    dwords=dwords - room,
                    target=Cat(room[: PAGE_SHIFT - 2], self.line),
                ),
            ]
            with m.If(self.read_request.ready):
                m.next = "WAIT"

    def _wait(self, m: Module) -> None:
        """The state WAIT: the host's data comes into the line."""
        with m.State("WAIT"):
            m.d.comb += [self.waits.eq(1), self.fetched.ready.eq(1)]
            m.d.sync += [
                self._beat.eq(0),
                self._have.eq(0),
                self._ranges_left.eq(self._list.count + 1),
            ]
            with m.If(self.fetched.valid):
                m.next = "ASK"
                with m.If(self._comparing):
                    m.next = "SCAN"
                with m.If(self.fetched.payload.error):
                    m.d.sync += [
                        self._verdict.eq(Status.DATA_TRANSFER_ERROR),
                        self._code.eq(status_field(StatusCode.DATA_TRANSFER_ERROR)),
                    ]
                    m.next = "END"
                    with m.If(self._comparing):
                        m.next = "REPORT"

    def _compare(self, m: Module) -> None:
        """The states SCAN, which asks for all beats of both lines, DRAIN, which waits for the last
        one, and REPORT. The count of answers wraps after the last beat, which is checked a cycle
        later."""
        asked = self._asked
        with m.State("SCAN"):
            m.d.comb += self.line_read.request.valid.eq(1)
            with m.If(self.line_read.request.ready):
                m.d.sync += asked.eq(asked + 1)
                with m.If(asked == 2 * self._config.beats - 1):
                    m.next = "DRAIN"

        with m.State("DRAIN"):
            with m.If((self._answered == 0) & ~self._checks):
                m.next = "REPORT"

        with m.State("REPORT"):
            m.d.comb += self.compared.valid.eq(1)
            with m.If(self.compared.ready):
                m.next = "TAKE"

    def _load_window(self, m: Module) -> None:
        """The states ASK and SHIFT: the window is filled, beat by beat."""
        window, have, beat = self._window, self._have, self._beat
        with m.State("ASK"):
            m.d.comb += [
                self.line_read.request.valid.eq(1),
                self.line_read.request.payload.eq(Cat(beat, self.line)),
            ]
            with m.If(self.line_read.request.ready):
                m.d.sync += beat.eq(beat + 1)
                m.next = "SHIFT"

        with m.State("SHIFT"):
            m.d.sync += self._left.eq(self._ranges_a_window)
            with m.If(self._arrives):
                m.d.sync += [
                    window.eq(Cat(window, self._response)[-self._width :]),
                    have.eq(have + 1),
                ]
                m.next = "ASK"
                with m.If(have == self._beats_a_window - 1):
                    m.d.sync += have.eq(0)
                    m.next = "LOOK"

    def _judge_range(self, m: Module) -> None:
        """The states LOOK and WEIGH, in which `_measure_range` adds and then compares, and
        JUDGE."""
        with m.State("LOOK"):
            m.next = "WEIGH"

        with m.State("WEIGH"):
            m.next = "JUDGE"

        with m.State("JUDGE"):
            m.d.sync += [
                self._window.eq(self._window >> RANGE_BITS),
                self._left.eq(self._left - 1),
                self._ranges_left.eq(self._ranges_left - 1),
            ]
            m.next = "LOOK"
            with m.If(self._left == 1):
                m.next = "ASK"
            with m.If(self._ranges_left == 1):
                m.next = "END"
            with m.If(~self.volume_read.data.valid):
                self._fail(m, StatusCode.INVALID_FIELD)
            with m.Elif(self._beyond):
                self._fail(m, StatusCode.LBA_OUT_OF_RANGE)

    def _fail(self, m: Module, reason: StatusCode) -> None:
        """Ends a state: the Dataset Management ends with ``reason``."""
        m.d.sync += self._code.eq(status_field(reason))
        m.next = "END"

    def _end_list(self, m: Module) -> None:
        """The state END: a Dataset Management ends."""
        with m.State("END"):
            m.d.comb += self.ended.valid.eq(1)
            with m.If(self.ended.ready):
                m.next = "TAKE"

    def _waits(self, fsm) -> Value:
        """Nothing moves in this state until somebody else does something."""
        return (
            (fsm.ongoing("CLAIM") & ~self.allocate.valid)
            | (fsm.ongoing("TAKE") & (self._blocks.level == 0) & (self._lists.level == 0))
            | (self.fetch.valid & ~self.fetch.ready)
            | (self.read_request.valid & ~self.read_request.ready)
            | (self.waits & ~self.fetched.valid)
            | (self.compared.valid & ~self.compared.ready)
            | (self.ended.valid & ~self.ended.ready)
        )
