"""Flushes of drives that rows need, many rows at once."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config, bits_for_count
from hdl.kit.queue import Queue


def flush_for_row(config: Config) -> data.StructLayout:
    """A row slot, and drives, a bit a port: those that it needs flushed, or those that were."""
    return data.StructLayout({"slot": config.row_slot_bits, "ports": MAX_DRIVES})


class RowFlushes(wiring.Component):
    """Has drives flushed for rows, and tells each row of it.

    Rows that come while drives are being flushed wait. All that have waited share the next flush:
    a drive that goes away leaves many rows at once, which need the same other drives.

    A flush takes 5 cycles, 3 more for each of its rows, and what the drives take.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    request
        A row that waits, and what it needs. It is taken within 2 cycles. No row waits twice.
    done
        That row, once a FLUSH has ended of all drives that it needs. Those of ``ports`` have stored
        what they had been told to write when the row came. Rows come in their order.
    ask, told
        Those of a user of `hdl.drive.flusher.Flusher`.
    busy
        Something but the drives, or who takes ``done``, is being waited for.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(flush_for_row(config))),
                "done": Out(stream.Signature(flush_for_row(config))),
                "ask": Out(stream.Signature(MAX_DRIVES)),
                "told": In(stream.Signature(MAX_DRIVES)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config, request, done = self._config, self.request, self.done
        m = Module()
        m.submodules.rows = rows = Queue(config.row_slot_bits, config.rows)
        # Of rows that wait for the next flush: how many, and what they need. Of the flush under
        # way: rows that have not been told, what they needed, and what was stored.
        waiting = Signal(bits_for_count(config.rows + 1))
        needed = Signal(MAX_DRIVES)
        left = Signal.like(waiting)
        asked = Signal(MAX_DRIVES)
        stored = Signal(MAX_DRIVES)
        begins = Signal()
        m.d.comb += [
            request.ready.eq(~begins),
            rows.input.valid.eq(request.valid & request.ready),
            rows.input.payload.eq(request.payload.slot),
            self.ask.payload.eq(asked),
            done.payload.slot.eq(rows.output.payload),
            done.payload.ports.eq(stored),
        ]
        with m.If(request.valid & request.ready):
            m.d.sync += [waiting.eq(waiting + 1), needed.eq(needed | request.payload.ports)]
        with m.FSM(name="flush_rows") as fsm:
            with m.State("REST"):
                m.d.comb += begins.eq(waiting != 0)
                with m.If(begins):
                    m.d.sync += [left.eq(waiting), asked.eq(needed), waiting.eq(0), needed.eq(0)]
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += self.ask.valid.eq(1)
                with m.If(self.ask.ready):
                    m.next = "LISTEN"
            with m.State("LISTEN"):
                m.d.comb += self.told.ready.eq(1)
                m.d.sync += stored.eq(self.told.payload)
                with m.If(self.told.valid):
                    m.next = "TELL"
            with m.State("TELL"):
                m.d.comb += [
                    done.valid.eq(rows.output.valid & (left != 0)),
                    rows.output.ready.eq(done.valid & done.ready),
                ]
                with m.If(done.valid & done.ready):
                    m.d.sync += left.eq(left - 1)
                with m.If(left == 0):
                    m.next = "REST"
            waits = (
                (fsm.ongoing("REST") & ~begins)
                | (fsm.ongoing("ASK") & ~self.ask.ready)
                | (fsm.ongoing("LISTEN") & ~self.told.valid)
                | (fsm.ongoing("TELL") & done.valid & ~done.ready)
            )
        m.d.comb += self.busy.eq(~waits | rows.busy | request.valid)
        return m
