"""Blocks on their way to the host: which command each line in flight belongs to."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.host_command import Status
from hdl.flow.host_data import delivered
from hdl.flow.line import line_stream
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.nvme.records import assign, sending, unsent


class Delivery(wiring.Component):
    """Turns the line numbers of finished writes to the host into `delivered`.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begin
        A line is about to be sent for a command.
    page_line
        The line of an admin page that is on its way.
    has_page
        There is such a page.
    write_done
        Lines that have been sent.
    discarded
        Lines that are not sent, and how their blocks ended.
    delivered
        Blocks that are done with. What was sent is a SUCCESS, as posted writes cannot fail.
    page_sent
        A pulse: the admin page has been sent.
    busy
        Something moves without anybody else being waited for.

    Rate: a line in 2 cycles.
    Back-pressure from ``delivered``.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "begin": In(Pulse(sending(config))),
                "page_line": In(config.line_bits),
                "has_page": In(1),
                "write_done": In(line_stream(config)),
                "discarded": In(stream.Signature(unsent(config))),
                "delivered": Out(stream.Signature(delivered(config))),
                "page_sent": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        # The command slot of each line that is on its way.
        m.submodules.slots = slots = Table(config.slot_bits, config.lines)
        sent = slots.reads[0]
        line = Signal(config.line_bits)
        status = Signal(Status)
        of_page = self.has_page & (self.write_done.payload == self.page_line)
        m.d.comb += [
            slots.write.address.eq(self.begin.payload.line),
            slots.write.data.eq(self.begin.payload.slot),
            slots.write.enable.eq(self.begin.valid),
            *assign(self.delivered.payload, slot=sent.data, line=line, status=status),
        ]
        with m.FSM(name="deliver") as fsm:
            with m.State("TAKE"):
                ended = Mux(
                    self.write_done.valid, self.write_done.payload, self.discarded.payload.line
                )
                m.d.comb += [
                    self.write_done.ready.eq(1),
                    self.discarded.ready.eq(~self.write_done.valid),
                    sent.address.eq(ended),
                ]
                m.d.sync += line.eq(ended)
                with m.If(self.write_done.valid):
                    m.d.sync += status.eq(Status.SUCCESS)
                with m.Else():
                    m.d.sync += status.eq(self.discarded.payload.status)
                with m.If(self.write_done.valid):
                    with m.If(of_page):
                        m.d.comb += self.page_sent.eq(1)
                    with m.Else():
                        m.next = "REPORT"
                with m.Elif(self.discarded.valid):
                    m.next = "REPORT"

            with m.State("REPORT"):
                m.d.comb += [sent.address.eq(line), self.delivered.valid.eq(1)]
                with m.If(self.delivered.ready):
                    m.next = "TAKE"

            waits = (
                fsm.ongoing("TAKE") & ~self.write_done.valid & ~self.discarded.valid
            ) | (self.delivered.valid & ~self.delivered.ready)
            m.d.comb += self.busy.eq(~waits)
        return m
