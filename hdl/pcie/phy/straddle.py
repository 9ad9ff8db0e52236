"""The straddled RC interface of the UltraScale+ PCIe block: several completions in a beat (PG213).

PG213, "Straddle Option on RC Interface": completions come as a continuous stream. One starts at
word 0 of a beat, or at any later multiple of 4 words once the one before it has ended; so a beat of
256 bits holds parts of up to two, one of 512 bits of up to four. ``tkeep`` and ``tlast`` say
nothing; ``tuser`` tells where completions start and end.

Without straddling a completion of 64 bytes takes 3 beats of 256 bits, and a PCIe 3.0 link of eight
lanes brings one every 2.67 cycles at 250 MHz: the block's completion buffer fills. With it, one
takes 2.5.
"""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import Out

from hdl.config import STRADDLE_WIDTH, Config, bits_for_count
from hdl.pcie.phy.axis import axis_ports
from hdl.pcie.phy.descriptors import RC_DESCRIPTOR_DWORDS, describe_completion
from hdl.pcie.phy.sideband import user_shape
from hdl.pcie.tlp import completion_beat

SEGMENT_DWORDS = 4
"""Words of a segment: completions start at multiples of it."""


class StraddledStripper(wiring.Component):
    """Takes the RC descriptor off completions that straddle: payload moves down to word 0.

    Its output, and which packets are dropped, are those of
    `hdl.pcie.phy.ultrascale.CompletionStripper`.

    How it works: a beat is segments of 4 words, each of which belongs to one completion. A
    completion that starts in segment t has its payload from word 4 t + 3 of that beat on, so a beat
    of its payload is that much of the beat before and the rest of this one: one rotation for each
    t. In a cycle a beat arrives, a packet that goes on gives a beat of payload, and the one that
    starts behind it gives nothing yet: only its descriptor is kept (and with the whole beat its
    first words). What takes more is done in turns, while the beat waits: ``place`` is the first
    segment that is still to do. The words that are left over at a packet's end (``tail``) leave
    with the next beat, if that gives no payload itself.

    Throughput: a beat a cycle, as long as that does not have to give more than a beat of payload a
    cycle. A completion of n words takes ceil((n + 3) / 4) segments, and gives ceil(n / w) beats of
    w words. Where payloads are multiples of a beat, no cycle is lost; completions of 64 bytes and
    more are, but for the ends of a request that is not aligned. Completions of a word each leave
    one a cycle. Latency 2 cycles, as without straddling. The output is registered; its
    back-pressure stops the input.

    Errors: ``discontinue`` poisons the completion that ends in the beat (PG213: no other one starts
    in it); were there others, it would poison them too.
    """

    def __init__(self, *, config: Config):
        if config.data_width < STRADDLE_WIDTH:
            raise ValueError(f"data_width must be 256 or 512, not {config.data_width}")
        self._config = config
        self._count = config.beat_dwords // SEGMENT_DWORDS
        super().__init__(
            {
                "completion": Out(stream.Signature(completion_beat(config))),
                "busy": Out(1),
                **axis_ports("rc", config.data_width),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        count = self._count
        segments = range(count)
        place_bits = bits_for_count(count)
        inside = Signal()  # the beat begins within a packet: see `turn`, `descriptor`, ..
        place = Signal(place_bits)  # segments before it have been dealt with
        starts = Signal(count)  # a packet starts in the segment, and has not been dealt with
        ends = Signal(count)
        end_words = [Signal(2, name=f"end_word_{segment}") for segment in segments]
        discontinue = self._read_user(m, inside, place, starts, ends, end_words)

        # Of the packet that is inside.
        descriptor = Signal(32 * RC_DESCRIPTOR_DWORDS)
        turn = Signal(place_bits)  # the segment that it started in
        owed = Signal()  # part of it has left
        broken = Signal()
        kept = Signal(self._config.data_width)  # the beat before

        # The packet that is dealt with: the one inside, or the next that starts.
        goes_on = Signal()
        active = Signal()
        closes = Signal()  # it ends in this beat
        head = Signal(place_bits)  # the next start
        newest = Signal(place_bits)  # the last start
        end = Signal(place_bits)
        end_word = Signal(2)
        m.d.comb += [
            goes_on.eq(inside & (place == 0)),
            active.eq(goes_on | starts.any()),
            closes.eq(ends.any()),
        ]
        for segment in reversed(segments):
            with m.If(starts[segment]):
                m.d.comb += head.eq(segment)
            with m.If(ends[segment]):
                m.d.comb += [end.eq(segment), end_word.eq(end_words[segment])]
        for segment in segments:
            with m.If(starts[segment]):
                m.d.comb += newest.eq(segment)

        # What follows it in the beat.
        follows = Signal()
        following = Signal(place_bits)
        ends_too = Signal()  # so what follows gives payload as well, and has its own turn
        for segment in reversed(segments):
            with m.If(starts[segment] & (end < segment)):
                m.d.comb += [follows.eq(closes), following.eq(segment)]
            with m.If(ends[segment] & (end < segment)):
                m.d.comb += ends_too.eq(1)

        begun = Signal(32 * RC_DESCRIPTOR_DWORDS)
        m.d.comb += begun.eq(Mux(goes_on, descriptor, self._descriptor_at(head)))
        stray, fields = describe_completion(begun)
        header = Signal(completion_beat(self._config))
        m.d.comb += [getattr(header, name).eq(value) for name, value in fields.items()]
        m.d.comb += header.poisoned.eq(fields["poisoned"] | discontinue | (goes_on & broken))

        tail = Signal()  # `kept` ends a packet that has left but for this
        tail_turn = Signal(place_bits)
        emits = Signal()
        tails = Signal()
        finishes = Signal()  # nothing is left to do of the beat
        room = Signal()
        goes = Signal()
        output = self.completion.payload
        m.d.comb += [
            emits.eq(active & ~stray & (goes_on | closes)),
            tails.eq(
                goes_on & closes & ~stray
                & ((end > turn) | ((end == turn) & (end_word == SEGMENT_DWORDS - 1)))
            ),
            finishes.eq(~follows | ~ends_too),
            room.eq(~self.completion.valid | self.completion.ready),
            self.rc_tready.eq(room & ~(tail & emits) & finishes),
            goes.eq(self.rc_tvalid & room & ~(tail & emits)),
            self.busy.eq(self.rc_tvalid | tail | self.completion.valid),
        ]
        with m.If(goes):
            m.d.sync += [
                kept.eq(self.rc_tdata),
                tail_turn.eq(turn),
                place.eq(Mux(finishes, 0, following)),
            ]
        with m.If(goes & finishes):
            m.d.sync += [
                inside.eq(Mux(closes, follows, active)),
                owed.eq(goes_on & ~closes),
                broken.eq(discontinue | (goes_on & ~closes & broken)),
            ]
            with m.If(starts.any()):
                m.d.sync += [turn.eq(newest), descriptor.eq(self._descriptor_at(newest))]
        with m.If(room):
            m.d.sync += [
                self.completion.valid.eq(tail | (goes & emits)),
                tail.eq(goes & tails),
            ]
            with m.If(tail):
                # The header is still that of the beat before, of the same packet.
                m.d.sync += [output.first.eq(0), output.last.eq(1)]
            with m.Elif(goes & emits):
                m.d.sync += [
                    output.eq(header),
                    output.first.eq(~(goes_on & owed)),
                    output.last.eq(closes & ~tails),
                ]
            with m.If(tail | (goes & emits)):
                m.d.sync += output.data.eq(
                    self._rotated(
                        Mux(tail | goes_on, kept, self.rc_tdata),
                        Mux(tail, tail_turn, Mux(goes_on, turn, head)),
                    )
                )
        return m

    def _read_user(self, m: Module, inside, place, starts, ends, end_words) -> Value:
        """Where packets start and end from ``place`` on; returns ``discontinue``."""
        user = Signal(user_shape("rc", self._config.data_width))
        all_starts = Signal(self._count)
        all_ends = Signal(self._count)
        m.d.comb += user.eq(self.rc_tuser)
        if self._config.data_width == STRADDLE_WIDTH:
            # The first start is behind what goes on, if anything does.
            m.d.comb += all_starts.eq(
                Mux(inside, user.start[0] << 1, Cat(user.start[0], user.start[1]))
            )
            for one in (user.end[0], user.end[1]):
                with m.If(one.valid):
                    m.d.comb += all_ends.bit_select(one.word[2:], 1).eq(1)
                    with m.Switch(one.word[2:]):
                        for segment in range(self._count):
                            with m.Case(segment):
                                m.d.comb += end_words[segment].eq(one.word[:2])
        else:
            for index in range(self._count):
                with m.If(user.start[index]):
                    m.d.comb += all_starts.bit_select(user.start_place[index], 1).eq(1)
                word = user.end_word[index]
                with m.If(user.end[index]):
                    m.d.comb += all_ends.bit_select(word[2:], 1).eq(1)
                    with m.Switch(word[2:]):
                        for segment in range(self._count):
                            with m.Case(segment):
                                m.d.comb += end_words[segment].eq(word[:2])
        left = Cat(place <= segment for segment in range(self._count))
        m.d.comb += [starts.eq(all_starts & left), ends.eq(all_ends & left)]
        return user.discontinue

    def _descriptor_at(self, segment: Value) -> Value:
        """The descriptor of a packet that starts in ``segment`` of the beat that arrives."""
        return Array(
            self.rc_tdata[128 * place :][: 32 * RC_DESCRIPTOR_DWORDS]
            for place in range(self._count)
        )[segment]

    def _rotated(self, earlier: Value, turn: Value) -> Value:
        """A beat of payload of a packet that started in segment ``turn``."""
        offsets = [
            32 * (SEGMENT_DWORDS * place + RC_DESCRIPTOR_DWORDS) for place in range(self._count)
        ]
        return Array(Cat(earlier[offset:], self.rc_tdata[:offset]) for offset in offsets)[turn]
