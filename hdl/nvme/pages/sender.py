"""Sends a built page to the host: line, page generator, PRPs, and the line back."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import DWORDS_PER_BLOCK, Config
from hdl.flow.host_memory import write_request
from hdl.flow.line import line_stream
from hdl.nvme.codes import PAGE_SHIFT, STATUS_BITS, StatusCode, status_field
from hdl.nvme.records import SKIP_BITS, PageKind, assign, page_request


def send_request(config: Config) -> data.StructLayout:
    """Sends ``dwords`` words (1..1024) of a page, those after the first ``skip``, to ``prp1``.

    What does not fit into that page of the host's memory goes to ``prp2``. ``kind`` and ``nsid``
    are as in `page_request`.
    """
    return data.StructLayout(
        {"kind": PageKind, "nsid": 32, "skip": SKIP_BITS, "dwords": 11, "prp1": 64, "prp2": 64}
    )


class PageAccess(wiring.Signature):
    """Pages for the host, seen from who has them sent.

    Ports
    -----
    request
        What to send.
    response
        The status field, once the page has been sent, or has not.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "request": Out(stream.Signature(send_request(config))),
                "response": In(stream.Signature(STATUS_BITS)),
            }
        )


class PageSender(wiring.Component):
    """Builds and sends one page at a time, in a line of its own.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    pages
        Pages to send.
    build
        The page that `PageGenerator` has to make.
    built
        Its answer: 1 if the page is in its line.
    allocate
        A line for the page.
    free
        That line, once the page has been sent.
    write_request
        Requests to the host: one, or two where the page spans two pages of the host's memory.
    sent
        A pulse: the last of them has been sent.
    line
        The line of the page.
    owns_line
        That line is on its way to the host.
    busy
        Something is done without waiting for another block.

    Latency: 8 cycles from the request to the response, 9 with two requests to the host, and what
    the other blocks take. Back-pressure: a request waits for the page before.

    Errors: Invalid PRP Offset; Invalid Field when there is nothing to say of the namespace.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "pages": In(PageAccess(config)),
                "build": Out(stream.Signature(page_request(config))),
                "built": In(stream.Signature(1)),
                "allocate": In(line_stream(config)),
                "free": Out(line_stream(config)),
                "write_request": Out(stream.Signature(write_request(config))),
                "sent": In(1),
                "line": Out(config.line_bits),
                "owns_line": Out(1),
                "busy": Out(1),
            }
        )
        self._asked = Signal(send_request(config))
        self._status = Signal(STATUS_BITS)
        # Words up to the end of the host's first page; words that go there; it spans two of them.
        self._within = self._asked.prp1[:PAGE_SHIFT]
        self._room = Signal(11)
        self._first = Signal(11)
        self._spans = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        self._divide(m)
        with m.FSM(name="send") as fsm:
            self._take(m)
            self._build(m)
            self._send(m)
            self._end(m)
        waits = (
            (fsm.ongoing("TAKE") & ~self.pages.request.valid)
            | (fsm.ongoing("ALLOCATE") & ~self.allocate.valid)
            | (self.build.valid & ~self.build.ready)
            | (fsm.ongoing("WAIT_BUILT") & ~self.built.valid)
            | (self.write_request.valid & ~self.write_request.ready)
            | (fsm.ongoing("WAIT_SENT") & ~self.sent)
            | (self.free.valid & ~self.free.ready)
            | (self.pages.response.valid & ~self.pages.response.ready)
        )
        m.d.comb += self.busy.eq(~waits)
        return m

    def _divide(self, m: Module) -> None:
        """Where the page goes in the host's memory."""
        room, spans = self._room, self._spans
        m.d.comb += [
            room.eq(DWORDS_PER_BLOCK - self._within[2:]),
            spans.eq(self._asked.dwords > room),
            self._first.eq(Mux(spans, room, self._asked.dwords)),
        ]

    # States. Each method has those of one step, and says which they are.

    def _take(self, m: Module) -> None:
        """The states TAKE and CHECK: a request, and whether its PRPs are allowed."""
        asked = self._asked
        with m.State("TAKE"):
            m.d.comb += self.pages.request.ready.eq(1)
            m.d.sync += [asked.eq(self.pages.request.payload), self._status.eq(0)]
            with m.If(self.pages.request.valid):
                m.next = "CHECK"
        with m.State("CHECK"):
            m.next = "ALLOCATE"
            uneven = self._within[:2].any() | (self._spans & asked.prp2[:PAGE_SHIFT].any())
            with m.If(uneven):
                m.d.sync += self._status.eq(status_field(StatusCode.INVALID_PRP_OFFSET))
                m.next = "RESPOND"

    def _build(self, m: Module) -> None:
        """The states ALLOCATE, BUILD and WAIT_BUILT: the page is made, in a line."""
        asked = self._asked
        m.d.comb += assign(
            self.build.payload,
            kind=asked.kind,
            nsid=asked.nsid,
            skip=asked.skip,
            line=self.line,
        )
        with m.State("ALLOCATE"):
            m.d.comb += self.allocate.ready.eq(1)
            m.d.sync += self.line.eq(self.allocate.payload)
            with m.If(self.allocate.valid):
                m.next = "BUILD"
        with m.State("BUILD"):
            m.d.comb += self.build.valid.eq(1)
            with m.If(self.build.ready):
                m.next = "WAIT_BUILT"
        with m.State("WAIT_BUILT"):
            m.d.comb += self.built.ready.eq(1)
            with m.If(self.built.valid):
                m.next = "SEND"
                with m.If(~self.built.payload):
                    m.d.sync += self._status.eq(status_field(StatusCode.INVALID_FIELD))
                    m.next = "FREE"

    def _send(self, m: Module) -> None:
        """The states SEND, SEND_REST and WAIT_SENT: the page goes to the host, in two parts if it
        spans two pages there."""
        asked, room, spans = self._asked, self._room, self._spans
        with m.State("SEND"):
            self._request_write(m, last=~spans, address=asked.prp1, dwords=self._first, begin=0)
            with m.If(self.write_request.ready):
                m.next = "WAIT_SENT"
                with m.If(spans):
                    m.next = "SEND_REST"
        with m.State("SEND_REST"):
            rest = asked.dwords - room
            self._request_write(m, last=1, address=asked.prp2, dwords=rest, begin=room)
            with m.If(self.write_request.ready):
                m.next = "WAIT_SENT"
        with m.State("WAIT_SENT"):
            m.d.comb += self.owns_line.eq(1)
            with m.If(self.sent):
                m.next = "FREE"

    def _request_write(self, m: Module, *, last, address, dwords, begin) -> None:
        """``dwords`` of the line from word ``begin`` on go to ``address``."""
        place = (begin | Const(0, 11))[: PAGE_SHIFT - 2]
        m.d.comb += [
            self.write_request.valid.eq(1),
            self.owns_line.eq(1),
            *assign(
                self.write_request.payload,
                line=self.line,
                last=last,
                address=address,
                dwords=dwords,
                source=Cat(place, self.line),
            ),
        ]

    def _end(self, m: Module) -> None:
        """The states FREE and RESPOND: the line is given back, and the status told."""
        m.d.comb += [
            self.free.payload.eq(self.line),
            self.pages.response.payload.eq(self._status),
        ]
        with m.State("FREE"):
            m.d.comb += self.free.valid.eq(1)
            with m.If(self.free.ready):
                m.next = "RESPOND"
        with m.State("RESPOND"):
            m.d.comb += self.pages.response.valid.eq(1)
            with m.If(self.pages.response.ready):
                m.next = "TAKE"
