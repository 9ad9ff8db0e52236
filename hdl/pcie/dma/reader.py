"""Host memory reads: requests cut into TLPs, tags, completions placed, transfers reported."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect

from hdl.config import DWORDS_PER_BLOCK, TIME_BITS, Config, bits_for_count
from hdl.flow.host_memory import Kind, inbox_beat, read_done, read_request
from hdl.flow.line import write_port
from hdl.flow.pcie_status import PcieStatus
from hdl.kit.cut import Skid
from hdl.kit.pulse import Pulse
from hdl.pcie.dma.landing import PAGE_DWORD_BITS, Landing
from hdl.pcie.dma.tags import BOUNDARIES, TagTable, headers_within
from hdl.pcie.dma.transfers import TransferTable, read_ended
from hdl.pcie.tlp import RequestKind, completion_beat, request_beat

SIZE_CODE_MOST = 5
"""Largest meaningful size in Device Control: 128 << 5 is 4096 bytes."""

SIZE_CODE_DWORDS = 32
"""Words of size code 0: 128 bytes."""

DEFAULT_TIMEOUT = 0
"""Completion Timeout Value of the default range."""

TIMEOUTS_US = {
    DEFAULT_TIMEOUT: 10_000,  # 50 us to 50 ms, not sooner than 10 ms
    0b0001: 55,  # 50 us to 100 us
    0b0010: 3_000,  # 1 ms to 10 ms
    0b0101: 25_000,  # 16 ms to 55 ms
    0b0110: 100_000,  # 65 ms to 210 ms
    0b1001: 400_000,  # 260 ms to 900 ms
    0b1010: 1_500_000,  # 1 s to 3.5 s
    0b1101: 6_000_000,  # 4 s to 13 s
    0b1110: 30_000_000,  # 17 s to 64 s
}
"""Shortest time until a request is given up, by Completion Timeout Value: the longest is half as
long again, and both lie in the range of the value (PCIe base specification 7.8.16). Other values
are reserved, and taken for the default."""


def timeout_cycles(config: Config, code: int) -> int:
    """Fewest cycles until a request is given up, by Completion Timeout Value."""
    return TIMEOUTS_US[code] * config.clock_hz // 1_000_000


def size_limit(code: Value) -> Value:
    """The size of a Device Control code (MPS, MRRS) in words, less one: a mask."""
    clamped = Mux(code > SIZE_CODE_MOST, SIZE_CODE_MOST, code)
    return (SIZE_CODE_DWORDS << clamped) - 1


class HostReader(wiring.Component):
    """Fetches host memory into the line store and the inbox.

    A transfer is all requests with one (``kind``, ``index``) up to the one marked ``last``. Each is
    answered by exactly one `read_done`, after the last of its bytes has been accepted by its
    memory. Transfers may overlap and interleave. Requests are cut at multiples of the maximum read
    request size, so none crosses 4 KiB. Up to `Config.read_tags` are outstanding (32 without
    extended tags), and no more than the hard block has room for completions of.

    Parameters
    ----------
    config
        Sizes.
    timeout
        In place of the completion timeout of the default range, in cycles.

    Ports
    -----
    request
        Requests to read (`read_request`).
    done
        Transfers that have been answered (`read_done`).
    tlp
        Memory read requests, one beat each.
    completion
        Completions.
    drop
        Tags of requests taken from ``tlp`` that will not be sent. Their transfers end with
        ``error``. A tag is taken once that has been noted.
    given
        The tag of a request taken from ``tlp`` that has gone to the shim. It is not dropped any
        more.
    sent
        The tag of a read that the hard block has taken. From now on it can time out.
    hold
        Requests cannot be sent for now. None times out meanwhile.
    hurry
        All must end. No completion timeout is longer than the default one, nor disabled.
    lost
        No completion of a read from before will ever come. All that have gone to the shim end at
        once, with ``error``. Others are to be dropped.
    tracks
        See `hdl.pcie.tlp.RequestProgress`.
    outstanding
        A tag is in use or in quarantine.
    unanswered
        A tag is in use.
    line_write
        Where data for lines goes.
    inbox_write
        Where data for the inbox goes.
    status
        What the configuration space says.
    now
        Time in cycles.
    deadline
        The next time something expires, in cycles; all ones if nothing does.

    A read that is not answered is given up within the range of Device Control 2, and its tag stays
    out of use for as long again, or until the hard block knows nothing of it (`hdl.pcie.dma.tags`).

    Rate: a TLP every 4 cycles plus one a request; completion payload one beat a cycle (see
    `hdl.pcie.dma.landing`). Not ready for some thousand cycles after reset, while tables are
    cleared. Errors: see `hdl.pcie.dma.landing` and `hdl.pcie.dma.tags`; all surface as ``error`` of
    `read_done`.
    """

    def __init__(self, *, config: Config, timeout: int | None = None):
        self._config = config
        self._timeout = timeout or timeout_cycles(config, DEFAULT_TIMEOUT)
        super().__init__(
            {
                "request": In(stream.Signature(read_request(config))),
                "done": Out(stream.Signature(read_done(config))),
                "tlp": Out(stream.Signature(request_beat(config))),
                "completion": In(stream.Signature(completion_beat(config))),
                "line_write": Out(write_port(config)),
                "inbox_write": Out(stream.Signature(inbox_beat(config))),
                "drop": In(stream.Signature(bits_for_count(config.read_tags))),
                "given": In(Pulse(8)),
                "sent": In(Pulse(8)),
                "hold": In(1),
                "hurry": In(1),
                "lost": In(1),
                "tracks": In(1),
                "outstanding": Out(1),
                "unanswered": Out(1),
                "status": Out(PcieStatus()),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "busy": Out(1),
            }
        )

        self._tags = TagTable(config=config)
        self._transfers = TransferTable(config=config)
        self._landing = Landing(config=config)
        self._ends = Skid(read_ended(config))

        # What is left of a request, and the TLP that it begins with.
        self._job = Signal(read_request(config))
        self._low = self._job.address[2:64]
        self._length = Signal(11)
        self._chunk = Signal(11)
        self._tag = Signal.like(self._tags.allocate.payload)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.tags = tags = self._tags
        m.submodules.transfers = transfers = self._transfers
        m.submodules.landing = landing = self._landing
        m.submodules.ends = ends = self._ends
        connect(m, wiring.flipped(self.completion), landing.completion)
        connect(m, landing.line_write, wiring.flipped(self.line_write))
        connect(m, landing.inbox_write, wiring.flipped(self.inbox_write))
        connect(m, landing.ended, ends.input)
        connect(m, ends.output, transfers.ended)
        connect(m, transfers.done, wiring.flipped(self.done))
        self._connect_tags(m)
        self._choose_period(m)
        self._describe(m)
        issuing = self._issue(m)
        m.d.comb += self.busy.eq(
            issuing
            | (self.request.valid & self.request.ready)  # not while all wait for a tag
            | self.completion.valid
            | tags.busy
            | transfers.busy
            | landing.busy
        )
        return m

    def _connect_tags(self, m: Module) -> None:
        """What tags are told, and how they are given up."""
        tags, landing, transfers = self._tags, self._landing, self._transfers
        connect(m, wiring.flipped(self.given), tags.given)
        connect(m, wiring.flipped(self.sent), tags.sent)
        connect(m, transfers.retire, tags.retire)
        drops = self.drop.valid
        m.d.comb += [
            tags.now.eq(self.now),
            tags.hold.eq(self.hold),
            tags.lost.eq(self.lost),
            tags.patient.eq(self.status.timeout_disable & ~self.hurry),
            tags.extended.eq(self.status.extended_tag),
            tags.tracks.eq(self.tracks),
            # In a hurry sweeps come sooner, and the block's timer may not run at all.
            tags.stays.eq(self.status.timeout_disable | self.hurry),
            tags.completed.eq(landing.completed & self.tracks),
            tags.lookup.eq(landing.lookup),
            tags.close.eq(landing.close),
            landing.live.eq(tags.live),
            # Completion timeout, or a request that has not been sent.
            landing.abandon_valid.eq(tags.expire_valid | drops),
            landing.abandon_tag.eq(Mux(drops, self.drop.payload, tags.expire_tag)),
            landing.abandon_quarantine.eq(~drops & ~self.lost),
            landing.cut.eq(self.status.link_reset),
            self.drop.ready.eq(landing.abandon_taken & drops),
            tags.expire_taken.eq(landing.abandon_taken & ~drops),
            self.outstanding.eq(tags.held != 0),
            self.unanswered.eq(tags.unanswered),
            self.deadline.eq(tags.deadline),
        ]

    def _choose_period(self, m: Module) -> None:
        """Tags expire after 2 to 3 sweeps."""
        period = self._tags.period
        m.d.sync += period.eq(self._timeout // 2)
        with m.Switch(self.status.completion_timeout):
            for code in TIMEOUTS_US:
                if code == DEFAULT_TIMEOUT:
                    continue
                cycles = timeout_cycles(self._config, code)
                chosen = -(-cycles // 2)
                if cycles > self._timeout:
                    chosen = Mux(self.hurry, self._timeout // 2, chosen)
                with m.Case(code):
                    m.d.sync += period.eq(chosen)

    def _describe(self, m: Module) -> None:
        """The TLP that the request begins with, and what is noted of it."""
        job, low, chunk, tlp = self._job, self._low, self._chunk, self.tlp.payload
        described, begun = self._landing.described.payload, self._transfers.begun.payload
        origin = described.origin
        room = Signal(11)
        # A request is no longer than what the completion buffer holds.
        limit = size_limit(self.status.max_read_request)
        most = min(
            headers_within(self._config, boundary) * boundary // 4 for boundary in BOUNDARIES
        )
        if most < DWORDS_PER_BLOCK:
            limit &= (1 << most.bit_length() - 1) - 1
        m.d.comb += [
            room.eq((~low & limit) + 1),
            self._length.eq(Mux(job.dwords > room, room, job.dwords)),
            described.tag.eq(self._tags.allocate.payload),
            origin.kind.eq(job.kind),
            origin.index.eq(job.index),
            origin.target.eq(job.target),
            origin.low.eq(low[:PAGE_DWORD_BITS]),
            origin.dwords.eq(chunk),
            begun.kind.eq(job.kind),
            begun.index.eq(job.index),
            begun.last.eq(job.last & (chunk == job.dwords)),
            tlp.kind.eq(RequestKind.READ),
            tlp.address.eq(job.address),
            tlp.dwords.eq(chunk),
            tlp.tag.eq(self._tag),
            tlp.relaxed.eq(job.kind == Kind.BLOCK),
            tlp.first.eq(1),
            tlp.last.eq(1),
        ]

    def _headers(self) -> Value:
        """Most completions of the TLP that the request begins with."""

        def within(boundary: int) -> Value:
            words = boundary // 4
            shift = words.bit_length() - 1
            return (self._low[:shift] + self._length + words - 1) >> shift

        if not self._config.completion_bytes:
            return within(BOUNDARIES[0])
        return Mux(self.status.rcb, within(BOUNDARIES[1]), within(BOUNDARIES[0]))

    def _issue(self, m: Module) -> Signal:
        """The machine that sends a request as TLPs; whether it works."""
        job, chunk, tags = self._job, self._chunk, self._tags
        transfers, landing = self._transfers, self._landing
        issuing = Signal()
        with m.FSM(name="issue"):
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(transfers.cleared & landing.cleared)
                m.d.sync += job.eq(self.request.payload)
                with m.If(self.request.valid & self.request.ready):
                    m.next = "CUT"
            with m.State("CUT"):
                m.d.comb += issuing.eq(1)
                m.d.sync += [
                    chunk.eq(self._length),
                    tags.rcb.eq(self.status.rcb),
                    tags.headers.eq(self._headers()),
                ]
                m.next = "CLAIM"
            with m.State("CLAIM"):
                m.d.comb += [
                    tags.allocate.ready.eq(1),
                    landing.described.valid.eq(tags.allocate.valid),
                    issuing.eq(tags.allocate.valid),
                ]
                m.d.sync += self._tag.eq(tags.allocate.payload)
                with m.If(tags.allocate.valid):
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.comb += [transfers.begun.valid.eq(1), issuing.eq(1)]
                with m.If(transfers.begun.ready):
                    m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += [self.tlp.valid.eq(1), issuing.eq(1)]
                with m.If(self.tlp.ready):
                    m.d.sync += [
                        job.address[2:64].eq(self._low + chunk),
                        job.target.eq(job.target + chunk),
                        job.dwords.eq(job.dwords - chunk),
                    ]
                    m.next = "CUT"
                    with m.If(chunk == job.dwords):
                        m.next = "TAKE"
        return issuing
