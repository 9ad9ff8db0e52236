"""Volumes of which the host has not been told yet that they may have lost something."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import ERA_BITS, Config
from hdl.flow.array_state import eras
from hdl.flow.manage import ManageOpcode
from hdl.flow.reference import Blame, SlotEvents, Tellings
from hdl.kit.table import Table, TableRead

TOLD_BITS = 8
"""Width of how often a volume has been told. It wraps, as `ERA_BITS` do."""


class Debts(wiring.Component):
    """Volumes that may have lost something since they were last flushed.

    A namespace is flushed by itself (NVMe 1.4 section 6.8). So when an array loses something, each
    of its volumes is told by a Flush of its own. A volume that is created or deleted owes nothing,
    so an array without volumes owes nothing either.

    A volume is told by the completion queue entry of the Flush that was refused. Until that entry
    is posted, other Flushes are refused too. So are those that were submitted before it was posted,
    whenever they are judged, because each may have been meant for what is lost. A controller that
    is disabled posts no entry, so the next Flush is refused as well.

    A write that is inside as its array loses something may have been in a cache already. If it ends
    with success after its volume was told, or while that is on its way, the volume is told again.

    The host is known to have heard it once it has taken the entry, by writing the doorbell of that
    completion queue. If the queue goes before that, by a reset of any kind or a deletion, the
    entry may never have arrived, or never been looked at. So the volume is told again.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    made
        A pulse. The tables have made a change.
    opcode
        Which change.
    volume
        Of CREATE_VOLUME and DELETE_VOLUME, that volume.
    array
        Of CREATE_VOLUME, its array.
    loses
        A pulse. Array ``loser`` may have lost something.
    loser
        That array.
    blame
        A Flush that is refused.
    slots
        Host commands that get and leave their command slots.
    tellings
        Whom the ends of commands tell, and who has been told.
    indebted
        One bit per volume. It has not been told yet.
    untaken
        One bit per volume. It has been told, and the host has not taken the entry yet.
    late
        Of a command slot. Its command was submitted before its volume was told.
    eras
        How often each array has lost something, one cycle after ``loses``.
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
                "blame": In(Blame(config)),
                "slots": In(SlotEvents(config)),
                "tellings": In(Tellings(config)),
                "indebted": Out(config.volumes),
                "untaken": Out(config.volumes),
                "late": In(TableRead(config.slot_bits, 1)),
                "eras": Out(eras(config)),
            }
        )

        # Of each volume: its array, if it exists; how often it has been told.
        volumes = range(config.volumes)
        self._exists = Signal(config.volumes)
        self._arrays = Array(Signal(config.array_bits, name=f"array_of_{n}") for n in volumes)
        self._told = Array(Signal(TOLD_BITS, name=f"told_{n}") for n in volumes)

        # A write of a volume has ended with success. It was inside as the array lost something.
        self._over_a_loss = Signal()
        self._writer = Signal(config.volume_bits)

        # A volume has a Flush that will tell it, in a slot. Then the end of that is on its way to
        # the host, in vain if something has been lost since. There is one at a time. Then it is
        # ``untaken``.
        self._waits = Signal(config.volumes)
        self._leaves = Signal(config.volumes)
        self._vain = Signal(config.volumes)

    def elaborate(self, platform) -> Module:
        m = Module()
        self._note_begins(m)
        for volume in range(self._config.volumes):
            self._follow(m, volume)
        with m.If(self.loses):
            m.d.sync += self.eras[self.loser].eq(self.eras[self.loser] + 1)
        self._note_change(m)
        return m

    def _note_begins(self, m: Module) -> None:
        """When the command in each slot was submitted, of which volume it is, and in which era of
        its array it got the slot. Whether a write ends in another era."""
        config, told = self._config, self._told
        begin = data.StructLayout(
            {"volume": config.volume_bits, "told": TOLD_BITS, "era": ERA_BITS}
        )
        m.submodules.begins_of = begins_of = Table(begin, config.commands, reads=2)
        found, writer = begins_of.reads[0].data, begins_of.reads[1].data
        begun = self.slots.begun.payload
        ends = Signal()
        m.d.sync += ends.eq(self.slots.cached.valid)
        m.d.comb += [
            begins_of.write.address.eq(begun.slot),
            begins_of.write.data.volume.eq(begun.volume),
            begins_of.write.data.told.eq(told[begun.volume] - begun.late),
            begins_of.write.data.era.eq(self.eras[self._arrays[begun.volume]]),
            begins_of.write.enable.eq(self.slots.begun.valid),
            begins_of.reads[1].address.eq(self.slots.cached.payload),
            self._writer.eq(writer.volume),
            self._over_a_loss.eq(ends & (writer.era != self.eras[self._arrays[writer.volume]])),
            begins_of.reads[0].address.eq(self.late.address),
            self.late.data.eq(found.told != told[found.volume]),
        ]

    def _follow(self, m: Module, volume: int) -> None:
        """What ``volume`` has lost, and whether the host has been told."""
        waits, leaves, vain, untaken = (
            bits[volume] for bits in (self._waits, self._leaves, self._vain, self.untaken)
        )
        indebted, told = self.indebted[volume], self.tellings.told[volume]
        hearing, count = self.tellings.hearing, self._told[volume]
        answer = hearing.answered.payload
        teller = Signal(self._config.slot_bits, name=f"teller_{volume}")
        queue = Signal(range(self._config.queue_pairs + 1), name=f"queue_{volume}")
        own = waits & (teller == self.slots.ended.payload)
        with m.If(own):
            m.d.comb += [self.tellings.tells.any.eq(1), self.tellings.tells.volume.eq(volume)]
        with m.If(own & self.slots.ended.valid):
            m.d.sync += [waits.eq(0), leaves.eq(1), vain.eq(0)]
        with m.If(hearing.answered.valid & (answer.volume == volume)):
            m.d.comb += told.eq(answer.posted & ~vain)
            m.d.sync += leaves.eq(0)
        with m.If(told):
            m.d.sync += [
                indebted.eq(0),
                count.eq(count + 1),
                untaken.eq(1),
                queue.eq(answer.queue),
            ]
        with m.Elif(untaken & hearing.heard.bit_select(queue, 1)):
            m.d.sync += untaken.eq(0)
        with m.Elif(untaken & hearing.unheard.bit_select(queue, 1)):
            m.d.sync += [untaken.eq(0), indebted.eq(1)]
        blamed = self.blame.blames & (self.blame.volume == volume)
        with m.If(blamed & indebted & ~waits & ~leaves):
            m.d.sync += [waits.eq(1), teller.eq(self.blame.slot)]
        with m.If(self._over_a_loss & (self._writer == volume)):
            m.d.sync += [indebted.eq(1), vain.eq(1)]
        with m.If(self.loses & self._exists[volume] & (self._arrays[volume] == self.loser)):
            m.d.sync += [indebted.eq(1), waits.eq(0), vain.eq(1)]

    def _note_change(self, m: Module) -> None:
        """A volume that is new, or gone, owes nothing."""
        creates = self.opcode == ManageOpcode.CREATE_VOLUME
        with m.If(self.made & (creates | (self.opcode == ManageOpcode.DELETE_VOLUME))):
            m.d.sync += [
                self._exists.bit_select(self.volume, 1).eq(creates),
                self._arrays[self.volume].eq(Mux(creates, self.array, 0)),
                self.indebted.bit_select(self.volume, 1).eq(0),
                self._waits.bit_select(self.volume, 1).eq(0),
                self._vain.bit_select(self.volume, 1).eq(1),
                self.untaken.bit_select(self.volume, 1).eq(0),
            ]
