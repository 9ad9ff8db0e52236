"""Tags of memory reads: which are free, waiting for completions, or quarantined."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config, bits_for_count
from hdl.kit.clock import NEVER, passed
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue

BOUNDARIES = (64, 128)
"""Read completion boundaries: fewest bytes of a completion that is neither the first nor the last
of its request, by `PcieStatus.rcb`."""

CREDIT_BYTES = 16
"""A unit of the completion buffer."""

SHORT_TAGS = 32
"""Tags of a function whose Extended Tag Field is not enabled (PCIe base specification 2.2.6.2)."""

READ_HEADERS_MOST = 4096 // BOUNDARIES[0]
"""Most completions of one request, which never crosses 4 KiB."""

HEADERS_BITS = READ_HEADERS_MOST.bit_length()

BLOCK_SWEEPS = 5
"""Sweeps of which one counts for tags in quarantine, where the hard block has a timer of its own.
Twice so many are five times the shortest time until a request is given up here, and not before the
end of any range of the Completion Timeout Value (PCIe base specification 7.8.16, of which the
default is the widest: given up from 10 ms on here, up to 50 ms by the block)."""


def headers_within(config: Config, boundary: int) -> int:
    """Completions of up to ``boundary`` bytes for which the hard block surely has room."""
    if not config.completion_bytes:
        return config.completions_outstanding
    units = boundary // CREDIT_BYTES + 1
    return min(config.completions_outstanding, config.completion_bytes // CREDIT_BYTES // units)


def retired(config: Config) -> data.StructLayout:
    """The read with tag ``tag`` has ended. ``quarantine``: completions of it may still come."""
    return data.StructLayout({"tag": bits_for_count(config.read_tags), "quarantine": 1})


class TagTable(wiring.Component):
    """Hands out tags with room for their completions, and takes them back.

    A tag is *free*, then *waiting* from its allocation until it is closed (no completion is
    accepted any more), then *closed* until it is retired (its last byte has landed), then free
    again, or *quarantined* when completions may still arrive: those are not accepted, and the tag
    is not handed out before they must be gone. Completion headers are reserved with the tag and
    given back when the tag is free again, so that the hard block's buffer cannot overflow.

    A sweep over all tags every ``period`` cycles counts how often it has found one that waits for
    an answer to a request that has left, or is quarantined, and acts on the third time. So a tag
    expires, or leaves quarantine, after two to three periods. A request that has not left does not
    age. Tags come back in the order in which they were freed, those below 32 apart from the others,
    which go first.

    Where the hard block keeps a table of its own (``tracks``), it takes completions for a tag, or
    tells of it, until its own timer has run out, and must not be given the tag again before. So
    there a quarantine ends with the sweep after ``completed``, or after two to three times
    `BLOCK_SWEEPS` periods.

    Parameters
    ----------
    config
        `read_tags` tags; `completions_outstanding` and `completion_bytes` of space.

    Ports
    -----
    now, deadline
        Time, and when the next sweep is due (all ones: never).
    period
        Cycles between sweeps, at least 1; may change.
    given
        A tag whose request has been given to the shim: it is not dropped any more.
    sent
        A tag whose request has left.
    hold
        No time passes for any tag: what sweeps have counted is forgotten.
    patient
        Nothing that waits for an answer ages.
    tracks, stays
        The hard block keeps a table of tags; its own timer does not run out within the time above,
        so only ``completed`` ends a quarantine.
    completed
        The hard block has told that it waits no more for tag ``lookup``, and what it told has been
        dealt with. A pulse.
    unanswered
        A tag is in use, and not in quarantine.
    lost
        No answer will come any more: a sweep at once, all that wait for one expire, and none stays
        in quarantine. A request that has not been given to the shim is dropped, which ends it: each
        tag is ended once.
    extended
        Without it only tags below 32 are handed out.
    rcb, headers, allocate
        A tag for a request of ``headers`` completions, counted with the `PcieStatus.rcb` that says
        how much room each takes. Both must hold until it is taken. Valid only while there is both a
        tag and the room.
    lookup, live, close
        ``live``: tag ``lookup`` is waiting (combinational). ``close`` ends that.
    retire
        A closed tag's last byte has landed. One comes a cycle at most.
    expire_valid, expire_tag, expire_taken
        A tag has waited too long and should be closed. Withdrawn when it is no longer waiting.
    held
        Tags that are not free.
    busy
        Something moves.

    Latency: a retired tag is free after 3 cycles. A sweep takes a cycle a tag.
    """

    def __init__(self, *, config: Config):
        self._tags = config.read_tags
        self._headers, self._fewer = (headers_within(config, bytes_) for bytes_ in BOUNDARIES)
        tag_bits = bits_for_count(config.read_tags)
        super().__init__(
            {
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=NEVER),
                "period": In(TIME_BITS),
                "given": In(Pulse(8)),
                "sent": In(Pulse(8)),
                "hold": In(1),
                "patient": In(1),
                "tracks": In(1),
                "stays": In(1),
                "completed": In(1),
                "unanswered": Out(1),
                "lost": In(1),
                "rcb": In(1),
                "extended": In(1),
                "headers": In(HEADERS_BITS),
                "allocate": Out(stream.Signature(tag_bits)),
                "lookup": In(tag_bits),
                "live": Out(1),
                "close": In(1),
                "retire": In(Pulse(retired(config))),
                "expire_valid": Out(1),
                "expire_tag": Out(tag_bits),
                "expire_taken": In(1),
                "held": Out(range(config.read_tags + 1)),
                "busy": Out(1),
            }
        )

        tags = config.read_tags
        self._freed = Queue(tag_bits, min(tags, SHORT_TAGS))
        self._freed_long = None
        if tags > SHORT_TAGS:
            self._freed_long = Queue(tag_bits, tags - SHORT_TAGS)
        self._reserved = Memory(shape=HEADERS_BITS, depth=tags, init=[])
        self._reserve = self._reserved.write_port()
        self._refund = self._reserved.read_port()

        # A bit a tag.
        self._waiting = Signal(tags)
        self._quarantined = Signal(tags)
        self._given = Signal(tags)
        self._sent = Signal(tags)
        self._aged = Signal(tags)  # a sweep has found it
        self._older = Signal(tags)  # two have
        self._completed = Signal(tags)  # the hard block has told of its end

        self._allocated = Signal()
        self._freeing = Signal()
        self._s1_freeing = Signal()

        # The sweep: the tag at hand, and what becomes of it.
        self._index = Signal(tag_bits)
        self._turn = Signal(range(BLOCK_SWEEPS))  # of which one is for quarantined tags
        self._swept = Signal()
        self._release = Signal()  # it leaves quarantine

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.freed = self._freed
        m.submodules.headers = self._reserved
        if self._freed_long is not None:
            m.submodules.freed_long = self._freed_long
        self._allocate(m)
        self._free(m)
        self._note(m)
        self._sweep(m)
        return m

    def _allocate(self, m: Module) -> None:
        """Tags that were never used first, then freed ones in order."""
        tags, freed, freed_long = self._tags, self._freed, self._freed_long
        fresh = Signal(range(tags + 1))  # tags never handed out: all from `fresh` on
        room = Signal(range(self._headers + 1), init=self._headers)
        ready, offer = freed.output.valid, freed.output.payload
        unused = fresh != tags
        m.d.comb += self._allocated.eq(self.allocate.valid & self.allocate.ready)
        if freed_long is None:
            m.d.comb += freed.output.ready.eq(self._allocated & ~unused)
        else:
            takes_long = self.extended & freed_long.output.valid
            ready, offer = ready | takes_long, Mux(takes_long, freed_long.output.payload, offer)
            unused = Mux(self.extended, unused, fresh < SHORT_TAGS)
            m.d.comb += [
                freed.output.ready.eq(self._allocated & ~unused & ~takes_long),
                freed_long.output.ready.eq(self._allocated & ~unused & takes_long),
            ]
        needed = self.headers
        if self._fewer < self._headers:
            needed = self.headers + Mux(self.rcb, self._headers - self._fewer, 0)
        m.d.comb += [
            self.allocate.payload.eq(Mux(unused, fresh, offer)),
            self.allocate.valid.eq((unused | ready) & (needed <= room)),
            self._reserve.addr.eq(self.allocate.payload),
            self._reserve.data.eq(self.headers),
            self._reserve.en.eq(self._allocated),
        ]
        with m.If(self._allocated & unused):
            m.d.sync += fresh.eq(fresh + 1)
        m.d.sync += room.eq(
            room
            - Mux(self._allocated, self.headers, 0)
            + Mux(self._s1_freeing, self._refund.data, 0)
        )

    def _free(self, m: Module) -> None:
        """A retired tag is free, or else one that leaves quarantine."""
        freed, freed_long, refund = self._freed, self._freed_long, self._refund
        s1_tag = Signal.like(self.lookup)
        banned = Signal(range(self._tags + 1))  # tags in quarantine
        quarantines = self.retire.valid & self.retire.payload.quarantine
        m.d.comb += [
            self._freeing.eq((self.retire.valid & ~self.retire.payload.quarantine) | self._release),
            refund.addr.eq(Mux(self.retire.valid, self.retire.payload.tag, self._index)),
            refund.en.eq(self._freeing),
            freed.input.valid.eq(self._s1_freeing),
            freed.input.payload.eq(s1_tag),
            self.unanswered.eq(self.held != banned),
        ]
        if freed_long is not None:
            long = s1_tag >= SHORT_TAGS
            m.d.comb += [
                freed.input.valid.eq(self._s1_freeing & ~long),
                freed_long.input.valid.eq(self._s1_freeing & long),
                freed_long.input.payload.eq(s1_tag),
            ]
        m.d.sync += [
            self._s1_freeing.eq(self._freeing),
            s1_tag.eq(refund.addr),
            self.held.eq(self.held + self._allocated - self._s1_freeing),
            banned.eq(banned + quarantines - self._release),
        ]

    def _note(self, m: Module) -> None:
        """The bits of every tag."""
        tags, number = self._tags, len(self.lookup)
        quarantines = self.retire.valid & self.retire.payload.quarantine

        def mask(strobe, tag, name: str) -> Signal:
            bits = Signal(tags, name=f"{name}_mask")
            m.d.comb += bits.eq(strobe << tag)
            return bits

        allocated = mask(self._allocated, self.allocate.payload, "allocate")
        closed = mask(self.close, self.lookup, "close")
        retired = mask(quarantines, self.retire.payload.tag, "retire")
        swept = mask(self._swept, self._index, "sweep")
        released = mask(self._release, self._index, "release")
        given = mask(self.given.valid, self.given.payload[:number], "given")
        sent = mask(self.sent.valid, self.sent.payload[:number], "sent")
        anew = allocated | retired
        told = self.completed << self.lookup
        m.d.comb += self.live.eq(self._waiting.bit_select(self.lookup, 1))
        m.d.sync += [
            self._waiting.eq((self._waiting & ~closed) | allocated),
            self._quarantined.eq((self._quarantined & ~released) | retired),
            self._given.eq((self._given | given) & ~allocated),
            self._sent.eq((self._sent | sent) & ~allocated),
            self._completed.eq((self._completed | told) & ~allocated),
            self._aged.eq((self._aged | swept) & ~anew),
            self._older.eq((self._older | (swept & self._aged)) & ~anew),
        ]
        with m.If(self.hold):
            m.d.sync += [self._aged.eq(0), self._older.eq(0)]

    def _sweep(self, m: Module) -> None:
        """The machine that looks at every tag once a period."""
        index, turn = self._index, self._turn

        def of_tag(bits: Signal):
            return bits.bit_select(index, 1)

        is_waiting, is_quarantined = of_tag(self._waiting), of_tag(self._quarantined)
        is_old = of_tag(self._older)
        is_over = (is_old & ~self.patient) | (self.lost & of_tag(self._given))
        sees = ~self.tracks | ((turn == 0) & ~self.stays)  # the sweep is for quarantined tags
        leaves = (is_old & sees) | of_tag(self._completed) | self.lost
        ages = (is_quarantined & sees) | (is_waiting & of_tag(self._sent) & ~self.patient)
        last_sweep = Signal(TIME_BITS)
        next_sweep = Signal(TIME_BITS)
        known = Signal()  # `next_sweep` belongs to `last_sweep`
        step = Signal()
        taken = Signal()
        m.d.sync += [
            taken.eq(self.expire_valid & self.expire_taken),
            next_sweep.eq(last_sweep + self.period),
            known.eq(0),
        ]
        m.d.comb += [
            self.expire_tag.eq(index),
            self.busy.eq(self._freeing | self._s1_freeing),
        ]
        with m.FSM(name="sweep"):
            with m.State("IDLE"):
                with m.If(self.held != 0):
                    m.d.comb += self.busy.eq(1)
                    m.d.sync += last_sweep.eq(self.now)
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += self.deadline.eq(next_sweep)
                m.d.sync += [index.eq(0), known.eq(1)]
                with m.If(~known):
                    m.d.comb += self.busy.eq(1)
                with m.If(self.held == 0):
                    m.d.comb += self.busy.eq(1)
                    m.next = "IDLE"
                with m.Elif(self.lost | (known & passed(self.now, next_sweep))):
                    m.d.comb += self.busy.eq(1)
                    m.next = "SWEEP"
            with m.State("SWEEP"):
                m.d.comb += self.busy.eq(1)
                with m.If(is_waiting & is_over):
                    m.d.comb += [self.expire_valid.eq(~taken), step.eq(taken)]
                with m.Elif(is_quarantined & leaves):
                    m.d.comb += [self._release.eq(~self.retire.valid), step.eq(self._release)]
                with m.Else():
                    m.d.comb += [self._swept.eq(ages), step.eq(1)]
                with m.If(step):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == self._tags - 1):
                        m.d.sync += [
                            last_sweep.eq(self.now),
                            turn.eq(Mux(turn == BLOCK_SWEEPS - 1, 0, turn + 1)),
                        ]
                        m.next = "WAIT"
