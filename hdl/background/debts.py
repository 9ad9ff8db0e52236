"""What the host has not been told yet: a bit a volume."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.array.interface import ManageOpcode
from hdl.config import Config


class Debts(wiring.Component):
    """Volumes that may have lost something since they were last flushed.

    A namespace is flushed by itself (NVMe 1.4 section 6.8), so each volume that an array has as it
    loses something is told by a Flush of its own. A volume that is created or deleted owes nothing,
    so an array without volumes never does. Several Flushes of a volume may be inside: those that
    began before tell of the loss too, whoever of them is judged first, as what each was meant for
    may be lost.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    made, opcode, volume, array
        A pulse: a change of the tables has been made, which one, and if it is one of volumes, of
        which volume, and (CREATE_VOLUME) in which array.
    loses, loser
        A pulse: an array may have lost something.
    blames, blamed_volume
        A pulse: a Flush of a volume is refused, which tells it.
    begins, begun, ends, ended
        Pulses: a host command gets a slot; it leaves it.
    indebted
        Bit a volume: it has not been told yet.
    witnesses, losers
        Bit a slot: its command began before an array lost something; bit a volume: of such an
        array, as long as any of those is inside. A Flush that is one, of a volume that is one, is
        refused.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "made": In(1),
                "opcode": In(ManageOpcode),
                "volume": In(config.volume_bits),
                "array": In(config.array_bits),
                "loses": In(1),
                "loser": In(config.array_bits),
                "blames": In(1),
                "blamed_volume": In(config.volume_bits),
                "begins": In(1),
                "begun": In(config.slot_bits),
                "ends": In(1),
                "ended": In(config.slot_bits),
                "indebted": Out(config.volumes),
                "witnesses": Out(config.commands),
                "losers": Out(config.volumes),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        exists = Signal(config.volumes)
        arrays = Array(
            Signal(config.array_bits, name=f"array_of_{number}")
            for number in range(config.volumes)
        )
        inside = Signal(config.commands)
        goes = Signal(config.commands)
        m.d.comb += goes.eq(self.ends << self.ended)
        m.d.sync += [
            inside.eq((inside | (self.begins << self.begun)) & ~goes),
            self.witnesses.eq(Mux(self.loses, inside, self.witnesses) & ~goes),
        ]
        with m.If(~self.witnesses.any()):
            m.d.sync += self.losers.eq(0)
        with m.If(self.blames):
            m.d.sync += self.indebted.bit_select(self.blamed_volume, 1).eq(0)
        for number, array in enumerate(arrays):
            with m.If(self.loses & exists[number] & (array == self.loser)):
                m.d.sync += [self.indebted[number].eq(1), self.losers[number].eq(1)]
        creates = self.opcode == ManageOpcode.CREATE_VOLUME
        with m.If(self.made & (creates | (self.opcode == ManageOpcode.DELETE_VOLUME))):
            m.d.sync += [
                exists.bit_select(self.volume, 1).eq(creates),
                arrays[self.volume].eq(Mux(creates, self.array, 0)),
                self.indebted.bit_select(self.volume, 1).eq(0),
                self.losers.bit_select(self.volume, 1).eq(0),
            ]
        return m
