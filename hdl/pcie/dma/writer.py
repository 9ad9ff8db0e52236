"""Host memory writes: lines read, cut into TLPs, rotated to payload order; posts in between."""

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect

from hdl.config import Config
from hdl.flow.host_memory import write_request
from hdl.flow.line import ReadPort, line_stream
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.post import POST_DWORDS, post
from hdl.kit.cut import Relay, Skid
from hdl.kit.queue import Queue
from hdl.kit.simulation import SIMULATION
from hdl.memory.store import READ_LATENCY
from hdl.pcie.dma.reader import size_limit
from hdl.pcie.dma.rotate import rotate_right, words_of
from hdl.pcie.packets import PacketMerge
from hdl.pcie.tlp import RequestKind, request_beat

PAYLOAD_CODE_MOST = 3
"""Largest payload that is sent, as in Device Control: 128 << 3 is 1024 bytes, what the hard blocks
support (PG213, PG054)."""

PAYLOAD_BYTES_MOST = 128 << PAYLOAD_CODE_MOST

PREFETCH_BEATS_LEAST = 32
"""Beats read ahead, at least: covers the line store's latency and a run of bank conflicts."""

PREFETCH_BEATS_MORE = 16
"""Beats read ahead beyond those of the longest TLP, so that the next one follows at once."""

PREFETCH_CHUNKS = 16
"""TLPs cut ahead, at most: the smallest take one beat each."""

DONE_SLOTS = 4
"""Finished lines that wait to be reported before TLPs wait for them."""


def prefetch_beats(config: Config) -> int:
    """Beats read ahead: a TLP begins only when all of its beats have been asked for."""
    longest = PAYLOAD_BYTES_MOST // config.beat_bytes
    return max(PREFETCH_BEATS_LEAST, longest + PREFETCH_BEATS_MORE)


