"""Completions of host reads land in place: check, rotate to the target's alignment, write."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.host_memory import Kind, inbox_beat, read_index_bits, target_bits
from hdl.flow.line import write_port
from hdl.kit.cut import Relay
from hdl.kit.pulse import Pulse
from hdl.pcie.dma.rotate import below, rotate_left, words_of
from hdl.pcie.dma.transfers import read_ended
from hdl.pcie.tlp import CompletionStatus, completion_beat

PAGE_DWORD_BITS = 10
"""Width of a word address within 4 KiB, which no request crosses."""


def read_origin(config: Config) -> data.StructLayout:
    """What a tag was sent for: ``dwords`` words from host word address ``low`` to ``target``."""
    return data.StructLayout(
        {
            "kind": Kind,
            "index": read_index_bits(config),
            "target": target_bits(config),
            "low": PAGE_DWORD_BITS,
            "dwords": 11,
        }
    )


def described(config: Config) -> data.StructLayout:
    """Where the data of the read with tag ``tag`` goes."""
    return data.StructLayout(
        {"tag": bits_for_count(config.read_tags), "origin": read_origin(config)}
    )


class Landing(wiring.Component):
    """Writes completion payload to the line store or the inbox, wherever its tag's data belongs.

    Completions of different tags may interleave in any way; those of one tag come in address
    order, cut anywhere. A tag is closed with the last beat of its last completion, and reported on
    ``ended`` when every beat has been accepted by its memory.

    Errors: a completion with a status other than SC ends its read with ``error``. A poisoned one
    is counted and makes its read end with ``error``. One whose byte count, lower address or length
    is not the expected one ends its read with ``error`` and ``quarantine``, as does a tag that is
    given up. Completions of tags that are not live as they begin are dropped, whole. What was
    written for a read that ends with an error is undefined, but lies within its target.

    Throughput one beat a cycle; a completion whose data straddles one more beat of its target than
    it has itself takes one cycle more, which a completion's descriptor leaves idle anyway.
    Latency 3 cycles to the write, 5 to ``ended``. Back-pressure from the memories stops the input.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    completion
        Beats from the host, see `hdl.pcie.tlp`.
    line_write
        Where data for lines goes (`hdl.flow.line`).
    inbox_write
        Where data for the inbox goes (`hdl.flow.host_memory`).
    described
        A tag, before its request is sent, and where its data goes.
    lookup
        To the tag table: a tag.
    live
        From the tag table: that tag is in use.
    close
        To the tag table, a pulse: closes that tag.
    completed
        A pulse: what has been dealt with was marked as the last completion of ``lookup``.
    abandon_valid
        Gives up a tag, between completions. It may be withdrawn.
    abandon_tag
        That tag.
    abandon_quarantine
        Completions of it may still come.
    abandon_taken
        It is given up.
    cut
        The rest of a completion that has begun will not come.
    ended
        A read is over, see `hdl.pcie.dma.transfers.read_ended`.
    cleared
        The progress of every tag has been cleared after reset (one cycle a tag).
    busy
        Something moves.
    """

    def __init__(self, *, config: Config):
        self._config = config
        tag_bits = bits_for_count(config.read_tags)
        super().__init__(
            {
                "completion": In(stream.Signature(completion_beat(config))),
                "line_write": Out(write_port(config)),
                "inbox_write": Out(stream.Signature(inbox_beat(config))),
                "described": In(Pulse(described(config))),
                "lookup": Out(tag_bits),
                "live": In(1),
                "close": Out(1),
                "completed": Out(1),
                "abandon_valid": In(1),
                "abandon_tag": In(tag_bits),
                "abandon_quarantine": In(1),
                "abandon_taken": Out(1),
                "cut": In(1),
                "ended": Out(stream.Signature(read_ended(config))),
                "cleared": Out(1),
                "busy": Out(1),
            }
        )

        tag_bits = bits_for_count(config.read_tags)
        width = config.beat_dwords
        self._origins = Memory(shape=read_origin(config), depth=config.read_tags, init=[])
        self._get_origin = self._origins.read_port()
        self._progress = Memory(
            shape=data.StructLayout({"received": 11, "error": 1}), depth=config.read_tags, init=[]
        )
        self._put_progress = self._progress.write_port()
        self._get_progress = self._progress.read_port(transparent_for=(self._put_progress,))

        # Stage 0: a beat, or a tag that is given up.
        self._s0_valid = Signal()
        self._s0_abandon = Signal()
        self._s0_tag = Signal(tag_bits)

        # Stage 1: the beat that is checked, and what was found. Its tag's entries are read again
        # with every beat and change only after the last.
        self._s1_takes = Signal()
        self._s1_valid = Signal()
        self._s1_abandon = Signal()
        self._s1_quarantine = Signal()
        self._s1_beat = Signal(completion_beat(config))
        self._s1_tag = Signal(tag_bits)
        self._s1_goes = Signal()  # has something for stage 2
        self._s1_moves = Signal()
        self._base = Signal(target_bits(config))  # where the beat's first word goes
        self._left = Signal(11)  # words of the completion from this beat on
        self._total = Signal(12)  # words of the tag once the completion has ended
        self._live = Signal()
        self._writes = Signal()
        self._bad_data = Signal()
        self._refused = Signal()
        self._broken = Signal()
        self._closes = Signal()

        self._known_tag = self._s1_beat.tag[tag_bits:] == 0

        # Stage 2: the words, rotated to their place in the target.
        self._s2_takes = Signal()
        self._s2_valid = Signal()
        self._s2_joins = Signal()  # what the beat before it left over is of the same completion
        self._s2_last = Signal()
        self._s2_closes = Signal()
        self._s2_words = Signal(config.data_width)
        self._s2_mask = Signal(width)
        self._s2_low = Signal(width)  # places below the rotation: their words are of the next beat
        self._s2_address = Signal(target_bits(config) - (width - 1).bit_length())
        self._s2_end = Signal(read_ended(config))
        self._spills = Signal()
        self._spilling = Signal()

        # Stage 3: the write, and the end that may be reported once it is accepted.
        self._s3 = Relay(
            data.StructLayout(
                {
                    "line": 1,
                    "inbox": 1,
                    "ends": 1,
                    "end": read_ended(config),
                    "data": config.data_width,
                    "mask": width,
                    "address": len(self._s2_address),
                }
            )
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.origins = self._origins
        m.submodules.progress = self._progress
        m.submodules.s3 = self._s3
        self._look_up(m)
        self._take(m)
        self._check(m)
        self._close(m)
        self._note_progress(m)
        self._rotate(m)
        self._merge(m)
        self._write(m)
        m.d.comb += self.busy.eq(
            ~self.cleared
            | self.completion.valid
            | self.abandon_valid
            | self._s1_valid
            | self._s2_valid
            | self._s3.busy
            | self._s3.output.valid
            | self.ended.valid
        )
        return m

    def _look_up(self, m: Module) -> None:
        """Stage 0: a beat, or between completions a tag that is given up; both look up their tag.
        """
        put_origin, get_origin = self._origins.write_port(), self._get_origin
        between = Signal(init=1)
        takes, abandon = self._s1_takes, self._s0_abandon
        m.d.comb += [
            put_origin.addr.eq(self.described.payload.tag),
            put_origin.data.eq(self.described.payload.origin),
            put_origin.en.eq(self.described.valid),
            abandon.eq(between & self.abandon_valid),
            self._s0_valid.eq(abandon | self.completion.valid),
            self._s0_tag.eq(Mux(abandon, self.abandon_tag, self.completion.payload.tag)),
            self.completion.ready.eq(takes & ~abandon),
            self.abandon_taken.eq(takes & abandon),
            get_origin.addr.eq(self._s0_tag),
            get_origin.en.eq(takes),
            self._get_progress.addr.eq(self._s0_tag),
            self._get_progress.en.eq(takes),
        ]
        with m.If(self.completion.valid & self.completion.ready):
            m.d.sync += between.eq(self.completion.payload.last)
        with m.If(self.cut):
            m.d.sync += between.eq(1)

    def _take(self, m: Module) -> None:
        """Stage 1 takes the beat, or the tag that is given up."""
        beat = self._s1_beat
        m.d.comb += self._s1_takes.eq(self.cleared & (~self._s1_valid | self._s1_moves))
        with m.If(self._s1_takes):
            m.d.sync += [
                self._s1_valid.eq(self._s0_valid),
                self._s1_abandon.eq(self._s0_abandon),
                self._s1_quarantine.eq(self.abandon_quarantine),
                beat.eq(self.completion.payload),
                self._s1_tag.eq(self._s0_tag),
            ]
            with m.If(self._s0_abandon):
                m.d.sync += [beat.first.eq(1), beat.last.eq(1)]

    def _check(self, m: Module) -> None:
        """Stage 1: checks the header against what is due, and finds the target."""
        config, beat, origin = self._config, self._s1_beat, self._get_origin.data
        width = config.beat_dwords
        address_bits = config.completion_address_bits
        received = self._get_progress.data.received
        due = Signal(11)
        expected = Signal()
        fills = Signal()
        short = Signal()
        long = Signal()
        # Of earlier beats of the completion: one was bad, the tag was live, and what was left.
        tainted = Signal()
        kept_live = Signal()
        kept_base = Signal.like(self._base)
        kept_left = Signal.like(self._left)
        address = ((origin.low + received)[:PAGE_DWORD_BITS] << 2)[:address_bits]
        m.d.comb += [
            due.eq(origin.dwords - received),
            self._total.eq(received + beat.dwords),
            self._refused.eq(beat.status != CompletionStatus.SC),
            expected.eq(
                (beat.byte_count == due << 2)
                & (beat.lower_address[:address_bits] == address)
                & (beat.dwords != 0)
                & (beat.dwords <= due)
            ),
            fills.eq(self._total == origin.dwords),
            self._base.eq(Mux(beat.first, origin.target + received, kept_base)),
            self._left.eq(Mux(beat.first, beat.dwords, kept_left)),
            self.lookup.eq(self._s1_tag),
            # A tag that is handed out in the middle of a completion has nothing to do with it.
            self._live.eq(
                self.live & Mux(beat.first, self._s1_abandon | self._known_tag, kept_live)
            ),
            self._writes.eq(self._live & expected & ~self._refused & ~self._s1_abandon),
            short.eq(beat.last & (self._left > width)),
            long.eq(~beat.last & (self._left <= width)),
            self._bad_data.eq(beat.poisoned | long | (tainted & ~beat.first)),
            self._broken.eq(
                ~self._refused & (~expected | short | (beat.request_completed & ~fills))
            ),
            self._closes.eq(
                self._live
                & beat.last
                & (self._s1_abandon | self._refused | self._broken | fills)
            ),
            self._s1_goes.eq(self._writes | self._closes),
        ]
        with m.If(self._s1_moves):
            m.d.sync += [
                tainted.eq(self._bad_data),
                kept_live.eq(self._live),
                kept_base.eq(self._base + width),
                kept_left.eq(Mux(self._left > width, self._left - width, 0)),
            ]

    def _close(self, m: Module) -> None:
        """Tells the tag table what has become of the tag, once the beat goes on."""
        beat, moves = self._s1_beat, self._s1_moves
        m.d.comb += [
            # What is dropped waits as well: the check is too long to decide that in time.
            moves.eq(self._s1_valid & self._s2_takes),
            self.close.eq(moves & self._closes),
            self.completed.eq(
                moves
                & ~self._s1_abandon
                & beat.last
                & beat.request_completed
                & self._known_tag
                & (self._live | ~self.live)
            ),
        ]

    def _note_progress(self, m: Module) -> None:
        """Progress of the tag: kept after a completion, cleared for the next use of a closed tag.
        """
        put, beat = self._put_progress, self._s1_beat
        place = Signal(range(self._config.read_tags))
        with m.If(~self.cleared):
            m.d.comb += [put.addr.eq(place), put.en.eq(1)]
            m.d.sync += place.eq(place + 1)
            with m.If(place == self._config.read_tags - 1):
                m.d.sync += self.cleared.eq(1)
        with m.Else():
            m.d.comb += [
                put.addr.eq(self._s1_tag),
                put.en.eq(self._s1_moves & self._live & beat.last),
            ]
            with m.If(~self._closes):
                m.d.comb += [
                    put.data.received.eq(self._total),
                    put.data.error.eq(self._get_progress.data.error | self._bad_data),
                ]

    def _rotate(self, m: Module) -> None:
        """From stage 1 to stage 2: the words are rotated to their place in the target."""
        beat, origin, end = self._s1_beat, self._get_origin.data, self._s2_end
        width = self._config.beat_dwords
        shift = (width - 1).bit_length()
        amount = self._base[:shift]
        mask = Cat(rotate_left(list(below(self._left, width)), amount))
        failed = self._s1_abandon | self._refused | self._broken | self._bad_data
        with m.If(self._s2_takes):
            m.d.sync += [
                self._s2_valid.eq(self._s1_valid & self._s1_goes),
                self._s2_joins.eq(self._writes & ~beat.first),
                self._s2_last.eq(beat.last),
                self._s2_closes.eq(self._closes),
                self._s2_words.eq(Cat(rotate_left(words_of(beat.data), amount))),
                self._s2_mask.eq(Mux(self._writes, mask, 0)),
                self._s2_low.eq(below(amount, width)),
                self._s2_address.eq(self._base[shift:]),
                end.kind.eq(origin.kind),
                end.index.eq(origin.index),
                end.tag.eq(self._s1_tag),
                end.error.eq(failed | self._get_progress.data.error),
                end.quarantine.eq(Mux(self._s1_abandon, self._s1_quarantine, self._broken)),
            ]

    def _merge(self, m: Module) -> None:
        """Stage 2: merges with what the previous beat left over; a last beat may need one more."""
        config, low, coming = self._config, self._s2_low, self._s3.input.payload
        spills, spilling, end = self._spills, self._spilling, self._s2_end
        takes = self._s3.input.ready
        kept_words = Signal(config.data_width)
        kept_mask = Signal(config.beat_dwords)
        mask = Signal(config.beat_dwords)
        m.d.comb += [
            spills.eq(self._s2_last & (self._s2_mask & low).any()),
            self._s2_takes.eq(~self._s2_valid | (takes & (~spills | spilling))),
        ]
        with m.If(self._s2_valid & takes):
            m.d.sync += [
                spilling.eq(spills & ~spilling),
                kept_words.eq(self._s2_words),
                kept_mask.eq(self._s2_mask),
            ]
        merged = [
            Mux(low[place] & ~spilling, old, new)
            for place, (old, new) in enumerate(
                zip(words_of(kept_words), words_of(self._s2_words), strict=True)
            )
        ]
        with m.If(spilling):
            m.d.comb += [
                mask.eq(self._s2_mask & low),
                coming.address.eq(self._s2_address + 1),
            ]
        with m.Else():
            m.d.comb += [
                mask.eq((self._s2_mask & ~low) | Mux(self._s2_joins, kept_mask & low, 0)),
                coming.address.eq(self._s2_address),
            ]
        m.d.comb += [
            self._s3.input.valid.eq(self._s2_valid),
            coming.line.eq(mask.any() & (end.kind == Kind.BLOCK)),
            coming.inbox.eq(mask.any() & (end.kind != Kind.BLOCK)),
            coming.ends.eq(self._s2_closes & (~spills | spilling)),
            coming.end.eq(end),
            coming.data.eq(Cat(merged)),
            coming.mask.eq(mask),
        ]

    def _write(self, m: Module) -> None:
        """Stage 3: the write, then the end of the read."""
        output = self._s3.output
        beat = output.payload
        passed = Signal()  # the beat has been accepted, its end not yet
        written = Signal()
        reports = Signal()
        m.d.comb += [
            self.line_write.valid.eq(output.valid & beat.line & ~passed),
            self.inbox_write.valid.eq(output.valid & beat.inbox & ~passed),
            written.eq(
                ~(self.line_write.valid & ~self.line_write.ready)
                & ~(self.inbox_write.valid & ~self.inbox_write.ready)
            ),
            reports.eq(~self.ended.valid | self.ended.ready),
            output.ready.eq(written & (~beat.ends | reports)),
        ]
        for write in (self.line_write, self.inbox_write):
            m.d.comb += [
                write.payload.address.eq(beat.address),
                write.payload.data.eq(beat.data),
                write.payload.mask.eq(beat.mask),
            ]
        m.d.sync += passed.eq(output.valid & written & ~output.ready)
        with m.If(reports):
            m.d.sync += [
                self.ended.valid.eq(output.valid & beat.ends & written),
                self.ended.payload.eq(beat.end),
            ]
