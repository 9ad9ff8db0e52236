"""Completions that may not be told yet, and those that must not be told as they are."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

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
    not written down (`hdl.metadata.keeper.Keeper`), and what has been written since is only on
    drives that may be gone for good. So no write to an array ends well that has ended, and not been
    offered to the host, while the array is ``forsaken``. Nor does a flush. What comes right after
    that may fail alike, until all has been looked at.

    While no array is held or forsaken completions pass without latency, one each cycle. Otherwise
    they take 4 cycles, and pass every 3 cycles. Those of an array that is held are put aside. They
    are looked at again, in the order in which they were put aside, once an array is held no more,
    or is forsaken.

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
        The same, for the host.
    holds
        One bit per array. None of its commands may be told.
    forsaken
        One bit per array. Its writes and flushes do not end well.
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
                "holds": In(config.arrays),
                "forsaken": In(config.arrays),
                "busy": Out(1),
            }
        )
        self._queue = Queue(completion(config), config.commands)
        self._aside = Queue(completion(config), config.commands)
        self._commands = Table(known_command(config), config.commands)
        self._kept = Signal(completion(config))  # the one that is looked at
        self._again = Signal(range(config.commands + 1))  # of those aside: to be looked at again
        self._held_before = Signal(config.arrays)
        self._forsaken_before = Signal(config.arrays)
        # A bit an array. It is forsaken, or all that came meanwhile has not been looked at since.
        self._fails = Signal(config.arrays)
        self._failed_before = Signal(config.arrays)
        self._passes = Signal()  # nobody is held: completions go straight to the host
        self._offered = Signal()  # so does this one, which the host has not taken yet

    def elaborate(self, platform) -> Module:
        queue, ended, told = self._queue, self.ended, self.told
        m = Module()
        m.submodules.queue = queue
        m.submodules.aside = self._aside
        m.submodules.commands = self._commands
        self._note(m)
        self._count_again(m)
        passes, offered = self._passes, self._offered
        with m.FSM(name="tell") as fsm:
            self._look(m)
            tells = fsm.ongoing("TELL")
            empty = fsm.ongoing("REST") & (queue.level == 0) & (self._aside.level == 0)
            takes = (queue.output.valid & queue.output.ready) | (
                self._aside.output.valid & self._aside.output.ready
            )
            looks = fsm.ongoing("LOOK")
            all_seen = ~looks & (queue.level == 0) & (self._again == 0)
        m.d.comb += [
            self._fails.eq(self.forsaken | self._failed_before),
            passes.eq(offered | (empty & ~(self.holds | self._fails).any())),
            queue.input.payload.eq(ended.payload),
        ]
        m.d.sync += [
            offered.eq(passes & ended.valid & ~told.ready),
            self._forsaken_before.eq(self.forsaken),
            self._failed_before.eq(Mux(all_seen & ~self._begins, self.forsaken, self._fails)),
        ]
        with m.If(passes):
            m.d.comb += [
                told.payload.eq(ended.payload),
                told.valid.eq(ended.valid),
                ended.ready.eq(told.ready),
            ]
        with m.Else():
            m.d.comb += [
                told.payload.eq(self._kept),
                told.valid.eq(tells),
                queue.input.valid.eq(ended.valid),
                ended.ready.eq(queue.input.ready),
            ]
        m.d.comb += self.busy.eq(
            takes
            | looks
            | queue.filling
            | self._aside.filling
            | self.begun.valid
            | (ended.valid & ended.ready)
            | (told.valid & told.ready)
            | (self.holds != self._held_before)
            | (self.forsaken != self._failed_before)
        )
        return m

    @property
    def _begins(self) -> Value:
        """An array is forsaken from now on."""
        return (self.forsaken & ~self._forsaken_before).any()

    def _look(self, m: Module) -> None:
        """The states REST to TELL: one completion after the other, new ones and others by turns."""
        queue, aside, kept = self._queue.output, self._aside.output, self._kept
        of = self._commands.reads[0].data
        lost = of.writes & self._fails.bit_select(of.array, 1) & (kept.status == Status.SUCCESS)
        judged, taken = Signal.like(kept), Signal.like(kept)
        has_more, takes_more, was_new = Signal(), Signal(), Signal()
        m.d.comb += [
            has_more.eq(aside.valid & (self._again != 0)),
            takes_more.eq(has_more & (was_new | ~queue.valid)),
            taken.eq(Mux(takes_more, aside.payload, queue.payload)),
            self._commands.reads[0].address.eq(taken.slot),
            judged.slot.eq(kept.slot),
            judged.status.eq(Mux(lost, Status.WRITE_FAULT, kept.status)),
            self._aside.input.payload.eq(judged),
        ]
        with m.State("REST"):
            m.d.comb += [queue.ready.eq(~takes_more), aside.ready.eq(takes_more)]
            m.d.sync += [kept.eq(taken), was_new.eq(~takes_more)]
            with m.If(queue.valid | has_more):
                m.next = "LOOK"

        with m.State("LOOK"):
            m.d.sync += kept.eq(judged)
            m.next = "TELL"
            with m.If(self.holds.bit_select(of.array, 1)):
                m.d.comb += self._aside.input.valid.eq(1)
                m.next = "REST"

        with m.State("TELL"):
            with m.If(self.told.ready):
                m.next = "REST"

    def _count_again(self, m: Module) -> None:
        """How many of those that were put aside are looked at again."""
        aside, again = self._aside, self._again
        goes = aside.output.valid & aside.output.ready
        m.d.sync += [self._held_before.eq(self.holds), again.eq(again - goes)]
        with m.If((self._held_before & ~self.holds).any() | self._begins):
            m.d.sync += again.eq(aside.level - goes)

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
