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
        As in `hdl.array.tables.ArrayTables`.
    absent
        No drive is there.
    lost
        It was absent or reported since it joined an array.
    reserved
        No new array may have it.
    joins, leaves
        Pulses: it belongs to an array from now on, and is not lost; it belongs to none.
    renewed, settles
        Pulses: it is stale from now on; it is no longer.
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


def follow_health(m: Module, ports: Any, *, config: Config, edited: Signal) -> Health:
    """Drives ``used``, ``failed``, ``stale`` and ``changed``, and takes what comes on ``fail``.

    ``ports`` are the tables'. ``edited``: they change.
    """
    used = ports.used
    lost = Signal(MAX_DRIVES)
    absent = Signal(MAX_DRIVES)
    reported = Signal(MAX_DRIVES)
    joins = Signal(MAX_DRIVES)
    leaves = Signal(MAX_DRIVES)
    failed_before = Signal(MAX_DRIVES)
    m.d.comb += [
        absent.eq(~Cat(ports.present, Const(0, MAX_DRIVES - config.ports))),
        ports.fail.ready.eq(1),
        reported.eq(ports.fail.valid << ports.fail.payload),
        ports.failed.eq(absent | lost),
        ports.changed.eq(edited | (ports.failed != failed_before)),
    ]
    reserved = Signal(MAX_DRIVES)
    settles = Signal(MAX_DRIVES)
    renewed = Signal(MAX_DRIVES)
    if config.background:
        m.d.comb += reserved.eq(ports.reserved)
        m.d.sync += ports.stale.eq(
            ((ports.stale & ~joins) | renewed) & ~(leaves | settles | absent | reported)
        )
    m.d.sync += [
        failed_before.eq(ports.failed),
        used.eq((used | joins) & ~leaves),
        lost.eq((lost | (used & (absent | reported))) & ~joins),
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
    )
