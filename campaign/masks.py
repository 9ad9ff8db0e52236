"""The host masks vectors or the function, or disables MSI-X, under load.

No message comes meanwhile. A vector whose completion nobody has been told of stays pending, and its
message comes afterwards (docs/host-interface.md, Interrupts).
"""

import random

from campaign.card import Card, Group
from campaign.switches import LANDED_NS, now_and_then
from sw.driver.native import MSIX_ENTRY_BYTES, MSIX_TABLE
from sw.driver.queue import QueuePair

SHARE = 0.4
"""Share of rounds in which this happens."""

PENDING_BITS = 0x3000
VECTOR_CONTROL = 12
"""Offset in an entry of the table."""

MASKED_NS = (10, 300, 10_000, 100_000)
"""How long nothing may come, on average."""

RAISED_NS = 5_000
"""A completion has raised its vector after so long."""

WAYS = ("function masked", "vectors masked", "MSI-X disabled")


class Masks:
    """Switches interrupts.

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
        self._happens = "masks" in features

    async def work(self, load: Group) -> None:
        """Sometimes switches interrupts, as long as there is load."""
        choose = self._choose
        if not self._happens or choose.random() >= SHARE:
            return
        masked_ns = choose.choice(MASKED_NS)

        async def switch() -> None:
            await self.mask(choose.choice(WAYS), choose.uniform(0, 2 * masked_ns))

        await now_and_then(self._card, choose, load, switch)

    async def mask(self, way: str, duration_ns: float) -> None:
        """Keeps messages from being sent for so long."""
        card, harness = self._card, self._card.harness
        vectors = range(card.config.queue_pairs + 1)
        if way == "vectors masked":
            vectors = self._choose.sample(vectors, self._choose.randint(1, len(vectors)))
        with card.paused():
            await self._switch(way, vectors, on=True)
            landing_ns = min(duration_ns, LANDED_NS)
            await card.sleep(landing_ns)
            before = harness.statistics()["interrupts"]
            if landing_ns == LANDED_NS:
                await self._check_pending(vectors)
            await card.sleep(duration_ns - landing_ns)
            messages = harness.statistics()["interrupts"] - before
            assert not messages or way == "vectors masked", f"{messages} messages, {way}"
            await self._switch(way, vectors, on=False)
        card.outcome.seen[way] += 1

    async def _switch(self, way: str, vectors, *, on: bool) -> None:
        card = self._card
        if way == "function masked":
            card.harness.set_status("msix_mask", int(on))
        elif way == "MSI-X disabled":
            card.harness.set_status("msix_enable", int(not on))
        else:
            for vector in vectors:
                control = MSIX_TABLE + MSIX_ENTRY_BYTES * vector + VECTOR_CONTROL
                await card.transport.write32(control, int(on))

    async def _check_pending(self, vectors) -> None:
        """Vectors of queues with completions that nobody has taken are pending.

        Of a queue that is being deleted the host may have had the message, and look away.
        """
        card = self._card
        waiting = self._untaken(vectors)
        await card.sleep(RAISED_NS)
        bits = await card.transport.read32(PENDING_BITS)
        still = self._untaken(vectors)
        for queue in waiting:
            if queue in still:
                pending = bits >> queue.identifier & 1
                assert pending, f"vector {queue.identifier} is raised and not told, and not pending"
                card.outcome.seen["vectors pending"] += 1

    def _untaken(self, vectors) -> list[QueuePair]:
        """Queues of these vectors that have a completion, and are not being deleted."""
        return [
            queue
            for number, queue in enumerate(self._card.nvme.queues)
            if queue.identifier in vectors and queue.untaken and number not in self._card.renewed
        ]
