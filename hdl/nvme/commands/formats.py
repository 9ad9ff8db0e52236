"""LBA formats of the volumes: the host's sector size, and the physical one that it is told."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.manage import Emulation, MadeChange, ManageOpcode, ManageStatus


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
    made
        Changes to the tables.
    emulated
        Bit a drive port: its drive emulates 512-byte sectors.
    formats
        Of all volumes, from the cycle after the answer on.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "made": In(MadeChange(config)),
                "emulated": In(config.ports),
                "formats": Out(formats(config)),
            }
        )

    def elaborate(self, platform) -> Module:
        config, asked, answered = self._config, self.made.asked, self.made.answered
        m = Module()
        opcode = Signal(ManageOpcode)
        sectors = Signal()
        emulation = Signal(Emulation)
        array = Signal(config.array_bits)
        # Of the drives of the array being created, and of each array.
        emulates = Signal()
        of_array = Signal(config.arrays)
        with m.If(asked.valid):
            m.d.sync += [
                opcode.eq(asked.payload.opcode),
                sectors.eq(asked.payload.sectors),
                emulation.eq(asked.payload.emulation),
                array.eq(asked.payload.array),
                emulates.eq((asked.payload.drives & self.emulated).any()),
            ]
        coarse = Signal()
        with m.Switch(emulation):
            with m.Case(Emulation.DEFAULT):
                m.d.comb += coarse.eq(of_array.bit_select(array, 1))
            with m.Case(Emulation.FORCE):
                m.d.comb += coarse.eq(1)
        volume = answered.payload.index[: config.volume_bits]
        with m.If(answered.valid & (answered.payload.status == ManageStatus.DONE)):
            with m.If(opcode == ManageOpcode.CREATE_ARRAY):
                created = answered.payload.index[: config.array_bits]
                m.d.sync += of_array.bit_select(created, 1).eq(emulates)
            with m.If(opcode == ManageOpcode.CREATE_VOLUME):
                m.d.sync += [
                    self.formats.sectors.bit_select(volume, 1).eq(sectors),
                    self.formats.coarse.bit_select(volume, 1).eq(Mux(sectors, coarse, 0)),
                ]
        return m
