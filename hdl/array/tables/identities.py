"""Who the members of arrays are, so that a drive that comes back is known."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.flow.drive_port import IDENTITY_BITS


class Identities(wiring.Component):
    """Remembers, a port, the identity of the drive that became a member there.

    Parameters
    ----------
    config
        Sizes, with ``intent_chunks``.

    Ports
    -----
    identity
        Of the drives at the ports, as in `hdl.flow.drive_port.DrivePort`.
    port, note
        Which port; a pulse: its drive becomes a member.
    absent
        No drive is at that port.
    same
        The drive is the one that was noted last; one cycle after ``port``. An identity of 0 is
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
        m = Module()
        m.submodules.known = known = Memory(shape=IDENTITY_BITS, depth=MAX_DRIVES, init=[])
        read, write = known.read_port(), known.write_port()
        seen = Signal(IDENTITY_BITS)
        m.d.sync += [
            seen.eq(Mux(self.absent, 0, Array(self.identity)[self.port])),
            write.addr.eq(self.port),
            write.en.eq(self.note),
        ]
        m.d.comb += [
            read.addr.eq(self.port),
            write.data.eq(seen),
            self.same.eq((seen == read.data) & seen.any()),
        ]
        return m
