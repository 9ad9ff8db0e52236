"""Completions that may not be told yet, and those that must not be told as they are."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.flow.host_command import HostOpcode, Status, command, completion
from hdl.flow.table_read import volume_read
from hdl.kit.pulse import Pulse
from hdl.kit.queue import Queue
from hdl.kit.table import Table


def known_command(config: Config) -> data.StructLayout:
    """What is known of the command in a slot: its array, and whether it writes or flushes."""
    return data.StructLayout({"array": config.array_bits, "writes": 1})


class Withheld(wiring.Component):
    """Holds completions while a drive that has failed would be taken for good after a power cut.

    Who ends commands never waits for that, or the drives could not end what they do. What has been
    offered to the host stays so. It ended before the drive failed.

    An array may fail before the loss of its first drive has been written down. Then that loss is
    never written down (`hdl.metadata.keeper.Keeper`), and what has been written since is only on
    drives that may be gone for good. So from then on no write to that array ends well, nor does a
    flush.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    begun
        A command that enters the data path.
    volume_read
        Table of the volumes.
    ended
        Completions, taken as they come.
    told
        The same, for the host. It takes 3 cycles, and has a latency of 4.
    holds
        A level. None may be told.
    forsaken
        An array of which writes and flushes end well no more.
    exists
        One bit per array. It is there. A new one is not forsaken.
    busy
        Something moves.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "begun": In(Pulse(command(config))),
                "volume_read": Out(volume_read(config)),
                "ended": In(stream.Signature(completion(config))),
                "told": Out(stream.Signature(completion(config))),
                "holds": In(1),
                "forsaken": In(Pulse(config.array_bits)),
                "exists": In(config.arrays),
                "busy": Out(1),
            }
        )
        self._queue = Queue(completion(config), config.commands)
        self._commands = Table(known_command(config), config.commands)
        self._forsaken = Signal(config.arrays)

    def elaborate(self, platform) -> Module:
        queue, told, forsaken = self._queue, self.told, self._forsaken
        m = Module()
        m.submodules.queue = queue
        m.submodules.commands = self._commands
        connect(m, flipped(self.ended), queue.input)
        m.d.comb += self._commands.reads[0].address.eq(queue.output.payload.slot)
        m.d.sync += forsaken.eq(forsaken & self.exists)
        with m.If(self.forsaken.valid):
            m.d.sync += forsaken.bit_select(self.forsaken.payload, 1).eq(1)
        self._note(m)
        of, ended = self._commands.reads[0].data, queue.output.payload
        lost = of.writes & forsaken.bit_select(of.array, 1) & (ended.status == Status.SUCCESS)
        with m.FSM(name="tell") as fsm:
            with m.State("REST"):
                with m.If(queue.output.valid):
                    m.next = "HOLD"

            with m.State("HOLD"):
                m.d.comb += queue.output.ready.eq(~self.holds)
                m.d.sync += [
                    told.payload.slot.eq(ended.slot),
                    told.payload.status.eq(Mux(lost, Status.WRITE_FAULT, ended.status)),
                ]
                with m.If(~self.holds):
                    m.next = "TELL"

            with m.State("TELL"):
                m.d.comb += told.valid.eq(1)
                with m.If(told.ready):
                    m.next = "REST"

            waits = (
                (fsm.ongoing("REST") & ~queue.output.valid)
                | (fsm.ongoing("HOLD") & self.holds)
                | (fsm.ongoing("TELL") & ~told.ready)
            )
        m.d.comb += self.busy.eq(~waits | queue.busy | self.begun.valid | self.forsaken.valid)
        return m

    def _note(self, m: Module) -> None:
        """The array of each command, a cycle after it has begun."""
        begun, commands = self.begun.payload, self._commands
        slot, writes, notes = Signal.like(begun.slot), Signal(), Signal()
        m.d.comb += [
            self.volume_read.address.eq(begun.volume),
            commands.write.address.eq(slot),
            commands.write.data.array.eq(self.volume_read.data.array),
            commands.write.data.writes.eq(writes),
            commands.write.enable.eq(notes),
        ]
        m.d.sync += [
            notes.eq(self.begun.valid),
            slot.eq(begun.slot),
            writes.eq(begun.opcode != HostOpcode.READ),
        ]
