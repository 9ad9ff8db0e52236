"""How much of the time background work may take from the host."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
from hdl.kit.clock import NEVER, passed

BATCH_ROWS = 16
"""Rows that the host's commands may have to wait for."""

SHARE_BITS = 7
WHOLE = 100
"""Shares are percent."""

TIME_WIDTH = 32
"""Longest batch that counts, in cycles."""

PRODUCT_BITS = TIME_WIDTH + SHARE_BITS


class Pace(wiring.Component):
    """Lets the walker work for ``share`` percent of the time while the host is there.

    A batch is `BATCH_ROWS` rows, or as many as the walker has at once. When one has been asked for
    and there was a host command meanwhile, the walker is held until its rows have ended, which took
    t cycles, and until t * 100 / share cycles have passed since the batch began. Without host
    commands, or with a share of 100, it is never held.

    Parameters
    ----------
    config
        Sizes: ``walk_window`` is the largest batch.

    Ports
    -----
    share
        1..100.
    issued, outstanding, walking
        Of `hdl.background.walker.Walker`.
    active
        There is a host command.
    hold
        To the walker.
    now, deadline
        Time in cycles, and when the hold ends (all ones: no hold).
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "share": In(SHARE_BITS),
                "issued": In(1),
                "outstanding": In(1),
                "walking": In(1),
                "active": In(1),
                "hold": Out(1),
                "now": In(TIME_BITS),
                "deadline": Out(TIME_BITS, init=NEVER),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        batch = min(BATCH_ROWS, self._config.walk_window)
        m = Module()
        count = Signal(range(batch + 1))
        seen = Signal()
        began = Signal(TIME_BITS)
        product = Signal(PRODUCT_BITS)
        quotient = Signal(PRODUCT_BITS)
        taken = Signal(TIME_WIDTH)
        rest = Signal(SHARE_BITS)
        trial = Signal(SHARE_BITS + 1)
        left = Signal(range(PRODUCT_BITS + 1))
        elapsed = Signal(TIME_BITS)
        wake = Signal(TIME_BITS)
        m.d.comb += [
            trial.eq(Cat(product[-1], rest)),
            elapsed.eq(self.now - began),
            self.deadline.eq(~0),
        ]

        with m.FSM(name="pace") as fsm:
            with m.State("COUNT"):
                with m.If(self.active):
                    m.d.sync += seen.eq(1)
                with m.If(self.issued):
                    m.d.sync += count.eq(count + 1)
                    with m.If(count == 0):
                        m.d.sync += [began.eq(self.now), seen.eq(self.active)]
                with m.If(~self.walking):
                    m.d.sync += count.eq(0)
                with m.Elif(count == batch):
                    m.d.sync += count.eq(self.issued)
                    with m.If(self.issued):
                        m.d.sync += began.eq(self.now)
                    with m.If((seen | self.active) & (self.share != WHOLE)):
                        m.d.comb += self.hold.eq(1)
                        m.next = "DRAIN"

            with m.State("DRAIN"):
                m.d.comb += self.hold.eq(1)
                m.d.sync += [
                    taken.eq(Mux(elapsed[TIME_WIDTH:].any(), (1 << TIME_WIDTH) - 1, elapsed)),
                    quotient.eq(0),
                    rest.eq(0),
                    left.eq(PRODUCT_BITS),
                ]
                with m.If(~self.outstanding):
                    m.next = "MULTIPLY"

            with m.State("MULTIPLY"):
                m.d.comb += self.hold.eq(1)
                m.d.sync += product.eq((taken << 6) + (taken << 5) + (taken << 2))
                m.next = "DIVIDE"

            with m.State("DIVIDE"):
                fits = trial >= self.share
                m.d.comb += self.hold.eq(1)
                m.d.sync += [
                    product.eq(product << 1),
                    quotient.eq(Cat(fits, quotient)),
                    rest.eq(Mux(fits, trial - self.share, trial)),
                    left.eq(left - 1),
                ]
                with m.If(left == 1):
                    m.next = "SET"

            with m.State("SET"):
                m.d.comb += self.hold.eq(1)
                m.d.sync += wake.eq(began + quotient)
                m.next = "REST"

            with m.State("REST"):
                m.d.comb += [self.hold.eq(1), self.deadline.eq(wake)]
                with m.If(passed(self.now, wake)):
                    m.d.sync += count.eq(0)
                    m.next = "COUNT"

        waits = (
            (fsm.ongoing("COUNT") & (count != batch))
            | (fsm.ongoing("DRAIN") & self.outstanding)
            | (fsm.ongoing("REST") & ~passed(self.now, wake))
        )
        m.d.comb += self.busy.eq(~waits)
        return m
