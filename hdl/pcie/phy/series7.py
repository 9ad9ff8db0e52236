"""Shim between the internal TLP streams and the Xilinx 7-series PCIe block (PG054): raw TLPs."""

from dataclasses import replace

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.register_bus import RegisterBus
from hdl.kit.cut import Relay
from hdl.kit.simulation import SIMULATION
from hdl.pcie.ordering import ReadCredits
from hdl.pcie.phy.axis import watch_packets
from hdl.pcie.phy.completer import REGISTER_BAR, Completer
from hdl.pcie.phy.descriptors import CompleterCompletion, CompleterRequest, RequestType
from hdl.pcie.phy.raw_tlp import (
    CompletionWord1,
    CompletionWord2,
    RequestWord1,
    Type,
    Word0,
    count,
    swapped,
)
from hdl.pcie.phy.sideband import CompleterRequestUser
from hdl.pcie.phy.tlp_receiver import RECEIVE_USER_BITS, TlpReceiver, received_beat
from hdl.pcie.phy.tlp_sender import TlpSender, tlp_beat
from hdl.pcie.phy.ultrascale import CompletionStripper
from hdl.pcie.tlp import (
    CompletionStatus,
    RequestKind,
    RequestProgress,
    completion_beat,
    request_beat,
)

COMPLETER_WIDTH = 256
"""Width at which `Completer` takes a request, and gives a completion, in one beat."""

OTHER_BAR = 7

COLLECTED_WORDS = 6
"""Longest header, and the longest payload that registers take."""

REPLY_WORDS = 5

CREDIT_DELAY = 32
"""Cycles for which a read that the block has taken is held against ``fc_nph``, which may not tell
of it yet. How soon it does is not known; longer costs nothing while there are credits to spare."""

CREDIT_BITS = 8
"""Width of ``fc_nph``."""

TYPES = {
    Type.LOCKED_READ: (RequestType.LOCKED_READ, RequestType.RESERVED),
    Type.MEMORY: (RequestType.MEMORY_READ, RequestType.MEMORY_WRITE),
    Type.IO: (RequestType.IO_READ, RequestType.IO_WRITE),
    Type.FETCH_ADD: (RequestType.RESERVED, RequestType.FETCH_ADD),
    Type.SWAP: (RequestType.RESERVED, RequestType.SWAP),
    Type.COMPARE_SWAP: (RequestType.RESERVED, RequestType.COMPARE_SWAP),
}
"""What `Completer` calls a request without and with data. It drops all others."""


class RawStripper(CompletionStripper):
    """`CompletionStripper` for completions as they are on the link, a header of three words.

    A completion for another function is dropped; what the UltraScale+ block would check (tag, byte
    count, address) `hdl.pcie.dma.landing` does.
    """

    def __init__(self, *, config: Config):
        super().__init__(config=config)
        self.id = Signal(16)

    def _describe(self, words: Value) -> tuple[Value, dict[str, Value]]:
        word0, word1 = Word0(words[:32]), CompletionWord1(words[32:64])
        word2 = CompletionWord2(words[64:96])
        dwords = Mux(word0.has_data, count(word0.length, 1024), 0)
        byte_count = count(word1.byte_count, 4096)
        return word2.requester_id != self.id, {
            "tag": word2.tag,
            "status": word1.status,
            "dwords": dwords,
            "byte_count": byte_count,
            "lower_address": word2.lower_address,
            "request_completed": (word1.status != CompletionStatus.SC.value)
            | (byte_count <= dwords << 2),
            "poisoned": word0.poisoned,
        }

    def _broken(self) -> Value:
        return Const(0)

    def _payload(self, words: Value) -> Value:
        return swapped(words)


