"""What each drive port has had to be forgiven, and for how long that counts."""

from math import ceil

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import TIME_BITS, Config
from hdl.config.drive_time import MILLISECONDS, longest_ms


class Leniency(wiring.Component):
    """Remembers the aborts and resets of each port, and forgives them in the end.

    Time is divided into windows of ``drive_reset_window_s``, rounded up to a power of two of clock
    cycles, without a gap between them. At the end of a window everything is forgiven, but not to
    ports that have had an abort or a reset lately. Lately means in the current span of time or in
    the one before, where a span is at least as long as a command can stay in a port (`longest_ms`).
    So a drive that hangs is given up in time whenever that begins.

    All outputs hold in the cycle after the strobe that changes them; ``used_up`` and ``standing``
    are combinational.

    Parameters
    ----------
    config
        Sizes, ``drive_resets``, ``drive_reset_window_s``.

    Ports
    -----
    now
        Time in clock cycles.
    port
        The port at hand, one bit.
    walk
        Strobe: a walk over all commands begins. Only then is anything forgiven.
    abort
        Strobe: a command of the port at hand is aborted.
    reset
        Strobe: the port at hand is reset.
    returns
        A bit a port: it has another drive, or the host takes the same one back. Nothing is held
        against it.
    warned
        A bit a port: it has had an abort that is not forgiven.
    standing
        A bit a port: it has had an abort that the next walk does not forgive either.
    used_up
        The port at hand has had all the resets that are forgiven.
    """

    def __init__(self, *, config: Config):
        self._config = config
        ports = config.ports
        super().__init__(
            {
                "now": In(TIME_BITS),
                "port": In(ports),
                "walk": In(1),
                "abort": In(1),
                "reset": In(1),
                "returns": In(ports),
                "warned": Out(ports),
                "standing": Out(ports),
                "used_up": Out(1),
            }
        )
        # Resets of each port: one, two, and so on.
        self._spent = [Signal(ports, name=f"spent_{n}") for n in range(config.drive_resets)]
        self._turns = Signal()  # a window has ended since the last walk
        self._lately = Signal(ports)

    def elaborate(self, platform) -> Module:
        m = Module()
        self._follow_windows(m)
        self._follow_spans(m)
        spent, port = self._spent, self.port
        m.d.comb += [
            self.used_up.eq((spent[-1] & port).any() if spent else 1),
            self.standing.eq(self.warned & Mux(self._turns, self._lately, -1)),
        ]
        with m.If(self.abort):
            m.d.sync += self.warned.eq(self.warned | port)
        with m.If(self.reset):
            for flags, fewer in zip(spent, [port, *spent], strict=False):
                m.d.sync += flags.eq(flags | (fewer & port))
        for number in range(self._config.ports):
            with m.If(self.returns[number]):
                m.d.sync += [flags[number].eq(0) for flags in (*spent, self.warned)]
        return m

    def _follow_windows(self, m: Module) -> None:
        """Forgives at the end of a window."""
        config = self._config
        cycles = config.drive_reset_window_s * config.clock_hz
        shift = min(TIME_BITS - 1, (cycles - 1).bit_length())
        window = Signal(TIME_BITS - shift)
        m.d.comb += self._turns.eq(window != self.now[shift:])
        with m.If(self.walk):
            m.d.sync += window.eq(self.now[shift:])
            with m.If(self._turns):
                m.d.sync += [
                    flags.eq(flags & self._lately) for flags in (*self._spent, self.warned)
                ]

    def _follow_spans(self, m: Module) -> None:
        """Says which ports have had something lately."""
        longest = ceil(longest_ms(self._config) * self._config.clock_hz / MILLISECONDS)
        shift = longest.bit_length()
        now = self.now[shift:]
        span = Signal(TIME_BITS - shift)
        in_span = Signal(self._config.ports)
        before = Signal(self._config.ports)
        still, follows = span == now, (span + 1)[: len(span)] == now
        m.d.comb += self._lately.eq(Mux(still | follows, in_span, 0) | Mux(still, before, 0))
        with m.If(self.walk):
            m.d.sync += span.eq(now)
            with m.If(~still):
                m.d.sync += [before.eq(self._lately), in_span.eq(0)]
        with m.If(self.abort | self.reset):
            m.d.sync += in_span.eq(in_span | self.port)
