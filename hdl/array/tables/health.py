"""Which drives can be used, and which of those are being rebuilt."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal

from hdl.config import MAX_DRIVES, Config


@dataclass(frozen=True, kw_only=True)
class Health:
    """Bits a port: what the changes of the tables know of the drives, and what they do to them.

    Parameters
    ----------
    used, failed
        As in `hdl.array.tables.tables.ArrayTables`.
    absent
        No drive is there.
    lost
        It was absent or reported since it joined an array; if it belongs to none now, reported.
    reserved
        No new array may have it.
    joins, leaves
        Pulses: it belongs to an array from now on, and is not lost; it belongs to none.
    renewed, settles, fails
        Pulses: it is stale from now on; it is no longer; it has failed, if an array has it.
    absolves
        A pulse: if it is kept, nobody is to be told what it has lost.
    """

    used: Signal
    failed: Signal
    absent: Signal
    lost: Signal
    reserved: Signal
    joins: Signal
    leaves: Signal
    renewed: Signal
    settles: Signal
    fails: Signal
    absolves: Signal


def follow_health(m: Module, ports: Any, *, config: Config, edited: Signal) -> Health:
    """Drives ``used``, ``failed``, ``stale`` and ``changed``, and takes what comes on ``fail``.

    ``ports`` are the tables'. ``edited``: they change.

    A drive that has restarted is suspect: what it had not stored may be lost. It is asked for
    nothing until it is known what becomes of it. Where its array can do without it, it has failed,
    and returns, so that it is brought up to date. Else it is kept as it is, and stays suspect until
    a FLUSH of its array was refused, once; until then it does not fail for that, even if the array
    could do without it by now, unless it restarts again. ``restarts`` counts, so that a FLUSH that
    was asked for before, and is done after, is not taken for one of what the drive had then.

    Of a drive that its array has let go only its own fault remains: one that was given up stays
    failed until another is there, or an array is created on it; one that was only away, or was put
    in the place of one that was given up, is as good as any.

    What is reported of a drive that has failed already says nothing new: operations that were on
    their way to it end one by one. A drive that joins is at its array's only after they all have
    (`ArrayTables`), and one that is gone in that very cycle has failed.
    """
    used = ports.used
    lost = Signal(MAX_DRIVES)
    absent = Signal(MAX_DRIVES)
    reported = Signal(MAX_DRIVES)
    # The drive that is there now was given up.
    broken = Signal(MAX_DRIVES)
    joins = Signal(MAX_DRIVES)
    leaves = Signal(MAX_DRIVES)
    failed_before = Signal(MAX_DRIVES)
    m.d.comb += [
        absent.eq(~Cat(ports.present, Const(0, MAX_DRIVES - config.ports))),
        ports.fail.ready.eq(1),
        reported.eq(ports.fail.valid << ports.fail.payload),
        ports.failed.eq(absent | lost),
    ]
    reserved = Signal(MAX_DRIVES)
    settles = Signal(MAX_DRIVES)
    renewed = Signal(MAX_DRIVES)
    fails = Signal(MAX_DRIVES)
    absolves = Signal(MAX_DRIVES)
    suspect_before = Signal(MAX_DRIVES)
    suspected = Const(0)
    restarted = Signal(MAX_DRIVES)
    m.d.comb += restarted.eq(ports.restarted)
    # Without background work no drive can be brought up to date: one that restarts has failed.
    gone = absent | reported | fails | restarted
    if config.background:
        # Where it can be done without, and where not, is judged soon; until then nobody trusts it.
        kept = ports.kept
        doubted, yields, told = (
            Signal(MAX_DRIVES, name=name) for name in ("doubted", "yields", "told")
        )
        m.d.comb += [
            doubted.eq(ports.suspect & ~kept),
            yields.eq(ports.yields & doubted),
            told.eq((ports.blamed | absolves) & kept),
            ports.undecided.eq(doubted.any() | (restarted & used).any()),
        ]
        gone = absent | reported | fails | yields
        over = ~used | absent | reported | ports.failed | joins | leaves
        m.d.sync += [
            ports.suspect.eq(
                ((ports.suspect & ~(yields | told)) | (restarted & used)) & ~(over | fails)
            ),
            # One that restarts as it is judged is judged again.
            kept.eq((kept | ports.keeps) & ~(restarted | told) & ports.suspect),
            ports.returns.eq(
                (ports.returns | (ports.suspect & (yields | fails)))
                & ~(absent | (reported & ~ports.failed) | joins | leaves | ports.given_up)
            ),
            suspect_before.eq(ports.suspect),
        ]
        m.d.comb += reserved.eq(ports.reserved)
        m.d.sync += ports.stale.eq(
            ((ports.stale & ~joins) | renewed) & ~(leaves | settles | gone)
        )
        for count, again in zip(ports.restarts, ports.restarted, strict=True):
            m.d.sync += count.eq(count + again)
        suspected = (ports.suspect != suspect_before) | (restarted & used).any()
    m.d.comb += ports.changed.eq(edited | (ports.failed != failed_before) | suspected)
    belongs = used | joins
    breaks = ((broken & ~joins) | (belongs & (reported | fails))) & ~absent
    m.d.sync += [
        failed_before.eq(ports.failed),
        used.eq(belongs & ~leaves),
        broken.eq(breaks),
        lost.eq(((lost & ~joins) | (belongs & gone)) & ((belongs & ~leaves) | breaks)),
    ]
    return Health(
        used=used,
        failed=ports.failed,
        absent=absent,
        lost=lost,
        reserved=reserved,
        joins=joins,
        leaves=leaves,
        renewed=renewed,
        settles=settles,
        fails=fails,
        absolves=absolves,
    )
