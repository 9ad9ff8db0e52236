"""Shim between the internal TLP streams and the Xilinx UltraScale+ PCIe block (PG213)."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.register_bus import RegisterBus
from hdl.kit.simulation import SIMULATION
from hdl.pcie.dma.rotate import below
from hdl.pcie.ordering import (
    NUMBER_BITS,
    RETURNS,
    ReadCredits,
    SequenceNumbers,
    WritesAhead,
)
from hdl.pcie.phy.axis import all_axis_ports, axis_ports, watch_packets
from hdl.pcie.phy.completer import Completer
from hdl.pcie.phy.descriptors import (
    RC_DESCRIPTOR_DWORDS,
    RQ_DESCRIPTOR_DWORDS,
    RequesterRequest,
    RequestType,
    describe_completion,
)
from hdl.pcie.phy.sideband import user_shape
from hdl.pcie.phy.straddle import StraddledStripper
from hdl.pcie.tlp import RequestKind, RequestProgress, completion_beat, request_beat

CREDIT_DELAY = 4
"""Cycles from a read to ``pcie_tfc_nph_av``: it tells of those of the two cycles before (PG213,
"Avoiding Head-of-Line Blocking for Posted Requests"), and one is added for either end."""


class RequestInserter(wiring.Component):
    """Puts the RQ descriptor before a request: payload moves up by four words.

    The throughput is one beat a cycle, without an idle beat between packets (but for one below 256
    bits when `HostWriter` rotates data). n words of payload are ceil((n + 4) / w) beats of w words.
    The output is registered.

    Attributes (PCIe base specification 2.2.6.4, 2.4.1): user data alone may be relaxed, since
    completion queue entries, interrupts and the entries they speak of rely on order. Every request
    has ID-based ordering, since it keeps the order of one requester. None has no-snoop.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request
        Requests of the controller.
    progress
        What has left of them.
    status
        Which attribute bits may be set.
    sent
        A pulse: a memory write begins. It takes ``number`` along as its sequence number.
    number
        The next sequence number.
    unfinished
        The block has not taken all of that write (`hdl.pcie.ordering.SequenceNumbers`).
    rq_*
        The RQ interface of the block.
    busy
        Something is on its way.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(request_beat(config))),
                "progress": Out(RequestProgress()),
                "status": Out(PcieStatus()),
                "sent": Out(1),
                "number": In(NUMBER_BITS),
                "unfinished": Out(1),
                "busy": Out(1),
                **axis_ports("rq", config.data_width),
            }
        )

        self._descriptor = Signal(RequesterRequest)
        self._user = Signal(user_shape("rq", config.data_width))
        self._due = Signal(12)  # words not sent yet, descriptor included
        self._begins = Signal()  # the beat to send is the first of its packet
        self._valid = Signal()
        self._room = Signal()
        self._last = Signal()
        self._is_read = Signal()  # of the packet whose beat is offered
        self._reads = self.request.payload.kind == RequestKind.READ

    def elaborate(self, platform) -> Module:
        m = Module()
        self._describe(m)
        self._count_words(m)
        self._follow_packets(m)
        self._offer(m)
        descriptor, valid, begins = self._descriptor, self._valid, self._begins
        if self._config.beat_dwords > RQ_DESCRIPTOR_DWORDS:
            self._shift(m, descriptor, valid, begins, self._room, self._last)
        else:
            self._precede(m, descriptor, valid, begins, self._room)
        return m

    def _describe(self, m: Module) -> None:
        """The descriptor and the sideband signals of the request."""
        beat, descriptor, user = self.request.payload, self._descriptor, self._user
        sequence = Cat(self.number, self._reads)
        m.d.comb += [
            descriptor.address.eq(beat.address[2:]),
            descriptor.dwords.eq(beat.dwords),
            descriptor.kind.eq(
                Mux(self._reads, RequestType.MEMORY_READ, RequestType.MEMORY_WRITE)
            ),
            descriptor.tag.eq(beat.tag),
            descriptor.attributes.eq(
                Cat(0, beat.relaxed & self.status.relaxed_ordering, self.status.id_ordering)
            ),
            user.first_enable.eq(~0),
            user.last_enable.eq(Mux(beat.dwords > 1, 0b1111, 0)),
            user.sequence.eq(sequence),
            user.sequence_high.eq(sequence[4:]),
        ]

    def _count_words(self, m: Module) -> None:
        """How many words of the packet are left."""
        beat, due, width = self.request.payload, self._due, self._config.beat_dwords
        left = Signal(12)  # words of the packet not sent yet, valid inside it
        with m.If(self._begins):
            m.d.comb += due.eq(Mux(self._reads, 0, beat.dwords) + RQ_DESCRIPTOR_DWORDS)
        with m.Else():
            m.d.comb += due.eq(left)
        m.d.comb += self._last.eq(due <= width)
        with m.If(self._room & self._valid):
            m.d.sync += left.eq(due - width)

    def _follow_packets(self, m: Module) -> None:
        """Tells of packets that begin and of those that have left."""
        beat = self.request.payload
        leaves = self.rq_tvalid & self.rq_tready
        begins = self._valid & self._begins
        m.d.comb += [
            self.progress.sent.valid.eq(leaves & self._is_read & self.rq_tlast),
            self.sent.eq(self._room & begins & (beat.kind == RequestKind.WRITE)),
        ]
        with m.If(self.sent):
            m.d.sync += self.unfinished.eq(1)
        with m.Elif(leaves & self.rq_tlast & ~self._is_read):
            m.d.sync += self.unfinished.eq(0)
        with m.If(self._room & begins):
            m.d.sync += [self._is_read.eq(self._reads), self.progress.sent.payload.eq(beat.tag)]

    def _offer(self, m: Module) -> None:
        """The beat that leaves, but for its words."""
        m.d.comb += [
            self._room.eq(~self.rq_tvalid | self.rq_tready),
            self.progress.clear.eq(self._room),
        ]
        with m.If(self._room):
            m.d.sync += [
                self.rq_tvalid.eq(self._valid),
                self.rq_tlast.eq(self._last),
                self.rq_tkeep.eq(below(self._due, self._config.beat_dwords)),
            ]
            with m.If(self._valid & self._begins):
                m.d.sync += self.rq_tuser.eq(self._user)

    def _shift(self, m: Module, descriptor, valid, begins, room, last) -> None:
        """Descriptor and first words of payload share a beat."""
        beat = self.request.payload
        high = self._config.beat_dwords - RQ_DESCRIPTOR_DWORDS
        kept = Signal(32 * RQ_DESCRIPTOR_DWORDS)  # words of the previous beat that did not fit
        tail = Signal()  # the last beat was taken, `kept` has words that must still go
        m.d.comb += [
            begins.eq(~tail & beat.first),
            valid.eq(tail | self.request.valid),
            self.request.ready.eq(room & ~tail),
            self.progress.clear.eq(room & ~tail),
            self.busy.eq(self.request.valid | tail | self.rq_tvalid),
        ]
        with m.If(room & valid):
            m.d.sync += [
                kept.eq(beat.data[32 * high :]),
                tail.eq(~tail & beat.last & ~last),
                self.rq_tdata.eq(
                    Cat(
                        Mux(begins, descriptor.as_value(), kept),
                        beat.data[: 32 * high],
                    )
                ),
            ]

    def _precede(self, m: Module, descriptor, valid, begins, room) -> None:
        """The descriptor takes beats of its own."""
        beat = self.request.payload
        beats = RQ_DESCRIPTOR_DWORDS // self._config.beat_dwords
        sent = Signal(range(beats + 1))  # beats of the descriptor; all of them before payload
        ends = (beat.kind == RequestKind.READ) & (sent == beats - 1)
        heads = sent != beats
        m.d.comb += [
            begins.eq(sent == 0),
            valid.eq(self.request.valid),
            self.request.ready.eq(room & (~heads | ends)),
            self.busy.eq(self.request.valid | self.rq_tvalid),
        ]
        with m.If(room & valid):
            m.d.sync += self.rq_tdata.eq(
                Mux(
                    heads,
                    descriptor.as_value().word_select(
                        sent[: max(1, (beats - 1).bit_length())], self._config.data_width
                    )
                    if beats > 1
                    else descriptor.as_value(),
                    beat.data,
                )
            )
            with m.If(heads):
                m.d.sync += sent.eq(sent + 1)
            with m.If(Mux(heads, ends, beat.last)):
                m.d.sync += sent.eq(0)


