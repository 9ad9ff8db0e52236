"""The straddled RC interface of the UltraScale+ PCIe block: several completions in a beat (PG213).

PG213, "Straddle Option on RC Interface": completions come as a continuous stream. One starts at
word 0 of a beat, or at any later multiple of 4 words once the one before it has ended. So a beat of
256 bits holds parts of up to two, one of 512 bits of up to four. ``tkeep`` and ``tlast`` say
nothing. ``tuser`` tells where completions start and end.

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

    A beat is made of segments of 4 words, each of which belongs to one completion. A completion
    that starts in segment t has its payload from word 4 t + 3 of that beat on. So a beat of its
    payload is that much of the beat before and the rest of this one, with one rotation for each t.

    When a beat arrives, a packet that goes on gives a beat of payload. The one that starts behind
    it gives nothing yet. Only its descriptor is kept, and with the whole beat its first words. What
    takes more is done in turns, while the beat waits. ``place`` is the first segment that is still
    to do. The words that are left over at a packet's end (``tail``) leave with the next beat, if
    that gives no payload itself.

    The throughput is a beat a cycle, as long as that does not have to give more than a beat of
    payload a cycle. A completion of n words takes ceil((n + 3) / 4) segments, and gives ceil(n / w)
    beats of w words. Where payloads are multiples of a beat, no cycle is lost. Completions of 64
    bytes and more are such multiples, but for the ends of a request that is not aligned.
    Completions of a word each leave one a cycle. The latency is 2 cycles, as without straddling.
    The output is registered. Its back-pressure stops the input.

    ``discontinue`` poisons the completion that ends in the beat. PG213 says that no other one
    starts in it. If others did, they would be poisoned too.

    Parameters
    ----------
    config
        ``data_width`` 256 or 512.

    Ports
    -----
    rc_*
        The RC interface of the block.
    completion
        Completions without descriptor.
    busy
        Something is on its way.
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

        # Of the beat that arrives: what is still to do.
        segment = bits_for_count(self._count)
        self._place = Signal(segment)  # segments before it have been dealt with
        self._starts = Signal(self._count)  # a packet starts in the segment
        self._ends = Signal(self._count)
        self._end_words = [Signal(2, name=f"end_word_{n}") for n in range(self._count)]
        self._user = Signal(user_shape("rc", config.data_width))
        self._discontinue = self._user.discontinue

        # Of the packet that is inside.
        self._inside = Signal()  # the beat begins within a packet
        self._descriptor = Signal(32 * RC_DESCRIPTOR_DWORDS)
        self._turn = Signal(segment)  # the segment that it started in
        self._owed = Signal()  # part of it has left
        self._broken = Signal()
        self._kept = Signal(config.data_width)  # the beat before

        # The packet that is dealt with: the one inside, or the next that starts.
        self._goes_on = Signal()
        self._active = Signal()
        self._closes = Signal()  # it ends in this beat
        self._head = Signal(segment)  # the next start
        self._newest = Signal(segment)  # the last start
        self._end = Signal(segment)
        self._end_word = Signal(2)
        self._header = Signal(completion_beat(config))
        self._stray = Signal()  # it is dropped

        # What follows it in the beat.
        self._follows = Signal()
        self._following = Signal(segment)
        self._ends_too = Signal()  # so what follows gives payload as well, and has its own turn

        # What leaves.
        self._tail = Signal()  # `kept` ends a packet that has left but for this
        self._tail_turn = Signal(segment)
        self._emits = Signal()
        self._tails = Signal()  # the end of the packet becomes the tail
        self._finishes = Signal()  # nothing is left to do of the beat
        self._room = Signal()
        self._goes = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        self._read_user(m)
        self._find_packet(m)
        self._find_following(m)
        self._describe(m)
        self._decide(m)
        self._keep(m)
        self._emit(m)
        return m

    def _read_user(self, m: Module) -> None:
        """Where packets start and end from ``place`` on."""
        user = self._user
        all_starts = Signal(self._count)
        all_ends = Signal(self._count)
        m.d.comb += user.eq(self.rc_tuser)
        if self._config.data_width == STRADDLE_WIDTH:
            # The first start is behind what goes on, if anything does.
            first, both = user.start[0] << 1, Cat(user.start[0], user.start[1])
            m.d.comb += all_starts.eq(Mux(self._inside, first, both))
            for one in (user.end[0], user.end[1]):
                self._note_end(m, all_ends, one.valid, one.word)
        else:
            for index in range(self._count):
                with m.If(user.start[index]):
                    m.d.comb += all_starts.bit_select(user.start_place[index], 1).eq(1)
                self._note_end(m, all_ends, user.end[index], user.end_word[index])
        left = Cat(self._place <= segment for segment in range(self._count))
        m.d.comb += [self._starts.eq(all_starts & left), self._ends.eq(all_ends & left)]

    def _note_end(self, m: Module, all_ends: Signal, valid: Value, word: Value) -> None:
        """If ``valid``, a packet ends in ``word`` of the beat."""
        with m.If(valid):
            m.d.comb += all_ends.bit_select(word[2:], 1).eq(1)
            with m.Switch(word[2:]):
                for segment in range(self._count):
                    with m.Case(segment):
                        m.d.comb += self._end_words[segment].eq(word[:2])

    def _find_packet(self, m: Module) -> None:
        """The packet that is dealt with, and where it ends in the beat."""
        starts, ends = self._starts, self._ends
        m.d.comb += [
            self._goes_on.eq(self._inside & (self._place == 0)),
            self._active.eq(self._goes_on | starts.any()),
            self._closes.eq(ends.any()),
        ]
        for segment in reversed(range(self._count)):
            with m.If(starts[segment]):
                m.d.comb += self._head.eq(segment)
            with m.If(ends[segment]):
                m.d.comb += [
                    self._end.eq(segment),
                    self._end_word.eq(self._end_words[segment]),
                ]
        for segment in range(self._count):
            with m.If(starts[segment]):
                m.d.comb += self._newest.eq(segment)

    def _find_following(self, m: Module) -> None:
        """The packet that follows it in the beat."""
        for segment in reversed(range(self._count)):
            behind = self._end < segment
            with m.If(self._starts[segment] & behind):
                m.d.comb += [self._follows.eq(self._closes), self._following.eq(segment)]
            with m.If(self._ends[segment] & behind):
                m.d.comb += self._ends_too.eq(1)

    def _describe(self, m: Module) -> None:
        """What the descriptor says of the packet."""
        begun = Signal(32 * RC_DESCRIPTOR_DWORDS)
        new = self._descriptor_at(self._head)
        m.d.comb += begun.eq(Mux(self._goes_on, self._descriptor, new))
        stray, fields = describe_completion(begun)
        m.d.comb += self._stray.eq(stray)
        m.d.comb += [getattr(self._header, name).eq(value) for name, value in fields.items()]
        m.d.comb += self._header.poisoned.eq(
            fields["poisoned"] | self._discontinue | (self._goes_on & self._broken)
        )

    def _decide(self, m: Module) -> None:
        """What is done in this cycle."""
        end, turn, closes, output = self._end, self._turn, self._closes, self.completion
        behind_turn = (end == turn) & (self._end_word == SEGMENT_DWORDS - 1)
        tail_first = self._tail & self._emits
        m.d.comb += [
            self._emits.eq(self._active & ~self._stray & (self._goes_on | closes)),
            self._tails.eq(
                self._goes_on & closes & ~self._stray & ((end > turn) | behind_turn)
            ),
            self._finishes.eq(~self._follows | ~self._ends_too),
            self._room.eq(~output.valid | output.ready),
            self.rc_tready.eq(self._room & ~tail_first & self._finishes),
            self._goes.eq(self.rc_tvalid & self._room & ~tail_first),
            self.busy.eq(self.rc_tvalid | self._tail | output.valid),
        ]

    def _keep(self, m: Module) -> None:
        """What is kept for the beats that follow."""
        goes_on, closes = self._goes_on, self._closes
        with m.If(self._goes):
            m.d.sync += [
                self._kept.eq(self.rc_tdata),
                self._tail_turn.eq(self._turn),
                self._place.eq(Mux(self._finishes, 0, self._following)),
            ]
        with m.If(self._goes & self._finishes):
            m.d.sync += [
                self._inside.eq(Mux(closes, self._follows, self._active)),
                self._owed.eq(goes_on & ~closes),
                self._broken.eq(self._discontinue | (goes_on & ~closes & self._broken)),
            ]
            with m.If(self._starts.any()):
                m.d.sync += [
                    self._turn.eq(self._newest),
                    self._descriptor.eq(self._descriptor_at(self._newest)),
                ]

    def _emit(self, m: Module) -> None:
        """The beat of payload that leaves."""
        tail, goes_on, output = self._tail, self._goes_on, self.completion.payload
        emits = self._goes & self._emits
        with m.If(self._room):
            m.d.sync += [
                self.completion.valid.eq(tail | emits),
                tail.eq(self._goes & self._tails),
            ]
            with m.If(tail):
                # The header is still that of the beat before, of the same packet.
                m.d.sync += [output.first.eq(0), output.last.eq(1)]
            with m.Elif(emits):
                m.d.sync += [
                    output.eq(self._header),
                    output.first.eq(~(goes_on & self._owed)),
                    output.last.eq(self._closes & ~self._tails),
                ]
            with m.If(tail | emits):
                earlier = Mux(tail | goes_on, self._kept, self.rc_tdata)
                turn = Mux(tail, self._tail_turn, Mux(goes_on, self._turn, self._head))
                m.d.sync += output.data.eq(self._rotated(earlier, turn))

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
