"""The controller behind a PCIe hard block: only instances and connections."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import TIME_BITS, Config
from hdl.core import Core
from hdl.flow.backup_pins import BackupPins
from hdl.flow.drive_port import DrivePort
from hdl.flow.pcie_status import PcieStatus
from hdl.nvme.admin.names import IDENTITY_BITS, NONCE_BITS
from hdl.pcie.phy.series7 import Series7Shim
from hdl.pcie.phy.ultrascale import UltrascaleShim

INNER = ("request", "progress", "completion", "register", "status", "posted", "busy")
"""Members of a shim that face `Core`; the others are the hard block's."""


class Controller(wiring.Component):
    """`Core` and the shim of a hard block.

    What the hard block is connected to has its own names: of UltraScale+ the AXI4-Streams
    ``rq_*``, ``rc_*``, ``cq_*``, ``cc_*`` (PG213; ``rq_seq_num*`` are its ``pcie_rq_seq_num*``,
    ``tfc_nph_av`` its ``pcie_tfc_nph_av``), of the 7 series ``rx_*``, ``tx_*``, ``fc_nph`` and
    ``id`` (PG054). The rest is as in `Core`.

    Parameters
    ----------
    config
        Sizes; ``data_width`` is that of the hard block's streams.
    shim
        `UltrascaleShim` or `Series7Shim`.
    """

    def __init__(
        self,
        *,
        config: Config,
        shim: type[UltrascaleShim] | type[Series7Shim] = UltrascaleShim,
    ):
        self._config = config
        self._shim = shim(config=config)
        members = self._shim.signature.members.items()
        self._edge = {name: member for name, member in members if name not in INNER}
        super().__init__(
            {
                **self._edge,
                "status": Out(PcieStatus()),
                "reset_done": Out(1),
                "now": In(TIME_BITS),
                "temperature": In(16),
                "identity": In(IDENTITY_BITS),
                "nonce": In(NONCE_BITS),
                "quiet": Out(1),
                "deadline": Out(TIME_BITS),
                "drives": Out(DrivePort(config)).array(config.ports),
            }
            | ({"backup": Out(BackupPins())} if config.backup_blocks else {})
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.shim = shim = self._shim
        m.submodules.core = core = Core(config=self._config)
        connect(m, core.request, shim.request)
        connect(m, shim.progress, core.progress)
        connect(m, shim.completion, core.completion)
        connect(m, shim.register, core.register)
        for name, member in self._edge.items():
            inner, outer = getattr(shim, name), getattr(self, name)
            m.d.comb += inner.eq(outer) if member.flow is In else outer.eq(inner)
        for name in PcieStatus().members:
            for block in (core, shim):
                m.d.comb += getattr(block.status, name).eq(getattr(self.status, name))
        m.d.comb += [
            self.reset_done.eq(core.reset_done),
            core.posted.eq(shim.posted),
            core.now.eq(self.now),
            core.temperature.eq(self.temperature),
            core.identity.eq(self.identity),
            core.nonce.eq(self.nonce),
            self.quiet.eq(core.quiet & ~shim.busy),
            self.deadline.eq(core.deadline),
        ]
        if self._config.backup_blocks:
            connect(m, flipped(self.backup), core.backup)
        for outer, inner in zip(self.drives, core.drives, strict=True):
            connect(m, flipped(outer), inner)
        return m