class CompletionStripper(wiring.Component):
    """Takes the RC descriptor off a completion: payload moves down by three words.

    A completion of n words comes in ceil((n + 3) / w) beats and leaves in ceil(n / w), without a
    pause beyond the descriptor's: the last words of one packet leave while the next begins.
    Packets that the block itself found to belong to no request (mismatched fields, unknown tag)
    are dropped; a request that the block gave up appears as a completer abort. The output is
    registered.
    """

    def __init__(self, *, config: Config):
        self._config = config
        self._layout = completion_beat(config)
        super().__init__(
            {
                "completion": Out(stream.Signature(self._layout)),
                "busy": Out(1),
                **axis_ports("rc", config.data_width),
            }
        )

        width = config.beat_dwords
        self._low = RC_DESCRIPTOR_DWORDS % width  # words of the descriptor in the beat that ends it
        self._leads = Signal()  # a beat of nothing but descriptor, before the one that ends it
        self._descriptor = Signal(32 * RC_DESCRIPTOR_DWORDS)
        self._header = Signal(self._layout)  # of the packet whose beat arrives
        self._begins = Signal(init=1)  # the next beat starts a packet
        self._strays = Signal()  # the beat is dropped
        self._taken = Signal()

        # What is kept of the beat before: its words that did not leave, and its header.
        self._kept = Signal(32 * (width - self._low))
        self._kept_header = Signal(self._layout)
        self._tail = Signal()  # it ends a packet and must still leave
        self._emits = Signal()  # the arriving beat completes a beat of payload
        self._tails = Signal()  # it has words beyond those, and is the last
        self._room = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        self._collect_descriptor(m)
        self._read_header(m)
        self._decide(m)
        self._keep(m)
        self._emit(m)
        return m

    def _collect_descriptor(self, m: Module) -> None:
        """The descriptor, which takes more than a beat if these are narrow."""
        low, leads, descriptor = self._low, self._leads, self._descriptor
        if self._config.beat_dwords >= RC_DESCRIPTOR_DWORDS:
            m.d.comb += descriptor.eq(self.rc_tdata[: 32 * low])
            return
        lead = Signal(self._config.data_width)
        led = Signal()
        m.d.comb += [leads.eq(~led), descriptor.eq(Cat(lead, self.rc_tdata[: 32 * low]))]
        with m.If(self.rc_tvalid & self.rc_tready):
            m.d.sync += led.eq(~self.rc_tlast)
            with m.If(leads):
                m.d.sync += lead.eq(self.rc_tdata)

    def _read_header(self, m: Module) -> None:
        """The header of the packet, and whether it is dropped."""
        header, kept_header, begins = self._header, self._kept_header, self._begins
        stray = Signal()  # the rest of a packet to be dropped
        is_stray, fields = self._describe(self._descriptor)
        broken = self._broken()
        m.d.comb += self._strays.eq(Mux(begins, is_stray, stray))
        with m.If(begins):
            m.d.comb += [getattr(header, name).eq(value) for name, value in fields.items()]
            m.d.comb += header.poisoned.eq(fields["poisoned"] | broken)
        with m.Else():
            m.d.comb += [
                header.eq(kept_header),
                header.poisoned.eq(kept_header.poisoned | broken),
            ]
        with m.If(self._taken & ~self._leads):
            m.d.sync += stray.eq(self._strays)

    def _decide(self, m: Module) -> None:
        """What is done in this cycle."""
        begins, strays, tail, output = self._begins, self._strays, self._tail, self.completion
        m.d.comb += [
            self._emits.eq(~self._leads & ~strays & (~begins | self.rc_tlast)),
            self._tails.eq(~begins & ~strays & self.rc_tlast & self.rc_tkeep[self._low]),
            self._room.eq(~output.valid | output.ready),
            self.rc_tready.eq(self._room & ~(tail & self._emits)),
            self._taken.eq(self.rc_tvalid & self.rc_tready),
            self.busy.eq(self.rc_tvalid | tail | output.valid),
        ]

    def _keep(self, m: Module) -> None:
        """What is kept for the beats that follow."""
        with m.If(self._taken & ~self._leads):
            m.d.sync += [
                self._begins.eq(self.rc_tlast),
                self._kept.eq(self.rc_tdata[32 * self._low :]),
                self._kept_header.eq(self._header),
            ]

    def _emit(self, m: Module) -> None:
        """The beat of payload that leaves."""
        tail, output, words = self._tail, self.completion.payload, 32 * self._low
        emits = self._taken & self._emits
        owed = Signal()  # part of the packet being sent has left: the next is not its first beat
        with m.If(self._room):
            m.d.sync += [
                self.completion.valid.eq(tail | emits),
                tail.eq(self._taken & self._tails),
            ]
            with m.If(tail):
                m.d.sync += [
                    output.eq(self._kept_header),
                    output.data.eq(self._payload(self._kept)),
                    output.first.eq(0),
                    output.last.eq(1),
                ]
            with m.Elif(emits):
                whole = Cat(self._kept, self.rc_tdata[:words])
                data = Mux(self._begins, self.rc_tdata[words:], whole)
                m.d.sync += [
                    output.eq(self._header),
                    output.data.eq(self._payload(data)),
                    output.first.eq(~owed),
                    output.last.eq(self.rc_tlast & ~self._tails),
                    owed.eq(~self.rc_tlast),
                ]

    def _describe(self, words: Value) -> tuple[Value, dict[str, Value]]:
        """Whether a completion is nobody's, and the fields of `completion_beat`, by its header."""
        return describe_completion(words)

    def _broken(self) -> Value:
        """The block found an error in the data that arrives."""
        return user_shape("rc", self._config.data_width)(self.rc_tuser).discontinue

    def _payload(self, words: Value) -> Value:
        """Words of payload as they lie in memory."""
        return words


