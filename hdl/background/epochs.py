"""Epochs of the write-intent bitmap: which marks a flush makes needless."""

from amaranth.hdl import Array, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import BLOCK_NUMBER_BITS, Config
from hdl.flow.host_command import Status
from hdl.flow.intention import FlushEvents

SETTLE_CYCLES = 63
"""Most cycles from the end of a flush until a drive that it found gone is being judged."""


class IdleEpoch(wiring.Signature):
    """An epoch of an array that the controller flushes itself, seen from who asks for it.

    Ports
    -----
    array
        The array.
    begins
        A level. An epoch of it is to begin. It may be withdrawn.
    begun
        With ``begins``: it begins.
    ended
        A pulse. The flush has ended.
    good
        With ``ended``: all drives of the array have stored what they had as the epoch began.
    rows
        With ``begins``: if the array is not OPTIMAL, rows before this one have been rebuilt.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "array": Out(config.array_bits),
                "begins": Out(1),
                "begun": In(1),
                "ended": Out(1),
                "good": Out(1),
                "rows": Out(BLOCK_NUMBER_BITS),
            }
        )


def _own_ports(config: Config) -> dict:
    """The ports of `Epochs` that there are with `Config.durable_marks` only."""
    return {
        "idle": In(IdleEpoch(config)),
        "partial": In(config.arrays),
        "limited": Out(1),
        "rows": Out(BLOCK_NUMBER_BITS),
    }


class Epochs(wiring.Component):
    """Says from which FLUSH to which moment the marks of an array are kept apart.

    An epoch begins with a FLUSH of an array that is OPTIMAL, before a drive is asked, unless there
    is an epoch already. The FLUSH is the host's, or with `Config.durable_marks` the controller's
    own. The epoch is ``over`` when the FLUSH has ended and every row has retired that was being
    written as it began. Then ``drops`` says whether the FLUSH succeeded and the array was OPTIMAL
    all the time. If so, what was marked before is on all drives for good.

    With `Config.durable_marks` the controller's own epoch may be one of an array whose members are
    all there while some are being rebuilt (``partial``). If that was so as it began, only marks of
    rows are needless that had been rebuilt by then.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    flushes
        Flushes, and how they ended.
    idle
        With `Config.durable_marks`: the controller's own flushes.
    optimal
        One bit per array. It is OPTIMAL.
    partial
        With `Config.durable_marks`: one bit per array. No member of it has failed, and some are
        being rebuilt.
    settled
        ``optimal`` and ``partial`` are up to date.
    takes
        A pulse. A row begins to be written, in epoch ``number``.
    retires
        A pulse. A row that began in ``retired_epoch`` retires.
    retired_epoch
        That epoch.
    number
        The number of the epoch, 0 and 1 in turn.
    planes
        One bit per array. Which of its planes has the marks that are made now.
    array
        The array of the epoch, or of the last one.
    over
        The epoch is over. Held until ``closed``.
    drops
        With ``over``: the older marks are needless.
    limited
        With `Config.durable_marks`, and with ``drops``: only those of rows before ``rows``.
    rows
        With ``limited``: those that the epoch began with.
    closed
        A pulse. The epoch is no more.
    busy
        A time passes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "flushes": In(FlushEvents(config)),
                **(_own_ports(config) if config.durable_marks else {}),
                "optimal": In(config.arrays),
                "settled": In(1),
                "takes": In(1),
                "retires": In(1),
                "retired_epoch": In(1),
                "number": Out(1),
                "planes": Out(config.arrays),
                "array": Out(config.array_bits),
                "over": Out(1),
                "drops": Out(1),
                "closed": In(1),
                "busy": Out(1),
            }
        )

    def _drained(self, written: Array) -> Value:
        """No row is being written that began before the epoch."""
        return written[~self.number] == 0

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        active = Signal()
        flushed = Signal()
        spoiled = Signal()
        slot = Signal(config.slot_bits)
        pause = Signal(range(SETTLE_CYCLES + 1))
        # Rows being written, by the epoch that they began in.
        written = Array(Signal(range(config.rows + 1), name=f"written_{n}") for n in range(2))
        target = Signal(config.array_bits)
        begins = Signal()
        new_plane = self.planes.bit_select(target, 1)
        m.d.comb += [
            target.eq(self.flushes.flushing.array),
            begins.eq(
                self.flushes.flush & ~active & self.settled & self.optimal.bit_select(target, 1)
            ),
        ]

        with m.If(self.takes):
            m.d.sync += written[self.number].eq(written[self.number] + 1)
        with m.Elif(self.retires):
            m.d.sync += written[self.retired_epoch].eq(written[self.retired_epoch] - 1)

        goes_on = self.optimal.bit_select(self.array, 1)
        if config.durable_marks:
            goes_on = goes_on | (self.limited & self.partial.bit_select(self.array, 1))
        m.d.sync += spoiled.eq(spoiled | ~goes_on)
        ended = Signal()
        good = Signal()
        m.d.comb += [
            ended.eq(
                active & self.flushes.completed & (self.flushes.completion.slot == slot)
            ),
            good.eq(self.flushes.completion.status == Status.SUCCESS),
        ]
        if config.durable_marks:
            idle = self.idle
            own = Signal()  # the epoch is that of the controller's own flush
            is_optimal = self.optimal.bit_select(idle.array, 1)
            m.d.comb += idle.begun.eq(
                idle.begins
                & ~(active | self.flushes.flush)
                & self.settled
                & (is_optimal | self.partial.bit_select(idle.array, 1))
            )
            with m.If(idle.begun):
                m.d.comb += [target.eq(idle.array), begins.eq(1)]
            with m.If(begins):
                m.d.sync += [
                    own.eq(idle.begun),
                    self.limited.eq(idle.begun & ~is_optimal),
                    self.rows.eq(idle.rows),
                ]
            with m.If(own):
                m.d.comb += [ended.eq(active & idle.ended), good.eq(idle.good)]
        with m.If(ended):
            m.d.sync += flushed.eq(1)
            with m.If(~good):
                m.d.sync += spoiled.eq(1)
        with m.If(flushed & (pause != SETTLE_CYCLES)):
            m.d.sync += pause.eq(pause + 1)
        with m.If(self.closed):
            m.d.sync += [active.eq(0), flushed.eq(0), pause.eq(0)]
        with m.If(begins):
            m.d.sync += [
                active.eq(1),
                spoiled.eq(0),
                slot.eq(self.flushes.flushing.slot),
                self.array.eq(target),
                new_plane.eq(~new_plane),
                self.number.eq(~self.number),
            ]
        m.d.comb += [
            self.over.eq(
                flushed & (pause == SETTLE_CYCLES) & self.settled & self._drained(written)
            ),
            self.drops.eq(~spoiled & goes_on),
            self.busy.eq(flushed & (pause != SETTLE_CYCLES)),
        ]
        return m
