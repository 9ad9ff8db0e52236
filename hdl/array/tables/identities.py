"""Who the members of arrays are, so that a drive that comes back is known."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.flow.drive_port import IDENTITY_BITS
from hdl.kit.table import Table


class NoIdentities(wiring.Component):
    """What is there instead of `Identities` without ``intent_chunks``: no drive is known again.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    identity
        Of the drives at the ports, as in `hdl.flow.drive_port.DrivePort`.
    port
        Which port is looked at.
    note
        A pulse. The drive at that port becomes a member.
    absent
        No drive is at that port.
    same
        The drive is the one that was noted last, one cycle after ``port``. An identity of 0 is
        nobody's.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "identity": In(IDENTITY_BITS).array(config.ports),
                "port": In(config.port_bits),
                "note": In(1),
                "absent": In(1),
                "same": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        return Module()


class Identities(NoIdentities):
    """Remembers for each port the identity of the drive that became a member there.

    Its ports are those of `NoIdentities`.

    Parameters
    ----------
    config
        Sizes, with ``intent_chunks``.
    """

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.known = known = Table(IDENTITY_BITS, MAX_DRIVES)
        seen = Signal(IDENTITY_BITS)
        m.d.sync += [
            seen.eq(Mux(self.absent, 0, Array(self.identity)[self.port])),
            known.write.address.eq(self.port),
            known.write.enable.eq(self.note),
        ]
        m.d.comb += [
            known.reads[0].address.eq(self.port),
            known.write.data.eq(seen),
            self.same.eq((seen == known.reads[0].data) & seen.any()),
        ]
        return m
