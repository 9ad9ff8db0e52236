"""Which volume a command was meant for: the one that was there when it was submitted."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.kit.pick import lowest_bit
from hdl.kit.table import Table

AGE_BITS = 40
"""Volumes since power-up are counted as wide as in `hdl.nvme.admin.names`: never around."""


class LifetimeRead(wiring.Signature):
    """Whether a command was meant for the volume that is there, seen from who asks.

    Ports
    -----
    volume
        The command's volume, one cycle before the rest.
    submitted
        The command's age.
    there
        The volume exists.
    belongs
        The volume exists, and has done so since the command was submitted.
    late
        With ``belongs``: the command was submitted before its volume was told. 0 without
        `Config.background`.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "volume": Out(config.volume_bits),
                "submitted": Out(AGE_BITS),
                "there": In(1),
                "belongs": In(1),
                "late": In(1),
            }
        )


class Lifetimes(wiring.Component):
    """Tells commands that were submitted to another volume of the same number.

    When a namespace is deleted, commands that were submitted before and have not completed find
    none (NVMe 1.4, 8.12). There may be another one of that number before they are looked at.
    Whoever deletes or creates a volume waits for the commands that have a slot
    (`hdl.array.references`). Those without a slot are in the host's queue or in the inbox, and
    nobody waits for them. So each carries its age, which says how many volumes had been created
    when the host rang for it. A command finds a volume only if the volume was there by then.

    The age also steps when a volume is told that it has lost something
    (`hdl.background.debts.Debts`). So it is known of a command whether it was submitted before
    that.

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
    read
        What is asked of a command. ``there`` and ``belongs`` fall in the cycle in which ``exists``
        does.
    told
        Bit a volume, a pulse: it is told. Not used without `Config.background`.
    busy
        A volume that has come, or is told, is being noted: one a cycle.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "exists": In(config.volumes),
                "age": Out(AGE_BITS),
                "read": In(LifetimeRead(config)),
                "told": In(config.volumes),
                "busy": Out(1),
            }
        )

        # The age that a command must have at least to find each volume.
        self._births = Table(AGE_BITS, config.volumes, forwards=True)
        self._asked = Signal(config.volume_bits)
        self._comes = Signal(config.volumes)

    def elaborate(self, platform) -> Module:
        m = Module()
        news = self._follow_volumes(m)
        if self._config.background:
            news |= self._follow_told(m)
        m.d.comb += self.busy.eq(news)
        with m.If(news):
            m.d.sync += self.age.eq(self.age + 1)
        return m

    def _follow_volumes(self, m: Module) -> Value:
        """Notes at which age volumes come, one a cycle. Returns whether one does."""
        m.submodules.births = births = self._births
        known = Signal(self._config.volumes)
        comes = self._comes
        newest = lowest_bit(m, comes, "newest")
        m.d.comb += [
            comes.eq(self.exists & ~known),
            births.write.address.eq(newest),
            births.write.data.eq(self.age + 1),
            births.write.enable.eq(comes.any()),
            births.reads[0].address.eq(self.read.volume),
            self.read.there.eq((known & self.exists).bit_select(self._asked, 1)),
            self.read.belongs.eq(self.read.there & (births.reads[0].data <= self.read.submitted)),
        ]
        m.d.sync += [self._asked.eq(self.read.volume), known.eq(known & self.exists)]
        with m.If(comes.any()):
            m.d.sync += known.eq((known & self.exists) | (1 << newest))
        return comes.any()

    def _follow_told(self, m: Module) -> Value:
        """Notes at which age volumes are told, one a cycle, while none comes. Returns whether one
        waits for that."""
        # The age at which each volume was told last.
        m.submodules.tidings = tidings = Table(AGE_BITS, self._config.volumes, forwards=True)
        waiting = Signal.like(self.told)
        first = lowest_bit(m, waiting, "first_told")
        notes = Signal()
        m.d.comb += [
            notes.eq(waiting.any() & ~self._comes.any()),
            tidings.write.address.eq(first),
            tidings.write.data.eq(self.age + 1),
            tidings.write.enable.eq(notes),
            tidings.reads[0].address.eq(self.read.volume),
            self.read.late.eq(
                waiting.bit_select(self._asked, 1) | (tidings.reads[0].data > self.read.submitted)
            ),
        ]
        m.d.sync += waiting.eq((waiting & ~Mux(notes, 1 << first, 0)) | self.told)
        return waiting.any()
