"""The controller behind a Xilinx UltraScale+ PCIe hard block: only instances and connections."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import TIME_BITS, Config
from hdl.core import Core
from hdl.drive.interface import DrivePort
from hdl.pcie.axis import all_axis_ports
from hdl.pcie.interface import PcieStatus
from hdl.pcie.ultrascale import UltrascaleShim


class Controller(wiring.Component):
    """`Core` and `UltrascaleShim`: ``rq_*``, ``rc_*``, ``cq_*``, ``cc_*`` are the hard block's
    AXI4-Streams (PG213), the rest is as in `Core`.

    Parameters
    ----------
    config
        Sizes; ``data_width`` is that of the hard block's streams.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                **all_axis_ports(config.data_width),
                "status": Out(PcieStatus()),
                "reset_done": Out(1),
                "now": In(TIME_BITS),
                "temperature": In(16),
                "quiet": Out(1),
                "deadline": Out(TIME_BITS),
                "drives": Out(DrivePort(config)).array(config.ports),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.shim = shim = UltrascaleShim(config=self._config)
        m.submodules.core = core = Core(config=self._config)
        connect(m, core.request, shim.request)
        connect(m, shim.completion, core.completion)
        connect(m, shim.register, core.register)
        for name, member in all_axis_ports(self._config.data_width).items():
            inner, outer = getattr(shim, name), getattr(self, name)
            m.d.comb += inner.eq(outer) if member.flow is In else outer.eq(inner)
        for name in PcieStatus().members:
            for block in (core, shim):
                m.d.comb += getattr(block.status, name).eq(getattr(self.status, name))
        m.d.comb += [
            self.reset_done.eq(core.reset_done),
            core.now.eq(self.now),
            core.temperature.eq(self.temperature),
            self.quiet.eq(core.quiet & ~shim.busy),
            self.deadline.eq(core.deadline),
        ]
        for outer, inner in zip(self.drives, core.drives, strict=True):
            connect(m, flipped(outer), inner)
        return m
