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
    """Send ``dwords`` (1..1024) of a page after ``skip`` to ``prp1``, going on at ``prp2``."""
    return data.StructLayout(
        {"kind": PageKind, "nsid": 32, "skip": SKIP_BITS, "dwords": 11, "prp1": 64, "prp2": 64}
    )


class PageSender(wiring.Component):
    """Builds and sends one page at a time, in a line of its own.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request, response
        What to send, and the status field once it has been sent.
    build, built
        To and from `PageGenerator`.
    allocate, free
        Its line.
    write_request, sent
        Requests to the host, and a pulse once the last of them has been sent.
    line, owns_line
        Which line is on its way to the host, if any.

    Errors: Invalid PRP Offset; Invalid Field when there is nothing to say of the namespace.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(send_request(config))),
                "response": Out(stream.Signature(STATUS_BITS)),
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

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        asked = Signal(send_request(config))
        status = Signal(STATUS_BITS)
        within = asked.prp1[:PAGE_SHIFT]
        room = Signal(11)
        first = Signal(11)
        spans = Signal()
        m.d.comb += [
            room.eq(DWORDS_PER_BLOCK - within[2:]),
            spans.eq(asked.dwords > room),
            first.eq(Mux(spans, room, asked.dwords)),
            self.response.payload.eq(status),
            self.free.payload.eq(self.line),
            *assign(
                self.build.payload,
                kind=asked.kind,
                nsid=asked.nsid,
                skip=asked.skip,
                line=self.line,
            ),
        ]
        out = self.write_request.payload

        with m.FSM(name="send") as fsm:
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(1)
                m.d.sync += [asked.eq(self.request.payload), status.eq(0)]
                with m.If(self.request.valid):
                    m.next = "CHECK"

            with m.State("CHECK"):
                m.next = "ALLOCATE"
                with m.If(within[:2].any() | (spans & asked.prp2[:PAGE_SHIFT].any())):
                    m.d.sync += status.eq(status_field(StatusCode.INVALID_PRP_OFFSET))
                    m.next = "RESPOND"

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
                        m.d.sync += status.eq(status_field(StatusCode.INVALID_FIELD))
                        m.next = "FREE"

            with m.State("SEND"):
                m.d.comb += [
                    self.write_request.valid.eq(1),
                    self.owns_line.eq(1),
                    *assign(
                        out,
                        line=self.line,
                        last=~spans,
                        address=asked.prp1,
                        dwords=first,
                        source=Cat(Const(0, PAGE_SHIFT - 2), self.line),
                    ),
                ]
                with m.If(self.write_request.ready):
                    m.next = "WAIT_SENT"
                    with m.If(spans):
                        m.next = "SEND_REST"

            with m.State("SEND_REST"):
                m.d.comb += [
                    self.write_request.valid.eq(1),
                    self.owns_line.eq(1),
                    *assign(
                        out,
                        line=self.line,
                        last=1,
                        address=asked.prp2,
                        dwords=asked.dwords - room,
                        source=Cat(room[: PAGE_SHIFT - 2], self.line),
                    ),
                ]
                with m.If(self.write_request.ready):
                    m.next = "WAIT_SENT"

            with m.State("WAIT_SENT"):
                m.d.comb += self.owns_line.eq(1)
                with m.If(self.sent):
                    m.next = "FREE"

            with m.State("FREE"):
                m.d.comb += self.free.valid.eq(1)
                with m.If(self.free.ready):
                    m.next = "RESPOND"

            with m.State("RESPOND"):
                m.d.comb += self.response.valid.eq(1)
                with m.If(self.response.ready):
                    m.next = "TAKE"

            waits = (
                (fsm.ongoing("TAKE") & ~self.request.valid)
                | (fsm.ongoing("ALLOCATE") & ~self.allocate.valid)
                | (self.build.valid & ~self.build.ready)
                | (fsm.ongoing("WAIT_BUILT") & ~self.built.valid)
                | (self.write_request.valid & ~self.write_request.ready)
                | (fsm.ongoing("WAIT_SENT") & ~self.sent)
                | (self.free.valid & ~self.free.ready)
                | (self.response.valid & ~self.response.ready)
            )
            m.d.comb += self.busy.eq(~waits)
        return m
