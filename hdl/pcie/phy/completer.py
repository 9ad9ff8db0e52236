"""The target side of the UltraScale+ PCIe block: host accesses become register accesses."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.register_bus import RegisterBus
from hdl.pcie.dma.rotate import below
from hdl.pcie.phy.axis import axis_ports
from hdl.pcie.phy.descriptors import (
    CC_DESCRIPTOR_DWORDS,
    CQ_DESCRIPTOR_DWORDS,
    CompleterCompletion,
    CompleterRequest,
    RequestType,
)
from hdl.pcie.phy.sideband import user_shape
from hdl.pcie.tlp import CompletionStatus

REGISTER_BAR = 0

ACCESS_DWORDS_MOST = 2
"""Longest access in words: NVMe and MSI-X registers are 4 or 8 bytes."""

ERROR_DWORDS = 5
"""Words about the request that follow the descriptor of an unsuccessful completion."""

NON_POSTED = (
    RequestType.MEMORY_READ,
    RequestType.IO_READ,
    RequestType.IO_WRITE,
    RequestType.FETCH_ADD,
    RequestType.SWAP,
    RequestType.COMPARE_SWAP,
    RequestType.LOCKED_READ,
)

ONE_OPERAND = (RequestType.FETCH_ADD, RequestType.SWAP)
"""Atomic operations whose payload is one operand; that of a compare and swap is two."""


def leading_zeros(m: Module, enable: Value, name: str) -> Signal:
    """Bytes of a word below the first one enabled; 0 when none is."""
    count = Signal(2, name=name)
    with m.If(enable[0] | ~enable.any()):
        m.d.comb += count.eq(0)
    with m.Elif(enable[1]):
        m.d.comb += count.eq(1)
    with m.Elif(enable[2]):
        m.d.comb += count.eq(2)
    with m.Else():
        m.d.comb += count.eq(3)
    return count


class Completer(wiring.Component):
    """Serves memory reads and writes of one or two words in BAR 0, one at a time, in order.

    Byte enables are honoured; a read of no bytes is answered without an access, after all earlier
    accesses. An access of two words that is not aligned to 8 bytes becomes two. A longer read
    violates the programming model and gets Completer Abort; any other type or BAR that wants a
    completion gets Unsupported Request, as a locked read does of any endpoint but a legacy one.
    Both carry the information for the block's error log. Anything else posted (long writes,
    messages), and a write with corrupt data, is dropped (PCIe base specification 2.2.9, 2.3.1,
    2.7.2; PG213 "Completions with Error Status").

    Parameters
    ----------
    config
        ``data_width`` of the interfaces.

    Ports
    -----
    register
        To the registers.
    id_completion
        As in `PcieStatus`.
    cut
        The link is reset. What has begun is ended without an answer, and nothing is taken.
    busy
        It works.
    cq_*, cc_*
        To the block.

    Throughput: a write in 4 cycles, a read in 5 plus the registers' time; below 256 bits a cycle
    more for each further beat. Back-pressure stops ``cq``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        width = config.data_width
        super().__init__(
            {
                "register": Out(RegisterBus()),
                "id_completion": In(1),
                "cut": In(1),
                "busy": Out(1),
                **axis_ports("cq", width),
                **axis_ports("cc", width),
            }
        )

        # Descriptor and payload, collected from as many beats as they take.
        taken_dwords = CQ_DESCRIPTOR_DWORDS + ACCESS_DWORDS_MOST
        self._beats = -(-32 * taken_dwords // width)
        self._collected = Signal(self._beats * width)
        self._request = CompleterRequest(self._collected[: 32 * CQ_DESCRIPTOR_DWORDS])
        self._payload = self._collected[32 * CQ_DESCRIPTOR_DWORDS : 32 * taken_dwords]
        self._beat = Signal(range(self._beats + 1))  # that arrives next, as long as it matters
        self._user = Signal(user_shape("cq", width))
        self._corrupt = Signal()

        # What it is: a memory request to the registers, of a length that they have; one that is
        # answered, and one that is refused.
        self._is_read = self._request.kind == RequestType.MEMORY_READ
        self._is_write = self._request.kind == RequestType.MEMORY_WRITE
        self._two = self._request.dwords == 2
        self._ours = Signal()
        self._refused = Signal()

        # The access in 8-byte parts.
        self._upper = self._request.address[0]  # begins in the upper word of its part
        self._part = Signal()
        self._spans = Signal()  # has two parts
        self._gathered = Signal(128)

        # The completion: its length and beats, of which some have been sent.
        self._descriptor = Signal(CompleterCompletion)
        self._replies = max(1, 32 * (CC_DESCRIPTOR_DWORDS + ERROR_DWORDS) // width)
        self._sent = Signal(range(max(2, self._replies)))
        self._abandoned = Signal()  # nobody waits for it

    def elaborate(self, platform) -> Module:
        m = Module()
        self._connect_access(m)
        self._measure(m)
        self._describe(m)
        self._connect_reply(m)
        with m.If(self.cut):
            m.d.sync += self._abandoned.eq(1)
        with m.FSM(name="serve"):
            self._collect(m)
            self._decide(m)
            self._access(m)
            self._complete(m)
        return m

    def _connect_access(self, m: Module) -> None:
        """The access, in parts: bytes and enables from the first part's byte 0 on."""
        request, user, part = self._request, self._user, self._part
        enables = Signal(16)
        written = Signal(128)
        enabled = Cat(user.first_enable, Mux(self._two, user.last_enable, 0))
        access = self.register.request.payload
        m.d.comb += [
            enables.eq(enabled << Mux(self._upper, 4, 0)),
            written.eq(self._payload << Mux(self._upper, 32, 0)),
            self._spans.eq(self._upper & self._two),
            access.address[3:].eq(request.address[1:] + part),
            access.write.eq(self._is_write),
            access.data.eq(Mux(part, written[64:], written[:64])),
            access.enable.eq(Mux(part, enables[8:], enables[:8])),
            self._ours.eq((self._is_read | self._is_write) & (request.bar == REGISTER_BAR)),
            self.busy.eq(1),
        ]

    def _measure(self, m: Module) -> None:
        """Byte count and lower address of the completion."""
        request, user, descriptor = self._request, self._user, self._descriptor
        first_skip = leading_zeros(m, user.first_enable, "first_skip")
        first_rest = leading_zeros(m, user.first_enable[::-1], "first_rest")
        last_rest = leading_zeros(m, user.last_enable[::-1], "last_rest")
        is_swap = request.kind == RequestType.COMPARE_SWAP
        is_atomic = is_swap | Cat(request.kind == kind for kind in ONE_OPERAND).any()
        with m.If(is_atomic):
            m.d.comb += descriptor.byte_count.eq((request.dwords << 2) >> is_swap)
        with m.Elif(~self._is_read & (request.kind != RequestType.LOCKED_READ)):
            m.d.comb += descriptor.byte_count.eq(4)
        with m.Else():
            m.d.comb += descriptor.lower_address.eq(Cat(first_skip, request.address[:5]))
            with m.If(request.dwords != 1):
                m.d.comb += descriptor.byte_count.eq(
                    (request.dwords << 2) - first_skip - last_rest
                )
            with m.Elif(user.first_enable.any()):
                m.d.comb += descriptor.byte_count.eq(4 - first_skip - first_rest)
            with m.Else():
                m.d.comb += descriptor.byte_count.eq(1)

    def _describe(self, m: Module) -> None:
        """The rest of the completion's descriptor."""
        request, refused, descriptor = self._request, self._refused, self._descriptor
        failed = Mux(self._ours, CompletionStatus.CA.value, CompletionStatus.UR.value)
        m.d.comb += [
            descriptor.locked.eq(request.kind == RequestType.LOCKED_READ),
            descriptor.dwords.eq(Mux(refused, 0, request.dwords)),
            descriptor.status.eq(Mux(refused, failed, CompletionStatus.SC.value)),
            descriptor.requester_id.eq(request.requester_id),
            descriptor.tag.eq(request.tag),
            descriptor.completer_function.eq(request.target_function),
            descriptor.traffic_class.eq(request.traffic_class),
            # A completion's ID-based ordering is the completer's affair (2.2.9).
            descriptor.attributes.eq(Cat(request.attributes[:2], self.id_completion)),
        ]

    def _connect_reply(self, m: Module) -> None:
        """The beats of the completion: the data, or what the block's error log wants."""
        request, user, sent = self._request, self._user, self._sent
        width = self._config.data_width
        reply = Signal(self._replies * width)
        left = Signal(range(CC_DESCRIPTOR_DWORDS + ERROR_DWORDS + 1))
        about_request = Cat(
            user.first_enable,
            user.last_enable,
            user.hint_present,
            user.hint_type,
            user.hint_tag,
        ) | (request.as_value() << 32)
        found = self._gathered >> Mux(self._upper, 32, 0)
        m.d.comb += [
            reply.eq(Cat(self._descriptor, Mux(self._refused, about_request, found))),
            left.eq(
                CC_DESCRIPTOR_DWORDS
                + Mux(self._refused, ERROR_DWORDS, request.dwords[:2])
                - sent * (width // 32)
            ),
            self.cc_tdata.eq(reply.word_select(sent, width) if self._replies > 1 else reply),
            self.cc_tlast.eq(left <= width // 32),
            self.cc_tkeep.eq(below(left, width // 32)),
        ]

    def _collect(self, m: Module) -> None:
        """The states TAKE and SKIP: the beats of a request."""
        width = self._config.data_width
        arriving = user_shape("cq", width)(self.cq_tuser)
        arrives = self.cq_tvalid & ~self.cut
        with m.State("TAKE"):
            m.d.comb += [self.cq_tready.eq(1), self.busy.eq(self.cq_tvalid)]
            m.d.sync += [
                self._abandoned.eq(0),
                self._collected[:width].eq(self.cq_tdata),
                self._beat.eq(1),
                self._sent.eq(0),
                self._user.eq(self.cq_tuser),
                self._corrupt.eq(arriving.discontinue),
                self._gathered.eq(0),
                self._part.eq(0),
                self._refused.eq(0),
            ]
            with m.If(arrives & self.cq_tlast):
                m.next = "DECIDE"
            with m.Elif(arrives):
                m.next = "SKIP"
        with m.State("SKIP"):
            m.d.comb += self.cq_tready.eq(1)
            with m.If(self.cq_tvalid & (self._beat != self._beats)):
                m.d.sync += [
                    self._collected.word_select(self._beat, width).eq(self.cq_tdata),
                    self._beat.eq(self._beat + 1),
                ]
            with m.If(self.cq_tvalid & arriving.discontinue):
                m.d.sync += self._corrupt.eq(1)
            with m.If(self.cut):
                m.next = "TAKE"
            with m.Elif(self.cq_tvalid & self.cq_tlast):
                m.next = "DECIDE"

    def _decide(self, m: Module) -> None:
        """The state DECIDE: it is served, answered with an error, or dropped."""
        request = self._request
        supported = self._ours & ((request.dwords == 1) | self._two)
        answered = Cat(request.kind == kind for kind in NON_POSTED).any()
        with m.State("DECIDE"):
            m.d.sync += self._refused.eq(~supported)
            with m.If((self._is_write & self._corrupt) | self.cut):
                m.next = "TAKE"
            with m.Elif(supported):
                m.next = "ACCESS"
            with m.Elif(answered):
                m.next = "COMPLETE"
            with m.Else():
                m.next = "TAKE"

    def _access(self, m: Module) -> None:
        """The states ACCESS and COLLECT: a part of the access, and what was read."""
        access, response = self.register.request, self.register.response
        with m.State("ACCESS"):
            with m.If(access.payload.enable == 0):
                self._proceed(m)
            with m.Else():
                m.d.comb += access.valid.eq(1)
                with m.If(access.ready & self._is_read):
                    m.next = "COLLECT"
                with m.Elif(access.ready):
                    self._proceed(m)
        with m.State("COLLECT"):
            m.d.comb += response.ready.eq(1)
            with m.If(response.valid):
                with m.If(self._part):
                    m.d.sync += self._gathered[64:].eq(response.payload)
                with m.Else():
                    m.d.sync += self._gathered[:64].eq(response.payload)
                self._proceed(m)

    def _proceed(self, m: Module) -> None:
        """Ends a state: to the second part, or to the end."""
        m.d.sync += self._part.eq(1)
        with m.If(self._spans & ~self._part):
            m.next = "ACCESS"
        with m.Elif(self._is_read):
            m.next = "COMPLETE"
        with m.Else():
            m.next = "TAKE"

    def _complete(self, m: Module) -> None:
        """The state COMPLETE: the completion is sent, unless nobody waits for it."""
        with m.State("COMPLETE"):
            m.d.comb += self.cc_tvalid.eq(~self._abandoned & ~self.cut)
            with m.If(~self.cc_tvalid):
                m.next = "TAKE"
            with m.Elif(self.cc_tready):
                m.d.sync += self._sent.eq(self._sent + 1)
                with m.If(self.cc_tlast):
                    m.next = "TAKE"
