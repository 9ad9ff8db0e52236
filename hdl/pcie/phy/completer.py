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

    Ports: ``register`` to the registers; ``id_completion`` as in `PcieStatus`; ``cut``: the link is
    reset, what has begun is ended without an answer, and nothing is taken; ``cq_*``, ``cc_*``
    to the block. Throughput: a write in 4
    cycles, a read in 5 plus the registers' time; below 256 bits a cycle more for each further beat.
    Back-pressure stops ``cq``.
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

    def elaborate(self, platform) -> Module:
        m = Module()
        width = self._config.data_width
        sideband = user_shape("cq", width)
        user = Signal(sideband)
        corrupt = Signal()
        arriving = sideband(self.cq_tuser)

        # Descriptor and payload, collected from as many beats as they take.
        taken_dwords = CQ_DESCRIPTOR_DWORDS + ACCESS_DWORDS_MOST
        beats = -(-32 * taken_dwords // width)
        collected = Signal(beats * width)
        request = CompleterRequest(collected[: 32 * CQ_DESCRIPTOR_DWORDS])
        payload = collected[32 * CQ_DESCRIPTOR_DWORDS : 32 * taken_dwords]
        beat = Signal(range(beats + 1))  # that arrives next, as long as it matters

        # The access in 8-byte parts: bytes and enables from the first part's byte 0 on.
        two = request.dwords == 2
        upper = request.address[0]  # begins in the upper word of its part
        enables = Signal(16)
        written = Signal(128)
        gathered = Signal(128)
        part = Signal()
        spans = Signal()
        m.d.comb += [
            enables.eq(
                Cat(user.first_enable, Mux(two, user.last_enable, 0)) << Mux(upper, 4, 0)
            ),
            written.eq(payload << Mux(upper, 32, 0)),
            spans.eq(upper & two),
        ]
        is_read = request.kind == RequestType.MEMORY_READ
        is_write = request.kind == RequestType.MEMORY_WRITE
        ours = Signal()  # a memory request to the registers
        supported = Signal()
        answered = Signal()
        refused = Signal()
        m.d.comb += [
            ours.eq((is_read | is_write) & (request.bar == REGISTER_BAR)),
            supported.eq(ours & ((request.dwords == 1) | two)),
            answered.eq(Cat(request.kind == kind for kind in NON_POSTED).any()),
        ]

        # The completion.
        first_skip = leading_zeros(m, user.first_enable, "first_skip")
        first_rest = leading_zeros(m, user.first_enable[::-1], "first_rest")
        last_rest = leading_zeros(m, user.last_enable[::-1], "last_rest")
        descriptor = Signal(CompleterCompletion)
        replies = max(1, 32 * (CC_DESCRIPTOR_DWORDS + ERROR_DWORDS) // width)
        reply = Signal(replies * width)
        sent = Signal(range(max(2, replies)))  # beats of the completion
        left = Signal(range(CC_DESCRIPTOR_DWORDS + ERROR_DWORDS + 1))  # words of it
        is_swap = request.kind == RequestType.COMPARE_SWAP
        is_atomic = is_swap | Cat(request.kind == kind for kind in ONE_OPERAND).any()
        with m.If(is_atomic):
            m.d.comb += descriptor.byte_count.eq((request.dwords << 2) >> is_swap)
        with m.Elif(~is_read & (request.kind != RequestType.LOCKED_READ)):
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
        m.d.comb += [
            descriptor.locked.eq(request.kind == RequestType.LOCKED_READ),
            descriptor.dwords.eq(Mux(refused, 0, request.dwords)),
            descriptor.status.eq(
                Mux(
                    refused,
                    Mux(ours, CompletionStatus.CA.value, CompletionStatus.UR.value),
                    CompletionStatus.SC.value,
                )
            ),
            descriptor.requester_id.eq(request.requester_id),
            descriptor.tag.eq(request.tag),
            descriptor.completer_function.eq(request.target_function),
            descriptor.traffic_class.eq(request.traffic_class),
            # A completion's ID-based ordering is the completer's affair (2.2.9).
            descriptor.attributes.eq(Cat(request.attributes[:2], self.id_completion)),
            reply.eq(
                Cat(
                    descriptor,
                    Mux(
                        refused,
                        Cat(
                            user.first_enable,
                            user.last_enable,
                            user.hint_present,
                            user.hint_type,
                            user.hint_tag,
                        )
                        | (request.as_value() << 32),
                        gathered >> Mux(upper, 32, 0),
                    ),
                )
            ),
            left.eq(
                CC_DESCRIPTOR_DWORDS
                + Mux(refused, ERROR_DWORDS, request.dwords[:2])
                - sent * (width // 32)
            ),
            self.cc_tdata.eq(reply.word_select(sent, width) if replies > 1 else reply),
            self.cc_tlast.eq(left <= width // 32),
            self.cc_tkeep.eq(below(left, width // 32)),
        ]

        access = self.register.request
        m.d.comb += [
            access.payload.address[3:].eq(request.address[1:] + part),
            access.payload.write.eq(is_write),
            access.payload.data.eq(Mux(part, written[64:], written[:64])),
            access.payload.enable.eq(Mux(part, enables[8:], enables[:8])),
            self.busy.eq(1),
        ]

        arrives = self.cq_tvalid & ~self.cut
        abandoned = Signal()  # nobody waits for the answer
        with m.If(self.cut):
            m.d.sync += abandoned.eq(1)

        def proceed():
            """To the second part, or to the end."""
            m.d.sync += part.eq(1)
            with m.If(spans & ~part):
                m.next = "ACCESS"
            with m.Elif(is_read):
                m.next = "COMPLETE"
            with m.Else():
                m.next = "TAKE"

        with m.FSM(name="serve"):
            with m.State("TAKE"):
                m.d.comb += [self.cq_tready.eq(1), self.busy.eq(self.cq_tvalid)]
                m.d.sync += [
                    abandoned.eq(0),
                    collected[:width].eq(self.cq_tdata),
                    beat.eq(1),
                    sent.eq(0),
                    user.eq(self.cq_tuser),
                    corrupt.eq(arriving.discontinue),
                    gathered.eq(0),
                    part.eq(0),
                    refused.eq(0),
                ]
                with m.If(arrives & self.cq_tlast):
                    m.next = "DECIDE"
                with m.Elif(arrives):
                    m.next = "SKIP"
            with m.State("SKIP"):
                m.d.comb += self.cq_tready.eq(1)
                with m.If(self.cq_tvalid & (beat != beats)):
                    m.d.sync += [
                        collected.word_select(beat, width).eq(self.cq_tdata),
                        beat.eq(beat + 1),
                    ]
                with m.If(self.cq_tvalid & arriving.discontinue):
                    m.d.sync += corrupt.eq(1)
                with m.If(self.cut):
                    m.next = "TAKE"
                with m.Elif(self.cq_tvalid & self.cq_tlast):
                    m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.sync += refused.eq(~supported)
                with m.If((is_write & corrupt) | self.cut):
                    m.next = "TAKE"
                with m.Elif(supported):
                    m.next = "ACCESS"
                with m.Elif(answered):
                    m.next = "COMPLETE"
                with m.Else():
                    m.next = "TAKE"
            with m.State("ACCESS"):
                with m.If(access.payload.enable == 0):
                    proceed()
                with m.Else():
                    m.d.comb += access.valid.eq(1)
                    with m.If(access.ready & is_read):
                        m.next = "COLLECT"
                    with m.Elif(access.ready):
                        proceed()
            with m.State("COLLECT"):
                m.d.comb += self.register.response.ready.eq(1)
                with m.If(self.register.response.valid):
                    with m.If(part):
                        m.d.sync += gathered[64:].eq(self.register.response.payload)
                    with m.Else():
                        m.d.sync += gathered[:64].eq(self.register.response.payload)
                    proceed()
            with m.State("COMPLETE"):
                m.d.comb += self.cc_tvalid.eq(~abandoned & ~self.cut)
                with m.If(~self.cc_tvalid):
                    m.next = "TAKE"
                with m.Elif(self.cc_tready):
                    m.d.sync += sent.eq(sent + 1)
                    with m.If(self.cc_tlast):
                        m.next = "TAKE"
        return m