class RequestCollector(wiring.Component):
    """Turns a received request into one beat of the CQ interface of `Completer`."""

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "tlp": In(stream.Signature(received_beat(config))),
                "cq_tdata": Out(COMPLETER_WIDTH),
                "cq_tuser": Out(CompleterRequestUser.as_shape().size),
                "cq_tvalid": Out(1),
                "cq_tready": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        width = self._config.data_width
        beats = -(-32 * COLLECTED_WORDS // width)
        collected = Signal(beats * width)
        bar_hit = Signal(8)
        place = Signal(range(beats + 1))
        full = Signal()
        m.d.comb += [
            self.tlp.ready.eq(~full),
            self.cq_tvalid.eq(full),
            self.busy.eq(self.tlp.valid | full),
        ]
        with m.If(full):
            m.d.sync += full.eq(~self.cq_tready)
        with m.Elif(self.tlp.valid):
            with m.If(place != beats):
                m.d.sync += [
                    collected.word_select(place, width).eq(self.tlp.payload.data),
                    place.eq(place + 1),
                ]
            with m.If(self.tlp.payload.first):
                m.d.sync += bar_hit.eq(self.tlp.payload.bar_hit)
            with m.If(self.tlp.payload.last):
                m.d.sync += [full.eq(1), place.eq(0)]

        word0, word1 = Word0(collected[:32]), RequestWord1(collected[32:64])
        word2, word3 = collected[64:96], collected[96:128]
        request = Signal(CompleterRequest)
        user = Signal(CompleterRequestUser)
        payload = Mux(word0.four, collected[128:192], collected[96:160])
        kind = Signal(RequestType, init=RequestType.RESERVED)
        m.d.comb += kind.eq(RequestType.RESERVED)
        for code, (without, with_data) in TYPES.items():
            with m.If(word0.kind == code):
                m.d.comb += kind.eq(Mux(word0.has_data, with_data, without))
        m.d.comb += [
            request.kind.eq(kind),
            request.address.eq(
                Mux(word0.four, Cat(word3, word2), word2)[2:]
            ),
            request.dwords.eq(count(word0.length, 1024)),
            request.requester_id.eq(word1.requester_id),
            request.tag.eq(word1.tag),
            request.bar.eq(Mux(bar_hit[REGISTER_BAR], REGISTER_BAR, OTHER_BAR)),
            request.traffic_class.eq(word0.traffic_class),
            request.attributes.eq(Cat(word0.attributes, word0.id_ordering)),
            user.first_enable.eq(word1.first_enable),
            user.last_enable.eq(word1.last_enable),
            user.discontinue.eq(word0.poisoned),
            self.cq_tdata.eq(Cat(request, swapped(payload))),
            self.cq_tuser.eq(user),
        ]
        return m


class ReplySender(wiring.Component):
    """Turns a completion of `Completer` (one beat of CC) into a TLP."""

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "cc_tdata": In(COMPLETER_WIDTH),
                "cc_tvalid": In(1),
                "cc_tready": Out(1),
                "id": In(16),
                "tlp": Out(stream.Signature(tlp_beat(config))),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        width = self._config.beat_dwords
        descriptor = CompleterCompletion(self.cc_tdata[:96])
        payload = self.cc_tdata[96:160]
        good = descriptor.status == CompletionStatus.SC.value
        word0 = Signal(Word0)
        word1 = Signal(CompletionWord1)
        word2 = Signal(CompletionWord2)
        beats = -(-REPLY_WORDS // width)
        reply = Signal(beats * self._config.data_width)
        sent = Signal(range(beats + 1))
        left = Signal(range(REPLY_WORDS + 1))
        m.d.comb += [
            word0.length.eq(Mux(good, descriptor.dwords, 0)),
            word0.attributes.eq(descriptor.attributes[:2]),
            word0.id_ordering.eq(descriptor.attributes[2]),
            word0.traffic_class.eq(descriptor.traffic_class),
            word0.kind.eq(Mux(descriptor.locked, Type.LOCKED_COMPLETION, Type.COMPLETION)),
            word0.has_data.eq(good),
            word1.byte_count.eq(descriptor.byte_count),
            word1.status.eq(descriptor.status),
            word1.completer_id.eq(self.id),
            word2.lower_address.eq(descriptor.lower_address),
            word2.tag.eq(descriptor.tag),
            word2.requester_id.eq(descriptor.requester_id),
            reply.eq(Cat(word0, word1, word2, swapped(payload))),
            left.eq(3 + word0.length[:2] - sent * width),
            self.tlp.valid.eq(self.cc_tvalid),
            self.tlp.payload.data.eq(reply.word_select(sent, self._config.data_width)),
            self.tlp.payload.words.eq(Mux(left < width, left, width)),
            self.tlp.payload.last.eq(left <= width),
            self.cc_tready.eq(self.tlp.ready & self.tlp.payload.last),
        ]
        with m.If(self.tlp.valid & self.tlp.ready):
            m.d.sync += sent.eq(Mux(self.tlp.payload.last, 0, sent + 1))
        return m


class Series7Shim(wiring.Component):
    """Connects the controller to the 7-series PCIe block, 64 or 128 bits wide.

    Parameters
    ----------
    config
        ``data_width`` 64 or 128, ``completion_address_bits`` 7, and the block's completion buffer.

    Ports
    -----
    rx_*
        ``m_axis_rx_*`` of the block. Drive its ``rx_np_ok`` with 1. It is to trim TLP digests.
    tx_*
        ``s_axis_tx_*`` of the block.
    fc_nph
        That of the block. Drive its ``fc_sel`` with 100b (transmit credits available). Reads are
        offered only while it has credits for them.
    id
        ``cfg_bus_number``, ``cfg_device_number``, ``cfg_function_number``.
    request, progress, completion, register, status
        As of `hdl.pcie.phy.ultrascale.UltrascaleShim`.
    posted
        Something has not left by ``tx_*``. That stream keeps its order up to the link, so that no
        completion passes a write there.
    busy
        Something is on its way.

    Completions and requests share the way out, TLP by TLP in turns, so an answer to the host waits
    for one TLP at most. The throughput is one beat a cycle each way, the latency 3 cycles. A
    register access takes about 8 cycles. While a request of the host is served, what arrives after
    the next one waits. For errors see `RawStripper` and `Completer`.
    """

    def __init__(self, *, config: Config):
        self._config = config
        width = config.data_width
        super().__init__(
            {
                "request": In(stream.Signature(request_beat(config))),
                "progress": Out(RequestProgress()),
                "completion": Out(stream.Signature(completion_beat(config))),
                "register": Out(RegisterBus()),
                "status": Out(PcieStatus()),
                "id": In(16),
                "rx_tdata": In(width),
                "rx_tkeep": In(width // 8),
                "rx_tlast": In(1),
                "rx_tuser": In(RECEIVE_USER_BITS),
                "rx_tvalid": In(1),
                "rx_tready": Out(1),
                "tx_tdata": Out(width),
                "tx_tkeep": Out(width // 8),
                "tx_tlast": Out(1),
                "tx_tuser": Out(4),
                "tx_tvalid": Out(1),
                "tx_tready": In(1),
                "fc_nph": In(CREDIT_BITS),
                "posted": Out(1),
                "busy": Out(1),
            }
        )

        # Everything but the completer begins anew after a reset of the link.
        self._receiver = TlpReceiver(config=config)
        self._stripper = RawStripper(config=config)
        self._collector = RequestCollector(config=config)
        self._completer = Completer(config=replace(config, data_width=COMPLETER_WIDTH))
        self._replies = ReplySender(config=config)
        self._sender = TlpSender(config=config)
        self._leaving = Relay(tlp_beat(config))
        self._read_credits = ReadCredits(delay=CREDIT_DELAY, bits=CREDIT_BITS)

        # What leaves: the rest of a TLP comes from the one whose begin has left.
        self._inside = Signal()
        self._owner = Signal()  # 1: a completion, as for `_chosen`
        self._chosen = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        self._add_parts(m)
        connect(m, flipped(self.request), self._sender.request)
        connect(m, self._stripper.completion, flipped(self.completion))
        connect(m, self._completer.register, flipped(self.register))
        self._receive(m)
        self._connect_completer(m)
        self._choose(m)
        self._send(m)
        self._report_progress(m)
        leaving, sender = self._leaving, self._sender
        m.d.comb += self.busy.eq(
            self._receiver.busy
            | self._stripper.busy
            | self._collector.busy
            | self._completer.busy
            | sender.tlp.valid
            | leaving.busy
            | leaving.output.valid
        )
        if platform == SIMULATION:
            answering = self._inside & self._owner & ~self.status.link_reset
            m.d.sync += Assert(~answering | self._replies.tlp.valid, "an answer has a gap")
            watch_packets(
                m,
                name="tx",
                valid=self.tx_tvalid,
                ready=self.tx_tready,
                last=self.tx_tlast,
                beat=Cat(self.tx_tdata, self.tx_tkeep, self.tx_tlast, self.tx_tuser),
                reset=self.status.link_reset,
            )
        return m

    def _add_parts(self, m: Module) -> None:
        ends = ResetInserter(self.status.link_reset)
        m.submodules.receiver = ends(self._receiver)
        m.submodules.stripper = ends(self._stripper)
        m.submodules.collector = ends(self._collector)
        m.submodules.completer = self._completer
        m.submodules.replies = ends(self._replies)
        m.submodules.sender = ends(self._sender)
        m.submodules.leaving = ends(self._leaving)
        m.submodules.read_credits = ends(self._read_credits)

    def _receive(self, m: Module) -> None:
        """What arrives: completions go to the stripper, everything else to the collector."""
        receiver, stripper, collector = self._receiver, self._stripper, self._collector
        beat = receiver.tlp.payload
        kind = Word0(beat.data[:32]).kind
        is_completion = (kind == Type.COMPLETION) | (kind == Type.LOCKED_COMPLETION)
        words = range(self._config.beat_dwords)
        goes_on = Signal()  # the rest of a completion
        to_stripper = Signal()
        for name in ("tdata", "tkeep", "tlast", "tuser", "tvalid"):
            m.d.comb += getattr(receiver, f"rx_{name}").eq(getattr(self, f"rx_{name}"))
        m.d.comb += [
            self.rx_tready.eq(receiver.rx_tready),
            to_stripper.eq(Mux(beat.first, is_completion, goes_on)),
            stripper.id.eq(self.id),
            stripper.rc_tdata.eq(beat.data),
            stripper.rc_tkeep.eq(Cat(beat.words > word for word in words)),
            stripper.rc_tlast.eq(beat.last),
            stripper.rc_tvalid.eq(receiver.tlp.valid & to_stripper),
            collector.tlp.payload.eq(beat),
            collector.tlp.valid.eq(receiver.tlp.valid & ~to_stripper),
            receiver.tlp.ready.eq(Mux(to_stripper, stripper.rc_tready, collector.tlp.ready)),
        ]
        with m.If(receiver.tlp.valid & receiver.tlp.ready):
            m.d.sync += goes_on.eq(to_stripper)

    def _connect_completer(self, m: Module) -> None:
        """The completer takes requests of the collector, and its answers go to the replies."""
        completer, collector, replies = self._completer, self._collector, self._replies
        m.d.comb += [
            completer.cq_tdata.eq(collector.cq_tdata),
            completer.cq_tkeep.eq(~0),
            completer.cq_tlast.eq(1),
            completer.cq_tuser.eq(collector.cq_tuser),
            completer.cq_tvalid.eq(collector.cq_tvalid),
            collector.cq_tready.eq(completer.cq_tready),
            completer.id_completion.eq(self.status.id_completion),
            completer.cut.eq(self.status.link_reset),
            replies.cc_tdata.eq(completer.cc_tdata),
            replies.cc_tvalid.eq(completer.cc_tvalid),
            completer.cc_tready.eq(replies.cc_tready),
            replies.id.eq(self.id),
        ]

    def _choose(self, m: Module) -> None:
        """What leaves: requests and completions in turns."""
        sender, replies, leaving = self._sender, self._replies, self._leaving
        chosen, owner, inside = self._chosen, self._owner, self._inside
        next_owner = Mux(owner, ~sender.tlp.valid, replies.tlp.valid)
        ways = Array((sender.tlp.payload, replies.tlp.payload))
        m.d.comb += [
            sender.id.eq(self.id),
            sender.status.relaxed_ordering.eq(self.status.relaxed_ordering),
            sender.status.id_ordering.eq(self.status.id_ordering),
            chosen.eq(Mux(inside, owner, next_owner)),
            leaving.input.payload.eq(ways[chosen]),
            leaving.input.valid.eq(Mux(chosen, replies.tlp.valid, sender.tlp.valid)),
            sender.tlp.ready.eq(leaving.input.ready & ~chosen),
            replies.tlp.ready.eq(leaving.input.ready & chosen),
        ]
        with m.If(leaving.input.valid & leaving.input.ready):
            m.d.sync += [owner.eq(chosen), inside.eq(~leaving.input.payload.last)]
        with m.If(self.status.link_reset):
            m.d.sync += inside.eq(0)

    def _send(self, m: Module) -> None:
        """The beats that leave."""
        output = self._leaving.output
        words = range(self._config.beat_dwords)
        m.d.comb += [
            self.tx_tvalid.eq(output.valid),
            self.tx_tdata.eq(output.payload.data),
            self.tx_tlast.eq(output.payload.last),
            self.tx_tkeep.eq(Cat((output.payload.words > word).replicate(4) for word in words)),
            output.ready.eq(self.tx_tready),
        ]

    def _report_progress(self, m: Module) -> None:
        """What has left of the requests, and how many reads may be offered."""
        leaving, sender, reads = self._leaving, self._sender, self._read_credits
        last = self.tx_tvalid & self.tx_tready & self.tx_tlast
        m.d.comb += [
            self.progress.sent.valid.eq(last & leaving.output.payload.is_read),
            self.progress.sent.payload.eq(leaving.output.payload.tag),
            # The relay is empty. So no answer is half inside either: its beats come without a gap.
            self.progress.clear.eq(leaving.input.ready & ~leaving.output.valid),
            self.posted.eq(sender.tlp.valid | leaving.busy | leaving.output.valid),
            reads.available.eq(self.fc_nph),
            reads.given.eq(
                self.request.valid
                & self.request.ready
                & (self.request.payload.kind == RequestKind.READ)
            ),
            reads.sent.eq(self.progress.sent.valid),
            self.progress.credits.eq(reads.credits),
        ]
