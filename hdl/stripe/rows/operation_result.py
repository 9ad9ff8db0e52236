"""What the end of a drive operation means for its row."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.operation import DriveStatus, Opcode, finished
from hdl.stripe.planning.program import role_bits, target_bits
from hdl.stripe.rows.progress import progress, rounds


class OperationResult(wiring.Component):
    """Counts an operation off and notes what became of its block. Combinational.

    ABORTED operations are sent again in so many `rounds`, and a write that its drive cannot store
    is sent twice. UNREACHED operations are sent again without being counted. A read that is SLOW
    counts as one that failed, and is noted in ``slow``. What becomes of a drive that did not store
    a block depends on the whole row (`hdl.stripe.rows.refusals`).

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    event
        The operation's end.
    number
        The number of its target.
    index
        The role, or the strip, that the target is.
    synced
        The drive holds all that it should of the row.
    paired
        With ``background``: another operation writes the same line.
    before
        The row's progress until now.
    after
        The row's progress from now on.
    ended
        It was the last operation of its phase.
    report
        Its drive is to be given up at once, because it has gone away.
    written
        It was a write and will not be sent again. Of two paired ones this comes with the second to
        end.
    """

    def __init__(self, *, config: Config):
        self._rounds = rounds(config)
        super().__init__(
            {
                "event": In(finished(config)),
                "number": In(target_bits(config)),
                "index": In(role_bits(config)),
                "synced": In(1),
                "before": In(progress(config)),
                "after": Out(progress(config)),
                "ended": Out(1),
                "report": Out(1),
                "written": Out(1),
                "paired": In(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        event, before, after = self.event, self.before, self.after
        good = event.status == DriveStatus.GOOD
        gone = event.status == DriveStatus.GONE
        aborted = event.status == DriveStatus.ABORTED
        unreached = event.status == DriveStatus.UNREACHED
        refused = (event.status == DriveStatus.MEDIUM_ERROR) & (event.opcode != Opcode.READ)
        counts = Signal()
        once_more = Signal()
        m.d.comb += [
            counts.eq(aborted & (before.rounds != self._rounds - 1)),
            once_more.eq(refused & ~before.refused.bit_select(self.number, 1)),
            after.eq(before),
            after.remaining.eq(before.remaining - 1),
            self.ended.eq(before.remaining == 1),
        ]
        with m.If(refused):
            m.d.comb += after.refused.eq(before.refused | (1 << self.number))
        with m.If(unreached | counts | once_more):
            m.d.comb += [
                after.retry.eq(before.retry | (1 << self.number)),
                after.aborted.eq(before.aborted | counts),
            ]
        with m.Elif(event.opcode == Opcode.READ):
            with m.If(~good):
                m.d.comb += after.bad.eq(before.bad | (1 << self.index))
                slow = event.status == DriveStatus.SLOW
                m.d.comb += after.slow.eq(before.slow | Mux(slow, 1 << self.index, 0))
            m.d.comb += self.report.eq(gone)
        with m.Else():
            m.d.comb += [
                self.report.eq(gone),
                self.written.eq(~self.paired | before.half),
                after.half.eq(before.half | self.paired),
            ]
            with m.If(good & self.synced):
                m.d.comb += after.good.eq(before.good | (1 << self.index))
            with m.Elif(~good):
                m.d.comb += [
                    after.lost.eq(before.lost | (1 << self.number)),
                    after.left.eq(before.left | Mux(gone, 1 << self.number, 0)),
                ]
                with m.If(aborted):
                    # It may have been stored all the same.
                    m.d.comb += after.refused.eq(before.refused & ~(1 << self.number))
        return m