class UltrascaleShim(wiring.Component):
    """Connects the controller to the UltraScale+ PCIe block: `Config.data_width` is its width.

    The block is configured for dword alignment, client tags, and BAR 0 as described in
    `hdl.flow.register_bus`; drive its ``pcie_cq_np_req`` with 1. RC straddles if
    `Config.straddles`, which is the default at 256 and 512 bits (PG213, "Straddle Option on RC
    Interface"): ``AXISTEN_IF_RC_STRADDLE`` of the IP at 256 bits,
    ``AXISTEN_IF_EXT_512_RC_4TLP_STRADDLE`` at 512. RQ, CQ and CC do not straddle. Ports are named
    as its AXI4-Stream interfaces without the ``s_axis_`` and ``m_axis_``.

    Ports
    -----
    rq_*, rc_*, cq_*, cc_*
        The block's interfaces.
    rq_seq_num0, rq_seq_num_vld0, rq_seq_num1, rq_seq_num_vld1
        Its ``pcie_rq_seq_num0`` and so on.
    tfc_nph_av
        Its ``pcie_tfc_nph_av``: reads are offered only while it has credits for them.
    posted
        It has memory writes that a completion could pass. Completions wait for those that were
        there first.
    status
        Configuration space: which attribute bits requests and completions may have.
    request, progress, completion, register
        The controller's side: `RequestInserter`, `CompletionStripper` or
        `hdl.pcie.phy.straddle.StraddledStripper`, `Completer`.

    A link reset (``status.link_reset``) ends every packet and every access that has begun.

    Throughput and latency at 256 bits: a 256-byte write in 9 beats, back to back, latency 1; a
    256-byte completion in 8.5 beats (9 without straddling) gives 8, latency 2; a register access
    about 6 cycles.
    Back-pressure on each interface acts on that one alone.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(request_beat(config))),
                "progress": Out(RequestProgress()),
                "completion": Out(stream.Signature(completion_beat(config))),
                "register": Out(RegisterBus()),
                "status": Out(PcieStatus()),
                "posted": Out(1),
                "busy": Out(1),
                **all_axis_ports(config.data_width),
                **{f"rq_seq_num{place}": In(NUMBER_BITS + 1) for place in range(RETURNS)},
                **{f"rq_seq_num_vld{place}": In(1) for place in range(RETURNS)},
                "tfc_nph_av": In(4),
            }
        )

        # Everything but the completer begins anew after a reset of the link.
        self._inserter = RequestInserter(config=config)
        stripper = StraddledStripper if config.straddles else CompletionStripper
        self._stripper = stripper(config=config)
        self._completer = Completer(config=config)
        self._read_credits = ReadCredits(delay=CREDIT_DELAY, bits=len(self.tfc_nph_av))
        self._numbers = SequenceNumbers()
        self._order = WritesAhead()

    def elaborate(self, platform) -> Module:
        m = Module()
        ends = ResetInserter(self.status.link_reset)
        m.submodules.inserter = ends(self._inserter)
        m.submodules.stripper = ends(self._stripper)
        m.submodules.completer = self._completer
        m.submodules.read_credits = ends(self._read_credits)
        m.submodules.numbers = ends(self._numbers)
        m.submodules.order = ends(self._order)
        connect(m, flipped(self.request), self._inserter.request)
        connect(m, self._stripper.completion, flipped(self.completion))
        connect(m, self._completer.register, flipped(self.register))
        self._connect_block(m)
        self._report_progress(m)
        self._number_writes(m)
        self._order_completions(m)
        parts = (self._inserter, self._stripper, self._completer, self._numbers)
        m.d.comb += self.busy.eq(Cat(part.busy for part in parts).any())
        if platform == SIMULATION:
            self._watch(m)
        return m

    def _connect_block(self, m: Module) -> None:
        """The block's interfaces, and what its configuration space says."""
        inserter, completer = self._inserter, self._completer
        for prefix, part in (
            ("rq", inserter),
            ("rc", self._stripper),
            ("cq", completer),
            ("cc", completer),
        ):
            members = part.signature.members
            for name in members:
                if not name.startswith(f"{prefix}_"):
                    continue
                if members[name].flow is Out:
                    m.d.comb += getattr(self, name).eq(getattr(part, name))
                else:
                    m.d.comb += getattr(part, name).eq(getattr(self, name))
        m.d.comb += [
            inserter.status.relaxed_ordering.eq(self.status.relaxed_ordering),
            inserter.status.id_ordering.eq(self.status.id_ordering),
            completer.id_completion.eq(self.status.id_completion),
            completer.cut.eq(self.status.link_reset),
        ]

    def _report_progress(self, m: Module) -> None:
        """What has left of the requests, and how many reads may be offered."""
        said, reads = self._inserter.progress, self._read_credits
        m.d.comb += [
            reads.available.eq(self.tfc_nph_av),
            reads.given.eq(
                self.request.valid
                & self.request.ready
                & (self.request.payload.kind == RequestKind.READ)
            ),
            reads.sent.eq(said.sent.valid),
            self.progress.credits.eq(reads.credits),
            self.progress.tracks.eq(1),
            self.progress.stuck.eq(self._numbers.stuck),
            self.progress.clear.eq(said.clear),
        ]
        connect(m, said.sent, flipped(self.progress.sent))

    def _number_writes(self, m: Module) -> None:
        """Writes get numbers, and the block says which of them have gone."""
        numbers, inserter = self._numbers, self._inserter
        places = range(RETURNS)
        m.d.comb += [
            numbers.sent.eq(inserter.sent),
            inserter.number.eq(numbers.number),
            numbers.returned.eq(Cat(getattr(self, f"rq_seq_num{place}") for place in places)),
            numbers.valid.eq(Cat(getattr(self, f"rq_seq_num_vld{place}") for place in places)),
            numbers.bus_master.eq(self.status.bus_master),
            numbers.unfinished.eq(inserter.unfinished),
            numbers.offered.eq(self.rq_tvalid),
            numbers.taken.eq(self.rq_tvalid & self.rq_tready),
            self.posted.eq(numbers.ahead != 0),
        ]

    def _order_completions(self, m: Module) -> None:
        """A completion does not begin before the writes that were there when it came have gone."""
        numbers, order, completer = self._numbers, self._order, self._completer
        cut = self.status.link_reset
        passed = Signal()
        begun = Signal()
        m.d.sync += begun.eq(~cut & self.cc_tvalid & ~(self.cc_tready & self.cc_tlast))
        m.d.comb += [
            order.ahead.eq(numbers.ahead),
            order.leave.eq(numbers.leave),
            order.waits.eq(completer.cc_tvalid),
            order.taken.eq(self.cc_tvalid & self.cc_tready & self.cc_tlast),
            passed.eq(order.passed | numbers.stuck | begun),
            self.cc_tvalid.eq(completer.cc_tvalid & passed),
            completer.cc_tready.eq(self.cc_tready & passed),
        ]

    def _watch(self, m: Module) -> None:
        """Holds what leaves to the rules of its interface."""
        for bus in ("rq", "cc"):
            data, keep, last, user, valid, ready = (
                getattr(self, f"{bus}_{part}")
                for part in ("tdata", "tkeep", "tlast", "tuser", "tvalid", "tready")
            )
            watch_packets(
                m,
                name=bus,
                valid=valid,
                ready=ready,
                last=last,
                beat=Cat(data, keep, last, user),
                reset=self.status.link_reset,
            )
