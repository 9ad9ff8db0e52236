"""Completions of host reads land in place: check, rotate to the target's alignment, write."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.flow.host_memory import Kind, inbox_beat, read_index_bits, target_bits
from hdl.flow.line import write_port
from hdl.kit.cut import Relay
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

    Ports
    -----
    completion, line_write, inbox_write
        See `hdl.pcie.tlp`, `hdl.flow.line`, `hdl.flow.host_memory`.
    origin_valid, origin_tag, origin
        Describes a tag, before its request is sent. Always accepted.
    lookup, live, close, completed
        To the tag table. ``completed``: what has been dealt with was marked as the last completion.
    abandon_valid, abandon_tag, abandon_quarantine, abandon_taken
        Gives up a tag, between completions; may be withdrawn.
    cut
        The rest of a completion that has begun will not come.
    ended
        A read is over, see `hdl.pcie.dma.transfers.read_ended`.
    cleared
        The progress of every tag has been cleared after reset (one cycle a tag).

    Throughput one beat a cycle; a completion whose data straddles one more beat of its target than
    it has itself takes one cycle more, which a completion's descriptor leaves idle anyway.
    Latency 3 cycles to the write, 5 to ``ended``. Back-pressure from the memories stops the input.
    """

    def __init__(self, *, config: Config):
        self._config = config
        tag_bits = bits_for_count(config.read_tags)
        super().__init__(
            {
                "completion": In(stream.Signature(completion_beat(config))),
                "line_write": Out(write_port(config)),
                "inbox_write": Out(stream.Signature(inbox_beat(config))),
                "origin_valid": In(1),
                "origin_tag": In(tag_bits),
                "origin": In(read_origin(config)),
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

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        width = config.beat_dwords
        shift = (width - 1).bit_length()
        tag_bits = len(self.lookup)
        address_bits = config.completion_address_bits

        m.submodules.origins = origins = memory.Memory(
            shape=read_origin(config), depth=config.read_tags, init=[]
        )
        put_origin = origins.write_port()
        get_origin = origins.read_port()
        m.submodules.progress = progress = memory.Memory(
            shape=data.StructLayout({"received": 11, "error": 1}), depth=config.read_tags, init=[]
        )
        put_progress = progress.write_port()
        get_progress = progress.read_port(transparent_for=(put_progress,))
        m.d.comb += [
            put_origin.addr.eq(self.origin_tag),
            put_origin.data.eq(self.origin),
            put_origin.en.eq(self.origin_valid),
        ]

        # Stage 0: a beat, or between completions a tag that is given up; both look up their tag.
        between = Signal(init=1)
        s0_abandon = Signal()
        s0_valid = Signal()
        s0_tag = Signal(tag_bits)
        s1_takes = Signal()
        m.d.comb += [
            s0_abandon.eq(between & self.abandon_valid),
            s0_valid.eq(s0_abandon | self.completion.valid),
            s0_tag.eq(Mux(s0_abandon, self.abandon_tag, self.completion.payload.tag)),
            self.completion.ready.eq(s1_takes & ~s0_abandon),
            self.abandon_taken.eq(s1_takes & s0_abandon),
            get_origin.addr.eq(s0_tag),
            get_origin.en.eq(s1_takes),
            get_progress.addr.eq(s0_tag),
            get_progress.en.eq(s1_takes),
        ]
        with m.If(self.completion.valid & self.completion.ready):
            m.d.sync += between.eq(self.completion.payload.last)
        with m.If(self.cut):
            m.d.sync += between.eq(1)

        # Stage 1: check the header, find the target, rotate.
        s1_valid = Signal()
        s1_abandon = Signal()
        s1_quarantine = Signal()
        s1_beat = Signal(completion_beat(config))
        s1_tag = Signal(tag_bits)
        s2_takes = Signal()
        s1_goes = Signal()  # has something for stage 2
        s1_moves = Signal()
        m.d.comb += s1_takes.eq(self.cleared & (~s1_valid | s1_moves))
        with m.If(s1_takes):
            m.d.sync += [
                s1_valid.eq(s0_valid),
                s1_abandon.eq(s0_abandon),
                s1_quarantine.eq(self.abandon_quarantine),
                s1_beat.eq(self.completion.payload),
                s1_tag.eq(s0_tag),
            ]
            with m.If(s0_abandon):
                m.d.sync += [s1_beat.first.eq(1), s1_beat.last.eq(1)]
        origin = get_origin.data
        received = get_progress.data.received

        due = Signal(11)
        total = Signal(12)
        refused = Signal()
        expected = Signal()
        fills = Signal()
        kept_base = Signal(target_bits(config))
        base = Signal.like(kept_base)
        kept_left = Signal(11)
        left = Signal.like(kept_left)
        tainted = Signal()  # an earlier beat of the completion was bad
        live = Signal()
        kept_live = Signal()
        writes = Signal()
        short = Signal()
        long = Signal()
        bad_data = Signal()
        broken = Signal()
        closes = Signal()
        m.d.comb += [
            # The tag's entries are read again with every beat and change only after the last.
            due.eq(origin.dwords - received),
            total.eq(received + s1_beat.dwords),
            refused.eq(s1_beat.status != CompletionStatus.SC),
            expected.eq(
                (s1_beat.byte_count == due << 2)
                & (
                    s1_beat.lower_address[:address_bits]
                    == ((origin.low + received)[:PAGE_DWORD_BITS] << 2)[:address_bits]
                )
                & (s1_beat.dwords != 0)
                & (s1_beat.dwords <= due)
            ),
            fills.eq(total == origin.dwords),
            base.eq(Mux(s1_beat.first, origin.target + received, kept_base)),
            left.eq(Mux(s1_beat.first, s1_beat.dwords, kept_left)),
            self.lookup.eq(s1_tag),
            # A tag that is handed out in the middle of a completion has nothing to do with it.
            live.eq(
                self.live
                & Mux(s1_beat.first, s1_abandon | (s1_beat.tag[tag_bits:] == 0), kept_live)
            ),
            writes.eq(live & expected & ~refused & ~s1_abandon),
            short.eq(s1_beat.last & (left > width)),
            long.eq(~s1_beat.last & (left <= width)),
            bad_data.eq(s1_beat.poisoned | long | (tainted & ~s1_beat.first)),
            broken.eq(~refused & (~expected | short | (s1_beat.request_completed & ~fills))),
            closes.eq(live & s1_beat.last & (s1_abandon | refused | broken | fills)),
            s1_goes.eq(writes | closes),
            # What is dropped waits as well: the check is too long to decide that in time.
            s1_moves.eq(s1_valid & s2_takes),
            self.close.eq(s1_moves & closes),
            self.completed.eq(
                s1_moves
                & ~s1_abandon
                & s1_beat.last
                & s1_beat.request_completed
                & (s1_beat.tag[tag_bits:] == 0)
                & (live | ~self.live)
            ),
        ]
        with m.If(s1_moves):
            m.d.sync += [
                tainted.eq(bad_data),
                kept_live.eq(live),
                kept_base.eq(base + width),
                kept_left.eq(Mux(left > width, left - width, 0)),
            ]

        # Progress of the tag: kept after a completion, cleared for the next use of a closed tag.
        place = Signal(range(config.read_tags))
        with m.If(~self.cleared):
            m.d.comb += [put_progress.addr.eq(place), put_progress.en.eq(1)]
            m.d.sync += place.eq(place + 1)
            with m.If(place == config.read_tags - 1):
                m.d.sync += self.cleared.eq(1)
        with m.Else():
            m.d.comb += [
                put_progress.addr.eq(s1_tag),
                put_progress.en.eq(s1_moves & live & s1_beat.last),
            ]
            with m.If(~closes):
                m.d.comb += [
                    put_progress.data.received.eq(total),
                    put_progress.data.error.eq(get_progress.data.error | bad_data),
                ]

        # Stage 2: merge with what the previous beat left over; a last beat may need one more.
        s2_valid = Signal()
        s2_joins = Signal()  # what the beat before it left over is of the same completion
        s2_last = Signal()
        s2_closes = Signal()
        s2_words = Signal(config.data_width)
        s2_mask = Signal(width)
        s2_low = Signal(width)  # places below the rotation: these words belong to the next beat
        s2_address = Signal(len(base) - shift)
        s2_end = Signal(read_ended(config))
        kept_words = Signal(config.data_width)
        kept_mask = Signal(width)
        s3_takes = Signal()
        spills = Signal()
        spilling = Signal()
        m.d.comb += [
            spills.eq(s2_last & (s2_mask & s2_low).any()),
            s2_takes.eq(~s2_valid | (s3_takes & (~spills | spilling))),
        ]
        with m.If(s2_takes):
            amount = base[:shift]
            m.d.sync += [
                s2_valid.eq(s1_valid & s1_goes),
                s2_joins.eq(writes & ~s1_beat.first),
                s2_last.eq(s1_beat.last),
                s2_closes.eq(closes),
                s2_words.eq(Cat(rotate_left(words_of(s1_beat.data), amount))),
                s2_mask.eq(
                    Mux(writes, Cat(rotate_left(list(below(left, width)), amount)), 0)
                ),
                s2_low.eq(below(amount, width)),
                s2_address.eq(base[shift:]),
                s2_end.kind.eq(origin.kind),
                s2_end.index.eq(origin.index),
                s2_end.tag.eq(s1_tag),
                s2_end.error.eq(
                    s1_abandon | refused | broken | bad_data | get_progress.data.error
                ),
                s2_end.quarantine.eq(Mux(s1_abandon, s1_quarantine, broken)),
            ]
        with m.If(s2_valid & s3_takes):
            m.d.sync += [
                spilling.eq(spills & ~spilling),
                kept_words.eq(s2_words),
                kept_mask.eq(s2_mask),
            ]

        # Stage 3: the write, and the end that may be reported once it is accepted.
        step = data.StructLayout(
            {
                "line": 1,
                "inbox": 1,
                "ends": 1,
                "end": read_ended(config),
                "data": config.data_width,
                "mask": width,
                "address": len(s2_address),
            }
        )
        m.submodules.s3 = s3 = Relay(step)
        coming, s3_step = s3.input.payload, s3.output.payload
        mask = Signal(width)
        merged = [
            Mux(s2_low[place] & ~spilling, old, new)
            for place, (old, new) in enumerate(
                zip(words_of(kept_words), words_of(s2_words), strict=True)
            )
        ]
        with m.If(spilling):
            m.d.comb += [mask.eq(s2_mask & s2_low), coming.address.eq(s2_address + 1)]
        with m.Else():
            m.d.comb += [
                mask.eq((s2_mask & ~s2_low) | Mux(s2_joins, kept_mask & s2_low, 0)),
                coming.address.eq(s2_address),
            ]
        m.d.comb += [
            s3.input.valid.eq(s2_valid),
            s3_takes.eq(s3.input.ready),
            coming.line.eq(mask.any() & (s2_end.kind == Kind.BLOCK)),
            coming.inbox.eq(mask.any() & (s2_end.kind != Kind.BLOCK)),
            coming.ends.eq(s2_closes & (~spills | spilling)),
            coming.end.eq(s2_end),
            coming.data.eq(Cat(merged)),
            coming.mask.eq(mask),
        ]
        passed = Signal()  # the beat has been accepted, its end not yet
        written = Signal()
        reports = Signal()
        s3_ends = s3.output.valid & s3_step.ends
        m.d.comb += [
            self.line_write.valid.eq(s3.output.valid & s3_step.line & ~passed),
            self.inbox_write.valid.eq(s3.output.valid & s3_step.inbox & ~passed),
            written.eq(
                ~(self.line_write.valid & ~self.line_write.ready)
                & ~(self.inbox_write.valid & ~self.inbox_write.ready)
            ),
            reports.eq(~self.ended.valid | self.ended.ready),
            s3.output.ready.eq(written & (~s3_step.ends | reports)),
            self.line_write.payload.address.eq(s3_step.address),
            self.line_write.payload.data.eq(s3_step.data),
            self.line_write.payload.mask.eq(s3_step.mask),
            self.inbox_write.payload.address.eq(s3_step.address),
            self.inbox_write.payload.data.eq(s3_step.data),
            self.inbox_write.payload.mask.eq(s3_step.mask),
        ]
        m.d.sync += passed.eq(s3.output.valid & written & ~s3.output.ready)
        with m.If(reports):
            m.d.sync += [
                self.ended.valid.eq(s3_ends & written),
                self.ended.payload.eq(s3_step.end),
            ]
        m.d.comb += self.busy.eq(
            ~self.cleared
            | self.completion.valid
            | self.abandon_valid
            | s1_valid
            | s2_valid
            | s3.busy
            | s3.output.valid
            | self.ended.valid
        )
        return m
