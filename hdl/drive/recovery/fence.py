"""A gate between the controller and one drive port, shut while the port is being reset."""

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.drive_port import DrivePort, drive_completion


class Fence(wiring.Component):
    """Passes everything on; while ``shut``, the port is in reset and the controller sees a drive
    that takes what it is sent, sends nothing, and ends the commands that ``ending`` names.

    No latency. The link core may change anything it offers in the cycle after ``shut`` has risen.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inner, outer
        The port as the controller and as the link core see it.
    shut
        Level.
    ends, ending
        While ``shut``: a command has ended like this; held until the controller has noticed.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "inner": In(DrivePort(config)),
                "outer": Out(DrivePort(config)),
                "shut": In(1),
                "ends": In(1),
                "ending": In(drive_completion(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        inner, outer, shut = self.inner, self.outer, self.shut
        for sent, taken in (
            (inner.command, outer.command),
            (inner.write_data, outer.write_data),
        ):
            m.d.comb += [
                taken.valid.eq(sent.valid & ~shut),
                taken.payload.eq(sent.payload),
                sent.ready.eq(taken.ready | shut),
            ]
        for sent, taken in ((outer.grant, inner.grant), (outer.read_data, inner.read_data)):
            m.d.comb += [
                taken.valid.eq(sent.valid & ~shut),
                taken.payload.eq(sent.payload),
                sent.ready.eq(taken.ready & ~shut),
            ]
        m.d.comb += [
            inner.completion.valid.eq(Mux(shut, self.ends, outer.completion.valid)),
            # A completion that was being taken goes on: with its own tag, which is looked at first.
            inner.completion.payload.tag.eq(
                Mux(self.ends, self.ending.tag, outer.completion.payload.tag)
            ),
            inner.completion.payload.status.eq(
                Mux(shut, self.ending.status, outer.completion.payload.status)
            ),
            outer.completion.ready.eq(inner.completion.ready & ~shut),
            inner.present.eq(outer.present),
            inner.restarted.eq(outer.restarted),
            inner.capacity.eq(outer.capacity),
            outer.abort.eq(inner.abort),
            outer.abort_tag.eq(inner.abort_tag),
            outer.reset.eq(shut),
        ]
        if hasattr(inner, "emulated"):
            m.d.comb += inner.emulated.eq(outer.emulated)
        if hasattr(inner, "identity"):
            m.d.comb += inner.identity.eq(outer.identity)
        return m
