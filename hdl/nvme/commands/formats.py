"""LBA formats of the volumes: the host's sector size, and the physical one that it is told."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.manage import Emulation, ManageOpcode, ManageStatus, manage_request, manage_response
from hdl.kit.pulse import Pulse


def formats(config: Config) -> data.StructLayout:
    """Bits a volume. ``sectors``: its logical blocks have 512 bytes, else 4096. ``coarse``: it has
    sectors, and its physical ones have 4096 bytes."""
    return data.StructLayout({"sectors": config.volumes, "coarse": config.volumes})


class Formats(wiring.Component):
    """Learns the format of each volume as it is created.

    What is told of the physical sectors is settled then, from the drives that the array was created
    over. It does not change under a host that has seen it.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    asked
        A change to the tables that has been taken.
    answered
        How the change has been answered.
    emulated
        Bit a drive port: its drive emulates 512-byte sectors.
    formats
        Of all volumes, from the cycle after the answer on.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "asked": In(Pulse(manage_request(config))),
                "answered": In(Pulse(manage_response(config))),
                "emulated": In(config.ports),
                "formats": Out(formats(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        opcode = Signal(ManageOpcode)
        sectors = Signal()
        emulation = Signal(Emulation)
        array = Signal(config.array_bits)
        # Of the drives of the array being created, and of each array.
        emulates = Signal()
        of_array = Signal(config.arrays)
        with m.If(self.asked.valid):
            m.d.sync += [
                opcode.eq(self.asked.payload.opcode),
                sectors.eq(self.asked.payload.sectors),
                emulation.eq(self.asked.payload.emulation),
                array.eq(self.asked.payload.array),
                emulates.eq((self.asked.payload.drives & self.emulated).any()),
            ]
        coarse = Signal()
        with m.Switch(emulation):
            with m.Case(Emulation.DEFAULT):
                m.d.comb += coarse.eq(of_array.bit_select(array, 1))
            with m.Case(Emulation.FORCE):
                m.d.comb += coarse.eq(1)
        volume = self.answered.payload.index[: config.volume_bits]
        with m.If(self.answered.valid & (self.answered.payload.status == ManageStatus.DONE)):
            with m.If(opcode == ManageOpcode.CREATE_ARRAY):
                created = self.answered.payload.index[: config.array_bits]
                m.d.sync += of_array.bit_select(created, 1).eq(emulates)
            with m.If(opcode == ManageOpcode.CREATE_VOLUME):
                m.d.sync += [
                    self.formats.sectors.bit_select(volume, 1).eq(sectors),
                    self.formats.coarse.bit_select(volume, 1).eq(Mux(sectors, coarse, 0)),
                ]
        return m
