"""Holds the output ``busy`` of a block to its contract while the block works."""

from collections.abc import Callable, Iterator, Sequence

from cocotb_tests.streams import every_cycle, sample


class BusyWatch:
    """Nothing begins at a block's outputs that was not announced by ``busy``.

    A simulation jumps over time in which ``busy`` is 0, so what happens there is lost. An output
    may be offered newly only if in the cycle before ``busy`` was 1, or a payload was taken at an
    input or output; or if an input has begun to be offered, or one of ``others`` has changed, in
    that cycle or the one before.

    Parameters
    ----------
    sources, sinks
        Names of the streams at the inputs and outputs of ``dut``.
    others
        What else the block may act upon: a change of any counts as an input.

    Attributes
    ----------
    worked, rested, announced
        Cycles with ``busy`` 1 and 0, and offers that nothing but ``busy`` announced.
    """

    def __init__(
        self,
        dut,
        sources: Sequence[str],
        sinks: Sequence[str],
        *,
        others: Callable[[], tuple] = tuple,
    ):
        self._dut = dut
        self._sources = [
            (getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")) for name in sources
        ]
        self._sinks = [
            (name, getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready"))
            for name in sinks
        ]
        self._others = others
        self.worked = 0
        self.rested = 0
        self.announced = 0
        every_cycle(dut.clk, self._run())

    def _run(self) -> Iterator[None]:
        dut = self._dut
        before = [1] * len(self._sinks)
        busy, caused = 1, True
        others, offered = self._others(), [0] * len(self._sources)
        while True:
            yield
            if sample(dut.rst):
                before, caused = [1] * len(self._sinks), True
                continue
            now, offers = self._others(), [sample(valid) for valid, _ in self._sources]
            new_offer = any(
                new and not old for new, old in zip(offers, offered, strict=True)
            )
            entered = any(
                new and sample(ready)
                for (_, ready), new in zip(self._sources, offers, strict=True)
            )
            changed, others, offered = now != others or new_offer, now, offers
            valids = [sample(valid) for _, valid, _ in self._sinks]
            for (name, _, _), old, new in zip(self._sinks, before, valids, strict=True):
                if new and not old and not (caused or changed):
                    assert busy, f"{name} is offered although the block was not busy"
                    self.announced += 1
            taken = any(
                new and sample(ready)
                for (_, _, ready), new in zip(self._sinks, valids, strict=True)
            )
            before, caused = valids, entered or taken or changed
            busy = sample(dut.busy)
            self.worked += busy
            self.rested += 1 - busy

    def check(self) -> None:
        """To be called at the end: there was work, rest, and work that only ``busy`` announced."""
        assert self.worked, "never busy"
        assert self.rested, "always busy"
        assert self.announced, "no output ever depended on `busy`"
