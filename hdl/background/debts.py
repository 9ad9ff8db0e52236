"""What the host has not been told yet: a bit a volume."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.array_state import eras
from hdl.flow.manage import ManageOpcode
from hdl.flow.reference import answer, command_begin, telling
from hdl.kit.table import TableRead

TOLD_BITS = 8
"""Of how often a volume has been told; it wraps, as `ERA_BITS` do."""


class Debts(wiring.Component):
    """Volumes that may have lost something since they were last flushed.

    A namespace is flushed by itself (NVMe 1.4 section 6.8), so each volume that an array has as it
    loses something is told by a Flush of its own. A volume that is created or deleted owes nothing,
    so an array without volumes never does.

    A volume is told by the completion queue entry of the Flush that was refused. Until that is
    posted others are refused, and so are those that were submitted before that, whenever they are
    judged: each may have been meant for what is lost. A controller that is disabled posts none, so
    the next Flush is refused as well.

    That the host has heard it is known once it has taken the entry: it has written the doorbell of
    that completion queue. If the queue goes before that, by a reset of any kind or a deletion, the
    entry may never have arrived, or never been looked at, so the volume is told once more.

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
    blames, blamed_volume, blamed_slot
        A pulse: a Flush of a volume is refused, which tells it as it ends.
    begins, begun, ends, ended
        Pulses: a host command gets a slot; it leaves it.
    tells
        Whom the end of the command in slot ``ended`` tells.
    answers, answer
        A pulse: the end of one that was to tell has come to its completion queue.
    heard, unheard
        Pulses, a bit a completion queue: the host has taken all its entries that tell; it has gone.
    indebted
        Bit a volume: it has not been told yet.
    told
        Bit a volume, a pulse: now it has.
    late
        Of a slot: its command was submitted before its volume was told.
    eras
        How often each array has lost something; one cycle after ``loses``.
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
                "blamed_slot": In(config.slot_bits),
                "begins": In(1),
                "begun": In(command_begin(config)),
                "ends": In(1),
                "ended": In(config.slot_bits),
                "tells": Out(telling(config)),
                "answers": In(1),
                "answer": In(answer(config)),
                "heard": In(config.queue_pairs + 1),
                "unheard": In(config.queue_pairs + 1),
                "indebted": Out(config.volumes),
                "told": Out(config.volumes),
                "late": In(TableRead(config.slot_bits, 1)),
                "eras": Out(eras(config)),
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

        # When a command was submitted, and of which volume.
        told = Array(Signal(TOLD_BITS, name=f"told_{n}") for n in range(config.volumes))
        begin = data.StructLayout({"volume": config.volume_bits, "told": TOLD_BITS})
        m.submodules.begins_of = begins_of = Memory(shape=begin, depth=config.commands, init=[])
        read, write = begins_of.read_port(), begins_of.write_port()
        m.d.comb += [
            write.addr.eq(self.begun.slot),
            write.data.volume.eq(self.begun.volume),
            write.data.told.eq(told[self.begun.volume] - self.begun.late),
            write.en.eq(self.begins),
            read.addr.eq(self.late.address),
            self.late.data.eq(read.data.told != told[read.data.volume]),
        ]

        # A volume has a Flush that will tell it, in a slot; then its end is on the way to the host,
        # in vain if something has been lost since. One at a time. Then it lies in a completion
        # queue of the host.
        waits, leaves, vain, lies = (
            Signal(config.volumes, name=name) for name in ("waits", "leaves", "vain", "lies")
        )
        for number, array in enumerate(arrays):
            teller = Signal(config.slot_bits, name=f"teller_{number}")
            queue = Signal(range(config.queue_pairs + 1), name=f"queue_{number}")
            own = waits[number] & (teller == self.ended)
            with m.If(own):
                m.d.comb += [self.tells.any.eq(1), self.tells.volume.eq(number)]
            with m.If(own & self.ends):
                m.d.sync += [waits[number].eq(0), leaves[number].eq(1), vain[number].eq(0)]
            with m.If(self.answers & (self.answer.volume == number)):
                m.d.comb += self.told[number].eq(self.answer.posted & ~vain[number])
                m.d.sync += leaves[number].eq(0)
            with m.If(self.told[number]):
                m.d.sync += [
                    self.indebted[number].eq(0),
                    told[number].eq(told[number] + 1),
                    lies[number].eq(1),
                    queue.eq(self.answer.queue),
                ]
            with m.Elif(lies[number] & self.heard.bit_select(queue, 1)):
                m.d.sync += lies[number].eq(0)
            with m.Elif(lies[number] & self.unheard.bit_select(queue, 1)):
                m.d.sync += [lies[number].eq(0), self.indebted[number].eq(1)]
            blamed = self.blames & (self.blamed_volume == number)
            with m.If(blamed & self.indebted[number] & ~waits[number] & ~leaves[number]):
                m.d.sync += [waits[number].eq(1), teller.eq(self.blamed_slot)]
            with m.If(self.loses & exists[number] & (array == self.loser)):
                m.d.sync += [self.indebted[number].eq(1), waits[number].eq(0), vain[number].eq(1)]

        with m.If(self.loses):
            m.d.sync += self.eras[self.loser].eq(self.eras[self.loser] + 1)

        creates = self.opcode == ManageOpcode.CREATE_VOLUME
        with m.If(self.made & (creates | (self.opcode == ManageOpcode.DELETE_VOLUME))):
            m.d.sync += [
                exists.bit_select(self.volume, 1).eq(creates),
                arrays[self.volume].eq(Mux(creates, self.array, 0)),
                self.indebted.bit_select(self.volume, 1).eq(0),
                waits.bit_select(self.volume, 1).eq(0),
                vain.bit_select(self.volume, 1).eq(1),
                lies.bit_select(self.volume, 1).eq(0),
            ]
        return m
