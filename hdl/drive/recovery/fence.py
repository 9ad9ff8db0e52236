"""A gate between the controller and one drive port, shut while the port is being reset."""

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.drive.recovery.levels import pass_levels
from hdl.flow.drive_port import DrivePort, drive_completion


class Fence(wiring.Component):
    """Passes everything on, but not while ``shut``. Then the port is in reset, and the controller
    sees a drive that takes what it is sent, sends nothing, and ends the commands that ``ending``
    names.

    No latency. The link core may change anything it offers in the cycle after ``shut`` has risen.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inner
        The port as the controller sees it.
    outer
        The port as the link core sees it.
    shut
        Level: the port is in reset.
    ends
        Level, only while ``shut``: a command has ended. It lasts until the controller has noticed.
    ending
        Which command that is, and how it has ended.
    """

    def __init__(self, *, config: Config):
        self._config = config
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
        pass_levels(m, inner, outer, config=self._config)
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
            outer.reset.eq(shut),
        ]
        return m
