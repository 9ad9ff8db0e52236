"""The host masks vectors or the function, or disables MSI-X, under load.

No message comes meanwhile. A vector whose completion nobody has been told of stays pending as long
as it is masked, and its message comes afterwards. Vectors that are raised while MSI-X is disabled
are lost (docs/host-interface.md, Interrupts). The host looks at its queues after that.
"""

import random

from campaign.card import Card, Group
from sw.driver.native import MSIX_ENTRY_BYTES, MSIX_TABLE

SHARE = 0.4
"""Share of rounds in which this happens."""

PENDING_BITS = 0x3000
VECTOR_CONTROL = 12
"""Offset in an entry of the table."""

PAUSE_NS = (3_000, 30_000, 100_000)
"""Times between two switches, on average."""

MOST = 100
"""Switches in a round."""

MASKED_NS = (10, 300, 10_000, 100_000)
"""How long nothing may come, on average."""

LANDED_NS, RAISED_NS = 40_000, 5_000
"""A message that had left before has arrived after so long. A completion has raised its vector."""

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
        card, choose = self._card, self._choose
        if not self._happens or choose.random() >= SHARE:
            return
        pause_ns, masked_ns = choose.choice(PAUSE_NS), choose.choice(MASKED_NS)
        await card.sleep(choose.uniform(0, 2 * pause_ns))
        for _ in range(MOST):
            if load.ended:
                return
            await self.mask(choose.choice(WAYS), choose.uniform(0, 2 * masked_ns))
            await card.sleep(choose.uniform(0, 2 * pause_ns))

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
            if landing_ns == LANDED_NS and way != "MSI-X disabled":
                await self._check_pending(vectors)
            await card.sleep(duration_ns - landing_ns)
            messages = harness.statistics()["interrupts"] - before
            assert not messages or way == "vectors masked", f"{messages} messages, {way}"
            await self._switch(way, vectors, on=False)
            if way == "MSI-X disabled":
                for vector in vectors:
                    card.transport.interrupt(vector).set()
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
        waiting = [
            queue
            for number, queue in enumerate(card.nvme.queues)
            if queue.identifier in vectors and queue.untaken and number not in card.renewed
        ]
        await card.sleep(RAISED_NS)
        bits = await card.transport.read32(PENDING_BITS)
        for queue in waiting:
            number = card.nvme.queues.index(queue) if queue in card.nvme.queues else None
            if queue.untaken and number is not None and number not in card.renewed:
                pending = bits >> queue.identifier & 1
                assert pending, f"vector {queue.identifier} is masked and raised, and not pending"
                card.outcome.seen["vectors pending"] += 1
