"""What the end of a drive operation means for its row."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.operation import DriveStatus, Opcode, finished
from hdl.stripe.planning.program import role_bits, target_bits
from hdl.stripe.rows.progress import attempts, progress


class Judgement(wiring.Component):
    """Counts an operation off and notes what became of its block. Combinational.

    ``event``: the operation's end, of target ``number``, which is role or strip ``index``.
    ``before``, ``after``: the row's progress. ``synced``: the drive holds all that it should of the
    row. ``ended``: it was the last of its phase. ``report``: its drive is to be given up at once,
    because it has gone away. ``written``: it was a write and will not be sent again. ABORTED
    operations are sent `attempts` times, a write that its drive cannot store twice, UNREACHED
    operations without being counted. What becomes of a drive that did not store a block depends on
    the whole row (`hdl.stripe.rows.refusals`).

    A read that is SLOW counts as one that failed, noted in ``slow``.

    ``copying`` (these two with ``background``): the operation is a copy's: whatever its end, the
    row has lost nothing, though it is noted in ``lost``. ``paired``: another
    operation writes the same line; ``written`` then comes with the second to end.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._attempts = attempts(config)
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
                "copying": In(1),
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
        counts, once_more = Signal(), Signal()
        m.d.comb += [
            counts.eq(aborted & (before.attempts != self._attempts - 1)),
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
            with m.If(good & ~self.copying & self.synced):
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
