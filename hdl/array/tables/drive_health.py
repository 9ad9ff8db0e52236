"""Which drives can be used, and which of those are being rebuilt."""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.flow.drive_states import DriveDecisions, DriveStates
from hdl.flow.recovery import tried_bits


class DriveHealth(wiring.Component):
    """Follows every drive: whether it can be used, and whose it is.

    When an array lets a drive go, only the drive's own fault remains. A drive that was given up
    stays failed until another drive is there, or an array is created on it. A drive is as good as
    any if it was only away, or was put in the place of one that was given up.

    A report about a drive that has failed already says nothing new, because operations that were on
    their way to it end one by one. A drive that joins belongs to its array only after they all have
    ended (`hdl.array.tables.tables.ArrayTables`). One that is gone in that very cycle has failed.

    Without background work no drive can be brought up to date. So one that restarts has failed.
    With background work this is `FollowedDriveHealth`. Without it ``restarts`` is 0.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    present
        One bit per port. A drive is there.
    restarted
        One bit per port, a pulse. Its drive has begun anew.
    fail
        Ports whose drive failed to store data. Always taken.
    edited
        A pulse. The tables change.
    joins
        One bit per port, a pulse. It belongs to an array from now on, and is not lost.
    leaves
        One bit per port, a pulse. It belongs to no array any more.
    renewed
        One bit per port, a pulse. It is stale from now on.
    settles
        One bit per port, a pulse. It is stale no longer.
    fails
        One bit per port, a pulse. It has failed, if an array has it.
    absolves
        One bit per port, a pulse. If it is kept, it is suspect no longer. It is about to be
        flushed after a job, and others are told what it has lost.
    replaced
        One bit per port. Another drive is the member in its place.
    decisions
        What becomes of suspect drives.
    blamed
        One bit per port, a pulse. A FLUSH has been refused because of it.
    states
        Of every drive.
    absent
        One bit per port. No drive is there.
    lost
        One bit per port. It was absent or reported since it joined an array. If it belongs to none
        now, it was reported.
    restarts
        How often each drive has restarted.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "present": In(config.ports),
                "restarted": In(config.ports),
                "fail": In(stream.Signature(config.port_bits)),
                "edited": In(1),
                "joins": In(MAX_DRIVES),
                "leaves": In(MAX_DRIVES),
                "renewed": In(MAX_DRIVES),
                "settles": In(MAX_DRIVES),
                "fails": In(MAX_DRIVES),
                "absolves": In(MAX_DRIVES),
                "replaced": In(MAX_DRIVES),
                "decisions": In(DriveDecisions()),
                "blamed": In(MAX_DRIVES),
                "states": Out(DriveStates()),
                "absent": Out(MAX_DRIVES),
                "lost": Out(MAX_DRIVES),
                "restarts": Out(tried_bits(config)).array(config.ports),
            }
        )
        self._reported = Signal(MAX_DRIVES)
        self._broken = Signal(MAX_DRIVES)  # the drive that is there now was given up
        self._failed_before = Signal(MAX_DRIVES)
        self._restarted = Signal(MAX_DRIVES)

    def elaborate(self, platform) -> Module:
        m = Module()
        absent, reported, fails, joins = self.absent, self._reported, self.fails, self.joins
        states = self.states
        m.d.comb += [
            absent.eq(~Cat(self.present, Const(0, MAX_DRIVES - self._config.ports))),
            states.present.eq(self.present),
            states.replaced.eq(self.replaced),
            self.fail.ready.eq(1),
            reported.eq(self.fail.valid << self.fail.payload),
            states.failed.eq(absent | self.lost),
            self._restarted.eq(self.restarted),
        ]
        gone, suspected = self._follow_restarts(m)
        m.d.comb += states.changed.eq(
            self.edited | (states.failed != self._failed_before) | suspected
        )
        belongs = states.used | joins
        breaks = ((self._broken & ~joins) | (belongs & (reported | fails))) & ~absent
        m.d.sync += [
            self._failed_before.eq(states.failed),
            states.used.eq(belongs & ~self.leaves),
            self._broken.eq(breaks),
            self.lost.eq(
                ((self.lost & ~joins) | (belongs & gone)) & ((belongs & ~self.leaves) | breaks)
            ),
        ]
        return m

    def _follow_restarts(self, m: Module) -> tuple[Value, Value]:
        """Drives that an array loses in this cycle, and whether it is news that one is suspect."""
        return self.absent | self._reported | self.fails | self._restarted, Const(0)


class FollowedDriveHealth(DriveHealth):
    """`DriveHealth` with background work.

    A drive that has restarted is suspect, because what it had not stored may be lost. It is asked
    for nothing until it is known what becomes of it. If its array can do without the drive, the
    drive has failed and ``returns``, so that it is brought up to date. Otherwise it is kept as it
    is. It stays suspect until a FLUSH of its array was refused once, or a job is done for which it
    is flushed. Until then it does not fail for that, even if the array could do without it by now,
    unless it restarts again.

    ``restarts`` counts. So a FLUSH that was asked for before a restart and is done after it is not
    taken for a FLUSH of what the drive had at that time.
    """

    def _follow_restarts(self, m: Module) -> tuple[Value, Value]:
        absent, reported, fails = self.absent, self._reported, self.fails
        states, decisions, restarted = self.states, self.decisions, self._restarted
        used, suspect, kept = states.used, states.suspect, states.kept
        joins, leaves = self.joins, self.leaves
        # It is judged soon whether its array can do without it. Until then nobody trusts it.
        doubted = Signal(MAX_DRIVES)
        yields = Signal(MAX_DRIVES)
        told = Signal(MAX_DRIVES)
        suspect_before = Signal(MAX_DRIVES)
        m.d.comb += [
            doubted.eq(suspect & ~kept),
            yields.eq(decisions.yields & doubted),
            told.eq((self.blamed | self.absolves) & kept),
            states.undecided.eq(doubted.any() | (restarted & used).any()),
        ]
        gone = absent | reported | fails | yields
        over = ~used | absent | reported | states.failed | joins | leaves
        m.d.sync += [
            suspect.eq(
                ((suspect & ~(yields | told)) | (restarted & used)) & ~(over | fails)
            ),
            # One that restarts as it is judged is judged again.
            kept.eq((kept | decisions.keeps) & ~(restarted | told) & suspect),
            states.returns.eq(
                (states.returns | (suspect & (yields | fails)))
                & ~(absent | (reported & ~states.failed) | joins | leaves | decisions.given_up)
            ),
            suspect_before.eq(suspect),
            states.stale.eq(
                ((states.stale & ~joins) | self.renewed) & ~(leaves | self.settles | gone)
            ),
        ]
        for count, again in zip(self.restarts, self.restarted, strict=True):
            m.d.sync += count.eq(count + again)
        return gone, (suspect != suspect_before) | (restarted & used).any()
