"""All drives lose power at once, and come back with what was flushed, and some of the rest.

The card stays on. Its arrays have lost all their members, so the host makes them again over the
same drives, and RESYNC makes their redundancy: what a drive had not flushed may be missing on it
alone. Every block must hold what the host's flushes promise.
"""

import random

from sim.campaign.array import Array
from sim.campaign.card import Card
from sim.campaign.faults import FAULT_TIME_NS
from sim.campaign.lifetimes import FAILING, Lifetimes

SHARE = 0.35


class Power:
    """Cuts the power.

    Parameters
    ----------
    card, arrays, lifetimes
        All there is.
    features, choose
        What the campaign does.
    """

    def __init__(
        self,
        card: Card,
        arrays: list[Array],
        lifetimes: Lifetimes,
        features: frozenset[str],
        choose: random.Random,
    ):
        self._card = card
        self._arrays = arrays
        self._lifetimes = lifetimes
        self._features = features
        self._choose = choose

    def _possible(self, array: Array) -> bool:
        # A created array has its members in the order of their ports.
        kept = array.healthy and array.ports == sorted(array.ports) and not array.budget.bad
        return kept and (self._card.config.background or not array.redundant)

    async def work(self) -> None:
        """Perhaps cuts the power under load."""
        card, arrays = self._card, self._arrays
        if "power" not in self._features or self._choose.random() >= SHARE:
            return
        if not all(map(self._possible, arrays)):
            return
        for array in arrays:
            array.troubled.update(array.ports)
        load = card.spawn(array.load(share=0.7, allowed=FAILING) for array in arrays)
        await card.sleep(self._choose.uniform(0, FAULT_TIME_NS))
        card.harness.power_loss()
        await load.join()
        for port in range(card.config.ports):
            if port not in card.unusable:
                card.harness.insert(port)
        for array in arrays:
            await self._again(array)
        card.outcome.faults["power loss"] += 1

    async def _again(self, array: Array) -> None:
        """The array and its volumes are made again, and hold what was flushed."""
        await self._lifetimes.delete(array)
        volumes, array.volumes = array.volumes, []
        array.take_shape(array.layout, array.ports, array.rows)
        array.failed.clear()
        await array.create(initialise=array.redundant)
        if array.redundant:
            await array.initialised()
        for volume in volumes:
            volume.model.lose_power()
            again = await array.create_volume(
                volume.start, volume.blocks, volume.sector_bytes, array.snapshot()[
                    volume.start : volume.start + volume.blocks
                ]
            )
            again.adopt(volume)
            await again.read_all()
            assert await again.flush() == 0
            again.settle()
