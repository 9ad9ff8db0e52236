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

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request
        See `hdl.flow.host_memory.write_request`.
    status
        Configuration space: the maximum payload size.
    line_read
        Where lines are read.
    chunk, beat
        TLPs, and their beats.
    busy
        Something moves.
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

        layout = write_chunk(config)
        self._depth = prefetch_beats(config)
        self._chunks = Queue(layout, PREFETCH_CHUNKS)
        self._beats = Queue(config.data_width, self._depth)
        self._chunk_relay = Relay(layout)  # goes ahead of its beats anyway
        self._beat_skid = Skid(config.data_width)
        self._question = Skid(
            data.StructLayout(
                {
                    "address": config.beat_address_bits,
                    "last": 1,
                    "delay": range(READ_LATENCY + 1),
                }
            )
        )

        # What is left of a request, and its next chunk.
        self._cutting = Signal()
        self._chunk = Signal(layout)
        self._takes_chunk = Signal()

        # The beats of a chunk that are asked for.
        self._reading = Signal()
        self._left = Signal(range(1024 // config.beat_dwords + 2))  # less one
        self._free = Signal(range(self._depth + 1), init=self._depth)
        self._asked = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.chunks = self._chunks
        m.submodules.beats = self._beats
        m.submodules.skid = self._question
        m.submodules.chunk_relay = self._chunk_relay
        m.submodules.beat_skid = self._beat_skid
        self._cut(m)
        self._ask(m)
        self._count_room(m)
        has_whole = self._count_whole(m)
        relay = self._chunk_relay.output
        connect(m, self._beat_skid.output, wiring.flipped(self.beat))
        connect(m, self._beats.output, self._beat_skid.input)
        connect(m, self._chunks.output, self._chunk_relay.input)
        m.d.comb += [
            self.chunk.valid.eq(relay.valid & has_whole),
            self.chunk.payload.eq(relay.payload),
            relay.ready.eq(self.chunk.ready & has_whole),
            self.busy.eq(
                self.request.valid
                | self._cutting
                | self._reading
                | (self._free != self._depth)
                | self._chunks.output.valid
                | relay.valid
            ),
        ]
        return m

    def _cut(self, m: Module) -> None:
        """The next chunk of a request."""
        chunk, cutting = self._chunk, self._cutting
        shift = (self._config.beat_dwords - 1).bit_length()
        job = Signal(write_request(self._config))
        code = Signal(2)
        room = Signal(11)
        final = Signal()
        low = job.address[2:64]
        most = self.status.max_payload > PAYLOAD_CODE_MOST
        m.d.comb += [
            code.eq(Mux(most, PAYLOAD_CODE_MOST, self.status.max_payload)),
            room.eq((~low & size_limit(code)) + 1),
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
        with m.Elif(self._takes_chunk):
            m.d.sync += [
                cutting.eq(~final),
                job.address[2:64].eq(low + room),
                job.source.eq(job.source + room),
                job.dwords.eq(job.dwords - room),
            ]

    def _ask(self, m: Module) -> None:
        """The beats of a chunk are asked for. Its description goes ahead."""
        chunk, left, asked = self._chunk, self._left, self._asked
        shift = (self._config.beat_dwords - 1).bit_length()
        address = Signal(self._config.beat_address_bits)
        delay = Signal(range(READ_LATENCY + 1))  # see `_count_whole`
        question, asking = self._question.input, self._question.output
        m.d.comb += [
            self.line_read.request.valid.eq(asking.valid),
            self.line_read.request.payload.eq(asking.payload.address),
            asking.ready.eq(self.line_read.request.ready),
            question.payload.address.eq(address),
            question.payload.last.eq(left == 0),
            question.payload.delay.eq(delay),
            asked.eq(question.valid & question.ready),
            self._takes_chunk.eq(
                self._cutting
                & self._chunks.input.ready
                & (~self._reading | (asked & (left == 0)))
            ),
            self._chunks.input.valid.eq(self._takes_chunk),
            self._chunks.input.payload.eq(chunk),
            self._beats.input.valid.eq(self.line_read.response_valid),
            self._beats.input.payload.eq(self.line_read.response),
        ]
        late = READ_LATENCY - chunk.last_in[: READ_LATENCY.bit_length()]
        with m.If(self._takes_chunk):
            m.d.sync += [
                self._reading.eq(1),
                address.eq(chunk.source[shift:]),
                left.eq(chunk.last_in),
                delay.eq(Mux(chunk.last_in < READ_LATENCY, late, 0)),
            ]
        with m.Elif(asked):
            m.d.sync += [
                self._reading.eq(left != 0),
                address.eq(address + 1),
                left.eq(left - 1),
            ]

    def _count_room(self, m: Module) -> None:
        """No more beats are asked for than there is room for."""
        free, asked = self._free, self._asked
        has_room = Signal()  # `free` is not 0, or has been and is not any more
        taken = Signal()
        m.d.comb += self._question.input.valid.eq(self._reading & has_room)
        m.d.sync += [
            taken.eq(self.beat.valid & self.beat.ready),  # a cycle late: what decides it is long
            free.eq(free - asked + taken),
            has_room.eq((free > 1) | ((free == 1) & ~asked)),
        ]

    def _count_whole(self, m: Module) -> Signal:
        """Whether there is a whole chunk that is not taken yet.

        A chunk of n beats is whole 2 cycles after its last has been taken, or `READ_LATENCY` + 1 -
        n more: a beat needs as many cycles to the head of the queue.
        """
        asking = self._question.output
        due = Signal(READ_LATENCY + 1)  # chunks that are whole in as many cycles as their place
        whole = Signal(range(PREFETCH_CHUNKS + 4))
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
        return has_whole


class HostWriter(wiring.Component):
    """Sends lines, completion queue entries and interrupts to host memory.

    One `write_done` a transfer, with its line, once the last beat of its last TLP has been handed
    over; a post taken after that arrives at the host after it. Between TLPs a waiting post goes
    next, alternating with TLPs of lines. A TLP begins only when all of its beats are sure to come,
    so ``tlp.valid`` stays 1 from its first beat to its last (asserted in simulations): a hard block
    may nullify a TLP whose data is late (PG213, PG156 "Requester Memory Write Operation").

    Parameters
    ----------
    config
        Sizes.

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
    busy
        Something moves.

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

        self._reader = ChunkReader(config=config)
        self._merge = PacketMerge(config=config)
        self._done = Queue(config.line_bits, DONE_SLOTS)
        # A line is done when the merge has taken its last beat, so that no post overtakes it.
        self._relay = Relay(
            data.StructLayout(
                {"beat": request_beat(config), "ends": 1, "line": config.line_bits}
            )
        )
        self._sends = Signal()
        self._has_room = Signal(init=1)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.reader = reader = self._reader
        m.submodules.merge = merge = self._merge
        m.submodules.done = done = self._done
        m.submodules.tlp_relay = relay = self._relay
        connect(m, wiring.flipped(self.request), reader.request)
        connect(m, reader.line_read, wiring.flipped(self.line_read))
        connect(m, merge.output, wiring.flipped(self.tlp))
        connect(m, done.output, wiring.flipped(self.done))
        m.d.comb += reader.status.max_payload.eq(self.status.max_payload)
        self._rotate(m)
        self._count_room(m)
        self._send_posts(m)
        leaving = relay.output
        m.d.comb += [
            merge.first_input.payload.eq(leaving.payload.beat),
            merge.first_input.valid.eq(leaving.valid),
            leaving.ready.eq(merge.first_input.ready),
            done.input.valid.eq(leaving.valid & leaving.ready & leaving.payload.ends),
            done.input.payload.eq(leaving.payload.line),
            self.entered.eq(
                Cat(
                    way.valid & way.ready & way.payload.last
                    for way in (merge.first_input, merge.second_input)
                ).any()
            ),
            self.busy.eq(
                Cat(
                    *(reader.busy, relay.busy, merge.busy, self.post.valid, done.output.valid)
                ).any()
            ),
        ]
        if platform == SIMULATION:
            late = relay.input.ready & ~relay.input.valid & ~relay.input.payload.beat.first
            told = done.input.ready | ~done.input.valid
            m.d.sync += [
                Assert(~late, "the data of a TLP that has begun is late"),
                Assert(told, "no room to say that a line has been sent"),
            ]
        return m

    def _rotate(self, m: Module) -> None:
        """Word i of the payload is word i + amount of the source, over two beats of it."""
        config, reader, tlp = self._config, self._reader, self._relay.input
        chunk, outgoing, sends = reader.chunk.payload, tlp.payload.beat, self._sends
        width = config.beat_dwords
        amount = chunk.source[: (width - 1).bit_length()]
        place = Signal(range(1024 // width + 1))  # beats of the payload sent
        primed = Signal()  # the first beat of the source is in `kept`
        kept = Signal(config.data_width)
        fresh = Signal(config.data_width)
        rotated = Signal()
        wants = Signal()
        holds = Signal(width)
        ends = Signal()
        merged = (
            Mux(hold, old, new)
            for hold, old, new in zip(holds, words_of(kept), words_of(fresh), strict=True)
        )
        m.d.comb += [
            rotated.eq(amount != 0),
            # The last beat of a rotated payload may lie wholly in the previous beat.
            wants.eq(~rotated | ~primed | (place != chunk.last_in)),
            fresh.eq(Cat(rotate_right(words_of(reader.beat.payload), amount))),
            holds.eq(Cat(rotated & (word + amount < width) for word in range(width))),
            outgoing.kind.eq(RequestKind.WRITE),
            outgoing.address.eq(chunk.address),
            outgoing.dwords.eq(chunk.dwords),
            outgoing.relaxed.eq(1),
            outgoing.data.eq(Cat(merged)),
            outgoing.first.eq(place == 0),
            ends.eq(place == chunk.last_out),
            outgoing.last.eq(ends),
            tlp.payload.ends.eq(ends & chunk.last),
            tlp.payload.line.eq(chunk.line),
            tlp.valid.eq(
                reader.chunk.valid
                & (~rotated | primed)
                & (~wants | reader.beat.valid)
                & (self._has_room | ~chunk.last | ~outgoing.first)
            ),
            sends.eq(tlp.valid & tlp.ready),
            reader.beat.ready.eq(reader.chunk.valid & wants & (sends | (rotated & ~primed))),
            reader.chunk.ready.eq(sends & outgoing.last),
        ]
        with m.If(reader.beat.valid & reader.beat.ready):
            m.d.sync += kept.eq(fresh)
        with m.If(sends):
            m.d.sync += place.eq(Mux(outgoing.last, 0, place + 1))
        with m.If(reader.chunk.ready):
            m.d.sync += primed.eq(0)
        with m.Elif(reader.beat.valid & reader.beat.ready):
            m.d.sync += primed.eq(1)

    def _count_room(self, m: Module) -> None:
        """What is said of a line needs room before its last TLP begins."""
        outgoing = self._relay.input.payload.beat
        room = Signal(range(DONE_SLOTS + 1), init=DONE_SLOTS)
        promises = Signal()
        told = Signal()
        m.d.comb += [
            promises.eq(self._sends & outgoing.first & self._reader.chunk.payload.last),
            told.eq(self.done.valid & self.done.ready),
        ]
        m.d.sync += [
            room.eq(room - promises + told),
            self._has_room.eq((room > 1) | ((room == 1) & ~promises)),
        ]

    def _send_posts(self, m: Module) -> None:
        """Posts go between the TLPs of lines."""
        width, small, letter = self._config.data_width, self.post.payload, self._merge.second_input
        shift = (self._config.beat_dwords - 1).bit_length()
        beats = max(1, 32 * POST_DWORDS // width)
        offset = Signal(range(max(2, beats)))
        part = small.data.word_select(offset, width) if beats > 1 else small.data
        m.d.comb += [
            letter.valid.eq(self.post.valid),
            letter.payload.kind.eq(RequestKind.WRITE),
            letter.payload.address.eq(small.address),
            letter.payload.dwords.eq(small.dwords),
            letter.payload.message.eq(small.message),
            letter.payload.data.eq(part),
            letter.payload.first.eq(offset == 0),
            letter.payload.last.eq(offset == (small.dwords - 1) >> shift),
            self.post.ready.eq(letter.ready & letter.payload.last),
        ]
        with m.If(letter.valid & letter.ready):
            m.d.sync += offset.eq(Mux(letter.payload.last, 0, offset + 1))
