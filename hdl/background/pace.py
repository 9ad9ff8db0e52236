"""How much of the time background work may take from the host."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
from hdl.kit.clock import NEVER, earlier, passed

BATCH_ROWS = 16
"""Rows that the host's commands may have to wait for."""

RATE_BITS = 7
WHOLE = 100
"""Rates are percent."""

TIME_WIDTH = 26
"""Width of the time of a batch in cycles. 0.27 s at 250 MHz count at most. A batch that takes
longer waits for a drive that hangs."""

PRODUCT_BITS = TIME_WIDTH + RATE_BITS


class Pace(wiring.Component):
    """Lets the walker work for ``rate`` percent of the time while the host is there.

    A batch is `BATCH_ROWS` rows, or as many as the walker has at once. If there was a host command
    while a batch was asked for, the walker is held after it until the rows of the batch have ended.
    That took t cycles, but no more than fit into `TIME_WIDTH` bits count. Then the walker rests
    until t * 100 / rate cycles have passed since the batch began, or until there has been no host
    command for t cycles. Another rate counts at once.

    Parameters
    ----------
    config
        Sizes. ``walk_window`` is the largest batch.

    Ports
    -----
    rate
        Percent, 1..100.
    issued
        A pulse of `hdl.background.walker.Walker`. A row has been asked for.
    outstanding
        Of the walker. Rows are on their way.
    walking
        Of the walker. It has something to walk.
    active
        There is a host command.
    hold
        To the walker. Ask for no row.
    now
        Time in cycles.
    deadline
        When the hold ends, in cycles. All ones if there is no hold.
    busy
        It works.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "rate": In(RATE_BITS),
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

        # Rows of the batch, whether there was a host command meanwhile, and when the batch began.
        self._batch = min(BATCH_ROWS, config.walk_window)
        self._count = Signal(range(self._batch + 1))
        self._seen = Signal()
        self._began = Signal(TIME_BITS)
        self._elapsed = Signal(TIME_BITS)

        # How long the batch took; 100 times that, divided by the rate; when the hold ends, and when
        # it does unless there is another host command.
        self._taken = Signal(TIME_WIDTH)
        self._divisor = Signal(RATE_BITS)
        self._product = Signal(PRODUCT_BITS)
        self._quotient = Signal(PRODUCT_BITS)
        self._rest = Signal(RATE_BITS)
        self._left = Signal(range(PRODUCT_BITS + 1))
        self._wake = Signal(TIME_BITS)
        self._idle_wake = Signal(TIME_BITS)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.comb += [self._elapsed.eq(self.now - self._began), self.deadline.eq(NEVER)]
        with m.If(self.active):
            m.d.sync += self._idle_wake.eq(self.now + self._taken)
        with m.FSM(name="pace") as fsm:
            self._count_rows(m)
            self._drain(m)
            self._multiply(m)
            self._divide(m)
            self._wait(m)
        m.d.comb += self.busy.eq(~self._waits(fsm))
        return m

    def _count_rows(self, m: Module) -> None:
        """The state COUNT, until a batch has been asked for."""
        count, began, seen = self._count, self._began, self._seen
        with m.State("COUNT"):
            with m.If(self.active):
                m.d.sync += seen.eq(1)
            with m.If(self.issued):
                m.d.sync += count.eq(count + 1)
                with m.If(count == 0):
                    m.d.sync += [began.eq(self.now), seen.eq(self.active)]
            with m.If(~self.walking):
                m.d.sync += count.eq(0)
            with m.Elif(count == self._batch):
                m.d.sync += count.eq(self.issued)
                with m.If(self.issued):
                    m.d.sync += began.eq(self.now)
                with m.If((seen | self.active) & (self.rate != WHOLE)):
                    m.d.comb += self.hold.eq(1)
                    m.next = "DRAIN"

    def _drain(self, m: Module) -> None:
        """The state DRAIN, until the rows of the batch have ended."""
        longest = (1 << TIME_WIDTH) - 1
        with m.State("DRAIN"):
            m.d.comb += self.hold.eq(1)
            m.d.sync += self._taken.eq(
                Mux(self._elapsed[TIME_WIDTH:].any(), longest, self._elapsed)
            )
            with m.If(~self.outstanding):
                m.next = "MULTIPLY"

    def _multiply(self, m: Module) -> None:
        """The state MULTIPLY: the time times 100."""
        taken = self._taken
        with m.State("MULTIPLY"):
            m.d.comb += self.hold.eq(1)
            m.d.sync += [
                self._product.eq((taken << 6) + (taken << 5) + (taken << 2)),
                self._divisor.eq(self.rate),
                self._quotient.eq(0),
                self._rest.eq(0),
                self._left.eq(PRODUCT_BITS),
                self._idle_wake.eq(self.now + taken),
            ]
            m.next = "DIVIDE"

    def _divide(self, m: Module) -> None:
        """The states DIVIDE, a bit a cycle, and SET: when the hold ends."""
        product, quotient, rest, left = self._product, self._quotient, self._rest, self._left
        trial = Signal(RATE_BITS + 1)
        m.d.comb += trial.eq(Cat(product[-1], rest))
        with m.State("DIVIDE"):
            fits = trial >= self._divisor
            m.d.comb += self.hold.eq(1)
            m.d.sync += [
                product.eq(product << 1),
                quotient.eq(Cat(fits, quotient)),
                rest.eq(Mux(fits, trial - self._divisor, trial)),
                left.eq(left - 1),
            ]
            with m.If(left == 1):
                m.next = "SET"

        with m.State("SET"):
            m.d.comb += self.hold.eq(1)
            m.d.sync += self._wake.eq(self._began + quotient)
            m.next = "REST"

    def _wait(self, m: Module) -> None:
        """The state REST, until the hold ends, or the rate is another one."""
        with m.State("REST"):
            sooner = ~self.active & earlier(self.now, self._idle_wake, self._wake)
            m.d.comb += [
                self.hold.eq(1),
                self.deadline.eq(Mux(sooner, self._idle_wake, self._wake)),
            ]
            with m.If(self._rested):
                m.d.sync += self._count.eq(0)
                m.next = "COUNT"
            with m.Elif(self._outdated):
                m.next = "MULTIPLY"

    @property
    def _rested(self) -> Value:
        """The hold ends."""
        silent = ~self.active & passed(self.now, self._idle_wake)
        return passed(self.now, self._wake) | silent

    @property
    def _outdated(self) -> Value:
        """The hold was worked out for another rate."""
        return self.rate != self._divisor

    def _waits(self, fsm) -> Value:
        """It waits for somebody else, or for a time."""
        rests = ~self._rested & ~self._outdated
        return (
            (fsm.ongoing("COUNT") & (self._count != self._batch))
            | (fsm.ongoing("DRAIN") & self.outstanding)
            | (fsm.ongoing("REST") & rests)
        )
