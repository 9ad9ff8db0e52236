"""Which volume a command was meant for: the one that was there when it was submitted."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.nvme.arbitrate import lowest_set

AGE_BITS = 40
"""Volumes since power-up are counted as wide as in `hdl.nvme.names`: never around."""


class Lifetimes(wiring.Component):
    """Tells commands that were submitted to another volume of the same number.

    When a namespace is deleted, commands that were submitted before and have not completed find
    none (NVMe 1.4, 8.12), although there may be another one of that number before they are looked
    at. Those that have a slot are waited for by whoever deletes or creates a volume
    (`hdl.array.references`). Those that have none are in the host's queue or in the inbox and
    nobody waits for them. So each carries its age: how many volumes had been created when the host
    rang for it. A command finds a volume only if that was there by then.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    exists
        Bit a volume: it is there.
    age
        Of a command that is submitted now.
    volume, submitted
        A command's volume, one cycle before, and its age.
    there, belongs
        The volume exists; and it did when the command was submitted. Both fall in the cycle in
        which ``exists`` does.
    busy
        A volume that has come is being noted: one a cycle.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "exists": In(config.volumes),
                "age": Out(AGE_BITS),
                "volume": In(config.volume_bits),
                "submitted": In(AGE_BITS),
                "there": Out(1),
                "belongs": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        # The age that a command must have at least.
        m.submodules.births = births = Memory(shape=AGE_BITS, depth=config.volumes, init=[])
        write = births.write_port()
        read = births.read_port(transparent_for=[write])
        known, comes = Signal(config.volumes), Signal(config.volumes)
        newest = lowest_set(m, comes, "newest")
        asked = Signal(config.volume_bits)
        m.d.comb += [
            comes.eq(self.exists & ~known),
            self.busy.eq(comes.any()),
            write.addr.eq(newest),
            write.data.eq(self.age + 1),
            write.en.eq(comes.any()),
            read.addr.eq(self.volume),
            self.there.eq((known & self.exists).bit_select(asked, 1)),
            self.belongs.eq(self.there & (read.data <= self.submitted)),
        ]
        m.d.sync += [asked.eq(self.volume), known.eq(known & self.exists)]
        with m.If(comes.any()):
            m.d.sync += [
                self.age.eq(self.age + 1),
                known.eq((known & self.exists) | (1 << newest)),
            ]
        return m
