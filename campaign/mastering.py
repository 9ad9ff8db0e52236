"""The host switches bus mastering off and on under load.

Without bus mastering no request leaves the card. Queues, transfers, completions and interrupts wait
for any time, and go on afterwards (docs/host-interface.md, Bus Master Enable). So every command
ends as if nothing had happened. The time meanwhile is not the card's.
"""

import random

from campaign.card import Card, Group
from campaign.switches import LANDED_NS, now_and_then

SHARE = 0.4
"""Share of rounds in which this happens."""

OFF_NS = (10, 300, 3_000, 60_000)
"""How long it is off, on average."""

LONG, LONG_NS = 0.3, 400_000
"""Share of such rounds in which it is once off for longer than the shortest completion timeout."""
SHORT_TIMEOUT, USUAL_TIMEOUT = 1, 0
"""Completion Timeout Values of Device Control 2: 50 to 100 us, and the default range."""

REQUESTS = ("memory_writes", "memory_reads", "interrupts")
"""Counters of requests of the card."""


class Mastering:
    """Switches bus mastering.

    Parameters
    ----------
    card
        The card.
    features, choose
        Features of the campaign and random choices.
    """

    def __init__(self, card: Card, features: frozenset[str], choose: random.Random):
        self._card = card
        self._choose = choose
        self._happens = "master" in features

    async def work(self, load: Group) -> None:
        """Sometimes switches bus mastering, as long as there is load."""
        choose = self._choose
        if not self._happens or choose.random() >= SHARE:
            return
        off_ns, long = choose.choice(OFF_NS), choose.random() < LONG

        async def switch() -> None:
            nonlocal long
            await self.off(LONG_NS if long else choose.uniform(0, 2 * off_ns), short=long)
            self._card.outcome.seen["bus mastering off for long"] += long
            long = False

        await now_and_then(self._card, choose, load, switch)

    async def off(self, duration_ns: float, *, short: bool = False) -> None:
        """Switches bus mastering off for so long. Nothing leaves the card meanwhile.

        With ``short`` the completion timeout is short meanwhile. Reads that have been sent have
        ended before. The time of those that wait has not begun.
        """
        card, harness = self._card, self._card.harness
        with card.paused():
            harness.set_status("bus_master", 0)
            landing_ns = min(duration_ns, LANDED_NS)
            await card.sleep(landing_ns)
            before = self._requests()
            if short:
                harness.set_status("completion_timeout", SHORT_TIMEOUT)
            await card.sleep(duration_ns - landing_ns)
            sent = self._requests() - before
            assert not sent, f"the card sends {sent} requests while bus mastering is off"
            if short:
                harness.set_status("completion_timeout", USUAL_TIMEOUT)
            harness.set_status("bus_master", 1)
        card.outcome.seen["bus mastering off"] += 1

    def _requests(self) -> int:
        counters = self._card.harness.statistics()
        return sum(counters[name] for name in REQUESTS)
