"""Which volume a command was meant for: the one that was there when it was submitted."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.kit.pick import lowest_set

AGE_BITS = 40
"""Volumes since power-up are counted as wide as in `hdl.nvme.admin.names`: never around."""


class Lifetimes(wiring.Component):
    """Tells commands that were submitted to another volume of the same number.

    When a namespace is deleted, commands that were submitted before and have not completed find
    none (NVMe 1.4, 8.12), although there may be another one of that number before they are looked
    at. Those that have a slot are waited for by whoever deletes or creates a volume
    (`hdl.array.references`). Those that have none are in the host's queue or in the inbox and
    nobody waits for them. So each carries its age: how many volumes had been created when the host
    rang for it. A command finds a volume only if that was there by then.

    The age also steps when a volume is told that it has lost something
    (`hdl.background.debts.Debts`), so commands are known that were submitted before that.

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
    told, late
        With ``background``: bit a volume, a pulse: it is told; a command was submitted before its
        volume was. With ``belongs``.
    busy
        A volume that has come, or is told, is being noted: one a cycle.
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
            | ({"told": In(config.volumes), "late": Out(1)} if config.background else {})
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
        news = comes.any()
        if config.background:
            news = news | self._follow_told(m, asked=asked, comes=comes)
        m.d.comb += [
            comes.eq(self.exists & ~known),
            self.busy.eq(news),
            write.addr.eq(newest),
            write.data.eq(self.age + 1),
            write.en.eq(comes.any()),
            read.addr.eq(self.volume),
            self.there.eq((known & self.exists).bit_select(asked, 1)),
            self.belongs.eq(self.there & (read.data <= self.submitted)),
        ]
        m.d.sync += [asked.eq(self.volume), known.eq(known & self.exists)]
        with m.If(news):
            m.d.sync += self.age.eq(self.age + 1)
        with m.If(comes.any()):
            m.d.sync += known.eq((known & self.exists) | (1 << newest))
        return m

    def _follow_told(self, m: Module, *, asked: Signal, comes: Signal) -> Value:
        """Notes at which age volumes are told, while none ``comes``; whether there are any."""
        m.submodules.tidings = tidings = Memory(
            shape=AGE_BITS, depth=self._config.volumes, init=[]
        )
        write = tidings.write_port()
        read = tidings.read_port(transparent_for=[write])
        waiting = Signal.like(self.told)
        first = lowest_set(m, waiting, "first_told")
        notes = Signal()
        m.d.comb += [
            notes.eq(waiting.any() & ~comes.any()),
            write.addr.eq(first),
            write.data.eq(self.age + 1),
            write.en.eq(notes),
            read.addr.eq(self.volume),
            self.late.eq(waiting.bit_select(asked, 1) | (read.data > self.submitted)),
        ]
        m.d.sync += waiting.eq((waiting & ~Mux(notes, 1 << first, 0)) | self.told)
        return waiting.any()
