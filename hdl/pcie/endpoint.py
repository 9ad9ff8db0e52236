"""The controller's side of the PCIe link: host reads and writes share one stream of requests."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import TIME_BITS, Config
from hdl.flow.host_memory import HostAccess
from hdl.flow.line import ReadPort, write_port
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.register_bus import RegisterBus
from hdl.pcie.dma.reader import HostReader
from hdl.pcie.dma.writer import HostWriter
from hdl.pcie.ordering import AHEAD_BITS, WritesAhead
from hdl.pcie.packets import PacketMerge
from hdl.pcie.tlp import CREDITS_MOST, RequestKind, RequestProgress, completion_beat, request_beat


class Endpoint(wiring.Component):
    """`HostReader` and `HostWriter` behind one stream of requests and one of completions.

    Reads and writes alternate, packet by packet, when both wait, so a read waits for at most one
    TLP. A read for which the block has no credit waits aside, and writes pass it
    (`hdl.pcie.ordering.ReadCredits`). Writes leave in the order in which `write_done` and ``post``
    promise. Without bus mastering no request begins to leave: all wait, and none times out. An
    MSI-X message that is withheld when it would leave is dropped instead.

    A link reset ends the packet that is leaving, and every read as soon as it can be said: no
    completion comes any more. ``discard`` must follow it in the next cycle, until ``host.idle``.

    Parameters
    ----------
    config
        Sizes.
    timeout
        Completion timeout in cycles, see `HostReader`.

    Ports
    -----
    request
        Requests, to the hard block's shim.
    completion
        Completions, from the shim.
    progress
        What has left of the requests, from the shim.
    status
        What the configuration space says, from the shim.
    host
        Reads and writes of host memory. See `HostReader` and `HostWriter`. What has not begun to
        leave as ``discard`` rises never will. Writes are taken and dropped, and reads end with an
        error. Reads that have left are given up after the default completion timeout at most.
    line_write, line_read
        The line store. See `HostReader` and `HostWriter`.
    register
        The host's register accesses, from the shim. What is read goes to the shim after the writes
        that had been reported done, and the posts that had been taken. It goes at once while none
        of them may leave, or the block is stuck (`RequestProgress`). ``host.posted`` says the truth
        all the same.
    target
        Those accesses, to the registers.
    posted
        Memory writes that were handed over have not left, says the shim.
    now
        Time in cycles.
    deadline
        When a timer is due next, in cycles; all ones if none is.
    busy
        Something moves.

    The throughput is one beat a cycle out and one in. The latency is two cycles more than that of
    the reader or writer.
    """

    def __init__(self, *, config: Config, timeout: int | None = None):
        self._config = config
        self._timeout = timeout
        super().__init__(
            {
                "request": Out(stream.Signature(request_beat(config))),
                "completion": In(stream.Signature(completion_beat(config))),
                "progress": In(RequestProgress()),
                "host": In(HostAccess(config)),
                "line_write": Out(write_port(config)),
                "line_read": Out(ReadPort(config)),
                "status": Out(PcieStatus()),
                "register": In(RegisterBus()),
                "target": Out(RegisterBus()),
                "posted": In(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS),
                "busy": Out(1),
            }
        )

        self._reader = HostReader(config=config, timeout=self._timeout)
        self._writer = HostWriter(config=config)
        self._merge = PacketMerge(config=config)
        self._order = WritesAhead()
        self._ahead = Signal(AHEAD_BITS)  # writes that a completion could pass
        self._passes = Signal()  # one of them leaves
        self._rested = Signal()  # nothing moved in the last cycle, and no tag was in use

        # The packet whose beat is next.
        self._offered = Signal()  # the beat has been offered before
        self._dropping = Signal()  # the packet ends here
        self._goes = Signal()
        self._drops = Signal()
        # Without bus mastering nothing leaves: what has not begun to cannot be passed.
        self._stopped = Signal()
        self._lost = Signal()  # completions of what has left will never come
        beat = self._merge.output
        self._is_read = beat.payload.kind == RequestKind.READ
        self._withheld = beat.payload.message & self.host.messages.withhold

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.reader = self._reader
        m.submodules.writer = self._writer
        m.submodules.merge = self._merge
        self._connect_parts(m)
        self._admit_reads(m, self._reader, self._merge)
        m.submodules.order = self._order
        self._order_answers(m)
        self._decide(m)
        self._send(m)
        self._tell_reader(m)
        self._follow_rest(m)
        return m

    def _connect_parts(self, m: Module) -> None:
        reader, writer = self._reader, self._writer
        connect(m, flipped(self.host.read_request), reader.request)
        connect(m, reader.done, flipped(self.host.read_done))
        connect(m, flipped(self.completion), reader.completion)
        connect(m, reader.line_write, flipped(self.line_write))
        connect(m, reader.inbox_write, flipped(self.host.inbox_write))
        connect(m, flipped(self.host.write_request), writer.request)
        connect(m, writer.done, flipped(self.host.write_done))
        connect(m, writer.line_read, flipped(self.line_read))
        connect(m, flipped(self.host.post), writer.post)
        connect(m, writer.tlp, self._merge.second_input)
        for block in (reader, writer):
            for name in self.status.signature.members:
                m.d.comb += getattr(block.status, name).eq(getattr(self.status, name))

    def _order_answers(self, m: Module) -> None:
        """Completions do not pass posted requests."""
        order, ahead, writer = self._order, self._ahead, self._writer
        may_answer = Signal()
        answers = Signal()
        answer, known = self.register.response, self.target.response
        connect(m, flipped(self.register).request, flipped(self.target).request)
        m.d.sync += [
            answers.eq(answer.valid & ~answer.ready),
            ahead.eq(ahead + writer.entered - self._passes),
        ]
        m.d.comb += [
            order.ahead.eq(ahead),
            order.leave.eq(self._passes),
            order.waits.eq(known.valid),
            order.taken.eq(known.valid & known.ready),
            answer.payload.eq(known.payload),
            may_answer.eq(order.passed | self._stopped | self.progress.stuck | answers),
            answer.valid.eq(known.valid & may_answer),
            known.ready.eq(answer.ready & may_answer),
            self.host.posted.eq(writer.busy | (ahead != 0) | self.posted),
        ]

    def _decide(self, m: Module) -> None:
        """A packet goes, waits or ends here by its first beat. What has been offered goes."""
        beat, first = self._merge.output, self._merge.output.payload.first
        message, cut = beat.payload.message, self.status.link_reset
        # A message goes only if it does not wait again where nobody can withhold it.
        may_go = self.status.bus_master & ~self.host.discard & ~self._withheld
        may_go &= ~message | self.progress.clear
        m.d.comb += [
            self._stopped.eq(~self.status.bus_master & ~self._offered & beat.valid & first),
            self._goes.eq(~cut & Mux(first, self._offered | may_go, ~self._dropping)),
            self._drops.eq(~self._goes & (self.host.discard | cut | self._withheld | ~first)),
            self.host.messages.left.eq(message & self.request.valid & self.request.ready),
            self.host.messages.dropped.eq(message & beat.valid & self._drops),
        ]
        m.d.sync += self._lost.eq(cut | (self._lost & self._reader.outstanding))
        with m.If(cut):
            m.d.sync += self._dropping.eq(1)
        with m.Elif(beat.valid & beat.ready):
            m.d.sync += self._dropping.eq(self._drops)

    def _send(self, m: Module) -> None:
        """Requests that go."""
        beat, drop_valid = self._merge.output, self._reader.drop.valid
        m.d.comb += [
            self.request.payload.eq(beat.payload),
            self.request.valid.eq(beat.valid & self._goes),
            beat.ready.eq(
                Mux(self._goes, self.request.ready, self._drops & ~(self._is_read & drop_valid))
            ),
            self._passes.eq(beat.valid & beat.ready & beat.payload.last & ~self._is_read),
        ]
        m.d.sync += self._offered.eq(self.request.valid & ~self.request.ready)

    def _tell_reader(self, m: Module) -> None:
        """What becomes of the reads. One that ends here is said to the reader, which waits for it.
        """
        reader, beat, lost = self._reader, self._merge.output, self._lost
        m.d.sync += reader.drop.valid.eq(reader.drop.valid & ~reader.drop.ready)
        with m.If(~reader.drop.valid):
            m.d.sync += [
                reader.drop.valid.eq(beat.valid & self._drops & self._is_read),
                reader.drop.payload.eq(beat.payload.tag),
            ]
        connect(m, flipped(self.progress.sent), reader.sent)
        m.d.comb += [
            reader.hold.eq(~self.status.bus_master & ~self.host.discard & ~lost),
            reader.given.valid.eq(self.request.valid & self.request.ready & self._is_read),
            reader.given.payload.eq(beat.payload.tag),
            reader.tracks.eq(self.progress.tracks),
            reader.hurry.eq(self.host.discard),
            reader.lost.eq(lost | self.status.link_reset),
            reader.now.eq(self.now),
            self.deadline.eq(reader.deadline),
        ]

    def _follow_rest(self, m: Module) -> None:
        """Whether something moves, and whether nothing did."""
        reader = self._reader
        moves = Signal()
        rests = Signal()
        m.d.comb += [
            moves.eq(reader.busy | self._writer.busy | self._merge.busy | reader.drop.valid),
            rests.eq(~moves & ~reader.unanswered),
            self.host.idle.eq(self._rested & ~self.posted),
            self.busy.eq(moves | (self._rested != rests)),
        ]
        m.d.sync += self._rested.eq(rests)

    def _admit_reads(self, m: Module, reader, merge) -> None:
        """Reads that have a credit, or will not be sent, go to where all requests take turns."""
        waiting, output = reader.tlp, merge.output
        inside = Signal(range(CREDITS_MOST + 1))  # reads in ``merge``
        admits = Signal()
        stands = Signal()
        comes = Signal()
        leaves = Signal()
        m.d.comb += [
            merge.first_input.payload.eq(waiting.payload),
            # What has been offered stays: nobody else takes its credit.
            merge.first_input.valid.eq(waiting.valid & (admits | stands)),
            waiting.ready.eq(merge.first_input.ready & (admits | stands)),
            comes.eq(waiting.valid & waiting.ready),
            leaves.eq(output.valid & output.ready & (output.payload.kind == RequestKind.READ)),
        ]
        m.d.sync += [
            inside.eq(inside + comes - leaves),
            stands.eq(merge.first_input.valid & ~merge.first_input.ready),
            admits.eq((self.progress.credits > inside + comes) | self.host.discard | reader.lost),
        ]
