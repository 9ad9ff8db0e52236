"""What the gatherer takes next: an extent of a host command or a row to walk."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.extent import extent
from hdl.flow.host_command import HostOpcode
from hdl.flow.walk import walk
from hdl.stripe.gather.parking import parked

EXTENTS_A_WALK = 15
"""Extents that a walk lets pass at most."""


class Intake(wiring.Component):
    """Offers extents as they come, and a walk when there is none, or `EXTENTS_A_WALK` went before.

    ``arrival``: an extent; one that stands for a walk is a READ of one block that does not lie in
    any command, ``last`` being the walk's ``more``. No latency.

    Parameters
    ----------
    config
        Sizes.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "extent": In(stream.Signature(extent(config))),
                "walk": In(stream.Signature(walk(config))),
                "arrival": Out(stream.Signature(parked(config))),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        arrival = self.arrival.payload
        m.d.comb += [
            self.arrival.valid.eq(self.extent.valid),
            self.extent.ready.eq(self.arrival.ready),
            arrival.extent.eq(self.extent.payload),
        ]
        asked = self.walk.payload
        passed = Signal(range(EXTENTS_A_WALK + 1))
        offered = Signal()
        chosen = Signal()
        m.d.comb += chosen.eq(
            self.walk.valid & (~self.extent.valid | offered | (passed == EXTENTS_A_WALK))
        )
        m.d.sync += offered.eq(chosen & ~self.arrival.ready)
        with m.If(chosen & self.arrival.ready):
            m.d.sync += passed.eq(0)
        with m.Elif(self.walk.valid & self.extent.valid & self.arrival.ready):
            m.d.sync += passed.eq(passed + 1)
        with m.If(chosen):
            m.d.comb += [
                self.arrival.valid.eq(1),
                self.extent.ready.eq(0),
                self.walk.ready.eq(self.arrival.ready),
                arrival.extent.eq(0),
                arrival.extent.opcode.eq(HostOpcode.READ),
                arrival.extent.array.eq(asked.array),
                arrival.extent.base.eq(asked.base),
                arrival.extent.shift.eq(asked.shift),
                arrival.extent.row.eq(asked.row),
                arrival.extent.last.eq(asked.more),
                arrival.walk.any.eq(1),
                arrival.walk.kind.eq(asked.kind),
                arrival.walk.tag.eq(asked.tag),
                arrival.walk.source.eq(asked.source),
                arrival.walk.era.eq(asked.era),
            ]
        return m