def write_chunk(config: Config) -> data.StructLayout:
    """One TLP: ``dwords`` words from word address ``source``; ``last`` ends the transfer.

    ``last_out``, ``last_in``: beats of the payload, and of the source that it touches, less one.
    """
    beat = range(1024 // config.beat_dwords + 1)
    return data.StructLayout(
        {
            "line": config.line_bits,
            "last": 1,
            "last_out": beat,
            "last_in": beat,
            "address": 64,
            "dwords": 11,
            "source": config.dword_address_bits,
        }
    )


class ChunkReader(wiring.Component):
    """Cuts write requests into TLPs and reads their beats ahead.

    Requests are cut at multiples of the maximum payload size, hence never cross 4 KiB, and of
    `PAYLOAD_BYTES_MOST`. ``chunk`` is offered when none of its beats can be late any more: whoever
    takes a beat a cycle from then on finds each there. ``beat`` carries the beats of all chunks in
    order, a beat that two chunks share twice. Throughput one beat a cycle, also from one chunk and
    one request to the next. No more beats are asked for than there is room for.

    The line store may refuse a request, but what it has taken it answers `READ_LATENCY` cycles
    later, and a request is taken each cycle at most. So once the last of n beats has been taken,
    beat k comes no later than n - k cycles before the last; it is enough to wait until the last
    beat will have come n cycles from then.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(write_request(config))),
                "status": Out(PcieStatus()),
                "line_read": Out(ReadPort(config)),
                "chunk": Out(stream.Signature(write_chunk(config))),
                "beat": Out(stream.Signature(config.data_width)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        width = config.beat_dwords
        shift = (width - 1).bit_length()
        low = READ_LATENCY.bit_length()
        layout = write_chunk(config)
        m.submodules.chunks = chunks = Queue(layout, PREFETCH_CHUNKS)
        depth = prefetch_beats(config)
        m.submodules.beats = beats = Queue(config.data_width, depth)

        # Cut: what is left of a request, and its next chunk.
        cutting = Signal()
        job = Signal(write_request(config))
        chunk = Signal(layout)
        code = Signal(2)
        room = Signal(11)
        final = Signal()
        takes_chunk = Signal()
        job_low = job.address[2:64]
        m.d.comb += [
            code.eq(
                Mux(
                    self.status.max_payload > PAYLOAD_CODE_MOST,
                    PAYLOAD_CODE_MOST,
                    self.status.max_payload,
                )
            ),
            room.eq((~job_low & size_limit(code)) + 1),
            final.eq(job.dwords <= room),
            chunk.line.eq(job.line),
            chunk.last.eq(job.last & final),
            chunk.address.eq(job.address),
            chunk.dwords.eq(Mux(final, job.dwords, room)),
            chunk.source.eq(job.source),
            chunk.last_out.eq((chunk.dwords - 1) >> shift),
            chunk.last_in.eq((chunk.source[:shift] + chunk.dwords - 1) >> shift),
            self.request.ready.eq(~cutting),
        ]
        with m.If(self.request.ready):
            m.d.sync += [cutting.eq(self.request.valid), job.eq(self.request.payload)]
        with m.Elif(takes_chunk):
            m.d.sync += [
                cutting.eq(~final),
                job.address[2:64].eq(job_low + room),
                job.source.eq(job.source + room),
                job.dwords.eq(job.dwords - room),
            ]

        # Read: the beats of a chunk. Its description goes ahead.
        reading = Signal()
        address = Signal(config.beat_address_bits)
        left = Signal(range(1024 // width + 2))  # beats still to ask for, less one
        delay = Signal(range(READ_LATENCY + 1))  # see below
        free = Signal(range(depth + 1), init=depth)
        has_room = Signal()  # `free` is not 0, or has been and is not any more
        asked = Signal()
        taken = Signal()
        question = data.StructLayout(
            {"address": config.beat_address_bits, "last": 1, "delay": range(READ_LATENCY + 1)}
        )
        m.submodules.skid = skid = Skid(question)
        asking = skid.output
        m.d.comb += [
            self.line_read.request.valid.eq(asking.valid),
            self.line_read.request.payload.eq(asking.payload.address),
            asking.ready.eq(self.line_read.request.ready),
            skid.input.valid.eq(reading & has_room),
            skid.input.payload.address.eq(address),
            skid.input.payload.last.eq(left == 0),
            skid.input.payload.delay.eq(delay),
            asked.eq(skid.input.valid & skid.input.ready),
            takes_chunk.eq(
                cutting & chunks.input.ready & (~reading | (asked & (left == 0)))
            ),
            chunks.input.valid.eq(takes_chunk),
            chunks.input.payload.eq(chunk),
            beats.input.valid.eq(self.line_read.response_valid),
            beats.input.payload.eq(self.line_read.response),
        ]
        m.d.sync += [
            taken.eq(self.beat.valid & self.beat.ready),  # a cycle late: what decides it is long
            free.eq(free - asked + taken),
            has_room.eq((free > 1) | ((free == 1) & ~asked)),
        ]
        with m.If(takes_chunk):
            m.d.sync += [
                reading.eq(1),
                address.eq(chunk.source[shift:]),
                left.eq(chunk.last_in),
                delay.eq(
                    Mux(chunk.last_in < READ_LATENCY, READ_LATENCY - chunk.last_in[:low], 0)
                ),
            ]
        with m.Elif(asked):
            m.d.sync += [
                reading.eq(left != 0),
                address.eq(address + 1),
                left.eq(left - 1),
            ]

        # Whole chunks. A chunk of n beats is one 2 cycles after its last has been taken, or
        # `READ_LATENCY` + 1 - n more: a beat needs as many cycles to the head of the FIFO.
        due = Signal(READ_LATENCY + 1)  # chunks that are whole in as many cycles as their place
        whole = Signal(range(PREFETCH_CHUNKS + 4))  # not taken yet
        has_whole = Signal()
        asked_all = Signal()
        leaves = Signal()
        m.d.comb += [
            asked_all.eq(asking.valid & asking.ready & asking.payload.last),
            leaves.eq(self.chunk.valid & self.chunk.ready),
        ]
        m.d.sync += [
            due.eq((due >> 1) | Mux(asked_all, 1 << asking.payload.delay, 0)),
            whole.eq(whole + due[0] - leaves),
            has_whole.eq(due[0] | (whole > 1) | ((whole == 1) & ~leaves)),
        ]

        m.submodules.chunk_relay = chunk_relay = Relay(layout)  # goes ahead of its beats anyway
        m.submodules.beat_skid = beat_skid = Skid(config.data_width)
        connect(m, beat_skid.output, wiring.flipped(self.beat))
        connect(m, beats.output, beat_skid.input)
        connect(m, chunks.output, chunk_relay.input)
        m.d.comb += [
            self.chunk.valid.eq(chunk_relay.output.valid & has_whole),
            self.chunk.payload.eq(chunk_relay.output.payload),
            chunk_relay.output.ready.eq(self.chunk.ready & has_whole),
            self.busy.eq(
                self.request.valid
                | cutting
                | reading
                | (free != depth)
                | chunks.output.valid
                | chunk_relay.output.valid
            ),
        ]
        return m


class HostWriter(wiring.Component):
    """Sends lines, completion queue entries and interrupts to host memory.

    One `write_done` a transfer, with its line, once the last beat of its last TLP has been handed
    over; a post taken after that arrives at the host after it. Between TLPs a waiting post goes
    next, alternating with TLPs of lines. A TLP begins only when all of its beats are sure to come,
    so ``tlp.valid`` stays 1 from its first beat to its last (asserted in simulations): a hard block
    may nullify a TLP whose data is late (PG213, PG156 "Requester Memory Write Operation").

    Ports
    -----
    request, done, line_read
        `hdl.flow.host_memory.write_request`; the lines that have been sent; where they are read.
    post
        Small writes, see `hdl.flow.post.post`.
    tlp
        Memory write requests.
    entered
        A pulse: all of a TLP will leave by ``tlp`` before whatever is handed over from now on.
        ``done`` and the taking of a post say nothing earlier.
    status
        Configuration space: the maximum payload size.

    Rate: aligned data (source and payload in the same words of a beat) one beat a cycle without a
    pause between TLPs, requests and lines; rotated data one cycle more a TLP, which its header
    takes on the link anyway. Latency about 10 cycles plus the line store's, and one for each beat
    of the first TLP after an idle time. No errors of its own.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(write_request(config))),
                "done": Out(line_stream(config)),
                "post": In(stream.Signature(post())),
                "tlp": Out(stream.Signature(request_beat(config))),
                "entered": Out(1),
                "line_read": Out(ReadPort(config)),
                "status": Out(PcieStatus()),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        width = config.beat_dwords
        shift = (width - 1).bit_length()
        m.submodules.reader = reader = ChunkReader(config=config)
        m.submodules.merge = merge = PacketMerge(config=config)
        m.submodules.done = done = Queue(config.line_bits, DONE_SLOTS)
        connect(m, wiring.flipped(self.request), reader.request)
        connect(m, reader.line_read, wiring.flipped(self.line_read))
        connect(m, merge.output, wiring.flipped(self.tlp))
        connect(m, done.output, wiring.flipped(self.done))
        m.d.comb += [
            reader.status.max_payload.eq(self.status.max_payload),
        ]

        # Emit: word i of the payload is word i + amount of the source, over two beats of it.
        chunk = reader.chunk.payload
        # A line is done when the merge has taken its last beat, so that no post overtakes it.
        tlp_beat = data.StructLayout(
            {"beat": request_beat(config), "ends": 1, "line": config.line_bits}
        )
        m.submodules.tlp_relay = tlp_relay = Relay(tlp_beat)
        leaving = tlp_relay.output
        tlp = tlp_relay.input
        outgoing = tlp.payload.beat
        m.d.comb += [
            merge.first_input.payload.eq(leaving.payload.beat),
            merge.first_input.valid.eq(leaving.valid),
            leaving.ready.eq(merge.first_input.ready),
            done.input.valid.eq(leaving.valid & leaving.ready & leaving.payload.ends),
            done.input.payload.eq(leaving.payload.line),
        ]
        # What is said of a line needs room before its last TLP begins.
        room = Signal(range(DONE_SLOTS + 1), init=DONE_SLOTS)
        has_room = Signal(init=1)
        promises = Signal()
        told = Signal()
        m.d.sync += [
            room.eq(room - promises + told),
            has_room.eq((room > 1) | ((room == 1) & ~promises)),
        ]
        amount = chunk.source[:shift]
        place = Signal(range(1024 // width + 1))  # beats of the payload sent
        primed = Signal()  # the first beat of the source is in `kept`
        kept = Signal(config.data_width)
        fresh = Signal(config.data_width)
        rotated = Signal()
        wants = Signal()
        holds = Signal(width)
        sends = Signal()
        ends = Signal()
        m.d.comb += [
            rotated.eq(amount != 0),
            # The last beat of a rotated payload may lie wholly in the previous beat.
            wants.eq(~rotated | ~primed | (place != chunk.last_in)),
            fresh.eq(Cat(rotate_right(words_of(reader.beat.payload), amount))),
            holds.eq(Cat(rotated & (place_ + amount < width) for place_ in range(width))),
            outgoing.kind.eq(RequestKind.WRITE),
            outgoing.address.eq(chunk.address),
            outgoing.dwords.eq(chunk.dwords),
            outgoing.relaxed.eq(1),
            outgoing.data.eq(
                Cat(
                    Mux(hold, old, new)
                    for hold, old, new in zip(
                        holds, words_of(kept), words_of(fresh), strict=True
                    )
                )
            ),
            outgoing.first.eq(place == 0),
            ends.eq(place == chunk.last_out),
            outgoing.last.eq(ends),
            tlp.valid.eq(
                reader.chunk.valid
                & (~rotated | primed)
                & (~wants | reader.beat.valid)
                & (has_room | ~chunk.last | ~outgoing.first)
            ),
            promises.eq(sends & outgoing.first & chunk.last),
            told.eq(self.done.valid & self.done.ready),
            sends.eq(tlp.valid & tlp.ready),
            reader.beat.ready.eq(
                reader.chunk.valid & wants & (sends | (rotated & ~primed))
            ),
            reader.chunk.ready.eq(sends & outgoing.last),
            tlp.payload.ends.eq(ends & chunk.last),
            tlp.payload.line.eq(chunk.line),
        ]
        with m.If(reader.beat.valid & reader.beat.ready):
            m.d.sync += kept.eq(fresh)
        with m.If(sends):
            m.d.sync += place.eq(Mux(outgoing.last, 0, place + 1))
        with m.If(reader.chunk.ready):
            m.d.sync += primed.eq(0)
        with m.Elif(reader.beat.valid & reader.beat.ready):
            m.d.sync += primed.eq(1)

        # Posts.
        small = self.post.payload
        beats = max(1, 32 * POST_DWORDS // config.data_width)
        offset = Signal(range(max(2, beats)))
        letter = merge.second_input
        m.d.comb += [
            letter.valid.eq(self.post.valid),
            letter.payload.kind.eq(RequestKind.WRITE),
            letter.payload.address.eq(small.address),
            letter.payload.dwords.eq(small.dwords),
            letter.payload.message.eq(small.message),
            letter.payload.data.eq(
                small.data.word_select(offset, config.data_width) if beats > 1 else small.data
            ),
            letter.payload.first.eq(offset == 0),
            letter.payload.last.eq(offset == (small.dwords - 1) >> shift),
            self.post.ready.eq(letter.ready & letter.payload.last),
        ]
        with m.If(letter.valid & letter.ready):
            m.d.sync += offset.eq(Mux(letter.payload.last, 0, offset + 1))

        m.d.comb += self.entered.eq(
            Cat(
                way.valid & way.ready & way.payload.last
                for way in (merge.first_input, merge.second_input)
            ).any()
        )
        if platform == SIMULATION:
            late = tlp_relay.input.ready & ~tlp.valid & ~outgoing.first
            m.d.sync += [
                Assert(~late, "the data of a TLP that has begun is late"),
                Assert(
                    done.input.ready | ~done.input.valid, "no room to say that a line has been sent"
                ),
            ]
        m.d.comb += self.busy.eq(
            Cat(reader.busy, tlp_relay.busy, merge.busy, self.post.valid, done.output.valid).any()
        )
        return m
