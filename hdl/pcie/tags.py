"""Tags of memory reads: which are free, waiting for completions, or quarantined."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config, bits_for_count

HEADER_BYTES = 64
"""Fewest bytes of a completion that is neither the first nor the last of its request: the smaller
read completion boundary. Space is reserved in this unit also when the boundary is 128 bytes: the
hard block's buffer then fills up with data before it runs out of headers."""

READ_HEADERS_MOST = 4096 // HEADER_BYTES
"""Most completions of one request, which never crosses 4 KiB."""

HEADERS_BITS = READ_HEADERS_MOST.bit_length()

NEVER = (1 << TIME_BITS) - 1
"""A `deadline` that does not come: no timer runs."""


class TagTable(wiring.Component):
    """Hands out tags with room for their completions, and takes them back.

    A tag is *free*, then *waiting* from its allocation until it is closed (no completion is
    accepted any more), then *closed* until it is retired (its last byte has landed), then free
    again, or *quarantined* when completions may still arrive: those are not accepted, and the tag
    is not handed out before they must be gone. Completion headers are reserved with the tag and
    given back when the tag is free again, so that the hard block's buffer cannot overflow.

    A sweep over all tags every ``timeout`` cycles marks those that wait or are quarantined, and
    acts on those that the previous sweep marked. So a tag expires, or leaves quarantine, after one
    to two timeouts. Tags come back in the order in which they were freed.

    Parameters
    ----------
    config
        `read_tags` tags and `completion_headers` units of space.
    timeout
        Cycles between sweeps.

    Ports
    -----
    now, deadline
        Time, and when the next sweep is due (all ones: never).
    hold
        No time passes for any tag: what a sweep has marked is forgotten.
    headers, allocate
        A tag for a request of ``headers`` completions. ``headers`` must hold until it is taken.
        Valid only while there is both a tag and the room.
    lookup, live, close
        ``live``: tag ``lookup`` is waiting (combinational). ``close`` ends that.
    retire_valid, retire_tag, retire_quarantine
        A closed tag's last byte has landed. Always accepted, one a cycle.
    expire_valid, expire_tag, expire_taken
        A tag has waited too long and should be closed. Withdrawn when it is no longer waiting.

    Latency: a retired tag is free after 3 cycles. A sweep takes a cycle a tag.
    """

    def __init__(self, *, config: Config, timeout: int):
        if timeout < 1:
            raise ValueError(f"timeout must be at least 1 cycle, not {timeout}")
        if config.completion_headers < READ_HEADERS_MOST:
            raise ValueError(
                f"completion_headers must be at least {READ_HEADERS_MOST}, "
                f"not {config.completion_headers}"
            )
        self._tags = config.read_tags
        self._headers = config.completion_headers
        self._timeout = timeout
        tag_bits = bits_for_count(config.read_tags)
        super().__init__(
            {
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=NEVER),
                "hold": In(1),
                "headers": In(HEADERS_BITS),
                "allocate": Out(stream.Signature(tag_bits)),
                "lookup": In(tag_bits),
                "live": Out(1),
                "close": In(1),
                "retire_valid": In(1),
                "retire_tag": In(tag_bits),
                "retire_quarantine": In(1),
                "expire_valid": Out(1),
                "expire_tag": Out(tag_bits),
                "expire_taken": In(1),
                "held": Out(range(config.read_tags + 1)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        tags = self._tags
        m.submodules.freed = freed = SyncFIFOBuffered(width=len(self.lookup), depth=tags)
        m.submodules.headers = reserved = memory.Memory(
            shape=HEADERS_BITS, depth=tags, init=[]
        )
        reserve = reserved.write_port()
        refund = reserved.read_port()

        waiting = Signal(tags)
        quarantined = Signal(tags)
        aged = Signal(tags)
        fresh = Signal(range(tags + 1))  # tags never handed out: all from `fresh` on
        room = Signal(range(self._headers + 1), init=self._headers)

        # Allocation: tags that were never used first, then freed ones in order.
        m.d.comb += [
            self.allocate.payload.eq(Mux(fresh == tags, freed.r_data, fresh)),
            self.allocate.valid.eq(
                ((fresh != tags) | freed.r_rdy) & (self.headers <= room)
            ),
            reserve.addr.eq(self.allocate.payload),
            reserve.data.eq(self.headers),
        ]
        allocated = Signal()
        m.d.comb += [
            allocated.eq(self.allocate.valid & self.allocate.ready),
            reserve.en.eq(allocated),
            freed.r_en.eq(allocated & (fresh == tags)),
        ]
        with m.If(allocated & (fresh != tags)):
            m.d.sync += fresh.eq(fresh + 1)

        # Freeing: a retired tag, or else one that leaves quarantine.
        release = Signal()
        index = Signal.like(self.lookup)
        freeing = Signal()
        s1_freeing = Signal()
        s1_tag = Signal.like(self.lookup)
        m.d.comb += [
            freeing.eq((self.retire_valid & ~self.retire_quarantine) | release),
            refund.addr.eq(Mux(self.retire_valid, self.retire_tag, index)),
            refund.en.eq(freeing),
            freed.w_en.eq(s1_freeing),
            freed.w_data.eq(s1_tag),
        ]
        m.d.sync += [
            s1_freeing.eq(freeing),
            s1_tag.eq(refund.addr),
            room.eq(
                room
                - Mux(allocated, self.headers, 0)
                + Mux(s1_freeing, refund.data, 0)
            ),
            self.held.eq(self.held + allocated - s1_freeing),
        ]

        # State bits of every tag.
        swept = Signal()
        allocate_mask = Signal(tags)
        close_mask = Signal(tags)
        retire_mask = Signal(tags)
        sweep_mask = Signal(tags)
        release_mask = Signal(tags)
        m.d.comb += [
            allocate_mask.eq(allocated << self.allocate.payload),
            close_mask.eq(self.close << self.lookup),
            retire_mask.eq((self.retire_valid & self.retire_quarantine) << self.retire_tag),
            sweep_mask.eq(swept << index),
            release_mask.eq(release << index),
            self.live.eq(waiting.bit_select(self.lookup, 1)),
        ]
        m.d.sync += [
            waiting.eq((waiting & ~close_mask) | allocate_mask),
            quarantined.eq((quarantined & ~release_mask) | retire_mask),
            aged.eq((aged | sweep_mask) & ~(allocate_mask | retire_mask)),
        ]
        with m.If(self.hold):
            m.d.sync += aged.eq(0)

        # Sweep.
        is_waiting = waiting.bit_select(index, 1)
        is_quarantined = quarantined.bit_select(index, 1)
        is_aged = aged.bit_select(index, 1)
        next_sweep = Signal(TIME_BITS)
        late = Signal(TIME_BITS)
        step = Signal()
        taken = Signal()
        m.d.sync += taken.eq(self.expire_valid & self.expire_taken)
        m.d.comb += [
            late.eq(self.now - next_sweep),
            self.expire_tag.eq(index),
            self.busy.eq(freeing | s1_freeing),
        ]
        with m.FSM(name="sweep"):
            with m.State("IDLE"):
                with m.If(self.held != 0):
                    m.d.comb += self.busy.eq(1)
                    m.d.sync += next_sweep.eq(self.now + self._timeout)
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += self.deadline.eq(next_sweep)
                m.d.sync += index.eq(0)
                with m.If(self.held == 0):
                    m.d.comb += self.busy.eq(1)
                    m.next = "IDLE"
                with m.Elif(~late[-1]):
                    m.d.comb += self.busy.eq(1)
                    m.next = "SWEEP"
            with m.State("SWEEP"):
                m.d.comb += self.busy.eq(1)
                with m.If(is_waiting & is_aged):
                    m.d.comb += [self.expire_valid.eq(~taken), step.eq(taken)]
                with m.Elif(is_quarantined & is_aged):
                    m.d.comb += [
                        release.eq(~self.retire_valid),
                        step.eq(release),
                    ]
                with m.Else():
                    m.d.comb += [
                        swept.eq(is_waiting | is_quarantined),
                        step.eq(1),
                    ]
                with m.If(step):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == tags - 1):
                        m.d.sync += next_sweep.eq(self.now + self._timeout)
                        m.next = "WAIT"
        return m
