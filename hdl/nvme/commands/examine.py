"""What the controller itself looks at in host data: Compare and Dataset Management."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
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

    Compare (NVMe 1.4 section 6.6): the block that was read lies in its line; the host's is fetched
    as for a write, and both are read beat by beat; sectors that the command does not mean may
    differ. Dataset Management (section 6.7): the ranges are
    fetched and each must lie in its volume. Nothing is deallocated, whatever the attributes say:
    all of them are hints. While both wait they take turns, a block and a command's ranges.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    compare
        Blocks to be compared; never refused for longer than a cycle.
    ranges
        Dataset Management commands; as many wait as there are slots.
    fetch, fetched
        The host's block of a Compare into the line; ``fetched`` also answers ``read_request``.
    waits, line
        A `fetched` of ``line`` is for this block.
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
        The line: taken once and kept.

    Latency after the host's data has come: a block in two cycles a beat and 7; ranges in 4 cycles a
    beat and 3 for each range. Back-pressure on any output holds what is behind it.

    Errors: Compare Failure; Data Transfer Error; Invalid PRP Offset; LBA Out of Range; Invalid
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        beat_bits = bits_for_count(config.beats)
        job_shape, list_shape = comparison(config), ranges(config)
        # As many blocks as there are lines can wait, and as many lists as slots.
        m.submodules.jobs = jobs = Queue(job_shape, config.lines)
        m.submodules.lists = lists = Queue(list_shape, config.commands)
        job = Signal(job_shape)
        asked = Signal(list_shape)
        connect(m, flipped(self.ranges), lists.input)
        connect(m, flipped(self.compare), jobs.input)

        # What is taken next; the last was a block.
        takes_list, was_block = Signal(), Signal()
        m.d.comb += takes_list.eq(lists.output.valid & (~jobs.output.valid | was_block))
        comparing = Signal()
        verdict = Signal(Status)
        code = Signal(STATUS_BITS)

        # Ranges in host memory.
        within = asked.prp1[:PAGE_SHIFT]
        dwords, room = Signal(11), Signal(11)
        spans, unaligned = Signal(), Signal()
        m.d.sync += [
            dwords.eq((asked.count + 1) * RANGE_DWORDS),
            room.eq(DWORDS_PER_BLOCK - within[2:]),
            spans.eq(dwords > room),
            unaligned.eq(asked.prp1[:2].any() | (spans & asked.prp2[:PAGE_SHIFT].any())),
        ]
        request = self.read_request.payload
        m.d.comb += assign(request, kind=Kind.BLOCK, index=self.line)

        # Both lines in turn: the host's beat is kept until the other one comes.
        place = Signal(beat_bits + 1)
        answered = Signal(beat_bits + 1)
        kept = Signal(config.data_width, reset_less=True)
        differ, checks = Signal(), Signal()
        response, arrives = self.line_read.response, self.line_read.response_valid
        m.d.comb += self.line_read.request.payload.eq(
            Cat(place[1:], Mux(place[0], job.line, self.line))
        )
        meant = Const(1, 1)
        if config.sector_emulation:
            sector = answered[-SECTOR_BITS:]
            meant = (sector >= job.first) & (sector <= job.last)
        m.d.sync += [
            differ.eq(kept != response),
            checks.eq(arrives & comparing & answered[0] & meant),
        ]
        with m.If(arrives):
            m.d.sync += [answered.eq(answered + 1), kept.eq(response)]
        with m.If(checks & differ):
            m.d.sync += verdict.eq(Status.COMPARE_FAILURE)

        # One range after the other, from the bottom of a window of whole beats.
        width = max(config.data_width, RANGE_BITS)
        window = Signal(width, reset_less=True)
        beats_a_window = width // config.data_width
        ranges_a_window = width // RANGE_BITS
        have = Signal(range(beats_a_window + 1))
        left = Signal(range(ranges_a_window + 1))
        ranges_left = Signal(range((1 << len(asked.count)) + 1))
        beat = Signal(beat_bits)
        far, beyond = Signal(), Signal()
        m.d.comb += self.volume_read.address.eq(asked.volume)
        volume = self.volume_read.data
        length, begin = window[32:64], window[64:RANGE_BITS]
        # In the volume's logical blocks, which may be sectors.
        number_bits, blocks = BLOCK_NUMBER_BITS, volume.blocks
        if config.sector_emulation:
            number_bits += SECTOR_BITS
            blocks = Mux(asked.sectors, volume.blocks << SECTOR_BITS, volume.blocks)
        last_block = Signal(number_bits + 1)
        m.d.sync += [
            last_block.eq(begin[:number_bits] + length),
            far.eq(begin[number_bits:].any()),
            beyond.eq(far | (last_block > blocks)),
        ]

        def end(reason: StatusCode):
            m.d.sync += code.eq(status_field(reason))
            m.next = "END"

        with m.FSM(name="examine") as fsm:
            with m.State("CLAIM"):
                m.d.comb += self.allocate.ready.eq(1)
                m.d.sync += self.line.eq(self.allocate.payload)
                with m.If(self.allocate.valid):
                    m.next = "TAKE"

            with m.State("TAKE"):
                m.d.comb += [jobs.output.ready.eq(~takes_list), lists.output.ready.eq(takes_list)]
                m.d.sync += [
                    comparing.eq(~takes_list),
                    verdict.eq(Status.SUCCESS),
                    code.eq(0),
                    Cat(place, answered).eq(0),
                ]
                with m.If(takes_list):
                    m.d.sync += [asked.eq(lists.output.payload), was_block.eq(0)]
                    m.next = "MEASURE"
                with m.Elif(jobs.output.valid):
                    m.d.sync += [job.eq(jobs.output.payload), was_block.eq(1)]
                    m.next = "FETCH"

            with m.State("FETCH"):
                m.d.comb += [
                    self.fetch.valid.eq(1),
                    *assign(
                        self.fetch.payload, slot=job.slot, offset=job.offset, line=self.line
                    ),
                ]
                with m.If(self.fetch.ready):
                    m.next = "WAIT"

            # `dwords` and `room`, then `spans`, then `unaligned`.
            for name, following in (("MEASURE", "SPAN"), ("SPAN", "ALIGN"), ("ALIGN", "REQUEST")):
                with m.State(name):
                    m.next = following

            with m.State("REQUEST"):
                m.d.comb += [
                    self.read_request.valid.eq(~unaligned),
                    *assign(
                        request,
                        last=~spans,
                        address=asked.prp1,
                        dwords=Mux(spans, room, dwords),
                        target=Cat(Const(0, PAGE_SHIFT - 2), self.line),
                    ),
                ]
                with m.If(unaligned):
                    end(StatusCode.INVALID_PRP_OFFSET)
                with m.Elif(self.read_request.ready):
                    m.next = "WAIT"
                    with m.If(spans):
                        m.next = "REQUEST_REST"

            with m.State("REQUEST_REST"):
                m.d.comb += [
                    self.read_request.valid.eq(1),
                    *assign(
                        request,
                        last=1,
                        address=asked.prp2,
                        dwords=dwords - room,
                        target=Cat(room[: PAGE_SHIFT - 2], self.line),
                    ),
                ]
                with m.If(self.read_request.ready):
                    m.next = "WAIT"

            with m.State("WAIT"):
                m.d.comb += [self.waits.eq(1), self.fetched.ready.eq(1)]
                m.d.sync += [beat.eq(0), have.eq(0), ranges_left.eq(asked.count + 1)]
                with m.If(self.fetched.valid):
                    m.next = "ASK"
                    with m.If(comparing):
                        m.next = "SCAN"
                    with m.If(self.fetched.payload.error):
                        m.d.sync += [
                            verdict.eq(Status.DATA_TRANSFER_ERROR),
                            code.eq(status_field(StatusCode.DATA_TRANSFER_ERROR)),
                        ]
                        m.next = "END"
                        with m.If(comparing):
                            m.next = "REPORT"

            with m.State("SCAN"):
                m.d.comb += self.line_read.request.valid.eq(1)
                with m.If(self.line_read.request.ready):
                    m.d.sync += place.eq(place + 1)
                    with m.If(place == 2 * config.beats - 1):
                        m.next = "DRAIN"

            # `answered` wraps after the last beat, which is checked a cycle later.
            with m.State("DRAIN"):
                with m.If((answered == 0) & ~checks):
                    m.next = "REPORT"

            with m.State("REPORT"):
                m.d.comb += self.compared.valid.eq(1)
                with m.If(self.compared.ready):
                    m.next = "TAKE"

            with m.State("ASK"):
                m.d.comb += [
                    self.line_read.request.valid.eq(1),
                    self.line_read.request.payload.eq(Cat(beat, self.line)),
                ]
                with m.If(self.line_read.request.ready):
                    m.d.sync += beat.eq(beat + 1)
                    m.next = "SHIFT"

            with m.State("SHIFT"):
                m.d.sync += left.eq(ranges_a_window)
                with m.If(arrives):
                    m.d.sync += [window.eq(Cat(window, response)[-width:]), have.eq(have + 1)]
                    m.next = "ASK"
                    with m.If(have == beats_a_window - 1):
                        m.d.sync += have.eq(0)
                        m.next = "LOOK"

            # The sum, then the comparison, then the judgement.
            with m.State("LOOK"):
                m.next = "WEIGH"
            with m.State("WEIGH"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += [
                    window.eq(window >> RANGE_BITS),
                    left.eq(left - 1),
                    ranges_left.eq(ranges_left - 1),
                ]
                m.next = "LOOK"
                with m.If(left == 1):
                    m.next = "ASK"
                with m.If(ranges_left == 1):
                    m.next = "END"
                with m.If(~volume.valid):
                    end(StatusCode.INVALID_FIELD)
                with m.Elif(beyond):
                    end(StatusCode.LBA_OUT_OF_RANGE)

            with m.State("END"):
                m.d.comb += self.ended.valid.eq(1)
                with m.If(self.ended.ready):
                    m.next = "TAKE"

            m.d.comb += [
                *assign(self.compared.payload, line=job.line, status=verdict),
                *assign(self.ended.payload, slot=asked.slot, status=code),
            ]
            waits = (
                (fsm.ongoing("CLAIM") & ~self.allocate.valid)
                | (fsm.ongoing("TAKE") & (jobs.level == 0) & (lists.level == 0))
                | (self.fetch.valid & ~self.fetch.ready)
                | (self.read_request.valid & ~self.read_request.ready)
                | (self.waits & ~self.fetched.valid)
                | (self.compared.valid & ~self.compared.ready)
                | (self.ended.valid & ~self.ended.ready)
            )
            m.d.comb += self.busy.eq(~waits | self.compare.valid | self.ranges.valid)
        return m
