"""What the host switches off and on again, now and then, as long as there is load."""

import random
from collections.abc import Awaitable, Callable

from campaign.card import Card, Group

PAUSE_NS = (3_000, 30_000, 100_000)
"""Times between two switches, on average."""

MOST = 100
"""Switches in a round."""

LANDED_NS = 40_000
"""What had left before a switch has arrived after so long."""


async def now_and_then(
    card: Card, choose: random.Random, load: Group, switch: Callable[[], Awaitable[None]]
) -> None:
    """Awaits ``switch`` again and again, with pauses, until the load has ended."""
    pause_ns = choose.choice(PAUSE_NS)
    await card.sleep(choose.uniform(0, 2 * pause_ns))
    for _ in range(MOST):
        if load.ended:
            return
        await switch()
        await card.sleep(choose.uniform(0, 2 * pause_ns))
