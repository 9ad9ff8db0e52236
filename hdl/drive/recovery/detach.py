"""Takes a read that is slow off its port, so that its blocks can be had elsewhere."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config
from hdl.drive.recovery.levels import pass_levels
from hdl.flow.drive_port import DrivePort
from hdl.flow.operation import DriveStatus


class Detach(wiring.Component):
    """Passes a drive port on, and ends a read towards the controller that the drive has not ended.

    The read ends as SLOW. Blocks of it that have come whole are good, as after any read that breaks
    off. What the drive still sends of it is dropped, and its tag stays taken until the drive
    ends it. The other commands of the port only wait while the read is being detached.

    No latency. A read is detached in about 10 cycles, or more while a block of it goes to its line.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    inner
        The port as the controller sees it.
    outer
        The port as the link core sees it.
    detach
        Level: detach a read. It lasts until the controller has seen the read end. If the drive ends
        it at the same time, it ends as the drive says, and is not detached.
    tag
        That read.
    forget
        Level: the port is in reset, and the drive has no commands.
    orphans
        A bit a tag: its read has been detached, and the drive has not ended it. The tag must not be
        used.
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
        inner, outer = self.inner, self.outer
        pass_levels(m, inner, outer, config=self._config)
        connect(m, flipped(inner.command), flipped(outer.command))
        connect(m, flipped(inner.write_data), flipped(outer.write_data))
        connect(m, flipped(outer.grant), flipped(inner.grant))
        self._pass_read_data(m)
        changes = self._pass_ends(m)
        m.d.comb += self.busy.eq(changes | self.freed)
        return m

    def _pass_read_data(self, m: Module) -> None:
        """Passes no data on while a read is being detached, and that of an orphan never."""
        sent, taken = self.outer.read_data, self.inner.read_data
        of_orphan = self.orphans.bit_select(sent.payload.tag, 1)
        m.d.comb += [
            taken.payload.eq(sent.payload),
            taken.valid.eq(sent.valid & ~of_orphan & ~self.detach),
            sent.ready.eq(of_orphan | (taken.ready & ~self.detach)),
        ]

    def _pass_ends(self, m: Module) -> Value:
        """Passes ends on, and offers that of the read to detach. An end that the drive has offered
        goes first. Returns whether something is about to change."""
        sent, passed, orphans = self.outer.completion, self.inner.completion, self.orphans
        ours = Signal()  # the end of the read to detach is what is offered
        over = Signal()  # that read has ended
        of_orphan = orphans.bit_select(sent.payload.tag, 1)
        offered = Signal()
        begins = Signal()
        taken = Signal()
        orphan_ends = Signal()
        m.d.comb += [
            offered.eq(sent.valid & ~of_orphan),
            begins.eq(self.detach & ~ours & ~over & ~offered),
            passed.valid.eq(ours | offered),
            passed.payload.tag.eq(Mux(ours, self.tag, sent.payload.tag)),
            passed.payload.status.eq(Mux(ours, DriveStatus.SLOW, sent.payload.status)),
            sent.ready.eq(~ours & (passed.ready | (sent.valid & of_orphan))),
            taken.eq(passed.valid & passed.ready),
            orphan_ends.eq(sent.valid & sent.ready & of_orphan),
            self.freed.eq(orphan_ends | (self.forget & orphans.any())),
        ]
        m.d.sync += [
            ours.eq((ours | begins) & self.detach & ~taken),
            over.eq(self.detach & (over | (taken & (passed.payload.tag == self.tag)))),
        ]
        with m.If(ours & taken):
            m.d.sync += orphans.bit_select(self.tag, 1).eq(1)
        with m.If(orphan_ends):
            m.d.sync += orphans.bit_select(sent.payload.tag, 1).eq(0)
        with m.If(self.forget):
            m.d.sync += orphans.eq(0)
        return begins | (over & ~self.detach)
