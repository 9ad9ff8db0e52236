"""Takes a read that is slow off its port, so that its blocks can be had elsewhere."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.drive_port import DrivePort
from hdl.flow.operation import DriveStatus


class Detach(wiring.Component):
    """Passes a drive port on, and ends a read towards the controller that the drive has not ended.

    The read ends as SLOW; blocks of it that have come whole are good, as after any read that breaks
    off. What the drive still sends of it is dropped, and its tag stays taken until the drive
    ends it. The other commands of the port only wait for the moment.

    No latency. About 10 cycles to detach a read, more while a block of it goes to its line.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inner, outer
        The port as the controller and as the link core see it.
    detach, tag
        Level: detach this read, until the controller has seen it end. If the drive ends it at the
        same time, it ends as the drive says, and is not detached.
    forget
        The port is in reset: the drive has no commands.
    orphans
        Bit a tag: detached and not ended by the drive; the tag must not be used.
    freed
        A pulse: there are fewer of them.
    busy
        Something is about to change.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "inner": In(DrivePort(config)),
                "outer": Out(DrivePort(config)),
                "detach": In(1),
                "tag": In(config.tag_bits),
                "forget": In(1),
                "orphans": Out(config.drive_tags),
                "freed": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        inner, outer, orphans = self.inner, self.outer, self.orphans
        for sent, taken in (
            (inner.command, outer.command),
            (inner.write_data, outer.write_data),
            (outer.grant, inner.grant),
        ):
            m.d.comb += [
                taken.valid.eq(sent.valid),
                taken.payload.eq(sent.payload),
                sent.ready.eq(taken.ready),
            ]
        m.d.comb += [
            outer.abort.eq(inner.abort),
            outer.abort_tag.eq(inner.abort_tag),
            outer.reset.eq(inner.reset),
            inner.present.eq(outer.present),
            inner.restarted.eq(outer.restarted),
            inner.capacity.eq(outer.capacity),
        ]

        # Data: none while a read is being detached, none of an orphan ever.
        data_of_orphan = orphans.bit_select(outer.read_data.payload.tag, 1)
        m.d.comb += [
            inner.read_data.payload.eq(outer.read_data.payload),
            inner.read_data.valid.eq(outer.read_data.valid & ~data_of_orphan & ~self.detach),
            outer.read_data.ready.eq(data_of_orphan | (inner.read_data.ready & ~self.detach)),
        ]

        # Ends: what the drive has offered goes first. `ours`: the end that is offered is ours.
        ours = Signal()
        over = Signal()  # it has ended
        end_of_orphan = orphans.bit_select(outer.completion.payload.tag, 1)
        offered = Signal()
        begins = Signal()
        taken = Signal()
        ends = Signal()
        m.d.comb += [
            offered.eq(outer.completion.valid & ~end_of_orphan),
            begins.eq(self.detach & ~ours & ~over & ~offered),
            inner.completion.valid.eq(ours | offered),
            inner.completion.payload.tag.eq(Mux(ours, self.tag, outer.completion.payload.tag)),
            inner.completion.payload.status.eq(
                Mux(ours, DriveStatus.SLOW, outer.completion.payload.status)
            ),
            outer.completion.ready.eq(
                ~ours & (inner.completion.ready | (outer.completion.valid & end_of_orphan))
            ),
            taken.eq(inner.completion.valid & inner.completion.ready),
            ends.eq(outer.completion.valid & outer.completion.ready & end_of_orphan),
            self.freed.eq(ends | (self.forget & orphans.any())),
            self.busy.eq(begins | self.freed | (over & ~self.detach)),
        ]
        m.d.sync += [
            ours.eq((ours | begins) & self.detach & ~taken),
            over.eq(self.detach & (over | (taken & (inner.completion.payload.tag == self.tag)))),
        ]
        with m.If(ours & taken):
            m.d.sync += orphans.bit_select(self.tag, 1).eq(1)
        with m.If(ends):
            m.d.sync += orphans.bit_select(outer.completion.payload.tag, 1).eq(0)
        with m.If(self.forget):
            m.d.sync += orphans.eq(0)
        return m
